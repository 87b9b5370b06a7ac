/*
 * kernels_neon.c - vectors of four, for 64-bit Arm, with what its base architecture offers.
 *
 * Products of pairs of bf16, which later versions have, are not used: to stay within the accuracy promised
 * a weight would have to be split into two or three of them, which costs what the pairs save.
 */
#include "cpu/tile.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define NAME(x) x##_neon
#define TARGET
#define LANES 4
#define TILE_ROWS 4
#define TILE_VECTORS 4
#define ROWS_OF(at) ROW(at, v)
#define KERNELS_NAME "neon"
#define KERNELS_FEATURES TRIA_CPU_NEON
#define OP static inline __attribute__((always_inline))

#include "cpu/arm/floats_neon.h"

OP vf vf_load(const void *from)
{
    return vreinterpretq_f32_u8(vld1q_u8(from));
}
OP vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
OP vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
OP vf vf_sqrt(vf x)
{
    return vsqrtq_f32(x);
}
OP vf vf_max_number(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
OP vf vf_if_finite(vf x, vf a, vf b)
{
    return vbslq_f32(vceqzq_f32(vsubq_f32(x, x)), a, b);
}
OP uint32_t mask_bits(uint32x4_t mask)
{
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(mask, bits));
}
OP uint32_t mask_greater(vf a, vf b)
{
    return mask_bits(vcgtq_f32(a, b));
}
OP uint32_t mask_not_less(vf a, vf b)
{
    return mask_bits(vcgeq_f32(a, b));
}
OP uint32_t mask_of_zeros(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof(word));
    return mask_bits(vceqzq_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))))));
}
OP vf from_f16(uint16x4_t half)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}
OP float scalar_f16(const void *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return vgetq_lane_f32(from_f16(vdup_n_u16(half)), 0);
}
OP uint16x4_t load_u16(const void *from)
{
    return vreinterpret_u16_u8(vld1_u8(from));
}
OP uint8x8_t load_four_bytes(const void *from)
{
    uint32_t bytes;
    memcpy(&bytes, from, sizeof(bytes));
    return vreinterpret_u8_u32(vdup_n_u32(bytes));
}
OP vf load_f16(const void *from)
{
    return from_f16(load_u16(from));
}
OP vf load_bf16(const void *from)
{
    return vreinterpretq_f32_u32(vshll_n_u16(load_u16(from), 16));
}
OP vf load_i8(const void *from)
{
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_four_bytes(from)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
OP vf load_fp8(const void *from, const tria_fp8_format *format)
{
    uint16x4_t byte = vget_low_u16(vmovl_u8(load_four_bytes(from)));
    uint16x4_t sign = vshl_n_u16(vand_u16(byte, vdup_n_u16(0x80)), 8);
    uint16x4_t rest = vshl_u16(vand_u16(byte, vdup_n_u16(0x7f)), vdup_n_s16((int16_t)format->shift));
    uint16x4_t nan = vceq_u16(vand_u16(byte, vdup_n_u16((uint16_t)format->nan_mask)),
                              vdup_n_u16((uint16_t)format->nan_value));
    return from_f16(vorr_u16(vorr_u16(sign, rest), vand_u16(nan, vdup_n_u16(0x7e00))));
}
OP vf load_f32(const void *from)
{
    return vf_load(from);
}
OP vf spread_scales(const float *scales, int v)
{
    return vf_set1(scales[v]);
}
OP void vf_deinterleave(vf a, vf b, vf *even, vf *odd)
{
    *even = vuzp1q_f32(a, b);
    *odd = vuzp2q_f32(a, b);
}
OP void reduce_tile(vf acc[][TILE_VECTORS], int n_heads, float *out)
{
    for (int h = 0; h < n_heads; h++) {
        vf low = vpaddq_f32(acc[h][0], acc[h][1]);
        vf high = vpaddq_f32(acc[h][2], acc[h][3]);
        vst1q_f32(out + h * TILE_ROWS, vpaddq_f32(low, high));
    }
}

#include "cpu/kernels_template.h"

KERNELS_TABLE(tria_cpu_kernels_neon_dot, "neon_dot", KERNELS_FEATURES | TRIA_CPU_DOT,
              &tria_byte_kernels_dot);
#endif

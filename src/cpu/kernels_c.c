/*
 * kernels_c.c - the kernels for any machine: vectors of four in the compilers' own notation, which every
 * 64-bit target has registers for.
 */
#include "cpu/tile.h"

#include <math.h>
#include <string.h>

#define NAME(x) x##_c
#define TARGET
#define LANES 4
#define TILE_ROWS 2
#define TILE_VECTORS 2
#define ROWS_OF(at) ROW(at, v)
#define KERNELS_NAME "c"
#define KERNELS_FEATURES 0

typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));

static inline vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf vf_load(const void *from)
{
    vf x;
    memcpy(&x, from, sizeof(x));
    return x;
}
static inline void vf_store(float *to, vf x)
{
    memcpy(to, &x, sizeof(x));
}
static inline vf vf_add(vf a, vf b)
{
    return a + b;
}
static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}
static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}
static inline vf vf_div(vf a, vf b)
{
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
static inline vf vf_sqrt(vf x)
{
    return (vf){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])};
}
static inline vf vu_select(vu mask, vf a, vf b)
{
    return (vf)((mask & (vu)a) | (~mask & (vu)b));
}
static inline vf vf_max_number(vf a, vf b)
{
    return vu_select((vu)(a > b), a, b);
}
static inline vf vf_if_finite(vf x, vf a, vf b)
{
    /* NaN and infinity less themselves are NaN. NOLINTNEXTLINE(misc-redundant-expression) */
    return vu_select((vu)(x - x == vf_set1(0.0f)), a, b);
}

static inline uint32_t vu_bits(vu mask)
{
    return (mask[0] & 1u) | (mask[1] & 2u) | (mask[2] & 4u) | (mask[3] & 8u);
}
static inline uint32_t mask_greater(vf a, vf b)
{
    return vu_bits((vu)(a > b));
}
static inline uint32_t mask_not_less(vf a, vf b)
{
    return vu_bits((vu)(a >= b));
}
static inline uint32_t mask_of_zeros(const uint8_t *bytes)
{
    return (bytes[0] == 0 ? 1u : 0u) | (bytes[1] == 0 ? 2u : 0u) | (bytes[2] == 0 ? 4u : 0u) |
           (bytes[3] == 0 ? 8u : 0u);
}

/* From the low halves of the lanes. Subnormal f16 become normal f32 by a subtraction, so that nothing
 * depends on how the engine set the treatment of subnormal operands. */
static inline vf from_f16(vu half)
{
    const vu exponent_f16 = half & 0x7c00u;
    vu bits = ((half & 0x7fffu) << 13) + (112u << 23);
    vf subnormal = (vf)(bits + (1u << 23)) - (vf)(vu){113u << 23, 113u << 23, 113u << 23, 113u << 23};
    bits += (vu)(exponent_f16 == 0x7c00u) & (112u << 23);
    bits = (vu)vu_select((vu)(exponent_f16 == 0u), subnormal, (vf)bits);
    return (vf)(bits | (half & 0x8000u) << 16);
}
static inline float scalar_f16(const void *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return from_f16((vu){half})[0];
}
static inline vu load_u16(const void *from)
{
    uint16_t x[4];
    memcpy(x, from, sizeof(x));
    return (vu){x[0], x[1], x[2], x[3]};
}
static inline vf load_f16(const void *from)
{
    return from_f16(load_u16(from));
}
static inline vf load_bf16(const void *from)
{
    return (vf)(load_u16(from) << 16);
}
static inline vf load_i8(const void *from)
{
    int8_t x[4];
    memcpy(x, from, sizeof(x));
    return (vf){x[0], x[1], x[2], x[3]};
}
static inline vf load_fp8(const void *from, const tria_fp8_format *format)
{
    uint8_t x[4];
    memcpy(x, from, sizeof(x));
    vu byte = {x[0], x[1], x[2], x[3]};
    vu nan = (vu)((byte & (uint32_t)format->nan_mask) == (uint32_t)format->nan_value);
    return from_f16((byte & 0x80u) << 8 | (byte & 0x7fu) << format->shift | (nan & 0x7e00u));
}
static inline vf load_f32(const void *from)
{
    return vf_load(from);
}
static inline vf spread_scales(const float *scales, int v)
{
    return vf_set1(scales[v]);
}
static inline void vf_deinterleave(vf a, vf b, vf *even, vf *odd)
{
    *even = (vf){a[0], a[2], b[0], b[2]};
    *odd = (vf){a[1], a[3], b[1], b[3]};
}
static inline void reduce_tile(vf acc[][TILE_VECTORS], int n_heads, float *out)
{
    for (int h = 0; h < n_heads; h++) {
        for (int r = 0; r < TILE_ROWS; r++) {
            vf x = acc[h][r];
            out[h * TILE_ROWS + r] = (x[0] + x[2]) + (x[1] + x[3]);
        }
    }
}

#include "cpu/kernels_template.h"

/* bytes_dot.c - products of bytes by the dot products that 64-bit Arm has since version 8.2, as an option.
 */
#if defined(__aarch64__)
#include "cpu/tile.h"

#include <arm_neon.h>

#define NAME(x) x##_dot
#define TARGET __attribute__((target(DOT_TARGET)))
#if defined(__clang__)
#define DOT_TARGET "dotprod"
#else
#define DOT_TARGET "arch=armv8.2-a+dotprod"
#endif
#define ROWS 4
#define KEY_BIAS 0
#define OP static inline __attribute__((always_inline)) TARGET

#include "cpu/arm/floats_neon.h"

typedef int32x4_t vi;

OP vi vi_set1(int32_t x)
{
    return vdupq_n_s32(x);
}
OP vi vi_dot(vi sums, vi keys, const int32_t *digits)
{
    return vdotq_s32(sums, vreinterpretq_s8_s32(keys), vreinterpretq_s8_s32(vld1q_dup_s32(digits)));
}
OP vi vi_join(vi high, vi low)
{
    return vaddq_s32(vshlq_n_s32(high, 8), low);
}
OP vf vf_of(vi x)
{
    return vcvtq_f32_s32(x);
}

/* 16 bytes of a row. */
OP vi load_row(const unsigned char *at)
{
    return vreinterpretq_s32_u8(vld1q_u8(at));
}
/* Pairs of 64 bits. */
OP vi join_low(vi a, vi b)
{
    return vcombine_s32(vget_low_s32(a), vget_low_s32(b));
}
OP vi join_high(vi a, vi b)
{
    return vcombine_s32(vget_high_s32(a), vget_high_s32(b));
}
/* A transposition of four by four groups of four bytes. */
OP void load_keys(const unsigned char *at, int64_t stride, vi *keys)
{
    const vi a = load_row(at), b = load_row(at + stride);
    const vi c = load_row(at + 2 * stride), d = load_row(at + 3 * stride);
    const int32x4x2_t ab = vzipq_s32(a, b), cd = vzipq_s32(c, d);
    keys[0] = join_low(ab.val[0], cd.val[0]);
    keys[1] = join_high(ab.val[0], cd.val[0]);
    keys[2] = join_low(ab.val[1], cd.val[1]);
    keys[3] = join_high(ab.val[1], cd.val[1]);
}
OP vf load_scales(const unsigned char *at, int64_t stride)
{
    uint16_t halves[ROWS];
    for (int r = 0; r < ROWS; r++) {
        memcpy(&halves[r], at + r * stride, sizeof(halves[r]));
    }
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}

#include "cpu/bytes_template.h"
#endif

/* bytes_vnni.c - products of bytes by the dot products of AVX-512 VNNI: unsigned keys, signed digits. */
#if defined(__x86_64__)
#include "cpu/tile.h"

#include <immintrin.h>

#define NAME(x) x##_vnni
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define ROWS 16
#define KEY_BIAS 128
#define OP static inline __attribute__((always_inline)) TARGET

#include "cpu/x86/floats_avx512.h"

typedef __m512i vi;

OP vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
OP vi vi_dot(vi sums, vi keys, const int32_t *digits)
{
    return _mm512_dpbusd_epi32(sums, keys, _mm512_set1_epi32(*digits));
}
OP vi vi_join(vi high, vi low)
{
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}
OP vf vf_of(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

/* 16 bytes of rows 0, 4, 8 and 12. */
OP vi every_fourth(const unsigned char *at, int64_t stride)
{
    const __m128i *rows[4] = {(const void *)at, (const void *)(at + 4 * stride),
                              (const void *)(at + 8 * stride), (const void *)(at + 12 * stride)};
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(rows[0])),
                                                _mm_loadu_si128(rows[1]), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(rows[2])),
                                                 _mm_loadu_si128(rows[3]), 1);
    const vi bias = _mm512_set1_epi8((char)KEY_BIAS);
    return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), bias);
}
/* A transposition of four by four groups of four bytes, for four times four rows at once. */
OP void load_keys(const unsigned char *at, int64_t stride, vi *keys)
{
    const vi a = every_fourth(at, stride), b = every_fourth(at + stride, stride);
    const vi c = every_fourth(at + 2 * stride, stride), d = every_fourth(at + 3 * stride, stride);
    const vi ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const vi cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    keys[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    keys[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    keys[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    keys[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

OP int16_t load_half(const unsigned char *at)
{
    int16_t half;
    memcpy(&half, at, sizeof(half));
    return half;
}
/* Set in registers: halves gathered in memory could not be loaded before all were stored. */
OP __m128i load_eight_halves(const unsigned char *at, int64_t stride)
{
    return _mm_setr_epi16(load_half(at), load_half(at + stride), load_half(at + 2 * stride),
                          load_half(at + 3 * stride), load_half(at + 4 * stride),
                          load_half(at + 5 * stride), load_half(at + 6 * stride),
                          load_half(at + 7 * stride));
}
OP vf load_scales(const unsigned char *at, int64_t stride)
{
    return _mm512_cvtph_ps(
        _mm256_set_m128i(load_eight_halves(at + 8 * stride, stride), load_eight_halves(at, stride)));
}

#include "cpu/bytes_template.h"
#endif

/*
 * kernels_avx512.c - vectors of sixteen, for x86 with AVX-512 F, BW, DQ and VL.
 *
 * The products of 16-bit floats and of bytes that newer extensions offer are not used: to stay within the
 * accuracy promised the query side would have to be split into two or three narrower parts, and the
 * products saved by the width are spent on the parts.
 */
#include "cpu/kernels_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define LANES 16
#define TILE_ROWS 4
#define KERNELS_NAME "avx512"
#define KERNELS_FEATURES (TRIA_CPU_AVX2 | TRIA_CPU_AVX512)
#define OP static inline __attribute__((always_inline)) TARGET

typedef __m512 vf;

OP vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
OP vf vf_load(const void *from)
{
    return _mm512_loadu_ps(from);
}
OP void vf_store(float *to, vf x)
{
    _mm512_storeu_ps(to, x);
}
OP vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
OP vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
OP vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
OP vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
OP vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
OP vf vf_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}
OP vf vf_max_number(vf a, vf b)
{
    return _mm512_max_ps(a, b); /* b when either is NaN */
}
OP vf vf_if_finite(vf x, vf a, vf b)
{
    return _mm512_mask_mov_ps(a, _mm512_fpclass_ps_mask(x, 0x99), b); /* NaNs and infinities */
}
OP float scalar_f16(const void *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return _cvtsh_ss(half);
}
OP vf vf_load_f16(const void *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}
OP vf vf_load_bf16(const void *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16));
}
OP vf vf_load_i8(const void *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
}
OP vf vf_load_fp8(const void *from, const tria_fp8_format *format)
{
    __m256i byte = _mm256_cvtepu8_epi16(_mm_loadu_si128(from));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(byte, _mm256_set1_epi16(0x80)), 8);
    __m256i rest =
        _mm256_sll_epi16(_mm256_and_si256(byte, _mm256_set1_epi16(0x7f)), _mm_cvtsi32_si128(format->shift));
    __mmask16 nan =
        _mm256_cmpeq_epi16_mask(_mm256_and_si256(byte, _mm256_set1_epi16((int16_t)format->nan_mask)),
                                _mm256_set1_epi16((int16_t)format->nan_value));
    __m256i half = _mm256_or_si256(sign, rest);
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00)));
}
OP void vf_deinterleave(vf a, vf b, vf *even, vf *odd)
{
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(evens, _mm512_set1_epi32(1)), b);
}
/* Four rows of a head become one vector of four sums per 128-bit lane, then the lanes are added. */
OP void reduce_tile_avx512(vf acc[][TILE_ROWS], int n_heads, float *out)
{
    for (int h = 0; h < n_heads; h++) {
        vf a = _mm512_add_ps(_mm512_unpacklo_ps(acc[h][0], acc[h][1]),
                             _mm512_unpackhi_ps(acc[h][0], acc[h][1]));
        vf b = _mm512_add_ps(_mm512_unpacklo_ps(acc[h][2], acc[h][3]),
                             _mm512_unpackhi_ps(acc[h][2], acc[h][3]));
        vf c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
        __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
        _mm_storeu_ps(out + h * TILE_ROWS,
                      _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1)));
    }
}

#include "cpu/kernels_template.h"
#endif

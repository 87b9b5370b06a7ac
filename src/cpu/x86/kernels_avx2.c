/* kernels_avx2.c - vectors of eight, for x86 with AVX2, FMA and F16C. */
#include "cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LANES 8
#define TILE_ROWS 2 /* 8 sums, 4 halves of keys and a weight fill the 16 registers */
#define TILE_VECTORS 2
#define ROWS_OF(at) ROW(at, v)
#define KERNELS_NAME "avx2"
#define KERNELS_FEATURES TRIA_CPU_AVX2
#define OP static inline __attribute__((always_inline)) TARGET

typedef __m256 vf;

OP vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
OP vf vf_load(const void *from)
{
    return _mm256_loadu_ps(from);
}
OP void vf_store(float *to, vf x)
{
    _mm256_storeu_ps(to, x);
}
OP vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
OP vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
OP vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
OP vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
OP vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
OP vf vf_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}
OP vf vf_max_number(vf a, vf b)
{
    return _mm256_max_ps(a, b); /* b when either is NaN */
}
OP vf vf_if_finite(vf x, vf a, vf b)
{
    vf finite = _mm256_cmp_ps(_mm256_sub_ps(x, x), _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_blendv_ps(b, a, finite);
}
OP uint32_t mask_greater(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
OP uint32_t mask_not_less(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
OP uint32_t mask_of_zeros(const uint8_t *bytes)
{
    __m128i zeros = _mm_cmpeq_epi8(_mm_loadl_epi64((const void *)bytes), _mm_setzero_si128());
    return (uint32_t)_mm_movemask_epi8(zeros) & 0xffu;
}
OP float scalar_f16(const void *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return _cvtsh_ss(half);
}
OP vf load_f16(const void *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(from));
}
OP vf load_bf16(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16));
}
OP vf load_i8(const void *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
}
OP vf load_fp8(const void *from, const tria_fp8_format *format)
{
    /* widened with its sign, a byte is shifted to where f16 has these bits; copies of the sign are cut off
     */
    const __m128i word = _mm_cvtepi8_epi16(_mm_loadl_epi64(from));
    const __m128i half = _mm_and_si128(_mm_sll_epi16(word, _mm_cvtsi32_si128(format->shift)),
                                       _mm_set1_epi16((int16_t)format->half_mask));
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(word, _mm_set1_epi16((int16_t)format->nan_mask)),
                                        _mm_set1_epi16((int16_t)format->nan_value));
    return _mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
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
    /* Within 128-bit lanes first, then the lanes' halves into order. */
    __m256d low = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    __m256d high = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(low, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(high, 0xd8));
}
/* Every head's two rows at once, in the same order for all. */
OP void reduce_tile(vf acc[][TILE_VECTORS], int n_heads, float *out)
{
    for (int h = 0; h < n_heads; h += 2) {
        vf a = _mm256_hadd_ps(acc[h][0], acc[h][1]);
        vf b = _mm256_hadd_ps(acc[h + 1][0], acc[h + 1][1]);
        vf c = _mm256_hadd_ps(a, b);
        _mm_storeu_ps(out + h * TILE_ROWS,
                      _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
    }
}

#include "cpu/kernels_template.h"
#endif

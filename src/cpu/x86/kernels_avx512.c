/*
 * kernels_avx512.c - vectors of sixteen, for x86 with AVX-512 F, BW, DQ and VL.
 *
 * Products of pairs of bf16 are not used: to stay within the accuracy promised a weight would have to be
 * split into two or three of them, which costs what the pairs save.
 */
#include "cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define LANES 16
#define TILE_ROWS 8
#define TILE_VECTORS 4
#define ROWS_OF(at) ROW(at, v), ROW(at, v + TILE_VECTORS)
#define KERNELS_NAME "avx512"
#define KERNELS_FEATURES (TRIA_CPU_AVX2 | TRIA_CPU_AVX512)
#define OP static inline __attribute__((always_inline)) TARGET

#include "cpu/x86/floats_avx512.h"

OP vf vf_load(const void *from)
{
    return _mm512_loadu_ps(from);
}
OP vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
OP vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
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
OP uint32_t mask_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
OP uint32_t mask_not_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
OP uint32_t mask_of_zeros(const uint8_t *bytes)
{
    return _mm_cmpeq_epi8_mask(_mm_loadu_si128((const void *)bytes), _mm_setzero_si128());
}
#define PACKS_LANES
/* Compressed in a register, then stored under a mask: some processors compress to memory in many steps. */
OP int32_t pack_scores(float *to, vf x, uint32_t mask)
{
    const int32_t n = __builtin_popcount(mask);
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1u), _mm512_maskz_compress_ps((__mmask16)mask, x));
    return n;
}
OP int32_t pack_rows(int32_t *to, int32_t first, uint32_t mask)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i rows = _mm512_add_epi32(_mm512_set1_epi32(first), lanes);
    const int32_t n = __builtin_popcount(mask);
    _mm512_mask_storeu_epi32(to, (__mmask16)((1u << n) - 1u),
                             _mm512_maskz_compress_epi32((__mmask16)mask, rows));
    return n;
}
OP float scalar_f16(const void *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return _cvtsh_ss(half);
}
/* Eight elements of row a in the lower half, of row b in the upper. */
OP vf load_f32(const void *a, const void *b)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
OP __m256i load_u16(const void *a, const void *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b), 1);
}
OP __m128i load_bytes(const void *a, const void *b)
{
    return _mm_unpacklo_epi64(_mm_loadl_epi64(a), _mm_loadl_epi64(b));
}
OP vf load_f16(const void *a, const void *b)
{
    return _mm512_cvtph_ps(load_u16(a, b));
}
OP vf load_bf16(const void *a, const void *b)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_u16(a, b)), 16));
}
OP vf load_i8(const void *a, const void *b)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(a, b)));
}
OP vf load_fp8(const void *a, const void *b, const tria_fp8_format *format)
{
    /* widened with its sign, a byte is shifted to where f16 has these bits; copies of the sign are cut off
     */
    const __m256i word = _mm256_cvtepi8_epi16(load_bytes(a, b));
    const __m256i half = _mm256_and_si256(_mm256_sll_epi16(word, _mm_cvtsi32_si128(format->shift)),
                                          _mm256_set1_epi16((int16_t)format->half_mask));
    const __m256i nan_bits = _mm256_and_si256(word, _mm256_set1_epi16((int16_t)format->nan_mask));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(nan_bits, _mm256_set1_epi16((int16_t)format->nan_value));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00)));
}
OP vf spread_scales(const float *scales, int v)
{
    return _mm512_mask_mov_ps(vf_set1(scales[v]), 0xff00, vf_set1(scales[v + TILE_VECTORS]));
}
OP void vf_deinterleave(vf a, vf b, vf *even, vf *odd)
{
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 14, 12, 10, 8, 22, 20, 18, 16, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(evens, _mm512_set1_epi32(1)), b);
}
/* Sums of four lanes of each of a head's four vectors, in every 128 bits; then the halves' two such parts
 * are added, for two heads at once. */
OP void reduce_tile(vf acc[][TILE_VECTORS], int n_heads, float *out)
{
    UNROLL
    for (int h = 0; h < n_heads; h += 2) {
        vf sums[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const vf *x = acc[h + i];
            vf a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
            vf b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
            sums[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
        }
        vf low = _mm512_shuffle_f32x4(sums[0], sums[1], 0x88);
        vf high = _mm512_shuffle_f32x4(sums[0], sums[1], 0xdd);
        vf_store(out + h * TILE_ROWS, _mm512_add_ps(low, high));
    }
}

#include "cpu/kernels_template.h"

KERNELS_TABLE(tria_cpu_kernels_avx512_vnni, "avx512_vnni", KERNELS_FEATURES | TRIA_CPU_VNNI,
              &tria_byte_kernels_vnni);
#endif

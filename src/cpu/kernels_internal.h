/* kernels_internal.h - what an instruction set implements; filled in by kernels_template.h. */
#ifndef TRIA_CPU_KERNELS_INTERNAL_H
#define TRIA_CPU_KERNELS_INTERNAL_H

#include "cpu/kernels.h"

#include <string.h>

/* Numbers of frequencies and of content dims in a run are multiples of this in all that a span reads. */
#define TRIA_LANES 16
/* Rows a span's caller prepares at a time when it cannot hand over the cache itself. */
#define TRIA_ROW_BLOCK 16

/* Rows of one head that are scored before the next head's turn. Where heads lie side by side their rows
 * share pages of memory, which are then translated once for all of them. */
#define TRIA_HEAD_CHUNK 128
/* Query heads that are scored together. */
#define TRIA_PART_HEADS 4

/* Rows whose moments are formed in float before they join the rest in double. */
#define TRIA_MOMENTS_CHUNK 1024
/* What memory moves at a time. */
#define TRIA_LINE_BYTES 64

/* Rows that one vector of any kernel holds. */
#define TRIA_MAX_REPEAT 2

/* Blocks of a q8_0 row whose scales a tile has room for; longer rows are decoded first. */
#define TRIA_MAX_BLOCKS 32

/* Products of bytes: stored dims whose weights share a step, and the digits of eight bits a weight has.
 * With 23 bits and a sign the largest of a block is as exact as float, smaller ones less so. */
#define TRIA_BYTE_BLOCK 32
#define TRIA_DIGITS 3

/* Element types the loops read directly; everything else comes decoded to f32. */
typedef enum tria_source {
    TRIA_SOURCE_F32,
    TRIA_SOURCE_F16,
    TRIA_SOURCE_BF16,
    TRIA_SOURCE_Q8_0,
    TRIA_SOURCE_INT8,
    TRIA_SOURCE_FP8,
    TRIA_SOURCE_COUNT
} tria_source;

/* An fp8 byte becomes an f16 by a shift, then a factor corrects the exponent's bias. */
typedef struct tria_fp8_format {
    int32_t shift;     /* of the 7 bits below the sign */
    int32_t half_mask; /* the bits of the f16 that come from the byte */
    int32_t nan_mask;  /* the byte is NaN when (byte & nan_mask) == nan_value, */
    int32_t nan_value; /* beyond what the f16 says itself */
    float factor;      /* of the scales */
} tria_fp8_format;

/* At most TRIA_PART_HEADS of the query heads, and their weights in the order in which the loops use them.
 */
typedef struct tria_head_part {
    int32_t first;
    int32_t n_heads;
    bool with_content; /* else what stands outside the rotary slice does not enter */
    /* In units of a vector: [n_freq / dims] of real [n_heads], imaginary [n_heads]; then of each run of
     * content [count / dims] of [n_heads]. Every `dims` of them stand `repeat` times in their vector. */
    const float *linear;
    const float *mag; /* [n_freq / dims] of [n_heads] */
    /* Instead of `linear`, for products of bytes: blocks of TRIA_BYTE_BLOCK stored dims from first_block
     * on. A weight is steps[..][0] * (digit 0 + 256 digit 1 + 65536 digit 2); steps[..][1] is 256
     * steps[..][0]. */
    bool in_bytes;
    int32_t first_block;
    int32_t n_blocks;
    const int32_t *digits; /* [n_blocks][8][n_heads][3], each one digit of 4 dims */
    const int32_t *starts; /* [n_blocks][n_heads][3], what sums of products of digits start from */
    const float *steps;    /* [n_blocks][n_heads][2] */
} tria_head_part;

/* Evenly spaced rows whose elements are packed, and the prepared query side. Rows are read in whole tiles:
 * as many as fill the last one can be read. */
typedef struct tria_score_span {
    const unsigned char *rows;
    int64_t row_stride;
    int32_t row_bytes;
    int32_t n_rows;
    const unsigned char *next; /* the row whose turn comes after the last one */
    /* Memory to fetch meanwhile, a row's length for each of the first n_ahead rows. */
    const unsigned char *ahead;
    int64_t ahead_step;
    int32_t n_ahead;
    const float *scales; /* [n_rows], what scores are multiplied by (int8, fp8) */
    tria_fp8_format fp8;
    int32_t rotary_begin;
    int32_t n_freq;
    int32_t content_begin[2]; /* the runs of dims before and behind the rotary slice */
    int32_t content_count[2];
    const tria_head_part *parts;
    int32_t n_parts;
    const float *const *terms; /* as in tria_score_job */
    float *const *out;
    int32_t first; /* index of the first row in terms and out */
} tria_score_span;

typedef void (*tria_span_kernel)(const tria_score_span *span);

/* Scores without magnitudes of keys that are bytes, from products of whole numbers; of those parts that are
 * in_bytes, which the other kernels pass over. */
typedef struct tria_byte_kernels {
    int32_t rows;     /* of a tile, a multiple of the other kernels' */
    int32_t key_bias; /* what keys have added when they are multiplied */
    tria_span_kernel score_q8_0;
    tria_span_kernel score_int8;
} tria_byte_kernels;

struct tria_cpu_kernels {
    const char *name;
    int32_t features;
    int32_t rows;   /* of a tile */
    int32_t dims;   /* of a row that a vector holds, */
    int32_t repeat; /* and of how many rows */
    /* [source][interleaved][with magnitudes] */
    tria_span_kernel score[TRIA_SOURCE_COUNT][2][2];
    const tria_byte_kernels *bytes; /* NULL: none */
    /* Of the finite ones: their number and sum; then the sums of x - mean and its square. */
    void (*sum)(const float *x, int32_t n, double *count, double *sum);
    void (*deviations)(const float *x, int32_t n, float mean, double *sum, double *squares);
    void (*group)(const float *const *scores, const tria_head_scale *scales, int32_t n_heads,
                  int32_t n_rows, bool mean, float *z);
    /* The candidates' scores in [low, high], and how many candidates lie above. NaN is neither. */
    int32_t (*gather)(const float *scores, const uint8_t *is_protected, int32_t n_rows, float low,
                      float high, float *taken, int32_t *n_above);
    /* Ascending rows: protected ones, candidates above `last`, and the first `room` that equal it. */
    int32_t (*emit)(const float *scores, const uint8_t *is_protected, int32_t n_rows, float last,
                    int32_t room, int32_t *rows);
};

/* Moments of n <= TRIA_MOMENTS_CHUNK scores. */
tria_moments tria_chunk_moments(const tria_cpu_kernels *kernels, const float *x, int32_t n);

/* Unsigned numbers that sort like scores: NaN is 0, then ascending from -infinity; -0 and +0 are one. */
static inline uint32_t tria_key_of(float score)
{
    uint32_t bits;
    const float normal = score + 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &normal, sizeof(bits));
    const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return score != score ? 0 : key;
}
/* The score of a key that is not NaN's. */
static inline float tria_score_of(uint32_t key)
{
    float score;
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    memcpy(&score, &bits, sizeof(score));
    return score;
}

extern const tria_cpu_kernels tria_cpu_kernels_c;
#if defined(__x86_64__)
extern const tria_cpu_kernels tria_cpu_kernels_avx2;
extern const tria_cpu_kernels tria_cpu_kernels_avx512;
extern const tria_cpu_kernels tria_cpu_kernels_avx512_vnni;
extern const tria_byte_kernels tria_byte_kernels_vnni;
#elif defined(__aarch64__)
extern const tria_cpu_kernels tria_cpu_kernels_neon;
extern const tria_cpu_kernels tria_cpu_kernels_neon_dot;
extern const tria_byte_kernels tria_byte_kernels_dot;
#endif

#endif

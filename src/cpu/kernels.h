/*
 * kernels.h - the CPU backend's inner loops: raw scores of the rows of one (layer, KV head) for all of
 * its query heads in one read of K, their moments, normalising and grouping.
 *
 * A table of kernels is chosen once per plan, by the features of the machine, and never changes. Every
 * dtype, layout and K state is taken: what a fast loop cannot read directly is decoded row by row first.
 * The arithmetic of a row is the same wherever it lies and whatever lies beside it.
 */
#ifndef TRIA_CPU_KERNELS_H
#define TRIA_CPU_KERNELS_H

#include "kv_view_internal.h"

typedef struct tria_cpu_kernels tria_cpu_kernels;

/* Instruction sets a table may use, as bits of a mask. */
enum {
    TRIA_CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    TRIA_CPU_AVX512 = 1 << 1, /* F, BW, DQ and VL */
    TRIA_CPU_NEON = 1 << 2,
    TRIA_CPU_VNNI = 1 << 3, /* products of bytes, with AVX512 */
    TRIA_CPU_DOT = 1 << 4,  /* the same, with NEON */
    TRIA_CPU_ALL = -1
};
/* What this machine and its operating system offer. */
int32_t tria_cpu_features(void);
/* The best kernels that need no more than `features`, which the machine must have; 0 is plain C. */
const tria_cpu_kernels *tria_cpu_kernels_for(int32_t features);
const char *tria_cpu_kernels_name(const tria_cpu_kernels *kernels);

/* Of the finite ones among some scores. */
typedef struct tria_moments {
    double mean;
    double m2; /* sum of squared deviations from the mean */
    int64_t count;
} tria_moments;
void tria_moments_combine(tria_moments *into, const tria_moments *other);

/*
 * out[h][i] = max_o lin[h][o] . x + mag[h] . |k| + terms[h][i]   for row first_row + i, i < n_rows
 *
 * `lin` is in the order of the stored dims, for TRIA_K_HADAMARD with the transform folded in.
 */
typedef struct tria_score_job {
    const tria_rows *rows;
    int32_t first_row;
    int32_t n_rows;
    int32_t head_dim;
    int32_t rotary_dim; /* 0: no pairs, `mag` is not read */
    int32_t rotary_offset;
    int32_t rope_style; /* tria_rope_style */
    int32_t k_state;    /* tria_k_state */
    int32_t hadamard_size;
    const float *hadamard_signs;
    const float *rotation_tables; /* [3][2048][rotary_dim / 2][2], TRIA_K_RAW */
    const int32_t *positions;     /* [row], TRIA_K_RAW; NULL: the row's index */
    int32_t n_heads;
    int32_t n_lin;
    const float *const *lin;   /* [n_heads] of [n_lin][rows->tensor->dim] */
    const float *const *mag;   /* [n_heads] of [rotary_dim / 2]; NULL: no magnitudes */
    const float *const *terms; /* [n_heads] of [n_rows], added; NULL: none */
    /* [n_heads] 0: dims outside the rotary slice do not enter, whatever they hold; NULL: they do */
    const uint8_t *has_content;
    float *const *out;     /* [n_heads] of [n_rows] */
    tria_moments *moments; /* [n_heads] of all rows of the job, or NULL */
} tria_score_job;

/* Bytes of scratch (64-byte aligned) for `n_jobs` with at most these numbers each; `dim` as stored. */
size_t tria_score_scratch_size(int32_t dim, int32_t n_heads, int32_t n_lin, int32_t n_jobs);
/* Scores the rows of some heads of one layer, a stretch of rows at a time. Moments are combined from chunks
 * of fixed size in the order of rows: a job's result does not depend on who runs it with which others. */
void tria_score_rows(const tria_cpu_kernels *kernels, const tria_score_job *jobs, int32_t n_jobs,
                     void *scratch);

/* Moments of any scores, in the same fixed chunks; rows with skip[i] != 0 are left out (NULL: none). */
void tria_moments_of(const tria_cpu_kernels *kernels, const float *scores, const uint8_t *skip,
                     int32_t n_rows, tria_moments *moments);

/* z = ((s - mean_high) - mean_low) * inverse; the mean in two floats keeps heads with |mean| >> sd exact.
 */
typedef struct tria_head_scale {
    float mean_high;
    float mean_low;
    float inverse; /* 0: a constant head, every finite row is 0 */
} tria_head_scale;
/* By the specification's rule for constant heads. */
tria_head_scale tria_head_scale_of(const tria_moments *moments);

/* z[i] = max (or mean) over heads of the normalised score; non-finite scores are left out, NaN when none
 * is finite. */
void tria_group_rows(const tria_cpu_kernels *kernels, const float *const *scores,
                     const tria_head_scale *scales, int32_t n_heads, int32_t n_rows, bool mean, float *z);

/*
 * The keep set: every row with is_protected[i] != 0, n_protected in all (NULL: none), and the `n_take` best
 * of the others - higher score first, equal ones by lower index, -0 = +0, NaN lowest. Writes ascending
 * indices, returns their number. O(n_rows); `scratch` holds n_rows words.
 */
int32_t tria_select_top(const tria_cpu_kernels *kernels, const float *scores, const uint8_t *is_protected,
                        int32_t n_protected, int32_t n_rows, int32_t n_take, int32_t *rows,
                        uint32_t *scratch);

#endif

/*
 * score_prepare.h - a job's query side in the order in which the loops use it, and what they cannot read of
 * its rows.
 */
#ifndef TRIA_CPU_SCORE_PREPARE_H
#define TRIA_CPU_SCORE_PREPARE_H

#include "cpu/kernels.h"
#include "cpu/kernels_internal.h"

/* What of a job the loops cannot take as it is, worked out once. */
typedef struct tria_prepared {
    const tria_score_job *job;
    tria_score_span span; /* all but the rows */
    tria_source source;
    bool direct; /* the loops read elements as they are; otherwise decoded ones */
    /* For direct rows: loops without and with magnitudes, loops for parts in bytes (NULL: there are none),
     * whether there are no other parts, and the rows of a tile of any of them. */
    const tria_span_kernel *score;
    tria_span_kernel score_bytes;
    bool all_in_bytes;
    int32_t tile_rows;
    tria_chunks chunks;
    bool with_mag;
    int32_t decode_dim; /* leading dims a decoded row has */
    float *row;         /* one decoded row, stored order */
    float *block; /* TRIA_ROW_BLOCK decoded rows: real, imaginary, content; or a tile of copied ones */
    int64_t block_stride;
    float *best; /* [n_heads][TRIA_ROW_BLOCK], offsets other than the first */
    float **best_heads;
    int32_t n_band; /* jobs whose rows lie side by side in memory, and this one's place among them */
    int32_t band_index;
} tria_prepared;

/* Bytes of scratch that one job takes, and n_jobs of these structs. */
size_t tria_prepared_scratch(int32_t dim, int32_t n_heads, int32_t n_lin);
size_t tria_prepared_bytes(int32_t n_jobs);

/* Returns the bytes of scratch it took. */
size_t tria_prepare(const tria_cpu_kernels *kernels, const tria_score_job *job, void *scratch,
                    tria_prepared *p);

/* A row of the cache in the order the loops use: real parts, imaginary parts, content. */
void tria_prepared_decode(const tria_prepared *p, int32_t row, float *planes);

static inline int32_t tria_round_lanes(int32_t n)
{
    return (n + TRIA_LANES - 1) / TRIA_LANES * TRIA_LANES;
}

#endif

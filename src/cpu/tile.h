/* tile.h - what loops over tiles of rows do besides multiplying. */
#ifndef TRIA_CPU_TILE_H
#define TRIA_CPU_TILE_H

#include "cpu/kernels_internal.h"

/* Loops of constant length over registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define TILE_INLINE static inline __attribute__((always_inline))

/* Rows between the one worked on and the one that is looked after a second time. */
#define TRIA_NEAR_ROWS 16

/* What is yet to be fetched while a tile is worked on. */
typedef struct tria_fetches {
    const unsigned char *ahead; /* goes on from tile to tile */
    const unsigned char *near;
    int32_t n_rows; /* of this tile */
} tria_fetches;

/* What to fetch during a tile. */
TILE_INLINE void tria_open_fetches(const tria_score_span *span, int32_t first_row, int32_t tile_rows,
                                   tria_fetches *fetches)
{
    const int32_t soon = first_row + TRIA_NEAR_ROWS;
    fetches->near = soon < span->n_rows ? span->rows + soon * span->row_stride
                                        : span->next + (soon - span->n_rows) * span->row_stride;
    fetches->n_rows = first_row < span->n_ahead ? tile_rows : 0;
}

/* Sends for a row's length of what lies far ahead, and looks again after a row that is needed soon, as
 * processors drop requests when their queues are full. Both go to the second cache. Called again and again
 * between the products, to spare those queues. */
TILE_INLINE void tria_fetch(const tria_score_span *span, tria_fetches *fetches)
{
    if (fetches->n_rows > 0) {
        int32_t b = 0;
        do { /* by two lines, to spare branches */
            __builtin_prefetch(fetches->ahead + b, 0, 2);
            __builtin_prefetch(fetches->ahead + b + 64, 0, 2);
            __builtin_prefetch(fetches->near + b, 0, 2);
            __builtin_prefetch(fetches->near + b + 64, 0, 2);
            b += 128;
        } while (b < span->row_bytes);
        fetches->ahead += span->ahead_step;
        fetches->near += span->row_stride;
        fetches->n_rows--;
    }
}

/* Writes n_rows scores of every head, from out[head][tile_rows], scaled and with the terms added. Sends for
 * the scores and terms of the rows a chunk later, a line at a time, as their turn comes after those of
 * other KV heads: runs too short for processors to see them coming. */
TILE_INLINE void tria_store_rows(const tria_score_span *span, const tria_head_part *part, int32_t first_row,
                                 int32_t n_rows, int32_t tile_rows, bool scaled, float *out)
{
    const int64_t index = (int64_t)span->first + first_row;
    const bool is_new_line = index % (TRIA_LINE_BYTES / (int32_t)sizeof(float)) < tile_rows;
    for (int h = 0; h < part->n_heads; h++) {
        const int32_t head = part->first + h;
        float *scores = out + h * tile_rows, *to = span->out[head] + index;
        if (is_new_line) {
            __builtin_prefetch(to + TRIA_HEAD_CHUNK, 1, 2);
        }
        for (int r = 0; scaled && r < n_rows; r++) {
            scores[r] *= span->scales[first_row + r];
        }
        if (span->terms != NULL) {
            float terms[TRIA_ROW_BLOCK];
            const float *from = span->terms[head] + index;
            if (is_new_line) {
                __builtin_prefetch(from + TRIA_HEAD_CHUNK, 0, 2);
            }
            memcpy(terms, from, (size_t)n_rows * sizeof(float));
            for (int r = 0; r < n_rows; r++) {
                scores[r] += terms[r];
            }
        }
        memcpy(to, scores, (size_t)n_rows * sizeof(float));
    }
}

/* The same of what there is of a tile; whole ones take no loops. */
TILE_INLINE void tria_store_tile(const tria_score_span *span, const tria_head_part *part, int32_t first_row,
                                 int32_t tile_rows, bool scaled, float *out)
{
    const int32_t left = span->n_rows - first_row;
    if (left >= tile_rows) {
        tria_store_rows(span, part, first_row, tile_rows, tile_rows, scaled, out);
    } else {
        tria_store_rows(span, part, first_row, left, tile_rows, scaled, out);
    }
}

#endif

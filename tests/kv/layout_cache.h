/* layout_cache.h - the same logical keys and values laid out in memory as each engine does, by the index
 * formulas of the layouts' names rather than by strides. */
#ifndef TRIA_TESTS_LAYOUT_CACHE_H
#define TRIA_TESTS_LAYOUT_CACHE_H

#include "tria/tria.h"

enum {
    LC_LAYERS = 2,
    LC_HEADS = 3,
    LC_Q_HEADS = 6,
    LC_DIM = 64,
    LC_ROWS = 29,
    LC_PAGE_TOKENS = 4,
    LC_PAGES = 8,  /* of the sequence */
    LC_POOL = 11,  /* of the engine */
    LC_TOKENS = 37 /* allocated per sequence where there are no pages */
};

/* Bytes of row `row` of K or V; valid numbers in every dtype. */
typedef struct logical_rows {
    int32_t dtype;
    int32_t row_bytes;
    unsigned char *bytes; /* [2][layer][head][row][row_bytes] */
    float scales[2][LC_LAYERS][LC_HEADS][LC_ROWS];
} logical_rows;

void logical_init(logical_rows *rows, int32_t dtype);
void logical_free(logical_rows *rows);
unsigned char *logical_row(const logical_rows *rows, int32_t is_v, int32_t layer, int32_t head,
                           int32_t row);

typedef struct layout_cache {
    int32_t layout; /* -1: plain [head][row][dim], described by hand */
    int32_t dtype;
    unsigned char *k[LC_LAYERS]; /* exactly as large as the engine's buffer */
    unsigned char *v[LC_LAYERS];
    float *scales[LC_LAYERS]; /* int8: [2][page or sequence][token][head] */
    tria_layer_view layers[LC_LAYERS];
    tria_kv_view view;
} layout_cache;

/* Whether the layout keeps quantised blocks whole. */
int32_t layout_takes_blocks(int32_t layout);
void layout_cache_init(layout_cache *cache, int32_t layout, const logical_rows *rows);
void layout_cache_free(layout_cache *cache);
/* Copies a row out again. */
void layout_cache_read(const layout_cache *cache, int32_t is_v, int32_t layer, int32_t head, int32_t row,
                       unsigned char *bytes, float *scale);

/* A model and calibration for these rows. */
void layout_model(tria_model **model, tria_calibration **calibration);

#endif

/* small.h - a small synthetic model, calibration and cache with a plan on top, for tests that change one
 * thing at a time. */
#ifndef TRIA_TESTS_SMALL_H
#define TRIA_TESTS_SMALL_H

#include "tria/tria.h"

#include <stdbool.h>

enum { SMALL_MAX_LAYERS = 4, SMALL_MAX_ROWS = 512 };

typedef struct small {
    int32_t n_layers;
    int32_t n_q_heads;
    int32_t n_kv_heads;
    int32_t dim;
    int32_t n_rows;
    uint64_t seed;
    tria_model *model;
    tria_calibration *calibration;
    float *keys; /* [layer][head][SMALL_MAX_ROWS][dim] */
    tria_layer_view layers[SMALL_MAX_LAYERS];
    tria_kv_view view;
    tria_plan_params params;
    tria_plan *plan;
    tria_event event;
    tria_keep keep;
    int32_t *rows; /* [sets][SMALL_MAX_ROWS] */
    int32_t *counts;
    tria_error error;
} small;

/* 2 layers, 4 query heads, 2 KV heads, head_dim 16, 100 rows at positions 0 ... 99, t = 100. Everything
 * is calibrated, keys are random; the plan is not created yet. */
void small_init(small *s);
/* Creates the plan from s->params; the status is the call's. */
tria_status small_plan(small *s);
tria_status small_select(small *s);
void small_free(small *s);

float small_random(small *s); /* in [-1, 1) */
float *small_key(small *s, int32_t layer, int32_t head, int32_t row);
bool small_keeps(const small *s, int32_t set, int32_t row);

#endif

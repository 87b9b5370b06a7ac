/* accumulator_internal.h - sums per layer and head. */
#ifndef TRIA_ACCUMULATOR_INTERNAL_H
#define TRIA_ACCUMULATOR_INTERNAL_H

#include "internal.h"
#include "tria/accumulator.h"

#define TRIA_DISTINCT_WORDS 1024 /* 65,536 marks */

/* One layer, once it has been fed. Per head n_sums sums, then their n_sums rests (what rounding lost): re,
 * im, magnitude [F] each, then content and its size [n_content] each. */
typedef struct tria_sums_layer {
    int32_t n_freq;
    int32_t n_content;
    size_t n_sums;
    double *sums;       /* [n_q_heads][2][n_sums] */
    uint64_t *counts;   /* [n_q_heads] tokens; NULL until the layer is fed */
    uint64_t *distinct; /* marks of head 0's queries, see mark_distinct() */
} tria_sums_layer;

struct tria_accumulator {
    tria_env env;
    tria_accumulator_params params; /* model is NULL */
    tria_model *model;
    tria_sums_layer *layers;
};

tria_status tria_accumulator_open_layer(tria_accumulator *accumulator, int32_t layer, tria_error *error);
/* What tria_accumulator_resume() does with the file's bytes. */
tria_status tria_accumulator_resume_bytes(tria_accumulator *accumulator, const unsigned char *data,
                                          size_t size, tria_error *error);
/* sums += values with the rounding error collected in rest (Knuth's two-sum). */
void tria_sums_add(double *sums, double *rest, const double *values, size_t count);

#endif

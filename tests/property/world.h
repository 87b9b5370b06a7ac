/* world.h - a random model, calibration, cache, event and settings, all from one seed. */
#ifndef TRIA_TESTS_WORLD_H
#define TRIA_TESTS_WORLD_H

#include "tria/tria.h"

#include <stdbool.h>
#include <stdio.h>

enum { WORLD_LAYERS = 4, WORLD_HEADS = 4, WORLD_SLOTS = WORLD_LAYERS * WORLD_HEADS, WORLD_ROWS = 96 };

typedef struct world {
    uint64_t seed; /* repeats it */
    uint64_t state;
    /* model */
    int32_t n_layers;
    tria_layer_params geometry[WORLD_LAYERS];
    double frequencies[WORLD_LAYERS][2][288];
    tria_model *model;
    tria_calibration *calibration;
    bool calibrated[WORLD_LAYERS][WORLD_HEADS * 16];
    bool all_calibrated; /* every query head is */
    /* cache */
    int32_t dtype;
    int32_t k_state;
    int32_t n_rows; /* the longest slot */
    bool same_rows; /* in all slots, at the same positions */
    unsigned char *keys[WORLD_LAYERS];
    size_t key_bytes[WORLD_LAYERS];
    float *scales[WORLD_LAYERS];
    float signs[1024];
    tria_layer_view layers[WORLD_LAYERS];
    int32_t page_table[WORLD_ROWS];
    tria_kv_view view;
    int32_t positions[WORLD_LAYERS][WORLD_HEADS][WORLD_ROWS];
    int32_t rows[WORLD_SLOTS];
    /* settings and event */
    float weights[WORLD_LAYERS];
    tria_plan_params params;
    tria_range prompts[2];
    int32_t pins[4];
    tria_event event;
} world;

uint32_t world_u32(world *w);
int32_t world_below(world *w, int32_t n);
float world_float(world *w); /* in [-1, 1) */

void world_init(world *w, uint64_t seed);
void world_free(world *w);
void world_print(const world *w, FILE *file);

/* Moves row from[i] to row i in all slots: keys, scales and positions; pins are renamed. */
void world_permute(world *w, const int32_t *from);

#endif

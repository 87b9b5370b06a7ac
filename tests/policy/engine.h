/*
 * engine.h - a toy engine: a cache whose keys and values follow from (layer, head, position), so that
 * after any number of compactions it can be checked whether each row is where its position says.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "tria/sequence.h"

enum { ENGINE_MAX_LAYERS = 3, ENGINE_MAX_PAGES = 256 };

typedef struct engine_shape {
    int32_t n_layers;
    int32_t n_q_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t dtype; /* F32 or F16 (of values: only their bytes matter) */
} engine_shape;

typedef struct engine {
    engine_shape shape;
    int32_t capacity; /* rows, in whole pages */
    int32_t tokens_per_page;
    int32_t pool_pages; /* physically there; more than the capacity when pages are shared */
    unsigned char *k[ENGINE_MAX_LAYERS];
    unsigned char *v[ENGINE_MAX_LAYERS];
    tria_layer_view layers[ENGINE_MAX_LAYERS];
    tria_kv_view view;
    int32_t page_table[ENGINE_MAX_PAGES];
    tria_model *model;
    tria_calibration *calibration;
    tria_plan *plan;
    tria_sequence *sequence;
} engine;

/* Model and calibration of the shape, a cache as the policy wants it, a plan and a sequence with the
 * same settings. `policy` needs no geometry. `plan` (may be NULL) is changed where it must be. */
void engine_open(engine *e, const engine_shape *shape, const tria_policy_params *policy,
                 const tria_plan_params *plan, const tria_env *env);
void engine_close(engine *e);

/* Writes n tokens behind the last row of every layer and head of `sequence`, and says so. */
void engine_write(engine *e, int32_t n);
/* Same for a cache that is filled without its own sequence: rows [rows, rows + n) at `position`. */
void engine_write_rows(engine *e, int32_t row, int32_t position, int32_t n);
/* Every row of the cache is the key and value of its position. */
void engine_check(engine *e);
/* Compacts when the sequence says so; returns whether it did. */
int engine_maybe_compact(engine *e);
/* One token after the other, n of them. */
void engine_decode(engine *e, int32_t n);

unsigned char *engine_row(engine *e, int32_t is_v, int32_t layer, int32_t head, int32_t row);
void engine_expected_row(const engine *e, int32_t is_v, int32_t layer, int32_t head, int32_t position,
                         unsigned char *bytes);
tria_sequence_info engine_info(const engine *e);

#endif

/* fixture.h - a resolved plan, event and keep sets made by hand, to call the CPU's compaction alone. */
#ifndef TRIA_TEST_COMPACT_FIXTURE_H
#define TRIA_TEST_COMPACT_FIXTURE_H

#include "compact_internal.h"
#include "kv_view_internal.h"

enum { FIXTURE_LAYERS = 8, FIXTURE_SLOTS = 64 };

typedef struct fixture {
    tria_plan_params params;
    tria_v1_layer layers[FIXTURE_LAYERS];
    tria_v1_kv kv[FIXTURE_SLOTS];
    tria_v1_plan plan;
    tria_layer_view layer_views[FIXTURE_LAYERS];
    tria_kv_view view;
    tria_event event;
    tria_keep keep;
    tria_compaction compaction;
    tria_v1_event v1;
    int32_t rows[FIXTURE_SLOTS];
    int32_t counts[FIXTURE_SLOTS];
    int32_t *keep_rows; /* [n_sets][n_rows] */
} fixture;

/* All slots hold n_rows; the mode says which set a slot obeys. Views, positions, counts and keep rows are
 * the test's to fill. */
void fixture_init(fixture *f, int32_t n_layers, int32_t n_heads, int32_t mode, int32_t n_rows);
void fixture_free(fixture *f);
int32_t *fixture_set(fixture *f, int32_t set);
/* Every set keeps row i where the bits of random numbers say so; at least one row and not all, where that
 * is possible. */
void fixture_random_sets(fixture *f, uint64_t *seed, int32_t percent);
/* Checks the views as the plan does, then compacts, slots in the order of `seed`. */
tria_status fixture_compact(fixture *f, tria_error *error);

uint32_t random_u32(uint64_t *seed);
int32_t random_below(uint64_t *seed, int32_t n);

#endif

/* ranks.h - the same event on several plans that each own a part of the model, in threads that reduce
 * through a barrier as MPI ranks would. */
#ifndef TRIA_TESTS_RANKS_H
#define TRIA_TESTS_RANKS_H

#include "property/world.h"

/* A rank per KV head. Puts the keep sets together in the order of the whole plan. */
bool ranks_split_heads(const world *w, int32_t rows[WORLD_SLOTS][WORLD_ROWS], int32_t counts[WORLD_SLOTS]);
/* Two ranks, each with half of the layers; false when a half has nothing to do. */
bool ranks_split_layers(const world *w, int32_t rows[WORLD_SLOTS][WORLD_ROWS], int32_t counts[WORLD_SLOTS]);

#endif

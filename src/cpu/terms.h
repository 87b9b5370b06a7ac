/* terms.h - norm and content terms kept between events; see tria_terms_create() in tria/plan.h. */
#ifndef TRIA_CPU_TERMS_H
#define TRIA_CPU_TERMS_H

#include "compact_internal.h"
#include "tria/plan.h"

/* MISMATCH when `terms` (NULL is fine) were made for a plan of another shape. */
tria_status tria_terms_check(const tria_terms *terms, const tria_v1_plan *plan, tria_error *error);
/* The terms [max_rows] of entry `group` of plan->group. */
float *tria_terms_of(tria_terms *terms, int32_t group);
/* How many leading rows of a KV slot have their terms. */
int32_t tria_terms_known(const tria_terms *terms, int32_t kv_slot);
void tria_terms_set_known(tria_terms *terms, int32_t kv_slot, int32_t n_rows);
/* Moves them as a compaction moves the rows. */
void tria_terms_move(tria_terms *terms, int32_t kv_slot, const tria_gather *gather);

#endif

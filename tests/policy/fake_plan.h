/*
 * fake_plan.h - selection without keys: every (set, position) has a score that is a hash, the rules of the
 * specification's section 4 do the rest. Lets policy tests run without a model.
 */
#ifndef FAKE_PLAN_H
#define FAKE_PLAN_H

#include "tria/sequence.h"

/* What a plan would be given. */
typedef struct fake_plan {
    uint32_t seed;
    int32_t n_sets;
    int32_t set_layer[64]; /* a (layer, KV head) of each set */
    int32_t set_head[64];
    const int32_t *set_rows; /* [n_sets] when the event's rows differ; else its n_rows */
    int32_t n_sink;
    int32_t n_recent;
    int32_t protect_prefill;
    int32_t count_prompt;
} fake_plan;

uint32_t fake_score(uint32_t seed, int32_t set, int32_t position);
/* Fills the keep sets of `keep` (rows, counts, row_stride given) and over_budget. */
void fake_select(const fake_plan *plan, const tria_event *event, tria_keep *keep);

#endif

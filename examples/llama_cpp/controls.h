/*
 * controls.h - keep sets that need no scores, to compare with: a random choice and the most recent rows.
 * They protect the same rows as the library's selection and keep as many.
 */
#ifndef EXAMPLE_CONTROLS_H
#define EXAMPLE_CONTROLS_H

#include <tria/sequence.h>

#include <stdint.h>

typedef struct control_rules {
    int32_t budget;
    int32_t n_sink;
    int32_t n_recent;
    int32_t protect_prefill;
} control_rules;

/* Fill keep->rows and keep->counts[0]; the event has one set. `state` is advanced. */
void control_random(const tria_event *event, const control_rules *rules, uint64_t *state, tria_keep *keep);
void control_recent(const tria_event *event, const control_rules *rules, tria_keep *keep);

/* A small generator whose numbers are the same everywhere (splitmix64). */
uint64_t random_next(uint64_t *state);
/* Uniform in [0, n). */
int32_t random_below(uint64_t *state, int32_t n);

#endif

/* host_internal.h - the host, for its own files and the tests. */
#ifndef EXAMPLE_HOST_INTERNAL_H
#define EXAMPLE_HOST_INTERNAL_H

#include "host.h"

struct host {
    engine *engine;
    observer *observer;
    host_params params;
    tria_layer_view *layers; /* the engine's K tensors */
    tria_plan *plan;
    tria_sequence *sequence;   /* NULL without eviction */
    tria_accumulator *queries; /* the conversation's own, NULL when they do not count */
    int32_t *cells;            /* [engine->cells] cell of row i */
    int32_t *identity;         /* [engine->cells] positions while nothing is evicted */
    int32_t rows;
    int32_t in_flight;  /* drafted tokens that wait for host_confirm() */
    int32_t shared_end; /* rows at positions below may lie in cells of another sequence too */
    bool shift_pending; /* positions moved, but the keys are not rotated again before the next decode */
    uint64_t random_state;
    host_stats stats;
};

/* Decodes n <= engine->batch tokens; they become rows. */
tria_status host_decode_some(struct host *h, const llama_token *tokens, int32_t n, bool in_prompt,
                             tria_error *error);

/* The engine's keys, row i in cell cells[i]. */
tria_kv_view host_view(const struct host *h, int32_t rows);
/* Sequence, layers and plan, as the params say. */
tria_status host_create_policy(struct host *h, tria_error *error);

/* With own_weight: start to gather a conversation's queries, and make the plan anew with what they have
 * been so far. */
tria_status host_begin_queries(struct host *h, tria_error *error);
tria_status host_blend_queries(struct host *h, tria_error *error);
void host_end_queries(struct host *h);

#endif

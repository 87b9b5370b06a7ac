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
    tria_sequence *sequence; /* NULL without eviction */
    int32_t *cells;          /* [engine->cells] cell of row i */
    int32_t *identity;       /* [engine->cells] positions while nothing is evicted */
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

#endif

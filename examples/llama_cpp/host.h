/*
 * host.h - the integration: libtria evicts from llama.cpp's own KV cache, in place.
 *
 * llama.cpp keeps one pool of cells; a cell holds one token for all layers and heads, wherever there was
 * room. So row i of libtria's view lies in cell cells[i]: a page table with one token per page over the
 * engine's own K tensors. Nothing is copied. When the policy says so, libtria scores the rows and chooses
 * which to keep; the cells of the others are freed with llama_memory_seq_rm() and later tokens reuse them.
 * No kept key moves, and positions stay what they were: the next token is still decoded at t.
 *
 * One host per sequence of the engine, one sequence per decode call. Whatever fails, also because the
 * engine's abort callback said so (CANCELLED), leaves engine and host as they were before the last
 * engine_decode(): the sequence goes on from there, or is cut back.
 *
 *     observer_init(), engine_open() with its callback, geometry_probe()
 *     host_create()
 *     host_prompt(...)                              a prompt
 *     host_decode(...), host_decode(...), ...       one token each; evicts when it is time
 */
#ifndef EXAMPLE_HOST_H
#define EXAMPLE_HOST_H

#include "capture.h"
#include "engine.h"
#include "observer.h"

#include <tria/tria.h>

/* Who chooses what to keep. RANDOM and RECENT are controls: same schedule, same protected rows, same
 * budget, another choice. */
typedef enum host_policy {
    HOST_POLICY_NONE = 0, /* nothing is ever evicted; libtria is not called */
    HOST_POLICY_TRIA = 1,
    HOST_POLICY_RANDOM = 2,
    HOST_POLICY_RECENT = 3
} host_policy;

const char *host_policy_name(int32_t policy);
int32_t host_policy_from_name(const char *name); /* -1: there is none */

/* What one eviction did. */
typedef struct host_eviction {
    int32_t number;
    int64_t t;
    int32_t rows_before;
    int32_t rows_after;
    double seconds;
} host_eviction;

typedef struct host_params {
    int32_t policy; /* host_policy */
    const tria_model *model;
    const tria_calibration *calibration; /* HOST_POLICY_TRIA */
    int32_t budget;                      /* rows kept */
    int32_t interval;
    int32_t n_recent;
    int32_t n_sink;
    int32_t mode; /* TRIA_MODE_UNION or TRIA_MODE_GLOBAL: a cell is shared by all layers and heads */
    int32_t protect_prefill;
    int32_t pool_radius; /* neighbour pooling of the final scores, 0 = none */
    /* Prompts are filled in by blocks of `interval` tokens, and before a block that would make more than
     * budget + interval rows the cache is compacted to the budget, however long the prompt is. */
    bool bound_prefill;
    /* 0 ... 1: how much the queries of this conversation, as far as it has come, count in the statistics;
     * the rest is the calibration's. Above 0 the engine's callback is that of `capture`. */
    double own_weight;
    capture *capture;
    int32_t n_threads;
    tria_device *device;      /* where rows are scored and chosen; NULL = the CPU */
    bool stage;               /* the keys, which are host memory, may be copied there */
    llama_seq_id sequence_id; /* the engine's, one host each; default 0 */
    int32_t in_flight;        /* most tokens of one host_draft() */
    tria_trace *trace;        /* NULL, or where HOST_POLICY_TRIA records its evictions */
    uint64_t seed;            /* HOST_POLICY_RANDOM */
    const tria_env *env;      /* libtria's log lines */
    void (*on_eviction)(void *context, const host_eviction *eviction); /* or NULL */
    void *eviction_context;
} host_params;

typedef struct host host;

tria_status host_create(engine *e, observer *o, const host_params *params, host **out, tria_error *error);
void host_destroy(host *h); /* NULL is allowed */

/* Decodes a prompt of any length that fits the cells (any at all with bound_prefill); what it leaves too
 * much is evicted at its end. */
tria_status host_prompt(host *h, const llama_token *tokens, int32_t n, tria_error *error);
/* The same, but leaves the eviction to host_evict_if_due(). */
tria_status host_prompt_only(host *h, const llama_token *tokens, int32_t n, tria_error *error);
/* Decodes one token, then evicts if it is time. */
tria_status host_decode(host *h, llama_token token, tria_error *error);
tria_status host_evict_if_due(host *h, tria_error *error);

/* Tokens that are not settled yet, such as a draft: decoded, never evicted, and then the first `n_accepted`
 * of them confirmed and the rest taken back. Nothing else may be decoded in between. */
tria_status host_draft(host *h, const llama_token *tokens, int32_t n, tria_error *error);
tria_status host_confirm(host *h, int32_t n_accepted, tria_error *error);

/*
 * Cuts. llama.cpp continues a sequence only right behind its last row: cutting where the row before was
 * evicted is a STATE error. host_rollback() takes back the last n tokens and refuses (STATE) when one of
 * them was evicted already; host_trim() does not mind, t becomes `position`.
 */
tria_status host_rollback(host *h, int32_t n, tria_error *error);
tria_status host_trim(host *h, int32_t position, tria_error *error);
/* Context shift: the rows at positions in [begin, end) go, later ones move down to close the gap, and
 * llama.cpp rotates their keys again with its next decode. Errors: ARGUMENT; UNSUPPORTED when a row that
 * would move lies in a cell shared with another sequence, because a cell has one position. */
tria_status host_shift(host *h, int32_t begin, int32_t end, tria_error *error);
/* Another sequence with the same past, in the same cells. A cell is free again when neither has kept its
 * row. Errors: UNSUPPORTED without engine_params.shared_cells, STATE when sequence_id is in use. */
tria_status host_fork(host *h, llama_seq_id sequence_id, host **copy, tria_error *error);

/* Empties the sequence's cache and starts again; the totals of host_stats() go on. */
tria_status host_reset(host *h, uint64_t seed, tria_error *error);

/* Positions now in the cache, ascending. */
const int32_t *host_positions(host *h, int32_t *n);

/*
 * A copy of the engine's cache, to run several policies from the same prompt. host_restore() may be called
 * on any host of an engine with one sequence; it checks that llama.cpp put every row back into the cell it
 * came from.
 */
typedef struct host_snapshot host_snapshot;
tria_status host_save(host *h, host_snapshot **snapshot, tria_error *error);
tria_status host_restore(host *h, const host_snapshot *snapshot, uint64_t seed, tria_error *error);
void host_snapshot_destroy(host_snapshot *snapshot); /* NULL is allowed */

typedef struct host_stats {
    int32_t rows; /* now */
    int64_t t;
    int32_t peak_rows;
    int32_t n_evictions;
    int64_t evicted_rows;
    double tria_seconds;   /* in libtria, freeing the cells included */
    double decode_seconds; /* in llama_decode() of single tokens */
    double total_seconds;  /* all of host_decode() and host_prompt() */
    int64_t decoded;       /* single tokens */
} host_stats;
void host_get_stats(const host *h, host_stats *stats);

#endif

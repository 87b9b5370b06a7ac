/*
 * sequence_internal.h - the policy's state. The numbers that matter are few and plain; everything
 * else (rows of a head, the trigger, what may be rolled back) follows from them.
 */
#ifndef TRIA_SEQUENCE_INTERNAL_H
#define TRIA_SEQUENCE_INTERNAL_H

#include "guard.h"
#include "internal.h"
#include "tria/sequence.h"

/* Settings, resolved and checked: capacity in rows, budget in rows. */
typedef struct tria_policy {
    int32_t capacity;        /* in whole pages */
    int32_t tokens_per_page; /* 0: no pages */
    int32_t budget;
    int32_t largest_budget; /* >= budget */
    int32_t interval;
    int32_t n_recent;
    int32_t n_sink;
    int32_t in_flight;
    int32_t protect_prefill;
    int32_t count_prompt;
    int32_t prefill_compaction; /* allowed and possible: prompts are not protected */
    int32_t mode;
    int32_t order;
    int32_t in_place;
    int32_t row_bucket;
    int32_t n_ramp;
    double ramp[TRIA_MAX_RAMP];
} tria_policy;

/*
 * Position tables form a grid: the table of (layer, head) is layer*layer_step + head*head_step, where a
 * step is 0 when layers or heads share one. Of the grid only the tables of keep sets are in use.
 */
typedef struct tria_tables {
    int32_t n_layers;
    int32_t n_heads; /* the largest over layers */
    int32_t layer_step;
    int32_t head_step;
    int32_t n_tables;
    int32_t n_sets;
    int32_t n_slots;     /* KV slots: (layer, head) with a cache */
    int32_t *set_table;  /* [n_sets] */
    int32_t *slot_table; /* [n_slots], -1: not governed by a set */
    int32_t *kv_heads;   /* [n_layers] */
} tria_tables;

enum { TRIA_NO_POSITION = INT32_MAX };

/* What changes. Positions of rows appended since `tail_begin` are implied: they are consecutive, in
 * every table, and written down (settled) only when somebody looks. */
typedef struct tria_sequence_state {
    int64_t t;
    int32_t enabled;
    int32_t tail_begin; /* position of the first row that is not settled */
    int32_t settled;    /* the largest of the tables' settled rows */
    int32_t rows_left;  /* by the last compaction */
    int32_t n_compactions;
    int32_t ramp_step;
    int32_t in_prefill;
    int32_t prefill_begin;
    int32_t prefill_length;  /* as announced */
    int32_t in_flight_begin; /* first position in flight, TRIA_NO_POSITION: none */
    int32_t fixed_end;       /* rows at positions below were evicted or moved: no rollback into them */
    int32_t first_evicted;   /* lowest position missing or moved in some table, TRIA_NO_POSITION: none */
    int32_t prompt_rows;     /* protected ones */
    int32_t n_prompts;
    int32_t peak_rows;
    int32_t last_over_budget;
    uint64_t epoch;
    int64_t evicted;
    int64_t bytes_moved;
    int64_t n_nan;
    int64_t pages_freed;
    double seconds;
    double last_seconds;
} tria_sequence_state;

struct tria_sequence {
    tria_guard guard; /* first: read even after the handle was destroyed */
    tria_env env;
    tria_policy policy;
    tria_tables tables;
    tria_sequence_state state;
    int32_t *counts;     /* [n_tables] settled rows */
    int32_t *positions;  /* [n_tables][capacity] */
    int32_t *lent;       /* likewise, handed out in events */
    int32_t *slot_rows;  /* [n_slots] of an event */
    int32_t *keep_rows;  /* [n_sets][capacity] lent */
    int32_t *keep_count; /* [n_sets] lent */
    tria_range *prompts; /* [capacity + 1] protected ranges, ascending, not touching */
    uint8_t *shared;     /* [n_pages] NULL without pages */
    int32_t n_pages;
    int32_t event_open;
    double event_time;
    tria_trace *trace;
};

/* sequence_params.c */
tria_status tria_policy_resolve(tria_policy *policy, const tria_policy_params *params, tria_error *error);
/* Checks a policy that is already in rows: everything that can never work. */
tria_status tria_policy_check(const tria_policy *policy, tria_error *error);
/* A plan must follow the same rules as the policy: one of the two would be ignored. */
tria_status tria_policy_check_plan(const tria_policy *policy, const tria_plan_params *plan,
                                   tria_error *error);
tria_status tria_tables_resolve(tria_tables *tables, const tria_policy *policy,
                                const tria_policy_params *params, const tria_env *env, tria_error *error);
void tria_tables_release(tria_tables *tables, const tria_env *env);

/* sequence_create.c */
/* A fresh sequence; takes over the arrays of `tables` in any case. NULL: no memory, said in *error. */
tria_sequence *tria_sequence_alloc(const tria_policy *policy, tria_tables *tables, const tria_env *env,
                                   tria_error *error);

/* sequence.c */
int32_t tria_sequence_rows(const tria_sequence *sequence);
int32_t tria_sequence_effective_budget(const tria_sequence *sequence);
/* Writes down the positions of the tail; returns the state's t as an int32_t. */
int32_t tria_sequence_settle(tria_sequence *sequence);
/* After rows went: forgets sharing of pages beyond the last one in use. */
void tria_sequence_drop_pages(tria_sequence *sequence);
/* Whether eviction may happen now; the reason in error. */
tria_status tria_sequence_may_compact(const tria_sequence *sequence, tria_error *error);
bool tria_sequence_is_protected(const tria_sequence *sequence, int32_t position);

#endif

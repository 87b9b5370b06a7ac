/*
 * tria/plan.h - score every cached key, rank the rows, keep the best, repack the cache.
 *
 * A plan holds what is fixed for a model in an engine: geometry, query statistics, settings and a
 * workspace; everything is checked and allocated when it is created. Running it on one or many
 * sequences allocates nothing, takes no lock and copies no key. A plan is used by one thread at a
 * time; make one per thread that runs events.
 *
 *     score    raw score per (layer, query head, row)                    specification, section 2
 *     rank     normalise, max over the group, aggregate by mode          specification, section 3
 *     select   protected rows + best candidates                          specification, section 4
 *     compact  gather kept rows to the front, K, V, positions, terms     specification, section 5
 *
 * A backend gives the same sets on every run, thread count and batching. Sets of two backends differ at
 * most in rows whose final score, in units of z, lies within 1e-5 of the cut; 1e-4 for q8_0 and int8 keys
 * with kept terms on a CPU that multiplies bytes (AVX-512 VNNI, Arm's dot product).
 *
 * "Slots" number things densely over the plan's layers in order: query slot = (layer, query head),
 * KV slot = (layer, KV head), set = one keep set. tria_plan_query_slot() etc. give them.
 */
#ifndef TRIA_PLAN_H
#define TRIA_PLAN_H

#include "tria/backend.h"
#include "tria/base.h"
#include "tria/calibration.h"
#include "tria/kv_view.h"
#include "tria/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tria_mode {
    TRIA_MODE_PER_LAYER_PER_HEAD = 0, /* a set per (layer, KV head) */
    TRIA_MODE_PER_HEAD = 1,           /* a set per KV head, the same in every layer taking part */
    TRIA_MODE_PER_LAYER = 2,          /* a set per layer */
    TRIA_MODE_UNION = 3,              /* one set: max z over all (layer, query head) */
    TRIA_MODE_GLOBAL = 4              /* one set: renormalised and weighted by layer */
} tria_mode;

/* "per-layer-per-head", "per-head", "per-layer", "union", "global"; NULL / -1 for unknown ones. */
TRIA_API const char *tria_mode_name(int32_t mode);
TRIA_API int32_t tria_mode_from_name(const char *name);

typedef enum tria_aggregate { TRIA_AGGREGATE_MEAN = 0, TRIA_AGGREGATE_MAX = 1 } tria_aggregate;

typedef enum tria_normalize {
    TRIA_NORMALIZE_ALL = 0,        /* mean and deviation over all rows */
    TRIA_NORMALIZE_CANDIDATES = 1, /* over the unprotected rows of the set; z is formed for all */
    TRIA_NORMALIZE_NONE = 2        /* raw scores compete */
} tria_normalize;

typedef enum tria_order {
    TRIA_ORDER_STABLE = 0,    /* new row i is old row keep[i] */
    TRIA_ORDER_FILL_HOLES = 1 /* kept rows beyond the new length move into the holes below it */
} tria_order;

typedef enum tria_reduce_op { TRIA_REDUCE_SUM = 0, TRIA_REDUCE_MAX = 1 } tria_reduce_op;

/*
 * Runs task(argument, i) for every i in [0, n), in any order and on any threads, and returns when all
 * are done. Results never depend on how it does so. Lets the library use the engine's own pool.
 */
typedef void (*tria_parallel_for)(void *context, int32_t n, void (*task)(void *argument, int32_t index),
                                  void *argument);

/*
 * Tensor or pipeline parallel: combine `data` [count] f32 over all ranks in place (ncclAllReduce,
 * MPI_Allreduce ...). `stream` is the batch's stream, `data` is device memory on a device backend.
 * Returns 0, anything else fails the event with CANCELLED. Every rank makes the same calls in the
 * same order, and has the same model and calibration. Modes in which KV heads have sets of their own
 * exchange nothing when heads are split: there a KV head without calibrated query heads borrows the
 * scores of its own rank's heads only.
 */
typedef int32_t (*tria_all_reduce)(void *context, float *data, int64_t count, tria_reduce_op op,
                                   void *stream);

typedef struct tria_plan_params {
    size_t struct_size;
    const tria_model *model;             /* required; copied from, not kept */
    const tria_calibration *calibration; /* NULL: nothing is calibrated; copied from, not kept */
    const tria_kv_view *layout; /* dtypes, dims, strides, K state of the caches to come; base pointers
                                   are ignored. Every view of an event must have the same geometry */

    /* which part of the model this plan (rank) owns */
    const int32_t *layers; /* [n_layers] ascending model layers, NULL = the first n_layers */
    int32_t n_layers;      /* 0 = all */
    int32_t kv_head_first; /* KV heads [first, first + count) of every layer; count 0 = all */
    int32_t kv_head_count;

    /* scoring, specification section 2 */
    int32_t offsets;    /* tria_aggregate over the future offsets 1, 2, 4, ...; default mean */
    int32_t offset_max; /* default 65536 */
    int32_t disable_trig;
    int32_t disable_norm_excess;
    float content_weight; /* default 1 */

    /* ranking, section 3 */
    int32_t normalize_over;     /* tria_normalize, default all */
    int32_t group;              /* tria_aggregate over the query heads of a KV head; default max */
    int32_t mode;               /* tria_mode, default per_head */
    int32_t layers_agg;         /* per_head: tria_aggregate over layers; default mean */
    int32_t use_layer_budgets;  /* per_layer*: budget_l = max(1, floor(budget * weight_l)) */
    int32_t pool_radius;        /* neighbour pooling in positions, default 0 = none */
    const float *layer_weights; /* [n_layers of the plan] >= 0, NULL: layer_budget_scales of the
                                   calibration, else 1 */

    /* selection, section 4 */
    int32_t budget; /* rows kept per set; 0: the plan only scores (selecting is an error) */
    int32_t n_sink;
    int32_t n_recent;
    int32_t protect_prefill; /* prompt ranges of an event are never evicted */
    int32_t count_prompt;    /* default 1: prompt rows use the budget */

    /* compaction, section 5 */
    int32_t order;     /* tria_order */
    int32_t zero_tail; /* rows from the new length on are zeroed */

    /* limits: the workspace is sized by them */
    int32_t max_rows;      /* largest N of an event; required */
    int32_t max_sequences; /* largest number of events per call, default 1 */

    /* where it runs */
    tria_device *score_device; /* NULL: CPU */
    tria_device *select_device;
    tria_device *compact_device;
    int32_t stage_device_memory;    /* allow copying device K through the host (or host K to the device) */
    int32_t n_threads;              /* CPU threads of the built-in pool, 0 or 1 = the calling thread only */
    tria_parallel_for parallel_for; /* replaces the built-in pool */
    void *parallel_context;
    tria_all_reduce all_reduce; /* NULL: this plan owns everything */
    void *all_reduce_context;
} tria_plan_params;

/* Defaults as in the specification; nothing is protected and budget is 0. */
TRIA_API void tria_plan_params_init(tria_plan_params *params);

typedef struct tria_plan tria_plan;

/* Errors: ARGUMENT (a setting that can never work: n_sink + n_recent >= budget, budget below a sliding
 * window taking part, all layer weights zero ...), MISMATCH (calibration against model or layout),
 * UNSUPPORTED (names the layer and the combination), MEMORY, DEVICE. */
TRIA_API tria_status tria_plan_create(const tria_plan_params *params, const tria_env *env, tria_plan **plan,
                                      tria_error *error);
TRIA_API void tria_plan_destroy(tria_plan *plan); /* NULL is allowed */
/* Bytes tria_plan_create() would allocate for the workspace. */
TRIA_API tria_status tria_plan_workspace_size(const tria_plan_params *params, size_t *bytes,
                                              tria_error *error);

/* Whether `device` (NULL: the CPU) can run such a plan: OK, or UNSUPPORTED with the layer and what is
 * missing; other errors as tria_plan_create(). */
TRIA_API tria_status tria_backend_supports(tria_device *device, const tria_plan_params *params,
                                           tria_error *error);

TRIA_API int32_t tria_plan_n_layers(const tria_plan *plan);
TRIA_API int32_t tria_plan_n_query_slots(const tria_plan *plan);
TRIA_API int32_t tria_plan_n_kv_slots(const tria_plan *plan);
TRIA_API int32_t tria_plan_n_sets(const tria_plan *plan);
/* -1 when there is none: out of range, a layer without a cache, a layer that takes no part. `layer`
 * counts the plan's layers, heads count within the plan's slice. */
TRIA_API int32_t tria_plan_query_slot(const tria_plan *plan, int32_t layer, int32_t q_head);
TRIA_API int32_t tria_plan_kv_slot(const tria_plan *plan, int32_t layer, int32_t kv_head);
TRIA_API int32_t tria_plan_set(const tria_plan *plan, int32_t layer, int32_t kv_head);

/* A half-open range of positions. */
typedef struct tria_range {
    int32_t begin;
    int32_t end;
} tria_range;

typedef struct tria_terms tria_terms; /* norm and content terms kept per key, see tria_terms_create() */

/* Control data in device memory, for device backends: then nothing is read on the host and an event can
 * be captured in a graph and replayed. Any member may be NULL: the host value is used instead. The
 * Vulkan backend refuses such tables (UNSUPPORTED). */
typedef struct tria_device_span {
    void *base;
    uint64_t offset; /* bytes */
} tria_device_span;

typedef struct tria_device_tables {
    size_t struct_size;
    tria_device_span positions;   /* i32, strides as in the event; updated by compaction */
    tria_device_span page_tables; /* i32 [n_pages] of the view */
    tria_device_span rows;        /* i32 [kv slots]: N of each, at most the event's n_rows or rows, in; rows
                                     left, out (after compaction) */
    tria_device_span keep_rows;   /* i32 [sets][keep_row_stride], out of select, in to compact */
    tria_device_span keep_counts; /* i32 [sets] */
    int64_t keep_row_stride;
    tria_device_span moves; /* i32 [capacity][4], out */
    int64_t moves_capacity;
    tria_device_span n_moves; /* i32, out */
    tria_device_span t;       /* i64, in */
    tria_device_span prompts; /* i32 [n_prompts of the event][2], in */
    tria_device_span report; /* i32 [4], out of select: over_budget, n_nan, n_zero_heads of tria_keep, and 1
                                when rows or positions differ where the mode needs them equal */
} tria_device_tables;

/* One sequence at one moment. Everything stays the caller's; `positions`, the page table and the
 * tensors' contents change in tria_plan_compact() only. */
typedef struct tria_event {
    size_t struct_size;
    const tria_kv_view *kv; /* may be NULL when only positions are to be compacted */
    int64_t t;              /* absolute position: that of the next token, never the number of rows */
    int32_t n_rows;         /* N of every layer and head, unless `rows` is given */
    int32_t budget;         /* 0 = the plan's; the policy's ramp sets it */
    const int32_t *rows;    /* [kv slots] N of each, or NULL */
    /* RoPE position of row i of (layer, head): positions[layer*layer_stride + head*head_stride + i];
     * strides in elements, 0 = shared. NULL: rows are 0 ... N-1 and nothing is updated. Layers are the
     * plan's. */
    int32_t *positions;
    int64_t positions_layer_stride;
    int64_t positions_head_stride;
    const tria_range *prompts; /* [n_prompts] protected when protect_prefill is set */
    int32_t n_prompts;
    int32_t n_pins;
    const int32_t *pins; /* [n_pins] row indices kept in every set (those >= a set's N are ignored) */
    tria_terms *terms;   /* NULL or kept terms of this sequence */
    const tria_device_tables *device; /* NULL: rows, positions, page tables are host memory */
} tria_event;
TRIA_API void tria_event_init(tria_event *event);

/* Score arrays wanted; any pointer may be NULL. Rows beyond a slot's N are not written. */
typedef struct tria_scores {
    size_t struct_size;
    int32_t dtype; /* TRIA_DTYPE_F32; the reference backend also TRIA_DTYPE_F64 */
    int32_t reserved;
    int64_t row_stride; /* elements between slots, >= max N */
    /* [query slots][row_stride], NaN for heads that are not calibrated; not finite where a key is not, or,
     * but for the reference, where its squares overflow float (elements above 1e19) */
    void *raw;
    void *grouped;      /* [kv slots][row_stride] normalised and grouped; NaN without calibration */
    void *final_scores; /* [sets][row_stride] what selection ranks, fallbacks and pooling applied;
                           NaN in sets that are ranked by position */
} tria_scores;
TRIA_API void tria_scores_init(tria_scores *scores);

/* A keep set per set of the plan, and what the event found. Buffers are the caller's. */
typedef struct tria_keep {
    size_t struct_size;
    int32_t *rows;      /* [sets][row_stride] kept row indices, ascending */
    int32_t *counts;    /* [sets] */
    int64_t row_stride; /* >= the longest set; max_rows always fits */
    /* report, written by select */
    int32_t over_budget;           /* rows above the budget in the set that is furthest above, or 0 */
    int32_t n_nan;                 /* row indices with a non-finite raw score in any (layer, head) */
    int32_t n_uncalibrated_layers; /* layers ranked by position */
    int32_t n_zero_heads;          /* (layer, KV head)s whose keys all read back as zero */
    uint8_t *uncalibrated_layers;  /* [n_layers] set to 1 or 0, or NULL */
} tria_keep;
TRIA_API void tria_keep_init(tria_keep *keep);

/* One row that changed place in (layer, KV head); carried out in the order of the list. */
typedef struct tria_move {
    int32_t layer;
    int32_t kv_head;
    int32_t from;
    int32_t to;
} tria_move;

/* What compaction did. Buffers are the caller's, NULL where not wanted. */
typedef struct tria_compaction {
    size_t struct_size;
    tria_move *moves; /* [moves_capacity]; too few is a CAPACITY error before anything is written */
    int64_t moves_capacity;
    int64_t n_moves;      /* counted also without a buffer */
    int64_t bytes_moved;  /* of K, V and scales */
    int32_t *freed_pages; /* [freed_capacity] ids no head or layer sharing the table needs, table order */
    int32_t freed_capacity;
    int32_t n_freed_pages;
    int32_t rows_after; /* the longest set */
    int32_t n_shared;   /* with TRIA_E_SHARED_PAGE: entries of `shared_pages` that must be copied */
    /* Copy on write: page_shared[i] != 0 says page-table entry i is shared with another sequence. If a
     * move would write there, nothing is done, the entries are listed here and SHARED_PAGE returned. */
    const uint8_t *page_shared; /* [n_pages] of the view's table, or NULL */
    int32_t *shared_pages;      /* [n_pages] indices into the page table, or NULL */
} tria_compaction;
TRIA_API void tria_compaction_init(tria_compaction *compaction);

typedef struct tria_batch {
    size_t struct_size;
    const tria_event *events; /* [n_events], consecutive structs of events[0].struct_size bytes */
    int32_t n_events;
    int32_t reserved;
    void *stream; /* device backends: cudaStream_t, hipStream_t, const tria_vulkan_stream *; NULL = their
                     own */
} tria_batch;
TRIA_API void tria_batch_init(tria_batch *batch);

/* Each takes one output struct per event (consecutive, of [0].struct_size bytes). On a device backend
 * work is queued on the stream; host outputs, which must stay valid until then, are complete after
 * tria_plan_synchronize().
 * Errors: ARGUMENT, CAPACITY, MISMATCH (an event's view is not the plan's layout, rows or positions
 * differ where the mode needs them equal), SHARED_PAGE, DEVICE, CANCELLED. */
TRIA_API tria_status tria_plan_score(tria_plan *plan, const tria_batch *batch, const tria_scores *scores,
                                     tria_error *error);
/* Scores, ranks and selects; `scores` (one per event) may be NULL. */
TRIA_API tria_status tria_plan_select(tria_plan *plan, const tria_batch *batch, const tria_scores *scores,
                                      tria_keep *keep, tria_error *error);
/* `compaction` may be NULL. The keep sets may be anybody's: rows ascending, counts per set. */
TRIA_API tria_status tria_plan_compact(tria_plan *plan, const tria_batch *batch, const tria_keep *keep,
                                       tria_compaction *compaction, tria_error *error);
/* Waits for queued work; returns at once on the CPU. */
TRIA_API tria_status tria_plan_synchronize(tria_plan *plan, tria_error *error);

typedef enum tria_part {
    TRIA_PART_SCORE = 0,     /* raw scores and their moments */
    TRIA_PART_NORMALIZE = 1, /* normalise, group, aggregate, pool */
    TRIA_PART_SELECT = 2,
    TRIA_PART_COMPACT = 3
} tria_part;
/* Seconds a part of the last calls took: on the CPU summed over its threads (compaction: of the calling
 * thread), on a device by its own clock, after tria_plan_synchronize(). 0 when it has not run or the
 * backend does not measure. */
TRIA_API double tria_plan_seconds(const tria_plan *plan, int32_t part);

/*
 * Norm and content terms of keys already seen (specification, section 2): they never change while a key
 * lives, so later events only pay the dot product. One handle per sequence; rows appended since the
 * last event are noticed by `rows`, moved rows are followed by tria_plan_compact(). Call
 * tria_terms_invalidate() when rows from `first_row` on were overwritten by anything else.
 */
TRIA_API tria_status tria_terms_create(const tria_plan *plan, const tria_env *env, tria_terms **terms,
                                       tria_error *error);
TRIA_API void tria_terms_destroy(tria_terms *terms);
TRIA_API void tria_terms_invalidate(tria_terms *terms, int32_t first_row);

#ifdef __cplusplus
}
#endif
#endif

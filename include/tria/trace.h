/*
 * tria/trace.h - recording compactions in a file, and recomputing them from it.
 *
 * A trace file is "TRIATRC1" and then records, all numbers little-endian:
 *
 *     u32 type   u32 CRC-32C of the payload   u64 payload bytes   payload
 *
 *     1 header      u32 content, u32 dump; text library version (text: u32 length, bytes)
 *     2 plan        u32 id, u32 layers; per layer i32 query heads, KV heads, head_dim, rotary_dim,
 *                   rotary_offset, rope_style, kv_layer, window; f32 weight; f64 inv_freq[rotary_dim/2],
 *                   f64 freq_scale_sq[..]; with KV heads twice (K, V; dim 0 = none) i32 dtype, dim,
 *                   scale_kind; f32 scale. Then i32 k_state, hadamard_size, n_signs; f32 signs[]; i32
 *                   offsets, offset_max, disable_trig, disable_norm_excess; f32 content_weight; i32
 *                   normalize_over, group, mode, layers_agg, use_layer_budgets, pool_radius, budget,
 *                   n_sink, n_recent, protect_prefill, count_prompt, order, zero_tail; text backends of
 *                   score, select, compact; per query slot i32 calibrated and if so f32 q_mean_real[],
 *                   q_mean_imag[], q_abs_mean[], i32 n_content, f32 content_mean[]
 *     3 compaction  u32 plan id, u32 number; i64 t; i32 n_rows, budget; per KV slot i32 rows, same_as (-1:
 *                   positions follow as i32[rows], -2: they are 0, 1, 2 ..., else those of that slot); i32
 *                   n_prompts, (begin, end)[]; i32 n_pins, rows[]; cache before; u32 has_scores and if so
 *                   f32 raw scores per query slot [rows of its KV slot], f32 final scores per set [rows];
 *                   per set i32 count, rows[]; i32 over_budget, n_nan, n_uncalibrated_layers,
 *                   n_zero_heads; u32 done and if so i64 bytes_moved, i64 n_moves, i32 (layer, KV head,
 *                   from, to)[], i32 n_freed, pages[]; cache after
 *                   a cache: u32 content; per KV slot K and (content 2, V's dim > 0) V: i32 n, u32 CRC-32C
 * of the n rows (packed, without padding between elements), for content >= 1 the rows, and f32 scale[rows]
 * when scale_kind is HEAD or ROW 4 tokens      i64 position of the first, u32 1 in a prompt, u32 n, i32
 * ids[] 5 end         u32 compactions seen, u32 recorded, u32 dump asked for that never came, or 0
 *
 * KV slots, query slots and sets are numbered as in tria/plan.h.
 */
#ifndef TRIA_TRACE_H
#define TRIA_TRACE_H

#include "tria/base.h"
#include "tria/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tria_trace_content {
    TRIA_TRACE_DECISIONS = 0, /* scores, keep sets, moves; of the cache only checksums */
    TRIA_TRACE_KEYS = 1,      /* also the keys: enough to recompute the keep sets */
    TRIA_TRACE_CACHE = 2      /* K and V, before and after */
} tria_trace_content;

typedef struct tria_trace_params {
    size_t struct_size;
    const char *path;
    int32_t content; /* tria_trace_content, default keys */
    int32_t dump;    /* 0: every compaction; k: only the k-th that is seen, then no more */
} tria_trace_params;
#define TRIA_TRACE_PARAMS_INIT                                                                             \
    {                                                                                                      \
        sizeof(tria_trace_params), NULL, TRIA_TRACE_KEYS, 0                                                \
    }
TRIA_API void tria_trace_params_init(tria_trace_params *params);

typedef struct tria_trace tria_trace;

/* Creates the file. Errors: ARGUMENT, IO, MEMORY. */
TRIA_API tria_status tria_trace_create(const tria_trace_params *params, const tria_env *env,
                                       tria_trace **trace, tria_error *error);
/* Ends and closes the file, and frees the trace in any case. Errors: IO; STATE when a dump was asked for
 * and that compaction never came. NULL is allowed. */
TRIA_API tria_status tria_trace_close(tria_trace *trace, tria_error *error);
/* 1 when the dump that was asked for has been written: the engine may stop. */
TRIA_API int32_t tria_trace_done(const tria_trace *trace);

/*
 * tria_sequence_compact() records by itself (tria_sequence_set_trace()). An engine that compacts by
 * other means calls begin() after the selection, before any row moves, and end() afterwards; `compaction`
 * may be NULL there (an engine that frees cells). begin() scores the event once more on `plan`, whose
 * keys must be host memory. Errors: IO, MEMORY, UNSUPPORTED (keys on a device), those of
 * tria_plan_select().
 */
TRIA_API tria_status tria_trace_begin(tria_trace *trace, tria_plan *plan, const tria_event *event,
                                      const tria_keep *keep, tria_error *error);
TRIA_API tria_status tria_trace_end(tria_trace *trace, const tria_compaction *compaction,
                                    tria_error *error);
/* The tokens at positions position ... position + n - 1, for replays that feed a model. */
TRIA_API tria_status tria_trace_tokens(tria_trace *trace, int64_t position, const int32_t *ids, int32_t n,
                                       int32_t in_prompt, tria_error *error);

/* One keep set, recorded and recomputed. */
typedef struct tria_replay_set {
    size_t struct_size;
    int32_t compaction; /* its number */
    int32_t set;
    int32_t layer; /* of the first (layer, KV head) that obeys the set */
    int32_t kv_head;
    int32_t n_recorded;
    int32_t n_replayed;
    int32_t n_common;
    int32_t first_row;      /* lowest row that is in one only, -1: the sets are equal */
    int32_t first_position; /* its position */
    int32_t first_recorded; /* 1: the recorded set has it, 0: the recomputed one */
    double jaccard;
    double max_score_error; /* of the raw scores of the set's heads, NaN where none were recorded */
} tria_replay_set;
typedef void (*tria_replay_fn)(void *context, const tria_replay_set *set);

typedef struct tria_replay_params {
    size_t struct_size;
    tria_device *device; /* of all stages, NULL: CPU */
    int32_t n_threads;
    int32_t reserved;
    tria_replay_fn on_set; /* NULL: only the report */
    void *context;
} tria_replay_params;
TRIA_API void tria_replay_params_init(tria_replay_params *params);

typedef struct tria_replay_report {
    size_t struct_size;
    int32_t n_compactions; /* in the trace */
    int32_t n_replayed;    /* of them with keys */
    int32_t n_sets;        /* compared */
    int32_t n_exact;
    int32_t n_cache_compared; /* compactions whose cache afterwards was recorded and compared */
    int32_t n_cache_differs;
    int32_t dump_missing;    /* number of a dump that was asked for and never came, or 0 */
    int32_t complete;        /* 0: the trace has no end record */
    int64_t n_tokens;        /* recorded, each position once */
    int64_t n_prompt_tokens; /* of them in prompts */
    int64_t n_evicted;       /* rows, over all sets: 0 says that the trace shows no eviction */
    double min_jaccard;      /* 1 when nothing was compared */
    double mean_jaccard;
    double max_score_error;
} tria_replay_report;
TRIA_API void tria_replay_report_init(tria_replay_report *report);

/* Recomputes every compaction of a file. Errors: FORMAT (names the record), IO, MEMORY, DEVICE ... */
TRIA_API tria_status tria_trace_replay(const char *path, const tria_replay_params *params,
                                       const tria_env *env, tria_replay_report *report, tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

/*
 * tria/sequence.h - the policy: when a sequence's cache is compacted, and what it then looks like
 * (specification, section 6).
 *
 * One handle per sequence. The engine tells it what it did (tokens written, prompt begun, drafts
 * rejected ...); the handle knows the absolute position, the rows of every layer and head and the
 * position of each, and says when to compact. It holds no keys and no values. Nothing is allocated
 * after creation, and a call that fails leaves the state as it was.
 *
 *     tria_sequence_begin_prefill(s, n)      around every prompt, later turns too
 *     tria_sequence_append(s, k)             after k tokens were written
 *     tria_sequence_end_prefill(s)
 *     for each decoded token:
 *         tria_sequence_append(s, 1)
 *         if (tria_sequence_should_compact(s))
 *             tria_sequence_compact(s, plan, &view, ...)     or event(), one's own work, commit()
 *
 * An engine with tensors of its own calls tria_sequence_compact(), or, for many sequences at once, takes
 * tria_sequence_event() of each, runs tria_plan_select() and tria_plan_compact() on all of them and
 * calls tria_sequence_commit() for each. An engine that owns its cells (row i lies in whatever cell it
 * was written to) sets `in_place`, runs tria_plan_select() only, frees the cells of the rows that are
 * not kept and commits: no kept row changes its place in memory, only row numbers close ranks.
 *
 * In debug builds (NDEBUG not defined) two threads inside one handle and the use of a destroyed handle
 * are reported as STATE errors; see TRIA_GUARD_HANDLES in the build.
 */
#ifndef TRIA_SEQUENCE_H
#define TRIA_SEQUENCE_H

#include "tria/base.h"
#include "tria/plan.h"
#include "tria/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRIA_MAX_RAMP 16

typedef struct tria_policy_params {
    size_t struct_size;

    /* Capacity: the rows physically there. Either `capacity`, or kv_bytes / bytes_per_row. Whole pages
     * count only. */
    int32_t capacity;
    int32_t tokens_per_page; /* 0 or 1: no pages */
    int64_t kv_bytes;
    int64_t bytes_per_row; /* of one token in all layers, K and V */

    /* Budget: the rows kept. Either `budget`, or floor(budget_percent / 100 * capacity). 0: eviction is
     * off. */
    double budget_percent;
    int32_t budget;
    int32_t largest_budget;  /* the largest layer budget when the plan uses layer budgets; 0 = budget */
    int32_t interval;        /* rows beyond the budget before a compaction; default 128 */
    int32_t n_recent;        /* default 128 */
    int32_t n_sink;          /* default 4 */
    int32_t in_flight;       /* most tokens ever written but unconfirmed (drafts); default 0 */
    int32_t protect_prefill; /* prompt rows are never evicted; default 1 */
    int32_t count_prompt;    /* prompt rows use the budget; default 1 */
    int32_t allow_prefill_compaction; /* prompts larger than the cache, chunk by chunk; default 0 */
    int32_t mode;                     /* tria_mode, default per_head */
    int32_t order;                    /* tria_order, default stable */
    int32_t in_place; /* the engine frees cells itself, kept rows never change their place; needs stable */
    int32_t row_bucket; /* bound_rows() is a multiple of it; default 1 */
    int32_t enabled;    /* default 1 */
    int32_t n_ramp;     /* 0: every compaction goes to the budget */
    int32_t reserved;
    const double *ramp; /* [n_ramp <= TRIA_MAX_RAMP] percent of the surplus evicted by the first, second
                           ... compaction, each in (0, 100]; the last one stays; copied */

    /* What ranks the rows. A budget without a calibration is an error, unless the engine says that it
     * chooses the keep sets itself (controls such as "random" or "most recent"). Not kept. */
    const tria_calibration *calibration;
    int32_t own_keep_sets;

    /* Geometry of the keep sets: that of `plan` (not kept), or n_layers layers of n_kv_heads KV heads,
     * or of kv_heads[layer] heads, 0 for a layer without a cache of its own. Modes union and global
     * need none (1 layer, 1 head is then assumed). */
    int32_t n_layers;
    int32_t n_kv_heads;
    int32_t reserved2;
    const int32_t *kv_heads;
    const tria_plan *plan;
} tria_policy_params;

#define TRIA_POLICY_PARAMS_INIT                                                                            \
    {                                                                                                      \
        sizeof(tria_policy_params), 0, 0, 0, 0, 0.0, 0, 0, 128, 128, 4, 0, 1, 1, 0, TRIA_MODE_PER_HEAD,    \
            TRIA_ORDER_STABLE, 0, 1, 1, 0, 0, NULL, NULL, 0, 0, 0, 0, NULL, NULL                           \
    }
TRIA_API void tria_policy_params_init(tria_policy_params *params);

/* Copies the settings that both have (mode, order, budget, n_sink, n_recent, protect_prefill,
 * count_prompt, max_rows = capacity) into a plan's, so that they are written down once.
 * Errors: as tria_sequence_create(). */
TRIA_API tria_status tria_policy_to_plan(const tria_policy_params *params, tria_plan_params *plan,
                                         tria_error *error);

typedef struct tria_sequence tria_sequence;

/* Errors: ARGUMENT (a setting that can never work), CAPACITY (below budget + interval + in_flight),
 * MEMORY. Logs the line of tria_sequence_describe(). */
TRIA_API tria_status tria_sequence_create(const tria_policy_params *params, const tria_env *env,
                                          tria_sequence **sequence, tria_error *error);
TRIA_API void tria_sequence_destroy(tria_sequence *sequence); /* NULL is allowed */

/* ---- what the engine did ---- */

/* n tokens were written at positions t ... t + n - 1, as the last rows of every layer and head.
 * Errors: CAPACITY (see tria_sequence_room()), STATE (more than the prompt's announced length). */
TRIA_API tria_status tria_sequence_append(tria_sequence *sequence, int32_t n, tria_error *error);

/* A prompt of n tokens follows, in one or many append()s. Nothing is compacted until end_prefill(),
 * unless allow_prefill_compaction. Errors: CAPACITY when the prompt, or the decoding after it, cannot
 * fit; STATE inside a prompt. */
TRIA_API tria_status tria_sequence_begin_prefill(tria_sequence *sequence, int32_t n, tria_error *error);
/* Fewer tokens than announced (a cancelled request): the prompt is what was written. */
TRIA_API tria_status tria_sequence_end_prefill(tria_sequence *sequence, tria_error *error);

/* The last n tokens are in flight from now on, later ones too: written but unconfirmed. They never move:
 * should_compact() is 0 and compaction a STATE error until they are confirmed (0) or all rolled back. With
 * `in_place` compaction goes on and keeps them, as long as they are at most n_recent.
 * Errors: CAPACITY above the policy's in_flight, there and in append(). */
TRIA_API tria_status tria_sequence_set_in_flight(tria_sequence *sequence, int32_t n, tria_error *error);

/* The last n tokens are rejected: rows at positions >= t - n go, t becomes t - n. Errors: STATE when a
 * compaction evicted or moved one of them, or inside a prompt when they reach before it. */
TRIA_API tria_status tria_sequence_rollback(tria_sequence *sequence, int32_t n, tria_error *error);

/* Rows at positions >= position go and t becomes `position`, whatever was compacted before: what was
 * evicted below stays evicted (see tria_sequence_intact_prefix()). Errors: STATE inside a prompt, or
 * when fill_holes left such rows among the others. */
TRIA_API tria_status tria_sequence_trim(tria_sequence *sequence, int32_t position, tria_error *error);

/* The engine removed the rows at positions in [begin, end) and re-rotated the later ones by begin - end
 * (a "context shift"); t becomes t - (end - begin). Errors: ARGUMENT, STATE inside a prompt. */
TRIA_API tria_status tria_sequence_shift(tria_sequence *sequence, int32_t begin, int32_t end,
                                         tria_error *error);

/* As after creation, but for `enabled`, and the epoch goes on. */
TRIA_API tria_status tria_sequence_reset(tria_sequence *sequence, tria_error *error);

/* Off: should_compact() is 0 and compaction a STATE error. */
TRIA_API tria_status tria_sequence_set_enabled(tria_sequence *sequence, int32_t enabled, tria_error *error);

/* ---- compaction ---- */

/* 1 when it is time to compact, else 0 (-1 for misuse found in a debug build). */
TRIA_API int32_t tria_sequence_should_compact(const tria_sequence *sequence);

/*
 * First half: what to rank now. `event` is filled but for kv, pins, terms and device, which are the
 * engine's. Its positions are a copy lent for this event (tria_plan_compact() may change it; the
 * sequence follows the keep sets). `keep` (may be NULL) gets buffers of the sequence, large enough for
 * every set. Both stay valid until the next call that changes the sequence; any other such call than
 * commit() abandons the event. `struct_size` of both must be set.
 * Errors: STATE (no rows, eviction off, inside a prompt, tokens in flight that would move).
 */
TRIA_API tria_status tria_sequence_event(tria_sequence *sequence, tria_event *event, tria_keep *keep,
                                         tria_error *error);

/*
 * Second half: the rows not in `keep` are gone. The sets may be anybody's, in host memory, rows
 * ascending. `compaction` may be NULL; its bytes moved and pages freed are counted and logged.
 * Errors: ARGUMENT (the set and the row: not ascending, out of range, a protected row missing),
 * STATE (no event).
 */
TRIA_API tria_status tria_sequence_commit(tria_sequence *sequence, const tria_keep *keep,
                                          const tria_compaction *compaction, tria_error *error);
/* The same checks of `keep` without committing, for before anything is moved. */
TRIA_API tria_status tria_sequence_check_keep(tria_sequence *sequence, const tria_keep *keep,
                                              tria_error *error);

/* The engine's part of an event, for tria_sequence_compact(). */
typedef struct tria_compact_params {
    size_t struct_size;
    const tria_kv_view *kv;
    const int32_t *pins; /* [n_pins] row indices */
    int32_t n_pins;
    int32_t reserved;
    tria_terms *terms;
    const tria_device_tables *device;
    void *stream;
    tria_compaction *compaction; /* moves, freed pages; NULL where not wanted. Its page_shared is set */
} tria_compact_params;
#define TRIA_COMPACT_PARAMS_INIT                                                                           \
    {                                                                                                      \
        sizeof(tria_compact_params), NULL, NULL, 0, 0, NULL, NULL, NULL, NULL                              \
    }
TRIA_API void tria_compact_params_init(tria_compact_params *params);

/* event(), tria_plan_select(), tria_plan_compact(), commit() of one sequence; waits for device work, so
 * keep sets must come to host memory and a Vulkan stream must be NULL.
 * Errors: theirs; MISMATCH (the plan's settings or sets are not the policy's), STATE (the policy is
 * in_place), SHARED_PAGE: copy the pages listed in params->compaction, tell own_page(), call again. */
TRIA_API tria_status tria_sequence_compact(tria_sequence *sequence, tria_plan *plan,
                                           const tria_compact_params *params, tria_error *error);

/* Compactions of tria_sequence_compact() are recorded there; NULL ends it. The trace must outlive it. */
TRIA_API tria_status tria_sequence_set_trace(tria_sequence *sequence, tria_trace *trace, tria_error *error);

/* ---- questions ---- */

typedef struct tria_sequence_info {
    size_t struct_size;
    int64_t t;    /* absolute position: that of the next token */
    int32_t rows; /* the largest count over layers and heads */
    int32_t capacity;
    int32_t budget;           /* as resolved from rows or percent */
    int32_t effective_budget; /* plus protected prompt rows when they do not count */
    int32_t trigger;          /* rows at which should_compact() becomes 1 */
    int32_t rows_left;        /* rows after the last compaction */
    int32_t prompt_rows;      /* protected prompt rows */
    int32_t in_prefill;
    int32_t in_flight; /* tokens in flight now */
    int32_t enabled;
    int32_t n_compactions;
    int32_t n_sets;
    uint64_t epoch; /* changes whenever rows moved or vanished: compaction, trim, shift, reset */
    /* totals over all compactions, and of the last one */
    int64_t evicted;     /* rows, summed over sets */
    int64_t bytes_moved; /* of K and V, as reported to commit() */
    int64_t n_nan;
    int64_t pages_freed;
    int32_t peak_rows;
    int32_t last_over_budget;
    double seconds; /* from event() to commit() */
    double last_seconds;
} tria_sequence_info;
TRIA_API void tria_sequence_info_init(tria_sequence_info *info);
TRIA_API tria_status tria_sequence_get_info(const tria_sequence *sequence, tria_sequence_info *info,
                                            tria_error *error);

/* Rows that may still be written before append() fails (-1: misuse found in a debug build). */
TRIA_API int32_t tria_sequence_room(const tria_sequence *sequence);
/* Rows rounded up to row_bucket, at most the capacity. Rows from the live ones on are padding: never
 * scored, to be masked by the engine. */
TRIA_API int32_t tria_sequence_bound_rows(const tria_sequence *sequence);
/* The largest p such that the rows of positions 0 ... p - 1 are all there, unmoved, in every layer and
 * head: what a prefix cache may share. */
TRIA_API int32_t tria_sequence_intact_prefix(const tria_sequence *sequence);
/* Position of each row of (layer, KV head); *n_rows is their number. Valid until the next call that
 * changes the sequence. NULL for a layer or head that does not exist. */
TRIA_API const int32_t *tria_sequence_positions(tria_sequence *sequence, int32_t layer, int32_t kv_head,
                                                int32_t *n_rows);
/* One line for logs; always terminated. Returns the length it wanted, as snprintf(). */
TRIA_API int32_t tria_sequence_describe(const tria_sequence *sequence, char *buffer, size_t size);

/* ---- copies ---- */

/* A second sequence with the same past. Where there are pages, both sides now share them: neither may
 * write to one before it owns it (append() to a half-filled page included). Without pages the engine
 * copies or shares the cache itself. */
TRIA_API tria_status tria_sequence_fork(tria_sequence *sequence, const tria_env *env, tria_sequence **copy,
                                        tria_error *error);
/* [*n_pages] 1 where page-table entry i is shared. NULL without pages. */
TRIA_API const uint8_t *tria_sequence_shared_pages(const tria_sequence *sequence, int32_t *n_pages);
/* Page-table entry `entry` is this sequence's own: it was copied, or the other side let go of it. */
TRIA_API tria_status tria_sequence_own_page(tria_sequence *sequence, int32_t entry, tria_error *error);

/* The whole state, settings included, as bytes (little-endian, CRC-32C). *size is set to the bytes
 * needed; with data NULL nothing else happens, with too small a capacity the status is CAPACITY. An open
 * event is no part of it. */
TRIA_API tria_status tria_sequence_save(tria_sequence *sequence, void *data, size_t capacity, size_t *size,
                                        tria_error *error);
/* Errors: FORMAT (damaged, of another version), MEMORY. */
TRIA_API tria_status tria_sequence_load(const void *data, size_t size, const tria_env *env,
                                        tria_sequence **sequence, tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

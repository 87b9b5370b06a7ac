/* sequence_event.c - compaction in two halves: what to rank now, and what the tables are afterwards. */
#include "sequence_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int32_t *set_positions(const tria_sequence *sequence, int32_t set)
{
    return sequence->positions +
           (size_t)sequence->tables.set_table[set] * (size_t)sequence->policy.capacity;
}

/* Rows to keep, prompt rows that do not count left out: the plan adds those. */
static int32_t event_budget(const tria_sequence *sequence)
{
    const tria_policy *policy = &sequence->policy;
    const int64_t rows = tria_sequence_rows(sequence);
    const int64_t effective = tria_sequence_effective_budget(sequence);
    const int64_t surplus = rows - effective;
    if (policy->n_ramp == 0 || surplus <= 0 || sequence->state.in_prefill) {
        return policy->budget; /* a chunk of a prompt always goes to the budget: the next one must fit */
    }
    const int32_t step =
        sequence->state.ramp_step < policy->n_ramp ? sequence->state.ramp_step : policy->n_ramp - 1;
    const int64_t most = (int64_t)policy->capacity - policy->interval - policy->in_flight;
    int64_t target = rows - (int64_t)floor((double)surplus * policy->ramp[step] / 100.0);
    target = target < most ? target : most; /* the effective budget is below: prompts were checked */
    return (int32_t)(target - (effective - policy->budget));
}

/* Rows of each KV slot; false when all are the same and no array is needed. */
static bool fill_slot_rows(tria_sequence *sequence)
{
    bool differ = false;
    for (int32_t i = 0; i < sequence->tables.n_slots; i++) {
        const int32_t table = sequence->tables.slot_table[i];
        sequence->slot_rows[i] = table >= 0 ? sequence->counts[table] : 0;
        differ = differ || sequence->slot_rows[i] != sequence->slot_rows[0];
    }
    return differ;
}

static tria_status make_event(tria_sequence *sequence, tria_event *out, tria_keep *out_keep,
                              tria_error *error)
{
    tria_event event;
    tria_keep keep;
    const size_t capacity = (size_t)sequence->policy.capacity;
    tria_event_init(&event);
    tria_keep_init(&keep);
    TRIA_TRY(tria_sequence_may_compact(sequence, error));
    TRIA_TRY(tria_struct_import(&event, sizeof(event), sizeof(event), out, "tria_event", error));
    if (out_keep != NULL) {
        TRIA_TRY(tria_struct_import(&keep, sizeof(keep), sizeof(keep), out_keep, "tria_keep", error));
        keep.rows = sequence->keep_rows;
        keep.counts = sequence->keep_count;
        keep.row_stride = sequence->policy.capacity;
        TRIA_TRY(tria_struct_export(out_keep, &keep, sizeof(keep), sizeof(keep), "tria_keep", error));
    }
    event.t = tria_sequence_settle(sequence);
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        const int32_t table = sequence->tables.set_table[s];
        memcpy(sequence->lent + (size_t)table * capacity, set_positions(sequence, s),
               (size_t)sequence->counts[table] * sizeof(int32_t));
    }
    event.n_rows = tria_sequence_rows(sequence);
    event.budget = event_budget(sequence);
    event.rows = fill_slot_rows(sequence) ? sequence->slot_rows : NULL;
    event.positions = sequence->lent;
    event.positions_layer_stride = sequence->tables.layer_step * (int64_t)capacity;
    event.positions_head_stride = sequence->tables.head_step * (int64_t)capacity;
    event.prompts = sequence->prompts;
    event.n_prompts = sequence->state.n_prompts;
    TRIA_TRY(tria_struct_export(out, &event, sizeof(event), sizeof(event), "tria_event", error));
    sequence->event_open = 1;
    sequence->event_time = seconds_now();
    return TRIA_OK;
}

tria_status tria_sequence_event(tria_sequence *sequence, tria_event *event, tria_keep *keep,
                                tria_error *error)
{
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_event: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, __func__, error));
    const tria_status status = make_event(sequence, event, keep, error);
    tria_guard_leave(&sequence->guard);
    return status;
}

/* One keep set: ascending, in range, and no protected row missing. */
static tria_status check_set(const tria_sequence *sequence, int32_t set, const int32_t *rows, int32_t count,
                             tria_error *error)
{
    const int32_t *positions = set_positions(sequence, set);
    const int32_t n = sequence->counts[sequence->tables.set_table[set]];
    int32_t next = 0; /* of the keep set */
    if (count < 0 || count > n) {
        return tria_fail(error, TRIA_E_ARGUMENT, "keep set %d: %d of %d rows", set, count, n);
    }
    for (int32_t i = 1; i < count; i++) {
        if (rows[i] <= rows[i - 1]) {
            return tria_fail(error, TRIA_E_ARGUMENT, "keep set %d: row %d after row %d is not ascending",
                             set, rows[i], rows[i - 1]);
        }
    }
    if (count > 0 && (rows[0] < 0 || rows[count - 1] >= n)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "keep set %d: rows %d..%d are not all among %d", set,
                         rows[0], rows[count - 1], n);
    }
    for (int32_t i = 0; i < n; i++) {
        if (next < count && rows[next] == i) {
            next++;
        } else if (tria_sequence_is_protected(sequence, positions[i])) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "keep set %d: row %d at the protected position %d is missing", set, i,
                             positions[i]);
        }
    }
    return TRIA_OK;
}

static tria_status import_keep(const tria_sequence *sequence, tria_keep *keep, const tria_keep *given,
                               tria_error *error)
{
    tria_keep_init(keep);
    TRIA_TRY(tria_struct_import(keep, sizeof(*keep), sizeof(*keep), given, "tria_keep", error));
    if (!sequence->event_open) {
        return tria_fail(error, TRIA_E_STATE,
                         "commit: no event is open; tria_sequence_event() comes first");
    }
    if (keep->rows == NULL || keep->counts == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_keep: rows or counts is NULL");
    }
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        if (keep->counts[s] > keep->row_stride) {
            return tria_fail(error, TRIA_E_ARGUMENT, "keep set %d: %d rows, row_stride is %lld", s,
                             keep->counts[s], (long long)keep->row_stride);
        }
        TRIA_TRY(check_set(sequence, s, keep->rows + s * keep->row_stride, keep->counts[s], error));
    }
    return TRIA_OK;
}

tria_status tria_sequence_check_keep(tria_sequence *sequence, const tria_keep *keep, tria_error *error)
{
    tria_keep latest;
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_check_keep: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, __func__, error));
    const tria_status status = import_keep(sequence, &latest, keep, error);
    tria_guard_leave(&sequence->guard);
    return status;
}

/* What a keep set did to its table, beyond the new row count. */
typedef struct set_change {
    int32_t first_evicted; /* lowest position missing from its place */
    int32_t last_evicted;  /* highest position evicted, -1: none */
} set_change;

static set_change repack(int32_t *positions, int32_t n, const int32_t *keep, int32_t count, int32_t order)
{
    set_change change = {TRIA_NO_POSITION, -1};
    int32_t next = 0; /* of the keep set */
    int32_t tail = 0; /* fill_holes: the next kept row at or beyond the new length */
    while (tail < count && keep[tail] < count) {
        tail++;
    }
    for (int32_t i = 0; i < n; i++) {
        if (next < count && keep[next] == i) {
            if (order == TRIA_ORDER_STABLE) {
                positions[next] = positions[i];
            }
            next++;
            continue;
        }
        /* Row i is evicted; the first such row is the first one out of its place. */
        if (change.first_evicted == TRIA_NO_POSITION) {
            change.first_evicted = positions[i];
        }
        if (positions[i] > change.last_evicted) {
            change.last_evicted = positions[i];
        }
        if (order == TRIA_ORDER_FILL_HOLES && i < count) {
            positions[i] = positions[keep[tail++]];
        }
    }
    return change;
}

static void commit_tables(tria_sequence *sequence, const tria_keep *keep)
{
    tria_sequence_state *state = &sequence->state;
    int32_t last_evicted = -1;
    int32_t rows = 0;
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        int32_t *n = &sequence->counts[sequence->tables.set_table[s]];
        const int32_t count = keep->counts[s];
        const set_change change = repack(set_positions(sequence, s), *n, keep->rows + s * keep->row_stride,
                                         count, sequence->policy.order);
        if (change.first_evicted < state->first_evicted) {
            state->first_evicted = change.first_evicted;
        }
        if (change.last_evicted > last_evicted) {
            last_evicted = change.last_evicted;
        }
        state->evicted += *n - count;
        *n = count;
        rows = count > rows ? count : rows;
    }
    if (last_evicted >= 0) {
        /* Repacking also moves every later row; cells stay where they are. */
        const int32_t end = sequence->policy.in_place ? last_evicted + 1 : (int32_t)state->t;
        state->fixed_end = end > state->fixed_end ? end : state->fixed_end;
    }
    state->settled = rows;
    state->rows_left = rows;
}

static tria_status commit(tria_sequence *sequence, const tria_keep *given,
                          const tria_compaction *given_compaction, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    tria_keep keep;
    tria_compaction done;
    char notes[96] = "";
    const int32_t before = tria_sequence_rows(sequence);
    tria_compaction_init(&done);
    TRIA_TRY(import_keep(sequence, &keep, given, error));
    if (given_compaction != NULL) {
        TRIA_TRY(tria_struct_import(&done, sizeof(done), sizeof(done), given_compaction, "tria_compaction",
                                    error));
    }
    commit_tables(sequence, &keep);
    state->n_compactions++;
    state->ramp_step += state->in_prefill ? 0 : 1;
    state->epoch++;
    state->n_nan += keep.n_nan;
    state->last_over_budget = keep.over_budget;
    state->bytes_moved += done.bytes_moved;
    state->pages_freed += done.n_freed_pages;
    state->last_seconds = seconds_now() - sequence->event_time;
    state->seconds += state->last_seconds;
    sequence->event_open = 0;
    tria_sequence_drop_pages(sequence);
    if (keep.over_budget > 0 || keep.n_nan > 0 || keep.n_zero_heads > 0) {
        snprintf(notes, sizeof(notes), ", %d rows over budget, %d NaN rows, %d all-zero heads",
                 keep.over_budget, keep.n_nan, keep.n_zero_heads);
    }
    tria_log(&sequence->env, TRIA_LOG_INFO,
             "compaction %d: t %lld, rows %d -> %d, %.3f ms, %lld bytes moved, %d pages freed%s",
             state->n_compactions, (long long)state->t, before, state->rows_left, 1e3 * state->last_seconds,
             (long long)done.bytes_moved, done.n_freed_pages, notes);
    return TRIA_OK;
}

tria_status tria_sequence_commit(tria_sequence *sequence, const tria_keep *keep,
                                 const tria_compaction *compaction, tria_error *error)
{
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_commit: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, __func__, error));
    const tria_status status = commit(sequence, keep, compaction, error);
    tria_guard_leave(&sequence->guard);
    return status;
}

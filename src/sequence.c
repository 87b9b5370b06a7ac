/* sequence.c - what the engine did: tokens written, prompts, drafts, cuts; and the numbers that follow. */
#include "sequence_internal.h"

#include <stdio.h>
#include <string.h>

/* Runs `body` (an expression of type tria_status) inside the handle. */
#define GUARDED(sequence, error, body)                                                                     \
    do {                                                                                                   \
        tria_status guarded_status;                                                                        \
        if ((sequence) == NULL) {                                                                          \
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: sequence is NULL", __func__);                    \
        }                                                                                                  \
        TRIA_TRY(tria_guard_enter(&(sequence)->guard, __func__, error));                                   \
        guarded_status = (body);                                                                           \
        tria_guard_leave(&(sequence)->guard);                                                              \
        return guarded_status;                                                                             \
    } while (0)

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

int32_t tria_sequence_rows(const tria_sequence *sequence)
{
    const tria_sequence_state *state = &sequence->state;
    return state->settled + (int32_t)(state->t - state->tail_begin);
}

int32_t tria_sequence_effective_budget(const tria_sequence *sequence)
{
    return sequence->policy.budget + (sequence->policy.count_prompt ? 0 : sequence->state.prompt_rows);
}

static int32_t trigger(const tria_sequence *sequence)
{
    return larger(tria_sequence_effective_budget(sequence), sequence->state.rows_left) +
           sequence->policy.interval;
}

int32_t tria_sequence_settle(tria_sequence *sequence)
{
    tria_sequence_state *state = &sequence->state;
    const int32_t n = (int32_t)(state->t - state->tail_begin);
    for (int32_t s = 0; n > 0 && s < sequence->tables.n_sets; s++) {
        const int32_t table = sequence->tables.set_table[s];
        int32_t *row = sequence->positions + (size_t)table * (size_t)sequence->policy.capacity +
                       sequence->counts[table];
        for (int32_t i = 0; i < n; i++) {
            row[i] = state->tail_begin + i;
        }
        sequence->counts[table] += n;
    }
    state->settled += n;
    state->tail_begin += n;
    return state->tail_begin;
}

bool tria_sequence_is_protected(const tria_sequence *sequence, int32_t position)
{
    const tria_sequence_state *state = &sequence->state;
    if (position < sequence->policy.n_sink || position >= state->t - sequence->policy.n_recent ||
        position >= state->in_flight_begin) {
        return true;
    }
    int32_t low = 0;
    int32_t high = state->n_prompts;
    while (low < high) { /* the first range that ends beyond the position */
        const int32_t middle = low + (high - low) / 2;
        if (sequence->prompts[middle].end <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < state->n_prompts && sequence->prompts[low].begin <= position;
}

/* ---- written tokens ---- */

/* The shared page that the next rows would be written to, or -1: only the last one in use, half filled. */
static int32_t shared_page(const tria_sequence *sequence)
{
    const int32_t size = sequence->policy.tokens_per_page;
    const int32_t rows = tria_sequence_rows(sequence);
    if (sequence->shared == NULL || rows % size == 0 || sequence->shared[rows / size] == 0) {
        return -1;
    }
    return rows / size;
}

static tria_status append(tria_sequence *sequence, int32_t n, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    const tria_policy *policy = &sequence->policy;
    const int32_t rows = tria_sequence_rows(sequence);
    const int32_t page = n > 0 ? shared_page(sequence) : -1;
    if (n < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "append: %d tokens", n);
    }
    if (n > INT32_MAX - state->t) {
        return tria_fail(error, TRIA_E_CAPACITY, "append: position %lld + %d is beyond 2^31-1",
                         (long long)state->t, n);
    }
    if (n > policy->capacity - rows) {
        return tria_fail(error, TRIA_E_CAPACITY, "append: %d rows + %d tokens, the capacity is %d", rows, n,
                         policy->capacity);
    }
    if (state->in_prefill && n > state->prefill_length - (state->t - state->prefill_begin)) {
        return tria_fail(error, TRIA_E_STATE,
                         "append: %d tokens after %lld of a prompt of %d; end_prefill() comes first", n,
                         (long long)state->t - state->prefill_begin, state->prefill_length);
    }
    if (state->t + n - state->in_flight_begin > policy->in_flight) {
        return tria_fail(error, TRIA_E_CAPACITY, "append: %lld tokens would be in flight, %d may be",
                         (long long)state->t + n - state->in_flight_begin, policy->in_flight);
    }
    if (page >= 0) {
        return tria_fail(error, TRIA_E_SHARED_PAGE,
                         "append: page-table entry %d is shared: copy it and call own_page() first", page);
    }
    state->t += n;
    state->peak_rows = larger(state->peak_rows, rows + n);
    if (state->in_prefill && policy->protect_prefill) {
        sequence->prompts[state->n_prompts - 1].end += n;
        state->prompt_rows += n;
    }
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_append(tria_sequence *sequence, int32_t n, tria_error *error)
{
    GUARDED(sequence, error, append(sequence, n, error));
}

/* Positions below n_sink and t that no protected prompt covers. */
static int32_t sinks_outside(const tria_sequence *sequence)
{
    int32_t outside = smaller(sequence->policy.n_sink, (int32_t)sequence->state.t);
    for (int32_t i = 0; i < sequence->state.n_prompts; i++) {
        const tria_range *prompt = &sequence->prompts[i];
        outside -= larger(0, smaller(prompt->end, sequence->policy.n_sink) - prompt->begin);
    }
    return outside;
}

/* Whether a prompt of n tokens, and what follows it, can ever fit. */
static tria_status check_prompt(const tria_sequence *sequence, int32_t n, tria_error *error)
{
    const tria_sequence_state *state = &sequence->state;
    const tria_policy *policy = &sequence->policy;
    const int64_t rows = tria_sequence_rows(sequence);
    if (policy->prefill_compaction) {
        return TRIA_OK;
    }
    if (rows + n > policy->capacity) {
        return tria_fail(error, TRIA_E_CAPACITY,
                         "begin_prefill: %lld rows + a prompt of %d, the capacity "
                         "is %d",
                         (long long)rows, n, policy->capacity);
    }
    if (policy->budget == 0) {
        return TRIA_OK;
    }
    int64_t need = n;
    int64_t prompts = 0;
    int64_t protected_rows = 0;
    if (policy->protect_prefill) {
        prompts = (int64_t)state->prompt_rows + n;
        /* A prompt that ends among the sinks does not matter: sinks and recent rows fit the budget. */
        protected_rows = prompts + policy->n_recent + sinks_outside(sequence);
    }
    const int64_t effective = policy->budget + (policy->count_prompt ? 0 : prompts);
    need = effective > need ? effective : need;
    need = protected_rows > need ? protected_rows : need;
    if (need + policy->interval + policy->in_flight > policy->capacity) {
        return tria_fail(error, TRIA_E_CAPACITY,
                         "begin_prefill: with a prompt of %d tokens %lld rows + interval %d + in_flight %d "
                         "are needed, the capacity is %d",
                         n, (long long)need, policy->interval, policy->in_flight, policy->capacity);
    }
    return TRIA_OK;
}

static tria_status begin_prefill(tria_sequence *sequence, int32_t n, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    if (state->in_prefill) {
        return tria_fail(error, TRIA_E_STATE, "begin_prefill: a prompt is being filled already");
    }
    if (state->in_flight_begin != TRIA_NO_POSITION) {
        return tria_fail(error, TRIA_E_STATE, "begin_prefill: tokens are in flight; confirm them first");
    }
    if (n < 1) {
        return tria_fail(error, TRIA_E_ARGUMENT, "begin_prefill: a prompt of %d tokens", n);
    }
    if (n > INT32_MAX - state->t) {
        return tria_fail(error, TRIA_E_CAPACITY, "begin_prefill: position %lld + %d is beyond 2^31-1",
                         (long long)state->t, n);
    }
    TRIA_TRY(check_prompt(sequence, n, error));
    const int32_t t = (int32_t)state->t;
    state->in_prefill = 1;
    state->prefill_begin = t;
    state->prefill_length = n;
    if (sequence->policy.protect_prefill &&
        (state->n_prompts == 0 || sequence->prompts[state->n_prompts - 1].end != t)) {
        sequence->prompts[state->n_prompts].begin = t;
        sequence->prompts[state->n_prompts].end = t;
        state->n_prompts++;
    }
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_begin_prefill(tria_sequence *sequence, int32_t n, tria_error *error)
{
    GUARDED(sequence, error, begin_prefill(sequence, n, error));
}

static tria_status end_prefill(tria_sequence *sequence, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    if (!state->in_prefill) {
        return tria_fail(error, TRIA_E_STATE, "end_prefill: no prompt is being filled");
    }
    const tria_range *last = &sequence->prompts[state->n_prompts > 0 ? state->n_prompts - 1 : 0];
    if (state->n_prompts > 0 && last->begin == last->end) {
        state->n_prompts--; /* cancelled before its first token */
    }
    state->in_prefill = 0;
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_end_prefill(tria_sequence *sequence, tria_error *error)
{
    GUARDED(sequence, error, end_prefill(sequence, error));
}

static tria_status set_in_flight(tria_sequence *sequence, int32_t n, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    if (n < 0 || n > tria_sequence_rows(sequence) || n > state->t - state->fixed_end) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "set_in_flight: %d tokens, %lld were written since rows last moved", n,
                         (long long)state->t - state->fixed_end);
    }
    if (n > sequence->policy.in_flight) {
        return tria_fail(error, TRIA_E_CAPACITY, "set_in_flight: %d tokens in flight, %d may be", n,
                         sequence->policy.in_flight);
    }
    if (n > 0 && state->in_prefill) {
        return tria_fail(error, TRIA_E_STATE, "set_in_flight: a prompt is being filled");
    }
    state->in_flight_begin = n > 0 ? (int32_t)(state->t - n) : TRIA_NO_POSITION;
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_set_in_flight(tria_sequence *sequence, int32_t n, tria_error *error)
{
    GUARDED(sequence, error, set_in_flight(sequence, n, error));
}

/* ---- cuts ---- */

/* The tables are cut at `position`, which becomes t; their rows there are already gone. */
static void cut_at(tria_sequence *sequence, int32_t position)
{
    tria_sequence_state *state = &sequence->state;
    state->t = position;
    state->fixed_end = smaller(state->fixed_end, position);
    if (state->in_flight_begin >= position) {
        state->in_flight_begin = TRIA_NO_POSITION; /* all of them are gone */
    }
    if (state->first_evicted >= position) {
        state->first_evicted = TRIA_NO_POSITION; /* what follows is written anew, in order */
    }
    while (state->n_prompts > 0 && sequence->prompts[state->n_prompts - 1].end > position) {
        tria_range *last = &sequence->prompts[state->n_prompts - 1];
        const int32_t end = larger(last->begin, position);
        state->prompt_rows -= last->end - end;
        last->end = end;
        if (last->begin < end || (state->in_prefill && last->begin == state->prefill_begin)) {
            break;
        }
        state->n_prompts--;
    }
    tria_sequence_drop_pages(sequence);
    sequence->event_open = 0;
}

static tria_status rollback(tria_sequence *sequence, int32_t n, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    const int64_t position = state->t - n;
    if (n < 0 || position < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "rollback: %d of %lld tokens", n, (long long)state->t);
    }
    if (n > 0 && position < state->fixed_end) {
        return tria_fail(error, TRIA_E_STATE,
                         "rollback: to position %lld, but rows below %d were evicted or moved by a "
                         "compaction",
                         (long long)position, state->fixed_end);
    }
    if (state->in_prefill && position < state->prefill_begin) {
        return tria_fail(error, TRIA_E_STATE, "rollback: to position %lld, before the prompt at %d",
                         (long long)position, state->prefill_begin);
    }
    if (position < state->tail_begin) {
        /* These rows are the last ones of every table: none was evicted or moved. */
        const int32_t gone = state->tail_begin - (int32_t)position;
        for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
            sequence->counts[sequence->tables.set_table[s]] -= gone;
        }
        state->settled -= gone;
        state->tail_begin = (int32_t)position;
    }
    cut_at(sequence, (int32_t)position);
    return TRIA_OK;
}

tria_status tria_sequence_rollback(tria_sequence *sequence, int32_t n, tria_error *error)
{
    GUARDED(sequence, error, rollback(sequence, n, error));
}

static int32_t *table_rows(const tria_sequence *sequence, int32_t set, int32_t **count)
{
    const int32_t table = sequence->tables.set_table[set];
    *count = &sequence->counts[table];
    return sequence->positions + (size_t)table * (size_t)sequence->policy.capacity;
}

static tria_status outside_prompt(const tria_sequence *sequence, const char *call, tria_error *error)
{
    return sequence->state.in_prefill ? tria_fail(error, TRIA_E_STATE, "%s: a prompt is being filled", call)
                                      : TRIA_OK;
}

/* After rows went: the largest count, and no memory of more rows than there are. */
static void recount(tria_sequence *sequence)
{
    int32_t settled = 0;
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        settled = larger(settled, sequence->counts[sequence->tables.set_table[s]]);
    }
    sequence->state.settled = settled;
    sequence->state.rows_left = smaller(sequence->state.rows_left, settled);
    sequence->state.epoch++;
}

/* Positions below the result were evicted or moved, or are missing; the tables are cut already. */
static int32_t find_fixed_end(const tria_sequence *sequence)
{
    int32_t fixed = 0;
    int32_t *count;
    if (!sequence->policy.in_place) {
        /* Repacking moves every row behind the first hole. */
        return sequence->state.first_evicted == TRIA_NO_POSITION ? 0 : (int32_t)sequence->state.t;
    }
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        const int32_t *rows = table_rows(sequence, s, &count);
        int32_t begin = (int32_t)sequence->state.t;
        for (int32_t i = *count - 1; i >= 0 && rows[i] == begin - 1; i--) {
            begin--;
        }
        fixed = larger(fixed, begin);
    }
    return fixed;
}

static tria_status trim(tria_sequence *sequence, int32_t position, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    int32_t *count;
    TRIA_TRY(outside_prompt(sequence, "trim", error));
    if (position < 0 || position > state->t) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trim: position %d is not in 0..%lld", position,
                         (long long)state->t);
    }
    if (position == state->t) {
        return TRIA_OK;
    }
    tria_sequence_settle(sequence);
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        const int32_t *rows = table_rows(sequence, s, &count);
        bool beyond = false;
        for (int32_t i = 0; i < *count; i++) {
            if (beyond && rows[i] < position) {
                return tria_fail(error, TRIA_E_STATE,
                                 "trim: set %d holds position %d behind later ones (fill_holes)", s,
                                 rows[i]);
            }
            beyond = beyond || rows[i] >= position;
        }
    }
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        const int32_t *rows = table_rows(sequence, s, &count);
        while (*count > 0 && rows[*count - 1] >= position) {
            --*count;
        }
    }
    state->tail_begin = position;
    recount(sequence);
    state->in_flight_begin = TRIA_NO_POSITION;
    const int32_t fixed_end = smaller(state->fixed_end, position);
    cut_at(sequence, position);
    state->fixed_end = smaller(fixed_end, find_fixed_end(sequence));
    return TRIA_OK;
}

tria_status tria_sequence_trim(tria_sequence *sequence, int32_t position, tria_error *error)
{
    GUARDED(sequence, error, trim(sequence, position, error));
}

/* Where `position` is after [begin, end) was taken out. */
static int32_t shifted(int32_t position, int32_t begin, int32_t end)
{
    return position < begin ? position : position < end ? begin : position - (end - begin);
}

static void shift_prompts(tria_sequence *sequence, int32_t begin, int32_t end)
{
    tria_sequence_state *state = &sequence->state;
    int32_t kept = 0;
    state->prompt_rows = 0;
    for (int32_t i = 0; i < state->n_prompts; i++) {
        const tria_range moved = {shifted(sequence->prompts[i].begin, begin, end),
                                  shifted(sequence->prompts[i].end, begin, end)};
        if (moved.begin == moved.end) {
            continue;
        }
        state->prompt_rows += moved.end - moved.begin;
        if (kept > 0 && sequence->prompts[kept - 1].end == moved.begin) {
            sequence->prompts[kept - 1].end = moved.end;
        } else {
            sequence->prompts[kept++] = moved;
        }
    }
    state->n_prompts = kept;
}

static tria_status shift(tria_sequence *sequence, int32_t begin, int32_t end, tria_error *error)
{
    tria_sequence_state *state = &sequence->state;
    int32_t *count;
    TRIA_TRY(outside_prompt(sequence, "shift", error));
    if (begin < 0 || end <= begin || end > state->t) {
        return tria_fail(error, TRIA_E_ARGUMENT, "shift: [%d, %d) is no range of positions below %lld",
                         begin, end, (long long)state->t);
    }
    if (state->in_flight_begin != TRIA_NO_POSITION) {
        return tria_fail(error, TRIA_E_STATE, "shift: tokens are in flight; confirm them first");
    }
    tria_sequence_settle(sequence);
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        int32_t *rows = table_rows(sequence, s, &count);
        int32_t kept = 0;
        for (int32_t i = 0; i < *count; i++) {
            if (rows[i] < begin || rows[i] >= end) {
                rows[kept++] = shifted(rows[i], begin, end);
            }
        }
        *count = kept;
    }
    shift_prompts(sequence, begin, end);
    const int32_t fixed_end = shifted(state->fixed_end, begin, end);
    state->t -= end - begin;
    state->tail_begin = (int32_t)state->t;
    state->first_evicted = smaller(state->first_evicted, begin);
    recount(sequence);
    cut_at(sequence, state->tail_begin);
    state->fixed_end = smaller(fixed_end, find_fixed_end(sequence));
    return TRIA_OK;
}

tria_status tria_sequence_shift(tria_sequence *sequence, int32_t begin, int32_t end, tria_error *error)
{
    GUARDED(sequence, error, shift(sequence, begin, end, error));
}

static tria_status reset(tria_sequence *sequence)
{
    const tria_sequence_state fresh = {.enabled = sequence->state.enabled,
                                       .in_flight_begin = TRIA_NO_POSITION,
                                       .first_evicted = TRIA_NO_POSITION,
                                       .epoch = sequence->state.epoch + 1};
    sequence->state = fresh;
    memset(sequence->counts, 0, (size_t)sequence->tables.n_tables * sizeof(*sequence->counts));
    tria_sequence_drop_pages(sequence);
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_reset(tria_sequence *sequence, tria_error *error)
{
    GUARDED(sequence, error, reset(sequence));
}

static tria_status set_enabled(tria_sequence *sequence, int32_t enabled)
{
    sequence->state.enabled = enabled != 0;
    sequence->event_open = 0;
    return TRIA_OK;
}

tria_status tria_sequence_set_enabled(tria_sequence *sequence, int32_t enabled, tria_error *error)
{
    GUARDED(sequence, error, set_enabled(sequence, enabled));
}

/* ---- questions ---- */

tria_status tria_sequence_may_compact(const tria_sequence *sequence, tria_error *error)
{
    const tria_sequence_state *state = &sequence->state;
    const tria_policy *policy = &sequence->policy;
    if (policy->budget == 0 || !state->enabled) {
        return tria_fail(error, TRIA_E_STATE, "compaction: eviction is off (%s)",
                         policy->budget == 0 ? "budget 0" : "disabled");
    }
    if (tria_sequence_rows(sequence) == 0) {
        return tria_fail(error, TRIA_E_STATE, "compaction: no row was appended yet");
    }
    if (state->in_prefill && !policy->prefill_compaction) {
        return tria_fail(error, TRIA_E_STATE, "compaction: a prompt is being filled");
    }
    if (state->in_flight_begin != TRIA_NO_POSITION && !policy->in_place) {
        return tria_fail(error, TRIA_E_STATE, "compaction: %lld tokens in flight would move",
                         (long long)state->t - state->in_flight_begin);
    }
    if (state->in_flight_begin < state->t - policy->n_recent) {
        return tria_fail(error, TRIA_E_STATE,
                         "compaction: %lld tokens in flight, of which only n_recent = %d are protected",
                         (long long)state->t - state->in_flight_begin, policy->n_recent);
    }
    return TRIA_OK;
}

static int32_t should_compact(const tria_sequence *sequence)
{
    const int32_t rows = tria_sequence_rows(sequence);
    if (tria_sequence_may_compact(sequence, NULL) != TRIA_OK) {
        return 0;
    }
    if (sequence->state.in_prefill) {
        return rows > tria_sequence_effective_budget(sequence);
    }
    return rows >= trigger(sequence);
}

/* Enters a handle that was passed as const: the guard is the only thing that changes. */
static bool enter_const(const tria_sequence *sequence, const char *call)
{
    return sequence != NULL && tria_guard_enter((tria_guard *)&sequence->guard, call, NULL) == TRIA_OK;
}

static void leave_const(const tria_sequence *sequence)
{
    tria_guard_leave((tria_guard *)&sequence->guard);
}

int32_t tria_sequence_should_compact(const tria_sequence *sequence)
{
    if (!enter_const(sequence, __func__)) {
        return -1;
    }
    const int32_t answer = should_compact(sequence);
    leave_const(sequence);
    return answer;
}

int32_t tria_sequence_room(const tria_sequence *sequence)
{
    if (!enter_const(sequence, __func__)) {
        return -1;
    }
    const int32_t room = sequence->policy.capacity - tria_sequence_rows(sequence);
    leave_const(sequence);
    return room;
}

int32_t tria_sequence_bound_rows(const tria_sequence *sequence)
{
    if (!enter_const(sequence, __func__)) {
        return -1;
    }
    const int64_t bucket = sequence->policy.row_bucket;
    const int64_t rounded = (tria_sequence_rows(sequence) + bucket - 1) / bucket * bucket;
    const int32_t capacity = sequence->policy.capacity;
    leave_const(sequence);
    return rounded < capacity ? (int32_t)rounded : capacity;
}

int32_t tria_sequence_intact_prefix(const tria_sequence *sequence)
{
    if (!enter_const(sequence, __func__)) {
        return -1;
    }
    const int32_t intact = smaller((int32_t)sequence->state.t, sequence->state.first_evicted);
    leave_const(sequence);
    return intact;
}

const int32_t *tria_sequence_positions(tria_sequence *sequence, int32_t layer, int32_t kv_head,
                                       int32_t *n_rows)
{
    const int32_t *positions = NULL;
    if (!enter_const(sequence, __func__)) {
        return NULL;
    }
    const tria_tables *tables = &sequence->tables;
    if (layer >= 0 && layer < tables->n_layers && kv_head >= 0 && kv_head < tables->kv_heads[layer]) {
        int32_t slot = kv_head;
        for (int32_t l = 0; l < layer; l++) {
            slot += tables->kv_heads[l];
        }
        const int32_t table = tables->slot_table[slot];
        if (table >= 0) {
            tria_sequence_settle(sequence);
            positions = sequence->positions + (size_t)table * (size_t)sequence->policy.capacity;
            *n_rows = sequence->counts[table];
        }
    }
    leave_const(sequence);
    return positions;
}

void tria_sequence_info_init(tria_sequence_info *info)
{
    memset(info, 0, sizeof(*info));
    info->struct_size = sizeof(*info);
}

tria_status tria_sequence_get_info(const tria_sequence *sequence, tria_sequence_info *info,
                                   tria_error *error)
{
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_get_info: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter((tria_guard *)&sequence->guard, __func__, error));
    const tria_sequence_state *state = &sequence->state;
    const tria_sequence_info full = {
        .struct_size = sizeof(full),
        .t = state->t,
        .rows = tria_sequence_rows(sequence),
        .capacity = sequence->policy.capacity,
        .budget = sequence->policy.budget,
        .effective_budget = tria_sequence_effective_budget(sequence),
        .trigger = trigger(sequence),
        .rows_left = state->rows_left,
        .prompt_rows = state->prompt_rows,
        .in_prefill = state->in_prefill,
        .in_flight =
            state->in_flight_begin == TRIA_NO_POSITION ? 0 : (int32_t)(state->t - state->in_flight_begin),
        .enabled = state->enabled,
        .n_compactions = state->n_compactions,
        .n_sets = sequence->tables.n_sets,
        .epoch = state->epoch,
        .evicted = state->evicted,
        .bytes_moved = state->bytes_moved,
        .n_nan = state->n_nan,
        .pages_freed = state->pages_freed,
        .peak_rows = state->peak_rows,
        .last_over_budget = state->last_over_budget,
        .seconds = state->seconds,
        .last_seconds = state->last_seconds,
    };
    leave_const(sequence);
    return tria_struct_export(info, &full, sizeof(full), sizeof(full), "tria_sequence_info", error);
}

int32_t tria_sequence_describe(const tria_sequence *sequence, char *buffer, size_t size)
{
    int32_t length;
    if (!enter_const(sequence, __func__)) {
        return (int32_t)snprintf(buffer, size, "policy: not a live sequence");
    }
    const tria_policy *p = &sequence->policy;
    const tria_sequence_state *state = &sequence->state;
    if (p->budget == 0 || !state->enabled) {
        length = (int32_t)snprintf(buffer, size, "policy: off (%s), capacity %d; t %lld, %d rows",
                                   p->budget == 0 ? "budget 0" : "disabled", p->capacity,
                                   (long long)state->t, tria_sequence_rows(sequence));
    } else {
        length = (int32_t)snprintf(
            buffer, size,
            "policy: %s, budget %d + interval %d of %d rows, sinks %d, recent %d, prompts %s, %s%s%s; "
            "t %lld, %d rows, %d compactions",
            tria_mode_name(p->mode), p->budget, p->interval, p->capacity, p->n_sink, p->n_recent,
            !p->protect_prefill ? "not protected"
            : p->count_prompt   ? "protected"
                                : "protected beside the budget",
            p->in_place                         ? "in place"
            : p->order == TRIA_ORDER_FILL_HOLES ? "fill-holes"
                                                : "stable",
            p->n_ramp > 0 ? ", ramped" : "", p->prefill_compaction ? ", compacting prefill" : "",
            (long long)state->t, tria_sequence_rows(sequence), state->n_compactions);
    }
    leave_const(sequence);
    return length;
}

/* host_edits.c - what else happens to a sequence: drafts, cuts, context shifts, copies. libtria is told
 * first: when it refuses, the engine's cache is still as it was. */
#include "host_internal.h"

#include <string.h>

/* The first row at or behind a position; positions ascend with the rows. */
static int32_t first_row_at(struct host *h, int64_t position)
{
    int32_t n = 0;
    const int32_t *positions = host_positions(h, &n);
    int32_t row = 0;
    while (row < n && positions[row] < position) {
        row++;
    }
    return row;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static tria_status remove_rows(struct host *h, llama_pos begin, llama_pos end, tria_error *error)
{
    if (!llama_memory_seq_rm(h->engine->memory, h->params.sequence_id, begin, end)) {
        return fail(error, TRIA_E_INTERNAL, "llama_memory_seq_rm() refused positions from %d on", begin);
    }
    return TRIA_OK;
}

/* ---- cuts ---- */

/* llama.cpp takes the next token only at the position behind its last row. */
static tria_status check_end(struct host *h, int64_t position, tria_error *error)
{
    if (position < 0 || position > h->stats.t) {
        return fail(error, TRIA_E_ARGUMENT, "position %lld is not in 0 ... %lld", (long long)position,
                    (long long)h->stats.t);
    }
    if (position > 0 && first_row_at(h, position) == first_row_at(h, position - 1)) {
        return fail(error, TRIA_E_STATE,
                    "no cut at position %lld: the row before it was evicted, and llama.cpp continues a "
                    "sequence only right behind its last row",
                    (long long)position);
    }
    return TRIA_OK;
}

/* libtria has made the cut. */
static tria_status follow_cut(struct host *h, int32_t rows, int32_t position, tria_error *error)
{
    h->rows = rows;
    h->stats.t = position;
    h->shared_end = smaller(h->shared_end, position);
    return remove_rows(h, position, -1, error);
}

tria_status host_trim(host *h, int32_t position, tria_error *error)
{
    tria_status status = check_end(h, position, error);
    const int32_t rows = first_row_at(h, position);
    if (status == TRIA_OK && h->sequence != NULL) {
        status = tria_sequence_trim(h->sequence, position, error);
    }
    if (status == TRIA_OK) {
        h->in_flight = 0;
        status = follow_cut(h, rows, position, error);
    }
    return status;
}

tria_status host_rollback(host *h, int32_t n, tria_error *error)
{
    const int64_t position = h->stats.t - n;
    const int32_t rows = first_row_at(h, position);
    if (n < 0) {
        return fail(error, TRIA_E_ARGUMENT, "%d tokens cannot be taken back", n);
    }
    tria_status status = check_end(h, position, error);
    if (status == TRIA_OK && h->sequence != NULL) {
        status = tria_sequence_rollback(h->sequence, n, error);
    }
    if (status == TRIA_OK) {
        h->in_flight -= smaller(h->in_flight, n);
        status = follow_cut(h, rows, (int32_t)position, error);
    }
    return status;
}

/* ---- drafts ---- */

tria_status host_draft(host *h, const llama_token *tokens, int32_t n, tria_error *error)
{
    if (n < 1 || n > h->params.in_flight || n > h->engine->batch) {
        return fail(error, TRIA_E_ARGUMENT, "a draft of %d tokens, at most %d may be in flight", n,
                    smaller(h->params.in_flight, h->engine->batch));
    }
    tria_status status = host_decode_some(h, tokens, n, false, error);
    if (status == TRIA_OK) {
        h->in_flight = n;
    }
    if (status == TRIA_OK && h->sequence != NULL) {
        status = tria_sequence_set_in_flight(h->sequence, n, error);
    }
    return status;
}

tria_status host_confirm(host *h, int32_t n_accepted, tria_error *error)
{
    if (n_accepted < 0 || n_accepted > h->in_flight) {
        return fail(error, TRIA_E_ARGUMENT, "%d tokens confirmed, %d are in flight", n_accepted,
                    h->in_flight);
    }
    tria_status status = host_rollback(h, h->in_flight - n_accepted, error);
    if (status == TRIA_OK && h->sequence != NULL) {
        status = tria_sequence_set_in_flight(h->sequence, 0, error);
    }
    if (status == TRIA_OK) {
        h->in_flight = 0;
        status = host_evict_if_due(h, error);
    }
    return status;
}

/* ---- context shift ---- */

tria_status host_shift(host *h, int32_t begin, int32_t end, tria_error *error)
{
    if (begin < 0 || end <= begin || end >= h->stats.t) {
        return fail(error, TRIA_E_ARGUMENT, "no shift over [%d, %d): the last row, at %lld, must stay",
                    begin, end, (long long)h->stats.t - 1);
    }
    if (!llama_memory_can_shift(h->engine->memory)) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "llama.cpp cannot shift the positions of this model's cache");
    }
    if (h->shared_end > end) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "no shift over [%d, %d): later rows, up to position %d, may lie in cells shared with "
                    "another sequence, and a cell has one position",
                    begin, end, h->shared_end - 1);
    }
    const int32_t first = first_row_at(h, begin);
    const int32_t next = first_row_at(h, end);
    tria_status status =
        h->sequence != NULL ? tria_sequence_shift(h->sequence, begin, end, error) : TRIA_OK;
    if (status == TRIA_OK) {
        status = remove_rows(h, begin, end, error);
    }
    if (status == TRIA_OK) {
        llama_memory_seq_add(h->engine->memory, h->params.sequence_id, end, -1, begin - end);
        memmove(h->cells + first, h->cells + next, (size_t)(h->rows - next) * sizeof(*h->cells));
        h->rows -= next - first;
        h->stats.t -= end - begin;
        h->shared_end = smaller(h->shared_end, begin);
        h->shift_pending = true;
    }
    return status;
}

/* ---- copies ---- */

tria_status host_fork(host *h, llama_seq_id sequence_id, host **copy, tria_error *error)
{
    if (!h->engine->shared_cells) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "no fork: the engine's sequences have cells of their own (shared_cells is off)");
    }
    if (sequence_id >= 0 && sequence_id < h->engine->n_sequences &&
        llama_memory_seq_pos_max(h->engine->memory, sequence_id) >= 0) {
        return fail(error, TRIA_E_STATE, "no fork: sequence %d is in use", sequence_id);
    }
    host_params params = h->params;
    params.sequence_id = sequence_id;
    host *fork = NULL;
    tria_status status = host_create(h->engine, h->observer, &params, &fork, error);
    if (status == TRIA_OK && h->sequence != NULL) {
        tria_sequence_destroy(fork->sequence);
        fork->sequence = NULL;
        status = tria_sequence_fork(h->sequence, params.env, &fork->sequence, error);
    }
    if (status == TRIA_OK && h->queries != NULL) {
        status = tria_accumulator_merge(fork->queries, h->queries, error);
    }
    if (status != TRIA_OK) {
        host_destroy(fork);
        return status;
    }
    llama_memory_seq_cp(h->engine->memory, h->params.sequence_id, sequence_id, -1, -1);
    memcpy(fork->cells, h->cells, (size_t)h->rows * sizeof(*h->cells));
    fork->rows = h->rows;
    fork->stats.t = h->stats.t;
    fork->stats.peak_rows = h->rows;
    fork->in_flight = h->in_flight;
    fork->shift_pending = h->shift_pending;
    h->shared_end = (int32_t)h->stats.t;
    fork->shared_end = h->shared_end;
    *copy = fork;
    return TRIA_OK;
}

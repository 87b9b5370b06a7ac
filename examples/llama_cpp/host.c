/* host.c - drives libtria's policy from llama.cpp's decode loop and frees the cells it gives up. */
#include "host_internal.h"

#include "controls.h"

#include <stdlib.h>
#include <string.h>

static const char *const policy_names[] = {"none", "tria", "random", "recent"};

const char *host_policy_name(int32_t policy)
{
    return policy >= 0 && policy <= HOST_POLICY_RECENT ? policy_names[policy] : NULL;
}

int32_t host_policy_from_name(const char *name)
{
    for (int32_t i = 0; i <= HOST_POLICY_RECENT; i++) {
        if (strcmp(name, policy_names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- creation ---- */

static tria_status check_params(const engine *e, const host_params *params, tria_error *error)
{
    if (params->sequence_id < 0 || params->sequence_id >= e->n_sequences) {
        return fail(error, TRIA_E_ARGUMENT, "sequence %d: the engine has %d", params->sequence_id,
                    e->n_sequences);
    }
    if (params->policy != HOST_POLICY_NONE && params->mode != TRIA_MODE_UNION &&
        params->mode != TRIA_MODE_GLOBAL) {
        return fail(error, TRIA_E_ARGUMENT,
                    "mode %s: a llama.cpp cell is shared by all layers and heads, use union or global",
                    tria_mode_name(params->mode));
    }
    if (params->policy != HOST_POLICY_NONE && params->budget <= 0) {
        return fail(error, TRIA_E_ARGUMENT, "policy %s needs a budget above 0 (policy none evicts nothing)",
                    host_policy_name(params->policy));
    }
    if (params->policy != HOST_POLICY_NONE && params->n_recent < 1) {
        return fail(error, TRIA_E_ARGUMENT,
                    "n_recent 0: llama.cpp continues a sequence only right behind its last row, which must "
                    "stay");
    }
    if (params->bound_prefill && params->policy == HOST_POLICY_NONE) {
        return fail(error, TRIA_E_ARGUMENT, "a bounded prefill needs a policy that evicts");
    }
    if (params->trace != NULL && params->policy != HOST_POLICY_TRIA) {
        return fail(error, TRIA_E_ARGUMENT, "a trace records scores, policy %s has none",
                    host_policy_name(params->policy));
    }
    if (params->trace != NULL && params->device != NULL &&
        strcmp(tria_device_backend(params->device), "cpu") != 0) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "a trace is recorded on the CPU, not on backend %s (which `tria replay` can use)",
                    tria_device_backend(params->device));
    }
    return TRIA_OK;
}

tria_status host_create(engine *e, observer *o, const host_params *params, host **out, tria_error *error)
{
    tria_status status = check_params(e, params, error);
    if (status != TRIA_OK) {
        return status;
    }
    struct host *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        return fail(error, TRIA_E_MEMORY, "out of memory");
    }
    h->engine = e;
    h->observer = o;
    h->params = *params;
    h->random_state = params->seed;
    h->layers = calloc((size_t)o->n_layers, sizeof(*h->layers));
    h->cells = calloc((size_t)e->cells, sizeof(*h->cells));
    h->identity = calloc((size_t)e->cells, sizeof(*h->identity));
    if (h->layers == NULL || h->cells == NULL || h->identity == NULL) {
        status = fail(error, TRIA_E_MEMORY, "out of memory");
    } else if (params->policy != HOST_POLICY_NONE) {
        status = host_create_policy(h, error);
    }
    if (status == TRIA_OK) {
        status = host_begin_queries(h, error);
    }
    if (status != TRIA_OK) {
        host_destroy(h);
        return status;
    }
    for (int32_t i = 0; i < e->cells; i++) {
        h->identity[i] = i;
    }
    observer_clear(o);
    *out = h;
    return TRIA_OK;
}

void host_destroy(host *h)
{
    if (h == NULL) {
        return;
    }
    tria_plan_destroy(h->plan);
    tria_sequence_destroy(h->sequence);
    host_end_queries(h);
    free(h->layers);
    free(h->cells);
    free(h->identity);
    free(h);
}

/* ---- tokens come in ---- */

/* The tokens llama.cpp has just decoded become rows; the observer saw which cells they went to. */
static tria_status take_rows(struct host *h, int32_t n, tria_error *error)
{
    const observer *o = h->observer;
    if (o->out_of_memory || o->n_cells != n || o->n_positions != n) {
        return fail(error, TRIA_E_INTERNAL,
                    "%d tokens were decoded, but %d cells and %d positions were seen", n, o->n_cells,
                    o->n_positions);
    }
    for (int32_t i = 0; i < n; i++) {
        if (o->positions[i] != h->stats.t + i || o->cells[i] < 0 || o->cells[i] >= h->engine->all_cells) {
            return fail(error, TRIA_E_STATE,
                        "a token was rotated at position %d in cell %d, expected position %lld: was the "
                        "engine's cache cut or shifted without host_trim() or host_shift()?",
                        o->positions[i], o->cells[i], (long long)h->stats.t + i);
        }
        h->cells[h->rows + i] = o->cells[i];
    }
    if (h->sequence != NULL) {
        const tria_status status = tria_sequence_append(h->sequence, n, error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    h->rows += n;
    h->stats.t += n;
    if (h->rows > h->stats.peak_rows) {
        h->stats.peak_rows = h->rows;
    }
    return TRIA_OK;
}

tria_status host_decode_some(struct host *h, const llama_token *tokens, int32_t n, bool in_prompt,
                             tria_error *error)
{
    if (h->in_flight > 0) {
        return fail(error, TRIA_E_STATE, "%d drafted tokens wait for host_confirm()", h->in_flight);
    }
    if (n > h->engine->cells - h->rows) {
        return fail(error, TRIA_E_CAPACITY, "no free KV cells for %d more tokens: %d of %d are in use", n,
                    h->rows, h->engine->cells);
    }
    observer_clear(h->observer);
    if (h->params.capture != NULL) {
        h->params.capture->accumulator = h->queries; /* each sequence's queries are its own */
    }
    const double begin = seconds_now();
    tria_status status = engine_decode(h->engine, h->params.sequence_id, tokens, n, error);
    const double end = seconds_now();
    if (status == TRIA_OK && h->queries != NULL && h->params.capture->status != TRIA_OK) {
        *error = h->params.capture->error;
        status = error->code;
    }
    if (status == TRIA_OK) {
        status = take_rows(h, n, error);
    }
    if (status != TRIA_OK) {
        /* What libtria was not told of must not stay in the cache either. */
        llama_memory_seq_rm(h->engine->memory, h->params.sequence_id, (llama_pos)h->stats.t, -1);
        return status;
    }
    h->shift_pending = false; /* llama.cpp rotated shifted keys before it decoded */
    if (n == 1) {
        h->stats.decode_seconds += end - begin;
        h->stats.decoded++;
    }
    if (h->params.trace != NULL) {
        status = tria_trace_tokens(h->params.trace, h->stats.t - n, tokens, n, in_prompt, error);
    }
    h->stats.tria_seconds += seconds_now() - end;
    h->stats.total_seconds += seconds_now() - begin;
    return status;
}

/* Most tokens of a prompt to decode at once. */
static int32_t block_size(const struct host *h)
{
    const int32_t block = h->params.bound_prefill ? h->params.interval : h->engine->batch;
    return block < h->engine->batch ? block : h->engine->batch;
}

tria_status host_prompt_only(host *h, const llama_token *tokens, int32_t n, tria_error *error)
{
    if (h->sequence != NULL) {
        const tria_status status = tria_sequence_begin_prefill(h->sequence, n, error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    tria_status status = TRIA_OK;
    for (int32_t done = 0; status == TRIA_OK && done < n;) {
        const int32_t part = n - done < block_size(h) ? n - done : block_size(h);
        if (h->params.bound_prefill && tria_sequence_room(h->sequence) < part) {
            status = host_evict_if_due(h, error);
        }
        if (status == TRIA_OK) {
            status = host_decode_some(h, tokens + done, part, true, error);
        }
        done += part;
    }
    if (h->sequence != NULL) {
        /* After a failure the prompt is as much as was written. */
        const tria_status ended = tria_sequence_end_prefill(h->sequence, status == TRIA_OK ? error : NULL);
        status = status == TRIA_OK ? ended : status;
    }
    return status;
}

tria_status host_prompt(host *h, const llama_token *tokens, int32_t n, tria_error *error)
{
    const tria_status status = host_prompt_only(h, tokens, n, error);
    return status == TRIA_OK ? host_evict_if_due(h, error) : status;
}

tria_status host_decode(host *h, llama_token token, tria_error *error)
{
    const tria_status status = host_decode_some(h, &token, 1, false, error);
    return status == TRIA_OK ? host_evict_if_due(h, error) : status;
}

/* ---- rows go ---- */

static tria_status choose(struct host *h, tria_event *event, tria_keep *keep, tria_error *error)
{
    if (h->params.policy == HOST_POLICY_TRIA) {
        tria_batch batch;
        tria_batch_init(&batch);
        batch.events = event;
        batch.n_events = 1;
        tria_status status = host_blend_queries(h, error);
        if (status == TRIA_OK) {
            status = tria_plan_select(h->plan, &batch, NULL, keep, error);
        }
        return status == TRIA_OK ? tria_plan_synchronize(h->plan, error) : status;
    }
    const control_rules rules = {h->params.budget, h->params.n_sink, h->params.n_recent,
                                 h->params.protect_prefill};
    if (h->params.policy == HOST_POLICY_RANDOM) {
        control_random(event, &rules, &h->random_state, keep);
    } else {
        control_recent(event, &rules, keep);
    }
    return TRIA_OK;
}

/* Frees the cells of the rows between the kept ones and closes ranks in the table of cells. Positions
 * ascend with the rows, so rows in a run that goes are exactly those in a range of positions. */
static tria_status free_cells(struct host *h, const int32_t *positions, const tria_keep *keep,
                              tria_error *error)
{
    const int32_t count = keep->counts[0];
    int32_t row = 0;
    for (int32_t i = 0; i <= count; i++) {
        const int32_t next = i < count ? keep->rows[i] : h->rows;
        if (next > row && !llama_memory_seq_rm(h->engine->memory, h->params.sequence_id, positions[row],
                                               positions[next - 1] + 1)) {
            return fail(error, TRIA_E_INTERNAL, "llama_memory_seq_rm() refused positions %d ... %d",
                        positions[row], positions[next - 1]);
        }
        row = next + 1;
    }
    for (int32_t i = 0; i < count; i++) {
        h->cells[i] = h->cells[keep->rows[i]];
    }
    return TRIA_OK;
}

static tria_status evict(struct host *h, tria_error *error)
{
    tria_event event;
    tria_event_init(&event);
    tria_keep keep;
    tria_keep_init(&keep);
    const tria_kv_view view = host_view(h, h->rows);
    tria_status status = tria_sequence_event(h->sequence, &event, &keep, error);
    event.kv = &view;
    if (status == TRIA_OK) {
        status = choose(h, &event, &keep, error);
    }
    if (status == TRIA_OK) {
        status = tria_sequence_check_keep(h->sequence, &keep, error);
    }
    if (status == TRIA_OK && h->params.trace != NULL) {
        status = tria_trace_begin(h->params.trace, h->plan, &event, &keep, error);
    }
    if (status == TRIA_OK) {
        status = free_cells(h, event.positions, &keep, error);
    }
    const int32_t count = status == TRIA_OK ? keep.counts[0] : h->rows;
    if (status == TRIA_OK) {
        status = tria_sequence_commit(h->sequence, &keep, NULL, error);
    }
    if (status == TRIA_OK) {
        h->stats.n_evictions++;
        h->stats.evicted_rows += h->rows - count;
        h->rows = count;
    }
    if (status == TRIA_OK && h->params.trace != NULL) {
        status = tria_trace_end(h->params.trace, NULL, error);
    }
    return status;
}

tria_status host_evict_if_due(host *h, tria_error *error)
{
    const double begin = seconds_now();
    if (h->sequence == NULL || h->shift_pending || tria_sequence_should_compact(h->sequence) != 1) {
        return TRIA_OK;
    }
    host_eviction eviction = {0, h->stats.t, h->rows, 0, 0};
    const tria_status status = evict(h, error);
    const double seconds = seconds_now() - begin;
    h->stats.tria_seconds += seconds;
    h->stats.total_seconds += seconds;
    if (status == TRIA_OK && h->params.on_eviction != NULL) {
        eviction.number = h->stats.n_evictions;
        eviction.rows_after = h->rows;
        eviction.seconds = seconds;
        h->params.on_eviction(h->params.eviction_context, &eviction);
    }
    return status;
}

tria_status host_reset(host *h, uint64_t seed, tria_error *error)
{
    if (h->engine->n_sequences == 1) {
        /* Unlike a removal, this gives the next run the same cells in the same order. */
        llama_memory_clear(h->engine->memory, true);
    } else {
        llama_memory_seq_rm(h->engine->memory, h->params.sequence_id, -1, -1);
    }
    observer_clear(h->observer);
    h->rows = 0;
    h->in_flight = 0;
    h->shared_end = 0;
    h->shift_pending = false;
    h->stats.t = 0;
    h->random_state = seed;
    const tria_status status = host_begin_queries(h, error);
    return status == TRIA_OK && h->sequence != NULL ? tria_sequence_reset(h->sequence, error) : status;
}

/* ---- questions ---- */

const int32_t *host_positions(host *h, int32_t *n)
{
    if (h->sequence != NULL) {
        return tria_sequence_positions(h->sequence, 0, 0, n);
    }
    *n = h->rows;
    return h->identity;
}

void host_get_stats(const host *h, host_stats *stats)
{
    *stats = h->stats;
    stats->rows = h->rows;
}

/* ---- snapshots ---- */

struct host_snapshot {
    int32_t rows;
    size_t row_bytes;
    uint8_t *keys; /* [rows][row_bytes] of the first layer, in row order */
    size_t size;
    uint8_t *state; /* llama.cpp's own serialization of the sequence */
};

static const uint8_t *key_row(const struct host *h, int32_t cell)
{
    const struct ggml_tensor *cache = h->observer->cache[h->observer->first_layer];
    return (const uint8_t *)cache->data + (size_t)cell * cache->nb[1];
}

tria_status host_save(host *h, host_snapshot **snapshot, tria_error *error)
{
    if (h->rows != h->stats.t) {
        return fail(error, TRIA_E_STATE, "a snapshot must be taken before anything is evicted");
    }
    host_snapshot *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return fail(error, TRIA_E_MEMORY, "out of memory");
    }
    s->rows = h->rows;
    s->row_bytes = h->observer->cache[h->observer->first_layer]->nb[1];
    s->keys = malloc((size_t)s->rows * s->row_bytes + 1);
    s->size = llama_state_seq_get_size(h->engine->context, h->params.sequence_id);
    s->state = malloc(s->size + 1);
    if (s->keys == NULL || s->state == NULL) {
        host_snapshot_destroy(s);
        return fail(error, TRIA_E_MEMORY, "out of memory for a snapshot of %d rows", h->rows);
    }
    for (int32_t row = 0; row < s->rows; row++) {
        memcpy(s->keys + (size_t)row * s->row_bytes, key_row(h, h->cells[row]), s->row_bytes);
    }
    if (llama_state_seq_get_data(h->engine->context, s->state, s->size, h->params.sequence_id) != s->size) {
        host_snapshot_destroy(s);
        return fail(error, TRIA_E_INTERNAL, "llama.cpp could not save its state");
    }
    *snapshot = s;
    return TRIA_OK;
}

tria_status host_restore(host *h, const host_snapshot *snapshot, uint64_t seed, tria_error *error)
{
    tria_status status = host_reset(h, seed, error);
    if (status != TRIA_OK) {
        return status;
    }
    if (llama_state_seq_set_data(h->engine->context, snapshot->state, snapshot->size,
                                 h->params.sequence_id) != snapshot->size) {
        return fail(error, TRIA_E_INTERNAL, "llama.cpp could not restore its state");
    }
    /* An empty cache is filled from cell 0 on. That is not promised anywhere, so look. */
    for (int32_t row = 0; row < snapshot->rows; row++) {
        h->cells[row] = row;
        if (memcmp(key_row(h, row), snapshot->keys + (size_t)row * snapshot->row_bytes,
                   snapshot->row_bytes) != 0) {
            return fail(error, TRIA_E_INTERNAL, "llama.cpp restored row %d into another cell", row);
        }
    }
    if (h->sequence != NULL) {
        status = tria_sequence_begin_prefill(h->sequence, snapshot->rows, error);
        if (status == TRIA_OK) {
            status = tria_sequence_append(h->sequence, snapshot->rows, error);
        }
        if (status == TRIA_OK) {
            status = tria_sequence_end_prefill(h->sequence, error);
        }
    }
    h->rows = snapshot->rows;
    h->stats.t = snapshot->rows;
    if (h->rows > h->stats.peak_rows) {
        h->stats.peak_rows = h->rows;
    }
    return status;
}

void host_snapshot_destroy(host_snapshot *snapshot)
{
    if (snapshot != NULL) {
        free(snapshot->keys);
        free(snapshot->state);
        free(snapshot);
    }
}

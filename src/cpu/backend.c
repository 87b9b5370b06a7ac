/* backend.c - the CPU backend: memory, workers, the order of steps. */
#include "compact_internal.h"
#include "cpu/host_device.h"
#include "cpu/pipeline.h"
#include "cpu/terms.h"

#include <string.h>

float *tria_cpu_final(const tria_cpu_context *c, int32_t set)
{
    return c->final + ((int64_t)c->event_index * c->plan->n_sets + set) * c->stride;
}

float *tria_cpu_grouped(const tria_cpu_context *c, int32_t slot)
{
    return c->scores_reach_sets ? tria_cpu_final(c, c->plan->kv[slot].set) : c->grouped + slot * c->stride;
}

/* A worker takes jobs until there are none left, so results need not know how many workers there are. */
static void work(void *argument, int32_t index)
{
    tria_cpu_context *c = argument;
    for (;;) {
        const int32_t job = atomic_fetch_add_explicit(&c->next_job, 1, memory_order_relaxed);
        if (job >= c->n_jobs) {
            return;
        }
        double start = tria_cpu_now();
        c->job(c, &c->workers[index], job);
        if (c->part != TRIA_PART_SCORE) { /* scoring keeps its own time */
            tria_cpu_lap(&c->workers[index], c->part, &start);
        }
    }
}

void tria_cpu_run(tria_cpu_context *c, tria_cpu_job job, int32_t n_jobs, tria_part part)
{
    c->job = job;
    c->part = part;
    c->n_jobs = n_jobs;
    atomic_store(&c->next_job, 0);
    c->parallel_for(c->parallel_context, c->n_workers < n_jobs ? c->n_workers : n_jobs, work, c);
}

static void restart_clock(tria_cpu_context *c, tria_part part)
{
    for (int32_t i = 0; i < c->n_workers; i++) {
        c->workers[i].seconds[part] = 0.0;
    }
}

/* Of a part, summed over the workers. */
static double cpu_seconds(void *context, int32_t part)
{
    const tria_cpu_context *c = context;
    double seconds = part == TRIA_PART_COMPACT ? c->compact_seconds : 0.0;
    for (int32_t i = 0; i < c->n_workers && part < TRIA_PART_COMPACT; i++) {
        seconds += c->workers[i].seconds[part];
    }
    return seconds;
}

/* What `score` leaves behind for one event. */
static tria_status score_event(tria_cpu_context *c, void *stream, tria_error *error)
{
    const tria_v1_plan *plan = c->plan;
    const tria_v1_event *event = c->event;
    const tria_scores *scores = event->scores;
    const bool wants_scores = scores != NULL;

    c->n_nan[c->event_index] = 0;
    c->zero_heads[c->event_index] = 0;
    if (!wants_scores && !tria_can_evict(plan, event)) {
        return TRIA_OK;
    }
    for (int64_t i = 0; i < c->stride; i++) {
        atomic_store_explicit(&c->bad_rows[i], 0, memory_order_relaxed);
    }
    atomic_store(&c->n_zero_heads, 0);
    c->host->fold(plan, event->event->t, event->event->terms == NULL, c->lin);
    tria_cpu_run(c, tria_cpu_score_heads, c->n_score_jobs, TRIA_PART_SCORE);
    for (int64_t i = 0; i < c->stride; i++) {
        c->n_nan[c->event_index] += atomic_load_explicit(&c->bad_rows[i], memory_order_relaxed);
    }
    c->zero_heads[c->event_index] = atomic_load(&c->n_zero_heads);
    if (event->keep == NULL && (scores == NULL || scores->final_scores == NULL)) {
        return TRIA_OK;
    }
    tria_cpu_run(c, tria_cpu_aggregate_set, plan->n_sets, TRIA_PART_NORMALIZE);
    if (tria_needs_reduce(plan)) {
        TRIA_TRY(tria_cpu_reduce(c, stream, error));
    }
    if (plan->params->pool_radius > 0) {
        tria_cpu_run(c, tria_cpu_pool_set, plan->n_sets, TRIA_PART_NORMALIZE);
    }
    for (int32_t set = 0; scores != NULL && scores->final_scores != NULL && set < plan->n_sets; set++) {
        const int32_t n = event->rows[tria_first_slot(plan, set)];
        memcpy((float *)scores->final_scores + set * scores->row_stride, tria_cpu_final(c, set),
               sizeof(float) * (size_t)n);
    }
    return TRIA_OK;
}

static tria_status cpu_score(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                             tria_error *error)
{
    tria_cpu_context *c = context;
    for (int32_t i = 0; i < n_events; i++) {
        if (events[i].event->device != NULL) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "event %d: device tables on the CPU", i);
        }
        if (events[i].scores != NULL && events[i].scores->dtype != TRIA_DTYPE_F32) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "event %d: the CPU backend's scores are f32", i);
        }
        const tria_status status = tria_terms_check(events[i].event->terms, c->plan, error);
        if (status != TRIA_OK) {
            return tria_fail_in(error, status, "event %d", i);
        }
    }
    restart_clock(c, TRIA_PART_SCORE);
    restart_clock(c, TRIA_PART_NORMALIZE);
    for (int32_t i = 0; i < n_events; i++) {
        c->event = &events[i];
        c->event_index = i;
        TRIA_TRY(score_event(c, stream, error));
    }
    return TRIA_OK;
}

static tria_status cpu_select(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                              tria_error *error)
{
    tria_cpu_context *c = context;
    (void)stream;
    (void)error;
    restart_clock(c, TRIA_PART_SELECT);
    for (int32_t i = 0; i < n_events; i++) {
        tria_keep *keep = events[i].keep;
        c->event = &events[i];
        c->event_index = i;
        atomic_store(&c->over_budget, 0);
        tria_cpu_run(c, tria_cpu_select_set, c->plan->n_sets, TRIA_PART_SELECT);
        keep->over_budget = atomic_load(&c->over_budget);
        keep->n_nan = c->n_nan[i];
        keep->n_zero_heads = c->zero_heads[i];
        keep->n_uncalibrated_layers = tria_report_uncalibrated(c->plan, keep->uncalibrated_layers);
    }
    return TRIA_OK;
}

static tria_status cpu_compact(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                               tria_error *error)
{
    tria_cpu_context *c = context;
    const tria_compact_context lent = {c->parallel_for, c->parallel_context, c->compact_scratch, false};
    (void)stream;
    for (int32_t i = 0; i < n_events; i++) {
        if (events[i].event->device != NULL) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "event %d: device tables on the CPU", i);
        }
    }
    const double start = tria_cpu_now();
    const tria_status status = tria_cpu_compact(c->plan, events, n_events, &lent, error);
    c->compact_seconds = tria_cpu_now() - start;
    return status;
}

enum { N_SHARED = 15, N_WORKER = 18 };

static void list_shared(tria_cpu_context *c, tria_array specs[N_SHARED])
{
    const tria_v1_plan *plan = c->plan;
    const size_t stride = (size_t)c->stride;
    const size_t n = (size_t)plan->params->max_sequences;
    const size_t sums = c->has_sums ? (size_t)plan->n_kv * stride : 0;
    const tria_array list[N_SHARED] = {
        {(void **)&c->workers, (size_t)c->n_workers, sizeof(*c->workers)},
        {(void **)&c->lin, (size_t)plan->lin_count, sizeof(float)},
        {(void **)&c->content, (size_t)plan->lin_count, sizeof(float)},
        {(void **)&c->score_jobs, (size_t)plan->n_kv + 1, sizeof(int32_t)},
        {(void **)&c->grouped, c->scores_reach_sets ? 0 : (size_t)plan->n_kv * stride, sizeof(float)},
        {(void **)&c->sums, sums, sizeof(float)},
        {(void **)&c->counts, sums, sizeof(float)},
        {(void **)&c->final, n * (size_t)plan->n_sets * stride, sizeof(float)},
        {(void **)&c->reduce, tria_needs_reduce(plan) ? (size_t)plan->n_sets * stride : 0, sizeof(float)},
        {(void **)&c->zeros, stride, sizeof(float)},
        {(void **)&c->bad_rows, stride, sizeof(uint8_t)},
        {(void **)&c->n_nan, n, sizeof(int32_t)},
        {(void **)&c->zero_heads, n, sizeof(int32_t)},
        {(void **)&c->rotation, plan->k_state == TRIA_K_RAW ? (size_t)plan->n_layers : 0, sizeof(float *)},
        {&c->compact_scratch, tria_compact_scratch_count(plan), sizeof(int32_t)},
    };
    memcpy(specs, list, sizeof(list));
}

static void list_worker(const tria_cpu_context *c, tria_worker *w, tria_array specs[N_WORKER])
{
    const tria_v1_plan *plan = c->plan;
    const size_t stride = (size_t)c->stride;
    const size_t heads = (size_t)c->max_job_heads;
    const size_t slots = (size_t)c->max_job_slots;
    int32_t dim = 1;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        dim = plan->layers[l].k.dim > dim ? plan->layers[l].k.dim : dim;
    }
    const size_t row = (size_t)dim > stride ? (size_t)dim : stride;
    const tria_array list[N_WORKER] = {
        {(void **)&w->raw, heads * stride, sizeof(float)},
        {(void **)&w->out, heads, sizeof(float *)},
        {(void **)&w->lin, heads, sizeof(float *)},
        {(void **)&w->mag, heads, sizeof(float *)},
        {(void **)&w->terms, heads, sizeof(float *)},
        {(void **)&w->new_terms, heads, sizeof(float *)},
        {(void **)&w->content, heads, sizeof(float *)},
        {(void **)&w->has_content, heads, sizeof(uint8_t)},
        {(void **)&w->moments, heads, sizeof(tria_moments)},
        {(void **)&w->scales, heads, sizeof(tria_head_scale)},
        {(void **)&w->jobs, slots, sizeof(tria_score_job)},
        {(void **)&w->new_jobs, slots, sizeof(tria_score_job)},
        {(void **)&w->key_rows, slots, sizeof(tria_rows)},
        {(void **)&w->slots, slots, sizeof(int32_t)},
        {(void **)&w->mask, stride, sizeof(uint8_t)},
        {(void **)&w->words, 2 * stride, sizeof(uint32_t)},
        {(void **)&w->row, row, sizeof(float)},
        {&w->kernel_scratch, tria_score_scratch_size(dim, plan->max_group, plan->n_lin, c->max_job_slots),
         1},
    };
    memcpy(specs, list, sizeof(list));
}

static size_t rotation_floats(const tria_v1_plan *plan, int32_t layer)
{
    return (size_t)3 * TRIA_ROTATION_DIGITS * (size_t)plan->layers[layer].n_freq * 2;
}

static bool owns_rotation(const tria_v1_plan *plan, int32_t layer)
{
    return plan->layers[layer].phase_layer == layer && plan->layers[layer].n_freq > 0 &&
           plan->layers[layer].n_q_heads > 0;
}

static void cpu_plan_destroy(void *context)
{
    tria_cpu_context *c = context;
    const tria_env *env = c->host->env;
    tria_array shared[N_SHARED];
    for (int32_t i = 0; c->workers != NULL && i < c->n_workers; i++) {
        tria_array specs[N_WORKER];
        list_worker(c, &c->workers[i], specs);
        tria_arrays_release(env, specs, N_WORKER);
    }
    for (int32_t l = 0; c->rotation != NULL && l < c->plan->n_layers; l++) {
        if (owns_rotation(c->plan, l)) {
            tria_free(env, c->rotation[l]);
        }
    }
    list_shared(c, shared);
    tria_arrays_release(env, shared, N_SHARED);
    tria_pool_destroy(c->pool);
    tria_free(env, c);
}

/*
 * Which heads are scored together: of one layer, because they may lie side by side, and as many as still
 * give every worker several jobs. Fills `first`, [n_kv + 1], unless it is NULL.
 */
static void divide_slots(tria_cpu_context *c, const tria_v1_plan *plan, int32_t *first)
{
    const int32_t even = plan->n_kv / (4 * c->n_workers);
    const int32_t most = even > 1 ? even : 1;
    int32_t n_slots = 0;
    int32_t n_heads = 0;
    c->n_score_jobs = 0;
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (s == 0 || n_slots == most || plan->kv[s].layer != plan->kv[s - 1].layer) {
            if (first != NULL) {
                first[c->n_score_jobs] = s;
            }
            c->n_score_jobs++;
            n_slots = 0;
            n_heads = 0;
        }
        n_slots++;
        n_heads += plan->kv[s].n_calibrated;
        c->max_job_slots = n_slots > c->max_job_slots ? n_slots : c->max_job_slots;
        c->max_job_heads = n_heads > c->max_job_heads ? n_heads : c->max_job_heads;
    }
    if (first != NULL) {
        first[c->n_score_jobs] = plan->n_kv;
    }
}

static void shape(tria_cpu_context *c, const tria_v1_plan *plan)
{
    c->plan = plan;
    c->stride = tria_row_stride(plan->max_rows);
    c->n_workers = plan->params->n_threads > 1 ? plan->params->n_threads : 1;
    c->scores_reach_sets = plan->params->mode == TRIA_MODE_PER_LAYER_PER_HEAD;
    for (int32_t s = 0; s < plan->n_kv; s++) {
        c->has_sums = c->has_sums || plan->kv[s].borrows;
    }
    divide_slots(c, plan, NULL);
}

static bool allocate_all(tria_cpu_context *c)
{
    const tria_env *env = c->host->env;
    const tria_v1_plan *plan = c->plan;
    tria_array shared[N_SHARED];
    list_shared(c, shared);
    if (tria_arrays_allocate(env, shared, N_SHARED, "the CPU backend", NULL) != TRIA_OK) {
        return false;
    }
    divide_slots(c, plan, c->score_jobs);
    /* Content terms are what the position does not change; all else cancels exactly. */
    c->host->fold(plan, 0, 0, c->lin);
    c->host->fold(plan, 0, 1, c->content);
    for (int64_t i = 0; i < plan->lin_count; i++) {
        c->content[i] -= c->lin[i];
    }
    for (int32_t i = 0; i < c->n_workers; i++) {
        tria_array specs[N_WORKER];
        list_worker(c, &c->workers[i], specs);
        if (tria_arrays_allocate(env, specs, N_WORKER, "the CPU backend", NULL) != TRIA_OK) {
            return false;
        }
    }
    for (int32_t l = 0; c->rotation != NULL && l < plan->n_layers; l++) {
        if (owns_rotation(plan, l)) {
            c->rotation[l] = tria_alloc(env, rotation_floats(plan, l), sizeof(float));
            if (c->rotation[l] == NULL) {
                return false;
            }
            c->host->rotation_tables(plan, l, c->rotation[l]);
        } else {
            c->rotation[l] = c->rotation[plan->layers[l].phase_layer];
        }
    }
    return true;
}

static tria_status cpu_plan_create(void *device, const tria_v1_plan *plan, void **context,
                                   tria_error *error)
{
    const tria_v1_host *host = device;
    tria_cpu_context *c = tria_alloc(host->env, 1, sizeof(*c));
    tria_status status = TRIA_OK;
    if (c == NULL) {
        return tria_fail_memory(error, sizeof(*c), "the CPU backend");
    }
    c->host = host;
    c->kernels = tria_cpu_kernels_for(tria_cpu_features());
    shape(c, plan);
    if (plan->params->parallel_for != NULL) {
        c->parallel_for = plan->params->parallel_for;
        c->parallel_context = plan->params->parallel_context;
    } else {
        status = tria_pool_create(host->env, c->n_workers, &c->pool, error);
        c->parallel_for = tria_pool_for;
        c->parallel_context = c->pool;
    }
    if (status == TRIA_OK && !allocate_all(c)) {
        status = tria_fail(error, TRIA_E_MEMORY, "cannot allocate the CPU backend's workspace");
    }
    if (status != TRIA_OK) {
        cpu_plan_destroy(c);
        return status;
    }
    *context = c;
    return TRIA_OK;
}

static tria_status cpu_workspace_size(const tria_v1_plan *plan, size_t *host_bytes, size_t *device_bytes,
                                      tria_error *error)
{
    tria_cpu_context c;
    tria_worker worker;
    tria_array shared[N_SHARED];
    tria_array specs[N_WORKER];
    (void)error;
    memset(&c, 0, sizeof(c));
    shape(&c, plan);
    list_shared(&c, shared);
    list_worker(&c, &worker, specs);
    *host_bytes = sizeof(c) + tria_arrays_bytes(shared, N_SHARED) +
                  (size_t)c.n_workers * tria_arrays_bytes(specs, N_WORKER);
    for (int32_t l = 0; plan->k_state == TRIA_K_RAW && l < plan->n_layers; l++) {
        *host_bytes += owns_rotation(plan, l) ? rotation_floats(plan, l) * sizeof(float) : 0;
    }
    *device_bytes = 0;
    return TRIA_OK;
}

const tria_backend_v1_table tria_cpu_backend = {
    .struct_size = sizeof(tria_backend_v1_table),
    .version = TRIA_BACKEND_V1_VERSION,
    .name = "cpu",
    .probe = tria_host_probe,
    .device_info = tria_host_device_info,
    .device_open = tria_host_device_open,
    .device_close = tria_host_device_close,
    .device_name = tria_host_device_name,
    .supports = tria_host_supports,
    .plan_create = cpu_plan_create,
    .plan_destroy = cpu_plan_destroy,
    .score = cpu_score,
    .select = cpu_select,
    .compact = cpu_compact,
    .synchronize = tria_host_synchronize,
    .workspace_size = cpu_workspace_size,
    .seconds = cpu_seconds,
};

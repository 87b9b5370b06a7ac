/* host_plan.c - what libtria is told: the view of the engine's keys, the policy, the statistics of the
 * queries. */
#include "host_internal.h"

/* ---- keys ---- */

/* A layer's K tensor as [cell][head][dim], one token per page: page id = cell. */
static tria_status view_layer(const struct host *h, int32_t layer, tria_error *error)
{
    struct ggml_tensor *cache = h->observer->cache[layer];
    const int32_t dtype = tria_dtype_from_name(ggml_type_name(cache->type)); /* the names are the same */
    if (dtype < 0) {
        return fail(error, TRIA_E_UNSUPPORTED, "layer %d: libtria has no K of type %s", layer,
                    ggml_type_name(cache->type));
    }
    const int32_t dim = h->observer->rope[layer].k_head_dim;
    tria_tensor *k = &h->layers[layer].k;
    k->base = cache->data;
    k->size = ggml_nbytes(cache);
    k->page_stride = (int64_t)cache->nb[1];
    k->token_stride = (int64_t)cache->nb[1];
    k->head_stride = (int64_t)ggml_row_size(cache->type, dim);
    k->dtype = dtype;
    k->dim = dim;
    return TRIA_OK;
}

tria_kv_view host_view(const struct host *h, int32_t rows)
{
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    view.layers = h->layers;
    view.n_layers = h->observer->n_layers;
    view.k_state = h->observer->hadamard_size > 0 ? TRIA_K_HADAMARD : TRIA_K_ROTATED;
    view.hadamard_size = h->observer->hadamard_size;
    view.page_table = h->cells;
    view.n_pages = rows;
    view.tokens_per_page = 1;
    return view;
}

/* ---- policy and plan ---- */

static tria_policy_params policy_params(const struct host *h)
{
    const host_params *p = &h->params;
    tria_policy_params policy = TRIA_POLICY_PARAMS_INIT;
    policy.capacity = p->bound_prefill ? p->budget + p->interval + p->in_flight : h->engine->cells;
    policy.budget = p->budget;
    policy.interval = p->interval;
    policy.n_recent = p->n_recent;
    policy.n_sink = p->n_sink;
    policy.mode = p->mode;
    policy.protect_prefill = p->protect_prefill;
    policy.allow_prefill_compaction = p->bound_prefill;
    policy.in_place = 1; /* the engine frees cells itself */
    policy.in_flight = p->in_flight;
    policy.calibration = p->calibration;
    policy.own_keep_sets = p->policy != HOST_POLICY_TRIA;
    return policy;
}

static tria_status create_plan(struct host *h, const tria_calibration *calibration, tria_error *error)
{
    const host_params *p = &h->params;
    const tria_policy_params policy = policy_params(h);
    const tria_kv_view layout = host_view(h, h->engine->cells);
    tria_plan_params plan;
    tria_plan_params_init(&plan);
    const tria_status status = tria_policy_to_plan(&policy, &plan, error);
    if (status != TRIA_OK) {
        return status;
    }
    plan.model = p->model;
    plan.calibration = calibration;
    plan.layout = &layout;
    plan.pool_radius = p->pool_radius;
    plan.n_threads = p->n_threads;
    plan.score_device = p->device;
    plan.select_device = p->device;
    plan.stage_device_memory = p->stage;
    return tria_plan_create(&plan, p->env, &h->plan, error);
}

tria_status host_create_policy(struct host *h, tria_error *error)
{
    const host_params *p = &h->params;
    const tria_policy_params policy = policy_params(h);
    tria_status status = tria_sequence_create(&policy, p->env, &h->sequence, error);
    if (status != TRIA_OK || p->policy != HOST_POLICY_TRIA) {
        return status;
    }
    for (int32_t layer = 0; layer < h->observer->n_layers; layer++) {
        status = view_layer(h, layer, error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    return create_plan(h, p->calibration, error);
}

/* ---- the conversation's own queries ---- */

void host_end_queries(struct host *h)
{
    if (h->queries != NULL && h->params.capture->accumulator == h->queries) {
        h->params.capture->accumulator = NULL;
    }
    tria_accumulator_destroy(h->queries);
    h->queries = NULL;
}

tria_status host_begin_queries(struct host *h, tria_error *error)
{
    host_end_queries(h);
    if (h->params.capture == NULL || !(h->params.own_weight > 0)) {
        return TRIA_OK;
    }
    return capture_accumulator(h->params.model, &h->queries, error);
}

tria_status host_blend_queries(struct host *h, tria_error *error)
{
    if (h->queries == NULL) {
        return TRIA_OK;
    }
    tria_calibration *own = NULL;
    tria_calibration *blend = NULL;
    tria_status status = tria_accumulator_finish(h->queries, NULL, NULL, &own, error);
    if (status == TRIA_OK) {
        status =
            tria_calibration_blend(h->params.calibration, own, h->params.own_weight, NULL, &blend, error);
    }
    if (status == TRIA_OK) {
        tria_plan_destroy(h->plan);
        h->plan = NULL;
        status = create_plan(h, blend, error);
    }
    tria_calibration_destroy(own);
    tria_calibration_destroy(blend);
    return status;
}

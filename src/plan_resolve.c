/*
 * plan_resolve.c - from the caller's parameters to the dense description that backends work from: which
 * query head scores which keys, who takes part where, which keep set each KV head obeys.
 */
#include "calibration_internal.h"
#include "kv_view_internal.h"
#include "model_internal.h"
#include "plan_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tria_plan_params_init(tria_plan_params *params)
{
    memset(params, 0, sizeof(*params));
    params->struct_size = sizeof(*params);
    params->offset_max = 65536;
    params->content_weight = 1.0F;
    params->group = TRIA_AGGREGATE_MAX;
    params->mode = TRIA_MODE_PER_HEAD;
    params->count_prompt = 1;
    params->max_sequences = 1;
}

bool tria_needs_reduce(const tria_v1_plan *plan)
{
    if (plan->params->all_reduce == NULL) {
        return false;
    }
    switch (plan->params->mode) {
    case TRIA_MODE_UNION:
    case TRIA_MODE_GLOBAL:
        return true;
    case TRIA_MODE_PER_LAYER:
        return plan->partial_heads;
    case TRIA_MODE_PER_HEAD:
        return plan->partial_layers;
    default:
        return false;
    }
}

static tria_status check_settings(const tria_plan_params *p, tria_error *error)
{
    if (p->model == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: model is NULL");
    }
    if (p->layout == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: layout is NULL");
    }
    if (p->offsets != TRIA_AGGREGATE_MEAN && p->offsets != TRIA_AGGREGATE_MAX) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: offsets %d is neither mean nor max", p->offsets);
    }
    if (p->offset_max < 1 || p->offset_max > (1 << 30)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: offset_max %d is not in 1..2^30", p->offset_max);
    }
    if (!isfinite(p->content_weight)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: content_weight is not finite");
    }
    if (p->normalize_over < TRIA_NORMALIZE_ALL || p->normalize_over > TRIA_NORMALIZE_NONE) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: normalize_over %d is unknown", p->normalize_over);
    }
    if (p->group != TRIA_AGGREGATE_MEAN && p->group != TRIA_AGGREGATE_MAX) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: group %d is neither mean nor max", p->group);
    }
    if (p->layers_agg != TRIA_AGGREGATE_MEAN && p->layers_agg != TRIA_AGGREGATE_MAX) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: layers_agg %d is neither mean nor max",
                         p->layers_agg);
    }
    if (tria_mode_name(p->mode) == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: mode %d is unknown", p->mode);
    }
    if (p->order != TRIA_ORDER_STABLE && p->order != TRIA_ORDER_FILL_HOLES) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: order %d is unknown", p->order);
    }
    if (p->pool_radius < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: pool_radius %d is negative", p->pool_radius);
    }
    if (p->budget < 0 || p->n_sink < 0 || p->n_recent < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: budget %d, n_sink %d or n_recent %d is negative",
                         p->budget, p->n_sink, p->n_recent);
    }
    if (p->budget > 0 && (int64_t)p->n_sink + p->n_recent >= p->budget) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "plan: n_sink %d + n_recent %d >= budget %d leaves no row to choose", p->n_sink,
                         p->n_recent, p->budget);
    }
    if (p->max_rows < 1) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: max_rows %d is below 1", p->max_rows);
    }
    if (p->max_sequences < 1 || p->max_sequences > (1 << 20)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: max_sequences %d is not in 1..2^20",
                         p->max_sequences);
    }
    if (p->n_threads < 0 || p->n_threads > 4096) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: n_threads %d is not in 0..4096", p->n_threads);
    }
    return TRIA_OK;
}

/* The plan's layers and their geometry from the model and the layout. */
static tria_status resolve_layers(tria_resolved *r, tria_error *error)
{
    const tria_plan_params *p = &r->params;
    const tria_model *model = p->model;
    const tria_kv_view *view = p->layout;
    const int32_t n_layers = r->plan.n_layers;
    int32_t q_slot = 0;
    int32_t kv_slot = 0;
    double *frequency = r->frequencies;

    for (int32_t l = 0; l < n_layers; l++) {
        const int32_t m = p->layers != NULL ? p->layers[l] : l;
        if (m < 0 || m >= model->n_layers || (l > 0 && m <= r->layers[l - 1].model_layer)) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "plan: layers[%d] = %d is not an ascending layer of a model with %d", l, m,
                             model->n_layers);
        }
        const tria_layer_params *source = &model->layers[m];
        tria_v1_layer *layer = &r->layers[l];
        layer->model_layer = m;
        layer->head_dim = source->head_dim;
        layer->rotary_dim = source->rotary_dim;
        layer->rotary_offset = source->rotary_offset;
        layer->rope_style = source->rope_style;
        layer->n_freq = source->rotary_dim / 2;
        layer->window = source->window;
        layer->kv_layer = -1;
        layer->phase_layer = l;
        layer->first_q_slot = q_slot;
        layer->first_kv_slot = kv_slot;
        if (source->n_kv_heads == 0) {
            continue; /* a layer without attention */
        }
        const int32_t first = p->kv_head_first;
        const int32_t count = p->kv_head_count != 0 ? p->kv_head_count : source->n_kv_heads;
        if (first < 0 || count < 0 || first > source->n_kv_heads - count) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "plan: KV heads %d..%d are not in layer %d, which has %d", first,
                             first + count - 1, m, source->n_kv_heads);
        }
        r->plan.partial_heads = r->plan.partial_heads || count < source->n_kv_heads;
        layer->n_q_heads = count * (source->n_q_heads / source->n_kv_heads);
        memcpy(frequency, source->inv_freq, sizeof(double) * (size_t)layer->n_freq);
        layer->inv_freq = frequency;
        frequency += layer->n_freq;
        memcpy(frequency, source->freq_scale_sq, sizeof(double) * (size_t)layer->n_freq);
        layer->freq_scale_sq = frequency;
        frequency += layer->n_freq;
        for (int32_t other = 0; other < l; other++) {
            if (r->layers[other].n_freq == layer->n_freq && r->layers[other].inv_freq != NULL &&
                memcmp(r->layers[other].inv_freq, layer->inv_freq,
                       sizeof(double) * (size_t)layer->n_freq) == 0) {
                layer->phase_layer = other;
                break;
            }
        }
        q_slot += layer->n_q_heads;
        if (source->kv_source >= 0) {
            for (int32_t other = 0; other < l; other++) {
                if (r->layers[other].model_layer == source->kv_source) {
                    layer->kv_layer = other;
                }
            }
            const tria_v1_layer *owner = layer->kv_layer >= 0 ? &r->layers[layer->kv_layer] : NULL;
            if (owner == NULL || owner->n_kv_heads != count || owner->head_dim != layer->head_dim ||
                owner->rotary_dim != layer->rotary_dim || owner->rotary_offset != layer->rotary_offset ||
                owner->rope_style != layer->rope_style) {
                return tria_fail(
                    error, TRIA_E_MISMATCH,
                    "plan: layer %d reads the cache of layer %d, which is not an earlier layer of "
                    "this plan with a cache of the same geometry",
                    m, source->kv_source);
            }
            if (view->k_state == TRIA_K_RAW && layer->phase_layer != owner->phase_layer) {
                return tria_fail(error, TRIA_E_UNSUPPORTED,
                                 "plan: layer %d reads raw keys of layer %d with other frequencies", m,
                                 source->kv_source);
            }
            continue;
        }
        char what[64];
        layer->kv_layer = l;
        layer->n_kv_heads = count;
        layer->takes_part = source->window == 0;
        kv_slot += count;
        layer->k = view->layers[l].k;
        layer->v = view->layers[l].v;
        snprintf(what, sizeof(what), "layout: layer %d K", m);
        TRIA_TRY(tria_tensor_check(&layer->k, count, false, what, error));
        if (layer->k.dim < layer->head_dim) {
            return tria_fail(error, TRIA_E_MISMATCH,
                             "%s stores %d elements per head, the model has head_dim %d", what,
                             layer->k.dim, layer->head_dim);
        }
        if (layer->v.dim != 0) {
            snprintf(what, sizeof(what), "layout: layer %d V", m);
            TRIA_TRY(tria_tensor_check(&layer->v, count, true, what, error));
        }
        if (view->k_state == TRIA_K_HADAMARD) {
            const int32_t size = view->hadamard_size != 0 ? view->hadamard_size : layer->k.dim;
            if (size < 1 || (size & (size - 1)) != 0 || layer->k.dim % size != 0) {
                return tria_fail(
                    error, TRIA_E_ARGUMENT,
                    "layout: hadamard_size %d is not a power of two that divides layer %d's %d", size, m,
                    layer->k.dim);
            }
        }
    }
    r->plan.n_queries = q_slot;
    r->plan.n_kv = kv_slot;
    if (kv_slot == 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: none of its %d layers has a KV cache", n_layers);
    }
    return TRIA_OK;
}

/* Copies a head's statistics behind *cursor. */
static const float *keep_stats(float **cursor, const float *source, int32_t count)
{
    float *target = *cursor;
    memcpy(target, source, sizeof(float) * (size_t)count);
    *cursor += count;
    return target;
}

static tria_status resolve_queries(tria_resolved *r, tria_error *error)
{
    const tria_calibration *calibration = r->params.calibration;
    float *cursor = r->stats;
    int64_t lin = 0;
    int64_t mag = 0;

    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        const tria_v1_layer *layer = &r->layers[l];
        const tria_calibration_layer_data *data = NULL;
        if (layer->n_q_heads == 0) {
            continue;
        }
        const tria_layer_params *source = &r->params.model->layers[layer->model_layer];
        const int32_t per_group = source->n_q_heads / source->n_kv_heads;
        const int32_t first_head = r->params.kv_head_first * per_group;
        if (calibration != NULL && layer->model_layer < calibration->n_layers) {
            data = &calibration->layers[layer->model_layer];
            if (data->geometry.n_q_heads == 0) {
                data = NULL;
            } else if (data->geometry.n_q_heads != source->n_q_heads || data->n_freq != layer->n_freq) {
                return tria_fail(
                    error, TRIA_E_MISMATCH,
                    "layer %d: calibrated for %d query heads of %d frequencies, the model has %d of %d",
                    layer->model_layer, data->geometry.n_q_heads, data->n_freq, source->n_q_heads,
                    layer->n_freq);
            }
        }
        const int32_t n_content = layer->head_dim - layer->rotary_dim;
        for (int32_t h = 0; h < layer->n_q_heads; h++) {
            tria_v1_query *query = &r->queries[layer->first_q_slot + h];
            query->layer = l;
            query->kv_slot = r->layers[layer->kv_layer].first_kv_slot + h / per_group;
            const tria_calibration_head_data *head =
                data != NULL ? tria_calibration_find_head(calibration, layer->model_layer, first_head + h)
                             : NULL;
            if (head == NULL) {
                continue;
            }
            query->calibrated = 1;
            query->q_mean_real =
                keep_stats(&cursor, tria_head_array(data, head, TRIA_HEAD_REAL), layer->n_freq);
            query->q_mean_imag =
                keep_stats(&cursor, tria_head_array(data, head, TRIA_HEAD_IMAG), layer->n_freq);
            query->q_abs_mean =
                keep_stats(&cursor, tria_head_array(data, head, TRIA_HEAD_ABS), layer->n_freq);
            if (head->n_content == n_content && n_content > 0 && r->params.content_weight != 0.0F) {
                query->content_mean =
                    keep_stats(&cursor, tria_head_array(data, head, TRIA_HEAD_CONTENT_MEAN), n_content);
            }
            query->lin_offset = lin;
            query->mag_offset = mag;
            lin += (int64_t)r->plan.n_lin * r->layers[layer->kv_layer].k.dim;
            mag += layer->n_freq;
        }
    }
    r->plan.lin_count = lin;
    r->plan.mag_count = mag;
    return TRIA_OK;
}

/* Groups by KV slot, in query-slot order: joined heads of kv_source layers come after the owner's. */
static void resolve_groups(tria_resolved *r)
{
    int32_t used = 0;
    int32_t slot = 0;
    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        for (int32_t v = 0; v < r->layers[l].n_kv_heads; v++, slot++) {
            tria_v1_kv *kv = &r->kv[slot];
            kv->layer = l;
            kv->head = v;
            kv->set = -1;
            kv->group_begin = used;
            for (int32_t q = 0; q < r->plan.n_queries; q++) {
                if (r->queries[q].kv_slot == slot) {
                    r->group[used++] = q;
                    kv->n_calibrated += r->queries[q].calibrated;
                }
            }
            kv->group_end = used;
            if (kv->n_calibrated > r->plan.max_group) {
                r->plan.max_group = kv->n_calibrated;
            }
        }
    }
    r->plan.n_group = used;
}

/* Calibrated query heads of a layer that read KV heads [first, first + count) of the whole model. */
static int32_t calibrated_in_file(const tria_resolved *r, int32_t model_layer, int32_t first, int32_t count)
{
    const tria_calibration *calibration = r->params.calibration;
    const tria_layer_params *layer = &r->params.model->layers[model_layer];
    int32_t found = 0;
    if (calibration == NULL || model_layer >= calibration->n_layers || layer->n_kv_heads == 0) {
        return 0;
    }
    const int32_t per_group = layer->n_q_heads / layer->n_kv_heads;
    for (int32_t h = first * per_group; h < (first + count) * per_group && h < layer->n_q_heads; h++) {
        found += tria_calibration_find_head(calibration, model_layer, h) != NULL;
    }
    return found;
}

/* The same over all layers that take part in modes that pool layers, whichever rank owns them. */
static int32_t calibrated_in_model(const tria_resolved *r, int32_t first, int32_t count)
{
    const tria_model *model = r->params.model;
    int32_t found = 0;
    for (int32_t m = 0; m < model->n_layers; m++) {
        const int32_t source = model->layers[m].kv_source;
        if (model->layers[source >= 0 ? source : m].window == 0) {
            found += calibrated_in_file(r, m, first, count);
        }
    }
    return found;
}

/* Calibrated query heads that read layer l's cache: this plan's, or all where ranks combine their heads. */
static int32_t calibrated_in_layer(const tria_resolved *r, int32_t l)
{
    const tria_v1_layer *layer = &r->layers[l];
    int32_t found = 0;
    for (int32_t v = 0; v < layer->n_kv_heads; v++) {
        found += r->kv[layer->first_kv_slot + v].n_calibrated;
    }
    if (tria_needs_reduce(&r->plan)) {
        for (int32_t other = 0; other < r->plan.n_layers; other++) {
            if (r->layers[other].kv_layer == l) {
                found += calibrated_in_file(r, r->layers[other].model_layer, 0, TRIA_MAX_HEADS);
            }
        }
    }
    return found;
}

/* Ranks must agree on who borrows: what counts is whether any of them has a score for the head. */
static void resolve_borrowing(tria_resolved *r)
{
    const bool over_layers = tria_needs_reduce(&r->plan);
    for (int32_t s = 0; s < r->plan.n_kv; s++) {
        tria_v1_kv *kv = &r->kv[s];
        bool has_scores = kv->n_calibrated > 0;
        if (r->params.mode == TRIA_MODE_PER_LAYER_PER_HEAD) {
            kv->borrows = !has_scores && !r->layers[kv->layer].by_position;
        } else if (r->params.mode == TRIA_MODE_PER_HEAD && kv->set >= 0 && !r->plan.all_by_position) {
            for (int32_t other = 0; other < r->plan.n_kv && !has_scores; other++) {
                has_scores = r->kv[other].set == kv->set && r->kv[other].n_calibrated > 0;
            }
            kv->borrows =
                !has_scores &&
                !(over_layers && calibrated_in_model(r, r->params.kv_head_first + kv->head, 1) > 0);
        }
    }
}

static tria_status resolve_sets(tria_resolved *r, tria_error *error)
{
    const int32_t mode = r->params.mode;
    const bool pooled = mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
    int32_t n_sets = 0;
    int32_t heads = -1;
    int32_t heads_layer = -1;
    bool any_calibrated = false;

    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        tria_v1_layer *layer = &r->layers[l];
        const int32_t calibrated = calibrated_in_layer(r, l);
        layer->by_position = layer->n_kv_heads > 0 && calibrated == 0;
        if (layer->n_kv_heads == 0 || (pooled && !layer->takes_part)) {
            continue;
        }
        any_calibrated = any_calibrated || calibrated > 0;
        if (mode == TRIA_MODE_PER_HEAD && heads >= 0 && heads != layer->n_kv_heads) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "plan: per-head needs equal KV head counts: layer %d has %d, layer %d has %d",
                             r->layers[heads_layer].model_layer, heads, layer->model_layer,
                             layer->n_kv_heads);
        }
        heads = layer->n_kv_heads;
        heads_layer = l;
        for (int32_t v = 0; v < layer->n_kv_heads; v++) {
            tria_v1_kv *kv = &r->kv[layer->first_kv_slot + v];
            if (mode == TRIA_MODE_PER_LAYER_PER_HEAD) {
                kv->set = n_sets++;
            } else if (mode == TRIA_MODE_PER_LAYER) {
                kv->set = v == 0 ? n_sets++ : n_sets - 1;
            } else if (mode == TRIA_MODE_PER_HEAD) {
                kv->set = v;
            } else {
                kv->set = 0;
            }
        }
        if (mode == TRIA_MODE_PER_HEAD) {
            n_sets = heads;
        } else if (mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL) {
            n_sets = 1;
        }
        layer->budget = tria_set_budget(&r->plan, r->weights, l, r->params.budget);
        if (!pooled && r->params.budget > 0 && layer->window > layer->budget) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "plan: layer %d attends to %d tokens, its budget is only %d",
                             layer->model_layer, layer->window, layer->budget);
        }
    }
    if (n_sets == 0) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "plan: no layer takes part in mode %s (all are sliding-window)",
                         tria_mode_name(mode));
    }
    if (pooled && tria_needs_reduce(&r->plan)) { /* ranks must agree on this, too */
        any_calibrated = calibrated_in_model(r, 0, TRIA_MAX_HEADS) > 0;
    }
    r->plan.n_sets = n_sets;
    r->plan.all_by_position = !any_calibrated;
    resolve_borrowing(r);
    return TRIA_OK;
}

/* layer_weight from the caller, else the calibration, else 1; scaled to mean 1 over who takes part. */
static tria_status resolve_weights(tria_resolved *r, tria_error *error)
{
    const tria_calibration *calibration = r->params.calibration;
    double sum = 0.0;
    int32_t count = 0;
    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        const int32_t m = r->layers[l].model_layer;
        float weight = 1.0F;
        if (r->params.layer_weights != NULL) {
            weight = r->params.layer_weights[l];
        } else if (calibration != NULL && m < calibration->n_layers) {
            weight = calibration->layers[m].budget_scale;
        }
        if (!(weight >= 0.0F) || !isfinite(weight)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "plan: layer_weights[%d] = %g is not a number >= 0", l,
                             (double)weight);
        }
        r->weights[l] = weight;
    }
    TRIA_TRY(resolve_sets(r, error));
    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        if (r->layers[l].takes_part && !r->layers[l].by_position) {
            sum += (double)r->weights[l];
            count++;
        }
    }
    /* other ranks' layers may have the weights that these lack */
    if (r->params.mode == TRIA_MODE_GLOBAL && r->params.all_reduce == NULL && count > 0 && sum <= 0.0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: the weights of all layers that take part are zero");
    }
    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        /* Across ranks the mean is unknown here; a common factor changes no keep set. */
        const double mean = r->params.all_reduce != NULL || sum <= 0.0 ? 1.0 : sum / count;
        r->layers[l].weight = (double)r->weights[l] / mean;
    }
    return TRIA_OK;
}

int32_t tria_set_budget(const tria_v1_plan *plan, const float *weights, int32_t layer, int32_t budget)
{
    const int32_t mode = plan->params->mode;
    if (!plan->params->use_layer_budgets || budget == 0 ||
        (mode != TRIA_MODE_PER_LAYER_PER_HEAD && mode != TRIA_MODE_PER_LAYER)) {
        return budget;
    }
    const double scaled = floor((double)budget * (double)weights[layer]);
    return scaled < 1.0 ? 1 : scaled > (double)INT32_MAX ? INT32_MAX : (int32_t)scaled;
}

/* Allocates `count` elements and remembers a failure instead of making every call site check. */
static void *grab(tria_resolved *r, size_t count, size_t size, bool *ok)
{
    void *pointer = tria_alloc(&r->env, count > 0 ? count : 1, size);
    *ok = *ok && pointer != NULL;
    return pointer;
}

static tria_status allocate(tria_resolved *r, tria_error *error)
{
    const tria_model *model = r->params.model;
    const tria_calibration *calibration = r->params.calibration;
    const size_t n_layers = (size_t)r->plan.n_layers;
    size_t queries = 0;
    size_t kv = 0;
    size_t frequencies = 0;
    size_t statistics = 0;
    size_t magnitudes = 0;
    size_t max_freq = 0;
    size_t max_dim = 0;
    bool ok = true;

    for (int32_t l = 0; l < r->plan.n_layers; l++) {
        const int32_t m = r->params.layers != NULL ? r->params.layers[l] : l;
        if (m < 0 || m >= model->n_layers) {
            continue; /* reported by resolve_layers */
        }
        const tria_layer_params *layer = &model->layers[m];
        const size_t half = (size_t)layer->rotary_dim / 2;
        queries += (size_t)layer->n_q_heads;
        kv += (size_t)layer->n_kv_heads;
        frequencies += 2 * half;
        magnitudes += (size_t)layer->n_q_heads * half;
        max_freq = half > max_freq ? half : max_freq;
        if ((size_t)layer->head_dim > max_dim) {
            max_dim = (size_t)layer->head_dim;
        }
        if (r->params.layout->layers[l].k.dim > 0 && (size_t)r->params.layout->layers[l].k.dim > max_dim) {
            max_dim = (size_t)r->params.layout->layers[l].k.dim;
        }
        if (calibration != NULL && m < calibration->n_layers) {
            statistics +=
                (size_t)layer->n_q_heads * (3 * half + (size_t)(layer->head_dim - layer->rotary_dim));
        }
    }
    r->layers = grab(r, n_layers, sizeof(*r->layers), &ok);
    r->queries = grab(r, queries, sizeof(*r->queries), &ok);
    r->kv = grab(r, kv, sizeof(*r->kv), &ok);
    r->group = grab(r, queries, sizeof(*r->group), &ok);
    r->frequencies = grab(r, frequencies, sizeof(*r->frequencies), &ok);
    r->stats = grab(r, statistics, sizeof(*r->stats), &ok);
    r->mag = grab(r, magnitudes, sizeof(*r->mag), &ok);
    r->weights = grab(r, n_layers, sizeof(*r->weights), &ok);
    r->fold_scratch = grab(r, 2 * (size_t)r->plan.n_lin * max_freq + max_dim, sizeof(double), &ok);
    if (ok && r->params.layout->hadamard_signs != NULL) {
        r->signs = grab(r, max_dim, sizeof(float), &ok);
        if (ok) {
            memcpy(r->signs, r->params.layout->hadamard_signs, sizeof(float) * max_dim);
        }
    }
    return ok ? TRIA_OK : tria_fail(error, TRIA_E_MEMORY, "plan: cannot allocate its description");
}

static void connect(tria_resolved *r)
{
    tria_v1_plan *plan = &r->plan;
    plan->struct_size = sizeof(*plan);
    plan->params = &r->params;
    plan->layers = r->layers;
    plan->queries = r->queries;
    plan->kv = r->kv;
    plan->group = r->group;
    plan->mag = r->mag;
    plan->fold_scratch = r->fold_scratch;
    plan->hadamard_signs = r->signs;
}

tria_status tria_resolve(const tria_plan_params *params, const tria_env *env, tria_resolved *r,
                         tria_error *error)
{
    tria_status status;
    tria_kv_view layout;

    memset(r, 0, sizeof(*r));
    r->env = *env;
    tria_plan_params_init(&r->params);
    TRIA_TRY(tria_struct_import(&r->params, sizeof(r->params), sizeof(r->params), params,
                                "tria_plan_params", error));
    TRIA_TRY(check_settings(&r->params, error));
    tria_kv_view_init(&layout);
    TRIA_TRY(
        tria_struct_import(&layout, sizeof(layout), sizeof(layout), r->params.layout, "layout", error));
    r->params.layout = &layout;

    tria_v1_plan *plan = &r->plan;
    plan->n_layers = r->params.n_layers != 0 ? r->params.n_layers : r->params.model->n_layers;
    if (plan->n_layers < 1 || plan->n_layers > r->params.model->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "plan: n_layers %d, the model has %d", r->params.n_layers,
                         r->params.model->n_layers);
    }
    if (layout.n_layers != plan->n_layers || layout.layers == NULL) {
        return tria_fail(error, TRIA_E_MISMATCH, "layout: has %d layers, the plan %d", layout.n_layers,
                         plan->n_layers);
    }
    if (layout.k_state < TRIA_K_ROTATED || layout.k_state > TRIA_K_HADAMARD) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layout: k_state %d is unknown", layout.k_state);
    }
    if (layout.tokens_per_page < 0 || (layout.page_table != NULL && layout.tokens_per_page == 0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layout: a page table with %d tokens per page",
                         layout.tokens_per_page);
    }
    plan->n_lin = 1;
    for (int64_t offset = 2; r->params.offsets == TRIA_AGGREGATE_MAX && offset <= r->params.offset_max;
         offset *= 2) {
        plan->n_lin++;
    }
    plan->k_state = layout.k_state;
    plan->hadamard_size = layout.k_state == TRIA_K_HADAMARD ? layout.hadamard_size : 0;
    plan->tokens_per_page = layout.tokens_per_page;
    plan->partial_layers = plan->n_layers < r->params.model->n_layers;
    plan->max_rows = r->params.max_rows;
    TRIA_TRY_GOTO(allocate(r, error), fail);
    connect(r);
    TRIA_TRY_GOTO(resolve_layers(r, error), fail);
    TRIA_TRY_GOTO(resolve_queries(r, error), fail);
    resolve_groups(r);
    TRIA_TRY_GOTO(resolve_weights(r, error), fail);
    for (int32_t q = 0; q < plan->n_queries; q++) {
        if (r->queries[q].calibrated) {
            const int32_t n_freq = r->layers[r->queries[q].layer].n_freq;
            tria_fold_mag_f64(plan, q, r->fold_scratch);
            for (int32_t f = 0; f < n_freq; f++) {
                r->mag[r->queries[q].mag_offset + f] = (float)r->fold_scratch[f];
            }
        }
    }
    /* what is not kept must not be reachable */
    r->params.model = NULL;
    r->params.calibration = NULL;
    r->params.layout = NULL;
    r->params.layers = NULL;
    r->params.layer_weights = r->weights;
    return TRIA_OK;

fail:
    tria_resolved_release(r);
    return status;
}

void tria_resolved_release(tria_resolved *r)
{
    tria_free(&r->env, r->layers);
    tria_free(&r->env, r->queries);
    tria_free(&r->env, r->kv);
    tria_free(&r->env, r->group);
    tria_free(&r->env, r->frequencies);
    tria_free(&r->env, r->stats);
    tria_free(&r->env, r->mag);
    tria_free(&r->env, r->weights);
    tria_free(&r->env, r->fold_scratch);
    tria_free(&r->env, r->signs);
}

/*
 * plan_event.c - what a caller hands over per call, brought to the latest form and checked before any
 * backend sees it.
 */
#include "kv_view_internal.h"
#include "plan_internal.h"

#include <stdio.h>
#include <string.h>

void tria_event_init(tria_event *event)
{
    memset(event, 0, sizeof(*event));
    event->struct_size = sizeof(*event);
}

void tria_batch_init(tria_batch *batch)
{
    memset(batch, 0, sizeof(*batch));
    batch->struct_size = sizeof(*batch);
}

/* The cache's geometry is the plan's, and all rows lie inside it. */
static tria_status check_view(const tria_v1_plan *v1, const tria_event *event, const int32_t *rows,
                              tria_error *error)
{
    const tria_kv_view *view = event->kv;
    const bool host_table = event->device == NULL || event->device->page_tables.base == NULL;
    tria_kv_view latest;
    TRIA_TRY(tria_struct_import(&latest, sizeof(latest), sizeof(latest), view, "event kv", error));
    if (view->n_layers != v1->n_layers || view->layers == NULL) {
        return tria_fail(error, TRIA_E_MISMATCH, "the view has %d layers, the plan %d", view->n_layers,
                         v1->n_layers);
    }
    if (view->k_state != v1->k_state || view->tokens_per_page != v1->tokens_per_page) {
        return tria_fail(error, TRIA_E_MISMATCH,
                         "the view's K state or tokens per page (%d, %d) are not the plan's (%d, %d)",
                         view->k_state, view->tokens_per_page, v1->k_state, v1->tokens_per_page);
    }
    for (int32_t l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        const tria_layer_view *tensors = &view->layers[l];
        int32_t longest = 0;
        char what[32];
        if (layer->n_kv_heads == 0) {
            continue;
        }
        for (int32_t v = 0; v < layer->n_kv_heads; v++) {
            const int32_t n = rows[layer->first_kv_slot + v];
            longest = n > longest ? n : longest;
        }
        if (longest == 0) {
            continue;
        }
        snprintf(what, sizeof(what), "layer %d K", layer->model_layer);
        if (tensors->k.base == NULL) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: base is NULL", what);
        }
        if (!tria_tensor_same_layout(&tensors->k, &layer->k)) {
            return tria_fail(error, TRIA_E_MISMATCH,
                             "%s: dtype, dim or strides are not those the plan was made for", what);
        }
        if (host_table) {
            TRIA_TRY(tria_tensor_check_rows(&tensors->k, view, tensors, layer->n_kv_heads, longest, what,
                                            error));
        }
        if (tensors->v.base != NULL) {
            snprintf(what, sizeof(what), "layer %d V", layer->model_layer);
            if (!tria_tensor_same_layout(&tensors->v, &layer->v)) {
                return tria_fail(error, TRIA_E_MISMATCH,
                                 "%s: dtype, dim or strides are not those the plan was made for", what);
            }
            if (host_table) {
                TRIA_TRY(tria_tensor_check_rows(&tensors->v, view, tensors, layer->n_kv_heads, longest,
                                                what, error));
            }
        }
    }
    return TRIA_OK;
}

static tria_status check_rows(const tria_v1_plan *v1, const tria_event *event, int32_t *rows,
                              tria_error *error)
{
    for (int32_t s = 0; s < v1->n_kv; s++) {
        const int32_t n = event->rows != NULL ? event->rows[s] : event->n_rows;
        if (n < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "layer %d KV head %d has %d rows",
                             v1->layers[v1->kv[s].layer].model_layer, v1->kv[s].head, n);
        }
        if (n > v1->max_rows) {
            return tria_fail(error, TRIA_E_CAPACITY, "layer %d KV head %d has %d rows, the plan allows %d",
                             v1->layers[v1->kv[s].layer].model_layer, v1->kv[s].head, n, v1->max_rows);
        }
        rows[s] = n;
    }
    return TRIA_OK;
}

static tria_status check_positions(const tria_v1_plan *v1, const tria_event *event, const int32_t *rows,
                                   tria_error *error)
{
    for (int32_t s = 0; s < v1->n_kv; s++) {
        const int32_t *positions = tria_event_positions(event, v1->kv[s].layer, v1->kv[s].head);
        if (s > 0 && rows[s] <= rows[s - 1] &&
            positions == tria_event_positions(event, v1->kv[s - 1].layer, v1->kv[s - 1].head)) {
            continue; /* a shared table, seen already */
        }
        for (int32_t i = 0; i < rows[s]; i++) {
            if (positions[i] < 0) {
                return tria_fail(error, TRIA_E_ARGUMENT,
                                 "layer %d KV head %d row %d: position %d is negative",
                                 v1->layers[v1->kv[s].layer].model_layer, v1->kv[s].head, i, positions[i]);
            }
        }
    }
    return TRIA_OK;
}

/* Modes that combine layers or heads need the same rows at the same positions in all of them. */
static tria_status check_aligned(const tria_v1_plan *v1, const tria_event *event, const int32_t *rows,
                                 tria_error *error)
{
    const int32_t mode = v1->params->mode;
    if (mode == TRIA_MODE_PER_LAYER_PER_HEAD) {
        return TRIA_OK;
    }
    for (int32_t s = 0; s < v1->n_kv; s++) {
        int32_t first = 0;
        while (first < s && (v1->kv[first].set != v1->kv[s].set || v1->kv[s].set < 0)) {
            first++;
        }
        if (first == s || v1->kv[s].set < 0) {
            continue;
        }
        const int32_t *a = tria_event_positions(event, v1->kv[first].layer, v1->kv[first].head);
        const int32_t *b = tria_event_positions(event, v1->kv[s].layer, v1->kv[s].head);
        const bool same =
            rows[first] == rows[s] && (a == b || memcmp(a, b, sizeof(*a) * (size_t)rows[s]) == 0);
        if (!same) {
            return tria_fail(
                error, TRIA_E_MISMATCH,
                "mode %s needs the same rows and positions in layer %d KV head %d and layer %d KV head "
                "%d",
                tria_mode_name(mode), v1->layers[v1->kv[first].layer].model_layer, v1->kv[first].head,
                v1->layers[v1->kv[s].layer].model_layer, v1->kv[s].head);
        }
    }
    return TRIA_OK;
}

static tria_status check_event(const tria_v1_plan *v1, const tria_event *event, int32_t *rows,
                               unsigned checks, tria_error *error)
{
    const bool host_rows = event->device == NULL || event->device->rows.base == NULL;
    const bool host_positions = event->device == NULL || event->device->positions.base == NULL;
    if (event->t < 0 || event->t > INT32_MAX) {
        return tria_fail(error, TRIA_E_ARGUMENT, "t = %lld is not in 0..2^31-1", (long long)event->t);
    }
    if (event->budget < 0 || (event->budget > 0 && (int64_t)v1->params->n_sink + v1->params->n_recent >=
                                                       (int64_t)event->budget)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "budget %d is not above n_sink %d + n_recent %d",
                         event->budget, v1->params->n_sink, v1->params->n_recent);
    }
    if (event->n_prompts < 0 || (event->n_prompts > 0 && event->prompts == NULL) || event->n_pins < 0 ||
        (event->n_pins > 0 && event->pins == NULL)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%d prompts or %d pins without an array", event->n_prompts,
                         event->n_pins);
    }
    for (int32_t i = 0; i < event->n_prompts; i++) {
        if (event->prompts[i].begin < 0 || event->prompts[i].end < event->prompts[i].begin) {
            return tria_fail(error, TRIA_E_ARGUMENT, "prompts[%d] = [%d, %d) is no range of positions", i,
                             event->prompts[i].begin, event->prompts[i].end);
        }
    }
    for (int32_t i = 0; i < event->n_pins; i++) {
        if (event->pins[i] < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "pins[%d] = %d is no row", i, event->pins[i]);
        }
    }
    TRIA_TRY(check_rows(v1, event, rows, error));
    if (host_rows && host_positions && event->positions != NULL) {
        TRIA_TRY(check_positions(v1, event, rows, error));
    }
    if (host_rows && host_positions && (checks & TRIA_CHECK_ALIGNED) != 0) {
        TRIA_TRY(check_aligned(v1, event, rows, error));
    }
    if (event->kv != NULL) {
        return check_view(v1, event, rows, error);
    }
    return (checks & TRIA_CHECK_KV) != 0 ? tria_fail(error, TRIA_E_ARGUMENT, "kv is NULL") : TRIA_OK;
}

tria_status tria_plan_import_batch(tria_plan *plan, const tria_batch *batch, unsigned checks, void **stream,
                                   int32_t *n_events, tria_error *error)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    tria_batch latest;
    tria_batch_init(&latest);
    TRIA_TRY(tria_struct_import(&latest, sizeof(latest), sizeof(latest), batch, "batch", error));
    if (latest.n_events < 1 || latest.events == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "batch: no events");
    }
    if (latest.n_events > plan->resolved.params.max_sequences) {
        return tria_fail(error, TRIA_E_CAPACITY, "batch: %d events, the plan allows %d", latest.n_events,
                         plan->resolved.params.max_sequences);
    }
    for (int32_t i = 0; i < latest.n_events; i++) {
        tria_event *event = &plan->events[i];
        int32_t *rows = plan->rows + (size_t)i * (size_t)v1->n_kv;
        int32_t *budgets = plan->set_budgets + (size_t)i * (size_t)v1->n_sets;
        const char *source = (const char *)latest.events + (size_t)i * latest.events[0].struct_size;
        tria_event_init(event);
        TRIA_TRY(tria_struct_import(event, sizeof(*event), sizeof(*event), source, "event", error));
        const tria_status status = check_event(v1, event, rows, checks, error);
        if (status != TRIA_OK) {
            return tria_fail_in(error, status, "event %d", i);
        }
        for (int32_t s = 0; s < v1->n_kv; s++) {
            if (v1->kv[s].set >= 0) {
                const int32_t layer = v1->kv[s].layer;
                budgets[v1->kv[s].set] =
                    event->budget == 0 ? v1->layers[layer].budget
                                       : tria_set_budget(v1, plan->resolved.weights, layer, event->budget);
            }
        }
        memset(&plan->v1_events[i], 0, sizeof(plan->v1_events[i]));
        plan->v1_events[i].event = event;
        plan->v1_events[i].rows = event->device != NULL && event->device->rows.base != NULL ? NULL : rows;
        plan->v1_events[i].set_budgets = budgets;
    }
    *stream = latest.stream;
    *n_events = latest.n_events;
    return TRIA_OK;
}

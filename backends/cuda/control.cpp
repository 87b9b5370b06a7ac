/* control.cpp - what a call tells the kernels about its events. */
#include "context.h"

#include <string.h>

#include <algorithm>

namespace tria_gpu
{
void *device_table(const tria_v1_event *event, size_t field)
{
    const tria_device_tables *tables = event->event->device;
    tria_device_span span;
    if (tables == NULL || tables->struct_size < field + sizeof(span)) {
        return NULL;
    }
    memcpy(&span, (const char *)tables + field, sizeof(span));
    return span.base != NULL ? (char *)span.base + span.offset : NULL;
}

int host_rows(const tria_v1_event *event, int slot)
{
    if (event->rows != NULL) {
        return event->rows[slot];
    }
    return event->event->rows != NULL ? event->event->rows[slot] : event->event->n_rows;
}

int most_rows(const tria_v1_plan *plan, const tria_v1_event *event)
{
    int most = 0;
    for (int s = 0; s < plan->n_kv; s++) {
        most = std::max(most, host_rows(event, s));
    }
    return most;
}

bool is_idle(const Context *context, Stage stage, const tria_v1_event *event)
{
    const tria_v1_plan *v1 = context->v1;
    if (stage != STAGE_SCORE || event->scores != NULL || event->rows == NULL) {
        return false;
    }
    for (int s = 0; s < v1->n_kv; s++) {
        if (v1->kv[s].set >= 0 && event->set_budgets[v1->kv[s].set] < event->rows[s]) {
            return false;
        }
    }
    return true;
}

static int max_heads(const tria_v1_plan *v1)
{
    int most = 1;
    for (int l = 0; l < v1->n_layers; l++) {
        most = std::max(most, v1->layers[l].n_kv_heads);
    }
    return most;
}

/* Position tables of one event in the workspace: [n_layers][max_heads][max_rows]. */
size_t position_count(const Context *context)
{
    return times(times((size_t)context->v1->n_layers, (size_t)max_heads(context->v1)),
                 (size_t)context->v1->max_rows);
}

size_t control_bytes(const Context *context)
{
    const tria_v1_plan *v1 = context->v1;
    const size_t tables =
        (size_t)context->n_page_tables * ((size_t)context->max_page_entries * sizeof(int32_t) + 16);
    const size_t per_event = sizeof(Event) + (size_t)v1->n_layers * sizeof(EventLayer) + sizeof(int64_t) +
                             sizeof(int32_t) * ((size_t)v1->n_kv + (size_t)v1->n_sets + 2 * max_prompts) +
                             sizeof(uint32_t) * (size_t)context->plan.row_words + tables +
                             (size_t)context->max_page_entries + 12 * 16;
    return times(per_event, (size_t)v1->params->max_sequences);
}

/* The page table of a layer: its own or the view's. */
static const int32_t *host_page_table(const tria_kv_view *view, const tria_layer_view *layer, int *n_pages)
{
    const bool own = layer->page_table != NULL;
    *n_pages = own ? layer->n_pages : view->n_pages;
    return own ? layer->page_table : view->page_table;
}

/* Whether V lies inside the rows of K (absorbed latent attention) and so moves with them. */
static bool v_in_k(const tria_tensor *k, const tria_tensor *v)
{
    Tensor kt;
    Tensor vt;
    describe_tensor(k, k->dim, &kt);
    describe_tensor(v, v->dim, &vt);
    const uintptr_t k_begin = (uintptr_t)k->base + k->offset;
    const uintptr_t v_begin = (uintptr_t)v->base + v->offset;
    return kt.n_runs == 1 && vt.n_runs == 1 && k->page_stride == v->page_stride &&
           k->token_stride == v->token_stride && k->head_stride == v->head_stride && v_begin >= k_begin &&
           v_begin + (uintptr_t)vt.run_bytes <= k_begin + (uintptr_t)kt.run_bytes;
}

static int aligned_width(const tria_tensor *tensor, int32_t dim, const unsigned char *address)
{
    Tensor described;
    describe_tensor(tensor, dim, &described);
    int width = width_of(described);
    while ((uintptr_t)address % (uintptr_t)width != 0) {
        width /= 2;
    }
    return width;
}

/* The tables a call has copied so far, so that layers share what they share on the host. */
struct CopiedTable {
    const int32_t *from;
    const int32_t *device;
};

static tria_status fill_layers(Context *context, const tria_v1_event *event, int index, EventLayer *layers,
                               Blob *blob, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const tria_kv_view *view = event->event->kv;
    const int32_t *on_device = (const int32_t *)TRIA_DEVICE_TABLE(event, page_tables);
    const unsigned char *page_shared = event->compaction != NULL ? event->compaction->page_shared : NULL;
    const unsigned char *shared_device = NULL;
    CopiedTable view_table = {NULL, NULL};
    CopiedTable last = {NULL, NULL};
    if (view != NULL && page_shared != NULL && view->page_table != NULL && context->max_page_entries > 0) {
        const int n = std::min(view->n_pages, context->max_page_entries);
        unsigned char *copy = blob->take<unsigned char>((size_t)context->max_page_entries, &shared_device);
        memset(copy, 0, (size_t)context->max_page_entries);
        memcpy(copy, page_shared, (size_t)n);
    }
    for (int l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        EventLayer *to = &layers[l];
        memset(to, 0, sizeof(*to));
        if (view == NULL || layer->n_kv_heads == 0 || view->layers[l].k.base == NULL) {
            continue;
        }
        const tria_layer_view *from = &view->layers[l];
        const int place = 4 * (index * v1->n_layers + l);
        to->k = staged_address(context, place, from->k.base, from->k.offset);
        to->k_scales = staged_address(context, place + 1, from->k.scales, from->k.scales_offset);
        to->k_width = aligned_width(&from->k, from->k.dim, to->k);
        if (to->k_width < alignment_of(from->k.dtype)) {
            return fail(error, TRIA_E_ARGUMENT, "layer %d K: the address is no multiple of %d bytes",
                        layer->model_layer, alignment_of(from->k.dtype));
        }
        /* rows that are scored end before the padding, which may be narrower than the whole row */
        to->k_width = std::min(to->k_width, aligned_width(&from->k, layer->head_dim, to->k));
        if (from->v.base != NULL && !v_in_k(&from->k, &from->v)) {
            to->v = staged_address(context, place + 2, from->v.base, from->v.offset);
            to->v_scales = staged_address(context, place + 3, from->v.scales, from->v.scales_offset);
            to->v_width = aligned_width(&from->v, from->v.dim, to->v);
        }
        int n_pages;
        const int32_t *table = host_page_table(view, from, &n_pages);
        if (on_device != NULL) {
            to->page_table = on_device;
        } else if (table != NULL) {
            CopiedTable *known = table == view->page_table ? &view_table : &last;
            if (known->from != table) {
                int32_t *copy = blob->take<int32_t>((size_t)context->max_page_entries, &known->device);
                const int n = std::min(n_pages, context->max_page_entries);
                memset(copy, 0, sizeof(int32_t) * (size_t)context->max_page_entries);
                memcpy(copy, table, sizeof(int32_t) * (size_t)n);
                known->from = table;
            }
            to->page_table = known->device;
            to->page_shared = table == view->page_table ? shared_device : NULL;
        }
    }
    return TRIA_OK;
}

static uint32_t *fill_pins(const Context *context, const tria_event *event, Blob *blob,
                           const uint32_t **on_device)
{
    uint32_t *mask = blob->take<uint32_t>((size_t)context->plan.row_words, on_device);
    memset(mask, 0, sizeof(uint32_t) * (size_t)context->plan.row_words);
    for (int i = 0; i < event->n_pins; i++) {
        if (event->pins[i] < context->v1->max_rows) {
            mask[event->pins[i] / 32] |= 1u << (event->pins[i] % 32);
        }
    }
    return mask;
}

/* The event's share of every workspace array. */
static void point_to_workspace(const Context *context, int index, Event *out)
{
    const Plan &plan = context->plan;
    const size_t e = (size_t)index;
    const size_t m = (size_t)plan.max_rows;
    int32_t *counters = context->counters + e * context->counter_count;
    out->phases = context->phases + e * context->phase_count;
    out->lin = context->lin + e * context->lin_count;
    out->raw = context->raw + e * (size_t)plan.n_queries * m;
    out->grouped = context->grouped + e * (size_t)plan.n_kv * m;
    out->final_scores = context->final_scores + e * (size_t)plan.n_sets * m;
    out->pooled = plan.pool_radius > 0 ? context->pooled + e * (size_t)plan.n_sets * m : NULL;
    out->reduce_counts = plan.reduces ? context->reduce_counts + e * (size_t)plan.n_sets * m : NULL;
    out->partials = context->partials + e * context->partial_count;
    out->normals = context->normals + e * (size_t)plan.n_queries;
    out->kv_normals = context->kv_normals + e * (size_t)plan.n_kv;
    out->protect = context->protect + e * (size_t)plan.n_kv * (size_t)plan.row_words;
    out->move_begin = context->move_begin + e * (size_t)plan.n_kv;
    out->report = (Report *)counters;
    counters += sizeof(Report) / sizeof(int32_t);
    out->n_protected = counters;
    out->n_prompt_rows = counters + plan.n_kv;
    out->keys_seen = (uint32_t *)counters + 2 * plan.n_kv;
    out->unordered = (uint32_t *)counters + 3 * plan.n_kv;
    out->differs = (uint32_t *)counters + 4 * plan.n_kv;
    out->bad_rows = (uint32_t *)counters + 4 * plan.n_kv + plan.n_layers + 1;
}

static tria_status fill_event(Context *context, Stage stage, const tria_v1_event *event, int index,
                              Event *out, Blob *blob, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const tria_event *e = event->event;
    memset(out, 0, sizeof(*out));
    point_to_workspace(context, index, out);

    out->t = (const int64_t *)TRIA_DEVICE_TABLE(event, t);
    if (out->t == NULL) {
        *blob->take<int64_t>(1, &out->t) = e->t;
    }
    out->rows = (const int32_t *)TRIA_DEVICE_TABLE(event, rows);
    if (event->rows != NULL) {
        const bool idle = is_idle(context, stage, event);
        int32_t *rows = blob->take<int32_t>((size_t)v1->n_kv, &out->rows);
        for (int s = 0; s < v1->n_kv; s++) {
            rows[s] = idle ? 0 : event->rows[s];
        }
    }
    out->positions = (int32_t *)TRIA_DEVICE_TABLE(event, positions);
    out->owns_positions =
        context->owner_tables +
        ((e->positions_layer_stride == 0 ? 1 : 0) + (e->positions_head_stride == 0 ? 2 : 0)) * v1->n_kv;
    out->layer_stride = e->positions_layer_stride;
    out->head_stride = e->positions_head_stride;
    if (out->positions == NULL && e->positions != NULL && stage != STAGE_COMPACT) {
        out->positions = context->positions + (size_t)index * position_count(context);
        out->head_stride = e->positions_head_stride != 0 ? v1->max_rows : 0;
        out->layer_stride = e->positions_layer_stride != 0 ? (int64_t)max_heads(v1) * v1->max_rows : 0;
    }
    out->prompts = (const int32_t *)TRIA_DEVICE_TABLE(event, prompts);
    out->n_prompts = e->n_prompts;
    if (out->prompts == NULL && e->n_prompts > 0) {
        if (e->n_prompts > max_prompts) {
            return fail(error, TRIA_E_CAPACITY,
                        "event %d: %d prompts, at most %d are taken from host memory", index, e->n_prompts,
                        max_prompts);
        }
        int32_t *prompts = blob->take<int32_t>(2 * (size_t)e->n_prompts, &out->prompts);
        for (int i = 0; i < e->n_prompts; i++) {
            prompts[2 * i] = e->prompts[i].begin;
            prompts[2 * i + 1] = e->prompts[i].end;
        }
    }
    if (e->n_pins > 0) {
        fill_pins(context, e, blob, &out->pins);
    }
    int32_t *budgets = blob->take<int32_t>((size_t)v1->n_sets, &out->budgets);
    memcpy(budgets, event->set_budgets, sizeof(int32_t) * (size_t)v1->n_sets);
    EventLayer *layers = blob->take<EventLayer>((size_t)v1->n_layers, &out->layers);
    TRIA_GPU_TRY(fill_layers(context, event, index, layers, blob, error));

    out->keep_rows = (int32_t *)TRIA_DEVICE_TABLE(event, keep_rows);
    out->keep_counts = (int32_t *)TRIA_DEVICE_TABLE(event, keep_counts);
    if (out->keep_rows != NULL && out->keep_counts != NULL) {
        out->keep_stride = e->device->keep_row_stride;
    } else {
        out->keep_rows = context->keep_rows + (size_t)index * (size_t)v1->n_sets * (size_t)v1->max_rows;
        out->keep_counts = context->keep_counts + (size_t)index * (size_t)v1->n_sets;
        out->keep_stride = v1->max_rows;
    }
    out->moves = (int32_t *)TRIA_DEVICE_TABLE(event, moves);
    out->moves_capacity = out->moves != NULL ? e->device->moves_capacity : 0;
    out->n_moves = (int32_t *)TRIA_DEVICE_TABLE(event, n_moves);
    out->rows_after = (int32_t *)TRIA_DEVICE_TABLE(event, rows);
    return TRIA_OK;
}

/* The next slot that no upload still reads; the graph's own while capturing. */
static tria_status control_slot(Context *context, Stage stage, bool capturing, ControlSlot **out,
                                tria_error *error)
{
    if (capturing) {
        *out = &context->control[n_ring_slots + stage];
        return TRIA_OK;
    }
    ControlSlot *slot = &context->control[context->next_slot];
    context->next_slot = (context->next_slot + 1) % n_ring_slots;
    if (slot->in_use) {
        TRIA_GPU_TRY(check(cudaEventSynchronize(slot->uploaded), "waiting for an upload", error));
        slot->in_use = false;
    }
    *out = slot;
    return TRIA_OK;
}

tria_status begin_call(Context *context, Stage stage, const tria_v1_event *events, int n_events,
                       void *stream, Control *control, tria_error *error)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    ControlSlot *slot;
    TRIA_GPU_TRY(check(cudaSetDevice(context->device->ordinal), "selecting the device", error));
    control->stream = stream != NULL ? (cudaStream_t)stream : context->own_stream;
    TRIA_GPU_TRY(check(cudaStreamIsCapturing(control->stream, &capture), "asking the stream", error));
    control->capturing = capture != cudaStreamCaptureStatusNone;
    context->last_stream = control->stream;
    TRIA_GPU_TRY(stage_event_memory(context, events, n_events, control->stream, control->capturing, error));
    TRIA_GPU_TRY(control_slot(context, stage, control->capturing, &slot, error));

    Blob blob = {slot->pinned, context->control_device, 0};
    Event *described = blob.take<Event>((size_t)n_events, &control->call.events);
    control->call.plan = context->plan;
    control->described = described;
    control->extent = context->extent;
    control->extent.n_events = n_events;
    control->extent.max_rows = 1;
    for (int i = 0; i < n_events; i++) {
        control->extent.max_rows = std::max(control->extent.max_rows, most_rows(context->v1, &events[i]));
        TRIA_GPU_TRY(fill_event(context, stage, &events[i], i, &described[i], &blob, error));
    }
    TRIA_GPU_TRY(check(cudaMemcpyAsync(context->control_device, slot->pinned, blob.used,
                                       cudaMemcpyHostToDevice, control->stream),
                       "uploading the events", error));
    if (!control->capturing) {
        TRIA_GPU_TRY(check(cudaEventRecord(slot->uploaded, control->stream), "recording an event", error));
        slot->in_use = true;
    }
    return TRIA_OK;
}

tria_status upload_positions(Context *context, const tria_v1_event *events, int n_events,
                             const Control *control, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    for (int i = 0; i < n_events; i++) {
        const tria_event *e = events[i].event;
        if (e->positions == NULL || TRIA_DEVICE_TABLE(&events[i], positions) != NULL) {
            continue;
        }
        int32_t *to = context->positions + (size_t)i * position_count(context);
        for (int s = 0; s < v1->n_kv; s++) {
            const int64_t layer = e->positions_layer_stride != 0 ? v1->kv[s].layer : 0;
            const int64_t head = e->positions_head_stride != 0 ? v1->kv[s].head : 0;
            int longest = 0;
            bool first = true; /* slot with this table */
            for (int other = 0; other < v1->n_kv; other++) {
                const bool same = (e->positions_layer_stride == 0 || v1->kv[other].layer == layer) &&
                                  (e->positions_head_stride == 0 || v1->kv[other].head == head);
                first = first && !(same && other < s);
                longest = same ? std::max(longest, host_rows(&events[i], other)) : longest;
            }
            if (first && longest > 0) {
                const int32_t *from =
                    e->positions + layer * e->positions_layer_stride + head * e->positions_head_stride;
                TRIA_GPU_TRY(check(cudaMemcpyAsync(to + (layer * max_heads(v1) + head) * v1->max_rows, from,
                                                   sizeof(int32_t) * (size_t)longest,
                                                   cudaMemcpyHostToDevice, control->stream),
                                   "uploading positions", error));
            }
        }
    }
    return TRIA_OK;
}
} // namespace tria_gpu

/*
 * staging.cpp - K and V that lie in ordinary host memory, which the device cannot reach: copied to the
 * device for a call, and back after a compaction. Only where the engine asked for it.
 */
#include "context.h"

#include <string.h>

#include <algorithm>

namespace tria_gpu
{
/* Bytes around an address that a tensor's rows lie in. */
struct Span {
    int64_t begin;
    int64_t end;

    void repeat(int64_t stride, int64_t count)
    {
        if (count > 1) {
            (stride < 0 ? begin : end) += stride * (count - 1);
        }
    }
};

static void add_range(Context *context, const void *base, uint64_t offset, const Span &span,
                      const unsigned char **first_byte)
{
    unsigned char *first = (unsigned char *)(uintptr_t)base + offset;
    *first_byte = first + span.begin;
    StagedRange *range = &context->staged[context->n_staged++];
    range->begin = first + span.begin;
    range->end = first + span.end;
}

/* Adds a tensor's rows, and its scales. */
static void add_tensor(Context *context, const tria_v1_event *event, int layer, const tria_layer_view *from,
                       const tria_tensor *tensor, const unsigned char **first_bytes)
{
    const tria_v1_layer *l = &context->v1->layers[layer];
    const tria_kv_view *view = event->event->kv;
    const int32_t *table = from->page_table != NULL ? from->page_table : view->page_table;
    int64_t n_rows = 0;
    int64_t first_page = 0;
    int64_t last_page = 0;
    int64_t tokens;
    Tensor rows;
    for (int s = l->first_kv_slot; s < l->first_kv_slot + l->n_kv_heads; s++) {
        n_rows = std::max<int64_t>(n_rows, event->rows[s]);
    }
    if (n_rows == 0) {
        return;
    }
    tokens = n_rows;
    if (table != NULL) {
        tokens = std::min<int64_t>(n_rows, view->tokens_per_page);
        first_page = last_page = table[0];
        for (int64_t i = 1; i * view->tokens_per_page < n_rows; i++) {
            first_page = std::min<int64_t>(first_page, table[i]);
            last_page = std::max<int64_t>(last_page, table[i]);
        }
    }
    describe_tensor(tensor, tensor->dim, &rows);
    Span span = {first_page * tensor->page_stride, first_page * tensor->page_stride + rows.run_bytes};
    span.repeat(tensor->page_stride, last_page - first_page + 1);
    span.repeat(tensor->token_stride, tokens);
    span.repeat(tensor->head_stride, l->n_kv_heads);
    span.repeat(rows.run_stride, rows.n_runs);
    add_range(context, tensor->base, tensor->offset, span, &first_bytes[0]);
    if (tensor->scale_kind == TRIA_SCALE_ROW || tensor->scale_kind == TRIA_SCALE_HEAD) {
        Span scales = {0, sizeof(float)};
        scales.repeat(tensor->scale_head_stride, l->n_kv_heads);
        if (tensor->scale_kind == TRIA_SCALE_ROW) {
            scales.begin += first_page * tensor->scale_page_stride;
            scales.end += first_page * tensor->scale_page_stride;
            scales.repeat(tensor->scale_page_stride, last_page - first_page + 1);
            scales.repeat(tensor->scale_token_stride, tokens);
        }
        add_range(context, tensor->scales, tensor->scales_offset, scales, &first_bytes[1]);
    }
}

/* Ranges that overlap (K and V of one buffer) become one, so that nothing is copied back twice. Allocations
 * stay with their index. */
static void merge_ranges(Context *context)
{
    int n = 0;
    struct Bytes {
        unsigned char *begin;
        unsigned char *end;
    };
    for (int i = 1; i < context->n_staged; i++) { /* insertion sort of the bytes only */
        Bytes mine = {context->staged[i].begin, context->staged[i].end};
        int at = i;
        for (; at > 0 && context->staged[at - 1].begin > mine.begin; at--) {
            context->staged[at].begin = context->staged[at - 1].begin;
            context->staged[at].end = context->staged[at - 1].end;
        }
        context->staged[at].begin = mine.begin;
        context->staged[at].end = mine.end;
    }
    for (int i = 1; i < context->n_staged; i++) {
        StagedRange *last = &context->staged[n];
        if (context->staged[i].begin <= last->end) {
            last->end = std::max(last->end, context->staged[i].end);
        } else {
            n++;
            context->staged[n].begin = context->staged[i].begin;
            context->staged[n].end = context->staged[i].end;
        }
    }
    context->n_staged = context->n_staged > 0 ? n + 1 : 0;
}

static tria_status copy_ranges_in(Context *context, cudaStream_t stream, tria_error *error)
{
    for (int i = 0; i < context->n_staged; i++) {
        StagedRange *range = &context->staged[i];
        const size_t size = (size_t)(range->end - range->begin);
        if (range->capacity < size + 16) {
            ignore(cudaFree(range->allocation));
            range->allocation = NULL;
            range->capacity = 0;
            TRIA_GPU_TRY(check(cudaMalloc(&range->allocation, size + 16),
                               "allocating a copy of host K and V", error));
            range->capacity = size + 16;
        }
        /* the same alignment as on the host */
        range->device = (unsigned char *)range->allocation + (uintptr_t)range->begin % 16;
        TRIA_GPU_TRY(
            check(cudaMemcpyAsync(range->device, range->begin, size, cudaMemcpyHostToDevice, stream),
                  "copying host K and V to the device", error));
    }
    return TRIA_OK;
}

tria_status stage_event_memory(Context *context, const tria_v1_event *events, int n_events,
                               cudaStream_t stream, bool capturing, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    context->n_staged = 0;
    if (context->max_staged > 0) {
        memset(context->staged_first, 0, sizeof(*context->staged_first) * (size_t)context->max_staged);
    }
    for (int i = 0; i < n_events; i++) {
        const tria_kv_view *view = events[i].event->kv;
        for (int l = 0; view != NULL && l < v1->n_layers; l++) {
            for (int v = 0; v < 2 && v1->layers[l].n_kv_heads > 0; v++) {
                const tria_tensor *tensor = v == 0 ? &view->layers[l].k : &view->layers[l].v;
                const void **known = &context->known_bases[2 * (i * v1->n_layers + l) + v];
                cudaPointerAttributes attributes;
                if (tensor->base == NULL || tensor->base == *known) {
                    continue;
                }
                /* older runtimes report an error for memory they do not know */
                const bool reachable = cudaPointerGetAttributes(&attributes, tensor->base) == cudaSuccess &&
                                       port_reachable(attributes);
                ignore(cudaGetLastError());
                if (reachable) {
                    *known = tensor->base;
                    continue;
                }
                if (context->max_staged == 0) {
                    return fail(error, TRIA_E_UNSUPPORTED,
                                "layer %d %s lies in host memory that the device cannot reach, and "
                                "stage_device_memory is "
                                "not set",
                                v1->layers[l].model_layer, v == 0 ? "K" : "V");
                }
                if (capturing || events[i].rows == NULL ||
                    TRIA_DEVICE_TABLE(&events[i], page_tables) != NULL) {
                    return fail(
                        error, TRIA_E_STATE,
                        "layer %d %s lies in host memory: it cannot be captured, nor read by device tables",
                        v1->layers[l].model_layer, v == 0 ? "K" : "V");
                }
                add_tensor(context, &events[i], l, &view->layers[l], tensor,
                           &context->staged_first[4 * (i * v1->n_layers + l) + 2 * v]);
            }
        }
    }
    merge_ranges(context);
    return copy_ranges_in(context, stream, error);
}

unsigned char *staged_address(const Context *context, int place, const void *pointer, uint64_t offset)
{
    unsigned char *address = (unsigned char *)(uintptr_t)pointer + offset;
    const unsigned char *first = context->max_staged > 0 ? context->staged_first[place] : NULL;
    if (pointer == NULL) {
        return NULL;
    }
    for (int i = 0; i < context->n_staged && first != NULL; i++) {
        const StagedRange *range = &context->staged[i];
        if (first >= range->begin && first < range->end) {
            return range->device + (address - range->begin);
        }
    }
    return address;
}

tria_status unstage(Context *context, cudaStream_t stream, tria_error *error)
{
    for (int i = 0; i < context->n_staged; i++) {
        const StagedRange *range = &context->staged[i];
        TRIA_GPU_TRY(check(cudaMemcpyAsync(range->begin, range->device, (size_t)(range->end - range->begin),
                                           cudaMemcpyDeviceToHost, stream),
                           "copying K and V back to the host", error));
    }
    if (context->n_staged > 0) {
        return check(cudaStreamSynchronize(stream), "waiting for K and V", error);
    }
    return TRIA_OK;
}

void release_staging(Context *context)
{
    for (int i = 0; i < context->max_staged && context->staged != NULL; i++) {
        ignore(cudaFree(context->staged[i].allocation));
    }
}
} // namespace tria_gpu

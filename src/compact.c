/*
 * compact.c - repacking caches in place: check everything, move (layer, KV head)s in parallel, report.
 */
#include "compact_internal.h"
#include "cpu/terms.h"
#include "kv_view_internal.h"

#include <string.h>

typedef struct compact_job {
    const tria_v1_plan *plan;
    const tria_v1_event *events;
    int32_t n_events;
    const tria_compact_context *context;
} compact_job;

/* Zeroes the tail, but no page that is shared: those are no longer this sequence's. */
static void zero_tail(const tria_v1_event *event, const tria_gather *gather, const tria_lane *lane)
{
    const tria_compaction *out = event->compaction;
    const int32_t tokens = lane->tokens_per_page;
    if (out == NULL || out->page_shared == NULL || lane->page_table == NULL ||
        lane->page_table != event->event->kv->page_table) {
        tria_lane_zero(lane, gather->count, gather->n_rows);
        return;
    }
    for (int32_t row = gather->count; row < gather->n_rows;) {
        const int32_t page = row / tokens;
        const int32_t rest = tokens - row % tokens;
        const int32_t end = rest < gather->n_rows - row ? row + rest : gather->n_rows;
        if (out->page_shared[page] == 0) {
            tria_lane_zero(lane, row, end);
        }
        row = end;
    }
}

static void move_lane(const compact_job *job, const tria_v1_event *event, const tria_gather *gather,
                      const tria_lane *lane)
{
    tria_gather_lane(gather, lane);
    if (job->plan->params->zero_tail) {
        zero_tail(event, gather, lane);
    }
}

/* A tensor is a lane per chunk of its rows, and one of scales that belong to rows. */
static void move_tensor(const compact_job *job, const tria_v1_event *event, const tria_gather *gather,
                        int32_t slot, const tria_tensor *tensor)
{
    const tria_v1_kv *kv = &job->plan->kv[slot];
    const tria_kv_view *view = event->event->kv;
    tria_chunks chunks;
    tria_rows rows;
    tria_tensor_chunks(tensor, &chunks);
    tria_rows_init(&rows, view, &view->layers[kv->layer], tensor, kv->head);
    tria_lane lane = {.base = rows.head_base,
                      .page_table = rows.page_table,
                      .tokens_per_page = rows.tokens_per_page,
                      .bytes = chunks.bytes,
                      .page_stride = tensor->page_stride,
                      .token_stride = tensor->token_stride};
    for (int32_t i = 0; i < chunks.n; i++, lane.base += chunks.stride) {
        move_lane(job, event, gather, &lane);
    }
    if (tensor->scale_kind == TRIA_SCALE_ROW) {
        lane.base = rows.scale_base;
        lane.bytes = (int32_t)sizeof(float);
        lane.page_stride = tensor->scale_page_stride;
        lane.token_stride = tensor->scale_token_stride;
        move_lane(job, event, gather, &lane);
    }
}

static void move_slot(const compact_job *job, const tria_v1_event *event, int32_t slot)
{
    const tria_v1_plan *plan = job->plan;
    const tria_event *e = event->event;
    const tria_v1_kv *kv = &plan->kv[slot];
    tria_gather gather;
    tria_compact_slot(plan, event, slot, &gather);
    if (kv->set < 0 || gather.in_place == gather.n_rows) {
        return;
    }
    if (e->kv != NULL && !job->context->rows_elsewhere) {
        const tria_layer_view *view = &e->kv->layers[kv->layer];
        move_tensor(job, event, &gather, slot, &view->k);
        if (view->v.base != NULL && !tria_compact_v_in_k(&view->k, &view->v)) {
            move_tensor(job, event, &gather, slot, &view->v);
        }
    }
    if (e->positions != NULL && tria_compact_position_owner(plan, e, slot) == slot) {
        tria_lane lane = {.base = (unsigned char *)(e->positions + kv->layer * e->positions_layer_stride +
                                                    kv->head * e->positions_head_stride),
                          .bytes = (int32_t)sizeof(int32_t),
                          .token_stride = (int64_t)sizeof(int32_t)};
        tria_gather_lane(&gather, &lane);
    }
    if (e->terms != NULL) {
        tria_terms_move(e->terms, slot, &gather);
    }
}

/* One KV slot of all events: the unit of parallel work. */
static void move_task(void *argument, int32_t slot)
{
    const compact_job *job = argument;
    for (int32_t i = 0; i < job->n_events; i++) {
        move_slot(job, &job->events[i], slot);
    }
}

/* Bytes of a row that move. */
static int64_t moved_bytes(const tria_tensor *tensor)
{
    int64_t scale = tensor->scale_kind == TRIA_SCALE_ROW ? (int64_t)sizeof(float) : 0;
    return tria_dtype_row_bytes(tensor->dtype, tensor->dim) + scale;
}

static void report_pages(const tria_v1_plan *plan, const tria_v1_event *event, tria_compaction *out)
{
    const tria_event *e = event->event;
    for (int32_t layer = 0; layer < plan->n_layers; layer++) {
        int32_t before;
        int32_t after;
        int32_t n_pages;
        if (!tria_compact_owns_table(plan, e, layer)) {
            continue;
        }
        const int32_t *table = tria_page_table(e->kv, &e->kv->layers[layer], &n_pages);
        tria_compact_pages(plan, event, layer, &before, &after);
        if (out->freed_pages != NULL) {
            memcpy(out->freed_pages + out->n_freed_pages, table + after,
                   (size_t)(before - after) * sizeof(*table));
        }
        out->n_freed_pages += before - after;
    }
}

static void report(const tria_v1_plan *plan, const tria_v1_event *event, tria_compaction *out)
{
    const tria_event *e = event->event;
    out->n_moves = 0;
    out->bytes_moved = 0;
    out->n_freed_pages = 0;
    out->rows_after = 0;
    out->n_shared = 0;
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        const tria_v1_kv *kv = &plan->kv[slot];
        tria_gather gather;
        tria_compact_slot(plan, event, slot, &gather);
        const int32_t n_moves = tria_gather_n_moves(&gather);
        if (out->moves != NULL) {
            tria_gather_moves(&gather, kv->layer, kv->head, out->moves + out->n_moves);
        }
        out->n_moves += n_moves;
        if (e->kv != NULL && kv->set >= 0) {
            const tria_layer_view *view = &e->kv->layers[kv->layer];
            out->bytes_moved += n_moves * moved_bytes(&view->k);
            if (view->v.base != NULL && !tria_compact_v_in_k(&view->k, &view->v)) {
                out->bytes_moved += n_moves * moved_bytes(&view->v);
            }
        }
        if (kv->set >= 0 && gather.count > out->rows_after) {
            out->rows_after = gather.count;
        }
    }
    if (e->kv != NULL) {
        report_pages(plan, event, out);
    }
}

tria_status tria_cpu_compact(const tria_v1_plan *plan, const tria_v1_event *events, int32_t n_events,
                             const tria_compact_context *context, tria_error *error)
{
    tria_status shared = TRIA_OK;
    for (int32_t i = 0; i < n_events; i++) {
        tria_status status = tria_compact_check(plan, &events[i], context->scratch, error);
        if (status == TRIA_E_SHARED_PAGE) {
            shared = status; /* go on: every event lists its pages */
        } else if (status != TRIA_OK) {
            return tria_fail_in(error, status, "event %d", i);
        }
    }
    if (shared != TRIA_OK) {
        return shared;
    }
    compact_job job = {plan, events, n_events, context};
    if (context->parallel_for != NULL) {
        context->parallel_for(context->parallel_context, plan->n_kv, move_task, &job);
    } else {
        for (int32_t i = 0; i < plan->n_kv; i++) {
            move_task(&job, i);
        }
    }
    for (int32_t i = 0; i < n_events; i++) {
        if (events[i].compaction != NULL) {
            report(plan, &events[i], events[i].compaction);
        }
    }
    return TRIA_OK;
}

tria_status tria_host_compact(const tria_v1_plan *plan, const tria_v1_event *events, int32_t n_events,
                              int32_t *scratch, tria_error *error)
{
    const tria_compact_context context = {.scratch = scratch, .rows_elsewhere = true};
    return tria_cpu_compact(plan, events, n_events, &context, error);
}

/* vk_backend.c - the stages of a batch, and the backend's table. */
#include "vk_plan.h"

#include <string.h>

/* Brings the context to rest, delivering what is still due. */
static tria_status settle(vk_context *context, tria_error *error)
{
    if (context->state == VK_RECORDED) {
        return vk_fail(error, TRIA_E_STATE,
                       "vulkan: the last batch was recorded into the engine's command buffer; call "
                       "tria_plan_synchronize() when that has finished");
    }
    return vk_synchronize(context, error);
}

tria_status vk_synchronize(void *opaque, tria_error *error)
{
    vk_context *context = opaque;
    if (context->state == VK_IDLE) {
        return TRIA_OK;
    }
    if (context->state == VK_RECORDING) {
        VK_TRY(vk_record_end(context, error));
        VK_TRY(vk_submit(context, error));
    }
    if (context->state == VK_RUNNING) {
        VK_TRY(vk_wait(context, error));
    }
    context->state = VK_IDLE; /* the engine's command buffer has finished, says the caller */
    return vk_deliver(context, error);
}

static tria_status read_stream(vk_context *context, const void *stream, tria_error *error)
{
    tria_vulkan_stream *s = &context->stream;
    size_t size = sizeof(*s);
    memset(s, 0, sizeof(*s));
    if (stream != NULL) {
        memcpy(&size, stream, sizeof(size));
        if (size < sizeof(*s)) {
            return vk_fail(error, TRIA_E_ARGUMENT, "vulkan: tria_vulkan_stream of %zu bytes, expected %zu",
                           size, sizeof(*s));
        }
        memcpy(s, stream, sizeof(*s));
    }
    if (s->command_buffer != NULL && (s->wait_semaphore != 0 || s->signal_semaphore != 0)) {
        return vk_fail(error, TRIA_E_ARGUMENT,
                       "vulkan: a stream has either a command buffer or semaphores");
    }
    if (s->command_buffer != NULL && context->staged) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: staged keys cannot be recorded into a command buffer");
    }
    return TRIA_OK;
}

static tria_status check_event(const tria_v1_event *event, int32_t index, tria_error *error)
{
    if (event->event->device != NULL || event->rows == NULL) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: event %d: control tables in device memory are not supported", index);
    }
    if (event->scores != NULL && event->scores->dtype != TRIA_DTYPE_F32) {
        return vk_fail(error, TRIA_E_UNSUPPORTED, "vulkan: event %d: scores are f32", index);
    }
    return TRIA_OK;
}

/* Whether any set of the event has a row to lose. */
static bool can_evict(const tria_v1_plan *plan, const tria_v1_event *event)
{
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set >= 0 && event->set_budgets[plan->kv[s].set] < event->rows[s]) {
            return true;
        }
    }
    return false;
}

/* Takes over a new batch: inputs in the upload buffers, tensors bound. */
static tria_status load_batch(vk_context *context, const tria_v1_event *events, int32_t n_events,
                              const void *stream, bool scoring, tria_error *error)
{
    VK_TRY(settle(context, error));
    VK_TRY(read_stream(context, stream, error));
    context->n_events = 0; /* until all of it is taken */
    context->selected = false;
    context->deliver_keep = false;
    context->deliver_compaction = false;
    for (int32_t i = 0; i < n_events; i++) {
        vk_sequence *s = &context->sequences[i];
        VK_TRY(check_event(&events[i], i, error));
        s->event = &events[i];
        s->scored = scoring && (events[i].scores != NULL || can_evict(context->plan, &events[i]));
        memset(&s->scores, 0, sizeof(s->scores));
        if (events[i].scores != NULL && scoring) {
            s->scores = *events[i].scores;
        }
        if (scoring) {
            VK_TRY(vk_bind(context, s, &events[i], false, error));
        }
        if (s->scored && context->staged) {
            vk_stage_in(context, s, &events[i], false);
        }
        VK_TRY(vk_event_fill(context, s, &events[i], false, error));
    }
    context->n_events = n_events;
    return TRIA_OK;
}

tria_status vk_score(void *opaque, const tria_v1_event *events, int32_t n_events, void *stream,
                     tria_error *error)
{
    vk_context *context = opaque;
    VK_TRY(load_batch(context, events, n_events, stream, true, error));
    VK_TRY(vk_record_begin(context, error));
    vk_record_inputs(context, false);
    vk_record_score(context);
    /* our own command buffer stays open: a selection joins the submission */
    return context->state == VK_RECORDED ? vk_record_end(context, error) : TRIA_OK;
}

static tria_status load_final_scores(vk_context *context, const tria_v1_event *events, int32_t n_events,
                                     const void *stream, tria_error *error)
{
    const size_t count = (size_t)context->plan->n_sets * (size_t)context->plan->max_rows;
    VK_TRY(load_batch(context, events, n_events, stream, false, error));
    for (int32_t i = 0; i < n_events; i++) {
        memcpy((float *)context->sequences[i].upload.mapped + context->layout.upload_keep,
               events[i].final_scores, sizeof(float) * count);
    }
    VK_TRY(vk_record_begin(context, error));
    vk_record_inputs(context, false);
    vk_record_final_scores(context);
    return TRIA_OK;
}

tria_status vk_select(void *opaque, const tria_v1_event *events, int32_t n_events, void *stream,
                      tria_error *error)
{
    vk_context *context = opaque;
    if (events[0].final_scores != NULL) {
        VK_TRY(load_final_scores(context, events, n_events, stream, error));
    } else if ((context->state != VK_RECORDING && context->state != VK_RECORDED) ||
               context->n_events != n_events) {
        return vk_fail(error, TRIA_E_STATE, "vulkan: nothing was scored for this selection");
    }
    for (int32_t i = 0; i < n_events; i++) {
        context->sequences[i].keep_out = events[i].keep;
    }
    vk_record_select(context);
    context->selected = true;
    context->deliver_keep = true;
    VK_TRY(vk_record_end(context, error));
    if (context->state == VK_RECORDED) {
        return TRIA_OK;
    }
    VK_TRY(vk_submit(context, error));
    const bool asynchronous = context->stream.wait_semaphore != 0 || context->stream.signal_semaphore != 0;
    return asynchronous ? TRIA_OK : vk_synchronize(context, error);
}

/* Keep sets to the upload buffer. */
static void load_keep(vk_context *context, const vk_sequence *sequence, const tria_keep *keep)
{
    const tria_v1_plan *plan = context->plan;
    uint32_t *counts = (uint32_t *)sequence->upload.mapped + context->layout.upload_keep;
    uint32_t *rows = counts + plan->n_sets;
    for (int32_t set = 0; set < plan->n_sets; set++) {
        counts[set] = (uint32_t)keep->counts[set];
        memcpy(rows + (size_t)set * (size_t)plan->max_rows, keep->rows + set * keep->row_stride,
               sizeof(*rows) * counts[set]);
    }
}

/* A compaction that follows a selection in the engine's command buffer: its keep sets are only known when
 * that has run. What can be wrong with the cache is found with keep sets that keep everything. */
static tria_status check_late(vk_context *context, const tria_v1_event *events, int32_t n_events,
                              tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    const tria_v1_host *host = &context->device->host;
    for (int32_t i = 0; i < n_events; i++) {
        vk_sequence *s = &context->sequences[i];
        const tria_compaction *out = events[i].compaction;
        int64_t most_moves = 0;
        VK_TRY(check_event(&events[i], i, error));
        for (int32_t set = 0; set < plan->n_sets; set++) {
            const int32_t n = events[i].rows[vk_first_slot(plan, set)];
            s->last_keep.counts[set] = n;
            for (int32_t row = 0; row < n; row++) {
                s->last_keep.rows[set * s->last_keep.row_stride + row] = row;
            }
        }
        for (int32_t slot = 0; slot < plan->n_kv; slot++) {
            most_moves += plan->kv[slot].set >= 0 ? events[i].rows[slot] : 0;
        }
        if (out != NULL && (out->page_shared != NULL || out->freed_pages != NULL)) {
            return vk_fail(error, TRIA_E_STATE,
                           "vulkan: event %d: shared and freed pages need the keep sets; synchronize after "
                           "the selection",
                           i);
        }
        if (out != NULL && out->moves != NULL && out->moves_capacity < most_moves) {
            return vk_fail(error, TRIA_E_CAPACITY,
                           "vulkan: event %d: moves_capacity %lld; before the selection has run, room for "
                           "all %lld rows is needed",
                           i, (long long)out->moves_capacity, (long long)most_moves);
        }
        context->events[i] = events[i];
        context->events[i].keep = &s->last_keep;
        context->events[i].compaction = NULL;
    }
    return host->compact(plan, context->events, n_events, context->compact_scratch, error);
}

static tria_status compact_late(vk_context *context, const tria_v1_event *events, int32_t n_events,
                                const void *stream, tria_error *error)
{
    VK_TRY(read_stream(context, stream, error));
    if (context->stream.command_buffer == NULL) {
        return settle(context, error); /* says what to do */
    }
    VK_TRY(check_late(context, events, n_events, error));
    for (int32_t i = 0; i < n_events; i++) {
        VK_TRY(vk_bind(context, &context->sequences[i], &events[i], true, error));
    }
    for (int32_t i = 0; i < n_events; i++) {
        context->events[i].compaction = events[i].compaction;
        context->sequences[i].event = &context->events[i];
    }
    context->deliver_compaction = true;
    VK_TRY(vk_record_begin(context, error));
    vk_record_compact(context);
    return vk_record_end(context, error);
}

/* Keep sets that are known: those given, else the last selection's. */
static tria_status take_keep(vk_context *context, const tria_v1_event *events, int32_t n_events,
                             bool *rows_move, tria_error *error)
{
    const bool has_keep = context->selected && context->n_events == n_events;
    *rows_move = false;
    for (int32_t i = 0; i < n_events; i++) {
        vk_sequence *s = &context->sequences[i];
        VK_TRY(check_event(&events[i], i, error));
        if (events[i].keep == NULL && !has_keep) {
            return vk_fail(error, TRIA_E_STATE,
                           "vulkan: event %d has no keep sets and nothing was selected", i);
        }
        context->events[i] = events[i];
        if (events[i].keep == NULL) {
            context->events[i].keep = &s->last_keep;
        }
        VK_TRY(vk_bind(context, s, &events[i], true, error));
        *rows_move = *rows_move || events[i].event->kv != NULL;
    }
    return TRIA_OK;
}

tria_status vk_compact(void *opaque, const tria_v1_event *events, int32_t n_events, void *stream,
                       tria_error *error)
{
    vk_context *context = opaque;
    const tria_v1_host *host = &context->device->host;
    bool rows_move;
    if (context->state == VK_RECORDED && context->selected && context->n_events == n_events &&
        events[0].keep == NULL) {
        return compact_late(context, events, n_events, stream, error);
    }
    VK_TRY(settle(context, error));
    VK_TRY(read_stream(context, stream, error));
    VK_TRY(take_keep(context, events, n_events, &rows_move, error));
    context->n_events = 0;
    context->selected = false;
    /* From here on only the device can fail: checks, then positions and the report. */
    VK_TRY(host->compact(context->plan, context->events, n_events, context->compact_scratch, error));
    if (!rows_move) {
        return TRIA_OK;
    }
    for (int32_t i = 0; i < n_events; i++) {
        vk_sequence *s = &context->sequences[i];
        s->event = &context->events[i];
        memset(&s->scores, 0, sizeof(s->scores));
        VK_TRY(vk_event_fill(context, s, s->event, true, error));
        load_keep(context, s, s->event->keep);
        if (context->staged) {
            vk_stage_in(context, s, s->event, true);
        }
    }
    context->n_events = n_events;
    VK_TRY(vk_record_begin(context, error));
    vk_record_inputs(context, true);
    vk_record_keep(context);
    vk_record_compact(context);
    VK_TRY(vk_record_end(context, error));
    if (context->state == VK_RECORDED) {
        return TRIA_OK;
    }
    VK_TRY(vk_submit(context, error));
    if (context->staged) {
        VK_TRY(vk_wait(context, error));
        for (int32_t i = 0; i < n_events; i++) {
            vk_stage_out(context, &context->sequences[i], &context->events[i]);
        }
    }
    return TRIA_OK;
}

__attribute__((visibility("default"))) extern const tria_backend_v1_table tria_backend_v1;
const tria_backend_v1_table tria_backend_v1 = {
    .struct_size = sizeof(tria_backend_v1_table),
    .version = TRIA_BACKEND_V1_VERSION,
    .name = "vulkan",
    .probe = vk_probe,
    .device_info = vk_device_info,
    .device_open = vk_device_open,
    .device_close = vk_device_close,
    .device_name = vk_device_name,
    .supports = vk_supports,
    .plan_create = vk_plan_create,
    .plan_destroy = vk_plan_destroy,
    .score = vk_score,
    .select = vk_select,
    .compact = vk_compact,
    .synchronize = vk_synchronize,
    .workspace_size = vk_workspace_size,
    .seconds = vk_seconds,
    .copy_seconds = vk_copy_seconds,
};

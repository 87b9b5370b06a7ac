/* stages.cpp - the three calls: what is launched, in which order, and how results reach the host. */
#include "context.h"

#include <math.h>
#include <string.h>

#include <algorithm>

namespace tria_gpu
{
static bool wants_ranks(const tria_v1_event *event)
{
    return event->keep != NULL || (event->scores != NULL && event->scores->final_scores != NULL);
}

static bool wants_grouped(const tria_v1_event *event)
{
    return event->scores != NULL && event->scores->grouped != NULL;
}

static bool keeps_on_device(const tria_v1_event *event)
{
    return TRIA_DEVICE_TABLE(event, keep_rows) != NULL && TRIA_DEVICE_TABLE(event, keep_counts) != NULL;
}

template <class Predicate> static bool any(const tria_v1_event *events, int n_events, Predicate predicate)
{
    for (int i = 0; i < n_events; i++) {
        if (predicate(&events[i])) {
            return true;
        }
    }
    return false;
}

/* Rows or positions that the host has not compared. */
static bool unchecked(const tria_v1_event *event)
{
    return event->rows == NULL || TRIA_DEVICE_TABLE(event, positions) != NULL;
}

static tria_status clear_counters(Context *context, int n_events, cudaStream_t stream, tria_error *error)
{
    const size_t bytes = context->counter_count * sizeof(int32_t) * (size_t)n_events;
    return check(cudaMemsetAsync(context->counters, 0, bytes, stream), "clearing counters", error);
}

/* Masks of protected rows, of all slots or of those that stand for sets; and the comparison of positions.
 */
static tria_status protect_rows(Context *context, const tria_v1_event *events, int n_events,
                                const Control &control, tria_error *error)
{
    const int which = context->plan.normalize_over == TRIA_NORMALIZE_CANDIDATES ? 1 : 0;
    const bool compare =
        context->borrows || (context->positions_compared && any(events, n_events, unchecked));
    if (context->n_protect_slots[which] > 0) {
        TRIA_GPU_TRY(check(launch_protect(control.call, control.extent, context->protect_slots[which],
                                          context->n_protect_slots[which], control.stream),
                           "protected rows", error));
    }
    return compare ? check(launch_compare(control.call, control.extent, control.stream),
                           "comparing positions", error)
                   : TRIA_OK;
}

/* All-reduces the sets' rows over the ranks. */
static tria_status reduce(Context *context, const tria_v1_event *events, int n_events,
                          const Control &control, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const tria_plan_params *params = v1->params;
    const bool mean = context->plan.mode == TRIA_MODE_PER_HEAD && context->plan.layers_mean;
    const tria_reduce_op op = mean ? TRIA_REDUCE_SUM : TRIA_REDUCE_MAX;
    for (int i = 0; i < n_events; i++) {
        for (int set = 0; set < v1->n_sets; set++) {
            if (!context->set_reduces[set]) {
                continue;
            }
            const size_t at = ((size_t)i * (size_t)v1->n_sets + (size_t)set) * (size_t)v1->max_rows;
            const int64_t n = events[i].rows[context->set_slots[set]];
            if (params->all_reduce(params->all_reduce_context, context->final_scores + at, n, op,
                                   control.stream) != 0 ||
                (mean && params->all_reduce(params->all_reduce_context, context->reduce_counts + at, n, op,
                                            control.stream) != 0)) {
                return fail(error, TRIA_E_CANCELLED, "event %d: the all-reduce callback failed in set %d",
                            i, set);
            }
        }
    }
    return check(launch_reduced(control.call, control.extent, control.stream), "the reduced scores", error);
}

static tria_status copy_rows_out(const float *from, void *to, int n, cudaStream_t stream, tria_error *error)
{
    return n == 0
               ? TRIA_OK
               : check(cudaMemcpyAsync(to, from, sizeof(float) * (size_t)n, cudaMemcpyDeviceToHost, stream),
                       "copying scores to the host", error);
}

/* Queues the copies of the scores that an event asks for. */
static tria_status copy_scores_out(Context *context, const tria_v1_event *event, int index,
                                   cudaStream_t stream, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const tria_scores *out = event->scores;
    const size_t m = (size_t)v1->max_rows;
    const size_t e = (size_t)index;
    for (int q = 0; q < v1->n_queries && out->raw != NULL; q++) {
        const int slot = v1->queries[q].kv_slot;
        float *to = (float *)out->raw + q * out->row_stride;
        if (slot >= 0 && v1->queries[q].calibrated) {
            TRIA_GPU_TRY(copy_rows_out(context->raw + (e * (size_t)v1->n_queries + (size_t)q) * m, to,
                                       host_rows(event, slot), stream, error));
        } else if (slot >= 0) {
            std::fill(to, to + host_rows(event, slot), NAN);
        }
    }
    for (int s = 0; s < v1->n_kv && out->grouped != NULL; s++) {
        TRIA_GPU_TRY(copy_rows_out(context->grouped + (e * (size_t)v1->n_kv + (size_t)s) * m,
                                   (float *)out->grouped + s * out->row_stride, host_rows(event, s), stream,
                                   error));
    }
    const float *final_scores = context->plan.pool_radius > 0 ? context->pooled : context->final_scores;
    for (int set = 0; set < v1->n_sets && out->final_scores != NULL; set++) {
        TRIA_GPU_TRY(copy_rows_out(final_scores + (e * (size_t)v1->n_sets + (size_t)set) * m,
                                   (float *)out->final_scores + set * out->row_stride,
                                   host_rows(event, context->set_slots[set]), stream, error));
    }
    return TRIA_OK;
}

static tria_status check_score_events(const Context *context, const tria_v1_event *events, int n_events,
                                      tria_error *error)
{
    for (int i = 0; i < n_events; i++) {
        if (events[i].scores != NULL && events[i].scores->dtype != TRIA_DTYPE_F32) {
            return fail(error, TRIA_E_UNSUPPORTED, "event %d: device scores are f32", i);
        }
        if (context->plan.reduces && events[i].rows == NULL) {
            return fail(error, TRIA_E_UNSUPPORTED,
                        "event %d: rows must be in host memory to be all-reduced", i);
        }
    }
    return TRIA_OK;
}

tria_status run_score(Context *context, const tria_v1_event *events, int n_events, void *stream,
                      tria_error *error)
{
    const bool ranks = any(events, n_events, wants_ranks);
    const bool grouped = any(events, n_events, wants_grouped);
    const bool scores =
        any(events, n_events, [](const tria_v1_event *event) { return event->scores != NULL; });
    const bool ranked_only = !grouped && !any(events, n_events, [](const tria_v1_event *event) {
        return event->scores != NULL && event->scores->raw != NULL;
    });
    bool idle = true;
    Control control;
    TRIA_GPU_TRY(check_score_events(context, events, n_events, error));
    TRIA_GPU_TRY(begin_call(context, STAGE_SCORE, events, n_events, stream, &control, error));
    if (control.capturing && scores) {
        return fail(error, TRIA_E_STATE, "scores for the host cannot be captured");
    }
    for (int i = 0; i < n_events; i++) {
        idle = idle && is_idle(context, STAGE_SCORE, &events[i]);
    }
    TRIA_GPU_TRY(clear_counters(context, n_events, control.stream, error));
    if (idle) {
        return TRIA_OK;
    }
    TRIA_GPU_TRY(upload_positions(context, events, n_events, &control, error));
    if (ranks || context->plan.normalize_over == TRIA_NORMALIZE_CANDIDATES) {
        TRIA_GPU_TRY(protect_rows(context, events, n_events, control, error));
    }
    if (context->n_launches > 0) {
        TRIA_GPU_TRY(check(launch_fold(control.call, control.extent, control.stream), "fold", error));
        for (int i = 0; i < context->n_launches; i++) {
            TRIA_GPU_TRY(check(launch_score(control.call, control.extent, context->launches[i], ranked_only,
                                            control.stream),
                               "score", error));
        }
    }
    if (context->plan.n_kv > 0) {
        TRIA_GPU_TRY(
            check(launch_normalise(control.call, control.extent, ranked_only,
                                   grouped || context->plan.mode == TRIA_MODE_GLOBAL, control.stream),
                  "normalise", error));
    }
    if (ranks && context->plan.n_sets > 0) {
        TRIA_GPU_TRY(check(launch_rank(control.call, control.extent, control.stream), "rank", error));
        if (context->plan.reduces) {
            TRIA_GPU_TRY(reduce(context, events, n_events, control, error));
        }
        if (context->plan.pool_radius > 0) {
            TRIA_GPU_TRY(check(launch_pool(control.call, control.extent, control.stream), "pool", error));
        }
    }
    for (int i = 0; i < n_events; i++) {
        if (events[i].scores != NULL) {
            TRIA_GPU_TRY(copy_scores_out(context, &events[i], i, control.stream, error));
        }
    }
    return scores ? check(cudaStreamSynchronize(control.stream), "score", error) : TRIA_OK;
}

/* Scores that another backend made take the place of what `score` would have left. */
static tria_status accept_scores(Context *context, const tria_v1_event *events, int n_events,
                                 const Control &control, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const size_t count = (size_t)v1->n_sets * (size_t)v1->max_rows;
    float *to = context->plan.pool_radius > 0 ? context->pooled : context->final_scores;
    TRIA_GPU_TRY(clear_counters(context, n_events, control.stream, error));
    TRIA_GPU_TRY(upload_positions(context, events, n_events, &control, error));
    TRIA_GPU_TRY(protect_rows(context, events, n_events, control, error));
    for (int i = 0; i < n_events; i++) {
        TRIA_GPU_TRY(check(cudaMemcpyAsync(to + (size_t)i * count, events[i].final_scores,
                                           count * sizeof(float), cudaMemcpyHostToDevice, control.stream),
                           "uploading scores", error));
    }
    return TRIA_OK;
}

static int report_uncalibrated(const Context *context, uint8_t *layers)
{
    const tria_v1_plan *v1 = context->v1;
    const int mode = context->plan.mode;
    const bool pooled = mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
    int count = 0;
    for (int l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        const bool uncalibrated =
            pooled ? v1->all_by_position && layer->takes_part : layer->by_position != 0;
        count += uncalibrated;
        if (layers != NULL) {
            layers[l] = uncalibrated;
        }
    }
    return count;
}

static const Report *result_of(const Context *context, int index)
{
    return (const Report *)(context->results + (size_t)index * context->result_count);
}

/* Queues the copy of an event's report and counts, and waits for nothing. */
static tria_status fetch_report(Context *context, const Event &event, int index, cudaStream_t stream,
                                tria_error *error)
{
    int32_t *to = context->results + (size_t)index * context->result_count;
    const size_t report = sizeof(Report) / sizeof(int32_t);
    TRIA_GPU_TRY(check(cudaMemcpyAsync(to, event.report, sizeof(Report), cudaMemcpyDeviceToHost, stream),
                       "the report", error));
    return check(cudaMemcpyAsync(to + report, event.keep_counts,
                                 sizeof(int32_t) * (size_t)context->v1->n_sets, cudaMemcpyDeviceToHost,
                                 stream),
                 "the counts", error);
}

static tria_status fetch_keep(Context *context, const tria_v1_event *event, int index, cudaStream_t stream,
                              tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const Report *report = result_of(context, index);
    const int32_t *counts = (const int32_t *)(report + 1);
    tria_keep *keep = event->keep;
    int longest = 0;
    keep->over_budget = report->over_budget;
    keep->n_nan = report->n_nan;
    keep->n_zero_heads = report->n_zero_heads;
    for (int set = 0; set < v1->n_sets; set++) {
        keep->counts[set] = counts[set];
        longest = std::max(longest, (int)counts[set]);
    }
    if (longest == 0) {
        return TRIA_OK;
    }
    const int32_t *from = context->keep_rows + (size_t)index * (size_t)v1->n_sets * (size_t)v1->max_rows;
    return check(cudaMemcpy2DAsync(keep->rows, sizeof(int32_t) * (size_t)keep->row_stride, from,
                                   sizeof(int32_t) * (size_t)v1->max_rows,
                                   sizeof(int32_t) * (size_t)longest, (size_t)v1->n_sets,
                                   cudaMemcpyDeviceToHost, stream),
                 "copying keep sets to the host", error);
}

tria_status run_select(Context *context, const tria_v1_event *events, int n_events, void *stream,
                       tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const bool given = events[0].final_scores != NULL;
    const bool waits =
        any(events, n_events, [](const tria_v1_event *event) { return !keeps_on_device(event); });
    Control control;
    for (int i = 0; i < n_events; i++) {
        if (keeps_on_device(&events[i]) &&
            events[i].event->device->keep_row_stride < most_rows(v1, &events[i])) {
            return fail(error, TRIA_E_CAPACITY, "event %d: keep_row_stride is below its rows", i);
        }
        events[i].keep->n_uncalibrated_layers =
            report_uncalibrated(context, events[i].keep->uncalibrated_layers);
    }
    TRIA_GPU_TRY(begin_call(context, STAGE_SELECT, events, n_events, stream, &control, error));
    if (control.capturing && (waits || given)) {
        return fail(error, TRIA_E_STATE,
                    "a captured select needs keep_rows and keep_counts in device memory");
    }
    if (given) {
        TRIA_GPU_TRY(accept_scores(context, events, n_events, control, error));
    }
    if (v1->n_sets > 0) {
        TRIA_GPU_TRY(
            check(launch_select(control.call, control.extent, !given, control.stream), "select", error));
    }
    for (int i = 0; i < n_events; i++) {
        void *report = TRIA_DEVICE_TABLE(&events[i], report);
        if (report != NULL) {
            TRIA_GPU_TRY(check(cudaMemcpyAsync(report, control.described[i].report, sizeof(Report),
                                               cudaMemcpyDeviceToDevice, control.stream),
                               "copying the report", error));
        }
        if (!keeps_on_device(&events[i])) {
            TRIA_GPU_TRY(fetch_report(context, control.described[i], i, control.stream, error));
        }
    }
    if (!waits) {
        return TRIA_OK;
    }
    TRIA_GPU_TRY(check(cudaStreamSynchronize(control.stream), "select", error));
    for (int i = 0; i < n_events; i++) {
        if (!keeps_on_device(&events[i])) {
            if (result_of(context, i)->misaligned != 0) {
                return fail(error, TRIA_E_MISMATCH,
                            "event %d: the mode needs the same rows and positions in all layers", i);
            }
            TRIA_GPU_TRY(fetch_keep(context, &events[i], i, control.stream, error));
        }
    }
    return check(cudaStreamSynchronize(control.stream), "select", error);
}

/* What an event's compaction works from. */
enum KeepSource { KEEP_ON_DEVICE, KEEP_ON_HOST, KEEP_LEFT_BY_SELECT };

static KeepSource keep_source(const tria_v1_event *event)
{
    return keeps_on_device(event) ? KEEP_ON_DEVICE
           : event->keep != NULL  ? KEEP_ON_HOST
                                  : KEEP_LEFT_BY_SELECT;
}

/* Brings keep sets that `select` left on the device to the host, which has rows to check and report. */
static tria_status fetch_left(Context *context, const tria_v1_event *event, int index, cudaStream_t stream,
                              tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const size_t n_sets = (size_t)v1->n_sets;
    const size_t count = n_sets * (size_t)v1->max_rows;
    tria_v1_event fetched = *event;
    tria_keep *keep = &context->fetched[index];
    Event described = {};
    memset(keep, 0, sizeof(*keep));
    keep->struct_size = sizeof(*keep);
    keep->rows = context->fetched_rows + (size_t)index * count;
    keep->counts = context->fetched_counts + (size_t)index * n_sets;
    keep->row_stride = v1->max_rows;
    fetched.keep = keep;
    described.report = (Report *)(context->counters + (size_t)index * context->counter_count);
    described.keep_counts = context->keep_counts + (size_t)index * n_sets;
    TRIA_GPU_TRY(fetch_report(context, described, index, stream, error));
    TRIA_GPU_TRY(check(cudaStreamSynchronize(stream), "fetching keep sets", error));
    TRIA_GPU_TRY(fetch_keep(context, &fetched, index, stream, error));
    return check(cudaStreamSynchronize(stream), "fetching keep sets", error);
}

/* The host's part: checks, positions, moves and report, where rows and keep sets are in host memory. */
static tria_status compact_on_host(Context *context, const tria_v1_event *events, int n_events,
                                   const Control &control, tria_error *error)
{
    int n = 0;
    for (int i = 0; i < n_events; i++) {
        const KeepSource source = keep_source(&events[i]);
        if (events[i].rows == NULL || source == KEEP_ON_DEVICE ||
            (source == KEEP_LEFT_BY_SELECT && control.capturing)) {
            if (events[i].event->positions != NULL && TRIA_DEVICE_TABLE(&events[i], positions) == NULL) {
                return fail(error, TRIA_E_ARGUMENT,
                            "event %d: positions in host memory need rows and keep sets in host memory", i);
            }
            if (events[i].event->terms != NULL) { /* which would no longer be those of their rows */
                return fail(error, TRIA_E_ARGUMENT,
                            "event %d: kept terms need rows and keep sets in host memory", i);
            }
            continue;
        }
        tria_v1_event *bare = &context->bare_v1_events[n];
        *bare = events[i];
        if (source == KEEP_LEFT_BY_SELECT) {
            TRIA_GPU_TRY(fetch_left(context, &events[i], i, control.stream, error));
            bare->keep = &context->fetched[i];
        }
        if (TRIA_DEVICE_TABLE(&events[i], page_tables) != NULL) {
            context->bare_events[n] = *events[i].event; /* pages cannot be looked at from here */
            context->bare_events[n].kv = NULL;
            bare->event = &context->bare_events[n];
        }
        n++;
    }
    return n == 0 ? TRIA_OK
                  : context->host->compact(context->v1, context->bare_v1_events, n,
                                           context->compact_scratch, error);
}

static tria_status upload_keep(Context *context, const tria_v1_event *event, const Event &described,
                               cudaStream_t stream, tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const tria_keep *keep = event->keep;
    int longest = 0;
    for (int set = 0; set < v1->n_sets; set++) {
        longest = std::max(longest, std::min((int)keep->counts[set], (int)v1->max_rows));
    }
    TRIA_GPU_TRY(
        check(cudaMemcpyAsync(described.keep_counts, keep->counts, sizeof(int32_t) * (size_t)v1->n_sets,
                              cudaMemcpyHostToDevice, stream),
              "uploading keep sets", error));
    return longest == 0
               ? TRIA_OK
               : check(cudaMemcpy2DAsync(described.keep_rows, sizeof(int32_t) * (size_t)v1->max_rows,
                                         keep->rows, sizeof(int32_t) * (size_t)keep->row_stride,
                                         sizeof(int32_t) * (size_t)longest, (size_t)v1->n_sets,
                                         cudaMemcpyHostToDevice, stream),
                       "uploading keep sets", error);
}

tria_status run_compact(Context *context, const tria_v1_event *events, int n_events, void *stream,
                        tria_error *error)
{
    const tria_v1_plan *v1 = context->v1;
    const bool moves = any(events, n_events, [](const tria_v1_event *event) {
        return TRIA_DEVICE_TABLE(event, moves) != NULL || TRIA_DEVICE_TABLE(event, n_moves) != NULL;
    });
    const bool rows_after = any(events, n_events, [](const tria_v1_event *event) {
        return TRIA_DEVICE_TABLE(event, rows) != NULL;
    });
    Control control;
    if (v1->n_kv == 0) {
        return TRIA_OK;
    }
    TRIA_GPU_TRY(begin_call(context, STAGE_COMPACT, events, n_events, stream, &control, error));
    for (int i = 0; i < n_events; i++) {
        if (control.capturing && keep_source(&events[i]) == KEEP_ON_HOST) {
            return fail(error, TRIA_E_STATE,
                        "a captured compaction needs keep_rows and keep_counts in device memory");
        }
    }
    TRIA_GPU_TRY(compact_on_host(context, events, n_events, control, error));
    for (int i = 0; i < n_events; i++) {
        if (keep_source(&events[i]) == KEEP_ON_HOST) {
            TRIA_GPU_TRY(upload_keep(context, &events[i], control.described[i], control.stream, error));
        }
    }
    TRIA_GPU_TRY(check(launch_compact(control.call, control.extent, moves, v1->params->zero_tail != 0,
                                      rows_after, control.stream),
                       "compact", error));
    return unstage(context, control.stream, error);
}
} // namespace tria_gpu

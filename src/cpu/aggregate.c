/* aggregate.c - per set: scores over heads and layers by mode, all-reduce, neighbour pooling. */
#include "cpu/pipeline.h"

#include <math.h>
#include <string.h>

static bool wants_mean(const tria_v1_plan *plan, int32_t slot)
{
    if (plan->kv[slot].borrows) {
        return true;
    }
    return plan->params->mode == TRIA_MODE_PER_HEAD && plan->params->layers_agg == TRIA_AGGREGATE_MEAN;
}

/* Sum of the z of everybody's query heads, the layer's or all, and how many were (in `w->row`). */
static void borrow(const tria_cpu_context *c, const tria_worker *w, int32_t slot, int32_t n, float *out)
{
    const tria_v1_plan *plan = c->plan;
    const bool whole_plan = plan->params->mode == TRIA_MODE_PER_HEAD;
    float *total = w->row;
    memset(out, 0, sizeof(*out) * (size_t)n);
    memset(total, 0, sizeof(*total) * (size_t)n);
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set < 0 || (!whole_plan && plan->kv[s].layer != plan->kv[slot].layer)) {
            continue;
        }
        for (int32_t i = 0; i < n; i++) {
            out[i] += c->sums[s * c->stride + i];
            total[i] += c->counts[s * c->stride + i];
        }
    }
}

/* Over the KV heads of the set: sum or max of what is not NaN, and how many were (in `w->row`). */
static void accumulate(const tria_cpu_context *c, const tria_worker *w, int32_t set, int32_t n, float *out)
{
    const tria_v1_plan *plan = c->plan;
    const bool mean = wants_mean(plan, tria_first_slot(plan, set));
    float *count = w->row;
    memset(count, 0, sizeof(*count) * (size_t)n);
    for (int32_t i = 0; i < n; i++) {
        out[i] = mean ? 0.0F : -INFINITY;
    }
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set != set || plan->kv[s].n_calibrated == 0) {
            continue;
        }
        const float *grouped = tria_cpu_grouped(c, s);
        for (int32_t i = 0; i < n; i++) {
            const float z = grouped[i];
            const bool number = z == z;
            if (mean) {
                out[i] += number ? z : 0.0F;
            } else {
                out[i] = z > out[i] ? z : out[i];
            }
            count[i] += number ? 1.0F : 0.0F;
        }
    }
}

void tria_cpu_aggregate_set(tria_cpu_context *c, tria_worker *w, int32_t set)
{
    const tria_v1_plan *plan = c->plan;
    const int32_t slot = tria_first_slot(plan, set);
    const int32_t n = c->event->rows[slot];
    const bool mean = wants_mean(plan, slot);
    float *out = tria_cpu_final(c, set);

    if (tria_ranked_by_position(plan, c->event, slot)) {
        for (int32_t i = 0; i < n; i++) {
            out[i] = NAN;
        }
        return;
    }
    if (plan->kv[slot].borrows) {
        borrow(c, w, slot, n, out);
    } else if (!c->scores_reach_sets) {
        accumulate(c, w, set, n, out);
    } else {
        return;
    }
    if (!tria_needs_reduce(plan)) {
        for (int32_t i = 0; i < n; i++) {
            out[i] = w->row[i] > 0.0F ? (mean ? out[i] / w->row[i] : out[i]) : NAN;
        }
    } else if (mean) {
        memcpy(c->reduce + set * c->stride, w->row, sizeof(float) * (size_t)n);
    }
}

tria_status tria_cpu_reduce(tria_cpu_context *c, void *stream, tria_error *error)
{
    const tria_v1_plan *plan = c->plan;
    const tria_plan_params *params = plan->params;
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const int32_t slot = tria_first_slot(plan, set);
        const int32_t n = c->event->rows[slot];
        const bool mean = wants_mean(plan, slot);
        float *out = tria_cpu_final(c, set);
        float *count = mean ? c->reduce + set * c->stride : NULL;
        if (tria_ranked_by_position(plan, c->event, slot)) {
            continue;
        }
        const tria_reduce_op op = mean ? TRIA_REDUCE_SUM : TRIA_REDUCE_MAX;
        if (params->all_reduce(params->all_reduce_context, out, n, op, stream) != 0 ||
            (mean && params->all_reduce(params->all_reduce_context, count, n, op, stream) != 0)) {
            return tria_fail(error, TRIA_E_CANCELLED, "the all-reduce callback failed in set %d", set);
        }
        for (int32_t i = 0; i < n; i++) {
            if (mean) {
                out[i] = count[i] > 0.0F ? out[i] / count[i] : NAN;
            } else {
                out[i] = out[i] == -INFINITY ? NAN : out[i];
            }
        }
    }
    return TRIA_OK;
}

/* Row indices in ascending order of position (ties by row): least significant digit radix sort. */
static uint32_t *order_by_position(const int32_t *positions, int32_t n, uint32_t *order, uint32_t *other)
{
    for (int32_t i = 0; i < n; i++) {
        order[i] = (uint32_t)i;
    }
    for (int32_t shift = 0; shift < 32; shift += 8) {
        int32_t starts[257] = {0};
        for (int32_t i = 0; i < n; i++) {
            starts[((uint32_t)positions[i] >> shift & 255U) + 1]++;
        }
        for (int32_t b = 0; b < 256; b++) {
            starts[b + 1] += starts[b];
        }
        for (int32_t i = 0; i < n; i++) {
            other[starts[(uint32_t)positions[order[i]] >> shift & 255U]++] = order[i];
        }
        uint32_t *swap = order;
        order = other;
        other = swap;
    }
    return order;
}

/*
 * Max over |p_i - p_j| <= radius, by a window that slides over the rows in order of position. The deque
 * of possible maxima lives in `other`: indices into `order`, scores falling from front to back.
 */
void tria_cpu_pool_set(tria_cpu_context *c, tria_worker *w, int32_t set)
{
    const tria_v1_plan *plan = c->plan;
    const int32_t slot = tria_first_slot(plan, set);
    const tria_v1_kv *kv = &plan->kv[slot];
    const int32_t n = c->event->rows[slot];
    const int64_t radius = plan->params->pool_radius;
    const int32_t *positions = tria_event_positions(c->event->event, kv->layer, kv->head);
    const uint32_t *order = NULL;
    uint32_t *deque = w->words + c->stride;
    float *scores = tria_cpu_final(c, set);
    int32_t front = 0;
    int32_t back = 0;
    int32_t next = 0;

    if (tria_ranked_by_position(plan, c->event, slot)) {
        return;
    }
    if (positions != NULL) {
        order = order_by_position(positions, n, w->words, deque);
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t row = order != NULL ? (int32_t)order[i] : i;
        const int64_t p = positions != NULL ? positions[row] : row;
        for (; next < n; next++) {
            const int32_t other = order != NULL ? (int32_t)order[next] : next;
            if ((positions != NULL ? positions[other] : other) > p + radius) {
                break;
            }
            if (scores[other] != scores[other]) {
                continue; /* NaN is skipped */
            }
            while (back > front &&
                   scores[order != NULL ? order[deque[back - 1]] : deque[back - 1]] <= scores[other]) {
                back--;
            }
            deque[back++] = (uint32_t)next;
        }
        while (front < back) {
            const int32_t oldest = order != NULL ? (int32_t)order[deque[front]] : (int32_t)deque[front];
            if ((positions != NULL ? positions[oldest] : oldest) >= p - radius) {
                break;
            }
            front++;
        }
        if (front < back) {
            w->row[row] = scores[order != NULL ? order[deque[front]] : deque[front]];
        } else {
            w->row[row] = NAN;
        }
    }
    memcpy(scores, w->row, sizeof(float) * (size_t)n);
}

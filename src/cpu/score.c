/* score.c - some KV heads of a layer: raw scores of their query heads in one read of K, then normalised and
 * grouped. */
#include "cpu/pipeline.h"
#include "cpu/terms.h"
#include "kv_view_internal.h"

#include <math.h>
#include <string.h>

/* The user's row for a query slot, or the worker's. */
static float *raw_target(const tria_cpu_context *c, const tria_worker *w, int32_t query, int32_t nth)
{
    const tria_scores *scores = c->event->scores;
    if (scores != NULL && scores->raw != NULL) {
        return (float *)scores->raw + query * scores->row_stride;
    }
    return w->raw + nth * c->stride;
}

static void fill_nan(float *row, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        row[i] = NAN;
    }
}

/* Notes the rows some head could not score; only called when there are any. */
static void mark_bad_rows(tria_cpu_context *c, const float *scores, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(scores[i])) {
            atomic_store_explicit(&c->bad_rows[i], 1, memory_order_relaxed);
        }
    }
}

/* Keys that read back as zeros are a sign of a cache that was never written; scores alone cannot tell. */
static bool keys_are_zero(const tria_worker *w, const tria_rows *rows, int32_t n, int32_t dim)
{
    float *key = w->row;
    for (int32_t i = 0; i < n; i++) {
        tria_rows_decode_f32(rows, i, dim, key);
        for (int32_t d = 0; d < dim; d++) {
            if (key[d] != 0.0F) {
                return false;
            }
        }
    }
    return true;
}

/* How each head's scores become z; replaces the scores of a head without any finite row by zeros. */
static void choose_scales(tria_cpu_context *c, tria_worker *w, int32_t slot, const tria_score_job *job,
                          tria_head_scale *scales)
{
    const int32_t n = job->n_rows;
    const int32_t over = c->plan->params->normalize_over;
    if (over == TRIA_NORMALIZE_CANDIDATES) {
        tria_protect(c->plan, c->event->event, slot, n, w->mask);
    }
    for (int32_t h = 0; h < job->n_heads; h++) {
        const bool any_finite = job->moments[h].count > 0;
        if (over == TRIA_NORMALIZE_NONE) {
            const tria_head_scale identity = {0.0F, 0.0F, 1.0F};
            scales[h] = identity;
            continue;
        }
        if (over == TRIA_NORMALIZE_CANDIDATES) {
            tria_moments_of(c->kernels, job->out[h], w->mask, n, &job->moments[h]);
        }
        scales[h] = tria_head_scale_of(&job->moments[h]);
        if (!any_finite) {
            ((const float **)job->out)[h] = c->zeros;
        }
    }
}

/* Sum and number of the finite z of a slot's heads, for KV heads that borrow them. */
static void sum_heads(const tria_cpu_context *c, int32_t slot, float *const *scores,
                      const tria_head_scale *scales, int32_t n_heads, int32_t n)
{
    float *sums = c->sums + slot * c->stride;
    float *counts = c->counts + slot * c->stride;
    memset(sums, 0, sizeof(*sums) * (size_t)n);
    memset(counts, 0, sizeof(*counts) * (size_t)n);
    for (int32_t h = 0; h < n_heads; h++) {
        const tria_head_scale scale = scales[h];
        for (int32_t i = 0; i < n; i++) {
            if (isfinite(scores[h][i])) {
                sums[i] += (scores[h][i] - scale.mean_high - scale.mean_low) * scale.inverse;
                counts[i] += 1.0F;
            }
        }
    }
}

/* `global`: normalised once more over the same rows, then weighted. */
static void weigh_for_global(tria_cpu_context *c, tria_worker *w, int32_t slot, int32_t n, float *grouped)
{
    const int32_t over = c->plan->params->normalize_over;
    const float weight = (float)c->plan->layers[c->plan->kv[slot].layer].weight;
    tria_head_scale scale = {0.0F, 0.0F, 1.0F};
    tria_moments all;
    tria_moments_of(c->kernels, grouped, NULL, n, &all);
    if (over != TRIA_NORMALIZE_NONE) {
        tria_moments moments = all;
        if (over == TRIA_NORMALIZE_CANDIDATES) {
            tria_moments_of(c->kernels, grouped, w->mask, n, &moments);
        }
        scale = tria_head_scale_of(&moments);
    }
    for (int32_t i = 0; i < n; i++) {
        const float z = (grouped[i] - scale.mean_high - scale.mean_low) * scale.inverse;
        grouped[i] = over != TRIA_NORMALIZE_NONE && all.count == 0 ? 0.0F : z * weight;
    }
}

static void group(tria_cpu_context *c, tria_worker *w, int32_t slot, const tria_score_job *job,
                  const tria_head_scale *scales)
{
    const int32_t n = job->n_rows;
    const int32_t n_heads = job->n_heads;
    const tria_plan_params *params = c->plan->params;
    const tria_scores *scores = c->event->scores;
    const bool mean = params->group == TRIA_AGGREGATE_MEAN;
    const float *const *raw = (const float *const *)job->out;
    float *grouped = tria_cpu_grouped(c, slot);

    tria_group_rows(c->kernels, raw, scales, n_heads, n, mean, grouped);
    if (scores != NULL && scores->grouped != NULL) {
        memcpy((float *)scores->grouped + slot * scores->row_stride, grouped, sizeof(float) * (size_t)n);
    }
    if (params->mode == TRIA_MODE_UNION && mean) {
        tria_group_rows(c->kernels, raw, scales, n_heads, n, false, grouped); /* `group` does not enter */
    }
    if (params->mode == TRIA_MODE_GLOBAL) {
        weigh_for_global(c, w, slot, n, grouped);
    }
    if (c->has_sums) {
        sum_heads(c, slot, job->out, scales, n_heads, n);
    }
}

/* A KV head nobody is calibrated for. */
static void leave_slot(tria_cpu_context *c, int32_t slot, int32_t n)
{
    const tria_scores *scores = c->event->scores;
    fill_nan(tria_cpu_grouped(c, slot), n);
    if (scores != NULL && scores->grouped != NULL) {
        fill_nan((float *)scores->grouped + slot * scores->row_stride, n);
    }
    if (c->has_sums) {
        sum_heads(c, slot, NULL, NULL, 0, n);
    }
}

/* Describes the scoring of a KV slot in w->jobs[n_jobs], its heads from `first` on; returns their number.
 */
static int32_t open_slot(tria_cpu_context *c, tria_worker *w, int32_t slot, int32_t n_jobs, int32_t first)
{
    const tria_v1_plan *plan = c->plan;
    const tria_event *event = c->event->event;
    const tria_v1_kv *kv = &plan->kv[slot];
    const tria_v1_layer *layer = &plan->layers[kv->layer];
    const tria_layer_view *view = &event->kv->layers[kv->layer];
    const tria_scores *scores = c->event->scores;
    const int32_t n = c->event->rows[slot];
    const bool wanted = scores != NULL && (scores->raw != NULL || scores->grouped != NULL);
    int32_t n_heads = 0;

    if (n == 0 || (kv->set < 0 && !wanted)) {
        return 0;
    }
    for (int32_t g = kv->group_begin; g < kv->group_end; g++) {
        const tria_v1_query *query = &plan->queries[plan->group[g]];
        const int32_t h = first + n_heads;
        if (query->calibrated) {
            w->out[h] = raw_target(c, w, plan->group[g], h);
            w->lin[h] = c->lin + query->lin_offset;
            w->mag[h] = plan->mag + query->mag_offset;
            w->content[h] = c->content + query->lin_offset;
            w->has_content[h] = query->content_mean != NULL;
            w->terms[h] = event->terms != NULL ? tria_terms_of(event->terms, g) : NULL;
            n_heads++;
        } else if (scores != NULL && scores->raw != NULL) {
            fill_nan((float *)scores->raw + plan->group[g] * scores->row_stride, n);
        }
    }
    if (n_heads == 0) {
        leave_slot(c, slot, n);
        return 0;
    }
    tria_rows_init(&w->key_rows[n_jobs], event->kv, view, &view->k, kv->head);
    const tria_score_job job = {
        .rows = &w->key_rows[n_jobs],
        .first_row = 0,
        .n_rows = n,
        .head_dim = layer->head_dim,
        .rotary_dim = layer->rotary_dim,
        .rotary_offset = layer->rotary_offset,
        .rope_style = layer->rope_style,
        .k_state = plan->k_state,
        .hadamard_size = tria_hadamard_block(plan, layer->k.dim),
        .hadamard_signs = plan->hadamard_signs,
        .rotation_tables = c->rotation != NULL ? c->rotation[kv->layer] : NULL,
        .positions = tria_event_positions(event, kv->layer, kv->head),
        .n_heads = n_heads,
        .n_lin = plan->n_lin,
        .lin = w->lin + first,
        .mag = event->terms == NULL ? w->mag + first : NULL,
        .terms = event->terms != NULL ? (const float *const *)w->terms + first : NULL,
        .has_content = w->has_content + first,
        .out = w->out + first,
        .moments = w->moments + first,
    };
    w->jobs[n_jobs] = job;
    w->slots[n_jobs] = slot;
    return n_heads;
}

/* Norm and content terms of the rows that came since the last event. */
static void update_terms(tria_cpu_context *c, tria_worker *w, int32_t n_jobs)
{
    int32_t n_new = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        const tria_score_job *job = &w->jobs[j];
        const int32_t known = tria_terms_known(c->event->event->terms, w->slots[j]);
        if (known < job->n_rows) {
            const ptrdiff_t first = job->out - w->out;
            tria_score_job *new_job = &w->new_jobs[n_new++];
            *new_job = *job;
            for (int32_t h = 0; h < job->n_heads; h++) {
                w->new_terms[first + h] = w->terms[first + h] + known;
            }
            new_job->first_row = known;
            new_job->n_rows = job->n_rows - known;
            new_job->n_lin = 1;
            new_job->lin = w->content + first;
            new_job->mag = w->mag + first;
            new_job->terms = NULL;
            new_job->out = w->new_terms + first;
            new_job->moments = NULL;
        }
        tria_terms_set_known(c->event->event->terms, w->slots[j], job->n_rows);
    }
    tria_score_rows(c->kernels, w->new_jobs, n_new, w->kernel_scratch);
}

static void finish_slot(tria_cpu_context *c, tria_worker *w, int32_t slot, const tria_score_job *job)
{
    tria_head_scale *scales = w->scales + (job->out - w->out);
    const int32_t n = job->n_rows;
    /* reports are about rows that some keep set depends on, whatever scores are asked for */
    const bool reported = c->plan->kv[slot].set >= 0;
    bool zero = reported;
    for (int32_t h = 0; h < job->n_heads; h++) {
        const tria_moments *moments = &job->moments[h];
        if (reported && moments->count < n) {
            mark_bad_rows(c, job->out[h], n);
        }
        zero = zero && moments->count == n && moments->mean == 0.0 && moments->m2 == 0.0;
    }
    if (zero && keys_are_zero(w, job->rows, n, job->head_dim)) {
        atomic_fetch_add_explicit(&c->n_zero_heads, 1, memory_order_relaxed);
    }
    choose_scales(c, w, slot, job, scales);
    group(c, w, slot, job, scales);
}

void tria_cpu_score_heads(tria_cpu_context *c, tria_worker *w, int32_t index)
{
    int32_t n_jobs = 0;
    int32_t first = 0;
    double start = tria_cpu_now();
    for (int32_t slot = c->score_jobs[index]; slot < c->score_jobs[index + 1]; slot++) {
        const int32_t n_heads = open_slot(c, w, slot, n_jobs, first);
        first += n_heads;
        n_jobs += n_heads > 0 ? 1 : 0;
    }
    if (c->event->event->terms != NULL) {
        update_terms(c, w, n_jobs);
    }
    tria_score_rows(c->kernels, w->jobs, n_jobs, w->kernel_scratch);
    tria_cpu_lap(w, TRIA_PART_SCORE, &start);
    for (int32_t j = 0; j < n_jobs; j++) {
        finish_slot(c, w, w->slots[j], &w->jobs[j]);
    }
    tria_cpu_lap(w, TRIA_PART_NORMALIZE, &start);
}

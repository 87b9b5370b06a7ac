/*
 * reference.c - the oracle: the specification's sections 2-4 in double precision, written to be read.
 *
 * Nothing is folded, fused or blocked: keys are decoded, transformed back, rotated if raw, and each
 * offset's term is summed. Slow on purpose; every fast path is compared with it.
 */
#include "compact_internal.h"
#include "cpu/host_device.h"
#include "cpu/rules.h"
#include "kv_view_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ranked_row {
    float score;
    int32_t position; /* ranks when `by_position` */
    int32_t row;
} ranked_row;

typedef struct reference_context {
    const tria_v1_plan *plan;
    const tria_v1_host *host;
    int64_t stride; /* rows per slot */
    int32_t max_dim;
    int32_t max_freq;
    double *raw;       /* [n_queries][stride], NaN where not finite or not calibrated */
    double *z;         /* [n_queries][stride] normalised */
    double *grouped;   /* [n_kv][stride] */
    double *pooled;    /* [stride] */
    double *final;     /* [max_sequences][n_sets][stride] */
    uint8_t *bad_rows; /* [stride] */
    uint8_t *mask;     /* [stride] */
    double *key;       /* [max_dim] */
    double *phases;    /* [offsets][max_freq][2] */
    double *mag;       /* [max_freq] */
    ranked_row *ranking;
    int32_t *n_nan;        /* [max_sequences] */
    int32_t *n_zero_heads; /* [max_sequences] */
    void *compact_scratch;
} reference_context;

/* Decodes row `row` and brings it to "rotated, as the model defines it". */
static void load_key(const reference_context *c, const tria_v1_layer *layer, const tria_rows *rows,
                     const int32_t *positions, int32_t row)
{
    const tria_v1_plan *plan = c->plan;
    tria_rows_decode_f64(rows, row, layer->k.dim, c->key);
    if (plan->k_state == TRIA_K_HADAMARD) {
        const int32_t size = tria_hadamard_block(plan, layer->k.dim);
        tria_hadamard_undo_f64(c->key, layer->k.dim, size, plan->hadamard_signs);
    }
    if (plan->k_state == TRIA_K_RAW) {
        const int32_t p = positions != NULL ? positions[row] : row;
        const int32_t half = layer->rope_style == TRIA_ROPE_HALF;
        for (int32_t f = 0; f < layer->n_freq; f++) {
            double *re = c->key + layer->rotary_offset + (half ? f : 2 * f);
            double *im = re + (half ? layer->n_freq : 1);
            double cosine;
            double sine;
            tria_phase(p, layer->inv_freq[f], &cosine, &sine);
            const double x = *re;
            *re = x * cosine - *im * sine;
            *im = x * sine + *im * cosine;
        }
    }
}

/* The raw score of the loaded key for one query head. */
static double score_key(const reference_context *c, const tria_v1_layer *layer, const tria_v1_query *query)
{
    const tria_plan_params *params = c->plan->params;
    const int32_t half = layer->rope_style == TRIA_ROPE_HALF;
    double trig = 0.0;
    double norm = 0.0;
    double content = 0.0;
    int32_t n_offsets = 0;

    for (int64_t offset = 1; offset <= params->offset_max && !params->disable_trig;
         offset *= 2, n_offsets++) {
        const double *phase = c->phases + 2 * (int64_t)n_offsets * c->max_freq;
        double sum = 0.0;
        for (int32_t f = 0; f < layer->n_freq; f++) {
            const double k_re = c->key[layer->rotary_offset + (half ? f : 2 * f)];
            const double k_im = c->key[layer->rotary_offset + (half ? layer->n_freq + f : 2 * f + 1)];
            const double q_re = (double)query->q_mean_real[f];
            const double q_im = (double)query->q_mean_imag[f];
            const double a = q_re * k_re + q_im * k_im;
            const double b = q_im * k_re - q_re * k_im;
            sum += layer->freq_scale_sq[f] * (a * phase[2 * f] - b * phase[2 * f + 1]);
        }
        if (params->offsets == TRIA_AGGREGATE_MEAN) {
            trig += sum;
        } else {
            /* a NaN must not lose against the comparison */
            trig = n_offsets == 0 || sum > trig || isnan(sum) ? sum : trig;
        }
    }
    if (params->offsets == TRIA_AGGREGATE_MEAN && n_offsets > 0) {
        trig /= n_offsets;
    }
    for (int32_t f = 0; f < layer->n_freq; f++) {
        const double k_re = c->key[layer->rotary_offset + (half ? f : 2 * f)];
        const double k_im = c->key[layer->rotary_offset + (half ? layer->n_freq + f : 2 * f + 1)];
        norm += c->mag[f] * sqrt(k_re * k_re + k_im * k_im);
    }
    if (query->content_mean != NULL) {
        int32_t i = 0;
        for (int32_t d = 0; d < layer->head_dim; d++) {
            if (d < layer->rotary_offset || d >= layer->rotary_offset + layer->rotary_dim) {
                content += (double)query->content_mean[i++] * c->key[d];
            }
        }
    }
    return trig + norm + (double)params->content_weight * content;
}

static void score_raw(reference_context *c, const tria_v1_event *event, tria_keep *report)
{
    const tria_v1_plan *plan = c->plan;
    const tria_event *e = event->event;
    int32_t n_zero_heads = 0;

    memset(c->bad_rows, 0, (size_t)c->stride);
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        const tria_v1_kv *kv = &plan->kv[slot];
        const tria_v1_layer *owner = &plan->layers[kv->layer];
        const tria_layer_view *view = &e->kv->layers[kv->layer];
        const int32_t *positions = tria_event_positions(e, kv->layer, kv->head);
        const int32_t n = event->rows[slot];
        tria_rows rows;
        bool all_zero = n > 0 && kv->set >= 0 && kv->n_calibrated > 0;

        tria_rows_init(&rows, e->kv, view, &view->k, kv->head);
        for (int32_t g = kv->group_begin; g < kv->group_end; g++) {
            const int32_t q = plan->group[g];
            const tria_v1_query *query = &plan->queries[q];
            const tria_v1_layer *layer = &plan->layers[query->layer];
            double *raw = c->raw + q * c->stride;
            if (!query->calibrated) {
                for (int32_t i = 0; i < n; i++) {
                    raw[i] = NAN;
                }
                continue;
            }
            int32_t o = 0;
            for (int64_t offset = 1; offset <= plan->params->offset_max; offset *= 2, o++) {
                for (int32_t f = 0; f < layer->n_freq; f++) {
                    double *phase = c->phases + 2 * ((int64_t)o * c->max_freq + f);
                    tria_phase(e->t + offset, layer->inv_freq[f], &phase[0], &phase[1]);
                }
            }
            tria_fold_mag_f64(plan, q, c->mag);
            for (int32_t i = 0; i < n; i++) {
                load_key(c, owner, &rows, positions, i);
                raw[i] = score_key(c, layer, query);
                if (!isfinite(raw[i])) {
                    raw[i] = NAN;
                    c->bad_rows[i] |= kv->set >= 0;
                }
            }
        }
        for (int32_t i = 0; i < n && all_zero; i++) {
            load_key(c, owner, &rows, positions, i);
            for (int32_t d = 0; d < owner->head_dim; d++) {
                all_zero = all_zero && c->key[d] == 0.0;
            }
        }
        n_zero_heads += all_zero;
    }
    report->n_nan = 0;
    for (int64_t i = 0; i < c->stride; i++) {
        report->n_nan += c->bad_rows[i];
    }
    report->n_zero_heads = n_zero_heads;
}

/* Mean and deviation of the finite values among those not skipped; z of all. Specification, section 3. */
static void normalise(const double *x, const uint8_t *skip, int32_t n, double *z)
{
    double sum = 0.0;
    double squares = 0.0;
    int32_t count = 0;
    int32_t n_finite = 0;
    for (int32_t i = 0; i < n; i++) {
        const bool finite = isfinite(x[i]);
        n_finite += finite;
        if (finite && (skip == NULL || !skip[i])) {
            sum += x[i];
            count++;
        }
    }
    const double mean = count > 0 ? sum / count : 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(x[i]) && (skip == NULL || !skip[i])) {
            squares += (x[i] - mean) * (x[i] - mean);
        }
    }
    const double deviation = count > 0 ? sqrt(squares / count) : 0.0;
    const bool constant = deviation <= 1e-6 * fmax(1.0, fabs(mean));
    for (int32_t i = 0; i < n; i++) {
        if (n_finite == 0) {
            z[i] = 0.0;
        } else if (!isfinite(x[i])) {
            z[i] = NAN;
        } else {
            z[i] = constant ? 0.0 : (x[i] - mean) / deviation;
        }
    }
}

/* Max or mean that skips NaN; NaN when there is nothing else. */
typedef struct accumulator {
    double value;
    int32_t count;
} accumulator;

static void accumulate(accumulator *a, double x, bool mean)
{
    if (!isnan(x)) {
        a->value = a->count == 0 ? x : mean ? a->value + x : fmax(a->value, x);
        a->count++;
    }
}

static double finish(const accumulator *a, bool mean)
{
    if (a->count == 0) {
        return NAN;
    }
    return mean ? a->value / a->count : a->value;
}

static void normalise_and_group(reference_context *c, const tria_v1_event *event)
{
    const tria_v1_plan *plan = c->plan;
    const bool mean = plan->params->group == TRIA_AGGREGATE_MEAN;
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        const tria_v1_kv *kv = &plan->kv[slot];
        const int32_t n = event->rows[slot];
        const uint8_t *skip = NULL;
        if (plan->params->normalize_over == TRIA_NORMALIZE_CANDIDATES) {
            tria_protect(plan, event->event, slot, n, c->mask);
            skip = c->mask;
        }
        for (int32_t g = kv->group_begin; g < kv->group_end; g++) {
            const int32_t q = plan->group[g];
            if (plan->params->normalize_over == TRIA_NORMALIZE_NONE) {
                memcpy(c->z + q * c->stride, c->raw + q * c->stride, sizeof(double) * (size_t)n);
            } else if (plan->queries[q].calibrated) {
                normalise(c->raw + q * c->stride, skip, n, c->z + q * c->stride);
            }
        }
        for (int32_t i = 0; i < n; i++) {
            accumulator a = {0.0, 0};
            for (int32_t g = kv->group_begin; g < kv->group_end; g++) {
                if (plan->queries[plan->group[g]].calibrated) {
                    accumulate(&a, c->z[plan->group[g] * c->stride + i], mean);
                }
            }
            c->grouped[slot * c->stride + i] = finish(&a, mean);
        }
    }
}

/* z of every calibrated query head that scores keys of `layer` (all layers with sets when -1). */
static void accumulate_queries(const reference_context *c, int32_t layer, int32_t row, bool mean,
                               accumulator *a)
{
    const tria_v1_plan *plan = c->plan;
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set < 0 || (layer >= 0 && plan->kv[s].layer != layer)) {
            continue;
        }
        for (int32_t g = plan->kv[s].group_begin; g < plan->kv[s].group_end; g++) {
            if (plan->queries[plan->group[g]].calibrated) {
                accumulate(a, c->z[plan->group[g] * c->stride + row], mean);
            }
        }
    }
}

/* `global`: the grouped score normalised once more and weighted. */
static void weigh_for_global(reference_context *c, const tria_v1_event *event)
{
    const tria_v1_plan *plan = c->plan;
    for (int32_t s = 0; s < plan->n_kv; s++) {
        double *grouped = c->grouped + s * c->stride;
        const uint8_t *skip = NULL;
        if (plan->kv[s].set < 0 || plan->kv[s].n_calibrated == 0) {
            continue;
        }
        if (plan->params->normalize_over == TRIA_NORMALIZE_CANDIDATES) {
            tria_protect(plan, event->event, s, event->rows[s], c->mask);
            skip = c->mask;
        }
        if (plan->params->normalize_over != TRIA_NORMALIZE_NONE) {
            normalise(grouped, skip, event->rows[s], grouped);
        }
        for (int32_t i = 0; i < event->rows[s]; i++) {
            grouped[i] *= plan->layers[plan->kv[s].layer].weight;
        }
    }
}

static double aggregate_row(const reference_context *c, int32_t set, int32_t slot, int32_t row)
{
    const tria_v1_plan *plan = c->plan;
    const int32_t mode = plan->params->mode;
    const bool mean = mode == TRIA_MODE_PER_HEAD && plan->params->layers_agg == TRIA_AGGREGATE_MEAN;
    accumulator a = {0.0, 0};
    if (plan->kv[slot].borrows) {
        accumulate_queries(c, mode == TRIA_MODE_PER_HEAD ? -1 : plan->kv[slot].layer, row, true, &a);
        return finish(&a, true);
    }
    if (mode == TRIA_MODE_UNION) {
        accumulate_queries(c, -1, row, false, &a);
        return finish(&a, false);
    }
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set == set && plan->kv[s].n_calibrated > 0) {
            accumulate(&a, c->grouped[s * c->stride + row], mean);
        }
    }
    return finish(&a, mean);
}

/* Neighbour pooling: the max over rows within `radius` positions, NaN skipped. */
static void pool(reference_context *c, const int32_t *positions, int32_t n, int64_t radius, double *scores)
{
    for (int32_t i = 0; i < n; i++) {
        const int64_t p = positions != NULL ? positions[i] : i;
        accumulator a = {0.0, 0};
        for (int32_t j = 0; j < n; j++) {
            const int64_t other = positions != NULL ? positions[j] : j;
            if (other - p <= radius && p - other <= radius) {
                accumulate(&a, scores[j], false);
            }
        }
        c->pooled[i] = finish(&a, false);
    }
    memcpy(scores, c->pooled, sizeof(double) * (size_t)n);
}

static void export_rows(const tria_scores *scores, void *target, int32_t slot, const double *values,
                        int32_t n)
{
    const int64_t at = slot * scores->row_stride;
    if (target == NULL) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        if (scores->dtype == TRIA_DTYPE_F64) {
            ((double *)target)[at + i] = values[i];
        } else {
            ((float *)target)[at + i] = (float)values[i];
        }
    }
}

static tria_status reference_score(void *context, const tria_v1_event *events, int32_t n_events,
                                   void *stream, tria_error *error)
{
    reference_context *c = context;
    const tria_v1_plan *plan = c->plan;
    (void)stream;
    for (int32_t i = 0; i < n_events; i++) {
        if (events[i].event->device != NULL) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "event %d: device tables on a CPU backend", i);
        }
    }
    if (tria_needs_reduce(plan)) {
        return tria_fail(error, TRIA_E_UNSUPPORTED, "the reference backend does not reduce over ranks");
    }
    for (int32_t i = 0; i < n_events; i++) {
        const tria_v1_event *event = &events[i];
        const tria_scores *out = event->scores;
        double *final = c->final + (int64_t)i * plan->n_sets * c->stride;
        tria_keep report;

        score_raw(c, event, &report);
        c->n_nan[i] = report.n_nan;
        c->n_zero_heads[i] = report.n_zero_heads;
        normalise_and_group(c, event);
        for (int32_t q = 0; out != NULL && q < plan->n_queries; q++) {
            export_rows(out, out->raw, q, c->raw + q * c->stride, event->rows[plan->queries[q].kv_slot]);
        }
        for (int32_t s = 0; out != NULL && s < plan->n_kv; s++) {
            export_rows(out, out->grouped, s, c->grouped + s * c->stride, event->rows[s]);
        }
        if (plan->params->mode == TRIA_MODE_GLOBAL) {
            weigh_for_global(c, event);
        }
        for (int32_t set = 0; set < plan->n_sets; set++) {
            const int32_t slot = tria_first_slot(plan, set);
            const int32_t *positions =
                tria_event_positions(event->event, plan->kv[slot].layer, plan->kv[slot].head);
            const bool by_position = tria_ranked_by_position(plan, event, slot);
            double *row = final + set * c->stride;
            for (int32_t r = 0; r < event->rows[slot]; r++) {
                row[r] = by_position ? NAN : aggregate_row(c, set, slot, r);
            }
            if (plan->params->pool_radius > 0) {
                pool(c, positions, event->rows[slot], plan->params->pool_radius, row);
            }
            if (out != NULL) {
                export_rows(out, out->final_scores, set, row, event->rows[slot]);
            }
        }
    }
    return TRIA_OK;
}

/* Best first: higher score, then lower row; NaN last. */
static int by_score(const void *a, const void *b)
{
    const ranked_row *x = a;
    const ranked_row *y = b;
    if (isnan(x->score) != isnan(y->score)) {
        return isnan(x->score) ? 1 : -1;
    }
    if (x->score > y->score || x->score < y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->row < y->row ? -1 : 1;
}

static int by_position(const void *a, const void *b)
{
    const ranked_row *x = a;
    const ranked_row *y = b;
    if (x->position != y->position) {
        return x->position > y->position ? -1 : 1;
    }
    return x->row < y->row ? -1 : 1;
}

static tria_status reference_select(void *context, const tria_v1_event *events, int32_t n_events,
                                    void *stream, tria_error *error)
{
    reference_context *c = context;
    const tria_v1_plan *plan = c->plan;
    (void)stream;
    (void)error;
    for (int32_t i = 0; i < n_events; i++) {
        const tria_v1_event *event = &events[i];
        tria_keep *keep = event->keep;
        keep->n_nan = c->n_nan[i];
        keep->n_zero_heads = c->n_zero_heads[i];
        keep->over_budget = 0;
        keep->n_uncalibrated_layers = tria_report_uncalibrated(plan, keep->uncalibrated_layers);
        for (int32_t set = 0; set < plan->n_sets; set++) {
            const int32_t slot = tria_first_slot(plan, set);
            const int32_t n = event->rows[slot];
            const int32_t *positions =
                tria_event_positions(event->event, plan->kv[slot].layer, plan->kv[slot].head);
            const tria_protection protection = tria_protect(plan, event->event, slot, n, c->mask);
            const int64_t allowed = tria_rows_allowed(plan, event->set_budgets[set], protection);
            int32_t n_candidates = 0;
            int32_t kept = 0;
            for (int32_t r = 0; r < n; r++) {
                if (!c->mask[r]) {
                    const size_t at = (size_t)set * (size_t)c->stride + (size_t)r;
                    const size_t first = (size_t)i * (size_t)plan->n_sets * (size_t)c->stride;
                    const size_t given = (size_t)set * (size_t)plan->max_rows + (size_t)r;
                    c->ranking[n_candidates].score = event->final_scores != NULL
                                                         ? event->final_scores[given]
                                                         : (float)c->final[first + at];
                    c->ranking[n_candidates].position = positions != NULL ? positions[r] : r;
                    c->ranking[n_candidates++].row = r;
                }
            }
            qsort(c->ranking, (size_t)n_candidates, sizeof(*c->ranking),
                  tria_ranked_by_position(plan, event, slot) ? by_position : by_score);
            for (int32_t r = 0; r < n_candidates && protection.n_protected + r < allowed; r++) {
                c->mask[c->ranking[r].row] = 1;
            }
            for (int32_t r = 0; r < n; r++) {
                if (c->mask[r] || allowed >= n) {
                    keep->rows[set * keep->row_stride + kept++] = r;
                }
            }
            keep->counts[set] = kept;
            if (protection.n_protected > allowed && protection.n_protected - allowed > keep->over_budget) {
                keep->over_budget = (int32_t)(protection.n_protected - allowed);
            }
        }
    }
    return TRIA_OK;
}

static tria_status reference_compact(void *context, const tria_v1_event *events, int32_t n_events,
                                     void *stream, tria_error *error)
{
    reference_context *c = context;
    const tria_compact_context lent = {.scratch = c->compact_scratch};
    (void)stream;
    return tria_cpu_compact(c->plan, events, n_events, &lent, error);
}

enum { N_ARRAYS = 14 };

static void list_arrays(reference_context *c, const tria_v1_plan *plan, tria_array specs[N_ARRAYS])
{
    const size_t stride = (size_t)plan->max_rows;
    const size_t n = (size_t)plan->params->max_sequences;
    size_t offsets = 0;
    for (int64_t offset = 1; offset <= plan->params->offset_max; offset *= 2) {
        offsets++;
    }
    c->stride = plan->max_rows;
    c->max_dim = 1;
    c->max_freq = 1;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        c->max_dim = plan->layers[l].k.dim > c->max_dim ? plan->layers[l].k.dim : c->max_dim;
        c->max_freq = plan->layers[l].n_freq > c->max_freq ? plan->layers[l].n_freq : c->max_freq;
    }
    const tria_array list[N_ARRAYS] = {
        {(void **)&c->raw, (size_t)plan->n_queries * stride, sizeof(double)},
        {(void **)&c->z, (size_t)plan->n_queries * stride, sizeof(double)},
        {(void **)&c->grouped, (size_t)plan->n_kv * stride, sizeof(double)},
        {(void **)&c->pooled, stride, sizeof(double)},
        {(void **)&c->final, n * (size_t)plan->n_sets * stride, sizeof(double)},
        {(void **)&c->bad_rows, stride, 1},
        {(void **)&c->mask, stride, 1},
        {(void **)&c->key, (size_t)c->max_dim, sizeof(double)},
        {(void **)&c->phases, 2 * offsets * (size_t)c->max_freq, sizeof(double)},
        {(void **)&c->mag, (size_t)c->max_freq, sizeof(double)},
        {(void **)&c->ranking, stride, sizeof(ranked_row)},
        {(void **)&c->n_nan, n, sizeof(int32_t)},
        {(void **)&c->n_zero_heads, n, sizeof(int32_t)},
        {&c->compact_scratch, tria_compact_scratch_count(plan) + 1, sizeof(int32_t)},
    };
    memcpy(specs, list, sizeof(list));
}

static void reference_plan_destroy(void *context)
{
    reference_context *c = context;
    const tria_v1_host *host = c->host;
    tria_array specs[N_ARRAYS];
    list_arrays(c, c->plan, specs);
    tria_arrays_release(host->env, specs, N_ARRAYS);
    tria_free(host->env, c);
}

static tria_status reference_plan_create(void *device, const tria_v1_plan *plan, void **context,
                                         tria_error *error)
{
    const tria_v1_host *host = device;
    tria_array specs[N_ARRAYS];
    reference_context *c = tria_alloc(host->env, 1, sizeof(*c));
    if (c == NULL) {
        return tria_fail_memory(error, sizeof(*c), "the reference backend");
    }
    c->plan = plan;
    c->host = host;
    list_arrays(c, plan, specs);
    const tria_status status =
        tria_arrays_allocate(host->env, specs, N_ARRAYS, "the reference backend", error);
    if (status != TRIA_OK) {
        reference_plan_destroy(c);
        return status;
    }
    *context = c;
    return TRIA_OK;
}

static tria_status reference_workspace_size(const tria_v1_plan *plan, size_t *host_bytes,
                                            size_t *device_bytes, tria_error *error)
{
    reference_context c;
    tria_array specs[N_ARRAYS];
    (void)error;
    memset(&c, 0, sizeof(c));
    list_arrays(&c, plan, specs);
    *host_bytes = sizeof(c) + tria_arrays_bytes(specs, N_ARRAYS);
    *device_bytes = 0;
    return TRIA_OK;
}

const tria_backend_v1_table tria_reference_backend = {
    .struct_size = sizeof(tria_backend_v1_table),
    .version = TRIA_BACKEND_V1_VERSION,
    .name = "reference",
    .probe = tria_host_probe,
    .device_info = tria_host_device_info,
    .device_open = tria_host_device_open,
    .device_close = tria_host_device_close,
    .device_name = tria_host_device_name,
    .supports = tria_host_supports,
    .plan_create = reference_plan_create,
    .plan_destroy = reference_plan_destroy,
    .score = reference_score,
    .select = reference_select,
    .compact = reference_compact,
    .synchronize = tria_host_synchronize,
    .workspace_size = reference_workspace_size,
};

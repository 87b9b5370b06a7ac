/* accumulator.c - sums of query statistics: add, merge, finish. */
#include "accumulator_internal.h"

#include "calibration_internal.h"
#include "kv_view_internal.h"
#include "model_internal.h"
#include "plan_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PROGRESS_TOKENS = 1024,
    DEGENERATE_TOKENS = 1024, /* fewer say nothing about a text */
    DEGENERATE_DISTINCT = 64  /* a few lines of real text already have more distinct tokens */
};

void tria_accumulator_params_init(tria_accumulator_params *params)
{
    memset(params, 0, sizeof(*params));
    params->struct_size = sizeof(*params);
    params->capture_point = TRIA_CAPTURE_AFTER_QK_NORM;
    params->content = 1;
}

void tria_queries_init(tria_queries *queries)
{
    memset(queries, 0, sizeof(*queries));
    queries->struct_size = sizeof(*queries);
}

tria_status tria_accumulator_create(const tria_accumulator_params *caller, const tria_env *env,
                                    tria_accumulator **out, tria_error *error)
{
    tria_accumulator_params params;
    tria_model_params copy = TRIA_MODEL_PARAMS_INIT;
    tria_accumulator *accumulator;
    tria_env full_env;
    tria_status status;
    tria_accumulator_params_init(&params);
    TRIA_TRY(tria_struct_import(&params, sizeof(params), sizeof(params), caller, "tria_accumulator_params",
                                error));
    TRIA_TRY(tria_env_import(&full_env, env, error));
    if (params.model == NULL || out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_create: NULL argument");
    }
    accumulator = tria_alloc(&full_env, 1, sizeof(*accumulator));
    if (accumulator == NULL) {
        return tria_fail_memory(error, sizeof(*accumulator), "an accumulator");
    }
    accumulator->env = full_env;
    accumulator->params = params;
    accumulator->params.model = NULL;
    copy.name = params.model->name;
    copy.fingerprint = params.model->fingerprint;
    copy.layers = params.model->layers;
    copy.n_layers = params.model->n_layers;
    TRIA_TRY_GOTO(tria_model_create(&copy, &full_env, &accumulator->model, error), fail);
    accumulator->layers = tria_alloc(&full_env, (size_t)copy.n_layers, sizeof(*accumulator->layers));
    if (accumulator->layers == NULL) {
        status =
            tria_fail_memory(error, (size_t)copy.n_layers * sizeof(*accumulator->layers), "the layers");
        goto fail;
    }
    *out = accumulator;
    return TRIA_OK;
fail:
    tria_accumulator_destroy(accumulator);
    return status;
}

void tria_accumulator_destroy(tria_accumulator *accumulator)
{
    if (accumulator == NULL) {
        return;
    }
    const tria_env env = accumulator->env;
    for (int32_t l = 0; accumulator->layers != NULL && l < accumulator->model->n_layers; l++) {
        tria_free(&env, accumulator->layers[l].counts);
        tria_free(&env, accumulator->layers[l].sums);
        tria_free(&env, accumulator->layers[l].distinct);
    }
    tria_free(&env, accumulator->layers);
    tria_model_destroy(accumulator->model);
    tria_free(&env, accumulator);
}

tria_status tria_accumulator_open_layer(tria_accumulator *accumulator, int32_t index, tria_error *error)
{
    const tria_layer_params *geometry = &accumulator->model->layers[index];
    tria_sums_layer *layer = &accumulator->layers[index];
    const tria_env *env = &accumulator->env;
    const size_t n_heads = (size_t)geometry->n_q_heads;
    if (layer->counts != NULL) {
        return TRIA_OK;
    }
    layer->n_freq = geometry->rotary_dim / 2;
    layer->n_content = accumulator->params.content ? geometry->head_dim - geometry->rotary_dim : 0;
    layer->n_sums = 3 * (size_t)layer->n_freq + 2 * (size_t)layer->n_content;
    layer->sums = tria_alloc(env, 2 * n_heads * layer->n_sums, sizeof(double));
    layer->distinct = tria_alloc(env, TRIA_DISTINCT_WORDS, sizeof(uint64_t));
    layer->counts = tria_alloc(env, n_heads, sizeof(uint64_t));
    if (layer->sums == NULL || layer->distinct == NULL || layer->counts == NULL) {
        tria_free(env, layer->sums);
        tria_free(env, layer->distinct);
        tria_free(env, layer->counts);
        memset(layer, 0, sizeof(*layer));
        return tria_fail_memory(error, 2 * n_heads * layer->n_sums * sizeof(double), "the sums of a layer");
    }
    return TRIA_OK;
}

void tria_sums_add(double *sums, double *rest, const double *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double sum = sums[i] + values[i];
        const double added = sum - sums[i];
        rest[i] += (sums[i] - (sum - added)) + (values[i] - added);
        sums[i] = sum;
    }
}

/* The value of one element, exactly. */
static double load_element(const unsigned char *p, int32_t dtype)
{
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case TRIA_DTYPE_F64:
        memcpy(&value, p, sizeof(value));
        return value;
    case TRIA_DTYPE_F32:
        memcpy(&single, p, sizeof(single));
        return (double)single;
    default:
        memcpy(&half, p, sizeof(half));
        return (double)(dtype == TRIA_DTYPE_F16 ? tria_f16_to_f32(half) : tria_bf16_to_f32(half));
    }
}

static void load_row(const tria_queries *queries, int64_t token, int32_t head, int32_t dim, double *row)
{
    const unsigned char *p =
        (const unsigned char *)queries->data + token * queries->token_stride + head * queries->head_stride;
    for (int32_t d = 0; d < dim; d++) {
        row[d] = load_element(p + d * queries->dim_stride, queries->dtype);
    }
}

static tria_status resolve_queries(const tria_accumulator *accumulator, tria_queries *queries,
                                   tria_error *error)
{
    const tria_layer_params *layer;
    int64_t element;
    if (queries->layer < 0 || queries->layer >= accumulator->model->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_queries: layer %d of a model with %d layers",
                         queries->layer, accumulator->model->n_layers);
    }
    layer = &accumulator->model->layers[queries->layer];
    if (layer->n_q_heads == 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_queries: layer %d of the model has no attention",
                         queries->layer);
    }
    switch (queries->dtype) {
    case TRIA_DTYPE_F64:
        element = 8;
        break;
    case TRIA_DTYPE_F32:
        element = 4;
        break;
    case TRIA_DTYPE_F16:
    case TRIA_DTYPE_BF16:
        element = 2;
        break;
    default:
        return tria_fail(error, TRIA_E_UNSUPPORTED, "tria_queries: dtype %d is not F32, F16, BF16 or F64",
                         queries->dtype);
    }
    if (queries->n_heads == 0) {
        queries->n_heads = layer->n_q_heads - queries->head_first;
    }
    if (queries->head_first < 0 || queries->n_heads < 1 ||
        queries->n_heads > layer->n_q_heads - queries->head_first) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "tria_queries: heads %d and %d more are not among the %d query heads of layer %d",
                         queries->head_first, queries->n_heads, layer->n_q_heads, queries->layer);
    }
    if (queries->n_tokens < 0 || (queries->n_tokens > 0 && queries->data == NULL)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_queries: %lld tokens at %s",
                         (long long)queries->n_tokens, queries->data == NULL ? "NULL" : "an address");
    }
    if (queries->token_stride == 0 && queries->head_stride == 0 && queries->dim_stride == 0) {
        queries->dim_stride = element;
        queries->head_stride = element * layer->head_dim;
        queries->token_stride = queries->head_stride * queries->n_heads;
    }
    if (queries->dim_stride == 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_queries: dim_stride is 0 but another stride is not");
    }
    return TRIA_OK;
}

/* Everything finite and within float32, which the calibration's means are. */
static tria_status check_values(const tria_queries *queries, const tria_layer_params *layer, double *row,
                                tria_error *error)
{
    for (int64_t token = 0; token < queries->n_tokens; token++) {
        if (queries->positions != NULL && queries->positions[token] < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "tria_queries: position %d of token %lld is negative",
                             queries->positions[token], (long long)token);
        }
        for (int32_t h = 0; h < queries->n_heads; h++) {
            load_row(queries, token, h, layer->head_dim, row);
            for (int32_t d = 0; d < layer->head_dim; d++) {
                if (!(fabs(row[d]) <= (double)FLT_MAX)) {
                    return tria_fail(error, TRIA_E_ARGUMENT,
                                     "tria_queries: layer %d token %lld head %d dim %d is %g",
                                     queries->layer, (long long)token, queries->head_first + h, d, row[d]);
                }
            }
        }
    }
    return TRIA_OK;
}

/* cos and sin of position * omega, [F][2]. */
static void phases_at(const tria_layer_params *layer, int32_t position, double *phases)
{
    for (int32_t f = 0; f < layer->rotary_dim / 2; f++) {
        tria_phase(position, layer->inv_freq[f], &phases[2 * f], &phases[2 * f + 1]);
    }
}

/* One row as the values that are summed: re, im, magnitude per frequency, then content and its size. */
static void row_values(const tria_layer_params *layer, const tria_sums_layer *sums, const double *row,
                       const double *phases, double *values)
{
    const int32_t n_freq = sums->n_freq;
    const double *rotary = row + layer->rotary_offset;
    const bool interleaved = layer->rope_style == TRIA_ROPE_INTERLEAVED;
    double *content = values + 3 * (size_t)n_freq;
    for (int32_t f = 0; f < n_freq; f++) {
        const double re = interleaved ? rotary[2 * f] : rotary[f];
        const double im = interleaved ? rotary[2 * f + 1] : rotary[n_freq + f];
        const double c = phases != NULL ? phases[2 * f] : 1;
        const double s = phases != NULL ? phases[2 * f + 1] : 0;
        values[f] = re * c + im * s;
        values[n_freq + f] = im * c - re * s;
        values[2 * n_freq + f] = sqrt(re * re + im * im);
    }
    for (int32_t d = 0; d < sums->n_content; d++) {
        const double x = d < layer->rotary_offset ? row[d] : row[d + layer->rotary_dim];
        content[d] = x;
        content[sums->n_content + d] = fabs(x);
    }
}

/* Marks the total magnitude, rounded to 12 bits of mantissa: few distinct marks over many tokens mean that
 * the text repeats itself. Rotation and f16 rounding hardly move it. */
static void mark_distinct(tria_sums_layer *layer, const double *values)
{
    double total = 0;
    uint64_t bits;
    for (int32_t f = 0; f < layer->n_freq; f++) {
        total += values[2 * layer->n_freq + f];
    }
    memcpy(&bits, &total, sizeof(bits));
    bits = bits >> 40 & 0xffff;
    layer->distinct[bits / 64] |= (uint64_t)1 << bits % 64;
}

uint64_t tria_accumulator_tokens(const tria_accumulator *accumulator, int32_t index)
{
    uint64_t most = 0;
    if (index < 0 || index >= accumulator->model->n_layers || accumulator->layers[index].counts == NULL) {
        return 0;
    }
    for (int32_t h = 0; h < accumulator->model->layers[index].n_q_heads; h++) {
        const uint64_t count = accumulator->layers[index].counts[h];
        most = count > most ? count : most;
    }
    return most;
}

static tria_status report_progress(const tria_accumulator *accumulator, int32_t layer, tria_error *error)
{
    const tria_accumulator_params *params = &accumulator->params;
    if (params->progress != NULL && params->progress(params->progress_context, layer,
                                                     tria_accumulator_tokens(accumulator, layer)) != 0) {
        return tria_fail(error, TRIA_E_CANCELLED, "the progress callback stopped the calibration");
    }
    return TRIA_OK;
}

/* scratch: row [head_dim], phases [rotary_dim], values [n_sums]. */
static tria_status add_tokens(tria_accumulator *accumulator, const tria_queries *queries, double *scratch,
                              tria_error *error)
{
    const tria_layer_params *geometry = &accumulator->model->layers[queries->layer];
    tria_sums_layer *layer = &accumulator->layers[queries->layer];
    double *row = scratch;
    double *phases = row + geometry->head_dim;
    double *values = phases + geometry->rotary_dim;
    for (int64_t token = 0; token < queries->n_tokens; token++) {
        if (queries->positions != NULL) {
            phases_at(geometry, queries->positions[token], phases);
        }
        for (int32_t h = 0; h < queries->n_heads; h++) {
            const size_t head = (size_t)queries->head_first + (size_t)h;
            double *sums = layer->sums + 2 * head * layer->n_sums;
            load_row(queries, token, h, geometry->head_dim, row);
            row_values(geometry, layer, row, queries->positions != NULL ? phases : NULL, values);
            tria_sums_add(sums, sums + layer->n_sums, values, layer->n_sums);
            layer->counts[head]++;
            if (head == 0) {
                mark_distinct(layer, values);
            }
        }
        if ((token + 1) % PROGRESS_TOKENS == 0 && token + 1 < queries->n_tokens) {
            TRIA_TRY(report_progress(accumulator, queries->layer, error));
        }
    }
    return report_progress(accumulator, queries->layer, error);
}

tria_status tria_accumulator_add(tria_accumulator *accumulator, const tria_queries *caller,
                                 tria_error *error)
{
    tria_queries queries;
    const tria_layer_params *geometry;
    double *scratch;
    size_t count;
    tria_status status;
    tria_queries_init(&queries);
    if (accumulator == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_add: accumulator is NULL");
    }
    TRIA_TRY(tria_struct_import(&queries, sizeof(queries), sizeof(queries), caller, "tria_queries", error));
    TRIA_TRY(resolve_queries(accumulator, &queries, error));
    if (queries.n_tokens == 0) {
        return TRIA_OK;
    }
    TRIA_TRY(tria_accumulator_open_layer(accumulator, queries.layer, error));
    geometry = &accumulator->model->layers[queries.layer];
    count = (size_t)geometry->head_dim + (size_t)geometry->rotary_dim +
            accumulator->layers[queries.layer].n_sums;
    scratch = tria_alloc(&accumulator->env, count, sizeof(double));
    if (scratch == NULL) {
        return tria_fail_memory(error, count * sizeof(double), "a query");
    }
    status = check_values(&queries, geometry, scratch, error);
    if (status == TRIA_OK) {
        status = add_tokens(accumulator, &queries, scratch, error);
    }
    tria_free(&accumulator->env, scratch);
    return status;
}

static tria_status check_same_layers(const tria_accumulator *a, const tria_accumulator *b,
                                     tria_error *error)
{
    if (a->model->n_layers != b->model->n_layers) {
        return tria_fail(error, TRIA_E_MISMATCH, "accumulators of %d and %d layers cannot merge",
                         a->model->n_layers, b->model->n_layers);
    }
    if (a->params.capture_point != b->params.capture_point) {
        return tria_fail(error, TRIA_E_MISMATCH,
                         "accumulators of queries taken at different points (%d and %d) cannot merge",
                         a->params.capture_point, b->params.capture_point);
    }
    for (int32_t l = 0; l < a->model->n_layers; l++) {
        const tria_layer_params *x = &a->model->layers[l];
        const tria_layer_params *y = &b->model->layers[l];
        if (x->n_q_heads != y->n_q_heads || x->head_dim != y->head_dim || x->rotary_dim != y->rotary_dim ||
            x->rotary_offset != y->rotary_offset || x->rope_style != y->rope_style ||
            a->params.content != b->params.content) {
            return tria_fail(
                error, TRIA_E_MISMATCH,
                "accumulators cannot merge: layer %d has %d heads of %d (%d rotary) and %d heads "
                "of %d (%d rotary), or style, rotary offset or content differ",
                l, x->n_q_heads, x->head_dim, x->rotary_dim, y->n_q_heads, y->head_dim, y->rotary_dim);
        }
    }
    return TRIA_OK;
}

tria_status tria_accumulator_merge(tria_accumulator *accumulator, const tria_accumulator *other,
                                   tria_error *error)
{
    if (accumulator == NULL || other == NULL || accumulator == other) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_merge: two accumulators are needed");
    }
    TRIA_TRY(check_same_layers(accumulator, other, error));
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        if (other->layers[l].counts != NULL) {
            TRIA_TRY(tria_accumulator_open_layer(accumulator, l, error));
        }
    }
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        const tria_sums_layer *from = &other->layers[l];
        tria_sums_layer *to = &accumulator->layers[l];
        for (int32_t h = 0; from->counts != NULL && h < accumulator->model->layers[l].n_q_heads; h++) {
            const double *added = from->sums + 2 * (size_t)h * from->n_sums;
            double *sums = to->sums + 2 * (size_t)h * to->n_sums;
            tria_sums_add(sums, sums + to->n_sums, added, to->n_sums);
            tria_sums_add(sums, sums + to->n_sums, added + to->n_sums, to->n_sums);
            to->counts[h] += from->counts[h];
        }
        for (size_t i = 0; from->counts != NULL && i < TRIA_DISTINCT_WORDS; i++) {
            to->distinct[i] |= from->distinct[i];
        }
    }
    return TRIA_OK;
}

/* Whether a calibration's layer can be counted with what the accumulator sees, beyond that it matches. */
static tria_status check_continued(const tria_accumulator *accumulator, const tria_calibration *calibration,
                                   int32_t l, tria_error *error)
{
    const tria_calibration_layer_data *data = &calibration->layers[l];
    const tria_sums_layer *layer = &accumulator->layers[l];
    if (data->n_tokens == 0) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "the calibration does not say how many tokens layer %d saw: it cannot be continued", l);
    }
    if (calibration->explicit_style &&
        data->geometry.rope_style != accumulator->model->layers[l].rope_style) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "layer %d pairs its dimensions otherwise in the calibration (rope style %d) than in "
            "the model (%d): it cannot be continued",
            l, data->geometry.rope_style, accumulator->model->layers[l].rope_style);
    }
    for (int32_t i = 0; i < data->n_heads; i++) {
        if (layer->n_content > 0 && data->heads[i].n_content == 0) {
            return tria_fail(error, TRIA_E_MISMATCH,
                             "layer %d head %d has no content statistics in the calibration: it cannot be "
                             "continued with them",
                             l, data->heads[i].q_head);
        }
    }
    return TRIA_OK;
}

tria_status tria_accumulator_add_calibration(tria_accumulator *accumulator,
                                             const tria_calibration *calibration, tria_error *error)
{
    if (accumulator == NULL || calibration == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_add_calibration: NULL argument");
    }
    TRIA_TRY(tria_calibration_match(calibration, accumulator->model, NULL, NULL, error));
    if (calibration->capture_point != TRIA_CAPTURE_UNKNOWN &&
        calibration->capture_point != accumulator->params.capture_point) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "the calibration's queries were taken at another point (%d) than the accumulator's "
            "(%d): it cannot be continued",
            calibration->capture_point, accumulator->params.capture_point);
    }
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        if (calibration->layers[l].n_heads > 0) {
            TRIA_TRY(tria_accumulator_open_layer(accumulator, l, error));
            TRIA_TRY(check_continued(accumulator, calibration, l, error));
        }
    }
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        const tria_calibration_layer_data *data = &calibration->layers[l];
        tria_sums_layer *layer = &accumulator->layers[l];
        const double weight = (double)data->n_tokens;
        for (int32_t i = 0; i < data->n_heads; i++) {
            const tria_calibration_head_data *head = &data->heads[i];
            double *sums = layer->sums + 2 * (size_t)head->q_head * layer->n_sums;
            for (size_t k = 0; k < layer->n_sums; k++) {
                const size_t n_stats = 3 * (size_t)layer->n_freq;
                double value = 0;
                if (k < n_stats) {
                    value = weight * (double)head->values[k];
                } else {
                    value =
                        weight * (double)tria_head_array(data, head, TRIA_HEAD_CONTENT_MEAN)[k - n_stats];
                }
                tria_sums_add(&sums[k], &sums[k + layer->n_sums], &value, 1);
            }
            layer->counts[head->q_head] += data->n_tokens;
        }
    }
    return TRIA_OK;
}

/* The means of one head; arrays of n_sums floats. */
static tria_status finish_head(const tria_accumulator *accumulator, tria_calibration *calibration,
                               int32_t l, int32_t h, tria_error *error)
{
    const tria_sums_layer *layer = &accumulator->layers[l];
    const double *sums = layer->sums + 2 * (size_t)h * layer->n_sums;
    const size_t n_stats = 3 * (size_t)layer->n_freq;
    const double count = (double)layer->counts[h];
    tria_calibration_head_data *head;
    float *content;
    TRIA_TRY(tria_calibration_add_head(calibration, l, h, layer->n_content, &head, error));
    content = tria_head_array(&calibration->layers[l], head, TRIA_HEAD_CONTENT_MEAN);
    for (size_t k = 0; k < layer->n_sums; k++) {
        const float mean = (float)((sums[k] + sums[k + layer->n_sums]) / count);
        if (k < n_stats) {
            head->values[k] = mean;
        } else {
            content[k - n_stats] = mean;
        }
    }
    tria_calibration_fill_concentration(&calibration->layers[l], head);
    return TRIA_OK;
}

/* A finding when the first layer that was fed saw many tokens but hardly any distinct query. */
static void report_degenerate(const tria_accumulator *accumulator, tria_finding_fn report, void *context)
{
    for (int32_t l = 0; report != NULL && l < accumulator->model->n_layers; l++) {
        const tria_sums_layer *layer = &accumulator->layers[l];
        int32_t distinct = 0;
        char text[160];
        if (layer->counts == NULL || layer->counts[0] == 0) {
            continue;
        }
        for (size_t i = 0; i < TRIA_DISTINCT_WORDS; i++) {
            distinct += __builtin_popcountll(layer->distinct[i]);
        }
        /* a continued calibration brings tokens without their marks */
        if (distinct > 0 && layer->counts[0] >= DEGENERATE_TOKENS && distinct < DEGENERATE_DISTINCT) {
            snprintf(text, sizeof(text), "degenerate text: %llu tokens gave only about %d distinct queries",
                     (unsigned long long)layer->counts[0], distinct);
            report(context, TRIA_FINDING_WARNING, l, text);
        }
        return;
    }
}

tria_status tria_accumulator_finish(const tria_accumulator *accumulator, tria_finding_fn report,
                                    void *context, tria_calibration **out, tria_error *error)
{
    tria_calibration *calibration;
    bool any = false;
    tria_status status = TRIA_OK;
    if (accumulator == NULL || out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_finish: NULL argument");
    }
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        any = any || tria_accumulator_tokens(accumulator, l) > 0;
    }
    if (!any) {
        return tria_fail(error, TRIA_E_STATE, "no queries were added");
    }
    TRIA_TRY(tria_calibration_create(accumulator->model, &accumulator->env, &calibration, error));
    calibration->capture_point = accumulator->params.capture_point;
    for (int32_t l = 0; l < accumulator->model->n_layers && status == TRIA_OK; l++) {
        calibration->layers[l].n_tokens = tria_accumulator_tokens(accumulator, l);
        for (int32_t h = 0; calibration->layers[l].n_tokens > 0 && status == TRIA_OK &&
                            h < accumulator->model->layers[l].n_q_heads;
             h++) {
            if (accumulator->layers[l].counts[h] > 0) {
                status = finish_head(accumulator, calibration, l, h, error);
            }
        }
    }
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    if (report != NULL) {
        report_degenerate(accumulator, report, context);
        status = tria_calibration_review(calibration, report, context, error);
    }
    *out = calibration;
    return status;
}

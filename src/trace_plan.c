/* trace_plan.c - a plan back from its record: a model, a calibration and a layout made of the numbers. */
#include "trace_internal.h"

#include <string.h>

/* Everything that lives until the plan is made; all of it is released at once. */
typedef struct parts {
    const tria_env *env;
    int32_t n_layers;
    tria_layer_params *layers;
    tria_layer_view *views;
    float *weights;
    double **frequencies; /* [n_layers] inv_freq, then freq_scale_sq */
    float *signs;
    tria_model *model;
    tria_calibration *calibration;
} parts;

static void release_parts(parts *p)
{
    for (int32_t l = 0; p->frequencies != NULL && l < p->n_layers; l++) {
        tria_free(p->env, p->frequencies[l]);
    }
    tria_free(p->env, p->frequencies);
    tria_free(p->env, p->layers);
    tria_free(p->env, p->views);
    tria_free(p->env, p->weights);
    tria_free(p->env, p->signs);
    tria_calibration_destroy(p->calibration);
    tria_model_destroy(p->model);
}

static tria_status damaged(tria_error *error, const char *what)
{
    return tria_fail(error, TRIA_E_FORMAT, "plan record: %s", what);
}

/* Rows one after the other, heads max_rows rows apart. */
static tria_status read_tensor(tria_reader *reader, tria_tensor *tensor, int32_t max_rows,
                               tria_error *error)
{
    memset(tensor, 0, sizeof(*tensor));
    tensor->dtype = tria_read_i32(reader);
    tensor->dim = tria_read_i32(reader);
    tensor->scale_kind = tria_read_i32(reader);
    tensor->scale = tria_read_f32(reader);
    if (tensor->dim == 0) {
        return TRIA_OK; /* no V */
    }
    if (tensor->dim < 0 || tensor->dim > TRIA_MAX_HEAD_DIM) {
        return damaged(error, "a head dimension out of range");
    }
    tensor->token_stride = tria_dtype_row_bytes(tensor->dtype, tensor->dim);
    tensor->head_stride = tensor->token_stride * max_rows;
    if (tensor->token_stride == 0) {
        return damaged(error, "an unknown element type");
    }
    if (tensor->scale_kind == TRIA_SCALE_HEAD || tensor->scale_kind == TRIA_SCALE_ROW) {
        tensor->scale_kind = TRIA_SCALE_ROW;
        tensor->scale_token_stride = (int64_t)sizeof(float);
        tensor->scale_head_stride = tensor->scale_token_stride * max_rows;
    }
    return TRIA_OK;
}

static tria_status read_layer(tria_reader *reader, parts *p, int32_t l, int32_t max_rows, tria_error *error)
{
    tria_layer_params *layer = &p->layers[l];
    tria_layer_params_init(layer);
    layer->n_q_heads = tria_read_i32(reader);
    layer->n_kv_heads = tria_read_i32(reader);
    layer->head_dim = tria_read_i32(reader);
    layer->rotary_dim = tria_read_i32(reader);
    layer->rotary_offset = tria_read_i32(reader);
    layer->rope_style = tria_read_i32(reader);
    const int32_t kv_layer = tria_read_i32(reader);
    layer->window = tria_read_i32(reader);
    p->weights[l] = tria_read_f32(reader);
    if (layer->n_q_heads < 0 || layer->n_q_heads > TRIA_MAX_HEADS || layer->n_kv_heads < 0 ||
        layer->n_kv_heads > TRIA_MAX_HEADS || layer->rotary_dim < 0 ||
        layer->rotary_dim > TRIA_MAX_HEAD_DIM || kv_layer >= p->n_layers) {
        return damaged(error, "a layer's numbers are out of range");
    }
    if (layer->n_q_heads > 0) {
        const size_t n = (size_t)layer->rotary_dim / 2;
        p->frequencies[l] = tria_alloc(p->env, 2 * n + 1, sizeof(double));
        if (p->frequencies[l] == NULL) {
            return tria_fail_memory(error, 2 * n * sizeof(double), "a replay");
        }
        tria_read_f64s(reader, p->frequencies[l], 2 * (int64_t)n);
        layer->inv_freq = p->frequencies[l];
        layer->freq_scale_sq = p->frequencies[l] + n;
        layer->kv_source = kv_layer == l ? -1 : kv_layer;
    }
    if (layer->n_kv_heads > 0) {
        TRIA_TRY(read_tensor(reader, &p->views[l].k, max_rows, error));
        TRIA_TRY(read_tensor(reader, &p->views[l].v, max_rows, error));
    }
    return reader->failed ? damaged(error, "it ends within a layer") : TRIA_OK;
}

static tria_status read_layers(tria_reader *reader, parts *p, int32_t max_rows, tria_error *error)
{
    p->n_layers = tria_read_i32(reader);
    if (p->n_layers < 1 || p->n_layers > TRIA_MAX_LAYERS) {
        p->n_layers = 0;
        return damaged(error, "its number of layers is out of range");
    }
    const size_t n = (size_t)p->n_layers;
    p->layers = tria_alloc(p->env, n, sizeof(*p->layers));
    p->views = tria_alloc(p->env, n, sizeof(*p->views));
    p->weights = tria_alloc(p->env, n, sizeof(*p->weights));
    p->frequencies = tria_alloc(p->env, n, sizeof(*p->frequencies));
    if (p->layers == NULL || p->views == NULL || p->weights == NULL || p->frequencies == NULL) {
        return tria_fail_memory(error, n * sizeof(*p->layers), "a replay");
    }
    for (int32_t l = 0; l < p->n_layers; l++) {
        TRIA_TRY(read_layer(reader, p, l, max_rows, error));
    }
    const tria_model_params params = {sizeof(params), "trace", p->layers, p->n_layers, 0, NULL};
    return tria_model_create(&params, p->env, &p->model, error);
}

static void read_settings(tria_reader *reader, tria_plan_params *params)
{
    int32_t *const before_weight[] = {&params->offsets, &params->offset_max, &params->disable_trig,
                                      &params->disable_norm_excess};
    int32_t *const after_weight[] = {
        &params->normalize_over,    &params->group,           &params->mode,         &params->layers_agg,
        &params->use_layer_budgets, &params->pool_radius,     &params->budget,       &params->n_sink,
        &params->n_recent,          &params->protect_prefill, &params->count_prompt, &params->order,
        &params->zero_tail};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(before_weight); i++) {
        *before_weight[i] = tria_read_i32(reader);
    }
    params->content_weight = tria_read_f32(reader);
    for (size_t i = 0; i < TRIA_ARRAY_LEN(after_weight); i++) {
        *after_weight[i] = tria_read_i32(reader);
    }
    for (int i = 0; i < 3; i++) { /* names of the backends that were used */
        tria_read_bytes(reader, tria_read_u32(reader));
    }
}

static tria_status read_head(tria_reader *reader, const parts *p, int32_t layer, int32_t head,
                             tria_error *error)
{
    const tria_layer_params *geometry = &p->layers[layer];
    const int64_t n = geometry->rotary_dim / 2;
    tria_head_stats stats = {sizeof(stats), NULL, NULL, NULL, NULL, NULL};
    tria_status status;
    if (tria_read_i32(reader) == 0) {
        return TRIA_OK;
    }
    float *values = tria_alloc(p->env, (size_t)(3 * n + TRIA_MAX_HEAD_DIM), sizeof(float));
    if (values == NULL) {
        return tria_fail_memory(error, (size_t)n * 3 * sizeof(float), "a replay");
    }
    tria_read_f32s(reader, values, 3 * n);
    stats.q_mean_real = values;
    stats.q_mean_imag = values + n;
    stats.q_abs_mean = values + 2 * n;
    const int32_t n_content = tria_read_i32(reader);
    if (reader->failed || n_content < 0 ||
        (n_content > 0 && n_content != geometry->head_dim - geometry->rotary_dim)) {
        status = damaged(error, "a head's statistics do not fit its layer");
    } else {
        if (n_content > 0) {
            tria_read_f32s(reader, values + 3 * n, n_content);
            stats.content_mean = values + 3 * n;
        }
        status = tria_calibration_set_head(p->calibration, layer, head, &stats, error);
    }
    tria_free(p->env, values);
    return status;
}

static tria_status read_plan(tria_reader *reader, const tria_replay_params *replay, int32_t max_rows,
                             parts *p, tria_plan **plan, tria_error *error)
{
    tria_plan_params params;
    tria_kv_view view;
    tria_plan_params_init(&params);
    tria_kv_view_init(&view);
    TRIA_TRY(read_layers(reader, p, max_rows, error));
    view.layers = p->views;
    view.n_layers = p->n_layers;
    view.k_state = tria_read_i32(reader);
    view.hadamard_size = tria_read_i32(reader);
    const int32_t n_signs = tria_read_i32(reader);
    if (n_signs < 0 || n_signs > TRIA_MAX_HEAD_DIM) {
        return damaged(error, "its number of signs is out of range");
    }
    if (n_signs > 0) {
        p->signs = tria_alloc(p->env, TRIA_MAX_HEAD_DIM, sizeof(float));
        if (p->signs == NULL) {
            return tria_fail_memory(error, TRIA_MAX_HEAD_DIM * sizeof(float), "a replay");
        }
        tria_read_f32s(reader, p->signs, n_signs);
        view.hadamard_signs = p->signs;
    }
    read_settings(reader, &params);
    TRIA_TRY(tria_calibration_create(p->model, p->env, &p->calibration, error));
    for (int32_t l = 0; l < p->n_layers; l++) {
        for (int32_t h = 0; h < p->layers[l].n_q_heads; h++) {
            TRIA_TRY(read_head(reader, p, l, h, error));
        }
    }
    if (reader->failed || reader->used != reader->size) {
        return damaged(error, "its length does not fit its numbers");
    }
    params.model = p->model;
    params.calibration = p->calibration;
    params.layout = &view;
    params.layer_weights = p->weights;
    params.max_rows = max_rows;
    params.score_device = replay->device;
    params.select_device = replay->device;
    params.compact_device = replay->device;
    params.stage_device_memory = 1;
    params.n_threads = replay->n_threads;
    return tria_plan_create(&params, p->env, plan, error);
}

tria_status tria_trace_read_plan(tria_reader *reader, const tria_replay_params *params, int32_t max_rows,
                                 const tria_env *env, tria_plan **plan, tria_error *error)
{
    parts p = {.env = env};
    const tria_status status = read_plan(reader, params, max_rows, &p, plan, error);
    release_parts(&p);
    return status;
}

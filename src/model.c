/* model.c - the model description: checks, defaults, frequencies. */
#include "model_internal.h"

#include <math.h>
#include <string.h>

void tria_layer_params_init(tria_layer_params *params)
{
    const tria_layer_params defaults = TRIA_LAYER_PARAMS_INIT;
    *params = defaults;
}

void tria_model_params_init(tria_model_params *params)
{
    const tria_model_params defaults = TRIA_MODEL_PARAMS_INIT;
    *params = defaults;
}

void tria_inv_freq_from_theta(double theta, int32_t rotary_dim, double *inv_freq)
{
    for (int32_t f = 0; f < rotary_dim / 2; f++) {
        inv_freq[f] = tria_plain_frequency(theta, rotary_dim, f);
    }
}

static tria_status check_heads(const tria_layer_params *layer, int32_t index, tria_error *error)
{
    const int32_t q = layer->n_q_heads;
    const int32_t kv = layer->n_kv_heads;
    if (q < 0 || q > TRIA_MAX_HEADS || kv < 0 || kv > TRIA_MAX_HEADS) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "layer %d: %d query heads and %d KV heads, allowed 0 to %d", index, q, kv,
                         TRIA_MAX_HEADS);
    }
    if (q == 0 && kv != 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: %d KV heads but no query heads", index, kv);
    }
    if (q != 0 && (kv == 0 ? layer->kv_source < 0 : q % kv != 0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: %d KV heads do not divide %d query heads",
                         index, kv, q);
    }
    return TRIA_OK;
}

static tria_status check_rotary(const tria_layer_params *layer, int32_t index, tria_error *error)
{
    if (layer->head_dim < 1 || layer->head_dim > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: head_dim %d, allowed 1 to %d", index,
                         layer->head_dim, TRIA_MAX_HEAD_DIM);
    }
    if (layer->rotary_dim < 2 || layer->rotary_dim % 2 != 0 || layer->rotary_dim > layer->head_dim) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "layer %d: rotary_dim %d is not an even number from 2 to head_dim %d", index,
                         layer->rotary_dim, layer->head_dim);
    }
    if (layer->rotary_offset < 0 || layer->rotary_offset > layer->head_dim - layer->rotary_dim) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "layer %d: rotary_offset %d puts the rotary slice of %d outside head_dim %d",
                         index, layer->rotary_offset, layer->rotary_dim, layer->head_dim);
    }
    if (layer->rope_style != TRIA_ROPE_HALF && layer->rope_style != TRIA_ROPE_INTERLEAVED) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: rope_style %d is neither half nor interleaved",
                         index, layer->rope_style);
    }
    return TRIA_OK;
}

/* Every value finite and not negative. */
static tria_status check_weights(const double *values, int32_t count, int32_t index, const char *name,
                                 tria_error *error)
{
    for (int32_t f = 0; values != NULL && f < count; f++) {
        if (!isfinite(values[f]) || values[f] < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: %s[%d] is %g", index, name, f, values[f]);
        }
    }
    return TRIA_OK;
}

tria_status tria_layer_resolve(tria_layer_params *layer, int32_t index, int32_t n_layers, tria_error *error)
{
    TRIA_TRY(check_heads(layer, index, error));
    if (layer->window < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: window %d is negative", index, layer->window);
    }
    if (layer->n_q_heads == 0) {
        tria_layer_params_init(layer);
        return TRIA_OK;
    }
    if (layer->kv_source < -1 || layer->kv_source >= n_layers || layer->kv_source == index) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: kv_source %d is not another of the %d layers",
                         index, layer->kv_source, n_layers);
    }
    if (layer->rotary_dim == 0) {
        layer->rotary_dim = layer->head_dim;
    }
    TRIA_TRY(check_rotary(layer, index, error));
    if (layer->inv_freq == NULL && !(isfinite(layer->rope_theta) && layer->rope_theta >= 1)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: rope_theta is %g, below 1", index,
                         layer->rope_theta);
    }
    TRIA_TRY(check_weights(layer->inv_freq, layer->rotary_dim / 2, index, "inv_freq", error));
    return check_weights(layer->freq_scale_sq, layer->rotary_dim / 2, index, "freq_scale_sq", error);
}

/* Copies the caller's structs, whatever their size, and resolves each. */
static tria_status import_layers(tria_model *model, const tria_model_params *params, size_t *n_doubles,
                                 tria_error *error)
{
    const unsigned char *bytes = (const unsigned char *)params->layers;
    const size_t stride = params->layers[0].struct_size;
    *n_doubles = 0;
    for (int32_t l = 0; l < model->n_layers; l++) {
        tria_layer_params *layer = &model->layers[l];
        tria_layer_params_init(layer);
        TRIA_TRY(tria_struct_import(layer, sizeof(*layer), sizeof(*layer), bytes + (size_t)l * stride,
                                    "tria_layer_params", error));
        TRIA_TRY(tria_layer_resolve(layer, l, model->n_layers, error));
        *n_doubles += (size_t)layer->rotary_dim; /* F frequencies and F weights */
    }
    return TRIA_OK;
}

/* Moves every layer's arrays into the model's own block. */
static void own_frequencies(tria_model *model)
{
    double *next = model->frequencies;
    for (int32_t l = 0; l < model->n_layers; l++) {
        tria_layer_params *layer = &model->layers[l];
        const int32_t n_freq = layer->rotary_dim / 2;
        if (layer->n_q_heads == 0) {
            continue;
        }
        double *inv_freq = next;
        double *scale = next + n_freq;
        next += 2 * n_freq;
        if (layer->inv_freq != NULL) {
            // There is a block when a layer has attention. NOLINTNEXTLINE(clang-analyzer-*)
            memcpy(inv_freq, layer->inv_freq, (size_t)n_freq * sizeof(double));
        } else {
            tria_inv_freq_from_theta(layer->rope_theta, layer->rotary_dim, inv_freq);
        }
        for (int32_t f = 0; f < n_freq; f++) {
            scale[f] = layer->freq_scale_sq != NULL ? layer->freq_scale_sq[f] : 1.0;
        }
        layer->inv_freq = inv_freq;
        layer->freq_scale_sq = scale;
    }
}

/* A layer that reads another's keys must see them as the other wrote them. */
static tria_status check_kv_sources(tria_model *model, tria_error *error)
{
    for (int32_t l = 0; l < model->n_layers; l++) {
        tria_layer_params *layer = &model->layers[l];
        const tria_layer_params *source;
        if (layer->n_q_heads == 0 || layer->kv_source < 0) {
            continue;
        }
        source = &model->layers[layer->kv_source];
        if (source->n_q_heads == 0 || source->kv_source >= 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: kv_source %d has no KV cache of its own", l,
                             layer->kv_source);
        }
        if (layer->n_kv_heads == 0) {
            layer->n_kv_heads = source->n_kv_heads;
        }
        if (layer->n_kv_heads != source->n_kv_heads || layer->n_q_heads % layer->n_kv_heads != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "layer %d: %d query and %d KV heads cannot read the %d KV heads of layer %d",
                             l, layer->n_q_heads, layer->n_kv_heads, source->n_kv_heads, layer->kv_source);
        }
        if (layer->head_dim != source->head_dim || layer->rotary_dim != source->rotary_dim ||
            layer->rotary_offset != source->rotary_offset || layer->rope_style != source->rope_style ||
            memcmp(layer->inv_freq, source->inv_freq, (size_t)(layer->rotary_dim / 2) * sizeof(double)) !=
                0) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "layer %d: head_dim, rotary slice, style and frequencies must be those of its "
                             "kv_source %d",
                             l, layer->kv_source);
        }
    }
    return TRIA_OK;
}

static tria_status fill_model(tria_model *model, const tria_model_params *params, tria_error *error)
{
    size_t n_doubles;
    model->layers = tria_alloc(&model->env, (size_t)model->n_layers, sizeof(*model->layers));
    model->name = tria_strdup(&model->env, params->name);
    model->fingerprint = tria_strdup(&model->env, params->fingerprint);
    if (model->layers == NULL || model->name == NULL || model->fingerprint == NULL) {
        return tria_fail_memory(error, (size_t)model->n_layers * sizeof(*model->layers), "the model");
    }
    TRIA_TRY(import_layers(model, params, &n_doubles, error));
    model->frequencies = tria_alloc(&model->env, n_doubles, sizeof(double));
    if (model->frequencies == NULL && n_doubles != 0) {
        return tria_fail_memory(error, n_doubles * sizeof(double), "the model's frequencies");
    }
    own_frequencies(model);
    return check_kv_sources(model, error);
}

tria_status tria_model_create(const tria_model_params *caller, const tria_env *env, tria_model **out,
                              tria_error *error)
{
    tria_model_params params;
    tria_env full_env;
    tria_model *model;
    tria_status status;
    if (out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_model_create: model is NULL");
    }
    tria_model_params_init(&params);
    TRIA_TRY(
        tria_struct_import(&params, sizeof(params), sizeof(params), caller, "tria_model_params", error));
    TRIA_TRY(tria_env_import(&full_env, env, error));
    if (params.n_layers < 1 || params.n_layers > TRIA_MAX_LAYERS || params.layers == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_model_params: n_layers %d, allowed 1 to %d",
                         params.n_layers, TRIA_MAX_LAYERS);
    }
    model = tria_alloc(&full_env, 1, sizeof(*model));
    if (model == NULL) {
        return tria_fail_memory(error, sizeof(*model), "the model");
    }
    model->env = full_env;
    model->n_layers = params.n_layers;
    status = fill_model(model, &params, error);
    if (status != TRIA_OK) {
        tria_model_destroy(model);
        return status;
    }
    *out = model;
    return TRIA_OK;
}

void tria_model_destroy(tria_model *model)
{
    if (model != NULL) {
        const tria_env env = model->env;
        tria_free(&env, model->frequencies);
        tria_free(&env, model->layers);
        tria_free(&env, model->name);
        tria_free(&env, model->fingerprint);
        tria_free(&env, model);
    }
}

const char *tria_model_name(const tria_model *model)
{
    return model->name;
}

const char *tria_model_fingerprint(const tria_model *model)
{
    return model->fingerprint;
}

int32_t tria_model_n_layers(const tria_model *model)
{
    return model->n_layers;
}

tria_status tria_model_layer(const tria_model *model, int32_t layer, tria_layer_params *params,
                             tria_error *error)
{
    if (layer < 0 || layer >= model->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d of a model with %d layers", layer,
                         model->n_layers);
    }
    return tria_struct_export(params, &model->layers[layer], sizeof(*params), sizeof(*params),
                              "tria_layer_params", error);
}

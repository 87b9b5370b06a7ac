/* model.c - model descriptions in JSON: finds the kind, makes the model, knows the RoPE scalings. */
#include "model_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tria_status builder_open(model_builder *builder, int32_t n_layers)
{
    builder->layers = calloc((size_t)n_layers, sizeof(*builder->layers));
    builder->frequencies = calloc((size_t)n_layers, sizeof(*builder->frequencies));
    if (builder->layers == NULL || builder->frequencies == NULL) {
        return import_fail(builder->error, TRIA_E_MEMORY, "cannot allocate %d layers", n_layers);
    }
    builder->n_layers = n_layers;
    for (int32_t l = 0; l < n_layers; l++) {
        tria_layer_params_init(&builder->layers[l]);
    }
    return TRIA_OK;
}

static void builder_close(model_builder *builder)
{
    for (int32_t l = 0; builder->frequencies != NULL && l < builder->n_layers; l++) {
        free(builder->frequencies[l]);
    }
    free(builder->frequencies);
    free(builder->layers);
}

/* Room for a layer's frequencies. */
static tria_status own_frequencies(model_builder *builder, int32_t layer)
{
    const int32_t rotary_dim = builder->layers[layer].rotary_dim;
    if (rotary_dim < 2 || rotary_dim > TRIA_MAX_HEAD_DIM) {
        return import_fail(builder->error, TRIA_E_FORMAT, "layer %d: %d rotary dimensions", layer,
                           rotary_dim);
    }
    free(builder->frequencies[layer]);
    builder->frequencies[layer] = calloc((size_t)rotary_dim / 2, sizeof(double));
    if (builder->frequencies[layer] == NULL) {
        return import_fail(builder->error, TRIA_E_MEMORY, "cannot allocate %d frequencies", rotary_dim / 2);
    }
    builder->layers[layer].inv_freq = builder->frequencies[layer];
    return TRIA_OK;
}

tria_status builder_set_no_rope(model_builder *builder, int32_t layer)
{
    return own_frequencies(builder, layer);
}

static const char *first_text(const json_t *root, const char *a, const char *b)
{
    const char *text = json_string_value(json_object_get(root, a));
    return text != NULL ? text : json_string_value(json_object_get(root, b));
}

static const char *scaling_name(const json_t *scaling)
{
    const char *name = first_text(scaling, "rope_type", "type");
    return name != NULL ? name : "default";
}

static tria_status scaling_type(const json_t *scaling, int32_t *type, tria_error *error)
{
    const char *name = scaling_name(scaling);
    if (first_text(scaling, "rope_type", "type") == NULL && import_json_has(scaling, "factor")) {
        return import_fail(error, TRIA_E_FORMAT,
                           "a rope scaling with a factor, but without its \"rope_type\"");
    }
    return import_rope_scaling(name, strlen(name), type)
               ? TRIA_OK
               : import_fail(error, TRIA_E_UNSUPPORTED, "rope scaling \"%.32s\" is not known", name);
}

/* The lengths a scaling refers to, from wherever models put them. */
static tria_status scaling_lengths(const json_t *scaling, const json_t *config, tria_rope_scaling *out,
                                   tria_error *error)
{
    double outer = 0;
    double maximum = 0;
    double factor = 0;
    IMPORT_TRY(
        import_json_number(scaling, "original_max_position_embeddings", &out->original_length, error));
    IMPORT_TRY(import_json_number(config, "original_max_position_embeddings", &outer, error));
    IMPORT_TRY(import_json_number(config, "max_position_embeddings", &maximum, error));
    IMPORT_TRY(import_json_number(scaling, "factor", &factor, error));
    if (out->type == TRIA_ROPE_SCALING_DYNAMIC && maximum != 0) {
        out->original_length = maximum;
    } else if (outer != 0 || out->original_length == 0) {
        out->original_length = outer != 0 ? outer : maximum;
    }
    /* A length beside the scaling is the trained one, and what it was stretched to gives the factor. */
    if (out->type == TRIA_ROPE_SCALING_LONGROPE && maximum != 0 && (outer != 0 || factor == 0)) {
        factor = maximum / out->original_length;
    }
    if (out->type == TRIA_ROPE_SCALING_YARN && factor == 0 && out->original_length != 0) {
        factor = maximum / out->original_length;
    }
    if (factor == 0) {
        return import_fail(error, TRIA_E_FORMAT, "the rope scaling \"%.32s\" has no factor",
                           scaling_name(scaling));
    }
    out->factor = factor;
    return TRIA_OK;
}

static tria_status scaling_numbers(const json_t *scaling, tria_rope_scaling *out, tria_error *error)
{
    const json_t *truncate = json_object_get(scaling, "truncate");
    IMPORT_TRY(import_json_number(scaling, "attention_factor", &out->attention_factor, error));
    IMPORT_TRY(import_json_number(scaling, "beta_fast", &out->beta_fast, error));
    IMPORT_TRY(import_json_number(scaling, "beta_slow", &out->beta_slow, error));
    IMPORT_TRY(import_json_number(scaling, "mscale", &out->mscale, error));
    IMPORT_TRY(import_json_number(scaling, "mscale_all_dim", &out->mscale_all_dim, error));
    IMPORT_TRY(import_json_number(scaling, "low_freq_factor", &out->low_freq_factor, error));
    IMPORT_TRY(import_json_number(scaling, "high_freq_factor", &out->high_freq_factor, error));
    if (json_is_boolean(truncate)) {
        out->truncate = json_is_true(truncate);
    }
    return TRIA_OK;
}

/* Both factor lists of longrope, short then long. */
static tria_status longrope_factors(const json_t *scaling, int32_t n_freq, double **both,
                                    tria_rope_scaling *out, tria_error *error)
{
    *both = malloc(2 * (size_t)n_freq * sizeof(**both));
    if (*both == NULL) {
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate %d factors", 2 * n_freq);
    }
    IMPORT_TRY(import_json_doubles(json_object_get(scaling, "short_factor"), n_freq, "short_factor", *both,
                                   error));
    IMPORT_TRY(import_json_doubles(json_object_get(scaling, "long_factor"), n_freq, "long_factor",
                                   *both + n_freq, error));
    out->short_factor = *both;
    out->long_factor = *both + n_freq;
    return TRIA_OK;
}

/* Gemma 4: frequencies of the full width of which only the first part turns. */
static tria_status proportional(model_builder *builder, int32_t index, double theta, const json_t *scaling)
{
    tria_layer_params *layer = &builder->layers[index];
    double share = 1;
    double factor = 1;
    layer->rotary_dim = layer->head_dim;
    IMPORT_TRY(import_json_number(scaling, "partial_rotary_factor", &share, builder->error));
    IMPORT_TRY(import_json_number(scaling, "factor", &factor, builder->error));
    if (!(share > 0 && share <= 1) || !(factor > 0)) {
        return import_fail(builder->error, TRIA_E_FORMAT,
                           "proportional rope with a share of %g and a factor of %g", share, factor);
    }
    IMPORT_TRY(own_frequencies(builder, index));
    for (int32_t f = 0; f < (int32_t)(share * layer->head_dim / 2); f++) {
        builder->frequencies[index][f] = pow(theta, -2.0 * f / layer->head_dim) / factor;
    }
    return TRIA_OK;
}

tria_status builder_set_rope(model_builder *builder, int32_t index, double theta, const json_t *scaling,
                             const json_t *config)
{
    tria_layer_params *layer = &builder->layers[index];
    tria_rope_scaling known;
    double alpha = 0;
    double *both = NULL;
    tria_error detail;
    tria_status status;
    layer->rope_theta = theta;
    layer->inv_freq = NULL;
    if (scaling != NULL && !json_is_object(scaling) && !json_is_null(scaling)) {
        return import_fail(builder->error, TRIA_E_FORMAT, "the rope scaling is not an object");
    }
    if (strcmp(scaling_name(scaling), "proportional") == 0) {
        return proportional(builder, index, theta, scaling);
    }
    tria_rope_scaling_init(&known);
    IMPORT_TRY(scaling_type(scaling, &known.type, builder->error));
    if (known.type == TRIA_ROPE_SCALING_NONE) {
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_number(scaling, "alpha", &alpha, builder->error));
    if (known.type == TRIA_ROPE_SCALING_DYNAMIC && alpha != 0 && layer->rotary_dim > 2) {
        layer->rope_theta =
            theta * pow(alpha, layer->rotary_dim / (layer->rotary_dim - 2.0)); /* a fixed stretch */
        return TRIA_OK;
    }
    IMPORT_TRY(scaling_lengths(scaling, config, &known, builder->error));
    IMPORT_TRY(scaling_numbers(scaling, &known, builder->error));
    known.length = (double)builder->context_length;
    IMPORT_TRY(own_frequencies(builder, index));
    if (known.type == TRIA_ROPE_SCALING_LONGROPE) {
        status = longrope_factors(scaling, layer->rotary_dim / 2, &both, &known, builder->error);
        if (status != TRIA_OK) {
            free(both);
            return status;
        }
    }
    status =
        tria_rope_frequencies(theta, layer->rotary_dim, &known, builder->frequencies[index], NULL, &detail);
    free(both);
    return status == TRIA_OK
               ? TRIA_OK
               : import_fail(builder->error, TRIA_E_FORMAT, "layer %d: %s", index, detail.message);
}

static tria_status make_model(const model_builder *builder, const json_t *root, const tria_env *env,
                              tria_model **model)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_error detail;
    bool attention = false;
    for (int32_t l = 0; l < builder->n_layers; l++) {
        attention = attention || builder->layers[l].n_q_heads > 0;
    }
    if (!attention) {
        return import_fail(builder->error, TRIA_E_FORMAT,
                           "no layer has attention: query or KV heads are missing");
    }
    params.name = first_text(root, "name", "_name_or_path");
    params.fingerprint = first_text(root, "fingerprint", "fingerprint");
    params.layers = builder->layers;
    params.n_layers = builder->n_layers;
    if (tria_model_create(&params, env, model, &detail) != TRIA_OK) {
        return import_fail(builder->error, detail.code == TRIA_E_ARGUMENT ? TRIA_E_FORMAT : detail.code,
                           "%s", detail.message);
    }
    return TRIA_OK;
}

tria_status tria_import_model_read(const void *data, size_t size, int64_t context_length,
                                   const tria_env *env, tria_model **model, tria_error *error)
{
    model_builder builder = {0, NULL, NULL, context_length, error};
    json_t *root;
    json_t *text;
    tria_status status;
    if (data == NULL || model == NULL || context_length < 0) {
        return import_fail(error, TRIA_E_ARGUMENT,
                           "tria_import_model_read: NULL argument or a negative length");
    }
    IMPORT_TRY(import_json_parse(data, size, 0, &root, error));
    text = json_object_get(root, "text_config");
    if (json_object_get(root, "n_layers") != NULL) {
        status = describe_ours(&builder, root);
    } else {
        status = describe_hugging_face(&builder, json_is_object(text) ? text : root);
    }
    if (status == TRIA_OK) {
        status = make_model(&builder, root, env, model);
    }
    builder_close(&builder);
    json_decref(root);
    return status;
}

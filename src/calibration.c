/* calibration.c - the calibration handle: memory, geometry, heads, getters. */
#include "calibration_internal.h"
#include "model_internal.h"

#include <math.h>
#include <string.h>

tria_status tria_calibration_alloc(const tria_env *env, int32_t n_layers, tria_calibration **out,
                                   tria_error *error)
{
    tria_calibration *calibration = tria_alloc(env, 1, sizeof(*calibration));
    if (calibration == NULL) {
        return tria_fail_memory(error, sizeof(*calibration), "a calibration");
    }
    calibration->env = *env;
    calibration->attn_scale = 1.0F;
    calibration->layers = tria_alloc(env, (size_t)n_layers, sizeof(*calibration->layers));
    calibration->model_name = tria_strdup(env, "");
    calibration->fingerprint = tria_strdup(env, "");
    calibration->provenance = tria_strdup(env, "");
    calibration->default_policy = tria_strdup(env, "");
    if (calibration->layers == NULL || calibration->model_name == NULL ||
        calibration->fingerprint == NULL || calibration->provenance == NULL ||
        calibration->default_policy == NULL) {
        tria_calibration_destroy(calibration);
        return tria_fail_memory(error, (size_t)n_layers * sizeof(*calibration->layers), "a calibration");
    }
    calibration->n_layers = n_layers;
    for (int32_t l = 0; l < n_layers; l++) {
        tria_layer_params_init(&calibration->layers[l].geometry);
        calibration->layers[l].budget_scale = 1.0F;
    }
    *out = calibration;
    return TRIA_OK;
}

void tria_calibration_destroy(tria_calibration *calibration)
{
    if (calibration == NULL) {
        return;
    }
    const tria_env env = calibration->env;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        tria_calibration_layer_data *layer = &calibration->layers[l];
        for (int32_t i = 0; i < layer->n_heads; i++) {
            tria_free(&env, layer->heads[i].values);
        }
        tria_free(&env, layer->heads);
        tria_free(&env, layer->inv_freq);
        tria_free(&env, layer->freq_scale_sq);
    }
    tria_free(&env, calibration->layers);
    tria_free(&env, calibration->model_name);
    tria_free(&env, calibration->fingerprint);
    tria_free(&env, calibration->provenance);
    tria_free(&env, calibration->default_policy);
    tria_free(&env, calibration);
}

tria_status tria_calibration_set_text(tria_calibration *calibration, char **field, const char *text,
                                      size_t length, tria_error *error)
{
    const size_t used = strnlen(text, length);
    char *copy = tria_alloc(&calibration->env, used + 1, 1);
    if (copy == NULL) {
        return tria_fail_memory(error, used + 1, "a text of the calibration");
    }
    memcpy(copy, text, used);
    tria_free(&calibration->env, *field);
    *field = copy;
    return TRIA_OK;
}

tria_status tria_calibration_set_texts(tria_calibration *calibration, const char *model_name,
                                       const char *fingerprint, const char *provenance,
                                       const char *default_policy, tria_error *error)
{
    const char *texts[] = {model_name, fingerprint, provenance, default_policy};
    char **fields[] = {&calibration->model_name, &calibration->fingerprint, &calibration->provenance,
                       &calibration->default_policy};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(texts); i++) {
        if (texts[i] != NULL) {
            TRIA_TRY(tria_calibration_set_text(calibration, fields[i], texts[i], strlen(texts[i]), error));
        }
    }
    return TRIA_OK;
}

/* Copies `count` doubles into a new block; NULL input gives NULL. */
static bool copy_doubles(const tria_env *env, const double *values, int32_t count, double **out)
{
    *out = NULL;
    if (values == NULL) {
        return true;
    }
    *out = tria_alloc(env, (size_t)count, sizeof(double));
    if (*out != NULL) {
        memcpy(*out, values, (size_t)count * sizeof(double));
    }
    return *out != NULL;
}

tria_status tria_calibration_set_geometry(tria_calibration *calibration, int32_t index,
                                          const tria_layer_params *geometry, tria_status code,
                                          tria_error *error)
{
    tria_calibration_layer_data *layer = &calibration->layers[index];
    const bool unknown_kv = geometry->n_kv_heads == 0;
    const bool unknown_theta = geometry->rope_theta == 0;
    tria_layer_params checked = *geometry;
    double *inv_freq;
    double *freq_scale_sq;
    if (unknown_kv && checked.kv_source < 0) {
        checked.n_kv_heads = checked.n_q_heads;
    }
    if (unknown_theta) {
        checked.rope_theta = 1;
    }
    if (tria_layer_resolve(&checked, index, calibration->n_layers, error) != TRIA_OK) {
        if (error != NULL) {
            error->code = code;
        }
        return code;
    }
    if (unknown_kv) {
        checked.n_kv_heads = 0;
    }
    if (unknown_theta) {
        checked.rope_theta = 0;
    }
    const bool ok = copy_doubles(&calibration->env, checked.inv_freq, checked.rotary_dim / 2, &inv_freq);
    if (!copy_doubles(&calibration->env, checked.freq_scale_sq, checked.rotary_dim / 2, &freq_scale_sq) ||
        !ok) {
        tria_free(&calibration->env, inv_freq);
        tria_free(&calibration->env, freq_scale_sq);
        return tria_fail_memory(error, (size_t)checked.rotary_dim * sizeof(double), "frequencies");
    }
    tria_free(&calibration->env, layer->inv_freq);
    tria_free(&calibration->env, layer->freq_scale_sq);
    layer->geometry = checked;
    layer->geometry.inv_freq = layer->inv_freq = inv_freq;
    layer->geometry.freq_scale_sq = layer->freq_scale_sq = freq_scale_sq;
    layer->n_freq = checked.rotary_dim / 2;
    return TRIA_OK;
}

/* Index of the first head with at least this number. */
static int32_t head_position(const tria_calibration_layer_data *layer, int32_t q_head)
{
    int32_t low = 0;
    int32_t high = layer->n_heads;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (layer->heads[middle].q_head < q_head) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

tria_calibration_head_data *tria_calibration_find_head(const tria_calibration *calibration, int32_t index,
                                                       int32_t q_head)
{
    const tria_calibration_layer_data *layer = &calibration->layers[index];
    const int32_t at = head_position(layer, q_head);
    return at < layer->n_heads && layer->heads[at].q_head == q_head ? &layer->heads[at] : NULL;
}

/* Room for one more head. */
static bool grow_heads(const tria_env *env, tria_calibration_layer_data *layer)
{
    const int32_t capacity = layer->capacity == 0 ? 4 : layer->capacity * 2;
    tria_calibration_head_data *heads;
    if (layer->n_heads < layer->capacity) {
        return true;
    }
    heads = tria_alloc(env, (size_t)capacity, sizeof(*heads));
    if (heads == NULL) {
        return false;
    }
    if (layer->n_heads > 0) {
        memcpy(heads, layer->heads, (size_t)layer->n_heads * sizeof(*heads));
    }
    tria_free(env, layer->heads);
    layer->heads = heads;
    layer->capacity = capacity;
    return true;
}

tria_status tria_calibration_add_head(tria_calibration *calibration, int32_t index, int32_t q_head,
                                      int32_t n_content, tria_calibration_head_data **out,
                                      tria_error *error)
{
    tria_calibration_layer_data *layer = &calibration->layers[index];
    const size_t count = 4 * (size_t)layer->n_freq + 2 * (size_t)n_content;
    const int32_t at = head_position(layer, q_head);
    float *values;
    if (at < layer->n_heads && layer->heads[at].q_head == q_head) {
        return tria_fail(error, TRIA_E_FORMAT, "layer %d head %d occurs twice", index, q_head);
    }
    values = tria_alloc(&calibration->env, count, sizeof(float));
    if (values == NULL || !grow_heads(&calibration->env, layer)) {
        tria_free(&calibration->env, values);
        return tria_fail_memory(error, count * sizeof(float), "the statistics of a head");
    }
    memmove(&layer->heads[at + 1], &layer->heads[at],
            (size_t)(layer->n_heads - at) * sizeof(*layer->heads));
    layer->n_heads++;
    layer->heads[at].q_head = q_head;
    layer->heads[at].n_content = n_content;
    layer->heads[at].values = values;
    *out = &layer->heads[at];
    return TRIA_OK;
}

static void remove_head(tria_calibration *calibration, int32_t index, int32_t q_head)
{
    tria_calibration_layer_data *layer = &calibration->layers[index];
    const int32_t at = head_position(layer, q_head);
    if (at < layer->n_heads && layer->heads[at].q_head == q_head) {
        tria_free(&calibration->env, layer->heads[at].values);
        layer->n_heads--;
        memmove(&layer->heads[at], &layer->heads[at + 1],
                (size_t)(layer->n_heads - at) * sizeof(*layer->heads));
    }
}

static tria_status check_array(const float *values, int32_t count, const char *name, int32_t layer,
                               int32_t q_head, tria_status code, tria_error *error)
{
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            return tria_fail(error, code, "layer %d head %d: %s[%d] is %g", layer, q_head, name, i,
                             (double)values[i]);
        }
    }
    return TRIA_OK;
}

tria_status tria_calibration_check_head(const tria_calibration *calibration, int32_t index,
                                        const tria_calibration_head_data *head, tria_status code,
                                        tria_error *error)
{
    static const struct {
        int32_t array;
        const char *name;
    } checked[] = {{TRIA_HEAD_REAL, "q_mean_real"},
                   {TRIA_HEAD_IMAG, "q_mean_imag"},
                   {TRIA_HEAD_ABS, "q_abs_mean"},
                   {TRIA_HEAD_CONTENT_MEAN, "content_mean"},
                   {TRIA_HEAD_CONTENT_ABS, "content_abs"}};
    const tria_calibration_layer_data *layer = &calibration->layers[index];
    for (size_t i = 0; i < TRIA_ARRAY_LEN(checked); i++) {
        const int32_t count = checked[i].array < TRIA_HEAD_CONTENT_MEAN ? layer->n_freq : head->n_content;
        TRIA_TRY(check_array(tria_head_array(layer, head, checked[i].array), count, checked[i].name, index,
                             head->q_head, code, error));
    }
    return TRIA_OK;
}

void tria_calibration_fill_concentration(const tria_calibration_layer_data *layer,
                                         const tria_calibration_head_data *head)
{
    const float *real = tria_head_array(layer, head, TRIA_HEAD_REAL);
    const float *imag = tria_head_array(layer, head, TRIA_HEAD_IMAG);
    const float *absolute = tria_head_array(layer, head, TRIA_HEAD_ABS);
    float *fourth = tria_head_array(layer, head, TRIA_HEAD_FOURTH);
    for (int32_t f = 0; f < layer->n_freq; f++) {
        fourth[f] =
            absolute[f] > 0 ? (float)(hypot((double)real[f], (double)imag[f]) / (double)absolute[f]) : 0.0F;
    }
}

static bool all_one(const double *values, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (values[i] != 1) {
            return false;
        }
    }
    return true;
}

tria_status tria_calibration_create(const tria_model *model, const tria_env *env, tria_calibration **out,
                                    tria_error *error)
{
    tria_calibration *calibration;
    tria_env full_env;
    tria_status status = TRIA_OK;
    if (model == NULL || out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_create: NULL argument");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    TRIA_TRY(tria_calibration_alloc(&full_env, model->n_layers, &calibration, error));
    calibration->explicit_presence = 1;
    calibration->explicit_geometry = 1;
    calibration->explicit_style = 1;
    for (int32_t l = 0; l < model->n_layers && status == TRIA_OK; l++) {
        tria_layer_params geometry = model->layers[l];
        if (all_one(geometry.freq_scale_sq, geometry.rotary_dim / 2)) {
            geometry.freq_scale_sq = NULL;
        }
        if (geometry.n_q_heads > 0) {
            status = tria_calibration_set_geometry(calibration, l, &geometry, TRIA_E_ARGUMENT, error);
        }
    }
    if (status == TRIA_OK) {
        status =
            tria_calibration_set_texts(calibration, model->name, model->fingerprint, NULL, NULL, error);
    }
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    calibration->rope_theta = model->layers[0].rope_theta;
    *out = calibration;
    return TRIA_OK;
}

void tria_calibration_params_init(tria_calibration_params *params)
{
    memset(params, 0, sizeof(*params));
    params->struct_size = sizeof(*params);
}

tria_status tria_calibration_build(const tria_calibration_params *caller, const tria_env *env,
                                   tria_calibration **out, tria_error *error)
{
    tria_calibration_params params;
    tria_calibration *calibration;
    tria_env full_env;
    tria_status status;
    tria_calibration_params_init(&params);
    if (out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_build: calibration is NULL");
    }
    TRIA_TRY(tria_struct_import(&params, sizeof(params), sizeof(params), caller, "tria_calibration_params",
                                error));
    TRIA_TRY(tria_env_import(&full_env, env, error));
    if (params.n_layers < 1 || params.n_layers > TRIA_MAX_LAYERS || params.layers == NULL) {
        return tria_fail(error, TRIA_E_FORMAT, "%d layers, allowed 1 to %d", params.n_layers,
                         TRIA_MAX_LAYERS);
    }
    TRIA_TRY(tria_calibration_alloc(&full_env, params.n_layers, &calibration, error));
    calibration->format = params.format;
    calibration->explicit_presence = params.explicit_presence;
    calibration->explicit_geometry = params.explicit_geometry;
    calibration->explicit_style = params.explicit_style;
    calibration->capture_point = params.capture_point;
    calibration->rope_theta = params.rope_theta;
    TRIA_TRY_GOTO(tria_calibration_set_texts(calibration, params.model_name, NULL, NULL, NULL, error),
                  fail);
    for (int32_t l = 0; l < params.n_layers; l++) {
        const unsigned char *bytes =
            (const unsigned char *)params.layers + (size_t)l * params.layers[0].struct_size;
        tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
        TRIA_TRY_GOTO(tria_struct_import(&geometry, sizeof(geometry), sizeof(geometry), bytes,
                                         "tria_layer_params", error),
                      fail);
        TRIA_TRY_GOTO(tria_calibration_set_geometry(calibration, l, &geometry, TRIA_E_FORMAT, error), fail);
    }
    *out = calibration;
    return TRIA_OK;
fail:
    tria_calibration_destroy(calibration);
    return status;
}

tria_status tria_calibration_set_tokens(tria_calibration *calibration, int32_t layer, uint64_t n_tokens,
                                        tria_error *error)
{
    if (calibration == NULL || layer < 0 || layer >= calibration->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "no layer %d in the calibration", layer);
    }
    calibration->layers[layer].n_tokens = n_tokens;
    return TRIA_OK;
}

static tria_status check_index(const tria_calibration *calibration, int32_t layer, int32_t q_head,
                               tria_error *error)
{
    if (calibration == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "calibration is NULL");
    }
    if (layer < 0 || layer >= calibration->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d of a calibration with %d layers", layer,
                         calibration->n_layers);
    }
    if (q_head < 0 || q_head >= calibration->layers[layer].geometry.n_q_heads) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layer %d has no query head %d, it has %d", layer, q_head,
                         calibration->layers[layer].geometry.n_q_heads);
    }
    return TRIA_OK;
}

static tria_status check_stats(const tria_head_stats *stats, int32_t n_freq, int32_t n_content,
                               int32_t layer, int32_t q_head, tria_error *error)
{
    if (stats->q_mean_real == NULL || stats->q_mean_imag == NULL || stats->q_abs_mean == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "tria_head_stats: q_mean_real, q_mean_imag and q_abs_mean are required");
    }
    TRIA_TRY(check_array(stats->q_mean_real, n_freq, "q_mean_real", layer, q_head, TRIA_E_ARGUMENT, error));
    TRIA_TRY(check_array(stats->q_mean_imag, n_freq, "q_mean_imag", layer, q_head, TRIA_E_ARGUMENT, error));
    TRIA_TRY(check_array(stats->q_abs_mean, n_freq, "q_abs_mean", layer, q_head, TRIA_E_ARGUMENT, error));
    if (stats->content_mean != NULL) {
        TRIA_TRY(check_array(stats->content_mean, n_content, "content_mean", layer, q_head, TRIA_E_ARGUMENT,
                             error));
    }
    if (stats->content_mean != NULL && stats->content_abs != NULL) {
        TRIA_TRY(check_array(stats->content_abs, n_content, "content_abs", layer, q_head, TRIA_E_ARGUMENT,
                             error));
    }
    return TRIA_OK;
}

tria_status tria_calibration_set_head(tria_calibration *calibration, int32_t index, int32_t q_head,
                                      const tria_head_stats *caller, tria_error *error)
{
    const tria_calibration_layer_data *layer;
    tria_head_stats stats = {0};
    tria_calibration_head_data *head;
    int32_t n_content;
    TRIA_TRY(check_index(calibration, index, q_head, error));
    if (caller == NULL) {
        remove_head(calibration, index, q_head);
        return TRIA_OK;
    }
    layer = &calibration->layers[index];
    n_content = layer->geometry.head_dim - layer->geometry.rotary_dim;
    TRIA_TRY(tria_struct_import(&stats, sizeof(stats), sizeof(stats), caller, "tria_head_stats", error));
    TRIA_TRY(check_stats(&stats, layer->n_freq, n_content, index, q_head, error));
    if (stats.content_mean == NULL) {
        n_content = 0;
    }
    head = tria_calibration_find_head(calibration, index, q_head);
    if (head == NULL) {
        TRIA_TRY(tria_calibration_add_head(calibration, index, q_head, n_content, &head, error));
    } else {
        const size_t count = 4 * (size_t)layer->n_freq + 2 * (size_t)n_content;
        float *values = tria_alloc(&calibration->env, count, sizeof(float));
        if (values == NULL) {
            return tria_fail_memory(error, count * sizeof(float), "the statistics of a head");
        }
        tria_free(&calibration->env, head->values);
        head->values = values;
        head->n_content = n_content;
    }
    const size_t size = (size_t)layer->n_freq * sizeof(float);
    memcpy(tria_head_array(layer, head, TRIA_HEAD_REAL), stats.q_mean_real, size);
    memcpy(tria_head_array(layer, head, TRIA_HEAD_IMAG), stats.q_mean_imag, size);
    memcpy(tria_head_array(layer, head, TRIA_HEAD_ABS), stats.q_abs_mean, size);
    tria_calibration_fill_concentration(layer, head);
    if (n_content > 0) {
        memcpy(tria_head_array(layer, head, TRIA_HEAD_CONTENT_MEAN), stats.content_mean,
               (size_t)n_content * sizeof(float));
    }
    if (n_content > 0 && stats.content_abs != NULL) {
        memcpy(tria_head_array(layer, head, TRIA_HEAD_CONTENT_ABS), stats.content_abs,
               (size_t)n_content * sizeof(float));
    }
    return TRIA_OK;
}

tria_status tria_calibration_get_info(const tria_calibration *calibration, tria_calibration_info *info,
                                      tria_error *error)
{
    tria_calibration_info full = {0};
    if (calibration == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "calibration is NULL");
    }
    full.format = calibration->format;
    full.n_layers = calibration->n_layers;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        full.n_heads += layer->geometry.n_q_heads;
        full.n_calibrated += layer->n_heads;
        full.explicit_inv_freq |= layer->inv_freq != NULL;
        full.n_tokens = layer->n_tokens > full.n_tokens ? layer->n_tokens : full.n_tokens;
    }
    full.explicit_presence = calibration->explicit_presence;
    full.explicit_geometry = calibration->explicit_geometry;
    full.explicit_style = calibration->explicit_style;
    full.capture_point = calibration->capture_point;
    full.rope_theta = calibration->rope_theta;
    full.attn_scale = calibration->attn_scale;
    full.model_name = calibration->model_name;
    full.fingerprint = calibration->fingerprint;
    full.provenance = calibration->provenance;
    full.default_policy = calibration->default_policy;
    return tria_struct_export(info, &full, sizeof(full), sizeof(full), "tria_calibration_info", error);
}

tria_status tria_calibration_layer(const tria_calibration *calibration, int32_t layer,
                                   tria_calibration_layer_info *info, tria_error *error)
{
    tria_calibration_layer_info full = {0};
    const tria_calibration_layer_data *data;
    if (calibration == NULL || layer < 0 || layer >= calibration->n_layers) {
        return tria_fail(error, TRIA_E_ARGUMENT, "no layer %d in the calibration", layer);
    }
    data = &calibration->layers[layer];
    full.geometry = data->geometry;
    full.n_calibrated = data->n_heads;
    full.budget_scale = data->budget_scale;
    full.n_tokens = data->n_tokens;
    return tria_struct_export(info, &full, sizeof(full), sizeof(full), "tria_calibration_layer_info",
                              error);
}

tria_status tria_calibration_head(const tria_calibration *calibration, int32_t layer, int32_t q_head,
                                  tria_head_stats *stats, int32_t *present, tria_error *error)
{
    tria_head_stats full = {0};
    const tria_calibration_head_data *head;
    const tria_calibration_layer_data *data;
    TRIA_TRY(check_index(calibration, layer, q_head, error));
    data = &calibration->layers[layer];
    head = tria_calibration_find_head(calibration, layer, q_head);
    if (head != NULL) {
        full.q_mean_real = tria_head_array(data, head, TRIA_HEAD_REAL);
        full.q_mean_imag = tria_head_array(data, head, TRIA_HEAD_IMAG);
        full.q_abs_mean = tria_head_array(data, head, TRIA_HEAD_ABS);
        if (head->n_content > 0) {
            full.content_mean = tria_head_array(data, head, TRIA_HEAD_CONTENT_MEAN);
            full.content_abs = tria_head_array(data, head, TRIA_HEAD_CONTENT_ABS);
        }
    }
    TRIA_TRY(tria_struct_export(stats, &full, sizeof(full), sizeof(full), "tria_head_stats", error));
    if (present != NULL) {
        *present = head != NULL;
    }
    return TRIA_OK;
}

tria_status tria_calibration_mrl(const tria_calibration *calibration, int32_t layer, int32_t q_head,
                                 const float **mrl, tria_error *error)
{
    const tria_calibration_head_data *head;
    TRIA_TRY(check_index(calibration, layer, q_head, error));
    head = tria_calibration_find_head(calibration, layer, q_head);
    *mrl = head != NULL ? tria_head_array(&calibration->layers[layer], head, TRIA_HEAD_FOURTH) : NULL;
    return TRIA_OK;
}

tria_status tria_calibration_concentration(const tria_calibration *calibration, int32_t layer,
                                           int32_t q_head, double *concentration, tria_error *error)
{
    const tria_calibration_head_data *head;
    const tria_calibration_layer_data *data;
    double sum = 0;
    int32_t count = 0;
    TRIA_TRY(check_index(calibration, layer, q_head, error));
    data = &calibration->layers[layer];
    head = tria_calibration_find_head(calibration, layer, q_head);
    for (int32_t f = 0; head != NULL && f < data->n_freq; f++) {
        const double real = (double)tria_head_array(data, head, TRIA_HEAD_REAL)[f];
        const double imag = (double)tria_head_array(data, head, TRIA_HEAD_IMAG)[f];
        const double absolute = (double)tria_head_array(data, head, TRIA_HEAD_ABS)[f];
        if (absolute > 0) {
            sum += hypot(real, imag) / absolute;
            count++;
        }
    }
    *concentration = count > 0 ? sum / count : 0;
    return TRIA_OK;
}

tria_status tria_model_from_calibration(const tria_calibration *calibration, const tria_env *env,
                                        tria_model **model, tria_error *error)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_layer_params *layers;
    tria_status status = TRIA_OK;
    tria_env full_env;
    if (calibration == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "calibration is NULL");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    layers = tria_alloc(&full_env, (size_t)calibration->n_layers, sizeof(*layers));
    if (layers == NULL) {
        return tria_fail_memory(error, (size_t)calibration->n_layers * sizeof(*layers), "the layers");
    }
    for (int32_t l = 0; l < calibration->n_layers && status == TRIA_OK; l++) {
        layers[l] = calibration->layers[l].geometry;
        if (layers[l].n_q_heads > 0 && layers[l].n_kv_heads == 0 && layers[l].kv_source < 0) {
            status = tria_fail(error, TRIA_E_MISMATCH,
                               "the calibration does not say how many KV heads layer %d has: a model "
                               "description is needed",
                               l);
        } else if (layers[l].n_q_heads > 0 && layers[l].inv_freq == NULL && layers[l].rope_theta == 0) {
            status =
                tria_fail(error, TRIA_E_MISMATCH,
                          "the calibration holds no RoPE frequencies for layer %d: a model description "
                          "is needed",
                          l);
        }
    }
    if (status == TRIA_OK) {
        params.name = calibration->model_name;
        params.fingerprint = calibration->fingerprint;
        params.layers = layers;
        params.n_layers = calibration->n_layers;
        status = tria_model_create(&params, env, model, error);
    }
    tria_free(&full_env, layers);
    return status;
}

/* json_write.c - writes TensorRT-Model-Connect's JSON, the sparse kind. */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct losses {
    char text[320];
    size_t used;
} losses;

static void lose(losses *lost, const char *what)
{
    const size_t left = sizeof(lost->text) - lost->used;
    const int length = snprintf(lost->text + lost->used, left, "%s%s", lost->used > 0 ? "; " : "", what);
    lost->used += length > 0 && (size_t)length < left ? (size_t)length : 0;
}

static bool same_numbers(const double *a, const double *b, int32_t count)
{
    return a == b || (a != NULL && b != NULL && memcmp(a, b, (size_t)count * sizeof(double)) == 0);
}

/* One shape for all layers: the format has no other. */
static tria_status find_shape(const tria_calibration *calibration, const tria_calibration_info *info,
                              tria_layer_params *shape, losses *lost, tria_error *error)
{
    bool found = false;
    bool extras = false;
    bool no_attention = false;
    for (int32_t l = 0; l < info->n_layers; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        const tria_layer_params *geometry = &layer.geometry;
        IMPORT_TRY(tria_calibration_layer(calibration, l, &layer, error));
        extras = extras || layer.budget_scale != 1 || layer.n_tokens != 0;
        if (geometry->n_q_heads == 0) {
            no_attention = true;
            continue;
        }
        if (geometry->n_kv_heads == 0 || (geometry->rope_theta == 0 && geometry->inv_freq == NULL)) {
            return import_fail(error, TRIA_E_UNSUPPORTED,
                               "layer %d: KV heads or frequencies are not known: give a model description",
                               l);
        }
        if (!found) {
            *shape = *geometry;
            found = true;
        }
        if (geometry->n_q_heads != shape->n_q_heads || geometry->n_kv_heads != shape->n_kv_heads ||
            geometry->head_dim != shape->head_dim || geometry->rotary_dim != shape->rotary_dim ||
            geometry->rope_style != shape->rope_style || geometry->rope_theta != shape->rope_theta ||
            !same_numbers(geometry->inv_freq, shape->inv_freq, shape->rotary_dim / 2) ||
            !same_numbers(geometry->freq_scale_sq, shape->freq_scale_sq, shape->rotary_dim / 2)) {
            return import_fail(error, TRIA_E_UNSUPPORTED,
                               "JSON has one shape for all layers, layer %d has another", l);
        }
        if (geometry->rotary_offset != 0 || geometry->kv_source >= 0 || geometry->window != 0) {
            extras = true;
        }
    }
    if (!found) {
        return import_fail(error, TRIA_E_UNSUPPORTED, "no layer has attention");
    }
    if (no_attention) {
        lose(lost, "which layers have no attention");
    }
    if (extras) {
        lose(lost, "token counts, budget scales, windows, rotary offsets or kv_source of layers");
    }
    return TRIA_OK;
}

static void lose_texts(const tria_calibration_info *info, losses *lost)
{
    if (info->model_name[0] != '\0' || info->fingerprint[0] != '\0' || info->provenance[0] != '\0' ||
        info->default_policy[0] != '\0') {
        lose(lost, "the texts (model name, fingerprint, provenance, default policy)");
    }
    if (info->capture_point != TRIA_CAPTURE_UNKNOWN) {
        lose(lost, "the capture point");
    }
    if (info->attn_scale != 1) {
        lose(lost, "attn_scale");
    }
}

static json_t *float_array(const float *values, int32_t count)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(array, json_real((double)values[i]));
    }
    return array;
}

static json_t *double_array(const double *values, int32_t count)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(array, json_real(values[i]));
    }
    return array;
}

/* Whether the array beside a head's statistics is something else than the concentration, which follows from
 * them. */
static bool is_other_array(const tria_head_stats *stats, const float *mrl, int32_t n_freq)
{
    for (int32_t f = 0; f < n_freq; f++) {
        const double size = (double)stats->q_abs_mean[f];
        const double mean = hypot((double)stats->q_mean_real[f], (double)stats->q_mean_imag[f]);
        if (size > 0 && !(fabs((double)mrl[f] - mean / size) <= 1e-4)) {
            return true;
        }
    }
    return false;
}

static tria_status write_head(const tria_calibration *calibration, const tria_layer_params *shape,
                              int32_t layer, int32_t head, json_t *sampled, json_t *stats, losses *lost,
                              tria_error *error)
{
    const int32_t n_freq = shape->rotary_dim / 2;
    tria_head_stats values = {.struct_size = sizeof(values)};
    const float *mrl;
    int32_t present;
    char key[32];
    json_t *entry;
    IMPORT_TRY(tria_calibration_head(calibration, layer, head, &values, &present, error));
    if (!present) {
        return TRIA_OK;
    }
    if (values.content_mean != NULL && strstr(lost->text, "content") == NULL) {
        lose(lost, "content statistics");
    }
    IMPORT_TRY(tria_calibration_mrl(calibration, layer, head, &mrl, error));
    if (is_other_array(&values, mrl, n_freq) && strstr(lost->text, "mrl") == NULL) {
        lose(lost, "an array mrl that is not |q_mean| / q_abs_mean (no score uses it)");
    }
    entry = json_object();
    json_object_set_new(entry, "q_mean_real", float_array(values.q_mean_real, n_freq));
    json_object_set_new(entry, "q_mean_imag", float_array(values.q_mean_imag, n_freq));
    json_object_set_new(entry, "q_abs_mean", float_array(values.q_abs_mean, n_freq));
    if (shape->freq_scale_sq != NULL) {
        json_object_set_new(entry, "freq_scale_sq", double_array(shape->freq_scale_sq, n_freq));
    }
    snprintf(key, sizeof(key), "layer%02d_head%02d", layer, head);
    json_object_set_new(stats, key, entry);
    json_array_append_new(sampled, json_pack("[ii]", layer, head));
    return TRIA_OK;
}

static tria_status write_heads(const tria_calibration *calibration, const tria_calibration_info *info,
                               const tria_layer_params *shape, json_t *sampled, json_t *stats, losses *lost,
                               tria_error *error)
{
    for (int32_t l = 0; l < info->n_layers; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        IMPORT_TRY(tria_calibration_layer(calibration, l, &layer, error));
        for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
            IMPORT_TRY(write_head(calibration, shape, l, h, sampled, stats, lost, error));
        }
    }
    return TRIA_OK;
}

static void write_header(json_t *root, const tria_calibration_info *info, const tria_layer_params *shape)
{
    const int32_t n_freq = shape->rotary_dim / 2;
    json_object_set_new(root, "head_dim", json_integer(shape->head_dim));
    json_object_set_new(root, "rope_style",
                        json_string(shape->rope_style == TRIA_ROPE_HALF ? "half" : "interleaved"));
    if (shape->rope_theta != 0) {
        json_object_set_new(root, "rope_theta", json_real(shape->rope_theta));
    }
    json_object_set_new(root, "num_attention_heads", json_integer(shape->n_q_heads));
    json_object_set_new(root, "num_key_value_heads", json_integer(shape->n_kv_heads));
    json_object_set_new(root, "num_layers", json_integer(info->n_layers));
    json_object_set_new(root, "stats_head_count", json_integer(shape->n_q_heads));
    if (shape->inv_freq != NULL) {
        json_object_set_new(root, "inv_freq", double_array(shape->inv_freq, n_freq));
    } else {
        json_t *array = json_array();
        for (int32_t f = 0; f < n_freq; f++) {
            json_array_append_new(array, json_real(pow(shape->rope_theta, -(double)f / n_freq)));
        }
        json_object_set_new(root, "inv_freq", array);
    }
}

tria_status import_write_json(const tria_calibration *calibration, bool allow_lossy, char **text,
                              size_t *size, tria_error *error)
{
    tria_calibration_info info = {.struct_size = sizeof(info)};
    tria_layer_params shape = TRIA_LAYER_PARAMS_INIT;
    losses lost = {"", 0};
    json_t *root;
    json_t *sampled;
    json_t *stats;
    tria_status status;
    IMPORT_TRY(tria_calibration_get_info(calibration, &info, error));
    IMPORT_TRY(find_shape(calibration, &info, &shape, &lost, error));
    lose_texts(&info, &lost);
    root = json_object();
    sampled = json_array();
    stats = json_object();
    write_header(root, &info, &shape);
    status = write_heads(calibration, &info, &shape, sampled, stats, &lost, error);
    json_object_set_new(root, "sampled_heads", sampled);
    json_object_set_new(root, "stats", stats);
    if (status == TRIA_OK && lost.used > 0 && !allow_lossy) {
        status = import_fail(error, TRIA_E_LOSSY, "json cannot hold %s", lost.text);
    }
    /* 17 digits bring every double back exactly, hence every float. */
    *text = status == TRIA_OK ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    if (status == TRIA_OK && *text == NULL) {
        status = import_fail(error, TRIA_E_MEMORY, "cannot write JSON");
    }
    *size = *text != NULL ? strlen(*text) : 0;
    return status;
}

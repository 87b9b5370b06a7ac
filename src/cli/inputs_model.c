/* inputs_model.c - the model of the plan: the description or the calibration, with keys and options
 * applied. */
#include "inputs_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static tria_status model_layer(const tria_model *model, int32_t layer, tria_layer_params *params,
                               tria_error *error)
{
    tria_layer_params_init(params);
    return tria_model_layer(model, layer, params, error);
}

static bool has_cache(const tria_layer_params *layer)
{
    return layer->n_kv_heads > 0 && layer->kv_source < 0;
}

/* --layers as numbers in model->n_layers, ascending; NULL on a bad one. */
static int parse_layers(inputs *in, int32_t n_model_layers, int32_t **numbers)
{
    const char *const *items = in->layer_numbers.items;
    if (in->layer_numbers.count != (size_t)in->n_key_layers) {
        return cli_bad_usage("--layers names %zu layers, the keys have %" PRId32, in->layer_numbers.count,
                             in->n_key_layers);
    }
    *numbers = cli_allocate((size_t)in->n_key_layers, sizeof(**numbers));
    for (int32_t i = 0; i < in->n_key_layers; i++) {
        char *end;
        long number;
        errno = 0;
        number = strtol(items[i], &end, 10);
        if (end == items[i] || *end != '\0' || errno != 0 || number < 0 ||
            (i > 0 && number <= (*numbers)[i - 1]) || number > INT32_MAX) {
            return cli_bad_usage("--layers: %s: expected ascending layer numbers", items[i]);
        }
        if (number >= n_model_layers) {
            return cli_bad_input("%s: no layer %ld, it has %" PRId32, in->calibration_path, number,
                                 n_model_layers);
        }
        (*numbers)[i] = (int32_t)number;
    }
    return CLI_CONTINUE;
}

/* The layers of the plan: those the keys belong to and those that read their caches. */
int inputs_choose_layers(inputs *in)
{
    tria_error error;
    int32_t n_model_layers = tria_model_n_layers(in->model);
    int32_t *numbers = NULL;
    int32_t next = 0;
    bool *chosen = cli_allocate((size_t)n_model_layers, sizeof(*chosen));
    int code = in->layer_numbers.count > 0 ? parse_layers(in, n_model_layers, &numbers) : CLI_CONTINUE;
    in->layers = cli_allocate((size_t)n_model_layers, sizeof(*in->layers));
    in->key_layers = cli_allocate((size_t)in->n_key_layers, sizeof(*in->key_layers));
    for (int32_t i = 0; code == CLI_CONTINUE && i < n_model_layers; i++) {
        tria_layer_params layer;
        if (model_layer(in->model, i, &layer, &error) != TRIA_OK) {
            code = cli_library_error(NULL, &error);
            break;
        }
        if (has_cache(&layer) && next < in->n_key_layers && (numbers == NULL || numbers[next] == i)) {
            in->key_layers[next++] = in->n_layers;
            chosen[i] = true;
        } else if (layer.kv_source >= 0 && layer.kv_source < i) {
            chosen[i] = chosen[layer.kv_source];
        }
        if (chosen[i]) {
            in->layers[in->n_layers++] = i;
        }
    }
    if (code == CLI_CONTINUE && next < in->n_key_layers) {
        code = cli_bad_input("%s: keys of %" PRId32 " layers, but only %" PRId32
                             " of those layers have a KV cache in the %s",
                             in->key_paths.items[0], in->n_key_layers, next,
                             in->model_path != NULL ? "model" : "calibration");
    }
    free(numbers);
    free(chosen);
    return code;
}

/* Numbers per frequency as [n_layers][F]: the array is [F] for every layer or [L, F]. */
static int load_frequencies(const inputs *in, const char *path, npy_array *array)
{
    tria_error error;
    char text[128];
    if (npy_read(path, array, &error) != TRIA_OK) {
        return cli_library_error(path, &error);
    }
    npy_describe(array, text, sizeof(text));
    if (array->kind != 'f' || array->n_dims < 1 || array->n_dims > 2 ||
        (array->n_dims == 2 && array->dims[0] != in->n_layers)) {
        return cli_bad_input("%s: %s, expected numbers [F] or [%" PRId32 ", F]", path, text, in->n_layers);
    }
    if (array->size != 8) {
        npy_array wide = npy_create('f', 8, array->n_dims, array->dims);
        for (int64_t i = 0; i < array->count; i++) {
            ((double *)wide.data)[i] = npy_number(array, i);
        }
        npy_free(array);
        *array = wide;
    }
    return CLI_CONTINUE;
}

/* Where plan layer `index` finds its numbers; false when their count is not n_freq. */
static bool pick_frequencies(const npy_array *array, int32_t index, int32_t n_freq, const double **numbers)
{
    if (array->data == NULL) {
        return true;
    }
    if (array->dims[array->n_dims - 1] != n_freq) {
        return false;
    }
    *numbers = (const double *)array->data + (array->n_dims == 2 ? (int64_t)index * n_freq : 0);
    return true;
}

/* Formats that do not say how many KV heads there are; then the keys do. */
static bool format_lacks_kv_heads(const tria_calibration *calibration)
{
    tria_error error;
    tria_calibration_info info = {.struct_size = sizeof(info)};
    return tria_calibration_get_info(calibration, &info, &error) == TRIA_OK &&
           (info.format == TRIA_FORMAT_TRIATTN || info.format == TRIA_FORMAT_PT ||
            info.format == TRIA_FORMAT_PT_DENSE || info.format == TRIA_FORMAT_PT_TRTLLM);
}

/* Applies keys and options to one layer of the plan. `key_layer` is -1 where it has no keys. */
static int adjust_layer(const inputs *in, int32_t index, int32_t key_layer, const npy_array *inv_freq,
                        const npy_array *freq_scale_sq, tria_layer_params *layer)
{
    if (key_layer >= 0 && in->model_path == NULL) {
        int64_t in_file;
        const npy_array *array = inputs_keys_of(in, key_layer, &in_file);
        int32_t dim = inputs_keys_dim(in, array);
        if (format_lacks_kv_heads(in->calibration) && layer->n_q_heads % array->dims[1] == 0) {
            layer->n_kv_heads = (int32_t)array->dims[1];
        }
        /* Files of partly rotated models store the rotary width as head_dim. */
        if (dim > layer->head_dim) {
            layer->head_dim = dim;
        }
    }
    if (in->rotary_dim > 0 && in->rotary_dim != layer->rotary_dim) {
        layer->rotary_dim = (int32_t)in->rotary_dim;
        layer->inv_freq = NULL;
        layer->freq_scale_sq = NULL;
    }
    if (in->rotary_offset >= 0) {
        layer->rotary_offset = (int32_t)in->rotary_offset;
    }
    if (in->rope_style >= 0) {
        layer->rope_style = in->rope_style;
    }
    if (!pick_frequencies(inv_freq, index, layer->rotary_dim / 2, &layer->inv_freq)) {
        return cli_bad_input("%s: %" PRId64 " frequencies, layer %" PRId32 " has %" PRId32,
                             in->inv_freq_path, inv_freq->dims[inv_freq->n_dims - 1], in->layers[index],
                             layer->rotary_dim / 2);
    }
    if (!pick_frequencies(freq_scale_sq, index, layer->rotary_dim / 2, &layer->freq_scale_sq)) {
        return cli_bad_input("%s: %" PRId64 " frequencies, layer %" PRId32 " has %" PRId32,
                             in->freq_scale_sq_path, freq_scale_sq->dims[freq_scale_sq->n_dims - 1],
                             in->layers[index], layer->rotary_dim / 2);
    }
    return CLI_CONTINUE;
}

static int rebuild_model(inputs *in, const npy_array *inv_freq, const npy_array *freq_scale_sq,
                         tria_layer_params *layers)
{
    tria_error error;
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model = NULL;
    int32_t key_layer = 0;
    for (int32_t i = 0; i < tria_model_n_layers(in->model); i++) {
        if (model_layer(in->model, i, &layers[i], &error) != TRIA_OK) {
            return cli_library_error(NULL, &error);
        }
    }
    for (int32_t i = 0; i < in->n_layers; i++) {
        tria_layer_params *layer = &layers[in->layers[i]];
        bool has_keys = key_layer < in->n_key_layers && in->key_layers[key_layer] == i;
        int code = adjust_layer(in, i, has_keys ? key_layer : -1, inv_freq, freq_scale_sq, layer);
        if (code != CLI_CONTINUE) {
            return code;
        }
        key_layer += has_keys;
        in->max_q_heads = layer->n_q_heads > in->max_q_heads ? layer->n_q_heads : in->max_q_heads;
        if (has_keys && layer->n_kv_heads > in->max_kv_heads) {
            in->max_kv_heads = layer->n_kv_heads;
        }
    }
    params.name = tria_model_name(in->model);
    params.layers = layers;
    params.n_layers = tria_model_n_layers(in->model);
    if (tria_model_create(&params, cli_env(), &model, &error) != TRIA_OK) {
        return cli_library_error(in->model_path != NULL ? in->model_path : in->calibration_path, &error);
    }
    tria_model_destroy(in->model);
    in->model = model;
    return CLI_CONTINUE;
}

/* Replaces in->model by one with the options applied to the plan's layers. */
int inputs_apply_options(inputs *in)
{
    npy_array inv_freq = {0};
    npy_array freq_scale_sq = {0};
    tria_layer_params *layers = NULL;
    int code = CLI_CONTINUE;
    if (in->inv_freq_path != NULL) {
        code = load_frequencies(in, in->inv_freq_path, &inv_freq);
    }
    if (code == CLI_CONTINUE && in->freq_scale_sq_path != NULL) {
        code = load_frequencies(in, in->freq_scale_sq_path, &freq_scale_sq);
    }
    if (code == CLI_CONTINUE) {
        layers = cli_allocate((size_t)tria_model_n_layers(in->model), sizeof(*layers));
        code = rebuild_model(in, &inv_freq, &freq_scale_sq, layers);
    }
    free(layers);
    npy_free(&inv_freq);
    npy_free(&freq_scale_sq);
    return code;
}

/*
 * inputs_model.c - the model of the plan: the description given or, without one, the calibration's
 * geometry; what neither says is taken from the keys and the options.
 */
#include "inputs_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int32_t source_n_layers(const inputs *in)
{
    tria_error error;
    tria_calibration_info info = {.struct_size = sizeof(info)};
    if (in->model != NULL) {
        return tria_model_n_layers(in->model);
    }
    return tria_calibration_get_info(in->calibration, &info, &error) == TRIA_OK ? info.n_layers : 0;
}

static int source_layer(const inputs *in, int32_t layer, tria_layer_params *params)
{
    tria_error error;
    tria_calibration_layer_info info = {.struct_size = sizeof(info)};
    tria_layer_params_init(params);
    if (in->model != NULL) {
        return tria_model_layer(in->model, layer, params, &error) == TRIA_OK
                   ? CLI_CONTINUE
                   : cli_library_error(in->model_path, &error);
    }
    if (tria_calibration_layer(in->calibration, layer, &info, &error) != TRIA_OK) {
        return cli_library_error(in->calibration_path, &error);
    }
    *params = info.geometry;
    return CLI_CONTINUE;
}

static bool has_cache(const tria_layer_params *layer)
{
    return layer->n_q_heads > 0 && layer->kv_source < 0;
}

/* --layers as ascending numbers below n_model_layers; *numbers is from malloc(). */
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
            (i > 0 && number <= (*numbers)[i - 1])) {
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
static int choose_layers(inputs *in, const tria_layer_params *layers, int32_t n_layers)
{
    int32_t *numbers = NULL;
    int32_t next = 0;
    bool *chosen = cli_allocate((size_t)n_layers, sizeof(*chosen));
    int code = in->layer_numbers.count > 0 ? parse_layers(in, n_layers, &numbers) : CLI_CONTINUE;
    in->layers = cli_allocate((size_t)n_layers, sizeof(*in->layers));
    in->key_layers = cli_allocate((size_t)in->n_key_layers, sizeof(*in->key_layers));
    for (int32_t i = 0; code == CLI_CONTINUE && i < n_layers; i++) {
        if (has_cache(&layers[i])) {
            chosen[i] = next < in->n_key_layers && (numbers == NULL || numbers[next] == i);
        } else if (layers[i].kv_source >= 0 && layers[i].kv_source < i) {
            chosen[i] = chosen[layers[i].kv_source];
        }
        if (chosen[i] && has_cache(&layers[i])) {
            in->key_layers[next++] = in->n_layers;
        }
        if (chosen[i]) {
            in->layers[in->n_layers++] = i;
        }
    }
    if (code == CLI_CONTINUE && next < in->n_key_layers) {
        code = cli_bad_input("%s: keys of %" PRId32 " layers, but only %" PRId32
                             " of the layers of %s have a KV cache",
                             in->key_paths.items[0], in->n_key_layers, next,
                             in->model_path != NULL ? in->model_path : in->calibration_path);
    }
    free(numbers);
    free(chosen);
    return code;
}

/* Numbers per frequency, as double: [F] for every layer, or [L, F]. */
static int load_frequencies(const inputs *in, const char *path, npy_array *array)
{
    tria_error error;
    char text[128];
    if (path == NULL) {
        return CLI_CONTINUE;
    }
    if (npy_read(path, array, &error) != TRIA_OK) {
        return cli_library_error(path, &error);
    }
    if (array->kind != 'f' || array->n_dims < 1 || array->n_dims > 2 ||
        (array->n_dims == 2 && array->dims[0] != in->n_layers)) {
        return cli_bad_input("%s: %s, expected numbers [F] or [%" PRId32 ", F]", path,
                             npy_describe(array, text, sizeof(text)), in->n_layers);
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

/* Points *numbers at those of plan layer `index`, if there are any. */
static int pick_frequencies(const inputs *in, const char *path, const npy_array *array, int32_t index,
                            int32_t n_freq, const double **numbers)
{
    if (path == NULL) {
        return CLI_CONTINUE;
    }
    if (array->dims[array->n_dims - 1] != n_freq) {
        return cli_bad_input("%s: %" PRId64 " frequencies, layer %" PRId32 " has %" PRId32, path,
                             array->dims[array->n_dims - 1], in->layers[index], n_freq);
    }
    *numbers = (const double *)array->data + (array->n_dims == 2 ? (int64_t)index * n_freq : 0);
    return CLI_CONTINUE;
}

/* What the keys of a layer say about it; a model description says it better. */
static void adopt_keys(const inputs *in, int32_t key_layer, tria_layer_params *layer)
{
    int64_t in_file;
    const npy_array *array = inputs_keys_of(in, key_layer, &in_file);
    int32_t dim = inputs_keys_dim(in, array);
    if (layer->n_kv_heads == 0) {
        layer->n_kv_heads = (int32_t)array->dims[1];
    }
    /* Files of partly rotated models store the rotary width as head_dim. */
    if (dim > layer->head_dim) {
        layer->rotary_dim = layer->rotary_dim > 0 ? layer->rotary_dim : layer->head_dim;
        layer->head_dim = dim;
    }
}

/* Options that say something about the layers. */
static int adjust_layer(const inputs *in, int32_t index, const npy_array *inv_freq,
                        const npy_array *freq_scale_sq, tria_layer_params *layer)
{
    int32_t n_freq;
    int code;
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
    n_freq = (layer->rotary_dim > 0 ? layer->rotary_dim : layer->head_dim) / 2;
    code = pick_frequencies(in, in->inv_freq_path, inv_freq, index, n_freq, &layer->inv_freq);
    if (code == CLI_CONTINUE) {
        code = pick_frequencies(in, in->freq_scale_sq_path, freq_scale_sq, index, n_freq,
                                &layer->freq_scale_sq);
    }
    if (code == CLI_CONTINUE && layer->inv_freq == NULL && !(layer->rope_theta > 0.0)) {
        code = cli_bad_input("%s: says nothing about the frequencies of layer %" PRId32
                             ": --model or --inv-freq must",
                             in->calibration_path, in->layers[index]);
    }
    return code;
}

static int adjust_layers(inputs *in, const npy_array *inv_freq, const npy_array *freq_scale_sq,
                         tria_layer_params *layers)
{
    int32_t key_layer = 0;
    for (int32_t i = 0; i < in->n_layers; i++) {
        tria_layer_params *layer = &layers[in->layers[i]];
        bool has_keys = key_layer < in->n_key_layers && in->key_layers[key_layer] == i;
        int code;
        if (has_keys && in->model == NULL) {
            adopt_keys(in, key_layer, layer);
        }
        code = adjust_layer(in, i, inv_freq, freq_scale_sq, layer);
        if (code != CLI_CONTINUE) {
            return code;
        }
        key_layer += has_keys;
        if (layer->n_q_heads > in->max_q_heads) {
            in->max_q_heads = layer->n_q_heads;
        }
        if (has_keys && layer->n_kv_heads > in->max_kv_heads) {
            in->max_kv_heads = layer->n_kv_heads;
        }
    }
    return CLI_CONTINUE;
}

/* Layers outside the plan are not used, but a model must be whole. */
static void complete_others(const inputs *in, tria_layer_params *layers, int32_t n_layers)
{
    for (int32_t i = 0, next = 0; i < n_layers; i++) {
        if (next < in->n_layers && in->layers[next] == i) {
            next++;
            continue;
        }
        if (layers[i].n_kv_heads == 0) {
            layers[i].n_kv_heads = layers[i].n_q_heads;
        }
        if (!(layers[i].rope_theta > 0.0)) {
            layers[i].rope_theta = 10000.0;
        }
    }
}

static int create_model(inputs *in, const tria_layer_params *layers, int32_t n_layers)
{
    tria_error error;
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model = NULL;
    params.name = in->model != NULL ? tria_model_name(in->model) : NULL;
    params.layers = layers;
    params.n_layers = n_layers;
    if (tria_model_create(&params, cli_env(), &model, &error) != TRIA_OK) {
        return cli_library_error(in->model_path != NULL ? in->model_path : in->calibration_path, &error);
    }
    tria_model_destroy(in->model);
    in->model = model;
    return CLI_CONTINUE;
}

int inputs_build_model(inputs *in)
{
    npy_array inv_freq = {0};
    npy_array freq_scale_sq = {0};
    int32_t n_layers = source_n_layers(in);
    tria_layer_params *layers = cli_allocate((size_t)n_layers, sizeof(*layers));
    int code = CLI_CONTINUE;
    for (int32_t i = 0; code == CLI_CONTINUE && i < n_layers; i++) {
        code = source_layer(in, i, &layers[i]);
    }
    code = code == CLI_CONTINUE ? choose_layers(in, layers, n_layers) : code;
    code = code == CLI_CONTINUE ? load_frequencies(in, in->inv_freq_path, &inv_freq) : code;
    code = code == CLI_CONTINUE ? load_frequencies(in, in->freq_scale_sq_path, &freq_scale_sq) : code;
    code = code == CLI_CONTINUE ? adjust_layers(in, &inv_freq, &freq_scale_sq, layers) : code;
    if (code == CLI_CONTINUE) {
        complete_others(in, layers, n_layers);
        code = create_model(in, layers, n_layers);
    }
    free(layers);
    npy_free(&inv_freq);
    npy_free(&freq_scale_sq);
    return code;
}

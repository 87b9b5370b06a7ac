/* inputs.c - see inputs.h. */
#include "inputs_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void inputs_init(inputs *in)
{
    memset(in, 0, sizeof(*in));
    in->position = -1;
    in->rotary_offset = -1;
    in->offset_max = 65536;
    in->n_threads = 1;
    in->content_weight = 1.0;
    in->rope_style = -1;
    in->offsets = TRIA_AGGREGATE_MEAN;
    in->normalize_over = TRIA_NORMALIZE_ALL;
    in->group = TRIA_AGGREGATE_MAX;
    in->layers_agg = TRIA_AGGREGATE_MEAN;
}

size_t inputs_options(inputs *in, cli_option *options)
{
    /* choices stand in the order of the library's enums */
    const cli_option common[] = {
        CLI_TEXT("calibration", "FILE", &in->calibration_path, "query statistics, any format"),
        CLI_LIST("keys", "K.npy[,...]", &in->key_paths,
                 "[L, Hkv, N, D]; several files where head_dim differs between layers"),
        CLI_INTEGER("position", "T", &in->position, 0, (int64_t)INT32_MAX + 1,
                    "position of the next token to be decoded"),
        CLI_TEXT("output", "FILE", &in->output_path, "where the result goes"),
        CLI_TEXT("model", "M.json", &in->model_path, "a model description or a Hugging Face config.json"),
        CLI_TEXT("dtype", "NAME", &in->dtype_name,
                 "type of the keys where the array does not say: bf16, q8_0, fp8_e4m3fn, int8, ..."),
        CLI_TEXT("key-scales", "S", &in->key_scales,
                 "multipliers of quantised keys: a number, or f4 [L], [L, Hkv] or [L, Hkv, N]"),
        CLI_TEXT("positions", "P.npy", &in->positions_path,
                 "int32 [N] or [L, Hkv, N], the RoPE position of each row; default 0 ... N-1"),
        CLI_CHOICE("rope", "half|interleaved", &in->rope_style, "pairing of the rotary dimensions"),
        CLI_TEXT("inv-freq", "W.npy", &in->inv_freq_path, "radians per token, [F] or [L, F]"),
        CLI_TEXT("freq-scale-sq", "S.npy", &in->freq_scale_sq_path,
                 "weight of each frequency, [F] or [L, F]"),
        CLI_INTEGER("rotary-dim", "R", &in->rotary_dim, 2, TRIA_MAX_HEAD_DIM, "rotated dimensions"),
        CLI_INTEGER("rotary-offset", "O", &in->rotary_offset, 0, TRIA_MAX_HEAD_DIM - 2,
                    "first rotated dimension"),
        CLI_FLAG("keys-raw", &in->keys_raw, "keys are stored before RoPE"),
        CLI_FLAG("keys-hadamard", &in->keys_hadamard, "keys are stored Hadamard-transformed after RoPE"),
        CLI_NUMBER("content-weight", "C", &in->content_weight, "factor of the content term, default 1"),
        CLI_TEXT("layer-weights", "W.npy", &in->layer_weights_path,
                 "f4 [L], in place of the calibration's layer scales"),
        CLI_CHOICE("offsets", "mean|max", &in->offsets, "over the future offsets, default mean"),
        CLI_INTEGER("offset-max", "N", &in->offset_max, 1, INT32_MAX, "largest offset, default 65536"),
        CLI_FLAG("disable-trig", &in->disable_trig, "leave the trigonometric term out"),
        CLI_FLAG("disable-norm-excess", &in->disable_norm_excess,
                 "weigh magnitudes by the mean magnitude itself"),
        CLI_CHOICE("normalize-over", "all|candidates|none", &in->normalize_over,
                   "rows that give mean and deviation, default all"),
        CLI_CHOICE("group", "mean|max", &in->group, "over the query heads of a KV head, default max"),
        CLI_CHOICE("layers-agg", "mean|max", &in->layers_agg, "over layers in mode per-head, default mean"),
        CLI_LIST("layers", "3,7,...", &in->layer_numbers,
                 "layers of the calibration the keys belong to, ascending; default the first L"),
        CLI_CHOICE("backend", CLI_BACKENDS, &in->backend, "default auto"),
        CLI_INTEGER("threads", "N", &in->n_threads, 1, 1024, "CPU threads, default 1"),
        CLI_FLAG("json", &in->json, "print a report as JSON"),
    };
    _Static_assert(CLI_COUNT(common) <= INPUTS_MAX_OPTIONS / 2, "commands need room for their own");
    memcpy(options, common, sizeof(common));
    return CLI_COUNT(common);
}

bool inputs_positions_unknown(const inputs *in)
{
    return in->positions == NULL && in->position != in->n_rows;
}

static int check_usage(const inputs *in, const char *command)
{
    if (in->calibration_path == NULL || in->key_paths.count == 0 || in->position < 0 ||
        in->output_path == NULL) {
        return cli_bad_usage("%s: --calibration, --keys, --position and --output are needed", command);
    }
    if (in->keys_raw && in->keys_hadamard) {
        return cli_bad_usage("%s: --keys-raw and --keys-hadamard exclude each other", command);
    }
    if (in->dtype_name != NULL && tria_dtype_from_name(in->dtype_name) < 0) {
        return cli_bad_usage("%s: --dtype %s: no such type", command, in->dtype_name);
    }
    return CLI_CONTINUE;
}

static int load_model_and_calibration(inputs *in)
{
    tria_error error;
    if (in->model_path != NULL && cli_load_model(in->model_path, &in->model, &error) != TRIA_OK) {
        return cli_library_error(in->model_path, &error);
    }
    if (cli_load_calibration(in->calibration_path, in->model, &in->calibration, &error) != TRIA_OK) {
        return cli_library_error(in->calibration_path, &error);
    }
    if (in->model != NULL &&
        tria_calibration_match(in->calibration, in->model, NULL, NULL, &error) != TRIA_OK) {
        return cli_library_error(in->calibration_path, &error);
    }
    return CLI_CONTINUE;
}

/* Positions as the event wants them: [N], or [n_layers][Hkv][N] over the plan's layers. */
static int spread_positions(inputs *in, const npy_array *array, int32_t *values)
{
    int64_t layer_size = (int64_t)in->max_kv_heads * in->n_rows;
    char text[128];
    if (array->n_dims == 1 && array->count == in->n_rows) {
        in->positions = values;
        return CLI_CONTINUE;
    }
    if (array->n_dims != 3 || array->dims[0] != in->n_key_layers || array->dims[1] != in->max_kv_heads ||
        array->dims[2] != in->n_rows) {
        free(values);
        return cli_bad_input("%s: %s, expected int32 [%" PRId32 "] or [%" PRId32 ", %" PRId32 ", %" PRId32
                             "]",
                             in->positions_path, npy_describe(array, text, sizeof(text)), in->n_rows,
                             in->n_key_layers, in->max_kv_heads, in->n_rows);
    }
    in->positions = cli_allocate((size_t)(in->n_layers * layer_size), sizeof(*in->positions));
    for (int32_t i = 0; i < in->n_key_layers; i++) {
        memcpy(in->positions + in->key_layers[i] * layer_size, values + i * layer_size,
               (size_t)layer_size * sizeof(*values));
    }
    free(values);
    in->event.positions_layer_stride = layer_size;
    in->event.positions_head_stride = in->n_rows;
    return CLI_CONTINUE;
}

static int load_positions(inputs *in)
{
    tria_error error;
    npy_array array = {0};
    int32_t *values = NULL;
    int code;
    if (in->positions_path == NULL) {
        return CLI_CONTINUE;
    }
    if (npy_read(in->positions_path, &array, &error) != TRIA_OK ||
        cli_integers(in->positions_path, &array, 0, in->position - 1, &values, &error) != TRIA_OK) {
        npy_free(&array);
        return cli_library_error(in->positions_path, &error);
    }
    code = spread_positions(in, &array, values);
    npy_free(&array);
    return code;
}

static int load_layer_weights(inputs *in)
{
    tria_error error;
    npy_array array;
    char text[128];
    if (in->layer_weights_path == NULL) {
        return CLI_CONTINUE;
    }
    if (npy_read(in->layer_weights_path, &array, &error) != TRIA_OK) {
        return cli_library_error(in->layer_weights_path, &error);
    }
    if (array.kind != 'f' || array.n_dims != 1 || array.count != in->n_layers) {
        npy_describe(&array, text, sizeof(text));
        npy_free(&array);
        return cli_bad_input("%s: %s, expected f4 [%" PRId32 "]", in->layer_weights_path, text,
                             in->n_layers);
    }
    in->layer_weights = cli_allocate((size_t)array.count, sizeof(*in->layer_weights));
    for (int64_t i = 0; i < array.count; i++) {
        in->layer_weights[i] = (float)npy_number(&array, i);
    }
    npy_free(&array);
    return CLI_CONTINUE;
}

static void build_plan_params(inputs *in)
{
    tria_plan_params *params = &in->params;
    tria_plan_params_init(params);
    params->model = in->model;
    params->calibration = in->calibration;
    params->layout = &in->view;
    params->layers = in->layers;
    params->n_layers = in->n_layers;
    params->offsets = in->offsets;
    params->offset_max = (int32_t)in->offset_max;
    params->disable_trig = in->disable_trig;
    params->disable_norm_excess = in->disable_norm_excess;
    params->content_weight = (float)in->content_weight;
    params->normalize_over = in->normalize_over;
    params->group = in->group;
    params->layers_agg = in->layers_agg;
    params->layer_weights = in->layer_weights;
    params->max_rows = in->n_rows;
    params->score_device = in->device.device;
    params->select_device = in->device.device;
    params->compact_device = in->device.device;
    params->stage_device_memory = in->device.device != NULL; /* the keys lie in host memory */
    params->n_threads = (int32_t)in->n_threads;
    in->event.kv = &in->view;
    in->event.t = in->position;
    in->event.n_rows = in->n_rows;
    in->event.positions = in->positions;
}

int inputs_load(inputs *in, const char *command)
{
    tria_error error;
    int code = check_usage(in, command);
    if (code == CLI_CONTINUE && cli_open_device(in->backend, &in->device, &error) != TRIA_OK) {
        code = cli_library_error(NULL, &error);
    }
    tria_event_init(&in->event);
    code = code == CLI_CONTINUE ? load_model_and_calibration(in) : code;
    code = code == CLI_CONTINUE ? inputs_load_keys(in) : code;
    code = code == CLI_CONTINUE ? inputs_build_model(in) : code;
    code = code == CLI_CONTINUE ? inputs_build_view(in) : code;
    code = code == CLI_CONTINUE ? load_positions(in) : code;
    code = code == CLI_CONTINUE ? load_layer_weights(in) : code;
    if (code == CLI_CONTINUE && in->keys_raw && inputs_positions_unknown(in)) {
        code = cli_bad_usage("%s: --keys-raw needs --positions unless T is the number of rows", command);
    }
    if (code == CLI_CONTINUE) {
        build_plan_params(in);
    }
    return code;
}

/* Notes are `tria inspect`'s. */
static void report_finding(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    if (severity == TRIA_FINDING_WARNING) {
        cli_report_finding(context, severity, layer, text);
    }
}

void inputs_report_match(const inputs *in)
{
    tria_error error;
    if (in->model_path != NULL) {
        tria_calibration_match(in->calibration, in->model, report_finding,
                               (void *)(uintptr_t)in->calibration_path, &error);
    }
}

void inputs_free(inputs *in)
{
    for (size_t i = 0; in->keys != NULL && i < in->key_paths.count; i++) {
        npy_free(&in->keys[i]);
    }
    free(in->keys);
    free(in->scales);
    free(in->layers);
    free(in->key_layers);
    free(in->positions);
    free(in->layer_weights);
    free(in->layer_views);
    tria_model_destroy(in->model);
    tria_calibration_destroy(in->calibration);
    cli_close_device(&in->device);
    cli_list_free(&in->key_paths);
    cli_list_free(&in->layer_numbers);
}

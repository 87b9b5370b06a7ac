/* backends.c - `tria backends`: what there is on this machine and what it can do, or why not. */
#include "json.h"
#include "load.h"
#include "options.h"
#include "tria/plan.h"

#include <inttypes.h>
#include <stdio.h>

/* Asks the device whether it could run a small plan on keys of this type in this state. */
static bool supports(tria_device *device, const tria_model *model, int32_t dtype, int32_t k_state)
{
    enum { DIM = 64 };
    tria_error error;
    tria_layer_view layer = {.k = {.dtype = dtype, .dim = DIM, .scale = 1.0f}};
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_plan_params params;
    int64_t row_bytes = tria_dtype_row_bytes(dtype, DIM);
    layer.k.token_stride = row_bytes;
    layer.k.head_stride = row_bytes;
    layer.k.scale_kind = dtype == TRIA_DTYPE_INT8 ? TRIA_SCALE_TENSOR : TRIA_SCALE_NONE;
    layer.v = layer.k;
    view.layers = &layer;
    view.n_layers = 1;
    view.k_state = k_state;
    tria_plan_params_init(&params);
    params.model = model;
    params.layout = &view;
    params.budget = 1;
    params.max_rows = 2;
    params.stage_device_memory = 1;
    return tria_backend_supports(device, &params, &error) == TRIA_OK;
}

static tria_status create_model(tria_model **model, tria_error *error)
{
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    layer.n_q_heads = 1;
    layer.n_kv_heads = 1;
    layer.head_dim = 64;
    params.layers = &layer;
    params.n_layers = 1;
    return tria_model_create(&params, cli_env(), model, error);
}

static void list_types(tria_device *device, const tria_model *model, json_writer *json)
{
    static const char *const states[] = {"rotated", "raw", "hadamard"};
    if (json != NULL) {
        json_open(json, "dtypes", '[');
    } else {
        printf("    key types: ");
    }
    for (int32_t dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        if (!supports(device, model, dtype, TRIA_K_ROTATED)) {
            continue;
        }
        if (json != NULL) {
            json_text(json, NULL, tria_dtype_name(dtype));
        } else {
            printf(" %s", tria_dtype_name(dtype));
        }
    }
    if (json != NULL) {
        json_close(json, ']');
        json_open(json, "key_states", '[');
    } else {
        printf("\n    key states:");
    }
    for (int32_t state = 0; state < (int32_t)CLI_COUNT(states); state++) {
        if (!supports(device, model, TRIA_DTYPE_F16, state)) {
            continue;
        }
        if (json != NULL) {
            json_text(json, NULL, states[state]);
        } else {
            printf(" %s", states[state]);
        }
    }
    if (json != NULL) {
        json_close(json, ']');
    } else {
        printf("\n");
    }
}

/* One device; a failure to open it is part of the listing, not of the command. */
static void list_device(tria_backends *backends, const char *name, int32_t index, const tria_model *model,
                        json_writer *json)
{
    tria_error error;
    tria_device *device = NULL;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    bool open;
    params.index = index;
    params.allow_cpu = 1;
    open = tria_device_open(backends, name, &params, &device, &error) == TRIA_OK;
    if (json != NULL) {
        json_open(json, NULL, '{');
        json_integer(json, "index", index);
        json_text(json, "name", open ? tria_device_name(device) : "");
        json_text(json, "reason", open ? "" : error.message);
    } else {
        printf("  device %" PRId32 ": %s\n", index, open ? tria_device_name(device) : error.message);
    }
    if (open) {
        list_types(device, model, json);
        tria_device_close(device);
    }
    if (json != NULL) {
        json_close(json, '}');
    }
}

static void list_backend(tria_backends *backends, const tria_backend_info *info, const tria_model *model,
                         json_writer *json)
{
    bool found = info->path[0] != '\0';
    if (json != NULL) {
        json_open(json, NULL, '{');
        json_text(json, "name", info->name);
        json_boolean(json, "built_in", info->built_in != 0);
        json_text(json, "path", info->path);
        json_text(json, "reason", info->reason);
        json_open(json, "devices", '[');
    } else {
        printf("%s: %s%s\n", info->name,
               info->built_in ? "built in"
               : found        ? "plugin "
                              : "no plugin",
               info->path);
        if (info->reason[0] != '\0') {
            printf("  not usable: %s\n", info->reason);
        }
    }
    for (int32_t i = 0; i < info->n_devices; i++) {
        list_device(backends, info->name, i, model, json);
    }
    if (json != NULL) {
        json_close(json, ']');
        json_close(json, '}');
    }
}

static int list_all(tria_backends *backends, const tria_model *model, bool as_json)
{
    tria_error error;
    json_writer writer = {stdout, false};
    if (as_json) {
        json_open(&writer, NULL, '{');
        json_open(&writer, "backends", '[');
    }
    for (int32_t i = 0; i < tria_backends_count(backends); i++) {
        tria_backend_info info = {.struct_size = sizeof(info)};
        if (tria_backends_info(backends, i, &info, &error) != TRIA_OK) {
            return cli_library_error(NULL, &error);
        }
        list_backend(backends, &info, model, as_json ? &writer : NULL);
    }
    if (as_json) {
        json_close(&writer, ']');
        json_close(&writer, '}');
        printf("\n");
    }
    return CLI_OK;
}

int cli_backends(int argc, char **argv)
{
    tria_error error;
    tria_backends *backends = NULL;
    tria_model *model = NULL;
    const char *plugin_path = NULL;
    bool as_json = false;
    const cli_option options[] = {
        CLI_TEXT("plugin-path", "DIR", &plugin_path, "where to look for plugins first"),
        CLI_FLAG("json", &as_json, "print one JSON object"),
    };
    const cli_syntax syntax = {
        "backends", "", "Backends and devices, what they support, or why not.", options, CLI_COUNT(options),
        0,          0};
    int code = cli_parse(&syntax, argc, argv, NULL);
    if (code != CLI_CONTINUE) {
        return code;
    }
    if (tria_backends_create(plugin_path, cli_env(), &backends, &error) != TRIA_OK ||
        create_model(&model, &error) != TRIA_OK) {
        code = cli_library_error(NULL, &error);
    } else {
        code = list_all(backends, model, as_json);
    }
    tria_model_destroy(model);
    tria_backends_destroy(backends);
    return code;
}

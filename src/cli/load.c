/* load.c - see load.h. */
#include "load.h"

#ifdef TRIA_CLI_IMPORT
#include "tria/import.h"
#endif

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_log(void *context, tria_log_level level, const char *line)
{
    (void)context;
    (void)level;
    cli_message("%s", line);
}

const tria_env *cli_env(void)
{
    static const tria_env env = {sizeof(tria_env), NULL, NULL, NULL, print_log, NULL, TRIA_LOG_WARNING, 0};
    return &env;
}

tria_status cli_load_calibration(const char *path, const tria_model *model, tria_calibration **calibration,
                                 tria_error *error)
{
#ifdef TRIA_CLI_IMPORT
    return tria_import_calibration_load(path, model, cli_env(), calibration, error);
#else
    (void)model;
    return tria_calibration_load(path, cli_env(), calibration, error);
#endif
}

tria_status cli_load_model(const char *path, tria_model **model, tria_error *error)
{
#ifdef TRIA_CLI_IMPORT
    return tria_import_model_load(path, cli_env(), model, error);
#else
    (void)model;
    return cli_error(error, TRIA_E_UNSUPPORTED,
                     "%s: this tria was built without the import library, which reads JSON", path);
#endif
}

void cli_report_finding(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    static const char *const names[] = {"note", "warning", "error"};
    const char *path = context;
    if (layer >= 0) {
        cli_message("%s: %s: layer %" PRId32 ": %s", path, names[severity], layer, text);
    } else {
        cli_message("%s: %s: %s", path, names[severity], text);
    }
}

tria_status cli_open_device(int32_t backend, cli_device *device, tria_error *error)
{
    static const char *const names[] = {"cpu", "cpu", "cuda", "hip", "vulkan", "reference"};
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    memset(device, 0, sizeof(*device));
    if (strcmp(names[backend], "cpu") == 0) {
        return TRIA_OK;
    }
    /* Whoever names a backend on the command line may well mean the one on the CPU. */
    params.allow_cpu = 1;
    if (tria_backends_create(NULL, cli_env(), &device->backends, error) != TRIA_OK ||
        tria_device_open(device->backends, names[backend], &params, &device->device, error) != TRIA_OK) {
        cli_close_device(device);
        return error->code;
    }
    return TRIA_OK;
}

void cli_close_device(cli_device *device)
{
    if (device->device != NULL) {
        tria_device_close(device->device);
    }
    if (device->backends != NULL) {
        tria_backends_destroy(device->backends);
    }
    memset(device, 0, sizeof(*device));
}

const char *cli_device_backend(const cli_device *device)
{
    return device->device != NULL ? tria_device_backend(device->device) : "cpu";
}

const char *cli_device_name(const cli_device *device)
{
    return device->device != NULL ? tria_device_name(device->device) : "cpu";
}

static int64_t integer_at(const npy_array *array, int64_t i)
{
    const void *data = array->data;
    switch (array->size * (array->kind == 'i' ? -1 : 1)) {
    case -1:
        return ((const int8_t *)data)[i];
    case 1:
        return ((const uint8_t *)data)[i];
    case -2:
        return ((const int16_t *)data)[i];
    case 2:
        return ((const uint16_t *)data)[i];
    case -4:
        return ((const int32_t *)data)[i];
    case 4:
        return ((const uint32_t *)data)[i];
    default:
        /* u8 beyond int64 comes out negative, which no range of ours allows */
        return ((const int64_t *)data)[i];
    }
}

tria_status cli_integers(const char *path, const npy_array *array, int64_t minimum, int64_t maximum,
                         int32_t **values, tria_error *error)
{
    char text[128];
    if (array->kind == 'f') {
        return cli_error(error, TRIA_E_ARGUMENT, "%s: %s, expected int32", path,
                         npy_describe(array, text, sizeof(text)));
    }
    *values = cli_allocate((size_t)array->count, sizeof(**values));
    for (int64_t i = 0; i < array->count; i++) {
        int64_t value = integer_at(array, i);
        if (value < minimum || value > maximum) {
            free(*values);
            *values = NULL;
            return cli_error(error, TRIA_E_ARGUMENT,
                             "%s: element %" PRId64 " is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                             path, i, value, minimum, maximum);
        }
        (*values)[i] = (int32_t)value;
    }
    return TRIA_OK;
}

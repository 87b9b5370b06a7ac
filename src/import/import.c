/* import.c - finds a file's kind, completes what it lacks, and what the readers share. */
#include "import_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tria_status(import_fail)(tria_error *error, tria_status code, const char *format, ...)
{
    if (error != NULL) {
        va_list args;
        va_start(args, format);
        error->code = code;
        vsnprintf(error->message, sizeof(error->message), format, args);
        va_end(args);
    }
    return code;
}

bool import_rope_scaling(const char *name, size_t length, int32_t *type)
{
    static const struct {
        const char *name;
        int32_t type;
    } types[] = {
        {"default", TRIA_ROPE_SCALING_NONE},  {"mrope", TRIA_ROPE_SCALING_NONE},
        {"linear", TRIA_ROPE_SCALING_LINEAR}, {"dynamic", TRIA_ROPE_SCALING_DYNAMIC},
        {"yarn", TRIA_ROPE_SCALING_YARN},     {"deepseek_yarn", TRIA_ROPE_SCALING_YARN},
        {"llama3", TRIA_ROPE_SCALING_LLAMA3}, {"longrope", TRIA_ROPE_SCALING_LONGROPE},
        {"su", TRIA_ROPE_SCALING_LONGROPE},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strlen(types[i].name) == length && memcmp(types[i].name, name, length) == 0) {
            *type = types[i].type;
            return true;
        }
    }
    return false;
}

tria_status import_create(const import_shape *shape, const tria_env *env, tria_calibration **calibration,
                          tria_error *error)
{
    tria_calibration_params params;
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_layer_params *layers = malloc((size_t)shape->n_layers * sizeof(*layers));
    tria_status status;
    if (layers == NULL) {
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate %d layers", shape->n_layers);
    }
    layer.n_q_heads = shape->n_q_heads;
    layer.n_kv_heads = shape->n_kv_heads;
    layer.head_dim = shape->head_dim;
    layer.rotary_dim = 2 * shape->n_freq;
    layer.rope_style = shape->rope_style;
    layer.rope_theta = shape->rope_theta;
    layer.inv_freq = shape->inv_freq;
    layer.freq_scale_sq = shape->freq_scale_sq;
    for (int32_t l = 0; l < shape->n_layers; l++) {
        layers[l] = layer;
    }
    tria_calibration_params_init(&params);
    params.layers = layers;
    params.n_layers = shape->n_layers;
    params.format = shape->format;
    params.explicit_presence = shape->explicit_presence;
    params.explicit_style = shape->explicit_style;
    params.rope_theta = shape->rope_theta;
    params.model_name = shape->model_name;
    status = tria_calibration_build(&params, env, calibration, error);
    free(layers);
    return status;
}

static bool all_zero(const float *values, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (values[i] != 0) {
            return false;
        }
    }
    return true;
}

tria_status import_set_head(tria_calibration *calibration, const import_shape *shape, int32_t layer,
                            int32_t q_head, const float *real, const float *imag, const float *absolute,
                            tria_error *error)
{
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    tria_error detail;
    int32_t present = 0;
    if (tria_calibration_head(calibration, layer, q_head, &stats, &present, NULL) == TRIA_OK && present) {
        return import_fail(error, TRIA_E_FORMAT, "layer %d head %d occurs twice", layer, q_head);
    }
    if (!shape->explicit_presence && all_zero(real, shape->n_freq) && all_zero(imag, shape->n_freq) &&
        all_zero(absolute, shape->n_freq)) {
        return TRIA_OK;
    }
    stats.q_mean_real = real;
    stats.q_mean_imag = imag;
    stats.q_abs_mean = absolute;
    if (tria_calibration_set_head(calibration, layer, q_head, &stats, &detail) != TRIA_OK) {
        return import_fail(error, detail.code == TRIA_E_ARGUMENT ? TRIA_E_FORMAT : detail.code, "%s",
                           detail.message);
    }
    return TRIA_OK;
}

/* Copies counts and heads into a calibration that has at least as many layers and heads. */
static tria_status copy_heads(const tria_calibration *from, int32_t n_layers, tria_calibration *to,
                              tria_error *error)
{
    for (int32_t l = 0; l < n_layers; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        IMPORT_TRY(tria_calibration_layer(from, l, &layer, error));
        IMPORT_TRY(tria_calibration_set_tokens(to, l, layer.n_tokens, error));
        for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
            tria_head_stats stats = {.struct_size = sizeof(stats)};
            int32_t present;
            IMPORT_TRY(tria_calibration_head(from, l, h, &stats, &present, error));
            if (present) {
                IMPORT_TRY(tria_calibration_set_head(to, l, h, &stats, error));
            }
        }
    }
    return TRIA_OK;
}

/* What a layer of the file lacks, from the same layer of the model. */
static void complete_layer(tria_layer_params *layer, const tria_layer_params *model, bool counted)
{
    if (model->n_q_heads == 0) {
        return;
    }
    if (counted && model->n_q_heads > layer->n_q_heads) {
        layer->n_q_heads = model->n_q_heads;
    }
    if (layer->n_kv_heads == 0 && layer->n_q_heads == model->n_q_heads) {
        layer->n_kv_heads = model->n_kv_heads;
    }
    if (layer->rope_theta == 0 && layer->inv_freq == NULL && layer->rotary_dim == model->rotary_dim) {
        layer->rope_theta = model->rope_theta;
        layer->inv_freq = model->inv_freq;
    }
}

/* Replaces *calibration by one that has from `model` what its file lacks. */
static tria_status complete(tria_calibration **calibration, const tria_model *model, bool counted,
                            const tria_env *env, tria_error *error)
{
    tria_calibration_info info = {.struct_size = sizeof(info)};
    tria_calibration_params params;
    tria_calibration *completed = NULL;
    tria_layer_params *layers;
    int32_t n_layers;
    tria_status status = TRIA_OK;
    IMPORT_TRY(tria_calibration_get_info(*calibration, &info, error));
    n_layers =
        counted && tria_model_n_layers(model) > info.n_layers ? tria_model_n_layers(model) : info.n_layers;
    layers = malloc((size_t)n_layers * sizeof(*layers));
    if (layers == NULL) {
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate %d layers", n_layers);
    }
    for (int32_t l = 0; l < n_layers && status == TRIA_OK; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        tria_layer_params described = TRIA_LAYER_PARAMS_INIT;
        status = tria_calibration_layer(*calibration, l < info.n_layers ? l : 0, &layer, error);
        layers[l] = layer.geometry;
        if (status == TRIA_OK && l < tria_model_n_layers(model)) {
            status = tria_model_layer(model, l, &described, error);
            complete_layer(&layers[l], &described, counted);
        }
    }
    tria_calibration_params_init(&params);
    params.layers = layers;
    params.n_layers = n_layers;
    params.format = info.format;
    params.explicit_presence = info.explicit_presence;
    params.explicit_geometry = info.explicit_geometry;
    params.explicit_style = info.explicit_style;
    params.capture_point = info.capture_point;
    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): a calibration has at least one layer
    params.rope_theta = info.rope_theta != 0 ? info.rope_theta : layers[0].rope_theta;
    params.model_name = info.model_name;
    if (status == TRIA_OK) {
        status = tria_calibration_build(&params, env, &completed, error);
    }
    if (status == TRIA_OK) {
        status = copy_heads(*calibration, info.n_layers, completed, error);
    }
    free(layers);
    if (status != TRIA_OK) {
        tria_calibration_destroy(completed);
        return status;
    }
    tria_calibration_destroy(*calibration);
    *calibration = completed;
    return TRIA_OK;
}

/* safetensors: the length of the JSON header, then the header. */
static bool looks_like_safetensors(const unsigned char *data, size_t size)
{
    uint64_t length = 0;
    for (size_t i = 8; size > 8 && i-- > 0;) {
        length = length << 8 | data[i];
    }
    return size > 8 && data[8] == '{' && length >= 2 && length <= size - 8;
}

static bool looks_like_json(const unsigned char *data, size_t size)
{
    size_t i = 0;
    while (i < size && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r')) {
        i++;
    }
    return i < size && data[i] == '{';
}

tria_status tria_import_calibration_read(const void *bytes, size_t size, const tria_model *model,
                                         const tria_env *env, tria_calibration **out, tria_error *error)
{
    const unsigned char *data = bytes;
    tria_calibration *calibration = NULL;
    bool counted = false;
    tria_status status;
    if (out == NULL || (data == NULL && size != 0)) {
        return import_fail(error, TRIA_E_ARGUMENT, "tria_import_calibration_read: NULL argument");
    }
    if (size >= 4 && memcmp(data, "PK\3\4", 4) == 0) {
        status = import_read_pt(data, size, env, &counted, &calibration, error);
    } else if (looks_like_safetensors(data, size)) {
        status = import_read_safetensors(data, size, env, &counted, &calibration, error);
    } else if (looks_like_json(data, size)) {
        status = import_read_json(data, size, env, &calibration, error);
    } else {
        return tria_calibration_read(data, size, env, out, error);
    }
    if (status == TRIA_OK && model != NULL) {
        status = complete(&calibration, model, counted, env, error);
    }
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    *out = calibration;
    return TRIA_OK;
}

/* A regular file's bytes, from malloc(). */
static tria_status read_file(const char *path, unsigned char **data, size_t *size, tria_error *error)
{
    struct stat info;
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    if (file == NULL) {
        return import_fail(error, TRIA_E_IO, "%s: %s", path != NULL ? path : "NULL", strerror(errno));
    }
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
        fclose(file);
        return import_fail(error, TRIA_E_IO, "%s: not a regular file", path);
    }
    *size = (size_t)info.st_size;
    *data = malloc(*size + 1);
    if (*data == NULL || fread(*data, 1, *size, file) != *size) {
        const bool no_memory = *data == NULL;
        free(*data);
        fclose(file);
        return import_fail(error, no_memory ? TRIA_E_MEMORY : TRIA_E_IO, "%s: cannot read %zu bytes", path,
                           *size);
    }
    fclose(file);
    return TRIA_OK;
}

/* Puts the file's name before the message. */
static tria_status name_file(const char *path, tria_status status, tria_error *error)
{
    if (status != TRIA_OK && error != NULL) {
        const tria_error detail = *error;
        return import_fail(error, status, "%s: %s", path, detail.message);
    }
    return status;
}

tria_status tria_import_calibration_load(const char *path, const tria_model *model, const tria_env *env,
                                         tria_calibration **calibration, tria_error *error)
{
    unsigned char *data;
    size_t size;
    tria_status status;
    IMPORT_TRY(read_file(path, &data, &size, error));
    status = tria_import_calibration_read(data, size, model, env, calibration, error);
    free(data);
    return name_file(path, status, error);
}

tria_status tria_import_model_load(const char *path, const tria_env *env, tria_model **model,
                                   tria_error *error)
{
    unsigned char *data;
    size_t size;
    tria_status status;
    IMPORT_TRY(read_file(path, &data, &size, error));
    status = tria_import_model_read(data, size, 0, env, model, error);
    free(data);
    return name_file(path, status, error);
}

tria_status tria_import_calibration_write(const tria_calibration *calibration, int32_t format,
                                          int32_t allow_lossy, void *data, size_t capacity, size_t *size,
                                          tria_error *error)
{
    char *text;
    size_t length;
    if (format != TRIA_FORMAT_JSON) {
        return tria_calibration_write(calibration, format, allow_lossy, data, capacity, size, error);
    }
    if (calibration == NULL || size == NULL) {
        return import_fail(error, TRIA_E_ARGUMENT, "tria_import_calibration_write: NULL argument");
    }
    IMPORT_TRY(import_write_json(calibration, allow_lossy != 0, &text, &length, error));
    *size = length;
    if (data != NULL && length <= capacity) {
        memcpy(data, text, length);
    }
    free(text);
    return data != NULL && length > capacity
               ? import_fail(error, TRIA_E_CAPACITY, "the calibration takes %zu bytes, the buffer has %zu",
                             length, capacity)
               : TRIA_OK;
}

/* Through a temporary file beside it, so that a failure leaves the old file alone; straight to a device or
 * a pipe, which a file renamed over it would replace. */
static tria_status write_file(const char *path, const char *text, size_t size, tria_error *error)
{
    char name[4096];
    struct stat info;
    FILE *file;
    int descriptor;
    const bool special = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    const int length = special ? snprintf(name, sizeof(name), "%s", path)
                               : snprintf(name, sizeof(name), "%s.%ld.tmp", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof(name)) {
        return import_fail(error, TRIA_E_IO, "%s: the path is too long", path);
    }
    descriptor = open(name, O_WRONLY | O_CLOEXEC | (special ? 0 : O_CREAT | O_EXCL), 0666);
    file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
    if (file == NULL) {
        return import_fail(error, TRIA_E_IO, "cannot create %s: %s", name, strerror(errno));
    }
    const bool written = fwrite(text, 1, size, file) == size;
    if (fclose(file) != 0 || !written || (!special && rename(name, path) != 0)) {
        if (!special) {
            unlink(name);
        }
        return import_fail(error, TRIA_E_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return TRIA_OK;
}

tria_status tria_import_calibration_save(const tria_calibration *calibration, int32_t format,
                                         int32_t allow_lossy, const char *path, tria_error *error)
{
    char *text;
    size_t size;
    tria_status status;
    if (format != TRIA_FORMAT_JSON) {
        return tria_calibration_save(calibration, format, allow_lossy, path, error);
    }
    if (calibration == NULL || path == NULL) {
        return import_fail(error, TRIA_E_ARGUMENT, "tria_import_calibration_save: NULL argument");
    }
    IMPORT_TRY(import_write_json(calibration, allow_lossy != 0, &text, &size, error));
    status = write_file(path, text, size, error);
    free(text);
    return status;
}

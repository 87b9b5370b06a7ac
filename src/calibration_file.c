/* calibration_file.c - finds a file's kind from its content; reads, loads, writes, saves. */
#include "calibration_internal.h"

#include <stdio.h>
#include <string.h>

static const struct {
    tria_format format;
    const char *name;
} FORMATS[] = {
    {TRIA_FORMAT_TRIA1, "tria1"},
    {TRIA_FORMAT_TRIA2, "tria2"},
    {TRIA_FORMAT_TRIA3, "tria3"},
    {TRIA_FORMAT_TRIA4, "tria4"},
    {TRIA_FORMAT_TRIA5, "tria5"},
    {TRIA_FORMAT_TRIATTENTION1, "triattention1"},
    {TRIA_FORMAT_TRIATTENTION2, "triattention2"},
    {TRIA_FORMAT_TRIATTENTION3, "triattention3"},
    {TRIA_FORMAT_TRIATTN, "triattn"},
    {TRIA_FORMAT_PT, "pt"},
    {TRIA_FORMAT_PT_DENSE, "pt-dense"},
    {TRIA_FORMAT_PT_TRTLLM, "pt-trtllm"},
    {TRIA_FORMAT_JSON, "json"},
    {TRIA_FORMAT_SAFETENSORS, "safetensors"},
};

const char *tria_format_name(int32_t format)
{
    for (size_t i = 0; i < TRIA_ARRAY_LEN(FORMATS); i++) {
        if ((int32_t)FORMATS[i].format == format) {
            return FORMATS[i].name;
        }
    }
    return NULL;
}

int32_t tria_format_from_name(const char *name)
{
    for (size_t i = 0; name != NULL && i < TRIA_ARRAY_LEN(FORMATS); i++) {
        if (strcmp(FORMATS[i].name, name) == 0) {
            return (int32_t)FORMATS[i].format;
        }
    }
    return -1;
}

/* The first bytes of a file that only the import library reads. */
static tria_status not_ours(const unsigned char *data, size_t size, tria_error *error)
{
    const char *hint = "";
    if (size >= 4 && memcmp(data, "PK\3\4", 4) == 0) {
        hint = " (a zip archive; torch .pt files are read by the import library)";
    } else if (size >= 1 && data[0] == '{') {
        hint = " (JSON is read by the import library)";
    } else if (size >= 9 && data[8] == '{') {
        hint = " (safetensors files are read by the import library)";
    }
    return tria_fail(error, TRIA_E_FORMAT,
                     "not a calibration file: expected the number 0x54524941 or the letters TRIA at offset "
                     "0%s",
                     hint);
}

tria_status tria_calibration_read(const void *bytes, size_t size, const tria_env *env,
                                  tria_calibration **calibration, tria_error *error)
{
    const unsigned char *data = bytes;
    tria_env full_env;
    uint32_t version;
    if (calibration == NULL || (data == NULL && size != 0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_read: NULL argument");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    if (size < 8) {
        return tria_fail(error, TRIA_E_FORMAT, "%zu bytes are too few for a calibration file", size);
    }
    if (memcmp(data, "TRIA", 4) == 0) {
        return tria_read_dialect_c(data, size, &full_env, calibration, error);
    }
    if (tria_load_u32(data) != TRIA_MAGIC) {
        return not_ours(data, size, error);
    }
    version = tria_load_u32(data + 4);
    if (version == 5) {
        return tria_read_tria5(data, size, &full_env, calibration, error);
    }
    if (version == 4 || (version >= 1 && version <= 3 && tria_dialect_a_plausible(data, size))) {
        return tria_read_dialect_a(data, size, &full_env, calibration, error);
    }
    if (version >= 1 && version <= 3) {
        return tria_read_dialect_b(data, size, &full_env, calibration, error);
    }
    return tria_fail(error, TRIA_E_FORMAT, "version at offset 4 is %u, this library (%s) reads 1 to 5",
                     version, tria_version_string());
}

tria_status tria_calibration_load(const char *path, const tria_env *env, tria_calibration **calibration,
                                  tria_error *error)
{
    tria_env full_env;
    unsigned char *data;
    size_t size;
    tria_status status;
    if (path == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_load: path is NULL");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    status = tria_read_file(path, &full_env, &data, &size, error);
    if (status == TRIA_OK) {
        status = tria_calibration_read(data, size, env, calibration, error);
        tria_free(&full_env, data);
    }
    return status == TRIA_OK ? TRIA_OK : tria_fail_in(error, status, "%s", path);
}

void tria_lose(tria_losses *losses, const char *what, ...)
{
    const size_t left = sizeof(losses->text) - losses->used;
    const char *separator = losses->used > 0 ? "; " : "";
    char item[128];
    va_list args;
    int length;
    va_start(args, what);
    vsnprintf(item, sizeof(item), what, args);
    va_end(args);
    length = snprintf(losses->text + losses->used, left, "%s%s", separator, item);
    if (length > 0) {
        losses->used += (size_t)length < left ? (size_t)length : left - 1;
    }
}

void tria_lose_extras(tria_losses *losses, const tria_calibration *calibration, bool has_name,
                      bool has_scales)
{
    bool tokens = false;
    bool scales = false;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        tokens = tokens || calibration->layers[l].n_tokens != 0;
        scales = scales || calibration->layers[l].budget_scale != 1;
    }
    if (!has_name && calibration->model_name[0] != '\0') {
        tria_lose(losses, "the model name");
    }
    if (calibration->fingerprint[0] != '\0') {
        tria_lose(losses, "the fingerprint");
    }
    if (calibration->provenance[0] != '\0') {
        tria_lose(losses, "the provenance");
    }
    if (calibration->default_policy[0] != '\0') {
        tria_lose(losses, "the default policy");
    }
    if (calibration->capture_point != TRIA_CAPTURE_UNKNOWN) {
        tria_lose(losses, "the capture point");
    }
    if (tokens) {
        tria_lose(losses, "token counts");
    }
    if (scales && !has_scales) {
        tria_lose(losses, "layer budget scales");
    }
}

tria_status tria_calibration_write(const tria_calibration *calibration, int32_t format, int32_t allow_lossy,
                                   void *data, size_t capacity, size_t *size, tria_error *error)
{
    tria_writer writer = {data, capacity, 0};
    tria_losses losses = {0};
    if (calibration == NULL || size == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_write: NULL argument");
    }
    if (format == TRIA_FORMAT_TRIA5) {
        TRIA_TRY(tria_write_tria5(calibration, &writer));
    } else if (format >= TRIA_FORMAT_TRIA1 && format <= TRIA_FORMAT_TRIA4) {
        TRIA_TRY(
            tria_write_dialect_a(calibration, format - TRIA_FORMAT_TRIA1 + 1, &losses, &writer, error));
    } else if (format == TRIA_FORMAT_TRIATTENTION3) {
        TRIA_TRY(tria_write_dialect_b3(calibration, &losses, &writer, error));
    } else {
        const char *name = tria_format_name(format);
        return tria_fail(error, TRIA_E_UNSUPPORTED, "format %s cannot be written by the core library%s",
                         name != NULL ? name : "unknown",
                         format == TRIA_FORMAT_JSON ? ", only by the import library" : "");
    }
    if (losses.used > 0 && !allow_lossy) {
        return tria_fail(error, TRIA_E_LOSSY, "%s cannot hold %s", tria_format_name(format), losses.text);
    }
    *size = writer.used;
    if (data != NULL && writer.used > capacity) {
        return tria_fail(error, TRIA_E_CAPACITY, "the calibration takes %zu bytes, the buffer has %zu",
                         writer.used, capacity);
    }
    return TRIA_OK;
}

tria_status tria_calibration_save(const tria_calibration *calibration, int32_t format, int32_t allow_lossy,
                                  const char *path, tria_error *error)
{
    unsigned char *data;
    size_t size;
    tria_status status;
    if (path == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_save: path is NULL");
    }
    TRIA_TRY(tria_calibration_write(calibration, format, allow_lossy, NULL, 0, &size, error));
    data = tria_alloc(&calibration->env, size, 1);
    if (data == NULL) {
        return tria_fail_memory(error, size, "the file");
    }
    status = tria_calibration_write(calibration, format, allow_lossy, data, size, &size, error);
    if (status == TRIA_OK) {
        status = tria_write_file(path, data, size, error);
    }
    tria_free(&calibration->env, data);
    return status;
}

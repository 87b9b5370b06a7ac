/* base.c - status texts, errors, memory, logging, size-versioned structs. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRINGIFY(x) #x
#define VERSION_STRING(a, b, c) STRINGIFY(a) "." STRINGIFY(b) "." STRINGIFY(c)

const char *tria_version_string(void)
{
    return VERSION_STRING(TRIA_VERSION_MAJOR, TRIA_VERSION_MINOR, TRIA_VERSION_PATCH);
}

int32_t tria_version_number(void)
{
    return TRIA_VERSION_MAJOR * 10000 + TRIA_VERSION_MINOR * 100 + TRIA_VERSION_PATCH;
}

const char *tria_strerror(tria_status status)
{
    switch (status) {
    case TRIA_OK:
        return "success";
    case TRIA_E_ARGUMENT:
        return "invalid argument";
    case TRIA_E_STATE:
        return "call not allowed in this state";
    case TRIA_E_CAPACITY:
        return "capacity exceeded";
    case TRIA_E_UNSUPPORTED:
        return "not supported";
    case TRIA_E_MISMATCH:
        return "calibration, model and cache disagree";
    case TRIA_E_SHARED_PAGE:
        return "a shared page would be written";
    case TRIA_E_FORMAT:
        return "bad file format";
    case TRIA_E_LOSSY:
        return "the format would lose information";
    case TRIA_E_IO:
        return "input/output error";
    case TRIA_E_MEMORY:
        return "out of memory";
    case TRIA_E_BACKEND:
        return "backend not available";
    case TRIA_E_DEVICE:
        return "device error";
    case TRIA_E_CANCELLED:
        return "cancelled by a callback";
    case TRIA_E_INTERNAL:
        return "internal error";
    default:
        return "unknown status";
    }
}

tria_status(tria_fail)(tria_error *error, tria_status code, const char *format, ...)
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

tria_status tria_fail_in(tria_error *error, tria_status code, const char *format, ...)
{
    if (error != NULL) {
        char detail[TRIA_ERROR_MESSAGE_SIZE];
        va_list args;
        memcpy(detail, error->message, sizeof(detail));
        va_start(args, format);
        int used = vsnprintf(error->message, sizeof(error->message), format, args);
        va_end(args);
        if (used >= 0 && (size_t)used < sizeof(error->message)) {
            snprintf(error->message + used, sizeof(error->message) - (size_t)used, ": %s", detail);
        }
        error->code = code;
    }
    return code;
}

tria_status tria_fail_memory(tria_error *error, size_t bytes, const char *what)
{
    return tria_fail(error, TRIA_E_MEMORY, "cannot allocate %zu bytes for %s", bytes, what);
}

static void *default_allocate(void *context, size_t size, size_t alignment)
{
    void *pointer = NULL;
    (void)context;
    return posix_memalign(&pointer, alignment, size) == 0 ? pointer : NULL;
}

static void default_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

void tria_env_init(tria_env *env)
{
    const tria_env defaults = TRIA_ENV_INIT;
    *env = defaults;
}

tria_status tria_env_import(tria_env *out, const tria_env *env, tria_error *error)
{
    tria_env_init(out);
    if (env != NULL) {
        TRIA_TRY(tria_struct_import(out, sizeof(*out), sizeof(*out), env, "tria_env", error));
        if ((out->allocate == NULL) != (out->release == NULL)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "tria_env: allocate and release go together");
        }
    }
    if (out->allocate == NULL) {
        out->allocate = default_allocate;
        out->release = default_release;
    }
    return TRIA_OK;
}

void *tria_alloc(const tria_env *env, size_t count, size_t size)
{
    size_t bytes;
    void *pointer;
    if (!tria_mul(count, size, &bytes) || bytes == 0 || bytes > PTRDIFF_MAX) {
        return NULL;
    }
    pointer = env->allocate(env->allocator_context, bytes, 64);
    if (pointer != NULL) {
        memset(pointer, 0, bytes);
    }
    return pointer;
}

void tria_free(const tria_env *env, void *pointer)
{
    if (pointer != NULL) {
        env->release(env->allocator_context, pointer);
    }
}

char *tria_strdup(const tria_env *env, const char *text)
{
    const char *source = text != NULL ? text : "";
    size_t size = strlen(source) + 1;
    char *copy = tria_alloc(env, size, 1);
    if (copy != NULL) {
        memcpy(copy, source, size);
    }
    return copy;
}

void tria_log(const tria_env *env, tria_log_level level, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (env->log == NULL || (int32_t)level > env->log_level) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    env->log(env->log_context, level, line);
}

tria_status tria_struct_import(void *out, size_t out_size, size_t minimum, const void *in, const char *name,
                               tria_error *error)
{
    size_t size;
    const unsigned char *bytes = in;
    if (in == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: NULL", name);
    }
    memcpy(&size, in, sizeof(size));
    if (size < minimum) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: struct_size %zu is below %zu (use its INIT)", name,
                         size, minimum);
    }
    for (size_t i = out_size; i < size; i++) {
        if (bytes[i] != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "%s: byte %zu is set but this library (%s) knows only %zu bytes", name, i,
                             tria_version_string(), out_size);
        }
    }
    memcpy(out, in, size < out_size ? size : out_size);
    memcpy(out, &out_size, sizeof(out_size));
    return TRIA_OK;
}

tria_status tria_struct_export(void *caller, const void *full, size_t full_size, size_t minimum,
                               const char *name, tria_error *error)
{
    size_t size;
    if (caller == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: NULL", name);
    }
    memcpy(&size, caller, sizeof(size));
    if (size < minimum) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: struct_size %zu is below %zu (use its INIT)", name,
                         size, minimum);
    }
    memcpy(caller, full, size < full_size ? size : full_size);
    memcpy(caller, &size, sizeof(size));
    return TRIA_OK;
}

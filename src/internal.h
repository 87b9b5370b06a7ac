/*
 * internal.h - what every module of the core uses: errors, memory, logging, growing structs.
 */
#ifndef TRIA_INTERNAL_H
#define TRIA_INTERNAL_H

#include "tria/base.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRIA_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Fills *error (which may be NULL) and returns `code`, so that failing is one statement. */
tria_status tria_fail(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__
/* The analyzer cannot look into the function: tell it that the code comes back. */
#define tria_fail(error, code, ...) ((tria_fail)((error), (code), __VA_ARGS__), (code))
#endif
/* Prefixes the message of *error with "prefix: " and returns its code. */
tria_status tria_fail_in(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Leaves the enclosing function with the status of a failing call. */
#define TRIA_TRY(expression)                                                                               \
    do {                                                                                                   \
        tria_status tria_try_status = (expression);                                                        \
        if (tria_try_status != TRIA_OK) {                                                                  \
            return tria_try_status;                                                                        \
        }                                                                                                  \
    } while (0)

/* Jumps to `label` with `status` (a variable in scope) set. */
#define TRIA_TRY_GOTO(expression, label)                                                                   \
    do {                                                                                                   \
        status = (expression);                                                                             \
        if (status != TRIA_OK) {                                                                           \
            goto label;                                                                                    \
        }                                                                                                  \
    } while (0)

/* Copies the caller's env (NULL: defaults) into a complete one; checks it. */
tria_status tria_env_import(tria_env *out, const tria_env *env, tria_error *error);
/* 64-byte aligned memory; count*size is overflow-checked; zero-filled. Size 0 gives NULL. */
void *tria_alloc(const tria_env *env, size_t count, size_t size);
void tria_free(const tria_env *env, void *pointer);       /* NULL is allowed */
char *tria_strdup(const tria_env *env, const char *text); /* NULL text gives "" */
tria_status tria_fail_memory(tria_error *error, size_t bytes, const char *what);

void tria_log(const tria_env *env, tria_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Brings a caller's size-versioned struct to the latest form: `out` must already hold the defaults.
 * Copies the prefix the caller knows; refuses sizes below `minimum` and unknown non-zero bytes. */
tria_status tria_struct_import(void *out, size_t out_size, size_t minimum, const void *in, const char *name,
                               tria_error *error);
/* The other way, for output structs: copies at most what the caller has room for, keeps struct_size. */
tria_status tria_struct_export(void *caller, const void *full, size_t full_size, size_t minimum,
                               const char *name, tria_error *error);

/* Overflow-checked arithmetic: false when the result does not fit. */
static inline bool tria_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tria_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif

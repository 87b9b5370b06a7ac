/* import_internal.h - readers of the import library. It is built on the core's public API only. */
#ifndef TRIA_IMPORT_INTERNAL_H
#define TRIA_IMPORT_INTERNAL_H

#include "tria/import.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fills *error (may be NULL) and returns `code`. */
tria_status import_fail(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Compilers cannot look into the function: tell them that the code comes back. */
#define import_fail(error, code, ...) ((import_fail)((error), (code), __VA_ARGS__), (code))

#define IMPORT_TRY(expression)                                                                             \
    do {                                                                                                   \
        tria_status import_try_status = (expression);                                                      \
        if (import_try_status != TRIA_OK) {                                                                \
            return import_try_status;                                                                      \
        }                                                                                                  \
    } while (0)

/* What a file says, gathered before a calibration is made of it. */
typedef struct import_shape {
    int32_t n_layers;
    int32_t n_q_heads;
    int32_t n_kv_heads; /* 0: the file does not say */
    int32_t head_dim;
    int32_t n_freq;
    int32_t rope_style;
    bool explicit_style;
    bool explicit_presence;
    double rope_theta;           /* 0: the file does not say */
    const double *inv_freq;      /* [n_freq] or NULL */
    const double *freq_scale_sq; /* [n_freq] or NULL */
    const char *model_name;      /* or NULL */
    int32_t format;
} import_shape;

/* An empty calibration of that shape in all layers. */
tria_status import_create(const import_shape *shape, const tria_env *env, tria_calibration **calibration,
                          tria_error *error);
/* Sets a head, once; without explicit presence one of zeros is left out. */
tria_status import_set_head(tria_calibration *calibration, const import_shape *shape, int32_t layer,
                            int32_t q_head, const float *real, const float *imag, const float *absolute,
                            tria_error *error);

/* The tria_rope_scaling_type that models' configurations call so. False: none is. */
bool import_rope_scaling(const char *name, size_t length, int32_t *type);

/* *counted: the file does not say how many layers and query heads there are; they were counted. */
tria_status import_read_pt(const unsigned char *data, size_t size, const tria_env *env, bool *counted,
                           tria_calibration **calibration, tria_error *error);
tria_status import_read_json(const unsigned char *data, size_t size, const tria_env *env,
                             tria_calibration **calibration, tria_error *error);
tria_status import_read_safetensors(const unsigned char *data, size_t size, const tria_env *env,
                                    bool *counted, tria_calibration **calibration, tria_error *error);
/* The text is from malloc(). */
tria_status import_write_json(const tria_calibration *calibration, bool allow_lossy, char **text,
                              size_t *size, tria_error *error);

#endif

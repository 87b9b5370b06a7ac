/*
 * tria/model.h - what the library needs to know of a model's attention layers.
 *
 * The engine's description wins over what a calibration file says (specification, section 7): files
 * in the field carry wrong rotary bases and widths.
 */
#ifndef TRIA_MODEL_H
#define TRIA_MODEL_H

#include "tria/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRIA_MAX_LAYERS 4096
#define TRIA_MAX_HEADS 4096
#define TRIA_MAX_HEAD_DIM 8192

/* How a head's rotary slice x of length R = 2F pairs into complex numbers k_f (specification, 1). */
typedef enum tria_rope_style {
    TRIA_ROPE_HALF = 0,       /* NeoX: k_f = x[f] + i x[F + f] */
    TRIA_ROPE_INTERLEAVED = 1 /* GPT-J, "NORM": k_f = x[2f] + i x[2f + 1] */
} tria_rope_style;

/* One layer. A layer without attention has n_q_heads = 0 and n_kv_heads = 0. */
typedef struct tria_layer_params {
    size_t struct_size;
    int32_t n_q_heads;
    int32_t n_kv_heads; /* divides n_q_heads; query head h reads KV head h / (n_q_heads / n_kv_heads) */
    int32_t head_dim;
    int32_t rotary_dim;    /* even, 0 = head_dim */
    int32_t rotary_offset; /* first rotated dimension; the dimensions outside are "content" */
    int32_t rope_style;    /* tria_rope_style */
    int32_t kv_source;     /* -1, or the layer whose KV cache this layer reads instead of its own */
    int32_t window;        /* sliding-window length in tokens, 0 = full attention */
    double rope_theta;     /* base of the frequencies, theta^(-2f/rotary_dim); used when inv_freq is NULL */
    const double *inv_freq;      /* [rotary_dim / 2] radians per token, or NULL; copied */
    const double *freq_scale_sq; /* [rotary_dim / 2] weight g_f of each frequency, or NULL for 1; copied */
} tria_layer_params;

#define TRIA_LAYER_PARAMS_INIT                                                                             \
    {                                                                                                      \
        sizeof(tria_layer_params), 0, 0, 0, 0, 0, TRIA_ROPE_HALF, -1, 0, 10000.0, NULL, NULL               \
    }
TRIA_API void tria_layer_params_init(tria_layer_params *params);

typedef struct tria_model_params {
    size_t struct_size;
    const char *name;                /* for messages; NULL = "" */
    const tria_layer_params *layers; /* [n_layers], consecutive structs of layers[0].struct_size bytes */
    int32_t n_layers;
    int32_t reserved;
} tria_model_params;

#define TRIA_MODEL_PARAMS_INIT                                                                             \
    {                                                                                                      \
        sizeof(tria_model_params), NULL, NULL, 0, 0                                                        \
    }
TRIA_API void tria_model_params_init(tria_model_params *params);

typedef struct tria_model tria_model;

/* Checks and copies a description. Errors: ARGUMENT (names the layer and the field), MEMORY. */
TRIA_API tria_status tria_model_create(const tria_model_params *params, const tria_env *env,
                                       tria_model **model, tria_error *error);
TRIA_API void tria_model_destroy(tria_model *model); /* NULL is allowed */

TRIA_API const char *tria_model_name(const tria_model *model);
TRIA_API int32_t tria_model_n_layers(const tria_model *model);
/* Layer `layer` as resolved (rotary_dim and inv_freq always filled). The pointers live as long as the
 * model. `params->struct_size` must be set. Errors: ARGUMENT. */
TRIA_API tria_status tria_model_layer(const tria_model *model, int32_t layer, tria_layer_params *params,
                                      tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

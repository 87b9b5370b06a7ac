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
    int32_t n_kv_heads; /* divides n_q_heads; query head h reads KV head h / (n_q_heads / n_kv_heads).
                           With kv_source 0 = as many as the source */
    int32_t head_dim;
    int32_t rotary_dim;    /* even, 0 = head_dim */
    int32_t rotary_offset; /* first rotated dimension; the dimensions outside are "content" */
    int32_t rope_style;    /* tria_rope_style */
    int32_t kv_source;     /* -1, or the layer whose KV cache this layer reads instead of its own */
    int32_t window;        /* sliding-window length in tokens, 0 = full attention */
    double
        rope_theta; /* base >= 1 of the frequencies, theta^(-2f/rotary_dim); used when inv_freq is NULL */
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
    const char *fingerprint; /* identifies the weights, any text; NULL = "", unknown */
} tria_model_params;

#define TRIA_MODEL_PARAMS_INIT                                                                             \
    {                                                                                                      \
        sizeof(tria_model_params), NULL, NULL, 0, 0, NULL                                                  \
    }
TRIA_API void tria_model_params_init(tria_model_params *params);

typedef struct tria_model tria_model;

/* Checks and copies a description. Errors: ARGUMENT (names the layer and the field), MEMORY. */
TRIA_API tria_status tria_model_create(const tria_model_params *params, const tria_env *env,
                                       tria_model **model, tria_error *error);
TRIA_API void tria_model_destroy(tria_model *model); /* NULL is allowed */

TRIA_API const char *tria_model_name(const tria_model *model);
TRIA_API const char *tria_model_fingerprint(const tria_model *model); /* "" = unknown */
TRIA_API int32_t tria_model_n_layers(const tria_model *model);
/* Layer `layer` as resolved (rotary_dim and inv_freq always filled). The pointers live as long as the
 * model. `params->struct_size` must be set. Errors: ARGUMENT. */
TRIA_API tria_status tria_model_layer(const tria_model *model, int32_t layer, tria_layer_params *params,
                                      tria_error *error);

/* How a model stretches its RoPE frequencies beyond the context it was trained on. */
typedef enum tria_rope_scaling_type {
    TRIA_ROPE_SCALING_NONE = 0,
    TRIA_ROPE_SCALING_LINEAR = 1,
    TRIA_ROPE_SCALING_DYNAMIC = 2, /* dynamic NTK: depends on the length in use */
    TRIA_ROPE_SCALING_YARN = 3,
    TRIA_ROPE_SCALING_LLAMA3 = 4,
    TRIA_ROPE_SCALING_LONGROPE = 5 /* short or long factors, by the length in use */
} tria_rope_scaling_type;

/* Fields as in a Hugging Face rope_scaling; only those of the type are read. */
typedef struct tria_rope_scaling {
    size_t struct_size;
    int32_t type;               /* tria_rope_scaling_type */
    int32_t truncate;           /* yarn: round the ramp's ends to whole dimensions; default 1 */
    double factor;              /* default 1 */
    double original_length;     /* original_max_position_embeddings; dynamic: max_position_embeddings */
    double length;              /* dynamic, longrope: tokens in use, 0 = original_length */
    double attention_factor;    /* yarn, longrope: 0 = from the other fields */
    double beta_fast;           /* yarn, default 32 */
    double beta_slow;           /* yarn, default 1 */
    double mscale;              /* yarn, 0 = not given */
    double mscale_all_dim;      /* yarn, 0 = not given */
    double low_freq_factor;     /* llama3, default 1 */
    double high_freq_factor;    /* llama3, default 4 */
    const double *short_factor; /* longrope [rotary_dim / 2] */
    const double *long_factor;  /* longrope [rotary_dim / 2] */
} tria_rope_scaling;
TRIA_API void tria_rope_scaling_init(tria_rope_scaling *scaling);

/* Writes inv_freq [rotary_dim / 2]. `scaling` may be NULL. *attention_factor (may be NULL) is what the
 * model multiplies cosines and sines by; it never enters a score by itself. Errors: ARGUMENT. */
TRIA_API tria_status tria_rope_frequencies(double theta, int32_t rotary_dim,
                                           const tria_rope_scaling *scaling, double *inv_freq,
                                           double *attention_factor, tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

/*
 * tria/calibration.h - query statistics of a model: reading, writing, checking, building.
 *
 * A calibration holds, per (layer, query head) that was calibrated and per rotary frequency f, over the
 * pre-RoPE queries q of some text: q_mean = E[q_f] (complex) and q_abs_mean = E|q_f|; optionally the
 * mean of the content (non-rotary) dimensions. See the specification, sections 2 and 7.
 */
#ifndef TRIA_CALIBRATION_H
#define TRIA_CALIBRATION_H

#include "tria/base.h"
#include "tria/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tria_calibration tria_calibration;

/* File formats. Reading finds the kind from the content; the core reads TRIA1...TRIA5, TRIATTENTION and
 * TRIATTN, the import library (tria/import.h) the others. */
typedef enum tria_format {
    TRIA_FORMAT_UNKNOWN = 0,
    TRIA_FORMAT_TRIA1 = 1,
    TRIA_FORMAT_TRIA2 = 2,
    TRIA_FORMAT_TRIA3 = 3,
    TRIA_FORMAT_TRIA4 = 4,
    TRIA_FORMAT_TRIA5 = 5,          /* ours; loses nothing */
    TRIA_FORMAT_TRIATTENTION1 = 11, /* dialect B */
    TRIA_FORMAT_TRIATTENTION2 = 12,
    TRIA_FORMAT_TRIATTENTION3 = 13,
    TRIA_FORMAT_TRIATTN = 21, /* dialect C */
    TRIA_FORMAT_PT = 31,      /* the reference's torch files, import library */
    TRIA_FORMAT_PT_DENSE = 32,
    TRIA_FORMAT_PT_TRTLLM = 33,
    TRIA_FORMAT_JSON = 41,
    TRIA_FORMAT_SAFETENSORS = 51
} tria_format;

/* "tria5", "triattention3", ...; NULL / -1 for unknown ones. */
TRIA_API const char *tria_format_name(int32_t format);
TRIA_API int32_t tria_format_from_name(const char *name);

/* Where the queries were taken. */
typedef enum tria_capture_point {
    TRIA_CAPTURE_UNKNOWN = 0,
    TRIA_CAPTURE_BEFORE_QK_NORM = 1,
    TRIA_CAPTURE_AFTER_QK_NORM = 2 /* as they enter RoPE; also models without QK-norm */
} tria_capture_point;

/* Reads a file's bytes. Errors: FORMAT (what was expected, at which offset), MEMORY. */
TRIA_API tria_status tria_calibration_read(const void *data, size_t size, const tria_env *env,
                                           tria_calibration **calibration, tria_error *error);
/* Reads a file; the message names it. Errors: also IO. */
TRIA_API tria_status tria_calibration_load(const char *path, const tria_env *env,
                                           tria_calibration **calibration, tria_error *error);
TRIA_API void tria_calibration_destroy(tria_calibration *calibration); /* NULL is allowed */

/* Writes into `data`; *size is set to the bytes needed. With data NULL or capacity too small nothing
 * else is written and the status is CAPACITY (OK when data is NULL). Errors: LOSSY (says what the
 * format cannot hold; allow_lossy writes it all the same), UNSUPPORTED. */
TRIA_API tria_status tria_calibration_write(const tria_calibration *calibration, int32_t format,
                                            int32_t allow_lossy, void *data, size_t capacity, size_t *size,
                                            tria_error *error);
/* Writes a file through a temporary one beside it, so that a failure leaves the old file alone. */
TRIA_API tria_status tria_calibration_save(const tria_calibration *calibration, int32_t format,
                                           int32_t allow_lossy, const char *path, tria_error *error);

/* Statistics of one head. Arrays of the caller on the way in; on the way out they live as long as the
 * calibration. */
typedef struct tria_head_stats {
    size_t struct_size;
    const float *q_mean_real;  /* [F] */
    const float *q_mean_imag;  /* [F] */
    const float *q_abs_mean;   /* [F] */
    const float *content_mean; /* [head_dim - rotary_dim], or NULL */
    const float *content_abs;  /* likewise, or NULL */
} tria_head_stats;

/* A calibration without any head, of the geometry of `model`, its name and fingerprint. */
TRIA_API tria_status tria_calibration_create(const tria_model *model, const tria_env *env,
                                             tria_calibration **calibration, tria_error *error);
/* What a reader of some other format knows; layers may leave n_kv_heads and rope_theta unknown: 0. */
typedef struct tria_calibration_params {
    size_t struct_size;
    const tria_layer_params *layers; /* [n_layers], consecutive structs of layers[0].struct_size bytes */
    int32_t n_layers;
    int32_t format;            /* tria_format it was read from */
    int32_t explicit_presence; /* this and the next four as in tria_calibration_info */
    int32_t explicit_geometry;
    int32_t explicit_style;
    int32_t capture_point;
    double rope_theta;
    const char *model_name; /* or NULL */
} tria_calibration_params;
TRIA_API void tria_calibration_params_init(tria_calibration_params *params);
/* A calibration without any head. Errors: FORMAT (names the layer and the field). */
TRIA_API tria_status tria_calibration_build(const tria_calibration_params *params, const tria_env *env,
                                            tria_calibration **calibration, tria_error *error);
/* Sets how many tokens a layer's statistics come from. */
TRIA_API tria_status tria_calibration_set_tokens(tria_calibration *calibration, int32_t layer,
                                                 uint64_t n_tokens, tria_error *error);
/* Sets (stats) or removes (NULL) one head. Errors: ARGUMENT (non-finite values are named). */
TRIA_API tria_status tria_calibration_set_head(tria_calibration *calibration, int32_t layer, int32_t q_head,
                                               const tria_head_stats *stats, tria_error *error);

typedef struct tria_calibration_info {
    size_t struct_size;
    int32_t format; /* tria_format it was read from, UNKNOWN when built */
    int32_t n_layers;
    int32_t n_heads;           /* (layer, query head) pairs the geometry has */
    int32_t n_calibrated;      /* of them with statistics */
    int32_t explicit_presence; /* 0: all-zero heads were taken as "not calibrated" */
    int32_t explicit_inv_freq; /* 0: frequencies follow from rope_theta */
    int32_t explicit_geometry; /* 0: KV heads and widths are the header's for all layers */
    int32_t explicit_style;    /* 0: the format does not say how dimensions pair; half is assumed */
    int32_t capture_point;     /* tria_capture_point */
    double rope_theta;         /* of the header, or of layer 0; 0 = unknown */
    float attn_scale;
    int32_t reserved;
    uint64_t n_tokens; /* calibration tokens, largest over layers; 0 = unknown */
    const char *model_name;
    const char *fingerprint;
    const char *provenance;
    const char *default_policy; /* "budget=...,interval=...", "" = none */
} tria_calibration_info;
TRIA_API tria_status tria_calibration_get_info(const tria_calibration *calibration,
                                               tria_calibration_info *info, tria_error *error);

typedef struct tria_calibration_layer_info {
    size_t struct_size;
    tria_layer_params geometry; /* as the file states it; 0 KV heads or rope_theta 0: it does not say.
                                   inv_freq and freq_scale_sq are NULL unless the file holds them, and
                                   live as long as the calibration */
    int32_t n_calibrated;
    float budget_scale; /* layer_budget_scales, 1 when the file has none */
    uint64_t n_tokens;
} tria_calibration_layer_info;
TRIA_API tria_status tria_calibration_layer(const tria_calibration *calibration, int32_t layer,
                                            tria_calibration_layer_info *info, tria_error *error);
/* *present = 0 and the stats' pointers NULL for a head that is not calibrated. */
TRIA_API tria_status tria_calibration_head(const tria_calibration *calibration, int32_t layer,
                                           int32_t q_head, tria_head_stats *stats, int32_t *present,
                                           tria_error *error);

/* The array [F] that dialects A and B keep beside a head's statistics and no score uses: |q_mean| /
 * q_abs_mean, or q_abs_mean - |q_mean| in another line of files; as read, else the former. NULL for a head
 * that is not calibrated. */
TRIA_API tria_status tria_calibration_mrl(const tria_calibration *calibration, int32_t layer,
                                          int32_t q_head, const float **mrl, tria_error *error);

/* |q_mean| / q_abs_mean of one head, mean over the frequencies where q_abs_mean > 0: near 1 when its
 * queries hardly vary, near 0 when they have no direction. 0 for a head that is not calibrated. */
TRIA_API tria_status tria_calibration_concentration(const tria_calibration *calibration, int32_t layer,
                                                    int32_t q_head, double *concentration,
                                                    tria_error *error);

/* Texts kept with the statistics; NULL leaves one as it is. default_policy: "budget=2048,interval=128". */
TRIA_API tria_status tria_calibration_set_texts(tria_calibration *calibration, const char *model_name,
                                                const char *fingerprint, const char *provenance,
                                                const char *default_policy, tria_error *error);

/* The geometry as the file states it. Errors: MISMATCH when the file does not say how many KV heads
 * there are or what the frequencies are. */
TRIA_API tria_status tria_model_from_calibration(const tria_calibration *calibration, const tria_env *env,
                                                 tria_model **model, tria_error *error);

/* A copy of `calibration` with the geometry, name and fingerprint of `model`, which must match (below):
 * what the file lacks or has wrong is taken from the model. */
TRIA_API tria_status tria_calibration_adopt(const tria_calibration *calibration, const tria_model *model,
                                            const tria_env *env, tria_calibration **adopted,
                                            tria_error *error);

/* The statistics of a text of which a share `weight` (0 to 1) is like that of `other` and the rest like
 * that of `base`, e.g. of the conversation at hand, gathered with an accumulator: episode-style scoring.
 * A head that only one of them has is taken from that one; everything else is base's. Errors: MISMATCH. */
TRIA_API tria_status tria_calibration_blend(const tria_calibration *base, const tria_calibration *other,
                                            double weight, const tria_env *env,
                                            tria_calibration **calibration, tria_error *error);

/* One thing found by tria_calibration_match() or tria_calibration_review(). */
typedef enum tria_finding_severity {
    TRIA_FINDING_NOTE = 0,    /* worth knowing */
    TRIA_FINDING_WARNING = 1, /* the model's value is used */
    TRIA_FINDING_FATAL = 2    /* the calibration cannot be used with this model */
} tria_finding_severity;

/* Called once per finding with a one-line text that holds both numbers. layer is -1 for all layers. */
typedef void (*tria_finding_fn)(void *context, tria_finding_severity severity, int32_t layer,
                                const char *text);
/*
 * Compares a calibration with the engine's description of the model. Fatal, status MISMATCH (the first is
 * in `error`): fewer layers than the model, or calibrated layers beyond it; calibrated heads in a layer
 * where the model has no attention; another number of query or KV heads; another number of frequencies;
 * calibrated content dimensions that the model does not have; another fingerprint. Warnings, the model's
 * value is used: head_dim (files of partial-RoPE models store the rotary width there), rotary_offset, rope
 * style, rope_theta or explicit frequencies, freq_scale_sq; layers of the model without any calibrated
 * head; a hybrid model, with the share of its layers that evict. Notes: another model name, calibrated
 * heads missing here and there. Layers that are not calibrated are not compared. `report` may be NULL.
 */
TRIA_API tria_status tria_calibration_match(const tria_calibration *calibration, const tria_model *model,
                                            tria_finding_fn report, void *context, tria_error *error);

/* Warnings about the statistics themselves: median concentration below 0.2, fewer than 4,096 tokens, norm
 * coefficients that are really negative, heads and layers that are not calibrated. Errors: ARGUMENT,
 * MEMORY. */
TRIA_API tria_status tria_calibration_review(const tria_calibration *calibration, tria_finding_fn report,
                                             void *context, tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

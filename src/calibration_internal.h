/* calibration_internal.h - the calibration handle. */
#ifndef TRIA_CALIBRATION_INTERNAL_H
#define TRIA_CALIBRATION_INTERNAL_H

#include "internal.h"
#include "tria/calibration.h"

/* One layer: geometry as the file states it and statistics [n_q_heads][F] (content [n_q_heads][nd]). */
typedef struct tria_calibration_layer_data {
    tria_layer_params geometry; /* inv_freq, freq_scale_sq point into arrays of this struct */
    int32_t n_freq;
    int32_t n_content; /* calibrated content dimensions: 0 or head_dim - rotary_dim */
    float budget_scale;
    uint64_t n_tokens;
    uint8_t *present; /* [n_q_heads] */
    float *q_mean_real;
    float *q_mean_imag;
    float *q_abs_mean;
    float *mrl; /* only to write back what was read; ignored otherwise (specification, section 7) */
    float *content_mean;
    float *content_abs;
    double *inv_freq;
    double *freq_scale_sq;
} tria_calibration_layer_data;

struct tria_calibration {
    tria_env env;
    int32_t format;
    int32_t n_layers;
    tria_calibration_layer_data *layers;
    int32_t explicit_presence;
    int32_t explicit_inv_freq;
    int32_t explicit_geometry;
    int32_t capture_point;
    double rope_theta;
    float attn_scale;
    char *model_name;
    char *fingerprint;
    char *provenance;
    char *default_policy;
};

/* An empty calibration: layers allocated by number, everything else by tria_calibration_alloc_layer. */
tria_calibration *tria_calibration_alloc(const tria_env *env, int32_t n_layers);
/* Allocates a layer's arrays for its geometry (resolved), n_freq and n_content; false: no memory. */
bool tria_calibration_alloc_layer(tria_calibration *calibration, int32_t layer,
                                  const tria_layer_params *geometry, int32_t n_content);

#endif

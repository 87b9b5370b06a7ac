/* model_internal.h - the model handle. */
#ifndef TRIA_MODEL_INTERNAL_H
#define TRIA_MODEL_INTERNAL_H

#include "internal.h"
#include "tria/model.h"

#include <math.h>

struct tria_model {
    tria_env env;
    char *name;
    char *fingerprint;
    int32_t n_layers;
    tria_layer_params *layers; /* resolved: rotary_dim, inv_freq and freq_scale_sq always set */
    double *frequencies;       /* one block behind all inv_freq and freq_scale_sq */
};

/* Checks one layer's numbers and fills in defaults; `layer` is for the message. */
tria_status tria_layer_resolve(tria_layer_params *layer, int32_t index, int32_t n_layers,
                               tria_error *error);
static inline double tria_plain_frequency(double theta, int32_t rotary_dim, int32_t f)
{
    return pow(theta, -2.0 * f / rotary_dim);
}
/* Those of all f < rotary_dim/2. */
void tria_inv_freq_from_theta(double theta, int32_t rotary_dim, double *inv_freq);

#endif

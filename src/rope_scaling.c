/*
 * rope_scaling.c - RoPE frequencies under the scalings in use, in double.
 *
 * Formulas: position interpolation (arXiv 2306.15595), dynamic NTK as in the transformers library, YaRN
 * (arXiv 2309.00071), the Llama 3.1 model code, LongRoPE (arXiv 2402.13753).
 */
#include "internal.h"
#include "model_internal.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

void tria_rope_scaling_init(tria_rope_scaling *scaling)
{
    memset(scaling, 0, sizeof(*scaling));
    scaling->struct_size = sizeof(*scaling);
    scaling->truncate = 1;
    scaling->factor = 1;
    scaling->beta_fast = 32;
    scaling->beta_slow = 1;
    scaling->low_freq_factor = 1;
    scaling->high_freq_factor = 4;
}

static bool positive(double value)
{
    return isfinite(value) && value > 0;
}

/* The dimension whose wave turns `turns` times within the original length. */
static double yarn_dimension(double turns, double theta, int32_t rotary_dim, double length)
{
    return rotary_dim * log(length / (turns * 2 * PI)) / (2 * log(theta));
}

/* The dimensions between which YaRN goes over from keeping a frequency to interpolating it. */
typedef struct yarn_ramp {
    double low;
    double high;
} yarn_ramp;

static yarn_ramp find_ramp(double theta, int32_t rotary_dim, const tria_rope_scaling *scaling)
{
    yarn_ramp ramp = {yarn_dimension(scaling->beta_fast, theta, rotary_dim, scaling->original_length),
                      yarn_dimension(scaling->beta_slow, theta, rotary_dim, scaling->original_length)};
    if (scaling->truncate) {
        ramp.low = floor(ramp.low);
        ramp.high = ceil(ramp.high);
    }
    ramp.low = fmax(ramp.low, 0);
    ramp.high = fmin(ramp.high, rotary_dim - 1);
    if (ramp.low == ramp.high) {
        ramp.high += 0.001; /* as published: no division by zero */
    }
    return ramp;
}

/* Waves that turn often keep their frequency, slow ones are interpolated, with a ramp in between. */
static double yarn_frequency(double plain, double factor, yarn_ramp ramp, int32_t f)
{
    const double share = fmin(fmax((f - ramp.low) / (ramp.high - ramp.low), 0), 1);
    return plain / factor * share + plain * (1 - share);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention(const tria_rope_scaling *scaling)
{
    if (scaling->attention_factor != 0) {
        return scaling->attention_factor;
    }
    if (scaling->mscale != 0 && scaling->mscale_all_dim != 0) {
        return yarn_mscale(scaling->factor, scaling->mscale) /
               yarn_mscale(scaling->factor, scaling->mscale_all_dim);
    }
    return yarn_mscale(scaling->factor, 1);
}

static double llama3_frequency(double plain, const tria_rope_scaling *scaling)
{
    const double length = scaling->original_length;
    const double low = scaling->low_freq_factor;
    const double high = scaling->high_freq_factor;
    const double wavelength = 2 * PI / plain;
    if (wavelength > length / low) {
        return plain / scaling->factor;
    }
    if (wavelength >= length / high) {
        const double smooth = (length / wavelength - low) / (high - low);
        return (1 - smooth) * plain / scaling->factor + smooth * plain;
    }
    return plain;
}

/* The base that dynamic scaling turns theta into. */
static double dynamic_theta(double theta, int32_t rotary_dim, const tria_rope_scaling *scaling)
{
    const double length = fmax(scaling->length, scaling->original_length);
    return theta * pow(scaling->factor * length / scaling->original_length - (scaling->factor - 1),
                       rotary_dim / (rotary_dim - 2.0));
}

static double longrope_attention(const tria_rope_scaling *scaling)
{
    if (scaling->attention_factor != 0) {
        return scaling->attention_factor;
    }
    return scaling->factor <= 1 ? 1 : sqrt(1 + log(scaling->factor) / log(scaling->original_length));
}

static tria_status check_factors(int32_t rotary_dim, const tria_rope_scaling *scaling, tria_error *error)
{
    const double *const factors[] = {scaling->short_factor, scaling->long_factor};
    if (factors[0] == NULL || factors[1] == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "longrope needs short_factor and long_factor");
    }
    for (int32_t i = 0; i < rotary_dim; i++) {
        const double factor = factors[i % 2][i / 2];
        if (!positive(factor)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "longrope factor %d is %g", i / 2, factor);
        }
    }
    return TRIA_OK;
}

static tria_status check_scaling(double theta, int32_t rotary_dim, const tria_rope_scaling *scaling,
                                 tria_error *error)
{
    const int32_t type = scaling->type;
    if (!(isfinite(theta) && theta >= 1) || rotary_dim < 2 || rotary_dim % 2 != 0 ||
        rotary_dim > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_ARGUMENT, "RoPE with theta %g over %d dimensions", theta,
                         rotary_dim);
    }
    if (type < TRIA_ROPE_SCALING_NONE || type > TRIA_ROPE_SCALING_LONGROPE) {
        return tria_fail(error, TRIA_E_ARGUMENT, "unknown rope scaling type %d", type);
    }
    if (type != TRIA_ROPE_SCALING_NONE && !positive(scaling->factor)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "rope scaling factor is %g", scaling->factor);
    }
    if (type > TRIA_ROPE_SCALING_LINEAR &&
        !(scaling->original_length >= 1 && isfinite(scaling->original_length))) {
        return tria_fail(error, TRIA_E_ARGUMENT, "rope scaling needs the original context length, got %g",
                         scaling->original_length);
    }
    if (!(scaling->length >= 0 && isfinite(scaling->length))) {
        return tria_fail(error, TRIA_E_ARGUMENT, "rope scaling for a context of %g tokens",
                         scaling->length);
    }
    if (type == TRIA_ROPE_SCALING_DYNAMIC && rotary_dim < 4) {
        return tria_fail(error, TRIA_E_ARGUMENT, "dynamic rope scaling over %d dimensions", rotary_dim);
    }
    if (type == TRIA_ROPE_SCALING_YARN &&
        (theta == 1 || !positive(scaling->beta_fast) || !positive(scaling->beta_slow))) {
        return tria_fail(error, TRIA_E_ARGUMENT, "yarn with theta %g, beta_fast %g, beta_slow %g", theta,
                         scaling->beta_fast, scaling->beta_slow);
    }
    if (type == TRIA_ROPE_SCALING_LLAMA3 &&
        !(positive(scaling->low_freq_factor) && isfinite(scaling->high_freq_factor) &&
          scaling->high_freq_factor > scaling->low_freq_factor)) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "llama3 scaling with low_freq_factor %g, high_freq_factor %g",
                         scaling->low_freq_factor, scaling->high_freq_factor);
    }
    return type == TRIA_ROPE_SCALING_LONGROPE ? check_factors(rotary_dim, scaling, error) : TRIA_OK;
}

/* Applies the scaling to frequency f, which is `plain` without it. */
static double scale_frequency(double plain, const tria_rope_scaling *scaling, yarn_ramp ramp, int32_t f)
{
    switch (scaling->type) {
    case TRIA_ROPE_SCALING_LINEAR:
        return plain / scaling->factor;
    case TRIA_ROPE_SCALING_YARN:
        return yarn_frequency(plain, scaling->factor, ramp, f);
    case TRIA_ROPE_SCALING_LLAMA3:
        return llama3_frequency(plain, scaling);
    case TRIA_ROPE_SCALING_LONGROPE:
        return plain / (scaling->length > scaling->original_length ? scaling->long_factor
                                                                   : scaling->short_factor)[f];
    default:
        return plain; /* dynamic: theta holds the scaling */
    }
}

tria_status tria_rope_frequencies(double theta, int32_t rotary_dim, const tria_rope_scaling *caller,
                                  double *inv_freq, double *attention_factor, tria_error *error)
{
    tria_rope_scaling scaling;
    yarn_ramp ramp = {0, 1};
    double attention = 1;
    tria_rope_scaling_init(&scaling);
    if (caller != NULL) {
        TRIA_TRY(tria_struct_import(&scaling, sizeof(scaling), sizeof(scaling), caller, "tria_rope_scaling",
                                    error));
    }
    TRIA_TRY(check_scaling(theta, rotary_dim, &scaling, error));
    if (scaling.type == TRIA_ROPE_SCALING_YARN) {
        ramp = find_ramp(theta, rotary_dim, &scaling);
        attention = yarn_attention(&scaling);
    } else if (scaling.type == TRIA_ROPE_SCALING_LONGROPE) {
        attention = longrope_attention(&scaling);
    } else if (scaling.type == TRIA_ROPE_SCALING_DYNAMIC) {
        theta = dynamic_theta(theta, rotary_dim, &scaling);
    }
    /* All are looked at before the first is written. */
    for (int32_t f = 0; f < rotary_dim / 2; f++) {
        const double value = scale_frequency(tria_plain_frequency(theta, rotary_dim, f), &scaling, ramp, f);
        if (!(isfinite(value) && value >= 0)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "the rope scaling gives frequency %d the value %g", f,
                             value);
        }
    }
    for (int32_t f = 0; f < rotary_dim / 2; f++) {
        inv_freq[f] = scale_frequency(tria_plain_frequency(theta, rotary_dim, f), &scaling, ramp, f);
    }
    if (attention_factor != NULL) {
        *attention_factor = attention;
    }
    return TRIA_OK;
}

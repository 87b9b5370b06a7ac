/*
 * calibration_dialect_c.c - reads `.triattn.bin` version 1 (layout: specification, section 7).
 *
 * The file holds head_dim / 2 bands per head although only a part of them may be rotated; the others are
 * kept as frequencies of 0, which is how its scorer treats them.
 */
#include "calibration_internal.h"

#include <math.h>

enum { HEADER_SIZE = 28 };

typedef struct dialect_c {
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t head_dim;
    float theta;
    float rotary_factor;
} dialect_c;

static tria_status check_header(const dialect_c *file, uint32_t version, tria_error *error)
{
    if (version != 1) {
        return tria_fail(error, TRIA_E_FORMAT, "version at offset 4 is %u, expected 1", version);
    }
    if (file->n_layers < 1 || file->n_layers > TRIA_MAX_LAYERS || file->n_heads < 1 ||
        file->n_heads > TRIA_MAX_HEADS) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "n_layers at offset 8 is %u and n_heads at 12 is %u, allowed 1 to %d",
                         file->n_layers, file->n_heads, TRIA_MAX_LAYERS);
    }
    if (file->head_dim < 2 || file->head_dim > TRIA_MAX_HEAD_DIM || file->head_dim % 2 != 0) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "head_dim at offset 16 is %u, expected an even number from 2 to %d",
                         file->head_dim, TRIA_MAX_HEAD_DIM);
    }
    if (!(isfinite(file->theta) && file->theta > 0)) {
        return tria_fail(error, TRIA_E_FORMAT, "theta at offset 20 is %g", (double)file->theta);
    }
    if (!(file->rotary_factor > 0 && file->rotary_factor <= 1)) {
        return tria_fail(error, TRIA_E_FORMAT, "partial_rotary_factor at offset 24 is %g, allowed 0 to 1",
                         (double)file->rotary_factor);
    }
    return TRIA_OK;
}

static tria_status read_geometry(const dialect_c *file, tria_calibration *calibration, tria_error *error)
{
    const int32_t n_bands = (int32_t)file->head_dim / 2;
    const int32_t n_rotary = (int32_t)lround((double)file->rotary_factor * n_bands);
    tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
    double *inv_freq = NULL;
    tria_status status = TRIA_OK;
    if (n_rotary < n_bands) {
        inv_freq = tria_alloc(&calibration->env, (size_t)n_bands, sizeof(double));
        if (inv_freq == NULL) {
            return tria_fail_memory(error, (size_t)n_bands * sizeof(double), "frequencies");
        }
        for (int32_t f = 0; f < n_rotary; f++) {
            inv_freq[f] = pow((double)file->theta, -(double)f / n_rotary);
        }
    }
    geometry.n_q_heads = (int32_t)file->n_heads;
    geometry.n_kv_heads = 0; /* the file does not say */
    geometry.head_dim = (int32_t)file->head_dim;
    geometry.rope_style = TRIA_ROPE_INTERLEAVED;
    geometry.rope_theta = (double)file->theta;
    geometry.inv_freq = inv_freq;
    for (int32_t l = 0; l < (int32_t)file->n_layers && status == TRIA_OK; l++) {
        status = tria_calibration_set_geometry(calibration, l, &geometry, TRIA_E_FORMAT, error);
    }
    tria_free(&calibration->env, inv_freq);
    return status;
}

/* Bands of (re, im, abs); an all-zero head is not calibrated. */
static tria_status read_head(const unsigned char *data, int32_t n_bands, tria_calibration *calibration,
                             int32_t layer, int32_t q_head, tria_error *error)
{
    tria_calibration_layer_data *target = &calibration->layers[layer];
    tria_calibration_head_data *head;
    bool zero = true;
    for (int32_t i = 0; i < 3 * n_bands && zero; i++) {
        zero = (tria_load_u32(data + 4 * (size_t)i) & 0x7fffffffU) == 0;
    }
    if (zero) {
        return TRIA_OK;
    }
    TRIA_TRY(tria_calibration_add_head(calibration, layer, q_head, 0, &head, error));
    for (int32_t f = 0; f < n_bands; f++) {
        const unsigned char *band = data + 12 * (size_t)f;
        tria_head_array(target, head, TRIA_HEAD_REAL)[f] = tria_load_f32(band);
        tria_head_array(target, head, TRIA_HEAD_IMAG)[f] = tria_load_f32(band + 4);
        tria_head_array(target, head, TRIA_HEAD_ABS)[f] = tria_load_f32(band + 8);
    }
    tria_calibration_fill_concentration(target, head);
    return tria_calibration_check_head(calibration, layer, head, TRIA_E_FORMAT, error);
}

tria_status tria_read_dialect_c(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **out, tria_error *error)
{
    dialect_c file;
    uint64_t expected;
    tria_calibration *calibration = NULL;
    tria_status status;
    if (size < HEADER_SIZE) {
        return tria_fail(error, TRIA_E_FORMAT, "%zu bytes are too few for the 28-byte header", size);
    }
    file.n_layers = tria_load_u32(data + 8);
    file.n_heads = tria_load_u32(data + 12);
    file.head_dim = tria_load_u32(data + 16);
    file.theta = tria_load_f32(data + 20);
    file.rotary_factor = tria_load_f32(data + 24);
    TRIA_TRY(check_header(&file, tria_load_u32(data + 4), error));
    expected = HEADER_SIZE + 6 * (uint64_t)file.n_layers * file.n_heads * file.head_dim;
    if (size != expected) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "%u layers of %u heads of %u dimensions take %llu bytes, the file has %zu",
                         file.n_layers, file.n_heads, file.head_dim, (unsigned long long)expected, size);
    }
    TRIA_TRY(tria_calibration_alloc(env, (int32_t)file.n_layers, &calibration, error));
    calibration->format = TRIA_FORMAT_TRIATTN;
    calibration->explicit_geometry = 1;
    calibration->explicit_style = 1;
    calibration->rope_theta = (double)file.theta;
    TRIA_TRY_GOTO(read_geometry(&file, calibration, error), fail);
    data += HEADER_SIZE;
    for (int32_t l = 0; l < (int32_t)file.n_layers; l++) {
        for (int32_t h = 0; h < (int32_t)file.n_heads; h++, data += 6 * (size_t)file.head_dim) {
            TRIA_TRY_GOTO(read_head(data, (int32_t)file.head_dim / 2, calibration, l, h, error), fail);
        }
    }
    *out = calibration;
    return TRIA_OK;
fail:
    tria_calibration_destroy(calibration);
    return status;
}

/*
 * calibration_dialect_a.c - reads `.tria` versions 1 to 4 (layout: specification, section 7).
 *
 * The header's head_dim is either the width of a head or, in files of partial-RoPE models, its rotary
 * width; the frequencies always come from 2 * freq_count. All-zero heads stand for "not calibrated".
 */
#include "calibration_internal.h"

#include <math.h>
#include <string.h>

enum { HEADER_SIZE = 64, RESERVED_AT = 40 };

typedef struct dialect_a {
    uint32_t version;
    uint32_t n_layers;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_freq;
    uint32_t n_content; /* nonrot_dim */
    float rope_theta;
    float attn_scale;
    const unsigned char *scales;    /* f32[n_layers] or NULL */
    const unsigned char *head_dims; /* u32[n_layers] or NULL */
} dialect_a;

static void parse_header(const unsigned char *data, dialect_a *file)
{
    file->version = tria_load_u32(data + 4);
    file->n_layers = tria_load_u32(data + 8);
    file->n_q_heads = tria_load_u32(data + 12);
    file->n_kv_heads = tria_load_u32(data + 16);
    file->head_dim = tria_load_u32(data + 20);
    file->n_freq = tria_load_u32(data + 24);
    file->rope_theta = tria_load_f32(data + 28);
    file->attn_scale = tria_load_f32(data + 32);
    file->n_content = file->version >= 3 ? tria_load_u32(data + 36) : 0;
    file->scales = file->version >= 2 ? data + HEADER_SIZE : NULL;
    file->head_dims = file->version >= 4 ? data + HEADER_SIZE + 4 * (size_t)file->n_layers : NULL;
}

static tria_status check_header(const unsigned char *data, const dialect_a *file, tria_error *error)
{
    const size_t reserved_from = file->version >= 3 ? RESERVED_AT : RESERVED_AT - 4;
    if (file->n_layers < 1 || file->n_layers > TRIA_MAX_LAYERS) {
        return tria_fail(error, TRIA_E_FORMAT, "n_layers at offset 8 is %u, allowed 1 to %d",
                         file->n_layers, TRIA_MAX_LAYERS);
    }
    if (file->n_q_heads < 1 || file->n_q_heads > TRIA_MAX_HEADS || file->n_kv_heads < 1 ||
        file->n_kv_heads > file->n_q_heads || file->n_q_heads % file->n_kv_heads != 0) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "n_q_heads at offset 12 is %u and n_kv_heads at 16 is %u: not 1 to %d heads in "
                         "equal groups",
                         file->n_q_heads, file->n_kv_heads, TRIA_MAX_HEADS);
    }
    /* The layers of version 4 have widths of their own: its two numbers need not be of the same one. */
    const uint32_t widest = file->version >= 4 ? TRIA_MAX_HEAD_DIM : file->head_dim;
    if (file->head_dim < 2 || file->head_dim > TRIA_MAX_HEAD_DIM || file->n_freq < 1 ||
        file->n_freq > widest / 2) {
        return tria_fail(
            error, TRIA_E_FORMAT,
            "head_dim at offset 20 is %u and freq_count at 24 is %u: expected head_dim 2 to %d "
            "and freq_count 1 to %u",
            file->head_dim, file->n_freq, TRIA_MAX_HEAD_DIM, widest / 2);
    }
    if (!(isfinite(file->rope_theta) && file->rope_theta > 0)) {
        return tria_fail(error, TRIA_E_FORMAT, "rope_theta at offset 28 is %g", (double)file->rope_theta);
    }
    if (file->n_content > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_FORMAT, "nonrot_dim at offset 36 is %u, allowed 0 to %d",
                         file->n_content, TRIA_MAX_HEAD_DIM);
    }
    for (size_t i = reserved_from; i < HEADER_SIZE; i++) {
        if (data[i] != 0) {
            return tria_fail(error, TRIA_E_FORMAT, "reserved byte at offset %zu is %u, expected 0", i,
                             data[i]);
        }
    }
    return TRIA_OK;
}

/* F of one layer; 0 when the file's number is impossible. */
static uint32_t layer_freq(const dialect_a *file, uint32_t layer)
{
    uint32_t dim;
    if (file->head_dims == NULL) {
        return file->n_freq;
    }
    dim = tria_load_u32(file->head_dims + 4 * (size_t)layer);
    return dim % 2 == 0 && dim <= TRIA_MAX_HEAD_DIM ? dim / 2 : 0;
}

/* The limits above keep every product far below 2^64: 4096 * 4096 * 24 * 8192 < 2^45. */
static tria_status check_size(const dialect_a *file, size_t size, tria_error *error)
{
    const uint64_t fixed = HEADER_SIZE + (file->version >= 2 ? 4 * (uint64_t)file->n_layers : 0) +
                           (file->version >= 4 ? 4 * (uint64_t)file->n_layers : 0);
    uint64_t expected = fixed;
    if (size < fixed) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "version %u with %u layers needs %llu bytes before its heads, the file has %zu",
                         file->version, file->n_layers, (unsigned long long)fixed, size);
    }
    for (uint32_t l = 0; l < file->n_layers; l++) {
        const uint32_t n_freq = layer_freq(file, l);
        if (n_freq == 0) {
            return tria_fail(error, TRIA_E_FORMAT,
                             "layer_head_dim[%u] is %u, expected an even number from 2 to %d", l,
                             tria_load_u32(file->head_dims + 4 * (size_t)l), TRIA_MAX_HEAD_DIM);
        }
        expected += file->n_q_heads * (16 * (uint64_t)n_freq + 8 * (uint64_t)file->n_content);
    }
    if (size != expected) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "version %u with %u layers, %u heads, %u frequencies and %u content dimensions is "
                         "%llu bytes long, the file has %zu",
                         file->version, file->n_layers, file->n_q_heads, file->n_freq, file->n_content,
                         (unsigned long long)expected, size);
    }
    return TRIA_OK;
}

/* The width of a layer's heads: see the head of this file for what the header's number may mean. */
static tria_status layer_width(const dialect_a *file, uint32_t layer, int32_t *head_dim, tria_error *error)
{
    const uint32_t rotary = 2 * layer_freq(file, layer);
    const uint32_t full = rotary + file->n_content;
    if (file->version < 4 && file->n_content > 0 && file->head_dim != rotary && file->head_dim != full) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "head_dim %u is neither the rotary width %u nor that and nonrot_dim %u",
                         file->head_dim, rotary, file->n_content);
    }
    if (full > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_FORMAT, "a head of %u rotary and %u content dimensions exceeds %d",
                         rotary, file->n_content, TRIA_MAX_HEAD_DIM);
    }
    *head_dim = (int32_t)(file->version < 4 && file->n_content == 0 ? file->head_dim : full);
    return TRIA_OK;
}

static tria_status read_geometry(const dialect_a *file, tria_calibration *calibration, tria_error *error)
{
    for (uint32_t l = 0; l < file->n_layers; l++) {
        tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
        geometry.n_q_heads = (int32_t)file->n_q_heads;
        geometry.n_kv_heads = (int32_t)file->n_kv_heads;
        geometry.rotary_dim = (int32_t)(2 * layer_freq(file, l));
        geometry.rope_theta = (double)file->rope_theta;
        TRIA_TRY(layer_width(file, l, &geometry.head_dim, error));
        TRIA_TRY(tria_calibration_set_geometry(calibration, (int32_t)l, &geometry, TRIA_E_FORMAT, error));
    }
    return TRIA_OK;
}

/* Budget scales; one impossible value makes all of them 1. */
static void read_scales(const dialect_a *file, tria_calibration *calibration)
{
    for (uint32_t l = 0; file->scales != NULL && l < file->n_layers; l++) {
        const float scale = tria_load_f32(file->scales + 4 * (size_t)l);
        if (!(isfinite(scale) && scale > 0 && scale <= 16)) {
            return;
        }
    }
    for (uint32_t l = 0; file->scales != NULL && l < file->n_layers; l++) {
        calibration->layers[l].budget_scale = tria_load_f32(file->scales + 4 * (size_t)l);
    }
}

static bool all_zero(const unsigned char *data, size_t n_floats)
{
    for (size_t i = 0; i < n_floats; i++) {
        if ((tria_load_u32(data + 4 * i) & 0x7fffffffU) != 0) {
            return false;
        }
    }
    return true;
}

static tria_status read_heads(const dialect_a *file, const unsigned char *data,
                              tria_calibration *calibration, tria_error *error)
{
    const unsigned char *next = data + HEADER_SIZE;
    next += (file->version >= 2 ? 4 * (size_t)file->n_layers : 0);
    next += (file->version >= 4 ? 4 * (size_t)file->n_layers : 0);
    for (int32_t l = 0; l < (int32_t)file->n_layers; l++) {
        const size_t n_freq = (size_t)calibration->layers[l].n_freq;
        const size_t n_floats = 4 * n_freq + 2 * (size_t)file->n_content;
        for (int32_t h = 0; h < (int32_t)file->n_q_heads; h++, next += 4 * n_floats) {
            tria_calibration_head_data *head;
            if (all_zero(next, 3 * n_freq) && all_zero(next + 16 * n_freq, 2 * (size_t)file->n_content)) {
                continue;
            }
            TRIA_TRY(tria_calibration_add_head(calibration, l, h, (int32_t)file->n_content, &head, error));
            tria_load_f32s(next, n_floats, head->values);
            TRIA_TRY(tria_calibration_check_head(calibration, l, head, TRIA_E_FORMAT, error));
        }
    }
    return TRIA_OK;
}

bool tria_dialect_a_plausible(const unsigned char *data, size_t size)
{
    dialect_a file;
    if (size < HEADER_SIZE) {
        return false;
    }
    parse_header(data, &file);
    return check_header(data, &file, NULL) == TRIA_OK;
}

tria_status tria_read_dialect_a(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **out, tria_error *error)
{
    dialect_a file;
    tria_calibration *calibration = NULL;
    tria_status status;
    if (size < HEADER_SIZE) {
        return tria_fail(error, TRIA_E_FORMAT, "%zu bytes are too few for the 64-byte header", size);
    }
    parse_header(data, &file);
    TRIA_TRY(check_header(data, &file, error));
    TRIA_TRY(check_size(&file, size, error));
    TRIA_TRY(tria_calibration_alloc(env, (int32_t)file.n_layers, &calibration, error));
    calibration->format = TRIA_FORMAT_TRIA1 + (int32_t)file.version - 1;
    calibration->explicit_geometry = file.version >= 4;
    calibration->rope_theta = (double)file.rope_theta;
    calibration->attn_scale = file.attn_scale;
    TRIA_TRY_GOTO(read_geometry(&file, calibration, error), fail);
    read_scales(&file, calibration);
    TRIA_TRY_GOTO(read_heads(&file, data, calibration, error), fail);
    *out = calibration;
    return TRIA_OK;
fail:
    tria_calibration_destroy(calibration);
    return status;
}

/*
 * calibration_dialect_b.c - reads `.triattention` versions 1 to 3 (layout: specification, section 7).
 *
 * A second line of the format has a version 2 without frequency arrays, with a u32 rotary_dim between
 * freq_count and name_len (whose name need not end in a zero byte). Which of the two a file is follows
 * from its exact size. A kv_source_layer that is the layer itself means a cache of its own.
 */
#include "calibration_internal.h"

#include <math.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 256, NAME_AT = 44, NAME_AT_SECOND_LINE = 48, LAYER_RECORD = 68 };

typedef struct dialect_b {
    uint32_t version;
    uint32_t head_dim;
    uint32_t n_layers;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    double rope_theta;
    uint32_t rope_style;
    uint32_t n_sampled;
    uint32_t n_freq;
    uint32_t rotary_dim; /* of the second line's version 2; else 2 * n_freq */
    const char *name;
    uint32_t name_length;
    size_t body; /* offset of what follows the name */
} dialect_b;

static tria_status check_header(const dialect_b *file, tria_error *error)
{
    if (file->n_layers < 1 || file->n_layers > TRIA_MAX_LAYERS || file->n_q_heads < 1 ||
        file->n_q_heads > TRIA_MAX_HEADS || file->n_kv_heads < 1 || file->n_kv_heads > file->n_q_heads) {
        return tria_fail(
            error, TRIA_E_FORMAT,
            "n_layers at offset 12 is %u, n_q_heads at 16 is %u, n_kv_heads at 20 is %u: out of "
            "range",
            file->n_layers, file->n_q_heads, file->n_kv_heads);
    }
    if (file->head_dim < 2 || file->head_dim > TRIA_MAX_HEAD_DIM || file->n_freq < 1 ||
        file->n_freq > file->head_dim / 2) {
        return tria_fail(
            error, TRIA_E_FORMAT,
            "head_dim at offset 8 is %u and freq_count at 40 is %u: expected head_dim 2 to %d and "
            "freq_count 1 to half of it",
            file->head_dim, file->n_freq, TRIA_MAX_HEAD_DIM);
    }
    if (!(isfinite(file->rope_theta) && file->rope_theta > 0) || file->rope_style > 1) {
        return tria_fail(error, TRIA_E_FORMAT, "rope_theta at offset 24 is %g, rope_style at 32 is %u",
                         file->rope_theta, file->rope_style);
    }
    return TRIA_OK;
}

/* The header's fixed part and the name; `name_at` is the offset of name_len. */
static tria_status parse_header(const unsigned char *data, size_t size, size_t name_at, dialect_b *file,
                                tria_error *error)
{
    if (size < name_at + 4) {
        return tria_fail(error, TRIA_E_FORMAT, "%zu bytes are too few for the %zu-byte header", size,
                         name_at + 4);
    }
    file->version = tria_load_u32(data + 4);
    file->head_dim = tria_load_u32(data + 8);
    file->n_layers = tria_load_u32(data + 12);
    file->n_q_heads = tria_load_u32(data + 16);
    file->n_kv_heads = tria_load_u32(data + 20);
    file->rope_theta = tria_load_f64(data + 24);
    file->rope_style = tria_load_u32(data + 32);
    file->n_sampled = tria_load_u32(data + 36);
    file->n_freq = tria_load_u32(data + 40);
    file->rotary_dim = name_at == NAME_AT_SECOND_LINE ? tria_load_u32(data + 44) : 2 * file->n_freq;
    file->name_length = tria_load_u32(data + name_at);
    file->name = (const char *)data + name_at + 4;
    file->body = name_at + 4 + (size_t)file->name_length;
    TRIA_TRY(check_header(file, error));
    if (file->name_length < 1 || file->name_length > NAME_MAX_LENGTH || file->body > size ||
        (name_at == NAME_AT && file->name[file->name_length - 1] != '\0')) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "name_len at offset %zu is %u: expected 1 to %d bytes that end in a zero byte",
                         name_at, file->name_length, NAME_MAX_LENGTH);
    }
    return TRIA_OK;
}

/* The exact size of versions 1 and 2; n_sampled < 2^32 and n_freq <= 4096, so nothing overflows. */
static uint64_t flat_size(const dialect_b *file, bool with_arrays)
{
    return file->body + (with_arrays ? 8 * (uint64_t)file->n_freq : 0) +
           (uint64_t)file->n_sampled * (8 + 16 * (uint64_t)file->n_freq);
}

/* Both lines' version 2, by size. */
static tria_status parse_version_2(const unsigned char *data, size_t size, dialect_b *file,
                                   tria_error *error)
{
    dialect_b other;
    const tria_status status = parse_header(data, size, NAME_AT, file, error);
    if (status == TRIA_OK && flat_size(file, true) == size) {
        return TRIA_OK;
    }
    if (parse_header(data, size, NAME_AT_SECOND_LINE, &other, NULL) == TRIA_OK &&
        flat_size(&other, false) == size && other.rotary_dim == 2 * other.n_freq) {
        *file = other;
        return TRIA_OK;
    }
    if (status != TRIA_OK) {
        return status;
    }
    return tria_fail(
        error, TRIA_E_FORMAT,
        "version 2 with %u heads of %u frequencies is %llu bytes long (with rotary_dim in place of "
        "the frequencies 4 more than without them), the file has %zu",
        file->n_sampled, file->n_freq, (unsigned long long)flat_size(file, true), size);
}

/* Copies `count` little-endian f32 into doubles. */
static void load_doubles(const unsigned char *p, int32_t count, double *out)
{
    for (int32_t i = 0; i < count; i++) {
        out[i] = (double)tria_load_f32(p + 4 * (size_t)i);
    }
}

/* Sets a layer's geometry with the file's two arrays at `arrays`, or without. */
static tria_status set_layer(tria_calibration *calibration, int32_t layer, tria_layer_params *geometry,
                             const unsigned char *arrays, tria_error *error)
{
    const int32_t n_freq = geometry->rotary_dim / 2;
    double *both;
    tria_status status;
    if (arrays == NULL) {
        return tria_calibration_set_geometry(calibration, layer, geometry, TRIA_E_FORMAT, error);
    }
    both = tria_alloc(&calibration->env, 2 * (size_t)n_freq, sizeof(double));
    if (both == NULL) {
        return tria_fail_memory(error, 2 * (size_t)n_freq * sizeof(double), "frequencies");
    }
    load_doubles(arrays, 2 * n_freq, both);
    geometry->inv_freq = both;
    geometry->freq_scale_sq = both + n_freq;
    status = tria_calibration_set_geometry(calibration, layer, geometry, TRIA_E_FORMAT, error);
    tria_free(&calibration->env, both);
    return status;
}

static tria_status read_flat_geometry(const dialect_b *file, const unsigned char *arrays,
                                      tria_calibration *calibration, tria_error *error)
{
    for (int32_t l = 0; l < (int32_t)file->n_layers; l++) {
        tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
        geometry.n_q_heads = (int32_t)file->n_q_heads;
        geometry.n_kv_heads = (int32_t)file->n_kv_heads;
        geometry.head_dim = (int32_t)file->head_dim;
        geometry.rotary_dim = (int32_t)file->rotary_dim;
        geometry.rope_style = (int32_t)file->rope_style;
        geometry.rope_theta = file->rope_theta;
        TRIA_TRY(set_layer(calibration, l, &geometry, arrays, error));
    }
    return TRIA_OK;
}

/* The frequencies that llama.cpp derives from a record's YaRN numbers, where they are not the plain ones.
 */
static tria_status scaled_frequencies(const unsigned char *record, const tria_layer_params *geometry,
                                      double *inv_freq, tria_error *error)
{
    const double stated = (double)tria_load_f32(record + 40);
    const double freq_scale = stated > 0 ? stated : 1; /* as its own reader takes it */
    const double ext_factor = (double)tria_load_f32(record + 44);
    const int32_t n_freq = geometry->rotary_dim / 2;
    tria_rope_scaling scaling;
    tria_rope_scaling_init(&scaling);
    scaling.type = TRIA_ROPE_SCALING_YARN;
    scaling.factor = 1 / freq_scale;
    scaling.original_length = tria_load_u32(record + 28);
    scaling.beta_fast = (double)tria_load_f32(record + 52);
    scaling.beta_slow = (double)tria_load_f32(record + 56);
    if (ext_factor == 0) {
        scaling.type = TRIA_ROPE_SCALING_LINEAR;
    }
    TRIA_TRY(
        tria_rope_frequencies(geometry->rope_theta, geometry->rotary_dim, &scaling, inv_freq, NULL, error));
    for (int32_t f = 0; f < n_freq; f++) {
        const double linear = pow(geometry->rope_theta, -(double)f / n_freq) * freq_scale;
        inv_freq[f] = ext_factor != 0 ? linear + ext_factor * (inv_freq[f] - linear) : inv_freq[f];
        if (!(isfinite(inv_freq[f]) && inv_freq[f] >= 0)) {
            return tria_fail(error, TRIA_E_FORMAT,
                             "freq_scale %g and ext_factor %g give frequency %d the value %g", freq_scale,
                             ext_factor, f, inv_freq[f]);
        }
    }
    return TRIA_OK;
}

/* Reads one layer record; *used is its length, arrays included. */
static tria_status read_layer(const unsigned char *record, size_t left, int32_t layer, size_t *used,
                              tria_calibration *calibration, tria_error *error)
{
    tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
    uint32_t fields[8];
    uint32_t n_freq;
    bool arrays;
    if (left < LAYER_RECORD) {
        return tria_fail(error, TRIA_E_FORMAT, "layer %d: %zu bytes are left for a record of %d", layer,
                         left, LAYER_RECORD);
    }
    for (int32_t i = 0; i < 8; i++) {
        fields[i] = tria_load_u32(record + 4 * (size_t)i);
    }
    n_freq = tria_load_u32(record + 60);
    arrays = tria_load_u32(record + 64) != 0;
    if (fields[0] > TRIA_MAX_HEAD_DIM || fields[1] > TRIA_MAX_HEAD_DIM || fields[2] > TRIA_MAX_HEAD_DIM ||
        fields[3] > TRIA_MAX_HEADS || fields[4] > TRIA_MAX_HEADS || fields[6] > 1 ||
        (fields[5] >= (uint32_t)calibration->n_layers && fields[5] != UINT32_MAX)) {
        return tria_fail(
            error, TRIA_E_FORMAT,
            "layer %d: head_dim %u, rope_dim %u, rope_offset %u, %u query and %u KV heads, kv_source "
            "%u, rope_style %u: out of range",
            layer, fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]);
    }
    if (n_freq != fields[1] / 2 || fields[1] % 2 != 0) {
        return tria_fail(error, TRIA_E_FORMAT, "layer %d: freq_count %u is not half of rope_dim %u", layer,
                         n_freq, fields[1]);
    }
    *used = LAYER_RECORD + (arrays ? 8 * (size_t)n_freq : 0);
    if (*used > left) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "layer %d: %zu bytes are left for %u frequencies and weights", layer,
                         left - LAYER_RECORD, n_freq);
    }
    if (fields[3] == 0 || n_freq == 0) {
        return TRIA_OK; /* no attention, or none with RoPE */
    }
    geometry.head_dim = (int32_t)fields[0];
    geometry.rotary_dim = (int32_t)fields[1];
    geometry.rotary_offset = (int32_t)fields[2];
    geometry.n_q_heads = (int32_t)fields[3];
    geometry.n_kv_heads = (int32_t)fields[4];
    geometry.rope_style = (int32_t)fields[6];
    geometry.rope_theta = tria_load_f64(record + 32);
    if (fields[5] != UINT32_MAX && fields[5] != (uint32_t)layer) {
        geometry.kv_source = (int32_t)fields[5];
    }
    return set_layer(calibration, layer, &geometry, arrays ? record + LAYER_RECORD : NULL, error);
}

/* The per-layer table of version 3; *offset moves behind it. */
static tria_status read_layers(const unsigned char *data, size_t size, size_t *offset,
                               tria_calibration *calibration, tria_error *error)
{
    if (size - *offset < 4 || tria_load_u32(data + *offset) != (uint32_t)calibration->n_layers) {
        return tria_fail(error, TRIA_E_FORMAT, "layer_count at offset %zu is not the header's %d", *offset,
                         calibration->n_layers);
    }
    *offset += 4;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        size_t used = 0;
        TRIA_TRY(read_layer(data + *offset, size - *offset, l, &used, calibration, error));
        *offset += used;
    }
    return TRIA_OK;
}

/* The sampled heads, in any order, up to the file's exact end. */
static tria_status read_heads(const unsigned char *data, size_t size, size_t offset, uint32_t n_sampled,
                              tria_calibration *calibration, tria_error *error)
{
    for (uint32_t i = 0; i < n_sampled; i++) {
        tria_calibration_head_data *head;
        uint32_t layer;
        uint32_t q_head;
        size_t n_floats;
        if (size - offset < 8) {
            return tria_fail(error, TRIA_E_FORMAT,
                             "the file ends at offset %zu, within sampled head %u of %u", size, i,
                             n_sampled);
        }
        layer = tria_load_u32(data + offset);
        q_head = tria_load_u32(data + offset + 4);
        if (layer >= (uint32_t)calibration->n_layers ||
            q_head >= (uint32_t)calibration->layers[layer].geometry.n_q_heads) {
            return tria_fail(error, TRIA_E_FORMAT,
                             "sampled head %u at offset %zu is layer %u head %u, which there is not", i,
                             offset, layer, q_head);
        }
        n_floats = 4 * (size_t)calibration->layers[layer].n_freq;
        offset += 8;
        if ((size - offset) / 4 < n_floats) {
            return tria_fail(error, TRIA_E_FORMAT,
                             "the file ends at offset %zu, within sampled head %u of %u", size, i,
                             n_sampled);
        }
        TRIA_TRY(tria_calibration_add_head(calibration, (int32_t)layer, (int32_t)q_head, 0, &head, error));
        tria_load_f32s(data + offset, n_floats, head->values);
        TRIA_TRY(tria_calibration_check_head(calibration, (int32_t)layer, head, TRIA_E_FORMAT, error));
        offset += 4 * n_floats;
    }
    if (offset != size) {
        return tria_fail(error, TRIA_E_FORMAT, "%u sampled heads end at offset %zu, the file has %zu bytes",
                         n_sampled, offset, size);
    }
    return TRIA_OK;
}

/*
 * Gives calibrated layers whose records hold YaRN numbers instead of frequencies their frequencies. Only
 * those: 68 bytes of file must not make the library allocate arrays that nothing uses.
 */
static tria_status scale_layers(const unsigned char *record, tria_calibration *calibration,
                                tria_error *error)
{
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        tria_calibration_layer_data *layer = &calibration->layers[l];
        const uint32_t n_freq = tria_load_u32(record + 60);
        const bool arrays = tria_load_u32(record + 64) != 0;
        const float freq_scale = tria_load_f32(record + 40);
        if (layer->n_heads > 0 && !arrays && (freq_scale != 1 || tria_load_f32(record + 44) != 0)) {
            layer->inv_freq = tria_alloc(&calibration->env, n_freq, sizeof(double));
            if (layer->inv_freq == NULL) {
                return tria_fail_memory(error, n_freq * sizeof(double), "frequencies");
            }
            layer->geometry.inv_freq = layer->inv_freq;
            if (scaled_frequencies(record, &layer->geometry, layer->inv_freq, error) != TRIA_OK) {
                return tria_fail_in(error, TRIA_E_FORMAT, "layer %d", l);
            }
        }
        record += LAYER_RECORD + (arrays ? 8 * (size_t)n_freq : 0);
    }
    return TRIA_OK;
}

static tria_status read_body(const unsigned char *data, size_t size, const dialect_b *file,
                             tria_calibration *calibration, tria_error *error)
{
    const bool second_line = file->name == (const char *)data + NAME_AT_SECOND_LINE + 4;
    const unsigned char *arrays = NULL;
    size_t offset = file->body;
    if (file->version == 3) {
        TRIA_TRY(read_layers(data, size, &offset, calibration, error));
    } else {
        if (file->version == 2 && !second_line) {
            arrays = data + offset;
            offset += 8 * (size_t)file->n_freq;
        }
        TRIA_TRY(read_flat_geometry(file, arrays, calibration, error));
    }
    TRIA_TRY(read_heads(data, size, offset, file->n_sampled, calibration, error));
    return file->version == 3 ? scale_layers(data + file->body + 4, calibration, error) : TRIA_OK;
}

tria_status tria_read_dialect_b(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **out, tria_error *error)
{
    dialect_b file = {0};
    tria_calibration *calibration = NULL;
    tria_status status;
    if (size >= 8 && tria_load_u32(data + 4) == 2) {
        TRIA_TRY(parse_version_2(data, size, &file, error));
    } else {
        TRIA_TRY(parse_header(data, size, NAME_AT, &file, error));
    }
    if (file.version == 1 && flat_size(&file, false) != size) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "version 1 with %u heads of %u frequencies is %llu bytes long, the file has %zu",
                         file.n_sampled, file.n_freq, (unsigned long long)flat_size(&file, false), size);
    }
    TRIA_TRY(tria_calibration_alloc(env, (int32_t)file.n_layers, &calibration, error));
    calibration->format = TRIA_FORMAT_TRIATTENTION1 + (int32_t)file.version - 1;
    calibration->explicit_presence = 1;
    calibration->explicit_geometry = file.version == 3;
    calibration->explicit_style = 1;
    calibration->rope_theta = file.rope_theta;
    TRIA_TRY_GOTO(tria_calibration_set_text(calibration, &calibration->model_name, file.name,
                                            file.name_length, error),
                  fail);
    TRIA_TRY_GOTO(read_body(data, size, &file, calibration, error), fail);
    *out = calibration;
    return TRIA_OK;
fail:
    tria_calibration_destroy(calibration);
    return status;
}

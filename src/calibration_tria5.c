/*
 * calibration_tria5.c - our own format, version 5 of `.tria`: reads and writes it.
 *
 * All numbers little-endian, nothing aligned beyond 4 bytes. A test vector: test_5_vector() in
 * tests/calibration/test_roundtrip.c.
 */
// clang-format off
/*
 * header, 64 bytes
 *    0  u32  0x54524941       readers of versions 1 to 4 stop at the version
 *    4  u32  5
 *    8  u32  n_layers
 *   12  u32  n_q_heads        largest over the layers, as the next three: for tools that only print a header
 *   16  u32  n_kv_heads
 *   20  u32  head_dim
 *   24  u32  freq_count
 *   28  f32  rope_theta       rounded; the exact ones are in the layers
 *   32  f32  attn_scale
 *   36  u32  flags            bit 0: presence is explicit, bit 1: geometry is, bit 2: style is (what the file
 *                             this one was converted from did not say stays known as a guess)
 *   40  u32  capture_point    tria_capture_point
 *   44  u32  0
 *   48  u64  body size        file size - 64
 *   56  u32  CRC-32C of the body
 *   60  u32  CRC-32C of bytes 0 to 59
 *
 * body
 *       f64  rope_theta
 *            four texts, each u32 length and that many bytes without a zero: model name, fingerprint,
 *            provenance, default policy; then zeros to a multiple of 4 from the body's start
 *            then per layer
 *       u32  n_q_heads, n_kv_heads, head_dim, rotary_dim, rotary_offset, rope_style
 *       i32  kv_source
 *       u32  window
 *       f64  rope_theta       0: not known
 *       u64  n_tokens
 *       f32  budget_scale
 *       u32  flags            bit 0: inv_freq follows, bit 1: freq_scale_sq follows
 *       f64  inv_freq[F], freq_scale_sq[F]         F = rotary_dim / 2
 *       u32  presence[(n_q_heads + 31) / 32]       bit h % 32 of word h / 32: head h is calibrated
 *       u32  content[(n_q_heads + 31) / 32]        likewise: it has content statistics
 *            per head present, ascending
 *       f32  q_mean_real[F], q_mean_imag[F], q_abs_mean[F], r[F]
 *       f32  content_mean[head_dim - rotary_dim], content_abs[likewise]      with content
 *
 * r is the concentration |q_mean| / q_abs_mean or what the file this one was converted from had in its place;
 * readers do not use it. A layer without attention has n_q_heads 0 and ends after its flags. n_kv_heads 0: not
 * known.
 */
// clang-format on
#include "calibration_internal.h"
#include "crc32c.h"

#include <string.h>

enum {
    HEADER_SIZE = 64,
    LAYER_SIZE = 56,
    FLAG_PRESENCE = 1,
    FLAG_GEOMETRY = 2,
    FLAG_STYLE = 4,
    KNOWN_FLAGS = FLAG_PRESENCE | FLAG_GEOMETRY | FLAG_STYLE,
    FLAG_INV_FREQ = 1,
    FLAG_FREQ_SCALE = 2
};

/* What is left of the body. */
typedef struct cursor {
    const unsigned char *start;
    size_t size;
    size_t at;
} cursor;

/* `count` items of `size` bytes, or NULL when the body ends before. */
static const unsigned char *take(cursor *body, size_t count, size_t size)
{
    const unsigned char *bytes = body->start + body->at;
    if (count > (body->size - body->at) / size) {
        return NULL;
    }
    body->at += count * size;
    return bytes;
}

static tria_status ends_early(const cursor *body, const char *what, tria_error *error)
{
    return tria_fail(error, TRIA_E_FORMAT, "the body ends within %s, at offset %zu", what,
                     HEADER_SIZE + body->at);
}

static tria_status check_header(const unsigned char *data, size_t size, tria_error *error)
{
    uint64_t body;
    uint32_t n_layers;
    uint32_t capture;
    if (size < HEADER_SIZE) {
        return tria_fail(error, TRIA_E_FORMAT, "%zu bytes are too few for the 64-byte header", size);
    }
    if (tria_crc32c(0, data, 60) != tria_load_u32(data + 60)) {
        return tria_fail(error, TRIA_E_FORMAT, "the header is damaged: CRC-32C %08x, expected %08x",
                         tria_crc32c(0, data, 60), tria_load_u32(data + 60));
    }
    body = tria_load_u64(data + 48);
    if (body != size - HEADER_SIZE) {
        return tria_fail(error, TRIA_E_FORMAT, "the header promises a body of %llu bytes, the file has %zu",
                         (unsigned long long)body, size - HEADER_SIZE);
    }
    n_layers = tria_load_u32(data + 8);
    if (n_layers < 1 || n_layers > TRIA_MAX_LAYERS) {
        return tria_fail(error, TRIA_E_FORMAT, "n_layers at offset 8 is %u, allowed 1 to %d", n_layers,
                         TRIA_MAX_LAYERS);
    }
    if (tria_load_u32(data + 36) > KNOWN_FLAGS || tria_load_u32(data + 44) != 0) {
        return tria_fail(
            error, TRIA_E_FORMAT,
            "flags at offset 36 are %u and the word at 44 is %u, known are 0 to %d and 0: written by "
            "a newer version?",
            tria_load_u32(data + 36), tria_load_u32(data + 44), KNOWN_FLAGS);
    }
    capture = tria_load_u32(data + 40);
    if (capture > TRIA_CAPTURE_AFTER_QK_NORM) {
        return tria_fail(error, TRIA_E_FORMAT, "capture point at offset 40 is %u, known 0 to 2", capture);
    }
    if (tria_crc32c(0, data + HEADER_SIZE, size - HEADER_SIZE) != tria_load_u32(data + 56)) {
        return tria_fail(error, TRIA_E_FORMAT, "the body is damaged: CRC-32C %08x, expected %08x",
                         tria_crc32c(0, data + HEADER_SIZE, size - HEADER_SIZE), tria_load_u32(data + 56));
    }
    return TRIA_OK;
}

static tria_status read_texts(cursor *body, tria_calibration *calibration, tria_error *error)
{
    char **fields[] = {&calibration->model_name, &calibration->fingerprint, &calibration->provenance,
                       &calibration->default_policy};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(fields); i++) {
        const unsigned char *length = take(body, 1, 4);
        const unsigned char *text = length != NULL ? take(body, tria_load_u32(length), 1) : NULL;
        if (text == NULL) {
            return ends_early(body, "its texts", error);
        }
        TRIA_TRY(tria_calibration_set_text(calibration, fields[i], (const char *)text,
                                           tria_load_u32(length), error));
    }
    if (take(body, (4 - body->at % 4) % 4, 1) == NULL) {
        return ends_early(body, "its texts", error);
    }
    return TRIA_OK;
}

/* Frequencies or weights, when the layer has them. */
static tria_status read_doubles(cursor *body, bool given, uint32_t count, tria_calibration *calibration,
                                double **out, tria_error *error)
{
    const unsigned char *bytes;
    *out = NULL;
    if (!given) {
        return TRIA_OK;
    }
    bytes = take(body, count, 8);
    if (bytes == NULL) {
        return ends_early(body, "a layer's frequencies", error);
    }
    *out = tria_alloc(&calibration->env, count, sizeof(double));
    if (*out == NULL) {
        return count == 0 ? TRIA_OK : tria_fail_memory(error, count * sizeof(double), "frequencies");
    }
    for (uint32_t i = 0; i < count; i++) {
        (*out)[i] = tria_load_f64(bytes + 8 * (size_t)i);
    }
    return TRIA_OK;
}

static tria_status read_heads(cursor *body, int32_t index, tria_calibration *calibration, tria_error *error)
{
    const tria_calibration_layer_data *layer = &calibration->layers[index];
    const int32_t n_heads = layer->geometry.n_q_heads;
    const size_t n_words = ((size_t)n_heads + 31) / 32;
    const unsigned char *presence = take(body, n_words, 4);
    const unsigned char *content = take(body, n_words, 4);
    if (presence == NULL || content == NULL) {
        return ends_early(body, "a layer's presence bits", error);
    }
    for (int32_t h = 0; h < 32 * (int32_t)n_words; h++) {
        const uint32_t bit = 1U << h % 32;
        const bool has_content = (tria_load_u32(content + h / 32 * 4) & bit) != 0;
        const int32_t n_content = has_content ? layer->geometry.head_dim - layer->geometry.rotary_dim : 0;
        const size_t n_floats = 4 * (size_t)layer->n_freq + 2 * (size_t)n_content;
        tria_calibration_head_data *head;
        const unsigned char *values;
        if ((tria_load_u32(presence + h / 32 * 4) & bit) == 0) {
            continue;
        }
        if (h >= n_heads) {
            return tria_fail(error, TRIA_E_FORMAT, "layer %d: head %d is present, there are %d", index, h,
                             n_heads);
        }
        values = take(body, n_floats, 4);
        if (values == NULL) {
            return ends_early(body, "a head's statistics", error);
        }
        TRIA_TRY(tria_calibration_add_head(calibration, index, h, n_content, &head, error));
        tria_load_f32s(values, n_floats, head->values);
        TRIA_TRY(tria_calibration_check_head(calibration, index, head, TRIA_E_FORMAT, error));
    }
    return TRIA_OK;
}

static tria_status read_layer(cursor *body, int32_t index, tria_calibration *calibration, tria_error *error)
{
    tria_calibration_layer_data *layer = &calibration->layers[index];
    const unsigned char *fixed = take(body, 1, LAYER_SIZE);
    tria_layer_params geometry = TRIA_LAYER_PARAMS_INIT;
    double *inv_freq = NULL;
    double *freq_scale_sq = NULL;
    uint32_t flags;
    tria_status status;
    if (fixed == NULL) {
        return ends_early(body, "a layer's geometry", error);
    }
    for (size_t i = 0; i < 8; i++) {
        if (i != 6 && tria_load_u32(fixed + 4 * i) > INT32_MAX) {
            return tria_fail(error, TRIA_E_FORMAT, "layer %d: number %zu of its geometry is %u", index, i,
                             tria_load_u32(fixed + 4 * i));
        }
    }
    geometry.n_q_heads = (int32_t)tria_load_u32(fixed);
    geometry.n_kv_heads = (int32_t)tria_load_u32(fixed + 4);
    geometry.head_dim = (int32_t)tria_load_u32(fixed + 8);
    geometry.rotary_dim = (int32_t)tria_load_u32(fixed + 12);
    geometry.rotary_offset = (int32_t)tria_load_u32(fixed + 16);
    geometry.rope_style = (int32_t)tria_load_u32(fixed + 20);
    geometry.kv_source = (int32_t)tria_load_u32(fixed + 24);
    geometry.window = (int32_t)tria_load_u32(fixed + 28);
    geometry.rope_theta = tria_load_f64(fixed + 32);
    layer->n_tokens = tria_load_u64(fixed + 40);
    layer->budget_scale = tria_load_f32(fixed + 48);
    flags = tria_load_u32(fixed + 52);
    if (!(layer->budget_scale > 0 && layer->budget_scale <= 16)) {
        return tria_fail(error, TRIA_E_FORMAT, "layer %d: budget_scale is %g, allowed above 0 to 16", index,
                         (double)layer->budget_scale);
    }
    if (geometry.n_q_heads == 0) {
        return flags == 0 && geometry.n_kv_heads == 0
                   ? TRIA_OK
                   : tria_fail(error, TRIA_E_FORMAT, "layer %d: frequencies or KV heads but no query heads",
                               index);
    }
    if (geometry.rotary_dim > TRIA_MAX_HEAD_DIM || geometry.rotary_dim < 2 || flags > 3) {
        return tria_fail(error, TRIA_E_FORMAT, "layer %d: rotary_dim %d, flags %u", index,
                         geometry.rotary_dim, flags);
    }
    TRIA_TRY_GOTO(read_doubles(body, (flags & FLAG_INV_FREQ) != 0, (uint32_t)geometry.rotary_dim / 2,
                               calibration, &inv_freq, error),
                  done);
    TRIA_TRY_GOTO(read_doubles(body, (flags & FLAG_FREQ_SCALE) != 0, (uint32_t)geometry.rotary_dim / 2,
                               calibration, &freq_scale_sq, error),
                  done);
    geometry.inv_freq = inv_freq;
    geometry.freq_scale_sq = freq_scale_sq;
    TRIA_TRY_GOTO(tria_calibration_set_geometry(calibration, index, &geometry, TRIA_E_FORMAT, error), done);
    status = read_heads(body, index, calibration, error);
done:
    tria_free(&calibration->env, inv_freq);
    tria_free(&calibration->env, freq_scale_sq);
    return status;
}

tria_status tria_read_tria5(const unsigned char *data, size_t size, const tria_env *env,
                            tria_calibration **out, tria_error *error)
{
    tria_calibration *calibration = NULL;
    cursor body;
    uint32_t flags;
    tria_status status;
    TRIA_TRY(check_header(data, size, error));
    TRIA_TRY(tria_calibration_alloc(env, (int32_t)tria_load_u32(data + 8), &calibration, error));
    body.start = data + HEADER_SIZE;
    body.size = size - HEADER_SIZE;
    body.at = 0;
    flags = tria_load_u32(data + 36);
    calibration->format = TRIA_FORMAT_TRIA5;
    calibration->explicit_presence = (flags & FLAG_PRESENCE) != 0;
    calibration->explicit_geometry = (flags & FLAG_GEOMETRY) != 0;
    calibration->explicit_style = (flags & FLAG_STYLE) != 0;
    calibration->capture_point = (int32_t)tria_load_u32(data + 40);
    calibration->attn_scale = tria_load_f32(data + 32);
    if (take(&body, 1, 8) == NULL) {
        status = ends_early(&body, "rope_theta", error);
        goto fail;
    }
    calibration->rope_theta = tria_load_f64(body.start);
    TRIA_TRY_GOTO(read_texts(&body, calibration, error), fail);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        TRIA_TRY_GOTO(read_layer(&body, l, calibration, error), fail);
    }
    if (body.at != body.size) {
        status =
            tria_fail(error, TRIA_E_FORMAT, "the last layer ends at offset %zu, the file has %zu bytes",
                      HEADER_SIZE + body.at, size);
        goto fail;
    }
    *out = calibration;
    return TRIA_OK;
fail:
    tria_calibration_destroy(calibration);
    return status;
}

static void write_text(tria_writer *body, const char *text)
{
    const size_t length = strlen(text);
    tria_write_u32(body, (uint32_t)length);
    tria_write_bytes(body, text, length);
}

static void write_heads(tria_writer *body, const tria_calibration_layer_data *layer)
{
    const size_t n_words = ((size_t)layer->geometry.n_q_heads + 31) / 32;
    for (int32_t content = 0; content < 2; content++) {
        int32_t next = 0;
        for (size_t w = 0; w < n_words; w++) {
            uint32_t word = 0;
            for (; next < layer->n_heads && (size_t)layer->heads[next].q_head / 32 == w; next++) {
                if (!content || layer->heads[next].n_content > 0) {
                    word |= 1U << layer->heads[next].q_head % 32;
                }
            }
            tria_write_u32(body, word);
        }
    }
    for (int32_t i = 0; i < layer->n_heads; i++) {
        tria_write_f32s(body, layer->heads[i].values,
                        4 * (size_t)layer->n_freq + 2 * (size_t)layer->heads[i].n_content);
    }
}

static void write_layer(tria_writer *body, const tria_calibration_layer_data *layer)
{
    const tria_layer_params *geometry = &layer->geometry;
    const int32_t numbers[8] = {geometry->n_q_heads,  geometry->n_kv_heads,    geometry->head_dim,
                                geometry->rotary_dim, geometry->rotary_offset, geometry->rope_style,
                                geometry->kv_source,  geometry->window};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(numbers); i++) {
        tria_write_u32(body, (uint32_t)numbers[i]);
    }
    tria_write_f64(body, geometry->rope_theta);
    tria_write_u64(body, layer->n_tokens);
    tria_write_f32(body, layer->budget_scale);
    tria_write_u32(body, (layer->inv_freq != NULL ? FLAG_INV_FREQ : 0U) |
                             (layer->freq_scale_sq != NULL ? FLAG_FREQ_SCALE : 0U));
    for (int32_t f = 0; layer->inv_freq != NULL && f < layer->n_freq; f++) {
        tria_write_f64(body, layer->inv_freq[f]);
    }
    for (int32_t f = 0; layer->freq_scale_sq != NULL && f < layer->n_freq; f++) {
        tria_write_f64(body, layer->freq_scale_sq[f]);
    }
    if (geometry->n_q_heads > 0) {
        write_heads(body, layer);
    }
}

static void write_body(tria_writer *body, const tria_calibration *calibration)
{
    const size_t start = body->used;
    tria_write_f64(body, calibration->rope_theta);
    write_text(body, calibration->model_name);
    write_text(body, calibration->fingerprint);
    write_text(body, calibration->provenance);
    write_text(body, calibration->default_policy);
    tria_write_zeros(body, (4 - (body->used - start) % 4) % 4);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        write_layer(body, &calibration->layers[l]);
    }
}

/* `body` has been written already, behind 64 bytes for the header. */
static void write_header(tria_writer *header, const tria_calibration *calibration,
                         const unsigned char *body, size_t body_size)
{
    uint32_t most[4] = {0};
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        const int32_t sizes[4] = {layer->geometry.n_q_heads, layer->geometry.n_kv_heads,
                                  layer->geometry.head_dim, layer->n_freq};
        for (size_t i = 0; i < TRIA_ARRAY_LEN(sizes); i++) {
            most[i] = (uint32_t)sizes[i] > most[i] ? (uint32_t)sizes[i] : most[i];
        }
    }
    tria_write_u32(header, TRIA_MAGIC);
    tria_write_u32(header, 5);
    tria_write_u32(header, (uint32_t)calibration->n_layers);
    for (size_t i = 0; i < TRIA_ARRAY_LEN(most); i++) {
        tria_write_u32(header, most[i]);
    }
    tria_write_f32(header, (float)calibration->rope_theta);
    tria_write_f32(header, calibration->attn_scale);
    tria_write_u32(header, (calibration->explicit_presence ? FLAG_PRESENCE : 0U) |
                               (calibration->explicit_geometry ? FLAG_GEOMETRY : 0U) |
                               (calibration->explicit_style ? FLAG_STYLE : 0U));
    tria_write_u32(header, (uint32_t)calibration->capture_point);
    tria_write_u32(header, 0);
    tria_write_u64(header, body_size);
    tria_write_u32(header, tria_crc32c(0, body, body_size));
    tria_write_u32(header, tria_crc32c(0, header->data, header->used));
}

tria_status tria_write_tria5(const tria_calibration *calibration, tria_writer *writer)
{
    tria_writer header = {writer->data, HEADER_SIZE, 0};
    writer->used = HEADER_SIZE;
    write_body(writer, calibration);
    if (writer->data != NULL && writer->used <= writer->capacity) {
        write_header(&header, calibration, writer->data + HEADER_SIZE, writer->used - HEADER_SIZE);
    }
    return TRIA_OK;
}

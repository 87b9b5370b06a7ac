/*
 * accumulator_file.c - checkpoints of an accumulator: every sum, exactly.
 *
 * Little-endian: the letters TRIASUMS, u32 version 2, u32 n_layers, u32 content, u32 capture point; per
 * layer u32 fed (0: nothing follows), n_q_heads, n_freq, n_content, rotary_offset, rope_style, then u64
 * counts[n_q_heads], f64 sums and rests [n_q_heads][2][n_sums], u64 marks[1024]; at the end u32 CRC-32C of
 * everything before.
 */
#include "accumulator_internal.h"
#include "calibration_internal.h"
#include "crc32c.h"
#include "model_internal.h"

#include <math.h>
#include <string.h>

static const char MAGIC[8] = {'T', 'R', 'I', 'A', 'S', 'U', 'M', 'S'};

enum { HEADER_SIZE = 24, VERSION = 2, LAYER_HEADER_SIZE = 24 };

static void write_checkpoint(const tria_accumulator *accumulator, tria_writer *writer)
{
    tria_write_bytes(writer, MAGIC, sizeof(MAGIC));
    tria_write_u32(writer, VERSION);
    tria_write_u32(writer, (uint32_t)accumulator->model->n_layers);
    tria_write_u32(writer, accumulator->params.content != 0);
    tria_write_u32(writer, (uint32_t)accumulator->params.capture_point);
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        const tria_sums_layer *layer = &accumulator->layers[l];
        const tria_layer_params *geometry = &accumulator->model->layers[l];
        const size_t n_heads = (size_t)geometry->n_q_heads;
        tria_write_u32(writer, layer->counts != NULL);
        if (layer->counts == NULL) {
            continue;
        }
        tria_write_u32(writer, (uint32_t)n_heads);
        tria_write_u32(writer, (uint32_t)layer->n_freq);
        tria_write_u32(writer, (uint32_t)layer->n_content);
        tria_write_u32(writer, (uint32_t)geometry->rotary_offset);
        tria_write_u32(writer, (uint32_t)geometry->rope_style);
        for (size_t h = 0; h < n_heads; h++) {
            tria_write_u64(writer, layer->counts[h]);
        }
        for (size_t i = 0; i < 2 * n_heads * layer->n_sums; i++) {
            tria_write_f64(writer, layer->sums[i]);
        }
        for (size_t i = 0; i < TRIA_DISTINCT_WORDS; i++) {
            tria_write_u64(writer, layer->distinct[i]);
        }
    }
}

tria_status tria_accumulator_save(const tria_accumulator *accumulator, const char *path, tria_error *error)
{
    tria_writer writer = {0};
    size_t size;
    tria_status status;
    if (accumulator == NULL || path == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_save: NULL argument");
    }
    write_checkpoint(accumulator, &writer);
    size = writer.used + 4;
    writer.data = tria_alloc(&accumulator->env, size, 1);
    if (writer.data == NULL) {
        return tria_fail_memory(error, size, "a checkpoint");
    }
    writer.capacity = size;
    writer.used = 0;
    write_checkpoint(accumulator, &writer);
    tria_write_u32(&writer, tria_crc32c(0, writer.data, writer.used));
    status = tria_write_file(path, writer.data, size, error);
    tria_free(&accumulator->env, writer.data);
    return status;
}

/* Reads one layer into an accumulator of the same model; *used is its length. */
static tria_status read_layer(tria_accumulator *accumulator, int32_t l, const unsigned char *data,
                              size_t left, size_t *used, tria_error *error)
{
    const tria_layer_params *geometry = &accumulator->model->layers[l];
    tria_sums_layer *layer = &accumulator->layers[l];
    const size_t n_heads = (size_t)geometry->n_q_heads;
    size_t n_numbers;
    if (left < 4 || (tria_load_u32(data) != 0 && left < LAYER_HEADER_SIZE)) {
        return tria_fail(error, TRIA_E_FORMAT, "the checkpoint ends within layer %d", l);
    }
    *used = 4;
    if (tria_load_u32(data) == 0) {
        return TRIA_OK;
    }
    if (n_heads == 0 || tria_load_u32(data + 4) != n_heads ||
        tria_load_u32(data + 8) != (uint32_t)geometry->rotary_dim / 2) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "layer %d has %u heads of %u frequencies in the checkpoint, %zu of %d in the model", l,
            tria_load_u32(data + 4), tria_load_u32(data + 8), n_heads, geometry->rotary_dim / 2);
    }
    if (tria_load_u32(data + 16) != (uint32_t)geometry->rotary_offset ||
        tria_load_u32(data + 20) != (uint32_t)geometry->rope_style) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "layer %d has rotary offset %u and rope style %u in the checkpoint, %d and %d in the "
            "model",
            l, tria_load_u32(data + 16), tria_load_u32(data + 20), geometry->rotary_offset,
            geometry->rope_style);
    }
    TRIA_TRY(tria_accumulator_open_layer(accumulator, l, error));
    if (tria_load_u32(data + 12) != (uint32_t)layer->n_content) {
        return tria_fail(error, TRIA_E_MISMATCH,
                         "layer %d has %u content dimensions in the checkpoint, %d in the model", l,
                         tria_load_u32(data + 12), layer->n_content);
    }
    n_numbers = n_heads + 2 * n_heads * layer->n_sums + TRIA_DISTINCT_WORDS;
    *used = LAYER_HEADER_SIZE + 8 * n_numbers;
    if (left < *used) {
        return tria_fail(error, TRIA_E_FORMAT, "the checkpoint ends within layer %d", l);
    }
    data += LAYER_HEADER_SIZE;
    for (size_t h = 0; h < n_heads; h++, data += 8) {
        layer->counts[h] = tria_load_u64(data);
    }
    for (size_t i = 0; i < 2 * n_heads * layer->n_sums; i++, data += 8) {
        layer->sums[i] = tria_load_f64(data);
        if (!isfinite(layer->sums[i])) {
            return tria_fail(error, TRIA_E_FORMAT, "layer %d: sum %zu is %g", l, i, layer->sums[i]);
        }
    }
    for (size_t i = 0; i < TRIA_DISTINCT_WORDS; i++, data += 8) {
        layer->distinct[i] = tria_load_u64(data);
    }
    return TRIA_OK;
}

static tria_status read_checkpoint(tria_accumulator *accumulator, const unsigned char *data, size_t size,
                                   tria_error *error)
{
    size_t offset = HEADER_SIZE;
    if (size < HEADER_SIZE + 4 || memcmp(data, MAGIC, sizeof(MAGIC)) != 0 ||
        tria_load_u32(data + 8) != VERSION) {
        return tria_fail(error, TRIA_E_FORMAT,
                         "not a checkpoint: expected the letters TRIASUMS and version %d", VERSION);
    }
    if (tria_crc32c(0, data, size - 4) != tria_load_u32(data + size - 4)) {
        return tria_fail(error, TRIA_E_FORMAT, "the checkpoint is damaged: CRC-32C %08x, expected %08x",
                         tria_crc32c(0, data, size - 4), tria_load_u32(data + size - 4));
    }
    if (tria_load_u32(data + 12) != (uint32_t)accumulator->model->n_layers ||
        tria_load_u32(data + 16) != (accumulator->params.content != 0) ||
        tria_load_u32(data + 20) != (uint32_t)accumulator->params.capture_point) {
        return tria_fail(
            error, TRIA_E_MISMATCH,
            "the checkpoint has %u layers, content %u, capture point %u; the accumulator %d, %d and "
            "%d",
            tria_load_u32(data + 12), tria_load_u32(data + 16), tria_load_u32(data + 20),
            accumulator->model->n_layers, accumulator->params.content != 0,
            accumulator->params.capture_point);
    }
    for (int32_t l = 0; l < accumulator->model->n_layers; l++) {
        size_t used = 0;
        TRIA_TRY(read_layer(accumulator, l, data + offset, size - 4 - offset, &used, error));
        offset += used;
    }
    if (offset != size - 4) {
        return tria_fail(error, TRIA_E_FORMAT, "the last layer ends at offset %zu of %zu", offset,
                         size - 4);
    }
    return TRIA_OK;
}

/* Into a second accumulator first, so that a bad file changes nothing. */
tria_status tria_accumulator_resume_bytes(tria_accumulator *accumulator, const unsigned char *data,
                                          size_t size, tria_error *error)
{
    tria_accumulator_params params = accumulator->params;
    tria_accumulator *read;
    tria_status status;
    params.model = accumulator->model;
    TRIA_TRY(tria_accumulator_create(&params, &accumulator->env, &read, error));
    status = read_checkpoint(read, data, size, error);
    if (status == TRIA_OK) {
        status = tria_accumulator_merge(accumulator, read, error);
    }
    tria_accumulator_destroy(read);
    return status;
}

tria_status tria_accumulator_resume(tria_accumulator *accumulator, const char *path, tria_error *error)
{
    unsigned char *data;
    size_t size;
    tria_status status;
    if (accumulator == NULL || path == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_accumulator_resume: NULL argument");
    }
    status = tria_read_file(path, &accumulator->env, &data, &size, error);
    if (status == TRIA_OK) {
        status = tria_accumulator_resume_bytes(accumulator, data, size, error);
        tria_free(&accumulator->env, data);
    }
    return status == TRIA_OK ? TRIA_OK : tria_fail_in(error, status, "%s", path);
}

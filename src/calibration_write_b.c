/* calibration_write_b.c - writes `.triattention` version 3 (layout: specification, section 7). */
#include "calibration_internal.h"
#include "model_internal.h"

#include <string.h>

enum { NAME_MAX_LENGTH = 256 };

static double frequency(const tria_calibration_layer_data *layer, int32_t f)
{
    return layer->inv_freq != NULL
               ? layer->inv_freq[f]
               : tria_plain_frequency(layer->geometry.rope_theta, layer->geometry.rotary_dim, f);
}

/* Whether a layer's theta gives its frequencies and its weights are 1: then the file needs no arrays. */
static bool plain(const tria_calibration_layer_data *layer)
{
    for (int32_t f = 0; f < layer->n_freq; f++) {
        if (frequency(layer, f) !=
                tria_plain_frequency(layer->geometry.rope_theta, layer->geometry.rotary_dim, f) ||
            (layer->freq_scale_sq != NULL && layer->freq_scale_sq[f] != 1)) {
            return false;
        }
    }
    return true;
}

static double weight(const tria_calibration_layer_data *layer, int32_t f)
{
    return layer->freq_scale_sq != NULL ? layer->freq_scale_sq[f] : 1;
}

static void lose_layer(const tria_calibration_layer_data *layer, int32_t l, tria_losses *losses)
{
    if (layer->geometry.window != 0) {
        tria_lose(losses, "the window of layer %d", l);
    }
    for (int32_t i = 0; i < layer->n_heads; i++) {
        if (layer->heads[i].n_content > 0) {
            tria_lose(losses, "the content statistics of layer %d", l);
            break;
        }
    }
    for (int32_t f = 0; f < layer->n_freq && !plain(layer); f++) {
        const double values[2] = {frequency(layer, f), weight(layer, f)};
        if ((double)(float)values[0] != values[0] || (double)(float)values[1] != values[1]) {
            tria_lose(losses, "the double precision of the frequencies of layer %d", l);
            break;
        }
    }
}

static void write_layer(const tria_calibration_layer_data *layer, int32_t l, tria_writer *writer)
{
    const tria_layer_params *geometry = &layer->geometry;
    const bool arrays = layer->n_freq > 0 && !plain(layer);
    tria_write_u32(writer, (uint32_t)geometry->head_dim);
    tria_write_u32(writer, 2 * (uint32_t)layer->n_freq);
    tria_write_u32(writer, (uint32_t)geometry->rotary_offset);
    tria_write_u32(writer, (uint32_t)geometry->n_q_heads);
    tria_write_u32(writer, (uint32_t)geometry->n_kv_heads);
    tria_write_u32(writer, geometry->n_q_heads == 0  ? UINT32_MAX
                           : geometry->kv_source < 0 ? (uint32_t)l
                                                     : (uint32_t)geometry->kv_source);
    tria_write_u32(writer, (uint32_t)geometry->rope_style);
    tria_write_u32(writer, 0); /* n_ctx_orig: only for scalings that the arrays already hold */
    tria_write_f64(writer, geometry->rope_theta);
    tria_write_f32(writer, 1);
    tria_write_f32(writer, 0);
    tria_write_f32(writer, 1);
    tria_write_f32(writer, 32);
    tria_write_f32(writer, 1);
    tria_write_u32(writer, (uint32_t)layer->n_freq);
    tria_write_u32(writer, arrays);
    for (int32_t f = 0; arrays && f < layer->n_freq; f++) {
        tria_write_f32(writer, (float)frequency(layer, f));
    }
    for (int32_t f = 0; arrays && f < layer->n_freq; f++) {
        tria_write_f32(writer, (float)weight(layer, f));
    }
}

static tria_status write_header(const tria_calibration *calibration, tria_losses *losses,
                                tria_writer *writer, tria_error *error)
{
    const tria_layer_params *first = NULL;
    uint32_t n_sampled = 0;
    size_t name_length = strlen(calibration->model_name);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_layer_params *geometry = &calibration->layers[l].geometry;
        n_sampled += (uint32_t)calibration->layers[l].n_heads;
        if (geometry->n_q_heads == 0) {
            continue;
        }
        first = first == NULL ? geometry : first;
        if (geometry->n_kv_heads == 0 || geometry->rope_theta == 0) {
            return tria_fail(error, TRIA_E_UNSUPPORTED,
                             "layer %d: %s not known, which triattention3 needs: give a model description",
                             l, geometry->n_kv_heads == 0 ? "the number of KV heads is" : "rope_theta is");
        }
    }
    if (first == NULL) {
        return tria_fail(error, TRIA_E_UNSUPPORTED, "no layer has attention");
    }
    if (name_length >= NAME_MAX_LENGTH) {
        tria_lose(losses, "the end of the model name (%zu bytes, at most %d)", name_length,
                  NAME_MAX_LENGTH - 1);
        name_length = NAME_MAX_LENGTH - 1;
    }
    tria_write_u32(writer, TRIA_MAGIC);
    tria_write_u32(writer, 3);
    tria_write_u32(writer, (uint32_t)first->head_dim);
    tria_write_u32(writer, (uint32_t)calibration->n_layers);
    tria_write_u32(writer, (uint32_t)first->n_q_heads);
    tria_write_u32(writer, (uint32_t)first->n_kv_heads);
    tria_write_f64(writer, first->rope_theta);
    tria_write_u32(writer, (uint32_t)first->rope_style);
    tria_write_u32(writer, n_sampled);
    tria_write_u32(writer, (uint32_t)first->rotary_dim / 2);
    tria_write_u32(writer, (uint32_t)name_length + 1);
    tria_write_bytes(writer, calibration->model_name, name_length);
    tria_write_zeros(writer, 1);
    return TRIA_OK;
}

tria_status tria_write_dialect_b3(const tria_calibration *calibration, tria_losses *losses,
                                  tria_writer *writer, tria_error *error)
{
    TRIA_TRY(write_header(calibration, losses, writer, error));
    tria_lose_extras(losses, calibration, true, false);
    if (calibration->attn_scale != 1) {
        tria_lose(losses, "attn_scale");
    }
    tria_write_u32(writer, (uint32_t)calibration->n_layers);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        lose_layer(&calibration->layers[l], l, losses);
        write_layer(&calibration->layers[l], l, writer);
    }
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        for (int32_t i = 0; i < layer->n_heads; i++) {
            tria_write_u32(writer, (uint32_t)l);
            tria_write_u32(writer, (uint32_t)layer->heads[i].q_head);
            tria_write_f32s(writer, layer->heads[i].values, 4 * (size_t)layer->n_freq);
        }
    }
    return TRIA_OK;
}

/* calibration_write_a.c - writes `.tria` versions 1 to 4 (layout: specification, section 7). */
#include "calibration_internal.h"
#include "model_internal.h"

/* The numbers all layers share. */
typedef struct shape {
    const tria_layer_params *geometry; /* of the first layer with attention */
    int32_t head_dim;                  /* this and the next: of the widest layer */
    int32_t n_freq;
    int32_t n_content;
} shape;

static const tria_layer_params *first_attention(const tria_calibration *calibration)
{
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        if (calibration->layers[l].geometry.n_q_heads > 0) {
            return &calibration->layers[l].geometry;
        }
    }
    return NULL;
}

/* What no loss can cure: one header must do for all layers. */
static tria_status find_shape(const tria_calibration *calibration, int32_t version, shape *found,
                              tria_error *error)
{
    found->geometry = first_attention(calibration);
    found->n_content = 0;
    if (found->geometry == NULL) {
        return tria_fail(error, TRIA_E_UNSUPPORTED, "no layer has attention");
    }
    found->head_dim = found->geometry->head_dim;
    found->n_freq = found->geometry->rotary_dim / 2;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        if (layer->geometry.n_q_heads == 0) {
            continue;
        }
        if (layer->geometry.n_kv_heads == 0 || layer->geometry.rope_theta == 0) {
            return tria_fail(
                error, TRIA_E_UNSUPPORTED,
                "layer %d: %s not known, which tria%d needs: give a model description", l,
                layer->geometry.n_kv_heads == 0 ? "the number of KV heads is" : "rope_theta is", version);
        }
        if (layer->geometry.n_q_heads != found->geometry->n_q_heads ||
            layer->geometry.n_kv_heads != found->geometry->n_kv_heads ||
            (version < 4 && layer->geometry.rotary_dim != found->geometry->rotary_dim)) {
            return tria_fail(
                error, TRIA_E_UNSUPPORTED,
                "tria%d has one shape for all layers: layer %d has %d query and %d KV heads of %d rotary "
                "dimensions, another %d, %d and %d",
                version, l, layer->geometry.n_q_heads, layer->geometry.n_kv_heads,
                layer->geometry.rotary_dim, found->geometry->n_q_heads, found->geometry->n_kv_heads,
                found->geometry->rotary_dim);
        }
        for (int32_t i = 0; version >= 3 && i < layer->n_heads; i++) {
            if (layer->heads[i].n_content > 0 && found->n_content == 0) {
                found->n_content = layer->heads[i].n_content;
            }
        }
        found->n_freq = layer->n_freq > found->n_freq ? layer->n_freq : found->n_freq;
        found->head_dim =
            layer->geometry.head_dim > found->head_dim ? layer->geometry.head_dim : found->head_dim;
    }
    return TRIA_OK;
}

/* Whether the header's theta gives a layer's frequencies. */
static bool theta_is_enough(const tria_calibration_layer_data *layer, float theta)
{
    for (int32_t f = 0; layer->inv_freq != NULL && f < layer->n_freq; f++) {
        if (layer->inv_freq[f] != tria_plain_frequency((double)theta, layer->geometry.rotary_dim, f)) {
            return false;
        }
    }
    return layer->geometry.rope_theta == (double)theta;
}

static bool any_not_one(const double *values, int32_t count)
{
    for (int32_t i = 0; values != NULL && i < count; i++) {
        if (values[i] != 1) {
            return true;
        }
    }
    return false;
}

static bool all_zero(const tria_calibration_layer_data *layer, const tria_calibration_head_data *head)
{
    const int32_t n_floats = 3 * layer->n_freq;
    const float *content = tria_head_array(layer, head, TRIA_HEAD_CONTENT_MEAN);
    for (int32_t i = 0; i < n_floats; i++) {
        if (head->values[i] != 0) {
            return false;
        }
    }
    for (int32_t i = 0; i < 2 * head->n_content; i++) {
        if (content[i] != 0) {
            return false;
        }
    }
    return true;
}

static void lose_layer(const tria_calibration *calibration, int32_t version, const shape *all, int32_t l,
                       tria_losses *losses)
{
    const tria_calibration_layer_data *layer = &calibration->layers[l];
    const tria_layer_params *geometry = &layer->geometry;
    const int32_t width =
        version < 4 && all->n_content == 0 ? all->head_dim : geometry->rotary_dim + all->n_content;
    if (geometry->n_q_heads == 0) {
        tria_lose(losses, "that layer %d has no attention", l);
        return;
    }
    if (!theta_is_enough(layer, (float)all->geometry->rope_theta)) {
        tria_lose(losses, "the frequencies of layer %d", l);
    }
    if (any_not_one(layer->freq_scale_sq, layer->n_freq)) {
        tria_lose(losses, "the freq_scale_sq of layer %d", l);
    }
    if (geometry->rope_style != TRIA_ROPE_HALF) {
        tria_lose(losses, "the interleaved rope style of layer %d", l);
    }
    if (geometry->rotary_offset != 0 || geometry->head_dim != width) {
        tria_lose(losses, "head_dim %d and rotary offset %d of layer %d", geometry->head_dim,
                  geometry->rotary_offset, l);
    }
    if (geometry->kv_source >= 0 || geometry->window != 0) {
        tria_lose(losses, "kv_source %d and window %d of layer %d", geometry->kv_source, geometry->window,
                  l);
    }
    for (int32_t i = 0; i < layer->n_heads; i++) {
        const tria_calibration_head_data *head = &layer->heads[i];
        if (head->n_content != all->n_content) {
            tria_lose(losses, "the content statistics of layer %d", l);
            return;
        }
        if (all_zero(layer, head)) {
            tria_lose(losses, "that head %d of layer %d is calibrated although all zero", head->q_head, l);
        }
    }
}

static void write_header(const tria_calibration *calibration, int32_t version, const shape *all,
                         tria_writer *writer)
{
    tria_write_u32(writer, TRIA_MAGIC);
    tria_write_u32(writer, (uint32_t)version);
    tria_write_u32(writer, (uint32_t)calibration->n_layers);
    tria_write_u32(writer, (uint32_t)all->geometry->n_q_heads);
    tria_write_u32(writer, (uint32_t)all->geometry->n_kv_heads);
    tria_write_u32(writer,
                   (uint32_t)(version < 4 && all->n_content > 0 ? all->geometry->rotary_dim + all->n_content
                                                                : all->head_dim));
    tria_write_u32(writer, (uint32_t)all->n_freq);
    tria_write_f32(writer, (float)all->geometry->rope_theta);
    tria_write_f32(writer, calibration->attn_scale);
    tria_write_u32(writer, (uint32_t)all->n_content);
    tria_write_zeros(writer, 24);
    for (int32_t l = 0; version >= 2 && l < calibration->n_layers; l++) {
        tria_write_f32(writer, calibration->layers[l].budget_scale);
    }
    for (int32_t l = 0; version >= 4 && l < calibration->n_layers; l++) {
        const int32_t n_freq = calibration->layers[l].n_freq;
        tria_write_u32(writer, 2 * (uint32_t)(n_freq > 0 ? n_freq : all->n_freq));
    }
}

static void write_head(const tria_calibration_layer_data *layer, const tria_calibration_head_data *head,
                       const shape *all, tria_writer *writer)
{
    const size_t n_freq = (size_t)(layer->n_freq > 0 ? layer->n_freq : all->n_freq);
    const size_t n_content = (size_t)all->n_content;
    if (head == NULL) {
        tria_write_zeros(writer, 16 * n_freq + 8 * n_content);
        return;
    }
    tria_write_f32s(writer, head->values, 4 * n_freq);
    if (head->n_content == all->n_content) {
        tria_write_f32s(writer, tria_head_array(layer, head, TRIA_HEAD_CONTENT_MEAN), 2 * n_content);
    } else {
        tria_write_zeros(writer, 8 * n_content);
    }
}

tria_status tria_write_dialect_a(const tria_calibration *calibration, int32_t version, tria_losses *losses,
                                 tria_writer *writer, tria_error *error)
{
    shape all = {0};
    TRIA_TRY(find_shape(calibration, version, &all, error));
    tria_lose_extras(losses, calibration, false, version >= 2);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        lose_layer(calibration, version, &all, l, losses);
    }
    write_header(calibration, version, &all, writer);
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        for (int32_t h = 0; h < all.geometry->n_q_heads; h++) {
            write_head(&calibration->layers[l], tria_calibration_find_head(calibration, l, h), &all,
                       writer);
        }
    }
    return TRIA_OK;
}

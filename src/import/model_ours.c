/* model_ours.c - libtria's own model description, see docs of the command tria (--model). */
#include "model_internal.h"

#include <stdlib.h>

/* The numbers of a layer, from the whole model or from one of "layers". */
static tria_status read_numbers(const json_t *object, tria_layer_params *layer, tria_error *error)
{
    IMPORT_TRY(import_json_integer(object, "n_q_heads", 0, TRIA_MAX_HEADS, &layer->n_q_heads, error));
    IMPORT_TRY(import_json_integer(object, "n_kv_heads", 0, TRIA_MAX_HEADS, &layer->n_kv_heads, error));
    IMPORT_TRY(import_json_integer(object, "head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    if (json_object_get(object, "head_dim") != NULL) {
        layer->rotary_dim = layer->head_dim; /* unless the object says otherwise */
    }
    IMPORT_TRY(import_json_integer(object, "rotary_dim", 2, TRIA_MAX_HEAD_DIM, &layer->rotary_dim, error));
    IMPORT_TRY(
        import_json_integer(object, "rotary_offset", 0, TRIA_MAX_HEAD_DIM, &layer->rotary_offset, error));
    IMPORT_TRY(import_json_integer(object, "window", 0, INT32_MAX, &layer->window, error));
    return import_json_integer(object, "kv_source", -1, TRIA_MAX_LAYERS - 1, &layer->kv_source, error);
}

static tria_status read_style(const json_t *rope, tria_layer_params *layer, tria_error *error)
{
    if (import_json_is(rope, "style", "half")) {
        layer->rope_style = TRIA_ROPE_HALF;
    } else if (import_json_is(rope, "style", "interleaved")) {
        layer->rope_style = TRIA_ROPE_INTERLEAVED;
    } else if (json_object_get(rope, "style") != NULL) {
        return import_fail(error, TRIA_E_FORMAT, "\"style\" of rope is neither half nor interleaved");
    }
    return TRIA_OK;
}

/* A layer's own rope may leave out what the model's says. */
static const json_t *either(const json_t *own, const json_t *common, const char *key)
{
    const json_t *value = json_object_get(own, key);
    return value != NULL ? value : json_object_get(common, key);
}

static tria_status read_layer(model_builder *builder, int32_t index, const tria_layer_params *common,
                              const json_t *root, const json_t *own)
{
    const json_t *rope = json_object_get(root, "rope");
    const json_t *own_rope = json_object_get(own, "rope");
    const json_t *theta = either(own_rope, rope, "theta");
    tria_layer_params *layer = &builder->layers[index];
    *layer = *common;
    IMPORT_TRY(read_numbers(own, layer, builder->error));
    if (layer->n_q_heads == 0 || (layer->n_kv_heads == 0 && layer->kv_source < 0)) {
        tria_layer_params_init(layer);
        return TRIA_OK;
    }
    if (layer->rotary_dim == 0) {
        layer->rotary_dim = layer->head_dim;
    }
    IMPORT_TRY(read_style(rope, layer, builder->error));
    IMPORT_TRY(read_style(own_rope, layer, builder->error));
    if (theta != NULL && !json_is_number(theta)) {
        return import_fail(builder->error, TRIA_E_FORMAT, "\"theta\" of rope is not a number");
    }
    return builder_set_rope(builder, index, theta != NULL ? json_number_value(theta) : 10000,
                            either(own_rope, rope, "scaling"), root);
}

tria_status describe_ours(model_builder *builder, const json_t *root)
{
    const json_t *layers = json_object_get(root, "layers");
    tria_layer_params common = TRIA_LAYER_PARAMS_INIT;
    int32_t n_layers = 0;
    IMPORT_TRY(import_json_integer(root, "n_layers", 1, TRIA_MAX_LAYERS, &n_layers, builder->error));
    if (n_layers == 0) {
        return import_fail(builder->error, TRIA_E_FORMAT, "\"n_layers\" is not a number");
    }
    if (layers != NULL && !json_is_null(layers) &&
        (!json_is_array(layers) || json_array_size(layers) != (size_t)n_layers)) {
        return import_fail(builder->error, TRIA_E_FORMAT,
                           "\"layers\" is not an array of %d objects, one per layer", n_layers);
    }
    IMPORT_TRY(builder_open(builder, n_layers));
    IMPORT_TRY(read_numbers(root, &common, builder->error));
    if (common.n_kv_heads == 0 && json_object_get(root, "n_kv_heads") == NULL) {
        common.n_kv_heads = common.n_q_heads;
    }
    for (int32_t l = 0; l < n_layers; l++) {
        const json_t *own = json_array_get(layers, (size_t)l);
        if (own != NULL && !json_is_object(own) && !json_is_null(own)) {
            return import_fail(builder->error, TRIA_E_FORMAT, "layers[%d] is not an object", l);
        }
        IMPORT_TRY(read_layer(builder, l, &common, root, own));
    }
    return TRIA_OK;
}

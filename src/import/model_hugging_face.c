/*
 * model_hugging_face.c - a config.json as published.
 *
 * Keys and their meanings: the configuration classes of the transformers library. What a key does to the
 * cache is all that matters here: which layers have attention, how wide their heads are, how they are
 * rotated.
 */
#include "model_internal.h"

#include <math.h>
#include <string.h>

typedef enum layer_kind {
    LAYER_NONE, /* linear attention, convolution, state space ...: no KV cache */
    LAYER_FULL,
    LAYER_SLIDING
} layer_kind;

static bool has(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return value != NULL && !json_is_null(value);
}

/* A number that may be given per layer, as an array. */
static tria_status layer_integer(const json_t *config, const char *key, int32_t layer, int32_t maximum,
                                 int32_t *out, tria_error *error)
{
    const json_t *value = json_object_get(config, key);
    if (!json_is_array(value)) {
        return import_json_integer(config, key, 0, maximum, out, error);
    }
    value = json_array_get(value, (size_t)layer);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > maximum) {
        return import_fail(error, TRIA_E_FORMAT, "\"%s\"[%d] is not an integer from 0 to %d", key, layer,
                           maximum);
    }
    *out = (int32_t)json_integer_value(value);
    return TRIA_OK;
}

static bool is_model(const json_t *config, const char *const *types)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; type != NULL && types[i] != NULL; i++) {
        if (strcmp(type, types[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Models whose code pairs neighbouring dimensions. */
static const char *const INTERLEAVED[] = {
    "gptj",        "codegen", "cohere",      "cohere2",     "chatglm",  "glm",          "glm4",
    "llama4_text", "helium",  "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", NULL};
/* Every other layer slides, the first one does. */
static const char *const ALTERNATING[] = {"gemma2", "gpt_oss", NULL};
/* Full attention layers of models with sliding ones are not rotated. */
static const char *const NOPE_WHEN_FULL[] = {"cohere2", "exaone4", NULL};

/* layer_types and its like: one word per layer. */
static layer_kind kind_of_word(const char *word)
{
    if (strcmp(word, "sliding_attention") == 0 || strcmp(word, "chunked_attention") == 0 ||
        strcmp(word, "local_attention") == 0) {
        return LAYER_SLIDING;
    }
    if (strcmp(word, "full_attention") == 0 || strcmp(word, "attention") == 0 ||
        strcmp(word, "hybrid") == 0 || strcmp(word, "global_attention") == 0) {
        return LAYER_FULL;
    }
    return LAYER_NONE;
}

static bool slides(const json_t *config)
{
    const json_t *use = json_object_get(config, "use_sliding_window");
    return has(config, "sliding_window") && !json_is_false(use);
}

/* Configurations that give a rule instead of a list. */
static tria_status kind_by_rule(const json_t *config, int32_t layer, layer_kind *kind, tria_error *error)
{
    const char *pattern = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    int32_t period = 0;
    int32_t offset = 0;
    int32_t interval = 0;
    int32_t sliding = 0;
    int32_t first_sliding = 0;
    *kind = LAYER_FULL;
    if (pattern != NULL) {
        *kind = (size_t)layer < strlen(pattern) && pattern[layer] == '*' ? LAYER_FULL : LAYER_NONE;
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, "attn_layer_period", 1, TRIA_MAX_LAYERS, &period, error));
    IMPORT_TRY(import_json_integer(config, "attn_layer_offset", 0, TRIA_MAX_LAYERS, &offset, error));
    IMPORT_TRY(
        import_json_integer(config, "full_attention_interval", 1, TRIA_MAX_LAYERS, &interval, error));
    if (period != 0 || interval != 0) {
        const bool full = period != 0 ? layer % period == offset : (layer + 1) % interval == 0;
        *kind = full ? LAYER_FULL : LAYER_NONE;
        return TRIA_OK;
    }
    if (!slides(config)) {
        return TRIA_OK;
    }
    if (json_is_number(json_object_get(config, "sliding_window_pattern"))) {
        IMPORT_TRY(
            import_json_integer(config, "sliding_window_pattern", 1, TRIA_MAX_LAYERS, &sliding, error));
        *kind = (layer + 1) % sliding != 0 ? LAYER_SLIDING : LAYER_FULL;
    } else if (is_model(config, ALTERNATING)) {
        *kind = layer % 2 == 0 ? LAYER_SLIDING : LAYER_FULL;
    } else {
        IMPORT_TRY(
            import_json_integer(config, "max_window_layers", 0, TRIA_MAX_LAYERS, &first_sliding, error));
        *kind = layer >= first_sliding ? LAYER_SLIDING : LAYER_FULL;
    }
    return TRIA_OK;
}

/* A number that a list of layers names. */
static bool listed(const json_t *list, int32_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_integer_value(json_array_get(list, i)) == layer) {
            return true;
        }
    }
    return false;
}

static tria_status find_kind(const json_t *config, int32_t layer, layer_kind *kind, tria_error *error)
{
    const json_t *words = json_object_get(config, "layer_types");
    const json_t *full = json_object_get(config, "full_attn_idxs");
    const json_t *cycle = json_object_get(config, "block_types");
    const char *word = NULL;
    if (!json_is_array(words)) {
        words = json_object_get(config, "layers_block_type");
    }
    if (json_is_array(words)) {
        word = json_string_value(json_array_get(words, (size_t)layer));
    } else if (json_array_size(cycle) > 0) {
        word = json_string_value(json_array_get(cycle, (size_t)layer % json_array_size(cycle)));
    } else if (json_is_array(full)) {
        *kind = listed(full, layer) ? LAYER_FULL : LAYER_NONE;
        return TRIA_OK;
    } else {
        return kind_by_rule(config, layer, kind, error);
    }
    if (word == NULL) {
        return import_fail(error, TRIA_E_FORMAT, "the list of layer types has no text for layer %d", layer);
    }
    *kind = kind_of_word(word);
    return TRIA_OK;
}

static tria_status read_window(const json_t *config, layer_kind kind, int32_t *window, tria_error *error)
{
    if (kind != LAYER_SLIDING) {
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, "attention_window_size", 1, INT32_MAX, window, error));
    IMPORT_TRY(import_json_integer(config, "attention_chunk_size", 1, INT32_MAX, window, error));
    IMPORT_TRY(import_json_integer(config, "sliding_window", 1, INT32_MAX, window, error));
    return *window > 0 ? TRIA_OK
                       : import_fail(error, TRIA_E_FORMAT,
                                     "a layer slides, but the configuration has no \"sliding_window\"");
}

/* Absorbed multi-head latent attention: one shared key, the latent and then the rotated part. */
static tria_status read_latent(const json_t *config, tria_layer_params *layer, tria_error *error)
{
    int32_t latent = 0;
    int32_t rotary = 0;
    IMPORT_TRY(import_json_integer(config, "kv_lora_rank", 1, TRIA_MAX_HEAD_DIM, &latent, error));
    IMPORT_TRY(import_json_integer(config, "qk_rope_head_dim", 2, TRIA_MAX_HEAD_DIM, &rotary, error));
    if (rotary == 0) {
        return import_fail(error, TRIA_E_FORMAT, "\"kv_lora_rank\" without \"qk_rope_head_dim\"");
    }
    layer->n_kv_heads = 1;
    layer->head_dim = latent + rotary;
    layer->rotary_dim = rotary;
    layer->rotary_offset = latent;
    return TRIA_OK;
}

/* head_dim as given; only without it hidden size over heads. */
static tria_status read_head_dim(const json_t *config, layer_kind kind, tria_layer_params *layer,
                                 tria_error *error)
{
    int32_t hidden = 0;
    IMPORT_TRY(import_json_integer(config, "head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    if (kind == LAYER_FULL) {
        IMPORT_TRY(
            import_json_integer(config, "global_head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    }
    if (layer->head_dim == 0) {
        IMPORT_TRY(import_json_integer(config, has(config, "hidden_size") ? "hidden_size" : "n_embd", 1,
                                       INT32_MAX, &hidden, error));
        layer->head_dim = hidden / layer->n_q_heads;
    }
    return layer->head_dim > 0
               ? TRIA_OK
               : import_fail(error, TRIA_E_FORMAT,
                             "neither \"head_dim\" nor \"hidden_size\" gives the width of a head");
}

static tria_status read_heads(const json_t *config, int32_t index, layer_kind kind,
                              tria_layer_params *layer, tria_error *error)
{
    const char *q_key = has(config, "num_attention_heads") ? "num_attention_heads" : "n_head";
    IMPORT_TRY(layer_integer(config, q_key, index, TRIA_MAX_HEADS, &layer->n_q_heads, error));
    if (layer->n_q_heads == 0) {
        return json_is_array(json_object_get(config, q_key))
                   ? TRIA_OK
                   : import_fail(error, TRIA_E_FORMAT, "\"num_attention_heads\" is missing");
    }
    layer->n_kv_heads = layer->n_q_heads;
    if (json_is_true(json_object_get(config, "multi_query")) &&
        !json_is_true(json_object_get(config, "new_decoder_architecture"))) {
        layer->n_kv_heads = 1;
    }
    IMPORT_TRY(layer_integer(config, has(config, "num_kv_heads") ? "num_kv_heads" : "num_key_value_heads",
                             index, TRIA_MAX_HEADS, &layer->n_kv_heads, error));
    if (kind == LAYER_FULL && json_is_true(json_object_get(config, "attention_k_eq_v"))) {
        IMPORT_TRY(import_json_integer(config, "num_global_key_value_heads", 1, TRIA_MAX_HEADS,
                                       &layer->n_kv_heads, error));
    }
    return has(config, "kv_lora_rank") ? read_latent(config, layer, error)
                                       : read_head_dim(config, kind, layer, error);
}

/* The object that says how layers of this kind are rotated; NULL when there is none. */
static const json_t *rope_object(const json_t *config, layer_kind kind)
{
    const json_t *parameters = json_object_get(config, "rope_parameters");
    const json_t *own =
        json_object_get(parameters, kind == LAYER_SLIDING ? "sliding_attention" : "full_attention");
    if (json_is_object(own)) {
        return own;
    }
    if (json_is_object(parameters)) {
        return parameters;
    }
    /* Sliding layers with a base of their own are not scaled. */
    return kind == LAYER_SLIDING && (has(config, "rope_local_base_freq") || has(config, "local_rope_theta"))
               ? NULL
               : json_object_get(config, "rope_scaling");
}

static tria_status read_theta(const json_t *config, layer_kind kind, const json_t *rope, double *theta,
                              tria_error *error)
{
    *theta = 10000;
    IMPORT_TRY(import_json_number(config, "rotary_emb_base", theta, error));
    IMPORT_TRY(import_json_number(config, "rope_theta", theta, error));
    IMPORT_TRY(import_json_number(config, "global_rope_theta", theta, error));
    if (kind == LAYER_SLIDING) {
        IMPORT_TRY(import_json_number(config, "rope_local_base_freq", theta, error));
        IMPORT_TRY(import_json_number(config, "local_rope_theta", theta, error));
    }
    return import_json_number(rope, "rope_theta", theta, error);
}

/* How much of a head is rotated. */
static tria_status read_rotary(const json_t *config, const json_t *rope, tria_layer_params *layer,
                               tria_error *error)
{
    double share = 1;
    if (layer->rotary_dim != 0) {
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_number(config, "rotary_pct", &share, error));
    IMPORT_TRY(import_json_number(config, "partial_rotary_factor", &share, error));
    IMPORT_TRY(import_json_number(rope, "partial_rotary_factor", &share, error));
    if (!(share > 0 && share <= 1)) {
        return import_fail(error, TRIA_E_FORMAT, "\"partial_rotary_factor\" is %g", share);
    }
    layer->rotary_dim = (int32_t)(share * layer->head_dim);
    return import_json_integer(config, "rotary_dim", 2, layer->head_dim, &layer->rotary_dim, error);
}

/* Layers that are not rotated at all (NoPE). */
static tria_status is_unrotated(const json_t *config, int32_t index, layer_kind kind, bool *unrotated,
                                tria_error *error)
{
    const json_t *list = json_object_get(config, "no_rope_layers");
    int32_t interval = 0;
    *unrotated = false;
    if (json_array_size(list) > 0) {
        *unrotated =
            json_integer_value(json_array_get(list, (size_t)index)) == 0; /* 1: rotated, despite the name */
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, "no_rope_layer_interval", 0, TRIA_MAX_LAYERS, &interval, error));
    *unrotated = (interval > 0 && (index + 1) % interval == 0) ||
                 (kind == LAYER_FULL && has(config, "sliding_window") && is_model(config, NOPE_WHEN_FULL));
    return TRIA_OK;
}

static tria_status read_layer(model_builder *builder, const json_t *config, int32_t index, layer_kind kind)
{
    tria_layer_params *layer = &builder->layers[index];
    const json_t *rope = rope_object(config, kind);
    double theta;
    bool unrotated;
    IMPORT_TRY(read_heads(config, index, kind, layer, builder->error));
    if (layer->n_q_heads == 0 || layer->n_kv_heads == 0) {
        tria_layer_params_init(layer);
        return TRIA_OK;
    }
    IMPORT_TRY(read_window(config, kind, &layer->window, builder->error));
    IMPORT_TRY(read_rotary(config, rope, layer, builder->error));
    IMPORT_TRY(read_theta(config, kind, rope, &theta, builder->error));
    layer->rope_style = is_model(config, INTERLEAVED) ? TRIA_ROPE_INTERLEAVED : TRIA_ROPE_HALF;
    IMPORT_TRY(is_unrotated(config, index, kind, &unrotated, builder->error));
    if (unrotated) {
        layer->rope_theta = theta;
        return builder_set_no_rope(builder, index);
    }
    return builder_set_rope(builder, index, theta, rope, config);
}

/* The last layers of some models read the cache of the last layer of their kind that has one. */
static tria_status share_caches(model_builder *builder, const json_t *config, const layer_kind *kinds)
{
    int32_t n_shared = 0;
    int32_t group = 0;
    IMPORT_TRY(import_json_integer(config, "num_kv_shared_layers", 0, builder->n_layers - 1, &n_shared,
                                   builder->error));
    if (json_is_true(json_object_get(config, "use_cla"))) {
        IMPORT_TRY(
            import_json_integer(config, "cla_share_factor", 1, TRIA_MAX_LAYERS, &group, builder->error));
    }
    for (int32_t l = 0; l < builder->n_layers; l++) {
        int32_t source = group > 1 ? l - l % group : l;
        if (l >= builder->n_layers - n_shared) {
            source = builder->n_layers - n_shared - 1;
            // n_shared < n_layers, so `source` is a layer. NOLINTNEXTLINE(clang-analyzer-*)
            while (source > 0 && kinds[source] != kinds[l]) {
                source--;
            }
        }
        // NOLINTNEXTLINE(clang-analyzer-*): as above
        if (source != l && kinds[l] != LAYER_NONE && kinds[source] == kinds[l]) {
            builder->layers[l].kv_source = source;
        }
    }
    return TRIA_OK;
}

tria_status describe_hugging_face(model_builder *builder, const json_t *config)
{
    layer_kind kinds[TRIA_MAX_LAYERS];
    const char *key = has(config, "num_hidden_layers") ? "num_hidden_layers" : "n_layer";
    int32_t n_layers = 0;
    IMPORT_TRY(import_json_integer(config, key, 1, TRIA_MAX_LAYERS, &n_layers, builder->error));
    if (n_layers == 0) {
        return import_fail(builder->error, TRIA_E_FORMAT,
                           "neither a model description (\"n_layers\") nor a Hugging Face configuration "
                           "(\"num_hidden_layers\")");
    }
    IMPORT_TRY(builder_open(builder, n_layers));
    for (int32_t l = 0; l < n_layers; l++) {
        IMPORT_TRY(find_kind(config, l, &kinds[l], builder->error));
        if (kinds[l] != LAYER_NONE) {
            IMPORT_TRY(read_layer(builder, config, l, kinds[l]));
        }
    }
    return share_caches(builder, config, kinds);
}

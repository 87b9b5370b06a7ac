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

bool import_model_is(const json_t *config, const char *const *types)
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
    "gptj",        "codegen",       "cohere",       "cohere2",  "cohere2_moe",  "chatglm",
    "glm",         "glm4",          "glm4v_text",   "helium",   "llama4_text",  "deepseek_v2",
    "deepseek_v3", "deepseek_v32",  "kimi_k2",      "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text",
    "glm_moe_dsa", "longcat_flash", "glm_ocr_text", NULL};
/* Full attention layers of models with sliding ones are not rotated. */
static const char *const NOPE_WHEN_FULL[] = {"cohere2", "cohere2_moe", "exaone4",
                                             "afmoe",   "exaone_moe",  NULL};
/* Sliding layers keep the base frequencies whatever the scaling is. */
static const char *const PLAIN_WHEN_SLIDING[] = {"olmo3", NULL};
/* No layer is rotated. */
static const char *const NEVER_ROTATED[] = {"jamba",   "nemotron_h",  "zamba", "kimi_linear", "gpt2", "opt",
                                            "gpt_neo", "gpt_bigcode", "bloom", "mpt",         NULL};

/*
 * What the configuration classes assume where a published file is silent, for models whose files are: the
 * text part of a multimodal one holds only what differs from its class.
 */
static const struct {
    const char *model_type;
    const char *assumed;
} DEFAULTS[] = {
    {"gemma", "{\"head_dim\":256}"},
    {"gemma2", "{\"head_dim\":256,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
               "\"sliding_window\":4096}"},
    {"gemma3_text",
     "{\"head_dim\":256,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"sliding_window\":4096,"
     "\"sliding_window_pattern\":6,\"rope_theta\":1000000,\"rope_local_base_freq\":10000}"},
};

static tria_status assume_defaults(json_t *config, tria_error *error)
{
    for (size_t i = 0; i < sizeof(DEFAULTS) / sizeof(DEFAULTS[0]); i++) {
        if (import_json_is(config, "model_type", DEFAULTS[i].model_type)) {
            json_t *assumed = json_loads(DEFAULTS[i].assumed, 0, NULL);
            const bool ok = assumed != NULL && json_object_update_missing(config, assumed) == 0;
            json_decref(assumed);
            return ok ? TRIA_OK : import_fail(error, TRIA_E_MEMORY, "cannot complete the configuration");
        }
    }
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
    IMPORT_TRY(
        import_json_integer(config, "attention_head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    IMPORT_TRY(import_json_integer(config, "head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    if (kind == LAYER_FULL) {
        IMPORT_TRY(
            import_json_integer(config, "global_head_dim", 1, TRIA_MAX_HEAD_DIM, &layer->head_dim, error));
    }
    if (layer->head_dim == 0) {
        IMPORT_TRY(import_json_integer(config,
                                       import_json_has(config, "hidden_size") ? "hidden_size" : "n_embd", 1,
                                       INT32_MAX, &hidden, error));
        layer->head_dim = hidden / layer->n_q_heads;
    }
    return layer->head_dim > 0
               ? TRIA_OK
               : import_fail(error, TRIA_E_FORMAT,
                             "neither \"head_dim\" nor \"hidden_size\" gives the width of a head");
}

static tria_status read_kv_heads(const json_t *config, int32_t index, tria_layer_params *layer,
                                 tria_error *error)
{
    const json_t *block = json_array_get(json_object_get(config, "block_configs"), (size_t)index);
    int32_t group = 0;
    IMPORT_TRY(import_json_integer(json_object_get(block, "attention"), "n_heads_in_group", 1,
                                   TRIA_MAX_HEADS, &group, error));
    if (group != 0) {
        layer->n_kv_heads = layer->n_q_heads / group;
        return TRIA_OK;
    }
    if (json_is_true(json_object_get(config, "multi_query")) &&
        !json_is_true(json_object_get(config, "new_decoder_architecture"))) {
        layer->n_kv_heads = 1; /* whatever num_kv_heads says */
        return TRIA_OK;
    }
    layer->n_kv_heads = layer->n_q_heads;
    return layer_integer(config,
                         import_json_has(config, "num_kv_heads") ? "num_kv_heads" : "num_key_value_heads",
                         index, TRIA_MAX_HEADS, &layer->n_kv_heads, error);
}

static tria_status read_heads(const json_t *config, int32_t index, layer_kind kind,
                              tria_layer_params *layer, tria_error *error)
{
    const char *q_key = import_json_has(config, "num_attention_heads") ? "num_attention_heads" : "n_head";
    IMPORT_TRY(layer_integer(config, q_key, index, TRIA_MAX_HEADS, &layer->n_q_heads, error));
    if (layer->n_q_heads == 0) {
        return json_is_array(json_object_get(config, q_key))
                   ? TRIA_OK
                   : import_fail(error, TRIA_E_FORMAT, "\"num_attention_heads\" is missing");
    }
    IMPORT_TRY(read_kv_heads(config, index, layer, error));
    if (kind == LAYER_FULL && json_is_true(json_object_get(config, "attention_k_eq_v"))) {
        IMPORT_TRY(import_json_integer(config, "num_global_key_value_heads", 1, TRIA_MAX_HEADS,
                                       &layer->n_kv_heads, error));
    }
    return import_json_has(config, "kv_lora_rank") ? read_latent(config, layer, error)
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
    return kind == LAYER_SLIDING && (import_json_has(config, "rope_local_base_freq") ||
                                     import_json_has(config, "local_rope_theta") ||
                                     import_model_is(config, PLAIN_WHEN_SLIDING))
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
    IMPORT_TRY(
        import_json_integer(config, "attn_rotary_emb", 2, layer->head_dim, &layer->rotary_dim, error));
    return import_json_integer(config, "rotary_dim", 2, layer->head_dim, &layer->rotary_dim, error);
}

/* Models without rotation anywhere. */
static bool never_rotated(const json_t *config)
{
    const char *embedding = json_string_value(json_object_get(config, "position_embedding_type"));
    return import_model_is(config, NEVER_ROTATED) || json_is_true(json_object_get(config, "alibi")) ||
           json_is_true(json_object_get(config, "mla_use_nope")) ||
           json_is_false(json_object_get(config, "use_mem_rope")) ||
           (embedding != NULL && strncmp(embedding, "ro", 2) != 0); /* "rope", "rotary" */
}

/* Layers that are not rotated at all (NoPE). */
static tria_status is_unrotated(const json_t *config, int32_t index, layer_kind kind, bool *unrotated,
                                tria_error *error)
{
    const json_t *list = json_object_get(config, "no_rope_layers");
    int32_t interval = 0;
    *unrotated = never_rotated(config);
    if (*unrotated) {
        return TRIA_OK;
    }
    if (json_array_size(list) > 0) {
        *unrotated =
            json_integer_value(json_array_get(list, (size_t)index)) == 0; /* 1: rotated, despite the name */
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, "no_rope_layer_interval", 0, TRIA_MAX_LAYERS, &interval, error));
    *unrotated = (interval > 0 && (index + 1) % interval == 0) ||
                 (kind == LAYER_FULL && import_json_has(config, "sliding_window") &&
                  import_model_is(config, NOPE_WHEN_FULL));
    return TRIA_OK;
}

static bool is_interleaved(const json_t *config)
{
    const json_t *stated = json_object_get(config, "rope_interleave");
    return json_is_boolean(stated) ? json_is_true(stated) : import_model_is(config, INTERLEAVED);
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
    layer->rope_style = is_interleaved(config) ? TRIA_ROPE_INTERLEAVED : TRIA_ROPE_HALF;
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

tria_status describe_hugging_face(model_builder *builder, json_t *config)
{
    layer_kind kinds[TRIA_MAX_LAYERS];
    const char *key = import_json_has(config, "num_hidden_layers") ? "num_hidden_layers" : "n_layer";
    int32_t n_layers = 0;
    IMPORT_TRY(import_json_integer(config, key, 1, TRIA_MAX_LAYERS, &n_layers, builder->error));
    if (n_layers == 0) {
        return import_fail(builder->error, TRIA_E_FORMAT,
                           "neither a model description (\"n_layers\") nor a Hugging Face configuration "
                           "(\"num_hidden_layers\")");
    }
    IMPORT_TRY(assume_defaults(config, builder->error));
    IMPORT_TRY(builder_open(builder, n_layers));
    for (int32_t l = 0; l < n_layers; l++) {
        IMPORT_TRY(import_layer_kind(config, l, &kinds[l], builder->error));
        if (kinds[l] != LAYER_NONE) {
            IMPORT_TRY(read_layer(builder, config, l, kinds[l]));
        }
    }
    return share_caches(builder, config, kinds);
}

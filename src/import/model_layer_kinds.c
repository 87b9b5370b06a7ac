/*
 * model_layer_kinds.c - which layers of a Hugging Face configuration have attention, and which of them
 * slide.
 *
 * Some configurations list a word per layer, others numbers of layers, a pattern or a rule. What is not
 * understood is an error: a layer without attention that is taken for one with it, or the other way round,
 * shows only in the memory that is not freed.
 */
#include "model_internal.h"

#include <string.h>

/* layer_types and its like: one word per layer. */
static const struct {
    const char *word;
    layer_kind kind;
} WORDS[] = {
    {"full_attention", LAYER_FULL},
    {"attention", LAYER_FULL},
    {"global_attention", LAYER_FULL},
    {"hybrid", LAYER_FULL}, /* attention and a state beside it */
    {"indexed_attention", LAYER_FULL},
    {"deepseek_sparse_attention", LAYER_FULL},
    {"qwen_sparse_attention", LAYER_FULL},
    {"sliding_attention", LAYER_SLIDING},
    {"chunked_attention", LAYER_SLIDING},
    {"local_attention", LAYER_SLIDING},
    {"hybrid_sliding", LAYER_SLIDING},
    {"linear_attention", LAYER_NONE},
    {"mamba", LAYER_NONE},
    {"mamba2", LAYER_NONE},
    {"recurrent", LAYER_NONE},
    {"conv", LAYER_NONE},
    {"moe", LAYER_NONE},
    {"mlp", LAYER_NONE},
};

/* Every other layer slides, the first one does. */
static const char *const ALTERNATING[] = {"gemma2", "gpt_oss", NULL};
/* Every layer has attention, and a state beside it. */
static const char *const PARALLEL[] = {"falcon_h1", "hymba", NULL};
/* Keys of layers that are something else than attention. */
static const char *const STATE_KEYS[] = {"mamba_", "ssm_", "linear_num_", "linear_key_"};

static tria_status kind_of_word(const char *word, int32_t layer, layer_kind *kind, tria_error *error)
{
    for (size_t i = 0; i < sizeof(WORDS) / sizeof(WORDS[0]); i++) {
        if (strcmp(WORDS[i].word, word) == 0) {
            *kind = WORDS[i].kind;
            return TRIA_OK;
        }
    }
    return import_fail(error, TRIA_E_UNSUPPORTED, "layer %d is of the type \"%.40s\", which is not known",
                       layer, word);
}

/* A number that a list of layers names. */
static bool listed(const json_t *list, int64_t number)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_integer_value(json_array_get(list, i)) == number) {
            return true;
        }
    }
    return false;
}

/* One letter per layer, over and over: an L slides; or a number: all slide but each so-manieth. */
static tria_status kind_by_pattern(const json_t *config, const char *key, int32_t layer, layer_kind *kind,
                                   tria_error *error)
{
    const char *letters = json_string_value(json_object_get(config, key));
    int32_t period = 0;
    if (letters != NULL && letters[0] != '\0') {
        *kind = letters[(size_t)layer % strlen(letters)] == 'L' ? LAYER_SLIDING : LAYER_FULL;
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, key, 1, TRIA_MAX_LAYERS, &period, error));
    *kind = (layer + 1) % period != 0 ? LAYER_SLIDING : LAYER_FULL;
    return TRIA_OK;
}

static tria_status kind_by_window(const json_t *config, int32_t layer, layer_kind *kind, tria_error *error)
{
    const json_t *use = json_object_get(config, "use_sliding_window");
    int32_t first_sliding = 0;
    *kind = LAYER_FULL;
    if (!import_json_has(config, "sliding_window") || json_is_false(use)) {
        return TRIA_OK;
    }
    if (import_json_has(config, "sliding_window_pattern")) {
        return kind_by_pattern(config, "sliding_window_pattern", layer, kind, error);
    }
    if (import_json_has(config, "_sliding_window_pattern")) {
        return kind_by_pattern(config, "_sliding_window_pattern", layer, kind, error);
    }
    if (import_model_is(config, ALTERNATING)) {
        *kind = layer % 2 == 0 ? LAYER_SLIDING : LAYER_FULL;
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_integer(config, "max_window_layers", 0, TRIA_MAX_LAYERS, &first_sliding, error));
    *kind = layer >= first_sliding ? LAYER_SLIDING : LAYER_FULL;
    return TRIA_OK;
}

/* Without a list or a rule all layers have attention, unless there are signs of others. */
static tria_status check_no_states(json_t *config, tria_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach(config, key, value)
    {
        for (size_t i = 0; i < sizeof(STATE_KEYS) / sizeof(STATE_KEYS[0]); i++) {
            if (strncmp(key, STATE_KEYS[i], strlen(STATE_KEYS[i])) == 0 &&
                !import_model_is(config, PARALLEL)) {
                return import_fail(error, TRIA_E_UNSUPPORTED,
                                   "the configuration has \"%.40s\" but nothing that is known to say which "
                                   "layers have attention",
                                   key);
            }
        }
    }
    return TRIA_OK;
}

/* Configurations that give a rule instead of a list. */
static tria_status kind_by_rule(json_t *config, int32_t layer, layer_kind *kind, tria_error *error)
{
    const char *pattern = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    int32_t period = 0;
    int32_t offset = 0;
    int32_t interval = 0;
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
    IMPORT_TRY(check_no_states(config, error));
    return kind_by_window(config, layer, kind, error);
}

/* Configurations that list numbers: of the layers with attention, or a 1 for each of them. */
static bool kind_by_numbers(const json_t *config, int32_t layer, layer_kind *kind)
{
    static const char *const from_zero[] = {"full_attn_idxs", "attn_layer_indices"};
    const json_t *linear = json_object_get(config, "linear_attn_config");
    const json_t *from_one = json_object_get(linear, "full_attn_layers");
    const json_t *flags = json_object_get(config, "attn_type_list");
    for (size_t i = 0; i < sizeof(from_zero) / sizeof(from_zero[0]); i++) {
        const json_t *list = json_object_get(config, from_zero[i]);
        if (json_is_array(list)) {
            *kind = listed(list, layer) ? LAYER_FULL : LAYER_NONE;
            return true;
        }
    }
    if (json_is_array(from_one)) {
        *kind = listed(from_one, layer + 1) ? LAYER_FULL : LAYER_NONE;
        return true;
    }
    if (json_is_array(flags)) {
        *kind = json_integer_value(json_array_get(flags, (size_t)layer)) == 1 ? LAYER_FULL : LAYER_NONE;
        return true;
    }
    return false;
}

tria_status import_layer_kind(json_t *config, int32_t layer, layer_kind *kind, tria_error *error)
{
    const json_t *words = json_object_get(config, "layer_types");
    const json_t *cycle = json_object_get(config, "block_types");
    const json_t *blocks = json_object_get(config, "block_configs");
    const char *word;
    if (!json_is_array(words)) {
        words = json_object_get(config, "layers_block_type");
    }
    if (json_is_array(blocks)) {
        const json_t *attention = json_object_get(json_array_get(blocks, (size_t)layer), "attention");
        *kind = json_is_object(attention) && !json_is_true(json_object_get(attention, "no_op")) &&
                        !json_is_true(json_object_get(attention, "replace_with_linear"))
                    ? LAYER_FULL
                    : LAYER_NONE;
        return TRIA_OK;
    }
    if (json_is_array(words)) {
        word = json_string_value(json_array_get(words, (size_t)layer));
    } else if (json_array_size(cycle) > 0) {
        word = json_string_value(json_array_get(cycle, (size_t)layer % json_array_size(cycle)));
    } else {
        return kind_by_numbers(config, layer, kind) ? TRIA_OK : kind_by_rule(config, layer, kind, error);
    }
    if (word == NULL) {
        return import_fail(error, TRIA_E_FORMAT, "the list of layer types has no text for layer %d", layer);
    }
    IMPORT_TRY(kind_of_word(word, layer, kind, error));
    if (*kind == LAYER_FULL && import_json_has(config, "attention_window_size")) {
        *kind = LAYER_SLIDING; /* the attention between recurrent layers is local */
    }
    return TRIA_OK;
}

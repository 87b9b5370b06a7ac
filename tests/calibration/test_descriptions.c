/* test_descriptions.c - model descriptions in JSON: ours and Hugging Face configurations. */
#include "tria/import.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tria_model *read_text(const char *text)
{
    tria_model *model = NULL;
    tria_error error;
    if (tria_import_model_read(text, strlen(text), 0, NULL, &model, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return model;
}

static tria_layer_params layer_of(const tria_model *model, int32_t layer)
{
    tria_layer_params params = TRIA_LAYER_PARAMS_INIT;
    assert_int_equal(tria_model_layer(model, layer, &params, NULL), TRIA_OK);
    return params;
}

static void refuse(const char *text, const char *words)
{
    tria_model *model = NULL;
    tria_error error;
    if (tria_import_model_read(text, strlen(text), 0, NULL, &model, &error) == TRIA_OK) {
        tria_model_destroy(model);
        fail_msg("it was read, expected an error about \"%s\": %s", words, text);
    }
    if (strstr(error.message, words) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", error.message, words);
    }
}

/* A whole file, with a zero byte behind. */
static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *text;
    long length;
    if (file == NULL) {
        fail_msg("cannot open %s", path);
        return NULL;
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    length = ftell(file);
    assert_true(length >= 0);
    rewind(file);
    text = calloc(1, (size_t)length + 1);
    assert_non_null(text);
    *size = fread(text, 1, (size_t)length, file);
    assert_int_equal(*size, (size_t)length);
    fclose(file);
    return text;
}

/* The frequencies of independently computed vectors, to 1e-14 relative. */
static void test_golden_scalings(void **state)
{
    static const struct {
        const char *description;
        const char *expected;
        int64_t context_length;
    } cases[] = {
        {"model_linear", "linear", 0},
        {"model_yarn", "yarn", 0},
        {"model_yarn_no_truncate", "yarn_no_truncate", 0},
        {"model_yarn_attention_factor", "yarn_attention_factor", 0},
        {"model_yarn_mscale", "yarn_mscale", 0},
        {"model_llama3", "llama3", 0},
        {"model_dynamic_below", "dynamic_below", 2000},
        {"model_dynamic_9000", "dynamic_9000", 9000},
        {"model_longrope_short", "longrope_short", 2048},
        {"model_longrope_long", "longrope_long", 2049},
        {"config_llama31_8b", "llama31_8b", 0},
        {"config_gpt_oss", "gpt_oss", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[256];
        size_t size;
        size_t n_bytes;
        char *text;
        char *vector;
        size_t header;
        tria_model *model;
        tria_error error;
        tria_layer_params layer;
        snprintf(path, sizeof(path), TRIA_TEST_DATA "/golden_spec/rope_scalings/%s.json",
                 cases[i].description);
        text = read_file(path, &size);
        snprintf(path, sizeof(path), TRIA_TEST_DATA "/golden_spec/rope_scalings/inv_freq_%s.npy",
                 cases[i].expected);
        vector = read_file(path, &n_bytes);
        header = 10 + (size_t)(unsigned char)vector[8] + 256 * (size_t)(unsigned char)vector[9];
        if (tria_import_model_read(text, size, cases[i].context_length, NULL, &model, &error) != TRIA_OK) {
            fail_msg("%s: %s", cases[i].description, error.message);
        }
        layer = layer_of(model, 0);
        assert_int_equal(n_bytes - header, (size_t)layer.rotary_dim / 2 * sizeof(double));
        for (int32_t f = 0; f < layer.rotary_dim / 2; f++) {
            double expected;
            memcpy(&expected, vector + header + sizeof(double) * (size_t)f, sizeof(expected));
            if (!(fabs(layer.inv_freq[f] - expected) <= 1e-14 * expected)) {
                fail_msg("%s: frequency %d is %.17g, expected %.17g", cases[i].description, f,
                         layer.inv_freq[f], expected);
            }
        }
        tria_model_destroy(model);
        free(text);
        free(vector);
    }
}

static void test_attention_factors(void **state)
{
    tria_rope_scaling scaling;
    double inv_freq[16];
    double factors[16];
    double factor;
    (void)state;
    for (int32_t f = 0; f < 16; f++) {
        factors[f] = 1;
    }
    tria_rope_scaling_init(&scaling);
    scaling.type = TRIA_ROPE_SCALING_YARN;
    scaling.original_length = 2048;
    scaling.factor = 4;
    assert_int_equal(tria_rope_frequencies(1e4, 32, &scaling, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(fabs(factor - 1.138629436111989) < 1e-15); /* golden_spec/rope_scalings/manifest.txt */
    scaling.factor = 32;
    assert_int_equal(tria_rope_frequencies(1e4, 32, &scaling, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(fabs(factor - 1.3465735902799727) < 1e-15);
    scaling.factor = 40;
    scaling.mscale = 0.707;
    scaling.mscale_all_dim = 0.5;
    assert_int_equal(tria_rope_frequencies(1e4, 32, &scaling, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(fabs(factor - 1.064468903941252) < 1e-15);
    scaling.attention_factor = 1.25;
    assert_int_equal(tria_rope_frequencies(1e4, 32, &scaling, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(factor == 1.25);
    scaling.attention_factor = 0;
    scaling.type = TRIA_ROPE_SCALING_LONGROPE;
    scaling.factor = 8;
    scaling.short_factor = scaling.long_factor = factors;
    assert_int_equal(tria_rope_frequencies(1e4, 32, &scaling, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(fabs(factor - 1.1281521496355325) < 1e-15);
    assert_int_equal(tria_rope_frequencies(1e4, 32, NULL, inv_freq, &factor, NULL), TRIA_OK);
    assert_true(factor == 1);
}

static void test_ours(void **state)
{
    tria_model *model = read_text(
        "{\"name\":\"m\",\"fingerprint\":\"f\",\"n_layers\":4,\"n_q_heads\":8,\"n_kv_heads\":2,\"head_"
        "dim\":16,"
        "\"rotary_dim\":8,\"rope\":{\"style\":\"interleaved\",\"theta\":5e5},\"layers\":["
        "{},{\"head_dim\":32,\"rotary_dim\":16,\"rotary_offset\":16,\"n_kv_heads\":4,"
        "\"rope\":{\"style\":\"half\",\"scaling\":{\"type\":\"linear\",\"factor\":2}},\"window\":512},"
        "{\"n_kv_heads\":0},{\"kv_source\":0}]}");
    tria_layer_params layer = layer_of(model, 0);
    (void)state;
    assert_string_equal(tria_model_name(model), "m");
    assert_string_equal(tria_model_fingerprint(model), "f");
    assert_int_equal(layer.head_dim, 16);
    assert_int_equal(layer.rotary_dim, 8);
    assert_int_equal(layer.rope_style, TRIA_ROPE_INTERLEAVED);
    assert_true(layer.inv_freq[1] == pow(5e5, -0.25));
    layer = layer_of(model, 1);
    assert_int_equal(layer.n_kv_heads, 4);
    assert_int_equal(layer.head_dim, 32);
    assert_int_equal(layer.rotary_offset, 16);
    assert_int_equal(layer.rope_style, TRIA_ROPE_HALF);
    assert_int_equal(layer.window, 512);
    assert_true(fabs(layer.inv_freq[1] - pow(5e5, -0.125) / 2) < 1e-17);
    assert_int_equal(layer_of(model, 2).n_q_heads, 0);
    assert_int_equal(layer_of(model, 3).kv_source, 0);
    assert_int_equal(layer_of(model, 3).n_kv_heads, 2);
    tria_model_destroy(model);
    /* a head_dim of a layer alone means that all of it is rotated */
    model =
        read_text("{\"n_layers\":2,\"n_q_heads\":4,\"head_dim\":64,\"layers\":[null,{\"head_dim\":32}]}");
    assert_int_equal(layer_of(model, 0).n_kv_heads, 4);
    assert_int_equal(layer_of(model, 1).rotary_dim, 32);
    tria_model_destroy(model);
}

static void test_head_dim(void **state)
{
    /* given, and not hidden over heads */
    tria_model *model =
        read_text("{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"num_hidden_layers\":2,"
                  "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,"
                  "\"rope_theta\":1000000,\"sliding_window\":null,\"use_sliding_window\":false}");
    (void)state;
    assert_int_equal(layer_of(model, 1).head_dim, 128);
    assert_int_equal(layer_of(model, 1).rotary_dim, 128);
    assert_int_equal(layer_of(model, 1).window, 0);
    assert_int_equal(layer_of(model, 1).rope_style, TRIA_ROPE_HALF);
    assert_true(layer_of(model, 1).rope_theta == 1e6);
    tria_model_destroy(model);
    model = read_text("{\"hidden_size\":1024,\"num_hidden_layers\":1,\"num_attention_heads\":16}");
    assert_int_equal(layer_of(model, 0).head_dim, 64);
    assert_int_equal(layer_of(model, 0).n_kv_heads, 16);
    tria_model_destroy(model);
    model = read_text("{\"hidden_size\":1024,\"num_hidden_layers\":1,\"num_attention_heads\":16,"
                      "\"partial_rotary_factor\":0.25,\"max_position_embeddings\":100}");
    assert_int_equal(layer_of(model, 0).rotary_dim, 16);
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"gptj\",\"n_embd\":4096,\"n_layer\":2,\"n_head\":16,\"rotary_dim\":64}");
    assert_int_equal(layer_of(model, 0).head_dim, 256);
    assert_int_equal(layer_of(model, 0).rotary_dim, 64);
    assert_int_equal(layer_of(model, 0).rope_style, TRIA_ROPE_INTERLEAVED);
    tria_model_destroy(model);
}

/* Qwen3.5-like: three linear layers to one with attention, a quarter of a wide head rotated, multimodal
 * nesting. */
static void test_hybrid(void **state)
{
    tria_model *model = read_text(
        "{\"model_type\":\"qwen3_5\",\"text_config\":{\"num_hidden_layers\":8,\"num_attention_heads\":24,"
        "\"num_key_value_heads\":4,\"head_dim\":256,\"full_attention_interval\":4,"
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":"
        "0.25,"
        "\"mrope_section\":[11,11,10]}}}");
    (void)state;
    for (int32_t l = 0; l < 8; l++) {
        const tria_layer_params layer = layer_of(model, l);
        assert_int_equal(layer.n_q_heads, l % 4 == 3 ? 24 : 0);
        if (l % 4 == 3) {
            assert_int_equal(layer.head_dim, 256);
            assert_int_equal(layer.rotary_dim, 64);
            assert_true(layer.rope_theta == 1e7);
        }
    }
    tria_model_destroy(model);
    model = read_text("{\"num_hidden_layers\":3,\"num_attention_heads\":4,\"head_dim\":8,"
                      "\"layer_types\":[\"linear_attention\",\"full_attention\",\"conv\"]}");
    assert_int_equal(layer_of(model, 0).n_q_heads, 0);
    assert_int_equal(layer_of(model, 1).n_q_heads, 4);
    assert_int_equal(layer_of(model, 2).n_q_heads, 0);
    tria_model_destroy(model);
    model = read_text("{\"num_hidden_layers\":5,\"num_attention_heads\":4,\"head_dim\":8,"
                      "\"hybrid_override_pattern\":\"M-M*-\"}");
    assert_int_equal(layer_of(model, 2).n_q_heads, 0);
    assert_int_equal(layer_of(model, 3).n_q_heads, 4);
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"jamba\",\"num_hidden_layers\":8,\"num_attention_heads\":4,\"head_dim\":8,"
        "\"attn_layer_period\":8,\"attn_layer_offset\":4}");
    for (int32_t l = 0; l < 8; l++) {
        assert_int_equal(layer_of(model, l).n_q_heads, l == 4 ? 4 : 0);
    }
    tria_model_destroy(model);
}

static void test_sliding(void **state)
{
    tria_model *model =
        read_text("{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":12,\"num_attention_heads\":8,"
                  "\"num_key_value_heads\":4,\"head_dim\":256,\"sliding_window\":1024,"
                  "\"sliding_window_pattern\":6,\"rope_theta\":1000000,\"rope_local_base_freq\":10000,"
                  "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}");
    (void)state;
    for (int32_t l = 0; l < 12; l++) {
        const tria_layer_params layer = layer_of(model, l);
        const bool full = l % 6 == 5;
        const double expected = full ? pow(1e6, -1.0 / 128) / 8 : pow(1e4, -1.0 / 128);
        assert_int_equal(layer.window, full ? 0 : 1024);
        assert_true(fabs(layer.inv_freq[1] - expected) <=
                    1e-15 * expected); /* only the full ones are scaled */
    }
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"gemma2\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_dim\":8,"
        "\"sliding_window\":4096}");
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal(layer_of(model, l).window, l % 2 == 0 ? 4096 : 0);
    }
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_dim\":8,"
        "\"sliding_window\":4096,\"use_sliding_window\":true,\"max_window_layers\":3}");
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal(layer_of(model, l).window, l == 3 ? 4096 : 0);
    }
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"num_attention_heads\":8,\"head_dim\":8,"
        "\"sliding_window\":4096}");
    assert_int_equal(layer_of(model, 1).window, 4096);
    tria_model_destroy(model);
}

/* Gemma-4-like: wider heads and fewer KV heads in full layers, RoPE per layer type, shared caches. */
static void test_mixed_heads(void **state)
{
    tria_model *model = read_text(
        "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":6,\"num_attention_heads\":8,\"num_key_value_"
        "heads\":4,"
        "\"head_dim\":256,\"global_head_dim\":512,\"attention_k_eq_v\":true,\"num_global_key_value_heads\":"
        "2,"
        "\"num_kv_shared_layers\":2,\"sliding_window\":512,\"layer_types\":[\"sliding_attention\","
        "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_"
        "attention\"],"
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000.0,"
        "\"partial_rotary_factor\":0.25},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":"
        "10000.0}}}");
    tria_layer_params layer = layer_of(model, 0);
    (void)state;
    assert_int_equal(layer.head_dim, 256);
    assert_int_equal(layer.n_kv_heads, 4);
    assert_int_equal(layer.window, 512);
    assert_true(layer.inv_freq[1] == pow(1e4, -2.0 / 256));
    layer = layer_of(model, 2);
    assert_int_equal(layer.head_dim, 512);
    assert_int_equal(layer.rotary_dim, 512);
    assert_int_equal(layer.n_kv_heads, 2);
    assert_int_equal(layer.window, 0);
    assert_true(layer.inv_freq[63] == pow(1e6, -126.0 / 512));
    assert_true(layer.inv_freq[64] == 0.0 && layer.inv_freq[255] == 0.0);
    assert_int_equal(layer_of(model, 3).kv_source, -1);
    assert_int_equal(layer_of(model, 4).kv_source, 3);
    assert_int_equal(layer_of(model, 5).kv_source, 2);
    tria_model_destroy(model);
}

static void test_latent(void **state)
{
    tria_model *model =
        read_text("{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":2,\"num_attention_heads\":128,"
                  "\"num_key_value_heads\":128,\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,"
                  "\"qk_nope_head_dim\":128,\"max_position_embeddings\":163840,\"rope_theta\":10000,"
                  "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}");
    const tria_layer_params layer = layer_of(model, 1);
    (void)state;
    assert_int_equal(layer.n_q_heads, 128);
    assert_int_equal(layer.n_kv_heads, 1);
    assert_int_equal(layer.head_dim, 576);
    assert_int_equal(layer.rotary_dim, 64);
    assert_int_equal(layer.rotary_offset, 512);
    assert_int_equal(layer.rope_style, TRIA_ROPE_INTERLEAVED);
    assert_true(layer.inv_freq[0] == 1.0);
    assert_true(fabs(layer.inv_freq[31] - pow(10000, -62.0 / 64) / 40) < 1e-18);
    tria_model_destroy(model);
}

static void test_unrotated(void **state)
{
    tria_model *model =
        read_text("{\"model_type\":\"smollm3\",\"num_hidden_layers\":4,\"num_attention_heads\":4,"
                  "\"head_dim\":8,\"no_rope_layers\":[1,1,1,0]}");
    (void)state;
    assert_true(layer_of(model, 2).inv_freq[0] == 1.0);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(layer_of(model, 3).inv_freq[f] == 0.0);
    }
    tria_model_destroy(model);
    model = read_text(
        "{\"model_type\":\"cohere2\",\"num_hidden_layers\":4,\"num_attention_heads\":4,\"head_dim\":8,"
        "\"sliding_window\":64,\"sliding_window_pattern\":4}");
    assert_true(layer_of(model, 0).inv_freq[0] == 1.0);
    assert_true(layer_of(model, 3).inv_freq[0] == 0.0);
    assert_int_equal(layer_of(model, 0).rope_style, TRIA_ROPE_INTERLEAVED);
    tria_model_destroy(model);
}

/* Phi-3: the trained length stands beside the scaling, which gives the factor. */
static void test_longrope_config(void **state)
{
    static const char text[] =
        "{\"model_type\":\"phi3\",\"num_hidden_layers\":1,\"num_attention_heads\":2,\"hidden_size\":16,"
        "\"max_position_embeddings\":131072,\"original_max_position_embeddings\":4096,"
        "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1.5,2,2.5],\"long_factor\":[4,5,6,7]}"
        "}";
    tria_model *model;
    tria_error error;
    (void)state;
    for (int64_t length = 4096; length <= 4097; length++) {
        assert_int_equal(tria_import_model_read(text, strlen(text), length, NULL, &model, &error), TRIA_OK);
        for (int32_t f = 0; f < 4; f++) {
            const double factor = length > 4096 ? 4 + f : 1 + 0.5 * f;
            const double expected = pow(1e4, -f / 4.0) / factor;
            assert_true(fabs(layer_of(model, 0).inv_freq[f] - expected) <= 1e-15 * expected);
        }
        tria_model_destroy(model);
    }
}

/* Layer `layer` of a configuration: query and KV heads, widths, window, its second frequency. */
typedef struct published {
    const char *text;
    int32_t layer;
    int32_t n_q_heads; /* 0: no attention, nothing else is compared */
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t rotary_dim;
    int32_t window;
    double frequency;
} published;

static void check_published(const published *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const published *expected = &cases[i];
        tria_model *model = read_text(expected->text);
        const tria_layer_params layer = layer_of(model, expected->layer);
        if (layer.n_q_heads != expected->n_q_heads ||
            (layer.n_q_heads != 0 &&
             (layer.n_kv_heads != expected->n_kv_heads || layer.head_dim != expected->head_dim ||
              layer.rotary_dim != expected->rotary_dim || layer.window != expected->window ||
              !(fabs(layer.inv_freq[1] - expected->frequency) <= 1e-14 * expected->frequency)))) {
            fail_msg("layer %d has %d and %d heads of %d, %d rotary, window %d, frequency %.17g: %s",
                     expected->layer, layer.n_q_heads, layer.n_kv_heads, layer.head_dim, layer.rotary_dim,
                     layer.window, layer.n_q_heads != 0 ? layer.inv_freq[1] : 0, expected->text);
        }
        tria_model_destroy(model);
    }
}

/* The text part of a multimodal file holds only what differs from its class. */
static void test_defaults_of_classes(void **state)
{
#define GEMMA3_12B                                                                                         \
    "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":3840,"     \
    "\"num_attention_heads\":16,\"num_hidden_layers\":48,\"num_key_value_heads\":8,\"sliding_window\":"    \
    "1024,"                                                                                                \
    "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}"
#define GEMMA3_4B                                                                                          \
    "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"     \
    "\"num_hidden_layers\":34,\"sliding_window\":1024,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":"     \
    "\"linear\"}}}"
    const published cases[] = {
        {GEMMA3_12B, 0, 16, 8, 256, 256, 1024, pow(1e4, -1.0 / 128)},
        {GEMMA3_12B, 5, 16, 8, 256, 256, 0, pow(1e6, -1.0 / 128) / 8},
        {GEMMA3_4B, 33, 8, 4, 256, 256, 1024, pow(1e4, -1.0 / 128)},
        {"{\"text_config\":{\"model_type\":\"gemma2\",\"hidden_size\":2304,\"num_hidden_layers\":2}}", 0, 8,
         4, 256, 256, 4096, pow(1e4, -1.0 / 128)},
        /* what is stated counts */
        {"{\"model_type\":\"gemma\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
         "\"head_dim\":16}",
         0, 2, 2, 16, 16, 0, pow(1e4, -1.0 / 8)},
    };
    (void)state;
    check_published(cases, sizeof(cases) / sizeof(cases[0]));
}

#define HEADS "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":16"

/* The ways to say which layers have attention. */
static void test_layer_kinds(void **state)
{
    const double second = pow(1e4, -1.0 / 8);
    const published cases[] = {
        {"{" HEADS ",\"attn_layer_indices\":[1,3],\"attn_rotary_emb\":8,\"mamba_d_conv\":4}", 0, 0, 0, 0, 0,
         0, 0},
        {"{" HEADS ",\"attn_layer_indices\":[1,3],\"attn_rotary_emb\":8,\"mamba_d_conv\":4}", 3, 8, 2, 16,
         8, 0, 0.1},
        {"{" HEADS ",\"full_attn_idxs\":[2]}", 1, 0, 0, 0, 0, 0, 0},
        {"{" HEADS ",\"full_attn_idxs\":[2]}", 2, 8, 2, 16, 16, 0, second},
        {"{" HEADS ",\"attn_type_list\":[0,0,0,1]}", 2, 0, 0, 0, 0, 0, 0},
        {"{" HEADS ",\"attn_type_list\":[0,0,0,1]}", 3, 8, 2, 16, 16, 0, second},
        {"{" HEADS ",\"linear_attn_config\":{\"full_attn_layers\":[4]}}", 2, 0, 0, 0, 0, 0, 0},
        {"{" HEADS ",\"linear_attn_config\":{\"full_attn_layers\":[4]}}", 3, 8, 2, 16, 16, 0, second},
        {"{" HEADS ",\"block_types\":[\"recurrent\",\"attention\"],\"attention_window_size\":64}", 2, 0, 0,
         0, 0, 0, 0},
        {"{" HEADS ",\"block_types\":[\"recurrent\",\"attention\"],\"attention_window_size\":64}", 3, 8, 2,
         16, 16, 64, second},
        {"{" HEADS
         ",\"block_configs\":[{\"attention\":{\"n_heads_in_group\":8}},{\"attention\":{\"no_op\":true}}]}",
         0, 8, 1, 16, 16, 0, second},
        {"{" HEADS
         ",\"block_configs\":[{\"attention\":{\"n_heads_in_group\":8}},{\"attention\":{\"no_op\":true}}]}",
         1, 0, 0, 0, 0, 0, 0},
        {"{\"model_type\":\"falcon_h1\"," HEADS ",\"mamba_d_conv\":4}", 0, 8, 2, 16, 16, 0, second},
        {"{" HEADS ",\"sliding_window\":32,\"sliding_window_pattern\":\"LLLG\"}", 2, 8, 2, 16, 16, 32,
         second},
        {"{" HEADS ",\"sliding_window\":32,\"sliding_window_pattern\":\"LLLG\"}", 3, 8, 2, 16, 16, 0,
         second},
        {"{" HEADS ",\"sliding_window\":32,\"_sliding_window_pattern\":2}", 1, 8, 2, 16, 16, 0, second},
    };
    (void)state;
    check_published(cases, sizeof(cases) / sizeof(cases[0]));
    refuse("{" HEADS ",\"layer_types\":[\"full_atention\"]}", "layer 0 is of the type \"full_atention\"");
    refuse("{" HEADS ",\"mamba_d_conv\":4}", "\"mamba_d_conv\" but nothing");
    refuse("{" HEADS ",\"hybrid_override_pattern\":\"MMMM\"}", "no layer has attention");
    refuse("{\"n_layers\":2,\"n_heads\":16,\"d_model\":2048}", "no layer has attention");
}

/* Heads, pairing and rotation that are not what the plain keys say. */
static void test_exceptions(void **state)
{
    const double second = pow(1e4, -1.0 / 8);
    const published cases[] = {
        {"{\"model_type\":\"falcon\",\"num_hidden_layers\":1,\"num_attention_heads\":71,\"num_kv_heads\":"
         "71,"
         "\"hidden_size\":4544,\"multi_query\":true,\"new_decoder_architecture\":false}",
         0, 71, 1, 64, 64, 0, pow(1e4, -1.0 / 32)},
        {"{\"model_type\":\"falcon\",\"num_hidden_layers\":1,\"num_attention_heads\":128,\"num_kv_heads\":"
         "8,"
         "\"hidden_size\":8192,\"multi_query\":true,\"new_decoder_architecture\":true}",
         0, 128, 8, 64, 64, 0, pow(1e4, -1.0 / 32)},
        {"{\"model_type\":\"jamba\"," HEADS "}", 0, 8, 2, 16, 16, 0, 0},
        {"{" HEADS ",\"position_embedding_type\":\"nope\"}", 0, 8, 2, 16, 16, 0, 0},
        {"{" HEADS ",\"position_embedding_type\":\"rope\"}", 0, 8, 2, 16, 16, 0, second},
        {"{" HEADS ",\"alibi\":true}", 0, 8, 2, 16, 16, 0, 0},
        {"{" HEADS ",\"mla_use_nope\":true}", 0, 8, 2, 16, 16, 0, 0},
        /* sliding layers of Olmo 3 are not scaled */
        {"{\"model_type\":\"olmo3\"," HEADS
         ",\"sliding_window\":64,\"sliding_window_pattern\":4,\"rope_scaling\":"
         "{\"rope_type\":\"linear\",\"factor\":8}}",
         0, 8, 2, 16, 16, 64, second},
        {"{\"model_type\":\"olmo3\"," HEADS
         ",\"sliding_window\":64,\"sliding_window_pattern\":4,\"rope_scaling\":"
         "{\"rope_type\":\"linear\",\"factor\":8}}",
         3, 8, 2, 16, 16, 0, second / 8},
    };
    tria_model *model;
    (void)state;
    check_published(cases, sizeof(cases) / sizeof(cases[0]));
    model = read_text("{\"model_type\":\"x\",\"rope_interleave\":true," HEADS "}");
    assert_int_equal(layer_of(model, 0).rope_style, TRIA_ROPE_INTERLEAVED);
    tria_model_destroy(model);
    model = read_text("{\"model_type\":\"deepseek_v3\",\"rope_interleave\":false," HEADS "}");
    assert_int_equal(layer_of(model, 0).rope_style, TRIA_ROPE_HALF);
    tria_model_destroy(model);
}

/* A trained length beside the scaling counts before one in it, except for dynamic scaling. */
static void test_lengths(void **state)
{
    tria_rope_scaling scaling;
    double expected[8];
    (void)state;
    for (int i = 0; i < 2; i++) {
        static const char *const texts[2] = {
            "{" HEADS ",\"max_position_embeddings\":9000,\"original_max_position_embeddings\":64,"
            "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":512}}",
            "{" HEADS ",\"max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"dynamic\","
            "\"factor\":4,\"original_max_position_embeddings\":16}}"};
        tria_model *model;
        assert_int_equal(tria_import_model_read(texts[i], strlen(texts[i]), 100, NULL, &model, NULL),
                         TRIA_OK);
        tria_rope_scaling_init(&scaling);
        scaling.type = i == 0 ? TRIA_ROPE_SCALING_YARN : TRIA_ROPE_SCALING_DYNAMIC;
        scaling.factor = 4;
        scaling.original_length = 64;
        scaling.length = 100;
        assert_int_equal(tria_rope_frequencies(10000, 16, &scaling, expected, NULL, NULL), TRIA_OK);
        assert_memory_equal(layer_of(model, 0).inv_freq, expected, sizeof(expected));
        tria_model_destroy(model);
    }
    refuse("{" HEADS ",\"rope_scaling\":\"yarn\"}", "not an object");
    refuse("{" HEADS ",\"rope_scaling\":{\"factor\":4}}", "without its \"rope_type\"");
    refuse("{" HEADS ",\"rope_scaling\":{\"type\":\"linear\"}}", "\"linear\" has no factor");
}

static void test_bad(void **state)
{
    (void)state;
    refuse("", "not JSON");
    refuse("{", "not JSON");
    refuse("[1]", "not an object");
    refuse("{}", "num_hidden_layers");
    refuse("{\"n_layers\":0}", "\"n_layers\" is not an integer from 1");
    refuse("{\"n_layers\":1e99}", "n_layers");
    refuse("{\"n_layers\":\"4\"}", "n_layers");
    refuse("{\"n_layers\":2.5}", "n_layers");
    refuse("{\"n_layers\":2,\"layers\":[{}]}", "array of 2");
    refuse("{\"n_layers\":1,\"layers\":[3]}", "layers[0] is not an object");
    refuse("{\"n_layers\":1,\"n_q_heads\":4,\"n_kv_heads\":3,\"head_dim\":8}",
           "3 KV heads do not divide 4");
    refuse("{\"n_layers\":1,\"n_q_heads\":4}", "head_dim 0");
    refuse("{\"n_layers\":1,\"n_q_heads\":4,\"head_dim\":8,\"rope\":{\"style\":\"neox\"}}",
           "neither half nor");
    refuse("{\"n_layers\":1,\"n_q_heads\":4,\"head_dim\":8,\"rope\":{\"theta\":\"x\"}}", "theta");
    refuse("{\"n_layers\":1,\"n_q_heads\":4,\"head_dim\":8,\"rope\":{\"scaling\":{\"type\":\"magic\"}}}",
           "rope scaling \"magic\" is not known");
    refuse("{\"n_layers\":1,\"n_q_heads\":4,\"head_dim\":8,\"rope\":{\"scaling\":{\"type\":\"longrope\","
           "\"original_max_position_embeddings\":9,\"factor\":2,\"short_factor\":[1,2,3],\"long_factor\":[]"
           "}}}",
           "short_factor is not an array of 4 numbers");
    refuse("{\"num_hidden_layers\":2}", "num_attention_heads");
    refuse("{\"num_hidden_layers\":2,\"num_attention_heads\":4}", "width of a head");
    refuse("{\"num_hidden_layers\":2,\"num_attention_heads\":4,\"head_dim\":8,\"layer_types\":[\"full_"
           "attention\"]}",
           "no text for layer 1");
    refuse("{\"num_hidden_layers\":1,\"num_attention_heads\":4,\"head_dim\":8,\"partial_rotary_factor\":2}",
           "partial_rotary_factor");
    refuse("{\"num_hidden_layers\":1,\"num_attention_heads\":4,\"head_dim\":8,\"layer_types\":[\"sliding_"
           "attention\"]}",
           "sliding_window");
    refuse("{\"num_hidden_layers\":1,\"num_attention_heads\":4,\"head_dim\":8,\"rope_scaling\":{\"rope_"
           "type\":\"yarn\","
           "\"factor\":4}}",
           "original context length");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_scalings),
        cmocka_unit_test(test_attention_factors),
        cmocka_unit_test(test_ours),
        cmocka_unit_test(test_head_dim),
        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_mixed_heads),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_unrotated),
        cmocka_unit_test(test_longrope_config),
        cmocka_unit_test(test_defaults_of_classes),
        cmocka_unit_test(test_layer_kinds),
        cmocka_unit_test(test_exceptions),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_model.c - model descriptions through the API: defaults, refusals, RoPE scalings. */
#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tria_layer_params good_layer(void)
{
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    layer.n_q_heads = 4;
    layer.n_kv_heads = 2;
    layer.head_dim = 8;
    return layer;
}

static tria_status create(const tria_layer_params *layers, int32_t n_layers, tria_model **model,
                          tria_error *error)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    params.layers = layers;
    params.n_layers = n_layers;
    return tria_model_create(&params, NULL, model, error);
}

static void test_defaults(void **state)
{
    tria_layer_params layers[2] = {good_layer(), TRIA_LAYER_PARAMS_INIT};
    tria_layer_params got = TRIA_LAYER_PARAMS_INIT;
    tria_model *model;
    (void)state;
    layers[1].kv_source = 0; /* no attention: the rest does not matter */
    assert_int_equal(create(layers, 2, &model, NULL), TRIA_OK);
    assert_int_equal(tria_model_n_layers(model), 2);
    assert_string_equal(tria_model_name(model), "");
    assert_string_equal(tria_model_fingerprint(model), "");
    assert_int_equal(tria_model_layer(model, 0, &got, NULL), TRIA_OK);
    assert_int_equal(got.rotary_dim, 8);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(got.inv_freq[f] == pow(10000.0, -2.0 * f / 8));
        assert_true(got.freq_scale_sq[f] == 1.0);
    }
    assert_int_equal(tria_model_layer(model, 1, &got, NULL), TRIA_OK);
    assert_int_equal(got.n_q_heads, 0);
    assert_int_equal(got.kv_source, -1);
    assert_int_equal(tria_model_layer(model, 2, &got, NULL), TRIA_E_ARGUMENT);
    tria_model_destroy(model);
    assert_int_equal(create(&layers[1], 1, &model, NULL), TRIA_OK); /* no attention at all */
    tria_model_destroy(model);
}

static void test_refusals(void **state)
{
    static const double bad_freq[4] = {1.0, 0.5, -0.25, 0.1};
    static const double nan_freq[4] = {1.0, (double)NAN, 0.25, 0.1};
    struct {
        const char *words;
        tria_layer_params layer;
    } cases[] = {
        {"3 KV heads do not divide 4", good_layer()},
        {"0 KV heads do not divide", good_layer()},
        {"5000 query heads", good_layer()},
        {"but no query heads", good_layer()},
        {"head_dim 0", good_layer()},
        {"head_dim 8193", good_layer()},
        {"rotary_dim 5", good_layer()},
        {"rotary_dim 10", good_layer()},
        {"rotary_offset 1", good_layer()},
        {"rotary_offset -1", good_layer()},
        {"rope_style 2", good_layer()},
        {"kv_source 1", good_layer()},
        {"kv_source 0", good_layer()},
        {"window -1", good_layer()},
        {"rope_theta is 0", good_layer()},
        {"inv_freq[2] is -0.25", good_layer()},
        {"freq_scale_sq[1] is nan", good_layer()},
    };
    (void)state;
    cases[0].layer.n_kv_heads = 3;
    cases[1].layer.n_kv_heads = 0;
    cases[2].layer.n_q_heads = 5000;
    cases[3].layer.n_q_heads = 0;
    cases[4].layer.head_dim = 0;
    cases[5].layer.head_dim = 8193;
    cases[6].layer.rotary_dim = 5;
    cases[7].layer.rotary_dim = 10;
    cases[8].layer.rotary_offset = 1;
    cases[9].layer.rotary_offset = -1;
    cases[10].layer.rope_style = 2;
    cases[11].layer.kv_source = 1;
    cases[12].layer.kv_source = 0;
    cases[13].layer.window = -1;
    cases[14].layer.rope_theta = 0;
    cases[15].layer.inv_freq = bad_freq;
    cases[16].layer.freq_scale_sq = nan_freq;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tria_model *model = NULL;
        tria_error error;
        assert_int_equal(create(&cases[i].layer, 1, &model, &error), TRIA_E_ARGUMENT);
        assert_null(model);
        if (strstr(error.message, cases[i].words) == NULL) {
            fail_msg("\"%s\" says nothing of \"%s\"", error.message, cases[i].words);
        }
    }
}

static void test_shared_caches(void **state)
{
    tria_layer_params layers[3] = {good_layer(), good_layer(), good_layer()};
    tria_layer_params got = TRIA_LAYER_PARAMS_INIT;
    tria_model *model;
    tria_error error;
    (void)state;
    layers[2].kv_source = 0;
    layers[2].n_kv_heads = 0;
    assert_int_equal(create(layers, 3, &model, &error), TRIA_OK);
    assert_int_equal(tria_model_layer(model, 2, &got, NULL), TRIA_OK);
    assert_int_equal(got.n_kv_heads, 2);
    tria_model_destroy(model);
    layers[2].rope_theta = 5000;
    assert_int_equal(create(layers, 3, &model, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "must be those of its kv_source 0"));
    layers[2].rope_theta = 10000;
    layers[0].kv_source = 1;
    assert_int_equal(create(layers, 3, &model, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "no KV cache of its own"));
}

/* Larger structs of a later library: accepted while what is new is zero. */
static void test_struct_sizes(void **state)
{
    struct {
        tria_layer_params known;
        uint64_t later;
    } layers[2];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model;
    tria_error error;
    (void)state;
    memset(layers, 0, sizeof(layers));
    for (int i = 0; i < 2; i++) {
        layers[i].known = good_layer();
        layers[i].known.struct_size = sizeof(layers[i]);
    }
    layers[1].known.head_dim = 16;
    params.layers = &layers[0].known;
    params.n_layers = 2;
    assert_int_equal(tria_model_create(&params, NULL, &model, &error), TRIA_OK);
    {
        tria_layer_params got = TRIA_LAYER_PARAMS_INIT;
        assert_int_equal(tria_model_layer(model, 1, &got, NULL), TRIA_OK);
        assert_int_equal(got.head_dim, 16);
    }
    tria_model_destroy(model);
    layers[1].later = 1;
    assert_int_equal(tria_model_create(&params, NULL, &model, &error), TRIA_E_ARGUMENT);
    params.n_layers = 0;
    assert_int_equal(tria_model_create(&params, NULL, &model, &error), TRIA_E_ARGUMENT);
    params.n_layers = 4097;
    assert_int_equal(tria_model_create(&params, NULL, &model, &error), TRIA_E_ARGUMENT);
}

static void test_scaling_refusals(void **state)
{
    double out[4] = {7, 7, 7, 7};
    double factors[4] = {1, 1, -1, 1};
    double attention = 7;
    tria_rope_scaling scaling;
    tria_error error;
    (void)state;
    assert_int_equal(tria_rope_frequencies(0, 8, NULL, out, NULL, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_rope_frequencies(1e4, 7, NULL, out, NULL, &error), TRIA_E_ARGUMENT);
    tria_rope_scaling_init(&scaling);
    scaling.type = 9;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
    scaling.type = TRIA_ROPE_SCALING_LINEAR;
    scaling.factor = (double)NAN;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
    scaling.factor = 2;
    for (int32_t type = TRIA_ROPE_SCALING_DYNAMIC; type <= TRIA_ROPE_SCALING_LONGROPE; type++) {
        scaling.type = type;
        assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
        assert_non_null(strstr(error.message, "original context length"));
    }
    scaling.original_length = 2048;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "short_factor"));
    scaling.short_factor = scaling.long_factor = factors;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "factor 2 is -1"));
    factors[2] = 5e-324;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, &attention, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "frequency 2 the value inf"));
    scaling.type = TRIA_ROPE_SCALING_LLAMA3;
    scaling.high_freq_factor = 1;
    assert_int_equal(tria_rope_frequencies(1e4, 8, &scaling, out, NULL, &error), TRIA_E_ARGUMENT);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(out[f] == 7); /* nothing was written */
    }
    assert_true(attention == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shared_caches),    cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_scaling_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

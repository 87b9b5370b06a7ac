/* test_match.c - a calibration against a model: what is fatal, what the model's value overrides, what is
 * said. */
#include "fixture.h"

#include "calibration_internal.h"
#include "model_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_FINDINGS = 16 };

typedef struct findings {
    int32_t count;
    tria_finding_severity severity[MAX_FINDINGS];
    int32_t layer[MAX_FINDINGS];
    char text[MAX_FINDINGS][400];
} findings;

static void keep(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    findings *all = context;
    assert_true(all->count < MAX_FINDINGS);
    all->severity[all->count] = severity;
    all->layer[all->count] = layer;
    snprintf(all->text[all->count], sizeof(all->text[0]), "%s", text);
    all->count++;
}

/* Exactly one finding of this severity holds all the words; returns its layer. */
static int32_t must_find(const findings *all, tria_finding_severity severity, const char *a, const char *b)
{
    int32_t found = -2;
    for (int32_t i = 0; i < all->count; i++) {
        if (all->severity[i] == severity && strstr(all->text[i], a) != NULL &&
            strstr(all->text[i], b) != NULL) {
            assert_int_equal(found, -2);
            found = all->layer[i];
        }
    }
    if (found == -2) {
        for (int32_t i = 0; i < all->count; i++) {
            print_error("%d %d %s\n", all->severity[i], all->layer[i], all->text[i]);
        }
        fail_msg("no finding of severity %d with \"%s\" and \"%s\"", severity, a, b);
    }
    return found;
}

static tria_status match(const tria_calibration *calibration, const tria_model *model, findings *all)
{
    tria_error error;
    tria_status status;
    memset(all, 0, sizeof(*all));
    status = tria_calibration_match(calibration, model, keep, all, &error);
    if (status != TRIA_OK) {
        assert_int_equal(status, TRIA_E_MISMATCH);
        for (int32_t i = 0; i < all->count; i++) {
            if (all->severity[i] == TRIA_FINDING_FATAL) {
                assert_non_null(strstr(error.message, all->text[i])); /* the first one */
                break;
            }
        }
    }
    return status;
}

static void test_agreement(void **state)
{
    tria_model *model = make_model(3, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    findings all;
    (void)state;
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    assert_int_equal(all.count, 0);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* Models that differ from a 3 x 4/2 x 8 calibration in one number each. */
static void test_fatal(void **state)
{
    static const struct {
        int32_t n_layers, n_q, n_kv, head_dim, rotary_dim;
        const char *a, *b;
    } cases[] = {
        {4, 4, 2, 8, 8, "3 layers", "the model 4"},
        {2, 4, 2, 8, 8, "3 layers", "the model 2"},
        {3, 8, 2, 8, 8, "4 query heads", "the model 8"},
        {3, 4, 4, 8, 8, "2 KV heads", "the model 4"},
        {3, 4, 2, 8, 6, "4 frequencies", "rotates 6 of its 8"},
        {3, 4, 2, 12, 12, "4 frequencies", "rotates 12 of its 12"},
    };
    tria_model *own = make_model(3, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(own);
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tria_model *model = make_model(cases[i].n_layers, cases[i].n_q, cases[i].n_kv, cases[i].head_dim,
                                       cases[i].rotary_dim);
        findings all;
        tria_calibration *adopted;
        assert_int_equal(match(calibration, model, &all), TRIA_E_MISMATCH);
        assert_int_equal(must_find(&all, TRIA_FINDING_FATAL, cases[i].a, cases[i].b), -1);
        assert_int_equal(tria_calibration_adopt(calibration, model, NULL, &adopted, NULL), TRIA_E_MISMATCH);
        tria_model_destroy(model);
    }
    tria_calibration_destroy(calibration);
    tria_model_destroy(own);
}

static void test_fatal_content(void **state)
{
    tria_model *own = make_model(1, 2, 1, 8, 4);
    tria_model *wider = make_model(1, 2, 1, 10, 4);
    tria_calibration *calibration = make_calibration(own);
    findings all;
    (void)state;
    assert_int_equal(match(calibration, wider, &all), TRIA_E_MISMATCH);
    must_find(&all, TRIA_FINDING_FATAL, "4 content", "the model 6");
    tria_calibration_destroy(calibration);
    tria_model_destroy(own);
    tria_model_destroy(wider);
}

static void test_fatal_attention(void **state)
{
    tria_model *own = make_model(3, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(own);
    findings all;
    (void)state;
    tria_layer_params_init(&own->layers[1]); /* now without attention */
    assert_int_equal(match(calibration, own, &all), TRIA_E_MISMATCH);
    assert_int_equal(must_find(&all, TRIA_FINDING_FATAL, "4 heads where", "has 0"), 1);
    own->layers[1].n_q_heads = 0;
    tria_calibration_destroy(calibration);
    tria_model_destroy(own);
}

static void test_identity(void **state)
{
    tria_model *model = make_model(1, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    findings all;
    (void)state;
    tria_env env;
    assert_int_equal(tria_env_import(&env, NULL, NULL), TRIA_OK);
    assert_int_equal(tria_calibration_set_texts(calibration, "qwen", "aaaa", NULL, NULL, NULL), TRIA_OK);
    assert_int_equal(match(calibration, model, &all), TRIA_OK); /* the model does not say */
    assert_int_equal(all.count, 0);
    tria_free(&env, model->fingerprint);
    tria_free(&env, model->name);
    model->fingerprint = tria_strdup(&env, "bbbb");
    model->name = tria_strdup(&env, "llama");
    assert_int_equal(match(calibration, model, &all), TRIA_E_MISMATCH);
    must_find(&all, TRIA_FINDING_FATAL, "aaaa", "bbbb");
    must_find(&all, TRIA_FINDING_NOTE, "qwen", "llama");
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* The model's value wins; both are said. */
static void test_overrides(void **state)
{
    buffer file = {0};
    tria_model *model = make_model(3, 4, 2, 256, 8);
    tria_calibration *calibration;
    tria_calibration *adopted;
    findings all;
    (void)state;
    make_dialect_a(&file, 2, 8, 0);
    calibration = must_read(&file);
    for (int32_t l = 0; l < 3; l++) {
        model->layers[l].rope_theta = 1e6;
        model->layers[l].rotary_offset = 16;
        model->layers[l].rope_style = TRIA_ROPE_INTERLEAVED; /* the file does not say: nothing to report */
        tria_inv_freq_from_theta(1e6, 8, (double *)(uintptr_t)model->layers[l].inv_freq);
    }
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    assert_int_equal(must_find(&all, TRIA_FINDING_WARNING,
                               "head_dim is 8 in the calibration (it stores the rotary width)",
                               "256 in the model"),
                     -1);
    assert_int_equal(
        must_find(&all, TRIA_FINDING_WARNING, "rope_theta is 10000 in", "1000000 in the model"), -1);
    must_find(&all, TRIA_FINDING_WARNING, "starts at 0", "16 in the model");
    must_find(&all, TRIA_FINDING_NOTE, "11 of 12", "have statistics");
    assert_int_equal(all.count, 4);
    assert_int_equal(tria_calibration_adopt(calibration, model, NULL, &adopted, NULL), TRIA_OK);
    assert_int_equal(adopted->layers[2].geometry.head_dim, 256);
    assert_int_equal(adopted->layers[2].geometry.rotary_offset, 16);
    assert_int_equal(adopted->layers[2].geometry.rope_style, TRIA_ROPE_INTERLEAVED);
    assert_true(adopted->layers[2].inv_freq[1] == model->layers[2].inv_freq[1]);
    assert_true(adopted->layers[2].budget_scale == 1.5F);
    assert_same_stats(calibration, adopted);
    assert_int_equal(match(adopted, model, &all), TRIA_OK);
    assert_int_equal(all.count, 1);
    tria_calibration_destroy(adopted);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    buffer_free(&file);
}

static void test_style_and_scale(void **state)
{
    buffer file = {0};
    tria_model *model = make_model(3, 4, 2, 10, 8);
    tria_calibration *calibration;
    findings all;
    (void)state;
    make_dialect_b(&file, 2);
    calibration = must_read(&file);
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    must_find(&all, TRIA_FINDING_WARNING, "interleaved (1) in the calibration", "half (0) in the model");
    must_find(&all, TRIA_FINDING_WARNING, "frequency 1 is 0.5 against 0.1", "10000 in the model");
    must_find(&all, TRIA_FINDING_WARNING, "freq_scale_sq 1 is 1.5", "1 in the model");
    must_find(&all, TRIA_FINDING_WARNING, "1 of 3 attention layers", "layer 1");
    for (int32_t l = 0; l < 3; l++) {
        calibration->layers[l].geometry.rope_theta = 10000; /* as the model's: the theta is not to blame */
    }
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    must_find(&all, TRIA_FINDING_WARNING,
              "scaled otherwise: frequency 1 is 0.5 in the calibration, 0.1 in the model",
              "rope_theta 10000");
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    buffer_free(&file);
}

/* Layers that disagree differently are reported one by one. */
static void test_per_layer(void **state)
{
    tria_model *model = make_model(3, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    findings all;
    (void)state;
    calibration->layers[1].geometry.rotary_offset = 0;
    calibration->layers[1].geometry.head_dim = 9;
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    assert_int_equal(must_find(&all, TRIA_FINDING_WARNING, "head_dim is 9", "8 in the model"), 1);
    assert_int_equal(all.count, 1);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* A hybrid says what share of its layers evicts; uncalibrated layers beyond the model do not matter. */
static void test_hybrid(void **state)
{
    tria_model *model = make_model(8, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    findings all;
    (void)state;
    for (int32_t l = 0; l < 8; l++) {
        if (l % 4 == 3) {
            continue;
        }
        tria_layer_params_init(&model->layers[l]);
        for (int32_t h = 0; h < 4; h++) {
            assert_int_equal(tria_calibration_set_head(calibration, l, h, NULL, NULL), TRIA_OK);
        }
    }
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    must_find(&all, TRIA_FINDING_WARNING, "2 of its 8 layers (25.0 %)", "the other 6");
    assert_int_equal(all.count, 1);
    for (int32_t h = 0; h < 4; h++) {
        assert_int_equal(tria_calibration_set_head(calibration, 7, h, NULL, NULL), TRIA_OK);
    }
    model->n_layers = 7;
    assert_int_equal(match(calibration, model, &all), TRIA_OK);
    model->n_layers = 8;
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

static void test_from_calibration(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    tria_model *model;
    tria_error error;
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    (void)state;
    make_dialect_b(&file, 3);
    calibration = must_read(&file);
    /* layer 2 reads layer 0: equal geometry, so it works */
    assert_int_equal(tria_model_from_calibration(calibration, NULL, &model, &error), TRIA_OK);
    assert_int_equal(tria_model_layer(model, 2, &layer, &error), TRIA_OK);
    assert_int_equal(layer.kv_source, 0);
    assert_true(layer.inv_freq[0] == 1.0 && layer.freq_scale_sq[0] == 1.0);
    tria_model_destroy(model);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
    make_dialect_c(&file, false);
    calibration = must_read(&file);
    assert_int_equal(tria_model_from_calibration(calibration, NULL, &model, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "KV heads"));
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void test_review(void **state)
{
    tria_model *model = make_model(2, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    float real[4] = {0.05F, 0.1F, 0.05F, 0.1F};
    float imag[4] = {0};
    float absolute[4] = {1, 1, 1, 1};
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    findings all = {0};
    (void)state;
    assert_int_equal(tria_calibration_review(calibration, keep, &all, NULL), TRIA_OK);
    assert_int_equal(all.count, 0);
    stats.q_mean_real = real;
    stats.q_mean_imag = imag;
    stats.q_abs_mean = absolute;
    for (int32_t i = 0; i < 7; i++) {
        assert_int_equal(tria_calibration_set_head(calibration, i / 4, i % 4, i == 2 ? NULL : &stats, NULL),
                         TRIA_OK);
    }
    absolute[3] = 0.09F; /* |q_mean| is 0.1 */
    assert_int_equal(tria_calibration_set_head(calibration, 0, 1, &stats, NULL), TRIA_OK);
    assert_int_equal(tria_calibration_set_tokens(calibration, 0, 5000, NULL), TRIA_OK);
    assert_int_equal(tria_calibration_set_tokens(calibration, 1, 4095, NULL), TRIA_OK);
    assert_int_equal(tria_calibration_review(calibration, keep, &all, NULL), TRIA_OK);
    must_find(&all, TRIA_FINDING_WARNING, "low concentration", "0.075, below 0.2");
    must_find(&all, TRIA_FINDING_WARNING, "layer 1 saw 4095", "4096");
    must_find(&all, TRIA_FINDING_WARNING, "1 norm coefficients are negative", "layer 0 head 1 frequency 3");
    must_find(&all, TRIA_FINDING_WARNING, "1 of 8 query heads", "no statistics");
    assert_int_equal(all.count, 4);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

static void test_set_head(void **state)
{
    tria_model *model = make_model(2, 4, 2, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    tria_calibration *same = make_calibration(model);
    float bad[4] = {1, 2, (float)NAN, 4};
    float good[4] = {1, 2, 3, 4};
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    tria_error error;
    (void)state;
    stats.q_mean_real = good;
    stats.q_mean_imag = bad;
    stats.q_abs_mean = good;
    assert_int_equal(tria_calibration_set_head(calibration, 1, 2, &stats, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "layer 1 head 2: q_mean_imag[2] is nan"));
    stats.q_mean_imag = NULL;
    assert_int_equal(tria_calibration_set_head(calibration, 1, 2, &stats, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_calibration_set_head(calibration, 2, 0, NULL, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_calibration_set_head(calibration, 0, 4, NULL, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_calibration_set_head(calibration, -1, 0, NULL, &error), TRIA_E_ARGUMENT);
    assert_same_stats(calibration, same); /* unchanged */
    tria_calibration_destroy(calibration);
    tria_calibration_destroy(same);
    tria_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agreement),       cmocka_unit_test(test_fatal),
        cmocka_unit_test(test_fatal_content),   cmocka_unit_test(test_fatal_attention),
        cmocka_unit_test(test_identity),        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_style_and_scale), cmocka_unit_test(test_per_layer),
        cmocka_unit_test(test_hybrid),          cmocka_unit_test(test_from_calibration),
        cmocka_unit_test(test_review),          cmocka_unit_test(test_set_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

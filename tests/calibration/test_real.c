/*
 * test_real.c - calibration files from the field, when they are at hand: sums as published beside them,
 * what is wrong with them, and conversions that lose nothing. They must not be in the repository, so the
 * test is skipped where they are absent.
 */
#include "fixture.h"

#include "tria/import.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct {
    const char *name;
    int32_t format;
    int32_t n_layers, n_q_heads, n_kv_heads, head_dim, n_calibrated;
    int32_t layer; /* head 0 of which the first numbers are given */
    double sums[3];
    float first[3][3];
} FILES[] = {
    {"qwen3_8b.pt",
     TRIA_FORMAT_PT,
     36,
     32,
     0,
     128,
     1152,
     0,
     {-673.167631201, 414.154333709, 111555.878055},
     {{-0.0681921914F, 0.0741873831F, 0.291217506F},
      {-0.0275205579F, 0.141955361F, 0.000803697854F},
      {0.183892503F, 0.254902184F, 0.470548809F}}},
    {"ds_llama8b.pt",
     TRIA_FORMAT_PT,
     32,
     32,
     0,
     128,
     1024,
     0,
     {220.299239314, 21.0992481966, 86177.8784923},
     {{0.476243973F, 1.38722706F, 1.04312456F},
      {-0.106322691F, -0.929529369F, -1.6455121F},
      {0.528807342F, 1.70758069F, 1.95364368F}}},
    {"gpt_oss_120b_stats.pt",
     TRIA_FORMAT_PT,
     36,
     64,
     8,
     64,
     2304,
     0,
     {-1018.68815963, -1001.22814261, 161056.873588},
     {{-0.00331449392F, -0.0430620126F, -0.265071929F},
      {0.0141519504F, -0.056793049F, 0.0629918054F},
      {0.132841408F, 0.0989412591F, 0.387348771F}}},
    {"qwen3-1.7b.bin",
     TRIA_FORMAT_TRIA1,
     28,
     16,
     8,
     128,
     448,
     0,
     {11.0700644684, 110.386681466, 43181.3805111},
     {{0.842679143F, 0.447525531F, -0.235920787F},
      {-0.419563591F, 0.0233894587F, -0.201830089F},
      {1.36024356F, 0.686574519F, 0.421586573F}}},
    {"qwen3-8b.bin",
     TRIA_FORMAT_TRIA1,
     36,
     32,
     8,
     128,
     1152,
     0,
     {-776.072659926, 12.7029185786, 112499.86891},
     {{-0.0412337407F, 0.0151993092F, 0.142387539F},
      {-0.00271228328F, 0.0922481269F, -0.109041139F},
      {0.182150453F, 0.247709304F, 0.390338778F}}},
    {"qwen3.5-27b.bin",
     TRIA_FORMAT_TRIA2,
     64,
     24,
     4,
     64,
     384,
     3,
     {25.7691308128, -336.623539819, 21693.0088704},
     {{0.512225866F, 0.290966719F, -0.734009147F},
      {-0.847564995F, -0.963376164F, 0.849808812F},
      {1.52965927F, 1.52178812F, 1.65116751F}}},
};

enum { N_FILES = sizeof(FILES) / sizeof(FILES[0]) };

static tria_calibration *load(const char *name, const tria_model *model)
{
    char path[512];
    tria_calibration *calibration;
    tria_error error;
    snprintf(path, sizeof(path), TRIA_SHARED_DATA "/calibrations/%s", name);
    if (tria_import_calibration_load(path, model, NULL, &calibration, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return calibration;
}

static void test_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        tria_calibration *calibration = load(FILES[i].name, NULL);
        tria_calibration_info info = {.struct_size = sizeof(info)};
        double sums[3] = {0};
        assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
        assert_int_equal(info.format, FILES[i].format);
        assert_int_equal(info.n_layers, FILES[i].n_layers);
        assert_int_equal(info.n_calibrated, FILES[i].n_calibrated);
        for (int32_t l = 0; l < info.n_layers; l++) {
            tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
            assert_int_equal(tria_calibration_layer(calibration, l, &layer, NULL), TRIA_OK);
            assert_int_equal(layer.geometry.n_q_heads, FILES[i].n_q_heads);
            assert_int_equal(layer.geometry.n_kv_heads, FILES[i].n_kv_heads);
            assert_int_equal(layer.geometry.head_dim, FILES[i].head_dim);
            for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
                tria_head_stats stats = {.struct_size = sizeof(stats)};
                int32_t present;
                const float *arrays[3];
                assert_int_equal(tria_calibration_head(calibration, l, h, &stats, &present, NULL), TRIA_OK);
                arrays[0] = stats.q_mean_real;
                arrays[1] = stats.q_mean_imag;
                arrays[2] = stats.q_abs_mean;
                for (int32_t f = 0; present && f < 3 * layer.geometry.rotary_dim / 2; f++) {
                    sums[f % 3] += (double)arrays[f % 3][f / 3];
                }
                for (int32_t f = 0; l == FILES[i].layer && h == 0 && f < 9; f++) {
                    assert_true(arrays[f % 3][f / 3] == FILES[i].first[f % 3][f / 3]);
                }
            }
        }
        for (int32_t k = 0; k < 3; k++) {
            /* published with 12 digits */
            if (!(fabs(sums[k] - FILES[i].sums[k]) <= 1e-9 * fmax(1, fabs(FILES[i].sums[k])))) {
                fail_msg("%s: sum %d is %.17g, published %.12g", FILES[i].name, k, sums[k],
                         FILES[i].sums[k]);
            }
        }
        tria_calibration_destroy(calibration);
    }
}

static char findings[16][400];
static int32_t n_findings;

static void keep(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    (void)context;
    (void)layer;
    assert_int_not_equal(severity, TRIA_FINDING_FATAL);
    assert_true(n_findings < 16);
    snprintf(findings[n_findings++], sizeof(findings[0]), "%s", text);
}

static void must_find(const char *words)
{
    for (int32_t i = 0; i < n_findings; i++) {
        if (strstr(findings[i], words) != NULL) {
            return;
        }
    }
    fail_msg("no finding says \"%s\"", words);
}

static tria_model *describe(const char *text)
{
    tria_model *model;
    tria_error error;
    if (tria_import_model_read(text, strlen(text), 0, NULL, &model, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return model;
}

/* The public configurations of the models, shortened. */
static const char QWEN3_8B[] =
    "{\"model_type\":\"qwen3\",\"hidden_size\":4096,\"num_hidden_layers\":36,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"head_dim\":128,\"rope_theta\":1000000,\"rope_scaling\":null,"
    "\"sliding_window\":null,\"use_sliding_window\":false}";
static const char QWEN35_27B[] =
    "{\"text_config\":{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":64,\"num_attention_heads\":24,"
    "\"num_key_value_heads\":4,\"head_dim\":256,\"full_attention_interval\":4,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25}"
    "}}";

static void test_findings(void **state)
{
    tria_model *qwen3 = describe(QWEN3_8B);
    tria_model *hybrid = describe(QWEN35_27B);
    tria_calibration *calibration = load("qwen3-8b.bin", NULL);
    tria_error error;
    (void)state;
    assert_int_equal(tria_calibration_match(calibration, qwen3, keep, NULL, &error), TRIA_OK);
    assert_int_equal(n_findings, 1);
    must_find("rope_theta is 10000 in the calibration, 1000000 in the model");
    assert_int_equal(tria_calibration_match(calibration, hybrid, NULL, NULL, &error), TRIA_E_MISMATCH);
    tria_calibration_destroy(calibration);
    n_findings = 0;
    calibration = load("qwen3.5-27b.bin", NULL);
    assert_int_equal(tria_calibration_match(calibration, hybrid, keep, NULL, &error), TRIA_OK);
    assert_int_equal(n_findings, 2);
    must_find("head_dim is 64 in the calibration (it stores the rotary width), 256 in the model");
    must_find("16 of its 64 layers (25.0 %)");
    n_findings = 0;
    assert_int_equal(tria_calibration_review(calibration, keep, NULL, &error), TRIA_OK);
    must_find("48 of 64 layers have no calibrated head (all zero)");
    tria_calibration_destroy(calibration);
    n_findings = 0;
    calibration = load("qwen3_8b.pt", qwen3);
    assert_int_equal(tria_calibration_match(calibration, qwen3, keep, NULL, &error), TRIA_OK);
    assert_int_equal(n_findings, 0);
    tria_calibration_destroy(calibration);
    tria_model_destroy(qwen3);
    tria_model_destroy(hybrid);
}

static tria_calibration *convert(const tria_calibration *calibration, int32_t format)
{
    buffer file = {0};
    tria_calibration *read;
    tria_error error;
    size_t size;
    if (tria_import_calibration_write(calibration, format, 0, NULL, 0, &size, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    file.data = malloc(size);
    assert_non_null(file.data);
    file.size = file.capacity = size;
    assert_int_equal(tria_import_calibration_write(calibration, format, 0, file.data, size, &size, &error),
                     TRIA_OK);
    read = must_read(&file);
    buffer_free(&file);
    return read;
}

/* To version 5 and back to what it was, or to what can hold it. */
static void test_conversions(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        tria_calibration *calibration = load(FILES[i].name, NULL);
        tria_calibration *ours = convert(calibration, TRIA_FORMAT_TRIA5);
        assert_same_stats(calibration, ours);
        if (FILES[i].format != TRIA_FORMAT_PT) {
            tria_calibration *back = convert(ours, FILES[i].format);
            assert_same_stats(calibration, back);
            tria_calibration_destroy(back);
        }
        tria_calibration_destroy(ours);
        tria_calibration_destroy(calibration);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_findings),
        cmocka_unit_test(test_conversions),
    };
    if (access(TRIA_SHARED_DATA "/calibrations/README.md", R_OK) != 0) {
        printf("SKIPPED: no calibration files in " TRIA_SHARED_DATA "/calibrations\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

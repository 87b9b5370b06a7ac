/* test_formats.c - dialects A, B, C as their layouts say, and files that lie about themselves. */
#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tria_calibration_layer_info layer_of(const tria_calibration *calibration, int32_t layer)
{
    tria_calibration_layer_info info = {.struct_size = sizeof(info)};
    assert_int_equal(tria_calibration_layer(calibration, layer, &info, NULL), TRIA_OK);
    return info;
}

/* The head is there and every array holds what the fixture put there. */
static void check_head(const tria_calibration *calibration, int32_t layer, int32_t head, int32_t n_freq,
                       int32_t n_content, bool mrl_as_read)
{
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    const float *mrl;
    int32_t present;
    assert_int_equal(tria_calibration_head(calibration, layer, head, &stats, &present, NULL), TRIA_OK);
    assert_int_equal(present, 1);
    for (int32_t f = 0; f < n_freq; f++) {
        assert_true(stats.q_mean_real[f] == stat_value(0, layer, head, f));
        assert_true(stats.q_mean_imag[f] == stat_value(1, layer, head, f));
        assert_true(stats.q_abs_mean[f] == stat_value(2, layer, head, f));
    }
    assert_int_equal(tria_calibration_mrl(calibration, layer, head, &mrl, NULL), TRIA_OK);
    for (int32_t f = 0; f < n_freq; f++) {
        const double expected =
            hypot((double)stats.q_mean_real[f], (double)stats.q_mean_imag[f]) / (double)stats.q_abs_mean[f];
        assert_true(mrl_as_read ? mrl[f] == stat_value(3, layer, head, f) : mrl[f] == (float)expected);
    }
    assert_int_equal(stats.content_mean != NULL, n_content > 0);
    for (int32_t d = 0; d < n_content; d++) {
        assert_true(stats.content_mean[d] == stat_value(4, layer, head, d));
        assert_true(stats.content_abs[d] == stat_value(5, layer, head, d));
    }
}

static void check_absent(const tria_calibration *calibration, int32_t layer, int32_t head)
{
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    int32_t present = 7;
    assert_int_equal(tria_calibration_head(calibration, layer, head, &stats, &present, NULL), TRIA_OK);
    assert_int_equal(present, 0);
    assert_null(stats.q_mean_real);
}

static void check_dialect_a(uint32_t version, uint32_t head_dim, uint32_t n_content, int32_t expected_dim)
{
    buffer file = {0};
    tria_calibration_info info = {.struct_size = sizeof(info)};
    tria_calibration *calibration;
    make_dialect_a(&file, version, head_dim, n_content);
    calibration = must_read(&file);
    assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
    assert_int_equal(info.format, TRIA_FORMAT_TRIA1 + (int32_t)version - 1);
    assert_int_equal(info.n_layers, 3);
    assert_int_equal(info.n_heads, 12);
    assert_int_equal(info.n_calibrated, 11);
    assert_int_equal(info.explicit_presence, 0);
    assert_int_equal(info.explicit_style, 0);
    assert_true(info.rope_theta == 10000.0);
    for (int32_t l = 0; l < 3; l++) {
        static const int32_t n_freq_4[3] = {4, 2, 3};
        const int32_t n_freq = version >= 4 ? n_freq_4[l] : 4;
        const tria_calibration_layer_info layer = layer_of(calibration, l);
        assert_int_equal(layer.geometry.rotary_dim, 2 * n_freq);
        assert_int_equal(layer.geometry.head_dim,
                         version >= 4 ? 2 * n_freq + (int32_t)n_content : expected_dim);
        assert_true(layer.budget_scale == (version >= 2 ? 0.5F * (float)(l + 1) : 1.0F));
        assert_null(layer.geometry.inv_freq);
        for (int32_t h = 0; h < 4; h++) {
            if (l == 1 && h == 3) {
                check_absent(calibration, l, h);
            } else {
                check_head(calibration, l, h, n_freq, version >= 3 ? (int32_t)n_content : 0, true);
            }
        }
    }
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void test_dialect_a(void **state)
{
    (void)state;
    check_dialect_a(1, 8, 0, 8);
    check_dialect_a(2, 8, 0, 8);
    check_dialect_a(2, 64, 0, 64); /* a partly rotated head without content statistics */
    check_dialect_a(3, 8, 3, 11);  /* head_dim is the rotary width */
    check_dialect_a(3, 11, 3, 11); /* head_dim is the whole width */
    check_dialect_a(4, 8, 0, 0);
    check_dialect_a(4, 8, 5, 0);
}

/* Every field of the header that can be wrong, and what is said about it. */
static void test_dialect_a_header(void **state)
{
    static const struct {
        uint32_t version;
        size_t at;
        uint32_t value;
        const char *words;
    } cases[] = {
        {4, 8, 0, "n_layers"},
        {4, 8, 4097, "n_layers"},
        {4, 12, 0, "n_q_heads"},
        {4, 12, 4097, "n_q_heads"},
        {4, 16, 0, "n_kv_heads"},
        {4, 16, 3, "n_kv_heads"},
        {4, 20, 0, "head_dim"},
        {4, 20, 8193, "head_dim"},
        {4, 24, 0, "freq_count"},
        {4, 24, 4097, "freq_count"},
        {4, 28, 0, "rope_theta"},
        {4, 28, 0x7fc00000, "rope_theta"},
        {4, 36, 0xffffffff, "nonrot"},
        {4, 40, 1, "reserved"},
        {4, 60, 0x80000000, "reserved"},
        {4, 8, 4, "layer_head_dim[2]"},
        {4, 12, 2, "the file has"},
        {4, 76, 7, "layer_head_dim[0] is 7"},
        {4, 76, 0, "layer_head_dim"},
        {4, 76, 8194, "layer_head_dim"},
        {4, 4, 6, "version at offset 4 is 6"},
        {4, 4, 0, "version"},
        {4, 0, 0x12345678, "not a calibration"},
        {3, 8, 0xffffffff, "offset 12"},
        {2, 24, 3, "the file has"},
        {1, 12, 4096, "the file has"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buffer file = {0};
        make_dialect_a(&file, cases[i].version, 8, 0);
        set_u32(&file, cases[i].at, cases[i].value);
        must_refuse(&file, cases[i].words);
        buffer_free(&file);
    }
}

static void test_scales(void **state)
{
    static const uint32_t bad[] = {0x00000000, 0xbf800000, 0x7f800000, 0x7fc00000, 0x41880000 /* 17 */};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        buffer file = {0};
        tria_calibration *calibration;
        make_dialect_a(&file, 2, 8, 0);
        set_u32(&file, 64 + 4, bad[i]);
        calibration = must_read(&file);
        for (int32_t l = 0; l < 3; l++) {
            assert_true(layer_of(calibration, l).budget_scale == 1.0F);
        }
        tria_calibration_destroy(calibration);
        buffer_free(&file);
    }
}

static void test_not_finite(void **state)
{
    buffer file = {0};
    (void)state;
    make_dialect_a(&file, 1, 8, 0);
    set_u32(&file, 64 + 4 * (16 + 4 + 2), 0x7fc00000); /* layer 0, head 1, q_mean_imag[2] */
    must_refuse(&file, "layer 0 head 1: q_mean_imag[2] is nan");
    /* mrl is not used, so what stands there does not matter */
    buffer_free(&file);
    make_dialect_a(&file, 1, 8, 0);
    set_u32(&file, 64 + 4 * (16 + 12 + 2), 0x7fc00000);
    tria_calibration_destroy(must_read(&file));
    buffer_free(&file);
}

static void test_dialect_b(void **state)
{
    (void)state;
    for (uint32_t version = 0; version <= 3; version++) {
        buffer file = {0};
        tria_calibration_info info = {.struct_size = sizeof(info)};
        tria_calibration_layer_info layer;
        tria_calibration *calibration;
        make_dialect_b(&file, version);
        calibration = must_read(&file);
        assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
        assert_int_equal(info.format,
                         TRIA_FORMAT_TRIATTENTION1 + (version == 0 ? 2 : (int32_t)version) - 1);
        assert_int_equal(info.n_calibrated, 3);
        assert_int_equal(info.explicit_presence, 1);
        assert_int_equal(info.explicit_style, 1);
        assert_string_equal(info.model_name, "name");
        assert_int_equal(info.explicit_inv_freq, version >= 2);
        layer = layer_of(calibration, 1);
        assert_int_equal(layer.geometry.head_dim, 10);
        assert_int_equal(layer.geometry.rotary_dim, 8);
        assert_int_equal(layer.geometry.rotary_offset, version == 3 ? 2 : 0);
        assert_int_equal(layer.geometry.rope_style, TRIA_ROPE_INTERLEAVED);
        assert_true(layer.geometry.rope_theta == 500000.0);
        for (int32_t f = 0; version >= 2 && f < 4; f++) {
            assert_true(layer.geometry.inv_freq[f] == (double)(1.0F / (float)(1 + f)));
        }
        assert_int_equal(layer_of(calibration, 0).geometry.kv_source, -1); /* a layer that names itself */
        assert_int_equal(layer_of(calibration, 2).geometry.kv_source, version == 3 ? 0 : -1);
        check_head(calibration, 2, 1, 4, 0, true);
        check_head(calibration, 0, 3, 4, 0, true);
        check_head(calibration, 0, 0, 4, 0, true);
        check_absent(calibration, 0, 1);
        tria_calibration_destroy(calibration);
        buffer_free(&file);
    }
}

/* A record without frequencies but with YaRN numbers: those llama.cpp derives, for layers that are used. */
static void test_dialect_b_yarn(void **state)
{
    tria_rope_scaling scaling;
    buffer file = {0};
    tria_calibration *calibration;
    double expected[4];
    const size_t record = 44 + 4 + 5 + 4;
    (void)state;
    make_dialect_b(&file, 3);
    set_u32(&file, record + 40, 0x3e800000); /* freq_scale 0.25 */
    set_u32(&file, record + 44, 0x3f800000); /* ext_factor 1 */
    calibration = must_read(&file);
    tria_rope_scaling_init(&scaling);
    scaling.type = TRIA_ROPE_SCALING_YARN;
    scaling.factor = 4;
    scaling.original_length = 4096;
    assert_int_equal(tria_rope_frequencies(500000, 8, &scaling, expected, NULL, NULL), TRIA_OK);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(fabs(layer_of(calibration, 0).geometry.inv_freq[f] - expected[f]) <=
                    1e-15 * expected[f]);
    }
    tria_calibration_destroy(calibration);

    set_u32(&file, record + 44, 0); /* interpolation only */
    calibration = must_read(&file);
    for (int32_t f = 0; f < 4; f++) {
        const double linear = pow(500000.0, -f / 4.0) / 4;
        assert_true(fabs(layer_of(calibration, 0).geometry.inv_freq[f] - linear) <= 1e-15 * linear);
    }
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void test_dialect_b_damage(void **state)
{
    static const struct {
        uint32_t version;
        size_t at;
        uint32_t value;
        const char *words;
    } cases[] = {
        {1, 8, 1, "head_dim"},
        {1, 12, 4097, "n_layers"},
        {1, 16, 0, "n_layers"},
        {1, 32, 2, "rope_style"},
        {1, 36, 4, "version 1 with 4 heads"},
        {1, 36, 0xffffffff, "version 1 with 4294967295 heads"},
        {1, 44, 0, "name_len"},
        {1, 44, 257, "name_len"},
        {1, 44, 4, "name_len"}, /* no zero byte at the end */
        {2, 36, 2, "version 2"},
        {0, 44, 6, "name_len"}, /* rotary_dim that is not twice freq_count, as name_len it is wrong, too */
        {1, 53, 3, "sampled head 0 at offset 53 is layer 3"},
        {1, 57, 4, "layer 2 head 4"},
        {1, 53 + 72, 2, "layer 2 head 3"}, /* not an error by itself: see below */
        {3, 53, 4, "layer_count"},
        {3, 57, 9000, "head_dim 9000"},
        {3, 61, 6, "freq_count"},
        {3, 57 + 12, 5000, "5000 query"},
        {3, 57 + 20, 3, "kv_source 3"},
        {3, 57 + 64, 1, ""}, /* arrays that are not there shift everything behind */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buffer file = {0};
        make_dialect_b(&file, cases[i].version);
        set_u32(&file, cases[i].at, cases[i].value);
        if (i != 13) {
            must_refuse(&file, cases[i].words);
        }
        buffer_free(&file);
    }
}

static void test_twice(void **state)
{
    buffer file = {0};
    (void)state;
    make_dialect_b(&file, 1);
    set_u32(&file, 53 + 72, 2);
    set_u32(&file, 53 + 76, 1);
    must_refuse(&file, "layer 2 head 1 occurs twice");
    buffer_free(&file);
}

static void test_dialect_c(void **state)
{
    (void)state;
    for (int partial = 0; partial < 2; partial++) {
        buffer file = {0};
        tria_calibration_info info = {.struct_size = sizeof(info)};
        tria_calibration_layer_info layer;
        tria_calibration *calibration;
        make_dialect_c(&file, partial != 0);
        calibration = must_read(&file);
        assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
        assert_int_equal(info.format, TRIA_FORMAT_TRIATTN);
        assert_int_equal(info.n_calibrated, 6);
        layer = layer_of(calibration, 1);
        assert_int_equal(layer.geometry.n_kv_heads, 0); /* it does not say */
        assert_int_equal(layer.geometry.rope_style, TRIA_ROPE_INTERLEAVED);
        assert_int_equal(layer.geometry.rotary_dim, 8);
        assert_int_equal(layer.geometry.inv_freq != NULL, partial);
        if (partial) {
            assert_true(layer.geometry.inv_freq[0] == 1.0);
            assert_true(fabs(layer.geometry.inv_freq[1] - 0.01) < 1e-17); /* 10000^(-2/4) */
            assert_true(layer.geometry.inv_freq[2] == 0.0);
            assert_true(layer.geometry.inv_freq[3] == 0.0);
        }
        check_head(calibration, 0, 0, 4, 0, false);
        check_head(calibration, 1, 2, 4, 0, false);
        tria_calibration_destroy(calibration);
        buffer_free(&file);
    }
}

static void test_dialect_c_damage(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *words;
    } cases[] = {
        {4, 2, "version"},           {8, 0, "n_layers"},     {12, 4097, "n_heads"},
        {16, 7, "head_dim"},         {20, 0, "theta"},       {24, 0, "partial_rotary_factor"},
        {24, 0x40000000, "partial"}, {8, 3, "the file has"}, {28, 0x7f800000, "q_mean_real[0] is inf"}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buffer file = {0};
        make_dialect_c(&file, false);
        set_u32(&file, cases[i].at, cases[i].value);
        must_refuse(&file, cases[i].words);
        buffer_free(&file);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(tria_format_name(TRIA_FORMAT_TRIATTENTION3), "triattention3");
    assert_int_equal(tria_format_from_name("tria5"), TRIA_FORMAT_TRIA5);
    assert_int_equal(tria_format_from_name("tria6"), -1);
    assert_null(tria_format_name(99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dialect_a),
        cmocka_unit_test(test_dialect_a_header),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_dialect_b),
        cmocka_unit_test(test_dialect_b_yarn),
        cmocka_unit_test(test_dialect_b_damage),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_dialect_c),
        cmocka_unit_test(test_dialect_c_damage),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

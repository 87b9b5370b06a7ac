/* test_roundtrip.c - writers: what a format can hold comes back bit for bit, what it cannot is refused. */
#include "fixture.h"

#include "calibration_internal.h"
#include "crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef TRIA_TEST_IMPORT
#include "tria/import.h"
#endif

static tria_status write_any(const tria_calibration *calibration, int32_t format, int32_t lossy,
                             buffer *out, tria_error *error)
{
    size_t size = 0;
#ifdef TRIA_TEST_IMPORT
    tria_status (*const write)(const tria_calibration *, int32_t, int32_t, void *, size_t, size_t *,
                               tria_error *) = tria_import_calibration_write;
#else
    tria_status (*const write)(const tria_calibration *, int32_t, int32_t, void *, size_t, size_t *,
                               tria_error *) = tria_calibration_write;
#endif
    tria_status status = write(calibration, format, lossy, NULL, 0, &size, error);
    if (status != TRIA_OK) {
        return status;
    }
    out->data = malloc(size);
    assert_non_null(out->data);
    out->size = out->capacity = size;
    assert_int_equal(write(calibration, format, lossy, out->data, size - 1, &size, error), TRIA_E_CAPACITY);
    return write(calibration, format, lossy, out->data, size, &size, error);
}

static tria_calibration *pass_through(const tria_calibration *calibration, int32_t format, int32_t lossy)
{
    buffer file = {0};
    tria_error error;
    tria_calibration *read;
    if (write_any(calibration, format, lossy, &file, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    read = must_read(&file);
    buffer_free(&file);
    return read;
}

/* Dialect A file -> v5 -> the same dialect: the same bytes. */
static void test_a_through_5(void **state)
{
    static const struct {
        uint32_t version;
        uint32_t head_dim;
        uint32_t n_content;
    } files[] = {{1, 8, 0}, {2, 8, 0}, {2, 64, 0}, {3, 11, 3}, {3, 8, 0}, {4, 8, 0}, {4, 8, 5}};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        buffer file = {0};
        buffer again = {0};
        tria_calibration *read;
        tria_calibration *through;
        tria_error error;
        make_dialect_a(&file, files[i].version, files[i].head_dim, files[i].n_content);
        if (files[i].version == 4 && files[i].n_content == 0) {
            set_u32(&file, 20, 8);
        }
        read = must_read(&file);
        through = pass_through(read, TRIA_FORMAT_TRIA5, 0);
        assert_same_stats(read, through);
        if (write_any(through, TRIA_FORMAT_TRIA1 + (int32_t)files[i].version - 1, 0, &again, &error) !=
            TRIA_OK) {
            fail_msg("%s", error.message);
        }
        assert_int_equal(again.size, file.size);
        if (files[i].version == 4) { /* there the header's head_dim is that of layer 0 */
            memcpy(again.data + 20, file.data + 20, 4);
        }
        assert_memory_equal(again.data, file.data, file.size);
        tria_calibration_destroy(read);
        tria_calibration_destroy(through);
        buffer_free(&file);
        buffer_free(&again);
    }
}

static void test_b_through_5(void **state)
{
    (void)state;
    for (uint32_t version = 0; version <= 3; version++) {
        buffer file = {0};
        tria_calibration *read;
        tria_calibration *through;
        tria_calibration *back;
        make_dialect_b(&file, version);
        read = must_read(&file);
        through = pass_through(read, TRIA_FORMAT_TRIA5, 0);
        back = pass_through(through, TRIA_FORMAT_TRIATTENTION3, 0);
        assert_same_stats(read, through);
        assert_same_stats(read, back);
        for (int32_t l = 0; l < 3; l++) {
            const tria_calibration_layer_data *a = &read->layers[l];
            const tria_calibration_layer_data *b = &back->layers[l];
            assert_int_equal(a->geometry.head_dim, b->geometry.head_dim);
            assert_int_equal(a->geometry.rotary_offset, b->geometry.rotary_offset);
            assert_int_equal(a->geometry.kv_source, b->geometry.kv_source);
            assert_int_equal(a->geometry.rope_style, b->geometry.rope_style);
            assert_int_equal(a->inv_freq != NULL, b->inv_freq != NULL);
            for (int32_t f = 0; a->inv_freq != NULL && f < a->n_freq; f++) {
                assert_true(a->inv_freq[f] == b->inv_freq[f]);
                assert_true(a->freq_scale_sq[f] == b->freq_scale_sq[f]);
            }
        }
        assert_string_equal(back->model_name, "name");
        tria_calibration_destroy(read);
        tria_calibration_destroy(through);
        tria_calibration_destroy(back);
        buffer_free(&file);
    }
}

static void test_5_keeps_everything(void **state)
{
    static const double inv_freq[2] = {0.9, 0.123456789012345678};
    static const double scale[2] = {1.5, 0.75};
    tria_layer_params layers[3] = {TRIA_LAYER_PARAMS_INIT, TRIA_LAYER_PARAMS_INIT, TRIA_LAYER_PARAMS_INIT};
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model;
    tria_calibration *made;
    tria_calibration *read;
    tria_error error;
    (void)state;
    layers[0].n_q_heads = 33;
    layers[0].n_kv_heads = 3;
    layers[0].head_dim = 7;
    layers[0].rotary_dim = 4;
    layers[0].rotary_offset = 2;
    layers[0].rope_style = TRIA_ROPE_INTERLEAVED;
    layers[0].inv_freq = inv_freq;
    layers[0].freq_scale_sq = scale;
    layers[0].window = 128;
    layers[2] = layers[0];
    layers[2].kv_source = 0;
    layers[2].n_kv_heads = 0;
    params.layers = layers;
    params.n_layers = 3; /* layer 1 has no attention */
    params.name = "a model";
    params.fingerprint = "sha256:12";
    if (tria_model_create(&params, NULL, &model, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    made = make_calibration(model);
    assert_int_equal(tria_calibration_set_head(made, 0, 31, NULL, &error), TRIA_OK);
    assert_int_equal(tria_calibration_set_tokens(made, 0, 123456789012345ULL, &error), TRIA_OK);
    assert_int_equal(
        tria_calibration_set_texts(made, NULL, NULL, "by hand", "budget=2048,interval=128", &error),
        TRIA_OK);
    made->capture_point = TRIA_CAPTURE_BEFORE_QK_NORM;
    made->layers[2].budget_scale = 0.25F;
    read = pass_through(made, TRIA_FORMAT_TRIA5, 0);
    assert_same_stats(made, read);
    assert_null(tria_calibration_find_head(read, 0, 31));
    assert_non_null(tria_calibration_find_head(read, 0, 32));
    assert_int_equal(read->layers[0].n_tokens, 123456789012345ULL);
    assert_string_equal(read->model_name, "a model");
    assert_string_equal(read->fingerprint, "sha256:12");
    assert_string_equal(read->provenance, "by hand");
    assert_string_equal(read->default_policy, "budget=2048,interval=128");
    assert_int_equal(read->capture_point, TRIA_CAPTURE_BEFORE_QK_NORM);
    assert_true(read->layers[2].budget_scale == 0.25F);
    assert_int_equal(read->layers[2].geometry.kv_source, 0);
    assert_int_equal(read->layers[0].geometry.window, 128);
    assert_int_equal(read->layers[0].geometry.rotary_offset, 2);
    assert_int_equal(read->layers[1].geometry.n_q_heads, 0);
    assert_memory_equal(read->layers[0].inv_freq, inv_freq, sizeof(inv_freq));
    assert_memory_equal(read->layers[0].freq_scale_sq, scale, sizeof(scale));
    tria_calibration_destroy(made);
    tria_calibration_destroy(read);
    tria_model_destroy(model);
}

/* The published test vector of version 5: one layer, one query head, one frequency, no content. */
static void test_5_vector(void **state)
{
    static const unsigned char vector[] = {
        0x41, 0x49, 0x52, 0x54, 0x05, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x00, 0x00, /* magic 5 L Hq */
        0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        0x00, 0x40, 0x1c, 0x46, /* Hkv D F theta */
        0x00, 0x00, 0x80, 0x3f, 0x07, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, /* attn flags cap 0 */
        0x74, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0xf2, 0xe4, 0xcc,
        0x97, 0x16, 0x07, 0x3f, /* size and CRCs */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x88, 0xc3, 0x40, 0x01, 0x00, 0x00, 0x00,
        'm',  0x00, 0x00, 0x00,                                                 /* theta "m" */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* texts, padding */
        0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
        0x02, 0x00, 0x00, 0x00, /* Hq Hkv D R */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff,
        0x00, 0x00, 0x00, 0x00, /* off style kv win */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x88, 0xc3, 0x40, 0x09, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, /* theta, 9 tokens */
        0x00, 0x00, 0x80, 0x3f, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0xf0, 0x3f,                         /* scale flags w */
        0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* presence, content */
        0x00, 0x00, 0x40, 0x40, 0x00, 0x00, 0x80, 0x40, 0x00, 0x00, 0xc8, 0x40,
        0xcd, 0xcc, 0x4c, 0x3f, /* 3 4 6.25 0.8 */
    };
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    const float numbers[3] = {3.0F, 4.0F, 6.25F};
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    tria_model *model;
    tria_calibration *made;
    tria_calibration *read;
    buffer expected = {0};
    buffer file = {0};
    tria_error error;
    (void)state;
    layer.n_q_heads = 1;
    layer.n_kv_heads = 1;
    layer.head_dim = 2;
    params.layers = &layer;
    params.n_layers = 1;
    params.name = "m";
    assert_int_equal(tria_model_create(&params, NULL, &model, &error), TRIA_OK);
    assert_int_equal(tria_calibration_create(model, NULL, &made, &error), TRIA_OK);
    stats.q_mean_real = &numbers[0];
    stats.q_mean_imag = &numbers[1];
    stats.q_abs_mean = &numbers[2];
    assert_int_equal(tria_calibration_set_head(made, 0, 0, &stats, &error), TRIA_OK);
    assert_int_equal(tria_calibration_set_tokens(made, 0, 9, &error), TRIA_OK);
    made->capture_point = TRIA_CAPTURE_AFTER_QK_NORM;
    assert_int_equal(write_any(made, TRIA_FORMAT_TRIA5, 0, &file, &error), TRIA_OK);
    if (file.size != sizeof(vector) || memcmp(file.data, vector, sizeof(vector)) != 0) {
        for (size_t i = 0; i < file.size; i++) {
            print_error("0x%02x,%s", file.data[i], i % 16 == 15 ? "\n" : " ");
        }
        fail_msg("%zu bytes, expected %zu", file.size, sizeof(vector));
    }
    put_bytes(&expected, vector, sizeof(vector));
    read = must_read(&expected);
    assert_same_stats(made, read);
    tria_calibration_destroy(made);
    tria_calibration_destroy(read);
    tria_model_destroy(model);
    buffer_free(&file);
    buffer_free(&expected);
}

static void test_5_damage(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *words;
    } cases[] = {{8, 0, "n_layers"},
                 {8, 9, "within a layer's geometry"},
                 {36, 8, "flags at offset 36 are 8"},
                 {44, 1, "the word at 44 is 1"},
                 {40, 3, "capture point"},
                 {48, 1, "promises"},
                 {64 + 8, 0xffffffff, "within its texts"},
                 {64 + 24, 0, "no query heads"},
                 {64 + 24 + 12, 9000, "rotary_dim"},
                 {64 + 24 + 48, 0, "budget_scale"},
                 {64 + 24 + 52, 9, "flags"}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buffer file = {0};
        make_tria5(&file);
        file.data[cases[i].at] ^= 1;
        must_refuse(&file, cases[i].at < 64 ? "the header is damaged" : "the body is damaged");
        file.data[cases[i].at] ^= 1;
        set_u32(&file, cases[i].at, cases[i].value);
        set_u32(&file, 56, tria_crc32c(0, file.data + 64, file.size - 64));
        set_u32(&file, 60, tria_crc32c(0, file.data, 60));
        must_refuse(&file, cases[i].words);
        buffer_free(&file);
    }
}

static void test_crc(void **state)
{
    (void)state;
    /* RFC 3720, B.4 */
    unsigned char bytes[32] = {0};
    assert_int_equal(tria_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(tria_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(tria_crc32c(0, bytes, 32), 0x62a8ab43);
    assert_int_equal(tria_crc32c(tria_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
}

/* One property per format that it cannot hold. */
static void expect_lossy(const tria_calibration *calibration, int32_t format, const char *words)
{
    buffer file = {0};
    tria_error error;
    const tria_status status = write_any(calibration, format, 0, &file, &error);
    if (status != TRIA_E_LOSSY || strstr(error.message, words) == NULL) {
        fail_msg("%s: status %d \"%s\", expected a loss of \"%s\"", tria_format_name(format), status,
                 status == TRIA_OK ? "" : error.message, words);
    }
    assert_null(file.data);
    assert_int_equal(write_any(calibration, format, 1, &file, &error), TRIA_OK);
    tria_calibration_destroy(must_read(&file));
    buffer_free(&file);
}

static void test_lossy(void **state)
{
    static const int32_t all[] = {TRIA_FORMAT_TRIA1, TRIA_FORMAT_TRIA2,         TRIA_FORMAT_TRIA3,
                                  TRIA_FORMAT_TRIA4, TRIA_FORMAT_TRIATTENTION3,
#ifdef TRIA_TEST_IMPORT
                                  TRIA_FORMAT_JSON
#endif
    };
    tria_model *model = make_model(2, 2, 1, 8, 8);
    tria_model *partial = make_model(2, 2, 1, 8, 4);
    tria_error error;
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const bool a = all[i] <= TRIA_FORMAT_TRIA4;
        tria_calibration *calibration = make_calibration(model);
        tria_calibration_destroy(pass_through(calibration, all[i], 0));
        assert_int_equal(tria_calibration_set_tokens(calibration, 1, 5, &error), TRIA_OK);
        expect_lossy(calibration, all[i], "token counts");
        assert_int_equal(tria_calibration_set_tokens(calibration, 1, 0, &error), TRIA_OK);
        assert_int_equal(tria_calibration_set_texts(calibration, NULL, NULL, "x", NULL, &error), TRIA_OK);
        expect_lossy(calibration, all[i], "provenance");
        assert_int_equal(tria_calibration_set_texts(calibration, "", "f", "", NULL, &error), TRIA_OK);
        expect_lossy(calibration, all[i], "fingerprint");
        assert_int_equal(tria_calibration_set_texts(calibration, "m", "", "", NULL, &error), TRIA_OK);
        if (all[i] != TRIA_FORMAT_TRIATTENTION3) {
            expect_lossy(calibration, all[i], "model name");
        }
        assert_int_equal(tria_calibration_set_texts(calibration, "", "", "", NULL, &error), TRIA_OK);
        calibration->layers[1].geometry.window = 4;
        expect_lossy(calibration, all[i], "window");
        calibration->layers[1].geometry.window = 0;
        calibration->layers[0].geometry.rope_style = TRIA_ROPE_INTERLEAVED;
        if (a) {
            expect_lossy(calibration, all[i], "interleaved");
        }
        calibration->layers[0].geometry.rope_style = TRIA_ROPE_HALF;
        calibration->layers[0].inv_freq[1] *= 1.0000001;
        if (a) {
            expect_lossy(calibration, all[i], "frequencies of layer 0");
        } else if (all[i] == TRIA_FORMAT_TRIATTENTION3) {
            expect_lossy(calibration, all[i], "double precision");
        }
        calibration->layers[0].inv_freq[1] /= 1.0000001;
        calibration->layers[0].budget_scale = 0.5F;
        if (all[i] < TRIA_FORMAT_TRIA2 || !a) {
            expect_lossy(calibration, all[i], "budget scales");
        }
        tria_calibration_destroy(calibration);

        calibration = make_calibration(partial);
        if (all[i] < TRIA_FORMAT_TRIA3 || !a) {
            expect_lossy(calibration, all[i], "content statistics");
        } else {
            tria_calibration *read = pass_through(calibration, all[i], 0);
            assert_same_stats(calibration, read);
            tria_calibration_destroy(read);
        }
        tria_calibration_destroy(calibration);
    }
    tria_model_destroy(model);
    tria_model_destroy(partial);
}

/* All-zero heads that are calibrated would read as "not calibrated". */
static void test_zero_head(void **state)
{
    static const float zeros[4] = {0};
    tria_model *model = make_model(1, 2, 1, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    tria_calibration *read;
    (void)state;
    stats.q_mean_real = stats.q_mean_imag = stats.q_abs_mean = zeros;
    assert_int_equal(tria_calibration_set_head(calibration, 0, 1, &stats, NULL), TRIA_OK);
    expect_lossy(calibration, TRIA_FORMAT_TRIA2, "head 1 of layer 0 is calibrated although all zero");
    read = pass_through(calibration, TRIA_FORMAT_TRIATTENTION3, 0);
    assert_same_stats(calibration, read);
    tria_calibration_destroy(read);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* What no loss can cure. */
static void test_unsupported(void **state)
{
    buffer file = {0};
    buffer out = {0};
    tria_calibration *calibration;
    tria_error error;
    (void)state;
    make_dialect_a(&file, 4, 8, 0);
    calibration = must_read(&file);
    assert_int_equal(write_any(calibration, TRIA_FORMAT_TRIA2, 1, &out, &error), TRIA_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "one shape for all layers"));
    tria_calibration_destroy(calibration);
    buffer_free(&file);
    make_dialect_c(&file, false);
    calibration = must_read(&file);
    assert_int_equal(write_any(calibration, TRIA_FORMAT_TRIA2, 1, &out, &error), TRIA_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "KV heads"));
    assert_int_equal(write_any(calibration, TRIA_FORMAT_TRIATTN, 1, &out, &error), TRIA_E_UNSUPPORTED);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

/* Version 4 with a first layer that is narrower than the others. */
static void test_narrow_first_layer(void **state)
{
    tria_layer_params layers[2] = {TRIA_LAYER_PARAMS_INIT, TRIA_LAYER_PARAMS_INIT};
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model;
    tria_calibration *calibration;
    tria_calibration *read;
    (void)state;
    layers[0].n_q_heads = layers[1].n_q_heads = 2;
    layers[0].n_kv_heads = layers[1].n_kv_heads = 1;
    layers[0].head_dim = 4;
    layers[1].head_dim = 12;
    params.layers = layers;
    params.n_layers = 2;
    assert_int_equal(tria_model_create(&params, NULL, &model, NULL), TRIA_OK);
    calibration = make_calibration(model);
    read = pass_through(calibration, TRIA_FORMAT_TRIA4, 0);
    assert_same_stats(calibration, read);
    tria_calibration_destroy(read);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* Saving replaces the file or leaves it alone. */
static void test_save(void **state)
{
    tria_model *model = make_model(1, 2, 1, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    tria_calibration *read;
    tria_error error;
    char directory[] = "/tmp/tria-test-XXXXXX";
    char path[64];
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/c.tria", directory);
    assert_int_equal(tria_calibration_load(path, NULL, &read, &error), TRIA_E_IO);
    assert_non_null(strstr(error.message, path));
    assert_int_equal(tria_calibration_load(directory, NULL, &read, &error), TRIA_E_IO);
    assert_int_equal(tria_calibration_save(calibration, TRIA_FORMAT_TRIA5, 0, path, &error), TRIA_OK);
    assert_int_equal(tria_calibration_load(path, NULL, &read, &error), TRIA_OK);
    assert_same_stats(calibration, read);
    tria_calibration_destroy(read);
    assert_int_equal(tria_calibration_set_tokens(calibration, 0, 5, &error), TRIA_OK);
    assert_int_equal(tria_calibration_save(calibration, TRIA_FORMAT_TRIA2, 0, path, &error), TRIA_E_LOSSY);
    assert_int_equal(tria_calibration_load(path, NULL, &read, &error), TRIA_OK);
    assert_int_equal(read->format, TRIA_FORMAT_TRIA5);
    tria_calibration_destroy(read);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0); /* no temporary file is left */
    assert_int_equal(tria_calibration_save(calibration, TRIA_FORMAT_TRIA5, 0, path, &error), TRIA_E_IO);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* A device is written to, not replaced by a file. */
static void test_save_to_device(void **state)
{
    static const int32_t formats[] = {TRIA_FORMAT_TRIA5,
#ifdef TRIA_TEST_IMPORT
                                      TRIA_FORMAT_JSON
#endif
    };
    tria_model *model = make_model(1, 2, 1, 8, 8);
    tria_calibration *calibration = make_calibration(model);
    char directory[] = "/tmp/tria-test-XXXXXX";
    char path[64];
    struct stat info;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/null", directory);
    assert_int_equal(symlink("/dev/null", path), 0);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        tria_error error;
#ifdef TRIA_TEST_IMPORT
        assert_int_equal(tria_import_calibration_save(calibration, formats[i], 1, path, &error), TRIA_OK);
#else
        assert_int_equal(tria_calibration_save(calibration, formats[i], 1, path, &error), TRIA_OK);
#endif
        assert_int_equal(lstat(path, &info), 0);
        assert_true(S_ISLNK(info.st_mode));
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_through_5),
        cmocka_unit_test(test_b_through_5),
        cmocka_unit_test(test_5_keeps_everything),
        cmocka_unit_test(test_5_vector),
        cmocka_unit_test(test_5_damage),
        cmocka_unit_test(test_crc),
        cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_zero_head),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_narrow_first_layer),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_save_to_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* fixture.c - see fixture.h. */
#include "fixture.h"

#ifdef TRIA_TEST_IMPORT
#include "tria/import.h"
#endif

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void put_bytes(buffer *out, const void *bytes, size_t size)
{
    if (out->size + size > out->capacity) {
        out->capacity = 2 * (out->size + size) + 64;
        out->data = realloc(out->data, out->capacity);
        assert_non_null(out->data);
    }
    if (size > 0) {
        memcpy(out->data + out->size, bytes, size);
    }
    out->size += size;
}

void put_zeros(buffer *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        put_bytes(out, "", 1);
    }
}

static void put_little(buffer *out, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const unsigned char byte = (unsigned char)(value >> 8 * i & 0xff);
        put_bytes(out, &byte, 1);
    }
}

void put_u8(buffer *out, unsigned value)
{
    put_little(out, value, 1);
}

void put_u16(buffer *out, unsigned value)
{
    put_little(out, value, 2);
}

void put_u32(buffer *out, uint32_t value)
{
    put_little(out, value, 4);
}

void put_u64(buffer *out, uint64_t value)
{
    put_little(out, value, 8);
}

void put_f32(buffer *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_little(out, bits, 4);
}

void put_f64(buffer *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_little(out, bits, 8);
}

void set_u32(buffer *out, size_t at, uint32_t value)
{
    buffer bytes = {0};
    put_u32(&bytes, value);
    memcpy(out->data + at, bytes.data, 4);
    buffer_free(&bytes);
}

void buffer_free(buffer *out)
{
    free(out->data);
    memset(out, 0, sizeof(*out));
}

float stat_value(int32_t array, int32_t layer, int32_t head, int32_t index)
{
    const float base = 0.1F + (float)layer + 0.25F * (float)head + 0.0625F * (float)index;
    static const float scale[] = {0.5F, -0.25F, 1.0F, 0.75F, -0.125F, 0.375F};
    return base * scale[array];
}

static void put_stats(buffer *out, int32_t array, int32_t layer, int32_t head, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        put_f32(out, stat_value(array, layer, head, i));
    }
}

void make_dialect_a(buffer *out, uint32_t version, uint32_t head_dim, uint32_t n_content)
{
    static const uint32_t widths[3] = {8, 4, 6};
    static const float scales[3] = {0.5F, 1.0F, 1.5F};
    put_u32(out, 0x54524941);
    put_u32(out, version);
    put_u32(out, 3);
    put_u32(out, 4);
    put_u32(out, 2);
    put_u32(out, head_dim);
    put_u32(out, 4);
    put_f32(out, 10000.0F);
    put_f32(out, 1.0F);
    put_u32(out, version >= 3 ? n_content : 0);
    put_zeros(out, 24);
    for (int32_t l = 0; version >= 2 && l < 3; l++) {
        put_f32(out, scales[l]);
    }
    for (int32_t l = 0; version >= 4 && l < 3; l++) {
        put_u32(out, widths[l]);
    }
    for (int32_t l = 0; l < 3; l++) {
        const int32_t n_freq = version >= 4 ? (int32_t)widths[l] / 2 : 4;
        const int32_t n_extra = version >= 3 ? (int32_t)n_content : 0;
        for (int32_t h = 0; h < 4; h++) {
            if (l == 1 && h == 3) {
                put_zeros(out, 16 * (size_t)n_freq + 8 * (size_t)n_extra);
                continue;
            }
            for (int32_t array = 0; array < 4; array++) {
                put_stats(out, array, l, h, n_freq);
            }
            put_stats(out, 4, l, h, n_extra);
            put_stats(out, 5, l, h, n_extra);
        }
    }
}

void make_dialect_b(buffer *out, uint32_t version)
{
    static const uint32_t sampled[3][2] = {{2, 1}, {0, 3}, {0, 0}};
    const bool second_line = version == 0;
    put_u32(out, 0x54524941);
    put_u32(out, second_line ? 2 : version);
    put_u32(out, 10);
    put_u32(out, 3);
    put_u32(out, 4);
    put_u32(out, 2);
    put_f64(out, 500000.0);
    put_u32(out, 1);
    put_u32(out, 3);
    put_u32(out, 4);
    if (second_line) {
        put_u32(out, 8);
    }
    put_u32(out, 5);
    put_bytes(out, "name", 5);
    for (int32_t f = 0; version == 2 && f < 4; f++) {
        put_f32(out, 1.0F / (float)(1 + f));
    }
    for (int32_t f = 0; version == 2 && f < 4; f++) {
        put_f32(out, 1.0F + 0.5F * (float)f);
    }
    for (uint32_t l = 0; version == 3 && l < 3; l++) {
        if (l == 0) {
            put_u32(out, 3);
        }
        put_u32(out, 10);
        put_u32(out, 8);
        put_u32(out, 2);
        put_u32(out, 4);
        put_u32(out, 2);
        put_u32(out, l == 2 ? 0 : l); /* layer 2 reads layer 0, the others their own */
        put_u32(out, 1);
        put_u32(out, 4096);
        put_f64(out, 500000.0);
        put_f32(out, 1.0F);
        put_f32(out, 0.0F);
        put_f32(out, 1.0F);
        put_f32(out, 32.0F);
        put_f32(out, 1.0F);
        put_u32(out, 4);
        put_u32(out, l == 1);
        for (int32_t f = 0; l == 1 && f < 8; f++) {
            put_f32(out, 1.0F / (float)(1 + f));
        }
    }
    for (int32_t i = 0; i < 3; i++) {
        put_u32(out, sampled[i][0]);
        put_u32(out, sampled[i][1]);
        for (int32_t array = 0; array < 4; array++) {
            put_stats(out, array, (int32_t)sampled[i][0], (int32_t)sampled[i][1], 4);
        }
    }
}

void make_dialect_c(buffer *out, bool partial)
{
    put_bytes(out, "TRIA", 4);
    put_u32(out, 1);
    put_u32(out, 2);
    put_u32(out, 3);
    put_u32(out, 8);
    put_f32(out, 10000.0F);
    put_f32(out, partial ? 0.5F : 1.0F);
    for (int32_t l = 0; l < 2; l++) {
        for (int32_t h = 0; h < 3; h++) {
            for (int32_t f = 0; f < 4; f++) {
                for (int32_t array = 0; array < 3; array++) {
                    put_f32(out, stat_value(array, l, h, f));
                }
            }
        }
    }
}

void make_tria5(buffer *out)
{
    tria_model *model = make_model(2, 2, 1, 6, 4);
    tria_calibration *calibration = make_calibration(model);
    tria_error error;
    size_t size;
    assert_int_equal(tria_calibration_write(calibration, TRIA_FORMAT_TRIA5, 0, NULL, 0, &size, &error),
                     TRIA_OK);
    out->data = malloc(size);
    assert_non_null(out->data);
    out->size = out->capacity = size;
    assert_int_equal(
        tria_calibration_write(calibration, TRIA_FORMAT_TRIA5, 0, out->data, size, &size, &error), TRIA_OK);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

/* The checksum of zip files, a bit at a time. */
static uint32_t zip_checksum(const unsigned char *data, size_t size)
{
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
        }
    }
    return ~crc;
}

void zip_add_method(zip_builder *zip, const char *name, const void *data, size_t size, unsigned method,
                    uint32_t claimed_size)
{
    const size_t at = zip->file.size;
    const size_t name_length = strlen(name);
    const uint32_t crc = zip_checksum(data, size);
    put_u32(&zip->file, 0x04034b50);
    put_u16(&zip->file, 20);
    put_u16(&zip->file, 0x0808);
    put_u16(&zip->file, method);
    put_zeros(&zip->file, 4 + 12);
    put_u16(&zip->file, (unsigned)name_length);
    put_u16(&zip->file, 0);
    put_bytes(&zip->file, name, name_length);
    put_bytes(&zip->file, data, size);
    put_u32(&zip->file, 0x08074b50);
    put_u32(&zip->file, crc);
    put_u32(&zip->file, (uint32_t)size);
    put_u32(&zip->file, claimed_size);

    put_u32(&zip->central, 0x02014b50);
    put_u16(&zip->central, 20);
    put_u16(&zip->central, 20);
    put_u16(&zip->central, 0x0808);
    put_u16(&zip->central, method);
    put_zeros(&zip->central, 4);
    put_u32(&zip->central, crc);
    put_u32(&zip->central, (uint32_t)size);
    put_u32(&zip->central, claimed_size);
    put_u16(&zip->central, (unsigned)name_length);
    put_zeros(&zip->central, 2 + 2 + 2 + 2 + 4);
    put_u32(&zip->central, (uint32_t)at);
    put_bytes(&zip->central, name, name_length);
    zip->count++;
}

void zip_add(zip_builder *zip, const char *name, const void *data, size_t size)
{
    zip_add_method(zip, name, data, size, 0, (uint32_t)size);
}

void zip_finish(zip_builder *zip, buffer *out)
{
    const size_t at = zip->file.size;
    put_bytes(&zip->file, zip->central.data, zip->central.size);
    put_u32(&zip->file, 0x06054b50);
    put_zeros(&zip->file, 4);
    put_u16(&zip->file, zip->count);
    put_u16(&zip->file, zip->count);
    put_u32(&zip->file, (uint32_t)zip->central.size);
    put_u32(&zip->file, (uint32_t)at);
    put_u16(&zip->file, 0);
    *out = zip->file;
    buffer_free(&zip->central);
}

void pickle_text(buffer *out, const char *text)
{
    put_u8(out, 'X');
    put_u32(out, (uint32_t)strlen(text));
    put_bytes(out, text, strlen(text));
}

void pickle_int(buffer *out, int32_t value)
{
    put_u8(out, 'J');
    put_u32(out, (uint32_t)value);
}

static void pickle_ints(buffer *out, int32_t count, const int32_t *values)
{
    put_u8(out, '(');
    for (int32_t i = 0; i < count; i++) {
        pickle_int(out, values[i]);
    }
    put_u8(out, 't');
}

static void pickle_global(buffer *out, const char *module, const char *name)
{
    put_u8(out, 'c');
    put_bytes(out, module, strlen(module));
    put_u8(out, '\n');
    put_bytes(out, name, strlen(name));
    put_u8(out, '\n');
}

void pickle_tensor(buffer *out, const char *storage_type, const char *key, int32_t count, int32_t offset,
                   int32_t n_dims, const int32_t *size, const int32_t *stride)
{
    pickle_global(out, "torch._utils", "_rebuild_tensor_v2");
    put_u8(out, '(');
    put_u8(out, '(');
    pickle_text(out, "storage");
    pickle_global(out, "torch", storage_type);
    pickle_text(out, key);
    pickle_text(out, "cpu");
    pickle_int(out, count);
    put_u8(out, 't');
    put_u8(out, 'Q');
    pickle_int(out, offset);
    pickle_ints(out, n_dims, size);
    pickle_ints(out, n_dims, stride);
    put_u8(out, 0x89);
    pickle_global(out, "collections", "OrderedDict");
    put_u8(out, ')');
    put_u8(out, 'R');
    put_u8(out, 't');
    put_u8(out, 'R');
}

static void pickle_start(buffer *out)
{
    put_u8(out, 0x80);
    put_u8(out, 2);
    put_u8(out, '}');
    put_u8(out, '(');
}

static void pickle_end(buffer *out)
{
    put_u8(out, 'u');
    put_u8(out, '.');
}

/* A torch file of one pickle and its storages, which `add_storages` has put in the archive already. */
static void finish_torch(zip_builder *zip, buffer *pickle, buffer *out)
{
    zip_add(zip, "stem/data.pkl", pickle->data, pickle->size);
    zip_add(zip, "stem/byteorder", "little", 6);
    zip_add(zip, "stem/version", "3\n", 2);
    buffer_free(pickle);
    zip_finish(zip, out);
}

static void add_floats(zip_builder *zip, int32_t key, const float *values, int32_t count)
{
    buffer data = {0};
    char name[32];
    for (int32_t i = 0; i < count; i++) {
        put_f32(&data, values[i]);
    }
    snprintf(name, sizeof(name), "stem/data/%d", key);
    zip_add(zip, name, data.data, data.size);
    buffer_free(&data);
}

static void pickle_head(zip_builder *zip, buffer *pickle, int32_t layer, int32_t head, int32_t *key)
{
    static const char *const names[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};
    static const int32_t size[] = {4};
    static const int32_t stride[] = {1};
    char text[32];
    snprintf(text, sizeof(text), "layer%02d_head%02d", layer, head);
    pickle_text(pickle, text);
    put_u8(pickle, '}');
    put_u8(pickle, '(');
    for (int32_t array = 0; array < 3; array++) {
        float values[4];
        for (int32_t i = 0; i < 4; i++) {
            values[i] = stat_value(array, layer, head, i);
        }
        add_floats(zip, *key, values, 4);
        snprintf(text, sizeof(text), "%d", (*key)++);
        pickle_text(pickle, names[array]);
        pickle_tensor(pickle, "FloatStorage", text, 4, 0, 1, size, stride);
    }
    put_u8(pickle, 'u');
}

void make_pt(buffer *out)
{
    static const int32_t heads[5][2] = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 2}};
    zip_builder zip = {0};
    buffer pickle = {0};
    int32_t key = 0;
    pickle_start(&pickle);
    pickle_text(&pickle, "metadata");
    put_u8(&pickle, '}');
    put_u8(&pickle, '(');
    pickle_text(&pickle, "rope_style");
    pickle_text(&pickle, "half");
    pickle_text(&pickle, "sampled_heads");
    put_u8(&pickle, ']');
    put_u8(&pickle, '(');
    for (int32_t i = 0; i < 5; i++) {
        put_u8(&pickle, ']');
        put_u8(&pickle, '(');
        pickle_int(&pickle, heads[i][0]);
        pickle_int(&pickle, heads[i][1]);
        put_u8(&pickle, 'e');
    }
    put_u8(&pickle, 'e');
    pickle_text(&pickle, "head_dim");
    pickle_int(&pickle, 8);
    pickle_text(&pickle, "model_name");
    pickle_text(&pickle, "a/model");
    put_u8(&pickle, 'u');
    pickle_text(&pickle, "stats");
    put_u8(&pickle, '}');
    put_u8(&pickle, '(');
    for (int32_t i = 0; i < 5; i++) {
        pickle_head(&zip, &pickle, heads[i][0], heads[i][1], &key);
    }
    put_u8(&pickle, 'u');
    pickle_end(&pickle);
    finish_torch(&zip, &pickle, out);
}

void make_pt_dense(buffer *out)
{
    static const int32_t size[] = {2, 3, 4};
    static const int32_t pairs[] = {24, 8, 2};
    static const int32_t dense[] = {12, 4, 1};
    static const int32_t two[] = {2};
    static const int32_t one[] = {1};
    zip_builder zip = {0};
    buffer pickle = {0};
    buffer counts = {0};
    float complex_values[48];
    float absolute[24];
    for (int32_t i = 0; i < 24; i++) {
        complex_values[2 * i] = stat_value(0, i / 12, i / 4 % 3, i % 4);
        complex_values[2 * i + 1] = stat_value(1, i / 12, i / 4 % 3, i % 4);
        absolute[i] = stat_value(2, i / 12, i / 4 % 3, i % 4);
    }
    add_floats(&zip, 0, complex_values, 48);
    add_floats(&zip, 1, absolute, 24);
    put_f64(&counts, 5000);
    put_f64(&counts, 6000);
    zip_add(&zip, "stem/data/2", counts.data, counts.size);
    buffer_free(&counts);
    pickle_start(&pickle);
    pickle_text(&pickle, "metadata");
    put_u8(&pickle, '}');
    pickle_text(&pickle, "q_mean_real");
    pickle_tensor(&pickle, "FloatStorage", "0", 48, 0, 3, size, pairs);
    pickle_text(&pickle, "q_mean_imag");
    pickle_tensor(&pickle, "FloatStorage", "0", 48, 1, 3, size, pairs);
    pickle_text(&pickle, "q_abs_mean");
    pickle_tensor(&pickle, "FloatStorage", "1", 24, 0, 3, size, dense);
    pickle_text(&pickle, "token_count");
    pickle_tensor(&pickle, "DoubleStorage", "2", 2, 0, 1, two, one);
    pickle_end(&pickle);
    finish_torch(&zip, &pickle, out);
}

void make_pt_trtllm(buffer *out)
{
    static const int32_t size[] = {2, 3, 4};
    static const int32_t dense[] = {12, 4, 1};
    static const int32_t four[] = {4};
    static const int32_t one[] = {1};
    zip_builder zip = {0};
    buffer pickle = {0};
    float complex_values[48];
    float absolute[24];
    static const float omega[4] = {1.0F, 0.5F, 0.25F, 0.125F};
    static const float scale[4] = {1.0F, 1.25F, 1.5F, 1.75F};
    for (int32_t i = 0; i < 24; i++) {
        complex_values[2 * i] = stat_value(0, i / 12, i / 4 % 3, i % 4);
        complex_values[2 * i + 1] = stat_value(1, i / 12, i / 4 % 3, i % 4);
        absolute[i] = stat_value(2, i / 12, i / 4 % 3, i % 4);
    }
    add_floats(&zip, 0, complex_values, 48);
    add_floats(&zip, 1, absolute, 24);
    add_floats(&zip, 2, omega, 4);
    add_floats(&zip, 3, scale, 4);
    pickle_start(&pickle);
    pickle_text(&pickle, "E_q");
    pickle_tensor(&pickle, "ComplexFloatStorage", "0", 24, 0, 3, size, dense);
    pickle_text(&pickle, "E_q_norm");
    pickle_tensor(&pickle, "FloatStorage", "1", 24, 0, 3, size, dense);
    pickle_text(&pickle, "omega");
    pickle_tensor(&pickle, "FloatStorage", "2", 4, 0, 1, four, one);
    pickle_text(&pickle, "freq_scale_sq");
    pickle_tensor(&pickle, "FloatStorage", "3", 4, 0, 1, four, one);
    pickle_end(&pickle);
    finish_torch(&zip, &pickle, out);
}

static void put_text(buffer *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

static void json_row(buffer *out, int32_t array, int32_t layer, int32_t head)
{
    char text[64];
    put_text(out, "[");
    for (int32_t i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "%s%.9g", i > 0 ? "," : "", (double)stat_value(array, layer, head, i));
        put_text(out, text);
    }
    put_text(out, "]");
}

void make_json(buffer *out, bool dense)
{
    static const char *const names[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};
    char text[64];
    put_text(
        out,
        "{\"head_dim\":8,\"rope_style\":\"interleaved\",\"rope_theta\":10000.0,\"num_attention_heads\":3,"
        "\"num_key_value_heads\":1,\"num_layers\":2,\"stats_head_count\":3,\"sampled_heads\":[[1,2],[0,0]]"
        ",");
    put_text(out, dense ? "\"layer_stats\":{" : "\"stats\":{");
    for (int32_t l = 0; l < 2; l++) {
        if (dense) {
            snprintf(text, sizeof(text), "%s\"%d\":{", l > 0 ? "," : "", l);
        } else {
            snprintf(text, sizeof(text), "%s\"layer%02d_head%02d\":{", l > 0 ? "," : "", l, l == 1 ? 2 : 0);
        }
        put_text(out, text);
        for (int32_t array = 0; array < 3; array++) {
            snprintf(text, sizeof(text), "%s\"%s\":", array > 0 ? "," : "", names[array]);
            put_text(out, text);
            if (!dense) {
                json_row(out, array, l, l == 1 ? 2 : 0);
                continue;
            }
            put_text(out, "[");
            for (int32_t h = 0; h < 3; h++) {
                put_text(out, h > 0 ? "," : "");
                json_row(out, array, l, h);
            }
            put_text(out, "]");
        }
        put_text(out, "}");
    }
    put_text(out, "}}");
}

void make_safetensors(buffer *out)
{
    static const char *const names[] = {"q_center_real", "q_center_imag", "q_mean_norm"};
    buffer header = {0};
    buffer data = {0};
    char text[160];
    put_text(&header, "{\"__metadata__\":{\"n_layers\":\"3\",\"n_q_heads\":\"3\",\"n_kv_heads\":\"1\"}");
    for (int32_t l = 0; l < 3; l += 2) {
        for (int32_t array = 0; array < 3; array++) {
            snprintf(text, sizeof(text),
                     ",\"layer.%d.%s\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[%zu,%zu]}", l,
                     names[array], data.size, data.size + 48);
            put_text(&header, text);
            for (int32_t i = 0; i < 12; i++) {
                put_f32(&data, stat_value(array, l, i / 4, i % 4));
            }
        }
    }
    put_text(&header, "}");
    put_u64(out, header.size);
    put_bytes(out, header.data, header.size);
    put_bytes(out, data.data, data.size);
    buffer_free(&header);
    buffer_free(&data);
}

tria_model *make_model(int32_t n_layers, int32_t n_q_heads, int32_t n_kv_heads, int32_t head_dim,
                       int32_t rotary_dim)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_layer_params *layers = calloc((size_t)n_layers, sizeof(*layers));
    tria_model *model = NULL;
    tria_error error;
    assert_non_null(layers);
    for (int32_t l = 0; l < n_layers; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = n_q_heads;
        layers[l].n_kv_heads = n_kv_heads;
        layers[l].head_dim = head_dim;
        layers[l].rotary_dim = rotary_dim;
    }
    params.layers = layers;
    params.n_layers = n_layers;
    if (tria_model_create(&params, NULL, &model, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    free(layers);
    return model;
}

tria_calibration *make_calibration(const tria_model *model)
{
    tria_calibration *calibration;
    tria_error error;
    float values[5][64];
    assert_int_equal(tria_calibration_create(model, NULL, &calibration, &error), TRIA_OK);
    for (int32_t l = 0; l < tria_model_n_layers(model); l++) {
        tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
        tria_head_stats stats = {.struct_size = sizeof(stats)};
        assert_int_equal(tria_model_layer(model, l, &layer, &error), TRIA_OK);
        for (int32_t h = 0; h < layer.n_q_heads; h++) {
            for (int32_t i = 0; i < 64; i++) {
                values[0][i] = stat_value(0, l, h, i);
                values[1][i] = stat_value(1, l, h, i);
                values[2][i] = stat_value(2, l, h, i);
                values[3][i] = stat_value(4, l, h, i);
                values[4][i] = stat_value(5, l, h, i);
            }
            stats.q_mean_real = values[0];
            stats.q_mean_imag = values[1];
            stats.q_abs_mean = values[2];
            stats.content_mean = layer.head_dim > layer.rotary_dim ? values[3] : NULL;
            stats.content_abs = layer.head_dim > layer.rotary_dim ? values[4] : NULL;
            if (tria_calibration_set_head(calibration, l, h, &stats, &error) != TRIA_OK) {
                fail_msg("%s", error.message);
            }
        }
    }
    return calibration;
}

static void assert_same_array(const float *a, const float *b, int32_t count)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a != NULL) {
        assert_memory_equal(a, b, (size_t)count * sizeof(float));
    }
}

void assert_same_stats(const tria_calibration *a, const tria_calibration *b)
{
    tria_calibration_info info_a = {.struct_size = sizeof(info_a)};
    tria_calibration_info info_b = {.struct_size = sizeof(info_b)};
    tria_error error;
    assert_int_equal(tria_calibration_get_info(a, &info_a, &error), TRIA_OK);
    assert_int_equal(tria_calibration_get_info(b, &info_b, &error), TRIA_OK);
    assert_int_equal(info_a.n_layers, info_b.n_layers);
    assert_int_equal(info_a.n_calibrated, info_b.n_calibrated);
    for (int32_t l = 0; l < info_a.n_layers; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        assert_int_equal(tria_calibration_layer(a, l, &layer, &error), TRIA_OK);
        for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
            const int32_t n_freq = layer.geometry.rotary_dim / 2;
            const int32_t n_content = layer.geometry.head_dim - layer.geometry.rotary_dim;
            tria_head_stats x = {.struct_size = sizeof(x)};
            tria_head_stats y = {.struct_size = sizeof(y)};
            const float *mrl_x;
            const float *mrl_y;
            int32_t present_x;
            int32_t present_y;
            assert_int_equal(tria_calibration_head(a, l, h, &x, &present_x, &error), TRIA_OK);
            assert_int_equal(tria_calibration_head(b, l, h, &y, &present_y, &error), TRIA_OK);
            assert_int_equal(present_x, present_y);
            assert_same_array(x.q_mean_real, y.q_mean_real, n_freq);
            assert_same_array(x.q_mean_imag, y.q_mean_imag, n_freq);
            assert_same_array(x.q_abs_mean, y.q_abs_mean, n_freq);
            assert_same_array(x.content_mean, y.content_mean, n_content);
            assert_same_array(x.content_abs, y.content_abs, n_content);
            assert_int_equal(tria_calibration_mrl(a, l, h, &mrl_x, &error), TRIA_OK);
            assert_int_equal(tria_calibration_mrl(b, l, h, &mrl_y, &error), TRIA_OK);
            assert_same_array(mrl_x, mrl_y, n_freq);
        }
    }
}

tria_status read_any(const buffer *file, tria_calibration **calibration, tria_error *error)
{
#ifdef TRIA_TEST_IMPORT
    return tria_import_calibration_read(file->data, file->size, NULL, NULL, calibration, error);
#else
    return tria_calibration_read(file->data, file->size, NULL, calibration, error);
#endif
}

tria_calibration *must_read(const buffer *file)
{
    tria_calibration *calibration = NULL;
    tria_error error;
    if (read_any(file, &calibration, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return calibration;
}

void must_refuse(const buffer *file, const char *words)
{
    tria_calibration *calibration = NULL;
    tria_error error;
    const tria_status status = read_any(file, &calibration, &error);
    if (status == TRIA_OK) {
        tria_calibration_destroy(calibration);
        fail_msg("it was read, expected an error about \"%s\"", words);
    }
    assert_null(calibration);
    assert_int_equal(status, error.code);
    if (strstr(error.message, words) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", error.message, words);
    }
}

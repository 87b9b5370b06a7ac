/* test_import.c - torch, JSON and safetensors files, good and hostile. */
#include "tria/import.h"

#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tria_calibration_info info_of(const tria_calibration *calibration)
{
    tria_calibration_info info = {.struct_size = sizeof(info)};
    assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
    return info;
}

static tria_layer_params geometry_of(const tria_calibration *calibration, int32_t layer)
{
    tria_calibration_layer_info info = {.struct_size = sizeof(info)};
    assert_int_equal(tria_calibration_layer(calibration, layer, &info, NULL), TRIA_OK);
    return info.geometry;
}

static void check_head(const tria_calibration *calibration, int32_t layer, int32_t head)
{
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    int32_t present;
    assert_int_equal(tria_calibration_head(calibration, layer, head, &stats, &present, NULL), TRIA_OK);
    assert_int_equal(present, 1);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(stats.q_mean_real[f] == stat_value(0, layer, head, f));
        assert_true(stats.q_mean_imag[f] == stat_value(1, layer, head, f));
        assert_true(stats.q_abs_mean[f] == stat_value(2, layer, head, f));
    }
}

static void check_absent(const tria_calibration *calibration, int32_t layer, int32_t head)
{
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    int32_t present;
    assert_int_equal(tria_calibration_head(calibration, layer, head, &stats, &present, NULL), TRIA_OK);
    assert_int_equal(present, 0);
}

static void test_pt(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    (void)state;
    make_pt(&file);
    calibration = must_read(&file);
    assert_int_equal(info_of(calibration).format, TRIA_FORMAT_PT);
    assert_int_equal(info_of(calibration).n_layers, 2);
    assert_int_equal(info_of(calibration).n_calibrated, 5);
    assert_int_equal(info_of(calibration).explicit_presence, 1);
    assert_string_equal(info_of(calibration).model_name, "a/model");
    assert_int_equal(geometry_of(calibration, 0).n_q_heads, 3);
    assert_int_equal(geometry_of(calibration, 0).n_kv_heads, 0);
    assert_true(geometry_of(calibration, 0).rope_theta == 0.0);
    check_head(calibration, 0, 0);
    check_head(calibration, 1, 2);
    check_absent(calibration, 1, 1);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

/* The model supplies KV heads, frequencies and how many layers and heads there really are. */
static void test_completion(void **state)
{
    tria_model *model = make_model(3, 6, 2, 8, 8);
    tria_model *narrow = make_model(3, 6, 2, 16, 16);
    buffer file = {0};
    tria_calibration *calibration;
    tria_model *own;
    tria_error error;
    (void)state;
    make_pt(&file);
    assert_int_equal(tria_import_calibration_read(file.data, file.size, model, NULL, &calibration, &error),
                     TRIA_OK);
    assert_int_equal(info_of(calibration).n_layers, 3);
    assert_int_equal(geometry_of(calibration, 1).n_q_heads, 6);
    assert_int_equal(geometry_of(calibration, 1).n_kv_heads, 2);
    assert_true(geometry_of(calibration, 1).inv_freq[1] == 0.1);
    assert_int_equal(info_of(calibration).n_calibrated, 5);
    check_head(calibration, 1, 2);
    assert_int_equal(tria_calibration_match(calibration, model, NULL, NULL, &error), TRIA_OK);
    assert_int_equal(tria_model_from_calibration(calibration, NULL, &own, &error), TRIA_OK);
    tria_model_destroy(own);
    tria_calibration_destroy(calibration);
    /* a model of another width completes what it can and does not match */
    assert_int_equal(tria_import_calibration_read(file.data, file.size, narrow, NULL, &calibration, &error),
                     TRIA_OK);
    assert_int_equal(tria_calibration_match(calibration, narrow, NULL, NULL, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "4 frequencies"));
    tria_calibration_destroy(calibration);
    buffer_free(&file);
    tria_model_destroy(model);
    tria_model_destroy(narrow);
}

static void test_pt_dense(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
    (void)state;
    make_pt_dense(&file);
    calibration = must_read(&file);
    assert_int_equal(info_of(calibration).format, TRIA_FORMAT_PT_DENSE);
    assert_int_equal(info_of(calibration).n_calibrated, 6);
    for (int32_t l = 0; l < 2; l++) {
        for (int32_t h = 0; h < 3; h++) {
            check_head(calibration, l, h);
        }
    }
    assert_int_equal(tria_calibration_layer(calibration, 1, &layer, NULL), TRIA_OK);
    assert_int_equal(layer.n_tokens, 6000);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void test_pt_trtllm(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    (void)state;
    make_pt_trtllm(&file);
    calibration = must_read(&file);
    assert_int_equal(info_of(calibration).format, TRIA_FORMAT_PT_TRTLLM);
    check_head(calibration, 0, 0);
    check_head(calibration, 1, 2);
    assert_true(geometry_of(calibration, 1).inv_freq[3] == 0.125);
    assert_true(geometry_of(calibration, 1).freq_scale_sq[2] == 1.5);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void test_json(void **state)
{
    (void)state;
    for (int dense = 0; dense < 2; dense++) {
        buffer file = {0};
        tria_calibration *calibration;
        make_json(&file, dense != 0);
        calibration = must_read(&file);
        assert_int_equal(info_of(calibration).format, TRIA_FORMAT_JSON);
        assert_int_equal(info_of(calibration).n_calibrated,
                         2); /* dense rows that are not sampled do not count */
        assert_int_equal(geometry_of(calibration, 0).rope_style, TRIA_ROPE_INTERLEAVED);
        assert_int_equal(geometry_of(calibration, 0).n_kv_heads, 1);
        assert_true(geometry_of(calibration, 0).rope_theta == 10000.0);
        check_head(calibration, 0, 0);
        check_head(calibration, 1, 2);
        check_absent(calibration, 0, 2);
        tria_calibration_destroy(calibration);
        buffer_free(&file);
    }
}

/* The JSON of the golden case: unsorted heads, one of zeros that is calibrated, explicit frequencies. */
static void test_json_golden(void **state)
{
    static const int32_t heads[6][2] = {{1, 2}, {0, 0}, {1, 1}, {0, 3}, {0, 2}, {1, 0}};
    tria_calibration *calibration;
    tria_error error;
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    int32_t present;
    (void)state;
    if (tria_import_calibration_load(TRIA_TEST_DATA "/golden_spec/json_sampled/calib.json", NULL, NULL,
                                     &calibration, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(info_of(calibration).n_calibrated, 6);
    assert_int_equal(info_of(calibration).explicit_inv_freq, 1);
    assert_true(geometry_of(calibration, 1).inv_freq[0] == 1.1);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(
            tria_calibration_head(calibration, heads[i][0], heads[i][1], &stats, &present, NULL), TRIA_OK);
        assert_int_equal(present, 1);
    }
    tria_calibration_destroy(calibration);
}

static void test_json_round_trip(void **state)
{
    tria_model *model = make_model(2, 3, 1, 10, 8);
    tria_calibration *made;
    tria_calibration *read;
    buffer file = {0};
    tria_error error;
    size_t size;
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    float odd[4] = {0.1F, 1e-30F, 3.4e38F, -0.333333343F};
    (void)state;
    assert_int_equal(tria_calibration_create(model, NULL, &made, NULL), TRIA_OK);
    stats.q_mean_real = stats.q_mean_imag = stats.q_abs_mean = odd;
    assert_int_equal(tria_calibration_set_head(made, 1, 0, &stats, NULL), TRIA_OK);
    assert_int_equal(tria_import_calibration_write(made, TRIA_FORMAT_JSON, 0, NULL, 0, &size, &error),
                     TRIA_OK);
    file.data = malloc(size);
    file.size = file.capacity = size;
    assert_int_equal(
        tria_import_calibration_write(made, TRIA_FORMAT_JSON, 0, file.data, size, &size, &error), TRIA_OK);
    read = must_read(&file);
    assert_same_stats(made, read);
    assert_int_equal(geometry_of(read, 0).head_dim, 10);
    assert_int_equal(geometry_of(read, 0).rotary_dim, 8);
    for (int32_t f = 0; f < 4; f++) {
        assert_true(geometry_of(read, 0).inv_freq[f] == geometry_of(made, 0).inv_freq[f]);
    }
    tria_calibration_destroy(made);
    tria_calibration_destroy(read);
    tria_model_destroy(model);
    buffer_free(&file);
}

/* Dialect A's fourth array, where it is not what follows from the others. */
static void test_json_loses_mrl(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    tria_error error;
    size_t size;
    (void)state;
    make_dialect_a(&file, 1, 8, 0);
    calibration = must_read(&file);
    assert_int_equal(
        tria_import_calibration_write(calibration, TRIA_FORMAT_JSON, 0, NULL, 0, &size, &error),
        TRIA_E_LOSSY);
    assert_non_null(strstr(error.message, "cannot hold an array mrl"));
    assert_int_equal(
        tria_import_calibration_write(calibration, TRIA_FORMAT_JSON, 1, NULL, 0, &size, &error), TRIA_OK);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void refuse_text(const char *text, const char *words)
{
    buffer file = {0};
    put_bytes(&file, text, strlen(text));
    must_refuse(&file, words);
    buffer_free(&file);
}

#define HEAD "\"head_dim\":4,\"num_attention_heads\":2,\"num_layers\":1,\"rope_theta\":1e4"

#define ONES "{\"q_mean_real\":[1,1],\"q_mean_imag\":[1,1],\"q_abs_mean\":[2,2]}"

static void test_json_bad(void **state)
{
    (void)state;
    refuse_text("{}", "needs num_layers");
    refuse_text("{" HEAD "}", "without stats");
    refuse_text("{" HEAD ",\"stats_head_count\":1,\"stats\":{}}", "averaged over groups");
    refuse_text("{" HEAD ",\"rope_style\":\"neox\",\"stats\":{}}", "rope_style");
    refuse_text("{" HEAD ",\"stats\":{\"layer0\":{}}}", "\"layer0\" is not one of");
    refuse_text("{" HEAD ",\"stats\":{\"layer01_head00\":{}}}", "not one of 1 layers");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head02\":{}}}", "2 heads");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head01\":{\"q_mean_real\":[1]}}}", "array of 2 numbers");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head01\":{\"q_mean_real\":[1,\"x\"]}}}",
                "q_mean_real[1] is not");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head01\":{\"q_mean_real\":[1,2],\"q_mean_imag\":[1,1e99],"
                "\"q_abs_mean\":[1,2]}}}",
                "q_mean_imag[1] is inf");
    refuse_text("{" HEAD ",\"sampled_heads\":[[0,1]],\"stats\":{}}",
                "sampled_heads[0] (layer 0 head 1) is not in stats");
    refuse_text("{" HEAD ",\"sampled_heads\":[[0,9]],\"layer_stats\":{}}", "sampled_heads[0]");
    refuse_text("{" HEAD ",\"sampled_heads\":[[0,1]],\"layer_stats\":{}}", "no layer \"0\"");
    refuse_text("{" HEAD ",\"sampled_heads\":[[0,1]],\"layer_stats\":{\"0\":{\"q_mean_real\":[[1,2]]}}}",
                "not an array of 2 rows");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head00\":" ONES ",\"layer0_head0\":" ONES "}}",
                "layer 0 head 0 occurs twice");
    refuse_text("{" HEAD ",\"stats\":{},\"num_layers\":2}", "duplicate object key");
    refuse_text("{" HEAD ",\"inv_freq\":[1],\"stats\":{\"layer00_head00\":{\"q_mean_real\":[1,2]}}}",
                "array of 1");
    refuse_text("{" HEAD ",\"stats\":{\"layer00_head00\":{\"freq_scale_sq\":[1,2]},"
                "\"layer00_head01\":{\"freq_scale_sq\":[1,3]}}}",
                "differs from that of an earlier head");
}

static void test_safetensors(void **state)
{
    buffer file = {0};
    tria_calibration *calibration;
    (void)state;
    make_safetensors(&file);
    calibration = must_read(&file);
    assert_int_equal(info_of(calibration).format, TRIA_FORMAT_SAFETENSORS);
    assert_int_equal(info_of(calibration).n_layers, 3);
    assert_int_equal(info_of(calibration).n_calibrated, 6);
    assert_int_equal(geometry_of(calibration, 0).n_kv_heads, 1);
    assert_int_equal(geometry_of(calibration, 0).head_dim, 8);
    check_head(calibration, 0, 1);
    check_head(calibration, 2, 2);
    check_absent(calibration, 1, 0);
    tria_calibration_destroy(calibration);
    buffer_free(&file);
}

static void refuse_tensors(const char *header, size_t data, const char *words)
{
    buffer file = {0};
    put_u64(&file, strlen(header));
    put_bytes(&file, header, strlen(header));
    put_zeros(&file, data);
    must_refuse(&file, words);
    buffer_free(&file);
}

#define TENSOR(name, shape, offsets)                                                                       \
    "\"layer.0." name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

#define THREE(a, b, c)                                                                                     \
    TENSOR("q_center_real", "[1,1]", a)                                                                    \
    "," TENSOR("q_center_imag", "[1,1]", b) "," TENSOR("q_mean_norm", "[1,1]", c)

static void test_safetensors_bad(void **state)
{
    (void)state;
    refuse_tensors("{}", 4, "tensors layer.0");
    refuse_tensors("{" TENSOR("q_center_real", "[1,1]", "[0,4]") "}", 4, "q_center_imag is missing");
    refuse_tensors("{" TENSOR("q_center_real", "[1]", "[0,4]") "}", 4, "not a matrix");
    refuse_tensors("{" TENSOR("q_center_real", "[1,1]", "[0,8]") "}", 8, "do not lie at 0 to 8");
    refuse_tensors("{" TENSOR("q_center_real", "[1,1]", "[4,8]") "}", 4, "do not lie at 4 to 8");
    refuse_tensors("{" TENSOR("q_center_real", "[9999999999,1]", "[0,4]") "}", 4, "do not lie");
    refuse_tensors("{" TENSOR("q_center_real", "[-1,-1]", "[0,4]") "}", 4, "do not lie");
    refuse_tensors("{\"layer.0.q_center_real\":{\"dtype\":\"I8\",\"shape\":[1,1],\"data_offsets\":[0,1]}}",
                   1, "dtype I8");
    refuse_tensors("{\"__metadata__\":{\"n_layers\":\"x\"}}", 1, "metadata n_layers");
    refuse_tensors("{\"__metadata__\":{\"n_layers\":3}}", 1, "metadata n_layers is not a string");
    refuse_tensors("{\"a\":1,\"a\":1}", 1, "duplicate object key");
    refuse_tensors("{" THREE("[0,4]", "[4,8]", "[8,12]") "}", 16, "leave holes in the 16 bytes");
    refuse_tensors("{" THREE("[0,4]", "[4,8]", "[4,8]") "}", 8, "overlap");
    refuse_tensors("{" THREE("[0,4]", "[0,4]", "[8,12]") "}", 12, "overlap");
    refuse_tensors("{" THREE("[0,4]", "[4,8]", "[8,12]") ",\"b\":{\"data_offsets\":[12,99]}}", 12,
                   "overlap");
    refuse_tensors("{" THREE("[0,4]", "[4,8]", "[8,12]") ",\"b\":{\"data_offsets\":[-9,0]}}", 12,
                   "overlap");
}

/* A torch file of one pickle, without storages. */
static void refuse_pickle(const buffer *pickle, const char *words)
{
    zip_builder zip = {0};
    buffer file = {0};
    zip_add(&zip, "stem/data.pkl", pickle->data, pickle->size);
    zip_finish(&zip, &file);
    must_refuse(&file, words);
    buffer_free(&file);
}

static void refuse_opcodes(const char *bytes, size_t size, const char *words)
{
    buffer pickle = {0};
    put_u8(&pickle, 0x80);
    put_u8(&pickle, 2);
    put_bytes(&pickle, bytes, size);
    refuse_pickle(&pickle, words);
    buffer_free(&pickle);
}

#define REFUSE(literal, words) refuse_opcodes(literal, sizeof(literal) - 1, words)

static void test_pickle_opcodes(void **state)
{
    static const unsigned char allowed[] = {'(', 'c', 'R', 'Q',  '}',  ']',  'u',  'e',  's', 'a',
                                            ')', 't', 'N', 'X',  'G',  'K',  'M',  'J',  'q', 'r',
                                            'h', 'j', '.', 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a};
    (void)state;
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        buffer pickle = {0};
        if (memchr(allowed, (int)opcode, sizeof(allowed)) != NULL) {
            continue;
        }
        put_u8(&pickle, 0x80);
        put_u8(&pickle, 2);
        put_u8(&pickle, opcode);
        refuse_pickle(&pickle, "is not allowed");
        buffer_free(&pickle);
    }
    REFUSE("cos\nsystem\n(X\4\0\0\0truetR.", "the global os.system is not allowed");
    REFUSE("cbuiltins\neval\n.", "builtins.eval is not allowed");
    REFUSE("ctorch\nload\n.", "torch.load is not allowed");
    REFUSE("c__builtin__\n", "ends within a line");
    REFUSE("ccollections\nOrderedDict\nK\1R.", "call of what is not allowed");
    REFUSE("ccollections\nOrderedDict\nK\1\x85R.", "call of what is not allowed");
    REFUSE("ctorch\nFloatStorage\n)R.", "call of what is not allowed");
    REFUSE("K\1)R.", "call of what is not allowed");
    REFUSE("R.", "the stack is empty");
    REFUSE("(R.", "the stack is empty");
    REFUSE("}K\1K\1e.", "no mark");
    REFUSE("K\1(K\1e.", "not a list");
    REFUSE("](K\1K\2u.", "not a dict");
    REFUSE("}(K\1u.", "a key without a value");
    REFUSE("}q\5.", "memo number out of order");
    REFUSE("}h\0.", "never set");
    REFUSE("q\0.", "nothing to memorise");
    REFUSE("K\1Q.", "not a tuple of 5");
    REFUSE("(K\1K\1K\1K\1K\1tQ.", "not a storage");
    REFUSE("\x8a\x09\1\1\1\1\1\1\1\1\1.", "more than 8 bytes");
    REFUSE("X\xff\xff\xff\xff", "ends within an opcode");
    REFUSE("K", "ends within an opcode");
    REFUSE("K\1", "it has no end");
    REFUSE("K\1K\1.", "other than one value");
    REFUSE("}.x", "bytes follow its end");
    REFUSE("}.", "without the entries");
    REFUSE("}X\5\0\0\0stats}s.", "stats is empty");
    REFUSE("}X\5\0\0\0statsK\1s.", "without the entries");
}

/* A stack or tree that grows beyond all measure stops. */
static void test_pickle_bombs(void **state)
{
    buffer stack = {0};
    buffer lists = {0};
    buffer tuples = {0};
    (void)state;
    put_u8(&stack, 0x80);
    put_u8(&stack, 2);
    for (int i = 0; i < 100000; i++) {
        put_u8(&stack, 'N');
    }
    refuse_pickle(&stack, "beyond 16384");
    put_u8(&lists, 0x80);
    put_u8(&lists, 2);
    put_u8(&lists, ']');
    for (int i = 0; i < 200000; i++) {
        put_bytes(&lists, "]a", 2); /* a list of lists: 2 bytes each */
    }
    refuse_pickle(&lists, "more than its size allows");
    put_u8(&tuples, 0x80);
    put_u8(&tuples, 2);
    put_u8(&tuples, 'N');
    for (int i = 0; i < 200000; i++) {
        put_u8(&tuples, 0x85); /* a tuple around a tuple ... */
    }
    refuse_pickle(&tuples, "more than its size allows");
    buffer_free(&stack);
    buffer_free(&lists);
    buffer_free(&tuples);
}

/* A reference file whose first tensor is replaced. */
static void refuse_tensor(const char *type, const char *key, int32_t count, int32_t offset, int32_t n_dims,
                          const int32_t *size, const int32_t *stride, const char *words)
{
    zip_builder zip = {0};
    buffer pickle = {0};
    buffer file = {0};
    const unsigned char numbers[16] = {0};
    put_u8(&pickle, 0x80);
    put_u8(&pickle, 2);
    put_u8(&pickle, '}');
    put_u8(&pickle, '(');
    pickle_text(&pickle, "q_mean_real");
    pickle_tensor(&pickle, type, key, count, offset, n_dims, size, stride);
    put_u8(&pickle, 'u');
    put_u8(&pickle, '.');
    zip_add(&zip, "stem/data.pkl", pickle.data, pickle.size);
    zip_add(&zip, "stem/data/0", numbers, sizeof(numbers));
    zip_finish(&zip, &file);
    must_refuse(&file, words);
    buffer_free(&pickle);
    buffer_free(&file);
}

static void test_tensors(void **state)
{
    static const int32_t four[] = {1, 1, 4};
    static const int32_t five[] = {1, 1, 5};
    static const int32_t huge[] = {4096, 4096, 4096};
    static const int32_t unit[] = {4, 4, 1};
    static const int32_t zero[] = {0, 0, 0};
    static const int32_t far[] = {1, 1, 0x7fffffff};
    static const int32_t negative[] = {1, 1, -1};
    (void)state;
    refuse_tensor("FloatStorage", "0", 4, 0, 3, five, unit, "reaches beyond its storage");
    refuse_tensor("FloatStorage", "0", 4, 1, 3, four, unit, "reaches beyond its storage");
    refuse_tensor("FloatStorage", "0", 4, 0, 3, huge, zero, "reaches beyond its storage");
    refuse_tensor("FloatStorage", "0", 4, 0, 3, huge, far, "reaches beyond its storage");
    refuse_tensor("FloatStorage", "0", 4, 0, 3, four, negative, "size and stride");
    refuse_tensor("FloatStorage", "0", 4, -1, 3, four, unit, "without storage, offset");
    refuse_tensor("FloatStorage", "0", 4, 0, 2, four, unit, "q_mean_real is not a tensor of layers");
    refuse_tensor("FloatStorage", "0", 4, 0, 3, four, unit, "q_mean_imag is not a tensor");
    refuse_tensor("LongStorage", "0", 4, 0, 3, four, unit, "torch.LongStorage is not allowed");
    refuse_tensor("FloatStorage", "0", -4, 0, 3, four, unit, "not a storage");
}

/* A tensor whose numbers stand for others: stored as they are, their flags beside them. */
static void test_tensor_flags(void **state)
{
    static const int32_t size[] = {1};
    static const int32_t stride[] = {1};
    buffer pickle = {0};
    (void)state;
    put_bytes(&pickle, "\x80\2", 2);
    pickle_tensor(&pickle, "ComplexFloatStorage", "0", 1, 0, 1, size, stride);
    pickle.size -= 2; /* the tuple and the call */
    put_bytes(&pickle, "}(", 2);
    pickle_text(&pickle, "conj");
    put_bytes(&pickle, "\x88utR.", 5);
    refuse_pickle(&pickle, "conjugated or negated");
    buffer_free(&pickle);
}

/* One head of 4 frequencies with theta 10000 and a rope_scaling of that type. */
static void make_scaled_pt(buffer *file, const char *type)
{
    static const char *const names[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};
    static const int32_t size[] = {4};
    static const int32_t stride[] = {1};
    zip_builder zip = {0};
    buffer pickle = {0};
    buffer numbers = {0};
    put_bytes(&pickle, "\x80\2}(", 4);
    pickle_text(&pickle, "metadata");
    put_bytes(&pickle, "}(", 2);
    pickle_text(&pickle, "rope_theta");
    pickle_int(&pickle, 10000);
    pickle_text(&pickle, "rope_scaling");
    put_bytes(&pickle, "}(", 2);
    pickle_text(&pickle, "rope_type");
    pickle_text(&pickle, type);
    pickle_text(&pickle, "factor");
    pickle_int(&pickle, 8);
    pickle_text(&pickle, "low_freq_factor");
    pickle_int(&pickle, 1);
    pickle_text(&pickle, "high_freq_factor");
    pickle_int(&pickle, 4);
    pickle_text(&pickle, "original_max_position_embeddings");
    pickle_int(&pickle, 64);
    put_bytes(&pickle, "uu", 2);
    pickle_text(&pickle, "stats");
    put_bytes(&pickle, "}(", 2);
    pickle_text(&pickle, "layer00_head00");
    put_bytes(&pickle, "}(", 2);
    for (size_t i = 0; i < 3; i++) {
        pickle_text(&pickle, names[i]);
        pickle_tensor(&pickle, "FloatStorage", "0", 4, 0, 1, size, stride);
    }
    put_bytes(&pickle, "uuu.", 4);
    for (int i = 0; i < 4; i++) {
        put_f32(&numbers, 1.0F);
    }
    zip_add(&zip, "stem/data.pkl", pickle.data, pickle.size);
    zip_add(&zip, "stem/data/0", numbers.data, numbers.size);
    zip_finish(&zip, file);
    buffer_free(&pickle);
    buffer_free(&numbers);
}

/* Frequencies under the scalings that metadata may name; where they cannot be told, theta is not believed.
 */
static void test_pt_scaling(void **state)
{
    static const struct {
        const char *type;
        int32_t known; /* tria_rope_scaling_type, -1: the file does not tell */
    } cases[] = {{"default", TRIA_ROPE_SCALING_NONE},
                 {"linear", TRIA_ROPE_SCALING_LINEAR},
                 {"yarn", TRIA_ROPE_SCALING_YARN},
                 {"llama3", TRIA_ROPE_SCALING_LLAMA3},
                 {"dynamic", -1},
                 {"longrope", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buffer file = {0};
        tria_calibration *calibration;
        tria_rope_scaling scaling;
        double expected[4];
        tria_layer_params geometry;
        make_scaled_pt(&file, cases[i].type);
        calibration = must_read(&file);
        geometry = geometry_of(calibration, 0);
        assert_true(geometry.rope_theta == (cases[i].known < 0 ? 0.0 : 10000.0));
        assert_int_equal(geometry.inv_freq != NULL, cases[i].known > 0);
        tria_rope_scaling_init(&scaling);
        scaling.type = cases[i].known > 0 ? cases[i].known : TRIA_ROPE_SCALING_NONE;
        scaling.factor = 8;
        scaling.original_length = 64;
        assert_int_equal(tria_rope_frequencies(10000, 8, &scaling, expected, NULL, NULL), TRIA_OK);
        for (int32_t f = 0; f < 4 && geometry.inv_freq != NULL; f++) {
            assert_true(geometry.inv_freq[f] == expected[f]);
        }
        tria_calibration_destroy(calibration);
        buffer_free(&file);
    }
}

/* Members that are missing, compressed, of another length, damaged. */
static void test_archives(void **state)
{
    static const char pickle[] = "\x80\2}.";
    (void)state;
    {
        zip_builder zip = {0};
        buffer file = {0};
        zip_add(&zip, "stem/data", "x", 1);
        zip_finish(&zip, &file);
        must_refuse(&file, "without <folder>/data.pkl");
        buffer_free(&file);
    }
    {
        zip_builder zip = {0};
        buffer file = {0};
        zip_add_method(&zip, "stem/data.pkl", "\x03\x00", 2, 8, 4000000000U); /* deflated, to be 4 GB */
        zip_finish(&zip, &file);
        must_refuse(&file, "compressed");
        buffer_free(&file);
    }
    {
        zip_builder zip = {0};
        buffer file = {0};
        zip_add_method(&zip, "stem/data.pkl", pickle, 4, 0, 4000000000U);
        zip_finish(&zip, &file);
        must_refuse(&file, "longer than the file");
        buffer_free(&file);
    }
    {
        zip_builder zip = {0};
        buffer file = {0};
        zip_add(&zip, "stem/data.pkl", pickle, 4);
        zip_finish(&zip, &file);
        file.data[30 + 13] ^= 1; /* the pickle's first byte: the checksum no longer fits */
        must_refuse(&file, "damaged");
        buffer_free(&file);
    }
    {
        zip_builder zip = {0};
        buffer file = {0};
        zip_add(&zip, "stem/data.pkl", pickle, 4);
        zip_add(&zip, "stem/byteorder", "big", 3);
        zip_finish(&zip, &file);
        must_refuse(&file, "little-endian");
        buffer_free(&file);
    }
    {
        buffer file = {0};
        make_pt(&file);
        set_u32(&file, file.size - 12, 0x00ffffff); /* size of the central directory */
        must_refuse(&file, "zip archive");
        buffer_free(&file);
    }
    {
        buffer file = {0};
        make_pt(&file);
        put_zeros(&file, 3);
        must_refuse(&file, "no end record at its end");
        buffer_free(&file);
    }
    {
        buffer file = {0};
        make_pt(&file);
        file.data[file.size - 12] = 0xff; /* count of members */
        file.data[file.size - 11] = 0x7f;
        must_refuse(&file, "zip archive");
        buffer_free(&file);
    }
}

/* One storage, shown over and over: the numbers add up to more than the file holds. */
static void test_view_bomb(void **state)
{
    static const char *const names[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};
    enum { F = 4096, HEADS = 40 };
    static float values[F];
    static const int32_t size[] = {F};
    static const int32_t stride[] = {1};
    zip_builder zip = {0};
    buffer pickle = {0};
    buffer file = {0};
    (void)state;
    put_u8(&pickle, 0x80);
    put_u8(&pickle, 2);
    put_u8(&pickle, '}');
    pickle_text(&pickle, "stats");
    put_u8(&pickle, '}');
    for (int32_t h = 0; h < HEADS; h++) {
        char text[32];
        snprintf(text, sizeof(text), "layer00_head%02d", h);
        pickle_text(&pickle, text);
        put_u8(&pickle, '}');
        put_u8(&pickle, '(');
        for (int32_t array = 0; array < 3; array++) {
            pickle_text(&pickle, names[array]);
            pickle_tensor(&pickle, "FloatStorage", "0", F, 0, 1, size, stride);
        }
        put_u8(&pickle, 'u');
        put_u8(&pickle, 's');
    }
    put_u8(&pickle, 's');
    put_u8(&pickle, '.');
    zip_add(&zip, "stem/data.pkl", pickle.data, pickle.size);
    zip_add(&zip, "stem/data/0", values, sizeof(values));
    zip_finish(&zip, &file);
    must_refuse(&file, "more numbers than the file has room for");
    buffer_free(&pickle);
    buffer_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pt),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_pt_dense),
        cmocka_unit_test(test_pt_trtllm),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_golden),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_json_loses_mrl),
        cmocka_unit_test(test_json_bad),
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_safetensors_bad),
        cmocka_unit_test(test_pickle_opcodes),
        cmocka_unit_test(test_pickle_bombs),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tensor_flags),
        cmocka_unit_test(test_pt_scaling),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_view_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

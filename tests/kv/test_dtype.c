/* Element types: every code of the small floats against their definition, every block type against the
 * documented block structure, sizes and names. */
#include "kv_view_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sign, exponent and mantissa of a small float taken at their word, in double. */
static double small_float(uint32_t bits, int mantissa_bits, int exponent_bits, int bias)
{
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    double sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1.0 : 1.0;
    double fraction = ldexp((double)mantissa, -mantissa_bits);
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias) : sign * ldexp(1.0 + fraction, exponent - bias);
}

static void expect_same(double got, double expected, uint32_t bits)
{
    if (got != expected || signbit(got) != signbit(expected)) {
        fail_msg("code 0x%x: got %.17g, expected %.17g", bits, got, expected);
    }
}

static void test_f16_and_bf16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        double half = tria_f16_to_f32((uint16_t)bits);
        double brain = tria_bf16_to_f32((uint16_t)bits);
        if ((bits & 0x7c00) != 0x7c00) {
            expect_same(half, small_float(bits, 10, 5, 15), bits);
        } else if (bits & 0x3ff) {
            assert_true(isnan(half));
        } else {
            expect_same(half, bits & 0x8000 ? -INFINITY : INFINITY, bits);
        }
        if ((bits & 0x7f80) != 0x7f80) {
            expect_same(brain, small_float(bits, 7, 8, 127), bits);
        } else {
            assert_true((bits & 0x7f) != 0 ? isnan(brain) : isinf(brain));
        }
    }
}

static void test_fp8(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x100; bits++) {
        double fn = tria_fp8_e4m3fn_to_f32((uint8_t)bits);
        double fnuz = tria_fp8_e4m3fnuz_to_f32((uint8_t)bits);
        double e5m2 = tria_fp8_e5m2_to_f32((uint8_t)bits);
        if ((bits & 0x7f) == 0x7f) {
            assert_true(isnan(fn));
        } else {
            expect_same(fn, small_float(bits, 3, 4, 7), bits);
        }
        if (bits == 0x80) {
            assert_true(isnan(fnuz));
        } else {
            expect_same(fnuz, small_float(bits, 3, 4, 8), bits);
        }
        if ((bits & 0x7c) != 0x7c) {
            expect_same(e5m2, small_float(bits, 2, 5, 15), bits);
        } else {
            assert_true((bits & 3) != 0 ? isnan(e5m2) : isinf(e5m2));
        }
    }
    assert_true(tria_fp8_e4m3fn_to_f32(0x7e) == 448.0f);
    assert_true(tria_fp8_e4m3fnuz_to_f32(0x7f) == 240.0f);
    assert_true(tria_fp8_e5m2_to_f32(0x7b) == 57344.0f);
}

/* A tensor of one row at `bytes`. */
static void one_row(tria_rows *rows, tria_tensor *tensor, int32_t dtype, int32_t dim, void *bytes)
{
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_layer_view layer;
    memset(&layer, 0, sizeof(layer));
    memset(tensor, 0, sizeof(*tensor));
    tensor->base = bytes;
    tensor->dtype = dtype;
    tensor->dim = dim;
    tria_rows_init(rows, &view, &layer, tensor, 0);
}

/* The documented value of element j of a block with delta 0.5 and minimum -3 (powers of two: exact). */
static double expected_element(int32_t dtype, const unsigned char *block, int j)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int half = j % 16;
    int shift = j < 16 ? 0 : 4;
    switch (dtype) {
    case TRIA_DTYPE_Q8_0:
        return 0.5 * (double)(signed char)block[2 + j];
    case TRIA_DTYPE_Q4_0:
        return 0.5 * (((block[2 + half] >> shift) & 15) - 8);
    case TRIA_DTYPE_Q4_1:
        return 0.5 * ((block[4 + half] >> shift) & 15) - 3.0;
    case TRIA_DTYPE_Q5_0:
        return 0.5 * ((((block[6 + half] >> shift) & 15) + ((block[2 + j / 8] >> (j % 8)) & 1) * 16) - 16);
    case TRIA_DTYPE_Q5_1:
        return 0.5 * (((block[8 + half] >> shift) & 15) + ((block[4 + j / 8] >> (j % 8)) & 1) * 16) - 3.0;
    default:
        return 0.5 * iq4[(block[2 + half] >> shift) & 15];
    }
}

static void test_blocks(void **state)
{
    const uint16_t delta = 0x3800;   /* 0.5 */
    const uint16_t minimum = 0xc200; /* -3 */
    (void)state;
    srand(11);
    for (int32_t dtype = TRIA_DTYPE_Q8_0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        int32_t bytes = tria_dtype_block_bytes(dtype);
        for (int trial = 0; trial < 200; trial++) {
            unsigned char row[3 * 34];
            float f32[96];
            double f64[96];
            tria_tensor tensor;
            tria_rows rows;
            for (int i = 0; i < 3 * bytes; i++) {
                row[i] = (unsigned char)(rand() >> 3);
            }
            for (int b = 0; b < 3; b++) {
                memcpy(row + b * bytes, &delta, 2);
                if (dtype == TRIA_DTYPE_Q4_1 || dtype == TRIA_DTYPE_Q5_1) {
                    memcpy(row + b * bytes + 2, &minimum, 2);
                }
            }
            one_row(&rows, &tensor, dtype, 96, row);
            f32[70] = f32[95] = 12345.0f;
            tria_rows_decode_f32(&rows, 0, 70, f32); /* cuts the last block */
            tria_rows_decode_f64(&rows, 0, 96, f64);
            for (int j = 0; j < 96; j++) {
                double expected = expected_element(dtype, row + j / 32 * bytes, j % 32);
                assert_true(f64[j] == expected);
                assert_true(j >= 70 || (double)f32[j] == expected);
            }
            assert_true(f32[70] == 12345.0f && f32[95] == 12345.0f);
        }
    }
}

static void test_block_min_is_exact_in_double(void **state)
{
    /* q4_1: 15 * 2^-10 + 32768 needs more than float's 24 bits */
    unsigned char block[20] = {0x00, 0x14, 0x00, 0x78};
    float f32[32];
    double f64[32];
    tria_tensor tensor;
    tria_rows rows;
    (void)state;
    block[4] = 0x0f;
    one_row(&rows, &tensor, TRIA_DTYPE_Q4_1, 32, block);
    tria_rows_decode_f64(&rows, 0, 32, f64);
    tria_rows_decode_f32(&rows, 0, 32, f32);
    assert_true(f64[0] == 32768.0 + 15.0 / 1024.0);
    assert_true(f32[0] == (float)(32768.0 + 15.0 / 1024.0));
}

static void test_scales(void **state)
{
    /* [token][head][dim] int8, scales [token][head] and, for SCALE_HEAD, [head] */
    int8_t data[3][2][4];
    float row_scales[3][2] = {{0.1f, 0.2f}, {0.3f, 0.4f}, {0.5f, 0.6f}};
    float head_scales[2] = {7.0f, -0.3f};
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_layer_view layer;
    (void)state;
    memset(&layer, 0, sizeof(layer));
    layer.k = (tria_tensor){.base = data,
                            .token_stride = 8,
                            .head_stride = 4,
                            .dtype = TRIA_DTYPE_INT8,
                            .dim = 4,
                            .scale = 0.7f};
    for (int i = 0; i < 24; i++) {
        data[i / 8][i / 4 % 2][i % 4] = (int8_t)(i * 11 - 128);
    }
    for (int32_t kind = TRIA_SCALE_TENSOR; kind <= TRIA_SCALE_ROW; kind++) {
        layer.k.scale_kind = kind;
        layer.k.scales = kind == TRIA_SCALE_HEAD ? (void *)head_scales : (void *)row_scales;
        layer.k.scale_token_stride = 8;
        layer.k.scale_head_stride = 4;
        for (int32_t head = 0; head < 2; head++) {
            tria_rows rows;
            tria_rows_init(&rows, &view, &layer, &layer.k, head);
            for (int32_t row = 0; row < 3; row++) {
                float scale = kind == TRIA_SCALE_TENSOR ? 0.7f
                              : kind == TRIA_SCALE_HEAD ? head_scales[head]
                                                        : row_scales[row][head];
                double f64[4];
                float f32[4];
                assert_true(tria_rows_scale(&rows, row) == scale);
                tria_rows_decode_f64(&rows, row, 4, f64);
                tria_rows_decode_f32(&rows, row, 4, f32);
                for (int d = 0; d < 4; d++) {
                    double exact = (double)data[row][head][d] * (double)scale;
                    assert_true(f64[d] == exact && f32[d] == (float)exact);
                }
            }
        }
    }
}

static void test_names_and_sizes(void **state)
{
    (void)state;
    for (int32_t dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        assert_int_equal(tria_dtype_from_name(tria_dtype_name(dtype)), dtype);
    }
    assert_int_equal(tria_dtype_from_name("f64"), TRIA_DTYPE_F64);
    assert_int_equal(tria_dtype_from_name("q9_0"), -1);
    assert_int_equal(tria_dtype_from_name(NULL), -1);
    assert_null(tria_dtype_name(-1));
    assert_null(tria_dtype_name(TRIA_DTYPE_COUNT));
    assert_int_equal(tria_dtype_block(99), 0);
    assert_int_equal(tria_dtype_row_bytes(TRIA_DTYPE_F16, 64), 128);
    assert_int_equal(tria_dtype_row_bytes(TRIA_DTYPE_Q8_0, 64), 68);
    assert_int_equal(tria_dtype_row_bytes(TRIA_DTYPE_Q5_1, 128), 96);
    assert_int_equal(tria_dtype_row_bytes(TRIA_DTYPE_Q8_0, 48), 0);
    assert_int_equal(tria_dtype_row_bytes(TRIA_DTYPE_F32, -1), 0);
    assert_true(tria_dtype_row_bytes(TRIA_DTYPE_F32, INT32_MAX) == 4ll * INT32_MAX);
}

static void test_hadamard(void **state)
{
    /* the matrix by its definition, entry (i, j) = (-1)^popcount(i & j) / sqrt(n) */
    enum { N = 16, DIM = 32 };
    float signs[DIM];
    double original[DIM];
    double stored[DIM];
    float stored_f32[DIM];
    (void)state;
    for (int i = 0; i < DIM; i++) {
        signs[i] = i % 3 == 0 ? -1.0f : 1.0f;
        original[i] = 0.37 * i - 4.0 + (i % 5) * 0.21;
    }
    for (int i = 0; i < DIM; i++) {
        stored[i] = 0.0;
        for (int j = 0; j < N; j++) {
            int source = i / N * N + j;
            double entry = (__builtin_popcount((unsigned)(i % N & j)) % 2 ? -1.0 : 1.0) / sqrt(N);
            stored[i] += entry * (double)signs[source] * original[source];
        }
        stored_f32[i] = (float)stored[i];
    }
    tria_hadamard_undo_f64(stored, DIM, N, signs);
    tria_hadamard_undo_f32(stored_f32, DIM, N, signs);
    for (int i = 0; i < DIM; i++) {
        assert_true(fabs(stored[i] - original[i]) < 1e-14);
        assert_true(fabs((double)stored_f32[i] - original[i]) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_and_bf16), cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_block_min_is_exact_in_double),
        cmocka_unit_test(test_scales),       cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_hadamard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

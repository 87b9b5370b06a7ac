/* Hostile tensors and views: refused with a message that names what is wrong, before any memory is read. */
#include "kv_view_internal.h"
#include "tria/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float storage[4096];
static const int32_t pages[4] = {2, 0, 3, 1};

/* [page][token][head][dim] f32: 4 pages of 8 tokens, 2 heads, 16 elements: fills `storage` exactly. */
static tria_tensor good_tensor(void)
{
    return (tria_tensor){.base = storage,
                         .size = sizeof(storage),
                         .page_stride = 8 * 2 * 64,
                         .token_stride = 2 * 64,
                         .head_stride = 64,
                         .dtype = TRIA_DTYPE_F32,
                         .dim = 16};
}

static void expect_tensor(tria_tensor t, bool is_v, tria_status code, const char *text)
{
    tria_error error = {0, ""};
    assert_int_equal(tria_tensor_check(&t, 2, is_v, "layer 3 K", &error), code);
    if (code != TRIA_OK &&
        (strncmp(error.message, "layer 3 K", 9) != 0 || strstr(error.message, text) == NULL)) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, text);
    }
}

static void test_geometry(void **state)
{
    tria_tensor t = good_tensor();
    tria_error error;
    (void)state;
    expect_tensor(t, false, TRIA_OK, "");
    t.dtype = TRIA_DTYPE_F64; /* scores only */
    expect_tensor(t, false, TRIA_E_ARGUMENT, "unknown dtype 64");
    t = good_tensor();
    t.dtype = -1;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "unknown dtype -1");
    t = good_tensor();
    t.dim = 0;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "dim 0");
    t.dim = TRIA_MAX_HEAD_DIM + 1;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "dim 8193");
    t = good_tensor();
    t.dtype = TRIA_DTYPE_INT8;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "int8 needs a scale");
    t.scale_kind = TRIA_SCALE_TENSOR;
    t.scale = NAN;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "not finite");
    t.scale = 0.5F;
    expect_tensor(t, false, TRIA_OK, "");
    t.scale_kind = 4;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "scale_kind 4");
    t = good_tensor();
    t.pack = 3;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "pack 3 does not divide dim 16");
    t.pack = -2;
    expect_tensor(t, false, TRIA_E_ARGUMENT, "pack -2");
    for (int32_t dtype = TRIA_DTYPE_Q8_0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        t = good_tensor();
        t.dtype = dtype;
        expect_tensor(t, false, TRIA_E_ARGUMENT, "dim 16 is not a multiple of the 32");
        t.dim = 64;
        expect_tensor(t, false, TRIA_OK, "");
        t.dim_stride = 64; /* a transposed V of block type */
        expect_tensor(t, true, TRIA_E_UNSUPPORTED, "cannot be transposed");
        t.dim_stride = 0;
        t.pack = 32;
        expect_tensor(t, false, TRIA_E_UNSUPPORTED, "cannot be split");
        t.pack = 0;
        t.scale_kind = TRIA_SCALE_TENSOR;
        t.scale = 1.0F;
        expect_tensor(t, false, TRIA_E_UNSUPPORTED, "their own scales");
    }
    t = good_tensor();
    assert_int_equal(tria_tensor_check(&t, 0, false, "x", &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_tensor_check(&t, TRIA_MAX_HEADS + 1, false, "x", NULL), TRIA_E_ARGUMENT);
}

static tria_status check_rows(const tria_tensor *t, const int32_t *table, int32_t n_pages, int32_t tokens,
                              int32_t n_rows, tria_error *error)
{
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_layer_view layer;
    memset(&layer, 0, sizeof(layer));
    view.page_table = table;
    view.n_pages = n_pages;
    view.tokens_per_page = tokens;
    return tria_tensor_check_rows(t, &view, &layer, 2, n_rows, "K", error);
}

static void expect_rows(tria_tensor t, const int32_t *table, int32_t n_pages, int32_t n_rows,
                        const char *text)
{
    tria_error error = {0, ""};
    assert_int_equal(check_rows(&t, table, n_pages, 8, n_rows, &error), TRIA_E_ARGUMENT);
    if (strstr(error.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, text);
    }
}

static void test_extent(void **state)
{
    tria_tensor t = good_tensor();
    (void)state;
    t.size = 4 * 8 * 2 * 64; /* exactly the four pages */
    assert_int_equal(check_rows(&t, NULL, 0, 0, 32, NULL), TRIA_OK);
    expect_rows(t, NULL, 0, 33, "rows occupy bytes 0 to 4224 of a buffer of 4096");
    assert_int_equal(check_rows(&t, pages, 4, 8, 32, NULL), TRIA_OK);
    assert_int_equal(check_rows(&t, pages, 4, 8, 0, NULL), TRIA_OK);
    t.size--;
    assert_int_equal(check_rows(&t, pages, 4, 8, 17, NULL), TRIA_OK); /* one token of page 3 */
    expect_rows(t, pages, 4, 24, "of a buffer of 4095");
    t.size = 0; /* unknown: offsets alone */
    assert_int_equal(check_rows(&t, NULL, 0, 0, 1000000, NULL), TRIA_OK);
    t = good_tensor();
    t.offset = sizeof(storage) - 64;
    expect_rows(t, NULL, 0, 1, "of a buffer of");
    t.offset = UINT64_MAX;
    expect_rows(t, NULL, 0, 1, "overflow");
    t = good_tensor();
    t.token_stride = -128;
    expect_rows(t, NULL, 0, 2, "bytes -128 to");
    t.offset = 31 * 128;
    assert_int_equal(check_rows(&t, NULL, 0, 0, 32, NULL), TRIA_OK); /* backwards is fine */
    t.base = NULL;
    expect_rows(t, NULL, 0, 1, "base is NULL");
    t = good_tensor();
    expect_rows(t, NULL, 0, -1, "-1 rows");
    t.scale_kind = TRIA_SCALE_ROW;
    expect_rows(t, NULL, 0, 1, "scales is NULL");
    t.scales = storage;
    assert_int_equal(check_rows(&t, NULL, 0, 0, 1, NULL), TRIA_OK);
    t.scale_token_stride = INT64_MAX;
    expect_rows(t, NULL, 0, 3, "overflow");
}

static void test_overflowing_strides(void **state)
{
    static const int64_t hostile[] = {INT64_MAX, INT64_MIN, INT64_MAX / 2, INT64_MIN / 3, INT64_C(1) << 60};
    (void)state;
    for (size_t i = 0; i < TRIA_ARRAY_LEN(hostile); i++) {
        for (int32_t size_known = 0; size_known < 2; size_known++) {
            tria_tensor t = good_tensor();
            t.size = size_known ? t.size : 0;
            tria_tensor all[4] = {t, t, t, t};
            all[0].page_stride = hostile[i];
            all[1].token_stride = hostile[i];
            all[2].head_stride = hostile[i];
            all[3].dim_stride = hostile[i];
            for (int32_t j = 0; j < 4; j++) {
                expect_rows(all[j], pages, 4, 32, "overflow");
            }
        }
    }
}

static void test_page_tables(void **state)
{
    const int32_t negative[4] = {2, -1, 3, 1};
    const int32_t far[4] = {2, 0, INT32_MAX, 1};
    tria_tensor t = good_tensor();
    tria_error error = {0, ""};
    (void)state;
    t.size = 4 * 8 * 2 * 64;
    expect_rows(t, pages, 3, 25, "25 rows need 4 pages of 8 tokens, the table has 3");
    expect_rows(t, pages, 0, 1, "the table has 0");
    expect_rows(t, pages, -5, 1, "the table has -5");
    expect_rows(t, negative, 4, 32, "page_table[1] is -1");
    expect_rows(t, far, 4, 32, "of a buffer of 4096");                  /* beyond the pool */
    assert_int_equal(check_rows(&t, negative, 4, 8, 8, NULL), TRIA_OK); /* not reached */
    assert_int_equal(check_rows(&t, pages, 4, 0, 8, &error), TRIA_E_ARGUMENT);
    assert_non_null(strstr(error.message, "tokens_per_page > 0"));
    assert_int_equal(check_rows(&t, pages, 4, -8, 8, &error), TRIA_E_ARGUMENT);
}

static int32_t below(uint64_t *seed, int32_t n)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return (int32_t)((*seed >> 33) % (uint64_t)n);
}

/* Random views, most of them nonsense: what passes can be read to the last byte (the buffer is exactly as
 * large as stated, so sanitizers see a step outside). */
static void test_what_passes_stays_inside(void **state)
{
    uint64_t seed = 77;
    int32_t n_passed = 0;
    (void)state;
    for (int32_t trial = 0; trial < 20000; trial++) {
        const size_t size = (size_t)(1 + below(&seed, 3000));
        unsigned char *bytes = calloc(size, 1);
        int32_t table[6];
        const int32_t tokens = 1 + below(&seed, 8);
        const int32_t n_rows = below(&seed, 30);
        const int32_t n_pages = below(&seed, 7);
        const bool paged = below(&seed, 2) == 0;
        tria_kv_view view = TRIA_KV_VIEW_INIT;
        tria_layer_view layer;
        tria_tensor t = {.base = bytes,
                         .offset = (uint64_t)below(&seed, 200),
                         .size = size,
                         .page_stride = below(&seed, 600) - 100,
                         .token_stride = below(&seed, 100) - 10,
                         .head_stride = below(&seed, 200) - 20,
                         .dim_stride = below(&seed, 3) == 0 ? below(&seed, 40) - 4 : 0,
                         .pack = below(&seed, 3) == 0 ? below(&seed, 9) : 0,
                         .dtype = below(&seed, TRIA_DTYPE_COUNT),
                         .dim = 1 + below(&seed, 64)};
        assert_non_null(bytes);
        if (t.dtype == TRIA_DTYPE_INT8) {
            t.scale_kind = TRIA_SCALE_TENSOR;
            t.scale = 0.5F;
        } else if (t.dtype >= TRIA_DTYPE_Q8_0 && below(&seed, 4) != 0) {
            t.dim = 32 * (1 + below(&seed, 2));
            t.dim_stride = 0;
            t.pack = 0;
        }
        for (int32_t i = 0; i < 6; i++) {
            table[i] = below(&seed, 9) - 1;
        }
        memset(&layer, 0, sizeof(layer));
        view.page_table = paged ? table : NULL;
        view.n_pages = n_pages < 6 ? n_pages : 6;
        view.tokens_per_page = tokens;
        if (tria_tensor_check(&t, 2, false, "K", NULL) == TRIA_OK &&
            tria_tensor_check_rows(&t, &view, &layer, 2, n_rows, "K", NULL) == TRIA_OK) {
            for (int32_t i = 0; i < 2 * n_rows; i++) {
                double row[64];
                tria_rows rows;
                tria_rows_init(&rows, &view, &layer, &t, i % 2);
                tria_rows_decode_f64(&rows, i / 2, t.dim, row);
            }
            n_passed += n_rows > 0;
        }
        free(bytes);
    }
    assert_true(n_passed > 500); /* or the test shows nothing */
}

/* A layer's own table goes before the view's. */
static void test_own_page_table(void **state)
{
    const int32_t own[1] = {1};
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_layer_view layer;
    tria_rows rows;
    (void)state;
    memset(&layer, 0, sizeof(layer));
    layer.k = good_tensor();
    view.page_table = pages;
    view.n_pages = 4;
    view.tokens_per_page = 8;
    tria_rows_init(&rows, &view, &layer, &layer.k, 1);
    assert_ptr_equal(tria_rows_at(&rows, 9), (char *)storage + 0 * 1024 + 128 + 64);
    layer.page_table = own;
    layer.n_pages = 1;
    tria_rows_init(&rows, &view, &layer, &layer.k, 1);
    assert_ptr_equal(tria_rows_at(&rows, 3), (char *)storage + 1024 + 3 * 128 + 64);
    assert_int_equal(tria_tensor_check_rows(&layer.k, &view, &layer, 2, 9, "K", NULL), TRIA_E_ARGUMENT);
}

static void test_same_layout(void **state)
{
    const tria_tensor a = good_tensor();
    tria_tensor b = a;
    (void)state;
    b.base = NULL;
    b.offset = 7;
    b.size = 0;
    b.pack = 1;
    b.dim_stride = 4; /* what 0 stands for */
    assert_true(tria_tensor_same_layout(&a, &b));
    b = a;
    b.token_stride++;
    assert_false(tria_tensor_same_layout(&a, &b));
    b = a;
    b.dtype = TRIA_DTYPE_F16;
    assert_false(tria_tensor_same_layout(&a, &b));
    b = a;
    b.dim_stride = 8;
    assert_false(tria_tensor_same_layout(&a, &b));
    b = a;
    b.scale_kind = TRIA_SCALE_TENSOR;
    assert_false(tria_tensor_same_layout(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_extent),
        cmocka_unit_test(test_page_tables),
        cmocka_unit_test(test_overflowing_strides),
        cmocka_unit_test(test_own_page_table),
        cmocka_unit_test(test_same_layout),
        cmocka_unit_test(test_what_passes_stays_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

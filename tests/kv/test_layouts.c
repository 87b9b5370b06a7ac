/* The cache of every engine, filled from the same keys: bit-identical rows, scores and keep sets. */
#include "kv/layout_cache.h"
#include "kv_view_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = LC_LAYERS * LC_HEADS, Q_SLOTS = LC_LAYERS * LC_Q_HEADS };

static void expect_decoded(const layout_cache *cache, const layout_cache *plain)
{
    for (int32_t i = 0; i < 2 * SLOTS; i++) {
        const int32_t layer = i % LC_LAYERS;
        const int32_t head = i / LC_LAYERS % LC_HEADS;
        const tria_layer_view *a = &cache->layers[layer];
        const tria_layer_view *b = &plain->layers[layer];
        const bool is_v = i >= SLOTS;
        tria_rows rows;
        tria_rows expected;
        tria_rows_init(&rows, &cache->view, a, is_v ? &a->v : &a->k, head);
        tria_rows_init(&expected, &plain->view, b, is_v ? &b->v : &b->k, head);
        for (int32_t row = 0; row < LC_ROWS; row++) {
            float x[LC_DIM];
            float y[LC_DIM];
            double xd[LC_DIM];
            double yd[LC_DIM];
            tria_rows_decode_f32(&rows, row, LC_DIM, x);
            tria_rows_decode_f32(&expected, row, LC_DIM, y);
            tria_rows_decode_f64(&rows, row, LC_DIM, xd);
            tria_rows_decode_f64(&expected, row, LC_DIM, yd);
            if (memcmp(x, y, sizeof(x)) != 0 || memcmp(xd, yd, sizeof(xd)) != 0) {
                fail_msg("%s %s: layer %d head %d row %d of %s differs", tria_layout_name(cache->layout),
                         tria_dtype_name(cache->dtype), layer, head, row, is_v ? "V" : "K");
            }
        }
    }
}

typedef struct results {
    float raw[Q_SLOTS][LC_ROWS];
    float grouped[SLOTS][LC_ROWS];
    float final_scores[SLOTS][LC_ROWS];
    int32_t rows[SLOTS][LC_ROWS];
    int32_t counts[SLOTS];
} results;

static void run(const layout_cache *cache, const tria_model *model, const tria_calibration *calibration,
                results *r)
{
    tria_plan_params params;
    tria_plan *plan = NULL;
    tria_event event;
    tria_batch batch;
    tria_scores scores;
    tria_keep keep;
    tria_error error = {0, ""};
    memset(r, 0, sizeof(*r));
    tria_plan_params_init(&params);
    params.model = model;
    params.calibration = calibration;
    params.layout = &cache->view;
    params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    params.budget = 13;
    params.max_rows = LC_ROWS;
    if (tria_plan_create(&params, NULL, &plan, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    tria_event_init(&event);
    event.kv = &cache->view;
    event.t = 5000;
    event.n_rows = LC_ROWS;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.row_stride = LC_ROWS;
    scores.raw = r->raw;
    scores.grouped = r->grouped;
    scores.final_scores = r->final_scores;
    tria_keep_init(&keep);
    keep.rows = &r->rows[0][0];
    keep.counts = r->counts;
    keep.row_stride = LC_ROWS;
    if (tria_plan_select(plan, &batch, &scores, &keep, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    tria_plan_destroy(plan);
}

static void test_same_rows_scores_and_keep_sets(void **state)
{
    tria_model *model;
    tria_calibration *calibration;
    (void)state;
    layout_model(&model, &calibration);
    for (int32_t dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        logical_rows rows;
        layout_cache plain;
        results expected;
        logical_init(&rows, dtype);
        layout_cache_init(&plain, -1, &rows);
        run(&plain, model, calibration, &expected);
        assert_int_equal(expected.counts[0], 13);
        assert_true(expected.raw[0][0] != expected.raw[0][1]);
        for (int32_t layout = 0; layout < TRIA_LAYOUT_COUNT; layout++) {
            layout_cache cache;
            results got;
            if (tria_dtype_block(dtype) > 1 && !layout_takes_blocks(layout)) {
                continue;
            }
            layout_cache_init(&cache, layout, &rows);
            expect_decoded(&cache, &plain);
            run(&cache, model, calibration, &got);
            if (memcmp(&got, &expected, sizeof(got)) != 0) {
                fail_msg("%s %s: scores or keep sets differ", tria_layout_name(layout),
                         tria_dtype_name(dtype));
            }
            layout_cache_free(&cache);
        }
        layout_cache_free(&plain);
        logical_free(&rows);
    }
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

static void expect_refused(int32_t layout, const tria_layout_params *params, tria_status code,
                           const char *text)
{
    tria_layer_view view;
    tria_layer_view before;
    tria_error error = {0, ""};
    memset(&view, 0x5a, sizeof(view));
    memcpy(&before, &view, sizeof(before));
    assert_int_equal(tria_layout_view(layout, params, &view, &error), code);
    if (strstr(error.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, text);
    }
    assert_memory_equal(&view, &before, sizeof(view));
}

static void test_refusals(void **state)
{
    char buffer[16];
    tria_layout_params good = TRIA_LAYOUT_PARAMS_INIT;
    tria_layout_params p;
    tria_layer_view view;
    (void)state;
    good.k = buffer;
    good.v = buffer;
    good.k_dim = good.v_dim = 64;
    good.n_heads = 2;
    good.page_tokens = 16;
    good.n_pages = 3;
    assert_int_equal(tria_layout_view(TRIA_LAYOUT_LLAMA_CPP, &good, &view, NULL), TRIA_OK);
    expect_refused(-1, &good, TRIA_E_ARGUMENT, "unknown layout -1");
    expect_refused(TRIA_LAYOUT_COUNT, &good, TRIA_E_ARGUMENT, "unknown layout");
    expect_refused(TRIA_LAYOUT_VLLM, &good, TRIA_E_ARGUMENT, "v must be NULL");
    p = good;
    p.k = NULL;
    expect_refused(TRIA_LAYOUT_EXLLAMA, &p, TRIA_E_ARGUMENT, "k is NULL");
    p = good;
    p.v = NULL;
    p.v_dim = 32;
    expect_refused(TRIA_LAYOUT_TENSORRT_LLM, &p, TRIA_E_ARGUMENT, "K and V differ");
    p = good;
    p.v = NULL;
    p.n_pages = 0;
    expect_refused(TRIA_LAYOUT_VLLM, &p, TRIA_E_ARGUMENT, "n_pages 0");
    p = good;
    p.page_tokens = 0;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "page_tokens 0");
    p = good;
    p.n_heads = 0;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "K: 0 heads");
    p = good;
    p.v_dim = -64;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "V: dim -64");
    p = good;
    p.k_dtype = 77;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "K: unknown dtype 77");
    p = good;
    p.v_dtype = TRIA_DTYPE_Q8_0;
    expect_refused(TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED, &p, TRIA_E_UNSUPPORTED, "V: q8_0 blocks");
    p = good;
    p.k_dtype = TRIA_DTYPE_Q4_0;
    expect_refused(TRIA_LAYOUT_VLLM_PACKED, &p, TRIA_E_UNSUPPORTED, "K: q4_0 blocks");
    p = good;
    p.k_dim = 12;
    expect_refused(TRIA_LAYOUT_VLLM_PACKED, &p, TRIA_E_ARGUMENT, "pack 8 does not divide dim 12");
    p = good;
    p.k_dim = p.v_dim = 8192;
    p.n_heads = 4096;
    p.page_tokens = INT32_MAX;
    p.sequence = INT32_MAX;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "overflow");
    p.struct_size = 1;
    expect_refused(TRIA_LAYOUT_HUGGING_FACE, &p, TRIA_E_ARGUMENT, "tria_layout_params");
    for (int32_t layout = 0; layout < TRIA_LAYOUT_COUNT; layout++) {
        assert_non_null(tria_layout_name(layout));
    }
    assert_null(tria_layout_name(TRIA_LAYOUT_COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_rows_scores_and_keep_sets),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The cache of every engine compacted by a plan: what is left are the same rows, byte for byte. */
#include "kv/layout_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = LC_LAYERS * LC_HEADS, KEPT = 13 };

/* A different set for every (layer, head). */
static void choose(int32_t rows[SLOTS][LC_ROWS], int32_t counts[SLOTS])
{
    for (int32_t s = 0; s < SLOTS; s++) {
        counts[s] = 0;
        for (int32_t row = 0; row < LC_ROWS && counts[s] < KEPT - s % 2; row++) {
            if ((row * 7 + s * 5) % 11 < 5) {
                rows[s][counts[s]++] = row;
            }
        }
    }
}

static void compact(layout_cache *cache, const tria_model *model, int32_t order, const tria_keep *keep,
                    tria_compaction *compaction)
{
    tria_plan_params params;
    tria_plan *plan = NULL;
    tria_event event;
    tria_batch batch;
    tria_error error = {0, ""};
    tria_plan_params_init(&params);
    params.model = model;
    params.layout = &cache->view;
    params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    params.budget = KEPT;
    params.order = order;
    params.max_rows = LC_ROWS;
    params.n_threads = 3;
    if (tria_plan_create(&params, NULL, &plan, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    tria_event_init(&event);
    event.kv = &cache->view;
    event.t = LC_ROWS;
    event.n_rows = LC_ROWS;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    if (tria_plan_compact(plan, &batch, keep, compaction, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    tria_plan_destroy(plan);
}

static void expect_contents(const layout_cache *cache, const logical_rows *rows, const tria_keep *keep,
                            const int32_t old[SLOTS][LC_ROWS])
{
    for (int32_t i = 0; i < 2 * SLOTS; i++) {
        const int32_t slot = i / 2;
        for (int32_t row = 0; row < keep->counts[slot]; row++) {
            unsigned char bytes[LC_DIM * sizeof(float)];
            float scale;
            const int32_t from = old[slot][row];
            layout_cache_read(cache, i % 2, slot / LC_HEADS, slot % LC_HEADS, row, bytes, &scale);
            const unsigned char *expected =
                logical_row(rows, i % 2, slot / LC_HEADS, slot % LC_HEADS, from);
            if (memcmp(bytes, expected, (size_t)rows->row_bytes) != 0) {
                fail_msg("%s %s: slot %d %s row %d is not the old row %d", tria_layout_name(cache->layout),
                         tria_dtype_name(cache->dtype), slot, i % 2 ? "V" : "K", row, from);
            }
            if (cache->dtype == TRIA_DTYPE_INT8) {
                assert_true(scale == rows->scales[i % 2][slot / LC_HEADS][slot % LC_HEADS][from]);
            }
        }
    }
}

static void run(const tria_model *model, int32_t layout, const logical_rows *rows, int32_t order)
{
    int32_t keep_rows[SLOTS][LC_ROWS] = {{0}};
    int32_t counts[SLOTS];
    int32_t old[SLOTS][LC_ROWS];
    tria_move moves[SLOTS * LC_ROWS] = {{0}};
    int32_t freed[LC_PAGES];
    layout_cache cache;
    tria_keep keep;
    tria_compaction compaction;
    choose(keep_rows, counts);
    layout_cache_init(&cache, layout, rows);
    tria_keep_init(&keep);
    keep.rows = &keep_rows[0][0];
    keep.counts = counts;
    keep.row_stride = LC_ROWS;
    tria_compaction_init(&compaction);
    compaction.moves = moves;
    compaction.moves_capacity = SLOTS * LC_ROWS;
    compaction.freed_pages = freed;
    compaction.freed_capacity = LC_PAGES;
    compact(&cache, model, order, &keep, &compaction);

    /* stable: new row i is old row keep[i]; fill_holes: what the moves say, and only they */
    for (int32_t i = 0; i < SLOTS * LC_ROWS; i++) {
        old[i / LC_ROWS][i % LC_ROWS] = i % LC_ROWS;
    }
    for (int64_t i = 0; i < compaction.n_moves; i++) {
        int32_t *slot = old[moves[i].layer * LC_HEADS + moves[i].kv_head];
        slot[moves[i].to] = slot[moves[i].from];
    }
    for (int32_t s = 0; s < SLOTS && order == TRIA_ORDER_STABLE; s++) {
        assert_memory_equal(old[s], keep_rows[s], (size_t)counts[s] * sizeof(int32_t));
    }
    expect_contents(&cache, rows, &keep, (const int32_t(*)[LC_ROWS])old);
    assert_int_equal(compaction.rows_after, KEPT);
    if (cache.view.page_table != NULL) { /* 13 rows: 4 of 8 pages */
        assert_int_equal(compaction.n_freed_pages, 4);
        assert_memory_equal(freed, cache.view.page_table + 4, sizeof(int32_t) * 4);
    } else {
        assert_int_equal(compaction.n_freed_pages, 0);
    }
    layout_cache_free(&cache);
}

static void test_same_contents(void **state)
{
    tria_model *model;
    tria_calibration *calibration;
    (void)state;
    layout_model(&model, &calibration);
    for (int32_t dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        logical_rows rows;
        logical_init(&rows, dtype);
        for (int32_t layout = -1; layout < TRIA_LAYOUT_COUNT; layout++) {
            if (tria_dtype_block(dtype) == 1 || layout_takes_blocks(layout)) {
                run(model, layout, &rows, TRIA_ORDER_STABLE);
                run(model, layout, &rows, TRIA_ORDER_FILL_HOLES);
            }
        }
        logical_free(&rows);
    }
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

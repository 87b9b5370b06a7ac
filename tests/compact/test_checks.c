/* What compaction refuses, and that a refusal leaves every byte alone; shared pages; odd but legal input.
 */
#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, ROWS = 24, DIM = 8, TOKENS = 4, PAGES = ROWS / TOKENS, POOL = 10 };

/* Contiguous [layer][head][row][dim] u8 caches, or [layer][page][head][token][dim] with pages. */
typedef struct world {
    fixture f;
    unsigned char k[LAYERS * POOL * TOKENS * HEADS * DIM];
    unsigned char v[LAYERS * POOL * TOKENS * HEADS * DIM];
    unsigned char k_before[LAYERS * POOL * TOKENS * HEADS * DIM];
    unsigned char v_before[LAYERS * POOL * TOKENS * HEADS * DIM];
    int32_t positions[LAYERS * HEADS * ROWS];
    int32_t positions_before[LAYERS * HEADS * ROWS];
    int32_t table[PAGES];
} world;

static void fill(unsigned char *bytes, unsigned char *before, size_t size, uint64_t *seed)
{
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)random_u32(seed);
    }
    memcpy(before, bytes, size);
}

static world *world_new(int32_t mode, bool paged)
{
    static const int32_t table[PAGES] = {7, 0, 3, 9, 4, 1};
    world *w = calloc(1, sizeof(*w));
    uint64_t seed = 5;
    fixture_init(&w->f, LAYERS, HEADS, mode, ROWS);
    fill(w->k, w->k_before, sizeof(w->k), &seed);
    fill(w->v, w->v_before, sizeof(w->v), &seed);
    memcpy(w->table, table, sizeof(table));
    if (paged) {
        w->f.view.page_table = w->table;
        w->f.view.n_pages = PAGES;
        w->f.view.tokens_per_page = TOKENS;
    }
    for (int32_t l = 0; l < LAYERS; l++) {
        const int32_t per_head = paged ? TOKENS * DIM : ROWS * DIM;
        w->f.layer_views[l].k = (tria_tensor){.base = w->k,
                                              .offset = (uint64_t)l * POOL * TOKENS * HEADS * DIM,
                                              .size = sizeof(w->k),
                                              .page_stride = HEADS * TOKENS * DIM,
                                              .token_stride = DIM,
                                              .head_stride = per_head,
                                              .dtype = TRIA_DTYPE_FP8_E4M3FN,
                                              .dim = DIM};
        w->f.layer_views[l].v = w->f.layer_views[l].k;
        w->f.layer_views[l].v.base = w->v;
    }
    for (int32_t i = 0; i < LAYERS * HEADS * ROWS; i++) {
        w->positions[i] = w->positions_before[i] = i % ROWS + 100;
    }
    w->f.event.positions = w->positions;
    w->f.event.positions_head_stride = ROWS;
    w->f.event.positions_layer_stride = HEADS * ROWS;
    /* every set keeps the even rows from 4 on: 10 rows, the first four pages' worth of moves */
    for (int32_t set = 0; set < w->f.plan.n_sets; set++) {
        for (int32_t i = 0; i < 10; i++) {
            fixture_set(&w->f, set)[i] = 4 + 2 * i;
        }
        w->f.counts[set] = 10;
    }
    return w;
}

static void world_free(world *w)
{
    fixture_free(&w->f);
    free(w);
}

static void expect_untouched(const world *w)
{
    assert_memory_equal(w->k, w->k_before, sizeof(w->k));
    assert_memory_equal(w->v, w->v_before, sizeof(w->v));
    assert_memory_equal(w->positions, w->positions_before, sizeof(w->positions));
    assert_int_equal(w->f.compaction.n_moves, 0);
    assert_int_equal(w->f.compaction.rows_after, 0);
}

static void expect_refused(world *w, tria_status code, const char *text)
{
    tria_error error = {0, ""};
    assert_int_equal(fixture_compact(&w->f, &error), code);
    assert_int_equal(error.code, code);
    if (strstr(error.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, text);
    }
    expect_untouched(w);
    world_free(w);
}

static void test_keep_sets(void **state)
{
    world *w;
    (void)state;
    w = world_new(TRIA_MODE_PER_HEAD, false);
    fixture_set(&w->f, 1)[3] = 9; /* after 8: fine; then 10 follows */
    fixture_set(&w->f, 1)[4] = 9; /* twice */
    expect_refused(w, TRIA_E_ARGUMENT, "keep set 1: row 9 at index 4");
    w = world_new(TRIA_MODE_PER_HEAD, false);
    fixture_set(&w->f, 0)[0] = -1;
    expect_refused(w, TRIA_E_ARGUMENT, "keep set 0: row -1");
    w = world_new(TRIA_MODE_PER_LAYER_PER_HEAD, false);
    fixture_set(&w->f, 3)[9] = ROWS;
    expect_refused(w, TRIA_E_ARGUMENT, "keep set 3 has row 24, but layer 1 KV head 1 has 24 rows");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.rows[2] = 22; /* one head is shorter than the set's last row */
    expect_refused(w, TRIA_E_ARGUMENT, "layer 1 KV head 0 has 22 rows");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.counts[0] = -1;
    expect_refused(w, TRIA_E_ARGUMENT, "has -1 rows");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.counts[0] = ROWS + 1;
    expect_refused(w, TRIA_E_ARGUMENT, "row_stride is 24");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.v1.keep = NULL;
    expect_refused(w, TRIA_E_ARGUMENT, "missing");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.v1.rows = NULL;
    expect_refused(w, TRIA_E_UNSUPPORTED, "host memory");
}

static void test_capacities(void **state)
{
    tria_move moves[LAYERS * HEADS * 10];
    int32_t freed[2];
    world *w = world_new(TRIA_MODE_UNION, true);
    (void)state;
    w->f.compaction.moves = moves;
    w->f.compaction.moves_capacity = LAYERS * HEADS * 10 - 1;
    expect_refused(w, TRIA_E_CAPACITY, "40 moves do not fit into moves_capacity 39");
    w = world_new(TRIA_MODE_UNION, true);
    w->f.compaction.freed_pages = freed;
    w->f.compaction.freed_capacity = 2;
    expect_refused(w, TRIA_E_CAPACITY, "3 freed pages do not fit into freed_capacity 2");
}

static void test_positions(void **state)
{
    world *w = world_new(TRIA_MODE_PER_HEAD, false);
    (void)state;
    w->f.event.positions_head_stride = 0;
    fixture_set(&w->f, 1)[0] = 3;
    expect_refused(w, TRIA_E_MISMATCH, "layer 0 KV head 0 and layer 0 KV head 1 share their positions");
    w = world_new(TRIA_MODE_PER_LAYER, false);
    w->f.event.positions_layer_stride = 0;
    w->f.counts[1] = 9;
    expect_refused(w, TRIA_E_MISMATCH, "layer 0 KV head 0 and layer 1 KV head 0 share their positions");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.event.positions_head_stride = ROWS - 1;
    expect_refused(w, TRIA_E_ARGUMENT, "position tables of 24 rows overlap");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.event.positions_layer_stride = INT64_MIN;
    expect_refused(w, TRIA_E_ARGUMENT, "overlap");

    /* different sets that keep the same rows may share */
    w = world_new(TRIA_MODE_PER_LAYER_PER_HEAD, false);
    w->f.event.positions_head_stride = 0;
    w->f.event.positions_layer_stride = 0;
    assert_int_equal(fixture_compact(&w->f, NULL), TRIA_OK);
    for (int32_t i = 0; i < 10; i++) {
        assert_int_equal(w->positions[i], 104 + 2 * i);
    }
    assert_int_equal(w->positions[ROWS], 100); /* the others are nobody's */
    world_free(w);
}

static void test_rows_that_overlap(void **state)
{
    world *w = world_new(TRIA_MODE_UNION, false);
    (void)state;
    w->f.layer_views[1].k.head_stride = 0;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 1 K: rows overlap");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.layer_views[0].v.token_stride = DIM - 1;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 0 V: rows overlap");
    w = world_new(TRIA_MODE_UNION, true);
    w->f.layer_views[0].k.page_stride = 2;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 0 K: rows overlap");
    w = world_new(TRIA_MODE_UNION, true);
    w->table[5] = 7;
    expect_refused(w, TRIA_E_ARGUMENT, "page 7 occurs twice");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.layer_views[1].v = w->f.layer_views[1].k;
    w->f.layer_views[1].v.dim = DIM / 2;
    w->f.layer_views[1].v.dim_stride = 2;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 1 V: overlaps K");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.layer_views[1].v.base = w->k;
    w->f.layer_views[1].v.offset += DIM - 1; /* one byte of the next row too many */
    w->f.layer_views[1].v.dim = 2;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 1 V: overlaps K");
    w = world_new(TRIA_MODE_UNION, false);
    w->f.layer_views[1].k.scale_kind = TRIA_SCALE_ROW;
    w->f.layer_views[1].k.scales = w->positions;
    w->f.layer_views[1].k.scale_token_stride = 2;
    expect_refused(w, TRIA_E_ARGUMENT, "layer 1 K: scales of rows overlap");
}

/* Absorbed MLA: V is the first dimensions of K and must not move twice. */
static void test_v_inside_k(void **state)
{
    world *w = world_new(TRIA_MODE_UNION, false);
    (void)state;
    for (int32_t l = 0; l < LAYERS; l++) {
        w->f.layer_views[l].v = w->f.layer_views[l].k;
        w->f.layer_views[l].v.dim = DIM - 3;
        w->f.layer_views[l].v.offset += 2;
    }
    assert_int_equal(fixture_compact(&w->f, NULL), TRIA_OK);
    for (int32_t i = 0; i < 10; i++) {
        assert_memory_equal(w->k + i * DIM, w->k_before + (4 + 2 * i) * DIM, DIM);
    }
    assert_int_equal(w->f.compaction.bytes_moved, LAYERS * HEADS * 10 * DIM);
    world_free(w);
}

static void test_keeping_everything_touches_nothing(void **state)
{
    world *w = world_new(TRIA_MODE_UNION, true);
    (void)state;
    w->f.params.zero_tail = 1;
    w->f.counts[0] = ROWS;
    for (int32_t i = 0; i < ROWS; i++) {
        fixture_set(&w->f, 0)[i] = i;
    }
    assert_int_equal(fixture_compact(&w->f, NULL), TRIA_OK);
    assert_int_equal(w->f.compaction.rows_after, ROWS);
    assert_int_equal(w->f.compaction.n_freed_pages, 0);
    w->f.compaction.rows_after = 0;
    expect_untouched(w);
    world_free(w);
}

static void test_positions_only(void **state)
{
    tria_move moves[LAYERS * HEADS * 10];
    world *w = world_new(TRIA_MODE_UNION, false);
    (void)state;
    w->f.event.kv = NULL;
    w->f.compaction.moves = moves;
    w->f.compaction.moves_capacity = LAYERS * HEADS * 10;
    assert_int_equal(fixture_compact(&w->f, NULL), TRIA_OK);
    assert_memory_equal(w->k, w->k_before, sizeof(w->k));
    for (int32_t i = 0; i < LAYERS * HEADS * 10; i++) {
        assert_int_equal(w->positions[i / 10 * ROWS + i % 10], 104 + 2 * (i % 10));
        assert_int_equal(moves[i].from, 4 + 2 * (i % 10));
        assert_int_equal(moves[i].to, i % 10);
    }
    assert_int_equal(w->f.compaction.bytes_moved, 0);
    world_free(w);
}

/* A slot without a set keeps its rows and the pages they lie in. */
static void test_slots_without_a_set(void **state)
{
    int32_t freed[PAGES];
    world *w = world_new(TRIA_MODE_PER_LAYER, true);
    (void)state;
    w->f.kv[2].set = w->f.kv[3].set = -1; /* layer 1 */
    w->f.plan.n_sets = 1;
    w->f.compaction.freed_pages = freed;
    w->f.compaction.freed_capacity = PAGES;
    assert_int_equal(fixture_compact(&w->f, NULL), TRIA_OK);
    assert_memory_equal(w->k + sizeof(w->k) / 2, w->k_before + sizeof(w->k) / 2, sizeof(w->k) / 2);
    assert_memory_equal(w->positions + HEADS * ROWS, w->positions_before + HEADS * ROWS,
                        sizeof(w->positions) / 2);
    assert_int_equal(w->f.compaction.n_freed_pages, 0);
    assert_int_equal(w->f.compaction.n_moves, HEADS * 10);
    assert_int_equal(w->f.compaction.rows_after, 10);
    world_free(w);

    w = world_new(TRIA_MODE_PER_LAYER, true); /* nor can it share positions with one that loses rows */
    w->f.kv[2].set = w->f.kv[3].set = -1;
    w->f.plan.n_sets = 1;
    w->f.event.positions_layer_stride = 0;
    expect_refused(w, TRIA_E_MISMATCH, "share their positions");
}

static void test_shared_pages(void **state)
{
    uint8_t shared[PAGES] = {0, 0, 0, 1, 1, 1};
    int32_t list[PAGES];
    tria_error error = {0, ""};
    world *w = world_new(TRIA_MODE_UNION, true);
    (void)state;
    /* sources may be shared: only entries 0, 1 and 2 (rows 0 to 9) are written */
    w->f.compaction.page_shared = shared;
    w->f.compaction.shared_pages = list;
    w->f.params.zero_tail = 1;
    assert_int_equal(fixture_compact(&w->f, &error), TRIA_OK);
    assert_int_equal(w->f.compaction.n_freed_pages, 3);
    for (int32_t i = 3; i < PAGES; i++) { /* a freed page that others read is not zeroed */
        const size_t at = (size_t)w->table[i] * HEADS * TOKENS * DIM;
        assert_memory_equal(w->k + at, w->k_before + at, HEADS * TOKENS * DIM);
    }
    for (int32_t i = 10 * DIM; i < 12 * DIM; i++) { /* rows 10 and 11, in page 3 */
        assert_int_equal(w->k[3 * HEADS * TOKENS * DIM + i - 8 * DIM], 0);
    }
    world_free(w);

    for (int32_t order = TRIA_ORDER_STABLE; order <= TRIA_ORDER_FILL_HOLES; order++) {
        /* keep rows 0-5, 12, 13: stable moves 12, 13 to 6, 7; page-table entry 0 is never written */
        static const int32_t keep[8] = {0, 1, 2, 3, 4, 5, 12, 13};
        memset(shared, 1, sizeof(shared));
        w = world_new(TRIA_MODE_UNION, true);
        memcpy(fixture_set(&w->f, 0), keep, sizeof(keep));
        w->f.counts[0] = 8;
        w->f.params.order = order;
        w->f.compaction.page_shared = shared;
        w->f.compaction.shared_pages = list;
        assert_int_equal(fixture_compact(&w->f, &error), TRIA_E_SHARED_PAGE);
        assert_int_equal(w->f.compaction.n_shared, 1);
        assert_int_equal(list[0], 1);
        expect_untouched(w);
        shared[1] = 0; /* the engine made its copy */
        assert_int_equal(fixture_compact(&w->f, &error), TRIA_OK);
        assert_int_equal(w->f.compaction.n_shared, 0);
        world_free(w);
    }

    /* fill_holes: entry 1 loses nothing and receives nothing although entries around it do */
    static const int32_t holes[9] = {1, 2, 3, 4, 5, 6, 7, 8, 20};
    memset(shared, 0, sizeof(shared));
    shared[1] = 1;
    w = world_new(TRIA_MODE_UNION, true);
    memcpy(fixture_set(&w->f, 0), holes, sizeof(holes));
    w->f.counts[0] = 9;
    w->f.params.order = TRIA_ORDER_FILL_HOLES;
    w->f.compaction.page_shared = shared;
    assert_int_equal(fixture_compact(&w->f, &error), TRIA_OK);
    world_free(w);

    /* zeroing the tail writes too: rows 6, 7 of entry 1 */
    memset(shared, 0, sizeof(shared));
    shared[1] = 1;
    w = world_new(TRIA_MODE_UNION, true);
    for (int32_t i = 0; i < 6; i++) {
        fixture_set(&w->f, 0)[i] = i;
    }
    w->f.counts[0] = 6;
    w->f.params.zero_tail = 1;
    w->f.compaction.page_shared = shared;
    w->f.compaction.shared_pages = list;
    assert_int_equal(fixture_compact(&w->f, &error), TRIA_E_SHARED_PAGE);
    assert_int_equal(list[0], 1);
    expect_untouched(w);
    world_free(w);
}

/* All events are checked before the first is carried out. */
static void test_batch(void **state)
{
    tria_compact_context context = {0};
    tria_error error = {0, ""};
    world *a = world_new(TRIA_MODE_UNION, false);
    world *b = world_new(TRIA_MODE_UNION, false);
    (void)state;
    tria_v1_event events[2] = {a->f.v1, b->f.v1};
    fixture_set(&b->f, 0)[9] = 99;
    assert_int_equal(tria_cpu_compact(&a->f.plan, events, 2, &context, &error), TRIA_E_ARGUMENT);
    assert_true(strncmp(error.message, "event 1: ", 9) == 0);
    expect_untouched(a);
    expect_untouched(b);
    fixture_set(&b->f, 0)[9] = 23;
    assert_int_equal(tria_cpu_compact(&a->f.plan, events, 2, &context, &error), TRIA_OK);
    /* each with its own set */
    assert_memory_equal(a->k + 9 * DIM, a->k_before + 22 * DIM, DIM);
    assert_memory_equal(b->k + 9 * DIM, b->k_before + 23 * DIM, DIM);
    world_free(a);
    world_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_sets),      cmocka_unit_test(test_capacities),
        cmocka_unit_test(test_positions),      cmocka_unit_test(test_rows_that_overlap),
        cmocka_unit_test(test_v_inside_k),     cmocka_unit_test(test_keeping_everything_touches_nothing),
        cmocka_unit_test(test_positions_only), cmocka_unit_test(test_slots_without_a_set),
        cmocka_unit_test(test_shared_pages),   cmocka_unit_test(test_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

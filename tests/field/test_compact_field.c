/* Bugs this field has had (specification, section 10) that concern compaction: a test each. */
#include "plan/small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 16, PAGES = 7, ROWS = 100 };

/* The small cache, f32 [page][head][token][dim] per layer, with V a marked copy of K. */
typedef struct paged {
    small s;
    int32_t table[PAGES];
    float *k[2];
    float *v[2];
    int32_t positions[4][SMALL_MAX_ROWS];
} paged;

static const int32_t page_ids[PAGES] = {4, 0, 6, 2, 5, 1, 3};

static float *row_of(float *pool, int32_t head, int32_t row)
{
    return pool + ((page_ids[row / TOKENS] * 2 + head) * TOKENS + row % TOKENS) * 16;
}

static void paged_init(paged *p, int32_t mode)
{
    small *s = &p->s;
    small_init(s);
    memcpy(p->table, page_ids, sizeof(page_ids));
    s->view.page_table = p->table;
    s->view.n_pages = PAGES;
    s->view.tokens_per_page = TOKENS;
    for (int32_t l = 0; l < 2; l++) {
        p->k[l] = malloc(sizeof(float) * PAGES * 2 * TOKENS * 16);
        p->v[l] = malloc(sizeof(float) * PAGES * 2 * TOKENS * 16);
        assert_true(p->k[l] != NULL && p->v[l] != NULL);
        for (int32_t i = 0; i < 2 * ROWS; i++) {
            float *key = row_of(p->k[l], i % 2, i / 2);
            float *value = row_of(p->v[l], i % 2, i / 2);
            memcpy(key, small_key(s, l, i % 2, i / 2), 16 * sizeof(float));
            for (int32_t d = 0; d < 16; d++) {
                value[d] = key[d] + 100.0F;
            }
        }
        s->layers[l].k.base = p->k[l];
        s->layers[l].k.page_stride = 2 * TOKENS * 16 * 4;
        s->layers[l].k.head_stride = TOKENS * 16 * 4;
        s->layers[l].k.token_stride = 16 * 4;
        s->layers[l].v = s->layers[l].k;
        s->layers[l].v.base = p->v[l];
    }
    for (int32_t i = 0; i < 4 * SMALL_MAX_ROWS; i++) {
        p->positions[i / SMALL_MAX_ROWS][i % SMALL_MAX_ROWS] = 5 * (i % SMALL_MAX_ROWS);
    }
    s->event.positions = p->positions[0];
    s->event.positions_head_stride = SMALL_MAX_ROWS;
    s->event.positions_layer_stride = 2 * SMALL_MAX_ROWS;
    s->event.t = 5 * ROWS;
    s->params.mode = mode;
    if (small_plan(s) != TRIA_OK) {
        fail_msg("%s", s->error.message);
    }
}

static void paged_free(paged *p)
{
    for (int32_t l = 0; l < 2; l++) {
        free(p->k[l]);
        free(p->v[l]);
    }
    small_free(&p->s);
}

static void select_and_compact(paged *p, tria_compaction *compaction)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &p->s.event;
    batch.n_events = 1;
    assert_int_equal(small_select(&p->s), TRIA_OK);
    if (tria_plan_compact(p->s.plan, &batch, &p->s.keep, compaction, &p->s.error) != TRIA_OK) {
        fail_msg("%s", p->s.error.message);
    }
}

static void what_is_left_is_what_was_kept(void **state)
{
    paged p;
    tria_compaction compaction;
    (void)state;
    paged_init(&p, TRIA_MODE_PER_LAYER_PER_HEAD);
    tria_compaction_init(&compaction);
    select_and_compact(&p, &compaction);
    for (int32_t set = 0; set < 4; set++) {
        assert_int_equal(p.s.counts[set], 40);
        for (int32_t i = 0; i < 40; i++) {
            const int32_t old = p.s.rows[set * SMALL_MAX_ROWS + i];
            const float *key = small_key(&p.s, set / 2, set % 2, old);
            assert_memory_equal(row_of(p.k[set / 2], set % 2, i), key, 16 * sizeof(float));
            assert_true(row_of(p.v[set / 2], set % 2, i)[3] == key[3] + 100.0F);
        }
    }
    paged_free(&p);
}

static void positions_are_not_renumbered(void **state)
{
    paged p;
    tria_compaction compaction;
    (void)state;
    paged_init(&p, TRIA_MODE_PER_LAYER_PER_HEAD);
    tria_compaction_init(&compaction);
    select_and_compact(&p, &compaction);
    for (int32_t set = 0; set < 4; set++) {
        for (int32_t i = 0; i < 40; i++) {
            assert_int_equal(p.positions[set][i], 5 * p.s.rows[set * SMALL_MAX_ROWS + i]);
        }
    }
    paged_free(&p);
}

static void freed_memory_is_reported(void **state)
{
    paged p;
    int32_t freed[PAGES];
    tria_compaction compaction;
    (void)state;
    paged_init(&p, TRIA_MODE_PER_HEAD);
    tria_compaction_init(&compaction);
    compaction.freed_pages = freed;
    compaction.freed_capacity = PAGES;
    select_and_compact(&p, &compaction);
    assert_int_equal(compaction.rows_after, 40);
    assert_int_equal(compaction.n_freed_pages, 4); /* 100 rows: 7 pages, 40 rows: 3 */
    assert_memory_equal(freed, page_ids + 3, 4 * sizeof(int32_t));
    paged_free(&p);
}

static void the_page_table_is_never_written(void **state)
{
    paged p;
    tria_compaction compaction;
    (void)state;
    paged_init(&p, TRIA_MODE_UNION);
    tria_compaction_init(&compaction);
    select_and_compact(&p, &compaction);
    assert_memory_equal(p.table, page_ids, sizeof(page_ids));
    paged_free(&p);
}

static void a_draft_cache_follows_by_the_moves(void **state)
{
    paged p;
    int32_t draft[4][ROWS]; /* some metadata per (layer, head, row) of another model's cache */
    tria_move *moves = malloc(sizeof(tria_move) * 4 * ROWS);
    tria_compaction compaction;
    (void)state;
    assert_non_null(moves);
    for (int32_t order = TRIA_ORDER_STABLE; order <= TRIA_ORDER_FILL_HOLES; order++) {
        paged_init(&p, TRIA_MODE_PER_LAYER_PER_HEAD);
        p.s.params.order = order;
        assert_int_equal(small_plan(&p.s), TRIA_OK);
        for (int32_t i = 0; i < 4 * ROWS; i++) {
            draft[i / ROWS][i % ROWS] = 5 * (i % ROWS);
        }
        tria_compaction_init(&compaction);
        compaction.moves = moves;
        compaction.moves_capacity = 4 * ROWS;
        select_and_compact(&p, &compaction);
        for (int64_t i = 0; i < compaction.n_moves; i++) {
            int32_t *rows = draft[moves[i].layer * 2 + moves[i].kv_head];
            rows[moves[i].to] = rows[moves[i].from];
        }
        for (int32_t set = 0; set < 4; set++) {
            assert_memory_equal(draft[set], p.positions[set], 40 * sizeof(int32_t));
        }
        paged_free(&p);
    }
    free(moves);
}

static void a_shared_prefix_is_never_written(void **state)
{
    paged p;
    uint8_t shared[PAGES] = {1, 1, 0, 0, 0, 0, 0}; /* the first 32 rows belong to others, too */
    int32_t list[PAGES];
    float *before = malloc(sizeof(float) * PAGES * 2 * TOKENS * 16);
    tria_batch batch;
    tria_compaction compaction;
    (void)state;
    assert_non_null(before);
    paged_init(&p, TRIA_MODE_PER_HEAD);
    memcpy(before, p.k[0], sizeof(float) * PAGES * 2 * TOKENS * 16);
    tria_compaction_init(&compaction);
    compaction.page_shared = shared;
    compaction.shared_pages = list;
    assert_int_equal(small_select(&p.s), TRIA_OK);
    tria_batch_init(&batch);
    batch.events = &p.s.event;
    batch.n_events = 1;
    assert_int_equal(tria_plan_compact(p.s.plan, &batch, &p.s.keep, &compaction, &p.s.error),
                     TRIA_E_SHARED_PAGE);
    assert_int_equal(compaction.n_shared, 2);
    assert_int_equal(list[0], 0);
    assert_int_equal(list[1], 1);
    assert_memory_equal(before, p.k[0], sizeof(float) * PAGES * 2 * TOKENS * 16);
    assert_int_equal(p.positions[0][10], 50);
    free(before);
    paged_free(&p);
}

static void a_sequence_is_compacted_by_its_own_set(void **state)
{
    /* two sequences of different lengths in one call, their sets in one array of outputs */
    paged p[2];
    int32_t rows[2][4 * SMALL_MAX_ROWS];
    int32_t counts[2][4];
    tria_event events[2];
    tria_keep keep[2];
    tria_compaction compaction[2];
    tria_batch batch;
    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        paged_init(&p[i], TRIA_MODE_PER_LAYER_PER_HEAD);
        for (int32_t r = 0; r < ROWS && i == 1; r++) { /* the second holds the rows in reverse */
            for (int32_t set = 0; set < 4; set++) {
                memcpy(row_of(p[1].k[set / 2], set % 2, r),
                       small_key(&p[1].s, set / 2, set % 2, ROWS - 1 - r), 16 * sizeof(float));
            }
        }
        p[i].s.event.n_rows = ROWS - 7 * i;
        events[i] = p[i].s.event;
        tria_keep_init(&keep[i]);
        keep[i].rows = rows[i];
        keep[i].counts = counts[i];
        keep[i].row_stride = SMALL_MAX_ROWS;
        tria_compaction_init(&compaction[i]);
    }
    p[0].s.params.max_sequences = 2;
    assert_int_equal(small_plan(&p[0].s), TRIA_OK);
    tria_batch_init(&batch);
    batch.events = events;
    batch.n_events = 2;
    assert_int_equal(tria_plan_select(p[0].s.plan, &batch, NULL, keep, &p[0].s.error), TRIA_OK);
    assert_true(memcmp(rows[0], rows[1], 40 * sizeof(int32_t)) != 0);
    assert_int_equal(tria_plan_compact(p[0].s.plan, &batch, keep, compaction, &p[0].s.error), TRIA_OK);
    for (int32_t set = 0; set < 4; set++) {
        for (int32_t i = 0; i < 40; i++) {
            const int32_t first = rows[0][set * SMALL_MAX_ROWS + i];
            const int32_t second = ROWS - 1 - rows[1][set * SMALL_MAX_ROWS + i];
            assert_memory_equal(row_of(p[0].k[set / 2], set % 2, i),
                                small_key(&p[0].s, set / 2, set % 2, first), 16 * sizeof(float));
            assert_memory_equal(row_of(p[1].k[set / 2], set % 2, i),
                                small_key(&p[1].s, set / 2, set % 2, second), 16 * sizeof(float));
        }
    }
    paged_free(&p[0]);
    paged_free(&p[1]);
}

static void sinks_and_recent_rows_stay(void **state)
{
    paged p;
    tria_compaction compaction;
    (void)state;
    paged_init(&p, TRIA_MODE_PER_LAYER_PER_HEAD);
    p.s.params.n_sink = 16; /* positions are 5 apart: rows 0 to 3 */
    p.s.params.n_recent = 20;
    assert_int_equal(small_plan(&p.s), TRIA_OK);
    tria_compaction_init(&compaction);
    select_and_compact(&p, &compaction);
    for (int32_t set = 0; set < 4; set++) {
        for (int32_t i = 0; i < 4; i++) {
            assert_int_equal(p.positions[set][i], 5 * i);
            assert_int_equal(p.positions[set][36 + i], 5 * (96 + i));
        }
    }
    paged_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_is_what_was_kept),
        cmocka_unit_test(positions_are_not_renumbered),
        cmocka_unit_test(freed_memory_is_reported),
        cmocka_unit_test(the_page_table_is_never_written),
        cmocka_unit_test(a_draft_cache_follows_by_the_moves),
        cmocka_unit_test(a_shared_prefix_is_never_written),
        cmocka_unit_test(a_sequence_is_compacted_by_its_own_set),
        cmocka_unit_test(sinks_and_recent_rows_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Kept terms through compactions: scores with terms that were moved are those with terms formed anew. */
#include "plan/small.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 8 };

static void score(small *s, tria_terms *terms, float raw[SLOTS][SMALL_MAX_ROWS])
{
    tria_batch batch;
    tria_scores scores;
    memset(raw, 0, sizeof(float) * SLOTS * SMALL_MAX_ROWS);
    s->event.terms = terms;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.raw = raw;
    scores.row_stride = SMALL_MAX_ROWS;
    if (tria_plan_score(s->plan, &batch, &scores, &s->error) != TRIA_OK) {
        fail_msg("%s", s->error.message);
    }
}

static float kept[SLOTS][SMALL_MAX_ROWS];
static float anew[SLOTS][SMALL_MAX_ROWS];
static float without[SLOTS][SMALL_MAX_ROWS];

static void expect_equal(small *s, tria_terms *terms)
{
    tria_terms *fresh = NULL;
    assert_int_equal(tria_terms_create(s->plan, NULL, &fresh, &s->error), TRIA_OK);
    score(s, terms, kept);
    score(s, fresh, anew);
    score(s, NULL, without);
    assert_memory_equal(kept, anew, sizeof(kept));
    for (int32_t i = 0; i < SLOTS * SMALL_MAX_ROWS; i++) {
        assert_true(fabs((double)kept[i / SMALL_MAX_ROWS][i % SMALL_MAX_ROWS] -
                         (double)without[i / SMALL_MAX_ROWS][i % SMALL_MAX_ROWS]) < 1e-5);
    }
    tria_terms_destroy(fresh);
}

/* `scored`: whether selection formed the terms of the latest rows. */
static void compact(small *s, tria_terms *terms, bool scored)
{
    tria_batch batch;
    tria_compaction compaction;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    tria_compaction_init(&compaction);
    s->event.terms = scored ? terms : NULL;
    assert_int_equal(small_select(s), TRIA_OK);
    s->event.terms = terms;
    if (tria_plan_compact(s->plan, &batch, &s->keep, &compaction, &s->error) != TRIA_OK) {
        fail_msg("%s", s->error.message);
    }
    s->event.n_rows = compaction.rows_after;
}

/* Rows that the engine writes behind the kept ones. */
static void append(small *s, int32_t n)
{
    for (int32_t slot = 0; slot < 4; slot++) {
        for (int32_t i = 0; i < n; i++) {
            float *key = small_key(s, slot / 2, slot % 2, s->event.n_rows + i);
            for (int32_t d = 0; d < s->dim; d++) {
                key[d] = small_random(s);
            }
        }
    }
    s->event.n_rows += n;
    s->event.t += n;
}

static void run(int32_t mode, int32_t order)
{
    small s;
    tria_terms *terms = NULL;
    small_init(&s);
    s.params.mode = mode;
    s.params.order = order;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(tria_terms_create(s.plan, NULL, &terms, &s.error), TRIA_OK);
    expect_equal(&s, terms);
    for (int32_t round = 0; round < 4; round++) {
        compact(&s, terms, round % 2 == 0);
        assert_int_equal(s.event.n_rows, 40);
        expect_equal(&s, terms);
        append(&s, 17 + round);
        if (round % 2 == 1) {
            expect_equal(&s, terms);
        } /* else rows will be compacted whose terms nobody has formed */
    }
    tria_terms_destroy(terms);
    small_free(&s);
}

static void test_stable(void **state)
{
    (void)state;
    run(TRIA_MODE_UNION, TRIA_ORDER_STABLE);
    run(TRIA_MODE_PER_LAYER_PER_HEAD, TRIA_ORDER_STABLE);
}

static void test_fill_holes(void **state)
{
    (void)state;
    run(TRIA_MODE_PER_HEAD, TRIA_ORDER_FILL_HOLES);
    run(TRIA_MODE_PER_LAYER_PER_HEAD, TRIA_ORDER_FILL_HOLES);
}

static void test_overwritten_rows_need_invalidation(void **state)
{
    small s;
    tria_terms *terms = NULL;
    (void)state;
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(tria_terms_create(s.plan, NULL, &terms, &s.error), TRIA_OK);
    score(&s, terms, kept);
    s.event.n_rows -= 10; /* ten rows rolled back, ten others written */
    append(&s, 10);
    tria_terms_invalidate(terms, s.event.n_rows - 10);
    expect_equal(&s, terms);
    tria_terms_destroy(terms);
    small_free(&s);
}

static void test_terms_of_another_plan_are_refused(void **state)
{
    small s;
    tria_terms *terms = NULL;
    tria_batch batch;
    float before[16];
    (void)state;
    small_init(&s);
    s.params.max_rows = 200;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(tria_terms_create(s.plan, NULL, &terms, &s.error), TRIA_OK);
    s.params.max_rows = SMALL_MAX_ROWS;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    s.event.terms = terms;
    assert_int_equal(small_select(&s), TRIA_E_MISMATCH);
    tria_batch_init(&batch);
    batch.events = &s.event;
    batch.n_events = 1;
    memcpy(before, small_key(&s, 0, 0, 39), sizeof(before));
    assert_int_equal(tria_plan_compact(s.plan, &batch, &s.keep, NULL, &s.error), TRIA_E_MISMATCH);
    assert_memory_equal(before, small_key(&s, 0, 0, 39), sizeof(before));
    tria_terms_destroy(terms);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stable),
        cmocka_unit_test(test_fill_holes),
        cmocka_unit_test(test_overwritten_rows_need_invalidation),
        cmocka_unit_test(test_terms_of_another_plan_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

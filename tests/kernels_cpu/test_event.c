/* Whole events on the CPU: no allocation once a plan exists, kept terms, the size of the workspace. */
#include "plan/small.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The linker sends every call to an allocator here. */
static atomic_long n_allocations;
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
int __real_posix_memalign(void **pointer, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
int __wrap_posix_memalign(void **pointer, size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_calloc(count, size);
}
void *__wrap_realloc(void *pointer, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_realloc(pointer, size);
}
int __wrap_posix_memalign(void **pointer, size_t alignment, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_posix_memalign(pointer, alignment, size);
}
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_aligned_alloc(alignment, size);
}

enum { QUERIES = 8 };

static tria_batch one_event(const small *s)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    return batch;
}

static void raw_scores(small *s, float *raw)
{
    const tria_batch batch = one_event(s);
    tria_scores scores;
    tria_scores_init(&scores);
    scores.row_stride = SMALL_MAX_ROWS;
    scores.raw = raw;
    assert_int_equal(tria_plan_score(s->plan, &batch, &scores, &s->error), TRIA_OK);
}

static void append(small *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        for (int32_t l = 0; l < s->n_layers; l++) {
            for (int32_t h = 0; h < s->n_kv_heads; h++) {
                float *key = small_key(s, l, h, s->event.n_rows);
                for (int32_t d = 0; d < s->dim; d++) {
                    key[d] = small_random(s);
                }
            }
        }
        s->event.n_rows++;
        s->event.t++;
    }
}

static void compact(small *s)
{
    const tria_batch batch = one_event(s);
    assert_int_equal(tria_plan_compact(s->plan, &batch, &s->keep, NULL, &s->error), TRIA_OK);
    s->event.n_rows = s->counts[0];
}

static void test_no_allocation(void **state)
{
    (void)state;
    for (int32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
        for (int32_t mode = 0; mode <= TRIA_MODE_GLOBAL; mode++) {
            small s;
            small_init(&s);
            s.params.n_threads = n_threads;
            s.params.mode = mode;
            s.params.pool_radius = 2;
            s.params.max_rows = SMALL_MAX_ROWS;
            assert_int_equal(small_plan(&s), TRIA_OK);
            assert_int_equal(tria_terms_create(s.plan, NULL, &s.event.terms, &s.error), TRIA_OK);
            const long before = atomic_load(&n_allocations);
            assert_true(before > 0); /* or nothing is being counted */
            for (int round = 0; round < 3; round++) {
                assert_int_equal(small_select(&s), TRIA_OK);
                compact(&s);
                append(&s, 30);
            }
            assert_int_equal(atomic_load(&n_allocations), before);
            tria_terms_destroy(s.event.terms);
            small_free(&s);
        }
    }
}

/* With kept terms every event gives the scores it gives without them, through compactions of either
 * order, appended rows, rows taken back, and rows that were overwritten. */
static void test_kept_terms(void **state)
{
    (void)state;
    static float with[QUERIES * SMALL_MAX_ROWS], without[QUERIES * SMALL_MAX_ROWS];
    for (int variant = 0; variant < 4; variant++) {
        small s;
        small_init(&s);
        s.params.order = variant & 1;
        s.params.offsets = variant & 2 ? TRIA_AGGREGATE_MAX : TRIA_AGGREGATE_MEAN;
        s.params.max_rows = SMALL_MAX_ROWS;
        assert_int_equal(small_plan(&s), TRIA_OK);
        tria_terms *terms;
        assert_int_equal(tria_terms_create(s.plan, NULL, &terms, &s.error), TRIA_OK);
        for (int round = 0; round < 8; round++) {
            double largest = 0.0;
            s.event.terms = NULL;
            raw_scores(&s, without);
            s.event.terms = terms;
            raw_scores(&s, with);
            for (int32_t q = 0; q < QUERIES; q++) {
                for (int32_t i = 0; i < s.event.n_rows; i++) {
                    largest = fmax(largest, fabs((double)without[q * SMALL_MAX_ROWS + i]));
                }
            }
            for (int32_t q = 0; q < QUERIES; q++) {
                for (int32_t i = 0; i < s.event.n_rows; i++) {
                    const int32_t at = q * SMALL_MAX_ROWS + i;
                    assert_true(fabs((double)with[at] - (double)without[at]) <= 1e-6 * largest);
                }
            }
            if (round == 2) { /* rows taken back, others in their place */
                s.event.n_rows -= 10;
                raw_scores(&s, with);
                append(&s, 10);
            } else if (round == 4) { /* overwritten */
                small_key(&s, 1, 1, 20)[3] = 9.0F;
                tria_terms_invalidate(terms, 20);
            } else if (round == 6) { /* rows the terms have not seen take part in a compaction */
                append(&s, 25);
                for (int32_t set = 0; set < 2; set++) {
                    s.counts[set] = s.event.n_rows / 2;
                    for (int32_t i = 0; i < s.counts[set]; i++) {
                        s.rows[set * SMALL_MAX_ROWS + i] = 2 * i + set;
                    }
                }
                compact(&s);
            } else {
                append(&s, 37);
                assert_int_equal(small_select(&s), TRIA_OK);
                compact(&s);
                append(&s, 5);
            }
        }
        tria_terms_destroy(terms);
        small_free(&s);
    }
}

static void test_terms_of_another_plan(void **state)
{
    (void)state;
    small s;
    tria_terms *terms;
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(tria_terms_create(s.plan, NULL, &terms, &s.error), TRIA_OK);
    s.params.max_rows = 200;
    assert_int_equal(small_plan(&s), TRIA_OK);
    s.event.terms = terms;
    assert_int_equal(small_select(&s), TRIA_E_MISMATCH);
    assert_int_equal(tria_terms_create(NULL, NULL, &terms, &s.error), TRIA_E_ARGUMENT);
    tria_terms_destroy(terms);
    small_free(&s);
}

/* A finite key whose magnitude float cannot hold has no score, and harms no other row. */
static void test_overflowing_key(void **state)
{
    (void)state;
    static float raw[QUERIES * SMALL_MAX_ROWS];
    small s;
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    small_key(&s, 1, 1, 20)[3] = 1e20F;
    raw_scores(&s, raw);
    for (int32_t q = 0; q < QUERIES; q++) {
        for (int32_t i = 0; i < s.event.n_rows; i++) {
            /* queries 2 and 3 of layer 1 read KV head 1 */
            assert_int_equal(isfinite(raw[q * SMALL_MAX_ROWS + i]) == 0, i == 20 && q >= 6);
        }
    }
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.keep.n_nan, 1);
    small_free(&s);
}

static void *counting_allocate(void *context, size_t size, size_t alignment)
{
    void *pointer = NULL;
    *(size_t *)context += size;
    return posix_memalign(&pointer, alignment, size) == 0 ? pointer : NULL;
}

static void counting_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

/* What tria_plan_workspace_size() says is what creation takes, but for the plan's own small tables. */
static void test_workspace_size(void **state)
{
    (void)state;
    small s;
    size_t said, taken = 0;
    tria_env env = TRIA_ENV_INIT;
    tria_plan *plan;
    env.allocate = counting_allocate;
    env.release = counting_release;
    env.allocator_context = &taken;
    small_init(&s);
    s.params.n_threads = 2;
    assert_int_equal(tria_plan_workspace_size(&s.params, &said, &s.error), TRIA_OK);
    assert_int_equal(tria_plan_create(&s.params, &env, &plan, &s.error), TRIA_OK);
    assert_true(taken >= said);
    assert_true(taken - said < 32768);
    tria_plan_destroy(plan);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_allocation),         cmocka_unit_test(test_kept_terms),
        cmocka_unit_test(test_terms_of_another_plan), cmocka_unit_test(test_overflowing_key),
        cmocka_unit_test(test_workspace_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

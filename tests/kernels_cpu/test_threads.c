/* The thread pool, and that results know nothing of threads. */
#include "cpu/threads.h"
#include "plan/small.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TASKS = 1000, N_CALLERS = 4 };

typedef struct counts {
    tria_pool *pool;
    atomic_int runs[N_TASKS];
    atomic_int inside;
    atomic_int most_inside;
} counts;

static int32_t n_threads_now(void)
{
    int32_t n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        n += entry->d_name[0] != '.';
    }
    closedir(folder);
    return n;
}

static void count_task(void *argument, int32_t index)
{
    counts *c = argument;
    int inside = atomic_fetch_add(&c->inside, 1) + 1;
    int most = atomic_load(&c->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&c->most_inside, &most, inside)) {
    }
    atomic_fetch_add(&c->runs[index], 1);
    atomic_fetch_sub(&c->inside, 1);
}

static void nested_task(void *argument, int32_t index)
{
    counts *c = argument;
    (void)index;
    tria_pool_for(c->pool, N_TASKS, count_task, c);
}

static tria_pool *make_pool(int32_t n_threads)
{
    tria_env env;
    tria_error error;
    tria_pool *pool = NULL;
    assert_int_equal(tria_env_import(&env, NULL, &error), TRIA_OK);
    assert_int_equal(tria_pool_create(&env, n_threads, &pool, &error), TRIA_OK);
    return pool;
}

static void test_every_task_once(void **state)
{
    (void)state;
    counts *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    for (int32_t n_threads = 0; n_threads <= 5; n_threads++) {
        c->pool = make_pool(n_threads);
        for (int32_t n = 0; n <= N_TASKS; n = 2 * n + 1) {
            memset(c->runs, 0, sizeof(c->runs));
            tria_pool_for(c->pool, n, count_task, c);
            for (int32_t i = 0; i < N_TASKS; i++) {
                assert_int_equal(atomic_load(&c->runs[i]), i < n ? 1 : 0);
            }
        }
        assert_true(atomic_load(&c->most_inside) <= (n_threads > 1 ? n_threads : 1));
        tria_pool_destroy(c->pool);
    }
    memset(c->runs, 0, sizeof(c->runs));
    tria_pool_for(NULL, 3, count_task, c);
    assert_int_equal(atomic_load(&c->runs[2]), 1);
    free(c);
}

/* A call from within a task, or from other threads at the same time, must neither hang nor add threads. */
static void test_busy_pool(void **state)
{
    (void)state;
    counts *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    const int32_t before = n_threads_now();
    c->pool = make_pool(3);
    assert_int_equal(n_threads_now(), before + 2);
    tria_pool_for(c->pool, 7, nested_task, c);
    assert_int_equal(n_threads_now(), before + 2);
    for (int32_t i = 0; i < N_TASKS; i++) {
        assert_int_equal(atomic_load(&c->runs[i]), 7);
    }
    assert_true(atomic_load(&c->most_inside) <= 3);
    tria_pool_destroy(c->pool);
    assert_int_equal(n_threads_now(), before);
    free(c);
}

typedef struct caller {
    counts *counts;
    pthread_t thread;
} caller;

static void *call(void *argument)
{
    counts *c = argument;
    for (int i = 0; i < 50; i++) {
        tria_pool_for(c->pool, N_TASKS, count_task, c);
    }
    return NULL;
}

static void test_many_callers(void **state)
{
    (void)state;
    pthread_t threads[N_CALLERS];
    counts *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    c->pool = make_pool(3);
    for (int i = 0; i < N_CALLERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call, c), 0);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int32_t i = 0; i < N_TASKS; i++) {
        assert_int_equal(atomic_load(&c->runs[i]), 50 * N_CALLERS);
    }
    /* the pool's two and the callers themselves, who do their own work when it is busy */
    assert_true(atomic_load(&c->most_inside) <= N_CALLERS + 2);
    tria_pool_destroy(c->pool);
    free(c);
}

static void backwards(void *context, int32_t n, void (*task)(void *argument, int32_t index), void *argument)
{
    (void)context;
    for (int32_t i = n - 1; i >= 0; i--) {
        task(argument, i);
    }
}

/* Scores and keep sets are the same to the last bit however the work is shared out. */
static void test_same_results(void **state)
{
    (void)state;
    enum { QUERIES = 8, SETS = 2 };
    static float raw[6][QUERIES * SMALL_MAX_ROWS], final[6][SETS * SMALL_MAX_ROWS];
    static int32_t kept[6][SETS * SMALL_MAX_ROWS];
    for (int run = 0; run < 6; run++) {
        small s;
        tria_scores scores;
        tria_batch batch;
        small_init(&s);
        s.event.n_rows = 500;
        s.event.t = 500;
        s.params.n_threads = run;
        s.params.parallel_for = run == 5 ? backwards : NULL;
        assert_int_equal(small_plan(&s), TRIA_OK);
        tria_scores_init(&scores);
        tria_batch_init(&batch);
        scores.row_stride = SMALL_MAX_ROWS;
        scores.raw = raw[run];
        scores.final_scores = final[run];
        s.keep.rows = kept[run];
        batch.events = &s.event;
        batch.n_events = 1;
        assert_int_equal(tria_plan_select(s.plan, &batch, &scores, &s.keep, &s.error), TRIA_OK);
        assert_int_equal(s.counts[0], s.params.budget);
        assert_memory_equal(raw[run], raw[0], sizeof(raw[0]));
        assert_memory_equal(final[run], final[0], sizeof(final[0]));
        assert_memory_equal(kept[run], kept[0], sizeof(kept[0]));
        small_free(&s);
    }
}

/* The default starts no thread, so plans on many threads of an engine never outnumber them. */
static void test_default_is_the_calling_thread(void **state)
{
    (void)state;
    small s;
    const int32_t before = n_threads_now();
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(n_threads_now(), before);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once),
        cmocka_unit_test(test_busy_pool),
        cmocka_unit_test(test_many_callers),
        cmocka_unit_test(test_same_results),
        cmocka_unit_test(test_default_is_the_calling_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

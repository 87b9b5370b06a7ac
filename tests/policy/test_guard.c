/*
 * test_guard.c - what debug builds find: two threads inside one handle, and the use of a destroyed one.
 * Built with TRIA_GUARD_HANDLES, whatever the build type.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "guard.h"
#include "tria/sequence.h"

#include <pthread.h>
#include <string.h>

#if !TRIA_GUARD_HANDLES
#error "this test needs TRIA_GUARD_HANDLES"
#endif

static tria_sequence *create(const tria_env *env)
{
    tria_policy_params params;
    tria_sequence *sequence = NULL;
    tria_policy_params_init(&params);
    params.own_keep_sets = 1;
    params.mode = TRIA_MODE_UNION;
    params.budget = 64;
    params.interval = 16;
    params.n_recent = 8;
    params.capacity = 96;
    assert_int_equal(tria_sequence_create(&params, env, &sequence, NULL), TRIA_OK);
    return sequence;
}

static void test_use_after_destroy(void **state)
{
    tria_error error = {0};
    tria_sequence_info info;
    tria_sequence *s = create(NULL);
    (void)state;
    assert_int_equal(tria_sequence_append(s, 1, NULL), TRIA_OK);
    tria_sequence_destroy(s);
    assert_int_equal(tria_sequence_append(s, 1, &error), TRIA_E_STATE);
    assert_non_null(strstr(error.message, "destroyed"));
    assert_int_equal(tria_sequence_should_compact(s), -1);
    assert_int_equal(tria_sequence_room(s), -1);
    tria_sequence_info_init(&info);
    assert_int_equal(tria_sequence_get_info(s, &info, &error), TRIA_E_STATE);
    tria_sequence_destroy(s); /* twice */
    for (int i = 0; i < 1000; i++) {
        tria_sequence_destroy(create(NULL)); /* what is kept of destroyed ones is bounded */
    }
}

/* A second thread that calls while the first is inside (waiting in its log callback). */
typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int inside;
    int tried;
    tria_sequence *sequence;
    tria_status status;
    tria_error error;
} meeting;

static void wait_inside(void *context, tria_log_level level, const char *line)
{
    meeting *m = context;
    (void)level;
    if (strncmp(line, "compaction", 10) != 0) {
        return;
    }
    pthread_mutex_lock(&m->mutex);
    m->inside = 1;
    pthread_cond_broadcast(&m->changed);
    while (!m->tried) {
        pthread_cond_wait(&m->changed, &m->mutex);
    }
    pthread_mutex_unlock(&m->mutex);
}

static void *intrude(void *argument)
{
    meeting *m = argument;
    pthread_mutex_lock(&m->mutex);
    while (!m->inside) {
        pthread_cond_wait(&m->changed, &m->mutex);
    }
    m->status = tria_sequence_append(m->sequence, 1, &m->error);
    m->tried = 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

static void test_two_threads_in_one_handle(void **state)
{
    static meeting m = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    tria_env env = TRIA_ENV_INIT;
    tria_event event;
    tria_keep keep;
    pthread_t thread;
    (void)state;
    env.log = wait_inside;
    env.log_context = &m;
    m.sequence = create(&env);
    assert_int_equal(tria_sequence_append(m.sequence, 80, NULL), TRIA_OK);
    tria_event_init(&event);
    tria_keep_init(&keep);
    assert_int_equal(tria_sequence_event(m.sequence, &event, &keep, NULL), TRIA_OK);
    keep.counts[0] = 80;
    for (int32_t i = 0; i < 80; i++) {
        keep.rows[i] = i;
    }
    assert_int_equal(pthread_create(&thread, NULL, intrude, &m), 0);
    assert_int_equal(tria_sequence_commit(m.sequence, &keep, NULL, NULL), TRIA_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(m.status, TRIA_E_STATE);
    assert_non_null(strstr(m.error.message, "another thread"));
    assert_int_equal(tria_sequence_append(m.sequence, 1, NULL), TRIA_OK); /* one at a time is fine */
    tria_sequence_destroy(m.sequence);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_use_after_destroy),
        cmocka_unit_test(test_two_threads_in_one_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* threads.c - a pool of threads that sleep between calls and share out task numbers by a counter. */
#include "cpu/threads.h"

#include <pthread.h>
#include <stdatomic.h>

struct tria_pool {
    tria_env env;
    int32_t n_workers;
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_cond_t done;
    atomic_flag in_use;
    /* the call in progress, under the mutex but for `next` */
    void (*task)(void *argument, int32_t index);
    void *argument;
    int32_t n_tasks;
    atomic_int next;
    uint64_t round;
    int32_t n_busy; /* workers that have not finished this round */
    bool stop;
};

static void run_tasks(tria_pool *pool)
{
    for (;;) {
        int index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (index >= pool->n_tasks) {
            return;
        }
        pool->task(pool->argument, index);
    }
}

static void *worker(void *argument)
{
    tria_pool *pool = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->stop && pool->round == seen) {
            pthread_cond_wait(&pool->work, &pool->mutex);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->round;
        pthread_mutex_unlock(&pool->mutex);
        run_tasks(pool);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->n_busy == 0) {
            pthread_cond_signal(&pool->done);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

tria_status tria_pool_create(const tria_env *env, int32_t n_threads, tria_pool **out, tria_error *error)
{
    tria_pool *pool = tria_alloc(env, 1, sizeof(*pool));
    if (pool == NULL) {
        return tria_fail_memory(error, sizeof(*pool), "the thread pool");
    }
    pool->env = *env;
    atomic_flag_clear(&pool->in_use);
    atomic_init(&pool->next, 0);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (n_threads > 1) {
        size_t count = (size_t)n_threads - 1;
        pool->workers = tria_alloc(env, count, sizeof(*pool->workers));
        if (pool->workers == NULL) {
            tria_pool_destroy(pool);
            return tria_fail_memory(error, count * sizeof(pthread_t), "the thread pool");
        }
        for (size_t i = 0; i < count; i++) {
            if (pthread_create(&pool->workers[i], NULL, worker, pool) != 0) {
                tria_pool_destroy(pool);
                return tria_fail(error, TRIA_E_STATE, "cannot start thread %zu of %zu", i + 1, count);
            }
            pool->n_workers++;
        }
    }
    *out = pool;
    return TRIA_OK;
}

void tria_pool_destroy(tria_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->n_workers; i++) {
        pthread_join(pool->workers[i], NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    tria_free(&pool->env, pool->workers);
    const tria_env env = pool->env;
    tria_free(&env, pool);
}

void tria_pool_for(void *context, int32_t n, void (*task)(void *argument, int32_t index), void *argument)
{
    tria_pool *pool = context;
    if (pool == NULL || pool->n_workers == 0 || n <= 1 ||
        atomic_flag_test_and_set_explicit(&pool->in_use, memory_order_acquire)) {
        for (int32_t i = 0; i < n; i++) {
            task(argument, i);
        }
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->argument = argument;
    pool->n_tasks = n;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->n_busy = pool->n_workers;
    pool->round++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    run_tasks(pool);
    pthread_mutex_lock(&pool->mutex);
    while (pool->n_busy > 0) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    atomic_flag_clear_explicit(&pool->in_use, memory_order_release);
}

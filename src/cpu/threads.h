/* threads.h - the built-in pool: a tria_parallel_for for engines that bring none. */
#ifndef TRIA_CPU_THREADS_H
#define TRIA_CPU_THREADS_H

#include "internal.h"
#include "tria/plan.h"

typedef struct tria_pool tria_pool;

/* `n_threads` counts the calling thread, so n_threads - 1 are started; they sleep between calls.
 * Errors: MEMORY, or STATE when the system refuses a thread. */
tria_status tria_pool_create(const tria_env *env, int32_t n_threads, tria_pool **pool, tria_error *error);
void tria_pool_destroy(tria_pool *pool);

/* A tria_parallel_for whose context is a pool, or NULL for the calling thread alone. A call that comes
 * while the pool is at work, from a task of its own or from another thread, runs on the calling thread
 * alone: there are never more than n_threads of a pool busy. */
void tria_pool_for(void *pool, int32_t n, void (*task)(void *argument, int32_t index), void *argument);

#endif

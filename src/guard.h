/*
 * guard.h - finds two threads inside one handle and the use of a destroyed one.
 *
 * Only in debug builds (NDEBUG not defined) or with TRIA_GUARD_HANDLES; elsewhere it costs nothing. A
 * destroyed handle's first bytes must still be readable to be recognised, so tria_guard_retire() keeps
 * the last TRIA_GUARD_KEPT of them.
 */
#ifndef TRIA_GUARD_H
#define TRIA_GUARD_H

#include "internal.h"

#if !defined(NDEBUG) && !defined(TRIA_GUARD_HANDLES)
#define TRIA_GUARD_HANDLES 1
#endif

#if defined(TRIA_GUARD_HANDLES) && TRIA_GUARD_HANDLES
#include <stdatomic.h>

enum { TRIA_GUARD_KEPT = 64 };

typedef struct tria_guard {
    atomic_uint live;
    atomic_flag busy;
} tria_guard;

/* Memory for a guarded handle, zero-filled; released by tria_guard_retire() only. */
void *tria_guard_alloc(const tria_env *env, size_t size);
void tria_guard_init(tria_guard *guard);
tria_status tria_guard_enter(tria_guard *guard, const char *call, tria_error *error);
void tria_guard_leave(tria_guard *guard);
void tria_guard_retire(tria_guard *guard, const tria_env *env, void *handle);
#else
typedef struct tria_guard {
    char unused;
} tria_guard;

static inline void *tria_guard_alloc(const tria_env *env, size_t size)
{
    return tria_alloc(env, 1, size);
}
static inline void tria_guard_init(tria_guard *guard)
{
    (void)guard;
}
static inline tria_status tria_guard_enter(tria_guard *guard, const char *call, tria_error *error)
{
    (void)guard;
    (void)call;
    (void)error;
    return TRIA_OK;
}
static inline void tria_guard_leave(tria_guard *guard)
{
    (void)guard;
}
static inline void tria_guard_retire(tria_guard *guard, const tria_env *env, void *handle)
{
    (void)guard;
    tria_free(env, handle);
}
#endif

#endif

/* guard.c - see guard.h. The one mutable global of the library, and only in debug builds: destroyed
 * handles that are kept for a while so that their use can be told from that of a live one. */
#include "guard.h"

#if defined(TRIA_GUARD_HANDLES) && TRIA_GUARD_HANDLES
#include <pthread.h>
#include <stdlib.h>

enum { LIVE = 0x54524941, RETIRED = 0x44454144 };

static pthread_mutex_t retired_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *retired[TRIA_GUARD_KEPT];
static unsigned retired_next;

void *tria_guard_alloc(const tria_env *env, size_t size)
{
    /* Not the caller's allocator: what it gave out must not be kept after the handle is gone. */
    (void)env;
    return calloc(1, size);
}

void tria_guard_init(tria_guard *guard)
{
    atomic_flag_clear(&guard->busy);
    atomic_store(&guard->live, LIVE);
}

tria_status tria_guard_enter(tria_guard *guard, const char *call, tria_error *error)
{
    if (atomic_load(&guard->live) != LIVE) {
        return tria_fail(error, TRIA_E_STATE, "%s: the handle was destroyed", call);
    }
    if (atomic_flag_test_and_set(&guard->busy)) {
        return tria_fail(error, TRIA_E_STATE, "%s: another thread is inside this handle", call);
    }
    return TRIA_OK;
}

void tria_guard_leave(tria_guard *guard)
{
    atomic_flag_clear(&guard->busy);
}

void tria_guard_retire(tria_guard *guard, const tria_env *env, void *handle)
{
    (void)env;
    atomic_store(&guard->live, RETIRED);
    pthread_mutex_lock(&retired_mutex);
    void *oldest = retired[retired_next];
    retired[retired_next] = handle;
    retired_next = (retired_next + 1) % TRIA_GUARD_KEPT;
    pthread_mutex_unlock(&retired_mutex);
    free(oldest);
}
#endif

/* sequence_create.c - making, copying and destroying sequences. All memory is taken here. */
#include "sequence_internal.h"

#include <string.h>

static void release_arrays(tria_sequence *sequence)
{
    const tria_env *env = &sequence->env;
    tria_free(env, sequence->counts);
    tria_free(env, sequence->positions);
    tria_free(env, sequence->lent);
    tria_free(env, sequence->slot_rows);
    tria_free(env, sequence->keep_rows);
    tria_free(env, sequence->keep_count);
    tria_free(env, sequence->prompts);
    tria_free(env, sequence->shared);
    tria_tables_release(&sequence->tables, env);
}

static bool alloc_arrays(tria_sequence *sequence)
{
    const tria_env *env = &sequence->env;
    const tria_tables *tables = &sequence->tables;
    const size_t capacity = (size_t)sequence->policy.capacity;
    const size_t row_bytes = capacity * sizeof(int32_t);
    if (sequence->policy.tokens_per_page > 0) {
        sequence->n_pages = sequence->policy.capacity / sequence->policy.tokens_per_page;
        sequence->shared = tria_alloc(env, (size_t)sequence->n_pages, 1);
        if (sequence->shared == NULL) {
            return false;
        }
    }
    sequence->counts = tria_alloc(env, (size_t)tables->n_tables, sizeof(int32_t));
    sequence->positions = tria_alloc(env, (size_t)tables->n_tables, row_bytes);
    sequence->lent = tria_alloc(env, (size_t)tables->n_tables, row_bytes);
    sequence->slot_rows = tria_alloc(env, (size_t)tables->n_slots, sizeof(int32_t));
    sequence->keep_rows = tria_alloc(env, (size_t)tables->n_sets, row_bytes);
    sequence->keep_count = tria_alloc(env, (size_t)tables->n_sets, sizeof(int32_t));
    sequence->prompts = tria_alloc(env, capacity + 1, sizeof(tria_range));
    return sequence->counts != NULL && sequence->positions != NULL && sequence->lent != NULL &&
           sequence->slot_rows != NULL && sequence->keep_rows != NULL && sequence->keep_count != NULL &&
           sequence->prompts != NULL;
}

tria_sequence *tria_sequence_alloc(const tria_policy *policy, tria_tables *tables, const tria_env *env,
                                   tria_error *error)
{
    tria_sequence *s = tria_guard_alloc(env, sizeof(*s));
    if (s == NULL) {
        tria_tables_release(tables, env);
        tria_fail_memory(error, sizeof(*s), "a sequence");
        return NULL;
    }
    s->env = *env;
    s->policy = *policy;
    s->tables = *tables;
    memset(tables, 0, sizeof(*tables));
    s->state.enabled = 1;
    s->state.in_flight_begin = TRIA_NO_POSITION;
    s->state.first_evicted = TRIA_NO_POSITION;
    tria_guard_init(&s->guard);
    if (!alloc_arrays(s)) {
        const size_t bytes = (size_t)s->tables.n_tables * (size_t)policy->capacity * 2 * sizeof(int32_t);
        tria_sequence_destroy(s);
        tria_fail_memory(error, bytes, "the position tables of a sequence");
        return NULL;
    }
    return s;
}

tria_status tria_sequence_create(const tria_policy_params *params, const tria_env *env,
                                 tria_sequence **sequence, tria_error *error)
{
    tria_env own_env;
    tria_policy policy;
    tria_tables tables;
    tria_sequence *s;
    char line[512];
    TRIA_TRY(tria_env_import(&own_env, env, error));
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_create: sequence is NULL");
    }
    TRIA_TRY(tria_policy_resolve(&policy, params, error));
    TRIA_TRY(tria_tables_resolve(&tables, &policy, params, &own_env, error));
    s = tria_sequence_alloc(&policy, &tables, &own_env, error);
    if (s == NULL) {
        return TRIA_E_MEMORY;
    }
    s->state.enabled = params->enabled != 0;
    tria_sequence_describe(s, line, sizeof(line));
    tria_log(&own_env, TRIA_LOG_INFO, "%s", line);
    *sequence = s;
    return TRIA_OK;
}

void tria_sequence_destroy(tria_sequence *sequence)
{
    tria_error error;
    if (sequence == NULL) {
        return;
    }
    if (tria_guard_enter(&sequence->guard, "tria_sequence_destroy", &error) != TRIA_OK) {
        tria_log(&sequence->env, TRIA_LOG_ERROR, "%s", error.message);
        return;
    }
    release_arrays(sequence);
    tria_guard_retire(&sequence->guard, &sequence->env, sequence);
}

/* Pages that hold rows now. */
static int32_t used_pages(const tria_sequence *sequence)
{
    const int32_t size = sequence->policy.tokens_per_page;
    return size == 0 ? 0 : (int32_t)(((int64_t)tria_sequence_rows(sequence) + size - 1) / size);
}

static tria_status copy_tables(tria_tables *to, const tria_tables *from, const tria_env *env,
                               tria_error *error)
{
    const size_t layers = (size_t)from->n_layers * sizeof(int32_t);
    const size_t slots = (size_t)from->n_slots * sizeof(int32_t);
    *to = *from;
    to->kv_heads = tria_alloc(env, layers, 1);
    to->slot_table = tria_alloc(env, slots, 1);
    to->set_table = tria_alloc(env, slots, 1);
    if (to->kv_heads == NULL || to->slot_table == NULL || to->set_table == NULL) {
        tria_tables_release(to, env);
        return tria_fail_memory(error, layers + 2 * slots, "a sequence");
    }
    memcpy(to->kv_heads, from->kv_heads, layers);
    memcpy(to->slot_table, from->slot_table, slots);
    memcpy(to->set_table, from->set_table, (size_t)from->n_sets * sizeof(int32_t));
    return TRIA_OK;
}

static tria_status fork_sequence(tria_sequence *sequence, const tria_env *env, tria_sequence **copy,
                                 tria_error *error)
{
    tria_tables tables;
    tria_sequence *s;
    TRIA_TRY(copy_tables(&tables, &sequence->tables, env, error));
    s = tria_sequence_alloc(&sequence->policy, &tables, env, error);
    if (s == NULL) {
        return TRIA_E_MEMORY;
    }
    const size_t capacity = (size_t)sequence->policy.capacity;
    s->state = sequence->state;
    for (int32_t i = 0; i < s->tables.n_tables; i++) {
        s->counts[i] = sequence->counts[i];
        memcpy(s->positions + (size_t)i * capacity, sequence->positions + (size_t)i * capacity,
               (size_t)sequence->counts[i] * sizeof(int32_t));
    }
    memcpy(s->prompts, sequence->prompts, (size_t)sequence->state.n_prompts * sizeof(tria_range));
    if (sequence->shared != NULL) {
        memset(sequence->shared, 1, (size_t)used_pages(sequence));
        memcpy(s->shared, sequence->shared, (size_t)sequence->n_pages);
    }
    *copy = s;
    return TRIA_OK;
}

tria_status tria_sequence_fork(tria_sequence *sequence, const tria_env *env, tria_sequence **copy,
                               tria_error *error)
{
    tria_env own_env;
    TRIA_TRY(tria_env_import(&own_env, env, error));
    if (sequence == NULL || copy == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_fork: sequence or copy is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, "tria_sequence_fork", error));
    const tria_status status = fork_sequence(sequence, &own_env, copy, error);
    tria_guard_leave(&sequence->guard);
    return status;
}

void tria_sequence_drop_pages(tria_sequence *sequence)
{
    if (sequence->shared != NULL) {
        const int32_t used = used_pages(sequence);
        memset(sequence->shared + used, 0, (size_t)(sequence->n_pages - used));
    }
}

const uint8_t *tria_sequence_shared_pages(const tria_sequence *sequence, int32_t *n_pages)
{
    *n_pages = used_pages(sequence);
    return sequence->shared;
}

tria_status tria_sequence_own_page(tria_sequence *sequence, int32_t entry, tria_error *error)
{
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_own_page: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, "tria_sequence_own_page", error));
    const bool valid = entry >= 0 && entry < used_pages(sequence);
    if (valid) {
        sequence->shared[entry] = 0;
    }
    tria_guard_leave(&sequence->guard);
    return valid ? TRIA_OK
                 : tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_own_page: entry %d of %d pages", entry,
                             used_pages(sequence));
}

/* test_engine.c - sequences and plans together on a toy engine's own tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/engine.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const engine_shape shape = {3, 4, 2, 16, TRIA_DTYPE_F32};

static tria_policy_params base_policy(void)
{
    tria_policy_params params;
    tria_policy_params_init(&params);
    params.budget = 48;
    params.interval = 8;
    params.n_recent = 12;
    params.n_sink = 3;
    params.capacity = 64;
    return params;
}

/* Rows stay with their positions in every mode and order, and the schedule is the literal one. */
static void test_modes_and_orders(void **state)
{
    (void)state;
    for (int32_t mode = 0; mode < 5; mode++) {
        for (int32_t order = 0; order < 2; order++) {
            tria_policy_params params = base_policy();
            engine e;
            params.mode = mode;
            params.order = order;
            engine_open(&e, &shape, &params, NULL, NULL);
            for (int32_t i = 1; i <= 400; i++) {
                engine_write(&e, 1);
                const int compacted = engine_maybe_compact(&e);
                assert_int_equal(compacted, i >= 56 && i % 8 == 0);
                engine_check(&e);
            }
            const tria_sequence_info info = engine_info(&e);
            assert_int_equal(info.t, 400);
            assert_int_equal(info.rows, 48);
            assert_int_equal(info.n_compactions, 44);
            assert_true(info.bytes_moved > 0);
            assert_int_equal(info.evicted, 44LL * 8 * info.n_sets);
            engine_close(&e);
        }
    }
}

/* With it on and off the cache is the same, byte by byte, up to the first compaction. */
static void test_bit_identical_below_trigger(void **state)
{
    tria_policy_params params = base_policy();
    engine on;
    engine off;
    (void)state;
    engine_open(&on, &shape, &params, NULL, NULL);
    params.enabled = 0;
    engine_open(&off, &shape, &params, NULL, NULL);
    for (int32_t i = 0; i < 60; i++) {
        engine_write(&on, 1);
        engine_write(&off, 1);
        const int compacted = engine_maybe_compact(&on);
        assert_int_equal(compacted, i == 55);
        assert_int_equal(engine_maybe_compact(&off), 0);
        for (int32_t l = 0; l < shape.n_layers; l++) {
            const size_t size = on.layers[l].k.size;
            if (i < 55) {
                assert_memory_equal(on.k[l], off.k[l], size);
                assert_memory_equal(on.v[l], off.v[l], size);
            } else {
                assert_memory_not_equal(on.k[l], off.k[l], size);
            }
        }
    }
    engine_close(&on);
    engine_close(&off);
}

static void compact_batch(engine *first, engine *engines, int32_t n)
{
    tria_event events[3];
    tria_keep keeps[3];
    tria_compaction done[3];
    tria_batch batch;
    tria_error error;
    for (int32_t i = 0; i < n; i++) {
        tria_event_init(&events[i]);
        tria_keep_init(&keeps[i]);
        tria_compaction_init(&done[i]);
        assert_int_equal(tria_sequence_event(engines[i].sequence, &events[i], &keeps[i], &error), TRIA_OK);
        events[i].kv = &engines[i].view;
    }
    tria_batch_init(&batch);
    batch.events = events;
    batch.n_events = n;
    if (tria_plan_select(first->plan, &batch, NULL, keeps, &error) != TRIA_OK ||
        tria_plan_compact(first->plan, &batch, keeps, done, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(tria_sequence_commit(engines[i].sequence, &keeps[i], &done[i], &error), TRIA_OK);
    }
}

/* Three sequences of different lengths in one call do what each does alone. */
static void test_several_sequences_in_one_call(void **state)
{
    static const int32_t lengths[3] = {56, 63, 59};
    tria_policy_params params = base_policy();
    tria_plan_params plan;
    engine together[3];
    engine alone[3];
    (void)state;
    tria_plan_params_init(&plan);
    plan.max_sequences = 3;
    for (int32_t i = 0; i < 3; i++) {
        engine_open(&together[i], &shape, &params, &plan, NULL);
        engine_open(&alone[i], &shape, &params, NULL, NULL);
        engine_write(&together[i], lengths[i]);
        engine_write(&alone[i], lengths[i]);
        assert_int_equal(engine_maybe_compact(&alone[i]), 1);
    }
    compact_batch(&together[0], together, 3);
    for (int32_t i = 0; i < 3; i++) {
        engine_check(&together[i]);
        for (int32_t h = 0; h < shape.n_kv_heads; h++) {
            int32_t n;
            int32_t m;
            const int32_t *a = tria_sequence_positions(together[i].sequence, 0, h, &n);
            const int32_t *b = tria_sequence_positions(alone[i].sequence, 0, h, &m);
            assert_int_equal(n, m);
            assert_memory_equal(a, b, sizeof(*a) * (size_t)n);
        }
        engine_close(&together[i]);
        engine_close(&alone[i]);
    }
}

/* One sequence's keep set does not fit another one's event. */
static void test_set_of_another_sequence_refused(void **state)
{
    tria_policy_params params = base_policy();
    engine a;
    engine b;
    tria_event event;
    tria_keep keep;
    tria_error error;
    (void)state;
    engine_open(&a, &shape, &params, NULL, NULL);
    engine_open(&b, &shape, &params, NULL, NULL);
    engine_write(&a, 64);
    engine_write(&b, 56);
    tria_event_init(&event);
    tria_keep_init(&keep);
    assert_int_equal(tria_sequence_event(a.sequence, &event, &keep, &error), TRIA_OK);
    event.kv = &a.view;
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    assert_int_equal(tria_plan_select(a.plan, &batch, NULL, &keep, &error), TRIA_OK);
    assert_int_equal(tria_sequence_commit(b.sequence, &keep, NULL, &error), TRIA_E_STATE); /* no event */
    tria_event other;
    tria_event_init(&other);
    assert_int_equal(tria_sequence_event(b.sequence, &other, NULL, &error), TRIA_OK);
    assert_int_equal(tria_sequence_commit(b.sequence, &keep, NULL, &error), TRIA_E_ARGUMENT);
    engine_close(&a);
    engine_close(&b);
}

/* A draft model's cache follows the target's: by the move list, and by the same keep set on its own plan.
 */
static void test_draft_cache_follows(void **state)
{
    static const engine_shape draft_shape = {1, 2, 1, 8, TRIA_DTYPE_F16};
    (void)state;
    for (int32_t order = 0; order < 2; order++) {
        tria_policy_params params = base_policy();
        tria_move moves[3 * 2 * 64];
        tria_compaction done;
        tria_compact_params compact;
        tria_error error;
        engine target;
        engine by_moves;
        engine by_keep;
        params.mode = TRIA_MODE_UNION;
        params.order = order;
        engine_open(&target, &shape, &params, NULL, NULL);
        engine_open(&by_moves, &draft_shape, &params, NULL, NULL);
        engine_open(&by_keep, &draft_shape, &params, NULL, NULL);
        engine_write(&target, 60);
        engine_write(&by_moves, 60);
        engine_write(&by_keep, 60);
        tria_compaction_init(&done);
        done.moves = moves;
        done.moves_capacity = 3 * 2 * 64;
        tria_compact_params_init(&compact);
        compact.kv = &target.view;
        compact.compaction = &done;

        /* the same keep set: an event of each, one selection */
        tria_event events[2];
        tria_keep keep;
        tria_batch batch;
        tria_event_init(&events[0]);
        tria_event_init(&events[1]);
        tria_keep_init(&keep);
        tria_batch_init(&batch);
        batch.n_events = 1;
        assert_int_equal(tria_sequence_event(target.sequence, &events[0], &keep, &error), TRIA_OK);
        assert_int_equal(tria_sequence_event(by_keep.sequence, &events[1], NULL, &error), TRIA_OK);
        events[0].kv = &target.view;
        events[1].kv = &by_keep.view;
        batch.events = &events[0];
        assert_int_equal(tria_plan_select(target.plan, &batch, NULL, &keep, &error), TRIA_OK);
        batch.events = &events[1];
        assert_int_equal(tria_plan_compact(by_keep.plan, &batch, &keep, NULL, &error), TRIA_OK);
        assert_int_equal(tria_sequence_commit(by_keep.sequence, &keep, NULL, &error), TRIA_OK);
        engine_check(&by_keep);

        /* the move list of the target's compaction, those of one head */
        if (tria_sequence_compact(target.sequence, target.plan, &compact, &error) != TRIA_OK) {
            fail_msg("%s", error.message);
        }
        assert_true(done.n_moves > 0);
        for (int64_t i = 0; i < done.n_moves; i++) {
            if (moves[i].layer == 0 && moves[i].kv_head == 0) {
                for (int32_t is_v = 0; is_v < 2; is_v++) {
                    memcpy(engine_row(&by_moves, is_v, 0, 0, moves[i].to),
                           engine_row(&by_moves, is_v, 0, 0, moves[i].from), 16);
                }
            }
        }
        int32_t n;
        int32_t m;
        const int32_t *positions = tria_sequence_positions(target.sequence, 0, 0, &n);
        const int32_t *followed = tria_sequence_positions(by_keep.sequence, 0, 0, &m);
        assert_int_equal(n, 48);
        assert_int_equal(m, 48);
        assert_memory_equal(positions, followed, sizeof(*positions) * 48);
        for (int32_t i = 0; i < n; i++) {
            unsigned char bytes[16];
            engine_expected_row(&by_moves, 0, 0, 0, positions[i], bytes);
            assert_memory_equal(bytes, engine_row(&by_moves, 0, 0, 0, i), sizeof(bytes));
        }
        engine_check(&target);
        engine_close(&target);
        engine_close(&by_moves);
        engine_close(&by_keep);
    }
}

/* Copies the page behind entry `entry` to a fresh one. */
static void copy_page(engine *e, int32_t entry, int32_t fresh)
{
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        const size_t bytes = (size_t)e->layers[l].k.page_stride;
        const size_t from = (size_t)e->page_table[entry] * bytes;
        memcpy(e->k[l] + (size_t)fresh * bytes, e->k[l] + from, bytes);
        memcpy(e->v[l] + (size_t)fresh * bytes, e->v[l] + from, bytes);
    }
    e->page_table[entry] = fresh;
}

/* Forks share pages until one side writes to them; pages freed come with their ids. */
static void test_fork_shares_pages_until_compaction(void **state)
{
    tria_policy_params params = base_policy();
    tria_compaction done;
    tria_compact_params compact;
    tria_error error;
    engine e;
    int32_t freed[16];
    int32_t shared_pages[16];
    int32_t n_pages;
    int32_t old_table[ENGINE_MAX_PAGES];
    tria_sequence *copy;
    (void)state;
    params.tokens_per_page = 8;
    engine_open(&e, &shape, &params, NULL, NULL);
    engine_write(&e, 60);
    assert_int_equal(tria_sequence_fork(e.sequence, NULL, &copy, &error), TRIA_OK);
    const uint8_t *shared = tria_sequence_shared_pages(e.sequence, &n_pages);
    assert_int_equal(n_pages, 8);
    for (int32_t i = 0; i < n_pages; i++) {
        assert_int_equal(shared[i], 1);
    }
    /* The last page is half filled: writing to it needs a copy. */
    assert_int_equal(tria_sequence_append(e.sequence, 1, &error), TRIA_E_SHARED_PAGE);
    copy_page(&e, 7, 8);
    assert_int_equal(tria_sequence_own_page(e.sequence, 7, &error), TRIA_OK);
    engine_write(&e, 1);
    memcpy(old_table, e.page_table, sizeof(old_table));
    unsigned char *snapshot = malloc(e.layers[0].k.size);
    memcpy(snapshot, e.k[0], e.layers[0].k.size);

    tria_compaction_init(&done);
    done.freed_pages = freed;
    done.freed_capacity = 16;
    done.shared_pages = shared_pages;
    tria_compact_params_init(&compact);
    compact.kv = &e.view;
    compact.compaction = &done;
    assert_int_equal(tria_sequence_compact(e.sequence, e.plan, &compact, &error), TRIA_E_SHARED_PAGE);
    assert_memory_equal(snapshot, e.k[0], e.layers[0].k.size); /* nothing was written */
    assert_int_equal(engine_info(&e).n_compactions, 0);
    assert_true(done.n_shared > 0);
    int32_t fresh = 9;
    for (int32_t i = 0; i < done.n_shared; i++) {
        copy_page(&e, shared_pages[i], fresh++);
        assert_int_equal(tria_sequence_own_page(e.sequence, shared_pages[i], &error), TRIA_OK);
    }
    memcpy(snapshot, e.k[0], e.layers[0].k.size);
    int32_t page_table[ENGINE_MAX_PAGES];
    memcpy(page_table, e.page_table, sizeof(page_table));
    if (tria_sequence_compact(e.sequence, e.plan, &compact, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    engine_check(&e);
    assert_memory_equal(page_table, e.page_table, sizeof(page_table)); /* the engine's, only read */
    assert_int_equal(done.n_freed_pages, 2); /* 61 rows in 8 pages, 48 rows in 6 */
    assert_int_equal(engine_info(&e).pages_freed, 2);
    assert_int_equal(freed[0], e.page_table[6]);
    assert_int_equal(freed[1], e.page_table[7]);
    /* The other side's pages are as they were. */
    const size_t page = (size_t)e.layers[0].k.page_stride;
    for (int32_t i = 0; i < 7; i++) {
        assert_memory_equal(snapshot + (size_t)old_table[i] * page, e.k[0] + (size_t)old_table[i] * page,
                            page);
    }
    int32_t n;
    tria_sequence_positions(copy, 0, 0, &n);
    assert_int_equal(n, 60);
    assert_int_equal(tria_sequence_intact_prefix(copy), 60);
    free(snapshot);
    tria_sequence_destroy(copy);
    engine_close(&e);
}

/* A plan with other settings than the policy's would silently follow its own. */
static void test_plan_of_other_settings_refused(void **state)
{
    tria_policy_params params = base_policy();
    tria_compact_params compact;
    tria_error error;
    engine a;
    engine b;
    (void)state;
    engine_open(&a, &shape, &params, NULL, NULL);
    params.n_recent = 20;
    engine_open(&b, &shape, &params, NULL, NULL);
    engine_write(&a, 60);
    tria_compact_params_init(&compact);
    compact.kv = &a.view;
    assert_int_equal(tria_sequence_compact(a.sequence, b.plan, &compact, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "n_recent"));
    params.plan = a.plan;
    tria_sequence *sequence = NULL;
    assert_int_equal(tria_sequence_create(&params, NULL, &sequence, &error), TRIA_E_MISMATCH);
    engine_close(&a);
    engine_close(&b);
}

/* Rows that the engine pins stay. */
static void test_pins(void **state)
{
    static const int32_t pins[2] = {20, 33};
    tria_policy_params params = base_policy();
    tria_compact_params compact;
    tria_error error;
    engine e;
    (void)state;
    params.budget = 24;
    engine_open(&e, &shape, &params, NULL, NULL);
    engine_write(&e, 60);
    tria_compact_params_init(&compact);
    compact.kv = &e.view;
    compact.pins = pins;
    compact.n_pins = 2;
    assert_int_equal(tria_sequence_compact(e.sequence, e.plan, &compact, &error), TRIA_OK);
    for (int32_t h = 0; h < shape.n_kv_heads; h++) {
        int32_t n;
        int found = 0;
        const int32_t *positions = tria_sequence_positions(e.sequence, 0, h, &n);
        for (int32_t i = 0; i < n; i++) {
            found += positions[i] == 20 || positions[i] == 33;
        }
        assert_int_equal(found, 2);
    }
    engine_close(&e);
}

/* Counts what the library allocates. */
static int n_allocations;
static void *counted_allocate(void *context, size_t size, size_t alignment)
{
    void *pointer = NULL;
    (void)context;
    n_allocations++;
    return posix_memalign(&pointer, alignment, size) == 0 ? pointer : NULL;
}
static void counted_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

/* After creation nothing is allocated: not by appending, not by compacting, with the trace off. */
static void test_no_allocation_after_creation(void **state)
{
    tria_policy_params params = base_policy();
    tria_env env = TRIA_ENV_INIT;
    engine e;
    (void)state;
    env.allocate = counted_allocate;
    env.release = counted_release;
    engine_open(&e, &shape, &params, NULL, &env);
    const int before = n_allocations;
    assert_true(before > 0);
    assert_int_equal(tria_sequence_begin_prefill(e.sequence, 30, NULL), TRIA_OK);
    engine_write(&e, 30);
    assert_int_equal(tria_sequence_end_prefill(e.sequence, NULL), TRIA_OK);
    engine_decode(&e, 100);
    assert_int_equal(tria_sequence_trim(e.sequence, 120, NULL), TRIA_OK);
    assert_int_equal(tria_sequence_reset(e.sequence, NULL), TRIA_OK);
    engine_decode(&e, 100);
    assert_true(engine_info(&e).n_compactions > 0);
    assert_int_equal(n_allocations, before);
    engine_close(&e);
}

static char log_lines[8][256];
static int n_log_lines;
static void take_line(void *context, tria_log_level level, const char *line)
{
    (void)context;
    (void)level;
    snprintf(log_lines[n_log_lines++ % 8], sizeof(log_lines[0]), "%s", line);
}

/* One line at creation, one per compaction, with what the specification asks for; NaN rows are named. */
static void test_log_lines(void **state)
{
    tria_policy_params params = base_policy();
    tria_env env = TRIA_ENV_INIT;
    const float nan = (float)NAN;
    engine e;
    (void)state;
    engine_open(&e, &shape, &params, NULL, NULL);
    tria_sequence_destroy(e.sequence);
    env.log = take_line;
    n_log_lines = 0;
    params.plan = e.plan;
    assert_int_equal(tria_sequence_create(&params, &env, &e.sequence, NULL), TRIA_OK);
    assert_int_equal(n_log_lines, 1);
    assert_non_null(strstr(log_lines[0], "per-head, budget 48 + interval 8 of 64 rows"));
    engine_write(&e, 55);
    memcpy(engine_row(&e, 0, 1, 0, 30), &nan, sizeof(nan));
    engine_decode(&e, 1);
    assert_int_equal(n_log_lines, 2);
    assert_non_null(strstr(log_lines[1], "compaction 1: t 56, rows 56 -> 48, "));
    assert_non_null(strstr(log_lines[1], "bytes moved"));
    assert_non_null(strstr(log_lines[1], "1 NaN rows"));
    assert_int_equal(engine_info(&e).n_nan, 1);
    for (int32_t i = 0; i < 48; i++) { /* a head that reads back as zeros is reported too */
        memset(engine_row(&e, 0, 2, 1, i), 0, 64);
    }
    for (int32_t i = 0; i < 8; i++) {
        engine_write(&e, 1);
        memset(engine_row(&e, 0, 2, 1, 48 + i), 0, 64);
    }
    assert_int_equal(engine_maybe_compact(&e), 1);
    assert_non_null(strstr(log_lines[2], "1 all-zero heads"));
    engine_close(&e);
}

/* A prompt of four times the cache, block by block: never more rows than budget + block. */
static void test_chunked_prefill_is_bounded(void **state)
{
    enum { BLOCK = 16, PROMPT = 256 };
    tria_policy_params params = base_policy();
    engine e;
    (void)state;
    params.protect_prefill = 0;
    params.allow_prefill_compaction = 1;
    engine_open(&e, &shape, &params, NULL, NULL);
    assert_int_equal(tria_sequence_begin_prefill(e.sequence, PROMPT, NULL), TRIA_OK);
    for (int32_t i = 0; i < PROMPT / BLOCK; i++) {
        assert_true(tria_sequence_room(e.sequence) >= BLOCK);
        engine_write(&e, BLOCK);
        assert_int_equal(engine_maybe_compact(&e), i >= 3);
        engine_check(&e);
    }
    assert_int_equal(tria_sequence_end_prefill(e.sequence, NULL), TRIA_OK);
    const tria_sequence_info info = engine_info(&e);
    assert_int_equal(info.t, PROMPT);
    assert_int_equal(info.rows, 48);
    assert_int_equal(info.peak_rows, 48 + BLOCK);
    engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes_and_orders),
        cmocka_unit_test(test_bit_identical_below_trigger),
        cmocka_unit_test(test_several_sequences_in_one_call),
        cmocka_unit_test(test_set_of_another_sequence_refused),
        cmocka_unit_test(test_draft_cache_follows),
        cmocka_unit_test(test_fork_shares_pages_until_compaction),
        cmocka_unit_test(test_plan_of_other_settings_refused),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_no_allocation_after_creation),
        cmocka_unit_test(test_log_lines),
        cmocka_unit_test(test_chunked_prefill_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

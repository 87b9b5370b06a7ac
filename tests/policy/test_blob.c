/* test_blob.c - saved sequences: the same future at every step, and damage refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crc32c.h"
#include "policy/fake_plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static tria_error error;

static tria_policy_params base(void)
{
    static const double ramp[3] = {25, 50, 100};
    tria_policy_params params;
    tria_policy_params_init(&params);
    params.own_keep_sets = 1;
    params.mode = TRIA_MODE_PER_HEAD;
    params.n_layers = 2;
    params.n_kv_heads = 2;
    params.budget = 16;
    params.interval = 4;
    params.n_recent = 4;
    params.n_sink = 2;
    params.capacity = 40;
    params.tokens_per_page = 4;
    params.in_flight = 3;
    params.count_prompt = 0;
    params.n_ramp = 3;
    params.ramp = ramp;
    return params;
}

static void compact(tria_sequence *s, const tria_policy_params *params)
{
    fake_plan plan = {.seed = 3,
                      .n_sets = 2,
                      .set_head = {0, 1},
                      .n_sink = params->n_sink,
                      .n_recent = params->n_recent,
                      .protect_prefill = params->protect_prefill,
                      .count_prompt = params->count_prompt};
    tria_event event;
    tria_keep keep;
    tria_event_init(&event);
    tria_keep_init(&keep);
    if (tria_sequence_event(s, &event, &keep, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    plan.set_rows = event.rows; /* those of layer 0's heads, one per set; NULL when all are equal */
    fake_select(&plan, &event, &keep);
    if (tria_sequence_commit(s, &keep, NULL, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

enum { N_STEPS = 90 };

/* The i-th thing that happens: prompts, drafts, rejections, compactions, a shift, a trim. */
static void step(tria_sequence *s, const tria_policy_params *params, int i)
{
    switch (i) {
    case 3:
        assert_int_equal(tria_sequence_begin_prefill(s, 6, &error), TRIA_OK);
        break;
    case 6:
        assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK);
        break;
    case 20:
        assert_int_equal(tria_sequence_set_in_flight(s, 2, &error), TRIA_OK);
        break;
    case 22:
        assert_int_equal(tria_sequence_rollback(s, 1, &error), TRIA_OK);
        assert_int_equal(tria_sequence_set_in_flight(s, 0, &error), TRIA_OK);
        break;
    case 50:
        assert_int_equal(tria_sequence_shift(s, 12, 15, &error), TRIA_OK);
        break;
    case 70:
        assert_int_equal(tria_sequence_trim(s, 40, &error), TRIA_OK);
        break;
    default:
        if (i != 21) {
            assert_int_equal(tria_sequence_append(s, 1, &error), TRIA_OK);
        }
        if (tria_sequence_should_compact(s)) {
            compact(s, params);
        }
    }
}

static unsigned char *save(tria_sequence *s, size_t *size)
{
    assert_int_equal(tria_sequence_save(s, NULL, 0, size, &error), TRIA_OK);
    unsigned char *blob = malloc(*size);
    size_t again;
    assert_int_equal(tria_sequence_save(s, blob, *size - 1, &again, &error), TRIA_E_CAPACITY);
    assert_int_equal(tria_sequence_save(s, blob, *size, &again, &error), TRIA_OK);
    assert_int_equal(again, *size);
    return blob;
}

static void same(tria_sequence *a, tria_sequence *b)
{
    tria_sequence_info x;
    tria_sequence_info y;
    tria_sequence_info_init(&x);
    tria_sequence_info_init(&y);
    assert_int_equal(tria_sequence_get_info(a, &x, NULL), TRIA_OK);
    assert_int_equal(tria_sequence_get_info(b, &y, NULL), TRIA_OK);
    x.seconds = y.seconds = x.last_seconds = y.last_seconds = 0.0; /* the clock's */
    assert_memory_equal(&x, &y, sizeof(x));
    assert_int_equal(tria_sequence_should_compact(a), tria_sequence_should_compact(b));
    assert_int_equal(tria_sequence_intact_prefix(a), tria_sequence_intact_prefix(b));
    for (int32_t h = 0; h < 2; h++) {
        int32_t n;
        int32_t m;
        const int32_t *p = tria_sequence_positions(a, 1, h, &n);
        const int32_t *q = tria_sequence_positions(b, 1, h, &m);
        assert_int_equal(n, m);
        assert_memory_equal(p, q, sizeof(*p) * (size_t)n);
    }
}

/* Saved and loaded at every step: both sides have the same future. */
static void test_same_future_from_every_step(void **state)
{
    const tria_policy_params params = base();
    (void)state;
    for (int at = 0; at < N_STEPS; at++) {
        tria_sequence *original = NULL;
        tria_sequence *loaded = NULL;
        size_t size;
        assert_int_equal(tria_sequence_create(&params, NULL, &original, &error), TRIA_OK);
        for (int i = 0; i < at; i++) {
            step(original, &params, i);
        }
        unsigned char *blob = save(original, &size);
        if (tria_sequence_load(blob, size, NULL, &loaded, &error) != TRIA_OK) {
            fail_msg("step %d: %s", at, error.message);
        }
        same(original, loaded);
        for (int i = at; i < N_STEPS; i++) {
            step(original, &params, i);
            step(loaded, &params, i);
            same(original, loaded);
        }
        free(blob);
        tria_sequence_destroy(original);
        tria_sequence_destroy(loaded);
    }
}

static tria_sequence *grown(const tria_policy_params *params, int steps)
{
    tria_sequence *s = NULL;
    assert_int_equal(tria_sequence_create(params, NULL, &s, &error), TRIA_OK);
    for (int i = 0; i < steps; i++) {
        step(s, params, i);
    }
    return s;
}

static void test_any_flipped_bit_is_refused(void **state)
{
    static const int steps[3] = {0, 5, 60};
    const tria_policy_params params = base();
    (void)state;
    for (int k = 0; k < 3; k++) {
        tria_sequence *s = grown(&params, steps[k]);
        tria_sequence *loaded = NULL;
        size_t size;
        unsigned char *blob = save(s, &size);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            blob[bit / 8] ^= (unsigned char)(1U << (bit % 8));
            assert_int_equal(tria_sequence_load(blob, size, NULL, &loaded, &error), TRIA_E_FORMAT);
            assert_null(loaded);
            blob[bit / 8] ^= (unsigned char)(1U << (bit % 8));
        }
        for (size_t cut = 0; cut < size; cut++) {
            unsigned char *exact = malloc(cut + 1); /* so that sanitizers see over-reads */
            memcpy(exact, blob, cut);
            assert_int_equal(tria_sequence_load(exact, cut, NULL, &loaded, &error), TRIA_E_FORMAT);
            free(exact);
        }
        assert_int_equal(tria_sequence_load(blob, size, NULL, &loaded, &error), TRIA_OK);
        tria_sequence_destroy(loaded);
        free(blob);
        tria_sequence_destroy(s);
    }
}

static void *small_allocate(void *context, size_t size, size_t alignment)
{
    void *pointer = NULL;
    (void)context;
    return size <= 1 << 22 && posix_memalign(&pointer, alignment, size) == 0 ? pointer : NULL;
}
static void small_release(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

/* Changed bytes under a right checksum: refused, or a sequence that works. */
static void test_forged_blobs_do_no_harm(void **state)
{
    const tria_policy_params params = base();
    tria_env env = TRIA_ENV_INIT;
    uint32_t random = 12345;
    int accepted = 0;
    size_t size;
    (void)state;
    env.allocate = small_allocate;
    env.release = small_release;
    tria_sequence *s = grown(&params, 60);
    unsigned char *blob = save(s, &size);
    unsigned char *forged = malloc(size);
    for (int i = 0; i < 20000; i++) {
        tria_sequence *loaded = NULL;
        memcpy(forged, blob, size);
        for (int changes = 1 + i % 2; changes > 0; changes--) {
            random = random * 1664525U + 1013904223U;
            const size_t at = 20 + (random >> 8) % (size - 20);
            forged[at] = (unsigned char)((random >> 5 & 3) == 0 ? 0xff : random >> 4);
        }
        const uint32_t crc = tria_crc32c(0, forged + 20, size - 20);
        for (int b = 0; b < 4; b++) {
            forged[16 + b] = (unsigned char)(crc >> (8 * b));
        }
        if (tria_sequence_load(forged, size, &env, &loaded, &error) != TRIA_OK) {
            continue;
        }
        accepted++;
        tria_sequence_end_prefill(loaded, NULL);
        tria_sequence_append(loaded, 3, NULL);
        tria_sequence_rollback(loaded, 5, NULL);
        tria_sequence_shift(loaded, 2, 4, NULL);
        tria_event event;
        tria_keep keep;
        tria_event_init(&event);
        tria_keep_init(&keep);
        if (tria_sequence_event(loaded, &event, &keep, NULL) == TRIA_OK) {
            for (int32_t set = 0; set < 2; set++) {
                keep.counts[set] = event.rows != NULL ? event.rows[set] : event.n_rows;
                for (int32_t row = 0; row < keep.counts[set]; row++) {
                    keep.rows[set * keep.row_stride + row] = row;
                }
            }
            tria_sequence_commit(loaded, &keep, NULL, NULL);
        }
        tria_sequence_trim(loaded, 3, NULL);
        tria_sequence_destroy(loaded);
    }
    assert_true(accepted > 0 && accepted < 20000);
    free(forged);
    free(blob);
    tria_sequence_destroy(s);
}

/* Fails the n-th allocation. */
static int fail_at;
static int n_live;
static void *failing_allocate(void *context, size_t size, size_t alignment)
{
    void *pointer = NULL;
    (void)context;
    if (--fail_at == 0 || posix_memalign(&pointer, alignment, size) != 0) {
        return NULL;
    }
    n_live++;
    return pointer;
}
static void counting_release(void *context, void *pointer)
{
    (void)context;
    n_live--;
    free(pointer);
}

static void test_failing_allocations(void **state)
{
    const tria_policy_params params = base();
    tria_env env = TRIA_ENV_INIT;
    size_t size;
    tria_sequence *s = grown(&params, 30);
    unsigned char *blob = save(s, &size);
    (void)state;
    env.allocate = failing_allocate;
    env.release = counting_release;
    for (int kind = 0; kind < 3; kind++) {
        for (int n = 1;; n++) {
            tria_sequence *made = NULL;
            fail_at = n;
            const tria_status status = kind == 0   ? tria_sequence_create(&params, &env, &made, &error)
                                       : kind == 1 ? tria_sequence_fork(s, &env, &made, &error)
                                                   : tria_sequence_load(blob, size, &env, &made, &error);
            if (status == TRIA_OK) {
                assert_true(n > 8);
                tria_sequence_destroy(made);
                assert_int_equal(n_live, 0);
                break;
            }
            assert_int_equal(status, TRIA_E_MEMORY);
            assert_null(made);
            assert_int_equal(n_live, 0); /* nothing leaked */
        }
    }
    free(blob);
    tria_sequence_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_future_from_every_step),
        cmocka_unit_test(test_any_flipped_bit_is_refused),
        cmocka_unit_test(test_forged_blobs_do_no_harm),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

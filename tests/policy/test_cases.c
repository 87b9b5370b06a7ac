/*
 * test_cases.c - one test per way in which engines have got this wrong (specification, sections 6 and
 * 10), and per misuse. Keep sets are fake; test_engine.c does the same with real ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/fake_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tria_error error;

/* One shared keep set, 64 rows of 96, no prompt rules: each test changes what it is about. */
static tria_policy_params base(void)
{
    tria_policy_params params;
    tria_policy_params_init(&params);
    params.own_keep_sets = 1;
    params.mode = TRIA_MODE_UNION;
    params.budget = 64;
    params.interval = 16;
    params.n_recent = 8;
    params.n_sink = 2;
    params.capacity = 96;
    return params;
}

static tria_sequence *create(const tria_policy_params *params)
{
    tria_sequence *sequence = NULL;
    if (tria_sequence_create(params, NULL, &sequence, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return sequence;
}

static void refused(const tria_policy_params *params, tria_status expected, const char *names)
{
    tria_sequence *sequence = NULL;
    assert_int_equal(tria_sequence_create(params, NULL, &sequence, &error), expected);
    assert_int_equal(error.code, expected);
    assert_null(sequence);
    if (strstr(error.message, names) == NULL) {
        fail_msg("\"%s\" does not name %s", error.message, names);
    }
}

static void append(tria_sequence *s, int32_t n)
{
    if (tria_sequence_append(s, n, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

static tria_sequence_info info(const tria_sequence *s)
{
    tria_sequence_info result;
    tria_sequence_info_init(&result);
    assert_int_equal(tria_sequence_get_info(s, &result, NULL), TRIA_OK);
    return result;
}

static void prompt(tria_sequence *s, int32_t n)
{
    if (tria_sequence_begin_prefill(s, n, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    append(s, n);
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK);
}

/* Compacts one shared set with the rules of `params`; returns the event's copy. */
static tria_event compact(tria_sequence *s, const tria_policy_params *params)
{
    const fake_plan plan = {.seed = 7,
                            .n_sets = 1,
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
    fake_select(&plan, &event, &keep);
    if (tria_sequence_commit(s, &keep, NULL, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return event;
}

static void decode(tria_sequence *s, const tria_policy_params *params, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        append(s, 1);
        if (tria_sequence_should_compact(s)) {
            compact(s, params);
        }
    }
}

static void event_refused(tria_sequence *s, const char *names)
{
    const tria_sequence_info before = info(s);
    tria_event event;
    tria_event_init(&event);
    assert_int_equal(tria_sequence_event(s, &event, NULL, &error), TRIA_E_STATE);
    if (strstr(error.message, names) == NULL) {
        fail_msg("\"%s\" does not name %s", error.message, names);
    }
    const tria_sequence_info after = info(s);
    assert_memory_equal(&before, &after, sizeof(before));
}

/* ---- section 10 ---- */

static void test_row_count_is_not_t(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    decode(s, &params, 90);
    append(s, 6);
    const tria_event event = compact(s, &params);
    assert_int_equal(event.t, 96);
    assert_int_equal(event.n_rows, 80);
    tria_sequence_destroy(s);
}

static void test_tokens_counted_in_every_layer(void **state)
{
    tria_policy_params params = base();
    tria_event event;
    tria_keep keep;
    tria_sequence *s;
    (void)state;
    params.mode = TRIA_MODE_PER_LAYER;
    params.n_layers = 3;
    params.n_kv_heads = 2;
    s = create(&params);
    append(s, 80);
    tria_event_init(&event);
    tria_keep_init(&keep);
    assert_int_equal(tria_sequence_event(s, &event, &keep, &error), TRIA_OK);
    for (int32_t l = 0; l < 3; l++) { /* layer 0 keeps 12 rows, layer 2 keeps 70 */
        keep.counts[l] = 0;
        for (int32_t i = 0; i < 80; i++) {
            if (i < 2 || i >= 72 || (l == 2 && i < 62)) {
                keep.rows[l * keep.row_stride + keep.counts[l]++] = i;
            }
        }
    }
    assert_int_equal(tria_sequence_commit(s, &keep, NULL, &error), TRIA_OK);
    assert_int_equal(info(s).rows, 70); /* the longest, not layer 0's */
    assert_int_equal(info(s).rows_left, 70);
    int32_t n;
    tria_sequence_positions(s, 0, 1, &n);
    assert_int_equal(n, 10);
    append(s, 6);
    tria_event_init(&event);
    assert_int_equal(tria_sequence_event(s, &event, NULL, &error), TRIA_OK);
    assert_non_null(event.rows); /* each KV slot has its own N */
    assert_int_equal(event.rows[0], 16);
    assert_int_equal(event.rows[5], 76);
    tria_sequence_destroy(s);
}

static void test_layers_without_cache_take_no_part(void **state)
{
    static const int32_t kv_heads[4] = {0, 2, 0, 2}; /* a hybrid: attention in layers 1 and 3 only */
    tria_policy_params params = base();
    tria_event event;
    int32_t n;
    (void)state;
    params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    params.n_layers = 4;
    params.kv_heads = kv_heads;
    tria_sequence *s = create(&params);
    append(s, 20);
    assert_int_equal(info(s).n_sets, 4);
    assert_null(tria_sequence_positions(s, 0, 0, &n));
    assert_null(tria_sequence_positions(s, 1, 2, &n));
    assert_non_null(tria_sequence_positions(s, 3, 1, &n));
    assert_int_equal(n, 20);
    tria_event_init(&event);
    assert_int_equal(tria_sequence_event(s, &event, NULL, &error), TRIA_OK);
    assert_int_equal(event.positions[event.positions_layer_stride * 3 + event.positions_head_stride + 19],
                     19);
    tria_sequence_destroy(s);
}

static void test_percent_is_of_the_capacity(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.budget = 0;
    params.budget_percent = 50;
    params.interval = 8;
    tria_sequence *s = create(&params);
    assert_int_equal(info(s).budget, 48);
    decode(s, &params, 300); /* never of what is left: it does not shrink */
    assert_int_equal(info(s).budget, 48);
    assert_int_equal(info(s).rows_left, 48);
    tria_sequence_destroy(s);
    params.capacity = 100;
    params.budget_percent = 29; /* 29 / 100 * 100 is below 29 in binary */
    s = create(&params);
    assert_int_equal(info(s).budget, 29);
    tria_sequence_destroy(s);
    params.budget_percent = 101;
    refused(&params, TRIA_E_ARGUMENT, "budget_percent");
    params.budget_percent = 0.5;
    refused(&params, TRIA_E_ARGUMENT, "no row");
    params.budget = 10;
    refused(&params, TRIA_E_ARGUMENT, "both set");
}

static void test_prompt_in_the_budget_once(void **state)
{
    tria_policy_params params = base();
    (void)state;
    tria_sequence *s = create(&params);
    prompt(s, 20);
    decode(s, &params, 200);
    assert_int_equal(info(s).rows_left, 64); /* counted: the prompt is among the 64 */
    assert_int_equal(info(s).prompt_rows, 20);
    tria_sequence_destroy(s);
    params.count_prompt = 0;
    params.capacity = 100;
    s = create(&params);
    prompt(s, 20);
    assert_int_equal(info(s).effective_budget, 84);
    decode(s, &params, 200);
    assert_int_equal(info(s).rows_left, 84); /* not counted: beside them, once */
    tria_sequence_destroy(s);
}

static void test_budget_has_effect(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    decode(s, &params, 1000);
    assert_true(info(s).n_compactions > 50);
    assert_true(info(s).evicted == 1000 - info(s).rows);
    assert_true(info(s).peak_rows == 80);
    tria_sequence_destroy(s);
}

static void test_budget_below_window_refused(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.n_recent = 62; /* 62 + 2 sinks = 64 */
    refused(&params, TRIA_E_ARGUMENT, "n_recent 62 >= budget 64");
    params.n_recent = 61;
    tria_sequence_destroy(create(&params));
}

static void test_no_compaction_inside_prefill(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.protect_prefill = 0;
    params.capacity = 200;
    tria_sequence *s = create(&params);
    assert_int_equal(tria_sequence_begin_prefill(s, 150, &error), TRIA_OK);
    append(s, 149);
    assert_int_equal(tria_sequence_should_compact(s), 0);
    event_refused(s, "prompt");
    append(s, 1);
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK);
    assert_int_equal(tria_sequence_should_compact(s), 1);
    tria_sequence_destroy(s);
}

static void test_capacity_reaches_the_first_compaction(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.capacity = 79;
    refused(&params, TRIA_E_CAPACITY, "the capacity is 79");
    params.capacity = 80;
    tria_sequence_destroy(create(&params));
    params.in_flight = 1;
    refused(&params, TRIA_E_CAPACITY, "in_flight 1");
    params.tokens_per_page = 16; /* whole pages only: 95 rows are 80 */
    params.capacity = 95;
    refused(&params, TRIA_E_CAPACITY, "the capacity is 80");
    params.capacity = 96;
    tria_sequence_destroy(create(&params));
    params.capacity = 200;
    params.largest_budget = 190; /* a layer that weighs more keeps more */
    refused(&params, TRIA_E_CAPACITY, "budget 190");
}

static void test_capacity_from_bytes(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.capacity = 0;
    params.kv_bytes = 1000 * 100 + 999;
    params.bytes_per_row = 1000;
    params.tokens_per_page = 8;
    tria_sequence *s = create(&params);
    assert_int_equal(info(s).capacity, 96); /* 100 rows, 12 whole pages */
    tria_sequence_destroy(s);
    params.bytes_per_row = 0;
    refused(&params, TRIA_E_ARGUMENT, "bytes_per_row");
    params.bytes_per_row = 1000;
    params.capacity = 96;
    refused(&params, TRIA_E_ARGUMENT, "both set");
}

static void test_capacity_for_the_prompt(void **state)
{
    tria_policy_params params = base(); /* 96 rows, interval 16, recent 8 */
    (void)state;
    tria_sequence *s = create(&params);
    assert_int_equal(tria_sequence_begin_prefill(s, 73, &error), TRIA_E_CAPACITY); /* 73 + 8 + 16 = 97 */
    assert_non_null(strstr(error.message, "prompt of 73"));
    assert_int_equal(info(s).in_prefill, 0);
    assert_int_equal(tria_sequence_begin_prefill(s, 72, &error), TRIA_OK);
    tria_sequence_destroy(s);
    s = create(&params);
    append(s, 4); /* the sinks are outside the prompt now */
    assert_int_equal(tria_sequence_begin_prefill(s, 71, &error), TRIA_E_CAPACITY);
    assert_int_equal(tria_sequence_begin_prefill(s, 70, &error), TRIA_OK);
    tria_sequence_destroy(s);
    params.count_prompt = 0; /* the effective budget is 64 + prompt */
    s = create(&params);
    assert_int_equal(tria_sequence_begin_prefill(s, 17, &error), TRIA_E_CAPACITY);
    assert_int_equal(tria_sequence_begin_prefill(s, 16, &error), TRIA_OK);
    tria_sequence_destroy(s);
}

static void test_epoch_tells_captured_graphs(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    uint64_t epoch = info(s).epoch;
    decode(s, &params, 79);
    assert_int_equal(info(s).epoch, epoch); /* nothing moved yet */
    decode(s, &params, 1);
    assert_true(info(s).epoch > epoch);
    epoch = info(s).epoch;
    assert_int_equal(tria_sequence_trim(s, 70, &error), TRIA_OK);
    assert_true(info(s).epoch > epoch);
    epoch = info(s).epoch;
    assert_int_equal(tria_sequence_reset(s, &error), TRIA_OK);
    assert_true(info(s).epoch > epoch);
    tria_sequence_destroy(s);
}

static void test_mask_needs_the_position_table(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    int32_t n;
    int differing = 0;
    (void)state;
    decode(s, &params, 100);
    const int32_t *positions = tria_sequence_positions(s, 0, 0, &n);
    for (int32_t i = 0; i < n; i++) {
        differing += positions[i] != i;
        assert_true(i == 0 || positions[i] > positions[i - 1]);
    }
    assert_true(differing > 0); /* row numbers are no positions */
    assert_int_equal(positions[n - 1], 99);
    tria_sequence_destroy(s);
}

static void test_sinks_recent_and_prompt_cannot_be_evicted(void **state)
{
    static const int32_t losing[3] = {1, 25, 75}; /* a sink, a prompt row, a recent row */
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    tria_event event;
    tria_keep keep;
    (void)state;
    append(s, 20);
    prompt(s, 10);
    append(s, 50);
    tria_event_init(&event);
    tria_keep_init(&keep);
    assert_int_equal(tria_sequence_event(s, &event, &keep, &error), TRIA_OK);
    for (int i = 0; i < 3; i++) {
        keep.counts[0] = 0;
        for (int32_t row = 0; row < 80; row++) {
            if (row != losing[i]) {
                keep.rows[keep.counts[0]++] = row;
            }
        }
        assert_int_equal(tria_sequence_commit(s, &keep, NULL, &error), TRIA_E_ARGUMENT);
        assert_non_null(strstr(error.message, "protected position"));
    }
    assert_int_equal(info(s).rows, 80);
    tria_sequence_destroy(s);
}

static void test_prefix_cache_knows_the_holes(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    int32_t n;
    (void)state;
    append(s, 79);
    assert_int_equal(tria_sequence_intact_prefix(s), 79);
    decode(s, &params, 1);
    const int32_t intact = tria_sequence_intact_prefix(s);
    const int32_t *positions = tria_sequence_positions(s, 0, 0, &n);
    assert_true(intact >= 2 && intact < 64);
    for (int32_t i = 0; i < intact; i++) {
        assert_int_equal(positions[i], i);
    }
    assert_true(positions[intact] != intact);
    assert_int_equal(tria_sequence_trim(s, intact, &error), TRIA_OK); /* reuse of what is whole */
    append(s, 30);
    assert_int_equal(tria_sequence_intact_prefix(s), intact + 30);
    tria_sequence_destroy(s);
}

static void test_freed_pages_are_reported(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    tria_compaction done;
    tria_event event;
    tria_keep keep;
    (void)state;
    append(s, 80);
    tria_event_init(&event);
    tria_keep_init(&keep);
    tria_compaction_init(&done);
    assert_int_equal(tria_sequence_event(s, &event, &keep, &error), TRIA_OK);
    const fake_plan plan = {.n_sets = 1, .n_sink = 2, .n_recent = 8, .count_prompt = 1};
    fake_select(&plan, &event, &keep);
    done.bytes_moved = 12345;
    done.n_freed_pages = 3;
    assert_int_equal(tria_sequence_commit(s, &keep, &done, &error), TRIA_OK);
    assert_int_equal(info(s).pages_freed, 3);
    assert_int_equal(info(s).bytes_moved, 12345);
    tria_sequence_destroy(s);
}

static void test_speculative_step_crosses_periods(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.interval = 2;
    params.in_flight = 9;
    tria_sequence *s = create(&params);
    append(s, 64);
    append(s, 9); /* four periods at once */
    assert_int_equal(tria_sequence_should_compact(s), 1);
    compact(s, &params);
    assert_int_equal(info(s).n_compactions, 1);
    assert_int_equal(info(s).rows, 64);
    assert_int_equal(tria_sequence_should_compact(s), 0);
    tria_sequence_destroy(s);
}

static void test_off_is_off(void **state)
{
    tria_policy_params params = base();
    char line[256];
    (void)state;
    params.budget = 0;
    params.own_keep_sets = 0; /* nor is a calibration needed */
    params.capacity = 1000;
    tria_sequence *s = create(&params);
    append(s, 1000);
    assert_int_equal(tria_sequence_should_compact(s), 0);
    event_refused(s, "off");
    tria_sequence_describe(s, line, sizeof(line));
    assert_non_null(strstr(line, "policy: off (budget 0)"));
    assert_int_equal(tria_sequence_append(s, 1, &error), TRIA_E_CAPACITY);
    tria_sequence_destroy(s);
}

static void test_enabled_switch(void **state)
{
    tria_policy_params params = base();
    char line[256];
    (void)state;
    params.capacity = 300;
    tria_sequence *s = create(&params);
    assert_int_equal(tria_sequence_set_enabled(s, 0, &error), TRIA_OK);
    decode(s, &params, 200);
    assert_int_equal(info(s).rows, 200);
    event_refused(s, "disabled");
    tria_sequence_describe(s, line, sizeof(line));
    assert_non_null(strstr(line, "off (disabled)"));
    assert_int_equal(tria_sequence_set_enabled(s, 1, &error), TRIA_OK);
    assert_int_equal(tria_sequence_should_compact(s), 1);
    decode(s, &params, 1);
    assert_int_equal(info(s).rows, 64);
    tria_sequence_destroy(s);
}

static void test_settings_live_in_the_handle(void **state)
{
    tria_policy_params small = base();
    tria_policy_params large = base();
    (void)state;
    large.budget = 200;
    large.interval = 50;
    large.capacity = 250;
    tria_sequence *a = create(&small);
    tria_sequence *b = create(&large);
    for (int32_t i = 0; i < 300; i++) { /* side by side in one process */
        decode(a, &small, 1);
        decode(b, &large, 1);
    }
    assert_int_equal(info(a).rows_left, 64);
    assert_int_equal(info(b).rows_left, 200);
    assert_int_equal(info(a).n_compactions, 14);
    assert_int_equal(info(b).n_compactions, 2);
    tria_sequence_destroy(a);
    tria_sequence_destroy(b);
}

static void test_nothing_evicted_shows(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    char line[256];
    (void)state;
    decode(s, &params, 70);
    assert_int_equal(info(s).evicted, 0);
    assert_int_equal(info(s).n_compactions, 0);
    tria_sequence_describe(s, line, sizeof(line));
    assert_non_null(strstr(line, "0 compactions"));
    tria_sequence_destroy(s);
}

static void test_budget_without_calibration_refused(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.own_keep_sets = 0;
    refused(&params, TRIA_E_ARGUMENT, "no calibration");
}

static void test_over_budget_does_not_fire_at_every_token(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.capacity = 200;
    tria_sequence *s = create(&params);
    prompt(s, 100); /* protected, beyond the budget */
    decode(s, &params, 1);
    assert_int_equal(info(s).n_compactions, 1);
    assert_int_equal(info(s).rows, 101); /* nothing could go */
    decode(s, &params, 15);
    assert_int_equal(info(s).n_compactions, 1);
    decode(s, &params, 1);
    assert_int_equal(info(s).n_compactions, 2);
    assert_int_equal(info(s).rows, 108); /* prompt and recent rows */
    tria_sequence_destroy(s);
}

static void test_tokens_in_flight_never_move(void **state)
{
    tria_policy_params params = base();
    int32_t n;
    (void)state;
    params.in_flight = 7;
    params.capacity = 100;
    tria_sequence *s = create(&params);
    append(s, 77);
    append(s, 5);
    assert_int_equal(tria_sequence_should_compact(s), 1);
    assert_int_equal(tria_sequence_set_in_flight(s, 5, &error), TRIA_OK);
    assert_int_equal(tria_sequence_should_compact(s), 0); /* put off */
    event_refused(s, "5 tokens in flight would move");
    assert_int_equal(tria_sequence_append(s, 3, &error), TRIA_E_CAPACITY); /* 8 of 7 */
    assert_int_equal(tria_sequence_rollback(s, 2, &error), TRIA_OK);
    assert_int_equal(info(s).in_flight, 3);
    assert_int_equal(tria_sequence_set_in_flight(s, 0, &error), TRIA_OK);
    assert_int_equal(tria_sequence_should_compact(s), 1);
    compact(s, &params);
    assert_int_equal(tria_sequence_rollback(s, 1, &error), TRIA_E_STATE);
    tria_sequence_destroy(s);

    params.in_place = 1; /* cells: compaction goes on, and they may still be rolled back */
    s = create(&params);
    append(s, 82);
    assert_int_equal(tria_sequence_set_in_flight(s, 5, &error), TRIA_OK);
    assert_int_equal(tria_sequence_should_compact(s), 1);
    compact(s, &params);
    const int32_t *positions = tria_sequence_positions(s, 0, 0, &n);
    assert_int_equal(n, 64);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(positions[n - 5 + i], 77 + i);
    }
    assert_int_equal(tria_sequence_rollback(s, 5, &error), TRIA_OK);
    assert_int_equal(info(s).rows, 59);
    tria_sequence_destroy(s);
}

static void test_prefill_compaction_with_protection_is_an_error(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.allow_prefill_compaction = 1;
    tria_sequence *s = create(&params); /* protect_prefill is on */
    assert_int_equal(tria_sequence_begin_prefill(s, 500, &error), TRIA_E_CAPACITY);
    tria_sequence_destroy(s);
    params.protect_prefill = 0;
    s = create(&params);
    assert_int_equal(tria_sequence_begin_prefill(s, 500, &error), TRIA_OK);
    for (int32_t i = 0; i < 500; i += 25) {
        append(s, 25);
        if (tria_sequence_should_compact(s)) {
            compact(s, &params);
        }
    }
    assert_int_equal(info(s).peak_rows, 64 + 25);
    tria_sequence_destroy(s);
}

static void test_cancelled_prompt(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    assert_int_equal(tria_sequence_begin_prefill(s, 50, &error), TRIA_OK);
    append(s, 12);
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK); /* the rest never came */
    assert_int_equal(info(s).prompt_rows, 12);
    assert_int_equal(tria_sequence_begin_prefill(s, 50, &error), TRIA_OK);
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK); /* nor any of this one */
    assert_int_equal(info(s).prompt_rows, 12);
    assert_int_equal(tria_sequence_trim(s, 0, &error), TRIA_OK);
    assert_int_equal(info(s).prompt_rows, 0);
    assert_int_equal(tria_sequence_intact_prefix(s), 0);
    tria_sequence_destroy(s);
}

static void test_context_shift(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    int32_t n;
    (void)state;
    prompt(s, 10);
    append(s, 30);
    assert_int_equal(tria_sequence_shift(s, 4, 24, &error), TRIA_OK);
    const int32_t *positions = tria_sequence_positions(s, 0, 0, &n);
    assert_int_equal(n, 20);
    assert_int_equal(positions[19], 19);
    assert_int_equal(info(s).t, 20);
    assert_int_equal(info(s).prompt_rows, 4);
    assert_int_equal(tria_sequence_intact_prefix(s), 4); /* the rest are other tokens */
    assert_int_equal(tria_sequence_shift(s, 10, 30, &error), TRIA_E_ARGUMENT);
    tria_sequence_destroy(s);
}

static void test_bound_rows(void **state)
{
    tria_policy_params params = base();
    (void)state;
    params.row_bucket = 36;
    tria_sequence *s = create(&params);
    assert_int_equal(tria_sequence_bound_rows(s), 0);
    append(s, 1);
    assert_int_equal(tria_sequence_bound_rows(s), 36);
    append(s, 36);
    assert_int_equal(tria_sequence_bound_rows(s), 72);
    append(s, 36);
    assert_int_equal(tria_sequence_bound_rows(s), 96); /* never beyond the capacity */
    tria_sequence_destroy(s);
}

/* ---- misuse ---- */

static void test_compact_before_append(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    event_refused(s, "no row was appended");
    tria_sequence_destroy(s);
}

static void test_commit_without_event(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    tria_event event;
    tria_keep keep;
    (void)state;
    append(s, 80);
    tria_event_init(&event);
    tria_keep_init(&keep);
    assert_int_equal(tria_sequence_event(s, &event, &keep, &error), TRIA_OK);
    keep.counts[0] = 80;
    for (int32_t i = 0; i < 80; i++) {
        keep.rows[i] = i;
    }
    append(s, 1); /* abandons it: the event is of 80 rows */
    assert_int_equal(tria_sequence_commit(s, &keep, NULL, &error), TRIA_E_STATE);
    assert_int_equal(info(s).n_compactions, 0);
    tria_sequence_destroy(s);
}

static void test_rollback_past_a_compaction(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    decode(s, &params, 85); /* compacted at 80 */
    assert_int_equal(tria_sequence_rollback(s, 6, &error), TRIA_E_STATE);
    assert_non_null(strstr(error.message, "evicted or moved"));
    assert_int_equal(info(s).t, 85);
    assert_int_equal(tria_sequence_rollback(s, 5, &error), TRIA_OK);
    assert_int_equal(tria_sequence_rollback(s, 81, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_sequence_rollback(s, -1, &error), TRIA_E_ARGUMENT);
    tria_sequence_destroy(s);
}

static void test_more_than_the_prompt(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_E_STATE);
    assert_int_equal(tria_sequence_begin_prefill(s, 10, &error), TRIA_OK);
    assert_int_equal(tria_sequence_begin_prefill(s, 10, &error), TRIA_E_STATE);
    assert_int_equal(tria_sequence_append(s, 11, &error), TRIA_E_STATE);
    append(s, 10);
    assert_int_equal(tria_sequence_append(s, 1, &error), TRIA_E_STATE);
    assert_int_equal(tria_sequence_end_prefill(s, &error), TRIA_OK);
    append(s, 1);
    tria_sequence_destroy(s);
}

static void test_beyond_capacity(void **state)
{
    const tria_policy_params params = base();
    tria_sequence *s = create(&params);
    (void)state;
    append(s, 90);
    assert_int_equal(tria_sequence_room(s), 6);
    assert_int_equal(tria_sequence_append(s, 7, &error), TRIA_E_CAPACITY);
    assert_non_null(strstr(error.message, "the capacity is 96"));
    assert_int_equal(tria_sequence_append(s, INT32_MAX, &error), TRIA_E_CAPACITY);
    assert_int_equal(tria_sequence_append(s, -1, &error), TRIA_E_ARGUMENT);
    assert_int_equal(info(s).rows, 90);
    tria_sequence_destroy(s);
}

static void test_null_handles(void **state)
{
    (void)state;
    assert_int_equal(tria_sequence_append(NULL, 1, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_sequence_commit(NULL, NULL, NULL, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_sequence_should_compact(NULL), -1);
    assert_int_equal(tria_sequence_fork(NULL, NULL, NULL, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_sequence_create(NULL, NULL, NULL, &error), TRIA_E_ARGUMENT);
    tria_sequence_destroy(NULL);
}

static void test_settings_out_of_range(void **state)
{
    static const double bad_ramp[2] = {10, 0};
    const struct {
        size_t offset;
        int32_t value;
        const char *names;
    } bad[] = {
        {offsetof(tria_policy_params, budget), -1, "budget"},
        {offsetof(tria_policy_params, interval), 0, "interval"},
        {offsetof(tria_policy_params, n_recent), -1, "n_recent"},
        {offsetof(tria_policy_params, n_sink), -1, "n_sink"},
        {offsetof(tria_policy_params, in_flight), -1, "in_flight"},
        {offsetof(tria_policy_params, row_bucket), 0, "row_bucket"},
        {offsetof(tria_policy_params, mode), 5, "mode 5"},
        {offsetof(tria_policy_params, order), 2, "order 2"},
        {offsetof(tria_policy_params, tokens_per_page), -1, "tokens_per_page"},
        {offsetof(tria_policy_params, largest_budget), 63, "largest_budget"},
        {offsetof(tria_policy_params, n_ramp), 17, "n_ramp"},
        {offsetof(tria_policy_params, n_ramp), 1, "ramp"},
        {offsetof(tria_policy_params, n_layers), 5000, "n_layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tria_policy_params params = base();
        memcpy((char *)&params + bad[i].offset, &bad[i].value, sizeof(bad[i].value));
        refused(&params, TRIA_E_ARGUMENT, bad[i].names);
    }
    tria_policy_params params = base();
    params.n_ramp = 2;
    params.ramp = bad_ramp;
    refused(&params, TRIA_E_ARGUMENT, "ramp[1]");
    params = base();
    params.in_place = 1;
    params.order = TRIA_ORDER_FILL_HOLES;
    refused(&params, TRIA_E_ARGUMENT, "in_place");
    params = base();
    params.mode = TRIA_MODE_PER_HEAD; /* needs to know its heads */
    refused(&params, TRIA_E_ARGUMENT, "n_layers");
    params = base();
    params.struct_size += 8; /* of a newer library, with something set */
    struct {
        tria_policy_params known;
        int64_t newer;
    } larger = {params, 1};
    refused(&larger.known, TRIA_E_ARGUMENT, "tria_policy_params");
    larger.newer = 0;
    tria_sequence_destroy(create(&larger.known));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_count_is_not_t),
        cmocka_unit_test(test_tokens_counted_in_every_layer),
        cmocka_unit_test(test_layers_without_cache_take_no_part),
        cmocka_unit_test(test_percent_is_of_the_capacity),
        cmocka_unit_test(test_prompt_in_the_budget_once),
        cmocka_unit_test(test_budget_has_effect),
        cmocka_unit_test(test_budget_below_window_refused),
        cmocka_unit_test(test_no_compaction_inside_prefill),
        cmocka_unit_test(test_capacity_reaches_the_first_compaction),
        cmocka_unit_test(test_capacity_from_bytes),
        cmocka_unit_test(test_capacity_for_the_prompt),
        cmocka_unit_test(test_epoch_tells_captured_graphs),
        cmocka_unit_test(test_mask_needs_the_position_table),
        cmocka_unit_test(test_sinks_recent_and_prompt_cannot_be_evicted),
        cmocka_unit_test(test_prefix_cache_knows_the_holes),
        cmocka_unit_test(test_freed_pages_are_reported),
        cmocka_unit_test(test_speculative_step_crosses_periods),
        cmocka_unit_test(test_off_is_off),
        cmocka_unit_test(test_enabled_switch),
        cmocka_unit_test(test_settings_live_in_the_handle),
        cmocka_unit_test(test_nothing_evicted_shows),
        cmocka_unit_test(test_budget_without_calibration_refused),
        cmocka_unit_test(test_over_budget_does_not_fire_at_every_token),
        cmocka_unit_test(test_tokens_in_flight_never_move),
        cmocka_unit_test(test_prefill_compaction_with_protection_is_an_error),
        cmocka_unit_test(test_cancelled_prompt),
        cmocka_unit_test(test_context_shift),
        cmocka_unit_test(test_bound_rows),
        cmocka_unit_test(test_compact_before_append),
        cmocka_unit_test(test_commit_without_event),
        cmocka_unit_test(test_rollback_past_a_compaction),
        cmocka_unit_test(test_more_than_the_prompt),
        cmocka_unit_test(test_beyond_capacity),
        cmocka_unit_test(test_null_handles),
        cmocka_unit_test(test_settings_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_trace.c - recording compactions and replaying them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crc32c.h"
#include "policy/engine.h"
#include "tria/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];
static const engine_shape shape = {2, 4, 2, 16, TRIA_DTYPE_F16};

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/tria-trace-%ld", (long)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    remove(path);
    return 0;
}

static tria_policy_params base_policy(int32_t mode, int32_t order)
{
    tria_policy_params params;
    tria_policy_params_init(&params);
    params.budget = 24;
    params.interval = 8;
    params.n_recent = 6;
    params.n_sink = 2;
    params.capacity = 48;
    params.mode = mode;
    params.order = order;
    return params;
}

static tria_trace *open_trace(int32_t content, int32_t dump)
{
    tria_trace_params params = TRIA_TRACE_PARAMS_INIT;
    tria_trace *trace;
    tria_error error;
    params.path = path;
    params.content = content;
    params.dump = dump;
    if (tria_trace_create(&params, NULL, &trace, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return trace;
}

/* A prompt and n tokens, recorded. */
static void record(int32_t mode, int32_t order, int32_t content, int32_t dump, int32_t n,
                   tria_status expected_at_close)
{
    const tria_policy_params params = base_policy(mode, order);
    tria_trace *trace = open_trace(content, dump);
    int32_t ids[10] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    tria_error error;
    engine e;
    engine_open(&e, &shape, &params, NULL, NULL);
    assert_int_equal(tria_sequence_set_trace(e.sequence, trace, NULL), TRIA_OK);
    assert_int_equal(tria_sequence_begin_prefill(e.sequence, 10, NULL), TRIA_OK);
    engine_write(&e, 10);
    assert_int_equal(tria_trace_tokens(trace, 0, ids, 10, 1, NULL), TRIA_OK);
    assert_int_equal(tria_sequence_end_prefill(e.sequence, NULL), TRIA_OK);
    for (int32_t i = 0; i < n; i++) {
        engine_decode(&e, 1);
        assert_int_equal(tria_trace_tokens(trace, 10 + i, ids, 1, 0, NULL), TRIA_OK);
    }
    engine_check(&e);
    assert_int_equal(tria_trace_close(trace, &error), expected_at_close);
    engine_close(&e);
}

static tria_replay_report replayed(tria_device *device)
{
    tria_replay_params params;
    tria_replay_report report;
    tria_error error;
    tria_replay_params_init(&params);
    tria_replay_report_init(&report);
    params.device = device;
    if (tria_trace_replay(path, &params, NULL, &report, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return report;
}

/* What was recorded on the CPU comes out again, in every mode and order, cache and moves included. */
static void test_replay_agrees(void **state)
{
    (void)state;
    for (int32_t mode = 0; mode < 5; mode++) {
        for (int32_t order = 0; order < 2; order++) {
            record(mode, order, TRIA_TRACE_CACHE, 0, 40, TRIA_OK);
            const tria_replay_report report = replayed(NULL);
            assert_int_equal(report.n_compactions, 3);
            assert_int_equal(report.n_replayed, 3);
            assert_int_equal(report.n_exact, report.n_sets);
            assert_true(report.n_sets >= 3);
            assert_int_equal(report.n_cache_compared, 3);
            assert_int_equal(report.n_cache_differs, 0);
            assert_true(report.min_jaccard == 1.0 && report.mean_jaccard == 1.0);
            assert_true(report.max_score_error == 0.0);
            assert_int_equal(report.n_evicted, report.n_sets * 8);
            assert_int_equal(report.complete, 1);
            assert_int_equal(report.dump_missing, 0);
        }
    }
}

/* The double-precision backend agrees with what float32 recorded, but not to the last bit. */
static void test_replay_on_another_backend(void **state)
{
    tria_backends *backends;
    tria_device *device;
    tria_error error;
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_KEYS, 0, 40, TRIA_OK);
    assert_int_equal(tria_backends_create(NULL, NULL, &backends, &error), TRIA_OK);
    assert_int_equal(tria_device_open(backends, "reference", NULL, &device, &error), TRIA_OK);
    const tria_replay_report report = replayed(device);
    assert_int_equal(report.n_replayed, 3);
    assert_int_equal(report.n_exact, report.n_sets);
    assert_true(report.max_score_error > 0.0 && report.max_score_error < 1e-4);
    tria_device_close(device);
    tria_backends_destroy(backends);
}

/* Prompt rows that are in the trace are counted once. */
static void test_prompt_counted_once(void **state)
{
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_KEYS, 0, 40, TRIA_OK);
    tria_replay_report report = replayed(NULL);
    assert_int_equal(report.n_tokens, 50);
    assert_int_equal(report.n_prompt_tokens, 10);
    tria_trace *trace = open_trace(TRIA_TRACE_KEYS, 0);
    const int32_t ids[4] = {1, 2, 3, 4};
    assert_int_equal(tria_trace_tokens(trace, 0, ids, 4, 1, NULL), TRIA_OK);
    assert_int_equal(tria_trace_tokens(trace, 0, ids, 4, 1, NULL), TRIA_OK); /* fed again */
    assert_int_equal(tria_trace_close(trace, NULL), TRIA_OK);
    report = replayed(NULL);
    assert_int_equal(report.n_tokens, 4);
    assert_int_equal(report.n_prompt_tokens, 4);
    assert_int_equal(report.n_evicted, 0); /* and it says that nothing was ever evicted */
}

static void test_decisions_only(void **state)
{
    (void)state;
    record(TRIA_MODE_UNION, TRIA_ORDER_STABLE, TRIA_TRACE_DECISIONS, 0, 40, TRIA_OK);
    const tria_replay_report report = replayed(NULL);
    assert_int_equal(report.n_compactions, 3);
    assert_int_equal(report.n_replayed, 0);
    assert_int_equal(report.n_evicted, 24);
}

static void test_dump_the_second_then_stop(void **state)
{
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_KEYS, 2, 40, TRIA_OK);
    const tria_replay_report report = replayed(NULL);
    assert_int_equal(report.n_compactions, 1);
    assert_int_equal(report.n_exact, 2);
}

static void test_done_after_the_dump(void **state)
{
    const tria_policy_params params = base_policy(TRIA_MODE_UNION, TRIA_ORDER_STABLE);
    tria_trace *trace = open_trace(TRIA_TRACE_KEYS, 2);
    engine e;
    (void)state;
    engine_open(&e, &shape, &params, NULL, NULL);
    assert_int_equal(tria_sequence_set_trace(e.sequence, trace, NULL), TRIA_OK);
    engine_decode(&e, 32);
    assert_int_equal(tria_trace_done(trace), 0);
    engine_decode(&e, 8);
    assert_int_equal(tria_trace_done(trace), 1);
    assert_int_equal(tria_trace_close(trace, NULL), TRIA_OK);
    engine_close(&e);
}

static void test_dump_that_never_fired_is_reported(void **state)
{
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_KEYS, 9, 40, TRIA_E_STATE);
    assert_int_equal(replayed(NULL).dump_missing, 9);
}

/* An engine that frees cells records the decision with begin() and end(NULL). */
static void test_engine_that_frees_cells(void **state)
{
    const tria_policy_params params = base_policy(TRIA_MODE_UNION, TRIA_ORDER_STABLE);
    tria_trace *trace = open_trace(TRIA_TRACE_CACHE, 0);
    tria_event event;
    tria_keep keep;
    tria_batch batch;
    engine e;
    (void)state;
    engine_open(&e, &shape, &params, NULL, NULL);
    engine_write(&e, 32);
    tria_event_init(&event);
    tria_keep_init(&keep);
    tria_batch_init(&batch);
    assert_int_equal(tria_sequence_event(e.sequence, &event, &keep, NULL), TRIA_OK);
    event.kv = &e.view;
    batch.events = &event;
    batch.n_events = 1;
    assert_int_equal(tria_plan_select(e.plan, &batch, NULL, &keep, NULL), TRIA_OK);
    assert_int_equal(tria_trace_begin(trace, e.plan, &event, &keep, NULL), TRIA_OK);
    assert_int_equal(tria_trace_end(trace, NULL, NULL), TRIA_OK);
    assert_int_equal(tria_trace_close(trace, NULL), TRIA_OK);
    const tria_replay_report report = replayed(NULL);
    assert_int_equal(report.n_replayed, 1);
    assert_int_equal(report.n_exact, 1);
    assert_int_equal(report.n_cache_compared, 0);
    engine_close(&e);
}

static unsigned char *load(size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *bytes = malloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    assert_true(*size > 0 && *size < 1 << 20);
    fclose(file);
    return bytes;
}

static void store(const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static uint32_t u32_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(unsigned char *p, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (unsigned char)(value >> (8 * i));
    }
}

/* The first record of that type: its prefix, and the payload's size. */
static unsigned char *find_record(unsigned char *bytes, size_t size, uint32_t type, size_t *payload)
{
    for (size_t at = 8; at + 16 <= size; at += 16 + *payload) {
        *payload = u32_at(bytes + at + 8);
        if (u32_at(bytes + at) == type) {
            return bytes + at;
        }
    }
    fail();
    return NULL;
}

/* Seals a changed payload again. */
static void reseal(unsigned char *record_prefix, size_t payload)
{
    put_u32(record_prefix + 4, tria_crc32c(0, record_prefix + 16, payload));
}

typedef struct difference {
    int n;
    tria_replay_set first;
} difference;

static void take_difference(void *context, const tria_replay_set *set)
{
    difference *d = context;
    if (set->first_row >= 0 && d->n++ == 0) {
        d->first = *set;
    }
}

/* A recorded set that is not what the keys give: named with head, row and position. */
static void test_difference_is_named(void **state)
{
    size_t size;
    size_t payload = 0;
    tria_replay_params params;
    tria_replay_report report;
    tria_error error;
    difference d = {0, {0}};
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_KEYS, 1, 40, TRIA_OK);
    unsigned char *bytes = load(&size);
    unsigned char *prefix = find_record(bytes, size, 3, &payload);
    /* The second set's last row but recent ones: its keep rows end 16 (report) + 4 + ... before the end;
     * find them as the last run of 24 ascending numbers below 32 that ends with 31. */
    unsigned char *end = prefix + 16 + payload;
    unsigned char *count = NULL;
    for (unsigned char *p = prefix + 16; p + 4 * 25 <= end; p++) {
        bool ascending = u32_at(p) == 24 && u32_at(p + 4 * 24) == 31;
        for (int i = 2; ascending && i <= 24; i++) {
            ascending = u32_at(p + 4 * i) > u32_at(p + 4 * (i - 1)) && u32_at(p + 4 * i) < 32;
        }
        count = ascending ? p : count;
    }
    if (count == NULL) {
        fail();
        return;
    }
    /* Swap one kept candidate for one that was evicted beside it. */
    uint32_t from = 0;
    uint32_t to = 0;
    for (int i = 11; i < 18 && to == 0; i++) {
        from = u32_at(count + 4 * i);
        if (u32_at(count + 4 * (i + 1)) > from + 1) {
            to = from + 1;
            put_u32(count + 4 * i, to);
        }
    }
    assert_true(to > 0);
    reseal(prefix, payload);
    store(bytes, size);
    tria_replay_params_init(&params);
    tria_replay_report_init(&report);
    params.on_set = take_difference;
    params.context = &d;
    assert_int_equal(tria_trace_replay(path, &params, NULL, &report, &error), TRIA_OK);
    assert_int_equal(report.n_sets, 2);
    assert_int_equal(report.n_exact, 1);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.first.compaction, 1);
    assert_int_equal(d.first.kv_head, 1);
    assert_int_equal(d.first.first_row, from);
    assert_int_equal(d.first.first_position, from);
    assert_int_equal(d.first.first_recorded, 0);
    assert_int_equal(d.first.n_common, 23);
    assert_true(fabs(d.first.jaccard - 23.0 / 25.0) < 1e-12);
    free(bytes);
}

/* Damage is found, whatever it hits; with its checksum put right it must still do no harm. */
static void test_damaged_files_refused(void **state)
{
    size_t size;
    tria_replay_report report;
    tria_error error;
    (void)state;
    record(TRIA_MODE_PER_HEAD, TRIA_ORDER_STABLE, TRIA_TRACE_CACHE, 1, 40, TRIA_OK);
    unsigned char *bytes = load(&size);
    tria_replay_report_init(&report);
    for (size_t i = 0; i<size; i += size> 4000 ? 97 : 7) {
        bytes[i] ^= (unsigned char)(1U << (i % 8));
        store(bytes, size);
        assert_int_equal(tria_trace_replay(path, NULL, NULL, &report, &error), TRIA_E_FORMAT);
        bytes[i] ^= (unsigned char)(1U << (i % 8));
    }
    for (size_t cut = 1; cut < size; cut += 211) {
        store(bytes, size - cut);
        const tria_status status = tria_trace_replay(path, NULL, NULL, &report, &error);
        assert_true(status == TRIA_E_FORMAT || (status == TRIA_OK && report.complete == 0));
    }
    for (uint32_t type = 2; type <= 3; type++) {
        size_t payload = 0;
        unsigned char *prefix = find_record(bytes, size, type, &payload);
        uint32_t random = 1;
        for (int i = 0; i < 400; i++) {
            random = random * 1664525U + 1013904223U;
            unsigned char *p = prefix + 16 + (random >> 8) % (i % 2 == 0 ? 128 : (uint32_t)payload);
            const unsigned char old = *p;
            *p = (unsigned char)(random >> 3);
            reseal(prefix, payload);
            store(bytes, size);
            tria_trace_replay(path, NULL, NULL, &report, &error); /* must not crash */
            *p = old;
        }
        reseal(prefix, payload);
    }
    free(bytes);
}

static void test_missing_file(void **state)
{
    tria_replay_report report;
    tria_trace_params params = TRIA_TRACE_PARAMS_INIT;
    tria_trace *trace = NULL;
    tria_error error;
    (void)state;
    tria_replay_report_init(&report);
    assert_int_equal(tria_trace_replay("/nonexistent/trace", NULL, NULL, &report, &error), TRIA_E_IO);
    params.path = "/nonexistent/trace";
    assert_int_equal(tria_trace_create(&params, NULL, &trace, &error), TRIA_E_IO);
    assert_null(trace);
}

/* Layers of different kinds, int8 rows with scales, signs: everything a plan record must carry. */
static void test_rich_geometry(void **state)
{
    enum { L = 3, HKV = 2, HQ = 4, D = 16, N = 40 };
    static int8_t keys[L][N][HKV][D];
    static float scales[L][N][HKV];
    static int32_t keep_rows[L * HKV * N];
    static int32_t keep_counts[L * HKV];
    float signs[D];
    tria_layer_params layers[L];
    tria_layer_view views[L];
    tria_model_params model_params = TRIA_MODEL_PARAMS_INIT;
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_model *model;
    tria_calibration *calibration;
    tria_plan_params params;
    tria_plan *plan;
    tria_event event;
    tria_keep keep;
    tria_batch batch;
    tria_error error;
    uint32_t random = 99;
    (void)state;
    memset(views, 0, sizeof(views));
    for (int32_t l = 0; l < L; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = HQ;
        layers[l].n_kv_heads = HKV;
        layers[l].head_dim = D;
        layers[l].rope_style = TRIA_ROPE_INTERLEAVED;
        layers[l].window = l == 1 ? 8 : 0;
        layers[l].kv_source = l == 2 ? 0 : -1;
        for (int32_t i = 0; i < N * HKV * D; i++) {
            random = random * 1664525U + 1013904223U;
            (&keys[l][0][0][0])[i] = (int8_t)(random >> 24);
        }
        for (int32_t i = 0; i < N * HKV; i++) {
            (&scales[l][0][0])[i] = 0.001F * (float)(1 + i % 7);
        }
        if (l == 2) {
            continue; /* reads layer 0's cache */
        }
        views[l].k = (tria_tensor){.base = keys[l],
                                   .token_stride = HKV * D,
                                   .head_stride = D,
                                   .dtype = TRIA_DTYPE_INT8,
                                   .dim = D,
                                   .scale_kind = TRIA_SCALE_ROW,
                                   .scales = scales[l],
                                   .scale_token_stride = HKV * (int64_t)sizeof(float),
                                   .scale_head_stride = sizeof(float)};
    }
    for (int32_t d = 0; d < D; d++) {
        signs[d] = d % 3 == 0 ? -1.0F : 1.0F;
    }
    model_params.layers = layers;
    model_params.n_layers = L;
    assert_int_equal(tria_model_create(&model_params, NULL, &model, &error), TRIA_OK);
    assert_int_equal(tria_calibration_create(model, NULL, &calibration, &error), TRIA_OK);
    for (int32_t l = 0; l < L; l++) {
        for (int32_t h = 0; h < HQ - l; h++) { /* some heads are not calibrated */
            float stats[3][D / 2];
            for (int32_t f = 0; f < D / 2; f++) {
                random = random * 1664525U + 1013904223U;
                stats[0][f] = (float)(random >> 8 & 1023U) / 1024.0F - 0.5F;
                stats[1][f] = (float)(random >> 18 & 1023U) / 1024.0F - 0.5F;
                stats[2][f] = 1.0F;
            }
            const tria_head_stats head = {sizeof(head), stats[0], stats[1], stats[2], NULL, NULL};
            assert_int_equal(tria_calibration_set_head(calibration, l, h, &head, &error), TRIA_OK);
        }
    }
    view.layers = views;
    view.n_layers = L;
    view.k_state = TRIA_K_HADAMARD;
    view.hadamard_size = 8;
    view.hadamard_signs = signs;
    tria_plan_params_init(&params);
    params.model = model;
    params.calibration = calibration;
    params.layout = &view;
    params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    params.offsets = TRIA_AGGREGATE_MAX;
    params.budget = 20;
    params.n_sink = 1;
    params.n_recent = 4;
    params.pool_radius = 1;
    params.max_rows = N;
    if (tria_plan_create(&params, NULL, &plan, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    const int32_t pins[1] = {7};
    tria_event_init(&event);
    event.kv = &view;
    event.t = 1000;
    event.n_rows = N;
    event.pins = pins;
    event.n_pins = 1;
    tria_keep_init(&keep);
    keep.rows = keep_rows;
    keep.counts = keep_counts;
    keep.row_stride = N;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    if (tria_plan_select(plan, &batch, NULL, &keep, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    tria_trace *trace = open_trace(TRIA_TRACE_KEYS, 0);
    if (tria_trace_begin(trace, plan, &event, &keep, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(tria_trace_end(trace, NULL, &error), TRIA_OK);
    assert_int_equal(tria_trace_close(trace, &error), TRIA_OK);
    const tria_replay_report report = replayed(NULL);
    assert_int_equal(report.n_sets, 4);
    assert_int_equal(report.n_exact, 4);
    assert_true(report.max_score_error == 0.0);
    tria_plan_destroy(plan);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_agrees),
        cmocka_unit_test(test_replay_on_another_backend),
        cmocka_unit_test(test_prompt_counted_once),
        cmocka_unit_test(test_decisions_only),
        cmocka_unit_test(test_dump_the_second_then_stop),
        cmocka_unit_test(test_done_after_the_dump),
        cmocka_unit_test(test_dump_that_never_fired_is_reported),
        cmocka_unit_test(test_engine_that_frees_cells),
        cmocka_unit_test(test_difference_is_named),
        cmocka_unit_test(test_damaged_files_refused),
        cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_rich_geometry),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}

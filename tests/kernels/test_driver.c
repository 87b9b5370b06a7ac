/*
 * test_driver.c - the backend's host code when the driver fails: no device, memory that runs out at every
 * single allocation, launches that fail, a device that is lost; and what may not be captured.
 */
#include "device.h"
#include "plan/small.h"

#include "tria/cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct setup {
    small s;
    tria_backends *backends;
    tria_device *device;
} setup;

static void open_setup(setup *t)
{
    small_init(&t->s);
    assert_int_equal(tria_backends_create(NULL, NULL, &t->backends, &t->s.error), TRIA_OK);
    assert_int_equal(tria_device_open(t->backends, "cuda", NULL, &t->device, &t->s.error), TRIA_OK);
    t->s.params.score_device = t->device;
    t->s.params.select_device = t->device;
    t->s.params.compact_device = t->device;
    t->s.params.stage_device_memory = 1;
}

static void close_setup(setup *t)
{
    small_free(&t->s);
    tria_device_close(t->device);
    tria_backends_destroy(t->backends);
    assert_int_equal(device_live_allocations(), 0);
    assert_int_equal(device_problems(), 0);
}

static tria_status compact(small *s)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    return tria_plan_compact(s->plan, &batch, &s->keep, NULL, &s->error);
}

static void test_no_device(void **state)
{
    tria_backends *backends;
    tria_device *device = NULL;
    tria_backend_info info = {.struct_size = sizeof(info)};
    tria_error error;
    (void)state;
    device_set_count(0);
    assert_int_equal(tria_backends_create(NULL, NULL, &backends, &error), TRIA_OK);
    assert_int_equal(tria_device_open(backends, "cuda", NULL, &device, &error), TRIA_E_DEVICE);
    assert_non_null(strstr(error.message, "no CUDA-capable device is detected"));
    for (int32_t i = 0; i < tria_backends_count(backends); i++) {
        if (strcmp(tria_backends_name(backends, i), "cuda") == 0) {
            assert_int_equal(tria_backends_info(backends, i, &info, &error), TRIA_OK);
            assert_int_equal(info.n_devices, 0);
            assert_non_null(strstr(info.reason, "no CUDA-capable device is detected"));
        }
    }
    tria_backends_destroy(backends);
    device_set_count(1);
}

static void test_devices(void **state)
{
    tria_backends *backends;
    tria_device *device = NULL;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_cuda_device native = TRIA_CUDA_DEVICE_INIT;
    tria_error error;
    (void)state;
    device_set_count(2);
    assert_int_equal(tria_backends_create(NULL, NULL, &backends, &error), TRIA_OK);
    params.index = 2;
    assert_int_equal(tria_device_open(backends, "cuda", &params, &device, &error), TRIA_E_DEVICE);
    assert_non_null(strstr(error.message, "device 2 does not exist, there are 2"));
    params.name = "Radeon";
    assert_int_equal(tria_device_open(backends, "cuda", &params, &device, &error), TRIA_E_DEVICE);
    assert_non_null(strstr(error.message, "Radeon"));
    params.name = "101112131415161718191a1b1c1d1e1f"; /* the second device's UUID */
    assert_int_equal(tria_device_open(backends, "cuda", &params, &device, &error), TRIA_OK);
    tria_device_close(device);
    native.ordinal = 1;
    params.native = &native;
    assert_int_equal(tria_device_open(backends, "cuda", &params, &device, &error), TRIA_OK);
    tria_device_close(device);
    tria_backends_destroy(backends);
    device_set_count(1);
}

static void test_memory_runs_out(void **state)
{
    setup t;
    (void)state;
    open_setup(&t);
    const int before = device_total_allocations();
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    const int needed = device_total_allocations() - before;
    tria_plan_destroy(t.s.plan);
    t.s.plan = NULL;
    assert_int_equal(device_live_allocations(), 0);
    assert_true(needed > 20);
    for (int n = 1; n <= needed; n++) {
        device_fail_allocation(n);
        assert_int_equal(small_plan(&t.s), TRIA_E_MEMORY);
        assert_non_null(strstr(t.s.error.message, "out of memory"));
        assert_null(t.s.plan);
        assert_int_equal(device_live_allocations(), 0);
    }
    device_fail_allocation(0);
    close_setup(&t);
}

static void test_workspace_size(void **state)
{
    setup t;
    size_t bytes;
    (void)state;
    open_setup(&t);
    assert_int_equal(tria_plan_workspace_size(&t.s.params, &bytes, &t.s.error), TRIA_OK);
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    const size_t used = device_bytes_in_use();
    assert_true(used > 0 && bytes >= used);
    close_setup(&t);
}

static void test_launches_fail(void **state)
{
    setup t;
    (void)state;
    open_setup(&t);
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    const int before = device_launches();
    assert_int_equal(small_select(&t.s), TRIA_OK);
    const int per_select = device_launches() - before;
    assert_true(per_select >= 6);
    for (int n = 1; n <= per_select; n++) {
        device_fail_launch(n);
        assert_int_equal(small_select(&t.s), TRIA_E_DEVICE);
        assert_non_null(strstr(t.s.error.message, "unspecified launch failure"));
    }
    assert_int_equal(small_select(&t.s), TRIA_OK);
    device_fail_launch(1);
    assert_int_equal(compact(&t.s), TRIA_E_DEVICE);
    device_fail_launch(0);
    close_setup(&t);
}

static void test_device_is_lost(void **state)
{
    setup t;
    (void)state;
    open_setup(&t);
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    assert_int_equal(small_select(&t.s), TRIA_OK);
    device_lose(1);
    assert_int_equal(small_select(&t.s), TRIA_E_DEVICE);
    assert_non_null(strstr(t.s.error.message, "device lost"));
    assert_int_equal(compact(&t.s), TRIA_E_DEVICE);
    assert_int_equal(tria_plan_synchronize(t.s.plan, &t.s.error), TRIA_E_DEVICE);
    tria_plan_destroy(t.s.plan); /* releases what can be released */
    t.s.plan = NULL;
    assert_int_equal(small_plan(&t.s), TRIA_E_DEVICE);
    device_lose(0);
    close_setup(&t);
}

/* Host memory is refused unless the engine asked for staging. */
static void test_host_memory(void **state)
{
    setup t;
    (void)state;
    open_setup(&t);
    t.s.params.stage_device_memory = 0;
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    assert_int_equal(small_select(&t.s), TRIA_E_UNSUPPORTED);
    assert_non_null(strstr(t.s.error.message, "layer 0 K lies in host memory"));
    close_setup(&t);
}

/* Results for the host cannot be captured, and nothing that waits or allocates is tried. */
static void test_capture_needs_device_tables(void **state)
{
    setup t;
    tria_batch batch;
    void *keys[SMALL_MAX_LAYERS];
    (void)state;
    open_setup(&t);
    for (int32_t l = 0; l < t.s.n_layers; l++) {
        const size_t size = (size_t)t.s.n_kv_heads * SMALL_MAX_ROWS * (size_t)t.s.dim * sizeof(float);
        keys[l] = device_alloc(size);
        memcpy(keys[l], t.s.layers[l].k.base, size);
        t.s.layers[l].k.base = keys[l];
    }
    t.s.params.stage_device_memory = 0;
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    assert_int_equal(small_select(&t.s), TRIA_OK);
    tria_batch_init(&batch);
    batch.events = &t.s.event;
    batch.n_events = 1;
    batch.stream = device_capture_begin();
    assert_int_equal(tria_plan_select(t.s.plan, &batch, NULL, &t.s.keep, &t.s.error), TRIA_E_STATE);
    assert_non_null(strstr(t.s.error.message, "captured"));
    assert_int_equal(tria_plan_compact(t.s.plan, &batch, &t.s.keep, NULL, &t.s.error), TRIA_E_STATE);
    device_capture_end(batch.stream);
    assert_int_equal(small_select(&t.s), TRIA_OK);
    for (int32_t l = 0; l < t.s.n_layers; l++) {
        device_free(keys[l]);
    }
    close_setup(&t);
}

/* Positions in device memory are compared there. */
static void test_misaligned_device_positions(void **state)
{
    setup t;
    tria_device_tables tables;
    int32_t *positions;
    (void)state;
    open_setup(&t);
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    const size_t count = (size_t)t.s.n_layers * SMALL_MAX_ROWS;
    positions = device_alloc(count * sizeof(*positions));
    for (size_t i = 0; i < count; i++) {
        positions[i] = (int32_t)(i % SMALL_MAX_ROWS);
    }
    memset(&tables, 0, sizeof(tables));
    tables.struct_size = sizeof(tables);
    tables.positions.base = positions;
    t.s.event.device = &tables;
    t.s.event.positions_layer_stride = SMALL_MAX_ROWS;
    assert_int_equal(small_select(&t.s), TRIA_OK);
    positions[SMALL_MAX_ROWS + 50] = 4711;
    assert_int_equal(small_select(&t.s), TRIA_E_MISMATCH);
    assert_non_null(strstr(t.s.error.message, "the same rows and positions"));
    device_free(positions);
    close_setup(&t);
}

/* Terms are host memory: they cannot follow rows that the host does not hear of. */
static void test_terms_need_host_keep_sets(void **state)
{
    setup t;
    tria_device_tables tables;
    (void)state;
    open_setup(&t);
    assert_int_equal(small_plan(&t.s), TRIA_OK);
    assert_int_equal(small_select(&t.s), TRIA_OK);
    assert_int_equal(tria_terms_create(t.s.plan, NULL, &t.s.event.terms, &t.s.error), TRIA_OK);
    t.s.event.kv = NULL;
    memset(&tables, 0, sizeof(tables));
    tables.struct_size = sizeof(tables);
    tables.keep_row_stride = SMALL_MAX_ROWS;
    tables.keep_rows.base = device_alloc((size_t)t.s.n_kv_heads * SMALL_MAX_ROWS * sizeof(int32_t));
    tables.keep_counts.base = device_alloc((size_t)t.s.n_kv_heads * sizeof(int32_t));
    t.s.event.device = &tables;
    assert_int_equal(compact(&t.s), TRIA_E_ARGUMENT);
    assert_non_null(strstr(t.s.error.message, "kept terms"));
    t.s.event.device = NULL;
    assert_int_equal(compact(&t.s), TRIA_OK);
    device_free(tables.keep_rows.base);
    device_free(tables.keep_counts.base);
    tria_terms_destroy(t.s.event.terms);
    close_setup(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_workspace_size),
        cmocka_unit_test(test_launches_fail),
        cmocka_unit_test(test_device_is_lost),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_capture_needs_device_tables),
        cmocka_unit_test(test_misaligned_device_positions),
        cmocka_unit_test(test_terms_need_host_keep_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

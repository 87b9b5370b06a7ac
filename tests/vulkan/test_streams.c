/*
 * The engine's own queue, command buffers and semaphores; several contexts and threads on one and on two
 * devices; what goes wrong is said and leaves nothing behind.
 */
#include "config.h"
#include "gpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A configuration that can be selected from and compacted: found by trying seeds; its cache on a device. */
typedef struct scene {
    config c;
    gpu_buffer buffers[CONFIG_EVENTS][CONFIG_BLOCKS];
    tria_layer_view layers[CONFIG_EVENTS][CONFIG_LAYERS];
    tria_kv_view views[CONFIG_EVENTS];
    tria_event events[CONFIG_EVENTS]; /* on the device */
    int32_t *rows[CONFIG_EVENTS];
    int32_t *counts[CONFIG_EVENTS];
    tria_keep keep[CONFIG_EVENTS];
    tria_compaction done[CONFIG_EVENTS];
    int32_t *positions[CONFIG_EVENTS];
} scene;

static void *get(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    assert_non_null(memory);
    return memory;
}

static tria_plan *make_plan(const config *c, tria_device *device, tria_error *error)
{
    tria_plan_params params = c->params;
    tria_plan *plan = NULL;
    params.score_device = params.select_device = params.compact_device = device;
    tria_plan_create(&params, NULL, &plan, error);
    return plan;
}

static tria_batch batch_of(tria_event *events, int32_t n, void *stream)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = events;
    batch.n_events = n;
    batch.stream = stream;
    return batch;
}

/* Whether the CPU selects and compacts it: some configurations are refused, as they should be. */
static bool is_usable(const config *c)
{
    tria_event events[CONFIG_EVENTS];
    tria_keep keep[CONFIG_EVENTS];
    tria_error error;
    tria_plan *plan = make_plan(c, NULL, &error);
    bool ok = plan != NULL;
    for (int32_t i = 0; ok && i < c->n_events; i++) {
        events[i] = c->events[i].event;
        tria_keep_init(&keep[i]);
        keep[i].rows = get((size_t)tria_plan_n_sets(plan) * (size_t)c->n_rows, sizeof(int32_t));
        keep[i].counts = get((size_t)tria_plan_n_sets(plan), sizeof(int32_t));
        keep[i].row_stride = c->n_rows;
    }
    if (ok) {
        int32_t *positions[CONFIG_EVENTS];
        const tria_batch batch = batch_of(events, c->n_events, NULL);
        ok = tria_plan_select(plan, &batch, NULL, keep, &error) == TRIA_OK;
        for (int32_t i = 0; i < c->n_events; i++) { /* of positions only, in a copy */
            const config_event *e = &c->events[i];
            positions[i] = get(e->n_positions, sizeof(int32_t));
            if (e->positions != NULL) {
                memcpy(positions[i], e->positions, sizeof(int32_t) * e->n_positions);
                events[i].positions = positions[i];
            }
            events[i].kv = NULL;
        }
        ok = ok && tria_plan_compact(plan, &batch, keep, NULL, &error) == TRIA_OK;
        for (int32_t i = 0; i < c->n_events; i++) {
            free(positions[i]);
            free(keep[i].rows);
            free(keep[i].counts);
        }
    }
    tria_plan_destroy(plan);
    return ok;
}

static void scene_create(scene *s, gpu *g, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    config_create(&s->c, seed);
    while (!is_usable(&s->c)) {
        config_destroy(&s->c);
        config_create(&s->c, ++seed);
    }
    for (int32_t i = 0; i < s->c.n_events; i++) {
        const config_event *e = &s->c.events[i];
        const size_t n_sets = CONFIG_LAYERS * 4;
        s->events[i] = e->event;
        s->views[i] = e->view;
        s->views[i].layers = s->layers[i];
        s->events[i].kv = &s->views[i];
        memcpy(s->layers[i], e->layers, sizeof(s->layers[i]));
        for (int32_t b = 0; b < e->n_blocks; b++) {
            gpu_buffer *buffer = &s->buffers[i][b];
            gpu_buffer_create(g, e->blocks[b].size, buffer);
            memcpy(buffer->mapped, e->blocks[b].data, e->blocks[b].size);
            for (int32_t l = 0; l < CONFIG_LAYERS; l++) {
                tria_tensor *tensors[] = {&s->layers[i][l].k, &s->layers[i][l].v};
                for (int t = 0; t < 2; t++) {
                    void *handle = (void *)(uintptr_t)buffer->handle;
                    tensors[t]->base = tensors[t]->base == e->blocks[b].data ? handle : tensors[t]->base;
                    tensors[t]->scales =
                        tensors[t]->scales == e->blocks[b].data ? handle : tensors[t]->scales;
                }
            }
        }
        s->rows[i] = get(n_sets * (size_t)s->c.n_rows, sizeof(int32_t));
        s->counts[i] = get(n_sets, sizeof(int32_t));
        tria_keep_init(&s->keep[i]);
        s->keep[i].rows = s->rows[i];
        s->keep[i].counts = s->counts[i];
        s->keep[i].row_stride = s->c.n_rows;
        tria_compaction_init(&s->done[i]);
        s->positions[i] = get(e->n_positions, sizeof(int32_t));
        if (e->positions != NULL) {
            memcpy(s->positions[i], e->positions, sizeof(int32_t) * e->n_positions);
            s->events[i].positions = s->positions[i];
        }
    }
}

static void scene_destroy(scene *s, gpu *g)
{
    for (int32_t i = 0; i < s->c.n_events; i++) {
        for (int32_t b = 0; b < s->c.events[i].n_blocks; b++) {
            gpu_buffer_destroy(g, &s->buffers[i][b]);
        }
        free(s->rows[i]);
        free(s->counts[i]);
        free(s->positions[i]);
    }
    config_destroy(&s->c);
}

/* Selects and compacts on the CPU, in the host's copy, and compares everything with what the device did. */
static void expect_same(scene *s)
{
    tria_event events[CONFIG_EVENTS];
    tria_keep keep[CONFIG_EVENTS];
    tria_compaction done[CONFIG_EVENTS];
    tria_error error;
    config *c = &s->c;
    tria_plan *cpu = make_plan(c, NULL, &error);
    assert_non_null(cpu);
    for (int32_t i = 0; i < c->n_events; i++) {
        const size_t n_sets = (size_t)tria_plan_n_sets(cpu);
        events[i] = c->events[i].event;
        tria_keep_init(&keep[i]);
        keep[i].rows = get(n_sets * (size_t)c->n_rows, sizeof(int32_t));
        keep[i].counts = get(n_sets, sizeof(int32_t));
        keep[i].row_stride = c->n_rows;
        tria_compaction_init(&done[i]);
    }
    tria_batch batch = batch_of(events, c->n_events, NULL);
    assert_int_equal(tria_plan_select(cpu, &batch, NULL, keep, &error), TRIA_OK);
    assert_int_equal(tria_plan_compact(cpu, &batch, keep, done, &error), TRIA_OK);
    for (int32_t i = 0; i < c->n_events; i++) {
        const config_event *e = &c->events[i];
        for (int32_t set = 0; set < tria_plan_n_sets(cpu); set++) {
            const size_t at = (size_t)set * (size_t)c->n_rows;
            assert_int_equal(s->keep[i].counts[set], keep[i].counts[set]);
            assert_memory_equal(s->keep[i].rows + at, keep[i].rows + at,
                                sizeof(int32_t) * (size_t)keep[i].counts[set]);
        }
        assert_int_equal(s->keep[i].over_budget, keep[i].over_budget);
        if (s->keep[i].n_nan >= 0) {
            assert_int_equal(s->keep[i].n_nan, keep[i].n_nan);
        }
        assert_int_equal(s->done[i].n_moves, done[i].n_moves);
        assert_int_equal(s->done[i].bytes_moved, done[i].bytes_moved);
        assert_int_equal(s->done[i].rows_after, done[i].rows_after);
        for (int32_t b = 0; b < e->n_blocks; b++) {
            assert_memory_equal(s->buffers[i][b].mapped, e->blocks[b].data, e->blocks[b].size);
        }
        if (e->n_positions > 0) {
            assert_memory_equal(s->positions[i], e->positions, sizeof(int32_t) * e->n_positions);
        }
        free(keep[i].rows);
        free(keep[i].counts);
    }
    tria_plan_destroy(cpu);
}

typedef struct recorder {
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
} recorder;

static void recorder_begin(recorder *r, gpu *g)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = g->family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    assert_int_equal(vkCreateCommandPool(g->device, &pool, NULL, &r->pool), VK_SUCCESS);
    const VkCommandBufferAllocateInfo buffer = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = r->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    assert_int_equal(vkAllocateCommandBuffers(g->device, &buffer, &r->commands), VK_SUCCESS);
    assert_int_equal(vkCreateFence(g->device, &fence, NULL, &r->fence), VK_SUCCESS);
    assert_int_equal(vkBeginCommandBuffer(r->commands, &begin), VK_SUCCESS);
}

static void recorder_run(recorder *r, gpu *g)
{
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &r->commands};
    assert_int_equal(vkEndCommandBuffer(r->commands), VK_SUCCESS);
    assert_int_equal(vkQueueSubmit(g->queue, 1, &info, r->fence), VK_SUCCESS);
    assert_int_equal(vkWaitForFences(g->device, 1, &r->fence, VK_TRUE, UINT64_MAX), VK_SUCCESS);
}

static void recorder_destroy(recorder *r, gpu *g)
{
    vkDestroyFence(g->device, r->fence, NULL);
    vkDestroyCommandPool(g->device, r->pool, NULL);
}

static gpu engine;
static tria_backends *backends;
static tria_device *vulkan;
static scene stage;

static int open_engine(void **state)
{
    (void)state;
    gpu_open(&engine, false);
    gpu_open_backend(&engine, &backends, &vulkan);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    tria_device_close(vulkan);
    tria_backends_destroy(backends);
    gpu_close(&engine);
    return 0;
}

/* Score, select and compact in one command buffer of the engine's; nothing is known before it has run. */
static void test_command_buffer(void **state)
{
    (void)state;
    for (uint64_t seed = 300; seed < 330; seed++) {
        recorder r;
        tria_error error = {0};
        scene_create(&stage, &engine, seed);
        tria_plan *plan = make_plan(&stage.c, vulkan, &error);
        assert_non_null(plan);
        recorder_begin(&r, &engine);
        tria_vulkan_stream stream = {.struct_size = sizeof(stream), .command_buffer = r.commands};
        const tria_batch batch = batch_of(stage.events, stage.c.n_events, &stream);
        assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
        assert_int_equal(tria_plan_compact(plan, &batch, NULL, stage.done, &error), TRIA_OK);
        /* a second batch must wait for the first */
        assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_E_STATE);
        recorder_run(&r, &engine);
        assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
        expect_same(&stage);
        recorder_destroy(&r, &engine);
        tria_plan_destroy(plan);
        scene_destroy(&stage, &engine);
    }
}

/* The device's clock: each part once it has run, whoever submits. */
static void test_times(void **state)
{
    (void)state;
    recorder r;
    tria_error error = {0};
    double seconds = 0.0;
    scene_create(&stage, &engine, 300);
    tria_plan *plan = make_plan(&stage.c, vulkan, &error);
    assert_non_null(plan);
    recorder_begin(&r, &engine);
    tria_vulkan_stream stream = {.struct_size = sizeof(stream), .command_buffer = r.commands};
    tria_batch batch = batch_of(stage.events, stage.c.n_events, &stream);
    assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
    for (int32_t part = TRIA_PART_SCORE; part <= TRIA_PART_COMPACT; part++) {
        assert_true(tria_plan_seconds(plan, part) == 0.0);
    }
    recorder_run(&r, &engine);
    assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
    for (int32_t part = TRIA_PART_SCORE; part <= TRIA_PART_SELECT; part++) {
        assert_true(tria_plan_seconds(plan, part) > 0.0);
    }
    assert_true(tria_plan_seconds(plan, TRIA_PART_COMPACT) == 0.0);
    batch.stream = NULL;
    assert_int_equal(tria_plan_compact(plan, &batch, stage.keep, stage.done, &error), TRIA_OK);
    assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
    assert_true(tria_plan_seconds(plan, TRIA_PART_COMPACT) > 0.0);
    assert_int_equal(tria_device_copy_seconds(vulkan, 1 << 20, &seconds, &error), TRIA_OK);
    assert_true(seconds > 0.0);
    assert_int_equal(tria_device_copy_seconds(vulkan, 0, &seconds, &error), TRIA_E_ARGUMENT);
    recorder_destroy(&r, &engine);
    tria_plan_destroy(plan);
    scene_destroy(&stage, &engine);
}

/* Work waits for the engine's semaphore and signals one; the host waits for neither. */
static void test_semaphores(void **state)
{
    (void)state;
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore semaphore;
    tria_error error = {0};
    uint64_t value = 0;
    assert_int_equal(vkCreateSemaphore(engine.device, &info, NULL, &semaphore), VK_SUCCESS);
    scene_create(&stage, &engine, 500);
    tria_plan *plan = make_plan(&stage.c, vulkan, &error);
    assert_non_null(plan);
    tria_vulkan_stream stream = {.struct_size = sizeof(stream),
                                 .wait_semaphore = (uint64_t)semaphore,
                                 .wait_value = 1,
                                 .signal_semaphore = (uint64_t)semaphore,
                                 .signal_value = 2};
    const tria_batch batch = batch_of(stage.events, stage.c.n_events, &stream);
    assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
    assert_int_equal(vkGetSemaphoreCounterValue(engine.device, semaphore, &value), VK_SUCCESS);
    assert_int_equal(value, 0);
    const VkSemaphoreSignalInfo go = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = 1};
    const uint64_t done = 2;
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &semaphore,
                                      .pValues = &done};
    assert_int_equal(vkSignalSemaphore(engine.device, &go), VK_SUCCESS);
    assert_int_equal(vkWaitSemaphores(engine.device, &wait, UINT64_MAX), VK_SUCCESS);
    assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
    const tria_batch own = batch_of(stage.events, stage.c.n_events, NULL);
    assert_int_equal(tria_plan_compact(plan, &own, stage.keep, stage.done, &error), TRIA_OK);
    assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
    expect_same(&stage);
    tria_plan_destroy(plan);
    scene_destroy(&stage, &engine);
    vkDestroySemaphore(engine.device, semaphore, NULL);
}

/* Scores of the CPU, keep sets of the device, and the other way round. */
static void test_split_stages(void **state)
{
    (void)state;
    for (uint64_t seed = 400; seed < 410; seed++) {
        tria_error error = {0};
        tria_plan *plan = NULL;
        scene_create(&stage, &engine, seed);
        config *c = &stage.c;
        tria_event host[CONFIG_EVENTS];
        for (int32_t i = 0; i < c->n_events; i++) {
            host[i] = c->events[i].event;
        }
        tria_plan_params params = c->params;
        params.select_device = vulkan;
        assert_int_equal(tria_plan_create(&params, NULL, &plan, &error), TRIA_OK);
        tria_batch batch = batch_of(host, c->n_events, NULL);
        assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
        tria_plan_destroy(plan);

        tria_plan *cpu = make_plan(c, NULL, &error);
        assert_non_null(cpu);
        for (int32_t i = 0; i < c->n_events; i++) {
            tria_keep keep = stage.keep[i];
            batch = batch_of(&host[i], 1, NULL);
            keep.rows = get((size_t)tria_plan_n_sets(cpu) * (size_t)c->n_rows, sizeof(int32_t));
            keep.counts = get((size_t)tria_plan_n_sets(cpu), sizeof(int32_t));
            assert_int_equal(tria_plan_select(cpu, &batch, NULL, &keep, &error), TRIA_OK);
            for (int32_t set = 0; set < tria_plan_n_sets(cpu); set++) {
                const size_t at = (size_t)set * (size_t)c->n_rows;
                assert_int_equal(stage.keep[i].counts[set], keep.counts[set]);
                assert_memory_equal(stage.keep[i].rows + at, keep.rows + at,
                                    sizeof(int32_t) * (size_t)keep.counts[set]);
            }
            free(keep.rows);
            free(keep.counts);
        }
        tria_plan_destroy(cpu);

        params = c->params;
        params.score_device = vulkan;
        assert_int_equal(tria_plan_create(&params, NULL, &plan, &error), TRIA_OK);
        batch = batch_of(stage.events, c->n_events, NULL);
        assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
        tria_plan_destroy(plan);
        plan = make_plan(c, vulkan, &error);
        assert_non_null(plan);
        assert_int_equal(tria_plan_compact(plan, &batch, stage.keep, stage.done, &error), TRIA_OK);
        assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
        for (int32_t i = 0; i < c->n_events; i++) { /* a selection elsewhere does not know of bad rows */
            stage.keep[i].n_nan = -1;
        }
        expect_same(&stage);
        tria_plan_destroy(plan);
        scene_destroy(&stage, &engine);
    }
}

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_queue(void *context)
{
    pthread_mutex_lock(context);
}

static void unlock_queue(void *context)
{
    pthread_mutex_unlock(context);
}

typedef struct worker {
    gpu *g;
    tria_device *device;
    uint64_t seed;
    bool ok;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    scene *s = calloc(1, sizeof(*s));
    tria_error error;
    w->ok = s != NULL;
    for (int round = 0; w->ok && round < 4; round++) {
        scene_create(s, w->g, w->seed + (uint64_t)round * 10);
        tria_plan *plan = make_plan(&s->c, w->device, &error);
        const tria_batch batch = batch_of(s->events, s->c.n_events, NULL);
        w->ok = plan != NULL && tria_plan_select(plan, &batch, NULL, s->keep, &error) == TRIA_OK &&
                tria_plan_compact(plan, &batch, s->keep, s->done, &error) == TRIA_OK &&
                tria_plan_synchronize(plan, &error) == TRIA_OK;
        if (w->ok) {
            expect_same(s);
        } else {
            fprintf(stderr, "%s\n", error.message);
        }
        tria_plan_destroy(plan);
        scene_destroy(s, w->g);
    }
    free(s);
    return NULL;
}

/* Plans of two devices (one and the same hardware where there is only one), each on a thread of its own. */
static void test_threads_and_devices(void **state)
{
    enum { N = 6 };
    pthread_t threads[N];
    worker workers[N];
    gpu other;
    tria_backends *other_backends;
    tria_device *devices[2];
    (void)state;
    gpu_open(&other, true);
    other.native.lock_queue = engine.native.lock_queue = lock_queue;
    other.native.unlock_queue = engine.native.unlock_queue = unlock_queue;
    other.native.lock_context = engine.native.lock_context = &queue_lock;
    gpu_open_backend(&other, &other_backends, &devices[0]);
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_error error;
    params.native = &engine.native;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &devices[1], &error), TRIA_OK);
    for (int i = 0; i < N; i++) {
        workers[i] =
            (worker){i % 2 == 0 ? &other : &engine, devices[i % 2], 700 + 100 * (uint64_t)i, false};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_true(workers[i].ok);
    }
    tria_device_close(devices[0]);
    tria_device_close(devices[1]);
    tria_backends_destroy(other_backends);
    gpu_close(&other);
    engine.native.lock_queue = engine.native.unlock_queue = NULL;
}

/* An allocator that counts and can fail. */
typedef struct meter {
    long live;
    long until_failure; /* < 0: never */
} meter;

static void *meter_allocate(void *context, size_t size, size_t alignment)
{
    meter *m = context;
    if (m->until_failure == 0) {
        return NULL;
    }
    m->until_failure -= m->until_failure > 0;
    m->live++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void meter_release(void *context, void *pointer)
{
    meter *m = context;
    m->live--;
    free(pointer);
}

static long resident_kib(void)
{
    long pages = 0;
    long resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        if (fscanf(file, "%ld %ld", &pages, &resident) != 2) {
            resident = 0;
        }
        fclose(file);
    }
    return resident * 4;
}

static void test_create_and_destroy(void **state)
{
    (void)state;
    meter m = {0, -1};
    tria_env env = TRIA_ENV_INIT;
    tria_error error;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    long before = 0;
    env.allocate = meter_allocate;
    env.release = meter_release;
    env.allocator_context = &m;
    params.native = &engine.native;
    scene_create(&stage, &engine, 900);
    for (int i = 0; i < 30; i++) {
        tria_backends *own;
        tria_device *device;
        assert_int_equal(tria_backends_create(NULL, &env, &own, &error), TRIA_OK);
        assert_int_equal(tria_device_open(own, "vulkan", &params, &device, &error), TRIA_OK);
        tria_plan *plan = make_plan(&stage.c, device, &error);
        assert_non_null(plan);
        tria_plan_destroy(plan);
        tria_device_close(device);
        tria_backends_destroy(own);
        assert_int_equal(m.live, 0);
        before = i == 10 ? resident_kib() : before;
    }
#ifndef __SANITIZE_ADDRESS__ /* which holds freed memory back */
    /* drivers cache; a leak of ours would cost the workspace (about a megabyte) each time */
    assert_true(resident_kib() - before < 8192);
#endif
    (void)before;
    scene_destroy(&stage, &engine);
}

/* Every allocation fails once: an error, nothing leaked. */
static void test_out_of_memory(void **state)
{
    (void)state;
    meter m = {0, -1};
    tria_env env = TRIA_ENV_INIT;
    tria_error error;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    bool done = false;
    env.allocate = meter_allocate;
    env.release = meter_release;
    env.allocator_context = &m;
    params.native = &engine.native;
    scene_create(&stage, &engine, 900);
    for (long n = 0; !done; n++) {
        tria_backends *own = NULL;
        tria_device *device = NULL;
        tria_plan *plan = NULL;
        m.until_failure = n;
        if (tria_backends_create(NULL, &env, &own, &error) == TRIA_OK &&
            tria_device_open(own, "vulkan", &params, &device, &error) == TRIA_OK) {
            plan = make_plan(&stage.c, device, &error);
        }
        done = plan != NULL;
        if (!done) {
            assert_int_equal(error.code, TRIA_E_MEMORY);
        }
        tria_plan_destroy(plan);
        tria_device_close(device);
        tria_backends_destroy(own);
        assert_int_equal(m.live, 0);
        assert_true(n < 200);
    }
    scene_destroy(&stage, &engine);
}

static void expect_refusal(tria_device *device, const tria_plan_params *params, tria_status code,
                           const char *word)
{
    tria_error error = {0};
    tria_plan *plan = NULL;
    assert_int_equal(tria_backend_supports(device, params, &error), code);
    assert_non_null(strstr(error.message, word));
    tria_plan_params full = *params;
    full.score_device = full.select_device = full.compact_device = device;
    assert_int_equal(tria_plan_create(&full, NULL, &plan, &error), code);
    assert_null(plan);
}

static int32_t never(void *context, float *data, int64_t count, tria_reduce_op op, void *stream)
{
    (void)context;
    (void)data;
    (void)count;
    (void)op;
    (void)stream;
    return 1;
}

static void test_refusals(void **state)
{
    (void)state;
    tria_error error = {0};
    tria_device *own = NULL;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    scene_create(&stage, &engine, 900);

    params.name = "no such device";
    params.allow_cpu = 1;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &own, &error), TRIA_E_DEVICE);
    assert_non_null(strstr(error.message, "no such device"));
    params.name = NULL;
    params.index = 1000;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &own, &error), TRIA_E_DEVICE);

    /* host memory without leave to copy it */
    params.index = 0;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &own, &error), TRIA_OK);
    expect_refusal(own, &stage.c.params, TRIA_E_UNSUPPORTED, "stage_device_memory");
    tria_device_close(own);

    tria_plan_params huge = stage.c.params;
    huge.max_rows = 1 << 28;
    expect_refusal(vulkan, &huge, TRIA_E_UNSUPPORTED, "max");
    tria_plan_params reduced = stage.c.params;
    reduced.all_reduce = never;
    expect_refusal(vulkan, &reduced, TRIA_E_UNSUPPORTED, "all_reduce");

    /* an incomplete engine device */
    tria_vulkan_device broken = engine.native;
    broken.queue = NULL;
    params.native = &broken;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &own, &error), TRIA_E_ARGUMENT);
    broken = engine.native;
    broken.struct_size = 16;
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &own, &error), TRIA_E_ARGUMENT);
    scene_destroy(&stage, &engine);
}

static void test_bad_calls(void **state)
{
    (void)state;
    tria_error error = {0};
    scene_create(&stage, &engine, 900);
    tria_plan *plan = make_plan(&stage.c, vulkan, &error);
    assert_non_null(plan);
    tria_vulkan_stream stream = {.struct_size = 8};
    tria_batch batch = batch_of(stage.events, stage.c.n_events, &stream);
    assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_E_ARGUMENT);
    batch.stream = NULL;
    assert_int_equal(tria_plan_compact(plan, &batch, NULL, stage.done, &error), TRIA_E_STATE);
    tria_device_tables tables;
    memset(&tables, 0, sizeof(tables));
    tables.struct_size = sizeof(tables);
    tables.positions.base = (void *)(uintptr_t)stage.buffers[0][0].handle;
    stage.events[0].device = &tables;
    assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_E_UNSUPPORTED);
    stage.events[0].device = NULL;
    /* and the plan still works */
    assert_int_equal(tria_plan_select(plan, &batch, NULL, stage.keep, &error), TRIA_OK);
    assert_int_equal(tria_plan_compact(plan, &batch, NULL, stage.done, &error), TRIA_OK);
    assert_int_equal(tria_plan_synchronize(plan, &error), TRIA_OK);
    expect_same(&stage);
    tria_plan_destroy(plan);
    scene_destroy(&stage, &engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_buffer),      cmocka_unit_test(test_times),
        cmocka_unit_test(test_semaphores),          cmocka_unit_test(test_split_stages),
        cmocka_unit_test(test_threads_and_devices), cmocka_unit_test(test_create_and_destroy),
        cmocka_unit_test(test_out_of_memory),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}

/*
 * Random configurations on the emulated device: the comparison the Vulkan backend goes through, with K, V
 * and their scales in device memory of exactly their size.
 */
#include "device.h"

#include "tria/backend.h"
#include "tria/cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* In the place of vulkan/gpu.h. */
#define TRIA_TESTS_VULKAN_GPU_H

typedef struct gpu {
    int32_t n_messages;
} gpu;

typedef struct gpu_buffer {
    void *handle;
    void *mapped;
} gpu_buffer;

static void gpu_open(gpu *g, bool narrow)
{
    (void)narrow;
    g->n_messages = 0;
}

static void gpu_close(gpu *g)
{
    (void)g;
    if (device_problems() > 0) {
        exit(1);
    }
}

static void gpu_buffer_create(gpu *g, size_t size, gpu_buffer *buffer)
{
    (void)g;
    buffer->handle = device_alloc(size);
    buffer->mapped = buffer->handle;
}

static void gpu_buffer_destroy(gpu *g, gpu_buffer *buffer)
{
    (void)g;
    device_free(buffer->handle);
}

static void gpu_open_backend(gpu *g, tria_backends **backends, tria_device **device)
{
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_cuda_device native = TRIA_CUDA_DEVICE_INIT;
    tria_error error;
    const char *order = getenv("TRIA_TEST_ORDER");
    (void)g;
    device_set_order(order != NULL ? (uint32_t)atoi(order) : 0);
    params.native = &native;
    if (tria_backends_create(NULL, NULL, backends, &error) != TRIA_OK ||
        tria_device_open(*backends, "cuda", &params, device, &error) != TRIA_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

#include "../vulkan/test_random.c"

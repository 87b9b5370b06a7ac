/* device_real.cpp - device.h on a real GPU: managed memory, so that the host may look at it. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

void *device_alloc(size_t size)
{
    void *memory = NULL;
    if (cudaMallocManaged(&memory, size, cudaMemAttachGlobal) != cudaSuccess) {
        fprintf(stderr, "cannot allocate %zu bytes of managed memory\n", size);
        exit(1);
    }
    memset(memory, 0, size);
    return memory;
}

void device_free(void *memory)
{
    cudaFree(memory);
}

int device_problems(void)
{
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
    }
    return error != cudaSuccess;
}

void device_set_order(uint32_t seed)
{
    (void)seed;
}

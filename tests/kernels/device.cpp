/* device.cpp - see device.h. */
#include "device.h"

#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>

void *device_alloc(size_t size)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, size) != cudaSuccess || cudaMemsetAsync(memory, 0, size, NULL) != cudaSuccess ||
        cudaStreamSynchronize(NULL) != cudaSuccess) {
        fprintf(stderr, "cannot allocate %zu bytes of device memory\n", size);
        exit(1);
    }
    return memory;
}

void device_free(void *memory)
{
    cudaFree(memory);
}

int device_problems(void)
{
    const int n = emu::problems();
    if (n > 0) {
        fprintf(stderr, "%d problems on the emulated device, first: %s\n", n, emu::first_problem());
        emu::clear_problems();
    }
    return n;
}

void device_set_order(uint32_t seed)
{
    emu::set_order(seed);
}

void device_fail_allocation(int n)
{
    emu::fail_allocation(n);
}

void device_fail_launch(int n)
{
    emu::fail_launch(n);
}

void device_lose(int lost)
{
    emu::lose_device(lost != 0);
}

void device_set_count(int n)
{
    emu::set_device_count(n);
}

int device_live_allocations(void)
{
    return emu::live_allocations();
}

int device_total_allocations(void)
{
    return emu::total_allocations();
}

size_t device_bytes_in_use(void)
{
    return emu::device_bytes();
}

int device_launches(void)
{
    return emu::launches();
}

void *device_capture_begin(void)
{
    cudaStream_t stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        fprintf(stderr, "cannot capture\n");
        exit(1);
    }
    return stream;
}

void device_capture_end(void *stream)
{
    cudaGraph_t graph = NULL;
    if (cudaStreamEndCapture((cudaStream_t)stream, &graph) == cudaSuccess) {
        cudaGraphDestroy(graph);
    }
    cudaStreamDestroy((cudaStream_t)stream);
}

/* Programs that know nothing of the emulation fail as well. */
namespace
{
struct LastWord {
    ~LastWord()
    {
        if (device_problems() > 0) {
            fflush(NULL);
            _Exit(70);
        }
    }
} last_word;
} // namespace

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

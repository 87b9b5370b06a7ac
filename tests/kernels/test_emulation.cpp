/*
 * test_emulation.cpp - the emulation itself: sound kernels pass, and a planted bug of each kind is found.
 */
#include "port.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int failures;

#define EXPECT(condition)                                                                                  \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            printf("line %d: %s\n", __LINE__, #condition);                                                 \
            failures++;                                                                                    \
        }                                                                                                  \
    } while (0)

static constexpr int n = 128; /* threads of a block, elements of an array */

struct Args {
    int32_t *in;
    int32_t *out;
    uint32_t *bits;
};

/* Reverses, through shared memory. */
PORT_KERNEL(n) sound_kernel(Args args)
{
    sptr<int32_t> tile = port_shared<int32_t>(0);
    const int i = port_thread();
    tile[i] = port_global((const int32_t *)args.in)[i];
    port_barrier();
    if (port_block_x() == 0) {
        port_global(args.out)[i] = tile[n - 1 - i];
    }
    port_atomic_add(&port_global((int32_t *)args.bits)[0], 1);
}

PORT_KERNEL(n) warp_kernel(Args args)
{
    const int i = port_thread();
    const int lane = i % port_lanes;
    const uint64_t odd = port_ballot(lane % 2 == 1);
    double sum = lane;
    for (int delta = port_lanes / 2; delta > 0; delta /= 2) {
        sum += port_shuffle_down(sum, delta);
    }
    if (lane == 0) {
        port_global(args.out)[i / port_lanes] = (int32_t)sum + 1000 * port_count_bits(odd);
    }
}

PORT_KERNEL(n) divergent_barrier_kernel(Args args)
{
    if (port_thread() < n / 2) {
        port_barrier();
    }
    port_global(args.out)[port_thread()] = 1;
}

PORT_KERNEL(n) different_barriers_kernel(Args args)
{
    if (port_thread() < n / 2) {
        port_barrier();
    } else {
        port_barrier();
    }
    port_global(args.out)[port_thread()] = 1;
}

PORT_KERNEL(n) divergent_warp_kernel(Args args)
{
    if (port_thread() % 2 == 0) {
        port_global(args.out)[port_thread()] = (int32_t)port_ballot(true);
    }
}

/* The barrier between writing and reading is missing. */
PORT_KERNEL(n) shared_race_kernel(Args args)
{
    sptr<int32_t> tile = port_shared<int32_t>(0);
    const int i = port_thread();
    tile[i] = 0;
    port_barrier();
    tile[i] = i;
    port_global(args.out)[i] = tile[(i + 1) % n];
}

/* Moves rows to the front without reading a batch before writing it. */
PORT_KERNEL(n) global_race_kernel(Args args)
{
    const int i = port_thread();
    if (i + 1 < n) {
        port_global(args.in)[i] = (int32_t)port_global(args.in)[i + 1];
    }
}

/* Blocks that write what another one reads. */
PORT_KERNEL(n) block_race_kernel(Args args)
{
    const int i = port_thread();
    const int32_t x = port_global((const int32_t *)args.in)[i];
    if (port_block_x() == 1) {
        port_global(args.in)[i] = x + 1;
    }
}

/* Neighbouring bytes, written by one thread each: sound. */
PORT_KERNEL(n) bytes_kernel(Args args)
{
    port_store<uint8_t>(port_global((unsigned char *)args.out), port_thread(), 1);
}

/* Neighbouring bytes, one of which another thread overwrites with the word it is in. */
PORT_KERNEL(n) word_race_kernel(Args args)
{
    const int i = port_thread();
    if (i < n - 1) {
        port_store<uint8_t>(port_global((unsigned char *)args.out), i, 1);
    } else {
        port_global(args.out)[0] = 1;
    }
}

/* An atomic counter that is read without a barrier. */
PORT_KERNEL(n) atomic_race_kernel(Args args)
{
    port_atomic_add(&port_global((int32_t *)args.bits)[0], 1);
    port_global(args.out)[port_thread()] = (int32_t)port_global(args.bits)[0];
}

PORT_KERNEL(n) out_of_bounds_kernel(Args args)
{
    port_global(args.out)[port_thread() + 1] = 1;
}

PORT_KERNEL(n) shared_out_of_bounds_kernel(Args args)
{
    sptr<int32_t> tile = port_shared<int32_t>(0);
    tile[port_thread() + 1] = 1;
    port_global(args.out)[port_thread()] = 1;
}

PORT_KERNEL(n) uninitialised_kernel(Args args)
{
    sptr<int32_t> tile = port_shared<int32_t>(0);
    if (port_thread() > 0) {
        tile[port_thread()] = 1;
    }
    port_barrier();
    port_global(args.out)[port_thread()] = tile[port_thread()];
}

PORT_KERNEL(n) misaligned_kernel(Args args)
{
    gptr<const unsigned char> bytes = port_global((const unsigned char *)args.in);
    port_global(args.out)[port_thread()] = port_load<int32_t>(bytes, port_thread() == 0 ? 2 : 0);
}

struct Fixture {
    Args args;
    Fixture()
    {
        int32_t numbers[n];
        for (int i = 0; i < n; i++) {
            numbers[i] = i;
        }
        cudaMalloc((void **)&args.in, sizeof(numbers));
        cudaMalloc((void **)&args.out, sizeof(numbers));
        cudaMalloc((void **)&args.bits, 4);
        cudaMemcpyAsync(args.in, numbers, sizeof(numbers), cudaMemcpyHostToDevice, NULL);
        cudaMemsetAsync(args.bits, 0, 4, NULL);
    }
    ~Fixture()
    {
        cudaFree(args.in);
        cudaFree(args.out);
        cudaFree(args.bits);
    }
};

/* Runs a kernel with two blocks in several thread orders; returns how often problems of `kind` were found.
 */
static int found(cudaError_t (*launch)(const Args &), emu::Problem kind)
{
    int times = 0;
    for (uint32_t order = 0; order < 4; order++) {
        Fixture fixture;
        emu::set_order(order);
        emu::clear_problems();
        EXPECT(launch(fixture.args) == cudaSuccess);
        EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess);
        if (order == 0) {
            printf("%s\n", emu::problems() > 0 ? emu::first_problem() : "nothing found");
        }
        times += emu::problems(kind) > 0 && emu::problems(kind) == emu::problems();
        emu::clear_problems();
    }
    return times;
}

#define LAUNCH(kernel, blocks)                                                                             \
    [](const Args &args) { return PORT_LAUNCH(kernel, dim3(blocks), n, n * sizeof(int32_t), NULL, args); }

static void test_sound()
{
    Fixture fixture;
    emu::clear_problems();
    EXPECT(LAUNCH(sound_kernel, 2)(fixture.args) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess);
    EXPECT(emu::problems() == 0);
    for (int i = 0; i < n; i++) {
        EXPECT(fixture.args.out[i] == n - 1 - i);
    }
    EXPECT(*fixture.args.bits == 2 * n);
    EXPECT(LAUNCH(warp_kernel, 1)(fixture.args) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess);
    EXPECT(emu::problems() == 0);
    for (int w = 0; w < n / port_lanes; w++) {
        EXPECT(fixture.args.out[w] == port_lanes * (port_lanes - 1) / 2 + 1000 * port_lanes / 2);
    }
}

static void test_bytes()
{
    Fixture fixture;
    EXPECT(LAUNCH(bytes_kernel, 1)(fixture.args) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess);
    EXPECT(emu::problems() == 0);
}

/* Pinned memory is read when the stream gets there, pageable memory when the call is made. */
static void test_streams()
{
    Fixture fixture;
    int32_t *pinned;
    int32_t pageable = 5;
    EXPECT(cudaMallocHost((void **)&pinned, 4) == cudaSuccess);
    *pinned = 1;
    EXPECT(cudaMemcpyAsync(fixture.args.out, pinned, 4, cudaMemcpyHostToDevice, NULL) == cudaSuccess);
    *pinned = 2;
    EXPECT(cudaMemcpyAsync(fixture.args.out + 1, &pageable, 4, cudaMemcpyHostToDevice, NULL) ==
           cudaSuccess);
    pageable = 6;
    EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess);
    EXPECT(fixture.args.out[0] == 2 && fixture.args.out[1] == 5);
    EXPECT(cudaFreeHost(pinned) == cudaSuccess);
}

int main()
{
    test_sound();
    test_bytes();
    test_streams();
    EXPECT(found(LAUNCH(divergent_barrier_kernel, 1), emu::DIVERGENT_BARRIER) == 4);
    EXPECT(found(LAUNCH(different_barriers_kernel, 1), emu::DIVERGENT_BARRIER) == 4);
    EXPECT(found(LAUNCH(divergent_warp_kernel, 1), emu::DIVERGENT_WARP) == 4);
    EXPECT(found(LAUNCH(shared_race_kernel, 1), emu::SHARED_RACE) == 4);
    EXPECT(found(LAUNCH(global_race_kernel, 1), emu::GLOBAL_RACE) == 4);
    EXPECT(found(LAUNCH(word_race_kernel, 1), emu::GLOBAL_RACE) == 4);
    EXPECT(found(LAUNCH(block_race_kernel, 2), emu::GLOBAL_RACE) == 4);
    EXPECT(found(LAUNCH(atomic_race_kernel, 1), emu::GLOBAL_RACE) == 4);
    EXPECT(found(LAUNCH(out_of_bounds_kernel, 1), emu::OUT_OF_BOUNDS) == 4);
    EXPECT(found(LAUNCH(shared_out_of_bounds_kernel, 1), emu::OUT_OF_BOUNDS) == 4);
    EXPECT(found(LAUNCH(uninitialised_kernel, 1), emu::UNINITIALISED) == 4);
    EXPECT(found(LAUNCH(misaligned_kernel, 1), emu::MISALIGNED) == 4);
    printf("%d failures\n", failures);
    return failures != 0;
}

/*
 * port.h - everything about a device that the kernels and their host code need to know. Kernels use the
 * port_ names, host code the CUDA runtime's; hip/port_hip.h maps both to HIP, and tests/kernels/emulation.h
 * provides both on the CPU, with checks.
 *
 * Memory is reached through gptr<T> (device) and sptr<T> (shared by a block): plain pointers here, checked
 * ones in the emulation.
 */
#ifndef TRIA_CUDA_PORT_H
#define TRIA_CUDA_PORT_H

#include "port_runtime.h"

#include <stdint.h>

#if !defined(TRIA_EMULATED)
#if !defined(__HIPCC__)
#include <cuda_runtime.h>

#define PORT_LAUNCH(kernel, grid, threads, shared, stream, ...)                                            \
    (kernel<<<(grid), (threads), (shared), (stream)>>>(__VA_ARGS__), cudaGetLastError())

/* Lanes of a warp; the threads of a block are always a multiple of 64. */
static constexpr int port_lanes = 32;

/* An address read from memory could be of any kind of memory. Told that it is not, the compiler emits loads
 * and stores that need not find out. */
template <class T> __device__ __forceinline__ T *port_global(T *pointer)
{
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}
template <class T> __device__ __forceinline__ T port_shuffle_down(T value, int delta)
{
    return __shfl_down_sync(0xffffffffu, value, delta);
}
__device__ __forceinline__ uint64_t port_ballot(bool predicate)
{
    return __ballot_sync(0xffffffffu, predicate);
}
/* The hardware's square root: within one unit in the last place, 0 and infinity exact. */
__device__ __forceinline__ float port_sqrt(float x)
{
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}
/* The quotient within two units in the last place, without a subroutine. */
__device__ __forceinline__ float port_divide(float a, float b)
{
    return __fdividef(a, b);
}
/* A half-precision number's value, exact. */
__device__ __forceinline__ float port_half(uint16_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
#endif

#define PORT_DEVICE __device__ __forceinline__
#define PORT_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define PORT_KERNEL_OF(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define PORT_UNROLL _Pragma("unroll")
#define PORT_ROLLED _Pragma("unroll 1")
#define port_barrier() __syncthreads()

template <class T> using gptr = T *;
template <class T> using sptr = T *;

/* The block's shared memory from byte `offset` on. */
template <class T> PORT_DEVICE sptr<T> port_shared(uint32_t offset)
{
    extern __shared__ uint4 port_shared_memory[];
    return reinterpret_cast<T *>(reinterpret_cast<unsigned char *>(port_shared_memory) + offset);
}
template <class V, class B> PORT_DEVICE V port_load(const B *bytes, int64_t offset)
{
    return *reinterpret_cast<const V *>(bytes + offset);
}
template <class V> PORT_DEVICE void port_store(unsigned char *bytes, int64_t offset, const V &value)
{
    *reinterpret_cast<V *>(bytes + offset) = value;
}

PORT_DEVICE int port_thread()
{
    return (int)threadIdx.x;
}
PORT_DEVICE int port_threads()
{
    return (int)blockDim.x;
}
PORT_DEVICE int port_block_x()
{
    return (int)blockIdx.x;
}
PORT_DEVICE int port_block_y()
{
    return (int)blockIdx.y;
}
PORT_DEVICE int port_block_z()
{
    return (int)blockIdx.z;
}
PORT_DEVICE int port_grid_x()
{
    return (int)gridDim.x;
}
PORT_DEVICE int port_count_bits(uint64_t bits)
{
    return __popcll(bits);
}
PORT_DEVICE void port_atomic_or(uint32_t *target, uint32_t bits)
{
    atomicOr(target, bits);
}
PORT_DEVICE void port_atomic_add(int32_t *target, int32_t value)
{
    atomicAdd(target, value);
}
PORT_DEVICE void port_atomic_max(int32_t *target, int32_t value)
{
    atomicMax(target, value);
}
PORT_DEVICE float port_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
PORT_DEVICE float port_bits_float(uint32_t bits)
{
    return __uint_as_float(bits);
}
PORT_DEVICE uint32_t port_float_bits(float value)
{
    return __float_as_uint(value);
}

#endif

#endif

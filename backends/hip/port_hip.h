/* port_hip.h - CUDA's names in HIP: the only file that differs between the two backends. */
#ifndef TRIA_HIP_PORT_HIP_H
#define TRIA_HIP_PORT_HIP_H

#include <hip/hip_runtime_api.h>

#define PORT_NAME "hip"

#define cudaDeviceProp hipDeviceProp_t
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaError_t hipError_t
#define cudaErrorInvalidValue hipErrorInvalidValue
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDestroy hipEventDestroy
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaEventRecord hipEventRecord
#define cudaEventSynchronize hipEventSynchronize
#define cudaEvent_t hipEvent_t
#define cudaFree hipFree
#define cudaFreeHost hipHostFree
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaGraphDestroy hipGraphDestroy
#define cudaGraphExecDestroy hipGraphExecDestroy
#define cudaGraphExec_t hipGraphExec_t
#define cudaGraphInstantiate(exec, graph, flags) hipGraphInstantiate((exec), (graph), NULL, NULL, 0)
#define cudaGraphLaunch hipGraphLaunch
#define cudaGraph_t hipGraph_t
#define cudaMalloc hipMalloc
#define cudaMallocHost(pointer, size) hipHostMalloc((pointer), (size), hipHostMallocDefault)
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpy2DAsync hipMemcpy2DAsync
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemsetAsync hipMemsetAsync
#define cudaPointerAttributes hipPointerAttribute_t
#define cudaPointerGetAttributes hipPointerGetAttributes
#define cudaSetDevice hipSetDevice
#define cudaStreamBeginCapture hipStreamBeginCapture
#define cudaStreamCaptureModeThreadLocal hipStreamCaptureModeThreadLocal
#define cudaStreamCaptureStatus hipStreamCaptureStatus
#define cudaStreamCaptureStatusNone hipStreamCaptureStatusNone
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamEndCapture hipStreamEndCapture
#define cudaStreamIsCapturing hipStreamIsCapturing
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess

/* Whether kernels can read such memory; HIP fails for pointers it does not know. */
inline bool port_reachable(const cudaPointerAttributes &)
{
    return true;
}
inline bool port_uuid(const cudaDeviceProp &, unsigned char *)
{
    return false; /* not in the properties before ROCm 6 */
}

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>

#define PORT_LAUNCH(kernel, grid, threads, shared, stream, ...)                                            \
    (kernel<<<(grid), (threads), (shared), (stream)>>>(__VA_ARGS__), hipGetLastError())

/* Lanes of a wave; the threads of a block are always a multiple of 64. */
#if defined(__AMDGCN_WAVEFRONT_SIZE)
static constexpr int port_lanes = __AMDGCN_WAVEFRONT_SIZE;
#else
static constexpr int port_lanes = 64; /* host side of the compilation, unused */
#endif

template <class T> __device__ __forceinline__ T *port_global(T *pointer)
{
    return pointer; /* the compiler's own guess: what it cannot tell is loaded with flat instructions */
}
template <class T> __device__ __forceinline__ T port_shuffle_down(T value, int delta)
{
    return __shfl_down(value, delta);
}
__device__ __forceinline__ uint64_t port_ballot(bool predicate)
{
    return __ballot(predicate);
}
__device__ __forceinline__ float port_sqrt(float x)
{
    return __builtin_amdgcn_sqrtf(x);
}
__device__ __forceinline__ float port_divide(float a, float b)
{
    return a / b;
}
__device__ __forceinline__ float port_half(uint16_t bits)
{
    return (float)__builtin_bit_cast(_Float16, bits);
}
#endif

#endif

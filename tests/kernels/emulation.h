/*
 * emulation.h - the device, on the CPU, for tests: what backends/cuda/port.h needs, so that the kernels and
 * their host code compile unchanged with a C++ compiler.
 *
 * A block's threads are fibers. Every access through gptr and sptr is checked: inside its allocation,
 * aligned, written before it is read, and no other thread touches the same byte without a barrier (or, from
 * another block, in the same launch) when one of the two writes and not both are atomic. Barriers and warp
 * operations must be reached by all threads, at the same place in the source. What is found is counted and
 * described, see emu::problems().
 *
 * Streams are queues that run when somebody waits for them, as late as the interface allows: a copy from
 * pinned memory that the host overwrites too early, or a result read too early, shows.
 */
#ifndef TRIA_TESTS_EMULATION_H
#define TRIA_TESTS_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>

#ifndef TRIA_EMULATED_LANES
#error "TRIA_EMULATED_LANES must be 32 or 64"
#endif

namespace emu
{
enum Problem {
    OUT_OF_BOUNDS,
    MISALIGNED,
    UNINITIALISED,
    SHARED_RACE,
    GLOBAL_RACE,
    DIVERGENT_BARRIER,
    DIVERGENT_WARP,
    PROBLEM_KINDS
};

/* Problems seen since the last clear, of one kind or of all; the first one's description. */
int problems(Problem kind);
int problems();
const char *first_problem();
void clear_problems();

/* Failures to come: the n-th call from now (1 = the next) fails, 0 = none. */
void fail_allocation(int n);
void fail_launch(int n);
void lose_device(bool lost);
void set_device_count(int n);
/* Allocations alive; how many there have been. */
int live_allocations();
int total_allocations();
/* Bytes of device and of pinned memory now allocated. */
size_t device_bytes();
size_t pinned_bytes();
int launches();
/* Seeds the order in which threads and blocks run. */
void set_order(uint32_t seed);

struct Region;
enum Access { READ, WRITE, ATOMIC };
/* The allocation that holds `address`, or NULL. */
Region *find_region(const void *address);
/* Whether the access may go ahead. */
bool touch(Region *region, const void *address, size_t size, size_t alignment, Access access);
unsigned char *shared_memory(Region **region);

int thread();
int threads();
int block(int axis);
int grid_x();
void barrier(const char *file, int line);
uint64_t collective(int kind, uint64_t value, int delta); /* 0: shuffle down, 1: ballot */

template <class T> struct Pointer;

template <class T> struct Reference {
    T *p;
    Region *region;
    operator T() const
    {
        T value{};
        if (touch(region, p, sizeof(T), alignof(T), READ)) {
            value = *p;
        }
        return value;
    }
    T operator=(T value) const
    {
        if (touch(region, p, sizeof(T), alignof(T), WRITE)) {
            *p = value;
        }
        return value;
    }
    T operator=(const Reference &other) const
    {
        return *this = (T)other;
    }
    Pointer<T> operator&() const;
};

template <class T> struct Pointer {
    T *p;
    Region *region;
    Pointer() : p(NULL), region(NULL)
    {
    }
    Pointer(T *pointer, Region *owner) : p(pointer), region(owner)
    {
    }
    template <class U, class = std::enable_if_t<std::is_same<const U, T>::value>>
    Pointer(const Pointer<U> &other) : p(other.p), region(other.region)
    {
    }
    auto operator[](int64_t i) const
    {
        if constexpr (std::is_const<T>::value) {
            return (std::remove_const_t<T>)Reference<T>{p + i, region};
        } else {
            return Reference<T>{p + i, region};
        }
    }
    auto operator*() const
    {
        return (*this)[0];
    }
    Pointer operator+(int64_t n) const
    {
        return Pointer(p + n, region);
    }
    explicit operator bool() const
    {
        return p != NULL;
    }
    bool operator==(const Pointer &other) const
    {
        return p == other.p;
    }
};

template <class T> struct Reference<const T> {
    const T *p;
    Region *region;
    operator T() const
    {
        T value{};
        if (touch(region, p, sizeof(T), alignof(T), READ)) {
            memcpy((void *)&value, p, sizeof(T));
        }
        return value;
    }
};

template <class T> Pointer<T> Reference<T>::operator&() const
{
    return Pointer<T>(p, region);
}
} // namespace emu

#define PORT_NAME "cuda"
#define PORT_DEVICE inline
#define PORT_KERNEL(threads) inline void
#define PORT_KERNEL_OF(threads, blocks) inline void
#define PORT_UNROLL
#define PORT_ROLLED
#define port_barrier() emu::barrier(__FILE__, __LINE__)

static constexpr int port_lanes = TRIA_EMULATED_LANES;

template <class T> using gptr = emu::Pointer<T>;
template <class T> using sptr = emu::Pointer<T>;

template <class T> inline gptr<T> port_global(T *pointer)
{
    return gptr<T>(pointer, pointer != NULL ? emu::find_region(pointer) : NULL);
}
template <class T> inline sptr<T> port_shared(uint32_t offset)
{
    emu::Region *region;
    unsigned char *memory = emu::shared_memory(&region);
    return sptr<T>((T *)(memory + offset), region);
}
template <class V, class B> inline V port_load(emu::Pointer<B> bytes, int64_t offset)
{
    return emu::Reference<const V>{(const V *)((const unsigned char *)bytes.p + offset), bytes.region};
}
template <class V> inline void port_store(emu::Pointer<unsigned char> bytes, int64_t offset, const V &value)
{
    emu::Reference<V>{(V *)(bytes.p + offset), bytes.region} = value;
}
inline int port_thread()
{
    return emu::thread();
}
inline int port_threads()
{
    return emu::threads();
}
inline int port_block_x()
{
    return emu::block(0);
}
inline int port_block_y()
{
    return emu::block(1);
}
inline int port_block_z()
{
    return emu::block(2);
}
inline int port_grid_x()
{
    return emu::grid_x();
}
template <class T> inline T port_shuffle_down(T value, int delta)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register pair");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = emu::collective(0, bits, delta);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
inline uint64_t port_ballot(bool predicate)
{
    return emu::collective(1, predicate, 0);
}
inline int port_count_bits(uint64_t bits)
{
    return __builtin_popcountll(bits);
}
inline void port_atomic_or(emu::Pointer<uint32_t> target, uint32_t bits)
{
    if (emu::touch(target.region, target.p, sizeof(bits), alignof(uint32_t), emu::ATOMIC)) {
        *target.p |= bits;
    }
}
inline void port_atomic_add(emu::Pointer<int32_t> target, int32_t value)
{
    if (emu::touch(target.region, target.p, sizeof(value), alignof(int32_t), emu::ATOMIC)) {
        *target.p += value;
    }
}
inline void port_atomic_max(emu::Pointer<int32_t> target, int32_t value)
{
    if (emu::touch(target.region, target.p, sizeof(value), alignof(int32_t), emu::ATOMIC)) {
        *target.p = *target.p > value ? *target.p : value;
    }
}
inline float port_fma(float a, float b, float c)
{
    return a * b + c;
}
inline float port_sqrt(float x)
{
    return sqrtf(x);
}
inline float port_divide(float a, float b)
{
    return a / b;
}
inline float port_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
inline uint32_t port_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline float port_half(uint16_t bits)
{
    /* exponent and mantissa, moved into place, are off by the biases' difference, 2^(127-15) */
    const float magnitude = port_bits_float((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
    const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    return port_bits_float(port_float_bits(magnitude) | special | (uint32_t)(bits & 0x8000) << 16);
}

/* ---- the part of the runtime that the host code uses ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorLaunchFailure = 719,
    cudaErrorDeviceLost = 46,
    cudaErrorStreamCaptureUnsupported = 900
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeThreadLocal = 1 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int multiProcessorCount;
};
struct cudaPointerAttributes {
    cudaMemoryType type;
};
typedef struct EmulatedStream *cudaStream_t;
typedef struct EmulatedEvent *cudaEvent_t;
typedef struct EmulatedGraph *cudaGraph_t;
typedef struct EmulatedGraph *cudaGraphExec_t;

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void **pointer, size_t size);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMallocHost(void **pointer, size_t size);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer);

inline bool port_reachable(const cudaPointerAttributes &attributes)
{
    return attributes.type != cudaMemoryTypeUnregistered;
}

/* A device's identity; false when the runtime does not tell. */
inline bool port_uuid(const cudaDeviceProp &properties, unsigned char *uuid)
{
    __builtin_memcpy(uuid, properties.uuid.bytes, 16);
    return true;
}

namespace emu
{
cudaError_t launch(const char *name, dim3 grid, int threads, size_t shared, cudaStream_t stream,
                   std::function<void()> kernel);
}
#define PORT_LAUNCH(kernel, grid, threads, shared, stream, argument)                                       \
    emu::launch(#kernel, (grid), (threads), (shared), (stream), [call = (argument)] { kernel(call); })

#endif

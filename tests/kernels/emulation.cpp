/* emulation.cpp - see emulation.h. */
#include "emulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#else
#define WITH_ASAN 0
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

/* ---- what was found ---- */

static const char *const problem_names[emu::PROBLEM_KINDS] = {
    "out of bounds", "misaligned",        "uninitialised", "shared race",
    "global race",   "divergent barrier", "divergent warp"};
static int problem_counts[emu::PROBLEM_KINDS];
static char problem_text[512];
static const char *kernel_name = "";

static void report(emu::Problem kind, const char *format, ...)
{
    int total = 0;
    for (int count : problem_counts) {
        total += count;
    }
    if (total == 0) {
        int n = snprintf(problem_text, sizeof(problem_text), "%s: %s: ", kernel_name, problem_names[kind]);
        va_list args;
        va_start(args, format);
        vsnprintf(problem_text + n, sizeof(problem_text) - (size_t)n, format, args);
        va_end(args);
    }
    problem_counts[kind]++;
}

int emu::problems(Problem kind)
{
    return problem_counts[kind];
}

int emu::problems()
{
    int total = 0;
    for (int count : problem_counts) {
        total += count;
    }
    return total;
}

const char *emu::first_problem()
{
    return problem_text;
}

void emu::clear_problems()
{
    memset(problem_counts, 0, sizeof(problem_counts));
    problem_text[0] = '\0';
}

/* ---- memory ---- */

enum { WHO_ATOMIC = 0xfffe, WHO_MANY = 0xffff };

/* Who touched some bytes last, and when: intervals are numbered, a new one begins with every block and
 * barrier. 0 = never. */
struct Shadow {
    uint32_t written;
    uint32_t read;
    uint16_t writer;
    uint16_t reader;
    bool read_elsewhere; /* by another block of the launch in which `read` lies */
};

/* Bytes that have only ever been touched together share a shadow: granules begin as wide as the widest
 * access and are halved when an access covers a part of one. */
static constexpr size_t widest_granule = 16;

struct emu::Region {
    unsigned char *begin;
    size_t size;
    bool pinned;
    bool shared;
    size_t granule;
    std::vector<Shadow> shadow;
};

static void reset_shadow(emu::Region *region, size_t granule)
{
    region->granule = granule;
    region->shadow.assign((region->size + granule - 1) / granule, Shadow());
}

/* The first of the shadows of exactly these bytes. */
static Shadow *shadow_of(emu::Region *region, size_t first, size_t size)
{
    while ((first | size) % region->granule != 0) {
        const std::vector<Shadow> coarse = std::move(region->shadow);
        reset_shadow(region, region->granule / 2);
        for (size_t i = 0; i < region->shadow.size(); i++) {
            region->shadow[i] = coarse[i / 2];
        }
    }
    return region->shadow.data() + first / region->granule;
}

static std::map<const unsigned char *, emu::Region *> regions;
static emu::Region shared_region;
static uint32_t interval = 1;
static uint32_t launch_begin;
static uint32_t block_begin;
static int current = -1; /* running thread of the block, -1 outside kernels */
static int block_index[3];

emu::Region *emu::find_region(const void *address)
{
    auto next = regions.upper_bound((const unsigned char *)address);
    if (next == regions.begin()) {
        return NULL;
    }
    Region *region = (--next)->second;
    return (const unsigned char *)address < region->begin + region->size ? region : NULL;
}

static void race(const emu::Region *region, size_t at, int other, bool other_block, const char *what)
{
    report(
        region->shared ? emu::SHARED_RACE : emu::GLOBAL_RACE,
        "block (%d,%d,%d) thread %d %s byte %zu of %zu that thread %d%s touched without a barrier between",
        block_index[0], block_index[1], block_index[2], current, what, at, region->size, other,
        other_block ? " of another block" : "");
}

bool emu::touch(Region *region, const void *address, size_t size, size_t alignment, Access access)
{
    const unsigned char *p = (const unsigned char *)address;
    if (region == NULL || p < region->begin || p + size > region->begin + region->size) {
        report(OUT_OF_BOUNDS,
               "block (%d,%d,%d) thread %d %s %zu bytes at offset %lld of an allocation of %zu",
               block_index[0], block_index[1], block_index[2], current, access == READ ? "reads" : "writes",
               size, region != NULL ? (long long)(p - region->begin) : -1,
               region != NULL ? region->size : (size_t)0);
        return false;
    }
    if ((uintptr_t)p % alignment != 0) {
        report(MISALIGNED, "thread %d: %zu bytes at offset %lld", current, size,
               (long long)(p - region->begin));
        return false;
    }
    const size_t first = (size_t)(p - region->begin);
    const uint16_t me = (uint16_t)current;
    Shadow *shadow = shadow_of(region, first, size);
    for (size_t at = first; at < first + size; at += region->granule) {
        Shadow &s = *shadow++;
        const bool write_conflicts = s.written >= launch_begin &&
                                     (s.written < block_begin || (s.written == interval && s.writer != me));
        if (access != WRITE && s.written == 0) {
            report(UNINITIALISED,
                   "block (%d,%d,%d) thread %d reads byte %zu of %zu, which was never written",
                   block_index[0], block_index[1], block_index[2], current, at, region->size);
        }
        if (write_conflicts && !(access == ATOMIC && s.writer == WHO_ATOMIC)) {
            race(region, at, s.writer, s.written < block_begin, access == READ ? "reads" : "writes");
        }
        if (access == READ) {
            if (s.read < launch_begin) {
                s.read_elsewhere = false;
            } else if (s.read < block_begin) {
                s.read_elsewhere = true;
            }
            s.reader = s.read == interval && s.reader != me ? (uint16_t)WHO_MANY : me;
            s.read = interval;
        } else {
            if (s.read >= launch_begin &&
                (s.read < block_begin || s.read_elsewhere || (s.read == interval && s.reader != me))) {
                race(region, at, s.reader, s.read < block_begin || s.read_elsewhere, "writes");
            }
            s.written = interval;
            s.writer = access == ATOMIC ? (uint16_t)WHO_ATOMIC : me;
        }
    }
    return true;
}

static void mark_written(emu::Region *region, const void *address, size_t size)
{
    Shadow *shadow = shadow_of(region, (size_t)((const unsigned char *)address - region->begin), size);
    for (size_t at = 0; at < size; at += region->granule) {
        shadow->written = interval;
        shadow->writer = WHO_MANY;
        shadow++;
    }
}

unsigned char *emu::shared_memory(Region **region)
{
    *region = &shared_region;
    return shared_region.begin;
}

/* ---- fibers: the threads of one block ---- */

enum State { READY, AT_BARRIER, AT_COLLECTIVE, DONE };

struct Fiber {
    State state;
    char *stack;
    void *stack_pointer;
    const char *file;
    int line;
    int kind;
    int delta;
    uint64_t value;
    void *fake_stack;
};

static constexpr size_t stack_size = 96 * 1024;
static std::vector<Fiber> fibers;
static int n_threads;
static int n_blocks_x;
static std::function<void()> *body;
static uint32_t order_seed;
static void *scheduler_stack_pointer;
#if WITH_ASAN
static const void *scheduler_stack;
static size_t scheduler_stack_size;
#endif

#if defined(__x86_64__)
extern "C" void emu_switch(void **save, void *load);
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
#else
static ucontext_t contexts[1025];
static void emu_switch(void **save, void *load)
{
    *save = *save == NULL ? &contexts[1024] : *save;
    swapcontext((ucontext_t *)*save, (ucontext_t *)load);
}
#endif

static void to_scheduler()
{
    Fiber &me = fibers[(size_t)current];
#if WITH_ASAN
    __sanitizer_start_switch_fiber(me.state == DONE ? NULL : &me.fake_stack, scheduler_stack,
                                   scheduler_stack_size);
#endif
    emu_switch(&me.stack_pointer, scheduler_stack_pointer);
#if WITH_ASAN
    __sanitizer_finish_switch_fiber(me.fake_stack, NULL, NULL);
#endif
}

static void fiber_main()
{
#if WITH_ASAN
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_size);
#endif
    (*body)();
    fibers[(size_t)current].state = DONE;
    to_scheduler();
    abort();
}

static void fiber_begin(Fiber &fiber, int index)
{
    fiber.state = READY;
#if defined(__x86_64__)
    (void)index;
    /* as if emu_switch() had been called from the start of fiber_main: six registers, its address, and a
     * slot that keeps the stack aligned as after a call */
    void **top = (void **)(fiber.stack + stack_size - 64);
    *--top = NULL;
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) {
        *--top = NULL;
    }
    fiber.stack_pointer = top;
#else
    ucontext_t *context = &contexts[index];
    getcontext(context);
    context->uc_stack.ss_sp = fiber.stack;
    context->uc_stack.ss_size = stack_size;
    context->uc_link = NULL;
    makecontext(context, fiber_main, 0);
    fiber.stack_pointer = context;
#endif
}

static void run_fiber(int index)
{
    Fiber &fiber = fibers[(size_t)index];
    current = index;
#if WITH_ASAN
    void *own_fake_stack = NULL;
    __sanitizer_start_switch_fiber(&own_fake_stack, fiber.stack, stack_size);
#endif
    emu_switch(&scheduler_stack_pointer, fiber.stack_pointer);
#if WITH_ASAN
    __sanitizer_finish_switch_fiber(own_fake_stack, NULL, NULL);
#endif
    current = -1;
}

int emu::thread()
{
    return current;
}

int emu::threads()
{
    return n_threads;
}

int emu::block(int axis)
{
    return block_index[axis];
}

int emu::grid_x()
{
    return n_blocks_x;
}

void emu::barrier(const char *file, int line)
{
    Fiber &me = fibers[(size_t)current];
    me.state = AT_BARRIER;
    me.file = file;
    me.line = line;
    for (int i = 0; i < n_threads; i++) {
        if (fibers[(size_t)i].state != AT_BARRIER) {
            to_scheduler();
            return;
        }
    }
    interval++;
    for (int i = 0; i < n_threads; i++) {
        Fiber &other = fibers[(size_t)i];
        if (other.line != line || strcmp(other.file, file) != 0) {
            report(DIVERGENT_BARRIER, "threads %d and %d wait at different barriers, lines %d and %d",
                   current, i, line, other.line);
        }
        other.state = READY;
    }
}

uint64_t emu::collective(int kind, uint64_t value, int delta)
{
    const int first = current / port_lanes * port_lanes;
    Fiber &me = fibers[(size_t)current];
    me.state = AT_COLLECTIVE;
    me.kind = kind;
    me.value = value;
    me.delta = delta;
    for (int i = first; i < first + port_lanes; i++) {
        if (fibers[(size_t)i].state != AT_COLLECTIVE) {
            to_scheduler();
            return me.value;
        }
    }
    uint64_t values[port_lanes];
    uint64_t votes = 0;
    for (int i = 0; i < port_lanes; i++) {
        values[i] = fibers[(size_t)(first + i)].value;
        votes |= (uint64_t)(values[i] != 0) << i;
    }
    for (int i = 0; i < port_lanes; i++) {
        Fiber &other = fibers[(size_t)(first + i)];
        if (other.kind != kind || other.delta != delta) {
            report(DIVERGENT_WARP, "threads %d and %d are in different warp operations", current,
                   first + i);
        }
        other.value = kind == 1 ? votes : values[i + delta < port_lanes ? i + delta : i];
        other.state = READY;
    }
    return me.value;
}

static void report_stuck()
{
    int waiting = -1;
    int other = -1;
    for (int i = 0; i < n_threads; i++) {
        if (fibers[(size_t)i].state == AT_BARRIER || fibers[(size_t)i].state == AT_COLLECTIVE) {
            waiting = i;
        }
    }
    for (int i = 0; i < n_threads; i++) {
        if (fibers[(size_t)i].state != fibers[(size_t)waiting].state) {
            other = i;
        }
    }
    const Fiber &fiber = fibers[(size_t)waiting];
    if (fiber.state == AT_BARRIER) {
        report(emu::DIVERGENT_BARRIER, "thread %d waits at line %d for thread %d, which never comes",
               waiting, fiber.line, other);
    } else {
        report(emu::DIVERGENT_WARP, "thread %d waits in a warp operation for others that never come",
               waiting);
    }
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(*state >> 4) * n) >> 28);
}

static void shuffle(std::vector<int> &order, uint32_t *state)
{
    for (size_t i = 0; i < order.size(); i++) {
        order[i] = (int)i;
    }
    for (size_t i = order.size(); i > 1 && order_seed != 0; i--) {
        std::swap(order[i - 1], order[random_below(state, (uint32_t)i)]);
    }
}

static void run_block(const std::vector<int> &order)
{
    for (int i = 0; i < n_threads; i++) {
        fiber_begin(fibers[(size_t)i], i);
    }
    for (;;) {
        bool progress = false;
        bool alive = false;
        for (int i : order) {
            if (fibers[(size_t)i].state == READY) {
                run_fiber(i);
                progress = true;
            }
            alive = alive || fibers[(size_t)i].state != DONE;
        }
        if (!alive) {
            return;
        }
        if (!progress) {
            report_stuck();
            return; /* the stacks are simply reused */
        }
    }
}

static void run_kernel(const char *name, dim3 grid, int threads, size_t shared,
                       std::function<void()> *kernel)
{
    kernel_name = name;
    body = kernel;
    n_threads = threads;
    n_blocks_x = (int)grid.x;
    while ((int)fibers.size() < threads) {
        Fiber fiber{};
        fiber.stack =
            (char *)mmap(NULL, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fibers.push_back(fiber);
    }
    std::vector<unsigned char> memory(shared + 16);
    uint32_t random = order_seed;
    std::vector<int> thread_order((size_t)threads);
    std::vector<int> block_order((size_t)grid.x * grid.y * grid.z);
    shuffle(block_order, &random);
    shared_region.begin = memory.data() + (16 - (uintptr_t)memory.data() % 16) % 16;
    shared_region.size = shared;
    shared_region.shared = true;
    shared_region.granule = widest_granule;
    launch_begin = ++interval;
    for (int b : block_order) {
        block_begin = ++interval;
        block_index[0] = b % (int)grid.x;
        block_index[1] = b / (int)grid.x % (int)grid.y;
        block_index[2] = b / (int)(grid.x * grid.y);
        reset_shadow(&shared_region, shared_region.granule);
        shuffle(thread_order, &random);
        run_block(thread_order);
    }
    launch_begin = ++interval;
    block_begin = launch_begin;
}

void emu::set_order(uint32_t seed)
{
    order_seed = seed;
}

/* ---- the runtime ---- */

struct EmulatedStream {
    std::vector<std::function<void()>> queue;
    bool capturing;
    std::vector<std::function<void()>> captured;
};
struct EmulatedEvent {
    EmulatedStream *stream;
};
struct EmulatedGraph {
    std::vector<std::function<void()>> work;
};

static EmulatedStream default_stream;
static std::vector<EmulatedStream *> streams = {&default_stream};
static int allocation_countdown;
static int launch_countdown;
static bool device_lost;
static int n_devices = 1;
static int n_live;
static int n_total;
static int n_launches;
static size_t bytes_of[2]; /* device, pinned */

void emu::fail_allocation(int n)
{
    allocation_countdown = n;
}

void emu::fail_launch(int n)
{
    launch_countdown = n;
}

void emu::lose_device(bool lost)
{
    device_lost = lost;
}

void emu::set_device_count(int n)
{
    n_devices = n;
}

int emu::live_allocations()
{
    return n_live;
}

int emu::total_allocations()
{
    return n_total;
}

size_t emu::device_bytes()
{
    return bytes_of[0];
}

size_t emu::pinned_bytes()
{
    return bytes_of[1];
}

int emu::launches()
{
    return n_launches;
}

static bool countdown(int *counter)
{
    return *counter > 0 && --*counter == 0;
}

static bool any_capturing()
{
    for (EmulatedStream *stream : streams) {
        if (stream->capturing) {
            return true;
        }
    }
    return false;
}

static EmulatedStream *stream_of(cudaStream_t stream)
{
    return stream != NULL ? stream : &default_stream;
}

static cudaError_t enqueue(cudaStream_t handle, std::function<void()> work)
{
    EmulatedStream *stream = stream_of(handle);
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    (stream->capturing ? stream->captured : stream->queue).push_back(std::move(work));
    return cudaSuccess;
}

static cudaError_t drain(EmulatedStream *stream)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    if (stream->capturing) {
        return cudaErrorStreamCaptureUnsupported;
    }
    for (size_t i = 0; i < stream->queue.size(); i++) {
        std::function<void()> work = std::move(stream->queue[i]);
        work();
    }
    stream->queue.clear();
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorDeviceLost:
        return "device lost";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    default:
        return "invalid argument";
    }
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = n_devices;
    return n_devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device < 0 || device >= n_devices) {
        return cudaErrorInvalidDevice;
    }
    memset(properties, 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "emulated device, warps of %d", port_lanes);
    for (int i = 0; i < 16; i++) {
        properties->uuid.bytes[i] = (char)(i + 16 * device);
    }
    properties->totalGlobalMem = (size_t)1 << 30;
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device_lost                         ? cudaErrorDeviceLost
           : device >= 0 && device < n_devices ? cudaSuccess
                                               : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceSynchronize()
{
    for (EmulatedStream *stream : streams) {
        cudaError_t error = drain(stream);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}

static cudaError_t allocate(void **pointer, size_t size, bool pinned)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    if (any_capturing()) {
        return cudaErrorStreamCaptureUnsupported;
    }
    if (countdown(&allocation_countdown)) {
        return cudaErrorMemoryAllocation;
    }
    emu::Region *region = new emu::Region();
    region->begin = (unsigned char *)aligned_alloc(256, (size + 255) / 256 * 256);
    region->size = size;
    region->pinned = pinned;
    memset(region->begin, 0xa5, size);
    reset_shadow(region, widest_granule);
    regions[region->begin] = region;
    n_live++;
    n_total++;
    bytes_of[pinned] += size;
    *pointer = region->begin;
    return cudaSuccess;
}

/* Freeing waits for the device. */
static cudaError_t release(void *pointer, bool pinned)
{
    if (pointer == NULL) {
        return cudaSuccess;
    }
    emu::Region *region = emu::find_region(pointer);
    if (region == NULL || region->begin != pointer || region->pinned != pinned) {
        return cudaErrorInvalidValue;
    }
    if (!device_lost) {
        cudaDeviceSynchronize();
    }
    regions.erase(region->begin);
    bytes_of[pinned] -= region->size;
    free(region->begin);
    delete region;
    n_live--;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    return allocate(pointer, size, false);
}

cudaError_t cudaFree(void *pointer)
{
    return release(pointer, false);
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return allocate(pointer, size, true);
}

cudaError_t cudaFreeHost(void *pointer)
{
    return release(pointer, true);
}

static void copy_now(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    emu::Region *target = emu::find_region(to);
    emu::Region *source = emu::find_region(from);
    kernel_name = "cudaMemcpy";
    if ((kind != cudaMemcpyDeviceToHost && (target == NULL || target->pinned)) ||
        (kind != cudaMemcpyHostToDevice && (source == NULL || source->pinned)) ||
        (target != NULL && (unsigned char *)to + size > target->begin + target->size) ||
        (source != NULL && (const unsigned char *)from + size > source->begin + source->size)) {
        report(emu::OUT_OF_BOUNDS, "copy of %zu bytes", size);
        return;
    }
    memcpy(to, from, size);
    if (target != NULL) {
        mark_written(target, to, size);
    }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (size == 0) {
        return cudaSuccess;
    }
    if (kind == cudaMemcpyHostToDevice && emu::find_region(from) == NULL) {
        /* pageable memory has been read when the call returns */
        std::vector<unsigned char> staged((const unsigned char *)from, (const unsigned char *)from + size);
        return enqueue(stream, [=] { copy_now(to, staged.data(), size, kind); });
    }
    return enqueue(stream, [=] { copy_now(to, from, size, kind); });
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    for (size_t y = 0; y < height; y++) {
        cudaError_t error = cudaMemcpyAsync((char *)to + y * to_pitch, (const char *)from + y * from_pitch,
                                            width, kind, stream);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    return enqueue(stream, [=] {
        emu::Region *region = emu::find_region(to);
        kernel_name = "cudaMemset";
        if (region == NULL || (unsigned char *)to + size > region->begin + region->size) {
            report(emu::OUT_OF_BOUNDS, "memset of %zu bytes", size);
            return;
        }
        memset(to, value, size);
        mark_written(region, to, size);
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    if (countdown(&allocation_countdown)) {
        return cudaErrorMemoryAllocation;
    }
    *stream = new EmulatedStream();
    streams.push_back(*stream);
    n_live++;
    n_total++;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    drain(stream);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) {
            streams.erase(streams.begin() + (ptrdiff_t)i);
        }
    }
    delete stream;
    n_live--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return drain(stream_of(stream));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    *status = stream_of(stream)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (stream == NULL || stream->capturing) {
        return cudaErrorInvalidValue;
    }
    stream->capturing = true;
    stream->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (stream == NULL || !stream->capturing) {
        return cudaErrorInvalidValue;
    }
    stream->capturing = false;
    *graph = new EmulatedGraph{std::move(stream->captured)};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new EmulatedGraph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    for (const std::function<void()> &work : exec->work) {
        cudaError_t error = enqueue(stream, work);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    if (countdown(&allocation_countdown)) {
        return cudaErrorMemoryAllocation;
    }
    *event = new EmulatedEvent{NULL};
    n_live++;
    n_total++;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (device_lost) {
        return cudaErrorDeviceLost;
    }
    if (stream_of(stream)->capturing) {
        return cudaErrorStreamCaptureUnsupported;
    }
    event->stream = stream_of(stream);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    for (EmulatedStream *stream : streams) {
        if (stream == event->stream) {
            return drain(stream);
        }
    }
    return cudaSuccess; /* never recorded, or its stream has been destroyed and so was waited for */
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    n_live--;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer)
{
    const emu::Region *region = emu::find_region(pointer);
    attributes->type = region == NULL   ? cudaMemoryTypeUnregistered
                       : region->pinned ? cudaMemoryTypeHost
                                        : cudaMemoryTypeDevice;
    return device_lost ? cudaErrorDeviceLost : cudaSuccess;
}

cudaError_t emu::launch(const char *name, dim3 grid, int threads, size_t shared, cudaStream_t stream,
                        std::function<void()> kernel)
{
    if (threads <= 0 || threads > 1024 || threads % 64 != 0 || shared > 48 * 1024 || grid.x == 0 ||
        grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        return cudaErrorInvalidValue;
    }
    if (countdown(&launch_countdown)) {
        return cudaErrorLaunchFailure;
    }
    n_launches++;
    return enqueue(stream, [=] {
        std::function<void()> copy = kernel;
        run_kernel(name, grid, threads, shared, &copy);
    });
}

/* plugin.cpp - the backend table: devices, and the memory of plans. */
#include "context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tria/cuda.h"

namespace tria_gpu
{
tria_status fail(tria_error *error, tria_status code, const char *format, ...)
{
    if (error != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->message, sizeof(error->message), format, args);
        va_end(args);
        error->code = code;
    }
    return code;
}

tria_status check(cudaError_t result, const char *what, tria_error *error)
{
    if (result == cudaSuccess) {
        return TRIA_OK;
    }
    ignore(cudaGetLastError()); /* not to be found by the engine's next check */
    return fail(error, result == cudaErrorMemoryAllocation ? TRIA_E_MEMORY : TRIA_E_DEVICE, "%s: %s: %s",
                PORT_NAME, what, cudaGetErrorString(result));
}

/* ---- devices ---- */

static int32_t probe(tria_error *error)
{
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) {
        ignore(cudaGetLastError());
        fail(error, TRIA_E_DEVICE, "%s: no usable device: %s", PORT_NAME, cudaGetErrorString(result));
        return TRIA_E_DEVICE;
    }
    return count;
}

static void format_uuid(const cudaDeviceProp &properties, char *out)
{
    unsigned char uuid[16];
    out[0] = '\0';
    for (int i = 0; port_uuid(properties, uuid) && i < 16; i++) {
        snprintf(out + 2 * i, 3, "%02x", (unsigned)uuid[i]);
    }
}

static tria_status device_info(int32_t index, tria_v1_device_info *info, tria_error *error)
{
    cudaDeviceProp properties;
    TRIA_GPU_TRY(check(cudaGetDeviceProperties(&properties, index), "device properties", error));
    memset(info, 0, sizeof(*info));
    snprintf(info->name, sizeof(info->name), "%s", properties.name);
    format_uuid(properties, info->uuid);
    info->memory = (int64_t)properties.totalGlobalMem;
    return TRIA_OK;
}

/* The device that is asked for: the engine's own, by name or UUID, or by index. */
static tria_status find_device(const tria_device_params *params, int count, int *ordinal, tria_error *error)
{
    if (params->native != NULL) {
        const tria_cuda_device *native = (const tria_cuda_device *)params->native;
        *ordinal = native->ordinal;
    } else if (params->name != NULL) {
        for (*ordinal = 0; *ordinal < count; ++*ordinal) {
            tria_v1_device_info info;
            TRIA_GPU_TRY(device_info(*ordinal, &info, error));
            if (strstr(info.name, params->name) != NULL || strcmp(info.uuid, params->name) == 0) {
                return TRIA_OK;
            }
        }
        return fail(error, TRIA_E_DEVICE, "%s: none of %d devices is called \"%s\"", PORT_NAME, count,
                    params->name);
    } else {
        *ordinal = params->index;
    }
    if (*ordinal < 0 || *ordinal >= count) {
        return fail(error, TRIA_E_DEVICE, "%s: device %d does not exist, there are %d", PORT_NAME, *ordinal,
                    count);
    }
    return TRIA_OK;
}

static tria_status device_open(const tria_device_params *params, const tria_v1_host *host, void **device,
                               tria_error *error)
{
    cudaDeviceProp properties;
    int ordinal = 0;
    const int32_t count = probe(error);
    if (count < 0) {
        return count;
    }
    TRIA_GPU_TRY(find_device(params, count, &ordinal, error));
    TRIA_GPU_TRY(check(cudaGetDeviceProperties(&properties, ordinal), "device properties", error));
    Device *opened =
        (Device *)host->env->allocate(host->env->allocator_context, sizeof(Device), alignof(Device));
    if (opened == NULL) {
        return fail(error, TRIA_E_MEMORY, "%s: cannot allocate a device handle", PORT_NAME);
    }
    memset(opened, 0, sizeof(*opened));
    opened->host = host;
    opened->ordinal = ordinal;
    opened->n_multiprocessors = properties.multiProcessorCount > 0 ? properties.multiProcessorCount : 1;
    snprintf(opened->name, sizeof(opened->name), "%s", properties.name);
    *device = opened;
    return TRIA_OK;
}

static void device_close(void *device)
{
    const tria_env *env = ((Device *)device)->host->env;
    env->release(env->allocator_context, device);
}

static const char *device_name(const void *device)
{
    return ((const Device *)device)->name;
}

static tria_status supports(void *, const tria_v1_plan *plan, tria_error *error)
{
    return check_supported(plan, error);
}

/* ---- the memory of a plan: one list, for allocating, measuring and releasing ---- */

enum Memory { HOST, HOST_UNTOUCHED, PINNED, DEVICE };

struct ArraySpec {
    void **pointer;
    size_t count;
    size_t size;
    Memory memory;
};
static constexpr int max_arrays = 32 + n_control_slots;

static int list_arrays(Context *c, size_t static_bytes, ArraySpec *specs)
{
    const tria_v1_plan *v1 = c->v1;
    const Plan &plan = c->plan;
    const size_t s = (size_t)v1->params->max_sequences;
    const size_t rows = times(s, (size_t)v1->max_rows);
    const size_t n_kv = (size_t)plan.n_kv;
    const size_t n_sets = (size_t)plan.n_sets;
    const size_t n_queries = (size_t)plan.n_queries;
    int n = 0;
#define ARRAY(field, number, where)                                                                        \
    specs[n++] = ArraySpec{(void **)&c->field, number, sizeof(*c->field), where}
    ARRAY(set_slots, n_sets, HOST);
    ARRAY(set_reduces, n_sets, HOST);
    ARRAY(staged, (size_t)c->max_staged, HOST);
    ARRAY(staged_first, (size_t)c->max_staged, HOST);
    ARRAY(known_bases, times(2 * (size_t)v1->n_layers, s), HOST);
    ARRAY(compact_scratch, c->host->compact_scratch(v1), HOST);
    ARRAY(bare_events, s, HOST);
    ARRAY(bare_v1_events, s, HOST);
    ARRAY(fetched, s, HOST);
    ARRAY(fetched_rows, times(rows, n_sets), HOST_UNTOUCHED);
    ARRAY(fetched_counts, times(s, n_sets), HOST);
    ARRAY(results, times(s, c->result_count), PINNED);
    for (int i = 0; i < n_control_slots; i++) {
        ARRAY(control[i].pinned, control_bytes(c), PINNED);
    }
    ARRAY(control_device, control_bytes(c), DEVICE);
    ARRAY(statics, static_bytes, DEVICE);
    ARRAY(phases, times(s, c->phase_count), DEVICE);
    ARRAY(lin, times(s, c->lin_count), DEVICE);
    ARRAY(raw, times(rows, n_queries), DEVICE);
    ARRAY(grouped, times(rows, n_kv), DEVICE);
    ARRAY(final_scores, times(rows, n_sets), DEVICE);
    ARRAY(pooled, plan.pool_radius > 0 ? times(rows, n_sets) : 0, DEVICE);
    ARRAY(reduce_counts, plan.reduces ? times(rows, n_sets) : 0, DEVICE);
    ARRAY(partials, times(s, c->partial_count), DEVICE);
    ARRAY(normals, times(s, n_queries), DEVICE);
    ARRAY(kv_normals, times(s, n_kv), DEVICE);
    ARRAY(protect, times(s, n_kv * (size_t)plan.row_words), DEVICE);
    ARRAY(counters, times(s, c->counter_count), DEVICE);
    ARRAY(positions, times(s, position_count(c)), DEVICE);
    ARRAY(keep_rows, times(rows, n_sets), DEVICE);
    ARRAY(keep_counts, times(s, n_sets), DEVICE);
    ARRAY(move_begin, times(s, n_kv), DEVICE);
#undef ARRAY
    return n;
}

static tria_status allocate_array(const tria_env *env, const ArraySpec &spec, tria_error *error)
{
    const size_t bytes = times(spec.count, spec.size);
    if (bytes == 0) {
        return TRIA_OK;
    }
    switch (spec.memory) {
    case DEVICE:
        return check(cudaMalloc(spec.pointer, bytes), "allocating the workspace", error);
    case PINNED:
        return check(cudaMallocHost(spec.pointer, bytes), "allocating pinned memory", error);
    default:
        *spec.pointer = env->allocate(env->allocator_context, bytes, 64);
        if (*spec.pointer == NULL) {
            return fail(error, TRIA_E_MEMORY, "%s: cannot allocate %zu bytes", PORT_NAME, bytes);
        }
        if (spec.memory == HOST) {
            memset(*spec.pointer, 0, bytes);
        }
        return TRIA_OK;
    }
}

static void release_array(const tria_env *env, const ArraySpec &spec)
{
    if (*spec.pointer == NULL) {
        return;
    }
    if (spec.memory == DEVICE) {
        ignore(cudaFree(*spec.pointer));
    } else if (spec.memory == PINNED) {
        ignore(cudaFreeHost(*spec.pointer));
    } else {
        env->release(env->allocator_context, *spec.pointer);
    }
}

/* Describes the plan in host memory, then on the device. */
static tria_status upload_plan(Context *c, size_t bytes, tria_error *error)
{
    const tria_env *env = c->host->env;
    unsigned char *here = (unsigned char *)env->allocate(env->allocator_context, bytes + 1, 64);
    if (here == NULL) {
        return fail(error, TRIA_E_MEMORY, "%s: cannot allocate %zu bytes", PORT_NAME, bytes);
    }
    memset(here, 0, bytes + 1);
    Blob blob = {here, c->statics, 0};
    describe(c, &blob);
    tria_status status = TRIA_OK;
    if (bytes > 0) {
        status = check(cudaMemcpyAsync(c->statics, here, bytes, cudaMemcpyHostToDevice, c->own_stream),
                       "uploading the plan", error);
    }
    if (status == TRIA_OK) {
        status = check(cudaStreamSynchronize(c->own_stream), "uploading the plan", error);
    }
    env->release(env->allocator_context, here);
    return status;
}

static size_t measure_statics(Context *c)
{
    Blob blob = {NULL, NULL, 0};
    describe(c, &blob);
    return blob.used;
}

static void plan_destroy(void *context)
{
    Context *c = (Context *)context;
    const tria_env *env = c->host->env;
    ArraySpec specs[max_arrays];
    ignore(cudaSetDevice(c->device->ordinal));
    if (c->last_stream != NULL) {
        ignore(cudaStreamSynchronize(c->last_stream));
    }
    release_staging(c);
    const int n = list_arrays(c, 0, specs);
    for (int i = 0; i < n; i++) {
        release_array(env, specs[i]);
    }
    for (int i = 0; i < n_control_slots; i++) {
        if (c->control[i].uploaded != NULL) {
            ignore(cudaEventDestroy(c->control[i].uploaded));
        }
    }
    if (c->own_stream != NULL) {
        ignore(cudaStreamDestroy(c->own_stream));
    }
    env->release(env->allocator_context, c);
}

static tria_status set_up(Context *c, tria_error *error)
{
    ArraySpec specs[max_arrays];
    const size_t static_bytes = measure_statics(c);
    TRIA_GPU_TRY(check(cudaSetDevice(c->device->ordinal), "selecting the device", error));
    TRIA_GPU_TRY(check(cudaStreamCreateWithFlags(&c->own_stream, cudaStreamNonBlocking),
                       "creating a stream", error));
    c->last_stream = c->own_stream;
    for (int i = 0; i < n_control_slots; i++) {
        TRIA_GPU_TRY(check(cudaEventCreateWithFlags(&c->control[i].uploaded, cudaEventDisableTiming),
                           "creating an event", error));
    }
    const int n = list_arrays(c, static_bytes, specs);
    for (int i = 0; i < n; i++) {
        TRIA_GPU_TRY(allocate_array(c->host->env, specs[i], error));
    }
    return upload_plan(c, static_bytes, error);
}

static tria_status plan_create(void *device, const tria_v1_plan *plan, void **context, tria_error *error)
{
    const Device *opened = (const Device *)device;
    const tria_env *env = opened->host->env;
    Context *c = (Context *)env->allocate(env->allocator_context, sizeof(Context), alignof(Context));
    if (c == NULL) {
        return fail(error, TRIA_E_MEMORY, "%s: cannot allocate a context", PORT_NAME);
    }
    memset((void *)c, 0, sizeof(*c));
    c->host = opened->host;
    c->device = opened;
    shape_context(c, plan);
    /* enough blocks that every multiprocessor always has several */
    c->extent.n_blocks = opened->n_multiprocessors * 16;
    const tria_status status = set_up(c, error);
    if (status != TRIA_OK) {
        plan_destroy(c);
        return status;
    }
    *context = c;
    return TRIA_OK;
}

static tria_status score(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                         tria_error *error)
{
    return run_score((Context *)context, events, n_events, stream, error);
}

static tria_status select(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                          tria_error *error)
{
    return run_select((Context *)context, events, n_events, stream, error);
}

static tria_status compact(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                           tria_error *error)
{
    return run_compact((Context *)context, events, n_events, stream, error);
}

static tria_status synchronize(void *context, tria_error *error)
{
    Context *c = (Context *)context;
    TRIA_GPU_TRY(check(cudaSetDevice(c->device->ordinal), "selecting the device", error));
    return check(cudaStreamSynchronize(c->last_stream), "synchronize", error);
}

static tria_status workspace_size(const tria_v1_plan *plan, size_t *host_bytes, size_t *device_bytes,
                                  tria_error *)
{
    Context c;
    tria_v1_host host;
    ArraySpec specs[max_arrays];
    memset((void *)&c, 0, sizeof(c));
    memset(&host, 0, sizeof(host));
    host.compact_scratch = [](const tria_v1_plan *) -> size_t {
        return 0;
    }; /* the core's, a few bytes per page */
    c.host = &host;
    shape_context(&c, plan);
    const int n = list_arrays(&c, measure_statics(&c), specs);
    *host_bytes = sizeof(c);
    *device_bytes = 0;
    for (int i = 0; i < n; i++) {
        *(specs[i].memory == DEVICE ? device_bytes : host_bytes) += times(specs[i].count, specs[i].size);
    }
    return TRIA_OK;
}
} // namespace tria_gpu

extern "C" {
extern __attribute__((visibility("default"))) const tria_backend_v1_table tria_backend_v1;
const tria_backend_v1_table tria_backend_v1 = {
    sizeof(tria_backend_v1_table),
    TRIA_BACKEND_V1_VERSION,
    PORT_NAME,
    tria_gpu::probe,
    tria_gpu::device_info,
    tria_gpu::device_open,
    tria_gpu::device_close,
    tria_gpu::device_name,
    tria_gpu::supports,
    tria_gpu::plan_create,
    tria_gpu::plan_destroy,
    tria_gpu::score,
    tria_gpu::select,
    tria_gpu::compact,
    tria_gpu::synchronize,
    tria_gpu::workspace_size,
    NULL, /* bench/cuda.sh measures */
    NULL,
};
}

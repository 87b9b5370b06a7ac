/* host_device.c - see host_device.h. */
#include "cpu/host_device.h"

#include <stdio.h>
#include <string.h>

int32_t tria_host_probe(tria_error *error)
{
    (void)error;
    return 1;
}

tria_status tria_host_device_info(int32_t index, tria_v1_device_info *info, tria_error *error)
{
    if (index != 0) {
        return tria_fail(error, TRIA_E_DEVICE, "the host has one device, not number %d", index);
    }
    memset(info, 0, sizeof(*info));
    snprintf(info->name, sizeof(info->name), "%s", tria_host_device_name(NULL));
    info->is_cpu = 1;
    return TRIA_OK;
}

tria_status tria_host_device_open(const tria_device_params *params, const tria_v1_host *host, void **device,
                                  tria_error *error)
{
    (void)params;
    (void)error;
    *device = (void *)(uintptr_t)host;
    return TRIA_OK;
}

void tria_host_device_close(void *device)
{
    (void)device;
}

const char *tria_host_device_name(const void *device)
{
    (void)device;
    return "host CPU";
}

/* Whatever the core could resolve; it has checked dtypes, dims and strides. */
tria_status tria_host_supports(void *device, const tria_v1_plan *plan, tria_error *error)
{
    (void)device;
    (void)plan;
    (void)error;
    return TRIA_OK;
}

tria_status tria_host_synchronize(void *context, tria_error *error)
{
    (void)context;
    (void)error;
    return TRIA_OK;
}

tria_status tria_arrays_allocate(const tria_env *env, const tria_array *arrays, size_t count,
                                 const char *what, tria_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (arrays[i].count > 0) {
            *arrays[i].pointer = tria_alloc(env, arrays[i].count, arrays[i].size);
            if (*arrays[i].pointer == NULL) {
                return tria_fail_memory(error, arrays[i].count * arrays[i].size, what);
            }
        }
    }
    return TRIA_OK;
}

void tria_arrays_release(const tria_env *env, const tria_array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tria_free(env, *arrays[i].pointer);
    }
}

size_t tria_arrays_bytes(const tria_array *arrays, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += arrays[i].count * arrays[i].size;
    }
    return bytes;
}

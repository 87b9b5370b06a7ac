/* host_device.h - the part of the backend table that the two built-in backends have in common: their
 * only device is the host itself, and its handle is the core's services. */
#ifndef TRIA_CPU_HOST_DEVICE_H
#define TRIA_CPU_HOST_DEVICE_H

#include "plan_internal.h"

int32_t tria_host_probe(tria_error *error);
tria_status tria_host_device_info(int32_t index, tria_v1_device_info *info, tria_error *error);
tria_status tria_host_device_open(const tria_device_params *params, const tria_v1_host *host, void **device,
                                  tria_error *error);
void tria_host_device_close(void *device);
const char *tria_host_device_name(const void *device);
tria_status tria_host_supports(void *device, const tria_v1_plan *plan, tria_error *error);
tria_status tria_host_synchronize(void *context, tria_error *error);

/* A context's arrays are written down once, for allocating, releasing and measuring. */
typedef struct tria_array {
    void **pointer;
    size_t count; /* 0: left NULL */
    size_t size;
} tria_array;

/* Stops at the first that fails: MEMORY, with its size and `what`. Release what there is then. */
tria_status tria_arrays_allocate(const tria_env *env, const tria_array *arrays, size_t count,
                                 const char *what, tria_error *error);
void tria_arrays_release(const tria_env *env, const tria_array *arrays, size_t count);
size_t tria_arrays_bytes(const tria_array *arrays, size_t count);

#endif

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

#endif

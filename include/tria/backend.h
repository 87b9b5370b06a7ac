/*
 * tria/backend.h - finding backends and opening devices.
 *
 * "cpu" and "reference" (the double-precision oracle, slow, for checks) are built in. "cuda", "hip" and
 * "vulkan" are plugins: shared libraries libtria-<name>.so that export one symbol, tria_backend_v1
 * (see backend_v1.h), looked for in this order: the folders of the path given, those of the environment
 * variable TRIA_BACKEND_PATH (both separated by ':'), then the folder "tria" beside the library and the
 * library's own folder. The current directory is never searched.
 */
#ifndef TRIA_BACKEND_H
#define TRIA_BACKEND_H

#include "tria/base.h"
#include "tria/kv_view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The loaded plugins of this process's caller; thread-safe. Devices keep it alive. */
typedef struct tria_backends tria_backends;
typedef struct tria_device tria_device;

TRIA_API tria_status tria_backends_create(const char *plugin_path, const tria_env *env,
                                          tria_backends **backends, tria_error *error);
TRIA_API void tria_backends_destroy(tria_backends *backends);

/* Known backends, built in or not: names in a fixed order (cpu, reference, cuda, hip, vulkan). */
TRIA_API int32_t tria_backends_count(const tria_backends *backends);
TRIA_API const char *tria_backends_name(const tria_backends *backends, int32_t index);

typedef struct tria_backend_info {
    size_t struct_size;
    const char *name;
    const char *path; /* of the plugin, "" when built in or not found */
    int32_t built_in;
    int32_t n_devices;                    /* 0: see `reason` */
    char reason[TRIA_ERROR_MESSAGE_SIZE]; /* why it cannot be used; "" when it can */
} tria_backend_info;

/* Loads the plugin if need be and probes it. Errors: ARGUMENT. */
TRIA_API tria_status tria_backends_info(tria_backends *backends, int32_t index, tria_backend_info *info,
                                        tria_error *error);

typedef struct tria_device_params {
    size_t struct_size;
    int32_t index;      /* which device of the backend; ignored when `name` or `native` is given */
    int32_t allow_cpu;  /* vulkan: accept a CPU implementation such as lavapipe */
    const char *name;   /* substring of the device's name or its UUID in hexadecimal, or NULL */
    const void *native; /* the engine's own device: const tria_vulkan_device * etc., or NULL */
} tria_device_params;
#define TRIA_DEVICE_PARAMS_INIT                                                                            \
    {                                                                                                      \
        sizeof(tria_device_params), 0, 0, NULL, NULL                                                       \
    }
TRIA_API void tria_device_params_init(tria_device_params *params);

/* Opens a device of the backend `name`. Errors: BACKEND (not found, cannot be loaded, why), DEVICE. */
TRIA_API tria_status tria_device_open(tria_backends *backends, const char *name,
                                      const tria_device_params *params, tria_device **device,
                                      tria_error *error);
TRIA_API void tria_device_close(tria_device *device);
TRIA_API const char *tria_device_backend(const tria_device *device);
TRIA_API const char *tria_device_name(const tria_device *device);
/* Seconds the device needs, by its own clock, to copy `bytes` of its memory to another place there: what
 * the speed of its stages is measured against. Errors: UNSUPPORTED, MEMORY, DEVICE. */
TRIA_API tria_status tria_device_copy_seconds(tria_device *device, size_t bytes, double *seconds,
                                              tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

/*
 * vk_device.h - a device, the engine's or our own, and buffers on it.
 */
#ifndef TRIA_VK_DEVICE_H
#define TRIA_VK_DEVICE_H

#include "vk_loader.h"

#include "tria/backend_v1.h"

#include <pthread.h>
#include <stdbool.h>

#define VK_MOST_ITERATIONS 65535

typedef struct vk_device {
    tria_v1_host host;
    vk_instance instance;
    VkPhysicalDevice physical;
    VkDevice handle;
    VkQueue queue;
    uint32_t queue_family;
    bool owned;
    bool storage_8bit;
    bool storage_16bit;
    bool subgroup_arithmetic; /* in compute shaders */
    uint32_t workgroup;       /* invocations, a power of two */
    uint32_t subgroup_size;
    uint32_t shared_words;
    bool limits_loops; /* llvmpipe: a shader's loops end after VK_MOST_ITERATIONS in all, without a word */
    VkPhysicalDeviceLimits limits;
    uint64_t clock_mask; /* valid bits of the queue's timestamps; 0: it has none */
    VkDeviceSize max_allocation;
    VkPhysicalDeviceMemoryProperties memory;
    VkPipelineCache cache;
    bool cache_owned;
    vk_functions vk;
    pthread_mutex_t lock; /* our own queue */
    void (*lock_queue)(void *context);
    void (*unlock_queue)(void *context);
    void *lock_context;
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
} vk_device;

int32_t vk_probe(tria_error *error);
tria_status vk_device_info(int32_t index, tria_v1_device_info *info, tria_error *error);
tria_status vk_device_open(const tria_device_params *params, const tria_v1_host *host, void **device,
                           tria_error *error);
void vk_device_close(void *device);
const char *vk_device_name(const void *device);

void vk_queue_lock(vk_device *device);
void vk_queue_unlock(vk_device *device);

/* Zero-filled host memory of the caller's allocator; NULL for size 0 too. */
void *vk_host_alloc(const tria_v1_host *host, size_t count, size_t size);
void vk_host_free(const tria_v1_host *host, void *pointer);

typedef enum vk_memory_kind {
    VK_ON_DEVICE, /* fast for the device */
    VK_UPLOAD,    /* mapped, written by the host */
    VK_READBACK   /* mapped, read by the host */
} vk_memory_kind;

typedef struct vk_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    VkDeviceSize size;
    void *mapped; /* NULL for VK_ON_DEVICE */
} vk_buffer;

/* `what` names it in errors. A zeroed struct is a valid argument of vk_buffer_free. */
tria_status vk_buffer_alloc(vk_device *device, VkDeviceSize size, vk_memory_kind kind, const char *what,
                            vk_buffer *buffer, tria_error *error);
void vk_buffer_free(vk_device *device, vk_buffer *buffer);

#endif

/*
 * tria/vulkan.h - the "vulkan" backend on an engine's own device, buffers and command buffers.
 *
 * Handles are given as pointers (dispatchable ones) and 64-bit numbers (the others), so that this header
 * needs no Vulkan headers. tria_device_open(backends, "vulkan", ...) takes a tria_vulkan_device as
 * `native`: then tensors' `base` and `scales` are VkBuffer handles (cast to pointers), created with
 * STORAGE_BUFFER usage for the queue family given here; their sizes must be multiples of 4 bytes.
 * Without `native` the backend makes a device of its own; keys and values are then host memory, which
 * is copied through the device only when the plan's stage_device_memory allows it.
 *
 * The device must offer Vulkan 1.2. No feature is required.
 */
#ifndef TRIA_VULKAN_H
#define TRIA_VULKAN_H

#include "tria/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The engine's device. Everything stays the engine's and must outlive the tria_device; the struct itself
 * is only read by tria_device_open(). */
typedef struct tria_vulkan_device {
    size_t struct_size;
    void *instance;        /* VkInstance, created for Vulkan 1.2 or later */
    void *physical_device; /* VkPhysicalDevice */
    void *device;          /* VkDevice */
    void *queue;           /* VkQueue with compute support */
    uint32_t queue_family; /* of the queue */
    int32_t storage_8bit;  /* 1: storageBuffer8BitAccess is enabled; lets odd-sized rows move faster */
    int32_t storage_16bit; /* 1: storageBuffer16BitAccess is enabled, likewise */
    int32_t reserved;
    void (*get_instance_proc_addr)(void); /* vkGetInstanceProcAddr, NULL: that of libvulkan.so.1 */
    uint64_t pipeline_cache;              /* VkPipelineCache to use, 0: one of the backend's own */
    /* Held around every use of the queue; NULL: no other thread uses it. */
    void (*lock_queue)(void *context);
    void (*unlock_queue)(void *context);
    void *lock_context;
} tria_vulkan_device;

/*
 * What tria_batch.stream points to (the struct is only read during the call). NULL stands for the
 * backend's own submissions: score alone is submitted by tria_plan_synchronize(), select and compact
 * at once.
 *
 * With a command buffer, work is recorded into it between full barriers and nothing is submitted. Host
 * outputs are written by tria_plan_synchronize(), which must be called after the command buffer has
 * finished and before the plan is used for another batch (score, select and compact of one batch may
 * follow one another). Otherwise work is submitted with the semaphores given.
 */
typedef struct tria_vulkan_stream {
    size_t struct_size;
    void *command_buffer;    /* VkCommandBuffer in the recording state, or NULL */
    uint64_t wait_semaphore; /* timeline VkSemaphore to wait for, or 0 */
    uint64_t wait_value;
    uint64_t signal_semaphore; /* timeline VkSemaphore to signal, or 0 */
    uint64_t signal_value;
} tria_vulkan_stream;

#ifdef __cplusplus
}
#endif
#endif

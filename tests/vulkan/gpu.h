/*
 * gpu.h - an engine's Vulkan device for tests: validated when the Khronos layer is there, with mapped
 * buffers. Ends the program with 77 when there is no Vulkan.
 */
#ifndef TRIA_TESTS_VULKAN_GPU_H
#define TRIA_TESTS_VULKAN_GPU_H

#include "tria/backend.h"
#include "tria/vulkan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <vulkan/vulkan.h>

typedef struct gpu {
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    bool validated;
    atomic_int n_messages; /* of the validation layer; each is printed */
    tria_vulkan_device native;
} gpu;

/* `narrow`: without 8- and 16-bit storage. */
void gpu_open(gpu *g, bool narrow);
/* Fails the test when the validation layer had anything to say. */
void gpu_close(gpu *g);

typedef struct gpu_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    void *mapped;
    VkDeviceSize size;
} gpu_buffer;

void gpu_buffer_create(gpu *g, VkDeviceSize size, gpu_buffer *buffer);
void gpu_buffer_destroy(gpu *g, gpu_buffer *buffer);

/* The backend's device on top; the plugin is found through TRIA_BACKEND_PATH. */
void gpu_open_backend(gpu *g, tria_backends **backends, tria_device **device);

#endif

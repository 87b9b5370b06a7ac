/*
 * device.h - the engine's side of Vulkan: a device, device-local buffers, copies in and out.
 */
#ifndef VULKAN_HOST_DEVICE_H
#define VULKAN_HOST_DEVICE_H

#include "tria/vulkan.h"

#include <stdbool.h>
#include <vulkan/vulkan.h>

typedef struct device {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice handle;
    VkQueue queue;
    uint32_t family;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
    VkBuffer transfer; /* mapped; copies go through it */
    VkDeviceMemory transfer_memory;
    unsigned char *mapped;
    VkDeviceSize transfer_size;
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    tria_vulkan_device native; /* what libtria is told */
} device;

typedef struct buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    VkDeviceSize size;
} buffer;

/* A device whose name contains `name` (NULL: the first that is no CPU). All of these end the program with a
 * message when something fails. */
void device_open(device *d, const char *name, VkDeviceSize transfer_size);
void device_close(device *d);

/* Device-local, fit for libtria: storage buffer, size a multiple of 4. */
void buffer_create(device *d, VkDeviceSize size, buffer *b);
void buffer_destroy(device *d, buffer *b);
void buffer_write(device *d, const buffer *b, VkDeviceSize offset, const void *data, VkDeviceSize size);
void buffer_read(device *d, const buffer *b, VkDeviceSize offset, void *data, VkDeviceSize size);

#endif

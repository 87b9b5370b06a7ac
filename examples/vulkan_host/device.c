#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(VkResult result, const char *what)
{
    if (result != VK_SUCCESS) {
        fprintf(stderr, "vulkan_host: %s failed (VkResult %d)\n", what, (int)result);
        exit(3);
    }
}

static void choose(device *d, const char *name)
{
    VkPhysicalDevice all[16];
    uint32_t n = sizeof(all) / sizeof(all[0]);
    vkEnumeratePhysicalDevices(d->instance, &n, all);
    for (uint32_t i = 0; i < n; i++) {
        VkPhysicalDeviceProperties properties;
        vkGetPhysicalDeviceProperties(all[i], &properties);
        const bool wanted = name != NULL ? strstr(properties.deviceName, name) != NULL
                                         : properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU;
        if (wanted && properties.apiVersion >= VK_API_VERSION_1_2) {
            d->physical = all[i];
            snprintf(d->name, sizeof(d->name), "%s", properties.deviceName);
            return;
        }
    }
    fprintf(stderr, "vulkan_host: no Vulkan 1.2 device%s%s\n",
            name != NULL ? " called " : " that is no CPU", name != NULL ? name : "");
    exit(3);
}

static void create_device(device *d)
{
    VkQueueFamilyProperties families[16];
    uint32_t n = sizeof(families) / sizeof(families[0]);
    vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
    while (d->family < n && (families[d->family].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) {
        d->family++;
    }
    /* libtria needs no feature; these two let it move rows of odd sizes faster */
    VkPhysicalDeviceVulkan12Features f12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features f11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                                            .pNext = &f12};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &f11};
    vkGetPhysicalDeviceFeatures2(d->physical, &features);
    const VkBool32 has_8bit = f12.storageBuffer8BitAccess;
    const VkBool32 has_16bit = f11.storageBuffer16BitAccess;
    f12 = (VkPhysicalDeviceVulkan12Features){.sType = f12.sType, .storageBuffer8BitAccess = has_8bit};
    f11 = (VkPhysicalDeviceVulkan11Features){
        .sType = f11.sType, .pNext = &f12, .storageBuffer16BitAccess = has_16bit};
    const float priority = 1.0F;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = d->family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &f11,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue};
    check(vkCreateDevice(d->physical, &info, NULL, &d->handle), "vkCreateDevice");
    vkGetDeviceQueue(d->handle, d->family, 0, &d->queue);
    d->native = (tria_vulkan_device){.struct_size = sizeof(d->native),
                                     .instance = d->instance,
                                     .physical_device = d->physical,
                                     .device = d->handle,
                                     .queue = d->queue,
                                     .queue_family = d->family,
                                     .storage_8bit = (int32_t)has_8bit,
                                     .storage_16bit = (int32_t)has_16bit};
}

static uint32_t memory_type(const device *d, uint32_t allowed, VkMemoryPropertyFlags wanted)
{
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(d->physical, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        if ((allowed >> i & 1U) != 0 && (memory.memoryTypes[i].propertyFlags & wanted) == wanted) {
            return i;
        }
    }
    check(VK_ERROR_FEATURE_NOT_PRESENT, "finding a memory type");
    return 0;
}

static void allocate(device *d, VkDeviceSize size, VkMemoryPropertyFlags wanted, VkBuffer *handle,
                     VkDeviceMemory *memory)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = size,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryRequirements needs;
    check(vkCreateBuffer(d->handle, &info, NULL, handle), "vkCreateBuffer");
    vkGetBufferMemoryRequirements(d->handle, *handle, &needs);
    const VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                             .allocationSize = needs.size,
                                             .memoryTypeIndex =
                                                 memory_type(d, needs.memoryTypeBits, wanted)};
    check(vkAllocateMemory(d->handle, &allocation, NULL, memory), "vkAllocateMemory");
    check(vkBindBufferMemory(d->handle, *handle, *memory, 0), "vkBindBufferMemory");
}

void device_open(device *d, const char *name, VkDeviceSize transfer_size)
{
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "vulkan_host",
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    memset(d, 0, sizeof(*d));
    check(vkCreateInstance(&info, NULL, &d->instance), "vkCreateInstance");
    choose(d, name);
    create_device(d);
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = d->family};
    check(vkCreateCommandPool(d->handle, &pool, NULL, &d->pool), "vkCreateCommandPool");
    const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = d->pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 1};
    check(vkAllocateCommandBuffers(d->handle, &commands, &d->commands), "vkAllocateCommandBuffers");
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    check(vkCreateFence(d->handle, &fence, NULL, &d->fence), "vkCreateFence");
    d->transfer_size = transfer_size;
    allocate(d, transfer_size, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
             &d->transfer, &d->transfer_memory);
    check(vkMapMemory(d->handle, d->transfer_memory, 0, VK_WHOLE_SIZE, 0, (void **)&d->mapped),
          "vkMapMemory");
}

void device_close(device *d)
{
    vkDestroyBuffer(d->handle, d->transfer, NULL);
    vkFreeMemory(d->handle, d->transfer_memory, NULL);
    vkDestroyFence(d->handle, d->fence, NULL);
    vkDestroyCommandPool(d->handle, d->pool, NULL);
    vkDestroyDevice(d->handle, NULL);
    vkDestroyInstance(d->instance, NULL);
}

void buffer_create(device *d, VkDeviceSize size, buffer *b)
{
    b->size = (size + 3) / 4 * 4;
    allocate(d, b->size, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &b->handle, &b->memory);
}

void buffer_destroy(device *d, buffer *b)
{
    vkDestroyBuffer(d->handle, b->handle, NULL);
    vkFreeMemory(d->handle, b->memory, NULL);
}

static void copy(device *d, VkBuffer from, VkDeviceSize from_offset, VkBuffer to, VkDeviceSize to_offset,
                 VkDeviceSize size)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                    .dstAccessMask =
                                        VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT};
    const VkBufferCopy region = {from_offset, to_offset, size};
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &d->commands};
    check(vkBeginCommandBuffer(d->commands, &begin), "vkBeginCommandBuffer");
    vkCmdPipelineBarrier(d->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0,
                         1, &memory, 0, NULL, 0, NULL);
    vkCmdCopyBuffer(d->commands, from, to, 1, &region);
    vkCmdPipelineBarrier(d->commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                         VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &memory, 0,
                         NULL, 0, NULL);
    check(vkEndCommandBuffer(d->commands), "vkEndCommandBuffer");
    check(vkResetFences(d->handle, 1, &d->fence), "vkResetFences");
    check(vkQueueSubmit(d->queue, 1, &info, d->fence), "vkQueueSubmit");
    check(vkWaitForFences(d->handle, 1, &d->fence, VK_TRUE, UINT64_MAX), "vkWaitForFences");
}

void buffer_write(device *d, const buffer *b, VkDeviceSize offset, const void *data, VkDeviceSize size)
{
    for (VkDeviceSize done = 0, part; done < size; done += part) {
        part = size - done < d->transfer_size ? size - done : d->transfer_size;
        memcpy(d->mapped, (const unsigned char *)data + done, part);
        copy(d, d->transfer, 0, b->handle, offset + done, part);
    }
}

void buffer_read(device *d, const buffer *b, VkDeviceSize offset, void *data, VkDeviceSize size)
{
    for (VkDeviceSize done = 0, part; done < size; done += part) {
        part = size - done < d->transfer_size ? size - done : d->transfer_size;
        copy(d, b->handle, offset + done, d->transfer, 0, part);
        memcpy((unsigned char *)data + done, d->mapped, part);
    }
}

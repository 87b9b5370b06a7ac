/*
 * vk_loader.h - Vulkan entry points, fetched at run time so that a machine without Vulkan can say so.
 */
#ifndef TRIA_VK_LOADER_H
#define TRIA_VK_LOADER_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include "tria/base.h"

#define VK_INSTANCE_FUNCTIONS(X)                                                                           \
    X(DestroyInstance)                                                                                     \
    X(EnumeratePhysicalDevices)                                                                            \
    X(GetPhysicalDeviceProperties)                                                                         \
    X(GetPhysicalDeviceProperties2)                                                                        \
    X(GetPhysicalDeviceFeatures2)                                                                          \
    X(GetPhysicalDeviceMemoryProperties)                                                                   \
    X(GetPhysicalDeviceQueueFamilyProperties)                                                              \
    X(CreateDevice)                                                                                        \
    X(GetDeviceProcAddr)

#define VK_DEVICE_FUNCTIONS(X)                                                                             \
    X(DestroyDevice)                                                                                       \
    X(DeviceWaitIdle)                                                                                      \
    X(GetDeviceQueue)                                                                                      \
    X(QueueSubmit)                                                                                         \
    X(AllocateMemory)                                                                                      \
    X(FreeMemory)                                                                                          \
    X(MapMemory)                                                                                           \
    X(CreateBuffer)                                                                                        \
    X(DestroyBuffer)                                                                                       \
    X(GetBufferMemoryRequirements)                                                                         \
    X(BindBufferMemory)                                                                                    \
    X(CreateShaderModule)                                                                                  \
    X(DestroyShaderModule)                                                                                 \
    X(CreatePipelineCache)                                                                                 \
    X(DestroyPipelineCache)                                                                                \
    X(CreatePipelineLayout)                                                                                \
    X(DestroyPipelineLayout)                                                                               \
    X(CreateComputePipelines)                                                                              \
    X(DestroyPipeline)                                                                                     \
    X(CreateDescriptorSetLayout)                                                                           \
    X(DestroyDescriptorSetLayout)                                                                          \
    X(CreateDescriptorPool)                                                                                \
    X(DestroyDescriptorPool)                                                                               \
    X(AllocateDescriptorSets)                                                                              \
    X(UpdateDescriptorSets)                                                                                \
    X(CreateCommandPool)                                                                                   \
    X(DestroyCommandPool)                                                                                  \
    X(AllocateCommandBuffers)                                                                              \
    X(BeginCommandBuffer)                                                                                  \
    X(EndCommandBuffer)                                                                                    \
    X(CreateFence)                                                                                         \
    X(DestroyFence)                                                                                        \
    X(WaitForFences)                                                                                       \
    X(CreateQueryPool)                                                                                     \
    X(DestroyQueryPool)                                                                                    \
    X(GetQueryPoolResults)                                                                                 \
    X(ResetFences)                                                                                         \
    X(CmdBindPipeline)                                                                                     \
    X(CmdBindDescriptorSets)                                                                               \
    X(CmdPushConstants)                                                                                    \
    X(CmdDispatch)                                                                                         \
    X(CmdPipelineBarrier)                                                                                  \
    X(CmdCopyBuffer)                                                                                       \
    X(CmdResetQueryPool)                                                                                   \
    X(CmdWriteTimestamp)                                                                                   \
    X(CmdFillBuffer)

#define VK_DECLARE(name) PFN_vk##name name;

typedef struct vk_instance {
    void *library; /* NULL when the engine gave the entry point */
    VkInstance handle;
    int32_t owned; /* the handle */
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
    VK_INSTANCE_FUNCTIONS(VK_DECLARE)
} vk_instance;

typedef struct vk_functions {
    VK_DEVICE_FUNCTIONS(VK_DECLARE)
} vk_functions;

/* Opens the loader and makes an instance for Vulkan 1.2. Errors: BACKEND, DEVICE. */
tria_status vk_instance_create(vk_instance *instance, tria_error *error);
/* Uses the engine's. `entry` may be NULL: then the loader is opened. */
tria_status vk_instance_adopt(vk_instance *instance, VkInstance handle, PFN_vkVoidFunction entry,
                              tria_error *error);
void vk_instance_release(vk_instance *instance);
tria_status vk_functions_load(vk_functions *functions, const vk_instance *instance, VkDevice device,
                              tria_error *error);

/* Fills *error and returns `code`. */
tria_status vk_fail(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a failed Vulkan call. */
tria_status vk_fail_result(tria_error *error, VkResult result, const char *what);

#define VK_TRY(expression)                                                                                 \
    do {                                                                                                   \
        tria_status vk_try_status = (expression);                                                          \
        if (vk_try_status != TRIA_OK) {                                                                    \
            return vk_try_status;                                                                          \
        }                                                                                                  \
    } while (0)
#define VK_CHECK(result, what)                                                                             \
    do {                                                                                                   \
        VkResult vk_check_result = (result);                                                               \
        if (vk_check_result != VK_SUCCESS) {                                                               \
            return vk_fail_result(error, vk_check_result, what);                                           \
        }                                                                                                  \
    } while (0)

#endif

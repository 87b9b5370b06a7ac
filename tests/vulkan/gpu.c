#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER "VK_LAYER_KHRONOS_validation"

static void die(const char *what, int code)
{
    fprintf(stderr, "%s failed (%d)\n", what, code);
    exit(1);
}

static void skip(const char *why)
{
    fprintf(stderr, "SKIPPED: %s\n", why);
    exit(77);
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data,
                                                 void *context)
{
    gpu *g = context;
    (void)severity;
    (void)types;
    if (atomic_fetch_add(&g->n_messages, 1) < 20) {
        fprintf(stderr, "validation: %.1200s\n", data->pMessage);
    }
    return VK_FALSE;
}

static bool has_layer(void)
{
    VkLayerProperties layers[64];
    uint32_t n = 64;
    vkEnumerateInstanceLayerProperties(&n, layers);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(layers[i].layerName, LAYER) == 0) {
            return true;
        }
    }
    return false;
}

static void create_instance(gpu *g)
{
    static const VkValidationFeatureEnableEXT enabled[] = {
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    static const char *const layer = LAYER;
    static const char *const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    const VkDebugUtilsMessengerCreateInfoEXT messages = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity =
            VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = on_message,
        .pUserData = g};
    const VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                              .pNext = &messages,
                                              .enabledValidationFeatureCount = 1,
                                              .pEnabledValidationFeatures = enabled};
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    g->validated = getenv("TRIA_TEST_NO_VALIDATION") == NULL && has_layer();
    if (g->validated) {
        info.pNext = &features;
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = &layer;
        info.enabledExtensionCount = 1;
        info.ppEnabledExtensionNames = &extension;
    } else {
        fprintf(stderr, "note: without the validation layer\n");
    }
    if (vkCreateInstance(&info, NULL, &g->instance) != VK_SUCCESS) {
        skip("no Vulkan instance");
    }
    if (g->validated) {
        const PFN_vkCreateDebugUtilsMessengerEXT create =
            (PFN_vkCreateDebugUtilsMessengerEXT)vkGetInstanceProcAddr(g->instance,
                                                                      "vkCreateDebugUtilsMessengerEXT");
        if (create == NULL || create(g->instance, &messages, NULL, &g->messenger) != VK_SUCCESS) {
            die("vkCreateDebugUtilsMessengerEXT", 0);
        }
    }
}

static void create_device(gpu *g, bool narrow)
{
    VkPhysicalDevice all[16];
    VkQueueFamilyProperties families[16];
    uint32_t n = 16;
    uint32_t n_families = 16;
    vkEnumeratePhysicalDevices(g->instance, &n, all);
    if (n == 0) {
        skip("no Vulkan device");
    }
    g->physical = all[0];
    vkGetPhysicalDeviceQueueFamilyProperties(g->physical, &n_families, families);
    while (g->family < n_families && (families[g->family].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) {
        g->family++;
    }
    VkPhysicalDeviceVulkan12Features has12 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features has11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &has12};
    VkPhysicalDeviceFeatures2 has = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &has11};
    vkGetPhysicalDeviceFeatures2(g->physical, &has);
    g->native.storage_8bit = !narrow && has12.storageBuffer8BitAccess;
    g->native.storage_16bit = !narrow && has11.storageBuffer16BitAccess;
    VkPhysicalDeviceVulkan12Features use12 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                              .storageBuffer8BitAccess = (VkBool32)g->native.storage_8bit,
                                              .timelineSemaphore = has12.timelineSemaphore};
    VkPhysicalDeviceVulkan11Features use11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &use12,
        .storageBuffer16BitAccess = (VkBool32)g->native.storage_16bit};
    const float priority = 1.0F;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = g->family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &use11,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue};
    const VkResult result = vkCreateDevice(g->physical, &info, NULL, &g->device);
    if (result != VK_SUCCESS) {
        die("vkCreateDevice", result);
    }
    vkGetDeviceQueue(g->device, g->family, 0, &g->queue);
}

void gpu_open(gpu *g, bool narrow)
{
    memset(g, 0, sizeof(*g));
    create_instance(g);
    create_device(g, narrow);
    g->native.struct_size = sizeof(g->native);
    g->native.instance = g->instance;
    g->native.physical_device = g->physical;
    g->native.device = g->device;
    g->native.queue = g->queue;
    g->native.queue_family = g->family;
}

void gpu_close(gpu *g)
{
    vkDestroyDevice(g->device, NULL);
    if (g->validated) {
        const PFN_vkDestroyDebugUtilsMessengerEXT destroy =
            (PFN_vkDestroyDebugUtilsMessengerEXT)vkGetInstanceProcAddr(g->instance,
                                                                       "vkDestroyDebugUtilsMessengerEXT");
        destroy(g->instance, g->messenger, NULL);
    }
    vkDestroyInstance(g->instance, NULL);
    if (atomic_load(&g->n_messages) != 0) {
        die("validation: messages", atomic_load(&g->n_messages));
    }
}

void gpu_buffer_create(gpu *g, VkDeviceSize size, gpu_buffer *buffer)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = size,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    const VkMemoryPropertyFlags wanted =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDeviceMemoryProperties memory;
    VkMemoryRequirements needs;
    VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    memset(buffer, 0, sizeof(*buffer));
    buffer->size = size;
    VkResult result = vkCreateBuffer(g->device, &info, NULL, &buffer->handle);
    if (result != VK_SUCCESS) {
        die("vkCreateBuffer", result);
    }
    vkGetBufferMemoryRequirements(g->device, buffer->handle, &needs);
    vkGetPhysicalDeviceMemoryProperties(g->physical, &memory);
    while (allocation.memoryTypeIndex < memory.memoryTypeCount &&
           ((needs.memoryTypeBits >> allocation.memoryTypeIndex & 1U) == 0 ||
            (memory.memoryTypes[allocation.memoryTypeIndex].propertyFlags & wanted) != wanted)) {
        allocation.memoryTypeIndex++;
    }
    allocation.allocationSize = needs.size;
    result = vkAllocateMemory(g->device, &allocation, NULL, &buffer->memory);
    if (result == VK_SUCCESS) {
        result = vkBindBufferMemory(g->device, buffer->handle, buffer->memory, 0);
    }
    if (result == VK_SUCCESS) {
        result = vkMapMemory(g->device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped);
    }
    if (result != VK_SUCCESS) {
        die("a mapped buffer", result);
    }
}

void gpu_buffer_destroy(gpu *g, gpu_buffer *buffer)
{
    vkDestroyBuffer(g->device, buffer->handle, NULL);
    vkFreeMemory(g->device, buffer->memory, NULL);
    memset(buffer, 0, sizeof(*buffer));
}

void gpu_open_backend(gpu *g, tria_backends **backends, tria_device **device)
{
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_error error;
    params.native = &g->native;
    if (tria_backends_create(NULL, NULL, backends, &error) != TRIA_OK) {
        die(error.message, error.code);
    }
    const tria_status status = tria_device_open(*backends, "vulkan", &params, device, &error);
    if (status == TRIA_E_BACKEND) {
        skip(error.message);
    }
    if (status != TRIA_OK) {
        die(error.message, error.code);
    }
}

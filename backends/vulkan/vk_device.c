/* vk_device.c - see vk_device.h. */
#include "vk_device.h"

#include "tria/vulkan.h"

#include <stdio.h>
#include <string.h>

#define MAX_DEVICES 64
#define MAX_FAMILIES 32

void *vk_host_alloc(const tria_v1_host *host, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes == 0) {
        return NULL;
    }
    void *pointer = host->env->allocate(host->env->allocator_context, bytes, 64);
    if (pointer != NULL) {
        memset(pointer, 0, bytes);
    }
    return pointer;
}

void vk_host_free(const tria_v1_host *host, void *pointer)
{
    if (pointer != NULL) {
        host->env->release(host->env->allocator_context, pointer);
    }
}

/* A family with compute, without graphics if there is one: its work does not wait for drawing. */
static int32_t compute_family(const vk_instance *instance, VkPhysicalDevice physical)
{
    VkQueueFamilyProperties families[MAX_FAMILIES];
    uint32_t count = MAX_FAMILIES;
    int32_t best = -1;
    instance->GetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        const VkQueueFlags flags = families[i].queueFlags;
        if ((flags & VK_QUEUE_COMPUTE_BIT) != 0 && (best < 0 || (flags & VK_QUEUE_GRAPHICS_BIT) == 0)) {
            best = (int32_t)i;
        }
    }
    return best;
}

/* Devices the backend can run on: the driver's order, CPU implementations last. */
static tria_status usable_devices(const vk_instance *instance, VkPhysicalDevice *out, int32_t *n,
                                  tria_error *error)
{
    VkPhysicalDevice all[MAX_DEVICES];
    uint32_t count = MAX_DEVICES;
    char skipped[256] = "";
    *n = 0;
    const VkResult result = instance->EnumeratePhysicalDevices(instance->handle, &count, all);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) {
        return vk_fail_result(error, result, "vkEnumeratePhysicalDevices");
    }
    for (uint32_t pass = 0; pass < 2 * count; pass++) {
        const uint32_t i = pass % count;
        VkPhysicalDeviceProperties properties;
        instance->GetPhysicalDeviceProperties(all[i], &properties);
        if ((properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) != (pass >= count)) {
            continue;
        }
        if (properties.apiVersion < VK_API_VERSION_1_2) {
            snprintf(skipped, sizeof(skipped), "; %.128s offers only Vulkan %u.%u, 1.2 is needed",
                     properties.deviceName, VK_API_VERSION_MAJOR(properties.apiVersion),
                     VK_API_VERSION_MINOR(properties.apiVersion));
        } else if (compute_family(instance, all[i]) >= 0) {
            out[(*n)++] = all[i];
        }
    }
    if (*n == 0) {
        return vk_fail(error, TRIA_E_DEVICE, "vulkan: no usable device%s", skipped);
    }
    return TRIA_OK;
}

int32_t vk_probe(tria_error *error)
{
    vk_instance instance;
    VkPhysicalDevice devices[MAX_DEVICES];
    int32_t n;
    VK_TRY(vk_instance_create(&instance, error));
    const tria_status status = usable_devices(&instance, devices, &n, error);
    vk_instance_release(&instance);
    return status == TRIA_OK ? n : status;
}

typedef struct vk_identity {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    char uuid[2 * VK_UUID_SIZE + 1];
    bool is_cpu;
} vk_identity;

static void identify(const vk_instance *instance, VkPhysicalDevice physical, vk_identity *identity)
{
    VkPhysicalDeviceIDProperties ids = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &ids};
    instance->GetPhysicalDeviceProperties2(physical, &properties);
    snprintf(identity->name, sizeof(identity->name), "%s", properties.properties.deviceName);
    for (size_t i = 0; i < VK_UUID_SIZE; i++) {
        snprintf(identity->uuid + 2 * i, 3, "%02x", ids.deviceUUID[i]);
    }
    identity->is_cpu = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
}

tria_status vk_device_info(int32_t index, tria_v1_device_info *info, tria_error *error)
{
    vk_instance instance;
    VkPhysicalDevice devices[MAX_DEVICES];
    int32_t n = 0;
    VK_TRY(vk_instance_create(&instance, error));
    tria_status status = usable_devices(&instance, devices, &n, error);
    if (status == TRIA_OK && (index < 0 || index >= n)) {
        status = vk_fail(error, TRIA_E_ARGUMENT, "vulkan: device %d, there are %d", index, n);
    }
    if (status == TRIA_OK) {
        VkPhysicalDeviceMemoryProperties memory;
        vk_identity identity = {.is_cpu = false};
        identify(&instance, devices[index], &identity);
        memset(info, 0, sizeof(*info));
        snprintf(info->name, sizeof(info->name), "%.255s", identity.name);
        snprintf(info->uuid, sizeof(info->uuid), "%s", identity.uuid);
        info->is_cpu = identity.is_cpu;
        instance.GetPhysicalDeviceMemoryProperties(devices[index], &memory);
        for (uint32_t i = 0; i < memory.memoryHeapCount; i++) {
            if ((memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0) {
                info->memory += (int64_t)memory.memoryHeaps[i].size;
            }
        }
    }
    vk_instance_release(&instance);
    return status;
}

/* By name or UUID, else by index; CPU implementations only when they are allowed. */
static tria_status choose(vk_device *device, const tria_device_params *params, tria_error *error)
{
    VkPhysicalDevice devices[MAX_DEVICES];
    char names[TRIA_ERROR_MESSAGE_SIZE / 2] = "";
    int32_t n = 0;
    int32_t index = 0;
    VK_TRY(usable_devices(&device->instance, devices, &n, error));
    for (int32_t i = 0; i < n; i++) {
        vk_identity identity = {.is_cpu = false};
        const size_t used = strlen(names);
        identify(&device->instance, devices[i], &identity);
        snprintf(names + used, sizeof(names) - used, "%s%.100s%s", used > 0 ? ", " : "", identity.name,
                 identity.is_cpu && !params->allow_cpu ? " (a CPU, not allowed)" : "");
        if (identity.is_cpu && !params->allow_cpu) {
            continue;
        }
        const bool wanted = params->name == NULL ? index++ == params->index
                                                 : strstr(identity.name, params->name) != NULL ||
                                                       strcmp(identity.uuid, params->name) == 0;
        if (wanted) {
            device->physical = devices[i];
            return TRIA_OK;
        }
    }
    if (params->name != NULL) {
        return vk_fail(error, TRIA_E_DEVICE, "vulkan: no device is called '%.64s'; there is: %s",
                       params->name, names);
    }
    return vk_fail(error, TRIA_E_DEVICE, "vulkan: there is no device %d; there is: %s", params->index,
                   names);
}

static tria_status create_own(vk_device *device, const tria_device_params *params, tria_error *error)
{
    VK_TRY(vk_instance_create(&device->instance, error));
    VK_TRY(choose(device, params, error));
    VkPhysicalDeviceVulkan12Features has12 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features has11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &has12};
    VkPhysicalDeviceFeatures2 has = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &has11};
    device->instance.GetPhysicalDeviceFeatures2(device->physical, &has);
    device->storage_16bit = has11.storageBuffer16BitAccess;
    device->storage_8bit = has12.storageBuffer8BitAccess;

    VkPhysicalDeviceVulkan12Features use12 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                              .storageBuffer8BitAccess = has12.storageBuffer8BitAccess};
    VkPhysicalDeviceVulkan11Features use11 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                                              .pNext = &use12,
                                              .storageBuffer16BitAccess = has11.storageBuffer16BitAccess};
    const float priority = 1.0F;
    device->queue_family = (uint32_t)compute_family(&device->instance, device->physical);
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = device->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &use11,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue};
    VK_CHECK(device->instance.CreateDevice(device->physical, &info, NULL, &device->handle),
             "vkCreateDevice");
    device->owned = true;
    VK_TRY(vk_functions_load(&device->vk, &device->instance, device->handle, error));
    device->vk.GetDeviceQueue(device->handle, device->queue_family, 0, &device->queue);
    return TRIA_OK;
}

static tria_status adopt(vk_device *device, const void *native, tria_error *error)
{
    tria_vulkan_device engine;
    size_t size;
    memcpy(&size, native, sizeof(size));
    if (size < sizeof(engine)) {
        return vk_fail(error, TRIA_E_ARGUMENT, "vulkan: tria_vulkan_device of %zu bytes, expected %zu",
                       size, sizeof(engine));
    }
    memcpy(&engine, native, sizeof(engine));
    if (engine.instance == NULL || engine.physical_device == NULL || engine.device == NULL ||
        engine.queue == NULL) {
        return vk_fail(error, TRIA_E_ARGUMENT,
                       "vulkan: tria_vulkan_device needs instance, physical_device, device and queue");
    }
    if ((engine.lock_queue == NULL) != (engine.unlock_queue == NULL)) {
        return vk_fail(error, TRIA_E_ARGUMENT, "vulkan: lock_queue and unlock_queue come as a pair");
    }
    VK_TRY(vk_instance_adopt(&device->instance, (VkInstance)engine.instance, engine.get_instance_proc_addr,
                             error));
    device->physical = (VkPhysicalDevice)engine.physical_device;
    device->handle = (VkDevice)engine.device;
    device->queue = (VkQueue)engine.queue;
    device->queue_family = engine.queue_family;
    device->storage_8bit = engine.storage_8bit != 0;
    device->storage_16bit = engine.storage_16bit != 0;
    device->cache = (VkPipelineCache)engine.pipeline_cache;
    device->lock_queue = engine.lock_queue;
    device->unlock_queue = engine.unlock_queue;
    device->lock_context = engine.lock_context;
    return vk_functions_load(&device->vk, &device->instance, device->handle, error);
}

static uint64_t clock_mask(const vk_instance *instance, VkPhysicalDevice physical, uint32_t family)
{
    VkQueueFamilyProperties families[MAX_FAMILIES];
    uint32_t count = MAX_FAMILIES;
    instance->GetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    const uint32_t bits = family < count ? families[family].timestampValidBits : 0;
    return bits >= 64 ? UINT64_MAX : (1ULL << bits) - 1;
}

static tria_status read_properties(vk_device *device, tria_error *error)
{
    VkPhysicalDeviceDriverProperties driver = {.sType =
                                                   VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceMaintenance3Properties maintenance = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, .pNext = &driver};
    VkPhysicalDeviceSubgroupProperties subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, .pNext = &maintenance};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &subgroup};
    device->instance.GetPhysicalDeviceProperties2(device->physical, &properties);
    device->instance.GetPhysicalDeviceMemoryProperties(device->physical, &device->memory);
    device->limits = properties.properties.limits;
    device->max_allocation = maintenance.maxMemoryAllocationSize;
    device->subgroup_size = subgroup.subgroupSize;
    device->clock_mask = clock_mask(&device->instance, device->physical, device->queue_family);
    device->limits_loops = driver.driverID == VK_DRIVER_ID_MESA_LLVMPIPE;
    device->subgroup_arithmetic = (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
                                  (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT) != 0;
    snprintf(device->name, sizeof(device->name), "%s", properties.properties.deviceName);
    if (properties.properties.apiVersion < VK_API_VERSION_1_2) {
        return vk_fail(error, TRIA_E_DEVICE, "vulkan: %s offers only Vulkan %u.%u, 1.2 is needed",
                       device->name, VK_API_VERSION_MAJOR(properties.properties.apiVersion),
                       VK_API_VERSION_MINOR(properties.properties.apiVersion));
    }
    if (device->limits.maxPerStageDescriptorStorageBuffers < 7) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %s binds only %u storage buffers (maxPerStageDescriptorStorageBuffers), 7 "
                       "are needed",
                       device->name, device->limits.maxPerStageDescriptorStorageBuffers);
    }
    device->workgroup = 256;
    while (device->workgroup > device->limits.maxComputeWorkGroupInvocations ||
           device->workgroup > device->limits.maxComputeWorkGroupSize[0]) {
        device->workgroup /= 2;
    }
    /* 32 KiB: more would leave too few workgroups per core; 64 words are for everything but tiles */
    const uint32_t bytes = device->limits.maxComputeSharedMemorySize;
    device->shared_words = (bytes < 32768 ? bytes : 32768) / 4 - 64;
    return TRIA_OK;
}

tria_status vk_device_open(const tria_device_params *params, const tria_v1_host *host, void **out,
                           tria_error *error)
{
    vk_device *device = vk_host_alloc(host, 1, sizeof(*device));
    if (device == NULL) {
        return vk_fail(error, TRIA_E_MEMORY, "vulkan: cannot allocate a device");
    }
    device->host = *host;
    pthread_mutex_init(&device->lock, NULL);
    tria_status status =
        params->native != NULL ? adopt(device, params->native, error) : create_own(device, params, error);
    if (status == TRIA_OK) {
        status = read_properties(device, error);
    }
    if (status == TRIA_OK && device->cache == VK_NULL_HANDLE) {
        const VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
        const VkResult result = device->vk.CreatePipelineCache(device->handle, &info, NULL, &device->cache);
        device->cache_owned = result == VK_SUCCESS;
        if (result != VK_SUCCESS) {
            status = vk_fail_result(error, result, "vkCreatePipelineCache");
        }
    }
    if (status != TRIA_OK) {
        vk_device_close(device);
        return status;
    }
    *out = device;
    return TRIA_OK;
}

void vk_device_close(void *opaque)
{
    vk_device *device = opaque;
    if (device == NULL) {
        return;
    }
    const tria_v1_host host = device->host;
    if (device->cache_owned) {
        device->vk.DestroyPipelineCache(device->handle, device->cache, NULL);
    }
    if (device->owned && device->vk.DestroyDevice != NULL) {
        device->vk.DestroyDevice(device->handle, NULL);
    }
    vk_instance_release(&device->instance);
    pthread_mutex_destroy(&device->lock);
    vk_host_free(&host, device);
}

const char *vk_device_name(const void *device)
{
    return ((const vk_device *)device)->name;
}

void vk_queue_lock(vk_device *device)
{
    if (device->lock_queue != NULL) {
        device->lock_queue(device->lock_context);
    } else {
        pthread_mutex_lock(&device->lock);
    }
}

void vk_queue_unlock(vk_device *device)
{
    if (device->unlock_queue != NULL) {
        device->unlock_queue(device->lock_context);
    } else {
        pthread_mutex_unlock(&device->lock);
    }
}

/* The first memory type with all of `needed`, preferring those that also have `wished`. */
static int32_t memory_type(const vk_device *device, uint32_t allowed, VkMemoryPropertyFlags needed,
                           VkMemoryPropertyFlags wished)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < device->memory.memoryTypeCount; i++) {
        const VkMemoryPropertyFlags flags = device->memory.memoryTypes[i].propertyFlags;
        if ((allowed & (1U << i)) == 0 || (flags & needed) != needed) {
            continue;
        }
        if ((flags & wished) == wished) {
            return (int32_t)i;
        }
        found = found < 0 ? (int32_t)i : found;
    }
    return found;
}

tria_status vk_buffer_alloc(vk_device *device, VkDeviceSize size, vk_memory_kind kind, const char *what,
                            vk_buffer *buffer, tria_error *error)
{
    static const VkMemoryPropertyFlags needed[] = {
        [VK_ON_DEVICE] = 0,
        [VK_UPLOAD] = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
        [VK_READBACK] = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    };
    static const VkMemoryPropertyFlags wished[] = {
        [VK_ON_DEVICE] = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
        [VK_UPLOAD] = 0,
        [VK_READBACK] = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    };
    if (size > device->max_allocation) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %s needs %llu bytes, %s allows %llu (maxMemoryAllocationSize)", what,
                       (unsigned long long)size, device->name, (unsigned long long)device->max_allocation);
    }
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = size,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                     .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    VkMemoryRequirements requirements;
    VK_CHECK(device->vk.CreateBuffer(device->handle, &info, NULL, &buffer->handle), what);
    buffer->size = size;
    device->vk.GetBufferMemoryRequirements(device->handle, buffer->handle, &requirements);
    const int32_t type = memory_type(device, requirements.memoryTypeBits, needed[kind], wished[kind]);
    if (type < 0) {
        return vk_fail(error, TRIA_E_DEVICE, "vulkan: %s has no memory for %s", device->name, what);
    }
    const VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                             .allocationSize = requirements.size,
                                             .memoryTypeIndex = (uint32_t)type};
    VK_CHECK(device->vk.AllocateMemory(device->handle, &allocation, NULL, &buffer->memory), what);
    VK_CHECK(device->vk.BindBufferMemory(device->handle, buffer->handle, buffer->memory, 0), what);
    if (kind != VK_ON_DEVICE) {
        VK_CHECK(device->vk.MapMemory(device->handle, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped),
                 what);
    }
    return TRIA_OK;
}

void vk_buffer_free(vk_device *device, vk_buffer *buffer)
{
    if (buffer->handle != VK_NULL_HANDLE) {
        device->vk.DestroyBuffer(device->handle, buffer->handle, NULL);
    }
    if (buffer->memory != VK_NULL_HANDLE) {
        device->vk.FreeMemory(device->handle, buffer->memory, NULL);
    }
    memset(buffer, 0, sizeof(*buffer));
}

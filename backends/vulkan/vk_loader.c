/* vk_loader.c - see vk_loader.h. */
#include "vk_loader.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

tria_status vk_fail(tria_error *error, tria_status code, const char *format, ...)
{
    if (error != NULL) {
        va_list args;
        va_start(args, format);
        error->code = code;
        vsnprintf(error->message, sizeof(error->message), format, args);
        va_end(args);
    }
    return code;
}

static const char *result_text(VkResult result)
{
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED:
        return "initialization failed";
    case VK_ERROR_DEVICE_LOST:
        return "device lost";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
        return "no compatible driver";
    case VK_ERROR_TOO_MANY_OBJECTS:
        return "too many objects";
    case VK_ERROR_OUT_OF_POOL_MEMORY:
    case VK_ERROR_FRAGMENTED_POOL:
        return "out of pool memory";
    default:
        return "failed";
    }
}

tria_status vk_fail_result(tria_error *error, VkResult result, const char *what)
{
    const tria_status code =
        result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ? TRIA_E_MEMORY
                                                                                         : TRIA_E_DEVICE;
    return vk_fail(error, code, "vulkan: %s: %s (VkResult %d)", what, result_text(result), (int)result);
}

/* dlsym returns an object pointer; ISO C has no cast to a function pointer. */
static PFN_vkVoidFunction symbol(void *library, const char *name)
{
    PFN_vkVoidFunction function = NULL;
    void *address = dlsym(library, name);
    memcpy(&function, &address, sizeof(function));
    return function;
}

static tria_status open_loader(vk_instance *instance, tria_error *error)
{
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib",
                                        "libMoltenVK.dylib"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && instance->library == NULL; i++) {
        instance->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (instance->library == NULL) {
        return vk_fail(error, TRIA_E_BACKEND,
                       "vulkan: the Vulkan loader (libvulkan.so.1) cannot be opened; is it installed?");
    }
    instance->GetInstanceProcAddr =
        (PFN_vkGetInstanceProcAddr)symbol(instance->library, "vkGetInstanceProcAddr");
    if (instance->GetInstanceProcAddr == NULL) {
        return vk_fail(error, TRIA_E_BACKEND, "vulkan: the Vulkan loader has no vkGetInstanceProcAddr");
    }
    return TRIA_OK;
}

static tria_status load_instance(vk_instance *instance, tria_error *error)
{
#define VK_LOAD(name)                                                                                      \
    instance->name = (PFN_vk##name)instance->GetInstanceProcAddr(instance->handle, "vk" #name);            \
    if (instance->name == NULL) {                                                                          \
        return vk_fail(error, TRIA_E_BACKEND, "vulkan: the driver lacks vk" #name " (Vulkan 1.1)");        \
    }
    VK_INSTANCE_FUNCTIONS(VK_LOAD)
#undef VK_LOAD
    return TRIA_OK;
}

static tria_status create(vk_instance *instance, tria_error *error)
{
    VK_TRY(open_loader(instance, error));
    const PFN_vkCreateInstance create_instance =
        (PFN_vkCreateInstance)instance->GetInstanceProcAddr(NULL, "vkCreateInstance");
    const PFN_vkEnumerateInstanceVersion version_of =
        (PFN_vkEnumerateInstanceVersion)instance->GetInstanceProcAddr(NULL, "vkEnumerateInstanceVersion");
    uint32_t version = VK_API_VERSION_1_0;
    if (create_instance == NULL || (version_of != NULL && version_of(&version) != VK_SUCCESS) ||
        version < VK_API_VERSION_1_2) {
        return vk_fail(error, TRIA_E_BACKEND, "vulkan: the loader offers Vulkan %u.%u, 1.2 is needed",
                       VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    }
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "tria",
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    VK_CHECK(create_instance(&info, NULL, &instance->handle), "vkCreateInstance");
    instance->owned = 1;
    /* first, so that a failure below can destroy the instance */
    instance->DestroyInstance =
        (PFN_vkDestroyInstance)instance->GetInstanceProcAddr(instance->handle, "vkDestroyInstance");
    return load_instance(instance, error);
}

tria_status vk_instance_create(vk_instance *instance, tria_error *error)
{
    memset(instance, 0, sizeof(*instance));
    const tria_status status = create(instance, error);
    if (status != TRIA_OK) {
        vk_instance_release(instance);
    }
    return status;
}

tria_status vk_instance_adopt(vk_instance *instance, VkInstance handle, PFN_vkVoidFunction entry,
                              tria_error *error)
{
    memset(instance, 0, sizeof(*instance));
    tria_status status = TRIA_OK;
    if (entry != NULL) {
        instance->GetInstanceProcAddr = (PFN_vkGetInstanceProcAddr)entry;
    } else {
        status = open_loader(instance, error);
    }
    instance->handle = handle;
    if (status == TRIA_OK) {
        status = load_instance(instance, error);
    }
    if (status != TRIA_OK) {
        vk_instance_release(instance);
    }
    return status;
}

void vk_instance_release(vk_instance *instance)
{
    if (instance->owned && instance->DestroyInstance != NULL) {
        instance->DestroyInstance(instance->handle, NULL);
    }
    if (instance->library != NULL) {
        dlclose(instance->library);
    }
    memset(instance, 0, sizeof(*instance));
}

tria_status vk_functions_load(vk_functions *functions, const vk_instance *instance, VkDevice device,
                              tria_error *error)
{
#define VK_LOAD(name)                                                                                      \
    functions->name = (PFN_vk##name)instance->GetDeviceProcAddr(device, "vk" #name);                       \
    if (functions->name == NULL) {                                                                         \
        return vk_fail(error, TRIA_E_DEVICE, "vulkan: the device lacks vk" #name);                         \
    }
    VK_DEVICE_FUNCTIONS(VK_LOAD)
#undef VK_LOAD
    return TRIA_OK;
}

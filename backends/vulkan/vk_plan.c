/* vk_plan.c - making and releasing a plan's context. */
#include "vk_plan.h"

#include <string.h>

/* What the device cannot do for such a plan. */
static tria_status check_layers(const vk_device *device, const tria_v1_plan *plan, tria_error *error)
{
    const uint32_t *max_groups = device->limits.maxComputeWorkGroupCount;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const tria_v1_layer *layer = &plan->layers[l];
        if (layer->n_kv_heads == 0) {
            continue;
        }
        const uint32_t tile_rows = vk_tile_rows(device, plan, layer);
        if (tile_rows == 0) {
            return vk_fail(
                error, TRIA_E_UNSUPPORTED,
                "vulkan: layer %d: a key of %u elements does not fit into the shared memory of %s "
                "(maxComputeSharedMemorySize %u)",
                layer->model_layer, vk_used_dim(plan, layer), device->name,
                device->limits.maxComputeSharedMemorySize);
        }
        if (((uint32_t)plan->max_rows - 1) / tile_rows >= max_groups[0] ||
            (uint32_t)layer->n_kv_heads > max_groups[1]) {
            return vk_fail(error, TRIA_E_UNSUPPORTED,
                           "vulkan: layer %d: max_rows %d in tiles of %u is more than %s can dispatch "
                           "(maxComputeWorkGroupCount %u)",
                           layer->model_layer, plan->max_rows, tile_rows, device->name, max_groups[0]);
        }
    }
    if ((uint32_t)plan->n_queries > max_groups[0] || (uint32_t)plan->n_sets > max_groups[0] ||
        (uint32_t)plan->n_sets > max_groups[1] || (uint32_t)plan->n_kv > max_groups[1]) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %d query heads, %d KV heads are more than %s can dispatch "
                       "(maxComputeWorkGroupCount %u)",
                       plan->n_queries, plan->n_kv, device->name, max_groups[1]);
    }
    return TRIA_OK;
}

/* Iterations of the longest of a shader's invocations, from above: of the score shader for a layer, and of
 * those that walk over all rows (statistics, selection, moves). */
static uint64_t score_iterations(const vk_device *device, const tria_v1_plan *plan,
                                 const tria_v1_layer *layer)
{
    const uint64_t group = (uint64_t)device->workgroup;
    const uint64_t rows = vk_tile_rows(device, plan, layer);
    const uint64_t used = vk_used_dim(plan, layer);
    const uint64_t n_freq = (uint64_t)layer->n_freq;
    uint64_t heads = 0;
    for (int32_t h = 0; h < layer->n_kv_heads; h++) {
        const tria_v1_kv *kv = &plan->kv[layer->first_kv_slot + h];
        const uint64_t n = (uint64_t)(kv->group_end - kv->group_begin);
        heads = n > heads ? n : heads;
    }
    const uint64_t pairs = rows * heads / group + 1;
    return (rows * used / group + 1) * 16 + (rows * n_freq / group + 1) * 4 +
           pairs * ((uint64_t)plan->n_lin * (used / 2 + 2) + n_freq + 2);
}

static tria_status check_loops(const vk_device *device, const tria_v1_plan *plan, tria_error *error)
{
    const int32_t most_rows = 1 << 20;
    for (int32_t l = 0; device->limits_loops && l < plan->n_layers; l++) {
        if (plan->layers[l].n_kv_heads > 0 &&
            score_iterations(device, plan, &plan->layers[l]) > VK_MOST_ITERATIONS) {
            return vk_fail(error, TRIA_E_UNSUPPORTED,
                           "vulkan: layer %d: %s cannot score such keys, its shaders' loops end after %d "
                           "iterations",
                           plan->layers[l].model_layer, device->name, VK_MOST_ITERATIONS);
        }
    }
    if (device->limits_loops && (plan->max_rows > most_rows ||
                                 (plan->params->pool_radius > 0 && plan->max_rows > VK_MOST_ITERATIONS) ||
                                 plan->n_queries + plan->n_kv > VK_MOST_ITERATIONS)) {
        return vk_fail(
            error, TRIA_E_UNSUPPORTED,
            "vulkan: max_rows %d: %s takes at most %d (%d with pooling), its shaders' loops end after "
            "%d iterations",
            plan->max_rows, device->name, most_rows, VK_MOST_ITERATIONS, VK_MOST_ITERATIONS);
    }
    return TRIA_OK;
}

static tria_status check_range(const vk_device *device, uint32_t words, const char *what, tria_error *error)
{
    if (4 * (uint64_t)words > device->limits.maxStorageBufferRange) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %s needs %llu bytes, %s binds at most %u (maxStorageBufferRange)", what,
                       4ULL * words, device->name, device->limits.maxStorageBufferRange);
    }
    return TRIA_OK;
}

tria_status vk_supports(void *opaque, const tria_v1_plan *plan, tria_error *error)
{
    const vk_device *device = opaque;
    vk_layout layout = {.rotation = NULL};
    if (device->owned && !plan->params->stage_device_memory) {
        return vk_fail(
            error, TRIA_E_UNSUPPORTED,
            "vulkan: on a device of our own keys are in host memory, and copying them through the "
            "device was not allowed (stage_device_memory)");
    }
    if (plan->params->all_reduce != NULL) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: all_reduce works on device pointers, which Vulkan does not have");
    }
    VK_TRY(check_layers(device, plan, error));
    VK_TRY(check_loops(device, plan, error));
    VK_TRY(vk_layout_init(&layout, plan, error));
    VK_TRY(check_range(device, layout.constants, "the plan's constants", error));
    VK_TRY(check_range(device, layout.inputs, "the inputs of an event", error));
    VK_TRY(check_range(device, layout.raw, "the raw scores of an event", error));
    VK_TRY(check_range(device, layout.work, "the workspace of an event", error));
    return check_range(device, layout.keep, "the keep sets of an event", error);
}

static size_t host_bytes_of(const tria_v1_plan *plan)
{
    const size_t n_layers = (size_t)plan->n_layers;
    const size_t n_sets = (size_t)plan->n_sets;
    const size_t per_sequence =
        sizeof(vk_sequence) + sizeof(tria_v1_event) +
        n_layers * VK_N_ROLES *
            (sizeof(VkDescriptorSet) + sizeof(vk_tensor) + 2 * sizeof(VkDescriptorBufferInfo)) +
        n_sets * ((size_t)plan->max_rows + 1) * sizeof(int32_t);
    return sizeof(vk_context) + n_layers * sizeof(uint32_t) + (size_t)plan->n_kv * sizeof(int32_t) +
           (size_t)plan->params->max_sequences * per_sequence;
}

tria_status vk_workspace_size(const tria_v1_plan *plan, size_t *host_bytes, size_t *device_bytes,
                              tria_error *error)
{
    vk_layout layout = {.rotation = NULL};
    VK_TRY(vk_layout_init(&layout, plan, error));
    const size_t words =
        (size_t)layout.inputs + layout.raw + layout.work + layout.keep + layout.upload + layout.readback;
    const size_t staging = plan->params->stage_device_memory ? (size_t)vk_staging_bytes(plan) : 0;
    *host_bytes = host_bytes_of(plan);
    *device_bytes =
        4 * (size_t)layout.constants + (size_t)plan->params->max_sequences * (4 * words + 2 * staging);
    return TRIA_OK;
}

/* Allocates `count` elements and remembers a failure. */
static void *grab(const vk_context *context, size_t count, size_t size, bool *ok)
{
    void *pointer = vk_host_alloc(&context->device->host, count > 0 ? count : 1, size);
    *ok = *ok && pointer != NULL;
    return pointer;
}

static bool allocate_host(vk_context *context)
{
    const tria_v1_plan *plan = context->plan;
    const size_t n = (size_t)plan->params->max_sequences;
    const size_t n_tensors = (size_t)plan->n_layers * VK_N_ROLES;
    bool ok = true;
    context->layout.rotation = grab(context, (size_t)plan->n_layers, sizeof(uint32_t), &ok);
    context->slot_scratch = grab(context, (size_t)plan->n_kv, sizeof(int32_t), &ok);
    context->compact_scratch =
        grab(context, context->device->host.compact_scratch(plan), sizeof(int32_t), &ok);
    context->events = grab(context, n, sizeof(*context->events), &ok);
    /* K and V of a pass over all tensors, moves and zeroing apart */
    context->written = grab(context, n * n_tensors, sizeof(*context->written), &ok);
    context->sequences = grab(context, n, sizeof(*context->sequences), &ok);
    for (size_t i = 0; ok && i < n; i++) {
        vk_sequence *s = &context->sequences[i];
        s->sets = grab(context, n_tensors, sizeof(*s->sets), &ok);
        s->tensors = grab(context, n_tensors, sizeof(*s->tensors), &ok);
        s->last_keep.struct_size = sizeof(s->last_keep);
        s->last_keep.row_stride = plan->max_rows;
        s->last_keep.counts = grab(context, (size_t)plan->n_sets, sizeof(int32_t), &ok);
        s->last_keep.rows =
            grab(context, (size_t)plan->n_sets * (size_t)plan->max_rows, sizeof(int32_t), &ok);
    }
    return ok;
}

static tria_status create_descriptors(vk_context *context, tria_error *error)
{
    vk_device *device = context->device;
    const uint32_t n = (uint32_t)context->plan->params->max_sequences;
    const uint64_t n_tensors = (uint64_t)context->plan->n_layers * VK_N_ROLES;
    const uint64_t n_sets = n * (1 + n_tensors);
    if (n_sets * 5 > UINT32_MAX) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %u sequences of %d layers need too many descriptors", n,
                       context->plan->n_layers);
    }
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       (uint32_t)(n * (5 + 2 * n_tensors))};
    const VkDescriptorPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                             .maxSets = (uint32_t)n_sets,
                                             .poolSizeCount = 1,
                                             .pPoolSizes = &size};
    VK_CHECK(device->vk.CreateDescriptorPool(device->handle, &info, NULL, &context->pool),
             "vkCreateDescriptorPool");
    for (uint32_t i = 0; i < n; i++) {
        vk_sequence *s = &context->sequences[i];
        for (uint64_t set = 0; set <= n_tensors; set++) {
            const bool main_set = set == n_tensors;
            const VkDescriptorSetAllocateInfo one = {
                .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                .descriptorPool = context->pool,
                .descriptorSetCount = 1,
                .pSetLayouts = main_set ? &context->main_layout : &context->tensor_layout};
            VK_CHECK(device->vk.AllocateDescriptorSets(device->handle, &one,
                                                       main_set ? &s->main : &s->sets[set]),
                     "vkAllocateDescriptorSets");
        }
        const VkBuffer buffers[5] = {context->constants.handle, s->inputs.handle, s->raw.handle,
                                     s->work.handle, s->keep.handle};
        for (uint32_t b = 0; b < 5; b++) {
            const VkDescriptorBufferInfo range = {buffers[b], 0, VK_WHOLE_SIZE};
            const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                                .dstSet = s->main,
                                                .dstBinding = b,
                                                .descriptorCount = 1,
                                                .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                .pBufferInfo = &range};
            device->vk.UpdateDescriptorSets(device->handle, 1, &write, 0, NULL);
        }
    }
    return TRIA_OK;
}

static tria_status create_buffers(vk_context *context, tria_error *error)
{
    vk_device *device = context->device;
    const vk_layout *l = &context->layout;
    const VkDeviceSize staging = context->staged ? vk_staging_bytes(context->plan) : 0;
    VK_TRY(vk_buffer_alloc(device, 4 * (VkDeviceSize)l->constants, VK_ON_DEVICE, "the plan's constants",
                           &context->constants, error));
    for (int32_t i = 0; i < context->plan->params->max_sequences; i++) {
        vk_sequence *s = &context->sequences[i];
        const struct {
            vk_buffer *buffer;
            VkDeviceSize bytes;
            vk_memory_kind kind;
            const char *what;
        } list[] = {
            {&s->inputs, 4 * (VkDeviceSize)l->inputs, VK_ON_DEVICE, "the inputs of an event"},
            {&s->raw, 4 * (VkDeviceSize)l->raw, VK_ON_DEVICE, "the raw scores of an event"},
            {&s->work, 4 * (VkDeviceSize)l->work, VK_ON_DEVICE, "the workspace of an event"},
            {&s->keep, 4 * (VkDeviceSize)l->keep, VK_ON_DEVICE, "the keep sets of an event"},
            {&s->upload, 4 * (VkDeviceSize)l->upload, VK_UPLOAD, "the upload buffer of an event"},
            {&s->readback, 4 * (VkDeviceSize)l->readback, VK_READBACK, "the readback buffer of an event"},
            {&s->staging, staging, VK_READBACK, "the staging buffer of a sequence's keys and values"},
            {&s->staged, staging, VK_ON_DEVICE, "a sequence's staged keys and values"},
        };
        for (size_t b = 0; b < sizeof(list) / sizeof(list[0]); b++) {
            if (list[b].bytes > 0) {
                VK_TRY(vk_buffer_alloc(device, list[b].bytes, list[b].kind, list[b].what, list[b].buffer,
                                       error));
            }
        }
    }
    return TRIA_OK;
}

static tria_status create_commands(vk_context *context, tria_error *error)
{
    vk_device *device = context->device;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = device->queue_family};
    VK_CHECK(device->vk.CreateCommandPool(device->handle, &pool, NULL, &context->command_pool),
             "vkCreateCommandPool");
    const VkCommandBufferAllocateInfo buffer = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = context->command_pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    VK_CHECK(device->vk.AllocateCommandBuffers(device->handle, &buffer, &context->own_commands),
             "vkAllocateCommandBuffers");
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VK_CHECK(device->vk.CreateFence(device->handle, &fence, NULL, &context->fence), "vkCreateFence");
    return TRIA_OK;
}

/* The constants go to the device once, through a buffer that lives as long as that takes. */
static tria_status upload_constants(vk_context *context, tria_error *error)
{
    vk_buffer source = {.size = 0};
    tria_status status = vk_buffer_alloc(context->device, context->constants.size, VK_UPLOAD,
                                         "the plan's constants", &source, error);
    if (status == TRIA_OK) {
        const VkBufferCopy region = {0, 0, context->constants.size};
        vk_constants_fill(&context->layout, context->plan, &context->device->host, source.mapped);
        status = vk_record_begin(context, error);
        if (status == TRIA_OK) {
            context->device->vk.CmdCopyBuffer(context->commands, source.handle, context->constants.handle,
                                              1, &region);
            status = vk_record_end(context, error);
        }
        if (status == TRIA_OK) {
            status = vk_submit(context, error);
        }
        if (status == TRIA_OK) {
            status = vk_wait(context, error);
        }
    }
    vk_buffer_free(context->device, &source);
    return status;
}

static tria_status create(vk_context *context, tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    if (!allocate_host(context)) {
        return vk_fail(error, TRIA_E_MEMORY, "vulkan: cannot allocate a plan's host memory");
    }
    VK_TRY(vk_layout_init(&context->layout, plan, error));
    VK_TRY(vk_pipelines_create(context, error));
    VK_TRY(create_buffers(context, error));
    VK_TRY(create_descriptors(context, error));
    VK_TRY(create_commands(context, error));
    VK_TRY(vk_clock_create(context, error));
    VK_TRY(upload_constants(context, error));
    if (context->staged) {
        const tria_v1_host *host = &context->device->host;
        host->log(host->env, TRIA_LOG_INFO,
                  "tria: vulkan on %s: keys and values are host memory and are copied through the device",
                  context->device->name);
    }
    return TRIA_OK;
}

tria_status vk_plan_create(void *opaque, const tria_v1_plan *plan, void **out, tria_error *error)
{
    vk_device *device = opaque;
    vk_context *context = vk_host_alloc(&device->host, 1, sizeof(*context));
    if (context == NULL) {
        return vk_fail(error, TRIA_E_MEMORY, "vulkan: cannot allocate a plan's context");
    }
    context->device = device;
    context->plan = plan;
    context->staged = device->owned;
    const tria_status status = create(context, error);
    if (status != TRIA_OK) {
        vk_plan_destroy(context);
        return status;
    }
    *out = context;
    return TRIA_OK;
}

static void destroy_sequence(vk_context *context, vk_sequence *s)
{
    const tria_v1_host *host = &context->device->host;
    vk_buffer *const buffers[] = {&s->inputs, &s->raw,      &s->work,    &s->keep,
                                  &s->upload, &s->readback, &s->staging, &s->staged};
    for (size_t b = 0; b < sizeof(buffers) / sizeof(buffers[0]); b++) {
        vk_buffer_free(context->device, buffers[b]);
    }
    vk_host_free(host, s->sets);
    vk_host_free(host, s->tensors);
    vk_host_free(host, s->last_keep.counts);
    vk_host_free(host, s->last_keep.rows);
}

void vk_plan_destroy(void *opaque)
{
    vk_context *context = opaque;
    vk_device *device = context->device;
    if (context->state == VK_RUNNING) {
        vk_wait(context, NULL);
    }
    for (int32_t i = 0; context->sequences != NULL && i < context->plan->params->max_sequences; i++) {
        destroy_sequence(context, &context->sequences[i]);
    }
    vk_buffer_free(device, &context->constants);
    device->vk.DestroyQueryPool(device->handle, context->clock, NULL);
    device->vk.DestroyFence(device->handle, context->fence, NULL);
    device->vk.DestroyCommandPool(device->handle, context->command_pool, NULL);
    device->vk.DestroyDescriptorPool(device->handle, context->pool, NULL);
    vk_pipelines_destroy(context);
    vk_host_free(&device->host, context->layout.rotation);
    vk_host_free(&device->host, context->slot_scratch);
    vk_host_free(&device->host, context->compact_scratch);
    vk_host_free(&device->host, context->events);
    vk_host_free(&device->host, context->written);
    vk_host_free(&device->host, context->sequences);
    vk_host_free(&device->host, context);
}

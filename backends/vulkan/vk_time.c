/* vk_time.c - how long stages and copies take, by the device's clock. */
#include "vk_plan.h"

static tria_status create_queries(const vk_device *device, uint32_t count, VkQueryPool *queries,
                                  tria_error *error)
{
    const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                        .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                        .queryCount = count};
    VK_CHECK(device->vk.CreateQueryPool(device->handle, &info, NULL, queries), "vkCreateQueryPool");
    return TRIA_OK;
}

/* The time when everything recorded so far has finished. */
static void write_time(const vk_device *device, VkCommandBuffer commands, VkQueryPool queries,
                       uint32_t query)
{
    device->vk.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, query);
}

/* Seconds from query `first` to the next; 0: not known. */
static double elapsed(const vk_device *device, VkQueryPool queries, uint32_t first)
{
    uint64_t ticks[2];
    if (device->vk.GetQueryPoolResults(device->handle, queries, first, 2, sizeof(ticks), ticks,
                                       sizeof(ticks[0]), VK_QUERY_RESULT_64_BIT) != VK_SUCCESS) {
        return 0.0;
    }
    return (double)((ticks[1] - ticks[0]) & device->clock_mask) * (double)device->limits.timestampPeriod *
           1e-9;
}

tria_status vk_clock_create(vk_context *context, tria_error *error)
{
    return context->device->clock_mask != 0
               ? create_queries(context->device, 2 * VK_N_PARTS, &context->clock, error)
               : TRIA_OK;
}

void vk_clock_begin(vk_context *context, tria_part part)
{
    if (context->clock != VK_NULL_HANDLE) {
        context->device->vk.CmdResetQueryPool(context->commands, context->clock, 2 * (uint32_t)part, 2);
        write_time(context->device, context->commands, context->clock, 2 * (uint32_t)part);
    }
}

void vk_clock_end(vk_context *context, tria_part part)
{
    if (context->clock != VK_NULL_HANDLE) {
        write_time(context->device, context->commands, context->clock, 2 * (uint32_t)part + 1);
        context->timed[part] = true;
    }
}

double vk_seconds(void *opaque, int32_t part)
{
    const vk_context *context = opaque;
    if (context->state != VK_IDLE || !context->timed[part]) {
        return 0.0;
    }
    return elapsed(context->device, context->clock, 2 * (uint32_t)part);
}

/* What one timed copy needs. */
typedef struct copier {
    vk_buffer from;
    vk_buffer to;
    VkQueryPool queries;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
} copier;

static tria_status copier_create(vk_device *device, VkDeviceSize size, copier *c, tria_error *error)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = device->queue_family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VK_TRY(vk_buffer_alloc(device, size, VK_ON_DEVICE, "the source of a copy", &c->from, error));
    VK_TRY(vk_buffer_alloc(device, size, VK_ON_DEVICE, "the target of a copy", &c->to, error));
    VK_TRY(create_queries(device, 2, &c->queries, error));
    VK_CHECK(device->vk.CreateCommandPool(device->handle, &pool, NULL, &c->pool), "vkCreateCommandPool");
    const VkCommandBufferAllocateInfo buffer = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = c->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    VK_CHECK(device->vk.AllocateCommandBuffers(device->handle, &buffer, &c->commands),
             "vkAllocateCommandBuffers");
    VK_CHECK(device->vk.CreateFence(device->handle, &fence, NULL, &c->fence), "vkCreateFence");
    return TRIA_OK;
}

static void copier_destroy(vk_device *device, copier *c)
{
    device->vk.DestroyFence(device->handle, c->fence, NULL);
    device->vk.DestroyCommandPool(device->handle, c->pool, NULL);
    device->vk.DestroyQueryPool(device->handle, c->queries, NULL);
    vk_buffer_free(device, &c->to);
    vk_buffer_free(device, &c->from);
}

/* Source and target are written first, so that their pages exist. */
static tria_status copier_run(vk_device *device, copier *c, tria_error *error)
{
    const vk_functions *vk = &device->vk;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkMemoryBarrier written = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask =
                                         VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkBufferCopy all = {0, 0, c->from.size};
    const VkSubmitInfo submission = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &c->commands};
    VK_CHECK(vk->BeginCommandBuffer(c->commands, &begin), "vkBeginCommandBuffer");
    vk->CmdResetQueryPool(c->commands, c->queries, 0, 2);
    vk->CmdFillBuffer(c->commands, c->from.handle, 0, VK_WHOLE_SIZE, 1);
    vk->CmdFillBuffer(c->commands, c->to.handle, 0, VK_WHOLE_SIZE, 2);
    vk->CmdPipelineBarrier(c->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0,
                           1, &written, 0, NULL, 0, NULL);
    write_time(device, c->commands, c->queries, 0);
    vk->CmdCopyBuffer(c->commands, c->from.handle, c->to.handle, 1, &all);
    write_time(device, c->commands, c->queries, 1);
    VK_CHECK(vk->EndCommandBuffer(c->commands), "vkEndCommandBuffer");
    vk_queue_lock(device);
    const VkResult submitted = vk->QueueSubmit(device->queue, 1, &submission, c->fence);
    vk_queue_unlock(device);
    VK_CHECK(submitted, "vkQueueSubmit");
    VK_CHECK(vk->WaitForFences(device->handle, 1, &c->fence, VK_TRUE, UINT64_MAX), "vkWaitForFences");
    return TRIA_OK;
}

tria_status vk_copy_seconds(void *opaque, size_t bytes, double *seconds, tria_error *error)
{
    vk_device *device = opaque;
    copier c = {.queries = VK_NULL_HANDLE};
    if (device->clock_mask == 0) {
        return vk_fail(error, TRIA_E_UNSUPPORTED, "vulkan: %s has no timestamps (timestampValidBits)",
                       device->name);
    }
    tria_status status = copier_create(device, ((VkDeviceSize)bytes + 3) / 4 * 4, &c, error);
    if (status == TRIA_OK) {
        status = copier_run(device, &c, error);
    }
    if (status == TRIA_OK) {
        *seconds = elapsed(device, c.queries, 0);
    }
    copier_destroy(device, &c);
    return status;
}

/* vk_record.c - the commands of a batch and their submission. */
#include "vk_plan.h"

#include <string.h>

/* Makes everything written so far visible to shaders and copies. */
static void barrier(vk_context *context)
{
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                         VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkPipelineStageFlags stages =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    context->device->vk.CmdPipelineBarrier(context->commands, stages, stages, 0, 1, &memory, 0, NULL, 0,
                                           NULL);
    context->n_written = 0;
}

tria_status vk_record_begin(vk_context *context, tria_error *error)
{
    const vk_functions *vk = &context->device->vk;
    if (context->stream.command_buffer != NULL) {
        context->commands = (VkCommandBuffer)context->stream.command_buffer;
        context->state = VK_RECORDED;
    } else {
        const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                               .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
        VK_CHECK(vk->BeginCommandBuffer(context->own_commands, &info), "vkBeginCommandBuffer");
        context->commands = context->own_commands;
        context->state = VK_RECORDING;
    }
    /* whatever the engine did before, in this command buffer or an earlier one of the queue */
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                    .dstAccessMask =
                                        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                                        VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    vk->CmdPipelineBarrier(context->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                           VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1,
                           &memory, 0, NULL, 0, NULL);
    context->n_written = 0;
    return TRIA_OK;
}

static void copy(vk_context *context, VkBuffer from, VkDeviceSize from_word, VkBuffer to,
                 VkDeviceSize to_word, VkDeviceSize words)
{
    if (words > 0) {
        const VkBufferCopy region = {4 * from_word, 4 * to_word, 4 * words};
        context->device->vk.CmdCopyBuffer(context->commands, from, to, 1, &region);
    }
}

void vk_record_inputs(vk_context *context, bool to_move)
{
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        copy(context, s->upload.handle, 0, s->inputs.handle, 0, s->inputs_used);
        if (context->staged && (to_move || s->scored)) {
            vk_record_staged(context, s, to_move, false);
        }
    }
}

static void use(vk_context *context, vk_shader shader, const vk_sequence *sequence)
{
    const vk_functions *vk = &context->device->vk;
    vk->CmdBindPipeline(context->commands, VK_PIPELINE_BIND_POINT_COMPUTE, context->pipelines[shader]);
    vk->CmdBindDescriptorSets(context->commands, VK_PIPELINE_BIND_POINT_COMPUTE, context->pipeline_layout,
                              0, 1, &sequence->main, 0, NULL);
}

static void push(vk_context *context, const void *constants, size_t size)
{
    context->device->vk.CmdPushConstants(context->commands, context->pipeline_layout,
                                         VK_SHADER_STAGE_COMPUTE_BIT, 0, (uint32_t)size, constants);
}

static void dispatch_3d(vk_context *context, uint32_t x, uint32_t y, uint32_t z)
{
    if (x > 0 && y > 0 && z > 0) {
        context->device->vk.CmdDispatch(context->commands, x, y, z);
    }
}

static void dispatch(vk_context *context, uint32_t x, uint32_t y)
{
    dispatch_3d(context, x, y, 1);
}

static uint32_t groups_for(const vk_context *context, uint32_t invocations)
{
    return (invocations + context->device->workgroup - 1) / context->device->workgroup;
}

static uint32_t longest(const vk_context *context, const vk_sequence *sequence)
{
    int32_t n = 0;
    for (int32_t s = 0; s < context->plan->n_kv; s++) {
        n = sequence->event->rows[s] > n ? sequence->event->rows[s] : n;
    }
    return (uint32_t)n;
}

/* Empties what shaders add to. */
static void clear(vk_context *context)
{
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        context->device->vk.CmdFillBuffer(context->commands, s->work.handle, 0,
                                          4 * (VkDeviceSize)context->layout.report, 0);
    }
    barrier(context);
}

static void protect(vk_context *context)
{
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        use(context, VK_SHADER_protect, s);
        dispatch(context, groups_for(context, (longest(context, s) + 31) / 32),
                 (uint32_t)context->plan->n_sets);
    }
    barrier(context);
}

/* As score.comp declares it. */
typedef struct score_push {
    uint32_t first_kv;
    uint32_t layer;
    uint32_t dim;
    uint32_t used_dim;
    uint32_t rotary_offset;
    uint32_t n_freq;
    uint32_t interleaved;
    uint32_t n_lin;
    uint32_t tile_rows;
    uint32_t rotation;
    uint32_t hadamard;
    uint32_t base;
    uint32_t page_stride;
    uint32_t token_stride;
    uint32_t head_stride;
    uint32_t pack;
    uint32_t pack_stride;
    uint32_t scale_kind;
    float scale;
    uint32_t scale_base;
    uint32_t scale_page_stride;
    uint32_t scale_token_stride;
    uint32_t scale_head_stride;
} score_push;

static void score_layer(vk_context *context, const vk_sequence *sequence, int32_t layer)
{
    const tria_v1_plan *plan = context->plan;
    const tria_v1_layer *l = &plan->layers[layer];
    const vk_tensor *k = &sequence->tensors[(size_t)layer * VK_N_ROLES + VK_K];
    const vk_tensor *scales = &sequence->tensors[(size_t)layer * VK_N_ROLES + VK_K_SCALES];
    uint32_t n_rows = 0;
    for (int32_t h = 0; h < l->n_kv_heads; h++) {
        const uint32_t n = (uint32_t)sequence->event->rows[l->first_kv_slot + h];
        n_rows = n > n_rows ? n : n_rows;
    }
    if (n_rows == 0) {
        return;
    }
    score_push p = {
        .first_kv = (uint32_t)l->first_kv_slot,
        .layer = (uint32_t)layer,
        .dim = (uint32_t)l->k.dim,
        .used_dim = vk_used_dim(plan, l),
        .rotary_offset = (uint32_t)l->rotary_offset,
        .n_freq = (uint32_t)l->n_freq,
        .interleaved = l->rope_style == TRIA_ROPE_INTERLEAVED,
        .n_lin = (uint32_t)plan->n_lin,
        .tile_rows = vk_tile_rows(context->device, plan, l),
        .rotation = context->layout.rotation[layer],
        .base = k->base,
        .page_stride = k->page_stride,
        .token_stride = k->token_stride,
        .head_stride = k->head_stride,
        .pack = (uint32_t)l->k.dim / k->n_chunks,
        .pack_stride = k->chunk_stride,
        .scale_kind = (uint32_t)l->k.scale_kind,
        .scale = l->k.scale,
        .scale_base = scales->base,
        .scale_page_stride = scales->page_stride,
        .scale_token_stride = scales->token_stride,
        .scale_head_stride = scales->head_stride,
    };
    if (plan->k_state == TRIA_K_HADAMARD) {
        p.hadamard = plan->hadamard_size > 0 ? (uint32_t)plan->hadamard_size : p.dim;
    }
    use(context, (vk_shader)(VK_SHADER_score_f32 + l->k.dtype), sequence);
    context->device->vk.CmdBindDescriptorSets(context->commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                              context->pipeline_layout, 1, 1,
                                              &sequence->sets[(size_t)layer * VK_N_ROLES + VK_K], 0, NULL);
    push(context, &p, sizeof(p));
    dispatch(context, (n_rows + p.tile_rows - 1) / p.tile_rows, (uint32_t)l->n_kv_heads);
}

/* Layers without a set are only scored when somebody wants to see it. */
static bool layer_is_scored(const vk_context *context, const vk_sequence *sequence, int32_t layer)
{
    const tria_v1_layer *l = &context->plan->layers[layer];
    return sequence->scored && l->n_kv_heads > 0 &&
           (context->plan->kv[l->first_kv_slot].set >= 0 || sequence->scores.raw != NULL ||
            sequence->scores.grouped != NULL);
}

static void per_row(vk_context *context, vk_shader shader, int32_t y)
{
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        if (s->scored) {
            use(context, shader, s);
            dispatch(context, groups_for(context, longest(context, s)), (uint32_t)y);
        }
    }
    barrier(context);
}

static void statistics(vk_context *context, uint32_t grouped, int32_t n)
{
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        if (s->scored) {
            use(context, VK_SHADER_stats, s);
            push(context, &grouped, sizeof(grouped));
            dispatch(context, (uint32_t)n, 1);
        }
    }
    barrier(context);
}

void vk_record_score(vk_context *context)
{
    const tria_v1_plan *plan = context->plan;
    const bool normalised = plan->params->normalize_over != TRIA_NORMALIZE_NONE;
    clear(context);
    vk_clock_begin(context, TRIA_PART_SCORE);
    for (int32_t l = 0; l < plan->n_layers; l++) {
        bool any = false;
        for (int32_t i = 0; i < context->n_events; i++) {
            if (layer_is_scored(context, &context->sequences[i], l)) {
                score_layer(context, &context->sequences[i], l);
                any = true;
            }
        }
        if (any) {
            barrier(context);
        }
    }
    vk_clock_end(context, TRIA_PART_SCORE);
    vk_clock_begin(context, TRIA_PART_NORMALIZE);
    protect(context);
    if (normalised) {
        statistics(context, 0, plan->n_queries);
    }
    per_row(context, VK_SHADER_group, plan->n_kv);
    if (normalised && plan->params->mode == TRIA_MODE_GLOBAL) {
        statistics(context, 1, plan->n_kv);
    }
    per_row(context, VK_SHADER_aggregate, plan->n_sets);
    if (plan->params->pool_radius > 0) {
        per_row(context, VK_SHADER_pool, plan->n_sets);
    }
    vk_clock_end(context, TRIA_PART_NORMALIZE);
}

void vk_record_final_scores(vk_context *context)
{
    const vk_layout *layout = &context->layout;
    const VkDeviceSize words = (VkDeviceSize)context->plan->n_sets * (VkDeviceSize)context->plan->max_rows;
    clear(context);
    protect(context);
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        copy(context, s->upload.handle, layout->upload_keep, s->work.handle, layout->header[PLAN_FINAL],
             words);
    }
    barrier(context);
}

void vk_record_select(vk_context *context)
{
    const vk_layout *layout = &context->layout;
    const VkDeviceSize max_rows = (VkDeviceSize)context->plan->max_rows;
    const vk_shader shader = context->pipelines[VK_SHADER_select_subgroup] != VK_NULL_HANDLE
                                 ? VK_SHADER_select_subgroup
                                 : VK_SHADER_select;
    vk_clock_begin(context, TRIA_PART_SELECT);
    for (int32_t i = 0; i < context->n_events; i++) {
        use(context, shader, &context->sequences[i]);
        dispatch(context, (uint32_t)context->plan->n_sets, 1);
    }
    barrier(context);
    vk_clock_end(context, TRIA_PART_SELECT);
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        copy(context, s->work.handle, 0, s->readback.handle, 0, layout->report);
        copy(context, s->keep.handle, layout->header[PLAN_KEEP_ROWS], s->readback.handle,
             layout->readback_keep, (VkDeviceSize)context->plan->n_sets * max_rows);
    }
}

void vk_record_keep(vk_context *context)
{
    const vk_layout *layout = &context->layout;
    const VkDeviceSize max_rows = (VkDeviceSize)context->plan->max_rows;
    const VkDeviceSize n_sets = (VkDeviceSize)context->plan->n_sets;
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        const uint32_t *counts = (const uint32_t *)s->upload.mapped + layout->upload_keep;
        copy(context, s->upload.handle, layout->upload_keep, s->work.handle, layout->header[PLAN_COUNTS],
             n_sets);
        for (VkDeviceSize set = 0; set < n_sets; set++) {
            copy(context, s->upload.handle, layout->upload_keep + n_sets + set * max_rows, s->keep.handle,
                 layout->header[PLAN_KEEP_ROWS] + set * max_rows, counts[set]);
        }
    }
}

/* As repack.comp declares it. */
typedef struct repack_push {
    uint32_t first_kv;
    uint32_t layer;
    uint32_t n_units;
    uint32_t per_group;
    uint32_t unit;
    uint32_t base;
    uint32_t page_stride;
    uint32_t token_stride;
    uint32_t head_stride;
    uint32_t pack;
    uint32_t pack_stride;
    uint32_t zero;
} repack_push;

/* Units of a row that one workgroup moves: enough for whole cache lines, few enough for many groups. */
#define UNITS_PER_GROUP 32

/* A barrier when the range was written since the last one: K and V may interleave in one buffer. */
static void order_writes(vk_context *context, const VkDescriptorBufferInfo *range)
{
    for (int32_t i = 0; i < context->n_written; i++) {
        const VkDescriptorBufferInfo *other = &context->written[i];
        if (other->buffer == range->buffer && other->offset < range->offset + range->range &&
            range->offset < other->offset + other->range) {
            barrier(context);
            break;
        }
    }
    context->written[context->n_written++] = *range;
}

static void repack(vk_context *context, const vk_sequence *sequence, int32_t layer, vk_tensor_role role,
                   bool zero)
{
    const tria_v1_layer *l = &context->plan->layers[layer];
    const size_t at = (size_t)layer * VK_N_ROLES + role;
    const vk_tensor *tensor = &sequence->tensors[at];
    const uint32_t unit = vk_tensor_unit(tensor);
    const uint32_t per_chunk = tensor->chunk_bytes / unit;
    const repack_push p = {
        .first_kv = (uint32_t)l->first_kv_slot,
        .layer = (uint32_t)layer,
        .n_units = tensor->n_chunks * per_chunk,
        .per_group = UNITS_PER_GROUP,
        .unit = unit,
        .base = tensor->base,
        .page_stride = tensor->page_stride,
        .token_stride = tensor->token_stride,
        .head_stride = tensor->head_stride,
        .pack = per_chunk,
        .pack_stride = tensor->chunk_stride,
        .zero = zero,
    };
    vk_shader shader = VK_SHADER_repack_masked;
    if (unit == 4) {
        shader = VK_SHADER_repack_word;
    } else if (unit == 2 && context->device->storage_16bit) {
        shader = VK_SHADER_repack_half;
    } else if (unit == 1 && context->device->storage_8bit) {
        shader = VK_SHADER_repack_byte;
    }
    order_writes(context, &tensor->range);
    use(context, shader, sequence);
    context->device->vk.CmdBindDescriptorSets(context->commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                              context->pipeline_layout, 1, 1, &sequence->sets[at], 0, NULL);
    push(context, &p, sizeof(p));
    dispatch_3d(context, (p.n_units + UNITS_PER_GROUP - 1) / UNITS_PER_GROUP, (uint32_t)l->n_kv_heads,
                zero ? (longest(context, sequence) + ZERO_ROWS - 1) / ZERO_ROWS : 1);
}

static void repack_all(vk_context *context, bool zero)
{
    const tria_v1_plan *plan = context->plan;
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        const tria_kv_view *view = s->event->event->kv;
        for (int32_t l = 0; view != NULL && l < plan->n_layers; l++) {
            const tria_v1_layer *layer = &plan->layers[l];
            const vk_tensor *tensors = &s->tensors[(size_t)l * VK_N_ROLES];
            /* a layer whose heads obey no set stays as it is; so does one without rows, never bound */
            if (layer->n_kv_heads == 0 || plan->kv[layer->first_kv_slot].set < 0 ||
                tensors[VK_K].range.buffer == VK_NULL_HANDLE) {
                continue;
            }
            const tria_layer_view *given = &view->layers[l];
            const bool v_moves = given->v.base != NULL && !vk_v_in_k(&given->k, &given->v);
            repack(context, s, l, VK_K, zero);
            if (layer->k.scale_kind == TRIA_SCALE_ROW) {
                repack(context, s, l, VK_K_SCALES, zero);
            }
            if (v_moves) {
                repack(context, s, l, VK_V, zero);
                if (layer->v.scale_kind == TRIA_SCALE_ROW) {
                    repack(context, s, l, VK_V_SCALES, zero);
                }
            }
        }
    }
    barrier(context);
}

void vk_record_compact(vk_context *context)
{
    barrier(context);
    vk_clock_begin(context, TRIA_PART_COMPACT);
    for (int32_t i = 0; i < context->n_events; i++) {
        const vk_sequence *s = &context->sequences[i];
        use(context, VK_SHADER_moves, s);
        dispatch(context, groups_for(context, longest(context, s)), (uint32_t)context->plan->n_sets);
    }
    barrier(context);
    repack_all(context, false);
    if (context->plan->params->zero_tail) {
        repack_all(context, true);
    }
    vk_clock_end(context, TRIA_PART_COMPACT);
    for (int32_t i = 0; context->staged && i < context->n_events; i++) {
        vk_record_staged(context, &context->sequences[i], true, true);
    }
}

tria_status vk_record_end(vk_context *context, tria_error *error)
{
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
    context->device->vk.CmdPipelineBarrier(
        context->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &memory, 0, NULL, 0, NULL);
    context->n_written = 0;
    if (context->state == VK_RECORDING) {
        VK_CHECK(context->device->vk.EndCommandBuffer(context->commands), "vkEndCommandBuffer");
    }
    return TRIA_OK;
}

tria_status vk_submit(vk_context *context, tria_error *error)
{
    vk_device *device = context->device;
    const tria_vulkan_stream *stream = &context->stream;
    const VkSemaphore wait = (VkSemaphore)stream->wait_semaphore;
    const VkSemaphore signal = (VkSemaphore)stream->signal_semaphore;
    const VkPipelineStageFlags stages = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const uint32_t n_wait = wait != VK_NULL_HANDLE;
    const uint32_t n_signal = signal != VK_NULL_HANDLE;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = n_wait,
                                                  .pWaitSemaphoreValues = &stream->wait_value,
                                                  .signalSemaphoreValueCount = n_signal,
                                                  .pSignalSemaphoreValues = &stream->signal_value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = n_wait + n_signal > 0 ? &values : NULL,
                               .waitSemaphoreCount = n_wait,
                               .pWaitSemaphores = &wait,
                               .pWaitDstStageMask = &stages,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &context->commands,
                               .signalSemaphoreCount = n_signal,
                               .pSignalSemaphores = &signal};
    context->state = VK_IDLE;
    VK_CHECK(device->vk.ResetFences(device->handle, 1, &context->fence), "vkResetFences");
    vk_queue_lock(device);
    const VkResult result = device->vk.QueueSubmit(device->queue, 1, &info, context->fence);
    vk_queue_unlock(device);
    VK_CHECK(result, "vkQueueSubmit");
    context->state = VK_RUNNING;
    return TRIA_OK;
}

tria_status vk_wait(vk_context *context, tria_error *error)
{
    const vk_device *device = context->device;
    context->state = VK_IDLE;
    VK_CHECK(device->vk.WaitForFences(device->handle, 1, &context->fence, VK_TRUE, UINT64_MAX),
             "vkWaitForFences");
    return TRIA_OK;
}

/* vk_output.c - results to the caller, after the device has finished. */
#include "vk_plan.h"

#include <string.h>

/* Copies words of a device buffer to `out`, through the readback buffer, in one submission of its own:
 * for the arrays of scores, which are for looking at and too large to be mapped as a whole. */
static tria_status fetch(vk_context *context, const vk_sequence *sequence, VkBuffer from, uint32_t word,
                         uint32_t count, float *out, tria_error *error)
{
    const vk_functions *vk = &context->device->vk;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                    .dstAccessMask =
                                        VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkBufferCopy region = {4 * (VkDeviceSize)word, 4 * (VkDeviceSize)context->layout.readback_keep,
                                 4 * (VkDeviceSize)count};
    if (count == 0) {
        return TRIA_OK;
    }
    context->commands = context->own_commands;
    VK_CHECK(vk->BeginCommandBuffer(context->commands, &begin), "vkBeginCommandBuffer");
    vk->CmdPipelineBarrier(context->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                           VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &memory, 0, NULL, 0, NULL);
    vk->CmdCopyBuffer(context->commands, from, sequence->readback.handle, 1, &region);
    context->state = VK_RECORDING;
    VK_TRY(vk_record_end(context, error));
    memset(&context->stream, 0, sizeof(context->stream));
    VK_TRY(vk_submit(context, error));
    VK_TRY(vk_wait(context, error));
    memcpy(out, (const uint32_t *)sequence->readback.mapped + context->layout.readback_keep,
           sizeof(float) * count);
    return TRIA_OK;
}

static tria_status deliver_scores(vk_context *context, const vk_sequence *sequence, tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    const uint32_t *h = context->layout.header;
    const uint32_t max_rows = (uint32_t)plan->max_rows;
    const int32_t *rows = sequence->event->rows;
    const tria_scores *scores = &sequence->scores;
    for (int32_t q = 0; scores->raw != NULL && q < plan->n_queries; q++) {
        if (plan->queries[q].kv_slot >= 0) {
            VK_TRY(fetch(context, sequence, sequence->raw.handle, (uint32_t)q * max_rows,
                         (uint32_t)rows[plan->queries[q].kv_slot],
                         (float *)scores->raw + q * scores->row_stride, error));
        }
    }
    for (int32_t s = 0; scores->grouped != NULL && s < plan->n_kv; s++) {
        VK_TRY(fetch(context, sequence, sequence->work.handle, h[PLAN_GROUPED] + (uint32_t)s * max_rows,
                     (uint32_t)rows[s], (float *)scores->grouped + s * scores->row_stride, error));
    }
    for (int32_t set = 0; scores->final_scores != NULL && set < plan->n_sets; set++) {
        VK_TRY(fetch(context, sequence, sequence->work.handle, h[PLAN_FINAL] + (uint32_t)set * max_rows,
                     (uint32_t)rows[vk_first_slot(plan, set)],
                     (float *)scores->final_scores + set * scores->row_stride, error));
    }
    return TRIA_OK;
}

static int32_t count_bits(const uint32_t *words, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        count += __builtin_popcount(words[i]);
    }
    return count;
}

static void report(const vk_context *context, const vk_sequence *sequence, const uint32_t *words,
                   tria_keep *keep)
{
    const tria_v1_plan *plan = context->plan;
    const uint32_t *h = context->layout.header;
    const bool pooled = vk_is_pooled(plan);
    keep->over_budget = 0;
    keep->n_nan = 0;
    keep->n_zero_heads = 0;
    keep->n_uncalibrated_layers = 0;
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const uint32_t kept = words[h[PLAN_COUNTS] + (uint32_t)set];
        const uint32_t limit = words[h[PLAN_LIMITS] + (uint32_t)set];
        const int32_t over = kept > limit ? (int32_t)(kept - limit) : 0;
        keep->over_budget = over > keep->over_budget ? over : keep->over_budget;
    }
    if (sequence->scored) {
        keep->n_nan = count_bits(words + h[PLAN_BAD_ROWS], (plan->max_rows + 31) / 32);
        for (int32_t s = 0; s < plan->n_kv; s++) {
            const bool seen =
                plan->kv[s].n_calibrated > 0 && plan->kv[s].set >= 0 && sequence->event->rows[s] > 0;
            keep->n_zero_heads += seen && words[h[PLAN_NONZERO] + (uint32_t)s] == 0;
        }
    }
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const tria_v1_layer *layer = &plan->layers[l];
        const bool uncalibrated = pooled ? plan->all_by_position && layer->takes_part : layer->by_position;
        keep->n_uncalibrated_layers += uncalibrated;
        if (keep->uncalibrated_layers != NULL) {
            keep->uncalibrated_layers[l] = uncalibrated;
        }
    }
}

/* The last selection stays on the host for a compaction that is not given keep sets. */
static void deliver_keep(const vk_context *context, vk_sequence *sequence)
{
    const tria_v1_plan *plan = context->plan;
    const uint32_t *words = sequence->readback.mapped;
    const uint32_t *rows = words + context->layout.readback_keep;
    tria_keep *out = sequence->keep_out;
    memcpy(sequence->last_keep.counts, words + context->layout.header[PLAN_COUNTS],
           sizeof(int32_t) * (size_t)plan->n_sets);
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const size_t bytes = sizeof(int32_t) * (size_t)sequence->last_keep.counts[set];
        const uint32_t *source = rows + (size_t)set * (size_t)plan->max_rows;
        memcpy(sequence->last_keep.rows + set * sequence->last_keep.row_stride, source, bytes);
        memcpy(out->rows + set * out->row_stride, source, bytes);
        out->counts[set] = sequence->last_keep.counts[set];
    }
    report(context, sequence, words, out);
}

tria_status vk_deliver(vk_context *context, tria_error *error)
{
    /* first: fetching scores overwrites the readback buffer */
    for (int32_t i = 0; context->deliver_keep && i < context->n_events; i++) {
        deliver_keep(context, &context->sequences[i]);
    }
    context->deliver_keep = false;
    if (context->deliver_compaction) {
        const tria_v1_host *host = &context->device->host;
        context->deliver_compaction = false;
        VK_TRY(host->compact(context->plan, context->events, context->n_events, context->compact_scratch,
                             error));
    }
    for (int32_t i = 0; i < context->n_events; i++) {
        vk_sequence *sequence = &context->sequences[i];
        const tria_scores scores = sequence->scores;
        if (sequence->scored &&
            (scores.raw != NULL || scores.grouped != NULL || scores.final_scores != NULL)) {
            VK_TRY(deliver_scores(context, sequence, error));
        }
        tria_scores *done = &sequence->scores;
        done->raw = done->grouped = done->final_scores = NULL;
    }
    return TRIA_OK;
}

/*
 * vk_stage.c - keys and values in host memory: their rows are packed into a mapped buffer before an event
 * and copied to the device's own memory from there; moved rows come back after a compaction.
 */
#include "vk_plan.h"

#include <string.h>

/* Parts of the staging buffers begin where any device can bind them. */
#define PART_ALIGNMENT 256

typedef struct part {
    VkDeviceSize offset;
    VkDeviceSize row_bytes; /* of one head */
} part;

static VkDeviceSize row_bytes(const tria_tensor *tensor)
{
    vk_chunk_list chunks;
    vk_chunks(tensor, &chunks);
    return (VkDeviceSize)((chunks.n * chunks.bytes + 3) / 4 * 4);
}

/* Lays out the parts of one layer behind *end. */
static void layer_parts(const tria_v1_plan *plan, const tria_v1_layer *layer, VkDeviceSize *end,
                        part parts[VK_N_ROLES])
{
    const VkDeviceSize rows = (VkDeviceSize)plan->max_rows * (VkDeviceSize)layer->n_kv_heads;
    const VkDeviceSize bytes[VK_N_ROLES] = {
        [VK_K] = row_bytes(&layer->k),
        [VK_V] = layer->v.dim > 0 ? row_bytes(&layer->v) : 0,
        [VK_K_SCALES] = layer->k.scale_kind >= TRIA_SCALE_HEAD ? sizeof(float) : 0,
        [VK_V_SCALES] = layer->v.scale_kind == TRIA_SCALE_ROW ? sizeof(float) : 0,
    };
    for (int role = 0; role < VK_N_ROLES; role++) {
        parts[role].offset = *end;
        parts[role].row_bytes = bytes[role];
        *end += (rows * bytes[role] + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
    }
}

VkDeviceSize vk_staging_bytes(const tria_v1_plan *plan)
{
    VkDeviceSize end = 0;
    part parts[VK_N_ROLES];
    for (int32_t l = 0; l < plan->n_layers; l++) {
        if (plan->layers[l].n_kv_heads > 0) {
            layer_parts(plan, &plan->layers[l], &end, parts);
        }
    }
    return end;
}

static void parts_of(const tria_v1_plan *plan, int32_t layer, part parts[VK_N_ROLES])
{
    VkDeviceSize end = 0;
    for (int32_t l = 0; l <= layer; l++) {
        if (plan->layers[l].n_kv_heads > 0) {
            layer_parts(plan, &plan->layers[l], &end, parts);
        }
    }
}

static void pack_tensor(const vk_context *context, const vk_sequence *sequence, const part *rows,
                        const part *scales, tria_tensor *tensor)
{
    const int64_t max_rows = context->plan->max_rows;
    void *buffer = (void *)(uintptr_t)sequence->staged.handle;
    tensor->base = buffer;
    tensor->offset = rows->offset;
    tensor->size = sequence->staged.size;
    tensor->page_stride = 0;
    tensor->token_stride = (int64_t)rows->row_bytes;
    tensor->head_stride = (int64_t)rows->row_bytes * max_rows;
    tensor->dim_stride = 0;
    tensor->pack = 0;
    tensor->scales = buffer;
    tensor->scales_offset = scales->offset;
    tensor->scale_page_stride = 0;
    tensor->scale_token_stride = sizeof(float);
    tensor->scale_head_stride = (int64_t)sizeof(float) * max_rows;
}

void vk_staging_layer(const vk_context *context, const vk_sequence *sequence, int32_t layer,
                      const tria_layer_view *host, tria_layer_view *staged)
{
    part parts[VK_N_ROLES];
    parts_of(context->plan, layer, parts);
    *staged = *host;
    staged->page_table = NULL;
    pack_tensor(context, sequence, &parts[VK_K], &parts[VK_K_SCALES], &staged->k);
    if (host->v.base != NULL) {
        pack_tensor(context, sequence, &parts[VK_V], &parts[VK_V_SCALES], &staged->v);
    }
}

void vk_record_staged(const vk_context *context, const vk_sequence *sequence, bool values, bool out)
{
    const tria_v1_plan *plan = context->plan;
    const VkBuffer from = out ? sequence->staged.handle : sequence->staging.handle;
    const VkBuffer to = out ? sequence->staging.handle : sequence->staged.handle;
    part parts[VK_N_ROLES];
    VkDeviceSize end = 0;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        if (plan->layers[l].n_kv_heads > 0) {
            layer_parts(plan, &plan->layers[l], &end, parts); /* V comes behind K and its scales */
            const VkDeviceSize begin = parts[VK_K].offset;
            const VkBufferCopy region = {begin, begin, (values ? end : parts[VK_V].offset) - begin};
            context->device->vk.CmdCopyBuffer(context->commands, from, to, 1, &region);
        }
    }
}

/* One head of a tensor in host memory. */
typedef struct host_rows {
    unsigned char *base;
    const int32_t *table;
    int32_t tokens;
    int64_t page_stride;
    int64_t token_stride;
    vk_chunk_list chunks;
} host_rows;

/* Copies rows [first, last) between the cache and packed rows. */
static void copy_rows(const host_rows *rows, int32_t first, int32_t last, unsigned char *packed,
                      VkDeviceSize stride, bool out)
{
    for (int32_t row = first; row < last; row++) {
        unsigned char *cached =
            rows->base + (rows->table == NULL ? row * rows->token_stride
                                              : rows->table[row / rows->tokens] * rows->page_stride +
                                                    row % rows->tokens * rows->token_stride);
        unsigned char *other = packed + (VkDeviceSize)row * stride;
        for (int64_t c = 0; c < rows->chunks.n; c++) {
            if (out) {
                memcpy(cached, other, (size_t)rows->chunks.bytes);
            } else {
                memcpy(other, cached, (size_t)rows->chunks.bytes);
            }
            cached += rows->chunks.stride;
            other += rows->chunks.bytes;
        }
    }
}

/* Rows and scales of one head of K or V. */
static void copy_head(const vk_context *context, vk_sequence *sequence, const tria_v1_event *event,
                      int32_t slot, bool values, int32_t first, int32_t last, bool out)
{
    const tria_v1_plan *plan = context->plan;
    const tria_v1_kv *kv = &plan->kv[slot];
    const tria_kv_view *view = event->event->kv;
    const tria_layer_view *layer = &view->layers[kv->layer];
    const tria_tensor *tensor = values ? &layer->v : &layer->k;
    unsigned char *staging = sequence->staging.mapped;
    part parts[VK_N_ROLES];
    parts_of(plan, kv->layer, parts);
    const part *rows_part = &parts[values ? VK_V : VK_K];
    const part *scales_part = &parts[values ? VK_V_SCALES : VK_K_SCALES];
    const VkDeviceSize head_rows = (VkDeviceSize)kv->head * (VkDeviceSize)plan->max_rows;
    host_rows rows = {
        .base = (unsigned char *)tensor->base + tensor->offset + kv->head * tensor->head_stride,
        .table = layer->page_table != NULL ? layer->page_table : view->page_table,
        .tokens = view->tokens_per_page,
        .page_stride = tensor->page_stride,
        .token_stride = tensor->token_stride,
    };
    vk_chunks(tensor, &rows.chunks);
    copy_rows(&rows, first, last, staging + rows_part->offset + head_rows * rows_part->row_bytes,
              rows_part->row_bytes, out);
    if (scales_part->row_bytes > 0 && (!out || tensor->scale_kind == TRIA_SCALE_ROW)) {
        rows.base =
            (unsigned char *)tensor->scales + tensor->scales_offset + kv->head * tensor->scale_head_stride;
        rows.page_stride = tensor->scale_kind == TRIA_SCALE_ROW ? tensor->scale_page_stride : 0;
        rows.token_stride = tensor->scale_kind == TRIA_SCALE_ROW ? tensor->scale_token_stride : 0;
        rows.chunks = (vk_chunk_list){1, sizeof(float), 0};
        copy_rows(&rows, first, last, staging + scales_part->offset + head_rows * sizeof(float),
                  sizeof(float), out);
    }
}

static bool values_move(const tria_v1_event *event, int32_t layer)
{
    const tria_layer_view *view = &event->event->kv->layers[layer];
    return view->v.base != NULL && !vk_v_in_k(&view->k, &view->v);
}

void vk_stage_in(const vk_context *context, vk_sequence *sequence, const tria_v1_event *event, bool values)
{
    for (int32_t s = 0; event->event->kv != NULL && s < context->plan->n_kv; s++) {
        copy_head(context, sequence, event, s, false, 0, event->rows[s], false);
        if (values && values_move(event, context->plan->kv[s].layer)) {
            copy_head(context, sequence, event, s, true, 0, event->rows[s], false);
        }
    }
}

/* Pages of the view's table that another sequence shares are not ours to zero. */
static bool page_is_shared(const tria_v1_event *event, int32_t layer, int32_t row)
{
    const tria_kv_view *view = event->event->kv;
    const tria_compaction *out = event->compaction;
    return out != NULL && out->page_shared != NULL && view->page_table != NULL &&
           view->layers[layer].page_table == NULL && out->page_shared[row / view->tokens_per_page] != 0;
}

void vk_stage_out(const vk_context *context, vk_sequence *sequence, const tria_v1_event *event)
{
    for (int32_t s = 0; event->event->kv != NULL && s < context->plan->n_kv; s++) {
        const int32_t set = context->plan->kv[s].set;
        const int32_t layer = context->plan->kv[s].layer;
        if (set < 0) {
            continue;
        }
        const int n_tensors = values_move(event, layer) ? 2 : 1;
        for (int values = 0; values < n_tensors; values++) {
            const int32_t count = event->keep->counts[set];
            copy_head(context, sequence, event, s, values, 0, count, true);
            for (int32_t row = count; context->plan->params->zero_tail && row < event->rows[s]; row++) {
                if (!page_is_shared(event, layer, row)) {
                    copy_head(context, sequence, event, s, values, row, row + 1, true);
                }
            }
        }
    }
}

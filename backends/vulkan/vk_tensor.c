/* vk_tensor.c - how tensors look to the shaders: a bound range of a buffer and 32-bit strides. */
#include "vk_plan.h"

#include <stdio.h>
#include <string.h>

/* The library's dtypes; a plugin does not link the core. */
static const struct {
    uint8_t block;
    uint8_t bytes;     /* of a block */
    uint8_t alignment; /* the shaders need */
} dtypes[TRIA_DTYPE_COUNT] = {
    [TRIA_DTYPE_F32] = {1, 4, 4},          [TRIA_DTYPE_F16] = {1, 2, 2},
    [TRIA_DTYPE_BF16] = {1, 2, 2},         [TRIA_DTYPE_FP8_E4M3FN] = {1, 1, 1},
    [TRIA_DTYPE_FP8_E4M3FNUZ] = {1, 1, 1}, [TRIA_DTYPE_FP8_E5M2] = {1, 1, 1},
    [TRIA_DTYPE_INT8] = {1, 1, 1},         [TRIA_DTYPE_Q8_0] = {32, 34, 2},
    [TRIA_DTYPE_Q4_0] = {32, 18, 2},       [TRIA_DTYPE_Q4_1] = {32, 20, 2},
    [TRIA_DTYPE_Q5_0] = {32, 22, 2},       [TRIA_DTYPE_Q5_1] = {32, 24, 2},
    [TRIA_DTYPE_IQ4_NL] = {32, 18, 2},
};

static const char *const role_names[VK_N_ROLES] = {"K", "K scales", "V", "V scales"};

void vk_chunks(const tria_tensor *tensor, vk_chunk_list *chunks)
{
    const int64_t bytes = dtypes[tensor->dtype].bytes;
    const int64_t pack = tensor->pack > 1 ? tensor->pack : 1;
    const int64_t stride = tensor->dim_stride != 0 ? tensor->dim_stride : pack * bytes;
    if (dtypes[tensor->dtype].block > 1 || stride == pack * bytes) {
        chunks->n = 1;
        chunks->bytes = tensor->dim / dtypes[tensor->dtype].block * bytes;
        chunks->stride = 0;
    } else {
        chunks->n = tensor->dim / pack;
        chunks->bytes = pack * bytes;
        chunks->stride = stride;
    }
}

bool vk_v_in_k(const tria_tensor *k, const tria_tensor *v)
{
    vk_chunk_list kc;
    vk_chunk_list vc;
    vk_chunks(k, &kc);
    vk_chunks(v, &vc);
    return k->base == v->base && kc.n == 1 && vc.n == 1 && k->page_stride == v->page_stride &&
           k->token_stride == v->token_stride && k->head_stride == v->head_stride &&
           v->offset >= k->offset && v->offset + (uint64_t)vc.bytes <= k->offset + (uint64_t)kc.bytes;
}

uint32_t vk_used_dim(const tria_v1_plan *plan, const tria_v1_layer *layer)
{
    return (uint32_t)(plan->k_state == TRIA_K_HADAMARD ? layer->k.dim : layer->head_dim);
}

uint32_t vk_tile_rows(const vk_device *device, const tria_v1_plan *plan, const tria_v1_layer *layer)
{
    const uint32_t stride = (vk_used_dim(plan, layer) + (uint32_t)layer->n_freq) | 1U;
    const uint32_t rows = device->shared_words / stride;
    return rows < 64 ? rows : 64;
}

/* Page, token, head and chunk strides of a role, from element (0, 0, 0, 0) on. */
typedef struct shape {
    const void *base;
    uint64_t offset;
    uint64_t size;
    int64_t page_stride;
    int64_t token_stride;
    int64_t head_stride;
    vk_chunk_list chunks;
    uint32_t alignment;
} shape;

static shape shape_of(const tria_layer_view *view, vk_tensor_role role)
{
    const tria_tensor *tensor = role == VK_K || role == VK_K_SCALES ? &view->k : &view->v;
    shape s;
    memset(&s, 0, sizeof(s));
    if (role == VK_K || role == VK_V) {
        s.base = tensor->base;
        s.offset = tensor->offset;
        s.size = tensor->size;
        s.page_stride = tensor->page_stride;
        s.token_stride = tensor->token_stride;
        s.head_stride = tensor->head_stride;
        vk_chunks(tensor, &s.chunks);
        s.alignment = dtypes[tensor->dtype].alignment;
    } else {
        s.base = tensor->scales;
        s.offset = tensor->scales_offset;
        s.page_stride = tensor->scale_kind == TRIA_SCALE_ROW ? tensor->scale_page_stride : 0;
        s.token_stride = tensor->scale_kind == TRIA_SCALE_ROW ? tensor->scale_token_stride : 0;
        s.head_stride = tensor->scale_head_stride;
        s.chunks = (vk_chunk_list){1, sizeof(float), 0};
        s.alignment = sizeof(float);
    }
    return s;
}

/* Adds index * stride for first <= index <= last to the lowest and highest offset; false: overflow. */
static bool widen(int64_t stride, int64_t first, int64_t last, int64_t *low, int64_t *high)
{
    int64_t a;
    int64_t b;
    return !__builtin_mul_overflow(stride, first, &a) && !__builtin_mul_overflow(stride, last, &b) &&
           !__builtin_add_overflow(*low, a < b ? a : b, low) &&
           !__builtin_add_overflow(*high, a < b ? b : a, high);
}

/* What a range must cover: rows [0, n_rows) of all heads. */
typedef struct extent {
    int32_t n_heads;
    int32_t n_rows;
    const int32_t *table; /* NULL: one page */
    int32_t tokens_per_page;
} extent;

static tria_status describe(const vk_device *device, const shape *s, const extent *e, const char *what,
                            vk_tensor *out, tria_error *error)
{
    int64_t low = (int64_t)s->offset;
    int64_t high = (int64_t)s->offset;
    int32_t first_page = 0;
    int32_t last_page = 0;
    int32_t tokens = e->n_rows;
    if (e->table != NULL) {
        first_page = last_page = e->table[0];
        for (int32_t i = 1; i <= (e->n_rows - 1) / e->tokens_per_page; i++) {
            first_page = e->table[i] < first_page ? e->table[i] : first_page;
            last_page = e->table[i] > last_page ? e->table[i] : last_page;
        }
        tokens = tokens < e->tokens_per_page ? tokens : e->tokens_per_page;
    }
    const bool fits = s->offset <= INT64_MAX && widen(s->page_stride, first_page, last_page, &low, &high) &&
                      widen(s->token_stride, 0, tokens - 1, &low, &high) &&
                      widen(s->head_stride, 0, e->n_heads - 1, &low, &high) &&
                      widen(s->chunks.stride, 0, s->chunks.n - 1, &low, &high) &&
                      high <= INT64_MAX - s->chunks.bytes - 4 && low >= 0;
    if (!fits) {
        return vk_fail(error, TRIA_E_ARGUMENT, "vulkan: %s: offset and strides leave the buffer", what);
    }
    high = (high + s->chunks.bytes + 3) / 4 * 4; /* the shaders read whole words */
    if (s->size != 0 && (uint64_t)high > s->size) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %s ends inside a 32-bit word of a buffer of %llu bytes; make its size a "
                       "multiple of 4",
                       what, (unsigned long long)s->size);
    }
    const uint64_t alignment = device->limits.minStorageBufferOffsetAlignment;
    const uint64_t begin = (uint64_t)low / alignment * alignment;
    if ((uint64_t)high - begin > device->limits.maxStorageBufferRange) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: %s spans %llu bytes, %s binds at most %u (maxStorageBufferRange)", what,
                       (unsigned long long)((uint64_t)high - begin), device->name,
                       device->limits.maxStorageBufferRange);
    }
    memset(out, 0, sizeof(*out));
    out->range.buffer = (VkBuffer)(uintptr_t)s->base;
    out->range.offset = begin;
    out->range.range = (uint64_t)high - begin;
    out->base = (uint32_t)(s->offset - begin);
    out->page_stride = (uint32_t)s->page_stride;
    out->token_stride = (uint32_t)s->token_stride;
    out->head_stride = (uint32_t)s->head_stride;
    out->n_chunks = (uint32_t)s->chunks.n;
    out->chunk_bytes = (uint32_t)s->chunks.bytes;
    out->chunk_stride = (uint32_t)s->chunks.stride;
    if (vk_tensor_unit(out) < s->alignment) {
        return vk_fail(error, TRIA_E_UNSUPPORTED, "vulkan: %s is not aligned to %u bytes", what,
                       s->alignment);
    }
    return TRIA_OK;
}

uint32_t vk_tensor_unit(const vk_tensor *tensor)
{
    const uint32_t all = tensor->base | tensor->page_stride | tensor->token_stride | tensor->head_stride |
                         tensor->chunk_bytes | tensor->chunk_stride;
    return (all & 3) == 0 ? 4 : (all & 1) == 0 ? 2 : 1;
}

/* Points a descriptor set of the sequence at a tensor. Handles are reused, so a set that looks right may
 * refer to a buffer that is gone; only while commands that use the set are pending must it stay. */
static tria_status update_set(vk_context *context, vk_sequence *sequence, int32_t layer,
                              vk_tensor_role role, const vk_tensor *tensor, tria_error *error)
{
    const size_t at = (size_t)layer * VK_N_ROLES + role;
    vk_tensor *bound = &sequence->tensors[at];
    const bool same = memcmp(&bound->range, &tensor->range, sizeof(tensor->range)) == 0;
    if (context->state != VK_IDLE && same) {
        return TRIA_OK;
    }
    if (context->state != VK_IDLE && (role == VK_K || role == VK_K_SCALES)) {
        return vk_fail(error, TRIA_E_STATE,
                       "vulkan: another cache than the one that was scored in this batch");
    }
    *bound = *tensor;
    VkWriteDescriptorSet writes[2] = {{.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstSet = sequence->sets[at],
                                       .descriptorCount = 1,
                                       .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       .pBufferInfo = &bound->range}};
    writes[1] = writes[0];
    if (role == VK_K_SCALES) { /* also the second binding of K's set */
        writes[1].dstSet = sequence->sets[at - VK_K_SCALES + VK_K];
        writes[1].dstBinding = 1;
    }
    context->device->vk.UpdateDescriptorSets(context->device->handle, role == VK_K_SCALES ? 2 : 1, writes,
                                             0, NULL);
    return TRIA_OK;
}

static tria_status bind_layer(vk_context *context, vk_sequence *sequence, const tria_v1_event *event,
                              int32_t layer, bool to_move, tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    const tria_v1_layer *l = &plan->layers[layer];
    const tria_kv_view *view = event->event->kv;
    const tria_layer_view *host = &view->layers[layer];
    tria_layer_view staged;
    const tria_layer_view *tensors = host;
    extent e = {l->n_kv_heads, 0, host->page_table != NULL ? host->page_table : view->page_table,
                view->tokens_per_page};
    for (int32_t h = 0; h < l->n_kv_heads; h++) {
        const int32_t n = event->rows[l->first_kv_slot + h];
        e.n_rows = n > e.n_rows ? n : e.n_rows;
    }
    if (e.n_rows == 0) {
        sequence->tensors[(size_t)layer * VK_N_ROLES + VK_K].range.buffer = VK_NULL_HANDLE;
        return TRIA_OK;
    }
    if (context->staged) {
        vk_staging_layer(context, sequence, layer, host, &staged);
        tensors = &staged;
        e.table = NULL;
    }
    const bool v_moves = to_move && tensors->v.base != NULL && !vk_v_in_k(&host->k, &host->v);
    const bool wanted[VK_N_ROLES] = {
        [VK_K] = true,
        [VK_K_SCALES] = true, /* unused without scales, but bound */
        [VK_V] = v_moves,
        [VK_V_SCALES] = v_moves && tensors->v.scale_kind == TRIA_SCALE_ROW,
    };
    for (int role = 0; role < VK_N_ROLES; role++) {
        vk_tensor tensor;
        char what[48];
        if (!wanted[role]) {
            continue;
        }
        const bool absent = role == VK_K_SCALES && tensors->k.scale_kind < TRIA_SCALE_HEAD;
        const shape s = shape_of(tensors, absent ? VK_K : (vk_tensor_role)role);
        snprintf(what, sizeof(what), "layer %d %s", l->model_layer, role_names[role]);
        VK_TRY(describe(context->device, &s, &e, what, &tensor, error));
        VK_TRY(update_set(context, sequence, layer, (vk_tensor_role)role, &tensor, error));
    }
    return TRIA_OK;
}

tria_status vk_bind(vk_context *context, vk_sequence *sequence, const tria_v1_event *event, bool to_move,
                    tria_error *error)
{
    for (int32_t l = 0; event->event->kv != NULL && l < context->plan->n_layers; l++) {
        if (context->plan->layers[l].n_kv_heads > 0) {
            VK_TRY(bind_layer(context, sequence, event, l, to_move, error));
        }
    }
    return TRIA_OK;
}

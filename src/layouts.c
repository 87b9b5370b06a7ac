/* layouts.c - strides of the caches of known engines. */
#include "tria/layouts.h"

#include "kv_view_internal.h"
#include "tria/model.h"

#include <string.h>

/* What an engine's cache looks like. */
typedef struct layout_info {
    const char *name;
    bool one_buffer; /* K and V */
    bool paged;
} layout_info;

static const layout_info layouts[TRIA_LAYOUT_COUNT] = {
    [TRIA_LAYOUT_LLAMA_CPP] = {"llama.cpp", false, false},
    [TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED] = {"llama.cpp-v-transposed", false, false},
    [TRIA_LAYOUT_VLLM] = {"vllm", true, true},
    [TRIA_LAYOUT_VLLM_HND] = {"vllm-hnd", true, true},
    [TRIA_LAYOUT_VLLM_PACKED] = {"vllm-packed", false, true},
    [TRIA_LAYOUT_TENSORRT_LLM] = {"tensorrt-llm", true, true},
    [TRIA_LAYOUT_SGLANG] = {"sglang", false, true},
    [TRIA_LAYOUT_HUGGING_FACE] = {"hugging-face", false, false},
    [TRIA_LAYOUT_EXLLAMA] = {"exllama", false, false},
};

const char *tria_layout_name(int32_t layout)
{
    return layout >= 0 && layout < TRIA_LAYOUT_COUNT ? layouts[layout].name : NULL;
}

void tria_layout_params_init(tria_layout_params *params)
{
    const tria_layout_params defaults = TRIA_LAYOUT_PARAMS_INIT;
    *params = defaults;
}

/* [outer][token][head][dim] */
static void token_major(tria_tensor *tensor, int64_t row, const tria_layout_params *p)
{
    tensor->head_stride = row;
    tensor->token_stride = row * p->n_heads;
    tensor->page_stride = tensor->token_stride * p->page_tokens;
}

/* [outer][head][token][dim] */
static void head_major(tria_tensor *tensor, int64_t row, const tria_layout_params *p)
{
    tensor->token_stride = row;
    tensor->head_stride = row * p->page_tokens;
    tensor->page_stride = tensor->head_stride * p->n_heads;
}

/* [outer][head][dim / pack][token][pack] */
static void dim_major(tria_tensor *tensor, int64_t row, int32_t pack, const tria_layout_params *p)
{
    const int64_t chunk = (int64_t)pack * tria_dtype_block_bytes(tensor->dtype);
    tensor->pack = pack > 1 ? pack : 0;
    tensor->token_stride = chunk;
    tensor->dim_stride = chunk * p->page_tokens;
    tensor->head_stride = row * p->page_tokens;
    tensor->page_stride = tensor->head_stride * p->n_heads;
}

static int32_t pack_of_16_bytes(int32_t dtype)
{
    const int32_t size = tria_dtype_block_bytes(dtype);
    return size < 16 ? 16 / size : 1; /* blocks, which are larger, are refused afterwards */
}

static void set_strides(int32_t layout, const tria_layout_params *p, tria_tensor *tensor, bool is_v)
{
    const int64_t row = tria_dtype_row_bytes(tensor->dtype, tensor->dim);
    switch (layout) {
    case TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED:
        if (is_v) {
            dim_major(tensor, row, 1, p);
        } else {
            token_major(tensor, row, p);
        }
        break;
    case TRIA_LAYOUT_VLLM_PACKED:
        dim_major(tensor, row, is_v ? 1 : pack_of_16_bytes(tensor->dtype), p);
        break;
    case TRIA_LAYOUT_VLLM_HND:
    case TRIA_LAYOUT_TENSORRT_LLM:
    case TRIA_LAYOUT_HUGGING_FACE:
        head_major(tensor, row, p);
        break;
    default: /* llama.cpp, vllm, sglang, exllama */
        token_major(tensor, row, p);
        break;
    }
}

/* Which sequence of the buffer; or the half of it that is V. False: the offset does not fit. */
static bool set_offset(int32_t layout, const tria_layout_params *p, tria_tensor *tensor, bool is_v)
{
    int64_t offset = 0;
    if (!layouts[layout].paged) {
        if (__builtin_mul_overflow(tensor->page_stride, p->sequence, &offset)) {
            return false;
        }
        tensor->page_stride = 0;
    } else if (layout == TRIA_LAYOUT_VLLM) {
        if (is_v && __builtin_mul_overflow(tensor->page_stride, p->n_pages, &offset)) {
            return false;
        }
    } else if (layouts[layout].one_buffer) { /* [page][2]... */
        offset = is_v ? tensor->page_stride : 0;
        tensor->page_stride *= 2;
    }
    tensor->offset = (uint64_t)offset;
    return true;
}

static tria_status fill(int32_t layout, const tria_layout_params *p, bool is_v, tria_tensor *tensor,
                        tria_error *error)
{
    const bool shared = layouts[layout].one_buffer;
    const char *what = is_v ? "V" : "K";
    tria_tensor check;
    tensor->base = is_v && !shared ? p->v : p->k;
    tensor->size = is_v && !shared ? p->v_size : p->k_size;
    tensor->dtype = is_v ? p->v_dtype : p->k_dtype;
    tensor->dim = is_v ? p->v_dim : p->k_dim;
    check = *tensor;
    if (tensor->dtype == TRIA_DTYPE_INT8) { /* the caller sets the scale afterwards */
        check.scale_kind = TRIA_SCALE_TENSOR;
    }
    TRIA_TRY(tria_tensor_check(&check, p->n_heads, is_v, what, error));
    set_strides(layout, p, tensor, is_v);
    check.pack = tensor->pack;
    check.dim_stride = tensor->dim_stride;
    TRIA_TRY(tria_tensor_check(&check, p->n_heads, is_v, what, error));
    if (!set_offset(layout, p, tensor, is_v)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: sizes overflow", what);
    }
    return TRIA_OK;
}

tria_status tria_layout_view(int32_t layout, const tria_layout_params *params, tria_layer_view *view,
                             tria_error *error)
{
    tria_layout_params p = TRIA_LAYOUT_PARAMS_INIT;
    tria_layer_view result;
    if (layout < 0 || layout >= TRIA_LAYOUT_COUNT) {
        return tria_fail(error, TRIA_E_ARGUMENT, "unknown layout %d", layout);
    }
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_layout_params", error));
    const layout_info *info = &layouts[layout];
    if (p.k == NULL || (info->one_buffer && p.v != NULL)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layout %s: %s", info->name,
                         p.k == NULL ? "k is NULL" : "k holds K and V, v must be NULL");
    }
    if (info->one_buffer && (p.k_dim != p.v_dim || p.k_dtype != p.v_dtype)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layout %s: K and V differ in dtype or dim", info->name);
    }
    if (p.page_tokens < 1 || p.sequence < 0 || p.n_pages < 0 ||
        (layout == TRIA_LAYOUT_VLLM && p.n_pages < 1)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "layout %s: page_tokens %d, n_pages %d, sequence %d",
                         info->name, p.page_tokens, p.n_pages, p.sequence);
    }
    memset(&result, 0, sizeof(result));
    TRIA_TRY(fill(layout, &p, false, &result.k, error));
    if (info->one_buffer || p.v != NULL) {
        TRIA_TRY(fill(layout, &p, true, &result.v, error));
    }
    *view = result;
    return TRIA_OK;
}

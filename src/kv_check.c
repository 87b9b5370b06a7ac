/*
 * kv_check.c - what makes a view safe to read: geometry, extent, page tables.
 */
#include "kv_view_internal.h"
#include "tria/model.h"

#include <math.h>

tria_status tria_tensor_check(const tria_tensor *tensor, int32_t n_heads, bool is_v, const char *what,
                              tria_error *error)
{
    int32_t dtype = tensor->dtype;
    const char *name;
    if (dtype < 0 || dtype >= TRIA_DTYPE_COUNT) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: unknown dtype %d", what, dtype);
    }
    name = tria_dtype_name(dtype);
    if (n_heads < 1 || n_heads > TRIA_MAX_HEADS) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d heads, expected 1 to %d", what, n_heads,
                         TRIA_MAX_HEADS);
    }
    if (tensor->dim < 1 || tensor->dim > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: dim %d, expected 1 to %d", what, tensor->dim,
                         TRIA_MAX_HEAD_DIM);
    }
    if (tensor->scale_kind < TRIA_SCALE_NONE || tensor->scale_kind > TRIA_SCALE_ROW) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: unknown scale_kind %d", what, tensor->scale_kind);
    }
    if (tensor->scale_kind == TRIA_SCALE_TENSOR && !isfinite(tensor->scale)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: scale is not finite", what);
    }
    if (tensor->scale_kind == TRIA_SCALE_NONE && dtype == TRIA_DTYPE_INT8) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: int8 needs a scale (scale_kind)", what);
    }
    if (tria_dtype_block(dtype) > 1) {
        if (tensor->dim % tria_dtype_block(dtype) != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: dim %d is not a multiple of the %d of a %s block",
                             what, tensor->dim, tria_dtype_block(dtype), name);
        }
        if (tensor->dim_stride != 0 || tensor->pack > 1) {
            return tria_fail(error, TRIA_E_UNSUPPORTED,
                             "%s: %s blocks cannot be %s (dim_stride %lld, pack %d; both must be 0)", what,
                             name, is_v ? "transposed or split" : "split", (long long)tensor->dim_stride,
                             tensor->pack);
        }
        if (tensor->scale_kind != TRIA_SCALE_NONE) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "%s: %s blocks carry their own scales", what, name);
        }
    }
    if (tensor->pack < 0 || (tensor->pack > 1 && tensor->dim % tensor->pack != 0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: pack %d does not divide dim %d", what, tensor->pack,
                         tensor->dim);
    }
    return TRIA_OK;
}

/* Widens [*low, *high) by the byte offsets index * stride, first <= index <= last. Offsets are kept below
 * 2^60 in size so that no later sum of a few of them can overflow. */
static bool widen(int64_t stride, int64_t first, int64_t last, int64_t *low, int64_t *high)
{
    const int64_t limit = INT64_C(1) << 60;
    int64_t a;
    int64_t b;
    if (__builtin_mul_overflow(stride, first, &a) || __builtin_mul_overflow(stride, last, &b)) {
        return false;
    }
    return !__builtin_add_overflow(*low, a < b ? a : b, low) &&
           !__builtin_add_overflow(*high, a < b ? b : a, high) && *low >= -limit && *high <= limit;
}

/* The scales of a tensor as a tensor of one element per row; of unknown size. */
static tria_tensor scales_of(const tria_tensor *tensor)
{
    const bool by_row = tensor->scale_kind == TRIA_SCALE_ROW;
    return (tria_tensor){.base = tensor->scales,
                         .offset = tensor->scales_offset,
                         .page_stride = by_row ? tensor->scale_page_stride : 0,
                         .token_stride = by_row ? tensor->scale_token_stride : 0,
                         .head_stride = tensor->scale_head_stride,
                         .dtype = TRIA_DTYPE_F32,
                         .dim = 1};
}

/* Tokens [0, n_tokens) of pages first .. last: fails when an offset overflows or leaves the buffer. */
static tria_status check_offsets(const tria_tensor *tensor, int32_t n_heads, int32_t first_page,
                                 int32_t last_page, int32_t n_tokens, const char *what, tria_error *error)
{
    tria_chunks chunks;
    tria_tensor_chunks(tensor, &chunks);
    int64_t low = 0;
    int64_t high = chunks.bytes;
    bool ok = tensor->offset <= INT64_MAX &&
              widen(1, (int64_t)tensor->offset, (int64_t)tensor->offset, &low, &high) &&
              widen(tensor->page_stride, first_page, last_page, &low, &high) &&
              widen(tensor->token_stride, 0, n_tokens - 1, &low, &high) &&
              widen(tensor->head_stride, 0, n_heads - 1, &low, &high) &&
              widen(chunks.stride, 0, chunks.n - 1, &low, &high);
    if (!ok) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: offset and strides overflow", what);
    }
    if (tensor->size != 0 && (low < 0 || (uint64_t)high > tensor->size)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: rows occupy bytes %lld to %lld of a buffer of %llu",
                         what, (long long)low, (long long)high, (unsigned long long)tensor->size);
    }
    return TRIA_OK;
}

static tria_status check_extent(const tria_tensor *tensor, int32_t n_heads, int32_t first_page,
                                int32_t last_page, int32_t n_tokens, const char *what, tria_error *error)
{
    TRIA_TRY(check_offsets(tensor, n_heads, first_page, last_page, n_tokens, what, error));
    if (tensor->scale_kind >= TRIA_SCALE_HEAD) {
        const tria_tensor scales = scales_of(tensor);
        return check_offsets(&scales, n_heads, first_page, last_page, n_tokens, what, error);
    }
    return TRIA_OK;
}

tria_status tria_tensor_check_rows(const tria_tensor *tensor, const tria_kv_view *view,
                                   const tria_layer_view *layer_view, int32_t n_heads, int32_t n_rows,
                                   const char *what, tria_error *error)
{
    int32_t n_pages;
    const int32_t *table = tria_page_table(view, layer_view, &n_pages);
    const int32_t tokens = view->tokens_per_page;
    if (tensor->base == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: base is NULL", what);
    }
    if (tensor->scale_kind >= TRIA_SCALE_HEAD && tensor->scales == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: scales is NULL", what);
    }
    if (n_rows < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d rows", what, n_rows);
    }
    if (n_rows == 0) {
        return TRIA_OK;
    }
    if (table == NULL) {
        return check_extent(tensor, n_heads, 0, 0, n_rows, what, error);
    }
    if (tokens < 1) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: a page table needs tokens_per_page > 0, not %d", what,
                         tokens);
    }
    if (n_pages < 1 || (n_rows - 1) / tokens >= n_pages) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d rows need %d pages of %d tokens, the table has %d",
                         what, n_rows, (n_rows - 1) / tokens + 1, tokens, n_pages);
    }
    const int32_t n_full = n_rows / tokens;
    int32_t first = INT32_MAX;
    int32_t last = 0;
    for (int32_t i = 0; i <= (n_rows - 1) / tokens; i++) {
        if (table[i] < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: page_table[%d] is %d", what, i, table[i]);
        }
        if (i < n_full) {
            first = table[i] < first ? table[i] : first;
            last = table[i] > last ? table[i] : last;
        }
    }
    if (n_full > 0) {
        TRIA_TRY(check_extent(tensor, n_heads, first, last, tokens, what, error));
    }
    if (n_rows % tokens != 0) {
        TRIA_TRY(check_extent(tensor, n_heads, table[n_full], table[n_full], n_rows % tokens, what, error));
    }
    return TRIA_OK;
}

bool tria_tensor_same_layout(const tria_tensor *a, const tria_tensor *b)
{
    tria_chunks ca;
    tria_chunks cb;
    if (a->dtype != b->dtype || a->dim != b->dim || a->scale_kind != b->scale_kind) {
        return false;
    }
    tria_tensor_chunks(a, &ca);
    tria_tensor_chunks(b, &cb);
    return a->page_stride == b->page_stride && a->token_stride == b->token_stride &&
           a->head_stride == b->head_stride && ca.n == cb.n && ca.bytes == cb.bytes &&
           ca.stride == cb.stride && (a->scale_kind != TRIA_SCALE_TENSOR || a->scale == b->scale) &&
           (a->scale_kind < TRIA_SCALE_HEAD || a->scale_head_stride == b->scale_head_stride) &&
           (a->scale_kind < TRIA_SCALE_ROW || (a->scale_page_stride == b->scale_page_stride &&
                                               a->scale_token_stride == b->scale_token_stride));
}

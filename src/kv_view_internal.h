/*
 * kv_view_internal.h - addressing and decoding of rows; the only place that knows how caches lie in
 * memory and what their element types mean.
 */
#ifndef TRIA_KV_VIEW_INTERNAL_H
#define TRIA_KV_VIEW_INTERNAL_H

#include "internal.h"
#include "tria/kv_view.h"

/* One (layer, KV head) of K or V, ready to be addressed by row. */
typedef struct tria_rows {
    const tria_tensor *tensor;
    unsigned char *head_base;  /* element (page 0, token 0, head, dim 0) */
    unsigned char *scale_base; /* scale of (page 0, token 0, head), NULL without per-row/per-head scales */
    const int32_t *page_table; /* NULL: one page */
    int32_t tokens_per_page;
    int32_t n_pages;
} tria_rows;

/* `tensor` must stay alive. layer_view gives the page table (its own or the view's). */
void tria_rows_init(tria_rows *rows, const tria_kv_view *view, const tria_layer_view *layer_view,
                    const tria_tensor *tensor, int32_t head);
static inline unsigned char *tria_rows_at(const tria_rows *rows, int32_t row)
{
    if (rows->page_table == NULL) {
        return rows->head_base + (int64_t)row * rows->tensor->token_stride;
    }
    return rows->head_base + rows->page_table[row / rows->tokens_per_page] * rows->tensor->page_stride +
           (int64_t)(row % rows->tokens_per_page) * rows->tensor->token_stride;
}
/* What multiplies row `row`: 1, the tensor's, the head's or the row's own scale. */
float tria_rows_scale(const tria_rows *rows, int32_t row);

/* Decode the first `dim` elements of a row (`dim` <= tensor->dim), scale applied. In double the product
 * of element and scale is exact; in float it is rounded once. A block type whose block is cut by `dim`
 * is decoded block by block internally. */
void tria_rows_decode_f32(const tria_rows *rows, int32_t row, int32_t dim, float *out);
void tria_rows_decode_f64(const tria_rows *rows, int32_t row, int32_t dim, double *out);

/* Scalar conversions, exact. */
float tria_f16_to_f32(uint16_t bits);
float tria_bf16_to_f32(uint16_t bits);
float tria_fp8_e4m3fn_to_f32(uint8_t bits);
float tria_fp8_e4m3fnuz_to_f32(uint8_t bits);
float tria_fp8_e5m2_to_f32(uint8_t bits);

/* Undo the view's Hadamard transform of a decoded row in place: x <- signs * H x, block by block (H is its
 * own inverse). size is the block, dim a multiple of it; signs may be NULL. */
void tria_hadamard_undo_f32(float *row, int32_t dim, int32_t size, const float *signs);
void tria_hadamard_undo_f64(double *row, int32_t dim, int32_t size, const float *signs);

/* The elements of a row as `n` runs of `bytes` consecutive bytes, `stride` bytes apart; as few as can be.
 */
typedef struct tria_chunks {
    int32_t n;
    int32_t bytes;
    int64_t stride;
} tria_chunks;
void tria_tensor_chunks(const tria_tensor *tensor, tria_chunks *chunks);

/* The table that translates a layer's rows (its own or the view's), NULL when the cache is one page. */
const int32_t *tria_page_table(const tria_kv_view *view, const tria_layer_view *layer_view,
                               int32_t *n_pages);

/* Geometry checks that need no memory: dtype known, dim a multiple of the block, strides of block types,
 * transposed V of a block type, scales given where the dtype needs them, page table sizes, pack. `what`
 * ("layer 3 K") begins the message. */
tria_status tria_tensor_check(const tria_tensor *tensor, int32_t n_heads, bool is_v, const char *what,
                              tria_error *error);
/* Whether rows [0, n_rows) of all heads lie inside base .. base + size and the page table is long enough.
 */
tria_status tria_tensor_check_rows(const tria_tensor *tensor, const tria_kv_view *view,
                                   const tria_layer_view *layer_view, int32_t n_heads, int32_t n_rows,
                                   const char *what, tria_error *error);
/* Same geometry (all but base, offset, size, page table)? */
bool tria_tensor_same_layout(const tria_tensor *a, const tria_tensor *b);

#endif

/*
 * tria/kv_view.h - one descriptor for every engine's KV cache (specification, section 9).
 *
 * Row i (0 <= i < N) is the i-th key now in the cache of one sequence. Without a page table row i is
 * token i of page 0; with one it is token i % tokens_per_page of page page_table[i / tokens_per_page].
 * The element (page, token, head, dim) of a tensor lies at
 *
 *     base + offset + page*page_stride + token*token_stride + head*head_stride + D(dim)
 *     D(dim) = dim*dim_stride                                               when pack <= 1
 *     D(dim) = (dim / pack)*dim_stride + (dim % pack)*element size          when pack  > 1
 *
 * Strides are in bytes and may have any value, zero and negative included, as long as all elements lie
 * in [base + offset, + size) when `size` is given. Block types (q8_0 ...) need dim_stride 0; a row of a
 * head is then row_size(dtype, dim) consecutive bytes.
 */
#ifndef TRIA_KV_VIEW_H
#define TRIA_KV_VIEW_H

#include "tria/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tria_dtype {
    TRIA_DTYPE_F32 = 0,
    TRIA_DTYPE_F16 = 1,
    TRIA_DTYPE_BF16 = 2,
    TRIA_DTYPE_FP8_E4M3FN = 3,
    TRIA_DTYPE_FP8_E4M3FNUZ = 4,
    TRIA_DTYPE_FP8_E5M2 = 5,
    TRIA_DTYPE_INT8 = 6, /* needs a scale */
    /* ggml blocks of 32 elements */
    TRIA_DTYPE_Q8_0 = 7,
    TRIA_DTYPE_Q4_0 = 8,
    TRIA_DTYPE_Q4_1 = 9,
    TRIA_DTYPE_Q5_0 = 10,
    TRIA_DTYPE_Q5_1 = 11,
    TRIA_DTYPE_IQ4_NL = 12,
    TRIA_DTYPE_COUNT = 13,
    TRIA_DTYPE_F64 = 64 /* scores only, never keys or values */
} tria_dtype;

/* "f16", "q8_0", ...; NULL for an unknown value. */
TRIA_API const char *tria_dtype_name(int32_t dtype);
/* The dtype of that name, or -1. */
TRIA_API int32_t tria_dtype_from_name(const char *name);
/* Elements per block (1 or 32) and bytes per block. 0 for an unknown dtype. */
TRIA_API int32_t tria_dtype_block(int32_t dtype);
TRIA_API int32_t tria_dtype_block_bytes(int32_t dtype);
/* Bytes of `dim` consecutive elements; 0 when dim is not a multiple of the block. */
TRIA_API int64_t tria_dtype_row_bytes(int32_t dtype, int32_t dim);

/* In which state the stored keys are (specification, section 1). Never guessed. */
typedef enum tria_k_state {
    TRIA_K_ROTATED = 0, /* after RoPE, the usual case */
    TRIA_K_RAW = 1,     /* before RoPE: scoring needs the positions */
    TRIA_K_HADAMARD = 2 /* after RoPE, then multiplied by an orthonormal Sylvester-Hadamard matrix */
} tria_k_state;

/* What multiplies the stored elements of a tensor. */
typedef enum tria_scale_kind {
    TRIA_SCALE_NONE = 0,   /* 1 */
    TRIA_SCALE_TENSOR = 1, /* `scale` */
    TRIA_SCALE_HEAD = 2,   /* f32 at scales + head*scale_head_stride */
    TRIA_SCALE_ROW = 3     /* f32 at scales + page*.. + token*.. + head*..; moves with its row */
} tria_scale_kind;

/* K or V of one layer. */
typedef struct tria_tensor {
    void *base;      /* host or device pointer; on Vulkan a VkBuffer handle */
    uint64_t offset; /* bytes from base to element (0, 0, 0, 0) */
    uint64_t size;   /* bytes that may be touched from base, 0 = not checked */
    int64_t page_stride;
    int64_t token_stride;
    int64_t head_stride;
    int64_t dim_stride; /* 0 = packed: the element size (pack*element size when pack > 1) */
    int32_t pack;       /* inner pack, e.g. 8 for [dim/8][token][8]; 0 or 1 = none */
    int32_t dtype;      /* tria_dtype */
    int32_t dim;        /* elements stored per head; >= the model's head_dim, padding comes last */
    int32_t scale_kind; /* tria_scale_kind */
    float scale;
    int32_t reserved;
    void *scales; /* f32; same memory kind as base */
    uint64_t scales_offset;
    int64_t scale_page_stride;
    int64_t scale_token_stride;
    int64_t scale_head_stride;
} tria_tensor;

/* One layer's tensors. v.base may be NULL when only scoring or when there is no V. V that lies inside the
 * rows of K (absorbed MLA) moves with them. Compaction refuses tensors whose rows overlap. */
typedef struct tria_layer_view {
    tria_tensor k;
    tria_tensor v;
    const int32_t *page_table; /* this layer's own table, or NULL for the view's */
    int32_t n_pages;
    int32_t reserved;
} tria_layer_view;

/* A sequence's cache. Layers that have no cache of their own (kv_source, no attention) have base NULL. */
typedef struct tria_kv_view {
    size_t struct_size;
    const tria_layer_view *layers; /* [n_layers], the layers of the plan in its order */
    int32_t n_layers;
    int32_t k_state;           /* tria_k_state */
    const int32_t *page_table; /* [n_pages] page ids, or NULL for one contiguous page */
    int32_t n_pages;
    int32_t tokens_per_page; /* > 0 with a page table */
    /* TRIA_K_HADAMARD: size of the transform, a power of two that divides dim (applied block by block;
     * 0 = dim), and optional signs (+1/-1) [dim] that multiplied the key before the transform. */
    const float *hadamard_signs;
    int32_t hadamard_size;
    int32_t reserved;
} tria_kv_view;

#define TRIA_KV_VIEW_INIT                                                                                  \
    {                                                                                                      \
        sizeof(tria_kv_view), NULL, 0, TRIA_K_ROTATED, NULL, 0, 0, NULL, 0, 0                              \
    }
TRIA_API void tria_kv_view_init(tria_kv_view *view);

#ifdef __cplusplus
}
#endif
#endif

/*
 * tria/layouts.h - ready-made layer views for the caches of known engines (specification, section 9).
 *
 * A constructor fills in what is mere arithmetic: offsets and strides. Everything else stays the caller's:
 * the page table and tokens_per_page of the view, scales of fp8 and int8 tensors, and the pairing of
 * rotary dimensions, which belongs to the model. The result is an ordinary tria_layer_view that may be
 * changed, for example its page_stride where one pool interleaves the pages of several layers.
 */
#ifndef TRIA_LAYOUTS_H
#define TRIA_LAYOUTS_H

#include "tria/kv_view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Outer to inner. Layouts with pages need a page table in the view, with tokens_per_page = page_tokens. */
typedef enum tria_layout {
    /* llama.cpp with flash attention: K and V [stream][cell][head][dim] */
    TRIA_LAYOUT_LLAMA_CPP = 0,
    /* llama.cpp without: K as above, V [stream][head][dim][cell] */
    TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED = 1,
    /* vLLM, one buffer: [2][block][token][head][dim] */
    TRIA_LAYOUT_VLLM = 2,
    /* vLLM in HND order, one buffer: [block][2][head][token][dim] */
    TRIA_LAYOUT_VLLM_HND = 3,
    /* vLLM before version 1: K [block][head][dim/x][token][x] with x elements in 16 bytes,
     * V [block][head][dim][token] */
    TRIA_LAYOUT_VLLM_PACKED = 4,
    /* TensorRT-LLM, one buffer: [page][2][head][token][dim] */
    TRIA_LAYOUT_TENSORRT_LLM = 5,
    /* SGLang: K and V [slot][head][dim]; a page is page_tokens consecutive slots (1 when the engine maps
     * single tokens) */
    TRIA_LAYOUT_SGLANG = 6,
    /* Hugging Face, ONNX, candle: K and V [sequence][head][token][dim] */
    TRIA_LAYOUT_HUGGING_FACE = 7,
    /* exllama: K and V [sequence][token][head][dim] */
    TRIA_LAYOUT_EXLLAMA = 8,
    TRIA_LAYOUT_COUNT = 9
} tria_layout;

/* "llama.cpp", "vllm", ...; NULL for an unknown value. */
TRIA_API const char *tria_layout_name(int32_t layout);

typedef struct tria_layout_params {
    size_t struct_size;
    void *k;         /* K, or K and V where they share a buffer */
    void *v;         /* V; NULL where they share a buffer, or when there is none to move */
    uint64_t k_size; /* bytes of the buffers, 0 = not checked */
    uint64_t v_size;
    int32_t k_dtype; /* tria_dtype; equal, like the dims, where K and V share a buffer */
    int32_t v_dtype;
    int32_t k_dim; /* elements stored per head, padding included */
    int32_t v_dim;
    int32_t n_heads;     /* KV heads */
    int32_t page_tokens; /* tokens per page; tokens allocated per sequence where there are no pages */
    int32_t n_pages;     /* pages in the buffer; only VLLM needs it, to find V */
    int32_t sequence;    /* which sequence (stream) of the buffer, where there are no pages */
} tria_layout_params;

#define TRIA_LAYOUT_PARAMS_INIT                                                                            \
    {                                                                                                      \
        sizeof(tria_layout_params), NULL, NULL, 0, 0, TRIA_DTYPE_F16, TRIA_DTYPE_F16, 0, 0, 0, 0, 0, 0     \
    }
TRIA_API void tria_layout_params_init(tria_layout_params *params);

/* Overwrites *view. Errors: ARGUMENT, UNSUPPORTED (blocks that would be split). */
TRIA_API tria_status tria_layout_view(int32_t layout, const tria_layout_params *params,
                                      tria_layer_view *view, tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

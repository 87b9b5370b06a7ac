/*
 * observer.h - learns from the graphs that llama.cpp runs, through its eval callback, what no other
 * public function tells: where its K cache lies, which cell each token is written to, and how RoPE is
 * applied. It asks for no node's data, so graphs run as they would without it.
 *
 * Every node is shown to the callback before it runs. Two kinds matter here:
 *   ROPE      named "Qcur-L" or "Kcur-L": shape, base and kind of the rotation of layer L; its second
 *             source holds the positions of the batch's tokens
 *   SET_ROWS  into a view of "cache_k_lL": that tensor is the engine's own cache of layer L, and the second
 *             source (int64) holds the cell of each of the batch's tokens
 * Between the two, llama.cpp multiplies the keys of quantised caches by a Hadamard matrix, unless it is
 * told not to; the matrix is a source of the node that does it and is looked at, not assumed.
 *
 * The matrix and both index tensors are inputs of the graph, so they are filled in before its first node.
 */
#ifndef EXAMPLE_OBSERVER_H
#define EXAMPLE_OBSERVER_H

#include "tria/base.h"

#include <llama.h>
#include <stdbool.h>
#include <stdint.h>

/* How one layer rotates, as its ROPE nodes say. */
typedef struct observed_rope {
    int32_t n_q_heads; /* 0: not seen */
    int32_t n_kv_heads;
    int32_t q_head_dim;
    int32_t k_head_dim;
    int32_t n_dims; /* rotated, from the first on */
    int32_t mode;   /* GGML_ROPE_TYPE_... */
    int32_t n_ctx_orig;
    float freq_base;
    float freq_scale;
    float ext_factor;
    float beta_fast;
    float beta_slow;
    float *freq_factors;              /* [n_dims / 2] divisors of the frequencies, or NULL; owned */
    char query_source[GGML_MAX_NAME]; /* the node that computes what enters RoPE as the layer's queries */
} observed_rope;

typedef struct observer {
    int32_t n_layers;
    int32_t first_layer;        /* the lowest layer with a cache, -1 before the first graph */
    observed_rope *rope;        /* [n_layers] */
    struct ggml_tensor **cache; /* [n_layers] the engine's own K tensors, NULL: none seen */
    /* tokens of the batches since observer_clear(), in the order in which they were fed */
    int32_t *cells;
    int32_t *positions;
    int32_t n_cells;
    int32_t n_positions;
    int32_t capacity;
    bool out_of_memory;
    int32_t
        hadamard_size; /* between RoPE and the cache every block of so many elements of a key is multiplied
                          by the orthonormal Sylvester-Hadamard matrix of that size; 0: nothing happens */
    bool hidden_keys;  /* something else does, or not the same in all layers */
} observer;

tria_status observer_init(observer *o, int32_t n_layers, tria_error *error);
void observer_release(observer *o);
/* Forgets the tokens seen, not the tensors. */
void observer_clear(observer *o);

/* For llama_context_params.cb_eval; the context is the observer. */
bool observer_callback(struct ggml_tensor *tensor, bool ask, void *context);

/* The layer of a node called PREFIX-L, or -1. */
int32_t node_layer(const struct ggml_tensor *tensor, const char *prefix);
/* The node whose memory `tensor` shares: itself, or what it is a view of. */
const struct ggml_tensor *node_without_views(const struct ggml_tensor *tensor);
/* Can the CPU read the tensor where it lies? */
bool tensor_in_host_memory(const struct ggml_tensor *tensor);

#endif

/* observer.c - reads K tensors, cells, positions and RoPE parameters off llama.cpp's graphs. */
#include "observer.h"

#include "engine.h"

#include <ggml-backend.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters of a ROPE node, as ggml_rope_ext() stores them. */
enum {
    ROPE_N_DIMS = 1,
    ROPE_MODE = 2,
    ROPE_N_CTX_ORIG = 4,
    ROPE_FREQ_BASE = 5,
    ROPE_FREQ_SCALE = 6,
    ROPE_EXT_FACTOR = 7,
    ROPE_BETA_FAST = 9,
    ROPE_BETA_SLOW = 10
};

tria_status observer_init(observer *o, int32_t n_layers, tria_error *error)
{
    memset(o, 0, sizeof(*o));
    o->n_layers = n_layers;
    o->first_layer = -1;
    o->rope = calloc((size_t)n_layers, sizeof(*o->rope));
    o->cache = calloc((size_t)n_layers, sizeof(struct ggml_tensor *));
    if (o->rope == NULL || o->cache == NULL) {
        observer_release(o);
        return fail(error, TRIA_E_MEMORY, "out of memory for %d layers", n_layers);
    }
    return TRIA_OK;
}

void observer_release(observer *o)
{
    for (int32_t layer = 0; o->rope != NULL && layer < o->n_layers; layer++) {
        free(o->rope[layer].freq_factors);
    }
    free(o->rope);
    free((void *)o->cache);
    free(o->cells);
    free(o->positions);
    memset(o, 0, sizeof(*o));
}

void observer_clear(observer *o)
{
    o->n_cells = 0;
    o->n_positions = 0;
}

int32_t node_layer(const struct ggml_tensor *tensor, const char *prefix)
{
    const size_t length = strlen(prefix);
    if (strncmp(tensor->name, prefix, length) != 0) {
        return -1;
    }
    char *end = NULL;
    const long layer = strtol(tensor->name + length, &end, 10);
    return end != tensor->name + length && *end == '\0' && layer >= 0 && layer < INT32_MAX ? (int32_t)layer
                                                                                           : -1;
}

const struct ggml_tensor *node_without_views(const struct ggml_tensor *tensor)
{
    while (tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_RESHAPE || tensor->op == GGML_OP_PERMUTE) {
        tensor = tensor->src[0];
    }
    return tensor;
}

bool tensor_in_host_memory(const struct ggml_tensor *tensor)
{
    const struct ggml_tensor *owner = tensor->view_src != NULL ? tensor->view_src : tensor;
    return owner->data != NULL && (owner->buffer == NULL || ggml_backend_buffer_is_host(owner->buffer));
}

/* Room for n more tokens; growth happens on the first long batch only. */
static bool reserve(observer *o, int64_t n)
{
    const int64_t wanted = (o->n_cells > o->n_positions ? o->n_cells : o->n_positions) + n;
    if (wanted <= o->capacity) {
        return true;
    }
    const int64_t capacity = wanted * 2;
    int32_t *cells = realloc(o->cells, (size_t)capacity * sizeof(*cells));
    if (cells != NULL) {
        o->cells = cells;
    }
    int32_t *positions = realloc(o->positions, (size_t)capacity * sizeof(*positions));
    if (positions != NULL) {
        o->positions = positions;
    }
    if (cells == NULL || positions == NULL || capacity > INT32_MAX) {
        o->out_of_memory = true;
        return false;
    }
    o->capacity = (int32_t)capacity;
    return true;
}

static float rope_float(const struct ggml_tensor *rope, int index)
{
    float value = 0;
    memcpy(&value, rope->op_params + index, sizeof(value));
    return value;
}

static void note_rope(observer *o, const struct ggml_tensor *rope, int32_t layer, bool query)
{
    observed_rope *seen = &o->rope[layer];
    if (query) {
        seen->n_q_heads = (int32_t)rope->ne[1];
        seen->q_head_dim = (int32_t)rope->ne[0];
        snprintf(seen->query_source, sizeof(seen->query_source), "%s",
                 node_without_views(rope->src[0])->name);
        return;
    }
    seen->n_kv_heads = (int32_t)rope->ne[1];
    seen->k_head_dim = (int32_t)rope->ne[0];
    seen->n_dims = rope->op_params[ROPE_N_DIMS];
    seen->mode = rope->op_params[ROPE_MODE];
    seen->n_ctx_orig = rope->op_params[ROPE_N_CTX_ORIG];
    seen->freq_base = rope_float(rope, ROPE_FREQ_BASE);
    seen->freq_scale = rope_float(rope, ROPE_FREQ_SCALE);
    seen->ext_factor = rope_float(rope, ROPE_EXT_FACTOR);
    seen->beta_fast = rope_float(rope, ROPE_BETA_FAST);
    seen->beta_slow = rope_float(rope, ROPE_BETA_SLOW);

    const struct ggml_tensor *factors = rope->src[2];
    if (factors != NULL && seen->freq_factors == NULL) {
        const size_t size = (size_t)(seen->n_dims / 2) * sizeof(float);
        seen->freq_factors = malloc(size);
        if (seen->freq_factors == NULL) {
            o->out_of_memory = true;
            return;
        }
        ggml_backend_tensor_get(factors, seen->freq_factors, 0, size);
    }
}

static void note_positions(observer *o, const struct ggml_tensor *rope)
{
    const struct ggml_tensor *positions = rope->src[1];
    if (reserve(o, positions->ne[0])) {
        ggml_backend_tensor_get(positions, o->positions + o->n_positions, 0,
                                (size_t)positions->ne[0] * sizeof(int32_t));
        o->n_positions += (int32_t)positions->ne[0];
    }
}

/* Is it the orthonormal Sylvester-Hadamard matrix: +- 1 / sqrt(n), minus where i & j has an odd number of
 * bits? */
static bool is_hadamard(const struct ggml_tensor *matrix)
{
    enum { LARGEST = 1024 };
    const int64_t n = matrix->ne[0];
    if (matrix->type != GGML_TYPE_F32 || matrix->ne[1] != n || ggml_nelements(matrix) != n * n ||
        n > LARGEST || (n & (n - 1)) != 0) {
        return false;
    }
    float row[LARGEST];
    for (int64_t i = 0; i < n; i++) {
        ggml_backend_tensor_get(matrix, row, (size_t)i * matrix->nb[1], (size_t)n * sizeof(*row));
        for (int64_t j = 0; j < n; j++) {
            const float sign = __builtin_popcountll((unsigned long long)(i & j)) % 2 == 0 ? 1.0F : -1.0F;
            if (fabsf(row[j] * sqrtf((float)n) - sign) > 1e-5F) {
                return false;
            }
        }
    }
    return true;
}

/* What happens to keys between RoPE and the cache: as hadamard_size, -1 for anything else. */
static int32_t transform_of(const struct ggml_tensor *keys)
{
    const struct ggml_tensor *node = node_without_views(keys);
    if (node->op == GGML_OP_ROPE) {
        return 0;
    }
    return node->op == GGML_OP_MUL_MAT && node_without_views(node->src[1])->op == GGML_OP_ROPE &&
                   is_hadamard(node->src[0])
               ? (int32_t)node->src[0]->ne[0]
               : -1;
}

/* A layer's cache, the first time it is written to. */
static void note_cache(observer *o, const struct ggml_tensor *set_rows, int32_t layer)
{
    const int32_t transform = transform_of(set_rows->src[0]);
    if (o->first_layer < 0) {
        o->first_layer = layer;
        o->hadamard_size = transform;
    }
    o->hidden_keys |= transform < 0 || transform != o->hadamard_size;
    o->cache[layer] = set_rows->view_src;
}

static void note_cells(observer *o, const struct ggml_tensor *set_rows)
{
    const struct ggml_tensor *index = set_rows->src[1];
    if (!reserve(o, index->ne[0])) {
        return;
    }
    for (int64_t i = 0; i < index->ne[0]; i++) {
        int64_t cell = 0;
        ggml_backend_tensor_get(index, &cell, (size_t)i * sizeof(cell), sizeof(cell));
        o->cells[o->n_cells++] = (int32_t)cell;
    }
}

bool observer_callback(struct ggml_tensor *tensor, bool ask, void *context)
{
    observer *o = context;
    if (!ask) {
        return true;
    }
    if (tensor->op == GGML_OP_ROPE) {
        int32_t layer = node_layer(tensor, "Qcur-");
        const bool query = layer >= 0;
        if (!query) {
            layer = node_layer(tensor, "Kcur-");
        }
        if (layer >= 0 && layer < o->n_layers) {
            note_rope(o, tensor, layer, query);
            if (!query && (o->first_layer < 0 || layer == o->first_layer)) {
                note_positions(o, tensor);
            }
        }
    } else if (tensor->op == GGML_OP_SET_ROWS && tensor->view_src != NULL) {
        const int32_t layer = node_layer(tensor->view_src, "cache_k_l");
        if (layer >= 0 && layer < o->n_layers) {
            if (o->cache[layer] == NULL) {
                note_cache(o, tensor, layer);
            }
            if (layer == o->first_layer) {
                note_cells(o, tensor);
            }
        }
    }
    return false; /* no data wanted: the graph is not split */
}

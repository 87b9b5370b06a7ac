/* capture.c - takes the queries off llama.cpp's graphs as they enter RoPE. */
#include "capture.h"

#include "engine.h"

#include <stdlib.h>
#include <string.h>

tria_status capture_accumulator(const tria_model *model, tria_accumulator **accumulator, tria_error *error)
{
    tria_accumulator_params params;
    tria_accumulator_params_init(&params);
    params.model = model;
    params.capture_point = TRIA_CAPTURE_AFTER_QK_NORM;
    return tria_accumulator_create(&params, NULL, accumulator, error);
}

/* Does this node compute what enters its layer's RoPE? */
static bool is_query_source(const observer *o, const struct ggml_tensor *tensor)
{
    const char *dash = strrchr(tensor->name, '-');
    if (dash == NULL || tensor->op == GGML_OP_ROPE || node_without_views(tensor) != tensor) {
        return false;
    }
    char *end = NULL;
    const long layer = strtol(dash + 1, &end, 10);
    return *end == '\0' && layer >= 0 && layer < o->n_layers &&
           strcmp(o->rope[layer].query_source, tensor->name) == 0;
}

static void add_queries(capture *c, const struct ggml_tensor *rope, int32_t layer)
{
    const struct ggml_tensor *source = rope->src[0];
    if (node_without_views(source) != c->ready || !tensor_in_host_memory(source) ||
        source->type != GGML_TYPE_F32) {
        c->status = fail(&c->error, TRIA_E_INTERNAL, "the queries of layer %d could not be read", layer);
        return;
    }
    tria_queries queries;
    tria_queries_init(&queries);
    queries.layer = layer;
    queries.dtype = TRIA_DTYPE_F32;
    queries.data = source->data;
    queries.n_tokens = source->ne[2];
    queries.token_stride = (int64_t)source->nb[2];
    queries.head_stride = (int64_t)source->nb[1];
    queries.dim_stride = (int64_t)source->nb[0];
    c->status = tria_accumulator_add(c->accumulator, &queries, &c->error);
    c->ready = NULL; /* graphs that come after it may have another node there */
}

bool capture_callback(struct ggml_tensor *tensor, bool ask, void *context)
{
    capture *c = context;
    if (!ask) {
        c->ready = tensor;
        return true;
    }
    observer_callback(tensor, true, c->observer);
    if (c->accumulator == NULL || c->status != TRIA_OK) {
        return false;
    }
    const int32_t layer = tensor->op == GGML_OP_ROPE ? node_layer(tensor, "Qcur-") : -1;
    if (layer >= 0) {
        add_queries(c, tensor, layer);
        return false;
    }
    return is_query_source(c->observer, tensor);
}

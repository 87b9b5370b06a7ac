/* geometry.c - from llama.cpp's RoPE nodes and metadata to a tria_model. */
#include "geometry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tria_status run_one_token(engine *e, observer *o, tria_error *error)
{
    llama_token token = 0;
    observer_clear(o);
    tria_status status = engine_decode(e, 0, &token, 1, error);
    if (status == TRIA_OK) {
        llama_memory_clear(e->memory, true);
        if (o->out_of_memory) {
            status = fail(error, TRIA_E_MEMORY, "out of memory");
        }
    }
    observer_clear(o);
    return status;
}

static tria_status check_model(const engine *e, tria_error *error)
{
    if (e->memory == NULL || llama_model_is_recurrent(e->model) || llama_model_is_hybrid(e->model)) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "this example handles plain attention models only, not recurrent or hybrid ones");
    }
    if (llama_model_n_swa(e->model) > 0) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "this example does not handle sliding-window models (window %d)",
                    llama_model_n_swa(e->model));
    }
    return TRIA_OK;
}

/* Radians per token of each frequency, as ggml's RoPE computes them. */
static tria_status frequencies(const observed_rope *rope, int32_t layer, double *inv_freq,
                               tria_error *error)
{
    const int32_t n = rope->n_dims / 2;
    if (rope->ext_factor != 0.0F) {
        if (rope->ext_factor != 1.0F) {
            return fail(error, TRIA_E_UNSUPPORTED,
                        "layer %d: YaRN extrapolation factor %g, only 1 is handled", layer,
                        (double)rope->ext_factor);
        }
        tria_rope_scaling yarn;
        tria_rope_scaling_init(&yarn);
        yarn.type = TRIA_ROPE_SCALING_YARN;
        yarn.factor = 1 / (double)rope->freq_scale;
        yarn.original_length = rope->n_ctx_orig;
        yarn.beta_fast = (double)rope->beta_fast;
        yarn.beta_slow = (double)rope->beta_slow;
        const tria_status status =
            tria_rope_frequencies((double)rope->freq_base, rope->n_dims, &yarn, inv_freq, NULL, error);
        if (status != TRIA_OK) {
            return status;
        }
    } else {
        for (int32_t f = 0; f < n; f++) {
            inv_freq[f] = (double)rope->freq_scale * pow((double)rope->freq_base, -2.0 * f / rope->n_dims);
        }
    }
    for (int32_t f = 0; rope->freq_factors != NULL && f < n; f++) {
        inv_freq[f] /= (double)rope->freq_factors[f];
    }
    return TRIA_OK;
}

static tria_status describe_layer(const engine *e, const observer *o, int32_t layer, tria_layer_params *out,
                                  double *inv_freq, tria_error *error)
{
    const observed_rope *rope = &o->rope[layer];
    const struct ggml_tensor *cache = o->cache[layer];
    if (rope->n_q_heads == 0 || rope->n_kv_heads == 0 || cache == NULL) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "layer %d: no rotated queries or keys, or no K cache, were seen in the graph", layer);
    }
    if (rope->q_head_dim != rope->k_head_dim ||
        cache->ne[0] != (int64_t)rope->n_kv_heads * rope->k_head_dim) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "layer %d: a cache row holds %lld elements, %d heads of %d (queries: %d) do not fit",
                    layer, (long long)cache->ne[0], rope->n_kv_heads, rope->k_head_dim, rope->q_head_dim);
    }
    if (!tensor_in_host_memory(cache)) {
        return fail(error, TRIA_E_UNSUPPORTED, "layer %d: the K cache is not in host memory", layer);
    }
    if (rope->mode != (int32_t)llama_model_rope_type(e->model) ||
        (rope->mode != GGML_ROPE_TYPE_NORMAL && rope->mode != GGML_ROPE_TYPE_NEOX)) {
        return fail(error, TRIA_E_UNSUPPORTED, "layer %d: RoPE of kind %d, only NORM and NEOX are handled",
                    layer, rope->mode);
    }
    const tria_status status = frequencies(rope, layer, inv_freq, error);
    if (status != TRIA_OK) {
        return status;
    }
    tria_layer_params_init(out);
    out->n_q_heads = rope->n_q_heads;
    out->n_kv_heads = rope->n_kv_heads;
    out->head_dim = rope->k_head_dim;
    out->rotary_dim = rope->n_dims;
    out->rope_style = rope->mode == GGML_ROPE_TYPE_NEOX ? TRIA_ROPE_HALF : TRIA_ROPE_INTERLEAVED;
    out->rope_theta = (double)rope->freq_base;
    out->inv_freq = inv_freq;
    return TRIA_OK;
}

/* Name and fingerprint. Quantisations of the same weights share both, and so a calibration. */
static void identify(const engine *e, char *name, size_t name_size, char *fingerprint, size_t size)
{
    char architecture[64] = "";
    llama_model_meta_val_str(e->model, "general.architecture", architecture, sizeof(architecture));
    if (llama_model_meta_val_str(e->model, "general.name", name, name_size) < 0) {
        snprintf(name, name_size, "%s", architecture);
    }
    snprintf(fingerprint, size, "%s, %s, %llu parameters", architecture, name,
             (unsigned long long)llama_model_n_params(e->model));
}

tria_status geometry_probe(engine *e, observer *o, tria_model **model, tria_error *error)
{
    tria_status status = check_model(e, error);
    if (status == TRIA_OK) {
        status = run_one_token(e, o, error);
    }
    if (status != TRIA_OK) {
        return status;
    }
    if (o->hidden_keys) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "keys are transformed between RoPE and the cache, and not by a Hadamard matrix that is "
                    "the same in all layers");
    }
    tria_layer_params *layers = calloc((size_t)o->n_layers, sizeof(*layers));
    double **inv_freq = calloc((size_t)o->n_layers, sizeof(*inv_freq));
    if (layers == NULL || inv_freq == NULL) {
        status = fail(error, TRIA_E_MEMORY, "out of memory");
    }
    for (int32_t layer = 0; status == TRIA_OK && layer < o->n_layers; layer++) {
        inv_freq[layer] = calloc((size_t)o->rope[layer].n_dims / 2 + 1, sizeof(double));
        status = inv_freq[layer] == NULL
                     ? fail(error, TRIA_E_MEMORY, "out of memory")
                     : describe_layer(e, o, layer, &layers[layer], inv_freq[layer], error);
    }
    if (status == TRIA_OK) {
        char name[128] = "";
        char fingerprint[256];
        identify(e, name, sizeof(name), fingerprint, sizeof(fingerprint));
        tria_model_params params = TRIA_MODEL_PARAMS_INIT;
        params.name = name;
        params.fingerprint = fingerprint;
        params.layers = layers;
        params.n_layers = o->n_layers;
        status = tria_model_create(&params, NULL, model, error);
    }
    for (int32_t layer = 0; inv_freq != NULL && layer < o->n_layers; layer++) {
        free(inv_freq[layer]);
    }
    free((void *)inv_freq);
    free(layers);
    return status;
}

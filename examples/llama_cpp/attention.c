/*
 * attention.c - how much of the attention that later tokens pay goes to rows a policy kept?
 *
 * The most direct measure of a choice: a prompt is filled in, every configuration chooses its rows, and the
 * queries of the tokens that follow in the text are then compared with the keys of the whole prompt.
 * Counted is the attention on rows that could have been evicted (neither first nor most recent ones), over
 * all layers and heads. Pairs taken for halves, a wrong sign or post-RoPE statistics show here at once.
 */
#include "eval.h"
#include "host.h"
#include "observer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTENTION_QUERIES = 32 };

/* Rotated queries of the last token, all layers and heads, copied out by the eval callback. */
typedef struct query_tap {
    observer *observer;
    bool on;
    float *queries; /* [n_layers][stride] */
    size_t stride;
} query_tap;

/* Multiplies every block of n elements by the orthonormal Hadamard matrix, as the keys in the cache were:
 * their products stay what they were. */
static void hadamard(float *x, size_t count, size_t n)
{
    const float scale = 1 / sqrtf((float)n);
    for (size_t step = 1; step < n; step *= 2) {
        for (size_t i = 0; i < count; i++) {
            if ((i & step) == 0) {
                const float a = x[i];
                const float b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        x[i] *= scale;
    }
}

static bool tap_callback(struct ggml_tensor *tensor, bool ask, void *context)
{
    query_tap *tap = context;
    const int32_t layer = tap->on && tensor->op == GGML_OP_ROPE ? node_layer(tensor, "Qcur-") : -1;
    if (ask) {
        observer_callback(tensor, true, tap->observer);
        return layer >= 0;
    }
    if (layer >= 0 && ggml_nbytes(tensor) == tap->stride * sizeof(float)) {
        float *queries = tap->queries + (size_t)layer * tap->stride;
        memcpy(queries, tensor->data, ggml_nbytes(tensor));
        if (tap->observer->hadamard_size > 0) {
            hadamard(queries, tap->stride, (size_t)tap->observer->hadamard_size);
        }
    }
    return true;
}

static void read_key(const struct ggml_tensor *cache, int32_t cell, int64_t first, int32_t dim, float *key)
{
    const uint8_t *row =
        (const uint8_t *)cache->data + (size_t)cell * cache->nb[1] + ggml_row_size(cache->type, first);
    const struct ggml_type_traits *traits = ggml_get_type_traits(cache->type);
    if (traits->to_float != NULL) {
        traits->to_float(row, key, dim);
    } else {
        memcpy(key, row, (size_t)dim * sizeof(*key));
    }
}

/* One query against the keys of rows 0 ... n - 1, which lie in cells 0 ... n - 1: weights, up to a factor.
 */
static void attend(const struct ggml_tensor *cache, const float *query, int64_t first, int32_t dim,
                   int32_t n, float *key, double *weights)
{
    double largest = -INFINITY;
    for (int32_t row = 0; row < n; row++) {
        read_key(cache, row, first, dim, key);
        double dot = 0;
        for (int32_t d = 0; d < dim; d++) {
            dot += (double)query[d] * (double)key[d];
        }
        weights[row] = dot / sqrt(dim);
        largest = fmax(largest, weights[row]);
    }
    for (int32_t row = 0; row < n; row++) {
        weights[row] = exp(weights[row] - largest);
    }
}

/* Adds this token's attention, `n` rows in all, of which [begin, end) could have been evicted. */
static void count_attention(const query_tap *tap, int32_t n, int32_t begin, int32_t end,
                            uint8_t *const *kept, int32_t n_configs, double *on_kept, double *on_all,
                            double *weights)
{
    float key[1024];
    for (int32_t layer = 0; layer < tap->observer->n_layers; layer++) {
        const observed_rope *rope = &tap->observer->rope[layer];
        const int32_t dim = rope->k_head_dim;
        for (int32_t head = 0; dim <= 1024 && head < rope->n_q_heads; head++) {
            const int64_t kv_head = head / (rope->n_q_heads / rope->n_kv_heads);
            attend(tap->observer->cache[layer],
                   tap->queries + (size_t)layer * tap->stride + (size_t)head * (size_t)dim, kv_head * dim,
                   dim, n, key, weights);
            double sum = 0;
            for (int32_t row = 0; row < n; row++) {
                sum += weights[row];
            }
            for (int32_t row = begin; row < end; row++) {
                *on_all += weights[row] / sum;
                for (int32_t c = 0; c < n_configs; c++) {
                    on_kept[c] += kept[c][row] != 0 ? weights[row] / sum : 0;
                }
            }
        }
    }
}

static tria_status choose_rows(const eval_options *options, const eval_config *config, eval_setup *setup,
                               const host_snapshot *snapshot, uint8_t *kept, tria_error *error)
{
    const host_params params = eval_host_params(options, config, setup, options->passkey_tokens);
    host *h = NULL;
    tria_status status = host_create(&setup->engine, setup->observer, &params, &h, error);
    if (status == TRIA_OK) {
        status = host_restore(h, snapshot, options->seed, error);
    }
    if (status == TRIA_OK) {
        status = host_evict_if_due(h, error);
    }
    int32_t n = 0;
    const int32_t *positions = status == TRIA_OK ? host_positions(h, &n) : NULL;
    for (int32_t i = 0; i < n; i++) {
        kept[positions[i]] = 1;
    }
    host_destroy(h);
    return status;
}

static tria_status measure(const eval_options *options, const eval_config *configs, int32_t n_configs,
                           eval_setup *setup, query_tap *tap, llama_token *tokens, uint8_t *const *kept,
                           double *weights, eval_result *results, tria_error *error)
{
    const int32_t n = options->passkey_tokens;
    const host_params params = {.policy = HOST_POLICY_NONE, .model = setup->model};
    host *h = NULL;
    host_snapshot *snapshot = NULL;
    tria_status status = host_create(&setup->engine, setup->observer, &params, &h, error);
    if (status == TRIA_OK) {
        status = host_prompt_only(h, tokens, n, error);
    }
    if (status == TRIA_OK) {
        status = host_save(h, &snapshot, error);
    }
    for (int32_t c = 0; status == TRIA_OK && c < n_configs; c++) {
        status = choose_rows(options, &configs[c], setup, snapshot, kept[c], error);
    }
    if (status == TRIA_OK) {
        status = host_restore(h, snapshot, 0, error);
    }
    double on_all = 0;
    double on_kept[EVAL_MAX_CONFIGS] = {0};
    tap->on = true;
    for (int32_t i = 0; status == TRIA_OK && i < ATTENTION_QUERIES; i++) {
        status = host_decode(h, tokens[n + i], error);
        if (status == TRIA_OK) {
            count_attention(tap, n + i + 1, options->n_sink, n - options->n_recent, kept, n_configs,
                            on_kept, &on_all, weights);
            fprintf(stderr, "\rattention: %d of %d queries ", i + 1, (int)ATTENTION_QUERIES);
        }
    }
    fputc('\n', stderr);
    for (int32_t c = 0; status == TRIA_OK && c < n_configs; c++) {
        results[c].attention_kept = on_kept[c] / on_all;
    }
    host_snapshot_destroy(snapshot);
    host_destroy(h);
    return status;
}

tria_status eval_attention(const eval_options *options, const eval_config *configs, int32_t n_configs,
                           eval_result *results, tria_error *error)
{
    eval_setup setup;
    query_tap tap = {0};
    const int32_t n = options->passkey_tokens;
    tria_status status = eval_open_with(options, n + options->interval + ATTENTION_QUERIES, tap_callback,
                                        &tap, &tap.observer, &setup, error);
    if (status != TRIA_OK) {
        return status;
    }
    llama_token *tokens = NULL;
    int32_t n_tokens = 0;
    status = engine_tokenize_file(&setup.engine, options->text_path, &tokens, &n_tokens, error);
    if (status == TRIA_OK && n_tokens < options->ppl_skip + n + ATTENTION_QUERIES) {
        status = fail(error, TRIA_E_ARGUMENT, "'%s' is too short", options->text_path);
    }
    uint8_t *kept[EVAL_MAX_CONFIGS] = {NULL};
    uint8_t *all_kept = calloc((size_t)EVAL_MAX_CONFIGS, (size_t)n);
    double *weights = calloc((size_t)(n + ATTENTION_QUERIES), sizeof(*weights));
    tap.stride = (size_t)tap.observer->rope[0].n_q_heads * (size_t)tap.observer->rope[0].q_head_dim;
    tap.queries = calloc((size_t)tap.observer->n_layers, tap.stride * sizeof(float));
    if (status == TRIA_OK && (all_kept == NULL || weights == NULL || tap.queries == NULL)) {
        status = fail(error, TRIA_E_MEMORY, "out of memory");
    }
    for (int32_t c = 0; c < EVAL_MAX_CONFIGS && all_kept != NULL; c++) {
        kept[c] = all_kept + (size_t)c * (size_t)n;
    }
    if (status == TRIA_OK) {
        status = measure(options, configs, n_configs, &setup, &tap, tokens + options->ppl_skip, kept,
                         weights, results, error);
    }
    free(tap.queries);
    free(weights);
    free(all_kept);
    free(tokens);
    eval_close(&setup);
    return status;
}

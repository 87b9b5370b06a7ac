/* engine.c - the few llama.cpp calls that every program here needs. */
#include "engine.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

tria_status fail(tria_error *error, tria_status code, const char *format, ...)
{
    error->code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    return code;
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* llama.cpp tells a lot; TRIA_LLAMA_LOG=1 shows it. Its errors repeat ours at greater length. */
static void quiet_log(enum ggml_log_level level, const char *text, void *context)
{
    (void)level;
    (void)context;
    if (getenv("TRIA_LLAMA_LOG") != NULL) {
        fputs(text, stderr);
    }
}

static bool no_progress(float progress, void *context)
{
    (void)progress;
    (void)context;
    return true;
}

/* The types that llama.cpp has for caches. */
static tria_status cache_type(const char *name, enum ggml_type *type, tria_error *error)
{
    static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,
                                           GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                           GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, ggml_type_name(types[i])) == 0) {
            *type = types[i];
            return TRIA_OK;
        }
    }
    return fail(error, TRIA_E_ARGUMENT, "llama.cpp has no K cache of type '%s'", name);
}

tria_status engine_open(engine *e, const engine_params *params, tria_error *error)
{
    memset(e, 0, sizeof(*e));
    llama_log_set(quiet_log, NULL);
    llama_backend_init();

    if (access(params->model_path, R_OK) != 0) {
        return fail(error, TRIA_E_IO, "cannot read the model '%s'", params->model_path);
    }
    struct llama_context_params context_params = llama_context_default_params();
    if (params->cache_type_k != NULL) {
        const tria_status status = cache_type(params->cache_type_k, &context_params.type_k, error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    struct llama_model_params model_params = llama_model_default_params();
    model_params.progress_callback = no_progress;
    e->model = llama_model_load_from_file(params->model_path, model_params);
    if (e->model == NULL) {
        return fail(error, TRIA_E_FORMAT, "llama.cpp cannot load '%s' (not a GGUF model that it knows)",
                    params->model_path);
    }
    e->vocab = llama_model_get_vocab(e->model);
    e->n_vocab = llama_vocab_n_tokens(e->vocab);

    int32_t n_threads = params->n_threads;
    if (n_threads <= 0) {
        n_threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    }
    e->n_sequences = params->n_sequences > 0 ? params->n_sequences : 1;
    e->shared_cells = params->shared_cells;
    context_params.n_ctx = (uint32_t)params->cells * (uint32_t)e->n_sequences;
    context_params.n_seq_max = (uint32_t)e->n_sequences;
    context_params.kv_unified = e->shared_cells;
    context_params.n_batch = 512;
    context_params.n_ubatch = params->graph_tokens > 0 ? (uint32_t)params->graph_tokens : 512;
    context_params.n_threads = n_threads;
    context_params.n_threads_batch = n_threads;
    context_params.cb_eval = params->callback;
    context_params.cb_eval_user_data = params->callback_context;
    context_params.abort_callback = params->abort;
    context_params.abort_callback_data = params->abort_context;
    /* The library scores the cache where it lies, and the CPU must be able to read it there. */
    context_params.offload_kqv = false;
    e->context = llama_init_from_model(e->model, context_params);
    if (e->context == NULL) {
        engine_close(e);
        return fail(error, TRIA_E_MEMORY, "llama.cpp cannot create a context of %d cells", params->cells);
    }
    e->memory = llama_get_memory(e->context);
    e->all_cells = (int32_t)llama_n_ctx(e->context);
    e->cells = e->all_cells / e->n_sequences;
    e->batch = (int32_t)llama_n_batch(e->context);
    e->storage = llama_batch_init(e->batch, 0, 1);
    return TRIA_OK;
}

void engine_close(engine *e)
{
    if (e->context != NULL) {
        llama_batch_free(e->storage);
        llama_free(e->context);
    }
    if (e->model != NULL) {
        llama_model_free(e->model);
        llama_backend_free();
    }
    memset(e, 0, sizeof(*e));
}

static tria_status tokenize(const engine *e, const char *text, size_t length, bool special,
                            llama_token **tokens, int32_t *n_tokens, tria_error *error)
{
    if (length > INT32_MAX - 16) {
        return fail(error, TRIA_E_ARGUMENT, "the text is longer than 2 GiB");
    }
    /* There are never more tokens than bytes. */
    const int32_t capacity = (int32_t)length + 8;
    *tokens = malloc((size_t)capacity * sizeof(**tokens));
    if (*tokens == NULL) {
        return fail(error, TRIA_E_MEMORY, "out of memory");
    }
    *n_tokens = llama_tokenize(e->vocab, text, (int32_t)length, *tokens, capacity, special, special);
    if (*n_tokens < 0) {
        free(*tokens);
        *tokens = NULL;
        return fail(error, TRIA_E_INTERNAL, "llama.cpp cannot tokenize the text");
    }
    return TRIA_OK;
}

tria_status engine_tokenize(const engine *e, const char *text, bool special, llama_token **tokens,
                            int32_t *n_tokens, tria_error *error)
{
    return tokenize(e, text, strlen(text), special, tokens, n_tokens, error);
}

tria_status engine_tokenize_file(const engine *e, const char *path, llama_token **tokens, int32_t *n_tokens,
                                 tria_error *error)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fail(error, TRIA_E_IO, "cannot read the text '%s'", path);
    }
    size_t length = 0;
    size_t capacity = (size_t)1 << 20;
    char *text = malloc(capacity);
    while (text != NULL) {
        length += fread(text + length, 1, capacity - length, file);
        if (length < capacity) {
            break;
        }
        capacity *= 2;
        char *larger = realloc(text, capacity);
        if (larger == NULL) {
            free(text);
        }
        text = larger;
    }
    const bool broken = ferror(file) != 0;
    fclose(file);
    if (text == NULL) {
        return fail(error, TRIA_E_MEMORY, "out of memory reading '%s'", path);
    }
    if (broken || length == 0) {
        free(text);
        return fail(error, TRIA_E_IO, "the text '%s' is empty or cannot be read", path);
    }
    const tria_status status = tokenize(e, text, length, false, tokens, n_tokens, error);
    free(text);
    return status;
}

tria_status engine_decode(engine *e, llama_seq_id sequence, const llama_token *tokens, int32_t n,
                          tria_error *error)
{
    const llama_pos t = llama_memory_seq_pos_max(e->memory, sequence) + 1;
    struct llama_batch *batch = &e->storage;
    batch->n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch->token[i] = tokens[i];
        batch->pos[i] = t + i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = sequence;
        batch->logits[i] = i == n - 1;
    }
    const int32_t result = llama_decode(e->context, *batch);
    if (result == 1) {
        return fail(error, TRIA_E_CAPACITY,
                    "llama.cpp has no free KV cells for %d more tokens (it has %d cells)", n, e->all_cells);
    }
    if (result == 2) {
        return fail(error, TRIA_E_CANCELLED, "cancelled while %d tokens were decoded", n);
    }
    if (result != 0) {
        return fail(error, TRIA_E_INTERNAL, "llama_decode() failed with %d", result);
    }
    return TRIA_OK;
}

const float *engine_logits(const engine *e)
{
    return llama_get_logits_ith(e->context, -1);
}

llama_token engine_argmax(const engine *e)
{
    const float *logits = engine_logits(e);
    llama_token best = 0;
    for (llama_token i = 1; i < e->n_vocab; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

double engine_surprise(const engine *e, llama_token token)
{
    const float *logits = engine_logits(e);
    const float largest = logits[engine_argmax(e)];
    double sum = 0;
    for (llama_token i = 0; i < e->n_vocab; i++) {
        sum += (double)expf(logits[i] - largest);
    }
    return log(sum) - (double)(logits[token] - largest);
}

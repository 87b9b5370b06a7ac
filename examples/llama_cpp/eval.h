/*
 * eval.h - what evicting costs: perplexity of a text decoded token by token, a number hidden in a long
 * prompt ("passkey"), and how much of the attention of later tokens the kept rows get. All configurations
 * see the same tokens and the same trials.
 */
#ifndef EXAMPLE_EVAL_H
#define EXAMPLE_EVAL_H

#include "host.h"

#include <tria/tria.h>

enum { EVAL_MAX_CONFIGS = 16, PASSKEY_DIGITS = 5 };

/* One row of the table. */
typedef struct eval_config {
    int32_t policy;  /* host_policy */
    int32_t percent; /* budget, of the task's tokens; 100 without eviction */
    int32_t mode;
    int32_t pool_radius;
    int32_t own_percent; /* weight of the conversation's own queries in the statistics */
    char label[64];      /* "tria 25 %" */
} eval_config;

typedef struct eval_options {
    const char *model_path;
    const char *calibration_path;
    const char *text_path; /* held-out text: perplexity, and the filler of the passkey prompts */
    int32_t interval;
    int32_t n_recent;
    int32_t n_sink;
    int32_t n_threads;
    uint64_t seed;
    int32_t ppl_tokens;
    int32_t ppl_skip; /* tokens of the text to skip */
    int32_t passkey_tokens;
    int32_t depths;
    int32_t numbers;    /* per depth */
    bool plain_filler;  /* simple sentences over and over instead of the text */
    bool bound_prefill; /* passkey prompts: never more rows than budget + interval */
    bool verbose;
    tria_trace *trace;        /* or NULL: where every eviction by scores is written */
    const char *backend;      /* where libtria scores; NULL = cpu */
    bool stage;               /* as in host_params */
    const char *cache_type_k; /* this and the next two as in engine_params */
    int32_t n_sequences;
    bool shared_cells;
    int32_t graph_tokens;
    ggml_abort_callback abort;
    void *abort_context;
} eval_options;

typedef struct eval_result {
    /* perplexity */
    double perplexity; /* 0: not run */
    int32_t ppl_budget;
    int32_t cells;       /* KV cells the engine had */
    int32_t peak_cells;  /* of them in use at once; also of passkey trials with a bounded prefill */
    int32_t n_evictions; /* likewise, of one trial */
    double tokens_per_second;
    double tria_share; /* of the time */
    /* attention */
    double attention_kept; /* share of what later tokens pay to rows that could be evicted; 0: not run */
    /* passkey */
    int32_t trials;
    int32_t right;
    int32_t passkey_budget;
    int64_t needle_rows; /* of all trials together */
    int64_t needle_rows_kept;
    uint8_t *answers; /* [trials] 1 where right; owned */
} eval_result;

/* All fill in their part of results[n_configs]. Errors as elsewhere. */
tria_status eval_perplexity(const eval_options *options, const eval_config *configs, int32_t n_configs,
                            eval_result *results, tria_error *error);
tria_status eval_passkey(const eval_options *options, const eval_config *configs, int32_t n_configs,
                         eval_result *results, tria_error *error);

tria_status eval_attention(const eval_options *options, const eval_config *configs, int32_t n_configs,
                           eval_result *results, tria_error *error);

/* Engine, observer, model description, calibration and device, opened together. */
typedef struct eval_setup {
    engine engine;
    struct observer *observer;
    capture queries; /* eval_open(): the observer's callback is wrapped in this one's */
    tria_model *model;
    tria_calibration *calibration; /* NULL without a path */
    tria_backends *backends;
    tria_device *device; /* NULL: the CPU */
} eval_setup;
tria_status eval_open(const eval_options *options, int32_t cells, eval_setup *setup, tria_error *error);
/* With another callback, which must call the observer's; *seen is set before it is called first. */
tria_status eval_open_with(const eval_options *options, int32_t cells,
                           ggml_backend_sched_eval_callback callback, void *context, struct observer **seen,
                           eval_setup *setup, tria_error *error);
void eval_close(eval_setup *setup);

/* A configuration's share of n_tokens, in rows. */
int32_t eval_budget(const eval_config *config, int32_t n_tokens);
/* A configuration whose budget is a share of n_tokens; a bounded prefill is left to the caller. */
host_params eval_host_params(const eval_options *options, const eval_config *config, eval_setup *setup,
                             int32_t n_tokens);

#endif

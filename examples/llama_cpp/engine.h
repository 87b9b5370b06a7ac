/*
 * engine.h - llama.cpp's side of the example: load, tokenize, decode, read logits. Nothing of libtria.
 */
#ifndef EXAMPLE_ENGINE_H
#define EXAMPLE_ENGINE_H

#include "tria/base.h"

#include <llama.h>
#include <stdbool.h>
#include <stdint.h>

/* Fills `error` and returns `code`; the programs use libtria's error struct for their own errors too. */
tria_status fail(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct engine_params {
    const char *model_path;
    int32_t cells;       /* KV cells per sequence; llama.cpp rounds them up to a multiple of 256 */
    int32_t n_sequences; /* 0 = 1 */
    bool shared_cells;   /* all sequences in one pool of cells, so that they can share some; else each has
                            cells of its own */
    const char *cache_type_k; /* "q8_0" and so on, as llama.cpp calls its types; NULL = f16 */
    int32_t n_threads;        /* 0 = all processors */
    int32_t graph_tokens;     /* most tokens of one graph; 0 = a batch */
    ggml_backend_sched_eval_callback callback; /* NULL, or called for every node of every graph */
    void *callback_context;
    ggml_abort_callback abort; /* NULL, or asked all the time: true aborts the engine_decode() that runs */
    void *abort_context;
} engine_params;

typedef struct engine {
    struct llama_model *model;
    struct llama_context *context;
    const struct llama_vocab *vocab;
    llama_memory_t memory;
    int32_t n_vocab;
    int32_t n_sequences;
    bool shared_cells;
    int32_t cells;     /* per sequence, as llama.cpp allocated them */
    int32_t all_cells; /* of all sequences */
    int32_t batch;     /* most tokens of one engine_decode() */
    struct llama_batch storage;
} engine;

tria_status engine_open(engine *e, const engine_params *params, tria_error *error);
void engine_close(engine *e);

/* All of a text's tokens; *tokens is malloc'ed. With `special`, markers such as <|im_start|> are tokens and
 * the model's own first token is added where it wants one. */
tria_status engine_tokenize(const engine *e, const char *text, bool special, llama_token **tokens,
                            int32_t *n_tokens, tria_error *error);
/* The same of a file, without anything special. */
tria_status engine_tokenize_file(const engine *e, const char *path, llama_token **tokens, int32_t *n_tokens,
                                 tria_error *error);

/* Runs n <= e->batch tokens of a sequence after those in the cache, at the positions that follow. After an
 * error, CANCELLED from the abort callback included, some of them may be in the cache. */
tria_status engine_decode(engine *e, llama_seq_id sequence, const llama_token *tokens, int32_t n,
                          tria_error *error);

/* Logits of the last token. */
const float *engine_logits(const engine *e);
llama_token engine_argmax(const engine *e);
/* -log p(token) under the last token's logits. */
double engine_surprise(const engine *e, llama_token token);

double seconds_now(void);

#endif

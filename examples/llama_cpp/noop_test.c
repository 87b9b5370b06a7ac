/*
 * noop_test.c - below the trigger libtria changes nothing.
 *
 * Generates greedily twice from the same prompt: with llama.cpp alone, no callback, and with libtria
 * attached. Logits must agree to the bit at every step until the first eviction. After it they must
 * differ, or nothing was evicted and the test tested nothing.
 */
#include "args.h"
#include "eval.h"
#include "host.h"
#include "observer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prompt[] =
    "The ship left the harbour at dawn. By noon the coast was out of sight, and the captain";

typedef struct run {
    float *logits; /* [n_steps][n_vocab] */
    llama_token *tokens;
    size_t n_vocab;
    int32_t first_eviction; /* step after which it happened, -1: none */
} run;

static void record(const engine *e, run *r, int32_t step)
{
    memcpy(r->logits + (size_t)step * (size_t)e->n_vocab, engine_logits(e),
           (size_t)e->n_vocab * sizeof(float));
    r->tokens[step] = engine_argmax(e);
}

static void allocate(run *r, int32_t n_steps, int32_t n_vocab)
{
    r->n_vocab = (size_t)n_vocab;
    r->first_eviction = -1;
    r->logits = malloc((size_t)n_steps * (size_t)n_vocab * sizeof(float));
    r->tokens = malloc((size_t)n_steps * sizeof(*r->tokens));
    if (r->logits == NULL || r->tokens == NULL) {
        die(EXIT_FAILED, "out of memory");
    }
}

static void run_alone(const eval_options *options, int32_t cells, int32_t n_steps, run *r)
{
    tria_error error;
    engine e;
    const engine_params params = {
        .model_path = options->model_path, .cells = cells, .n_threads = options->n_threads};
    llama_token *tokens = NULL;
    int32_t n = 0;
    if (engine_open(&e, &params, &error) != TRIA_OK ||
        engine_tokenize(&e, prompt, true, &tokens, &n, &error) != TRIA_OK ||
        engine_decode(&e, 0, tokens, n, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    allocate(r, n_steps, e.n_vocab);
    for (int32_t step = 0; step < n_steps; step++) {
        record(&e, r, step);
        if (engine_decode(&e, 0, &r->tokens[step], 1, &error) != TRIA_OK) {
            die(EXIT_FAILED, "%s", error.message);
        }
    }
    free(tokens);
    engine_close(&e);
}

/* The same tokens as before, so that steps after the eviction can be compared as well. */
static void run_with_tria(const eval_options *options, int32_t cells, int32_t n_steps, const run *alone,
                          run *r)
{
    tria_error error;
    eval_setup setup;
    llama_token *tokens = NULL;
    int32_t n = 0;
    host *h = NULL;
    if (eval_open(options, cells, &setup, &error) != TRIA_OK ||
        engine_tokenize(&setup.engine, prompt, true, &tokens, &n, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    const host_params params = {
        .policy = HOST_POLICY_TRIA,
        .model = setup.model,
        .calibration = setup.calibration,
        .budget = 48,
        .interval = 32,
        .n_recent = 16,
        .n_sink = 4,
        .mode = TRIA_MODE_UNION,
        .n_threads = options->n_threads,
    };
    if (host_create(&setup.engine, setup.observer, &params, &h, &error) != TRIA_OK ||
        host_prompt(h, tokens, n, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    allocate(r, n_steps, setup.engine.n_vocab);
    for (int32_t step = 0; step < n_steps; step++) {
        record(&setup.engine, r, step);
        if (host_decode(h, alone->tokens[step], &error) != TRIA_OK) {
            die(EXIT_FAILED, "%s", error.message);
        }
        host_stats stats;
        host_get_stats(h, &stats);
        if (stats.n_evictions > 0 && r->first_eviction < 0) {
            r->first_eviction = step;
        }
    }
    free(tokens);
    host_destroy(h);
    eval_close(&setup);
}

int main(int argc, char **argv)
{
    eval_options options = {.n_threads = 2};
    int32_t n_steps = 96;
    const arg table[] = {
        {"--model", ARG_TEXT, &options.model_path, 0, "GGUF file"},
        {"--calibration", ARG_TEXT, &options.calibration_path, 0, "its calibration"},
        {"--steps", ARG_INT, &n_steps, 64, "tokens to generate"},
        {"--threads", ARG_INT, &options.n_threads, 1, "threads"},
        {0},
    };
    args_parse(argc, argv, "below the trigger, logits with and without libtria are bit-identical", table);
    if (options.model_path == NULL || options.calibration_path == NULL) {
        die(EXIT_USAGE, "--model and --calibration are needed");
    }
    run alone;
    run with;
    run_alone(&options, 256, n_steps, &alone);
    run_with_tria(&options, 256, n_steps, &alone, &with);

    const size_t n_vocab = alone.n_vocab;
    int32_t same = 0;
    while (same < n_steps && memcmp(alone.logits + (size_t)same * n_vocab,
                                    with.logits + (size_t)same * n_vocab, n_vocab * sizeof(float)) == 0) {
        same++;
    }
    printf("%d steps with bit-identical logits, first eviction after step %d\n", same,
           with.first_eviction + 1);
    free(alone.logits);
    free(alone.tokens);
    free(with.logits);
    free(with.tokens);
    /* The eviction after step k comes after the logits of step k + 1 were computed. */
    if (with.first_eviction < 0 || same < with.first_eviction + 2) {
        die(EXIT_FAILED, "logits differ before anything was evicted");
    }
    if (same > with.first_eviction + 2) {
        die(EXIT_FAILED, "logits do not differ after an eviction");
    }
    return 0;
}

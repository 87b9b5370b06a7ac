/*
 * perplexity.c - a text decoded token by token, as in generation, with the engine's cache no larger than
 * each configuration needs. Only tokens that every configuration predicts after its first eviction count.
 */
#include "eval.h"
#include "host.h"
#include "observer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static tria_status run(const eval_options *options, const eval_config *config, llama_token *tokens,
                       int32_t count_from, host *h, const engine *e, eval_result *result, tria_error *error)
{
    double surprise = 0;
    int64_t counted = 0;
    const double begin = seconds_now();
    for (int32_t i = 0; i + 1 < options->ppl_tokens; i++) {
        const tria_status status = host_decode(h, tokens[i], error);
        if (status != TRIA_OK) {
            return status;
        }
        if (i >= count_from) {
            surprise += engine_surprise(e, tokens[i + 1]);
            counted++;
        }
        if (i % 64 == 0) {
            fprintf(stderr, "\rperplexity, %s: %d of %d tokens, %.0f tokens/s ", config->label, i,
                    options->ppl_tokens, (i + 1) / (seconds_now() - begin));
        }
    }
    host_stats stats;
    host_get_stats(h, &stats);
    result->perplexity = exp(surprise / (double)counted);
    result->cells = e->cells;
    result->peak_cells = stats.peak_rows;
    result->n_evictions = stats.n_evictions;
    result->tokens_per_second = (double)stats.decoded / stats.total_seconds;
    result->tria_share = config->policy == HOST_POLICY_NONE ? 0 : stats.tria_seconds / stats.total_seconds;
    fprintf(stderr, "\rperplexity, %s: %.3f over %lld tokens, %d evictions, %d of %d cells used at most\n",
            config->label, result->perplexity, (long long)counted, stats.n_evictions, stats.peak_rows,
            e->cells);
    return TRIA_OK;
}

/* A context of its own: the cells are part of the configuration. */
static tria_status run_config(const eval_options *options, const eval_config *config, int32_t count_from,
                              eval_result *result, tria_error *error)
{
    result->ppl_budget = eval_budget(config, options->ppl_tokens);
    const int32_t cells =
        config->policy == HOST_POLICY_NONE ? options->ppl_tokens : result->ppl_budget + options->interval;
    eval_setup setup;
    tria_status status = eval_open(options, cells, &setup, error);
    if (status != TRIA_OK) {
        return status;
    }
    llama_token *tokens = NULL;
    int32_t n_tokens = 0;
    status = engine_tokenize_file(&setup.engine, options->text_path, &tokens, &n_tokens, error);
    if (status == TRIA_OK && n_tokens < options->ppl_skip + options->ppl_tokens) {
        status = fail(error, TRIA_E_ARGUMENT, "'%s' has %d tokens, %d are needed", options->text_path,
                      n_tokens, options->ppl_skip + options->ppl_tokens);
    }
    host *h = NULL;
    if (status == TRIA_OK) {
        const host_params params = eval_host_params(options, config, &setup, options->ppl_tokens);
        status = host_create(&setup.engine, setup.observer, &params, &h, error);
    }
    if (status == TRIA_OK) {
        status =
            run(options, config, tokens + options->ppl_skip, count_from, h, &setup.engine, result, error);
    }
    host_destroy(h);
    free(tokens);
    eval_close(&setup);
    return status;
}

tria_status eval_perplexity(const eval_options *options, const eval_config *configs, int32_t n_configs,
                            eval_result *results, tria_error *error)
{
    int32_t count_from = 0;
    for (int32_t i = 0; i < n_configs; i++) {
        const int32_t first = eval_budget(&configs[i], options->ppl_tokens) + options->interval;
        if (configs[i].policy != HOST_POLICY_NONE && first > count_from) {
            count_from = first;
        }
    }
    if (count_from + 1 >= options->ppl_tokens) {
        return fail(error, TRIA_E_ARGUMENT, "%d tokens are too few: the last eviction policy starts at %d",
                    options->ppl_tokens, count_from);
    }
    for (int32_t i = 0; i < n_configs; i++) {
        const tria_status status = run_config(options, &configs[i], count_from, &results[i], error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    return TRIA_OK;
}

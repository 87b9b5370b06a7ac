/*
 * prefill_test.c - a prompt four times the cache: filled in block by block the rows never exceed the bound,
 * the same rows stay every time, and other ones where the conversation's own queries count.
 */
#include "test_support.h"

#include <stdio.h>
#include <stdlib.h>

enum { BUDGET = 96, INTERVAL = 24, PROMPT = 4 * (BUDGET + INTERVAL) };

static void fill(eval_setup *setup, const llama_token *tokens, double own_weight, int32_t kept[BUDGET])
{
    tria_error error;
    host *h = NULL;
    host_params params = test_params(setup, 0, BUDGET, INTERVAL);
    params.bound_prefill = true;
    params.own_weight = own_weight;
    params.capture = &setup->queries;
    OK(host_create(&setup->engine, setup->observer, &params, &h, &error));
    OK(host_reset(h, 0, &error));
    OK(host_prompt(h, tokens, PROMPT, &error));
    test_consistent(h);
    host_stats stats;
    host_get_stats(h, &stats);
    CHECK(stats.t == PROMPT && stats.rows == BUDGET && stats.peak_rows == BUDGET + INTERVAL);
    CHECK(stats.n_evictions == (PROMPT - BUDGET) / INTERVAL);
    int32_t n = 0;
    const int32_t *positions = host_positions(h, &n);
    memcpy(kept, positions, sizeof(int32_t) * BUDGET);
    CHECK((setup->queries.accumulator != NULL) == (own_weight > 0));
    host_destroy(h);
    CHECK(setup->queries.accumulator == NULL);
}

/* Such a prompt cannot be kept whole, nor put into that cache without the bound. */
static void check_refusals(eval_setup *setup, const llama_token *tokens)
{
    tria_error error;
    host *h = NULL;
    host_params params = test_params(setup, 0, BUDGET, INTERVAL);
    OK(host_create(&setup->engine, setup->observer, &params, &h, &error));
    REFUSED(TRIA_E_CAPACITY, "prompt", host_prompt(h, tokens, PROMPT, &error));
    host_destroy(h);
    params.bound_prefill = true;
    params.protect_prefill = true;
    OK(host_create(&setup->engine, setup->observer, &params, &h, &error));
    REFUSED(TRIA_E_CAPACITY, "prompt", host_prompt(h, tokens, PROMPT, &error));
    host_destroy(h);
}

int main(int argc, char **argv)
{
    eval_options options = {0};
    test_parse(argc, argv, "a prompt four times the cache is filled in block by block", &options);
    tria_error error;
    eval_setup setup;
    OK(eval_open(&options, BUDGET + INTERVAL, &setup, &error));
    llama_token *tokens = NULL;
    int32_t n_tokens = 0;
    OK(engine_tokenize_file(&setup.engine, options.text_path, &tokens, &n_tokens, &error));
    CHECK(n_tokens >= PROMPT && setup.engine.cells < PROMPT);

    int32_t kept[3][BUDGET];
    fill(&setup, tokens, 0, kept[0]);
    fill(&setup, tokens, 0, kept[1]);
    CHECK(memcmp(kept[0], kept[1], sizeof(kept[0])) == 0);
    fill(&setup, tokens, 0.5, kept[1]);
    fill(&setup, tokens, 0.5, kept[2]);
    CHECK(memcmp(kept[1], kept[2], sizeof(kept[0])) == 0);
    CHECK(memcmp(kept[0], kept[1], sizeof(kept[0])) != 0);
    check_refusals(&setup, tokens);
    printf("%d tokens through %d rows, %d kept\n", PROMPT, BUDGET + INTERVAL, BUDGET);
    free(tokens);
    eval_close(&setup);
    return 0;
}

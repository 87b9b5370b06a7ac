/*
 * cancel_test.c - requests that end early: aborted inside a prompt and inside a generated token, drafts
 * that are rejected, tokens taken back. Afterwards the sequence must go on, to the bit, as if nothing had
 * happened.
 */
#include "test_support.h"

#include <stdio.h>
#include <stdlib.h>

/* A prompt of two batches of 512 tokens, the first of four graphs. */
enum { CELLS = 1024, BUDGET = 160, INTERVAL = 64, PROMPT = 530, GRAPHS = 4 };

/* Aborts when llama.cpp has asked that often, once. */
typedef struct abort_rule {
    int32_t countdown; /* 0: never */
    int32_t asked;
} abort_rule;

static bool should_abort(void *context)
{
    abort_rule *rule = context;
    rule->asked++;
    return rule->countdown > 0 && --rule->countdown == 0;
}

typedef struct fixture {
    eval_setup setup;
    engine *engine;
    host *host;
    abort_rule rule;
    llama_token *tokens; /* PROMPT and what follows */
    int32_t n_tokens;
    float *logits; /* [TEST_STEPS + 1][n_vocab] of the undisturbed run */
    test_run run;  /* the undisturbed run */
} fixture;

static void note_logits(fixture *f, int32_t step)
{
    const size_t n = (size_t)f->engine->n_vocab;
    memcpy(f->logits + (size_t)step * n, engine_logits(f->engine), n * sizeof(float));
}

/* After the prompt and `step` tokens. */
static void check_logits(const fixture *f, int32_t step)
{
    const size_t n = (size_t)f->engine->n_vocab;
    CHECK(memcmp(f->logits + (size_t)step * n, engine_logits(f->engine), n * sizeof(float)) == 0);
}

static void open_fixture(fixture *f, eval_options *options)
{
    tria_error error;
    options->abort = should_abort;
    options->abort_context = &f->rule;
    options->graph_tokens = 512 / GRAPHS;
    OK(eval_open(options, CELLS, &f->setup, &error));
    f->engine = &f->setup.engine;
    const host_params params = test_params(&f->setup, 0, BUDGET, INTERVAL);
    OK(host_create(f->engine, f->setup.observer, &params, &f->host, &error));
    OK(engine_tokenize_file(f->engine, options->text_path, &f->tokens, &f->n_tokens, &error));
    CHECK(f->n_tokens >= PROMPT + TEST_STEPS);
    f->logits = malloc((TEST_STEPS + 1) * (size_t)f->engine->n_vocab * sizeof(float));
    CHECK(f->logits != NULL);
    CHECK(f->engine->batch == 512);
}

static void close_fixture(fixture *f)
{
    host_destroy(f->host);
    free(f->tokens);
    free(f->logits);
    eval_close(&f->setup);
}

static const llama_token *after_prompt(const fixture *f)
{
    return f->tokens + PROMPT;
}

/* Tokens `from` ... TEST_STEPS - 1 after the prompt; logits and evictions as in the undisturbed run. */
static void finish_run(fixture *f, int32_t from, test_run *run)
{
    for (int32_t step = from; step < TEST_STEPS; step++) {
        check_logits(f, step);
        test_decode(f->host, after_prompt(f)[step], run);
        test_consistent(f->host);
    }
    check_logits(f, TEST_STEPS);
    test_same_run(run, &f->run);
}

static void undisturbed_run(fixture *f)
{
    tria_error error;
    OK(host_prompt(f->host, f->tokens, PROMPT, &error));
    CHECK(f->host->rows == BUDGET && f->rule.asked > 0);
    for (int32_t step = 0; step < TEST_STEPS; step++) {
        note_logits(f, step);
        test_decode(f->host, after_prompt(f)[step], &f->run);
    }
    note_logits(f, TEST_STEPS);
    CHECK(f->run.n_evictions == 1);
}

/* In the first and in the second batch of a prompt. llama.cpp keeps the tokens of the graphs that were
 * complete; libtria was told of whole batches only. */
static void test_abort_in_prompt(fixture *f)
{
    tria_error error;
    test_run run = {0};
    const int32_t batch = f->engine->batch;
    OK(host_reset(f->host, 0, &error));
    f->rule = (abort_rule){0};
    OK(host_prompt_only(f->host, f->tokens, batch, &error));
    const int32_t per_graph = f->rule.asked / GRAPHS;
    for (int32_t graph = 0; graph < GRAPHS; graph++) {
        OK(host_reset(f->host, 0, &error));
        f->rule = (abort_rule){.countdown = graph * per_graph + per_graph / 2};
        REFUSED(TRIA_E_CANCELLED, "cancelled", host_prompt(f->host, f->tokens, PROMPT, &error));
        test_consistent(f->host);
        CHECK(f->host->rows == 0 && f->host->stats.t == 0);
    }
    f->rule = (abort_rule){.countdown = GRAPHS * per_graph + per_graph / 2};
    REFUSED(TRIA_E_CANCELLED, "cancelled", host_prompt(f->host, f->tokens, PROMPT, &error));
    test_consistent(f->host);
    CHECK(f->host->rows == batch && f->host->stats.t == batch);

    /* What was written is the prompt so far; it goes on. */
    OK(host_prompt(f->host, f->tokens + batch, PROMPT - batch, &error));
    finish_run(f, 0, &run);
}

static void test_abort_in_generation(fixture *f)
{
    tria_error error;
    test_run run = {0};
    const int32_t stop = 20;
    OK(host_reset(f->host, 0, &error));
    OK(host_prompt(f->host, f->tokens, PROMPT, &error));
    for (int32_t step = 0; step < stop; step++) {
        test_decode(f->host, after_prompt(f)[step], &run);
    }
    f->rule = (abort_rule){.countdown = 200};
    REFUSED(TRIA_E_CANCELLED, "cancelled", host_decode(f->host, f->tokens[0], &error));
    test_consistent(f->host);
    CHECK(f->host->stats.t == PROMPT + stop && f->host->rows == BUDGET + stop);

    /* The request is given up altogether: its tokens are taken back, then they come again. */
    REFUSED(TRIA_E_STATE, "evicted", host_rollback(f->host, stop + 400, &error));
    REFUSED(TRIA_E_ARGUMENT, "not in", host_rollback(f->host, PROMPT + stop + 1, &error));
    REFUSED(TRIA_E_ARGUMENT, "not in", host_trim(f->host, PROMPT + stop + 1, &error));
    test_consistent(f->host);
    OK(host_rollback(f->host, stop, &error));
    test_consistent(f->host);
    CHECK(f->host->stats.t == PROMPT && f->host->rows == BUDGET);
    run = (test_run){0};
    for (int32_t step = 0; step < stop; step++) {
        test_decode(f->host, after_prompt(f)[step], &run);
    }
    finish_run(f, stop, &run);
}

/* Drafts are written, not evicted, and rejected ones leave no trace. */
static void test_drafts(fixture *f)
{
    tria_error error;
    test_run run = {0};
    llama_token wrong[9];
    OK(host_reset(f->host, 0, &error));
    OK(host_prompt(f->host, f->tokens, PROMPT, &error));
    for (int32_t i = 0; i < 9; i++) {
        wrong[i] = f->tokens[i];
    }
    for (int32_t step = 0; step < TEST_STEPS; step++) {
        if (step % 16 == 15) {
            const int32_t rows = f->host->rows;
            f->rule = (abort_rule){.countdown = 50};
            REFUSED(TRIA_E_CANCELLED, "cancelled", host_draft(f->host, wrong, 5, &error));
            test_consistent(f->host);
            OK(host_draft(f->host, wrong, 5, &error));
            test_consistent(f->host);
            CHECK(f->host->in_flight == 5 && f->host->rows == rows + 5);
            REFUSED(TRIA_E_STATE, "host_confirm", host_decode(f->host, wrong[0], &error));
            REFUSED(TRIA_E_ARGUMENT, "in flight", host_confirm(f->host, 6, &error));
            OK(host_confirm(f->host, 0, &error));
            test_consistent(f->host);
            CHECK(f->host->rows == rows);
        }
        test_decode(f->host, after_prompt(f)[step], &run);
        if (step % 16 != 15) {
            check_logits(f, step + 1);
        }
    }
    check_logits(f, TEST_STEPS);
    test_same_run(&run, &f->run);

    /* A draft that crosses the trigger: evicted once, after it was confirmed. */
    REFUSED(TRIA_E_ARGUMENT, "at most 8", host_draft(f->host, wrong, 9, &error));
    while (f->host->rows < BUDGET + INTERVAL - 2) {
        OK(host_decode(f->host, wrong[0], &error));
    }
    OK(host_draft(f->host, wrong, 8, &error));
    CHECK(f->host->rows == BUDGET + INTERVAL + 6);
    OK(host_confirm(f->host, 5, &error));
    CHECK(f->host->rows == BUDGET);
    test_consistent(f->host);
}

/* Cuts below what was evicted: only where a row is left to go on from. */
static void test_trim(fixture *f)
{
    tria_error error;
    int32_t n = 0;
    const int32_t *positions = host_positions(f->host, &n);
    int32_t row = n - 1;
    while (row > 0 && positions[row - 1] == positions[row] - 1) {
        row--; /* the row behind the last gap */
    }
    const int32_t behind_gap = positions[row];
    const int32_t before_gap = positions[row - 1];
    CHECK(row > 4 && before_gap + 1 < behind_gap);
    REFUSED(TRIA_E_STATE, "right behind its last row", host_trim(f->host, behind_gap, &error));
    test_consistent(f->host);
    OK(host_trim(f->host, before_gap + 1, &error));
    test_consistent(f->host);
    CHECK(f->host->rows == row && f->host->stats.t == before_gap + 1);
    OK(host_decode(f->host, f->tokens[0], &error));
    test_consistent(f->host);
}

int main(int argc, char **argv)
{
    eval_options options = {0};
    static fixture f;
    test_parse(argc, argv, "cancelled requests, rejected drafts, tokens taken back", &options);
    open_fixture(&f, &options);
    undisturbed_run(&f);
    test_abort_in_prompt(&f);
    printf("aborted in a prompt: goes on to the bit\n");
    test_abort_in_generation(&f);
    printf("aborted in a token, request taken back: goes on to the bit\n");
    test_drafts(&f);
    test_trim(&f);
    printf("rejected drafts leave no trace; cuts only where a row is left\n");
    close_fixture(&f);
    return 0;
}

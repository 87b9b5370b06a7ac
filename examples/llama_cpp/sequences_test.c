/*
 * sequences_test.c - several sequences in one llama_context, copies of a sequence, context shifts.
 */
#include "test_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const prompts[2] = {
    "The ship left the harbour at dawn. By noon the coast was out of sight, and the captain",
    "A recipe for bread: take flour, water, salt and a little yeast, and then",
};

enum { BUDGET = 48, INTERVAL = 16 };

typedef struct prompt_tokens {
    llama_token *tokens;
    int32_t n;
} prompt_tokens;

static prompt_tokens tokenize(const engine *e, const char *text)
{
    tria_error error;
    prompt_tokens p = {NULL, 0};
    OK(engine_tokenize(e, text, true, &p.tokens, &p.n, &error));
    return p;
}

static host *create(eval_setup *setup, llama_seq_id sequence_id)
{
    tria_error error;
    host *h = NULL;
    const host_params params = test_params(setup, sequence_id, BUDGET, INTERVAL);
    OK(host_create(&setup->engine, setup->observer, &params, &h, &error));
    return h;
}

static host *create_and_prompt(eval_setup *setup, llama_seq_id sequence_id, const char *text)
{
    tria_error error;
    host *h = create(setup, sequence_id);
    prompt_tokens p = tokenize(&setup->engine, text);
    OK(host_prompt(h, p.tokens, p.n, &error));
    free(p.tokens);
    return h;
}

/* ---- two sequences at a time ---- */

static void run_alone(const eval_options *options, const char *text, test_run *run)
{
    tria_error error;
    eval_setup setup;
    OK(eval_open(options, 256, &setup, &error));
    host *h = create_and_prompt(&setup, 0, text);
    while (run->n_tokens < TEST_STEPS) {
        test_decode(h, engine_argmax(&setup.engine), run);
    }
    CHECK(run->n_evictions >= 3);
    host_destroy(h);
    eval_close(&setup);
}

/* Feeds two sequences in turns with the tokens that each chose alone. Returns how often it would now choose
 * another one. */
static int32_t run_interleaved(const eval_options *options, const test_run alone[2], test_run runs[2])
{
    tria_error error;
    eval_setup setup;
    host *hosts[2];
    int32_t other_choices = 0;
    OK(eval_open(options, 256, &setup, &error));
    for (int32_t i = 0; i < 2; i++) {
        hosts[i] = create_and_prompt(&setup, i, prompts[i]);
        other_choices += engine_argmax(&setup.engine) != alone[i].tokens[0];
    }
    for (int32_t step = 0; step < TEST_STEPS; step++) {
        for (int32_t i = 0; i < 2; i++) {
            test_decode(hosts[i], alone[i].tokens[step], &runs[i]);
            test_consistent(hosts[i]);
            other_choices +=
                step + 1 < TEST_STEPS && engine_argmax(&setup.engine) != alone[i].tokens[step + 1];
        }
    }
    for (int32_t i = 0; i < 2; i++) {
        host_destroy(hosts[i]);
    }
    eval_close(&setup);
    return other_choices;
}

/* ---- a copy that shares its cells ---- */

static const uint8_t *key_of(const host *h, int32_t row)
{
    const struct ggml_tensor *cache = h->observer->cache[h->observer->first_layer];
    return (const uint8_t *)cache->data + (size_t)h->cells[row] * cache->nb[1];
}

static size_t key_bytes(const host *h)
{
    return h->observer->cache[h->observer->first_layer]->nb[1];
}

static uint8_t *copy_keys(const host *h)
{
    uint8_t *keys = malloc((size_t)h->rows * key_bytes(h) + 1);
    CHECK(keys != NULL);
    for (int32_t row = 0; row < h->rows; row++) {
        memcpy(keys + (size_t)row * key_bytes(h), key_of(h, row), key_bytes(h));
    }
    return keys;
}

/* Two sequences may hold the same cell for the same position only, from before the fork. */
static int32_t count_shared_cells(host *a, host *b, int32_t fork_t)
{
    int32_t n_a = 0;
    int32_t n_b = 0;
    int32_t shared = 0;
    const int32_t *positions_a = host_positions(a, &n_a);
    const int32_t *positions_b = host_positions(b, &n_b);
    for (int32_t i = 0; i < n_a; i++) {
        for (int32_t j = 0; j < n_b; j++) {
            if (a->cells[i] == b->cells[j]) {
                CHECK(positions_a[i] == positions_b[j] && positions_a[i] < fork_t);
                shared++;
            }
        }
    }
    return shared;
}

static void run_on(host *h, const test_run *alone, test_run *run)
{
    while (run->n_tokens < TEST_STEPS) {
        test_decode(h, alone->tokens[run->n_tokens], run);
        test_consistent(h);
    }
}

static void test_fork(const eval_options *options, const test_run *alone)
{
    tria_error error;
    eval_setup setup;
    test_run runs[2] = {0};
    OK(eval_open(options, 256, &setup, &error));
    engine *e = &setup.engine;
    host *a = create_and_prompt(&setup, 0, prompts[0]);
    host *b = NULL;
    while (a->rows < 40) {
        test_decode(a, alone->tokens[runs[0].n_tokens], &runs[0]);
    }
    OK(host_fork(a, 1, &b, &error));
    test_consistent(b);
    CHECK(count_shared_cells(a, b, 40) == 40);
    runs[1] = runs[0];

    /* One evicts and writes where it is free: the other's rows stay as they are. */
    uint8_t *before = copy_keys(b);
    run_on(a, alone, &runs[0]);
    uint8_t *after = copy_keys(b);
    CHECK(b->rows == 40 && memcmp(before, after, 40 * key_bytes(b)) == 0);
    free(before);
    free(after);
    CHECK(count_shared_cells(a, b, 40) < 40);
    test_consistent(b);

    /* Both go on as the original would have done alone. */
    run_on(b, alone, &runs[1]);
    count_shared_cells(a, b, 40);
    test_similar_run(&runs[0], alone);
    test_similar_run(&runs[1], alone);

    REFUSED(TRIA_E_UNSUPPORTED, "shared", host_shift(a, 5, 10, &error));
    REFUSED(TRIA_E_STATE, "in use", host_fork(a, 1, &b, &error));
    REFUSED(TRIA_E_ARGUMENT, "sequence 2", host_fork(a, 2, &b, &error));
    test_consistent(a);

    /* What only one of them held is free again once it lets go. */
    OK(host_reset(b, 0, &error));
    test_consistent(a);
    OK(host_reset(a, 0, &error));
    CHECK(llama_memory_seq_pos_max(e->memory, 0) == -1 && llama_memory_seq_pos_max(e->memory, 1) == -1);
    host_destroy(a);
    host_destroy(b);
    eval_close(&setup);
}

/* ---- context shift ---- */

/* Largest difference between two first-layer keys, relative to the largest element. */
static double key_difference(const host *a, int32_t row_a, const host *b, int32_t row_b)
{
    const struct ggml_tensor *cache = a->observer->cache[a->observer->first_layer];
    const ggml_fp16_t *x = (const ggml_fp16_t *)key_of(a, row_a);
    const ggml_fp16_t *y = (const ggml_fp16_t *)key_of(b, row_b);
    double difference = 0;
    double largest = 0;
    CHECK(cache->type == GGML_TYPE_F16);
    for (int64_t i = 0; i < cache->ne[0]; i++) {
        const double u = (double)ggml_fp16_to_fp32(x[i]);
        const double v = (double)ggml_fp16_to_fp32(y[i]);
        difference = fmax(difference, fabs(u - v));
        largest = fmax(largest, fabs(v));
    }
    return difference / largest;
}

/* A first-layer key depends on its token and position only: after the shift the keys must be those of the
 * shorter text, in the rows and cells that the host believes they are in. */
static void test_shifted_keys(host *a, host *b, const llama_token *tokens, int32_t begin, int32_t end)
{
    tria_error error;
    llama_token shorter[64];
    const int32_t t = a->rows;
    OK(host_shift(a, begin, end, &error));
    OK(host_decode(a, tokens[0], &error)); /* llama.cpp rotates now */
    test_consistent(a);
    CHECK(a->stats.t == t - (end - begin) + 1);
    memcpy(shorter, tokens, (size_t)begin * sizeof(*tokens));
    memcpy(shorter + begin, tokens + end, (size_t)(t - end) * sizeof(*tokens));
    shorter[t - (end - begin)] = tokens[0];
    OK(host_prompt(b, shorter, a->rows, &error));
    for (int32_t row = 0; row < a->rows; row++) {
        CHECK(key_difference(a, row, b, row) < 0.01);
        CHECK(row == 0 || key_difference(a, row, b, row - 1) > 0.05); /* what a wrong row looks like */
    }
}

/* Where rows were evicted, the others move by as much all the same. */
static void test_shift_with_holes(host *h, int32_t begin, int32_t end)
{
    tria_error error;
    int32_t n = 0;
    int32_t expected[TEST_ROWS];
    int32_t n_expected = 0;
    const int32_t *positions = host_positions(h, &n);
    CHECK(n < h->stats.t && positions[n - 1] == h->stats.t - 1);
    for (int32_t i = 0; i < n; i++) {
        if (positions[i] < begin || positions[i] >= end) {
            expected[n_expected++] = positions[i] - (positions[i] < begin ? 0 : end - begin);
        }
    }
    CHECK(n_expected < n);
    OK(host_shift(h, begin, end, &error));
    test_consistent(h);
    positions = host_positions(h, &n);
    CHECK(n == n_expected && memcmp(positions, expected, (size_t)n * sizeof(*expected)) == 0);
}

static void decode_until_eviction(engine *e, host *h)
{
    test_run run = {0};
    const int32_t missing = BUDGET + INTERVAL - h->rows;
    CHECK(missing > 0);
    for (int32_t i = 0; i < missing; i++) {
        CHECK(run.n_evictions == 0);
        test_decode(h, engine_argmax(e), &run);
        test_consistent(h);
    }
    CHECK(run.n_evictions == 1 && h->rows == BUDGET);
}

/* Between the shift and the next decode keys and positions do not agree: nothing may be scored. */
static void test_no_scores_before_rotation(host *h, prompt_tokens p)
{
    tria_error error;
    OK(host_prompt_only(h, p.tokens, p.n, &error));
    CHECK(h->rows > BUDGET + INTERVAL + 8);
    const int32_t n_evictions = h->stats.n_evictions;
    OK(host_shift(h, 1, 3, &error));
    OK(host_evict_if_due(h, &error));
    CHECK(h->stats.n_evictions == n_evictions && h->rows > BUDGET + INTERVAL);
    OK(host_decode(h, p.tokens[0], &error));
    CHECK(h->stats.n_evictions == n_evictions + 1 && h->rows == BUDGET);
    test_consistent(h);
}

static void test_shift(const eval_options *options)
{
    tria_error error;
    eval_setup setup;
    OK(eval_open(options, 256, &setup, &error));
    engine *e = &setup.engine;
    host *a = create(&setup, 0);
    host *b = create(&setup, 1);
    prompt_tokens p = tokenize(
        e, "The ship left the harbour at dawn. By noon the coast was out of sight, and the captain, a tall "
           "man from the north with one grey glove, asked for the charts and the old brass compass.");
    CHECK(p.n >= 32 && p.n < 60);
    OK(host_prompt(a, p.tokens, p.n, &error));
    const int32_t t = (int32_t)a->stats.t;
    REFUSED(TRIA_E_ARGUMENT, "no shift", host_shift(a, -1, 4, &error));
    REFUSED(TRIA_E_ARGUMENT, "no shift", host_shift(a, 4, 4, &error));
    REFUSED(TRIA_E_ARGUMENT, "last row", host_shift(a, 4, t, &error));
    REFUSED(TRIA_E_UNSUPPORTED, "cells of their own", host_fork(a, 1, &b, &error));
    test_consistent(a);
    test_shifted_keys(a, b, p.tokens, 8, 20);
    decode_until_eviction(e, a);
    test_shift_with_holes(a, 10, 30);
    test_no_scores_before_rotation(a, p);
    decode_until_eviction(e, a);

    /* Cut or shifted without the host's knowledge: said at once, nothing is evicted by wrong positions. */
    llama_memory_seq_rm(e->memory, 0, 4, 12);
    llama_memory_seq_add(e->memory, 0, 12, -1, -8);
    REFUSED(TRIA_E_STATE, "without host_trim() or host_shift()", host_decode(a, p.tokens[1], &error));
    OK(host_reset(a, 0, &error));
    OK(host_prompt(a, p.tokens, p.n, &error));
    test_consistent(a);
    free(p.tokens);
    host_destroy(a);
    host_destroy(b);
    eval_close(&setup);
}

int main(int argc, char **argv)
{
    eval_options options = {0};
    test_run alone[2] = {0};
    test_parse(argc, argv, "several sequences in one context, copies, context shifts", &options);
    for (int32_t i = 0; i < 2; i++) {
        run_alone(&options, prompts[i], &alone[i]);
    }
    options.n_sequences = 2;
    test_run own[2] = {0};
    CHECK(run_interleaved(&options, alone, own) == 0);
    test_same_run(&own[0], &alone[0]);
    test_same_run(&own[1], &alone[1]);
    printf(
        "own cells: two sequences choose the tokens and keep the rows of each alone, %d + %d evictions\n",
        own[0].n_evictions, own[1].n_evictions);

    options.shared_cells = true;
    test_run shared[2] = {0};
    const int32_t other_choices = run_interleaved(&options, alone, shared);
    CHECK(other_choices < 2 * TEST_STEPS / 10);
    test_similar_run(&shared[0], &alone[0]);
    test_similar_run(&shared[1], &alone[1]);
    printf("shared cells: they keep those rows, too, and choose another token %d times in %d\n",
           other_choices, 2 * TEST_STEPS);
    test_fork(&options, &alone[0]);
    printf("a fork and its original go on like one that was never forked\n");
    options.shared_cells = false;
    test_shift(&options);
    printf("context shifts: keys, positions and evictions follow\n");
    return 0;
}

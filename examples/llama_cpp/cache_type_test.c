/*
 * cache_type_test.c - a q8_0 K cache ranks the rows of a real prompt as an f16 one does, with and without
 * llama.cpp's Hadamard transform of quantised keys, which the host finds out by itself. Told the wrong
 * thing about the transform, the scores must not agree, or the test could not fail.
 */
#include "test_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 480, KEPT = 240, INTERVAL = 64 };

/* What one cache made of the prompt. */
typedef struct ranking {
    int32_t n_heads;
    float *raw; /* [n_heads][ROWS] */
    bool kept[ROWS];
} ranking;

static void rank(host *h, ranking *r)
{
    tria_error error;
    r->n_heads = tria_plan_n_query_slots(h->plan);
    r->raw = calloc((size_t)r->n_heads * ROWS, sizeof(*r->raw));
    CHECK(r->raw != NULL);
    tria_event event;
    tria_keep keep;
    tria_scores scores;
    tria_batch batch;
    tria_event_init(&event);
    tria_keep_init(&keep);
    tria_scores_init(&scores);
    tria_batch_init(&batch);
    OK(tria_sequence_event(h->sequence, &event, &keep, &error));
    const tria_kv_view view = host_view(h, h->rows);
    event.kv = &view;
    scores.raw = r->raw;
    scores.row_stride = ROWS;
    batch.events = &event;
    batch.n_events = 1;
    OK(tria_plan_select(h->plan, &batch, &scores, &keep, &error));
    CHECK(keep.counts[0] == KEPT);
    for (int32_t i = 0; i < KEPT; i++) {
        r->kept[keep.rows[i]] = true;
    }
}

static host *create(eval_setup *setup)
{
    tria_error error;
    host *h = NULL;
    const host_params params = test_params(setup, 0, KEPT, INTERVAL);
    OK(host_create(&setup->engine, setup->observer, &params, &h, &error));
    return h;
}

/* Fills the prompt in and ranks its rows; `wrong` also does so with the transform denied. */
static void rank_prompt(const eval_options *options, const char *type, int32_t hadamard_size, ranking *r,
                        ranking *wrong)
{
    tria_error error;
    eval_options with_type = *options;
    with_type.cache_type_k = type;
    eval_setup setup;
    OK(eval_open(&with_type, ROWS + INTERVAL, &setup, &error));
    CHECK(setup.observer->hadamard_size == hadamard_size);
    llama_token *tokens = NULL;
    int32_t n_tokens = 0;
    OK(engine_tokenize_file(&setup.engine, options->text_path, &tokens, &n_tokens, &error));
    CHECK(n_tokens > ROWS + 2 * INTERVAL);

    host *h = create(&setup);
    OK(host_prompt_only(h, tokens, ROWS, &error));
    rank(h, r);
    if (wrong != NULL) {
        setup.observer->hadamard_size = 0;
        host *misled = create(&setup);
        OK(host_reset(misled, 0, &error));
        OK(host_prompt_only(misled, tokens, ROWS, &error));
        rank(misled, wrong);
        host_destroy(misled);
        setup.observer->hadamard_size = hadamard_size;
        OK(host_reset(h, 0, &error));
        OK(host_prompt_only(h, tokens, ROWS, &error));
    }
    /* Evicting and going on works as well. */
    OK(host_evict_if_due(h, &error));
    for (int32_t i = 0; i < 2 * INTERVAL; i++) {
        OK(host_decode(h, tokens[ROWS + i], &error));
        test_consistent(h);
    }
    host_stats stats;
    host_get_stats(h, &stats);
    CHECK(stats.n_evictions == 3 && stats.rows == KEPT);
    free(tokens);
    host_destroy(h);
    eval_close(&setup);
}

static double correlation(const float *a, const float *b)
{
    double sum_a = 0;
    double sum_b = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        sum_a += (double)a[i];
        sum_b += (double)b[i];
    }
    double aa = 0;
    double bb = 0;
    double ab = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        const double x = (double)a[i] - sum_a / ROWS;
        const double y = (double)b[i] - sum_b / ROWS;
        aa += x * x;
        bb += y * y;
        ab += x * y;
    }
    return ab / sqrt(aa * bb);
}

/* Mean correlation of the heads' scores; *jaccard of the keep sets. */
static double compare(const char *name, const ranking *a, const ranking *b, double *jaccard)
{
    double sum = 0;
    double lowest = 1;
    for (int32_t head = 0; head < a->n_heads; head++) {
        const double c = correlation(a->raw + (size_t)head * ROWS, b->raw + (size_t)head * ROWS);
        sum += c;
        lowest = fmin(lowest, c);
    }
    int32_t both = 0;
    for (int32_t row = 0; row < ROWS; row++) {
        both += a->kept[row] && b->kept[row];
    }
    *jaccard = (double)both / (2 * KEPT - both);
    printf(
        "%s: correlation of the scores with f16's %.5f (lowest of %d heads %.5f), Jaccard of the keep sets "
        "%.3f\n",
        name, sum / a->n_heads, a->n_heads, lowest, *jaccard);
    return sum / a->n_heads;
}

int main(int argc, char **argv)
{
    eval_options options = {0};
    test_parse(argc, argv, "a q8_0 cache ranks rows as an f16 one does", &options);
    ranking f16 = {0};
    ranking q8_0 = {0};
    ranking plain = {0};
    ranking wrong = {0};
    rank_prompt(&options, "f16", 0, &f16, NULL);
    rank_prompt(&options, "q8_0", 64, &q8_0, &wrong);
    /* llama.cpp reads this when it makes a cache */
    setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
    rank_prompt(&options, "q8_0", 0, &plain, NULL);

    double jaccard = 0;
    CHECK(compare("q8_0", &f16, &q8_0, &jaccard) > 0.99 && jaccard > 0.9);
    CHECK(compare("q8_0, transform off", &f16, &plain, &jaccard) > 0.99 && jaccard > 0.9);
    CHECK(compare("q8_0, transform denied", &f16, &wrong, &jaccard) < 0.9 && jaccard < 0.9);
    free(f16.raw);
    free(q8_0.raw);
    free(plain.raw);
    free(wrong.raw);
    return 0;
}

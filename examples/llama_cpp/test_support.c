/* test_support.c - what the end-to-end tests in C share. */
#include "test_support.h"

void test_parse(int argc, char **argv, const char *about, eval_options *options)
{
    options->n_threads = 1;
    const arg table[] = {
        {"--model", ARG_TEXT, &options->model_path, 0, "GGUF file"},
        {"--calibration", ARG_TEXT, &options->calibration_path, 0, "its calibration"},
        {"--text", ARG_TEXT, &options->text_path, 0, "any text"},
        {"--threads", ARG_INT, &options->n_threads, 1, "threads"},
        {0},
    };
    args_parse(argc, argv, about, table);
    if (options->model_path == NULL || options->calibration_path == NULL || options->text_path == NULL) {
        die(EXIT_USAGE, "--model, --calibration and --text are needed");
    }
}

host_params test_params(const eval_setup *setup, llama_seq_id sequence_id, int32_t budget, int32_t interval)
{
    const host_params params = {
        .policy = HOST_POLICY_TRIA,
        .model = setup->model,
        .calibration = setup->calibration,
        .budget = budget,
        .interval = interval,
        .n_recent = 16,
        .n_sink = 4,
        .mode = TRIA_MODE_UNION,
        .n_threads = 1,
        .sequence_id = sequence_id,
        .in_flight = 8,
    };
    return params;
}

void test_decode(host *h, llama_token token, test_run *run)
{
    tria_error error;
    host_stats before;
    host_stats after;
    CHECK(run->n_tokens < TEST_STEPS);
    run->tokens[run->n_tokens++] = token;
    host_get_stats(h, &before);
    OK(host_decode(h, token, &error));
    host_get_stats(h, &after);
    CHECK(after.t == before.t + 1);
    if (after.n_evictions > before.n_evictions) {
        int32_t n = 0;
        const int32_t *positions = host_positions(h, &n);
        CHECK(run->n_evictions < TEST_EVICTIONS && n <= TEST_ROWS);
        run->counts[run->n_evictions] = n;
        memcpy(run->kept[run->n_evictions++], positions, (size_t)n * sizeof(*positions));
    }
}

void test_same_run(const test_run *a, const test_run *b)
{
    CHECK(a->n_tokens == b->n_tokens && a->n_evictions == b->n_evictions);
    CHECK(memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0);
    CHECK(memcmp(a->counts, b->counts, sizeof(a->counts)) == 0);
    CHECK(memcmp(a->kept, b->kept, sizeof(a->kept)) == 0);
}

void test_similar_run(const test_run *a, const test_run *b)
{
    CHECK(a->n_tokens == b->n_tokens && a->n_evictions == b->n_evictions);
    CHECK(memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0);
    for (int32_t i = 0; i < a->n_evictions; i++) {
        int32_t common = 0;
        for (int32_t j = 0; j < a->counts[i]; j++) {
            for (int32_t k = 0; k < b->counts[i]; k++) {
                common += a->kept[i][j] == b->kept[i][k];
            }
        }
        CHECK(a->counts[i] == b->counts[i] && common >= a->counts[i] - 2);
    }
}

void test_consistent(host *h)
{
    tria_error error;
    tria_sequence_info info;
    tria_sequence_info_init(&info);
    OK(tria_sequence_get_info(h->sequence, &info, &error));
    int32_t n = 0;
    const int32_t *positions = host_positions(h, &n);
    CHECK(info.t == h->stats.t && info.rows == h->rows && n == h->rows && !info.in_prefill);
    CHECK(info.in_flight == h->in_flight);
    CHECK(llama_memory_seq_pos_max(h->engine->memory, h->params.sequence_id) == info.t - 1);
    CHECK(n == 0 || positions[n - 1] == info.t - 1);
}

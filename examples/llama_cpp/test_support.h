/* test_support.h - what the end-to-end tests in C share. */
#ifndef EXAMPLE_TEST_SUPPORT_H
#define EXAMPLE_TEST_SUPPORT_H

#include "args.h"
#include "eval.h"
#include "host_internal.h"

#include <string.h>

/* All three need a `tria_error error`. */
#define OK(call)                                                                                           \
    do {                                                                                                   \
        if ((call) != TRIA_OK) {                                                                           \
            die(EXIT_FAILED, "line %d: %s", __LINE__, error.message);                                      \
        }                                                                                                  \
    } while (0)
#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            die(EXIT_FAILED, "line %d: not so: %s", __LINE__, #condition);                                 \
        }                                                                                                  \
    } while (0)
#define REFUSED(status, words, call)                                                                       \
    do {                                                                                                   \
        if ((call) != (status) || strstr(error.message, (words)) == NULL) {                                \
            die(EXIT_FAILED, "line %d: wanted %s with '%s', got: %s", __LINE__, #status, words,            \
                error.message);                                                                            \
        }                                                                                                  \
    } while (0)

/* --model, --calibration, --text and --threads. */
void test_parse(int argc, char **argv, const char *about, eval_options *options);

/* What eviction starts from in the tests: union, 4 sinks, 16 recent rows, prompts not protected. */
host_params test_params(const eval_setup *setup, llama_seq_id sequence_id, int32_t budget,
                        int32_t interval);

/* A run: the tokens, and what was left after each eviction. */
enum { TEST_STEPS = 96, TEST_EVICTIONS = 16, TEST_ROWS = 512 };
typedef struct test_run {
    llama_token tokens[TEST_STEPS];
    int32_t n_tokens;
    int32_t n_evictions;
    int32_t counts[TEST_EVICTIONS];
    int32_t kept[TEST_EVICTIONS][TEST_ROWS]; /* positions */
} test_run;

/* Decodes one token and notes it, and what an eviction left. */
void test_decode(host *h, llama_token token, test_run *run);
void test_same_run(const test_run *a, const test_run *b);
/* The same tokens and, but for two rows at most, the same rows kept. llama.cpp sums attention in the order
 * of the cells, in half precision: in a shared pool, where other cells are free, results agree less than to
 * the bit. */
void test_similar_run(const test_run *a, const test_run *b);

/* Engine, sequence object and host agree on t and on the rows. */
void test_consistent(host *h);

#endif

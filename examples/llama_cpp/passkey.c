/*
 * passkey.c - is a number that was hidden in a long prompt still there after eviction?
 *
 * Each trial: the prompt is filled in once; then every configuration starts from a copy of that cache,
 * evicts down to its budget, and only then sees the question. So no policy knows what will be asked, and
 * all are judged on the same keys. With a bounded prefill every configuration fills the prompt in by
 * itself, block by block, and never has more rows than its budget and a block.
 */
#include "controls.h"
#include "eval.h"
#include "host.h"
#include "observer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char opening[] =
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "A secret pass key is hidden in the text below. Find it and remember it.\n\n";
static const char question[] = "\n\nWhat is the secret pass key?<|im_end|>\n<|im_start|>assistant\n"
                               "The secret pass key is ";
static const char plain_sentences[] = " The river runs past the mill and under the old bridge. Children "
                                      "play on the bank while the miller counts "
                                      "his sacks. In the evening the lamps are lit and the village grows "
                                      "quiet. Nothing much happens here, and "
                                      "nobody minds.";

/* Tokens of the parts that prompts are made of. */
typedef struct parts {
    llama_token *opening;
    int32_t n_opening;
    llama_token *question;
    int32_t n_question;
    llama_token *filler; /* at least a prompt's length */
    int32_t n_filler;
} parts;

typedef struct trial {
    char number[PASSKEY_DIGITS + 1];
    llama_token *tokens;
    int32_t n_tokens;
    int32_t needle_begin; /* positions of the sentence that holds the number */
    int32_t needle_end;
} trial;

static void parts_free(parts *p)
{
    free(p->opening);
    free(p->question);
    free(p->filler);
}

static tria_status make_filler(const eval_options *options, const engine *e, parts *p, tria_error *error)
{
    if (!options->plain_filler) {
        tria_status status = engine_tokenize_file(e, options->text_path, &p->filler, &p->n_filler, error);
        if (status == TRIA_OK && p->n_filler < options->ppl_skip + options->passkey_tokens) {
            status = fail(error, TRIA_E_ARGUMENT, "'%s' is too short for filler", options->text_path);
        }
        if (status == TRIA_OK) {
            p->n_filler -= options->ppl_skip;
            memmove(p->filler, p->filler + options->ppl_skip, (size_t)p->n_filler * sizeof(*p->filler));
        }
        return status;
    }
    llama_token *once = NULL;
    int32_t n_once = 0;
    const tria_status status = engine_tokenize(e, plain_sentences, false, &once, &n_once, error);
    if (status != TRIA_OK) {
        return status;
    }
    p->filler = malloc((size_t)(options->passkey_tokens + n_once) * sizeof(*p->filler));
    while (p->filler != NULL && p->n_filler < options->passkey_tokens) {
        memcpy(p->filler + p->n_filler, once, (size_t)n_once * sizeof(*once));
        p->n_filler += n_once;
    }
    free(once);
    return p->filler != NULL ? TRIA_OK : fail(error, TRIA_E_MEMORY, "out of memory");
}

static tria_status make_parts(const eval_options *options, const engine *e, parts *p, tria_error *error)
{
    tria_status status = engine_tokenize(e, opening, true, &p->opening, &p->n_opening, error);
    if (status == TRIA_OK) {
        status = engine_tokenize(e, question, true, &p->question, &p->n_question, error);
    }
    if (status == TRIA_OK) {
        status = make_filler(options, e, p, error);
    }
    return status;
}

/* opening, filler, the sentence with the number at the given depth, filler: passkey_tokens in all. */
static tria_status make_trial(const eval_options *options, const engine *e, const parts *p, int32_t depth,
                              uint64_t *random_state, trial *t, tria_error *error)
{
    t->number[0] = (char)('1' + random_below(random_state, 9));
    for (int32_t i = 1; i < PASSKEY_DIGITS; i++) {
        t->number[i] = (char)('0' + random_below(random_state, 10));
    }
    t->number[PASSKEY_DIGITS] = '\0';
    char sentence[128];
    snprintf(sentence, sizeof(sentence),
             " The secret pass key is %s. Remember it: %s is the secret pass key.", t->number, t->number);
    llama_token *needle = NULL;
    int32_t n_needle = 0;
    const tria_status status = engine_tokenize(e, sentence, false, &needle, &n_needle, error);
    if (status != TRIA_OK) {
        return status;
    }
    const int32_t room = options->passkey_tokens - p->n_opening - n_needle;
    const int32_t before = (int32_t)((int64_t)room * (2 * depth + 1) / (2 * options->depths));
    t->n_tokens = options->passkey_tokens;
    t->tokens = malloc((size_t)t->n_tokens * sizeof(*t->tokens));
    if (t->tokens == NULL || room < options->depths) {
        free(needle);
        return fail(error, TRIA_E_ARGUMENT, "no passkey prompt of %d tokens can be made", t->n_tokens);
    }
    llama_token *at = t->tokens;
    memcpy(at, p->opening, (size_t)p->n_opening * sizeof(*at));
    at += p->n_opening;
    memcpy(at, p->filler, (size_t)before * sizeof(*at));
    at += before;
    memcpy(at, needle, (size_t)n_needle * sizeof(*at));
    at += n_needle;
    memcpy(at, p->filler + before, (size_t)(room - before) * sizeof(*at));
    t->needle_begin = p->n_opening + before;
    t->needle_end = t->needle_begin + n_needle;
    free(needle);
    return TRIA_OK;
}

/* The question, then the most likely tokens: do they begin with the number? */
static tria_status ask(host *h, engine *e, const parts *p, const trial *t, bool *right, char *answer,
                       size_t size, tria_error *error)
{
    size_t length = 0;
    answer[0] = '\0';
    tria_status status = host_prompt(h, p->question, p->n_question, error);
    for (int32_t i = 0; status == TRIA_OK && i <= PASSKEY_DIGITS && length < PASSKEY_DIGITS + 1; i++) {
        const llama_token token = engine_argmax(e);
        const int32_t n =
            llama_token_to_piece(e->vocab, token, answer + length, (int32_t)(size - length) - 1, 0, false);
        if (n < 0 || llama_vocab_is_eog(e->vocab, token)) {
            break;
        }
        length += (size_t)n;
        answer[length] = '\0';
        status = host_decode(h, token, error);
    }
    const char *begin = answer + strspn(answer, " \n*\"'");
    *right = strncmp(begin, t->number, PASSKEY_DIGITS) == 0;
    return status;
}

static int32_t needle_rows(host *h, const trial *t)
{
    int32_t n = 0;
    int32_t kept = 0;
    const int32_t *positions = host_positions(h, &n);
    for (int32_t i = 0; i < n; i++) {
        kept += positions[i] >= t->needle_begin && positions[i] < t->needle_end;
    }
    return kept;
}

/* The prompt, once for all configurations. */
static tria_status fill_once(host *h, const trial *t, host_snapshot **snapshot, tria_error *error)
{
    tria_status status = host_reset(h, 0, error);
    if (status == TRIA_OK) {
        status = host_prompt_only(h, t->tokens, t->n_tokens, error);
    }
    if (status == TRIA_OK) {
        status = host_save(h, snapshot, error);
    }
    return status;
}

/* The prompt, down to the budget: a copy of what was filled in once, or its own. */
static tria_status fill(host *h, const trial *t, const host_snapshot *snapshot, uint64_t seed,
                        tria_error *error)
{
    tria_status status = TRIA_OK;
    if (snapshot == NULL) {
        status = host_reset(h, seed, error);
        return status == TRIA_OK ? host_prompt(h, t->tokens, t->n_tokens, error) : status;
    }
    status = host_restore(h, snapshot, seed, error);
    return status == TRIA_OK ? host_evict_if_due(h, error) : status;
}

static tria_status run_trial(const eval_options *options, const eval_config *configs, int32_t n_configs,
                             eval_setup *setup, host **hosts, const parts *p, const trial *t,
                             int32_t number, eval_result *results, tria_error *error)
{
    host_snapshot *snapshot = NULL;
    tria_status status = options->bound_prefill ? TRIA_OK : fill_once(hosts[0], t, &snapshot, error);
    for (int32_t i = 0; status == TRIA_OK && i < n_configs; i++) {
        eval_result *r = &results[i];
        bool right = false;
        char answer[64];
        /* hosts[0] evicts nothing and made the prompt; configuration i has hosts[i + 1]. */
        status = fill(hosts[i + 1], t, snapshot, options->seed + (uint64_t)number, error);
        if (status != TRIA_OK) {
            break;
        }
        const int32_t kept = needle_rows(hosts[i + 1], t);
        r->needle_rows += t->needle_end - t->needle_begin;
        r->needle_rows_kept += kept;
        status = ask(hosts[i + 1], &setup->engine, p, t, &right, answer, sizeof(answer), error);
        r->answers[number] = right;
        r->right += right;
        r->trials++;
        if (options->verbose) {
            fprintf(stderr, "\npasskey %d, %s: hidden at %d: %s, %d of %d rows kept, answer '%s' %s",
                    number, configs[i].label, t->needle_begin, t->number, kept,
                    t->needle_end - t->needle_begin, answer, right ? "right" : "wrong");
        }
    }
    host_snapshot_destroy(snapshot);
    return status;
}

/* KV cells that the hungriest configuration needs; question and answer fit beside all. */
static int32_t cells_needed(const eval_options *options, const eval_config *configs, int32_t n_configs)
{
    int32_t rows = options->bound_prefill ? 0 : options->passkey_tokens;
    for (int32_t i = 0; i < n_configs; i++) {
        const int32_t wanted = eval_budget(&configs[i], options->passkey_tokens);
        rows = wanted > rows ? wanted : rows;
    }
    return rows + options->interval + 64;
}

static tria_status create_hosts(const eval_options *options, const eval_config *configs, int32_t n_configs,
                                eval_setup *setup, host **hosts, eval_result *results, tria_error *error)
{
    for (int32_t i = 0; i <= n_configs; i++) {
        host_params params = {.policy = HOST_POLICY_NONE};
        if (i > 0) {
            params = eval_host_params(options, &configs[i - 1], setup, options->passkey_tokens);
            params.bound_prefill = options->bound_prefill && params.policy != HOST_POLICY_NONE;
            results[i - 1].passkey_budget = params.budget;
            results[i - 1].answers = calloc((size_t)options->depths * (size_t)options->numbers, 1);
            if (results[i - 1].answers == NULL) {
                return fail(error, TRIA_E_MEMORY, "out of memory");
            }
        }
        const tria_status status = host_create(&setup->engine, setup->observer, &params, &hosts[i], error);
        if (status != TRIA_OK) {
            return status;
        }
    }
    return TRIA_OK;
}

tria_status eval_passkey(const eval_options *options, const eval_config *configs, int32_t n_configs,
                         eval_result *results, tria_error *error)
{
    eval_setup setup;
    tria_status status = eval_open(options, cells_needed(options, configs, n_configs), &setup, error);
    if (status != TRIA_OK) {
        return status;
    }
    host *hosts[EVAL_MAX_CONFIGS + 1] = {NULL};
    parts p = {0};
    status = make_parts(options, &setup.engine, &p, error);
    if (status == TRIA_OK) {
        status = create_hosts(options, configs, n_configs, &setup, hosts, results, error);
    }
    uint64_t random_state = options->seed;
    const int32_t trials = options->depths * options->numbers;
    for (int32_t i = 0; status == TRIA_OK && i < trials; i++) {
        trial t = {0};
        status = make_trial(options, &setup.engine, &p, i / options->numbers, &random_state, &t, error);
        if (status == TRIA_OK) {
            status = run_trial(options, configs, n_configs, &setup, hosts, &p, &t, i, results, error);
        }
        free(t.tokens);
        fprintf(stderr, "%spasskey: %d of %d trials ", options->verbose ? "\n" : "\r", i + 1, trials);
        for (int32_t c = 0; status == TRIA_OK && c < n_configs; c++) {
            fprintf(stderr, "| %s: %d ", configs[c].label, results[c].right);
        }
    }
    fputc('\n', stderr);
    for (int32_t c = 0; status == TRIA_OK && c < n_configs && options->bound_prefill; c++) {
        host_stats stats;
        host_get_stats(hosts[c + 1], &stats);
        results[c].cells = setup.engine.cells;
        results[c].peak_cells = stats.peak_rows;
        results[c].n_evictions = stats.n_evictions / trials;
    }
    for (int32_t i = 0; i <= n_configs; i++) {
        host_destroy(hosts[i]);
    }
    parts_free(&p);
    eval_close(&setup);
    return status;
}

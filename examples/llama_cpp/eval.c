/* eval.c - tria-llama-eval: runs the tasks for a list of configurations and prints one table. */
#include "eval.h"

#include "args.h"
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of "none", "recent:25", "tria:25", "tria:25:global:4:50" (mode, radius of neighbour pooling, weight
 * of the conversation's own queries). */
static bool parse_config(const char *text, const eval_config *defaults, eval_config *config)
{
    char name[16] = "";
    char mode[16] = "";
    *config = *defaults;
    config->percent = 100;
    const int fields = sscanf(text, "%15[a-z]:%d:%15[a-z]:%d:%d", name, &config->percent, mode,
                              &config->pool_radius, &config->own_percent);
    config->policy = host_policy_from_name(name);
    if (fields > 2) {
        config->mode = tria_mode_from_name(mode);
    }
    if (config->policy == HOST_POLICY_NONE) {
        snprintf(config->label, sizeof(config->label), "full cache");
        return fields == 1;
    }
    char pool[24] = "";
    if (config->pool_radius > 0) {
        snprintf(pool, sizeof(pool), ", pool %d", config->pool_radius);
    }
    char own[24] = "";
    if (config->own_percent > 0) {
        snprintf(own, sizeof(own), ", own %d %%", config->own_percent);
    }
    snprintf(config->label, sizeof(config->label), "%s %d %%%s%s%s%s", name, config->percent,
             config->mode != defaults->mode ? ", " : "", config->mode != defaults->mode ? mode : "", pool,
             own);
    return fields >= 2 && config->policy >= 0 && config->mode >= 0 && config->percent > 0 &&
           config->percent < 100 && config->pool_radius >= 0 && config->own_percent >= 0 &&
           config->own_percent <= 100;
}

static int32_t parse_configs(const char *text, const eval_config *defaults, eval_config *configs)
{
    int32_t n = 0;
    while (*text != '\0') {
        char one[64] = "";
        const size_t length = strcspn(text, ",");
        if (n == EVAL_MAX_CONFIGS) {
            die(EXIT_USAGE, "--configs: more than %d", EVAL_MAX_CONFIGS);
        }
        if (length < sizeof(one)) {
            memcpy(one, text, length);
        }
        if (!parse_config(one, defaults, &configs[n])) {
            die(EXIT_USAGE, "--configs: '%.*s' is not none or POLICY:PERCENT[:MODE[:POOL[:OWN]]]",
                (int)length, text);
        }
        n++;
        text += length + (text[length] == ',');
    }
    if (n == 0) {
        die(EXIT_USAGE, "--configs is empty");
    }
    return n;
}

static void print_table(const eval_config *configs, const eval_result *results, int32_t n, bool times)
{
    printf("| cache | perplexity | passkey | needle rows kept | attention kept | peak KV cells | evictions "
           "|%s\n",
           times ? " decode tokens/s | time in libtria |" : "");
    printf("|---|---|---|---|---|---|---|%s\n", times ? "---|---|" : "");
    for (int32_t i = 0; i < n; i++) {
        const eval_result *r = &results[i];
        printf("| %s ", configs[i].label);
        if (r->perplexity > 0) {
            printf("| %.2f ", r->perplexity);
        } else {
            printf("| - ");
        }
        if (r->trials > 0) {
            printf("| %d/%d | %.0f %% ", r->right, r->trials,
                   100.0 * (double)r->needle_rows_kept / (double)r->needle_rows);
        } else {
            printf("| - | - ");
        }
        if (r->attention_kept > 0) {
            printf("| %.0f %% ", 100 * r->attention_kept);
        } else {
            printf("| - ");
        }
        if (r->peak_cells > 0) {
            printf("| %d | %d |", r->peak_cells, r->n_evictions);
        } else {
            printf("| - | - |");
        }
        if (times && r->perplexity > 0) {
            printf(" %.0f | %.1f %% |", r->tokens_per_second, 100 * r->tria_share);
        } else if (times) {
            printf(" - | - |");
        }
        putchar('\n');
    }
}

static void write_json(const char *path, const eval_config *configs, const eval_result *results, int32_t n)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        die(EXIT_FAILED, "cannot write '%s'", path);
    }
    fputs("[\n", file);
    for (int32_t i = 0; i < n; i++) {
        const eval_result *r = &results[i];
        fprintf(
            file,
            "  {\"policy\": \"%s\", \"percent\": %d, \"perplexity\": %.6f, \"perplexity_budget\": %d, "
            "\"cells\": %d, \"peak_cells\": %d, \"evictions\": %d, \"tokens_per_second\": %.2f, "
            "\"tria_share\": %.5f, \"passkey_budget\": %d, \"passkey_trials\": %d, \"passkey_right\": %d, "
            "\"needle_rows\": %lld, \"needle_rows_kept\": %lld, \"attention_kept\": %.6f, \"answers\": \"",
            host_policy_name(configs[i].policy), configs[i].percent, r->perplexity, r->ppl_budget, r->cells,
            r->peak_cells, r->n_evictions, r->tokens_per_second, r->tria_share, r->passkey_budget,
            r->trials, r->right, (long long)r->needle_rows, (long long)r->needle_rows_kept,
            r->attention_kept);
        for (int32_t t = 0; t < r->trials; t++) {
            fputc(r->answers[t] ? '1' : '0', file);
        }
        fprintf(file, "\"}%s\n", i + 1 < n ? "," : "");
    }
    fputs("]\n", file);
    if (fclose(file) != 0) {
        die(EXIT_FAILED, "cannot write '%s'", path);
    }
}

/* How many trials only `a` answers, and only `b`. */
static void compare(const eval_result *a, const eval_result *b, int32_t *only_a, int32_t *only_b)
{
    *only_a = 0;
    *only_b = 0;
    for (int32_t t = 0; t < a->trials; t++) {
        *only_a += a->answers[t] && !b->answers[t];
        *only_b += b->answers[t] && !a->answers[t];
    }
}

/* Pairs libtria with the controls of its budget on the same trials. Returns how many controls the first
 * tria configuration of a budget does not beat. */
static int compare_policies(const eval_config *configs, const eval_result *results, int32_t n)
{
    int not_beaten = 0;
    for (int32_t b = 0; b < n; b++) {
        bool first = true;
        if (configs[b].policy != HOST_POLICY_RANDOM && configs[b].policy != HOST_POLICY_RECENT) {
            continue;
        }
        for (int32_t a = 0; a < n; a++) {
            if (configs[a].policy == HOST_POLICY_TRIA && configs[a].percent == configs[b].percent) {
                int32_t only_a = 0;
                int32_t only_b = 0;
                compare(&results[a], &results[b], &only_a, &only_b);
                printf("passkey, paired: %d trials only '%s' answers, %d only '%s'\n", only_a,
                       configs[a].label, only_b, configs[b].label);
                not_beaten += first && only_a <= only_b;
                not_beaten += first && results[a].attention_kept < results[b].attention_kept;
                first = false;
            }
        }
    }
    return not_beaten;
}

int main(int argc, char **argv)
{
    eval_options options = {
        .interval = 128,
        .n_recent = 32,
        .n_sink = 4,
        .seed = 20240601,
        .ppl_tokens = 2048,
        .passkey_tokens = 1024,
        .depths = 10,
        .numbers = 3,
    };
    const char *tasks = "attention,passkey,perplexity";
    const char *config_text = "none,tria:50,tria:25,random:25,recent:25";
    const char *mode = "union";
    eval_config defaults = {0};
    const char *json = NULL;
    const char *trace = NULL;
    bool require = false;
    bool no_times = false;
    const arg table[] = {
        {"--model", ARG_TEXT, &options.model_path, 0, "GGUF file"},
        {"--calibration", ARG_TEXT, &options.calibration_path, 0, "its calibration"},
        {"--text", ARG_TEXT, &options.text_path, 0, "held-out text"},
        {"--configs", ARG_TEXT, &config_text, 0, "none, POLICY:PERCENT[:MODE[:POOL[:OWN]]], ..."},
        {"--tasks", ARG_TEXT, &tasks, 0, "which of attention, passkey, perplexity"},
        {"--mode", ARG_TEXT, &mode, 0, "union or global"},
        {"--interval", ARG_INT, &options.interval, 1, "rows beyond the budget before an eviction"},
        {"--recent", ARG_INT, &options.n_recent, 0, "most recent rows, never evicted"},
        {"--sinks", ARG_INT, &options.n_sink, 0, "first rows, never evicted"},
        {"--pool", ARG_INT, &defaults.pool_radius, 0, "neighbour pooling of the scores, in positions"},
        {"--ppl-tokens", ARG_INT, &options.ppl_tokens, 16, "tokens of the perplexity run"},
        {"--ppl-skip", ARG_INT, &options.ppl_skip, 0, "tokens of the text to skip"},
        {"--passkey-tokens", ARG_INT, &options.passkey_tokens, 64, "length of a passkey prompt"},
        {"--depths", ARG_INT, &options.depths, 1, "places where the number is hidden"},
        {"--numbers", ARG_INT, &options.numbers, 1, "numbers per place"},
        {"--plain-filler", ARG_FLAG, &options.plain_filler, 0,
         "hide it in simple sentences, not in the text"},
        {"--bound-prefill", ARG_FLAG, &options.bound_prefill, 0,
         "passkey prompts in blocks of --interval tokens, never more rows than budget + interval"},
        {"--seed", ARG_SEED, &options.seed, 0, "of numbers and of the random policy"},
        {"--cache-type-k", ARG_TEXT, &options.cache_type_k, 0, "llama.cpp's type for K: f16, q8_0, ..."},
        {"--threads", ARG_INT, &options.n_threads, 0, "0 = all processors"},
        {"--backend", ARG_TEXT, &options.backend, 0,
         "where libtria scores: cpu, vulkan, cuda, hip, reference"},
        {"--stage", ARG_FLAG, &options.stage, 0, "copy the keys there for it"},
        {"--json", ARG_TEXT, &json, 0, "write the results there as well"},
        {"--trace", ARG_TEXT, &trace, 0, "write libtria's evictions to this file, for `tria replay`"},
        {"--no-times", ARG_FLAG, &no_times, 0, "leave out what differs from run to run"},
        {"--require", ARG_FLAG, &require, 0,
         "fail unless tria beats the controls of its budget at passkey and attention"},
        {"--verbose", ARG_FLAG, &options.verbose, 0, "every answer"},
        {0},
    };
    args_parse(argc, argv, "measures what eviction costs a GGUF model", table);
    if (options.model_path == NULL || options.text_path == NULL) {
        die(EXIT_USAGE, "--model and --text are needed, see --help");
    }
    defaults.mode = tria_mode_from_name(mode);
    if (defaults.mode < 0) {
        die(EXIT_USAGE, "--mode %s: unknown", mode);
    }
    eval_config configs[EVAL_MAX_CONFIGS];
    eval_result results[EVAL_MAX_CONFIGS] = {0};
    const int32_t n = parse_configs(config_text, &defaults, configs);
    for (int32_t i = 0; i < n; i++) {
        if (configs[i].policy == HOST_POLICY_TRIA && options.calibration_path == NULL) {
            die(EXIT_USAGE, "policy tria needs --calibration");
        }
        if (configs[i].own_percent > 0 &&
            (!options.bound_prefill || configs[i].policy != HOST_POLICY_TRIA)) {
            die(EXIT_USAGE, "--configs: own queries count for policy tria with --bound-prefill only");
        }
    }
    if (options.bound_prefill && strcmp(tasks, "passkey") != 0) {
        die(EXIT_USAGE, "--bound-prefill is for --tasks passkey");
    }

    tria_error error;
    tria_trace_params trace_params = TRIA_TRACE_PARAMS_INIT;
    trace_params.path = trace;
    if (trace != NULL && tria_trace_create(&trace_params, NULL, &options.trace, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    if (strstr(tasks, "attention") != NULL &&
        eval_attention(&options, configs, n, results, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    if (strstr(tasks, "passkey") != NULL &&
        eval_passkey(&options, configs, n, results, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    if (strstr(tasks, "perplexity") != NULL &&
        eval_perplexity(&options, configs, n, results, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    if (tria_trace_close(options.trace, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    print_table(configs, results, n, !no_times);
    if (json != NULL) {
        write_json(json, configs, results, n);
    }
    const int not_beaten = results[0].trials > 0 ? compare_policies(configs, results, n) : 0;
    for (int32_t i = 0; i < n; i++) {
        free(results[i].answers);
    }
    if (require && not_beaten > 0) {
        die(EXIT_FAILED, "libtria does not beat %d of the controls", not_beaten);
    }
    return 0;
}

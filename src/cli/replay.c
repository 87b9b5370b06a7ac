/* replay.c - `tria replay`: recomputes a recorded trace and says how far the keep sets agree. */
#include "json.h"
#include "load.h"
#include "options.h"
#include "tria/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Agreement of one keep set over all compactions. */
typedef struct head_agreement {
    int32_t layer;
    int32_t kv_head;
    int32_t n;
    int32_t n_exact;
    double sum_jaccard;
    double min_jaccard;
    double max_score_error;
} head_agreement;

typedef struct collected {
    head_agreement *heads; /* by set */
    int32_t n_heads;
    bool differs;
    tria_replay_set first; /* difference */
} collected;

static void collect(void *context, const tria_replay_set *set)
{
    collected *c = context;
    if (set->set >= c->n_heads) {
        const int32_t n = set->set + 1;
        head_agreement *grown = cli_allocate((size_t)n, sizeof(*grown));
        for (int32_t i = 0; i < c->n_heads; i++) {
            grown[i] = c->heads[i];
        }
        free(c->heads);
        c->heads = grown;
        for (; c->n_heads < n; c->n_heads++) {
            c->heads[c->n_heads].min_jaccard = 1.0;
        }
    }
    head_agreement *head = &c->heads[set->set];
    head->layer = set->layer;
    head->kv_head = set->kv_head;
    head->n++;
    head->n_exact += set->first_row < 0;
    head->sum_jaccard += set->jaccard;
    head->min_jaccard = set->jaccard < head->min_jaccard ? set->jaccard : head->min_jaccard;
    if (set->max_score_error > head->max_score_error) {
        head->max_score_error = set->max_score_error;
    }
    if (set->first_row >= 0 && !c->differs) {
        c->differs = true;
        c->first = *set;
    }
}

static void print_json(const char *backend, const tria_replay_report *report, const collected *c)
{
    json_writer json = {stdout, false};
    json_open(&json, NULL, '{');
    json_text(&json, "backend", backend);
    json_integer(&json, "compactions", report->n_compactions);
    json_integer(&json, "replayed", report->n_replayed);
    json_integer(&json, "sets", report->n_sets);
    json_integer(&json, "exact", report->n_exact);
    json_number(&json, "mean_jaccard", report->mean_jaccard);
    json_number(&json, "min_jaccard", report->min_jaccard);
    json_number(&json, "max_score_error", report->max_score_error);
    json_integer(&json, "caches_compared", report->n_cache_compared);
    json_integer(&json, "caches_differ", report->n_cache_differs);
    json_integer(&json, "rows_evicted", report->n_evicted);
    json_integer(&json, "tokens", report->n_tokens);
    json_integer(&json, "prompt_tokens", report->n_prompt_tokens);
    json_boolean(&json, "complete", report->complete != 0);
    json_integer(&json, "dump_missing", report->dump_missing);
    json_open(&json, "heads", '[');
    for (int32_t i = 0; i < c->n_heads; i++) {
        const head_agreement *head = &c->heads[i];
        json_open(&json, NULL, '{');
        json_integer(&json, "set", i);
        json_integer(&json, "layer", head->layer);
        json_integer(&json, "kv_head", head->kv_head);
        json_integer(&json, "compactions", head->n);
        json_integer(&json, "exact", head->n_exact);
        json_number(&json, "mean_jaccard", head->n > 0 ? head->sum_jaccard / head->n : 1.0);
        json_number(&json, "min_jaccard", head->min_jaccard);
        json_number(&json, "max_score_error", head->max_score_error);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    if (c->differs) {
        json_open(&json, "first_difference", '{');
        json_integer(&json, "compaction", c->first.compaction);
        json_integer(&json, "set", c->first.set);
        json_integer(&json, "layer", c->first.layer);
        json_integer(&json, "kv_head", c->first.kv_head);
        json_integer(&json, "row", c->first.first_row);
        json_integer(&json, "position", c->first.first_position);
        json_text(&json, "kept_by", c->first.first_recorded ? "trace" : "replay");
        json_close(&json, '}');
    } else {
        json_null(&json, "first_difference");
    }
    json_close(&json, '}');
    printf("\n");
}

static void print_text(const char *backend, const tria_replay_report *report, const collected *c)
{
    printf("%" PRId32 " compactions, %" PRId32 " recomputed on %s; %" PRId64 " rows evicted\n",
           report->n_compactions, report->n_replayed, backend, report->n_evicted);
    printf("%" PRId64 " tokens recorded, %" PRId64 " of them in prompts\n", report->n_tokens,
           report->n_prompt_tokens);
    for (int32_t i = 0; i < c->n_heads; i++) {
        const head_agreement *head = &c->heads[i];
        printf("  set %" PRId32 " (layer %" PRId32 ", KV head %" PRId32 "): %" PRId32 " of %" PRId32
               " exact, Jaccard mean %.6f min %.6f, scores within %.3g\n",
               i, head->layer, head->kv_head, head->n_exact, head->n,
               head->n > 0 ? head->sum_jaccard / head->n : 1.0, head->min_jaccard, head->max_score_error);
    }
    if (report->n_cache_compared > 0) {
        printf("caches afterwards: %" PRId32 " of %" PRId32 " identical\n",
               report->n_cache_compared - report->n_cache_differs, report->n_cache_compared);
    }
    if (c->differs) {
        printf("first difference: compaction %" PRId32 ", layer %" PRId32 ", KV head %" PRId32
               ": row %" PRId32 " (position %" PRId32 ") is kept by the %s only\n",
               c->first.compaction, c->first.layer, c->first.kv_head, c->first.first_row,
               c->first.first_position, c->first.first_recorded ? "trace" : "replay");
    } else if (report->n_sets > 0) {
        printf("all %" PRId32 " keep sets are identical\n", report->n_sets);
    }
}

/* What makes the numbers above mean less than they seem to. */
static void warn(const char *path, const tria_replay_report *report)
{
    if (!report->complete) {
        cli_message("%s: warning: the trace has no end record, it was cut off", path);
    }
    if (report->dump_missing > 0) {
        cli_message("%s: warning: compaction %" PRId32 " was to be dumped and never came", path,
                    report->dump_missing);
    }
    if (report->n_replayed < report->n_compactions) {
        cli_message("%s: warning: %" PRId32 " compactions were recorded without keys and not recomputed",
                    path, report->n_compactions - report->n_replayed);
    }
    if (report->n_evicted == 0) {
        cli_message("%s: warning: nothing was ever evicted in this trace", path);
    }
}

static int run(const char *path, int32_t backend, int64_t threads, bool as_json)
{
    tria_replay_params params;
    tria_replay_report report;
    tria_error error;
    cli_device device = {NULL, NULL};
    collected c = {NULL, 0, false, {0}};
    int code = CLI_OK;
    tria_replay_params_init(&params);
    tria_replay_report_init(&report);
    if (cli_open_device(backend, &device, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    params.device = device.device;
    params.n_threads = (int32_t)threads;
    params.on_set = collect;
    params.context = &c;
    if (tria_trace_replay(path, &params, cli_env(), &report, &error) != TRIA_OK) {
        code = cli_library_error(path, &error);
    } else {
        warn(path, &report);
        if (as_json) {
            print_json(cli_device_backend(&device), &report, &c);
        } else {
            print_text(cli_device_backend(&device), &report, &c);
        }
    }
    free(c.heads);
    cli_close_device(&device);
    return code;
}

int cli_replay(int argc, char **argv)
{
    const char *path = NULL;
    int32_t backend = 0;
    int64_t threads = 1;
    bool as_json = false;
    const cli_option options[] = {
        CLI_CHOICE("backend", CLI_BACKENDS, &backend, "default auto"),
        CLI_INTEGER("threads", "N", &threads, 1, 4096, "CPU threads, default 1"),
        CLI_FLAG("json", &as_json, "print one JSON object"),
    };
    const cli_syntax syntax = {"replay",
                               "TRACE",
                               "Recomputes a recorded trace of compactions; agreement per head and the "
                               "first difference.",
                               options,
                               CLI_COUNT(options),
                               1,
                               1};
    const int code = cli_parse(&syntax, argc, argv, &path);
    return code != CLI_CONTINUE ? code : run(path, backend, threads, as_json);
}

/* select.c - `tria select`: which rows to keep. */
#include "inputs.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODES "per-layer-per-head|per-head|per-layer|union|global" /* in the order of tria_mode */

typedef struct selection {
    inputs in;
    const char *pin_path;
    int64_t budget; /* -1: not given */
    int64_t max_rows;
    double percent;
    int64_t recent;
    int64_t sinks;
    int64_t prompt_end; /* -1: not given */
    int64_t pool;
    int32_t mode; /* -1: not given */
    bool protect_prefill;
    bool no_count_prompt;
    bool layer_budgets;

    int32_t *pins;
    tria_range prompt;
} selection;

static int check_usage(selection *s)
{
    bool percent = s->max_rows > 0 || s->percent >= 0.0;
    if (s->mode < 0) {
        return cli_bad_usage("select: --mode is needed");
    }
    if (percent && (s->max_rows <= 0 || s->percent < 0.0 || s->budget >= 0)) {
        return cli_bad_usage("select: --max-rows and --percent go together, in place of --budget");
    }
    if (!percent && s->budget < 0) {
        return cli_bad_usage("select: --budget, or --max-rows and --percent, is needed");
    }
    if (percent) {
        if (s->percent > 100.0) {
            return cli_bad_usage("select: --percent %g: expected 0 to 100", s->percent);
        }
        s->budget = (int64_t)floor(s->percent * (double)s->max_rows / 100.0);
    }
    if (s->protect_prefill && s->prompt_end < 0) {
        return cli_bad_usage("select: --protect-prefill needs --prompt-end");
    }
    return CLI_CONTINUE;
}

static int load_pins(selection *s)
{
    tria_error error;
    npy_array array;
    int64_t count;
    if (s->pin_path == NULL) {
        return CLI_CONTINUE;
    }
    if (npy_read(s->pin_path, &array, &error) != TRIA_OK) {
        return cli_library_error(s->pin_path, &error);
    }
    count = array.count;
    if (array.n_dims != 1 || count > INT32_MAX) {
        npy_free(&array);
        return cli_bad_input("%s: expected a one-dimensional array of row indices", s->pin_path);
    }
    cli_integers(s->pin_path, &array, 0, s->in.n_rows - 1, &s->pins, &error);
    npy_free(&array);
    if (s->pins == NULL) {
        return cli_library_error(s->pin_path, &error);
    }
    s->in.event.pins = s->pins;
    s->in.event.n_pins = (int32_t)count;
    return CLI_CONTINUE;
}

/* Fills in the rest of plan parameters and event. */
static int prepare(selection *s)
{
    inputs *in = &s->in;
    int code = load_pins(s);
    if (code != CLI_CONTINUE) {
        return code;
    }
    if (inputs_positions_unknown(in) &&
        (s->recent > 0 || s->sinks > 0 || s->protect_prefill || s->pool > 0)) {
        return cli_bad_usage(
            "select: --recent, --sinks, --protect-prefill and --pool need --positions unless "
            "T is the number of rows");
    }
    if (s->budget == 0) {
        return cli_bad_input("select: budget 0 keeps nothing");
    }
    in->params.mode = s->mode;
    in->params.budget = (int32_t)s->budget;
    in->params.n_sink = (int32_t)s->sinks;
    in->params.n_recent = (int32_t)s->recent;
    in->params.protect_prefill = s->protect_prefill;
    in->params.count_prompt = !s->no_count_prompt;
    in->params.pool_radius = (int32_t)s->pool;
    in->params.use_layer_budgets = s->layer_budgets;
    s->prompt = (tria_range){0, (int32_t)s->prompt_end};
    if (s->prompt_end > 0) {
        in->event.prompts = &s->prompt;
        in->event.n_prompts = 1;
    }
    return CLI_CONTINUE;
}

/* The keep set that belongs at (layer, head) of KEEP, or -1. */
static int32_t find_set(const tria_plan *plan, const selection *s, int32_t layer, int32_t head)
{
    const inputs *in = &s->in;
    if (s->mode == TRIA_MODE_PER_LAYER_PER_HEAD || s->mode == TRIA_MODE_PER_LAYER) {
        return tria_plan_set(plan, in->key_layers[layer], head);
    }
    /* the same in every layer taking part; sliding-window layers have none */
    for (int32_t i = 0; i < in->n_key_layers; i++) {
        int32_t set = tria_plan_set(plan, in->key_layers[i], head);
        if (set >= 0) {
            return set;
        }
    }
    return -1;
}

/* [..., K] of the mode's shape, padded with -1; *counts gets the rows of each, in order. */
static npy_array arrange(const tria_plan *plan, const selection *s, const tria_keep *keep,
                         npy_array *counts)
{
    const inputs *in = &s->in;
    bool layers = s->mode == TRIA_MODE_PER_LAYER_PER_HEAD || s->mode == TRIA_MODE_PER_LAYER;
    bool heads = s->mode == TRIA_MODE_PER_LAYER_PER_HEAD || s->mode == TRIA_MODE_PER_HEAD;
    int64_t dims[3];
    int32_t n_dims = 0;
    int64_t n_sets;
    int32_t longest = 0;
    npy_array out;
    int32_t *rows;
    if (layers) {
        dims[n_dims++] = in->n_key_layers;
    }
    if (heads) {
        dims[n_dims++] = in->max_kv_heads;
    }
    n_sets = (layers ? in->n_key_layers : 1) * (heads ? in->max_kv_heads : 1);
    *counts = npy_create('i', 4, 1, &n_sets);
    for (int64_t i = 0; i < n_sets; i++) {
        int32_t n_heads = heads ? in->max_kv_heads : 1;
        int32_t set = find_set(plan, s, (int32_t)(i / n_heads), (int32_t)(i % n_heads));
        ((int32_t *)counts->data)[i] = set >= 0 ? keep->counts[set] : 0;
        longest = ((int32_t *)counts->data)[i] > longest ? ((int32_t *)counts->data)[i] : longest;
    }
    dims[n_dims++] = longest;
    out = npy_create('i', 4, n_dims, dims);
    rows = out.data;
    for (int64_t i = 0; i < n_sets; i++, rows += longest) {
        int32_t n_heads = heads ? in->max_kv_heads : 1;
        int32_t set = find_set(plan, s, (int32_t)(i / n_heads), (int32_t)(i % n_heads));
        int32_t count = ((int32_t *)counts->data)[i];
        if (count > 0) {
            memcpy(rows, keep->rows + set * keep->row_stride, (size_t)count * sizeof(*rows));
        }
        for (int32_t k = count; k < longest; k++) {
            rows[k] = -1;
        }
    }
    return out;
}

static void print_report(const selection *s, const tria_keep *keep, const npy_array *counts)
{
    json_writer json = {stdout, false};
    json_open(&json, NULL, '{');
    json_integer(&json, "over_budget", keep->over_budget);
    json_integer(&json, "n_nan", keep->n_nan);
    json_integer(&json, "n_zero_heads", keep->n_zero_heads);
    json_open(&json, "uncalibrated_layers", '[');
    for (int32_t i = 0; i < s->in.n_layers; i++) {
        if (keep->uncalibrated_layers[i]) {
            json_integer(&json, NULL, s->in.layers[i]);
        }
    }
    json_close(&json, ']');
    json_open(&json, "counts", '[');
    for (int64_t i = 0; i < counts->count; i++) {
        json_integer(&json, NULL, ((const int32_t *)counts->data)[i]);
    }
    json_close(&json, ']');
    json_text(&json, "backend", cli_device_backend(&s->in.device));
    json_text(&json, "device", cli_device_name(&s->in.device));
    json_close(&json, '}');
    printf("\n");
}

/* What a user should know although the set is right. */
static void print_warnings(const selection *s, const tria_keep *keep)
{
    inputs_report_match(&s->in);
    if (keep->over_budget > 0) {
        cli_message("warning: %d more protected rows than the budget", keep->over_budget);
    }
    if (keep->n_nan > 0) {
        cli_message("warning: %d rows have a score that is not finite", keep->n_nan);
    }
    if (keep->n_zero_heads > 0) {
        cli_message("warning: all keys of %d (layer, KV head)s are zero", keep->n_zero_heads);
    }
    for (int32_t i = 0; i < s->in.n_layers; i++) {
        if (keep->uncalibrated_layers[i]) {
            cli_message("warning: layer %d is not calibrated: its rows are ranked by position",
                        s->in.layers[i]);
        }
    }
}

static int write_keep(const selection *s, const tria_plan *plan, const tria_keep *keep)
{
    tria_error error;
    npy_array counts;
    npy_array out;
    int code = CLI_OK;
    if (keep->n_uncalibrated_layers > 0 && inputs_positions_unknown(&s->in)) {
        return cli_bad_usage("select: layers without calibration are ranked by position, which needs "
                             "--positions unless T is the number of rows");
    }
    print_warnings(s, keep);
    out = arrange(plan, s, keep, &counts);
    if (npy_write(s->in.output_path, &out, &error) != TRIA_OK) {
        code = cli_library_error(s->in.output_path, &error);
    } else if (s->in.json) {
        print_report(s, keep, &counts);
    }
    npy_free(&out);
    npy_free(&counts);
    return code;
}

static int run_plan(selection *s, tria_plan *plan)
{
    tria_error error;
    tria_batch batch;
    tria_keep keep;
    int code;
    size_t n_sets = (size_t)tria_plan_n_sets(plan);
    tria_batch_init(&batch);
    batch.events = &s->in.event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.row_stride = s->in.n_rows;
    keep.rows = cli_allocate(n_sets * (size_t)s->in.n_rows, sizeof(*keep.rows));
    keep.counts = cli_allocate(n_sets, sizeof(*keep.counts));
    keep.uncalibrated_layers = cli_allocate((size_t)s->in.n_layers, 1);
    if (tria_plan_select(plan, &batch, NULL, &keep, &error) != TRIA_OK ||
        tria_plan_synchronize(plan, &error) != TRIA_OK) {
        code = cli_library_error(NULL, &error);
    } else {
        code = write_keep(s, plan, &keep);
    }
    free(keep.rows);
    free(keep.counts);
    free(keep.uncalibrated_layers);
    return code;
}

static int run(selection *s)
{
    tria_plan *plan = NULL;
    tria_error error;
    int code = check_usage(s);
    code = code == CLI_CONTINUE ? inputs_load(&s->in, "select") : code;
    code = code == CLI_CONTINUE ? prepare(s) : code;
    if (code != CLI_CONTINUE) {
        return code;
    }
    if (tria_plan_create(&s->in.params, cli_env(), &plan, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    code = run_plan(s, plan);
    tria_plan_destroy(plan);
    return code;
}

int cli_select(int argc, char **argv)
{
    selection s = {.budget = -1, .percent = -1.0, .prompt_end = -1, .mode = -1};
    cli_option options[INPUTS_MAX_OPTIONS];
    cli_syntax syntax = {"select",
                         "",
                         "The rows to keep, as an int32 .npy array, ascending; shorter sets "
                         "are padded with -1. Nothing is protected by default.",
                         options,
                         0,
                         0,
                         0};
    const cli_option own[] = {
        CLI_CHOICE("mode", MODES, &s.mode, "which layers and heads share a keep set"),
        CLI_INTEGER("budget", "B", &s.budget, 0, INT32_MAX, "rows kept per set"),
        CLI_INTEGER("max-rows", "M", &s.max_rows, 1, INT32_MAX, "with --percent: rows of the cache"),
        CLI_NUMBER("percent", "X", &s.percent, "budget = X percent of --max-rows, rounded down"),
        CLI_INTEGER("recent", "W", &s.recent, 0, INT32_MAX, "protect positions >= T - W"),
        CLI_INTEGER("sinks", "S", &s.sinks, 0, INT32_MAX, "protect positions < S"),
        CLI_INTEGER("prompt-end", "P", &s.prompt_end, 0, INT32_MAX, "positions < P are the prompt"),
        CLI_FLAG("protect-prefill", &s.protect_prefill, "protect the prompt"),
        CLI_FLAG("no-count-prompt", &s.no_count_prompt, "protected prompt rows do not use the budget"),
        CLI_TEXT("pin", "ROWS.npy", &s.pin_path, "int32 row indices kept everywhere"),
        CLI_INTEGER("pool", "R", &s.pool, 0, INT32_MAX, "pool scores over positions at most R apart"),
        CLI_FLAG("layer-budgets", &s.layer_budgets, "layer weights scale each layer's budget"),
    };
    int code;
    inputs_init(&s.in);
    syntax.n_options = inputs_options(&s.in, options);
    memcpy(options + syntax.n_options, own, sizeof(own));
    syntax.n_options += CLI_COUNT(own);
    code = cli_parse(&syntax, argc, argv, NULL);
    if (code == CLI_CONTINUE) {
        code = run(&s);
    }
    free(s.pins);
    inputs_free(&s.in);
    return code;
}

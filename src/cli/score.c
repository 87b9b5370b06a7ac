/* score.c - `tria score`: the raw, grouped or per-head score of every key. */
#include "inputs.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In the order of --stage. */
typedef enum stage { STAGE_RAW, STAGE_GROUPED, STAGE_PER_HEAD } stage;
#define STAGES "raw|grouped|per-head"
static const char *const stage_names[] = {"raw", "grouped", "per-head"};

/* The slot whose row of scores belongs at (layer, head) of the output, or -1. */
static int32_t find_slot(const tria_plan *plan, const inputs *in, stage wanted, int32_t layer, int32_t head)
{
    switch (wanted) {
    case STAGE_RAW:
        return tria_plan_query_slot(plan, layer, head);
    case STAGE_GROUPED:
        return tria_plan_kv_slot(plan, in->key_layers[layer], head);
    case STAGE_PER_HEAD:
        /* the same set in every layer taking part; sliding-window layers have none */
        for (int32_t i = 0; i < in->n_key_layers; i++) {
            int32_t set = tria_plan_set(plan, in->key_layers[i], head);
            if (set >= 0) {
                return set;
            }
        }
        return -1;
    }
    return -1;
}

/* [layers, heads, N] (per-head: [heads, N]) of `scores` ([slot][N]); NaN where there is no slot. */
static npy_array arrange(const tria_plan *plan, const inputs *in, stage wanted, const npy_array *scores)
{
    bool per_head = wanted == STAGE_PER_HEAD;
    int64_t dims[3] = {wanted == STAGE_RAW ? in->n_layers : in->n_key_layers,
                       wanted == STAGE_RAW ? in->max_q_heads : in->max_kv_heads, in->n_rows};
    npy_array out = npy_create('f', scores->size, per_head ? 2 : 3, per_head ? dims + 1 : dims);
    size_t row_bytes = (size_t)in->n_rows * (size_t)scores->size;
    unsigned char *row = out.data;
    for (int32_t layer = 0; layer < (per_head ? 1 : dims[0]); layer++) {
        for (int32_t head = 0; head < dims[1]; head++, row += row_bytes) {
            int32_t slot = find_slot(plan, in, wanted, layer, head);
            if (slot >= 0) {
                memcpy(row, (const unsigned char *)scores->data + (size_t)slot * row_bytes, row_bytes);
                continue;
            }
            for (int32_t i = 0; i < in->n_rows; i++) {
                if (scores->size == 8) {
                    ((double *)(void *)row)[i] = (double)NAN;
                } else {
                    ((float *)(void *)row)[i] = NAN;
                }
            }
        }
    }
    return out;
}

static void print_report(const inputs *in, stage wanted, const npy_array *out)
{
    json_writer json = {stdout, false};
    json_open(&json, NULL, '{');
    json_text(&json, "stage", stage_names[wanted]);
    json_open(&json, "shape", '[');
    for (int32_t i = 0; i < out->n_dims; i++) {
        json_integer(&json, NULL, out->dims[i]);
    }
    json_close(&json, ']');
    json_text(&json, "backend", cli_device_backend(&in->device));
    json_text(&json, "device", cli_device_name(&in->device));
    json_close(&json, '}');
    printf("\n");
}

static int run_plan(const inputs *in, tria_plan *plan, stage wanted)
{
    tria_error error;
    tria_batch batch;
    tria_scores scores;
    npy_array rows;
    npy_array out;
    int code = CLI_OK;
    /* the oracle's doubles would be wasted in f4 */
    int32_t size = strcmp(cli_device_backend(&in->device), "reference") == 0 ? 8 : 4;
    int64_t dims[2] = {wanted == STAGE_RAW       ? tria_plan_n_query_slots(plan)
                       : wanted == STAGE_GROUPED ? tria_plan_n_kv_slots(plan)
                                                 : tria_plan_n_sets(plan),
                       in->n_rows};
    rows = npy_create('f', size, 2, dims);
    tria_batch_init(&batch);
    batch.events = &in->event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.dtype = size == 8 ? TRIA_DTYPE_F64 : TRIA_DTYPE_F32;
    scores.row_stride = in->n_rows;
    *(wanted == STAGE_RAW       ? &scores.raw
      : wanted == STAGE_GROUPED ? &scores.grouped
                                : &scores.final_scores) = rows.data;
    if (tria_plan_score(plan, &batch, &scores, &error) != TRIA_OK ||
        tria_plan_synchronize(plan, &error) != TRIA_OK) {
        npy_free(&rows);
        return cli_library_error(NULL, &error);
    }
    inputs_report_match(in);
    out = arrange(plan, in, wanted, &rows);
    if (npy_write(in->output_path, &out, &error) != TRIA_OK) {
        code = cli_library_error(in->output_path, &error);
    } else if (in->json) {
        print_report(in, wanted, &out);
    }
    npy_free(&rows);
    npy_free(&out);
    return code;
}

static int run(inputs *in, stage wanted)
{
    tria_plan *plan = NULL;
    tria_error error;
    int code = inputs_load(in, "score");
    if (code != CLI_CONTINUE) {
        return code;
    }
    in->params.mode = wanted == STAGE_PER_HEAD ? TRIA_MODE_PER_HEAD : TRIA_MODE_PER_LAYER_PER_HEAD;
    if (tria_plan_create(&in->params, cli_env(), &plan, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    code = run_plan(in, plan, wanted);
    tria_plan_destroy(plan);
    return code;
}

int cli_score(int argc, char **argv)
{
    inputs in;
    int32_t wanted = STAGE_RAW;
    cli_option options[INPUTS_MAX_OPTIONS];
    cli_syntax syntax = {"score",
                         "",
                         "The score of every cached key, as an .npy array (f4; f8 with "
                         "--backend reference).",
                         options,
                         0,
                         0,
                         0};
    int code;
    inputs_init(&in);
    syntax.n_options = inputs_options(&in, options);
    options[syntax.n_options++] = (cli_option)CLI_CHOICE(
        "stage", STAGES, &wanted, "raw [L,Hq,N] (default), grouped [L,Hkv,N] or per-head [Hkv,N]");
    code = cli_parse(&syntax, argc, argv, NULL);
    if (code == CLI_CONTINUE && in.normalize_over == TRIA_NORMALIZE_CANDIDATES) {
        code = cli_bad_usage("score: --normalize-over candidates is for select: here nothing is protected");
    }
    if (code == CLI_CONTINUE) {
        code = run(&in, (stage)wanted);
    }
    inputs_free(&in);
    return code;
}

/* calibrate.c - `tria calibrate`: a calibration from query vectors. */
#include "load.h"
#include "tria/accumulator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct calibration_run {
    cli_list queries;
    const char *model_path;
    const char *output;
    const char *positions_path;
    const char *merge_path;
    bool rotated;

    tria_model *model;
    int32_t *attention; /* layers with attention, ascending */
    int32_t n_attention;
    tria_accumulator *accumulator;
    int32_t n_dims; /* of the files of queries: all layers in each, or one */
    npy_array position_array;
    int32_t *positions;
    uint64_t done; /* tokens of layers, for the progress line */
    uint64_t total;
} calibration_run;

static int find_attention(calibration_run *run)
{
    const int32_t n_layers = tria_model_n_layers(run->model);
    run->attention = cli_allocate((size_t)n_layers, sizeof(*run->attention));
    for (int32_t l = 0; l < n_layers; l++) {
        tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
        (void)tria_model_layer(run->model, l, &layer, NULL);
        if (layer.n_q_heads > 0) {
            run->attention[run->n_attention++] = l;
        }
    }
    return run->n_attention > 0 ? CLI_CONTINUE
                                : cli_bad_input("%s: no layer has attention", run->model_path);
}

static int load_positions(calibration_run *run)
{
    tria_error error;
    if (run->positions_path == NULL) {
        return CLI_CONTINUE;
    }
    if (npy_read(run->positions_path, &run->position_array, &error) != TRIA_OK) {
        return cli_library_error(run->positions_path, &error);
    }
    if (run->position_array.n_dims != 1) {
        return cli_bad_input("%s: expected one position per token", run->positions_path);
    }
    return cli_integers(run->positions_path, &run->position_array, 0, INT32_MAX, &run->positions, &error) ==
                   TRIA_OK
               ? CLI_CONTINUE
               : cli_library_error(run->positions_path, &error);
}

static int dtype_of(const npy_array *array)
{
    return array->size == 2 ? TRIA_DTYPE_F16 : array->size == 4 ? TRIA_DTYPE_F32 : TRIA_DTYPE_F64;
}

/* Adds one layer's block of a file. */
static int add_block(calibration_run *run, const char *path, const npy_array *array, int32_t layer,
                     int64_t index)
{
    const int32_t base = array->n_dims - 3;
    const int64_t *dims = array->dims + base;
    tria_layer_params params = TRIA_LAYER_PARAMS_INIT;
    tria_queries queries;
    tria_error error;
    (void)tria_model_layer(run->model, layer, &params, NULL);
    if (dims[1] != params.n_q_heads || dims[2] != params.head_dim) {
        return cli_bad_input("%s: %" PRId64 " heads of %" PRId64 " dimensions, layer %" PRId32
                             " of the model has %" PRId32 " of %" PRId32,
                             path, dims[1], dims[2], layer, params.n_q_heads, params.head_dim);
    }
    if (run->positions != NULL && run->position_array.count != dims[0]) {
        return cli_bad_input("%s: %" PRId64 " positions, %s has %" PRId64 " tokens", run->positions_path,
                             run->position_array.count, path, dims[0]);
    }
    tria_queries_init(&queries);
    queries.layer = layer;
    queries.dtype = dtype_of(array);
    queries.data = (const unsigned char *)array->data +
                   (size_t)(index * dims[0] * dims[1] * dims[2]) * (size_t)array->size;
    queries.n_tokens = dims[0];
    queries.positions = run->positions;
    if (tria_accumulator_add(run->accumulator, &queries, &error) != TRIA_OK) {
        return cli_library_error(path, &error);
    }
    cli_progress("calibrate", ++run->done, run->total);
    return CLI_CONTINUE;
}

/* Layer `index` of the run: all layers when there are as many, else those with attention. */
static int32_t layer_of(const calibration_run *run, int64_t count, int64_t index)
{
    return count == tria_model_n_layers(run->model) ? (int32_t)index : run->attention[index];
}

static int check_count(const calibration_run *run, const char *what, int64_t count)
{
    if (count == run->n_attention || count == tria_model_n_layers(run->model)) {
        return CLI_CONTINUE;
    }
    return cli_bad_input("%s: %" PRId64 " layers of queries, the model has %" PRId32 " (%" PRId32
                         " with attention)",
                         what, count, tria_model_n_layers(run->model), run->n_attention);
}

static int add_file(calibration_run *run, size_t file)
{
    const char *path = run->queries.items[file];
    npy_array array;
    tria_error error;
    char text[128];
    int code = CLI_CONTINUE;
    if (npy_read(path, &array, &error) != TRIA_OK) {
        return cli_library_error(path, &error);
    }
    if (array.kind != 'f' || array.n_dims < 3 || array.n_dims > 4) {
        code = cli_bad_input(
            "%s: %s, expected numbers [tokens, heads, head_dim] or [layers, tokens, heads, head_dim]", path,
            npy_describe(&array, text, sizeof(text)));
    } else if (file > 0 && array.n_dims != run->n_dims) {
        code = cli_bad_input("%s: %s, but %s has %" PRId32 " dimensions: one layer per file or all in each",
                             path, npy_describe(&array, text, sizeof(text)), run->queries.items[0],
                             run->n_dims);
    } else if (array.n_dims == 3) {
        run->total = run->queries.count;
        code = check_count(run, path, (int64_t)run->queries.count);
        if (code == CLI_CONTINUE) {
            code =
                add_block(run, path, &array, layer_of(run, (int64_t)run->queries.count, (int64_t)file), 0);
        }
    } else {
        code = check_count(run, path, array.dims[0]);
        run->total = run->queries.count * (uint64_t)array.dims[0];
        for (int64_t i = 0; i < array.dims[0] && code == CLI_CONTINUE; i++) {
            code = add_block(run, path, &array, layer_of(run, array.dims[0], i), i);
        }
    }
    run->n_dims = array.n_dims;
    npy_free(&array);
    return code;
}

static int merge_old(calibration_run *run)
{
    tria_calibration *old;
    tria_error error;
    tria_status status;
    if (run->merge_path == NULL) {
        return CLI_CONTINUE;
    }
    if (cli_load_calibration(run->merge_path, run->model, &old, &error) != TRIA_OK) {
        return cli_library_error(run->merge_path, &error);
    }
    status = tria_calibration_match(old, run->model, cli_report_finding, (void *)(uintptr_t)run->merge_path,
                                    &error);
    if (status == TRIA_OK) {
        status = tria_accumulator_add_calibration(run->accumulator, old, &error);
    }
    tria_calibration_destroy(old);
    return status == TRIA_OK ? CLI_CONTINUE : cli_library_error(run->merge_path, &error);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One line: what was made. */
static void print_summary(const calibration_run *run, const tria_calibration *calibration)
{
    tria_calibration_info info = {.struct_size = sizeof(info)};
    double *values;
    size_t count = 0;
    (void)tria_calibration_get_info(calibration, &info, NULL);
    values = cli_allocate((size_t)info.n_calibrated, sizeof(*values));
    for (int32_t l = 0; l < info.n_layers; l++) {
        tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
        (void)tria_calibration_layer(calibration, l, &layer, NULL);
        for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
            tria_head_stats stats = {.struct_size = sizeof(stats)};
            int32_t present = 0;
            (void)tria_calibration_head(calibration, l, h, &stats, &present, NULL);
            if (present) {
                (void)tria_calibration_concentration(calibration, l, h, &values[count++], NULL);
            }
        }
    }
    qsort(values, count, sizeof(*values), compare_doubles);
    printf("%s: %" PRIu64 " tokens, %zu heads, concentration min %.3f median %.3f max %.3f\n", run->output,
           info.n_tokens, count, values[0], values[count / 2], values[count - 1]);
    free(values);
}

static int finish(calibration_run *run)
{
    tria_calibration *calibration = NULL;
    tria_error error;
    char provenance[96];
    tria_status status = tria_accumulator_finish(run->accumulator, cli_report_finding,
                                                 (void *)(uintptr_t)run->output, &calibration, &error);
    snprintf(provenance, sizeof(provenance), "tria calibrate, libtria %s, %zu file%s",
             tria_version_string(), run->queries.count, run->queries.count == 1 ? "" : "s");
    if (status == TRIA_OK) {
        status = tria_calibration_set_texts(calibration, NULL, NULL, provenance, NULL, &error);
    }
    if (status == TRIA_OK) {
        status = tria_calibration_save(calibration, TRIA_FORMAT_TRIA5, 0, run->output, &error);
    }
    if (status == TRIA_OK) {
        print_summary(run, calibration);
    }
    tria_calibration_destroy(calibration);
    return status == TRIA_OK ? CLI_OK : cli_library_error(run->output, &error);
}

static int run_all(calibration_run *run)
{
    tria_accumulator_params params;
    tria_error error;
    int code;
    if (cli_load_model(run->model_path, &run->model, &error) != TRIA_OK) {
        return cli_library_error(run->model_path, &error);
    }
    code = find_attention(run);
    if (code == CLI_CONTINUE) {
        code = load_positions(run);
    }
    if (code != CLI_CONTINUE) {
        return code;
    }
    tria_accumulator_params_init(&params);
    params.model = run->model;
    if (tria_accumulator_create(&params, cli_env(), &run->accumulator, &error) != TRIA_OK) {
        return cli_library_error(run->model_path, &error);
    }
    code = merge_old(run);
    for (size_t i = 0; i < run->queries.count && code == CLI_CONTINUE; i++) {
        code = add_file(run, i);
    }
    return code == CLI_CONTINUE ? finish(run) : code;
}

int cli_calibrate(int argc, char **argv)
{
    calibration_run run = {0};
    const cli_option options[] = {
        CLI_LIST("queries", "Q.npy...", &run.queries,
                 "queries as they enter RoPE: [tokens, heads, head_dim], one file per layer, or [layers, "
                 "tokens, heads, "
                 "head_dim]"),
        CLI_TEXT("model", "M.json", &run.model_path, "the model's description"),
        CLI_TEXT("output", "OUT.tria", &run.output, "where the calibration goes"),
        CLI_FLAG("rotated", &run.rotated, "the queries were taken after RoPE; needs --positions"),
        CLI_TEXT("positions", "P.npy", &run.positions_path, "int32 [tokens]: their RoPE positions"),
        CLI_TEXT("merge", "OLD.tria", &run.merge_path, "continue this calibration"),
    };
    const cli_syntax syntax = {
        "calibrate", "", "A calibration from query vectors.", options, CLI_COUNT(options), 0, 0};
    int code = cli_parse(&syntax, argc, argv, NULL);
    if (code == CLI_CONTINUE && (run.queries.count == 0 || run.model_path == NULL || run.output == NULL)) {
        code = cli_bad_usage("calibrate: --queries, --model and --output are needed");
    }
    if (code == CLI_CONTINUE && run.rotated != (run.positions_path != NULL)) {
        code = cli_bad_usage("calibrate: --rotated and --positions go together");
    }
    if (code == CLI_CONTINUE) {
        code = run_all(&run);
    }
    cli_list_free(&run.queries);
    free(run.attention);
    free(run.positions);
    npy_free(&run.position_array);
    tria_accumulator_destroy(run.accumulator);
    tria_model_destroy(run.model);
    return code;
}

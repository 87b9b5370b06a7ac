/* compact.c - `tria compact`: keys and values with only the kept rows. */
#include "json.h"
#include "load.h"
#include "npy.h"
#include "options.h"
#include "tria/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct compaction {
    /* the command line */
    const char *keys_path;
    const char *values_path;
    const char *keep_path;
    const char *positions_path;
    const char *output_keys;
    const char *output_values;
    const char *output_positions;
    const char *moves_path;
    int64_t n_threads;
    int32_t order;
    int32_t backend;
    bool keep_per_layer;
    bool json;

    /* what it names, loaded; keys, values and positions are compacted in place */
    cli_device device;
    npy_array keys;
    npy_array values;
    npy_array keep;      /* i4 */
    npy_array positions; /* i4 [L, Hkv, N] */
    int32_t mode;
    tria_layer_view *layer_views;
    tria_kv_view view;
    tria_model *model;
    int32_t *counts;
    npy_array moves; /* i4 [capacity, 4] */
    tria_compaction report;
} compaction;

static int load_rows(const char *path, npy_array *array)
{
    tria_error error;
    char text[128];
    if (npy_read(path, array, &error) != TRIA_OK) {
        return cli_library_error(path, &error);
    }
    if (array->n_dims != 4 || array->count == 0 || array->dims[0] > TRIA_MAX_LAYERS ||
        array->dims[1] > TRIA_MAX_HEADS || array->dims[2] > INT32_MAX) {
        return cli_bad_input("%s: %s, expected rows [L, Hkv, N, D]", path,
                             npy_describe(array, text, sizeof(text)));
    }
    return CLI_CONTINUE;
}

static int load_keys_and_values(compaction *c)
{
    char text[128];
    int code = load_rows(c->keys_path, &c->keys);
    if (code != CLI_CONTINUE || c->values_path == NULL) {
        return code;
    }
    code = load_rows(c->values_path, &c->values);
    if (code == CLI_CONTINUE && memcmp(c->keys.dims, c->values.dims, 3 * sizeof(c->keys.dims[0])) != 0) {
        code = cli_bad_input("%s: %s: other layers, heads or rows than %s", c->values_path,
                             npy_describe(&c->values, text, sizeof(text)), c->keys_path);
    }
    return code;
}

static int load_positions(compaction *c)
{
    tria_error error;
    npy_array array = {0};
    int32_t *values = NULL;
    int64_t n_rows = c->keys.dims[2];
    bool shared = true;
    if (c->positions_path != NULL) {
        char text[128];
        bool fits;
        if (npy_read(c->positions_path, &array, &error) != TRIA_OK ||
            cli_integers(c->positions_path, &array, 0, INT32_MAX, &values, &error) != TRIA_OK) {
            npy_free(&array);
            return cli_library_error(c->positions_path, &error);
        }
        npy_describe(&array, text, sizeof(text));
        shared = array.n_dims == 1;
        fits = shared ? array.dims[0] == n_rows
                      : array.n_dims == 3 && memcmp(array.dims, c->keys.dims, sizeof(int64_t) * 3) == 0;
        npy_free(&array);
        if (!fits) {
            free(values);
            return cli_bad_input("%s: %s, expected int32 [%" PRId64 "] or [L, Hkv, %" PRId64 "]",
                                 c->positions_path, text, n_rows, n_rows);
        }
    }
    c->positions = npy_create('i', 4, 3, c->keys.dims);
    for (int64_t i = 0; i < c->positions.count; i++) {
        int32_t row = (int32_t)(i % n_rows);
        ((int32_t *)c->positions.data)[i] = values == NULL ? row : values[shared ? row : i];
    }
    free(values);
    return CLI_CONTINUE;
}

/* Which mode has keep sets of this shape; -1: none. */
static int32_t mode_of_shape(const compaction *c)
{
    const int64_t *dims = c->keep.dims;
    switch (c->keep.n_dims) {
    case 1:
        return TRIA_MODE_UNION;
    case 2:
        if (dims[0] == c->keys.dims[1] && !c->keep_per_layer) {
            return TRIA_MODE_PER_HEAD;
        }
        return dims[0] == c->keys.dims[0] ? TRIA_MODE_PER_LAYER : -1;
    case 3:
        return dims[0] == c->keys.dims[0] && dims[1] == c->keys.dims[1] ? TRIA_MODE_PER_LAYER_PER_HEAD : -1;
    default:
        return -1;
    }
}

/* Counts the rows of each set and checks that they ascend and that only padding follows. */
static int count_rows(compaction *c, int64_t n_sets, int64_t width)
{
    c->counts = cli_allocate((size_t)n_sets, sizeof(*c->counts));
    for (int64_t set = 0; set < n_sets; set++) {
        const int32_t *rows = (const int32_t *)c->keep.data + set * width;
        int32_t count = 0;
        while (count < width && rows[count] >= 0) {
            count++;
        }
        for (int64_t i = 1; i < width; i++) {
            if (i < count ? rows[i] <= rows[i - 1] : i > count && rows[i] != -1) {
                return cli_bad_input("%s: set %" PRId64 ", element %" PRId64
                                     ": rows must ascend, then only -1 may follow",
                                     c->keep_path, set, i);
            }
        }
        c->counts[set] = count;
    }
    return CLI_CONTINUE;
}

static int load_keep(compaction *c)
{
    tria_error error;
    int32_t *rows;
    char text[128];
    int64_t width;
    if (npy_read(c->keep_path, &c->keep, &error) != TRIA_OK ||
        cli_integers(c->keep_path, &c->keep, -1, c->keys.dims[2] - 1, &rows, &error) != TRIA_OK) {
        return cli_library_error(c->keep_path, &error);
    }
    free(c->keep.data);
    c->keep.data = rows;
    c->keep.size = 4;
    c->mode = mode_of_shape(c);
    if (c->mode < 0 || c->keep.count == 0 || c->keep.dims[c->keep.n_dims - 1] > c->keys.dims[2]) {
        return cli_bad_input("%s: %s fits no keep set [K], [Hkv, K], [L, K] or [L, Hkv, K] of the keys",
                             c->keep_path, npy_describe(&c->keep, text, sizeof(text)));
    }
    width = c->keep.dims[c->keep.n_dims - 1];
    return count_rows(c, c->keep.count / width, width);
}

/* To compaction a row is bytes: any type of the same width does. */
static void describe_tensor(const npy_array *array, int64_t layer, tria_tensor *tensor)
{
    int64_t row_bytes = array->dims[3] * array->size;
    int64_t layer_bytes = array->dims[1] * array->dims[2] * row_bytes;
    int32_t size = array->size < 4 ? array->size : 4;
    if (row_bytes == size && size > 1) {
        size /= 2; /* a model has no heads of one dimension, but scales are such rows */
    }
    tensor->base = (unsigned char *)array->data + layer * layer_bytes;
    tensor->size = (uint64_t)layer_bytes;
    tensor->token_stride = row_bytes;
    tensor->head_stride = array->dims[2] * row_bytes;
    tensor->dtype = size == 1 ? TRIA_DTYPE_FP8_E4M3FN : size == 2 ? TRIA_DTYPE_F16 : TRIA_DTYPE_F32;
    tensor->dim = (int32_t)(row_bytes / size);
}

static int build_model(compaction *c)
{
    tria_error error;
    int32_t n_layers = (int32_t)c->keys.dims[0];
    tria_layer_params *layers = cli_allocate((size_t)n_layers, sizeof(*layers));
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    int code = CLI_CONTINUE;
    for (int32_t i = 0; i < n_layers; i++) {
        tria_layer_params_init(&layers[i]);
        layers[i].n_q_heads = (int32_t)c->keys.dims[1];
        layers[i].n_kv_heads = (int32_t)c->keys.dims[1];
        layers[i].head_dim = c->layer_views[i].k.dim;
        layers[i].rotary_dim = 2; /* nothing is scored */
    }
    params.layers = layers;
    params.n_layers = n_layers;
    if (tria_model_create(&params, cli_env(), &c->model, &error) != TRIA_OK) {
        code = cli_library_error(c->keys_path, &error);
    }
    free(layers);
    return code;
}

static int build_view(compaction *c)
{
    int32_t n_layers = (int32_t)c->keys.dims[0];
    if (c->keys.dims[3] * c->keys.size > 4 * TRIA_MAX_HEAD_DIM ||
        (c->values_path != NULL && c->values.dims[3] * c->values.size > 4 * TRIA_MAX_HEAD_DIM)) {
        return cli_bad_input("%s: rows of more than %d bytes", c->keys_path, 4 * TRIA_MAX_HEAD_DIM);
    }
    c->layer_views = cli_allocate((size_t)n_layers, sizeof(*c->layer_views));
    for (int32_t i = 0; i < n_layers; i++) {
        describe_tensor(&c->keys, i, &c->layer_views[i].k);
        if (c->values_path != NULL) {
            describe_tensor(&c->values, i, &c->layer_views[i].v);
        }
    }
    tria_kv_view_init(&c->view);
    c->view.layers = c->layer_views;
    c->view.n_layers = n_layers;
    return build_model(c);
}

/* The first K rows of every (layer, head) of what was compacted in place. */
static int write_rows(const compaction *c, const char *path, const npy_array *array)
{
    tria_error error;
    int64_t dims[4] = {array->dims[0], array->dims[1], c->keep.dims[c->keep.n_dims - 1], array->dims[3]};
    size_t row_bytes = (size_t)array->size * (size_t)(array->n_dims == 4 ? array->dims[3] : 1);
    npy_array out;
    tria_status status;
    if (path == NULL) {
        return CLI_OK;
    }
    out = npy_create(array->kind, array->size, array->n_dims, dims);
    for (int64_t i = 0; i < dims[0] * dims[1]; i++) {
        memcpy((unsigned char *)out.data + (size_t)(i * dims[2]) * row_bytes,
               (const unsigned char *)array->data + (size_t)(i * array->dims[2]) * row_bytes,
               (size_t)dims[2] * row_bytes);
    }
    status = npy_write(path, &out, &error);
    npy_free(&out);
    return status == TRIA_OK ? CLI_OK : cli_library_error(path, &error);
}

static int write_moves(compaction *c)
{
    tria_error error;
    if (c->moves_path == NULL) {
        return CLI_OK;
    }
    c->moves.dims[0] = c->report.n_moves;
    c->moves.count = c->report.n_moves * 4;
    return npy_write(c->moves_path, &c->moves, &error) == TRIA_OK
               ? CLI_OK
               : cli_library_error(c->moves_path, &error);
}

static void print_report(const compaction *c)
{
    json_writer json = {stdout, false};
    json_open(&json, NULL, '{');
    json_integer(&json, "rows_before", c->keys.dims[2]);
    json_integer(&json, "rows_after", c->report.rows_after);
    json_integer(&json, "n_moves", c->report.n_moves);
    json_integer(&json, "bytes_moved", c->report.bytes_moved);
    json_text(&json, "backend", cli_device_backend(&c->device));
    json_text(&json, "device", cli_device_name(&c->device));
    json_close(&json, '}');
    printf("\n");
}

/* Padding of positions is -1, as in keep sets. */
static void pad_positions(compaction *c)
{
    int64_t width = c->keep.dims[c->keep.n_dims - 1];
    int64_t n_rows = c->keys.dims[2];
    int64_t n_heads = c->keys.dims[1];
    for (int64_t i = 0; i < c->keys.dims[0] * n_heads; i++) {
        int64_t set = c->mode == TRIA_MODE_PER_LAYER_PER_HEAD ? i
                      : c->mode == TRIA_MODE_PER_LAYER        ? i / n_heads
                      : c->mode == TRIA_MODE_PER_HEAD         ? i % n_heads
                                                              : 0;
        for (int64_t k = c->counts[set]; k < width; k++) {
            ((int32_t *)c->positions.data)[i * n_rows + k] = -1;
        }
    }
}

static int write_results(compaction *c)
{
    int code;
    pad_positions(c);
    code = write_rows(c, c->output_keys, &c->keys);
    code = code == CLI_OK ? write_rows(c, c->output_values, &c->values) : code;
    code = code == CLI_OK ? write_rows(c, c->output_positions, &c->positions) : code;
    code = code == CLI_OK ? write_moves(c) : code;
    if (code == CLI_OK && c->json) {
        print_report(c);
    }
    return code;
}

static int run_plan(compaction *c, tria_plan *plan)
{
    tria_error error;
    tria_batch batch;
    tria_event event;
    tria_keep keep;
    tria_event_init(&event);
    event.kv = &c->view;
    event.n_rows = (int32_t)c->keys.dims[2];
    event.t = INT32_MAX; /* not used by compaction, but above every position */
    event.positions = c->positions.data;
    event.positions_head_stride = c->keys.dims[2];
    event.positions_layer_stride = c->keys.dims[1] * c->keys.dims[2];
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.rows = c->keep.data;
    keep.counts = c->counts;
    keep.row_stride = c->keep.dims[c->keep.n_dims - 1];
    tria_compaction_init(&c->report);
    if (c->moves_path != NULL) {
        const int64_t dims[2] = {c->positions.count, 4};
        c->moves = npy_create('i', 4, 2, dims);
        c->report.moves = c->moves.data;
        c->report.moves_capacity = dims[0];
    }
    if (tria_plan_compact(plan, &batch, &keep, &c->report, &error) != TRIA_OK ||
        tria_plan_synchronize(plan, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    return write_results(c);
}

static int run(compaction *c)
{
    tria_plan_params params;
    tria_plan *plan = NULL;
    tria_error error;
    int code;
    if (cli_open_device(c->backend, &c->device, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    code = load_keys_and_values(c);
    code = code == CLI_CONTINUE ? load_positions(c) : code;
    code = code == CLI_CONTINUE ? load_keep(c) : code;
    code = code == CLI_CONTINUE ? build_view(c) : code;
    if (code != CLI_CONTINUE) {
        return code;
    }
    tria_plan_params_init(&params);
    params.model = c->model;
    params.layout = &c->view;
    params.mode = c->mode;
    params.order = c->order;
    params.zero_tail = 1; /* what pads shorter sets in the output */
    params.max_rows = (int32_t)c->keys.dims[2];
    params.n_threads = (int32_t)c->n_threads;
    params.score_device = c->device.device;
    params.select_device = c->device.device;
    params.compact_device = c->device.device;
    params.stage_device_memory = c->device.device != NULL; /* the rows lie in host memory */
    if (tria_plan_create(&params, cli_env(), &plan, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    code = run_plan(c, plan);
    tria_plan_destroy(plan);
    return code;
}

static int check_usage(const compaction *c)
{
    if (c->keys_path == NULL || c->keep_path == NULL) {
        return cli_bad_usage("compact: --keys and --keep are needed");
    }
    if (c->output_values != NULL && c->values_path == NULL) {
        return cli_bad_usage("compact: --output-values needs --values");
    }
    if (c->output_keys == NULL && c->output_values == NULL && c->output_positions == NULL &&
        c->moves_path == NULL && !c->json) {
        return cli_bad_usage("compact: nothing is asked for (--output-keys, --output-values, "
                             "--output-positions, --moves or --json)");
    }
    return CLI_CONTINUE;
}

int cli_compact(int argc, char **argv)
{
    compaction c = {.n_threads = 1};
    const cli_option options[] = {
        CLI_TEXT("keys", "K.npy", &c.keys_path, "[L, Hkv, N, D], any type"),
        CLI_TEXT("values", "V.npy", &c.values_path, "[L, Hkv, N, D], any type"),
        CLI_TEXT("keep", "KEEP.npy", &c.keep_path,
                 "int32 [K], [Hkv, K], [L, K] or [L, Hkv, K], -1 at the end"),
        CLI_FLAG("keep-per-layer", &c.keep_per_layer, "KEEP is [L, K] even if it could be [Hkv, K]"),
        CLI_TEXT("positions", "P.npy", &c.positions_path, "int32 [N] or [L, Hkv, N]; default 0 ... N-1"),
        CLI_CHOICE("order", "stable|fill-holes", &c.order, "default stable"),
        CLI_TEXT("output-keys", "FILE", &c.output_keys, "[L, Hkv, K, D]"),
        CLI_TEXT("output-values", "FILE", &c.output_values, "[L, Hkv, K, D]"),
        CLI_TEXT("output-positions", "FILE", &c.output_positions,
                 "int32 [L, Hkv, K], -1 beyond a set's rows"),
        CLI_TEXT("moves", "FILE", &c.moves_path, "int32 [m, 4]: layer, KV head, from, to, in order"),
        CLI_CHOICE("backend", CLI_BACKENDS, &c.backend, "default auto"),
        CLI_INTEGER("threads", "N", &c.n_threads, 1, 1024, "CPU threads, default 1"),
        CLI_FLAG("json", &c.json, "print a report as JSON"),
    };
    const cli_syntax syntax = {
        "compact", "", "Keys and values with only the kept rows.", options, CLI_COUNT(options), 0, 0};
    int code = cli_parse(&syntax, argc, argv, NULL);
    code = code == CLI_CONTINUE ? check_usage(&c) : code;
    code = code == CLI_CONTINUE ? run(&c) : code;
    npy_free(&c.keys);
    npy_free(&c.values);
    npy_free(&c.keep);
    npy_free(&c.positions);
    npy_free(&c.moves);
    free(c.counts);
    free(c.layer_views);
    tria_model_destroy(c.model);
    cli_close_device(&c.device);
    return code;
}

/*
 * bench.c - `tria bench`: how fast an event is here, next to how fast this machine reads memory, or the
 * device copies its own.
 *
 * Keys and values are random; what is measured does not depend on them. Medians over repetitions.
 */
#include "bench_baseline.h"
#include "load.h"
#include "options.h"
#include "tria/tria.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES "qwen3-8b, llama3-8b, smollm2-135m"
#define MODES "per-layer-per-head|per-head|per-layer|union|global"
enum { MAX_REPEAT = 99, DEFAULT_LAYERS = 8 };
#define MAX_COPY ((size_t)1 << 28) /* bytes of one measured copy on a device */

typedef struct shape {
    int32_t n_layers;
    int32_t n_q_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
} shape;

typedef struct settings {
    const char *shape_name;
    const char *dtype_name;
    shape shape;
    int32_t dtype;
    int64_t rows;
    int64_t threads;
    int64_t layers;
    int64_t budget;
    int64_t repeat;
    int32_t mode;
    int32_t backend; /* of CLI_BACKENDS */
    int32_t by_head; /* heads one after the other, or side by side in every token */
    bool kept_terms;
    bool json;
} settings;

typedef struct bench {
    settings s;
    cli_device device;
    tria_model *model;
    tria_calibration *calibration;
    tria_plan *plan;
    tria_terms *terms;
    tria_layer_view *layers;
    tria_kv_view view;
    unsigned char *keys;
    unsigned char *values;
    size_t key_bytes; /* of all layers */
    tria_event event;
    tria_keep keep;
    tria_error error;
} bench;

typedef struct results {
    double read;  /* bytes per second: reading, or read and written by a copy on the device */
    double score; /* seconds, as all below */
    double normalise;
    double select;
    double compact;
    double event; /* score to select, from call to return */
    double plain; /* ns per key */
    int64_t bytes_moved;
    size_t workspace;
} results;

static const struct {
    const char *name;
    shape shape;
} known_shapes[] = {
    {"qwen3-8b", {36, 32, 8, 128}},
    {"llama3-8b", {32, 32, 8, 128}},
    {"smollm2-135m", {30, 9, 3, 64}},
};

static int parse_shape(settings *s)
{
    char rest;
    for (size_t i = 0; i < CLI_COUNT(known_shapes); i++) {
        if (strcmp(s->shape_name, known_shapes[i].name) == 0) {
            s->shape = known_shapes[i].shape;
            return CLI_CONTINUE;
        }
    }
    if (sscanf(s->shape_name, "%d,%d,%d,%d%c", &s->shape.n_layers, &s->shape.n_q_heads,
               &s->shape.n_kv_heads, &s->shape.head_dim, &rest) != 4) {
        return cli_bad_usage("bench: --shape %s is neither L,Hq,Hkv,D nor one of " SHAPES, s->shape_name);
    }
    return CLI_CONTINUE;
}

static int parse(settings *s, int argc, char **argv)
{
    const cli_option options[] = {
        CLI_TEXT("shape", "NAME or L,Hq,Hkv,D", &s->shape_name,
                 "of the model: " SHAPES "; default qwen3-8b"),
        CLI_INTEGER("rows", "N", &s->rows, 1, 1 << 24, "rows in the cache, default 32768"),
        CLI_TEXT("dtype", "NAME", &s->dtype_name, "of keys and values, default f16"),
        CLI_CHOICE("backend", CLI_BACKENDS, &s->backend,
                   "default auto, the CPU; on others the device's clock times the stages"),
        CLI_INTEGER("threads", "N", &s->threads, 1, 4096, "of the CPU, default 1"),
        CLI_INTEGER("layers", "L", &s->layers, 1, 4096, "how many of the layers, default at most 8"),
        CLI_INTEGER("budget", "ROWS", &s->budget, 1, 1 << 24,
                    "rows kept, default 2048 or half of the rows"),
        CLI_CHOICE("mode", MODES, &s->mode, "default per-layer-per-head, which has most sets"),
        CLI_CHOICE("layout", "token|head", &s->by_head, "what is outermost in a layer; default token"),
        CLI_INTEGER("repeat", "N", &s->repeat, 1, MAX_REPEAT,
                    "repetitions, default 9; medians are printed"),
        CLI_FLAG("kept-terms", &s->kept_terms, "keep norm terms between events"),
        CLI_FLAG("json", &s->json, "print the report as JSON"),
    };
    const cli_syntax syntax = {
        "bench", "", "How fast scoring, selecting and compacting are here.", options, CLI_COUNT(options),
        0,       0};
    int code = cli_parse(&syntax, argc, argv, NULL);
    if (code != CLI_CONTINUE) {
        return code;
    }
    code = parse_shape(s);
    if (code != CLI_CONTINUE) {
        return code;
    }
    s->dtype = tria_dtype_from_name(s->dtype_name);
    if (s->dtype < 0 || s->dtype == TRIA_DTYPE_F64) {
        return cli_bad_usage("bench: --dtype %s is no element type of keys", s->dtype_name);
    }
    if (s->layers == 0) {
        s->layers = s->shape.n_layers < DEFAULT_LAYERS ? s->shape.n_layers : DEFAULT_LAYERS;
    }
    if (s->layers < s->shape.n_layers) {
        s->shape.n_layers = (int32_t)s->layers;
    }
    if (s->budget == 0) {
        s->budget = s->rows / 2 < 2048 ? (s->rows + 1) / 2 : 2048;
    }
    return CLI_CONTINUE;
}

/* Random bytes that are ordinary numbers: exponents near 1, scales of blocks small. */
static void fill(unsigned char *data, size_t size, int32_t dtype)
{
    static const uint64_t keep[] = {0x807fffff807fffffU, 0x83ff83ff83ff83ffU, 0x807f807f807f807fU,
                                    0xbfbfbfbfbfbfbfbfU, 0xbfbfbfbfbfbfbfbfU, 0xbfbfbfbfbfbfbfbfU};
    static const uint64_t set[] = {
        0x3f0000003f000000U, 0x3800380038003800U, 0x3f003f003f003f00U, 0, 0x0101010101010101U, 0};
    const bool floats = dtype <= TRIA_DTYPE_FP8_E5M2;
    const size_t block = (size_t)tria_dtype_block_bytes(dtype);
    uint64_t state = 88172645463325252U;
    for (size_t i = 0; i + 8 <= size; i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const uint64_t word = floats ? (state & keep[dtype]) | set[dtype] : state;
        memcpy(data + i, &word, 8);
    }
    for (size_t i = 0; tria_dtype_block(dtype) > 1 && i < size; i += block) {
        data[i + 1] = 0x1c; /* an f16 below 2^-7; some blocks have two */
        if (block % 4 == 0) {
            data[i + 3] = 0x1c;
        }
    }
}

static tria_status make_calibration(bench *b)
{
    const shape *dims = &b->s.shape;
    const int32_t n_freq = dims->head_dim / 2;
    float *stats = cli_allocate((size_t)n_freq * 3 + 1, sizeof(float));
    tria_status status = tria_calibration_create(b->model, NULL, &b->calibration, &b->error);
    for (int32_t f = 0; f < n_freq; f++) {
        stats[f] = (float)(f % 7) - 3.0F;
        stats[n_freq + f] = (float)(f % 5) - 2.0F;
        stats[2 * n_freq + f] = 5.0F + (float)(f % 3);
    }
    for (int32_t i = 0; status == TRIA_OK && i < dims->n_layers * dims->n_q_heads; i++) {
        const tria_head_stats head = {sizeof(head), stats, stats + n_freq, stats + 2 * n_freq, NULL, NULL};
        stats[i % (2 * n_freq)] += 0.25F;
        status = tria_calibration_set_head(b->calibration, i / dims->n_q_heads, i % dims->n_q_heads, &head,
                                           &b->error);
    }
    free(stats);
    return status;
}

static tria_status make_model(bench *b)
{
    const shape *dims = &b->s.shape;
    tria_layer_params *layers = cli_allocate((size_t)dims->n_layers, sizeof(*layers));
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    for (int32_t l = 0; l < dims->n_layers; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = dims->n_q_heads;
        layers[l].n_kv_heads = dims->n_kv_heads;
        layers[l].head_dim = dims->head_dim;
    }
    params.layers = layers;
    params.n_layers = dims->n_layers;
    tria_status status = tria_model_create(&params, NULL, &b->model, &b->error);
    free(layers);
    return status;
}

static void make_tensor(const bench *b, unsigned char *data, int32_t layer, tria_tensor *tensor)
{
    const settings *s = &b->s;
    const int64_t row = tria_dtype_row_bytes(s->dtype, s->shape.head_dim);
    const int64_t size = row * s->rows * s->shape.n_kv_heads;
    tensor->base = data + layer * size;
    tensor->size = (uint64_t)size;
    tensor->token_stride = s->by_head ? row : row * s->shape.n_kv_heads;
    tensor->head_stride = s->by_head ? row * s->rows : row;
    tensor->dtype = s->dtype;
    tensor->dim = s->shape.head_dim;
    tensor->scale_kind = s->dtype == TRIA_DTYPE_INT8 ? TRIA_SCALE_TENSOR : TRIA_SCALE_NONE;
    tensor->scale = 0.0078125F;
}

static tria_status make_plan(bench *b, results *r)
{
    const settings *s = &b->s;
    tria_plan_params params;
    tria_plan_params_init(&params);
    params.model = b->model;
    params.calibration = b->calibration;
    params.layout = &b->view;
    params.mode = s->mode;
    params.budget = (int32_t)s->budget;
    params.max_rows = (int32_t)s->rows;
    params.n_threads = (int32_t)s->threads;
    params.score_device = b->device.device;
    params.select_device = b->device.device;
    params.compact_device = b->device.device;
    params.stage_device_memory = b->device.device != NULL;
    tria_status status = tria_plan_create(&params, NULL, &b->plan, &b->error);
    if (status == TRIA_OK) {
        status = tria_plan_workspace_size(&params, &r->workspace, &b->error);
    }
    if (status == TRIA_OK && s->kept_terms) {
        status = tria_terms_create(b->plan, NULL, &b->terms, &b->error);
    }
    return status;
}

/* From the start of a cache line on, as engines do. */
static unsigned char *allocate_cache(size_t size)
{
    const size_t line = 64;
    unsigned char *memory = aligned_alloc(line, (size + line - 1) / line * line);
    if (memory == NULL) {
        cli_message("no memory for %zu bytes of keys or values", size);
        exit(CLI_BAD_INPUT);
    }
    memset(memory, 0, size);
    return memory;
}

static tria_status set_up(bench *b, results *r)
{
    const settings *s = &b->s;
    const int64_t row = tria_dtype_row_bytes(s->dtype, s->shape.head_dim);
    tria_status status = cli_open_device(s->backend, &b->device, &b->error);
    if (status == TRIA_OK) {
        status = make_model(b);
    }
    if (status == TRIA_OK) {
        status = make_calibration(b);
    }
    if (status != TRIA_OK) {
        return status;
    }
    b->key_bytes = (size_t)row * (size_t)s->rows * (size_t)(s->shape.n_kv_heads * s->shape.n_layers);
    b->keys = allocate_cache(b->key_bytes);
    b->values = allocate_cache(b->key_bytes);
    b->layers = cli_allocate((size_t)s->shape.n_layers, sizeof(*b->layers));
    fill(b->keys, b->key_bytes, s->dtype);
    memcpy(b->values, b->keys, b->key_bytes);
    for (int32_t l = 0; l < s->shape.n_layers; l++) {
        make_tensor(b, b->keys, l, &b->layers[l].k);
        make_tensor(b, b->values, l, &b->layers[l].v);
    }
    tria_kv_view_init(&b->view);
    b->view.layers = b->layers;
    b->view.n_layers = s->shape.n_layers;
    status = make_plan(b, r);
    if (status == TRIA_OK) {
        const size_t n_sets = (size_t)tria_plan_n_sets(b->plan);
        tria_event_init(&b->event);
        b->event.kv = &b->view;
        b->event.t = s->rows;
        b->event.n_rows = (int32_t)s->rows;
        b->event.terms = b->terms;
        tria_keep_init(&b->keep);
        b->keep.rows = cli_allocate(n_sets * (size_t)s->rows, sizeof(int32_t));
        b->keep.counts = cli_allocate(n_sets, sizeof(int32_t));
        b->keep.row_stride = s->rows;
    }
    return status;
}

static void tear_down(bench *b)
{
    tria_terms_destroy(b->terms);
    tria_plan_destroy(b->plan);
    tria_calibration_destroy(b->calibration);
    tria_model_destroy(b->model);
    cli_close_device(&b->device);
    free(b->keep.rows);
    free(b->keep.counts);
    free(b->layers);
    free(b->keys);
    free(b->values);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return values[n / 2];
}

/* Bytes per second that the stages can be compared with. */
static tria_status measure_memory(bench *b, double *rate)
{
    const size_t bytes = b->key_bytes < MAX_COPY ? b->key_bytes : MAX_COPY;
    double seconds;
    if (b->device.device == NULL) {
        *rate = (double)b->key_bytes / bench_read(b->keys, b->key_bytes, (int32_t)b->s.threads);
        return TRIA_OK;
    }
    const tria_status status = tria_device_copy_seconds(b->device.device, bytes, &seconds, &b->error);
    *rate = status == TRIA_OK ? 2.0 * (double)bytes / seconds : 0.0;
    return status;
}

static tria_status measure(bench *b, results *r)
{
    double read[MAX_REPEAT], score[MAX_REPEAT], normalise[MAX_REPEAT], select[MAX_REPEAT],
        compact[MAX_REPEAT];
    double event[MAX_REPEAT];
    const int64_t n = b->s.repeat;
    const double threads = b->device.device == NULL ? (double)b->s.threads : 1.0;
    tria_batch batch;
    tria_compaction compaction;
    tria_batch_init(&batch);
    batch.events = &b->event;
    batch.n_events = 1;
    /* the first event touches the workspace, and learns the terms that are kept */
    tria_status status = tria_plan_select(b->plan, &batch, NULL, &b->keep, &b->error);
    for (int64_t i = 0; status == TRIA_OK && i < n; i++) {
        status = measure_memory(b, &read[i]);
        const double start = bench_now();
        if (status == TRIA_OK) {
            status = tria_plan_select(b->plan, &batch, NULL, &b->keep, &b->error);
        }
        event[i] = bench_now() - start;
        score[i] = tria_plan_seconds(b->plan, TRIA_PART_SCORE) / threads;
        normalise[i] = tria_plan_seconds(b->plan, TRIA_PART_NORMALIZE) / threads;
        select[i] = tria_plan_seconds(b->plan, TRIA_PART_SELECT) / threads;
        cli_progress("bench", (uint64_t)i + 1, (uint64_t)n);
    }
    b->event.terms = NULL;
    for (int64_t i = 0; status == TRIA_OK && i < n; i++) {
        tria_compaction_init(&compaction);
        status = tria_plan_compact(b->plan, &batch, &b->keep, &compaction, &b->error);
        if (status == TRIA_OK) {
            status = tria_plan_synchronize(b->plan, &b->error);
        }
        compact[i] = tria_plan_seconds(b->plan, TRIA_PART_COMPACT);
        r->bytes_moved = compaction.bytes_moved;
    }
    if (status == TRIA_OK) {
        r->read = median(read, n);
        r->event = median(event, n);
        r->score = median(score, n);
        r->normalise = median(normalise, n);
        r->select = median(select, n);
        r->compact = median(compact, n);
        r->plain = bench_plain(b->s.shape.head_dim, b->s.shape.n_q_heads / b->s.shape.n_kv_heads);
    }
    return status;
}

static void report(const bench *b, const results *r)
{
    const settings *s = &b->s;
    const double bytes = (double)b->key_bytes;
    const double keys = (double)s->rows * s->shape.n_kv_heads * s->shape.n_layers;
    const double read_gbps = r->read * 1e-9, score_gbps = bytes / r->score * 1e-9;
    const double moved_gbps = 2.0 * (double)r->bytes_moved / r->compact * 1e-9; /* read and written */
    const double ns = r->score / keys * 1e9;
    if (s->json) {
        printf("{\"backend\": \"%s\", \"device\": \"%s\", \"shape\": [%d, %d, %d, %d], \"rows\": %lld, "
               "\"dtype\": \"%s\", \"threads\": %lld, "
               "\"mode\": \"%s\", \"layout\": \"%s\", \"kept_terms\": %s, \"sets\": %d, \"repeat\": %lld, "
               "\"key_bytes\": %.0f, \"workspace_bytes\": %zu, \"read_gbps\": %.4g, ",
               cli_device_backend(&b->device), cli_device_name(&b->device), s->shape.n_layers,
               s->shape.n_q_heads, s->shape.n_kv_heads, s->shape.head_dim, (long long)s->rows,
               s->dtype_name, (long long)s->threads, tria_mode_name(s->mode), s->by_head ? "head" : "token",
               s->kept_terms ? "true" : "false", tria_plan_n_sets(b->plan), (long long)s->repeat, bytes,
               r->workspace, read_gbps);
        printf("\"score\": {\"seconds\": %.6g, \"gbps\": %.4g, \"ratio\": %.4g, \"ns_per_key\": %.4g}, ",
               r->score, score_gbps, score_gbps / read_gbps, ns);
        printf("\"normalise\": {\"seconds\": %.6g, \"share\": %.4g}, ", r->normalise,
               r->normalise / r->score);
        printf("\"select\": {\"seconds\": %.6g, \"share\": %.4g}, ", r->select, r->select / r->score);
        printf("\"compact\": {\"seconds\": %.6g, \"share\": %.4g, \"bytes_moved\": %lld, \"gbps\": %.4g, "
               "\"ratio\": %.4g}, ",
               r->compact, r->compact / r->score, (long long)r->bytes_moved, moved_gbps,
               moved_gbps / read_gbps);
        printf("\"event\": {\"seconds\": %.6g}, \"plain\": {\"ns_per_key\": %.5g}}\n", r->event, r->plain);
        return;
    }
    printf("%d layers, %d query heads on %d KV heads of %d, %lld rows of %s, %s-major, %lld thread%s\n",
           s->shape.n_layers, s->shape.n_q_heads, s->shape.n_kv_heads, s->shape.head_dim,
           (long long)s->rows, s->dtype_name, s->by_head ? "head" : "token", (long long)s->threads,
           s->threads == 1 ? "" : "s");
    if (b->device.device == NULL) {
        printf("read        %9.3f ms  %6.2f GB/s\n", bytes / r->read * 1e3, read_gbps);
    } else {
        printf("copy        %9.3f ms  %6.2f GB/s read and written by %s\n", 2.0 * bytes / r->read * 1e3,
               read_gbps, cli_device_name(&b->device));
    }
    printf("score       %9.3f ms  %6.2f GB/s, %.0f %% of that, %.1f ns per key (plain formula %.0f)\n",
           r->score * 1e3, score_gbps, 100.0 * score_gbps / read_gbps, ns, r->plain);
    printf("normalise   %9.3f ms  %.1f %% of scoring\n", r->normalise * 1e3,
           100.0 * r->normalise / r->score);
    printf("select      %9.3f ms  %.1f %% of scoring, %d sets\n", r->select * 1e3,
           100.0 * r->select / r->score, tria_plan_n_sets(b->plan));
    printf("compact     %9.3f ms  %6.2f GB/s read and written, %.1f MB moved\n", r->compact * 1e3,
           moved_gbps, (double)r->bytes_moved * 1e-6);
    printf("event       %9.3f ms  score to select%s\n", r->event * 1e3,
           b->device.device == NULL ? "" : ", keys copied to the device");
    printf("workspace   %9.3f MB  %.1f %% of the keys\n", (double)r->workspace * 1e-6,
           100.0 * (double)r->workspace / bytes);
}

int cli_bench(int argc, char **argv)
{
    bench b;
    results r;
    memset(&b, 0, sizeof(b));
    memset(&r, 0, sizeof(r));
    b.s.shape_name = "qwen3-8b";
    b.s.dtype_name = "f16";
    b.s.rows = 32768;
    b.s.threads = 1;
    b.s.repeat = 9;
    int code = parse(&b.s, argc, argv);
    if (code != CLI_CONTINUE) {
        return code;
    }
    tria_status status = set_up(&b, &r);
    if (status == TRIA_OK) {
        status = measure(&b, &r);
    }
    if (status == TRIA_OK) {
        report(&b, &r);
        code = CLI_OK;
    } else {
        code = cli_library_error(NULL, &b.error);
    }
    tear_down(&b);
    return code;
}

/* test_accumulator.c - sums of queries: any order, any chunking, any layout, rotated or not; shards,
 * checkpoints. */
#include "tria/accumulator.h"

#include "accumulator_internal.h"
#include "calibration_internal.h"
#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 700, HEADS = 3, DIM = 10, ROTARY = 6, OFFSET = 2, FREQ = 3, CONTENT = 4, LAYERS = 2 };

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(seed >> 11) / 9007199254740992.0;
}

/* Queries with a direction per head, plus noise. */
static void make_queries(double *queries, int32_t n_tokens)
{
    for (int32_t i = 0; i < n_tokens * HEADS * DIM; i++) {
        queries[i] = 0.5 * sin(0.7 * (i % (HEADS * DIM))) + uniform() - 0.5;
    }
}

static tria_model *make_partial_model(int32_t style)
{
    tria_layer_params layers[LAYERS] = {TRIA_LAYER_PARAMS_INIT, TRIA_LAYER_PARAMS_INIT};
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model;
    for (int32_t l = 0; l < LAYERS; l++) {
        layers[l].n_q_heads = HEADS;
        layers[l].n_kv_heads = 1;
        layers[l].head_dim = DIM;
        layers[l].rotary_dim = ROTARY;
        layers[l].rotary_offset = OFFSET;
        layers[l].rope_style = style;
    }
    params.layers = layers;
    params.n_layers = LAYERS;
    assert_int_equal(tria_model_create(&params, NULL, &model, NULL), TRIA_OK);
    return model;
}

static tria_accumulator *make_accumulator(const tria_model *model)
{
    tria_accumulator_params params;
    tria_accumulator *accumulator;
    tria_accumulator_params_init(&params);
    params.model = model;
    assert_int_equal(tria_accumulator_create(&params, NULL, &accumulator, NULL), TRIA_OK);
    return accumulator;
}

static void add(tria_accumulator *accumulator, int32_t layer, const double *data, int64_t n_tokens)
{
    tria_queries queries;
    tria_error error;
    tria_queries_init(&queries);
    queries.layer = layer;
    queries.dtype = TRIA_DTYPE_F64;
    queries.data = data;
    queries.n_tokens = n_tokens;
    if (tria_accumulator_add(accumulator, &queries, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

/* The statistics of one head, in long double, from the definition. */
typedef struct means {
    double real[FREQ], imag[FREQ], absolute[FREQ], content[CONTENT], size[CONTENT];
} means;

static means expected_means(const double *queries, int32_t n_tokens, int32_t head, int32_t style)
{
    long double sums[3][FREQ] = {{0}};
    long double content[2][CONTENT] = {{0}};
    means out;
    for (int32_t t = 0; t < n_tokens; t++) {
        const double *row = queries + ((size_t)t * HEADS + (size_t)head) * DIM;
        for (int32_t f = 0; f < FREQ; f++) {
            const double re = style ? row[OFFSET + 2 * f] : row[OFFSET + f];
            const double im = style ? row[OFFSET + 2 * f + 1] : row[OFFSET + FREQ + f];
            sums[0][f] += re;
            sums[1][f] += im;
            sums[2][f] += sqrtl((long double)re * re + (long double)im * im);
        }
        for (int32_t d = 0; d < CONTENT; d++) {
            const double x = row[d < OFFSET ? d : d + ROTARY];
            content[0][d] += x;
            content[1][d] += fabs(x);
        }
    }
    for (int32_t f = 0; f < FREQ; f++) {
        out.real[f] = (double)(sums[0][f] / n_tokens);
        out.imag[f] = (double)(sums[1][f] / n_tokens);
        out.absolute[f] = (double)(sums[2][f] / n_tokens);
    }
    for (int32_t d = 0; d < CONTENT; d++) {
        out.content[d] = (double)(content[0][d] / n_tokens);
        out.size[d] = (double)(content[1][d] / n_tokens);
    }
    return out;
}

static void close_to(float value, double expected, double tolerance)
{
    if (!(fabs((double)value - expected) <= tolerance)) {
        fail_msg("%.9g, expected %.17g", (double)value, expected);
    }
}

static void check_layer(const tria_calibration *calibration, int32_t layer, const double *queries,
                        int32_t n_tokens, int32_t style, double tolerance)
{
    for (int32_t h = 0; h < HEADS; h++) {
        const means want = expected_means(queries, n_tokens, h, style);
        tria_head_stats stats = {.struct_size = sizeof(stats)};
        int32_t present;
        assert_int_equal(tria_calibration_head(calibration, layer, h, &stats, &present, NULL), TRIA_OK);
        assert_int_equal(present, 1);
        for (int32_t f = 0; f < FREQ; f++) {
            close_to(stats.q_mean_real[f], want.real[f], tolerance);
            close_to(stats.q_mean_imag[f], want.imag[f], tolerance);
            close_to(stats.q_abs_mean[f], want.absolute[f], tolerance);
        }
        for (int32_t d = 0; d < CONTENT; d++) {
            close_to(stats.content_mean[d], want.content[d], tolerance);
            close_to(stats.content_abs[d], want.size[d], tolerance);
        }
    }
}

static tria_calibration *finish(const tria_accumulator *accumulator)
{
    tria_calibration *calibration;
    tria_error error;
    if (tria_accumulator_finish(accumulator, NULL, NULL, &calibration, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return calibration;
}

static void test_means(void **state)
{
    static double queries[TOKENS * HEADS * DIM];
    (void)state;
    make_queries(queries, TOKENS);
    for (int32_t style = 0; style < 2; style++) {
        tria_model *model = make_partial_model(style);
        tria_accumulator *accumulator = make_accumulator(model);
        tria_calibration_info info = {.struct_size = sizeof(info)};
        tria_calibration *calibration;
        add(accumulator, 1, queries, TOKENS);
        calibration = finish(accumulator);
        check_layer(calibration, 1, queries, TOKENS, style, 6e-8); /* what rounding to float takes */
        assert_int_equal(tria_calibration_get_info(calibration, &info, NULL), TRIA_OK);
        assert_int_equal(info.n_calibrated, HEADS); /* layer 0 saw nothing */
        assert_int_equal(info.n_tokens, TOKENS);
        assert_int_equal(info.capture_point, TRIA_CAPTURE_AFTER_QK_NORM);
        assert_int_equal(calibration->layers[0].n_tokens, 0);
        tria_calibration_destroy(calibration);
        tria_accumulator_destroy(accumulator);
        tria_model_destroy(model);
    }
}

enum { N_SUMS = 3 * FREQ + 2 * CONTENT };

/* The exact sums of head 0 of layer 0, for comparisons finer than float. */
static void exact_sums(const tria_accumulator *accumulator, double sums[N_SUMS])
{
    const tria_sums_layer *layer = &accumulator->layers[0];
    assert_int_equal(layer->n_sums, N_SUMS);
    for (int32_t i = 0; i < N_SUMS; i++) {
        sums[i] = layer->sums[i] + layer->sums[N_SUMS + i];
    }
}

/* Whole, in chunks, backwards, interleaved shards merged, through a checkpoint: to 1e-12. */
static void test_order(void **state)
{
    static double queries[TOKENS * HEADS * DIM];
    char directory[] = "/tmp/tria-test-XXXXXX";
    char path[64];
    tria_model *model = make_partial_model(0);
    tria_accumulator *ways[5];
    double sums[5][N_SUMS];
    const size_t row = (size_t)HEADS * DIM;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/checkpoint", directory);
    make_queries(queries, TOKENS);
    for (int32_t i = 0; i < TOKENS * HEADS * DIM; i += 97) {
        queries[i] *= 1e6; /* so that order would show */
    }
    for (size_t i = 0; i < 5; i++) {
        ways[i] = make_accumulator(model);
    }
    add(ways[0], 0, queries, TOKENS);
    for (int32_t t = 0, n = 1; t < TOKENS; t += n, n = n % 13 + 1) {
        add(ways[1], 0, queries + (size_t)t * row, t + n > TOKENS ? TOKENS - t : n);
    }
    for (int32_t t = TOKENS; t-- > 0;) {
        add(ways[2], 0, queries + (size_t)t * row, 1);
    }
    {
        tria_accumulator *shard = make_accumulator(model);
        for (int32_t t = 0; t < TOKENS; t++) {
            add(t % 3 == 0 ? shard : ways[3], 0, queries + (size_t)t * row, 1);
        }
        assert_int_equal(tria_accumulator_merge(ways[3], shard, NULL), TRIA_OK);
        tria_accumulator_destroy(shard);
    }
    {
        tria_accumulator *first = make_accumulator(model);
        add(first, 0, queries, TOKENS / 2);
        assert_int_equal(tria_accumulator_save(first, path, NULL), TRIA_OK);
        tria_accumulator_destroy(first);
        assert_int_equal(tria_accumulator_resume(ways[4], path, NULL), TRIA_OK);
        add(ways[4], 0, queries + (size_t)(TOKENS / 2) * row, TOKENS - TOKENS / 2);
        unlink(path);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(tria_accumulator_tokens(ways[i], 0), TOKENS);
        exact_sums(ways[i], sums[i]);
        for (int32_t k = 0; k < N_SUMS; k++) {
            assert_true(fabs(sums[i][k] - sums[0][k]) <= 1e-12 * fmax(1, fabs(sums[0][k])));
        }
    }
    for (size_t i = 5; i-- > 0;) {
        tria_calibration *a = finish(ways[0]);
        tria_calibration *b = finish(ways[i]);
        assert_same_stats(a, b);
        tria_calibration_destroy(a);
        tria_calibration_destroy(b);
        tria_accumulator_destroy(ways[i]);
    }
    rmdir(directory);
    tria_model_destroy(model);
}

/* f32, f16, bf16 and any strides; heads in two blocks. */
static void test_layouts(void **state)
{
    enum { N = 8, PAD = 3 };
    static double exact[N * HEADS * DIM];
    static uint16_t half[HEADS][DIM][N + PAD]; /* [head][dim][token] */
    static uint16_t brain[N * HEADS * DIM];
    static float single[N][HEADS][DIM + PAD];
    tria_model *model = make_partial_model(0);
    tria_queries queries;
    (void)state;
    for (int32_t i = 0; i < N * HEADS * DIM; i++) {
        const float value = (float)((i * 37 % 64) - 31) / 16.0F; /* exact in all types */
        uint32_t bits;
        const int32_t t = i / (HEADS * DIM);
        const int32_t h = i / DIM % HEADS;
        const int32_t d = i % DIM;
        exact[i] = (double)value;
        single[t][h][d] = value;
        memcpy(&bits, &value, 4);
        brain[i] = (uint16_t)(bits >> 16);
        half[h][d][t] =
            (uint16_t)((bits >> 16 & 0x8000) | (value == 0.0F ? 0 : ((bits >> 23 & 255) - 112) << 10) |
                       (value == 0.0F ? 0 : bits >> 13 & 0x3ff));
    }
    for (int32_t way = 0; way < 3; way++) {
        tria_accumulator *accumulator = make_accumulator(model);
        tria_calibration *calibration;
        for (int32_t first = 0; first < HEADS; first += 2) {
            tria_queries_init(&queries);
            queries.layer = 0;
            queries.n_tokens = N;
            queries.head_first = first;
            queries.n_heads = first == 0 ? 2 : 0; /* 0: the rest */
            if (way == 0) {
                queries.dtype = TRIA_DTYPE_F32;
                queries.data = single[0][first];
                queries.token_stride = sizeof(single[0]);
                queries.head_stride = sizeof(single[0][0]);
                queries.dim_stride = sizeof(float);
            } else if (way == 1) {
                queries.dtype = TRIA_DTYPE_F16;
                queries.data = half[first];
                queries.token_stride = sizeof(uint16_t);
                queries.head_stride = sizeof(half[0]);
                queries.dim_stride = sizeof(half[0][0]);
            } else {
                queries.dtype = TRIA_DTYPE_BF16;
                queries.data = brain + first * DIM;
                queries.token_stride = 2 * HEADS * DIM;
                queries.head_stride = 2 * DIM;
                queries.dim_stride = 2;
            }
            assert_int_equal(tria_accumulator_add(accumulator, &queries, NULL), TRIA_OK);
        }
        calibration = finish(accumulator);
        check_layer(calibration, 0, exact, N, 0, 1e-6);
        tria_calibration_destroy(calibration);
        tria_accumulator_destroy(accumulator);
    }
    tria_model_destroy(model);
}

/* Rotating and un-rotating gives the same, far out as well. */
static void test_rotated(void **state)
{
    static double queries[TOKENS * HEADS * DIM];
    static double rotated[TOKENS * HEADS * DIM];
    static int32_t positions[TOKENS];
    (void)state;
    make_queries(queries, TOKENS);
    for (int32_t style = 0; style < 2; style++) {
        tria_model *model = make_partial_model(style);
        tria_accumulator *accumulator = make_accumulator(model);
        tria_calibration *calibration;
        tria_queries block;
        memcpy(rotated, queries, sizeof(rotated));
        for (int32_t t = 0; t < TOKENS; t++) {
            positions[t] = t < 300 ? t : 2000000000 + 31 * t;
            for (int32_t h = 0; h < HEADS; h++) {
                double *row = rotated + ((size_t)t * HEADS + (size_t)h) * DIM + OFFSET;
                for (int32_t f = 0; f < FREQ; f++) {
                    const long double phase = positions[t] * (long double)pow(10000, -2.0 * f / ROTARY);
                    const double c = (double)cosl(phase);
                    const double s = (double)sinl(phase);
                    double *re = style ? &row[2 * f] : &row[f];
                    double *im = style ? &row[2 * f + 1] : &row[FREQ + f];
                    const double x = *re * c - *im * s;
                    *im = *re * s + *im * c;
                    *re = x;
                }
            }
        }
        tria_queries_init(&block);
        block.layer = 0;
        block.dtype = TRIA_DTYPE_F64;
        block.data = rotated;
        block.n_tokens = TOKENS;
        block.positions = positions;
        assert_int_equal(tria_accumulator_add(accumulator, &block, NULL), TRIA_OK);
        calibration = finish(accumulator);
        check_layer(calibration, 0, queries, TOKENS, style, 7e-8);
        tria_calibration_destroy(calibration);
        tria_accumulator_destroy(accumulator);
        tria_model_destroy(model);
    }
}

static void refuse(tria_accumulator *accumulator, tria_queries *queries, tria_status code,
                   const char *words)
{
    tria_error error;
    assert_int_equal(tria_accumulator_add(accumulator, queries, &error), code);
    if (strstr(error.message, words) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", error.message, words);
    }
}

static void test_refusals(void **state)
{
    static double data[4 * HEADS * DIM];
    static const int32_t positions[4] = {0, 1, -1, 3};
    tria_model *model = make_partial_model(0);
    tria_accumulator *accumulator = make_accumulator(model);
    tria_calibration *calibration;
    tria_queries queries;
    tria_error error;
    (void)state;
    assert_int_equal(tria_accumulator_finish(accumulator, NULL, NULL, &calibration, &error), TRIA_E_STATE);
    tria_queries_init(&queries);
    queries.dtype = TRIA_DTYPE_F64;
    queries.data = data;
    queries.n_tokens = 4;
    queries.layer = 2;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "layer 2 of a model with 2");
    queries.layer = 0;
    queries.dtype = TRIA_DTYPE_Q8_0;
    refuse(accumulator, &queries, TRIA_E_UNSUPPORTED, "dtype");
    queries.dtype = TRIA_DTYPE_F64;
    queries.n_heads = 4;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "heads 0 and 4");
    queries.n_heads = 0;
    queries.head_first = 3;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "heads 3");
    queries.head_first = 0;
    queries.positions = positions;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "position -1 of token 2");
    queries.positions = NULL;
    queries.n_tokens = -1;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "-1 tokens");
    queries.n_tokens = 4;
    data[2 * HEADS * DIM + DIM + 3] = (double)NAN;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "token 2 head 1 dim 3 is nan");
    data[2 * HEADS * DIM + DIM + 3] = 1e300;
    refuse(accumulator, &queries, TRIA_E_ARGUMENT, "is 1e+300");
    assert_int_equal(tria_accumulator_tokens(accumulator, 0), 0); /* nothing of the block is counted */
    tria_accumulator_destroy(accumulator);
    tria_model_destroy(model);
}

static void test_merge_mismatch(void **state)
{
    tria_model *a = make_partial_model(0);
    tria_model *b = make_partial_model(1);
    tria_model *c = make_model(2, 3, 1, 10, 10);
    tria_accumulator *x = make_accumulator(a);
    tria_accumulator *y = make_accumulator(b);
    tria_accumulator *z = make_accumulator(c);
    tria_accumulator *before;
    tria_accumulator_params params;
    char directory[] = "/tmp/tria-test-XXXXXX";
    char path[64];
    static double data[HEADS * DIM];
    tria_error error;
    (void)state;
    tria_accumulator_params_init(&params);
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/checkpoint", directory);
    add(x, 0, data, 1);
    assert_int_equal(tria_accumulator_merge(x, y, &error), TRIA_E_MISMATCH);
    assert_int_equal(tria_accumulator_merge(x, z, &error), TRIA_E_MISMATCH);
    assert_int_equal(tria_accumulator_merge(x, x, &error), TRIA_E_ARGUMENT);
    assert_int_equal(tria_accumulator_resume(x, path, &error), TRIA_E_IO);
    assert_int_equal(tria_accumulator_save(x, path, &error), TRIA_OK);
    assert_int_equal(tria_accumulator_resume(z, path, &error), TRIA_E_MISMATCH);
    assert_int_equal(tria_accumulator_resume(y, path, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "rope style"));
    params.model = a;
    params.capture_point = TRIA_CAPTURE_BEFORE_QK_NORM;
    assert_int_equal(tria_accumulator_create(&params, NULL, &before, &error), TRIA_OK);
    assert_int_equal(tria_accumulator_resume(before, path, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "capture point"));
    assert_int_equal(tria_accumulator_merge(x, before, &error), TRIA_E_MISMATCH);
    tria_accumulator_destroy(before);
    assert_int_equal(truncate(path, 500), 0);
    assert_int_equal(tria_accumulator_resume(x, path, &error), TRIA_E_FORMAT);
    assert_int_equal(tria_accumulator_tokens(x, 0), 1);
    unlink(path);
    rmdir(directory);
    tria_accumulator_destroy(x);
    tria_accumulator_destroy(y);
    tria_accumulator_destroy(z);
    tria_model_destroy(a);
    tria_model_destroy(b);
    tria_model_destroy(c);
}

/* Every byte of a checkpoint cut or changed: refused, the accumulator unchanged. */
static void test_checkpoint_damage(void **state)
{
    static double data[HEADS * DIM];
    tria_model *model = make_partial_model(0);
    tria_accumulator *from = make_accumulator(model);
    char directory[] = "/tmp/tria-test-XXXXXX";
    char path[64];
    unsigned char *bytes;
    size_t size;
    tria_env env;
    tria_error error;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/checkpoint", directory);
    add(from, 0, data, 1);
    assert_int_equal(tria_accumulator_save(from, path, NULL), TRIA_OK);
    assert_int_equal(tria_env_import(&env, NULL, NULL), TRIA_OK);
    assert_int_equal(tria_read_file(path, &env, &bytes, &size, NULL), TRIA_OK);
    for (size_t i = 0; i < size; i += i < 600 ? 1 : 501) {
        tria_accumulator *to = make_accumulator(model);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, i, file), i);
        fclose(file);
        assert_int_equal(tria_accumulator_resume(to, path, &error), TRIA_E_FORMAT);
        bytes[i] ^= 4;
        file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, size, file), size);
        fclose(file);
        bytes[i] ^= 4;
        assert_int_equal(tria_accumulator_resume(to, path, &error), TRIA_E_FORMAT);
        assert_int_equal(tria_accumulator_tokens(to, 0), 0);
        tria_accumulator_destroy(to);
    }
    unlink(path);
    rmdir(directory);
    tria_free(&env, bytes);
    tria_accumulator_destroy(from);
    tria_model_destroy(model);
}

/* A finished calibration continues one: the mean over both texts, to float. */
static void test_continue(void **state)
{
    static double queries[TOKENS * HEADS * DIM];
    tria_model *model = make_partial_model(0);
    tria_accumulator *first = make_accumulator(model);
    tria_accumulator *second = make_accumulator(model);
    tria_calibration *half;
    tria_calibration *whole;
    tria_error error;
    const size_t row = (size_t)HEADS * DIM;
    (void)state;
    make_queries(queries, TOKENS);
    add(first, 0, queries, 200);
    half = finish(first);
    assert_int_equal(tria_accumulator_add_calibration(second, half, &error), TRIA_OK);
    add(second, 0, queries + 200 * row, TOKENS - 200);
    whole = finish(second);
    assert_int_equal(tria_accumulator_tokens(second, 0), TOKENS);
    check_layer(whole, 0, queries, TOKENS, 0, 2e-7);
    half->layers[0].n_tokens = 0;
    assert_int_equal(tria_accumulator_add_calibration(second, half, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "how many tokens layer 0"));
    half->layers[0].n_tokens = 200;
    half->layers[0].geometry.rope_style = !half->layers[0].geometry.rope_style;
    assert_int_equal(tria_accumulator_add_calibration(second, half, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "layer 0 pairs its dimensions otherwise"));
    half->layers[0].geometry.rope_style = !half->layers[0].geometry.rope_style;
    half->capture_point = TRIA_CAPTURE_BEFORE_QK_NORM;
    assert_int_equal(tria_accumulator_add_calibration(second, half, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "at another point (1) than the accumulator's (2)"));
    half->capture_point = TRIA_CAPTURE_UNKNOWN;
    half->layers[0].heads[1].n_content = 0;
    assert_int_equal(tria_accumulator_add_calibration(second, half, &error), TRIA_E_MISMATCH);
    assert_non_null(strstr(error.message, "layer 0 head 1 has no content statistics"));
    assert_int_equal(tria_accumulator_tokens(second, 0), TOKENS); /* none of these was counted */
    tria_calibration_destroy(half);
    tria_calibration_destroy(whole);
    tria_accumulator_destroy(first);
    tria_accumulator_destroy(second);
    tria_model_destroy(model);
}

static int32_t calls;
static uint64_t last_tokens;

static int32_t stop_at(void *context, int32_t layer, uint64_t n_tokens)
{
    (void)layer;
    calls++;
    last_tokens = n_tokens;
    return n_tokens >= *(const uint64_t *)context;
}

static void test_progress(void **state)
{
    enum { MANY = 2500 };
    double *queries = calloc((size_t)MANY * HEADS * DIM, sizeof(*queries));
    tria_model *model = make_partial_model(0);
    tria_accumulator_params params;
    tria_accumulator *accumulator;
    uint64_t limit = 100000;
    tria_queries block;
    (void)state;
    assert_non_null(queries);
    tria_accumulator_params_init(&params);
    params.model = model;
    params.progress = stop_at;
    params.progress_context = &limit;
    assert_int_equal(tria_accumulator_create(&params, NULL, &accumulator, NULL), TRIA_OK);
    add(accumulator, 0, queries, MANY);
    assert_int_equal(calls, 3); /* 1024, 2048, 2500 */
    assert_int_equal(last_tokens, MANY);
    limit = MANY + 1024;
    tria_queries_init(&block);
    block.dtype = TRIA_DTYPE_F64;
    block.data = queries;
    block.n_tokens = MANY;
    assert_int_equal(tria_accumulator_add(accumulator, &block, NULL), TRIA_E_CANCELLED);
    assert_int_equal(tria_accumulator_tokens(accumulator, 0), MANY + 1024);
    tria_accumulator_destroy(accumulator);
    tria_model_destroy(model);
    free(queries);
}

static char found[8][400];
static int32_t n_found;

static void keep(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    (void)context;
    (void)layer;
    assert_int_equal(severity, TRIA_FINDING_WARNING);
    assert_true(n_found < 8);
    snprintf(found[n_found++], sizeof(found[0]), "%s", text);
}

static bool was_found(const char *words)
{
    for (int32_t i = 0; i < n_found; i++) {
        if (strstr(found[i], words) != NULL) {
            return true;
        }
    }
    return false;
}

/* Repeated text, few tokens, queries without direction: each is told; good ones are not. */
static void test_warnings(void **state)
{
    enum { MANY = 5000, PERIOD = 20 };
    double *queries = calloc((size_t)MANY * HEADS * DIM, sizeof(*queries));
    tria_model *model = make_partial_model(0);
    (void)state;
    assert_non_null(queries);
    for (int32_t kind = 0; kind < 4; kind++) {
        tria_accumulator *accumulator = make_accumulator(model);
        tria_calibration *calibration;
        const int32_t n_tokens = kind == 1 ? 1500 : MANY;
        make_queries(queries, MANY);
        for (int32_t i = 0; kind == 2 && i < MANY * HEADS * DIM; i++) {
            queries[i] = queries[i % (PERIOD * HEADS * DIM)];
        }
        for (int32_t i = 0; kind == 3 && i < MANY * HEADS * DIM; i++) {
            queries[i] = uniform() - 0.5;
        }
        add(accumulator, 0, queries, n_tokens);
        add(accumulator, 1, queries, n_tokens);
        n_found = 0;
        assert_int_equal(tria_accumulator_finish(accumulator, keep, NULL, &calibration, NULL), TRIA_OK);
        assert_int_equal(was_found("too few tokens"), kind == 1);
        assert_int_equal(was_found("degenerate text"), kind == 2);
        assert_int_equal(was_found("low concentration"), kind == 3);
        assert_int_equal(n_found, kind == 0 ? 0 : 1);
        tria_calibration_destroy(calibration);
        tria_accumulator_destroy(accumulator);
    }
    tria_model_destroy(model);
    free(queries);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_merge_mismatch),
        cmocka_unit_test(test_checkpoint_damage),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_warnings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

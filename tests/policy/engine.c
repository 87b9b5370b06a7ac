/* engine.c - see engine.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/engine.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROW_BYTES = 512 };

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ x >> 16;
}

/* A number in [-1, 1) that depends on all its arguments. */
static float value_of(uint32_t kind, int32_t layer, int32_t head, int32_t position, int32_t dim)
{
    uint32_t x = mix(kind * 77U + (uint32_t)layer);
    x = mix(x ^ (uint32_t)head * 1013U);
    x = mix(x ^ (uint32_t)position * 7919U);
    x = mix(x ^ (uint32_t)dim);
    return (float)(int32_t)x / 2147483648.0F;
}

/* Half precision by truncation; the numbers are below 2 and zero is unlikely. */
static uint16_t half_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const int32_t exponent = (int32_t)(bits >> 23 & 255) - 127 + 15;
    const uint32_t sign = bits >> 16 & 0x8000U;
    return (uint16_t)(exponent <= 0 ? sign : sign | (uint32_t)exponent << 10 | (bits >> 13 & 1023U));
}

static int32_t element_size(const engine *e)
{
    return e->shape.dtype == TRIA_DTYPE_F32 ? 4 : 2;
}

static int32_t row_size(const engine *e)
{
    return element_size(e) * e->shape.head_dim;
}

void engine_expected_row(const engine *e, int32_t is_v, int32_t layer, int32_t head, int32_t position,
                         unsigned char *bytes)
{
    for (int32_t d = 0; d < e->shape.head_dim; d++) {
        const float value = value_of((uint32_t)is_v, layer, head, position, d);
        const uint16_t half = half_of(value);
        if (e->shape.dtype == TRIA_DTYPE_F32) {
            memcpy(bytes + 4 * d, &value, sizeof(value));
        } else {
            memcpy(bytes + 2 * d, &half, sizeof(half));
        }
    }
}

unsigned char *engine_row(engine *e, int32_t is_v, int32_t layer, int32_t head, int32_t row)
{
    const int32_t page = e->tokens_per_page > 0 ? e->page_table[row / e->tokens_per_page] : 0;
    const int32_t token = e->tokens_per_page > 0 ? row % e->tokens_per_page : row;
    const int32_t per_page = e->tokens_per_page > 0 ? e->tokens_per_page : e->capacity;
    unsigned char *base = is_v ? e->v[layer] : e->k[layer];
    return base + ((size_t)(page * per_page + token) * (size_t)e->shape.n_kv_heads + (size_t)head) *
                      (size_t)row_size(e);
}

static void make_model(engine *e, const tria_env *env)
{
    tria_layer_params layers[ENGINE_MAX_LAYERS];
    tria_error error;
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = e->shape.n_q_heads;
        layers[l].n_kv_heads = e->shape.n_kv_heads;
        layers[l].head_dim = e->shape.head_dim;
    }
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    params.layers = layers;
    params.n_layers = e->shape.n_layers;
    assert_int_equal(tria_model_create(&params, env, &e->model, &error), TRIA_OK);
    assert_int_equal(tria_calibration_create(e->model, env, &e->calibration, &error), TRIA_OK);
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        for (int32_t h = 0; h < e->shape.n_q_heads; h++) {
            float stats[3][MAX_ROW_BYTES];
            for (int32_t f = 0; f < e->shape.head_dim / 2; f++) {
                stats[0][f] = value_of(2, l, h, 0, f);
                stats[1][f] = value_of(3, l, h, 0, f);
                stats[2][f] = 2.0F + value_of(4, l, h, 0, f);
            }
            const tria_head_stats head = {sizeof(head), stats[0], stats[1], stats[2], NULL, NULL};
            assert_int_equal(tria_calibration_set_head(e->calibration, l, h, &head, &error), TRIA_OK);
        }
    }
}

static void make_cache(engine *e)
{
    const int32_t per_page = e->tokens_per_page > 0 ? e->tokens_per_page : e->capacity;
    const size_t token = (size_t)e->shape.n_kv_heads * (size_t)row_size(e);
    tria_kv_view_init(&e->view);
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        const size_t bytes = token * (size_t)per_page * (size_t)e->pool_pages;
        e->k[l] = calloc(1, bytes);
        e->v[l] = calloc(1, bytes);
        tria_tensor tensor = {.base = e->k[l],
                              .size = bytes,
                              .page_stride = (int64_t)token * per_page,
                              .token_stride = (int64_t)token,
                              .head_stride = row_size(e),
                              .dtype = e->shape.dtype,
                              .dim = e->shape.head_dim};
        e->layers[l].k = tensor;
        tensor.base = e->v[l];
        e->layers[l].v = tensor;
    }
    e->view.layers = e->layers;
    e->view.n_layers = e->shape.n_layers;
    if (e->tokens_per_page > 0) {
        e->view.page_table = e->page_table;
        e->view.n_pages = e->capacity / e->tokens_per_page;
        e->view.tokens_per_page = e->tokens_per_page;
        for (int32_t i = 0; i < e->view.n_pages; i++) {
            e->page_table[i] = e->view.n_pages - 1 - i;
        }
    }
}

void engine_open(engine *e, const engine_shape *shape, const tria_policy_params *policy,
                 const tria_plan_params *plan, const tria_env *env)
{
    tria_plan_params plan_params;
    tria_policy_params params = *policy;
    tria_error error;
    memset(e, 0, sizeof(*e));
    e->shape = *shape;
    e->tokens_per_page = policy->tokens_per_page > 1 ? policy->tokens_per_page : 0;
    e->capacity = e->tokens_per_page > 0 ? policy->capacity / e->tokens_per_page * e->tokens_per_page
                                         : policy->capacity;
    e->pool_pages = e->tokens_per_page > 0 ? 2 * e->capacity / e->tokens_per_page : 1;
    make_model(e, env);
    make_cache(e);
    tria_plan_params_init(&plan_params);
    if (plan != NULL) {
        plan_params = *plan;
    }
    params.calibration = e->calibration;
    plan_params.model = e->model;
    plan_params.calibration = e->calibration;
    plan_params.layout = &e->view;
    if (tria_policy_to_plan(&params, &plan_params, &error) != TRIA_OK ||
        tria_plan_create(&plan_params, env, &e->plan, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    params.plan = e->plan;
    if (tria_sequence_create(&params, env, &e->sequence, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

void engine_close(engine *e)
{
    tria_sequence_destroy(e->sequence);
    tria_plan_destroy(e->plan);
    tria_calibration_destroy(e->calibration);
    tria_model_destroy(e->model);
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        free(e->k[l]);
        free(e->v[l]);
    }
}

void engine_write_rows(engine *e, int32_t row, int32_t position, int32_t n)
{
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        for (int32_t h = 0; h < e->shape.n_kv_heads; h++) {
            for (int32_t i = 0; i < n; i++) {
                engine_expected_row(e, 0, l, h, position + i, engine_row(e, 0, l, h, row + i));
                engine_expected_row(e, 1, l, h, position + i, engine_row(e, 1, l, h, row + i));
            }
        }
    }
}

void engine_write(engine *e, int32_t n)
{
    tria_error error;
    const int32_t t = (int32_t)engine_info(e).t;
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        for (int32_t h = 0; h < e->shape.n_kv_heads; h++) {
            int32_t rows;
            assert_non_null(tria_sequence_positions(e->sequence, l, h, &rows));
            assert_true(rows + n <= e->capacity);
            for (int32_t i = 0; i < n; i++) {
                engine_expected_row(e, 0, l, h, t + i, engine_row(e, 0, l, h, rows + i));
                engine_expected_row(e, 1, l, h, t + i, engine_row(e, 1, l, h, rows + i));
            }
        }
    }
    if (tria_sequence_append(e->sequence, n, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

void engine_check(engine *e)
{
    unsigned char bytes[MAX_ROW_BYTES];
    for (int32_t l = 0; l < e->shape.n_layers; l++) {
        for (int32_t h = 0; h < e->shape.n_kv_heads; h++) {
            int32_t rows;
            const int32_t *positions = tria_sequence_positions(e->sequence, l, h, &rows);
            for (int32_t i = 0; i < rows; i++) {
                for (int32_t is_v = 0; is_v < 2; is_v++) {
                    engine_expected_row(e, is_v, l, h, positions[i], bytes);
                    assert_memory_equal(bytes, engine_row(e, is_v, l, h, i), (size_t)row_size(e));
                }
            }
        }
    }
}

int engine_maybe_compact(engine *e)
{
    tria_compact_params params;
    tria_error error;
    if (!tria_sequence_should_compact(e->sequence)) {
        return 0;
    }
    tria_compact_params_init(&params);
    params.kv = &e->view;
    if (tria_sequence_compact(e->sequence, e->plan, &params, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return 1;
}

void engine_decode(engine *e, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        engine_write(e, 1);
        engine_maybe_compact(e);
    }
}

tria_sequence_info engine_info(const engine *e)
{
    tria_sequence_info info;
    tria_sequence_info_init(&info);
    assert_int_equal(tria_sequence_get_info(e->sequence, &info, NULL), TRIA_OK);
    return info;
}

#include "plan/small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

float small_random(small *s)
{
    s->seed = s->seed * 6364136223846793005U + 1442695040888963407U;
    return (float)(int32_t)(s->seed >> 32) / 2147483648.0F;
}

float *small_key(small *s, int32_t layer, int32_t head, int32_t row)
{
    return s->keys + (((int64_t)layer * s->n_kv_heads + head) * SMALL_MAX_ROWS + row) * s->dim;
}

static void make_model(small *s)
{
    tria_layer_params layers[SMALL_MAX_LAYERS];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    for (int32_t l = 0; l < s->n_layers; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = s->n_q_heads;
        layers[l].n_kv_heads = s->n_kv_heads;
        layers[l].head_dim = s->dim;
    }
    params.layers = layers;
    params.n_layers = s->n_layers;
    assert_int_equal(tria_model_create(&params, NULL, &s->model, &s->error), TRIA_OK);
}

static void make_calibration(small *s)
{
    const int32_t n_freq = s->dim / 2;
    float *values = malloc(sizeof(float) * 3 * (size_t)n_freq);
    assert_non_null(values);
    assert_int_equal(tria_calibration_create(s->model, NULL, &s->calibration, &s->error), TRIA_OK);
    for (int32_t l = 0; l < s->n_layers; l++) {
        for (int32_t h = 0; h < s->n_q_heads; h++) {
            const tria_head_stats stats = {sizeof(stats),       values, values + n_freq,
                                           values + 2 * n_freq, NULL,   NULL};
            for (int32_t f = 0; f < n_freq; f++) {
                values[f] = small_random(s);
                values[n_freq + f] = small_random(s);
                values[2 * n_freq + f] = 1.5F + small_random(s) / 4.0F;
            }
            assert_int_equal(tria_calibration_set_head(s->calibration, l, h, &stats, &s->error), TRIA_OK);
        }
    }
    free(values);
}

void small_init(small *s)
{
    memset(s, 0, sizeof(*s));
    s->n_layers = 2;
    s->n_q_heads = 4;
    s->n_kv_heads = 2;
    s->dim = 16;
    s->n_rows = 100;
    s->seed = 7;
    make_model(s);
    make_calibration(s);
    const size_t heads = (size_t)s->n_layers * (size_t)s->n_kv_heads;
    const size_t count = heads * SMALL_MAX_ROWS * (size_t)s->dim;
    s->keys = malloc(sizeof(float) * count);
    s->rows = malloc(sizeof(int32_t) * heads * SMALL_MAX_ROWS);
    s->counts = malloc(sizeof(int32_t) * heads);
    assert_true(s->keys != NULL && s->rows != NULL && s->counts != NULL);
    for (size_t i = 0; i < count; i++) {
        s->keys[i] = small_random(s);
    }
    for (int32_t l = 0; l < s->n_layers; l++) {
        tria_tensor *k = &s->layers[l].k;
        k->base = small_key(s, l, 0, 0);
        k->token_stride = (int64_t)s->dim * 4;
        k->head_stride = (int64_t)SMALL_MAX_ROWS * s->dim * 4;
        k->dtype = TRIA_DTYPE_F32;
        k->dim = s->dim;
    }
    tria_kv_view_init(&s->view);
    s->view.layers = s->layers;
    s->view.n_layers = s->n_layers;
    tria_plan_params_init(&s->params);
    s->params.model = s->model;
    s->params.calibration = s->calibration;
    s->params.layout = &s->view;
    s->params.budget = 40;
    s->params.max_rows = SMALL_MAX_ROWS;
    tria_event_init(&s->event);
    s->event.kv = &s->view;
    s->event.t = s->n_rows;
    s->event.n_rows = s->n_rows;
    tria_keep_init(&s->keep);
    s->keep.rows = s->rows;
    s->keep.counts = s->counts;
    s->keep.row_stride = SMALL_MAX_ROWS;
}

tria_status small_plan(small *s)
{
    tria_plan_destroy(s->plan);
    s->plan = NULL;
    return tria_plan_create(&s->params, NULL, &s->plan, &s->error);
}

tria_status small_select(small *s)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    return tria_plan_select(s->plan, &batch, NULL, &s->keep, &s->error);
}

void small_free(small *s)
{
    tria_plan_destroy(s->plan);
    tria_calibration_destroy(s->calibration);
    tria_model_destroy(s->model);
    free(s->keys);
    free(s->rows);
    free(s->counts);
}

bool small_keeps(const small *s, int32_t set, int32_t row)
{
    for (int32_t i = 0; i < s->counts[set]; i++) {
        if (s->rows[set * SMALL_MAX_ROWS + i] == row) {
            return true;
        }
    }
    return false;
}

/* Bugs this field has had (specification, section 10) that concern reading and scoring keys: a test each.
 * Those that need whole models' numbers are golden cases; see tests/golden. */
#include "kv_view_internal.h"
#include "plan/small.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SLOTS = 16 };

/* Raw scores of the event as it stands. */
static void score(small *s, float raw[MAX_SLOTS][SMALL_MAX_ROWS])
{
    tria_batch batch;
    tria_scores scores;
    if (s->plan == NULL && small_plan(s) != TRIA_OK) {
        fail_msg("%s", s->error.message);
    }
    memset(raw, 0, sizeof(float) * MAX_SLOTS * SMALL_MAX_ROWS);
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.raw = raw;
    scores.row_stride = SMALL_MAX_ROWS;
    if (tria_plan_score(s->plan, &batch, &scores, &s->error) != TRIA_OK) {
        fail_msg("%s", s->error.message);
    }
}

static float a[MAX_SLOTS][SMALL_MAX_ROWS];
static float b[MAX_SLOTS][SMALL_MAX_ROWS];

static void a_rotated_key_is_not_rotated_again(void **state)
{
    small s;
    int32_t positions[SMALL_MAX_ROWS];
    (void)state;
    small_init(&s);
    score(&s, a);
    for (int32_t i = 0; i < s.n_rows; i++) {
        positions[i] = 7 * i + 3; /* where a key was rotated never enters */
    }
    s.event.positions = positions;
    score(&s, b);
    assert_memory_equal(a, b, sizeof(a));
    small_free(&s);
}

static void remake_model(small *s, int32_t rope_style)
{
    tria_layer_params layers[2];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    for (int32_t l = 0; l < 2; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = s->n_q_heads;
        layers[l].n_kv_heads = s->n_kv_heads;
        layers[l].head_dim = s->dim;
        layers[l].rope_style = rope_style;
    }
    params.layers = layers;
    params.n_layers = 2;
    tria_model_destroy(s->model);
    assert_int_equal(tria_model_create(&params, NULL, &s->model, &s->error), TRIA_OK);
    s->params.model = s->model;
    tria_plan_destroy(s->plan);
    s->plan = NULL;
}

static double largest_difference(const small *s)
{
    double largest = 0.0;
    for (int32_t q = 0; q < s->n_layers * s->n_q_heads; q++) {
        for (int32_t i = 0; i < s->n_rows; i++) {
            const double d = fabs((double)a[q][i] - (double)b[q][i]);
            largest = d > largest ? d : largest;
        }
    }
    return largest;
}

static void half_and_interleaved_are_not_swapped(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    remake_model(&s, TRIA_ROPE_HALF);
    score(&s, a);
    remake_model(&s, TRIA_ROPE_INTERLEAVED);
    score(&s, b);
    assert_true(largest_difference(&s) > 0.1); /* the same bytes mean another key */
    for (int32_t i = 0; i < s.n_layers * s.n_kv_heads * SMALL_MAX_ROWS; i++) {
        float *key = s.keys + (size_t)i * (size_t)s.dim;
        float old[16];
        memcpy(old, key, sizeof(old));
        for (int32_t f = 0; f < 8; f++) {
            key[2 * f] = old[f];
            key[2 * f + 1] = old[8 + f];
        }
    }
    score(&s, b);
    assert_true(largest_difference(&s) < 1e-5);
    small_free(&s);
}

static void a_group_is_not_averaged_before_scoring(void **state)
{
    /* two query heads of a group that look for opposite keys: their average looks for nothing */
    small s;
    float values[3][8];
    (void)state;
    small_init(&s);
    for (int32_t h = 0; h < s.n_q_heads; h++) {
        const tria_head_stats stats = {sizeof(stats), values[0], values[1], values[2], NULL, NULL};
        for (int32_t f = 0; f < 8; f++) {
            values[0][f] = h % 2 == 0 ? 1.0F : -1.0F;
            values[1][f] = 0.0F;
            values[2][f] = 1.0F;
        }
        for (int32_t l = 0; l < 2; l++) {
            assert_int_equal(tria_calibration_set_head(s.calibration, l, h, &stats, &s.error), TRIA_OK);
        }
    }
    score(&s, a);
    for (int32_t i = 0; i < s.n_rows; i++) { /* opposite, and not zero */
        assert_true(fabs((double)a[0][i] + (double)a[1][i]) < 1e-5);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < s.n_rows; i++) {
        sum += fabs((double)a[0][i]);
    }
    assert_true(sum / s.n_rows > 0.01);
    small_free(&s);
}

static void padding_is_not_read(void **state)
{
    small s;
    float *padded;
    (void)state;
    small_init(&s);
    score(&s, a);
    const size_t n = (size_t)(s.n_layers * s.n_kv_heads) * SMALL_MAX_ROWS;
    padded = malloc(n * 24 * sizeof(float));
    assert_non_null(padded);
    for (size_t i = 0; i < n; i++) {
        memcpy(padded + i * 24, s.keys + i * 16, 16 * sizeof(float));
        for (int32_t d = 16; d < 24; d++) {
            padded[i * 24 + (size_t)d] = NAN;
        }
    }
    for (int32_t l = 0; l < s.n_layers; l++) {
        s.layers[l].k.base = padded + (size_t)(l * s.n_kv_heads) * SMALL_MAX_ROWS * 24;
        s.layers[l].k.dim = 24;
        s.layers[l].k.token_stride = 24 * 4;
        s.layers[l].k.head_stride = SMALL_MAX_ROWS * 24 * 4;
    }
    assert_int_equal(small_plan(&s), TRIA_OK);
    score(&s, b);
    assert_memory_equal(a, b, sizeof(a));
    free(padded);
    small_free(&s);
}

static void hadamard_transformed_heads_are_undone(void **state)
{
    small s;
    float signs[16];
    (void)state;
    small_init(&s);
    score(&s, a);
    for (int32_t d = 0; d < 16; d++) {
        signs[d] = d % 3 == 1 ? -1.0F : 1.0F;
    }
    for (int32_t i = 0; i < s.n_layers * s.n_kv_heads * SMALL_MAX_ROWS; i++) {
        float *key = s.keys + (size_t)i * 16;
        for (int32_t d = 0; d < 16; d++) {
            key[d] *= signs[d];
        }
        tria_hadamard_undo_f32(key, 16, 16, NULL); /* its own inverse */
    }
    s.view.k_state = TRIA_K_HADAMARD;
    s.view.hadamard_signs = signs;
    tria_plan_destroy(s.plan);
    s.plan = NULL;
    score(&s, b);
    assert_true(largest_difference(&s) < 1e-4);
    small_free(&s);
}

static void layers_without_a_cache_are_named_not_guessed(void **state)
{
    /* a hybrid: attention in layer 1 of 3 only */
    small s;
    tria_layer_params layers[3];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_layer_view views[3];
    (void)state;
    small_init(&s);
    memset(views, 0, sizeof(views));
    for (int32_t l = 0; l < 3; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = l == 1 ? s.n_q_heads : 0;
        layers[l].n_kv_heads = l == 1 ? s.n_kv_heads : 0;
        layers[l].head_dim = l == 1 ? s.dim : 0;
    }
    views[1] = s.layers[1];
    params.layers = layers;
    params.n_layers = 3;
    tria_model_destroy(s.model);
    tria_calibration_destroy(s.calibration);
    s.calibration = NULL;
    assert_int_equal(tria_model_create(&params, NULL, &s.model, &s.error), TRIA_OK);
    s.params.model = s.model;
    s.params.calibration = NULL;
    s.params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    s.view.layers = views;
    s.view.n_layers = 3;
    if (small_plan(&s) != TRIA_OK) {
        fail_msg("%s", s.error.message);
    }
    assert_int_equal(tria_plan_n_kv_slots(s.plan), s.n_kv_heads);
    assert_int_equal(tria_plan_n_sets(s.plan), s.n_kv_heads);
    assert_int_equal(tria_plan_kv_slot(s.plan, 0, 0), -1);
    assert_int_equal(tria_plan_set(s.plan, 2, 0), -1);
    assert_int_equal(tria_plan_set(s.plan, 1, 1), 1);
    views[1].k.base = NULL; /* a cache that should be there and is not */
    assert_int_equal(small_select(&s), TRIA_E_ARGUMENT);
    assert_non_null(strstr(s.error.message, "layer 1 K"));
    small_free(&s);
}

static void unsupported_combinations_are_errors_at_creation(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    s.layers[1].k.dtype = TRIA_DTYPE_Q8_0; /* head_dim 16: no whole block */
    assert_int_equal(small_plan(&s), TRIA_E_ARGUMENT);
    assert_non_null(strstr(s.error.message, "layer 1 K"));
    s.layers[1].k.dtype = TRIA_DTYPE_INT8;
    assert_int_equal(small_plan(&s), TRIA_E_ARGUMENT);
    assert_non_null(strstr(s.error.message, "layer 1 K: int8 needs a scale"));
    s.layers[1].k.dtype = 55;
    assert_int_equal(small_plan(&s), TRIA_E_ARGUMENT);
    assert_non_null(strstr(s.error.message, "layer 1 K: unknown dtype 55"));
    small_free(&s);
}

static void protected_rows_show_their_real_scores(void **state)
{
    /* protection is no sentinel in the scores */
    small s;
    tria_batch batch;
    tria_scores scores;
    (void)state;
    for (int32_t protect = 0; protect < 2; protect++) {
        small_init(&s);
        s.params.n_sink = protect ? 4 : 0;
        s.params.n_recent = protect ? 20 : 0;
        assert_int_equal(small_plan(&s), TRIA_OK);
        tria_batch_init(&batch);
        batch.events = &s.event;
        batch.n_events = 1;
        tria_scores_init(&scores);
        scores.final_scores = protect ? b : a;
        scores.row_stride = SMALL_MAX_ROWS;
        assert_int_equal(tria_plan_select(s.plan, &batch, &scores, &s.keep, &s.error), TRIA_OK);
        small_free(&s);
    }
    for (int32_t set = 0; set < 2; set++) {
        assert_memory_equal(a[set], b[set], 100 * sizeof(float));
    }
}

static void a_score_does_not_depend_on_index_or_row_count(void **state)
{
    /* the same bytes in every row: all scores of a head equal the one of a cache of one row */
    small s;
    (void)state;
    small_init(&s);
    for (int32_t l = 0; l < s.n_layers * s.n_kv_heads; l++) {
        float *first = s.keys + (size_t)l * SMALL_MAX_ROWS * 16;
        for (int32_t i = 1; i < SMALL_MAX_ROWS; i++) {
            memcpy(first + (size_t)i * 16, first, 16 * sizeof(float));
        }
    }
    s.event.n_rows = 1;
    score(&s, a);
    for (int32_t n = 1; n <= 131; n++) {
        s.event.n_rows = n;
        score(&s, b);
        for (int32_t q = 0; q < s.n_layers * s.n_q_heads; q++) {
            for (int32_t i = 0; i < n; i++) {
                assert_true(b[q][i] == a[q][0]);
            }
        }
    }
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rotated_key_is_not_rotated_again),
        cmocka_unit_test(half_and_interleaved_are_not_swapped),
        cmocka_unit_test(a_group_is_not_averaged_before_scoring),
        cmocka_unit_test(padding_is_not_read),
        cmocka_unit_test(hadamard_transformed_heads_are_undone),
        cmocka_unit_test(layers_without_a_cache_are_named_not_guessed),
        cmocka_unit_test(unsupported_combinations_are_errors_at_creation),
        cmocka_unit_test(protected_rows_show_their_real_scores),
        cmocka_unit_test(a_score_does_not_depend_on_index_or_row_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

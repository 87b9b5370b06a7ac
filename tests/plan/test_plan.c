/* test_plan.c - what a plan promises, one thing at a time: needles survive, oddities are reported, and
 * settings that can never work are refused. */
#include "plan/small.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const int32_t modes[] = {TRIA_MODE_PER_LAYER_PER_HEAD, TRIA_MODE_PER_HEAD, TRIA_MODE_PER_LAYER,
                                TRIA_MODE_UNION, TRIA_MODE_GLOBAL};

/* A key that points where every future query of its heads points must outlive random ones. */
static void a_planted_needle_survives(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
        small s;
        small_init(&s);
        const int32_t needle = 37;
        for (int32_t l = 0; l < s.n_layers; l++) {
            for (int32_t v = 0; v < s.n_kv_heads; v++) {
                float *key = small_key(&s, l, v, needle);
                for (int32_t f = 0; f < s.dim / 2; f++) {
                    /* large magnitude: the norm coefficient is positive in this calibration */
                    key[f] = 8.0F;
                    key[s.dim / 2 + f] = 0.0F;
                }
            }
        }
        s.params.mode = modes[m];
        s.params.n_recent = 8;
        s.params.n_sink = 2;
        assert_int_equal(small_plan(&s), TRIA_OK);
        assert_int_equal(small_select(&s), TRIA_OK);
        for (int32_t set = 0; set < tria_plan_n_sets(s.plan); set++) {
            assert_int_equal(s.counts[set], 40);
            assert_true(small_keeps(&s, set, needle));
            assert_true(small_keeps(&s, set, 0) && small_keeps(&s, set, 1) && small_keeps(&s, set, 92));
        }
        small_free(&s);
    }
}

static void the_lowest_scores_are_evicted_not_the_highest(void **state)
{
    small s;
    float final[2][SMALL_MAX_ROWS];
    tria_scores scores;
    tria_batch batch;
    (void)state;
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    tria_scores_init(&scores);
    scores.row_stride = SMALL_MAX_ROWS;
    scores.final_scores = final;
    tria_batch_init(&batch);
    batch.events = &s.event;
    batch.n_events = 1;
    assert_int_equal(tria_plan_select(s.plan, &batch, &scores, &s.keep, &s.error), TRIA_OK);
    for (int32_t set = 0; set < 2; set++) {
        float worst_kept = INFINITY;
        float best_evicted = -INFINITY;
        for (int32_t i = 0; i < s.n_rows; i++) {
            if (small_keeps(&s, set, i)) {
                worst_kept = fminf(worst_kept, final[set][i]);
            } else {
                best_evicted = fmaxf(best_evicted, final[set][i]);
            }
        }
        assert_true(worst_kept > best_evicted);
    }
    small_free(&s);
}

static void a_nan_key_is_counted_and_evicted_first(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    s.params.mode = TRIA_MODE_UNION;
    for (int32_t l = 0; l < s.n_layers; l++) {
        for (int32_t v = 0; v < s.n_kv_heads; v++) {
            small_key(&s, l, v, 50)[3] = NAN;
        }
    }
    small_key(&s, 1, 1, 60)[0] = INFINITY;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.keep.n_nan, 2);
    assert_int_equal(s.counts[0], 40);
    assert_false(small_keeps(&s, 0, 50));
    small_free(&s);
}

static void all_zero_keys_are_reported(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    memset(small_key(&s, 1, 0, 0), 0, sizeof(float) * SMALL_MAX_ROWS * (size_t)s.dim);
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.keep.n_zero_heads, 1);
    assert_int_equal(s.keep.n_nan, 0);
    small_free(&s);
}

static void an_uncalibrated_layer_is_reported_and_ranked_by_position(void **state)
{
    small s;
    uint8_t uncalibrated[2];
    (void)state;
    small_init(&s);
    s.params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    s.keep.uncalibrated_layers = uncalibrated;
    for (int32_t h = 0; h < s.n_q_heads; h++) {
        assert_int_equal(tria_calibration_set_head(s.calibration, 1, h, NULL, &s.error), TRIA_OK);
    }
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.keep.n_uncalibrated_layers, 1);
    assert_int_equal(uncalibrated[0], 0);
    assert_int_equal(uncalibrated[1], 1);
    for (int32_t i = 0; i < 40; i++) {
        assert_int_equal(s.rows[2 * SMALL_MAX_ROWS + i], 60 + i); /* the most recent ones */
    }
    small_free(&s);
}

static void an_uncalibrated_head_takes_no_part(void **state)
{
    small with;
    small without;
    (void)state;
    small_init(&with);
    small_init(&without);
    with.params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    without.params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    assert_int_equal(tria_calibration_set_head(without.calibration, 0, 1, NULL, &without.error), TRIA_OK);
    assert_int_equal(small_plan(&with), TRIA_OK);
    assert_int_equal(small_plan(&without), TRIA_OK);
    assert_int_equal(small_select(&with), TRIA_OK);
    assert_int_equal(small_select(&without), TRIA_OK);
    /* the group of head 1 changes, the others do not */
    assert_memory_not_equal(with.rows, without.rows, sizeof(int32_t) * 40);
    for (int32_t set = 1; set < 4; set++) {
        assert_memory_equal(with.rows + set * SMALL_MAX_ROWS, without.rows + set * SMALL_MAX_ROWS,
                            sizeof(int32_t) * 40);
    }
    small_free(&with);
    small_free(&without);
}

static void the_row_count_is_not_the_position(void **state)
{
    small s;
    int32_t first[40];
    (void)state;
    small_init(&s);
    s.params.mode = TRIA_MODE_UNION;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    memcpy(first, s.rows, sizeof(first));
    s.event.t = 5000; /* the same rows, much later */
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_memory_not_equal(first, s.rows, sizeof(first));
    small_free(&s);
}

static void more_protected_rows_than_budget_are_all_kept_and_reported(void **state)
{
    small s;
    const tria_range prompt = {0, 60};
    (void)state;
    small_init(&s);
    s.params.protect_prefill = 1;
    s.event.prompts = &prompt;
    s.event.n_prompts = 1;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.counts[0], 60);
    assert_int_equal(s.keep.over_budget, 20);
    assert_int_equal(s.rows[59], 59);
    small_free(&s);
}

static void a_budget_of_all_rows_keeps_all(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    s.params.budget = 100;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    assert_int_equal(s.counts[0], 100);
    assert_int_equal(s.rows[99], 99);
    small_free(&s);
}

static void refuse(small *s, tria_status code, const char *part)
{
    assert_int_equal(small_plan(s), code);
    assert_null(s->plan);
    assert_non_null(strstr(s->error.message, part));
}

static int32_t no_reduce(void *context, float *data, int64_t count, tria_reduce_op op, void *stream)
{
    (void)context;
    (void)data;
    (void)count;
    (void)op;
    (void)stream;
    return 1;
}

static void settings_that_can_never_work_are_refused(void **state)
{
    small s;
    const float zeros[2] = {0.0F, 0.0F};
    (void)state;
    small_init(&s);
    const tria_plan_params good = s.params;

    s.params.n_sink = 10;
    s.params.n_recent = 30;
    refuse(&s, TRIA_E_ARGUMENT, "n_sink 10 + n_recent 30 >= budget 40");
    s.params = good;
    s.params.max_rows = 0;
    refuse(&s, TRIA_E_ARGUMENT, "max_rows");
    s.params = good;
    s.params.mode = 9;
    refuse(&s, TRIA_E_ARGUMENT, "mode 9");
    s.params = good;
    s.params.offset_max = 0;
    refuse(&s, TRIA_E_ARGUMENT, "offset_max");
    s.params = good;
    s.params.content_weight = NAN;
    refuse(&s, TRIA_E_ARGUMENT, "content_weight");
    s.params = good;
    s.params.mode = TRIA_MODE_GLOBAL;
    s.params.layer_weights = zeros;
    refuse(&s, TRIA_E_ARGUMENT, "zero");
    s.params.all_reduce = no_reduce; /* other ranks' layers may have weights that are not */
    assert_int_equal(small_plan(&s), TRIA_OK);
    s.params = good;
    s.params.kv_head_first = 1;
    s.params.kv_head_count = 2;
    refuse(&s, TRIA_E_ARGUMENT, "KV heads 1..2");
    s.params = good;
    s.params.struct_size = 8;
    refuse(&s, TRIA_E_ARGUMENT, "struct_size");
    s.params = good;
    s.params.model = NULL;
    refuse(&s, TRIA_E_ARGUMENT, "model");
    s.params = good;
    s.layers[1].k.dim = 8;
    s.layers[1].k.token_stride = 32;
    refuse(&s, TRIA_E_MISMATCH, "layer 1 K");
    small_free(&s);
}

static void a_calibration_of_another_model_is_refused(void **state)
{
    small s;
    tria_layer_params layers[2];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *other = NULL;
    (void)state;
    small_init(&s);
    for (int32_t l = 0; l < 2; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = 8;
        layers[l].n_kv_heads = 2;
        layers[l].head_dim = 16;
    }
    params.layers = layers;
    params.n_layers = 2;
    assert_int_equal(tria_model_create(&params, NULL, &other, &s.error), TRIA_OK);
    s.params.model = other;
    refuse(&s, TRIA_E_MISMATCH, "8");
    s.params.model = s.model;
    tria_model_destroy(other);
    small_free(&s);
}

static void bad_events_are_refused(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    assert_int_equal(small_plan(&s), TRIA_OK);
    const tria_event good = s.event;
    int32_t positions[2][100] = {{0}};
    const int32_t pin = -1;
    const tria_range prompt = {5, 4};

    s.event.t = -1;
    assert_int_equal(small_select(&s), TRIA_E_ARGUMENT);
    s.event = good;
    s.event.n_rows = SMALL_MAX_ROWS + 1;
    assert_int_equal(small_select(&s), TRIA_E_CAPACITY);
    s.event = good;
    s.event.pins = &pin;
    s.event.n_pins = 1;
    assert_int_equal(small_select(&s), TRIA_E_ARGUMENT);
    s.event = good;
    s.event.prompts = &prompt;
    s.event.n_prompts = 1;
    assert_int_equal(small_select(&s), TRIA_E_ARGUMENT);
    s.event = good;
    positions[1][7] = 9; /* layers disagree: per_head needs them equal */
    s.event.positions = positions[0];
    s.event.positions_layer_stride = 100;
    assert_int_equal(small_select(&s), TRIA_E_MISMATCH);
    positions[0][7] = -9;
    assert_int_equal(small_select(&s), TRIA_E_ARGUMENT);
    s.event = good;
    s.layers[0].k.token_stride += 4;
    assert_int_equal(small_select(&s), TRIA_E_MISMATCH);
    s.layers[0].k.token_stride -= 4;
    s.layers[0].k.size = 64; /* rows lie beyond it */
    assert_int_not_equal(small_select(&s), TRIA_OK);
    s.layers[0].k.size = 0;
    assert_int_equal(small_select(&s), TRIA_OK);
    small_free(&s);
}

static void a_plan_without_budget_only_scores(void **state)
{
    small s;
    (void)state;
    small_init(&s);
    s.params.budget = 0;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_E_STATE);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_planted_needle_survives),
        cmocka_unit_test(the_lowest_scores_are_evicted_not_the_highest),
        cmocka_unit_test(a_nan_key_is_counted_and_evicted_first),
        cmocka_unit_test(all_zero_keys_are_reported),
        cmocka_unit_test(an_uncalibrated_layer_is_reported_and_ranked_by_position),
        cmocka_unit_test(an_uncalibrated_head_takes_no_part),
        cmocka_unit_test(the_row_count_is_not_the_position),
        cmocka_unit_test(more_protected_rows_than_budget_are_all_kept_and_reported),
        cmocka_unit_test(a_budget_of_all_rows_keeps_all),
        cmocka_unit_test(settings_that_can_never_work_are_refused),
        cmocka_unit_test(a_calibration_of_another_model_is_refused),
        cmocka_unit_test(bad_events_are_refused),
        cmocka_unit_test(a_plan_without_budget_only_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_episode.c - a prompt larger than the cache, scored with the calibration and with the statistics of
 * the conversation blended in (tria_calibration_blend()).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/engine.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK = 16, PROMPT = 192, NEEDLE = 20, SLOWEST = 7 };

static const engine_shape shape = {2, 4, 2, 16, TRIA_DTYPE_F32};

static tria_policy_params base_policy(void)
{
    tria_policy_params params;
    tria_policy_params_init(&params);
    params.mode = TRIA_MODE_UNION;
    params.budget = 48;
    params.interval = 8;
    params.n_recent = 12;
    params.n_sink = 3;
    params.capacity = 64;
    params.protect_prefill = 0;
    params.allow_prefill_compaction = 1;
    return params;
}

/* Every head asks for keys whose slowest frequency points along `sign`, the rest is noise. */
static tria_calibration *asking(const engine *e, float sign)
{
    tria_calibration *calibration;
    tria_error error;
    assert_int_equal(tria_calibration_create(e->model, NULL, &calibration, &error), TRIA_OK);
    for (int32_t l = 0; l < shape.n_layers; l++) {
        for (int32_t h = 0; h < shape.n_q_heads; h++) {
            float real[8];
            float imag[8] = {0};
            float magnitude[8];
            for (int32_t f = 0; f < 8; f++) {
                real[f] = f == SLOWEST ? sign : 0.01F;
                magnitude[f] = fabsf(real[f]) + 0.001F;
            }
            const tria_head_stats stats = {sizeof(stats), real, imag, magnitude, NULL, NULL};
            assert_int_equal(tria_calibration_set_head(calibration, l, h, &stats, &error), TRIA_OK);
        }
    }
    return calibration;
}

static tria_plan *plan_with(engine *e, const tria_policy_params *policy,
                            const tria_calibration *calibration)
{
    tria_policy_params with = *policy;
    tria_plan_params params;
    tria_plan *plan;
    tria_error error;
    tria_plan_params_init(&params);
    with.calibration = calibration;
    params.model = e->model;
    params.calibration = calibration;
    params.layout = &e->view;
    assert_int_equal(tria_policy_to_plan(&with, &params, &error), TRIA_OK);
    if (tria_plan_create(&params, NULL, &plan, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return plan;
}

/* Fills the prompt block by block with a needle in it; whether the needle is still there. */
static bool needle_survives(engine *e, tria_plan *plan)
{
    tria_compact_params compact;
    tria_error error;
    int32_t n;
    tria_compact_params_init(&compact);
    compact.kv = &e->view;
    assert_int_equal(tria_sequence_reset(e->sequence, &error), TRIA_OK);
    assert_int_equal(tria_sequence_begin_prefill(e->sequence, PROMPT, &error), TRIA_OK);
    for (int32_t i = 0; i < PROMPT; i += BLOCK) {
        tria_sequence_positions(e->sequence, 0, 0, &n);
        engine_write(e, BLOCK);
        for (int32_t l = 0; i <= NEEDLE && NEEDLE < i + BLOCK && l < shape.n_layers; l++) {
            for (int32_t h = 0; h < shape.n_kv_heads; h++) {
                const float strong = 8.0F;
                memcpy(engine_row(e, 0, l, h, n + NEEDLE - i) + 4 * SLOWEST, &strong, sizeof(strong));
            }
        }
        if (tria_sequence_should_compact(e->sequence) &&
            tria_sequence_compact(e->sequence, plan, &compact, &error) != TRIA_OK) {
            fail_msg("%s", error.message);
        }
    }
    assert_int_equal(tria_sequence_end_prefill(e->sequence, &error), TRIA_OK);
    assert_int_equal(engine_info(e).peak_rows, 48 + BLOCK);
    assert_int_equal(engine_info(e).rows, 48);
    const int32_t *positions = tria_sequence_positions(e->sequence, 0, 0, &n);
    for (int32_t i = 0; i < n; i++) {
        if (positions[i] == NEEDLE) {
            return true;
        }
    }
    return false;
}

/* What the conversation asks for survives only when its statistics take part. */
static void test_conversation_statistics_take_part(void **state)
{
    const tria_policy_params policy = base_policy();
    tria_calibration *blended;
    tria_error error;
    engine e;
    (void)state;
    engine_open(&e, &shape, &policy, NULL, NULL);
    tria_calibration *usual = asking(&e, -1.0F);
    tria_calibration *conversation = asking(&e, 1.0F);
    assert_int_equal(tria_calibration_blend(usual, conversation, 0.8, NULL, &blended, &error), TRIA_OK);
    tria_plan *without = plan_with(&e, &policy, usual);
    tria_plan *with = plan_with(&e, &policy, blended);
    assert_false(needle_survives(&e, without));
    assert_true(needle_survives(&e, with));
    tria_plan_destroy(with);
    tria_plan_destroy(without);
    tria_calibration_destroy(blended);
    tria_calibration_destroy(conversation);
    tria_calibration_destroy(usual);
    engine_close(&e);
}

static void test_blend_is_the_weighted_mean(void **state)
{
    const tria_policy_params policy = base_policy();
    tria_calibration *blended;
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    int32_t present;
    tria_error error;
    engine e;
    (void)state;
    engine_open(&e, &shape, &policy, NULL, NULL);
    tria_calibration *a = asking(&e, -1.0F);
    tria_calibration *b = asking(&e, 3.0F);
    assert_int_equal(tria_calibration_set_head(a, 0, 1, NULL, &error), TRIA_OK);
    assert_int_equal(tria_calibration_set_head(a, 1, 0, NULL, &error), TRIA_OK);
    assert_int_equal(tria_calibration_set_head(b, 1, 0, NULL, &error), TRIA_OK);
    assert_int_equal(tria_calibration_blend(a, b, 0.25, NULL, &blended, &error), TRIA_OK);
    assert_int_equal(tria_calibration_head(blended, 0, 0, &stats, &present, &error), TRIA_OK);
    assert_int_equal(present, 1);
    assert_true(fabs((double)stats.q_mean_real[SLOWEST] - 0.0) < 1e-6);  /* 0.75 * -1 + 0.25 * 3 */
    assert_true(fabs((double)stats.q_abs_mean[SLOWEST] - 1.501) < 1e-6); /* not |mean| */
    assert_int_equal(tria_calibration_head(blended, 0, 1, &stats, &present, &error), TRIA_OK);
    assert_int_equal(present, 1); /* only the other one has it */
    assert_true((double)stats.q_mean_real[SLOWEST] == 3.0);
    assert_int_equal(tria_calibration_head(blended, 1, 0, &stats, &present, &error), TRIA_OK);
    assert_int_equal(present, 0); /* neither has it */
    tria_calibration_destroy(blended);
    assert_int_equal(tria_calibration_blend(a, b, 1.5, NULL, &blended, &error), TRIA_E_ARGUMENT);
    static const engine_shape other_shape = {1, 4, 2, 16, TRIA_DTYPE_F32};
    engine other;
    engine_open(&other, &other_shape, &policy, NULL, NULL);
    assert_int_equal(tria_calibration_blend(a, other.calibration, 0.5, NULL, &blended, &error),
                     TRIA_E_MISMATCH);
    engine_close(&other);
    tria_calibration_destroy(a);
    tria_calibration_destroy(b);
    engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation_statistics_take_part),
        cmocka_unit_test(test_blend_is_the_weighted_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

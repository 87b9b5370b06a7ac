/*
 * test_structs.c - size-versioned structs at every entry point: INIT macro and init function agree; a
 * struct of exactly the first version's length is never read beyond (the sanitizers watch the heap); a
 * longer one of a newer program is taken when its unknown bytes are zero and refused when they are not; one
 * without its size is refused.
 */
#include "plan/small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- INIT macros ---- */

#define SAME(type, macro, function)                                                                        \
    do {                                                                                                   \
        type by_macro = macro;                                                                             \
        type by_function;                                                                                  \
        memset(&by_function, 0xa5, sizeof(by_function));                                                   \
        function(&by_function);                                                                            \
        assert_memory_equal(&by_macro, &by_function, sizeof(by_macro));                                    \
        assert_int_equal(by_macro.struct_size, sizeof(by_macro));                                          \
    } while (0)

static void test_macros(void **state)
{
    (void)state;
    SAME(tria_env, TRIA_ENV_INIT, tria_env_init);
    SAME(tria_device_params, TRIA_DEVICE_PARAMS_INIT, tria_device_params_init);
    SAME(tria_kv_view, TRIA_KV_VIEW_INIT, tria_kv_view_init);
    SAME(tria_layout_params, TRIA_LAYOUT_PARAMS_INIT, tria_layout_params_init);
    SAME(tria_layer_params, TRIA_LAYER_PARAMS_INIT, tria_layer_params_init);
    SAME(tria_model_params, TRIA_MODEL_PARAMS_INIT, tria_model_params_init);
    SAME(tria_policy_params, TRIA_POLICY_PARAMS_INIT, tria_policy_params_init);
    SAME(tria_compact_params, TRIA_COMPACT_PARAMS_INIT, tria_compact_params_init);
}

/* ---- input and output structs at their entry points ---- */

typedef tria_status (*entry_point)(small *s, void *structure);

static tria_status take_env(small *s, void *structure)
{
    tria_backends *backends = NULL;
    tria_status status = tria_backends_create(NULL, structure, &backends, &s->error);
    tria_backends_destroy(backends);
    return status;
}

static tria_status take_device_params(small *s, void *structure)
{
    tria_backends *backends = NULL;
    tria_device *device = NULL;
    tria_status status = tria_backends_create(NULL, NULL, &backends, &s->error);
    assert_int_equal(status, TRIA_OK);
    status = tria_device_open(backends, "reference", structure, &device, &s->error);
    if (status == TRIA_OK) {
        tria_device_close(device);
    }
    tria_backends_destroy(backends);
    return status;
}

static tria_status take_layer_params(small *s, void *structure)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model = NULL;
    tria_status status;
    params.layers = structure;
    params.n_layers = 1;
    status = tria_model_create(&params, NULL, &model, &s->error);
    tria_model_destroy(model);
    return status;
}

static tria_status take_model_params(small *s, void *structure)
{
    tria_model *model = NULL;
    tria_status status = tria_model_create(structure, NULL, &model, &s->error);
    tria_model_destroy(model);
    return status;
}

static tria_status take_head_stats(small *s, void *structure)
{
    return tria_calibration_set_head(s->calibration, 0, 0, structure, &s->error);
}

static tria_status take_accumulator_params(small *s, void *structure)
{
    tria_accumulator *accumulator = NULL;
    tria_status status = tria_accumulator_create(structure, NULL, &accumulator, &s->error);
    tria_accumulator_destroy(accumulator);
    return status;
}

static tria_status take_queries(small *s, void *structure)
{
    tria_accumulator_params params;
    tria_accumulator *accumulator = NULL;
    tria_status status;
    tria_accumulator_params_init(&params);
    params.model = s->model;
    assert_int_equal(tria_accumulator_create(&params, NULL, &accumulator, &s->error), TRIA_OK);
    status = tria_accumulator_add(accumulator, structure, &s->error);
    tria_accumulator_destroy(accumulator);
    return status;
}

static tria_status take_layout_params(small *s, void *structure)
{
    tria_layer_view view;
    return tria_layout_view(TRIA_LAYOUT_HUGGING_FACE, structure, &view, &s->error);
}

static tria_status take_plan_params(small *s, void *structure)
{
    tria_plan *plan = NULL;
    tria_status status = tria_plan_create(structure, NULL, &plan, &s->error);
    tria_plan_destroy(plan);
    return status;
}

static tria_status take_layout(small *s, void *structure)
{
    tria_plan_params params = s->params;
    params.layout = structure;
    return take_plan_params(s, &params);
}

static tria_status select_with(small *s, const tria_event *event, const tria_batch *batch,
                               tria_scores *scores, tria_keep *keep)
{
    tria_batch own;
    tria_batch_init(&own);
    own.events = event;
    own.n_events = 1;
    return tria_plan_select(s->plan, batch != NULL ? batch : &own, scores, keep, &s->error);
}

static tria_status take_batch(small *s, void *structure)
{
    return select_with(s, NULL, structure, NULL, &s->keep);
}

static tria_status take_event(small *s, void *structure)
{
    return select_with(s, structure, NULL, NULL, &s->keep);
}

static tria_status take_view(small *s, void *structure)
{
    tria_event event = s->event;
    event.kv = structure;
    return select_with(s, &event, NULL, NULL, &s->keep);
}

static tria_status take_scores(small *s, void *structure)
{
    return select_with(s, &s->event, NULL, structure, &s->keep);
}

static tria_status take_keep(small *s, void *structure)
{
    return select_with(s, &s->event, NULL, NULL, structure);
}

static tria_status take_compaction(small *s, void *structure)
{
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &s->event;
    batch.n_events = 1;
    assert_int_equal(select_with(s, &s->event, NULL, NULL, &s->keep), TRIA_OK);
    return tria_plan_compact(s->plan, &batch, &s->keep, structure, &s->error);
}

static tria_status take_policy_params(small *s, void *structure)
{
    tria_sequence *sequence = NULL;
    tria_status status = tria_sequence_create(structure, NULL, &sequence, &s->error);
    tria_sequence_destroy(sequence);
    return status;
}

static tria_status take_calibration_info(small *s, void *structure)
{
    return tria_calibration_get_info(s->calibration, structure, &s->error);
}

static tria_status take_calibration_layer_info(small *s, void *structure)
{
    return tria_calibration_layer(s->calibration, 0, structure, &s->error);
}

static tria_status take_backend_info(small *s, void *structure)
{
    tria_backends *backends = NULL;
    tria_status status = tria_backends_create(NULL, NULL, &backends, &s->error);
    assert_int_equal(status, TRIA_OK);
    status = tria_backends_info(backends, 0, structure, &s->error);
    tria_backends_destroy(backends);
    return status;
}

/* Copies of `structure` on the heap: exact, longer, dirty, without a size. Outputs have no unknown input.
 */
static void check(small *s, const char *name, entry_point call, const void *structure, size_t size,
                  bool output)
{
    const size_t extra = 24;
    unsigned char *exact = malloc(size);
    unsigned char *longer = calloc(1, size + extra);
    const size_t long_size = size + extra;
    size_t *only_size = malloc(sizeof(*only_size));
    print_message("%s\n", name);
    memcpy(exact, structure, size);
    assert_int_equal(call(s, exact), TRIA_OK);

    memcpy(longer, structure, size);
    memcpy(longer, &long_size, sizeof(long_size));
    assert_int_equal(call(s, longer), TRIA_OK);
    assert_memory_equal(longer, &long_size, sizeof(long_size)); /* outputs keep the caller's size */

    if (!output) {
        memcpy(longer, structure, size);
        memcpy(longer, &long_size, sizeof(long_size));
        longer[long_size - 1] = 1;
        assert_int_equal(call(s, longer), TRIA_E_ARGUMENT);
        assert_non_null(strstr(s->error.message, "byte"));
    }
    *only_size = 0;
    assert_int_equal(call(s, only_size), TRIA_E_ARGUMENT);
    *only_size = sizeof(*only_size);
    assert_int_equal(call(s, only_size), TRIA_E_ARGUMENT);
    free(exact);
    free(longer);
    free(only_size);
}

#define INPUT(call, structure) check(&s, #call, call, &(structure), sizeof(structure), false)
#define OUTPUT(call, structure) check(&s, #call, call, &(structure), sizeof(structure), true)

static void test_model_structs(void **state)
{
    small s;
    tria_env env = TRIA_ENV_INIT;
    tria_device_params device = TRIA_DEVICE_PARAMS_INIT;
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_model_params model = TRIA_MODEL_PARAMS_INIT;
    const float numbers[64] = {1.0f};
    tria_head_stats stats = {.struct_size = sizeof(stats),
                             .q_mean_real = numbers,
                             .q_mean_imag = numbers,
                             .q_abs_mean = numbers};
    tria_accumulator_params accumulator;
    tria_queries queries;
    tria_layout_params layout = TRIA_LAYOUT_PARAMS_INIT;
    tria_policy_params policy = TRIA_POLICY_PARAMS_INIT;
    char buffer[2 * 8 * 4 * 2];
    (void)state;
    small_init(&s);
    layer.n_q_heads = 2;
    layer.n_kv_heads = 1;
    layer.head_dim = 8;
    model.layers = &layer;
    model.n_layers = 1;
    tria_accumulator_params_init(&accumulator);
    accumulator.model = s.model;
    tria_queries_init(&queries);
    queries.data = numbers;
    queries.n_tokens = 1;
    layout.k = buffer;
    layout.v = buffer;
    layout.k_dim = 8;
    layout.v_dim = 8;
    layout.n_heads = 2;
    layout.page_tokens = 4;
    policy.capacity = 1024;
    policy.mode = TRIA_MODE_UNION;
    INPUT(take_env, env);
    INPUT(take_device_params, device);
    INPUT(take_layer_params, layer);
    INPUT(take_model_params, model);
    INPUT(take_head_stats, stats);
    INPUT(take_accumulator_params, accumulator);
    INPUT(take_queries, queries);
    INPUT(take_layout_params, layout);
    INPUT(take_policy_params, policy);
    small_free(&s);
}

static void test_plan_structs(void **state)
{
    small s;
    tria_batch batch;
    tria_scores scores;
    (void)state;
    small_init(&s);
    s.params.budget = 50;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    tria_batch_init(&batch);
    batch.events = &s.event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.row_stride = SMALL_MAX_ROWS;
    INPUT(take_plan_params, s.params);
    INPUT(take_layout, s.view);
    INPUT(take_batch, batch);
    INPUT(take_event, s.event);
    INPUT(take_view, s.view);
    INPUT(take_scores, scores);
    INPUT(take_keep, s.keep);
    small_free(&s);
}

static void test_compaction_struct(void **state)
{
    small s;
    tria_compaction compaction;
    (void)state;
    small_init(&s);
    s.params.budget = 50;
    assert_int_equal(small_plan(&s), TRIA_OK);
    assert_int_equal(small_select(&s), TRIA_OK);
    tria_compaction_init(&compaction);
    INPUT(take_compaction, compaction);
    small_free(&s);
}

static void test_output_structs(void **state)
{
    small s;
    tria_calibration_info info = {.struct_size = sizeof(info)};
    tria_calibration_layer_info layer = {.struct_size = sizeof(layer)};
    tria_backend_info backend = {.struct_size = sizeof(backend)};
    (void)state;
    small_init(&s);
    OUTPUT(take_calibration_info, info);
    OUTPUT(take_calibration_layer_info, layer);
    OUTPUT(take_backend_info, backend);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_macros),         cmocka_unit_test(test_model_structs),
        cmocka_unit_test(test_plan_structs),   cmocka_unit_test(test_compaction_struct),
        cmocka_unit_test(test_output_structs),
    };
    return cmocka_run_group_tests_name("abi-structs", tests, NULL, NULL);
}

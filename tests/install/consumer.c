/* What a user of the installed library does first: a plan, scores, a keep set. */
#include <tria/tria.h>

#include <math.h>
#include <stdio.h>

enum { N_ROWS = 4, HEAD_DIM = 4 };

int main(void)
{
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_model_params model_params = TRIA_MODEL_PARAMS_INIT;
    const float mean[2] = {1.0f, 0.0f};
    const float zero[2] = {0.0f, 0.0f};
    const float magnitude[2] = {1.0f, 0.5f};
    tria_head_stats stats = {0};
    float keys[N_ROWS][HEAD_DIM] = {{0.0f}};
    tria_layer_view layer_view = {0};
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    tria_plan_params params;
    tria_event event;
    tria_batch batch;
    tria_keep keep;
    int32_t rows[N_ROWS];
    int32_t counts[1];
    tria_model *model = NULL;
    tria_calibration *calibration = NULL;
    tria_plan *plan = NULL;
    tria_error error;
    int ok;

    layer.n_q_heads = 1;
    layer.n_kv_heads = 1;
    layer.head_dim = HEAD_DIM;
    model_params.layers = &layer;
    model_params.n_layers = 1;
    stats.struct_size = sizeof(stats);
    stats.q_mean_real = mean;
    stats.q_mean_imag = zero;
    stats.q_abs_mean = magnitude;
    for (int i = 0; i < N_ROWS; i++) {
        keys[i][1] = (float)i; /* the magnitude of the slow frequency grows with the row */
    }
    layer_view.k.base = keys;
    layer_view.k.size = sizeof(keys);
    layer_view.k.token_stride = sizeof(keys[0]);
    layer_view.k.head_stride = sizeof(keys);
    layer_view.k.dtype = TRIA_DTYPE_F32;
    layer_view.k.dim = HEAD_DIM;
    view.layers = &layer_view;
    view.n_layers = 1;
    tria_plan_params_init(&params);
    params.layout = &view;
    params.mode = TRIA_MODE_UNION;
    params.budget = 2;
    params.max_rows = N_ROWS;
    tria_event_init(&event);
    event.kv = &view;
    event.t = N_ROWS;
    event.n_rows = N_ROWS;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.rows = rows;
    keep.counts = counts;
    keep.row_stride = N_ROWS;

    ok = tria_model_create(&model_params, NULL, &model, &error) == TRIA_OK &&
         tria_calibration_create(model, NULL, &calibration, &error) == TRIA_OK &&
         tria_calibration_set_head(calibration, 0, 0, &stats, &error) == TRIA_OK;
    params.model = model;
    params.calibration = calibration;
    ok = ok && tria_plan_create(&params, NULL, &plan, &error) == TRIA_OK &&
         tria_plan_select(plan, &batch, NULL, &keep, &error) == TRIA_OK;
    if (!ok) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("libtria %s keeps rows %d and %d\n", tria_version_string(), rows[0], rows[1]);
    ok = counts[0] == 2 && rows[0] == 2 && rows[1] == 3;
    tria_plan_destroy(plan);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    return ok ? 0 : 1;
}

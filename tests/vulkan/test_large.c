/*
 * A million rows: sums over them in float must give the oracle's normalised scores, also where the mean is
 * far larger than the deviation, the selection its keep set, and the compaction those rows.
 */
#include "gpu.h"
#include "tria/tria.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000000, DIM = 8, N_HEADS = 2, BUDGET = 100000 };

static void must(tria_status status, const tria_error *error)
{
    if (status != TRIA_OK) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
}

static void *get(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        fprintf(stderr, "SKIPPED: not enough memory\n");
        exit(77);
    }
    return memory;
}

/* Two query heads of one KV head; keys whose first pair is nearly the same in every row. */
static tria_calibration *make_calibration(const tria_model *model)
{
    tria_calibration *calibration;
    tria_error error;
    float re[DIM / 2];
    float im[DIM / 2];
    float magnitude[DIM / 2];
    must(tria_calibration_create(model, NULL, &calibration, &error), &error);
    for (int32_t h = 0; h < N_HEADS; h++) {
        const tria_head_stats stats = {sizeof(stats), re, im, magnitude, NULL, NULL};
        for (int32_t f = 0; f < DIM / 2; f++) {
            re[f] = 0.5F + 0.25F * (float)(f + h);
            im[f] = 0.125F * (float)(f - h);
            magnitude[f] = 2.0F;
        }
        must(tria_calibration_set_head(calibration, 0, h, &stats, &error), &error);
    }
    return calibration;
}

static void fill_keys(float *keys)
{
    uint64_t state = 5;
    for (size_t i = 0; i < (size_t)N * DIM; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        keys[i] = (float)(int32_t)(state >> 32) / 2147483648.0F + (i % DIM == 0 ? 30.0F : 0.0F);
    }
}

typedef struct outcome {
    tria_keep keep;
    int32_t count;
} outcome;

static void run(const tria_plan_params *params, tria_device *device, tria_kv_view *view, void *final_scores,
                int32_t dtype, outcome *o)
{
    tria_plan_params p = *params;
    tria_plan *plan;
    tria_event event;
    tria_batch batch;
    tria_scores scores;
    tria_error error;
    p.score_device = p.select_device = device;
    must(tria_plan_create(&p, NULL, &plan, &error), &error);
    tria_event_init(&event);
    event.kv = view;
    event.t = N;
    event.n_rows = N;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.dtype = dtype;
    scores.row_stride = N;
    scores.final_scores = final_scores;
    tria_keep_init(&o->keep);
    o->keep.rows = get(N, sizeof(int32_t));
    o->keep.counts = &o->count;
    o->keep.row_stride = N;
    must(tria_plan_select(plan, &batch, &scores, &o->keep, &error), &error);
    must(tria_plan_synchronize(plan, &error), &error);
    if (p.compact_device != NULL) {
        must(tria_plan_compact(plan, &batch, NULL, NULL, &error), &error);
        must(tria_plan_synchronize(plan, &error), &error);
    }
    tria_plan_destroy(plan);
}

/* Rows of `after` that are not the kept row of `before`, or not zero behind the last. */
static int32_t count_misplaced(const float *before, const float *after, const outcome *o)
{
    int32_t wrong = 0;
    for (int32_t i = 0; i < N; i++) {
        static const float zero[DIM];
        const float *row = i < o->count ? before + (size_t)o->keep.rows[i] * DIM : zero;
        wrong += memcmp(after + (size_t)i * DIM, row, sizeof(zero)) != 0;
    }
    return wrong;
}

int main(void)
{
    gpu g;
    gpu_buffer buffer;
    tria_backends *backends;
    tria_device *vulkan;
    tria_device *reference;
    tria_error error;
    tria_model *model;
    tria_layer_params layer = TRIA_LAYER_PARAMS_INIT;
    tria_model_params model_params = TRIA_MODEL_PARAMS_INIT;
    tria_plan_params params;
    tria_layer_view tensors;
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    outcome want;
    outcome got;

    gpu_open(&g, false);
    gpu_open_backend(&g, &backends, &vulkan);
    must(tria_device_open(backends, "reference", NULL, &reference, &error), &error);
    gpu_buffer_create(&g, sizeof(float) * N * DIM, &buffer);
    fill_keys(buffer.mapped);

    layer.n_q_heads = N_HEADS;
    layer.n_kv_heads = 1;
    layer.head_dim = DIM;
    model_params.layers = &layer;
    model_params.n_layers = 1;
    must(tria_model_create(&model_params, NULL, &model, &error), &error);
    tria_calibration *calibration = make_calibration(model);
    memset(&tensors, 0, sizeof(tensors));
    tensors.k.dtype = TRIA_DTYPE_F32;
    tensors.k.dim = DIM;
    tensors.k.token_stride = sizeof(float) * DIM;
    view.layers = &tensors;
    view.n_layers = 1;
    tria_plan_params_init(&params);
    params.model = model;
    params.calibration = calibration;
    params.layout = &view;
    params.mode = TRIA_MODE_UNION;
    params.max_rows = N;
    params.budget = BUDGET;
    params.offset_max = 16; /* the oracle is slow */
    params.zero_tail = 1;

    double *z = get(N, sizeof(double));
    float *f = get(N, sizeof(float));
    tensors.k.base = buffer.mapped;
    run(&params, reference, &view, z, TRIA_DTYPE_F64, &want);
    tensors.k.base = (void *)(uintptr_t)buffer.handle;
    params.compact_device = vulkan;
    float *before = get((size_t)N * DIM, sizeof(float));
    memcpy(before, buffer.mapped, sizeof(float) * N * DIM);
    run(&params, vulkan, &view, f, TRIA_DTYPE_F32, &got);
    const int32_t misplaced = count_misplaced(before, buffer.mapped, &got);

    double worst = 0.0;
    for (int32_t i = 0; i < N; i++) {
        worst = fmax(worst, fabs(z[i] - (double)f[i]));
    }
    double low = INFINITY;
    double high = -INFINITY;
    int32_t near_cut = 0;
    for (int32_t i = 0, j = 0; i < want.count || j < got.count;) {
        const int32_t a = i < want.count ? want.keep.rows[i] : N;
        const int32_t b = j < got.count ? got.keep.rows[j] : N;
        i += a <= b;
        j += b <= a;
        if (a != b) {
            const double s = z[a < b ? a : b];
            low = fmin(low, s);
            high = fmax(high, s);
            near_cut++;
        }
    }
    printf(
        "%d rows: worst error %.2g in z, %d rows kept differently, their scores span %.2g, %d misplaced\n",
        N, worst, near_cut, near_cut > 0 ? high - low : 0.0, misplaced);
    const bool ok = want.count == BUDGET && got.count == BUDGET && worst < 5e-5 && misplaced == 0 &&
                    (near_cut == 0 || high - low < 1e-4);
    free(z);
    free(before);
    free(f);
    free(want.keep.rows);
    free(got.keep.rows);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    gpu_buffer_destroy(&g, &buffer);
    tria_device_close(vulkan);
    tria_device_close(reference);
    tria_backends_destroy(backends);
    gpu_close(&g);
    return ok ? 0 : 1;
}

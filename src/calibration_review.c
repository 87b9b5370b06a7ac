/* calibration_review.c - what is suspicious about a calibration by itself. */
#include "calibration_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_SIZE = 256, FEW_TOKENS = 4096 };

/* Real heads have 0.4 to 0.75; queries fed after RoPE by mistake come out near 0 (specification, 8). */
static const double LOW_CONCENTRATION = 0.2;

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static tria_status review_concentration(const tria_calibration *calibration, tria_finding_fn report,
                                        void *context, tria_error *error)
{
    char text[TEXT_SIZE];
    double *values;
    double median;
    size_t count = 0;
    size_t used = 0;
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        count += (size_t)calibration->layers[l].n_heads;
    }
    if (count == 0) {
        return TRIA_OK;
    }
    values = tria_alloc(&calibration->env, count, sizeof(double));
    if (values == NULL) {
        return tria_fail_memory(error, count * sizeof(double), "a median");
    }
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        for (int32_t i = 0; i < calibration->layers[l].n_heads; i++) {
            (void)tria_calibration_concentration(calibration, l, calibration->layers[l].heads[i].q_head,
                                                 &values[used++], NULL);
        }
    }
    qsort(values, count, sizeof(double), compare_doubles);
    median = count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    tria_free(&calibration->env, values);
    if (median < LOW_CONCENTRATION) {
        snprintf(text, sizeof(text),
                 "low concentration: the median over heads is %.3f, below %.1f; were the queries taken "
                 "after RoPE?",
                 median, LOW_CONCENTRATION);
        report(context, TRIA_FINDING_WARNING, -1, text);
    }
    return TRIA_OK;
}

static void review_tokens(const tria_calibration *calibration, tria_finding_fn report, void *context)
{
    uint64_t fewest = UINT64_MAX;
    int32_t layer = -1;
    char text[TEXT_SIZE];
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *data = &calibration->layers[l];
        if (data->n_heads > 0 && data->n_tokens > 0 && data->n_tokens < fewest) {
            fewest = data->n_tokens;
            layer = l;
        }
    }
    if (fewest < FEW_TOKENS) {
        snprintf(text, sizeof(text), "too few tokens: layer %d saw %llu, at least %d are advised", layer,
                 (unsigned long long)fewest, FEW_TOKENS);
        report(context, TRIA_FINDING_WARNING, -1, text);
    }
}

/* q_abs_mean below |q_mean| by more than rounding: not the mean of a magnitude. */
static void review_coefficients(const tria_calibration *calibration, tria_finding_fn report, void *context)
{
    double worst = 0;
    int32_t count = 0;
    int32_t at[3] = {0};
    char text[TEXT_SIZE];
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        for (int32_t i = 0; i < layer->n_heads; i++) {
            const tria_calibration_head_data *head = &layer->heads[i];
            for (int32_t f = 0; f < layer->n_freq; f++) {
                const double mean = hypot((double)tria_head_array(layer, head, TRIA_HEAD_REAL)[f],
                                          (double)tria_head_array(layer, head, TRIA_HEAD_IMAG)[f]);
                const double excess = (double)tria_head_array(layer, head, TRIA_HEAD_ABS)[f] - mean;
                if (excess >= -1e-6 - 1e-5 * mean) {
                    continue;
                }
                count++;
                if (excess < worst) {
                    worst = excess;
                    at[0] = l;
                    at[1] = head->q_head;
                    at[2] = f;
                }
            }
        }
    }
    if (count > 0) {
        snprintf(text, sizeof(text),
                 "%d norm coefficients are negative, the lowest %.3g in layer %d head %d frequency %d: "
                 "q_abs_mean is "
                 "below |q_mean| there",
                 count, worst, at[0], at[1], at[2]);
        report(context, TRIA_FINDING_WARNING, -1, text);
    }
}

static void review_presence(const tria_calibration *calibration, tria_finding_fn report, void *context)
{
    int32_t layers = 0;
    int32_t without = 0;
    int32_t first = -1;
    int32_t heads = 0;
    int32_t missing = 0;
    char text[TEXT_SIZE];
    for (int32_t l = 0; l < calibration->n_layers; l++) {
        const tria_calibration_layer_data *layer = &calibration->layers[l];
        if (layer->geometry.n_q_heads == 0) {
            continue;
        }
        layers++;
        if (layer->n_heads == 0) {
            without++;
            first = first < 0 ? l : first;
        } else {
            heads += layer->geometry.n_q_heads;
            missing += layer->geometry.n_q_heads - layer->n_heads;
        }
    }
    if (without > 0) {
        snprintf(text, sizeof(text), "%d of %d layers have no calibrated head%s, the first is layer %d",
                 without, layers, calibration->explicit_presence ? "" : " (all zero)", first);
        report(context, TRIA_FINDING_WARNING, -1, text);
    }
    if (missing > 0) {
        snprintf(text, sizeof(text), "%d of %d query heads in the calibrated layers have no statistics%s",
                 missing, heads, calibration->explicit_presence ? "" : " (all zero)");
        report(context, TRIA_FINDING_WARNING, -1, text);
    }
}

tria_status tria_calibration_review(const tria_calibration *calibration, tria_finding_fn report,
                                    void *context, tria_error *error)
{
    if (calibration == NULL || report == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_review: NULL argument");
    }
    review_presence(calibration, report, context);
    review_tokens(calibration, report, context);
    review_coefficients(calibration, report, context);
    return review_concentration(calibration, report, context, error);
}

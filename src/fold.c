/*
 * fold.c - the query side of the score, in double (specification, section 2).
 *
 * The future offsets fold into the query: w_f = g_f q_f (1/|O|) sum_o e^{i(t+o)w_f}, laid out in the
 * order of the stored dimensions so that Re(w conj(k)) summed over f is one dot product with the row.
 * With agg = max there is one such vector per offset. Content terms are further elements of the same
 * vector, and a Hadamard transform of the keys is applied to it instead of to every key.
 */
#include "kv_view_internal.h"
#include "plan_internal.h"

#include <math.h>
#include <string.h>

void tria_phase(int64_t n, double w, double *cosine, double *sine)
{
    /* n*w = product + rest exactly; libm reduces `product` exactly, the rest is below one ulp of it. */
    const double count = (double)n;
    const double product = count * w;
    const double rest = fma(count, w, -product);
    const double c = cos(product);
    const double s = sin(product);
    const double half_square = 0.5 * rest * rest;
    *cosine = c - s * rest - c * half_square;
    *sine = s + c * rest - s * half_square;
}

/* The factors of one layer's frequencies: out[lin][f] complex. */
static void layer_phases(const tria_v1_plan *plan, const tria_v1_layer *layer, int64_t t, double *out)
{
    const int64_t offset_max = plan->params->offset_max;
    for (int32_t f = 0; f < layer->n_freq; f++) {
        double sum_re = 0.0;
        double sum_im = 0.0;
        int32_t count = 0;
        for (int64_t offset = 1; offset <= offset_max; offset *= 2) {
            double re;
            double im;
            tria_phase(t + offset, layer->inv_freq[f], &re, &im);
            if (plan->n_lin > 1) {
                double *slot = out + 2 * ((int64_t)count * layer->n_freq + f);
                slot[0] = re;
                slot[1] = im;
            }
            sum_re += re;
            sum_im += im;
            count++;
        }
        if (plan->n_lin == 1) {
            out[2 * f] = sum_re / count;
            out[2 * f + 1] = sum_im / count;
        }
    }
}

/* One head's vector for one offset (or their mean) in stored order; `phases` is [n_freq] complex. */
static void head_vector(const tria_v1_plan *plan, const tria_v1_query *query, const double *phases,
                        int32_t with_content, int32_t dim, double *out)
{
    const tria_v1_layer *layer = &plan->layers[query->layer];
    const int32_t half = layer->rope_style == TRIA_ROPE_HALF;
    const int32_t stride = half ? 1 : 2;
    const int32_t imag = half ? layer->n_freq : 1;
    memset(out, 0, sizeof(*out) * (size_t)dim);
    for (int32_t f = 0; f < layer->n_freq && !plan->params->disable_trig; f++) {
        const double g = layer->freq_scale_sq[f];
        const double q_re = (double)query->q_mean_real[f];
        const double q_im = (double)query->q_mean_imag[f];
        double *element = out + layer->rotary_offset + f * stride;
        element[0] = g * (q_re * phases[2 * f] - q_im * phases[2 * f + 1]);
        element[imag] = g * (q_re * phases[2 * f + 1] + q_im * phases[2 * f]);
    }
    if (with_content && query->content_mean != NULL) {
        int32_t c = 0;
        for (int32_t d = 0; d < layer->head_dim; d++) {
            if (d < layer->rotary_offset || d >= layer->rotary_offset + layer->rotary_dim) {
                out[d] = (double)plan->params->content_weight * (double)query->content_mean[c++];
            }
        }
    }
    if (plan->k_state == TRIA_K_HADAMARD) {
        const int32_t size = tria_hadamard_block(plan, dim);
        for (int32_t d = 0; d < dim && plan->hadamard_signs != NULL; d++) {
            out[d] *= (double)plan->hadamard_signs[d];
        }
        tria_hadamard_undo_f64(out, dim, size, NULL); /* the transform is its own inverse */
    }
}

/* Either output may be NULL; both have the layout tria_v1_query.lin_offset describes. */
static void fold(const tria_v1_plan *plan, int64_t t, int32_t with_content, float *lin32, double *lin64)
{
    double *phases = plan->fold_scratch;
    for (int32_t owner = 0; owner < plan->n_layers; owner++) {
        if (plan->layers[owner].phase_layer != owner || plan->layers[owner].n_q_heads == 0) {
            continue;
        }
        const int32_t n_freq = plan->layers[owner].n_freq;
        double *vector = phases + 2 * (int64_t)plan->n_lin * n_freq;
        layer_phases(plan, &plan->layers[owner], t, phases);
        for (int32_t q = 0; q < plan->n_queries; q++) {
            const tria_v1_query *query = &plan->queries[q];
            if (!query->calibrated || plan->layers[query->layer].phase_layer != owner) {
                continue;
            }
            const int32_t dim = plan->layers[plan->kv[query->kv_slot].layer].k.dim;
            for (int32_t o = 0; o < plan->n_lin; o++) {
                const int64_t at = query->lin_offset + (int64_t)o * dim;
                double *target = lin64 != NULL ? lin64 + at : vector;
                head_vector(plan, query, phases + 2 * (int64_t)o * n_freq, with_content, dim, target);
                for (int32_t d = 0; d < dim && lin32 != NULL; d++) {
                    lin32[at + d] = (float)target[d];
                }
            }
        }
    }
}

void tria_fold_f32(const tria_v1_plan *plan, int64_t t, int32_t with_content, float *lin)
{
    fold(plan, t, with_content, lin, NULL);
}

void tria_fold_f64(const tria_v1_plan *plan, int64_t t, int32_t with_content, double *lin)
{
    fold(plan, t, with_content, NULL, lin);
}

void tria_fold_mag_f64(const tria_v1_plan *plan, int32_t query, double *mag)
{
    const tria_v1_query *head = &plan->queries[query];
    const tria_v1_layer *layer = &plan->layers[head->layer];
    for (int32_t f = 0; f < layer->n_freq; f++) {
        const double re = (double)head->q_mean_real[f];
        const double im = (double)head->q_mean_imag[f];
        const double excess = plan->params->disable_norm_excess ? 0.0 : sqrt(re * re + im * im + 1e-8);
        mag[f] = layer->freq_scale_sq[f] * ((double)head->q_abs_mean[f] - excess);
    }
}

void tria_phases_f32(const tria_v1_plan *plan, int32_t layer, int64_t t, float *out)
{
    const int64_t count = 2 * (int64_t)plan->n_lin * plan->layers[layer].n_freq;
    layer_phases(plan, &plan->layers[layer], t, plan->fold_scratch);
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)plan->fold_scratch[i];
    }
}

void tria_rotation_tables_f32(const tria_v1_plan *plan, int32_t layer, float *out)
{
    const tria_v1_layer *geometry = &plan->layers[layer];
    for (int32_t digit = 0; digit < 3; digit++) {
        for (int64_t value = 0; value < TRIA_ROTATION_DIGITS; value++) {
            for (int32_t f = 0; f < geometry->n_freq; f++) {
                double re;
                double im;
                tria_phase(value << (11 * digit), geometry->inv_freq[f], &re, &im);
                *out++ = (float)re;
                *out++ = (float)im;
            }
        }
    }
}

/* calibration_blend.c - the statistics of a mixture of two texts, e.g. of the calibration's and of the
 * conversation at hand. Means of a mixture are the weighted means. */
#include "calibration_internal.h"

static tria_status check_layers(const tria_calibration *base, const tria_calibration *other,
                                tria_error *error)
{
    if (base->n_layers != other->n_layers) {
        return tria_fail(error, TRIA_E_MISMATCH, "blend: %d layers and %d", base->n_layers,
                         other->n_layers);
    }
    for (int32_t l = 0; l < base->n_layers; l++) {
        const tria_layer_params *a = &base->layers[l].geometry;
        const tria_layer_params *b = &other->layers[l].geometry;
        if (a->n_q_heads != b->n_q_heads || a->head_dim != b->head_dim || a->rotary_dim != b->rotary_dim ||
            a->rotary_offset != b->rotary_offset) {
            return tria_fail(
                error, TRIA_E_MISMATCH,
                "blend: layer %d has %d query heads of %d dims, %d of them rotary from %d, and "
                "%d of %d, %d from %d",
                l, a->n_q_heads, a->head_dim, a->rotary_dim, a->rotary_offset, b->n_q_heads, b->head_dim,
                b->rotary_dim, b->rotary_offset);
        }
    }
    return TRIA_OK;
}

/* Arrays that one side lacks (content of a head) are taken from the other. */
static void blend_arrays(const tria_calibration_layer_data *layer, tria_calibration_head_data *to,
                         const tria_calibration_head_data *a, const tria_calibration_head_data *b,
                         double weight)
{
    for (int32_t array = TRIA_HEAD_REAL; array <= TRIA_HEAD_CONTENT_ABS; array++) {
        const bool content = array >= TRIA_HEAD_CONTENT_MEAN;
        const int32_t n = content ? to->n_content : layer->n_freq;
        const bool in_a = a != NULL && (!content || a->n_content > 0);
        const bool in_b = b != NULL && (!content || b->n_content > 0);
        const double share = !in_a ? 1.0 : !in_b ? 0.0 : weight;
        float *out = tria_head_array(layer, to, array);
        for (int32_t i = 0; i < n; i++) {
            const double x = in_a ? (double)tria_head_array(layer, a, array)[i] : 0.0;
            const double y = in_b ? (double)tria_head_array(layer, b, array)[i] : 0.0;
            out[i] = (float)((1.0 - share) * x + share * y);
        }
    }
    tria_calibration_fill_concentration(layer, to);
}

static tria_status blend_layer(tria_calibration *out, const tria_calibration *base,
                               const tria_calibration *other, int32_t l, double weight, tria_error *error)
{
    const tria_calibration_layer_data *from = &base->layers[l];
    TRIA_TRY(tria_calibration_set_geometry(out, l, &from->geometry, TRIA_E_ARGUMENT, error));
    out->layers[l].budget_scale = from->budget_scale;
    out->layers[l].n_tokens = from->n_tokens + other->layers[l].n_tokens;
    for (int32_t h = 0; h < from->geometry.n_q_heads; h++) {
        const tria_calibration_head_data *a = tria_calibration_find_head(base, l, h);
        const tria_calibration_head_data *b = tria_calibration_find_head(other, l, h);
        tria_calibration_head_data *to;
        if (a == NULL && b == NULL) {
            continue;
        }
        const int32_t n_content = a != NULL && a->n_content > 0 ? a->n_content
                                  : b != NULL                   ? b->n_content
                                                                : 0;
        TRIA_TRY(tria_calibration_add_head(out, l, h, n_content, &to, error));
        blend_arrays(&out->layers[l], to, a, b, weight);
    }
    return TRIA_OK;
}

tria_status tria_calibration_blend(const tria_calibration *base, const tria_calibration *other,
                                   double weight, const tria_env *env, tria_calibration **calibration,
                                   tria_error *error)
{
    tria_env own_env;
    tria_calibration *out;
    tria_status status;
    if (base == NULL || other == NULL || calibration == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "blend: base, other or calibration is NULL");
    }
    if (!(weight >= 0.0 && weight <= 1.0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "blend: weight %g is not in 0..1", weight);
    }
    TRIA_TRY(tria_env_import(&own_env, env, error));
    TRIA_TRY(check_layers(base, other, error));
    TRIA_TRY(tria_calibration_alloc(&own_env, base->n_layers, &out, error));
    out->explicit_presence = 1;
    out->explicit_geometry = base->explicit_geometry;
    out->explicit_style = base->explicit_style;
    out->capture_point = base->capture_point;
    out->rope_theta = base->rope_theta;
    out->attn_scale = base->attn_scale;
    TRIA_TRY_GOTO(tria_calibration_set_texts(out, base->model_name, base->fingerprint, NULL,
                                             base->default_policy, error),
                  fail);
    for (int32_t l = 0; l < base->n_layers; l++) {
        TRIA_TRY_GOTO(blend_layer(out, base, other, l, weight, error), fail);
    }
    *calibration = out;
    return TRIA_OK;
fail:
    tria_calibration_destroy(out);
    return status;
}

/* calibration_match.c - compares a calibration with the engine's model description. */
#include "calibration_internal.h"
#include "model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_SIZE = 320 };

typedef struct matcher {
    const tria_calibration *calibration;
    const tria_model *model;
    tria_finding_fn report;
    void *context;
    tria_error *error;
    bool fatal;
} matcher;

static void found(matcher *m, tria_finding_severity severity, int32_t layer, const char *text)
{
    if (m->report != NULL) {
        m->report(m->context, severity, layer, text);
    }
    if (severity == TRIA_FINDING_FATAL && !m->fatal) {
        m->fatal = true;
        if (layer >= 0) {
            tria_fail(m->error, TRIA_E_MISMATCH, "layer %d: %s", layer, text);
        } else {
            tria_fail(m->error, TRIA_E_MISMATCH, "%s", text);
        }
    }
}

/* Checks of one layer: whether the two disagree, and then how, without the layer's number. */
typedef bool (*layer_check)(const tria_calibration_layer_data *file, const tria_layer_params *model,
                            char *text);

static bool check_q_heads(const tria_calibration_layer_data *file, const tria_layer_params *model,
                          char *text)
{
    snprintf(text, TEXT_SIZE, "the calibration has %d query heads, the model %d", file->geometry.n_q_heads,
             model->n_q_heads);
    return file->geometry.n_q_heads != model->n_q_heads;
}

static bool check_kv_heads(const tria_calibration_layer_data *file, const tria_layer_params *model,
                           char *text)
{
    snprintf(text, TEXT_SIZE, "the calibration has %d KV heads, the model %d", file->geometry.n_kv_heads,
             model->n_kv_heads);
    return file->geometry.n_kv_heads != 0 && file->geometry.n_kv_heads != model->n_kv_heads;
}

static bool check_n_freq(const tria_calibration_layer_data *file, const tria_layer_params *model,
                         char *text)
{
    snprintf(text, TEXT_SIZE,
             "the calibration has %d frequencies (a rotary width of %d), the model rotates %d of its %d "
             "dimensions",
             file->n_freq, 2 * file->n_freq, model->rotary_dim, model->head_dim);
    return 2 * file->n_freq != model->rotary_dim;
}

static bool check_content(const tria_calibration_layer_data *file, const tria_layer_params *model,
                          char *text)
{
    const int32_t n_model = model->head_dim - model->rotary_dim;
    int32_t n_file = 0;
    for (int32_t i = 0; i < file->n_heads && n_file == 0; i++) {
        n_file = file->heads[i].n_content;
    }
    snprintf(text, TEXT_SIZE, "the calibration has %d content (non-rotary) dimensions, the model %d",
             n_file, n_model);
    return n_file != 0 && n_file != n_model;
}

static bool check_head_dim(const tria_calibration_layer_data *file, const tria_layer_params *model,
                           char *text)
{
    const bool rotary = file->geometry.head_dim == file->geometry.rotary_dim;
    snprintf(text, TEXT_SIZE, "head_dim is %d in the calibration%s, %d in the model; the model's is used",
             file->geometry.head_dim, rotary ? " (it stores the rotary width)" : "", model->head_dim);
    return file->geometry.head_dim != model->head_dim;
}

static bool check_offset(const tria_calibration_layer_data *file, const tria_layer_params *model,
                         char *text)
{
    snprintf(text, TEXT_SIZE,
             "the rotary slice starts at %d in the calibration, %d in the model; the model's is used",
             file->geometry.rotary_offset, model->rotary_offset);
    return file->geometry.rotary_offset != model->rotary_offset;
}

static const char *style_name(int32_t style)
{
    return style == TRIA_ROPE_INTERLEAVED ? "interleaved" : "half";
}

static bool check_style(const tria_calibration_layer_data *file, const tria_layer_params *model, char *text)
{
    snprintf(text, TEXT_SIZE,
             "rope style is %s (%d) in the calibration, %s (%d) in the model; the model's is used",
             style_name(file->geometry.rope_style), file->geometry.rope_style,
             style_name(model->rope_style), model->rope_style);
    return file->geometry.rope_style != model->rope_style;
}

static bool differ(double a, double b)
{
    return fabs(a - b) > 1e-6 * fmax(fabs(a), fabs(b));
}

/* Where the bases agree, or the file holds none, the frequencies differ by a scaling. */
static void say_frequency(char *text, double theta, double model_theta, int32_t f, double stated,
                          double model)
{
    if (theta != 0 && differ(theta, model_theta)) {
        snprintf(
            text, TEXT_SIZE,
            "rope_theta is %.9g in the calibration, %.9g in the model; frequency %d is %.9g against %.9g; "
            "the model's are used",
            theta, model_theta, f, stated, model);
    } else {
        snprintf(text, TEXT_SIZE,
                 "RoPE is scaled otherwise: frequency %d is %.9g in the calibration, %.9g in the model "
                 "(rope_theta "
                 "%.9g); the model's are used",
                 f, stated, model, model_theta);
    }
}

/* Files hold float32 at best, hence the tolerance. A file without theta and frequencies agrees. */
static bool check_frequencies(const tria_calibration_layer_data *file, const tria_layer_params *model,
                              char *text)
{
    const double theta = file->geometry.rope_theta;
    if (2 * file->n_freq != model->rotary_dim || (file->inv_freq == NULL && theta == 0)) {
        return false;
    }
    for (int32_t f = 0; f < file->n_freq; f++) {
        const double stated =
            file->inv_freq != NULL ? file->inv_freq[f] : pow(theta, -(double)f / file->n_freq);
        if (differ(stated, model->inv_freq[f])) {
            say_frequency(text, theta, model->rope_theta, f, stated, model->inv_freq[f]);
            return true;
        }
    }
    return false;
}

static bool check_freq_scale(const tria_calibration_layer_data *file, const tria_layer_params *model,
                             char *text)
{
    for (int32_t f = 0;
         file->freq_scale_sq != NULL && 2 * file->n_freq == model->rotary_dim && f < file->n_freq; f++) {
        if (differ(file->freq_scale_sq[f], model->freq_scale_sq[f])) {
            snprintf(text, TEXT_SIZE,
                     "freq_scale_sq %d is %.9g in the calibration, %.9g in the model; the model's are used",
                     f, file->freq_scale_sq[f], model->freq_scale_sq[f]);
            return true;
        }
    }
    return false;
}

/* Only layers that have statistics and use them are compared. */
static bool compared(const matcher *m, int32_t layer)
{
    return layer < m->calibration->n_layers && m->calibration->layers[layer].n_heads > 0 &&
           m->model->layers[layer].n_q_heads > 0;
}

/* One finding when all compared layers disagree alike, else one per layer. */
static void run_check(matcher *m, layer_check check, tria_finding_severity severity)
{
    char first[TEXT_SIZE] = "";
    char text[TEXT_SIZE];
    bool alike = true;
    for (int32_t l = 0; l < m->model->n_layers; l++) {
        if (!compared(m, l)) {
            continue;
        }
        if (!check(&m->calibration->layers[l], &m->model->layers[l], text)) {
            alike = false;
        } else if (first[0] == '\0') {
            memcpy(first, text, sizeof(first));
        } else {
            alike = alike && strcmp(first, text) == 0;
        }
    }
    if (first[0] == '\0') {
        return;
    }
    if (alike) {
        found(m, severity, -1, first);
        return;
    }
    for (int32_t l = 0; l < m->model->n_layers; l++) {
        if (compared(m, l) && check(&m->calibration->layers[l], &m->model->layers[l], text)) {
            found(m, severity, l, text);
        }
    }
}

static void match_layer_count(matcher *m)
{
    char text[TEXT_SIZE];
    if (m->calibration->n_layers < m->model->n_layers) {
        snprintf(text, sizeof(text), "the calibration has %d layers, the model %d",
                 m->calibration->n_layers, m->model->n_layers);
        found(m, TRIA_FINDING_FATAL, -1, text);
    }
    for (int32_t l = m->model->n_layers; l < m->calibration->n_layers; l++) {
        if (m->calibration->layers[l].n_heads > 0) {
            snprintf(text, sizeof(text),
                     "the calibration has %d layers (%d calibrated heads in layer %d), the model %d",
                     m->calibration->n_layers, m->calibration->layers[l].n_heads, l, m->model->n_layers);
            found(m, TRIA_FINDING_FATAL, -1, text);
            return;
        }
    }
}

static void match_attention(matcher *m)
{
    char text[TEXT_SIZE];
    int32_t count = 0;
    int32_t first = -1;
    for (int32_t l = 0; l < m->model->n_layers && l < m->calibration->n_layers; l++) {
        if (m->calibration->layers[l].n_heads > 0 && m->model->layers[l].n_q_heads == 0) {
            first = first < 0 ? l : first;
            count++;
        }
    }
    if (count > 0) {
        snprintf(text, sizeof(text), "the calibration has %d heads where the model has 0 (no attention)%s",
                 m->calibration->layers[first].n_heads, count > 1 ? ", and so in other layers" : "");
        found(m, TRIA_FINDING_FATAL, first, text);
    }
}

/* Layers of the model with attention, those calibrated, and what is missing in between. */
static void match_coverage(matcher *m)
{
    const int32_t n_layers = m->model->n_layers;
    int32_t attention = 0;
    int32_t calibrated = 0;
    int32_t heads = 0;
    int32_t calibrated_heads = 0;
    int32_t first_missing = -1;
    char text[TEXT_SIZE];
    for (int32_t l = 0; l < n_layers; l++) {
        if (m->model->layers[l].n_q_heads == 0) {
            continue;
        }
        attention++;
        if (compared(m, l)) {
            calibrated++;
            heads += m->model->layers[l].n_q_heads;
            calibrated_heads += m->calibration->layers[l].n_heads;
        } else if (first_missing < 0) {
            first_missing = l;
        }
    }
    if (calibrated < attention) {
        snprintf(text, sizeof(text),
                 "%d of %d attention layers have no calibrated head (the first is layer %d): they evict by "
                 "position "
                 "or take no part; %d of the model's %d layers (%.1f %%) evict by score",
                 attention - calibrated, attention, first_missing, calibrated, n_layers,
                 100.0 * calibrated / n_layers);
        found(m, TRIA_FINDING_WARNING, -1, text);
    }
    if (attention < n_layers) {
        snprintf(text, sizeof(text),
                 "hybrid model: %d of its %d layers (%.1f %%) have attention and evict; the memory of the "
                 "other %d "
                 "does not shrink",
                 attention, n_layers, 100.0 * attention / n_layers, n_layers - attention);
        found(m, TRIA_FINDING_WARNING, -1, text);
    }
    if (calibrated_heads < heads) {
        snprintf(text, sizeof(text), "%d of %d query heads in the calibrated layers have statistics",
                 calibrated_heads, heads);
        found(m, TRIA_FINDING_NOTE, -1, text);
    }
}

static void match_identity(matcher *m)
{
    char text[TEXT_SIZE];
    if (m->calibration->fingerprint[0] != '\0' && m->model->fingerprint[0] != '\0' &&
        strcmp(m->calibration->fingerprint, m->model->fingerprint) != 0) {
        snprintf(text, sizeof(text), "the calibration's fingerprint is %.100s, the model's %.100s",
                 m->calibration->fingerprint, m->model->fingerprint);
        found(m, TRIA_FINDING_FATAL, -1, text);
    }
    if (m->calibration->model_name[0] != '\0' && m->model->name[0] != '\0' &&
        strcmp(m->calibration->model_name, m->model->name) != 0) {
        snprintf(text, sizeof(text), "the calibration is of \"%.100s\", the model is called \"%.100s\"",
                 m->calibration->model_name, m->model->name);
        found(m, TRIA_FINDING_NOTE, -1, text);
    }
}

tria_status tria_calibration_match(const tria_calibration *calibration, const tria_model *model,
                                   tria_finding_fn report, void *context, tria_error *error)
{
    matcher m = {calibration, model, report, context, error, false};
    if (calibration == NULL || model == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_match: NULL argument");
    }
    match_layer_count(&m);
    match_identity(&m);
    match_attention(&m);
    run_check(&m, check_q_heads, TRIA_FINDING_FATAL);
    run_check(&m, check_kv_heads, TRIA_FINDING_FATAL);
    run_check(&m, check_n_freq, TRIA_FINDING_FATAL);
    run_check(&m, check_content, TRIA_FINDING_FATAL);
    run_check(&m, check_head_dim, TRIA_FINDING_WARNING);
    run_check(&m, check_offset, TRIA_FINDING_WARNING);
    if (calibration->explicit_style) {
        run_check(&m, check_style, TRIA_FINDING_WARNING);
    }
    run_check(&m, check_frequencies, TRIA_FINDING_WARNING);
    run_check(&m, check_freq_scale, TRIA_FINDING_WARNING);
    match_coverage(&m);
    return m.fatal ? TRIA_E_MISMATCH : TRIA_OK;
}

tria_status tria_calibration_adopt(const tria_calibration *calibration, const tria_model *model,
                                   const tria_env *env, tria_calibration **out, tria_error *error)
{
    tria_calibration *adopted;
    tria_status status;
    if (out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_calibration_adopt: adopted is NULL");
    }
    TRIA_TRY(tria_calibration_match(calibration, model, NULL, NULL, error));
    TRIA_TRY(tria_calibration_create(model, env, &adopted, error));
    adopted->capture_point = calibration->capture_point;
    adopted->attn_scale = calibration->attn_scale;
    TRIA_TRY_GOTO(
        tria_calibration_set_texts(adopted, model->name[0] != '\0' ? NULL : calibration->model_name,
                                   model->fingerprint[0] != '\0' ? NULL : calibration->fingerprint,
                                   calibration->provenance, calibration->default_policy, error),
        fail);
    for (int32_t l = 0; l < model->n_layers; l++) {
        const tria_calibration_layer_data *from = &calibration->layers[l];
        tria_calibration_layer_data *to = &adopted->layers[l];
        to->budget_scale = from->budget_scale;
        to->n_tokens = from->n_tokens;
        for (int32_t i = 0; i < from->n_heads; i++) {
            tria_calibration_head_data *head;
            const int32_t n_content = from->heads[i].n_content;
            TRIA_TRY_GOTO(
                tria_calibration_add_head(adopted, l, from->heads[i].q_head, n_content, &head, error),
                fail);
            memcpy(head->values, from->heads[i].values,
                   (4 * (size_t)from->n_freq + 2 * (size_t)n_content) * sizeof(float));
        }
    }
    *out = adopted;
    return TRIA_OK;
fail:
    tria_calibration_destroy(adopted);
    return status;
}

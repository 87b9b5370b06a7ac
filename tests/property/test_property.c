/*
 * Score and select on random models, caches and settings:
 *   - the CPU backend against the double-precision reference, under the rule of specification section 4:
 *     sets may differ only in rows whose reference score is within epsilon of the cut; those are counted;
 *   - permuting rows permutes the results; batching and threads change nothing, to the bit;
 *   - splitting heads or layers across ranks changes nothing;
 *   - keep sets are ascending, of the exact size, with every protected row.
 *
 * Usage: [--count N] [--seed S]. A failing configuration is printed with the seed that repeats it.
 */
#include "kv_view_internal.h"
#include "property/ranks.h"
#include "property/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_QUERIES = WORLD_SLOTS * 16 };

/* What one event gave. */
typedef struct outcome {
    double raw[MAX_QUERIES][WORLD_ROWS];
    double final_scores[WORLD_SLOTS][WORLD_ROWS];
    int32_t rows[WORLD_SLOTS][WORLD_ROWS];
    int32_t counts[WORLD_SLOTS];
    tria_keep keep;
    /* of the plan */
    int32_t n_queries;
    int32_t n_sets;
    int32_t set_of[WORLD_LAYERS][WORLD_HEADS];
} outcome;

static struct {
    unsigned long long configurations;
    unsigned long long refused;
    unsigned long long sets;
    /* rows that differ: between CPU and reference [0], between two runs of the CPU [1]; within 1e-5 of the
     * cut, and further away where a head's scores are nearly constant */
    unsigned long long within_epsilon[2];
    unsigned long long within_conditioning[2];
    unsigned long long borderline; /* configurations with a head about as constant as the rule says */
    unsigned long long permuted;
    unsigned long long split_heads;
    unsigned long long split_layers;
    double worst_raw; /* largest raw error in units of the sum of a score's terms */
} total;

static const world *current;

#define FAIL(...)                                                                                          \
    do {                                                                                                   \
        printf("failed (%s:%d): ", __func__, __LINE__);                                                    \
        printf(__VA_ARGS__);                                                                               \
        printf("\n");                                                                                      \
        world_print(current, stdout);                                                                      \
        exit(1);                                                                                           \
    } while (0)

#define EXPECT(condition)                                                                                  \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            FAIL("%s", #condition);                                                                        \
        }                                                                                                  \
    } while (0)

static void describe_plan(const tria_plan *plan, outcome *o)
{
    o->n_queries = tria_plan_n_query_slots(plan);
    o->n_sets = tria_plan_n_sets(plan);
    for (int32_t l = 0; l < WORLD_LAYERS; l++) {
        for (int32_t h = 0; h < WORLD_HEADS; h++) {
            o->set_of[l][h] = tria_plan_set(plan, l, h);
        }
    }
}

/* Runs `n` events as one batch, of every third world with kept terms where the backend has them. Scores
 * come out in double, whatever the backend computes in. */
static tria_status run_plan(const world *w, tria_device *device, int32_t n_threads,
                            const tria_event *events, int32_t n, outcome *outcomes, tria_error *error)
{
    static float raw32[3][MAX_QUERIES][WORLD_ROWS];
    static float final32[3][WORLD_SLOTS][WORLD_ROWS];
    tria_plan_params params = w->params;
    tria_plan *plan = NULL;
    tria_batch batch;
    tria_event copies[3];
    tria_scores scores[3];
    tria_keep keep[3];
    params.score_device = device;
    params.select_device = device;
    params.compact_device = device;
    params.n_threads = n_threads;
    tria_status status = tria_plan_create(&params, NULL, &plan, error);
    if (status != TRIA_OK) {
        return status;
    }
    tria_batch_init(&batch);
    batch.events = copies;
    batch.n_events = n;
    for (int32_t i = 0; i < n; i++) {
        copies[i] = events[i];
        if (device == NULL && w->seed % 3 == 0) {
            EXPECT(tria_terms_create(plan, NULL, &copies[i].terms, error) == TRIA_OK);
        }
        describe_plan(plan, &outcomes[i]);
        const size_t raw_count = (size_t)outcomes[i].n_queries * WORLD_ROWS;
        memset(outcomes[i].raw, 0, raw_count * sizeof(double));
        memset(outcomes[i].final_scores, 0, sizeof(outcomes[i].final_scores));
        memset(raw32[i], 0, raw_count * sizeof(float));
        memset(final32[i], 0, sizeof(final32[i]));
        tria_scores_init(&scores[i]);
        scores[i].dtype = device != NULL ? TRIA_DTYPE_F64 : TRIA_DTYPE_F32;
        scores[i].row_stride = WORLD_ROWS;
        scores[i].raw = device != NULL ? (void *)outcomes[i].raw : (void *)raw32[i];
        scores[i].final_scores = device != NULL ? (void *)outcomes[i].final_scores : (void *)final32[i];
        tria_keep_init(&keep[i]);
        keep[i].rows = &outcomes[i].rows[0][0];
        keep[i].counts = outcomes[i].counts;
        keep[i].row_stride = WORLD_ROWS;
    }
    status = tria_plan_select(plan, &batch, scores, keep, error);
    for (int32_t i = 0; i < n; i++) {
        outcomes[i].keep = keep[i];
        for (int32_t j = 0; j < outcomes[i].n_queries * WORLD_ROWS && device == NULL; j++) {
            (&outcomes[i].raw[0][0])[j] = (double)(&raw32[i][0][0])[j];
        }
        for (int32_t j = 0; j < WORLD_SLOTS * WORLD_ROWS && device == NULL; j++) {
            (&outcomes[i].final_scores[0][0])[j] = (double)(&final32[i][0][0])[j];
        }
    }
    for (int32_t i = 0; i < n; i++) {
        tria_terms_destroy(copies[i].terms);
    }
    tria_plan_destroy(plan);
    return status;
}

/* The dense slots of the specification, found again. */
static int32_t kv_layer_of(const world *w, int32_t layer)
{
    return w->geometry[layer].kv_source >= 0 ? w->geometry[layer].kv_source : layer;
}

static int32_t kv_slot_of(const world *w, int32_t layer, int32_t head)
{
    int32_t slot = 0;
    for (int32_t l = 0; l < layer; l++) {
        slot += w->geometry[l].kv_source < 0 ? w->geometry[l].n_kv_heads : 0;
    }
    return slot + head;
}

static int32_t rows_of(const world *w, int32_t layer, int32_t head)
{
    return w->rows[kv_slot_of(w, layer, head)];
}

static const int32_t *positions_of(const world *w, int32_t layer, int32_t head)
{
    return w->event.positions_head_stride != 0 ? w->positions[layer][head] : w->positions[0][0];
}

/* Protected rows by the words of section 4. Returns their number; *n_prompt of them are prompt rows. */
static int32_t protect(const world *w, int32_t layer, int32_t head, bool *mask, int32_t *n_prompt)
{
    const int32_t *positions = positions_of(w, layer, head);
    const int32_t n = rows_of(w, layer, head);
    int32_t count = 0;
    *n_prompt = 0;
    for (int32_t i = 0; i < n; i++) {
        const int64_t p = positions[i];
        mask[i] = p < w->params.n_sink || p >= w->event.t - w->params.n_recent ||
                  p >= w->event.t - w->geometry[layer].window;
        for (int32_t j = 0; j < w->event.n_pins; j++) {
            mask[i] |= w->event.pins[j] == i;
        }
        bool prompt = false;
        for (int32_t j = 0; j < w->event.n_prompts && w->params.protect_prefill; j++) {
            prompt |= p >= w->event.prompts[j].begin && p < w->event.prompts[j].end;
        }
        mask[i] |= prompt;
        *n_prompt += prompt;
        count += mask[i];
    }
    return count;
}

static int32_t budget_of(const world *w, int32_t layer)
{
    const bool by_layer =
        w->params.mode == TRIA_MODE_PER_LAYER_PER_HEAD || w->params.mode == TRIA_MODE_PER_LAYER;
    if (!w->params.use_layer_budgets || !by_layer || w->params.layer_weights == NULL) {
        return w->params.budget;
    }
    const double scaled = floor((double)w->params.budget * (double)w->params.layer_weights[layer]);
    return scaled < 1.0 ? 1 : (int32_t)scaled;
}

static void check_sets(const world *w, const outcome *o)
{
    int32_t over = 0;
    for (int32_t l = 0; l < w->n_layers; l++) {
        const int32_t n_heads = w->geometry[l].kv_source < 0 ? w->geometry[l].n_kv_heads : 0;
        for (int32_t h = 0; h < n_heads; h++) {
            const int32_t set = o->set_of[l][h];
            bool mask[WORLD_ROWS];
            bool kept[WORLD_ROWS] = {false};
            int32_t n_prompt;
            if (set < 0) {
                continue;
            }
            const int32_t n = rows_of(w, l, h);
            const int32_t n_protected = protect(w, l, h, mask, &n_prompt);
            const int32_t allowed = budget_of(w, l) + (w->params.count_prompt ? 0 : n_prompt);
            const int32_t wanted = n_protected > allowed ? n_protected : allowed;
            const int32_t count = o->counts[set];
            if (count != (wanted < n ? wanted : n)) {
                FAIL("set %d keeps %d rows of %d, %d protected, %d allowed", set, count, n, n_protected,
                     allowed);
            }
            over = n_protected - allowed > over ? n_protected - allowed : over;
            for (int32_t i = 0; i < count; i++) {
                const int32_t row = o->rows[set][i];
                EXPECT(row >= 0 && row < n && (i == 0 || row > o->rows[set][i - 1]));
                kept[row] = true;
            }
            for (int32_t i = 0; i < n; i++) {
                EXPECT(kept[i] || !mask[i]);
            }
        }
    }
    EXPECT(o->keep.over_budget == over);
}

/* Row indices with a non-finite score in any calibrated head that some keep set depends on. */
static int32_t count_nan(const world *w, const outcome *o)
{
    int32_t count = 0;
    for (int32_t i = 0; i < w->n_rows; i++) {
        bool bad = false;
        int32_t q = 0;
        for (int32_t l = 0; l < w->n_layers; l++) {
            const int32_t group =
                w->geometry[l].n_kv_heads > 0 ? w->geometry[l].n_q_heads / w->geometry[l].n_kv_heads : 1;
            for (int32_t h = 0; h < w->geometry[l].n_q_heads; h++, q++) {
                bad |= w->calibrated[l][h] && i < rows_of(w, kv_layer_of(w, l), h / group) &&
                       o->set_of[kv_layer_of(w, l)][h / group] >= 0 && !isfinite(o->raw[q][i]);
            }
        }
        count += bad;
    }
    return count;
}

static double length(double re, double im)
{
    return sqrt(re * re + im * im);
}

/* For query head h of layer l: the sum of the absolute values of a score's terms, the largest over rows.
 * Errors of float32 are proportional to it. */
static double size_of_terms(const world *w, int32_t layer, int32_t h)
{
    const tria_layer_params *g = &w->geometry[layer];
    const int32_t kv_layer = kv_layer_of(w, layer);
    const tria_tensor *k = &w->layers[kv_layer].k;
    const int32_t head = h / (g->n_q_heads / g->n_kv_heads);
    const int32_t n_freq = g->rotary_dim / 2;
    tria_head_stats stats = {sizeof(stats), NULL, NULL, NULL, NULL, NULL};
    int32_t present = 0;
    tria_rows rows;
    double largest = 0.0;
    if (tria_calibration_head(w->calibration, layer, h, &stats, &present, NULL) != TRIA_OK) {
        FAIL("no statistics of layer %d head %d", layer, h);
    }
    tria_rows_init(&rows, &w->view, &w->layers[kv_layer], k, head);
    for (int32_t i = 0; i < rows_of(w, kv_layer, head); i++) {
        double x[1024];
        double sum = 0.0;
        double norm = 0.0;
        tria_rows_decode_f64(&rows, i, k->dim, x);
        for (int32_t d = 0; d < g->head_dim; d++) {
            norm += x[d] * x[d];
        }
        norm = sqrt(norm);
        for (int32_t f = 0; f < n_freq; f++) {
            const int32_t re = g->rotary_offset + (g->rope_style == TRIA_ROPE_HALF ? f : 2 * f);
            const int32_t im = g->rope_style == TRIA_ROPE_HALF ? re + n_freq : re + 1;
            const double q = length((double)stats.q_mean_real[f], (double)stats.q_mean_imag[f]);
            const double scale = g->freq_scale_sq != NULL ? fabs(g->freq_scale_sq[f]) : 1.0;
            /* a Hadamard transform spreads the rounding of the largest element */
            const double size = w->k_state == TRIA_K_HADAMARD ? norm : length(x[re], x[im]);
            sum += scale * (q + fabs((double)stats.q_abs_mean[f]) + q) * size;
        }
        for (int32_t d = 0; d < g->head_dim - g->rotary_dim && stats.content_mean != NULL; d++) {
            const int32_t at = d < g->rotary_offset ? d : d + g->rotary_dim;
            const double size = w->k_state == TRIA_K_HADAMARD ? norm : fabs(x[at]);
            sum += fabs((double)w->params.content_weight * (double)stats.content_mean[d]) * size;
        }
        largest = isfinite(sum) && sum > largest ? sum : largest;
    }
    return largest;
}

/* Mean and deviation of the finite values where mask (NULL: all) is set. */
static double deviation(const double *values, int32_t n, const bool *skip, double *mean)
{
    double sum = 0.0;
    double squares = 0.0;
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(values[i]) && (skip == NULL || !skip[i])) {
            sum += values[i];
            count++;
        }
    }
    *mean = count > 0 ? sum / count : 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(values[i]) && (skip == NULL || !skip[i])) {
            squares += (values[i] - *mean) * (values[i] - *mean);
        }
    }
    return count > 0 ? sqrt(squares / count) : 0.0;
}

/* Compares raw scores. Returns by how much final scores may be off: relative errors of 1e-6 of the terms,
 * divided by the deviation of their head. Negative: a head is as constant as the threshold, no statement.
 */
static double check_raw(const world *w, const outcome *cpu, const outcome *ref)
{
    double epsilon = 0.0;
    bool borderline = false;
    int32_t q = 0;
    for (int32_t l = 0; l < w->n_layers; l++) {
        const int32_t kv_layer = kv_layer_of(w, l);
        for (int32_t h = 0; h < w->geometry[l].n_q_heads; h++, q++) {
            const int32_t head = h / (w->geometry[l].n_q_heads / w->geometry[l].n_kv_heads);
            const int32_t n = rows_of(w, kv_layer, head);
            if (!w->calibrated[l][h]) {
                for (int32_t i = 0; i < n; i++) {
                    EXPECT(isnan(cpu->raw[q][i]) && isnan(ref->raw[q][i]));
                }
                continue;
            }
            const double terms = size_of_terms(w, l, h);
            for (int32_t i = 0; i < n; i++) {
                const double error = fabs(cpu->raw[q][i] - ref->raw[q][i]);
                if (!isfinite(ref->raw[q][i])) {
                    EXPECT(!isfinite(cpu->raw[q][i]));
                } else if (!(error <= 1e-6 * terms)) {
                    FAIL("layer %d head %d row %d scores %.9g, reference %.9g, terms %.9g", l, h, i,
                         cpu->raw[q][i], ref->raw[q][i], terms);
                } else if (terms > 0.0 && error / terms > total.worst_raw) {
                    total.worst_raw = error / terms;
                }
            }
            bool mask[WORLD_ROWS];
            int32_t n_prompt;
            protect(w, kv_layer, head, mask, &n_prompt);
            for (int32_t over = 0; over < 2; over++) {
                double mean;
                const double sd = deviation(ref->raw[q], n, over == 1 ? mask : NULL, &mean);
                const double threshold = 1e-6 * (fabs(mean) > 1.0 ? fabs(mean) : 1.0);
                if (w->params.normalize_over == TRIA_NORMALIZE_NONE) {
                    epsilon = 1e-6 * terms > epsilon ? 1e-6 * terms : epsilon;
                } else if (over == w->params.normalize_over && sd > 1e-3 * threshold) {
                    borderline |= sd < 100.0 * threshold + 1e-6 * terms;
                    epsilon = 2e-6 * terms / sd > epsilon ? 2e-6 * terms / sd : epsilon;
                } else if (over == w->params.normalize_over && sd > 0.0) {
                    borderline = true;
                }
            }
        }
    }
    return borderline ? -1.0 : epsilon;
}

/* `global` normalises grouped scores again: errors grow by the inverse of their deviation. The final
 * scores are a maximum, so the smallest such deviation is not seen; the grouped ones are asked for. */
static double global_factor(const world *w, tria_device *reference)
{
    static double grouped[WORLD_SLOTS][WORLD_ROWS];
    tria_plan_params params = w->params;
    tria_plan *plan = NULL;
    tria_batch batch;
    tria_scores scores;
    double factor = 1.0;
    if (params.mode != TRIA_MODE_GLOBAL || params.normalize_over == TRIA_NORMALIZE_NONE) {
        return 2.0; /* weights are below 2 */
    }
    params.score_device = params.select_device = params.compact_device = reference;
    EXPECT(tria_plan_create(&params, NULL, &plan, NULL) == TRIA_OK);
    tria_batch_init(&batch);
    batch.events = &w->event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.dtype = TRIA_DTYPE_F64;
    scores.row_stride = WORLD_ROWS;
    scores.grouped = grouped;
    EXPECT(tria_plan_score(plan, &batch, &scores, NULL) == TRIA_OK);
    for (int32_t slot = 0; slot < tria_plan_n_kv_slots(plan); slot++) {
        bool mask[WORLD_ROWS];
        int32_t n_prompt;
        double mean;
        int32_t layer = 0;
        while (kv_slot_of(w, layer + 1, 0) <= slot) {
            layer++;
        }
        protect(w, layer, 0, mask, &n_prompt);
        for (int32_t over = 0; over < 2; over++) {
            const double sd = deviation(grouped[slot], w->rows[slot], over == 1 ? mask : NULL, &mean);
            if (sd > 0.0 && over == params.normalize_over) {
                factor = 2.0 / sd > factor ? 2.0 / sd : factor;
            }
        }
    }
    tria_plan_destroy(plan);
    return 2.0 * factor;
}

/* Whether two keep sets differ only in rows within epsilon of the cut, by `scores`. */
static void compare_set(const double *scores, int32_t n, const bool *mask, const int32_t *rows,
                        const int32_t *expected, int32_t count, double epsilon, const char *what)
{
    const bool same_backend = strcmp(what, "cpu and reference") != 0;
    bool kept[WORLD_ROWS] = {false};
    bool kept_expected[WORLD_ROWS] = {false};
    double lowest_kept = INFINITY;
    double highest_evicted = -INFINITY;
    total.sets++;
    if (memcmp(rows, expected, (size_t)count * sizeof(*rows)) == 0) {
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        kept[rows[i]] = true;
        kept_expected[expected[i]] = true;
    }
    for (int32_t i = 0; i < n; i++) { /* NaN is the lowest */
        const double score = isnan(scores[i]) ? -INFINITY : scores[i];
        if (!mask[i] && kept_expected[i] && score < lowest_kept) {
            lowest_kept = score;
        }
        if (!kept_expected[i] && score > highest_evicted) {
            highest_evicted = score;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (kept[i] != kept_expected[i]) {
            const double distance = kept[i] ? lowest_kept - scores[i] : scores[i] - highest_evicted;
            if (!(distance <= (epsilon > 1e-5 ? epsilon : 1e-5))) {
                FAIL("%s: row %d is %s, its score %.9g is %.3g from the cut (epsilon %.3g)", what, i,
                     kept[i] ? "kept" : "evicted", scores[i], distance, epsilon);
            }
            if (distance <= 1e-5) {
                total.within_epsilon[same_backend]++;
            } else {
                total.within_conditioning[same_backend]++;
            }
        }
    }
}

/* Every set of `o` against `expected`; `order` maps rows of `o` to those of `expected` (NULL: the same). */
static void compare_sets(const world *w, const outcome *o, const outcome *expected, double epsilon,
                         const char *what)
{
    bool seen[WORLD_SLOTS] = {false};
    for (int32_t l = 0; l < w->n_layers; l++) {
        for (int32_t h = 0; h < WORLD_HEADS; h++) {
            const int32_t set = expected->set_of[l][h];
            bool mask[WORLD_ROWS];
            int32_t n_prompt;
            if (set < 0 || seen[set]) {
                continue;
            }
            seen[set] = true;
            protect(w, l, h, mask, &n_prompt);
            EXPECT(o->counts[set] == expected->counts[set]);
            if (w->n_rows > 0 && isnan(expected->final_scores[set][0])) {
                bool by_position = true;
                for (int32_t i = 0; i < rows_of(w, l, h); i++) {
                    by_position &= isnan(expected->final_scores[set][i]);
                }
                if (by_position) {
                    EXPECT(memcmp(o->rows[set], expected->rows[set],
                                  (size_t)o->counts[set] * sizeof(int32_t)) == 0);
                    continue;
                }
            }
            compare_set(expected->final_scores[set], rows_of(w, l, h), mask, o->rows[set],
                        expected->rows[set], o->counts[set], epsilon, what);
        }
    }
}

static bool same_bits(const outcome *a, const outcome *b)
{
    for (int32_t i = 0; i < a->n_queries * WORLD_ROWS; i++) {
        const double x = (&a->raw[0][0])[i];
        const double y = (&b->raw[0][0])[i];
        if (!(x == y || (isnan(x) && isnan(y)))) {
            return false;
        }
    }
    for (int32_t i = 0; i < WORLD_SLOTS * WORLD_ROWS; i++) {
        const double x = (&a->final_scores[0][0])[i];
        const double y = (&b->final_scores[0][0])[i];
        if (!(x == y || (isnan(x) && isnan(y)))) {
            return false;
        }
    }
    for (int32_t set = 0; set < a->n_sets; set++) {
        if (a->counts[set] != b->counts[set] ||
            memcmp(a->rows[set], b->rows[set], (size_t)a->counts[set] * sizeof(int32_t)) != 0) {
            return false;
        }
    }
    return a->keep.n_nan == b->keep.n_nan && a->keep.n_zero_heads == b->keep.n_zero_heads;
}

/* The event between others, now and then on three threads (waking them costs more than the work). */
static void check_batching(const world *w, const outcome *alone)
{
    static outcome batched[3];
    int32_t fewer[WORLD_SLOTS];
    tria_event events[3] = {w->event, w->event, w->event};
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        fewer[s] = w->rows[s] / 2;
    }
    events[1].rows = fewer;
    events[1].n_rows = w->n_rows / 2;
    EXPECT(run_plan(w, NULL, w->seed % 8 == 0 ? 3 : 0, events, 3, batched, NULL) == TRIA_OK);
    EXPECT(same_bits(&batched[0], alone));
    EXPECT(same_bits(&batched[2], alone));
}

static void check_permutation(world *w, const outcome *before, double epsilon)
{
    static outcome after;
    static outcome mapped;
    int32_t from[WORLD_ROWS] = {0};
    if (!w->same_rows || w->n_rows < 2) {
        return;
    }
    for (int32_t i = 0; i < w->n_rows; i++) {
        const int32_t at = world_below(w, i + 1);
        from[i] = from[at];
        from[at] = i;
    }
    world_permute(w, from);
    EXPECT(run_plan(w, NULL, 0, &w->event, 1, &after, NULL) == TRIA_OK);
    for (int32_t q = 0; q < before->n_queries; q++) {
        for (int32_t i = 0; i < w->n_rows; i++) {
            const double x = after.raw[q][i];
            const double y = before->raw[q][from[i]];
            if (!(x == y || (isnan(x) && isnan(y)))) {
                FAIL("query slot %d: row %d scores %.9g as row %d and %.9g as row %d", q, from[i], y,
                     from[i], x, i);
            }
        }
    }
    /* the sets, in the old numbering */
    int32_t to[WORLD_ROWS];
    for (int32_t i = 0; i < w->n_rows; i++) {
        to[from[i]] = i;
    }
    mapped = after;
    for (int32_t set = 0; set < after.n_sets; set++) {
        bool kept[WORLD_ROWS] = {false};
        int32_t n = 0;
        for (int32_t i = 0; i < after.counts[set]; i++) {
            kept[from[after.rows[set][i]]] = true;
        }
        for (int32_t i = 0; i < w->n_rows; i++) {
            if (kept[i]) {
                mapped.rows[set][n++] = i;
            }
        }
    }
    world_permute(w, to); /* back, so that masks fit */
    compare_sets(w, &mapped, before, epsilon, "permuted");
    total.permuted++;
}

static void check_ranks(world *w, const outcome *whole, double epsilon)
{
    static outcome split;
    const int32_t mode = w->params.mode;
    bool equal_heads = true;
    bool sources = false;
    for (int32_t l = 0; l < w->n_layers; l++) {
        equal_heads &= w->geometry[l].n_kv_heads == w->geometry[0].n_kv_heads;
        sources |= w->geometry[l].kv_source >= 0;
    }
    if (!equal_heads || !w->same_rows || w->k_state == TRIA_K_RAW) {
        return;
    }
    /* heads that have their own sets and no calibration borrow from their own rank's heads only */
    const bool exchange = mode != TRIA_MODE_PER_HEAD && mode != TRIA_MODE_PER_LAYER_PER_HEAD;
    if (w->geometry[0].n_kv_heads > 1 && (w->all_calibrated || exchange)) {
        split = *whole;
        EXPECT(ranks_split_heads(w, split.rows, split.counts));
        if (mode == TRIA_MODE_GLOBAL) { /* weights are scaled by another constant */
            compare_sets(w, &split, whole, epsilon, "heads split");
        } else {
            EXPECT(same_bits(&split, whole));
        }
        total.split_heads++;
    }
    if (w->n_layers > 1 && !sources) {
        split = *whole;
        if (ranks_split_layers(w, split.rows, split.counts)) {
            compare_sets(w, &split, whole, epsilon, "layers split");
            total.split_layers++;
        }
    }
}

static void check_world(world *w, tria_device *reference)
{
    static outcome cpu;
    static outcome ref;
    tria_error error = {0, ""};
    tria_error ref_error = {0, ""};
    const tria_status status = run_plan(w, NULL, 0, &w->event, 1, &cpu, &error);
    const tria_status ref_status = run_plan(w, reference, 0, &w->event, 1, &ref, &ref_error);
    if (status != ref_status) {
        FAIL("cpu says %d (%s), reference %d (%s)", status, error.message, ref_status, ref_error.message);
    }
    if (status != TRIA_OK) { /* settings that cannot work with this model; one of these: */
        if (strstr(error.message, "sliding-window") == NULL &&
            strstr(error.message, "attends to") == NULL && strstr(error.message, "none of its") == NULL) {
            FAIL("%s", error.message);
        }
        total.refused++;
        return;
    }
    const double conditioning = check_raw(w, &cpu, &ref);
    check_sets(w, &cpu);
    check_sets(w, &ref);
    EXPECT(cpu.keep.n_nan == count_nan(w, &ref));
    EXPECT(ref.keep.n_nan == cpu.keep.n_nan);
    EXPECT(cpu.keep.n_zero_heads == ref.keep.n_zero_heads);
    check_batching(w, &cpu);
    if (conditioning < 0.0) {
        total.borderline++;
        return;
    }
    const double epsilon = conditioning * global_factor(w, reference);
    compare_sets(w, &cpu, &ref, epsilon, "cpu and reference");
    check_permutation(w, &cpu, epsilon);
    if (w->seed % 4 == 0) { /* a thread per rank */
        check_ranks(w, &cpu, epsilon);
    }
}

int main(int argc, char **argv)
{
    unsigned long long count = 300;
    unsigned long long seed = 1;
    tria_backends *backends = NULL;
    tria_device *reference = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--count") == 0) {
            count = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[i + 1], NULL, 10);
        }
    }
    printf("select-property: %llu configurations from seed %llu\n", count, seed);
    if (tria_backends_create(NULL, NULL, &backends, NULL) != TRIA_OK ||
        tria_device_open(backends, "reference", NULL, &reference, NULL) != TRIA_OK) {
        printf("no reference backend\n");
        return 1;
    }
    for (unsigned long long i = 0; i < count; i++) {
        static world w;
        world_init(&w, seed + i);
        current = &w;
        check_world(&w, reference);
        world_free(&w);
        total.configurations++;
    }
    tria_device_close(reference);
    tria_backends_destroy(backends);
    printf(
        "%llu configurations (%llu refused as impossible), %llu sets compared, largest raw error %.2g of "
        "the terms\n",
        total.configurations, total.refused, total.sets, total.worst_raw);
    for (int32_t i = 0; i < 2; i++) {
        printf(
            "rows that differ, %s: %llu within 1e-5 of the cut, %llu within the error of nearly constant "
            "heads\n",
            i == 0 ? "CPU and reference" : "permuted or split (equal scores included)",
            total.within_epsilon[i], total.within_conditioning[i]);
    }
    printf("not compared, a head at the threshold of constant: %llu\n", total.borderline);
    printf("permuted: %llu, heads split: %llu, layers split: %llu\n", total.permuted, total.split_heads,
           total.split_layers);
    return 0;
}

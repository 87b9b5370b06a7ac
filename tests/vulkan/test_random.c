/*
 * Random configurations on the Vulkan backend, on an engine's own device and buffers, against the
 * double-precision reference: scores, keep sets under the specification's rule (section 4), reports, and
 * compacted caches byte for byte.
 *
 * TRIA_TEST_COUNT (default 40) and TRIA_TEST_SEED (default 1) choose the configurations.
 */
#include "config.h"
#include "gpu.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int64_t configs;
    int64_t refused; /* both backends say no */
    int64_t sets;
    int64_t compactions;
    int64_t rows_near_cut; /* kept differently, within tolerance of the cut */
    int64_t failures;
    double worst_raw; /* of the largest raw score */
    double worst_final;
} totals;

typedef struct results {
    void *raw[CONFIG_EVENTS];
    void *grouped[CONFIG_EVENTS];
    void *final_scores[CONFIG_EVENTS];
    tria_scores scores[CONFIG_EVENTS];
    int32_t *rows[CONFIG_EVENTS];
    int32_t *counts[CONFIG_EVENTS];
    uint8_t *uncalibrated[CONFIG_EVENTS];
    tria_keep keep[CONFIG_EVENTS];
} results;

static void *get(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static void complain(const config *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(const config *c, const char *format, ...)
{
    char text[256];
    va_list args;
    totals.failures++;
    if (totals.failures > 40) {
        return;
    }
    config_describe(c, text, sizeof(text));
    fprintf(stderr, "%s: ", text);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
}

static void results_create(results *r, const tria_plan *plan, const config *c, int32_t dtype)
{
    const size_t stride = (size_t)c->n_rows;
    const size_t size = dtype == TRIA_DTYPE_F64 ? sizeof(double) : sizeof(float);
    const size_t n_sets = (size_t)tria_plan_n_sets(plan);
    for (int32_t i = 0; i < CONFIG_EVENTS; i++) {
        r->raw[i] = get((size_t)tria_plan_n_query_slots(plan) * stride, size);
        r->grouped[i] = get((size_t)tria_plan_n_kv_slots(plan) * stride, size);
        r->final_scores[i] = get(n_sets * stride, size);
        r->rows[i] = get(n_sets * stride, sizeof(int32_t));
        r->counts[i] = get(n_sets, sizeof(int32_t));
        r->uncalibrated[i] = get(CONFIG_LAYERS, 1);
        tria_scores_init(&r->scores[i]);
        r->scores[i].dtype = dtype;
        r->scores[i].row_stride = c->n_rows;
        r->scores[i].raw = r->raw[i];
        r->scores[i].grouped = r->grouped[i];
        r->scores[i].final_scores = r->final_scores[i];
        tria_keep_init(&r->keep[i]);
        r->keep[i].rows = r->rows[i];
        r->keep[i].counts = r->counts[i];
        r->keep[i].row_stride = c->n_rows;
        r->keep[i].uncalibrated_layers = r->uncalibrated[i];
    }
}

static void results_destroy(results *r)
{
    for (int32_t i = 0; i < CONFIG_EVENTS; i++) {
        free(r->raw[i]);
        free(r->grouped[i]);
        free(r->final_scores[i]);
        free(r->rows[i]);
        free(r->counts[i]);
        free(r->uncalibrated[i]);
    }
}

/* The event's cache in device buffers: the same bytes, the same layout. */
typedef struct mirror {
    gpu_buffer buffers[CONFIG_BLOCKS];
    tria_layer_view layers[CONFIG_LAYERS];
    tria_kv_view view;
} mirror;

static void *handle_of(const config_event *e, const mirror *m, const void *pointer)
{
    for (int32_t b = 0; b < e->n_blocks; b++) {
        if (e->blocks[b].data == pointer) {
            return (void *)(uintptr_t)m->buffers[b].handle;
        }
    }
    return NULL;
}

static void mirror_create(gpu *g, const config *c, const config_event *e, mirror *m)
{
    for (int32_t b = 0; b < e->n_blocks; b++) {
        gpu_buffer_create(g, e->blocks[b].size, &m->buffers[b]);
        memcpy(m->buffers[b].mapped, e->blocks[b].data, e->blocks[b].size);
    }
    m->view = e->view;
    m->view.layers = m->layers;
    for (int32_t l = 0; l < c->n_layers; l++) {
        m->layers[l] = e->layers[l];
        m->layers[l].k.base = handle_of(e, m, e->layers[l].k.base);
        m->layers[l].k.scales = handle_of(e, m, e->layers[l].k.scales);
        m->layers[l].v.base = handle_of(e, m, e->layers[l].v.base);
        m->layers[l].v.scales = handle_of(e, m, e->layers[l].v.scales);
    }
}

static void mirror_destroy(gpu *g, const config_event *e, mirror *m)
{
    for (int32_t b = 0; b < e->n_blocks; b++) {
        gpu_buffer_destroy(g, &m->buffers[b]);
    }
}

static int32_t rows_of_slot(const config *c, const config_event *e, int32_t slot)
{
    (void)c;
    return e->event.rows != NULL ? e->event.rows[slot] : e->event.n_rows;
}

/* KV slot whose rows a query slot scores, by the plan's numbering. */
static int32_t kv_slot_of_query(const config *c, const tria_plan *plan, int32_t layer, int32_t q)
{
    const tria_layer_params *l = &c->layers[layer];
    const int32_t owner = l->kv_source >= 0 ? l->kv_source : layer;
    return tria_plan_kv_slot(plan, owner, q / (l->n_q_heads / l->n_kv_heads));
}

static bool finite_both(double a, double b)
{
    return isfinite(a) && isfinite(b);
}

/* Compares raw scores; returns how much z may be off: raw error over deviation, worst head. */
static double compare_raw(const config *c, const tria_plan *plan, const config_event *e, const double *want,
                          const float *got)
{
    double largest = 0.0;
    double amplification = 1.0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t l = 0; l < c->n_layers; l++) {
            for (int32_t q = 0; q < c->layers[l].n_q_heads; q++) {
                const int32_t query = tria_plan_query_slot(plan, l, q);
                const int32_t n = rows_of_slot(c, e, kv_slot_of_query(c, plan, l, q));
                double sum = 0.0;
                double squares = 0.0;
                double biggest = 0.0;
                int32_t count = 0;
                for (int32_t i = 0; i < n; i++) {
                    const double a = want[(int64_t)query * c->n_rows + i];
                    const double b = (double)got[(int64_t)query * c->n_rows + i];
                    if (!isfinite(a)) {
                        if (pass == 1 && isfinite(b)) {
                            complain(c, "raw of layer %d head %d row %d is %g, expected %g", l, q, i, b, a);
                        }
                        continue;
                    }
                    largest = fabs(a) > largest ? fabs(a) : largest;
                    biggest = fabs(a) > biggest ? fabs(a) : biggest;
                    sum += a;
                    squares += a * a;
                    count++;
                    if (pass == 1) {
                        const double error = largest > 0.0 ? fabs(a - b) / largest : fabs(b);
                        if (!(error <= 1e-5)) {
                            complain(c, "raw of layer %d head %d row %d is %.9g, expected %.9g", l, q, i, b,
                                     a);
                            return amplification;
                        }
                        totals.worst_raw = error > totals.worst_raw ? error : totals.worst_raw;
                    }
                }
                const double mean = count > 0 ? sum / count : 0.0;
                const double sd = count > 0 ? sqrt(fabs(squares / count - mean * mean)) : 0.0;
                if (sd > 1e-6 * fmax(1.0, fabs(mean)) && biggest / sd > amplification) {
                    amplification = biggest / sd;
                }
            }
        }
    }
    if (c->params.normalize_over == TRIA_NORMALIZE_NONE) {
        return largest > 1.0 ? largest : 1.0;
    }
    return amplification;
}

static void compare_scores(const config *c, const char *what, int32_t slot, int32_t n, const double *want,
                           const float *got, double tolerance)
{
    for (int32_t i = 0; i < n; i++) {
        const double a = want[(int64_t)slot * c->n_rows + i];
        const double b = (double)got[(int64_t)slot * c->n_rows + i];
        const bool same =
            finite_both(a, b) ? fabs(a - b) <= tolerance * (1.0 + fabs(a)) : !isfinite(a) && !isfinite(b);
        if (!same) {
            complain(c, "%s %d row %d is %.9g, expected %.9g", what, slot, i, b, a);
            return;
        }
        if (finite_both(a, b) && fabs(a - b) > totals.worst_final) {
            totals.worst_final = fabs(a - b);
        }
    }
}

/* Rows only one of two keep sets has must lie within 2 * tolerance of one another, hence of the cut. */
static void compare_keep(const config *c, int32_t set, const tria_keep *want, const tria_keep *got,
                         const double *scores, double tolerance)
{
    const int32_t *a = want->rows + set * want->row_stride;
    const int32_t *b = got->rows + set * got->row_stride;
    const int32_t n = want->counts[set];
    double low = INFINITY;
    double high = -INFINITY;
    totals.sets++;
    if (got->counts[set] != n) {
        complain(c, "set %d keeps %d rows, expected %d", set, got->counts[set], n);
        return;
    }
    for (int32_t i = 0, j = 0; i < n || j < n;) {
        int32_t row;
        if (i < n && j < n && a[i] == b[j]) {
            i++;
            j++;
            continue;
        }
        if (j >= n || (i < n && a[i] < b[j])) {
            row = a[i++];
        } else {
            row = b[j++];
        }
        const double s = scores[(int64_t)set * c->n_rows + row];
        totals.rows_near_cut++;
        low = isnan(s) ? -INFINITY : fmin(low, s);
        high = isnan(s) ? INFINITY : fmax(high, s);
    }
    if (high - low > 2.0 * tolerance * (1.0 + fabs(low))) {
        complain(c, "set %d differs in rows with scores from %g to %g", set, low, high);
    }
}

static void compare_event(const config *c, const tria_plan *plan, int32_t i, const results *want,
                          const results *got)
{
    const config_event *e = &c->events[i];
    const tria_keep *a = &want->keep[i];
    const tria_keep *b = &got->keep[i];
    const double amplification = compare_raw(c, plan, e, want->raw[i], got->raw[i]);
    const double tolerance = 1e-5 + 1e-6 * amplification;
    for (int32_t l = 0; l < c->n_layers; l++) {
        for (int32_t h = 0; h < c->layers[l].n_kv_heads; h++) {
            const int32_t slot = tria_plan_kv_slot(plan, l, h);
            const int32_t set = tria_plan_set(plan, l, h);
            if (slot < 0) {
                continue;
            }
            const int32_t n = rows_of_slot(c, e, slot);
            if (set >= 0 || c->params.normalize_over != TRIA_NORMALIZE_CANDIDATES) {
                compare_scores(c, "grouped", slot, n, want->grouped[i], got->grouped[i], tolerance);
            }
            if (set >= 0) {
                compare_scores(c, "final", set, n, want->final_scores[i], got->final_scores[i], tolerance);
            }
        }
    }
    for (int32_t set = 0; set < tria_plan_n_sets(plan); set++) {
        compare_keep(c, set, a, b, want->final_scores[i], tolerance);
    }
    if (a->over_budget != b->over_budget || a->n_nan != b->n_nan || a->n_zero_heads != b->n_zero_heads ||
        a->n_uncalibrated_layers != b->n_uncalibrated_layers ||
        memcmp(a->uncalibrated_layers, b->uncalibrated_layers, (size_t)c->n_layers) != 0) {
        complain(c, "report is over %d, nan %d, zero %d, uncalibrated %d, expected %d, %d, %d, %d",
                 b->over_budget, b->n_nan, b->n_zero_heads, b->n_uncalibrated_layers, a->over_budget,
                 a->n_nan, a->n_zero_heads, a->n_uncalibrated_layers);
    }
}

typedef struct compacted {
    tria_compaction report[CONFIG_EVENTS];
    tria_move *moves[CONFIG_EVENTS];
    int32_t *freed[CONFIG_EVENTS];
    int32_t *positions[CONFIG_EVENTS];
} compacted;

static void compacted_create(compacted *k, const config *c, tria_event *events)
{
    const int64_t capacity = (int64_t)CONFIG_LAYERS * 4 * c->n_rows;
    for (int32_t i = 0; i < c->n_events; i++) {
        const config_event *e = &c->events[i];
        tria_compaction_init(&k->report[i]);
        k->moves[i] = get((size_t)capacity, sizeof(tria_move));
        k->freed[i] = get((size_t)capacity, sizeof(int32_t));
        k->positions[i] = get(e->n_positions, sizeof(int32_t));
        k->report[i].moves = k->moves[i];
        k->report[i].moves_capacity = capacity;
        k->report[i].freed_pages = k->freed[i];
        k->report[i].freed_capacity = (int32_t)capacity;
        if (e->positions != NULL) {
            memcpy(k->positions[i], e->positions, sizeof(int32_t) * e->n_positions);
            events[i].positions = k->positions[i];
        }
    }
}

static void compacted_destroy(compacted *k, const config *c)
{
    for (int32_t i = 0; i < c->n_events; i++) {
        free(k->moves[i]);
        free(k->freed[i]);
        free(k->positions[i]);
    }
}

static void compare_compacted(const config *c, const compacted *want, const compacted *got,
                              const mirror *mirrors)
{
    for (int32_t i = 0; i < c->n_events; i++) {
        const config_event *e = &c->events[i];
        const tria_compaction *a = &want->report[i];
        const tria_compaction *b = &got->report[i];
        for (int32_t k = 0; k < e->n_blocks; k++) {
            const unsigned char *device = mirrors[i].buffers[k].mapped;
            size_t at = 0;
            while (at < e->blocks[k].size && device[at] == e->blocks[k].data[at]) {
                at++;
            }
            if (at < e->blocks[k].size) {
                complain(c, "event %d block %d differs at byte %zu of %zu", i, k, at, e->blocks[k].size);
            }
        }
        if (a->n_moves != b->n_moves || a->bytes_moved != b->bytes_moved ||
            a->n_freed_pages != b->n_freed_pages || a->rows_after != b->rows_after ||
            memcmp(a->moves, b->moves, sizeof(tria_move) * (size_t)a->n_moves) != 0 ||
            memcmp(a->freed_pages, b->freed_pages, sizeof(int32_t) * (size_t)a->n_freed_pages) != 0 ||
            memcmp(want->positions[i], got->positions[i], sizeof(int32_t) * e->n_positions) != 0) {
            complain(c, "event %d: moves, pages or positions differ", i);
        }
    }
}

static tria_plan *make_plan(const config *c, tria_device *device, tria_device *compact_device,
                            tria_error *error, tria_status *status)
{
    tria_plan_params params = c->params;
    tria_plan *plan = NULL;
    params.score_device = device;
    params.select_device = device;
    params.compact_device = compact_device;
    *status = tria_plan_create(&params, NULL, &plan, error);
    return plan;
}

/* The same selection again, and without asking for scores: every bit must be the same. */
static void repeat(const config *c, tria_plan *plan, const tria_batch *batch, const results *first)
{
    results again;
    tria_error error;
    memset(&again, 0, sizeof(again));
    results_create(&again, plan, c, TRIA_DTYPE_F32);
    if (tria_plan_select(plan, batch, NULL, again.keep, &error) != TRIA_OK) {
        complain(c, "%s", error.message);
    }
    for (int32_t i = 0; i < c->n_events; i++) {
        for (int32_t set = 0; set < tria_plan_n_sets(plan); set++) {
            const int32_t n = first->keep[i].counts[set];
            const size_t at = (size_t)set * (size_t)c->n_rows;
            if (again.counts[i][set] != n ||
                memcmp(again.rows[i] + at, first->rows[i] + at, sizeof(int32_t) * (size_t)n) != 0) {
                complain(c, "event %d set %d differs from run to run", i, set);
            }
        }
    }
    results_destroy(&again);
}

static void compact_both(config *c, tria_plan *cpu, tria_plan *vulkan, const results *r, mirror *mirrors,
                         const tria_event *device_events)
{
    tria_event host[CONFIG_EVENTS];
    tria_event device[CONFIG_EVENTS];
    compacted want;
    compacted got;
    tria_error error;
    tria_batch batch;
    for (int32_t i = 0; i < c->n_events; i++) {
        host[i] = c->events[i].event;
        device[i] = device_events[i];
    }
    compacted_create(&want, c, host);
    compacted_create(&got, c, device);
    tria_batch_init(&batch);
    batch.n_events = c->n_events;
    batch.events = host;
    const tria_status on_cpu = tria_plan_compact(cpu, &batch, r->keep, want.report, &error);
    batch.events = device;
    /* the keep sets the device holds, or the caller's */
    const tria_keep *keep = config_chance(c, 50) ? NULL : r->keep;
    const tria_status on_vulkan = tria_plan_compact(vulkan, &batch, keep, got.report, &error);
    if (on_cpu != on_vulkan) {
        complain(c, "compaction returns %d, on the CPU %d: %s", on_vulkan, on_cpu, error.message);
    } else if (on_cpu == TRIA_OK) {
        if (tria_plan_synchronize(vulkan, &error) != TRIA_OK) {
            complain(c, "%s", error.message);
        }
        compare_compacted(c, &want, &got, mirrors);
        totals.compactions += c->n_events;
    }
    compacted_destroy(&want, c);
    compacted_destroy(&got, c);
}

static void run(gpu *g, config *c, tria_device *reference, tria_device *vulkan)
{
    tria_error error;
    tria_error refusal;
    tria_status status;
    tria_status vulkan_status;
    static mirror mirrors[CONFIG_EVENTS];
    results want;
    results got;
    tria_event host[CONFIG_EVENTS];
    tria_event device[CONFIG_EVENTS];
    tria_batch batch;
    totals.configs++;
    tria_plan *oracle = make_plan(c, reference, NULL, &error, &status);
    tria_plan *plan = make_plan(c, vulkan, vulkan, &refusal, &vulkan_status);
    if (status != TRIA_OK || vulkan_status != TRIA_OK) {
        totals.refused++;
        if (status != vulkan_status) {
            complain(c, "plan: %d (%s), reference %d", vulkan_status, refusal.message, status);
        }
        tria_plan_destroy(oracle);
        tria_plan_destroy(plan);
        return;
    }
    memset(&want, 0, sizeof(want));
    memset(&got, 0, sizeof(got));
    results_create(&want, oracle, c, TRIA_DTYPE_F64);
    results_create(&got, plan, c, TRIA_DTYPE_F32);
    for (int32_t i = 0; i < c->n_events; i++) {
        host[i] = c->events[i].event;
        mirror_create(g, c, &c->events[i], &mirrors[i]);
        device[i] = host[i];
        device[i].kv = &mirrors[i].view;
    }
    tria_batch_init(&batch);
    batch.n_events = c->n_events;
    batch.events = host;
    status = tria_plan_select(oracle, &batch, want.scores, want.keep, &error);
    batch.events = device;
    vulkan_status = tria_plan_select(plan, &batch, got.scores, got.keep, &refusal);
    if (status != vulkan_status) {
        complain(c, "select returns %d (%s), the reference %d (%s)", vulkan_status, refusal.message, status,
                 error.message);
    } else if (status == TRIA_OK) {
        for (int32_t i = 0; i < c->n_events; i++) {
            compare_event(c, plan, i, &want, &got);
        }
        repeat(c, plan, &batch, &got);
        compact_both(c, oracle, plan, &got, mirrors, device);
    } else {
        totals.refused++;
    }
    tria_plan_destroy(oracle);
    tria_plan_destroy(plan);
    for (int32_t i = 0; i < c->n_events; i++) {
        mirror_destroy(g, &c->events[i], &mirrors[i]);
    }
    results_destroy(&want);
    results_destroy(&got);
}

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoll(text, NULL, 10) : otherwise;
}

int main(void)
{
    static config c;
    gpu g;
    tria_backends *backends;
    tria_device *vulkan;
    tria_device *reference;
    tria_error error;
    const int64_t count = setting("TRIA_TEST_COUNT", 40);
    const int64_t seed = setting("TRIA_TEST_SEED", 1);
    /* devices without narrow storage take other paths */
    gpu_open(&g, getenv("TRIA_TEST_NARROW") != NULL);
    gpu_open_backend(&g, &backends, &vulkan);
    if (tria_device_open(backends, "reference", NULL, &reference, &error) != TRIA_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("%lld configurations from seed %lld on %s\n", (long long)count, (long long)seed,
           tria_device_name(vulkan));
    for (int64_t i = 0; i < count; i++) {
        config_create(&c, (uint64_t)(seed + i));
        run(&g, &c, reference, vulkan);
        config_destroy(&c);
    }
    tria_device_close(vulkan);
    tria_device_close(reference);
    tria_backends_destroy(backends);
    gpu_close(&g);
    printf(
        "%lld configurations (%lld refused by both), %lld keep sets, %lld rows kept differently near the "
        "cut, %lld caches compacted, worst raw error %.2g of the largest, worst final error %.2g, %lld "
        "failures\n",
        (long long)totals.configs, (long long)totals.refused, (long long)totals.sets,
        (long long)totals.rows_near_cut, (long long)totals.compactions, totals.worst_raw,
        totals.worst_final, (long long)totals.failures);
    return totals.failures != 0;
}

/*
 * test_select_golden.c - every keep set of every golden case through the public API, with its report and
 * the final scores it was ranked by. qwen3_8b_real is read from ../shared and skipped when it is absent.
 */
#include "backends.h"
#include "golden.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static golden_backend backends[2];
static int32_t n_backends;

/* One keep set of a case and what it is computed with. */
typedef struct keep_case {
    const golden_case *gc;
    char name[64];
    golden_setup setup;
    int32_t n_pins;
    int32_t *pins;
    npy_array weights;
    tria_range prompt;
} keep_case;

static double field(const keep_case *kc, double otherwise, const char *name)
{
    return golden_number(kc->gc, otherwise, "keep.%s.%s", kc->name, name);
}

static bool field_is(const keep_case *kc, const char *name, const char *value)
{
    char key[160];
    const char *text;
    snprintf(key, sizeof(key), "keep.%s.%s", kc->name, name);
    text = golden_text(kc->gc, key);
    return text != NULL && strcmp(text, value) == 0;
}

static int32_t mode_of(const keep_case *kc)
{
    static const char *const names[] = {"per_layer_per_head", "per_head", "per_layer", "union", "global"};
    for (int32_t m = 0; m < 5; m++) {
        if (field_is(kc, "mode", names[m])) {
            return m;
        }
    }
    golden_die("%s: keep set %s has no known mode", kc->gc->folder, kc->name);
}

/* Sets of the reference protect the first `prefix` and the last `window` rows, whatever their positions. */
static void pin_reference_rows(keep_case *kc)
{
    int32_t window = (int32_t)field(kc, 0, "window");
    int32_t prefix = field_is(kc, "protect_prefill", "1") ? (int32_t)field(kc, 0, "prefill") : 0;
    kc->pins = calloc((size_t)(window + prefix + 1), sizeof(*kc->pins));
    for (int32_t i = 0; i < prefix; i++) {
        kc->pins[kc->n_pins++] = i;
    }
    for (int32_t i = 0; i < window; i++) {
        kc->pins[kc->n_pins++] = kc->setup.n_rows - window + i;
    }
    if (field_is(kc, "path", "hf")) {
        kc->setup.params.normalize_over = TRIA_NORMALIZE_CANDIDATES;
    }
    if (field_is(kc, "normalize", "0")) {
        kc->setup.params.normalize_over = TRIA_NORMALIZE_NONE;
    }
}

static void load_pins(keep_case *kc)
{
    char name[96];
    npy_array array;
    snprintf(name, sizeof(name), "pin_%s", kc->name);
    if (!golden_has(kc->gc, name)) {
        return;
    }
    array = golden_array(kc->gc, "%s", name);
    kc->n_pins = (int32_t)array.count;
    kc->pins = array.data;
}

/* Options of the scoring that only the case's command line mentions. */
static void read_command_line(keep_case *kc)
{
    char key[160];
    const char *line;
    const char *weight;
    snprintf(key, sizeof(key), "cli.keep_%s", kc->name);
    line = golden_text(kc->gc, key);
    if (line == NULL) {
        return;
    }
    weight = strstr(line, "--content-weight ");
    if (weight != NULL) {
        kc->setup.params.content_weight = strtof(weight + strlen("--content-weight "), NULL);
    }
    if (strstr(line, "--offsets max") != NULL) {
        kc->setup.params.offsets = TRIA_AGGREGATE_MAX;
    }
}

static void prepare(keep_case *kc)
{
    tria_plan_params *params = &kc->setup.params;
    char name[96];
    params->mode = mode_of(kc);
    params->budget = (int32_t)field(kc, 0, "budget");
    if (field(kc, 0, "percent") > 0) {
        params->budget = (int32_t)(field(kc, 0, "percent") * field(kc, 0, "max_rows") / 100.0);
    }
    params->group = field_is(kc, "group", "mean") ? TRIA_AGGREGATE_MEAN : TRIA_AGGREGATE_MAX;
    params->layers_agg = field_is(kc, "layers_agg", "max") ? TRIA_AGGREGATE_MAX : TRIA_AGGREGATE_MEAN;
    if (field(kc, -1, "prefill") >= 0) {
        pin_reference_rows(kc);
    } else {
        params->n_recent = (int32_t)field(kc, 0, "recent");
        params->n_sink = (int32_t)field(kc, 0, "sinks");
        params->pool_radius = (int32_t)field(kc, 0, "pool");
        params->use_layer_budgets = (int32_t)field(kc, 0, "layer_budgets");
        params->protect_prefill = (int32_t)field(kc, 0, "protect_prefill");
        params->count_prompt = (int32_t)field(kc, 1, "count_prompt");
        params->normalize_over = field_is(kc, "normalize", "candidates") ? TRIA_NORMALIZE_CANDIDATES
                                 : field_is(kc, "normalize", "none")     ? TRIA_NORMALIZE_NONE
                                                                         : TRIA_NORMALIZE_ALL;
        kc->prompt.end = (int32_t)field(kc, -1, "prompt_end");
        load_pins(kc);
        read_command_line(kc);
    }
    snprintf(name, sizeof(name), "layer_weights_%s", kc->name);
    if (golden_has(kc->gc, name)) {
        kc->weights = golden_array(kc->gc, "%s", name);
        params->layer_weights = kc->weights.data;
    }
    if (kc->prompt.end > 0) {
        kc->setup.event.prompts = &kc->prompt;
        kc->setup.event.n_prompts = 1;
    }
    kc->setup.event.pins = kc->pins;
    kc->setup.event.n_pins = kc->n_pins;
}

static int64_t wrong(const keep_case *kc, const char *backend, const char *what, int64_t got,
                     int64_t expected)
{
    if (got == expected) {
        return 0;
    }
    fprintf(stderr, "%s keep_%s on %s: %s is %" PRId64 ", expected %" PRId64 "\n", kc->gc->folder, kc->name,
            backend, what, got, expected);
    return 1;
}

/* The reference keeps the first rows of a layer without calibration, the library the last positions. */
static bool is_binding(const keep_case *kc, int64_t set)
{
    return !(strstr(kc->gc->folder, "sampled_heads") != NULL && strncmp(kc->name, "hf_plph", 7) == 0 &&
             set / 3 == 3);
}

static int64_t compare_rows(const keep_case *kc, const char *backend, const tria_keep *keep, int64_t n_sets)
{
    npy_array expected = golden_array(kc->gc, "keep_%s", kc->name);
    int64_t width = expected.dims[expected.n_dims - 1];
    int64_t n_wrong = wrong(kc, backend, "the number of sets", n_sets, expected.count / width);
    for (int64_t set = 0; n_wrong == 0 && set < n_sets; set++) {
        const int32_t *rows = (const int32_t *)expected.data + set * width;
        int64_t count = 0;
        int64_t matches = 0;
        char what[64];
        while (count < width && rows[count] >= 0) {
            count++;
        }
        snprintf(what, sizeof(what), "the length of set %" PRId64, set);
        n_wrong += wrong(kc, backend, what, keep->counts[set], count);
        for (int64_t i = 0; n_wrong == 0 && is_binding(kc, set) && i < count; i++) {
            matches += keep->rows[set * keep->row_stride + i] == rows[i];
        }
        if (n_wrong == 0 && is_binding(kc, set)) {
            snprintf(what, sizeof(what), "equal rows of set %" PRId64, set);
            n_wrong += wrong(kc, backend, what, matches, count);
        }
    }
    npy_free(&expected);
    return n_wrong;
}

static int64_t compare_report(const keep_case *kc, const char *backend, const tria_keep *keep)
{
    char key[160];
    const char *layers;
    int64_t n_wrong = wrong(kc, backend, "over_budget", keep->over_budget > 0,
                            (int64_t)field(kc, keep->over_budget > 0, "over_budget"));
    n_wrong += wrong(kc, backend, "n_nan", keep->n_nan, (int64_t)field(kc, keep->n_nan, "n_nan"));
    snprintf(key, sizeof(key), "keep.%s.uncalibrated_layers", kc->name);
    layers = golden_text(kc->gc, key);
    if (layers != NULL) {
        char got[64] = "";
        for (int32_t i = 0; i < kc->setup.n_layers; i++) {
            if (keep->uncalibrated_layers[i]) {
                snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%d", got[0] ? " " : "", i);
            }
        }
        if (strcmp(layers, got[0] ? got : "none") != 0) {
            fprintf(stderr, "%s keep_%s on %s: uncalibrated layers %s, expected %s\n", kc->gc->folder,
                    kc->name, backend, got, layers);
            n_wrong++;
        }
    }
    return n_wrong;
}

static int64_t compare_final(const keep_case *kc, const golden_backend *backend, const npy_array *got)
{
    char name[96];
    char what[800];
    npy_array expected;
    int64_t n_wrong;
    double tolerance;
    snprintf(name, sizeof(name), "final_%s", kc->name);
    if (!golden_has(kc->gc, name)) {
        return 0;
    }
    expected = golden_array(kc->gc, "%s", name);
    tolerance = fmax(backend->z_tolerance, backend->raw_tolerance * golden_abs_max(&expected));
    if (strstr(kc->gc->folder, "int8") != NULL) {
        tolerance = fmax(tolerance, 1e-6); /* K_rot is rounded, see the score test */
    }
    if (mode_of(kc) == TRIA_MODE_GLOBAL) {
        tolerance = fmax(tolerance, 1e-6); /* a plan's layer weights are float32 */
    }
    snprintf(what, sizeof(what), "%s final_%s on %s", kc->gc->folder, kc->name, backend->name);
    n_wrong = golden_compare(what, &expected, got, tolerance);
    npy_free(&expected);
    return n_wrong;
}

static int64_t run(keep_case *kc, const golden_backend *backend)
{
    tria_plan *plan = NULL;
    tria_error error;
    tria_batch batch;
    tria_keep keep;
    tria_scores scores;
    npy_array final_scores;
    int64_t n_wrong;
    int64_t dims[2];
    bool everything = true;
    golden_use_backend(backend, &kc->setup.params);
    if (tria_plan_create(&kc->setup.params, NULL, &plan, &error) != TRIA_OK) {
        golden_die("%s keep_%s: %s", kc->gc->folder, kc->name, error.message);
    }
    dims[0] = tria_plan_n_sets(plan);
    dims[1] = kc->setup.n_rows;
    final_scores = npy_create('f', backend->is_double ? 8 : 4, 2, dims);
    tria_scores_init(&scores);
    scores.dtype = backend->is_double ? TRIA_DTYPE_F64 : TRIA_DTYPE_F32;
    scores.row_stride = dims[1];
    scores.final_scores = final_scores.data;
    tria_batch_init(&batch);
    batch.events = &kc->setup.event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.row_stride = dims[1];
    keep.rows = calloc((size_t)(dims[0] * dims[1]), sizeof(*keep.rows));
    keep.counts = calloc((size_t)dims[0], sizeof(*keep.counts));
    keep.uncalibrated_layers = calloc((size_t)kc->setup.n_layers, 1);
    if (tria_plan_select(plan, &batch, &scores, &keep, &error) != TRIA_OK ||
        tria_plan_synchronize(plan, &error) != TRIA_OK) {
        golden_die("%s keep_%s: %s", kc->gc->folder, kc->name, error.message);
    }
    n_wrong = compare_rows(kc, backend->name, &keep, dims[0]);
    n_wrong += compare_report(kc, backend->name, &keep);
    for (int64_t set = 0; set < dims[0]; set++) {
        everything = everything && keep.counts[set] == dims[1];
    }
    if (!everything) { /* otherwise nothing had to be scored */
        n_wrong += compare_final(kc, backend, &final_scores);
    }
    free(keep.rows);
    free(keep.counts);
    free(keep.uncalibrated_layers);
    npy_free(&final_scores);
    tria_plan_destroy(plan);
    return n_wrong;
}

static int64_t check_set(const golden_case *gc, const char *name)
{
    keep_case kc = {.gc = gc};
    golden_settings settings = {"K_rot", "inv_freq", -1};
    int64_t n_wrong = 0;
    snprintf(kc.name, sizeof(kc.name), "%s", name);
    settings.keys = golden_has(gc, "K_raw") ? "K_raw" : golden_has(gc, "K_had") ? "K_had" : "K_rot";
    settings.window_layer = field(&kc, 0, "layer_1_sliding") > 0 ? 1 : -1;
    golden_setup_create(&kc.setup, gc, &settings);
    prepare(&kc);
    for (int32_t b = 0; b < n_backends; b++) {
        n_wrong += run(&kc, &backends[b]);
    }
    free(kc.pins);
    npy_free(&kc.weights);
    golden_setup_destroy(&kc.setup);
    return n_wrong;
}

static void check_folder(const char *folder)
{
    golden_case gc;
    int64_t n_wrong = 0;
    int32_t n_sets = 0;
    golden_open(&gc, folder);
    for (size_t i = 0; i < gc.n_lines; i++) {
        /* keep.<set>.mode */
        const char *end = strrchr(gc.keys[i], '.');
        char name[64];
        char file[96];
        if (strncmp(gc.keys[i], "keep.", 5) != 0 || strcmp(end, ".mode") != 0) {
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)(end - gc.keys[i] - 5), gc.keys[i] + 5);
        snprintf(file, sizeof(file), "keep_%s", name);
        if (golden_has(&gc, file)) {
            n_wrong += check_set(&gc, name);
            n_sets++;
        }
    }
    print_message("%d keep sets\n", n_sets);
    golden_close(&gc);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    tria_backends *registry = NULL;
    int failed;
    n_backends = golden_open_backends(&registry, backends);
    failed = golden_run_cases("select-golden", check_folder);
    golden_close_backends(registry, backends, n_backends);
    return failed;
}

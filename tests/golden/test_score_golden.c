/*
 * test_score_golden.c - raw, grouped and per-head scores of every golden case through the public API, on
 * every way the case stores its keys. qwen3_8b_real is read from ../shared and skipped when it is absent.
 */
#include "backends.h"
#include "golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static golden_backend backends[2];
static int32_t n_backends;

/* Settings that a variant of the raw score ("om1_max", "nomlr_notrig", ...) stands for. */
static void apply_variant(const char *variant, tria_plan_params *params)
{
    params->offsets = strstr(variant, "max") != NULL ? TRIA_AGGREGATE_MAX : TRIA_AGGREGATE_MEAN;
    params->offset_max = strncmp(variant, "om1000", 6) == 0 ? 1000
                         : strncmp(variant, "om1_", 4) == 0 ? 1
                                                            : 65536;
    params->content_weight = strncmp(variant, "cw05", 4) == 0  ? 0.5f
                             : strncmp(variant, "cw0", 3) == 0 ? 0.0f
                                                               : 1.0f;
    params->disable_trig = strstr(variant, "notrig") != NULL;
    params->disable_norm_excess = strstr(variant, "noexcess") != NULL || strstr(variant, "nomlr") != NULL;
}

enum { RAW, GROUPED, FINAL };

/* One array of scores of the setup's plan. */
static npy_array run_score(golden_setup *setup, const golden_case *gc, const golden_backend *backend,
                           int wanted)
{
    tria_plan *plan = NULL;
    tria_error error;
    tria_batch batch;
    tria_scores scores;
    npy_array out;
    int64_t dims[2];
    golden_use_backend(backend, &setup->params);
    if (tria_plan_create(&setup->params, NULL, &plan, &error) != TRIA_OK) {
        golden_die("%s: %s", gc->folder, error.message);
    }
    dims[0] = wanted == RAW       ? tria_plan_n_query_slots(plan)
              : wanted == GROUPED ? tria_plan_n_kv_slots(plan)
                                  : tria_plan_n_sets(plan);
    dims[1] = setup->n_rows;
    out = npy_create('f', backend->is_double ? 8 : 4, 2, dims);
    tria_batch_init(&batch);
    batch.events = &setup->event;
    batch.n_events = 1;
    tria_scores_init(&scores);
    scores.dtype = backend->is_double ? TRIA_DTYPE_F64 : TRIA_DTYPE_F32;
    scores.row_stride = setup->n_rows;
    *(wanted == RAW ? &scores.raw : wanted == GROUPED ? &scores.grouped : &scores.final_scores) = out.data;
    if (tria_plan_score(plan, &batch, &scores, &error) != TRIA_OK ||
        tria_plan_synchronize(plan, &error) != TRIA_OK) {
        golden_die("%s: %s", gc->folder, error.message);
    }
    tria_plan_destroy(plan);
    return out;
}

static int64_t compare_with(const golden_case *gc, const char *file, const golden_backend *backend,
                            const char *keys, const npy_array *got, int wanted)
{
    char what[700];
    npy_array expected = golden_array(gc, "%s", file);
    double tolerance = backend->raw_tolerance * golden_abs_max(&expected);
    int64_t n_wrong;
    /* The int8 rows rounded to f4 are what is scored here, not what the expected scores stand for. */
    if (backend->is_double && strcmp(keys, "K_rot") == 0 && golden_has(gc, "K_int8")) {
        tolerance *= 1e4;
    }
    if (wanted != RAW) {
        tolerance = fmax(tolerance, backend->z_tolerance);
    }
    snprintf(what, sizeof(what), "%s %s of %s on %s", gc->folder, file, keys, backend->name);
    n_wrong = golden_compare(what, &expected, got, tolerance);
    npy_free(&expected);
    return n_wrong;
}

static int64_t check_raw(const golden_case *gc, const golden_backend *backend, const char *keys,
                         const char *variant)
{
    char file[64];
    char inv_freq[64];
    golden_settings settings = {keys, "inv_freq", -1};
    golden_setup setup;
    npy_array got;
    int64_t n_wrong;
    snprintf(file, sizeof(file), "score_%s", variant);
    snprintf(inv_freq, sizeof(inv_freq), "inv_freq_%s", variant);
    if (!golden_has(gc, file)) {
        return 0;
    }
    if (golden_has(gc, inv_freq)) {
        settings.inv_freq = inv_freq; /* a RoPE scaling */
    }
    golden_setup_create(&setup, gc, &settings);
    setup.params.mode = TRIA_MODE_PER_LAYER_PER_HEAD;
    apply_variant(variant, &setup.params);
    got = run_score(&setup, gc, backend, RAW);
    n_wrong = compare_with(gc, file, backend, keys, &got, RAW);
    npy_free(&got);
    golden_setup_destroy(&setup);
    return n_wrong;
}

/* `file` holds grouped (or per-head) scores, computed with these aggregates. */
static int64_t check_ranked(const golden_case *gc, const golden_backend *backend, const char *keys,
                            const char *file, int wanted, tria_aggregate group, tria_aggregate layers)
{
    const golden_settings settings = {keys, "inv_freq", -1};
    golden_setup setup;
    npy_array got;
    int64_t n_wrong;
    if (!golden_has(gc, file)) {
        return 0;
    }
    golden_setup_create(&setup, gc, &settings);
    setup.params.mode = wanted == GROUPED ? TRIA_MODE_PER_LAYER_PER_HEAD : TRIA_MODE_PER_HEAD;
    setup.params.group = (int32_t)group;
    setup.params.layers_agg = (int32_t)layers;
    got = run_score(&setup, gc, backend, wanted);
    n_wrong = compare_with(gc, file, backend, keys, &got, wanted);
    npy_free(&got);
    golden_setup_destroy(&setup);
    return n_wrong;
}

static int64_t check_keys(const golden_case *gc, const golden_backend *backend, const char *keys)
{
    static const char *const variants[] = {"mean",
                                           "max",
                                           "om1000",
                                           "om1_max",
                                           "cw05",
                                           "cw0",
                                           "notrig",
                                           "noexcess_max",
                                           "nomlr_mean",
                                           "nomlr_max",
                                           "nomlr_notrig",
                                           "linear",
                                           "llama3",
                                           "yarn",
                                           "yarn_attention_factor",
                                           "yarn_mscale",
                                           "yarn_no_truncate"};
    int64_t n_wrong = 0;
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        n_wrong += check_raw(gc, backend, keys, variants[i]);
    }
    n_wrong += check_ranked(gc, backend, keys, "grouped", GROUPED, TRIA_AGGREGATE_MAX, TRIA_AGGREGATE_MEAN);
    n_wrong +=
        check_ranked(gc, backend, keys, "grouped_mean", GROUPED, TRIA_AGGREGATE_MEAN, TRIA_AGGREGATE_MEAN);
    n_wrong +=
        check_ranked(gc, backend, keys, "zmax_pop", GROUPED, TRIA_AGGREGATE_MAX, TRIA_AGGREGATE_MEAN);
    n_wrong += check_ranked(gc, backend, keys, "perhead", FINAL, TRIA_AGGREGATE_MAX, TRIA_AGGREGATE_MEAN);
    n_wrong +=
        check_ranked(gc, backend, keys, "perhead_lmax", FINAL, TRIA_AGGREGATE_MAX, TRIA_AGGREGATE_MAX);
    n_wrong +=
        check_ranked(gc, backend, keys, "perhead_gmean", FINAL, TRIA_AGGREGATE_MEAN, TRIA_AGGREGATE_MEAN);
    n_wrong += check_ranked(gc, backend, keys, "agg_pop", FINAL, TRIA_AGGREGATE_MAX, TRIA_AGGREGATE_MEAN);
    return n_wrong;
}

static void check_folder(const char *folder)
{
    static const char *const stored[] = {"K_rot",    "K_raw",  "K_had", "K_q8_0",
                                         "K_e4m3fn", "K_e5m2", "K_int8"};
    golden_case gc;
    int64_t n_wrong = 0;
    int32_t n_checked = 0;
    golden_open(&gc, folder);
    for (size_t k = 0; k < sizeof(stored) / sizeof(stored[0]); k++) {
        char first[32];
        snprintf(first, sizeof(first), "%s_0", stored[k]);
        if (!golden_has(&gc, stored[k]) && !golden_has(&gc, first)) {
            continue;
        }
        for (int32_t b = 0; b < n_backends; b++) {
            n_wrong += check_keys(&gc, &backends[b], stored[k]);
            n_checked++;
        }
    }
    golden_close(&gc);
    assert_true(n_checked > 0);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    tria_backends *registry = NULL;
    int failed;
    n_backends = golden_open_backends(&registry, backends);
    failed = golden_run_cases("score-golden", check_folder);
    golden_close_backends(registry, backends, n_backends);
    return failed;
}

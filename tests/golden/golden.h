/*
 * golden.h - cases of tests/data: manifest, arrays, and the plan that goes with them.
 */
#ifndef TRIA_TESTS_GOLDEN_H
#define TRIA_TESTS_GOLDEN_H

#include "cli/npy.h"
#include "tria/plan.h"

/* Ends the program with a message: a broken case is no test result. */
void golden_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

typedef struct golden_case {
    char folder[512];
    char *text; /* the manifest; lines and keys are NUL-terminated in place */
    size_t n_lines;
    const char **keys;
    const char **values;
} golden_case;

void golden_open(golden_case *gc, const char *folder);
void golden_close(golden_case *gc);
const char *golden_text(const golden_case *gc, const char *key); /* NULL: absent */
double golden_number(const golden_case *gc, double otherwise, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool golden_has(const golden_case *gc, const char *name); /* NAME.npy */
npy_array golden_array(const golden_case *gc, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What a score or a keep set is computed with, beyond the case's own numbers. */
typedef struct golden_settings {
    const char *keys;     /* "K_rot", "K_q8_0", ... */
    const char *inv_freq; /* "inv_freq", or "inv_freq_<scaling>" */
    int32_t window_layer; /* a layer to make sliding-window, -1: none */
} golden_settings;

/* Everything a plan and an event point to. params and event are ready but for budget, mode and such. */
typedef struct golden_setup {
    int32_t n_layers;
    int32_t n_rows;
    int32_t n_files; /* of keys */
    npy_array keys[8];
    npy_array key_scales;
    npy_array positions;
    tria_model *model;
    tria_calibration *calibration;
    tria_layer_view layers[8];
    tria_kv_view view;
    tria_plan_params params;
    tria_event event;
} golden_setup;

void golden_setup_create(golden_setup *setup, const golden_case *gc, const golden_settings *settings);
void golden_setup_destroy(golden_setup *setup);

/* Calls `run` as a test on the folder of every case in cases.h, and on qwen3_8b_real of ../shared, which is
 * skipped when it is absent. Returns the number of failed tests. */
int golden_run_cases(const char *name, void (*run)(const char *folder));

/* The largest finite |x|. */
double golden_abs_max(const npy_array *array);
/* Number of elements further apart than `tolerance` or finite on one side only; the first is printed. */
int64_t golden_compare(const char *what, const npy_array *expected, const npy_array *got, double tolerance);

#endif

/*
 * backends.h - which backends a golden test runs on: "cpu" and "reference", or the one named by the
 * environment variable TRIA_TEST_BACKEND (for plugins: TRIA_BACKEND_PATH says where they are).
 */
#ifndef TRIA_TESTS_GOLDEN_BACKENDS_H
#define TRIA_TESTS_GOLDEN_BACKENDS_H

#include "tria/plan.h"

#include <stdbool.h>

typedef struct golden_backend {
    const char *name;
    tria_device *device;  /* NULL: the CPU */
    bool is_double;       /* scores in double */
    double raw_tolerance; /* of the largest raw score */
    double z_tolerance;
} golden_backend;

/* Opens at most two; returns how many. Ends the program with 77 when the one asked for is missing. */
int32_t golden_open_backends(tria_backends **backends, golden_backend opened[2]);
void golden_close_backends(tria_backends *backends, const golden_backend *opened, int32_t n);
/* Has the plan run on the backend. */
void golden_use_backend(const golden_backend *backend, tria_plan_params *params);

#endif

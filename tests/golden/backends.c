/* backends.c - see backends.h. */
#include "backends.h"

#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tria_device *open_device(tria_backends *backends, const char *name)
{
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_device *device = NULL;
    tria_error error;
    params.allow_cpu = 1;
    if (tria_device_open(backends, name, &params, &device, &error) != TRIA_OK) {
        if (error.code == TRIA_E_BACKEND || error.code == TRIA_E_DEVICE) {
            fprintf(stderr, "SKIPPED: %s\n", error.message);
            exit(77);
        }
        golden_die("%s", error.message);
    }
    return device;
}

int32_t golden_open_backends(tria_backends **backends, golden_backend opened[2])
{
    const char *name = getenv("TRIA_TEST_BACKEND");
    tria_error error;
    if (tria_backends_create(NULL, NULL, backends, &error) != TRIA_OK) {
        golden_die("%s", error.message);
    }
    if (name != NULL && name[0] != '\0') {
        opened[0] = (golden_backend){name, open_device(*backends, name), false, 1e-5, 1e-4};
        return 1;
    }
    opened[0] = (golden_backend){"cpu", NULL, false, 2e-6, 1e-4};
    opened[1] = (golden_backend){"reference", open_device(*backends, "reference"), true, 1e-11, 1e-10};
    return 2;
}

void golden_close_backends(tria_backends *backends, const golden_backend *opened, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (opened[i].device != NULL) {
            tria_device_close(opened[i].device);
        }
    }
    tria_backends_destroy(backends);
}

void golden_use_backend(const golden_backend *backend, tria_plan_params *params)
{
    params->score_device = backend->device;
    params->select_device = backend->device;
    params->compact_device = backend->device;
    params->stage_device_memory = backend->device != NULL;
}

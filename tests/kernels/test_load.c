/*
 * test_load.c - a plugin as it is installed: it loads on a machine without its driver, and says why it
 * cannot be used there.
 */
#include "tria/backend.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    tria_backends *backends;
    tria_error error;
    int32_t failures = 0;
    /* usage: test_load FOLDER BACKEND */
    if (argc != 3 || tria_backends_create(argv[1], NULL, &backends, &error) != TRIA_OK) {
        return 2;
    }
    for (int32_t i = 0; i < tria_backends_count(backends); i++) {
        tria_backend_info info = {.struct_size = sizeof(info)};
        if (strcmp(tria_backends_name(backends, i), argv[2]) != 0) {
            continue;
        }
        if (tria_backends_info(backends, i, &info, &error) != TRIA_OK) {
            printf("%s\n", error.message);
            return 1;
        }
        printf("%s from %s: %d devices, %s\n", argv[2], info.path, info.n_devices, info.reason);
        failures += info.path[0] == '\0'; /* not loaded */
        failures += info.n_devices == 0 && strstr(info.reason, "no usable device: ") == NULL;
        if (info.n_devices == 0) {
            tria_device *device = NULL;
            failures += tria_device_open(backends, argv[2], NULL, &device, &error) != TRIA_E_DEVICE;
        }
    }
    tria_backends_destroy(backends);
    return failures != 0;
}

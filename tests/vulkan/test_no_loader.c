/*
 * A machine without the Vulkan loader, or with a loader but no device: a clear error, and the CPU goes on.
 * This program's own dlopen() stands before the C library's, so that the plugin does not find the loader.
 */
#include "tria/backend.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool hide_loader;

__attribute__((visibility("default"))) void *dlopen(const char *path, int mode);
void *dlopen(const char *path, int mode)
{
    void *(*next)(const char *, int);
    void *address = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&next, &address, sizeof(next));
    if (hide_loader && path != NULL && strstr(path, "tria") == NULL) {
        return NULL;
    }
    return next(path, mode);
}

static void expect_error(tria_status code, const char *words)
{
    tria_backends *backends;
    tria_device *device = NULL;
    tria_backend_info info;
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    tria_error error;
    params.allow_cpu = 1;
    info.struct_size = sizeof(info);
    assert_int_equal(tria_backends_create(NULL, NULL, &backends, &error), TRIA_OK);
    assert_int_equal(tria_device_open(backends, "vulkan", &params, &device, &error), code);
    if (strstr(error.message, "no plugin") != NULL) {
        fprintf(stderr, "SKIPPED: %s\n", error.message);
        exit(77);
    }
    assert_non_null(strstr(error.message, words));
    for (int32_t i = 0; i < tria_backends_count(backends); i++) {
        if (strcmp(tria_backends_name(backends, i), "vulkan") == 0) {
            assert_int_equal(tria_backends_info(backends, i, &info, &error), TRIA_OK);
            assert_int_equal(info.n_devices, 0);
            assert_non_null(strstr(info.reason, words));
        }
    }
    tria_backends_destroy(backends);
}

static void test_no_loader(void **state)
{
    (void)state;
    hide_loader = true;
    expect_error(TRIA_E_BACKEND, "libvulkan.so.1");
    hide_loader = false;
}

/* The loader answers, but no driver does. */
static void test_no_device(void **state)
{
    (void)state;
    setenv("VK_ICD_FILENAMES", "/nonexistent/none.json", 1);
    setenv("VK_DRIVER_FILES", "/nonexistent/none.json", 1);
    expect_error(TRIA_E_DEVICE, "vulkan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_loader), cmocka_unit_test(test_no_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

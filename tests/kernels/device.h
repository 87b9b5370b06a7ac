/*
 * device.h - the emulated device for tests in C. The emulated plugin is a library of its own, which a test
 * is linked with and the core opens as "cuda".
 */
#ifndef TRIA_TESTS_KERNELS_DEVICE_H
#define TRIA_TESTS_KERNELS_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory of exactly this size, zeroed; in the emulation the host may look at it. */
void *device_alloc(size_t size);
void device_free(void *memory);
/* Problems the emulation has found since the last call; prints the first. */
int device_problems(void);
/* Seeds the order in which threads and blocks run. */
void device_set_order(uint32_t seed);

#ifdef __cplusplus
}
#endif
#endif

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

/* The n-th allocation (stream, event) or kernel launch from now on fails; 0: none does. */
void device_fail_allocation(int n);
void device_fail_launch(int n);
/* Every call fails. */
void device_lose(int lost);
void device_set_count(int n);
int device_live_allocations(void);
int device_total_allocations(void);
size_t device_bytes_in_use(void);
int device_launches(void);
/* The default stream is being captured; ends without keeping anything. */
void *device_capture_begin(void);
void device_capture_end(void *stream);

#ifdef __cplusplus
}
#endif
#endif

/* bench_baseline.h - what `tria bench` measures the library against, in the same run. */
#ifndef TRIA_CLI_BENCH_BASELINE_H
#define TRIA_CLI_BENCH_BASELINE_H

#include <stddef.h>
#include <stdint.h>

/* Seconds on a clock that only goes forward. */
double bench_now(void);

/* Seconds that `n_threads` threads need to read `size` bytes once, each its own part, 64-byte aligned. */
double bench_read(const void *data, size_t size, int32_t n_threads);

/*
 * Nanoseconds per key and KV head of the formula as papers and ports write it: for every key, query head,
 * frequency and offset the phase of the offset, the product, the mean; then the norm term. One thread, f32
 * keys of `dim` elements, `n_heads` query heads.
 */
double bench_plain(int32_t dim, int32_t n_heads);

#endif

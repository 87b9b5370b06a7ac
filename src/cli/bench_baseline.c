/* bench_baseline.c - reading memory, and the formula written down naively. */
#include "bench_baseline.h"
#include "cli.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef uint64_t words __attribute__((vector_size(16)));

typedef struct reader {
    const words *data;
    size_t count;
    volatile uint64_t sum; /* so that nothing is optimised away */
} reader;

static void *read_part(void *argument)
{
    reader *r = argument;
    words sums[8] = {{0}};
    for (size_t i = 0; i + 8 <= r->count; i += 8) {
        for (size_t k = 0; k < 8; k++) {
            sums[k] += r->data[i + k];
        }
    }
    for (size_t k = 1; k < 8; k++) {
        sums[0] += sums[k];
    }
    r->sum = sums[0][0] + sums[0][1];
    return NULL;
}

double bench_read(const void *data, size_t size, int32_t n_threads)
{
    const size_t part = size / sizeof(words) / (size_t)n_threads;
    reader *readers = cli_allocate((size_t)n_threads, sizeof(*readers));
    pthread_t *threads = cli_allocate((size_t)n_threads, sizeof(*threads));
    int32_t started = 1;
    const double start = bench_now();
    for (int32_t i = 0; i < n_threads; i++) {
        readers[i].data = (const words *)data + (size_t)i * part;
        readers[i].count = part;
    }
    while (started < n_threads &&
           pthread_create(&threads[started], NULL, read_part, &readers[started]) == 0) {
        started++;
    }
    read_part(&readers[0]);
    for (int32_t i = 1; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int32_t i = started; i < n_threads; i++) {
        read_part(&readers[i]); /* the system gave no more threads */
    }
    const double seconds = bench_now() - start;
    free(readers);
    free(threads);
    return seconds;
}

double bench_plain(int32_t dim, int32_t n_heads)
{
    enum { ROWS = 16, OFFSETS = 17 };
    const int32_t n_freq = dim / 2;
    float *keys = cli_allocate((size_t)ROWS * (size_t)dim, sizeof(float));
    float *q = cli_allocate((size_t)n_heads * (size_t)dim, sizeof(float));
    float *omega = cli_allocate((size_t)n_freq + 1, sizeof(float));
    volatile float sink = 0.0F;
    for (int32_t i = 0; i < ROWS * dim; i++) {
        keys[i] = sinf((float)i);
    }
    for (int32_t i = 0; i < n_heads * dim; i++) {
        q[i] = cosf((float)i);
    }
    for (int32_t f = 0; f < n_freq; f++) {
        omega[f] = powf(10000.0F, -2.0F * (float)f / (float)dim);
    }
    const double start = bench_now();
    for (int32_t row = 0; row < ROWS; row++) {
        const float *k = keys + row * dim;
        for (int32_t h = 0; h < n_heads; h++) {
            const float *mean = q + h * dim;
            float score = 0.0F;
            for (int32_t o = 0; o < OFFSETS; o++) {
                const float ahead = (float)(1000 + (1 << o));
                for (int32_t f = 0; f < n_freq; f++) {
                    const float re = mean[f] * k[f] + mean[n_freq + f] * k[n_freq + f];
                    const float im = mean[n_freq + f] * k[f] - mean[f] * k[n_freq + f];
                    score += re * cosf(ahead * omega[f]) - im * sinf(ahead * omega[f]);
                }
            }
            score /= OFFSETS;
            for (int32_t f = 0; f < n_freq; f++) {
                score += 0.1F * hypotf(k[f], k[n_freq + f]);
            }
            sink = sink + score;
        }
    }
    const double seconds = bench_now() - start;
    free(keys);
    free(q);
    free(omega);
    return seconds / ROWS * 1e9;
}

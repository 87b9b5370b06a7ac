/* moments.c - mean and deviation of scores, and what makes z of them. */
#include "cpu/kernels.h"
#include "cpu/kernels_internal.h"

#include <math.h>

void tria_moments_combine(tria_moments *into, const tria_moments *other)
{
    if (other->count == 0) {
        return;
    }
    double n = (double)into->count, m = (double)other->count;
    double delta = other->mean - into->mean;
    into->mean += delta * m / (n + m);
    into->m2 += other->m2 + delta * delta * n * m / (n + m);
    into->count += other->count;
}

/* For scores so large that float sums overflow. */
static tria_moments moments_in_double(const float *x, int32_t n)
{
    tria_moments moments = {0.0, 0.0, 0};
    for (int32_t i = 0; i < n; i++) {
        const tria_moments one = {(double)x[i], 0.0, isfinite(x[i]) ? 1 : 0};
        tria_moments_combine(&moments, &one);
    }
    return moments;
}

/* Two passes over what lies in the first cache: deviations are small whatever the mean is. */
tria_moments tria_chunk_moments(const tria_cpu_kernels *kernels, const float *x, int32_t n)
{
    double count, sum, squares;
    kernels->sum(x, n, &count, &sum);
    tria_moments moments = {0.0, 0.0, (int64_t)count};
    if (moments.count > 0) {
        float mean = (float)(sum / count);
        kernels->deviations(x, n, mean, &sum, &squares);
        moments.mean = (double)mean + sum / count;
        moments.m2 = squares - sum * sum / count;
        if (!isfinite(moments.mean) || !isfinite(moments.m2)) {
            return moments_in_double(x, n);
        }
        moments.m2 = moments.m2 > 0.0 ? moments.m2 : 0.0;
    }
    return moments;
}

void tria_moments_of(const tria_cpu_kernels *kernels, const float *scores, const uint8_t *skip,
                     int32_t n_rows, tria_moments *moments)
{
    float kept[TRIA_MOMENTS_CHUNK];
    *moments = (tria_moments){0.0, 0.0, 0};
    for (int32_t first = 0; first < n_rows; first += TRIA_MOMENTS_CHUNK) {
        int32_t n = n_rows - first < TRIA_MOMENTS_CHUNK ? n_rows - first : TRIA_MOMENTS_CHUNK;
        const float *x = scores + first;
        if (skip != NULL) {
            for (int32_t i = 0; i < n; i++) {
                kept[i] = skip[first + i] != 0 ? NAN : x[i];
            }
            x = kept;
        }
        tria_moments chunk = tria_chunk_moments(kernels, x, n);
        tria_moments_combine(moments, &chunk);
    }
}

tria_head_scale tria_head_scale_of(const tria_moments *moments)
{
    tria_head_scale scale = {0.0f, 0.0f, 0.0f};
    if (moments->count > 0) {
        double sd = sqrt(moments->m2 / (double)moments->count);
        if (sd > 1e-6 * fmax(1.0, fabs(moments->mean))) {
            scale.mean_high = (float)moments->mean;
            scale.mean_low = (float)(moments->mean - (double)scale.mean_high);
            scale.inverse = (float)(1.0 / sd);
        }
    }
    return scale;
}

void tria_group_rows(const tria_cpu_kernels *kernels, const float *const *scores,
                     const tria_head_scale *scales, int32_t n_heads, int32_t n_rows, bool mean, float *z)
{
    kernels->group(scores, scales, n_heads, n_rows, mean, z);
}

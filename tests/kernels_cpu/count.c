/*
 * count.c - one inner loop over so many rows and nothing else, for a tool that counts instructions:
 * count CASE ROWS. The count of more rows minus that of fewer is what the rows between them cost.
 */
#include "cpu/kernels.h"
#include "tria/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, DIM = 128, MAX_ROWS = 1 << 16 };

static void score_rows(const tria_cpu_kernels *kernels, int32_t dtype, bool kept, int32_t n_rows)
{
    const int64_t row = tria_dtype_row_bytes(dtype, DIM);
    unsigned char *cache = calloc((size_t)n_rows, (size_t)row);
    float *weights = calloc(2 * (size_t)DIM, sizeof(float));
    float *out = calloc(HEADS * (size_t)n_rows, sizeof(float));
    tria_tensor tensor = {.base = cache, .dtype = dtype, .dim = DIM, .token_stride = row};
    const tria_rows rows = {&tensor, cache, NULL, NULL, 0, 0};
    const float *lin[HEADS], *mag[HEADS], *terms[HEADS];
    float *heads[HEADS];
    tria_moments moments[HEADS];
    for (int32_t h = 0; h < HEADS; h++) {
        lin[h] = weights;
        mag[h] = weights + DIM;
        heads[h] = out + (int64_t)h * n_rows;
        terms[h] = heads[h];
    }
    const tria_score_job job = {.rows = &rows,
                                .n_rows = n_rows,
                                .head_dim = DIM,
                                .rotary_dim = DIM,
                                .rope_style = TRIA_ROPE_HALF,
                                .n_heads = HEADS,
                                .n_lin = 1,
                                .lin = lin,
                                .mag = kept ? NULL : mag,
                                .terms = kept ? terms : NULL,
                                .out = heads,
                                .moments = moments};
    void *scratch = aligned_alloc(64, tria_score_scratch_size(DIM, HEADS, 1, 1));
    tria_score_rows(kernels, &job, 1, scratch);
    free(scratch);
    free(cache);
    free(weights);
    free(out);
}

static void select_rows(const tria_cpu_kernels *kernels, int32_t n_rows)
{
    static float scores[MAX_ROWS];
    static uint8_t is_protected[MAX_ROWS];
    static int32_t rows[MAX_ROWS];
    static uint32_t scratch[MAX_ROWS];
    for (int32_t i = 0; i < n_rows; i++) {
        scores[i] = (float)(i * 7919 % n_rows);
    }
    tria_select_top(kernels, scores, is_protected, 0, n_rows, n_rows / 16, rows, scratch);
}

static void group_rows(const tria_cpu_kernels *kernels, int32_t n_rows)
{
    static float x[MAX_ROWS], z[MAX_ROWS];
    const float *heads[HEADS] = {x, x, x, x};
    const tria_head_scale scales[HEADS] = {{0}};
    tria_group_rows(kernels, heads, scales, HEADS, n_rows, false, z);
}

int main(int argc, char **argv)
{
    const tria_cpu_kernels *kernels = tria_cpu_kernels_for(tria_cpu_features());
    const int32_t n_rows = argc == 3 ? atoi(argv[2]) : 0;
    if (n_rows < 1 || n_rows > MAX_ROWS) {
        fprintf(stderr, "usage: count DTYPE|DTYPE-kept|select|group|kernels ROWS\n");
        return 2;
    }
    if (strcmp(argv[1], "kernels") == 0) {
        puts(tria_cpu_kernels_name(kernels));
    } else if (strcmp(argv[1], "select") == 0) {
        select_rows(kernels, n_rows);
    } else if (strcmp(argv[1], "group") == 0) {
        group_rows(kernels, n_rows);
    } else {
        char name[16] = {0};
        const char *dash = strchr(argv[1], '-');
        snprintf(name, sizeof(name), "%.*s", dash != NULL ? (int)(dash - argv[1]) : 15, argv[1]);
        const int32_t dtype = tria_dtype_from_name(name);
        if (dtype < 0) {
            fprintf(stderr, "count: no case %s\n", argv[1]);
            return 2;
        }
        score_rows(kernels, dtype, dash != NULL, n_rows);
    }
    return 0;
}

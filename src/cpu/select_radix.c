/*
 * select_radix.c - the best n of many scores in linear time, in one total order.
 *
 * Scores are mapped to unsigned keys that sort alike. Histograms of ever narrower ranges find the key of
 * the last row taken and how many rows of that very key there is room for; they go to the lowest indices.
 * Of many rows a sample, always the same one, first tells between which two scores the last one must lie;
 * then only the rows between them need keys. A sample that misled is noticed and all rows get keys.
 */
#include "cpu/kernels.h"
#include "cpu/kernels_internal.h"

#include <math.h>
#include <string.h>

/* Few bins, as the keys are few once a sample has told where to look. */
#define BIN_BITS 8
#define BINS (1 << BIN_BITS)
#define SAMPLE 1024
/* Below this many rows a sample would not pay. */
#define SAMPLE_ROWS 4096

/* The highest bin such that it and those above hold at least *room entries; *room becomes what is left for
 * that bin. */
static uint32_t find_bin(const int32_t *counts, int32_t *room)
{
    uint32_t bin = BINS - 1;
    while (bin > 0 && counts[bin] < *room) {
        *room -= counts[bin];
        bin--;
    }
    return bin;
}

/* The last key taken when *room of the n keys are, 0 < *room <= n; *room becomes how many of that key are.
 * The keys are used up. */
static uint32_t last_key(uint32_t *keys, int32_t n, int32_t *room)
{
    for (;;) {
        uint32_t lowest = UINT32_MAX, highest = 0;
        for (int32_t i = 0; i < n; i++) {
            lowest = keys[i] < lowest ? keys[i] : lowest;
            highest = keys[i] > highest ? keys[i] : highest;
        }
        if (lowest == highest) {
            return lowest;
        }
        /* Bins that the keys spread over: many in the same one would wait for each other's counts. */
        const int width = 32 - __builtin_clz(highest - lowest),
                  shift = width > BIN_BITS ? width - BIN_BITS : 0;
        int32_t counts[BINS] = {0};
        for (int32_t i = 0; i < n; i++) {
            counts[(keys[i] - lowest) >> shift]++;
        }
        const uint32_t bin = find_bin(counts, room);
        int32_t inside = 0;
        for (int32_t i = 0; i < n; i++) {
            if ((keys[i] - lowest) >> shift == bin) { /* few are, so this is foreseen */
                keys[inside++] = keys[i];
            }
        }
        n = inside;
    }
}

/* The score of rank `rank` (1 is the best) in the sample, or `beyond` when there is none. */
static float sample_score(const uint32_t *sample, int32_t n, int32_t rank, float beyond)
{
    uint32_t keys[SAMPLE];
    if (rank < 1 || rank > n) {
        return beyond;
    }
    memcpy(keys, sample, (size_t)n * sizeof(keys[0]));
    uint32_t key = last_key(keys, n, &rank);
    return key == 0 ? beyond : tria_score_of(key);
}

/* Keys of the rows among which the last one taken must be; *room becomes how many of them are taken.
 * Returns their number, 0 when the sample cannot tell. */
static int32_t gather_around(const tria_cpu_kernels *kernels, const float *scores,
                             const uint8_t *is_protected, int32_t n_rows, int32_t n_candidates,
                             int32_t *room, uint32_t *keys)
{
    uint32_t sample[SAMPLE];
    int32_t n = 0, n_above;
    const int32_t step = n_rows / SAMPLE;
    for (int32_t i = 0; i < SAMPLE; i++) {
        int32_t row = i * step + step / 2;
        sample[n] = tria_key_of(scores[row]);
        n += is_protected == NULL || is_protected[row] == 0 ? 1 : 0;
    }
    /* Four deviations of the rank that the last row would have in a random sample. */
    double share = (double)*room / n_candidates;
    int32_t rank = (int32_t)(share * n);
    int32_t slack = 2 + (int32_t)(4.0 * sqrt(share * (1.0 - share) * n));
    float high = sample_score(sample, n, rank - slack, INFINITY);
    float low = sample_score(sample, n, rank + slack, -INFINITY);
    float *taken = (float *)(void *)keys; /* become keys where they are */
    int32_t n_keys = kernels->gather(scores, is_protected, n_rows, low, high, taken, &n_above);
    if (n_above >= *room || n_keys < *room - n_above) {
        return 0;
    }
    for (int32_t i = 0; i < n_keys; i++) {
        keys[i] = tria_key_of(taken[i]);
    }
    *room -= n_above;
    return n_keys;
}

static int32_t gather_all(const float *scores, const uint8_t *is_protected, int32_t n_rows, uint32_t *keys)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        keys[n] = tria_key_of(scores[i]);
        n += is_protected == NULL || is_protected[i] == 0 ? 1 : 0;
    }
    return n;
}

/* When even NaN rows are taken: all other rows, and the first `room` of those. */
static int32_t emit_with_nan(const float *scores, const uint8_t *is_protected, int32_t n_rows, int32_t room,
                             int32_t *rows)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        bool is_protected_row = is_protected != NULL && is_protected[i] != 0;
        bool takes_room = !is_protected_row && isnan(scores[i]);
        if (!takes_room || room > 0) {
            rows[n++] = i;
        }
        room -= takes_room ? 1 : 0;
    }
    return n;
}

int32_t tria_select_top(const tria_cpu_kernels *kernels, const float *scores, const uint8_t *is_protected,
                        int32_t n_protected, int32_t n_rows, int32_t n_take, int32_t *rows,
                        uint32_t *scratch)
{
    const int32_t n_candidates = n_rows - n_protected;
    int32_t room = n_take, n_keys = 0;
    if (n_take >= n_candidates) {
        return emit_with_nan(scores, is_protected, n_rows, n_rows, rows);
    }
    if (n_take <= 0) {
        return kernels->emit(scores, is_protected, n_rows, INFINITY, 0, rows);
    }
    if (n_rows >= SAMPLE_ROWS) {
        n_keys = gather_around(kernels, scores, is_protected, n_rows, n_candidates, &room, scratch);
    }
    if (n_keys == 0) {
        n_keys = gather_all(scores, is_protected, n_rows, scratch);
    }
    uint32_t last = last_key(scratch, n_keys, &room);
    return last == 0 ? emit_with_nan(scores, is_protected, n_rows, room, rows)
                     : kernels->emit(scores, is_protected, n_rows, tria_score_of(last), room, rows);
}

/*
 * select_radix.c - the best n of many scores in linear time, in one total order.
 *
 * Scores are mapped to unsigned keys that sort alike. Three histograms of ever lower bits find the key of
 * the last row taken and how many rows of that very key there is room for; they go to the lowest indices.
 */
#include "cpu/kernels.h"

#include <math.h>
#include <string.h>

#define HIGH_BITS 11
#define BINS (1 << HIGH_BITS)

/* NaN is 0, then ascending from -infinity; -0 and +0 share a key. */
static inline uint32_t key_of(float score)
{
    uint32_t bits;
    float normal = score + 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &normal, sizeof(bits));
    uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return isnan(score) ? 0 : key;
}

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

/* The last key taken when n_take of the n keys are; *room is how many of that key are. */
static uint32_t last_key(uint32_t *keys, int32_t n, int32_t n_take, int32_t *room)
{
    static const int shifts[] = {21, 10, 0};
    static const uint32_t masks[] = {0x7ff, 0x7ff, 0x3ff};
    uint32_t prefix = 0;
    *room = n_take;
    for (int level = 0; level < 3; level++) {
        int32_t counts[BINS] = {0};
        for (int32_t i = 0; i < n; i++) {
            counts[keys[i] >> shifts[level] & masks[level]]++;
        }
        uint32_t bin = find_bin(counts, room);
        int32_t inside = 0;
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = keys[i];
            keys[inside] = key;
            inside += (key >> shifts[level] & masks[level]) == bin ? 1 : 0;
        }
        n = inside;
        prefix |= bin << shifts[level];
    }
    return prefix;
}

int32_t tria_select_top(const float *scores, const uint8_t *is_protected, int32_t n_rows, int32_t n_take,
                        int32_t *rows, uint32_t *scratch)
{
    int32_t n_candidates = 0, n_kept = 0, room = 0;
    uint32_t last = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        scratch[n_candidates] = key_of(scores[i]);
        n_candidates += is_protected == NULL || is_protected[i] == 0 ? 1 : 0;
    }
    if (n_take >= n_candidates) {
        n_take = room = n_candidates; /* every key is at least 0 */
    } else if (n_take > 0) {
        last = last_key(scratch, n_candidates, n_take, &room);
    }
    for (int32_t i = 0; i < n_rows; i++) {
        bool keep = is_protected != NULL && is_protected[i] != 0;
        if (!keep && n_take > 0) {
            uint32_t key = key_of(scores[i]);
            keep = key > last || (key == last && room > 0);
            room -= key == last && keep ? 1 : 0;
        }
        if (keep) {
            rows[n_kept++] = i;
        }
    }
    return n_kept;
}

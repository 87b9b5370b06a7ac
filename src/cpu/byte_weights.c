/* byte_weights.c - see byte_weights.h. */
#include "cpu/byte_weights.h"

#include <string.h>

/* The largest number of TRIA_DIGITS digits of eight bits. */
#define MOST 0x7f7f7f
/* Weights below this share of their block's largest are coarse: rounded by more than a 2^16th of
 * themselves. Keys that vary in no other dim would get scores less exact than promised. In calibrations of
 * real models at most 15 of a block's 32 weights are (Qwen3 1.7B and 8B, Qwen3.5 27B). */
#define COARSE (1.0f / 256)

/* The stored dims that enter the scores of some heads. */
static void find_dims(const tria_score_job *job, bool with_content, int32_t *begin, int32_t *end)
{
    *begin = with_content ? 0 : job->rotary_offset;
    *end = with_content ? job->head_dim : job->rotary_offset + job->rotary_dim;
}

/* Copies a head's weights of a block, zero where they do not enter; returns the largest size, NaN if any
 * is. */
static float copy_block(const float *weights, int32_t begin, int32_t end, int32_t block, float *out)
{
    const int32_t first = block * TRIA_BYTE_BLOCK, behind = first + TRIA_BYTE_BLOCK;
    const int32_t low = first < begin ? begin : first, high = behind < end ? behind : end;
    uint32_t bits[TRIA_BYTE_BLOCK], most = 0; /* sizes sort like their bits, NaNs above all others */
    memset(out, 0, TRIA_BYTE_BLOCK * sizeof(*out));
    memcpy(out + low - first, weights + low, (size_t)(high - low) * sizeof(*out));
    memcpy(bits, out, sizeof(bits));
    for (int32_t d = 0; d < TRIA_BYTE_BLOCK; d++) {
        const uint32_t size = bits[d] & 0x7fffffffu;
        most = size > most ? size : most;
    }
    float largest;
    memcpy(&largest, &most, sizeof(largest));
    return largest;
}

bool tria_exact_in_bytes(const tria_score_job *job, int32_t head, bool with_content)
{
    int32_t begin, end;
    find_dims(job, with_content, &begin, &end);
    for (int32_t block = begin / TRIA_BYTE_BLOCK; block * TRIA_BYTE_BLOCK < end; block++) {
        float weights[TRIA_BYTE_BLOCK];
        const float largest = copy_block(job->lin[head], begin, end, block, weights);
        int32_t n = 0, n_coarse = 0;
        for (int32_t d = 0; d < TRIA_BYTE_BLOCK; d++) {
            const float size = weights[d] < 0.0f ? -weights[d] : weights[d];
            n += size > 0.0f ? 1 : 0;
            n_coarse += size > 0.0f && size < COARSE * largest ? 1 : 0;
        }
        const bool has_steps = largest == 0.0f || (largest > 1e-30f && largest < 1e30f);
        if (2 * n_coarse > n || !has_steps) {
            return false;
        }
    }
    return true;
}

/* A block's weights in units of `step`, as digits: of every four dims one after another, `stride` words
 * from one four dims to the next. */
static void to_digits(const float *weights, float step, int64_t stride, int32_t *digits, int32_t *sums)
{
    const double inverse = step > 0.0f ? 1.0 / (double)step : 0.0;
    uint32_t words[TRIA_BYTE_BLOCK];
    for (int32_t d = 0; d < TRIA_BYTE_BLOCK; d++) {
        const double exact = (double)weights[d] * inverse;
        int32_t whole = (int32_t)(exact + (exact < 0.0 ? -0.5 : 0.5));
        whole = whole > MOST ? MOST : whole < -MOST ? -MOST : whole;
        /* With 128 added to every digit none is negative, and they are the bytes of the sum. */
        words[d] = ((uint32_t)whole + 0x808080u) ^ 0x808080u;
    }
    for (int32_t i = 0; i < TRIA_DIGITS; i++) {
        int8_t bytes[TRIA_BYTE_BLOCK];
        for (int32_t d = 0; d < TRIA_BYTE_BLOCK; d++) {
            bytes[d] = (int8_t)(words[d] >> 8 * i & 0xffu);
            sums[i] += bytes[d];
        }
        for (int32_t d = 0; d < TRIA_BYTE_BLOCK; d += 4) {
            memcpy(digits + d / 4 * stride + i, bytes + d, 4);
        }
    }
}

void tria_pack_bytes(const tria_score_job *job, int32_t key_bias, tria_head_part *part, float *out)
{
    const int32_t heads = part->n_heads;
    int32_t begin, end;
    find_dims(job, part->with_content, &begin, &end);
    part->first_block = begin / TRIA_BYTE_BLOCK;
    part->n_blocks = begin < end ? (end + TRIA_BYTE_BLOCK - 1) / TRIA_BYTE_BLOCK - part->first_block : 0;
    int32_t *digits = (int32_t *)(void *)out;
    int32_t *starts = digits + (int64_t)part->n_blocks * (TRIA_BYTE_BLOCK / 4) * heads * TRIA_DIGITS;
    float *steps = (float *)(void *)(starts + (int64_t)part->n_blocks * heads * TRIA_DIGITS);
    part->digits = digits;
    part->starts = starts;
    part->steps = steps;
    for (int32_t i = 0; i < part->n_blocks * heads; i++) {
        const int32_t b = i / heads, h = i % heads;
        float weights[TRIA_BYTE_BLOCK];
        const float step =
            copy_block(job->lin[part->first + h], begin, end, part->first_block + b, weights) / (float)MOST;
        int32_t sums[TRIA_DIGITS] = {0};
        to_digits(weights, step, (int64_t)heads * TRIA_DIGITS,
                  digits + ((int64_t)b * (TRIA_BYTE_BLOCK / 4) * heads + h) * TRIA_DIGITS, sums);
        for (int32_t k = 0; k < TRIA_DIGITS; k++) {
            starts[i * TRIA_DIGITS + k] = -key_bias * sums[k];
        }
        steps[2 * i] = step;
        steps[2 * i + 1] = 256.0f * step;
    }
}

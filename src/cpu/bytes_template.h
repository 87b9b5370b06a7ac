/*
 * bytes_template.h - scores of keys that are bytes, without magnitudes, written once over vectors that hold
 * four bytes of each of their rows; included by one file per instruction set.
 *
 * The file defines before: NAME(x), TARGET (function attributes), ROWS (of a vector, and of a tile),
 * KEY_BIAS, the types vi and vf, and
 *   load_keys(at, stride, keys): KEY_BIAS added to 16 bytes of ROWS rows, four of each in keys[0 .. 3]
 *   load_scales(at, stride): f16 of each row
 *   vi_dot(sums, keys, digits): adds to each row's sum the products of its four bytes with four digits
 *   vi_join(high, low): high * 256 + low
 *   vi_set1, vf_of(vi), vf_set1 vf_store vf_add vf_mul vf_fma(a, b, c) = a*b + c
 *
 * A weight is a whole number of three digits of eight bits, times a step that belongs to its block of dims.
 * Sums of products of digits are exact. What is rounded are the weights, by about a 2^24th of the largest
 * one in their block, and a few floats per block.
 *
 * Keys are loaded half a block ahead of their products: processors look ahead less far than that.
 */
#include "cpu/tile.h"

_Static_assert(ROWS <= TRIA_ROW_BLOCK, "tiles that callers have room for");

#define INLINE static inline __attribute__((always_inline)) TARGET

/* Adds the products of half a block of every row; returns the digits that follow. */
INLINE const int32_t *NAME(multiply)(vi sums[][TRIA_DIGITS], const vi *keys, const int32_t *digits,
                                     int n_heads)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            UNROLL
            for (int d = 0; d < TRIA_DIGITS; d++) {
                sums[h][d] = vi_dot(sums[h][d], keys[i], digits + (i * n_heads + h) * TRIA_DIGITS + d);
            }
        }
    }
    return digits + 4 * n_heads * TRIA_DIGITS;
}

/* scores[head] of a part with n_heads; `row` is the tile's first. */
INLINE void NAME(score_tile)(const tria_score_span *span, const tria_head_part *part,
                             const unsigned char *row, tria_fetches *fetches, bool in_blocks, int n_heads,
                             vf *scores)
{
    const int64_t stride = span->row_stride;
    const int32_t size = in_blocks ? 34 : TRIA_BYTE_BLOCK, header = in_blocks ? 2 : 0;
    const int32_t end = part->first_block + part->n_blocks;
    const int32_t *digits = part->digits, *starts = part->starts;
    const float *steps = part->steps;
    vi first[4], second[4];
    UNROLL
    for (int h = 0; h < n_heads; h++) {
        scores[h] = vf_set1(0.0f);
    }
    if (part->n_blocks == 0) {
        return;
    }
    load_keys(row + part->first_block * size + header, stride, first);
    for (int32_t b = part->first_block; b < end; b++) {
        const int32_t at = b * size + header;
        const bool is_whole = in_blocks || at + 16 < span->row_bytes; /* else nothing enters from it */
        const int32_t next = b + 1 < end ? at + size : at;
        vi sums[TRIA_PART_HEADS][TRIA_DIGITS];
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            UNROLL
            for (int d = 0; d < TRIA_DIGITS; d++) {
                sums[h][d] = vi_set1(*starts++);
            }
        }
        tria_fetch(span, fetches);
        load_keys(row + (is_whole ? at + 16 : at), stride, second);
        digits = NAME(multiply)(sums, first, digits, n_heads);
        tria_fetch(span, fetches);
        load_keys(row + next, stride, first);
        digits = NAME(multiply)(sums, second, digits, n_heads);
        const vf scale = in_blocks ? load_scales(row + b * size, stride) : vf_set1(1.0f);
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            const vf low = vf_mul(vf_of(sums[h][0]), vf_set1(steps[0]));
            const vf sum = vf_fma(vf_of(vi_join(sums[h][2], sums[h][1])), vf_set1(steps[1]), low);
            scores[h] = in_blocks ? vf_fma(sum, scale, scores[h]) : vf_add(sum, scores[h]);
            steps += 2;
        }
    }
}

INLINE void NAME(span)(const tria_score_span *span, bool in_blocks)
{
    tria_fetches fetches;
    fetches.ahead = span->ahead;
    for (int32_t first = 0; first < span->n_rows; first += ROWS) {
        const unsigned char *row = span->rows + first * span->row_stride;
        tria_open_fetches(span, first, ROWS, &fetches);
        for (const tria_head_part *part = span->parts; part < span->parts + span->n_parts; part++) {
            vf scores[TRIA_PART_HEADS];
            float out[TRIA_PART_HEADS * ROWS];
            if (!part->in_bytes) {
                continue;
            }
            switch (part->n_heads) {
            case 1:
                NAME(score_tile)(span, part, row, &fetches, in_blocks, 1, scores);
                break;
            case 2:
                NAME(score_tile)(span, part, row, &fetches, in_blocks, 2, scores);
                break;
            case 3:
                NAME(score_tile)(span, part, row, &fetches, in_blocks, 3, scores);
                break;
            default:
                NAME(score_tile)(span, part, row, &fetches, in_blocks, 4, scores);
                break;
            }
            for (int h = 0; h < part->n_heads; h++) {
                vf_store(out + h * ROWS, scores[h]);
            }
            while (fetches.n_rows > 0) {
                tria_fetch(span, &fetches);
            }
            tria_store_tile(span, part, first, ROWS, !in_blocks, out);
        }
    }
}

static TARGET void NAME(score_q8_0)(const tria_score_span *span)
{
    NAME(span)(span, true);
}
static TARGET void NAME(score_int8)(const tria_score_span *span)
{
    NAME(span)(span, false);
}

const tria_byte_kernels NAME(tria_byte_kernels) = {ROWS, KEY_BIAS, NAME(score_q8_0), NAME(score_int8)};

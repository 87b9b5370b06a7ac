/*
 * kernels_template.h - the loops, written once over vectors; included by one file per instruction set.
 *
 * The file defines before: NAME(x), TARGET (function attributes), LANES, TILE_ROWS, TILE_VECTORS, the type
 * vf, and
 *   vf_set1 vf_load vf_store vf_add vf_sub vf_mul vf_div vf_fma(a, b, c) = a*b + c, vf_sqrt
 *   vf_max_number(a, b): b where a is NaN; vf_if_finite(x, a, b): a where x is finite, else b
 *   mask_greater(a, b), mask_not_less(a, b): bits of the lanes where a > b, a >= b
 *   mask_of_zeros(pointer): bits of the LANES bytes that are 0
 *   scalar_f16(pointer)
 *   ROWS_OF(at): where the rows of vector v lie when the first lies at `at`, by ROW(at, row)
 *   load_f32 load_f16 load_bf16 load_i8 load_fp8(ROWS_OF(at)): DIMS elements of each row of a vector
 *   spread_scales(scales, v)
 *   vf_deinterleave(a, b, &even, &odd), reduce_tile(acc, n_heads, out): out[head][row] = sums
 *
 * and, where the set can do better than the ones below, pack_scores and pack_rows with PACKS_LANES.
 *
 * A vector holds TILE_ROWS / TILE_VECTORS rows, the fewer dims of each (DIMS), the cheaper the sums over
 * lanes at the end: vector v of a tile is row v, or rows v and v + TILE_VECTORS. A weight, once loaded,
 * serves all rows of a tile. Weights come repeated for each row of a vector, in the order of their use.
 * Tiles are always full: where a span's rows end within one, others may be read that come to nothing. So
 * every row goes through the same instructions.
 */
#define LANE_MASK ((1u << LANES) - 1u)
#define DIMS (LANES * TILE_VECTORS / TILE_ROWS)
/* Frequencies whose magnitudes a tile has room for. */
#define MAX_SAVED 256

#define INLINE static inline __attribute__((always_inline)) TARGET

/* What the heads share while a tile is worked on. */
typedef struct NAME(tile) {
    const unsigned char *row; /* the first */
    int64_t stride;
    int64_t stride3; /* multiples that no addressing mode offers */
    int64_t stride5;
    int64_t stride7;
    vf scales[TRIA_MAX_BLOCKS][TILE_VECTORS];      /* q8_0, by block of 32 dims */
    vf magnitudes[MAX_SAVED / DIMS][TILE_VECTORS]; /* by DIMS frequencies */
} NAME(tile);

/* Where a row of the tile has what its first row has at `at`. */
INLINE const unsigned char *NAME(row)(const NAME(tile) * tile, const unsigned char *at, int row)
{
    switch (row) {
    case 0:
        return at;
    case 3:
        return at + tile->stride3;
    case 5:
        return at + tile->stride5;
    case 6:
        return at + 2 * tile->stride3;
    case 7:
        return at + tile->stride7;
    default:
        return at + row * tile->stride;
    }
}
#define ROW(at, r) NAME(row)(tile, at, r)

/* DIMS elements of vector v from an element on. */
INLINE vf NAME(load)(const tria_score_span *span, const NAME(tile) * tile, const unsigned char *at, int v,
                     int32_t element, int source)
{
    switch (source) {
    case TRIA_SOURCE_F16:
        return load_f16(ROWS_OF(at));
    case TRIA_SOURCE_BF16:
        return load_bf16(ROWS_OF(at));
    case TRIA_SOURCE_Q8_0:
        return vf_mul(load_i8(ROWS_OF(at)), tile->scales[element / 32][v]);
    case TRIA_SOURCE_INT8:
        return load_i8(ROWS_OF(at));
    case TRIA_SOURCE_FP8:
        return load_fp8(ROWS_OF(at), &span->fp8);
    default:
        return load_f32(ROWS_OF(at));
    }
}

/* Where the tile's first row has an element. Hidden from compilers, which would otherwise keep a pointer
 * for every row and run out of registers. */
INLINE const unsigned char *NAME(element_at)(const NAME(tile) * tile, int32_t element, int source)
{
    const uint32_t e = (uint32_t)element;
    const unsigned char *at = tile->row;
    switch (source) {
    case TRIA_SOURCE_F16:
    case TRIA_SOURCE_BF16:
        at += e * (size_t)2;
        break;
    case TRIA_SOURCE_Q8_0:
        at += e / 32 * 34 + 2 + e % 32;
        break;
    case TRIA_SOURCE_INT8:
    case TRIA_SOURCE_FP8:
        at += e;
        break;
    default:
        at += e * (size_t)4;
        break;
    }
    __asm__("" : "+r"(at));
    return at;
}

/* DIMS elements of every row. */
INLINE void NAME(load_all)(const tria_score_span *span, const NAME(tile) * tile, int32_t element,
                           int source, vf *x)
{
    const unsigned char *at = NAME(element_at)(tile, element, source);
    UNROLL
    for (int v = 0; v < TILE_VECTORS; v++) {
        x[v] = NAME(load)(span, tile, at, v, element, source);
    }
}

INLINE void NAME(load_pairs)(const tria_score_span *span, const NAME(tile) * tile, int32_t f, int source,
                             bool interleaved, vf *real, vf *imag)
{
    const int32_t first = span->rotary_begin + (interleaved ? 2 * f : f);
    NAME(load_all)(span, tile, first, source, real);
    NAME(load_all)(span, tile, first + (interleaved ? DIMS : span->n_freq), source, imag);
    UNROLL
    for (int v = 0; v < TILE_VECTORS && interleaved; v++) {
        vf_deinterleave(real[v], imag[v], &real[v], &imag[v]);
    }
}

/* Adds the products of DIMS dims of each row with the weights of every head. */
INLINE void NAME(accumulate)(vf acc[][TILE_VECTORS], const vf *x, const float *weights, int n_heads)
{
    UNROLL
    for (int h = 0; h < n_heads; h++) {
        const vf w = vf_load(weights + h * LANES);
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            acc[h][v] = vf_fma(x[v], w, acc[h][v]);
        }
    }
}

/* Adds the products of n content dims from `begin` on. */
INLINE const float *NAME(content)(const tria_score_span *span, const NAME(tile) * tile,
                                  tria_fetches *fetches, int32_t begin, int32_t n, const float *weights,
                                  int source, int n_heads, vf acc[][TILE_VECTORS])
{
    for (int32_t d = 0; d < n; d += DIMS) {
        vf x[TILE_VECTORS];
        tria_fetch(span, fetches);
        NAME(load_all)(span, tile, begin + d, source, x);
        NAME(accumulate)(acc, x, weights, n_heads);
        weights += n_heads * LANES;
    }
    return weights;
}

/* Adds the products of real and imaginary parts of frequencies [first, end), and works out their
 * magnitudes when asked to. */
INLINE const float *NAME(pairs)(const tria_score_span *span, NAME(tile) * tile, tria_fetches *fetches,
                                int32_t first, int32_t end, const float *weights, int source,
                                bool interleaved, bool magnitudes, int n_heads, vf acc[][TILE_VECTORS])
{
    vf *magnitude = tile->magnitudes[0];
    for (int32_t f = first; f < end; f += DIMS) {
        vf real[TILE_VECTORS], imag[TILE_VECTORS];
        tria_fetch(span, fetches);
        NAME(load_pairs)(span, tile, f, source, interleaved, real, imag);
        if (magnitudes) {
            UNROLL
            for (int v = 0; v < TILE_VECTORS; v++) {
                magnitude[v] = vf_sqrt(vf_fma(real[v], real[v], vf_mul(imag[v], imag[v])));
            }
            magnitude += TILE_VECTORS;
        }
        NAME(accumulate)(acc, real, weights, n_heads);
        NAME(accumulate)(acc, imag, weights + n_heads * LANES, n_heads);
        weights += 2 * n_heads * LANES;
    }
    return weights;
}

/* Adds the products of n magnitudes. */
INLINE const float *NAME(norms)(const NAME(tile) * tile, int32_t n, const float *weights, int n_heads,
                                vf acc[][TILE_VECTORS])
{
    for (int32_t f = 0; f < n; f += DIMS) {
        NAME(accumulate)(acc, tile->magnitudes[(uint32_t)f / DIMS], weights, n_heads);
        weights += n_heads * LANES;
    }
    return weights;
}

/* out[head][row] of a part with n_heads. */
INLINE void NAME(score_tile)(const tria_score_span *span, const tria_head_part *part, NAME(tile) * tile,
                             tria_fetches *fetches, int source, bool interleaved, bool with_mag,
                             int n_heads, float *out)
{
    const float *linear = part->linear, *mag = part->mag;
    /* Magnitudes of later parts are those of the first, if there was room for them. */
    const bool magnitudes = with_mag && (part == span->parts || span->n_freq > MAX_SAVED);
    vf acc[TRIA_PART_HEADS][TILE_VECTORS];
    UNROLL
    for (int h = 0; h < TRIA_PART_HEADS; h++) {
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            acc[h][v] = vf_set1(0.0f);
        }
    }
    for (int32_t f = 0; f < span->n_freq; f += MAX_SAVED) {
        const int32_t end = span->n_freq - f < MAX_SAVED ? span->n_freq : f + MAX_SAVED;
        linear =
            NAME(pairs)(span, tile, fetches, f, end, linear, source, interleaved, magnitudes, n_heads, acc);
        if (with_mag) {
            mag = NAME(norms)(tile, end - f, mag, n_heads, acc);
        }
    }
    if (part->with_content) {
        UNROLL
        for (int run = 0; run < 2; run++) {
            linear = NAME(content)(span, tile, fetches, span->content_begin[run], span->content_count[run],
                                   linear, source, n_heads, acc);
        }
    }
    while (fetches->n_rows > 0) {
        tria_fetch(span, fetches);
    }
    reduce_tile(acc, n_heads, out);
}

/* Looks up the rows and decodes their scales. */
INLINE void NAME(open_tile)(const tria_score_span *span, int32_t first_row, int source, NAME(tile) * tile)
{
    tile->row = span->rows + first_row * span->row_stride;
    const int32_t n_blocks = source == TRIA_SOURCE_Q8_0 ? span->row_bytes / 34 : 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        float scales[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            scales[r] = scalar_f16(ROW(tile->row + b * (int64_t)34, r));
        }
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            tile->scales[b][v] = spread_scales(scales, v);
        }
    }
}

/* A tile at a time, all parts of the heads in turn while its rows are in the first cache. */
INLINE void NAME(span)(const tria_score_span *span, int source, bool interleaved, bool with_mag)
{
    const bool scaled = source == TRIA_SOURCE_INT8 || source == TRIA_SOURCE_FP8;
    NAME(tile) tile;
    tria_fetches fetches;
    tile.stride = span->row_stride;
    tile.stride3 = 3 * tile.stride;
    tile.stride5 = 5 * tile.stride;
    tile.stride7 = 7 * tile.stride;
    fetches.ahead = span->ahead;
    for (int32_t row = 0; row < span->n_rows; row += TILE_ROWS) {
        float out[TRIA_PART_HEADS * TILE_ROWS];
        NAME(open_tile)(span, row, source, &tile);
        tria_open_fetches(span, row, TILE_ROWS, &fetches);
        for (const tria_head_part *part = span->parts; part < span->parts + span->n_parts; part++) {
            if (part->in_bytes) {
                continue;
            }
            switch (part->n_heads) {
            case 1:
                NAME(score_tile)(span, part, &tile, &fetches, source, interleaved, with_mag, 1, out);
                break;
            case 2:
                NAME(score_tile)(span, part, &tile, &fetches, source, interleaved, with_mag, 2, out);
                break;
            case 3:
                NAME(score_tile)(span, part, &tile, &fetches, source, interleaved, with_mag, 3, out);
                break;
            default:
                NAME(score_tile)(span, part, &tile, &fetches, source, interleaved, with_mag, 4, out);
                break;
            }
            tria_store_tile(span, part, row, TILE_ROWS, scaled, out);
        }
    }
}

#define SPAN_KERNEL(label, source, interleaved, with_mag)                                                  \
    static TARGET void NAME(label)(const tria_score_span *span)                                            \
    {                                                                                                      \
        NAME(span)(span, source, interleaved, with_mag);                                                   \
    }
#define SPAN_KERNELS(label, source)                                                                        \
    SPAN_KERNEL(label##_half, source, false, false)                                                        \
    SPAN_KERNEL(label##_half_mag, source, false, true)                                                     \
    SPAN_KERNEL(label##_interleaved, source, true, false)                                                  \
    SPAN_KERNEL(label##_interleaved_mag, source, true, true)
SPAN_KERNELS(score_f32, TRIA_SOURCE_F32)
SPAN_KERNELS(score_f16, TRIA_SOURCE_F16)
SPAN_KERNELS(score_bf16, TRIA_SOURCE_BF16)
SPAN_KERNELS(score_q8_0, TRIA_SOURCE_Q8_0)
SPAN_KERNELS(score_int8, TRIA_SOURCE_INT8)
SPAN_KERNELS(score_fp8, TRIA_SOURCE_FP8)

/* The last LANES or fewer values, filled up with NaN, which sums leave out. */
INLINE vf NAME(load_tail)(const float *x, int32_t n)
{
    float padded[LANES];
    for (int32_t i = 0; i < LANES; i++) {
        padded[i] = i < n ? x[i] : NAN;
    }
    return vf_load(padded);
}

INLINE double NAME(lane_sum)(vf x)
{
    float lanes[LANES];
    double sum = 0.0;
    vf_store(lanes, x);
    for (int i = 0; i < LANES; i++) {
        sum += (double)lanes[i];
    }
    return sum;
}

static TARGET void NAME(sum)(const float *x, int32_t n, double *count, double *sum)
{
    const vf zero = vf_set1(0.0f), one = vf_set1(1.0f);
    vf counts = zero, sums = zero;
    for (int32_t i = 0; i < n; i += LANES) {
        vf v = n - i < LANES ? NAME(load_tail)(x + i, n - i) : vf_load(x + i);
        sums = vf_add(sums, vf_if_finite(v, v, zero));
        counts = vf_add(counts, vf_if_finite(v, one, zero));
    }
    *count = NAME(lane_sum)(counts);
    *sum = NAME(lane_sum)(sums);
}

static TARGET void NAME(deviations)(const float *x, int32_t n, float mean, double *sum, double *squares)
{
    const vf zero = vf_set1(0.0f), centre = vf_set1(mean);
    vf sums = zero, squared = zero;
    for (int32_t i = 0; i < n; i += LANES) {
        vf v = n - i < LANES ? NAME(load_tail)(x + i, n - i) : vf_load(x + i);
        vf d = vf_if_finite(v, vf_sub(v, centre), zero);
        sums = vf_add(sums, d);
        squared = vf_fma(d, d, squared);
    }
    *sum = NAME(lane_sum)(sums);
    *squares = NAME(lane_sum)(squared);
}

/* x - x is 0 for finite x and NaN otherwise: it makes an infinite score NaN whatever its scale. */
INLINE vf NAME(normalised)(vf x, const tria_head_scale *scale)
{
    vf centred = vf_sub(vf_sub(x, vf_set1(scale->mean_high)), vf_set1(scale->mean_low));
    return vf_fma(centred, vf_set1(scale->inverse), vf_sub(x, x));
}

INLINE vf NAME(group_max)(const float *const *scores, const tria_head_scale *scales, int32_t n_heads,
                          int32_t row, int32_t n)
{
    vf best = vf_set1(-INFINITY);
    for (int32_t h = 0; h < n_heads; h++) {
        const float *x = scores[h] + row;
        vf v = n < LANES ? NAME(load_tail)(x, n) : vf_load(x);
        best = vf_max_number(NAME(normalised)(v, &scales[h]), best);
    }
    return vf_if_finite(best, best, vf_set1(NAN));
}

INLINE vf NAME(group_mean)(const float *const *scores, const tria_head_scale *scales, int32_t n_heads,
                           int32_t row, int32_t n)
{
    const vf zero = vf_set1(0.0f), one = vf_set1(1.0f);
    vf sum = zero, count = zero;
    for (int32_t h = 0; h < n_heads; h++) {
        const float *x = scores[h] + row;
        vf v = n < LANES ? NAME(load_tail)(x, n) : vf_load(x);
        sum = vf_add(sum, vf_if_finite(v, NAME(normalised)(v, &scales[h]), zero));
        count = vf_add(count, vf_if_finite(v, one, zero));
    }
    return vf_div(sum, count);
}

static TARGET void NAME(group)(const float *const *scores, const tria_head_scale *scales, int32_t n_heads,
                               int32_t n_rows, bool mean, float *z)
{
    for (int32_t i = 0; i < n_rows; i += LANES) {
        int32_t n = n_rows - i;
        vf v = mean ? NAME(group_mean)(scores, scales, n_heads, i, n)
                    : NAME(group_max)(scores, scales, n_heads, i, n);
        if (n < LANES) {
            float lanes[LANES];
            vf_store(lanes, v);
            memcpy(z + i, lanes, (size_t)n * sizeof(float));
        } else {
            vf_store(z + i, v);
        }
    }
}

#ifndef PACKS_LANES
/* Writes the lanes of the mask side by side, and no others; returns their number. */
INLINE int32_t pack_scores(float *to, vf x, uint32_t mask)
{
    float lanes[LANES];
    int32_t n = 0;
    vf_store(lanes, x);
    for (; mask != 0; mask &= mask - 1) {
        to[n++] = lanes[__builtin_ctz(mask)];
    }
    return n;
}

/* The same of the indices of the rows, `first` in the first lane. */
INLINE int32_t pack_rows(int32_t *to, int32_t first, uint32_t mask)
{
    int32_t n = 0;
    for (; mask != 0; mask &= mask - 1) {
        to[n++] = first + __builtin_ctz(mask);
    }
    return n;
}
#endif

static TARGET int32_t NAME(gather)(const float *scores, const uint8_t *is_protected, int32_t n_rows,
                                   float low, float high, float *taken, int32_t *n_above)
{
    const vf lowest = vf_set1(low), highest = vf_set1(high);
    int32_t n = 0, i = 0;
    *n_above = 0;
    for (; i + LANES <= n_rows; i += LANES) {
        vf x = vf_load(scores + i);
        uint32_t candidates = is_protected != NULL ? mask_of_zeros(is_protected + i) : LANE_MASK;
        uint32_t above = mask_greater(x, highest) & candidates;
        uint32_t inside = mask_not_less(x, lowest) & candidates & ~above;
        *n_above += __builtin_popcount(above);
        n += pack_scores(taken + n, x, inside);
    }
    for (; i < n_rows; i++) {
        bool candidate = is_protected == NULL || is_protected[i] == 0;
        if (candidate && scores[i] > high) {
            (*n_above)++;
        } else if (candidate && scores[i] >= low) {
            taken[n++] = scores[i];
        }
    }
    return n;
}

static TARGET int32_t NAME(emit)(const float *scores, const uint8_t *is_protected, int32_t n_rows,
                                 float last, int32_t room, int32_t *rows)
{
    const vf threshold = vf_set1(last);
    int32_t n = 0, i = 0;
    for (; i + LANES <= n_rows; i += LANES) {
        vf x = vf_load(scores + i);
        uint32_t candidates = is_protected != NULL ? mask_of_zeros(is_protected + i) : LANE_MASK;
        uint32_t above = mask_greater(x, threshold) & candidates;
        uint32_t keep = above | (~candidates & LANE_MASK);
        uint32_t equal = mask_not_less(x, threshold) & candidates & ~above;
        for (; equal != 0 && room > 0; equal &= equal - 1, room--) {
            keep |= equal & ~(equal - 1);
        }
        n += pack_rows(rows + n, i, keep);
    }
    for (; i < n_rows; i++) {
        bool keep = is_protected != NULL && is_protected[i] != 0;
        if (!keep && scores[i] == last && room > 0) {
            room--;
            keep = true;
        }
        if (keep || scores[i] > last) {
            rows[n++] = i;
        }
    }
    return n;
}

#define SPAN_ENTRY(label)                                                                                  \
    {                                                                                                      \
        {NAME(label##_half), NAME(label##_half_mag)},                                                      \
        {                                                                                                  \
            NAME(label##_interleaved), NAME(label##_interleaved_mag)                                       \
        }                                                                                                  \
    }
#define KERNELS_TABLE(symbol, label, needed, byte_kernels)                                                 \
    const tria_cpu_kernels symbol = {                                                                      \
        label,                                                                                             \
        needed,                                                                                            \
        TILE_ROWS,                                                                                         \
        DIMS,                                                                                              \
        LANES / DIMS,                                                                                      \
        {SPAN_ENTRY(score_f32), SPAN_ENTRY(score_f16), SPAN_ENTRY(score_bf16), SPAN_ENTRY(score_q8_0),     \
         SPAN_ENTRY(score_int8), SPAN_ENTRY(score_fp8)},                                                   \
        byte_kernels,                                                                                      \
        NAME(sum),                                                                                         \
        NAME(deviations),                                                                                  \
        NAME(group),                                                                                       \
        NAME(gather),                                                                                      \
        NAME(emit),                                                                                        \
    }
KERNELS_TABLE(NAME(tria_cpu_kernels), KERNELS_NAME, KERNELS_FEATURES, NULL);

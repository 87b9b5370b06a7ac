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
 *   load_f32 load_f16 load_bf16 load_i8 load_fp8(ROWS_AT(offset)): DIMS elements of each row of a vector
 *   spread_scales(scales, v)
 *   vf_deinterleave(a, b, &even, &odd), reduce_tile(acc, n_heads, out): out[head][row] = sums
 *
 * A vector holds TILE_ROWS / TILE_VECTORS rows, the fewer dims of each (DIMS), the cheaper the sums over
 * lanes at the end: vector v of a tile is row v, or rows v and v + TILE_VECTORS. A weight, once loaded,
 * serves all rows of a tile. Weights come repeated for each row of a vector, to be loaded as they are. A
 * tile's last row is repeated when there are too few, so every row goes through the same instructions.
 */
#define TILE_HEADS 4
#define LANE_MASK ((1u << LANES) - 1u)
#define DIMS (LANES * TILE_VECTORS / TILE_ROWS)
#define REPEAT (LANES / DIMS)

#define INLINE static inline __attribute__((always_inline)) TARGET

/* What a tile's rows share while it is worked on. */
typedef struct NAME(tile_rows) {
    const unsigned char *rows[TILE_ROWS];
    vf scales[TRIA_MAX_BLOCKS][TILE_VECTORS]; /* by block of 32 dims (q8_0), or only one (int8, fp8) */
} NAME(tile_rows);

INLINE vf NAME(load)(const tria_score_span *span, const NAME(tile_rows) * tile, int v, int32_t element,
                     int source)
{
    const unsigned char *const *rows = tile->rows;
    switch (source) {
    case TRIA_SOURCE_F16:
        return load_f16(ROWS_AT(element * (int64_t)2));
    case TRIA_SOURCE_BF16:
        return load_bf16(ROWS_AT(element * (int64_t)2));
    case TRIA_SOURCE_Q8_0: {
        uint32_t block = (uint32_t)element / 32, offset = block * 34 + 2 + (uint32_t)element % 32;
        return vf_mul(load_i8(ROWS_AT(offset)), tile->scales[block][v]);
    }
    case TRIA_SOURCE_INT8:
        return vf_mul(load_i8(ROWS_AT(element)), tile->scales[0][v]);
    case TRIA_SOURCE_FP8:
        return vf_mul(load_fp8(ROWS_AT(element), &span->fp8), tile->scales[0][v]);
    default:
        return load_f32(ROWS_AT(element * (int64_t)4));
    }
}

INLINE void NAME(load_pair)(const tria_score_span *span, const NAME(tile_rows) * tile, int v, int32_t f,
                            int source, bool interleaved, vf *real, vf *imag)
{
    int32_t first = span->rotary_begin + (interleaved ? 2 * f : f);
    int32_t second = first + (interleaved ? DIMS : span->n_freq);
    vf a = NAME(load)(span, tile, v, first, source);
    vf b = NAME(load)(span, tile, v, second, source);
    if (interleaved) {
        vf_deinterleave(a, b, real, imag);
    } else {
        *real = a;
        *imag = b;
    }
}

/* The rows of the tile far ahead that have yet to be sent for. */
typedef struct NAME(tile_ahead) {
    const unsigned char *row;
    int32_t n_rows;
} NAME(tile_ahead);

/* One row of it goes to the second cache, which has room for it; by four lines, to spare loops. Called
 * again and again between the products, as the queues have no room for all rows at once. */
INLINE void NAME(fetch)(const tria_score_span *span, NAME(tile_ahead) * ahead)
{
    if (ahead->n_rows > 0) {
        int32_t b = 0;
        do {
            __builtin_prefetch(ahead->row + b, 0, 2);
            __builtin_prefetch(ahead->row + b + 64, 0, 2);
            __builtin_prefetch(ahead->row + b + 128, 0, 2);
            __builtin_prefetch(ahead->row + b + 192, 0, 2);
            b += 256;
        } while (b < span->row_bytes);
        ahead->row += span->row_stride;
        ahead->n_rows--;
    }
}

/* Adds the product of DIMS dims of each row with a head's weights. */
INLINE void NAME(accumulate)(vf *acc, const vf *x, const float *weights)
{
    vf w = vf_load(weights);
    UNROLL
    for (int v = 0; v < TILE_VECTORS; v++) {
        acc[v] = vf_fma(x[v], w, acc[v]);
    }
}

/* Adds the products of n dims from `begin` on. */
INLINE void NAME(run)(const tria_score_span *span, const NAME(tile_rows) * tile, NAME(tile_ahead) * ahead,
                      int32_t begin, int32_t n, const float *lin, int source, int n_heads,
                      vf acc[][TILE_VECTORS])
{
    for (int32_t d = 0; d < n; d += DIMS) {
        vf x[TILE_VECTORS];
        NAME(fetch)(span, ahead);
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            x[v] = NAME(load)(span, tile, v, begin + d, source);
        }
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            NAME(accumulate)(acc[h], x, lin + h * span->lin_stride + d * REPEAT);
        }
    }
}

/* Adds the products of real and imaginary parts and, with_mag, of their magnitudes. */
INLINE void NAME(pairs)(const tria_score_span *span, const NAME(tile_rows) * tile, NAME(tile_ahead) * ahead,
                        const float *lin, const float *mag, int source, bool interleaved, bool with_mag,
                        int n_heads, vf acc[][TILE_VECTORS])
{
    vf magnitude[TILE_VECTORS] = {vf_set1(0.0f)};
    for (int32_t f = 0; f < span->n_freq; f += DIMS) {
        vf real[TILE_VECTORS], imag[TILE_VECTORS];
        NAME(fetch)(span, ahead);
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            NAME(load_pair)(span, tile, v, f, source, interleaved, &real[v], &imag[v]);
        }
        /* Those of the round before, as square roots take long. */
        if (with_mag && f > 0) {
            UNROLL
            for (int h = 0; h < n_heads; h++) {
                NAME(accumulate)(acc[h], magnitude, mag + h * span->mag_stride + (f - DIMS) * REPEAT);
            }
        }
        UNROLL
        for (int v = 0; v < TILE_VECTORS && with_mag; v++) {
            magnitude[v] = vf_sqrt(vf_fma(real[v], real[v], vf_mul(imag[v], imag[v])));
        }
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            NAME(accumulate)(acc[h], real, lin + h * span->lin_stride + f * REPEAT);
        }
        UNROLL
        for (int h = 0; h < n_heads; h++) {
            NAME(accumulate)(acc[h], imag, lin + h * span->lin_stride + (span->n_freq + f) * REPEAT);
        }
    }
    UNROLL
    for (int h = 0; h < n_heads && with_mag; h++) {
        NAME(accumulate)(acc[h], magnitude, mag + h * span->mag_stride + (span->n_freq - DIMS) * REPEAT);
    }
}

/* out[head][row] for n_heads <= TILE_HEADS. */
INLINE void NAME(tile)(const tria_score_span *span, const NAME(tile_rows) * tile, int32_t first_head,
                       int source, bool interleaved, bool with_mag, int n_heads, float *out)
{
    const float *lin = span->lin + first_head * span->lin_stride;
    const float *mag = with_mag ? span->mag + first_head * span->mag_stride : NULL;
    /* Once for all heads, and not for rows that were decoded. */
    NAME(tile_ahead)
    ahead = {tile->rows[0] + span->prefetch, first_head == 0 && span->row_bytes > 0 ? TILE_ROWS : 0};
    vf acc[TILE_HEADS][TILE_VECTORS];
    UNROLL
    for (int h = 0; h < TILE_HEADS; h++) {
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            acc[h][v] = vf_set1(0.0f);
        }
    }
    if (interleaved || with_mag) {
        NAME(pairs)(span, tile, &ahead, lin, mag, source, interleaved, with_mag, n_heads, acc);
    } else {
        NAME(run)(span, tile, &ahead, span->rotary_begin, 2 * span->n_freq, lin, source, n_heads, acc);
    }
    lin += 2 * (int64_t)span->n_freq * REPEAT;
    UNROLL
    for (int run = 0; run < 2; run++) {
        const int32_t n = span->content_count[run];
        NAME(run)(span, tile, &ahead, span->content_begin[run], n, lin, source, n_heads, acc);
        lin += (int64_t)n * REPEAT;
    }
    while (ahead.n_rows > 0) {
        NAME(fetch)(span, &ahead);
    }
    reduce_tile(acc, n_heads, out);
}

/* Looks up the rows and decodes their scales. */
INLINE void NAME(open_tile)(const tria_score_span *span, int32_t first_row, int32_t n_rows, int source,
                            NAME(tile_rows) * tile)
{
    const unsigned char *row = span->rows + first_row * span->row_stride;
    const unsigned char *scale = span->scales + first_row * span->scale_stride;
    float scales[TILE_ROWS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        tile->rows[r] = row;
        row += r + 1 < n_rows ? span->row_stride : 0;
        if (source == TRIA_SOURCE_INT8 || source == TRIA_SOURCE_FP8) {
            memcpy(&scales[r], scale, sizeof(float));
            scales[r] *= source == TRIA_SOURCE_FP8 ? span->fp8.factor : 1.0f;
            scale += r + 1 < n_rows ? span->scale_stride : 0;
        }
    }
    int32_t n_blocks = source == TRIA_SOURCE_Q8_0                                ? span->row_bytes / 34
                       : source == TRIA_SOURCE_INT8 || source == TRIA_SOURCE_FP8 ? 1
                                                                                 : 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int r = 0; r < TILE_ROWS && source == TRIA_SOURCE_Q8_0; r++) {
            scales[r] = scalar_f16(tile->rows[r] + b * (int64_t)34);
        }
        UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            tile->scales[b][v] = spread_scales(scales, v);
        }
    }
}

/* Adds the terms and writes n_rows scores of every head; inlined, so that whole tiles take no loops. */
INLINE void NAME(store_tile)(const tria_score_span *span, int32_t first_row, int32_t first_head,
                             int n_heads, int32_t n_rows, float *out)
{
    const int64_t index = (int64_t)span->first + first_row;
    for (int h = 0; h < n_heads; h++) {
        float *scores = out + h * TILE_ROWS;
        if (span->terms != NULL) {
            float terms[TILE_ROWS];
            memcpy(terms, span->terms[first_head + h] + index, (size_t)n_rows * sizeof(float));
            for (int r = 0; r < n_rows; r++) {
                scores[r] += terms[r];
            }
        }
        memcpy(span->out[first_head + h] + index, scores, (size_t)n_rows * sizeof(float));
    }
}

/* Rows [first, end) for a few heads. */
INLINE void NAME(rows)(const tria_score_span *span, int32_t first, int32_t end, int32_t first_head,
                       int n_heads, int source, bool interleaved, bool with_mag)
{
    for (int32_t row = first; row < end; row += TILE_ROWS) {
        NAME(tile_rows) tile;
        float out[TILE_HEADS * TILE_ROWS];
        const int32_t n_rows = end - row < TILE_ROWS ? end - row : TILE_ROWS;
        NAME(open_tile)(span, row, n_rows, source, &tile);
        NAME(tile)(span, &tile, first_head, source, interleaved, with_mag, n_heads, out);
        if (n_rows == TILE_ROWS) {
            NAME(store_tile)(span, row, first_head, n_heads, TILE_ROWS, out);
        } else {
            NAME(store_tile)(span, row, first_head, n_heads, n_rows, out);
        }
    }
}

/* TILE_HEADS or fewer heads at a time; when they are more, blocks of rows stay in the first cache while the
 * heads go by. */
INLINE void NAME(span)(const tria_score_span *span, int source, bool interleaved, bool with_mag)
{
    const int32_t n_parts = (span->n_heads + TILE_HEADS - 1) / TILE_HEADS;
    const int32_t n_block = n_parts > 1 ? TRIA_ROW_BLOCK : span->n_rows;
    for (int32_t block = 0; block < span->n_rows; block += n_block) {
        const int32_t end = span->n_rows - block < n_block ? span->n_rows : block + n_block;
        for (int32_t part = 0; part < n_parts; part++) {
            const int32_t head = (int32_t)((int64_t)span->n_heads * part / n_parts);
            const int32_t next = (int32_t)((int64_t)span->n_heads * (part + 1) / n_parts);
            switch (next - head) {
            case 1:
                NAME(rows)(span, block, end, head, 1, source, interleaved, with_mag);
                break;
            case 2:
                NAME(rows)(span, block, end, head, 2, source, interleaved, with_mag);
                break;
            case 3:
                NAME(rows)(span, block, end, head, 3, source, interleaved, with_mag);
                break;
            default:
                NAME(rows)(span, block, end, head, 4, source, interleaved, with_mag);
                break;
            }
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

static TARGET int32_t NAME(gather)(const float *scores, const uint8_t *is_protected, int32_t n_rows,
                                   float low, float high, uint32_t *keys, int32_t *n_above)
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
        for (; inside != 0; inside &= inside - 1) {
            keys[n++] = tria_key_of(scores[i + __builtin_ctz(inside)]);
        }
    }
    for (; i < n_rows; i++) {
        bool candidate = is_protected == NULL || is_protected[i] == 0;
        if (candidate && scores[i] > high) {
            (*n_above)++;
        } else if (candidate && scores[i] >= low) {
            keys[n++] = tria_key_of(scores[i]);
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
        for (; keep != 0; keep &= keep - 1) {
            rows[n++] = i + __builtin_ctz(keep);
        }
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
const tria_cpu_kernels NAME(tria_cpu_kernels) = {
    KERNELS_NAME,
    KERNELS_FEATURES,
    DIMS,
    REPEAT,
    {SPAN_ENTRY(score_f32), SPAN_ENTRY(score_f16), SPAN_ENTRY(score_bf16), SPAN_ENTRY(score_q8_0),
     SPAN_ENTRY(score_int8), SPAN_ENTRY(score_fp8)},
    NAME(sum),
    NAME(deviations),
    NAME(group),
    NAME(gather),
    NAME(emit),
};

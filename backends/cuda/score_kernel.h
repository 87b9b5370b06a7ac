/*
 * score_kernel.h - raw scores and their statistics in one pass over K (specification, section 2).
 *
 * A block brings a tile of rows to shared memory, 16 bytes per load and several in flight, whatever the
 * layout; then one thread scores one row for the query heads of a chunk. A thread adds up its row in an
 * order that depends on the geometry alone, so equal rows tie exactly wherever they lie. Keys that need
 * work before they can be scored (before RoPE, or Hadamard-transformed) are decoded to float in shared
 * memory first.
 */
#ifndef TRIA_CUDA_SCORE_KERNEL_H
#define TRIA_CUDA_SCORE_KERNEL_H

#include "args.h"
#include "decode.h"
#include "port.h"
#include "rows.h"

namespace tria_gpu
{
struct ScoreArgs {
    Call call;
    const int32_t *slots; /* KV slots of this launch, all of one dtype */
    uint32_t pitch;       /* bytes between rows in shared memory */
    uint32_t tile_offset; /* bytes of shared memory before them */
    int32_t lanes;        /* chunks scored at a time: lanes * tile_rows threads */
};

/* Shared memory: where rows lie, their scales, scores on their way to the sums, and the rows. */
struct ScoreShared {
    sptr<int64_t> offsets; /* [tile_rows] */
    sptr<float> scales;    /* [tile_rows] */
    sptr<float> scores;    /* [lanes * columns][tile_rows] */
    sptr<unsigned char> tile;
};
inline uint32_t score_shared_before_tile(int tile_rows, int lanes)
{
    return ((uint32_t)tile_rows * 12 + (uint32_t)(lanes * columns * tile_rows) * 4 + 15) / 16 * 16;
}

PORT_DEVICE ScoreShared carve(const ScoreArgs &args)
{
    const uint32_t rows = (uint32_t)args.call.plan.tile_rows;
    ScoreShared shared;
    shared.offsets = port_shared<int64_t>(0);
    shared.scales = port_shared<float>(8 * rows);
    shared.scores = port_shared<float>(12 * rows);
    shared.tile = port_shared<unsigned char>(args.tile_offset);
    return shared;
}

/* What a block scores; device memory, read where it is needed so that it does not occupy registers. */
struct Source {
    const Event *event;
    const Layer *layer;
    const EventLayer *where;
    const Kv *kv;
    int slot;
};

PORT_DEVICE Source source_of(const ScoreArgs &args)
{
    Source source;
    source.event = args.call.events + port_block_z();
    source.slot = port_global(args.slots)[port_block_y()];
    source.kv = args.call.plan.kvs + source.slot;
    const int layer = *port_global(&source.kv->layer);
    source.layer = args.call.plan.layers + layer;
    source.where = *port_global(&source.event->layers) + layer;
    return source;
}

/* Words of a tile in the order in which consecutive threads load them. */
struct TileCursor {
    int major;
    int minor;
    PORT_DEVICE TileCursor(int index, int n_minor) : major(index / n_minor), minor(index % n_minor)
    {
    }
    PORT_DEVICE void advance(const TileCursor &stride, int n_minor)
    {
        major += stride.major;
        minor += stride.minor;
        if (minor >= n_minor) {
            minor -= n_minor;
            major++;
        }
    }
};

template <class V>
PORT_DEVICE void stage_words(const ScoreShared &shared, uint32_t pitch, gptr<const unsigned char> base,
                             const Tensor &k, int n_rows)
{
    constexpr int in_flight = 4;
    const int words_per_run = k.run_bytes / (int)sizeof(V);
    const int n_words = words_per_run * k.n_runs;
    const bool rows_first = k.tokens_side_by_side != 0;
    const int n_minor = rows_first ? n_rows : n_words;
    const int n_major = rows_first ? n_words : n_rows;
    const TileCursor stride(port_threads(), n_minor);
    TileCursor at(port_thread(), n_minor);
    while (at.major < n_major) {
        V words[in_flight];
        int targets[in_flight];
        PORT_UNROLL
        for (int u = 0; u < in_flight; u++) {
            targets[u] = -1;
            if (at.major < n_major) {
                const int row = rows_first ? at.minor : at.major;
                const int word = rows_first ? at.major : at.minor;
                int64_t offset = shared.offsets[row] + (int64_t)word * (int)sizeof(V);
                if (k.n_runs > 1) {
                    offset = shared.offsets[row] + word / words_per_run * k.run_stride +
                             (int64_t)(word % words_per_run) * (int)sizeof(V);
                }
                words[u] = port_load<V>(base, offset);
                targets[u] = row * (int)pitch + word * (int)sizeof(V);
            }
            at.advance(stride, n_minor);
        }
        PORT_UNROLL
        for (int u = 0; u < in_flight; u++) {
            if (targets[u] >= 0) {
                port_store<V>(shared.tile, targets[u], words[u]);
            }
        }
    }
}

/* Bytes of the tile's rows as they are. */
PORT_DEVICE void stage_tile(const Source &source, const ScoreShared &shared, uint32_t pitch, int n_rows)
{
    const Tensor k = *port_global(&source.layer->scored);
    const EventLayer where = *port_global(source.where);
    gptr<const unsigned char> base = port_global((const unsigned char *)where.k);
    switch (where.k_width) {
    case 16:
        stage_words<Words<4>>(shared, pitch, base, k, n_rows);
        break;
    case 8:
        stage_words<Words<2>>(shared, pitch, base, k, n_rows);
        break;
    case 4:
        stage_words<uint32_t>(shared, pitch, base, k, n_rows);
        break;
    case 2:
        stage_words<uint16_t>(shared, pitch, base, k, n_rows);
        break;
    default:
        stage_words<uint8_t>(shared, pitch, base, k, n_rows);
        break;
    }
}

/* What a row's scores are made of, for the columns of a chunk. */
struct Sums {
    float linear[columns];
    float norm[columns];
    float content[columns];
    float nonzero;
};

/* One rotary pair: its linear terms, and with WITH_NORM its magnitude's. */
template <bool WITH_NORM>
PORT_DEVICE void add_pair(float re, float im, int f, gptr<const unsigned char> lin,
                          gptr<const unsigned char> mag, Sums *sums)
{
    const Float4 w_re = port_load<Float4>(lin, (int64_t)f * 32);
    const Float4 w_im = port_load<Float4>(lin, (int64_t)f * 32 + 16);
    PORT_UNROLL
    for (int c = 0; c < columns; c++) {
        sums->linear[c] = port_fma(w_re.v[c], re, sums->linear[c]);
        sums->linear[c] = port_fma(w_im.v[c], im, sums->linear[c]);
    }
    if (WITH_NORM) {
        const float size = port_sqrt(port_fma(re, re, im * im));
        const Float4 w = port_load<Float4>(mag, (int64_t)f * 16);
        sums->nonzero = size == 0.0f ? sums->nonzero : 1.0f;
        PORT_UNROLL
        for (int c = 0; c < columns; c++) {
            sums->norm[c] = port_fma(w.v[c], size, sums->norm[c]);
        }
    }
}

/* One pass over the rotary pairs. */
template <class D, bool WITH_NORM, class P>
PORT_DEVICE void add_pairs(P row, const Shape &shape, gptr<const unsigned char> lin,
                           gptr<const unsigned char> mag, Sums *sums)
{
    const int first = shape.rotary_offset;
    PORT_UNROLL
    for (int c = 0; c < columns; c++) {
        sums->linear[c] = 0.0f;
    }
    if (!shape.whole_steps) {
        PORT_ROLLED
        for (int f = 0; f < shape.n_freq; f++) {
            const float re = D::load1(row, first + (shape.half ? f : 2 * f));
            const float im = D::load1(row, first + (shape.half ? shape.n_freq + f : 2 * f + 1));
            add_pair<WITH_NORM>(re, im, f, lin, mag, sums);
        }
        return;
    }
    const int second = shape.half ? shape.n_freq : step;
    const int stride = shape.half ? step : 2 * step;
    PORT_ROLLED
    for (int f0 = 0, d = first; f0 < shape.n_freq; f0 += step, d += stride) {
        float x[2 * step]; /* half: real parts, imaginary parts; interleaved: pairs */
        D::template load<step>(row, d, x);
        D::template load<step>(row, d + second, x + step);
        PORT_UNROLL
        for (int i = 0; i < step; i++) {
            add_pair<WITH_NORM>(shape.half ? x[i] : x[2 * i], shape.half ? x[step + i] : x[2 * i + 1],
                                f0 + i, lin, mag, sums);
        }
    }
}

PORT_DEVICE void add_content(float x, int index, gptr<const unsigned char> weights, Sums *sums)
{
    const Float4 w = port_load<Float4>(weights, (int64_t)index * 16);
    PORT_UNROLL
    for (int c = 0; c < columns; c++) {
        sums->content[c] = port_fma(w.v[c], x, sums->content[c]);
    }
}

/* Content dimensions [begin, end), the first of which has index `index` among them. */
template <class D, class P>
PORT_DEVICE void add_contents(P row, gptr<const unsigned char> weights, int begin, int end, int index,
                              Sums *sums)
{
    int d = begin;
    PORT_ROLLED
    while (d < end) {
        if (d % step == 0 && end - d >= step) {
            float x[step];
            D::template load<step>(row, d, x);
            PORT_UNROLL
            for (int i = 0; i < step; i++) {
                add_content(x[i], index + i, weights, sums);
            }
            d += step;
            index += step;
        } else {
            add_content(D::load1(row, d), index, weights, sums);
            d++;
            index++;
        }
    }
}

template <class D, class P> PORT_DEVICE bool any_nonzero(P row, const Shape &shape)
{
    PORT_ROLLED
    for (int d = 0; d < shape.head_dim; d++) {
        if (D::load1(row, d) != 0.0f) {
            return true;
        }
    }
    return false;
}

/* The scores of one row for the columns of a chunk; whether the row holds anything but zeros. */
template <class D, class P>
PORT_DEVICE bool score_row(P row, const Plan &plan, const Source &source, const Chunk *chunk,
                           sptr<const float> row_scale, float *scores)
{
    const Shape shape = *port_global(&source.layer->shape);
    float *all_lin = *port_global(&source.event->lin);
    gptr<const unsigned char> lin =
        port_global((const unsigned char *)all_lin) + 4 * *port_global(&chunk->lin);
    gptr<const unsigned char> mag =
        port_global((const unsigned char *)plan.mag) + 4 * *port_global(&chunk->mag);
    Sums sums = {};
    add_pairs<D, true>(row, shape, lin, mag, &sums);
    if (plan.offsets_max) {
        float best = sums.linear[0];
        PORT_ROLLED
        for (int pass = 0; pass < plan.n_passes; pass++) {
            if (pass > 0) {
                add_pairs<D, false>(row, shape, lin + (int64_t)pass * shape.n_freq * 32, mag, &sums);
            }
            PORT_UNROLL
            for (int c = 0; c < columns; c++) {
                best = sums.linear[c] > best ? sums.linear[c] : best;
            }
        }
        sums.linear[0] = best;
    }
    const int64_t content = *port_global(&chunk->content);
    if (content >= 0) {
        gptr<const unsigned char> weights = port_global((const unsigned char *)plan.content) + 4 * content;
        add_contents<D>(row, weights, 0, shape.rotary_offset, 0, &sums);
        add_contents<D>(row, weights, shape.rotary_offset + 2 * shape.n_freq, shape.head_dim,
                        shape.rotary_offset, &sums);
    }
    const float scale = row_scale[0];
    PORT_UNROLL
    for (int c = 0; c < columns; c++) {
        const float linear =
            port_global(chunk->has_content)[c] ? sums.linear[c] + sums.content[c] : sums.linear[c];
        scores[c] = port_fma(scale, linear, (scale < 0.0f ? -scale : scale) * sums.norm[c]);
    }
    /* magnitudes may have underflowed, and content dimensions have none */
    return scale != 0.0f && (sums.nonzero != 0.0f || any_nonzero<D>(row, shape));
}

/* Sums of a tile's scores for the chunks from `chunk` on that the block has just scored. `parts`
 * neighbouring threads add up a column, in an order that depends on nothing but the rows' places in the
 * tile. */
PORT_DEVICE void sum_scores(const Plan &plan, const Source &source, const ScoreShared &shared, int chunk,
                            int n_chunks, int tile, int n_rows)
{
    const Event event = *port_global(source.event);
    const int n_parts = n_chunks * columns * parts;
    const bool candidates_only = plan.normalize_over == TRIA_NORMALIZE_CANDIDATES;
    gptr<const uint32_t> protect =
        port_global((const uint32_t *)event.protect) + (int64_t)source.slot * plan.row_words;
    /* whole warps, though the last one may have nothing to add */
    for (int i = port_thread(); i / port_lanes * port_lanes < n_parts; i += port_threads()) {
        const int column = i / parts;
        Partial sum = {0.0, 0.0, 0, 0};
        for (int r = i % parts; r < n_rows && i < n_parts; r += parts) {
            const float x = shared.scores[column * plan.tile_rows + r];
            if (is_finite(x)) {
                const int row = tile * plan.tile_rows + r;
                sum.n_finite++;
                if (!candidates_only || (protect[row / 32] >> (row % 32) & 1) == 0) {
                    sum.sum += (double)x;
                    sum.squares += (double)x * (double)x;
                    sum.count++;
                }
            }
        }
        PORT_UNROLL
        for (int delta = parts / 2; delta > 0; delta /= 2) {
            sum.sum += port_shuffle_down(sum.sum, delta);
            sum.squares += port_shuffle_down(sum.squares, delta);
            sum.count += port_shuffle_down(sum.count, delta);
            sum.n_finite += port_shuffle_down(sum.n_finite, delta);
        }
        if (i < n_parts && i % parts == 0) {
            const int q = port_global((plan.chunks + chunk + column / columns)->query)[column % columns];
            if (q >= 0) {
                port_global(event.partials)[(int64_t)q * plan.n_tiles + tile] = sum;
            }
        }
    }
}

/* Scores a tile whose rows lie in shared memory, decoded by D; whether they hold anything but zeros. */
template <class D>
PORT_DEVICE bool score_tile(const ScoreArgs &args, const Source &source, const ScoreShared &shared,
                            int tile, int n_rows)
{
    const Plan &plan = args.call.plan;
    const int r = port_thread() % plan.tile_rows;
    const int lane = port_thread() / plan.tile_rows;
    const int row = tile * plan.tile_rows + r;
    const Kv kv = *port_global(source.kv);
    bool nonzero = false;
    for (int first = 0; first < kv.n_chunks; first += args.lanes) {
        const int n = kv.n_chunks - first < args.lanes ? kv.n_chunks - first : args.lanes;
        if (lane < n && r < n_rows) {
            const Chunk *chunk = plan.chunks + kv.first_chunk + first + lane;
            float scores[columns];
            nonzero |= score_row<D>(shared.tile + (int64_t)r * args.pitch, plan, source, chunk,
                                    shared.scales + r, scores);
            const Event event = *port_global(source.event);
            PORT_UNROLL
            for (int c = 0; c < columns; c++) {
                const int q = port_global(chunk->query)[c];
                if (q >= 0) {
                    if (!is_finite(scores[c])) {
                        scores[c] = not_a_number();
                        if (kv.set >= 0) {
                            port_atomic_or(&port_global(event.bad_rows)[row / 32], 1u << (row % 32));
                        }
                    }
                    port_global(event.raw)[(int64_t)q * plan.max_rows + row] = scores[c];
                }
                shared.scores[(lane * columns + c) * plan.tile_rows + r] = scores[c];
            }
        }
        port_barrier();
        sum_scores(plan, source, shared, kv.first_chunk + first, n, tile, n_rows);
        port_barrier();
    }
    return nonzero;
}

/* Addresses and scales of a tile's rows. */
PORT_DEVICE void locate_tile(const Plan &plan, const Source &source, const ScoreShared &shared, int tile,
                             int n_rows)
{
    const Tensor k = *port_global(&source.layer->k);
    const EventLayer where = *port_global(source.where);
    const int head = *port_global(&source.kv->head);
    for (int r = port_thread(); r < n_rows; r += port_threads()) {
        const RowPlace place = place_of(where.page_table, plan.tokens_per_page, tile * plan.tile_rows + r);
        shared.offsets[r] = row_offset(k, place, head);
        shared.scales[r] = row_scale(k, where.k_scales, place, head);
    }
}

/* Bit 0: the slot has been scored; bit 1: it holds something but zeros. */
PORT_DEVICE void report_keys(const Source &source, bool nonzero)
{
    const uint64_t votes = port_ballot(nonzero);
    if (port_thread() % port_lanes == 0) {
        const Event event = *port_global(source.event);
        port_atomic_or(&port_global(event.keys_seen)[source.slot], votes != 0 ? 3 : 1);
    }
}

PORT_DEVICE int rows_of_source(const Plan &plan, const Source &source)
{
    const Event event = *port_global(source.event);
    return row_count(plan, event, source.slot);
}

/* Blocks: (tiles, slots, events). */
template <class D> PORT_KERNEL_OF(score_threads, score_blocks) score_kernel(ScoreArgs args)
{
    const Plan &plan = args.call.plan;
    const Source source = source_of(args);
    const ScoreShared shared = carve(args);
    const int n = rows_of_source(plan, source);
    bool nonzero = false;
    for (int tile = port_block_x(); tile * plan.tile_rows < n; tile += port_grid_x()) {
        const int left = n - tile * plan.tile_rows;
        const int n_rows = left < plan.tile_rows ? left : plan.tile_rows;
        locate_tile(plan, source, shared, tile, n_rows);
        port_barrier();
        stage_tile(source, shared, args.pitch, n_rows);
        port_barrier();
        nonzero |= score_tile<D>(args, source, shared, tile, n_rows);
    }
    report_keys(source, nonzero);
}

/* ---- keys that are not yet rotated keys ---- */

/* Decodes a tile to float, straight from device memory. */
template <class D>
PORT_DEVICE void decode_tile(const Source &source, const ScoreShared &shared, uint32_t pitch, int n_rows)
{
    const Layer layer = *port_global(source.layer);
    const EventLayer where = *port_global(source.where);
    gptr<const unsigned char> base = port_global((const unsigned char *)where.k);
    const int dim = layer.dim;
    const bool wide = layer.k.n_runs == 1 && dim % 8 == 0 &&
                      (layer.element_bytes == 0 || where.k_width >= (layer.element_bytes >= 2 ? 16 : 8));
    const int per_row = wide ? dim / 8 : dim;
    for (int i = port_thread(); i < n_rows * per_row; i += port_threads()) {
        const int r = i / per_row;
        const int d = i % per_row * (wide ? 8 : 1);
        sptr<unsigned char> target = shared.tile + (int64_t)r * pitch + 4 * (int64_t)d;
        gptr<const unsigned char> row = base + shared.offsets[r];
        if (wide) {
            float x[8];
            D::template load<8>(row, d, x);
            PORT_UNROLL
            for (int k = 0; k < 8; k++) {
                port_store<float>(target, 4 * k, x[k]);
            }
        } else if (layer.element_bytes == 0) {
            port_store<float>(target, 0, D::load1(row, d));
        } else {
            const int64_t at = d / layer.pack * layer.dim_stride + d % layer.pack * layer.element_bytes;
            port_store<float>(target, 0, D::load1(row + at, 0));
        }
    }
}

/* Undoes the orthonormal Sylvester-Hadamard transform (its own inverse), then the signs. */
PORT_DEVICE void undo_hadamard(const Plan &plan, const ScoreShared &shared, uint32_t pitch, int dim,
                               int n_rows)
{
    const int size = plan.hadamard_size != 0 ? plan.hadamard_size : dim;
    const int half = dim / 2;
    for (int length = 1; length < size; length *= 2) {
        for (int i = port_thread(); i < n_rows * half; i += port_threads()) {
            const int pair = i % half;
            const int d = pair / length * 2 * length + pair % length;
            sptr<unsigned char> at = shared.tile + (int64_t)(i / half) * pitch + 4 * (int64_t)d;
            const float a = port_load<float>(at, 0);
            const float b = port_load<float>(at, 4 * (int64_t)length);
            port_store<float>(at, 0, a + b);
            port_store<float>(at, 4 * (int64_t)length, a - b);
        }
        port_barrier();
    }
    const float factor = 1.0f / sqrtf((float)size);
    for (int i = port_thread(); i < n_rows * dim; i += port_threads()) {
        const int d = i % dim;
        const float sign = plan.signs != nullptr ? port_global(plan.signs)[d] : 1.0f;
        sptr<unsigned char> at = shared.tile + (int64_t)(i / dim) * pitch + 4 * (int64_t)d;
        port_store<float>(at, 0, port_load<float>(at, 0) * (factor * sign));
    }
}

/* Rotates raw keys to their positions: e^{ipw} as a product of three tabulated factors, one per digit of p.
 */
PORT_DEVICE void rotate_tile(const Plan &plan, const Source &source, const ScoreShared &shared,
                             uint32_t pitch, int tile, int n_rows)
{
    const Event event = *port_global(source.event);
    const Kv kv = *port_global(source.kv);
    const Shape shape = *port_global(&source.layer->shape);
    gptr<const float> tables = port_global(plan.rotations) + *port_global(&source.layer->rotations);
    const int n_freq = shape.n_freq;
    for (int i = port_thread(); i < n_rows * n_freq; i += port_threads()) {
        const int f = i % n_freq;
        const int p = position_of(event, kv, tile * plan.tile_rows + i / n_freq);
        float c = 1.0f;
        float s = 0.0f;
        PORT_UNROLL
        for (int digit = 0; digit < 3; digit++) {
            const int64_t entry =
                (int64_t)digit * TRIA_ROTATION_DIGITS + (p >> (11 * digit) & (TRIA_ROTATION_DIGITS - 1));
            const float re = tables[2 * (entry * n_freq + f)];
            const float im = tables[2 * (entry * n_freq + f) + 1];
            const float old = c;
            c = port_fma(c, re, -(s * im));
            s = port_fma(old, im, s * re);
        }
        sptr<unsigned char> row = shared.tile + (int64_t)(i / n_freq) * pitch;
        const int64_t at = 4 * (int64_t)(shape.rotary_offset + (shape.half ? f : 2 * f));
        const int64_t imag = 4 * (int64_t)(shape.half ? n_freq : 1);
        const float x = port_load<float>(row, at);
        const float y = port_load<float>(row, at + imag);
        port_store<float>(row, at, port_fma(x, c, -(y * s)));
        port_store<float>(row, at + imag, port_fma(x, s, y * c));
    }
}

/* Blocks: (tiles, slots, events). */
PORT_KERNEL_OF(score_threads, score_blocks) score_prepared_kernel(ScoreArgs args)
{
    const Plan &plan = args.call.plan;
    const Source source = source_of(args);
    const ScoreShared shared = carve(args);
    const int n = rows_of_source(plan, source);
    const int dtype = *port_global(&source.layer->k.dtype);
    const int dim = *port_global(&source.layer->dim);
    bool nonzero = false;
    for (int tile = port_block_x(); tile * plan.tile_rows < n; tile += port_grid_x()) {
        const int left = n - tile * plan.tile_rows;
        const int n_rows = left < plan.tile_rows ? left : plan.tile_rows;
        locate_tile(plan, source, shared, tile, n_rows);
        port_barrier();
#define TRIA_DECODE_TILE(value, decode)                                                                    \
    case value:                                                                                            \
        decode_tile<decode>(source, shared, args.pitch, n_rows);                                           \
        break;
        TRIA_FOR_DTYPE(dtype, TRIA_DECODE_TILE)
#undef TRIA_DECODE_TILE
        port_barrier();
        if (plan.k_state == TRIA_K_HADAMARD) {
            undo_hadamard(plan, shared, args.pitch, dim, n_rows);
        } else {
            rotate_tile(plan, source, shared, args.pitch, tile, n_rows);
        }
        port_barrier();
        nonzero |= score_tile<DecodeF32>(args, source, shared, tile, n_rows);
    }
    report_keys(source, nonzero);
}
} // namespace tria_gpu

#endif

/*
 * compact_kernel.h - repacking in place (specification, section 5).
 *
 * A keep set ascends, so under `stable` row i receives a row that lies at or behind it: one block moves a
 * slot's rows front to back, a batch at a time, and reads all of a batch before it writes any of it. Blocks
 * that share a slot take different words of every row. Under `fill_holes` sources lie at or beyond the new
 * length and destinations below it, so nothing needs an order.
 */
#ifndef TRIA_CUDA_COMPACT_KERNEL_H
#define TRIA_CUDA_COMPACT_KERNEL_H

#include "args.h"
#include "decode.h"
#include "port.h"
#include "rows.h"

namespace tria_gpu
{
struct CompactArgs {
    Call call;
    int32_t n_pieces;
};

/* One keep set as applied to one slot. */
struct Gather {
    gptr<const int32_t> keep;
    int n;     /* rows before */
    int count; /* and after */
    int stay;  /* keep[0 .. stay) do not move */
    bool fill_holes;

    PORT_DEVICE int n_moves() const
    {
        return count - stay;
    }
    PORT_DEVICE int source(int move) const
    {
        return keep[stay + move];
    }
    /* fill_holes: the move-th row that is not kept; keep[j] - j rows before keep[j] are not. */
    PORT_DEVICE int target(int move) const
    {
        if (!fill_holes) {
            return stay + move;
        }
        int low = 0;
        int high = stay;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (keep[middle] - middle <= move) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return move + low;
    }
};

PORT_DEVICE Gather gather_of(const Plan &plan, const Event &event, const Kv &kv, int slot)
{
    Gather gather;
    gather.keep = port_global((const int32_t *)event.keep_rows);
    gather.n = row_count(plan, event, slot);
    gather.count = gather.n;
    gather.stay = gather.n;
    gather.fill_holes = plan.fill_holes != 0;
    if (kv.set < 0) {
        return gather;
    }
    const int count = port_global((const int32_t *)event.keep_counts)[kv.set];
    gather.keep = gather.keep + (int64_t)kv.set * event.keep_stride;
    gather.count = count < 0 ? 0 : count < gather.n ? count : gather.n;
    int low = 0;
    int high = gather.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        const bool stays =
            gather.fill_holes ? gather.keep[middle] < gather.count : gather.keep[middle] == middle;
        if (stays) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    gather.stay = low;
    return gather;
}

/* Rows to be moved: as in Tensor, with what they lie in. */
struct Lane {
    gptr<unsigned char> base;
    const int32_t *page_table;
    int64_t page_stride;
    int64_t token_stride;
    int64_t run_stride;
    int run_bytes;
    int n_runs;
    int width;
    bool rows_first;

    PORT_DEVICE int64_t offset(const Plan &plan, int row, int word, int width_now) const
    {
        const RowPlace place = place_of(page_table, plan.tokens_per_page, row);
        const int words_per_run = run_bytes / width_now;
        return place.page * page_stride + place.token * token_stride + word / words_per_run * run_stride +
               (int64_t)(word % words_per_run) * width_now;
    }
};

/* False: there is nothing of this kind. */
PORT_DEVICE bool lane_of(const Plan &plan, const Event &event, const Kv &kv, int kind, bool owns_positions,
                         Lane *lane)
{
    const Layer *layer = plan.layers + kv.layer;
    const EventLayer where = port_global(event.layers)[kv.layer];
    const bool of_k = kind == LANE_K || kind == LANE_K_SCALES;
    const Tensor tensor = *port_global(of_k ? &layer->k : &layer->v);
    unsigned char *data = of_k ? where.k : where.v;
    int64_t head = kv.head * tensor.head_stride;
    lane->page_table = where.page_table;
    lane->page_stride = tensor.page_stride;
    lane->token_stride = tensor.token_stride;
    lane->run_stride = tensor.run_stride;
    lane->run_bytes = tensor.run_bytes;
    lane->n_runs = tensor.n_runs;
    lane->width = of_k ? where.k_width : where.v_width;
    lane->rows_first = tensor.tokens_side_by_side != 0;
    if (kind != LANE_K && kind != LANE_V) { /* four bytes per row */
        lane->run_stride = 0;
        lane->run_bytes = 4;
        lane->n_runs = 1;
        lane->width = 4;
        lane->rows_first = true;
    }
    if (kind == LANE_POSITIONS) {
        data = owns_positions ? (unsigned char *)event.positions : nullptr;
        head = 4 * (kv.layer * event.layer_stride + kv.head * event.head_stride);
        lane->page_table = nullptr;
        lane->page_stride = 0;
        lane->token_stride = 4;
    } else if (kind == LANE_K_SCALES || kind == LANE_V_SCALES) {
        const bool present = data != nullptr && tensor.scale_kind == TRIA_SCALE_ROW;
        data = !present ? nullptr : of_k ? where.k_scales : where.v_scales;
        head = kv.head * tensor.scale_head_stride;
        lane->page_stride = tensor.scale_page_stride;
        lane->token_stride = tensor.scale_token_stride;
    }
    if (data == nullptr) {
        return false;
    }
    lane->base = port_global(data) + head;
    return true;
}

static constexpr int move_words = 4; /* per thread and batch */

/* Moves `n_words` words from `first_word` on of the rows of moves first_move, first_move + 1 ..., a batch
 * at a time and every `stride`-th batch: all of a batch is read before any of it is written. */
template <class V>
PORT_DEVICE void move_words_of_rows(const Plan &plan, const Lane &lane, const Gather &gather,
                                    int first_word, int n_words, int first_batch, int stride)
{
    const int n_moves = gather.n_moves();
    const int batch = port_threads() * move_words / n_words;
    PORT_ROLLED
    for (int done = first_batch * batch; done < n_moves; done += stride * batch) {
        const int n_rows = n_moves - done < batch ? n_moves - done : batch;
        V words[move_words];
        PORT_UNROLL
        for (int u = 0; u < move_words; u++) {
            const int i = u * port_threads() + port_thread();
            if (i < n_rows * n_words) {
                const int move = done + (lane.rows_first ? i % n_rows : i / n_words);
                const int word = first_word + (lane.rows_first ? i / n_rows : i % n_words);
                const int from = gather.source(move);
                words[u] = port_load<V>(
                    lane.base, lane.offset(plan, from < gather.n ? from : 0, word, (int)sizeof(V)));
            }
        }
        port_barrier();
        PORT_UNROLL
        for (int u = 0; u < move_words; u++) {
            const int i = u * port_threads() + port_thread();
            if (i < n_rows * n_words) {
                const int move = done + (lane.rows_first ? i % n_rows : i / n_words);
                const int word = first_word + (lane.rows_first ? i / n_rows : i % n_words);
                port_store<V>(lane.base, lane.offset(plan, gather.target(move), word, (int)sizeof(V)),
                              words[u]);
            }
        }
    }
}

/* Under `stable` blocks share a slot by words, which keeps every row's order; under `fill_holes` by rows.
 */
template <class V>
PORT_DEVICE void move_lane(const Plan &plan, const Lane &lane, const Gather &gather, int piece,
                           int n_pieces)
{
    const int n_words = lane.run_bytes / (int)sizeof(V) * lane.n_runs;
    const int most = port_threads() * move_words; /* a batch holds at least one row */
    const int shares = gather.fill_holes ? 1 : n_pieces;
    int share = (n_words + shares - 1) / shares;
    share = share < most ? share : most;
    PORT_ROLLED
    for (int first = gather.fill_holes ? 0 : piece * share; first < n_words; first += shares * share) {
        const int left = n_words - first;
        move_words_of_rows<V>(plan, lane, gather, first, left < share ? left : share,
                              gather.fill_holes ? piece : 0, gather.fill_holes ? n_pieces : 1);
    }
}

/* Blocks: (pieces, slots * lanes, events). */
PORT_KERNEL_OF(block_threads, 4) move_kernel(CompactArgs args)
{
    const Plan &plan = args.call.plan;
    const Event event = port_global(args.call.events)[port_block_z()];
    const int slot = port_block_y() / LANE_KINDS;
    const Kv kv = port_global(plan.kvs)[slot];
    const Gather gather = gather_of(plan, event, kv, slot);
    Lane lane;
    if (gather.n_moves() == 0 || !lane_of(plan, event, kv, port_block_y() % LANE_KINDS,
                                          port_global(event.owns_positions)[slot] != 0, &lane)) {
        return;
    }
    switch (lane.width) {
    case 16:
        move_lane<Words<4>>(plan, lane, gather, port_block_x(), args.n_pieces);
        break;
    case 8:
        move_lane<Words<2>>(plan, lane, gather, port_block_x(), args.n_pieces);
        break;
    case 4:
        move_lane<uint32_t>(plan, lane, gather, port_block_x(), args.n_pieces);
        break;
    case 2:
        move_lane<uint16_t>(plan, lane, gather, port_block_x(), args.n_pieces);
        break;
    default:
        move_lane<uint8_t>(plan, lane, gather, port_block_x(), args.n_pieces);
        break;
    }
}

/* Zeroes the rows from the new length on, but no page that is shared: those are no longer this sequence's.
 */
template <class V>
PORT_DEVICE void zero_lane(const Plan &plan, const Lane &lane, const Gather &gather,
                           const unsigned char *shared, int piece, int n_pieces)
{
    const int n_words = lane.run_bytes / (int)sizeof(V) * lane.n_runs;
    PORT_ROLLED
    for (int row = gather.count + piece; row < gather.n; row += n_pieces) {
        if (shared == nullptr || port_global(shared)[row / plan.tokens_per_page] == 0) {
            PORT_ROLLED
            for (int word = port_thread(); word < n_words; word += port_threads()) {
                port_store<V>(lane.base, lane.offset(plan, row, word, (int)sizeof(V)), V());
            }
        }
    }
}

/* Blocks: (pieces, slots * lanes, events). */
PORT_KERNEL(block_threads) zero_kernel(CompactArgs args)
{
    const Plan &plan = args.call.plan;
    const Event event = port_global(args.call.events)[port_block_z()];
    const int slot = port_block_y() / LANE_KINDS;
    const Kv kv = port_global(plan.kvs)[slot];
    const Gather gather = gather_of(plan, event, kv, slot);
    const unsigned char *shared = port_global(event.layers)[kv.layer].page_shared;
    Lane lane;
    if (gather.n == gather.count || !lane_of(plan, event, kv, port_block_y() % LANE_KINDS, false, &lane)) {
        return;
    }
    switch (lane.width) {
    case 16:
        zero_lane<Words<4>>(plan, lane, gather, shared, port_block_x(), args.n_pieces);
        break;
    case 8:
        zero_lane<Words<2>>(plan, lane, gather, shared, port_block_x(), args.n_pieces);
        break;
    case 4:
        zero_lane<uint32_t>(plan, lane, gather, shared, port_block_x(), args.n_pieces);
        break;
    case 2:
        zero_lane<uint16_t>(plan, lane, gather, shared, port_block_x(), args.n_pieces);
        break;
    default:
        zero_lane<uint8_t>(plan, lane, gather, shared, port_block_x(), args.n_pieces);
        break;
    }
}

/* Where each slot's moves begin in the list. Blocks: (events). */
PORT_KERNEL(block_threads) count_moves_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_x()];
    sptr<int32_t> sums = port_shared<int32_t>(0);
    const int i = port_thread();
    int done = 0;
    for (int first = 0; first < plan.n_kv; first += port_threads()) {
        const int slot = first + i;
        int mine = 0;
        if (slot < plan.n_kv) {
            mine = gather_of(plan, event, port_global(plan.kvs)[slot], slot).n_moves();
        }
        sums[i] = mine;
        port_barrier();
        for (int stride = 1; stride < port_threads(); stride *= 2) {
            const int before = i >= stride ? (int)sums[i - stride] : 0;
            port_barrier();
            sums[i] = sums[i] + before;
            port_barrier();
        }
        if (slot < plan.n_kv) {
            port_global(event.move_begin)[slot] = done + sums[i] - mine;
        }
        done += sums[port_threads() - 1];
        port_barrier();
    }
    if (i == 0 && event.n_moves != nullptr) {
        port_global(event.n_moves)[0] = done;
    }
}

/* Writes the moves: layer, KV head, from, to. Those beyond the capacity are left out, n_moves tells.
 * Blocks: (pieces, slots, events). */
PORT_KERNEL(block_threads) list_moves_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_z()];
    const int slot = port_block_y();
    const Kv kv = port_global(plan.kvs)[slot];
    const Gather gather = gather_of(plan, event, kv, slot);
    if (event.moves == nullptr) {
        return;
    }
    const int64_t begin = port_global((const int32_t *)event.move_begin)[slot];
    for (int move = port_block_x() * port_threads() + port_thread(); move < gather.n_moves();
         move += port_grid_x() * port_threads()) {
        if (begin + move < event.moves_capacity) {
            gptr<int32_t> out = port_global(event.moves) + 4 * (begin + move);
            out[0] = kv.layer;
            out[1] = kv.head;
            out[2] = gather.source(move);
            out[3] = gather.target(move);
        }
    }
}

/* The rows that are left, last of all: it overwrites what the other kernels read. Blocks: (slots, events).
 */
PORT_KERNEL(block_threads) rows_after_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_y()];
    const int slot = port_block_x() * port_threads() + port_thread();
    if (slot < plan.n_kv && event.rows_after != nullptr) {
        const Kv kv = port_global(plan.kvs)[slot];
        const int n = row_count(plan, event, slot);
        int count = n;
        if (kv.set >= 0) {
            count = port_global((const int32_t *)event.keep_counts)[kv.set];
            count = count < 0 ? 0 : count < n ? count : n;
        }
        port_global(event.rows_after)[slot] = count;
    }
}
} // namespace tria_gpu

#endif

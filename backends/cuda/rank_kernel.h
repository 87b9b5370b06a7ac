/*
 * rank_kernel.h - from raw scores to the numbers rows are ranked by (specification, section 3), and the
 * rows that are never evicted (section 4).
 */
#ifndef TRIA_CUDA_RANK_KERNEL_H
#define TRIA_CUDA_RANK_KERNEL_H

#include "args.h"
#include "port.h"
#include "rows.h"

namespace tria_gpu
{
struct SlotArgs {
    Call call;
    const int32_t *slots; /* NULL: all */
};

PORT_DEVICE bool in_prompt(const Plan &plan, const Event &event, int position)
{
    gptr<const int32_t> prompts = port_global(event.prompts);
    for (int r = 0; r < event.n_prompts && plan.protect_prefill; r++) {
        if (position >= prompts[2 * r] && position < prompts[2 * r + 1]) {
            return true;
        }
    }
    return false;
}

/* Masks and counts of protected rows. Blocks: (rows, slots, events). */
PORT_KERNEL(block_threads) protect_kernel(SlotArgs args)
{
    const Plan &plan = args.call.plan;
    const Event event = port_global(args.call.events)[port_block_z()];
    const int slot = port_global(args.slots)[port_block_y()];
    const Kv kv = port_global(plan.kvs)[slot];
    const int window = port_global(plan.layers)[kv.layer].window;
    const int n = row_count(plan, event, slot);
    const int64_t recent = *port_global(event.t) - (plan.n_recent > window ? plan.n_recent : window);
    const int lane = port_thread() % port_lanes;
    gptr<uint32_t> mask = port_global(event.protect) + (int64_t)slot * plan.row_words;
    bool unordered = false;
    for (int first = port_block_x() * port_threads(); first < n; first += port_grid_x() * port_threads()) {
        const int row = first + port_thread();
        bool is_protected = false;
        bool prompt = false;
        if (row < n) {
            const int p = position_of(event, kv, row);
            prompt = in_prompt(plan, event, p);
            is_protected = p < plan.n_sink || p >= recent || prompt;
            unordered |= row > 0 && position_of(event, kv, row - 1) >= p;
            if (event.pins != nullptr && !is_protected) {
                is_protected = (port_global(event.pins)[row / 32] >> (row % 32) & 1) != 0;
            }
        }
        const uint64_t votes = port_ballot(is_protected);
        const uint64_t prompts = port_ballot(prompt);
        if (lane % 32 == 0 && row < n) {
            mask[row / 32] = (uint32_t)(votes >> lane);
        }
        if (lane == 0) {
            port_atomic_add(&port_global(event.n_protected)[slot], port_count_bits(votes));
            port_atomic_add(&port_global(event.n_prompt_rows)[slot], port_count_bits(prompts));
        }
    }
    if (unordered) {
        port_atomic_or(&port_global(event.unordered)[slot], 1);
    }
}

/* Do slots hold the same rows at the same positions as the slot they are compared with? Blocks: (slots of
 * the plan, events). */
PORT_KERNEL(block_threads) compare_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_y()];
    const int slot = port_block_x();
    const Kv kv = port_global(plan.kvs)[slot];
    for (int i = 0; i < 2; i++) {
        const int other = i == 0 ? kv.lender : kv.same_set;
        if (other < 0 || other == slot) {
            continue;
        }
        const Kv theirs = port_global(plan.kvs)[other];
        const int n = row_count(plan, event, slot);
        bool differs = n != row_count(plan, event, other);
        if (!differs && event.positions != nullptr &&
            !(position_table(event, kv) == position_table(event, theirs))) {
            for (int row = port_thread(); row < n; row += port_threads()) {
                differs |= position_of(event, kv, row) != position_of(event, theirs, row);
            }
        }
        if (differs && i == 0) {
            port_atomic_or(&port_global(event.differs)[kv.scope], 1);
        }
        if (differs && i == 1) {
            port_atomic_max(port_global(&event.report->misaligned), 1);
        }
    }
}

/* The sum of every thread's part, in all threads; `scratch` holds one per thread. */
PORT_DEVICE Partial sum_of_block(sptr<Partial> scratch, Partial mine)
{
    scratch[port_thread()] = mine;
    port_barrier();
    for (int stride = port_threads() / 2; stride > 0; stride /= 2) {
        if (port_thread() < stride) {
            const Partial a = scratch[port_thread()];
            const Partial b = scratch[port_thread() + stride];
            scratch[port_thread()] =
                Partial{a.sum + b.sum, a.squares + b.squares, a.count + b.count, a.n_finite + b.n_finite};
        }
        port_barrier();
    }
    const Partial total = scratch[0];
    port_barrier();
    return total;
}

/* Means and deviations of query heads' raw scores or, for `global`, of grouped scores. */
struct NormalArgs {
    Call call;
    int32_t grouped;
    int32_t ranked_only; /* slots without a set have not been scored */
    int32_t tile_rows;
};

/* Blocks: (queries or slots, events). */
PORT_KERNEL(64) normal_kernel(NormalArgs args)
{
    const Plan &plan = args.call.plan;
    const Event event = port_global(args.call.events)[port_block_y()];
    const int i = port_block_x();
    const Chunk *chunk = plan.chunks + i / columns;
    const int which = args.grouped ? i : (int)port_global(chunk->query)[i % columns];
    if (which < 0) {
        return;
    }
    const int slot = args.grouped ? i : (int)*port_global(&chunk->slot);
    const Kv kv = port_global(plan.kvs)[slot];
    if ((args.grouped && (kv.set < 0 || kv.n_queries == 0)) || (args.ranked_only && kv.set < 0)) {
        return;
    }
    const int n = row_count(plan, event, slot);
    Partial mine = {0.0, 0.0, 0, 0};
    for (int tile = port_thread(); tile * args.tile_rows < n; tile += port_threads()) {
        const Partial part = port_global(event.partials)[(int64_t)which * plan.n_tiles + tile];
        mine.sum += part.sum;
        mine.squares += part.squares;
        mine.count += part.count;
        mine.n_finite += part.n_finite;
    }
    const Partial total = sum_of_block(port_shared<Partial>(0), mine);
    if (port_thread() != 0) {
        return;
    }
    Normal normal = {0.0f, 0.0f, 1.0f, 0};
    if (plan.normalize_over != TRIA_NORMALIZE_NONE) {
        const double mean = total.count > 0 ? total.sum / total.count : 0.0;
        const double variance = total.count > 0 ? total.squares / total.count - mean * mean : 0.0;
        const double deviation = variance > 0.0 ? sqrt(variance) : 0.0;
        const double size = mean < 0.0 ? -mean : mean;
        normal.mean_high = (float)mean;
        normal.mean_low = (float)(mean - (double)normal.mean_high);
        normal.factor = deviation <= 1e-6 * (size > 1.0 ? size : 1.0) ? 0.0f : (float)(1.0 / deviation);
        normal.all_zero = total.n_finite == 0;
    }
    port_global(args.grouped ? event.kv_normals : event.normals)[which] = normal;
}

/* Constant heads have factor 0. */
PORT_DEVICE float normalise(float score, const Normal &normal)
{
    if (normal.all_zero) {
        return 0.0f;
    }
    return is_finite(score) ? ((score - normal.mean_high) - normal.mean_low) * normal.factor
                            : not_a_number();
}

/* Max or mean that skips NaN; NaN when there is nothing else. */
struct Accumulator {
    double value = 0.0;
    int count = 0;
    PORT_DEVICE void add(float x, bool mean)
    {
        if (x == x) {
            value = count == 0          ? (double)x
                    : mean              ? value + (double)x
                    : (double)x > value ? (double)x
                                        : value;
            count++;
        }
    }
    PORT_DEVICE float result(bool mean) const
    {
        return count == 0 ? not_a_number() : mean ? port_divide((float)value, (float)count) : (float)value;
    }
};

PORT_DEVICE float z_of(const Plan &plan, const Event &event, int q, int row)
{
    const Normal normal = port_global((const Normal *)event.normals)[q];
    return normalise(port_global((const float *)event.raw)[(int64_t)q * plan.max_rows + row], normal);
}

/* The group's score of a slot's row. */
PORT_DEVICE float group_of(const Plan &plan, const Event &event, const Kv &kv, int row)
{
    Accumulator group;
    PORT_ROLLED
    for (int i = 0; i < kv.n_queries; i++) {
        group.add(z_of(plan, event, port_global(plan.calibrated)[kv.first_query + i], row),
                  plan.group_mean);
    }
    return group.result(plan.group_mean);
}

/* Grouped scores, and in mode `global` the sums to normalise them again. Blocks: (tiles, slots, events). */
PORT_KERNEL(block_threads) group_kernel(NormalArgs args)
{
    const Plan &plan = args.call.plan;
    const Event event = port_global(args.call.events)[port_block_z()];
    const int slot = port_block_y();
    const Kv kv = port_global(plan.kvs)[slot];
    if (args.ranked_only && kv.set < 0) {
        return;
    }
    const int n = row_count(plan, event, slot);
    gptr<const uint32_t> protect =
        port_global((const uint32_t *)event.protect) + (int64_t)slot * plan.row_words;
    for (int tile = port_block_x(); tile * port_threads() < n; tile += port_grid_x()) {
        const int row = tile * port_threads() + port_thread();
        Partial mine = {0.0, 0.0, 0, 0};
        if (row < n) {
            const float x = group_of(plan, event, kv, row);
            port_global(event.grouped)[(int64_t)slot * plan.max_rows + row] = x;
            if (is_finite(x)) {
                mine.n_finite = 1;
                if (plan.normalize_over != TRIA_NORMALIZE_CANDIDATES ||
                    (protect[row / 32] >> (row % 32) & 1) == 0) {
                    mine = Partial{(double)x, (double)x * (double)x, 1, 1};
                }
            }
        }
        if (plan.mode == TRIA_MODE_GLOBAL && plan.normalize_over != TRIA_NORMALIZE_NONE) {
            const Partial total = sum_of_block(port_shared<Partial>(0), mine);
            if (port_thread() == 0) {
                port_global(event.partials)[(int64_t)slot * plan.n_tiles + tile] = total;
            }
        }
    }
}

/* z of every calibrated query head that scores keys of slots with a set, of one layer or (-1) of all. */
PORT_DEVICE void add_queries(const Plan &plan, const Event &event, int layer, int row, bool mean,
                             Accumulator *sum)
{
    PORT_ROLLED
    for (int slot = 0; slot < plan.n_kv; slot++) {
        const Kv kv = port_global(plan.kvs)[slot];
        if (kv.set >= 0 && (layer < 0 || kv.layer == layer)) {
            PORT_ROLLED
            for (int i = 0; i < kv.n_queries; i++) {
                sum->add(z_of(plan, event, port_global(plan.calibrated)[kv.first_query + i], row), mean);
            }
        }
    }
}

PORT_DEVICE bool takes_mean(const Plan &plan, const Set &set)
{
    return set.borrows || (plan.mode == TRIA_MODE_PER_HEAD && plan.layers_mean);
}

/* What selection ranks a row of a set by, before pooling and division. */
PORT_DEVICE Accumulator final_of(const Plan &plan, const Event &event, const Set &set, int row)
{
    Accumulator sum;
    const bool mean = takes_mean(plan, set);
    if (set.borrows || plan.mode == TRIA_MODE_UNION) {
        const int layer =
            plan.mode == TRIA_MODE_PER_LAYER_PER_HEAD ? port_global(plan.kvs)[set.slot].layer : -1;
        add_queries(plan, event, layer, row, mean, &sum);
        return sum;
    }
    PORT_ROLLED
    for (int i = 0; i < set.n_slots; i++) {
        const int slot = port_global(plan.set_slots)[set.first + i];
        const Kv kv = port_global(plan.kvs)[slot];
        if (kv.n_queries == 0) {
            continue;
        }
        if (plan.mode == TRIA_MODE_GLOBAL) {
            const Normal normal = plan.normalize_over == TRIA_NORMALIZE_NONE
                                      ? Normal{0.0f, 0.0f, 1.0f, 0}
                                      : (Normal)port_global((const Normal *)event.kv_normals)[slot];
            const float x = port_global((const float *)event.grouped)[(int64_t)slot * plan.max_rows + row];
            sum.add((float)((double)normalise(x, normal) * *port_global(&plan.layers[kv.layer].weight)),
                    mean);
        } else {
            sum.add(group_of(plan, event, kv, row), mean);
        }
    }
    return sum;
}

PORT_DEVICE bool ranked_by_position(const Event &event, const Set &set)
{
    return set.by_position || (set.borrows && port_global(event.differs)[set.scope] != 0);
}

PORT_DEVICE bool reduced_over_ranks(const Plan &plan, const Event &event, const Set &set)
{
    return plan.reduces && !set.borrows && !ranked_by_position(event, set);
}

/* Blocks: (rows, sets, events). With other ranks to combine with, sums (in reduce_counts: of how many) or
 * maxima, -inf for none. */
PORT_KERNEL_OF(block_threads, 4) rank_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_z()];
    const int s = port_block_y();
    const Set set = port_global(plan.sets)[s];
    const int n = row_count(plan, event, set.slot);
    const bool by_position = ranked_by_position(event, set);
    const bool mean = takes_mean(plan, set);
    PORT_ROLLED
    for (int row = port_block_x() * port_threads() + port_thread(); row < n;
         row += port_grid_x() * port_threads()) {
        const int64_t at = (int64_t)s * plan.max_rows + row;
        float score = not_a_number();
        if (!by_position) {
            const Accumulator sum = final_of(plan, event, set, row);
            score = sum.result(mean);
            if (reduced_over_ranks(plan, event, set)) {
                score = mean ? (float)sum.value : sum.count > 0 ? score : port_bits_float(0xff800000u);
                if (mean) {
                    port_global(event.reduce_counts)[at] = (float)sum.count;
                }
            }
        }
        port_global(event.final_scores)[at] = score;
    }
}

/* Blocks: (rows, sets, events). */
PORT_KERNEL(block_threads) reduced_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_z()];
    const int s = port_block_y();
    const Set set = port_global(plan.sets)[s];
    const int n = row_count(plan, event, set.slot);
    if (!reduced_over_ranks(plan, event, set)) {
        return;
    }
    gptr<float> scores = port_global(event.final_scores) + (int64_t)s * plan.max_rows;
    for (int row = port_block_x() * port_threads() + port_thread(); row < n;
         row += port_grid_x() * port_threads()) {
        const float score = scores[row];
        if (takes_mean(plan, set)) {
            const float count =
                port_global((const float *)event.reduce_counts)[(int64_t)s * plan.max_rows + row];
            scores[row] = count > 0.0f ? port_divide(score, count) : not_a_number();
        } else {
            scores[row] = is_finite(score) ? score : not_a_number();
        }
    }
}

/* Neighbour pooling: the max over rows whose positions are at most pool_radius away. Rows in position order
 * (always, unless holes were filled) are searched outwards, others one and all. Blocks: (rows, sets,
 * events). */
PORT_KERNEL(block_threads) pool_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_z()];
    const int s = port_block_y();
    const Set set = port_global(plan.sets)[s];
    const Kv kv = port_global(plan.kvs)[set.slot];
    const int n = row_count(plan, event, set.slot);
    const bool ordered = port_global(event.unordered)[set.slot] == 0;
    gptr<const float> scores = port_global((const float *)event.final_scores) + (int64_t)s * plan.max_rows;
    for (int row = port_block_x() * port_threads() + port_thread(); row < n;
         row += port_grid_x() * port_threads()) {
        const int64_t p = position_of(event, kv, row);
        Accumulator best;
        best.add(scores[row], false);
        if (ordered) {
            PORT_ROLLED
            for (int i = row - 1; i >= 0 && p - position_of(event, kv, i) <= plan.pool_radius; i--) {
                best.add(scores[i], false);
            }
            PORT_ROLLED
            for (int i = row + 1; i < n && position_of(event, kv, i) - p <= plan.pool_radius; i++) {
                best.add(scores[i], false);
            }
        } else {
            PORT_ROLLED
            for (int i = 0; i < n; i++) {
                const int64_t away = position_of(event, kv, i) - p;
                if (away <= plan.pool_radius && -away <= plan.pool_radius) {
                    best.add(scores[i], false);
                }
            }
        }
        port_global(event.pooled)[(int64_t)s * plan.max_rows + row] = best.result(false);
    }
}
} // namespace tria_gpu

#endif

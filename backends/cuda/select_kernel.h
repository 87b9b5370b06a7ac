/*
 * select_kernel.h - the rows each set keeps (specification, section 4): protected rows and the best
 * candidates, higher score first, equal scores by lower row, -0 = +0, NaN lowest. A radix select finds the
 * last score that is kept and how many rows with exactly that score; then one pass writes the rows in
 * order.
 */
#ifndef TRIA_CUDA_SELECT_KERNEL_H
#define TRIA_CUDA_SELECT_KERNEL_H

#include "args.h"
#include "port.h"
#include "rank_kernel.h"
#include "rows.h"

namespace tria_gpu
{
static constexpr int digits = 256;

/* Unsigned keys in the order of scores; NaN is 0. */
PORT_DEVICE uint32_t key_of(float score)
{
    if (score != score) {
        return 0;
    }
    const uint32_t bits = score == 0.0f ? 0u : port_float_bits(score);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Ranking {
    gptr<const float> scores;
    gptr<const uint32_t> protect;
    Kv kv;
    bool by_position;

    PORT_DEVICE bool is_protected(int row) const
    {
        return (protect[row / 32] >> (row % 32) & 1) != 0;
    }
    PORT_DEVICE uint32_t key(const Event &event, int row) const
    {
        return by_position ? (uint32_t)position_of(event, kv, row) : key_of(scores[row]);
    }
};

/* The `wanted`-th largest key among the candidates; *ties = how many rows with that key are wanted. All
 * threads get both. Shared memory: digits counts, then two words. */
PORT_DEVICE uint32_t radix_select(const Event &event, const Ranking &ranking, int n, int wanted, int *ties)
{
    sptr<int32_t> counts = port_shared<int32_t>(0);
    sptr<int32_t> found = port_shared<int32_t>(4 * digits);
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int d = port_thread(); d < digits; d += port_threads()) {
            counts[d] = 0;
        }
        port_barrier();
        for (int row = port_thread(); row < n; row += port_threads()) {
            if (!ranking.is_protected(row)) {
                const uint32_t key = ranking.key(event, row);
                if (shift == 24 || (key ^ prefix) >> (shift + 8) == 0) {
                    port_atomic_add(&counts[(int)(key >> shift & (digits - 1))], 1);
                }
            }
        }
        port_barrier();
        /* counts[d] becomes the number of keys with digit d or more */
        for (int stride = 1; stride < digits; stride *= 2) {
            const int d = port_thread();
            int above = 0;
            if (d + stride < digits) {
                above = counts[d + stride];
            }
            port_barrier();
            if (d + stride < digits) {
                counts[d] = counts[d] + above;
            }
            port_barrier();
        }
        const int d = port_thread();
        if (d < digits) {
            const int above = d + 1 < digits ? (int)counts[d + 1] : 0;
            if (counts[d] >= wanted && above < wanted) {
                found[0] = d;
                found[1] = wanted - above;
            }
        }
        port_barrier();
        prefix |= (uint32_t)found[0] << shift;
        wanted = found[1];
        port_barrier();
    }
    *ties = wanted;
    return prefix;
}

/* Numbers of true predicates before this thread in the block, and in the whole block. Shared memory: two
 * words per warp from `offset` on. */
struct Counts {
    int sure;
    int ties;
};
PORT_DEVICE Counts count_before(bool sure, bool tie, Counts *total)
{
    const uint32_t offset = 4 * (digits + 2);
    sptr<int32_t> counts = port_shared<int32_t>(offset);
    const int lane = port_thread() % port_lanes;
    const int warp = port_thread() / port_lanes;
    const uint64_t below = ((uint64_t)1 << lane) - 1;
    const uint64_t sure_votes = port_ballot(sure);
    const uint64_t tie_votes = port_ballot(tie);
    if (lane == 0) {
        counts[2 * warp] = port_count_bits(sure_votes);
        counts[2 * warp + 1] = port_count_bits(tie_votes);
    }
    port_barrier();
    Counts before = {port_count_bits(sure_votes & below), port_count_bits(tie_votes & below)};
    *total = Counts{0, 0};
    for (int w = 0; w < port_threads() / port_lanes; w++) {
        const Counts in_warp = {counts[2 * w], counts[2 * w + 1]};
        before.sure += w < warp ? in_warp.sure : 0;
        before.ties += w < warp ? in_warp.ties : 0;
        total->sure += in_warp.sure;
        total->ties += in_warp.ties;
    }
    port_barrier();
    return before;
}
static constexpr uint32_t select_shared = 4 * (digits + 2) + 8 * (select_threads / 32);

/* Blocks: (sets, events). */
PORT_KERNEL_OF(select_threads, 2) select_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_y()];
    const int s = port_block_x();
    const Set set = port_global(plan.sets)[s];
    const int n = row_count(plan, event, set.slot);
    const int n_protected = port_global(event.n_protected)[set.slot];
    const int n_prompt = port_global(event.n_prompt_rows)[set.slot];
    const int64_t allowed = (int64_t)port_global(event.budgets)[s] + (plan.count_prompt ? 0 : n_prompt);
    const bool keep_all = allowed >= n;
    const int wanted = keep_all || n_protected >= allowed ? 0 : (int)(allowed - n_protected);
    gptr<int32_t> kept = port_global(event.keep_rows) + (int64_t)s * event.keep_stride;
    Ranking ranking;
    ranking.scores =
        port_global((const float *)(plan.pool_radius > 0 ? event.pooled : event.final_scores)) +
        (int64_t)s * plan.max_rows;
    ranking.protect = port_global((const uint32_t *)event.protect) + (int64_t)set.slot * plan.row_words;
    ranking.kv = port_global(plan.kvs)[set.slot];
    ranking.by_position = ranked_by_position(event, set);
    uint32_t last = 0;
    int ties = 0;
    if (wanted > 0) {
        last = radix_select(event, ranking, n, wanted, &ties);
    }
    Counts done = {0, 0};
    for (int first = 0; first < n; first += port_threads()) {
        const int row = first + port_thread();
        bool sure = row < n && keep_all;
        bool tie = false;
        if (row < n && !keep_all) {
            sure = ranking.is_protected(row);
            if (wanted > 0 && !sure) {
                const uint32_t key = ranking.key(event, row);
                sure = key > last;
                tie = key == last;
            }
        }
        Counts total;
        const Counts before = count_before(sure, tie, &total);
        const int tie_rank = done.ties + before.ties;
        if (sure || (tie && tie_rank < ties)) {
            kept[done.sure + before.sure + (tie_rank < ties ? tie_rank : ties)] = row;
        }
        done.sure += total.sure;
        done.ties += total.ties;
    }
    if (port_thread() == 0) {
        port_global(event.keep_counts)[s] = done.sure + (done.ties < ties ? done.ties : ties);
        if (!keep_all && n_protected > allowed) {
            port_atomic_max(port_global(&event.report->over_budget), (int)(n_protected - allowed));
        }
    }
}

/* Counts what the score kernel marked. Blocks: (1, events). */
PORT_KERNEL(block_threads) report_kernel(Call call)
{
    const Plan &plan = call.plan;
    const Event event = port_global(call.events)[port_block_y()];
    int n_nan = 0;
    int n_zero = 0;
    for (int i = port_thread(); i < plan.row_words; i += port_threads()) {
        n_nan += port_count_bits(port_global(event.bad_rows)[i]);
    }
    for (int slot = port_thread(); slot < plan.n_kv; slot += port_threads()) {
        const bool ranked = *port_global(&plan.kvs[slot].set) >= 0;
        n_zero += ranked && row_count(plan, event, slot) > 0 && port_global(event.keys_seen)[slot] == 1;
    }
    port_atomic_add(port_global(&event.report->n_nan), n_nan);
    port_atomic_add(port_global(&event.report->n_zero_heads), n_zero);
}
} // namespace tria_gpu

#endif

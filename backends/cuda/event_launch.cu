/* event_launch.cu - every kernel but the scoring. */
#include "compact_kernel.h"
#include "fold_kernel.h"
#include "launch.h"
#include "rank_kernel.h"
#include "select_kernel.h"

namespace tria_gpu
{
static unsigned blocks_for(int64_t work, int threads)
{
    return (unsigned)((work + threads - 1) / threads);
}

/* Blocks along x for rows of n_y * n_z independent slots or sets. */
static dim3 row_grid(const Extent &extent, int n_y)
{
    const unsigned needed = blocks_for(extent.max_rows, block_threads);
    const unsigned share = (unsigned)(extent.n_blocks / (n_y * extent.n_events) + 1);
    return dim3(needed < share ? needed : share, (unsigned)n_y, (unsigned)extent.n_events);
}

cudaError_t launch_fold(const Call &call, const Extent &extent, cudaStream_t stream)
{
    const unsigned n_events = (unsigned)extent.n_events;
    const dim3 phases(blocks_for(extent.max_freq, block_threads), (unsigned)call.plan.n_layers, n_events);
    const dim3 weights(blocks_for(extent.max_weights, block_threads), (unsigned)call.plan.n_chunks,
                       n_events);
    const cudaError_t error = PORT_LAUNCH(phase_kernel, phases, block_threads, 0, stream, call);
    return error != cudaSuccess ? error
                                : PORT_LAUNCH(weight_kernel, weights, block_threads, 0, stream, call);
}

cudaError_t launch_protect(const Call &call, const Extent &extent, const int32_t *slots, int n_slots,
                           cudaStream_t stream)
{
    const SlotArgs args = {call, slots};
    return PORT_LAUNCH(protect_kernel, row_grid(extent, n_slots), block_threads, 0, stream, args);
}

cudaError_t launch_compare(const Call &call, const Extent &extent, cudaStream_t stream)
{
    const dim3 grid((unsigned)call.plan.n_kv, (unsigned)extent.n_events);
    return PORT_LAUNCH(compare_kernel, grid, block_threads, 0, stream, call);
}

cudaError_t launch_normalise(const Call &call, const Extent &extent, bool ranked_only, bool grouped,
                             cudaStream_t stream)
{
    const NormalArgs raw = {call, 0, ranked_only, call.plan.tile_rows};
    cudaError_t error = cudaSuccess;
    if (call.plan.n_chunks > 0) {
        const dim3 grid((unsigned)(call.plan.n_chunks * columns), (unsigned)extent.n_events);
        error = PORT_LAUNCH(normal_kernel, grid, 64, 64 * sizeof(Partial), stream, raw);
    }
    if (error != cudaSuccess || !grouped) {
        return error;
    }
    return PORT_LAUNCH(group_kernel, row_grid(extent, call.plan.n_kv), block_threads,
                       block_threads * sizeof(Partial), stream, raw);
}

cudaError_t launch_rank(const Call &call, const Extent &extent, cudaStream_t stream)
{
    if (call.plan.mode == TRIA_MODE_GLOBAL && call.plan.normalize_over != TRIA_NORMALIZE_NONE) {
        const NormalArgs grouped = {call, 1, 0, block_threads};
        const dim3 grid((unsigned)call.plan.n_kv, (unsigned)extent.n_events);
        const cudaError_t error =
            PORT_LAUNCH(normal_kernel, grid, 64, 64 * sizeof(Partial), stream, grouped);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return PORT_LAUNCH(rank_kernel, row_grid(extent, call.plan.n_sets), block_threads, 0, stream, call);
}

cudaError_t launch_reduced(const Call &call, const Extent &extent, cudaStream_t stream)
{
    return PORT_LAUNCH(reduced_kernel, row_grid(extent, call.plan.n_sets), block_threads, 0, stream, call);
}

cudaError_t launch_pool(const Call &call, const Extent &extent, cudaStream_t stream)
{
    return PORT_LAUNCH(pool_kernel, row_grid(extent, call.plan.n_sets), block_threads, 0, stream, call);
}

cudaError_t launch_select(const Call &call, const Extent &extent, bool report, cudaStream_t stream)
{
    const dim3 sets((unsigned)call.plan.n_sets, (unsigned)extent.n_events);
    const cudaError_t error = PORT_LAUNCH(select_kernel, sets, select_threads, select_shared, stream, call);
    if (error != cudaSuccess || !report) {
        return error;
    }
    return PORT_LAUNCH(report_kernel, dim3(1, (unsigned)extent.n_events), block_threads, 0, stream, call);
}

cudaError_t launch_compact(const Call &call, const Extent &extent, bool moves, bool zero_tail,
                           bool rows_after, cudaStream_t stream)
{
    const unsigned n_slots = (unsigned)call.plan.n_kv;
    const unsigned n_events = (unsigned)extent.n_events;
    const unsigned n_pieces = (unsigned)extent.n_blocks / (n_slots * 2 * n_events) + 1;
    const CompactArgs args = {call, (int32_t)n_pieces};
    const dim3 grid(n_pieces, n_slots * LANE_KINDS, n_events);
    cudaError_t error = cudaSuccess;
    if (moves) {
        error =
            PORT_LAUNCH(count_moves_kernel, dim3(n_events), block_threads, 4 * block_threads, stream, call);
        if (error == cudaSuccess) {
            error = PORT_LAUNCH(list_moves_kernel, row_grid(extent, (int)n_slots), block_threads, 0, stream,
                                call);
        }
    }
    if (error == cudaSuccess) {
        error = PORT_LAUNCH(move_kernel, grid, block_threads, 0, stream, args);
    }
    if (error == cudaSuccess && zero_tail) {
        error = PORT_LAUNCH(zero_kernel, grid, block_threads, 0, stream, args);
    }
    if (error == cudaSuccess && rows_after) {
        const dim3 slots(blocks_for(n_slots, block_threads), n_events);
        error = PORT_LAUNCH(rows_after_kernel, slots, block_threads, 0, stream, call);
    }
    return error;
}
} // namespace tria_gpu

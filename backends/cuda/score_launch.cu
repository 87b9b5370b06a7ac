/* score_launch.cu - the score kernel for every element type. */
#include "launch.h"
#include "score_kernel.h"

namespace tria_gpu
{
uint32_t score_shared_bytes(int tile_rows, int lanes, uint32_t pitch)
{
    return score_shared_before_tile(tile_rows, lanes) + (uint32_t)tile_rows * pitch;
}

cudaError_t launch_score(const Call &call, const Extent &extent, const ScoreLaunch &launch,
                         bool ranked_only, cudaStream_t stream)
{
    const int n_slots = ranked_only ? launch.n_ranked : launch.n_slots;
    const int tile_rows = call.plan.tile_rows;
    const ScoreArgs args = {call, launch.slots, launch.pitch,
                            score_shared_before_tile(tile_rows, launch.lanes), launch.lanes};
    if (n_slots == 0) {
        return cudaSuccess;
    }
    const int n_tiles = (extent.max_rows + tile_rows - 1) / tile_rows;
    const int share = extent.n_blocks / (n_slots * extent.n_events) + 1;
    const dim3 grid((unsigned)(n_tiles < share ? n_tiles : share), (unsigned)n_slots,
                    (unsigned)extent.n_events);
    const uint32_t shared = score_shared_bytes(tile_rows, launch.lanes, launch.pitch);
    if (launch.prepared) {
        return PORT_LAUNCH(score_prepared_kernel, grid, launch.threads, shared, stream, args);
    }
#define TRIA_LAUNCH_SCORE(dtype, decode)                                                                   \
    case dtype:                                                                                            \
        return PORT_LAUNCH(score_kernel<decode>, grid, launch.threads, shared, stream, args);
    TRIA_FOR_DTYPE(launch.dtype, TRIA_LAUNCH_SCORE)
#undef TRIA_LAUNCH_SCORE
    return cudaErrorInvalidValue;
}
} // namespace tria_gpu

/* launch.h - the kernels as host code sees them: one function per launch, so that host code needs no device
 * compiler. */
#ifndef TRIA_CUDA_LAUNCH_H
#define TRIA_CUDA_LAUNCH_H

#include "args.h"
#include "port_runtime.h"

namespace tria_gpu
{
/* Sizes of a call's grids. */
struct Extent {
    int n_events;
    int max_rows;    /* of any slot of any event */
    int max_freq;    /* of any layer */
    int max_weights; /* of any chunk: pairs * columns * passes */
    int n_blocks;    /* wanted in all, to fill the device */
};

struct ScoreLaunch {
    const int32_t *slots; /* device */
    int n_slots;
    int n_ranked; /* the first ones, which have a keep set */
    int dtype;
    int prepared; /* keys are decoded to float first: raw or Hadamard-transformed */
    uint32_t pitch;
    int lanes;
    int threads;
};

cudaError_t launch_fold(const Call &call, const Extent &extent, cudaStream_t stream);
cudaError_t launch_protect(const Call &call, const Extent &extent, const int32_t *slots, int n_slots,
                           cudaStream_t stream);
cudaError_t launch_compare(const Call &call, const Extent &extent, cudaStream_t stream);
cudaError_t launch_score(const Call &call, const Extent &extent, const ScoreLaunch &launch,
                         bool ranked_only, cudaStream_t stream);
/* Normalises raw scores; groups them as well if `grouped`. */
cudaError_t launch_normalise(const Call &call, const Extent &extent, bool ranked_only, bool grouped,
                             cudaStream_t stream);
cudaError_t launch_rank(const Call &call, const Extent &extent, cudaStream_t stream);
/* After an all-reduce, turns what rank left into scores. */
cudaError_t launch_reduced(const Call &call, const Extent &extent, cudaStream_t stream);
cudaError_t launch_pool(const Call &call, const Extent &extent, cudaStream_t stream);
cudaError_t launch_select(const Call &call, const Extent &extent, bool report, cudaStream_t stream);
cudaError_t launch_compact(const Call &call, const Extent &extent, bool moves, bool zero_tail,
                           bool rows_after, cudaStream_t stream);

/* Shared memory of the score kernel. */
static constexpr uint32_t shared_limit = 48 * 1024;
uint32_t score_shared_bytes(int tile_rows, int lanes, uint32_t pitch);
} // namespace tria_gpu

#endif

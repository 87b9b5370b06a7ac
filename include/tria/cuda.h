/*
 * tria/cuda.h - what an engine on CUDA or HIP has to know beyond plan.h. Nothing of either SDK is needed to
 * compile with this header.
 *
 * Streams: tria_batch.stream is the engine's cudaStream_t or hipStream_t; NULL is a stream of the plan's
 * own (which tria_plan_synchronize() waits for). All work of a call is queued on it, in order. Calls of one
 * plan share a workspace: when they go to different streams the engine orders these.
 *
 * Waiting: a call whose results go to host memory (scores, keep sets without tria_device_tables) waits for
 * them. A call that has keep_rows and keep_counts in device memory never waits, allocates or copies K or V;
 * host inputs are copied to pinned memory of the plan before the call returns. The exception are host
 * positions and keep sets in pinned memory, which must stay as they are until the call's work is done.
 *
 * Graphs: such calls may be captured. A captured tria_plan_select() or tria_plan_compact() reads t, rows,
 * positions, page tables, prompts and keep sets from tria_device_tables at every replay; what is given in
 * host memory is what it was when captured, as are the tensors' addresses, the budget and the pins. The
 * event's n_rows bounds the rows of all replays. A plan keeps what the latest capture of each call needs:
 * capture each call once per plan, and capture again after changing what was given in host memory. Between
 * replays the plan may be used outside the graph on the same stream.
 *
 * Memory: K and V are device memory, or pinned or managed host memory. Other host memory is refused, unless
 * tria_plan_params.stage_device_memory is set; then it is copied to the device and, after a compaction,
 * back, and the call waits.
 *
 * Compared with the CPU: scores are f32 only. Kept terms are not used, scores are computed anew; they
 * follow their rows where rows and keep sets are in host memory, else a compaction with terms is refused.
 * Neighbour pooling compares every row of a set with every other when the set's positions are not in
 * order. With an all_reduce rows must be in host memory.
 */
#ifndef TRIA_CUDA_H
#define TRIA_CUDA_H

#include "tria/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The engine's own device, for tria_device_params.native: its ordinal as cudaSetDevice() or hipSetDevice()
 * counts. The plugin uses the device's primary context, as the engine's runtime does. */
typedef struct tria_cuda_device {
    size_t struct_size;
    int32_t ordinal;
    int32_t reserved;
} tria_cuda_device;
#define TRIA_CUDA_DEVICE_INIT                                                                              \
    {                                                                                                      \
        sizeof(tria_cuda_device), 0, 0                                                                     \
    }

#ifdef __cplusplus
}
#endif
#endif

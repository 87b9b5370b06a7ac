/* context.h - the host side of the backend: a device, and a plan's context on it. */
#ifndef TRIA_CUDA_CONTEXT_H
#define TRIA_CUDA_CONTEXT_H

#include "launch.h"
#include "port_runtime.h"
#include "tria/backend_v1.h"

#include <stddef.h>

namespace tria_gpu
{
struct Device {
    const tria_v1_host *host;
    int ordinal;
    int n_multiprocessors;
    char name[256];
};

/* Fills *error (may be NULL) and returns `code`. */
tria_status fail(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* TRIA_OK, or the status that stands for a failed runtime call, `what` saying which. */
tria_status check(cudaError_t result, const char *what, tria_error *error);

/* For calls whose failure changes nothing any more. */
inline void ignore(cudaError_t)
{
}

#define TRIA_GPU_TRY(expression)                                                                           \
    do {                                                                                                   \
        const tria_status tria_try_status = (expression);                                                  \
        if (tria_try_status != TRIA_OK) {                                                                  \
            return tria_try_status;                                                                        \
        }                                                                                                  \
    } while (0)

/* a * b, SIZE_MAX when that does not fit: such an allocation then fails. */
inline size_t times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Arrays side by side in one block of memory that exists twice, here and on the device. Without memory it
 * only measures. */
struct Blob {
    unsigned char *here;
    unsigned char *there;
    size_t used;

    template <class T> T *take(size_t count, const T **on_device)
    {
        const size_t at = (used + 15) / 16 * 16;
        used = at + count * sizeof(T);
        *on_device = there != NULL ? reinterpret_cast<const T *>(there + at) : NULL;
        return here != NULL ? reinterpret_cast<T *>(here + at) : NULL;
    }
};

/* Launches of the score kernel: slots of one element type, or all that are prepared. */
static constexpr int max_score_launches = TRIA_DTYPE_COUNT + 1;

/* Where a call's control data are copied to the device from. */
struct ControlSlot {
    unsigned char *pinned;
    cudaEvent_t uploaded;
    bool in_use; /* `uploaded` has been recorded */
};
/* Calls in flight before one waits for an upload; then one slot for the latest capture of each stage. */
static constexpr int n_ring_slots = 4;
enum Stage { STAGE_SCORE, STAGE_SELECT, STAGE_COMPACT, STAGE_COUNT };
static constexpr int n_control_slots = n_ring_slots + STAGE_COUNT;
/* Prompt ranges of one event that are taken from host memory. */
static constexpr int max_prompts = 1024;

/* A piece of host memory that a call works on through a copy on the device. */
struct StagedRange {
    unsigned char *begin;
    unsigned char *end;
    unsigned char *device; /* where begin lies */
    void *allocation;
    size_t capacity;
};

struct Context {
    const tria_v1_plan *v1;
    const tria_v1_host *host;
    const Device *device;
    cudaStream_t own_stream;
    cudaStream_t last_stream; /* where work was queued last */

    /* the plan, here and on the device */
    Plan plan;
    unsigned char *statics;      /* device */
    const uint8_t *owner_tables; /* device: [4][n_kv] who moves position tables, by which strides are 0 */
    const int32_t *protect_slots[2]; /* device: first slots of sets; all slots */
    int n_protect_slots[2];
    ScoreLaunch launches[max_score_launches];
    int n_launches;
    Extent extent;           /* max_rows and n_events are the call's */
    int32_t *set_slots;      /* [n_sets] host: first slot */
    uint8_t *set_reduces;    /* [n_sets] host: combined with other ranks */
    bool borrows;            /* some set does */
    bool positions_compared; /* modes that combine slots */
    int max_page_entries;
    int n_page_tables; /* per event */

    /* control data of a call */
    ControlSlot control[n_control_slots];
    int next_slot;
    unsigned char *control_device;

    /* device workspace, [max_sequences] of each */
    double *phases;
    float *lin;
    float *raw;
    float *grouped;
    float *final_scores;
    float *pooled;
    float *reduce_counts;
    Partial *partials;
    Normal *normals;
    Normal *kv_normals;
    uint32_t *protect;
    int32_t *counters;
    int32_t *positions;
    int32_t *keep_rows;
    int32_t *keep_counts;
    int32_t *move_begin;
    size_t phase_count;
    size_t lin_count;
    size_t partial_count;
    size_t counter_count;

    /* results on their way to the host, pinned: per event a Report and counts */
    int32_t *results;
    size_t result_count;
    int32_t *compact_scratch;
    tria_event *bare_events; /* [max_sequences] for the host's part of a compaction */
    tria_v1_event *bare_v1_events;
    tria_keep *fetched;    /* [max_sequences] keep sets that `select` left on the device */
    int32_t *fetched_rows; /* [max_sequences][n_sets][max_rows] */
    int32_t *fetched_counts;

    /* staging of host K and V */
    StagedRange *staged;
    int n_staged;
    int max_staged;
    const unsigned char *
        *staged_first; /* [max_staged] the first byte of a tensor that is staged, by place */
    const void *
        *known_bases; /* [max_sequences][n_layers][2] pointers the device can reach: asked about once */
};

/* describe.cpp: geometry of the plan for the kernels. With blob->here NULL it measures. */
void describe(Context *context, Blob *blob);
/* The row of `tensor` as pieces. */
void describe_tensor(const tria_tensor *tensor, int32_t dim, Tensor *out);
/* The widest access that a row's pieces and the distances between them allow. */
int width_of(const Tensor &tensor);
/* What the addresses of an element type's rows must be multiples of. */
int alignment_of(int32_t dtype);
tria_status check_supported(const tria_v1_plan *plan, tria_error *error);
/* Fills sizes, tile shape and launches that need no memory. */
void shape_context(Context *context, const tria_v1_plan *plan);

/* stages.cpp */
tria_status run_score(Context *context, const tria_v1_event *events, int n_events, void *stream,
                      tria_error *error);
tria_status run_select(Context *context, const tria_v1_event *events, int n_events, void *stream,
                       tria_error *error);
tria_status run_compact(Context *context, const tria_v1_event *events, int n_events, void *stream,
                        tria_error *error);

/* control.cpp: the events of a call on the device. */
struct Control {
    Call call;
    const Event *described; /* host copy, valid during the call */
    Extent extent;
    cudaStream_t stream;
    bool capturing;
};
/* Rows of a slot as far as the host knows: N, or a bound; and the most of any slot. */
int host_rows(const tria_v1_event *event, int slot);
int most_rows(const tria_v1_plan *plan, const tria_v1_event *event);
/* Begins a call: finds its stream, stages host K and V, and queues the upload of what describes the events.
 */
tria_status begin_call(Context *context, Stage stage, const tria_v1_event *events, int n_events,
                       void *stream, Control *control, tria_error *error);
size_t control_bytes(const Context *context);
size_t position_count(const Context *context);
/* Queues the copy of host positions to the workspace. */
tria_status upload_positions(Context *context, const tria_v1_event *events, int n_events,
                             const Control *control, tria_error *error);
/* Whether the event's work in `stage` has any effect. */
bool is_idle(const Context *context, Stage stage, const tria_v1_event *event);
/* A field of the event's device tables, NULL when it is not given. */
void *device_table(const tria_v1_event *event, size_t field);
#define TRIA_DEVICE_TABLE(event, field) device_table((event), offsetof(tria_device_tables, field))

/* staging.cpp: K and V in ordinary host memory. */
/* Finds them and queues the copies. */
tria_status stage_event_memory(Context *context, const tria_v1_event *events, int n_events,
                               cudaStream_t stream, bool capturing, tria_error *error);
/* The device's address of what lies `offset` bytes behind a pointer of a view; `place` counts 4 per (event,
 * layer): K, its scales, V, its scales. */
unsigned char *staged_address(const Context *context, int place, const void *pointer, uint64_t offset);
/* Queues the copies back. */
tria_status unstage(Context *context, cudaStream_t stream, tria_error *error);
void release_staging(Context *context);
} // namespace tria_gpu

#endif

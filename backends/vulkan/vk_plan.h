/*
 * vk_plan.h - a plan's context on a device: pipelines, buffers and descriptors, all made at creation.
 */
#ifndef TRIA_VK_PLAN_H
#define TRIA_VK_PLAN_H

#include "vk_layout.h"

#include "tria/vulkan.h"

/* One pipeline per entry of the list of shader variants that the plan uses. */
#define VK_SHADERS(X)                                                                                      \
    X(protect)                                                                                             \
    X(stats)                                                                                               \
    X(group)                                                                                               \
    X(aggregate)                                                                                           \
    X(pool)                                                                                                \
    X(select)                                                                                              \
    X(select_subgroup)                                                                                     \
    X(moves)                                                                                               \
    X(repack_word)                                                                                         \
    X(repack_half)                                                                                         \
    X(repack_byte)                                                                                         \
    X(repack_masked)                                                                                       \
    X(score_f32)                                                                                           \
    X(score_f16)                                                                                           \
    X(score_bf16)                                                                                          \
    X(score_fp8_e4m3fn)                                                                                    \
    X(score_fp8_e4m3fnuz)                                                                                  \
    X(score_fp8_e5m2)                                                                                      \
    X(score_int8)                                                                                          \
    X(score_q8_0)                                                                                          \
    X(score_q4_0)                                                                                          \
    X(score_q4_1)                                                                                          \
    X(score_q5_0)                                                                                          \
    X(score_q5_1)                                                                                          \
    X(score_iq4_nl)
typedef enum vk_shader {
#define VK_ENUM(name) VK_SHADER_##name,
    VK_SHADERS(VK_ENUM)
#undef VK_ENUM
        VK_N_SHADERS
} vk_shader;

/* What of a layer is bound to a descriptor set of its own. */
typedef enum vk_tensor_role { VK_K, VK_K_SCALES, VK_V, VK_V_SCALES, VK_N_ROLES } vk_tensor_role;

enum { VK_N_PARTS = TRIA_PART_COMPACT + 1 };

/* A tensor as the shaders address it: bytes from the bound range, modulo 2^32. */
typedef struct vk_tensor {
    VkDescriptorBufferInfo range;
    uint32_t base;
    uint32_t page_stride;
    uint32_t token_stride;
    uint32_t head_stride;
    uint32_t n_chunks; /* runs of consecutive bytes in a row */
    uint32_t chunk_bytes;
    uint32_t chunk_stride;
} vk_tensor;

/* One sequence of a batch. */
typedef struct vk_sequence {
    vk_buffer inputs; /* device copies of the leading part of `upload` */
    vk_buffer raw;
    vk_buffer work;
    vk_buffer keep;
    vk_buffer upload;
    vk_buffer readback;
    vk_buffer staging; /* K and V of the host, when they are staged: mapped, */
    vk_buffer staged;  /* and where the shaders see them */
    VkDescriptorSet main;
    VkDescriptorSet *sets; /* [n_layers][VK_N_ROLES] */
    vk_tensor *tensors;    /* [n_layers][VK_N_ROLES]: what the sets refer to; range.buffer 0: nothing */
    uint32_t inputs_used;  /* words to upload */
    bool scored;           /* on the device */
    tria_scores scores;    /* where results go; pointers NULL when not wanted */
    tria_keep *keep_out;
    tria_keep last_keep;        /* the last selection, for a compaction without keep sets */
    const tria_v1_event *event; /* of the batch in the buffers */
} vk_sequence;

typedef enum vk_state {
    VK_IDLE,
    VK_RECORDING, /* our command buffer is open */
    VK_RECORDED,  /* the engine's holds work that we do not wait for */
    VK_RUNNING    /* submitted */
} vk_state;

typedef struct vk_context {
    vk_device *device;
    const tria_v1_plan *plan;
    vk_layout layout;
    bool staged; /* keys and values are host memory */
    VkDescriptorSetLayout main_layout;
    VkDescriptorSetLayout tensor_layout;
    VkPipelineLayout pipeline_layout;
    VkPipeline pipelines[VK_N_SHADERS];
    uint32_t tile_words;
    VkDescriptorPool pool;
    vk_buffer constants;
    vk_sequence *sequences; /* [max_sequences] */
    VkCommandPool command_pool;
    VkCommandBuffer own_commands;
    VkFence fence;
    VkQueryPool clock;
    int32_t *compact_scratch;
    int32_t *slot_scratch; /* [n_kv] */
    tria_v1_event *events; /* [max_sequences] copies for a compaction */

    vk_state state;
    VkCommandBuffer commands; /* being recorded */
    tria_vulkan_stream stream;
    int32_t n_events; /* of the batch in the buffers */
    bool selected;    /* its keep sets are known */
    bool deliver_keep;
    bool deliver_compaction; /* recorded before its keep sets were known here */
    bool timed[VK_N_PARTS];  /* the clock has been read at a part's begin and end */
    /* ranges written since the last barrier */
    VkDescriptorBufferInfo *written; /* [max_sequences][n_layers][VK_N_ROLES] */
    int32_t n_written;
} vk_context;

tria_status vk_supports(void *device, const tria_v1_plan *plan, tria_error *error);
tria_status vk_plan_create(void *device, const tria_v1_plan *plan, void **context, tria_error *error);
void vk_plan_destroy(void *context);
tria_status vk_workspace_size(const tria_v1_plan *plan, size_t *host_bytes, size_t *device_bytes,
                              tria_error *error);

tria_status vk_pipelines_create(vk_context *context, tria_error *error);
void vk_pipelines_destroy(vk_context *context);

/* vk_tensor.c */

/* Rows the tile of the score shader holds for a layer; 0: not even one. */
uint32_t vk_tile_rows(const vk_device *device, const tria_v1_plan *plan, const tria_v1_layer *layer);
/* Elements of a row the score shader decodes. */
uint32_t vk_used_dim(const tria_v1_plan *plan, const tria_v1_layer *layer);
/* The elements of a row: `n` runs of consecutive bytes. */
typedef struct vk_chunk_list {
    int64_t n;
    int64_t bytes;
    int64_t stride;
} vk_chunk_list;
void vk_chunks(const tria_tensor *tensor, vk_chunk_list *chunks);
/* Whether V lies inside the rows of K (absorbed MLA) and so moves with them. */
bool vk_v_in_k(const tria_tensor *k, const tria_tensor *v);
/* Describes K (and its scales) of the sequence's event to the shaders, V and scales that belong to rows
 * too with `to_move`. Errors: UNSUPPORTED, ARGUMENT; they name the layer and the limit. */
tria_status vk_bind(vk_context *context, vk_sequence *sequence, const tria_v1_event *event, bool to_move,
                    tria_error *error);
/* Largest of 4, 2 and 1 that divides every address of the tensor's rows. */
uint32_t vk_tensor_unit(const vk_tensor *tensor);

/* vk_stage.c: keys and values that are host memory. */

/* Bytes of each of the two staging buffers of one sequence. */
VkDeviceSize vk_staging_bytes(const tria_v1_plan *plan);
/* The tensors of a layer as the shaders see them, rows packed. */
void vk_staging_layer(const vk_context *context, const vk_sequence *sequence, int32_t layer,
                      const tria_layer_view *host, tria_layer_view *staged);
/* Copies K, with `values` also V, between the staging buffers. */
void vk_record_staged(const vk_context *context, const vk_sequence *sequence, bool values, bool out);
void vk_stage_in(const vk_context *context, vk_sequence *sequence, const tria_v1_event *event, bool values);
void vk_stage_out(const vk_context *context, vk_sequence *sequence, const tria_v1_event *event);

/* vk_time.c */
tria_status vk_clock_create(vk_context *context, tria_error *error);
/* Around the commands of a part. */
void vk_clock_begin(vk_context *context, tria_part part);
void vk_clock_end(vk_context *context, tria_part part);

/* vk_event.c: an event's inputs in the upload buffer; `to_move` leaves out what only scores need.
 * Errors: CAPACITY. */
tria_status vk_event_fill(vk_context *context, vk_sequence *sequence, const tria_v1_event *event,
                          bool to_move, tria_error *error);

/* vk_record.c */
tria_status vk_record_begin(vk_context *context, tria_error *error);
/* What the host has prepared; of staged caches K, and V when rows are to be moved. */
void vk_record_inputs(vk_context *context, bool to_move);
void vk_record_score(vk_context *context);
void vk_record_final_scores(vk_context *context); /* from the upload buffer */
void vk_record_select(vk_context *context);
void vk_record_keep(vk_context *context); /* from the upload buffer */
void vk_record_compact(vk_context *context);
tria_status vk_record_end(vk_context *context, tria_error *error);
/* Submits our command buffer, with the stream's semaphores. */
tria_status vk_submit(vk_context *context, tria_error *error);
tria_status vk_wait(vk_context *context, tria_error *error);

/* vk_output.c: results to the caller, after the device has finished. */
tria_status vk_deliver(vk_context *context, tria_error *error);

/* vk_backend.c's table entries */
tria_status vk_score(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                     tria_error *error);
tria_status vk_select(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                      tria_error *error);
tria_status vk_compact(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                       tria_error *error);
tria_status vk_synchronize(void *context, tria_error *error);
double vk_seconds(void *context, int32_t part);
tria_status vk_copy_seconds(void *device, size_t bytes, double *seconds, tria_error *error);

#endif

/*
 * tria/backend_v1.h - the table a backend fills in; version 1. For authors of backends, not engines.
 *
 * A plugin exports `const tria_backend_v1_table tria_backend_v1`. The core checks version and size, then
 * probes, then opens. All heavy thinking is done before: the core hands over a resolved description of
 * the plan (dense slots, groups, sets, who takes part) and, per event, checked inputs. What remains for
 * a backend is arithmetic:
 *
 *   raw[q][i]  = agg_o  sum_d lin[q][o][d] * x_i[d]  +  sum_f mag[q][f] * |k_i,f|
 *
 * where x_i is the row as stored (for TRIA_K_HADAMARD `lin` already contains the transform, the
 * magnitudes need it undone; for TRIA_K_RAW x_i is first rotated to its position), `lin` holds trig and
 * content terms in the order of the stored dimensions, and k_i,f is the complex rotary pair f.
 */
#ifndef TRIA_BACKEND_V1_H
#define TRIA_BACKEND_V1_H

#include "tria/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRIA_BACKEND_V1_VERSION 1
/* Positions have three digits in this base, see rotation_tables. */
#define TRIA_ROTATION_DIGITS 2048

/* One layer of the plan. */
typedef struct tria_v1_layer {
    int32_t model_layer;
    int32_t n_q_heads;  /* in this plan's slice */
    int32_t n_kv_heads; /* with a cache of its own; 0 = none (kv_source, no attention) */
    int32_t first_q_slot;
    int32_t first_kv_slot;
    int32_t head_dim;
    int32_t rotary_dim;
    int32_t rotary_offset;
    int32_t rope_style;
    int32_t n_freq;   /* rotary_dim / 2 */
    int32_t kv_layer; /* plan layer whose cache its query heads read: itself or kv_source; -1 none */
    int32_t window;
    int32_t takes_part;  /* in modes that pool layers (per_head, union, global): has a cache, no window */
    int32_t by_position; /* nothing calibrated: its own sets are ranked by position */
    int32_t phase_layer; /* first plan layer with the same inv_freq: shares its phases */
    double weight;       /* layer_weight / mean(layer_weight): the factor of `global` */
    int32_t budget;      /* of its sets, before prompt rows are added and rows cap it */
    const double *inv_freq;      /* [n_freq] */
    const double *freq_scale_sq; /* [n_freq] */
    tria_tensor k;               /* base NULL: geometry only */
    tria_tensor v;
} tria_v1_layer;

/* One (layer, query head). */
typedef struct tria_v1_query {
    int32_t layer;      /* plan layer the head belongs to (its statistics) */
    int32_t kv_slot;    /* the keys it scores; -1: none */
    int32_t calibrated; /* 0: raw is NaN, takes no part */
    int32_t reserved;
    int64_t lin_offset;       /* floats, into what fold() writes: [n_lin][k.dim of kv_layer] */
    int64_t mag_offset;       /* floats, into desc->mag and desc->content */
    const float *q_mean_real; /* [n_freq], NULL when not calibrated */
    const float *q_mean_imag;
    const float *q_abs_mean;
    const float *content_mean; /* [head_dim - rotary_dim] or NULL */
} tria_v1_query;

/* One (layer, KV head) with a cache. */
typedef struct tria_v1_kv {
    int32_t layer;
    int32_t head;        /* in the plan's slice; the address uses kv_head_first + head only when the
                            view covers all heads: views always hold the slice, so it is `head` */
    int32_t set;         /* keep set it obeys, -1: none */
    int32_t group_begin; /* its query slots: desc->group[group_begin .. group_end) */
    int32_t group_end;
    int32_t n_calibrated; /* calibrated ones among them */
    int32_t borrows; /* it has no score of its own and takes the mean z of the calibrated query heads of its
                        layer (per_layer_per_head) or of all layers, other ranks' too (per_head) */
} tria_v1_kv;

typedef struct tria_v1_plan {
    size_t struct_size;
    const tria_plan_params *params; /* resolved: every default filled in */
    int32_t n_layers;
    int32_t n_queries;
    int32_t n_kv;
    int32_t n_sets;
    const tria_v1_layer *layers;
    const tria_v1_query *queries;
    const tria_v1_kv *kv;
    const int32_t *group; /* query slots by KV slot, calibrated or not */
    int32_t n_group;
    int32_t n_lin; /* vectors per query head: 1 (mean) or the number of offsets (max) */
    int32_t k_state;
    int32_t hadamard_size; /* 0 unless TRIA_K_HADAMARD */
    const float *hadamard_signs;
    int32_t all_by_position; /* nothing at all is calibrated */
    int32_t partial_heads;   /* other ranks own other KV heads of these layers */
    int32_t partial_layers;  /* other ranks own other layers */
    int32_t tokens_per_page; /* 0: no page table */
    int64_t lin_count;       /* floats fold() writes */
    int64_t mag_count;
    int32_t max_rows;
    int32_t max_group;    /* largest number of calibrated query heads that share a KV head */
    double *fold_scratch; /* the core's, for fold() and phases() */
    const float *mag;     /* norm coefficients, [n_freq] at mag_offset; rounded once from double */
} tria_v1_plan;

/* One sequence, checked. */
typedef struct tria_v1_event {
    const tria_event *event;     /* as given */
    const int32_t *rows;         /* [n_kv] N of each; NULL when they are in device memory */
    const int32_t *set_budgets;  /* [n_sets] before prompt rows are added (count_prompt 0) */
    const tria_scores *scores;   /* wanted outputs or NULL */
    tria_keep *keep;             /* select: output; compact: input */
    tria_compaction *compaction; /* compact: output or NULL */
    const float *final_scores;   /* select: given when another backend scored, [n_sets][max_rows] */
} tria_v1_event;

/* Services of the core, so that no backend repeats them. */
typedef struct tria_v1_host {
    size_t struct_size;
    const tria_env *env;
    /* All `lin` vectors for position t (double phases, range reduced, rounded once). with_content = 0
     * leaves content terms out, for kept terms. */
    void (*fold)(const tria_v1_plan *plan, int64_t t, int32_t with_content, float *lin);
    /* What is common to the query heads of a layer: out[o][f][2] = the complex factor that
     * freq_scale_sq * q_mean is multiplied by, mean over offsets when n_lin is 1. */
    void (*phases)(const tria_v1_plan *plan, int32_t layer, int64_t t, float *out);
    /* e^{i p w_f} for raw keys as a product of three table entries, digits of p in base 2048:
     * out[3][TRIA_ROTATION_DIGITS][n_freq][2]. */
    void (*rotation_tables)(const tria_v1_plan *plan, int32_t layer, float *out);
    void (*log)(const tria_env *env, tria_log_level level, const char *format, ...);
    /* The host's part of a compaction, for backends that move rows of K and V themselves: all checks
     * first, then positions, moves and the report. Each event's rows and keep sets must be in host memory.
     * `scratch` holds compact_scratch(plan) elements. */
    size_t (*compact_scratch)(const tria_v1_plan *plan);
    tria_status (*compact)(const tria_v1_plan *plan, const tria_v1_event *events, int32_t n_events,
                           int32_t *scratch, tria_error *error);
} tria_v1_host;

typedef struct tria_v1_device_info {
    char name[256];
    char uuid[33]; /* hexadecimal, "" when there is none */
    int32_t is_cpu;
    int32_t reserved;
    int64_t memory; /* bytes, 0 = unknown */
} tria_v1_device_info;

typedef struct tria_backend_v1_table {
    uint32_t struct_size;
    uint32_t version; /* TRIA_BACKEND_V1_VERSION */
    const char *name; /* "cuda", "hip", "vulkan", ... */
    /* Number of usable devices, >= 0, or a negative status with the reason in error. */
    int32_t (*probe)(tria_error *error);
    tria_status (*device_info)(int32_t index, tria_v1_device_info *info, tria_error *error);
    tria_status (*device_open)(const tria_device_params *params, const tria_v1_host *host, void **device,
                               tria_error *error);
    void (*device_close)(void *device);
    const char *(*device_name)(const void *device);
    /* OK, or UNSUPPORTED with layer and missing feature in error. */
    tria_status (*supports)(void *device, const tria_v1_plan *plan, tria_error *error);
    /* `plan` outlives the created context. Everything the events will need is allocated here. */
    tria_status (*plan_create)(void *device, const tria_v1_plan *plan, void **context, tria_error *error);
    void (*plan_destroy)(void *context);
    /* The stages of a batch. `select` uses what the last `score` left in the context unless final_scores
     * is given; `compact` uses event->keep, or what `select` left in the context when keep is NULL. */
    tria_status (*score)(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                         tria_error *error);
    tria_status (*select)(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                          tria_error *error);
    tria_status (*compact)(void *context, const tria_v1_event *events, int32_t n_events, void *stream,
                           tria_error *error);
    tria_status (*synchronize)(void *context, tria_error *error);
    /* Bytes of host and device memory plan_create() would take. */
    tria_status (*workspace_size)(const tria_v1_plan *plan, size_t *host_bytes, size_t *device_bytes,
                                  tria_error *error);
    /* What tria_plan_seconds() and tria_device_copy_seconds() return; NULL where nothing is measured. */
    double (*seconds)(void *context, int32_t part);
    tria_status (*copy_seconds)(void *device, size_t bytes, double *seconds, tria_error *error);
} tria_backend_v1_table;

#ifdef __cplusplus
}
#endif
#endif

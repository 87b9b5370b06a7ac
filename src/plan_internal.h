/*
 * plan_internal.h - the plan handle: the resolved description every backend works from, the backend
 * context of each stage, and the checked form of the events of one call.
 */
#ifndef TRIA_PLAN_INTERNAL_H
#define TRIA_PLAN_INTERNAL_H

#include "internal.h"
#include "tria/backend_v1.h"

/* One backend's open device. */
struct tria_device {
    tria_env env;
    tria_v1_host host;
    const tria_backend_v1_table *table;
    void *handle;
    tria_backends *backends; /* kept alive by the device */
};

/* The built-in backends. */
extern const tria_backend_v1_table tria_cpu_backend;
extern const tria_backend_v1_table tria_reference_backend;

/* The services handed to backends; `env` must outlive `host`. */
void tria_host_init(tria_v1_host *host, const tria_env *env);

/* fold.c: the query side in double, see tria_v1_host. The _f64 form is the reference backend's. */
void tria_fold_f32(const tria_v1_plan *plan, int64_t t, int32_t with_content, float *lin);
void tria_fold_f64(const tria_v1_plan *plan, int64_t t, int32_t with_content, double *lin);
void tria_fold_mag_f64(const tria_v1_plan *plan, int32_t query, double *mag); /* [n_freq] */
void tria_phases_f32(const tria_v1_plan *plan, int32_t layer, int64_t t, float *out);
void tria_rotation_tables_f32(const tria_v1_plan *plan, int32_t layer, float *out);
/* cos and sin of n*w for 0 <= n < 2^53. */
void tria_phase(int64_t n, double w, double *cosine, double *sine);

/* plan_resolve.c: the mutable owner of a tria_v1_plan. Everything in `plan` points into memory of this
 * struct. */
typedef struct tria_resolved {
    tria_env env;
    tria_plan_params params; /* complete; pointers that are not kept are NULL */
    tria_v1_plan plan;
    tria_v1_layer *layers;
    tria_v1_query *queries;
    tria_v1_kv *kv;
    int32_t *group;
    float *mag;
    float *stats;        /* all query statistics */
    double *frequencies; /* all inv_freq and freq_scale_sq */
    float *weights;      /* [n_layers] as given or from the calibration */
    float *signs;
    double *fold_scratch;
} tria_resolved;

tria_status tria_resolve(const tria_plan_params *params, const tria_env *env, tria_resolved *resolved,
                         tria_error *error);
void tria_resolved_release(tria_resolved *resolved);
/* Rows each set may keep for a logical budget, before prompt rows and N are considered. */
int32_t tria_set_budget(const tria_v1_plan *plan, const float *weights, int32_t layer, int32_t budget);

/* Whether this rank holds only a part of what its sets' scores are made of. */
bool tria_needs_reduce(const tria_v1_plan *plan);

/* A stage's backend: where it runs and its context there. */
typedef struct tria_stage {
    const tria_backend_v1_table *table;
    void *context;
    bool owned; /* false: the context is another stage's */
} tria_stage;

struct tria_plan {
    tria_env env;
    tria_resolved resolved;
    tria_v1_host host;
    tria_stage score;
    tria_stage select;
    tria_stage compact;
    float *handed_scores; /* [max_sequences][n_sets][max_rows], only when select runs elsewhere */
    /* the events of the current call */
    tria_event *events;       /* [max_sequences] in the latest form */
    tria_v1_event *v1_events; /* [max_sequences] */
    tria_scores *scores;
    tria_keep *keeps;       /* out of select */
    tria_keep *given_keeps; /* in to compact */
    tria_compaction *compactions;
    /* what the caller gave for results that a stream completes later; tria_plan_synchronize() fills them */
    void *late_keeps;
    void *late_compactions;
    int32_t n_late_keeps;
    int32_t n_late_compactions;
    int32_t *rows;        /* [max_sequences][n_kv] */
    int32_t *set_budgets; /* [max_sequences][n_sets] */
};

/* plan_event.c: imports and checks a batch into the arrays above. */
enum {
    TRIA_CHECK_KV = 1U,     /* a view is needed */
    TRIA_CHECK_ALIGNED = 2U /* final scores are wanted: pooled layers and heads must hold the same rows */
};
tria_status tria_plan_import_batch(tria_plan *plan, const tria_batch *batch, unsigned checks, void **stream,
                                   int32_t *n_events, tria_error *error);

/* Elements per Hadamard block of a layer whose rows store `dim` elements. */
static inline int32_t tria_hadamard_block(const tria_v1_plan *plan, int32_t dim)
{
    return plan->hadamard_size != 0 ? plan->hadamard_size : dim;
}

/* Positions of one (layer, head) of an event, NULL for 0 ... N-1. */
static inline int32_t *tria_event_positions(const tria_event *event, int32_t layer, int32_t head)
{
    if (event->positions == NULL) {
        return NULL;
    }
    return event->positions + layer * event->positions_layer_stride + head * event->positions_head_stride;
}

#endif

/*
 * pipeline.h - the CPU backend's context and the steps of an event.
 *
 *     score.c       per KV head: raw scores of its group, moments, normalise and group   (sections 2, 3)
 *     aggregate.c   per set: over heads and layers by mode, neighbour pooling            (section 3)
 *     select.c      per set: protected rows and best candidates                          (section 4)
 *     backend.c     memory, workers, and the backend table
 */
#ifndef TRIA_CPU_PIPELINE_H
#define TRIA_CPU_PIPELINE_H

#include "cpu/kernels.h"
#include "cpu/rules.h"
#include "cpu/threads.h"
#include "plan_internal.h"

#include <stdatomic.h>
#include <time.h>

/* What one worker needs beside its job; workers never share it. Heads are those of one job. */
typedef struct tria_worker {
    float *raw;              /* [max_job_heads][stride] */
    float **out;             /* [max_job_heads] where the raw scores of each head go */
    const float **lin;       /* [max_job_heads] */
    const float **mag;       /* [max_job_heads] */
    float **terms;           /* [max_job_heads] kept terms */
    float **new_terms;       /* [max_job_heads] from the first row whose terms are not known */
    const float **content;   /* [max_job_heads] */
    uint8_t *has_content;    /* [max_job_heads] */
    tria_moments *moments;   /* [max_job_heads] */
    tria_head_scale *scales; /* [max_job_heads] */
    tria_score_job *jobs;    /* [max_job_slots] */
    tria_score_job *new_jobs;
    tria_rows *key_rows; /* [max_job_slots] */
    int32_t *slots;      /* [max_job_slots] that `jobs` are of */
    uint8_t *mask;       /* [stride] protected rows */
    uint32_t *words;     /* [2][stride] selection and ordering */
    float *row;          /* [stride] one row of scores */
    void *kernel_scratch;
    double seconds[TRIA_PART_COMPACT]; /* by tria_part */
} tria_worker;

typedef struct tria_cpu_context tria_cpu_context;
typedef void (*tria_cpu_job)(tria_cpu_context *c, tria_worker *worker, int32_t job);

struct tria_cpu_context {
    const tria_v1_plan *plan;
    const tria_v1_host *host;
    const tria_cpu_kernels *kernels;
    tria_pool *pool;
    tria_parallel_for parallel_for;
    void *parallel_context;
    int32_t n_workers;
    tria_worker *workers;
    int64_t stride;         /* rows per slot: max_rows, rounded up to whole cache lines */
    bool has_sums;          /* some KV head borrows scores */
    bool scores_reach_sets; /* per_layer_per_head: grouped scores are the final ones */
    float *lin;             /* [lin_count] of the current event */
    float *content;         /* [lin_count] what of `lin` does not depend on the event */
    int32_t *score_jobs;    /* [n_score_jobs + 1] first KV slots; a job is some heads of one layer */
    int32_t n_score_jobs;
    int32_t max_job_slots;
    int32_t max_job_heads;
    float *grouped;   /* [n_kv][stride] of the current event, unless scores_reach_sets */
    float *sums;      /* [n_kv][stride] sum of z over the slot's calibrated heads, when has_sums */
    float *counts;    /* [n_kv][stride] how many of them are finite */
    float *final;     /* [max_sequences][n_sets][stride] */
    float *reduce;    /* [stride] counts that travel with an all-reduced mean */
    float *zeros;     /* [stride] */
    float **rotation; /* [n_layers] tables, shared between layers of equal frequencies; raw keys only */
    _Atomic uint8_t *bad_rows; /* [stride] */
    int32_t *n_nan;            /* [max_sequences] */
    _Atomic int32_t n_zero_heads;
    int32_t *zero_heads; /* [max_sequences] */
    void *compact_scratch;
    double compact_seconds;

    /* the jobs of the current step */
    const tria_v1_event *event;
    int32_t event_index;
    int32_t n_jobs;
    _Atomic int32_t next_job;
    tria_cpu_job job;
    tria_part part;
    _Atomic int32_t over_budget;
};

/* Runs `job` for 0 ... n_jobs-1 on all workers. */
void tria_cpu_run(tria_cpu_context *c, tria_cpu_job job, int32_t n_jobs, tria_part part);

/* The grouped scores of a KV slot in the current event. */
float *tria_cpu_grouped(const tria_cpu_context *c, int32_t slot);
/* The final scores of a set in the current event. */
float *tria_cpu_final(const tria_cpu_context *c, int32_t set);

static inline double tria_cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
/* Adds the time since *start to a part of the worker's, and starts anew. */
static inline void tria_cpu_lap(tria_worker *worker, tria_part part, double *start)
{
    const double now = tria_cpu_now();
    worker->seconds[part] += now - *start;
    *start = now;
}

/* The steps; each a tria_cpu_job over score jobs or sets. */
void tria_cpu_score_heads(tria_cpu_context *c, tria_worker *worker, int32_t job);
void tria_cpu_aggregate_set(tria_cpu_context *c, tria_worker *worker, int32_t set);
void tria_cpu_pool_set(tria_cpu_context *c, tria_worker *worker, int32_t set);
void tria_cpu_select_set(tria_cpu_context *c, tria_worker *worker, int32_t set);
/* Between aggregating and pooling, on the calling thread. */
tria_status tria_cpu_reduce(tria_cpu_context *c, void *stream, tria_error *error);

#endif

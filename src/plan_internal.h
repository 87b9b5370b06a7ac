/*
 * plan_internal.h - the plan handle: the resolved description every backend works from, and the backend
 * context of each stage.
 */
#ifndef TRIA_PLAN_INTERNAL_H
#define TRIA_PLAN_INTERNAL_H

#include "internal.h"
#include "tria/backend_v1.h"

/* One backend's open device. */
struct tria_device {
    tria_env env;
    tria_backends *backends; /* NULL for built-in backends opened by the core itself */
    const tria_backend_v1_table *table;
    void *handle;
};

/* The built-in backends. */
extern const tria_backend_v1_table tria_cpu_backend;
extern const tria_backend_v1_table tria_reference_backend;

/* The services handed to backends; `env` is the plan's or device's. */
void tria_host_init(tria_v1_host *host, const tria_env *env);

/* fold.c: the query side in double, see tria_v1_host. The _f64 form is the reference backend's. */
void tria_fold_f32(const tria_v1_plan *plan, int64_t t, int32_t with_content, float *lin);
void tria_fold_f64(const tria_v1_plan *plan, int64_t t, int32_t with_content, double *lin);
void tria_fold_mag_f64(const tria_v1_plan *plan, int32_t query, double *mag); /* [n_freq] */
void tria_phases_f32(const tria_v1_plan *plan, int32_t layer, int64_t t, float *out);
void tria_rotation_tables_f32(const tria_v1_plan *plan, int32_t layer, float *out);
/* cos and sin of n*w, n up to 2^32: the product is formed exactly in two doubles and reduced mod 2 pi. */
void tria_phase(int64_t n, double w, double *cosine, double *sine);

#endif

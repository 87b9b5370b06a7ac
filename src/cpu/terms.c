/* terms.c - norm and content terms kept between events. */
#include "cpu/terms.h"
#include "cpu/rules.h"
#include "plan_internal.h"

#include <string.h>

struct tria_terms {
    tria_env env;
    int32_t n_kv;
    int32_t n_group;
    int32_t max_rows;
    int64_t stride;
    int32_t *group_begin; /* [n_kv + 1] */
    int32_t *known;       /* [n_kv] */
    float *values;        /* [n_group][stride] */
};

tria_status tria_terms_create(const tria_plan *plan, const tria_env *env, tria_terms **out,
                              tria_error *error)
{
    tria_env full_env;
    if (plan == NULL || out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_terms_create: plan or terms is NULL");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    const tria_v1_plan *v1 = &plan->resolved.plan;
    tria_terms *terms = tria_alloc(&full_env, 1, sizeof(*terms));
    if (terms == NULL) {
        return tria_fail_memory(error, sizeof(*terms), "kept terms");
    }
    terms->env = full_env;
    terms->n_kv = v1->n_kv;
    terms->n_group = v1->n_group;
    terms->max_rows = v1->max_rows;
    terms->stride = tria_row_stride(v1->max_rows);
    terms->group_begin = tria_alloc(&full_env, (size_t)v1->n_kv + 1, sizeof(int32_t));
    terms->known = tria_alloc(&full_env, (size_t)v1->n_kv, sizeof(int32_t));
    terms->values = tria_alloc(&full_env, (size_t)v1->n_group * (size_t)terms->stride, sizeof(float));
    if (terms->group_begin == NULL || terms->known == NULL || terms->values == NULL) {
        const size_t bytes = (size_t)v1->n_group * (size_t)terms->stride * sizeof(float);
        tria_terms_destroy(terms);
        return tria_fail_memory(error, bytes, "kept terms");
    }
    for (int32_t s = 0; s < v1->n_kv; s++) {
        terms->group_begin[s] = v1->kv[s].group_begin;
        terms->group_begin[s + 1] = v1->kv[s].group_end;
    }
    *out = terms;
    return TRIA_OK;
}

void tria_terms_destroy(tria_terms *terms)
{
    if (terms != NULL) {
        const tria_env env = terms->env;
        tria_free(&env, terms->group_begin);
        tria_free(&env, terms->known);
        tria_free(&env, terms->values);
        tria_free(&env, terms);
    }
}

void tria_terms_invalidate(tria_terms *terms, int32_t first_row)
{
    const int32_t first = first_row > 0 ? first_row : 0;
    for (int32_t s = 0; terms != NULL && s < terms->n_kv; s++) {
        terms->known[s] = terms->known[s] < first ? terms->known[s] : first;
    }
}

tria_status tria_terms_check(const tria_terms *terms, const tria_v1_plan *plan, tria_error *error)
{
    if (terms != NULL && (terms->n_kv != plan->n_kv || terms->n_group != plan->n_group ||
                          terms->max_rows != plan->max_rows)) {
        return tria_fail(error, TRIA_E_MISMATCH, "kept terms that were made for another plan");
    }
    return TRIA_OK;
}

float *tria_terms_of(tria_terms *terms, int32_t group)
{
    return terms->values + group * terms->stride;
}

int32_t tria_terms_known(const tria_terms *terms, int32_t kv_slot)
{
    return terms->known[kv_slot];
}

void tria_terms_set_known(tria_terms *terms, int32_t kv_slot, int32_t n_rows)
{
    terms->known[kv_slot] = n_rows;
}

void tria_terms_move(tria_terms *terms, int32_t kv_slot, const tria_gather *gather)
{
    int32_t *known = &terms->known[kv_slot];
    if (gather->keep == NULL) {
        return;
    }
    for (int32_t g = terms->group_begin[kv_slot]; g < terms->group_begin[kv_slot + 1]; g++) {
        const tria_lane lane = {
            (unsigned char *)tria_terms_of(terms, g), NULL, 0, sizeof(float), 0, sizeof(float)};
        tria_gather_lane(gather, &lane);
    }
    if (*known >= gather->n_rows) {
        *known = gather->count;
    } else if (*known > gather->in_place) {
        *known = gather->in_place; /* rows whose terms are not known may have moved in behind */
    }
}

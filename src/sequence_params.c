/* sequence_params.c - from the caller's settings to rows, and everything that can never work. */
#include "plan_internal.h"
#include "sequence_internal.h"

#include <math.h>
#include <string.h>

void tria_policy_params_init(tria_policy_params *params)
{
    const tria_policy_params defaults = TRIA_POLICY_PARAMS_INIT;
    *params = defaults;
}

static tria_status resolve_capacity(tria_policy *policy, const tria_policy_params *p, tria_error *error)
{
    int64_t rows = p->capacity;
    if (p->tokens_per_page < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: tokens_per_page %d is negative",
                         p->tokens_per_page);
    }
    if (p->kv_bytes != 0 || p->bytes_per_row != 0) {
        if (p->capacity != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "policy: capacity %d and kv_bytes %lld both set the rows there", p->capacity,
                             (long long)p->kv_bytes);
        }
        if (p->kv_bytes < 0 || p->bytes_per_row < 1) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "policy: kv_bytes %lld needs bytes_per_row >= 1, which is %lld",
                             (long long)p->kv_bytes, (long long)p->bytes_per_row);
        }
        rows = p->kv_bytes / p->bytes_per_row;
        if (rows > INT32_MAX) {
            rows = INT32_MAX;
        }
    }
    policy->tokens_per_page = p->tokens_per_page > 1 ? p->tokens_per_page : 0;
    if (policy->tokens_per_page > 0) {
        rows -= rows % policy->tokens_per_page;
    }
    policy->capacity = (int32_t)rows;
    return TRIA_OK;
}

static tria_status resolve_budget(tria_policy *policy, const tria_policy_params *p, tria_error *error)
{
    policy->budget = p->budget;
    if (p->budget_percent != 0.0) {
        if (p->budget != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: budget %d and budget_percent %g are both set",
                             p->budget, p->budget_percent);
        }
        if (!(p->budget_percent > 0.0 && p->budget_percent <= 100.0)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: budget_percent %g is not in 0..100",
                             p->budget_percent);
        }
        /* Multiplied first: 29/100*100 is below 29 in floating point. */
        policy->budget = (int32_t)floor(policy->capacity * p->budget_percent / 100.0);
        if (policy->budget == 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: %g percent of %d rows is no row",
                             p->budget_percent, policy->capacity);
        }
    }
    policy->largest_budget = p->largest_budget != 0 ? p->largest_budget : policy->budget;
    return TRIA_OK;
}

tria_status tria_policy_resolve(tria_policy *policy, const tria_policy_params *params, tria_error *error)
{
    tria_policy_params p;
    tria_policy_params_init(&p);
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_policy_params", error));
    memset(policy, 0, sizeof(*policy));
    TRIA_TRY(resolve_capacity(policy, &p, error));
    TRIA_TRY(resolve_budget(policy, &p, error));
    policy->interval = p.interval;
    policy->n_recent = p.n_recent;
    policy->n_sink = p.n_sink;
    policy->in_flight = p.in_flight;
    policy->protect_prefill = p.protect_prefill != 0;
    policy->count_prompt = p.count_prompt != 0;
    policy->prefill_compaction = p.allow_prefill_compaction != 0 && p.protect_prefill == 0;
    policy->mode = p.mode;
    policy->order = p.order;
    policy->in_place = p.in_place != 0;
    policy->row_bucket = p.row_bucket;
    policy->n_ramp = p.n_ramp;
    if (p.n_ramp < 0 || p.n_ramp > TRIA_MAX_RAMP || (p.n_ramp > 0 && p.ramp == NULL)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: n_ramp %d is not in 0..%d, or ramp is NULL",
                         p.n_ramp, TRIA_MAX_RAMP);
    }
    for (int32_t i = 0; i < p.n_ramp; i++) {
        policy->ramp[i] = p.ramp[i];
    }
    TRIA_TRY(tria_policy_check(policy, error));
    const bool calibrated =
        p.plan != NULL ? p.plan->resolved.plan.all_by_position == 0 : p.calibration != NULL;
    if (policy->budget > 0 && !calibrated && p.own_keep_sets == 0) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "policy: a budget of %d rows but no calibration to rank them by", policy->budget);
    }
    return TRIA_OK;
}

static tria_status check_numbers(const tria_policy *p, tria_error *error)
{
    const struct {
        const char *name;
        int32_t value;
        int32_t minimum;
    } numbers[] = {
        {"tokens_per_page", p->tokens_per_page, 0},
        {"budget", p->budget, 0},
        {"largest_budget", p->largest_budget, 0},
        {"interval", p->interval, 1},
        {"n_recent", p->n_recent, 0},
        {"n_sink", p->n_sink, 0},
        {"in_flight", p->in_flight, 0},
        {"row_bucket", p->row_bucket, 1},
    };
    for (size_t i = 0; i < TRIA_ARRAY_LEN(numbers); i++) {
        if (numbers[i].value < numbers[i].minimum) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: %s %d is below %d", numbers[i].name,
                             numbers[i].value, numbers[i].minimum);
        }
    }
    for (int32_t i = 0; i < p->n_ramp; i++) {
        if (!(p->ramp[i] > 0.0 && p->ramp[i] <= 100.0)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: ramp[%d] = %g is not in (0, 100]", i,
                             p->ramp[i]);
        }
    }
    return TRIA_OK;
}

tria_status tria_policy_check(const tria_policy *p, tria_error *error)
{
    TRIA_TRY(check_numbers(p, error));
    if (p->mode < TRIA_MODE_PER_LAYER_PER_HEAD || p->mode > TRIA_MODE_GLOBAL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: mode %d is unknown", p->mode);
    }
    if (p->order != TRIA_ORDER_STABLE && p->order != TRIA_ORDER_FILL_HOLES) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: order %d is unknown", p->order);
    }
    if (p->in_place && p->order != TRIA_ORDER_STABLE) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: in_place moves no row, its order is stable");
    }
    if (p->capacity < 1) {
        return tria_fail(error, TRIA_E_CAPACITY, "policy: a capacity of %d rows", p->capacity);
    }
    if (p->budget == 0) {
        return TRIA_OK;
    }
    if ((int64_t)p->n_sink + p->n_recent >= p->budget) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "policy: n_sink %d + n_recent %d >= budget %d leaves no row to choose", p->n_sink,
                         p->n_recent, p->budget);
    }
    if (p->largest_budget < p->budget) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: largest_budget %d is below budget %d",
                         p->largest_budget, p->budget);
    }
    if ((int64_t)p->largest_budget + p->interval + p->in_flight > p->capacity) {
        return tria_fail(error, TRIA_E_CAPACITY,
                         "policy: budget %d + interval %d + in_flight %d = %lld rows, the capacity is %d",
                         p->largest_budget, p->interval, p->in_flight,
                         (long long)p->largest_budget + p->interval + p->in_flight, p->capacity);
    }
    return TRIA_OK;
}

tria_status tria_policy_to_plan(const tria_policy_params *params, tria_plan_params *plan, tria_error *error)
{
    tria_policy policy;
    tria_plan_params p;
    TRIA_TRY(tria_policy_resolve(&policy, params, error));
    tria_plan_params_init(&p);
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), plan, "tria_plan_params", error));
    p.mode = policy.mode;
    p.order = policy.order;
    p.budget = policy.budget;
    p.n_sink = policy.n_sink;
    p.n_recent = policy.n_recent;
    p.protect_prefill = policy.protect_prefill;
    p.count_prompt = policy.count_prompt;
    p.max_rows = policy.capacity;
    return tria_struct_export(plan, &p, sizeof(p), sizeof(p), "tria_plan_params", error);
}

tria_status tria_policy_check_plan(const tria_policy *policy, const tria_plan_params *plan,
                                   tria_error *error)
{
    const struct {
        const char *name;
        int32_t here;
        int32_t there;
    } settings[] = {
        {"mode", policy->mode, plan->mode},
        {"order", policy->order, plan->order},
        {"budget", policy->budget, plan->budget},
        {"n_sink", policy->n_sink, plan->n_sink},
        {"n_recent", policy->n_recent, plan->n_recent},
        {"protect_prefill", policy->protect_prefill, plan->protect_prefill != 0},
        {"count_prompt", policy->count_prompt, plan->count_prompt != 0},
    };
    for (size_t i = 0; i < TRIA_ARRAY_LEN(settings); i++) {
        if (settings[i].here != settings[i].there) {
            return tria_fail(error, TRIA_E_MISMATCH, "policy: %s is %d here and %d in the plan",
                             settings[i].name, settings[i].here, settings[i].there);
        }
    }
    if (plan->max_rows < policy->capacity) {
        return tria_fail(error, TRIA_E_MISMATCH, "policy: capacity %d is above the plan's max_rows %d",
                         policy->capacity, plan->max_rows);
    }
    return TRIA_OK;
}

/* Which keep set (layer, head) obeys, numbered as in plans, when there is no plan to ask. */
static int32_t set_of(int32_t mode, int32_t slot, int32_t layer_index, int32_t head)
{
    switch (mode) {
    case TRIA_MODE_PER_LAYER_PER_HEAD:
        return slot;
    case TRIA_MODE_PER_HEAD:
        return head;
    case TRIA_MODE_PER_LAYER:
        return layer_index;
    default:
        return 0;
    }
}

static tria_status count_heads(tria_tables *tables, const tria_policy_params *p, tria_error *error)
{
    for (int32_t l = 0; l < tables->n_layers; l++) {
        const int32_t heads = p->plan != NULL       ? p->plan->resolved.layers[l].n_kv_heads
                              : p->kv_heads != NULL ? p->kv_heads[l]
                                                    : p->n_kv_heads;
        if (heads < 0 || heads > TRIA_MAX_HEADS) {
            return tria_fail(error, TRIA_E_ARGUMENT, "policy: layer %d has %d KV heads", l, heads);
        }
        tables->kv_heads[l] = heads;
        tables->n_heads = heads > tables->n_heads ? heads : tables->n_heads;
        tables->n_slots += heads;
    }
    return tables->n_slots > 0 ? TRIA_OK
                               : tria_fail(error, TRIA_E_ARGUMENT, "policy: no layer has a KV head");
}

tria_status tria_tables_resolve(tria_tables *tables, const tria_policy *policy,
                                const tria_policy_params *params, const tria_env *env, tria_error *error)
{
    tria_policy_params p;
    tria_policy_params_init(&p);
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_policy_params", error));
    const int32_t mode = policy->mode;
    const bool shared = mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
    if (p.plan != NULL) {
        TRIA_TRY(tria_policy_check_plan(policy, &p.plan->resolved.params, error));
        p.n_layers = p.plan->resolved.plan.n_layers;
    } else if (p.n_layers == 0 && shared) {
        p.n_layers = 1;
        p.n_kv_heads = 1;
        p.kv_heads = NULL;
    }
    if (p.n_layers < 1 || p.n_layers > TRIA_MAX_LAYERS) {
        return tria_fail(error, TRIA_E_ARGUMENT, "policy: n_layers %d is not in 1..%d; mode %s needs it",
                         p.n_layers, TRIA_MAX_LAYERS, tria_mode_name(mode));
    }
    tria_status status = TRIA_OK;
    memset(tables, 0, sizeof(*tables));
    tables->n_layers = p.n_layers;
    tables->kv_heads = tria_alloc(env, (size_t)p.n_layers, sizeof(*tables->kv_heads));
    if (tables->kv_heads == NULL) {
        return tria_fail_memory(error, (size_t)p.n_layers * sizeof(*tables->kv_heads), "a sequence");
    }
    TRIA_TRY_GOTO(count_heads(tables, &p, error), fail);
    tables->slot_table = tria_alloc(env, (size_t)tables->n_slots, sizeof(*tables->slot_table));
    tables->set_table = tria_alloc(env, (size_t)tables->n_slots, sizeof(*tables->set_table));
    if (tables->slot_table == NULL || tables->set_table == NULL) {
        status = tria_fail_memory(error, (size_t)tables->n_slots * sizeof(int32_t), "a sequence");
        goto fail;
    }
    tables->head_step = mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_PER_LAYER_PER_HEAD ? 1 : 0;
    const int32_t per_layer = tables->head_step != 0 ? tables->n_heads : 1;
    tables->layer_step =
        mode == TRIA_MODE_PER_LAYER || mode == TRIA_MODE_PER_LAYER_PER_HEAD ? per_layer : 0;
    tables->n_tables = per_layer * (tables->layer_step != 0 ? tables->n_layers : 1);

    int32_t slot = 0;
    int32_t layer_index = 0;
    for (int32_t l = 0; l < tables->n_layers; l++) {
        for (int32_t h = 0; h < tables->kv_heads[l]; h++, slot++) {
            const int32_t table = l * tables->layer_step + h * tables->head_step;
            const int32_t set =
                p.plan != NULL ? p.plan->resolved.kv[slot].set : set_of(mode, slot, layer_index, h);
            tables->slot_table[slot] = set >= 0 ? table : -1;
            if (set >= 0) {
                tables->set_table[set] = table;
                tables->n_sets = set >= tables->n_sets ? set + 1 : tables->n_sets;
            }
        }
        layer_index += tables->kv_heads[l] > 0;
    }
    return TRIA_OK;
fail:
    tria_tables_release(tables, env);
    return status;
}

void tria_tables_release(tria_tables *tables, const tria_env *env)
{
    tria_free(env, tables->set_table);
    tria_free(env, tables->slot_table);
    tria_free(env, tables->kv_heads);
    memset(tables, 0, sizeof(*tables));
}

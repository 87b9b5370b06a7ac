/*
 * plan.c - the plan handle: creation, the four calls, and the way from one backend's stage to the next.
 */
#include "compact_internal.h"
#include "plan_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const mode_names[] = {"per-layer-per-head", "per-head", "per-layer", "union", "global"};

const char *tria_mode_name(int32_t mode)
{
    return mode >= 0 && mode < (int32_t)TRIA_ARRAY_LEN(mode_names) ? mode_names[mode] : NULL;
}

int32_t tria_mode_from_name(const char *name)
{
    for (int32_t m = 0; name != NULL && m < (int32_t)TRIA_ARRAY_LEN(mode_names); m++) {
        if (strcmp(name, mode_names[m]) == 0) {
            return m;
        }
    }
    return -1;
}

void tria_scores_init(tria_scores *scores)
{
    memset(scores, 0, sizeof(*scores));
    scores->struct_size = sizeof(*scores);
}

void tria_keep_init(tria_keep *keep)
{
    memset(keep, 0, sizeof(*keep));
    keep->struct_size = sizeof(*keep);
}

void tria_compaction_init(tria_compaction *compaction)
{
    memset(compaction, 0, sizeof(*compaction));
    compaction->struct_size = sizeof(*compaction);
}

static void host_log(const tria_env *env, tria_log_level level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    tria_log(env, level, "%s", line);
}

void tria_host_init(tria_v1_host *host, const tria_env *env)
{
    memset(host, 0, sizeof(*host));
    host->struct_size = sizeof(*host);
    host->env = env;
    host->fold = tria_fold_f32;
    host->phases = tria_phases_f32;
    host->rotation_tables = tria_rotation_tables_f32;
    host->log = host_log;
    host->compact_scratch = tria_compact_scratch_count;
    host->compact = tria_host_compact;
}

static const tria_backend_v1_table *table_of(const tria_device *device)
{
    return device != NULL ? device->table : &tria_cpu_backend;
}

/* Creates the stage's context, or shares that of an earlier stage on the same device. */
static tria_status open_stage(tria_plan *plan, tria_stage *stage, tria_device *device, const char *name,
                              tria_error *error)
{
    const tria_plan_params *params = &plan->resolved.params;
    tria_device *const devices[] = {params->score_device, params->select_device};
    const tria_stage *const stages[] = {&plan->score, &plan->select};
    void *handle = device != NULL ? device->handle : (void *)(uintptr_t)&plan->host;

    stage->table = table_of(device);
    for (size_t i = 0; i < TRIA_ARRAY_LEN(stages) && stages[i] != stage; i++) {
        if (devices[i] == device) {
            stage->context = stages[i]->context;
            return TRIA_OK;
        }
    }
    tria_status status = stage->table->supports(handle, &plan->resolved.plan, error);
    if (status == TRIA_OK) {
        status = stage->table->plan_create(handle, &plan->resolved.plan, &stage->context, error);
    }
    if (status != TRIA_OK) {
        return tria_fail_in(error, status, "%s on %s", name, stage->table->name);
    }
    stage->owned = true;
    return TRIA_OK;
}

static void close_stage(tria_stage *stage)
{
    if (stage->owned) {
        stage->table->plan_destroy(stage->context);
    }
}

/* Whether final scores must travel from one backend to another. */
static bool hands_scores_over(const tria_plan_params *params)
{
    return params->score_device != params->select_device;
}

tria_status tria_plan_create(const tria_plan_params *params, const tria_env *env, tria_plan **out,
                             tria_error *error)
{
    tria_env full_env;
    tria_plan *plan;
    tria_status status;

    if (out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_plan_create: plan is NULL");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    plan = tria_alloc(&full_env, 1, sizeof(*plan));
    if (plan == NULL) {
        return tria_fail_memory(error, sizeof(*plan), "a plan");
    }
    plan->env = full_env;
    status = tria_resolve(params, &full_env, &plan->resolved, error);
    if (status != TRIA_OK) {
        tria_free(&full_env, plan);
        return status;
    }
    const tria_v1_plan *v1 = &plan->resolved.plan;
    const size_t n = (size_t)plan->resolved.params.max_sequences;
    plan->resolved.plan.params = &plan->resolved.params;
    tria_host_init(&plan->host, &plan->env);
    plan->events = tria_alloc(&plan->env, n, sizeof(*plan->events));
    plan->v1_events = tria_alloc(&plan->env, n, sizeof(*plan->v1_events));
    plan->scores = tria_alloc(&plan->env, n, sizeof(*plan->scores));
    plan->keeps = tria_alloc(&plan->env, n, sizeof(*plan->keeps));
    plan->given_keeps = tria_alloc(&plan->env, n, sizeof(*plan->given_keeps));
    plan->compactions = tria_alloc(&plan->env, n, sizeof(*plan->compactions));
    plan->rows = tria_alloc(&plan->env, n * (size_t)v1->n_kv, sizeof(*plan->rows));
    plan->set_budgets = tria_alloc(&plan->env, n * (size_t)v1->n_sets, sizeof(*plan->set_budgets));
    bool complete = plan->events != NULL && plan->v1_events != NULL && plan->scores != NULL &&
                    plan->keeps != NULL && plan->given_keeps != NULL && plan->compactions != NULL &&
                    plan->rows != NULL && plan->set_budgets != NULL;
    if (complete && hands_scores_over(&plan->resolved.params)) {
        plan->handed_scores =
            tria_alloc(&plan->env, n * (size_t)v1->n_sets, sizeof(float) * (size_t)v1->max_rows);
        complete = plan->handed_scores != NULL;
    }
    if (!complete) {
        status = tria_fail(error, TRIA_E_MEMORY, "plan: cannot allocate its event arrays");
        goto fail;
    }
    TRIA_TRY_GOTO(open_stage(plan, &plan->score, plan->resolved.params.score_device, "score", error), fail);
    TRIA_TRY_GOTO(open_stage(plan, &plan->select, plan->resolved.params.select_device, "select", error),
                  fail);
    TRIA_TRY_GOTO(open_stage(plan, &plan->compact, plan->resolved.params.compact_device, "compact", error),
                  fail);
    tria_log(&plan->env, TRIA_LOG_INFO,
             "tria: plan for %d layers, %d KV heads, mode %s, budget %d: score on %s, select on %s, "
             "compact on %s",
             v1->n_layers, v1->n_kv, tria_mode_name(v1->params->mode), v1->params->budget,
             plan->score.table->name, plan->select.table->name, plan->compact.table->name);
    *out = plan;
    return TRIA_OK;

fail:
    tria_plan_destroy(plan);
    return status;
}

void tria_plan_destroy(tria_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    const tria_env env = plan->env;
    close_stage(&plan->compact);
    close_stage(&plan->select);
    close_stage(&plan->score);
    tria_free(&env, plan->events);
    tria_free(&env, plan->v1_events);
    tria_free(&env, plan->scores);
    tria_free(&env, plan->keeps);
    tria_free(&env, plan->given_keeps);
    tria_free(&env, plan->compactions);
    tria_free(&env, plan->rows);
    tria_free(&env, plan->set_budgets);
    tria_free(&env, plan->handed_scores);
    tria_resolved_release(&plan->resolved);
    tria_free(&env, plan);
}

tria_status tria_plan_workspace_size(const tria_plan_params *params, size_t *bytes, tria_error *error)
{
    tria_env env;
    tria_resolved resolved;
    tria_status status = TRIA_OK;
    TRIA_TRY(tria_env_import(&env, NULL, error));
    TRIA_TRY(tria_resolve(params, &env, &resolved, error));
    const size_t n = (size_t)resolved.params.max_sequences;
    const size_t sets = (size_t)resolved.plan.n_sets;
    size_t total =
        n * (sizeof(tria_event) + sizeof(tria_v1_event) + sizeof(tria_scores) + 2 * sizeof(tria_keep) +
             sizeof(tria_compaction) + sizeof(int32_t) * ((size_t)resolved.plan.n_kv + sets));
    tria_device *const devices[] = {resolved.params.score_device, resolved.params.select_device,
                                    resolved.params.compact_device};
    if (hands_scores_over(&resolved.params)) {
        total += n * sets * sizeof(float) * (size_t)resolved.plan.max_rows;
    }
    for (size_t i = 0; i < TRIA_ARRAY_LEN(devices) && status == TRIA_OK; i++) {
        size_t host = 0;
        size_t device = 0;
        if ((i > 0 && devices[i] == devices[0]) || (i > 1 && devices[i] == devices[1])) {
            continue;
        }
        status = table_of(devices[i])->workspace_size(&resolved.plan, &host, &device, error);
        total += host + device;
    }
    tria_resolved_release(&resolved);
    if (status == TRIA_OK) {
        *bytes = total;
    }
    return status;
}

tria_status tria_backend_supports(tria_device *device, const tria_plan_params *params, tria_error *error)
{
    tria_env env;
    tria_v1_host host;
    tria_resolved resolved;
    TRIA_TRY(tria_env_import(&env, NULL, error));
    TRIA_TRY(tria_resolve(params, &env, &resolved, error));
    tria_host_init(&host, &env);
    const tria_status status =
        table_of(device)->supports(device != NULL ? device->handle : &host, &resolved.plan, error);
    tria_resolved_release(&resolved);
    return status;
}

int32_t tria_plan_n_layers(const tria_plan *plan)
{
    return plan->resolved.plan.n_layers;
}

int32_t tria_plan_n_query_slots(const tria_plan *plan)
{
    return plan->resolved.plan.n_queries;
}

int32_t tria_plan_n_kv_slots(const tria_plan *plan)
{
    return plan->resolved.plan.n_kv;
}

int32_t tria_plan_n_sets(const tria_plan *plan)
{
    return plan->resolved.plan.n_sets;
}

int32_t tria_plan_query_slot(const tria_plan *plan, int32_t layer, int32_t q_head)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    if (layer < 0 || layer >= v1->n_layers || q_head < 0 || q_head >= v1->layers[layer].n_q_heads) {
        return -1;
    }
    return v1->layers[layer].first_q_slot + q_head;
}

int32_t tria_plan_kv_slot(const tria_plan *plan, int32_t layer, int32_t kv_head)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    if (layer < 0 || layer >= v1->n_layers || kv_head < 0 || kv_head >= v1->layers[layer].n_kv_heads) {
        return -1;
    }
    return v1->layers[layer].first_kv_slot + kv_head;
}

int32_t tria_plan_set(const tria_plan *plan, int32_t layer, int32_t kv_head)
{
    const int32_t slot = tria_plan_kv_slot(plan, layer, kv_head);
    return slot < 0 ? -1 : plan->resolved.plan.kv[slot].set;
}

/* Output structs: consecutive, of the first one's size. */
static void *nth(const void *first, int32_t index)
{
    size_t size;
    memcpy(&size, first, sizeof(size));
    return (char *)(uintptr_t)first + (size_t)index * size;
}

/* Rows a slot or set of this event may have, for stride checks. */
static int32_t longest_rows(const tria_plan *plan, const tria_v1_event *event)
{
    int32_t longest = event->rows == NULL ? plan->resolved.plan.max_rows : 0;
    for (int32_t s = 0; event->rows != NULL && s < plan->resolved.plan.n_kv; s++) {
        longest = event->rows[s] > longest ? event->rows[s] : longest;
    }
    return longest;
}

static tria_status import_scores(tria_plan *plan, int32_t n_events, const tria_scores *scores,
                                 tria_error *error)
{
    for (int32_t i = 0; i < n_events; i++) {
        tria_scores *out = &plan->scores[i];
        tria_scores_init(out);
        TRIA_TRY(tria_struct_import(out, sizeof(*out), sizeof(*out), nth(scores, i), "scores", error));
        if (out->dtype != TRIA_DTYPE_F32 && out->dtype != TRIA_DTYPE_F64) {
            return tria_fail(error, TRIA_E_ARGUMENT, "scores: dtype %d is neither f32 nor f64", out->dtype);
        }
        if (out->row_stride < longest_rows(plan, &plan->v1_events[i])) {
            return tria_fail(error, TRIA_E_CAPACITY, "scores: row_stride %lld is below event %d's rows",
                             (long long)out->row_stride, i);
        }
        plan->v1_events[i].scores = out;
    }
    return TRIA_OK;
}

tria_status tria_plan_score(tria_plan *plan, const tria_batch *batch, const tria_scores *scores,
                            tria_error *error)
{
    void *stream;
    int32_t n_events;
    bool final_wanted = false;
    if (plan == NULL || scores == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_plan_score: plan or scores is NULL");
    }
    if (batch != NULL) {
        for (int32_t i = 0; i < batch->n_events; i++) {
            final_wanted = final_wanted || ((const tria_scores *)nth(scores, i))->final_scores != NULL;
        }
    }
    TRIA_TRY(tria_plan_import_batch(plan, batch, TRIA_CHECK_KV | (final_wanted ? TRIA_CHECK_ALIGNED : 0U),
                                    &stream, &n_events, error));
    TRIA_TRY(import_scores(plan, n_events, scores, error));
    return plan->score.table->score(plan->score.context, plan->v1_events, n_events, stream, error);
}

/* Runs scoring so that its final scores reach the select stage, wherever that runs. */
static tria_status score_for_select(tria_plan *plan, int32_t n_events, void *stream, tria_error *error)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    const size_t count = (size_t)v1->n_sets * (size_t)v1->max_rows;
    if (plan->handed_scores == NULL) {
        return plan->score.table->score(plan->score.context, plan->v1_events, n_events, stream, error);
    }
    for (int32_t i = 0; i < n_events; i++) {
        tria_v1_event *event = &plan->v1_events[i];
        if (event->scores == NULL) {
            tria_scores_init(&plan->scores[i]);
            event->scores = &plan->scores[i];
        } else if (plan->scores[i].final_scores != NULL) {
            return tria_fail(error, TRIA_E_UNSUPPORTED,
                             "final scores cannot be asked for when another backend selects");
        }
        if (plan->scores[i].raw == NULL && plan->scores[i].grouped == NULL) {
            plan->scores[i].dtype = TRIA_DTYPE_F32;
            plan->scores[i].row_stride = v1->max_rows;
        }
        plan->scores[i].final_scores = plan->handed_scores + (size_t)i * count;
    }
    TRIA_TRY(plan->score.table->score(plan->score.context, plan->v1_events, n_events, stream, error));
    TRIA_TRY(plan->score.table->synchronize(plan->score.context, error));
    for (int32_t i = 0; i < n_events; i++) {
        plan->v1_events[i].final_scores = plan->handed_scores + (size_t)i * count;
    }
    return TRIA_OK;
}

static tria_status export_keeps(tria_plan *plan, void *keep, int32_t n_events, tria_error *error)
{
    for (int32_t i = 0; keep != NULL && i < n_events; i++) {
        TRIA_TRY(tria_struct_export(nth(keep, i), &plan->keeps[i], sizeof(*plan->keeps),
                                    sizeof(*plan->keeps), "keep", error));
    }
    return TRIA_OK;
}

tria_status tria_plan_select(tria_plan *plan, const tria_batch *batch, const tria_scores *scores,
                             tria_keep *keep, tria_error *error)
{
    void *stream;
    int32_t n_events;
    if (plan == NULL || keep == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_plan_select: plan or keep is NULL");
    }
    if (plan->resolved.params.budget == 0) {
        return tria_fail(error, TRIA_E_STATE, "tria_plan_select: the plan's budget is 0, it only scores");
    }
    TRIA_TRY(
        tria_plan_import_batch(plan, batch, TRIA_CHECK_KV | TRIA_CHECK_ALIGNED, &stream, &n_events, error));
    if (scores != NULL) {
        TRIA_TRY(import_scores(plan, n_events, scores, error));
    }
    for (int32_t i = 0; i < n_events; i++) {
        tria_keep *out = &plan->keeps[i];
        const bool on_device =
            plan->events[i].device != NULL && plan->events[i].device->keep_rows.base != NULL;
        tria_keep_init(out);
        TRIA_TRY(tria_struct_import(out, sizeof(*out), sizeof(*out), nth(keep, i), "keep", error));
        if (!on_device && (out->rows == NULL || out->counts == NULL ||
                           out->row_stride < longest_rows(plan, &plan->v1_events[i]))) {
            return tria_fail(error, TRIA_E_CAPACITY,
                             "keep: event %d needs rows, counts and a row_stride >= its rows", i);
        }
        plan->v1_events[i].keep = out;
    }
    TRIA_TRY(score_for_select(plan, n_events, stream, error));
    TRIA_TRY(plan->select.table->select(plan->select.context, plan->v1_events, n_events, stream, error));
    plan->late_keeps = stream != NULL ? keep : NULL;
    plan->n_late_keeps = n_events;
    return export_keeps(plan, keep, n_events, error);
}

static tria_status export_compactions(tria_plan *plan, void *compaction, int32_t n_events,
                                      tria_error *error)
{
    for (int32_t i = 0; compaction != NULL && i < n_events; i++) {
        TRIA_TRY(tria_struct_export(nth(compaction, i), &plan->compactions[i], sizeof(*plan->compactions),
                                    sizeof(*plan->compactions), "compaction", error));
    }
    return TRIA_OK;
}

tria_status tria_plan_compact(tria_plan *plan, const tria_batch *batch, const tria_keep *keep,
                              tria_compaction *compaction, tria_error *error)
{
    void *stream;
    int32_t n_events;
    if (plan == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_plan_compact: plan is NULL");
    }
    TRIA_TRY(tria_plan_import_batch(plan, batch, 0, &stream, &n_events, error));
    for (int32_t i = 0; i < n_events; i++) {
        tria_keep_init(&plan->given_keeps[i]);
        tria_compaction_init(&plan->compactions[i]);
        if (keep != NULL) {
            TRIA_TRY(tria_struct_import(&plan->given_keeps[i], sizeof(*plan->given_keeps),
                                        sizeof(*plan->given_keeps), nth(keep, i), "keep", error));
        }
        if (compaction != NULL) {
            TRIA_TRY(tria_struct_import(&plan->compactions[i], sizeof(*plan->compactions),
                                        sizeof(*plan->compactions), nth(compaction, i), "compaction",
                                        error));
        }
        plan->v1_events[i].keep = keep != NULL ? &plan->given_keeps[i] : NULL;
        plan->v1_events[i].compaction = &plan->compactions[i];
    }
    const tria_status status =
        plan->compact.table->compact(plan->compact.context, plan->v1_events, n_events, stream, error);
    if (status == TRIA_OK || status == TRIA_E_SHARED_PAGE) {
        plan->late_compactions = stream != NULL ? compaction : NULL;
        plan->n_late_compactions = n_events;
        TRIA_TRY(export_compactions(plan, compaction, n_events, error));
    }
    return status;
}

double tria_plan_seconds(const tria_plan *plan, int32_t part)
{
    if (plan == NULL || part < TRIA_PART_SCORE || part > TRIA_PART_COMPACT) {
        return 0.0;
    }
    const tria_stage *stage = part == TRIA_PART_COMPACT  ? &plan->compact
                              : part == TRIA_PART_SELECT ? &plan->select
                                                         : &plan->score;
    return stage->table->seconds != NULL ? stage->table->seconds(stage->context, part) : 0.0;
}

tria_status tria_plan_synchronize(tria_plan *plan, tria_error *error)
{
    if (plan == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_plan_synchronize: plan is NULL");
    }
    TRIA_TRY(plan->score.table->synchronize(plan->score.context, error));
    TRIA_TRY(plan->select.table->synchronize(plan->select.context, error));
    TRIA_TRY(plan->compact.table->synchronize(plan->compact.context, error));
    void *keeps = plan->late_keeps;
    void *compactions = plan->late_compactions;
    plan->late_keeps = NULL;
    plan->late_compactions = NULL;
    TRIA_TRY(export_keeps(plan, keeps, plan->n_late_keeps, error));
    return export_compactions(plan, compactions, plan->n_late_compactions, error);
}

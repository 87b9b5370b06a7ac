/* sequence_compact.c - one sequence's compaction from end to end, for engines with tensors of their own. */
#include "plan_internal.h"
#include "sequence_internal.h"
#include "tria/trace.h"

#include <string.h>

void tria_compact_params_init(tria_compact_params *params)
{
    const tria_compact_params defaults = TRIA_COMPACT_PARAMS_INIT;
    *params = defaults;
}

tria_status tria_sequence_set_trace(tria_sequence *sequence, tria_trace *trace, tria_error *error)
{
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_set_trace: sequence is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, __func__, error));
    sequence->trace = trace;
    tria_guard_leave(&sequence->guard);
    return TRIA_OK;
}

static tria_status check_call(const tria_sequence *sequence, const tria_plan *plan,
                              const tria_compact_params *p, tria_error *error)
{
    const tria_tables *tables = &sequence->tables;
    if (plan == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "compact: plan is NULL");
    }
    if (sequence->policy.in_place) {
        return tria_fail(error, TRIA_E_STATE,
                         "compact: this policy's engine frees its cells itself: event(), then commit()");
    }
    if (p->device != NULL && p->device->keep_rows.base != NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "compact: keep sets must come to host memory");
    }
    TRIA_TRY(tria_policy_check_plan(&sequence->policy, &plan->resolved.params, error));
    /* One shared set fits any number of layers and heads. */
    if (tables->n_sets != plan->resolved.plan.n_sets ||
        (tables->n_tables > 1 && tables->n_slots != plan->resolved.plan.n_kv)) {
        return tria_fail(error, TRIA_E_MISMATCH,
                         "compact: %d keep sets of %d KV heads, the plan has %d of %d", tables->n_sets,
                         tables->n_slots, plan->resolved.plan.n_sets, plan->resolved.plan.n_kv);
    }
    return TRIA_OK;
}

static tria_status compact_rows(tria_sequence *sequence, tria_plan *plan, const tria_batch *batch,
                                tria_keep *keep, tria_compaction *done, tria_error *error)
{
    TRIA_TRY(tria_plan_select(plan, batch, NULL, keep, error));
    TRIA_TRY(tria_plan_synchronize(plan, error));
    TRIA_TRY(tria_sequence_check_keep(sequence, keep, error));
    if (sequence->trace != NULL) {
        TRIA_TRY(tria_trace_begin(sequence->trace, plan, batch->events, keep, error));
    }
    TRIA_TRY(tria_plan_compact(plan, batch, keep, done, error));
    TRIA_TRY(tria_plan_synchronize(plan, error));
    TRIA_TRY(tria_sequence_commit(sequence, keep, done, error));
    return sequence->trace != NULL ? tria_trace_end(sequence->trace, done, error) : TRIA_OK;
}

tria_status tria_sequence_compact(tria_sequence *sequence, tria_plan *plan,
                                  const tria_compact_params *params, tria_error *error)
{
    tria_compact_params p;
    tria_compaction done;
    tria_event event;
    tria_batch batch;
    tria_keep keep;
    if (sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_compact: sequence is NULL");
    }
    tria_compact_params_init(&p);
    tria_compaction_init(&done);
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_compact_params", error));
    if (p.compaction != NULL) {
        TRIA_TRY(
            tria_struct_import(&done, sizeof(done), sizeof(done), p.compaction, "tria_compaction", error));
    }
    TRIA_TRY(check_call(sequence, plan, &p, error));
    tria_event_init(&event);
    tria_keep_init(&keep);
    TRIA_TRY(tria_sequence_event(sequence, &event, &keep, error));
    event.kv = p.kv;
    event.pins = p.pins;
    event.n_pins = p.n_pins;
    event.terms = p.terms;
    event.device = p.device;
    done.page_shared = sequence->shared;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    batch.stream = p.stream;
    const tria_status status = compact_rows(sequence, plan, &batch, &keep, &done, error);
    if (p.compaction != NULL) {
        TRIA_TRY(
            tria_struct_export(p.compaction, &done, sizeof(done), sizeof(done), "tria_compaction", error));
    }
    return status;
}

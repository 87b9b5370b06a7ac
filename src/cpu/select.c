/* select.c - one keep set: protected rows and the best candidates. */
#include "cpu/pipeline.h"

#include <string.h>

/* Positions as floats of the same order, exactly: their bits, centred so that none is infinite or NaN. */
static void rank_by_position(const int32_t *positions, int32_t n, float *out)
{
    const int32_t middle = 1 << 30;
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = positions != NULL ? positions[i] : i;
        const uint32_t bits = p >= middle ? (uint32_t)(p - middle) : 0x80000000U | (uint32_t)(middle - p);
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

void tria_cpu_select_set(tria_cpu_context *c, tria_worker *w, int32_t set)
{
    const tria_v1_plan *plan = c->plan;
    const tria_v1_event *event = c->event;
    const int32_t slot = tria_first_slot(plan, set);
    const tria_v1_kv *kv = &plan->kv[slot];
    const int32_t n = event->rows[slot];
    const float *scores = event->final_scores != NULL ? event->final_scores + (int64_t)set * plan->max_rows
                                                      : tria_cpu_final(c, set);
    const tria_protection found = tria_protect(plan, event->event, slot, n, w->mask);
    const int64_t allowed = tria_rows_allowed(plan, event->set_budgets[set], found);
    int32_t *rows = event->keep->rows + set * event->keep->row_stride;

    if (allowed >= n) {
        for (int32_t i = 0; i < n; i++) {
            rows[i] = i;
        }
        event->keep->counts[set] = n;
        return;
    }
    if (tria_ranked_by_position(plan, event, slot)) {
        rank_by_position(tria_event_positions(event->event, kv->layer, kv->head), n, w->row);
        scores = w->row;
    }
    const int64_t take = allowed > found.n_protected ? allowed - found.n_protected : 0;
    event->keep->counts[set] =
        tria_select_top(c->kernels, scores, w->mask, found.n_protected, n, (int32_t)take, rows, w->words);
    if (found.n_protected > allowed) {
        const int32_t over = (int32_t)(found.n_protected - allowed);
        int32_t seen = atomic_load(&c->over_budget);
        while (over > seen && !atomic_compare_exchange_weak(&c->over_budget, &seen, over)) {
        }
    }
}

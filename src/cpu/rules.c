/* rules.c - see rules.h. */
#include "cpu/rules.h"

#include <string.h>

static bool is_pooled(const tria_v1_plan *plan)
{
    const int32_t mode = plan->params->mode;
    return mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
}

tria_protection tria_protect(const tria_v1_plan *plan, const tria_event *event, int32_t slot,
                             int32_t n_rows, uint8_t *mask)
{
    const tria_plan_params *params = plan->params;
    const tria_v1_kv *kv = &plan->kv[slot];
    const int32_t *positions = tria_event_positions(event, kv->layer, kv->head);
    const int32_t window = plan->layers[kv->layer].window;
    const int64_t recent = event->t - (params->n_recent > window ? params->n_recent : window);
    tria_protection found = {0, 0};

    if (positions == NULL) {
        const int32_t n_sink = params->n_sink < n_rows ? params->n_sink : n_rows;
        const int32_t first_recent = recent < 0 ? 0 : recent < n_rows ? (int32_t)recent : n_rows;
        memset(mask, 0, (size_t)n_rows);
        memset(mask, 1, (size_t)n_sink);
        memset(mask + first_recent, 1, (size_t)(n_rows - first_recent));
    } else {
        /* recent <= 2^31, so in 32 bits "p > recent - 1" is what can be compared */
        const int32_t n_sink = params->n_sink;
        const int32_t last_old = recent > INT32_MIN ? (int32_t)(recent - 1) : INT32_MIN;
        for (int32_t i = 0; i < n_rows; i++) {
            mask[i] = (uint8_t)((positions[i] < n_sink) | (positions[i] > last_old));
        }
    }
    for (int32_t i = 0; i < event->n_pins; i++) {
        if (event->pins[i] < n_rows) {
            mask[event->pins[i]] = 1;
        }
    }
    for (int32_t i = 0; i < n_rows && params->protect_prefill && event->n_prompts > 0; i++) {
        const int32_t p = positions != NULL ? positions[i] : i;
        for (int32_t r = 0; r < event->n_prompts; r++) {
            if (p >= event->prompts[r].begin && p < event->prompts[r].end) {
                mask[i] = 1;
                found.n_prompt++;
                break;
            }
        }
    }
    for (int32_t i = 0; i < n_rows; i++) {
        found.n_protected += mask[i];
    }
    return found;
}

int64_t tria_rows_allowed(const tria_v1_plan *plan, int32_t set_budget, tria_protection protection)
{
    return (int64_t)set_budget + (plan->params->count_prompt ? 0 : protection.n_prompt);
}

/* Do all slots whose scores `slot` would borrow hold the same rows at the same positions? */
static bool can_borrow(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot)
{
    const bool whole_plan = plan->params->mode == TRIA_MODE_PER_HEAD;
    const int32_t *own = tria_event_positions(event->event, plan->kv[slot].layer, plan->kv[slot].head);
    for (int32_t s = 0; s < plan->n_kv; s++) {
        const tria_v1_kv *other = &plan->kv[s];
        if (other->set < 0 || (!whole_plan && other->layer != plan->kv[slot].layer)) {
            continue;
        }
        const int32_t *positions = tria_event_positions(event->event, other->layer, other->head);
        if (event->rows[s] != event->rows[slot] ||
            (positions != own && memcmp(positions, own, sizeof(*own) * (size_t)event->rows[s]) != 0)) {
            return false;
        }
    }
    return true;
}

bool tria_ranked_by_position(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot)
{
    if (is_pooled(plan) ? plan->all_by_position : plan->layers[plan->kv[slot].layer].by_position) {
        return true;
    }
    return plan->kv[slot].borrows && !can_borrow(plan, event, slot);
}

int32_t tria_first_slot(const tria_v1_plan *plan, int32_t set)
{
    int32_t slot = 0;
    while (plan->kv[slot].set != set) {
        slot++;
    }
    return slot;
}

bool tria_can_evict(const tria_v1_plan *plan, const tria_v1_event *event)
{
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].set >= 0 && event->set_budgets[plan->kv[s].set] < event->rows[s]) {
            return true;
        }
    }
    return false;
}

int32_t tria_report_uncalibrated(const tria_v1_plan *plan, uint8_t *layers)
{
    int32_t count = 0;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const tria_v1_layer *layer = &plan->layers[l];
        const bool uncalibrated =
            is_pooled(plan) ? plan->all_by_position && layer->takes_part : layer->by_position;
        count += uncalibrated;
        if (layers != NULL) {
            layers[l] = uncalibrated;
        }
    }
    return count;
}

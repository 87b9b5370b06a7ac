/* vk_event.c - an event's inputs, as the shaders read them. */
#include "vk_plan.h"

#include <string.h>

/* The slot whose position table `slot` uses. */
static int32_t position_owner(const tria_v1_plan *plan, const tria_event *event, int32_t slot)
{
    const int32_t head = event->positions_head_stride != 0 ? plan->kv[slot].head : 0;
    int32_t layer = plan->kv[slot].layer;
    if (event->positions_layer_stride == 0) {
        for (layer = 0; plan->layers[layer].n_kv_heads <= head;) {
            layer++;
        }
    }
    return plan->layers[layer].first_kv_slot + head;
}

static const int32_t *positions_of(const tria_v1_plan *plan, const tria_event *event, int32_t slot)
{
    if (event->positions == NULL) {
        return NULL;
    }
    return event->positions + plan->kv[slot].layer * event->positions_layer_stride +
           plan->kv[slot].head * event->positions_head_stride;
}

/* Each table once, as long as the longest slot that uses it. */
static void fill_positions(vk_context *context, const tria_v1_event *event, uint32_t *words, uint32_t *used)
{
    const tria_v1_plan *plan = context->plan;
    uint32_t *base = words + context->layout.header[PLAN_IN_POSITION_BASE];
    uint32_t *length = (uint32_t *)context->slot_scratch;
    memset(length, 0, sizeof(*length) * (size_t)plan->n_kv);
    for (int32_t s = 0; s < plan->n_kv; s++) {
        base[s] = NONE;
        if (event->event->positions != NULL) {
            const int32_t owner = position_owner(plan, event->event, s);
            const uint32_t n = (uint32_t)event->rows[s];
            length[owner] = n > length[owner] ? n : length[owner];
        }
    }
    if (event->event->positions == NULL) {
        return;
    }
    for (int32_t s = 0; s < plan->n_kv; s++) {
        if (position_owner(plan, event->event, s) == s) {
            base[s] = *used;
            if (length[s] > 0) {
                memcpy(words + *used, positions_of(plan, event->event, s), sizeof(uint32_t) * length[s]);
            }
            *used += length[s];
        }
    }
    for (int32_t s = 0; s < plan->n_kv; s++) {
        base[s] = base[position_owner(plan, event->event, s)];
    }
}

/* Page tables of the layers, the view's once; pages that must not be zeroed as NONE in a copy of it. */
static void fill_tables(vk_context *context, const tria_v1_event *event, uint32_t *words, uint32_t *used)
{
    const tria_v1_plan *plan = context->plan;
    const tria_kv_view *view = event->event->kv;
    uint32_t *base = words + context->layout.header[PLAN_IN_TABLE_BASE];
    uint32_t *zero_base = words + context->layout.header[PLAN_IN_ZERO_TABLE_BASE];
    const uint8_t *page_shared = event->compaction != NULL ? event->compaction->page_shared : NULL;
    uint32_t shared = NONE;
    uint32_t shared_zero = NONE;
    for (int32_t l = 0; l < plan->n_layers; l++) {
        base[l] = NONE;
        zero_base[l] = NONE;
        if (view == NULL || context->staged || plan->layers[l].n_kv_heads == 0) {
            continue;
        }
        const tria_layer_view *layer = &view->layers[l];
        const bool own = layer->page_table != NULL;
        const int32_t *table = own ? layer->page_table : view->page_table;
        const int32_t n = own ? layer->n_pages : view->n_pages;
        const size_t n_pages = (size_t)(n < context->layout.max_pages ? n : context->layout.max_pages);
        if (table == NULL) {
            continue;
        }
        if (own || shared == NONE) {
            base[l] = zero_base[l] = *used;
            memcpy(words + *used, table, sizeof(*table) * n_pages);
            *used += (uint32_t)n_pages;
            if (!own) {
                shared = shared_zero = base[l];
                if (page_shared != NULL) {
                    shared_zero = *used;
                    for (size_t i = 0; i < n_pages; i++) {
                        words[(*used)++] = page_shared[i] != 0 ? NONE : (uint32_t)table[i];
                    }
                }
            }
        }
        if (!own) {
            base[l] = shared;
            zero_base[l] = shared_zero;
        }
    }
}

/* Do all slots whose scores `slot` would borrow hold the same rows at the same positions? */
static bool can_borrow(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot)
{
    const bool whole_plan = plan->params->mode == TRIA_MODE_PER_HEAD;
    const int32_t *own = positions_of(plan, event->event, slot);
    for (int32_t s = 0; s < plan->n_kv; s++) {
        const tria_v1_kv *other = &plan->kv[s];
        if (other->set < 0 || (!whole_plan && other->layer != plan->kv[slot].layer)) {
            continue;
        }
        const int32_t *positions = positions_of(plan, event->event, s);
        if (event->rows[s] != event->rows[slot] ||
            (positions != own && memcmp(positions, own, sizeof(*own) * (size_t)event->rows[s]) != 0)) {
            return false;
        }
    }
    return true;
}

static bool ranked_by_position(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot)
{
    if (vk_is_pooled(plan) ? plan->all_by_position : plan->layers[plan->kv[slot].layer].by_position) {
        return true;
    }
    return plan->kv[slot].borrows && !can_borrow(plan, event, slot);
}

static void fill_sets(vk_context *context, const tria_v1_event *event, uint32_t *words)
{
    const tria_v1_plan *plan = context->plan;
    const uint32_t *h = context->layout.header;
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const int32_t slot = vk_first_slot(plan, set);
        const int32_t window = plan->layers[plan->kv[slot].layer].window;
        const int32_t n_recent = plan->params->n_recent;
        const int64_t recent = event->event->t - (n_recent > window ? n_recent : window);
        words[h[PLAN_IN_BY_POSITION] + (uint32_t)set] = ranked_by_position(plan, event, slot);
        words[h[PLAN_IN_RECENT_BEGIN] + (uint32_t)set] =
            (uint32_t)(int32_t)(recent > INT32_MIN ? recent : INT32_MIN);
        words[h[PLAN_IN_BUDGETS] + (uint32_t)set] = (uint32_t)event->set_budgets[set];
    }
}

static tria_status fill_protection(vk_context *context, const tria_v1_event *event, uint32_t *words,
                                   uint32_t *used, tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    const tria_event *e = event->event;
    uint32_t *pins = words + context->layout.header[PLAN_IN_PINS];
    memset(pins, 0, ((size_t)plan->max_rows + 31) / 32 * sizeof(*pins));
    for (int32_t i = 0; i < e->n_pins; i++) {
        if (e->pins[i] < plan->max_rows) {
            pins[e->pins[i] / 32] |= 1U << (e->pins[i] % 32);
        }
    }
    const int32_t n_prompts = plan->params->protect_prefill ? e->n_prompts : 0;
    if (n_prompts > plan->max_rows) {
        return vk_fail(error, TRIA_E_CAPACITY, "vulkan: %d prompt ranges, at most max_rows (%d) fit",
                       n_prompts, plan->max_rows);
    }
    if (context->device->limits_loops && n_prompts > VK_MOST_ITERATIONS / 64) { /* per row of a word */
        return vk_fail(error, TRIA_E_UNSUPPORTED, "vulkan: %d prompt ranges, %s takes at most %d",
                       n_prompts, context->device->name, VK_MOST_ITERATIONS / 64);
    }
    words[IN_N_PROMPTS] = (uint32_t)n_prompts;
    words[IN_N_SINK] = (uint32_t)plan->params->n_sink;
    words[IN_PROMPTS] = *used;
    for (int32_t i = 0; i < n_prompts; i++) {
        words[(*used)++] = (uint32_t)e->prompts[i].begin;
        words[(*used)++] = (uint32_t)e->prompts[i].end;
    }
    return TRIA_OK;
}

tria_status vk_event_fill(vk_context *context, vk_sequence *sequence, const tria_v1_event *event,
                          bool to_move, tria_error *error)
{
    const tria_v1_plan *plan = context->plan;
    uint32_t *words = sequence->upload.mapped;
    uint32_t used = context->layout.inputs_fixed;
    memcpy(words + context->layout.header[PLAN_IN_ROWS], event->rows, sizeof(int32_t) * (size_t)plan->n_kv);
    fill_tables(context, event, words, &used);
    if (!to_move) {
        fill_sets(context, event, words);
        VK_TRY(fill_protection(context, event, words, &used, error));
        fill_positions(context, event, words, &used);
        if (sequence->scored && plan->lin_count > 0) {
            context->device->host.fold(plan, event->event->t, 1,
                                       (float *)sequence->upload.mapped +
                                           context->layout.header[PLAN_IN_LIN]);
        }
    }
    sequence->inputs_used = used;
    return TRIA_OK;
}

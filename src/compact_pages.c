/*
 * compact_pages.c - pages of a paged cache: which are used, which become free, which must not be written.
 */
#include "compact_internal.h"
#include "kv_view_internal.h"

static const tria_layer_view *layer_view(const tria_event *event, int32_t layer)
{
    return &event->kv->layers[layer];
}

bool tria_compact_owns_table(const tria_v1_plan *plan, const tria_event *event, int32_t layer)
{
    int32_t n;
    const int32_t *table = tria_page_table(event->kv, layer_view(event, layer), &n);
    if (table == NULL || plan->layers[layer].n_kv_heads == 0) {
        return false;
    }
    for (int32_t other = 0; other < layer; other++) {
        if (plan->layers[other].n_kv_heads > 0 &&
            tria_page_table(event->kv, layer_view(event, other), &n) == table) {
            return false;
        }
    }
    return true;
}

void tria_compact_pages(const tria_v1_plan *plan, const tria_v1_event *event, int32_t layer,
                        int32_t *before, int32_t *after)
{
    const tria_event *e = event->event;
    const int32_t tokens = plan->tokens_per_page;
    int32_t n;
    const int32_t *table = tria_page_table(e->kv, layer_view(e, layer), &n);
    *before = 0;
    *after = 0;
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        tria_gather gather;
        if (tria_page_table(e->kv, layer_view(e, plan->kv[slot].layer), &n) != table) {
            continue;
        }
        tria_compact_slot(plan, event, slot, &gather);
        const int32_t used = gather.n_rows / tokens + (gather.n_rows % tokens != 0);
        const int32_t needed = gather.count / tokens + (gather.count % tokens != 0);
        *before = used > *before ? used : *before;
        *after = needed > *after ? needed : *after;
    }
}

/* Pages of the view's table that are shared and would be written. */
tria_status tria_compact_check_shared(const tria_v1_plan *plan, const tria_v1_event *event, int32_t layer,
                                      tria_error *error)
{
    const tria_event *e = event->event;
    tria_compaction *out = event->compaction;
    const int32_t tokens = plan->tokens_per_page;
    int32_t before;
    int32_t after;
    int32_t n_shared = 0;
    tria_compact_pages(plan, event, layer, &before, &after);
    for (int32_t page = 0; page < after; page++) {
        const int32_t begin = page * tokens;
        const int32_t end = tokens < INT32_MAX - begin ? begin + tokens : INT32_MAX;
        bool written = false;
        for (int32_t slot = 0; slot < plan->n_kv && out->page_shared[page] != 0 && !written; slot++) {
            tria_gather gather;
            if (layer_view(e, plan->kv[slot].layer)->page_table != NULL) {
                continue;
            }
            tria_compact_slot(plan, event, slot, &gather);
            written = tria_gather_writes(&gather, begin, end) ||
                      (plan->params->zero_tail && gather.count < end && gather.n_rows > begin &&
                       gather.count < gather.n_rows);
        }
        if (written) {
            if (out->shared_pages != NULL) {
                out->shared_pages[n_shared] = page;
            }
            n_shared++;
        }
    }
    if (n_shared > 0) {
        out->n_shared = n_shared;
        return tria_fail(error, TRIA_E_SHARED_PAGE, "%d shared pages would be written and must be copied",
                         n_shared);
    }
    return TRIA_OK;
}

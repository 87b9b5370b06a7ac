/*
 * compact_check.c - everything that can be wrong with a compaction, found before a byte is written.
 */
#include "compact_internal.h"
#include "cpu/terms.h"
#include "kv_view_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void tria_compact_slot(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot,
                       tria_gather *gather)
{
    const int32_t set = plan->kv[slot].set;
    if (set < 0) {
        tria_gather_init(gather, NULL, event->rows[slot], event->rows[slot], TRIA_ORDER_STABLE);
        return;
    }
    tria_gather_init(gather, event->keep->rows + set * event->keep->row_stride, event->keep->counts[set],
                     event->rows[slot], plan->params->order);
}

static const tria_layer_view *layer_view(const tria_event *event, int32_t layer)
{
    return &event->kv->layers[layer];
}

/* Keep sets: counts and ascending rows, and rows below N of every slot that obeys the set. */
static tria_status check_keep(const tria_v1_plan *plan, const tria_v1_event *event, tria_error *error)
{
    const tria_keep *keep = event->keep;
    if (keep == NULL || keep->rows == NULL || keep->counts == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "keep sets are missing");
    }
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const int32_t count = keep->counts[set];
        const int32_t *rows = keep->rows + set * keep->row_stride;
        if (count < 0 || count > keep->row_stride) {
            return tria_fail(error, TRIA_E_ARGUMENT, "keep set %d has %d rows, its row_stride is %" PRId64,
                             set, count, keep->row_stride);
        }
        for (int32_t i = 0; i < count; i++) {
            if (rows[i] < 0 || (i > 0 && rows[i] <= rows[i - 1])) {
                return tria_fail(error, TRIA_E_ARGUMENT,
                                 "keep set %d: row %d at index %d does not ascend from 0", set, rows[i], i);
            }
        }
    }
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        const tria_v1_kv *kv = &plan->kv[slot];
        tria_gather gather;
        tria_compact_slot(plan, event, slot, &gather);
        if (kv->set >= 0 && gather.count > 0 && gather.keep[gather.count - 1] >= gather.n_rows) {
            return tria_fail(error, TRIA_E_ARGUMENT,
                             "keep set %d has row %d, but layer %d KV head %d has %d rows", kv->set,
                             gather.keep[gather.count - 1], kv->layer, kv->head, gather.n_rows);
        }
    }
    return TRIA_OK;
}

static bool keeps_same_rows(const tria_gather *a, const tria_gather *b)
{
    if (a->count != b->count) {
        return false;
    }
    if (a->in_place == a->count || b->in_place == b->count) {
        return a->in_place == b->in_place;
    }
    return memcmp(a->keep, b->keep, (size_t)a->count * sizeof(*a->keep)) == 0;
}

int32_t tria_compact_position_owner(const tria_v1_plan *plan, const tria_event *event, int32_t slot)
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

/* An index over which an address varies: `count` values, `stride` apart. */
typedef struct axis {
    int64_t stride;
    int64_t count;
} axis;

/* Whether cells of `size` have no byte in common. True for axes nested in one another, as in every cache
 * that holds what was written to it; strides and counts have passed an overflow check. */
static bool disjoint(axis *axes, int32_t n, int64_t size)
{
    for (int32_t i = 0; i < n; i++) { /* by size of the stride: at most four */
        for (int32_t j = i + 1; j < n; j++) {
            axis a = axes[i];
            axis b = axes[j];
            int64_t sa = a.stride < 0 ? -a.stride : a.stride;
            int64_t sb = b.stride < 0 ? -b.stride : b.stride;
            axes[i] = sa <= sb ? a : b;
            axes[j] = sa <= sb ? b : a;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t stride = axes[i].stride < 0 ? -axes[i].stride : axes[i].stride;
        if (axes[i].count > 1) {
            if (stride < size) {
                return false;
            }
            size += stride * (axes[i].count - 1);
        }
    }
    return true;
}

static tria_status check_positions(const tria_v1_plan *plan, const tria_v1_event *event, tria_error *error)
{
    const tria_event *e = event->event;
    const int64_t limit = INT64_C(1) << 40;
    int32_t max_heads = 1;
    int32_t max_rows = 1;
    if (e->positions == NULL) {
        return TRIA_OK;
    }
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        const int32_t owner = tria_compact_position_owner(plan, e, slot);
        max_rows = event->rows[slot] > max_rows ? event->rows[slot] : max_rows;
        max_heads = plan->kv[slot].head >= max_heads ? plan->kv[slot].head + 1 : max_heads;
        if (owner != slot && plan->kv[owner].set != plan->kv[slot].set) {
            tria_gather mine;
            tria_gather theirs;
            tria_compact_slot(plan, event, slot, &mine);
            tria_compact_slot(plan, event, owner, &theirs);
            if (!keeps_same_rows(&mine, &theirs)) {
                return tria_fail(error, TRIA_E_MISMATCH,
                                 "layer %d KV head %d and layer %d KV head %d share their positions but do "
                                 "not keep the same rows",
                                 plan->kv[owner].layer, plan->kv[owner].head, plan->kv[slot].layer,
                                 plan->kv[slot].head);
            }
        }
    }
    axis axes[2] = {{e->positions_head_stride, e->positions_head_stride != 0 ? max_heads : 1},
                    {e->positions_layer_stride, e->positions_layer_stride != 0 ? plan->n_layers : 1}};
    if (e->positions_head_stride < -limit || e->positions_head_stride > limit ||
        e->positions_layer_stride < -limit || e->positions_layer_stride > limit ||
        !disjoint(axes, 2, max_rows)) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "position tables of %d rows overlap (head stride %" PRId64
                         ", layer stride %" PRId64 ")",
                         max_rows, e->positions_head_stride, e->positions_layer_stride);
    }
    return TRIA_OK;
}

/* The smallest power of two >= 2 * n: room to hash n page ids. */
static size_t hash_size(int32_t n)
{
    size_t size = 2;
    while (size < 2 * (size_t)n) {
        size *= 2;
    }
    return size;
}

size_t tria_compact_scratch_count(const tria_v1_plan *plan)
{
    const int32_t tokens = plan->tokens_per_page;
    return tokens < 1 ? 0 : hash_size((plan->max_rows - 1) / tokens + 1);
}

/* A page that occurs twice would be moved twice. */
static tria_status check_pages_differ(const int32_t *table, int32_t n, int32_t *hash, int32_t layer,
                                      tria_error *error)
{
    const size_t size = hash_size(n);
    const int32_t shift = 32 - __builtin_ctzll(size);
    memset(hash, 0xff, size * sizeof(*hash)); /* -1: free; ids are not negative */
    for (int32_t i = 0; i < n; i++) {
        size_t at = ((uint32_t)table[i] * 2654435769u) >> shift; /* golden ratio: scatters runs */
        while (hash[at] >= 0 && hash[at] != table[i]) {
            at = (at + 1) & (size - 1);
        }
        if (hash[at] >= 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "layer %d: page %d occurs twice in the page table",
                             layer, table[i]);
        }
        hash[at] = table[i];
    }
    return TRIA_OK;
}

/* The first bytes of a row of head 0 and whether rows of K and V are equally far apart. */
typedef struct k_and_v {
    uintptr_t k;
    uintptr_t v;
    tria_chunks k_chunks;
    tria_chunks v_chunks;
    bool in_step;
} k_and_v;

static k_and_v compare_k_and_v(const tria_tensor *k, const tria_tensor *v)
{
    k_and_v both = {.k = (uintptr_t)k->base + (uintptr_t)k->offset,
                    .v = (uintptr_t)v->base + (uintptr_t)v->offset,
                    .in_step = k->page_stride == v->page_stride && k->token_stride == v->token_stride &&
                               k->head_stride == v->head_stride};
    tria_tensor_chunks(k, &both.k_chunks);
    tria_tensor_chunks(v, &both.v_chunks);
    return both;
}

bool tria_compact_v_in_k(const tria_tensor *k, const tria_tensor *v)
{
    const k_and_v both = compare_k_and_v(k, v);
    return both.in_step && both.k_chunks.n == 1 && both.v_chunks.n == 1 && both.v >= both.k &&
           both.v + (uintptr_t)both.v_chunks.bytes <= both.k + (uintptr_t)both.k_chunks.bytes;
}

/* V that is partly K would be moved twice. */
static bool v_meets_k(const tria_tensor *k, const tria_tensor *v)
{
    const k_and_v both = compare_k_and_v(k, v);
    return both.k == both.v || (both.in_step && both.v < both.k + (uintptr_t)both.k_chunks.bytes &&
                                both.k < both.v + (uintptr_t)both.v_chunks.bytes);
}

/* Rows of one tensor lie apart from one another. That they lie in the buffer is known (plan_event.c). */
static tria_status check_tensor(const tria_tensor *tensor, const tria_event *event, int32_t layer,
                                int32_t n_heads, int32_t n_rows, const char *what, tria_error *error)
{
    const tria_layer_view *view = layer_view(event, layer);
    const int32_t tokens = event->kv->tokens_per_page;
    int32_t n_pages;
    const int32_t *table = tria_page_table(event->kv, view, &n_pages);
    tria_chunks chunks;
    tria_tensor_chunks(tensor, &chunks);
    axis page = {tensor->page_stride, 1};
    axis token = {tensor->token_stride, n_rows};
    if (table != NULL) {
        int32_t first = table[0];
        int32_t last = table[0];
        for (int32_t i = 1; i <= (n_rows - 1) / tokens; i++) {
            first = table[i] < first ? table[i] : first;
            last = table[i] > last ? table[i] : last;
        }
        page.count = (int64_t)last - first + 1;
        token.count = n_rows < tokens ? n_rows : tokens;
    } else if (event->device != NULL && event->device->page_tables.base != NULL) {
        page.count = 2; /* the table is out of sight: pages must be apart, however many there are */
        token.count = n_rows < tokens ? n_rows : tokens;
    }
    axis axes[4] = {page, token, {tensor->head_stride, n_heads}, {chunks.stride, chunks.n}};
    if (!disjoint(axes, 4, chunks.bytes)) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "%s: rows overlap in memory and cannot be moved (strides %" PRId64 ", %" PRId64
                         ", %" PRId64 ", %" PRId64 ")",
                         what, tensor->page_stride, tensor->token_stride, tensor->head_stride,
                         tensor->dim_stride);
    }
    if (tensor->scale_kind == TRIA_SCALE_ROW) {
        axis scale_axes[3] = {{tensor->scale_page_stride, page.count},
                              {tensor->scale_token_stride, token.count},
                              {tensor->scale_head_stride, n_heads}};
        if (!disjoint(scale_axes, 3, (int64_t)sizeof(float))) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: scales of rows overlap in memory", what);
        }
    }
    return TRIA_OK;
}

static tria_status check_layer(const tria_v1_plan *plan, const tria_v1_event *event, int32_t layer,
                               tria_error *error)
{
    const tria_v1_layer *l = &plan->layers[layer];
    const tria_event *e = event->event;
    const tria_layer_view *view = layer_view(e, layer);
    char what[32];
    int32_t n_rows = 0;
    for (int32_t slot = l->first_kv_slot; slot < l->first_kv_slot + l->n_kv_heads; slot++) {
        n_rows = event->rows[slot] > n_rows ? event->rows[slot] : n_rows;
    }
    if (n_rows == 0) {
        return TRIA_OK;
    }
    snprintf(what, sizeof(what), "layer %d K", layer);
    TRIA_TRY(check_tensor(&view->k, e, layer, l->n_kv_heads, n_rows, what, error));
    what[strlen(what) - 1] = 'V';
    if (view->v.base != NULL && !tria_compact_v_in_k(&view->k, &view->v)) {
        if (v_meets_k(&view->k, &view->v)) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: overlaps K and would be moved twice", what);
        }
        TRIA_TRY(check_tensor(&view->v, e, layer, l->n_kv_heads, n_rows, what, error));
    }
    return TRIA_OK;
}

/* Room for what will be reported. */
static tria_status check_room_for_moves(const tria_v1_plan *plan, const tria_v1_event *event,
                                        tria_error *error)
{
    int64_t n_moves = 0;
    for (int32_t slot = 0; slot < plan->n_kv; slot++) {
        tria_gather gather;
        tria_compact_slot(plan, event, slot, &gather);
        n_moves += tria_gather_n_moves(&gather);
    }
    if (n_moves > event->compaction->moves_capacity) {
        return tria_fail(error, TRIA_E_CAPACITY,
                         "%" PRId64 " moves do not fit into moves_capacity %" PRId64, n_moves,
                         event->compaction->moves_capacity);
    }
    return TRIA_OK;
}

static tria_status check_room_for_pages(const tria_v1_plan *plan, const tria_v1_event *event,
                                        tria_error *error)
{
    int64_t n_freed = 0;
    for (int32_t layer = 0; layer < plan->n_layers; layer++) {
        int32_t before;
        int32_t after;
        if (tria_compact_owns_table(plan, event->event, layer)) {
            tria_compact_pages(plan, event, layer, &before, &after);
            n_freed += before - after;
        }
    }
    if (n_freed > event->compaction->freed_capacity) {
        return tria_fail(error, TRIA_E_CAPACITY,
                         "%" PRId64 " freed pages do not fit into freed_capacity %d", n_freed,
                         event->compaction->freed_capacity);
    }
    return TRIA_OK;
}

/* Whether anything of a layer is compacted. */
static bool has_set(const tria_v1_plan *plan, int32_t layer)
{
    const tria_v1_layer *l = &plan->layers[layer];
    for (int32_t slot = l->first_kv_slot; slot < l->first_kv_slot + l->n_kv_heads; slot++) {
        if (plan->kv[slot].set >= 0) {
            return true;
        }
    }
    return false;
}

tria_status tria_compact_check(const tria_v1_plan *plan, const tria_v1_event *event, int32_t *scratch,
                               tria_error *error)
{
    const tria_event *e = event->event;
    int32_t first_shared = -1; /* the first layer that uses the view's table */
    if (event->rows == NULL) {
        return tria_fail(error, TRIA_E_UNSUPPORTED, "rows and keep sets must be in host memory");
    }
    TRIA_TRY(tria_terms_check(e->terms, plan, error));
    TRIA_TRY(check_keep(plan, event, error));
    TRIA_TRY(check_positions(plan, event, error));
    if (e->kv != NULL) {
        for (int32_t layer = 0; layer < plan->n_layers; layer++) {
            if (tria_compact_owns_table(plan, e, layer)) {
                int32_t n_pages;
                int32_t before;
                int32_t after;
                const int32_t *table = tria_page_table(e->kv, layer_view(e, layer), &n_pages);
                tria_compact_pages(plan, event, layer, &before, &after);
                TRIA_TRY(check_pages_differ(table, before, scratch, layer, error));
            }
            if (has_set(plan, layer)) {
                TRIA_TRY(check_layer(plan, event, layer, error));
                if (first_shared < 0 && layer_view(e, layer)->page_table == NULL) {
                    first_shared = layer;
                }
            }
        }
    }
    if (event->compaction != NULL) {
        if (event->compaction->moves != NULL) {
            TRIA_TRY(check_room_for_moves(plan, event, error));
        }
        if (event->compaction->freed_pages != NULL && e->kv != NULL) {
            TRIA_TRY(check_room_for_pages(plan, event, error));
        }
        if (first_shared >= 0 && event->compaction->page_shared != NULL && e->kv->page_table != NULL) {
            TRIA_TRY(tria_compact_check_shared(plan, event, first_shared, error));
        }
    }
    return TRIA_OK;
}

#include "fixture.h"

#include <stdlib.h>
#include <string.h>

/* xorshift64* (Marsaglia; Vigna, arXiv 1402.6246) */
uint32_t random_u32(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return (uint32_t)((*seed * 2685821657736338717ull) >> 32);
}

int32_t random_below(uint64_t *seed, int32_t n)
{
    return (int32_t)(((uint64_t)random_u32(seed) * (uint64_t)n) >> 32);
}

void fixture_init(fixture *f, int32_t n_layers, int32_t n_heads, int32_t mode, int32_t n_rows)
{
    memset(f, 0, sizeof(*f));
    f->params.struct_size = sizeof(f->params);
    f->params.mode = mode;
    f->params.max_rows = n_rows;
    f->plan.struct_size = sizeof(f->plan);
    f->plan.params = &f->params;
    f->plan.n_layers = n_layers;
    f->plan.n_kv = n_layers * n_heads;
    f->plan.max_rows = n_rows;
    f->plan.layers = f->layers;
    f->plan.kv = f->kv;
    for (int32_t slot = 0; slot < f->plan.n_kv; slot++) {
        tria_v1_kv *kv = &f->kv[slot];
        kv->layer = slot / n_heads;
        kv->head = slot % n_heads;
        switch (mode) {
        case TRIA_MODE_PER_LAYER_PER_HEAD:
            kv->set = slot;
            break;
        case TRIA_MODE_PER_HEAD:
            kv->set = kv->head;
            break;
        case TRIA_MODE_PER_LAYER:
            kv->set = kv->layer;
            break;
        default:
            kv->set = 0;
            break;
        }
        f->plan.n_sets = kv->set >= f->plan.n_sets ? kv->set + 1 : f->plan.n_sets;
        f->rows[slot] = n_rows;
    }
    for (int32_t layer = 0; layer < n_layers; layer++) {
        f->layers[layer].n_kv_heads = n_heads;
        f->layers[layer].first_kv_slot = layer * n_heads;
    }
    tria_kv_view_init(&f->view);
    f->view.layers = f->layer_views;
    f->view.n_layers = n_layers;
    f->keep_rows = calloc((size_t)f->plan.n_sets * (size_t)n_rows + 1, sizeof(int32_t));
    f->keep.struct_size = sizeof(f->keep);
    f->keep.rows = f->keep_rows;
    f->keep.counts = f->counts;
    f->keep.row_stride = n_rows;
    f->event.struct_size = sizeof(f->event);
    f->event.kv = &f->view;
    f->event.n_rows = n_rows;
    f->compaction.struct_size = sizeof(f->compaction);
    f->v1.event = &f->event;
    f->v1.rows = f->rows;
    f->v1.keep = &f->keep;
    f->v1.compaction = &f->compaction;
}

void fixture_free(fixture *f)
{
    free(f->keep_rows);
}

int32_t *fixture_set(fixture *f, int32_t set)
{
    return f->keep_rows + set * f->keep.row_stride;
}

void fixture_random_sets(fixture *f, uint64_t *seed, int32_t percent)
{
    const int32_t n_rows = f->event.n_rows;
    for (int32_t set = 0; set < f->plan.n_sets; set++) {
        int32_t *rows = fixture_set(f, set);
        int32_t count = 0;
        for (int32_t i = 0; i < n_rows; i++) {
            if (random_below(seed, 100) < percent) {
                rows[count++] = i;
            }
        }
        if (count == n_rows && n_rows > 1) {
            count--;
        } else if (count == 0 && n_rows > 0) {
            rows[count++] = random_below(seed, n_rows);
        }
        f->counts[set] = count;
    }
}

/* Slots last to first: results must not depend on it. */
static void backwards(void *context, int32_t n, void (*task)(void *argument, int32_t index), void *argument)
{
    (void)context;
    while (n > 0) {
        task(argument, --n);
    }
}

tria_status fixture_compact(fixture *f, tria_error *error)
{
    tria_compact_context context = {.parallel_for = f->plan.n_kv % 2 != 0 ? backwards : NULL};
    f->plan.tokens_per_page = f->view.tokens_per_page;
    for (int32_t l = 0; l < f->plan.n_layers && f->event.kv != NULL; l++) {
        const tria_layer_view *view = &f->layer_views[l];
        const int32_t n_heads = f->layers[l].n_kv_heads;
        if (view->k.base == NULL) {
            continue;
        }
        TRIA_TRY(tria_tensor_check(&view->k, n_heads, false, "K", error));
        TRIA_TRY(tria_tensor_check_rows(&view->k, &f->view, view, n_heads, f->event.n_rows, "K", error));
        if (view->v.base != NULL) {
            TRIA_TRY(tria_tensor_check(&view->v, n_heads, true, "V", error));
            TRIA_TRY(
                tria_tensor_check_rows(&view->v, &f->view, view, n_heads, f->event.n_rows, "V", error));
        }
    }
    context.scratch = malloc((tria_compact_scratch_count(&f->plan) + 1) * sizeof(int32_t));
    const tria_status status = tria_cpu_compact(&f->plan, &f->v1, 1, &context, error);
    free(context.scratch);
    return status;
}

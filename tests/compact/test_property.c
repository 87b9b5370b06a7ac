/*
 * Compaction of random caches: any layout, dtype, order, page table and keep sets, against a gather done
 * by hand on a copy. Every byte of every buffer is compared, those that belong to no row included.
 *
 * Usage: [--count N] [--seed S]. A failing configuration is printed with the seed that repeats it.
 */
#include "fixture.h"
#include "tria/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor's memory: what the library gets, a copy from before, and what is known of the result. */
typedef struct buffer {
    unsigned char *bytes;
    unsigned char *before;
    unsigned char *expected;
    unsigned char *open; /* 1: unspecified */
    size_t size;
} buffer;

typedef struct config {
    uint64_t seed;
    int32_t n_layers;
    int32_t n_heads;
    int32_t mode;
    int32_t order;
    int32_t n_rows;
    int32_t tokens_per_page; /* 0: not paged */
    int32_t own_tables;
    int32_t zero_tail;
    int32_t percent;
    int32_t k_dtype;
    int32_t v_dtype;
    int32_t v_kind; /* 0 none, 1 own, 2 inside K */
} config;

static const char *failure;
static int failure_line;

#define EXPECT(condition)                                                                                  \
    do {                                                                                                   \
        if (!(condition) && failure == NULL) {                                                             \
            failure = #condition;                                                                          \
            failure_line = __LINE__;                                                                       \
        }                                                                                                  \
    } while (0)

static void buffer_init(buffer *b, size_t size, uint64_t *seed)
{
    b->size = size;
    b->bytes = malloc(size + 1);
    b->before = malloc(size + 1);
    b->expected = malloc(size + 1);
    b->open = calloc(size + 1, 1);
    for (size_t i = 0; i < size; i++) {
        b->bytes[i] = (unsigned char)random_u32(seed);
    }
    memcpy(b->before, b->bytes, size);
    memcpy(b->expected, b->bytes, size);
}

static void buffer_free(buffer *b)
{
    free(b->bytes);
    free(b->before);
    free(b->expected);
    free(b->open);
}

/* Nested strides for the given extents in a random order, with random gaps and signs. Returns the size of
 * the whole; *origin is the offset of element 0. */
static int64_t random_strides(uint64_t *seed, int64_t unit, int32_t n, const int64_t *extents,
                              int64_t *strides, uint64_t *origin)
{
    int32_t order[4];
    int64_t span = unit;
    int64_t negative = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = random_below(seed, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t stride = span + (random_below(seed, 3) == 0 ? random_below(seed, 5) : 0);
        span = stride * (extents[order[i]] - 1) + span;
        if (random_below(seed, 8) == 0) {
            negative += stride * (extents[order[i]] - 1);
            stride = -stride;
        }
        strides[order[i]] = stride;
    }
    *origin = (uint64_t)negative + (uint64_t)random_below(seed, 16);
    return span + (int64_t)*origin + random_below(seed, 16);
}

static void random_tensor(uint64_t *seed, const config *c, int32_t dtype, int32_t n_pool, tria_tensor *t,
                          buffer *data, buffer *scales)
{
    const int32_t block = tria_dtype_block(dtype);
    const int32_t size = tria_dtype_block_bytes(dtype);
    const int32_t tokens = c->tokens_per_page != 0 ? c->tokens_per_page : c->n_rows;
    int64_t strides[4];
    memset(t, 0, sizeof(*t));
    t->dtype = dtype;
    t->dim = block * (1 + random_below(seed, block > 1 ? 3 : 24));
    if (block == 1 && random_below(seed, 3) == 0) { /* inner pack */
        t->pack = 1 << (1 + random_below(seed, 3));
        t->dim = t->pack * (1 + random_below(seed, 4));
    }
    const int32_t pack = t->pack > 1 ? t->pack : 1;
    const bool packed = block > 1 || random_below(seed, 2) == 0;
    const int64_t n_chunks = packed ? 1 : t->dim / pack;
    const int64_t unit = packed ? (int64_t)(t->dim / block) * size : (int64_t)pack * size;
    const int64_t extents[4] = {n_pool, tokens > 0 ? tokens : 1, c->n_heads, n_chunks};
    const int64_t total = random_strides(seed, unit, 4, extents, strides, &t->offset);
    t->page_stride = strides[0];
    t->token_stride = strides[1];
    t->head_stride = strides[2];
    t->dim_stride = packed ? 0 : strides[3];
    buffer_init(data, (size_t)total, seed);
    t->base = data->bytes;
    t->size = (uint64_t)total;
    memset(scales, 0, sizeof(*scales));
    if (block == 1 && (dtype == TRIA_DTYPE_INT8 || random_below(seed, 4) == 0)) {
        t->scale_kind = 1 + random_below(seed, 3);
        t->scale = 0.25f;
        if (t->scale_kind == TRIA_SCALE_HEAD) {
            strides[2] = 4;
        }
        const int64_t n = random_strides(seed, 4, 3, extents, strides, &t->scales_offset);
        buffer_init(scales, (size_t)n, seed);
        t->scales = scales->bytes;
        t->scale_page_stride = strides[0];
        t->scale_token_stride = strides[1];
        t->scale_head_stride = strides[2];
    }
}

/* Byte offset in the buffer of byte `byte` of an element of a row. */
static int64_t offset_of(const config *c, const tria_tensor *t, const int32_t *table, int32_t head,
                         int32_t row, int32_t dim)
{
    const int32_t block = tria_dtype_block(t->dtype);
    const int32_t size = tria_dtype_block_bytes(t->dtype);
    const int32_t pack = t->pack > 1 ? t->pack : 1;
    const int64_t dim_stride = t->dim_stride != 0 ? t->dim_stride : (int64_t)pack * size;
    const int32_t unit = dim / block;
    const int32_t page = table != NULL ? table[row / c->tokens_per_page] : 0;
    const int32_t token = table != NULL ? row % c->tokens_per_page : row;
    return (int64_t)t->offset + page * t->page_stride + token * t->token_stride + head * t->head_stride +
           unit / pack * dim_stride + unit % pack * size;
}

static int64_t scale_offset_of(const config *c, const tria_tensor *t, const int32_t *table, int32_t head,
                               int32_t row)
{
    const int32_t page = table != NULL ? table[row / c->tokens_per_page] : 0;
    const int32_t token = table != NULL ? row % c->tokens_per_page : row;
    return (int64_t)t->scales_offset + page * t->scale_page_stride + token * t->scale_token_stride +
           head * t->scale_head_stride;
}

/* to[row `to_row`] = from[row `from_row`] for all elements; from NULL writes zeroes. `mark` is set along.
 */
static void copy_row(const config *c, const tria_tensor *t, const int32_t *table, int32_t head,
                     unsigned char *to, int32_t to_row, const unsigned char *from, int32_t from_row,
                     unsigned char *mark, unsigned char mark_value)
{
    const int32_t block = tria_dtype_block(t->dtype);
    const size_t size = (size_t)tria_dtype_block_bytes(t->dtype);
    for (int32_t d = 0; d < t->dim; d += block) {
        const int64_t at = offset_of(c, t, table, head, to_row, d);
        if (from != NULL) {
            memcpy(to + at, from + offset_of(c, t, table, head, from_row, d), size);
        } else {
            memset(to + at, 0, size);
        }
        if (mark != NULL) {
            memset(mark + at, mark_value, size);
        }
    }
}

/* The old row that row i of a set holds afterwards; by the words of the specification. */
static int32_t old_row(const int32_t *keep, int32_t count, int32_t order, int32_t i)
{
    int32_t hole = 0;
    if (order == TRIA_ORDER_STABLE) {
        return keep[i];
    }
    for (int32_t slot = 0, next = 0; slot <= i; slot++) {
        while (next < count && keep[next] < slot) {
            next++;
        }
        if (next < count && keep[next] == slot) {
            if (slot == i) {
                return i; /* a kept row below the new length stays */
            }
        } else {
            hole++;
        }
    }
    for (int32_t j = 0; j < count; j++) { /* the hole-th kept row at or beyond the new length */
        if (keep[j] >= count && --hole == 0) {
            return keep[j];
        }
    }
    return -1;
}

typedef struct cache {
    buffer k[FIXTURE_LAYERS];
    buffer v[FIXTURE_LAYERS];
    buffer k_scales[FIXTURE_LAYERS];
    buffer v_scales[FIXTURE_LAYERS];
    int32_t tables[FIXTURE_LAYERS][64];
} caches;

/* Writes what a slot's tensor must look like afterwards. */
static void expect_tensor(const config *c, const fixture *f, const tria_tensor *t, const int32_t *table,
                          int32_t slot, buffer *data, buffer *scales)
{
    const int32_t head = f->kv[slot].head;
    const int32_t set = f->kv[slot].set;
    const int32_t count = f->counts[set];
    const int32_t *keep = f->keep_rows + set * f->keep.row_stride;
    for (int32_t i = 0; i < c->n_rows; i++) {
        const bool kept = i < count;
        const int32_t from = kept ? old_row(keep, count, c->order, i) : 0;
        copy_row(c, t, table, head, data->expected, i, kept ? data->before : NULL, from, data->open,
                 !kept && !c->zero_tail);
        if (t->scale_kind == TRIA_SCALE_ROW) {
            const int64_t at = scale_offset_of(c, t, table, head, i);
            if (kept) {
                memcpy(scales->expected + at, scales->before + scale_offset_of(c, t, table, head, from), 4);
            } else {
                memset(scales->expected + at, 0, 4);
                memset(scales->open + at, !c->zero_tail, 4);
            }
        }
    }
}

static bool as_expected(const buffer *b)
{
    for (size_t i = 0; i < b->size; i++) {
        if (b->open[i] == 0 && b->bytes[i] != b->expected[i]) {
            return false;
        }
    }
    return true;
}

/* Carries the list of moves out on the copy from before, one after the other. */
static void replay_moves(const config *c, const fixture *f, const tria_move *moves, caches *cache)
{
    for (int64_t i = 0; i < f->compaction.n_moves; i++) {
        const tria_move *m = &moves[i];
        const tria_layer_view *view = &f->layer_views[m->layer];
        const int32_t *table = view->page_table != NULL ? view->page_table : f->view.page_table;
        EXPECT(m->from > m->to && m->to >= 0 && m->from < c->n_rows);
        copy_row(c, &view->k, table, m->kv_head, cache->k[m->layer].before, m->to,
                 cache->k[m->layer].before, m->from, NULL, 0);
        if (c->v_kind == 1) {
            copy_row(c, &view->v, table, m->kv_head, cache->v[m->layer].before, m->to,
                     cache->v[m->layer].before, m->from, NULL, 0);
        }
    }
    for (int32_t slot = 0; slot < f->plan.n_kv && !c->zero_tail; slot++) {
        const int32_t layer = f->kv[slot].layer;
        const tria_layer_view *view = &f->layer_views[layer];
        const int32_t *table = view->page_table != NULL ? view->page_table : f->view.page_table;
        for (int32_t i = 0; i < f->counts[f->kv[slot].set]; i++) {
            for (int32_t d = 0; d < view->k.dim; d += tria_dtype_block(view->k.dtype)) {
                const int64_t at = offset_of(c, &view->k, table, f->kv[slot].head, i, d);
                EXPECT(memcmp(cache->k[layer].before + at, cache->k[layer].bytes + at,
                              (size_t)tria_dtype_block_bytes(view->k.dtype)) == 0);
            }
        }
    }
}

/* Page ids nobody needs, recomputed from the counts. */
static void expect_freed(const config *c, const fixture *f, const int32_t *freed)
{
    int32_t n = 0;
    const int32_t n_tables = c->tokens_per_page == 0 ? 0 : c->own_tables ? c->n_layers : 1;
    for (int32_t t = 0; t < n_tables; t++) {
        const int32_t *table = c->own_tables ? f->layer_views[t].page_table : f->view.page_table;
        for (int32_t page = 0; page * c->tokens_per_page < c->n_rows; page++) {
            bool needed = false;
            for (int32_t slot = 0; slot < f->plan.n_kv; slot++) {
                needed |= (!c->own_tables || f->kv[slot].layer == t) &&
                          f->counts[f->kv[slot].set] > page * c->tokens_per_page;
            }
            if (!needed) {
                EXPECT(n < f->compaction.n_freed_pages && freed[n] == table[page]);
                n++;
            }
        }
    }
    EXPECT(n == f->compaction.n_freed_pages);
}

static void random_config(config *c, uint64_t seed)
{
    memset(c, 0, sizeof(*c));
    c->seed = seed;
    seed = seed * 0x9e3779b97f4a7c15ull + 1;
    c->n_layers = 1 + random_below(&seed, 3);
    c->n_heads = 1 + random_below(&seed, 4);
    c->mode = random_below(&seed, 5);
    c->order = random_below(&seed, 2);
    c->n_rows = random_below(&seed, 12) == 0 ? random_below(&seed, 3) : 1 + random_below(&seed, 60);
    c->tokens_per_page = random_below(&seed, 2) == 0 ? 0 : 1 + random_below(&seed, 20);
    c->own_tables = c->tokens_per_page != 0 && random_below(&seed, 3) == 0;
    c->zero_tail = random_below(&seed, 3) == 0;
    c->percent = random_below(&seed, 101);
    c->k_dtype = random_below(&seed, TRIA_DTYPE_COUNT);
    c->v_dtype = random_below(&seed, TRIA_DTYPE_COUNT);
    c->v_kind = random_below(&seed, 4) == 0 ? 0 : 1;
}

static void random_table(uint64_t *seed, int32_t *table, int32_t n_pages, int32_t n_pool)
{
    int32_t ids[64] = {0};
    for (int32_t i = 0; i < n_pool; i++) {
        int32_t at = random_below(seed, i + 1);
        ids[i] = ids[at];
        ids[at] = i;
    }
    memcpy(table, ids, (size_t)n_pages * sizeof(*table));
}

static void run(const config *c)
{
    uint64_t seed = c->seed * 0xbf58476d1ce4e5b9ull + 7;
    const bool paged = c->tokens_per_page != 0;
    const int32_t n_pages = paged ? (c->n_rows + c->tokens_per_page - 1) / c->tokens_per_page : 1;
    const int32_t n_pool = paged ? n_pages + 1 + random_below(&seed, 3) : 1;
    tria_error error = {0, ""};
    fixture f;
    caches cache;
    memset(&cache, 0, sizeof(cache));
    fixture_init(&f, c->n_layers, c->n_heads, c->mode, c->n_rows);
    f.params.order = c->order;
    f.params.zero_tail = c->zero_tail;
    f.view.tokens_per_page = c->tokens_per_page;
    for (int32_t l = 0; l < c->n_layers; l++) {
        tria_layer_view *view = &f.layer_views[l];
        if (paged) {
            random_table(&seed, cache.tables[l], n_pages, n_pool);
        }
        if (c->own_tables) {
            view->page_table = cache.tables[l];
            view->n_pages = n_pages;
        }
        random_tensor(&seed, c, c->k_dtype, n_pool, &view->k, &cache.k[l], &cache.k_scales[l]);
        if (c->v_kind == 1) {
            random_tensor(&seed, c, c->v_dtype, n_pool, &view->v, &cache.v[l], &cache.v_scales[l]);
        }
    }
    if (paged && !c->own_tables) {
        f.view.page_table = cache.tables[0];
        f.view.n_pages = n_pages;
    }
    fixture_random_sets(&f, &seed, c->percent);

    const int32_t n_slots = f.plan.n_kv;
    int32_t *positions = malloc((size_t)(n_slots * c->n_rows + 1) * sizeof(*positions));
    const bool by_head = c->mode == TRIA_MODE_PER_HEAD || c->mode == TRIA_MODE_PER_LAYER_PER_HEAD;
    const bool by_layer = c->mode == TRIA_MODE_PER_LAYER || c->mode == TRIA_MODE_PER_LAYER_PER_HEAD;
    for (int32_t i = 0; i < n_slots * c->n_rows; i++) {
        positions[i] = c->n_rows != 0 ? 1000 + i % c->n_rows : 0;
    }
    f.event.positions = positions;
    f.event.positions_head_stride = by_head ? c->n_rows : 0;
    f.event.positions_layer_stride = by_layer ? (int64_t)c->n_rows * c->n_heads : 0;

    tria_move *moves = malloc((size_t)(n_slots * c->n_rows + 1) * sizeof(*moves));
    int32_t *freed = malloc((size_t)(n_pages * c->n_layers + 1) * sizeof(*freed));
    f.compaction.moves = moves;
    f.compaction.moves_capacity = n_slots * c->n_rows;
    f.compaction.freed_pages = freed;
    f.compaction.freed_capacity = n_pages * c->n_layers;

    EXPECT(fixture_compact(&f, &error) == TRIA_OK);
    if (failure != NULL) {
        fprintf(stderr, "%s\n", error.message);
    }
    for (int32_t slot = 0; slot < n_slots && failure == NULL; slot++) {
        const int32_t l = f.kv[slot].layer;
        const tria_layer_view *view = &f.layer_views[l];
        const int32_t *table = view->page_table != NULL ? view->page_table : f.view.page_table;
        const int32_t set = f.kv[slot].set;
        expect_tensor(c, &f, &view->k, table, slot, &cache.k[l], &cache.k_scales[l]);
        if (c->v_kind == 1) {
            expect_tensor(c, &f, &view->v, table, slot, &cache.v[l], &cache.v_scales[l]);
        }
        for (int32_t i = 0; i < f.counts[set]; i++) {
            const int32_t *mine = positions + (by_layer ? l * c->n_heads * c->n_rows : 0) +
                                  (by_head ? f.kv[slot].head * c->n_rows : 0);
            EXPECT(mine[i] == 1000 + old_row(fixture_set(&f, set), f.counts[set], c->order, i));
        }
    }
    for (int32_t l = 0; l < c->n_layers && failure == NULL; l++) {
        EXPECT(as_expected(&cache.k[l]));
        EXPECT(as_expected(&cache.v[l]));
        EXPECT(as_expected(&cache.k_scales[l]));
        EXPECT(as_expected(&cache.v_scales[l]));
    }
    if (failure == NULL) {
        expect_freed(c, &f, freed);
        replay_moves(c, &f, moves, &cache);
    }
    for (int32_t l = 0; l < c->n_layers; l++) {
        buffer_free(&cache.k[l]);
        buffer_free(&cache.v[l]);
        buffer_free(&cache.k_scales[l]);
        buffer_free(&cache.v_scales[l]);
    }
    free(positions);
    free(moves);
    free(freed);
    fixture_free(&f);
}

int main(int argc, char **argv)
{
    unsigned long long count = 4000;
    unsigned long long seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--count") == 0) {
            count = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[i + 1], NULL, 10);
        }
    }
    printf("compact-property: %llu configurations from seed %llu\n", count, seed);
    for (unsigned long long i = 0; i < count; i++) {
        config c;
        random_config(&c, seed + i);
        run(&c);
        if (failure != NULL) {
            printf("failed: %s (line %d)\n", failure, failure_line);
            printf("--seed %llu --count 1: layers %d heads %d mode %d order %d rows %d tokens_per_page %d "
                   "own_tables %d zero_tail %d percent %d k %s v %s v_kind %d\n",
                   seed + i, c.n_layers, c.n_heads, c.mode, c.order, c.n_rows, c.tokens_per_page,
                   c.own_tables, c.zero_tail, c.percent, tria_dtype_name(c.k_dtype),
                   tria_dtype_name(c.v_dtype), c.v_kind);
            return 1;
        }
    }
    printf("all agree\n");
    return 0;
}

/*
 * Compaction through the public API against the golden vectors computed from the specification
 * (golden_spec/compact_*), on the backends of golden/backends.h.
 */
#include "backends.h"
#include "cli/npy.h"
#include "internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LAYERS = 4 };

static golden_backend backends[2];
static int32_t n_backends;

/* A plan that keeps what the vectors say; views, positions and report are the test's to fill. */
typedef struct fixture {
    tria_layer_params layers[MAX_LAYERS];
    tria_layer_view layer_views[MAX_LAYERS];
    tria_kv_view view;
    tria_plan_params params;
    tria_event event;
    tria_keep keep;
    tria_compaction compaction;
} fixture;

static void fixture_init(fixture *f, int32_t n_layers, int32_t n_heads, int32_t mode, int32_t n_rows)
{
    memset(f, 0, sizeof(*f));
    assert_in_range(n_layers, 1, MAX_LAYERS);
    for (int32_t layer = 0; layer < n_layers; layer++) {
        tria_layer_params_init(&f->layers[layer]);
        f->layers[layer].n_q_heads = n_heads;
        f->layers[layer].n_kv_heads = n_heads;
    }
    tria_kv_view_init(&f->view);
    f->view.layers = f->layer_views;
    f->view.n_layers = n_layers;
    tria_plan_params_init(&f->params);
    f->params.layout = &f->view;
    f->params.mode = mode;
    f->params.max_rows = n_rows;
    tria_event_init(&f->event);
    f->event.kv = &f->view;
    f->event.t = n_rows;
    f->event.n_rows = n_rows;
    tria_compaction_init(&f->compaction);
}

static void check(tria_status status, const tria_error *error)
{
    if (status != TRIA_OK) {
        fail_msg("%s", error->message);
    }
}

/* Compacts on `backend` to the sets [..., K], which are padded with -1. */
static void fixture_compact(fixture *f, const golden_backend *backend, const npy_array *keep)
{
    const int32_t width = (int32_t)keep->dims[keep->n_dims - 1];
    const int32_t n_sets = (int32_t)(keep->count / width);
    tria_model_params model_params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model = NULL;
    tria_plan *plan = NULL;
    tria_batch batch;
    tria_error error;
    for (int32_t layer = 0; layer < f->view.n_layers; layer++) {
        f->layers[layer].head_dim = f->layer_views[layer].k.dim;
    }
    model_params.layers = f->layers;
    model_params.n_layers = f->view.n_layers;
    check(tria_model_create(&model_params, NULL, &model, &error), &error);
    f->params.model = model;
    golden_use_backend(backend, &f->params);
    check(tria_plan_create(&f->params, NULL, &plan, &error), &error);
    assert_int_equal(tria_plan_n_sets(plan), n_sets);
    tria_keep_init(&f->keep);
    f->keep.rows = keep->data;
    f->keep.row_stride = width;
    f->keep.counts = calloc((size_t)n_sets, sizeof(int32_t));
    for (int32_t set = 0; set < n_sets; set++) {
        const int32_t *rows = f->keep.rows + (int64_t)set * width;
        while (f->keep.counts[set] < width && rows[f->keep.counts[set]] >= 0) {
            f->keep.counts[set]++;
        }
    }
    tria_batch_init(&batch);
    batch.events = &f->event;
    batch.n_events = 1;
    check(tria_plan_compact(plan, &batch, &f->keep, &f->compaction, &error), &error);
    check(tria_plan_synchronize(plan, &error), &error);
    tria_plan_destroy(plan);
    tria_model_destroy(model);
}

static npy_array load(const char *name, const char *suffix)
{
    char path[512];
    npy_array array;
    tria_error error;
    snprintf(path, sizeof(path), TRIA_TEST_DATA "/golden_spec/%s%s.npy", name, suffix);
    memset(&array, 0, sizeof(array));
    if (npy_read(path, &array, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
    return array;
}

static void expect_moves(const fixture *f, const tria_move *moves, const npy_array *expected)
{
    const int32_t *e = expected->data;
    assert_int_equal(f->compaction.n_moves, expected->dims[0]);
    for (int64_t i = 0; i < expected->dims[0]; i++, e += 4) {
        if (moves[i].layer != e[0] || moves[i].kv_head != e[1] || moves[i].from != e[2] ||
            moves[i].to != e[3]) {
            fail_msg("move %d is (%d, %d, %d, %d), expected (%d, %d, %d, %d)", (int)i, moves[i].layer,
                     moves[i].kv_head, moves[i].from, moves[i].to, e[0], e[1], e[2], e[3]);
        }
    }
}

static int32_t row_bytes(const npy_array *array)
{
    return (int32_t)array->dims[3] * array->size;
}

/* `name` as [layer][head][row][bytes], as the view of a fixture. */
static void attach(fixture *f, const npy_array *array, int32_t dtype, bool is_v)
{
    const int32_t bytes = row_bytes(array);
    for (int32_t layer = 0; layer < f->view.n_layers; layer++) {
        tria_tensor *tensor = is_v ? &f->layer_views[layer].v : &f->layer_views[layer].k;
        *tensor =
            (tria_tensor){.base = array->data,
                          .offset = (uint64_t)layer * (uint64_t)(array->dims[1] * array->dims[2] * bytes),
                          .size = (uint64_t)(array->count * array->size),
                          .token_stride = bytes,
                          .head_stride = array->dims[2] * bytes,
                          .dtype = dtype,
                          .dim = bytes / tria_dtype_block_bytes(dtype) * tria_dtype_block(dtype)};
    }
}

/* The keep set that (layer, head) number `slot` obeys. */
static int32_t set_of(const fixture *f, int32_t slot)
{
    const int32_t n_heads = f->layers[0].n_kv_heads;
    switch (f->params.mode) {
    case TRIA_MODE_PER_LAYER_PER_HEAD:
        return slot;
    case TRIA_MODE_PER_HEAD:
        return slot % n_heads;
    case TRIA_MODE_PER_LAYER:
        return slot / n_heads;
    default:
        return 0;
    }
}

static void expect_rows(const fixture *f, const npy_array *got, const npy_array *expected, const char *what)
{
    const int64_t bytes = row_bytes(got);
    for (int32_t slot = 0; slot < got->dims[0] * got->dims[1]; slot++) {
        const char *g = (const char *)got->data + slot * got->dims[2] * bytes;
        const char *e = (const char *)expected->data + slot * expected->dims[2] * bytes;
        if (memcmp(g, e, (size_t)(f->keep.counts[set_of(f, slot)] * bytes)) != 0) {
            fail_msg("%s of slot %d differs", what, slot);
        }
    }
}

static void run_flat(const golden_backend *backend, const char *name, int32_t dtype, const char *set,
                     int32_t mode, int32_t order)
{
    char base[128];
    char result[128];
    fixture f;
    snprintf(base, sizeof(base), "%s/", name);
    snprintf(result, sizeof(result), "%s/%s_%s_", name, set,
             order == TRIA_ORDER_STABLE ? "stable" : "fill_holes");
    npy_array k = load(base, "K");
    npy_array v = load(base, "V");
    npy_array positions = load(base, "positions");
    npy_array keep = load(base, (snprintf(base, sizeof(base), "%s/keep_", name), set));
    npy_array expected_k = load(result, "K");
    npy_array expected_v = load(result, "V");
    npy_array expected_rows = load(result, "rows");
    npy_array expected_moves = load(result, "moves");
    const int32_t n_rows = (int32_t)k.dims[2];
    const int32_t n_slots = (int32_t)(k.dims[0] * k.dims[1]);

    fixture_init(&f, (int32_t)k.dims[0], (int32_t)k.dims[1], mode, n_rows);
    attach(&f, &k, dtype, false);
    attach(&f, &v, dtype, true);
    int32_t *table = malloc((size_t)(n_slots * n_rows) * sizeof(*table));
    for (int32_t i = 0; i < n_slots * n_rows; i++) {
        table[i] = ((const int32_t *)positions.data)[i % n_rows];
    }
    f.event.positions = table;
    f.event.positions_head_stride = n_rows;
    f.event.positions_layer_stride = n_rows * k.dims[1];
    tria_move *moves = malloc((size_t)(n_slots * n_rows) * sizeof(*moves));
    f.compaction.moves = moves;
    f.compaction.moves_capacity = expected_moves.dims[0]; /* exactly enough */
    f.params.order = order;

    fixture_compact(&f, backend, &keep);
    expect_rows(&f, &k, &expected_k, "K");
    expect_rows(&f, &v, &expected_v, "V");
    expect_moves(&f, moves, &expected_moves);
    assert_int_equal(f.compaction.bytes_moved, expected_moves.dims[0] * (row_bytes(&k) + row_bytes(&v)));
    for (int32_t slot = 0; slot < n_slots; slot++) {
        const int32_t *old = (const int32_t *)expected_rows.data + slot * expected_rows.dims[2];
        for (int32_t i = 0; i < f.keep.counts[set_of(&f, slot)]; i++) {
            assert_int_equal(table[slot * n_rows + i], ((const int32_t *)positions.data)[old[i]]);
        }
    }
    free(moves);
    free(table);
    free(f.keep.counts);
    npy_free(&k);
    npy_free(&v);
    npy_free(&positions);
    npy_free(&keep);
    npy_free(&expected_k);
    npy_free(&expected_v);
    npy_free(&expected_rows);
    npy_free(&expected_moves);
}

static void run_all_flat(const golden_backend *backend, const char *name, int32_t dtype)
{
    static const struct {
        const char *set;
        int32_t mode;
    } sets[] = {{"shared", TRIA_MODE_UNION},
                {"head", TRIA_MODE_PER_HEAD},
                {"layer", TRIA_MODE_PER_LAYER},
                {"layer_head", TRIA_MODE_PER_LAYER_PER_HEAD},
                {"edge", TRIA_MODE_PER_LAYER_PER_HEAD}};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(sets); i++) {
        run_flat(backend, name, dtype, sets[i].set, sets[i].mode, TRIA_ORDER_STABLE);
        run_flat(backend, name, dtype, sets[i].set, sets[i].mode, TRIA_ORDER_FILL_HOLES);
    }
}

static void test_f16(void **state)
{
    (void)state;
    for (int32_t b = 0; b < n_backends; b++) {
        run_all_flat(&backends[b], "compact_f16", TRIA_DTYPE_F16);
    }
}

static void test_q8_0(void **state)
{
    (void)state;
    for (int32_t b = 0; b < n_backends; b++) {
        run_all_flat(&backends[b], "compact_q8_0", TRIA_DTYPE_Q8_0);
    }
}

/* pool [L][page][2][head][token][dim] */
static void run_paged(const golden_backend *backend, const char *set, int32_t order)
{
    enum { TOKENS = 16, N = 75 };
    const char *order_name = order == TRIA_ORDER_STABLE ? "stable" : "fill_holes";
    char name[128];
    tria_move moves[4 * N];
    int32_t freed_pages[8];
    fixture f;
    npy_array pool = load("compact_paged/", "pool");
    npy_array table = load("compact_paged/", "page_table");
    npy_array keep = load("compact_paged/keep_", set);
    npy_array freed = load("compact_paged/freed_", set);
    npy_array used = load("compact_paged/table_", set);
    snprintf(name, sizeof(name), "compact_paged/%s_", set);
    npy_array defined = load(name, "defined");
    snprintf(name, sizeof(name), "compact_paged/%s_%s_", set, order_name);
    npy_array expected = load(name, "pool");
    npy_array expected_moves = load(name, "moves");
    const int64_t n_pages = pool.dims[1];
    const int64_t n_heads = pool.dims[3];
    const int64_t row = pool.dims[5] * 2;

    fixture_init(&f, (int32_t)pool.dims[0], (int32_t)n_heads, TRIA_MODE_PER_LAYER_PER_HEAD, N);
    f.view.page_table = table.data;
    f.view.n_pages = (int32_t)table.count;
    f.view.tokens_per_page = TOKENS;
    for (int32_t layer = 0; layer < f.view.n_layers; layer++) {
        tria_layer_view *view = &f.layer_views[layer];
        view->k = (tria_tensor){.base = pool.data,
                                .offset = (uint64_t)(layer * n_pages * 2 * n_heads * TOKENS * row),
                                .size = (uint64_t)(pool.count * 2),
                                .page_stride = 2 * n_heads * TOKENS * row,
                                .token_stride = row,
                                .head_stride = TOKENS * row,
                                .dtype = TRIA_DTYPE_F16,
                                .dim = (int32_t)pool.dims[5]};
        view->v = view->k;
        view->v.offset += (uint64_t)(n_heads * TOKENS * row);
    }
    f.compaction.moves = moves;
    f.compaction.moves_capacity = 4 * N;
    f.compaction.freed_pages = freed_pages;
    f.compaction.freed_capacity = (int32_t)freed.count; /* exactly enough */
    f.params.order = order;
    fixture_compact(&f, backend, &keep);
    const uint8_t *is_defined = defined.data;
    const char *got = pool.data;
    const char *wanted = expected.data;
    for (int64_t i = 0; i < pool.dims[0] * n_pages; i++) {
        for (int64_t j = 0; j < 2 * n_heads * TOKENS; j++) {
            const int64_t at = (i * 2 * n_heads * TOKENS + j) * row;
            if (is_defined[i * n_heads * TOKENS + j % (n_heads * TOKENS)] != 0 &&
                memcmp(got + at, wanted + at, (size_t)row) != 0) {
                fail_msg("%s %s: page %d differs", set, order_name, (int)(i % n_pages));
            }
        }
    }
    expect_moves(&f, moves, &expected_moves);
    assert_int_equal(f.compaction.n_freed_pages, freed.count);
    assert_int_equal(freed.count + used.count, table.count);
    assert_memory_equal(freed_pages, freed.data, (size_t)freed.count * sizeof(int32_t));
    free(f.keep.counts);
    npy_free(&pool);
    npy_free(&table);
    npy_free(&keep);
    npy_free(&freed);
    npy_free(&used);
    npy_free(&defined);
    npy_free(&expected);
    npy_free(&expected_moves);
}

static void test_paged(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2 * n_backends; i++) {
        const int32_t order = i % 2 == 0 ? TRIA_ORDER_STABLE : TRIA_ORDER_FILL_HOLES;
        run_paged(&backends[i / 2], "head", order);
        run_paged(&backends[i / 2], "layer_head", order);
        run_paged(&backends[i / 2], "exact_page", order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_paged),
    };
    tria_backends *loaded;
    n_backends = golden_open_backends(&loaded, backends);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    golden_close_backends(loaded, backends, n_backends);
    return failed;
}

#include "property/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank rank;

typedef struct group {
    int32_t n;
    pthread_barrier_t barrier;
    rank *ranks;
    bool differs; /* the ranks did not make the same call */
} group;

struct rank {
    group *all;
    int32_t index;
    /* its part */
    tria_plan_params params;
    tria_event event;
    tria_kv_view view;
    tria_layer_view layers[WORLD_LAYERS];
    int32_t layer_list[WORLD_LAYERS];
    /* the call being made */
    float *data;
    int64_t count;
    tria_reduce_op op;
    /* results */
    tria_status status;
    tria_error error;
    int32_t n_sets;
    int32_t rows[WORLD_SLOTS][WORLD_ROWS];
    int32_t counts[WORLD_SLOTS];
};

static int32_t all_reduce(void *context, float *data, int64_t count, tria_reduce_op op, void *stream)
{
    rank *me = context;
    group *all = me->all;
    (void)stream;
    me->data = data;
    me->count = count;
    me->op = op;
    pthread_barrier_wait(&all->barrier);
    if (me->index == 0) {
        for (int32_t r = 1; r < all->n; r++) {
            all->differs |= all->ranks[r].count != count || all->ranks[r].op != op;
        }
        for (int64_t i = 0; i < count && !all->differs; i++) {
            float result = data[i];
            for (int32_t r = 1; r < all->n; r++) {
                const float x = all->ranks[r].data[i];
                result = op == TRIA_REDUCE_SUM ? result + x : x > result ? x : result;
            }
            for (int32_t r = 0; r < all->n; r++) {
                all->ranks[r].data[i] = result;
            }
        }
    }
    pthread_barrier_wait(&all->barrier);
    return all->differs;
}

static void *run_rank(void *argument)
{
    rank *me = argument;
    tria_plan *plan = NULL;
    tria_batch batch;
    tria_keep keep;
    me->status = tria_plan_create(&me->params, NULL, &plan, &me->error);
    pthread_barrier_wait(&me->all->barrier);
    for (int32_t r = 0; r < me->all->n; r++) { /* nobody waits for a rank that could not start */
        if (me->all->ranks[r].status != TRIA_OK) {
            tria_plan_destroy(plan);
            return NULL;
        }
    }
    me->n_sets = tria_plan_n_sets(plan);
    tria_batch_init(&batch);
    batch.events = &me->event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.rows = &me->rows[0][0];
    keep.counts = me->counts;
    keep.row_stride = WORLD_ROWS;
    me->status = tria_plan_select(plan, &batch, NULL, &keep, &me->error);
    tria_plan_destroy(plan);
    return NULL;
}

static void prepare(const world *w, group *all, int32_t index)
{
    rank *me = &all->ranks[index];
    me->all = all;
    me->index = index;
    me->params = w->params;
    me->event = w->event;
    me->view = w->view;
    memcpy(me->layers, w->layers, sizeof(me->layers));
    me->view.layers = me->layers;
    me->params.layout = &me->view;
    me->params.all_reduce = all_reduce;
    me->params.all_reduce_context = me;
    me->event.kv = &me->view;
    me->event.rows = NULL;
}

static bool run_group(group *all)
{
    pthread_t threads[WORLD_HEADS];
    bool ok = true;
    for (int32_t r = 0; r < all->n; r++) {
        if (pthread_create(&threads[r], NULL, run_rank, &all->ranks[r]) != 0) {
            printf("no thread\n");
            exit(1);
        }
    }
    for (int32_t r = 0; r < all->n; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int32_t r = 0; r < all->n; r++) {
        ok = ok && all->ranks[r].status == TRIA_OK;
    }
    return ok && !all->differs;
}

static void open_group(group *all, int32_t n)
{
    all->n = n;
    all->differs = false;
    all->ranks = calloc((size_t)n, sizeof(*all->ranks));
    if (all->ranks == NULL || pthread_barrier_init(&all->barrier, NULL, (unsigned)n) != 0) {
        printf("no memory\n");
        exit(1);
    }
}

static void close_group(group *all)
{
    pthread_barrier_destroy(&all->barrier);
    free(all->ranks);
}

bool ranks_split_heads(const world *w, int32_t rows[WORLD_SLOTS][WORLD_ROWS], int32_t counts[WORLD_SLOTS])
{
    const int32_t mode = w->params.mode;
    const bool by_head = mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_PER_LAYER_PER_HEAD;
    const int32_t n = w->geometry[0].n_kv_heads;
    group all;
    open_group(&all, n);
    for (int32_t r = 0; r < n; r++) {
        rank *me = &all.ranks[r];
        prepare(w, &all, r);
        me->params.kv_head_first = r;
        me->params.kv_head_count = 1;
        for (int32_t l = 0; l < w->n_layers; l++) { /* a rank's view holds its heads only */
            tria_tensor *k = &me->layers[l].k;
            k->offset += (uint64_t)(r * k->head_stride);
            k->scales_offset += (uint64_t)(r * k->scale_head_stride);
        }
        me->event.positions = w->event.positions + r * w->event.positions_head_stride;
    }
    const bool ok = run_group(&all);
    for (int32_t r = 0; r < n && ok; r++) {
        const rank *me = &all.ranks[r];
        for (int32_t set = 0; set < me->n_sets; set++) {
            const int32_t at = by_head ? set * n + r : set;
            counts[at] = me->counts[set];
            memcpy(rows[at], me->rows[set], (size_t)counts[at] * sizeof(int32_t));
        }
    }
    if (!ok) {
        printf("rank: %s\n", all.ranks[0].error.message);
    }
    close_group(&all);
    return ok;
}

bool ranks_split_layers(const world *w, int32_t rows[WORLD_SLOTS][WORLD_ROWS], int32_t counts[WORLD_SLOTS])
{
    const int32_t mode = w->params.mode;
    const bool by_layer = mode == TRIA_MODE_PER_LAYER || mode == TRIA_MODE_PER_LAYER_PER_HEAD;
    const int32_t half = w->n_layers / 2;
    int32_t at = 0;
    group all;
    open_group(&all, 2);
    for (int32_t r = 0; r < 2; r++) {
        rank *me = &all.ranks[r];
        const int32_t first = r == 0 ? 0 : half;
        prepare(w, &all, r);
        me->params.n_layers = r == 0 ? half : w->n_layers - half;
        me->params.layers = me->layer_list;
        me->view.layers = me->layers + first;
        me->view.n_layers = me->params.n_layers;
        if (w->params.layer_weights != NULL) {
            me->params.layer_weights = w->params.layer_weights + first;
        }
        for (int32_t l = 0; l < me->params.n_layers; l++) {
            me->layer_list[l] = first + l;
        }
        me->event.positions = w->event.positions + first * w->event.positions_layer_stride;
    }
    const bool ok = run_group(&all);
    for (int32_t r = 0; r < 2 && ok; r++) {
        const rank *me = &all.ranks[r];
        for (int32_t set = 0; set < me->n_sets; set++) {
            const int32_t to = by_layer ? at++ : set;
            counts[to] = me->counts[set];
            memcpy(rows[to], me->rows[set], (size_t)counts[to] * sizeof(int32_t));
        }
    }
    close_group(&all);
    return ok;
}

/*
 * Tensor and pipeline parallel selection over MPI.
 *
 * Each rank owns a slice of the KV heads (--split heads) or of the layers (--split layers) of one model
 * and of its cache. Ranks exchange only what a keep set needs: an all-reduce of N floats in the modes
 * union, per-layer and global, of 2*N*heads floats for per-head split by layers, nothing otherwise.
 * The program prints the keep sets in the order of the whole model, so that runs with any number of
 * ranks print the same lines:
 *
 *     mpirun -n 1 tria-mpi --mode union > one
 *     mpirun -n 4 tria-mpi --mode union > four && cmp one four
 *
 * With NCCL or RCCL the callback is ncclAllReduce(data, data, count, ncclFloat, op, comm, stream) with
 * the communicator of the ranks that share the split dimension.
 */
#include <tria/tria.h>

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, Q_HEADS = 16, KV_HEADS = 4, DIM = 32, FREQS = DIM / 2, ROWS = 600, BUDGET = 200 };

/* The same numbers on every rank and machine. */
static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (float)(int32_t)(*state >> 32) / 2147483648.0F;
}

static void stop(const char *what, const tria_error *error)
{
    fprintf(stderr, "tria-mpi: %s: %s\n", what, error != NULL ? error->message : "out of memory");
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static int32_t all_reduce(void *context, float *data, int64_t count, tria_reduce_op op, void *stream)
{
    MPI_Comm *ranks = context;
    (void)stream;
    return MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT,
                         op == TRIA_REDUCE_SUM ? MPI_SUM : MPI_MAX, *ranks);
}

static tria_model *make_model(void)
{
    tria_layer_params layers[LAYERS];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model = NULL;
    tria_error error;
    for (int l = 0; l < LAYERS; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = Q_HEADS;
        layers[l].n_kv_heads = KV_HEADS;
        layers[l].head_dim = DIM;
    }
    params.layers = layers;
    params.n_layers = LAYERS;
    if (tria_model_create(&params, NULL, &model, &error) != TRIA_OK) {
        stop("model", &error);
    }
    return model;
}

static tria_calibration *make_calibration(const tria_model *model)
{
    tria_calibration *calibration = NULL;
    tria_error error;
    uint64_t seed = 1;
    if (tria_calibration_create(model, NULL, &calibration, &error) != TRIA_OK) {
        stop("calibration", &error);
    }
    for (int l = 0; l < LAYERS; l++) {
        for (int h = 0; h < Q_HEADS; h++) {
            float real[FREQS];
            float imag[FREQS];
            float magnitude[FREQS];
            tria_head_stats stats = {sizeof(stats), real, imag, magnitude, NULL, NULL};
            for (int f = 0; f < FREQS; f++) {
                real[f] = noise(&seed);
                imag[f] = noise(&seed);
                magnitude[f] = 1.5F + noise(&seed) / 4;
            }
            if (tria_calibration_set_head(calibration, l, h, &stats, &error) != TRIA_OK) {
                stop("calibration", &error);
            }
        }
    }
    return calibration;
}

/* The whole cache [layer][head][row][dim]; a rank's view covers its slice of it. */
static float *make_keys(void)
{
    const size_t count = (size_t)LAYERS * KV_HEADS * ROWS * DIM;
    float *keys = malloc(count * sizeof(float));
    uint64_t seed = 2;
    if (keys == NULL) {
        stop("keys", NULL);
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = noise(&seed);
    }
    return keys;
}

int main(int argc, char **argv)
{
    int rank;
    int n_ranks;
    bool by_layers = false;
    int32_t mode = TRIA_MODE_UNION;
    MPI_Comm ranks = MPI_COMM_WORLD;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &n_ranks);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mode") == 0) {
            mode = tria_mode_from_name(argv[i + 1]);
        } else if (strcmp(argv[i], "--split") == 0) {
            by_layers = strcmp(argv[i + 1], "layers") == 0;
        }
    }
    if (mode < 0 || KV_HEADS % n_ranks != 0 || LAYERS % n_ranks != 0) {
        stop("usage: --mode MODE --split heads|layers with 1, 2 or 4 ranks", NULL);
    }

    /* this rank's slice */
    const int32_t n_layers = by_layers ? LAYERS / n_ranks : LAYERS;
    const int32_t n_heads = by_layers ? KV_HEADS : KV_HEADS / n_ranks;
    const int32_t first_layer = by_layers ? rank * n_layers : 0;
    const int32_t first_head = by_layers ? 0 : rank * n_heads;
    tria_model *model = make_model();
    tria_calibration *calibration = make_calibration(model);
    float *keys = make_keys();
    int32_t layers[LAYERS];
    tria_layer_view views[LAYERS];
    tria_kv_view view = TRIA_KV_VIEW_INIT;
    memset(views, 0, sizeof(views));
    for (int32_t l = 0; l < n_layers; l++) {
        layers[l] = first_layer + l;
        views[l].k.base = keys + ((size_t)layers[l] * KV_HEADS + (size_t)first_head) * ROWS * DIM;
        views[l].k.head_stride = (int64_t)ROWS * DIM * 4;
        views[l].k.token_stride = (int64_t)DIM * 4;
        views[l].k.dtype = TRIA_DTYPE_F32;
        views[l].k.dim = DIM;
    }
    view.layers = views;
    view.n_layers = n_layers;

    tria_plan_params params;
    tria_plan *plan = NULL;
    tria_error error;
    tria_plan_params_init(&params);
    params.model = model;
    params.calibration = calibration;
    params.layout = &view;
    params.layers = layers;
    params.n_layers = n_layers;
    params.kv_head_first = first_head;
    params.kv_head_count = n_heads;
    params.mode = mode;
    params.budget = BUDGET;
    params.n_sink = 4;
    params.n_recent = 32;
    params.max_rows = ROWS;
    params.all_reduce = n_ranks > 1 ? all_reduce : NULL;
    params.all_reduce_context = &ranks;
    if (tria_plan_create(&params, NULL, &plan, &error) != TRIA_OK) {
        stop("plan", &error);
    }

    static int32_t rows[LAYERS * KV_HEADS * ROWS];
    int32_t counts[LAYERS * KV_HEADS];
    tria_event event;
    tria_batch batch;
    tria_keep keep;
    tria_event_init(&event);
    event.kv = &view;
    event.t = ROWS;
    event.n_rows = ROWS;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.rows = rows;
    keep.counts = counts;
    keep.row_stride = ROWS;
    if (tria_plan_select(plan, &batch, NULL, &keep, &error) != TRIA_OK) {
        stop("select", &error);
    }

    /* each (layer, head)'s set, in the order of the whole model; its owner sends it to rank 0 */
    for (int32_t l = 0; l < LAYERS; l++) {
        for (int32_t h = 0; h < KV_HEADS; h++) {
            const int owner = by_layers ? l / n_layers : h / n_heads;
            int32_t line[ROWS];
            int32_t count = 0;
            if (owner == rank) {
                const int32_t set = tria_plan_set(plan, l - first_layer, h - first_head);
                count = counts[set];
                memcpy(line, rows + (size_t)set * ROWS, sizeof(*line) * (size_t)count);
            }
            MPI_Bcast(&count, 1, MPI_INT32_T, owner, ranks);
            MPI_Bcast(line, count, MPI_INT32_T, owner, ranks);
            if (rank == 0) {
                printf("layer %d head %d:", l, h);
                for (int32_t i = 0; i < count; i++) {
                    printf(" %d", line[i]);
                }
                printf("\n");
            }
        }
    }
    tria_plan_destroy(plan);
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    free(keys);
    MPI_Finalize();
    return 0;
}

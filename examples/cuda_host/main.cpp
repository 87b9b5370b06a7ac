/*
 * cuda_host - how an engine on CUDA or HIP uses libtria, on device memory and a stream of its own.
 *
 *     tria-cuda-host [--layers 4] [--budget 96] [--interval 32] [--rounds 8] [--device 0]
 *
 * K and V lie in device memory, [head][token][dim] in half precision; a second cache in host memory goes
 * through the CPU backend, and after every compaction both must agree byte for byte.
 *
 *   1. Tokens are appended one by one; the policy says when to compact. Keep sets come to the host.
 *   2. A captured graph: everything an event needs lies in device memory, selecting and compacting is
 *      captured once and replayed after every `interval` tokens. The host never waits but to check.
 *
 * Model, calibration and keys are random. The exit status is 0 when everything agreed, 77 without a device.
 */
#include "runtime.h"

#include "tria/cuda.h"
#include "tria/tria.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

static void must(tria_status status, const char *what, const tria_error &error)
{
    if (status != TRIA_OK) {
        fprintf(stderr, "cuda_host: %s: %s\n", what, error.message);
        exit(1);
    }
}

static void must(cudaError_t result, const char *what)
{
    if (result != cudaSuccess) {
        fprintf(stderr, "cuda_host: %s: %s\n", what, cudaGetErrorString(result));
        exit(1);
    }
}

struct Options {
    int layers = 4;
    int budget = 96;
    int interval = 32;
    int rounds = 8;
    int device = 0;
};

static Options parse(int argc, char **argv)
{
    Options o;
    const struct {
        const char *name;
        int *value;
        int least;
    } known[] = {{"--layers", &o.layers, 1},
                 {"--budget", &o.budget, 48},
                 {"--interval", &o.interval, 1},
                 {"--rounds", &o.rounds, 1},
                 {"--device", &o.device, 0}};
    for (int i = 1; i < argc; i += 2) {
        bool found = false;
        for (const auto &option : known) {
            char *end = NULL;
            const long value = i + 1 < argc ? strtol(argv[i + 1], &end, 10) : 0;
            if (strcmp(argv[i], option.name) == 0 && end != NULL && *end == '\0' && value >= option.least &&
                value < 1 << 20) {
                *option.value = (int)value;
                found = true;
            }
        }
        if (!found) {
            fprintf(stderr, "cuda_host: unknown or incomplete option %s\n", argv[i]);
            exit(2);
        }
    }
    return o;
}

static uint64_t random_state = 20240613;

static uint32_t random_bits()
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(random_state >> 32);
}

static float random_float()
{
    return (float)(int32_t)random_bits() / 2147483648.0F;
}

/* A half-precision number between 2^-2 and 4, of either sign. */
static uint16_t random_half()
{
    const uint32_t bits = random_bits();
    return (uint16_t)((bits & 0x8000) | (13 + (bits >> 16 & 3)) << 10 | (bits & 0x3ff));
}

enum { Q_HEADS = 8, KV_HEADS = 2, DIM = 64, N_SINK = 4, N_RECENT = 16 };

static tria_model *make_model(int n_layers)
{
    std::vector<tria_layer_params> layers((size_t)n_layers);
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_model *model;
    tria_error error;
    for (tria_layer_params &layer : layers) {
        tria_layer_params_init(&layer);
        layer.n_q_heads = Q_HEADS;
        layer.n_kv_heads = KV_HEADS;
        layer.head_dim = DIM;
    }
    params.layers = layers.data();
    params.n_layers = n_layers;
    must(tria_model_create(&params, NULL, &model, &error), "model", error);
    return model;
}

static tria_calibration *make_calibration(const tria_model *model, int n_layers)
{
    tria_calibration *calibration;
    tria_error error;
    must(tria_calibration_create(model, NULL, &calibration, &error), "calibration", error);
    for (int i = 0; i < n_layers * Q_HEADS; i++) {
        float values[3][DIM / 2];
        for (int f = 0; f < DIM / 2; f++) {
            values[0][f] = random_float();
            values[1][f] = random_float();
            values[2][f] = 1.5F + random_float() / 4.0F;
        }
        const tria_head_stats stats = {sizeof(stats), values[0], values[1], values[2], NULL, NULL};
        must(tria_calibration_set_head(calibration, i / Q_HEADS, i % Q_HEADS, &stats, &error),
             "calibration", error);
    }
    return calibration;
}

/* The engine: a cache on the device, and the same in host memory for the CPU backend. */
struct Engine {
    int n_layers;
    int capacity;
    cudaStream_t stream;
    std::vector<uint16_t *> device; /* [n_layers][2]: K, V */
    std::vector<std::vector<uint16_t>> host;
    std::vector<tria_layer_view> on_device;
    std::vector<tria_layer_view> on_host;
    tria_kv_view device_view;
    tria_kv_view host_view;
    std::vector<uint16_t> back; /* for comparing */

    Engine(int layers, int rows);
    ~Engine();
    void append(int row);
    int64_t differences(const int *rows_left);
};

static void describe_tensor(tria_tensor *tensor, void *base, int capacity)
{
    memset(tensor, 0, sizeof(*tensor));
    tensor->base = base;
    tensor->dtype = TRIA_DTYPE_F16;
    tensor->dim = DIM;
    tensor->token_stride = DIM * 2;
    tensor->head_stride = (int64_t)capacity * DIM * 2;
    tensor->size = (uint64_t)KV_HEADS * (uint64_t)capacity * DIM * 2;
}

Engine::Engine(int layers, int rows) : n_layers(layers), capacity(rows)
{
    const size_t count = (size_t)KV_HEADS * (size_t)rows * DIM;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    on_device.resize((size_t)layers);
    on_host.resize((size_t)layers);
    back.resize(count);
    for (size_t i = 0; i < 2 * (size_t)layers; i++) {
        void *memory = NULL;
        must(cudaMalloc(&memory, count * 2), "device memory");
        must(cudaMemsetAsync(memory, 0, count * 2, stream), "device memory");
        device.push_back((uint16_t *)memory);
        host.push_back(std::vector<uint16_t>(count));
    }
    memset(&on_device[0], 0, sizeof(on_device[0]) * (size_t)layers);
    memset(&on_host[0], 0, sizeof(on_host[0]) * (size_t)layers);
    for (size_t l = 0; l < (size_t)layers; l++) {
        describe_tensor(&on_device[l].k, device[2 * l], rows);
        describe_tensor(&on_device[l].v, device[2 * l + 1], rows);
        describe_tensor(&on_host[l].k, host[2 * l].data(), rows);
        describe_tensor(&on_host[l].v, host[2 * l + 1].data(), rows);
    }
    tria_kv_view_init(&device_view);
    device_view.n_layers = layers;
    host_view = device_view;
    device_view.layers = on_device.data();
    host_view.layers = on_host.data();
}

Engine::~Engine()
{
    for (uint16_t *memory : device) {
        must(cudaFree(memory), "device memory");
    }
    must(cudaStreamDestroy(stream), "the stream");
}

/* What a forward pass would do: a token becomes row `row` of every layer and head. */
void Engine::append(int row)
{
    for (size_t i = 0; i < device.size(); i++) {
        for (int head = 0; head < KV_HEADS; head++) {
            const size_t at = ((size_t)head * (size_t)capacity + (size_t)row) * DIM;
            for (int d = 0; d < DIM; d++) {
                host[i][at + (size_t)d] = random_half();
            }
            must(cudaMemcpyAsync(device[i] + at, &host[i][at], DIM * 2, cudaMemcpyHostToDevice, stream),
                 "writing a token");
        }
    }
}

/* Elements that differ in the rows in use, [n_layers][KV_HEADS] of them. */
int64_t Engine::differences(const int *rows)
{
    int64_t different = 0;
    for (size_t i = 0; i < device.size(); i++) {
        must(cudaMemcpyAsync(back.data(), device[i], back.size() * 2, cudaMemcpyDeviceToHost, stream),
             "reading back");
        must(cudaStreamSynchronize(stream), "reading back");
        for (int head = 0; head < KV_HEADS; head++) {
            const size_t begin = (size_t)head * (size_t)capacity * DIM;
            const size_t end = begin + (size_t)rows[i / 2 * KV_HEADS + (size_t)head] * DIM;
            for (size_t at = begin; at < end; at++) {
                different += back[at] != host[i][at];
            }
        }
    }
    return different;
}

static tria_plan *make_plan(const tria_plan_params &params, const tria_kv_view *layout, tria_device *device)
{
    tria_plan_params p = params;
    tria_plan *plan;
    tria_error error;
    p.layout = layout;
    p.score_device = p.select_device = p.compact_device = device;
    must(tria_plan_create(&p, NULL, &plan, &error), "plan", error);
    return plan;
}

/* ---- 1. through the policy ---- */

struct Side {
    tria_plan *plan;
    tria_sequence *sequence;
    const tria_kv_view *view;
    void *stream;
};

static tria_sequence_info info_of(const Side &side)
{
    tria_sequence_info info;
    tria_error error;
    tria_sequence_info_init(&info);
    must(tria_sequence_get_info(side.sequence, &info, &error), "info", error);
    return info;
}

static int policy_rounds(const Options &o, const tria_plan_params &base, const tria_policy_params &settings,
                         tria_device *device)
{
    Engine engine(o.layers, settings.capacity);
    Side sides[2] = {
        {make_plan(base, &engine.device_view, device), NULL, &engine.device_view, engine.stream},
        {make_plan(base, &engine.host_view, NULL), NULL, &engine.host_view, NULL}};
    tria_error error;
    int failures = 0;
    for (Side &side : sides) {
        tria_policy_params policy = settings;
        policy.plan = side.plan;
        must(tria_sequence_create(&policy, NULL, &side.sequence, &error), "policy", error);
    }
    for (int round = 0; round < o.rounds;) {
        engine.append(info_of(sides[0]).rows);
        for (Side &side : sides) {
            must(tria_sequence_append(side.sequence, 1, &error), "append", error);
        }
        if (!tria_sequence_should_compact(sides[0].sequence)) {
            continue;
        }
        const int before = info_of(sides[0]).rows;
        for (Side &side : sides) {
            tria_compact_params params = TRIA_COMPACT_PARAMS_INIT;
            params.kv = side.view;
            params.stream = side.stream;
            must(tria_sequence_compact(side.sequence, side.plan, &params, &error), "compaction", error);
        }
        std::vector<int> rows;
        bool same = true;
        for (int i = 0; i < o.layers * KV_HEADS; i++) {
            int32_t n[2];
            const int32_t *a =
                tria_sequence_positions(sides[0].sequence, i / KV_HEADS, i % KV_HEADS, &n[0]);
            const int32_t *b =
                tria_sequence_positions(sides[1].sequence, i / KV_HEADS, i % KV_HEADS, &n[1]);
            same = same && n[0] == n[1] && memcmp(a, b, sizeof(*a) * (size_t)n[0]) == 0;
            rows.push_back(n[0]);
        }
        const int64_t different = engine.differences(rows.data());
        printf("compaction %d at t = %lld: %d -> %d rows, the CPU keeps %s rows, %lld values differ\n",
               ++round, (long long)info_of(sides[0]).t, before, info_of(sides[0]).rows,
               same ? "the same" : "OTHER", (long long)different);
        failures += !same || different != 0;
    }
    for (Side &side : sides) {
        tria_sequence_destroy(side.sequence);
        tria_plan_destroy(side.plan);
    }
    return failures;
}

/* ---- 2. a captured graph ---- */

/* Device memory that lives as long as the graph. */
struct DeviceArray {
    void *memory = NULL;
    explicit DeviceArray(size_t bytes)
    {
        must(cudaMalloc(&memory, bytes), "device memory");
    }
    ~DeviceArray()
    {
        must(cudaFree(memory), "device memory");
    }
    void write(const void *from, size_t bytes, cudaStream_t stream, size_t offset = 0)
    {
        must(cudaMemcpyAsync((char *)memory + offset, from, bytes, cudaMemcpyHostToDevice, stream),
             "writing control data");
    }
    template <class T> std::vector<T> read(size_t count, cudaStream_t stream)
    {
        std::vector<T> out(count);
        must(cudaMemcpyAsync(out.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
             "reading back");
        must(cudaStreamSynchronize(stream), "reading back");
        return out;
    }
};

/* The CPU's side: the same event from host memory. */
struct Mirror {
    tria_plan *plan;
    std::vector<int32_t> positions; /* [head][capacity] */
    std::vector<int32_t> keep_rows;
    std::vector<int32_t> keep_counts;
};

static void compact_mirror(Mirror *mirror, const Engine &engine, int64_t t, int n_rows)
{
    tria_event event;
    tria_batch batch;
    tria_keep keep;
    tria_error error;
    tria_event_init(&event);
    event.kv = &engine.host_view;
    event.t = t;
    event.n_rows = n_rows;
    event.positions = mirror->positions.data();
    event.positions_head_stride = engine.capacity;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    tria_keep_init(&keep);
    keep.rows = mirror->keep_rows.data();
    keep.counts = mirror->keep_counts.data();
    keep.row_stride = engine.capacity;
    must(tria_plan_select(mirror->plan, &batch, NULL, &keep, &error), "select on the CPU", error);
    must(tria_plan_compact(mirror->plan, &batch, &keep, NULL, &error), "compact on the CPU", error);
}

static int graph_rounds(const Options &o, const tria_plan_params &base, tria_device *device)
{
    const int capacity = o.budget + o.interval;
    const size_t n_slots = (size_t)o.layers * KV_HEADS;
    Engine engine(o.layers, capacity);
    tria_plan *plan = make_plan(base, &engine.device_view, device);
    Mirror mirror = {
        make_plan(base, &engine.host_view, NULL), std::vector<int32_t>((size_t)KV_HEADS * (size_t)capacity),
        std::vector<int32_t>((size_t)KV_HEADS * (size_t)capacity), std::vector<int32_t>(KV_HEADS)};
    const size_t n_sets = (size_t)tria_plan_n_sets(plan); /* per_head: one per KV head */
    DeviceArray t(sizeof(int64_t));
    DeviceArray rows(n_slots * 4);
    DeviceArray positions((size_t)KV_HEADS * (size_t)capacity * 4);
    DeviceArray keep_rows(n_sets * (size_t)capacity * 4);
    DeviceArray keep_counts(n_sets * 4);
    DeviceArray report(4 * 4);
    tria_device_tables tables;
    memset(&tables, 0, sizeof(tables));
    tables.struct_size = sizeof(tables);
    tables.t.base = t.memory;
    tables.rows.base = rows.memory;
    tables.positions.base = positions.memory;
    tables.keep_rows.base = keep_rows.memory;
    tables.keep_counts.base = keep_counts.memory;
    tables.keep_row_stride = capacity;
    tables.report.base = report.memory;
    tria_event event;
    tria_event_init(&event);
    event.kv = &engine.device_view;
    event.n_rows = capacity; /* the most of any replay */
    event.positions_head_stride = capacity;
    event.device = &tables;
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    batch.stream = engine.stream;
    tria_keep keep;
    tria_keep_init(&keep);
    tria_error error;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamSynchronize(engine.stream), "the stream");
    must(cudaStreamBeginCapture(engine.stream, cudaStreamCaptureModeThreadLocal), "capture");
    must(tria_plan_select(plan, &batch, NULL, &keep, &error), "capturing select", error);
    must(tria_plan_compact(plan, &batch, NULL, NULL, &error), "capturing compact", error);
    must(cudaStreamEndCapture(engine.stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "graph");

    int failures = 0;
    int n_rows = 0;
    int64_t now = 0;
    for (int round = 0; round < o.rounds; round++) {
        std::vector<int32_t> added;
        const int before = n_rows;
        for (; n_rows < capacity; n_rows++, now++) {
            engine.append(n_rows);
            added.push_back((int32_t)now);
        }
        const std::vector<int32_t> all_rows(n_slots, n_rows);
        for (size_t head = 0; head < KV_HEADS; head++) {
            const size_t at = head * (size_t)capacity + (size_t)before;
            memcpy(&mirror.positions[at], added.data(), added.size() * 4);
            positions.write(added.data(), added.size() * 4, engine.stream, at * 4);
        }
        rows.write(all_rows.data(), n_slots * 4, engine.stream);
        t.write(&now, sizeof(now), engine.stream);
        must(cudaGraphLaunch(exec, engine.stream), "replay");
        const std::vector<int32_t> left = rows.read<int32_t>(n_slots, engine.stream);
        compact_mirror(&mirror, engine, now, n_rows);
        n_rows = left[0];
        const std::vector<int32_t> counts = keep_counts.read<int32_t>(n_sets, engine.stream);
        const std::vector<int32_t> kept = keep_rows.read<int32_t>(n_sets * (size_t)capacity, engine.stream);
        const std::vector<int32_t> where =
            positions.read<int32_t>((size_t)KV_HEADS * (size_t)capacity, engine.stream);
        bool same = true;
        for (size_t s = 0; s < n_sets; s++) {
            const size_t bytes = (size_t)mirror.keep_counts[s] * 4;
            const size_t at = s * (size_t)capacity;
            same = same && counts[s] == mirror.keep_counts[s] &&
                   memcmp(&kept[at], &mirror.keep_rows[at], bytes) == 0 &&
                   memcmp(&where[at], &mirror.positions[at], bytes) == 0;
        }
        const int64_t different = engine.differences(left.data());
        printf("replay %d at t = %lld: %d -> %d rows, the CPU keeps %s rows, %lld values differ\n",
               round + 1, (long long)now, capacity, n_rows, same ? "the same" : "OTHER",
               (long long)different);
        failures += !same || different != 0 || n_rows != o.budget;
    }
    must(cudaGraphExecDestroy(exec), "graph");
    must(cudaGraphDestroy(graph), "graph");
    tria_plan_destroy(plan);
    tria_plan_destroy(mirror.plan);
    return failures;
}

int main(int argc, char **argv)
{
    const Options o = parse(argc, argv);
    tria_error error;
    tria_backends *backends;
    tria_device *device;
    tria_device_params device_params = TRIA_DEVICE_PARAMS_INIT;
    tria_cuda_device native = TRIA_CUDA_DEVICE_INIT;
    native.ordinal = o.device;
    device_params.native = &native;
    must(tria_backends_create(NULL, NULL, &backends, &error), "backends", error);
    if (tria_device_open(backends, BACKEND, &device_params, &device, &error) != TRIA_OK) {
        fprintf(stderr, "cuda_host: SKIPPED: %s\n", error.message);
        tria_backends_destroy(backends);
        return 77;
    }
    must(cudaSetDevice(o.device), "the device");
    tria_model *model = make_model(o.layers);
    tria_calibration *calibration = make_calibration(model, o.layers);

    tria_policy_params policy = TRIA_POLICY_PARAMS_INIT;
    policy.calibration = calibration;
    policy.capacity = o.budget + 2 * o.interval;
    policy.budget = o.budget;
    policy.interval = o.interval;
    policy.n_sink = N_SINK;
    policy.n_recent = N_RECENT;
    tria_plan_params plan;
    tria_plan_params_init(&plan);
    plan.model = model;
    plan.calibration = calibration;
    must(tria_policy_to_plan(&policy, &plan, &error), "policy", error);

    const int failures = policy_rounds(o, plan, policy, device) + graph_rounds(o, plan, device);
    printf("%s: %s\n", tria_device_name(device), failures == 0 ? "all as on the CPU" : "NOT as on the CPU");
    tria_calibration_destroy(calibration);
    tria_model_destroy(model);
    tria_device_close(device);
    tria_backends_destroy(backends);
    return failures != 0;
}

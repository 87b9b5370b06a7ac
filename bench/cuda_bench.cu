/*
 * cuda_bench - times of the CUDA backend on this GPU, one line of CSV per measurement.
 *
 *     cuda_bench MODEL DTYPE ROWS [LAYERS]      MODEL: qwen3-8b or llama-3.1-70b
 *
 * Compared in the same run: a device-to-device copy of as many bytes (its bandwidth counts each byte once
 * read and once written), and a plain kernel with one thread per frequency that computes every offset's
 * trigonometry for every key. LAYERS defaults to as many of the model's as fit into 60 % of the memory.
 */
#include "decode.h"
#include "port.h"

#include "tria/cuda.h"
#include "tria/tria.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

static void must(tria_status status, const char *what, const tria_error &error)
{
    if (status != TRIA_OK) {
        fprintf(stderr, "cuda_bench: %s: %s\n", what, error.message);
        exit(1);
    }
}

static void must(cudaError_t result, const char *what)
{
    if (result != cudaSuccess) {
        fprintf(stderr, "cuda_bench: %s: %s\n", what, cudaGetErrorString(result));
        exit(1);
    }
}

struct Model {
    const char *name;
    int layers;
    int q_heads;
    int kv_heads;
    int dim;
    double theta;
};
static const Model models[] = {{"qwen3-8b", 36, 32, 8, 128, 1e6}, {"llama-3.1-70b", 80, 64, 8, 128, 5e5}};
static const int n_offsets = 17;
static const int n_evicted = 128;
static const int repeats = 10;

/* ---- the plain kernel ---- */

struct PlainArgs {
    const unsigned char *keys; /* f16 [kv head][row][dim] of one layer */
    const float *q_real;       /* [q head][dim / 2] */
    const float *q_imag;
    const float *excess;
    const float *inv_freq;
    float *out; /* [q head][row] */
    int64_t head_stride;
    int rows;
    int dim;
    int group;
    float t;
};

/* Blocks: (rows, KV heads); a thread per frequency. */
PORT_KERNEL(64) plain_kernel(PlainArgs a)
{
    sptr<float> sums = port_shared<float>(0);
    const int f = port_thread();
    const int half = a.dim / 2;
    gptr<const unsigned char> row =
        port_global(a.keys) + (port_block_y() * a.head_stride + (int64_t)port_block_x() * a.dim * 2);
    const float re = tria_gpu::Decode16<tria_gpu::ValueF16>::load1(row, f);
    const float im = tria_gpu::Decode16<tria_gpu::ValueF16>::load1(row, half + f);
    const float size = sqrtf(re * re + im * im);
    for (int g = 0; g < a.group; g++) {
        const int q = port_block_y() * a.group + g;
        const float q_re = port_global(a.q_real)[q * half + f];
        const float q_im = port_global(a.q_imag)[q * half + f];
        float sum = 0.0f;
        for (int o = 0; o < n_offsets; o++) {
            const float angle = (a.t + (float)(1 << o)) * port_global(a.inv_freq)[f];
            sum += (q_re * re + q_im * im) * cosf(angle) - (q_im * re - q_re * im) * sinf(angle);
        }
        sums[f] = sum / n_offsets + port_global(a.excess)[q * half + f] * size;
        port_barrier();
        for (int stride = half / 2; stride > 0; stride /= 2) {
            if (f < stride) {
                sums[f] = sums[f] + sums[f + stride];
            }
            port_barrier();
        }
        if (f == 0) {
            port_global(a.out)[(int64_t)q * a.rows + port_block_x()] = sums[0];
        }
        port_barrier();
    }
}

/* ---- set-up ---- */

static uint64_t random_state = 1;

static uint32_t random_bits()
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(random_state >> 32);
}

static float random_float()
{
    return (float)(int32_t)random_bits() / 2147483648.0F;
}

/* Sane values of any type: bytes whose exponents are small. */
static void fill(std::vector<unsigned char> *bytes, int dtype)
{
    for (size_t i = 0; i < bytes->size(); i++) {
        (*bytes)[i] = (unsigned char)random_bits();
    }
    for (size_t i = 0; dtype == TRIA_DTYPE_F16 && i + 1 < bytes->size(); i += 2) {
        (*bytes)[i + 1] = (unsigned char)(((*bytes)[i + 1] & 0x83) | 0x38);
    }
    for (size_t i = 0; dtype == TRIA_DTYPE_BF16 && i + 1 < bytes->size(); i += 2) {
        (*bytes)[i + 1] = (unsigned char)(((*bytes)[i + 1] & 0x80) | 0x3f);
    }
    for (size_t i = 0; dtype == TRIA_DTYPE_FP8_E4M3FN && i < bytes->size(); i++) {
        (*bytes)[i] &= 0xbf;
    }
    for (size_t i = 0; dtype == TRIA_DTYPE_Q8_0 && i + 33 < bytes->size(); i += 34) {
        (*bytes)[i + 1] = 0x20;
    }
}

static tria_calibration *make_calibration(const tria_model *model, int layers, const Model &m)
{
    tria_calibration *calibration;
    tria_error error;
    std::vector<float> values((size_t)m.dim * 3 / 2);
    must(tria_calibration_create(model, NULL, &calibration, &error), "calibration", error);
    for (int i = 0; i < layers * m.q_heads; i++) {
        for (float &value : values) {
            value = random_float() + 1.1F;
        }
        const tria_head_stats stats = {sizeof(stats),          &values[0], &values[(size_t)m.dim / 2],
                                       &values[(size_t)m.dim], NULL,       NULL};
        must(tria_calibration_set_head(calibration, i / m.q_heads, i % m.q_heads, &stats, &error),
             "calibration", error);
    }
    return calibration;
}

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    must(cudaMalloc(&memory, bytes), "device memory");
    return memory;
}

/* Milliseconds of `work` on the stream: the median of several runs after one that is not counted. */
template <class Work> static float time_of(cudaStream_t stream, Work work)
{
    std::vector<float> times;
    cudaEvent_t begin;
    cudaEvent_t end;
    must(cudaEventCreateWithFlags(&begin, 0), "an event");
    must(cudaEventCreateWithFlags(&end, 0), "an event");
    for (int i = 0; i <= repeats; i++) {
        float ms = 0.0F;
        must(cudaEventRecord(begin, stream), "an event");
        work();
        must(cudaEventRecord(end, stream), "an event");
        must(cudaEventSynchronize(end), "the work");
        must(cudaEventElapsedTime(&ms, begin, end), "an event");
        if (i > 0) {
            times.push_back(ms);
        }
    }
    must(cudaEventDestroy(begin), "an event");
    must(cudaEventDestroy(end), "an event");
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* One plan's times. */
struct Times {
    float score;
    float event;
    float compact;
};

struct Setup {
    const Model *model;
    int layers;
    int rows;
    int dtype;
    cudaStream_t stream;
    tria_model *described;
    tria_calibration *calibration;
    tria_device *device;
    std::vector<tria_layer_view> views;
    tria_kv_view view;
};

static Times time_plan(const Setup &s, int order)
{
    tria_plan_params params;
    tria_error error;
    tria_plan *plan;
    tria_plan_params_init(&params);
    params.model = s.described;
    params.calibration = s.calibration;
    params.layout = &s.view;
    params.mode = TRIA_MODE_PER_HEAD;
    params.budget = s.rows - n_evicted;
    params.n_sink = 4;
    params.n_recent = std::min(128, s.rows / 4);
    params.order = order;
    params.max_rows = s.rows;
    params.score_device = params.select_device = params.compact_device = s.device;
    must(tria_plan_create(&params, NULL, &plan, &error), "plan", error);

    const size_t n_sets = (size_t)tria_plan_n_sets(plan);
    tria_device_tables tables;
    memset(&tables, 0, sizeof(tables));
    tables.struct_size = sizeof(tables);
    tables.keep_rows.base = device_memory(n_sets * (size_t)s.rows * 4);
    tables.keep_counts.base = device_memory(n_sets * 4);
    tables.keep_row_stride = s.rows;
    tria_event event;
    tria_event_init(&event);
    event.kv = &s.view;
    event.t = s.rows;
    event.n_rows = s.rows;
    event.device = &tables;
    tria_batch batch;
    tria_batch_init(&batch);
    batch.events = &event;
    batch.n_events = 1;
    batch.stream = s.stream;
    tria_keep keep;
    tria_scores scores;
    tria_keep_init(&keep);
    tria_scores_init(&scores);
    scores.row_stride = s.rows;

    Times times;
    times.score =
        time_of(s.stream, [&] { must(tria_plan_score(plan, &batch, &scores, &error), "score", error); });
    times.event = time_of(s.stream, [&] {
        must(tria_plan_select(plan, &batch, NULL, &keep, &error), "select", error);
        must(tria_plan_compact(plan, &batch, NULL, NULL, &error), "compact", error);
    });
    times.compact = time_of(
        s.stream, [&] { must(tria_plan_compact(plan, &batch, NULL, NULL, &error), "compact", error); });
    must(cudaFree(tables.keep_rows.base), "device memory");
    must(cudaFree(tables.keep_counts.base), "device memory");
    tria_plan_destroy(plan);
    return times;
}

/* The plain kernel over all layers; f16 only. */
static float time_plain(const Setup &s)
{
    const Model &m = *s.model;
    const size_t half = (size_t)m.dim / 2;
    std::vector<float> numbers((size_t)m.q_heads * half, 0.5F);
    const size_t bytes = numbers.size() * sizeof(float);
    float *stats = (float *)device_memory(bytes);
    float *inv_freq = (float *)device_memory(half * sizeof(float));
    float *out = (float *)device_memory((size_t)m.q_heads * (size_t)s.rows * sizeof(float));
    must(cudaMemcpyAsync(stats, numbers.data(), bytes, cudaMemcpyHostToDevice, s.stream), "statistics");
    must(cudaMemcpyAsync(inv_freq, numbers.data(), half * sizeof(float), cudaMemcpyHostToDevice, s.stream),
         "frequencies");
    const float ms = time_of(s.stream, [&] {
        for (const tria_layer_view &layer : s.views) {
            const PlainArgs args = {(const unsigned char *)layer.k.base,
                                    stats,
                                    stats,
                                    stats,
                                    inv_freq,
                                    out,
                                    layer.k.head_stride,
                                    s.rows,
                                    m.dim,
                                    m.q_heads / m.kv_heads,
                                    (float)s.rows};
            must(PORT_LAUNCH(plain_kernel, dim3((unsigned)s.rows, (unsigned)m.kv_heads), m.dim / 2,
                             half * sizeof(float), s.stream, args),
                 "the plain kernel");
        }
    });
    must(cudaFree(stats), "device memory");
    must(cudaFree(inv_freq), "device memory");
    must(cudaFree(out), "device memory");
    return ms;
}

int main(int argc, char **argv)
{
    tria_error error;
    tria_backends *backends;
    Setup s = {};
    cudaDeviceProp properties;
    for (const Model &model : models) {
        s.model = argc >= 4 && strcmp(argv[1], model.name) == 0 ? &model : s.model;
    }
    s.dtype = argc >= 4 ? tria_dtype_from_name(argv[2]) : -1;
    s.rows = argc >= 4 ? atoi(argv[3]) : 0;
    if (s.model == NULL || s.dtype < 0 || s.rows < 2 * n_evicted) {
        fprintf(stderr, "usage: cuda_bench qwen3-8b|llama-3.1-70b DTYPE ROWS [LAYERS]\n");
        return 2;
    }
    must(tria_backends_create(NULL, NULL, &backends, &error), "backends", error);
    if (tria_device_open(backends, PORT_NAME, NULL, &s.device, &error) != TRIA_OK) {
        fprintf(stderr, "cuda_bench: SKIPPED: %s\n", error.message);
        tria_backends_destroy(backends);
        return 77;
    }
    must(cudaGetDeviceProperties(&properties, 0), "the device");
    const Model &m = *s.model;
    const size_t row = (size_t)tria_dtype_row_bytes(s.dtype, m.dim);
    const size_t tensor = (size_t)m.kv_heads * (size_t)s.rows * row;
    const size_t workspace = (size_t)(m.q_heads + 2 * m.kv_heads) * (size_t)s.rows * 4;
    s.layers =
        argc >= 5 ? atoi(argv[4]) : (int)(properties.totalGlobalMem * 6 / 10 / (2 * tensor + workspace));
    s.layers = std::max(1, std::min(s.layers, m.layers));
    must(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "a stream");

    std::vector<tria_layer_params> layers((size_t)s.layers);
    tria_model_params model_params = TRIA_MODEL_PARAMS_INIT;
    for (tria_layer_params &layer : layers) {
        tria_layer_params_init(&layer);
        layer.n_q_heads = m.q_heads;
        layer.n_kv_heads = m.kv_heads;
        layer.head_dim = m.dim;
        layer.rope_theta = m.theta;
    }
    model_params.layers = layers.data();
    model_params.n_layers = s.layers;
    must(tria_model_create(&model_params, NULL, &s.described, &error), "model", error);
    s.calibration = make_calibration(s.described, s.layers, m);
    /* the same random block over and over */
    std::vector<unsigned char> block((size_t)m.kv_heads * 1024 * row);
    fill(&block, s.dtype);
    s.views.resize((size_t)s.layers);
    for (tria_layer_view &view : s.views) {
        memset(&view, 0, sizeof(view));
        for (tria_tensor *t : {&view.k, &view.v}) {
            t->base = device_memory(tensor);
            t->dtype = s.dtype;
            t->dim = m.dim;
            t->token_stride = (int64_t)row;
            t->head_stride = (int64_t)((size_t)s.rows * row);
            for (size_t at = 0; at < tensor; at += block.size()) {
                must(cudaMemcpyAsync((char *)t->base + at, block.data(),
                                     std::min(block.size(), tensor - at), cudaMemcpyHostToDevice, s.stream),
                     "keys");
            }
        }
    }
    tria_kv_view_init(&s.view);
    s.view.layers = s.views.data();
    s.view.n_layers = s.layers;
    must(cudaStreamSynchronize(s.stream), "keys");

    /* K to V of every layer: as many bytes as K has, each read and written once */
    const float copy = time_of(s.stream, [&] {
        for (const tria_layer_view &view : s.views) {
            must(cudaMemcpyAsync(view.v.base, view.k.base, tensor, cudaMemcpyDeviceToDevice, s.stream),
                 "copy");
        }
    });
    const double k_bytes = (double)tensor * s.layers;
    const double copy_bandwidth = 2.0 * k_bytes / copy / 1e6;
    const Times stable = time_plan(s, TRIA_ORDER_STABLE);
    const Times holes = time_plan(s, TRIA_ORDER_FILL_HOLES);
    const float plain = s.dtype == TRIA_DTYPE_F16 ? time_plain(s) : 0.0F;
    const double read_once = k_bytes / copy_bandwidth / 1e6; /* ms */
    printf("%s,%s,%d,%s,%d,%.0f,%.1f,%.4f,%.1f,%.1f,%.4f,%.2f,%.4f,%.4f,%.1f,%.4f\n", properties.name,
           m.name, s.layers, argv[2], s.rows, k_bytes / 1e6, copy_bandwidth, (double)stable.score,
           k_bytes / stable.score / 1e6, 100.0 * k_bytes / stable.score / 1e6 / copy_bandwidth,
           (double)holes.event, holes.event / read_once, (double)stable.compact, (double)holes.compact,
           100.0 * holes.compact / holes.event, (double)plain);

    for (tria_layer_view &view : s.views) {
        must(cudaFree(view.k.base), "device memory");
        must(cudaFree(view.v.base), "device memory");
    }
    must(cudaStreamDestroy(s.stream), "the stream");
    tria_calibration_destroy(s.calibration);
    tria_model_destroy(s.described);
    tria_device_close(s.device);
    tria_backends_destroy(backends);
    return 0;
}

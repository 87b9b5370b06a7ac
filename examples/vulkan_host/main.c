/*
 * vulkan_host - how an engine with a VkDevice of its own uses libtria.
 *
 * The host owns the device and keeps K and V in device-local buffers, [token][head][dim] per layer. It
 * "decodes" the tokens of an .npy file: a prompt first, then one token after another; the policy says
 * when to compact, and libtria scores, selects and repacks on the host's own buffers. The same is done on
 * the CPU with a second cache in host memory, and both are compared after every compaction.
 *
 *     tria-vulkan-host --calibration C.tria --keys K.npy [--values V.npy] [--budget 96] [--interval 32]
 *                      [--prompt 48] [--device NAME]
 *
 * K and V: f2 or f4 [layers, KV heads, tokens, dim], keys rotated at positions 0, 1, ... Without --values
 * the keys serve as values too. --device picks a device by name, a CPU implementation only that way.
 */
#include "device.h"

#include "cli/npy.h"
#include "tria/tria.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *what, const tria_error *error)
{
    fprintf(stderr, "vulkan_host: %s: %s\n", what, error->message);
    exit(1);
}

static void must(tria_status status, const char *what, const tria_error *error)
{
    if (status != TRIA_OK) {
        stop(what, error);
    }
}

static void *get(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        fprintf(stderr, "vulkan_host: out of memory\n");
        exit(1);
    }
    return memory;
}

/* One cache: rows of all heads of a token lie together. */
typedef struct geometry {
    int32_t n_layers;
    int32_t n_heads;
    int32_t dtype;
    int32_t k_dim;
    int32_t v_dim;
    int32_t capacity;
} geometry;

static size_t token_bytes(const geometry *g, bool values)
{
    return (size_t)g->n_heads * (size_t)tria_dtype_row_bytes(g->dtype, values ? g->v_dim : g->k_dim);
}

static void describe_tensor(const geometry *g, bool values, void *base, tria_tensor *t)
{
    t->dtype = g->dtype;
    t->dim = values ? g->v_dim : g->k_dim;
    t->head_stride = tria_dtype_row_bytes(t->dtype, t->dim);
    t->token_stride = (int64_t)token_bytes(g, values);
    t->base = base;
    t->size = (token_bytes(g, values) * (size_t)g->capacity + 3) / 4 * 4;
}

/* The device's cache, the host's copy that the CPU works on, and what the engine writes from. */
typedef struct host {
    geometry geometry;
    device device;
    buffer *buffers;            /* [n_layers][2]: K, V */
    unsigned char **mirror;     /* [n_layers][2] */
    npy_array source[2];        /* K, V */
    tria_layer_view *on_device; /* [n_layers] */
    tria_layer_view *on_host;
    tria_kv_view device_view;
    tria_kv_view host_view;
    unsigned char *token; /* one token of one layer */
} host;

static void host_create(host *h, const char *device_name)
{
    const geometry *g = &h->geometry;
    const size_t n = (size_t)g->n_layers;
    device_open(&h->device, device_name, 1 << 20);
    h->buffers = get(2 * n, sizeof(*h->buffers));
    h->mirror = get(2 * n, sizeof(*h->mirror));
    h->on_device = get(n, sizeof(*h->on_device));
    h->on_host = get(n, sizeof(*h->on_host));
    h->token = get(1, token_bytes(g, false) + token_bytes(g, true));
    tria_kv_view_init(&h->device_view);
    h->device_view.n_layers = g->n_layers;
    h->host_view = h->device_view;
    h->device_view.layers = h->on_device;
    h->host_view.layers = h->on_host;
    for (size_t l = 0; l < n; l++) {
        for (size_t values = 0; values < 2; values++) {
            buffer *b = &h->buffers[2 * l + values];
            tria_tensor *d = values ? &h->on_device[l].v : &h->on_device[l].k;
            tria_tensor *m = values ? &h->on_host[l].v : &h->on_host[l].k;
            buffer_create(&h->device, token_bytes(g, values) * (size_t)g->capacity, b);
            h->mirror[2 * l + values] = get(1, b->size);
            describe_tensor(g, values, (void *)(uintptr_t)b->handle, d);
            describe_tensor(g, values, h->mirror[2 * l + values], m);
        }
    }
}

static void host_destroy(host *h)
{
    for (int32_t i = 0; i < 2 * h->geometry.n_layers; i++) {
        buffer_destroy(&h->device, &h->buffers[i]);
        free(h->mirror[i]);
    }
    free(h->buffers);
    free(h->mirror);
    free(h->on_device);
    free(h->on_host);
    free(h->token);
    device_close(&h->device);
}

/* What a forward pass would do: token `position` becomes row `row` of every layer, in both caches. */
static void write_token(host *h, int64_t position, int32_t row)
{
    const geometry *g = &h->geometry;
    for (int32_t l = 0; l < g->n_layers; l++) {
        for (int values = 0; values < 2; values++) {
            const npy_array *source = &h->source[values];
            const size_t bytes = token_bytes(g, values) / (size_t)g->n_heads;
            for (int32_t head = 0; head < g->n_heads; head++) {
                const int64_t at = ((int64_t)l * g->n_heads + head) * source->dims[2] + position;
                memcpy(h->token + (size_t)head * bytes, (const char *)source->data + (size_t)at * bytes,
                       bytes);
            }
            const size_t offset = (size_t)row * token_bytes(g, values);
            memcpy(h->mirror[2 * l + values] + offset, h->token, token_bytes(g, values));
            buffer_write(&h->device, &h->buffers[2 * l + values], offset, h->token, token_bytes(g, values));
        }
    }
}

static int64_t count_differences(host *h)
{
    int64_t different = 0;
    for (int32_t i = 0; i < 2 * h->geometry.n_layers; i++) {
        const size_t size = h->buffers[i].size;
        unsigned char *back = get(1, size);
        buffer_read(&h->device, &h->buffers[i], 0, back, size);
        for (size_t b = 0; b < size; b++) {
            different += back[b] != h->mirror[i][b];
        }
        free(back);
    }
    return different;
}

/* A policy's sequence and the plan it compacts with. */
typedef struct side {
    tria_sequence *sequence;
    tria_plan *plan;
} side;

static void side_create(side *s, const tria_policy_params *policy, const tria_plan_params *params,
                        tria_device *where)
{
    tria_plan_params p = *params;
    tria_policy_params with_plan = *policy;
    tria_error error;
    p.score_device = p.select_device = p.compact_device = where;
    must(tria_plan_create(&p, NULL, &s->plan, &error), "plan", &error);
    with_plan.plan = s->plan;
    must(tria_sequence_create(&with_plan, NULL, &s->sequence, &error), "policy", &error);
}

static void side_destroy(side *s)
{
    tria_sequence_destroy(s->sequence);
    tria_plan_destroy(s->plan);
}

static tria_sequence_info info_of(const side *s)
{
    tria_sequence_info info;
    tria_error error;
    tria_sequence_info_init(&info);
    must(tria_sequence_get_info(s->sequence, &info, &error), "info", &error);
    return info;
}

static void compact(side *s, const tria_kv_view *view)
{
    tria_compact_params params = TRIA_COMPACT_PARAMS_INIT;
    tria_error error;
    params.kv = view;
    must(tria_sequence_compact(s->sequence, s->plan, &params, &error), "compaction", &error);
}

/* Whether both sides kept the same tokens. */
static bool same_positions(const host *h, side *a, side *b)
{
    for (int32_t l = 0; l < h->geometry.n_layers; l++) {
        for (int32_t head = 0; head < h->geometry.n_heads; head++) {
            int32_t n_a = 0;
            int32_t n_b = 0;
            const int32_t *p = tria_sequence_positions(a->sequence, l, head, &n_a);
            const int32_t *q = tria_sequence_positions(b->sequence, l, head, &n_b);
            if (n_a != n_b || memcmp(p, q, sizeof(*p) * (size_t)n_a) != 0) {
                return false;
            }
        }
    }
    return true;
}

typedef struct options {
    const char *calibration;
    const char *keys;
    const char *values;
    const char *device;
    int32_t budget;
    int32_t interval;
    int32_t prompt;
} options;

static int32_t number(const char *text)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 1 || value > 1 << 20) {
        fprintf(stderr, "vulkan_host: '%s' is no number from 1 to 2^20\n", text);
        exit(2);
    }
    return (int32_t)value;
}

static options parse(int argc, char **argv)
{
    options o = {NULL, NULL, NULL, NULL, 96, 32, 48};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        const char **texts[] = {&o.calibration, &o.keys, &o.values, &o.device};
        static const char *const names[] = {"--calibration", "--keys", "--values", "--device"};
        int32_t *numbers[] = {&o.budget, &o.interval, &o.prompt};
        static const char *const number_names[] = {"--budget", "--interval", "--prompt"};
        bool known = false;
        for (int k = 0; k < 4 && value != NULL; k++) {
            if (strcmp(argv[i], names[k]) == 0) {
                *texts[k] = value;
                known = true;
            }
        }
        for (int k = 0; k < 3 && value != NULL; k++) {
            if (strcmp(argv[i], number_names[k]) == 0) {
                *numbers[k] = number(value);
                known = true;
            }
        }
        if (!known) {
            fprintf(stderr, "vulkan_host: unknown or incomplete option %s\n", argv[i]);
            exit(2);
        }
    }
    if (o.calibration == NULL || o.keys == NULL) {
        fprintf(stderr, "usage: tria-vulkan-host --calibration C.tria --keys K.npy [--values V.npy] "
                        "[--budget N] [--interval N] [--prompt N] [--device NAME]\n");
        exit(2);
    }
    return o;
}

static void read_array(const char *path, npy_array *array)
{
    tria_error error;
    must(npy_read(path, array, &error), "input", &error);
    if (array->n_dims != 4 || !(npy_is(array, 'f', 2) || npy_is(array, 'f', 4))) {
        fprintf(stderr, "vulkan_host: %s: expected f2 or f4 [layers, KV heads, tokens, dim]\n", path);
        exit(1);
    }
}

static void read_inputs(host *h, const options *o, int32_t capacity)
{
    npy_array *k = &h->source[0];
    npy_array *v = &h->source[1];
    read_array(o->keys, k);
    read_array(o->values != NULL ? o->values : o->keys, v);
    if (v->size != k->size || memcmp(v->dims, k->dims, 3 * sizeof(k->dims[0])) != 0) {
        fprintf(stderr, "vulkan_host: keys and values differ in type, layers, heads or tokens\n");
        exit(1);
    }
    h->geometry =
        (geometry){(int32_t)k->dims[0], (int32_t)k->dims[1], k->size == 2 ? TRIA_DTYPE_F16 : TRIA_DTYPE_F32,
                   (int32_t)k->dims[3], (int32_t)v->dims[3], capacity};
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    host h;
    side gpu;
    side cpu;
    tria_error error;
    tria_calibration *calibration;
    tria_model *model;
    tria_backends *backends;
    tria_device *vulkan;
    tria_device_params device_params = TRIA_DEVICE_PARAMS_INIT;
    tria_policy_params policy = TRIA_POLICY_PARAMS_INIT;
    tria_plan_params plan;
    int64_t failures = 0;

    memset(&h, 0, sizeof(h));
    read_inputs(&h, &o, (o.prompt > o.budget ? o.prompt : o.budget) + 2 * o.interval);
    host_create(&h, o.device);
    must(tria_calibration_load(o.calibration, NULL, &calibration, &error), "calibration", &error);
    must(tria_model_from_calibration(calibration, NULL, &model, &error), "model", &error);

    must(tria_backends_create(NULL, NULL, &backends, &error), "backends", &error);
    device_params.native = &h.device.native;
    must(tria_device_open(backends, "vulkan", &device_params, &vulkan, &error), "device", &error);

    policy.calibration = calibration;
    policy.capacity = h.geometry.capacity;
    policy.budget = o.budget;
    policy.interval = o.interval;
    policy.n_recent = o.budget / 4;
    policy.protect_prefill = 0;
    tria_plan_params_init(&plan);
    plan.model = model;
    plan.calibration = calibration;
    plan.layout = &h.device_view;
    must(tria_policy_to_plan(&policy, &plan, &error), "policy", &error);
    side_create(&gpu, &policy, &plan, vulkan);
    plan.layout = &h.host_view;
    side_create(&cpu, &policy, &plan, NULL);

    const int32_t n_tokens = (int32_t)h.source[0].dims[2];
    const int32_t prompt = o.prompt < n_tokens ? o.prompt : n_tokens;
    side *const sides[] = {&gpu, &cpu};
    for (int s = 0; s < 2; s++) {
        must(tria_sequence_begin_prefill(sides[s]->sequence, prompt, &error), "prompt", &error);
    }
    for (int32_t token = 0; token < n_tokens; token++) {
        write_token(&h, token, info_of(&gpu).rows);
        for (int s = 0; s < 2; s++) {
            must(tria_sequence_append(sides[s]->sequence, 1, &error), "append", &error);
            if (token == prompt - 1) {
                must(tria_sequence_end_prefill(sides[s]->sequence, &error), "prompt", &error);
            }
        }
        if (!tria_sequence_should_compact(gpu.sequence)) {
            continue;
        }
        const int32_t before = info_of(&gpu).rows;
        compact(&gpu, &h.device_view);
        compact(&cpu, &h.host_view);
        const tria_sequence_info info = info_of(&gpu);
        const bool same_rows = same_positions(&h, &gpu, &cpu);
        const int64_t different = count_differences(&h);
        printf("compaction %d at t = %lld: %d -> %d rows, %lld bytes moved so far, the CPU keeps %s rows, "
               "%lld "
               "bytes differ\n",
               info.n_compactions, (long long)info.t, before, info.rows, (long long)info.bytes_moved,
               same_rows ? "the same" : "OTHER", (long long)different);
        failures += !same_rows || different != 0;
    }
    const int32_t n_compactions = info_of(&gpu).n_compactions;
    printf("%d tokens, %d compactions on %s, %s\n", n_tokens, n_compactions, tria_device_name(vulkan),
           failures == 0 ? "all as on the CPU" : "NOT as on the CPU");
    failures += n_compactions == 0;

    side_destroy(&gpu);
    side_destroy(&cpu);
    tria_device_close(vulkan);
    tria_backends_destroy(backends);
    tria_model_destroy(model);
    tria_calibration_destroy(calibration);
    host_destroy(&h);
    npy_free(&h.source[0]);
    npy_free(&h.source[1]);
    return failures != 0;
}

/* describe.cpp - the plan as the kernels see it. */
#include "context.h"

#include <string.h>

#include <algorithm>

namespace tria_gpu
{
static int element_bytes(int dtype)
{
    switch (dtype) {
    case TRIA_DTYPE_F32:
        return 4;
    case TRIA_DTYPE_F16:
    case TRIA_DTYPE_BF16:
        return 2;
    case TRIA_DTYPE_FP8_E4M3FN:
    case TRIA_DTYPE_FP8_E4M3FNUZ:
    case TRIA_DTYPE_FP8_E5M2:
    case TRIA_DTYPE_INT8:
        return 1;
    default:
        return 0;
    }
}

static int block_bytes(int dtype)
{
    switch (dtype) {
    case TRIA_DTYPE_Q8_0:
        return 34;
    case TRIA_DTYPE_Q4_0:
    case TRIA_DTYPE_IQ4_NL:
        return 18;
    case TRIA_DTYPE_Q4_1:
        return 20;
    case TRIA_DTYPE_Q5_0:
        return 22;
    case TRIA_DTYPE_Q5_1:
        return 24;
    default:
        return 0;
    }
}

void describe_tensor(const tria_tensor *tensor, int32_t dim, Tensor *out)
{
    const int element = element_bytes(tensor->dtype);
    const int pack = tensor->pack > 1 ? tensor->pack : 1;
    const int64_t piece = (int64_t)element * pack;
    memset(out, 0, sizeof(*out));
    out->page_stride = tensor->page_stride;
    out->token_stride = tensor->token_stride;
    out->head_stride = tensor->head_stride;
    out->scale_page_stride = tensor->scale_page_stride;
    out->scale_token_stride = tensor->scale_token_stride;
    out->scale_head_stride = tensor->scale_head_stride;
    out->dtype = tensor->dtype;
    out->scale_kind = tensor->scale_kind;
    out->scale = tensor->scale;
    out->n_runs = 1;
    if (element == 0) {
        out->run_bytes = (dim + 31) / 32 * block_bytes(tensor->dtype);
    } else if (tensor->dim_stride == 0 || tensor->dim_stride == piece) {
        out->run_bytes = dim * element;
    } else {
        out->n_runs = (dim + pack - 1) / pack;
        out->run_bytes = (int32_t)piece;
        out->run_stride = tensor->dim_stride;
    }
    const int64_t token = tensor->token_stride < 0 ? -tensor->token_stride : tensor->token_stride;
    const int64_t run = out->run_stride < 0 ? -out->run_stride : out->run_stride;
    out->tokens_side_by_side = out->n_runs > 1 && token < run;
}

int alignment_of(int32_t dtype)
{
    return element_bytes(dtype) != 0 ? element_bytes(dtype) : 2;
}

int width_of(const Tensor &tensor)
{
    const uint64_t all = (uint64_t)tensor.page_stride | (uint64_t)tensor.token_stride |
                         (uint64_t)tensor.head_stride | (uint64_t)tensor.run_stride |
                         (uint64_t)tensor.run_bytes;
    int width = 16;
    while (all % (uint64_t)width != 0) {
        width /= 2;
    }
    return width;
}

static bool is_prepared(const tria_v1_plan *plan)
{
    return plan->k_state != TRIA_K_ROTATED;
}

/* Bytes of a key in shared memory, and of the accesses to it. */
static uint32_t staged_bytes(const tria_v1_plan *plan, const tria_v1_layer *layer, uint32_t *unit)
{
    Tensor tensor;
    *unit = 16;
    if (is_prepared(plan)) {
        return (uint32_t)layer->k.dim * 4;
    }
    describe_tensor(&layer->k, layer->head_dim, &tensor);
    if (element_bytes(layer->k.dtype) == 0) {
        *unit = (uint32_t)width_of(tensor);
    }
    return (uint32_t)(tensor.n_runs * tensor.run_bytes);
}

/* Bytes between rows in shared memory: an odd multiple of the widest access, so that threads that read
 * different rows meet different banks. */
static uint32_t pitch_for(uint32_t bytes, uint32_t unit)
{
    const uint32_t units = (bytes + unit - 1) / unit;
    return (units % 2 == 0 ? units + 1 : units) * unit;
}

/* At least the pitch of any launch that the layer is part of. */
static uint32_t largest_pitch(const tria_v1_plan *plan, const tria_v1_layer *layer)
{
    uint32_t unit;
    return pitch_for(staged_bytes(plan, layer, &unit), 16);
}

static int n_offsets(const tria_v1_plan *plan)
{
    int n = 0;
    for (int64_t offset = 1; offset <= plan->params->offset_max; offset *= 2) {
        n++;
    }
    return n;
}

static bool offsets_max(const tria_v1_plan *plan)
{
    return plan->params->offsets == TRIA_AGGREGATE_MAX;
}

static int chunks_of(const tria_v1_plan *plan, const tria_v1_kv *kv)
{
    return offsets_max(plan) ? kv->n_calibrated : (kv->n_calibrated + columns - 1) / columns;
}

static int passes_of(const tria_v1_plan *plan)
{
    return offsets_max(plan) ? (n_offsets(plan) + columns - 1) / columns : 1;
}

static bool has_sets(const tria_v1_layer *layer)
{
    return layer->n_kv_heads > 0;
}

tria_status check_supported(const tria_v1_plan *plan, tria_error *error)
{
    const int limit = 65535; /* blocks along y and z */
    if (plan->n_kv > limit / LANE_KINDS || plan->n_sets > limit || plan->params->max_sequences > limit ||
        plan->n_queries > limit * 2) {
        return fail(error, TRIA_E_UNSUPPORTED,
                    "%d KV heads, %d keep sets, %d sequences: too many for one launch", plan->n_kv,
                    plan->n_sets, plan->params->max_sequences);
    }
    for (int s = 0; s < plan->n_kv; s++) {
        if (plan->kv[s].borrows && plan->params->all_reduce != NULL && plan->partial_layers &&
            plan->params->mode == TRIA_MODE_PER_HEAD) {
            return fail(error, TRIA_E_UNSUPPORTED,
                        "KV head %d is calibrated in no layer and would need the scores of other ranks",
                        plan->kv[s].head);
        }
    }
    for (int l = 0; l < plan->n_layers; l++) {
        const tria_v1_layer *layer = &plan->layers[l];
        if (has_sets(layer)) {
            Tensor k;
            describe_tensor(&layer->k, layer->k.dim, &k);
            if (width_of(k) < alignment_of(layer->k.dtype)) {
                return fail(error, TRIA_E_UNSUPPORTED, "layer %d K: strides are no multiples of %d bytes",
                            layer->model_layer, alignment_of(layer->k.dtype));
            }
            const uint32_t bytes = score_shared_bytes(1, 64, largest_pitch(plan, layer));
            if (bytes > shared_limit) {
                return fail(error, TRIA_E_UNSUPPORTED,
                            "layer %d: a key of head_dim %d does not fit into shared memory",
                            layer->model_layer, layer->head_dim);
            }
        }
    }
    return TRIA_OK;
}

static int largest_chunk_count(const tria_v1_plan *plan)
{
    int most = 1;
    for (int s = 0; s < plan->n_kv; s++) {
        most = std::max(most, chunks_of(plan, &plan->kv[s]));
    }
    return most;
}

void shape_context(Context *context, const tria_v1_plan *v1)
{
    Plan *plan = &context->plan;
    uint32_t pitch = 16;
    context->v1 = v1;
    for (int l = 0; l < v1->n_layers; l++) {
        if (has_sets(&v1->layers[l])) {
            pitch = std::max(pitch, largest_pitch(v1, &v1->layers[l]));
        }
    }
    /* Tiles of 24 KiB let several blocks share a multiprocessor; rows that are longer get what they need.
     */
    plan->tile_rows = 64;
    int lanes = std::min(largest_chunk_count(v1), score_threads / plan->tile_rows);
    while (plan->tile_rows > 1 && score_shared_bytes(plan->tile_rows, lanes, pitch) >
                                      (plan->tile_rows > 32 ? shared_limit / 2 : shared_limit)) {
        plan->tile_rows /= 2;
        lanes = std::min(largest_chunk_count(v1), std::min(score_threads / plan->tile_rows, 64));
    }
    const int threads = std::max(64, (lanes * plan->tile_rows + 63) / 64 * 64);
    plan->n_layers = v1->n_layers;
    plan->n_kv = v1->n_kv;
    plan->n_sets = v1->n_sets;
    plan->n_queries = v1->n_queries;
    plan->n_offsets = n_offsets(v1);
    plan->n_passes = passes_of(v1);
    plan->offsets_max = offsets_max(v1);
    plan->disable_trig = v1->params->disable_trig;
    plan->k_state = v1->k_state;
    plan->hadamard_size = v1->hadamard_size;
    plan->tokens_per_page = v1->tokens_per_page;
    plan->normalize_over = v1->params->normalize_over;
    plan->group_mean = v1->params->group == TRIA_AGGREGATE_MEAN;
    plan->mode = v1->params->mode;
    plan->layers_mean = v1->params->layers_agg == TRIA_AGGREGATE_MEAN;
    plan->pool_radius = v1->params->pool_radius;
    plan->n_sink = v1->params->n_sink;
    plan->n_recent = v1->params->n_recent;
    plan->protect_prefill = v1->params->protect_prefill;
    plan->count_prompt = v1->params->count_prompt;
    plan->fill_holes = v1->params->order == TRIA_ORDER_FILL_HOLES;
    plan->max_rows = v1->max_rows;
    plan->row_words = (v1->max_rows + 31) / 32;
    plan->n_tiles = (v1->max_rows + std::min(plan->tile_rows, block_threads) - 1) /
                    std::min(plan->tile_rows, block_threads);
    plan->n_chunks = 0;
    for (int s = 0; s < v1->n_kv; s++) {
        plan->n_chunks += chunks_of(v1, &v1->kv[s]);
    }
    switch (v1->params->all_reduce != NULL ? plan->mode : -1) {
    case TRIA_MODE_UNION:
    case TRIA_MODE_GLOBAL:
        plan->reduces = 1;
        break;
    case TRIA_MODE_PER_LAYER:
        plan->reduces = v1->partial_heads;
        break;
    case TRIA_MODE_PER_HEAD:
        plan->reduces = v1->partial_layers;
        break;
    default:
        plan->reduces = 0;
        break;
    }

    context->phase_count = 0;
    context->lin_count = 0;
    context->extent.max_freq = 1;
    context->extent.max_weights = 1;
    for (int l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        context->extent.max_freq = std::max(context->extent.max_freq, layer->n_freq);
        context->extent.max_weights =
            std::max(context->extent.max_weights, layer->n_freq * columns * plan->n_passes);
        context->phase_count +=
            (size_t)layer->n_freq * 2 * (plan->offsets_max ? (size_t)plan->n_offsets : 1);
    }
    for (int s = 0; s < v1->n_kv; s++) {
        context->lin_count += (size_t)chunks_of(v1, &v1->kv[s]) *
                              (size_t)v1->layers[v1->kv[s].layer].n_freq * 2 * columns *
                              (size_t)plan->n_passes;
    }
    context->partial_count = times((size_t)std::max(v1->n_queries, v1->n_kv), (size_t)plan->n_tiles);
    context->counter_count = (size_t)v1->n_kv * 4 + (size_t)v1->n_layers + 1 + (size_t)plan->row_words +
                             sizeof(Report) / sizeof(int32_t);
    context->result_count = sizeof(Report) / sizeof(int32_t) + (size_t)v1->n_sets;
    context->max_page_entries =
        v1->tokens_per_page > 0 ? (v1->max_rows + v1->tokens_per_page - 1) / v1->tokens_per_page : 0;
    context->n_page_tables = v1->tokens_per_page > 0 ? v1->n_layers + 1 : 0;
    context->positions_compared = plan->mode != TRIA_MODE_PER_LAYER_PER_HEAD;
    /* K, V and the scales of each, of every layer and sequence */
    context->max_staged =
        v1->params->stage_device_memory ? v1->n_layers * 4 * v1->params->max_sequences : 0;
    context->n_launches = 0;
    ScoreLaunch launch = {};
    launch.lanes = lanes;
    launch.threads = threads;
    launch.prepared = is_prepared(v1);
    for (int i = 0; i < max_score_launches; i++) {
        context->launches[i] = launch;
    }
}

static int first_slot(const tria_v1_plan *plan, int set)
{
    int slot = 0;
    while (plan->kv[slot].set != set) {
        slot++;
    }
    return slot;
}

static void describe_layers(Context *context, Layer *layers, double *inv_freq, double *freq_scale_sq,
                            float *rotations)
{
    const tria_v1_plan *v1 = context->v1;
    int64_t phases = 0;
    int64_t frequencies = 0;
    int64_t rotation = 0;
    for (int l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *from = &v1->layers[l];
        Layer *to = &layers[l];
        memset(to, 0, sizeof(*to));
        describe_tensor(&from->k, from->k.dim, &to->k);
        describe_tensor(&from->v, from->v.dim, &to->v);
        describe_tensor(&from->k, from->head_dim, &to->scored);
        to->shape.head_dim = from->head_dim;
        to->shape.rotary_offset = from->rotary_offset;
        to->shape.n_freq = from->n_freq;
        to->shape.half = from->rope_style == TRIA_ROPE_HALF;
        to->shape.whole_steps = from->rotary_offset % step == 0 && from->n_freq % step == 0;
        to->dim = from->k.dim;
        to->element_bytes = element_bytes(from->k.dtype);
        to->pack = from->k.pack > 1 ? from->k.pack : 1;
        to->dim_stride =
            from->k.dim_stride != 0 ? from->k.dim_stride : (int64_t)to->element_bytes * to->pack;
        to->first_kv = from->first_kv_slot;
        to->n_kv = from->n_kv_heads;
        to->window = from->window;
        to->by_position = from->by_position;
        to->phase_layer = from->phase_layer;
        to->weight = from->weight;
        to->frequencies = frequencies;
        if (from->n_freq > 0 && from->inv_freq != NULL) {
            memcpy(inv_freq + frequencies, from->inv_freq, sizeof(double) * (size_t)from->n_freq);
            memcpy(freq_scale_sq + frequencies, from->freq_scale_sq, sizeof(double) * (size_t)from->n_freq);
        }
        frequencies += from->n_freq;
        if (from->phase_layer == l || from->phase_layer < 0) {
            to->phase_layer = l;
            to->phases = phases;
            to->rotations = rotation;
            phases += 2 * (int64_t)from->n_freq * (context->plan.offsets_max ? context->plan.n_offsets : 1);
            if (rotations != NULL && from->n_freq > 0) {
                context->host->rotation_tables(v1, l, rotations + rotation);
                rotation += (int64_t)3 * TRIA_ROTATION_DIGITS * from->n_freq * 2;
            }
        } else {
            to->phases = layers[from->phase_layer].phases;
            to->rotations = layers[from->phase_layer].rotations;
        }
    }
}

/* Weights that do not depend on t: norm coefficients and content. */
static void fill_chunk(const tria_v1_plan *v1, const Layer *layers, Chunk *chunk, float *mag,
                       float *content)
{
    const Shape &shape = layers[chunk->layer].shape;
    const int n_content = shape.head_dim - 2 * shape.n_freq;
    for (int c = 0; c < columns; c++) {
        if (chunk->query[c] < 0) {
            continue;
        }
        const tria_v1_query *query = &v1->queries[chunk->query[c]];
        for (int f = 0; f < shape.n_freq; f++) {
            mag[(int64_t)f * columns + c] = v1->mag[query->mag_offset + f];
        }
        for (int d = 0; content != NULL && query->content_mean != NULL && d < n_content; d++) {
            content[(int64_t)d * columns + c] =
                (float)((double)v1->params->content_weight * (double)query->content_mean[d]);
        }
    }
}

void describe(Context *context, Blob *blob)
{
    const tria_v1_plan *v1 = context->v1;
    Plan *plan = &context->plan;
    const bool fill = blob->here != NULL;
    size_t n_frequencies = 0;
    size_t n_rotations = 0;
    size_t n_stats = 0;
    size_t n_mag = 0;
    size_t n_content = 0;
    int n_calibrated = 0;
    for (int l = 0; l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        n_frequencies += (size_t)layer->n_freq;
        if (v1->k_state == TRIA_K_RAW && layer->phase_layer == l) {
            n_rotations += (size_t)3 * TRIA_ROTATION_DIGITS * (size_t)layer->n_freq * 2;
        }
    }
    for (int q = 0; q < v1->n_queries; q++) {
        n_stats += v1->queries[q].calibrated ? (size_t)v1->layers[v1->queries[q].layer].n_freq : 0;
        n_calibrated += v1->queries[q].calibrated != 0;
    }
    for (int s = 0; s < v1->n_kv; s++) {
        const tria_v1_layer *layer = &v1->layers[v1->kv[s].layer];
        n_mag += (size_t)chunks_of(v1, &v1->kv[s]) * (size_t)layer->n_freq * columns;
        n_content +=
            (size_t)chunks_of(v1, &v1->kv[s]) * (size_t)(layer->head_dim - layer->rotary_dim) * columns;
    }

    Layer *layers = blob->take<Layer>((size_t)v1->n_layers, &plan->layers);
    Kv *kvs = blob->take<Kv>((size_t)v1->n_kv, &plan->kvs);
    Set *sets = blob->take<Set>((size_t)v1->n_sets, &plan->sets);
    Chunk *chunks = blob->take<Chunk>((size_t)plan->n_chunks, &plan->chunks);
    Query *queries = blob->take<Query>((size_t)v1->n_queries, &plan->queries);
    int32_t *set_slots = blob->take<int32_t>((size_t)v1->n_kv, &plan->set_slots);
    int32_t *calibrated = blob->take<int32_t>((size_t)n_calibrated, &plan->calibrated);
    float *q_real = blob->take<float>(n_stats, &plan->q_real);
    float *q_imag = blob->take<float>(n_stats, &plan->q_imag);
    double *inv_freq = blob->take<double>(n_frequencies, &plan->inv_freq);
    double *freq_scale_sq = blob->take<double>(n_frequencies, &plan->freq_scale_sq);
    float *mag = blob->take<float>(n_mag, &plan->mag);
    float *content = blob->take<float>(n_content, &plan->content);
    float *rotations = blob->take<float>(n_rotations, &plan->rotations);
    float *signs = NULL;
    if (v1->hadamard_signs != NULL) {
        int dim = 0;
        for (int l = 0; l < v1->n_layers; l++) {
            dim = std::max(dim, v1->layers[l].k.dim);
        }
        signs = blob->take<float>((size_t)dim, &plan->signs);
        if (fill) {
            memcpy(signs, v1->hadamard_signs, sizeof(float) * (size_t)dim);
        }
    }
    uint8_t *owners = blob->take<uint8_t>((size_t)v1->n_kv * 4, &context->owner_tables);
    int32_t *first_slots = blob->take<int32_t>((size_t)v1->n_sets, &context->protect_slots[0]);
    int32_t *all_slots = blob->take<int32_t>((size_t)v1->n_kv, &context->protect_slots[1]);
    context->n_protect_slots[0] = v1->n_sets;
    context->n_protect_slots[1] = v1->n_kv;
    const int32_t *score_slots_device;
    int32_t *score_slots = blob->take<int32_t>((size_t)v1->n_kv, &score_slots_device);
    if (!fill) {
        return;
    }

    memset(mag, 0, sizeof(float) * n_mag);
    memset(content, 0, sizeof(float) * n_content);
    describe_layers(context, layers, inv_freq, freq_scale_sq, v1->k_state == TRIA_K_RAW ? rotations : NULL);
    int64_t stats = 0;
    for (int q = 0; q < v1->n_queries; q++) {
        const tria_v1_query *query = &v1->queries[q];
        queries[q].stats = stats;
        queries[q].layer = query->layer;
        queries[q].reserved = 0;
        if (query->calibrated) {
            const size_t n = (size_t)v1->layers[query->layer].n_freq;
            memcpy(q_real + stats, query->q_mean_real, sizeof(float) * n);
            memcpy(q_imag + stats, query->q_mean_imag, sizeof(float) * n);
            stats += (int64_t)n;
        }
    }
    int n_chunks = 0;
    int64_t lin_at = 0;
    int64_t mag_at = 0;
    int64_t content_at = 0;
    n_calibrated = 0;
    for (int s = 0; s < v1->n_kv; s++) {
        const tria_v1_kv *from = &v1->kv[s];
        const Layer *layer = &layers[from->layer];
        const int per_chunk = plan->offsets_max ? 1 : columns;
        Kv *to = &kvs[s];
        to->layer = from->layer;
        to->head = from->head;
        to->set = from->set;
        to->first_chunk = n_chunks;
        to->first_query = n_calibrated;
        for (int g = from->group_begin; g < from->group_end; g++) {
            if (v1->queries[v1->group[g]].calibrated) {
                calibrated[n_calibrated++] = v1->group[g];
            }
        }
        to->n_queries = n_calibrated - to->first_query;
        for (int q = 0; q < to->n_queries; q += per_chunk) {
            Chunk *chunk = &chunks[n_chunks++];
            bool any_content = false;
            memset(chunk, 0, sizeof(*chunk));
            for (int c = 0; c < columns; c++) {
                const bool used = c < per_chunk && q + c < to->n_queries;
                chunk->query[c] = used ? calibrated[to->first_query + q + c] : -1;
                chunk->has_content[c] = used && v1->queries[chunk->query[c]].content_mean != NULL;
                any_content = any_content || chunk->has_content[c];
            }
            chunk->layer = from->layer;
            chunk->slot = s;
            chunk->lin = lin_at;
            chunk->mag = mag_at;
            chunk->content = any_content ? content_at : -1;
            fill_chunk(v1, layers, chunk, mag + mag_at, content + content_at);
            lin_at += (int64_t)layer->shape.n_freq * 2 * columns * plan->n_passes;
            mag_at += (int64_t)layer->shape.n_freq * columns;
            content_at += (int64_t)(layer->shape.head_dim - 2 * layer->shape.n_freq) * columns;
        }
        to->n_chunks = n_chunks - to->first_chunk;
        to->same_set = from->set >= 0 && context->positions_compared ? first_slot(v1, from->set) : -1;
        to->lender = -1;
        to->scope = plan->mode == TRIA_MODE_PER_HEAD ? v1->n_layers : from->layer;
        all_slots[s] = s;
    }
    int n_set_slots = 0;
    context->borrows = false;
    for (int set = 0; set < v1->n_sets; set++) {
        const int slot = first_slot(v1, set);
        Set *to = &sets[set];
        to->slot = slot;
        to->first = n_set_slots;
        for (int s = 0; s < v1->n_kv; s++) {
            if (v1->kv[s].set == set) {
                set_slots[n_set_slots++] = s;
            }
        }
        to->n_slots = n_set_slots - to->first;
        to->borrows = v1->kv[slot].borrows;
        to->scope = kvs[slot].scope;
        to->by_position = plan->mode == TRIA_MODE_PER_HEAD || plan->mode == TRIA_MODE_UNION ||
                                  plan->mode == TRIA_MODE_GLOBAL
                              ? v1->all_by_position
                              : v1->layers[v1->kv[slot].layer].by_position;
        first_slots[set] = slot;
        context->set_slots[set] = slot;
        context->set_reduces[set] = plan->reduces && !to->borrows && !to->by_position;
        context->borrows = context->borrows || to->borrows;
    }
    for (int s = 0; s < v1->n_kv && context->borrows; s++) {
        for (int other = 0; other < v1->n_kv && v1->kv[s].set >= 0 && kvs[s].lender < 0; other++) {
            if (v1->kv[other].set >= 0 && kvs[other].scope == kvs[s].scope) {
                kvs[s].lender = other;
            }
        }
    }
    /* with layer stride 0 (bit 0) or head stride 0 (bit 1) slots share a table; the first one moves it */
    for (int shared = 0; shared < 4; shared++) {
        for (int s = 0; s < v1->n_kv; s++) {
            bool first = true;
            for (int other = 0; other < s; other++) {
                first = first && !(((shared & 1) != 0 || v1->kv[other].layer == v1->kv[s].layer) &&
                                   ((shared & 2) != 0 || v1->kv[other].head == v1->kv[s].head));
            }
            owners[shared * v1->n_kv + s] = first;
        }
    }
    /* launches: slots with something to score, by element type */
    int n_slots = 0;
    context->n_launches = 0;
    for (int dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        ScoreLaunch *launch = &context->launches[context->n_launches];
        const int begin = n_slots;
        uint32_t most_bytes = 0;
        uint32_t widest = 1;
        for (int ranked = 1; ranked >= 0; ranked--) {
            for (int s = 0; s < v1->n_kv; s++) {
                const bool mine = is_prepared(v1) ? dtype == 0 : layers[kvs[s].layer].k.dtype == dtype;
                if (mine && kvs[s].n_chunks > 0 && (kvs[s].set >= 0) == (ranked != 0)) {
                    uint32_t unit;
                    most_bytes = std::max(most_bytes, staged_bytes(v1, &v1->layers[kvs[s].layer], &unit));
                    widest = std::max(widest, unit);
                    score_slots[n_slots++] = s;
                }
            }
            launch->n_ranked = ranked ? n_slots - begin : launch->n_ranked;
        }
        if (n_slots > begin) {
            launch->pitch = pitch_for(most_bytes, widest);
            launch->slots = score_slots_device + begin;
            launch->n_slots = n_slots - begin;
            launch->dtype = dtype;
            context->n_launches++;
        }
    }
}
} // namespace tria_gpu

/* trace_bytes.c - the pieces that trace records are made of. */
#include "trace_internal.h"

#include "crc32c.h"

#include <string.h>

void tria_write_i32s(tria_writer *writer, const int32_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        tria_write_i32(writer, values[i]);
    }
}

void tria_write_text(tria_writer *writer, const char *text)
{
    const size_t length = strlen(text);
    tria_write_u32(writer, (uint32_t)length);
    tria_write_bytes(writer, text, length);
}

static void write_f64s(tria_writer *writer, const double *values, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        tria_write_f64(writer, values[i]);
    }
}

static void write_tensor(tria_writer *writer, const tria_tensor *tensor)
{
    tria_write_i32(writer, tensor->dtype);
    tria_write_i32(writer, tensor->dim);
    tria_write_i32(writer, tensor->scale_kind);
    tria_write_f32(writer, tensor->scale);
}

static void write_layer(tria_writer *writer, const tria_v1_layer *layer, float weight)
{
    const int32_t numbers[] = {layer->n_q_heads,     layer->n_kv_heads, layer->head_dim, layer->rotary_dim,
                               layer->rotary_offset, layer->rope_style, layer->kv_layer, layer->window};
    tria_write_i32s(writer, numbers, TRIA_ARRAY_LEN(numbers));
    tria_write_f32(writer, weight);
    if (layer->n_q_heads > 0) {
        write_f64s(writer, layer->inv_freq, layer->n_freq);
        write_f64s(writer, layer->freq_scale_sq, layer->n_freq);
    }
    if (layer->n_kv_heads > 0) {
        write_tensor(writer, &layer->k);
        write_tensor(writer, &layer->v);
    }
}

static void write_query(tria_writer *writer, const tria_v1_plan *v1, const tria_v1_query *query)
{
    const tria_v1_layer *layer = &v1->layers[query->layer];
    const int32_t n_content = query->content_mean != NULL ? layer->head_dim - layer->rotary_dim : 0;
    tria_write_i32(writer, query->calibrated);
    if (!query->calibrated) {
        return;
    }
    tria_write_f32s(writer, query->q_mean_real, (size_t)layer->n_freq);
    tria_write_f32s(writer, query->q_mean_imag, (size_t)layer->n_freq);
    tria_write_f32s(writer, query->q_abs_mean, (size_t)layer->n_freq);
    tria_write_i32(writer, n_content);
    if (n_content > 0) {
        tria_write_f32s(writer, query->content_mean, (size_t)n_content);
    }
}

/* Elements of the plan's sign array. */
static int32_t n_signs_of(const tria_v1_plan *v1)
{
    int32_t longest = 0;
    for (int32_t l = 0; v1->hadamard_signs != NULL && l < v1->n_layers; l++) {
        longest = v1->layers[l].k.dim > longest ? v1->layers[l].k.dim : longest;
    }
    return longest;
}

void tria_trace_write_plan(tria_writer *writer, const tria_plan *plan)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    const tria_plan_params *p = v1->params;
    const int32_t n_signs = n_signs_of(v1);
    const int32_t before_weight[] = {p->offsets, p->offset_max, p->disable_trig, p->disable_norm_excess};
    const int32_t after_weight[] = {
        p->normalize_over, p->group,  p->mode,     p->layers_agg, p->use_layer_budgets,
        p->pool_radius,    p->budget, p->n_sink,   p->n_recent,   p->protect_prefill,
        p->count_prompt,   p->order,  p->zero_tail};
    tria_write_i32(writer, v1->n_layers);
    for (int32_t l = 0; l < v1->n_layers; l++) {
        write_layer(writer, &v1->layers[l], plan->resolved.weights[l]);
    }
    tria_write_i32(writer, v1->k_state);
    tria_write_i32(writer, v1->hadamard_size);
    tria_write_i32(writer, n_signs);
    tria_write_f32s(writer, v1->hadamard_signs, (size_t)n_signs);
    tria_write_i32s(writer, before_weight, TRIA_ARRAY_LEN(before_weight));
    tria_write_f32(writer, p->content_weight);
    tria_write_i32s(writer, after_weight, TRIA_ARRAY_LEN(after_weight));
    tria_write_text(writer, plan->score.table->name);
    tria_write_text(writer, plan->select.table->name);
    tria_write_text(writer, plan->compact.table->name);
    for (int32_t q = 0; q < v1->n_queries; q++) {
        write_query(writer, v1, &v1->queries[q]);
    }
}

void tria_trace_pack_row(const tria_rows *rows, int32_t row, unsigned char *out)
{
    const unsigned char *source = tria_rows_at(rows, row);
    tria_chunks chunks;
    tria_tensor_chunks(rows->tensor, &chunks);
    for (int32_t i = 0; i < chunks.n; i++) {
        memcpy(out + (size_t)i * (size_t)chunks.bytes, source + i * chunks.stride, (size_t)chunks.bytes);
    }
}

static void write_rows(tria_writer *writer, const tria_rows *rows, int32_t n, int32_t content)
{
    unsigned char bytes[TRIA_MAX_HEAD_DIM * sizeof(float)]; /* the longest row there is */
    const tria_tensor *tensor = rows->tensor;
    const size_t size = (size_t)tria_dtype_row_bytes(tensor->dtype, tensor->dim);
    uint32_t crc = 0;
    for (int32_t i = 0; i < n; i++) {
        tria_trace_pack_row(rows, i, bytes);
        crc = tria_crc32c(crc, bytes, size);
    }
    tria_write_i32(writer, n);
    tria_write_u32(writer, crc);
    if (content == TRIA_TRACE_DECISIONS) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        tria_trace_pack_row(rows, i, bytes);
        tria_write_bytes(writer, bytes, size);
    }
    if (tensor->scale_kind == TRIA_SCALE_HEAD || tensor->scale_kind == TRIA_SCALE_ROW) {
        for (int32_t i = 0; i < n; i++) {
            tria_write_f32(writer, tria_rows_scale(rows, i));
        }
    }
}

void tria_trace_write_cache(tria_writer *writer, const tria_v1_plan *plan, const tria_kv_view *view,
                            const int32_t *rows, int32_t content)
{
    tria_write_i32(writer, content);
    for (int32_t s = 0; s < plan->n_kv; s++) {
        const tria_layer_view *layer = &view->layers[plan->kv[s].layer];
        tria_rows lane;
        tria_rows_init(&lane, view, layer, &layer->k, plan->kv[s].head);
        write_rows(writer, &lane, rows[s], content);
        if (content == TRIA_TRACE_CACHE && plan->layers[plan->kv[s].layer].v.dim != 0) {
            tria_rows_init(&lane, view, layer, &layer->v, plan->kv[s].head);
            write_rows(writer, &lane, layer->v.base != NULL ? rows[s] : 0, content);
        }
    }
}

/* ---- reading ---- */

const unsigned char *tria_read_bytes(tria_reader *reader, uint64_t count)
{
    if (reader->failed || count > reader->size - reader->used) {
        reader->failed = true;
        return NULL;
    }
    const unsigned char *bytes = reader->data + reader->used;
    reader->used += (size_t)count;
    return bytes;
}

uint32_t tria_read_u32(tria_reader *reader)
{
    const unsigned char *bytes = tria_read_bytes(reader, 4);
    return bytes != NULL ? tria_load_u32(bytes) : 0;
}

int32_t tria_read_i32(tria_reader *reader)
{
    return (int32_t)tria_read_u32(reader);
}

int64_t tria_read_i64(tria_reader *reader)
{
    const unsigned char *bytes = tria_read_bytes(reader, 8);
    return bytes != NULL ? (int64_t)tria_load_u64(bytes) : 0;
}

float tria_read_f32(tria_reader *reader)
{
    const unsigned char *bytes = tria_read_bytes(reader, 4);
    return bytes != NULL ? tria_load_f32(bytes) : 0.0F;
}

void tria_read_i32s(tria_reader *reader, int32_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = tria_read_i32(reader);
    }
}

void tria_read_f32s(tria_reader *reader, float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = tria_read_f32(reader);
    }
}

void tria_read_f64s(tria_reader *reader, double *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *bytes = tria_read_bytes(reader, 8);
        out[i] = bytes != NULL ? tria_load_f64(bytes) : 0.0;
    }
}

/* score_prepare.c - see score_prepare.h. */
#include "cpu/score_prepare.h"
#include "cpu/byte_weights.h"
#include "tria/model.h"

#include <string.h>

#define ROTATION_BASE_BITS 11

static size_t whole_lines(size_t bytes)
{
    return (bytes + TRIA_LINE_BYTES - 1) / TRIA_LINE_BYTES * TRIA_LINE_BYTES;
}

static size_t vector_floats(int32_t dim)
{
    /* real, imaginary and content, each rounded up */
    return (size_t)tria_round_lanes(dim) + (size_t)3 * TRIA_LANES;
}

size_t tria_prepared_bytes(int32_t n_jobs)
{
    return whole_lines((size_t)n_jobs * sizeof(tria_prepared));
}

/* For every offset, and for the magnitudes alone. */
static size_t n_parts_most(int32_t n_heads, int32_t n_lin)
{
    return (size_t)n_heads * (size_t)(n_lin > 1 ? n_lin + 1 : 1);
}

/* Parts and pointers; the floats behind them start at a whole line. */
static size_t header_bytes(int32_t n_heads, int32_t n_lin)
{
    return whole_lines(n_parts_most(n_heads, n_lin) * sizeof(tria_head_part) +
                       (size_t)n_heads * sizeof(float *));
}

size_t tria_prepared_scratch(int32_t dim, int32_t n_heads, int32_t n_lin)
{
    size_t vector = vector_floats(dim), heads = (size_t)n_heads;
    size_t weights = vector * TRIA_MAX_REPEAT;
    size_t floats = heads * (size_t)n_lin * weights               /* linear */
                    + heads * weights                             /* mag */
                    + (n_lin > 1 ? TRIA_PART_HEADS * weights : 0) /* zeros */
                    + 2 * vector                                  /* row and its planes */
                    + TRIA_ROW_BLOCK * vector                     /* block */
                    + heads * TRIA_ROW_BLOCK;                     /* best */
    return header_bytes(n_heads, n_lin) + floats * sizeof(float);
}

/* The order the loops use: real parts, imaginary parts, content; each padded with zeros. */
static void to_planes(const tria_score_job *job, const tria_score_span *span, const float *stored,
                      float *planes)
{
    int32_t n_freq = job->rotary_dim / 2;
    const float *rotary = stored + job->rotary_offset;
    float *imag = planes + span->n_freq;
    for (int32_t f = 0; f < n_freq; f++) {
        bool half = job->rope_style == TRIA_ROPE_HALF;
        planes[f] = half ? rotary[f] : rotary[2 * f];
        imag[f] = half ? rotary[n_freq + f] : rotary[2 * f + 1];
    }
    memset(planes + n_freq, 0, (size_t)(span->n_freq - n_freq) * sizeof(float));
    memset(imag + n_freq, 0, (size_t)(span->n_freq - n_freq) * sizeof(float));
    float *content = imag + span->n_freq;
    int32_t behind = job->rotary_offset + job->rotary_dim;
    int32_t n_content = job->head_dim - job->rotary_dim;
    memcpy(content, stored, (size_t)job->rotary_offset * sizeof(float));
    memcpy(content + job->rotary_offset, stored + behind, (size_t)(job->head_dim - behind) * sizeof(float));
    memset(content + n_content, 0, (size_t)(tria_round_lanes(n_content) - n_content) * sizeof(float));
}

/* e^{i p w} as the product of three table entries, one per digit of p. */
static void rotate(const tria_score_job *job, int32_t row, float *real, float *imag)
{
    int32_t n_freq = job->rotary_dim / 2;
    uint32_t position = (uint32_t)(job->positions != NULL ? job->positions[row] : row);
    const uint32_t mask = (1u << ROTATION_BASE_BITS) - 1u;
    for (int digit = 0; digit < 3 && position != 0; digit++) {
        size_t entry = ((size_t)digit << ROTATION_BASE_BITS) + (position & mask);
        const float *table = job->rotation_tables + entry * (size_t)n_freq * 2;
        for (int32_t f = 0; f < n_freq; f++) {
            float re = real[f], im = imag[f], c = table[2 * f], s = table[2 * f + 1];
            real[f] = re * c - im * s;
            imag[f] = re * s + im * c;
        }
        position >>= ROTATION_BASE_BITS;
    }
}

void tria_prepared_decode(const tria_prepared *p, int32_t row, float *planes)
{
    const tria_score_job *job = p->job;
    tria_rows_decode_f32(job->rows, row, p->decode_dim, p->row);
    if (job->k_state == TRIA_K_HADAMARD) {
        tria_hadamard_undo_f32(p->row, p->decode_dim, job->hadamard_size, job->hadamard_signs);
    }
    to_planes(job, &p->span, p->row, planes);
    if (job->k_state == TRIA_K_RAW) {
        rotate(job, row, planes, planes + p->span.n_freq);
    }
}

/* Whether the loops can read the rows, where they lie or copied together. */
static bool read_directly(const tria_score_job *job, tria_prepared *p)
{
    static const tria_fp8_format e4m3fn = {7, 0xbf80, 0x7f, 0x7f, 256.0f};
    static const tria_fp8_format e4m3fnuz = {7, 0xbf80, 0xff, 0x80, 128.0f};
    static const tria_fp8_format e5m2 = {8, 0xff00, 0, 1, 1.0f};
    const tria_tensor *tensor = job->rows->tensor;
    int32_t behind = job->head_dim - job->rotary_offset - job->rotary_dim;
    bool scaled = tensor->scale_kind != TRIA_SCALE_NONE;
    switch (tensor->dtype) {
    case TRIA_DTYPE_F32:
        p->source = TRIA_SOURCE_F32;
        break;
    case TRIA_DTYPE_F16:
        p->source = TRIA_SOURCE_F16;
        break;
    case TRIA_DTYPE_BF16:
        p->source = TRIA_SOURCE_BF16;
        break;
    case TRIA_DTYPE_Q8_0:
        p->source = TRIA_SOURCE_Q8_0;
        break;
    case TRIA_DTYPE_INT8:
        p->source = TRIA_SOURCE_INT8;
        scaled = false;
        break;
    case TRIA_DTYPE_FP8_E4M3FN:
    case TRIA_DTYPE_FP8_E4M3FNUZ:
    case TRIA_DTYPE_FP8_E5M2:
        p->source = TRIA_SOURCE_FP8;
        p->span.fp8 = tensor->dtype == TRIA_DTYPE_FP8_E4M3FN     ? e4m3fn
                      : tensor->dtype == TRIA_DTYPE_FP8_E4M3FNUZ ? e4m3fnuz
                                                                 : e5m2;
        scaled = false;
        break;
    default:
        return false;
    }
    if (p->source == TRIA_SOURCE_Q8_0 &&
        tria_dtype_row_bytes(tensor->dtype, tensor->dim) > TRIA_MAX_BLOCKS * 34) {
        return false;
    }
    return !scaled && job->k_state == TRIA_K_ROTATED && job->rotary_dim % (2 * TRIA_LANES) == 0 &&
           job->rotary_offset % TRIA_LANES == 0 && behind % TRIA_LANES == 0;
}

/* Puts n weights of a head where the loops look for them: a vector of every `dims` of them, repeated for
 * each row that a vector holds; `stride` floats from one vector to the next. */
static void spread_weights(const tria_cpu_kernels *kernels, const float *weights, int32_t n, int64_t stride,
                           float *out)
{
    const int32_t dims = kernels->dims;
    for (int32_t d = 0; d < n; d += dims, out += stride) {
        for (int32_t r = 0; r < kernels->repeat; r++) {
            memcpy(out + r * dims, weights + d, (size_t)dims * sizeof(float));
        }
    }
}

/* A head's place among those of its part, at `out`; `planes` as to_planes() writes them. */
static void pack_linear(const tria_cpu_kernels *kernels, const tria_score_span *span, const float *planes,
                        const tria_head_part *part, int32_t h, float *out)
{
    const int32_t vector = kernels->dims * kernels->repeat;
    const int64_t stride = (int64_t)part->n_heads * vector;
    const float *content = planes + 2 * (int64_t)span->n_freq;
    const int32_t n_content = tria_round_lanes(span->content_count[0] + span->content_count[1]);
    out += h * vector;
    spread_weights(kernels, planes, span->n_freq, 2 * stride, out);
    spread_weights(kernels, planes + span->n_freq, span->n_freq, 2 * stride, out + stride);
    spread_weights(kernels, content, n_content, stride,
                   out + (int64_t)(2 * span->n_freq / kernels->dims) * stride);
}

/* Whether products of bytes can take heads of the job. */
static bool may_take_bytes(const tria_cpu_kernels *kernels, const tria_prepared *p)
{
    return kernels->bytes != NULL && p->direct && !p->with_mag && p->job->n_lin == 1 &&
           (p->source == TRIA_SOURCE_Q8_0 || p->source == TRIA_SOURCE_INT8);
}

static bool has_content(const tria_score_job *job, int32_t head)
{
    return job->has_content == NULL || job->has_content[head] != 0;
}

/* Divides the heads into parts of the same kind, as evenly as they go; returns their number. */
static int32_t divide_heads(const tria_score_job *job, bool bytes, tria_head_part *parts)
{
    int32_t n_parts = 0;
    bool next_in_bytes = bytes && job->n_heads > 0 && tria_exact_in_bytes(job, 0, has_content(job, 0));
    for (int32_t h = 0, next; h < job->n_heads; h = next) {
        const bool with_content = has_content(job, h), in_bytes = next_in_bytes;
        for (next = h + 1; next < job->n_heads; next++) {
            const bool next_with_content = has_content(job, next);
            next_in_bytes = bytes && tria_exact_in_bytes(job, next, next_with_content);
            if (next_in_bytes != in_bytes || next_with_content != with_content) {
                break;
            }
        }
        const int32_t n = (next - h + TRIA_PART_HEADS - 1) / TRIA_PART_HEADS;
        for (int32_t i = 0; i < n; i++) {
            const int32_t first = h + (int32_t)((int64_t)(next - h) * i / n);
            const int32_t end = h + (int32_t)((int64_t)(next - h) * (i + 1) / n);
            parts[n_parts++] = (tria_head_part){
                .first = first, .n_heads = end - first, .with_content = with_content, .in_bytes = in_bytes};
        }
    }
    return n_parts;
}

/* A part's weights of one offset, of all heads, at `out`. */
static void pack_floats(const tria_cpu_kernels *kernels, const tria_prepared *p, const tria_head_part *part,
                        int32_t offset, float *planes, float *out)
{
    const tria_score_job *job = p->job;
    const int32_t dim = job->rows->tensor->dim;
    for (int32_t h = 0; h < part->n_heads; h++) {
        const float *stored = job->lin[part->first + h] + (int64_t)offset * dim;
        if (job->k_state == TRIA_K_HADAMARD) {
            memcpy(p->row, stored, (size_t)dim * sizeof(float));
            tria_hadamard_undo_f32(p->row, dim, job->hadamard_size, job->hadamard_signs);
            stored = p->row;
        }
        to_planes(job, &p->span, stored, planes);
        pack_linear(kernels, &p->span, planes, part, h, out);
    }
}

static void fill_parts(const tria_cpu_kernels *kernels, const tria_prepared *p, tria_head_part *parts,
                       float *next, float *planes)
{
    const tria_score_job *job = p->job;
    const tria_score_span *span = &p->span;
    const size_t weights = vector_floats(job->rows->tensor->dim) * (size_t)kernels->repeat;
    const int32_t n_parts = span->n_parts, vector = kernels->dims * kernels->repeat;
    for (int32_t o = 0; o < job->n_lin; o++) {
        for (int32_t i = 0; i < n_parts; i++) {
            tria_head_part *part = &parts[o * n_parts + i];
            *part = parts[i];
            part->linear = next;
            if (part->in_bytes) {
                tria_pack_bytes(job, kernels->bytes->key_bias, part, next);
            } else {
                pack_floats(kernels, p, part, o, planes, next);
            }
            next += (size_t)part->n_heads * weights;
        }
    }
    for (int32_t i = 0; i < n_parts && p->with_mag; i++) {
        for (int32_t h = 0; h < parts[i].n_heads; h++) {
            memset(planes, 0, (size_t)span->n_freq * sizeof(float));
            memcpy(planes, job->mag[parts[i].first + h], (size_t)(job->rotary_dim / 2) * sizeof(float));
            spread_weights(kernels, planes, span->n_freq, (int64_t)parts[i].n_heads * vector,
                           next + (int64_t)h * vector);
        }
        parts[i].mag = next;
        next += (size_t)parts[i].n_heads * weights;
    }
    if (job->n_lin > 1) {
        memset(next, 0, TRIA_PART_HEADS * weights * sizeof(float));
        for (int32_t i = 0; i < n_parts; i++) {
            tria_head_part *part = &parts[job->n_lin * n_parts + i];
            *part = parts[i];
            part->linear = next;
            part->with_content = false;
        }
    }
}

static void choose_loops(const tria_cpu_kernels *kernels, tria_prepared *p)
{
    int32_t n_in_bytes = 0;
    for (int32_t i = 0; i < p->span.n_parts; i++) {
        n_in_bytes += p->span.parts[i].in_bytes;
    }
    p->score = kernels->score[p->source][p->job->rope_style != TRIA_ROPE_HALF];
    p->tile_rows = kernels->rows;
    if (n_in_bytes > 0) {
        const tria_byte_kernels *bytes = kernels->bytes;
        p->score_bytes = p->source == TRIA_SOURCE_Q8_0 ? bytes->score_q8_0 : bytes->score_int8;
        p->all_in_bytes = n_in_bytes == p->span.n_parts;
        p->tile_rows = bytes->rows;
    }
}

size_t tria_prepare(const tria_cpu_kernels *kernels, const tria_score_job *job, void *scratch,
                    tria_prepared *p)
{
    tria_score_span *span = &p->span;
    const int32_t dim = job->rows->tensor->dim;
    const size_t vector = vector_floats(dim), heads = (size_t)job->n_heads;
    tria_head_part *parts = scratch;

    memset(p, 0, sizeof(*p));
    p->job = job;
    p->direct = read_directly(job, p);
    tria_tensor_chunks(job->rows->tensor, &p->chunks);
    p->with_mag = job->mag != NULL && job->rotary_dim > 0;
    p->decode_dim = job->k_state == TRIA_K_HADAMARD ? dim : job->head_dim;
    p->best_heads = (float **)(void *)(parts + n_parts_most(job->n_heads, job->n_lin));
    p->row = (float *)(void *)((unsigned char *)scratch + header_bytes(job->n_heads, job->n_lin));
    p->block = p->row + 2 * vector;
    p->block_stride = (int64_t)vector;
    p->best = p->block + TRIA_ROW_BLOCK * vector;

    span->n_freq = tria_round_lanes(job->rotary_dim / 2);
    span->terms = job->terms;
    span->out = job->out;
    span->rotary_begin = job->rotary_offset;
    span->content_count[0] = job->rotary_offset;
    span->content_begin[1] = job->rotary_offset + job->rotary_dim;
    span->content_count[1] = job->head_dim - span->content_begin[1];
    /* whole blocks: a head may end within one */
    const int32_t dtype = job->rows->tensor->dtype, block = tria_dtype_block(dtype);
    span->row_bytes = (int32_t)tria_dtype_row_bytes(dtype, (job->head_dim + block - 1) / block * block);
    span->parts = parts;
    span->n_parts = divide_heads(job, may_take_bytes(kernels, p), parts);
    fill_parts(kernels, p, parts, p->best + heads * TRIA_ROW_BLOCK, p->row + vector);
    choose_loops(kernels, p);
    for (size_t h = 0; h < heads; h++) {
        p->best_heads[h] = p->best + h * TRIA_ROW_BLOCK;
    }
    return tria_prepared_scratch(dim, job->n_heads, job->n_lin);
}

/* kernels.c - choosing kernels; from a job on rows anywhere to spans the loops can read. */
#include "cpu/kernels.h"
#include "cpu/kernels_internal.h"
#include "tria/model.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <math.h>
#include <string.h>

/* Rows whose moments are formed in float before they join the rest in double. */
#define MOMENTS_CHUNK 1024
#define ROTATION_BASE_BITS 11
#define HEAD_CHUNK TRIA_HEAD_CHUNK
/* The smallest pages that memory comes in. */
#define PAGE_BYTES 4096
#define LINE_BYTES 64

int32_t tria_cpu_features(void)
{
    int32_t features = 0;
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    /* The builtins also ask the operating system whether it saves the wider registers. */
    __builtin_cpu_init();
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        features |= TRIA_CPU_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            features |= TRIA_CPU_AVX512;
        }
    }
#elif defined(__aarch64__)
    features |= TRIA_CPU_NEON; /* part of the base architecture */
#endif
    return features;
}

const tria_cpu_kernels *tria_cpu_kernels_for(int32_t features)
{
    static const tria_cpu_kernels *const best_first[] = {
#if defined(__x86_64__)
        &tria_cpu_kernels_avx512,
        &tria_cpu_kernels_avx2,
#elif defined(__aarch64__)
        &tria_cpu_kernels_neon,
#endif
        &tria_cpu_kernels_c,
    };
    for (size_t i = 0; i < TRIA_ARRAY_LEN(best_first); i++) {
        if ((best_first[i]->features & ~features) == 0) {
            return best_first[i];
        }
    }
    return &tria_cpu_kernels_c;
}

const char *tria_cpu_kernels_name(const tria_cpu_kernels *kernels)
{
    return kernels->name;
}

void tria_moments_combine(tria_moments *into, const tria_moments *other)
{
    if (other->count == 0) {
        return;
    }
    double n = (double)into->count, m = (double)other->count;
    double delta = other->mean - into->mean;
    into->mean += delta * m / (n + m);
    into->m2 += other->m2 + delta * delta * n * m / (n + m);
    into->count += other->count;
}

/* For scores so large that float sums overflow. */
static tria_moments moments_in_double(const float *x, int32_t n)
{
    tria_moments moments = {0.0, 0.0, 0};
    for (int32_t i = 0; i < n; i++) {
        const tria_moments one = {(double)x[i], 0.0, isfinite(x[i]) ? 1 : 0};
        tria_moments_combine(&moments, &one);
    }
    return moments;
}

/* Two passes over what lies in the first cache: deviations are small whatever the mean is. */
static tria_moments chunk_moments(const tria_cpu_kernels *kernels, const float *x, int32_t n)
{
    double count, sum, squares;
    kernels->sum(x, n, &count, &sum);
    tria_moments moments = {0.0, 0.0, (int64_t)count};
    if (moments.count > 0) {
        float mean = (float)(sum / count);
        kernels->deviations(x, n, mean, &sum, &squares);
        moments.mean = (double)mean + sum / count;
        moments.m2 = squares - sum * sum / count;
        if (!isfinite(moments.mean) || !isfinite(moments.m2)) {
            return moments_in_double(x, n);
        }
        moments.m2 = moments.m2 > 0.0 ? moments.m2 : 0.0;
    }
    return moments;
}

void tria_moments_of(const tria_cpu_kernels *kernels, const float *scores, const uint8_t *skip,
                     int32_t n_rows, tria_moments *moments)
{
    float kept[MOMENTS_CHUNK];
    *moments = (tria_moments){0.0, 0.0, 0};
    for (int32_t first = 0; first < n_rows; first += MOMENTS_CHUNK) {
        int32_t n = n_rows - first < MOMENTS_CHUNK ? n_rows - first : MOMENTS_CHUNK;
        const float *x = scores + first;
        if (skip != NULL) {
            for (int32_t i = 0; i < n; i++) {
                kept[i] = skip[first + i] != 0 ? NAN : x[i];
            }
            x = kept;
        }
        tria_moments chunk = chunk_moments(kernels, x, n);
        tria_moments_combine(moments, &chunk);
    }
}

tria_head_scale tria_head_scale_of(const tria_moments *moments)
{
    tria_head_scale scale = {0.0f, 0.0f, 0.0f};
    if (moments->count > 0) {
        double sd = sqrt(moments->m2 / (double)moments->count);
        if (sd > 1e-6 * fmax(1.0, fabs(moments->mean))) {
            scale.mean_high = (float)moments->mean;
            scale.mean_low = (float)(moments->mean - (double)scale.mean_high);
            scale.inverse = (float)(1.0 / sd);
        }
    }
    return scale;
}

void tria_group_rows(const tria_cpu_kernels *kernels, const float *const *scores,
                     const tria_head_scale *scales, int32_t n_heads, int32_t n_rows, bool mean, float *z)
{
    kernels->group(scores, scales, n_heads, n_rows, mean, z);
}

/* What of a job the loops cannot take as it is, worked out once. */
typedef struct prepared {
    const tria_score_job *job;
    tria_score_span span; /* all but the rows */
    tria_source source;
    bool direct; /* the loops read elements as they are; otherwise decoded ones */
    tria_chunks chunks;
    bool with_mag;
    int32_t decode_dim; /* leading dims a decoded row has */
    float *row;         /* one decoded row, stored order */
    float *block; /* TRIA_ROW_BLOCK decoded rows: real, imaginary, content; or a tile of copied ones */
    int64_t block_stride;
    float *best; /* [n_heads][TRIA_ROW_BLOCK], offsets other than the first */
    float **best_heads;
    int32_t n_band; /* jobs whose rows lie side by side in memory, and this one's place among them */
    int32_t band_index;
} prepared;

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t round_lanes(int32_t n)
{
    return (n + TRIA_LANES - 1) / TRIA_LANES * TRIA_LANES;
}

static size_t vector_floats(int32_t dim)
{
    /* real, imaginary and content, each rounded up */
    return (size_t)round_lanes(dim) + (size_t)3 * TRIA_LANES;
}

static size_t prepared_bytes(int32_t n_jobs)
{
    return ((size_t)n_jobs * sizeof(prepared) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* For every offset, and for the magnitudes alone. */
static size_t n_parts_most(int32_t n_heads, int32_t n_lin)
{
    return (size_t)n_heads * (size_t)(n_lin > 1 ? n_lin + 1 : 1);
}

/* Parts and pointers; the floats behind them start at a whole line. */
static size_t header_bytes(int32_t n_heads, int32_t n_lin)
{
    size_t bytes =
        n_parts_most(n_heads, n_lin) * sizeof(tria_head_part) + (size_t)n_heads * sizeof(float *);
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static size_t job_scratch(int32_t dim, int32_t n_heads, int32_t n_lin)
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

size_t tria_score_scratch_size(int32_t dim, int32_t n_heads, int32_t n_lin, int32_t n_jobs)
{
    return prepared_bytes(n_jobs) + (size_t)n_jobs * job_scratch(dim, n_heads, n_lin);
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
    memset(content + n_content, 0, (size_t)(round_lanes(n_content) - n_content) * sizeof(float));
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

static void decode_row(const prepared *p, int32_t row, float *planes)
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
static bool read_directly(const tria_score_job *job, prepared *p)
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
    const int32_t n_content = round_lanes(span->content_count[0] + span->content_count[1]);
    out += h * vector;
    spread_weights(kernels, planes, span->n_freq, 2 * stride, out);
    spread_weights(kernels, planes + span->n_freq, span->n_freq, 2 * stride, out + stride);
    spread_weights(kernels, content, n_content, stride,
                   out + (int64_t)(2 * span->n_freq / kernels->dims) * stride);
}

/* Divides the heads into parts of the same kind, as evenly as they go; returns their number. */
static int32_t divide_heads(const tria_score_job *job, tria_head_part *parts)
{
    const uint8_t *has = job->has_content;
    int32_t n_parts = 0;
    for (int32_t h = 0, next; h < job->n_heads; h = next) {
        next = h + 1;
        while (next < job->n_heads && (has == NULL || has[next] == has[h])) {
            next++;
        }
        const int32_t n = (next - h + TRIA_PART_HEADS - 1) / TRIA_PART_HEADS;
        for (int32_t i = 0; i < n; i++) {
            const int32_t first = h + (int32_t)((int64_t)(next - h) * i / n);
            const int32_t end = h + (int32_t)((int64_t)(next - h) * (i + 1) / n);
            parts[n_parts++] = (tria_head_part){first, end - first, has == NULL || has[h], NULL, NULL};
        }
    }
    return n_parts;
}

static void fill_parts(const tria_cpu_kernels *kernels, const prepared *p, tria_head_part *parts,
                       float *next, float *planes)
{
    const tria_score_job *job = p->job;
    const tria_score_span *span = &p->span;
    const size_t dim = (size_t)job->rows->tensor->dim;
    const size_t weights = vector_floats((int32_t)dim) * (size_t)kernels->repeat;
    const int32_t n_parts = span->n_parts, vector = kernels->dims * kernels->repeat;
    for (int32_t o = 0; o < job->n_lin; o++) {
        for (int32_t i = 0; i < n_parts; i++) {
            tria_head_part *part = &parts[o * n_parts + i];
            *part = parts[i];
            part->linear = next;
            for (int32_t h = 0; h < part->n_heads; h++) {
                const float *stored = job->lin[part->first + h] + (size_t)o * dim;
                if (job->k_state == TRIA_K_HADAMARD) {
                    memcpy(p->row, stored, dim * sizeof(float));
                    tria_hadamard_undo_f32(p->row, (int32_t)dim, job->hadamard_size, job->hadamard_signs);
                    stored = p->row;
                }
                to_planes(job, span, stored, planes);
                pack_linear(kernels, span, planes, part, h, next);
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

/* Returns the bytes of scratch it took. */
static size_t prepare(const tria_cpu_kernels *kernels, const tria_score_job *job, void *scratch,
                      prepared *p)
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

    span->n_freq = round_lanes(job->rotary_dim / 2);
    span->terms = job->terms;
    span->out = job->out;
    span->rotary_begin = job->rotary_offset;
    span->content_count[0] = job->rotary_offset;
    span->content_begin[1] = job->rotary_offset + job->rotary_dim;
    span->content_count[1] = job->head_dim - span->content_begin[1];
    span->row_bytes = (int32_t)tria_dtype_row_bytes(job->rows->tensor->dtype, job->head_dim);
    span->parts = parts;
    span->n_parts = divide_heads(job, parts);
    fill_parts(kernels, p, parts, p->best + heads * TRIA_ROW_BLOCK, p->row + vector);
    for (size_t h = 0; h < heads; h++) {
        p->best_heads[h] = p->best + h * TRIA_ROW_BLOCK;
    }
    return job_scratch(dim, job->n_heads, job->n_lin);
}

/* Non-finite scores of any offset must show. */
static void keep_larger(float *best, const float *other, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        best[i] = other[i] > best[i] || isnan(other[i]) ? other[i] : best[i];
    }
}

/* agg = max: a dot product per offset; what does not depend on the offset is added at the end. */
static void score_offsets(const tria_span_kernel *score, const prepared *p, const tria_score_span *rows)
{
    const tria_score_job *job = p->job;
    for (int32_t done = 0; done < rows->n_rows; done += TRIA_ROW_BLOCK) {
        tria_score_span span = *rows;
        int32_t left = rows->n_rows - done;
        span.rows += done * span.row_stride;
        span.n_rows = left < TRIA_ROW_BLOCK ? left : TRIA_ROW_BLOCK;
        span.next = span.rows;
        span.n_ahead = 0;
        span.first += done;
        span.terms = NULL;
        span.scales = span.scales != NULL ? span.scales + done : NULL;
        int32_t first = span.first;
        score[0](&span);
        span.out = p->best_heads;
        span.first = 0;
        for (int32_t o = 1; o < job->n_lin; o++) {
            span.parts += span.n_parts;
            score[0](&span);
            for (int32_t h = 0; h < job->n_heads; h++) {
                keep_larger(rows->out[h] + first, p->best_heads[h], span.n_rows);
            }
        }
        if (p->with_mag) {
            span.parts += span.n_parts;
            score[1](&span);
        }
        for (int32_t h = 0; h < job->n_heads; h++) {
            for (int32_t i = 0; i < span.n_rows; i++) {
                rows->out[h][first + i] += (p->with_mag ? p->best_heads[h][i] : 0.0f) +
                                           (rows->terms != NULL ? rows->terms[h][first + i] : 0.0f);
            }
        }
    }
}

static void score_span(const tria_cpu_kernels *kernels, const prepared *p, tria_source source,
                       bool interleaved, const tria_score_span *span)
{
    const tria_span_kernel *score = kernels->score[source][interleaved];
    if (p->job->n_lin > 1) {
        score_offsets(score, p, span);
    } else {
        score[p->with_mag](span);
    }
}

static const unsigned char *row_scale_at(const tria_rows *rows, int32_t row)
{
    const tria_tensor *tensor = rows->tensor;
    if (rows->page_table == NULL) {
        return rows->scale_base + row * tensor->scale_token_stride;
    }
    return rows->scale_base + rows->page_table[row / rows->tokens_per_page] * tensor->scale_page_stride +
           row % rows->tokens_per_page * tensor->scale_token_stride;
}

/* What the rows of a tensor with scales are multiplied by. */
static void decode_scales(const prepared *p, int32_t first, int32_t n, float *scales)
{
    const tria_rows *rows = p->job->rows;
    const tria_tensor *tensor = rows->tensor;
    float scale = tensor->scale_kind == TRIA_SCALE_TENSOR ? tensor->scale : 1.0f;
    if (tensor->scale_kind == TRIA_SCALE_HEAD) {
        memcpy(&scale, rows->scale_base, sizeof(scale));
    }
    for (int32_t i = 0; i < n; i++) {
        if (tensor->scale_kind == TRIA_SCALE_ROW) {
            memcpy(&scale, row_scale_at(rows, first + i), sizeof(scale));
        }
        scales[i] = p->source == TRIA_SOURCE_FP8 ? scale * p->span.fp8.factor : scale;
    }
}

/* What to fetch while n rows from `first` on are scored: as many of the next chunk. The jobs of a band
 * share out its rows in the order of memory, which serves it faster than the rows of one head after
 * another. */
static void fetch_ahead(const prepared *p, int32_t first, int32_t n, tria_score_span *span)
{
    const tria_rows *rows = p->job->rows;
    const int32_t nth = first % HEAD_CHUNK, chunk = first - nth + HEAD_CHUNK;
    const int32_t n_chunk = smaller(p->job->n_rows - chunk, HEAD_CHUNK);
    const int64_t row_bytes = span->row_bytes;
    if (nth < n_chunk) {
        const bool dense = rows->page_table == NULL && p->n_band * row_bytes == rows->tensor->token_stride;
        const int64_t share = ((int64_t)p->band_index * (n_chunk - 1) + nth) * row_bytes;
        span->n_ahead = smaller(n_chunk - nth, n);
        span->ahead = dense ? tria_rows_at(rows, p->job->first_row + chunk) + share
                            : tria_rows_at(rows, p->job->first_row + chunk + nth);
        span->ahead_step = dense ? row_bytes : rows->tensor->token_stride;
    }
}

/* Rows [first, first + n) of the job, n <= TRIA_ROW_BLOCK, decoded first. */
static void score_decoded_rows(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t n)
{
    const tria_score_job *job = p->job;
    tria_score_span span = p->span;
    span.rotary_begin = 0;
    span.content_begin[0] = 2 * span.n_freq;
    span.content_count[0] = round_lanes(job->head_dim - job->rotary_dim);
    span.content_count[1] = 0;
    for (int32_t i = 0; i < n || i % kernels->rows != 0; i++) { /* the last one again to fill the tile */
        decode_row(p, job->first_row + first + smaller(i, n - 1), p->block + i * p->block_stride);
    }
    span.rows = (const unsigned char *)p->block;
    span.row_stride = p->block_stride * (int64_t)sizeof(float);
    span.row_bytes = 0;
    span.next = span.rows;
    span.n_rows = n;
    span.first = first;
    score_span(kernels, p, TRIA_SOURCE_F32, false, &span);
}

/* Rows [first, first + n) of the job, evenly spaced from `rows` on; `next`: the row after them. */
static void score_even_rows(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t n,
                            const unsigned char *rows, int64_t stride, const unsigned char *next)
{
    float scales[HEAD_CHUNK];
    const bool scaled = p->source == TRIA_SOURCE_INT8 || p->source == TRIA_SOURCE_FP8;
    tria_score_span span = p->span;
    span.rows = rows;
    span.row_stride = stride;
    span.n_rows = n;
    span.first = first;
    span.next = next;
    fetch_ahead(p, first, n, &span);
    if (scaled) {
        decode_scales(p, p->job->first_row + first, n, scales);
        span.scales = scales;
    }
    score_span(kernels, p, p->source, p->job->rope_style != TRIA_ROPE_HALF, &span);
    /* A negative scale changes the sign of a key, but not that of its magnitudes. */
    for (int32_t i = 0; scaled && i < n; i++) {
        if (scales[i] < 0.0f) {
            score_decoded_rows(kernels, p, first + i, 1);
        }
    }
}

/* How many rows from `row` on lie evenly spaced, at most n. */
static int32_t even_rows(const tria_rows *rows, int32_t row, int32_t n)
{
    if (rows->page_table == NULL) {
        return n;
    }
    return smaller(rows->tokens_per_page - row % rows->tokens_per_page, n);
}

/* Copies n rows from `row` on to where a tile can read them, the last one again and again to fill it; rows
 * that lie anywhere are fetched ahead here. */
static void gather_tile(const tria_cpu_kernels *kernels, const prepared *p, int32_t row, int32_t n)
{
    const tria_score_job *job = p->job;
    unsigned char *to = (unsigned char *)p->block;
    for (int32_t r = 0; r < kernels->rows; r++) {
        const int32_t soon = smaller(row + r + HEAD_CHUNK / 2, job->first_row + job->n_rows - 1);
        for (int32_t at = 0; at < p->span.row_bytes; at += LINE_BYTES) {
            __builtin_prefetch(tria_rows_at(job->rows, soon) + at, 0, 2);
        }
        const unsigned char *from = tria_rows_at(job->rows, row + smaller(r, n - 1));
        for (int32_t done = 0, size; done < p->span.row_bytes; done += size, to += size) {
            size = smaller(p->chunks.bytes, p->span.row_bytes - done);
            memcpy(to, from, (size_t)size);
            from += p->chunks.stride;
        }
    }
}

/* Rows [first, end) of a job, at most HEAD_CHUNK: whole tiles of evenly spaced ones where they lie, others
 * gathered. */
static void score_direct_rows(const tria_cpu_kernels *kernels, const prepared *p, int32_t first,
                              int32_t end, const unsigned char *after)
{
    const tria_rows *rows = p->job->rows;
    while (first < end) {
        const int32_t row = p->job->first_row + first;
        const unsigned char *at = tria_rows_at(rows, row);
        int64_t stride = rows->tensor->token_stride;
        int32_t n = p->chunks.n > 1 ? 0 : even_rows(rows, row, end - first);
        n -= n % kernels->rows;
        if (n == 0) {
            n = smaller(end - first, kernels->rows);
            gather_tile(kernels, p, row, n);
            at = (const unsigned char *)p->block;
            stride = p->span.row_bytes;
        }
        score_even_rows(kernels, p, first, n, at, stride,
                        first + n < end ? tria_rows_at(rows, row + n) : after);
        first += n;
    }
}

/* Compilers drop calls of functions that only fetch ahead as having no effect; not so when inlined. */
#define FETCHING static inline __attribute__((always_inline))

/* Terms and scores of rows [first, end): runs too short for the machine to see them coming. */
FETCHING void fetch_scores(const tria_score_job *job, int32_t first, int32_t end)
{
    for (int32_t h = 0; h < job->n_heads; h++) {
        for (int32_t i = first; i < end; i += LINE_BYTES / (int32_t)sizeof(float)) {
            __builtin_prefetch(&job->out[h][i], 1, 2);
            if (job->terms != NULL) {
                __builtin_prefetch(&job->terms[h][i], 0, 2);
            }
        }
    }
}

/* Has the pages of memory that hold rows [first, end) translated, all at once: each one when its rows are
 * reached would hold up everything for as long as it takes. Takes another line of each page, as lines
 * equally far from their pages' starts compete for few places in the caches. */
FETCHING void translate_pages(const prepared *p, int32_t first, int32_t end)
{
    const tria_rows *rows = p->job->rows;
    if (p->direct && rows->page_table == NULL && first < end) {
        const unsigned char *row = tria_rows_at(rows, p->job->first_row + first);
        const int64_t size = (end - first) * rows->tensor->token_stride;
        for (int64_t at = 0; at < size; at += PAGE_BYTES - LINE_BYTES) {
            __builtin_prefetch(row + at, 0, 2);
        }
    }
}

/* Rows [first, end) of a job. */
static void score_range(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t end,
                        const unsigned char *next)
{
    if (p->direct) {
        score_direct_rows(kernels, p, first, end, next);
        return;
    }
    for (; first < end; first += TRIA_ROW_BLOCK) {
        score_decoded_rows(kernels, p, first, smaller(end - first, TRIA_ROW_BLOCK));
    }
}

/* Whether the rows of two jobs lie in the same pages of memory, give or take one. */
static bool side_by_side(const tria_rows *a, const tria_rows *b)
{
    const uintptr_t x = (uintptr_t)a->head_base, y = (uintptr_t)b->head_base;
    return (x > y ? x - y : y - x) < PAGE_BYTES;
}

/* Whether a job's rows come right after those of the one before, row by row. */
static bool continues_band(const prepared *p, const prepared *before)
{
    const tria_rows *a = before->job->rows, *b = p->job->rows;
    return p->direct && before->direct && a->page_table == NULL && b->page_table == NULL &&
           b->head_base == a->head_base + before->span.row_bytes &&
           a->tensor->token_stride == b->tensor->token_stride &&
           before->span.row_bytes == p->span.row_bytes && before->job->first_row == p->job->first_row &&
           before->job->n_rows == p->job->n_rows;
}

static void find_bands(prepared *all, int32_t n_jobs)
{
    for (int32_t j = 0, next; j < n_jobs; j = next) {
        next = j + 1;
        while (next < n_jobs && continues_band(&all[next], &all[next - 1])) {
            next++;
        }
        for (int32_t i = j; i < next; i++) {
            all[i].n_band = next - j;
            all[i].band_index = i - j;
        }
    }
}

/* The row that will be worked on after a chunk of a job; any of its rows, if none will. */
static const unsigned char *row_after(const prepared *all, int32_t n_jobs, int32_t index, int32_t first)
{
    const tria_score_job *job = all[index].job;
    const bool again = index + 1 == n_jobs;
    const tria_score_job *other = all[again ? 0 : index + 1].job;
    const int32_t row = again ? first + HEAD_CHUNK : first;
    return row < other->n_rows ? tria_rows_at(other->rows, other->first_row + row)
                               : tria_rows_at(job->rows, job->first_row);
}

/* HEAD_CHUNK rows of a job from `first` on, and what the next chunks need of it fetched ahead. */
static void score_chunk(const tria_cpu_kernels *kernels, const prepared *all, int32_t n_jobs, int32_t index,
                        int32_t first)
{
    const prepared *p = &all[index];
    const int32_t n_rows = p->job->n_rows, next = first + HEAD_CHUNK;
    if (first >= n_rows) {
        return;
    }
    fetch_scores(p->job, next, smaller(n_rows, next + HEAD_CHUNK));
    if (index == 0 || !side_by_side(p->job->rows, all[index - 1].job->rows)) {
        translate_pages(p, next + HEAD_CHUNK, smaller(n_rows, next + 2 * HEAD_CHUNK));
    }
    score_range(kernels, p, first, smaller(n_rows, next), row_after(all, n_jobs, index, first));
}

void tria_score_rows(const tria_cpu_kernels *kernels, const tria_score_job *jobs, int32_t n_jobs,
                     void *scratch)
{
    prepared *all = scratch;
    unsigned char *next = (unsigned char *)scratch + prepared_bytes(n_jobs);
    int32_t longest = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        next += prepare(kernels, &jobs[j], next, &all[j]);
        longest = jobs[j].n_rows > longest ? jobs[j].n_rows : longest;
        for (int32_t h = 0; jobs[j].moments != NULL && h < jobs[j].n_heads; h++) {
            jobs[j].moments[h] = (tria_moments){0.0, 0.0, 0};
        }
    }
    find_bands(all, n_jobs);
    for (int32_t chunk = 0; chunk < longest; chunk += MOMENTS_CHUNK) {
        for (int32_t first = chunk; first < smaller(longest, chunk + MOMENTS_CHUNK); first += HEAD_CHUNK) {
            for (int32_t j = 0; j < n_jobs; j++) {
                score_chunk(kernels, all, n_jobs, j, first);
            }
        }
        for (int32_t j = 0; j < n_jobs; j++) {
            int32_t n = smaller(jobs[j].n_rows - chunk, MOMENTS_CHUNK);
            for (int32_t h = 0; jobs[j].moments != NULL && n > 0 && h < jobs[j].n_heads; h++) {
                tria_moments moments = chunk_moments(kernels, jobs[j].out[h] + chunk, n);
                tria_moments_combine(&jobs[j].moments[h], &moments);
            }
        }
    }
}

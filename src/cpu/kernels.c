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
/* Rows of one head that are scored before the next head's turn. Where heads lie side by side their rows
 * share pages of memory, which are then translated once for all of them. */
#define HEAD_CHUNK 128
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
    bool direct; /* the loops read the cache; otherwise rows are decoded to `block` */
    bool with_mag;
    int32_t decode_dim; /* leading dims a decoded row has */
    float *row;         /* one decoded row, stored order */
    float *block;       /* TRIA_ROW_BLOCK decoded rows: real, imaginary, content */
    int64_t block_stride;
    float *best; /* [n_heads][TRIA_ROW_BLOCK], offsets other than the first */
    float **best_heads;
    const float *no_lin; /* zeros as long as one vector */
} prepared;

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
    return ((size_t)n_jobs * sizeof(prepared) + 63) / 64 * 64;
}

static size_t job_scratch(int32_t dim, int32_t n_heads, int32_t n_lin)
{
    size_t vector = vector_floats(dim), heads = (size_t)n_heads;
    size_t weights = vector * TRIA_MAX_REPEAT;
    size_t floats = heads * (size_t)n_lin * weights /* lin */
                    + heads * weights               /* mag */
                    + weights                       /* no_lin */
                    + vector                        /* row */
                    + TRIA_ROW_BLOCK * vector       /* block */
                    + heads * TRIA_ROW_BLOCK;       /* best */
    return (floats * sizeof(float) + heads * sizeof(float *) + 63) / 64 * 64;
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

/* Whether the loops can read the rows where they lie. */
static bool read_directly(const tria_score_job *job, prepared *p)
{
    static const tria_fp8_format e4m3fn = {7, 0x7f, 0x7f, 256.0f};
    static const tria_fp8_format e4m3fnuz = {7, 0xff, 0x80, 128.0f};
    static const tria_fp8_format e5m2 = {8, 0, 1, 1.0f};
    const tria_tensor *tensor = job->rows->tensor;
    int64_t element = tria_dtype_block_bytes(tensor->dtype);
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
        element = 0;
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
    return !scaled && job->k_state == TRIA_K_ROTATED && tensor->pack <= 1 &&
           (tensor->dim_stride == 0 || tensor->dim_stride == element) &&
           job->rotary_dim % (2 * TRIA_LANES) == 0 && job->rotary_offset % TRIA_LANES == 0 &&
           behind % TRIA_LANES == 0;
}

/* Weights as the loops load them, in place: every `dims` of them for each row that a vector holds. */
static void repeat_weights(const tria_cpu_kernels *kernels, float *weights, int32_t n)
{
    const int32_t dims = kernels->dims;
    for (int32_t from = n - dims; from >= 0 && kernels->repeat > 1; from -= dims) {
        for (int32_t r = 0; r < kernels->repeat; r++) {
            memmove(weights + from * kernels->repeat + r * dims, weights + from,
                    (size_t)dims * sizeof(float));
        }
    }
}

/* Returns the bytes of scratch it took. */
static size_t prepare(const tria_cpu_kernels *kernels, const tria_score_job *job, void *scratch,
                      prepared *p)
{
    tria_score_span *span = &p->span;
    int32_t dim = job->rows->tensor->dim;
    size_t vector = vector_floats(dim), weights = vector * (size_t)kernels->repeat;
    size_t n_vectors = (size_t)job->n_heads * (size_t)job->n_lin;
    float *lin = scratch;
    float *mag = lin + n_vectors * weights;
    float *no_lin = mag + (size_t)job->n_heads * weights;

    memset(p, 0, sizeof(*p));
    p->job = job;
    p->direct = read_directly(job, p);
    p->with_mag = job->mag != NULL && job->rotary_dim > 0;
    p->decode_dim = job->k_state == TRIA_K_HADAMARD ? dim : job->head_dim;
    p->row = no_lin + weights;
    p->block = p->row + vector;
    p->block_stride = (int64_t)vector;
    p->best = p->block + TRIA_ROW_BLOCK * vector;
    p->best_heads = (float **)(void *)(p->best + (size_t)job->n_heads * TRIA_ROW_BLOCK);
    p->no_lin = no_lin;

    span->n_freq = round_lanes(job->rotary_dim / 2);
    span->n_heads = job->n_heads;
    span->lin = lin;
    span->lin_stride = (int64_t)weights;
    span->mag = mag;
    span->mag_stride = (int64_t)weights;
    span->terms = job->terms;
    span->out = job->out;
    if (p->direct) {
        span->rotary_begin = job->rotary_offset;
        span->content_count[0] = job->rotary_offset;
        span->content_begin[1] = job->rotary_offset + job->rotary_dim;
        span->content_count[1] = job->head_dim - span->content_begin[1];
        span->row_bytes = (int32_t)tria_dtype_row_bytes(job->rows->tensor->dtype, job->head_dim);
    } else {
        p->source = TRIA_SOURCE_F32;
        span->content_begin[0] = 2 * span->n_freq;
        span->content_count[0] = round_lanes(job->head_dim - job->rotary_dim);
    }
    for (size_t v = 0; v < n_vectors; v++) {
        const float *stored = job->lin[v / (size_t)job->n_lin] + v % (size_t)job->n_lin * (size_t)dim;
        if (job->k_state == TRIA_K_HADAMARD) {
            memcpy(p->row, stored, (size_t)dim * sizeof(float));
            tria_hadamard_undo_f32(p->row, dim, job->hadamard_size, job->hadamard_signs);
            stored = p->row;
        }
        to_planes(job, span, stored, lin + v * weights);
        repeat_weights(kernels, lin + v * weights,
                       2 * span->n_freq + round_lanes(job->head_dim - job->rotary_dim));
    }
    if (p->with_mag) {
        for (int32_t h = 0; h < job->n_heads; h++) {
            float *padded = mag + h * span->mag_stride;
            memset(padded, 0, (size_t)span->n_freq * sizeof(float));
            memcpy(padded, job->mag[h], (size_t)(job->rotary_dim / 2) * sizeof(float));
            repeat_weights(kernels, padded, span->n_freq);
        }
    }
    if (job->n_lin > 1) {
        memset(no_lin, 0, weights * sizeof(float));
        for (int32_t h = 0; h < job->n_heads; h++) {
            p->best_heads[h] = p->best + (size_t)h * TRIA_ROW_BLOCK;
        }
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
static void score_offsets(const tria_cpu_kernels *kernels, const prepared *p, const tria_score_span *rows)
{
    const tria_score_job *job = p->job;
    const tria_span_kernel(*score)[2] = kernels->score[p->source];
    bool interleaved = p->direct && job->rope_style != TRIA_ROPE_HALF;
    for (int32_t done = 0; done < rows->n_rows; done += TRIA_ROW_BLOCK) {
        tria_score_span span = *rows;
        int32_t left = rows->n_rows - done;
        span.rows += done * span.row_stride;
        span.n_rows = left < TRIA_ROW_BLOCK ? left : TRIA_ROW_BLOCK;
        span.first += done;
        span.lin_stride = rows->lin_stride * job->n_lin;
        span.terms = NULL;
        if (span.scales != NULL) {
            span.scales += done * span.scale_stride;
        }
        int32_t first = span.first;
        score[interleaved][0](&span);
        span.out = p->best_heads;
        span.first = 0;
        for (int32_t o = 1; o < job->n_lin; o++) {
            span.lin += rows->lin_stride;
            score[interleaved][0](&span);
            for (int32_t h = 0; h < rows->n_heads; h++) {
                keep_larger(rows->out[h] + first, p->best_heads[h], span.n_rows);
            }
        }
        if (p->with_mag) {
            span.lin = p->no_lin;
            span.lin_stride = 0;
            score[interleaved][1](&span);
        }
        for (int32_t h = 0; h < rows->n_heads; h++) {
            for (int32_t i = 0; i < span.n_rows; i++) {
                rows->out[h][first + i] += (p->with_mag ? p->best_heads[h][i] : 0.0f) +
                                           (rows->terms != NULL ? rows->terms[h][first + i] : 0.0f);
            }
        }
    }
}

static void score_span(const tria_cpu_kernels *kernels, const prepared *p, const tria_score_span *span)
{
    if (p->job->n_lin > 1) {
        score_offsets(kernels, p, span);
    } else {
        bool interleaved = p->direct && p->job->rope_style != TRIA_ROPE_HALF;
        kernels->score[p->source][interleaved][p->with_mag](span);
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

/* Rows [first, first + n) of the job, which lie evenly spaced. */
static void score_even_rows(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t n)
{
    static const float one = 1.0f;
    const tria_rows *rows = p->job->rows;
    const tria_tensor *tensor = rows->tensor;
    tria_score_span span = p->span;
    int32_t row = p->job->first_row + first;
    span.rows = tria_rows_at(rows, row);
    span.row_stride = tensor->token_stride;
    span.n_rows = n;
    span.first = first;
    if (rows->page_table == NULL) {
        span.prefetch = HEAD_CHUNK * span.row_stride;
    } else if (first + n < p->job->n_rows) {
        span.prefetch = tria_rows_at(rows, row + n) - span.rows;
    }
    if (p->source == TRIA_SOURCE_INT8 || p->source == TRIA_SOURCE_FP8) {
        span.scales = (const unsigned char *)&one;
        if (tensor->scale_kind == TRIA_SCALE_TENSOR) {
            span.scales = (const unsigned char *)&tensor->scale;
        } else if (tensor->scale_kind == TRIA_SCALE_HEAD) {
            span.scales = rows->scale_base;
        } else if (tensor->scale_kind == TRIA_SCALE_ROW) {
            span.scales = row_scale_at(rows, row);
            span.scale_stride = tensor->scale_token_stride;
        }
    }
    score_span(kernels, p, &span);
}

static void score_decoded_rows(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t n)
{
    tria_score_span span = p->span;
    int64_t stride = p->block_stride;
    for (int32_t i = 0; i < n; i++) {
        decode_row(p, p->job->first_row + first + i, p->block + i * stride);
    }
    span.rows = (const unsigned char *)p->block;
    span.row_stride = stride * (int64_t)sizeof(float);
    span.n_rows = n;
    span.first = first;
    score_span(kernels, p, &span);
}

/* How many rows from `row` on lie evenly spaced, at most n. */
static int32_t even_rows(const tria_rows *rows, int32_t row, int32_t n)
{
    if (rows->page_table == NULL) {
        return n;
    }
    int32_t left = rows->tokens_per_page - row % rows->tokens_per_page;
    return left < n ? left : n;
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
static void score_range(const tria_cpu_kernels *kernels, const prepared *p, int32_t first, int32_t end)
{
    while (first < end) {
        int32_t n = end - first;
        if (p->direct) {
            n = even_rows(p->job->rows, p->job->first_row + first, n);
            score_even_rows(kernels, p, first, n);
        } else {
            n = n < TRIA_ROW_BLOCK ? n : TRIA_ROW_BLOCK;
            score_decoded_rows(kernels, p, first, n);
        }
        first += n;
    }
}

/* The same, heads with and without content terms apart. */
static void score_heads(const tria_cpu_kernels *kernels, const prepared *all, int32_t first, int32_t end)
{
    const tria_score_job *job = all->job;
    const uint8_t *has = job->has_content;
    for (int32_t h = 0, next; h < job->n_heads; h = next) {
        next = h + 1;
        while (next < job->n_heads && (has == NULL || has[next] == has[h])) {
            next++;
        }
        prepared part = *all;
        part.span.n_heads = next - h;
        part.span.lin += h * job->n_lin * part.span.lin_stride;
        part.span.mag += h * part.span.mag_stride;
        part.span.out += h;
        part.span.terms = job->terms != NULL ? job->terms + h : NULL;
        if (has != NULL && !has[h]) {
            memset(part.span.content_count, 0, sizeof(part.span.content_count));
        }
        score_range(kernels, &part, first, end);
    }
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Whether the rows of two jobs lie in the same pages of memory, give or take one. */
static bool side_by_side(const tria_rows *a, const tria_rows *b)
{
    const uintptr_t x = (uintptr_t)a->head_base, y = (uintptr_t)b->head_base;
    return (x > y ? x - y : y - x) < PAGE_BYTES;
}

/* HEAD_CHUNK rows of a job from `first` on, and what the next chunks need of it fetched ahead. */
static void score_chunk(const tria_cpu_kernels *kernels, const prepared *all, int32_t index, int32_t first)
{
    const prepared *p = &all[index];
    const int32_t n_rows = p->job->n_rows, next = first + HEAD_CHUNK;
    fetch_scores(p->job, next, smaller(n_rows, next + HEAD_CHUNK));
    if (index == 0 || !side_by_side(p->job->rows, all[index - 1].job->rows)) {
        translate_pages(p, next + HEAD_CHUNK, smaller(n_rows, next + 2 * HEAD_CHUNK));
    }
    score_heads(kernels, p, first, smaller(n_rows, next));
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
    for (int32_t chunk = 0; chunk < longest; chunk += MOMENTS_CHUNK) {
        for (int32_t first = chunk; first < smaller(longest, chunk + MOMENTS_CHUNK); first += HEAD_CHUNK) {
            for (int32_t j = 0; j < n_jobs; j++) {
                score_chunk(kernels, all, j, first);
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

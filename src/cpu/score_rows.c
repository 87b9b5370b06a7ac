/* score_rows.c - a job's rows, wherever they lie, handed to the loops in the order memory likes best. */
#include "cpu/score_prepare.h"
#include "tria/model.h"

#include <math.h>
#include <string.h>

/* The smallest pages that memory comes in. */
#define PAGE_BYTES 4096

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

size_t tria_score_scratch_size(int32_t dim, int32_t n_heads, int32_t n_lin, int32_t n_jobs)
{
    return tria_prepared_bytes(n_jobs) + (size_t)n_jobs * tria_prepared_scratch(dim, n_heads, n_lin);
}

/* Non-finite scores of any offset must show. */
static void keep_larger(float *best, const float *other, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        best[i] = other[i] > best[i] || isnan(other[i]) ? other[i] : best[i];
    }
}

/* agg = max: a dot product per offset; what does not depend on the offset is added at the end. */
static void score_offsets(const tria_span_kernel *score, const tria_prepared *p,
                          const tria_score_span *rows)
{
    const tria_score_job *job = p->job;
    for (int32_t done = 0; done < rows->n_rows; done += TRIA_ROW_BLOCK) {
        tria_score_span span = *rows;
        int32_t left = rows->n_rows - done;
        span.rows += done * span.row_stride;
        span.n_rows = left < TRIA_ROW_BLOCK ? left : TRIA_ROW_BLOCK;
        span.next = left > TRIA_ROW_BLOCK ? span.rows + span.n_rows * span.row_stride : rows->next;
        span.n_ahead = 0;
        if (rows->n_ahead > done) {
            span.n_ahead = smaller(rows->n_ahead - done, span.n_rows);
            span.ahead += done * span.ahead_step;
        }
        span.first += done;
        span.terms = NULL;
        span.scales = span.scales != NULL ? span.scales + done : NULL;
        int32_t first = span.first;
        score[0](&span);
        span.n_ahead = 0; /* fetched once is enough for all offsets */
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

/* By loops without and with magnitudes. */
static void score_span(const tria_span_kernel *score, const tria_prepared *p, const tria_score_span *span)
{
    if (p->job->n_lin > 1) {
        score_offsets(score, p, span);
    } else {
        score[p->with_mag](span);
    }
}

/* What the rows of a tensor with scales are multiplied by. */
static void decode_scales(const tria_prepared *p, int32_t first, int32_t n, float *scales)
{
    const tria_rows *rows = p->job->rows;
    const float factor = p->source == TRIA_SOURCE_FP8 ? p->span.fp8.factor : 1.0f;
    float scale = tria_rows_scale(rows, first);
    for (int32_t i = 0; i < n; i++) {
        scale = rows->tensor->scale_kind == TRIA_SCALE_ROW ? tria_rows_scale(rows, first + i) : scale;
        scales[i] = scale * factor;
    }
}

/* What to fetch while n rows from `first` on are scored: as many of the next chunk. The jobs of a band
 * share out its rows in the order of memory, which serves it faster than the rows of one head after
 * another. */
static void fetch_ahead(const tria_prepared *p, int32_t first, int32_t n, tria_score_span *span)
{
    const tria_rows *rows = p->job->rows;
    const int32_t nth = first % TRIA_HEAD_CHUNK, chunk = first - nth + TRIA_HEAD_CHUNK;
    const int32_t n_chunk = smaller(p->job->n_rows - chunk, TRIA_HEAD_CHUNK);
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
static void score_decoded_rows(const tria_cpu_kernels *kernels, const tria_prepared *p, int32_t first,
                               int32_t n)
{
    const tria_score_job *job = p->job;
    tria_score_span span = p->span;
    span.rotary_begin = 0;
    span.content_begin[0] = 2 * span.n_freq;
    span.content_count[0] = tria_round_lanes(job->head_dim - job->rotary_dim);
    span.content_count[1] = 0;
    for (int32_t i = 0; i < n || i % kernels->rows != 0; i++) { /* the last one again to fill the tile */
        tria_prepared_decode(p, job->first_row + first + smaller(i, n - 1), p->block + i * p->block_stride);
    }
    span.rows = (const unsigned char *)p->block;
    span.row_stride = p->block_stride * (int64_t)sizeof(float);
    span.row_bytes = 0;
    span.next = span.rows;
    span.n_rows = n;
    span.first = first;
    score_span(kernels->score[TRIA_SOURCE_F32][false], p, &span);
}

/* Rows [first, first + n) of the job, evenly spaced from `rows` on; `next`: the row after them. */
static void score_even_rows(const tria_cpu_kernels *kernels, const tria_prepared *p, int32_t first,
                            int32_t n, const unsigned char *rows, int64_t stride, const unsigned char *next)
{
    float scales[TRIA_HEAD_CHUNK];
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
    if (p->score_bytes != NULL) {
        p->score_bytes(&span);
        span.n_ahead = 0; /* fetched once is enough */
    }
    if (!p->all_in_bytes) {
        score_span(p->score, p, &span);
    }
    /* A negative scale changes the sign of a key, but not that of its magnitudes. */
    for (int32_t i = 0; scaled && p->with_mag && i < n; i++) {
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
static void gather_tile(const tria_prepared *p, int32_t row, int32_t n)
{
    const tria_score_job *job = p->job;
    unsigned char *to = (unsigned char *)p->block;
    for (int32_t r = 0; r < p->tile_rows; r++) {
        const int32_t soon = smaller(row + r + TRIA_HEAD_CHUNK / 2, job->first_row + job->n_rows - 1);
        for (int32_t at = 0; at < p->span.row_bytes; at += TRIA_LINE_BYTES) {
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

/* Rows [first, end) of a job, at most TRIA_HEAD_CHUNK: whole tiles of evenly spaced ones where they lie,
 * others gathered. */
static void score_direct_rows(const tria_cpu_kernels *kernels, const tria_prepared *p, int32_t first,
                              int32_t end, const unsigned char *after)
{
    const tria_rows *rows = p->job->rows;
    while (first < end) {
        const int32_t row = p->job->first_row + first;
        const unsigned char *at = tria_rows_at(rows, row);
        int64_t stride = rows->tensor->token_stride;
        int32_t n = p->chunks.n > 1 ? 0 : even_rows(rows, row, end - first);
        n -= n % p->tile_rows;
        if (n == 0) {
            n = smaller(end - first, p->tile_rows);
            gather_tile(p, row, n);
            at = (const unsigned char *)p->block;
            stride = p->span.row_bytes;
        }
        score_even_rows(kernels, p, first, n, at, stride,
                        first + n < end ? tria_rows_at(rows, row + n) : after);
        first += n;
    }
}

/* Has the pages of memory that hold rows [first, end) translated, all at once: each one when its rows are
 * reached would hold up everything for as long as it takes. Takes another line of each page, as lines
 * equally far from their pages' starts compete for few places in the caches. Compilers drop calls of
 * functions that only fetch ahead as having no effect; not so when inlined. */
static inline __attribute__((always_inline)) void translate_pages(const tria_prepared *p, int32_t first,
                                                                  int32_t end)
{
    const tria_rows *rows = p->job->rows;
    if (p->direct && rows->page_table == NULL && first < end) {
        const unsigned char *row = tria_rows_at(rows, p->job->first_row + first);
        const int64_t size = (end - first) * rows->tensor->token_stride;
        for (int64_t at = 0; at < size; at += PAGE_BYTES - TRIA_LINE_BYTES) {
            __builtin_prefetch(row + at, 0, 2);
        }
    }
}

/* Rows [first, end) of a job. */
static void score_range(const tria_cpu_kernels *kernels, const tria_prepared *p, int32_t first, int32_t end,
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
static bool continues_band(const tria_prepared *p, const tria_prepared *before)
{
    const tria_rows *a = before->job->rows, *b = p->job->rows;
    return p->direct && before->direct && a->page_table == NULL && b->page_table == NULL &&
           b->head_base == a->head_base + before->span.row_bytes &&
           a->tensor->token_stride == b->tensor->token_stride &&
           before->span.row_bytes == p->span.row_bytes && before->job->first_row == p->job->first_row &&
           before->job->n_rows == p->job->n_rows;
}

static void find_bands(tria_prepared *all, int32_t n_jobs)
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
static const unsigned char *row_after(const tria_prepared *all, int32_t n_jobs, int32_t index,
                                      int32_t first)
{
    const tria_score_job *job = all[index].job;
    const bool again = index + 1 == n_jobs;
    const tria_score_job *other = all[again ? 0 : index + 1].job;
    const int32_t row = again ? first + TRIA_HEAD_CHUNK : first;
    return row < other->n_rows ? tria_rows_at(other->rows, other->first_row + row)
                               : tria_rows_at(job->rows, job->first_row);
}

/* TRIA_HEAD_CHUNK rows of a job from `first` on, and what the next chunks need of it fetched ahead. */
static void score_chunk(const tria_cpu_kernels *kernels, const tria_prepared *all, int32_t n_jobs,
                        int32_t index, int32_t first)
{
    const tria_prepared *p = &all[index];
    const int32_t n_rows = p->job->n_rows, next = first + TRIA_HEAD_CHUNK;
    if (first >= n_rows) {
        return;
    }
    if (index == 0 || !side_by_side(p->job->rows, all[index - 1].job->rows)) {
        translate_pages(p, next + TRIA_HEAD_CHUNK, smaller(n_rows, next + 2 * TRIA_HEAD_CHUNK));
    }
    score_range(kernels, p, first, smaller(n_rows, next), row_after(all, n_jobs, index, first));
}

void tria_score_rows(const tria_cpu_kernels *kernels, const tria_score_job *jobs, int32_t n_jobs,
                     void *scratch)
{
    tria_prepared *all = scratch;
    unsigned char *next = (unsigned char *)scratch + tria_prepared_bytes(n_jobs);
    int32_t longest = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        next += tria_prepare(kernels, &jobs[j], next, &all[j]);
        longest = jobs[j].n_rows > longest ? jobs[j].n_rows : longest;
        for (int32_t h = 0; jobs[j].moments != NULL && h < jobs[j].n_heads; h++) {
            jobs[j].moments[h] = (tria_moments){0.0, 0.0, 0};
        }
    }
    find_bands(all, n_jobs);
    for (int32_t chunk = 0; chunk < longest; chunk += TRIA_MOMENTS_CHUNK) {
        for (int32_t first = chunk; first < smaller(longest, chunk + TRIA_MOMENTS_CHUNK);
             first += TRIA_HEAD_CHUNK) {
            for (int32_t j = 0; j < n_jobs; j++) {
                score_chunk(kernels, all, n_jobs, j, first);
            }
        }
        for (int32_t j = 0; j < n_jobs; j++) {
            int32_t n = smaller(jobs[j].n_rows - chunk, TRIA_MOMENTS_CHUNK);
            for (int32_t h = 0; jobs[j].moments != NULL && n > 0 && h < jobs[j].n_heads; h++) {
                tria_moments moments = tria_chunk_moments(kernels, jobs[j].out[h] + chunk, n);
                tria_moments_combine(&jobs[j].moments[h], &moments);
            }
        }
    }
}

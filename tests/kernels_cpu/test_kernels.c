/*
 * Every set of kernels this machine has, against sums in double over the decoded rows: random shapes,
 * layouts, element types and key states. Plain main(), so that it also runs cross-compiled and emulated.
 *
 * TRIA_TEST_COUNT sets the number of random cases, TRIA_TEST_SEED their seed.
 */
#include "cpu/kernels.h"
#include "tria/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 20, MAX_LIN = 4, MAX_DIM = 672, MAX_ROWS = 290, MAX_CACHE = 1 << 20 };

static uint64_t state;
static int failures;
static const tria_cpu_kernels *plain; /* those under test without products of bytes */

static uint32_t bits(void)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(state >> 32);
}
static int32_t below(int32_t n)
{
    return (int32_t)(bits() % (uint32_t)n);
}
static float real(void)
{
    return (float)(int32_t)bits() / 2147483648.0F;
}

typedef struct testcase {
    tria_tensor tensor;
    tria_rows rows;
    tria_score_job job;
    int32_t pages[MAX_ROWS];
    int32_t positions[MAX_ROWS];
    float signs[MAX_DIM];
    float *tables;
    unsigned char *cache;
    float *scales;
    float lin[MAX_HEADS][MAX_LIN * MAX_DIM];
    float mag[MAX_HEADS][MAX_DIM];
    float terms[MAX_HEADS][MAX_ROWS];
    float out[MAX_HEADS][MAX_ROWS];
    float alone[MAX_HEADS][MAX_ROWS];
    uint8_t has_content[MAX_HEADS];
    const float *lin_heads[MAX_HEADS];
    const float *mag_heads[MAX_HEADS];
    const float *terms_heads[MAX_HEADS];
    float *out_heads[MAX_HEADS];
    tria_moments moments[MAX_HEADS];
    void *scratch;
} testcase;

static void fail(const testcase *c, const tria_cpu_kernels *kernels, const char *what, int32_t head,
                 int32_t row, double got, double expected)
{
    const tria_score_job *j = &c->job;
    failures++;
    printf(
        "%s: %s at head %d row %d: %.9g, expected %.9g (%s, dim %d/%d, rotary %d+%d, style %d, state %d, "
        "heads %d, lin %d, mag %d, content %d, rows %d, pack %d, scale %d, pages %d)\n",
        tria_cpu_kernels_name(kernels), what, head, row, got, expected, tria_dtype_name(c->tensor.dtype),
        j->head_dim, c->tensor.dim, j->rotary_offset, j->rotary_dim, j->rope_style, j->k_state, j->n_heads,
        j->n_lin, j->mag != NULL, j->has_content == NULL ? -1 : j->has_content[head], j->n_rows,
        c->tensor.pack, c->tensor.scale_kind, j->rows->page_table != NULL);
}

/* Bytes whose values are ordinary numbers in the element type. */
static void fill_cache(testcase *c)
{
    for (int32_t i = 0; i < MAX_CACHE; i += 4) {
        uint32_t word = bits();
        if (c->tensor.dtype == TRIA_DTYPE_F32) {
            const float x = real() * 4.0F;
            memcpy(&word, &x, 4);
        } else if (c->tensor.dtype == TRIA_DTYPE_F16) {
            word &= 0xbfffbfffU; /* below 2 */
        } else if (c->tensor.dtype == TRIA_DTYPE_BF16) {
            word = (word & 0x81ff81ffU) | 0x3e003e00U;
        } else if (c->tensor.dtype != TRIA_DTYPE_INT8) {
            word &= 0xbfbfbfbfU; /* scales of blocks stay finite too */
            word |= c->tensor.dtype == TRIA_DTYPE_FP8_E4M3FNUZ ? 0x01010101U : 0U; /* -0 would be NaN */
        }
        memcpy(c->cache + i, &word, 4);
    }
}

static void make_layout(testcase *c)
{
    tria_tensor *t = &c->tensor;
    const int32_t block = tria_dtype_block(t->dtype);
    const int64_t unit = tria_dtype_block_bytes(t->dtype);
    const int64_t row = tria_dtype_row_bytes(t->dtype, t->dim);
    const int32_t gap = below(3);
    t->base = c->cache;
    t->token_stride = row + gap * unit;
    if (block == 1 && below(8) == 0) {
        t->pack = 1 << below(3);
        while (t->dim % t->pack != 0) {
            t->pack /= 2;
        }
        t->token_stride = t->pack * unit;
        t->dim_stride = (MAX_ROWS + gap) * t->token_stride;
    }
    t->scale_kind = TRIA_SCALE_NONE;
    if (t->dtype == TRIA_DTYPE_INT8 || (block == 1 && below(4) == 0)) {
        t->scale_kind = TRIA_SCALE_TENSOR + below(3);
        t->scale = real();
        t->scales = c->scales;
        t->scale_token_stride = 4 * (1 + gap);
        t->scale_page_stride = 4 * (1 + gap) * 16;
    }
    c->rows.tensor = t;
    c->rows.head_base = c->cache;
    c->rows.scale_base = t->scale_kind >= TRIA_SCALE_HEAD ? (unsigned char *)c->scales : NULL;
    c->rows.page_table = NULL;
    if (t->pack == 0 && below(3) == 0) {
        c->rows.page_table = c->pages;
        c->rows.tokens_per_page = 1 + below(16);
        c->rows.n_pages = MAX_ROWS;
        t->page_stride = c->rows.tokens_per_page * t->token_stride;
        const int32_t shift = below(MAX_ROWS);
        for (int32_t p = 0; p < MAX_ROWS; p++) {
            c->pages[p] = (p * 7 + shift) % MAX_ROWS; /* 7 and MAX_ROWS have no common factor */
        }
        const int64_t size = MAX_ROWS * t->page_stride;
        if (size > MAX_CACHE) {
            c->rows.page_table = NULL;
        }
    }
}

/* In the order of the stored dims; under a transform nothing depends on the padding behind head_dim. */
static void make_lin(const testcase *c, float *lin)
{
    const tria_score_job *j = &c->job;
    for (int32_t d = 0; d < c->tensor.dim; d++) {
        lin[d] = d < j->head_dim || j->k_state != TRIA_K_HADAMARD ? real() : 0.0F;
        lin[d] *= j->hadamard_signs != NULL ? j->hadamard_signs[d] : 1.0F;
    }
    if (j->k_state == TRIA_K_HADAMARD) {
        tria_hadamard_undo_f32(lin, c->tensor.dim, j->hadamard_size, NULL);
    }
}

static void make_case(testcase *c, int32_t dtype)
{
    tria_score_job *j = &c->job;
    memset(&c->tensor, 0, sizeof(c->tensor));
    memset(j, 0, sizeof(*j));
    c->tensor.dtype = dtype;
    const bool blocks = tria_dtype_block(dtype) > 1;
    const bool regular = below(2) == 0;
    j->k_state = below(4) == 0 ? 1 + below(2) : TRIA_K_ROTATED;
    j->head_dim = regular  ? 32 * (1 + below(below(4) == 0 ? 20 : 8))
                  : blocks ? 32 * (1 + below(4))
                           : 2 + below(150);
    j->rotary_dim = regular ? 32 * (1 + below(j->head_dim / 32)) : 2 * below(j->head_dim / 2 + 1);
    j->rotary_offset = regular ? 16 * below((j->head_dim - j->rotary_dim) / 16 + 1)
                               : below(j->head_dim - j->rotary_dim + 1);
    j->rope_style = below(2);
    c->tensor.dim = j->head_dim + (blocks ? 32 : 1) * below(2);
    if (blocks && below(3) == 0) { /* a head that ends within a block */
        j->head_dim -= 16;
        j->rotary_dim = j->rotary_dim > 32 ? j->rotary_dim - 32 : 0;
        j->rotary_offset = 16 * below((j->head_dim - j->rotary_dim) / 16 + 1);
    }
    if (j->k_state == TRIA_K_HADAMARD) {
        j->hadamard_size = 1;
        while (c->tensor.dim % (2 * j->hadamard_size) == 0) {
            j->hadamard_size *= 2;
        }
        j->hadamard_signs = below(2) == 0 ? c->signs : NULL;
    }
    make_layout(c);
    j->rows = &c->rows;
    j->first_row = below(20);
    j->n_rows = 1 + below((below(4) == 0 ? MAX_ROWS : 90) - j->first_row);
    j->n_heads = 1 + below(below(4) == 0 ? MAX_HEADS : 6);
    j->n_lin = below(4) == 0 ? 1 + below(MAX_LIN) : 1;
    j->rotation_tables = c->tables;
    j->positions = below(2) == 0 ? c->positions : NULL;
    j->lin = c->lin_heads;
    j->mag = below(4) == 0 ? NULL : c->mag_heads;
    j->terms = below(4) == 0 ? c->terms_heads : NULL;
    j->has_content = below(3) == 0 && j->k_state != TRIA_K_HADAMARD ? c->has_content : NULL;
    j->out = c->out_heads;
    j->moments = c->moments;
    for (int32_t h = 0; h < j->n_heads; h++) {
        c->has_content[h] = below(2) == 0;
        for (int32_t o = 0; o < j->n_lin; o++) {
            make_lin(c, c->lin[h] + o * c->tensor.dim);
        }
        for (int32_t f = 0; f < j->rotary_dim / 2; f++) {
            c->mag[h][f] = real();
        }
        for (int32_t i = 0; i < MAX_ROWS; i++) {
            c->terms[h][i] = real();
        }
    }
    for (int32_t i = 0; i < MAX_ROWS; i++) {
        c->positions[i] = (int32_t)(bits() >> 1);
        c->scales[i] = real();
    }
    fill_cache(c);
}

/* The frequencies of the test, and the tables that stand for them. */
static double frequency(int32_t f)
{
    return 1.0 / (1.0 + 3.0 * f);
}

static void make_tables(float *tables, int32_t n_freq)
{
    for (int32_t digit = 0; digit < 3; digit++) {
        for (int32_t v = 0; v < 2048; v++) {
            for (int32_t f = 0; f < n_freq; f++) {
                const double angle = ldexp(v, 11 * digit) * frequency(f);
                float *entry = tables + (((int64_t)digit * 2048 + v) * n_freq + f) * 2;
                entry[0] = (float)cos(angle);
                entry[1] = (float)sin(angle);
            }
        }
    }
}

/* Whether a stored dim enters a head's score. */
static bool enters(const tria_score_job *j, int32_t head, int32_t d)
{
    return j->has_content == NULL || j->has_content[head] != 0 ||
           (d >= j->rotary_offset && d < j->rotary_offset + j->rotary_dim);
}

static double oracle(const testcase *c, int32_t head, int32_t row, double *size)
{
    const tria_score_job *j = &c->job;
    const int32_t n_freq = j->rotary_dim / 2;
    const int32_t second = j->rope_style == TRIA_ROPE_HALF ? n_freq : 1;
    const int32_t step = j->rope_style == TRIA_ROPE_HALF ? 1 : 2;
    double stored[MAX_DIM], key[MAX_DIM];
    double best = -INFINITY;
    tria_rows_decode_f64(j->rows, j->first_row + row, c->tensor.dim, stored);
    memcpy(key, stored, sizeof(key));
    if (j->k_state == TRIA_K_HADAMARD) {
        tria_hadamard_undo_f64(key, c->tensor.dim, j->hadamard_size, j->hadamard_signs);
    }
    if (j->k_state == TRIA_K_RAW) {
        for (int32_t f = 0; f < n_freq; f++) {
            double *re = &stored[j->rotary_offset + f * step], *im = re + second;
            const double p = j->positions != NULL ? j->positions[j->first_row + row] : j->first_row + row;
            const double x = *re, y = *im, angle = p * frequency(f);
            *re = x * cos(angle) - y * sin(angle);
            *im = x * sin(angle) + y * cos(angle);
        }
    }
    *size = 0.0;
    const int32_t dims = j->k_state == TRIA_K_HADAMARD ? c->tensor.dim : j->head_dim;
    for (int32_t o = 0; o < j->n_lin; o++) {
        double sum = 0.0, absolute = 0.0;
        for (int32_t d = 0; d < dims; d++) {
            const double weight = (double)c->lin[head][o * c->tensor.dim + d];
            const double product = enters(j, head, d) ? weight * stored[d] : 0.0;
            sum += product;
            absolute += fabs(product);
        }
        best = sum > best ? sum : best;
        *size = absolute > *size ? absolute : *size;
    }
    for (int32_t f = 0; j->mag != NULL && f < n_freq; f++) {
        const double re = key[j->rotary_offset + f * step], im = key[j->rotary_offset + f * step + second];
        best += (double)c->mag[head][f] * sqrt(re * re + im * im);
        *size += fabs((double)c->mag[head][f]) * sqrt(re * re + im * im);
    }
    return best + (j->terms != NULL ? (double)c->terms[head][row] : 0.0);
}

static void check_moments(const testcase *c, const tria_cpu_kernels *kernels, int32_t head)
{
    double mean = 0.0, m2 = 0.0, largest = 0.0;
    const int32_t n = c->job.n_rows;
    for (int32_t i = 0; i < n; i++) {
        mean += (double)c->out[head][i] / n;
        largest = fmax(largest, fabs((double)c->out[head][i]));
    }
    for (int32_t i = 0; i < n; i++) {
        m2 += ((double)c->out[head][i] - mean) * ((double)c->out[head][i] - mean);
    }
    if (c->moments[head].count != n || fabs(c->moments[head].mean - mean) > 1e-7 * largest ||
        fabs(c->moments[head].m2 - m2) > 1e-5 * m2 + 1e-12 * largest) {
        fail(c, kernels, "moments", head, -1, c->moments[head].mean, mean);
    }
}

/* Two rows of the same bytes (and position) anywhere must get the same score to the last bit. */
static void check_equal_rows(testcase *c, const tria_cpu_kernels *kernels)
{
    tria_score_job *j = &c->job;
    const int32_t from = below(j->n_rows), to = below(j->n_rows);
    const tria_tensor *t = &c->tensor;
    if (t->pack > 0 || j->k_state == TRIA_K_RAW || t->scale_kind == TRIA_SCALE_ROW || j->terms != NULL) {
        return;
    }
    memmove(tria_rows_at(&c->rows, j->first_row + to), tria_rows_at(&c->rows, j->first_row + from),
            (size_t)tria_dtype_row_bytes(t->dtype, t->dim));
    tria_score_rows(kernels, j, 1, c->scratch);
    for (int32_t h = 0; h < j->n_heads; h++) {
        if (memcmp(&c->out[h][from], &c->out[h][to], sizeof(float)) != 0) {
            fail(c, kernels, "equal rows", h, to, (double)c->out[h][to], (double)c->out[h][from]);
        }
    }
}

/* The first element is not finite: so are its row's scores, and nobody else's. */
static void check_not_finite(testcase *c, const tria_cpu_kernels *kernels)
{
    static const uint32_t patterns[TRIA_DTYPE_COUNT] = {0x7f800000U, 0xfc00U, 0x7fc0U, 0x7fU, 0x80U, 0x7cU};
    tria_score_job *j = &c->job;
    const int32_t dtype = c->tensor.dtype, row = below(j->n_rows);
    if (dtype > TRIA_DTYPE_FP8_E5M2 || c->tensor.pack > 0) {
        return;
    }
    memcpy(tria_rows_at(&c->rows, j->first_row + row), &patterns[dtype],
           (size_t)tria_dtype_block_bytes(dtype));
    tria_score_rows(kernels, j, 1, c->scratch);
    for (int32_t h = 0; h < j->n_heads; h++) {
        for (int32_t i = 0; i < j->n_rows; i++) {
            if ((isfinite(c->out[h][i]) != 0) == (i == row && enters(j, h, 0))) {
                fail(c, kernels, "not finite", h, i, (double)c->out[h][i], NAN);
            }
        }
        const int64_t n_finite = j->n_rows - enters(j, h, 0);
        if (c->moments[h].count != n_finite) {
            fail(c, kernels, "finite rows", h, row, (double)c->moments[h].count, (double)n_finite);
        }
    }
}

/* The same scores, to the last bit, of the heads as jobs of their own and of the rows as two jobs. */
static void check_jobs(testcase *c, const tria_cpu_kernels *kernels)
{
    tria_score_job jobs[4];
    const tria_score_job *j = &c->job;
    const int32_t heads[3] = {0, below(j->n_heads), j->n_heads}, rows[3] = {0, below(j->n_rows), j->n_rows};
    const float *terms[4][MAX_HEADS];
    float *out[4][MAX_HEADS];
    int32_t n_jobs = 0;
    memcpy(c->alone, c->out, sizeof(c->out));
    memset(c->out, 0x7f, sizeof(c->out));
    for (int32_t i = 0; i < 4; i++) {
        const int32_t first = heads[i % 2], row = rows[i / 2];
        tria_score_job *job = &jobs[n_jobs];
        *job = *j;
        job->n_heads = heads[i % 2 + 1] - first;
        job->first_row = j->first_row + row;
        job->n_rows = rows[i / 2 + 1] - row;
        job->lin = j->lin + first;
        job->mag = j->mag != NULL ? j->mag + first : NULL;
        job->has_content = j->has_content != NULL ? j->has_content + first : NULL;
        job->terms = j->terms != NULL ? terms[n_jobs] : NULL;
        job->out = out[n_jobs];
        job->moments = NULL;
        for (int32_t h = 0; h < job->n_heads; h++) {
            terms[n_jobs][h] = c->terms[first + h] + row;
            out[n_jobs][h] = c->out[first + h] + row;
        }
        n_jobs += job->n_heads > 0 && job->n_rows > 0;
    }
    tria_score_rows(kernels, jobs, n_jobs, c->scratch);
    for (int32_t h = 0; h < j->n_heads; h++) {
        for (int32_t i = 0; i < j->n_rows; i++) {
            if (memcmp(&c->out[h][i], &c->alone[h][i], sizeof(float)) != 0) {
                fail(c, kernels, "several jobs", h, i, (double)c->out[h][i], (double)c->alone[h][i]);
                return;
            }
        }
    }
}

static void check_scores(testcase *c, const tria_cpu_kernels *kernels, const char *what, double least)
{
    const tria_score_job *j = &c->job;
    const double state_factor = j->k_state == TRIA_K_ROTATED ? 1.0 : 2.0; /* transforms round too */
    memset(c->out, 0x7f, sizeof(c->out));
    tria_score_rows(kernels, j, 1, c->scratch);
    for (int32_t h = 0; h < j->n_heads; h++) {
        for (int32_t i = 0; i < j->n_rows; i++) {
            double size;
            const double expected = oracle(c, h, i, &size);
            if (!(fabs((double)c->out[h][i] - expected) <=
                  state_factor * 5e-7 * (size + (h == 0 ? least : 1.0)))) {
                fail(c, kernels, what, h, i, (double)c->out[h][i], expected);
                return;
            }
        }
    }
}

/* Weights of the first head that whole numbers do not suit, too small for steps or most of them small
 * beside the largest of their block, are not made such, and do not touch what other heads get. */
static void check_unsuited_weights(testcase *c, const tria_cpu_kernels *kernels, bool coarse)
{
    tria_score_job *j = &c->job;
    float lin[MAX_DIM];
    if (j->mag != NULL || j->terms != NULL || j->n_lin > 1 || j->k_state != TRIA_K_ROTATED) {
        return;
    }
    tria_score_rows(kernels, j, 1, c->scratch);
    memcpy(c->alone, c->out, sizeof(c->out));
    memcpy(lin, c->lin[0], sizeof(lin));
    for (int32_t d = 0; d < MAX_DIM; d++) {
        c->lin[0][d] *= coarse ? (d % 16 == 0 ? 1.0F : 1e-4F) : ldexpf(1.0F, -115);
    }
    tria_score_rows(plain, j, 1, c->scratch);
    memcpy(c->alone[0], c->out[0], sizeof(c->out[0]));
    check_scores(c, kernels, "unsuited weights", coarse ? 1.0 : ldexp(1.0, -115));
    for (int32_t h = 0; h < j->n_heads; h++) {
        if (memcmp(c->out[h], c->alone[h], (size_t)j->n_rows * sizeof(float)) != 0) {
            fail(c, kernels, "head beside unsuited weights", h, 0, (double)c->out[h][0],
                 (double)c->alone[h][0]);
        }
    }
    memcpy(c->lin[0], lin, sizeof(lin));
}

static void check_case(testcase *c, const tria_cpu_kernels *kernels)
{
    check_scores(c, kernels, "score", 1.0);
    for (int32_t h = 0; h < c->job.n_heads; h++) {
        check_moments(c, kernels, h);
    }
    check_jobs(c, kernels);
    check_unsuited_weights(c, kernels, false);
    check_unsuited_weights(c, kernels, true);
    check_equal_rows(c, kernels);
    check_not_finite(c, kernels);
}

/* Every 16-bit and 8-bit pattern, through a head per dim that picks it out. */
static void check_conversions(testcase *c, const tria_cpu_kernels *kernels, int32_t dtype, int32_t n_values)
{
    enum { DIM = 32 };
    static float out[DIM][65536 / DIM];
    float *heads[DIM];
    const float *lin[DIM];
    const int32_t bytes = tria_dtype_block_bytes(dtype);
    const float one = 1.0F;
    memset(&c->tensor, 0, sizeof(c->tensor));
    memset(&c->job, 0, sizeof(c->job));
    c->tensor = (tria_tensor){.base = c->cache, .dtype = dtype, .dim = DIM, .token_stride = DIM * bytes};
    c->rows = (tria_rows){&c->tensor, c->cache, (unsigned char *)(uintptr_t)&one, NULL, 0, 0};
    for (int32_t i = 0; i < n_values; i++) {
        const uint16_t pattern = (uint16_t)i;
        memcpy(c->cache + i * bytes, &pattern, (size_t)bytes);
        float value;
        const tria_rows single = {&c->tensor, c->cache + i * bytes, NULL, NULL, 0, 0};
        tria_rows_decode_f32(&single, 0, 1, &value);
        if (!isfinite(value)) {
            memset(c->cache + i * bytes, 0, (size_t)bytes); /* checked elsewhere */
        }
    }
    float unit[DIM][DIM] = {{0}};
    for (int32_t d = 0; d < DIM; d++) {
        unit[d][d] = 1.0F;
        heads[d] = out[d];
        lin[d] = unit[d];
    }
    c->job = (tria_score_job){.rows = &c->rows,
                              .n_rows = n_values / DIM,
                              .head_dim = DIM,
                              .rotary_dim = DIM,
                              .n_heads = DIM,
                              .n_lin = 1,
                              .lin = lin,
                              .out = heads};
    void *scratch = aligned_alloc(64, tria_score_scratch_size(DIM, DIM, 1, 1));
    tria_score_rows(kernels, &c->job, 1, scratch);
    for (int32_t i = 0; i < n_values; i++) {
        float value[DIM];
        tria_rows_decode_f32(&c->rows, i / DIM, DIM, value);
        if (!(out[i % DIM][i / DIM] == value[i % DIM])) {
            fail(c, kernels, "conversion", i % DIM, i / DIM, (double)out[i % DIM][i / DIM],
                 (double)value[i % DIM]);
            break;
        }
    }
    free(scratch);
}

static void check_grouping(const tria_cpu_kernels *kernels)
{
    enum { N = 37, HEADS = 3 };
    float x[HEADS][N], z[N];
    const float *heads[HEADS] = {x[0], x[1], x[2]};
    const tria_head_scale scales[HEADS] = {{0.5F, 1e-9F, 2.0F}, {-3.0F, 0.0F, 0.25F}, {1.0F, 0.0F, 0.0F}};
    for (int mean = 0; mean < 2; mean++) {
        for (int32_t i = 0; i < N; i++) {
            for (int32_t h = 0; h < HEADS; h++) {
                const int kind = below(4);
                x[h][i] = kind == 0 ? NAN : kind == 1 ? (below(2) == 0 ? INFINITY : -INFINITY) : real();
            }
        }
        memset(z, 0, sizeof(z));
        tria_group_rows(kernels, heads, scales, HEADS, N, mean != 0, z);
        for (int32_t i = 0; i < N; i++) {
            double sum = 0.0, best = -INFINITY;
            int count = 0;
            for (int32_t h = 0; h < HEADS; h++) {
                if (isfinite(x[h][i])) {
                    const tria_head_scale *s = &scales[h];
                    const double v =
                        ((double)x[h][i] - (double)s->mean_high - (double)s->mean_low) * (double)s->inverse;
                    sum += v;
                    best = v > best ? v : best;
                    count++;
                }
            }
            const double expected = count == 0 ? NAN : mean != 0 ? sum / count : best;
            if (count == 0 ? !isnan(z[i]) : !(fabs((double)z[i] - expected) < 1e-6)) {
                printf("%s: group row %d: %g, expected %g\n", tria_cpu_kernels_name(kernels), i,
                       (double)z[i], expected);
                failures++;
            }
        }
    }
}

/* Large means, outliers, huge values: what breaks naive sums. */
static void check_hard_moments(const tria_cpu_kernels *kernels)
{
    enum { N = 5000 };
    static float x[N];
    static uint8_t skip[N];
    for (int kind = 0; kind < 4; kind++) {
        double mean = 0.0, m2 = 0.0;
        int32_t count = 0;
        for (int32_t i = 0; i < N; i++) {
            x[i] = kind == 0 ? 1000.0F + real() : kind == 1 ? 1e30F * real() : real();
            if (kind == 2 && i == 0) {
                x[i] = 1e4F;
            }
            skip[i] = kind == 3 && below(3) == 0;
            count += skip[i] == 0;
            mean += skip[i] == 0 ? (double)x[i] : 0.0;
        }
        mean /= count;
        for (int32_t i = 0; i < N; i++) {
            m2 += skip[i] == 0 ? ((double)x[i] - mean) * ((double)x[i] - mean) : 0.0;
        }
        tria_moments moments;
        tria_moments_of(kernels, x, kind == 3 ? skip : NULL, N, &moments);
        const double sd = sqrt(m2 / count);
        if (moments.count != count || fabs(moments.mean - mean) > 1e-6 * sd ||
            fabs(moments.m2 - m2) > 2e-6 * m2) {
            printf("%s: moments %d: %.12g %.12g, expected %.12g %.12g\n", tria_cpu_kernels_name(kernels),
                   kind, moments.mean, moments.m2, mean, m2);
            failures++;
        }
    }
}

int main(void)
{
    const char *count_text = getenv("TRIA_TEST_COUNT"), *seed_text = getenv("TRIA_TEST_SEED");
    const int count = count_text != NULL ? atoi(count_text) : 500;
    const uint64_t seed = seed_text != NULL ? strtoull(seed_text, NULL, 10) : 20260101U;
    const int32_t avx512 = TRIA_CPU_AVX2 | TRIA_CPU_AVX512;
    const int32_t masks[] = {
        0, TRIA_CPU_AVX2, avx512, avx512 | TRIA_CPU_VNNI, TRIA_CPU_NEON, TRIA_CPU_NEON | TRIA_CPU_DOT};
    testcase *c = calloc(1, sizeof(*c));
    c->cache = calloc(1, MAX_CACHE + 4);
    c->scales = calloc((size_t)MAX_ROWS * 64, sizeof(float));
    c->tables = malloc(sizeof(float) * 3 * 2048 * MAX_DIM);
    c->scratch = aligned_alloc(64, tria_score_scratch_size(MAX_DIM, MAX_HEADS, MAX_LIN, 4));
    for (int32_t h = 0; h < MAX_HEADS; h++) {
        c->lin_heads[h] = c->lin[h];
        c->mag_heads[h] = c->mag[h];
        c->terms_heads[h] = c->terms[h];
        c->out_heads[h] = c->out[h];
    }
    for (size_t m = 0; m < TRIA_ARRAY_LEN(masks); m++) {
        if ((masks[m] & ~tria_cpu_features()) != 0) {
            continue;
        }
        const tria_cpu_kernels *kernels = tria_cpu_kernels_for(masks[m]);
        plain = tria_cpu_kernels_for(masks[m] & ~(TRIA_CPU_VNNI | TRIA_CPU_DOT));
        state = seed;
        for (int32_t d = 0; d < MAX_DIM; d++) {
            c->signs[d] = below(2) == 0 ? 1.0F : -1.0F;
        }
        for (int i = 0; i < count && failures < 10; i++) {
            make_case(c, i % TRIA_DTYPE_COUNT);
            if (c->job.k_state == TRIA_K_RAW) {
                make_tables(c->tables, c->job.rotary_dim / 2);
            }
            check_case(c, kernels);
        }
        check_conversions(c, kernels, TRIA_DTYPE_F16, 65536);
        check_conversions(c, kernels, TRIA_DTYPE_BF16, 65536);
        check_conversions(c, kernels, TRIA_DTYPE_FP8_E4M3FN, 256);
        check_conversions(c, kernels, TRIA_DTYPE_FP8_E4M3FNUZ, 256);
        check_conversions(c, kernels, TRIA_DTYPE_FP8_E5M2, 256);
        check_grouping(kernels);
        check_hard_moments(kernels);
        printf("%s: %d random cases, seed %llu, %d failures\n", tria_cpu_kernels_name(kernels), count,
               (unsigned long long)seed, failures);
    }
    free(c->cache);
    free(c->scales);
    free(c->tables);
    free(c->scratch);
    free(c);
    return failures == 0 ? 0 : 1;
}

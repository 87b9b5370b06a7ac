/*
 * kv_view.c - addressing and decoding of cache rows, and the checks that make both safe.
 */
#include "kv_view_internal.h"
#include "tria/model.h"

#include <math.h>
#include <string.h>

#define BLOCK 32

void tria_kv_view_init(tria_kv_view *view)
{
    const tria_kv_view defaults = TRIA_KV_VIEW_INIT;
    *view = defaults;
}

const int32_t *tria_page_table(const tria_kv_view *view, const tria_layer_view *layer_view,
                               int32_t *n_pages)
{
    bool own = layer_view->page_table != NULL;
    *n_pages = own ? layer_view->n_pages : view->n_pages;
    return own ? layer_view->page_table : view->page_table;
}

void tria_rows_init(tria_rows *rows, const tria_kv_view *view, const tria_layer_view *layer_view,
                    const tria_tensor *tensor, int32_t head)
{
    bool strided_scale = tensor->scale_kind == TRIA_SCALE_HEAD || tensor->scale_kind == TRIA_SCALE_ROW;
    rows->tensor = tensor;
    rows->head_base = (unsigned char *)tensor->base + tensor->offset + head * tensor->head_stride;
    rows->scale_base = !strided_scale ? NULL
                                      : (unsigned char *)tensor->scales + tensor->scales_offset +
                                            head * tensor->scale_head_stride;
    rows->page_table = tria_page_table(view, layer_view, &rows->n_pages);
    rows->tokens_per_page = view->tokens_per_page;
}

float tria_rows_scale(const tria_rows *rows, int32_t row)
{
    const tria_tensor *tensor = rows->tensor;
    const unsigned char *address = rows->scale_base;
    float scale;
    switch (tensor->scale_kind) {
    case TRIA_SCALE_TENSOR:
        return tensor->scale;
    case TRIA_SCALE_HEAD:
        break;
    case TRIA_SCALE_ROW:
        if (rows->page_table == NULL) {
            address += row * tensor->scale_token_stride;
        } else {
            address += rows->page_table[row / rows->tokens_per_page] * tensor->scale_page_stride +
                       row % rows->tokens_per_page * tensor->scale_token_stride;
        }
        break;
    default:
        return 1.0f;
    }
    memcpy(&scale, address, sizeof(scale));
    return scale;
}

static uint16_t load_u16(const unsigned char *p)
{
    uint16_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static float load_f32(const unsigned char *p)
{
    float value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static float load_f16(const unsigned char *p)
{
    return tria_f16_to_f32(load_u16(p));
}

static float load_bf16(const unsigned char *p)
{
    return tria_bf16_to_f32(load_u16(p));
}

static float load_e4m3fn(const unsigned char *p)
{
    return tria_fp8_e4m3fn_to_f32(*p);
}

static float load_e4m3fnuz(const unsigned char *p)
{
    return tria_fp8_e4m3fnuz_to_f32(*p);
}

static float load_e5m2(const unsigned char *p)
{
    return tria_fp8_e5m2_to_f32(*p);
}

static float load_int8(const unsigned char *p)
{
    return (float)(int8_t)*p;
}

/* A block is delta * codes + minimum, with integer codes: in double that is exact. */
typedef struct decoded_block {
    int32_t codes[BLOCK];
    float delta;
    float minimum;
} decoded_block;

/* Elements j and j + 16 share byte j: low and high nibble; bit j of `high` is code bit 4 of element j. */
static void split_nibbles(decoded_block *block, const unsigned char *nibbles, uint32_t high)
{
    for (int32_t j = 0; j < BLOCK / 2; j++) {
        block->codes[j] = (int32_t)((nibbles[j] & 0xfu) | ((high >> j) & 1u) << 4);
        block->codes[j + BLOCK / 2] =
            (int32_t)((uint32_t)(nibbles[j] >> 4) | ((high >> (j + BLOCK / 2)) & 1u) << 4);
    }
}

static void shift_codes(decoded_block *block, int32_t by)
{
    for (int32_t j = 0; j < BLOCK; j++) {
        block->codes[j] -= by;
    }
}

static uint32_t load_u32(const unsigned char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static void decode_block(int32_t dtype, const unsigned char *p, decoded_block *block)
{
    static const int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};
    block->delta = load_f16(p);
    block->minimum = 0.0f;
    switch (dtype) {
    case TRIA_DTYPE_Q8_0:
        for (int32_t j = 0; j < BLOCK; j++) {
            block->codes[j] = (int8_t)p[2 + j];
        }
        break;
    case TRIA_DTYPE_Q4_0:
        split_nibbles(block, p + 2, 0);
        shift_codes(block, 8);
        break;
    case TRIA_DTYPE_Q4_1:
        block->minimum = load_f16(p + 2);
        split_nibbles(block, p + 4, 0);
        break;
    case TRIA_DTYPE_Q5_0:
        split_nibbles(block, p + 6, load_u32(p + 2));
        shift_codes(block, 16);
        break;
    case TRIA_DTYPE_Q5_1:
        block->minimum = load_f16(p + 2);
        split_nibbles(block, p + 8, load_u32(p + 4));
        break;
    default: /* TRIA_DTYPE_IQ4_NL */
        split_nibbles(block, p + 2, 0);
        for (int32_t j = 0; j < BLOCK; j++) {
            block->codes[j] = iq4_nl_values[block->codes[j]];
        }
        break;
    }
}

void tria_tensor_chunks(const tria_tensor *tensor, tria_chunks *chunks)
{
    const int32_t block = tria_dtype_block(tensor->dtype);
    const int32_t pack = tensor->pack > 1 ? tensor->pack : 1;
    chunks->n = tensor->dim / (pack * block);
    chunks->bytes = pack * tria_dtype_block_bytes(tensor->dtype);
    chunks->stride = tensor->dim_stride != 0 ? tensor->dim_stride : chunks->bytes;
    if (chunks->stride == chunks->bytes) {
        chunks->bytes *= chunks->n;
        chunks->stride = chunks->bytes;
        chunks->n = 1;
    }
}

/* Elementwise types, chunk by chunk. REAL is the type the product of element and scale is formed in. */
#define DECODE_ELEMENTS(REAL, LOAD)                                                                        \
    for (int32_t d = 0; d < dim; d += chunk, p += stride) {                                                \
        int32_t n = dim - d < chunk ? dim - d : chunk;                                                     \
        for (int32_t e = 0; e < n; e++) {                                                                  \
            out[d + e] = (REAL)LOAD(p + e * size) * (REAL)scale;                                           \
        }                                                                                                  \
    }                                                                                                      \
    break

#define DEFINE_DECODE(NAME, REAL)                                                                          \
    void NAME(const tria_rows *rows, int32_t row, int32_t dim, REAL *out)                                  \
    {                                                                                                      \
        const tria_tensor *tensor = rows->tensor;                                                          \
        const unsigned char *p = tria_rows_at(rows, row);                                                  \
        tria_chunks chunks;                                                                                \
        tria_tensor_chunks(tensor, &chunks);                                                               \
        const int64_t stride = chunks.stride;                                                              \
        const int32_t size = tria_dtype_block_bytes(tensor->dtype);                                        \
        const int32_t chunk = chunks.bytes / size; /* elements; unused for block types */                  \
        const float scale = tria_rows_scale(rows, row);                                                    \
        switch (tensor->dtype) {                                                                           \
        case TRIA_DTYPE_F32:                                                                               \
            DECODE_ELEMENTS(REAL, load_f32);                                                               \
        case TRIA_DTYPE_F16:                                                                               \
            DECODE_ELEMENTS(REAL, load_f16);                                                               \
        case TRIA_DTYPE_BF16:                                                                              \
            DECODE_ELEMENTS(REAL, load_bf16);                                                              \
        case TRIA_DTYPE_FP8_E4M3FN:                                                                        \
            DECODE_ELEMENTS(REAL, load_e4m3fn);                                                            \
        case TRIA_DTYPE_FP8_E4M3FNUZ:                                                                      \
            DECODE_ELEMENTS(REAL, load_e4m3fnuz);                                                          \
        case TRIA_DTYPE_FP8_E5M2:                                                                          \
            DECODE_ELEMENTS(REAL, load_e5m2);                                                              \
        case TRIA_DTYPE_INT8:                                                                              \
            DECODE_ELEMENTS(REAL, load_int8);                                                              \
        default:                                                                                           \
            for (int32_t d = 0; d < dim; d += BLOCK) {                                                     \
                decoded_block block;                                                                       \
                int32_t n = dim - d < BLOCK ? dim - d : BLOCK;                                             \
                decode_block(tensor->dtype, p + (int64_t)(d / BLOCK) * size, &block);                      \
                for (int32_t e = 0; e < n; e++) {                                                          \
                    out[d + e] = (REAL)block.codes[e] * (REAL)block.delta + (REAL)block.minimum;           \
                }                                                                                          \
            }                                                                                              \
            break;                                                                                         \
        }                                                                                                  \
    }

/* Blocks in float: code * delta is exact (8 + 11 bits), the sum with the minimum is rounded once. */
DEFINE_DECODE(tria_rows_decode_f32, float)
DEFINE_DECODE(tria_rows_decode_f64, double)

#define DEFINE_HADAMARD(NAME, REAL, SQRT)                                                                  \
    void NAME(REAL *row, int32_t dim, int32_t size, const float *signs)                                    \
    {                                                                                                      \
        const REAL norm = (REAL)1 / SQRT((REAL)size);                                                      \
        for (REAL *block = row; block < row + dim; block += size) {                                        \
            for (int32_t half = 1; half < size; half *= 2) {                                               \
                for (int32_t start = 0; start < size; start += 2 * half) {                                 \
                    for (int32_t i = start; i < start + half; i++) {                                       \
                        const REAL a = block[i];                                                           \
                        const REAL b = block[i + half];                                                    \
                        block[i] = a + b;                                                                  \
                        block[i + half] = a - b;                                                           \
                    }                                                                                      \
                }                                                                                          \
            }                                                                                              \
        }                                                                                                  \
        for (int32_t d = 0; d < dim; d++) {                                                                \
            row[d] *= signs != NULL ? norm * (REAL)signs[d] : norm;                                        \
        }                                                                                                  \
    }

DEFINE_HADAMARD(tria_hadamard_undo_f32, float, sqrtf)
DEFINE_HADAMARD(tria_hadamard_undo_f64, double, sqrt)

tria_status tria_tensor_check(const tria_tensor *tensor, int32_t n_heads, bool is_v, const char *what,
                              tria_error *error)
{
    int32_t dtype = tensor->dtype;
    const char *name;
    if (dtype < 0 || dtype >= TRIA_DTYPE_COUNT) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: unknown dtype %d", what, dtype);
    }
    name = tria_dtype_name(dtype);
    if (n_heads < 1 || n_heads > TRIA_MAX_HEADS) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d heads, expected 1 to %d", what, n_heads,
                         TRIA_MAX_HEADS);
    }
    if (tensor->dim < 1 || tensor->dim > TRIA_MAX_HEAD_DIM) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: dim %d, expected 1 to %d", what, tensor->dim,
                         TRIA_MAX_HEAD_DIM);
    }
    if (tensor->scale_kind < TRIA_SCALE_NONE || tensor->scale_kind > TRIA_SCALE_ROW) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: unknown scale_kind %d", what, tensor->scale_kind);
    }
    if (tensor->scale_kind == TRIA_SCALE_TENSOR && !isfinite(tensor->scale)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: scale is not finite", what);
    }
    if (tensor->scale_kind == TRIA_SCALE_NONE && dtype == TRIA_DTYPE_INT8) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: int8 needs a scale (scale_kind)", what);
    }
    if (tria_dtype_block(dtype) > 1) {
        if (tensor->dim % BLOCK != 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: dim %d is not a multiple of the %d of a %s block",
                             what, tensor->dim, BLOCK, name);
        }
        if (tensor->dim_stride != 0 || tensor->pack > 1) {
            return tria_fail(error, TRIA_E_UNSUPPORTED,
                             "%s: %s blocks cannot be %s (dim_stride %lld, pack %d; both must be 0)", what,
                             name, is_v ? "transposed or split" : "split", (long long)tensor->dim_stride,
                             tensor->pack);
        }
        if (tensor->scale_kind != TRIA_SCALE_NONE) {
            return tria_fail(error, TRIA_E_UNSUPPORTED, "%s: %s blocks carry their own scales", what, name);
        }
    }
    if (tensor->pack < 0 || (tensor->pack > 1 && tensor->dim % tensor->pack != 0)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: pack %d does not divide dim %d", what, tensor->pack,
                         tensor->dim);
    }
    return TRIA_OK;
}

/* Widens [*low, *high) by the byte offsets index * stride, first <= index <= last. Offsets are kept below
 * 2^60 in size so that no later sum of a few of them can overflow. */
static bool widen(int64_t stride, int64_t first, int64_t last, int64_t *low, int64_t *high)
{
    const int64_t limit = INT64_C(1) << 60;
    int64_t a;
    int64_t b;
    if (__builtin_mul_overflow(stride, first, &a) || __builtin_mul_overflow(stride, last, &b)) {
        return false;
    }
    return !__builtin_add_overflow(*low, a < b ? a : b, low) &&
           !__builtin_add_overflow(*high, a < b ? b : a, high) && *low >= -limit && *high <= limit;
}

/* The scales of a tensor as a tensor of one element per row; of unknown size. */
static tria_tensor scales_of(const tria_tensor *tensor)
{
    const bool by_row = tensor->scale_kind == TRIA_SCALE_ROW;
    return (tria_tensor){.base = tensor->scales,
                         .offset = tensor->scales_offset,
                         .page_stride = by_row ? tensor->scale_page_stride : 0,
                         .token_stride = by_row ? tensor->scale_token_stride : 0,
                         .head_stride = tensor->scale_head_stride,
                         .dtype = TRIA_DTYPE_F32,
                         .dim = 1};
}

/* Tokens [0, n_tokens) of pages first .. last: fails when an offset overflows or leaves the buffer. */
static tria_status check_offsets(const tria_tensor *tensor, int32_t n_heads, int32_t first_page,
                                 int32_t last_page, int32_t n_tokens, const char *what, tria_error *error)
{
    tria_chunks chunks;
    tria_tensor_chunks(tensor, &chunks);
    int64_t low = 0;
    int64_t high = chunks.bytes;
    bool ok = tensor->offset <= INT64_MAX &&
              widen(1, (int64_t)tensor->offset, (int64_t)tensor->offset, &low, &high) &&
              widen(tensor->page_stride, first_page, last_page, &low, &high) &&
              widen(tensor->token_stride, 0, n_tokens - 1, &low, &high) &&
              widen(tensor->head_stride, 0, n_heads - 1, &low, &high) &&
              widen(chunks.stride, 0, chunks.n - 1, &low, &high);
    if (!ok) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: offset and strides overflow", what);
    }
    if (tensor->size != 0 && (low < 0 || (uint64_t)high > tensor->size)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: rows occupy bytes %lld to %lld of a buffer of %llu",
                         what, (long long)low, (long long)high, (unsigned long long)tensor->size);
    }
    return TRIA_OK;
}

static tria_status check_extent(const tria_tensor *tensor, int32_t n_heads, int32_t first_page,
                                int32_t last_page, int32_t n_tokens, const char *what, tria_error *error)
{
    TRIA_TRY(check_offsets(tensor, n_heads, first_page, last_page, n_tokens, what, error));
    if (tensor->scale_kind >= TRIA_SCALE_HEAD) {
        const tria_tensor scales = scales_of(tensor);
        return check_offsets(&scales, n_heads, first_page, last_page, n_tokens, what, error);
    }
    return TRIA_OK;
}

tria_status tria_tensor_check_rows(const tria_tensor *tensor, const tria_kv_view *view,
                                   const tria_layer_view *layer_view, int32_t n_heads, int32_t n_rows,
                                   const char *what, tria_error *error)
{
    int32_t n_pages;
    const int32_t *table = tria_page_table(view, layer_view, &n_pages);
    const int32_t tokens = view->tokens_per_page;
    if (tensor->base == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: base is NULL", what);
    }
    if (tensor->scale_kind >= TRIA_SCALE_HEAD && tensor->scales == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: scales is NULL", what);
    }
    if (n_rows < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d rows", what, n_rows);
    }
    if (n_rows == 0) {
        return TRIA_OK;
    }
    if (table == NULL) {
        return check_extent(tensor, n_heads, 0, 0, n_rows, what, error);
    }
    if (tokens < 1) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: a page table needs tokens_per_page > 0, not %d", what,
                         tokens);
    }
    if (n_pages < 1 || (n_rows - 1) / tokens >= n_pages) {
        return tria_fail(error, TRIA_E_ARGUMENT, "%s: %d rows need %d pages of %d tokens, the table has %d",
                         what, n_rows, (n_rows - 1) / tokens + 1, tokens, n_pages);
    }
    const int32_t n_full = n_rows / tokens;
    int32_t first = INT32_MAX;
    int32_t last = 0;
    for (int32_t i = 0; i <= (n_rows - 1) / tokens; i++) {
        if (table[i] < 0) {
            return tria_fail(error, TRIA_E_ARGUMENT, "%s: page_table[%d] is %d", what, i, table[i]);
        }
        if (i < n_full) {
            first = table[i] < first ? table[i] : first;
            last = table[i] > last ? table[i] : last;
        }
    }
    if (n_full > 0) {
        TRIA_TRY(check_extent(tensor, n_heads, first, last, tokens, what, error));
    }
    if (n_rows % tokens != 0) {
        TRIA_TRY(check_extent(tensor, n_heads, table[n_full], table[n_full], n_rows % tokens, what, error));
    }
    return TRIA_OK;
}

bool tria_tensor_same_layout(const tria_tensor *a, const tria_tensor *b)
{
    tria_chunks ca;
    tria_chunks cb;
    if (a->dtype != b->dtype || a->dim != b->dim || a->scale_kind != b->scale_kind) {
        return false;
    }
    tria_tensor_chunks(a, &ca);
    tria_tensor_chunks(b, &cb);
    return a->page_stride == b->page_stride && a->token_stride == b->token_stride &&
           a->head_stride == b->head_stride && ca.n == cb.n && ca.bytes == cb.bytes &&
           ca.stride == cb.stride &&
           (a->scale_kind != TRIA_SCALE_TENSOR || memcmp(&a->scale, &b->scale, sizeof(a->scale)) == 0) &&
           (a->scale_kind < TRIA_SCALE_HEAD || a->scale_head_stride == b->scale_head_stride) &&
           (a->scale_kind < TRIA_SCALE_ROW || (a->scale_page_stride == b->scale_page_stride &&
                                               a->scale_token_stride == b->scale_token_stride));
}

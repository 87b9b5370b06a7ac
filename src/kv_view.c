/*
 * kv_view.c - addressing and decoding of cache rows.
 */
#include "kv_view_internal.h"

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

static int32_t signed_byte(unsigned char byte)
{
    return byte < 128 ? byte : byte - 256;
}

static float load_int8(const unsigned char *p)
{
    return (float)signed_byte(*p);
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
    static const int16_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
    block->delta = load_f16(p);
    block->minimum = 0.0f;
    switch (dtype) {
    case TRIA_DTYPE_Q8_0:
        for (int32_t j = 0; j < BLOCK; j++) {
            block->codes[j] = signed_byte(p[2 + j]);
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

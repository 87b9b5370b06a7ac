#include "kv/layout_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEQUENCES = 3, SEQUENCE = 1 };

static const int32_t page_table[LC_PAGES] = {5, 0, 9, 2, 10, 7, 3, 6};

static uint32_t random_bits(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*seed >> 33);
}

static void store_u16(unsigned char *at, uint32_t value)
{
    const uint16_t bits = (uint16_t)value;
    memcpy(at, &bits, sizeof(bits));
}

/* One element or block of a plausible size. */
static void random_unit(int32_t dtype, unsigned char *at, uint64_t *seed)
{
    const uint32_t bits = random_bits(seed);
    const float number = (float)(int32_t)(bits % 20001) / 10000.0F - 1.0F;
    for (int32_t i = 0; i < tria_dtype_block_bytes(dtype); i++) {
        at[i] = (unsigned char)random_bits(seed);
    }
    switch (dtype) {
    case TRIA_DTYPE_F32:
        memcpy(at, &number, sizeof(number));
        break;
    case TRIA_DTYPE_F16:
        store_u16(at, (bits & 0x83ff) | 0x3000 | (bits & 0x0c00));
        break;
    case TRIA_DTYPE_BF16:
        store_u16(at, (bits & 0x807f) | 0x3f00);
        break;
    case TRIA_DTYPE_FP8_E4M3FN:
    case TRIA_DTYPE_FP8_E4M3FNUZ:
    case TRIA_DTYPE_FP8_E5M2:
        at[0] = (unsigned char)((bits & 0xbf) | 0x20); /* neither NaN nor infinite */
        break;
    case TRIA_DTYPE_INT8:
        break;
    default:
        store_u16(at, 0x2000 | (bits & 0x3ff)); /* block delta about 0.01 */
        if (dtype == TRIA_DTYPE_Q4_1 || dtype == TRIA_DTYPE_Q5_1) {
            store_u16(at + 2, 0x9400 | (bits >> 10 & 0x3ff));
        }
        break;
    }
}

void logical_init(logical_rows *rows, int32_t dtype)
{
    const int32_t unit = tria_dtype_block_bytes(dtype);
    uint64_t seed = 31;
    rows->dtype = dtype;
    rows->row_bytes = (int32_t)tria_dtype_row_bytes(dtype, LC_DIM);
    const size_t size = (size_t)(2 * LC_LAYERS * LC_HEADS * LC_ROWS * rows->row_bytes);
    rows->bytes = malloc(size);
    assert_non_null(rows->bytes);
    for (size_t i = 0; i < size; i += (size_t)unit) {
        random_unit(dtype, rows->bytes + i, &seed);
    }
    for (int32_t i = 0; i < 2 * LC_LAYERS * LC_HEADS * LC_ROWS; i++) {
        (&rows->scales[0][0][0][0])[i] = 0.001F * (float)(1 + random_bits(&seed) % 20);
    }
}

void logical_free(logical_rows *rows)
{
    free(rows->bytes);
}

unsigned char *logical_row(const logical_rows *rows, int32_t is_v, int32_t layer, int32_t head, int32_t row)
{
    return rows->bytes + (((is_v * LC_LAYERS + layer) * LC_HEADS + head) * LC_ROWS + row) * rows->row_bytes;
}

/* Index into a C array of these dimensions. */
static int64_t nested(int32_t n, const int64_t (*index_of)[2])
{
    int64_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(index_of[i][0], 0, index_of[i][1] - 1);
        at = at * index_of[i][1] + index_of[i][0];
    }
    return at;
}

#define NESTED(...)                                                                                        \
    nested((int32_t)(sizeof((const int64_t[][2]){__VA_ARGS__}) / sizeof(int64_t[2])),                      \
           (const int64_t[][2]){__VA_ARGS__})

static int32_t is_paged(int32_t layout)
{
    return layout == TRIA_LAYOUT_VLLM || layout == TRIA_LAYOUT_VLLM_HND ||
           layout == TRIA_LAYOUT_VLLM_PACKED || layout == TRIA_LAYOUT_TENSORRT_LLM ||
           layout == TRIA_LAYOUT_SGLANG;
}

static int32_t is_one_buffer(int32_t layout)
{
    return layout == TRIA_LAYOUT_VLLM || layout == TRIA_LAYOUT_VLLM_HND ||
           layout == TRIA_LAYOUT_TENSORRT_LLM;
}

/* Which element (unit) of the engine's array holds unit `d` of a row. */
static int64_t unit_index(const layout_cache *cache, int32_t is_v, int32_t head, int32_t row, int32_t d)
{
    const int64_t units = LC_DIM / tria_dtype_block(cache->dtype);
    const int64_t x = 16 / tria_dtype_block_bytes(cache->dtype);
    const int64_t page = page_table[row / LC_PAGE_TOKENS];
    const int64_t token = row % LC_PAGE_TOKENS;
    switch (cache->layout) {
    case TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED:
        if (is_v) {
            return NESTED({SEQUENCE, SEQUENCES}, {head, LC_HEADS}, {d, units}, {row, LC_TOKENS});
        }
        return NESTED({SEQUENCE, SEQUENCES}, {row, LC_TOKENS}, {head, LC_HEADS}, {d, units});
    case TRIA_LAYOUT_LLAMA_CPP:
    case TRIA_LAYOUT_EXLLAMA:
        return NESTED({SEQUENCE, SEQUENCES}, {row, LC_TOKENS}, {head, LC_HEADS}, {d, units});
    case TRIA_LAYOUT_VLLM:
        return NESTED({is_v, 2}, {page, LC_POOL}, {token, LC_PAGE_TOKENS}, {head, LC_HEADS}, {d, units});
    case TRIA_LAYOUT_VLLM_HND:
    case TRIA_LAYOUT_TENSORRT_LLM:
        return NESTED({page, LC_POOL}, {is_v, 2}, {head, LC_HEADS}, {token, LC_PAGE_TOKENS}, {d, units});
    case TRIA_LAYOUT_VLLM_PACKED:
        if (is_v) {
            return NESTED({page, LC_POOL}, {head, LC_HEADS}, {d, units}, {token, LC_PAGE_TOKENS});
        }
        return NESTED({page, LC_POOL}, {head, LC_HEADS}, {d / x, units / x}, {token, LC_PAGE_TOKENS},
                      {d % x, x});
    case TRIA_LAYOUT_SGLANG:
        return NESTED({page * LC_PAGE_TOKENS + token, LC_POOL * LC_PAGE_TOKENS}, {head, LC_HEADS},
                      {d, units});
    case TRIA_LAYOUT_HUGGING_FACE:
        return NESTED({SEQUENCE, SEQUENCES}, {head, LC_HEADS}, {row, LC_TOKENS}, {d, units});
    default:
        return NESTED({head, LC_HEADS}, {row, LC_ROWS}, {d, units});
    }
}

static unsigned char *unit_at(const layout_cache *cache, int32_t is_v, int32_t layer, int32_t head,
                              int32_t row, int32_t d)
{
    unsigned char *base = is_v && !is_one_buffer(cache->layout) ? cache->v[layer] : cache->k[layer];
    return base + unit_index(cache, is_v, head, row, d) * tria_dtype_block_bytes(cache->dtype);
}

static float *scale_at(const layout_cache *cache, int32_t is_v, int32_t layer, int32_t head, int32_t row)
{
    int64_t slot = row;
    if (is_paged(cache->layout)) {
        slot = page_table[row / LC_PAGE_TOKENS] * LC_PAGE_TOKENS + row % LC_PAGE_TOKENS;
    }
    return cache->scales[layer] + NESTED({is_v, 2}, {slot, LC_POOL * LC_PAGE_TOKENS}, {head, LC_HEADS});
}

int32_t layout_takes_blocks(int32_t layout)
{
    return layout != TRIA_LAYOUT_LLAMA_CPP_V_TRANSPOSED && layout != TRIA_LAYOUT_VLLM_PACKED;
}

static void describe(layout_cache *cache, int32_t layer, size_t size)
{
    tria_layer_view *view = &cache->layers[layer];
    tria_layout_params params = TRIA_LAYOUT_PARAMS_INIT;
    tria_error error = {0, ""};
    if (cache->layout < 0) {
        const int64_t row = tria_dtype_row_bytes(cache->dtype, LC_DIM);
        memset(view, 0, sizeof(*view));
        view->k = (tria_tensor){.base = cache->k[layer],
                                .size = size,
                                .token_stride = row,
                                .head_stride = row * LC_ROWS,
                                .dtype = cache->dtype,
                                .dim = LC_DIM};
        view->v = view->k;
        view->v.base = cache->v[layer];
        return;
    }
    params.k = cache->k[layer];
    params.v = is_one_buffer(cache->layout) ? NULL : cache->v[layer];
    params.k_size = size;
    params.v_size = size;
    params.k_dtype = cache->dtype;
    params.v_dtype = cache->dtype;
    params.k_dim = LC_DIM;
    params.v_dim = LC_DIM;
    params.n_heads = LC_HEADS;
    params.page_tokens = is_paged(cache->layout) ? LC_PAGE_TOKENS : LC_TOKENS;
    params.n_pages = is_paged(cache->layout) ? LC_POOL : 0;
    params.sequence = is_paged(cache->layout) ? 0 : SEQUENCE;
    if (tria_layout_view(cache->layout, &params, view, &error) != TRIA_OK) {
        fail_msg("%s", error.message);
    }
}

static void describe_scales(layout_cache *cache, int32_t layer)
{
    for (int32_t is_v = 0; is_v < 2; is_v++) {
        tria_tensor *tensor = is_v ? &cache->layers[layer].v : &cache->layers[layer].k;
        tensor->scale_kind = TRIA_SCALE_ROW;
        tensor->scales = cache->scales[layer];
        tensor->scales_offset = (uint64_t)is_v * LC_POOL * LC_PAGE_TOKENS * LC_HEADS * sizeof(float);
        tensor->scale_page_stride = LC_PAGE_TOKENS * LC_HEADS * (int64_t)sizeof(float);
        tensor->scale_token_stride = LC_HEADS * (int64_t)sizeof(float);
        tensor->scale_head_stride = (int64_t)sizeof(float);
    }
}

void layout_cache_init(layout_cache *cache, int32_t layout, const logical_rows *rows)
{
    const int32_t unit = tria_dtype_block_bytes(rows->dtype);
    const int32_t row_bytes = rows->row_bytes;
    size_t tokens = is_paged(layout) ? LC_POOL * LC_PAGE_TOKENS : SEQUENCES * LC_TOKENS;
    tokens = layout < 0 ? LC_ROWS : tokens;
    const size_t size = tokens * LC_HEADS * (size_t)row_bytes * (is_one_buffer(layout) ? 2 : 1);
    memset(cache, 0, sizeof(*cache));
    cache->layout = layout;
    cache->dtype = rows->dtype;
    tria_kv_view_init(&cache->view);
    cache->view.layers = cache->layers;
    cache->view.n_layers = LC_LAYERS;
    if (is_paged(layout)) {
        cache->view.page_table = page_table;
        cache->view.n_pages = LC_PAGES;
        cache->view.tokens_per_page = LC_PAGE_TOKENS;
    }
    for (int32_t l = 0; l < LC_LAYERS; l++) {
        cache->k[l] = calloc(size, 1);
        cache->v[l] = calloc(is_one_buffer(layout) ? 1 : size, 1);
        cache->scales[l] = calloc(2 * LC_POOL * LC_PAGE_TOKENS * LC_HEADS, sizeof(float));
        assert_true(cache->k[l] != NULL && cache->v[l] != NULL && cache->scales[l] != NULL);
        describe(cache, l, size);
        if (rows->dtype == TRIA_DTYPE_INT8) {
            describe_scales(cache, l);
        }
        for (int32_t i = 0; i < 2 * LC_HEADS * LC_ROWS; i++) {
            const int32_t is_v = i % 2;
            const int32_t head = i / 2 % LC_HEADS;
            const int32_t row = i / 2 / LC_HEADS;
            for (int32_t d = 0; d < row_bytes / unit; d++) {
                memcpy(unit_at(cache, is_v, l, head, row, d),
                       logical_row(rows, is_v, l, head, row) + d * unit, (size_t)unit);
            }
            *scale_at(cache, is_v, l, head, row) = rows->scales[is_v][l][head][row];
        }
    }
}

void layout_cache_read(const layout_cache *cache, int32_t is_v, int32_t layer, int32_t head, int32_t row,
                       unsigned char *bytes, float *scale)
{
    const int32_t unit = tria_dtype_block_bytes(cache->dtype);
    for (int32_t d = 0; d < LC_DIM / tria_dtype_block(cache->dtype); d++) {
        memcpy(bytes + d * unit, unit_at(cache, is_v, layer, head, row, d), (size_t)unit);
    }
    *scale = *scale_at(cache, is_v, layer, head, row);
}

void layout_cache_free(layout_cache *cache)
{
    for (int32_t l = 0; l < LC_LAYERS; l++) {
        free(cache->k[l]);
        free(cache->v[l]);
        free(cache->scales[l]);
    }
}

void layout_model(tria_model **model, tria_calibration **calibration)
{
    enum { FREQ = LC_DIM / 2 };
    tria_layer_params layers[LC_LAYERS];
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    float values[3][FREQ];
    uint64_t seed = 99;
    tria_error error = {0, ""};
    for (int32_t l = 0; l < LC_LAYERS; l++) {
        tria_layer_params_init(&layers[l]);
        layers[l].n_q_heads = LC_Q_HEADS;
        layers[l].n_kv_heads = LC_HEADS;
        layers[l].head_dim = LC_DIM;
    }
    params.layers = layers;
    params.n_layers = LC_LAYERS;
    assert_int_equal(tria_model_create(&params, NULL, model, &error), TRIA_OK);
    assert_int_equal(tria_calibration_create(*model, NULL, calibration, &error), TRIA_OK);
    for (int32_t i = 0; i < LC_LAYERS * LC_Q_HEADS; i++) {
        const tria_head_stats stats = {sizeof(stats), values[0], values[1], values[2], NULL, NULL};
        for (int32_t f = 0; f < FREQ; f++) {
            for (int32_t j = 0; j < 3; j++) {
                values[j][f] = (float)(random_bits(&seed) % 1000) / 500.0F - (j < 2 ? 1.0F : -1.0F);
            }
        }
        assert_int_equal(
            tria_calibration_set_head(*calibration, i / LC_Q_HEADS, i % LC_Q_HEADS, &stats, &error),
            TRIA_OK);
    }
}

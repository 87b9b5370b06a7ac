#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators") */
uint32_t config_random(config *c)
{
    uint64_t z = c->state += 0x9e3779b97f4a7c15U;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

int32_t config_below(config *c, int32_t n)
{
    return (int32_t)(((uint64_t)config_random(c) * (uint64_t)n) >> 32);
}

bool config_chance(config *c, int32_t percent)
{
    return config_below(c, 100) < percent;
}

/* Roughly normal. */
static double bell(config *c)
{
    double sum = 0.0;
    for (int i = 0; i < 6; i++) {
        sum += (double)config_random(c) / 4294967296.0 - 0.5;
    }
    return sum * sqrt(2.0);
}

static void check(tria_status status, const tria_error *error)
{
    if (status != TRIA_OK) {
        fprintf(stderr, "config: %s\n", error->message);
        exit(1);
    }
}

static void *get(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "config: out of memory\n");
        exit(1);
    }
    return memory;
}

static bool is_block(int32_t dtype)
{
    return tria_dtype_block(dtype) > 1;
}

static int32_t pick_dtype(config *c)
{
    return config_chance(c, 40) ? config_below(c, 3) : config_below(c, TRIA_DTYPE_COUNT);
}

static bool pooled(int32_t mode)
{
    return mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
}

static void make_layers(config *c)
{
    const int32_t n_kv = 1 + config_below(c, 3);
    const bool equal_heads = c->params.mode == TRIA_MODE_PER_HEAD || config_chance(c, 60);
    for (int32_t l = 0; l < c->n_layers; l++) {
        static const int32_t dims[] = {8, 16, 24, 32, 64, 96, 128, 20};
        tria_layer_params *layer = &c->layers[l];
        tria_layer_params_init(layer);
        if (l > 0 && config_chance(c, 7)) {
            continue; /* no attention */
        }
        layer->n_kv_heads = equal_heads ? n_kv : 1 + config_below(c, 3);
        layer->n_q_heads = layer->n_kv_heads * (1 + config_below(c, 4));
        layer->head_dim = config_chance(c, 3) ? 576 : dims[config_below(c, 8)];
        if (c->layout.k_state == TRIA_K_HADAMARD) {
            layer->head_dim = 8 << config_below(c, 4);
        }
        layer->rotary_dim =
            config_chance(c, 50) ? layer->head_dim : 2 * (1 + config_below(c, layer->head_dim / 2));
        layer->rotary_offset = config_below(c, layer->head_dim - layer->rotary_dim + 1);
        layer->rope_style = config_below(c, 2);
        int32_t source = -1;
        for (int32_t other = 0; other < l; other++) {
            if (c->layers[other].n_kv_heads > 0 && c->layers[other].kv_source < 0 && config_chance(c, 15)) {
                source = other;
            }
        }
        if (source >= 0) {
            const int32_t group = layer->n_q_heads / layer->n_kv_heads;
            *layer = c->layers[source];
            layer->n_q_heads = layer->n_kv_heads * group;
            layer->kv_source = source;
            layer->window = 0;
        } else if (config_chance(c, 12)) {
            layer->window = 1 + config_below(c, 12);
        }
        if (source < 0 && config_chance(c, 30)) {
            for (int32_t f = 0; f < layer->rotary_dim / 2; f++) {
                c->inv_freq[l][f] = exp(-8.0 * (double)config_random(c) / 4294967296.0);
            }
            layer->inv_freq = c->inv_freq[l];
        } else if (source < 0) {
            layer->rope_theta = config_chance(c, 50) ? 10000.0 : 1e6;
        }
        if (config_chance(c, 20)) {
            for (int32_t f = 0; f < layer->rotary_dim / 2; f++) {
                c->freq_scale[l][f] = 0.25 + 2.0 * (double)config_random(c) / 4294967296.0;
            }
            layer->freq_scale_sq = c->freq_scale[l];
        }
    }
    if (pooled(c->params.mode)) {
        c->layers[0].window = 0; /* somebody must take part */
    }
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_error error;
    params.layers = c->layers;
    params.n_layers = c->n_layers;
    check(tria_model_create(&params, NULL, &c->model, &error), &error);
}

static void make_calibration(config *c)
{
    float values[3][CONFIG_DIM / 2];
    float content[CONFIG_DIM];
    tria_error error;
    static const int32_t shares[] = {100, 100, 100, 60, 15, 0};
    const int32_t share = shares[config_below(c, 6)];
    check(tria_calibration_create(c->model, NULL, &c->calibration, &error), &error);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const tria_layer_params *layer = &c->layers[l];
        const bool with_content = config_chance(c, 60);
        const bool layer_missing = config_chance(c, 5);
        for (int32_t h = 0; h < layer->n_q_heads; h++) {
            for (int32_t f = 0; f < layer->rotary_dim / 2; f++) {
                values[0][f] = (float)bell(c);
                values[1][f] = config_chance(c, 5) ? values[0][f] = 0.0F : (float)bell(c);
                values[2][f] =
                    hypotf(values[0][f], values[1][f]) * (float)(1.0 + 0.3 * fabs(bell(c))) + 0.02F;
            }
            for (int32_t d = 0; d < layer->head_dim - layer->rotary_dim; d++) {
                content[d] = (float)bell(c);
            }
            const tria_head_stats stats = {sizeof(stats),
                                           values[0],
                                           values[1],
                                           values[2],
                                           with_content && layer->rotary_dim < layer->head_dim ? content
                                                                                               : NULL,
                                           NULL};
            if (!layer_missing && config_chance(c, share)) {
                check(tria_calibration_set_head(c->calibration, l, h, &stats, &error), &error);
            }
        }
    }
}

/* Geometry of one tensor, for n_rows rows (or pages) of n_heads heads; base is set later. */
static void make_layout(config *c, tria_tensor *t, int32_t n_heads, int32_t dim, int32_t n_rows,
                        int32_t n_pages)
{
    const int32_t bytes = tria_dtype_block_bytes(t->dtype);
    const int32_t align = t->dtype == TRIA_DTYPE_F32 ? 4 : bytes % 2 == 0 ? 2 : 1;
    const int32_t tokens = n_pages > 0 ? c->layout.tokens_per_page : n_rows;
    const int32_t gap = config_chance(c, 25) ? align * config_below(c, 9) : 0;
    t->dim = dim;
    int64_t row = tria_dtype_row_bytes(t->dtype, dim) + gap;
    const int32_t kind = is_block(t->dtype) ? config_below(c, 2) : config_below(c, 5);
    switch (kind) {
    case 2: /* [head][dim][token] */
        t->token_stride = bytes;
        t->dim_stride = (int64_t)bytes * tokens + gap;
        t->head_stride = t->dim_stride * dim;
        t->page_stride = t->head_stride * n_heads;
        break;
    case 3: /* [head][dim / pack][token][pack] */
        t->pack = 2;
        if (dim % 2 == 0) {
            t->token_stride = (int64_t)bytes * 2;
            t->dim_stride = t->token_stride * tokens + gap;
            t->head_stride = t->dim_stride * (dim / 2);
            t->page_stride = t->head_stride * n_heads;
            break;
        }
        t->pack = 0; /* fall through */
    case 0:          /* [token][head][dim] */
        t->head_stride = row;
        t->token_stride = row * n_heads;
        t->page_stride = t->token_stride * tokens;
        break;
    default: /* [head][token][dim] */
        t->token_stride = row;
        t->head_stride = row * tokens;
        t->page_stride = t->head_stride * n_heads;
        break;
    }
    t->offset = (uint64_t)(align * config_below(c, 40));
    if (n_pages == 0 && config_chance(c, 6)) { /* backwards */
        t->offset += (uint64_t)(t->token_stride * (n_rows - 1));
        t->token_stride = -t->token_stride;
    }
    t->scale_kind = is_block(t->dtype) || (t->dtype != TRIA_DTYPE_INT8 && config_chance(c, 60))
                        ? TRIA_SCALE_NONE
                        : 1 + config_below(c, 3);
    t->scale = 0.37F;
    if (t->scale_kind >= TRIA_SCALE_HEAD) {
        t->scales_offset = (uint64_t)(4 * config_below(c, 5));
        if (config_chance(c, 50) || t->scale_kind == TRIA_SCALE_HEAD) {
            t->scale_token_stride = 4;
            t->scale_head_stride = 4 * (int64_t)tokens;
        } else {
            t->scale_head_stride = 4;
            t->scale_token_stride = 4 * (int64_t)n_heads;
        }
        t->scale_page_stride = 4 * (int64_t)tokens * n_heads;
    }
}

static int32_t pool_pages(const config *c)
{
    const int32_t tokens = c->layout.tokens_per_page;
    return tokens > 0 ? (c->n_rows - 1) / tokens + 1 + 3 : 0;
}

static void make_geometry(config *c)
{
    const bool mixed = config_chance(c, 15);
    int32_t k_dtype = pick_dtype(c);
    int32_t v_dtype = pick_dtype(c);
    const int32_t pages = pool_pages(c);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const tria_layer_params *layer = &c->layers[l];
        tria_layer_view *view = &c->layout_layers[l];
        if (layer->n_kv_heads == 0 || layer->kv_source >= 0) {
            continue;
        }
        if (mixed) {
            k_dtype = pick_dtype(c);
            v_dtype = pick_dtype(c);
        }
        int32_t dim = layer->head_dim;
        view->k.dtype = k_dtype;
        view->v.dtype = v_dtype;
        if (is_block(k_dtype)) {
            dim = (dim + 31) / 32 * 32;
        } else if (c->layout.k_state != TRIA_K_HADAMARD && config_chance(c, 15)) {
            dim += 1 + config_below(c, 9); /* padded */
        }
        make_layout(c, &view->k, layer->n_kv_heads, dim, c->n_rows, pages);
        if (config_chance(c, 90)) {
            const int32_t v_dim =
                is_block(v_dtype) ? 32 * (1 + config_below(c, 3)) : 1 + config_below(c, 70);
            make_layout(c, &view->v, layer->n_kv_heads, v_dim, c->n_rows, pages);
        }
    }
}

/* Bytes from element (0, 0, 0, 0) - rounded to whole words - a tensor needs behind its offset. */
static size_t tensor_bytes(const config *c, const tria_tensor *t, int32_t n_heads)
{
    const int32_t pages = pool_pages(c);
    const int32_t tokens = pages > 0 ? c->layout.tokens_per_page : c->n_rows;
    const int32_t pack = t->pack > 1 ? t->pack : 1;
    int64_t end = (int64_t)t->offset + (pages > 0 ? t->page_stride * (pages - 1) : 0) +
                  (t->token_stride > 0 ? t->token_stride * (tokens - 1) : 0) +
                  t->head_stride * (n_heads - 1);
    end += t->dim_stride != 0
               ? t->dim_stride * (t->dim / pack - 1) + (int64_t)pack * tria_dtype_block_bytes(t->dtype)
               : tria_dtype_row_bytes(t->dtype, t->dim);
    return (size_t)(end + 3) / 4 * 4;
}

static config_block *add_block(config_event *e, size_t size)
{
    config_block *block = &e->blocks[e->n_blocks++];
    block->data = get(size);
    block->size = size;
    return block;
}

static unsigned char *element(const config_event *e, const tria_layer_view *layer, const tria_tensor *t,
                              int32_t head, int32_t row, int32_t unit)
{
    const int32_t *table = layer->page_table != NULL ? layer->page_table : e->view.page_table;
    const int32_t tokens = e->view.tokens_per_page;
    const int32_t pack = t->pack > 1 ? t->pack : 1;
    const int64_t bytes = tria_dtype_block_bytes(t->dtype);
    const int64_t stride = t->dim_stride != 0 ? t->dim_stride : pack * bytes;
    return (unsigned char *)t->base + t->offset + head * t->head_stride +
           (table != NULL ? table[row / tokens] * t->page_stride + row % tokens * t->token_stride
                          : row * t->token_stride) +
           unit / pack * stride + unit % pack * bytes;
}

/* A random element (or block) of sane size. */
static void fill_unit(config *c, int32_t dtype, unsigned char *out)
{
    const float x = (float)bell(c);
    uint32_t bits;
    uint16_t half = (uint16_t)((config_random(c) & 0x8000U) | (uint32_t)(10 + config_below(c, 6)) << 10 |
                               (config_random(c) & 0x3ffU));
    memcpy(&bits, &x, sizeof(bits));
    switch (dtype) {
    case TRIA_DTYPE_F32:
        memcpy(out, &bits, 4);
        return;
    case TRIA_DTYPE_F16:
        if (config_chance(c, 3)) {
            half &= 0x83ffU; /* subnormal or zero */
        }
        memcpy(out, &half, 2);
        return;
    case TRIA_DTYPE_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(out, &half, 2);
        return;
    case TRIA_DTYPE_FP8_E4M3FN:
    case TRIA_DTYPE_FP8_E4M3FNUZ:
        *out = (unsigned char)(config_random(c) & 0xbfU); /* below 2 */
        *out = *out == 0x80 ? 1 : *out;
        return;
    case TRIA_DTYPE_FP8_E5M2:
        *out = (unsigned char)(config_random(c) & 0xbfU);
        return;
    case TRIA_DTYPE_INT8:
        *out = (unsigned char)config_random(c);
        return;
    default:
        for (int32_t i = 0; i < tria_dtype_block_bytes(dtype); i++) {
            out[i] = (unsigned char)config_random(c);
        }
        half = (uint16_t)((uint32_t)(4 + config_below(c, 4)) << 10 | (config_random(c) & 0x3ffU));
        memcpy(out, &half, 2);
        if (dtype == TRIA_DTYPE_Q4_1 || dtype == TRIA_DTYPE_Q5_1) {
            half = (uint16_t)(0x8000U | (uint32_t)(8 + config_below(c, 4)) << 10);
            memcpy(out + 2, &half, 2);
        }
        return;
    }
}

static int32_t units_of(const tria_tensor *t)
{
    return t->dim / tria_dtype_block(t->dtype);
}

static void copy_row(const config_event *e, const tria_layer_view *layer, const tria_tensor *t,
                     int32_t head, int32_t from, int32_t to)
{
    for (int32_t u = 0; u < units_of(t); u++) {
        memcpy(element(e, layer, t, head, to, u), element(e, layer, t, head, from, u),
               (size_t)tria_dtype_block_bytes(t->dtype));
    }
    if (t->scale_kind == TRIA_SCALE_ROW) {
        const int32_t *table = layer->page_table != NULL ? layer->page_table : e->view.page_table;
        const int32_t tokens = e->view.tokens_per_page;
        unsigned char *base = (unsigned char *)t->scales + t->scales_offset + head * t->scale_head_stride;
        const int32_t rows[2] = {from, to};
        unsigned char *at[2];
        for (int i = 0; i < 2; i++) {
            at[i] = base + (table != NULL ? table[rows[i] / tokens] * t->scale_page_stride +
                                                rows[i] % tokens * t->scale_token_stride
                                          : rows[i] * t->scale_token_stride);
        }
        memcpy(at[1], at[0], 4);
    }
}

/* What is odd about a head's keys. */
static void spoil(config *c, config_event *e, const tria_layer_view *layer, int32_t head, int32_t n_rows)
{
    const tria_tensor *k = &layer->k;
    if (n_rows == 0) {
        return;
    }
    if (config_chance(c, 4)) { /* constant */
        for (int32_t r = 1; r < n_rows; r++) {
            copy_row(e, layer, k, head, 0, r);
        }
    } else if (config_chance(c, 4)) { /* never written */
        for (int32_t r = 0; r < n_rows; r++) {
            for (int32_t u = 0; u < units_of(k); u++) {
                memset(element(e, layer, k, head, r, u), 0, (size_t)tria_dtype_block_bytes(k->dtype));
            }
        }
    } else if (config_chance(c, 25)) { /* ties */
        for (int32_t i = 0; i < n_rows / 3; i++) {
            copy_row(e, layer, k, head, config_below(c, n_rows), config_below(c, n_rows));
        }
    }
    if (k->dtype == TRIA_DTYPE_F32 && config_chance(c, 10)) {
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int32_t i = 0; i < 3; i++) {
            memcpy(element(e, layer, k, head, config_below(c, n_rows), config_below(c, k->dim)),
                   &bad[config_below(c, 3)], 4);
        }
    }
}

static void fill_tensor(config *c, config_event *e, const tria_layer_view *layer, tria_tensor *t,
                        int32_t n_heads, const int32_t *rows)
{
    config_block *block = add_block(e, tensor_bytes(c, t, n_heads));
    for (size_t i = 0; i < block->size; i++) {
        block->data[i] = (unsigned char)(i * 31 + 7); /* between rows: must not change */
    }
    t->base = block->data;
    t->size = block->size;
    if (t->scale_kind >= TRIA_SCALE_HEAD) {
        const int32_t pages = pool_pages(c);
        const size_t count =
            (size_t)n_heads * (size_t)(pages > 0 ? pages * c->layout.tokens_per_page : c->n_rows);
        config_block *scales = add_block(e, t->scales_offset + 4 * count);
        for (size_t i = 0; i < scales->size / 4; i++) {
            const float s = (float)(0.05 + 0.1 * fabs(bell(c)));
            memcpy(scales->data + 4 * i, &s, 4);
        }
        t->scales = scales->data;
    }
    for (int32_t h = 0; h < n_heads; h++) {
        for (int32_t r = 0; r < rows[h]; r++) {
            for (int32_t u = 0; u < units_of(t); u++) {
                fill_unit(c, t->dtype, element(e, layer, t, h, r, u));
            }
        }
    }
}

static int32_t *make_table(config *c, int32_t n_pages)
{
    int32_t *table = get(sizeof(*table) * (size_t)n_pages);
    for (int32_t i = 0; i < n_pages; i++) {
        const int32_t j = config_below(c, i + 1);
        table[i] = table[j];
        table[j] = i;
    }
    return table;
}

static void make_rows(config *c, config_event *e)
{
    const int32_t mode = c->params.mode;
    const bool differ = !pooled(mode) && config_chance(c, 40);
    int32_t slot = 0;
    e->event.n_rows = config_chance(c, 10) ? config_below(c, 4) : 1 + config_below(c, c->n_rows);
    e->rows = get(sizeof(int32_t) * CONFIG_LAYERS * 4);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const tria_layer_params *layer = &c->layers[l];
        int32_t n = e->event.n_rows;
        for (int32_t h = 0; layer->kv_source < 0 && h < layer->n_kv_heads; h++) {
            if (differ && (h == 0 || mode == TRIA_MODE_PER_LAYER_PER_HEAD)) {
                n = config_below(c, c->n_rows + 1);
            }
            e->rows[slot++] = n;
        }
    }
    e->event.rows = differ ? e->rows : NULL;
}

/* One table of ascending positions with gaps; now and then in the order fill_holes leaves. */
static void make_positions(config *c, int32_t *out, int32_t n, int32_t first)
{
    for (int32_t i = 0; i < n; i++) {
        out[i] = first;
        first += 1 + (config_chance(c, 20) ? config_below(c, 9) : 0);
    }
    for (int32_t i = 0; config_chance(c, 50) && i < n / 8; i++) {
        const int32_t a = config_below(c, n);
        const int32_t b = config_below(c, n);
        const int32_t swap = out[a];
        out[a] = out[b];
        out[b] = swap;
    }
}

static void make_event_positions(config *c, config_event *e)
{
    const int32_t mode = c->params.mode;
    const int32_t stride = c->n_rows + config_below(c, 3);
    const int32_t n_tables = CONFIG_LAYERS * 4;
    const int32_t first = config_chance(c, 10) ? 1500000000 : config_below(c, 50);
    int32_t last = c->n_rows;
    if (!config_chance(c, 25)) {
        e->n_positions = (size_t)(n_tables * stride);
        e->positions = get(sizeof(int32_t) * e->n_positions);
        make_positions(c, e->positions, c->n_rows, first);
        for (int32_t i = 1; i < n_tables; i++) {
            memcpy(e->positions + i * stride, e->positions, sizeof(int32_t) * (size_t)c->n_rows);
        }
        const int32_t kind = config_below(c, 3);
        if (kind >= 1) {
            e->event.positions_layer_stride = 4 * stride;
        }
        if (kind == 2) {
            e->event.positions_head_stride = stride;
        }
        for (int32_t i = 0; !pooled(mode) && kind > 0 && i < n_tables; i++) {
            if (i % 4 == 0 || (kind == 2 && mode == TRIA_MODE_PER_LAYER_PER_HEAD)) {
                make_positions(c, e->positions + i * stride, c->n_rows, first);
            } else {
                memcpy(e->positions + i * stride, e->positions + (i - 1) * stride,
                       sizeof(int32_t) * (size_t)c->n_rows);
            }
        }
        e->event.positions = e->positions;
        last = 0;
        for (size_t i = 0; i < e->n_positions; i++) {
            last = e->positions[i] > last ? e->positions[i] : last;
        }
    }
    e->event.t = (int64_t)last + 1 + (config_chance(c, 20) ? config_below(c, 100000) : 0);
}

static void make_protection(config *c, config_event *e)
{
    const int32_t t = (int32_t)e->event.t;
    if (config_chance(c, 30)) {
        e->event.n_pins = 1 + config_below(c, 8);
        for (int32_t i = 0; i < e->event.n_pins; i++) {
            e->pins[i] = config_below(c, c->n_rows + 5);
        }
        e->event.pins = e->pins;
    }
    if (config_chance(c, 50)) {
        e->event.n_prompts = 1 + config_below(c, 3);
        for (int32_t i = 0; i < e->event.n_prompts; i++) {
            e->prompts[i].begin = i == 0 ? 0 : config_below(c, t);
            e->prompts[i].end = e->prompts[i].begin + config_below(c, 30);
        }
        e->event.prompts = e->prompts;
    }
}

static void make_event(config *c, config_event *e)
{
    tria_event_init(&e->event);
    make_rows(c, e);
    make_event_positions(c, e);
    make_protection(c, e);
    e->view = c->layout;
    memcpy(e->layers, c->layout_layers, sizeof(e->layers));
    e->view.layers = e->layers;
    if (c->layout.tokens_per_page > 0) {
        e->table = make_table(c, pool_pages(c));
        e->view.page_table = e->table;
        e->view.n_pages = pool_pages(c) - config_below(c, 3);
    }
    e->event.kv = &e->view;
    int32_t slot = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        const int32_t n_heads = c->layers[l].kv_source < 0 ? c->layers[l].n_kv_heads : 0;
        tria_layer_view *layer = &e->layers[l];
        if (n_heads == 0) {
            continue;
        }
        if (e->table != NULL && config_chance(c, 20)) {
            e->layer_tables[l] = make_table(c, pool_pages(c));
            layer->page_table = e->layer_tables[l];
            layer->n_pages = pool_pages(c);
        }
        fill_tensor(c, e, layer, &layer->k, n_heads, e->rows + slot);
        if (layer->v.dim > 0) {
            fill_tensor(c, e, layer, &layer->v, n_heads, e->rows + slot);
        }
        for (int32_t h = 0; h < n_heads; h++) {
            spoil(c, e, layer, h, e->rows[slot + h]);
        }
        slot += n_heads;
    }
}

static void make_settings(config *c)
{
    tria_plan_params *p = &c->params;
    p->offsets = config_chance(c, 30);
    p->offset_max = config_chance(c, 70) ? 65536 : 1 + config_below(c, 2000);
    p->disable_trig = config_chance(c, 8);
    p->disable_norm_excess = config_chance(c, 8);
    p->content_weight = config_chance(c, 80) ? 1.0F : 0.5F;
    p->normalize_over = config_chance(c, 60) ? TRIA_NORMALIZE_ALL : config_below(c, 3);
    p->group = config_chance(c, 65) ? TRIA_AGGREGATE_MAX : TRIA_AGGREGATE_MEAN;
    p->layers_agg = config_chance(c, 65) ? TRIA_AGGREGATE_MEAN : TRIA_AGGREGATE_MAX;
    p->use_layer_budgets = config_chance(c, 30);
    p->pool_radius = config_chance(c, 25) ? 1 + config_below(c, 6) : 0;
    if (config_chance(c, 40)) {
        for (int32_t l = 0; l < c->n_layers; l++) {
            c->weights[l] = (float)(0.25 + fabs(bell(c)));
        }
        p->layer_weights = c->weights;
    }
    p->budget = 20 + config_below(c, c->n_rows);
    p->n_sink = config_below(c, 6);
    p->n_recent = config_chance(c, 50) ? config_below(c, 12) : 0;
    p->protect_prefill = config_chance(c, 60);
    p->count_prompt = config_chance(c, 60);
    p->order = config_below(c, 2);
    p->zero_tail = config_chance(c, 30);
    p->max_rows = c->n_rows;
    p->max_sequences = CONFIG_EVENTS;
}

void config_create(config *c, uint64_t seed)
{
    memset(c, 0, sizeof(*c));
    c->seed = seed;
    c->state = seed;
    tria_plan_params_init(&c->params);
    tria_kv_view_init(&c->layout);
    c->n_layers = 1 + config_below(c, CONFIG_LAYERS);
    c->n_rows = config_chance(c, 15) ? 200 + config_below(c, 300) : 16 + config_below(c, 100);
    c->params.mode = config_below(c, 5);
    c->layout.k_state = config_chance(c, 65) ? TRIA_K_ROTATED : 1 + config_below(c, 2);
    c->layout.tokens_per_page = config_chance(c, 35) ? 1 + config_below(c, 17) : 0;
    make_layers(c);
    make_calibration(c);
    if (c->layout.k_state == TRIA_K_HADAMARD) {
        c->layout.hadamard_size = config_chance(c, 70) ? 0 : 8;
        for (int32_t d = 0; d < CONFIG_DIM; d++) {
            c->signs[d] = config_chance(c, 50) ? 1.0F : -1.0F;
        }
        if (config_chance(c, 50)) {
            c->layout.hadamard_signs = c->signs;
        }
    }
    make_geometry(c);
    c->layout.layers = c->layout_layers;
    c->layout.n_layers = c->n_layers;
    make_settings(c);
    c->params.model = c->model;
    c->params.calibration = c->calibration;
    c->params.layout = &c->layout;
    c->n_events = 1 + config_below(c, CONFIG_EVENTS);
    for (int32_t i = 0; i < c->n_events; i++) {
        make_event(c, &c->events[i]);
    }
}

void config_destroy(config *c)
{
    for (int32_t i = 0; i < c->n_events; i++) {
        config_event *e = &c->events[i];
        for (int32_t b = 0; b < e->n_blocks; b++) {
            free(e->blocks[b].data);
        }
        for (int32_t l = 0; l < CONFIG_LAYERS; l++) {
            free(e->layer_tables[l]);
        }
        free(e->table);
        free(e->positions);
        free(e->rows);
    }
    tria_calibration_destroy(c->calibration);
    tria_model_destroy(c->model);
}

void config_describe(const config *c, char *text, size_t size)
{
    snprintf(text, size,
             "seed %llu: %s, k_state %d, %d layers, %d rows, %d per page, normalize %d, pool %d",
             (unsigned long long)c->seed, tria_mode_name(c->params.mode), c->layout.k_state, c->n_layers,
             c->n_rows, c->layout.tokens_per_page, c->params.normalize_over, c->params.pool_radius);
}

#include "property/world.h"

#include <stdlib.h>
#include <string.h>

uint32_t world_u32(world *w)
{
    w->state ^= w->state >> 12;
    w->state ^= w->state << 25;
    w->state ^= w->state >> 27;
    return (uint32_t)((w->state * 2685821657736338717ULL) >> 32);
}

int32_t world_below(world *w, int32_t n)
{
    return (int32_t)(((uint64_t)world_u32(w) * (uint64_t)n) >> 32);
}

float world_float(world *w)
{
    return (float)(int32_t)world_u32(w) / 2147483648.0F;
}

static bool chance(world *w, int32_t one_in)
{
    return world_below(w, one_in) == 0;
}

static void must(tria_status status, const tria_error *error, const world *w)
{
    if (status != TRIA_OK) {
        printf("seed %llu: %s\n", (unsigned long long)w->seed, error->message);
        world_print(w, stdout);
        exit(1);
    }
}

static void *grab(size_t size)
{
    void *p = calloc(size + 1, 1);
    if (p == NULL) {
        printf("no memory\n");
        exit(1);
    }
    return p;
}

static void random_geometry(world *w)
{
    static const int32_t dims[] = {8, 8, 16, 16, 24, 32, 64, 96, 128}; /* small ones: many configurations */
    const int32_t n_heads = 1 + world_below(w, WORLD_HEADS);
    const bool mixed = chance(w, 4);
    const bool blocks = w->dtype >= TRIA_DTYPE_Q8_0;
    int32_t dim = dims[world_below(w, chance(w, 4) ? 9 : 6)];
    int32_t group = chance(w, 40) ? 16 : 1 + world_below(w, 5);
    w->n_layers = 1 + world_below(w, WORLD_LAYERS);
    for (int32_t l = 0; l < w->n_layers; l++) {
        tria_layer_params *g = &w->geometry[l];
        tria_layer_params_init(g);
        if (mixed) {
            dim = chance(w, 200) ? 576 : dims[world_below(w, 9)];
            group = 1 + world_below(w, 5);
        }
        if (blocks || w->k_state == TRIA_K_HADAMARD) {
            dim = dim <= 32 ? 32 : dim <= 64 ? 64 : 128;
        }
        if (l > 0 && chance(w, 10)) {
            continue; /* no attention */
        }
        g->n_kv_heads = n_heads;
        g->n_q_heads = n_heads * group;
        g->head_dim = dim;
        g->rotary_dim = chance(w, 2) ? dim : 2 * (1 + world_below(w, dim / 2));
        g->rotary_offset = world_below(w, dim - g->rotary_dim + 1);
        g->rope_style = world_below(w, 2);
        g->rope_theta = chance(w, 2) ? 1e4 : 1e6;
        if (l > 0 && chance(w, 8) && w->geometry[l - 1].n_kv_heads > 0 &&
            w->geometry[l - 1].kv_source < 0 && w->geometry[l - 1].window == 0) {
            *g = w->geometry[l - 1];
            g->kv_source = l - 1;
        } else if (l > 0 && chance(w, 10)) {
            g->window = 1 + world_below(w, 6);
        }
        if (chance(w, 5) && g->kv_source < 0) {
            const int32_t n_freq = g->rotary_dim / 2;
            for (int32_t f = 0; f < n_freq; f++) {
                w->frequencies[l][0][f] = 0.5 + (double)world_float(w) / 2.0;
                w->frequencies[l][1][f] = 1.0 + (double)world_float(w) / 2.0;
            }
            g->inv_freq = w->frequencies[l][0];
            g->freq_scale_sq = w->frequencies[l][1];
        }
    }
}

static void random_calibration(world *w)
{
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_error error;
    const int32_t missing = world_below(w, 3); /* 0: none is missing */
    float values[5][576];
    params.layers = w->geometry;
    params.n_layers = w->n_layers;
    must(tria_model_create(&params, NULL, &w->model, &error), &error, w);
    if (chance(w, 30)) {
        return; /* nothing is calibrated */
    }
    must(tria_calibration_create(w->model, NULL, &w->calibration, &error), &error, w);
    w->all_calibrated = true;
    for (int32_t l = 0; l < w->n_layers; l++) {
        const tria_layer_params *g = &w->geometry[l];
        const int32_t n_freq = g->rotary_dim / 2;
        const int32_t n_content = g->head_dim - g->rotary_dim;
        const bool content = n_content > 0 && chance(w, 2);
        const bool layer_missing = missing > 0 && chance(w, 6);
        for (int32_t h = 0; h < g->n_q_heads; h++) {
            const tria_head_stats stats = {sizeof(stats),
                                           values[0],
                                           values[1],
                                           values[2],
                                           content ? values[3] : NULL,
                                           content ? values[4] : NULL};
            if (layer_missing || (missing > 0 && chance(w, 4))) {
                w->all_calibrated = false;
                continue;
            }
            for (int32_t f = 0; f < n_freq; f++) {
                values[0][f] = 3.0F * world_float(w);
                values[1][f] = chance(w, 10) ? 0.0F : 3.0F * world_float(w);
                values[2][f] = 3.0F + world_float(w); /* sometimes below |q|: not clamped */
            }
            for (int32_t d = 0; d < n_content; d++) {
                values[3][d] = world_float(w);
                values[4][d] = 1.0F;
            }
            must(tria_calibration_set_head(w->calibration, l, h, &stats, &error), &error, w);
            w->calibrated[l][h] = true;
        }
    }
}

static void store_u16(unsigned char *at, uint32_t value)
{
    const uint16_t bits = (uint16_t)value;
    memcpy(at, &bits, sizeof(bits));
}

/* One element or block of a plausible size. */
static void random_unit(world *w, unsigned char *at)
{
    const uint32_t bits = world_u32(w);
    const float number = 4.0F * world_float(w);
    switch (w->dtype) {
    case TRIA_DTYPE_F32:
        memcpy(at, &number, sizeof(number));
        return;
    case TRIA_DTYPE_F16:
        store_u16(at, (bits & 0x8fff) | 0x3000);
        return;
    case TRIA_DTYPE_BF16:
        store_u16(at, (bits & 0x80ff) | 0x3f00);
        return;
    case TRIA_DTYPE_FP8_E4M3FN:
    case TRIA_DTYPE_FP8_E4M3FNUZ:
    case TRIA_DTYPE_FP8_E5M2:
        *at = (unsigned char)((bits & 0xbf) | 0x20);
        return;
    case TRIA_DTYPE_INT8:
        *at = (unsigned char)bits;
        return;
    default:
        for (int32_t i = 0; i < tria_dtype_block_bytes(w->dtype); i++) {
            at[i] = (unsigned char)world_u32(w);
        }
        store_u16(at, 0x2800 | (bits & 0x3ff));
        if (w->dtype == TRIA_DTYPE_Q4_1 || w->dtype == TRIA_DTYPE_Q5_1) {
            store_u16(at + 2, 0xb000 | (bits >> 10 & 0x3ff));
        }
    }
}

static unsigned char *row_at(const world *w, int32_t layer, int32_t head, int32_t row)
{
    const tria_tensor *k = &w->layers[layer].k;
    const int32_t tokens = w->view.tokens_per_page;
    const int32_t page = tokens > 0 ? w->page_table[row / tokens] : 0;
    const int32_t token = tokens > 0 ? row % tokens : row;
    return (unsigned char *)k->base + k->offset + page * k->page_stride + token * k->token_stride +
           head * k->head_stride;
}

static float *scale_at(const world *w, int32_t layer, int32_t head, int32_t row)
{
    const tria_tensor *k = &w->layers[layer].k;
    const int32_t tokens = w->view.tokens_per_page;
    const int32_t page = tokens > 0 ? w->page_table[row / tokens] : 0;
    const int32_t token = tokens > 0 ? row % tokens : row;
    return w->scales[layer] +
           (page * k->scale_page_stride + token * k->scale_token_stride + head * k->scale_head_stride) /
               (int64_t)sizeof(float);
}

static void describe_cache(world *w, int32_t layer, int32_t dim)
{
    const int32_t n_heads = w->geometry[layer].n_kv_heads;
    const int32_t tokens = w->view.tokens_per_page > 0 ? w->view.tokens_per_page : WORLD_ROWS;
    const int32_t n_pages = w->view.tokens_per_page > 0 ? w->view.n_pages : 1;
    const int64_t row = tria_dtype_row_bytes(w->dtype, dim);
    tria_tensor *k = &w->layers[layer].k;
    memset(k, 0, sizeof(*k));
    k->dtype = w->dtype;
    k->dim = dim;
    if (chance(w, 2)) {
        k->token_stride = row;
        k->head_stride = row * tokens;
    } else {
        k->head_stride = row;
        k->token_stride = row * n_heads;
    }
    k->page_stride = row * tokens * n_heads;
    w->key_bytes[layer] = (size_t)(k->page_stride * n_pages);
    w->keys[layer] = grab(w->key_bytes[layer]);
    k->base = w->keys[layer];
    k->size = w->key_bytes[layer];
    if (w->dtype == TRIA_DTYPE_INT8 || (w->dtype < TRIA_DTYPE_INT8 && chance(w, 6))) {
        k->scale_kind = 1 + world_below(w, 3);
        k->scale = 0.02F;
        k->scale_head_stride = (int64_t)sizeof(float);
        k->scale_token_stride = n_heads * k->scale_head_stride;
        k->scale_page_stride = tokens * k->scale_token_stride;
        const int64_t count = (int64_t)n_pages * tokens * n_heads;
        w->scales[layer] = grab((size_t)count * sizeof(float));
        k->scales = w->scales[layer];
        for (int64_t i = 0; i < count; i++) {
            w->scales[layer][i] = 0.02F + 0.005F * world_float(w);
        }
    }
}

/* Bad numbers, zero rows and exact copies, now and then. */
static void spoil(world *w)
{
    if (w->n_rows == 0) {
        return;
    }
    for (int32_t l = 0; l < w->n_layers; l++) {
        const int32_t n_heads = w->layers[l].k.dim > 0 ? w->geometry[l].n_kv_heads : 0;
        for (int32_t h = 0; h < n_heads; h++) {
            const size_t bytes = (size_t)tria_dtype_row_bytes(w->dtype, w->layers[l].k.dim);
            unsigned char *row = row_at(w, l, h, world_below(w, w->n_rows));
            if (chance(w, 12)) {
                memcpy(row, row_at(w, l, h, world_below(w, w->n_rows)), bytes);
            }
            if (chance(w, 40)) {
                memset(row, 0, bytes);
            }
            /* anywhere: what content dimensions hold only matters where they are calibrated */
            const int32_t dim = world_below(w, w->geometry[l].head_dim);
            if (chance(w, 60) && w->dtype == TRIA_DTYPE_F32) {
                const uint32_t bad = chance(w, 2) ? 0x7fc00000 : 0xff800000;
                memcpy(row + dim * 4, &bad, sizeof(bad));
            }
            if (chance(w, 60) && w->dtype == TRIA_DTYPE_F16) {
                store_u16(row + dim * 2, 0x7c01);
            }
            for (int32_t i = 0; i < w->n_rows && chance(w, 200); i++) { /* a constant head */
                memmove(row_at(w, l, h, i), row_at(w, l, h, 0), bytes);
            }
        }
    }
}

static void random_cache(world *w)
{
    const bool paged = chance(w, 3);
    int32_t size = 0;
    tria_kv_view_init(&w->view);
    w->view.layers = w->layers;
    w->view.n_layers = w->n_layers;
    w->view.k_state = w->k_state;
    if (paged) {
        w->view.tokens_per_page = 1 + world_below(w, 24);
        w->view.n_pages = (WORLD_ROWS + w->view.tokens_per_page - 1) / w->view.tokens_per_page;
        w->view.page_table = w->page_table;
        for (int32_t i = 0; i < w->view.n_pages; i++) {
            const int32_t at = world_below(w, i + 1);
            w->page_table[i] = w->page_table[at];
            w->page_table[at] = i;
        }
    }
    for (int32_t l = 0; l < w->n_layers; l++) {
        const tria_layer_params *g = &w->geometry[l];
        if (g->n_kv_heads == 0 || g->kv_source >= 0) {
            continue;
        }
        int32_t dim = g->head_dim;
        if (chance(w, 5) && w->k_state != TRIA_K_HADAMARD) {
            dim += w->dtype >= TRIA_DTYPE_Q8_0 ? 32 : 1 + world_below(w, 9); /* padding */
        }
        describe_cache(w, l, dim);
        size = size == 0 || dim < size ? dim : size;
        for (size_t i = 0; i < w->key_bytes[l]; i += (size_t)tria_dtype_block_bytes(w->dtype)) {
            random_unit(w, w->keys[l] + i);
        }
    }
    if (w->k_state == TRIA_K_HADAMARD) {
        w->view.hadamard_size = chance(w, 2) ? size : 32;
        if (chance(w, 2)) {
            for (int32_t d = 0; d < 1024; d++) {
                w->signs[d] = chance(w, 2) ? 1.0F : -1.0F;
            }
            w->view.hadamard_signs = w->signs;
        }
    }
    spoil(w);
}

static void random_positions(world *w, int32_t *table, int32_t n, int64_t t)
{
    /* ascending, some gaps, the last is t - 1 (unless there are very few rows) */
    int64_t position = t - 1;
    for (int32_t i = n - 1; i >= 0; i--) {
        table[i] = (int32_t)position;
        position -= chance(w, 4) && position > 4 * (int64_t)n ? 1 + world_below(w, 3) : 1;
    }
    for (int32_t i = world_below(w, 10) - 1; i >= 0; i--) { /* and the first are the sequence's first */
        table[i < n ? i : 0] = i < n ? i : 0;
    }
}

static void random_event(world *w)
{
    const int32_t mode = w->params.mode;
    const int64_t t = chance(w, 6)   ? INT32_MAX
                      : chance(w, 3) ? w->n_rows + 1 + world_below(w, 100000)
                                     : w->n_rows + 4 * WORLD_ROWS + 8;
    const int32_t n_rows = w->n_rows;
    int32_t longest = 0;
    int32_t slot = 0;
    tria_event_init(&w->event);
    w->event.kv = &w->view;
    w->event.t = t;
    w->event.n_rows = n_rows;
    w->same_rows = mode != TRIA_MODE_PER_LAYER_PER_HEAD || chance(w, 2);
    random_positions(w, w->positions[0][0], n_rows, t);
    for (int32_t l = 0; l < w->n_layers; l++) {
        for (int32_t h = 0; h < WORLD_HEADS; h++) {
            int32_t n = n_rows;
            if (!w->same_rows) {
                n = 1 + world_below(w, n_rows + 1);
                n = n > n_rows ? n_rows : n;
                random_positions(w, w->positions[l][h], n, t);
            } else if (l + h > 0) {
                memcpy(w->positions[l][h], w->positions[0][0], sizeof(w->positions[0][0]));
            }
            if (h < w->geometry[l].n_kv_heads && w->geometry[l].kv_source < 0) {
                w->rows[slot++] = n;
                longest = n > longest ? n : longest;
            }
        }
    }
    w->n_rows = longest;
    w->event.rows = w->rows;
    w->event.positions = w->positions[0][0];
    w->event.positions_layer_stride = WORLD_HEADS * WORLD_ROWS;
    w->event.positions_head_stride = WORLD_ROWS;
    if (w->same_rows && chance(w, 3)) {
        w->event.positions_layer_stride = 0;
        w->event.positions_head_stride = 0;
    }
    if (chance(w, 3) && n_rows > 0) {
        w->event.n_prompts = 1 + world_below(w, 2);
        w->event.prompts = w->prompts;
        for (int32_t i = 0; i < w->event.n_prompts; i++) {
            const int32_t first = w->positions[0][0][world_below(w, n_rows)];
            const int32_t length = world_below(w, n_rows / 2 + 1);
            w->prompts[i].begin = first;
            w->prompts[i].end = first < INT32_MAX - length ? first + length : INT32_MAX;
        }
    }
    if (chance(w, 4) && n_rows > 0) {
        w->event.n_pins = 1 + world_below(w, 4);
        w->event.pins = w->pins;
        for (int32_t i = 0; i < w->event.n_pins; i++) {
            w->pins[i] = world_below(w, n_rows);
        }
    }
}

static void random_settings(world *w)
{
    tria_plan_params *p = &w->params;
    tria_plan_params_init(p);
    p->model = w->model;
    p->calibration = w->calibration;
    p->layout = &w->view;
    p->offsets = chance(w, 4);
    p->offset_max = chance(w, 6) ? 65536 : 1 << world_below(w, 6);
    p->disable_trig = chance(w, 12);
    p->disable_norm_excess = chance(w, 8);
    p->content_weight = chance(w, 3) ? world_float(w) : 1.0F;
    p->normalize_over = world_below(w, 3);
    p->group = chance(w, 3) ? TRIA_AGGREGATE_MEAN : TRIA_AGGREGATE_MAX;
    p->mode = world_below(w, 5);
    p->layers_agg = chance(w, 3) ? TRIA_AGGREGATE_MAX : TRIA_AGGREGATE_MEAN;
    p->pool_radius = chance(w, 5) ? 1 + world_below(w, 6) : 0;
    p->n_sink = chance(w, 2) ? world_below(w, 6) : 0;
    p->n_recent = chance(w, 2) ? world_below(w, 12) : 0;
    p->budget = p->n_sink + p->n_recent + 8 + world_below(w, 60);
    p->protect_prefill = chance(w, 2);
    p->count_prompt = chance(w, 2);
    p->use_layer_budgets = chance(w, 4);
    if (chance(w, 3)) {
        for (int32_t l = 0; l < w->n_layers; l++) {
            w->weights[l] = 1.5F + world_float(w) / 2.0F;
        }
        p->layer_weights = w->weights;
    }
    p->max_rows = WORLD_ROWS;
    p->max_sequences = 3;
}

void world_init(world *w, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->seed = seed;
    w->state = (seed + 1) * 0x9e3779b97f4a7c15ULL;
    w->dtype = world_below(w, TRIA_DTYPE_COUNT);
    /* plans for raw keys take long to make */
    w->k_state = chance(w, 40) ? TRIA_K_RAW : chance(w, 6) ? TRIA_K_HADAMARD : TRIA_K_ROTATED;
    w->n_rows = chance(w, 20) ? world_below(w, 3) : 1 + world_below(w, WORLD_ROWS);
    random_geometry(w);
    random_calibration(w);
    random_cache(w);
    random_settings(w);
    random_event(w);
}

void world_free(world *w)
{
    tria_calibration_destroy(w->calibration);
    tria_model_destroy(w->model);
    for (int32_t l = 0; l < w->n_layers; l++) {
        free(w->keys[l]);
        free(w->scales[l]);
    }
}

void world_permute(world *w, const int32_t *from)
{
    for (int32_t l = 0; l < w->n_layers; l++) {
        const tria_tensor *k = &w->layers[l].k;
        const size_t bytes = (size_t)tria_dtype_row_bytes(k->dtype, k->dim);
        const int32_t n_heads = k->base != NULL ? w->geometry[l].n_kv_heads : 0;
        for (int32_t h = 0; h < n_heads; h++) {
            unsigned char *copy = grab((size_t)w->n_rows * bytes);
            float scales[WORLD_ROWS];
            for (int32_t i = 0; i < w->n_rows; i++) {
                memcpy(copy + (size_t)i * bytes, row_at(w, l, h, from[i]), bytes);
                scales[i] = k->scale_kind == TRIA_SCALE_ROW ? *scale_at(w, l, h, from[i]) : 0.0F;
            }
            for (int32_t i = 0; i < w->n_rows; i++) {
                memcpy(row_at(w, l, h, i), copy + (size_t)i * bytes, bytes);
                if (k->scale_kind == TRIA_SCALE_ROW) {
                    *scale_at(w, l, h, i) = scales[i];
                }
            }
            free(copy);
        }
        for (int32_t h = 0; h < WORLD_HEADS; h++) {
            int32_t old[WORLD_ROWS];
            memcpy(old, w->positions[l][h], sizeof(old));
            for (int32_t i = 0; i < w->n_rows; i++) {
                w->positions[l][h][i] = old[from[i]];
            }
        }
    }
    for (int32_t i = 0; i < w->event.n_pins; i++) {
        int32_t at = 0;
        while (from[at] != w->pins[i]) {
            at++;
        }
        w->pins[i] = at;
    }
}

void world_print(const world *w, FILE *file)
{
    const tria_plan_params *p = &w->params;
    fprintf(file,
            "  --seed %llu --count 1\n  k %s, state %d, rows %d (same %d), t %lld, tokens per page %d, ",
            (unsigned long long)w->seed, tria_dtype_name(w->dtype), w->k_state, w->n_rows, w->same_rows,
            (long long)w->event.t, w->view.tokens_per_page);
    fprintf(file, "hadamard %d\n", w->view.hadamard_size);
    for (int32_t l = 0; l < w->n_layers; l++) {
        const tria_layer_params *g = &w->geometry[l];
        fprintf(
            file,
            "  layer %d: %d/%d heads, dim %d (stored %d), rotary %d at %d, style %d, kv_source %d, window "
            "%d, scale kind %d\n",
            l, g->n_q_heads, g->n_kv_heads, g->head_dim, w->layers[l].k.dim, g->rotary_dim,
            g->rotary_offset, g->rope_style, g->kv_source, g->window, w->layers[l].k.scale_kind);
    }
    fprintf(
        file,
        "  mode %s, normalize %d, group %d, layers_agg %d, pool %d, offsets %d to %d, trig off %d, excess "
        "off %d, content %g\n  budget %d, sinks %d, recent %d, prefill %d, count_prompt %d, layer budgets "
        "%d, weights %d, prompts %d, pins %d, calibrated %s\n",
        tria_mode_name(p->mode), p->normalize_over, p->group, p->layers_agg, p->pool_radius, p->offsets,
        p->offset_max, p->disable_trig, p->disable_norm_excess, (double)p->content_weight, p->budget,
        p->n_sink, p->n_recent, p->protect_prefill, p->count_prompt, p->use_layer_budgets,
        p->layer_weights != NULL, w->event.n_prompts, w->event.n_pins,
        w->calibration == NULL ? "none"
        : w->all_calibrated    ? "all"
                               : "partly");
}

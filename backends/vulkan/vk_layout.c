/* vk_layout.c - see vk_layout.h. */
#include "vk_layout.h"

#include <string.h>

bool vk_is_pooled(const tria_v1_plan *plan)
{
    const int32_t mode = plan->params->mode;
    return mode == TRIA_MODE_PER_HEAD || mode == TRIA_MODE_UNION || mode == TRIA_MODE_GLOBAL;
}

int32_t vk_first_slot(const tria_v1_plan *plan, int32_t set)
{
    int32_t slot = 0;
    while (plan->kv[slot].set != set) {
        slot++;
    }
    return slot;
}

/* Hands out consecutive words; remembers when they no longer fit into 32 bits. */
typedef struct cursor {
    uint64_t next;
    bool overflow;
} cursor;

static uint32_t take(cursor *c, uint64_t count)
{
    const uint64_t at = c->next;
    c->overflow = c->overflow || __builtin_add_overflow(c->next, count, &c->next) || c->next >= NONE;
    return (uint32_t)at;
}

static uint64_t rotation_words(const tria_v1_layer *layer)
{
    return (uint64_t)3 * TRIA_ROTATION_DIGITS * (uint64_t)layer->n_freq * 2;
}

static bool owns_rotation(const tria_v1_plan *plan, int32_t l)
{
    return plan->k_state == TRIA_K_RAW && plan->layers[l].phase_layer == l && plan->layers[l].n_q_heads > 0;
}

static uint32_t layout_constants(vk_layout *layout, const tria_v1_plan *plan, cursor *c)
{
    uint32_t *h = layout->header;
    c->next = PLAN_HEADER_WORDS;
    h[PLAN_KV] = take(c, (uint64_t)plan->n_kv * KV_WORDS);
    h[PLAN_QUERIES] = take(c, (uint64_t)plan->n_queries * QUERY_WORDS);
    h[PLAN_SETS] = take(c, (uint64_t)plan->n_sets * SET_WORDS);
    h[PLAN_GROUP] = take(c, (uint64_t)plan->n_group);
    /* every slot is a member of at most one list; lists that are borrowed are stored once */
    h[PLAN_MEMBERS] = take(c, (uint64_t)plan->n_kv + (uint64_t)plan->n_queries);
    h[PLAN_MAG] = take(c, (uint64_t)plan->mag_count);
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const uint32_t at = owns_rotation(plan, l) ? take(c, rotation_words(&plan->layers[l])) : NONE;
        if (layout->rotation != NULL) {
            layout->rotation[l] = at != NONE || plan->k_state != TRIA_K_RAW
                                      ? at
                                      : layout->rotation[plan->layers[l].phase_layer];
        }
    }
    return (uint32_t)c->next;
}

static void layout_inputs(vk_layout *layout, const tria_v1_plan *plan, cursor *c)
{
    const uint64_t max_rows = (uint64_t)plan->max_rows;
    const uint64_t n_kv = (uint64_t)plan->n_kv;
    const uint64_t n_sets = (uint64_t)plan->n_sets;
    uint32_t *h = layout->header;
    c->next = IN_HEADER_WORDS;
    h[PLAN_IN_ROWS] = take(c, n_kv);
    h[PLAN_IN_POSITION_BASE] = take(c, n_kv);
    h[PLAN_IN_BY_POSITION] = take(c, n_sets);
    h[PLAN_IN_RECENT_BEGIN] = take(c, n_sets);
    h[PLAN_IN_BUDGETS] = take(c, n_sets);
    h[PLAN_IN_TABLE_BASE] = take(c, (uint64_t)plan->n_layers);
    h[PLAN_IN_ZERO_TABLE_BASE] = take(c, (uint64_t)plan->n_layers);
    h[PLAN_IN_PINS] = take(c, (max_rows + 31) / 32);
    h[PLAN_IN_LIN] = take(c, (uint64_t)plan->lin_count);
    layout->inputs_fixed = (uint32_t)c->next;
    layout->max_pages = plan->tokens_per_page > 0 ? (plan->max_rows - 1) / plan->tokens_per_page + 1 : 0;
    take(c, 2 * max_rows); /* prompts: more ranges than rows make no sense */
    take(c, ((uint64_t)plan->n_layers + 1) * (uint64_t)layout->max_pages);
    take(c, n_kv * max_rows); /* positions */
    layout->inputs = (uint32_t)c->next;
}

static void layout_work(vk_layout *layout, const tria_v1_plan *plan, cursor *c)
{
    const uint64_t max_rows = (uint64_t)plan->max_rows;
    const uint64_t n_kv = (uint64_t)plan->n_kv;
    const uint64_t n_sets = (uint64_t)plan->n_sets;
    uint32_t *h = layout->header;
    c->next = 0;
    h[PLAN_BAD_ROWS] = take(c, (max_rows + 31) / 32);
    h[PLAN_NONZERO] = take(c, n_kv);
    h[PLAN_UNSORTED] = take(c, n_sets);
    h[PLAN_N_PROTECTED] = take(c, n_sets);
    h[PLAN_N_PROMPT] = take(c, n_sets);
    h[PLAN_LIMITS] = take(c, n_sets);
    h[PLAN_COUNTS] = take(c, n_sets);
    layout->report = (uint32_t)c->next;
    h[PLAN_N_MOVES] = take(c, n_sets);
    h[PLAN_QUERY_STATS] = take(c, (uint64_t)plan->n_queries * 4);
    h[PLAN_GROUPED_STATS] = take(c, n_kv * 4);
    h[PLAN_PROTECTED_BITS] = take(c, n_sets * ((max_rows + 31) / 32));
    h[PLAN_GROUPED] = take(c, n_kv * max_rows);
    h[PLAN_FINAL] = take(c, n_sets * max_rows);
    h[PLAN_POOL_INPUT] = take(c, plan->params->pool_radius > 0 ? n_sets * max_rows : 0);
    layout->work = (uint32_t)c->next;
}

tria_status vk_layout_init(vk_layout *layout, const tria_v1_plan *plan, tria_error *error)
{
    const tria_plan_params *params = plan->params;
    const uint64_t sets = (uint64_t)plan->n_sets * (uint64_t)plan->max_rows;
    uint32_t *rotation = layout->rotation;
    cursor c = {0, false};
    memset(layout, 0, sizeof(*layout));
    layout->rotation = rotation;
    uint32_t *h = layout->header;
    h[PLAN_MAX_ROWS] = (uint32_t)plan->max_rows;
    h[PLAN_N_SETS] = (uint32_t)plan->n_sets;
    h[PLAN_NORMALIZE] = (uint32_t)params->normalize_over;
    h[PLAN_GROUP_MEAN] = params->group == TRIA_AGGREGATE_MEAN;
    h[PLAN_TOKENS_PER_PAGE] = plan->tokens_per_page > 0 ? (uint32_t)plan->tokens_per_page : 1;
    h[PLAN_COUNT_PROMPT] = params->count_prompt != 0;
    h[PLAN_POOL_RADIUS] = (uint32_t)params->pool_radius;
    h[PLAN_FILL_HOLES] = params->order == TRIA_ORDER_FILL_HOLES;
    layout->constants = layout_constants(layout, plan, &c);
    layout_inputs(layout, plan, &c);
    layout_work(layout, plan, &c);

    c.next = 0;
    layout->raw = (uint32_t)((uint64_t)plan->n_queries * (uint64_t)plan->max_rows);
    take(&c, (uint64_t)plan->n_queries * (uint64_t)plan->max_rows);
    c.next = 0;
    h[PLAN_KEEP_ROWS] = take(&c, sets);
    h[PLAN_MOVE_FROM] = take(&c, sets);
    h[PLAN_MOVE_TO] = take(&c, sets);
    layout->keep = (uint32_t)c.next;
    c.next = layout->inputs;
    layout->upload_keep = take(&c, (uint64_t)plan->n_sets + sets);
    layout->upload = (uint32_t)c.next;
    c.next = layout->report;
    layout->readback_keep = take(&c, sets > (uint64_t)plan->max_rows ? sets : (uint64_t)plan->max_rows);
    layout->readback = (uint32_t)c.next;
    if (c.overflow) {
        return vk_fail(error, TRIA_E_UNSUPPORTED,
                       "vulkan: max_rows %d with %d query heads and %d keep sets does not fit into 32-bit "
                       "indices",
                       plan->max_rows, plan->n_queries, plan->n_sets);
    }
    return TRIA_OK;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void fill_slots(const vk_layout *layout, const tria_v1_plan *plan, uint32_t *words)
{
    for (int32_t s = 0; s < plan->n_kv; s++) {
        const tria_v1_kv *kv = &plan->kv[s];
        uint32_t *w = words + layout->header[PLAN_KV] + s * KV_WORDS;
        w[KV_SET] = kv->set >= 0 ? (uint32_t)kv->set : NONE;
        w[KV_GROUP_BEGIN] = (uint32_t)kv->group_begin;
        w[KV_GROUP_END] = (uint32_t)kv->group_end;
        w[KV_N_CALIBRATED] = (uint32_t)kv->n_calibrated;
        w[KV_WEIGHT] = bits_of((float)plan->layers[kv->layer].weight);
    }
    for (int32_t q = 0; q < plan->n_queries; q++) {
        const tria_v1_query *query = &plan->queries[q];
        uint32_t *w = words + layout->header[PLAN_QUERIES] + q * QUERY_WORDS;
        w[QUERY_KV] = (uint32_t)query->kv_slot;
        w[QUERY_CALIBRATED] = query->calibrated != 0;
        w[QUERY_LIN] = (uint32_t)query->lin_offset;
        w[QUERY_MAG] = (uint32_t)query->mag_offset;
        w[QUERY_CONTENT] = query->content_mean != NULL;
    }
}

typedef struct member_list {
    uint32_t *words;
    uint32_t count;
} member_list;

/* Calibrated query slots of the KV slots with a set, of one layer or (layer -1) of all. */
static void add_queries(const tria_v1_plan *plan, int32_t layer, member_list *list)
{
    for (int32_t s = 0; s < plan->n_kv; s++) {
        const tria_v1_kv *kv = &plan->kv[s];
        if (kv->set < 0 || (layer >= 0 && kv->layer != layer)) {
            continue;
        }
        for (int32_t g = kv->group_begin; g < kv->group_end; g++) {
            if (plan->queries[plan->group[g]].calibrated) {
                list->words[list->count++] = (uint32_t)plan->group[g];
            }
        }
    }
}

static void fill_sets(const vk_layout *layout, const tria_v1_plan *plan, uint32_t *words)
{
    const int32_t mode = plan->params->mode;
    member_list list = {words + layout->header[PLAN_MEMBERS], 0};
    int32_t borrowed_layer = -2; /* whose query heads were listed last; -1: those of all layers */
    uint32_t borrowed_begin = 0;
    uint32_t borrowed_end = 0;
    for (int32_t set = 0; set < plan->n_sets; set++) {
        const int32_t first = vk_first_slot(plan, set);
        uint32_t *w = words + layout->header[PLAN_SETS] + set * SET_WORDS;
        w[SET_KV] = (uint32_t)first;
        w[SET_BEGIN] = list.count;
        if (plan->kv[first].borrows) {
            const int32_t layer = mode == TRIA_MODE_PER_HEAD ? -1 : plan->kv[first].layer;
            if (layer != borrowed_layer) {
                borrowed_layer = layer;
                borrowed_begin = list.count;
                add_queries(plan, layer, &list);
                borrowed_end = list.count;
            }
            w[SET_KIND] = KIND_QUERY;
            w[SET_MEAN] = 1;
            w[SET_BEGIN] = borrowed_begin;
            w[SET_END] = borrowed_end;
            continue;
        }
        if (mode == TRIA_MODE_UNION) {
            w[SET_KIND] = KIND_QUERY;
            w[SET_MEAN] = 0;
            add_queries(plan, -1, &list);
        } else {
            w[SET_KIND] = mode == TRIA_MODE_GLOBAL ? KIND_GLOBAL : KIND_GROUPED;
            w[SET_MEAN] = mode == TRIA_MODE_PER_HEAD && plan->params->layers_agg == TRIA_AGGREGATE_MEAN;
            for (int32_t s = 0; s < plan->n_kv; s++) {
                if (plan->kv[s].set == set && plan->kv[s].n_calibrated > 0) {
                    list.words[list.count++] = (uint32_t)s;
                }
            }
        }
        w[SET_END] = list.count;
    }
}

void vk_constants_fill(const vk_layout *layout, const tria_v1_plan *plan, const tria_v1_host *host,
                       void *constants)
{
    uint32_t *words = constants;
    memcpy(words, layout->header, sizeof(layout->header));
    fill_slots(layout, plan, words);
    fill_sets(layout, plan, words);
    for (int32_t g = 0; g < plan->n_group; g++) {
        words[layout->header[PLAN_GROUP] + (uint32_t)g] = (uint32_t)plan->group[g];
    }
    if (plan->mag_count > 0) {
        memcpy(words + layout->header[PLAN_MAG], plan->mag, sizeof(float) * (size_t)plan->mag_count);
    }
    for (int32_t l = 0; l < plan->n_layers; l++) {
        if (owns_rotation(plan, l)) {
            host->rotation_tables(plan, l, (float *)constants + layout->rotation[l]);
        }
    }
}

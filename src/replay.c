/* replay.c - recomputing the compactions of a trace file and comparing. */
#include "trace_internal.h"

#include "crc32c.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void tria_replay_params_init(tria_replay_params *params)
{
    memset(params, 0, sizeof(*params));
    params->struct_size = sizeof(*params);
}

void tria_replay_report_init(tria_replay_report *report)
{
    memset(report, 0, sizeof(*report));
    report->struct_size = sizeof(*report);
}

typedef struct replay {
    const tria_env *env;
    const tria_replay_params *params;
    tria_replay_report report;
    tria_reader plan_record; /* the last one, after its id */
    uint32_t plan_id;        /* 0: none yet */
    double sum_jaccard;
    int64_t next_token; /* positions below were counted */
    size_t file_size;
} replay;

/* One compaction as recorded; arrays are this struct's. */
typedef struct recorded {
    tria_plan *plan;
    int32_t number;
    int32_t max_rows;
    tria_event event;
    tria_kv_view view;
    tria_layer_view *layers;
    int32_t *rows;      /* [n_kv] */
    int32_t *positions; /* [n_kv][max_rows] by layer and head */
    tria_range *prompts;
    int32_t *pins;
    int32_t content;
    uint32_t has_scores;
    float *raw; /* [n_queries][max_rows] */
    tria_keep keep;
    float *raw_again;
    tria_keep again;
} recorded;

static void release_recorded(const tria_env *env, recorded *r)
{
    for (int32_t l = 0; r->layers != NULL && l < r->view.n_layers; l++) {
        tria_free(env, r->layers[l].k.base);
        tria_free(env, r->layers[l].k.scales);
        tria_free(env, r->layers[l].v.base);
        tria_free(env, r->layers[l].v.scales);
    }
    tria_free(env, r->layers);
    tria_free(env, r->rows);
    tria_free(env, r->positions);
    tria_free(env, r->prompts);
    tria_free(env, r->pins);
    tria_free(env, r->raw);
    tria_free(env, r->raw_again);
    tria_free(env, r->keep.rows);
    tria_free(env, r->keep.counts);
    tria_free(env, r->again.rows);
    tria_free(env, r->again.counts);
    tria_plan_destroy(r->plan);
}

static tria_status damaged(tria_error *error, const char *what)
{
    return tria_fail(error, TRIA_E_FORMAT, "compaction record: %s", what);
}

/* tria_alloc() for counts from the file: refuses what the file could not have filled. */
static tria_status take(const replay *r, void *pointer, size_t count, size_t size, tria_error *error)
{
    size_t bytes;
    void *memory;
    if (!tria_mul(count, size, &bytes) || bytes / 64 > r->file_size) {
        return damaged(error, "its numbers ask for far more memory than the file could fill");
    }
    memory = tria_alloc(r->env, count > 0 ? count : 1, size);
    if (memory == NULL) {
        return tria_fail_memory(error, bytes, "a replay");
    }
    memcpy(pointer, &memory, sizeof(memory));
    return TRIA_OK;
}

/* Rows per KV slot and where their positions are; a second reader walks the same bytes for the longest. */
static tria_status find_max_rows(tria_reader reader, int32_t n_kv, int32_t *max_rows)
{
    *max_rows = 0;
    for (int32_t s = 0; s < n_kv; s++) {
        const int32_t rows = tria_read_i32(&reader);
        const int32_t same = tria_read_i32(&reader);
        if (rows < 0 || same < -2 || same >= s) {
            return TRIA_E_FORMAT;
        }
        if (same == -1) {
            tria_read_bytes(&reader, 4 * (uint64_t)rows);
        }
        *max_rows = rows > *max_rows ? rows : *max_rows;
    }
    return reader.failed || *max_rows == 0 ? TRIA_E_FORMAT : TRIA_OK;
}

/* KV slots of a plan record, to know how many there are before the plan can be made. */
static int32_t count_kv_slots(tria_reader reader)
{
    int32_t slots = 0;
    const int32_t n_layers = tria_read_i32(&reader);
    for (int32_t l = 0; !reader.failed && l < n_layers; l++) {
        const int32_t q_heads = tria_read_i32(&reader);
        const int32_t kv_heads = tria_read_i32(&reader);
        tria_read_i32(&reader);
        const int32_t rotary_dim = tria_read_i32(&reader);
        tria_read_bytes(&reader, 4 * 4 + 4); /* offset, style, kv_layer, window, weight */
        if (kv_heads < 0 || kv_heads > TRIA_MAX_HEADS || rotary_dim < 0) {
            return 0;
        }
        if (q_heads > 0) {
            tria_read_bytes(&reader, 16 * (uint64_t)(rotary_dim / 2));
        }
        if (kv_heads > 0) {
            tria_read_bytes(&reader, 2 * 16);
        }
        slots += kv_heads;
    }
    return reader.failed ? 0 : slots;
}

static tria_status read_positions(const replay *r, tria_reader *reader, recorded *c, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    int32_t n_heads = 1;
    for (int32_t l = 0; l < v1->n_layers; l++) {
        n_heads = v1->layers[l].n_kv_heads > n_heads ? v1->layers[l].n_kv_heads : n_heads;
    }
    TRIA_TRY(take(r, &c->rows, (size_t)v1->n_kv, sizeof(int32_t), error));
    TRIA_TRY(take(r, &c->positions, (size_t)v1->n_layers * (size_t)n_heads * (size_t)c->max_rows,
                  sizeof(int32_t), error));
    c->event.rows = c->rows;
    c->event.positions = c->positions;
    c->event.positions_head_stride = c->max_rows;
    c->event.positions_layer_stride = (int64_t)n_heads * c->max_rows;
    for (int32_t s = 0; s < v1->n_kv; s++) {
        int32_t *positions = tria_event_positions(&c->event, v1->kv[s].layer, v1->kv[s].head);
        const int32_t rows = tria_read_i32(reader);
        const int32_t same = tria_read_i32(reader);
        c->rows[s] = rows;
        if (same == -1) {
            tria_read_i32s(reader, positions, rows);
        } else if (same == -2) {
            for (int32_t i = 0; i < rows; i++) {
                positions[i] = i;
            }
        } else {
            if (c->rows[same] != rows) {
                return damaged(error, "positions are taken from a head with other rows");
            }
            memcpy(positions, tria_event_positions(&c->event, v1->kv[same].layer, v1->kv[same].head),
                   (size_t)rows * sizeof(*positions));
        }
    }
    return TRIA_OK;
}

static tria_status read_protections(const replay *r, tria_reader *reader, recorded *c, tria_error *error)
{
    c->event.n_prompts = tria_read_i32(reader);
    if (c->event.n_prompts < 0) {
        return damaged(error, "a negative number of prompts");
    }
    TRIA_TRY(take(r, &c->prompts, (size_t)c->event.n_prompts, sizeof(*c->prompts), error));
    for (int32_t i = 0; i < c->event.n_prompts; i++) {
        c->prompts[i].begin = tria_read_i32(reader);
        c->prompts[i].end = tria_read_i32(reader);
    }
    c->event.prompts = c->prompts;
    c->event.n_pins = tria_read_i32(reader);
    if (c->event.n_pins < 0) {
        return damaged(error, "a negative number of pins");
    }
    TRIA_TRY(take(r, &c->pins, (size_t)c->event.n_pins, sizeof(*c->pins), error));
    tria_read_i32s(reader, c->pins, c->event.n_pins);
    c->event.pins = c->pins;
    return reader->failed ? damaged(error, "it ends within prompts or pins") : TRIA_OK;
}

/* One lane of a cache: into `tensor` (NULL: only compared), whose head `head` has room for it. */
static tria_status read_lane(tria_reader *reader, const tria_tensor *layout, tria_tensor *tensor,
                             int32_t head, int32_t rows, int32_t content, bool *differs, tria_error *error)
{
    const int64_t row_bytes = tria_dtype_row_bytes(layout->dtype, layout->dim);
    const int32_t n = tria_read_i32(reader);
    const uint32_t crc = tria_read_u32(reader);
    const bool scaled = layout->scale_kind == TRIA_SCALE_ROW;
    if (n != rows && n != 0) {
        return damaged(error, "a head's rows are not as many as its positions");
    }
    if (content == TRIA_TRACE_DECISIONS) {
        return TRIA_OK;
    }
    const unsigned char *bytes = tria_read_bytes(reader, (uint64_t)n * (uint64_t)row_bytes);
    const unsigned char *scales = scaled ? tria_read_bytes(reader, 4 * (uint64_t)n) : NULL;
    if (reader->failed || tria_crc32c(0, bytes, (size_t)(n * row_bytes)) != crc) {
        return damaged(error, "a head's rows do not have their checksum");
    }
    if (tensor == NULL) {
        return TRIA_OK;
    }
    unsigned char *to = (unsigned char *)tensor->base + head * tensor->head_stride;
    if (differs != NULL) {
        *differs = *differs || memcmp(to, bytes, (size_t)(n * row_bytes)) != 0;
    } else {
        memcpy(to, bytes, (size_t)(n * row_bytes));
        for (int32_t i = 0; scaled && i < n; i++) {
            ((float *)tensor->scales)[(int64_t)head * (tensor->scale_head_stride / 4) + i] =
                tria_load_f32(scales + 4 * (size_t)i);
        }
    }
    return TRIA_OK;
}

/* The cache as recorded: into the view, or (with `differs`) compared with it. */
static tria_status read_cache(tria_reader *reader, recorded *c, const int32_t *rows, int32_t *content,
                              bool *differs, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    *content = tria_read_i32(reader);
    if (*content < TRIA_TRACE_DECISIONS || *content > TRIA_TRACE_CACHE) {
        return damaged(error, "an unknown kind of content");
    }
    for (int32_t s = 0; s < v1->n_kv; s++) {
        const tria_v1_layer *layer = &v1->layers[v1->kv[s].layer];
        tria_layer_view *view = &c->layers[v1->kv[s].layer];
        TRIA_TRY(read_lane(reader, &layer->k, view->k.base != NULL ? &view->k : NULL, v1->kv[s].head,
                           rows[s], *content, differs, error));
        if (*content == TRIA_TRACE_CACHE && layer->v.dim != 0) {
            TRIA_TRY(read_lane(reader, &layer->v, view->v.base != NULL ? &view->v : NULL, v1->kv[s].head,
                               rows[s], *content, differs, error));
        }
    }
    return TRIA_OK;
}

static tria_status take_tensor(const replay *r, const tria_tensor *layout, int32_t n_heads,
                               int32_t max_rows, tria_tensor *tensor, tria_error *error)
{
    *tensor = *layout;
    tensor->base = NULL;
    tensor->scales = NULL;
    if (layout->dim == 0) {
        return TRIA_OK;
    }
    const size_t rows = (size_t)n_heads * (size_t)max_rows;
    TRIA_TRY(take(r, &tensor->base, rows, (size_t)tria_dtype_row_bytes(layout->dtype, layout->dim), error));
    return layout->scale_kind == TRIA_SCALE_ROW ? take(r, &tensor->scales, rows, sizeof(float), error)
                                                : TRIA_OK;
}

/* Memory for the cache, when the record holds keys; V too when it holds all. */
static tria_status take_cache(const replay *r, recorded *c, int32_t content, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    TRIA_TRY(take(r, &c->layers, (size_t)v1->n_layers, sizeof(*c->layers), error));
    tria_kv_view_init(&c->view);
    c->view.layers = c->layers;
    c->view.n_layers = v1->n_layers;
    c->view.k_state = v1->k_state;
    c->view.hadamard_size = v1->hadamard_size;
    c->view.hadamard_signs = v1->hadamard_signs;
    c->event.kv = &c->view;
    for (int32_t l = 0; content > TRIA_TRACE_DECISIONS && l < v1->n_layers; l++) {
        const tria_v1_layer *layer = &v1->layers[l];
        if (layer->n_kv_heads == 0) {
            continue;
        }
        TRIA_TRY(take_tensor(r, &layer->k, layer->n_kv_heads, c->max_rows, &c->layers[l].k, error));
        if (content == TRIA_TRACE_CACHE) {
            TRIA_TRY(take_tensor(r, &layer->v, layer->n_kv_heads, c->max_rows, &c->layers[l].v, error));
        }
    }
    return TRIA_OK;
}

static int32_t slot_of_set(const tria_v1_plan *v1, int32_t set)
{
    int32_t s = 0;
    while (s < v1->n_kv && v1->kv[s].set != set) {
        s++;
    }
    return s; /* every set has one */
}

static tria_status take_keep(const replay *r, const recorded *c, tria_keep *keep, tria_error *error)
{
    const size_t n_sets = (size_t)c->plan->resolved.plan.n_sets;
    tria_keep_init(keep);
    TRIA_TRY(take(r, &keep->rows, n_sets * (size_t)c->max_rows, sizeof(int32_t), error));
    TRIA_TRY(take(r, &keep->counts, n_sets, sizeof(int32_t), error));
    keep->row_stride = c->max_rows;
    return TRIA_OK;
}

static tria_status read_decision(const replay *r, tria_reader *reader, recorded *c, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    c->has_scores = tria_read_u32(reader);
    if (c->has_scores > 1) {
        return damaged(error, "neither scores nor none");
    }
    if (c->has_scores) {
        TRIA_TRY(take(r, &c->raw, (size_t)v1->n_queries * (size_t)c->max_rows, sizeof(float), error));
        for (int32_t q = 0; q < v1->n_queries; q++) {
            const int32_t slot = v1->queries[q].kv_slot;
            tria_read_f32s(reader, c->raw + (size_t)q * (size_t)c->max_rows, slot >= 0 ? c->rows[slot] : 0);
        }
        for (int32_t s = 0; s < v1->n_sets; s++) {
            tria_read_bytes(reader, 4 * (uint64_t)c->rows[slot_of_set(v1, s)]); /* final scores */
        }
    }
    TRIA_TRY(take_keep(r, c, &c->keep, error));
    for (int32_t s = 0; s < v1->n_sets; s++) {
        const int32_t n = c->rows[slot_of_set(v1, s)];
        int32_t *rows = c->keep.rows + (size_t)s * (size_t)c->max_rows;
        c->keep.counts[s] = tria_read_i32(reader);
        if (c->keep.counts[s] < 0 || c->keep.counts[s] > n) {
            return damaged(error, "a keep set has more rows than there are");
        }
        tria_read_i32s(reader, rows, c->keep.counts[s]);
        for (int32_t i = 0; i < c->keep.counts[s]; i++) {
            if (rows[i] < (i > 0 ? rows[i - 1] + 1 : 0) || rows[i] >= n) {
                return damaged(error, "a keep set is not ascending");
            }
        }
    }
    tria_read_bytes(reader, 16); /* report */
    return reader->failed ? damaged(error, "it ends within the keep sets") : TRIA_OK;
}

/* ---- comparing ---- */

static double score_error(const recorded *c, int32_t set)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    double worst = c->has_scores ? 0.0 : (double)NAN;
    for (int32_t q = 0; c->has_scores && q < v1->n_queries; q++) {
        const int32_t slot = v1->queries[q].kv_slot;
        const size_t at = (size_t)q * (size_t)c->max_rows;
        if (slot < 0 || v1->kv[slot].set != set || !v1->queries[q].calibrated) {
            continue;
        }
        for (int32_t i = 0; i < c->rows[slot]; i++) {
            const double a = (double)c->raw[at + (size_t)i];
            const double b = (double)c->raw_again[at + (size_t)i];
            const double difference = isfinite(a) && isfinite(b)   ? fabs(a - b)
                                      : isfinite(a) == isfinite(b) ? 0.0
                                                                   : (double)INFINITY;
            worst = difference > worst ? difference : worst;
        }
    }
    return worst;
}

static void compare_set(replay *r, const recorded *c, int32_t set)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    const int32_t slot = slot_of_set(v1, set);
    const int32_t *old = c->keep.rows + (size_t)set * (size_t)c->max_rows;
    const int32_t *again = c->again.rows + (size_t)set * (size_t)c->max_rows;
    tria_replay_set result = {.struct_size = sizeof(result),
                              .compaction = c->number,
                              .set = set,
                              .layer = v1->layers[v1->kv[slot].layer].model_layer,
                              .kv_head = v1->kv[slot].head,
                              .n_recorded = c->keep.counts[set],
                              .n_replayed = c->again.counts[set],
                              .first_row = -1,
                              .first_position = -1};
    int32_t i = 0;
    int32_t j = 0;
    while (i < result.n_recorded || j < result.n_replayed) {
        const int32_t a = i < result.n_recorded ? old[i] : INT32_MAX;
        const int32_t b = j < result.n_replayed ? again[j] : INT32_MAX;
        if (a == b) {
            result.n_common++;
        } else if (result.first_row < 0) {
            result.first_row = a < b ? a : b;
            result.first_recorded = a < b;
            result.first_position =
                tria_event_positions(&c->event, v1->kv[slot].layer, v1->kv[slot].head)[result.first_row];
        }
        i += a <= b;
        j += b <= a;
    }
    const int32_t all = result.n_recorded + result.n_replayed - result.n_common;
    result.jaccard = all > 0 ? (double)result.n_common / all : 1.0;
    result.max_score_error = score_error(c, set);
    r->report.n_sets++;
    r->report.n_exact += result.first_row < 0;
    r->report.n_evicted += c->rows[slot] - result.n_recorded;
    r->sum_jaccard += result.jaccard;
    if (result.jaccard < r->report.min_jaccard) {
        r->report.min_jaccard = result.jaccard;
    }
    if (result.max_score_error > r->report.max_score_error) {
        r->report.max_score_error = result.max_score_error;
    }
    if (r->params->on_set != NULL) {
        r->params->on_set(r->params->context, &result);
    }
}

static tria_status select_again(replay *r, recorded *c, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    tria_scores scores;
    tria_batch batch;
    TRIA_TRY(take(r, &c->raw_again, (size_t)v1->n_queries * (size_t)c->max_rows, sizeof(float), error));
    TRIA_TRY(take_keep(r, c, &c->again, error));
    tria_scores_init(&scores);
    scores.row_stride = c->max_rows;
    scores.raw = c->raw_again;
    tria_batch_init(&batch);
    batch.events = &c->event;
    batch.n_events = 1;
    TRIA_TRY(tria_plan_select(c->plan, &batch, &scores, &c->again, error));
    TRIA_TRY(tria_plan_synchronize(c->plan, error));
    for (int32_t s = 0; s < v1->n_sets; s++) {
        compare_set(r, c, s);
    }
    r->report.n_replayed++;
    return TRIA_OK;
}

/* Repacks the recorded cache by the recorded keep sets and compares bytes and moves. */
static tria_status compact_again(replay *r, tria_reader *reader, recorded *c, tria_error *error)
{
    const tria_v1_plan *v1 = &c->plan->resolved.plan;
    tria_compaction done;
    tria_batch batch;
    int32_t content;
    bool differs = false;
    tria_read_i64(reader); /* bytes moved */
    const int64_t n_moves = tria_read_i64(reader);
    const unsigned char *moves =
        n_moves >= 0 && n_moves <= INT32_MAX ? tria_read_bytes(reader, 16 * (uint64_t)n_moves) : NULL;
    const int32_t n_freed = tria_read_i32(reader);
    if (moves == NULL || n_freed < 0 || tria_read_bytes(reader, 4 * (uint64_t)n_freed) == NULL) {
        return damaged(error, "it ends within moves or pages");
    }
    if (c->content != TRIA_TRACE_CACHE) {
        return TRIA_OK;
    }
    tria_move *again;
    TRIA_TRY(take(r, &again, (size_t)v1->n_kv * (size_t)c->max_rows, sizeof(*again), error));
    tria_compaction_init(&done);
    done.moves = again;
    done.moves_capacity = (int64_t)v1->n_kv * c->max_rows;
    tria_batch_init(&batch);
    batch.events = &c->event;
    batch.n_events = 1;
    tria_status status = tria_plan_compact(c->plan, &batch, &c->keep, &done, error);
    if (status == TRIA_OK) {
        status = tria_plan_synchronize(c->plan, error);
    }
    differs = done.n_moves != n_moves;
    for (int64_t i = 0; !differs && i < n_moves; i++) {
        const unsigned char *m = moves + 16 * i;
        differs = (int32_t)tria_load_u32(m) != again[i].layer ||
                  (int32_t)tria_load_u32(m + 4) != again[i].kv_head ||
                  (int32_t)tria_load_u32(m + 8) != again[i].from ||
                  (int32_t)tria_load_u32(m + 12) != again[i].to;
    }
    tria_free(r->env, again);
    TRIA_TRY(status);
    for (int32_t s = 0; s < v1->n_kv; s++) {
        c->rows[s] = v1->kv[s].set >= 0 ? c->keep.counts[v1->kv[s].set] : c->rows[s];
    }
    TRIA_TRY(read_cache(reader, c, c->rows, &content, &differs, error));
    r->report.n_cache_compared++;
    r->report.n_cache_differs += differs;
    return TRIA_OK;
}

static tria_status read_compaction(replay *r, tria_reader *reader, recorded *c, tria_error *error)
{
    const uint32_t plan_id = tria_read_u32(reader);
    c->number = tria_read_i32(reader);
    tria_event_init(&c->event);
    c->event.t = tria_read_i64(reader);
    c->event.n_rows = tria_read_i32(reader);
    c->event.budget = tria_read_i32(reader);
    if (plan_id == 0 || plan_id != r->plan_id) {
        return damaged(error, "its plan was not recorded before it");
    }
    const int32_t n_kv = count_kv_slots(r->plan_record);
    if (n_kv == 0 || find_max_rows(*reader, n_kv, &c->max_rows) != TRIA_OK) {
        return damaged(error, "its rows are out of range");
    }
    if ((size_t)c->max_rows > r->file_size) {
        return damaged(error, "more rows than the file has bytes");
    }
    tria_reader plan_record = r->plan_record;
    TRIA_TRY(tria_trace_read_plan(&plan_record, r->params, c->max_rows, r->env, &c->plan, error));
    TRIA_TRY(read_positions(r, reader, c, error));
    TRIA_TRY(read_protections(r, reader, c, error));
    tria_reader peek = *reader;
    const int32_t content = tria_read_i32(&peek);
    TRIA_TRY(take_cache(r, c, content, error));
    TRIA_TRY(read_cache(reader, c, c->rows, &c->content, NULL, error));
    TRIA_TRY(read_decision(r, reader, c, error));
    r->report.n_compactions++;
    if (c->content == TRIA_TRACE_DECISIONS) {
        for (int32_t s = 0; s < c->plan->resolved.plan.n_sets; s++) {
            r->report.n_evicted += c->rows[slot_of_set(&c->plan->resolved.plan, s)] - c->keep.counts[s];
        }
        return TRIA_OK;
    }
    TRIA_TRY(select_again(r, c, error));
    return tria_read_u32(reader) != 0 ? compact_again(r, reader, c, error) : TRIA_OK;
}

/* A position that was recorded before (a prompt seen again) is not counted twice. */
static tria_status read_tokens(replay *r, tria_reader *reader, tria_error *error)
{
    const int64_t position = tria_read_i64(reader);
    const uint32_t in_prompt = tria_read_u32(reader);
    const int32_t n = tria_read_i32(reader);
    if (reader->failed || position < 0 || n < 1 || in_prompt > 1 || position > INT32_MAX - n ||
        reader->size - reader->used != 4 * (size_t)n) {
        return tria_fail(error, TRIA_E_FORMAT, "token record: its numbers are out of range");
    }
    const int64_t end = position + n;
    const int64_t fresh =
        end > r->next_token ? end - (position > r->next_token ? position : r->next_token) : 0;
    r->report.n_tokens += fresh;
    r->report.n_prompt_tokens += in_prompt ? fresh : 0;
    r->next_token = end > r->next_token ? end : r->next_token;
    return TRIA_OK;
}

static tria_status read_record(replay *r, uint32_t type, tria_reader *reader, tria_error *error)
{
    recorded c;
    tria_status status;
    switch (type) {
    case TRIA_RECORD_HEADER:
        return TRIA_OK;
    case TRIA_RECORD_PLAN:
        r->plan_id = tria_read_u32(reader);
        r->plan_record = *reader;
        return r->plan_id != 0 && !reader->failed ? TRIA_OK
                                                  : tria_fail(error, TRIA_E_FORMAT, "plan record: no id");
    case TRIA_RECORD_COMPACTION:
        memset(&c, 0, sizeof(c));
        status = read_compaction(r, reader, &c, error);
        release_recorded(r->env, &c);
        return status;
    case TRIA_RECORD_TOKENS:
        return read_tokens(r, reader, error);
    case TRIA_RECORD_END:
        tria_read_i32(reader);
        tria_read_i32(reader);
        r->report.dump_missing = tria_read_i32(reader);
        r->report.complete = !reader->failed;
        return TRIA_OK;
    default:
        return tria_fail(error, TRIA_E_FORMAT, "record of unknown type %u", type);
    }
}

static tria_status replay_records(replay *r, tria_reader *file, tria_error *error)
{
    const unsigned char *magic = tria_read_bytes(file, strlen(TRIA_TRACE_MAGIC));
    if (magic == NULL || memcmp(magic, TRIA_TRACE_MAGIC, strlen(TRIA_TRACE_MAGIC)) != 0) {
        return tria_fail(error, TRIA_E_FORMAT, "not a trace file");
    }
    for (int32_t i = 1; file->used < file->size; i++) {
        const size_t offset = file->used;
        const uint32_t type = tria_read_u32(file);
        const uint32_t crc = tria_read_u32(file);
        const uint64_t size = (uint64_t)tria_read_i64(file);
        tria_reader payload = {tria_read_bytes(file, size), (size_t)size, 0, false};
        if (payload.data == NULL) {
            return tria_fail(error, TRIA_E_FORMAT, "record %d at byte %zu: the file ends within it", i,
                             offset);
        }
        if (tria_crc32c(0, payload.data, payload.size) != crc) {
            return tria_fail(error, TRIA_E_FORMAT, "record %d at byte %zu: the checksum is wrong", i,
                             offset);
        }
        if (r->report.complete) {
            return tria_fail(error, TRIA_E_FORMAT, "record %d at byte %zu: after the end", i, offset);
        }
        const tria_status status = read_record(r, type, &payload, error);
        if (status != TRIA_OK) {
            return tria_fail_in(error, status, "record %d at byte %zu", i, offset);
        }
    }
    return TRIA_OK;
}

static tria_status read_file(const char *path, const tria_env *env, unsigned char **data, size_t *size,
                             tria_error *error)
{
    FILE *file = fopen(path, "rb");
    long end = -1;
    *data = NULL;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
        end = ftell(file);
    }
    if (end >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        *size = (size_t)end;
        *data = tria_alloc(env, *size + 1, 1);
        if (*data == NULL) {
            fclose(file);
            return tria_fail_memory(error, *size, "a trace file");
        }
    }
    if (*data == NULL || fread(*data, 1, *size, file) != *size) {
        const tria_status status = tria_fail(error, TRIA_E_IO, "%s", strerror(errno));
        if (file != NULL) {
            fclose(file);
        }
        return status;
    }
    fclose(file);
    return TRIA_OK;
}

tria_status tria_trace_replay(const char *path, const tria_replay_params *params, const tria_env *env,
                              tria_replay_report *report, tria_error *error)
{
    tria_replay_params p;
    tria_env own_env;
    unsigned char *data = NULL;
    size_t size = 0;
    tria_replay_params_init(&p);
    TRIA_TRY(tria_env_import(&own_env, env, error));
    if (path == NULL || report == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "replay: path or report is NULL");
    }
    if (params != NULL) {
        TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_replay_params", error));
    }
    replay r = {.env = &own_env, .params = &p};
    tria_replay_report_init(&r.report);
    r.report.min_jaccard = 1.0;
    tria_status status = read_file(path, &own_env, &data, &size, error);
    if (status == TRIA_OK) {
        tria_reader file = {data, size, 0, false};
        r.file_size = size;
        status = replay_records(&r, &file, error);
    }
    tria_free(&own_env, data);
    if (status != TRIA_OK) {
        return tria_fail_in(error, status, "%s", path);
    }
    r.report.mean_jaccard = r.report.n_sets > 0 ? r.sum_jaccard / r.report.n_sets : 1.0;
    return tria_struct_export(report, &r.report, sizeof(r.report), sizeof(r.report), "tria_replay_report",
                              error);
}

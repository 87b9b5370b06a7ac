/* trace.c - writing trace files. Works only when a trace is set; nothing here is on a hot path. */
#include "trace_internal.h"

#include "compact_internal.h"
#include "crc32c.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct tria_trace {
    tria_env env;
    FILE *file;
    char *path;
    int32_t content;
    int32_t dump;
    int32_t n_seen;
    int32_t n_recorded;
    uint32_t plan_crc; /* of the plan record last written, whose id is n_plans */
    uint32_t n_plans;
    /* the compaction between begin() and end() */
    unsigned char *before;
    size_t before_size;
    const tria_plan *plan;
    const tria_kv_view *kv;
    tria_keep keep;
    int32_t *rows;  /* [n_kv] before */
    int32_t *after; /* [n_kv] rows kept */
};

void tria_trace_params_init(tria_trace_params *params)
{
    const tria_trace_params defaults = TRIA_TRACE_PARAMS_INIT;
    *params = defaults;
}

/* One record, its payload in two parts. */
static tria_status write_record(tria_trace *trace, uint32_t type, const unsigned char *first,
                                size_t first_size, const unsigned char *second, size_t second_size,
                                tria_error *error)
{
    unsigned char prefix[TRIA_RECORD_PREFIX];
    tria_writer writer = {prefix, sizeof(prefix), 0};
    tria_write_u32(&writer, type);
    tria_write_u32(&writer, tria_crc32c(tria_crc32c(0, first, first_size), second, second_size));
    tria_write_u64(&writer, (uint64_t)first_size + second_size);
    if (fwrite(prefix, 1, sizeof(prefix), trace->file) != sizeof(prefix) ||
        (first_size > 0 && fwrite(first, 1, first_size, trace->file) != first_size) ||
        (second_size > 0 && fwrite(second, 1, second_size, trace->file) != second_size)) {
        return tria_fail(error, TRIA_E_IO, "%s: %s", trace->path, strerror(errno));
    }
    return TRIA_OK;
}

static tria_status write_header(tria_trace *trace, tria_error *error)
{
    unsigned char bytes[64];
    tria_writer writer = {bytes, sizeof(bytes), 0};
    tria_write_i32(&writer, trace->content);
    tria_write_i32(&writer, trace->dump);
    tria_write_text(&writer, tria_version_string());
    if (fwrite(TRIA_TRACE_MAGIC, 1, strlen(TRIA_TRACE_MAGIC), trace->file) != strlen(TRIA_TRACE_MAGIC)) {
        return tria_fail(error, TRIA_E_IO, "%s: %s", trace->path, strerror(errno));
    }
    return write_record(trace, TRIA_RECORD_HEADER, bytes, writer.used, NULL, 0, error);
}

static void release(tria_trace *trace)
{
    const tria_env env = trace->env;
    tria_free(&env, trace->before);
    tria_free(&env, trace->rows);
    tria_free(&env, trace->after);
    tria_free(&env, trace->path);
    tria_free(&env, trace);
}

tria_status tria_trace_create(const tria_trace_params *params, const tria_env *env, tria_trace **trace,
                              tria_error *error)
{
    tria_trace_params p;
    tria_env own_env;
    tria_trace_params_init(&p);
    TRIA_TRY(tria_env_import(&own_env, env, error));
    TRIA_TRY(tria_struct_import(&p, sizeof(p), sizeof(p), params, "tria_trace_params", error));
    if (p.path == NULL || trace == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trace: path or trace is NULL");
    }
    if (p.content < TRIA_TRACE_DECISIONS || p.content > TRIA_TRACE_CACHE || p.dump < 0) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trace: content %d or dump %d", p.content, p.dump);
    }
    tria_trace *t = tria_alloc(&own_env, 1, sizeof(*t));
    if (t == NULL) {
        return tria_fail_memory(error, sizeof(*t), "a trace");
    }
    t->env = own_env;
    t->content = p.content;
    t->dump = p.dump;
    t->path = tria_strdup(&own_env, p.path);
    if (t->path == NULL) {
        release(t);
        return tria_fail_memory(error, strlen(p.path) + 1, "a trace");
    }
    t->file = fopen(p.path, "wb");
    if (t->file == NULL) {
        const tria_status status = tria_fail(error, TRIA_E_IO, "%s: %s", p.path, strerror(errno));
        release(t);
        return status;
    }
    const tria_status status = write_header(t, error);
    if (status != TRIA_OK) {
        fclose(t->file);
        release(t);
        return status;
    }
    *trace = t;
    return TRIA_OK;
}

int32_t tria_trace_done(const tria_trace *trace)
{
    return trace->dump > 0 && trace->n_recorded > 0;
}

tria_status tria_trace_close(tria_trace *trace, tria_error *error)
{
    unsigned char bytes[12];
    tria_writer writer = {bytes, sizeof(bytes), 0};
    if (trace == NULL) {
        return TRIA_OK;
    }
    const int32_t missing = trace->dump > 0 && trace->n_recorded == 0 ? trace->dump : 0;
    tria_status status = trace->before != NULL ? tria_trace_end(trace, NULL, error) : TRIA_OK;
    tria_write_i32(&writer, trace->n_seen);
    tria_write_i32(&writer, trace->n_recorded);
    tria_write_i32(&writer, missing);
    if (status == TRIA_OK) {
        status = write_record(trace, TRIA_RECORD_END, bytes, writer.used, NULL, 0, error);
    }
    if (fclose(trace->file) != 0 && status == TRIA_OK) {
        status = tria_fail(error, TRIA_E_IO, "%s: %s", trace->path, strerror(errno));
    }
    if (status == TRIA_OK && missing > 0) {
        tria_log(&trace->env, TRIA_LOG_WARNING,
                 "%s: compaction %d was to be dumped, there were only %d; nothing was recorded",
                 trace->path, missing, trace->n_seen);
        status = tria_fail(error, TRIA_E_STATE,
                           "%s: compaction %d was to be dumped, there were only %d; nothing was recorded",
                           trace->path, missing, trace->n_seen);
    }
    release(trace);
    return status;
}

tria_status tria_trace_tokens(tria_trace *trace, int64_t position, const int32_t *ids, int32_t n,
                              int32_t in_prompt, tria_error *error)
{
    unsigned char head[20];
    tria_writer writer = {head, sizeof(head), 0};
    if (position < 0 || n < 1 || ids == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trace: %d tokens at position %lld", n,
                         (long long)position);
    }
    unsigned char *bytes = tria_alloc(&trace->env, (size_t)n, 4);
    if (bytes == NULL) {
        return tria_fail_memory(error, (size_t)n * 4, "a trace");
    }
    tria_write_u64(&writer, (uint64_t)position);
    tria_write_i32(&writer, in_prompt != 0);
    tria_write_i32(&writer, n);
    tria_writer body = {bytes, (size_t)n * 4, 0};
    tria_write_i32s(&body, ids, n);
    const tria_status status =
        write_record(trace, TRIA_RECORD_TOKENS, head, writer.used, bytes, body.used, error);
    tria_free(&trace->env, bytes);
    return status;
}

/* ---- compactions ---- */

/* What is written of a compaction before any row moves. */
typedef struct before {
    const tria_plan *plan;
    const tria_event *event;
    const tria_keep *keep;
    const int32_t *rows; /* [n_kv] */
    int32_t stride;      /* of the scores */
    float *raw;
    float *final_scores;
} before;

static void write_positions(tria_writer *writer, const tria_v1_plan *v1, const tria_event *event,
                            const int32_t *rows)
{
    for (int32_t s = 0; s < v1->n_kv; s++) {
        const int32_t *positions = tria_event_positions(event, v1->kv[s].layer, v1->kv[s].head);
        int32_t same = 0;
        while (same < s &&
               (rows[same] != rows[s] ||
                tria_event_positions(event, v1->kv[same].layer, v1->kv[same].head) != positions)) {
            same++;
        }
        tria_write_i32(writer, rows[s]);
        tria_write_i32(writer, positions == NULL ? -2 : same < s ? same : -1);
        if (positions != NULL && same == s) {
            tria_write_i32s(writer, positions, rows[s]);
        }
    }
}

/* Rows of the first KV slot that obeys the set. */
static int32_t set_rows(const tria_v1_plan *v1, const int32_t *rows, int32_t set)
{
    for (int32_t s = 0; s < v1->n_kv; s++) {
        if (v1->kv[s].set == set) {
            return rows[s];
        }
    }
    return 0;
}

static void write_before(tria_writer *writer, const tria_trace *trace, const before *b)
{
    const tria_v1_plan *v1 = &b->plan->resolved.plan;
    const tria_event *event = b->event;
    const int32_t report[] = {b->keep->over_budget, b->keep->n_nan, b->keep->n_uncalibrated_layers,
                              b->keep->n_zero_heads};
    tria_write_u32(writer, trace->n_plans);
    tria_write_i32(writer, trace->n_seen);
    tria_write_u64(writer, (uint64_t)event->t);
    tria_write_i32(writer, event->n_rows);
    tria_write_i32(writer, event->budget);
    write_positions(writer, v1, event, b->rows);
    tria_write_i32(writer, event->n_prompts);
    for (int32_t i = 0; i < event->n_prompts; i++) {
        tria_write_i32(writer, event->prompts[i].begin);
        tria_write_i32(writer, event->prompts[i].end);
    }
    tria_write_i32(writer, event->n_pins);
    tria_write_i32s(writer, event->pins, event->n_pins);
    tria_trace_write_cache(writer, v1, event->kv, b->rows, trace->content);
    tria_write_u32(writer, 1);
    for (int32_t q = 0; q < v1->n_queries; q++) {
        const int32_t slot = v1->queries[q].kv_slot;
        tria_write_f32s(writer, b->raw + (size_t)q * (size_t)b->stride,
                        slot >= 0 ? (size_t)b->rows[slot] : 0);
    }
    for (int32_t s = 0; s < v1->n_sets; s++) {
        tria_write_f32s(writer, b->final_scores + (size_t)s * (size_t)b->stride,
                        (size_t)set_rows(v1, b->rows, s));
    }
    for (int32_t s = 0; s < v1->n_sets; s++) {
        tria_write_i32(writer, b->keep->counts[s]);
        tria_write_i32s(writer, b->keep->rows + s * b->keep->row_stride, b->keep->counts[s]);
    }
    tria_write_i32s(writer, report, TRIA_ARRAY_LEN(report));
}

/* The moves of all KV slots; *moves is the caller's to free, NULL when there is none. */
static tria_status list_moves(const tria_trace *trace, tria_move **moves, int64_t *n_moves,
                              tria_error *error)
{
    const tria_v1_plan *v1 = &trace->plan->resolved.plan;
    tria_gather gather;
    *moves = NULL;
    for (int pass = 0; pass < 2; pass++) { /* count, then list */
        *n_moves = 0;
        for (int32_t s = 0; s < v1->n_kv; s++) {
            const int32_t set = v1->kv[s].set;
            if (set < 0) {
                continue;
            }
            tria_gather_init(&gather, trace->keep.rows + set * trace->keep.row_stride, trace->after[s],
                             trace->rows[s], v1->params->order);
            if (pass == 1) {
                tria_gather_moves(&gather, v1->kv[s].layer, v1->kv[s].head, *moves + *n_moves);
            }
            *n_moves += tria_gather_n_moves(&gather);
        }
        if (*n_moves == 0) {
            return TRIA_OK;
        }
        if (pass == 0) {
            *moves = tria_alloc(&trace->env, (size_t)*n_moves, sizeof(**moves));
            if (*moves == NULL) {
                return tria_fail_memory(error, (size_t)*n_moves * sizeof(**moves), "a trace's moves");
            }
        }
    }
    return TRIA_OK;
}

static void write_after(tria_writer *writer, const tria_trace *trace, const tria_compaction *done,
                        const tria_move *moves, int64_t n_moves)
{
    tria_write_u32(writer, done != NULL);
    if (done == NULL) {
        return;
    }
    const int32_t n_freed = done->freed_pages != NULL ? done->n_freed_pages : 0;
    tria_write_u64(writer, (uint64_t)done->bytes_moved);
    tria_write_u64(writer, (uint64_t)n_moves);
    for (int64_t i = 0; i < n_moves; i++) {
        const int32_t numbers[] = {moves[i].layer, moves[i].kv_head, moves[i].from, moves[i].to};
        tria_write_i32s(writer, numbers, TRIA_ARRAY_LEN(numbers));
    }
    tria_write_i32(writer, n_freed);
    tria_write_i32s(writer, done->freed_pages, n_freed);
    tria_trace_write_cache(writer, &trace->plan->resolved.plan, trace->kv, trace->after,
                           trace->content == TRIA_TRACE_CACHE ? TRIA_TRACE_CACHE : TRIA_TRACE_DECISIONS);
}

/* Runs `write` twice: to count, then into memory of that size. */
#define WRITE_TWICE(trace, bytes, count, error, write)                                                     \
    do {                                                                                                   \
        tria_writer writer = {NULL, 0, 0};                                                                 \
        write;                                                                                             \
        (count) = writer.used;                                                                             \
        (bytes) = tria_alloc(&(trace)->env, writer.used, 1);                                               \
        if ((bytes) == NULL) {                                                                             \
            return tria_fail_memory(error, writer.used, "a trace record");                                 \
        }                                                                                                  \
        writer = (tria_writer){(bytes), (count), 0};                                                       \
        write;                                                                                             \
    } while (0)

/* Writes a plan record unless the last one was the same. */
static tria_status record_plan(tria_trace *trace, const tria_plan *plan, tria_error *error)
{
    unsigned char *bytes;
    unsigned char id[4];
    size_t size;
    tria_status status = TRIA_OK;
    WRITE_TWICE(trace, bytes, size, error, tria_trace_write_plan(&writer, plan));
    const uint32_t crc = tria_crc32c(0, bytes, size);
    if (trace->n_plans == 0 || crc != trace->plan_crc) {
        tria_writer writer = {id, sizeof(id), 0};
        tria_write_u32(&writer, ++trace->n_plans);
        trace->plan_crc = crc;
        status = write_record(trace, TRIA_RECORD_PLAN, id, sizeof(id), bytes, size, error);
    }
    tria_free(&trace->env, bytes);
    return status;
}

static bool reads_host_keys(const tria_plan *plan)
{
    return plan->score.table == &tria_cpu_backend || plan->score.table == &tria_reference_backend;
}

/* Scores the event once more, now with every score kept. */
static tria_status score_again(tria_plan *plan, const tria_event *event, const before *b,
                               int32_t *keep_rows, int32_t *keep_counts, tria_error *error)
{
    tria_scores scores;
    tria_batch batch;
    tria_keep keep;
    tria_scores_init(&scores);
    tria_batch_init(&batch);
    tria_keep_init(&keep);
    scores.row_stride = b->stride;
    scores.raw = b->raw;
    scores.final_scores = b->final_scores;
    batch.events = event;
    batch.n_events = 1;
    keep.rows = keep_rows;
    keep.counts = keep_counts;
    keep.row_stride = b->stride;
    TRIA_TRY(tria_plan_select(plan, &batch, &scores, &keep, error));
    return tria_plan_synchronize(plan, error);
}

static tria_status keep_record(tria_trace *trace, const before *b, tria_error *error)
{
    WRITE_TWICE(trace, trace->before, trace->before_size, error, write_before(&writer, trace, b));
    return TRIA_OK;
}

static tria_status record_before(tria_trace *trace, tria_plan *plan, const tria_event *event,
                                 const tria_keep *keep, tria_error *error)
{
    const tria_v1_plan *v1 = &plan->resolved.plan;
    before b = {.plan = plan, .event = event, .keep = keep, .rows = trace->rows};
    int32_t *keep_rows;
    int32_t *keep_counts;
    tria_status status;
    for (int32_t s = 0; s < v1->n_kv; s++) {
        b.stride = trace->rows[s] > b.stride ? trace->rows[s] : b.stride;
    }
    const size_t stride = b.stride > 0 ? (size_t)b.stride : 1;
    b.raw = tria_alloc(&trace->env, stride * (size_t)v1->n_queries, sizeof(float));
    b.final_scores = tria_alloc(&trace->env, stride * (size_t)v1->n_sets, sizeof(float));
    keep_rows = tria_alloc(&trace->env, stride * (size_t)v1->n_sets, sizeof(int32_t));
    keep_counts = tria_alloc(&trace->env, (size_t)v1->n_sets, sizeof(int32_t));
    if (b.raw == NULL || b.final_scores == NULL || keep_rows == NULL || keep_counts == NULL) {
        status =
            tria_fail_memory(error, stride * (size_t)v1->n_queries * sizeof(float), "a trace's scores");
        goto done;
    }
    TRIA_TRY_GOTO(score_again(plan, event, &b, keep_rows, keep_counts, error), done);
    TRIA_TRY_GOTO(record_plan(trace, plan, error), done);
    status = keep_record(trace, &b, error);
done:
    tria_free(&trace->env, keep_counts);
    tria_free(&trace->env, keep_rows);
    tria_free(&trace->env, b.final_scores);
    tria_free(&trace->env, b.raw);
    return status;
}

/* Forgets the compaction that was begun. */
static void drop_before(tria_trace *trace)
{
    tria_free(&trace->env, trace->before);
    tria_free(&trace->env, trace->rows);
    tria_free(&trace->env, trace->after);
    trace->before = NULL;
    trace->rows = NULL;
    trace->after = NULL;
}

tria_status tria_trace_begin(tria_trace *trace, tria_plan *plan, const tria_event *event,
                             const tria_keep *keep, tria_error *error)
{
    if (trace == NULL || plan == NULL || event == NULL || keep == NULL || event->kv == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trace: plan, event, its view or keep is NULL");
    }
    const tria_v1_plan *v1 = &plan->resolved.plan;
    drop_before(trace);
    trace->n_seen++;
    if (trace->dump > 0 && trace->n_seen != trace->dump) {
        return TRIA_OK;
    }
    if (!reads_host_keys(plan)) {
        return tria_fail(error, TRIA_E_UNSUPPORTED,
                         "trace: keys that backend %s scores are not in host memory",
                         plan->score.table->name);
    }
    trace->plan = plan;
    trace->kv = event->kv;
    tria_keep_init(&trace->keep);
    TRIA_TRY(tria_struct_import(&trace->keep, sizeof(trace->keep), sizeof(trace->keep), keep, "tria_keep",
                                error));
    trace->rows = tria_alloc(&trace->env, (size_t)v1->n_kv, sizeof(*trace->rows));
    trace->after = tria_alloc(&trace->env, (size_t)v1->n_kv, sizeof(*trace->after));
    if (trace->rows == NULL || trace->after == NULL) {
        return tria_fail_memory(error, (size_t)v1->n_kv * sizeof(*trace->rows), "a trace");
    }
    for (int32_t s = 0; s < v1->n_kv; s++) {
        trace->rows[s] = event->rows != NULL ? event->rows[s] : event->n_rows;
        trace->after[s] = v1->kv[s].set >= 0 ? trace->keep.counts[v1->kv[s].set] : trace->rows[s];
    }
    return record_before(trace, plan, event, &trace->keep, error);
}

static tria_status write_compaction(tria_trace *trace, const tria_compaction *done, const tria_move *moves,
                                    int64_t n_moves, tria_error *error)
{
    unsigned char *bytes;
    size_t size;
    WRITE_TWICE(trace, bytes, size, error, write_after(&writer, trace, done, moves, n_moves));
    const tria_status status =
        write_record(trace, TRIA_RECORD_COMPACTION, trace->before, trace->before_size, bytes, size, error);
    trace->n_recorded += status == TRIA_OK;
    tria_free(&trace->env, bytes);
    return status;
}

static tria_status record_after(tria_trace *trace, const tria_compaction *done, tria_error *error)
{
    tria_move *moves = NULL;
    int64_t n_moves = 0;
    if (done != NULL) {
        TRIA_TRY(list_moves(trace, &moves, &n_moves, error));
    }
    const tria_status status = write_compaction(trace, done, moves, n_moves, error);
    tria_free(&trace->env, moves);
    return status;
}

tria_status tria_trace_end(tria_trace *trace, const tria_compaction *compaction, tria_error *error)
{
    tria_compaction done;
    tria_compaction_init(&done);
    if (trace == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "trace: NULL");
    }
    if (trace->before == NULL) {
        return TRIA_OK; /* not one that is recorded */
    }
    if (compaction != NULL) {
        TRIA_TRY(
            tria_struct_import(&done, sizeof(done), sizeof(done), compaction, "tria_compaction", error));
    }
    const tria_status status = record_after(trace, compaction != NULL ? &done : NULL, error);
    drop_before(trace);
    return status;
}

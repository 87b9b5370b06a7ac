/*
 * sequence_blob.c - a sequence as bytes and back.
 *
 * All numbers little-endian, in this order (one function walks them in both directions):
 *
 *     u32 magic "TSEQ"  u32 version 1  u64 total bytes  u32 CRC-32C of everything after it
 *     settings          i32 capacity, tokens_per_page, budget, largest_budget, interval, n_recent, n_sink,
 *                       in_flight, protect_prefill, count_prompt, prefill_compaction, mode, order,
 *                       in_place, row_bucket, n_ramp; f64 ramp[16]
 *     geometry          i32 n_layers, n_heads, layer_step, head_step, n_tables, n_sets, n_slots;
 *                       i32 kv_heads[n_layers], slot_table[n_slots], set_table[n_sets]
 *     state             the members of tria_sequence_state in order
 *     rows              i32 counts[n_tables]; per table i32 positions[count]
 *     prompts           i32 begin, end per range
 *     pages             u8 shared[n_pages]
 */
#include "crc32c.h"
#include "sequence_internal.h"

#include <string.h>

enum { MAGIC = 0x51455354, VERSION = 1, BODY_OFFSET = 20 };

/* A cursor that reads, writes or only counts. */
typedef struct stream {
    unsigned char *out;      /* NULL: not writing */
    const unsigned char *in; /* NULL: not reading */
    size_t size;             /* of `in` or `out` */
    size_t used;             /* always advances, also beyond size */
} stream;

static void walk_bytes(stream *s, unsigned char *bytes, size_t n)
{
    const bool fits = s->used <= s->size && n <= s->size - s->used;
    if (s->out != NULL && fits) {
        memcpy(s->out + s->used, bytes, n);
    } else if (s->in != NULL) {
        if (fits) {
            memcpy(bytes, s->in + s->used, n);
        } else {
            memset(bytes, 0, n);
        }
    }
    s->used += n;
}

static void walk_u64(stream *s, uint64_t *value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(*value >> (8 * i));
    }
    walk_bytes(s, bytes, sizeof(bytes));
    if (s->in != NULL) {
        *value = 0;
        for (int i = 0; i < 8; i++) {
            *value |= (uint64_t)bytes[i] << (8 * i);
        }
    }
}

static void walk_i64(stream *s, int64_t *value)
{
    uint64_t bits = (uint64_t)*value;
    walk_u64(s, &bits);
    *value = (int64_t)bits;
}

static void walk_f64(stream *s, double *value)
{
    uint64_t bits;
    memcpy(&bits, value, sizeof(bits));
    walk_u64(s, &bits);
    memcpy(value, &bits, sizeof(bits));
}

static void walk_i32(stream *s, int32_t *value)
{
    const uint32_t bits = (uint32_t)*value;
    unsigned char bytes[4] = {(unsigned char)(bits & 0xff), (unsigned char)(bits >> 8 & 0xff),
                              (unsigned char)(bits >> 16 & 0xff), (unsigned char)(bits >> 24)};
    walk_bytes(s, bytes, sizeof(bytes));
    if (s->in != NULL) {
        *value = (int32_t)((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                           (uint32_t)bytes[3] << 24);
    }
}

static void walk_i32s(stream *s, int32_t *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        walk_i32(s, &values[i]);
    }
}

static void walk_policy(stream *s, tria_policy *p)
{
    int32_t *const fields[] = {
        &p->capacity,       &p->tokens_per_page,    &p->budget,
        &p->largest_budget, &p->interval,           &p->n_recent,
        &p->n_sink,         &p->in_flight,          &p->protect_prefill,
        &p->count_prompt,   &p->prefill_compaction, &p->mode,
        &p->order,          &p->in_place,           &p->row_bucket,
        &p->n_ramp,
    };
    for (size_t i = 0; i < TRIA_ARRAY_LEN(fields); i++) {
        walk_i32(s, fields[i]);
    }
    for (int i = 0; i < TRIA_MAX_RAMP; i++) {
        walk_f64(s, &p->ramp[i]);
    }
}

static void walk_geometry_sizes(stream *s, tria_tables *t)
{
    int32_t *const fields[] = {&t->n_layers, &t->n_heads, &t->layer_step, &t->head_step,
                               &t->n_tables, &t->n_sets,  &t->n_slots};
    for (size_t i = 0; i < TRIA_ARRAY_LEN(fields); i++) {
        walk_i32(s, fields[i]);
    }
}

static void walk_geometry(stream *s, tria_tables *t)
{
    walk_i32s(s, t->kv_heads, t->n_layers);
    walk_i32s(s, t->slot_table, t->n_slots);
    walk_i32s(s, t->set_table, t->n_sets);
}

static void walk_state(stream *s, tria_sequence_state *state)
{
    int32_t *const numbers[] = {
        &state->enabled,        &state->tail_begin,      &state->settled,    &state->rows_left,
        &state->n_compactions,  &state->ramp_step,       &state->in_prefill, &state->prefill_begin,
        &state->prefill_length, &state->in_flight_begin, &state->fixed_end,  &state->first_evicted,
        &state->prompt_rows,    &state->n_prompts,       &state->peak_rows,  &state->last_over_budget,
    };
    int64_t *const totals[] = {&state->evicted, &state->bytes_moved, &state->n_nan, &state->pages_freed};
    walk_i64(s, &state->t);
    for (size_t i = 0; i < TRIA_ARRAY_LEN(numbers); i++) {
        walk_i32(s, numbers[i]);
    }
    walk_u64(s, &state->epoch);
    for (size_t i = 0; i < TRIA_ARRAY_LEN(totals); i++) {
        walk_i64(s, totals[i]);
    }
    walk_f64(s, &state->seconds);
    walk_f64(s, &state->last_seconds);
}

/* Everything whose length the state tells; for reading the counts must have been checked. */
static void walk_rows(stream *s, tria_sequence *sequence)
{
    for (int32_t i = 0; i < sequence->tables.n_tables; i++) {
        walk_i32s(s, sequence->positions + (size_t)i * (size_t)sequence->policy.capacity,
                  sequence->counts[i]);
    }
    for (int32_t i = 0; i < sequence->state.n_prompts; i++) {
        walk_i32(s, &sequence->prompts[i].begin);
        walk_i32(s, &sequence->prompts[i].end);
    }
    if (sequence->shared != NULL) {
        walk_bytes(s, sequence->shared, (size_t)sequence->n_pages);
    }
}

static void put_header(unsigned char *data, size_t size)
{
    stream s = {data, NULL, BODY_OFFSET, 0};
    int32_t words[2] = {MAGIC, VERSION};
    int32_t crc = (int32_t)tria_crc32c(0, data + BODY_OFFSET, size - BODY_OFFSET);
    uint64_t total = size;
    walk_i32s(&s, words, 2);
    walk_u64(&s, &total);
    walk_i32(&s, &crc);
}

static tria_status save(tria_sequence *sequence, void *data, size_t capacity, size_t *size,
                        tria_error *error)
{
    stream s = {data, NULL, capacity, BODY_OFFSET};
    tria_sequence_settle(sequence);
    walk_policy(&s, &sequence->policy);
    walk_geometry_sizes(&s, &sequence->tables);
    walk_geometry(&s, &sequence->tables);
    walk_state(&s, &sequence->state);
    walk_i32s(&s, sequence->counts, sequence->tables.n_tables);
    walk_rows(&s, sequence);
    *size = s.used;
    if (data == NULL) {
        return TRIA_OK;
    }
    if (s.used > capacity) {
        return tria_fail(error, TRIA_E_CAPACITY, "save: %zu bytes are needed, %zu are there", s.used,
                         capacity);
    }
    put_header(data, s.used);
    return TRIA_OK;
}

tria_status tria_sequence_save(tria_sequence *sequence, void *data, size_t capacity, size_t *size,
                               tria_error *error)
{
    if (sequence == NULL || size == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_save: sequence or size is NULL");
    }
    TRIA_TRY(tria_guard_enter(&sequence->guard, __func__, error));
    const tria_status status = save(sequence, data, capacity, size, error);
    tria_guard_leave(&sequence->guard);
    return status;
}

/* ---- reading: nothing is believed, not even with a right checksum ---- */

static tria_status check_header(const unsigned char *data, size_t size, tria_error *error)
{
    stream s = {NULL, data, size, 0};
    int32_t words[2] = {0, 0};
    uint64_t total = 0;
    int32_t crc = 0;
    walk_i32s(&s, words, 2);
    walk_u64(&s, &total);
    walk_i32(&s, &crc);
    if (size < BODY_OFFSET || words[0] != MAGIC) {
        return tria_fail(error, TRIA_E_FORMAT, "load: not a saved sequence");
    }
    if (words[1] != VERSION) {
        return tria_fail(error, TRIA_E_FORMAT, "load: version %d, this library reads %d", words[1],
                         VERSION);
    }
    if (total != size) {
        return tria_fail(error, TRIA_E_FORMAT, "load: %zu bytes, the header says %llu", size,
                         (unsigned long long)total);
    }
    if ((uint32_t)crc != tria_crc32c(0, data + BODY_OFFSET, size - BODY_OFFSET)) {
        return tria_fail(error, TRIA_E_FORMAT, "load: the checksum is wrong; the bytes are damaged");
    }
    return TRIA_OK;
}

static bool is_flag(int32_t value)
{
    return value == 0 || value == 1;
}

static tria_status check_policy(const tria_policy *p, tria_error *error)
{
    if (!is_flag(p->protect_prefill) || !is_flag(p->count_prompt) || !is_flag(p->prefill_compaction) ||
        !is_flag(p->in_place) || p->n_ramp < 0 || p->n_ramp > TRIA_MAX_RAMP ||
        (p->prefill_compaction && p->protect_prefill) ||
        (p->tokens_per_page > 0 && p->capacity % p->tokens_per_page != 0)) {
        return tria_fail(error, TRIA_E_FORMAT, "load: the settings contradict each other");
    }
    const tria_status status = tria_policy_check(p, error);
    return status == TRIA_OK ? TRIA_OK : tria_fail_in(error, TRIA_E_FORMAT, "load");
}

static bool sizes_fit(const tria_tables *t)
{
    const bool steps = t->head_step >= 0 && t->head_step <= 1 && t->layer_step >= 0 &&
                       (t->layer_step == 0 || t->layer_step == (t->head_step != 0 ? t->n_heads : 1));
    return t->n_layers >= 1 && t->n_layers <= TRIA_MAX_LAYERS && t->n_heads >= 1 &&
           t->n_heads <= TRIA_MAX_HEADS && t->n_slots >= 1 && t->n_slots <= t->n_layers * t->n_heads &&
           t->n_sets >= 1 && t->n_sets <= t->n_slots && steps &&
           t->n_tables == (t->head_step != 0 ? t->n_heads : 1) * (t->layer_step != 0 ? t->n_layers : 1);
}

static bool geometry_fits(const tria_tables *t)
{
    int32_t slots = 0;
    for (int32_t l = 0; l < t->n_layers; l++) {
        if (t->kv_heads[l] < 0 || t->kv_heads[l] > t->n_heads) {
            return false;
        }
        slots += t->kv_heads[l];
    }
    for (int32_t i = 0; i < t->n_slots; i++) {
        if (t->slot_table[i] < -1 || t->slot_table[i] >= t->n_tables) {
            return false;
        }
    }
    for (int32_t i = 0; i < t->n_sets; i++) {
        /* Sets are numbered in the order of their tables. */
        if (t->set_table[i] < 0 || t->set_table[i] >= t->n_tables ||
            (i > 0 && t->set_table[i] <= t->set_table[i - 1])) {
            return false;
        }
    }
    return slots == t->n_slots;
}

static tria_status load_geometry(stream *s, tria_tables *tables, const tria_env *env, tria_error *error)
{
    memset(tables, 0, sizeof(*tables));
    walk_geometry_sizes(s, tables);
    /* Arrays are allocated only when the blob is long enough to hold them. */
    const size_t left = s->used < s->size ? (s->size - s->used) / sizeof(int32_t) : 0;
    if (!sizes_fit(tables) ||
        (size_t)tables->n_layers + (size_t)tables->n_slots + (size_t)tables->n_sets > left) {
        memset(tables, 0, sizeof(*tables));
        return tria_fail(error, TRIA_E_FORMAT, "load: the geometry contradicts itself");
    }
    tables->kv_heads = tria_alloc(env, (size_t)tables->n_layers, sizeof(int32_t));
    tables->slot_table = tria_alloc(env, (size_t)tables->n_slots, sizeof(int32_t));
    tables->set_table = tria_alloc(env, (size_t)tables->n_slots, sizeof(int32_t));
    if (tables->kv_heads == NULL || tables->slot_table == NULL || tables->set_table == NULL) {
        return tria_fail_memory(error, (size_t)tables->n_slots * sizeof(int32_t), "a sequence");
    }
    walk_geometry(s, tables);
    return geometry_fits(tables) ? TRIA_OK
                                 : tria_fail(error, TRIA_E_FORMAT, "load: the geometry contradicts itself");
}

static bool rows_fit(const tria_sequence *sequence)
{
    const tria_sequence_state *state = &sequence->state;
    int32_t largest = 0;
    for (int32_t s = 0; s < sequence->tables.n_sets; s++) {
        const int32_t table = sequence->tables.set_table[s];
        const int32_t *rows = sequence->positions + (size_t)table * (size_t)sequence->policy.capacity;
        const int32_t n = sequence->counts[table];
        for (int32_t i = 0; i < n; i++) {
            const bool ascending =
                sequence->policy.order != TRIA_ORDER_STABLE || i == 0 || rows[i] > rows[i - 1];
            if (rows[i] < 0 || rows[i] >= state->t || !ascending) {
                return false;
            }
        }
        /* Rows that may be rolled back are the last ones. */
        for (int32_t p = state->fixed_end; p < state->t; p++) {
            const int64_t row = (int64_t)n - (state->t - p);
            if (row < 0 || rows[row] != p) {
                return false;
            }
        }
        largest = n > largest ? n : largest;
    }
    return largest == state->settled;
}

static bool prompts_fit(const tria_sequence *sequence)
{
    const tria_sequence_state *state = &sequence->state;
    int64_t rows = 0;
    int32_t last_end = -1;
    for (int32_t i = 0; i < state->n_prompts; i++) {
        const tria_range *prompt = &sequence->prompts[i];
        const bool begun = state->in_prefill && i == state->n_prompts - 1;
        if (prompt->begin <= last_end || prompt->end < prompt->begin + (begun ? 0 : 1) ||
            prompt->end > state->t) {
            return false;
        }
        rows += prompt->end - prompt->begin;
        last_end = prompt->end;
    }
    if (state->in_prefill && sequence->policy.protect_prefill && last_end != state->t) {
        return false;
    }
    return rows == state->prompt_rows && (state->n_prompts == 0 || sequence->policy.protect_prefill);
}

static bool state_fits(const tria_sequence *sequence)
{
    const tria_sequence_state *s = &sequence->state;
    const int32_t capacity = sequence->policy.capacity;
    const bool prefill =
        s->in_prefill == 0 ||
        (s->prefill_begin >= 0 && s->prefill_begin <= s->t && s->prefill_length >= 1 &&
         s->prefill_length <= INT32_MAX - s->prefill_begin && s->t - s->prefill_begin <= s->prefill_length);
    const bool in_flight = s->in_flight_begin == TRIA_NO_POSITION ||
                           (s->in_flight_begin >= s->fixed_end && s->in_flight_begin < s->t &&
                            s->t - s->in_flight_begin <= sequence->policy.in_flight && !s->in_prefill);
    return s->t >= 0 && s->t <= INT32_MAX && is_flag(s->enabled) && is_flag(s->in_prefill) &&
           s->tail_begin == s->t && s->settled >= 0 && s->settled <= capacity && s->rows_left >= 0 &&
           s->rows_left <= capacity && s->n_compactions >= 0 && s->ramp_step >= 0 && prefill && in_flight &&
           s->fixed_end >= 0 && s->fixed_end <= s->t && s->t - s->fixed_end <= s->settled &&
           s->first_evicted >= 0 && s->n_prompts >= 0 && s->n_prompts <= capacity + 1 &&
           s->peak_rows >= s->settled && s->peak_rows <= capacity;
}

static tria_status load_rows(stream *s, tria_sequence *sequence, tria_error *error)
{
    const tria_tables *tables = &sequence->tables;
    int32_t set = 0;
    walk_state(s, &sequence->state);
    bool fits = state_fits(sequence);
    walk_i32s(s, sequence->counts, tables->n_tables);
    for (int32_t i = 0; fits && i < tables->n_tables; i++) {
        const bool used = set < tables->n_sets && tables->set_table[set] == i;
        set += used ? 1 : 0;
        fits = sequence->counts[i] >= 0 && sequence->counts[i] <= (used ? sequence->policy.capacity : 0);
    }
    if (fits) {
        walk_rows(s, sequence);
        fits = s->used == s->size && rows_fit(sequence) && prompts_fit(sequence);
    }
    return fits ? TRIA_OK : tria_fail(error, TRIA_E_FORMAT, "load: the state contradicts itself");
}

tria_status tria_sequence_load(const void *data, size_t size, const tria_env *env, tria_sequence **sequence,
                               tria_error *error)
{
    tria_env own_env;
    tria_policy policy;
    tria_tables tables;
    tria_sequence *loaded;
    stream s = {NULL, data, size, BODY_OFFSET};
    TRIA_TRY(tria_env_import(&own_env, env, error));
    if (data == NULL || sequence == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_sequence_load: data or sequence is NULL");
    }
    TRIA_TRY(check_header(data, size, error));
    memset(&policy, 0, sizeof(policy));
    walk_policy(&s, &policy);
    TRIA_TRY(check_policy(&policy, error));
    tria_status status = load_geometry(&s, &tables, &own_env, error);
    if (status != TRIA_OK) {
        tria_tables_release(&tables, &own_env);
        return status;
    }
    loaded = tria_sequence_alloc(&policy, &tables, &own_env, error);
    if (loaded == NULL) {
        return TRIA_E_MEMORY;
    }
    status = load_rows(&s, loaded, error);
    if (status != TRIA_OK) {
        tria_sequence_destroy(loaded);
        return status;
    }
    *sequence = loaded;
    return TRIA_OK;
}

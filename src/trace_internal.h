/* trace_internal.h - what the writer and the reader of trace files share. */
#ifndef TRIA_TRACE_INTERNAL_H
#define TRIA_TRACE_INTERNAL_H

#include "calibration_internal.h"
#include "kv_view_internal.h"
#include "plan_internal.h"
#include "tria/trace.h"

#define TRIA_TRACE_MAGIC "TRIATRC1"

enum {
    TRIA_RECORD_HEADER = 1,
    TRIA_RECORD_PLAN = 2,
    TRIA_RECORD_COMPACTION = 3,
    TRIA_RECORD_TOKENS = 4,
    TRIA_RECORD_END = 5,
    TRIA_RECORD_PREFIX = 16 /* bytes of type, CRC and size */
};

static inline void tria_write_i32(tria_writer *writer, int32_t value)
{
    tria_write_u32(writer, (uint32_t)value);
}
void tria_write_i32s(tria_writer *writer, const int32_t *values, int64_t count);
void tria_write_text(tria_writer *writer, const char *text);

/* Everything needed to make an equal plan. */
void tria_trace_write_plan(tria_writer *writer, const tria_plan *plan);
/* K and V of the first rows[s] rows of every KV slot. */
void tria_trace_write_cache(tria_writer *writer, const tria_v1_plan *plan, const tria_kv_view *view,
                            const int32_t *rows, int32_t content);
/* One row of a (layer, KV head) without padding between its elements. */
void tria_trace_pack_row(const tria_rows *rows, int32_t row, unsigned char *out);

/* A cursor over a payload; reading beyond its end gives zeros and sets `failed`. */
typedef struct tria_reader {
    const unsigned char *data;
    size_t size;
    size_t used;
    bool failed;
} tria_reader;

/* NULL (and failed) when fewer are left. */
const unsigned char *tria_read_bytes(tria_reader *reader, uint64_t count);
uint32_t tria_read_u32(tria_reader *reader);
int32_t tria_read_i32(tria_reader *reader);
int64_t tria_read_i64(tria_reader *reader);
float tria_read_f32(tria_reader *reader);
/* `count` numbers into `out`, which has room for them; zeros when fewer are left. */
void tria_read_i32s(tria_reader *reader, int32_t *out, int64_t count);
void tria_read_f32s(tria_reader *reader, float *out, int64_t count);
void tria_read_f64s(tria_reader *reader, double *out, int64_t count);

/* A plan from its record, on the device and threads of `params`; *max_rows is what it allows. */
tria_status tria_trace_read_plan(tria_reader *reader, const tria_replay_params *params, int32_t max_rows,
                                 const tria_env *env, tria_plan **plan, tria_error *error);

#endif

/*
 * compact_gather.c - one keep set carried out on strided arrays, in place.
 *
 * A keep set is a list of runs: `n` consecutive rows that move together from row `from` to row `to`.
 * Moves go towards the front (from > to) and destinations ascend, so a row is read before anything is
 * written over it.
 */
#include "compact_internal.h"

#include <string.h>

int32_t tria_gather_lower_bound(const tria_gather *gather, int32_t row)
{
    int32_t low = 0;
    int32_t high = gather->count;
    if (gather->keep == NULL) {
        return row < gather->count ? row : gather->count;
    }
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (gather->keep[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void tria_gather_init(tria_gather *gather, const int32_t *keep, int32_t count, int32_t n_rows,
                      int32_t order)
{
    int32_t low = 0;
    int32_t high = count;
    /* keep[i] - i never decreases */
    while (keep != NULL && low < high) {
        int32_t middle = low + (high - low) / 2;
        if (keep[middle] == middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    gather->keep = keep;
    gather->count = count;
    gather->n_rows = n_rows;
    gather->in_place = keep != NULL ? low : count;
    gather->order = order;
}

int32_t tria_gather_n_moves(const tria_gather *gather)
{
    int32_t stay = gather->in_place;
    if (gather->order == TRIA_ORDER_FILL_HOLES) {
        stay = tria_gather_lower_bound(gather, gather->count); /* kept rows below the new length */
    }
    return gather->count - stay;
}

bool tria_gather_writes(const tria_gather *gather, int32_t begin, int32_t end)
{
    begin = begin > gather->in_place ? begin : gather->in_place;
    end = end < gather->count ? end : gather->count;
    if (begin >= end) {
        return false;
    }
    if (gather->order == TRIA_ORDER_STABLE) {
        return true;
    }
    /* kept rows stay, the others are holes */
    return tria_gather_lower_bound(gather, end) - tria_gather_lower_bound(gather, begin) < end - begin;
}

typedef struct run_cursor {
    const tria_gather *gather;
    int32_t to;     /* next destination */
    int32_t source; /* index into keep of the next row to move */
    int32_t kept;   /* fill_holes: index of the first kept row >= to */
    int32_t stay;   /* fill_holes: kept rows below the new length */
    int32_t from;   /* the run */
    int32_t run_to;
    int32_t n;
} run_cursor;

static void runs_begin(run_cursor *cursor, const tria_gather *gather)
{
    cursor->gather = gather;
    cursor->to = gather->in_place;
    cursor->source = gather->in_place;
    cursor->kept = gather->in_place;
    cursor->stay = 0;
    if (gather->order == TRIA_ORDER_FILL_HOLES) {
        cursor->stay = tria_gather_lower_bound(gather, gather->count);
        cursor->source = cursor->stay;
    }
}

static bool next_run(run_cursor *cursor)
{
    const int32_t *keep = cursor->gather->keep;
    const int32_t count = cursor->gather->count;
    int32_t source = cursor->source;
    int32_t limit; /* the run ends before this destination */
    if (source >= count) {
        return false;
    }
    if (cursor->gather->order == TRIA_ORDER_STABLE) {
        limit = count;
    } else {
        while (cursor->kept < cursor->stay && keep[cursor->kept] == cursor->to) {
            cursor->kept++;
            cursor->to++;
        }
        limit = cursor->kept < cursor->stay ? keep[cursor->kept] : count;
    }
    cursor->from = keep[source];
    cursor->run_to = cursor->to;
    do {
        source++;
        cursor->to++;
    } while (cursor->to < limit && source < count && keep[source] == keep[source - 1] + 1);
    cursor->n = source - cursor->source;
    cursor->source = source;
    return true;
}

void tria_gather_moves(const tria_gather *gather, int32_t layer, int32_t kv_head, tria_move *moves)
{
    run_cursor run;
    for (runs_begin(&run, gather); next_run(&run);) {
        for (int32_t i = 0; i < run.n; i++) {
            *moves++ = (tria_move){layer, kv_head, run.from + i, run.run_to + i};
        }
    }
}

static unsigned char *lane_at(const tria_lane *lane, int32_t row)
{
    if (lane->page_table == NULL) {
        return lane->base + row * lane->token_stride;
    }
    return lane->base + lane->page_table[row / lane->tokens_per_page] * lane->page_stride +
           row % lane->tokens_per_page * lane->token_stride;
}

/* Rows from `row` on that lie in the same page. */
static int32_t page_rest(const tria_lane *lane, int32_t row)
{
    return lane->page_table == NULL ? INT32_MAX - row : lane->tokens_per_page - row % lane->tokens_per_page;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* `n` rows of one page to one page. Rows never overlap one another, runs may. */
static void copy_rows(unsigned char *to, const unsigned char *from, int32_t n, int32_t bytes,
                      int64_t stride)
{
    if (stride == bytes) {
        memmove(to, from, (size_t)n * (size_t)bytes);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        memcpy(to + i * stride, from + i * stride, (size_t)bytes);
    }
}

#define GATHER_ROWS(BYTES)                                                                                 \
    for (int32_t i = gather->in_place; i < gather->count; i++) {                                           \
        memcpy(base + i * stride, base + gather->keep[i] * stride, BYTES);                                 \
    }                                                                                                      \
    return true

/* Rows of a transposed tensor are so short that finding runs costs more than copying. */
static bool gather_short_rows(const tria_gather *gather, const tria_lane *lane)
{
    unsigned char *base = lane->base;
    const int64_t stride = lane->token_stride;
    if (gather->order != TRIA_ORDER_STABLE || lane->page_table != NULL) {
        return false;
    }
    switch (lane->bytes) {
    case 1:
        GATHER_ROWS(1);
    case 2:
        GATHER_ROWS(2);
    case 4:
        GATHER_ROWS(4);
    default:
        return false;
    }
}

void tria_gather_lane(const tria_gather *gather, const tria_lane *lane)
{
    run_cursor run;
    if (gather_short_rows(gather, lane)) {
        return;
    }
    for (runs_begin(&run, gather); next_run(&run);) {
        for (int32_t done = 0; done < run.n;) {
            int32_t from = run.from + done;
            int32_t to = run.run_to + done;
            int32_t n = smaller(run.n - done, smaller(page_rest(lane, from), page_rest(lane, to)));
            copy_rows(lane_at(lane, to), lane_at(lane, from), n, lane->bytes, lane->token_stride);
            done += n;
        }
    }
}

void tria_lane_zero(const tria_lane *lane, int32_t begin, int32_t end)
{
    while (begin < end) {
        int32_t n = smaller(end - begin, page_rest(lane, begin));
        unsigned char *at = lane_at(lane, begin);
        if (lane->token_stride == lane->bytes) {
            memset(at, 0, (size_t)n * (size_t)lane->bytes);
        } else {
            for (int32_t i = 0; i < n; i++) {
                memset(at + i * lane->token_stride, 0, (size_t)lane->bytes);
            }
        }
        begin += n;
    }
}

/*
 * compact_internal.h - repacking a cache on the CPU (specification, section 5).
 *
 * compact_check.c and compact_pages.c look at everything before a byte is written, compact_gather.c
 * carries out one keep set on strided arrays, compact.c puts them together.
 */
#ifndef TRIA_COMPACT_INTERNAL_H
#define TRIA_COMPACT_INTERNAL_H

#include "internal.h"
#include "tria/backend_v1.h"

/* One keep set as applied to one (layer, KV head). */
typedef struct tria_gather {
    const int32_t *keep; /* [count] ascending; NULL when all rows stay */
    int32_t count;
    int32_t n_rows;   /* before */
    int32_t in_place; /* the first rows that stay where they are: keep[i] == i for i < in_place */
    int32_t order;    /* tria_order */
} tria_gather;

/* `keep` has been checked: ascending, below n_rows. */
void tria_gather_init(tria_gather *gather, const int32_t *keep, int32_t count, int32_t n_rows,
                      int32_t order);
/* First index of keep[0 .. count) whose row is not below `row`. */
int32_t tria_gather_lower_bound(const tria_gather *gather, int32_t row);
int32_t tria_gather_n_moves(const tria_gather *gather);
/* Whether a row of [begin, end) is the destination of a move. */
bool tria_gather_writes(const tria_gather *gather, int32_t begin, int32_t end);
/* Writes the moves, in an order in which they can be carried out one after the other. */
void tria_gather_moves(const tria_gather *gather, int32_t layer, int32_t kv_head, tria_move *moves);

/* An array of rows: `bytes` consecutive bytes per row, pages as in kv_view.h. */
typedef struct tria_lane {
    unsigned char *base;
    const int32_t *page_table; /* NULL: one page */
    int32_t tokens_per_page;
    int32_t bytes;
    int64_t page_stride;
    int64_t token_stride;
} tria_lane;

void tria_gather_lane(const tria_gather *gather, const tria_lane *lane);
/* Zeroes rows [begin, end). */
void tria_lane_zero(const tria_lane *lane, int32_t begin, int32_t end);

/* What the CPU backend lends to a compaction. */
typedef struct tria_compact_context {
    tria_parallel_for parallel_for; /* NULL: the calling thread */
    void *parallel_context;
    int32_t *scratch;    /* [tria_compact_scratch_count()], allocated with the plan */
    bool rows_elsewhere; /* another backend moves K and V */
} tria_compact_context;

/* int32 elements of scratch a plan's compactions need: none without pages, else proportional to the
 * page table, never to the cache. */
size_t tria_compact_scratch_count(const tria_v1_plan *plan);

/* The `compact` slot of CPU backends: events[i].keep is required, events[i].compaction optional.
 * Nothing is written unless every event passes every check. */
tria_status tria_cpu_compact(const tria_v1_plan *plan, const tria_v1_event *events, int32_t n_events,
                             const tria_compact_context *context, tria_error *error);

/* tria_v1_host.compact */
tria_status tria_host_compact(const tria_v1_plan *plan, const tria_v1_event *events, int32_t n_events,
                              int32_t *scratch, tria_error *error);

/* compact_check.c */

/* The gather of one KV slot; slots without a set keep all rows. The event has been checked. */
void tria_compact_slot(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot,
                       tria_gather *gather);
/* The slot whose position table `slot` uses; it alone moves it. */
int32_t tria_compact_position_owner(const tria_v1_plan *plan, const tria_event *event, int32_t slot);
/* Whether V lies inside the rows of K (absorbed MLA) and so moves with them. */
bool tria_compact_v_in_k(const tria_tensor *k, const tria_tensor *v);
/* All checks of one event. Fills in n_shared and shared_pages with SHARED_PAGE; other outputs are left. */
tria_status tria_compact_check(const tria_v1_plan *plan, const tria_v1_event *event, int32_t *scratch,
                               tria_error *error);

/* compact_pages.c */

/* Whether `layer` has a cache and a page table and is the first layer with that table. */
bool tria_compact_owns_table(const tria_v1_plan *plan, const tria_event *event, int32_t layer);
/* Page-table entries that the layers sharing the table of `layer` use before and after. */
void tria_compact_pages(const tria_v1_plan *plan, const tria_v1_event *event, int32_t layer,
                        int32_t *before, int32_t *after);
/* SHARED_PAGE, with the list, when shared pages of the view's table, which `layer` uses, would be written.
 */
tria_status tria_compact_check_shared(const tria_v1_plan *plan, const tria_v1_event *event, int32_t layer,
                                      tria_error *error);

#endif

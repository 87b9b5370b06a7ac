/* rules.h - who is protected and who ranks by position; shared by the CPU and the reference backend. */
#ifndef TRIA_CPU_RULES_H
#define TRIA_CPU_RULES_H

#include "plan_internal.h"

typedef struct tria_protection {
    int32_t n_protected;
    int32_t n_prompt; /* rows at prompt positions, sinks and pins among them too */
} tria_protection;

/* mask[i] = 1 for the rows of KV slot `slot` that are never evicted (specification, section 4). A sliding
 * window's own rows are protected in its layer's own sets: attention still reads them. */
tria_protection tria_protect(const tria_v1_plan *plan, const tria_event *event, int32_t slot,
                             int32_t n_rows, uint8_t *mask);

/* Rows the set may keep: its budget, prompt rows added when they do not count. */
int64_t tria_rows_allowed(const tria_v1_plan *plan, int32_t set_budget, tria_protection protection);

/* Whether the set of KV slot `slot` is ranked by position in this event. */
bool tria_ranked_by_position(const tria_v1_plan *plan, const tria_v1_event *event, int32_t slot);

/* Whether any set of the event has a row to lose. */
bool tria_can_evict(const tria_v1_plan *plan, const tria_v1_event *event);

/* Fills in which layers are ranked by position; returns their number. */
int32_t tria_report_uncalibrated(const tria_v1_plan *plan, uint8_t *layers);

/* The first KV slot of a set: its rows and positions stand for all of them. */
int32_t tria_first_slot(const tria_v1_plan *plan, int32_t set);

/* Floats from one head's scores or terms to the next one's: an odd number of cache lines, as heads equally
 * far apart by a power of two would compete for few places in the caches. */
static inline int64_t tria_row_stride(int32_t max_rows)
{
    return (((int64_t)max_rows + 15) / 16 | 1) * 16;
}

#endif

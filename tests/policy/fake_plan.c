/* fake_plan.c - see fake_plan.h. Sorted, obvious, slow. */
#include "policy/fake_plan.h"

#include <stdbool.h>
#include <stdlib.h>

uint32_t fake_score(uint32_t seed, int32_t set, int32_t position)
{
    uint32_t x = seed ^ ((uint32_t)position * 2654435761U) ^ ((uint32_t)set * 40503U);
    x ^= x >> 16;
    x *= 2246822519U;
    x ^= x >> 13;
    x *= 3266489917U;
    return x ^ x >> 16;
}

static bool in_prompt(const tria_event *event, int32_t position)
{
    for (int32_t i = 0; i < event->n_prompts; i++) {
        if (position >= event->prompts[i].begin && position < event->prompts[i].end) {
            return true;
        }
    }
    return false;
}

/* A candidate row and its score. */
typedef struct candidate {
    uint32_t score;
    int32_t row;
} candidate;

static int better_first(const void *a, const void *b)
{
    const candidate *x = a;
    const candidate *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->row < y->row ? -1 : 1;
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static int32_t select_set(const fake_plan *plan, const tria_event *event, int32_t set, int32_t n,
                          int32_t *rows, int32_t *over)
{
    const int32_t *positions = event->positions + plan->set_layer[set] * event->positions_layer_stride +
                               plan->set_head[set] * event->positions_head_stride;
    candidate *candidates = malloc((size_t)(n + 1) * sizeof(*candidates));
    int32_t budget = event->budget;
    int32_t n_candidates = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        const bool prompt = plan->protect_prefill && in_prompt(event, positions[i]);
        if (prompt && !plan->count_prompt) {
            budget++;
        }
        if (prompt || positions[i] < plan->n_sink || positions[i] >= event->t - plan->n_recent) {
            rows[count++] = i;
        } else {
            candidates[n_candidates].score = fake_score(plan->seed, set, positions[i]);
            candidates[n_candidates++].row = i;
        }
    }
    *over = count > budget ? count - budget : 0;
    qsort(candidates, (size_t)n_candidates, sizeof(*candidates), better_first);
    for (int32_t i = 0; i < n_candidates && count < budget; i++) {
        rows[count++] = candidates[i].row;
    }
    qsort(rows, (size_t)count, sizeof(*rows), ascending);
    free(candidates);
    return count;
}

void fake_select(const fake_plan *plan, const tria_event *event, tria_keep *keep)
{
    keep->over_budget = 0;
    for (int32_t s = 0; s < plan->n_sets; s++) {
        const int32_t n = plan->set_rows != NULL ? plan->set_rows[s] : event->n_rows;
        int32_t over;
        keep->counts[s] = select_set(plan, event, s, n, keep->rows + s * keep->row_stride, &over);
        keep->over_budget = over > keep->over_budget ? over : keep->over_budget;
    }
}

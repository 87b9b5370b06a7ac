/* controls.c - random and most-recent keep sets. */
#include "controls.h"

#include <stdbool.h>

uint64_t random_next(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15U;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

int32_t random_below(uint64_t *state, int32_t n)
{
    return (int32_t)(((random_next(state) >> 32) * (uint64_t)n) >> 32);
}

static bool is_protected(const tria_event *event, const control_rules *rules, int32_t row)
{
    const int32_t position = event->positions[row];
    if (position < rules->n_sink || position >= event->t - rules->n_recent) {
        return true;
    }
    for (int32_t i = 0; rules->protect_prefill && i < event->n_prompts; i++) {
        if (position >= event->prompts[i].begin && position < event->prompts[i].end) {
            return true;
        }
    }
    return false;
}

/* How many of the candidates there is room for. */
static int32_t candidates_kept(const tria_event *event, const control_rules *rules, int32_t *n_candidates)
{
    *n_candidates = 0;
    for (int32_t row = 0; row < event->n_rows; row++) {
        *n_candidates += !is_protected(event, rules, row);
    }
    const int32_t room = rules->budget - (event->n_rows - *n_candidates);
    return room < 0 ? 0 : room < *n_candidates ? room : *n_candidates;
}

void control_random(const tria_event *event, const control_rules *rules, uint64_t *state, tria_keep *keep)
{
    int32_t left = 0;
    int32_t wanted = candidates_kept(event, rules, &left);
    int32_t count = 0;
    /* Each candidate is taken with probability wanted / left: every subset is equally likely. */
    for (int32_t row = 0; row < event->n_rows; row++) {
        bool take = is_protected(event, rules, row);
        if (!take) {
            take = random_below(state, left) < wanted;
            wanted -= take;
            left--;
        }
        if (take) {
            keep->rows[count++] = row;
        }
    }
    keep->counts[0] = count;
}

void control_recent(const tria_event *event, const control_rules *rules, tria_keep *keep)
{
    int32_t left = 0;
    const int32_t wanted = candidates_kept(event, rules, &left);
    int32_t count = 0;
    for (int32_t row = 0; row < event->n_rows; row++) {
        const bool candidate = !is_protected(event, rules, row);
        if (!candidate || left <= wanted) {
            keep->rows[count++] = row;
        }
        left -= candidate;
    }
    keep->counts[0] = count;
}

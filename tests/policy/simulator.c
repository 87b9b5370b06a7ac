/* simulator.c - see simulator.h. */
#include "policy/simulator.h"

#include "policy/fake_plan.h"

#include <string.h>

void sim_init(simulator *sim, const tria_policy_params *params, int32_t n_sets, uint32_t seed)
{
    memset(sim, 0, sizeof(*sim));
    sim->p = *params;
    sim->n_sets = n_sets;
    sim->seed = seed;
    sim->enabled = params->enabled != 0;
    sim->flying_from = -1;
}

int32_t sim_rows(const simulator *sim)
{
    int32_t rows = 0;
    for (int32_t s = 0; s < sim->n_sets; s++) {
        rows = sim->n[s] > rows ? sim->n[s] : rows;
    }
    return rows;
}

static int32_t capacity(const simulator *sim)
{
    const int32_t page = sim->p.tokens_per_page > 1 ? sim->p.tokens_per_page : 1;
    return sim->p.capacity / page * page;
}

int32_t sim_prompt_rows(const simulator *sim)
{
    int32_t rows = 0;
    for (int32_t p = 0; p < sim->t; p++) {
        rows += sim->prompt[p];
    }
    return rows;
}

int32_t sim_effective_budget(const simulator *sim)
{
    return sim->p.budget + (sim->p.count_prompt ? 0 : sim_prompt_rows(sim));
}

bool sim_is_protected(const simulator *sim, int32_t position)
{
    return position < sim->p.n_sink || position >= sim->t - sim->p.n_recent || sim->prompt[position] ||
           (sim->flying_from >= 0 && position >= sim->flying_from);
}

static bool prefill_compaction(const simulator *sim)
{
    return sim->p.allow_prefill_compaction && !sim->p.protect_prefill;
}

static int32_t used_pages(const simulator *sim)
{
    const int32_t page = sim->p.tokens_per_page;
    return page > 1 ? (sim_rows(sim) + page - 1) / page : 0;
}

static void forget_unused_pages(simulator *sim)
{
    for (int32_t i = used_pages(sim); i < SIM_ROWS; i++) {
        sim->shared_page[i] = false;
    }
}

tria_status sim_append(simulator *sim, int32_t n)
{
    const int32_t page = sim->p.tokens_per_page;
    if (n < 0) {
        return TRIA_E_ARGUMENT;
    }
    if (sim_rows(sim) + n > capacity(sim)) {
        return TRIA_E_CAPACITY;
    }
    if (sim->in_prefill && sim->t + n > sim->prefill_begin + sim->prefill_length) {
        return TRIA_E_STATE;
    }
    if (sim->flying_from >= 0 && sim->t + n - sim->flying_from > sim->p.in_flight) {
        return TRIA_E_CAPACITY;
    }
    if (page > 1 && n > 0 && sim_rows(sim) % page != 0 && sim->shared_page[sim_rows(sim) / page]) {
        return TRIA_E_SHARED_PAGE;
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t s = 0; s < sim->n_sets; s++) {
            sim->position[s][sim->n[s]++] = sim->t;
            sim->fate[s][sim->t] = SIM_IN_PLACE;
        }
        sim->shifted[sim->t] = false;
        sim->prompt[sim->t] = sim->in_prefill && sim->p.protect_prefill;
        sim->t++;
    }
    return TRIA_OK;
}

tria_status sim_begin_prefill(simulator *sim, int32_t n)
{
    if (sim->in_prefill || sim->flying_from >= 0) {
        return TRIA_E_STATE;
    }
    if (n < 1) {
        return TRIA_E_ARGUMENT;
    }
    if (!prefill_compaction(sim)) {
        const int32_t margin = sim->p.interval + sim->p.in_flight;
        int32_t prompts = sim_prompt_rows(sim);
        int32_t sinks = 0;
        if (sim->p.protect_prefill) {
            prompts += n;
            for (int32_t p = 0; p < sim->p.n_sink; p++) {
                sinks += !(p < sim->t ? sim->prompt[p] : p < sim->t + n);
            }
        }
        const int32_t effective = sim->p.budget + (sim->p.count_prompt ? 0 : prompts);
        if (sim_rows(sim) + n > capacity(sim)) {
            return TRIA_E_CAPACITY;
        }
        if (sim->p.budget > 0 && /* else nothing is ever evicted */
            (n + margin > capacity(sim) || effective + margin > capacity(sim) ||
             (sim->p.protect_prefill && prompts + sim->p.n_recent + sinks + margin > capacity(sim)))) {
            return TRIA_E_CAPACITY;
        }
    }
    sim->in_prefill = true;
    sim->prefill_begin = sim->t;
    sim->prefill_length = n;
    return TRIA_OK;
}

tria_status sim_end_prefill(simulator *sim)
{
    if (!sim->in_prefill) {
        return TRIA_E_STATE;
    }
    sim->in_prefill = false;
    return TRIA_OK;
}

/* Whether the last n tokens are all there and where they were written. */
static bool untouched(const simulator *sim, int32_t n)
{
    for (int32_t p = sim->t - n; p < sim->t; p++) {
        for (int32_t s = 0; s < sim->n_sets; s++) {
            if (sim->fate[s][p] != SIM_IN_PLACE) {
                return false;
            }
        }
    }
    return true;
}

tria_status sim_set_in_flight(simulator *sim, int32_t n)
{
    if (n < 0 || n > sim->t || !untouched(sim, n)) {
        return TRIA_E_ARGUMENT;
    }
    if (n > sim->p.in_flight) {
        return TRIA_E_CAPACITY;
    }
    if (n > 0 && sim->in_prefill) {
        return TRIA_E_STATE;
    }
    sim->flying_from = n > 0 ? sim->t - n : -1;
    return TRIA_OK;
}

static void drop_from(simulator *sim, int32_t position)
{
    for (int32_t s = 0; s < sim->n_sets; s++) {
        int32_t kept = 0;
        for (int32_t i = 0; i < sim->n[s]; i++) {
            if (sim->position[s][i] < position) {
                sim->position[s][kept++] = sim->position[s][i];
            }
        }
        sim->n[s] = kept;
    }
    sim->t = position;
    forget_unused_pages(sim);
}

tria_status sim_rollback(simulator *sim, int32_t n)
{
    if (n < 0 || n > sim->t) {
        return TRIA_E_ARGUMENT;
    }
    if (!untouched(sim, n) || (sim->in_prefill && sim->t - n < sim->prefill_begin)) {
        return TRIA_E_STATE;
    }
    drop_from(sim, sim->t - n);
    if (sim->flying_from >= sim->t) {
        sim->flying_from = -1;
    }
    return TRIA_OK;
}

static void set_fate(simulator *sim, unsigned char from, unsigned char to)
{
    for (int32_t s = 0; s < sim->n_sets; s++) {
        for (int32_t p = 0; p < sim->t; p++) {
            sim->fate[s][p] = sim->fate[s][p] == from ? to : sim->fate[s][p];
        }
    }
}

/* A cut that leaves an intact prefix leaves nothing that any compaction touched. */
static void forgive(simulator *sim)
{
    if (sim_intact_prefix(sim) == sim->t) {
        set_fate(sim, SIM_MOVED, SIM_IN_PLACE);
    }
}

static void rows_went(simulator *sim)
{
    sim->rows_left = sim_rows(sim) < sim->rows_left ? sim_rows(sim) : sim->rows_left;
    sim->epoch++;
}

tria_status sim_trim(simulator *sim, int32_t position)
{
    if (sim->in_prefill) {
        return TRIA_E_STATE;
    }
    if (position < 0 || position > sim->t) {
        return TRIA_E_ARGUMENT;
    }
    if (position == sim->t) {
        return TRIA_OK;
    }
    for (int32_t s = 0; s < sim->n_sets; s++) {
        for (int32_t i = 1; i < sim->n[s]; i++) {
            if (sim->position[s][i] < position && sim->position[s][i - 1] >= position) {
                return TRIA_E_STATE;
            }
        }
    }
    drop_from(sim, position);
    forgive(sim);
    sim->flying_from = -1;
    rows_went(sim);
    return TRIA_OK;
}

tria_status sim_shift(simulator *sim, int32_t begin, int32_t end)
{
    const int32_t gone = end - begin;
    if (sim->in_prefill) {
        return TRIA_E_STATE;
    }
    if (begin < 0 || gone < 1 || end > sim->t) {
        return TRIA_E_ARGUMENT;
    }
    if (sim->flying_from >= 0) {
        return TRIA_E_STATE;
    }
    for (int32_t s = 0; s < sim->n_sets; s++) {
        int32_t kept = 0;
        for (int32_t i = 0; i < sim->n[s]; i++) {
            const int32_t position = sim->position[s][i];
            if (position < begin || position >= end) {
                sim->position[s][kept++] = position < begin ? position : position - gone;
            }
        }
        sim->n[s] = kept;
        for (int32_t p = begin; p + gone < sim->t; p++) {
            sim->fate[s][p] = sim->fate[s][p + gone];
        }
    }
    for (int32_t p = begin; p + gone < sim->t; p++) {
        sim->prompt[p] = sim->prompt[p + gone];
        sim->shifted[p] = true;
    }
    sim->t -= gone;
    forgive(sim);
    forget_unused_pages(sim);
    rows_went(sim);
    return TRIA_OK;
}

void sim_reset(simulator *sim)
{
    const simulator old = *sim;
    sim_init(sim, &old.p, old.n_sets, old.seed);
    sim->enabled = old.enabled;
    sim->epoch = old.epoch + 1;
}

tria_status sim_may_compact(const simulator *sim)
{
    const int32_t flying = sim->flying_from >= 0 ? sim->t - sim->flying_from : 0;
    const bool may = sim->p.budget > 0 && sim->enabled && sim_rows(sim) > 0 &&
                     (!sim->in_prefill || prefill_compaction(sim)) &&
                     (sim->flying_from < 0 || (sim->p.in_place && flying <= sim->p.n_recent));
    return may ? TRIA_OK : TRIA_E_STATE;
}

bool sim_should_compact(const simulator *sim)
{
    if (sim_may_compact(sim) != TRIA_OK) {
        return false;
    }
    if (sim->in_prefill) {
        return sim_rows(sim) > sim_effective_budget(sim);
    }
    const int32_t base =
        sim_effective_budget(sim) > sim->rows_left ? sim_effective_budget(sim) : sim->rows_left;
    return sim_rows(sim) >= base + sim->p.interval;
}

/* Rows that a compaction leaves, but for what is protected. */
static int32_t target(const simulator *sim)
{
    const int32_t budget = sim_effective_budget(sim);
    const int32_t rows = sim_rows(sim);
    if (sim->p.n_ramp == 0 || sim->in_prefill || rows <= budget) {
        return budget;
    }
    const int32_t last = sim->p.n_ramp - 1;
    const double share = sim->p.ramp[sim->ramp_step < last ? sim->ramp_step : last] / 100.0;
    int32_t left = rows - (int32_t)(share * (rows - budget) + 1e-9);
    const int32_t most = capacity(sim) - sim->p.interval - sim->p.in_flight;
    left = left > most ? most : left;
    return left < budget ? budget : left;
}

void sim_select(const simulator *sim, int32_t keep[SIM_SETS][SIM_ROWS], int32_t count[SIM_SETS])
{
    const int32_t budget = target(sim);
    for (int32_t s = 0; s < sim->n_sets; s++) {
        count[s] = 0;
        for (int32_t i = 0; i < sim->n[s]; i++) {
            /* A row stays when it is protected or fewer than budget rows are better than it. */
            const int32_t mine = sim->position[s][i];
            int32_t better = 0;
            for (int32_t j = 0; j < sim->n[s]; j++) {
                const int32_t other = sim->position[s][j];
                const uint32_t a = fake_score(sim->seed, s, mine);
                const uint32_t b = fake_score(sim->seed, s, other);
                better += sim_is_protected(sim, other) || b > a || (b == a && j < i);
            }
            if (sim_is_protected(sim, mine) || better < budget) {
                keep[s][count[s]++] = i;
            }
        }
    }
}

void sim_commit(simulator *sim, int32_t keep[SIM_SETS][SIM_ROWS], const int32_t count[SIM_SETS])
{
    bool any_evicted = false;
    for (int32_t s = 0; s < sim->n_sets; s++) {
        int32_t old[SIM_ROWS];
        int32_t next = 0;
        bool hole[SIM_ROWS] = {false};
        memcpy(old, sim->position[s], sizeof(old));
        for (int32_t i = 0; i < sim->n[s]; i++) {
            const bool kept = next < count[s] && keep[s][next] == i;
            next += kept;
            hole[i] = !kept;
            if (!kept) {
                sim->fate[s][old[i]] = SIM_EVICTED;
                sim->evicted++;
            }
        }
        if (sim->p.order == TRIA_ORDER_FILL_HOLES) {
            int32_t slot = 0;
            for (int32_t k = 0; k < count[s]; k++) {
                if (keep[s][k] >= count[s]) {
                    while (!hole[slot]) {
                        slot++;
                    }
                    sim->position[s][slot++] = old[keep[s][k]];
                }
            }
        } else {
            for (int32_t k = 0; k < count[s]; k++) {
                sim->position[s][k] = old[keep[s][k]];
            }
        }
        any_evicted = any_evicted || count[s] < sim->n[s];
        sim->n[s] = count[s];
    }
    if (any_evicted && !sim->p.in_place) {
        /* In the set that lost a row the last row went or moved, so no rollback passes this point. */
        set_fate(sim, SIM_IN_PLACE, SIM_MOVED);
    }
    sim->rows_left = sim_rows(sim);
    sim->n_compactions++;
    sim->ramp_step += !sim->in_prefill;
    sim->epoch++;
    forget_unused_pages(sim);
}

void sim_fork(simulator *sim)
{
    for (int32_t i = 0; i < used_pages(sim); i++) {
        sim->shared_page[i] = true;
    }
}

tria_status sim_own_page(simulator *sim, int32_t entry)
{
    if (entry < 0 || entry >= used_pages(sim)) {
        return TRIA_E_ARGUMENT;
    }
    sim->shared_page[entry] = false;
    return TRIA_OK;
}

int32_t sim_intact_prefix(const simulator *sim)
{
    for (int32_t p = 0; p < sim->t; p++) {
        for (int32_t s = 0; s < sim->n_sets; s++) {
            if (p >= sim->n[s] || sim->position[s][p] != p || sim->shifted[p]) {
                return p;
            }
        }
    }
    return sim->t;
}

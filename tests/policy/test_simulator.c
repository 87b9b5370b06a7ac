/*
 * test_simulator.c - random operation sequences: the library against the simulator, after every step.
 * TRIA_POLICY_SEQUENCES sets their number, TRIA_POLICY_SEED the first seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/fake_plan.h"
#include "policy/simulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 3, STEPS = 48, MAX_TOKENS = 24 };

typedef struct run {
    uint64_t random;
    tria_policy_params params;
    double ramp[4];
    int32_t set_layer[SIM_SETS];
    int32_t set_head[SIM_SETS];
    simulator sim;
    tria_sequence *sequence;
    char last[128]; /* the operation, for messages */
} run;

static const int32_t kv_heads[N_LAYERS] = {2, 0, 1};
static const int32_t equal_kv_heads[N_LAYERS] = {2, 0, 2};

static uint32_t random_below(run *r, uint32_t n)
{
    r->random = r->random * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(r->random >> 33) % n;
}

static int32_t pick(run *r, int32_t from, int32_t to)
{
    return from + (int32_t)random_below(r, (uint32_t)(to - from + 1));
}

static void random_params(run *r)
{
    static const int32_t pages[] = {0, 0, 1, 4, 8};
    tria_policy_params *p = &r->params;
    tria_policy_params_init(p);
    p->own_keep_sets = 1;
    p->budget = pick(r, 0, 15) == 0 ? 0 : pick(r, 4, 40);
    p->interval = pick(r, 1, 12);
    p->n_sink = pick(r, 0, 3);
    p->n_recent = pick(r, 0, 8);
    if (p->budget > 0 && p->n_sink + p->n_recent >= p->budget) {
        p->n_recent = p->budget - p->n_sink - 1 > 0 ? p->budget - p->n_sink - 1 : 0;
    }
    p->in_flight = pick(r, 0, 5);
    p->tokens_per_page = pages[pick(r, 0, 4)];
    p->capacity = p->budget + p->interval + p->in_flight + 8 + pick(r, 0, 60);
    p->protect_prefill = pick(r, 0, 1);
    p->count_prompt = pick(r, 0, 1);
    p->allow_prefill_compaction = pick(r, 0, 1);
    p->mode = pick(r, 0, 4);
    p->order = pick(r, 0, 1);
    p->in_place = p->order == TRIA_ORDER_STABLE && pick(r, 0, 2) == 0;
    p->row_bucket = pick(r, 1, 9);
    p->n_ramp = pick(r, 0, 2) == 0 ? pick(r, 1, 4) : 0;
    for (int32_t i = 0; i < p->n_ramp; i++) {
        r->ramp[i] = 10 * pick(r, 1, 10);
    }
    p->ramp = r->ramp;
    p->n_layers = N_LAYERS;
    p->kv_heads = p->mode == TRIA_MODE_PER_HEAD ? equal_kv_heads : kv_heads;
}

/* Where each keep set's table is seen. */
static int32_t list_sets(run *r)
{
    static const int32_t by_mode[5][2 * SIM_SETS + 1] = {
        {3, 0, 0, 0, 1, 2, 0}, /* per layer per head: set count, then (layer, head) */
        {2, 0, 0, 2, 1},       /* per head */
        {2, 0, 1, 2, 0},       /* per layer */
        {1, 2, 0},             /* union */
        {1, 0, 0},             /* global */
    };
    const int32_t *row = by_mode[r->params.mode];
    for (int32_t s = 0; s < row[0]; s++) {
        r->set_layer[s] = row[1 + 2 * s];
        r->set_head[s] = row[2 + 2 * s];
    }
    return row[0];
}

static void broken(const run *r, const char *what, int64_t is, int64_t expected)
{
    print_error("after %s: %s is %lld, expected %lld\n", r->last, what, (long long)is, (long long)expected);
    fail();
}

static void compare(run *r)
{
    const simulator *sim = &r->sim;
    tria_sequence_info info;
    tria_sequence_info_init(&info);
    assert_int_equal(tria_sequence_get_info(r->sequence, &info, NULL), TRIA_OK);
    const int32_t rows = sim_rows(sim);
    const int32_t bucket = r->params.row_bucket;
    const int32_t bound = (rows + bucket - 1) / bucket * bucket;
    const struct {
        const char *what;
        int64_t is;
        int64_t expected;
    } numbers[] = {
        {"t", info.t, sim->t},
        {"rows", info.rows, rows},
        {"compactions", info.n_compactions, sim->n_compactions},
        {"epoch", (int64_t)info.epoch, sim->epoch},
        {"evicted", info.evicted, sim->evicted},
        {"rows_left", info.rows_left, sim->rows_left},
        {"prompt_rows", info.prompt_rows, sim_prompt_rows(sim)},
        {"effective_budget", info.effective_budget, sim_effective_budget(sim)},
        {"in_prefill", info.in_prefill, sim->in_prefill},
        {"in_flight", info.in_flight, sim->flying_from < 0 ? 0 : sim->t - sim->flying_from},
        {"enabled", info.enabled, sim->enabled},
        {"should_compact", tria_sequence_should_compact(r->sequence), sim_should_compact(sim)},
        {"intact_prefix", tria_sequence_intact_prefix(r->sequence), sim_intact_prefix(sim)},
        {"room", tria_sequence_room(r->sequence), info.capacity - rows},
        {"bound_rows", tria_sequence_bound_rows(r->sequence),
         bound < info.capacity ? bound : info.capacity},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].is != numbers[i].expected) {
            broken(r, numbers[i].what, numbers[i].is, numbers[i].expected);
        }
    }
    for (int32_t s = 0; s < sim->n_sets; s++) {
        int32_t n = -1;
        const int32_t *positions =
            tria_sequence_positions(r->sequence, r->set_layer[s], r->set_head[s], &n);
        if (n != sim->n[s] || memcmp(positions, sim->position[s], sizeof(*positions) * (size_t)n) != 0) {
            broken(r, "position table of set", s, s);
        }
    }
    int32_t n_pages;
    const uint8_t *shared = tria_sequence_shared_pages(r->sequence, &n_pages);
    for (int32_t i = 0; i < n_pages; i++) {
        if (shared[i] != sim->shared_page[i]) {
            broken(r, "sharing of page", i, i);
        }
    }
}

static void expect(run *r, tria_status status, tria_status expected, const tria_error *error)
{
    if (status != expected) {
        print_error("%s\n", status != TRIA_OK ? error->message : "");
        broken(r, "status", status, expected);
    }
    if (status != TRIA_OK && (error->code != status || error->message[0] == '\0')) {
        broken(r, "error code", error->code, status);
    }
}

/* Any keep set that loses no protected row. */
static void random_keep(run *r, int32_t keep[SIM_SETS][SIM_ROWS], int32_t count[SIM_SETS])
{
    for (int32_t s = 0; s < r->sim.n_sets; s++) {
        const int32_t percent = pick(r, 0, 100);
        count[s] = 0;
        for (int32_t i = 0; i < r->sim.n[s]; i++) {
            if (sim_is_protected(&r->sim, r->sim.position[s][i]) || pick(r, 0, 99) < percent) {
                keep[s][count[s]++] = i;
            }
        }
    }
}

static void refuse(run *r, const tria_keep *keep)
{
    tria_error error = {0};
    expect(r, tria_sequence_check_keep(r->sequence, keep, &error), TRIA_E_ARGUMENT, &error);
    expect(r, tria_sequence_commit(r->sequence, keep, NULL, &error), TRIA_E_ARGUMENT, &error);
}

/* Keep sets that must be refused: a row twice, a row that is not there, a protected row missing. */
static void offer_bad_keeps(run *r, const tria_keep *good)
{
    const int32_t s = pick(r, 0, r->sim.n_sets - 1);
    int32_t *rows = good->rows + s * good->row_stride;
    const int32_t n = good->counts[s];
    if (n == 0) {
        return;
    }
    const int32_t last = rows[n - 1];
    if (n > 1) {
        rows[n - 1] = rows[n - 2];
        refuse(r, good);
    }
    rows[n - 1] = r->sim.n[s];
    refuse(r, good);
    rows[n - 1] = last;
    if (sim_is_protected(&r->sim, r->sim.position[s][last])) {
        good->counts[s]--;
        refuse(r, good);
        good->counts[s]++;
    }
}

static void compact(run *r)
{
    static int32_t expected[SIM_SETS][SIM_ROWS];
    int32_t count[SIM_SETS];
    tria_event event;
    tria_keep keep;
    tria_error error = {0};
    tria_event_init(&event);
    tria_keep_init(&keep);
    snprintf(r->last, sizeof(r->last), "compact");
    const tria_status status = tria_sequence_event(r->sequence, &event, &keep, &error);
    expect(r, status, sim_may_compact(&r->sim), &error);
    if (status != TRIA_OK) {
        return;
    }
    if (event.t != r->sim.t || event.n_rows != sim_rows(&r->sim)) {
        broken(r, "event's t", event.t, r->sim.t);
    }
    if (pick(r, 0, 3) == 0) {
        random_keep(r, expected, count);
        for (int32_t s = 0; s < r->sim.n_sets; s++) {
            memcpy(keep.rows + s * keep.row_stride, expected[s], sizeof(int32_t) * (size_t)count[s]);
            keep.counts[s] = count[s];
        }
    } else {
        fake_plan plan = {.seed = r->sim.seed,
                          .n_sets = r->sim.n_sets,
                          .set_rows = r->sim.n,
                          .n_sink = r->params.n_sink,
                          .n_recent = r->params.n_recent,
                          .protect_prefill = r->params.protect_prefill,
                          .count_prompt = r->params.count_prompt};
        memcpy(plan.set_layer, r->set_layer, sizeof(r->set_layer));
        memcpy(plan.set_head, r->set_head, sizeof(r->set_head));
        sim_select(&r->sim, expected, count);
        fake_select(&plan, &event, &keep);
        for (int32_t s = 0; s < r->sim.n_sets; s++) {
            if (keep.counts[s] != count[s] || memcmp(keep.rows + s * keep.row_stride, expected[s],
                                                     sizeof(int32_t) * (size_t)count[s]) != 0) {
                broken(r, "rows of keep set", keep.counts[s], count[s]);
            }
        }
    }
    if (pick(r, 0, 3) == 0) {
        offer_bad_keeps(r, &keep);
    }
    if (pick(r, 0, 9) == 0) {
        return; /* abandoned: nothing may have happened */
    }
    expect(r, tria_sequence_commit(r->sequence, &keep, NULL, &error), TRIA_OK, &error);
    sim_commit(&r->sim, expected, count);
    expect(r, tria_sequence_commit(r->sequence, &keep, NULL, &error), TRIA_E_STATE, &error);
}

static unsigned char *saved(run *r, size_t *size)
{
    tria_error error = {0};
    expect(r, tria_sequence_save(r->sequence, NULL, 0, size, &error), TRIA_OK, &error);
    unsigned char *blob = malloc(*size);
    expect(r, tria_sequence_save(r->sequence, blob, *size, size, &error), TRIA_OK, &error);
    return blob;
}

/* Goes on with a sequence that was saved and loaded. */
static void save_and_load(run *r)
{
    size_t size;
    size_t again_size;
    tria_error error = {0};
    tria_sequence *loaded = NULL;
    snprintf(r->last, sizeof(r->last), "save, load");
    unsigned char *blob = saved(r, &size);
    expect(r, tria_sequence_load(blob, size, NULL, &loaded, &error), TRIA_OK, &error);
    tria_sequence_destroy(r->sequence);
    r->sequence = loaded;
    unsigned char *again = saved(r, &again_size);
    if (size != again_size || memcmp(blob, again, size) != 0) {
        broken(r, "size of the blob saved again", (int64_t)again_size, (int64_t)size);
    }
    free(again);
    free(blob);
}

static void fork_and_go_on(run *r)
{
    tria_error error = {0};
    tria_sequence *copy = NULL;
    snprintf(r->last, sizeof(r->last), "fork");
    expect(r, tria_sequence_fork(r->sequence, NULL, &copy, &error), TRIA_OK, &error);
    sim_fork(&r->sim);
    if (pick(r, 0, 1) == 0) {
        compare(r); /* the original is unchanged but for the sharing */
        tria_sequence_destroy(r->sequence);
        r->sequence = copy;
    } else {
        tria_sequence_destroy(copy);
    }
}

static void step(run *r)
{
    tria_error error = {0};
    tria_sequence *s = r->sequence;
    simulator *sim = &r->sim;
    const int32_t n = pick(r, 0, 9) == 0 ? pick(r, -1, MAX_TOKENS) : pick(r, 0, 6);
    const int32_t operation = pick(r, 0, 39);
    snprintf(r->last, sizeof(r->last), "operation %d with %d", operation, n);
    if (operation < 14) {
        expect(r, tria_sequence_append(s, n, &error), sim_append(sim, n), &error);
        if (tria_sequence_should_compact(s) == 1 && pick(r, 0, 3) != 0) {
            compact(r);
        }
    } else if (operation < 18) {
        const int32_t length = pick(r, 0, 40);
        expect(r, tria_sequence_begin_prefill(s, length, &error), sim_begin_prefill(sim, length), &error);
    } else if (operation < 22) {
        expect(r, tria_sequence_end_prefill(s, &error), sim_end_prefill(sim), &error);
    } else if (operation < 26) {
        compact(r);
    } else if (operation < 29) {
        expect(r, tria_sequence_rollback(s, n, &error), sim_rollback(sim, n), &error);
    } else if (operation < 31) {
        expect(r, tria_sequence_set_in_flight(s, n, &error), sim_set_in_flight(sim, n), &error);
    } else if (operation < 33) {
        expect(r, tria_sequence_set_in_flight(s, 0, &error), sim_set_in_flight(sim, 0), &error);
    } else if (operation == 33) {
        const int32_t position = sim->t - pick(r, -1, 30);
        expect(r, tria_sequence_trim(s, position, &error), sim_trim(sim, position), &error);
    } else if (operation == 34) {
        const int32_t begin = pick(r, -1, sim->t);
        const int32_t end = pick(r, 0, 3) == 0 ? sim->t : begin + pick(r, 0, 20);
        expect(r, tria_sequence_shift(s, begin, end, &error), sim_shift(sim, begin, end), &error);
    } else if (operation == 35) {
        const bool enabled = pick(r, 0, 3) != 0;
        expect(r, tria_sequence_set_enabled(s, enabled, &error), TRIA_OK, &error);
        sim->enabled = enabled;
    } else if (operation == 36 && pick(r, 0, 3) == 0) {
        expect(r, tria_sequence_reset(s, &error), TRIA_OK, &error);
        sim_reset(sim);
    } else if (operation == 37) {
        fork_and_go_on(r);
    } else if (operation == 38) {
        const int32_t entry = pick(r, -1, 20);
        if (r->params.tokens_per_page > 1) {
            expect(r, tria_sequence_own_page(s, entry, &error), sim_own_page(sim, entry), &error);
        }
    } else {
        save_and_load(r);
    }
}

static void one_sequence(uint64_t seed)
{
    static run r;
    tria_error error = {0};
    memset(&r, 0, sizeof(r));
    r.random = seed * 0x9e3779b97f4a7c15U + 1;
    random_params(&r);
    sim_init(&r.sim, &r.params, list_sets(&r), (uint32_t)seed);
    snprintf(r.last, sizeof(r.last), "create");
    expect(&r, tria_sequence_create(&r.params, NULL, &r.sequence, &error), TRIA_OK, &error);
    compare(&r);
    for (int i = 0; i < STEPS; i++) {
        step(&r);
        compare(&r);
    }
    tria_sequence_destroy(r.sequence);
}

static uint64_t option(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : fallback;
}

static uint64_t current_seed;

static void test_random_sequences(void **state)
{
    const uint64_t first = option("TRIA_POLICY_SEED", 1);
    const uint64_t n = option("TRIA_POLICY_SEQUENCES", 8000);
    (void)state;
    for (current_seed = first; current_seed < first + n; current_seed++) {
        one_sequence(current_seed);
    }
    print_message("%llu operation sequences of %d steps\n", (unsigned long long)n, STEPS);
}

static int say_seed(void **state)
{
    (void)state;
    print_message("last seed %llu\n", (unsigned long long)current_seed);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_sequences, say_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

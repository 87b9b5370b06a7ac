/*
 * simulator.h - the policy once more, slowly: plain arrays with one entry per position and row, every
 * answer recomputed from them whenever it is asked. Knows nothing of src/.
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include "tria/sequence.h"

#include <stdbool.h>

enum { SIM_SETS = 4, SIM_ROWS = 256, SIM_POSITIONS = 4096 };

/* What became of the token at a position, in one set. */
enum { SIM_IN_PLACE = 0, SIM_MOVED = 1, SIM_EVICTED = 2 };

typedef struct simulator {
    tria_policy_params p; /* as given to the library */
    int32_t n_sets;
    uint32_t seed; /* of the scores */
    /* state */
    int32_t t;
    bool enabled;
    int32_t n[SIM_SETS];
    int32_t position[SIM_SETS][SIM_ROWS];
    unsigned char fate[SIM_SETS][SIM_POSITIONS];
    bool prompt[SIM_POSITIONS];  /* protected */
    bool shifted[SIM_POSITIONS]; /* not the token that was written there */
    bool shared_page[SIM_ROWS];
    bool in_prefill;
    int32_t prefill_begin;
    int32_t prefill_length;
    int32_t flying_from; /* -1: none */
    int32_t rows_left;
    int32_t n_compactions;
    int32_t ramp_step;
    int64_t epoch;
    int64_t evicted;
} simulator;

void sim_init(simulator *sim, const tria_policy_params *params, int32_t n_sets, uint32_t seed);

/* Each returns what the library must return and, when that is OK, does it. */
tria_status sim_append(simulator *sim, int32_t n);
tria_status sim_begin_prefill(simulator *sim, int32_t n);
tria_status sim_end_prefill(simulator *sim);
tria_status sim_set_in_flight(simulator *sim, int32_t n);
tria_status sim_rollback(simulator *sim, int32_t n);
tria_status sim_trim(simulator *sim, int32_t position);
tria_status sim_shift(simulator *sim, int32_t begin, int32_t end);
void sim_reset(simulator *sim);
tria_status sim_may_compact(const simulator *sim);
/* The keep set of each set by the rules of the specification. */
void sim_select(const simulator *sim, int32_t keep[SIM_SETS][SIM_ROWS], int32_t count[SIM_SETS]);
void sim_commit(simulator *sim, int32_t keep[SIM_SETS][SIM_ROWS], const int32_t count[SIM_SETS]);
void sim_fork(simulator *sim); /* this side's pages become shared */
tria_status sim_own_page(simulator *sim, int32_t entry);

int32_t sim_rows(const simulator *sim);
int32_t sim_prompt_rows(const simulator *sim);
int32_t sim_effective_budget(const simulator *sim);
bool sim_should_compact(const simulator *sim);
bool sim_is_protected(const simulator *sim, int32_t position);
int32_t sim_intact_prefix(const simulator *sim);

#endif

/*
 * plan_words.h - the layout of the plan's constants, of an event's inputs and of its workspace, shared by
 * the shaders and the host. All are arrays of 32-bit words; offsets and sizes count words.
 */
#ifndef TRIA_PLAN_WORDS_H
#define TRIA_PLAN_WORDS_H

#define NONE 0xffffffffu

/* the first words of the plan's constants */
#define PLAN_MAX_ROWS 0
#define PLAN_N_SETS 1
#define PLAN_NORMALIZE 2  /* tria_normalize */
#define PLAN_GROUP_MEAN 3 /* mean over the query heads of a group instead of max */
#define PLAN_TOKENS_PER_PAGE 4
#define PLAN_COUNT_PROMPT 5
#define PLAN_POOL_RADIUS 6
#define PLAN_FILL_HOLES 7
/* tables of the constants */
#define PLAN_KV 8
#define PLAN_QUERIES 9
#define PLAN_SETS 10
#define PLAN_GROUP 11   /* query slots by KV slot */
#define PLAN_MEMBERS 12 /* what each set aggregates: query slots or KV slots */
#define PLAN_MAG 13
/* parts of an event's inputs */
#define PLAN_IN_ROWS 14
#define PLAN_IN_POSITION_BASE 15   /* [kv] where its positions are in the inputs, or NONE */
#define PLAN_IN_BY_POSITION 16     /* [sets] */
#define PLAN_IN_RECENT_BEGIN 17    /* [sets] i32: positions from here on are protected */
#define PLAN_IN_BUDGETS 18         /* [sets] */
#define PLAN_IN_TABLE_BASE 19      /* [layers] where its page table is in the inputs */
#define PLAN_IN_ZERO_TABLE_BASE 20 /* [layers] the same without shared pages, for zeroing tails */
#define PLAN_IN_PINS 21            /* bits */
#define PLAN_IN_LIN 22
/* parts of an event's workspace */
#define PLAN_BAD_ROWS 23       /* bits: rows with a raw score that is not finite */
#define PLAN_NONZERO 24        /* [kv] 1: some key is not zero */
#define PLAN_UNSORTED 25       /* [sets] 1: positions do not ascend */
#define PLAN_N_PROTECTED 26    /* [sets] */
#define PLAN_N_PROMPT 27       /* [sets] */
#define PLAN_COUNTS 28         /* [sets] rows kept */
#define PLAN_LIMITS 29         /* [sets] budget with prompt rows added */
#define PLAN_N_MOVES 30        /* [sets] */
#define PLAN_QUERY_STATS 31    /* [queries][4] */
#define PLAN_GROUPED_STATS 32  /* [kv][4] */
#define PLAN_PROTECTED_BITS 33 /* [sets][rows / 32] */
#define PLAN_GROUPED 34        /* [kv][max_rows] */
#define PLAN_FINAL 35          /* [sets][max_rows] */
#define PLAN_POOL_INPUT 36     /* [sets][max_rows] final scores before pooling */
/* parts of the keep buffer */
#define PLAN_KEEP_ROWS 37 /* [sets][max_rows] */
#define PLAN_MOVE_FROM 38 /* [sets][max_rows] */
#define PLAN_MOVE_TO 39   /* [sets][max_rows] */
#define PLAN_HEADER_WORDS 40

/* one KV slot */
#define KV_SET 0 /* or NONE */
#define KV_GROUP_BEGIN 1
#define KV_GROUP_END 2
#define KV_N_CALIBRATED 3
#define KV_WEIGHT 4 /* f32, of mode global */
#define KV_WORDS 5

/* one query slot */
#define QUERY_KV 0
#define QUERY_CALIBRATED 1
#define QUERY_LIN 2
#define QUERY_MAG 3
#define QUERY_CONTENT 4 /* 1: content terms are part of `lin` */
#define QUERY_WORDS 5

/* one keep set */
#define SET_KV 0   /* a KV slot whose rows and positions are the set's */
#define SET_KIND 1 /* what its members are, below */
#define SET_MEAN 2 /* mean over the members instead of max */
#define SET_BEGIN 3
#define SET_END 4
#define SET_WORDS 5

#define KIND_GROUPED 0 /* grouped scores of KV slots */
#define KIND_QUERY 1   /* z of query slots */
#define KIND_GLOBAL 2  /* grouped scores, normalised again and weighted */

/* the first words of an event's inputs */
#define IN_N_PROMPTS 0
#define IN_N_SINK 1
#define IN_PROMPTS 2 /* where they are in the inputs: [n_prompts][2] */
#define IN_HEADER_WORDS 3

/* rows that one workgroup of the repack shader zeroes */
#define ZERO_ROWS 4096

#define NORMALIZE_ALL 0
#define NORMALIZE_CANDIDATES 1
#define NORMALIZE_NONE 2

#endif

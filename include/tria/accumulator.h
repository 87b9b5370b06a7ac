/*
 * tria/accumulator.h - makes a calibration from the queries of a model that runs over some text.
 *
 * Feed every query once, as it enters RoPE (after bias and QK-norm), layer by layer in blocks of any
 * size, or after RoPE with its positions. Everything is summed in double with compensation: the result
 * does not depend on the order or the size of the blocks (to 1e-12), and accumulators of shards merge.
 */
#ifndef TRIA_ACCUMULATOR_H
#define TRIA_ACCUMULATOR_H

#include "tria/calibration.h"
#include "tria/kv_view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tria_accumulator tria_accumulator;

typedef struct tria_accumulator_params {
    size_t struct_size;
    const tria_model *model; /* required; copied from, not kept */
    int32_t capture_point;   /* tria_capture_point, default AFTER_QK_NORM */
    int32_t content;         /* also collect content dimensions where a layer has any; default 1 */
    /* Called after every 1,024 tokens of a block and at its end, with the layer and the tokens its busiest
     * head has seen so far. Not 0: tria_accumulator_add() stops with CANCELLED; what was reported stays
     * counted. NULL: none. */
    int32_t (*progress)(void *context, int32_t layer, uint64_t n_tokens);
    void *progress_context;
} tria_accumulator_params;
TRIA_API void tria_accumulator_params_init(tria_accumulator_params *params);

TRIA_API tria_status tria_accumulator_create(const tria_accumulator_params *params, const tria_env *env,
                                             tria_accumulator **accumulator, tria_error *error);
TRIA_API void tria_accumulator_destroy(tria_accumulator *accumulator); /* NULL is allowed */

/* A block of one layer's queries, [n_tokens][n_heads][head_dim] in any layout. */
typedef struct tria_queries {
    size_t struct_size;
    int32_t layer;
    int32_t dtype; /* TRIA_DTYPE_F32, F16, BF16 or F64 */
    const void *data;
    int64_t n_tokens;
    int64_t token_stride; /* bytes; all three 0 = packed */
    int64_t head_stride;
    int64_t dim_stride;
    int32_t head_first;       /* the block holds query heads [head_first, head_first + n_heads) */
    int32_t n_heads;          /* 0 = all of the layer */
    const int32_t *positions; /* [n_tokens] RoPE positions >= 0 of queries after RoPE, which are un-rotated
                                 with the model's frequencies; NULL: queries before RoPE */
} tria_queries;
TRIA_API void tria_queries_init(tria_queries *queries);

/* Errors: ARGUMENT (a value that is not finite is named; nothing of the block is counted then). */
TRIA_API tria_status tria_accumulator_add(tria_accumulator *accumulator, const tria_queries *queries,
                                          tria_error *error);
/* Adds the sums of `other`, which is left as it is. Errors: MISMATCH when the models' layers differ. */
TRIA_API tria_status tria_accumulator_merge(tria_accumulator *accumulator, const tria_accumulator *other,
                                            tria_error *error);
/* Adds a finished calibration, weighted with its token counts: continues one whose checkpoint is gone, at
 * the precision of its float32 means. Errors: MISMATCH, also when it has no token counts, or no content
 * statistics where the accumulator gathers them. */
TRIA_API tria_status tria_accumulator_add_calibration(tria_accumulator *accumulator,
                                                      const tria_calibration *calibration,
                                                      tria_error *error);

/* A checkpoint: all sums, exactly. tria_accumulator_save() writes through a temporary file beside it.
 * tria_accumulator_resume() adds a checkpoint to an accumulator of the same model. */
TRIA_API tria_status tria_accumulator_save(const tria_accumulator *accumulator, const char *path,
                                           tria_error *error);
TRIA_API tria_status tria_accumulator_resume(tria_accumulator *accumulator, const char *path,
                                             tria_error *error);

/* Tokens seen by a layer's busiest head; 0 for layers out of range. */
TRIA_API uint64_t tria_accumulator_tokens(const tria_accumulator *accumulator, int32_t layer);

/* The calibration of everything seen so far; heads without tokens are absent. `report` (may be NULL)
 * gets the warnings of tria_calibration_review() and one for degenerate text: hardly any distinct
 * queries among thousands of tokens. The accumulator can go on. Errors: STATE when nothing was added. */
TRIA_API tria_status tria_accumulator_finish(const tria_accumulator *accumulator, tria_finding_fn report,
                                             void *context, tria_calibration **calibration,
                                             tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

/* byte_weights.h - weights as whole numbers of a few digits, for products of bytes. */
#ifndef TRIA_CPU_BYTE_WEIGHTS_H
#define TRIA_CPU_BYTE_WEIGHTS_H

#include "cpu/kernels_internal.h"

/* Whether a head of a job keeps its accuracy as digits: in no block are most weights coarse beside the
 * largest, and no step rounds, overflows or is NaN. */
bool tria_exact_in_bytes(const tria_score_job *job, int32_t head, bool with_content);

/* Fills in the part's blocks, digits, starts and steps, kept at `out`: 29 words for each head and
 * block. */
void tria_pack_bytes(const tria_score_job *job, int32_t key_bias, tria_head_part *part, float *out);

#endif

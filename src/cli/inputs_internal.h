/* inputs_internal.h - the steps of inputs_load(). Each returns CLI_CONTINUE or an exit code. */
#ifndef TRIA_CLI_INPUTS_INTERNAL_H
#define TRIA_CLI_INPUTS_INTERNAL_H

#include "inputs.h"

int inputs_load_keys(inputs *in);
/* The array, and the layer in it, that hold the keys of key layer `index`. */
const npy_array *inputs_keys_of(const inputs *in, int32_t index, int64_t *layer);
/* Elements of a row; blocks of quantised types are counted by their elements. 0: no whole number, or more
 * than there may be. */
int32_t inputs_keys_dim(const inputs *in, const npy_array *array);
/* Chooses the plan's layers and makes in->model, with keys and options applied. */
int inputs_build_model(inputs *in);
int inputs_build_view(inputs *in);

#endif

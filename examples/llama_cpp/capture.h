/*
 * capture.h - feeds libtria's accumulator with the queries of the text that llama.cpp runs over.
 *
 * Every query is taken as it enters RoPE: after bias and QK-norm, before the rotation, once. Which node
 * that is is not a matter of its name (several share it) but of the graph: the source of the layer's ROPE
 * node. Its data are asked for, so the graph is split there, but only while there is an accumulator.
 */
#ifndef EXAMPLE_CAPTURE_H
#define EXAMPLE_CAPTURE_H

#include "observer.h"

#include <tria/accumulator.h>

typedef struct capture {
    observer *observer;
    tria_accumulator *accumulator;   /* NULL: nothing is captured */
    const struct ggml_tensor *ready; /* the last node whose data llama.cpp has delivered */
    tria_status status;              /* of the first query that could not be taken; nothing follows it */
    tria_error error;
} capture;

/* An accumulator for queries captured here. */
tria_status capture_accumulator(const tria_model *model, tria_accumulator **accumulator, tria_error *error);

/* For llama_context_params.cb_eval; the context is the capture. Calls the observer's. */
bool capture_callback(struct ggml_tensor *tensor, bool ask, void *context);

#endif

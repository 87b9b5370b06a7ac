/* model_internal.h - what the two kinds of model description share. */
#ifndef TRIA_IMPORT_MODEL_INTERNAL_H
#define TRIA_IMPORT_MODEL_INTERNAL_H

#include "json.h"

/* Layers under construction; frequencies[l] is layer l's inv_freq, from malloc() or NULL. */
typedef struct model_builder {
    int32_t n_layers;
    tria_layer_params *layers;
    double **frequencies;
    int64_t context_length;
    tria_error *error;
} model_builder;

tria_status builder_open(model_builder *builder, int32_t n_layers);

/*
 * Sets theta and frequencies of a layer whose rotary_dim is set. `scaling` is a rope_scaling or
 * rope_parameters object or NULL; lengths it lacks are looked up in `config`.
 */
tria_status builder_set_rope(model_builder *builder, int32_t layer, double theta, const json_t *scaling,
                             const json_t *config);
/* The layer's heads are not rotated at all: frequencies of 0. */
tria_status builder_set_no_rope(model_builder *builder, int32_t layer);

/* Fill the builder from a description of each kind. */
tria_status describe_ours(model_builder *builder, const json_t *root);
tria_status describe_hugging_face(model_builder *builder, json_t *root); /* completes `root` */

/* Of a Hugging Face configuration: whether its model_type is one of a list that ends in NULL. */
bool import_model_is(const json_t *config, const char *const *types);

typedef enum layer_kind {
    LAYER_NONE, /* linear attention, convolution, state space ...: no KV cache */
    LAYER_FULL,
    LAYER_SLIDING
} layer_kind;

/* The kind of one of its layers. */
tria_status import_layer_kind(json_t *config, int32_t layer, layer_kind *kind, tria_error *error);

#endif

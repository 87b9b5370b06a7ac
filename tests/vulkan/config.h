/*
 * config.h - random models, calibrations, settings and caches, everything the specification allows: for
 * comparing a backend with the oracle.
 */
#ifndef TRIA_TESTS_VULKAN_CONFIG_H
#define TRIA_TESTS_VULKAN_CONFIG_H

#include "tria/tria.h"

#include <stdbool.h>

enum { CONFIG_LAYERS = 4, CONFIG_EVENTS = 3, CONFIG_BLOCKS = 64, CONFIG_DIM = 640 };

/* Memory that tensors lie in; a device buffer of the same size stands for it elsewhere. */
typedef struct config_block {
    unsigned char *data;
    size_t size;
} config_block;

typedef struct config_event {
    tria_event event;
    tria_kv_view view;
    tria_layer_view layers[CONFIG_LAYERS]; /* base and scales point to blocks' data */
    int32_t *table;                        /* [pages] of the view */
    int32_t *layer_tables[CONFIG_LAYERS];
    int32_t *positions;
    size_t n_positions;
    int32_t *rows; /* [kv slots] */
    int32_t pins[8];
    tria_range prompts[3];
    config_block blocks[CONFIG_BLOCKS];
    int32_t n_blocks;
} config_event;

typedef struct config {
    uint64_t seed;
    uint64_t state;
    int32_t n_layers;
    int32_t n_rows; /* longest */
    tria_layer_params layers[CONFIG_LAYERS];
    double inv_freq[CONFIG_LAYERS][CONFIG_DIM / 2];
    double freq_scale[CONFIG_LAYERS][CONFIG_DIM / 2];
    float weights[CONFIG_LAYERS];
    float signs[CONFIG_DIM];
    tria_layer_view layout_layers[CONFIG_LAYERS];
    tria_kv_view layout;
    tria_model *model;
    tria_calibration *calibration;
    tria_plan_params params; /* devices not set */
    int32_t n_events;
    config_event events[CONFIG_EVENTS];
} config;

void config_create(config *c, uint64_t seed);
void config_destroy(config *c);
/* One line that names what is special. */
void config_describe(const config *c, char *text, size_t size);

uint32_t config_random(config *c);
int32_t config_below(config *c, int32_t n);
bool config_chance(config *c, int32_t percent);

#endif

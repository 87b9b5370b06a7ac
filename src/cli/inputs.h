/*
 * inputs.h - what `tria score` and `tria select` have in common: a calibration, keys as .npy arrays, a
 * model made of both and the options, and from them the plan's parameters and one event.
 */
#ifndef TRIA_CLI_INPUTS_H
#define TRIA_CLI_INPUTS_H

#include "load.h"
#include "npy.h"
#include "options.h"
#include "tria/plan.h"

#define INPUTS_MAX_OPTIONS 64

typedef struct inputs {
    /* the command line */
    const char *calibration_path;
    const char *model_path;
    const char *positions_path;
    const char *inv_freq_path;
    const char *freq_scale_sq_path;
    const char *layer_weights_path;
    const char *output_path;
    const char *dtype_name;
    const char *key_scales;
    cli_list key_paths;
    cli_list layer_numbers;
    int64_t position; /* -1: not given */
    int64_t rotary_dim;
    int64_t rotary_offset; /* -1: not given */
    int64_t offset_max;
    int64_t n_threads;
    double content_weight;
    int32_t rope_style; /* -1: not given */
    int32_t offsets;
    int32_t normalize_over;
    int32_t group;
    int32_t layers_agg;
    int32_t backend;
    bool keys_raw;
    bool keys_hadamard;
    bool disable_trig;
    bool disable_norm_excess;
    bool json;

    /* what it names, loaded */
    cli_device device;
    tria_calibration *calibration;
    tria_model *model; /* of the plan: the file's or the calibration's, with the options applied */
    npy_array *keys;   /* [key_paths.count] */
    float *scales;     /* multipliers of the keys, or NULL */
    int32_t dtype;
    int32_t n_rows;
    int32_t n_layers;     /* of the plan */
    int32_t n_key_layers; /* of them with keys of their own, n_key_layers <= n_layers */
    int32_t *layers;      /* [n_layers] model layers, ascending */
    int32_t *key_layers;  /* [n_key_layers] indices into `layers` */
    int32_t max_q_heads;  /* over the plan's layers */
    int32_t max_kv_heads;
    int32_t *positions; /* or NULL: rows are 0 ... N-1 */
    float *layer_weights;
    tria_layer_view *layer_views; /* [n_layers] */
    tria_kv_view view;
    tria_plan_params params;
    tria_event event;
} inputs;

void inputs_init(inputs *in);
/* Fills in the common options; returns how many. options[INPUTS_MAX_OPTIONS] must have room for them. */
size_t inputs_options(inputs *in, cli_option *options);
/* Checks, loads and resolves everything; `command` is for diagnostics. CLI_CONTINUE or an exit code. */
int inputs_load(inputs *in, const char *command);
/* True when rows are numbered 0 ... N-1 only because nothing better is known: then a result that depends
 * on positions must be refused. */
bool inputs_positions_unknown(const inputs *in);
/* Reports where the calibration and the model given disagree. For when all went well: a bad input is one
 * line. */
void inputs_report_match(const inputs *in);
void inputs_free(inputs *in);

#endif

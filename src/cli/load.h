/* load.h - calibrations, model descriptions and devices, as the commands name them. */
#ifndef TRIA_CLI_LOAD_H
#define TRIA_CLI_LOAD_H

#include "cli.h"
#include "npy.h"
#include "options.h"
#include "tria/backend.h"
#include "tria/calibration.h"
#include "tria/model.h"

/* Memory from malloc(), warnings and errors of the library as diagnostics. */
const tria_env *cli_env(void);

/* Any format; `model` supplies what the file lacks and may be NULL. */
tria_status cli_load_calibration(const char *path, const tria_model *model, tria_calibration **calibration,
                                 tria_error *error);
/* Our JSON description or a Hugging Face config.json. */
tria_status cli_load_model(const char *path, tria_model **model, tria_error *error);

/* Reports one disagreement of a calibration and a model as a diagnostic: a tria_finding_fn. */
void cli_report_finding(void *context, tria_finding_severity severity, int32_t layer, const char *text);

#define CLI_BACKENDS "auto|cpu|cuda|hip|vulkan|reference"
/* The device of choice `backend` of CLI_BACKENDS; NULL stands for the CPU, which "auto" takes because
 * what the commands read lies in host memory. */
typedef struct cli_device {
    tria_backends *backends;
    tria_device *device;
} cli_device;
tria_status cli_open_device(int32_t backend, cli_device *device, tria_error *error);
void cli_close_device(cli_device *device);
const char *cli_device_backend(const cli_device *device);
const char *cli_device_name(const cli_device *device);

/* Integers of any width in [minimum, maximum] as int32; the message names the first that is not.
 * *values is [array.count], from malloc(). */
tria_status cli_integers(const char *path, const npy_array *array, int64_t minimum, int64_t maximum,
                         int32_t **values, tria_error *error);

#endif

/* eval_setup.c - opens engine, observer, model description, calibration and device together. */
#include "eval.h"
#include "geometry.h"
#include "observer.h"

#include <stdlib.h>
#include <string.h>

static tria_status open_device(const char *backend, eval_setup *setup, tria_error *error)
{
    if (backend == NULL || strcmp(backend, "cpu") == 0) {
        return TRIA_OK;
    }
    tria_device_params params = TRIA_DEVICE_PARAMS_INIT;
    params.allow_cpu = 1; /* who asks for Vulkan by name may mean the device that is the CPU */
    const tria_status status = tria_backends_create(NULL, NULL, &setup->backends, error);
    return status == TRIA_OK ? tria_device_open(setup->backends, backend, &params, &setup->device, error)
                             : status;
}

tria_status eval_open_with(const eval_options *options, int32_t cells,
                           ggml_backend_sched_eval_callback callback, void *context, struct observer **seen,
                           eval_setup *setup, tria_error *error)
{
    memset(setup, 0, sizeof(*setup));
    setup->observer = calloc(1, sizeof(*setup->observer));
    if (setup->observer == NULL) {
        return fail(error, TRIA_E_MEMORY, "out of memory");
    }
    *seen = setup->observer;
    const engine_params params = {.model_path = options->model_path,
                                  .cells = cells,
                                  .cache_type_k = options->cache_type_k,
                                  .n_sequences = options->n_sequences,
                                  .shared_cells = options->shared_cells,
                                  .graph_tokens = options->graph_tokens,
                                  .n_threads = options->n_threads,
                                  .callback = callback,
                                  .callback_context = context,
                                  .abort = options->abort,
                                  .abort_context = options->abort_context};
    tria_status status = open_device(options->backend, setup, error);
    if (status == TRIA_OK) {
        status = engine_open(&setup->engine, &params, error);
    }
    if (status == TRIA_OK) {
        status = observer_init(setup->observer, llama_model_n_layer(setup->engine.model), error);
    }
    if (status == TRIA_OK) {
        status = geometry_probe(&setup->engine, setup->observer, &setup->model, error);
    }
    if (status == TRIA_OK && options->calibration_path != NULL) {
        status = tria_calibration_load(options->calibration_path, NULL, &setup->calibration, error);
    }
    if (status == TRIA_OK && setup->calibration != NULL) {
        status = tria_calibration_match(setup->calibration, setup->model, NULL, NULL, error);
    }
    if (status != TRIA_OK) {
        eval_close(setup);
    }
    return status;
}

tria_status eval_open(const eval_options *options, int32_t cells, eval_setup *setup, tria_error *error)
{
    return eval_open_with(options, cells, capture_callback, &setup->queries, &setup->queries.observer,
                          setup, error);
}

void eval_close(eval_setup *setup)
{
    tria_calibration_destroy(setup->calibration);
    tria_model_destroy(setup->model);
    tria_device_close(setup->device);
    tria_backends_destroy(setup->backends);
    engine_close(&setup->engine);
    if (setup->observer != NULL) {
        observer_release(setup->observer);
        free(setup->observer);
    }
    memset(setup, 0, sizeof(*setup));
}

int32_t eval_budget(const eval_config *config, int32_t n_tokens)
{
    return (int32_t)((int64_t)n_tokens * config->percent / 100);
}

host_params eval_host_params(const eval_options *options, const eval_config *config, eval_setup *setup,
                             int32_t n_tokens)
{
    const host_params params = {
        .policy = config->policy,
        .model = setup->model,
        .calibration = setup->calibration,
        .budget = eval_budget(config, n_tokens),
        .interval = options->interval,
        .n_recent = options->n_recent,
        .n_sink = options->n_sink,
        .mode = config->mode,
        .pool_radius = config->pool_radius,
        .own_weight = config->own_percent / 100.0,
        .capture = &setup->queries,
        .device = setup->device,
        .stage = options->stage,
        .n_threads = options->n_threads,
        .trace = config->policy == HOST_POLICY_TRIA ? options->trace : NULL,
        .seed = options->seed,
    };
    return params;
}

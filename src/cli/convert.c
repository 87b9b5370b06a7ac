/* convert.c - `tria convert`: from one calibration format to another. */
#include "load.h"

#ifdef TRIA_CLI_IMPORT
#include "tria/import.h"
#endif

#include <string.h>

#define FORMATS "tria1|tria2|tria3|tria4|tria5|triattention3|json"

typedef struct conversion {
    const char *input;
    const char *output;
    const char *model_path;
    int32_t format; /* index in FORMATS */
    bool lossy;
} conversion;

static tria_status save(const tria_calibration *calibration, int32_t format, bool lossy, const char *path,
                        tria_error *error)
{
#ifdef TRIA_CLI_IMPORT
    return tria_import_calibration_save(calibration, format, lossy, path, error);
#else
    return tria_calibration_save(calibration, format, lossy, path, error);
#endif
}

/* Replaces *calibration by one of the model's geometry: the model supplies what the input lacks. */
static int adopt_model(const conversion *c, tria_calibration **calibration)
{
    tria_error error;
    tria_model *model;
    tria_calibration *adopted = NULL;
    tria_status status;
    if (cli_load_model(c->model_path, &model, &error) != TRIA_OK) {
        return cli_library_error(c->model_path, &error);
    }
    /* What only the model knows must be known before the two are compared. */
    tria_calibration_destroy(*calibration);
    *calibration = NULL;
    status = cli_load_calibration(c->input, model, calibration, &error);
    if (status == TRIA_OK) {
        status = tria_calibration_match(*calibration, model, cli_report_finding,
                                        (void *)(uintptr_t)c->input, &error);
    }
    if (status == TRIA_OK) {
        status = tria_calibration_adopt(*calibration, model, cli_env(), &adopted, &error);
    }
    tria_model_destroy(model);
    if (status != TRIA_OK) {
        return cli_library_error(c->input, &error);
    }
    tria_calibration_destroy(*calibration);
    *calibration = adopted;
    return CLI_CONTINUE;
}

static int write_output(const conversion *c, const tria_calibration *calibration)
{
    static const tria_format formats[] = {TRIA_FORMAT_TRIA1, TRIA_FORMAT_TRIA2, TRIA_FORMAT_TRIA3,
                                          TRIA_FORMAT_TRIA4, TRIA_FORMAT_TRIA5, TRIA_FORMAT_TRIATTENTION3,
                                          TRIA_FORMAT_JSON};
    const int32_t format = (int32_t)formats[c->format];
    tria_error error;
    tria_status status = save(calibration, format, false, c->output, &error);
    if (status == TRIA_E_LOSSY && c->lossy) {
        cli_message("%s: lost: %s", c->output, error.message);
        status = save(calibration, format, true, c->output, &error);
    }
    if (status == TRIA_E_LOSSY) {
        return cli_bad_input("%s: %s (--lossy writes it all the same)", c->output, error.message);
    }
    return status == TRIA_OK ? CLI_OK : cli_library_error(c->output, &error);
}

int cli_convert(int argc, char **argv)
{
    conversion c = {.format = 4};
    const cli_option options[] = {
        CLI_CHOICE("format", FORMATS, &c.format, "what to write, default tria5"),
        CLI_TEXT("model", "M.json", &c.model_path,
                 "a model description, for what the input lacks or has wrong"),
        CLI_FLAG("lossy", &c.lossy, "write even what the format cannot hold completely"),
    };
    const cli_syntax syntax = {
        "convert", "IN OUT", "From one calibration format to another.", options, CLI_COUNT(options), 2, 2};
    const char *arguments[2];
    tria_calibration *calibration = NULL;
    tria_error error;
    int code = cli_parse(&syntax, argc, argv, arguments);
    if (code != CLI_CONTINUE) {
        return code;
    }
    c.input = arguments[0];
    c.output = arguments[1];
    if (cli_load_calibration(c.input, NULL, &calibration, &error) != TRIA_OK) {
        return cli_library_error(c.input, &error);
    }
    if (c.model_path != NULL) {
        code = adopt_model(&c, &calibration);
    }
    if (code == CLI_CONTINUE) {
        code = write_output(&c, calibration);
    }
    tria_calibration_destroy(calibration);
    return code;
}

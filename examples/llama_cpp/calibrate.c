/*
 * tria-llama-calibrate - makes a calibration file of a GGUF model from a text, which it runs through
 * llama.cpp in windows of --ctx tokens.
 */
#include "args.h"
#include "capture.h"
#include "engine.h"
#include "geometry.h"
#include "observer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_text(engine *e, capture *c, llama_token *tokens, int32_t n_tokens, int32_t window)
{
    const double begin = seconds_now();
    for (int32_t done = 0; done < n_tokens;) {
        if (done % window == 0) {
            llama_memory_clear(e->memory, false);
            if (llama_vocab_get_add_bos(e->vocab)) {
                tokens[done] = llama_vocab_bos(e->vocab);
            }
        }
        int32_t part = window - done % window;
        part = part < e->batch ? part : e->batch;
        part = part < n_tokens - done ? part : n_tokens - done;
        observer_clear(c->observer);
        tria_error error;
        if (engine_decode(e, 0, tokens + done, part, &error) != TRIA_OK) {
            die(EXIT_FAILED, "%s", error.message);
        }
        if (c->status != TRIA_OK) {
            die(EXIT_FAILED, "%s", c->error.message);
        }
        done += part;
        fprintf(stderr, "\rcalibrate: %d of %d tokens, %.0f tokens/s ", done, n_tokens,
                done / (seconds_now() - begin));
    }
    fputc('\n', stderr);
}

static void print_finding(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    (void)context;
    (void)layer;
    fprintf(stderr, "calibrate: %s: %s\n", severity == TRIA_FINDING_NOTE ? "note" : "warning", text);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Per layer: tokens seen and the concentration |E q| / E|q| of its heads. */
static void print_report(const tria_calibration *calibration, const tria_model *model)
{
    const int32_t n_layers = tria_model_n_layers(model);
    double *all = NULL;
    size_t n_all = 0;
    tria_error error;
    printf("layer  tokens  concentration of the query heads: lowest  mean  highest\n");
    for (int32_t layer = 0; layer < n_layers; layer++) {
        tria_calibration_layer_info info = {.struct_size = sizeof(info)};
        if (tria_calibration_layer(calibration, layer, &info, &error) != TRIA_OK) {
            die(EXIT_FAILED, "%s", error.message);
        }
        const int32_t n_heads = info.geometry.n_q_heads;
        double *larger = realloc(all, (n_all + (size_t)n_heads) * sizeof(*all));
        if (larger == NULL) {
            die(EXIT_FAILED, "out of memory");
        }
        all = larger;
        double lowest = INFINITY;
        double highest = 0;
        double sum = 0;
        for (int32_t head = 0; head < n_heads; head++) {
            double r = 0;
            if (tria_calibration_concentration(calibration, layer, head, &r, &error) != TRIA_OK) {
                die(EXIT_FAILED, "%s", error.message);
            }
            lowest = fmin(lowest, r);
            highest = fmax(highest, r);
            sum += r;
            all[n_all++] = r;
        }
        printf("%5d %7llu  %41.3f  %.3f  %.3f\n", layer, (unsigned long long)info.n_tokens, lowest,
               sum / n_heads, highest);
    }
    qsort(all, n_all, sizeof(*all), ascending);
    printf(
        "median concentration over %zu heads: %.3f (well above 0.2 when queries were taken before RoPE)\n",
        n_all, n_all > 0 ? all[n_all / 2] : 0.0);
    free(all);
}

int main(int argc, char **argv)
{
    const char *model_path = NULL;
    const char *text_path = NULL;
    const char *output = NULL;
    int32_t window = 2048;
    int32_t n_wanted = 32768;
    int32_t n_threads = 0;
    const arg table[] = {
        {"--model", ARG_TEXT, &model_path, 0, "GGUF file"},
        {"--text", ARG_TEXT, &text_path, 0, "text to calibrate on"},
        {"--output", ARG_TEXT, &output, 0, "calibration file to write"},
        {"--ctx", ARG_INT, &window, 16, "tokens per window"},
        {"--tokens", ARG_INT, &n_wanted, 1, "tokens of the text to use"},
        {"--threads", ARG_INT, &n_threads, 0, "0 = all processors"},
        {0},
    };
    args_parse(argc, argv, "makes a libtria calibration of a GGUF model from a text", table);
    if (model_path == NULL || text_path == NULL || output == NULL) {
        die(EXIT_USAGE, "--model, --text and --output are needed, see --help");
    }

    tria_error error;
    observer seen = {0};
    capture c = {&seen, NULL, NULL, TRIA_OK, {0}};
    engine e;
    tria_model *model = NULL;
    llama_token *tokens = NULL;
    int32_t n_tokens = 0;
    const engine_params params = {.model_path = model_path,
                                  .cells = window,
                                  .n_threads = n_threads,
                                  .callback = capture_callback,
                                  .callback_context = &c};
    if (engine_open(&e, &params, &error) != TRIA_OK ||
        engine_tokenize_file(&e, text_path, &tokens, &n_tokens, &error) != TRIA_OK ||
        observer_init(&seen, llama_model_n_layer(e.model), &error) != TRIA_OK ||
        geometry_probe(&e, &seen, &model, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    n_tokens = n_tokens < n_wanted ? n_tokens : n_wanted;

    tria_calibration *calibration = NULL;
    if (capture_accumulator(model, &c.accumulator, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    run_text(&e, &c, tokens, n_tokens, window);

    char provenance[512];
    const char *slash = strrchr(text_path, '/');
    snprintf(provenance, sizeof(provenance), "tria-llama-calibrate: %d tokens of %s in windows of %d",
             n_tokens, slash != NULL ? slash + 1 : text_path, window);
    if (tria_accumulator_finish(c.accumulator, print_finding, NULL, &calibration, &error) != TRIA_OK ||
        tria_calibration_set_texts(calibration, tria_model_name(model), tria_model_fingerprint(model),
                                   provenance, NULL, &error) != TRIA_OK ||
        tria_calibration_save(calibration, TRIA_FORMAT_TRIA5, 0, output, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    print_report(calibration, model);
    printf("wrote %s\n", output);

    tria_calibration_destroy(calibration);
    tria_accumulator_destroy(c.accumulator);
    tria_model_destroy(model);
    free(tokens);
    engine_close(&e);
    observer_release(&seen);
    return 0;
}

/* inspect.c - `tria inspect`: what a calibration file holds, and whether it fits a model. */
#include "json.h"
#include "load.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WEAKEST = 5 };

typedef struct finding {
    tria_finding_severity severity;
    int32_t layer;
    char *text;
} finding;

typedef struct head_concentration {
    int32_t layer;
    int32_t head;
    double value;
} head_concentration;

/* Sums over all heads, in file order, and the first numbers of layer 0 head 0. */
typedef struct array_stats {
    const char *name;
    double sum;
    double first[3];
    int32_t n_first;
    bool present;
} array_stats;

enum { N_ARRAYS = 6 };

typedef struct inspection {
    const char *path;
    const char *model_path;
    bool stats;
    bool json;
    tria_calibration *calibration;
    tria_calibration_info info;
    tria_model *model;
    bool mismatch;
    finding *findings;
    size_t n_findings;
    head_concentration *heads; /* ascending by value */
    size_t n_heads;
    array_stats arrays[N_ARRAYS];
} inspection;

static void keep_finding(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    inspection *in = context;
    const size_t length = strlen(text) + 1;
    finding *grown = cli_allocate(in->n_findings + 1, sizeof(*grown));
    if (in->n_findings > 0) {
        memcpy(grown, in->findings, in->n_findings * sizeof(*grown));
    }
    free(in->findings);
    in->findings = grown;
    grown[in->n_findings].severity = severity;
    grown[in->n_findings].layer = layer;
    grown[in->n_findings].text = cli_allocate(length, 1);
    memcpy(grown[in->n_findings].text, text, length);
    in->n_findings++;
}

static tria_calibration_layer_info layer_info(const inspection *in, int32_t layer)
{
    tria_calibration_layer_info info = {.struct_size = sizeof(info)};
    (void)tria_calibration_layer(in->calibration, layer, &info, NULL); /* layer exists */
    return info;
}

static int compare_heads(const void *a, const void *b)
{
    const head_concentration *x = a;
    const head_concentration *y = b;
    if (x->value != y->value) {
        return x->value < y->value ? -1 : 1;
    }
    return x->layer != y->layer ? x->layer - y->layer : x->head - y->head;
}

static void add_array(array_stats *stats, const float *values, int32_t count, bool first)
{
    stats->present = stats->present || values != NULL;
    for (int32_t i = 0; values != NULL && i < count; i++) {
        stats->sum += (double)values[i];
    }
    for (int32_t i = 0; values != NULL && first && i < count && i < 3; i++) {
        stats->first[i] = (double)values[i];
        stats->n_first = i + 1;
    }
}

static void gather_head(inspection *in, const tria_calibration_layer_info *layer, int32_t l, int32_t h)
{
    const int32_t n_freq = layer->geometry.rotary_dim / 2;
    const int32_t n_content = layer->geometry.head_dim - layer->geometry.rotary_dim;
    const bool first = l == 0 && h == 0;
    tria_head_stats stats = {.struct_size = sizeof(stats)};
    const float *mrl = NULL;
    int32_t present = 0;
    (void)tria_calibration_head(in->calibration, l, h, &stats, &present, NULL);
    if (!present) {
        return;
    }
    in->heads[in->n_heads].layer = l;
    in->heads[in->n_heads].head = h;
    (void)tria_calibration_concentration(in->calibration, l, h, &in->heads[in->n_heads].value, NULL);
    in->n_heads++;
    add_array(&in->arrays[0], stats.q_mean_real, n_freq, first);
    add_array(&in->arrays[1], stats.q_mean_imag, n_freq, first);
    add_array(&in->arrays[2], stats.q_abs_mean, n_freq, first);
    if (in->info.format <= TRIA_FORMAT_TRIATTENTION3) { /* others have no such array */
        (void)tria_calibration_mrl(in->calibration, l, h, &mrl, NULL);
    }
    add_array(&in->arrays[3], mrl, n_freq, first);
    add_array(&in->arrays[4], stats.content_mean, n_content, first);
    add_array(&in->arrays[5], stats.content_abs, n_content, first);
}

/* Layer 0 head 0 that is not calibrated reads as zeros, as it lies in the files that cannot say so. */
static void gather(inspection *in)
{
    static const char *const names[N_ARRAYS] = {"q_mean_real", "q_mean_imag",  "q_abs_mean",
                                                "mrl",         "content_mean", "content_abs"};
    in->heads = cli_allocate((size_t)in->info.n_calibrated, sizeof(*in->heads));
    for (int32_t i = 0; i < N_ARRAYS; i++) {
        in->arrays[i].name = names[i];
        in->arrays[i].present = i < 3;
        in->arrays[i].n_first = i < 3 ? 3 : 0;
    }
    for (int32_t l = 0; l < in->info.n_layers; l++) {
        const tria_calibration_layer_info layer = layer_info(in, l);
        for (int32_t h = 0; h < layer.geometry.n_q_heads; h++) {
            gather_head(in, &layer, l, h);
        }
    }
    qsort(in->heads, in->n_heads, sizeof(*in->heads), compare_heads);
}

static double median(const inspection *in)
{
    const size_t middle = in->n_heads / 2;
    return in->n_heads % 2 != 0 ? in->heads[middle].value
                                : (in->heads[middle - 1].value + in->heads[middle].value) / 2;
}

static const char *style_name(const tria_layer_params *layer)
{
    return layer->rope_style == TRIA_ROPE_INTERLEAVED ? "interleaved" : "half";
}

static const char *capture_name(int32_t capture_point)
{
    static const char *const names[] = {"unknown", "before QK-norm", "after QK-norm"};
    return names[capture_point];
}

/* Whether two layers would print alike. */
static bool same_layer(const tria_calibration_layer_info *a, const tria_calibration_layer_info *b)
{
    const tria_layer_params *x = &a->geometry;
    const tria_layer_params *y = &b->geometry;
    return x->n_q_heads == y->n_q_heads && x->n_kv_heads == y->n_kv_heads && x->head_dim == y->head_dim &&
           x->rotary_dim == y->rotary_dim && x->rotary_offset == y->rotary_offset &&
           x->rope_style == y->rope_style && x->kv_source == y->kv_source && x->window == y->window &&
           x->rope_theta == y->rope_theta && (x->inv_freq != NULL) == (y->inv_freq != NULL) &&
           a->n_calibrated == b->n_calibrated && a->n_tokens == b->n_tokens;
}

static void print_layer(const tria_calibration_layer_info *info)
{
    const tria_layer_params *layer = &info->geometry;
    if (layer->n_q_heads == 0) {
        printf("no attention\n");
        return;
    }
    printf("%" PRId32 " query heads, ", layer->n_q_heads);
    if (layer->n_kv_heads > 0) {
        printf("%" PRId32 " KV heads", layer->n_kv_heads);
    } else {
        printf("KV heads not known");
    }
    printf(", head_dim %" PRId32 ", rotary %" PRId32, layer->head_dim, layer->rotary_dim);
    if (layer->rotary_offset > 0) {
        printf(" from %" PRId32, layer->rotary_offset);
    }
    if (layer->rope_theta > 0.0) {
        printf(", theta %.9g", layer->rope_theta);
    } else if (layer->inv_freq == NULL) {
        printf(", theta not known");
    }
    if (layer->inv_freq != NULL) {
        printf(", explicit frequencies");
    }
    if (layer->window > 0) {
        printf(", window %" PRId32, layer->window);
    }
    if (layer->kv_source >= 0) {
        printf(", reads layer %" PRId32 "'s cache", layer->kv_source);
    }
    printf("; %" PRId32 " heads calibrated", info->n_calibrated);
    if (info->n_tokens > 0) {
        printf(" from %" PRIu64 " tokens", info->n_tokens);
    }
    printf("\n");
}

/* The numbers of the layers that are like layer `first`: "0-2, 4, 6-8". */
static void print_numbers(const inspection *in, int32_t first, bool *printed)
{
    const tria_calibration_layer_info info = layer_info(in, first);
    const char *separator = "";
    int32_t begin = -1;
    for (int32_t l = first; l <= in->info.n_layers; l++) {
        bool alike = false;
        if (l < in->info.n_layers) {
            const tria_calibration_layer_info other = layer_info(in, l);
            alike = same_layer(&info, &other);
            printed[l] = printed[l] || alike;
        }
        if (alike && begin < 0) {
            begin = l;
        } else if (!alike && begin >= 0) {
            printf("%s%" PRId32, separator, begin);
            if (l - 1 > begin) {
                printf("-%" PRId32, l - 1);
            }
            separator = ", ";
            begin = -1;
        }
    }
}

/* Like layers on one line. */
static void print_layers(const inspection *in)
{
    bool *printed = cli_allocate((size_t)in->info.n_layers, sizeof(*printed));
    for (int32_t l = 0; l < in->info.n_layers; l++) {
        if (!printed[l]) {
            const tria_calibration_layer_info info = layer_info(in, l);
            printf("  layers ");
            print_numbers(in, l, printed);
            printf(": ");
            print_layer(&info);
        }
    }
    free(printed);
}

/* One line that holds texts of the file, without what could upset a terminal. */
static void print_safely(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        putchar((unsigned char)*c < 32 || *c == 127 ? '?' : *c);
    }
    putchar('\n');
}

static void print_findings(const inspection *in)
{
    static const char *const names[] = {"note", "warning", "error"};
    for (size_t i = 0; i < in->n_findings; i++) {
        printf("%s: ", names[in->findings[i].severity]);
        if (in->findings[i].layer >= 0) {
            printf("layer %" PRId32 ": ", in->findings[i].layer);
        }
        print_safely(in->findings[i].text);
    }
}

static void print_stats(const inspection *in)
{
    for (int32_t i = 0; i < N_ARRAYS; i++) {
        const array_stats *array = &in->arrays[i];
        if (!array->present) {
            continue;
        }
        printf("%s: sum %.12g, layer 0 head 0:", array->name, array->sum);
        for (int32_t f = 0; f < array->n_first; f++) {
            printf(" %.9g", array->first[f]);
        }
        printf("\n");
    }
}

static void print_text(const char *label, const char *text)
{
    if (text[0] != '\0') {
        printf("%s: ", label);
        print_safely(text);
    }
}

static void print_report(const inspection *in)
{
    const tria_calibration_layer_info first = layer_info(in, 0);
    printf("%s: format %s, %" PRId32 " layers, %" PRId32 " of %" PRId32 " heads calibrated%s\n", in->path,
           tria_format_name(in->info.format), in->info.n_layers, in->info.n_calibrated, in->info.n_heads,
           in->info.explicit_presence ? "" : " (heads of zeros count as not calibrated)");
    print_text("model", in->info.model_name);
    print_text("fingerprint", in->info.fingerprint);
    print_text("provenance", in->info.provenance);
    print_text("default policy", in->info.default_policy);
    printf("rope: style %s%s", style_name(&first.geometry),
           in->info.explicit_style ? "" : " (assumed, the file does not say)");
    if (in->info.rope_theta > 0.0) {
        printf(", theta %.9g", in->info.rope_theta);
    }
    printf("%s\n", in->info.explicit_inv_freq ? ", explicit frequencies" : "");
    if (in->info.capture_point != TRIA_CAPTURE_UNKNOWN) {
        printf("queries taken %s\n", capture_name(in->info.capture_point));
    }
    print_layers(in);
    if (in->n_heads > 0) {
        printf("concentration: min %.3f, median %.3f, max %.3f; weakest heads", in->heads[0].value,
               median(in), in->heads[in->n_heads - 1].value);
        for (size_t i = 0; i < in->n_heads && i < WEAKEST; i++) {
            printf("%s %" PRId32 ".%" PRId32 " (%.3f)", i > 0 ? "," : "", in->heads[i].layer,
                   in->heads[i].head, in->heads[i].value);
        }
        printf("\n");
    }
    if (in->stats) {
        print_stats(in);
    }
    print_findings(in);
}

static void json_layer(json_writer *writer, const tria_calibration_layer_info *info)
{
    const tria_layer_params *layer = &info->geometry;
    json_open(writer, NULL, '{');
    json_integer(writer, "n_q_heads", layer->n_q_heads);
    if (layer->n_q_heads > 0) {
        if (layer->n_kv_heads > 0) {
            json_integer(writer, "n_kv_heads", layer->n_kv_heads);
        } else {
            json_null(writer, "n_kv_heads");
        }
        json_integer(writer, "head_dim", layer->head_dim);
        json_integer(writer, "rotary_dim", layer->rotary_dim);
        json_integer(writer, "rotary_offset", layer->rotary_offset);
        json_text(writer, "rope_style", style_name(layer));
        if (layer->rope_theta > 0.0) {
            json_number(writer, "rope_theta", layer->rope_theta);
        } else {
            json_null(writer, "rope_theta");
        }
        json_boolean(writer, "explicit_inv_freq", layer->inv_freq != NULL);
        json_integer(writer, "kv_source", layer->kv_source);
        json_integer(writer, "window", layer->window);
    }
    json_integer(writer, "calibrated", info->n_calibrated);
    json_integer(writer, "tokens", (int64_t)info->n_tokens);
    json_number(writer, "budget_scale", (double)info->budget_scale);
    json_close(writer, '}');
}

static void json_concentration(json_writer *writer, const inspection *in)
{
    json_open(writer, "concentration", '{');
    json_number(writer, "min", in->heads[0].value);
    json_number(writer, "median", median(in));
    json_number(writer, "max", in->heads[in->n_heads - 1].value);
    json_open(writer, "weakest", '[');
    for (size_t i = 0; i < in->n_heads && i < WEAKEST; i++) {
        json_open(writer, NULL, '{');
        json_integer(writer, "layer", in->heads[i].layer);
        json_integer(writer, "head", in->heads[i].head);
        json_number(writer, "value", in->heads[i].value);
        json_close(writer, '}');
    }
    json_close(writer, ']');
    json_close(writer, '}');
}

static void json_stats(json_writer *writer, const inspection *in)
{
    json_open(writer, "stats", '{');
    for (int32_t i = 0; i < N_ARRAYS; i++) {
        const array_stats *array = &in->arrays[i];
        if (!array->present) {
            continue;
        }
        json_open(writer, array->name, '{');
        json_number(writer, "sum", array->sum);
        json_open(writer, "first", '[');
        for (int32_t f = 0; f < array->n_first; f++) {
            json_number(writer, NULL, array->first[f]);
        }
        json_close(writer, ']');
        json_close(writer, '}');
    }
    json_close(writer, '}');
}

static void json_findings(json_writer *writer, const inspection *in)
{
    static const char *const names[] = {"note", "warning", "error"};
    json_open(writer, "findings", '[');
    for (size_t i = 0; i < in->n_findings; i++) {
        json_open(writer, NULL, '{');
        json_text(writer, "severity", names[in->findings[i].severity]);
        if (in->findings[i].layer >= 0) {
            json_integer(writer, "layer", in->findings[i].layer);
        } else {
            json_null(writer, "layer");
        }
        json_text(writer, "text", in->findings[i].text);
        json_close(writer, '}');
    }
    json_close(writer, ']');
}

static void json_report(const inspection *in)
{
    json_writer writer = {stdout, false};
    const tria_calibration_layer_info first = layer_info(in, 0);
    json_open(&writer, NULL, '{');
    json_text(&writer, "file", in->path);
    json_text(&writer, "format", tria_format_name(in->info.format));
    json_integer(&writer, "n_layers", in->info.n_layers);
    json_integer(&writer, "n_heads", in->info.n_heads);
    json_integer(&writer, "n_calibrated", in->info.n_calibrated);
    json_boolean(&writer, "explicit_presence", in->info.explicit_presence != 0);
    json_text(&writer, "rope_style", in->info.explicit_style ? style_name(&first.geometry) : "unknown");
    if (in->info.rope_theta > 0.0) {
        json_number(&writer, "rope_theta", in->info.rope_theta);
    } else {
        json_null(&writer, "rope_theta");
    }
    json_boolean(&writer, "explicit_inv_freq", in->info.explicit_inv_freq != 0);
    json_number(&writer, "attn_scale", (double)in->info.attn_scale);
    json_text(&writer, "capture_point", capture_name(in->info.capture_point));
    json_integer(&writer, "tokens", (int64_t)in->info.n_tokens);
    json_text(&writer, "model_name", in->info.model_name);
    json_text(&writer, "fingerprint", in->info.fingerprint);
    json_text(&writer, "provenance", in->info.provenance);
    json_text(&writer, "default_policy", in->info.default_policy);
    json_open(&writer, "layers", '[');
    for (int32_t l = 0; l < in->info.n_layers; l++) {
        const tria_calibration_layer_info info = layer_info(in, l);
        json_layer(&writer, &info);
    }
    json_close(&writer, ']');
    if (in->n_heads > 0) {
        json_concentration(&writer, in);
    }
    if (in->stats) {
        json_stats(&writer, in);
    }
    json_findings(&writer, in);
    json_close(&writer, '}');
    printf("\n");
}

/* Compares the file as an engine reads it, what it lacks taken from the model: a file that only names some
 * heads does not say how many there are. */
static tria_status match_model(inspection *in, tria_error *error)
{
    tria_calibration *completed;
    tria_status status = cli_load_calibration(in->path, in->model, &completed, error);
    if (status == TRIA_OK) {
        status = tria_calibration_match(completed, in->model, keep_finding, in, error);
        tria_calibration_destroy(completed);
    }
    return status;
}

static int run(inspection *in)
{
    tria_error error;
    if (cli_load_calibration(in->path, NULL, &in->calibration, &error) != TRIA_OK) {
        return cli_library_error(in->path, &error);
    }
    if (in->model_path != NULL && cli_load_model(in->model_path, &in->model, &error) != TRIA_OK) {
        return cli_library_error(in->model_path, &error);
    }
    in->info.struct_size = sizeof(in->info);
    if (tria_calibration_get_info(in->calibration, &in->info, &error) != TRIA_OK ||
        tria_calibration_review(in->calibration, keep_finding, in, &error) != TRIA_OK) {
        return cli_library_error(in->path, &error);
    }
    in->mismatch = in->model != NULL && match_model(in, &error) != TRIA_OK;
    gather(in);
    if (in->json) {
        json_report(in);
    } else {
        print_report(in);
    }
    return in->mismatch ? cli_library_error(in->path, &error) : CLI_OK;
}

int cli_inspect(int argc, char **argv)
{
    inspection in = {0};
    const cli_option options[] = {
        CLI_TEXT("model", "M.json", &in.model_path, "check the file against a model description"),
        CLI_FLAG("stats", &in.stats, "sums of all arrays and their first values"),
        CLI_FLAG("json", &in.json, "print a report as JSON"),
    };
    const cli_syntax syntax = {"inspect",
                               "FILE",
                               "What a calibration file holds, and whether it fits a model.",
                               options,
                               CLI_COUNT(options),
                               1,
                               1};
    const char *arguments[1];
    int code = cli_parse(&syntax, argc, argv, arguments);
    if (code != CLI_CONTINUE) {
        return code;
    }
    in.path = arguments[0];
    code = run(&in);
    for (size_t i = 0; i < in.n_findings; i++) {
        free(in.findings[i].text);
    }
    free(in.findings);
    free(in.heads);
    tria_model_destroy(in.model);
    tria_calibration_destroy(in.calibration);
    return code;
}

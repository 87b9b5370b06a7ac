/* golden.c - see golden.h. */
#include "golden.h"

#include "cases.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void golden_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0;
    if (file == NULL) {
        golden_die("%s: cannot be opened", path);
    }
    for (;;) {
        size_t got;
        text = realloc(text, size + 4097);
        got = fread(text + size, 1, 4096, file);
        size += got;
        if (got == 0) {
            break;
        }
    }
    fclose(file);
    text[size] = '\0';
    return text;
}

void golden_open(golden_case *gc, const char *folder)
{
    char path[600];
    char *save = NULL;
    memset(gc, 0, sizeof(*gc));
    snprintf(gc->folder, sizeof(gc->folder), "%s", folder);
    snprintf(path, sizeof(path), "%s/manifest.txt", folder);
    gc->text = read_text(path);
    for (char *line = strtok_r(gc->text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *blank = strchr(line, ' ');
        if (blank == NULL) {
            continue;
        }
        *blank = '\0';
        gc->keys = realloc(gc->keys, (gc->n_lines + 1) * sizeof(*gc->keys));
        gc->values = realloc(gc->values, (gc->n_lines + 1) * sizeof(*gc->values));
        gc->keys[gc->n_lines] = line;
        gc->values[gc->n_lines++] = blank + 1;
    }
}

void golden_close(golden_case *gc)
{
    free(gc->text);
    free(gc->keys);
    free(gc->values);
}

const char *golden_text(const golden_case *gc, const char *key)
{
    for (size_t i = 0; i < gc->n_lines; i++) {
        if (strcmp(gc->keys[i], key) == 0) {
            return gc->values[i];
        }
    }
    return NULL;
}

double golden_number(const golden_case *gc, double otherwise, const char *format, ...)
{
    char key[128];
    const char *text;
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof(key), format, args);
    va_end(args);
    text = golden_text(gc, key);
    return text != NULL ? strtod(text, NULL) : otherwise;
}

bool golden_has(const golden_case *gc, const char *name)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s.npy", gc->folder, name);
    return access(path, F_OK) == 0;
}

npy_array golden_array(const golden_case *gc, const char *format, ...)
{
    char name[128];
    char path[700];
    npy_array array;
    tria_error error;
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    snprintf(path, sizeof(path), "%s/%s.npy", gc->folder, name);
    if (npy_read(path, &array, &error) != TRIA_OK) {
        golden_die("%s", error.message);
    }
    return array;
}

static void check(tria_status status, const tria_error *error, const golden_case *gc)
{
    if (status != TRIA_OK) {
        golden_die("%s: %s", gc->folder, error->message);
    }
}

static void load_keys(golden_setup *setup, const golden_case *gc, const golden_settings *settings)
{
    char name[64];
    snprintf(name, sizeof(name), "%s_0", settings->keys);
    if (!golden_has(gc, name)) {
        setup->keys[0] = golden_array(gc, "%s", settings->keys);
        setup->n_files = 1;
        return;
    }
    for (setup->n_files = 0; setup->n_files < 8; setup->n_files++) {
        snprintf(name, sizeof(name), "%s_%d", settings->keys, setup->n_files);
        if (!golden_has(gc, name)) {
            return;
        }
        setup->keys[setup->n_files] = golden_array(gc, "%s", name);
    }
}

static int32_t key_dtype(const golden_settings *settings, const npy_array *array)
{
    static const struct {
        const char *keys;
        int32_t dtype;
    } named[] = {{"K_q8_0", TRIA_DTYPE_Q8_0},
                 {"K_e4m3fn", TRIA_DTYPE_FP8_E4M3FN},
                 {"K_e5m2", TRIA_DTYPE_FP8_E5M2},
                 {"K_int8", TRIA_DTYPE_INT8}};
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        if (strcmp(named[i].keys, settings->keys) == 0) {
            return named[i].dtype;
        }
    }
    return npy_is(array, 'f', 4)   ? TRIA_DTYPE_F32
           : npy_is(array, 'f', 2) ? TRIA_DTYPE_F16
                                   : TRIA_DTYPE_BF16;
}

/* The tensor of layer `layer`; layers of one file follow each other. */
static void describe_keys(golden_setup *setup, const golden_case *gc, const golden_settings *settings,
                          int32_t layer)
{
    const npy_array *array = &setup->keys[setup->n_files > 1 ? layer : 0];
    int64_t in_file = setup->n_files > 1 ? 0 : layer;
    int64_t n_heads = array->dims[1];
    int64_t row_bytes = array->dims[3] * array->size;
    tria_tensor *k = &setup->layers[layer].k;
    if (in_file >= array->dims[0]) {
        return; /* a layer that reads another's cache */
    }
    k->dtype = key_dtype(settings, array);
    k->dim = (int32_t)(row_bytes / tria_dtype_block_bytes(k->dtype) * tria_dtype_block(k->dtype));
    k->token_stride = row_bytes;
    k->head_stride = setup->n_rows * row_bytes;
    k->size = (uint64_t)(n_heads * setup->n_rows * row_bytes);
    k->base = (unsigned char *)array->data + in_file * n_heads * setup->n_rows * row_bytes;
    k->scale = 1.0f;
    if (k->dtype == TRIA_DTYPE_INT8) {
        k->scale_kind = TRIA_SCALE_ROW;
        k->scales = (float *)setup->key_scales.data + in_file * n_heads * setup->n_rows;
        k->scale_token_stride = (int64_t)sizeof(float);
        k->scale_head_stride = setup->n_rows * (int64_t)sizeof(float);
    } else if (k->dtype == TRIA_DTYPE_FP8_E4M3FN || k->dtype == TRIA_DTYPE_FP8_E5M2) {
        k->scale_kind = TRIA_SCALE_TENSOR;
        k->scale = (float)golden_number(gc, 1.0, "k_scale");
    }
}

static void create_model(golden_setup *setup, const golden_case *gc, const golden_settings *settings)
{
    tria_layer_params layers[8];
    npy_array inv_freq[8] = {{0}};
    npy_array scale = {0};
    tria_model_params params = TRIA_MODEL_PARAMS_INIT;
    tria_error error;
    const char *style = golden_text(gc, "rope_style");
    char source[8][8] = {{0}};
    const char *kv_source = golden_text(gc, "kv_source");
    if (golden_has(gc, "freq_scale_sq")) {
        scale = golden_array(gc, "freq_scale_sq");
    }
    if (kv_source != NULL) {
        sscanf(kv_source, "%7s %7s %7s", source[0], source[1], source[2]);
    }
    for (int32_t i = 0; i < setup->n_layers; i++) {
        const npy_array *array = &setup->keys[setup->n_files > 1 ? i : 0];
        tria_layer_params *layer = &layers[i];
        int32_t n_freq;
        tria_layer_params_init(layer);
        layer->n_q_heads = (int32_t)golden_number(gc, 0, "Hq");
        layer->n_kv_heads = (int32_t)golden_number(gc, 0, "Hkv");
        layer->head_dim = setup->layers[i].k.dim > 0 ? setup->layers[i].k.dim : (int32_t)array->dims[3];
        layer->rotary_dim = (int32_t)golden_number(gc, layer->head_dim, "R");
        layer->rotary_offset = (int32_t)golden_number(gc, 0, "rotary_offset");
        layer->rope_style = strcmp(style, "interleaved") == 0 ? TRIA_ROPE_INTERLEAVED : TRIA_ROPE_HALF;
        layer->kv_source = kv_source != NULL ? atoi(source[i]) : -1;
        layer->window = i == settings->window_layer ? 8 : 0;
        n_freq = layer->rotary_dim / 2;
        inv_freq[i] = setup->n_files > 1 ? golden_array(gc, "%s_%d", settings->inv_freq, i)
                                         : golden_array(gc, "%s", settings->inv_freq);
        layer->inv_freq = (const double *)inv_freq[i].data + (inv_freq[i].n_dims == 2 ? i * n_freq : 0);
        if (scale.data != NULL) {
            layer->freq_scale_sq = (const double *)scale.data + (scale.n_dims == 2 ? i * n_freq : 0);
        }
    }
    params.layers = layers;
    params.n_layers = setup->n_layers;
    check(tria_model_create(&params, NULL, &setup->model, &error), &error, gc);
    for (int32_t i = 0; i < setup->n_layers; i++) {
        npy_free(&inv_freq[i]);
    }
    npy_free(&scale);
}

/* From the arrays, so that no file reader takes part, except where only the file has what the case is
 * about. */
static void create_calibration(golden_setup *setup, const golden_case *gc)
{
    tria_error error;
    npy_array real;
    npy_array imag;
    npy_array magnitude;
    npy_array content = {0};
    npy_array calibrated = {0};
    int64_t n_freq;
    int64_t n_content = 0;
    if (!golden_has(gc, "q_mean_real") || golden_text(gc, "layer_budget_scales") != NULL) {
        char path[600];
        snprintf(path, sizeof(path), "%s/calib.tria", gc->folder);
        check(tria_calibration_load(path, NULL, &setup->calibration, &error), &error, gc);
        return;
    }
    real = golden_array(gc, "q_mean_real");
    imag = golden_array(gc, "q_mean_imag");
    magnitude = golden_array(gc, "q_abs_mean");
    n_freq = real.dims[2];
    if (golden_has(gc, "nonrot_mean")) {
        content = golden_array(gc, "nonrot_mean");
        n_content = content.dims[2];
    }
    if (golden_has(gc, "calibrated")) {
        calibrated = golden_array(gc, "calibrated");
    }
    check(tria_calibration_create(setup->model, NULL, &setup->calibration, &error), &error, gc);
    for (int64_t i = 0; i < real.dims[0] * real.dims[1]; i++) {
        tria_head_stats stats = {.struct_size = sizeof(stats)};
        float sum = 0.0f;
        stats.q_mean_real = (const float *)real.data + i * n_freq;
        stats.q_mean_imag = (const float *)imag.data + i * n_freq;
        stats.q_abs_mean = (const float *)magnitude.data + i * n_freq;
        stats.content_mean = n_content > 0 ? (const float *)content.data + i * n_content : NULL;
        stats.content_abs = stats.content_mean;
        for (int64_t f = 0; f < n_freq; f++) {
            sum += stats.q_abs_mean[f];
        }
        if (calibrated.data != NULL ? ((const uint8_t *)calibrated.data)[i] : sum > 0.0f) {
            check(tria_calibration_set_head(setup->calibration, (int32_t)(i / real.dims[1]),
                                            (int32_t)(i % real.dims[1]), &stats, &error),
                  &error, gc);
        }
    }
    npy_free(&real);
    npy_free(&imag);
    npy_free(&magnitude);
    npy_free(&content);
    npy_free(&calibrated);
}

static void prepare_event(golden_setup *setup, const golden_case *gc)
{
    tria_event *event = &setup->event;
    tria_event_init(event);
    event->kv = &setup->view;
    event->t = (int64_t)golden_number(gc, 0, "t");
    event->n_rows = setup->n_rows;
    if (golden_has(gc, "positions")) {
        setup->positions = golden_array(gc, "positions");
        event->positions = setup->positions.data;
        if (setup->positions.n_dims == 3) {
            event->positions_head_stride = setup->n_rows;
            event->positions_layer_stride = setup->n_rows * setup->positions.dims[1];
        }
    }
}

void golden_setup_create(golden_setup *setup, const golden_case *gc, const golden_settings *settings)
{
    const char *state = golden_text(gc, "k_state");
    memset(setup, 0, sizeof(*setup));
    setup->n_layers = (int32_t)golden_number(gc, 0, "L");
    setup->n_rows = (int32_t)golden_number(gc, 0, "N");
    load_keys(setup, gc, settings);
    if (strcmp(settings->keys, "K_int8") == 0) {
        setup->key_scales = golden_array(gc, "K_scale");
    }
    for (int32_t i = 0; i < setup->n_layers; i++) {
        describe_keys(setup, gc, settings, i);
    }
    create_model(setup, gc, settings);
    create_calibration(setup, gc);
    tria_kv_view_init(&setup->view);
    setup->view.layers = setup->layers;
    setup->view.n_layers = setup->n_layers;
    setup->view.k_state = state != NULL && strcmp(state, "raw") == 0        ? TRIA_K_RAW
                          : state != NULL && strcmp(state, "hadamard") == 0 ? TRIA_K_HADAMARD
                                                                            : TRIA_K_ROTATED;
    prepare_event(setup, gc);
    tria_plan_params_init(&setup->params);
    setup->params.model = setup->model;
    setup->params.calibration = setup->calibration;
    setup->params.layout = &setup->view;
    setup->params.max_rows = setup->n_rows;
}

void golden_setup_destroy(golden_setup *setup)
{
    for (int32_t i = 0; i < setup->n_files; i++) {
        npy_free(&setup->keys[i]);
    }
    npy_free(&setup->key_scales);
    npy_free(&setup->positions);
    tria_calibration_destroy(setup->calibration);
    tria_model_destroy(setup->model);
}

double golden_abs_max(const npy_array *array)
{
    double largest = 0.0;
    for (int64_t i = 0; i < array->count; i++) {
        double value = fabs(npy_number(array, i));
        if (isfinite(value) && value > largest) {
            largest = value;
        }
    }
    return largest;
}

int64_t golden_compare(const char *what, const npy_array *expected, const npy_array *got, double tolerance)
{
    int64_t n_wrong = 0;
    char text[128];
    if (expected->count != got->count) {
        fprintf(stderr, "%s: %" PRId64 " numbers, expected %s\n", what, got->count,
                npy_describe(expected, text, sizeof(text)));
        return 1;
    }
    for (int64_t i = 0; i < expected->count; i++) {
        double e = npy_number(expected, i);
        double g = npy_number(got, i);
        if (isfinite(e) ? isfinite(g) && fabs(e - g) <= tolerance : !isfinite(g)) {
            continue;
        }
        if (n_wrong++ == 0) {
            fprintf(stderr, "%s: element %" PRId64 " is %.12g, expected %.12g within %.3g\n", what, i, g, e,
                    tolerance);
        }
    }
    if (n_wrong > 1) {
        fprintf(stderr, "%s: %" PRId64 " of %" PRId64 " differ\n", what, n_wrong, expected->count);
    }
    return n_wrong;
}

static void (*run_case)(const char *folder);

static void test_case(void **state)
{
    char folder[700];
    snprintf(folder, sizeof(folder), "%s/%s", TRIA_TEST_DATA, (const char *)*state);
    run_case(folder);
}

static void test_real(void **state)
{
    (void)state;
    if (access(TRIA_SHARED_DATA "/golden/qwen3_8b_real", F_OK) != 0) {
        fprintf(stderr, "SKIPPED: %s/golden/qwen3_8b_real is not there\n", TRIA_SHARED_DATA);
        skip();
    }
    run_case(TRIA_SHARED_DATA "/golden/qwen3_8b_real");
}

#define CASE(folder) {folder, test_case, NULL, NULL, (void *)(uintptr_t)folder},

int golden_run_cases(const char *name, void (*run)(const char *folder))
{
    const struct CMUnitTest tests[] = {GOLDEN_CASES(CASE) cmocka_unit_test(test_real)};
    run_case = run;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/*
 * json_calibration.c - reads TensorRT-Model-Connect's JSON, dense (layer_stats) or sparse (stats).
 *
 * Where both are present, as its exporter writes them, the sparse one is read: it names its heads. Dense
 * rows are indexed by query head; sampled_heads says which of them are calibrated.
 */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_file {
    const json_t *root;
    import_shape shape;
    float *head;           /* 3 arrays of n_freq */
    double *inv_freq;      /* [n_freq] */
    double *freq_scale_sq; /* [n_freq] of the layer at hand */
    double *common_scale;  /* [n_freq] of the layers before */
    bool scaled;           /* some head had freq_scale_sq */
    tria_error *error;
} json_file;

static tria_status read_header(json_file *file)
{
    const json_t *root = file->root;
    import_shape *shape = &file->shape;
    int32_t rows = 0;
    IMPORT_TRY(import_json_integer(root, "num_layers", 1, TRIA_MAX_LAYERS, &shape->n_layers, file->error));
    IMPORT_TRY(import_json_integer(root, "num_attention_heads", 1, TRIA_MAX_HEADS, &shape->n_q_heads,
                                   file->error));
    IMPORT_TRY(import_json_integer(root, "num_key_value_heads", 1, TRIA_MAX_HEADS, &shape->n_kv_heads,
                                   file->error));
    IMPORT_TRY(import_json_integer(root, "head_dim", 2, TRIA_MAX_HEAD_DIM, &shape->head_dim, file->error));
    IMPORT_TRY(import_json_integer(root, "stats_head_count", 1, TRIA_MAX_HEADS, &rows, file->error));
    IMPORT_TRY(import_json_number(root, "rope_theta", &shape->rope_theta, file->error));
    if (shape->n_layers == 0 || shape->n_q_heads == 0 || shape->head_dim == 0) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "a calibration in JSON needs num_layers, num_attention_heads and head_dim");
    }
    if (rows != 0 && rows != shape->n_q_heads) {
        return import_fail(
            file->error, TRIA_E_FORMAT,
            "stats_head_count is %d, num_attention_heads %d: statistics that were averaged over groups "
            "of query heads cannot be used",
            rows, shape->n_q_heads);
    }
    if (json_object_get(root, "rope_style") != NULL) {
        if (!import_json_is(root, "rope_style", "half") &&
            !import_json_is(root, "rope_style", "interleaved")) {
            return import_fail(file->error, TRIA_E_FORMAT,
                               "\"rope_style\" is neither half nor interleaved");
        }
        shape->explicit_style = true;
        shape->rope_style =
            import_json_is(root, "rope_style", "half") ? TRIA_ROPE_HALF : TRIA_ROPE_INTERLEAVED;
    }
    shape->explicit_presence =
        json_object_get(root, "sampled_heads") != NULL || json_object_get(root, "stats") != NULL;
    return TRIA_OK;
}

/* F: as many as inv_freq has, or half of head_dim. */
static tria_status read_frequencies(json_file *file)
{
    const json_t *inv_freq = json_object_get(file->root, "inv_freq");
    import_shape *shape = &file->shape;
    shape->n_freq = shape->head_dim / 2;
    if (json_array_size(inv_freq) > 0 && json_array_size(inv_freq) < (size_t)shape->n_freq) {
        shape->n_freq = (int32_t)json_array_size(inv_freq);
    }
    file->head = malloc(3 * (size_t)shape->n_freq * sizeof(*file->head));
    file->inv_freq = malloc(3 * (size_t)shape->n_freq * sizeof(*file->inv_freq));
    if (file->head == NULL || file->inv_freq == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate a head");
    }
    file->freq_scale_sq = file->inv_freq + shape->n_freq;
    file->common_scale = file->freq_scale_sq + shape->n_freq;
    if (inv_freq != NULL && !json_is_null(inv_freq)) {
        IMPORT_TRY(import_json_doubles(inv_freq, shape->n_freq, "inv_freq", file->inv_freq, file->error));
        shape->inv_freq = file->inv_freq;
    }
    return TRIA_OK;
}

/* freq_scale_sq belongs to a layer here, to each head there: all that are used must be the same. */
static tria_status read_scale(json_file *file, const json_t *values, const char *what)
{
    const int32_t n_freq = file->shape.n_freq;
    if (values == NULL || json_is_null(values)) {
        return TRIA_OK;
    }
    IMPORT_TRY(import_json_doubles(values, n_freq, what, file->freq_scale_sq, file->error));
    if (file->scaled &&
        memcmp(file->freq_scale_sq, file->common_scale, (size_t)n_freq * sizeof(double)) != 0) {
        return import_fail(file->error, TRIA_E_UNSUPPORTED, "%s differs from that of an earlier head",
                           what);
    }
    memcpy(file->common_scale, file->freq_scale_sq, (size_t)n_freq * sizeof(double));
    file->scaled = true;
    return TRIA_OK;
}

static tria_status parse_key(const json_file *file, const char *key, int32_t *layer, int32_t *head)
{
    char rest;
    if (sscanf(key, "layer%5d_head%5d%c", layer, head, &rest) != 2 || *layer < 0 ||
        *layer >= file->shape.n_layers || *head < 0 || *head >= file->shape.n_q_heads) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "stats: \"%.64s\" is not one of %d layers and %d heads", key,
                           file->shape.n_layers, file->shape.n_q_heads);
    }
    return TRIA_OK;
}

/* One array of one head: row `head` of a dense array, or the whole of a sparse one (head -1). */
static tria_status head_array(json_file *file, const json_t *entry, const char *name, int32_t layer,
                              int32_t head, float *out)
{
    const json_t *array = json_object_get(entry, name);
    char what[64];
    snprintf(what, sizeof(what), "layer %d head %d: %s", layer, head, name);
    if (head >= 0) {
        if (json_array_size(array) != (size_t)file->shape.n_q_heads) {
            return import_fail(file->error, TRIA_E_FORMAT, "layer %d: %s is not an array of %d rows", layer,
                               name, file->shape.n_q_heads);
        }
        array = json_array_get(array, (size_t)head);
    }
    return import_json_floats(array, file->shape.n_freq, what, out, file->error);
}

static tria_status set_head(json_file *file, const json_t *entry, int32_t layer, int32_t head, bool dense,
                            tria_calibration *calibration)
{
    const int32_t row = dense ? head : -1;
    float *real = file->head;
    float *imag = real + file->shape.n_freq;
    float *absolute = imag + file->shape.n_freq;
    IMPORT_TRY(head_array(file, entry, "q_mean_real", layer, row, real));
    IMPORT_TRY(head_array(file, entry, "q_mean_imag", layer, row, imag));
    IMPORT_TRY(head_array(file, entry, "q_abs_mean", layer, row, absolute));
    return import_set_head(calibration, &file->shape, layer, head, real, imag, absolute, file->error);
}

/* The freq_scale_sq of an entry: [F], or a row per head. */
static tria_status entry_scale(json_file *file, const json_t *entry, int32_t head)
{
    const json_t *scale = json_object_get(entry, "freq_scale_sq");
    if (json_is_array(json_array_get(scale, 0))) {
        scale = json_array_get(scale, (size_t)head);
    }
    return read_scale(file, scale, "freq_scale_sq");
}

/* What is done to every calibrated head: its weights are gathered first, then its statistics. */
typedef tria_status (*head_step)(json_file *file, const json_t *entry, int32_t layer, int32_t head,
                                 bool dense, tria_calibration *calibration);

static tria_status scale_step(json_file *file, const json_t *entry, int32_t layer, int32_t head, bool dense,
                              tria_calibration *calibration)
{
    (void)layer;
    (void)dense;
    (void)calibration;
    return entry_scale(file, entry, head);
}

static tria_status each_sparse_head(json_file *file, head_step step, tria_calibration *calibration)
{
    json_t *stats = json_object_get(file->root, "stats");
    const char *key;
    json_t *entry;
    json_object_foreach(stats, key, entry)
    {
        int32_t layer;
        int32_t head;
        IMPORT_TRY(parse_key(file, key, &layer, &head));
        IMPORT_TRY(step(file, entry, layer, head, false, calibration));
    }
    return TRIA_OK;
}

/* A pair of sampled_heads. */
static tria_status sampled_pair(const json_file *file, size_t i, int32_t *layer, int32_t *head)
{
    const json_t *pair = json_array_get(json_object_get(file->root, "sampled_heads"), i);
    const json_t *first = json_array_get(pair, 0);
    const json_t *second = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(second) ||
        json_integer_value(first) < 0 || json_integer_value(first) >= file->shape.n_layers ||
        json_integer_value(second) < 0 || json_integer_value(second) >= file->shape.n_q_heads) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "sampled_heads[%zu] is not one of %d layers and %d heads", i,
                           file->shape.n_layers, file->shape.n_q_heads);
    }
    *layer = (int32_t)json_integer_value(first);
    *head = (int32_t)json_integer_value(second);
    return TRIA_OK;
}

static tria_status dense_layer(const json_file *file, int32_t layer, const json_t **entry)
{
    char key[16];
    snprintf(key, sizeof(key), "%d", layer);
    *entry = json_object_get(json_object_get(file->root, "layer_stats"), key);
    return *entry != NULL ? TRIA_OK
                          : import_fail(file->error, TRIA_E_FORMAT, "layer_stats has no layer \"%s\"", key);
}

static tria_status each_dense_head(json_file *file, head_step step, tria_calibration *calibration)
{
    const json_t *sampled = json_object_get(file->root, "sampled_heads");
    const json_t *entry;
    int32_t layer;
    int32_t head;
    for (size_t i = 0; i < json_array_size(sampled); i++) {
        IMPORT_TRY(sampled_pair(file, i, &layer, &head));
        IMPORT_TRY(dense_layer(file, layer, &entry));
        IMPORT_TRY(step(file, entry, layer, head, true, calibration));
    }
    for (int32_t l = 0; sampled == NULL && l < file->shape.n_layers; l++) {
        if (dense_layer(file, l, &entry) != TRIA_OK) {
            continue; /* no attention there, or not calibrated */
        }
        for (int32_t h = 0; h < file->shape.n_q_heads; h++) {
            IMPORT_TRY(step(file, entry, l, h, true, calibration));
        }
    }
    return TRIA_OK;
}

static tria_status each_head(json_file *file, head_step step, tria_calibration *calibration)
{
    if (json_is_object(json_object_get(file->root, "stats"))) {
        return each_sparse_head(file, step, calibration);
    }
    if (json_is_object(json_object_get(file->root, "layer_stats"))) {
        return each_dense_head(file, step, calibration);
    }
    return import_fail(file->error, TRIA_E_FORMAT, "JSON without stats or layer_stats: not a calibration");
}

/* Heads that sampled_heads names but stats lacks are an error, not heads of zeros. */
static tria_status check_sampled(const json_file *file, const tria_calibration *calibration)
{
    const json_t *sampled = json_object_get(file->root, "sampled_heads");
    for (size_t i = 0; i < json_array_size(sampled); i++) {
        tria_head_stats stats = {.struct_size = sizeof(stats)};
        int32_t layer;
        int32_t head;
        int32_t present = 0;
        IMPORT_TRY(sampled_pair(file, i, &layer, &head));
        IMPORT_TRY(tria_calibration_head(calibration, layer, head, &stats, &present, file->error));
        if (!present) {
            return import_fail(file->error, TRIA_E_FORMAT,
                               "sampled_heads[%zu] (layer %d head %d) is not in stats", i, layer, head);
        }
    }
    return TRIA_OK;
}

static tria_status read_calibration(json_file *file, const tria_env *env, tria_calibration **out)
{
    tria_calibration *calibration;
    tria_status status;
    IMPORT_TRY(read_header(file));
    IMPORT_TRY(read_frequencies(file));
    IMPORT_TRY(each_head(file, scale_step, NULL));
    file->shape.freq_scale_sq = file->scaled ? file->common_scale : NULL;
    IMPORT_TRY(import_create(&file->shape, env, &calibration, file->error));
    status = each_head(file, set_head, calibration);
    if (status == TRIA_OK) {
        status = check_sampled(file, calibration);
    }
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    *out = calibration;
    return TRIA_OK;
}

tria_status import_read_json(const unsigned char *data, size_t size, const tria_env *env,
                             tria_calibration **calibration, tria_error *error)
{
    json_file file = {.shape.format = TRIA_FORMAT_JSON, .error = error};
    json_t *root;
    tria_status status;
    IMPORT_TRY(import_json_parse(data, size, JSON_REJECT_DUPLICATES, &root, error));
    file.root = root;
    status = read_calibration(&file, env, calibration);
    free(file.head);
    free(file.inv_freq);
    json_decref(root);
    return status;
}

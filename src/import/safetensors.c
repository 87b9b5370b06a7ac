/*
 * safetensors.c - reads MLX safetensors: layer.i.{q_center_real, q_center_imag, q_mean_norm} [heads, F]
 * with the strings n_layers, n_q_heads and n_kv_heads in the metadata.
 */
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor_file {
    json_t *header;
    const unsigned char *data; /* behind the header */
    size_t size;
    import_shape shape;
    bool counted; /* the metadata does not say how many layers and heads there are */
    tria_error *error;
} tensor_file;

typedef struct tensor {
    const unsigned char *bytes;
    size_t element; /* bytes each */
    bool bf16;
    int64_t rows;
    int64_t columns;
} tensor;

static tria_status metadata_number(const tensor_file *file, const char *key, int32_t maximum, int32_t *out)
{
    const json_t *entry = json_object_get(json_object_get(file->header, "__metadata__"), key);
    const char *text = json_string_value(entry);
    char rest;
    int value;
    if (entry == NULL) {
        return TRIA_OK;
    }
    if (text == NULL) {
        return import_fail(file->error, TRIA_E_FORMAT, "metadata %s is not a string", key);
    }
    if (sscanf(text, "%9d%c", &value, &rest) != 1 || value < 1 || value > maximum) {
        return import_fail(file->error, TRIA_E_FORMAT, "metadata %s is \"%.32s\", expected 1 to %d", key,
                           text, maximum);
    }
    *out = value;
    return TRIA_OK;
}

/* A matrix of the file; *found = false when there is none of that name. */
static tria_status find_tensor(const tensor_file *file, const char *name, tensor *out, bool *found)
{
    const json_t *entry = json_object_get(file->header, name);
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    int64_t begin;
    int64_t end;
    *found = entry != NULL;
    if (entry == NULL) {
        return TRIA_OK;
    }
    if (dtype == NULL || json_array_size(shape) != 2 || json_array_size(offsets) != 2) {
        return import_fail(file->error, TRIA_E_FORMAT, "%s is not a matrix", name);
    }
    out->rows = json_integer_value(json_array_get(shape, 0));
    out->columns = json_integer_value(json_array_get(shape, 1));
    begin = json_integer_value(json_array_get(offsets, 0));
    end = json_integer_value(json_array_get(offsets, 1));
    out->bf16 = strcmp(dtype, "BF16") == 0;
    out->element = strcmp(dtype, "F32") == 0 ? 4 : out->bf16 ? 2 : 0;
    if (out->element == 0) {
        return import_fail(file->error, TRIA_E_UNSUPPORTED, "%s has dtype %.16s, known are F32 and BF16",
                           name, dtype);
    }
    if (out->rows < 1 || out->rows > TRIA_MAX_HEADS || out->columns < 1 ||
        out->columns > TRIA_MAX_HEAD_DIM / 2 || begin < 0 || end < begin || (uint64_t)end > file->size ||
        (uint64_t)(end - begin) != (uint64_t)(out->rows * out->columns) * out->element) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "%s: %lld x %lld numbers of %zu bytes do not lie at %lld to %lld", name,
                           (long long)out->rows, (long long)out->columns, out->element, (long long)begin,
                           (long long)end);
    }
    out->bytes = file->data + begin;
    return TRIA_OK;
}

static tria_status find_layer(const tensor_file *file, int32_t layer, tensor tensors[3], bool *found)
{
    static const char *const names[3] = {"q_center_real", "q_center_imag", "q_mean_norm"};
    bool present[3];
    for (int32_t i = 0; i < 3; i++) {
        char name[48];
        snprintf(name, sizeof(name), "layer.%d.%s", layer, names[i]);
        IMPORT_TRY(find_tensor(file, name, &tensors[i], &present[i]));
        if (present[i] != present[0] || (present[i] && (tensors[i].rows != tensors[0].rows ||
                                                        tensors[i].columns != tensors[0].columns))) {
            return import_fail(file->error, TRIA_E_FORMAT,
                               "%s is missing or has another shape than layer.%d.%s", name, layer,
                               names[0]);
        }
    }
    *found = present[0];
    return TRIA_OK;
}

static float number_at(const tensor *matrix, size_t i)
{
    const unsigned char *p = matrix->bytes + i * matrix->element;
    const uint32_t bits =
        matrix->bf16 ? (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24
                     : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Layers, heads and frequencies: from the metadata, else from the tensors. */
static tria_status find_shape(tensor_file *file)
{
    import_shape *shape = &file->shape;
    int32_t seen = 0;
    IMPORT_TRY(metadata_number(file, "n_layers", TRIA_MAX_LAYERS, &shape->n_layers));
    IMPORT_TRY(metadata_number(file, "n_q_heads", TRIA_MAX_HEADS, &shape->n_q_heads));
    IMPORT_TRY(metadata_number(file, "n_kv_heads", TRIA_MAX_HEADS, &shape->n_kv_heads));
    file->counted = shape->n_layers == 0 || shape->n_q_heads == 0;
    for (int32_t l = 0; l < TRIA_MAX_LAYERS; l++) {
        tensor tensors[3];
        bool found;
        IMPORT_TRY(find_layer(file, l, tensors, &found));
        if (!found) {
            continue;
        }
        if (shape->n_q_heads == 0) {
            shape->n_q_heads = (int32_t)tensors[0].rows;
        }
        if (shape->n_freq == 0) {
            shape->n_freq = (int32_t)tensors[0].columns;
        }
        if (tensors[0].rows != shape->n_q_heads || tensors[0].columns != shape->n_freq) {
            return import_fail(file->error, TRIA_E_FORMAT,
                               "layer %d has %lld heads of %lld frequencies, expected %d of %d", l,
                               (long long)tensors[0].rows, (long long)tensors[0].columns, shape->n_q_heads,
                               shape->n_freq);
        }
        seen = l + 1;
    }
    if (seen == 0 || (shape->n_layers != 0 && seen > shape->n_layers)) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "%d layers in the metadata, tensors layer.0 to layer.%d", shape->n_layers,
                           seen - 1);
    }
    shape->n_layers = shape->n_layers != 0 ? shape->n_layers : seen;
    shape->head_dim = 2 * shape->n_freq;
    return TRIA_OK;
}

/* Where a tensor lies. */
typedef struct extent {
    int64_t begin;
    int64_t end;
} extent;

static int compare_extents(const void *a, const void *b)
{
    const extent *x = a;
    const extent *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                                : (x->end > y->end) - (x->end < y->end);
}

/* The format has no holes: its tensors take, one after the other, exactly what follows the header. */
static tria_status check_extents(const tensor_file *file)
{
    extent *extents = malloc((json_object_size(file->header) + 1) * sizeof(*extents));
    size_t count = 0;
    int64_t next = 0;
    bool dense = true;
    const char *name;
    json_t *entry;
    if (extents == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate %zu tensors",
                           json_object_size(file->header));
    }
    json_object_foreach(file->header, name, entry)
    {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        if (offsets != NULL) {
            extents[count].begin = json_integer_value(json_array_get(offsets, 0));
            extents[count++].end = json_integer_value(json_array_get(offsets, 1));
        }
    }
    qsort(extents, count, sizeof(*extents), compare_extents);
    for (size_t i = 0; i < count; i++) {
        dense = dense && extents[i].begin == next && extents[i].end >= next;
        next = extents[i].end;
    }
    free(extents);
    return dense && (uint64_t)next == file->size
               ? TRIA_OK
               : import_fail(file->error, TRIA_E_FORMAT,
                             "its tensors overlap or leave holes in the %zu bytes behind the header",
                             file->size);
}

static tria_status fill(const tensor_file *file, float *head, tria_calibration *calibration)
{
    const size_t n_freq = (size_t)file->shape.n_freq;
    for (int32_t l = 0; l < file->shape.n_layers; l++) {
        tensor tensors[3];
        bool found;
        IMPORT_TRY(find_layer(file, l, tensors, &found));
        for (int32_t h = 0; found && h < file->shape.n_q_heads; h++) {
            for (size_t i = 0; i < 3 * n_freq; i++) {
                head[i] = number_at(&tensors[i / n_freq], (size_t)h * n_freq + i % n_freq);
            }
            IMPORT_TRY(import_set_head(calibration, &file->shape, l, h, head, head + n_freq,
                                       head + 2 * n_freq, file->error));
        }
    }
    return TRIA_OK;
}

static tria_status read_tensors(tensor_file *file, const tria_env *env, tria_calibration **out)
{
    tria_calibration *calibration;
    float *head;
    tria_status status;
    IMPORT_TRY(find_shape(file));
    IMPORT_TRY(check_extents(file));
    head = malloc(3 * (size_t)file->shape.n_freq * sizeof(*head));
    if (head == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate a head");
    }
    status = import_create(&file->shape, env, &calibration, file->error);
    if (status == TRIA_OK) {
        status = fill(file, head, calibration);
        if (status != TRIA_OK) {
            tria_calibration_destroy(calibration);
        } else {
            *out = calibration;
        }
    }
    free(head);
    return status;
}

tria_status import_read_safetensors(const unsigned char *data, size_t size, const tria_env *env,
                                    bool *counted, tria_calibration **calibration, tria_error *error)
{
    tensor_file file = {.shape.format = TRIA_FORMAT_SAFETENSORS, .error = error};
    uint64_t length = 0;
    json_t *header;
    tria_status status;
    for (size_t i = 8; i-- > 0;) {
        length = length << 8 | data[i];
    }
    IMPORT_TRY(import_json_parse(data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &header, error));
    file.header = header;
    file.data = data + 8 + length;
    file.size = size - 8 - (size_t)length;
    status = read_tensors(&file, env, calibration);
    *counted = file.counted;
    json_decref(header);
    return status;
}

/*
 * torch.c - calibrations in torch files: the reference's two kinds and TensorRT-LLM's flat one.
 *
 * The reference: metadata and stats, a dict of layerLL_headHH -> three tensors [F]; or metadata and dense
 * tensors [L, H, F]. TensorRT-LLM: E_q complex [L, H, F], E_q_norm, omega [F], freq_scale_sq [F].
 */
#include "archive.h"
#include "import_internal.h"
#include "pickle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the readers below share. */
typedef struct torch_file {
    archive *zip;
    const tria_env *env;
    bool *counted;        /* out: layers and heads were only counted from the entries */
    size_t elements_left; /* numbers that may still be unpacked: views of one storage must not add up to
                             more than the file's size allows */
    char stored_key[32];  /* which storage `stored` holds: views of one follow each other */
    unsigned char *stored;
    size_t stored_size;
    tria_error *error;
} torch_file;

static const size_t ELEMENT_SIZES[] = {4, 2, 2, 8, 8};

static tria_status load_storage(torch_file *file, const pickle_storage *storage)
{
    char key[sizeof(file->stored_key)];
    char name[sizeof(key) + 5];
    const size_t expected = (size_t)storage->count * ELEMENT_SIZES[storage->dtype];
    if (storage->key.length >= sizeof(key)) {
        return import_fail(file->error, TRIA_E_FORMAT, "a storage has a key of %u bytes",
                           storage->key.length);
    }
    memset(key, 0, sizeof(key));
    memcpy(key, storage->key.as.text, storage->key.length);
    if (file->stored == NULL || memcmp(file->stored_key, key, sizeof(key)) != 0) {
        free(file->stored);
        file->stored = NULL;
        snprintf(name, sizeof(name), "data/%s", key);
        IMPORT_TRY(archive_read(file->zip, name, &file->stored, &file->stored_size, file->error));
        memcpy(file->stored_key, key, sizeof(key));
    }
    if (file->stored_size != expected) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "the member data/%s has %zu bytes, its tensors say %zu", key, file->stored_size,
                           expected);
    }
    return TRIA_OK;
}

static double half_value(const unsigned char *p)
{
    const uint32_t bits = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    const int32_t exponent = bits >> 10 & 31;
    const double fraction = bits & 0x3ff;
    const double size = exponent == 31  ? (fraction == 0 ? (double)INFINITY : (double)NAN)
                        : exponent == 0 ? ldexp(fraction, -24)
                                        : ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

static double word_value(const unsigned char *p)
{
    const uint32_t bits =
        (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

static double bf16_value(const unsigned char *p)
{
    const unsigned char word[4] = {0, 0, p[0], p[1]};
    return word_value(word);
}

static double double_value(const unsigned char *p)
{
    uint64_t bits = 0;
    double value;
    for (size_t i = 8; i-- > 0;) {
        bits = bits << 8 | p[i];
    }
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* One element; `imaginary` picks the second half of a complex one. */
static double element(const unsigned char *p, pickle_dtype dtype, bool imaginary)
{
    switch (dtype) {
    case PICKLE_F16:
        return half_value(p);
    case PICKLE_BF16:
        return bf16_value(p);
    case PICKLE_F64:
        return double_value(p);
    case PICKLE_C64:
        return word_value(imaginary ? p + 4 : p);
    default:
        return word_value(p);
    }
}

static int64_t n_elements(const pickle_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->n_dims; i++) {
        count *= tensor->size[i];
    }
    return count;
}

/* Makes the tensor's bytes available and counts its numbers against what the file may hold. */
static tria_status open_tensor(torch_file *file, const pickle_tensor *tensor, size_t *count)
{
    *count = (size_t)n_elements(tensor);
    IMPORT_TRY(load_storage(file, tensor->storage));
    if (*count > file->elements_left) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "its tensors hold more numbers than the file has room for");
    }
    file->elements_left -= *count;
    return TRIA_OK;
}

/* Element `i` in C order; offset and strides are the tensor's own. */
static double tensor_at(const torch_file *file, const pickle_tensor *tensor, size_t i, bool imaginary)
{
    size_t at = (size_t)tensor->offset;
    for (int32_t d = tensor->n_dims; d-- > 0;) {
        at += i % (size_t)tensor->size[d] * (size_t)tensor->stride[d];
        i /= (size_t)tensor->size[d];
    }
    return element(file->stored + at * ELEMENT_SIZES[tensor->storage->dtype], tensor->storage->dtype,
                   imaginary);
}

/* Into malloc()ed floats; of a complex tensor the asked part. */
static tria_status unpack(torch_file *file, const pickle_tensor *tensor, bool imaginary, float **out)
{
    size_t count;
    IMPORT_TRY(open_tensor(file, tensor, &count));
    *out = malloc((count > 0 ? count : 1) * sizeof(**out));
    if (*out == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate %zu numbers", count);
    }
    for (size_t i = 0; i < count; i++) {
        (*out)[i] = (float)tensor_at(file, tensor, i, imaginary);
    }
    return TRIA_OK;
}

static tria_status unpack_double(torch_file *file, const pickle_tensor *tensor, double **out)
{
    size_t count;
    IMPORT_TRY(open_tensor(file, tensor, &count));
    *out = malloc((count > 0 ? count : 1) * sizeof(**out));
    if (*out == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate %zu numbers", count);
    }
    for (size_t i = 0; i < count; i++) {
        (*out)[i] = tensor_at(file, tensor, i, false);
    }
    return TRIA_OK;
}

static bool is_tensor(const pickle_value *value, int32_t n_dims)
{
    return value != NULL && value->type == PICKLE_TENSOR && value->as.tensor->n_dims == n_dims;
}

static tria_status read_integer(const torch_file *file, const pickle_value *dict, const char *key,
                                int64_t maximum, int32_t *out)
{
    const pickle_value *value = pickle_get(dict, key);
    if (value == NULL || value->type == PICKLE_NONE) {
        return TRIA_OK;
    }
    if (value->type != PICKLE_INTEGER || value->as.integer < 1 || value->as.integer > maximum) {
        return import_fail(file->error, TRIA_E_FORMAT, "%s is not an integer from 1 to %lld", key,
                           (long long)maximum);
    }
    *out = (int32_t)value->as.integer;
    return TRIA_OK;
}

static bool number(const pickle_value *value, double *out)
{
    if (value == NULL || (value->type != PICKLE_INTEGER && value->type != PICKLE_FLOAT)) {
        return false;
    }
    *out = value->type == PICKLE_INTEGER ? (double)value->as.integer : value->as.number;
    return true;
}

/* "layer12_head3" as two numbers. */
static bool parse_key(const pickle_value *key, int32_t *layer, int32_t *head)
{
    char text[40];
    char rest;
    if (key->type != PICKLE_TEXT || key->length >= sizeof(text) || key->length == 0) {
        return false;
    }
    memcpy(text, key->as.text, key->length);
    text[key->length] = '\0';
    return sscanf(text, "layer%5d_head%5d%c", layer, head, &rest) == 2 && *layer >= 0 &&
           *layer < TRIA_MAX_LAYERS && *head >= 0 && *head < TRIA_MAX_HEADS;
}

/* Layers, heads and frequencies as the keys of `stats` imply them; metadata may say more. */
static tria_status stats_shape(const torch_file *file, const pickle_value *stats, import_shape *shape)
{
    const pickle_items *items = stats->as.items;
    int32_t n_layers = 0;
    int32_t n_heads = 0;
    for (uint32_t i = 0; i + 1 < items->count; i += 2) {
        const pickle_value *real = pickle_get(&items->values[i + 1], "q_mean_real");
        int32_t layer;
        int32_t head;
        if (!parse_key(&items->values[i], &layer, &head)) {
            return import_fail(file->error, TRIA_E_FORMAT, "entry %u of stats is not called layerLL_headHH",
                               i / 2);
        }
        if (!is_tensor(real, 1) || real->as.tensor->size[0] < 1 ||
            real->as.tensor->size[0] > TRIA_MAX_HEAD_DIM / 2 ||
            (shape->n_freq != 0 && real->as.tensor->size[0] != shape->n_freq)) {
            return import_fail(
                file->error, TRIA_E_FORMAT,
                "layer %d head %d: q_mean_real is not a tensor of as many numbers as the others", layer,
                head);
        }
        shape->n_freq = (int32_t)real->as.tensor->size[0];
        n_layers = layer >= n_layers ? layer + 1 : n_layers;
        n_heads = head >= n_heads ? head + 1 : n_heads;
    }
    if (n_layers == 0) {
        return import_fail(file->error, TRIA_E_FORMAT, "stats is empty");
    }
    if ((shape->n_layers != 0 && shape->n_layers < n_layers) ||
        (shape->n_q_heads != 0 && shape->n_q_heads < n_heads)) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "stats has layer %d and head %d, metadata %d layers of %d heads", n_layers - 1,
                           n_heads - 1, shape->n_layers, shape->n_q_heads);
    }
    *file->counted = shape->n_layers == 0 || shape->n_q_heads == 0;
    shape->n_layers = shape->n_layers != 0 ? shape->n_layers : n_layers;
    shape->n_q_heads = shape->n_q_heads != 0 ? shape->n_q_heads : n_heads;
    return TRIA_OK;
}

/* The type of a rope_scaling dict. False: one that is not known, or that depends on the length in use. */
static bool scaling_type(const pickle_value *scaling, int32_t *type)
{
    const pickle_value *name = pickle_get(scaling, "rope_type");
    name = name != NULL ? name : pickle_get(scaling, "type");
    return name != NULL && name->type == PICKLE_TEXT &&
           import_rope_scaling(name->as.text, name->length, type) && *type != TRIA_ROPE_SCALING_DYNAMIC &&
           *type != TRIA_ROPE_SCALING_LONGROPE;
}

/*
 * The frequencies that theta and a rope_scaling dict give. Where it cannot be told, the file says nothing
 * of frequencies: theta alone would be wrong, the model has to speak.
 */
static tria_status scaled_frequencies(const torch_file *file, const pickle_value *scaling,
                                      import_shape *shape, double *inv_freq)
{
    const pickle_value *truncate = pickle_get(scaling, "truncate");
    tria_rope_scaling known;
    tria_rope_scaling_init(&known);
    if (scaling == NULL || scaling->type == PICKLE_NONE || shape->rope_theta == 0) {
        return TRIA_OK;
    }
    if (!scaling_type(scaling, &known.type)) {
        shape->rope_theta = 0;
        return TRIA_OK;
    }
    if (known.type == TRIA_ROPE_SCALING_NONE) {
        return TRIA_OK;
    }
    (void)number(pickle_get(scaling, "factor"), &known.factor);
    (void)number(pickle_get(scaling, "original_max_position_embeddings"), &known.original_length);
    (void)number(pickle_get(scaling, "beta_fast"), &known.beta_fast);
    (void)number(pickle_get(scaling, "beta_slow"), &known.beta_slow);
    (void)number(pickle_get(scaling, "low_freq_factor"), &known.low_freq_factor);
    (void)number(pickle_get(scaling, "high_freq_factor"), &known.high_freq_factor);
    if (truncate != NULL && truncate->type == PICKLE_BOOL) {
        known.truncate = truncate->as.integer != 0;
    }
    shape->inv_freq = inv_freq;
    return tria_rope_frequencies(shape->rope_theta, 2 * shape->n_freq, &known, inv_freq, NULL, file->error);
}

static tria_status read_style(const torch_file *file, const pickle_value *metadata, import_shape *shape)
{
    const pickle_value *style = pickle_get(metadata, "rope_style");
    if (style == NULL || style->type == PICKLE_NONE) {
        return TRIA_OK;
    }
    if (!pickle_is_text(style, "half") && !pickle_is_text(style, "interleaved")) {
        return import_fail(file->error, TRIA_E_FORMAT, "rope_style is neither half nor interleaved");
    }
    shape->explicit_style = true;
    shape->rope_style = pickle_is_text(style, "half") ? TRIA_ROPE_HALF : TRIA_ROPE_INTERLEAVED;
    return TRIA_OK;
}

static tria_status read_metadata(const torch_file *file, const pickle_value *metadata, import_shape *shape)
{
    IMPORT_TRY(read_integer(file, metadata, "num_layers", TRIA_MAX_LAYERS, &shape->n_layers));
    IMPORT_TRY(read_integer(file, metadata, "num_attention_heads", TRIA_MAX_HEADS, &shape->n_q_heads));
    IMPORT_TRY(read_integer(file, metadata, "num_kv_heads", TRIA_MAX_HEADS, &shape->n_kv_heads));
    IMPORT_TRY(read_integer(file, metadata, "head_dim", TRIA_MAX_HEAD_DIM, &shape->head_dim));
    if (number(pickle_get(metadata, "rope_theta"), &shape->rope_theta) &&
        !(isfinite(shape->rope_theta) && shape->rope_theta > 0)) {
        return import_fail(file->error, TRIA_E_FORMAT, "rope_theta is %g", shape->rope_theta);
    }
    return read_style(file, metadata, shape);
}

/* Every head that sampled_heads names must have an entry: a missing one is not a head of zeros. */
static tria_status check_sampled(const torch_file *file, const pickle_value *metadata,
                                 const tria_calibration *calibration)
{
    const pickle_value *sampled = pickle_get(metadata, "sampled_heads");
    for (uint32_t i = 0; sampled != NULL && sampled->type == PICKLE_LIST && i < sampled->as.items->count;
         i++) {
        const pickle_value *pair = &sampled->as.items->values[i];
        tria_head_stats stats = {.struct_size = sizeof(stats)};
        int32_t present = 0;
        int64_t layer = -1;
        int64_t head = -1;
        if ((pair->type == PICKLE_LIST || pair->type == PICKLE_TUPLE) && pair->as.items->count == 2 &&
            pair->as.items->values[0].type == PICKLE_INTEGER &&
            pair->as.items->values[1].type == PICKLE_INTEGER) {
            layer = pair->as.items->values[0].as.integer;
            head = pair->as.items->values[1].as.integer;
        }
        if (layer < 0 || layer >= TRIA_MAX_LAYERS || head < 0 || head >= TRIA_MAX_HEADS ||
            tria_calibration_head(calibration, (int32_t)layer, (int32_t)head, &stats, &present, NULL) !=
                TRIA_OK ||
            !present) {
            return import_fail(file->error, TRIA_E_FORMAT,
                               "sampled_heads[%u] (layer %lld head %lld) is not in stats", i,
                               (long long)layer, (long long)head);
        }
    }
    return TRIA_OK;
}

/* Unpacks one of a head's tensors as float. */
static tria_status head_floats(torch_file *file, const pickle_value *entry, const char *name,
                               int32_t n_freq, float *out)
{
    const pickle_value *value = pickle_get(entry, name);
    size_t count;
    if (!is_tensor(value, 1) || value->as.tensor->size[0] != n_freq ||
        value->as.tensor->storage->dtype == PICKLE_C64) {
        return import_fail(file->error, TRIA_E_FORMAT, "%s is not a tensor of %d real numbers", name,
                           n_freq);
    }
    IMPORT_TRY(open_tensor(file, value->as.tensor, &count));
    for (size_t f = 0; f < count; f++) {
        out[f] = (float)tensor_at(file, value->as.tensor, f, false);
    }
    return TRIA_OK;
}

/* scratch: 3 arrays of n_freq. */
static tria_status fill_stats(torch_file *file, const pickle_value *stats, const import_shape *shape,
                              float *scratch, tria_calibration *calibration)
{
    float *real = scratch;
    float *imag = real + shape->n_freq;
    float *absolute = imag + shape->n_freq;
    for (uint32_t i = 0; i + 1 < stats->as.items->count; i += 2) {
        const pickle_value *entry = &stats->as.items->values[i + 1];
        int32_t layer = 0;
        int32_t head = 0;
        (void)parse_key(&stats->as.items->values[i], &layer, &head);
        IMPORT_TRY(head_floats(file, entry, "q_mean_real", shape->n_freq, real));
        IMPORT_TRY(head_floats(file, entry, "q_mean_imag", shape->n_freq, imag));
        IMPORT_TRY(head_floats(file, entry, "q_abs_mean", shape->n_freq, absolute));
        IMPORT_TRY(import_set_head(calibration, shape, layer, head, real, imag, absolute, file->error));
    }
    return TRIA_OK;
}

static tria_status copy_name(const torch_file *file, const pickle_value *metadata, char **name)
{
    const pickle_value *value = pickle_get(metadata, "model_name");
    *name = calloc(1, value != NULL && value->type == PICKLE_TEXT ? value->length + (size_t)1 : 1);
    if (*name == NULL) {
        return import_fail(file->error, TRIA_E_MEMORY, "cannot allocate the model name");
    }
    if (value != NULL && value->type == PICKLE_TEXT) {
        memcpy(*name, value->as.text, value->length);
    }
    return TRIA_OK;
}

static tria_status read_stats(torch_file *file, const pickle_value *metadata, const pickle_value *stats,
                              tria_calibration **out)
{
    import_shape shape = {.format = TRIA_FORMAT_PT, .explicit_presence = true};
    tria_calibration *calibration = NULL;
    char *name = NULL;
    float *scratch = NULL;
    double *inv_freq = NULL;
    tria_status status;
    IMPORT_TRY(read_metadata(file, metadata, &shape));
    IMPORT_TRY(stats_shape(file, stats, &shape));
    if (shape.head_dim == 0) {
        shape.head_dim = 2 * shape.n_freq;
    }
    IMPORT_TRY(copy_name(file, metadata, &name));
    shape.model_name = name;
    scratch = malloc(3 * (size_t)shape.n_freq * sizeof(*scratch));
    inv_freq = malloc((size_t)shape.n_freq * sizeof(*inv_freq));
    status = scratch != NULL && inv_freq != NULL
                 ? TRIA_OK
                 : import_fail(file->error, TRIA_E_MEMORY, "cannot allocate a head");
    if (status == TRIA_OK) {
        status = scaled_frequencies(file, pickle_get(metadata, "rope_scaling"), &shape, inv_freq);
    }
    if (status == TRIA_OK) {
        status = import_create(&shape, file->env, &calibration, file->error);
    }
    if (status == TRIA_OK) {
        status = fill_stats(file, stats, &shape, scratch, calibration);
    }
    if (status == TRIA_OK) {
        status = check_sampled(file, metadata, calibration);
    }
    free(name);
    free(scratch);
    free(inv_freq);
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    *out = calibration;
    return TRIA_OK;
}

/* Three tensors of one shape [L, H, F]. */
typedef struct dense_tensors {
    float *real;
    float *imag;
    float *absolute;
} dense_tensors;

static void free_dense(dense_tensors *dense)
{
    free(dense->real);
    free(dense->imag);
    free(dense->absolute);
}

static tria_status dense_shape(const torch_file *file, const pickle_value *value, const char *name,
                               import_shape *shape)
{
    const int64_t *size;
    if (!is_tensor(value, 3)) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "%s is not a tensor of layers, heads and frequencies", name);
    }
    size = value->as.tensor->size;
    if (size[0] < 1 || size[0] > TRIA_MAX_LAYERS || size[1] < 1 || size[1] > TRIA_MAX_HEADS ||
        size[2] < 1 || size[2] > TRIA_MAX_HEAD_DIM / 2 ||
        (shape->n_freq != 0 &&
         (size[0] != shape->n_layers || size[1] != shape->n_q_heads || size[2] != shape->n_freq))) {
        return import_fail(file->error, TRIA_E_FORMAT,
                           "%s has the size %lld x %lld x %lld: out of range or not that of the others",
                           name, (long long)size[0], (long long)size[1], (long long)size[2]);
    }
    shape->n_layers = (int32_t)size[0];
    shape->n_q_heads = (int32_t)size[1];
    shape->n_freq = (int32_t)size[2];
    return TRIA_OK;
}

static tria_status fill_dense(torch_file *file, const dense_tensors *dense, const import_shape *shape,
                              tria_calibration *calibration)
{
    for (int32_t i = 0; i < shape->n_layers * shape->n_q_heads; i++) {
        const size_t at = (size_t)i * (size_t)shape->n_freq;
        IMPORT_TRY(import_set_head(calibration, shape, i / shape->n_q_heads, i % shape->n_q_heads,
                                   dense->real + at, dense->imag + at, dense->absolute + at, file->error));
    }
    return TRIA_OK;
}

/* The dense kinds, once the tensors are unpacked. */
static tria_status make_dense(torch_file *file, const dense_tensors *dense, const import_shape *shape,
                              tria_calibration **out)
{
    tria_calibration *calibration;
    tria_status status;
    IMPORT_TRY(import_create(shape, file->env, &calibration, file->error));
    status = fill_dense(file, dense, shape, calibration);
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    *out = calibration;
    return TRIA_OK;
}

/* token_count, one number per layer. */
static tria_status read_counts(torch_file *file, const pickle_value *root, int32_t n_layers,
                               tria_calibration *calibration)
{
    const pickle_value *counts = pickle_get(root, "token_count");
    double *values;
    if (counts == NULL) {
        return TRIA_OK;
    }
    if (!is_tensor(counts, 1) || counts->as.tensor->size[0] != n_layers) {
        return import_fail(file->error, TRIA_E_FORMAT, "token_count is not a tensor of %d numbers",
                           n_layers);
    }
    IMPORT_TRY(unpack_double(file, counts->as.tensor, &values));
    for (int32_t l = 0; l < n_layers; l++) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): n_layers values were unpacked
        if (!(values[l] >= 0 && values[l] < 1e18) ||
            tria_calibration_set_tokens(calibration, l, (uint64_t)llround(values[l]), file->error) !=
                TRIA_OK) {
            const double count = values[l];
            free(values);
            return import_fail(file->error, TRIA_E_FORMAT, "token_count[%d] is %g", l, count);
        }
    }
    free(values);
    return TRIA_OK;
}

static tria_status read_dense(torch_file *file, const pickle_value *root, tria_calibration **out)
{
    import_shape shape = {.format = TRIA_FORMAT_PT_DENSE};
    const pickle_value *metadata = pickle_get(root, "metadata");
    const pickle_value *real = pickle_get(root, "q_mean_real");
    const pickle_value *imag = pickle_get(root, "q_mean_imag");
    const pickle_value *absolute = pickle_get(root, "q_abs_mean");
    dense_tensors dense = {NULL, NULL, NULL};
    tria_calibration *calibration = NULL;
    char *name = NULL;
    tria_status status;
    IMPORT_TRY(dense_shape(file, real, "q_mean_real", &shape));
    IMPORT_TRY(dense_shape(file, imag, "q_mean_imag", &shape));
    IMPORT_TRY(dense_shape(file, absolute, "q_abs_mean", &shape));
    IMPORT_TRY(read_style(file, metadata, &shape));
    IMPORT_TRY(copy_name(file, metadata, &name));
    shape.head_dim = 2 * shape.n_freq;
    shape.model_name = name;
    status = unpack(file, real->as.tensor, false, &dense.real);
    if (status == TRIA_OK) {
        status = unpack(file, imag->as.tensor, false, &dense.imag);
    }
    if (status == TRIA_OK) {
        status = unpack(file, absolute->as.tensor, false, &dense.absolute);
    }
    if (status == TRIA_OK) {
        status = make_dense(file, &dense, &shape, &calibration);
    }
    free_dense(&dense);
    free(name);
    if (status == TRIA_OK) {
        status = read_counts(file, root, shape.n_layers, calibration);
    }
    if (status != TRIA_OK) {
        tria_calibration_destroy(calibration);
        return status;
    }
    *out = calibration;
    return TRIA_OK;
}

/* omega or freq_scale_sq, [F], optional. */
static tria_status read_frequencies(torch_file *file, const pickle_value *root, const char *name,
                                    int32_t n_freq, double **out)
{
    const pickle_value *value = pickle_get(root, name);
    *out = NULL;
    if (value == NULL) {
        return TRIA_OK;
    }
    if (!is_tensor(value, 1) || value->as.tensor->size[0] != n_freq ||
        value->as.tensor->storage->dtype == PICKLE_C64) {
        return import_fail(file->error, TRIA_E_FORMAT, "%s is not a tensor of %d real numbers", name,
                           n_freq);
    }
    return unpack_double(file, value->as.tensor, out);
}

static tria_status read_trtllm(torch_file *file, const pickle_value *root, tria_calibration **out)
{
    import_shape shape = {.format = TRIA_FORMAT_PT_TRTLLM};
    const pickle_value *mean = pickle_get(root, "E_q");
    const pickle_value *norm = pickle_get(root, "E_q_norm");
    dense_tensors dense = {NULL, NULL, NULL};
    double *omega = NULL;
    double *scale = NULL;
    tria_status status;
    IMPORT_TRY(dense_shape(file, mean, "E_q", &shape));
    IMPORT_TRY(dense_shape(file, norm, "E_q_norm", &shape));
    if (mean->as.tensor->storage->dtype != PICKLE_C64 || norm->as.tensor->storage->dtype == PICKLE_C64) {
        return import_fail(file->error, TRIA_E_FORMAT, "E_q is not complex or E_q_norm is");
    }
    shape.head_dim = 2 * shape.n_freq;
    status = unpack(file, mean->as.tensor, false, &dense.real);
    if (status == TRIA_OK) {
        status = unpack(file, mean->as.tensor, true, &dense.imag);
    }
    if (status == TRIA_OK) {
        status = unpack(file, norm->as.tensor, false, &dense.absolute);
    }
    if (status == TRIA_OK) {
        status = read_frequencies(file, root, "omega", shape.n_freq, &omega);
    }
    if (status == TRIA_OK) {
        status = read_frequencies(file, root, "freq_scale_sq", shape.n_freq, &scale);
    }
    if (status == TRIA_OK) {
        shape.inv_freq = omega;
        shape.freq_scale_sq = scale;
        status = make_dense(file, &dense, &shape, out);
    }
    free_dense(&dense);
    free(omega);
    free(scale);
    return status;
}

static tria_status read_root(torch_file *file, const pickle_value *root, tria_calibration **out)
{
    const pickle_value *stats = pickle_get(root, "stats");
    if (stats != NULL && stats->type == PICKLE_DICT) {
        return read_stats(file, pickle_get(root, "metadata"), stats, out);
    }
    if (pickle_get(root, "q_mean_real") != NULL) {
        return read_dense(file, root, out);
    }
    if (pickle_get(root, "E_q") != NULL) {
        return read_trtllm(file, root, out);
    }
    return import_fail(file->error, TRIA_E_FORMAT,
                       "a torch file without the entries stats, q_mean_real or E_q: not a calibration");
}

static tria_status check_byte_order(torch_file *file)
{
    unsigned char *bytes;
    size_t size;
    bool little;
    if (!archive_has(file->zip, "byteorder")) {
        return TRIA_OK;
    }
    IMPORT_TRY(archive_read(file->zip, "byteorder", &bytes, &size, file->error));
    little = size >= 6 && memcmp(bytes, "little", 6) == 0;
    free(bytes);
    return little ? TRIA_OK
                  : import_fail(file->error, TRIA_E_UNSUPPORTED, "a torch file that is not little-endian");
}

tria_status import_read_pt(const unsigned char *data, size_t size, const tria_env *env, bool *counted,
                           tria_calibration **calibration, tria_error *error)
{
    torch_file file = {.env = env, .counted = counted, .elements_left = size / 2, .error = error};
    unsigned char *bytes = NULL;
    size_t n_bytes;
    pickle_tree *tree = NULL;
    pickle_value root;
    tria_status status;
    IMPORT_TRY(archive_open(data, size, &file.zip, error));
    status = check_byte_order(&file);
    if (status == TRIA_OK) {
        status = archive_read(file.zip, "data.pkl", &bytes, &n_bytes, error);
    }
    if (status == TRIA_OK) {
        status = pickle_read(bytes, n_bytes, 2 * size + 65536, &tree, &root, error);
    }
    if (status == TRIA_OK) {
        status = read_root(&file, &root, calibration);
    }
    pickle_free(tree);
    free(bytes);
    free(file.stored);
    archive_close(file.zip);
    return status;
}

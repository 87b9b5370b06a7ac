/* inputs_keys.c - arrays of keys and their multipliers, and the view of them. */
#include "inputs_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The element type of an array of keys: what --dtype says if the widths agree, else the array's own. */
static int key_dtype(const inputs *in, const npy_array *array, const char *path, int32_t *dtype)
{
    char text[128];
    int32_t named = in->dtype_name != NULL ? tria_dtype_from_name(in->dtype_name) : -1;
    int32_t natural = npy_is(array, 'f', 4)   ? TRIA_DTYPE_F32
                      : npy_is(array, 'f', 2) ? TRIA_DTYPE_F16
                      : npy_is(array, 'i', 1) ? TRIA_DTYPE_INT8
                                              : -1;
    bool fits = named < 0 || named == natural || (named == TRIA_DTYPE_BF16 && npy_is(array, 'u', 2)) ||
                (named == TRIA_DTYPE_F16 && npy_is(array, 'u', 2)) ||
                (named > TRIA_DTYPE_BF16 && named < TRIA_DTYPE_COUNT && npy_is(array, 'u', 1));
    if (npy_is(array, 'f', 8)) {
        return cli_bad_input("%s: %s: keys in double are not supported, save them as f4", path,
                             npy_describe(array, text, sizeof(text)));
    }
    if (!fits) {
        return cli_bad_usage("%s: %s does not hold --dtype %s", path,
                             npy_describe(array, text, sizeof(text)), in->dtype_name);
    }
    if (named < 0 && natural < 0) {
        return cli_bad_usage("%s: %s: say with --dtype what these are", path,
                             npy_describe(array, text, sizeof(text)));
    }
    *dtype = named >= 0 ? named : natural;
    return CLI_CONTINUE;
}

int inputs_load_keys(inputs *in)
{
    tria_error error;
    int64_t n_layers = 0;
    in->keys = cli_allocate(in->key_paths.count, sizeof(*in->keys));
    for (size_t i = 0; i < in->key_paths.count; i++) {
        const char *path = in->key_paths.items[i];
        npy_array *array = &in->keys[i];
        char text[128];
        int code;
        if (npy_read(path, array, &error) != TRIA_OK) {
            return cli_library_error(path, &error);
        }
        if (array->n_dims != 4 || array->count == 0) {
            return cli_bad_input("%s: %s, expected keys [L, Hkv, N, D]", path,
                                 npy_describe(array, text, sizeof(text)));
        }
        if (array->dims[0] > TRIA_MAX_LAYERS || array->dims[1] > TRIA_MAX_HEADS ||
            array->dims[2] > INT32_MAX || array->dims[2] != in->keys[0].dims[2]) {
            return cli_bad_input("%s: %s: too many layers or heads, or another number of rows than %s",
                                 path, npy_describe(array, text, sizeof(text)), in->key_paths.items[0]);
        }
        code = key_dtype(in, array, path, &in->dtype);
        if (code != CLI_CONTINUE) {
            return code;
        }
        n_layers += array->dims[0];
    }
    if (n_layers > TRIA_MAX_LAYERS) {
        return cli_bad_input("%s: %" PRId64 " layers with the other files, at most %d",
                             in->key_paths.items[0], n_layers, TRIA_MAX_LAYERS);
    }
    in->n_key_layers = (int32_t)n_layers;
    in->n_rows = (int32_t)in->keys[0].dims[2];
    return CLI_CONTINUE;
}

/* The array and the layer in it that hold the keys of key layer `index`. */
const npy_array *inputs_keys_of(const inputs *in, int32_t index, int64_t *layer)
{
    size_t file = 0;
    *layer = index;
    while (*layer >= in->keys[file].dims[0]) {
        *layer -= in->keys[file++].dims[0];
    }
    return &in->keys[file];
}

/* Elements per row: of bytes that hold blocks, as many as the blocks have. 0: no whole number. */
int32_t inputs_keys_dim(const inputs *in, const npy_array *array)
{
    int64_t row_bytes = array->dims[3] * array->size;
    int64_t block_bytes = tria_dtype_block_bytes(in->dtype);
    int64_t dim = row_bytes / block_bytes * tria_dtype_block(in->dtype);
    return row_bytes % block_bytes == 0 && dim <= TRIA_MAX_HEAD_DIM ? (int32_t)dim : 0;
}

/* What multiplies the keys: --key-scales. */
typedef struct key_scales {
    tria_scale_kind kind;
    float scale;    /* TENSOR, unless per_layer */
    bool per_layer; /* TENSOR: in->scales[layer in its file] */
} key_scales;

static int read_scales(inputs *in, key_scales *scales)
{
    tria_error error;
    char text[128];
    npy_array array;
    if (npy_read(in->key_scales, &array, &error) != TRIA_OK) {
        return cli_library_error(in->key_scales, &error);
    }
    npy_describe(&array, text, sizeof(text));
    in->scales = array.data;
    if (!npy_is(&array, 'f', 4) || in->key_paths.count > 1 || array.n_dims > 3 ||
        (array.count != 1 &&
         memcmp(array.dims, in->keys[0].dims, (size_t)array.n_dims * sizeof(array.dims[0])) != 0)) {
        return cli_bad_input("%s: %s, expected f4 [L], [L, Hkv] or [L, Hkv, N] of one file of keys",
                             in->key_scales, text);
    }
    if (array.count == 1) {
        scales->kind = TRIA_SCALE_TENSOR;
        scales->scale = in->scales[0];
    } else {
        scales->kind = array.n_dims == 1   ? TRIA_SCALE_TENSOR
                       : array.n_dims == 2 ? TRIA_SCALE_HEAD
                                           : TRIA_SCALE_ROW;
        scales->per_layer = array.n_dims == 1;
    }
    return CLI_CONTINUE;
}

static int load_scales(inputs *in, key_scales *scales)
{
    char *end;
    double number;
    *scales = (key_scales){TRIA_SCALE_NONE, 1.0f, false};
    if (in->key_scales == NULL) {
        return in->dtype == TRIA_DTYPE_INT8 ? cli_bad_usage("keys of type int8 need --key-scales")
                                            : CLI_CONTINUE;
    }
    number = strtod(in->key_scales, &end);
    if (end != in->key_scales && *end == '\0' && isfinite(number)) {
        scales->kind = TRIA_SCALE_TENSOR;
        scales->scale = (float)number;
        return CLI_CONTINUE;
    }
    return read_scales(in, scales);
}

static void set_scales(const inputs *in, const key_scales *scales, const npy_array *array, int64_t in_file,
                       tria_tensor *k)
{
    int64_t n_heads = array->dims[1];
    k->scale_kind = (int32_t)scales->kind;
    k->scale = scales->per_layer ? in->scales[in_file] : scales->scale;
    if (scales->kind == TRIA_SCALE_HEAD) {
        k->scales = in->scales + in_file * n_heads;
        k->scale_head_stride = (int64_t)sizeof(float);
    } else if (scales->kind == TRIA_SCALE_ROW) {
        k->scales = in->scales + in_file * n_heads * in->n_rows;
        k->scale_token_stride = (int64_t)sizeof(float);
        k->scale_head_stride = in->n_rows * (int64_t)sizeof(float);
    }
}

/* Keys against the layer they belong to. */
static int check_layer(const inputs *in, const npy_array *array, int32_t dim, int32_t model_layer)
{
    const char *path = in->key_paths.items[array - in->keys];
    tria_layer_params layer;
    tria_error error;
    char text[128];
    npy_describe(array, text, sizeof(text));
    if (dim == 0) {
        return cli_bad_input("%s: %s: the rows are no whole number of %s blocks, or too long", path, text,
                             tria_dtype_name(in->dtype));
    }
    tria_layer_params_init(&layer);
    if (tria_model_layer(in->model, model_layer, &layer, &error) != TRIA_OK) {
        return cli_library_error(NULL, &error);
    }
    if (layer.n_kv_heads != array->dims[1] || layer.head_dim > dim) {
        return cli_bad_input("%s: %s: %" PRId64 " KV heads of %" PRId32 " dimensions, layer %" PRId32
                             " of the %s has %" PRId32 " of %" PRId32,
                             path, text, array->dims[1], dim, model_layer,
                             in->model_path != NULL ? "model" : "calibration", layer.n_kv_heads,
                             layer.head_dim);
    }
    return CLI_CONTINUE;
}

int inputs_build_view(inputs *in)
{
    key_scales scales;
    int code = load_scales(in, &scales);
    in->layer_views = cli_allocate((size_t)in->n_layers, sizeof(*in->layer_views));
    for (int32_t i = 0; code == CLI_CONTINUE && i < in->n_key_layers; i++) {
        tria_tensor *k = &in->layer_views[in->key_layers[i]].k;
        int64_t in_file;
        const npy_array *array = inputs_keys_of(in, i, &in_file);
        int64_t row_bytes = array->dims[3] * array->size;
        int64_t layer_bytes = array->dims[1] * in->n_rows * row_bytes;
        k->base = (unsigned char *)array->data + in_file * layer_bytes;
        k->size = (uint64_t)layer_bytes;
        k->token_stride = row_bytes;
        k->head_stride = in->n_rows * row_bytes;
        k->dtype = in->dtype;
        k->dim = inputs_keys_dim(in, array);
        set_scales(in, &scales, array, in_file, k);
        code = check_layer(in, array, k->dim, in->layers[in->key_layers[i]]);
    }
    tria_kv_view_init(&in->view);
    in->view.layers = in->layer_views;
    in->view.n_layers = in->n_layers;
    in->view.k_state = in->keys_raw ? TRIA_K_RAW : in->keys_hadamard ? TRIA_K_HADAMARD : TRIA_K_ROTATED;
    return code;
}

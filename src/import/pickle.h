/*
 * pickle.h - reads the data.pkl of a torch file as plain data.
 *
 * A closed list of opcodes and globals (those torch.save() writes for dicts of tensors) builds a tree of
 * values; nothing is called, imported or executed. Stack, memo and tree are bounded.
 */
#ifndef TRIA_IMPORT_PICKLE_H
#define TRIA_IMPORT_PICKLE_H

#include "import_internal.h"

typedef enum pickle_type {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INTEGER,
    PICKLE_FLOAT,
    PICKLE_TEXT,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,
    PICKLE_STORAGE,
    PICKLE_TENSOR,
    PICKLE_GLOBAL, /* only while reading */
    PICKLE_MARK
} pickle_type;

typedef enum pickle_dtype {
    PICKLE_F32,
    PICKLE_F16,
    PICKLE_BF16,
    PICKLE_F64,
    PICKLE_C64 /* complex of two f32 */
} pickle_dtype;

struct pickle_items;
struct pickle_storage;
struct pickle_tensor;

typedef struct pickle_value {
    pickle_type type;
    uint32_t length; /* of a text, in bytes */
    union {
        int64_t integer;
        double number;
        const char *text; /* into the pickle, not terminated */
        struct pickle_items *items;
        struct pickle_storage *storage;
        struct pickle_tensor *tensor;
    } as;
} pickle_value;

/* Of a tuple or list; of a dict key, value, key, value ... */
typedef struct pickle_items {
    uint32_t count;
    uint32_t capacity;
    pickle_value *values;
} pickle_items;

typedef struct pickle_storage {
    pickle_value key; /* text: names the member that holds the bytes */
    pickle_dtype dtype;
    int64_t count;
} pickle_storage;

enum { PICKLE_MAX_DIMS = 4 };

typedef struct pickle_tensor {
    pickle_storage *storage;
    int64_t offset; /* in elements */
    int32_t n_dims;
    int64_t size[PICKLE_MAX_DIMS];
    int64_t stride[PICKLE_MAX_DIMS]; /* in elements */
} pickle_tensor;

typedef struct pickle_tree pickle_tree; /* owns everything but the texts */

/* `budget` bounds the memory of the tree, in bytes. Texts point into `data`. */
tria_status pickle_read(const unsigned char *data, size_t size, size_t budget, pickle_tree **tree,
                        pickle_value *root, tria_error *error);
void pickle_free(pickle_tree *tree); /* NULL is allowed */

/* The value of a dict under a text key, NULL when there is none. */
const pickle_value *pickle_get(const pickle_value *dict, const char *key);
bool pickle_is_text(const pickle_value *value, const char *text);

#endif

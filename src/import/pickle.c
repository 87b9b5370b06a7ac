/* pickle.c - see pickle.h. */
#include "pickle.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STACK = 16384, CHUNK_SIZE = 16384 };

static const int64_t MAX_ELEMENTS = (int64_t)1 << 40; /* of a storage: keeps sums of strides in range */

/* What a GLOBAL may name. */
typedef enum global {
    GLOBAL_REBUILD_TENSOR,
    GLOBAL_ORDERED_DICT,
    GLOBAL_STORAGE /* + pickle_dtype */
} global;

static const struct {
    const char *module;
    const char *name;
    int64_t value;
} GLOBALS[] = {
    {"torch._utils", "_rebuild_tensor_v2", GLOBAL_REBUILD_TENSOR},
    {"collections", "OrderedDict", GLOBAL_ORDERED_DICT},
    {"torch", "FloatStorage", GLOBAL_STORAGE + PICKLE_F32},
    {"torch", "HalfStorage", GLOBAL_STORAGE + PICKLE_F16},
    {"torch", "BFloat16Storage", GLOBAL_STORAGE + PICKLE_BF16},
    {"torch", "DoubleStorage", GLOBAL_STORAGE + PICKLE_F64},
    {"torch", "ComplexFloatStorage", GLOBAL_STORAGE + PICKLE_C64},
};

/* Memory of the tree, released as a whole. */
typedef struct chunk {
    struct chunk *next;
    size_t used;
    size_t size;
} chunk;

struct pickle_tree {
    chunk *chunks;
    size_t budget;
};

typedef struct machine {
    const unsigned char *data;
    size_t size;
    size_t at;
    pickle_tree *tree;
    pickle_value *stack;
    size_t depth;
    pickle_value *memo;
    size_t n_memo;
    size_t memo_capacity;
    tria_error *error;
} machine;

static void *tree_allocate(pickle_tree *tree, size_t size)
{
    const size_t rounded = (size + 15) & ~(size_t)15;
    const size_t chunk_size = rounded > CHUNK_SIZE ? rounded : CHUNK_SIZE;
    chunk *first = tree->chunks;
    void *pointer;
    if (first == NULL || first->size - first->used < rounded) {
        if (tree->budget < chunk_size + sizeof(chunk)) {
            return NULL;
        }
        first = malloc(sizeof(chunk) + chunk_size);
        if (first == NULL) {
            return NULL;
        }
        tree->budget -= chunk_size + sizeof(chunk);
        first->next = tree->chunks;
        first->used = 0;
        first->size = chunk_size;
        tree->chunks = first;
    }
    pointer = (unsigned char *)(first + 1) + first->used;
    first->used += rounded;
    return pointer;
}

void pickle_free(pickle_tree *tree)
{
    if (tree != NULL) {
        while (tree->chunks != NULL) {
            chunk *next = tree->chunks->next;
            free(tree->chunks);
            tree->chunks = next;
        }
        free(tree);
    }
}

static tria_status too_large(machine *m)
{
    return import_fail(m->error, TRIA_E_FORMAT, "pickle offset %zu: it builds more than its size allows",
                       m->at);
}

static tria_status bad(machine *m, const char *what)
{
    return import_fail(m->error, TRIA_E_FORMAT, "pickle offset %zu: %s", m->at, what);
}

static tria_status push(machine *m, pickle_value value)
{
    if (m->depth == MAX_STACK) {
        return bad(m, "the stack grows beyond 16384 values");
    }
    m->stack[m->depth++] = value;
    return TRIA_OK;
}

static tria_status pop(machine *m, pickle_value *value)
{
    if (m->depth == 0 || m->stack[m->depth - 1].type == PICKLE_MARK) {
        return bad(m, "the stack is empty");
    }
    *value = m->stack[--m->depth];
    return TRIA_OK;
}

/* `count` bytes of argument. */
static tria_status take(machine *m, size_t count, const unsigned char **bytes)
{
    if (count > m->size - m->at) {
        return bad(m, "it ends within an opcode");
    }
    *bytes = m->data + m->at;
    m->at += count;
    return TRIA_OK;
}

static uint64_t little(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static tria_status push_integer(machine *m, pickle_type type, int64_t integer)
{
    pickle_value value = {type, 0, {0}};
    value.as.integer = integer;
    return push(m, value);
}

/* A line that ends in a newline, which is not part of it. */
static tria_status take_line(machine *m, const char **line, size_t *length)
{
    const unsigned char *end = memchr(m->data + m->at, '\n', m->size - m->at);
    if (end == NULL) {
        return bad(m, "it ends within a line");
    }
    *line = (const char *)m->data + m->at;
    *length = (size_t)(end - m->data) - m->at;
    m->at += *length + 1;
    return TRIA_OK;
}

static bool same(const char *text, size_t length, const char *expected)
{
    return strlen(expected) == length && memcmp(text, expected, length) == 0;
}

static tria_status op_global(machine *m)
{
    const char *module;
    const char *name;
    size_t module_length;
    size_t name_length;
    IMPORT_TRY(take_line(m, &module, &module_length));
    IMPORT_TRY(take_line(m, &name, &name_length));
    for (size_t i = 0; i < sizeof(GLOBALS) / sizeof(GLOBALS[0]); i++) {
        if (same(module, module_length, GLOBALS[i].module) && same(name, name_length, GLOBALS[i].name)) {
            return push_integer(m, PICKLE_GLOBAL, GLOBALS[i].value);
        }
    }
    return import_fail(m->error, TRIA_E_FORMAT, "pickle offset %zu: the global %.*s.%.*s is not allowed",
                       m->at, (int)(module_length < 64 ? module_length : 64), module,
                       (int)(name_length < 64 ? name_length : 64), name);
}

static tria_status push_container(machine *m, pickle_type type)
{
    pickle_value value = {type, 0, {0}};
    value.as.items = tree_allocate(m->tree, sizeof(*value.as.items));
    if (value.as.items == NULL) {
        return too_large(m);
    }
    memset(value.as.items, 0, sizeof(*value.as.items));
    return push(m, value);
}

static tria_status extend(machine *m, pickle_items *items, const pickle_value *values, size_t count)
{
    const size_t needed = items->count + count;
    if (needed > items->capacity) {
        const size_t capacity = needed > 2 * (size_t)items->capacity ? needed : 2 * (size_t)items->capacity;
        pickle_value *grown =
            capacity <= UINT32_MAX ? tree_allocate(m->tree, capacity * sizeof(*grown)) : NULL;
        if (grown == NULL) {
            return too_large(m);
        }
        if (items->count > 0) {
            memcpy(grown, items->values, items->count * sizeof(*grown));
        }
        items->values = grown;
        items->capacity = (uint32_t)capacity;
    }
    if (count > 0) {
        memcpy(items->values + items->count, values, count * sizeof(*values));
    }
    items->count = (uint32_t)needed;
    return TRIA_OK;
}

/* Pops what lies above the topmost mark, and the mark: the values stay where they were on the stack. */
static tria_status pop_mark(machine *m, const pickle_value **values, size_t *count)
{
    size_t at = m->depth;
    while (at > 0 && m->stack[at - 1].type != PICKLE_MARK) {
        at--;
    }
    if (at == 0) {
        return bad(m, "there is no mark on the stack");
    }
    *values = m->stack + at;
    *count = m->depth - at;
    m->depth = at - 1;
    return TRIA_OK;
}

/* A tuple of `count` values that lie just above the stack's top. */
static tria_status push_tuple(machine *m, const pickle_value *values, size_t count)
{
    pickle_value tuple = {PICKLE_TUPLE, 0, {0}};
    tuple.as.items = tree_allocate(m->tree, sizeof(*tuple.as.items));
    if (tuple.as.items == NULL) {
        return too_large(m);
    }
    memset(tuple.as.items, 0, sizeof(*tuple.as.items));
    IMPORT_TRY(extend(m, tuple.as.items, values, count));
    return push(m, tuple);
}

static tria_status op_small_tuple(machine *m, size_t count)
{
    pickle_value values[3];
    for (size_t i = count; i-- > 0;) {
        IMPORT_TRY(pop(m, &values[i]));
    }
    return push_tuple(m, values, count);
}

static tria_status op_tuple(machine *m)
{
    const pickle_value *values;
    size_t count;
    IMPORT_TRY(pop_mark(m, &values, &count));
    return push_tuple(m, values, count); // the tree owns it. NOLINT(clang-analyzer-*)
}

/* Adds values to the container on top of the stack. */
static tria_status add_items(machine *m, pickle_type type, const pickle_value *values, size_t count)
{
    if (m->depth == 0 || m->stack[m->depth - 1].type != type) {
        return bad(m,
                   type == PICKLE_LIST ? "items for what is not a list" : "items for what is not a dict");
    }
    if (type == PICKLE_DICT && count % 2 != 0) {
        return bad(m, "a key without a value");
    }
    return extend(m, m->stack[m->depth - 1].as.items, values, count);
}

static tria_status op_add_marked(machine *m, pickle_type type)
{
    const pickle_value *values;
    size_t count;
    IMPORT_TRY(pop_mark(m, &values, &count));
    return add_items(m, type, values, count);
}

static tria_status op_add(machine *m, pickle_type type, size_t count)
{
    pickle_value values[2];
    for (size_t i = count; i-- > 0;) {
        IMPORT_TRY(pop(m, &values[i]));
    }
    return add_items(m, type, values, count);
}

/* ('storage', type, key, location, count) */
static tria_status op_persistent(machine *m)
{
    pickle_value value;
    const pickle_value *items;
    pickle_storage *storage;
    IMPORT_TRY(pop(m, &value));
    if (value.type != PICKLE_TUPLE || value.as.items->count != 5) {
        return bad(m, "a persistent id that is not a tuple of 5");
    }
    items = value.as.items->values;
    if (!pickle_is_text(&items[0], "storage") || items[1].type != PICKLE_GLOBAL ||
        items[1].as.integer < GLOBAL_STORAGE || items[2].type != PICKLE_TEXT ||
        items[3].type != PICKLE_TEXT || items[4].type != PICKLE_INTEGER || items[4].as.integer < 0 ||
        items[4].as.integer > MAX_ELEMENTS) {
        return bad(m, "a persistent id that is not a storage");
    }
    storage = tree_allocate(m->tree, sizeof(*storage));
    if (storage == NULL) {
        return too_large(m);
    }
    storage->dtype = (pickle_dtype)(items[1].as.integer - GLOBAL_STORAGE);
    storage->key = items[2];
    storage->count = items[4].as.integer;
    value.type = PICKLE_STORAGE;
    value.as.storage = storage;
    return push(m, value);
}

/* Copies a tuple of sizes or strides. */
static bool copy_dims(const pickle_value *tuple, int64_t *dims, int32_t *count)
{
    if (tuple->type != PICKLE_TUPLE || tuple->as.items->count > PICKLE_MAX_DIMS) {
        return false;
    }
    *count = (int32_t)tuple->as.items->count;
    for (int32_t i = 0; i < *count; i++) {
        const pickle_value *item = &tuple->as.items->values[i];
        if (item->type != PICKLE_INTEGER || item->as.integer < 0 || item->as.integer > INT32_MAX) {
            return false;
        }
        dims[i] = item->as.integer;
    }
    return true;
}

/* (storage, offset, size, stride, requires_grad, hooks[, flags]): the flags say that the numbers mean
 * others than those stored, e.g. their conjugates. */
static tria_status rebuild_tensor(machine *m, const pickle_items *arguments)
{
    const pickle_value *items = arguments->values;
    pickle_value value = {PICKLE_TENSOR, 0, {0}};
    pickle_tensor *tensor;
    int32_t n_strides;
    int64_t last;
    int64_t n_elements = 1;
    if (arguments->count < 6 || arguments->count > 7 || items[0].type != PICKLE_STORAGE ||
        items[1].type != PICKLE_INTEGER || items[1].as.integer < 0 || items[1].as.integer > INT32_MAX) {
        return bad(m, "a tensor without storage, offset, size and stride");
    }
    if (arguments->count == 7 && items[6].type != PICKLE_NONE &&
        !(items[6].type == PICKLE_DICT && items[6].as.items->count == 0)) {
        return bad(m, "a tensor that is conjugated or negated: save a resolved copy of it");
    }
    tensor = tree_allocate(m->tree, sizeof(*tensor));
    if (tensor == NULL) {
        return too_large(m);
    }
    memset(tensor, 0, sizeof(*tensor));
    tensor->storage = items[0].as.storage;
    tensor->offset = items[1].as.integer;
    if (!copy_dims(&items[2], tensor->size, &tensor->n_dims) ||
        !copy_dims(&items[3], tensor->stride, &n_strides) || n_strides != tensor->n_dims) {
        return bad(m, "a tensor's size and stride are not two tuples of up to 4 numbers");
    }
    /* Sizes, strides and the offset are below 2^31 each: `last` stays below 2^62 + 2^40. */
    last = tensor->offset;
    for (int32_t i = 0; i < tensor->n_dims && last < tensor->storage->count; i++) {
        last += tensor->size[i] > 0 ? (tensor->size[i] - 1) * tensor->stride[i] : 0;
        n_elements = tensor->size[i] != 0 && n_elements > tensor->storage->count / tensor->size[i]
                         ? tensor->storage->count + 1
                         : n_elements * tensor->size[i];
    }
    if (last >= tensor->storage->count || n_elements > tensor->storage->count) {
        return bad(m, "a tensor reaches beyond its storage");
    }
    value.as.tensor = tensor;
    return push(m, value);
}

static tria_status op_reduce(machine *m)
{
    pickle_value arguments;
    pickle_value callable;
    IMPORT_TRY(pop(m, &arguments));
    IMPORT_TRY(pop(m, &callable));
    if (callable.type != PICKLE_GLOBAL || arguments.type != PICKLE_TUPLE) {
        return bad(m, "a call of what is not allowed");
    }
    if (callable.as.integer == GLOBAL_REBUILD_TENSOR) {
        return rebuild_tensor(m, arguments.as.items);
    }
    if (callable.as.integer == GLOBAL_ORDERED_DICT && arguments.as.items->count == 0) {
        return push_container(m, PICKLE_DICT);
    }
    return bad(m, "a call of what is not allowed");
}

/* Memo numbers are dense: the next one, or one that exists. */
static tria_status op_put(machine *m, uint64_t index)
{
    if (m->depth == 0 || m->stack[m->depth - 1].type == PICKLE_MARK) {
        return bad(m, "nothing to memorise");
    }
    if (index > m->n_memo) {
        return bad(m, "a memo number out of order");
    }
    if (index == m->n_memo && m->n_memo == m->memo_capacity) {
        const size_t capacity = m->memo_capacity == 0 ? 256 : 2 * m->memo_capacity;
        const size_t added = (capacity - m->memo_capacity) * sizeof(*m->memo);
        pickle_value *grown;
        if (added > m->tree->budget) {
            return too_large(m);
        }
        grown = realloc(m->memo, capacity * sizeof(*grown));
        if (grown == NULL) {
            return import_fail(m->error, TRIA_E_MEMORY, "cannot allocate a memo of %zu values", capacity);
        }
        m->tree->budget -= added;
        m->memo = grown;
        m->memo_capacity = capacity;
    }
    m->memo[index] = m->stack[m->depth - 1];
    m->n_memo += index == m->n_memo;
    return TRIA_OK;
}

static tria_status op_get(machine *m, uint64_t index)
{
    if (index >= m->n_memo) {
        return bad(m, "a memo number that was never set");
    }
    return push(m, m->memo[index]);
}

static tria_status op_text(machine *m)
{
    const unsigned char *bytes = NULL;
    pickle_value value = {PICKLE_TEXT, 0, {0}};
    IMPORT_TRY(take(m, 4, &bytes));
    value.length = (uint32_t)little(bytes, 4);
    IMPORT_TRY(take(m, value.length, &bytes));
    value.as.text = (const char *)bytes;
    return push(m, value);
}

static tria_status op_float(machine *m)
{
    const unsigned char *bytes = NULL;
    uint64_t bits = 0;
    pickle_value value = {PICKLE_FLOAT, 0, {0}};
    IMPORT_TRY(take(m, 8, &bytes));
    for (size_t i = 0; i < 8; i++) { /* the one big-endian number of the format */
        bits = bits << 8 | bytes[i];
    }
    memcpy(&value.as.number, &bits, sizeof(bits));
    return push(m, value);
}

static tria_status op_long(machine *m)
{
    const unsigned char *bytes = NULL;
    size_t length;
    uint64_t value;
    IMPORT_TRY(take(m, 1, &bytes));
    length = bytes[0];
    if (length > 8) {
        return bad(m, "an integer of more than 8 bytes");
    }
    IMPORT_TRY(take(m, length, &bytes));
    value = little(bytes, length);
    if (length > 0 && length < 8 && (bytes[length - 1] & 0x80) != 0) {
        value |= UINT64_MAX << 8 * length;
    }
    return push_integer(m, PICKLE_INTEGER, (int64_t)value);
}

/* Runs one opcode other than STOP. */
static tria_status step(machine *m, unsigned char opcode)
{
    const unsigned char *bytes = NULL;
    switch (opcode) {
    case '(':
        return push_integer(m, PICKLE_MARK, 0);
    case 'c':
        return op_global(m);
    case 'R':
        return op_reduce(m);
    case 'Q':
        return op_persistent(m);
    case '}':
        return push_container(m, PICKLE_DICT);
    case ']':
        return push_container(m, PICKLE_LIST);
    case 'u':
        return op_add_marked(m, PICKLE_DICT);
    case 'e':
        return op_add_marked(m, PICKLE_LIST);
    case 's':
        return op_add(m, PICKLE_DICT, 2);
    case 'a':
        return op_add(m, PICKLE_LIST, 1);
    case ')':
        return push_tuple(m, NULL, 0);
    case 't':
        return op_tuple(m);
    case 0x85:
        return op_small_tuple(m, 1);
    case 0x86:
        return op_small_tuple(m, 2);
    case 0x87:
        return op_small_tuple(m, 3);
    case 0x88:
        return push_integer(m, PICKLE_BOOL, 1);
    case 0x89:
        return push_integer(m, PICKLE_BOOL, 0);
    case 'N':
        return push_integer(m, PICKLE_NONE, 0);
    case 'X':
        return op_text(m);
    case 'G':
        return op_float(m);
    case 0x8a:
        return op_long(m);
    case 'K':
        IMPORT_TRY(take(m, 1, &bytes));
        return push_integer(m, PICKLE_INTEGER, bytes[0]);
    case 'M':
        IMPORT_TRY(take(m, 2, &bytes));
        return push_integer(m, PICKLE_INTEGER, (int64_t)little(bytes, 2));
    case 'J':
        IMPORT_TRY(take(m, 4, &bytes));
        return push_integer(m, PICKLE_INTEGER, (int32_t)little(bytes, 4));
    case 'q':
        IMPORT_TRY(take(m, 1, &bytes));
        return op_put(m, bytes[0]);
    case 'r':
        IMPORT_TRY(take(m, 4, &bytes));
        return op_put(m, little(bytes, 4));
    case 'h':
        IMPORT_TRY(take(m, 1, &bytes));
        return op_get(m, bytes[0]);
    case 'j':
        IMPORT_TRY(take(m, 4, &bytes));
        return op_get(m, little(bytes, 4));
    default:
        return import_fail(m->error, TRIA_E_FORMAT, "pickle offset %zu: the opcode 0x%02x is not allowed",
                           m->at - 1, opcode);
    }
}

static tria_status run(machine *m, pickle_value *root)
{
    if (m->size < 2 || m->data[0] != 0x80 || m->data[1] != 2) {
        return bad(m, "expected protocol 2");
    }
    m->at = 2;
    while (m->at < m->size) {
        const unsigned char opcode = m->data[m->at++];
        if (opcode != '.') {
            IMPORT_TRY(step(m, opcode));
            continue;
        }
        if (m->depth != 1 || m->stack[0].type == PICKLE_MARK) {
            return bad(m, "it stops with other than one value");
        }
        if (m->at != m->size) {
            return bad(m, "bytes follow its end");
        }
        *root = m->stack[0];
        return TRIA_OK;
    }
    return bad(m, "it has no end");
}

tria_status pickle_read(const unsigned char *data, size_t size, size_t budget, pickle_tree **tree,
                        pickle_value *root, tria_error *error)
{
    machine m = {data, size, 0, NULL, NULL, 0, NULL, 0, 0, error};
    tria_status status;
    m.tree = calloc(1, sizeof(*m.tree));
    m.stack = malloc(MAX_STACK * sizeof(*m.stack));
    if (m.tree == NULL || m.stack == NULL) {
        free(m.tree);
        free(m.stack);
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate a stack");
    }
    m.tree->budget = budget;
    status = run(&m, root);
    free(m.stack);
    free(m.memo);
    if (status != TRIA_OK) {
        pickle_free(m.tree);
        return status;
    }
    *tree = m.tree;
    return TRIA_OK;
}

bool pickle_is_text(const pickle_value *value, const char *text)
{
    return value != NULL && value->type == PICKLE_TEXT && same(value->as.text, value->length, text);
}

const pickle_value *pickle_get(const pickle_value *dict, const char *key)
{
    if (dict == NULL || dict->type != PICKLE_DICT) {
        return NULL;
    }
    for (uint32_t i = dict->as.items->count; i >= 2; i -= 2) { /* the last of equal keys counts */
        if (pickle_is_text(&dict->as.items->values[i - 2], key)) {
            return &dict->as.items->values[i - 1];
        }
    }
    return NULL;
}

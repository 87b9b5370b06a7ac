/* npy.c - reading and writing .npy files, see npy.h. */
#include "npy.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPY_MAX_HEADER 65536 /* far beyond any header of a plain array */
static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* The header is the text of a Python dict with three entries; this reads exactly that. */
typedef struct header_parser {
    const char *at; /* NUL-terminated text */
    const char *begin;
    const char *path;
    tria_error *error;
} header_parser;

static bool fail_at(header_parser *parser, const char *expected)
{
    cli_error(parser->error, TRIA_E_FORMAT, "%s: .npy header: expected %s at character %td", parser->path,
              expected, parser->at - parser->begin);
    return false;
}

static void skip_space(header_parser *parser)
{
    parser->at += strspn(parser->at, " \t\r\n");
}

static bool accept(header_parser *parser, char wanted)
{
    skip_space(parser);
    if (*parser->at != wanted) {
        return false;
    }
    parser->at++;
    return true;
}

static bool parse_string(header_parser *parser, char *out, size_t size)
{
    const char *end;
    char quote;
    skip_space(parser);
    quote = *parser->at;
    if (quote != '\'' && quote != '"') {
        return fail_at(parser, "a string");
    }
    end = strchr(parser->at + 1, quote);
    if (end == NULL || (size_t)(end - parser->at) > size) {
        return fail_at(parser, "a short string");
    }
    memcpy(out, parser->at + 1, (size_t)(end - parser->at) - 1);
    out[end - parser->at - 1] = '\0';
    parser->at = end + 1;
    return true;
}

static bool parse_word(header_parser *parser, const char *word)
{
    size_t length = strlen(word);
    skip_space(parser);
    if (strncmp(parser->at, word, length) != 0) {
        return false;
    }
    parser->at += length;
    return true;
}

static bool parse_descr(header_parser *parser, npy_array *array)
{
    char descr[16];
    if (!parse_string(parser, descr, sizeof(descr))) {
        return false;
    }
    if (strlen(descr) == 3 && strchr("<|=", descr[0]) != NULL && strchr("fiu", descr[1]) != NULL &&
        strchr("1248", descr[2]) != NULL && (descr[1] != 'f' || descr[2] != '1')) {
        array->kind = descr[1];
        array->size = descr[2] - '0';
        return true;
    }
    cli_error(parser->error, TRIA_E_FORMAT,
              "%s: type %s is not supported (little-endian f2 f4 f8, i1 i2 i4 i8, u1 u2 u4 u8 are)",
              parser->path, descr);
    return false;
}

static bool parse_order(header_parser *parser)
{
    if (parse_word(parser, "True")) {
        cli_error(parser->error, TRIA_E_FORMAT, "%s: Fortran order is not supported (save it in C order)",
                  parser->path);
        return false;
    }
    return parse_word(parser, "False") || fail_at(parser, "True or False");
}

static bool parse_shape(header_parser *parser, npy_array *array)
{
    int64_t elements = 1;
    if (!accept(parser, '(')) {
        return fail_at(parser, "(");
    }
    array->n_dims = 0;
    while (!accept(parser, ')')) {
        char *end;
        long long dim;
        if (*parser->at < '0' || *parser->at > '9') {
            return fail_at(parser, "a dimension");
        }
        errno = 0;
        dim = strtoll(parser->at, &end, 10);
        if (errno == ERANGE || array->n_dims == NPY_MAX_DIMS ||
            __builtin_mul_overflow(elements, (int64_t)dim, &elements)) {
            return fail_at(parser, "a shape that fits in memory");
        }
        array->dims[array->n_dims++] = dim;
        parser->at = end;
        if (!accept(parser, ',')) {
            if (!accept(parser, ')')) {
                return fail_at(parser, ", or )");
            }
            break;
        }
    }
    array->count = elements;
    return true;
}

static bool parse_header(header_parser *parser, npy_array *array)
{
    bool descr = false;
    bool order = false;
    bool shape = false;
    if (!accept(parser, '{')) {
        return fail_at(parser, "{");
    }
    while (!accept(parser, '}')) {
        char key[32];
        if (!parse_string(parser, key, sizeof(key))) {
            return false;
        }
        if (!accept(parser, ':')) {
            return fail_at(parser, ":");
        }
        if (strcmp(key, "descr") == 0 && !descr) {
            descr = parse_descr(parser, array);
        } else if (strcmp(key, "fortran_order") == 0 && !order) {
            order = parse_order(parser);
        } else if (strcmp(key, "shape") == 0 && !shape) {
            shape = parse_shape(parser, array);
        } else {
            return fail_at(parser, "descr, fortran_order and shape, once each,");
        }
        if (parser->error->code != TRIA_OK) {
            return false;
        }
        if (!accept(parser, ',')) {
            if (!accept(parser, '}')) {
                return fail_at(parser, ", or }");
            }
            break;
        }
    }
    skip_space(parser);
    if (*parser->at != '\0') {
        return fail_at(parser, "the end of the header");
    }
    return (descr && order && shape) || fail_at(parser, "descr, fortran_order and shape before this");
}

static tria_status truncated(const char *path, tria_error *error)
{
    return cli_error(error, TRIA_E_FORMAT, "%s: the file ends inside the .npy header", path);
}

/* Reads magic, version and header text; *data_offset is where the numbers begin. */
static tria_status read_header(FILE *file, const char *path, npy_array *array, int64_t *data_offset,
                               tria_error *error)
{
    unsigned char start[12] = {0};
    char *text;
    size_t prefix;
    size_t length;
    header_parser parser;
    if (fread(start, 1, 10, file) != 10) {
        return cli_error(error, TRIA_E_FORMAT, "%s: not an .npy file (shorter than its first 10 bytes)",
                         path);
    }
    if (memcmp(start, magic, sizeof(magic)) != 0) {
        return cli_error(error, TRIA_E_FORMAT, "%s: not an .npy file (wrong bytes at 0)", path);
    }
    if (start[6] < 1 || start[6] > 3 || start[7] != 0) {
        return cli_error(error, TRIA_E_FORMAT, "%s: .npy version %d.%d is not known (1.0, 2.0 and 3.0 are)",
                         path, start[6], start[7]);
    }
    prefix = start[6] == 1 ? 10 : 12;
    if (prefix == 12 && fread(start + 10, 1, 2, file) != 2) {
        return truncated(path, error);
    }
    length = (size_t)start[8] | (size_t)start[9] << 8 | (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (length > NPY_MAX_HEADER) {
        return cli_error(error, TRIA_E_FORMAT, "%s: .npy header of %zu bytes, at most %d are expected",
                         path, length, NPY_MAX_HEADER);
    }
    text = cli_allocate(length + 1, 1);
    if (fread(text, 1, length, file) != length || strlen(text) != length) {
        free(text);
        return truncated(path, error);
    }
    error->code = TRIA_OK;
    parser = (header_parser){text, text, path, error};
    parse_header(&parser, array);
    free(text);
    *data_offset = (int64_t)(prefix + length);
    return error->code;
}

static tria_status read_open(FILE *file, const char *path, npy_array *array, tria_error *error)
{
    struct stat status;
    int64_t data_offset = 0;
    int64_t bytes;
    if (fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) {
        return cli_error(error, TRIA_E_IO, "%s: not a regular file", path);
    }
    if (read_header(file, path, array, &data_offset, error) != TRIA_OK) {
        return error->code;
    }
    if (__builtin_mul_overflow(array->count, (int64_t)array->size, &bytes) ||
        bytes != status.st_size - data_offset) {
        char text[128];
        return cli_error(error, TRIA_E_FORMAT,
                         "%s: %s needs %" PRId64 " bytes of %d per element, but %" PRId64
                         " follow the header",
                         path, npy_describe(array, text, sizeof(text)), array->count, array->size,
                         (int64_t)status.st_size - data_offset);
    }
    array->data = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (array->data == NULL) {
        return cli_error(error, TRIA_E_MEMORY, "%s: no memory for %" PRId64 " bytes", path, bytes);
    }
    if (fread(array->data, 1, (size_t)bytes, file) != (size_t)bytes) {
        return cli_error(error, TRIA_E_IO, "%s: the file became shorter while it was read", path);
    }
    return TRIA_OK;
}

tria_status npy_read(const char *path, npy_array *array, tria_error *error)
{
    FILE *file = fopen(path, "rb");
    tria_status status;
    memset(array, 0, sizeof(*array));
    if (file == NULL) {
        return cli_error(error, TRIA_E_IO, "%s: %s", path, strerror(errno));
    }
    status = read_open(file, path, array, error);
    fclose(file);
    if (status != TRIA_OK) {
        npy_free(array);
    }
    return status;
}

static bool write_array(FILE *file, const npy_array *array)
{
    char text[512];
    unsigned char start[10];
    int length = snprintf(text, sizeof(text), "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                          array->size == 1 ? '|' : '<', array->kind, array->size);
    size_t padded;
    for (int32_t i = 0; i < array->n_dims; i++) {
        /* a tuple of one needs its comma */
        length += snprintf(text + length, sizeof(text) - (size_t)length, "%" PRId64 "%s", array->dims[i],
                           i + 1 < array->n_dims ? ", " : (array->n_dims == 1 ? "," : ""));
    }
    length += snprintf(text + length, sizeof(text) - (size_t)length, "), }");
    /* padded with spaces and a newline so that the data begins at a multiple of 64 */
    padded = ((size_t)length + sizeof(start) + 1 + 63) / 64 * 64 - sizeof(start);
    memcpy(start, magic, sizeof(magic));
    start[6] = 1;
    start[7] = 0;
    start[8] = (unsigned char)(padded & 0xff);
    start[9] = (unsigned char)(padded >> 8);
    return fwrite(start, 1, sizeof(start), file) == sizeof(start) &&
           fprintf(file, "%s%*s\n", text, (int)(padded - (size_t)length - 1), "") >= 0 &&
           fwrite(array->data, (size_t)array->size, (size_t)array->count, file) == (size_t)array->count;
}

tria_status npy_write(const char *path, const npy_array *array, tria_error *error)
{
    struct stat status;
    bool direct = stat(path, &status) == 0 && !S_ISREG(status.st_mode);
    size_t size = strlen(path) + 32;
    char *temporary = cli_allocate(size, 1);
    FILE *file;
    bool ok;
    snprintf(temporary, size, direct ? "%s" : "%s.%ld.tmp", path, (long)getpid());
    file = fopen(temporary, direct ? "wb" : "wbx");
    if (file == NULL) {
        cli_error(error, TRIA_E_IO, "%s: %s", path, strerror(errno));
        free(temporary);
        return error->code;
    }
    ok = write_array(file, array);
    ok = fclose(file) == 0 && ok;
    ok = ok && (direct || rename(temporary, path) == 0);
    if (!ok) {
        cli_error(error, TRIA_E_IO, "%s: %s", path, strerror(errno));
        if (!direct) {
            unlink(temporary);
        }
    }
    free(temporary);
    return ok ? TRIA_OK : error->code;
}

void npy_free(npy_array *array)
{
    free(array->data);
    memset(array, 0, sizeof(*array));
}

npy_array npy_create(char kind, int32_t size, int32_t n_dims, const int64_t *dims)
{
    npy_array array = {.kind = kind, .size = size, .n_dims = n_dims, .count = 1};
    for (int32_t i = 0; i < n_dims; i++) {
        array.dims[i] = dims[i];
        array.count *= dims[i];
    }
    array.data = cli_allocate((size_t)array.count, (size_t)size);
    return array;
}

bool npy_is(const npy_array *array, char kind, int32_t size)
{
    return array->kind == kind && array->size == size;
}

const char *npy_describe(const npy_array *array, char *text, size_t text_size)
{
    int length = snprintf(text, text_size, "%c%d [", array->kind, array->size);
    for (int32_t i = 0; i < array->n_dims && (size_t)length < text_size; i++) {
        length += snprintf(text + length, text_size - (size_t)length, "%s%" PRId64, i > 0 ? ", " : "",
                           array->dims[i]);
    }
    if ((size_t)length < text_size) {
        snprintf(text + length, text_size - (size_t)length, "]");
    }
    return text;
}

static double half_to_double(uint16_t bits)
{
    /* sign 1, exponent 5 (bias 15), mantissa 10 bits */
    uint32_t exponent = (uint32_t)(bits >> 10) & 31;
    uint32_t mantissa = bits & 1023u;
    double value;
    if (exponent == 31) {
        value = mantissa != 0 ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        value = ldexp((double)mantissa, -24);
    } else {
        value = ldexp((double)(mantissa + 1024), (int)exponent - 25);
    }
    return (bits & 0x8000u) != 0 ? -value : value;
}

double npy_number(const npy_array *array, int64_t i)
{
    if (array->size == 8) {
        return ((const double *)array->data)[i];
    }
    if (array->size == 4) {
        return (double)((const float *)array->data)[i];
    }
    return half_to_double(((const uint16_t *)array->data)[i]);
}

/*
 * npy.h - NumPy .npy files: the numbers that go into and come out of the commands.
 *
 * Reads versions 1.0, 2.0 and 3.0, little-endian, C order, of the types f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8;
 * the file's length must be exactly what its header says, which is checked before memory is allocated.
 */
#ifndef TRIA_CLI_NPY_H
#define TRIA_CLI_NPY_H

#include "cli.h"

#define NPY_MAX_DIMS 8

typedef struct npy_array {
    char kind;    /* 'f', 'i' or 'u' */
    int32_t size; /* bytes of an element */
    int32_t n_dims;
    int64_t dims[NPY_MAX_DIMS];
    int64_t count; /* elements: the product of dims */
    void *data;    /* [count], from malloc(); not NULL even when count is 0 */
} npy_array;

/* Errors: IO, FORMAT (what and at which byte), MEMORY; the message begins with the path. */
tria_status npy_read(const char *path, npy_array *array, tria_error *error);
/* Writes version 1.0 through a temporary file beside `path`, so that a failure leaves an old file alone;
 * a path that is no regular file (/dev/stdout, a pipe) is written directly. */
tria_status npy_write(const char *path, const npy_array *array, tria_error *error);
void npy_free(npy_array *array); /* a zeroed array is allowed */

/* A zero-filled array of kind and size with these dims; ends the program when there is no memory. */
npy_array npy_create(char kind, int32_t size, int32_t n_dims, const int64_t *dims);
bool npy_is(const npy_array *array, char kind, int32_t size);
/* "f4 [2, 8, 300]": for messages. */
const char *npy_describe(const npy_array *array, char *text, size_t text_size);
/* Element i of a floating-point array in double; f2, f4 or f8. */
double npy_number(const npy_array *array, int64_t i);

#endif

/* json.h - jansson with our error messages. */
#ifndef TRIA_IMPORT_JSON_H
#define TRIA_IMPORT_JSON_H

#include "import_internal.h"

#include <jansson.h>

/* Parses an object; the caller releases it with json_decref(). flags: JSON_REJECT_DUPLICATES for keys that
 * may not occur twice; else the last counts. */
tria_status import_json_parse(const unsigned char *data, size_t size, size_t flags, json_t **root,
                              tria_error *error);

/*
 * Typed members of an object. An absent or null member leaves *out alone. Errors: FORMAT, names the key.
 * Integers also accept a number without a fraction ("4096.0").
 */
tria_status import_json_integer(const json_t *object, const char *key, int64_t minimum, int64_t maximum,
                                int32_t *out, tria_error *error);
tria_status import_json_number(const json_t *object, const char *key, double *out, tria_error *error);
bool import_json_has(const json_t *object, const char *key); /* there, and not null */
bool import_json_is(const json_t *object, const char *key, const char *text);
/* An array of exactly `count` finite numbers, as float or as double. `what` is for the message. */
tria_status import_json_floats(const json_t *array, int32_t count, const char *what, float *out,
                               tria_error *error);
tria_status import_json_doubles(const json_t *array, int32_t count, const char *what, double *out,
                                tria_error *error);

#endif

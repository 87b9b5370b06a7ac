/* json.c - see json.h. */
#include "json.h"

#include <math.h>
#include <string.h>

tria_status import_json_parse(const unsigned char *data, size_t size, size_t flags, json_t **root,
                              tria_error *error)
{
    json_error_t detail;
    *root = json_loadb((const char *)data, size, flags, &detail);
    if (*root == NULL) {
        return import_fail(error, TRIA_E_FORMAT, "not JSON: line %d: %s", detail.line, detail.text);
    }
    if (!json_is_object(*root)) {
        json_decref(*root);
        return import_fail(error, TRIA_E_FORMAT, "the JSON text is not an object");
    }
    return TRIA_OK;
}

tria_status import_json_integer(const json_t *object, const char *key, int64_t minimum, int64_t maximum,
                                int32_t *out, tria_error *error)
{
    const json_t *value = json_object_get(object, key);
    double number;
    if (value == NULL || json_is_null(value)) {
        return TRIA_OK;
    }
    number = json_number_value(value);
    if (!json_is_number(value) || number != floor(number) || number < (double)minimum ||
        number > (double)maximum) {
        return import_fail(error, TRIA_E_FORMAT, "\"%s\" is not an integer from %lld to %lld", key,
                           (long long)minimum, (long long)maximum);
    }
    *out = (int32_t)number;
    return TRIA_OK;
}

tria_status import_json_number(const json_t *object, const char *key, double *out, tria_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return TRIA_OK;
    }
    if (!json_is_number(value)) {
        return import_fail(error, TRIA_E_FORMAT, "\"%s\" is not a number", key);
    }
    *out = json_number_value(value);
    return TRIA_OK;
}

bool import_json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

bool import_json_is(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL && strcmp(value, text) == 0;
}

static tria_status check_array(const json_t *array, int32_t count, const char *what, tria_error *error)
{
    if (!json_is_array(array) || json_array_size(array) != (size_t)count) {
        return import_fail(error, TRIA_E_FORMAT, "%s is not an array of %d numbers", what, count);
    }
    for (size_t i = 0; i < (size_t)count; i++) {
        if (!json_is_number(json_array_get(array, i))) {
            return import_fail(error, TRIA_E_FORMAT, "%s[%zu] is not a number", what, i);
        }
    }
    return TRIA_OK;
}

tria_status import_json_floats(const json_t *array, int32_t count, const char *what, float *out,
                               tria_error *error)
{
    IMPORT_TRY(check_array(array, count, what, error));
    for (size_t i = 0; i < (size_t)count; i++) {
        out[i] = (float)json_number_value(json_array_get(array, i));
    }
    return TRIA_OK;
}

tria_status import_json_doubles(const json_t *array, int32_t count, const char *what, double *out,
                                tria_error *error)
{
    IMPORT_TRY(check_array(array, count, what, error));
    for (size_t i = 0; i < (size_t)count; i++) {
        out[i] = json_number_value(json_array_get(array, i));
    }
    return TRIA_OK;
}

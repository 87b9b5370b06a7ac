/* json.h - writing one JSON object; reading is the import library's. */
#ifndef TRIA_CLI_JSON_H
#define TRIA_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json_writer {
    FILE *file;
    bool comma; /* a value stands before the next one */
} json_writer;

/* `key` is NULL inside arrays and for the outermost value. `bracket` is '{' or '['. */
void json_open(json_writer *writer, const char *key, char bracket);
void json_close(json_writer *writer, char bracket); /* '}' or ']' */
void json_text(json_writer *writer, const char *key, const char *text);
void json_integer(json_writer *writer, const char *key, int64_t value);
void json_number(json_writer *writer, const char *key, double value); /* null when not finite */
void json_boolean(json_writer *writer, const char *key, bool value);
void json_null(json_writer *writer, const char *key);

#endif

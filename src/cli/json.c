/* json.c - see json.h. */
#include "json.h"

#include <inttypes.h>
#include <math.h>

static void write_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            fputc('\\', file);
            fputc(*c, file);
        } else if ((unsigned char)*c < 0x20) {
            fprintf(file, "\\u%04x", (unsigned)(unsigned char)*c);
        } else {
            fputc(*c, file);
        }
    }
    fputc('"', file);
}

static void begin_value(json_writer *writer, const char *key)
{
    if (writer->comma) {
        fputs(", ", writer->file);
    }
    writer->comma = true;
    if (key != NULL) {
        write_text(writer->file, key);
        fputs(": ", writer->file);
    }
}

void json_open(json_writer *writer, const char *key, char bracket)
{
    begin_value(writer, key);
    fputc(bracket, writer->file);
    writer->comma = false;
}

void json_close(json_writer *writer, char bracket)
{
    fputc(bracket, writer->file);
    writer->comma = true;
}

void json_text(json_writer *writer, const char *key, const char *text)
{
    begin_value(writer, key);
    write_text(writer->file, text);
}

void json_integer(json_writer *writer, const char *key, int64_t value)
{
    begin_value(writer, key);
    fprintf(writer->file, "%" PRId64, value);
}

void json_number(json_writer *writer, const char *key, double value)
{
    if (!isfinite(value)) {
        json_null(writer, key);
        return;
    }
    begin_value(writer, key);
    fprintf(writer->file, "%.17g", value);
}

void json_boolean(json_writer *writer, const char *key, bool value)
{
    begin_value(writer, key);
    fputs(value ? "true" : "false", writer->file);
}

void json_null(json_writer *writer, const char *key)
{
    begin_value(writer, key);
    fputs("null", writer->file);
}

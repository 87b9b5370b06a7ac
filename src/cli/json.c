/* json.c - see json.h. */
#include "json.h"

#include <inttypes.h>
#include <math.h>

/* Bytes of the UTF-8 character at `text`, 0 when there is none. Overlong forms and surrogates do no harm to
 * JSON. */
static size_t utf8_length(const char *text)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = bytes[0] < 0x80   ? 1
                    : bytes[0] < 0xc2 ? 0
                    : bytes[0] < 0xe0 ? 2
                    : bytes[0] < 0xf0 ? 3
                    : bytes[0] < 0xf5 ? 4
                                      : 0;
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

/* Names from files may hold anything: what is no UTF-8 becomes '?'. */
static void write_text(FILE *file, const char *text)
{
    fputc('"', file);
    while (*text != '\0') {
        size_t length = utf8_length(text);
        if (length == 0) {
            fputc('?', file);
            length = 1;
        } else if ((unsigned char)*text < 0x20) {
            fprintf(file, "\\u%04x", (unsigned)(unsigned char)*text);
        } else {
            if (*text == '"' || *text == '\\') {
                fputc('\\', file);
            }
            fwrite(text, 1, length, file);
        }
        text += length;
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

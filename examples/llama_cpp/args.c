/* args.c - parses the options of the example programs. */
#include "args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *program = "tria-llama";

_Noreturn void die(int code, const char *format, ...)
{
    fflush(stdout);
    fprintf(stderr, "%s: error: ", program);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(code);
}

static void print_default(const arg *a)
{
    switch (a->kind) {
    case ARG_TEXT: {
        const char *text = *(const char *const *)a->value;
        if (text != NULL) {
            printf(" [%s]", text);
        }
        break;
    }
    case ARG_INT:
        printf(" [%" PRId32 "]", *(const int32_t *)a->value);
        break;
    case ARG_SEED:
        printf(" [%" PRIu64 "]", *(const uint64_t *)a->value);
        break;
    case ARG_NUMBER:
        printf(" [%g]", *(const double *)a->value);
        break;
    case ARG_FLAG:
        break;
    }
    putchar('\n');
}

static void print_help(const char *about, const arg *table)
{
    printf("%s - %s\n\n", program, about);
    for (const arg *a = table; a->name != NULL; a++) {
        printf("  %-16s %s", a->name, a->help);
        print_default(a);
    }
}

static void store(const arg *a, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (a->kind) {
    case ARG_TEXT:
        *(const char **)a->value = text;
        return;
    case ARG_INT: {
        const long long value = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || value < a->least || value > INT32_MAX) {
            die(EXIT_USAGE, "%s %s: expected a whole number from %d on", a->name, text, a->least);
        }
        *(int32_t *)a->value = (int32_t)value;
        return;
    }
    case ARG_SEED: {
        const unsigned long long value = strtoull(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || *text == '-') {
            die(EXIT_USAGE, "%s %s: expected a whole number", a->name, text);
        }
        *(uint64_t *)a->value = value;
        return;
    }
    case ARG_NUMBER: {
        const double value = strtod(text, &end);
        if (end == text || *end != '\0' || errno != 0 || !(value >= 0)) {
            die(EXIT_USAGE, "%s %s: expected a number that is not negative", a->name, text);
        }
        *(double *)a->value = value;
        return;
    }
    case ARG_FLAG:
        return;
    }
}

void args_parse(int argc, char **argv, const char *about, const arg *table)
{
    const char *slash = strrchr(argv[0], '/');
    program = slash != NULL ? slash + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(about, table);
            exit(0);
        }
        const arg *a = table;
        while (a->name != NULL && strcmp(a->name, argv[i]) != 0) {
            a++;
        }
        if (a->name == NULL) {
            die(EXIT_USAGE, "unknown option '%s', see --help", argv[i]);
        }
        if (a->kind == ARG_FLAG) {
            *(bool *)a->value = true;
        } else if (i + 1 == argc) {
            die(EXIT_USAGE, "%s needs a value", a->name);
        } else {
            store(a, argv[++i]);
        }
    }
}

/* cli.c - diagnostics and progress of the commands. */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void print_line(const char *format, va_list args)
{
    char line[2048];
    vsnprintf(line, sizeof(line), format, args);
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    fprintf(stderr, "tria: %s\n", line);
}

void cli_message(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
}

int cli_bad_input(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    return CLI_BAD_INPUT;
}

int cli_bad_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    return CLI_BAD_USAGE;
}

int cli_library_error(const char *what, const tria_error *error)
{
    if (what == NULL || strncmp(error->message, what, strlen(what)) == 0) {
        cli_message("%s", error->message);
    } else {
        cli_message("%s: %s", what, error->message);
    }
    return error->code == TRIA_E_BACKEND || error->code == TRIA_E_DEVICE ? CLI_NO_BACKEND : CLI_BAD_INPUT;
}

tria_status cli_error(tria_error *error, tria_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error->code = code;
    vsnprintf(error->message, sizeof(error->message), format, args);
    va_end(args);
    return code;
}

void *cli_allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (memory == NULL) {
        cli_message("no memory for %zu times %zu bytes", count, size);
        exit(CLI_BAD_INPUT);
    }
    return memory;
}

void cli_progress(const char *label, uint64_t done, uint64_t total)
{
    static struct timespec last; /* of this process's one terminal line */
    struct timespec now;
    double elapsed;
    if (!isatty(STDERR_FILENO) || total == 0) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    elapsed = (double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec);
    if (done < total && elapsed < 0.2) {
        return;
    }
    last = now;
    fprintf(stderr, "\r%s: %3.0f %%%s", label, 100.0 * (double)done / (double)total,
            done >= total ? "\n" : "");
    fflush(stderr);
}

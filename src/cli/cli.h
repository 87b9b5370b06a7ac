/*
 * cli.h - what every command of `tria` shares: exit codes, diagnostics, progress.
 *
 * A command is a function `int cli_NAME(int argc, char **argv)`, argv[0] being its name. It parses its
 * options with cli_parse(), prints diagnostics with the functions below and returns an exit code.
 */
#ifndef TRIA_CLI_H
#define TRIA_CLI_H

#include "tria/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CLI_OK = 0,
    CLI_BAD_INPUT = 1,  /* a file, or settings that can never work with it */
    CLI_BAD_USAGE = 2,  /* the command line */
    CLI_NO_BACKEND = 3, /* the backend or device is missing */
    CLI_CONTINUE = -1   /* not an exit code: go on */
};

int cli_inspect(int argc, char **argv);
int cli_convert(int argc, char **argv);
int cli_calibrate(int argc, char **argv);
int cli_score(int argc, char **argv);
int cli_select(int argc, char **argv);
int cli_compact(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_backends(int argc, char **argv);
int cli_replay(int argc, char **argv);

/* "tria: " and one line on stderr; control characters of what is printed (file names, texts of files)
 * become '?', so that a diagnostic stays one line. */
void cli_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same; returns CLI_BAD_INPUT or CLI_BAD_USAGE, so that failing is one statement. */
int cli_bad_input(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_bad_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports an error of the library: the exit code that goes with its status. `what` (the file) is put
 * before the message unless it is NULL or the message already begins with it. */
int cli_library_error(const char *what, const tria_error *error);

/* Fills *error and returns `code`: for helpers that report the way the library does. */
tria_status cli_error(tria_error *error, tria_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* calloc() of count * size bytes; ends the program with a diagnostic when there is no memory. */
void *cli_allocate(size_t count, size_t size);

/* "label: 42 %" on one line of stderr, at most a few times per second, only on a terminal. Call with
 * done == total to finish the line. */
void cli_progress(const char *label, uint64_t done, uint64_t total);

#endif

/* args.h - command lines: a table of options, and one clear line for every mistake. */
#ifndef EXAMPLE_ARGS_H
#define EXAMPLE_ARGS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum arg_kind {
    ARG_TEXT,   /* const char * */
    ARG_INT,    /* int32_t, at least `least` */
    ARG_SEED,   /* uint64_t */
    ARG_NUMBER, /* double */
    ARG_FLAG    /* bool, takes no value */
} arg_kind;

typedef struct arg {
    const char *name; /* "--budget" */
    arg_kind kind;
    void *value;
    int32_t least;
    const char *help;
} arg;

/* Exit codes of the programs. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Fills in what the options of the table, which ends with a NULL name, say. Ends the program for --help
 * (0) and for mistakes (EXIT_USAGE). */
void args_parse(int argc, char **argv, const char *about, const arg *table);

/* Prints "PROGRAM: error: MESSAGE" to stderr and ends the program. */
_Noreturn void die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

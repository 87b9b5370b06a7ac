/*
 * options.h - GNU-style long options from a table: --name value, --name=value, "--" ends them.
 *
 *     int64_t budget = 0;
 *     const char *output = NULL;
 *     bool json = false;
 *     const cli_option options[] = {
 *         CLI_INTEGER("budget", "ROWS", &budget, 1, INT32_MAX, "rows kept"),
 *         CLI_TEXT("output", "FILE", &output, "where the keep set goes"),
 *         CLI_FLAG("json", &json, "print a report as JSON"),
 *     };
 *     const cli_syntax syntax = {"select", "", "what it does", options, CLI_COUNT(options), 0, 0};
 *     int code = cli_parse(&syntax, argc, argv, NULL);
 *     if (code != CLI_CONTINUE) {
 *         return code;
 *     }
 *
 * Targets keep their value when the option is absent; the last one given wins, lists grow.
 * --help and --version are known to every command.
 */
#ifndef TRIA_CLI_OPTIONS_H
#define TRIA_CLI_OPTIONS_H

#include "cli.h"

typedef enum cli_option_kind {
    CLI_KIND_FLAG,    /* bool */
    CLI_KIND_TEXT,    /* const char *, into argv */
    CLI_KIND_INTEGER, /* int64_t in [minimum, maximum] */
    CLI_KIND_NUMBER,  /* double, finite */
    CLI_KIND_CHOICE,  /* int32_t: index in "first|second|..." */
    CLI_KIND_LIST     /* cli_list: all values up to the next option, commas split them */
} cli_option_kind;

/* Pieces of argv, which is cut at the commas. */
typedef struct cli_list {
    const char **items;
    size_t count;
} cli_list;
void cli_list_free(cli_list *list);

typedef struct cli_option {
    const char *name;
    const char *value; /* how --help calls the value; of a choice: "first|second|..." */
    cli_option_kind kind;
    void *target;
    int64_t minimum;
    int64_t maximum;
    const char *help;
} cli_option;

#define CLI_FLAG(name, target, help)                                                                       \
    {                                                                                                      \
        name, NULL, CLI_KIND_FLAG, target, 0, 0, help                                                      \
    }
#define CLI_TEXT(name, value, target, help)                                                                \
    {                                                                                                      \
        name, value, CLI_KIND_TEXT, target, 0, 0, help                                                     \
    }
#define CLI_INTEGER(name, value, target, minimum, maximum, help)                                           \
    {                                                                                                      \
        name, value, CLI_KIND_INTEGER, target, minimum, maximum, help                                      \
    }
#define CLI_NUMBER(name, value, target, help)                                                              \
    {                                                                                                      \
        name, value, CLI_KIND_NUMBER, target, 0, 0, help                                                   \
    }
#define CLI_CHOICE(name, choices, target, help)                                                            \
    {                                                                                                      \
        name, choices, CLI_KIND_CHOICE, target, 0, 0, help                                                 \
    }
#define CLI_LIST(name, value, target, help)                                                                \
    {                                                                                                      \
        name, value, CLI_KIND_LIST, target, 0, 0, help                                                     \
    }
#define CLI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct cli_syntax {
    const char *command;
    const char *arguments; /* as in "FILE" or "IN OUT"; "" = none */
    const char *summary;
    const cli_option *options;
    size_t n_options;
    size_t min_arguments;
    size_t max_arguments;
} cli_syntax;

/* Arguments that are no options go to arguments[max_arguments] (NULL when there are none), missing ones
 * as NULL. Returns CLI_CONTINUE, or the exit code when --help or --version was answered or the line is
 * wrong. */
int cli_parse(const cli_syntax *syntax, int argc, char **argv, const char **arguments);

#endif

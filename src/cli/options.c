/* options.c - the option parser, see options.h. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const cli_syntax *syntax)
{
    printf("Usage: tria %s [OPTION]...%s%s\n%s\n\n", syntax->command, syntax->arguments[0] ? " " : "",
           syntax->arguments, syntax->summary);
    for (size_t i = 0; i < syntax->n_options; i++) {
        const cli_option *option = &syntax->options[i];
        char left[128];
        snprintf(left, sizeof(left), "--%s%s%s", option->name, option->value != NULL ? " " : "",
                 option->value != NULL ? option->value : "");
        if (strlen(left) <= 28) {
            printf("  %-28s  %s\n", left, option->help);
        } else {
            printf("  %s\n  %-28s  %s\n", left, "", option->help);
        }
    }
    printf("  %-28s  %s\n  %-28s  %s\n", "--help", "print this", "--version", "print the version");
}

static void list_append(cli_list *list, char *text)
{
    for (;;) {
        char *comma = strchr(text, ',');
        const char **items = realloc(list->items, (list->count + 1) * sizeof(*items));
        if (items == NULL) {
            cli_message("no memory");
            exit(CLI_BAD_INPUT);
        }
        list->items = items;
        list->items[list->count++] = text;
        if (comma == NULL) {
            return;
        }
        *comma = '\0';
        text = comma + 1;
    }
}

void cli_list_free(cli_list *list)
{
    free(list->items);
    list->items = NULL;
    list->count = 0;
}

/* Index of `text` in "first|second|...", or -1. */
static int32_t find_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    int32_t index = 0;
    for (const char *at = choices;; index++) {
        size_t size = strcspn(at, "|");
        if (size == length && memcmp(at, text, size) == 0) {
            return index;
        }
        if (at[size] == '\0') {
            return -1;
        }
        at += size + 1;
    }
}

static int store(const cli_syntax *syntax, const cli_option *option, char *text)
{
    char *end = NULL;
    errno = 0;
    switch (option->kind) {
    case CLI_KIND_FLAG:
        *(bool *)option->target = true;
        return CLI_CONTINUE;
    case CLI_KIND_TEXT:
        *(const char **)option->target = text;
        return CLI_CONTINUE;
    case CLI_KIND_INTEGER: {
        long long value = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || errno == ERANGE || value < option->minimum ||
            value > option->maximum) {
            return cli_bad_usage("%s: --%s %s: expected a whole number from %" PRId64 " to %" PRId64,
                                 syntax->command, option->name, text, option->minimum, option->maximum);
        }
        *(int64_t *)option->target = value;
        return CLI_CONTINUE;
    }
    case CLI_KIND_NUMBER: {
        double value = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(value)) {
            return cli_bad_usage("%s: --%s %s: expected a number", syntax->command, option->name, text);
        }
        *(double *)option->target = value;
        return CLI_CONTINUE;
    }
    case CLI_KIND_CHOICE: {
        int32_t index = find_choice(option->value, text);
        if (index < 0) {
            return cli_bad_usage("%s: --%s %s: expected one of %s", syntax->command, option->name, text,
                                 option->value);
        }
        *(int32_t *)option->target = index;
        return CLI_CONTINUE;
    }
    case CLI_KIND_LIST:
        list_append(option->target, text);
        return CLI_CONTINUE;
    }
    return CLI_CONTINUE;
}

static const cli_option *find_option(const cli_syntax *syntax, const char *name, size_t length)
{
    for (size_t i = 0; i < syntax->n_options; i++) {
        const char *candidate = syntax->options[i].name;
        if (strlen(candidate) == length && memcmp(candidate, name, length) == 0) {
            return &syntax->options[i];
        }
    }
    return NULL;
}

/* One option at argv[*index]; moves *index past its values. */
static int parse_option(const cli_syntax *syntax, int argc, char **argv, int *index)
{
    const char *name = argv[(*index)++] + 2;
    char *value = strchr(name, '=');
    size_t length = value != NULL ? (size_t)(value - name) : strlen(name);
    const cli_option *option = find_option(syntax, name, length);
    int code;
    if (option == NULL) {
        return cli_bad_usage("%s: unknown option --%.*s (see tria %s --help)", syntax->command, (int)length,
                             name, syntax->command);
    }
    if (option->kind == CLI_KIND_FLAG) {
        if (value != NULL) {
            return cli_bad_usage("%s: --%s takes no value", syntax->command, option->name);
        }
        return store(syntax, option, NULL);
    }
    if (value != NULL) {
        value++;
    } else if (*index < argc) {
        value = argv[(*index)++];
    }
    if (value == NULL || value[0] == '\0') {
        return cli_bad_usage("%s: --%s needs a value", syntax->command, option->name);
    }
    code = store(syntax, option, value);
    while (code == CLI_CONTINUE && option->kind == CLI_KIND_LIST && *index < argc &&
           strncmp(argv[*index], "--", 2) != 0) {
        code = store(syntax, option, argv[(*index)++]);
    }
    return code;
}

int cli_parse(const cli_syntax *syntax, int argc, char **argv, const char **arguments)
{
    size_t n_arguments = 0;
    bool options_end = false;
    for (size_t i = 0; i < syntax->max_arguments; i++) {
        arguments[i] = NULL;
    }
    for (int index = 1; index < argc;) {
        if (!options_end && strcmp(argv[index], "--help") == 0) {
            print_help(syntax);
            return CLI_OK;
        }
        if (!options_end && strcmp(argv[index], "--version") == 0) {
            printf("tria %s\n", tria_version_string());
            return CLI_OK;
        }
        if (!options_end && strcmp(argv[index], "--") == 0) {
            options_end = true;
            index++;
        } else if (!options_end && strncmp(argv[index], "--", 2) == 0) {
            int code = parse_option(syntax, argc, argv, &index);
            if (code != CLI_CONTINUE) {
                return code;
            }
        } else if (n_arguments < syntax->max_arguments) {
            arguments[n_arguments++] = argv[index++];
        } else {
            return cli_bad_usage("%s: unexpected argument %s", syntax->command, argv[index]);
        }
    }
    if (n_arguments < syntax->min_arguments) {
        return cli_bad_usage("%s: expected %s (see tria %s --help)", syntax->command, syntax->arguments,
                             syntax->command);
    }
    return CLI_CONTINUE;
}

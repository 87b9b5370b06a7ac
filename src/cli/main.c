/* main.c - the command `tria`: finds the command asked for. */
#include "cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"inspect", cli_inspect, "what a calibration file holds, and whether it fits a model"},
    {"convert", cli_convert, "from one calibration format to another"},
    {"calibrate", cli_calibrate, "a calibration from query vectors"},
    {"score", cli_score, "the score of every cached key"},
    {"select", cli_select, "which rows to keep"},
    {"compact", cli_compact, "keys and values with only the kept rows"},
    {"bench", cli_bench, "how fast scoring, selecting and compacting are here"},
    {"backends", cli_backends, "which backends and devices there are, or why not"},
    {"replay", cli_replay, "recomputes a recorded trace of compactions"},
};
static const size_t n_commands = sizeof(commands) / sizeof(commands[0]);

static void print_help(void)
{
    printf("Usage: tria COMMAND [OPTION]...\nTriAttention KV-cache eviction on .npy arrays.\n\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("  %-10s  %s\n", commands[i].name, commands[i].summary);
    }
    printf("\ntria COMMAND --help lists a command's options; tria --version prints the version.\n"
           "Exit codes: 0 done, 1 the input is bad, 2 the command line is bad, 3 no such backend or "
           "device.\n");
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        return cli_bad_usage("which command? (see tria --help)");
    }
    if (strcmp(argv[1], "--help") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tria %s\n", tria_version_string());
        return CLI_OK;
    }
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return cli_bad_usage("unknown command %s (see tria --help)", argv[1]);
}

int main(int argc, char **argv)
{
    int code;
    /* A reader that went away is a failed write with a diagnostic, not a silent end. */
    signal(SIGPIPE, SIG_IGN);
    code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_message("standard output: write failed");
        return code == CLI_OK ? CLI_BAD_INPUT : code;
    }
    return code;
}

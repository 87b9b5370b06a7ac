/*
 * test_golden.c - the command lines of the golden cases, run as they stand: every cli.NAME must succeed and
 * write what expect.NAME says, every cli_fails.NAME must end with its exit code, one line on stderr and no
 * output. Raw scores are also checked in double with --backend reference.
 *
 * Usage: test_cli_golden TRIA OUTPUT_FOLDER with-import|without-import
 * Without the import library, lines that read JSON are left out.
 */
#include "cases.h"
#include "golden.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

static const char *tria_path;
static char output_folder[512];
static bool with_import;

/* Replaces {d} and {o} and cuts the line at its blanks. */
static void make_arguments(const char *line, const char *folder, char *buffer, size_t size,
                           char **arguments, size_t max)
{
    size_t length = 0;
    size_t n = 0;
    char *save = NULL;
    for (const char *c = line; *c != '\0';) {
        const char *text = strncmp(c, "{d}", 3) == 0   ? folder
                           : strncmp(c, "{o}", 3) == 0 ? output_folder
                                                       : NULL;
        if (text != NULL) {
            length += (size_t)snprintf(buffer + length, size - length, "%s", text);
            c += 3;
        } else {
            buffer[length++] = *c++;
        }
        if (length + 1 >= size) {
            golden_die("%s: a command line is too long", folder);
        }
    }
    buffer[length] = '\0';
    arguments[n++] = (char *)(uintptr_t)tria_path;
    for (char *word = strtok_r(buffer, " ", &save); word != NULL && n + 3 < max;
         word = strtok_r(NULL, " ", &save)) {
        arguments[n++] = word;
    }
    arguments[n] = NULL;
}

/* Runs the command with stderr in a file of the output folder; returns its exit code, -1 for a crash. */
static int run_command(char **arguments)
{
    posix_spawn_file_actions_t actions;
    char log[600];
    pid_t pid;
    int status = -1;
    snprintf(log, sizeof(log), "%s/stderr", output_folder);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (posix_spawn(&pid, tria_path, &actions, NULL, arguments, environ) != 0 ||
        waitpid(pid, &status, 0) != pid) {
        golden_die("%s cannot be run", tria_path);
    }
    posix_spawn_file_actions_destroy(&actions);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int64_t count_lines_of_log(bool print)
{
    char log[600];
    FILE *file;
    int64_t n = 0;
    int c;
    snprintf(log, sizeof(log), "%s/stderr", output_folder);
    file = fopen(log, "rb");
    while (file != NULL && (c = fgetc(file)) != EOF) {
        n += c == '\n';
        if (print) {
            fputc(c, stderr);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return n;
}

static npy_array read_output(const char *name)
{
    char path[700];
    npy_array array;
    tria_error error;
    snprintf(path, sizeof(path), "%s/%s", output_folder, name);
    if (npy_read(path, &array, &error) != TRIA_OK) {
        golden_die("%s", error.message);
    }
    return array;
}

/* "dir/name.npy" without the ending, for golden_array(). */
static npy_array read_expected(const golden_case *gc, const char *file)
{
    return golden_array(gc, "%.*s", (int)(strlen(file) - strlen(".npy")), file);
}

static bool same_shape(const npy_array *a, const npy_array *b)
{
    return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof(a->dims[0])) == 0;
}

static int64_t compare_bytes(const char *what, const npy_array *expected, const npy_array *got)
{
    char a[128];
    char b[128];
    if (expected->size != got->size || !same_shape(expected, got)) {
        fprintf(stderr, "%s: %s, expected %s\n", what, npy_describe(got, a, sizeof(a)),
                npy_describe(expected, b, sizeof(b)));
        return 1;
    }
    if (memcmp(expected->data, got->data, (size_t)(expected->count * expected->size)) != 0) {
        fprintf(stderr, "%s: other contents than expected\n", what);
        return 1;
    }
    return 0;
}

/* Rows up to each set's count; what follows is unspecified. `rows` is padded with 0, `got_rows` with -1. */
static int64_t compare_kept_rows(const char *what, const npy_array *expected, const npy_array *got,
                                 const npy_array *got_rows)
{
    size_t row = (size_t)(expected->size * (expected->n_dims == 4 ? expected->dims[3] : 1));
    if (expected->size != got->size || expected->count != got->count) {
        fprintf(stderr, "%s: another size than expected\n", what);
        return 1;
    }
    for (int64_t i = 0; i < got_rows->count; i++) {
        if (((const int32_t *)got_rows->data)[i] >= 0 &&
            memcmp((const char *)expected->data + (size_t)i * row,
                   (const char *)got->data + (size_t)i * row, row) != 0) {
            fprintf(stderr, "%s: row %lld differs\n", what, (long long)i);
            return 1;
        }
    }
    return 0;
}

/* WHAT of a compact line: four files, keys, values, rows and moves, of which the outputs bear the names. */
static int64_t compare_compact(const golden_case *gc, const char *name, char *files)
{
    static const char *const parts[] = {"K", "V", "rows", "moves"};
    npy_array expected[4];
    npy_array got[4];
    char *save = NULL;
    int64_t n_wrong = 0;
    for (size_t i = 0; i < 4; i++) {
        char *file = strtok_r(i == 0 ? files : NULL, " ", &save);
        expected[i] = read_expected(gc, file);
        got[i] = read_output(file);
    }
    for (size_t i = 0; i < 4; i++) {
        char what[700];
        snprintf(what, sizeof(what), "%s %s %s", gc->folder, name, parts[i]);
        n_wrong += i < 3 ? compare_kept_rows(what, &expected[i], &got[i], &got[2])
                         : compare_bytes(what, &expected[i], &got[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        npy_free(&expected[i]);
        npy_free(&got[i]);
    }
    return n_wrong;
}

static int64_t compare_numbers(const golden_case *gc, const char *name, const char *file, const char *kind,
                               bool is_double)
{
    char what[700];
    char output[128];
    npy_array expected = read_expected(gc, file);
    npy_array got;
    double tolerance = 1e-4;
    int64_t n_wrong;
    snprintf(output, sizeof(output), "%s.npy", name);
    got = read_output(output);
    snprintf(what, sizeof(what), "%s %s%s", gc->folder, name, is_double ? " in double" : "");
    if (strcmp(kind, "raw") == 0) {
        /* int8 rows rounded to f4 are scored, not what the expected scores stand for */
        tolerance =
            (is_double ? golden_has(gc, "K_int8") ? 1e-7 : 1e-11 : 2e-6) * golden_abs_max(&expected);
    }
    if (strcmp(kind, "keep") == 0) {
        n_wrong = compare_bytes(what, &expected, &got);
    } else if (got.size != (is_double ? 8 : 4) || !same_shape(&expected, &got)) {
        char text[128];
        fprintf(stderr, "%s: %s\n", what, npy_describe(&got, text, sizeof(text)));
        n_wrong = 1;
    } else {
        n_wrong = golden_compare(what, &expected, &got, tolerance);
    }
    npy_free(&expected);
    npy_free(&got);
    return n_wrong;
}

static int64_t run_line(const golden_case *gc, const char *name, const char *line, const char *expect,
                        bool is_double)
{
    char buffer[4096];
    char *arguments[64];
    char files[512];
    char *kind;
    size_t n = 0;
    int code;
    make_arguments(line, gc->folder, buffer, sizeof(buffer), arguments, 64);
    if (is_double) {
        while (arguments[n] != NULL) {
            n++;
        }
        arguments[n++] = (char *)(uintptr_t) "--backend";
        arguments[n++] = (char *)(uintptr_t) "reference";
        arguments[n] = NULL;
    }
    code = run_command(arguments);
    if (code != 0) {
        fprintf(stderr, "%s cli.%s: exit code %d: ", gc->folder, name, code);
        count_lines_of_log(true);
        return 1;
    }
    snprintf(files, sizeof(files), "%s", expect);
    kind = strrchr(files, ' ');
    *kind++ = '\0';
    return strcmp(kind, "compact") == 0 ? compare_compact(gc, name, files)
                                        : compare_numbers(gc, name, files, kind, is_double);
}

/* CODE COMMAND: the exit code, one line of explanation, no output file. */
static int64_t run_failing(const golden_case *gc, const char *name, const char *value)
{
    char buffer[4096];
    char output[700];
    char *arguments[64];
    const char *line = strchr(value, ' ') + 1;
    int code;
    snprintf(output, sizeof(output), "%s/%s.npy", output_folder, name);
    unlink(output);
    make_arguments(line, gc->folder, buffer, sizeof(buffer), arguments, 64);
    code = run_command(arguments);
    if ((strncmp(value, "nonzero ", 8) == 0 ? code <= 0 : code != atoi(value)) ||
        count_lines_of_log(false) != 1 || access(output, F_OK) == 0) {
        fprintf(stderr, "%s cli_fails.%s: exit code %d, expected %.8s, one line and no file: ", gc->folder,
                name, code, value);
        count_lines_of_log(true);
        return 1;
    }
    return 0;
}

static void test_case(void **state)
{
    char folder[700];
    golden_case gc;
    int64_t n_wrong = 0;
    int32_t n_lines = 0;
    snprintf(folder, sizeof(folder), "%s/%s", TRIA_TEST_DATA, (const char *)*state);
    golden_open(&gc, folder);
    for (size_t i = 0; i < gc.n_lines; i++) {
        if (!with_import && strstr(gc.values[i], ".json") != NULL) {
            print_message("left out, it reads JSON: %s\n", gc.keys[i]);
            continue;
        }
        if (strncmp(gc.keys[i], "cli.", 4) == 0) {
            const char *name = gc.keys[i] + 4;
            char key[160];
            const char *expect;
            snprintf(key, sizeof(key), "expect.%s", name);
            expect = golden_text(&gc, key);
            if (expect == NULL) {
                golden_die("%s: %s is missing", folder, key);
            }
            n_wrong += run_line(&gc, name, gc.values[i], expect, false);
            if (strcmp(strrchr(expect, ' ') + 1, "raw") == 0) {
                n_wrong += run_line(&gc, name, gc.values[i], expect, true);
            }
            n_lines++;
        } else if (strncmp(gc.keys[i], "cli_fails.", 10) == 0) {
            n_wrong += run_failing(&gc, gc.keys[i] + 10, gc.values[i]);
            n_lines++;
        }
    }
    golden_close(&gc);
    print_message("%d command lines\n", n_lines);
    assert_int_equal(n_wrong, 0);
}

#define CASE(folder) {folder, test_case, NULL, NULL, (void *)(uintptr_t)folder},

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GOLDEN_CASES(CASE) CASE("golden_spec/compact_f16")
                                           CASE("golden_spec/compact_q8_0")};
    if (argc != 4) {
        golden_die("usage: test_cli_golden TRIA OUTPUT_FOLDER with-import|without-import");
    }
    with_import = strcmp(argv[3], "with-import") == 0;
    tria_path = argv[1];
    snprintf(output_folder, sizeof(output_folder), "%s", argv[2]);
    mkdir(output_folder, 0755);
    return cmocka_run_group_tests_name("cli-golden", tests, NULL, NULL);
}

/* test_replay_cli.c - `tria replay` on traces that are made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/engine.h"
#include "tria/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];
static char output[1 << 14];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/tria-replay-%ld", (long)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    remove(path);
    return 0;
}

/* Runs the command on the trace; both outputs end up in `output`. Returns the exit code. */
static int replay(const char *arguments)
{
    char line[512];
    snprintf(line, sizeof(line), "%s replay %s %s 2>&1", TRIA_CLI, path, arguments);
    FILE *pipe = popen(line, "r"); /* NOLINT(cert-env33-c): our own command */
    assert_non_null(pipe);
    const size_t n = fread(output, 1, sizeof(output) - 1, pipe);
    output[n] = '\0';
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *text)
{
    if (strstr(output, text) == NULL) {
        fail_msg("no \"%s\" in:\n%s", text, output);
    }
}

static void record(int32_t dump, int32_t n_tokens)
{
    static const engine_shape shape = {2, 4, 2, 16, TRIA_DTYPE_F16};
    tria_trace_params trace_params = TRIA_TRACE_PARAMS_INIT;
    tria_policy_params params;
    tria_trace *trace;
    engine e;
    tria_policy_params_init(&params);
    params.budget = 24;
    params.interval = 8;
    params.n_recent = 6;
    params.n_sink = 2;
    params.capacity = 48;
    trace_params.path = path;
    trace_params.content = TRIA_TRACE_CACHE;
    trace_params.dump = dump;
    assert_int_equal(tria_trace_create(&trace_params, NULL, &trace, NULL), TRIA_OK);
    engine_open(&e, &shape, &params, NULL, NULL);
    assert_int_equal(tria_sequence_set_trace(e.sequence, trace, NULL), TRIA_OK);
    engine_decode(&e, n_tokens);
    tria_trace_close(trace, NULL);
    engine_close(&e);
}

static void test_text(void **state)
{
    (void)state;
    record(0, 48);
    assert_int_equal(replay(""), 0);
    expect("3 compactions, 3 recomputed on cpu; 48 rows evicted");
    expect("set 1 (layer 0, KV head 1): 3 of 3 exact, Jaccard mean 1.000000 min 1.000000");
    expect("caches afterwards: 3 of 3 identical");
    expect("all 6 keep sets are identical");
}

static void test_json_on_the_reference(void **state)
{
    (void)state;
    record(0, 48);
    assert_int_equal(replay("--backend reference --json"), 0);
    expect("\"backend\": \"reference\"");
    expect("\"sets\": 6");
    expect("\"exact\": 6");
    expect("\"first_difference\": null");
}

static void test_warnings(void **state)
{
    (void)state;
    record(7, 48);
    assert_int_equal(replay(""), 0);
    expect("compaction 7 was to be dumped and never came");
    expect("nothing was ever evicted");
}

static void test_bad_input(void **state)
{
    (void)state;
    record(0, 48);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(replay(""), 1);
    expect("the file ends within it");
    FILE *file = fopen(path, "w");
    fputs("not a trace", file);
    fclose(file);
    assert_int_equal(replay(""), 1);
    expect("not a trace file");
    remove(path);
    assert_int_equal(replay(""), 1);
    assert_int_equal(replay("--nonsense"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json_on_the_reference),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}

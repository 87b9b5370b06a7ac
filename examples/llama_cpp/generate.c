/*
 * tria-llama-generate - chats with, or lets a GGUF model continue a text, far past the KV cells it has.
 *
 * What the model writes goes to standard output; a line per eviction and the closing summary go to
 * standard error. Without --prompt it reads one turn per line from standard input. With --teacher it
 * chooses nothing itself: it feeds the tokens of a run that --record wrote down. Ctrl-C ends a turn, a
 * second one the program.
 */
#include "args.h"
#include "engine.h"
#include "eval.h"
#include "host.h"
#include "observer.h"
#include "tokens.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    eval_options open; /* model, calibration, threads */
    const char *prompt;
    const char *policy;
    const char *mode;
    const char *record;
    const char *teacher;
    const char *trace;
    int32_t dump;
    int32_t cells;
    int32_t budget;
    int32_t n_predict;
    double temperature;
    bool raw;
    bool ignore_eos;
    bool unprotected;
    bool bound_prefill;
    bool log;
} options;

typedef struct session {
    const options *options;
    engine *engine;
    host *host;
    struct llama_sampler *sampler;
    token_script script; /* --teacher */
    FILE *record;        /* or NULL */
    tria_trace *trace;   /* or NULL */
} session;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* llama.cpp asks this while it decodes. */
static bool is_interrupted(void *context)
{
    (void)context;
    return interrupted != 0;
}

static void catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    interrupted = 0;
    sigaction(SIGINT, &action, NULL);
}

static void on_eviction(void *context, const host_eviction *eviction)
{
    (void)context;
    fflush(stdout);
    fprintf(stderr, "[eviction %d: t = %lld, %d -> %d rows, %.2f ms]\n", eviction->number,
            (long long)eviction->t, eviction->rows_before, eviction->rows_after, 1e3 * eviction->seconds);
}

static void log_line(void *context, tria_log_level level, const char *line)
{
    (void)context;
    (void)level;
    fflush(stdout);
    fprintf(stderr, "[%s]\n", line);
}

static struct llama_sampler *make_sampler(const options *o, uint64_t seed)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (o->temperature > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
        llama_sampler_chain_add(chain, llama_sampler_init_temp((float)o->temperature));
        llama_sampler_chain_add(chain, llama_sampler_init_dist((uint32_t)seed));
    } else {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    }
    return chain;
}

/* What to decode for one turn: the text itself (--raw), or the text in the model's chat template. */
static llama_token *turn_tokens(const options *o, const engine *e, const char *text, bool first,
                                int32_t *n_tokens)
{
    char *wrapped = NULL;
    if (!o->raw) {
        const char *chat_template = llama_model_chat_template(e->model, NULL);
        const struct llama_chat_message messages[2] = {{"system", "You are a helpful assistant."},
                                                       {"user", text}};
        const size_t skip = first ? 0 : 1;
        const int32_t size = (int32_t)(4 * strlen(text) + 1024);
        wrapped = calloc((size_t)size + 1, 1);
        const int32_t length =
            wrapped == NULL || chat_template == NULL
                ? -1
                : llama_chat_apply_template(chat_template, messages + skip, 2 - skip, true, wrapped, size);
        if (length < 0 || length > size) {
            die(EXIT_FAILED, "the model has no chat template that llama.cpp knows; use --raw");
        }
    }
    tria_error error;
    llama_token *tokens = NULL;
    if (engine_tokenize(e, wrapped != NULL ? wrapped : text, true, &tokens, n_tokens, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    free(wrapped);
    if (*n_tokens == 0) {
        die(EXIT_USAGE, "the prompt is empty");
    }
    return tokens;
}

static void record_prompt(const session *s, const llama_token *tokens, int64_t n)
{
    if (s->record != NULL) {
        tokens_write_prompt(s->record, tokens, (int32_t)n);
    }
}

/* What was written of a cancelled prompt is taken back. It stays, as the prompt, when rows from before it
 * were evicted to make room (--bound-prefill). */
static tria_status drop_prompt(const session *s, const llama_token *tokens, int64_t before,
                               tria_error *error)
{
    host_stats stats;
    host_get_stats(s->host, &stats);
    if (stats.t == before) {
        return TRIA_OK;
    }
    tria_status status = host_rollback(s->host, (int32_t)(stats.t - before), error);
    if (status == TRIA_E_STATE) {
        record_prompt(s, tokens, stats.t - before);
        status = host_evict_if_due(s->host, error);
    }
    return status;
}

/* False when Ctrl-C cancelled it. */
static bool feed_prompt(const session *s, const llama_token *tokens, int32_t n)
{
    tria_error error;
    host_stats before;
    host_get_stats(s->host, &before);
    tria_status status = host_prompt(s->host, tokens, n, &error);
    const bool cancelled = status == TRIA_E_CANCELLED;
    if (cancelled) {
        status = drop_prompt(s, tokens, before.t, &error);
    } else if (status == TRIA_OK) {
        record_prompt(s, tokens, n);
    }
    if (status != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    return !cancelled;
}

/* Shows a token and decodes it; false when Ctrl-C cancelled that. */
static bool feed(const session *s, llama_token token)
{
    char piece[256];
    const int32_t length = llama_token_to_piece(s->engine->vocab, token, piece, sizeof(piece), 0, false);
    if (length > 0) {
        fwrite(piece, 1, (size_t)length, stdout);
        fflush(stdout);
    }
    tria_error error;
    const tria_status status = host_decode(s->host, token, &error);
    if (status != TRIA_OK && status != TRIA_E_CANCELLED) {
        putchar('\n');
        die(EXIT_FAILED, "%s", error.message);
    }
    if (status == TRIA_OK && s->record != NULL) {
        tokens_write(s->record, token);
    }
    return status == TRIA_OK;
}

/* The dump that was asked for is there. */
static bool is_done(const session *s)
{
    return s->trace != NULL && tria_trace_done(s->trace);
}

/* Up to n_predict tokens; false when it was cancelled. */
static bool generate(const session *s)
{
    const options *o = s->options;
    for (int32_t i = 0; i < o->n_predict && !is_done(s); i++) {
        const llama_token token = llama_sampler_sample(s->sampler, s->engine->context, -1);
        const bool ends = llama_vocab_is_eog(s->engine->vocab, token) && !o->ignore_eos;
        /* The end of a turn belongs to the conversation. */
        if ((!ends || !o->raw) && !feed(s, token)) {
            return false;
        }
        if (ends) {
            break;
        }
    }
    return true;
}

static void end_turn(bool complete)
{
    putchar('\n');
    fflush(stdout);
    if (!complete) {
        fputs("[cancelled]\n", stderr);
    }
}

static void run_turn(const session *s, const char *text)
{
    host_stats stats;
    int32_t n_tokens = 0;
    host_get_stats(s->host, &stats);
    llama_token *tokens = turn_tokens(s->options, s->engine, text, stats.t == 0, &n_tokens);
    catch_interrupt();
    end_turn(feed_prompt(s, tokens, n_tokens) && generate(s));
    free(tokens);
}

static bool feed_turn(const session *s, const token_turn *turn)
{
    if (!feed_prompt(s, s->script.tokens + turn->begin, turn->decoded - turn->begin)) {
        return false;
    }
    for (int32_t i = turn->decoded; i < turn->end && !is_done(s); i++) {
        if (!feed(s, s->script.tokens[i])) {
            return false;
        }
    }
    return true;
}

/* Each recorded token once: prompts as prompts, the others one by one. */
static void run_recorded(const session *s)
{
    bool complete = true;
    catch_interrupt();
    for (int32_t t = 0; complete && t < s->script.n_turns && !is_done(s); t++) {
        complete = feed_turn(s, &s->script.turns[t]);
        end_turn(complete);
    }
}

static void print_summary(const engine *e, const host *h)
{
    host_stats s;
    host_get_stats(h, &s);
    fprintf(stderr,
            "[t = %lld tokens through %d KV cells (at most %d in use), %d evictions of %lld rows, %.1f "
            "tokens/s, "
            "%.2f %% of the time in libtria]\n",
            (long long)s.t, e->cells, s.peak_rows, s.n_evictions, (long long)s.evicted_rows,
            s.decode_seconds > 0 ? (double)s.decoded / s.decode_seconds : 0.0,
            s.total_seconds > 0 ? 100 * s.tria_seconds / s.total_seconds : 0.0);
}

/* A line of any length without its newline, or NULL at the end; the caller frees it. */
static char *read_line(void)
{
    char *line = NULL;
    size_t size = 0;
    const ssize_t length = getline(&line, &size, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

static void run_input(const session *s)
{
    for (char *line = read_line(); line != NULL; line = is_done(s) ? NULL : read_line()) {
        if (*line != '\0') {
            run_turn(s, line);
        }
        free(line);
    }
}

static void run(const session *s)
{
    if (s->script.n_turns > 0) {
        run_recorded(s);
    } else if (s->options->prompt != NULL) {
        run_turn(s, s->options->prompt);
    } else {
        run_input(s);
    }
}

/* What is read first, so that a bad recording leaves no file behind; then what the run writes. */
static void open_files(session *s)
{
    const options *o = s->options;
    tria_error error;
    tria_trace_params params = TRIA_TRACE_PARAMS_INIT;
    params.path = o->trace;
    params.dump = o->dump;
    if ((o->teacher != NULL &&
         tokens_read(o->teacher, s->engine->n_vocab, &s->script, &error) != TRIA_OK) ||
        (o->trace != NULL && tria_trace_create(&params, NULL, &s->trace, &error) != TRIA_OK) ||
        (o->record != NULL && tokens_create(o->record, &s->record, &error) != TRIA_OK)) {
        die(EXIT_FAILED, "%s", error.message);
    }
}

/* Says so if they are not complete, or if the dump never came. */
static void close_files(session *s)
{
    tria_error error;
    tokens_release(&s->script);
    if (tokens_close(s->record, s->options->record, &error) != TRIA_OK ||
        tria_trace_close(s->trace, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
}

static void check(const options *o, int32_t policy, int32_t mode)
{
    if (o->open.model_path == NULL) {
        die(EXIT_USAGE, "--model is needed, see --help");
    }
    if (policy < 0) {
        die(EXIT_USAGE, "--policy %s: there are tria, random, recent and none", o->policy);
    }
    if (mode != TRIA_MODE_UNION && mode != TRIA_MODE_GLOBAL) {
        die(EXIT_USAGE,
            "--mode %s: llama.cpp's cells are shared by all layers and heads, use union or global",
            o->mode);
    }
    if (policy == HOST_POLICY_TRIA && o->open.calibration_path == NULL) {
        die(EXIT_USAGE, "policy tria needs --calibration (tria-llama-calibrate makes one)");
    }
    if (o->trace != NULL && policy != HOST_POLICY_TRIA) {
        die(EXIT_USAGE, "--trace records scores, policy %s has none", o->policy);
    }
    if (o->dump > 0 && o->trace == NULL) {
        die(EXIT_USAGE, "--dump needs --trace, the file to write to");
    }
    if (o->teacher != NULL && o->prompt != NULL) {
        die(EXIT_USAGE, "--teacher feeds recorded tokens, --prompt has no place");
    }
    if (policy != HOST_POLICY_NONE && o->budget == 0) {
        die(EXIT_USAGE, "--budget 0 would evict nothing; give the rows to keep, or --policy none");
    }
}

int main(int argc, char **argv)
{
    options o = {
        .open = {.interval = 128, .n_recent = 64, .n_sink = 4, .seed = 1, .abort = is_interrupted},
        .policy = "tria",
        .mode = "union",
        .cells = 512,
        .budget = 256,
        .n_predict = 256,
        .temperature = 0.7,
    };
    const arg table[] = {
        {"--model", ARG_TEXT, &o.open.model_path, 0, "GGUF file"},
        {"--calibration", ARG_TEXT, &o.open.calibration_path, 0, "its calibration"},
        {"--prompt", ARG_TEXT, &o.prompt, 0, "what to say; without it, turns are read from standard input"},
        {"--policy", ARG_TEXT, &o.policy, 0, "tria, random, recent or none"},
        {"--mode", ARG_TEXT, &o.mode, 0, "union or global"},
        {"--cells", ARG_INT, &o.cells, 1, "KV cells (llama.cpp rounds up to a multiple of 256)"},
        {"--budget", ARG_INT, &o.budget, 0, "rows kept by an eviction"},
        {"--interval", ARG_INT, &o.open.interval, 1, "rows beyond the budget before an eviction"},
        {"--recent", ARG_INT, &o.open.n_recent, 0, "most recent rows, never evicted"},
        {"--sinks", ARG_INT, &o.open.n_sink, 0, "first rows, never evicted"},
        {"--evict-prompt", ARG_FLAG, &o.unprotected, 0, "prompt rows may be evicted too"},
        {"--bound-prefill", ARG_FLAG, &o.bound_prefill, 0,
         "prompts of any length, in blocks of --interval tokens, evicted in between"},
        {"--n-predict", ARG_INT, &o.n_predict, 0, "most tokens to generate per turn"},
        {"--ignore-eos", ARG_FLAG, &o.ignore_eos, 0, "go on after the model's end mark"},
        {"--raw", ARG_FLAG, &o.raw, 0, "continue the text, no chat template"},
        {"--temperature", ARG_NUMBER, &o.temperature, 0, "0 = always the most likely token"},
        {"--seed", ARG_SEED, &o.open.seed, 0, "of sampling and of the random policy"},
        {"--cache-type-k", ARG_TEXT, &o.open.cache_type_k, 0, "llama.cpp's type for K: f16, q8_0, ..."},
        {"--threads", ARG_INT, &o.open.n_threads, 0, "0 = all processors"},
        {"--backend", ARG_TEXT, &o.open.backend, 0,
         "where libtria scores: cpu, vulkan, cuda, hip, reference"},
        {"--stage", ARG_FLAG, &o.open.stage, 0, "copy the keys there for it"},
        {"--record", ARG_TEXT, &o.record, 0, "write the tokens of the run to this file"},
        {"--teacher", ARG_TEXT, &o.teacher, 0, "feed the tokens of such a file instead of choosing them"},
        {"--trace", ARG_TEXT, &o.trace, 0, "write every eviction to this file, for `tria replay`"},
        {"--dump", ARG_INT, &o.dump, 0, "write only that one, the first is 1, and stop"},
        {"--log", ARG_FLAG, &o.log, 0, "libtria's own log lines as well"},
        {0},
    };
    args_parse(argc, argv, "generates with a GGUF model and evicts from llama.cpp's cache", table);
    const int32_t policy = host_policy_from_name(o.policy);
    const int32_t mode = tria_mode_from_name(o.mode);
    check(&o, policy, mode);

    tria_error error;
    eval_setup setup;
    if (eval_open(&o.open, o.cells, &setup, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    tria_env env = TRIA_ENV_INIT;
    env.log = o.log ? log_line : NULL;
    session s = {.options = &o, .engine = &setup.engine};
    open_files(&s);
    const host_params params = {
        .policy = policy,
        .model = setup.model,
        .calibration = setup.calibration,
        .budget = o.budget,
        .interval = o.open.interval,
        .n_recent = o.open.n_recent,
        .n_sink = o.open.n_sink,
        .mode = mode,
        .protect_prefill = !o.unprotected && !o.bound_prefill,
        .bound_prefill = o.bound_prefill,
        .n_threads = o.open.n_threads,
        .device = setup.device,
        .stage = o.open.stage,
        .seed = o.open.seed,
        .trace = s.trace,
        .env = &env,
        .on_eviction = on_eviction,
    };
    if (host_create(&setup.engine, setup.observer, &params, &s.host, &error) != TRIA_OK) {
        die(EXIT_FAILED, "%s", error.message);
    }
    if (setup.device != NULL) {
        fprintf(stderr, "[scored on %s: %s%s]\n", tria_device_backend(setup.device),
                tria_device_name(setup.device), o.open.stage ? "; keys are copied there" : "");
    }
    s.sampler = make_sampler(&o, o.open.seed);
    run(&s);
    print_summary(s.engine, s.host);
    close_files(&s);
    llama_sampler_free(s.sampler);
    host_destroy(s.host);
    eval_close(&setup);
    return 0;
}

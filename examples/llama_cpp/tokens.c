/* tokens.c - records the tokens of a run as text, and reads them back. */
#include "tokens.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char title[] = "tria-tokens 1";

/* ---- writing ---- */

tria_status tokens_create(const char *path, FILE **file, tria_error *error)
{
    *file = fopen(path, "w");
    if (*file == NULL) {
        return fail(error, TRIA_E_IO, "cannot write '%s': %s", path, strerror(errno));
    }
    fprintf(*file, "%s\n", title);
    return TRIA_OK;
}

void tokens_write_prompt(FILE *file, const llama_token *tokens, int32_t n)
{
    fprintf(file, "prompt %" PRId32 ":", n);
    for (int32_t i = 0; i < n; i++) {
        fprintf(file, " %" PRId32, tokens[i]);
    }
    fputc('\n', file);
}

void tokens_write(FILE *file, llama_token token)
{
    fprintf(file, "%" PRId32 "\n", token);
}

tria_status tokens_close(FILE *file, const char *path, tria_error *error)
{
    if (file == NULL) {
        return TRIA_OK;
    }
    const bool broken = ferror(file) != 0;
    return fclose(file) != 0 || broken ? fail(error, TRIA_E_IO, "cannot write '%s'", path) : TRIA_OK;
}

/* ---- reading ---- */

typedef struct reader {
    FILE *file;
    const char *path;
    int32_t n_vocab;
    int32_t n_words;
    int32_t room;
    char word[16];
    token_script *script;
    tria_error *error;
} reader;

/* The next word, "" at the end. One that is too long is cut, and then not what was expected. */
static const char *next_word(reader *r)
{
    r->word[0] = '\0';
    r->n_words += fscanf(r->file, "%15s", r->word) == 1;
    return r->word;
}

static tria_status unexpected(const reader *r, const char *wanted)
{
    return fail(r->error, TRIA_E_FORMAT, "'%s': word %" PRId32 " is '%s', expected %s", r->path, r->n_words,
                r->word, wanted);
}

static bool parse_number(const char *word, const char *end, int32_t least, int32_t most, int32_t *value)
{
    char *rest = NULL;
    const long number = strtol(word, &rest, 10);
    *value = number >= least && number <= most ? (int32_t)number : 0;
    return rest != word && strcmp(rest, end) == 0 && number >= least && number <= most;
}

static tria_status add_token(reader *r)
{
    token_script *s = r->script;
    llama_token token = 0;
    if (!parse_number(r->word, "", 0, r->n_vocab - 1, &token)) {
        return unexpected(r, "a token of the model");
    }
    if (s->n_tokens == r->room) {
        const int32_t room = r->room < INT32_MAX / 2 ? 2 * r->room + 1024 : INT32_MAX;
        llama_token *larger = room > r->room ? realloc(s->tokens, (size_t)room * sizeof(*larger)) : NULL;
        if (larger == NULL) {
            return fail(r->error, TRIA_E_MEMORY, "out of memory reading '%s'", r->path);
        }
        s->tokens = larger;
        r->room = room;
    }
    s->tokens[s->n_tokens++] = token;
    return TRIA_OK;
}

/* "prompt" was read. */
static tria_status read_prompt(reader *r)
{
    token_script *s = r->script;
    int32_t n = 0;
    if (!parse_number(next_word(r), ":", 1, INT32_MAX, &n)) {
        return unexpected(r, "the prompt's number of tokens and a colon");
    }
    token_turn *larger = realloc(s->turns, ((size_t)s->n_turns + 1) * sizeof(*larger));
    if (larger == NULL) {
        return fail(r->error, TRIA_E_MEMORY, "out of memory reading '%s'", r->path);
    }
    s->turns = larger;
    token_turn *turn = &s->turns[s->n_turns++];
    turn->begin = s->n_tokens;
    for (int32_t i = 0; i < n; i++) {
        next_word(r);
        const tria_status status = add_token(r);
        if (status != TRIA_OK) {
            return status;
        }
    }
    turn->decoded = s->n_tokens;
    return TRIA_OK;
}

static tria_status read_turns(reader *r)
{
    token_script *s = r->script;
    char line[sizeof(title) + 1] = "";
    if (fgets(line, sizeof(line), r->file) == NULL || strncmp(line, title, strlen(title)) != 0 ||
        line[strlen(title)] != '\n') {
        return fail(r->error, TRIA_E_FORMAT, "'%s' does not begin with '%s'", r->path, title);
    }
    while (*next_word(r) != '\0') {
        if (s->n_turns == 0 && strcmp(r->word, "prompt") != 0) {
            return unexpected(r, "a prompt");
        }
        const tria_status status = strcmp(r->word, "prompt") == 0 ? read_prompt(r) : add_token(r);
        if (status != TRIA_OK) {
            return status;
        }
        s->turns[s->n_turns - 1].end = s->n_tokens;
    }
    if (s->n_turns == 0 || ferror(r->file) != 0) {
        return fail(r->error, TRIA_E_FORMAT, "'%s' holds no tokens or cannot be read", r->path);
    }
    return TRIA_OK;
}

tria_status tokens_read(const char *path, int32_t n_vocab, token_script *script, tria_error *error)
{
    memset(script, 0, sizeof(*script));
    reader r = {.path = path, .n_vocab = n_vocab, .script = script, .error = error};
    r.file = fopen(path, "r");
    if (r.file == NULL) {
        return fail(error, TRIA_E_IO, "cannot read '%s': %s", path, strerror(errno));
    }
    const tria_status status = read_turns(&r);
    fclose(r.file);
    if (status != TRIA_OK) {
        tokens_release(script);
    }
    return status;
}

void tokens_release(token_script *script)
{
    free(script->tokens);
    free(script->turns);
    memset(script, 0, sizeof(*script));
}

/*
 * tokens.h - the tokens of a run in a file, to feed them again: the same text under other settings, or a
 * replay of the same run. Each token is there once, prompts as prompts:
 *
 *     tria-tokens 1
 *     prompt 4: 5345 3519 253 655
 *     29 665 ...                       what was decoded one by one, any white space in between
 *     prompt 7: ...                    the next turn
 */
#ifndef EXAMPLE_TOKENS_H
#define EXAMPLE_TOKENS_H

#include "engine.h"

#include <stdio.h>

typedef struct token_turn {
    int32_t begin; /* of the prompt, in the array of tokens */
    int32_t decoded;
    int32_t end;
} token_turn;

typedef struct token_script {
    llama_token *tokens;
    int32_t n_tokens;
    token_turn *turns;
    int32_t n_turns;
} token_script;

/* Errors: IO; FORMAT, which names the word, for anything that is not a recording of a model with that many
 * tokens. */
tria_status tokens_read(const char *path, int32_t n_vocab, token_script *script, tria_error *error);
void tokens_release(token_script *script);

/* Recording. Write errors come out at the end. */
tria_status tokens_create(const char *path, FILE **file, tria_error *error);
void tokens_write_prompt(FILE *file, const llama_token *tokens, int32_t n);
void tokens_write(FILE *file, llama_token token);
tria_status tokens_close(FILE *file, const char *path, tria_error *error); /* NULL is allowed */

#endif

/*
 * llama_logits.c - what llama.cpp alone computes for a text, for check.py to compare the NumPy decoder
 * with.
 *
 *     numpy-llama-logits MODEL.gguf TEXT TOKENS OUTPUT
 *
 * OUTPUT: i32 tokens, i32 vocabulary, i32 ids[tokens], f32 logits[tokens][vocabulary]. K and V are cached
 * as float, as in the NumPy decoder, so that nothing but the weights' arithmetic differs.
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES = 1 << 16 };

static _Noreturn void die(const char *what, const char *name)
{
    fprintf(stderr, "numpy-llama-logits: error: %s '%s'\n", what, name);
    exit(EXIT_FAILURE);
}

static void quiet_log(enum ggml_log_level level, const char *text, void *context)
{
    (void)level;
    (void)text;
    (void)context;
}

/* The first n tokens of the file, which must have as many within TEXT_BYTES. */
static llama_token *read_tokens(const struct llama_vocab *vocab, const char *path, int32_t n)
{
    char *text = malloc(TEXT_BYTES);
    llama_token *tokens = malloc(TEXT_BYTES * sizeof(*tokens));
    FILE *file = fopen(path, "rb");
    if (text == NULL || tokens == NULL || file == NULL) {
        die("cannot read the text", path);
    }
    const int32_t length = (int32_t)fread(text, 1, TEXT_BYTES, file);
    fclose(file);
    if (llama_tokenize(vocab, text, length, tokens, TEXT_BYTES, false, false) < n) {
        die("fewer tokens than asked for in the first 64 KiB of", path);
    }
    free(text);
    return tokens;
}

static struct llama_context *open_context(struct llama_model *model, int32_t n)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n;
    params.n_batch = (uint32_t)n;
    params.n_ubatch = (uint32_t)n;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = GGML_TYPE_F32;
    params.type_v = GGML_TYPE_F32;
    return llama_init_from_model(model, params);
}

/* All tokens in one batch. */
static void decode(struct llama_context *context, const llama_token *tokens, int32_t n)
{
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) {
        die("llama.cpp cannot decode", "the tokens");
    }
    llama_batch_free(batch);
}

static void write_output(const char *path, struct llama_context *context, const llama_token *tokens,
                         int32_t n, int32_t n_vocab)
{
    const int32_t header[2] = {n, n_vocab};
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        die("cannot write", path);
    }
    fwrite(header, sizeof(header), 1, file);
    fwrite(tokens, sizeof(*tokens), (size_t)n, file);
    for (int32_t i = 0; i < n; i++) {
        fwrite(llama_get_logits_ith(context, i), sizeof(float), (size_t)n_vocab, file);
    }
    if (ferror(file) != 0 || fclose(file) != 0) {
        die("cannot write", path);
    }
}

int main(int argc, char **argv)
{
    const int32_t n = argc == 5 ? (int32_t)strtol(argv[3], NULL, 10) : 0;
    if (n < 1 || n > TEXT_BYTES) {
        fprintf(stderr, "usage: numpy-llama-logits MODEL.gguf TEXT TOKENS OUTPUT\n");
        return 2;
    }
    llama_log_set(quiet_log, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context *context = model != NULL ? open_context(model, n) : NULL;
    if (context == NULL) {
        die("llama.cpp cannot load", argv[1]);
    }
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    llama_token *tokens = read_tokens(vocab, argv[2], n);
    decode(context, tokens, n);
    write_output(argv[4], context, tokens, n, llama_vocab_n_tokens(vocab));
    free(tokens);
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}

/* make_corpus.c - writes the seeds: one good file of each kind and variant. */
#include "../calibration/fixture.h"
#include "tria/accumulator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *corpus;

static void save(const char *kind, const char *name, buffer *file)
{
    char path[2048];
    FILE *out;
    snprintf(path, sizeof(path), "%s/%s/%s", corpus, kind, name);
    out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file->data, 1, file->size, out), file->size);
    fclose(out);
    buffer_free(file);
}

static void save_text(const char *kind, const char *name, const char *text)
{
    buffer file = {0};
    put_bytes(&file, text, strlen(text));
    save(kind, name, &file);
}

/* The pickle of a torch file that has four storages called 0 to 3. */
static void save_pickle(const char *name, buffer *torch)
{
    static const char mark[] = "stem/data.pkl";
    for (size_t i = 0; i + sizeof(mark) < torch->size; i++) {
        if (memcmp(torch->data + i, mark, sizeof(mark) - 1) == 0) {
            buffer pickle = {0};
            size_t end = i;
            while (memcmp(torch->data + end, "PK\7\10", 4) != 0) {
                end++;
            }
            put_bytes(&pickle, torch->data + i + sizeof(mark) - 1, end - i - (sizeof(mark) - 1));
            save("torch", name, &pickle);
            break;
        }
    }
    buffer_free(torch);
}

static void make_checkpoint(void)
{
    static const float queries[2 * 2 * 6] = {1, 2, 3};
    tria_model *model = make_model(2, 2, 1, 6, 4);
    tria_accumulator_params params;
    tria_accumulator *accumulator;
    tria_queries block;
    char path[2048];
    tria_accumulator_params_init(&params);
    params.model = model;
    assert_int_equal(tria_accumulator_create(&params, NULL, &accumulator, NULL), TRIA_OK);
    tria_queries_init(&block);
    block.data = queries;
    block.n_tokens = 2;
    assert_int_equal(tria_accumulator_add(accumulator, &block, NULL), TRIA_OK);
    snprintf(path, sizeof(path), "%s/checkpoint/seed", corpus);
    assert_int_equal(tria_accumulator_save(accumulator, path, NULL), TRIA_OK);
    tria_accumulator_destroy(accumulator);
    tria_model_destroy(model);
}

int main(int argc, char **argv)
{
    buffer file = {0};
    char name[32];
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus CORPUS\n");
        return 1;
    }
    corpus = argv[1];
    for (uint32_t version = 1; version <= 4; version++) {
        snprintf(name, sizeof(name), "version%u", version);
        make_dialect_a(&file, version, 8, 2);
        save("dialect_a", name, &file);
    }
    for (uint32_t version = 0; version <= 3; version++) {
        snprintf(name, sizeof(name), "version%u", version);
        make_dialect_b(&file, version);
        save("dialect_b", name, &file);
    }
    make_dialect_c(&file, true);
    save("dialect_c", "partial", &file);
    make_tria5(&file);
    save("tria5", "seed", &file);
    make_checkpoint();
    make_pt(&file);
    save("zip", "reference", &file);
    make_pt(&file);
    save_pickle("reference", &file);
    make_pt_dense(&file);
    save_pickle("dense", &file);
    make_pt_trtllm(&file);
    save_pickle("trtllm", &file);
    for (int dense = 0; dense < 2; dense++) {
        make_json(&file, dense != 0);
        memmove(file.data, file.data + 1, --file.size); /* the target puts the brace back */
        save("json", dense ? "dense" : "sparse", &file);
    }
    make_safetensors(&file);
    memmove(file.data + 2, file.data + 8, file.size -= 8); /* a length of two bytes */
    file.size += 2;
    save("safetensors", "seed", &file);
    save_text("model", "ours",
              "{\"n_layers\":2,\"n_q_heads\":4,\"n_kv_heads\":2,\"head_dim\":8,\"rotary_dim\":4,\"rope\":{"
              "\"style\":\"half\","
              "\"theta\":1e4,\"scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_"
              "embeddings\":64}},"
              "\"layers\":[{\"window\":3},{\"kv_source\":0,\"rotary_offset\":0}]}");
    save_text(
        "model", "config",
        "{\"model_type\":\"gemma3\",\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_"
        "heads\":2,"
        "\"head_dim\":8,\"sliding_window\":16,\"sliding_window_pattern\":2,\"num_kv_shared_layers\":2,"
        "\"max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
        "\"long_factor\":[2,2,2,2]},\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_"
        "attention\","
        "\"linear_attention\"]}");
    return 0;
}

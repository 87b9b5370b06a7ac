/* replay.c - runs every file of the corpus, CORPUS/<kind>/<file>, through its reader, with any compiler. */
#include "kinds.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
} KINDS[] = {
    {"dialect_a", fuzz_dialect_a},
    {"dialect_b", fuzz_dialect_b},
    {"dialect_c", fuzz_dialect_c},
    {"tria5", fuzz_tria5},
    {"checkpoint", fuzz_checkpoint},
#ifdef TRIA_TEST_IMPORT
    {"zip", fuzz_zip},
    {"torch", fuzz_torch},
    {"json", fuzz_json},
    {"safetensors", fuzz_safetensors},
    {"model", fuzz_model},
#endif
};

/* The input lies in a block of exactly its size, so that sanitizers see a read beyond it. */
static int replay(const char *path, void (*run)(const uint8_t *data, size_t size))
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long size;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    rewind(file);
    data = malloc(size > 0 ? (size_t)size : 1);
    if (data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    fclose(file);
    run(data, (size_t)size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = argc != 2;
    for (size_t k = 0; !failed && k < sizeof(KINDS) / sizeof(KINDS[0]); k++) {
        char folder[2048];
        const struct dirent *entry;
        int count = 0;
        DIR *directory;
        snprintf(folder, sizeof(folder), "%s/%s", argv[1], KINDS[k].name);
        directory = opendir(folder);
        while (directory != NULL && (entry = readdir(directory)) != NULL) {
            char path[4096];
            if (entry->d_name[0] != '.') {
                snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
                failed |= replay(path, KINDS[k].run);
                count++;
            }
        }
        if (directory != NULL) {
            closedir(directory);
        }
        printf("%s: %d files\n", KINDS[k].name, count);
        failed |= count == 0; /* an empty corpus tests nothing */
    }
    return failed;
}

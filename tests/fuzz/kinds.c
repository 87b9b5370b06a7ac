/* kinds.c - see kinds.h. */
#include "kinds.h"

#include "../calibration/fixture.h"
#include "accumulator_internal.h"
#include "calibration_internal.h"
#include "crc32c.h"

#ifdef TRIA_TEST_IMPORT
#include "tria/import.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No reader of the core may hold more than four times the file, and a megabyte for handles. */
typedef struct meter {
    size_t now;
    size_t limit;
} meter;

static void *meter_allocate(void *context, size_t size, size_t alignment)
{
    meter *m = context;
    unsigned char *block;
    m->now += size;
    if (m->now > m->limit) {
        fprintf(stderr, "%zu bytes allocated, the limit is %zu\n", m->now, m->limit);
        abort();
    }
    block = aligned_alloc(alignment, (size + 2 * alignment - 1) / alignment * alignment);
    if (block == NULL) {
        return NULL;
    }
    memcpy(block, &size, sizeof(size));
    return block + alignment;
}

static void meter_release(void *context, void *pointer)
{
    meter *m = context;
    unsigned char *block = (unsigned char *)pointer - 64; /* the library's alignment */
    size_t size;
    memcpy(&size, block, sizeof(size));
    m->now -= size;
    free(block);
}

static void ignore(void *context, tria_finding_severity severity, int32_t layer, const char *text)
{
    (void)severity;
    (void)layer;
    *(size_t *)context += strlen(text);
}

/* What was read must survive being looked at, and come back from version 5 as it is. */
static void use(tria_calibration *calibration)
{
    size_t length = 0;
    size_t size;
    unsigned char *bytes;
    tria_calibration *again = NULL;
    tria_error error;
    if (tria_calibration_review(calibration, ignore, &length, &error) != TRIA_OK ||
        tria_calibration_write(calibration, TRIA_FORMAT_TRIA5, 0, NULL, 0, &size, &error) != TRIA_OK) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
    bytes = malloc(size);
    if (bytes == NULL) {
        return;
    }
    if (tria_calibration_write(calibration, TRIA_FORMAT_TRIA5, 0, bytes, size, &size, &error) != TRIA_OK ||
        tria_calibration_read(bytes, size, NULL, &again, &error) != TRIA_OK) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
    tria_calibration_destroy(again);
    free(bytes);
}

typedef tria_status (*reader)(const unsigned char *data, size_t size, const tria_env *env,
                              tria_calibration **calibration, tria_error *error);

static void run(reader read, const uint8_t *data, size_t size)
{
    meter m = {0, 4 * size + 1048576};
    tria_env env = TRIA_ENV_INIT;
    tria_calibration *calibration = NULL;
    tria_error error;
    env.allocate = meter_allocate;
    env.release = meter_release;
    env.allocator_context = &m;
    if (read(data, size, &env, &calibration, &error) == TRIA_OK) {
        m.limit = SIZE_MAX; /* looking at it takes memory of its own */
        use(calibration);
        tria_calibration_destroy(calibration);
    }
    if (m.now != 0) {
        abort();
    }
}

/* The readers are only given files whose first bytes fit them. */
void fuzz_dialect_a(const uint8_t *data, size_t size)
{
    if (size >= 8 && tria_load_u32(data) == TRIA_MAGIC && tria_load_u32(data + 4) - 1 < 4) {
        run(tria_read_dialect_a, data, size);
    }
}

void fuzz_dialect_b(const uint8_t *data, size_t size)
{
    if (size >= 8 && tria_load_u32(data) == TRIA_MAGIC && tria_load_u32(data + 4) - 1 < 3) {
        run(tria_read_dialect_b, data, size);
    }
}

void fuzz_dialect_c(const uint8_t *data, size_t size)
{
    run(tria_read_dialect_c, data, size);
}

void fuzz_tria5(const uint8_t *data, size_t size)
{
    buffer file = {0};
    if (size < 64) {
        return;
    }
    put_bytes(&file, data, size);
    set_u32(&file, 48, (uint32_t)(size - 64));
    set_u32(&file, 52, 0);
    set_u32(&file, 56, tria_crc32c(0, file.data + 64, size - 64));
    set_u32(&file, 60, tria_crc32c(0, file.data, 60));
    run(tria_read_tria5, file.data, file.size);
    buffer_free(&file);
}

void fuzz_checkpoint(const uint8_t *data, size_t size)
{
    tria_model *model = make_model(2, 2, 1, 6, 4);
    tria_accumulator_params params;
    tria_accumulator *accumulator;
    tria_error error;
    buffer file = {0};
    tria_accumulator_params_init(&params);
    params.model = model;
    if (tria_accumulator_create(&params, NULL, &accumulator, &error) != TRIA_OK) {
        abort();
    }
    put_bytes(&file, data, size);
    put_u32(&file, tria_crc32c(0, data, size));
    (void)tria_accumulator_resume_bytes(accumulator, file.data, file.size, &error);
    buffer_free(&file);
    tria_accumulator_destroy(accumulator);
    tria_model_destroy(model);
}

#ifdef TRIA_TEST_IMPORT
static void run_import(const uint8_t *data, size_t size)
{
    tria_calibration *calibration = NULL;
    tria_error error;
    if (tria_import_calibration_read(data, size, NULL, NULL, &calibration, &error) == TRIA_OK) {
        use(calibration);
        tria_calibration_destroy(calibration);
    }
}

void fuzz_zip(const uint8_t *data, size_t size)
{
    run_import(data, size);
}

void fuzz_torch(const uint8_t *data, size_t size)
{
    static const unsigned char numbers[192] = {0, 0, 128, 63, 0, 0, 0, 64};
    zip_builder zip = {0};
    buffer file = {0};
    zip_add(&zip, "a/data.pkl", data, size);
    zip_add(&zip, "a/data/0", numbers, 192);
    zip_add(&zip, "a/data/1", numbers, 96);
    zip_add(&zip, "a/data/2", numbers, 16);
    zip_add(&zip, "a/data/3", numbers, 16);
    zip_finish(&zip, &file);
    run_import(file.data, file.size);
    buffer_free(&file);
}

void fuzz_json(const uint8_t *data, size_t size)
{
    buffer file = {0};
    put_bytes(&file, "{", 1); /* so that it is taken for JSON */
    put_bytes(&file, data, size);
    run_import(file.data, file.size);
    buffer_free(&file);
}

void fuzz_safetensors(const uint8_t *data, size_t size)
{
    const size_t header = size < 2 ? 0 : (size_t)data[0] | (size_t)data[1] << 8;
    buffer file = {0};
    if (size < 4 || header > size - 2) {
        return;
    }
    put_u64(&file, header);
    put_bytes(&file, data + 2, size - 2);
    run_import(file.data, file.size);
    buffer_free(&file);
}

void fuzz_model(const uint8_t *data, size_t size)
{
    tria_model *model = NULL;
    tria_error error;
    if (size > 0 && tria_import_model_read(data, size, data[0], NULL, &model, &error) == TRIA_OK) {
        tria_model_destroy(model);
    }
}
#endif

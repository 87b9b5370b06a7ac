/*
 * test_hostile.c - every kind of file cut at every byte, extended by one, with every byte changed; sizes
 * that overflow; and how much memory all that may ask for.
 */
#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void make_a1(buffer *out)
{
    make_dialect_a(out, 1, 8, 0);
}

static void make_a3(buffer *out)
{
    make_dialect_a(out, 3, 8, 3);
}

static void make_a4(buffer *out)
{
    make_dialect_a(out, 4, 8, 0);
}

static void make_b1(buffer *out)
{
    make_dialect_b(out, 1);
}

static void make_b2(buffer *out)
{
    make_dialect_b(out, 2);
}

static void make_b2_second(buffer *out)
{
    make_dialect_b(out, 0);
}

static void make_b3(buffer *out)
{
    make_dialect_b(out, 3);
}

static void make_c(buffer *out)
{
    make_dialect_c(out, true);
}

#ifdef TRIA_TEST_IMPORT
static void make_json_dense(buffer *out)
{
    make_json(out, true);
}

static void make_json_sparse(buffer *out)
{
    make_json(out, false);
}
#endif

static const struct {
    const char *name;
    void (*make)(buffer *out);
} KINDS[] = {
    {"tria1", make_a1},
    {"tria3", make_a3},
    {"tria4", make_a4},
    {"triattention1", make_b1},
    {"triattention2", make_b2},
    {"triattention2, second line", make_b2_second},
    {"triattention3", make_b3},
    {"triattn", make_c},
    {"tria5", make_tria5},
#ifdef TRIA_TEST_IMPORT
    {"pt", make_pt},
    {"pt-dense", make_pt_dense},
    {"pt-trtllm", make_pt_trtllm},
    {"json dense", make_json_dense},
    {"json sparse", make_json_sparse},
    {"safetensors", make_safetensors},
#endif
};

enum { N_KINDS = sizeof(KINDS) / sizeof(KINDS[0]) };

/* Reads bytes that lie at the very end of their block, so that sanitizers see a read beyond them. */
static tria_status read_exact(const unsigned char *data, size_t size, tria_calibration **calibration,
                              tria_error *error)
{
    unsigned char *copy = malloc(size > 0 ? size : 1);
    buffer file = {copy, size, size};
    tria_status status;
    assert_non_null(copy);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    status = read_any(&file, calibration, error);
    free(copy);
    return status;
}

static void test_truncation(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        buffer file = {0};
        KINDS[k].make(&file);
        for (size_t size = 0; size < file.size; size++) {
            tria_calibration *calibration = NULL;
            tria_error error;
            if (read_exact(file.data, size, &calibration, &error) == TRIA_OK) {
                fail_msg("%s: read although cut at byte %zu of %zu", KINDS[k].name, size, file.size);
            }
            assert_null(calibration);
            assert_true(error.message[0] != '\0');
        }
        tria_calibration_destroy(must_read(&file));
        buffer_free(&file);
    }
}

/* A zip archive may have a comment, JSON white space; all others end where they say. */
static void test_extension(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        buffer file = {0};
        tria_calibration *calibration = NULL;
        tria_error error;
        KINDS[k].make(&file);
        put_u8(&file, 'x');
        if (strncmp(KINDS[k].name, "pt", 2) != 0 && strcmp(KINDS[k].name, "safetensors") != 0 &&
            read_exact(file.data, file.size, &calibration, &error) == TRIA_OK) {
            fail_msg("%s: read with a byte too many", KINDS[k].name);
        }
        buffer_free(&file);
    }
}

/* No change of one byte may crash, leak or be read beyond; sanitizers watch. */
static void test_flips(void **state)
{
    static const unsigned char flips[] = {0x01, 0x80, 0xff};
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        buffer file = {0};
        KINDS[k].make(&file);
        for (size_t i = 0; i < file.size; i++) {
            for (size_t f = 0; f < sizeof(flips); f++) {
                tria_calibration *calibration = NULL;
                if (file.size > 1000 && f != i % sizeof(flips)) {
                    continue; /* one of the three will do for larger files */
                }
                tria_error error;
                file.data[i] ^= flips[f];
                if (read_exact(file.data, file.size, &calibration, &error) == TRIA_OK) {
                    assert_non_null(calibration);
                }
                tria_calibration_destroy(calibration);
                file.data[i] ^= flips[f];
            }
        }
        buffer_free(&file);
    }
}

/* What an allocator was asked for at most at one time. */
typedef struct meter {
    size_t now;
    size_t most;
    size_t fail_after; /* calls until it returns NULL, 0 = never */
} meter;

static void *meter_allocate(void *context, size_t size, size_t alignment)
{
    meter *m = context;
    unsigned char *block;
    if (m->fail_after > 0 && --m->fail_after == 0) {
        return NULL;
    }
    block = aligned_alloc(alignment, (size + 2 * alignment - 1) / alignment * alignment);
    assert_non_null(block);
    memcpy(block, &size, sizeof(size));
    m->now += size;
    m->most = m->now > m->most ? m->now : m->most;
    return block + alignment;
}

static void meter_release(void *context, void *pointer)
{
    meter *m = context;
    unsigned char *block = (unsigned char *)pointer - 64;
    size_t size;
    memcpy(&size, block, sizeof(size));
    m->now -= size;
    free(block);
}

static tria_status read_metered(const buffer *file, meter *m, tria_error *error)
{
    tria_env env = TRIA_ENV_INIT;
    tria_calibration *calibration = NULL;
    tria_status status;
    env.allocate = meter_allocate;
    env.release = meter_release;
    env.allocator_context = m;
    status = tria_calibration_read(file->data, file->size, &env, &calibration, error);
    tria_calibration_destroy(calibration);
    assert_int_equal(m->now, 0);
    return status;
}

/* Headers that promise a lot and files that hold nothing of it: nothing is allocated for it. */
static void test_promises(void **state)
{
    static const uint32_t huge[] = {4096, 8192, 0x7fffffff, 0x80000000, 0xffffffff};
    (void)state;
    for (size_t k = 0; k < 9; k++) { /* the core's kinds */
        buffer file = {0};
        KINDS[k].make(&file);
        for (size_t at = 4; at + 4 <= file.size && at < 200; at += 4) {
            for (size_t v = 0; v < sizeof(huge) / sizeof(huge[0]); v++) {
                uint32_t old;
                meter m = {0};
                tria_error error;
                memcpy(&old, file.data + at, 4);
                set_u32(&file, at, huge[v]);
                (void)read_metered(&file, &m, &error);
                memcpy(file.data + at, &old, 4);
                if (m.most > 4 * file.size + 1048576) {
                    fail_msg("%s with %u at %zu: %zu bytes for a file of %zu", KINDS[k].name, huge[v], at,
                             m.most, file.size);
                }
            }
        }
        buffer_free(&file);
    }
}

/* Memory that a good file takes. */
static void test_memory_of_good_files(void **state)
{
    buffer file = {0};
    meter m = {0};
    tria_error error;
    (void)state;
    put_u32(&file, 0x54524941);
    put_u32(&file, 1);
    put_u32(&file, 20);
    put_u32(&file, 16);
    put_u32(&file, 4);
    put_u32(&file, 64);
    put_u32(&file, 32);
    put_f32(&file, 10000.0F);
    put_f32(&file, 1.0F);
    put_zeros(&file, 28);
    for (int32_t i = 0; i < 20 * 16 * 32 * 4; i++) {
        put_f32(&file, 1.0F);
    }
    assert_int_equal(read_metered(&file, &m, &error), TRIA_OK);
    assert_true(m.most < 2 * file.size);
    buffer_free(&file);
}

/* Every allocation may fail: the same error, nothing leaked. */
static void test_no_memory(void **state)
{
    (void)state;
    for (size_t k = 0; k < 9; k++) {
        buffer file = {0};
        bool failed = true;
        KINDS[k].make(&file);
        for (size_t n = 1; failed; n++) {
            meter m = {0};
            tria_error error;
            tria_status status;
            m.fail_after = n;
            status = read_metered(&file, &m, &error);
            failed = m.fail_after == 0;
            assert_int_equal(status, failed ? TRIA_E_MEMORY : TRIA_OK);
        }
        buffer_free(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_extension),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_memory_of_good_files),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

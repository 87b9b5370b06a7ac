/*
 * fixture.h - small calibration files of every kind, made byte by byte from their published layouts, so
 * that readers are not tested against our own writers only.
 */
#ifndef TRIA_TEST_CALIBRATION_FIXTURE_H
#define TRIA_TEST_CALIBRATION_FIXTURE_H

#include "tria/calibration.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing buffer of bytes. */
typedef struct buffer {
    unsigned char *data;
    size_t size;
    size_t capacity;
} buffer;

void put_bytes(buffer *out, const void *bytes, size_t size);
void put_zeros(buffer *out, size_t size);
void put_u8(buffer *out, unsigned value);
void put_u16(buffer *out, unsigned value);
void put_u32(buffer *out, uint32_t value);
void put_u64(buffer *out, uint64_t value);
void put_f32(buffer *out, float value);
void put_f64(buffer *out, double value);
void set_u32(buffer *out, size_t at, uint32_t value);
void buffer_free(buffer *out);

/* The number that stands in array `array` (0 q_mean_real, 1 q_mean_imag, 2 q_abs_mean, 3 mrl, 4 content
 * mean, 5 content size) of a head: distinct everywhere, exact in bf16 nowhere needed. */
float stat_value(int32_t array, int32_t layer, int32_t head, int32_t index);

/* Dialect A: 3 layers, 4 query heads, 2 KV heads, 4 frequencies (version 4: 4, 2 and 3); head 3 of layer 1
 * is all zero; n_content only from version 3. head_dim as given. */
void make_dialect_a(buffer *out, uint32_t version, uint32_t head_dim, uint32_t n_content);
/* Dialect B: 3 layers, 4/2 heads, head_dim 10, 4 frequencies, three sampled heads, not in order. Version 0
 * stands for the second line's version 2. */
void make_dialect_b(buffer *out, uint32_t version);
/* Dialect C: 2 layers, 3 heads, head_dim 8; half of it rotated when partial. */
void make_dialect_c(buffer *out, bool partial);
/* Our version 5, through the library. */
void make_tria5(buffer *out);
/* The reference's .pt: 2 layers of 3 heads of 4 frequencies, head 1 of layer 1 missing. */
void make_pt(buffer *out);
/* Its dense kind, real and imaginary parts strided views of one storage. */
void make_pt_dense(buffer *out);
/* TensorRT-LLM's. */
void make_pt_trtllm(buffer *out);
void make_json(buffer *out, bool dense);
void make_safetensors(buffer *out);

/* A zip archive of stored members, as torch writes them: sizes and checksum behind the data. */
typedef struct zip_builder {
    buffer file;
    buffer central;
    uint32_t count;
} zip_builder;
void zip_add(zip_builder *zip, const char *name, const void *data, size_t size);
/* `method` 0 or what a test wants to claim; the data is not compressed. */
void zip_add_method(zip_builder *zip, const char *name, const void *data, size_t size, unsigned method,
                    uint32_t claimed_size);
void zip_finish(zip_builder *zip, buffer *out);

/* Pickle pieces. */
void pickle_text(buffer *out, const char *text);
void pickle_int(buffer *out, int32_t value);
/* A tensor over storage `key` of `count` numbers of `storage_type` ("FloatStorage"). */
void pickle_tensor(buffer *out, const char *storage_type, const char *key, int32_t count, int32_t offset,
                   int32_t n_dims, const int32_t *size, const int32_t *stride);

/* A model of `n_layers` layers with n_q/n_kv heads of head_dim, rotary_dim. */
tria_model *make_model(int32_t n_layers, int32_t n_q_heads, int32_t n_kv_heads, int32_t head_dim,
                       int32_t rotary_dim);
/* That with statistics in every head, content where there is any. */
tria_calibration *make_calibration(const tria_model *model);

/* Fails unless both hold the same heads and numbers, bit for bit. */
void assert_same_stats(const tria_calibration *a, const tria_calibration *b);
/* Reads a file with the import library where it is built, else with the core. */
tria_status read_any(const buffer *file, tria_calibration **calibration, tria_error *error);
tria_calibration *must_read(const buffer *file);
/* Fails unless the file is refused with a message that holds `words`. */
void must_refuse(const buffer *file, const char *words);

#endif

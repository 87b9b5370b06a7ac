/* calibration_bytes.c - little-endian numbers in calibration files, on any host. */
#include "calibration_internal.h"

#include <string.h>

float tria_load_f32(const unsigned char *p)
{
    const uint32_t bits = tria_load_u32(p);
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

double tria_load_f64(const unsigned char *p)
{
    const uint64_t bits = tria_load_u64(p);
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void tria_load_f32s(const unsigned char *p, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = tria_load_f32(p + 4 * i);
    }
}

void tria_write_bytes(tria_writer *writer, const void *bytes, size_t count)
{
    if (count != 0 && writer->data != NULL && writer->used <= writer->capacity &&
        count <= writer->capacity - writer->used) {
        memcpy(writer->data + writer->used, bytes, count);
    }
    writer->used += count;
}

void tria_write_zeros(tria_writer *writer, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tria_write_bytes(writer, "", 1);
    }
}

void tria_write_u32(tria_writer *writer, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)(value & 0xff), (unsigned char)(value >> 8 & 0xff),
                                    (unsigned char)(value >> 16 & 0xff), (unsigned char)(value >> 24)};
    tria_write_bytes(writer, bytes, sizeof(bytes));
}

void tria_write_u64(tria_writer *writer, uint64_t value)
{
    tria_write_u32(writer, (uint32_t)(value & 0xffffffffU));
    tria_write_u32(writer, (uint32_t)(value >> 32));
}

void tria_write_f32(tria_writer *writer, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    tria_write_u32(writer, bits);
}

void tria_write_f64(tria_writer *writer, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    tria_write_u64(writer, bits);
}

void tria_write_f32s(tria_writer *writer, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tria_write_f32(writer, values[i]);
    }
}

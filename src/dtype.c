/*
 * dtype.c - element types: names, sizes and exact scalar conversions.
 *
 * Layouts of the 8-bit floats: OCP "8-bit Floating Point Specification" (e4m3 as e4m3fn, e5m2) and
 * Noune et al., arXiv 2206.02915 (the fnuz variant). Block types: ggml's documented block structures.
 */
#include "kv_view_internal.h"

#include <string.h>

typedef struct dtype_info {
    const char *name;
    int32_t block;
    int32_t block_bytes;
} dtype_info;

static const dtype_info dtypes[TRIA_DTYPE_COUNT] = {
    [TRIA_DTYPE_F32] = {"f32", 1, 4},
    [TRIA_DTYPE_F16] = {"f16", 1, 2},
    [TRIA_DTYPE_BF16] = {"bf16", 1, 2},
    [TRIA_DTYPE_FP8_E4M3FN] = {"fp8_e4m3fn", 1, 1},
    [TRIA_DTYPE_FP8_E4M3FNUZ] = {"fp8_e4m3fnuz", 1, 1},
    [TRIA_DTYPE_FP8_E5M2] = {"fp8_e5m2", 1, 1},
    [TRIA_DTYPE_INT8] = {"int8", 1, 1},
    [TRIA_DTYPE_Q8_0] = {"q8_0", 32, 34},
    [TRIA_DTYPE_Q4_0] = {"q4_0", 32, 18},
    [TRIA_DTYPE_Q4_1] = {"q4_1", 32, 20},
    [TRIA_DTYPE_Q5_0] = {"q5_0", 32, 22},
    [TRIA_DTYPE_Q5_1] = {"q5_1", 32, 24},
    [TRIA_DTYPE_IQ4_NL] = {"iq4_nl", 32, 18},
};
static const dtype_info dtype_f64 = {"f64", 1, 8};

static const dtype_info *find_dtype(int32_t dtype)
{
    if (dtype == TRIA_DTYPE_F64) {
        return &dtype_f64;
    }
    return dtype >= 0 && dtype < TRIA_DTYPE_COUNT ? &dtypes[dtype] : NULL;
}

const char *tria_dtype_name(int32_t dtype)
{
    const dtype_info *info = find_dtype(dtype);
    return info != NULL ? info->name : NULL;
}

int32_t tria_dtype_from_name(const char *name)
{
    if (name == NULL) {
        return -1;
    }
    for (int32_t dtype = 0; dtype < TRIA_DTYPE_COUNT; dtype++) {
        if (strcmp(name, dtypes[dtype].name) == 0) {
            return dtype;
        }
    }
    return strcmp(name, dtype_f64.name) == 0 ? (int32_t)TRIA_DTYPE_F64 : -1;
}

int32_t tria_dtype_block(int32_t dtype)
{
    const dtype_info *info = find_dtype(dtype);
    return info != NULL ? info->block : 0;
}

int32_t tria_dtype_block_bytes(int32_t dtype)
{
    const dtype_info *info = find_dtype(dtype);
    return info != NULL ? info->block_bytes : 0;
}

int64_t tria_dtype_row_bytes(int32_t dtype, int32_t dim)
{
    const dtype_info *info = find_dtype(dtype);
    if (info == NULL || dim < 0 || dim % info->block != 0) {
        return 0;
    }
    return (int64_t)(dim / info->block) * info->block_bytes;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Subnormals below are integer * power of two: exact, and never a subnormal float32. */
static float with_sign(float magnitude, uint32_t negative)
{
    return negative ? -magnitude : magnitude;
}

float tria_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0) {
        return with_sign((float)mantissa * 0x1p-24f, sign);
    }
    exponent = exponent == 0x1f ? 0xff : exponent + 112; /* infinity and NaN stay what they are */
    return float_of_bits(sign | exponent << 23 | mantissa << 13);
}

float tria_bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

float tria_fp8_e4m3fn_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80u) << 24;
    uint32_t exponent = (bits >> 3) & 0xfu;
    uint32_t mantissa = bits & 7u;
    if ((bits & 0x7fu) == 0x7fu) {
        return float_of_bits(sign | 0x7fc00000u); /* no infinities, one NaN per sign */
    }
    if (exponent == 0) {
        return with_sign((float)mantissa * 0x1p-9f, sign);
    }
    return float_of_bits(sign | (exponent + 120) << 23 | mantissa << 20);
}

float tria_fp8_e4m3fnuz_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80u) << 24;
    uint32_t exponent = (bits >> 3) & 0xfu;
    uint32_t mantissa = bits & 7u;
    if (bits == 0x80u) {
        return float_of_bits(0x7fc00000u); /* what would be -0 is the only NaN */
    }
    if (exponent == 0) {
        return with_sign((float)mantissa * 0x1p-10f, sign);
    }
    return float_of_bits(sign | (exponent + 119) << 23 | mantissa << 20);
}

float tria_fp8_e5m2_to_f32(uint8_t bits)
{
    return tria_f16_to_f32((uint16_t)(bits << 8)); /* the upper byte of a float16 */
}

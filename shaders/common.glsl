// common.glsl - bindings and helpers shared by all kernels.
//
// Only 32-bit integers and floats are used, so that every Vulkan 1.2 device can run them: caches are
// read and written as 32-bit words, narrower elements are cut out of them.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WG = 128; // power of two

// Set 0: one event. Where things lie is in the first words of the plan's constants (plan_words.h).
layout(std430, set = 0, binding = 0) readonly buffer Plan { uint plan_words[]; };
layout(std430, set = 0, binding = 1) readonly buffer Input { uint input_words[]; };
layout(std430, set = 0, binding = 2) buffer Raw { float raw[]; };
layout(std430, set = 0, binding = 3) buffer Work { uint work[]; };
layout(std430, set = 0, binding = 4) buffer Keep { uint keep[]; };

#include "plan_words.h"

#define NAN_BITS 0x7fc00000u

// By bits: a compiler may assume that isnan() is false.
bool not_finite(float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u;
}
float nan()
{
    return uintBitsToFloat(NAN_BITS);
}

uint plan_at(uint word)
{
    return plan_words[word];
}
uint kv_word(uint slot, uint field)
{
    return plan_words[plan_words[PLAN_KV] + slot * KV_WORDS + field];
}
uint query_word(uint slot, uint field)
{
    return plan_words[plan_words[PLAN_QUERIES] + slot * QUERY_WORDS + field];
}
uint set_word(uint set, uint field)
{
    return plan_words[plan_words[PLAN_SETS] + set * SET_WORDS + field];
}

uint rows_of_kv(uint slot)
{
    return input_words[plan_words[PLAN_IN_ROWS] + slot];
}
// Every head that obeys a set holds the same rows; this is one of them.
uint rows_of_set(uint set)
{
    return rows_of_kv(set_word(set, SET_KV));
}
int position_of(uint slot, uint row)
{
    uint base = input_words[plan_words[PLAN_IN_POSITION_BASE] + slot];
    return base == NONE ? int(row) : int(input_words[base + row]);
}
bool by_position(uint set)
{
    return input_words[plan_words[PLAN_IN_BY_POSITION] + set] != 0u;
}

uint final_at(uint set, uint row)
{
    return plan_words[PLAN_FINAL] + set * plan_words[PLAN_MAX_ROWS] + row;
}
uint grouped_at(uint slot, uint row)
{
    return plan_words[PLAN_GROUPED] + slot * plan_words[PLAN_MAX_ROWS] + row;
}
bool row_bit(uint region, uint set, uint row)
{
    uint stride = (plan_words[PLAN_MAX_ROWS] + 31u) / 32u;
    return ((work[region + set * stride + row / 32u] >> (row & 31u)) & 1u) != 0u;
}
bool is_protected(uint set, uint row)
{
    return row_bit(plan_words[PLAN_PROTECTED_BITS], set, row);
}

// What stats.comp left at `at`: z = ((s*scale - mean) - rest) / deviation.
float standardised(uint at, float s)
{
    float scale = uintBitsToFloat(work[at + 3u]);
    if (scale < 0.0) {
        return 0.0; // no finite row
    }
    if (not_finite(s)) {
        return nan();
    }
    float inverse = uintBitsToFloat(work[at + 2u]);
    if (inverse == 0.0) {
        return 0.0; // constant
    }
    precise float z = ((s * scale - uintBitsToFloat(work[at])) - uintBitsToFloat(work[at + 1u])) * inverse;
    return z;
}
float query_z(uint query, uint row)
{
    float s = raw[query * plan_words[PLAN_MAX_ROWS] + row];
    if (plan_words[PLAN_NORMALIZE] == NORMALIZE_NONE) {
        return not_finite(s) ? nan() : s;
    }
    return standardised(plan_words[PLAN_QUERY_STATS] + 4u * query, s);
}

// group.comp - max or mean of z over the calibrated query heads of a KV head (specification, 3.2).
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main()
{
    uint row = gl_GlobalInvocationID.x;
    uint slot = gl_WorkGroupID.y;
    if (row >= rows_of_kv(slot)) {
        return;
    }
    bool mean = plan_at(PLAN_GROUP_MEAN) != 0u;
    float result = 0.0;
    uint count = 0u;
    uint end = plan_at(PLAN_GROUP) + kv_word(slot, KV_GROUP_END);
    for (uint i = plan_at(PLAN_GROUP) + kv_word(slot, KV_GROUP_BEGIN); i < end; i++) {
        uint query = plan_at(i);
        if (query_word(query, QUERY_CALIBRATED) == 0u) {
            continue;
        }
        float z = query_z(query, row);
        if (!not_finite(z)) {
            result = count == 0u ? z : mean ? result + z : max(result, z);
            count++;
        }
    }
    if (mean && count > 0u) {
        result /= float(count);
    }
    work[grouped_at(slot, row)] = count > 0u ? floatBitsToUint(result) : NAN_BITS;
}

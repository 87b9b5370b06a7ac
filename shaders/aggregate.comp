// aggregate.comp - the score a set is ranked by (specification, 3.3): mean or max over its members.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

float member_score(uint kind, uint member, uint row)
{
    if (kind == KIND_QUERY) {
        return query_z(member, row);
    }
    float s = uintBitsToFloat(work[grouped_at(member, row)]);
    if (kind == KIND_GROUPED) {
        return s;
    }
    float weight = uintBitsToFloat(kv_word(member, KV_WEIGHT));
    if (plan_at(PLAN_NORMALIZE) == NORMALIZE_NONE) {
        return s * weight;
    }
    return standardised(plan_at(PLAN_GROUPED_STATS) + 4u * member, s) * weight;
}

void main()
{
    uint row = gl_GlobalInvocationID.x;
    uint set = gl_WorkGroupID.y;
    if (row >= rows_of_set(set)) {
        return;
    }
    uint target = plan_at(PLAN_POOL_RADIUS) != 0u ? plan_at(PLAN_POOL_INPUT) + set * plan_at(PLAN_MAX_ROWS) + row
                                                  : final_at(set, row);
    if (by_position(set)) {
        work[target] = NAN_BITS;
        return;
    }
    uint kind = set_word(set, SET_KIND);
    bool mean = set_word(set, SET_MEAN) != 0u;
    uint end = plan_at(PLAN_MEMBERS) + set_word(set, SET_END);
    float result = 0.0;
    float lost = 0.0; // by rounding: a mean can run over thousands of heads
    uint count = 0u;
    for (uint i = plan_at(PLAN_MEMBERS) + set_word(set, SET_BEGIN); i < end; i++) {
        float s = member_score(kind, plan_at(i), row);
        if (not_finite(s)) {
            continue;
        }
        if (mean) {
            precise float term = s - lost;
            precise float sum = result + term;
            precise float error = (sum - result) - term;
            lost = error;
            result = sum;
        } else {
            result = count == 0u ? s : max(result, s);
        }
        count++;
    }
    if (mean && count > 0u) {
        result /= float(count);
    }
    work[target] = count > 0u ? floatBitsToUint(result) : NAN_BITS;
}

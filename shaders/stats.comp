// stats.comp - mean and deviation of one row of scores (specification, 3.1); one workgroup per row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "sums.glsl"

layout(push_constant) uniform Push
{
    uint grouped; // 0: raw scores of query heads, 1: grouped scores of KV heads (mode global)
}
push;

uint slot;
uint kv;
uint set;
bool candidates_only;

float score(uint row)
{
    return push.grouped != 0u ? uintBitsToFloat(work[grouped_at(slot, row)])
                              : raw[slot * plan_at(PLAN_MAX_ROWS) + row];
}

bool counts(uint row, float s)
{
    return !not_finite(s) && !(candidates_only && is_protected(set, row));
}

void main()
{
    uint tid = gl_LocalInvocationID.x;
    slot = gl_WorkGroupID.x;
    bool calibrated;
    if (push.grouped != 0u) {
        kv = slot;
        calibrated = kv_word(kv, KV_N_CALIBRATED) != 0u;
    } else {
        kv = query_word(slot, QUERY_KV);
        calibrated = query_word(slot, QUERY_CALIBRATED) != 0u;
    }
    if (!calibrated) {
        return;
    }
    set = kv_word(kv, KV_SET);
    candidates_only = plan_at(PLAN_NORMALIZE) == NORMALIZE_CANDIDATES && set != NONE;
    uint n_rows = rows_of_kv(kv);

    // A power of two keeps squares and sums of huge scores finite, and changes nothing else.
    float largest = -1.0;
    float any_finite = 0.0;
    for (uint row = tid; row < n_rows; row += WG) {
        float s = score(row);
        if (!not_finite(s)) {
            any_finite = 1.0;
        }
        if (counts(row, s)) {
            largest = max(largest, abs(s));
        }
    }
    largest = workgroup_max(largest);
    any_finite = workgroup_max(any_finite);
    float scale = largest > 1099511627776.0 ? exp2(-80.0) : 1.0;

    vec2 sum = vec2(0.0);
    float count = 0.0;
    for (uint row = tid; row < n_rows; row += WG) {
        float s = score(row);
        if (counts(row, s)) {
            add_exact(sum, s * scale);
            count += 1.0;
        }
    }
    count = workgroup_sum(vec2(count, 0.0)).x; // exact: below 2^24 per thread and in the tree's pairs
    sum = workgroup_sum(sum);
    float mean = count > 0.0 ? (sum.x + sum.y) / count : 0.0;

    // Around the rounded mean, so that nothing cancels; `rest` is what the rounding left.
    vec2 first = vec2(0.0);
    vec2 second = vec2(0.0);
    for (uint row = tid; row < n_rows; row += WG) {
        float s = score(row);
        if (counts(row, s)) {
            precise float d = s * scale - mean;
            precise float square = d * d;
            add_exact(first, d);
            add_exact(second, square);
        }
    }
    first = workgroup_sum(first);
    second = workgroup_sum(second);
    if (tid == 0u) {
        float inverse = 0.0;
        float rest = 0.0;
        if (count > 0.0) {
            rest = (first.x + first.y) / count;
            float deviation = sqrt(max((second.x + second.y) / count - rest * rest, 0.0));
            inverse = deviation > 1e-6 * max(scale, abs(mean + rest)) ? 1.0 / deviation : 0.0;
        }
        uint at = (push.grouped != 0u ? plan_at(PLAN_GROUPED_STATS) : plan_at(PLAN_QUERY_STATS)) + 4u * slot;
        work[at] = floatBitsToUint(mean);
        work[at + 1u] = floatBitsToUint(rest);
        work[at + 2u] = floatBitsToUint(inverse);
        work[at + 3u] = floatBitsToUint(any_finite > 0.0 ? scale : -1.0);
    }
}

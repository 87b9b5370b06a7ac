// pool.comp - the max over rows at most pool_radius positions away (specification, 3.4).
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

float best;
bool found;

void take(uint set, uint row)
{
    float s = uintBitsToFloat(work[plan_at(PLAN_POOL_INPUT) + set * plan_at(PLAN_MAX_ROWS) + row]);
    if (!not_finite(s)) {
        best = found ? max(best, s) : s;
        found = true;
    }
}

// |a - b| without overflow.
uint distance_of(int a, int b)
{
    return a > b ? uint(a) - uint(b) : uint(b) - uint(a);
}

void main()
{
    uint row = gl_GlobalInvocationID.x;
    uint set = gl_WorkGroupID.y;
    uint n_rows = rows_of_set(set);
    if (row >= n_rows) {
        return;
    }
    uint kv = set_word(set, SET_KV);
    uint radius = plan_at(PLAN_POOL_RADIUS);
    int here = position_of(kv, row);
    found = false;
    best = 0.0;
    if (work[plan_at(PLAN_UNSORTED) + set] == 0u) {
        for (uint i = row + 1u; i > 0u && distance_of(position_of(kv, i - 1u), here) <= radius; i--) {
            take(set, i - 1u);
        }
        for (uint i = row + 1u; i < n_rows && distance_of(position_of(kv, i), here) <= radius; i++) {
            take(set, i);
        }
    } else {
        for (uint i = 0u; i < n_rows; i++) {
            if (distance_of(position_of(kv, i), here) <= radius) {
                take(set, i);
            }
        }
    }
    work[final_at(set, row)] = found ? floatBitsToUint(best) : NAN_BITS;
}

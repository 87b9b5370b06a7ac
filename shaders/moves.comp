// moves.comp - the rows of each set that change place (specification, 5). Under `stable` they are the rows
// behind the first gap; under fill_holes the n-th kept row beyond the new length goes to the n-th hole.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main()
{
    uint n = gl_GlobalInvocationID.x;
    uint set = gl_WorkGroupID.y;
    uint count = work[plan_at(PLAN_COUNTS) + set];
    uint rows = plan_at(PLAN_KEEP_ROWS) + set * plan_at(PLAN_MAX_ROWS);
    bool fill = plan_at(PLAN_FILL_HOLES) != 0u;

    // the first kept row that moves
    uint low = 0u;
    uint high = count;
    while (low < high) {
        uint middle = (low + high) / 2u;
        bool stays = fill ? keep[rows + middle] < count : keep[rows + middle] == middle;
        if (stays) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    uint first = low;
    if (n == 0u) {
        work[plan_at(PLAN_N_MOVES) + set] = count - first;
    }
    if (n >= count - first) {
        return;
    }
    uint to = first + n;
    if (fill) {
        // the n-th row that is not kept: behind as many kept rows as have at most n gaps before them
        low = 0u;
        high = first;
        while (low < high) {
            uint middle = (low + high) / 2u;
            if (keep[rows + middle] - middle <= n) {
                low = middle + 1u;
            } else {
                high = middle;
            }
        }
        to = n + low;
    }
    uint at = set * plan_at(PLAN_MAX_ROWS) + n;
    keep[plan_at(PLAN_MOVE_FROM) + at] = keep[rows + first + n];
    keep[plan_at(PLAN_MOVE_TO) + at] = to;
}

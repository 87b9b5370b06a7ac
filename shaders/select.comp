// select.comp - keeps the protected rows and the best candidates of one set (specification, 4); one
// workgroup per set. A radix search over order-preserving keys finds the lowest key kept and how many
// rows with exactly that key fit; a prefix sum then writes rows in ascending order.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

shared uint histogram[256];
shared uint chosen_digit;
shared uint remaining;

uint set;
uint kv;
bool ranked_by_position;

// Ascending with the score; -0 equals +0, NaN is lowest.
uint key_of(uint row)
{
    if (ranked_by_position) {
        return uint(position_of(kv, row)) ^ 0x80000000u;
    }
    uint bits = work[final_at(set, row)];
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0u;
    }
    if (bits == 0x80000000u) {
        bits = 0u;
    }
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

void main()
{
    uint tid = gl_LocalInvocationID.x;
    set = gl_WorkGroupID.x;
    kv = set_word(set, SET_KV);
    ranked_by_position = by_position(set);
    uint n_rows = rows_of_set(set);
    uint n_protected = work[plan_at(PLAN_N_PROTECTED) + set];
    uint limit = input_words[plan_at(PLAN_IN_BUDGETS) + set];
    if (plan_at(PLAN_COUNT_PROMPT) == 0u) {
        limit += work[plan_at(PLAN_N_PROMPT) + set];
    }
    bool everything = limit >= n_rows;
    uint wanted = everything ? n_rows : limit > n_protected ? limit - n_protected : 0u;

    uint prefix = 0u;      // digits of the lowest key kept found so far
    uint prefix_mask = 0u;
    if (!everything && wanted > 0u) {
        if (tid == 0u) {
            remaining = wanted;
        }
        for (int shift = 24; shift >= 0; shift -= 8) {
            for (uint i = tid; i < 256u; i += WG) {
                histogram[i] = 0u;
            }
            barrier();
            for (uint row = tid; row < n_rows; row += WG) {
                if (!is_protected(set, row)) {
                    uint key = key_of(row);
                    if ((key & prefix_mask) == prefix) {
                        atomicAdd(histogram[(key >> shift) & 255u], 1u);
                    }
                }
            }
            barrier();
            if (tid == 0u) {
                uint digit = 255u;
                while (histogram[digit] < remaining) {
                    remaining -= histogram[digit];
                    digit--;
                }
                chosen_digit = digit;
            }
            barrier();
            prefix |= chosen_digit << shift;
            prefix_mask |= 255u << shift;
        }
    }
    barrier();
    uint ties = !everything && wanted > 0u ? remaining : 0u; // rows with key == prefix that fit

    uint n_kept = 0u;
    uint n_tied = 0u;
    uint target = plan_at(PLAN_KEEP_ROWS) + set * plan_at(PLAN_MAX_ROWS);
    for (uint start = 0u; start < n_rows; start += WG) {
        uint row = start + tid;
        bool inside = row < n_rows;
        bool take = inside && everything;
        bool tied = false;
        if (inside && !everything) {
            take = is_protected(set, row);
            if (!take && wanted > 0u) {
                uint key = key_of(row);
                take = key > prefix;
                tied = key == prefix;
            }
        }
        uint total;
        uint rank = workgroup_scan(tied ? 1u : 0u, total) + n_tied;
        n_tied += total;
        take = take || (tied && rank <= ties);
        uint place = workgroup_scan(take ? 1u : 0u, total) + n_kept;
        n_kept += total;
        if (take) {
            keep[target + place - 1u] = row;
        }
    }
    if (tid == 0u) {
        work[plan_at(PLAN_COUNTS) + set] = n_kept;
        work[plan_at(PLAN_LIMITS) + set] = limit;
    }
}

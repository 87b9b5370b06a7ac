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

void count_digit(uint row, uint n_rows, uint prefix, uint prefix_mask, int shift)
{
    if (row < n_rows && !is_protected(set, row)) {
        uint key = key_of(row);
        if ((key & prefix_mask) == prefix) {
            atomicAdd(histogram[(key >> shift) & 255u], 1u);
        }
    }
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
            for (uint row = tid; row < n_rows; row += 4u * WG) {
                count_digit(row, n_rows, prefix, prefix_mask, shift);
                count_digit(row + WG, n_rows, prefix, prefix_mask, shift);
                count_digit(row + 2u * WG, n_rows, prefix, prefix_mask, shift);
                count_digit(row + 3u * WG, n_rows, prefix, prefix_mask, shift);
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

    // 32 rows per invocation and step: bits of those kept whatever their number, and of those tied
    uint n_kept = 0u;
    uint n_tied = 0u;
    uint target = plan_at(PLAN_KEEP_ROWS) + set * plan_at(PLAN_MAX_ROWS);
    for (uint start = 0u; start < n_rows; start += 32u * WG) {
        uint first = start + 32u * tid;
        uint inside = first < n_rows ? min(32u, n_rows - first) : 0u;
        uint take = 0u;
        uint tied = 0u;
        for (uint i = 0u; i < inside; i++) {
            if (everything || is_protected(set, first + i)) {
                take |= 1u << i;
            } else if (wanted > 0u) {
                uint key = key_of(first + i);
                take |= key > prefix ? 1u << i : 0u;
                tied |= key == prefix ? 1u << i : 0u;
            }
        }
        uint total;
        uint before = workgroup_scan(bitCount(tied), total) - bitCount(tied) + n_tied;
        n_tied += total;
        for (uint room = before < ties ? ties - before : 0u; room > 0u && tied != 0u; room--) {
            uint lowest = tied & (~tied + 1u);
            take |= lowest;
            tied ^= lowest;
        }
        uint place = workgroup_scan(bitCount(take), total) - bitCount(take) + n_kept;
        n_kept += total;
        for (; take != 0u; take &= take - 1u) {
            keep[target + place] = first + uint(findLSB(take));
            place++;
        }
    }
    if (tid == 0u) {
        work[plan_at(PLAN_COUNTS) + set] = n_kept;
        work[plan_at(PLAN_LIMITS) + set] = limit;
    }
}

// protect.comp - which rows of each set may not be evicted (specification, 4); 32 rows per invocation.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main()
{
    uint word = gl_GlobalInvocationID.x;
    uint set = gl_WorkGroupID.y;
    uint n_rows = rows_of_set(set);
    if (word * 32u >= n_rows) {
        return;
    }
    uint kv = set_word(set, SET_KV);
    uint n_prompts = input_words[IN_N_PROMPTS];
    uint prompts = input_words[IN_PROMPTS];
    int n_sink = int(input_words[IN_N_SINK]);
    int recent_begin = int(input_words[plan_at(PLAN_IN_RECENT_BEGIN) + set]);
    uint in_range = min(32u, n_rows - word * 32u);
    uint fixed_rows = 0u;
    uint prompt_rows = 0u;
    bool sorted = true;
    for (uint i = 0u; i < in_range; i++) {
        uint row = word * 32u + i;
        int position = position_of(kv, row);
        if (position < n_sink || position >= recent_begin) {
            fixed_rows |= 1u << i;
        }
        for (uint p = 0u; p < n_prompts; p++) {
            if (position >= int(input_words[prompts + 2u * p]) &&
                position < int(input_words[prompts + 2u * p + 1u])) {
                prompt_rows |= 1u << i;
                break;
            }
        }
        sorted = sorted && (row == 0u || position_of(kv, row - 1u) <= position);
    }
    fixed_rows |= prompt_rows | input_words[plan_at(PLAN_IN_PINS) + word];
    fixed_rows &= in_range == 32u ? 0xffffffffu : (1u << in_range) - 1u;
    uint stride = (plan_at(PLAN_MAX_ROWS) + 31u) / 32u;
    work[plan_at(PLAN_PROTECTED_BITS) + set * stride + word] = fixed_rows;
    atomicAdd(work[plan_at(PLAN_N_PROTECTED) + set], bitCount(fixed_rows));
    atomicAdd(work[plan_at(PLAN_N_PROMPT) + set], bitCount(prompt_rows));
    if (!sorted) {
        atomicOr(work[plan_at(PLAN_UNSORTED) + set], 1u);
    }
}

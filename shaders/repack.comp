// repack.comp - carries out the moves of one tensor in place (specification, 5).
//
// A workgroup owns a slice of the row's units in one head and walks the moves in order, a chunk at a time:
// all of a chunk is read before any of it is written, and later chunks only read rows that earlier ones
// do not write (a row never moves down past a source still to come). So no copy of the cache is needed.
//
// A unit is what divides all addresses: TRIA_UNIT bytes. Units narrower than a word need the device's
// 8- or 16-bit storage; without it (TRIA_MASKED) they are cut into words atomically, because
// neighbouring invocations own other parts of the word.
#version 450
#extension GL_GOOGLE_include_directive : require
#if !defined(TRIA_MASKED) && TRIA_UNIT == 2
#extension GL_EXT_shader_16bit_storage : require
#elif !defined(TRIA_MASKED) && TRIA_UNIT == 1
#extension GL_EXT_shader_8bit_storage : require
#endif
#include "common.glsl"

layout(push_constant) uniform Push
{
    uint first_kv;
    uint layer;
    uint n_units;   // per row
    uint per_group; // units a workgroup owns
    uint unit;      // bytes, 1, 2 or 4
    uint base;      // bytes; strides in bytes, modulo 2^32
    uint page_stride;
    uint token_stride;
    uint head_stride;
    uint pack; // units that lie side by side
    uint pack_stride;
    uint zero; // 1: zero the rows behind the last kept one instead
}
push;

#if defined(TRIA_MASKED) || TRIA_UNIT == 4
layout(std430, set = 1, binding = 0) buffer Tensor { uint tensor[]; };
#elif TRIA_UNIT == 2
layout(std430, set = 1, binding = 0) buffer Tensor { uint16_t tensor[]; };
#else
layout(std430, set = 1, binding = 0) buffer Tensor { uint8_t tensor[]; };
#endif

#ifdef TRIA_MASKED
uint load_unit(uint address)
{
    return (atomicOr(tensor[address / 4u], 0u) >> (8u * (address & 3u))) & ((1u << (8u * push.unit)) - 1u);
}
void store_unit(uint address, uint value)
{
    uint shift = 8u * (address & 3u);
    atomicAnd(tensor[address / 4u], ~(((1u << (8u * push.unit)) - 1u) << shift));
    atomicOr(tensor[address / 4u], value << shift);
}
#elif TRIA_UNIT == 4
uint load_unit(uint address)
{
    return tensor[address / 4u];
}
void store_unit(uint address, uint value)
{
    tensor[address / 4u] = value;
}
#elif TRIA_UNIT == 2
uint load_unit(uint address)
{
    return uint(tensor[address / 2u]);
}
void store_unit(uint address, uint value)
{
    tensor[address / 2u] = uint16_t(value);
}
#else
uint load_unit(uint address)
{
    return uint(tensor[address]);
}
void store_unit(uint address, uint value)
{
    tensor[address] = uint8_t(value);
}
#endif

uint table;
uint head_base;

uint address_of(uint row, uint unit)
{
    uint tokens = plan_at(PLAN_TOKENS_PER_PAGE);
    uint at = head_base + (unit / push.pack) * push.pack_stride + (unit % push.pack) * push.unit;
    if (table == NONE) {
        return at + row * push.token_stride;
    }
    return at + input_words[table + row / tokens] * push.page_stride + (row % tokens) * push.token_stride;
}

uint load_moved(uint i, uint total, uint from, uint n_units, uint unit_begin)
{
    return i < total ? load_unit(address_of(keep[from + i / n_units], unit_begin + i % n_units)) : 0u;
}
void store_moved(uint i, uint total, uint to, uint n_units, uint unit_begin, uint value)
{
    if (i < total) {
        store_unit(address_of(keep[to + i / n_units], unit_begin + i % n_units), value);
    }
}

void main()
{
    uint tid = gl_LocalInvocationID.x;
    uint head = gl_WorkGroupID.y;
    uint kv = push.first_kv + head;
    uint set = kv_word(kv, KV_SET);
    if (set == NONE) {
        return;
    }
    table = input_words[plan_at(push.zero != 0u ? PLAN_IN_ZERO_TABLE_BASE : PLAN_IN_TABLE_BASE) + push.layer];
    head_base = push.base + head * push.head_stride;
    uint unit_begin = gl_WorkGroupID.x * push.per_group;
    uint n_units = min(push.per_group, push.n_units - unit_begin);

    if (push.zero != 0u) {
        uint n_rows = rows_of_kv(kv);
        uint begin = work[plan_at(PLAN_COUNTS) + set] + gl_WorkGroupID.z * uint(ZERO_ROWS);
        uint total = begin < n_rows ? min(n_rows - begin, uint(ZERO_ROWS)) * n_units : 0u;
        for (uint i = tid; i < total; i += WG) {
            uint row = begin + i / n_units;
            // pages that another sequence shares are left alone
            if (table == NONE || input_words[table + row / plan_at(PLAN_TOKENS_PER_PAGE)] != NONE) {
                store_unit(address_of(row, unit_begin + i % n_units), 0u);
            }
        }
        return;
    }
    uint moves = set * plan_at(PLAN_MAX_ROWS);
    uint from = plan_at(PLAN_MOVE_FROM) + moves;
    uint to = plan_at(PLAN_MOVE_TO) + moves;
    uint total = work[plan_at(PLAN_N_MOVES) + set] * n_units;
    // Written out, not looped over: llvmpipe gives a shader's loops 65535 iterations in all.
    for (uint start = 0u; start < total; start += 4u * WG) {
        uint i0 = start + tid;
        uint i1 = i0 + WG;
        uint i2 = i1 + WG;
        uint i3 = i2 + WG;
        uint v0 = load_moved(i0, total, from, n_units, unit_begin);
        uint v1 = load_moved(i1, total, from, n_units, unit_begin);
        uint v2 = load_moved(i2, total, from, n_units, unit_begin);
        uint v3 = load_moved(i3, total, from, n_units, unit_begin);
        barrier();
        store_moved(i0, total, to, n_units, unit_begin, v0);
        store_moved(i1, total, to, n_units, unit_begin, v1);
        store_moved(i2, total, to, n_units, unit_begin, v2);
        store_moved(i3, total, to, n_units, unit_begin, v3);
    }
}

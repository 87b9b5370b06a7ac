// score.comp - raw scores of all query heads that read one KV head, for a tile of rows (specification, 2).
//
// The tile's rows are decoded into shared memory once, together with the magnitudes of their rotary
// pairs; then every (row, query head) is two dot products by one invocation. The order of summation is
// the same for every row, so that equal rows get equal scores wherever they are.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 1) const uint TILE_WORDS = 4096; // shared memory for the tile

layout(push_constant) uniform Push
{
    uint first_kv;
    uint layer;
    uint dim;      // elements stored per head
    uint used_dim; // of them decoded: without padding, unless the transform mixes it in
    uint rotary_offset;
    uint n_freq;
    uint interleaved;
    uint n_lin;
    uint tile_rows;
    uint rotation; // the rotation tables of raw keys in the constants, or NONE
    uint hadamard; // block size of the transform, 0 = none
    uint base;     // bytes; strides in bytes, modulo 2^32
    uint page_stride;
    uint token_stride;
    uint head_stride;
    uint pack;
    uint pack_stride;
    uint scale_kind;
    float scale;
    uint scale_base;
    uint scale_page_stride;
    uint scale_token_stride;
    uint scale_head_stride;
}
push;

layout(std430, set = 1, binding = 0) readonly buffer Tensor { uint tensor_words[]; };
layout(std430, set = 1, binding = 1) readonly buffer Scales { float scale_words[]; };

#include "dtype.glsl"

#define SCALE_NONE 0u
#define SCALE_ROW 3u
#define SCALE_HEAD 2u

shared float tile[TILE_WORDS];
shared uint any_nonzero;

uint table;
uint head;

uint page_of(uint row)
{
    return table == NONE ? 0u : input_words[table + row / plan_at(PLAN_TOKENS_PER_PAGE)];
}
uint token_of(uint row)
{
    return table == NONE ? row : row % plan_at(PLAN_TOKENS_PER_PAGE);
}

float load_key(uint row, uint d)
{
    uint page = page_of(row);
    uint token = token_of(row);
    uint at = push.base + page * push.page_stride + token * push.token_stride + head * push.head_stride;
#ifdef BLOCK_BYTES
    return load_block_element(at + (d / 32u) * BLOCK_BYTES, d % 32u);
#else
    float value = load_element(at + (d / push.pack) * push.pack_stride + (d % push.pack) * ELEMENT_BYTES);
    if (push.scale_kind == SCALE_NONE) {
        return value;
    }
    float scale = push.scale;
    if (push.scale_kind >= SCALE_HEAD) {
        uint scale_at = push.scale_base + head * push.scale_head_stride;
        if (push.scale_kind == SCALE_ROW) {
            scale_at += page * push.scale_page_stride + token * push.scale_token_stride;
        }
        scale = scale_words[scale_at / 4u];
    }
    precise float product = value * scale;
    return product;
#endif
}

uvec2 pair_of(uint f)
{
    return push.interleaved != 0u ? uvec2(2u * f, 2u * f + 1u) + push.rotary_offset
                                  : uvec2(f, push.n_freq + f) + push.rotary_offset;
}

// e^{i p w_f}: the product of the table entries of the three digits of p in base 2048.
vec2 rotation_of(uint position, uint f)
{
    vec2 turn = vec2(1.0, 0.0);
    for (uint digit = 0u; digit < 3u; digit++) {
        uint value = (position >> (11u * digit)) & 2047u;
        uint at = push.rotation + 2u * ((digit * 2048u + value) * push.n_freq + f);
        vec2 entry = vec2(uintBitsToFloat(plan_at(at)), uintBitsToFloat(plan_at(at + 1u)));
        turn = vec2(turn.x * entry.x - turn.y * entry.y, turn.x * entry.y + turn.y * entry.x);
    }
    return turn;
}

float dot_lin(uint lin, uint x, uint begin, uint end)
{
    precise float even = 0.0;
    precise float odd = 0.0;
    uint d = begin;
    for (; d + 1u < end; d += 2u) {
        even += uintBitsToFloat(input_words[lin + d]) * tile[x + d];
        odd += uintBitsToFloat(input_words[lin + d + 1u]) * tile[x + d + 1u];
    }
    if (d < end) {
        even += uintBitsToFloat(input_words[lin + d]) * tile[x + d];
    }
    return even + odd;
}

void main()
{
    uint tid = gl_LocalInvocationID.x;
    head = gl_WorkGroupID.y;
    uint kv = push.first_kv + head;
    uint n_rows = rows_of_kv(kv);
    uint first_row = gl_WorkGroupID.x * push.tile_rows;
    if (first_row >= n_rows) {
        return;
    }
    uint tile_rows = min(push.tile_rows, n_rows - first_row);
    uint stride = (push.used_dim + push.n_freq) | 1u; // odd: neighbouring rows use different banks
    table = input_words[plan_at(PLAN_IN_TABLE_BASE) + push.layer];
    if (tid == 0u) {
        any_nonzero = 0u;
    }
    barrier();

    bool nonzero = false;
    for (uint i = tid; i < tile_rows * push.used_dim; i += WG) {
        uint r = i / push.used_dim;
        uint d = i % push.used_dim;
        float value = load_key(first_row + r, d);
        nonzero = nonzero || (floatBitsToUint(value) & 0x7fffffffu) != 0u;
        tile[r * stride + d] = value;
    }
    if (nonzero) {
        atomicOr(any_nonzero, 1u);
    }
    barrier();
    if (tid == 0u && any_nonzero != 0u) {
        atomicOr(work[plan_at(PLAN_NONZERO) + kv], 1u);
    }

    // Magnitudes; raw keys are then turned to their positions. (A transform is undone further down.)
    if (push.hadamard == 0u) {
        for (uint i = tid; i < tile_rows * push.n_freq; i += WG) {
            uint r = i / push.n_freq;
            uint f = i % push.n_freq;
            uvec2 at = pair_of(f) + r * stride;
            vec2 k = vec2(tile[at.x], tile[at.y]);
            tile[r * stride + push.used_dim + f] = sqrt(k.x * k.x + k.y * k.y);
            if (push.rotation != NONE) {
                vec2 turn = rotation_of(uint(position_of(kv, first_row + r)), f);
                tile[at.x] = k.x * turn.x - k.y * turn.y;
                tile[at.y] = k.x * turn.y + k.y * turn.x;
            }
        }
        barrier();
    }

    uint group = plan_at(PLAN_GROUP) + kv_word(kv, KV_GROUP_BEGIN);
    uint n_pairs = tile_rows * (kv_word(kv, KV_GROUP_END) - kv_word(kv, KV_GROUP_BEGIN));
    for (uint i = tid; i < n_pairs; i += WG) {
        uint r = i % tile_rows;
        uint query = plan_at(group + i / tile_rows);
        float score = 0.0;
        if (query_word(query, QUERY_CALIBRATED) != 0u) {
            // What is not calibrated does not enter, even if it is NaN; a transform mixes dims within its blocks.
            bool whole = query_word(query, QUERY_CONTENT) != 0u;
            uint block = max(push.hadamard, 1u);
            uint begin = whole ? 0u : push.rotary_offset / block * block;
            uint end = whole ? push.used_dim
                             : (push.rotary_offset + 2u * push.n_freq + block - 1u) / block * block;
            uint lin = plan_at(PLAN_IN_LIN) + query_word(query, QUERY_LIN);
            for (uint o = 0u; o < push.n_lin && !not_finite(score); o++) {
                float s = dot_lin(lin + o * push.dim, r * stride, begin, end);
                score = o == 0u || s > score || not_finite(s) ? s : score;
            }
        }
        raw[query * plan_at(PLAN_MAX_ROWS) + first_row + r] = score;
    }

    if (push.hadamard != 0u) {
        barrier();
        for (uint half_size = 1u; half_size < push.hadamard; half_size *= 2u) {
            for (uint i = tid; i < tile_rows * (push.used_dim / 2u); i += WG) {
                uint r = i / (push.used_dim / 2u);
                uint b = i % (push.used_dim / 2u);
                uint at = r * stride + (b / half_size) * 2u * half_size + b % half_size;
                float x = tile[at];
                float y = tile[at + half_size];
                tile[at] = x + y;
                tile[at + half_size] = x - y;
            }
            barrier();
        }
        // The signs are not undone: they change no magnitude.
        float norm = inversesqrt(float(push.hadamard));
        for (uint i = tid; i < tile_rows * push.n_freq; i += WG) {
            uint r = i / push.n_freq;
            uint f = i % push.n_freq;
            uvec2 at = pair_of(f) + r * stride;
            vec2 k = vec2(tile[at.x], tile[at.y]) * norm;
            tile[r * stride + push.used_dim + f] = sqrt(k.x * k.x + k.y * k.y);
        }
        barrier();
    }

    for (uint i = tid; i < n_pairs; i += WG) {
        uint r = i % tile_rows;
        uint query = plan_at(group + i / tile_rows);
        uint at = query * plan_at(PLAN_MAX_ROWS) + first_row + r;
        if (query_word(query, QUERY_CALIBRATED) == 0u) {
            raw[at] = nan();
            continue;
        }
        uint mag = plan_at(PLAN_MAG) + query_word(query, QUERY_MAG);
        uint x = r * stride + push.used_dim;
        precise float sum = 0.0;
        for (uint f = 0u; f < push.n_freq; f++) {
            sum += uintBitsToFloat(plan_at(mag + f)) * tile[x + f];
        }
        float score = raw[at] + sum;
        if (not_finite(score)) {
            score = nan();
            if (kv_word(kv, KV_SET) != NONE) { // layers nobody ranks are no concern
                atomicOr(work[plan_at(PLAN_BAD_ROWS) + (first_row + r) / 32u], 1u << ((first_row + r) & 31u));
            }
        }
        raw[at] = score;
    }
}

/*
 * decode.h - the elements of a stored row as float, before its scale. Bit layouts: IEEE 754 half, bfloat16,
 * OCP FP8 (e4m3fn, e5m2), the "fnuz" variant of e4m3, and ggml's blocks of 32 (ggml-common.h).
 *
 * load<N>() reads the elements d ... d + N - 1 of a row that is contiguous, N being 4 or 8 and d a multiple
 * of it; `row` may be in device or shared memory. load1() reads one.
 */
#ifndef TRIA_CUDA_DECODE_H
#define TRIA_CUDA_DECODE_H

#include "port.h"
#include "tria/kv_view.h"

namespace tria_gpu
{
template <int N> struct alignas(4 * N) Words {
    uint32_t w[N];
};
struct alignas(16) Float4 {
    float v[4];
};

struct DecodeF32 {
    template <class P> static PORT_DEVICE float load1(P row, int d)
    {
        return port_load<float>(row, 4 * (int64_t)d);
    }
    template <int N, class P> static PORT_DEVICE void load(P row, int d, float *x)
    {
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            if (i % 4 == 0) {
                const Float4 four = port_load<Float4>(row, 4 * (int64_t)(d + i));
                x[i] = four.v[0];
                x[i + 1] = four.v[1];
                x[i + 2] = four.v[2];
                x[i + 3] = four.v[3];
            }
        }
    }
};

/* 16-bit types: V::value(bits). */
template <class V> struct Decode16 {
    template <class P> static PORT_DEVICE float load1(P row, int d)
    {
        return V::value(port_load<uint16_t>(row, 2 * (int64_t)d));
    }
    template <int N, class P> static PORT_DEVICE void load(P row, int d, float *x)
    {
        const Words<N / 2> words = port_load<Words<N / 2>>(row, 2 * (int64_t)d);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = V::value((uint16_t)(words.w[i / 2] >> (16 * (i % 2))));
        }
    }
};
struct ValueF16 {
    static PORT_DEVICE float value(uint16_t bits)
    {
        return port_half(bits);
    }
};
struct ValueBf16 {
    static PORT_DEVICE float value(uint16_t bits)
    {
        return port_bits_float((uint32_t)bits << 16);
    }
};

/* 8-bit types. */
template <class V> struct Decode8 {
    template <class P> static PORT_DEVICE float load1(P row, int d)
    {
        return V::value(port_load<uint8_t>(row, d));
    }
    template <int N, class P> static PORT_DEVICE void load(P row, int d, float *x)
    {
        const Words<N / 4> words = port_load<Words<N / 4>>(row, d);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = V::value((uint8_t)(words.w[i / 4] >> (8 * (i % 4))));
        }
    }
};
/* e4m3 has half's exponent and mantissa, less wide: moved into place they are off by the biases'
 * difference. */
struct ValueE4m3fn {
    static PORT_DEVICE float value(uint8_t bits)
    {
        const float magnitude = port_half((uint16_t)((bits & 0x7f) << 7)) * 256.0f;
        const float value = (bits & 0x80) != 0 ? -magnitude : magnitude;
        return (bits & 0x7f) == 0x7f ? port_bits_float(0x7fc00000u) : value;
    }
};
struct ValueE4m3fnuz {
    static PORT_DEVICE float value(uint8_t bits)
    {
        const float magnitude = port_half((uint16_t)((bits & 0x7f) << 7)) * 128.0f;
        const float value = (bits & 0x80) != 0 ? -magnitude : magnitude;
        return bits == 0x80 ? port_bits_float(0x7fc00000u) : value;
    }
};
struct ValueE5m2 {
    static PORT_DEVICE float value(uint8_t bits)
    {
        return port_half((uint16_t)(bits << 8));
    }
};
struct ValueInt8 {
    static PORT_DEVICE float value(uint8_t bits)
    {
        return (float)(int8_t)bits;
    }
};

/* Blocks of 32: B::load<N>(block, offset, x) decodes N elements from `offset` on. Blocks begin at even
 * addresses only. */
template <class B> struct DecodeBlock {
    template <class P> static PORT_DEVICE float load1(P row, int d)
    {
        float x[4];
        load<4>(row, d & ~3, x);
        return (d & 2) != 0 ? ((d & 1) != 0 ? x[3] : x[2]) : (d & 1) != 0 ? x[1] : x[0];
    }
    template <int N, class P> static PORT_DEVICE void load(P row, int d, float *x)
    {
        B::template load<N>(row + (int64_t)(d / 32) * B::bytes, d % 32, x);
    }
};
/* Four bytes from an even address. */
template <class P> PORT_DEVICE uint32_t load_word(P bytes, int offset)
{
    return (uint32_t)port_load<uint16_t>(bytes, offset) | (uint32_t)port_load<uint16_t>(bytes, offset + 2)
                                                              << 16;
}
/* N 4-bit codes: elements 0-15 are the low nibbles of 16 bytes, 16-31 the high ones. */
template <int N, class P> PORT_DEVICE void load_nibbles(P bytes, int offset, int *codes)
{
    const int shift = offset >= 16 ? 4 : 0;
    const int at = offset % 16;
    PORT_UNROLL
    for (int i = 0; i < N; i += 4) {
        const uint32_t word = load_word(bytes, at + i);
        codes[i] = (int)(word >> shift & 15);
        codes[i + 1] = (int)(word >> (8 + shift) & 15);
        codes[i + 2] = (int)(word >> (16 + shift) & 15);
        codes[i + 3] = (int)(word >> (24 + shift) & 15);
    }
}
struct BlockQ8_0 {
    static constexpr int bytes = 34;
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        const float d = port_half(port_load<uint16_t>(block, 0));
        PORT_UNROLL
        for (int i = 0; i < N; i += 4) {
            const uint32_t word = load_word(block, 2 + offset + i);
            x[i] = d * (float)(int8_t)word;
            x[i + 1] = d * (float)(int8_t)(word >> 8);
            x[i + 2] = d * (float)(int8_t)(word >> 16);
            x[i + 3] = d * (float)(int8_t)(word >> 24);
        }
    }
};
struct BlockQ4_0 {
    static constexpr int bytes = 18;
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        int codes[N];
        const float d = port_half(port_load<uint16_t>(block, 0));
        load_nibbles<N>(block + 2, offset, codes);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = d * (float)(codes[i] - 8);
        }
    }
};
struct BlockQ4_1 {
    static constexpr int bytes = 20;
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        int codes[N];
        const float d = port_half(port_load<uint16_t>(block, 0));
        const float m = port_half(port_load<uint16_t>(block, 2));
        load_nibbles<N>(block + 4, offset, codes);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = port_fma(d, (float)codes[i], m);
        }
    }
};
struct BlockQ5_0 {
    static constexpr int bytes = 22;
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        int codes[N];
        const float d = port_half(port_load<uint16_t>(block, 0));
        const uint32_t fifth = load_word(block, 2) >> offset;
        load_nibbles<N>(block + 6, offset, codes);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = d * (float)((codes[i] | (int)(fifth >> i & 1) << 4) - 16);
        }
    }
};
struct BlockQ5_1 {
    static constexpr int bytes = 24;
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        int codes[N];
        const float d = port_half(port_load<uint16_t>(block, 0));
        const float m = port_half(port_load<uint16_t>(block, 2));
        const uint32_t fifth = load_word(block, 4) >> offset;
        load_nibbles<N>(block + 8, offset, codes);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = port_fma(d, (float)(codes[i] | (int)(fifth >> i & 1) << 4), m);
        }
    }
};
struct BlockIq4Nl {
    static constexpr int bytes = 18;
    /* The 16 values, -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, four bytes to a word. */
    static PORT_DEVICE float value(int code)
    {
        const uint32_t low = (code & 4) != 0 ? 0xf6eaddcfu : 0xbfad9881u;
        const uint32_t high = (code & 4) != 0 ? 0x71594535u : 0x26190d01u;
        return (float)(int8_t)(((code & 8) != 0 ? high : low) >> (8 * (code & 3)));
    }
    template <int N, class P> static PORT_DEVICE void load(P block, int offset, float *x)
    {
        int codes[N];
        const float d = port_half(port_load<uint16_t>(block, 0));
        load_nibbles<N>(block + 2, offset, codes);
        PORT_UNROLL
        for (int i = 0; i < N; i++) {
            x[i] = d * value(codes[i]);
        }
    }
};

/* A switch over `dtype`: CASE(value, type that decodes it). */
#define TRIA_FOR_DTYPE(dtype, CASE)                                                                        \
    switch (dtype) {                                                                                       \
        CASE(TRIA_DTYPE_F32, DecodeF32)                                                                    \
        CASE(TRIA_DTYPE_F16, Decode16<ValueF16>)                                                           \
        CASE(TRIA_DTYPE_BF16, Decode16<ValueBf16>)                                                         \
        CASE(TRIA_DTYPE_FP8_E4M3FN, Decode8<ValueE4m3fn>)                                                  \
        CASE(TRIA_DTYPE_FP8_E4M3FNUZ, Decode8<ValueE4m3fnuz>)                                              \
        CASE(TRIA_DTYPE_FP8_E5M2, Decode8<ValueE5m2>)                                                      \
        CASE(TRIA_DTYPE_INT8, Decode8<ValueInt8>)                                                          \
        CASE(TRIA_DTYPE_Q8_0, DecodeBlock<BlockQ8_0>)                                                      \
        CASE(TRIA_DTYPE_Q4_0, DecodeBlock<BlockQ4_0>)                                                      \
        CASE(TRIA_DTYPE_Q4_1, DecodeBlock<BlockQ4_1>)                                                      \
        CASE(TRIA_DTYPE_Q5_0, DecodeBlock<BlockQ5_0>)                                                      \
        CASE(TRIA_DTYPE_Q5_1, DecodeBlock<BlockQ5_1>)                                                      \
        CASE(TRIA_DTYPE_IQ4_NL, DecodeBlock<BlockIq4Nl>)                                                   \
    default:                                                                                               \
        break;                                                                                             \
    }
} // namespace tria_gpu

#endif

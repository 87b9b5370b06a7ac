// dtype.glsl - decoding of stored elements, exactly (the element types of kv_view.h). TRIA_DTYPE is the
// number of the type. tensor_words is the buffer the key rows lie in.

#define F32 0
#define F16 1
#define BF16 2
#define FP8_E4M3FN 3
#define FP8_E4M3FNUZ 4
#define FP8_E5M2 5
#define INT8 6
#define Q8_0 7
#define Q4_0 8
#define Q4_1 9
#define Q5_0 10
#define Q5_1 11
#define IQ4_NL 12

#if TRIA_DTYPE == F32
#define ELEMENT_BYTES 4u
#elif TRIA_DTYPE == F16 || TRIA_DTYPE == BF16
#define ELEMENT_BYTES 2u
#elif TRIA_DTYPE <= INT8
#define ELEMENT_BYTES 1u
#elif TRIA_DTYPE == Q8_0
#define BLOCK_BYTES 34u
#elif TRIA_DTYPE == Q4_0 || TRIA_DTYPE == IQ4_NL
#define BLOCK_BYTES 18u
#elif TRIA_DTYPE == Q4_1
#define BLOCK_BYTES 20u
#elif TRIA_DTYPE == Q5_0
#define BLOCK_BYTES 22u
#elif TRIA_DTYPE == Q5_1
#define BLOCK_BYTES 24u
#endif

uint load_u8(uint address)
{
    return (tensor_words[address / 4u] >> (8u * (address & 3u))) & 0xffu;
}
uint load_u16(uint address) // even
{
    return (tensor_words[address / 4u] >> (8u * (address & 2u))) & 0xffffu;
}

// Integer arithmetic, because unpackHalf2x16 may flush subnormals.
float from_f16(uint bits)
{
    uint sign = (bits & 0x8000u) << 16;
    uint exponent = (bits >> 10) & 0x1fu;
    uint mantissa = bits & 0x3ffu;
    if (exponent == 0u) {
        float magnitude = float(mantissa) * 5.9604644775390625e-8; // 2^-24
        return uintBitsToFloat(floatBitsToUint(magnitude) | sign);
    }
    exponent = exponent == 0x1fu ? 0xffu : exponent + 112u;
    return uintBitsToFloat(sign | (exponent << 23) | (mantissa << 13));
}

// 1 sign, 4 exponent, 3 mantissa bits; exponents are larger by `shift` in a float32.
float from_e4m3(uint bits, uint shift, float smallest)
{
    uint sign = (bits & 0x80u) << 24;
    uint exponent = (bits >> 3) & 0xfu;
    uint mantissa = bits & 7u;
    if (exponent == 0u) {
        return uintBitsToFloat(floatBitsToUint(float(mantissa) * smallest) | sign);
    }
    return uintBitsToFloat(sign | ((exponent + shift) << 23) | (mantissa << 20));
}

#ifdef ELEMENT_BYTES
float load_element(uint address)
{
#if TRIA_DTYPE == F32
    return uintBitsToFloat(tensor_words[address / 4u]);
#elif TRIA_DTYPE == F16
    return from_f16(load_u16(address));
#elif TRIA_DTYPE == BF16
    return uintBitsToFloat(load_u16(address) << 16);
#elif TRIA_DTYPE == FP8_E4M3FN
    uint bits = load_u8(address);
    return (bits & 0x7fu) == 0x7fu ? nan() : from_e4m3(bits, 120u, 0.001953125); // 2^-9
#elif TRIA_DTYPE == FP8_E4M3FNUZ
    uint bits = load_u8(address);
    return bits == 0x80u ? nan() : from_e4m3(bits, 119u, 0.0009765625); // 2^-10
#elif TRIA_DTYPE == FP8_E5M2
    return from_f16(load_u8(address) << 8);
#else
    return float(int(load_u8(address) << 24) >> 24);
#endif
}
#else
#if TRIA_DTYPE == IQ4_NL
const int iq4_nl_values[16] = int[16](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
#endif

// Element e of the block at `block`: elements e and e + 16 share byte e of the nibbles.
float load_block_element(uint block, uint e)
{
    float delta = from_f16(load_u16(block));
#if TRIA_DTYPE == Q8_0
    precise float value = delta * float(int(load_u8(block + 2u + e) << 24) >> 24);
#else
#if TRIA_DTYPE == Q4_0 || TRIA_DTYPE == IQ4_NL
    const uint nibbles = 2u;
#elif TRIA_DTYPE == Q4_1
    const uint nibbles = 4u;
#elif TRIA_DTYPE == Q5_0
    const uint nibbles = 6u;
#else
    const uint nibbles = 8u;
#endif
    uint code = (load_u8(block + nibbles + (e & 15u)) >> (e < 16u ? 0u : 4u)) & 15u;
#if TRIA_DTYPE == Q5_0 || TRIA_DTYPE == Q5_1
    code |= ((load_u8(block + nibbles - 4u + e / 8u) >> (e & 7u)) & 1u) << 4;
#endif
#if TRIA_DTYPE == IQ4_NL
    precise float value = delta * float(iq4_nl_values[code]);
#elif TRIA_DTYPE == Q4_0
    precise float value = delta * float(int(code) - 8);
#elif TRIA_DTYPE == Q5_0
    precise float value = delta * float(int(code) - 16);
#else
    precise float value = delta * float(code) + from_f16(load_u16(block + 2u));
#endif
#endif
    return value;
}
#endif

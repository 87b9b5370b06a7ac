/*
 * floats_avx512.h - vectors of floats for AVX-512, as far as the loops over floats and those over bytes
 * share them. The including file defines OP, the attributes of its functions.
 */
#ifndef TRIA_CPU_FLOATS_AVX512_H
#define TRIA_CPU_FLOATS_AVX512_H

#include <immintrin.h>

typedef __m512 vf;

OP vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
OP void vf_store(float *to, vf x)
{
    _mm512_storeu_ps(to, x);
}
OP vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
OP vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
OP vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

#endif

/*
 * floats_neon.h - vectors of floats for NEON, as far as the loops over floats and those over bytes share
 * them. The including file defines OP, the attributes of its functions.
 */
#ifndef TRIA_CPU_FLOATS_NEON_H
#define TRIA_CPU_FLOATS_NEON_H

#include <arm_neon.h>

typedef float32x4_t vf;

OP vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
OP void vf_store(float *to, vf x)
{
    vst1q_f32(to, x);
}
OP vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
OP vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
OP vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

#endif

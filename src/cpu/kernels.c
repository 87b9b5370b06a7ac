/* kernels.c - what the machine offers, and the kernels that make the most of it. */
#include "cpu/kernels.h"
#include "cpu/kernels_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

int32_t tria_cpu_features(void)
{
    int32_t features = 0;
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    /* The builtins also ask the operating system whether it saves the wider registers. */
    __builtin_cpu_init();
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        features |= TRIA_CPU_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            features |= TRIA_CPU_AVX512;
            features |= __builtin_cpu_supports("avx512vnni") ? TRIA_CPU_VNNI : 0;
        }
    }
#elif defined(__aarch64__)
    features |= TRIA_CPU_NEON; /* part of the base architecture */
#if defined(__ARM_FEATURE_DOTPROD)
    features |= TRIA_CPU_DOT;
#elif defined(__linux__)
    features |= (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? TRIA_CPU_DOT : 0;
#endif
#endif
    return features;
}

const tria_cpu_kernels *tria_cpu_kernels_for(int32_t features)
{
    static const tria_cpu_kernels *const best_first[] = {
#if defined(__x86_64__)
        &tria_cpu_kernels_avx512_vnni,
        &tria_cpu_kernels_avx512,
        &tria_cpu_kernels_avx2,
#elif defined(__aarch64__)
        &tria_cpu_kernels_neon_dot,
        &tria_cpu_kernels_neon,
#endif
        &tria_cpu_kernels_c,
    };
    for (size_t i = 0; i < TRIA_ARRAY_LEN(best_first); i++) {
        if ((best_first[i]->features & ~features) == 0) {
            return best_first[i];
        }
    }
    return &tria_cpu_kernels_c;
}

const char *tria_cpu_kernels_name(const tria_cpu_kernels *kernels)
{
    return kernels->name;
}

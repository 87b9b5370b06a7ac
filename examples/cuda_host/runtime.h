/* runtime.h - the GPU runtime: CUDA's, or HIP's under the same names. */
#ifndef TRIA_EXAMPLE_RUNTIME_H
#define TRIA_EXAMPLE_RUNTIME_H

#if defined(TRIA_EMULATED)
#include "emulation.h" /* the tests' CPU emulation */
#define BACKEND "cuda"
#elif defined(__HIP_PLATFORM_AMD__)
#include "port_hip.h"
#define BACKEND "hip"
#else
#include <cuda_runtime_api.h>
#define BACKEND "cuda"
#endif

#endif

/* port_runtime.h - the runtime for host code: CUDA's names, whatever is behind them; see port.h. */
#ifndef TRIA_CUDA_PORT_RUNTIME_H
#define TRIA_CUDA_PORT_RUNTIME_H

#if defined(TRIA_EMULATED)
#include "emulation.h"
#elif defined(__HIP_PLATFORM_AMD__)
#include "port_hip.h"
#else
#include <cuda_runtime_api.h>
#define PORT_NAME "cuda"

/* Whether kernels can read such memory. */
inline bool port_reachable(const cudaPointerAttributes &attributes)
{
    return attributes.type != cudaMemoryTypeUnregistered;
}

/* A device's identity; false when the runtime does not tell. */
inline bool port_uuid(const cudaDeviceProp &properties, unsigned char *uuid)
{
    __builtin_memcpy(uuid, properties.uuid.bytes, 16);
    return true;
}
#endif

#endif

/* target.c - a libFuzzer target; FUZZ_KIND is one function of kinds.h. */
#include "kinds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_KIND(data, size);
    return 0;
}

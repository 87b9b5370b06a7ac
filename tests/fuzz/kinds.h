/* kinds.h - one function per reader that takes any bytes. */
#ifndef TRIA_FUZZ_KINDS_H
#define TRIA_FUZZ_KINDS_H

#include <stddef.h>
#include <stdint.h>

void fuzz_dialect_a(const uint8_t *data, size_t size);
void fuzz_dialect_b(const uint8_t *data, size_t size);
void fuzz_dialect_c(const uint8_t *data, size_t size);
void fuzz_tria5(const uint8_t *data, size_t size);      /* lengths and checksums are set right first */
void fuzz_checkpoint(const uint8_t *data, size_t size); /* likewise */
#ifdef TRIA_TEST_IMPORT
void fuzz_zip(const uint8_t *data, size_t size);   /* a whole torch file */
void fuzz_torch(const uint8_t *data, size_t size); /* its data.pkl, in a good archive with four storages */
void fuzz_json(const uint8_t *data, size_t size);
void fuzz_safetensors(const uint8_t *data, size_t size);
void fuzz_model(const uint8_t *data, size_t size);
#endif

#endif

/* crc32c.h - the checksum of our files (Castagnoli polynomial, as in iSCSI, RFC 3720). */
#ifndef TRIA_CRC32C_H
#define TRIA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `size` bytes that follow bytes with the checksum `crc`; start with 0. */
uint32_t tria_crc32c(uint32_t crc, const void *data, size_t size);

#endif

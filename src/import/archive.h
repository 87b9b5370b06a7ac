/* archive.h - the zip container of a torch file, through libzip. */
#ifndef TRIA_IMPORT_ARCHIVE_H
#define TRIA_IMPORT_ARCHIVE_H

#include "import_internal.h"

typedef struct archive archive;

/* Opens an archive that lies in memory, which must stay. */
tria_status archive_open(const unsigned char *data, size_t size, archive **opened, tria_error *error);
void archive_close(archive *opened); /* NULL is allowed */

/*
 * Reads a member named <root>/`name`, <root> being the folder that holds data.pkl. Members are stored, as
 * torch writes them: a compressed one is refused, so that no file expands beyond its own size. The bytes
 * are from malloc().
 */
tria_status archive_read(archive *opened, const char *name, unsigned char **bytes, size_t *size,
                         tria_error *error);
bool archive_has(archive *opened, const char *name);

#endif

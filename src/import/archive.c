/* archive.c - see archive.h. */
#include "archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

enum { NAME_SIZE = 512, END_RECORD_SIZE = 22, MIN_MEMBER_SIZE = 76, MAX_COMMENT = 65535 };

struct archive {
    zip_t *zip;
    size_t file_size;
    char root[NAME_SIZE];
};

/* The end record, which ends the file, and its count of members, before libzip allocates for each: a member
 * takes a local header of 30 and a central one of 46 bytes at least. */
static bool plausible_count(const unsigned char *data, size_t size)
{
    for (size_t at = size; at-- > 0 && size - at <= END_RECORD_SIZE + MAX_COMMENT;) {
        if (size - at >= END_RECORD_SIZE && memcmp(data + at, "PK\5\6", 4) == 0) {
            const size_t count = (size_t)data[at + 10] | (size_t)data[at + 11] << 8;
            const size_t comment = (size_t)data[at + 20] | (size_t)data[at + 21] << 8;
            return size - at == END_RECORD_SIZE + comment && count != 0xffff &&
                   count <= size / MIN_MEMBER_SIZE;
        }
    }
    return false;
}

/* The folder of the only member that is called data.pkl. */
static tria_status find_root(archive *opened, tria_error *error)
{
    const zip_int64_t count = zip_get_num_entries(opened->zip, 0);
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(opened->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name != NULL ? strchr(name, '/') : NULL;
        if (slash != NULL && strcmp(slash, "/data.pkl") == 0) {
            if ((size_t)(slash - name) >= sizeof(opened->root)) {
                return import_fail(error, TRIA_E_FORMAT, "the archive's folder has a name of %zu bytes",
                                   (size_t)(slash - name));
            }
            memcpy(opened->root, name, (size_t)(slash - name));
            return TRIA_OK;
        }
    }
    return import_fail(error, TRIA_E_FORMAT,
                       "a zip archive of %lld members without <folder>/data.pkl: not a torch file",
                       (long long)count);
}

tria_status archive_open(const unsigned char *data, size_t size, archive **out, tria_error *error)
{
    zip_error_t zip_error;
    zip_source_t *source;
    archive *opened;
    tria_status status;
    if (!plausible_count(data, size)) {
        return import_fail(error, TRIA_E_FORMAT,
                           "a damaged zip archive: no end record at its end, or one of too many members");
    }
    opened = calloc(1, sizeof(*opened));
    if (opened == NULL) {
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate an archive");
    }
    opened->file_size = size;
    zip_error_init(&zip_error);
    source = zip_source_buffer_create(data, size, 0, &zip_error);
    opened->zip = source != NULL ? zip_open_from_source(source, ZIP_RDONLY, &zip_error) : NULL;
    if (opened->zip == NULL) {
        status =
            import_fail(error, TRIA_E_FORMAT, "a damaged zip archive: %s", zip_error_strerror(&zip_error));
        zip_source_free(source);
    } else {
        status = find_root(opened, error);
    }
    zip_error_fini(&zip_error);
    if (status != TRIA_OK) {
        archive_close(opened);
        return status;
    }
    *out = opened;
    return TRIA_OK;
}

void archive_close(archive *opened)
{
    if (opened != NULL) {
        if (opened->zip != NULL) {
            zip_discard(opened->zip);
        }
        free(opened);
    }
}

static zip_int64_t locate(archive *opened, const char *name)
{
    char full[2 * NAME_SIZE];
    const int length = snprintf(full, sizeof(full), "%s/%s", opened->root, name);
    return length > 0 && (size_t)length < sizeof(full) ? zip_name_locate(opened->zip, full, ZIP_FL_ENC_RAW)
                                                       : -1;
}

bool archive_has(archive *opened, const char *name)
{
    return locate(opened, name) >= 0;
}

tria_status archive_read(archive *opened, const char *name, unsigned char **out, size_t *size,
                         tria_error *error)
{
    const zip_int64_t index = locate(opened, name);
    zip_stat_t info;
    zip_file_t *member;
    unsigned char *bytes;
    if (index < 0) {
        return import_fail(error, TRIA_E_FORMAT, "the archive has no member %s/%s", opened->root, name);
    }
    zip_stat_init(&info);
    if (zip_stat_index(opened->zip, (zip_uint64_t)index, 0, &info) != 0 ||
        info.comp_method != ZIP_CM_STORE || info.encryption_method != ZIP_EM_NONE ||
        info.size != info.comp_size || info.size > opened->file_size) {
        return import_fail(error, TRIA_E_FORMAT,
                           "the member %s is compressed, encrypted or longer than the file", name);
    }
    bytes = malloc(info.size > 0 ? info.size : 1);
    if (bytes == NULL) {
        return import_fail(error, TRIA_E_MEMORY, "cannot allocate %llu bytes",
                           (unsigned long long)info.size);
    }
    member = zip_fopen_index(opened->zip, (zip_uint64_t)index, 0);
    /* libzip compares the checksum when it reaches the end, so one byte more is asked for. */
    if (member == NULL || zip_fread(member, bytes, info.size) != (zip_int64_t)info.size ||
        zip_fread(member, &(char){0}, 1) != 0) {
        if (member != NULL) {
            zip_fclose(member);
        }
        free(bytes);
        return import_fail(error, TRIA_E_FORMAT, "the member %s is damaged", name);
    }
    zip_fclose(member);
    *out = bytes;
    *size = (size_t)info.size;
    return TRIA_OK;
}

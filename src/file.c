/* file.c - whole files in and out. */
#include "calibration_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tria_status tria_read_file(const char *path, const tria_env *env, unsigned char **data, size_t *size,
                           tria_error *error)
{
    struct stat info;
    size_t used = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return tria_fail(error, TRIA_E_IO, "%s", strerror(errno));
    }
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(file);
        return tria_fail(error, TRIA_E_IO, "not a regular file");
    }
    *size = (size_t)info.st_size;
    *data = tria_alloc(env, *size + 1, 1); /* one more, so that an empty file is not an error here */
    if (*data == NULL) {
        close(file);
        return tria_fail_memory(error, *size, "the file");
    }
    while (used < *size) {
        const ssize_t got = read(file, *data + used, *size - used);
        if (got <= 0) {
            tria_free(env, *data);
            close(file);
            return tria_fail(error, TRIA_E_IO, "read failed after %zu of %zu bytes", used, *size);
        }
        used += (size_t)got;
    }
    close(file);
    return TRIA_OK;
}

/* Creates a file beside `path` that no one else has. */
static int create_beside(const char *path, char *name, size_t size, tria_error *error)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        const int length = snprintf(name, size, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        if (length < 0 || (size_t)length >= size) {
            tria_fail(error, TRIA_E_IO, "the path is too long");
            return -1;
        }
        const int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0 || errno != EEXIST) {
            if (file < 0) {
                tria_fail(error, TRIA_E_IO, "cannot create %s: %s", name, strerror(errno));
            }
            return file;
        }
    }
    tria_fail(error, TRIA_E_IO, "cannot create a temporary file beside %s", path);
    return -1;
}

/* A device or a pipe, which is written to: a file renamed over it would take its place. */
static int open_special(const char *path, tria_error *error)
{
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) {
        tria_fail(error, TRIA_E_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return file;
}

tria_status tria_write_file(const char *path, const void *data, size_t size, tria_error *error)
{
    char name[PATH_MAX];
    const unsigned char *bytes = data;
    struct stat info;
    size_t written = 0;
    const bool special = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    const int file = special ? open_special(path, error) : create_beside(path, name, sizeof(name), error);
    if (file < 0) {
        return TRIA_E_IO;
    }
    while (written < size) {
        const ssize_t count = write(file, bytes + written, size - written);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            break;
        }
        written += (size_t)count;
    }
    const bool ok = written == size;
    const int reason = errno;
    if (close(file) != 0 || !ok || (!special && rename(name, path) != 0)) {
        tria_fail(error, TRIA_E_IO, "cannot write %s: %s", path, strerror(ok ? errno : reason));
        if (!special) {
            unlink(name);
        }
        return TRIA_E_IO;
    }
    return TRIA_OK;
}

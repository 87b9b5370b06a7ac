/*
 * backends.c - finding plugins, opening devices. A plugin stays loaded while its tria_backends or a
 * device opened through it lives.
 */
#include "plan_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

typedef struct backend {
    const char *name;
    const tria_backend_v1_table *table; /* NULL: not loaded (yet) */
    void *library;
    bool tried;
    char path[PATH_SIZE];
    char reason[TRIA_ERROR_MESSAGE_SIZE];
} backend;

struct tria_backends {
    tria_env env;
    pthread_mutex_t lock;
    int32_t references; /* the creator's and one per open device */
    char *plugin_path;
    backend list[5];
};

void tria_device_params_init(tria_device_params *params)
{
    const tria_device_params defaults = TRIA_DEVICE_PARAMS_INIT;
    *params = defaults;
}

tria_status tria_backends_create(const char *plugin_path, const tria_env *env, tria_backends **out,
                                 tria_error *error)
{
    static const char *const names[] = {"cpu", "reference", "cuda", "hip", "vulkan"};
    tria_env full_env;
    tria_backends *backends;
    if (out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_backends_create: backends is NULL");
    }
    TRIA_TRY(tria_env_import(&full_env, env, error));
    backends = tria_alloc(&full_env, 1, sizeof(*backends));
    if (backends == NULL) {
        return tria_fail_memory(error, sizeof(*backends), "the list of backends");
    }
    backends->env = full_env;
    backends->references = 1;
    backends->plugin_path = tria_strdup(&full_env, plugin_path);
    if (backends->plugin_path == NULL || pthread_mutex_init(&backends->lock, NULL) != 0) {
        tria_free(&full_env, backends->plugin_path);
        tria_free(&full_env, backends);
        return tria_fail(error, TRIA_E_MEMORY, "cannot set up the list of backends");
    }
    for (size_t i = 0; i < TRIA_ARRAY_LEN(names); i++) {
        backends->list[i].name = names[i];
    }
    backends->list[0].table = &tria_cpu_backend;
    backends->list[1].table = &tria_reference_backend;
    *out = backends;
    return TRIA_OK;
}

static void unreference(tria_backends *backends)
{
    pthread_mutex_lock(&backends->lock);
    const int32_t left = --backends->references;
    pthread_mutex_unlock(&backends->lock);
    if (left > 0) {
        return;
    }
    const tria_env env = backends->env;
    for (size_t i = 0; i < TRIA_ARRAY_LEN(backends->list); i++) {
        if (backends->list[i].library != NULL) {
            dlclose(backends->list[i].library);
        }
    }
    pthread_mutex_destroy(&backends->lock);
    tria_free(&env, backends->plugin_path);
    tria_free(&env, backends);
}

void tria_backends_destroy(tria_backends *backends)
{
    if (backends != NULL) {
        unreference(backends);
    }
}

int32_t tria_backends_count(const tria_backends *backends)
{
    return (int32_t)TRIA_ARRAY_LEN(backends->list);
}

const char *tria_backends_name(const tria_backends *backends, int32_t index)
{
    return index >= 0 && index < tria_backends_count(backends) ? backends->list[index].name : NULL;
}

/* Adopts a library that exports a usable table; otherwise says why not. */
static bool adopt(backend *b, const char *path)
{
    snprintf(b->path, sizeof(b->path), "%s", path);
    b->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (b->library == NULL) {
        snprintf(b->reason, sizeof(b->reason), "%s", dlerror());
        return false;
    }
    const tria_backend_v1_table *table = dlsym(b->library, "tria_backend_v1");
    if (table == NULL) {
        snprintf(b->reason, sizeof(b->reason), "%.300s exports no tria_backend_v1", path);
    } else if (table->version != TRIA_BACKEND_V1_VERSION ||
               table->struct_size < sizeof(tria_backend_v1_table)) {
        snprintf(b->reason, sizeof(b->reason),
                 "%.300s has table version %u of %u bytes, need version %d of %zu", path, table->version,
                 table->struct_size, TRIA_BACKEND_V1_VERSION, sizeof(tria_backend_v1_table));
    } else if (table->name == NULL || strcmp(table->name, b->name) != 0) {
        snprintf(b->reason, sizeof(b->reason), "%.300s is a plugin for %.100s", path,
                 table->name != NULL ? table->name : "nothing");
    } else if (table->probe == NULL || table->device_info == NULL || table->device_open == NULL ||
               table->device_close == NULL || table->device_name == NULL || table->supports == NULL ||
               table->plan_create == NULL || table->plan_destroy == NULL || table->score == NULL ||
               table->select == NULL || table->compact == NULL || table->synchronize == NULL ||
               table->workspace_size == NULL) {
        snprintf(b->reason, sizeof(b->reason), "%.300s has an empty slot in its table", path);
    } else {
        b->table = table;
        b->reason[0] = '\0';
        return true;
    }
    dlclose(b->library);
    b->library = NULL;
    return false;
}

/* Tries folder/libtria-<name>.so; true when a file was there, usable or not. */
static bool try_folder(backend *b, const char *folder, size_t length)
{
    char path[PATH_SIZE];
    const int used = snprintf(path, sizeof(path), "%.*s/libtria-%s.so", (int)length, folder, b->name);
    if (length == 0 || used < 0 || (size_t)used >= sizeof(path) || access(path, F_OK) != 0) {
        return false;
    }
    adopt(b, path);
    return true;
}

static bool try_folders(backend *b, const char *folders)
{
    while (folders != NULL && *folders != '\0') {
        const size_t length = strcspn(folders, ":");
        if (try_folder(b, folders, length)) {
            return true;
        }
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* With the lock held. */
static void load(tria_backends *backends, backend *b)
{
    Dl_info self;
    if (b->table != NULL || b->tried) {
        return;
    }
    b->tried = true;
    if (try_folders(b, backends->plugin_path) || try_folders(b, getenv("TRIA_BACKEND_PATH"))) {
        return;
    }
    if (dladdr((const void *)(uintptr_t)tria_backends_create, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');
        char folder[PATH_SIZE];
        const int used = slash == NULL ? -1
                                       : snprintf(folder, sizeof(folder), "%.*s/tria",
                                                  (int)(slash - self.dli_fname), self.dli_fname);
        if (used > 0 && (size_t)used < sizeof(folder) &&
            (try_folder(b, folder, (size_t)used) ||
             try_folder(b, folder, (size_t)used - strlen("/tria")))) {
            return;
        }
    }
    snprintf(b->reason, sizeof(b->reason),
             "no plugin libtria-%s.so in the given path, TRIA_BACKEND_PATH or beside the library", b->name);
}

static backend *find(tria_backends *backends, const char *name)
{
    for (size_t i = 0; i < TRIA_ARRAY_LEN(backends->list); i++) {
        if (strcmp(backends->list[i].name, name) == 0) {
            return &backends->list[i];
        }
    }
    return NULL;
}

tria_status tria_backends_info(tria_backends *backends, int32_t index, tria_backend_info *out,
                               tria_error *error)
{
    tria_backend_info info;
    if (backends == NULL || index < 0 || index >= tria_backends_count(backends)) {
        return tria_fail(error, TRIA_E_ARGUMENT, "there is no backend number %d", index);
    }
    backend *b = &backends->list[index];
    memset(&info, 0, sizeof(info));
    pthread_mutex_lock(&backends->lock);
    load(backends, b);
    info.struct_size = sizeof(info);
    info.name = b->name;
    info.path = b->path;
    info.built_in = index < 2;
    if (b->table == NULL) {
        memcpy(info.reason, b->reason, sizeof(info.reason));
    } else {
        tria_error detail = {0};
        const int32_t count = b->table->probe(&detail);
        info.n_devices = count > 0 ? count : 0;
        if (count <= 0) {
            snprintf(info.reason, sizeof(info.reason), "%s",
                     detail.message[0] != '\0' ? detail.message : "no device found");
        }
    }
    pthread_mutex_unlock(&backends->lock);
    return tria_struct_export(out, &info, sizeof(info), sizeof(info), "tria_backend_info", error);
}

tria_status tria_device_open(tria_backends *backends, const char *name, const tria_device_params *params,
                             tria_device **out, tria_error *error)
{
    tria_device_params full = TRIA_DEVICE_PARAMS_INIT;
    if (backends == NULL || name == NULL || out == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT, "tria_device_open: an argument is NULL");
    }
    if (params != NULL) {
        TRIA_TRY(
            tria_struct_import(&full, sizeof(full), sizeof(full), params, "tria_device_params", error));
    }
    backend *b = find(backends, name);
    if (b == NULL) {
        return tria_fail(error, TRIA_E_BACKEND, "there is no backend called \"%s\"", name);
    }
    tria_device *device = tria_alloc(&backends->env, 1, sizeof(*device));
    if (device == NULL) {
        return tria_fail_memory(error, sizeof(*device), "a device");
    }
    pthread_mutex_lock(&backends->lock);
    load(backends, b);
    device->table = b->table;
    backends->references += b->table != NULL;
    pthread_mutex_unlock(&backends->lock);
    if (device->table == NULL) {
        tria_free(&backends->env, device);
        return tria_fail(error, TRIA_E_BACKEND, "%s: %s", name, b->reason);
    }
    device->env = backends->env;
    device->backends = backends;
    tria_host_init(&device->host, &device->env);
    const tria_status status = device->table->device_open(&full, &device->host, &device->handle, error);
    if (status != TRIA_OK) {
        tria_free(&backends->env, device);
        unreference(backends);
        return tria_fail_in(error, status, "%s", name);
    }
    *out = device;
    return TRIA_OK;
}

void tria_device_close(tria_device *device)
{
    if (device == NULL) {
        return;
    }
    tria_backends *backends = device->backends;
    const tria_env env = device->env;
    device->table->device_close(device->handle);
    tria_free(&env, device);
    unreference(backends);
}

const char *tria_device_backend(const tria_device *device)
{
    return device->table->name;
}

const char *tria_device_name(const tria_device *device)
{
    return device->table->device_name(device->handle);
}

tria_status tria_device_copy_seconds(tria_device *device, size_t bytes, double *seconds, tria_error *error)
{
    if (device == NULL || bytes == 0 || seconds == NULL) {
        return tria_fail(error, TRIA_E_ARGUMENT,
                         "tria_device_copy_seconds: device or seconds is NULL or there are no bytes");
    }
    if (device->table->copy_seconds == NULL) {
        return tria_fail(error, TRIA_E_UNSUPPORTED, "%s does not measure its copies", device->table->name);
    }
    return device->table->copy_seconds(device->handle, bytes, seconds, error);
}

/*
 * tria/base.h - versions, status codes, error details, allocator and log callbacks.
 *
 * Conventions that hold in every header of the library:
 *  - All functions that can fail return a tria_status: TRIA_OK (0) or a negative code. They take a
 *    `tria_error *error` as their last argument, which may be NULL; on failure it is filled with the
 *    code and one line that names what was wrong and where. On success it is left alone. Nothing is
 *    written to the other outputs on failure, unless a function says otherwise.
 *  - Handles are opaque. A handle may be used by one thread at a time; different handles may be used by
 *    different threads at the same time. Handles that are const arguments (models, calibrations) may
 *    be shared by any number of threads. There is no global mutable state.
 *  - Parameter structs begin with `struct_size`. Fill them with their TRIA_..._INIT macro or with
 *    tria_..._init(), which are equivalent, then set what differs. Fields are only ever appended.
 *    A struct that is larger than the library knows is refused when the part it does not know is not
 *    all zero bytes.
 *  - Strings are UTF-8 and NUL-terminated. Pointers that are inputs are only read during the call
 *    unless a function says that they are kept.
 */
#ifndef TRIA_BASE_H
#define TRIA_BASE_H

#include <stddef.h>
#include <stdint.h>

#define TRIA_VERSION_MAJOR 0
#define TRIA_VERSION_MINOR 1
#define TRIA_VERSION_PATCH 0
/* The ABI version, apart from the release version; it is the SONAME's number. */
#define TRIA_ABI_VERSION 0

#if defined(_WIN32)
#if defined(TRIA_BUILD)
#define TRIA_API __declspec(dllexport)
#else
#define TRIA_API __declspec(dllimport)
#endif
#else
#define TRIA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes. Their values are pinned: they never change meaning. */
typedef int32_t tria_status;
enum {
    TRIA_OK = 0,
    /* the caller's mistakes */
    TRIA_E_ARGUMENT = -1,    /* an argument or setting that can never work */
    TRIA_E_STATE = -2,       /* a call that is not allowed now; the state is unchanged */
    TRIA_E_CAPACITY = -3,    /* more rows, sequences or bytes than were allowed for */
    TRIA_E_UNSUPPORTED = -4, /* valid, but not offered by this backend or format */
    TRIA_E_MISMATCH = -5,    /* calibration, model and view disagree */
    TRIA_E_SHARED_PAGE = -6, /* a page that must be written is shared: copy it first */
    /* files */
    TRIA_E_FORMAT = -20, /* not a file of a known kind, or one that is damaged */
    TRIA_E_LOSSY = -21,  /* the target format cannot hold what is there */
    TRIA_E_IO = -22,     /* the operating system failed a read or write */
    /* resources */
    TRIA_E_MEMORY = -40,    /* the allocator returned NULL */
    TRIA_E_BACKEND = -41,   /* no such backend, or its plugin cannot be loaded */
    TRIA_E_DEVICE = -42,    /* no such device, device lost, or a driver call failed */
    TRIA_E_CANCELLED = -43, /* a callback of the caller asked to stop */
    TRIA_E_INTERNAL = -60   /* a bug in the library */
};

/* A short, constant English text for a status code; never NULL. */
TRIA_API const char *tria_strerror(tria_status status);

#define TRIA_ERROR_MESSAGE_SIZE 512

/* Filled by failing calls. Owned by the caller, needs no initialisation and no release. */
typedef struct tria_error {
    tria_status code;
    char message[TRIA_ERROR_MESSAGE_SIZE]; /* always terminated */
} tria_error;

/* The library's version at run time: "0.1.0", and major * 10000 + minor * 100 + patch. */
TRIA_API const char *tria_version_string(void);
TRIA_API int32_t tria_version_number(void);

typedef enum tria_log_level {
    TRIA_LOG_ERROR = 0,
    TRIA_LOG_WARNING = 1,
    TRIA_LOG_INFO = 2,
    TRIA_LOG_DEBUG = 3
} tria_log_level;

/*
 * Where memory comes from and where log lines go. Passed by pointer to the functions that create
 * handles and copied there; NULL stands for malloc/free and no logging.
 */
typedef struct tria_env {
    size_t struct_size;
    /* Returns `size` > 0 bytes aligned to `alignment` (a power of two), or NULL. */
    void *(*allocate)(void *context, size_t size, size_t alignment);
    /* Releases what `allocate` returned; `pointer` is never NULL. Both are NULL or neither is. */
    void (*release)(void *context, void *pointer);
    void *allocator_context;
    /* Called with one line without a newline, on the calling thread. NULL: no logging. */
    void (*log)(void *context, tria_log_level level, const char *line);
    void *log_context;
    int32_t log_level; /* lines above this level are not formatted; default TRIA_LOG_INFO */
    int32_t reserved;  /* 0 */
} tria_env;

#define TRIA_ENV_INIT                                                                                      \
    {                                                                                                      \
        sizeof(tria_env), NULL, NULL, NULL, NULL, NULL, TRIA_LOG_INFO, 0                                   \
    }
TRIA_API void tria_env_init(tria_env *env);

#ifdef __cplusplus
}
#endif
#endif

/*
 * tria/import.h - files that need a zip or JSON library: torch .pt, JSON, safetensors, model descriptions.
 *
 * A separate library (libtria-import, pkg-config tria-import), so that an engine that only reads .tria
 * files depends on nothing. Files are data: nothing in them is ever executed, and reading one takes at most
 * four times its size in memory (JSON text, whose numbers may be a byte long: up to 24 times).
 */
#ifndef TRIA_IMPORT_H
#define TRIA_IMPORT_H

#include "tria/calibration.h"
#include "tria/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Any calibration the library knows, those of tria_calibration_read() included; the kind is found from
 * the content. `model` (may be NULL) supplies what the file lacks: KV heads, frequencies, the number of
 * query heads of files that only name some. Errors: FORMAT, MISMATCH (the model cannot be that of the
 * file), MEMORY; tria_import_calibration_load() also IO.
 */
TRIA_API tria_status tria_import_calibration_read(const void *data, size_t size, const tria_model *model,
                                                  const tria_env *env, tria_calibration **calibration,
                                                  tria_error *error);
TRIA_API tria_status tria_import_calibration_load(const char *path, const tria_model *model,
                                                  const tria_env *env, tria_calibration **calibration,
                                                  tria_error *error);

/* As tria_calibration_write() and tria_calibration_save(), TRIA_FORMAT_JSON included. */
TRIA_API tria_status tria_import_calibration_write(const tria_calibration *calibration, int32_t format,
                                                   int32_t allow_lossy, void *data, size_t capacity,
                                                   size_t *size, tria_error *error);
TRIA_API tria_status tria_import_calibration_save(const tria_calibration *calibration, int32_t format,
                                                  int32_t allow_lossy, const char *path, tria_error *error);

/*
 * A model description: ours, or a Hugging Face config.json as it is (the text part of a multimodal one).
 * `context_length` is the number of tokens the engine runs with, for scalings that depend on it (dynamic
 * NTK, longrope); 0 = the length the model was trained for. Errors: FORMAT (names the key), UNSUPPORTED
 * (a RoPE scaling or a kind of layer the library does not know), MEMORY; the second also IO, with
 * context_length 0.
 */
TRIA_API tria_status tria_import_model_read(const void *data, size_t size, int64_t context_length,
                                            const tria_env *env, tria_model **model, tria_error *error);
TRIA_API tria_status tria_import_model_load(const char *path, const tria_env *env, tria_model **model,
                                            tria_error *error);

#ifdef __cplusplus
}
#endif
#endif

/* calibration_internal.h - the calibration handle, and what its readers and writers share. */
#ifndef TRIA_CALIBRATION_INTERNAL_H
#define TRIA_CALIBRATION_INTERNAL_H

#include "internal.h"
#include "tria/calibration.h"

#define TRIA_MAGIC 0x54524941U /* dialects A and B, and our version 5 */

/*
 * One calibrated head; heads that are not calibrated take no memory, so that a short file cannot ask for
 * a large one. One block holds, one after the other, q_mean_real[F], q_mean_imag[F], q_abs_mean[F],
 * fourth[F], content_mean[n_content], content_abs[n_content]. `fourth` is the array that dialects A and B
 * call mrl or r_f; their writers disagree on its meaning (specification, section 7), so it is only kept to
 * be written back. n_content is 0 or the layer's head_dim - rotary_dim.
 */
typedef struct tria_calibration_head_data {
    int32_t q_head;
    int32_t n_content;
    float *values;
} tria_calibration_head_data;

/* One layer: geometry as the file states it. A file may leave n_kv_heads and rope_theta unknown: 0. */
typedef struct tria_calibration_layer_data {
    tria_layer_params geometry; /* inv_freq, freq_scale_sq: below, NULL when they follow from theta */
    int32_t n_freq;
    float budget_scale;
    uint64_t n_tokens;
    tria_calibration_head_data *heads; /* ascending q_head */
    int32_t n_heads;
    int32_t capacity;
    double *inv_freq;
    double *freq_scale_sq;
} tria_calibration_layer_data;

struct tria_calibration {
    tria_env env;
    int32_t format;
    int32_t n_layers;
    tria_calibration_layer_data *layers;
    int32_t explicit_presence;
    int32_t explicit_geometry;
    int32_t explicit_style;
    int32_t capture_point;
    double rope_theta;
    float attn_scale;
    char *model_name;
    char *fingerprint;
    char *provenance;
    char *default_policy;
};

/* The arrays of a head's block, in order. */
enum {
    TRIA_HEAD_REAL = 0,
    TRIA_HEAD_IMAG = 1,
    TRIA_HEAD_ABS = 2,
    TRIA_HEAD_FOURTH = 3,
    TRIA_HEAD_CONTENT_MEAN = 4,
    TRIA_HEAD_CONTENT_ABS = 5
};
static inline float *tria_head_array(const tria_calibration_layer_data *layer,
                                     const tria_calibration_head_data *head, int32_t array)
{
    const int32_t n_freq = array < 4 ? array : 4;
    const int32_t n_content = array < 4 ? 0 : array - 4;
    return head->values + (size_t)n_freq * (size_t)layer->n_freq +
           (size_t)n_content * (size_t)head->n_content;
}

/* An empty calibration with `n_layers` layers without attention. */
tria_status tria_calibration_alloc(const tria_env *env, int32_t n_layers, tria_calibration **calibration,
                                   tria_error *error);
/* Sets a layer's geometry: checks it (n_kv_heads 0 and rope_theta 0 mean unknown), copies inv_freq and
 * freq_scale_sq where given. `code` is what a bad value is called: FORMAT in readers. */
tria_status tria_calibration_set_geometry(tria_calibration *calibration, int32_t layer,
                                          const tria_layer_params *geometry, tria_status code,
                                          tria_error *error);
/* A head's zeroed block, new or (an error) already there. */
tria_status tria_calibration_add_head(tria_calibration *calibration, int32_t layer, int32_t q_head,
                                      int32_t n_content, tria_calibration_head_data **head,
                                      tria_error *error);
/* NULL when the head is not calibrated. */
tria_calibration_head_data *tria_calibration_find_head(const tria_calibration *calibration, int32_t layer,
                                                       int32_t q_head);
/* FORMAT or ARGUMENT when a statistic of the head is not finite; names it. */
tria_status tria_calibration_check_head(const tria_calibration *calibration, int32_t layer,
                                        const tria_calibration_head_data *head, tria_status code,
                                        tria_error *error);
/* Sets `fourth` to |q_mean| / q_abs_mean, 0 where that is 0. */
void tria_calibration_fill_concentration(const tria_calibration_layer_data *layer,
                                         const tria_calibration_head_data *head);
/* Replaces one of the texts; `length` bytes, not necessarily terminated, cut at the first NUL. */
tria_status tria_calibration_set_text(tria_calibration *calibration, char **field, const char *text,
                                      size_t length, tria_error *error);

/* Little-endian bytes in and out. */
static inline uint32_t tria_load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t tria_load_u64(const unsigned char *p)
{
    return (uint64_t)tria_load_u32(p) | (uint64_t)tria_load_u32(p + 4) << 32;
}
float tria_load_f32(const unsigned char *p);
double tria_load_f64(const unsigned char *p);
void tria_load_f32s(const unsigned char *p, size_t count, float *out);

/* Appends to a buffer that may be NULL or too small: `used` always counts what would be needed. */
typedef struct tria_writer {
    unsigned char *data;
    size_t capacity;
    size_t used;
} tria_writer;
void tria_write_bytes(tria_writer *writer, const void *bytes, size_t count);
void tria_write_zeros(tria_writer *writer, size_t count);
void tria_write_u32(tria_writer *writer, uint32_t value);
void tria_write_u64(tria_writer *writer, uint64_t value);
void tria_write_f32(tria_writer *writer, float value);
void tria_write_f64(tria_writer *writer, double value);
void tria_write_f32s(tria_writer *writer, const float *values, size_t count);

/* Whether the header of a file with the right magic, version 1 to 4, could be dialect A's: the dialects
 * share magic and versions, but where A has zeros B has sizes that are never zero. */
bool tria_dialect_a_plausible(const unsigned char *data, size_t size);

/* One reader per dialect. Each is given a file whose first 8 bytes fit it. */
tria_status tria_read_dialect_a(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **calibration, tria_error *error);
tria_status tria_read_dialect_b(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **calibration, tria_error *error);
tria_status tria_read_dialect_c(const unsigned char *data, size_t size, const tria_env *env,
                                tria_calibration **calibration, tria_error *error);
tria_status tria_read_tria5(const unsigned char *data, size_t size, const tria_env *env,
                            tria_calibration **calibration, tria_error *error);

/* What a format cannot hold, gathered while it is written. */
typedef struct tria_losses {
    bool allowed;
    size_t used;
    char text[384];
} tria_losses;
void tria_lose(tria_losses *losses, const char *what, ...) __attribute__((format(printf, 2, 3)));
/* Texts, token counts and what else every format but ours lacks; `name` formats keep the model's name. */
void tria_lose_extras(tria_losses *losses, const tria_calibration *calibration, bool has_name,
                      bool has_scales);

/* Writers, of everything the format can hold. */
tria_status tria_write_tria5(const tria_calibration *calibration, tria_writer *writer);
tria_status tria_write_dialect_a(const tria_calibration *calibration, int32_t version, tria_losses *losses,
                                 tria_writer *writer, tria_error *error);
tria_status tria_write_dialect_b3(const tria_calibration *calibration, tria_losses *losses,
                                  tria_writer *writer, tria_error *error);

/* file.c: writes through a temporary file beside `path`, straight to what is not a regular file. */
tria_status tria_write_file(const char *path, const void *data, size_t size, tria_error *error);
/* A regular file's bytes, to be freed with tria_free(). */
tria_status tria_read_file(const char *path, const tria_env *env, unsigned char **data, size_t *size,
                           tria_error *error);

#endif

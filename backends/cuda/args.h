/*
 * args.h - what the host tells the kernels. One block of descriptions per plan, made once, and one per
 * event of a call; both lie in device memory.
 */
#ifndef TRIA_CUDA_ARGS_H
#define TRIA_CUDA_ARGS_H

#include <stdint.h>

namespace tria_gpu
{
/* Query heads that one thread scores at a time: the columns of a chunk. With agg = max a chunk is one query
 * head and the columns are offsets, this many per pass. */
static constexpr int columns = 4;
/* Rotary pairs, or content dimensions, per step of the dot product. */
static constexpr int step = 4;
/* Neighbouring threads that add up the statistics of one column of a tile. */
static constexpr int parts = 8;
/* Threads per block of everything but scoring. */
static constexpr int block_threads = 256;
static constexpr int select_threads = 512;
static constexpr int score_threads = 256;
/* Blocks of that many threads a multiprocessor should have registers for. */
static constexpr int score_blocks = 2;

/* What a compaction moves of a KV slot. */
enum LaneKind { LANE_K, LANE_V, LANE_K_SCALES, LANE_V_SCALES, LANE_POSITIONS, LANE_KINDS };

/* K or V of a layer, and how its rows lie: `n_runs` pieces of `run_bytes`, `run_stride` apart. */
struct Tensor {
    int64_t page_stride;
    int64_t token_stride;
    int64_t head_stride;
    int64_t scale_page_stride;
    int64_t scale_token_stride;
    int64_t scale_head_stride;
    int64_t run_stride;
    int32_t run_bytes;
    int32_t n_runs;
    int32_t dtype;
    int32_t scale_kind;
    float scale;
    int32_t tokens_side_by_side; /* tokens lie closer together than the runs of one */
};

/* A head's dimensions. */
struct Shape {
    int32_t head_dim;
    int32_t rotary_offset;
    int32_t n_freq;
    int32_t half;
    int32_t whole_steps; /* pairs can be loaded `step` at a time */
};

struct Layer {
    Tensor k;
    Tensor v;
    Tensor scored; /* the part of K that is scored: without padding */
    Shape shape;
    int32_t dim;           /* stored, with padding */
    int32_t element_bytes; /* 0 for block types */
    int32_t pack;
    int32_t first_kv;
    int32_t n_kv;
    int32_t window;
    int32_t by_position;
    int32_t phase_layer;
    int64_t dim_stride;
    int64_t phases;      /* doubles, into an event's phases; of the first layer with these frequencies */
    int64_t rotations;   /* floats, into the rotation tables (raw keys) */
    int64_t frequencies; /* into inv_freq and freq_scale_sq */
    double weight;
};

struct Kv {
    int32_t layer;
    int32_t head;
    int32_t set; /* -1: none */
    int32_t first_chunk;
    int32_t n_chunks;
    int32_t first_query; /* its calibrated query heads, into Plan::calibrated */
    int32_t n_queries;
    int32_t same_set; /* first slot of its set: must hold the same rows */
    int32_t lender;   /* first slot among those whose scores may be borrowed together, -1: not compared */
    int32_t scope;    /* which entry of `differs` that is */
};

struct Set {
    int32_t slot;  /* the first KV slot, whose rows and positions stand for all */
    int32_t first; /* its slots, into Plan::set_slots */
    int32_t n_slots;
    int32_t borrows; /* no calibrated query head of its own */
    int32_t scope;   /* whose scores are borrowed: entry of `differs` */
    int32_t by_position;
};

struct Chunk {
    int64_t lin;            /* floats, into an event's lin: [pass][pair][2][columns] */
    int64_t mag;            /* floats, into Plan::mag: [pair][columns] */
    int64_t content;        /* floats, into Plan::content: [content dim][columns]; -1: none */
    int32_t query[columns]; /* query slots, -1: unused column */
    int32_t has_content[columns];
    int32_t layer; /* whose keys are scored */
    int32_t slot;
};

struct Query {
    int64_t stats; /* into q_real and q_imag */
    int32_t layer; /* its own */
    int32_t reserved;
};

/* Fixed for a plan; passed by value, points into device memory. */
struct Plan {
    const Layer *layers;
    const Kv *kvs;
    const Set *sets;
    const Chunk *chunks;
    const Query *queries;
    const int32_t *set_slots;
    const int32_t *calibrated;
    const float *q_real;
    const float *q_imag;
    const double *inv_freq;
    const double *freq_scale_sq;
    const float *mag;
    const float *content;
    const float *rotations;
    const float *signs; /* of the Hadamard transform, or NULL */
    int32_t n_layers;
    int32_t n_kv;
    int32_t n_sets;
    int32_t n_chunks;
    int32_t n_queries;
    int32_t n_offsets;
    int32_t n_passes;    /* of `columns` offsets; 1 with agg = mean */
    int32_t offsets_max; /* agg = max */
    int32_t disable_trig;
    int32_t k_state;
    int32_t hadamard_size;
    int32_t tokens_per_page;
    int32_t normalize_over;
    int32_t group_mean;
    int32_t mode;
    int32_t layers_mean;
    int32_t pool_radius;
    int32_t n_sink;
    int32_t n_recent;
    int32_t protect_prefill;
    int32_t count_prompt;
    int32_t fill_holes;
    int32_t max_rows;
    int32_t row_words; /* 32-bit words of a row mask */
    int32_t tile_rows; /* of the score kernel */
    int32_t n_tiles;   /* of the larger of both kinds of tile */
    int32_t reduces;   /* sets are combined with those of other ranks */
};

struct EventLayer {
    unsigned char *k;
    unsigned char *v; /* NULL: none, or inside K */
    unsigned char *k_scales;
    unsigned char *v_scales;
    const int32_t *page_table;
    const unsigned char *page_shared; /* NULL, or pages that must not be zeroed */
    int32_t k_width;                  /* widest access that is aligned */
    int32_t v_width;
};

/* Sums over the rows of a tile. */
struct Partial {
    double sum;
    double squares;
    int32_t count;
    int32_t n_finite; /* of all rows, those that do not count for the mean too */
};

/* z = ((s - mean_high) - mean_low) * factor; the mean has double precision. */
struct Normal {
    float mean_high;
    float mean_low;
    float factor;
    int32_t all_zero; /* no finite row */
};

/* What an event found. */
struct Report {
    int32_t over_budget;
    int32_t n_nan;
    int32_t n_zero_heads;
    int32_t misaligned; /* slots that must hold the same rows do not */
};

struct Event {
    const int64_t *t;
    const int32_t *rows; /* [n_kv] */
    int32_t *positions;  /* NULL: rows are 0 ... N-1 */
    int64_t layer_stride;
    int64_t head_stride;
    const int32_t *prompts; /* [n_prompts][2] */
    const uint32_t *pins;   /* mask of pinned rows, or NULL */
    const int32_t *budgets; /* [n_sets] */
    const EventLayer *layers;
    const uint8_t *owns_positions; /* [n_kv] 1: this slot moves its position table */
    int32_t *rows_after;           /* [n_kv], or NULL */
    int32_t *moves;                /* [capacity][4], or NULL */
    int64_t moves_capacity;
    int32_t *n_moves; /* or NULL */
    int32_t *keep_rows;
    int32_t *keep_counts;
    int64_t keep_stride;
    Report *report;
    /* workspace */
    double *phases;
    float *lin;
    float *raw;
    float *grouped;
    float *final_scores;
    float *pooled;
    float *reduce_counts;
    Partial *partials;
    Normal *normals;        /* [n_queries] */
    Normal *kv_normals;     /* [n_kv] */
    uint32_t *protect;      /* [n_kv][row_words] */
    uint32_t *bad_rows;     /* [row_words] non-finite scores */
    int32_t *n_protected;   /* [n_kv] */
    int32_t *n_prompt_rows; /* [n_kv] */
    uint32_t *keys_seen;    /* [n_kv] see report_keys() */
    uint32_t *unordered;    /* [n_kv] positions do not ascend */
    uint32_t *differs;      /* [n_layers + 1] */
    int32_t *move_begin;    /* [n_kv + 1] */
    int32_t n_prompts;
    int32_t reserved;
};

struct Call {
    Plan plan;
    const Event *events;
};
} // namespace tria_gpu

#endif

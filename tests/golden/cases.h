/* cases.h - the cases with scores and keep sets, below tests/data. */
#ifndef TRIA_TESTS_GOLDEN_CASES_H
#define TRIA_TESTS_GOLDEN_CASES_H

#define GOLDEN_CASES(X)                                                                                    \
    X("golden/after_compaction")                                                                           \
    X("golden/freq_scale")                                                                                 \
    X("golden/gqa4")                                                                                       \
    X("golden/interleaved")                                                                                \
    X("golden/long_position")                                                                              \
    X("golden/mha")                                                                                        \
    X("golden/mqa")                                                                                        \
    X("golden/sampled_heads")                                                                              \
    X("golden/tiny")                                                                                       \
    X("golden_spec/all_nan_head")                                                                          \
    X("golden_spec/bad_rows")                                                                              \
    X("golden_spec/const_head")                                                                            \
    X("golden_spec/content_partial")                                                                       \
    X("golden_spec/dtype_bf16")                                                                            \
    X("golden_spec/dtype_f16")                                                                             \
    X("golden_spec/dtype_fp8_e4m3fn")                                                                      \
    X("golden_spec/dtype_fp8_e5m2")                                                                        \
    X("golden_spec/dtype_int8_row")                                                                        \
    X("golden_spec/dtype_q8_0")                                                                            \
    X("golden_spec/duplicates")                                                                            \
    X("golden_spec/far_position")                                                                          \
    X("golden_spec/hadamard")                                                                              \
    X("golden_spec/json_sampled")                                                                          \
    X("golden_spec/layer_budgets")                                                                         \
    X("golden_spec/layer_kinds")                                                                           \
    X("golden_spec/mixed_head_dim")                                                                        \
    X("golden_spec/mla")                                                                                   \
    X("golden_spec/modes")                                                                                 \
    X("golden_spec/modes_partial")                                                                         \
    X("golden_spec/modes_scales")                                                                          \
    X("golden_spec/normalize_over")                                                                        \
    X("golden_spec/nothing_calibrated")                                                                    \
    X("golden_spec/per_layer_rope")                                                                        \
    X("golden_spec/pool")                                                                                  \
    X("golden_spec/protect")                                                                               \
    X("golden_spec/raw_keys")                                                                              \
    X("golden_spec/raw_keys_per_head")                                                                     \
    X("golden_spec/rope_scalings")                                                                         \
    X("golden_spec/rotary_offset")                                                                         \
    X("golden_spec/rotary_tail")                                                                           \
    X("golden_spec/rotated_per_head_positions")

#endif

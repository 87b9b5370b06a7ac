# Every shader variant, once: name, source, definitions. The names are those of VK_SHADERS in
# backends/vulkan/vk_plan.h.
set(TRIA_SHADER_VARIANTS
    "protect|protect.comp|"
    "stats|stats.comp|"
    "group|group.comp|"
    "aggregate|aggregate.comp|"
    "pool|pool.comp|"
    "select|select.comp|"
    "select_subgroup|select.comp|-DTRIA_SUBGROUP"
    "moves|moves.comp|"
    "repack_word|repack.comp|-DTRIA_UNIT=4"
    "repack_half|repack.comp|-DTRIA_UNIT=2"
    "repack_byte|repack.comp|-DTRIA_UNIT=1"
    "repack_masked|repack.comp|-DTRIA_MASKED")
set(_dtype 0)
foreach(name f32 f16 bf16 fp8_e4m3fn fp8_e4m3fnuz fp8_e5m2 int8 q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl)
    list(APPEND TRIA_SHADER_VARIANTS "score_${name}|score.comp|-DTRIA_DTYPE=${_dtype}")
    math(EXPR _dtype "${_dtype} + 1")
endforeach()

# The CPU kernels: natively, and emulated on processors that this machine is not.
tria_add_test(NAME score-kernels-cpu SOURCES kernels_cpu/test_kernels.c)
tria_add_test(NAME select-radix SOURCES kernels_cpu/test_select.c)
tria_add_test(NAME kernels-threads SOURCES kernels_cpu/test_threads.c plan/small.c)
tria_add_test(NAME kernels-event SOURCES kernels_cpu/test_event.c plan/small.c)
target_link_options(test_kernels_event PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=aligned_alloc)

# Emulators know nothing of sanitizers' shadow memory.
find_program(TRIA_QEMU_X86_64 qemu-x86_64)
if(TRIA_QEMU_X86_64 AND NOT TRIA_SANITIZE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # Nehalem has no AVX at all: an instruction too new anywhere on the way is fatal.
    foreach(cpu Nehalem Haswell)
        string(TOLOWER ${cpu} _cpu)
        add_test(NAME score-kernels-${_cpu} COMMAND ${TRIA_QEMU_X86_64} -cpu ${cpu} $<TARGET_FILE:test_score_kernels_cpu>)
        set_tests_properties(score-kernels-${_cpu} PROPERTIES ENVIRONMENT TRIA_TEST_COUNT=60)
    endforeach()
    add_test(NAME select-plan-nehalem COMMAND ${TRIA_QEMU_X86_64} -cpu Nehalem $<TARGET_FILE:test_select_plan>)
endif()

find_program(TRIA_QEMU_AARCH64 qemu-aarch64)
find_program(TRIA_AARCH64_CC aarch64-linux-gnu-gcc)
if(TRIA_QEMU_AARCH64 AND TRIA_AARCH64_CC AND NOT TRIA_SANITIZE)
    set(_binary ${CMAKE_CURRENT_BINARY_DIR}/test_kernels_aarch64)
    set(_sources base.c dtype.c kv_view.c cpu/byte_weights.c cpu/kernels.c cpu/kernels_c.c cpu/moments.c
        cpu/score_prepare.c cpu/score_rows.c cpu/arm/bytes_dot.c cpu/arm/kernels_neon.c)
    list(TRANSFORM _sources PREPEND ${PROJECT_SOURCE_DIR}/src/)
    list(APPEND _sources ${CMAKE_CURRENT_SOURCE_DIR}/kernels_cpu/test_kernels.c)
    file(GLOB _depends ${PROJECT_SOURCE_DIR}/src/cpu/*.h ${PROJECT_SOURCE_DIR}/src/cpu/arm/*.h)
    add_custom_command(OUTPUT ${_binary} DEPENDS ${_sources} ${_depends}
        COMMAND ${TRIA_AARCH64_CC} -std=c11 -O2 -static -D_GNU_SOURCE -ffp-contract=off -Wall -Wextra -Werror
                -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src ${_sources} -lm -o ${_binary})
    add_custom_target(kernels_aarch64 ALL DEPENDS ${_binary})
    add_test(NAME score-kernels-neon COMMAND ${TRIA_QEMU_AARCH64} ${_binary})
    set_tests_properties(score-kernels-neon PROPERTIES ENVIRONMENT TRIA_TEST_COUNT=60)
endif()

add_executable(kernels_count kernels_cpu/count.c)
target_include_directories(kernels_count PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kernels_count PRIVATE tria_flags tria_static m)
if(NOT TRIA_SANITIZE)
    add_test(NAME kernels-instructions
        COMMAND ${PROJECT_SOURCE_DIR}/bench/instructions.sh $<TARGET_FILE:kernels_count>)
    set_tests_properties(kernels-instructions PROPERTIES SKIP_RETURN_CODE 77)
endif()

# Every reader of files on arbitrary bytes. The corpus is replayed by a plain program in every build; with
# TRIA_FUZZ=ON (clang) there is a libFuzzer target per reader: tests/fuzz/run.sh runs them.
set(_kinds dialect_a dialect_b dialect_c tria5 checkpoint)
set(_fuzz_libraries tria_flags tria_static m PkgConfig::CMOCKA)
if(TARGET tria_import_static)
    list(APPEND _kinds zip torch json safetensors model)
    list(PREPEND _fuzz_libraries tria_import_static)
    set(_fuzz_definitions TRIA_TEST_IMPORT)
endif()
set(_fuzz_sources ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/kinds.c ${CMAKE_CURRENT_SOURCE_DIR}/calibration/fixture.c)

function(tria_add_fuzz target)
    add_executable(${target} ${ARGN} ${_fuzz_sources})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(${target} PRIVATE ${_fuzz_definitions})
    target_link_libraries(${target} PRIVATE ${_fuzz_libraries})
endfunction()

tria_add_fuzz(fuzz_replay fuzz/replay.c)
add_test(NAME calibration-fuzz-corpus COMMAND fuzz_replay ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus)
tria_add_fuzz(fuzz_make_corpus fuzz/make_corpus.c)

if(TRIA_FUZZ)
    foreach(_kind ${_kinds})
        tria_add_fuzz(fuzz_${_kind} fuzz/target.c)
        target_compile_definitions(fuzz_${_kind} PRIVATE FUZZ_KIND=fuzz_${_kind})
        target_link_options(fuzz_${_kind} PRIVATE -fsanitize=fuzzer)
    endforeach()
endif()

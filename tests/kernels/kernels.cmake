# The kernels of the CUDA and HIP backends and their host code, compiled for the CPU: see emulation.h.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
    return()
endif()
enable_language(CXX)

# 2,000 take about a minute of processor time per warp size; the sanitizers make them many times slower.
set(_count 2000)
if(TRIA_SANITIZE)
    set(_count 150)
endif()
set(TRIA_KERNEL_CONFIGURATIONS ${_count} CACHE STRING "Random configurations per warp size that the kernel tests run")
set(_cuda ${PROJECT_SOURCE_DIR}/backends/cuda)
set(_sources kernels/emulation.cpp kernels/device.cpp)
foreach(unit score_launch.cu event_launch.cu control.cpp describe.cpp plugin.cpp staging.cpp stages.cpp)
    list(APPEND _sources ${_cuda}/${unit})
endforeach()
set_source_files_properties(${_cuda}/score_launch.cu ${_cuda}/event_launch.cu PROPERTIES
    LANGUAGE CXX COMPILE_OPTIONS "-xc++")

foreach(lanes 32 64)
    set(_plugin tria_emulated_${lanes})
    set(_folder ${CMAKE_CURRENT_BINARY_DIR}/emulated-${lanes})
    add_library(${_plugin} SHARED ${_sources})
    set_target_properties(${_plugin} PROPERTIES OUTPUT_NAME tria-cuda LIBRARY_OUTPUT_DIRECTORY ${_folder}
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET default)
    target_compile_definitions(${_plugin} PUBLIC TRIA_EMULATED TRIA_EMULATED_LANES=${lanes})
    target_compile_options(${_plugin} PRIVATE -O2 -Wall -Wextra -Wshadow -ffp-contract=off
        $<$<BOOL:${TRIA_WERROR}>:-Werror>)
    target_include_directories(${_plugin} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/kernels
        PRIVATE ${PROJECT_SOURCE_DIR}/include ${_cuda})

    set(_environment "TRIA_BACKEND_PATH=${_folder}")
    foreach(kind score select compact)
        add_test(NAME kernels-golden-${kind}-${lanes} COMMAND test_${kind}_golden)
        set_tests_properties(kernels-golden-${kind}-${lanes} PROPERTIES SKIP_RETURN_CODE 77
            ENVIRONMENT "${_environment};TRIA_TEST_BACKEND=cuda")
    endforeach()

    add_executable(test_kernels_random_${lanes} kernels/test_random.c vulkan/config.c)
    target_include_directories(test_kernels_random_${lanes} PRIVATE vulkan)
    target_link_libraries(test_kernels_random_${lanes} PRIVATE tria_flags tria_static ${_plugin} m)
    add_test(NAME kernels-random-${lanes} COMMAND test_kernels_random_${lanes})
    set_tests_properties(kernels-random-${lanes} PROPERTIES
        ENVIRONMENT "${_environment};TRIA_TEST_COUNT=${TRIA_KERNEL_CONFIGURATIONS};TRIA_TEST_ORDER=${lanes}")

    # an engine's host: policy, and a captured graph replayed
    set(_host test_kernels_host_${lanes})
    add_executable(${_host} ${PROJECT_SOURCE_DIR}/examples/cuda_host/main.cpp)
    set_target_properties(${_host} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_link_libraries(${_host} PRIVATE tria_static ${_plugin} m)
    add_test(NAME kernels-host-${lanes} COMMAND ${_host})
    set_tests_properties(kernels-host-${lanes} PROPERTIES ENVIRONMENT "${_environment}")

    add_executable(test_kernels_emulation_${lanes} kernels/test_emulation.cpp)
    set_target_properties(test_kernels_emulation_${lanes} PROPERTIES
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_include_directories(test_kernels_emulation_${lanes} PRIVATE ${_cuda})
    target_link_libraries(test_kernels_emulation_${lanes} PRIVATE ${_plugin})
    add_test(NAME kernels-emulation-${lanes} COMMAND test_kernels_emulation_${lanes})

    tria_add_test(NAME kernels-driver-${lanes} SOURCES kernels/test_driver.c plan/small.c LIBRARIES ${_plugin})
    set_tests_properties(kernels-driver-${lanes} PROPERTIES ENVIRONMENT "${_environment}")
endforeach()

# the plugins themselves
add_executable(test_kernels_load kernels/test_load.c)
target_link_libraries(test_kernels_load PRIVATE tria_flags tria_static m)
foreach(_backend cuda hip)
    if(TARGET tria_${_backend})
        add_test(NAME kernels-load-${_backend}
            COMMAND test_kernels_load $<TARGET_FILE_DIR:tria_${_backend}> ${_backend})
    endif()
endforeach()

find_library(TRIA_VULKAN_LIBRARY vulkan)
# Drivers leak; that we do not is tested by counting allocations and by the validation layer.
set(_plugin "TRIA_BACKEND_PATH=$<TARGET_FILE_DIR:tria_vulkan>;ASAN_OPTIONS=detect_leaks=0")

# The golden cases, keys and values staged through a device of the backend's own.
foreach(kind score select compact)
    add_test(NAME vulkan-golden-${kind} COMMAND test_${kind}_golden)
    set_tests_properties(vulkan-golden-${kind} PROPERTIES SKIP_RETURN_CODE 77
        ENVIRONMENT "${_plugin};TRIA_TEST_BACKEND=vulkan")
endforeach()

add_executable(test_vulkan_no_loader vulkan/test_no_loader.c)
target_link_libraries(test_vulkan_no_loader PRIVATE tria_flags tria_static m PkgConfig::CMOCKA)
set_target_properties(test_vulkan_no_loader PROPERTIES ENABLE_EXPORTS ON) # its dlopen() is the plugin's
add_test(NAME vulkan-no-loader COMMAND test_vulkan_no_loader)
set_tests_properties(vulkan-no-loader PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT "${_plugin}")

if(TARGET tria_cli)
    add_test(NAME vulkan-cli COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/cli.sh
        $<TARGET_FILE:tria_cli> ${CMAKE_CURRENT_SOURCE_DIR}/data)
    set_tests_properties(vulkan-cli PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT "${_plugin}")
endif()

if(TARGET tria-vulkan-host)
    add_test(NAME vulkan-host COMMAND tria-vulkan-host --device ""
        --calibration ${CMAKE_CURRENT_SOURCE_DIR}/data/golden/gqa4/calib.tria
        --keys ${CMAKE_CURRENT_SOURCE_DIR}/data/golden/gqa4/K_rot.npy)
    set_tests_properties(vulkan-host PROPERTIES SKIP_RETURN_CODE 3 ENVIRONMENT "${_plugin}")
endif()

if(TRIA_VULKAN_LIBRARY)
    function(tria_add_vulkan_test NAME)
        string(REPLACE "-" "_" _target "test_${NAME}")
        add_executable(${_target} ${ARGN} vulkan/gpu.c)
        target_include_directories(${_target} PRIVATE vulkan)
        target_include_directories(${_target} SYSTEM PRIVATE ${TRIA_VULKAN_INCLUDE_DIR})
        target_link_libraries(${_target} PRIVATE
            tria_flags tria_static m PkgConfig::CMOCKA ${TRIA_VULKAN_LIBRARY})
        add_test(NAME ${NAME} COMMAND ${_target})
        set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT "${_plugin}")
    endfunction()

    # the sanitizers slow the host's part down
    set(_count 300)
    if(TRIA_SANITIZE)
        set(_count 60)
    endif()
    tria_add_vulkan_test(vulkan-random vulkan/test_random.c vulkan/config.c)
    set_tests_properties(vulkan-random PROPERTIES ENVIRONMENT "${_plugin};TRIA_TEST_COUNT=${_count}")
    tria_add_vulkan_test(vulkan-large vulkan/test_large.c)
    tria_add_vulkan_test(vulkan-streams vulkan/test_streams.c vulkan/config.c)
    add_test(NAME vulkan-random-narrow COMMAND test_vulkan_random)
    set_tests_properties(vulkan-random-narrow PROPERTIES SKIP_RETURN_CODE 77
        ENVIRONMENT "${_plugin};TRIA_TEST_NARROW=1;TRIA_TEST_SEED=100000;TRIA_TEST_COUNT=20")
endif()

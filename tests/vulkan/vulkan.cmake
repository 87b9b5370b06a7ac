find_library(TRIA_VULKAN_LIBRARY vulkan)
set(_plugin "TRIA_BACKEND_PATH=$<TARGET_FILE_DIR:tria_vulkan>")

# The golden cases, keys and values staged through a device of the backend's own.
foreach(kind score select)
    add_test(NAME vulkan-golden-${kind} COMMAND test_${kind}_golden)
    set_tests_properties(vulkan-golden-${kind} PROPERTIES SKIP_RETURN_CODE 77
        ENVIRONMENT "${_plugin};TRIA_TEST_BACKEND=vulkan")
endforeach()

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

    tria_add_vulkan_test(vulkan-random vulkan/test_random.c vulkan/config.c)
    tria_add_vulkan_test(vulkan-streams vulkan/test_streams.c vulkan/config.c)
    add_test(NAME vulkan-random-narrow COMMAND test_vulkan_random)
    set_tests_properties(vulkan-random-narrow PROPERTIES SKIP_RETURN_CODE 77
        ENVIRONMENT "${_plugin};TRIA_TEST_NARROW=1;TRIA_TEST_SEED=100000;TRIA_TEST_COUNT=20")
endif()

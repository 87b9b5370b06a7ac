# calibration: files, models, accumulators
set(_calibration_libraries "")
if(TARGET tria_import_static)
    set(_calibration_libraries LIBRARIES tria_import_static)
endif()
foreach(_topic formats hostile roundtrip match accumulator model)
    tria_add_test(NAME calibration-${_topic}
        SOURCES calibration/test_${_topic}.c calibration/fixture.c ${_calibration_libraries})
endforeach()
if(TARGET tria_import_static)
    foreach(_topic import descriptions real)
        tria_add_test(NAME calibration-${_topic}
            SOURCES calibration/test_${_topic}.c calibration/fixture.c ${_calibration_libraries})
    endforeach()
    foreach(_topic formats hostile roundtrip match accumulator model import descriptions real)
        target_compile_definitions(test_calibration_${_topic} PRIVATE TRIA_TEST_IMPORT)
    endforeach()
endif()
add_test(NAME cli-calibration
    COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/cli/calibration.py $<TARGET_FILE:tria_cli>
            ${CMAKE_CURRENT_SOURCE_DIR}/data ${CMAKE_CURRENT_BINARY_DIR}/cli-calibration
            $<IF:$<TARGET_EXISTS:tria_import>,with-import,without-import>)
include(fuzz/fuzz.cmake)

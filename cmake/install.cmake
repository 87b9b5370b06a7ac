# What `cmake --install` puts where: libraries, headers, the command, pkg-config and CMake package files. The
# import library adds itself to tria-targets, and plugins go to <libdir>/tria, where the library looks for them.
install(TARGETS tria_shared tria_static EXPORT tria-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tria DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN import.h EXCLUDE)
file(RELATIVE_PATH _to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(tria_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${_to_libraries}")
install(TARGETS tria_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

string(REGEX REPLACE "([^;]+)" "-l\\1" TRIA_DL_FLAG "${CMAKE_DL_LIBS}")
configure_file(pkgconfig/tria.pc.in tria.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tria.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/tria)
configure_package_config_file(cmake/tria-config.cmake.in tria-config.cmake INSTALL_DESTINATION ${_package})
write_basic_package_version_file(tria-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT tria-targets NAMESPACE tria:: DESTINATION ${_package})
install(FILES ${PROJECT_BINARY_DIR}/tria-config.cmake ${PROJECT_BINARY_DIR}/tria-config-version.cmake
    DESTINATION ${_package})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

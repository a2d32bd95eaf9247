# cmake --install: the public headers under include/rondo, the archives or the shared library or both, the code
# generator's plug-in, and find_package(rondo CONFIG).
include(CMakePackageConfigHelpers)
set(RONDO_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)

get_property(RONDO_HEADERS GLOBAL PROPERTY RONDO_HEADERS)
foreach(header IN LISTS RONDO_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rondo/${folder})
endforeach()
foreach(header IN LISTS RONDO_UMBRELLA_HEADERS)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rondo)
endforeach()

set(RONDO_PACKAGE_KINDS "")
if(TARGET rondo_shared)
  list(APPEND RONDO_PACKAGE_KINDS shared)
  install(TARGETS rondo_shared EXPORT rondoTargets-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
if(NOT BUILD_SHARED_LIBS)
  list(APPEND RONDO_PACKAGE_KINDS static)
  get_property(targets GLOBAL PROPERTY RONDO_TARGETS)
  install(TARGETS ${targets} EXPORT rondoTargets-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
foreach(kind IN LISTS RONDO_PACKAGE_KINDS)
  install(EXPORT rondoTargets-${kind} NAMESPACE rondo:: DESTINATION ${RONDO_CONFIG_DIR})
endforeach()
install(TARGETS rondorun DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET rondo_jit_llvm)
  # Whatever the umask: a folder that others may write to is one that nothing is loaded from.
  set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                  WORLD_READ WORLD_EXECUTE)
  install(TARGETS rondo_jit_llvm LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/rondo)
endif()

set(RONDO_WITH_GLOO "${Gloo_FOUND}")
set(RONDO_PLUGIN_INSTALL_FOLDER ${CMAKE_INSTALL_LIBDIR}/rondo)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${PROJECT_BINARY_DIR}/rondoConfig.cmake
                              INSTALL_DESTINATION ${RONDO_CONFIG_DIR} PATH_VARS RONDO_PLUGIN_INSTALL_FOLDER)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rondoConfig.cmake ${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/onednn.cmake ${CMAKE_CURRENT_LIST_DIR}/plugin_folder.cc.in
        DESTINATION ${RONDO_CONFIG_DIR})

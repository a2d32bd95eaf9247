# cmake --install: headers under include/rondo, archives, the code generator's plug-in, and find_package(rondo CONFIG).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(RONDO_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)

set(RONDO_TARGETS "")
foreach(folder runtime modules compile optim dist)
  if(TARGET rondo_${folder})
    list(APPEND RONDO_TARGETS rondo_${folder})
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rondo
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(TARGETS ${RONDO_TARGETS} EXPORT rondoTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS rondorun DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT rondoTargets NAMESPACE rondo:: DESTINATION ${RONDO_CONFIG_DIR})

set(RONDO_WITH_GLOO "${Gloo_FOUND}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${CMAKE_BINARY_DIR}/rondoConfig.cmake
                              INSTALL_DESTINATION ${RONDO_CONFIG_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/rondoConfig.cmake ${CMAKE_BINARY_DIR}/rondoConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/onednn.cmake
        DESTINATION ${RONDO_CONFIG_DIR})

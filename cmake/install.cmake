# cmake --install: the public headers under include/rondo, the archives or the shared library or both, the code
# generator's plug-in, find_package(rondo CONFIG) and rondo.pc. Two components: what programs need as they run, and what it
# takes to build them.
include(CMakePackageConfigHelpers)
# Whatever the umask: a folder that others may write to is one that no code generator is loaded from.
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                                                WORLD_EXECUTE)
set(RONDO_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)

get_property(RONDO_HEADERS GLOBAL PROPERTY RONDO_HEADERS)
foreach(header IN LISTS RONDO_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rondo/${folder} COMPONENT development)
endforeach()
foreach(header IN LISTS RONDO_UMBRELLA_HEADERS)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rondo COMPONENT development)
endforeach()

set(RONDO_PROGRAMS rondorun)
set(dependencies "")
if(RONDO_PACKAGE)
  if(RONDO_BUILD_EXAMPLES)
    list(APPEND RONDO_PROGRAMS train_gpt finetune classify segmentation image_captioning)
  endif()
  if(RONDO_STATIC_JIT)  # packages.cmake installs what they depend on
    set(dependencies RUNTIME_DEPENDENCY_SET rondo_dependencies)
  endif()
endif()
install(TARGETS ${RONDO_PROGRAMS} ${dependencies} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)

set(RONDO_PACKAGE_KINDS "")
if(TARGET rondo_shared)
  list(APPEND RONDO_PACKAGE_KINDS shared)
  install(TARGETS rondo_shared EXPORT rondoTargets-shared ${dependencies}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs NAMELINK_COMPONENT development
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
if(NOT BUILD_SHARED_LIBS)
  list(APPEND RONDO_PACKAGE_KINDS static)
  get_property(targets GLOBAL PROPERTY RONDO_TARGETS)
  install(TARGETS ${targets} EXPORT rondoTargets-static
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
foreach(kind IN LISTS RONDO_PACKAGE_KINDS)
  install(EXPORT rondoTargets-${kind} NAMESPACE rondo:: DESTINATION ${RONDO_CONFIG_DIR} COMPONENT development)
endforeach()
if(TARGET rondo_jit_llvm)
  install(TARGETS rondo_jit_llvm LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/rondo COMPONENT programs)
endif()

set(RONDO_PLUGIN_INSTALL_FOLDER ${CMAKE_INSTALL_LIBDIR}/rondo)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${PROJECT_BINARY_DIR}/rondoConfig.cmake
                              INSTALL_DESTINATION ${RONDO_CONFIG_DIR} PATH_VARS RONDO_PLUGIN_INSTALL_FOLDER)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rondoConfig.cmake ${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/plugin_folder.cc.in
        DESTINATION ${RONDO_CONFIG_DIR} COMPONENT development)

# pkg-config has no components: the shared library where there is one. Programs of archives link an object that says where
# the code generator is. It is compiled when the prefix is known: as it is installed.
if(TARGET rondo_shared)
  set(RONDO_PC_REQUIRES absl_span absl_function_ref absl_inlined_vector)
  set(RONDO_PC_LIBS -lrondo)
else()
  set(RONDO_PC_REQUIRES absl_strings absl_str_format absl_inlined_vector absl_fixed_array absl_flat_hash_map absl_function_ref absl_span
                        absl_status absl_statusor libpcre2-8 libpng libjpeg)
  set(RONDO_PC_LIBS -Wl,-u,rondo_op_compiler -Wl,--start-group)
  foreach(target IN LISTS targets)
    list(APPEND RONDO_PC_LIBS -l${target})
  endforeach()
  list(APPEND RONDO_PC_LIBS -Wl,--end-group -lpthread -ldl)
  if(TARGET rondo_jit_llvm)
    list(PREPEND RONDO_PC_LIBS "\${libdir}/rondo/plugin_folder.o")
    install(CODE "
      get_filename_component(RONDO_PLUGIN_FOLDER \"\${CMAKE_INSTALL_PREFIX}/${RONDO_PLUGIN_INSTALL_FOLDER}\" ABSOLUTE)
      configure_file(\"${CMAKE_CURRENT_LIST_DIR}/plugin_folder.cc.in\" \"${PROJECT_BINARY_DIR}/plugin_folder.cc\" @ONLY)
      execute_process(COMMAND \"${CMAKE_CXX_COMPILER}\" -fPIC -c plugin_folder.cc WORKING_DIRECTORY \"${PROJECT_BINARY_DIR}\"
                      COMMAND_ERROR_IS_FATAL ANY)" COMPONENT development)
    install(FILES ${PROJECT_BINARY_DIR}/plugin_folder.o DESTINATION ${RONDO_PLUGIN_INSTALL_FOLDER} COMPONENT development)
  endif()
endif()
list(JOIN RONDO_PC_REQUIRES " " RONDO_PC_REQUIRES)
list(JOIN RONDO_PC_LIBS " " RONDO_PC_LIBS)
set(RONDO_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
string(REGEX REPLACE "[^/]+" ".." RONDO_PC_TO_PREFIX ${RONDO_PC_DIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/rondo.pc.in ${PROJECT_BINARY_DIR}/rondo.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rondo.pc DESTINATION ${RONDO_PC_DIR} COMPONENT development)
include(${CMAKE_CURRENT_LIST_DIR}/packages.cmake)

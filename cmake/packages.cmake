# cpack: Debian packages (`rondo`: programs and the shared library; `librondo-dev`: what it takes to build with it), and an
# archive that runs where nothing is installed. CMakePresets.json has how each is built:
#   cmake --preset deb && cmake --build --preset deb && cpack --preset deb
#   cmake --preset archive && cmake --build --preset archive && cpack --preset archive
if(RONDO_PACKAGE AND RONDO_STATIC_JIT)
  # In the archive the libraries of others lie beside ours, all but the C library's; also oneDNN, which is opened. RPATH, not
  # RUNPATH: it holds for the libraries of libraries, too.
  install(IMPORTED_RUNTIME_ARTIFACTS rondo::onednn RUNTIME_DEPENDENCY_SET rondo_dependencies
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs)
  get_filename_component(file ${RONDO_DNNL_LIBRARY} REALPATH)  # that is the link by which it is opened
  install(FILES ${file} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs)
  install(RUNTIME_DEPENDENCY_SET rondo_dependencies DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs
          PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so")
  set_target_properties(${RONDO_PROGRAMS} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(rondo_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
  foreach(target IN LISTS RONDO_PROGRAMS ITEMS rondo_shared)
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
endif()

set(CPACK_PACKAGE_NAME rondo)
set(CPACK_PACKAGE_VENDOR Rondo)
set(CPACK_PACKAGE_CONTACT "Rondo's developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains neural networks inside a C++20 program")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL programs development)
# Whatever the umask: install.cmake.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME rondo)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
# oneDNN is opened, so no program names it.
find_program(RONDO_DPKG_QUERY dpkg-query)
if(RONDO_PACKAGE AND RONDO_DPKG_QUERY)
  get_filename_component(file ${RONDO_DNNL_LIBRARY} REALPATH)
  execute_process(COMMAND ${RONDO_DPKG_QUERY} -S ${file} OUTPUT_VARIABLE package ERROR_QUIET)
  if(package MATCHES "^([^:]+):")
    set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS "${CMAKE_MATCH_1} (>= ${RONDO_DNNL_VERSION})")
  else()
    message(WARNING "No Debian package has ${file}: Rondo's package will not say that it needs oneDNN")
  endif()
endif()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME librondo-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "rondo (= ${PROJECT_VERSION}), libabsl-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, and what CMake and pkg-config need to build with Rondo")
include(CPack)

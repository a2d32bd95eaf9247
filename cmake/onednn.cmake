# DNNL::dnnl: oneDNN 2 from 2.6 on, or 3. Found by hand: the package's own config insists on OpenCL's headers, which only
# its GPU side needs.
if(NOT TARGET DNNL::dnnl)
  find_path(RONDO_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
  find_library(RONDO_DNNL_LIBRARY dnnl REQUIRED)
  file(STRINGS ${RONDO_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h RONDO_DNNL_LINES REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*" "\\1." RONDO_DNNL_VERSION "${RONDO_DNNL_LINES}")
  string(REGEX REPLACE "[.]$" "" RONDO_DNNL_VERSION "${RONDO_DNNL_VERSION}")
  if(RONDO_DNNL_VERSION VERSION_LESS 2.6 OR RONDO_DNNL_VERSION VERSION_GREATER_EQUAL 4)
    message(FATAL_ERROR "Rondo needs oneDNN 2.6 or later, or 3. ${RONDO_DNNL_INCLUDE} has version ${RONDO_DNNL_VERSION}. "
                        "Set RONDO_DNNL_INCLUDE and RONDO_DNNL_LIBRARY to another one.")
  endif()
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${RONDO_DNNL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${RONDO_DNNL_INCLUDE})
endif()

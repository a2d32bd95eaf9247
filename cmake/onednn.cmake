# DNNL::dnnl, found by hand: the package's own config insists on OpenCL's headers, which only its GPU side needs.
if(NOT TARGET DNNL::dnnl)
  find_path(RONDO_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
  find_library(RONDO_DNNL_LIBRARY dnnl REQUIRED)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${RONDO_DNNL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${RONDO_DNNL_INCLUDE})
endif()

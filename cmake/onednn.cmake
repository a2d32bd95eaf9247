# oneDNN 2 from 2.6 on, or 3. Found by hand: the package's own config insists on OpenCL's headers, which only its GPU side
# needs. The library is not linked (runtime/onednn/onednn_library.h).
include(CheckCXXSourceCompiles)
find_path(RONDO_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(RONDO_DNNL_LIBRARY dnnl REQUIRED)
file(STRINGS ${RONDO_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h RONDO_DNNL_LINES REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*" "\\1." RONDO_DNNL_VERSION "${RONDO_DNNL_LINES}")
string(REGEX REPLACE "[.]$" "" RONDO_DNNL_VERSION "${RONDO_DNNL_VERSION}")
if(RONDO_DNNL_VERSION VERSION_LESS 2.6 OR RONDO_DNNL_VERSION VERSION_GREATER_EQUAL 4)
  message(FATAL_ERROR "Rondo needs oneDNN 2.6 or later, or 3. ${RONDO_DNNL_INCLUDE} has version ${RONDO_DNNL_VERSION}. "
                      "Set RONDO_DNNL_INCLUDE and RONDO_DNNL_LIBRARY to another one.")
endif()
# The name by which a process finds it.
execute_process(COMMAND ${CMAKE_READELF} -d ${RONDO_DNNL_LIBRARY} OUTPUT_VARIABLE RONDO_DNNL_DYNAMIC ERROR_QUIET)
if(NOT RONDO_DNNL_DYNAMIC MATCHES "SONAME[^[]*\\[([^]]+)\\]")
  message(FATAL_ERROR "Rondo opens oneDNN as it runs, and ${RONDO_DNNL_LIBRARY} is no shared library that has a name (SONAME). "
                      "Set RONDO_DNNL_INCLUDE and RONDO_DNNL_LIBRARY to another one.")
endif()
set(RONDO_DNNL_NAME ${CMAKE_MATCH_1})
get_filename_component(RONDO_DNNL_FOLDER ${RONDO_DNNL_LIBRARY} REALPATH)
get_filename_component(RONDO_DNNL_FOLDER ${RONDO_DNNL_FOLDER} DIRECTORY)
# In a folder that the dynamic linker may not know: where it is now. Not what another machine has. The compiler's implicit
# folders do not tell: it has those of LIBRARY_PATH, too, and a compiler that is not the system's has its own.
set(RONDO_DNNL_PATH ${RONDO_DNNL_FOLDER}/${RONDO_DNNL_NAME})
if(CMAKE_CROSSCOMPILING OR RONDO_DNNL_FOLDER MATCHES "^(/usr)?/lib(32|64)?(/${CMAKE_CXX_LIBRARY_ARCHITECTURE})?$")
  set(RONDO_DNNL_PATH "")
endif()
# What it needs, the C library's aside.
string(REGEX MATCHALL "NEEDED[^[]*\\[[^]]+\\]" RONDO_DNNL_NEEDS "${RONDO_DNNL_DYNAMIC}")
list(TRANSFORM RONDO_DNNL_NEEDS REPLACE ".*\\[(.+)\\]" "\"\\1\"")
list(FILTER RONDO_DNNL_NEEDS EXCLUDE REGEX "^\"(ld-linux|lib(c|m|dl|rt|pthread)\\.so)")
list(APPEND RONDO_DNNL_NEEDS nullptr)
list(JOIN RONDO_DNNL_NEEDS ", " RONDO_DNNL_NEEDS)
set(RONDO_DNNL_SOURCE ${PROJECT_BINARY_DIR}/runtime/onednn_file.cc)
file(CONFIGURE OUTPUT ${RONDO_DNNL_SOURCE} @ONLY CONTENT "// Made by cmake/onednn.cmake.
#include \"rondo/runtime/onednn/onednn_library.h\"
constexpr rondo::cpu::LibraryFile rondo::cpu::kLibraryFile = {
    .name = \"@RONDO_DNNL_NAME@\", .path = \"@RONDO_DNNL_PATH@\", .needs = {@RONDO_DNNL_NEEDS@}};
")

# Rondo is compiled with its headers; its tests' fakes link it.
add_library(rondo::onednn_headers INTERFACE IMPORTED)
target_include_directories(rondo::onednn_headers INTERFACE ${RONDO_DNNL_INCLUDE})
if(RONDO_DNNL_VERSION VERSION_GREATER_EQUAL 3)
  set(CMAKE_REQUIRED_INCLUDES ${RONDO_DNNL_INCLUDE})
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_cxx_source_compiles("#include <oneapi/dnnl/dnnl.h>
                             auto* const function = &dnnl_memory_create_v2;" RONDO_DNNL_SPARSE)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
endif()
target_compile_definitions(rondo::onednn_headers INTERFACE RONDO_DNNL_SPARSE=$<BOOL:${RONDO_DNNL_SPARSE}>)
add_library(rondo::onednn SHARED IMPORTED)
target_link_libraries(rondo::onednn INTERFACE rondo::onednn_headers)
set_target_properties(rondo::onednn PROPERTIES IMPORTED_LOCATION ${RONDO_DNNL_FOLDER}/${RONDO_DNNL_NAME} IMPORTED_SONAME ${RONDO_DNNL_NAME})

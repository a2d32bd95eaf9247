# Precompiled headers, one for each set of flags. GCC takes `-include FOLDER/name.h` from FOLDER/name.h.gch.
# CMake's own (target_precompile_headers) lie in the build folder, so ccache finds nothing for a second build: here a
# build may take those of another (tests/install/outside_test.sh).
set(precompile OFF)
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(precompile ON)
endif()
option(RONDO_PRECOMPILED_HEADERS "Compile the headers of other projects once (GCC)" ${precompile})
set(RONDO_PRECOMPILED_FOLDER "" CACHE PATH "Precompiled headers of a build with the same flags; empty: our own")
mark_as_advanced(RONDO_PRECOMPILED_FOLDER)

# rondo_precompile(kernels library.h) makes the target rondo_precompiled_kernels of precompiled/library.h. The caller gives
# it the flags of the targets that use it.
function(rondo_precompile name header)
  set(target rondo_precompiled_${name})
  set(copy ${PROJECT_BINARY_DIR}/precompiled/${name}.h)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/precompiled/${header} ${copy} COPYONLY)
  set_source_files_properties(${copy} PROPERTIES LANGUAGE CXX HEADER_FILE_ONLY OFF COMPILE_OPTIONS "-x;c++-header")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${copy})
  rondo_configure(${target})
  # ccache is to go by the files that it depends on, not by the preprocessed text: a header whose comment has changed gives
  # the same text, but GCC knows it by its bytes (#pragma once), and would read it a second time.
  if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES ccache)
    set_property(TARGET ${target} PROPERTY CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
                                           ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  add_custom_command(OUTPUT ${copy}.gch DEPENDS $<TARGET_OBJECTS:${target}> VERBATIM
                     COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_OBJECTS:${target}> ${copy}.gch
                     # Without the folder's name, by which ccache would tell checkouts apart.
                     COMMAND ${CMAKE_COMMAND} -E chdir ${PROJECT_BINARY_DIR}/precompiled
                             ${CMAKE_COMMAND} -E sha256sum ${name}.h.gch > ${copy}.gch.sum)
  add_custom_target(${target}_link DEPENDS ${copy}.gch)
endfunction()

# rondo_use_precompiled(rondo_runtime_kernels kernels)
function(rondo_use_precompiled target name)
  if(NOT RONDO_PRECOMPILED_HEADERS)
    return()
  endif()
  set(folder ${RONDO_PRECOMPILED_FOLDER})
  if(NOT folder)
    set(folder ${PROJECT_BINARY_DIR}/precompiled)
    add_dependencies(${target} rondo_precompiled_${name}_link)
  endif()
  # ccache wants -fpch-preprocess.
  target_compile_options(${target} PRIVATE -Winvalid-pch -fpch-preprocess "SHELL:-include ${folder}/${name}.h")
  # GCC's list of what a file depends on leaves out the headers in here.
  get_target_property(files ${target} SOURCES)
  list(FILTER files INCLUDE REGEX "\\.cc$")
  set_property(SOURCE ${files} TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS ${folder}/${name}.h.gch)
endfunction()

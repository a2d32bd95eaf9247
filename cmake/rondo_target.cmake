# What every Rondo target has in common.
set(RONDO_WARNINGS -Wall -Wextra -Wpedantic -Werror -Wno-psabi
    # False alarms of GCC 12: in its vector intrinsics and small-buffer containers, and in "literal" + std::string.
    -Wno-maybe-uninitialized -Wno-restrict)

# Kernel code: full vector width of the host; contraction off, so that FMA is where the source writes it and the JIT can
# match every bit.
set(RONDO_KERNEL_FLAGS -march=${RONDO_CPU} -mprefer-vector-width=512 -ffp-contract=off -fno-math-errno
                       -fno-trapping-math
                       $<$<CXX_COMPILER_ID:GNU>:-fno-thread-jumps>)  # keeps chains of selects branch-free, so they vectorise

if(RONDO_SANITIZE)
  add_compile_options(-fsanitize=${RONDO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${RONDO_SANITIZE})
endif()

function(rondo_configure target)
  target_compile_options(${target} PRIVATE ${RONDO_WARNINGS})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include>
                                              $<INSTALL_INTERFACE:include>)
endfunction()

# rondo_library(runtime SOURCES a.cc b.cc LINK absl::strings)
function(rondo_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(rondo_${name} STATIC ${ARG_SOURCES})
  add_library(rondo::${name} ALIAS rondo_${name})
  set_target_properties(rondo_${name} PROPERTIES EXPORT_NAME ${name})
  rondo_configure(rondo_${name})
  target_compile_features(rondo_${name} PUBLIC cxx_std_20)
  target_link_libraries(rondo_${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
endfunction()

# Marks sources as kernel code.
function(rondo_kernel_sources)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${RONDO_KERNEL_FLAGS}")
endfunction()

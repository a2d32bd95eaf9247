# Settings that every Rondo target has.
include(CheckCXXCompilerFlag)

set(RONDO_WARNINGS -Wall -Wextra -Wpedantic -Wno-psabi
    # False alarms of GCC 12: in its vector intrinsics and small-buffer containers, and in std::string's assignments.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    # Clang wants a pair of braces for each array in a struct; GCC's -Wall does not.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-braces>
    # And it says that a loop which may run as vectors does not, for f16 in runtime/cpu/loss.cc; GCC never says so.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
# The presets ask for it. Newer compilers have warnings that CI has not seen: they stop nobody's build.
if(RONDO_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND RONDO_WARNINGS -Werror)
endif()

# Host code gains nothing from -O3, which kernels have. Contraction: on processors that all have FMA, compilers use it
# where nobody wrote it.
set(RONDO_HOST_FLAGS $<$<CONFIG:Release>:-O2> -ffp-contract=off)

# Kernel code: full vector width of the host; contraction off, so that FMA is where the source writes it and the JIT can
# match every bit.
check_cxx_compiler_flag(-march=${RONDO_CPU} RONDO_HAS_MARCH_${RONDO_CPU})
if(RONDO_HAS_MARCH_${RONDO_CPU})
  set(RONDO_KERNEL_FLAGS -march=${RONDO_CPU})
else()  # Clang for ARM: -march names architectures there
  set(RONDO_KERNEL_FLAGS -mcpu=${RONDO_CPU})
endif()
check_cxx_compiler_flag(-mprefer-vector-width=512 RONDO_HAS_PREFER_VECTOR_WIDTH)  # x86 only
if(RONDO_HAS_PREFER_VECTOR_WIDTH)
  list(APPEND RONDO_KERNEL_FLAGS -mprefer-vector-width=512)
endif()
list(APPEND RONDO_KERNEL_FLAGS $<$<CONFIG:Release>:-O3> -ffp-contract=off -fno-math-errno -fno-trapping-math
     $<$<CXX_COMPILER_ID:GNU>:-fno-thread-jumps>)  # keeps chains of selects branch-free, so they vectorise

# GCC collects its garbage again and again behind a large precompiled header, unless its heap may grow: 15% less time for
# a test file, 12% for the library's, for 8 to 17% more memory (up to 0.7 GB for a file).
set(RONDO_COMPILER_HEAP "$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=262144>")

if(CMAKE_NM AND CMAKE_OBJCOPY AND NOT RONDO_SANITIZE)
  set(RONDO_ISOLATES_KERNELS ON)
endif()

function(rondo_configure target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${RONDO_WARNINGS} ${RONDO_HOST_FLAGS} ${RONDO_COMPILER_HEAP})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${RONDO_INCLUDE_FOLDER}>)
  if(RONDO_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${RONDO_SANITIZE}
                           PRIVATE -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
    target_link_options(${target} PUBLIC -fsanitize=${RONDO_SANITIZE})
  endif()
endfunction()

function(rondo_hide target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/precompiled.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/unity.cmake)
if(RONDO_PRECOMPILED_HEADERS)
  foreach(name library kernels)
    rondo_precompile(${name} library.h)
    rondo_hide(rondo_precompiled_${name})
    target_link_libraries(rondo_precompiled_${name} PRIVATE absl::strings)
  endforeach()
  target_compile_options(rondo_precompiled_kernels PRIVATE ${RONDO_KERNEL_FLAGS})
  rondo_precompile(programs programs.h)
  target_compile_options(rondo_precompiled_programs PRIVATE -fPIE)
  target_link_libraries(rondo_precompiled_programs PRIVATE absl::strings)
endif()

# rondo_program(target): a program, or an archive that only programs link. Not for those of the short tier, which so need not
# build this precompiled header. Sources with flags of their own, as kernels have, cannot take one: such a target is only
# configured.
function(rondo_program target)
  rondo_configure(${target})
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      return()
    endif()
  endforeach()
  if(RONDO_PRECOMPILED_HEADERS)  # the false alarms that rondo_library() names
    target_compile_options(${target} PRIVATE -fPIE -Wno-array-bounds -Wno-stringop-overread)
    rondo_use_precompiled(${target} programs)
  endif()
endfunction()

# Marks sources as kernel code.
function(rondo_kernel_sources)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${RONDO_KERNEL_FLAGS}")
endfunction()

# rondo_library(runtime SOURCES a.cc KERNELS k.cc HEADERS tensor.h LINK absl::strings PRIVATE_LINK PNG::PNG)
# An archive of position-independent objects. What the public HEADERS declare is exported where the objects become part
# of a shared library; all else is hidden. Files are named from the folder of the CMakeLists.txt. KERNELS are compiled for RONDO_CPU, and share no inline function with others
# (isolate_kernel.sh).
function(rondo_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;KERNELS;HEADERS;LINK;PRIVATE_LINK" ${ARGN})
  set(parts rondo_${name})
  rondo_unite(sources ${name} ${ARG_SOURCES})
  math(EXPR RONDO_UNITY_BATCH "(${RONDO_UNITY_BATCH} + 1) / 2")  # kernels take longer each, so that many cores have work
  rondo_unite(kernels ${name}_kernels ${ARG_KERNELS})
  add_library(rondo_${name} STATIC ${sources})
  rondo_use_precompiled(rondo_${name} library)
  if(RONDO_PRECOMPILED_HEADERS)  # more of GCC 12's false alarms about std::string, which it else knows to be a system header
    target_compile_options(rondo_${name} PRIVATE -Wno-array-bounds -Wno-stringop-overread)
  endif()
  if(ARG_KERNELS)
    add_library(rondo_${name}_kernels OBJECT ${kernels})
    list(APPEND parts rondo_${name}_kernels)
    rondo_use_precompiled(rondo_${name}_kernels kernels)
    if(RONDO_ISOLATES_KERNELS)
      set_source_files_properties(${kernels} PROPERTIES OBJECT_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/isolate_kernel.sh)
      # A list that ends with an empty element, where there is no other launcher, would be an empty argument.
      set(launcher ${PROJECT_SOURCE_DIR}/cmake/isolate_kernel.sh ${CMAKE_NM} ${CMAKE_OBJCOPY} ${CMAKE_CXX_COMPILER_LAUNCHER})
      set_target_properties(rondo_${name}_kernels PROPERTIES CXX_COMPILER_LAUNCHER "${launcher}")
    endif()
    target_sources(rondo_${name} PRIVATE $<TARGET_OBJECTS:rondo_${name}_kernels>)
  endif()
  foreach(part IN LISTS parts)
    rondo_configure(${part})
    if(RONDO_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # it means unnamed namespaces of headers, which these are not
      target_compile_options(${part} PRIVATE -Wno-subobject-linkage)
    endif()
    rondo_hide(${part})
    target_link_libraries(${part} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
    set_property(GLOBAL APPEND PROPERTY RONDO_OBJECTS $<TARGET_OBJECTS:${part}>)
  endforeach()
  if(ARG_KERNELS)  # after the flags of host code
    target_compile_options(rondo_${name}_kernels PRIVATE ${RONDO_KERNEL_FLAGS})
  endif()
  set_target_properties(rondo_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY RONDO_TARGETS rondo_${name})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(header IN LISTS ARG_HEADERS)
    set_property(GLOBAL APPEND PROPERTY RONDO_HEADERS ${folder}/${header})
  endforeach()
endfunction()

# Other libraries of the process: Rondo leaves it as it was, and oneDNN is out of their sight and reach. Included by
# tests/CMakeLists.txt.
set(neighbours ${CMAKE_CURRENT_SOURCE_DIR}/neighbours)
add_library(rondo_neighbours OBJECT ${neighbours}/neighbours.cc)
rondo_program(rondo_neighbours)
target_link_libraries(rondo_neighbours PRIVATE rondo_optim)
# One that exports the names of oneDNN.
set(decoys ${CMAKE_CURRENT_BINARY_DIR}/decoys.cc)
add_custom_command(OUTPUT ${decoys} DEPENDS ${neighbours}/decoys.sh VERBATIM
                   COMMAND sh ${neighbours}/decoys.sh ${CMAKE_NM} ${RONDO_DNNL_LIBRARY} ${decoys})
add_library(rondo_decoys SHARED ${decoys})
# Before what Rondo needs, and though nobody asks for its names.
set(beside_decoys -Wl,--no-as-needed rondo_decoys)
set(neighbours_alone rondo_optim)
set(neighbours_decoys_static ${beside_decoys} rondo_optim)
set(neighbours_decoys_shared ${beside_decoys} rondo_shared)
foreach(program neighbours_alone neighbours_decoys_static neighbours_decoys_shared)
  add_executable(${program} $<TARGET_OBJECTS:rondo_neighbours>)
  rondo_configure(${program})
  target_link_libraries(${program} PRIVATE ${${program}})
endforeach()
foreach(isa ALL AVX2)
  set(settings OMP_NUM_THREADS=4 ONEDNN_MAX_CPU_ISA=${isa})
  rondo_ctest(neighbours_alone_${isa} neighbours SETTINGS ${settings} COMMAND $<TARGET_FILE:neighbours_alone> hidden)
  foreach(kind static shared)
    rondo_ctest(neighbours_decoys_${kind}_${isa} neighbours SETTINGS ${settings}
                COMMAND $<TARGET_FILE:neighbours_decoys_${kind}> beside)
  endforeach()
endforeach()

# Libraries that have oneDNN's name and cannot be used.
string(REGEX MATCH "^[0-9]+" major ${RONDO_DNNL_VERSION})
add_library(rondo_later_onednn SHARED ${neighbours}/other_library.cc)
target_compile_definitions(rondo_later_onednn PRIVATE VERSION=9)
add_library(rondo_lacking_onednn SHARED ${neighbours}/other_library.cc)
target_compile_definitions(rondo_lacking_onednn PRIVATE VERSION=${major})
rondo_script_test(neighbours_library ${neighbours}/library_test.sh $<TARGET_FILE:neighbours_alone> ${RONDO_DNNL_NAME}
                  $<TARGET_FILE:rondo_later_onednn> $<TARGET_FILE:rondo_lacking_onednn>)

# libtorch, before Rondo and after it.
set(RONDO_TORCH "" CACHE PATH "A folder with include/ and lib/ of PyTorch (its Python package is one), for a test beside it")
if(RONDO_TORCH)
  add_library(rondo_neighbours_torch OBJECT ${neighbours}/torch.cc)
  rondo_configure(rondo_neighbours_torch)
  target_include_directories(rondo_neighbours_torch SYSTEM PRIVATE ${RONDO_TORCH}/include)
  target_link_libraries(rondo_neighbours_torch PRIVATE rondo_optim)
  set(torch ${RONDO_TORCH}/lib/libtorch_cpu.so ${RONDO_TORCH}/lib/libc10.so)
  set(neighbours_torch_static ${torch} rondo_optim)
  set(neighbours_torch_first ${torch} rondo_shared)
  set(neighbours_torch_last rondo_shared ${torch})
  set(programs neighbours_torch_static neighbours_torch_first neighbours_torch_last)
  foreach(program IN LISTS programs)
    add_executable(${program} $<TARGET_OBJECTS:rondo_neighbours_torch>)
    rondo_configure(${program})
    target_link_libraries(${program} PRIVATE ${${program}})
  endforeach()
  list(TRANSFORM programs REPLACE ".+" "$<TARGET_FILE:\\0>")
  foreach(isa ALL AVX2)
    rondo_ctest(neighbours_torch_${isa} neighbours SETTINGS ONEDNN_MAX_CPU_ISA=${isa}
                COMMAND ${neighbours}/torch_test.sh $<TARGET_FILE:neighbours_alone> ${RONDO_TORCH}/lib/libtorch_cpu.so ${programs})
  endforeach()
else()
  rondo_script_test(neighbours_torch sh -c "echo 'skipped: no libtorch, which -DRONDO_TORCH=FOLDER names' && exit 77")
endif()

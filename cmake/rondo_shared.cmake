# librondo: one shared library of all folders' objects, so that folders can use each other's internals and programs cannot.
# Built where BUILD_SHARED_LIBS asks for it, and by the tests.
if(BUILD_SHARED_LIBS OR RONDO_BUILD_TESTS)
  get_property(objects GLOBAL PROPERTY RONDO_OBJECTS)
  get_property(folders GLOBAL PROPERTY RONDO_TARGETS)
  add_library(rondo_shared SHARED ${objects} ${PROJECT_SOURCE_DIR}/cmake/plugin_folder_shared.cc)
  rondo_configure(rondo_shared)
  set_target_properties(rondo_shared PROPERTIES OUTPUT_NAME rondo EXPORT_NAME shared VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/rondo.map)
  # Public headers include these; they are headers only.
  target_link_libraries(rondo_shared PUBLIC absl::span absl::function_ref absl::inlined_vector)
  foreach(folder IN LISTS folders)
    get_target_property(libraries ${folder} LINK_LIBRARIES)
    list(FILTER libraries EXCLUDE REGEX "rondo")
    target_link_libraries(rondo_shared PRIVATE ${libraries})
  endforeach()
  # dlclose() must not unmap it: its threads, its callbacks and compiled code live as long as the process.
  target_link_options(rondo_shared PRIVATE -Wl,-z,nodelete -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/rondo.map -Wl,-z,defs)
  if(TARGET rondo_jit_llvm)
    add_dependencies(rondo_shared rondo_jit_llvm)
  endif()
endif()

# Targets that programs link: rondo::rondo is everything; rondo::runtime and so on are parts of it, each with those that it needs:
# folders, and rooms of them that not every program has.
add_library(rondo INTERFACE)
add_library(rondo::rondo ALIAS rondo)
target_link_libraries(rondo INTERFACE "$<IF:$<BOOL:${BUILD_SHARED_LIBS}>,rondo_shared,rondo_dist;rondo_c_api;rondo_image>")
foreach(folder IN ITEMS runtime image text chat data read_examples modules vision pretrained compile optim c_api dist)
  if(BUILD_SHARED_LIBS)
    add_library(rondo::${folder} ALIAS rondo)
  else()
    add_library(rondo::${folder} ALIAS rondo_${folder})
  endif()
endforeach()

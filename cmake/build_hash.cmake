# Writes the source file behind jit/build_hash.h: a hash of SOURCES and of every file of ours that they include, directly
# or not. The files are listed in OUTPUT.d, for the build.
#   cmake -DROOT=... -DSOURCES=a|b|... -DLLVM=19.1.7 -DCPU=native -DCOMPILER="GNU 12.2.0" -DOUTPUT=... -P build_hash.cmake
string(REPLACE "|" ";" SOURCES "${SOURCES}")
set(pending ${SOURCES})
while(pending)
  set(found "")
  foreach(file IN LISTS pending)
    file(STRINGS ${ROOT}/${file} includes REGEX "^#include \"rondo/")
    list(TRANSFORM includes REPLACE "^#include \"rondo/([^\"]+)\".*" "\\1")
    list(APPEND found ${includes})
  endforeach()
  list(REMOVE_DUPLICATES found)
  list(REMOVE_ITEM found ${SOURCES})
  list(APPEND SOURCES ${found})
  set(pending ${found})
endwhile()
list(SORT SOURCES)
set(all "${COMPILER}\n")
set(depends "${OUTPUT}:")
foreach(file IN LISTS SOURCES)
  file(SHA256 ${ROOT}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
  string(APPEND depends " ${ROOT}/${file}")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUTPUT}.d "${depends}\n")
file(WRITE ${OUTPUT} "// Made by cmake/build_hash.cmake.
#include \"rondo/compile/jit/build_hash.h\"
namespace rondo::compile {
const char* build_mark() { return \"rondo code generator ${hash}\"; }
const char* build_hash() { return build_mark() + 21; }
const char* llvm_version() { return \"${LLVM}\"; }
const char* kernel_cpu_name() { return \"${CPU}\"; }
}  // namespace rondo::compile
")

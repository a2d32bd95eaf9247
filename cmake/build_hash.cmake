# Writes the source file behind jit/build_hash.h.
#   cmake -DROOT=... -DSOURCES=a|b|... -DLLVM=19.1.7 -DOUTPUT=... -P build_hash.cmake
string(REPLACE "|" ";" SOURCES "${SOURCES}")
list(SORT SOURCES)
set(all "")
foreach(file IN LISTS SOURCES)
  file(SHA256 ${ROOT}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUTPUT} "// Made by cmake/build_hash.cmake.
#include \"rondo/compile/jit/build_hash.h\"
namespace rondo::compile {
const char* build_hash() { return \"${hash}\"; }
const char* llvm_version() { return \"${LLVM}\"; }
}  // namespace rondo::compile
")

// Which compiler this is. Both are fixed when Rondo is built, in the library and in the plug-in, which must agree.
#pragma once

namespace rondo::compile {

// A hash of the sources of compile/ and runtime/ops/: code made by other sources is other code.
const char* build_hash();
// "19.1.7"; "none" if Rondo was built without LLVM.
const char* llvm_version();

}  // namespace rondo::compile

// Loads machine code: places one relocatable ELF object, as our code generator writes it, in executable memory. A
// process that finds its kernels in a cache needs nothing else: it does not need LLVM.
//
// The object's structure is not trusted, even if its checksum is right: every offset, size and index is checked before
// use, and anything unknown is refused. Its code is trusted: whoever can write the file can run code as the user, so
// caches check who can write it (disk_cache.h).
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "rondo/compile/target/machine_code.h"

namespace rondo::compile {

// True if place_object() supports this processor (x86-64, aarch64). On others LLVM's linker places code, and nothing is
// cached on disk.
bool can_place_objects();

// Places the object, so that it can be called. Pages are first written, then made executable; they are never both at
// once. kInvalidArgument: damaged, or not one of our objects. kUnimplemented: this loader cannot place it (for example,
// it calls a library function). kResourceExhausted: the system gave no executable memory.
absl::StatusOr<std::shared_ptr<const MachineCode>> place_object(std::string_view object);

// Does the checks of place_object() without placing anything.
absl::Status check_object(std::string_view object);

}  // namespace rondo::compile

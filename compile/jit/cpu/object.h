// Loads machine code: places one relocatable ELF object, as our code generator writes them, in executable memory. A
// process that finds its kernels in a cache needs nothing else, LLVM least of all.
//
// The object is not trusted further than its checksum: every offset, size and index is checked before it is used, and
// whatever is not known to be right is refused. The code in it is trusted: who can write the file can run code as the
// user, so caches check who could (disk_cache.h).
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "rondo/compile/target/machine_code.h"

namespace rondo::compile {

// True if place_object can work on this processor (x86-64, aarch64). Elsewhere LLVM's linker places code, and nothing
// is cached on disk.
bool can_place_objects();

// The object, callable. Pages are written first and made executable then, never both. kInvalidArgument: not an object
// of ours, or damaged; kUnimplemented: beyond this loader (it calls a library function, say); kResourceExhausted: the
// system gave no executable memory.
absl::StatusOr<std::shared_ptr<const MachineCode>> place_object(std::string_view object);

// The checks of place_object, without placing anything.
absl::Status check_object(std::string_view object);

}  // namespace rondo::compile

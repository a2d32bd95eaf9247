// The part of the allocator for storage.cc and the CPU's backend. The public part is in storage.h.
#pragma once

#include "rondo/runtime/device/storage.h"

namespace rondo::allocator {

// What a block of so many bytes takes: a multiple of kAlignment. A kernel may read what is behind the bytes, up to the
// next multiple, and write nothing there (tests/guarded_memory.h).
size_t block_bytes(size_t bytes);
void count_purpose(Purpose purpose, int64_t bytes);
int64_t bytes_for(Purpose purpose);

}  // namespace rondo::allocator

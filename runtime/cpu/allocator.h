// The part of the allocator for storage.cc and the CPU's backend. The public part is in storage.h.
#pragma once

#include "rondo/runtime/storage.h"

namespace rondo::allocator {

size_t block_bytes(size_t bytes);  // what a block of so many bytes takes
void count_purpose(Purpose purpose, int64_t bytes);
int64_t bytes_for(Purpose purpose);

}  // namespace rondo::allocator

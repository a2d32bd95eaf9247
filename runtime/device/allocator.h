// The caching allocator of host memory: it keeps freed blocks and reuses them. Blocks up to 64 KB have size classes;
// the thread that frees one keeps it, at most 26 MB for each thread. Larger blocks take whole pages, which all threads
// share: freed neighbours are joined and serve blocks of any size. The cache limit bounds the pages that are kept; the
// pages that were freed first go back to the system first.
// Thread safety: everything here may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rondo/runtime/device/allocator_stats.h"

#pragma GCC visibility push(default)
namespace rondo {

// Alignment of all blocks in bytes: a cache line, which is also the size of the widest vector register.
inline constexpr size_t kAlignment = 64;

namespace allocator {

// Throws OutOfMemoryError when memory is exhausted, or if one block exceeds the memory that this process may use.
void* allocate(size_t bytes);
void deallocate(void* data, size_t bytes) noexcept;
AllocatorStats stats();
void reset_peak();
// Sets the limit of bytes_cached; 0 keeps no large block. Default: half of the memory that the machine and the control
// group allow this process. With any limit, pages are given back while used and cached memory together exceed three
// quarters of that memory. Throws Error if `bytes` is negative.
void set_cache_limit(int64_t bytes);
int64_t cache_limit();
// Gives cached pages back to the system, the oldest first, until bytes_cached is at most `bytes`.
void trim(int64_t bytes);
// Gives all freed blocks back to the system; other threads give back their small ones when they next allocate.
// memory::trim() also empties the caches outside of this allocator.
void empty_cache();
// Fills every freed block with 0xFF bytes (NaN in every float type): a use after free becomes a wrong number at once.
void set_poison_on_free(bool on);

// ---- For the runtime

// These functions implement memory::set_limit(), memory::limit() and memory::usable(). They belong to the allocator
// because it counts the bytes.
void set_limit(int64_t bytes);
int64_t limit();
int64_t usable();
// `give_back` is called, on any thread, before a large block is taken from the system. It returns unused memory to the
// system and may not allocate tensors. A second on_growth() replaces the first function.
void on_growth(void (*give_back)());
// Returns the size of a block for `bytes`, a multiple of kAlignment. A kernel may read after `bytes` up to the next
// multiple of kAlignment, but may write nothing there (tests/guarded_memory.h).
size_t block_bytes(size_t bytes);
void count_purpose(Purpose purpose, int64_t bytes);
int64_t bytes_for(Purpose purpose);

}  // namespace allocator
}  // namespace rondo
#pragma GCC visibility pop

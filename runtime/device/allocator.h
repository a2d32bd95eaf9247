// The allocator of host memory: a cache, in which what is freed is kept and reused. Blocks up to 64 KB have classes of
// sizes, and are kept by the thread that freed them, at most 26 MB for each thread. Larger blocks take whole pages,
// which all threads share: freed neighbours are joined, and serve blocks of any size. What is kept of them is bounded
// by the cache limit: the pages that were freed first go back to the system first.
// Thread safety: everything here may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rondo/runtime/device/allocator_stats.h"

#pragma GCC visibility push(default)
namespace rondo {

// Blocks are aligned so that a full vector register or cache line never straddles their start.
inline constexpr size_t kAlignment = 64;

namespace allocator {

// Throws OutOfMemoryError when memory is exhausted, or if one block exceeds the memory that this process may use.
void* allocate(size_t bytes);
void deallocate(void* data, size_t bytes) noexcept;
AllocatorStats stats();
void reset_peak();
// The most that bytes_cached may be; 0 keeps no large block. Default: half of the memory that this process may use, by
// the machine and its control group. Whatever the limit, pages are given back while used and cached memory
// together exceed three quarters of that. Throws Error if `bytes` is negative.
void set_cache_limit(int64_t bytes);
int64_t cache_limit();
// Gives cached pages back to the system, the oldest first, until bytes_cached is at most `bytes`.
void trim(int64_t bytes);
// Gives all freed blocks back; other threads give back their small ones when they next allocate. memory::trim() empties
// the other caches, too.
void empty_cache();
// Fills every freed block with 0xFF bytes (NaN in every float type): a use after free becomes a wrong number at once.
void set_poison_on_free(bool on);

// ---- For the runtime

// memory::set_limit(), memory::limit() and memory::usable(), where bytes are counted.
void set_limit(int64_t bytes);
int64_t limit();
int64_t usable();
// `give_back` is called before a large block is taken from the system, in any thread. It returns to the system what is
// not in use, and may not allocate tensors. A second call replaces the first.
void on_growth(void (*give_back)());
// What a block of so many bytes takes: a multiple of kAlignment. A kernel may read what is behind the bytes, up to the
// next multiple, and write nothing there (tests/guarded_memory.h).
size_t block_bytes(size_t bytes);
void count_purpose(Purpose purpose, int64_t bytes);
int64_t bytes_for(Purpose purpose);

}  // namespace allocator
}  // namespace rondo
#pragma GCC visibility pop

// The allocator of host memory: size classes, small blocks cached per thread, large ones in a shared cache.
#include "rondo/runtime/cpu/allocator.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "rondo/runtime/error.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/per_thread.h"

namespace rondo {
namespace allocator {
namespace {

// Blocks up to this size are cached per thread without a lock.
constexpr size_t kSmall = 64 << 10;
constexpr size_t kSmallPerClass = 32;
// From here on a block is its own mapping on huge pages: a fresh 12 MB activation then costs 6 page faults, not 3,000.
constexpr size_t kHuge = 2 << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaching = false;  // so that the sanitizer sees every lifetime
#else
constexpr bool kCaching = true;
#endif

std::atomic<int64_t> bytes_in_use{0}, peak_bytes{0}, bytes_cached{0}, allocations{0}, bytes_reserved{0};
std::atomic<int64_t> bytes_by_purpose[kPurposes];
std::atomic<bool> poison{false};
std::atomic<int64_t> limit{0};  // of bytes_reserved; 0: none

// Rounds up to a class: a power of two split into eight steps, so at most 12.5% is wasted.
size_t class_size(size_t bytes) {
  if (bytes <= 512) return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}
// A dense number for small classes: 64..512 by 64, then eight steps for each power of two.
int small_class(size_t rounded) {
  if (rounded <= 512) return static_cast<int>(rounded / kAlignment) - 1;
  const size_t floor = std::bit_floor(rounded - 1);
  return 8 + (std::bit_width(floor) - 10) * 8 + static_cast<int>((rounded - floor) / (floor / 8)) - 1;
}
constexpr int kSmallClasses = 8 + 7 * 8;
constexpr size_t bytes_of_small_class(int c) {
  if (c < 8) return static_cast<size_t>(c + 1) * kAlignment;
  const size_t floor = size_t{512} << ((c - 8) / 8);
  return floor + floor / 8 * static_cast<size_t>((c - 8) % 8 + 1);
}

void count_reserved(int64_t bytes) { bytes_reserved.fetch_add(bytes, std::memory_order_relaxed); }
// False, and nothing is counted, if the limit does not allow it.
bool try_reserve(int64_t bytes) {
  const int64_t now = bytes_reserved.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t most = limit.load(std::memory_order_relaxed);
  if (most == 0 || now <= most) return true;
  count_reserved(-bytes);
  return false;
}
constexpr size_t mapped_bytes(size_t bytes) { return bytes >= kHuge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes; }

// Null if there is no memory, or no more within the limit.
void* system_allocate(size_t bytes) {
  const auto reserved = static_cast<int64_t>(mapped_bytes(bytes));
  if (!try_reserve(reserved)) return nullptr;
  if (bytes >= kHuge) {
    const size_t mapped = mapped_bytes(bytes);
    void* raw = mmap(nullptr, mapped + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
      count_reserved(-reserved);
      return nullptr;
    }
    // Trim to a 2 MB boundary, else the kernel cannot use huge pages.
    const auto start = reinterpret_cast<uintptr_t>(raw), aligned = (start + kHuge - 1) / kHuge * kHuge;
    if (aligned != start) munmap(raw, aligned - start);
    if (start + kHuge != aligned) munmap(reinterpret_cast<void*>(aligned + mapped), start + kHuge - aligned);
    madvise(reinterpret_cast<void*>(aligned), mapped, MADV_HUGEPAGE);
    return reinterpret_cast<void*>(aligned);
  }
  void* block = std::aligned_alloc(kAlignment, bytes);
  if (block == nullptr) count_reserved(-reserved);
  return block;
}
void system_free(void* data, size_t bytes) {
  count_reserved(-static_cast<int64_t>(mapped_bytes(bytes)));
  if (bytes >= kHuge) munmap(data, mapped_bytes(bytes));
  else std::free(data);
}

// The memory that this process may use: the machine's, or its control group's if that is less.
int64_t usable_memory() {
  auto least = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::FILE* file = std::fopen(path, "r");
    if (file == nullptr) continue;
    long long limit = 0;
    if (std::fscanf(file, "%lld", &limit) == 1 && limit > 0) least = std::min<int64_t>(least, limit);
    std::fclose(file);
  }
  return least;
}

// Freed blocks above kSmall, of all threads.
class LargeCache {
 public:
  LargeCache() {
    // A child process may be forked while another thread holds the lock.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }
  // Never destroyed: tensors with static lifetime may be freed after it would be.
  static LargeCache& instance() {
    static LargeCache* cache = new LargeCache;
    return *cache;
  }

  // The block that was freed last, still warm; null if there is none.
  void* take(size_t size) {
    std::lock_guard lock(mutex_);
    const auto found = by_size_.find(size);
    if (found == by_size_.end() || found->second.empty()) return nullptr;
    const auto at = found->second.back();
    found->second.pop_back();
    void* data = at->data;
    by_age_.erase(at);
    bytes_cached.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    return data;
  }
  // May throw std::bad_alloc; the block is then the caller's again.
  void put(void* data, size_t size) {
    std::lock_guard lock(mutex_);
    std::deque<std::list<Block>::iterator>& blocks = by_size_[size];
    by_age_.push_back({data, size});
    try {
      blocks.push_back(std::prev(by_age_.end()));
    } catch (...) {
      by_age_.pop_back();
      throw;
    }
    bytes_cached.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
    shrink(limit_, 0);
  }
  // Gives blocks back until at most `most` bytes are cached and `more` bytes fit below the ceiling of all memory.
  void trim(int64_t most, int64_t more) {
    if (bytes_cached.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard lock(mutex_);
    shrink(most, more);
  }
  void set_limit(int64_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
    shrink(limit_, 0);
  }
  int64_t limit() {
    std::lock_guard lock(mutex_);
    return limit_;
  }

 private:
  struct Block {
    void* data;
    size_t size;
  };
  void shrink(int64_t most, int64_t more) {
    while (!by_age_.empty() && (bytes_cached.load(std::memory_order_relaxed) > most ||
                                bytes_reserved.load(std::memory_order_relaxed) + more > ceiling_)) {
      const Block oldest = by_age_.front();
      by_age_.pop_front();
      by_size_[oldest.size].pop_front();
      bytes_cached.fetch_sub(static_cast<int64_t>(oldest.size), std::memory_order_relaxed);
      system_free(oldest.data, oldest.size);
    }
  }

  std::mutex mutex_;
  std::list<Block> by_age_;  // the oldest first
  std::unordered_map<size_t, std::deque<std::list<Block>::iterator>> by_size_;
  const int64_t memory_ = usable_memory(), ceiling_ = memory_ / 4 * 3;
  int64_t limit_ = memory_ / 2;
};

// How often the small caches of all threads were asked to be emptied.
std::atomic<uint32_t> small_trims{0};

struct SmallCache {
  std::vector<void*> free[kSmallClasses];
  uint32_t trims = small_trims.load(std::memory_order_relaxed);
  SmallCache() = default;
  ~SmallCache() { clear(); }
  void clear() {
    for (int c = 0; c < kSmallClasses; ++c) {
      for (void* block : free[c]) system_free(block, bytes_of_small_class(c));
      free[c].clear();
    }
  }
};
SmallCache* small_cache() {
  SmallCache* const cache = PerThread<SmallCache>::get();
  if (cache == nullptr) return nullptr;
  if (const uint32_t trims = small_trims.load(std::memory_order_relaxed); trims != cache->trims) [[unlikely]] {
    cache->trims = trims;
    cache->clear();
  }
  return cache;
}

// A block of this class from a cache; null if there is none.
void* reuse(size_t size) {
  if (!kCaching) return nullptr;
  if (size > kSmall) return LargeCache::instance().take(size);
  SmallCache* cache = small_cache();
  if (cache == nullptr) return nullptr;
  auto& list = cache->free[small_class(size)];
  if (list.empty()) return nullptr;
  void* block = list.back();
  list.pop_back();
  return block;
}

}  // namespace

void* allocate(size_t bytes) {
  const size_t size = class_size(bytes);
  const int64_t now = bytes_in_use.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed) +
                      static_cast<int64_t>(size);
  void* block = reuse(size);
  if (block == nullptr) {
    if (size > kSmall) LargeCache::instance().trim(std::numeric_limits<int64_t>::max(), static_cast<int64_t>(size));
    block = system_allocate(size);
  }
  if (block == nullptr) {
    empty_cache();
    block = system_allocate(size);
  }
  if (block == nullptr) {
    bytes_in_use.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    const int64_t most = limit.load(std::memory_order_relaxed);
    throw OutOfMemoryError("out of memory: cannot allocate " + std::to_string(bytes) + " bytes with " +
                           std::to_string(now - static_cast<int64_t>(size)) + " in use" +
                           (most == 0 ? "" : " and a limit of " + std::to_string(most) + " (memory::set_limit)") +
                           "; use a smaller batch, or activation checkpointing");
  }
  if (now > peak_bytes.load(std::memory_order_relaxed)) peak_bytes.store(now, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (memory::recording()) [[unlikely]]
    memory::detail::note_allocation(now, block);
  return block;
}

void deallocate(void* data, size_t bytes) noexcept {
  const size_t size = class_size(bytes);
  bytes_in_use.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  if (poison.load(std::memory_order_relaxed)) std::memset(data, 0xFF, size);
  if (kCaching) {
    try {
      if (size <= kSmall) {
        if (SmallCache* cache = small_cache()) {
          auto& list = cache->free[small_class(size)];
          if (list.size() < kSmallPerClass) {
            list.push_back(data);
            return;
          }
        }
      } else {
        return LargeCache::instance().put(data, size);
      }
    } catch (const std::bad_alloc&) {
      // No room to remember the block: give it back below.
    }
  }
  system_free(data, size);
}

AllocatorStats stats() {
  AllocatorStats stats{.bytes_in_use = bytes_in_use.load(),
                       .peak_bytes = peak_bytes.load(),
                       .bytes_cached = bytes_cached.load(),
                       .allocations = allocations.load(),
                       .bytes_reserved = bytes_reserved.load()};
  for (int i = 0; i < kPurposes; ++i) stats.by_purpose[i] = bytes_by_purpose[i].load();
  return stats;
}

size_t block_bytes(size_t bytes) { return class_size(bytes); }
void count_purpose(Purpose purpose, int64_t bytes) {
  if (purpose != Purpose::kWorkspace)
    bytes_by_purpose[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
}
int64_t bytes_for(Purpose purpose) { return bytes_by_purpose[static_cast<size_t>(purpose)].load(); }
void reset_peak() { peak_bytes.store(bytes_in_use.load()); }
void set_poison_on_free(bool on) { poison.store(on); }

void set_cache_limit(int64_t bytes) {
  if (bytes < 0) throw Error("allocator::set_cache_limit: " + std::to_string(bytes) + " bytes");
  LargeCache::instance().set_limit(bytes);
}
int64_t cache_limit() { return LargeCache::instance().limit(); }
void trim(int64_t bytes) { LargeCache::instance().trim(std::max<int64_t>(bytes, 0), 0); }
void empty_cache() {
  small_trims.fetch_add(1, std::memory_order_relaxed);
  if (SmallCache* cache = small_cache()) cache->trims = small_trims.load(), cache->clear();
  trim(0);
}

}  // namespace allocator

void memory::set_limit(int64_t bytes) {
  if (bytes < 0) throw Error("memory::set_limit: " + std::to_string(bytes) + " bytes");
  allocator::limit.store(bytes, std::memory_order_relaxed);
}
int64_t memory::limit() { return allocator::limit.load(std::memory_order_relaxed); }

}  // namespace rondo

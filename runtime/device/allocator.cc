// The allocator of host memory: small blocks in size classes, cached per thread; large blocks in a heap of pages
// (page_heap.h), shared by all threads.
#include "rondo/runtime/device/allocator.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/per_thread.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/page_heap.h"
#include "rondo/runtime/device/peak_memory.h"

namespace rondo {
namespace allocator {
namespace {

// Blocks up to this size are cached per thread without a lock.
constexpr size_t kSmall = 64 << 10;
constexpr size_t kSmallPerClass = 32;
// A block for which PageHeap has no address space is allocated on its own. From this size on, such a block is a mapping
// on huge pages.
constexpr size_t kHuge = PageHeap::kHugePage;
// More bytes than any machine has. Adding two such numbers does not overflow.
constexpr size_t kMost = size_t{1} << 62;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaching = false;  // so that the sanitizer sees every lifetime
#else
constexpr bool kCaching = true;
#endif

std::atomic<int64_t> bytes_in_use{0}, peak_bytes{0}, bytes_cached{0}, allocations{0}, bytes_reserved{0};
std::atomic<int64_t> bytes_by_purpose[kPurposes];
std::atomic<bool> poison{false};
std::atomic<int64_t> most_reserved{0};  // 0: no limit
std::atomic<void (*)()> growth{nullptr};

// Rounds a size up: large blocks to pages, small ones to their size class. Each power of two is divided into eight
// classes, so at most 12.5% is wasted.
size_t block_size(size_t bytes) {
  if (bytes <= 512) return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > kSmall) return bytes < kMost ? PageHeap::round_up(bytes) : kMost;
  const size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}
// Returns the index of a small size class: 64..512 in steps of 64, then eight classes for each power of two.
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
// Counts `bytes` as reserved and returns true. If the limit does not allow it, counts nothing and returns false.
bool try_reserve(int64_t bytes) {
  const int64_t now = bytes_reserved.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t most = most_reserved.load(std::memory_order_relaxed);
  if (most == 0 || now <= most) return true;
  count_reserved(-bytes);
  return false;
}
constexpr size_t mapped_bytes(size_t bytes) { return bytes >= kHuge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes; }

// Returns null if the system has no memory, or if the limit leaves none.
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
    // Trims to 2 MB boundaries, otherwise the kernel cannot use huge pages.
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

// Returns the memory that this process may use: the machine's memory, or the limit of its control group if that is
// smaller.
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

// Returns the bytes of address space for large blocks: more than the memory, because free ranges may be too small for a
// block, and less than the process may map.
size_t address_space(int64_t memory) {
  const size_t wanted = 4 * static_cast<size_t>(memory);
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return wanted;
  return std::min<size_t>(wanted, most.rlim_cur / 2);
}

// Blocks above kSmall, of all threads.
class LargeBlocks {
 public:
  LargeBlocks() {
    // The process may fork while another thread holds the lock, so fork() waits for the lock.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }
  // Never destroyed: tensors with static lifetime may be freed very late.
  static LargeBlocks& instance() {
    static LargeBlocks* blocks = new LargeBlocks;
    return *blocks;
  }

  // Returns a cached block, or null if there is none.
  void* reuse(size_t size) {
    return guarded([&] { return heap_.take_kept(size); });
  }
  // Returns null if the system has no memory, or if the limit leaves none.
  void* allocate(size_t size) {
    return guarded([&] { return allocate_fresh(size); });
  }
  void deallocate(void* data, size_t size) noexcept {
    if (!heap_.contains(data)) return system_free(data, size);
    std::lock_guard lock(mutex_);
    heap_.put(data);
    shrink(limit_, 0);
  }
  void trim(int64_t most) {
    std::lock_guard lock(mutex_);
    shrink(most, 0);
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
  template <class Take> void* guarded(const Take& take) {
    std::lock_guard lock(mutex_);
    try {
      void* data = take();
      count_cached();
      return data;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  void* allocate_fresh(size_t size) {
    // The system reserves address space without a check that so much memory exists, so the check is made here.
    if (size > static_cast<size_t>(memory_)) return nullptr;
    shrink(std::numeric_limits<int64_t>::max(), static_cast<int64_t>(size));
    const PageHeap::Place place = heap_.cheapest(size);
    if (place.range == nullptr) return system_allocate(size);
    if (!try_reserve(static_cast<int64_t>(place.fresh))) return nullptr;
    void* data = heap_.take(place, size);
    if (data == nullptr) count_reserved(-static_cast<int64_t>(place.fresh));
    return data;
  }
  // Gives pages back until at most `most` bytes are cached and `more` new bytes fit below ceiling_.
  void shrink(int64_t most, int64_t more) {
    for (;;) {
      const auto cached = static_cast<int64_t>(heap_.kept_bytes());
      const int64_t excess = std::max(cached - most, bytes_reserved.load(std::memory_order_relaxed) + more - ceiling_);
      if (excess <= 0 || cached == 0) break;
      count_reserved(-static_cast<int64_t>(heap_.give_back(static_cast<size_t>(excess))));
    }
    count_cached();
  }
  void count_cached() { bytes_cached.store(static_cast<int64_t>(heap_.kept_bytes()), std::memory_order_relaxed); }

  std::mutex mutex_;
  const int64_t memory_ = usable_memory(), ceiling_ = memory_ / 4 * 3;
  PageHeap heap_{address_space(memory_)};
  int64_t limit_ = memory_ / 2;
};

// How often empty_cache() was called. A thread whose count is older empties its small cache.
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

// Returns null if the system has no memory, or if the limit leaves none.
void* try_allocate(size_t size) {
  if (!kCaching) return system_allocate(size);
  if (size > kSmall) {
    if (void* block = LargeBlocks::instance().reuse(size)) return block;
    if (const auto give_back = growth.load()) give_back();
    return LargeBlocks::instance().allocate(size);
  }
  if (SmallCache* cache = small_cache()) {
    auto& list = cache->free[small_class(size)];
    if (!list.empty()) {
      void* block = list.back();
      list.pop_back();
      return block;
    }
  }
  return system_allocate(size);
}

}  // namespace

void* allocate(size_t bytes) {
  const size_t size = block_size(bytes);
  const int64_t now = bytes_in_use.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed) +
                      static_cast<int64_t>(size);
  void* block = try_allocate(size);
  if (block == nullptr) {
    empty_cache();
    block = try_allocate(size);
  }
  if (block == nullptr) {
    bytes_in_use.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    const int64_t most = most_reserved.load(std::memory_order_relaxed);
    throw OutOfMemoryError("out of memory: cannot allocate " + std::to_string(bytes) + " bytes with " +
                           std::to_string(now - static_cast<int64_t>(size)) + " in use" +
                           (most == 0 ? "" : " and a limit of " + std::to_string(most) + " (memory::set_limit)") +
                           "; use a smaller batch, or activation checkpointing");
  }
  if (now > peak_bytes.load(std::memory_order_relaxed)) peak_bytes.store(now, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (memory::recording()) [[unlikely]] {
    AllocatorStats counted = stats();
    counted.bytes_in_use = now;
    memory::note_allocation(counted, block);
  }
  return block;
}

void deallocate(void* data, size_t bytes) noexcept {
  const size_t size = block_size(bytes);
  bytes_in_use.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  if (poison.load(std::memory_order_relaxed)) std::memset(data, 0xFF, size);
  if (kCaching && size > kSmall) return LargeBlocks::instance().deallocate(data, size);
  if (kCaching) {
    try {
      if (SmallCache* cache = small_cache()) {
        auto& list = cache->free[small_class(size)];
        if (list.size() < kSmallPerClass) {
          list.push_back(data);
          return;
        }
      }
    } catch (const std::bad_alloc&) {
      // There is no memory to remember the block, so it goes back to the system below.
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

size_t block_bytes(size_t bytes) { return block_size(bytes); }
void count_purpose(Purpose purpose, int64_t bytes) {
  if (purpose != Purpose::kWorkspace)
    bytes_by_purpose[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
}
int64_t bytes_for(Purpose purpose) { return bytes_by_purpose[static_cast<size_t>(purpose)].load(); }
void reset_peak() { peak_bytes.store(bytes_in_use.load()); }
void set_poison_on_free(bool on) { poison.store(on); }

void set_cache_limit(int64_t bytes) {
  if (bytes < 0) throw Error("allocator::set_cache_limit: " + std::to_string(bytes) + " bytes");
  LargeBlocks::instance().set_limit(bytes);
}
int64_t cache_limit() { return LargeBlocks::instance().limit(); }
void trim(int64_t bytes) { LargeBlocks::instance().trim(std::max<int64_t>(bytes, 0)); }
void empty_cache() {
  small_trims.fetch_add(1, std::memory_order_relaxed);
  if (SmallCache* cache = small_cache()) cache->trims = small_trims.load(), cache->clear();
  trim(0);
}

void set_limit(int64_t bytes) { most_reserved.store(bytes, std::memory_order_relaxed); }
int64_t limit() { return most_reserved.load(std::memory_order_relaxed); }
int64_t usable() {
  const int64_t all = usable_memory(), most = limit();
  return most == 0 ? all : std::min(all, most);
}
void on_growth(void (*give_back)()) { growth.store(give_back); }

}  // namespace allocator

}  // namespace rondo

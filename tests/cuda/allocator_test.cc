// The caching allocator of CUDA devices, on the fake driver.
#include <gtest/gtest.h>

#include <random>

#include "rondo/runtime/cuda/allocator.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::FakeCuda;

constexpr int64_t kMB = 1 << 20;

TEST(CudaAllocator, BlockSizes) {
  for (size_t bytes = 0; bytes < 70'000; ++bytes) {
    const size_t block = cuda::Allocator::block_bytes(bytes);
    ASSERT_GE(block, std::max<size_t>(bytes, 1));
    ASSERT_EQ(block % cuda::Allocator::kStep, 0u) << bytes;
    ASSERT_LE(block, bytes + std::max<size_t>(bytes / 8, 256)) << bytes;
    ASSERT_EQ(cuda::Allocator::block_bytes(block), block);
  }
}

TEST(CudaAllocator, FreedBlocksServeAgain) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  void* first = table.allocate(0, 1000);
  table.deallocate(0, first, 1000);
  EXPECT_EQ(table.allocate(0, 1000), first);
  table.deallocate(0, first, 1000);
  const int64_t allocations = cuda->counts().allocations;
  for (int i = 0; i < 1000; ++i) table.deallocate(0, table.allocate(0, 512 * (i % 50)), 512 * (i % 50));
  EXPECT_EQ(cuda->counts().allocations, allocations) << "the driver is not asked";
}

TEST(CudaAllocator, Statistics) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  void* small = table.allocate(0, 300);
  void* large = table.allocate(0, 3 * kMB);
  AllocatorStats stats = table.stats(0);
  EXPECT_EQ(stats.bytes_in_use, 512 + 3 * kMB);
  EXPECT_EQ(stats.bytes_reserved, 22 * kMB);
  EXPECT_EQ(stats.bytes_cached, stats.bytes_reserved - stats.bytes_in_use);
  EXPECT_EQ(stats.allocations, 2);
  table.deallocate(0, large, 3 * kMB);
  EXPECT_EQ(table.stats(0).peak_bytes, 512 + 3 * kMB);
  table.reset_peak(0);
  EXPECT_EQ(table.stats(0).peak_bytes, 512);
  table.trim(0);
  EXPECT_EQ(table.stats(0).bytes_reserved, 2 * kMB) << "the segment of the small block stays";
  table.deallocate(0, small, 300);
  memory::trim();  // reaches devices, too
  stats = table.stats(0);
  EXPECT_EQ(stats.bytes_reserved, 0);
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(cuda->counts().blocks, 1) << "only the status block is left";
}

TEST(CudaAllocator, NeighboursAreJoined) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<void*, size_t>> blocks;
    for (int i = 0; i < 60; ++i) {
      const size_t bytes = random() % (i % 5 == 0 ? 6 * kMB : 40'000);
      blocks.emplace_back(table.allocate(0, bytes), bytes);
      if (random() % 3 == 0) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        table.deallocate(0, blocks.back().first, blocks.back().second);
        blocks.pop_back();
      }
    }
    for (size_t i = 0; i < blocks.size(); ++i)
      for (size_t j = i + 1; j < blocks.size(); ++j) {
        const auto* a = static_cast<std::byte*>(blocks[i].first);
        const auto* b = static_cast<std::byte*>(blocks[j].first);
        ASSERT_TRUE(a + blocks[i].second <= b || b + blocks[j].second <= a) << "two blocks overlap";
      }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const auto& [data, bytes] : blocks) table.deallocate(0, data, bytes);
    EXPECT_EQ(table.stats(0).bytes_in_use, 0);
  }
  table.trim(0);
  EXPECT_EQ(table.stats(0).bytes_reserved, 0) << "every segment is whole again";
}

// Small blocks wait whole for a request of their size. One of another size joins them, before the driver is asked.
TEST(CudaAllocator, SmallBlocksWaitForTheirSize) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  for (const size_t small : {size_t{1}, size_t{2'048}, size_t{2'049}, size_t{200'000}, size_t{kMB}}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(table.allocate(0, small));
    const int64_t allocations = cuda->counts().allocations;
    for (void* block : blocks) table.deallocate(0, block, small);
    EXPECT_EQ(table.stats(0).bytes_in_use, 0);
    EXPECT_EQ(table.allocate(0, small), blocks.back()) << small;
    table.deallocate(0, blocks.back(), small);
    void* joined = table.allocate(0, kMB);
    EXPECT_EQ(cuda->counts().allocations, allocations) << small;
    table.deallocate(0, joined, kMB);
  }
  table.trim(0);
  EXPECT_EQ(table.stats(0).bytes_reserved, 0);
}

TEST(CudaAllocator, CacheLimit) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  table.set_cache_limit(0, 0);
  for (int i = 0; i < 3; ++i) table.deallocate(0, table.allocate(0, 30 * kMB), 30 * kMB);
  void* small = table.allocate(0, 16);
  EXPECT_EQ(table.stats(0).bytes_reserved, 2 * kMB);
  table.deallocate(0, small, 16);
  EXPECT_THROW(table.set_cache_limit(0, -1), Error);
  // What cannot be given back is no reason to wait.
  void* holds_its_segment = table.allocate(0, 16);
  const int64_t waits = cuda->counts().host_waits;
  for (int i = 0; i < 100; ++i) table.deallocate(0, table.allocate(0, 1000), 1000);
  EXPECT_EQ(cuda->counts().host_waits, waits);
  table.deallocate(0, holds_its_segment, 16);
}

// What waits for a request of its size counts as kept for reuse, and a limit set later reaches it. As much as the limit
// may stay.
TEST(CudaAllocator, ACacheLimitReachesWhatWasKeptBefore) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  table.deallocate(0, table.allocate(0, 1000), 1000);
  EXPECT_EQ(table.stats(0).bytes_cached, 2 * kMB);
  table.set_cache_limit(0, 0);
  void* large = table.allocate(0, 16 * kMB);
  EXPECT_EQ(table.stats(0).bytes_cached, 0) << "the segment of the small block is given back";
  void* other = table.allocate(0, 16 * kMB);
  table.set_cache_limit(0, 16 * kMB);
  for (void* data : {large, other}) table.deallocate(0, data, 16 * kMB);
  table.deallocate(0, table.allocate(0, 30 * kMB), 30 * kMB);
  EXPECT_EQ(table.stats(0).bytes_cached, (16 + 30) * kMB) << "one of both was given back for it";
  table.deallocate(0, table.allocate(0, 17 * kMB), 17 * kMB);
}

TEST(CudaAllocator, Limit) {
  FakeCuda cuda;
  const Device device = cuda.device();
  memory::set_limit(50 * kMB, device);
  EXPECT_EQ(memory::limit(device), 50 * kMB);
  std::vector<Tensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(Tensor::empty({10 * kMB}, {kBool, device}));
  EXPECT_THROW(Tensor::empty({11 * kMB}, {kBool, device}), OutOfMemoryError);
  tensors.pop_back();
  const Tensor fits = Tensor::empty({18 * kMB}, {kBool, device});  // what is cached goes first
  EXPECT_LE(memory::stats(device).bytes_reserved, 50 * kMB);
  // A limit is the most that there may be.
  memory::trim();
  tensors.clear();
  memory::trim();
  memory::set_limit(memory::stats(device).bytes_reserved + 32 * kMB, device);
  const Tensor all = Tensor::empty({32 * kMB}, {kBool, device});
  memory::set_limit(0, device);
  const Tensor more = Tensor::empty({100 * kMB}, {kBool, device});
  EXPECT_THROW(memory::set_limit(-1, device), Error);
}

TEST(CudaAllocator, OutOfMemoryNamesWhatIsHeld) {
  FakeCuda cuda({.bytes = size_t{100} << 20});
  const Device device = cuda.device();
  Tensor parameter = Tensor::zeros({20 * kMB / 4}).to(device);
  parameter.requires_grad_();
  const Tensor rest = Tensor::empty({30 * kMB}, {kBool, device});
  std::string message;
  try {
    const memory::Cause cause("backward of ", "linear", std::source_location::current());
    static_cast<void>(Tensor::empty({80 * kMB}, {kBool, device}));
  } catch (const OutOfMemoryError& error) {
    message = error.what();
  }
  for (const char* part :
       {"out of memory on cuda:0 (fake GPU, 104.9 MB)", "cannot allocate 83886080 bytes", "backward of linear",
        "allocator_test.cc", "In use: 52.4 MB", "parameters 21.0 MB", "the rest 31.5 MB", "Use a smaller batch"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  // The program goes on, with less.
  EXPECT_EQ(Tensor::ones({1000}).to(device).to_vector<float>()[999], 1.0f);
}

TEST(CudaAllocator, FullMemoryIsTrimmedFirst) {
  FakeCuda cuda({.bytes = size_t{100} << 20});
  for (int i = 1; i <= 8; ++i) static_cast<void>(Tensor::empty({i * 11 * kMB}, {kBool, cuda.device()}));
  EXPECT_LE(memory::stats(cuda.device()).bytes_reserved, 100 * kMB);
}

// What a callback of the host holds is free as soon as it has run, and is waited for where memory is exhausted.
TEST(CudaAllocator, BlocksOfCallbacksServeAgain) {
  FakeCuda cuda({.bytes = size_t{64} << 20, .early = 0});
  const Device device = cuda.device();
  const BackendTable& table = backend_of(device);
  const auto hold = [&](int64_t bytes) {
    Storage held = Storage::allocate(static_cast<size_t>(bytes), device);
    const void* data = held.data();
    table.enqueue(0, Stream::kCompute, [held = std::move(held)] {});
    return data;
  };
  hold(40 * kMB);
  EXPECT_NE(Storage::allocate(40 * kMB, device).data(), nullptr) << "waits for the callback, and takes its block";
  const void* held = hold(20 * kMB);
  const cuda::DeviceState& state = cuda::device_state(0);
  {
    const cuda::ContextScope scope(cuda::device_state(0));
    ASSERT_EQ(state.driver().context_synchronize(), cuda::Result::kSuccess);  // it has run; nobody has looked
  }
  EXPECT_EQ(Storage::allocate(20 * kMB, device).data(), held);
}

TEST(CudaAllocator, PurposesAreCounted) {
  FakeCuda cuda;
  const Device device = cuda.device();
  const auto parameters = [&] { return memory::stats(device).by_purpose[static_cast<size_t>(Purpose::kParameters)]; };
  {
    Tensor w = Tensor::ones({100}).to(device);
    w.requires_grad_();
    EXPECT_EQ(parameters(), 512);
  }
  EXPECT_EQ(parameters(), 0);
}

// Allocations of a step: copies in, kernels, blocks that die and live.
float step(const FakeCuda& cuda, const cuda::Kernel& axpy) {
  const Tensor x = Tensor::ones({3000}).to(cuda.device());
  Tensor sum = Tensor::zeros({3000}).to(cuda.device());
  for (int i = 0; i < 8; ++i) {
    const Tensor y = Tensor::full({3000}, i).to(cuda.device());
    test::launch_axpy(axpy, y, x, 1.0f);
    test::launch_axpy(axpy, sum, y, 0.5f);
  }
  return sum.to_vector<float>()[2999];
}

TEST(CudaAllocator, EveryAllocationMayFail) {
  for (const char* caching : {"1", "0"}) {
    const test::Setting setting("RONDO_CUDA_CACHE", caching);
    int64_t failures = 0;
    for (int64_t n = 1; n <= 200; ++n) {
      FakeCuda cuda({.seed = static_cast<uint64_t>(n)});
      const cuda::Kernel axpy = cuda.kernel("axpy", test::axpy());
      synchronize(cuda.device());
      cuda->fail_allocations(n, 1'000'000);
      try {
        for (int i = 0; i < 10; ++i) EXPECT_EQ(step(cuda, axpy), 18.0f);
      } catch (const OutOfMemoryError&) {
        ++failures;
      }
      const int64_t in_use = memory::stats(cuda.device()).bytes_in_use;
      EXPECT_EQ(in_use, 0) << n;
      cuda->fail_allocations(0, 0);
      EXPECT_EQ(step(cuda, axpy), 18.0f) << n;  // goes on
      cuda->fail_allocations(n, 1);             // once only: the caches are emptied, and the next try succeeds
      EXPECT_EQ(step(cuda, axpy), 18.0f) << n;
    }
    // With a cache the driver is asked for some segments and staging buffers only.
    EXPECT_GE(failures, *caching == '0' ? 70 : 2);
  }
}

}  // namespace
}  // namespace rondo

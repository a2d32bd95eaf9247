// Threads of the host that use one device: first use, loaders, work that outlives its thread, memory, callbacks. In a
// build with TSan (`tests/run.sh tsan cuda`) their accesses are watched.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::FakeCuda;

// Runs `work(0)` to `work(n - 1)` in a thread each, which begin together.
void in_threads(int n, const std::function<void(int)>& work) {
  std::barrier begin(n);
  std::vector<std::thread> threads;
  for (int t = 0; t < n; ++t)
    threads.emplace_back([&, t] {
      begin.arrive_and_wait();
      work(t);
    });
  for (std::thread& thread : threads) thread.join();
}

// Nobody has opened CUDA or a device before.
TEST(CudaThreads, TheFirstUseByAllAtOnce) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 2});
    in_threads(4, [&](int t) {
      const Tensor x = Tensor::full({8}, t, {kF32, cuda.device(t % 2)});
      EXPECT_EQ((x + x).to_vector<float>(), std::vector<float>(8, static_cast<float>(2 * t)));
    });
  }
}

// A dataset whose items are rows of the index, on the host or on a device.
class Rows : public data::Dataset {
 public:
  explicit Rows(Device device) : device_(device) {}
  int64_t size() const override { return 64; }
  std::vector<Tensor> get(int64_t index) const override {
    return {Tensor::full({4}, static_cast<double>(index)).to(device_)};
  }

 private:
  Device device_;
};

// Workers of a loader prepare batches, on the host or on the device, while another thread computes there.
TEST(CudaThreads, ALoaderBesideAComputation) {
  for (const bool on_device : {false, true}) {
    FakeCuda cuda({.seed = 5, .early = 0.1});
    data::DataLoader loader(std::make_shared<Rows>(on_device ? cuda.device() : kCPU),
                            {.batch_size = 4, .shuffle = true, .seed = 3, .num_workers = 3});
    Tensor sum = Tensor::zeros({4}, {kF32, cuda.device()});
    while (const std::optional<data::Batch> batch = loader.next()) {
      const Tensor rows = (*batch)[0].to(cuda.device());
      sum = sum + ops::sum(rows, {0});
    }
    EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(4, 2016.0f)) << on_device;
  }
}

// One thread makes tensors on the device, and another one computes with them and frees them.
TEST(CudaThreads, TensorsGoFromThreadToThread) {
  FakeCuda cuda({.seed = 2});
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Tensor> queue;
  constexpr int kTensors = 60;
  std::vector<float> sums;
  in_threads(2, [&](int t) {
    if (t == 0) {
      for (int i = 0; i < kTensors; ++i) {
        Tensor made = Tensor::full({64}, i, {kF32, cuda.device()}) + Tensor::ones({64}, {kF32, cuda.device()});
        const std::lock_guard lock(mutex);
        queue.push_back(std::move(made));
        changed.notify_one();
      }
      return;
    }
    for (int i = 0; i < kTensors; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      Tensor taken = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      sums.push_back((taken + taken).to_vector<float>()[63]);
    }
  });
  for (int i = 0; i < kTensors; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], 2.0f * static_cast<float>(i + 1));
}

// A stream is the device's, so work goes on when the thread that enqueued it has ended.
TEST(CudaThreads, AThreadEndsWithWorkQueued) {
  FakeCuda cuda({.early = 0});
  Tensor y;
  const auto held = std::make_shared<std::atomic<int>>(0);
  std::thread([&] {
    const Tensor x = Tensor::full({100}, 3.0, {kF32, cuda.device()});
    y = x * x + x;
    enqueue(cuda.device(), [held, x] { ++*held; });
  }).join();
  EXPECT_GT(cuda->queued(), 0);
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(100, 12.0f));
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1) << "the callback has gone with the wait";
}

// Each thread finds its error; callbacks and what they hold are destroyed once, and their plain memory is the host's
// after a wait.
TEST(CudaThreads, CallbacksOfManyThreads) {
  FakeCuda cuda({.seed = 9, .early = 0.3});
  std::atomic<int> ran = 0, errors = 0;
  const auto held = std::make_shared<int>(7);
  in_threads(4, [&](int t) {
    int plain = 0;
    for (int i = 0; i < 25; ++i) {
      const Tensor x = Tensor::full({16}, i, {kF32, cuda.device()});
      enqueue(cuda.device(), [&ran, &plain, held, x] { ++plain, ++ran; });
      if (i % 8 == t) enqueue(cuda.device(), [] { throw Error("on purpose"); });
      if (i % 5 == 4) errors += error_of([&] { synchronize(cuda.device()); }).starts_with("on purpose");
    }
    errors += error_of([&] { synchronize(cuda.device()); }).starts_with("on purpose");
    EXPECT_EQ(plain, 25);
  });
  EXPECT_EQ(ran, 100);
  EXPECT_GE(errors, 1);
  EXPECT_EQ(held.use_count(), 1);
}

// Threads that allocate, free, ask for statistics, empty the cache, and run out of memory.
TEST(CudaThreads, MemoryOfOneDevice) {
  FakeCuda cuda({.seed = 4, .bytes = size_t{64} << 20});
  std::atomic<int> exhausted = 0;
  in_threads(4, [&](int t) {
    std::deque<Tensor> kept;
    for (int i = 0; i < 60; ++i) {
      const int64_t n = (i * 7919 + t * 104729) % 97 * 20'000 + 1;
      try {
        kept.push_back(test::empty(cuda.device(), n));
        backend_of(cuda.device()).fill(0, kept.back().storage().data(), static_cast<uint8_t>(t), 4);
      } catch (const OutOfMemoryError&) {
        ++exhausted;
        kept.clear();
      }
      if (kept.size() > 6) {
        const Tensor oldest = std::move(kept.front());
        kept.pop_front();
        int32_t word = 0;
        backend_of(cuda.device()).copy_out(0, &word, oldest.storage().data(), 4);
        EXPECT_EQ(word, t * 0x01010101);
      }
      if (i % 20 == 10 + t) memory::trim();
      EXPECT_GE(memory::stats(cuda.device()).bytes_in_use, 0);
    }
  });
  EXPECT_GT(exhausted, 0) << "the device is too large for this test";
  EXPECT_EQ(memory::stats(cuda.device()).bytes_in_use, 0);
}

// Late errors of one thread do not disturb another one's numbers: whoever waits first finds it.
TEST(CudaThreads, ABadIndexOfOneOfThem) {
  FakeCuda cuda({.seed = 6});
  std::atomic<int> found = 0;
  in_threads(3, [&](int t) {
    const Tensor table = Tensor::arange(5, {kF32, cuda.device()});
    for (int i = 0; i < 12; ++i) {
      const Tensor index = Tensor::from<int64_t>({t == 0 && i == 6 ? 99 : 2, 4}, {2}).to(cuda.device());
      const Tensor picked = ops::index_select(table, 0, index);
      try {
        const std::vector<float> numbers = picked.to_vector<float>();
        EXPECT_TRUE((t == 0 && i == 6) || numbers == (std::vector<float>{2, 4})) << t << ' ' << i;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("index_select: index 99 at position 0 is out of range for size 5"),
                  std::string::npos)
            << error.what();
        ++found;
      }
    }
  });
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace rondo

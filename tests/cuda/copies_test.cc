// Memory and copies of CUDA devices, on the fake driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/kernels.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::FakeCuda;
using test::same_bits;

// The whole of a dense tensor, without ops.
void copy(const Tensor& to, const Tensor& from) {
  copy_bytes(to.device(), to.storage().data(), from.device(), from.storage().data(),
             static_cast<size_t>(from.nbytes()));
}

TEST(CudaCopies, ThereAndBack) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 2});
    for (const DType dtype : {kF32, kBF16, kI64, kBool}) {
      const Tensor x = Tensor::randn({5, 7}).to(dtype), there = x.to(cuda.device());
      EXPECT_EQ(there.device(), cuda.device());
      EXPECT_TRUE(same_bits(there.to(kCPU), x));
      EXPECT_TRUE(same_bits(x.t().to(cuda.device()).to(kCPU), x.t()));
      EXPECT_TRUE(same_bits(there.to(cuda.device(1)).to(kCPU), x));
    }
    EXPECT_EQ(Tensor::empty({0, 3}, {kF32, cuda.device()}).to(kCPU).numel(), 0);
  }
}

TEST(CudaCopies, InPieces) {
  FakeCuda cuda;
  const Tensor x = Tensor::randn({(9 << 20) / 4 + 3});  // three staging buffers
  EXPECT_TRUE(same_bits(x.to(cuda.device()).to(kCPU), x));
  EXPECT_LE(cuda->counts().pinned, 6);
}

TEST(CudaCopies, TheHostMemoryIsFreeOnReturn) {
  FakeCuda cuda({.early = 0});
  const BackendTable& table = backend_of(cuda.device());
  std::vector<float> values(1000, 1.0f), back(1000);
  const Storage there = Storage::allocate(4000, cuda.device());
  table.copy_in(0, there.data(), values.data(), 4000);
  std::fill(values.begin(), values.end(), 2.0f);
  table.copy_out(0, back.data(), there.data(), 4000);
  EXPECT_EQ(back[999], 1.0f);
}

TEST(CudaCopies, StagingIsUsedAgain) {
  FakeCuda cuda;
  const Tensor x = Tensor::randn({1000});
  Tensor there = x.to(cuda.device());
  for (int i = 0; i < 500; ++i) copy(there, x);
  synchronize(cuda.device());
  EXPECT_LE(cuda->counts().pinned, 64) << "what 500 copies would take is 500";
  EXPECT_TRUE(same_bits(there.to(kCPU), x));
}

// 160 MB of copies that nobody waits for. Each is of another tensor, so a buffer that is filled again too early shows.
TEST(CudaCopies, StagingIsBounded) {
  FakeCuda cuda({.bytes = size_t{256} << 20, .early = 0});
  std::vector<Tensor> there;
  for (int i = 0; i < 40; ++i) there.push_back(Tensor::empty({1 << 20}, cuda.device()));  // allocating may wait
  // Work before them: asking whether a copy has passed may run a piece of the queue, and that is not the copy then.
  const Storage other = Storage::allocate(4, cuda.device());
  for (int i = 0; i < 200; ++i) backend_of(cuda.device()).fill(0, other.data(), 0, 4);
  for (size_t i = 0; i < there.size(); ++i) copy(there[i], Tensor::full({1 << 20}, static_cast<double>(i), kF32));
  EXPECT_EQ(cuda->counts().pinned, 16) << "all that Staging may reserve, and no more";
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(
        same_bits(there[static_cast<size_t>(i)].to(kCPU), Tensor::full({1 << 20}, static_cast<double>(i), kF32)))
        << i;
}

TEST(CudaCopies, WithinADevice) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  std::vector<int> values(256), back(256);
  std::iota(values.begin(), values.end(), 0);
  const Storage there = Storage::allocate(1024, cuda.device());
  table.copy_in(0, there.data(), values.data(), 1024);
  table.copy(0, there.data() + 16, there.data(), 512);  // the ranges overlap
  cuda->take_journal();
  table.copy(0, there.data() + 256, there.data(), 256);  // neighbours do not overlap: one copy
  table.copy(0, there.data(), there.data() + 256, 256);
  EXPECT_EQ(cuda->take_journal().size(), 2u);
  table.fill(0, there.data() + 1020, 0x11, 4);
  table.copy_out(0, back.data(), there.data(), 1024);
  EXPECT_EQ(back[3], 3);
  EXPECT_EQ(back[4], 0);
  EXPECT_EQ(back[131], 127);
  EXPECT_EQ(back[132], 132);
  EXPECT_EQ(back[255], 0x11111111);
  table.copy_in(0, there.data(), values.data(), 1024);
  table.copy(0, there.data(), there.data() + 16, 512);  // they overlap the other way round
  table.copy_out(0, back.data(), there.data(), 1024);
  EXPECT_EQ(back[0], 4);
  EXPECT_EQ(back[127], 131);
  EXPECT_EQ(back[128], 128);
}

TEST(CudaCopies, BetweenDevices) {
  for (const bool peers : {true, false})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      FakeCuda cuda({.seed = seed, .devices = 2, .peers = peers});
      const cuda::Kernel on_0 = cuda.kernel("axpy", test::axpy(), 0), on_1 = cuda.kernel("axpy", test::axpy(), 1);
      const Tensor x = Tensor::ones({1 << 21});
      Tensor a = x.to(cuda.device(0)), b = x.to(cuda.device(1));
      test::launch_axpy(on_0, a, a, 1.0f);  // 2
      cuda->take_journal();
      copy(b, a);
      const std::vector<fake_cuda::Enqueued> work = cuda->take_journal();
      EXPECT_EQ(std::any_of(work.begin(), work.end(), [](const auto& w) { return w.name == "between devices"; }),
                peers);
      test::launch_axpy(on_0, a, a, 1.0f);  // 4; b must have 2
      test::launch_axpy(on_1, b, b, 4.0f);  // 10
      copy(a, b);
      a = a.to(cuda.device(1));  // the old block may be used again on device 0
      const Tensor other = Tensor::zeros({1 << 21}).to(cuda.device(0));
      EXPECT_EQ(a.to_vector<float>()[12345], 10.0f) << seed;
      EXPECT_EQ(b.to_vector<float>()[0], 10.0f) << seed;
      EXPECT_EQ(other.to_vector<float>()[7], 0.0f);
    }
}

TEST(CudaCopies, Events) {
  FakeCuda cuda({.early = 0});
  const BackendTable& table = backend_of(cuda.device());
  const cuda::Kernel kernel = cuda.kernel("axpy", test::axpy());
  const Tensor x = Tensor::ones({64}).to(cuda.device());
  {
    const Stopwatch watch(cuda.device());
    table.enqueue(0, Stream::kCompute, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    test::launch_axpy(kernel, x, x, 1.0f);
    EXPECT_GE(watch.seconds(), 0.02);
  }
  std::atomic<bool> ran = false;  // a real driver may run it at any time
  table.enqueue(0, Stream::kCopy, [&] { ran = true; });
  const EventHandle event = table.record(0, Stream::kCopy);
  table.wait(0, Stream::kCompute, event);
  table.release(0, event);
  EXPECT_TRUE(test::on_real_cuda() || !ran);
  EXPECT_EQ(x.to_vector<float>()[0], 2.0f);  // waits for the compute stream, and that for the copy stream
  EXPECT_TRUE(ran);
  const int64_t events = cuda->counts().events;
  for (int i = 0; i < 100; ++i) table.release(0, table.record(0, Stream::kCompute));
  EXPECT_LE(cuda->counts().events, events + 1) << "events are pooled";
}

// What a callback holds is let go when it has run, at the latest by the next one, also if nobody ever waits.
TEST(CudaCopies, CallbacksLetGo) {
  FakeCuda cuda({.early = 1.0});
  const BackendTable& table = backend_of(cuda.device());
  const auto held = std::make_shared<int>(3);
  table.enqueue(0, Stream::kCompute, [held] {});
  for (int i = 0; i < 1000 && held.use_count() > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a real driver calls it from a thread of its own
    table.enqueue(0, Stream::kCompute, [] {});
    if (test::on_real_cuda())
      synchronize(cuda.device());  // which may be a fake that runs nothing early (gpu/run_test.sh)
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(CudaCopies, PageLockedMemory) {
  FakeCuda cuda({.devices = 2});
  const BackendTable& table = backend_of(cuda.device());
  auto* memory = static_cast<float*>(table.allocate_staging(1, 400));
  memory[99] = 1;
  EXPECT_EQ(memory[99], 1.0f);
  {
    const Storage there = Storage::allocate(400, cuda.device(1));
    cuda::DeviceState& state = cuda::device_state(1);
    const cuda::ContextScope scope(state);  // an asynchronous copy takes page-locked memory only
    const auto to = reinterpret_cast<cuda::DevicePtr>(there.data());
    EXPECT_EQ(state.driver().copy_to_device(to, memory, 400, state.compute()), cuda::Result::kSuccess);
    EXPECT_EQ(state.driver().stream_synchronize(state.compute()), cuda::Result::kSuccess);
  }
  EXPECT_EQ(cuda->counts().pinned, 1);
  EXPECT_EQ(cuda::device_state_if_usable(0), nullptr) << "a process of one device uses no other";
  EXPECT_EQ(cuda->counts().contexts, 1);
  table.deallocate_staging(1, memory, 400);
  EXPECT_EQ(cuda->counts().pinned, 0);
}

TEST(CudaCopies, ManyThreads) {
  FakeCuda cuda({.devices = 2, .early = 0.2});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const Tensor x = Tensor::full({100 + i}, t * 1000 + i);
        EXPECT_TRUE(same_bits(x.to(cuda.device(t % 2)).to(cuda.device(i % 2)).to(kCPU), x));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CudaCopies, TwoDevicesHaveNoCrossTalk) {
  FakeCuda cuda({.devices = 2});
  const Tensor a = Tensor::ones({1000}).to(cuda.device(0));
  EXPECT_EQ(cuda->counts().contexts, 1) << "a device that is not used is not opened";
  const Tensor b = Tensor::zeros({10}).to(cuda.device(1));
  EXPECT_EQ(cuda->counts().contexts, 2);
  EXPECT_EQ(memory::stats(cuda.device(0)).bytes_in_use, 4096);
  EXPECT_EQ(memory::stats(cuda.device(1)).bytes_in_use, 256);
  EXPECT_NE(error_of([&] { static_cast<void>(a + b); }).find("operand 0 is on cuda:0 and operand 1 on cuda:1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              Tensor::empty({1}, {kF32, cuda.device(2)});
            }).find("no device cuda:2: cuda has 2 devices"),
            std::string::npos);
}

TEST(CudaCopies, ATensorMayOutliveItsDevice) {
  Tensor x;
  {
    FakeCuda cuda;
    x = Tensor::ones({3}).to(cuda.device());
  }
  x = Tensor();
  FakeCuda again;
  EXPECT_EQ(Tensor::ones({3}).to(again.device()).to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

}  // namespace
}  // namespace rondo

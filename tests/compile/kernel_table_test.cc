// The kernels of this process: found again, compiled once, and forgotten when nobody holds them.
#include "rondo/compile/jit/kernel_table.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "rondo/compile/log.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

TEST(KernelTable, ForgetsAllThatNobodyHolds) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  const std::vector<LoopKernel> kernels{scale(2), scale(3), scale(5), scale(2)};
  CompiledKernels held = find_or_compile({&kernels[1], 1}, Sizes::kVarying);
  EXPECT_EQ(held.added, 1);
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).added, 2);
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).added, 0);
  forget_unused_kernels();
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).added, 2);
  held = {};
  forget_unused_kernels();
  EXPECT_EQ(find_or_compile(kernels, Sizes::kVarying).added, 3);
}

// Kernels whose axes have the same extents still differ if an axis wraps around.
TEST(KernelTable, AnAxisThatWrapsIsOtherCode) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  const auto rows_of = [](int64_t rows) {
    KernelBuilder b("rows", rows, 8);
    const int32_t x = b.operand(kF32, {{1, 4, 8}}, 1), y = b.operand(kF32, {{1, 8, 8}}, 1, true);
    b.store(y, b.emit(LoopOp::kNeg, kF32, b.load(x, kF32)));
    return b.kernel;
  };
  const LoopKernel plain = rows_of(4), wraps = rows_of(8);
  const CompiledKernels held = find_or_compile({&plain, 1}, Sizes::kConstant);
  EXPECT_EQ(find_or_compile({&wraps, 1}, Sizes::kConstant).added, 1);
}

// A register of f32 may come from memory of another type.
TEST(KernelTable, AnotherDtypeInMemoryIsOtherCode) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  const auto widened = [](DType from) {
    KernelBuilder b("widened", 4, 24);
    const int32_t x = b.dense(from), y = b.dense(kF32, true);
    b.store(y, b.load(x, kF32));
    return b.kernel;
  };
  const LoopKernel of_f32 = widened(kF32), of_bf16 = widened(kBF16);
  const CompiledKernels held = find_or_compile({&of_f32, 1}, Sizes::kAny);
  EXPECT_EQ(find_or_compile({&of_bf16, 1}, Sizes::kAny).added, 1);
}

// One row, split between threads by columns or not.
TEST(KernelTable, ASplitRowIsOtherCode) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  const LoopKernel split = scale(11);
  LoopKernel whole = split;
  whole.split_columns = false;
  const CompiledKernels held = find_or_compile({&split, 1}, Sizes::kAny);
  EXPECT_EQ(find_or_compile({&whole, 1}, Sizes::kAny).added, 1);
}

// By the log's sink, which hears of every kernel that is not there yet, in the thread that is about to compile it.
class WhileCompiling {
 public:
  explicit WhileCompiling(std::function<void()> fn) {
    log::configure("cache");
    previous_ = log::set_log_sink([fn = std::move(fn)](std::string_view) { fn(); });
  }
  ~WhileCompiling() {
    log::set_log_sink(std::move(previous_));
    log::configure("");
  }

 private:
  log::Sink previous_;
};

TEST(KernelTable, KernelsAreFoundWhileOthersCompile) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  const LoopKernel there = scale(70), fresh = scale(71);
  const CompiledKernels held = find_or_compile({&there, 1}, Sizes::kVarying);
  std::promise<void> compiling, found;
  std::once_flag once;
  const WhileCompiling listen([&] {
    std::call_once(once, [&] {
      compiling.set_value();
      EXPECT_EQ(found.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    });
  });
  std::thread other([&] { EXPECT_EQ(find_or_compile({&fresh, 1}, Sizes::kVarying).added, 1); });
  compiling.get_future().wait();
  EXPECT_EQ(find_or_compile({&there, 1}, Sizes::kVarying).kernels[0].handle, held.kernels[0].handle);
  found.set_value();
  other.join();
}

TEST(KernelTable, ThreadsCompileAKernelOnce) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  forget_unused_kernels();
  constexpr int kThreads = 6, kKernels = 8;
  std::vector<CompiledKernels> results(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      // Each in another order, so that everybody waits for somebody.
      std::vector<LoopKernel> kernels;
      for (int i = 0; i < kKernels; ++i) kernels.push_back(scale(80 + (i + t) % kKernels));
      results[static_cast<size_t>(t)] = find_or_compile(kernels, Sizes::kVarying);
    });
  for (std::thread& thread : threads) thread.join();
  int added = 0;
  for (int t = 0; t < kThreads; ++t) {
    added += results[static_cast<size_t>(t)].added;
    for (int i = 0; i < kKernels; ++i)
      EXPECT_EQ(results[static_cast<size_t>(t)].kernels[static_cast<size_t>(i)].handle,
                results[0].kernels[static_cast<size_t>((i + t) % kKernels)].handle);
  }
  EXPECT_EQ(added, kKernels);
}

// What cannot be compiled is an error in every thread that wants it, and leaves nothing behind.
TEST(KernelTable, AFailureIsEverybodysOwn) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  LoopKernel broken = scale(90);
  broken.instrs[2].b = 99;
  std::atomic<int> errors = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int again = 0; again < 20; ++again) {
        try {
          find_or_compile({&broken, 1}, Sizes::kVarying);
        } catch (const InternalError&) {
          ++errors;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, 80);
  const LoopKernel whole = scale(90);
  EXPECT_EQ(find_or_compile({&whole, 1}, Sizes::kVarying).added, 1);
}

}  // namespace
}  // namespace rondo::compile

// The memory report: what each byte is for at the peak, and what made it.
#include "rondo/runtime/device/memory.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

constexpr int64_t kRows = 1024, kBytes = kRows * kRows * 4;  // of one matrix here

Tensor matrix() { return Tensor::full({kRows, kRows}, 0.5); }
// Blocks are rounded up by at most an eighth.
void expect_bytes(int64_t got, int64_t matrices, const char* what) {
  EXPECT_GE(got, matrices * kBytes) << what;
  EXPECT_LE(got, matrices * kBytes * 9 / 8 + 4096) << what;
}

TEST(Memory, EveryByteHasAPurpose) {
  const memory::Report before = memory::Recording().report();
  const memory::Recording recording;
  Tensor w = matrix();
  w.requires_grad_();
  const Tensor x = matrix(), moment = matrix();
  moment.storage().set_purpose(Purpose::kStates);
  {
    Tensor loss = ops::sum(ops::sigmoid(ops::matmul(x, w)));  // saves x, w and the sigmoid; the product is gone
    const memory::Report r = recording.report();
    expect_bytes(r.parameters - before.parameters, 1, "parameters");
    expect_bytes(r.states - before.states, 1, "states");
    EXPECT_EQ(r.gradients, before.gradients);
    loss.backward();
  }
  const memory::Report r = recording.report();
  expect_bytes(r.parameters - before.parameters, 1, "parameters");
  expect_bytes(r.states - before.states, 1, "states");
  expect_bytes(r.activations - before.activations, 2, "x and the sigmoid");
  EXPECT_EQ(r.most_activations, r.activations);
  EXPECT_GT(r.in_use() - before.in_use(), 6 * kBytes);  // and gradients under way
  EXPECT_EQ(r.in_use(), r.parameters + r.gradients + r.states + r.activations + r.workspace);
  // What is left is that gradient, now in .grad.
  const memory::Report after = [&] {
    memory::Recording& again = const_cast<memory::Recording&>(recording);
    again.restart();
    return again.report();
  }();
  expect_bytes(after.gradients - before.gradients, 1, "gradients");
  w.zero_grad();
  EXPECT_EQ(allocator::stats().by_purpose[static_cast<int>(Purpose::kGradients)], before.gradients);
}

TEST(Memory, ThePeakHasACause) {
  const memory::Recording recording;
  const Tensor a = matrix();
  const Tensor b = ops::exp(a);
  std::string cause = recording.report().cause;
  EXPECT_NE(cause.find("exp (" __FILE__ ":" + std::to_string(__LINE__ - 2)), std::string::npos) << cause;
  Tensor w = matrix();
  w.requires_grad_();
  ops::sum(ops::matmul(a, w)).backward();
  cause = recording.report().cause;
  EXPECT_NE(cause.find("matmul, in backward of matmul (" __FILE__), std::string::npos) << cause;
  EXPECT_NE(memory::to_string(recording.report()).find(cause), std::string::npos);
}

// A library's kernel needs memory of its own in each thread that runs it.
TEST(Memory, WhatOtherThreadsAllocateForAnOpHasItsCause) {
  const memory::Recording recording;
  const int before = num_threads();
  set_num_threads(2);
  std::mutex mutex;
  std::map<std::thread::id, std::string> causes;
  const auto threads_with_a_cause = [&] {
    const std::lock_guard lock(mutex);
    causes.emplace(std::this_thread::get_id(), memory::Cause::describe());
    return causes.size();
  };
  {
    const memory::Cause cause("", "an op", std::source_location::current());
    parallel_for(2, 1, [&](int64_t, int64_t) {
      while (threads_with_a_cause() < 2) std::this_thread::yield();
    });
  }
  for (const auto& [thread, cause] : causes) EXPECT_TRUE(cause.starts_with("an op (" __FILE__)) << cause;
  EXPECT_EQ(memory::Cause::describe(), "outside of any op");
  set_num_threads(before);
}

// The block that makes the peak is known to be a gradient only afterwards.
TEST(Memory, ThePeakBlockGetsItsPurpose) {
  Tensor w = Tensor::full({kRows, kRows}, 0.5);
  w.requires_grad_();
  memory::Recording recording;
  const int64_t before = recording.report().gradients;
  ops::sum(ops::mul(w, 2.0)).backward();
  w.zero_grad();
  recording.restart();
  {
    Tensor kept = Tensor::empty({kRows, kRows});
    EXPECT_EQ(recording.report().gradients, before);
    w.set_grad(kept);
  }
  expect_bytes(recording.report().gradients - before, 1, "gradients");
}

TEST(Memory, ThreadsAreCounted) {
  const memory::Recording recording;
  const int64_t before = recording.report().in_use();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        Tensor kept = Tensor::empty({1000 + i});
        kept.storage().set_purpose(i % 2 ? Purpose::kStates : Purpose::kGradients);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const memory::Report r = recording.report();
  EXPECT_GT(r.in_use(), before);
  for (int64_t bytes : {r.parameters, r.gradients, r.states, r.activations, r.workspace}) EXPECT_GE(bytes, 0);
}

TEST(Memory, OneRecordingAtATime) {
  const memory::Recording recording;
  EXPECT_NE(test::error_of([] { memory::Recording second; }).find("one already"), std::string::npos);
}

// Checkpointing eagerly, block by block: what the tape holds is what goes in.
TEST(Memory, CheckpointsKeepTheirInputsOnly) {
  const auto activations = [](bool checkpoint) {
    const memory::Recording recording;
    const int64_t before = recording.report().most_activations;
    Tensor w = Tensor::full({256, 256}, 0.01);
    w.requires_grad_();
    const auto block = [&](std::span<const Tensor> x) {
      Tensor y = x[0];
      for (int i = 0; i < 8; ++i) y = ops::gelu(ops::matmul(y, w));
      return std::vector<Tensor>{y};
    };
    Tensor x = Tensor::full({1024, 256}, 0.5);
    for (int layer = 0; layer < 6; ++layer)
      x = checkpoint ? autograd::checkpoint(block, {&x, 1})[0] : block({&x, 1})[0];
    const int64_t kept = recording.report().most_activations - before;
    ops::sum(x).backward();
    // The backward makes one block's again, and keeps them while it needs them.
    return std::pair(kept, recording.report().most_activations - before);
  };
  const auto [none, none_ever] = activations(false);
  const auto [full, full_ever] = activations(true);
  EXPECT_LT(full * 5, none);
  EXPECT_GE(full, 6 * 1024 * 256 * 4);
  EXPECT_EQ(none_ever, none);
  EXPECT_GT(full_ever, full);
  EXPECT_LT(full_ever, none / 2);
}

// Against what the system says. The system's peak is reset first: other tests have run in this process.
TEST(Memory, TheTotalIsTheProcesssPeak) {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr || std::fputs("5", file) < 0 || std::fclose(file) != 0)
    GTEST_SKIP() << "the system's peak cannot be reset";
  allocator::empty_cache();
  const memory::Recording recording;
  std::vector<Tensor> kept;
  for (int i = 0; i < 40; ++i) kept.push_back(ops::exp(matrix()));
  const memory::Report r = recording.report();
  EXPECT_NEAR(static_cast<double>(r.total()), static_cast<double>(r.process_peak),
              0.05 * static_cast<double>(r.process_peak))
      << memory::to_string(r);
}

TEST(Memory, FailedAllocationLeavesThePeakAlone) {
  const int64_t before = allocator::stats().peak_bytes;
  EXPECT_THROW(Tensor::empty({int64_t{1} << 45}), OutOfMemoryError);
  EXPECT_EQ(allocator::stats().peak_bytes, before);
}

}  // namespace
}  // namespace rondo

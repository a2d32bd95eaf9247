// The machine itself: what it runs, and what it refuses.
#include "rondo/tests/cuda_on_host/machine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "rondo/tests/cuda_on_host/kernel_files.h"

namespace rondo::cuda_on_host {
namespace {

KernelFiles planted(const std::string& body) {
  return KernelFiles("planted", "extern \"C\" __global__ void planted(float* x, int n) {\n" + body + "}\n");
}
// The message of the Fault that the kernel makes, or "".
std::string fault(const KernelFiles& files, const GridSize& grid, Order order = Order::kForward) {
  DeviceBuffer x(64 * sizeof(float), DeviceBuffer::Side::kEnd);
  std::memset(x.data(), 0, x.size());
  void* pointer = x.data();
  int n = 64;
  void* parameters[] = {&pointer, &n};
  try {
    launch(files.kernel(0), grid, parameters, order);
  } catch (const Fault& e) {
    return e.what();
  }
  return x.is_intact() ? "" : "a write beside the operand";
}
std::string fault(const std::string& body, const GridSize& grid) { return fault(planted(body), grid); }
void expect_fault(const std::string& body, const std::string& words, const GridSize& grid = {.threads = 64}) {
  const KernelFiles files = planted(body);
  for (Order order : kEveryOrder) {
    const std::string message = fault(files, grid, order);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("kernel planted"), std::string::npos) << message;
  }
}

TEST(Machine, RunsInEveryOrder) {
  const KernelFiles files("rotate", R"(
extern "C" __global__ void rotate(int* x, int* count) {
  __shared__ int row[96];
  const int t = threadIdx.x, first = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x;
  row[t] = x[first + t];
  __syncthreads();
  const int next = row[(t + 1) % 96];
  const int sum = next + __shfl_xor_sync(0xffffffffu, next, 1) + __shfl_up_sync(0xffffffffu, next, 2, 8) +
                  __shfl_sync(0xffffffffu, next, 5, 16);
  __syncwarp();
  x[first + t] = sum;
  atomicAdd(count, 1);
}
)");
  for (Order order : kEveryOrder) {
    std::vector<int> x(96 * 6), expected(x.size());
    int count = 0;
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * i % 1000);
    for (int b = 0; b < 6; ++b) {
      const auto next = [&](int t) { return x[static_cast<size_t>(b * 96 + (t + 1) % 96)]; };
      for (int t = 0; t < 96; ++t)
        expected[static_cast<size_t>(b * 96 + t)] = next(t) + next(t ^ 1) + next(t % 8 >= 2 ? t - 2 : t) +
                                                    next(t / 16 * 16 + 5);
    }
    void *px = x.data(), *pc = &count;
    void* parameters[] = {&px, &pc};
    launch(files.kernel(0), {.x = 3, .y = 2, .threads = 96}, parameters, order);
    EXPECT_EQ(x, expected);
    EXPECT_EQ(count, 96 * 6);
  }
}

// Each warp clears what another one fills in, and then fills in its own: wrong only if a warp is past its own
// __syncwarp when another one begins. Threads that all stop there hide it.
TEST(Machine, DriftingWarpsShowAMissingBarrier) {
  if (kSanitizer == Sanitizer::kThread) GTEST_SKIP() << "TSan reports it: Planted.TSanReportsAMissingBarrier";
  const auto source = [](const std::string& barrier) {
    return R"(
extern "C" __global__ void filled(int* x) {
  __shared__ int row[128];
  const int t = threadIdx.x;
  row[(t + 32) % 128] = -1;
)" + barrier +
           R"(
  __syncwarp();
  row[t] = t;
  __syncwarp();
  x[128 * blockIdx.x + t] = 128 * blockIdx.x + row[t];
}
)";
  };
  const KernelFiles files({{"filled", source("")}}), sound({{"filled", source("__syncthreads();")}});
  const auto is_right = [](const KernelFiles& kernels, Order order, uint64_t seed) {
    std::vector<int> x(8 * 128), expected(x.size());
    std::iota(expected.begin(), expected.end(), 0);
    void *px = x.data(), *parameters[] = {&px};
    launch(kernels.kernel(0), {.x = 8, .threads = 128}, parameters, order, seed);
    return x == expected;
  };
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) EXPECT_TRUE(is_right(files, order, seed));
    if (!is_right(files, Order::kDrift, seed)) ++seen;
    for (Order order : kEveryOrder) EXPECT_TRUE(is_right(sound, order, seed)) << seed;
  }
  EXPECT_GE(seen, 5) << "of 20 seeds";
}

TEST(Machine, BarrierThatSomeThreadsDoNotReach) {
  expect_fault("if (threadIdx.x < 40) __syncthreads();\n", "that only 40 of 64 threads reach");
  expect_fault("if (threadIdx.x >= 32) return;\n __syncthreads();\n", "that only 32 of 64 threads reach");
  // Two barriers are not one.
  expect_fault("if (threadIdx.x < 40)\n __syncthreads();\nelse\n __syncthreads();\n", "of 64 threads reach");
}

TEST(Machine, ShuffleFromALaneThatTakesNoPart) {
  expect_fault("if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_down_sync(0xffffu, 1.0f, 8);\n",
               "which is not in its mask");
  expect_fault("if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 3);\n",
               "of its mask does not reach");
  expect_fault("x[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 3);\n", "a mask that lacks the thread itself");
  expect_fault("x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 3);\n", "which the block does not have",
               {.threads = 48});
  expect_fault("if (threadIdx.x == 3) __syncwarp();\n", "of its mask does not reach");
  // Halves of a warp that go separate ways, each with its own mask, are right.
  EXPECT_EQ(fault("if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_down_sync(0xffffu, 1.0f, 8, 16);\n"
                  "else x[threadIdx.x] = __shfl_down_sync(0xffff0000u, 1.0f, 8, 16);\n",
                  {.threads = 64}),
            "");
}

// ASan and UBSan end the process at what they see first.
TEST(Machine, AccessesOutsideOfMemory) {
  const auto expect = [](const std::string& body, const std::string& words) {
    if (kSanitizer == Sanitizer::kAddress) {
      EXPECT_DEATH(fault(body, {.threads = 64}), "AddressSanitizer|runtime error") << words;
    } else {
      expect_fault(body, words);
    }
  };
  expect(
      "__shared__ float a[8], b[8];\nif (threadIdx.x == 5) b[1] = a[n - 56] = 1;\nif (threadIdx.x == 5) x[5] = b[1];\n",
      "beyond a variable in shared memory");
  if (kSanitizer == Sanitizer::kThread) return;  // it runs signal handlers in its own time
  expect_fault("x[threadIdx.x] = x[threadIdx.x + 1];\n", "reads or writes outside of an operand");
  expect_fault("if (threadIdx.x == 63) x[n] = 1;\n", "thread 63: reads or writes outside of an operand");
  expect_fault("if (threadIdx.x == 0) x[0] = x[-1500];\n", "reads or writes outside of an operand");
}

TEST(Machine, SeesWritesBesideAnOperand) {
  const std::string body = "if (threadIdx.x == 0) x[-1] = 1;\n";
  if (kSanitizer == Sanitizer::kAddress) {
    EXPECT_DEATH(fault(body, {.threads = 32}), "AddressSanitizer");
  } else {
    EXPECT_EQ(fault(body, {.threads = 32}), "a write beside the operand");
  }
}

// Shared memory is NaN in every block, whatever the last one left there.
TEST(Machine, SharedMemoryStartsAsNaN) {
  const KernelFiles files("stale", R"(
extern "C" __global__ void stale(float* x) {
  __shared__ float a[32];
  x[blockIdx.x * 32 + threadIdx.x] = a[threadIdx.x];
  a[threadIdx.x] = 1;
}
)");
  std::vector<float> x(96);
  void* pointer = x.data();
  void* parameters[] = {&pointer};
  launch(files.kernel(0), {.x = 3, .threads = 32}, parameters, Order::kForward);
  for (float value : x) EXPECT_TRUE(value != value);
}

// After a fault, the machine works as before.
TEST(Machine, GoesOnAfterAFault) {
  EXPECT_NE(fault("if (threadIdx.x == 3) __syncthreads();\n", {.threads = 64}), "");
  EXPECT_EQ(fault("__syncthreads(); x[threadIdx.x] = 1;\n", {.threads = 64}), "");
}

TEST(Machine, RefusesWhatACompilerRefuses) {
  EXPECT_THROW(KernelFiles("broken", "extern \"C\" __global__ void broken() { nonsense; }\n"), std::runtime_error);
}

}  // namespace
}  // namespace rondo::cuda_on_host

// The thread pool: callers side by side, exceptions, forks, settings; and products, whose slices run in it.
#include "rondo/runtime/base/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;

// Gives the setting back.
class Parallel : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(threads_); }
  const int threads_ = num_threads();
};

// Every index once.
void expect_all(int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> met(static_cast<size_t>(n));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++met[static_cast<size_t>(i)];
  });
  for (const auto& count : met) ASSERT_EQ(count, 1);
}

TEST_F(Parallel, EveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {0, 1, 3, 1000}) expect_all(n, grain);
    }
  }
}

TEST_F(Parallel, ManyShortJobs) {
  set_num_threads(4);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20000; ++i) parallel_for(8, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 160000);
}

TEST_F(Parallel, AnExceptionReachesTheCallerAfterAllPieces) {
  set_num_threads(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> done{0};
    EXPECT_EQ(error_of<std::runtime_error>([&] {
                parallel_for(16, 1, [&](int64_t begin, int64_t end) {
                  done += static_cast<int>(end - begin);
                  if (begin <= 7 && 7 < end) throw std::runtime_error("seven");
                });
              }),
              "seven");
    EXPECT_EQ(done, 16);
    EXPECT_FALSE(in_parallel());
    expect_all(64, 1);
  }
}

TEST_F(Parallel, NestedCallsRunInline) {
  set_num_threads(4);
  parallel_for(8, 1, [&](int64_t, int64_t) {
    EXPECT_TRUE(in_parallel());
    const std::thread::id here = std::this_thread::get_id();
    parallel_for(100, 1, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 100);
      EXPECT_EQ(std::this_thread::get_id(), here);
    });
  });
}

TEST_F(Parallel, OneThreadScopesNest) {
  set_num_threads(4);
  const std::thread::id here = std::this_thread::get_id();
  const auto expect_here = [&] {
    parallel_for(100, 1, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), here); });
  };
  {
    const OneThread outer;
    {
      const OneThread inner;
      expect_here();
    }
    EXPECT_TRUE(in_parallel());
    expect_here();
  }
  EXPECT_FALSE(in_parallel());
}

TEST_F(Parallel, ThreadsCallSideBySide) {
  set_num_threads(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        int64_t own[16] = {};
        parallel_for(16, 1, [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) own[k] = k;
        });
        for (int64_t value : own) sum += value;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 2000 * 120);
}

TEST_F(Parallel, NoMoreThreadsThanAskedFor) {
  set_num_threads(8);
  expect_all(64, 1);
  set_num_threads(2);
  // Threads of the job before may still look for pieces.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for (int i = 0; i < 200; ++i) {
    parallel_for(64, 1, [&](int64_t, int64_t) {
      std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  }
  EXPECT_LE(seen.size(), 2u);
}

// Review [9]: one setting for the process.
TEST_F(Parallel, TheSettingHoldsForEveryThreadAndForProducts) {
  set_num_threads(2);
  omp_set_num_threads(3);  // the host program's own, of this thread
  const Tensor a = Tensor::randn({512, 256}), b = Tensor::randn({256, 512});
  const Tensor here = ops::matmul(a, b);
  EXPECT_EQ(omp_get_max_threads(), 3);
  Tensor there;
  std::thread other([&] {
    EXPECT_EQ(num_threads(), 2);
    const OneThread alone;
    there = ops::matmul(a, b);
    set_num_threads(4);
  });
  other.join();
  EXPECT_EQ(num_threads(), 4);
  EXPECT_TRUE(same_bits(here, there));
  EXPECT_TRUE(same_bits(here, ops::matmul(a, b)));
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(2);
}

// Review [24c].
TEST_F(Parallel, SettingsThatMakeNoSense) {
  for (int n : {0, -1, kMaxThreads + 1, 100000})
    EXPECT_EQ(error_of([&] { set_num_threads(n); }),
              "set_num_threads: " + std::to_string(n) + " is not a number from 1 to 1024");
  EXPECT_EQ(num_threads(), threads_);
  set_num_threads(kMaxThreads);  // the pool starts as many as a job has pieces for
  expect_all(64, 1);
}

// In a process of its own: the variable is read once. `cores`: of the process, where it may use that many.
int threads_with(const char* variable, int cores = 0, const char* omp = nullptr) {
  const pid_t child = fork();
  if (child == 0) {
    if (cores > 0) {
      cpu_set_t all, some;
      sched_getaffinity(0, sizeof all, &all);
      CPU_ZERO(&some);
      for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&some) < cores; ++core)
        if (CPU_ISSET(core, &all)) CPU_SET(core, &some);
      sched_setaffinity(0, sizeof some, &some);
    }
    ::setenv("RONDO_NUM_THREADS", variable, 1);
    ::unsetenv("OMP_NUM_THREADS");
    if (omp != nullptr) ::setenv("OMP_NUM_THREADS", omp, 1);
    ::execl("/proc/self/exe", "test_runtime", "--gtest_filter=ThreadsVariable.Read", nullptr);
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
TEST(ThreadsVariable, Read) {
  if (std::getenv("RONDO_NUM_THREADS") == nullptr) GTEST_SKIP() << "asked for by ThreadsVariable.Checked";
  int threads = 0;
  const std::string error = error_of([&] { threads = num_threads(); });
  if (error.empty()) _exit(threads);
  _exit(error ==
                "RONDO_NUM_THREADS=" + std::string(std::getenv("RONDO_NUM_THREADS")) + " is not a number from 1 to 1024"
            ? 100
            : 98);
}
TEST(ThreadsVariable, Checked) {
  EXPECT_EQ(threads_with("3"), 3);
  EXPECT_EQ(threads_with("3", 1), 3);
  EXPECT_EQ(threads_with("", 1), 1);
  for (const char* wrong : {"abc", "0", "-2", "2x", "1.5", "100000", "99999999999999"})
    EXPECT_EQ(threads_with(wrong), 100);
}
TEST(ThreadsVariable, OpenMPsIsHonouredWhereOursIsNotSet) {
  EXPECT_EQ(threads_with("", 1, "3"), 3);
  EXPECT_EQ(threads_with("5", 1, "3"), 5);
  EXPECT_EQ(threads_with("", 1, "4,2"), 4);
  for (const char* ignored : {"", "0", "many", "2x", "100000"}) EXPECT_EQ(threads_with("", 1, ignored), 1) << ignored;
}

// A child has none of its parent's threads.
TEST_F(Parallel, AForkedChildHasAPoolOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  set_num_threads(4);
  const Tensor a = Tensor::randn({512, 512}), expected = ops::matmul(a, a);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) ops::matmul(a, a);
  });
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      std::atomic<int64_t> sum{0};
      for (int round = 0; round < 100; ++round)
        parallel_for(64, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      _exit(sum == 6400 ? 7 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    expect_all(64, 1);
  }
  stop = true;
  busy.join();
  // With nobody inside of the library, a child may do anything.
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(same_bits(ops::matmul(a, a), expected) ? 7 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

// The process ends while another thread is in the middle of a job.
TEST(ParallelDeathTest, ExitInTheMiddle) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  EXPECT_EXIT(
      {
        set_num_threads(4);
        std::thread([] {
          for (;;) parallel_for(64, 1, [](int64_t, int64_t) {});
        }).detach();
        parallel_for(64, 1, [](int64_t, int64_t) {});
        std::exit(5);
      },
      testing::ExitedWithCode(5), "");
  EXPECT_EXIT(
      {
        set_num_threads(4);
        parallel_for(64, 1, [](int64_t begin, int64_t) {
          if (begin == 0) std::exit(6);
        });
      },
      testing::ExitedWithCode(6), "");
}

// ---- Products

struct Layout {
  const char* name;
  bool a, b;  // transposed
};

Tensor product(int64_t m, int64_t n, int64_t k, DType dtype, const Layout& layout) {
  Generator generator(static_cast<uint64_t>(m * 31 + n * 7 + k));
  const Dims a_sizes = layout.a ? Dims{k, m} : Dims{m, k}, b_sizes = layout.b ? Dims{n, k} : Dims{k, n};
  const Tensor a = Tensor::randn(a_sizes, {}, &generator).to(dtype);
  const Tensor b = Tensor::randn(b_sizes, {}, &generator).to(dtype);
  return ops::matmul(layout.a ? ops::transpose(a, 0, 1) : a, layout.b ? ops::transpose(b, 0, 1) : b);
}

// The order of every sum depends on shapes only. Large inner dimensions, where oneDNN's blocks depend on the shape of
// each slice.
TEST_F(Parallel, ProductsHaveTheSameBitsForAnyNumberOfThreads) {
  const Layout layouts[] = {{"nn", false, false}, {"nt", false, true}, {"tn", true, false}};
  const int64_t sizes[][3] = {{768, 128, 512}, {384, 384, 2048}, {256, 768, 1536}, {65, 128, 768},
                              {1, 1000, 768},  {700, 65, 300},   {33, 1, 5000},    {2000, 17, 64}};
  for (DType dtype : {kF32, kBF16}) {
    for (const Layout& layout : layouts) {
      for (const auto& [m, n, k] : sizes) {
        set_num_threads(1);
        const Tensor one = product(m, n, k, dtype, layout);
        for (int threads : {2, 7}) {
          set_num_threads(threads);
          EXPECT_TRUE(same_bits(product(m, n, k, dtype, layout), one))
              << layout.name << " " << m << " x " << n << " x " << k << ", " << name_of(dtype) << ", " << threads;
        }
      }
    }
  }
}

TEST_F(Parallel, BatchesOfProductsHaveTheSameBitsForAnyNumberOfThreads) {
  for (const Dims& sizes : {Dims{2, 300, 200, 400}, Dims{3, 64, 64, 32}, Dims{48, 64, 64, 32}, Dims{200, 9, 9, 9}}) {
    const Tensor a = Tensor::randn({sizes[0], sizes[1], sizes[3]}), b = Tensor::randn({sizes[0], sizes[2], sizes[3]}),
                 shared = Tensor::randn({sizes[3], sizes[2]});
    const auto compute = [&] { return ops::matmul(a, ops::transpose(b, 1, 2)); };
    const auto broadcast = [&] { return ops::matmul(ops::transpose(ops::transpose(a, 1, 2).clone(), 1, 2), shared); };
    set_num_threads(1);
    const Tensor one = compute(), one_shared = broadcast();
    set_num_threads(3);
    EXPECT_TRUE(same_bits(compute(), one)) << to_string(sizes);
    EXPECT_TRUE(same_bits(broadcast(), one_shared)) << to_string(sizes);
    // Each matrix against a product of its own.
    for (int64_t i = 0; i < sizes[0]; ++i) {
      const Tensor alone = ops::matmul(a[i], ops::transpose(b[i], 0, 1));
      EXPECT_LT(ops::max(ops::abs(ops::sub(alone, one[i]))).item(), 1e-3);
    }
  }
}

// Variants that a tuner may choose: other slices, the same product.
TEST_F(Parallel, VariantsOfAProductAgree) {
  constexpr int64_t m = 1024, n = 768, k = 512;
  const Tensor a = Tensor::randn({m, k}), b = Tensor::randn({k, n}), bias = Tensor::randn({n});
  MatmulCall call(kF32, m, n, k, {k, 1}, {n, 1}, {n, 1});
  call.bias = true;
  const Tensor expected = ops::add(ops::matmul(a.to(kF64), b.to(kF64)), bias.to(kF64));
  int variants = 0;
  for (int variant = 0; variant < 5; ++variant) {
    const auto product = cpu::Product::get(call, variant);
    if (product == nullptr) continue;
    ++variants;
    if (product->slices() == 0) {  // of our own: the only one
      EXPECT_EQ(variant, 0);
      variants = 3;
    } else if (variant == 3) {
      EXPECT_EQ(product->slices(), 1u);
    } else {
      EXPECT_GT(product->slices(), 1u);
    }
    Tensor c = Tensor::full({m, n}, 1e30);
    product->run({.a = a.raw_data(), .b = b.raw_data(), .bias = bias.raw_data(), .c = c.raw_mutable_data()});
    EXPECT_LT(ops::max(ops::abs(ops::sub(c.to(kF64), expected))).item(), 1e-3) << variant;
  }
  EXPECT_GE(variants, 3);
}

}  // namespace
}  // namespace rondo

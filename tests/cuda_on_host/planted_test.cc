// Emitted kernels with a line taken out: each must be noticed.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::Order;

constexpr int64_t kRows = 3, kCols = 2000;

LoopKernel row_sums() {
  KernelBuilder b("row_sums", kRows, kCols, 2);
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true);
  const LoopValue sum = b.stage(0).reduce(LoopOp::kReduceSum, b.load(x, kF32));
  b.stage(1).store(y, b.emit(LoopOp::kAdd, kF32, b.load(x, kF32), sum));
  return b.kernel;
}
// `text` without its first `part`.
std::string without(std::string text, const std::string& part) {
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << "the emitter no longer writes " << part;
  return at == std::string::npos ? text : text.erase(at, part.size());
}

// True if the result is that of the interpreter. Throws Fault.
bool is_right(const std::string& text, Order order) {
  const LoopKernel kernel = row_sums();
  const Schedule s = schedule(kernel);
  const cuda_on_host::KernelFiles files("row_sums", text);
  std::mt19937 random(7);
  std::vector<Buffer> expected = {random_buffer(kF32, kRows * kCols, random, Samples::kTame),
                                  Buffer(kRows * kCols * 4)};
  Buffer x = expected[0], y = expected[1];
  interpret_in_order(kernel, s, {}, expected);
  void *px = x.data(), *py = y.data();
  int64_t rows = kRows;
  void* parameters[] = {&px, &py, &rows};
  const Grid g = grid(kernel, s);
  cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters, order);
  return first_difference(kF32, expected[1], y).empty();
}
std::string emitted() { return emit(row_sums(), schedule(row_sums())); }

TEST(Planted, MissingBarrierGivesOtherNumbers) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan reports it: the next test";
#else
  for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    EXPECT_TRUE(is_right(emitted(), order));
    EXPECT_FALSE(is_right(without(emitted(), "__syncthreads();"), order));
  }
#endif
}

// In a row of one warp, shuffles bring the threads together, but they order no memory: only TSan can tell.
void run_in_place(const std::string& text) {
  const LoopKernel kernel = in_place(6, 100);
  const cuda_on_host::KernelFiles files("in_place", text);
  std::vector<float> x(600, 1.0f), s(6, 2.0f);
  void *px = x.data(), *ps = s.data();
  int64_t rows = 6;
  void* parameters[] = {&px, &ps, &px, &ps, &rows};
  const Grid g = grid(kernel, schedule(kernel));
  cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters, Order::kForward);
  EXPECT_EQ(s[0], 102.0f);
  EXPECT_EQ(x[0], 2.0f);
}

// What the next test starts in a process of its own.
TEST(Planted, DISABLED_RunsAsTold) {
  const char* planted = std::getenv("RONDO_PLANTED");
  ASSERT_NE(planted, nullptr);
  const std::string what = planted, rows = emit(in_place(6, 100), schedule(in_place(6, 100)));
  if (what == "nothing") {
    is_right(emitted(), Order::kForward);
    run_in_place(rows);
  }
  if (what == "__syncthreads();") is_right(without(emitted(), what), Order::kForward);
  if (what == "__syncwarp();") run_in_place(without(rows, what));
}
TEST(Planted, TSanReportsAMissingBarrier) {
#ifndef __SANITIZE_THREAD__
  GTEST_SKIP() << "needs the tsan preset";
#else
  char program[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", program, sizeof(program) - 1), 0);
  const auto output_of = [&](const char* what) {
    const std::string command = absl::StrCat("TSAN_OPTIONS=exitcode=66 RONDO_PLANTED='", what, "' '", program,
                                             "' --gtest_also_run_disabled_tests "
                                             "--gtest_filter=Planted.DISABLED_RunsAsTold 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
    return absl::StrCat("status ", WEXITSTATUS(pclose(pipe)), "\n", output);
  };
  const std::string right = output_of("nothing");
  EXPECT_EQ(right.rfind("status 0", 0), 0u) << right;
  for (const char* barrier : {"__syncthreads();", "__syncwarp();"}) {
    const std::string wrong = output_of(barrier);
    EXPECT_EQ(wrong.rfind("status 66", 0), 0u) << wrong;
    EXPECT_NE(wrong.find("WARNING: ThreadSanitizer: data race"), std::string::npos) << wrong;
  }
#endif
}

// Columns beyond the last one.
TEST(Planted, MissingTailGuards) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan runs signal handlers in its own time";
#else
  KernelBuilder b("k", 1, 1003);
  b.kernel.split_columns = true;
  b.store(b.dense(kF32, true), b.load(b.dense(kF32), kF32));
  const Schedule s = schedule(b.kernel);
  const auto run = [&](const std::string& text) {
    const cuda_on_host::KernelFiles files("k", text);
    cuda_on_host::DeviceBuffer x(1003 * 4, cuda_on_host::DeviceBuffer::Side::kEnd),
        y(1003 * 4, cuda_on_host::DeviceBuffer::Side::kEnd);
    void *px = x.data(), *py = y.data();
    int64_t rows = 1;
    void* parameters[] = {&py, &px, &rows};
    const Grid g = grid(b.kernel, s);
    cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters, Order::kForward);
  };
  const std::string text = emit(b.kernel, s);
  EXPECT_NO_THROW(run(text));
  EXPECT_THROW(run(without(text, "cols - c < 4 ? static_cast<int>(cols - c) : ")), cuda_on_host::Fault);
#endif
}

}  // namespace
}  // namespace rondo::compile::cuda

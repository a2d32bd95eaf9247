// Emitted kernels with a line taken out: each must be noticed.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::kSanitizer;
using cuda_on_host::Order;
using cuda_on_host::Sanitizer;

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
  if (kSanitizer == Sanitizer::kThread) GTEST_SKIP() << "TSan reports it: the next test";
  for (Order order : cuda_on_host::kEveryOrder) {
    EXPECT_TRUE(is_right(emitted(), order));
    EXPECT_FALSE(is_right(without(emitted(), "__syncthreads();"), order));
  }
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

// The program that the next test starts in a process of its own.
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
  if (kSanitizer != Sanitizer::kThread) GTEST_SKIP() << "needs kernels with TSan: kernels_thread_cuda_on_host";
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
}

// Columns beyond the last one.
TEST(Planted, MissingTailGuards) {
  if (kSanitizer == Sanitizer::kThread) GTEST_SKIP() << "TSan runs signal handlers in its own time";
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
}

// ---- One line changed: each is found by what the executor says, or by other numbers

// The findings of a run of `text`: a Fault's words, "other numbers in operand ...", "a write beside an operand", or "".
std::string finding(const LoopKernel& kernel, const std::string& text, std::vector<double> scalars = {},
                    std::vector<ScalarFrom> from = {}) {
  using cuda_on_host::DeviceBuffer;
  const cuda_on_host::KernelFiles files(kernel.name, text);
  Schedule s = schedule(kernel);
  s.scalars = from;
  std::mt19937 random(7);
  std::vector<Buffer> expected;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::vector<void*> pointers;
  for (const Operand& operand : kernel.operands) {
    expected.push_back(random_buffer(operand.dtype, elements_of(kernel, operand), random, Samples::kTame));
    // At the end of their pages, and off the multiples of 16 bytes where the size is.
    buffers.push_back(std::make_unique<DeviceBuffer>(expected.back().size(), DeviceBuffer::Side::kEnd));
    std::memcpy(buffers.back()->data(), expected.back().data(), expected.back().size());
    pointers.push_back(buffers.back()->data());
  }
  // Two runs with other scalars: what the first one left must not be what the second one reads.
  std::vector<double> memory(scalars.size());
  std::vector<void*> at(scalars.size()), parameters;
  std::vector<int64_t> integers = integer_arguments(kernel, s);
  for (void*& p : pointers) parameters.push_back(&p);
  for (size_t i = 0; i < scalars.size(); ++i) {
    at[i] = &memory[i];
    parameters.push_back(from.empty() ? at[i] : &at[i]);
  }
  for (int64_t& i : integers) parameters.push_back(&i);
  const Grid g = grid(kernel, s);
  for (double factor : {1.0, 3.0}) {
    for (size_t i = 0; i < scalars.size(); ++i) memory[i] = factor * scalars[i];
    interpret_in_order(kernel, s, {.scalars = memory}, expected);
    try {
      cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters.data(), Order::kReverse);
    } catch (const cuda_on_host::Fault& fault) {
      return fault.what();
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      Buffer got(expected[i].size());
      std::memcpy(got.data(), buffers[i]->data(), got.size());
      if (!first_difference(kernel.operands[i].dtype, expected[i], got).empty())
        return absl::StrCat("other numbers in operand ", i);
      if (!buffers[i]->is_intact()) return "a write beside an operand";
    }
  }
  return "";
}
std::string replaced(std::string text, const std::string& part, const std::string& by) {
  size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << "the emitter no longer writes " << part << " in\n" << text;
  for (; at != std::string::npos; at = text.find(part, at + by.size())) text.replace(at, part.size(), by);
  return text;
}
void expect_found(const LoopKernel& kernel, const std::string& part, const std::string& by, const std::string& words,
                  const std::vector<double>& scalars = {}, const std::vector<ScalarFrom>& from = {}) {
  if (kSanitizer != Sanitizer::kNone) GTEST_SKIP() << "a sanitizer ends the process before the machine speaks";
  Schedule s = schedule(kernel);
  s.scalars = from;
  const std::string text = emit(kernel, s);
  EXPECT_EQ(finding(kernel, text, scalars, from), "");
  const std::string found = finding(kernel, replaced(text, part, by), scalars, from);
  EXPECT_NE(found.find(words), std::string::npos) << "found: " << found;
}

// y = s x of one long row of 4 n + 3 elements.
LoopKernel scaled(int64_t cols) {
  KernelBuilder b("scaled", 1, cols);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true);
  for (Operand& operand : b.kernel.operands) operand.axes.clear();
  b.store(y, b.emit(LoopOp::kMul, kF32, b.load(x, kF32), b.scalar(0)));
  return b.kernel;
}

TEST(Planted, WrongTailMask) {
  expect_found(scaled(1003), "cols - c < 4", "cols - c < 3", "outside of an operand", {0.5});
  // A mask that leaves out the last column.
  expect_found(scaled(1003), "static_cast<int>(cols - c)", "static_cast<int>(cols - c) - 1",
               "other numbers in operand 1", {0.5});
}

TEST(Planted, MisalignedAccess) {
  if (kSanitizer != Sanitizer::kNone) GTEST_SKIP() << "a sanitizer ends the process before the machine speaks";
  // 1003 elements end at the end of a page, so the base is no multiple of 16 bytes.
  std::string text(device_math());
  const std::string check = "&& (reinterpret_cast<size_t>(from) & (alignof(Whole) - 1)) == 0";
  ASSERT_NE(text.find(check), std::string::npos);
  // load() of the kernel's own, without the check.
  const size_t begin = text.find(
                   "template <int kElements, class T> RONDO_DEVICE Pack<T, kElements> load(const T* from, int exist"),
               end = text.find("template", begin + 1);
  std::string load = text.substr(begin, end - begin);
  load = replaced(replaced(load, check, ""), " load(", " hasty_load(");
  const LoopKernel kernel = scaled(1003);
  const std::string emitted = emit(kernel, schedule(kernel));
  const std::string found = finding(kernel, load + replaced(emitted, "= load<", "= hasty_load<"), {0.5});
  EXPECT_NE(found.find("an access of 16 bytes"), std::string::npos) << found;
  EXPECT_NE(found.find("no multiple of them"), std::string::npos) << found;
}

TEST(Planted, StaleScalar) {
  // The value of the first run, kept as a number.
  expect_found(scaled(1003), "static_cast<float>(s0)", "0.5f", "other numbers in operand 1", {0.5});
  // A device value that is read from where it was before.
  expect_found(scaled(1003), "read(at_s0)", "0.5", "other numbers in operand 1", {0.5}, {ScalarFrom::kDeviceF64});
}

TEST(Planted, WrongTransposition) {
  const LoopKernel kernel = transposed(kF32, 96, 65);
  expect_found(kernel, "tile0[x][j]", "tile0[j][x]", "other numbers in operand 2");
  expect_found(kernel, "first_row = block / across", "first_row = block % across", "");
  expect_found(kernel, "__syncthreads();", "", "other numbers in operand");
}

TEST(Planted, SharedMemoryOutOfBounds) {
  // Lines without the pad that the code counts on, one after the other: the last lies beyond the tile.
  expect_found(transposed(kF32, 96, 65), "tile3[x][j]", "(&tile3[0][0])[x * 34 + j]", "in shared memory");
  expect_found(softmax(kF32, 7, 3000), "[t / 32]", "[t / 32 + 1]", "in shared memory");
}

TEST(Planted, ShuffleFromAnInactiveLane) {
  // Threads without a row leave before the others add up.
  expect_found(softmax(kF32, 7, 20), "const bool live = group < n_rows;",
               "if (group >= n_rows) return;\n  const bool live = true;", "of its mask does not reach");
}

TEST(Planted, BarrierInABranch) {
  expect_found(softmax(kF32, 7, 3000), "__syncthreads();", "if (t < 96) __syncthreads();", "threads reach");
}

TEST(Planted, WrongRow) {
  // Row 0 for all: as a stride that was forgotten.
  expect_found(softmax(kF32, 7, 20), "row = live ? group : 0", "row = 0", "other numbers in operand");
  // A sum that starts from what the last row left.
  expect_found(norm_backward(kF32, 37, 300), "begin + turn : 0", "begin : 0", "other numbers in operand");
}

}  // namespace
}  // namespace rondo::compile::cuda

// The cost of memory accesses: sectors a request against the ideal, waves of shared memory, accesses of 16 bytes; and
// operands beyond 2^31 elements.
#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::Order;
using cuda_on_host::Traffic;

#ifndef __SANITIZE_THREAD__  // counting is no part of what TSan may see

// A kernel in one launch, from operands at multiples of `alignment` bytes.
Traffic traffic_of(const LoopKernel& kernel, size_t off = 0, std::string text = "") {
  const Schedule s = schedule(kernel);
  if (text.empty()) text = emit(kernel, s);
  const cuda_on_host::KernelFiles files(kernel.name, text);
  std::mt19937 random(5);
  std::vector<std::unique_ptr<cuda_on_host::DeviceBuffer>> buffers;
  std::vector<void*> pointers;
  for (const Operand& operand : kernel.operands) {
    const Buffer contents = random_buffer(operand.dtype, elements_of(kernel, operand), random, Samples::kTame);
    buffers.push_back(std::make_unique<cuda_on_host::DeviceBuffer>(
        contents.size(), cuda_on_host::DeviceBuffer::Side::kBegin, off * size_of(operand.dtype)));
    std::memcpy(buffers.back()->data(), contents.data(), contents.size());
    pointers.push_back(buffers.back()->data());
  }
  std::vector<double> scalars(static_cast<size_t>(kernel.n_scalars), 0.5);
  std::vector<int64_t> integers = integer_arguments(kernel, s);
  std::vector<void*> parameters;
  for (void*& p : pointers) parameters.push_back(&p);
  for (double& d : scalars) parameters.push_back(&d);
  for (int64_t& i : integers) parameters.push_back(&i);
  const Grid g = grid(kernel, s);
  Traffic traffic;
  cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters.data(), Order::kForward, 1, &traffic);
  return traffic;
}

// y = a x + w, with w for each column.
LoopKernel elementwise(DType type, int64_t rows, int64_t cols, DType narrow) {
  KernelBuilder b("elementwise", rows, cols);
  const int32_t x = b.dense(type), w = b.per_column(type), y = b.dense(type, true), z = b.dense(narrow, true);
  const DType compute = compute_dtype(type);
  const LoopValue v = b.emit(LoopOp::kAdd, compute,
                             b.emit(LoopOp::kMul, compute, b.load(x, compute), b.scalar(0, compute)),
                             b.load(w, compute));
  b.store(y, v);
  b.store(z, v);
  return b.kernel;
}

TEST(CudaTraffic, ElementwiseKernelsReadWholeSectors) {
  for (DType type : {kF32, kF64, kBF16}) {
    for (DType narrow : {type, kBool}) {
      const LoopKernel kernel = elementwise(type, 6, 1024, narrow);
      const Traffic t = traffic_of(kernel);
      std::printf("elementwise %s: %lld requests, %.3f sectors per ideal sector, %lld accesses of 16 bytes\n",
                  name_of(type).data(), static_cast<long long>(t.requests), t.per_ideal(),
                  static_cast<long long>(t.wide));
      EXPECT_LE(t.per_ideal(), 1.1);
      // x and y, and w once for each row; the narrower one if it is as wide.
      const int64_t wide = (narrow == type ? 4 : 3) * kernel.rows * kernel.cols * static_cast<int64_t>(size_of(type)) /
                           16;
      EXPECT_EQ(t.wide, wide);
      // The counter sees what misaligned bases cost, and an access of 16 bytes never is one.
      const Traffic off = traffic_of(kernel, 1);
      EXPECT_EQ(off.wide, 0);
      EXPECT_GT(off.per_ideal(), 1.1);
    }
  }
}

TEST(CudaTraffic, TransposesReadWholeSectorsAndMeetAllBanks) {
  for (DType type : {kF32, kF64, kBF16, kF16}) {
    const LoopKernel kernel = transposed(type, 96, 128);
    ASSERT_EQ(schedule(kernel).shape, Schedule::Shape::kTiles);
    const Traffic t = traffic_of(kernel);
    std::printf("transposed %s: %.3f sectors per ideal sector, %.3f waves per ideal wave\n", name_of(type).data(),
                t.per_ideal(), t.waves_per_ideal());
    EXPECT_LE(t.per_ideal(), 1.1);
    EXPECT_LE(t.waves_per_ideal(), 1.1);
    // Without the pad, all of a warp waits for one bank.
    std::string text = emit(kernel, schedule(kernel));
    for (const char* padded : {"[32][33]", "[32][34]"})
      for (size_t at; (at = text.find(padded)) != std::string::npos;) text.replace(at, 8, "[32][32]");
    EXPECT_GT(traffic_of(kernel, 0, text).waves_per_ideal(), 4);
  }
}

TEST(CudaTraffic, RowsAreReadOnce) {
  const LoopKernel kernel = softmax(kF32, 24, 768);
  EXPECT_TRUE(schedule(kernel).keeps_row);
  const Traffic t = traffic_of(kernel);
  // x and y, 128 bytes a row of threads and step; and the sums.
  EXPECT_LE(t.ideal_sectors, 2 * 24 * 768 * 4 / Traffic::kSector + 24);
  EXPECT_LE(t.per_ideal(), 1.1);
}

#endif

// ---- Index width

// Address space without memory behind it, between two parts that nobody may touch.
class Space {
 public:
  static constexpr size_t kAround = size_t{6} << 30;
  explicit Space(size_t bytes) : bytes_(bytes + 2 * kAround) {
    all_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(data(), bytes, PROT_READ | PROT_WRITE);
  }
  ~Space() { munmap(all_, bytes_); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(all_) + kAround; }

 private:
  size_t bytes_;
  void* all_;
};

// A copy of bytes so far apart that the last is beyond 2^31.
LoopKernel far(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  KernelBuilder b("far", rows, cols);
  const int32_t x = b.operand(kU8, {{1, rows, row_stride}}, col_stride), y = b.dense(kF32, true);
  b.store(y, b.load(x, kF32));
  return b.kernel;
}
LoopKernel far_rows(int64_t stride) { return far(4, 24, stride, 1); }
LoopKernel far_columns(int64_t stride) { return far(4, 24, 1, stride); }
LoopKernel far_columns_in_tiles(int64_t stride) { return far(8, 24, 1, stride); }
std::vector<float> far_values(const LoopKernel& kernel, const Schedule& s) {
  const cuda_on_host::KernelFiles files(kernel.name, emit(kernel, s));
  const int64_t row_stride = kernel.operands[0].axes[0].stride, col_stride = kernel.operands[0].col_stride;
  const Space space(static_cast<size_t>((kernel.rows - 1) * row_stride + (kernel.cols - 1) * col_stride) + 4096);
  for (int64_t i = 0; i < kernel.rows * kernel.cols; ++i)
    space.data()[i / kernel.cols * row_stride + i % kernel.cols * col_stride] = static_cast<unsigned char>(i);
  std::vector<float> y(static_cast<size_t>(kernel.rows * kernel.cols));
  void *px = space.data(), *py = y.data();
  std::vector<int64_t> integers = integer_arguments(kernel, s);
  std::vector<void*> parameters = {&px, &py};
  for (int64_t& i : integers) parameters.push_back(&i);
  const Grid g = grid(kernel, s);
  cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters.data(), Order::kForward);
  return y;
}

TEST(CudaIndices, BeyondTwoToThe31) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers keep shadows of the address space that this takes, and end the process at a bad access";
#endif
  constexpr int64_t kRow = (int64_t{1} << 30) + 4096, kColumn = (int64_t{1} << 27) + 4096;
  for (const auto& [far_operand, stride] :
       {std::pair(&far_rows, kRow), {&far_columns, kColumn}, {&far_columns_in_tiles, kColumn}}) {
    for (const bool dynamic : {false, true}) {
      LoopKernel kernel = far_operand(stride);
      if (dynamic) {
        kernel.varying.assign(extents(kernel).size(), false);
        kernel.varying[stride == kRow ? 5 : 2] = true;  // x's stride
      }
      Schedule s = schedule(kernel);
      EXPECT_TRUE(s.wide) << kernel.rows << " rows, stride " << stride;
      std::vector<float> expected;
      for (int64_t i = 0; i < kernel.rows * kernel.cols; ++i) expected.push_back(static_cast<float>(i));
      s.wide = true;
      EXPECT_EQ(far_values(kernel, s), expected);
      // The planted bug: indices of 32 bits. (In tiles, the host's compiler makes steps of a pointer of the product.)
      if (far_operand == &far_columns_in_tiles) continue;
      s.wide = false;
      try {
        far_values(kernel, s);
        ADD_FAILURE() << "an index overflowed and nothing saw it";
      } catch (const cuda_on_host::Fault& fault) {
        EXPECT_NE(std::string(fault.what()).find("where there is no operand at all"), std::string::npos)
            << fault.what();
      }
    }
    // The variant follows from the sizes of a run.
    EXPECT_FALSE(schedule(far_operand(1 << 16)).wide);
    EXPECT_FALSE(same_code(schedule(far_operand(1 << 16)), schedule(far_operand(stride))));
  }
}

}  // namespace
}  // namespace rondo::compile::cuda

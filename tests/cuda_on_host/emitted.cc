#include "rondo/tests/cuda_on_host/emitted.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::DeviceBuffer;
using cuda_on_host::Order;
using rondo::cuda::DeviceStatus;

// The types that column sums are stored as, in tests: all in turn.
DType stored_type(const Operand& partial, size_t n) {
  constexpr DType kTypes[] = {kF32, kBF16, kF16}, kIntegers[] = {kI64, kI32, kU8, kBool};
  if (partial.dtype == kI64) return kIntegers[n % std::size(kIntegers)];
  return partial.dtype == kF64 ? kF64 : kTypes[n % std::size(kTypes)];
}
template <class C>
void combine_in_order(const C* in, LoopOp op, int64_t chunks, int64_t cols, DType stored, std::byte* out) {
  const auto combine = [op](C a, C b) {
    if constexpr (std::is_floating_point_v<C>)
      return op == LoopOp::kColumnSum   ? a + b
             : op == LoopOp::kColumnMax ? scalar::maximum(a, b)
                                        : scalar::minimum(a, b);
    else if (op != LoopOp::kColumnSum) return op == LoopOp::kColumnMax ? std::max(a, b) : std::min(a, b);
    else return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  const C start = op == LoopOp::kColumnSum ? C(0) : ops::convert<C>(identity_of(along_row(op), kF64));
  for (int64_t c = 0; c < cols; ++c) {
    C total = start;
    for (int64_t g = 0; g < kCombineGroups; ++g) {
      C sum = start;
      for (int64_t k = g; k < chunks; k += kCombineGroups) sum = combine(sum, in[k * cols + c]);
      total = g == 0 ? sum : combine(total, sum);
    }
    visit_dtype(stored, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T value = ops::convert<T>(total);
      std::memcpy(out + static_cast<size_t>(c) * sizeof(T), &value, sizeof(T));
    });
  }
}

// Device memory for the operands of one launch.
class Operands {
 public:
  // In random order, bases are multiples of one element only: a few elements away from where 16 bytes begin.
  Operands(const std::vector<Buffer>& contents, const std::vector<DType>& types, Order order) {
    const auto side = order == Order::kForward ? DeviceBuffer::Side::kEnd : DeviceBuffer::Side::kBegin;
    for (const Buffer& buffer : contents) {
      const size_t i = buffers_.size(), shift = order == Order::kRandom ? (1 + i % 3) * size_of(types[i]) : 0;
      buffers_.push_back(std::make_unique<DeviceBuffer>(buffer.size(), side, shift));
      std::memcpy(buffers_.back()->data(), buffer.data(), buffer.size());
      pointers_.push_back(buffers_.back()->data());
    }
  }
  std::vector<void*>& pointers() { return pointers_; }
  Buffer read(size_t i) const {
    const auto* data = reinterpret_cast<const std::byte*>(buffers_[i]->data());
    return Buffer(data, data + buffers_[i]->size());
  }
  bool intact() const {
    for (const auto& buffer : buffers_)
      if (!buffer->is_intact()) return false;
    return true;
  }

 private:
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<void*> pointers_;
};

const char* name_of(Order order) {
  return order == Order::kForward   ? "forward"
         : order == Order::kReverse ? "reverse"
         : order == Order::kRandom  ? "random order"
                                    : "drifting warps";
}

}  // namespace

namespace {
// What fills a partial operand.
LoopOp reduction_into(const LoopKernel& kernel, size_t partial) {
  for (const Instr& i : kernel.instrs)
    if (is_column_reduction(i.op) && static_cast<size_t>(i.index) == partial) return i.op;
  throw_internal("nothing reduces into the operand");
}
}  // namespace

int32_t Batch::add_source(const std::string& name, const std::string& text) {
  sources_.push_back({name, text});
  return static_cast<int32_t>(sources_.size()) - 1;
}

void Batch::add(LoopKernel kernel, RunOptions options, Sizes sizes, Contents given, std::vector<ScalarFrom> scalars) {
  if (sizes == Sizes::kDynamic) {
    const std::vector<int64_t> list = extents(kernel);
    kernel.varying.clear();
    for (int64_t extent : list) kernel.varying.push_back(may_vary(extent));
  }
  kernel.name = absl::StrCat("k", cases_.size());
  Schedule s = schedule(kernel);
  if (sizes == Sizes::kWide) s.wide = true;
  s.scalars = std::move(scalars);
  Case c{kernel, s, std::move(options), std::move(given), "", 0};
  // The code is made for other sizes, where it reads them.
  LoopKernel other = kernel;
  if (sizes == Sizes::kDynamic) {
    other = at_other_sizes(kernel);
    other.varying = kernel.varying;
  }
  c.text = emit(other, s);
  c.code = add_source(kernel.name, c.text);
  if (s.chunk_rows > 0) {
    const std::string combine = kernel.name + "_combine";
    c.combine = add_source(combine, emit_combine(combine));
  }
  cases_.push_back(std::move(c));
}

void combine_in_order(const void* partial, LoopOp op, DType compute, int64_t chunks, int64_t cols, DType stored,
                      void* out) {
  auto* to = static_cast<std::byte*>(out);
  if (compute == kF64) combine_in_order(static_cast<const double*>(partial), op, chunks, cols, stored, to);
  else if (compute == kI64) combine_in_order(static_cast<const int64_t*>(partial), op, chunks, cols, stored, to);
  else combine_in_order(static_cast<const float*>(partial), op, chunks, cols, stored, to);
}

void interpret_in_order(const LoopKernel& kernel, const Schedule& schedule, void* const* operands,
                        const double* scalars) {
  const int64_t all = extent_of_calls(kernel);
  const int64_t step = schedule.chunk_rows > 0 ? schedule.chunk_rows : all;
  for (int64_t at = 0; at < all; at += step)
    interpret(kernel, operands, scalars, at, std::min(all, at + step), row_order(schedule));
}
void interpret_in_order(const LoopKernel& kernel, const Schedule& schedule, const RunOptions& options,
                        std::vector<Buffer>& buffers) {
  std::vector<void*> pointers;
  for (Buffer& buffer : buffers) pointers.push_back(buffer.data());
  for (auto [output, input] : options.in_place)
    pointers[static_cast<size_t>(output)] = pointers[static_cast<size_t>(input)];
  interpret_in_order(kernel, schedule, pointers.data(), options.scalars.data());
}

void Batch::check() const {
  const cuda_on_host::KernelFiles files(sources_);
  for (const Case& c : cases_) {
    std::mt19937 random(42);
    std::vector<Buffer> before = random_operands(c.kernel, random, c.options.samples);
    for (const auto& [operand, contents] : c.given) before[static_cast<size_t>(operand)] = contents;
    std::vector<Buffer> expected = before;
    interpret_in_order(c.kernel, c.schedule, c.options, expected);
    for (Order order : cuda_on_host::kEveryOrder) {
      SCOPED_TRACE(absl::StrCat(name_of(order), "\n", to_string(c.kernel), c.text));
      check(c, files, order, before, expected);
      if (testing::Test::HasFailure()) return;  // one is enough to read
    }
  }
}

void Batch::check(const Case& c, const cuda_on_host::KernelFiles& files, Order order, const std::vector<Buffer>& before,
                  const std::vector<Buffer>& expected) const {
  std::vector<DType> types;
  for (const Operand& operand : c.kernel.operands) types.push_back(operand.dtype);
  Operands operands(before, types, order);
  std::vector<void*> pointers = operands.pointers();
  for (auto [output, input] : c.options.in_place)
    pointers[static_cast<size_t>(output)] = pointers[static_cast<size_t>(input)];
  std::vector<double> scalars = c.options.scalars;
  std::vector<int64_t> integers = integer_arguments(c.kernel, c.schedule);
  std::vector<void*> parameters;
  std::vector<std::unique_ptr<DeviceBuffer>> statuses(pointers.size());  // of checks
  unsigned call = 7;
  for (size_t i = 0; i < pointers.size(); ++i) {
    parameters.push_back(&pointers[i]);
    if (!c.kernel.operands[i].is_check) continue;
    statuses[i] = std::make_unique<DeviceBuffer>(sizeof(DeviceStatus), DeviceBuffer::Side::kEnd, 0);
    std::memcpy(statuses[i]->data(), &rondo::cuda::kNothingFailed, sizeof(DeviceStatus));
    pointers[i] = statuses[i]->data();
    parameters.push_back(&call);
  }
  std::vector<float> narrow(scalars.begin(), scalars.end());
  std::vector<void*> at(scalars.size());
  for (size_t i = 0; i < static_cast<size_t>(c.kernel.n_scalars); ++i) {
    const ScalarFrom from = i < c.schedule.scalars.size() ? c.schedule.scalars[i] : ScalarFrom::kArgument;
    at[i] = from == ScalarFrom::kDeviceF32 ? static_cast<void*>(&narrow[i]) : &scalars[i];
    parameters.push_back(from == ScalarFrom::kArgument ? at[i] : &at[i]);
  }
  for (int64_t& i : integers) parameters.push_back(&i);
  const Grid g = grid(c.kernel, c.schedule);
  ASSERT_NO_THROW(
      cuda_on_host::launch(files.kernel(static_cast<size_t>(c.code)), {g.x, g.y, g.threads}, parameters.data(), order));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (statuses[i] == nullptr) {
      EXPECT_EQ(first_difference(c.kernel.operands[i].dtype, expected[i], operands.read(i)), "") << "operand " << i;
      continue;
    }
    DeviceStatus status;
    std::memcpy(&status, statuses[i]->data(), sizeof(status));
    EXPECT_EQ(status.call, expected[i][0] != std::byte{0} ? call : 0) << "check " << i;
    EXPECT_TRUE(statuses[i]->is_intact());
  }
  EXPECT_TRUE(operands.intact());
  if (c.combine < 0) return;

  std::vector<Buffer> sums, totals;  // two by two, as the parameters
  std::vector<DType> sum_types;
  std::vector<LoopOp> ops;  // by total
  int64_t n_chunks = chunks(c.kernel, c.schedule), cols = c.kernel.cols;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Operand& operand = c.kernel.operands[i];
    if (!operand.is_partial) continue;
    const DType stored = stored_type(operand, i);
    totals.emplace_back(static_cast<size_t>(cols) * size_of(stored));
    const LoopOp op = reduction_into(c.kernel, i);
    ops.push_back(op);
    combine_in_order(expected[i].data(), op, operand.dtype, n_chunks, cols, stored, totals.back().data());
    sum_types.insert(sum_types.end(), {operand.dtype, stored});
    sums.push_back(expected[i]);
    sums.push_back(Buffer(totals.back().size()));
  }
  Operands second(sums, sum_types, order);
  RondoSums argument;
  for (size_t n = 0; n < totals.size(); ++n)
    argument.at[n] = {second.pointers()[2 * n],
                      second.pointers()[2 * n + 1],
                      n_chunks,
                      cols,
                      static_cast<int>(sum_types[2 * n]),
                      static_cast<int>(sum_types[2 * n + 1]),
                      combine_code(ops[n])};
  void* arguments[] = {&argument};
  // A launch may have columns for larger sums than these.
  const Grid combine = combine_grid(cols + 100, static_cast<int32_t>(totals.size()));
  ASSERT_NO_THROW(cuda_on_host::launch(files.kernel(static_cast<size_t>(c.combine)),
                                       {combine.x, combine.y, combine.threads}, arguments, order));
  for (size_t n = 0; n < totals.size(); ++n)
    EXPECT_EQ(first_difference(sum_types[2 * n + 1], totals[n], second.read(2 * n + 1)), "") << "total " << n;
  EXPECT_TRUE(second.intact());
}

}  // namespace rondo::compile::cuda

// Table launches: one kernel on every item of a table, against the interpreter on each of them.
#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

using cuda_on_host::DeviceBuffer;
using cuda_on_host::Order;

struct Item {
  int64_t rows = 0, width = 0, numel = 0;
};

// Divides each row by its largest magnitude, which is an output of its own; rows of any width.
LoopKernel by_rows(int64_t width) {
  KernelBuilder b("by_rows", 4, width, 2);
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true), scale = b.per_row(kF32, true);
  const LoopValue max = b.stage(0).reduce(LoopOp::kReduceMax, b.emit(LoopOp::kAbs, kF32, b.load(x, kF32)));
  b.stage(1).in_row().store(scale, max);
  const LoopValue factor = b.emit(LoopOp::kMul, kF32, max, b.scalar(0));
  b.in_column().store(y, b.emit(LoopOp::kDiv, kF32, b.load(x, kF32), factor));
  b.kernel.varying.assign(extents(b.kernel).size(), false);
  b.kernel.varying[0] = true;
  size_t at = 2;
  for (const Operand& operand : b.kernel.operands) {
    if (operand.col_stride == 1) b.kernel.varying[at + 3] = true;
    at += 1 + 3 * operand.axes.size();
  }
  return b.kernel;
}

// The kernel at an item's sizes: its whole rows, or its last, shorter row.
LoopKernel of_item(LoopKernel kernel, int64_t rows, int64_t width) {
  for (Operand& operand : kernel.operands)
    for (OperandAxis& axis : operand.axes) {
      axis.size = rows;
      if (operand.col_stride != 0) axis.stride = width;
    }
  kernel.rows = rows;
  kernel.cols = width;
  kernel.varying.clear();
  return kernel;
}
void interpret_item(const LoopKernel& kernel, const Schedule& s, const Item& item, std::vector<Buffer>& buffers,
                    const std::vector<double>& scalars) {
  std::vector<void*> at;
  for (Buffer& buffer : buffers) at.push_back(buffer.data());
  if (kernel.split_columns) {
    LoopKernel one = kernel;
    one.cols = item.numel;
    return interpret(one, at.data(), scalars.data(), 0, item.numel, row_order(s));
  }
  if (item.rows > 0)
    interpret(of_item(kernel, item.rows, item.width), at.data(), scalars.data(), 0, item.rows, row_order(s));
  const int64_t rest = item.numel - item.rows * item.width;
  if (rest == 0) return;
  for (size_t i = 0; i < at.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    at[i] = static_cast<std::byte*>(at[i]) +
            item.rows * (operand.col_stride == 0 ? 1 : item.width) * static_cast<int64_t>(size_of(operand.dtype));
  }
  interpret(of_item(kernel, 1, rest), at.data(), scalars.data(), 0, 1, row_order(s));
}

// Runs the table in all orders. `when`: null, or what the launch's condition reads; null: it reads `failed`.
void check(const LoopKernel& kernel, const std::vector<Item>& items, const double* when = nullptr, double equals = 0,
           bool wide = false, unsigned failed = 0) {
  Schedule s = schedule(kernel);
  s.wide = wide;
  const std::string text = absl::StrCat(std::string(kTableLayout), "\n", emit_table(kernel, s));
  SCOPED_TRACE(text);
  const cuda_on_host::KernelFiles files(kernel.name, text);
  for (Order order : cuda_on_host::kEveryOrder) {
    std::mt19937 random(11);
    std::vector<std::vector<Buffer>> expected;
    std::vector<std::vector<std::unique_ptr<DeviceBuffer>>> operands;
    std::vector<std::vector<void*>> pointers;
    std::vector<std::vector<double>> scalars;
    std::vector<RondoTableRow> rows;
    for (size_t n = 0; n < items.size(); ++n) {
      const Item& item = items[n];
      scalars.push_back({0.5 + 0.01 * static_cast<double>(n), 0.1 / static_cast<double>(n + 1)});
      expected.emplace_back();
      operands.emplace_back();
      pointers.emplace_back();
      for (size_t i = 0; i < kernel.operands.size(); ++i) {
        const Operand& operand = kernel.operands[i];
        const int64_t per_row = item.rows + (item.numel > item.rows * item.width ? 1 : 0);
        const int64_t count = kernel.split_columns || operand.col_stride != 0 ? item.numel : per_row;
        expected.back().push_back(random_buffer(operand.dtype, count, random, Samples::kTame));
        const Buffer& contents = expected.back().back();
        const size_t shift = order == Order::kRandom ? (n + i) % 4 * size_of(operand.dtype) : 0;
        operands.back().push_back(std::make_unique<DeviceBuffer>(
            contents.size(), order == Order::kForward ? DeviceBuffer::Side::kEnd : DeviceBuffer::Side::kBegin, shift));
        std::memcpy(operands.back().back()->data(), contents.data(), contents.size());
        pointers.back().push_back(operands.back().back()->data());
      }
      if (when == nullptr ? failed == 0 : *when == equals)
        interpret_item(kernel, s, item, expected.back(), scalars.back());
    }
    for (size_t n = 0; n < items.size(); ++n)
      rows.push_back({-1, items[n].rows, items[n].width, items[n].numel, scalars[n].data(), pointers[n].data()});
    const Grid g = table_grid(kernel, s, rows);
    const RondoTableRow* table = rows.data();
    int64_t n_items = std::ssize(rows);
    const unsigned* at_failed = &failed;
    void* parameters[] = {&table, &n_items, &when, &equals, &at_failed};
    ASSERT_NO_THROW(cuda_on_host::launch(files.kernel(0), {g.x, g.y, g.threads}, parameters, order));
    for (size_t n = 0; n < items.size(); ++n)
      for (size_t i = 0; i < kernel.operands.size(); ++i) {
        const Buffer& want = expected[n][i];
        Buffer got(want.size());
        std::memcpy(got.data(), operands[n][i]->data(), got.size());
        ASSERT_EQ(first_difference(kernel.operands[i].dtype, want, got), "") << "item " << n << ", operand " << i;
        EXPECT_TRUE(operands[n][i]->is_intact());
      }
  }
}

TEST(CudaTable, ItemsInALine) {
  std::vector<Item> items;
  for (int64_t numel : {1, 5, 1024, 1025, 3000, 7, 1, 2048, 333}) items.push_back({.numel = numel});
  check(momentum(), items);
  check(momentum(), items, nullptr, 0, /*wide=*/true);
  check(momentum(), {{.numel = 4097}});
}

TEST(CudaTable, ItemsByRows) {
  // Rows of other widths than the kernel's own, and last rows that are shorter.
  check(by_rows(128), {{3, 128, 384}, {3, 100, 317}, {0, 50, 49}, {1, 1, 1}, {9, 130, 9 * 130}, {2, 300, 601}});
  check(by_rows(3000), {{2, 3000, 6000}, {2, 2000, 4001}, {0, 3000, 10}});
  LoopKernel fixed = by_rows(256);
  fixed.varying.clear();
  EXPECT_GT(schedule(fixed).steps, 0);
  check(fixed, {{5, 256, 5 * 256}, {2, 256, 2 * 256 + 77}, {0, 256, 3}}, nullptr, 0, /*wide=*/true);
}

TEST(CudaTable, ACondition) {
  const double found = 1;
  check(momentum(), {{.numel = 100}, {.numel = 2000}}, &found, 1);
  check(momentum(), {{.numel = 100}, {.numel = 2000}}, &found, 0);  // leaves all as it is
  check(momentum(), {{.numel = 100}, {.numel = 2000}}, nullptr, 0, false, /*failed=*/7);
  check(momentum(), {{.numel = 100}, {.numel = 2000}}, &found, 1, false, /*failed=*/7);  // only the condition counts
}

TEST(CudaTable, GridsThatNoDeviceHas) {
  const Schedule s = schedule(momentum());
  std::vector<RondoTableRow> rows(3);
  for (RondoTableRow& row : rows) row.numel = int64_t{1} << 40;
  EXPECT_THROW(table_grid(momentum(), s, rows), Error);
  for (RondoTableRow& row : rows) row.numel = 1 << 20;
  EXPECT_EQ(table_grid(momentum(), s, rows).x, 3 * (1 << 20) / (s.threads * s.elements));
  EXPECT_EQ(rows[2].first_block, 2 * (1 << 20) / (s.threads * s.elements));
  // Eight rows a block: a shorter row at the end is one more, and none where the item ends with a whole one.
  std::vector<RondoTableRow> by_row(3);
  const Item items[] = {{8, 128, 8 * 128}, {8, 128, 8 * 128 + 1}, {7, 128, 7 * 128 + 1}};
  for (size_t i = 0; i < by_row.size(); ++i)
    by_row[i] = {0, items[i].rows, items[i].width, items[i].numel, nullptr, nullptr};
  EXPECT_EQ(table_grid(by_rows(128), schedule(by_rows(128)), by_row).x, 4);
  EXPECT_EQ(by_row[1].first_block, 1);
  EXPECT_EQ(by_row[2].first_block, 3);
}

}  // namespace
}  // namespace rondo::compile::cuda

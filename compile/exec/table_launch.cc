#include "rondo/compile/exec/table_launch.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/parallel.h"

namespace rondo::compile {

void Table::clear() {
  items.clear();
  operands.clear();
  ends.clear();
}

std::span<void*> Table::add(const TableItem& item, int n_operands) {
  items.push_back(item);
  ends.push_back(item.numel + (ends.empty() ? 0 : ends.back()));
  operands.resize(operands.size() + static_cast<size_t>(n_operands));
  return std::span(operands).last(static_cast<size_t>(n_operands));
}

void for_each_piece(const Table& table, bool by_rows, absl::FunctionRef<void(size_t, int64_t, int64_t)> piece) {
  if (table.items.empty()) return;
  parallel_for(table.ends.back(), kTableGrain, [&](int64_t begin, int64_t end) {
    size_t i = static_cast<size_t>(std::upper_bound(table.ends.begin(), table.ends.end(), begin) - table.ends.begin());
    for (; begin < end; ++i) {
      const TableItem& item = table.items[i];
      const int64_t start = table.ends[i] - item.numel, stop = std::min(end, table.ends[i]);
      if (begin < stop) {
        const int64_t unit = by_rows ? item.width : kSplitGrain, first = (begin - start) / unit * unit;
        const int64_t last = stop - start == item.numel ? item.numel : (stop - start) / unit * unit;
        if (first < last) piece(i, first, last);
      }
      begin = std::max(begin, stop);
    }
  });
}

TableLaunch::TableLaunch(LoopKernel kernel, std::vector<TableOperand> operands, bool by_rows)
    : kernel_(std::move(kernel)), operands_(std::move(operands)), by_rows_(by_rows), extents_(extents(kernel_)) {
  if (!by_rows) return;
  // In extents(): cols, chunk_rows; of each operand the stride of its columns, and {divisor, size, stride} of its axis.
  size_t next = 2;
  for (const Operand& operand : kernel_.operands) {
    ++next;
    if (!operand.axes.empty() && operand.col_stride == 1) row_stride_at_.push_back(next + 2);
    next += 3 * operand.axes.size();
  }
}

int TableLaunch::compile(Device device) {
  if (compiled()) return 0;
  // run_piece() passes the sizes of each item, down to a single element.
  KernelUse use = exact_use(kernel_);
  use[0] = {};
  for (size_t at : row_stride_at_) use[at] = {};
  const CompiledKernels made = find_or_compile({&kernel_, 1}, by_rows_ ? Sizes::kAny : Sizes::kConstant, {}, {&use, 1},
                                               target_of(device));
  code_ = made.kernels[0];
  return made.compiled;
}

void TableLaunch::run(const Table& table) const {
  for_each_piece(table, by_rows_, [&](size_t i, int64_t begin, int64_t end) {
    run_piece(table.items[i], table.operands.data() + i * operands_.size(), begin, end);
  });
}

void TableLaunch::run_piece(const TableItem& item, void* const* operands, int64_t begin, int64_t end) const {
  absl::InlinedVector<int64_t, 128> extents(extents_.begin(), extents_.end());
  if (!by_rows_) {
    extents[0] = item.numel;
    return code_.entry(operands, item.scalars, extents.data(), begin, end);
  }
  extents[0] = item.width;
  for (size_t at : row_stride_at_) extents[at] = item.width;
  code_.entry(operands, item.scalars, extents.data(), begin / item.width, end / item.width);
  const int64_t rest = end % item.width;
  if (rest == 0) return;
  // The last, shorter row is an item of its own, whose first row it is.
  absl::InlinedVector<void*, 32> moved;
  for (size_t k = 0; k < operands_.size(); ++k) {
    const int64_t index = operands_[k].per_row ? item.rows : item.rows * item.width;
    moved.push_back(static_cast<std::byte*>(operands[k]) + index * static_cast<int64_t>(size_of(operands_[k].dtype)));
  }
  extents[0] = rest;
  code_.entry(moved.data(), item.scalars, extents.data(), 0, 1);
}

}  // namespace rondo::compile

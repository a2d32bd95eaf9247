#include "rondo/compile/target/table.h"

#include <algorithm>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/runtime/base/parallel.h"

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

TableRows Table::rows() const {
  return {static_cast<int64_t>(items.size()), ends.empty() ? 0 : ends.back(), items.data(), operands.data(),
          ends.data()};
}

void for_each_piece(const TableRows& rows, bool by_rows, absl::FunctionRef<void(size_t, int64_t, int64_t)> piece) {
  if (rows.n_items == 0) return;
  parallel_for(rows.numel, kTableGrain, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::upper_bound(rows.ends, rows.ends + rows.n_items, begin) - rows.ends);
    for (; begin < end; ++i) {
      const TableItem& item = rows.items[i];
      const int64_t start = rows.ends[i] - item.numel, stop = std::min(end, rows.ends[i]);
      if (begin < stop) {
        const int64_t unit = by_rows ? item.width : kSplitGrain, first = (begin - start) / unit * unit;
        const int64_t last = stop - start == item.numel ? item.numel : (stop - start) / unit * unit;
        if (first < last) piece(i, first, last);
      }
      begin = std::max(begin, stop);
    }
  });
}

}  // namespace rondo::compile

// A table: the items of one pass over many tensors (exec/table_launch.h), for example the parameters of an optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::compile {

// With fewer elements, a second thread costs more than it saves.
inline constexpr int64_t kTableGrain = 1 << 14;

// `rows` x `width` elements and a last, shorter row.
struct TableItem {
  int64_t rows = 0, width = 0, numel = 0;  // rows: whole ones
  const double* scalars = nullptr;
};

struct Table {
  std::vector<TableItem> items;
  std::vector<void*> operands;  // of each item, as many as a kernel has
  std::vector<int64_t> ends;    // elements up to and with item i
  void clear();
  // Its operands, to be filled in.
  std::span<void*> add(const TableItem& item, int n_operands);
};

}  // namespace rondo::compile
#pragma GCC visibility pop

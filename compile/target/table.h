// A table: the items of one pass over many tensors, for example the parameters of an optimizer. A table launch runs one
// kernel on every item; its code does not depend on the number or the sizes of items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

// With fewer elements, a second thread costs more than it saves.
inline constexpr int64_t kTableGrain = 1 << 14;

// `rows` x `width` elements and a last, shorter row.
struct TableItem {
  int64_t rows = 0, width = 0, numel = 0;  // rows: whole ones
  const double* scalars = nullptr;         // device values: the kernel's scalars, in order
};

// A table as a launch sees it. Plain data; whoever made it owns the memory.
struct TableRows {
  int64_t n_items = 0;
  int64_t numel = 0;                 // of all items
  const TableItem* items = nullptr;  // n_items
  void* const* operands = nullptr;   // of each item, as many as the kernel has
  const int64_t* ends = nullptr;     // elements up to and with item i
};

// Made on the host. Its addresses are those of one device.
struct Table {
  std::vector<TableItem> items;
  std::vector<void*> operands;  // of each item, as many as a kernel has
  std::vector<int64_t> ends;    // elements up to and with item i
  void clear();
  // Its operands, to be filled in.
  std::span<void*> add(const TableItem& item, int n_operands);
  TableRows rows() const;
};

// A launch runs if a device value has this number when the launch's turn comes. No value: unless the device has failed
// (backend.h, Note [Late errors]).
struct Condition {
  const double* value = nullptr;
  double equals = 0;
};

// Calls piece(i, begin, end) in parallel for elements [begin, end) of item i; together they cover all items. Pieces
// begin and end where rows do (`by_rows`), else at multiples of kSplitGrain; the last of an item has the rest.
void for_each_piece(const TableRows& rows, bool by_rows,
                    absl::FunctionRef<void(size_t item, int64_t begin, int64_t end)> piece);

}  // namespace rondo::compile
#pragma GCC visibility pop

// A table: the items of one pass over many tensors, for example the parameters of an optimizer. A table launch runs one
// kernel on every item; the code does not depend on the number or the sizes of items.
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

// An item has `rows` whole rows of `width` elements, and a shorter last row if `numel` is larger than rows * width.
struct TableItem {
  int64_t rows = 0, width = 0, numel = 0;  // rows: whole rows
  const double* scalars = nullptr;         // device values: the kernel's scalars, in order
};

// A view of a table, for a launch. Plain data; the maker owns the memory.
struct TableRows {
  int64_t n_items = 0;
  int64_t numel = 0;                 // total over all items
  const TableItem* items = nullptr;  // n_items of them
  void* const* operands = nullptr;   // for each item, as many as the kernel has
  const int64_t* ends = nullptr;     // number of elements up to and including item i
};

// A table, made on the host. Its addresses are of one device.
struct Table {
  std::vector<TableItem> items;
  std::vector<void*> operands;  // for each item, as many as a kernel has
  std::vector<int64_t> ends;    // number of elements up to and including item i
  void clear();
  // Returns the new item's operands, for the caller to fill in.
  std::span<void*> add(const TableItem& item, int n_operands);
  TableRows rows() const;
};

// The condition of a launch. The device reads it when the launch's turn comes: the launch runs only if *value ==
// equals. If `value` is null, it runs unless the device has failed (backend.h, Note [Late errors]).
struct Condition {
  const double* value = nullptr;
  double equals = 0;
};

// Calls piece(i, begin, end) in parallel for elements [begin, end) of item i. The pieces together cover all items.
// With `by_rows`, pieces begin and end at whole rows, otherwise at multiples of kSplitGrain. The last piece of an item
// ends with the item.
void for_each_piece(const TableRows& rows, bool by_rows,
                    absl::FunctionRef<void(size_t item, int64_t begin, int64_t end)> piece);

}  // namespace rondo::compile
#pragma GCC visibility pop

// One pass over many tensors: a scalar formula is applied to every element of a list of items, each a few arrays (a
// parameter, its gradient, its states) of the same shape. All elements together are one list that parallel_for cuts
// into equal parts, so one large and ten thousand small tensors keep the threads equally busy, and each value is read
// and written once. What else wants to see the same memory (averaging, a low-precision copy, zeroing) joins the pass.
//
// The formula is a template over the scalar type. `run` applies it on float or double to strips of elements that lie in
// the first-level cache (eager); after `compile`, generated code does the same and gives the same bits. Both walk the
// same table of pointers: its length is no part of the code.
//
// Note [Items]. An item is `rows` x `width` elements and a last, shorter row. Most items have one layout: elements in a
//   line. Where rows matter (8-bit states have a scale per row, sums are kept per row, Adafactor's factors belong to a
//   row or a column) the width says where they end, and threads meet at row ends only.
// Note [Sums]. A sum is taken in f64, row by row in the order of ops/reduction_order.h (Note [Row order]), into one
//   number per row; whoever reads them adds them in order. So they do not depend on the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/dtype.h"
#include "rondo/runtime/lowering.h"

#pragma GCC visibility push(default)
namespace rondo::compile {
struct LoopKernel;
struct CompiledKernel;
}  // namespace rondo::compile

namespace rondo::optim {

inline constexpr int kMaxValues = 10, kMaxScalars = 16;
// Elements that one scale of an 8-bit array serves (block8.h), and of a row of an item with sums.
inline constexpr int64_t kBlock8 = 256, kRow = 1024;
// Elements below which a second thread costs more than it gives.
inline constexpr int64_t kForeachGrain = 1 << 14;

enum class Role : uint8_t {
  kValue,    // the formula's; written back if the formula changes it
  kSum,      // the formula's: terms of a sum. In memory: an f64 for each row
  kAverage,  // a += scalar 1 * (value 0 - a), after the formula: an exponential moving average
  kCopy,     // value 0 after the formula, in another dtype
};
enum class Format : uint8_t { kPlain, kSigned8, kUnsigned8 };
enum class Layout : uint8_t { kFull, kPerRow, kPerColumn };

struct ArraySpec {
  Role role = Role::kValue;
  DType dtype = kF32;
  Format format = Format::kPlain;
  Layout layout = Layout::kFull;
  bool zero = false;  // filled with zeros at the end, whatever the formula says
  bool operator==(const ArraySpec&) const = default;
};

// A formula, its type erased. `values`: one pointer for each array of role kValue, then one for each kSum.
struct Body {
  const char* name = "";
  int n_values = 0, n_sums = 0, n_scalars = 0;
  void (*f32)(const void* context, float* const* values, const float* scalars, int64_t n) = nullptr;
  void (*f64)(const void* context, double* const* values, const double* scalars, int64_t n) = nullptr;
  void (*build)(const void* context, LoopValue* values, const LoopValue* scalars) = nullptr;
  // Bit k: f32 and f64 never store to values[k]. To the others they may, even where nothing changes.
  uint32_t keeps = 0;
  const void* context = nullptr;  // the formula's own; lives as long as the body is used
};

struct ForeachItem {
  int64_t rows = 0, width = 0, numel = 0;  // rows: whole ones
  const double* scalars = nullptr;
};

// The items of one pass. Operands of an item: its arrays in order, then the scales of its 8-bit arrays in order.
struct ForeachTable {
  std::vector<ForeachItem> items;
  std::vector<void*> operands;
  std::vector<int64_t> ends;  // elements up to and with item i
  void clear();
  // Its operands, to be filled in.
  std::span<void*> add(const ForeachItem& item, int n_operands);
};

// One signature: a formula on arrays of certain dtypes. Computes in f64 if a plain array is f64, else in f32.
class Foreach {
 public:
  Foreach(const Body& body, std::vector<ArraySpec> arrays);
  ~Foreach();

  bool is(const Body& body, std::span<const ArraySpec> arrays) const;
  int n_operands() const { return n_operands_; }
  int n_arrays() const { return static_cast<int>(arrays_.size()); }
  // The width of an item's rows where the formula does not care about its shape. 0: the item is one row.
  int64_t row_width() const { return row_width_; }
  DType compute() const { return compute_; }
  // Bit k: array k is written.
  uint32_t written() const { return written_; }
  ForeachItem item(int64_t numel, int64_t width, const double* scalars) const;

  // From now on `run` runs generated code. Returns the number of kernels that had to be compiled: 0 or 1.
  int compile();
  bool compiled() const { return code_ != nullptr; }
  // The generated kernel, for dumps.
  const compile::LoopKernel& kernel() const { return *kernel_; }

  // Runs generated code if there is some, unless `eager`.
  void run(const ForeachTable& table, bool eager = false) const;

 private:
  void run_piece(const ForeachTable& table, size_t i, int64_t begin, int64_t end, bool eager) const;
  void run_compiled(const ForeachItem& item, void* const* operands, int64_t begin, int64_t end) const;
  template <class C> void run_eager(const ForeachItem& item, void* const* operands, int64_t begin, int64_t end) const;

  Body body_;
  std::vector<ArraySpec> arrays_;
  std::vector<int> scale_operand_;  // by array; -1: it has no scales
  int n_operands_ = 0;
  int64_t row_width_ = 0;
  bool by_rows_ = false;  // threads meet at row ends
  DType compute_ = kF32;
  uint32_t written_ = 0;
  std::unique_ptr<compile::LoopKernel> kernel_;
  std::unique_ptr<compile::CompiledKernel> code_;
  std::vector<int64_t> extents_;       // of kernel_
  std::vector<size_t> row_stride_at_;  // where in extents_ the width stands as a stride
};

// Calls fn(i, begin, end) in parallel for pieces that together cover [0, sizes[i]) of every i.
void parallel_for_each(std::span<const int64_t> sizes,
                       absl::FunctionRef<void(size_t i, int64_t begin, int64_t end)> fn);

}  // namespace rondo::optim
#pragma GCC visibility pop

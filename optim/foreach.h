// Foreach: one pass over many tensors. It applies a scalar formula to every element of a list of items. An item is a
// few arrays of the same shape: a parameter, its gradient, its states. parallel_for splits the elements of all items
// together into equal parts, so one large tensor and ten thousand small ones keep the threads equally busy. Each value
// is read and written once. Averaging, a low-precision copy and zeroing join the pass.
//
// The formula is a template over the scalar type. Eager: `run_eager` applies it to float or double, in strips that fit
// the first-level cache. After `compile`, generated code does the same and gives the same bits. Both walk the same
// table of pointers; the code does not depend on its length.
//
// Note [Launches]. All pointers are the device's. `launch` enqueues a pass, which runs in stream order. The pass gets
//   its table by value, and addresses of the scalars and of the step's Decision (step_report.h), which earlier launches
//   have written by then. Where a device's kernels are generated (BackendTable::generates), every pass is a launch of
//   generated code. On other devices, a pass that is not compiled is host code on the stream.
// Note [Items]. An item is `rows` x `width` elements and a last, shorter row. Most items are a single line of elements.
//   Rows matter to 8-bit states (a scale for each row), to sums (kept for each row) and to Adafactor's factors (of rows
//   and columns). Then `width` says where rows end, and work is split between threads at row ends only.
// Note [Sums]. A sum is taken in f64, row by row in the order of ops/reduction_order.h (Note [Row order]), into one
//   number for each row. The reader adds these in order. So the result does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/target/table.h"
#include "rondo/optim/foreach_body.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo::compile {
struct LoopKernel;
class TableLaunch;
}  // namespace rondo::compile

namespace rondo::optim {

// With fewer elements, a second thread costs more than it saves.
inline constexpr int64_t kForeachGrain = compile::kTableGrain;

// The items of one pass. Operands of an item: its arrays in order, then the scales of its 8-bit arrays in order.
using ForeachItem = compile::TableItem;
using ForeachTable = compile::Table;

// One signature: a formula on arrays of certain dtypes. Computes in f64 if a plain array is f64 or the body is wide,
// else in f32.
class Foreach {
 public:
  Foreach(const Body& body, std::vector<ArraySpec> arrays);
  ~Foreach();

  bool is(const Body& body, std::span<const ArraySpec> arrays) const;
  int n_operands() const { return n_operands_; }
  int n_arrays() const { return static_cast<int>(arrays_.size()); }
  // Returns the width of an item's rows for formulas that do not depend on the shape; 0 if the item is one row.
  int64_t row_width() const { return row_width_; }
  DType compute() const { return compute_; }
  // Returns a bit mask: bit k is set if the pass writes array k.
  uint32_t written() const { return written_; }
  ForeachItem item(int64_t numel, int64_t width, const double* scalars) const;

  // Makes the pass run generated code from now on. Returns the number of kernels that had to be compiled: 0 or 1. If
  // the device's kernels are generated, this is called before the first launch.
  int compile(Device device = kCPU);
  bool compiled() const;
  // Returns the loop kernel that code is generated from, for dumps.
  const compile::LoopKernel& kernel() const;

  // Enqueues the generated code.
  void run_compiled(const ForeachTable& table, const compile::Condition& when) const;
  // Does the part of run_compiled() that may fail. Returns a function that does the rest; see
  // compile::TableLaunch::ready.
  absl::AnyInvocable<void()> ready(const ForeachTable& table, const compile::Condition& when) const;
  // Runs the host's own kernel at once. launch() calls it in stream order.
  void run_eager(const ForeachTable& table) const;
  // Returns the pass that replaces this one in a skipped step: it only writes fresh copies and zeroes arrays, and takes
  // the same table. Null if a skipped step has nothing to do.
  const std::shared_ptr<Foreach>& if_skipped() const { return if_skipped_; }

 private:
  struct Eager;  // the host's own kernel

  Body body_;
  std::vector<ArraySpec> arrays_;
  std::vector<int> scale_operand_;  // by array: the operand that has its scales; -1: none
  int n_operands_ = 0;
  int64_t row_width_ = 0;
  bool by_rows_ = false;  // work is split between threads at row ends only
  DType compute_ = kF32;
  uint32_t written_ = 0;
  std::shared_ptr<compile::TableLaunch> launch_;  // the generated code, once the pass is compiled
  std::shared_ptr<Foreach> if_skipped_;
};

// Enqueues a pass, which runs if `when` holds at its turn. `eager`: runs the host code even if the pass has generated
// code.
void launch(Device device, const std::shared_ptr<const Foreach>& pass, const ForeachTable& table,
            const compile::Condition& when = {}, bool eager = false);
// Returns the pass of a body without context, for a device. The process has one such pass for each signature, for work
// that belongs to no optimizer. It is compiled where that device's kernels are generated. Thread safe.
std::shared_ptr<Foreach> shared_pass(Device device, const Body& body, std::vector<ArraySpec> arrays);

}  // namespace rondo::optim
#pragma GCC visibility pop

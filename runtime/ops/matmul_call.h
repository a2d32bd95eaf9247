// Calls of matmul and linear as matrix products: what the libraries of all devices have in common. An op's call becomes
// a plan of products of one shape; a device runs each through its library (cpu/product.h, cuda/product.h).
// Thread safe: free functions and plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "rondo/runtime/op/op.h"

namespace rondo {

// How the matrices of one operand lie, in elements. One of `row` and `column` is 1.
struct MatrixStrides {
  constexpr MatrixStrides(int64_t row, int64_t column, int64_t batch = 0) : row(row), column(column), batch(batch) {}
  int64_t row, column;
  int64_t batch;  // from one matrix to the next; 0: all products share one
  friend bool operator==(const MatrixStrides&, const MatrixStrides&) = default;
  template <class H> friend H AbslHashValue(H h, const MatrixStrides& s) {
    return H::combine(std::move(h), s.row, s.column, s.batch);
  }
};

// One (batched) product C = A B (+ bias), then its epilogues.
//
// Sizes and layouts come together: a library that is given a stride that nobody set writes in wrong places. Strides of
// dimensions of size 1 become those of a dense matrix, so that products which differ in them only are one.
struct MatmulCall {
  // A (m, k) and B (k, n) may be transposed; rows of C (m, n) are dense. Throws InternalError for other strides.
  MatmulCall(DType dtype, int64_t m, int64_t n, int64_t k, MatrixStrides a, MatrixStrides b, MatrixStrides c,
             int64_t batch = 1);
  DType dtype;        // f32, bf16, f16 or f64, all operands alike
  bool wide = false;  // but C, and what is added to it, is f32 and the others are 16-bit: nothing is rounded
  int64_t batch, m, n, k;
  MatrixStrides a, b, c;
  bool bias = false;                                   // a row of n, added to every row
  std::array<Epilogue, kMaxEpilogues> epilogues = {};  // those that the device's library can do
  // By epilogue: the operand is C itself, as it was before.
  std::array<bool, kMaxEpilogues> in_place = {};
  DType result_dtype() const { return wide ? kF32 : dtype; }
  // The same product of dense matrices of another dtype, without bias and epilogues.
  MatmulCall with_dense_operands(DType dtype) const;
  friend bool operator==(const MatmulCall&, const MatmulCall&) = default;
  template <class H> friend H AbslHashValue(H h, const MatmulCall& c) {
    return H::combine(std::move(h), c.dtype, c.wide, c.batch, c.m, c.n, c.k, c.a, c.b, c.c, c.bias, c.epilogues,
                      c.in_place);
  }
};

struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  std::array<const void*, kMaxEpilogues> added = {};  // by epilogue, laid out as C
  void* c = nullptr;
};

// A call of an op: one product for all pieces, at offsets in elements.
struct MatmulPlan {
  std::optional<MatmulCall> call;  // none if operands are copied first
  struct Piece {
    int64_t a, b, c;
  };
  absl::InlinedVector<Piece, 1> pieces;
  // No library reads these operands as they lie.
  bool copy_a = false, copy_b = false;
  bool readable() const { return !copy_a && !copy_b; }

  // The operands of a piece. `base`: those of the call.
  MatmulOperands at(const MatmulOperands& base, const Piece& piece) const;
};

// Read shapes and strides, no data. The inner dimension may not be 0.
using MakeMatmulPlan = MatmulPlan (*)(const KernelContext&);
MatmulPlan plan_matmul(const KernelContext& context);
MatmulPlan plan_linear(const KernelContext& context);

// Runs a call of matmul or linear: calls run(call, operands) for each product, in order. Operands that no library reads
// as they lie are copied first. Without an inner dimension there is no product: the result is the bias, or 0.
void run_products(const KernelContext& context, MakeMatmulPlan make_plan,
                  absl::FunctionRef<void(const MatmulCall&, const MatmulOperands&)> run);

// True if the call is products, whose operands lie as a library reads them.
bool is_preparable(const KernelContext& context);

// A prepared call. `Product`: one product of a device, with run(operands).
template <class Product> class PreparedProducts final : public PreparedKernel {
 public:
  PreparedProducts(MatmulPlan plan, std::shared_ptr<const Product> product, size_t inputs)
      : plan_(std::move(plan)), product_(std::move(product)), inputs_(inputs) {}
  void run(std::span<std::byte* const> addresses) const override {
    MatmulOperands operands{.a = addresses[0], .b = addresses[1], .bias = inputs_ > 2 ? addresses[2] : nullptr};
    size_t next = inputs_;
    for (size_t i = 0; i < operands.added.size(); ++i)
      if (plan_.call->epilogues[i] == Epilogue::kAdd) operands.added[i] = addresses[next++];
    operands.c = addresses[next];
    for (const MatmulPlan::Piece& piece : plan_.pieces) product_->run(plan_.at(operands, piece));
  }

 private:
  MatmulPlan plan_;
  std::shared_ptr<const Product> product_;
  size_t inputs_;
};

}  // namespace rondo

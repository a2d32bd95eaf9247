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

// The strides of the matrices of one operand, in elements. One of `row` and `column` is 1.
struct MatrixStrides {
  constexpr MatrixStrides(int64_t row, int64_t column, int64_t batch = 0) : row(row), column(column), batch(batch) {}
  int64_t row, column;
  int64_t batch;  // from one matrix to the next; 0: all products use the same matrix
  friend bool operator==(const MatrixStrides&, const MatrixStrides&) = default;
  template <class H> friend H AbslHashValue(H h, const MatrixStrides& s) {
    return H::combine(std::move(h), s.row, s.column, s.batch);
  }
};

// One (batched) product C = A B (+ bias), then its epilogues.
//
// The constructor takes sizes and strides together, because with a stride that nobody set a library would write to
// wrong addresses. Strides of dimensions of size 1 become those of a dense matrix, so that calls which differ only in
// these strides are equal.
struct MatmulCall {
  // A (m, k) and B (k, n) may be transposed; rows of C (m, n) are dense. Throws InternalError for other strides.
  MatmulCall(DType dtype, int64_t m, int64_t n, int64_t k, MatrixStrides a, MatrixStrides b, MatrixStrides c,
             int64_t batch = 1);
  DType dtype;        // f32, bf16, f16 or f64, all operands alike
  bool wide = false;  // C and what is added to it are f32, the other operands 16-bit: nothing is rounded
  int64_t batch, m, n, k;
  MatrixStrides a, b, c;
  bool bias = false;                                   // a row of n, added to every row
  std::array<Epilogue, kMaxEpilogues> epilogues = {};  // those that the device's library applies
  // For each epilogue: true if its operand is the memory of C with its values from before the product.
  std::array<bool, kMaxEpilogues> in_place = {};
  DType result_dtype() const { return wide ? kF32 : dtype; }
  // Returns the same product of dense matrices of another dtype, without bias and epilogues.
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

// The products of a call of an op. All have the same shape; each piece has its own offsets, in elements.
struct MatmulPlan {
  std::optional<MatmulCall> call;  // none if operands are copied first
  struct Piece {
    int64_t a, b, c;
  };
  absl::InlinedVector<Piece, 1> pieces;
  // True for an operand whose strides no library can read: it is copied first.
  bool copy_a = false, copy_b = false;
  bool readable() const { return !copy_a && !copy_b; }

  // Returns the operands of a piece. `base`: the operands of the whole call.
  MatmulOperands at(const MatmulOperands& base, const Piece& piece) const;
};

// Return the plan of a call. They read shapes and strides, but no data. REQUIRES: the inner dimension is not 0.
using MakeMatmulPlan = MatmulPlan (*)(const KernelContext&);
MatmulPlan plan_matmul(const KernelContext& context);
MatmulPlan plan_linear(const KernelContext& context);

// Runs a call of matmul or linear: calls run(call, operands) for each product, in order. Operands whose strides no
// library can read are copied first. If the inner dimension is 0, there is no product: the result is the bias, or 0.
void run_products(const KernelContext& context, MakeMatmulPlan make_plan,
                  absl::FunctionRef<void(const MatmulCall&, const MatmulOperands&)> run);

// True if the call consists of products whose operands a library can read without a copy.
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

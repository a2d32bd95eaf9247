// Calls of matmul and linear as matrix products: what the libraries of all devices have in common. An op's call becomes
// a plan of products of one shape; a device runs each through its library (cpu/product.h, cuda/product.h).
// Thread safe: free functions and plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "rondo/runtime/op.h"

namespace rondo {

// One (batched) product C = A B (+ bias), then its epilogues. Strides are in elements; an operand must have one of its
// last two strides equal to 1 (any size-1 dimension counts), C must be dense in its last dimension.
struct MatmulCall {
  DType dtype = kF32;  // f32, bf16, f16 or f64, all operands alike
  bool wide = false;   // but C, and what is added to it, is f32 and the others are 16-bit: nothing is rounded
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t a_strides[3] = {};  // batch (0: shared), row, column
  int64_t b_strides[3] = {};
  int64_t c_strides[3] = {};                           // column is 1
  bool bias = false;                                   // a row of n, added to every row
  std::array<Epilogue, kMaxEpilogues> epilogues = {};  // those that the device's library can do
  // By epilogue: the operand is C itself, as it was before.
  std::array<bool, kMaxEpilogues> in_place = {};
  DType result_dtype() const { return wide ? kF32 : dtype; }
  friend bool operator==(const MatmulCall&, const MatmulCall&) = default;
  template <class H> friend H AbslHashValue(H h, const MatmulCall& c) {
    return H::combine(std::move(h), c.dtype, c.wide, c.batch, c.m, c.n, c.k, c.a_strides[0], c.a_strides[1],
                      c.a_strides[2], c.b_strides[0], c.b_strides[1], c.b_strides[2], c.c_strides[0], c.c_strides[1],
                      c.bias, c.epilogues, c.in_place);
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
  MatmulCall call;
  struct Piece {
    int64_t a, b, c;
  };
  absl::InlinedVector<Piece, 1> pieces;
  // No library reads these operands as they lie. Nothing else is planned then.
  bool copy_a = false, copy_b = false;
  bool readable() const { return !copy_a && !copy_b; }

  // The operands of a piece. `base`: those of the call.
  MatmulOperands at(const MatmulOperands& base, const Piece& piece) const;
};

// Strides of one matrix operand (row, column, into [1] and [2]). Dimensions of size 1 get those of a dense matrix.
void set_matrix_strides(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t (&out)[3]);

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
      if (plan_.call.epilogues[i] == Epilogue::kAdd) operands.added[i] = addresses[next++];
    operands.c = addresses[next];
    for (const MatmulPlan::Piece& piece : plan_.pieces) product_->run(plan_.at(operands, piece));
  }

 private:
  MatmulPlan plan_;
  std::shared_ptr<const Product> product_;
  size_t inputs_;
};

}  // namespace rondo

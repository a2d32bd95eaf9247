// One matrix product with everything but the addresses. Thread safe.
//
// oneDNN's: the product is cut into slices, parts of the batch, rows and columns of C. Each slice is one primitive that
// runs on one thread (onednn.h), and the slices run in the pool (parallel.h). oneDNN orders the sums of a primitive by
// its shape, so slices depend on the product's shape, dtype and layout alone: results do not depend on the number of
// threads.
//
// Our own: of a few rows (thin_product.h), and where the library has no kernel or a slow one (tiled_product.h). Which
// is one decision, by shape, dtype and layout: Note [Whose product].
#pragma once

#include <memory>
#include <vector>

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

class Product {
 public:
  // REQUIRES: f32, bf16 or f16. Making one of the library's for a new shape takes 160 us or more, so the most recent
  // 1024 are kept, over all threads. Variants are the same product in other slices, for a tuner to choose from: 1 cuts
  // rows, 2 cuts columns, 3 cuts nothing and runs on one thread. Null: no such variant, or the slices are those of
  // variant 0. Products of our own have no variants.
  static std::shared_ptr<const Product> get(const MatmulCall& call, int variant = 0);
  // Forgets the products that are kept. Those in use live on.
  static void trim();

  ~Product();
  void run(const MatmulOperands& operands) const;
  // For tests. 0: a product of our own.
  size_t slices() const { return slices_.size(); }

 private:
  class Primitive;
  struct Grid;
  struct Slice {
    const Primitive* primitive;
    int64_t a, b, bias, c;  // where its operands start, in elements
  };
  using Own = void(const MatmulCall& call, const MatmulOperands& operands);
  static Own* own_kernel(const MatmulCall& call);  // null: the library's
  Product(const MatmulCall& call, Own* own);
  Product(const MatmulCall& call, const Grid& grid);
  static Grid grid_of(const MatmulCall& call, int variant);

  MatmulCall call_;
  bool adds_a_copy_ = false;  // Note [Sums of vectors]
  Own* own_ = nullptr;
  std::vector<std::unique_ptr<const Primitive>> primitives_;  // one for each shape of a slice: one to four
  std::vector<Slice> slices_;
};

}  // namespace rondo::cpu

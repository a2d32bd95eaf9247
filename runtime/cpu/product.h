// A matrix product, prepared except for the addresses of its operands. Thread safe.
//
// With oneDNN: the product is cut into slices, which are parts of the batch, rows and columns of C. Each slice is one
// primitive that runs on one thread (onednn.h), and the slices run in the pool (parallel.h). oneDNN orders the sums of
// a primitive by its shape. So slices depend only on the product's shape, dtype and layout, and results do not depend
// on the number of threads.
//
// With Rondo's own kernels: products of a few rows (thin_product.h), and products for which oneDNN has no kernel or a
// slow one (tiled_product.h). The choice depends only on shape, dtype and layout: Note [Whose product].
#pragma once

#include <memory>
#include <vector>

#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cpu {

class Product {
 public:
  // REQUIRES: f32, bf16 or f16. Making a product with oneDNN for a new shape takes 160 us or more, so all threads share
  // a cache of the 1024 most recent ones. Variants are the same product with other slices, from which a tuner chooses:
  // 1 cuts rows, 2 cuts columns, 3 cuts nothing and runs on one thread. Returns null if there is no such variant, or if
  // a lower variant has the same slices. Rondo's own kernels have no variants.
  static std::shared_ptr<const Product> get(const MatmulCall& call, int variant = 0);
  // Empties the cache. Products in use live on.
  static void trim();

  ~Product();
  void run(const MatmulOperands& operands) const;
  // Returns the number of slices, for tests; 0 if one of Rondo's own kernels runs the product.
  size_t slices() const { return slices_.size(); }

 private:
  class Primitive;
  struct Grid;
  struct Slice {
    const Primitive* primitive;
    int64_t a, b, bias, c;  // offsets of its operands, in elements
  };
  using Own = void(const MatmulCall& call, const MatmulOperands& operands);
  static Own* own_kernel(const MatmulCall& call);  // null if oneDNN runs the product
  Product(const MatmulCall& call, Own* own);
  Product(const MatmulCall& call, const Grid& grid);
  static Grid grid_of(const MatmulCall& call, int variant);

  MatmulCall call_;
  bool adds_a_copy_ = false;  // Note [Sums of vectors]
  Own* own_ = nullptr;
  std::vector<std::unique_ptr<const Primitive>> primitives_;  // one for each different shape of a slice
  std::vector<Slice> slices_;
};

}  // namespace rondo::cpu

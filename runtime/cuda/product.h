// Product: one matrix product through cuBLASLt, with all its parameters except the addresses. Thread safe.
//
// Note [Row-major]. cuBLASLt stores matrices by columns, and its epilogues support only that. Our row-major C (m, n)
//   has the same memory as its column-major D (n, m), so cuBLASLt computes D = B' A': its A is our B and its B our A,
//   each as it lies in memory. A row-major operand of ours is already the transpose that cuBLASLt needs. A column-major
//   operand is not, so only this one gets cuBLASLt's transpose flag.
// Note [Algorithms]. cuBLASLt's heuristic is asked once for each product and alignment of its addresses, and its first
//   answer is kept. So the order of the sums depends only on the product, the alignment and the device. Splits of K
//   must add up in the compute type, so that sums are f32 for 16-bit types, too.
// Note [Product workspace]. Each run takes the workspace of its algorithm from the allocator, in stream order, and
//   gives it back at once: the next product gets the same block. The workspace cannot be part of a plan, because plans
//   are made without a device, and only the device's heuristic knows the size.
// Note [Products without an algorithm]. The heuristic may have no algorithm for a product (cublasLt.h says so of
//   cublasLtMatmulAlgoGetHeuristic): for example for an epilogue in some dtype, or for operands at odd addresses or
//   strides. Also, cublasLtMatmul may refuse an algorithm of the heuristic. Then the first of these ways that works is
//   taken: the product without epilogues, which a kernel applies to sums that are not rounded yet; the product of dense
//   copies of the operands; a kernel of our own, which takes every product. The way is kept for the product, as an
//   algorithm is. Each such product is slower than the library, so it is counted (product_report). The compiler's log
//   (perf_hints) and compile::explain() name it, with the op and its line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/ops/matmul_call.h"

namespace rondo::cuda {

class DeviceState;

// How a product runs: Note [Products without an algorithm].
enum class ProductWay : uint8_t { kLibrary, kApart, kCopied, kKernel };

// Counts, in this process, products that the library has no algorithm for, by the way that they take instead.
struct ProductReport {
  int64_t apart = 0, copied = 0, by_kernel = 0;
  int64_t runs = 0;               // of all these products together
  std::vector<std::string> last;  // the latest 64, in words
};
ProductReport product_report();

class Product {
 public:
  // Returns the product of a call of any floating dtype. The 1024 most recent products are kept, for all threads
  // together. `variant`: another algorithm for the same product, for a tuner to choose from. Returns null if there is
  // no such variant.
  // The call may have the epilogues that product_absorbs() accepts. A bias has the result's dtype.
  static std::shared_ptr<const Product> get(int device, const MatmulCall& call, int variant = 0);
  // Forgets the products that are kept. Those in use live on.
  static void trim();

  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // Enqueues C = alpha A B and the call's epilogues on the device's compute stream. Throws DeviceError,
  // OutOfMemoryError.
  void run(const MatmulOperands& operands, double alpha = 1) const;

 private:
  // How the product runs if its addresses have the alignments of `key`: by an algorithm of the heuristic, or in another
  // way. `part`: the product that the library computes in that other way; null: it computes none.
  struct Choice {
    uint32_t key;
    LtAlgo algo = {};
    size_t workspace = 0;
    ProductWay way = ProductWay::kLibrary;
    std::shared_ptr<const Product> part = nullptr;
  };
  Product(DeviceState& state, const MatmulCall& call, int variant);
  LtLayout layout(LtType type, int64_t rows, int64_t columns, int64_t ld, int64_t batch_stride) const;
  void check(LtStatus status, const char* what) const;
  std::string describe() const;  // "a product of [4, 8] x [8, 16] in bf16 + bias"
  bool has_added() const { return call_.epilogues[0] == Epilogue::kAdd; }
  uint32_t key_of(const MatmulOperands& operands) const;
  LtDesc desc_of(uint32_t key) const;
  void set_bias(uint32_t key, const void* bias) const;
  // Returns null if cuBLASLt has at most `variant_` algorithms. REQUIRES, here, in choose_otherwise() and in
  // run_by_library(): the lock is held.
  const Choice* choose(DeviceState& state, uint32_t key) const;
  // Replaces the choice for the key by another way. `why`: the library's reason.
  const Choice& choose_otherwise(DeviceState& state, uint32_t key, const char* why) const;
  // Returns a product that cuBLASLt has an algorithm for, with A and B aligned as the key says; null: it has none.
  static std::shared_ptr<const Product> by_library(DeviceState& state, const MatmulCall& call, uint32_t key);
  // Returns false if cublasLtMatmul refuses the algorithm. Then nothing was enqueued.
  bool run_by_library(DeviceState& state, const Choice& choice, const MatmulOperands& operands, double alpha) const;
  void run_otherwise(const Choice& choice, const MatmulOperands& operands, double alpha) const;
  void destroy() noexcept;

  const CublasLt library_;  // a copy: the product may outlive the table of functions
  const int device_;
  const MatmulCall call_;
  const int variant_;
  uint64_t most_workspace_ = 0;
  LtDesc desc_ = nullptr, fast_desc_ = nullptr;  // fast: for f32 with TF32
  LtLayout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  // Guards the choices, and the descriptors, because each run writes the address of its bias into them.
  mutable std::mutex mutex_;
  mutable std::vector<Choice> choices_;
};

}  // namespace rondo::cuda

// One matrix product as a oneDNN primitive, with everything but the addresses. Thread safe.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "rondo/runtime/cpu/matmul.h"

namespace rondo::cpu {

class Product {
 public:
  // f32 and bf16. Making one for a new shape takes 160 us, so they are kept: the most recent 1024, over all threads.
  // Variants, all the same sum in another order: 1 has B packed into the library's own layout first, 2 both operands; 3
  // uses one thread. Null: no such variant, or it is no other than variant 0.
  static std::shared_ptr<const Product> get(const MatmulCall& call, int variant = 0);

  ~Product();
  void run(const MatmulOperands& operands) const;

 private:
  struct Plan;
  struct Arguments;  // of one run; leased, since two threads may run at once
  Product(const MatmulCall& call, int variant);
  std::unique_ptr<Arguments> lease() const;

  std::unique_ptr<const Plan> plan_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Arguments>> spare_;
};

}  // namespace rondo::cpu

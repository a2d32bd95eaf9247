// Buckets: where gradients lie side by side to be averaged in one collective.
//
// Note [Bucket order]. The plan region -> gradients -> offsets follows from the model and the options alone, never from
// the order in which gradients become ready: so every rank issues the same collectives in the same order. Its text is
// compared across ranks before anything is sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/compile/seam.h"
#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

struct BucketOptions {
  int64_t min_bytes = 256 << 10;  // smaller regions share a bucket with the next: a collective costs 0.1 to 0.2 ms
  int64_t max_bytes = 64 << 20;   // larger regions take several, so that the first is on its way early
};

struct BucketSlot {
  std::string name;  // of the parameter
  Tensor parameter;
  int64_t offset;  // elements from the start of the bucket
};

struct Bucket {
  size_t seam;  // of the plan of seams: complete when this one is
  DType dtype;  // of its elements: f32, also for bf16 and f16 parameters, or f64
  int64_t numel;
  std::vector<BucketSlot> slots;
};

struct BucketPlan {
  std::vector<Bucket> buckets;  // in the order of their collectives
  std::string text;             // one line per slot: what must be equal on every rank
};

// Buckets of one dtype each, in the order of the seams. Every parameter of the seams stands in exactly one.
BucketPlan plan_buckets(const nn::ModuleBase& model, const std::vector<compile::Seam>& seams,
                        const BucketOptions& options);

}  // namespace rondo::dist
#pragma GCC visibility pop

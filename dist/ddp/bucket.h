// Buckets: where gradients lie side by side to be averaged in one collective.
//
// Note [Bucket order]. Buckets are sent in the order in which gradients become final. DistributedDataParallel observes
// that order in its first step, uses rank 0's order for all ranks, and keeps it. So every rank issues the same
// collectives in the same order, even if in a later step another gradient becomes ready first. The text of the plan is
// compared across ranks, before the first step and again when the order is known. Parameters of one block are in
// reverse model order, because backward makes their gradients in that order. Parameters outside the blocks are in model
// order if one bucket holds them all, and in the observed order otherwise. So buckets are the same whether the model
// runs eagerly, in regions or as one region. This matters because a sum over three ranks or more depends on the
// element's place in the bucket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/module.h"
#include "rondo/optim/seam.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// What finish() does with the buffers that each rank's forward writes, such as BatchNorm's running statistics.
enum class BufferSync : uint8_t {
  kBroadcast,  // every rank gets rank 0's values, as in PyTorch: all ranks evaluate with the values that rank 0 saves
  // Every rank gets the mean of the values over the ranks. Integers, such as a count of batches, are not averaged:
  // every rank gets rank 0's. If a rank had no batch in the step, its values from before the step enter the mean.
  kAverage,
  kLeave,  // each rank keeps its own values. Evaluations then differ between ranks, and after a resume
};

// DistributedDataParallel throws Error unless 0 <= min_bytes <= max_bytes and max_bytes > 0.
struct BucketOptions {
  int64_t min_bytes = 256 << 10;  // smaller parts of the model share a bucket with the next: a collective costs 0.1 ms
  int64_t max_bytes = 64 << 20;   // larger parts and parameters are split, so that their first piece is sent early
  // The dtype in which gradients travel. Unset: f32, and f64 for f64 parameters. kBF16 or kF16: half the bytes;
  // gradients of f64 parameters still travel in f64. With these two, averages are rounded to 16 bits: once in host
  // memory, where sums are made in f32. NCCL rounds after each addition, so at most (ranks - 1) times. On a device, a
  // bf16 parameter whose gradients travel in bf16 needs no conversion. Must be equal on all ranks.
  std::optional<DType> dtype = {};
  // What a step does if a parameter got no gradient on this rank (a branch that was not taken). false: an error on
  // every rank, because it is usually a mistake. true: zeros are sent for the parameter, and unused_parameters() lists
  // it. If some rank has a gradient, the parameter gets the average on every rank; if none has one, it gets no
  // gradient. Its bucket and all later buckets are sent in finish(), not during backward. Must be equal on all ranks.
  bool allow_unused = false;
  // Must be equal on all ranks.
  BufferSync buffers = BufferSync::kBroadcast;
};

// Which object takes the average of a parameter's gradient. Parameters of two takers are never in one bucket.
struct GradientTaker {
  size_t index = 0;          // 0: the parameter's .grad; i > 0: the i-th GradientShards of DistributedDataParallel
  bool needs_whole = false;  // one rank gets all elements of the parameter
};
using TakerOf = absl::FunctionRef<GradientTaker(const Tensor& parameter)>;
inline GradientTaker taken_by_grad(const Tensor& /*parameter*/) { return {}; }

// A parameter in a bucket, or a piece of a parameter that is larger than a bucket.
struct BucketSlot {
  std::string name;  // the parameter's name
  Tensor parameter;
  int64_t begin;            // first element of the piece in the parameter
  int64_t numel;            // the number of elements in the piece
  int64_t offset;           // where the piece begins in the bucket, in elements
  bool in_one_row = false;  // as GradientTaker::needs_whole
  bool whole() const { return numel == parameter.numel(); }
  bool last_piece() const { return begin + numel == parameter.numel(); }
};

struct Bucket {
  size_t seam;   // index into `seams` of plan_buckets(): the part of the model that completes the bucket
  DType dtype;   // of the bucket's elements: f32 (also for bf16 and f16 parameters), f64, or BucketOptions::dtype
  size_t taker;  // GradientTaker::index
  int64_t numel;
  std::vector<BucketSlot> slots;
};

struct BucketPlan {
  std::vector<Bucket> buckets;  // in the order in which they are sent
  std::string text;             // one line for each slot; the ranks compare it, because their plans must be equal
};

// Makes buckets, each of one dtype, in the order of `seams`. `seams`: the parts of the model, from optim::plan_seams()
// or in the learned order. Each parameter is in exactly one bucket; the pieces of a large parameter are in consecutive
// buckets.
BucketPlan plan_buckets(const nn::ModuleBase& model, const std::vector<optim::Seam>& seams,
                        const BucketOptions& options, TakerOf taker_of = taken_by_grad);

// Returns the dtype in which the gradient of a parameter of dtype `parameter` travels.
DType travels_as(DType parameter, const BucketOptions& options);

// Returns one line for each frozen parameter and each buffer. Frozen parameters and buffers are broadcast once, at the
// start.
std::string describe_state(const nn::ModuleBase& model);

}  // namespace rondo::dist
#pragma GCC visibility pop

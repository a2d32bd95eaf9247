// BucketReducer: reduces one bucket. It owns the bucket's memory, receives gradients, and returns averages. Only
// DistributedDataParallel uses it.
//
// Note [Born in the bucket]. A region's backward writes a gradient directly into its place in the bucket
// (autograd::GradientHome), so sending it costs no launch. Norms outside of the regions do the same. The gradients of
// other eager ops are copied into the bucket: one copy for each parameter, whatever the depth of the model. On a
// device, a bucket with one slot has no memory of its own: the gradient, or the bucket's piece of it, is reduced in the
// memory where backward made it. Large parameters have such buckets. A gradient that shares its memory is copied.
//
// Note [Tags]. In host memory, two elements at the end of a bucket prove that it was reduced, in this step, with the
// same bucket of every rank: a hash of the step and the bucket, and rank + 1. Their averages are known beforehand, so a
// collective that silently did nothing, or that was combined with another bucket's collective, is detected. Both sums
// are exact whole numbers. A third element is 1 on a rank where something went wrong in this step, and 0 on the others.
// If its average is not 0, no rank uses this bucket or a later one. With allow_unused, one more element follows for
// each slot: 1 on a rank that has the slot's gradient. Its average is above 0 if some rank has one. On a device,
// reading a tag would make the host wait. So the ranks compare the collectives that they have issued, and report
// errors, in one exchange between hosts at the end of a step (ProcessGroup::check_sequence). Averages are used only
// after that exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/gradient_shards.h"
#include "rondo/dist/groups/process_group.h"

namespace rondo::dist {

class BucketReducer {
 public:
  // `parameters`: for each slot, its parameter's index in the caller's list. `bucket` must outlive this object. With a
  // layout, the bucket is reduced by reduce_scatter: Note [Shards] in gradient_shards.h.
  BucketReducer(const Bucket& bucket, std::vector<size_t> parameters, Device device, bool allow_unused,
                std::optional<ShardLayout> layout = std::nullopt, int world_size = 1);

  const Bucket& bucket() const { return *bucket_; }
  const std::vector<size_t>& parameters() const { return parameters_; }
  // Returns the place of a whole parameter's gradient in the bucket, if the gradient can be made there; else undefined.
  Tensor home(size_t slot) const;

  // Puts the whole parameter's gradient, or the slot's piece of it, into the bucket. If `gradient` is undefined, the
  // slot is sent as zeros. `only_holder`: no other tensor shares the gradient's memory, so it may be overwritten with
  // the average.
  void put(size_t slot, const Tensor& gradient, bool only_holder);
  bool has_gradient(size_t slot) const { return filled_[slot]; }
  // True if the average lies in the memory of the gradient that put() received.
  bool is_adopted() const { return adopted_; }
  // Returns the average of a slot's elements: in the parameter's shape, or one-dimensional for a piece. Releases an
  // adopted gradient, so call this once.
  Tensor take_average(size_t slot) { return adopted_ ? std::exchange(operand_, Tensor()) : views_[slot]; }
  // Issues the bucket's collective: an all_reduce, or with a layout a reduce_scatter.
  void reduce(ProcessGroup& group, const std::string& name);
  const std::optional<ShardLayout>& layout() const { return layout_; }
  // With a layout: sent() returns the rows that are sent, averages() this rank's row of averages (valid once `work` is
  // done).
  const Tensor& sent() const { return flat_; }
  const Tensor& averages() const { return averages_; }

  // See Note [Tags]. Only for buckets in host memory.
  struct Tag {
    int64_t step;
    size_t bucket;
    int rank;
    bool troubled;
  };
  void write_tag(const Tag& tag);
  enum class TagStatus : uint8_t { kValid, kNotReduced, kRankFailed };
  TagStatus read_tag(int64_t step, size_t bucket, int world_size) const;
  // With allow_unused: returns, for each slot, whether some rank has a gradient.
  std::vector<bool> read_flags() const;

  std::vector<bool> has_average;  // with a layout, by slot: whether the parameter gets an average in this step
  bool is_taken = false;          // with a layout: GradientShards has received the averages of this step
  size_t pending = 0;             // slots whose gradient has not arrived in this step
  std::vector<bool> any_rank_has_gradient;  // by slot; only on a device with allow_unused
  Work work;

 private:
  void allocate();
  int64_t tag_elements() const;
  void copy_spans(size_t slot, const Tensor& gradient);

  const Bucket* bucket_;
  std::vector<size_t> parameters_;
  Device device_;
  bool allow_unused_;
  std::optional<ShardLayout> layout_;
  int64_t rows_, row_;  // the number of rows of flat_ (1 without a layout), and the elements of a row without its tag
  bool may_adopt_;
  bool adopted_ = false;       // in this step, operand_ is the gradient that put() received, or a piece of it
  Tensor flat_;                // rows of the bucket's elements, each with the tag at its end
  Tensor averages_;            // without a layout: flat_ itself; with one: this rank's row
  Tensor operand_;             // an adopted gradient, or the bucket's piece of it
  std::vector<Tensor> views_;  // by slot: its elements in flat_ or averages_
  std::vector<bool> filled_;   // by slot: there was a gradient to send
};

}  // namespace rondo::dist

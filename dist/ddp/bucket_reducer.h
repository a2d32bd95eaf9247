// BucketReducer: reduces one bucket. It has the bucket's memory, takes gradients, and gives averages. For
// DistributedDataParallel only.
//
// Note [Born in the bucket]. A region's backward writes a gradient right into its place in the bucket
// (autograd::GradientHome), so sending it costs no launch. So do the norms that are outside of the regions. What other
// ops of the tape make elsewhere is copied: one copy for each such parameter, whatever the depth of the model. A bucket
// with one slot on a device has no memory of its own: its gradient, or the piece of it, is reduced where backward made
// it. That is the case of large parameters. A gradient that somebody else can see is copied in any case.
//
// Note [Tags]. In host memory, two elements at the end of a bucket prove that it was reduced, in this step, with the
// same bucket of every rank: a number that all ranks know, and rank + 1. Their averages are known beforehand, and
// differ from what a rank itself wrote: a collective that silently did nothing, or met another one, is seen. Both sums
// are whole numbers that the dtype represents. A third one is 1 on a rank that cannot send what it should: by its
// average every rank leaves the same buckets alone. With allow_unused, one more for each slot follows: 1 on a rank that
// has its gradient. Its average is above 0 if some rank has. On a device, to read a tag would make the host wait. There
// the ranks compare what they have issued, and say what is wrong, in one exchange between hosts at the end of a step
// (ProcessGroup::check_sequence); averages are used after it.
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
  // `parameters`: of the slots, by their position in the caller's list. `bucket` must outlive this.
  // With a layout, the bucket is reduced and scattered: Note [Shards].
  BucketReducer(const Bucket& bucket, std::vector<size_t> parameters, Device device, bool allow_unused,
                std::optional<ShardLayout> layout = std::nullopt, int world_size = 1);

  const Bucket& bucket() const { return *bucket_; }
  const std::vector<size_t>& parameters() const { return parameters_; }
  // The place of a whole parameter in the bucket, if its gradient can be made there; else undefined.
  Tensor home(size_t slot) const;

  // Puts the whole parameter's gradient, or the slot's piece of it, into the bucket. Undefined: zeros. `only_holder`:
  // nobody else can see the gradient's memory, so it may be overwritten with the average.
  void put(size_t slot, const Tensor& gradient, bool only_holder);
  bool has_gradient(size_t slot) const { return filled_[slot]; }
  // The average lies in the memory of the gradient that was put in.
  bool is_adopted() const { return adopted_; }
  // The average of a slot's elements: of a whole parameter in its shape, of a piece as a line. An adopted one is let
  // go.
  Tensor take_average(size_t slot) { return adopted_ ? std::exchange(operand_, Tensor()) : views_[slot]; }
  // Sends it: an all_reduce, or a reduce_scatter.
  void reduce(ProcessGroup& group, const std::string& name);
  const std::optional<ShardLayout>& layout() const { return layout_; }
  // With a layout: what is sent, and this rank's row when it has come back.
  const Tensor& sent() const { return flat_; }
  const Tensor& averages() const { return averages_; }

  // Note [Tags]; only in host memory.
  struct Tag {
    int64_t step;
    size_t bucket;
    int rank;
    bool troubled;
  };
  void write_tag(const Tag& tag);
  enum class TagStatus : uint8_t { kValid, kNotReduced, kRankFailed };
  TagStatus read_tag(int64_t step, size_t bucket, int world_size) const;
  // By slot, with allow_unused: some rank has a gradient.
  std::vector<bool> read_flags() const;

  std::vector<bool> has_average;            // with a layout, by slot: there is an average in this step
  bool is_taken = false;                    // and its GradientShards has it
  size_t pending = 0;                       // slots whose gradient has not arrived in this step
  std::vector<bool> any_rank_has_gradient;  // on a device with allow_unused, by slot
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
  int64_t rows_, row_;  // of flat_: 1 without a layout; their elements, without the tag
  bool may_adopt_;
  bool adopted_ = false;       // in this step
  Tensor flat_;                // rows of the bucket's elements, each with the tag at its end
  Tensor averages_;            // flat_, or one row
  Tensor operand_;             // of an adopted gradient
  std::vector<Tensor> views_;  // of the slots
  std::vector<bool> filled_;   // there was a gradient to send
};

}  // namespace rondo::dist

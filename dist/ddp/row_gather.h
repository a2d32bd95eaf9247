// RowGather: averages the last part of a tied embedding's gradient by an all_gather of its rows. Only
// DistributedDataParallel uses it.
//
// Note [Two parts]. An embedding that is also the output layer gets its gradient in two contributions: the output
// layer's matrix product at the start of backward, and the embedding's rows at the very end. Then no backward work is
// left that could overlap with the all-reduce of so large a gradient. So the gradient travels in two parts. The first
// contribution leaves in the buckets, as any gradient, while backward goes on. The embedding's rows are not made dense:
// an all_gather gives every rank the rows of all ranks, with their indices. Each rank adds these rows to the average of
// the first part in the same order (by rank, then by position), so all ranks get the same bits. Sums are made in the
// parameter's dtype, or in f32 for 16-bit parameters whose gradients travel in f32.
//
// The first step of a job observes how each parameter is used, and the ranks agree which gradients travel in two parts.
// A gradient travels in two parts if its parameter has, on every rank, the same number of dense uses, and after them
// only uses of rows. The rows of all ranks together must be at most as many as the table's rows. Then the all_gather
// sends at most half of the bytes of an all-reduce. Later steps may use the parameter in another way. After the first
// part has left, a dense gradient may arrive, or more rows than there is room for. A gradient that cannot travel in the
// second part is called the rest. In finish() the ranks tell each other whether they have a rest, and average all rests
// in one more all-reduce. From the next step on there is more room for rows.
//
// Gradients that earlier backwards under no_sync() have accumulated travel with the first part. A parameter whose state
// is in shards (sharded_optimizer.h) travels in one part.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rondo/dist/groups/process_group.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo::dist {

// The progress of backward in this step.
struct BackwardProgress {
  bool local = false;         // backward runs under no_sync(), so nothing is sent
  std::vector<size_t> order;  // indices of parameters, in the order in which their gradients became final
};

class RowGather final : public autograd::GradientParts {
 public:
  // Observes how `parameter` is used, until travel_in_parts(). `send_first_part` is called when that part is in .grad.
  RowGather(Tensor parameter, const BackwardProgress& progress, std::function<void()> send_first_part)
      : parameter_(std::move(parameter)), progress_(progress), send_first_part_(std::move(send_first_part)) {}

  bool wants_part() override;
  void part_added() override;
  bool take_rows(const Tensor& rows, const Tensor& indices) override;
  // Call when the last contribution of a backward has arrived.
  void end_of_uses();

  // The parameter's uses in the observed step. All zeros if the gradient cannot travel in two parts.
  struct Uses {
    int64_t dense = 0, rows = 0;
    size_t position = 0;  // place of the first part in the order of the gradients
  };
  Uses uses() const;
  // Call when the ranks have agreed to send this gradient in two parts. `capacity`: how many rows each rank can send.
  // `wire`: the dtype of the first part's buckets.
  void travel_in_parts(const Uses& uses, int64_t capacity, DType wire, int world_size);

  // True if the first part has been taken in this step: later contributions belong to the second part.
  bool first_part_taken() const { return first_part_taken_; }
  // Sets the gradient that could not travel as rows. Undefined if all of it travelled.
  void set_rest(Tensor rest) { rest_ = std::move(rest); }
  // Sends the second part. A collective: a rank without rows calls it, too.
  void send(ProcessGroup& group, int64_t tag, const std::string& name);
  // Waits for the rows of all ranks. Call it before the memory of this step is used again.
  void wait();
  // In host memory: returns true if the rows of every rank have arrived and belong to this step.
  bool has_come(int64_t tag) const;

  // report() returns this rank's part of the exchange at the end of a step; read_reports() gets those of all ranks.
  static constexpr size_t kReportBytes = 13;
  std::string report() const;
  void read_reports(std::span<const std::string> reports);  // the report() of each rank
  // Returns the average of the whole gradient, given the average of the first part. An undefined result: no rank has a
  // gradient. A collective.
  Tensor complete(Tensor first_part, ProcessGroup& group, const std::string& name);
  void start_over();

 private:
  struct Piece {
    Tensor rows, indices;
  };
  void allocate(int64_t capacity);

  const Tensor parameter_;
  const BackwardProgress& progress_;
  const std::function<void()> send_first_part_;
  // In this step.
  int64_t contributions_ = 0, dense_first_ = 0, row_calls_ = 0, rows_ = 0;
  size_t position_ = 0;
  bool first_part_taken_ = false;
  std::vector<Piece> pieces_;
  int64_t taken_ = 0;  // the number of rows in pieces_
  Tensor rest_;
  bool any_rank_has_rows_ = false, any_rank_has_rest_ = false;
  int64_t most_rows_ = 0;  // the most rows that one rank has
  Work indices_work_, rows_work_;
  // Set by travel_in_parts().
  int64_t dense_uses_ = 0, capacity_ = 0, width_ = 0, header_ = 0;
  int world_size_ = 0;
  DType rows_dtype_ = kF32, sum_dtype_ = kF32;
  Tensor all_indices_, all_rows_;  // (world_size, header + capacity), (world_size, capacity, width)
};

// A collective. Returns, for each parameter, how many rows each rank sends; 0 if the gradient travels in one part.
// `uses`: those that each parameter's RowGather has observed; zeros for a gradient that must not travel in two parts.
std::vector<int64_t> agree_on_rows(ProcessGroup& group, const std::vector<RowGather::Uses>& uses,
                                   std::span<const Tensor> parameters);

}  // namespace rondo::dist

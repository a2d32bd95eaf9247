// RowGather: averages the last part of a tied embedding's gradient by an all_gather of its rows. For
// DistributedDataParallel only.
//
// Note [Two parts]. An embedding that is the output layer, too, gets its gradient twice: the output layer's product at
// the start of backward, the embedding's rows at the very end. Nothing is left then to hide the all-reduce of so large
// a gradient behind. So it travels in two parts. What arrives first leaves in the buckets, as any gradient, while
// backward goes on. The rows of the embedding stay rows: every rank gets those of all ranks, with their indices, by
// all_gather, and adds them to the average of the first part in one order: by rank, then by position. All ranks get the
// same bits. Sums are made in the parameter's dtype, or in f32 for 16-bit parameters whose gradients travel in f32.
//
// The first step of a job sees how each parameter is used, and the ranks agree: those travel in two parts whose uses
// are, on every rank, the same number of dense ones and then only rows, where the rows of all ranks are at most as many
// as the table's (so their bytes are half of an all-reduce's, or less). Nothing of it is a promise about later steps.
// What arrives in another way after the first part has left, rows for which there is no room, or a dense gradient,
// is the rest. The ranks tell each other in finish(), where all of them then average their rests in one more
// all-reduce. There is more room for rows from the next step on.
//
// Gradients of earlier backwards, under no_sync(), are in the first part. A parameter whose state is in shards
// (sharded_optimizer.h) travels in one part.
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
  bool local = false;         // under no_sync
  std::vector<size_t> order;  // parameters, as their gradients became final
};

class RowGather final : public autograd::GradientParts {
 public:
  // Watches how `parameter` is used, until travel_in_parts(). `send_first_part`: it is in .grad.
  RowGather(Tensor parameter, const BackwardProgress& progress, std::function<void()> send_first_part)
      : parameter_(std::move(parameter)), progress_(progress), send_first_part_(std::move(send_first_part)) {}

  bool wants_part() override;
  void part_added() override;
  bool take_rows(const Tensor& rows, const Tensor& indices) override;
  // The last contribution of a backward has arrived.
  void end_of_uses();

  // In the step that is watched. All zeros: the uses are not of the kind that has two parts.
  struct Uses {
    int64_t dense = 0, rows = 0;
    size_t position = 0;  // in the order of the gradients, of the first part
  };
  Uses uses() const;
  // `capacity`: rows of each rank. `wire`: the dtype of the first part's buckets.
  void travel_in_parts(const Uses& uses, int64_t capacity, DType wire, int world_size);

  // The first part has been taken in this step, so what arrives now is the second.
  bool first_part_taken() const { return first_part_taken_; }
  // Sets the gradient that could not travel as rows. Undefined: there is none.
  void set_rest(Tensor rest) { rest_ = std::move(rest); }
  // Every rank sends, also one without rows.
  void send(ProcessGroup& group, int64_t tag, const std::string& name);
  // Before the memory of this step is used again.
  void wait();
  // Host memory: the rows of every rank, and of this step, have come.
  bool has_come(int64_t tag) const;

  // For the exchange at the end of a step.
  static constexpr size_t kReportBytes = 13;
  std::string report() const;
  void read_reports(std::span<const std::string> reports);  // of all ranks
  // The average of the whole gradient, from that of the first part. Undefined: no rank has a gradient. A collective.
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
  int64_t taken_ = 0;  // rows in them
  Tensor rest_;
  bool any_rank_has_rows_ = false, any_rank_has_rest_ = false;
  int64_t most_rows_ = 0;  // of a rank
  Work indices_work_, rows_work_;
  // From travel_in_parts() on.
  int64_t dense_uses_ = 0, capacity_ = 0, width_ = 0, header_ = 0;
  int world_size_ = 0;
  DType rows_dtype_ = kF32, sum_dtype_ = kF32;
  Tensor all_indices_, all_rows_;  // (world_size, header + capacity), (world_size, capacity, width)
};

// Returns how many rows of each rank travel, by parameter; 0: the gradient has one part. The call is a collective.
// `uses`: what each parameter's RowGather has seen; no uses for a parameter that must not travel in two parts.
std::vector<int64_t> agree_on_rows(ProcessGroup& group, const std::vector<RowGather::Uses>& uses,
                                   std::span<const Tensor> parameters);

}  // namespace rondo::dist

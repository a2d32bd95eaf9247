#include "rondo/dist/ddp/row_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/lookup.h"

namespace rondo::dist {
namespace {

// In host memory, the indices are preceded by a header of this many elements. It proves from which step and rank they
// come (Note [Tags] in bucket_reducer.h).
constexpr int64_t kHeader = 2;

}  // namespace

bool RowGather::wants_part() {
  if (progress_.local) return false;
  ++contributions_;
  if (row_calls_ == 0) dense_first_ = contributions_, position_ = progress_.order.size();
  return contributions_ == dense_uses_ && !first_part_taken_;
}

void RowGather::part_added() {
  first_part_taken_ = true;
  send_first_part_();
}

bool RowGather::take_rows(const Tensor& rows, const Tensor& indices) {
  if (progress_.local) return false;
  const int64_t n = indices.numel();
  ++row_calls_;
  rows_ += n;
  if (!first_part_taken_ || taken_ + n > capacity_) return false;
  pieces_.push_back({rows.to(rows_dtype_).contiguous().view({n, width_}), indices.contiguous().view({n})});
  taken_ += n;
  return true;
}

void RowGather::end_of_uses() { ++contributions_; }

RowGather::Uses RowGather::uses() const {
  if (dense_first_ == 0 || row_calls_ == 0 || contributions_ != dense_first_ + row_calls_) return {};
  return {dense_first_, rows_, position_};
}

void RowGather::travel_in_parts(const Uses& uses, int64_t capacity, DType wire, int world_size) {
  dense_uses_ = uses.dense;
  width_ = parameter_.sizes()[1];
  world_size_ = world_size;
  header_ = has_host_memory(parameter_.device()) ? kHeader : 0;
  rows_dtype_ = is_low_precision(parameter_.dtype()) ? parameter_.dtype() : wire;
  sum_dtype_ = is_low_precision(parameter_.dtype()) ? wire : parameter_.dtype();
  allocate(capacity);
}

void RowGather::allocate(int64_t capacity) {
  capacity_ = capacity;
  const Device device = parameter_.device();
  all_indices_ = Tensor::zeros({world_size_, header_ + capacity}, {kI64, device});
  all_rows_ = Tensor::zeros({world_size_, capacity, width_}, {rows_dtype_, device});
  for (const Tensor* made : {&all_indices_, &all_rows_}) made->storage().set_purpose(Purpose::kGradients);
}

// Sends this rank's indices and rows. Fills unused capacity with rows of zeros at index 0.
void RowGather::send(ProcessGroup& group, int64_t tag, const std::string& name) {
  const Device device = parameter_.device();
  const bool as_they_are = pieces_.size() == 1 && taken_ == capacity_;
  const bool lent = as_they_are && header_ == 0;
  Tensor rows = as_they_are ? pieces_[0].rows : Tensor::zeros({capacity_, width_}, {rows_dtype_, device});
  Tensor indices = lent ? pieces_[0].indices : Tensor::zeros({header_ + capacity_}, {kI64, device});
  if (header_ != 0) indices.slice(0, {0, kHeader}).copy_(Tensor::from<int64_t>({tag, group.rank()}, {kHeader}, kCPU));
  int64_t at = 0;
  for (const Piece& piece : pieces_) {
    const int64_t end = at + piece.indices.numel();
    if (!as_they_are) rows.slice(0, {at, end}).copy_(piece.rows);
    if (!lent) indices.slice(0, {header_ + at, header_ + end}).copy_(piece.indices);
    at = end;
  }
  indices_work_ = group.all_gather(all_indices_, indices, absl::StrCat("indices of ", name));
  // Waits until the user's tensor of indices is sent: after backward, the user may write the next batch into it.
  if (lent) indices_work_.wait();
  rows_work_ = group.all_gather(all_rows_, rows, absl::StrCat("rows of ", name));
}

void RowGather::wait() {
  std::exchange(indices_work_, Work()).wait();
  std::exchange(rows_work_, Work()).wait();
}

bool RowGather::has_come(int64_t tag) const {
  for (int64_t r = 0; r < world_size_; ++r)
    if (all_indices_.select(0, r).slice(0, {0, kHeader}).to_vector<int64_t>() != std::vector<int64_t>{tag, r})
      return false;
  return true;
}

std::string RowGather::report() const {
  return absl::StrCat(rest_.defined() ? "+" : ".", absl::Hex(first_part_taken_ ? rows_ : 0, absl::kZeroPad12));
}

void RowGather::read_reports(std::span<const std::string> reports) {
  for (const std::string& one : reports) {
    int64_t rows = 0;
    if (one.size() != kReportBytes || !absl::SimpleHexAtoi(one.substr(1), &rows))
      throw InternalError(absl::StrCat("RowGather: \"", one, "\" is no report of a rank"));
    any_rank_has_rest_ = any_rank_has_rest_ || one[0] == '+';
    any_rank_has_rows_ = any_rank_has_rows_ || rows > 0;
    most_rows_ = std::max(most_rows_, rows);
  }
}

Tensor RowGather::complete(Tensor first_part, ProcessGroup& group, const std::string& name) {
  wait();
  if (!any_rank_has_rest_ && !any_rank_has_rows_) return first_part;
  const TensorOptions options = {sum_dtype_, parameter_.device()};
  Tensor total = first_part.defined() ? first_part.to(sum_dtype_) : Tensor::zeros(parameter_.sizes(), options);
  if (any_rank_has_rest_) {
    Tensor rest = Tensor::zeros(parameter_.sizes(), options);
    if (rest_.defined()) rest.add_(rest_.to(sum_dtype_));
    group.all_reduce(rest, ReduceOp::kAverage, absl::StrCat("rest of ", name)).wait();
    total.add_(rest);
  }
  if (any_rank_has_rows_) {
    const Tensor rows = all_rows_.view({world_size_ * capacity_, width_}).to(sum_dtype_) / world_size_;
    ops::add_rows(total, rows, all_indices_.slice(1, {header_}).contiguous().view({rows.sizes()[0]}));
  }
  return total;
}

void RowGather::start_over() {
  contributions_ = dense_first_ = row_calls_ = rows_ = taken_ = 0;
  first_part_taken_ = any_rank_has_rows_ = any_rank_has_rest_ = false;
  pieces_.clear();
  rest_ = Tensor();
  const int64_t most = std::exchange(most_rows_, 0);
  if (most > capacity_ && most * world_size_ <= parameter_.sizes()[0]) allocate(most);
}

std::vector<int64_t> agree_on_rows(ProcessGroup& group, const std::vector<RowGather::Uses>& uses,
                                   std::span<const Tensor> parameters) {
  const auto n = static_cast<int64_t>(uses.size());
  std::vector<int64_t> seen;
  for (const RowGather::Uses& u : uses) seen.insert(seen.end(), {u.dense, u.rows});
  const Tensor mine = Tensor::from(seen, {n, 2}, kCPU);
  const Tensor all = Tensor::zeros({group.world_size(), n, 2}, {kI64, kCPU});
  group.all_gather(all, mine, "uses of the parameters").wait();
  const std::vector<int64_t> of_ranks = all.to_vector<int64_t>();
  std::vector<int64_t> capacity(uses.size());
  for (size_t i = 0; i < uses.size() && group.world_size() > 1; ++i) {
    bool same = true;
    for (size_t r = 0; r < static_cast<size_t>(group.world_size()); ++r) {
      const int64_t* const of_rank = &of_ranks[2 * (r * uses.size() + i)];
      same = same && of_rank[0] > 0 && of_rank[0] == of_ranks[2 * i];
      capacity[i] = std::max(capacity[i], of_rank[1]);
    }
    if (!same || capacity[i] * group.world_size() > parameters[i].sizes()[0]) capacity[i] = 0;
  }
  return capacity;
}

}  // namespace rondo::dist

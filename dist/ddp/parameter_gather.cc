#include "rondo/dist/ddp/parameter_gather.h"

#include <algorithm>
#include <exception>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::dist {
namespace {

constexpr const char* kLost = "the parameter did not come from the other processes, because the group has failed";

// The recorder of parameters whose values never arrived: every read of such a parameter throws. It is never freed,
// because these parameters may live as long as the process.
class Lost final : public Recorder {
 public:
  void record(const OpDef&, std::span<const Tensor* const>, const Attrs&, std::span<Tensor>, bool,
              std::source_location where) override {
    throw_internal("a parameter that was lost records", where);
  }
  void flush(const TensorImpl&, std::source_location where) override { throw_op_error("data", kLost, where); }
  void interrupt(const char*, std::source_location) override {}  // the values are missing, not the history
};
Recorder* lost() {
  static auto* const recorder = new Lost;
  return recorder;
}

// Returns elements of a contiguous tensor as a one-dimensional tensor that shares its memory but not its history.
Tensor line_of(const Storage& storage, const Tensor& tensor, int64_t begin, int64_t numel) {
  return Tensor::over(storage, tensor.storage_offset() + begin, {numel}, {1}, tensor.dtype());
}

// Copies `from` to `to` without notifying a recorder that is recording (before_write in recorder.h). The recorder need
// not know of this write, because its recording has not read the parameter yet.
void write_line(Tensor to, const Tensor& from) {
  if (to.dtype() != from.dtype()) {
    to.copy_(from);
    return;
  }
  copy_bytes(to.device(), to.impl()->data(), from.device(), from.address(), static_cast<size_t>(to.nbytes()));
  to.storage().bump_version();
}

}  // namespace

ParameterGather::~ParameterGather() {
  try {
    if (std::uncaught_exceptions() == 0) wait();
  } catch (const std::exception&) {
  }
  for (Parameter& p : parameters_) {
    if (p.under_way == 0) continue;
    p.tensor.impl()->recorder = lost();
    if (p.copy.defined()) p.copy.impl()->recorder = lost();
  }
}

size_t ParameterGather::add_parameter(Tensor parameter, Tensor copy) {
  const size_t index = parameters_.size();
  parameter_of_[parameter.impl()] = index;
  if (copy.defined()) parameter_of_[copy.impl()] = index;
  Parameter& made = parameters_.emplace_back();
  made.tensor = std::move(parameter);
  made.copy = std::move(copy);
  return index;
}

size_t ParameterGather::add_bucket(std::vector<Piece> pieces, const Tensor& memory, int64_t row, DType dtype) {
  const size_t index = buckets_.size();
  Bucket& bucket = buckets_.emplace_back();
  const Dims sizes = {group_->world_size(), row};
  bucket.all = Tensor::from_storage(memory.storage(), 0, sizes, contiguous_strides(sizes), dtype);
  bucket.pieces = std::move(pieces);
  for (const Piece& piece : bucket.pieces)
    if (std::find(bucket.parameters.begin(), bucket.parameters.end(), piece.parameter) == bucket.parameters.end()) {
      bucket.parameters.push_back(piece.parameter);
      parameters_[piece.parameter].buckets.push_back(index);
    }
  return index;
}

void ParameterGather::take_storage(Tensor& tensor, Storage& kept) {
  kept = tensor.storage();
  TensorImpl& impl = *tensor.impl();
  impl.storage = Storage();
  impl.recorder = this;
  impl.recorded_value = -1;
}

void ParameterGather::take_parameter(Parameter& p) {
  take_storage(p.tensor, p.storage);
  if (p.copy.defined()) take_storage(p.copy, p.copy_storage);
}

void ParameterGather::give_back(Tensor& tensor, Storage& kept) {
  TensorImpl& impl = *tensor.impl();
  impl.recorder = nullptr;
  impl.storage = std::exchange(kept, Storage());
}

void ParameterGather::start(size_t b, const std::string& name) {
  const NoGrad off;
  Bucket& bucket = buckets_[b];
  Tensor mine = bucket.all.select(0, group_->rank());
  for (const Piece& piece : bucket.pieces)
    if (piece.rank == group_->rank() && piece.numel > 0)
      mine.slice(0, {piece.offset, piece.offset + piece.numel}).copy_(piece.source);
  bucket.work = group_->all_gather(bucket.all, mine, name);
  bucket.under_way = true;
  for (const size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    if (p.under_way++ == 0) take_parameter(p);
  }
}

void ParameterGather::wait(size_t b) {
  Bucket& bucket = buckets_[b];
  if (!bucket.under_way) return;
  bucket.work.wait();  // may throw: then the bucket stays under way, and every read throws
  if (!group_->failure().empty()) bucket.work.synchronize();  // throws unless the gather was done before the failure
  const NoGrad off;
  const RecorderScope eager(nullptr);  // no recording reads these parameters yet
  for (const Piece& piece : bucket.pieces) {
    if (piece.numel == 0) continue;
    const Parameter& p = parameters_[piece.parameter];
    if (piece.rank == group_->rank() && piece.source.storage() == p.storage) continue;  // updated in place
    write_line(line_of(p.storage, p.tensor, piece.begin, piece.numel),
               bucket.all.select(0, piece.rank).slice(0, {piece.offset, piece.offset + piece.numel}));
  }
  bucket.under_way = false;
  for (const size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    if (--p.under_way > 0) continue;
    give_back(p.tensor, p.storage);
    p.landed = optim::Contents::of(p.tensor);
    if (!p.copy.defined()) continue;
    give_back(p.copy, p.copy_storage);
    p.copy.copy_(p.tensor.detach());
  }
}

// Finds buckets that had landed before their collective failed, and puts their parameters under way again. A parameter
// that has been loaded since then keeps its new values.
void ParameterGather::revoke_failed() {
  for (Bucket& bucket : buckets_) {
    if (bucket.under_way) continue;
    try {
      bucket.work.synchronize();
      continue;
    } catch (const DistError&) {
      bucket.under_way = true;
    }
    for (const size_t i : bucket.parameters) {
      Parameter& p = parameters_[i];
      if (p.under_way == 0 && !(p.landed == optim::Contents::of(p.tensor))) continue;
      if (p.under_way++ == 0) take_parameter(p);
    }
  }
}

void ParameterGather::wait() {
  if (!group_->failure().empty()) revoke_failed();
  for (size_t b = buckets_.size(); b-- > 0;) wait(b);
}

void ParameterGather::record(const OpDef&, std::span<const Tensor* const>, const Attrs&, std::span<Tensor>, bool,
                             std::source_location where) {
  throw_internal("a parameter that is under way records", where);
}

void ParameterGather::flush(const TensorImpl& tensor, std::source_location) {
  for (const size_t b : parameters_[parameter_of_.at(&tensor)].buckets) wait(b);
}

}  // namespace rondo::dist

#include "rondo/runtime/autograd/collective_log.h"

#include <algorithm>
#include <utility>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {
namespace {

thread_local CollectiveScope* innermost = nullptr;

}  // namespace

CollectiveLog::Message CollectiveReader::next(int64_t communicator, DType dtype, int64_t n) {
  while (message_ < log_->messages.size() && element_ == log_->messages[message_].sum.numel()) ++message_, element_ = 0;
  if (message_ == log_->messages.size()) return {communicator, {}, {}};
  const CollectiveLog::Message& message = log_->messages[message_];
  if (message.communicator != communicator || message.sum.dtype() != dtype)
    throw Error("all_reduce_sum: code that runs twice makes other collectives in its second run than in its first");
  const int64_t begin = element_;
  element_ = std::min(begin + n, message.sum.numel());
  const auto part = [&](const Tensor& all) { return all.defined() ? all.slice(0, {begin, element_}) : Tensor(); };
  return {communicator, part(message.operand), part(message.sum)};
}

CollectiveScope::CollectiveScope(Mode mode, CollectiveLog& log)
    : mode_(mode), log_(log), reader_(log), outer_(std::exchange(innermost, this)) {}
CollectiveScope::~CollectiveScope() { innermost = outer_; }

void CollectiveScope::all_reduce_sum(int64_t communicator, const Tensor& tensor) {
  if (innermost == nullptr) return Communicator::of(communicator).all_reduce_sum(tensor);
  const NoGrad off;
  const RecorderScope eager(nullptr);
  all_reduce_sum(innermost, communicator,
                 Tensor::over(tensor.storage(), tensor.storage_offset(), {tensor.numel()}, {1}, tensor.dtype()));
}

void CollectiveScope::all_reduce_sum(CollectiveScope* scope, int64_t communicator, const Tensor& flat) {
  if (scope == nullptr) Communicator::of(communicator).all_reduce_sum(flat);
  else if (scope->mode_ == kNote) scope->note(communicator, flat);
  else scope->replay(communicator, flat);
}

void CollectiveScope::note(int64_t communicator, const Tensor& flat) {
  const Tensor operand = log_.operands ? flat.clone() : Tensor();
  try {
    all_reduce_sum(outer_, communicator, flat);
  } catch (...) {
    log_.error = std::current_exception();
    throw;
  }
  log_.messages.push_back({communicator, operand, flat.clone()});
}

void CollectiveScope::replay(int64_t communicator, Tensor flat) {
  while (flat.numel() > 0) {
    const CollectiveLog::Message known = reader_.next(communicator, flat.dtype(), flat.numel());
    if (!known.sum.defined()) {
      if (reader_.error() != nullptr) std::rethrow_exception(reader_.error());
      if (mode_ == kReplayOnly)
        throw Error("all_reduce_sum: code that runs twice makes more collectives in its second run than in its first");
      return all_reduce_sum(outer_, communicator, flat);
    }
    const int64_t n = known.sum.numel();
    flat.slice(0, {0, n}).copy_(known.sum);
    flat = flat.slice(0, {n, flat.numel()});
  }
}

}  // namespace rondo

#include "rondo/runtime/random/random_state.h"

#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {
namespace {
thread_local SharedRandomState* innermost_shared = nullptr;
}

SharedRandomState::SharedRandomState() : outer_(std::exchange(innermost_shared, this)) {}
SharedRandomState::~SharedRandomState() { innermost_shared = outer_; }

RandomState next_random_state(Generator& source, Device device) {
  const uint64_t seed = source.seed(), offset = source.next_offset();
  const auto state = [&] {
    return Tensor::from<int64_t>({static_cast<int64_t>(seed), static_cast<int64_t>(offset)}, {2}, device);
  };
  if (innermost_shared == nullptr) return {state(), 0};
  const uint64_t waiting = active_recorder() != nullptr ? 1 : 0;
  // The subtraction is unsigned and may wrap around: after a generator was set back, increments are negative.
  for (SharedRandomState::Stream& stream : innermost_shared->streams_)
    if (stream.source == &source && stream.seed == seed && stream.state.device() == device) {
      stream.waiting += waiting;
      return {stream.state, static_cast<int64_t>(offset - stream.base)};
    }
  innermost_shared->streams_.push_back({&source, seed, offset, state(), waiting});
  return {innermost_shared->streams_.back().state, 0};
}

SharedRandomState::Stream* SharedRandomState::stream_of(const Tensor& state) {
  if (innermost_shared == nullptr) return nullptr;
  for (Stream& stream : innermost_shared->streams_)
    if (stream.state.is_same(state)) return &stream;
  return nullptr;
}

bool SharedRandomState::is_state(const Tensor& tensor) { return stream_of(tensor) != nullptr; }
bool SharedRandomState::is_state_at(const Tensor& tensor, const GeneratorState& drawn) {
  const Stream* const stream = stream_of(tensor);
  return stream != nullptr && stream->seed == drawn.seed && stream->base == drawn.offset;
}

void SharedRandomState::take_back(const Tensor& state, uint64_t draws) {
  if (const Stream* const stream = stream_of(state); stream != nullptr) take_back(*stream, draws);
}

void SharedRandomState::take_back(const Stream& stream, uint64_t draws) {
  if (stream.source == nullptr || draws == 0) return;
  Generator& source = *stream.source;
  if (source.seed() == stream.seed && source.offset() >= stream.base + draws)
    source.set_state(stream.seed, source.offset() - draws);
}

void SharedRandomState::note_recorded(std::span<const Tensor* const> operands) {
  for (Stream& stream : streams_)
    if (stream.waiting > 0 && std::any_of(operands.begin(), operands.end(), [&](const Tensor* operand) {
          return operand->defined() && operand->is_same(stream.state);
        }))
      stream.waiting = 0;
}

void SharedRandomState::take_back_waiting() {
  for (Stream& stream : streams_) take_back(stream, std::exchange(stream.waiting, 0));
}

void SharedRandomState::forget(const Generator& generator) noexcept {
  for (Stream& stream : streams_)
    if (stream.source == &generator) stream.source = nullptr;
}

LoopValue LoopBuilder::random(LoopOp, int, int64_t, int) { throw_internal("random numbers where no op draws any"); }

}  // namespace rondo

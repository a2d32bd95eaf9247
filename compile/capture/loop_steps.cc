#include "rondo/compile/capture/loop_steps.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace rondo::compile {

LoopSteps::Line LoopSteps::line_of(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                   std::span<const Tensor> outputs, std::source_location where) {
  size_t call = absl::HashOf(&op, where.file_name(), where.line(), where.column(), inputs.size(), outputs.size());
  size_t parameters = 0;
  for (const Tensor* input : inputs) {
    const TensorImpl* impl = input->impl();
    const bool parameter = impl != nullptr && impl->recorder == nullptr && input->requires_grad() && input->is_leaf();
    parameters = absl::HashOf(parameters, parameter ? impl : nullptr);
  }
  for (const Tensor& output : outputs) {
    call = absl::HashOf(call, output.dtype());
    for (int64_t size : output.sizes()) call = absl::HashOf(call, size);
  }
  // The integers of an op that draws random numbers hold its position in the random stream. The position differs in
  // each step, so these integers are not compared.
  const bool draws = op.random_state() >= 0;
  return {.call = call,
          .parameters = parameters,
          .integers = draws ? 0 : absl::HashOf(absl::MakeConstSpan(attrs.ints.data(), attrs.ints.size())),
          .may_move = op.kind == OpKind::kView || inputs.empty(),
          .is_product = op.kind == OpKind::kContraction};
}

bool LoopSteps::search(std::span<const Line> lines, bool varies) {
  constexpr int kMostTries = 16;
  const size_t n = lines.size(), steps = varies ? kFewSteps : kSteps;
  // Finds the shortest period with which the last `steps` steps repeat.
  const auto repeats = [&](size_t period) {
    for (size_t i = n - (steps - 1) * period; i < n; ++i)
      if (!lines[i].repeats(lines[i - period])) return false;
    return true;
  };
  size_t period = 0;
  int tries = 0;
  for (size_t p = 1; steps * p <= n && tries < kMostTries && period == 0; ++p) {
    if (!lines[n - 1 - p].repeats(lines[n - 1])) continue;
    ++tries;
    if (repeats(p)) period = p;
  }
  if (period == 0) return false;
  // Steps begin where the repetition begins.
  size_t begin = n - steps * period;
  while (begin > 0 && lines[begin - 1].repeats(lines[begin - 1 + period])) --begin;
  const size_t latest = begin + ((n - begin) / period - 1) * period;
  const auto step = lines.begin() + static_cast<std::ptrdiff_t>(latest);
  std::vector<Line> found(step, step + static_cast<std::ptrdiff_t>(period));
  if (std::none_of(found.begin(), found.end(), [](const Line& line) { return line.is_product; })) return false;
  std::vector<bool> moves(period, false);
  for (size_t i = 0; i < period; ++i) {
    for (size_t k = latest + i; k >= begin + period; k -= period)
      moves[i] = moves[i] || lines[k].integers != lines[k - period].integers;
    if (moves[i] && !found[i].may_move) return false;  // something other than views and constants differs
  }
  step_ = {std::move(found), std::move(moves)};
  at_ = (n - begin) % period;
  in_first_ = true;
  return true;
}

bool LoopSteps::begin(const Step& known, const Line& line) {
  if (known.lines[0].call != line.call || (!known.moves[0] && known.lines[0].integers != line.integers)) return false;
  step_ = known;
  learns_ = true;
  return true;
}

LoopSteps::Next LoopSteps::next(const Line& line) {
  Line& expected = step_.lines[at_];
  if (learns_) expected.parameters = line.parameters;
  if (!line.repeats(expected) || (!step_.moves[at_] && line.integers != expected.integers)) return Next::kEnd;
  const bool cut = at_ == 0 && (in_first_ || steps_ == kSteps);
  if (cut) {
    complete_ = in_first_ ? 0 : steps_;
    in_first_ = false;
    steps_ = 0;
  }
  at_ = (at_ + 1) % step_.lines.size();
  if (at_ == 0) ++steps_, learns_ = false;
  return cut ? Next::kCutAndRecord : Next::kRecord;
}

int32_t LoopSteps::calls_a_step() const {
  return static_cast<int32_t>(std::count(step_.moves.begin(), step_.moves.end(), false));
}

std::shared_ptr<const KnownLoops::Steps> KnownLoops::steps() const {
  if (!any_.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard lock(mutex_);
  return steps_;
}

void KnownLoops::add(const LoopSteps::Step& step) {
  constexpr size_t kMostLoops = 8;
  std::lock_guard lock(mutex_);
  auto all = steps_ == nullptr ? Steps() : *steps_;
  if (std::find(all.begin(), all.end(), step) != all.end()) return;
  if (all.size() >= kMostLoops) all.erase(all.begin());
  all.push_back(step);
  steps_ = std::make_shared<const Steps>(std::move(all));
  any_.store(true, std::memory_order_relaxed);
}

void KnownLoops::forget() {
  std::lock_guard lock(mutex_);
  steps_ = nullptr;
  any_.store(false, std::memory_order_relaxed);
}

}  // namespace rondo::compile

// Steps that write: state of the module (counters, running averages, rings, caches), parts of a result through views,
// memory that overlaps itself, and reads of it afterwards, through the same view and through others.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

bool constant(const Dims& coded) {
  return std::all_of(coded.begin(), coded.end(), [](int64_t size) { return size > 0; });
}
// A value, as operand 1, that is one row of a state: its sum over a leading dimension that follows the batch size.
// `sizes`: the row's.
bool pick_row(Draft& draft, Step& step, Dims& sizes) {
  const ValueId x = draft.floating();
  if (x == kNone) return false;
  step.in = {kNone, x};
  sizes = draft.coded(draft.tensor(x).sizes());
  if (!sizes.empty() && sizes[0] < 0) sizes.erase(0);
  return constant(sizes);
}
Tensor row_of(const Tensor& x, const Tensor& state) {
  const Tensor row = x.detach();
  return x.rank() == state.rank() ? ops::sum(row, {0}) : row;
}

// ints: {number}
bool pick_counter(Draft& draft, Step& step) {
  constexpr DType kCounters[] = {kI64, kI64, kI32, kU8, kF32};
  step.in = {draft.state(kCounters[draft.random.below(5)], draft.random.chance(0.7) ? Dims{} : Dims{3}),
             draft.floating()};
  step.ints = {draft.random.pick<int64_t>({1, 1, 3, 200})};
  return step.in[1] != kNone;
}
// A state of the sizes of a row. ints: {what is returned}
bool pick_average(Draft& draft, Step& step) {
  Dims sizes;
  if (!pick_row(draft, step, sizes)) return false;
  const DType dtype = draft.tensor(step.in[1]).dtype();
  step.in[0] = draft.state(draft.random.chance(0.8) ? dtype : kF32, sizes);
  step.scalar = draft.random.pick<double>({0.9, 0.5, 0});
  step.ints = {draft.random.below(3)};
  return true;
}
// The state has `ints[0]` rows. ints: {rows, what is returned, where it begins}
bool pick_ring(Draft& draft, Step& step) {
  Dims sizes;
  if (!pick_row(draft, step, sizes) || sizes.rank() > 3) return false;
  step.ints = {draft.random.between(2, 6), draft.random.below(3), draft.random.below(6)};
  sizes.insert(0, step.ints[0]);
  step.in[0] = draft.state(draft.tensor(step.in[1]).dtype(), sizes);
  return true;
}
bool pick_two_states(Draft& draft, Step& step) {
  Dims sizes;
  if (!pick_row(draft, step, sizes)) return false;
  const DType dtype = draft.tensor(step.in[1]).dtype();
  step.in[0] = draft.state(dtype, sizes);
  step.in.push_back(draft.state(dtype, sizes));
  return true;
}
bool pick_integer_state(Draft& draft, Step& step) {
  Dims sizes;
  if (!pick_row(draft, step, sizes)) return false;
  constexpr DType kIntegers[] = {kI64, kI32, kU8, kBool};
  step.in[0] = draft.state(kIntegers[draft.random.below(4)], sizes);
  step.ints = {draft.random.below(4)};
  return true;
}
// ints: {first view, write, second view, second write, then numbers that places are made of}
bool pick_parts(Draft& draft, Step& step) {
  step.in = {draft.floating(1)};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(6), draft.random.below(7), draft.random.below(6), draft.random.below(8)};
  for (int i = 0; i < 3; ++i) step.ints.push_back(draft.random.below(1000));
  step.scalar = draft.random.pick<double>({0.5, 2, -1.1});
  return true;
}
bool pick_dim(Draft& draft, Step& step) {
  step.in = {draft.floating(1)};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(draft.tensor(step.in[0]).rank()), draft.random.below(2)};
  return true;
}

// A view of `y`, whatever its sizes; `a` and `b` choose the place.
Tensor part_of(const Tensor& y, int64_t kind, int64_t dim, int64_t a, int64_t b) {
  dim %= y.rank();
  const int64_t n = y.size(dim);
  if (n == 0) return y;
  const int64_t begin = a % n, end = begin + 1 + b % (n - begin);
  switch (kind) {
    case 0: return y.slice(dim, {begin, end});
    case 1: return y.slice(dim, {begin, n, 1 + b % 3});
    case 2: return y.select(dim, begin);
    case 3: return y.transpose(0, -1);
    case 4: return y.slice(dim, {begin, end}).transpose(0, -1);
    default: return y.is_contiguous() ? y.view({y.numel()}).slice(0, {begin, y.numel() - b % n}) : y;
  }
}
void write_part(Tensor part, int64_t kind, double k) {
  switch (kind) {
    case 0: part.add_(ops::tanh(part.clone())); break;
    case 1: part.mul_(k); break;
    case 2: part.copy_(ops::sigmoid(part.clone())); break;
    case 3: part.fill_(k); break;
    case 4: part.sub_(k); break;
    case 5: part.add_(part); break;
    case 6: part.copy_(ops::mean(part.clone())); break;
    default: break;
  }
}

int64_t position(const Scene& s, int64_t from, int64_t n) { return ((s.counter + from) % n + n) % n; }

const StepKind kKinds[] = {
    {"count", 5, &pick_counter,
     [](Scene& s) {
       s.in[0].add_(s.n(0));
       const Tensor seen = ops::max(s.in[0].to(kF64));
       return Tensors{s.in[1] * (1.0 / (seen + 1.0)).to(s.in[1].dtype())};
     },
     kEffect | kInPlace},
    {"running_average", 6, &pick_average,
     [](Scene& s) {
       Tensor& state = s.in[0];
       const Tensor row = row_of(s.in[1], state), before = state * 0.5;
       no_grad([&] { state.mul_(s.step.scalar).add_(row.to(state.dtype()) * (1 - s.step.scalar)); });
       return Tensors{s.n(0) == 0   ? s.in[1] - state.to(s.in[1].dtype())
                      : s.n(0) == 1 ? before + state
                                    : ops::tanh(state)};
     },
     kEffect | kInPlace | kScalar},
    // One row a step, at a place that C++ counts.
    {"ring", 5, &pick_ring,
     [](Scene& s) {
       Tensor& ring = s.in[0];
       const int64_t at = position(s, s.n(2), ring.size(0));
       Tensor slot = ring.select(0, at);
       slot.copy_(s.in[1].rank() == ring.rank() ? ops::sum(s.in[1].detach(), {0}) : s.in[1].detach());
       return Tensors{s.n(1) == 0 ? ops::mean(ring, {0}) : s.n(1) == 1 ? slot * 2.0 : ring};
     },
     kEffect | kInPlace | kCounts},
    {"cache", 4, &pick_ring,
     [](Scene& s) {
       Tensor& cache = s.in[0];
       const int64_t at = position(s, s.n(2), cache.size(0));
       const Tensor row = s.in[1].rank() == cache.rank() ? ops::sum(s.in[1].detach(), {0}) : s.in[1].detach();
       cache.slice(0, {at, at + 1}).copy_(row.unsqueeze(0));
       const Tensor known = cache.slice(0, {0, at + 1});
       return Tensors{ops::sum(ops::sigmoid(known), {0}), s.n(1) == 0 ? ops::softmax(cache, 0) : cache + row};
     },
     kEffect | kInPlace | kCounts},
    {"swap_states", 3, &pick_two_states,
     [](Scene& s) {
       Tensor a = s.in[0], b = s.in[2];
       const Tensor old = a.clone();
       a.copy_(b + row_of(s.in[1], a) * 0.25);
       b.copy_(old);
       return Tensors{a * 0.5 + b, b - old};
     },
     kEffect | kInPlace},
    {"integer_state", 5, &pick_integer_state,
     [](Scene& s) {
       Tensor& state = s.in[0];
       const Tensor row = row_of(s.in[1], state);
       if (state.dtype() == kBool) {
         state.copy_(ops::less(state.to(row.dtype()), row));
       } else {
         if (s.n(0) % 2 == 0) state.mul_(1000003).sub_(7);
         else state.add_(ops::clamp(row * 3.0, -100, 100).to(state.dtype()));
         if (s.n(0) > 1) state.copy_(ops::maximum(state, -state));
       }
       return Tensors{state.clone(), state.to(kF64) * 0x1p-64};
     },
     kEffect | kInPlace},
    {"noise_state", 2, &pick_average,
     [](Scene& s) {
       Tensor& state = s.in[0];
       state.copy_(Tensor::randn(state.sizes(), {state.dtype()}));
       no_grad([&] { state.mul_(ops::dropout(state.clone(), 0.25)); });
       return Tensors{s.in[1] * ops::sum(state).to(s.in[1].dtype()) * 0.1};
     },
     kEffect | kInPlace},
    // Memory of the block's own, written through one view and then another, and read through both.
    {"write_parts", 12, &pick_parts,
     [](Scene& s) {
       const Tensor y = s.in[0] * 1.0;
       const Tensor first = part_of(y, s.n(0), s.n(4), s.n(5), s.n(6)),
                    second = part_of(y, s.n(2), s.n(5), s.n(6), s.n(4));
       const Tensor before = second * 2.0;
       write_part(first, s.n(1), s.step.scalar);
       const Tensor between = second * 1.5;
       write_part(second, s.n(3), s.step.scalar);
       return Tensors{y * 0.5, first * 3.0, between - before, second};
     },
     kScalar | kOwnMemory},
    // Views from before a write, and their base, leave as they are.
    {"views_and_base", 8, &pick_parts,
     [](Scene& s) {
       const Tensor y = s.n(4) % 4 == 0 ? s.in[0].clone() : s.in[0] * 1.0;
       const Tensor first = part_of(y, s.n(0), s.n(4), s.n(5), s.n(6)),
                    second = part_of(y, s.n(2), s.n(5), s.n(6), s.n(4));
       const GradMode mode(s.n(5) % 5 != 0 && grad_enabled());
       write_part(s.n(6) % 3 == 0 ? y : first, s.n(1), s.step.scalar);
       if (s.n(6) % 2 == 0) write_part(s.n(4) % 2 == 0 ? second : y, s.n(3), s.step.scalar);
       return Tensors{y, first, second};
     },
     kScalar | kOwnMemory},
    // Each element moves on by one place, or becomes the sum of all before it.
    {"shift", 3, &pick_dim,
     [](Scene& s) {
       const Tensor y = s.in[0] * 1.25;
       const int64_t n = y.size(s.n(0));
       if (n > 1 && s.n(1) == 0) y.slice(s.n(0), {1, n}).copy_(y.slice(s.n(0), {0, n - 1}));
       for (int64_t i = 1; i < std::min<int64_t>(n, 9) && s.n(1) == 1; ++i)
         y.select(s.n(0), i).add_(y.select(s.n(0), i - 1));
       return Tensors{y};
     },
     kOwnMemory},
};

}  // namespace

std::span<const StepKind> write_steps() { return kKinds; }

}  // namespace rondo::fuzz

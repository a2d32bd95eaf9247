// Integers as numbers and as places: arithmetic that wraps around, conversions, masks, gathers and scatters.
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

bool is_integer(const Tensor& t) { return !is_floating(t.dtype()) && t.dtype() != kBool; }

bool pick_integer(Draft& draft, Step& step) {
  step.in = {draft.value(&is_integer)};
  return step.in[0] != kNone;
}
// Two of one dtype, of any size: sums and products wrap around.
bool pick_integers(Draft& draft, Step& step) {
  if (!pick_integer(draft, step)) return false;
  const Tensor first = draft.tensor(step.in[0]);
  step.in.push_back(draft.value([&](const Tensor& t) {
    Dims ignored;
    return t.dtype() == first.dtype() && broadcast_shapes(first.sizes(), t.sizes(), ignored);
  }));
  return step.in[1] != kNone;
}
// ints: {which, a number of bits}
bool pick_bits(Draft& draft, Step& step) {
  step.ints = {draft.random.below(4), draft.random.below(10)};
  return pick_integers(draft, step);
}
bool pick_truths(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return t.dtype() == kBool; })};
  if (step.in[0] == kNone) return false;
  const Tensor first = draft.tensor(step.in[0]);
  step.in.push_back(draft.value([&](const Tensor& t) {
    Dims ignored;
    return t.dtype() == kBool && broadcast_shapes(first.sizes(), t.sizes(), ignored);
  }));
  step.ints = {draft.random.below(3)};
  return true;
}
Tensor bits_of(const Tensor& a, const Tensor& b, int64_t which) {
  return which == 0 ? ops::bitwise_and(a, b) : which == 1 ? ops::bitwise_or(a, b) : ops::bitwise_xor(a, b);
}
// A tensor, and a dimension of it that has the same size at every batch size. ints: {dim}
bool pick_table(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() > 0 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Dims coded = draft.coded(draft.tensor(step.in[0]).sizes());
  step.ints = {static_cast<int64_t>(draft.random.below(static_cast<uint64_t>(coded.rank())))};
  return coded[static_cast<int>(step.ints[0])] > 0;
}
Dims table_sizes(Draft& draft, const Step& step) { return draft.coded(draft.tensor(step.in[0]).sizes()); }
int dim_of(const Step& step) { return static_cast<int>(step.ints[0]); }

bool pick_list(Draft& draft, Step& step) {
  if (!pick_table(draft, step)) return false;
  step.in.push_back(draft.indices({draft.random.between(1, 7)}, table_sizes(draft, step)[dim_of(step)]));
  return true;
}
// An index for each element of the result, which is as large as the table in the other dimensions.
bool pick_places(Draft& draft, Step& step) {
  if (!pick_table(draft, step)) return false;
  Dims sizes = table_sizes(draft, step);
  const int64_t bound = sizes[dim_of(step)];
  sizes[dim_of(step)] = draft.random.between(1, 5);
  step.in.push_back(draft.indices(sizes, bound));
  return true;
}
// Values of the table's sizes go to places of `ints[1]` along the dimension: one index for each, or for each slice.
bool pick_targets(Draft& draft, Step& step, bool slices) {
  if (!pick_table(draft, step)) return false;
  const Dims sizes = table_sizes(draft, step);
  step.ints.push_back(draft.random.between(1, 6));
  step.in.push_back(draft.indices(slices ? Dims{sizes[dim_of(step)]} : sizes, step.ints[1]));
  return true;
}

// Rows, two lists of places of rows (where from, where to), and how they are combined. ints: {0, form}
constexpr int64_t kForms = 9;
bool pick_combined_rows(Draft& draft, Step& step) {
  step.in = {draft.value(
      [](const Tensor& t) { return is_floating(t.dtype()) && t.rank() > 0 && t.rank() <= 3 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const Dims sizes = draft.coded(x.sizes());
  for (int i = 0; i < 2; ++i) step.in.push_back(draft.indices({sizes[0]}, x.size(0)));
  step.ints = {0, draft.random.below(kForms)};
  step.scalar = draft.random.pick<double>({2, -0.5, 0.25});
  return true;
}

// Integers or masks. ints: keepdim, then the dimensions (none: all).
bool pick_integer_reduction(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return !is_floating(t.dtype()) && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(2)};
  for (int d = 0; d < draft.tensor(step.in[0]).rank(); ++d)
    if (draft.random.chance(0.45)) step.ints.push_back(d);
  return true;
}
Dims dims_of(const Step& step) { return Dims(std::span<const int64_t>(step.ints).subspan(1)); }
bool pick_integer_dim(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return !is_floating(t.dtype()) && t.rank() > 0 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(draft.tensor(step.in[0]).rank())};
  return true;
}
bool pick_extreme(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.rank() > 0 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(draft.tensor(step.in[0]).rank()), draft.random.below(2)};
  return true;
}

Tensor scattered(Scene& s, const Tensor& index) {
  Dims sizes = s.in[0].sizes();
  sizes[static_cast<int>(s.n(0))] = s.n(1);
  const Tensor zeros = Tensor::zeros(sizes, {s.in[0].dtype()});
  return index.rank() == 1 && s.in[0].rank() > 1 ? ops::index_add(zeros, s.n(0), index, s.in[0])
                                                 : ops::scatter_add(zeros, s.n(0), index, s.in[0]);
}

// A table's size may follow from the batch size, in ways that coded() does not see.
Tensor within(const Scene& s, const Tensor& index) {
  const int64_t size = s.in[0].size(s.n(0));
  if (size == 0) throw Error("there is nothing to look up");
  return ops::minimum(index, Tensor::full({}, static_cast<double>(size - 1), {kI64, index.device()}));
}

// Sums by index of rows that are combined with what they were picked from: a value in several roles.
Tensor combine_rows(const Scene& s) {
  const Tensor h = s.in[0] * s.step.scalar, from = within(s, s.in[1]), to = within(s, s.in[2]);
  const Tensor zeros = Tensor::zeros(h.sizes(), {h.dtype()});
  const auto picked = [&](const Tensor& table) { return ops::index_select(table, 0, from); };
  switch (s.n(1)) {
    case 0: return ops::index_add(zeros, 0, to, picked(h) + h);
    case 1: return ops::index_add(zeros, 0, to, picked(h) * h - h);
    case 2: return ops::index_add(h, 0, to, ops::tanh(picked(h)) * h);
    case 3: {  // a table of a table
      const Tensor both = picked(h) * 0.5 + h;
      return ops::index_add(s.in[0], 0, to, picked(both) - both);
    }
    case 4: {  // what is made of the table, and the table
      const Tensor far = ops::sigmoid(h);
      return ops::index_add(zeros, 0, to, picked(far) * h + far);
    }
    case 5: {  // two sums in two orders, of one value
      const Tensor made = picked(h) - h;
      return ops::index_add(zeros, 0, to, made) + ops::index_add(h, 0, from, made * h);
    }
    case 6: {  // an order that the block computes
      const ops::ValuesAndIndices sorted = ops::sort(h, 0);
      return ops::tanh(ops::scatter_add(sorted.values, 0, sorted.indices, sorted.values * h));
    }
    case 7: {  // one number for each row, along the rows and along the columns
      const Tensor each = ops::reshape(h, {h.size(0), -1}).select(1, 0);
      const Tensor square = ops::unsqueeze(each, 1) + ops::tanh(each);
      return ops::index_add(square, 0, to, square * each);
    }
    default: {  // places that are computed, and a sum by index as a table
      const Tensor sums = ops::index_add(zeros, 0, to, ops::tanh(h));
      return ops::index_add(zeros, 0, ops::minimum(from, to), picked(sums) * h + sums);
    }
  }
}

const StepKind kKinds[] = {
    {"integer_square", 4, &pick_integer, [](Scene& s) { return Tensors{s.in[0] * s.in[0] * 1000003 - 7}; }},
    {"integer_range", 2, &pick_integers,
     [](Scene& s) { return Tensors{ops::maximum(s.in[0], -s.in[1]) - ops::minimum(s.in[0], ops::abs(s.in[1]))}; }},
    {"integer_sign", 1, &pick_integer, [](Scene& s) { return Tensors{ops::sign(s.in[0]) + s.in[0]}; }},
    {"integer_where", 3, &pick_integers,
     [](Scene& s) { return Tensors{ops::where(ops::less(s.in[0], s.in[1]), s.in[0] * -3, s.in[1])}; }},
    {"integer_mask", 3, &pick_integers,
     [](Scene& s) { return Tensors{ops::equal(s.in[0], s.in[1]).to(kU8) + ops::less(s.in[1], s.in[0]).to(kU8)}; }},
    {"integer_bits", 4, &pick_bits,
     [](Scene& s) {
       const Tensor bits = bits_of(s.in[0], s.n(0) == 3 ? ops::bitwise_not(s.in[1]) : s.in[1], s.n(0) % 3);
       return Tensors{bits, ops::bitwise_and(bits, 1 + 2 * s.n(1))};
     }},
    // By as many bits as another tensor says, negative numbers and too many among them; and by a number.
    {"integer_shift", 4, &pick_bits,
     [](Scene& s) {
       const Tensor &a = s.in[0], &b = s.in[1];
       if (s.n(0) == 0) return Tensors{ops::shift_left(a, b)};
       if (s.n(0) == 1) return Tensors{ops::shift_right(a, b)};
       return Tensors{s.n(0) == 2 ? ops::shift_left(a, s.n(1)) : ops::shift_right(a, s.n(1))};
     }},
    // A hash: what a step of a generator of random numbers does.
    {"integer_hash", 2, &pick_integer,
     [](Scene& s) {
       Tensor x = s.in[0].to(kI64);
       x = ops::bitwise_xor(x, ops::shift_right(x, 30)) * int64_t{0x3F58476D1CE4E5B9};
       return Tensors{ops::bitwise_xor(x, ops::shift_left(x, 13)).to(s.in[0].dtype())};
     }},
    {"truth_bits", 3, &pick_truths,
     [](Scene& s) {
       return Tensors{bits_of(s.in[0], s.in[1], s.n(0)), ops::bitwise_not(s.in[0])};
     }},
    {"to_i64", 2, [](Draft& d, Step& s) { return (s.in = {d.floating()})[0] != kNone; },
     [](Scene& s) { return Tensors{(s.in[0] * 3).to(kI64)}; }},
    {"to_i32", 1, [](Draft& d, Step& s) { return (s.in = {d.floating()})[0] != kNone; },
     [](Scene& s) { return Tensors{(s.in[0] * 1e9).to(kI32)}; }},
    {"to_u8", 1, [](Draft& d, Step& s) { return (s.in = {d.floating()})[0] != kNone; },
     [](Scene& s) { return Tensors{(s.in[0] * 200).to(kU8)}; }},
    {"narrow_integer", 1, &pick_integer,
     [](Scene& s) {
       return Tensors{s.in[0].to(kU8), s.in[0].to(kI32)};
     }},
    {"integer_sum", 3, &pick_integer_reduction,
     [](Scene& s) { return Tensors{ops::sum(s.in[0], dims_of(s.step), s.n(0) != 0)}; }},
    {"integer_any_all", 2, &pick_integer_reduction,
     [](Scene& s) {
       const Tensor truth = ops::not_equal(s.in[0], s.in[0] * 0);
       return Tensors{ops::any(truth, dims_of(s.step), s.n(0) != 0), ops::all(truth, dims_of(s.step), s.n(0) != 0)};
     }},
    {"integer_cumsum", 2, &pick_integer_dim, [](Scene& s) { return Tensors{ops::cumsum(s.in[0], s.n(0))}; }},
    {"count_where", 3,
     [](Draft& d, Step& s) {
       s.ints = {d.random.below(2)};
       return (s.in = {d.floating(1)})[0] != kNone;
     },
     [](Scene& s) { return Tensors{ops::sum(ops::greater(s.in[0], 0.25), {-1}, s.n(0) != 0)}; }},
    {"argmin", 2, &pick_extreme,
     [](Scene& s) {
       const Tensor at = ops::argmin(s.in[0], s.n(0), true);
       return Tensors{at, s.n(1) == 0 ? ops::gather(s.in[0], s.n(0), at) : at.to(kF32) * 0.5};
     }},
    // An index that the block makes.
    {"roll", 3, &pick_extreme,
     [](Scene& s) {
       const int64_t n = s.in[0].size(s.n(0));
       const Tensor ahead = Tensor::arange(n, {kI64}) + 1;
       const Tensor index = ops::where(ops::less(ahead, n), ahead, ahead - n);
       return Tensors{ops::index_select(s.in[0], s.n(0), index)};
     }},
    {"index_select", 5, &pick_list,
     [](Scene& s) { return Tensors{ops::index_select(s.in[0], s.n(0), within(s, s.in[1]))}; }},
    {"gather", 5, &pick_places, [](Scene& s) { return Tensors{ops::gather(s.in[0], s.n(0), within(s, s.in[1]))}; }},
    {"combined_rows", 30, &pick_combined_rows, [](Scene& s) { return Tensors{combine_rows(s)}; }, kScalar},
    {"scatter_add", 4, [](Draft& d, Step& s) { return pick_targets(d, s, false); },
     [](Scene& s) { return Tensors{scattered(s, s.in[1])}; }},
    {"scatter_add_slices", 4, [](Draft& d, Step& s) { return pick_targets(d, s, true); },
     [](Scene& s) { return Tensors{scattered(s, s.in[1])}; }},
};

}  // namespace

std::span<const StepKind> index_steps() { return kKinds; }

}  // namespace rondo::fuzz

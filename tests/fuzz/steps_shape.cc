// Steps that move no data, or only move it: views, joins, elements by index.
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

// Any value of this rank or more, floating in most cases.
ValueId any(Draft& draft, int min_rank = 0) {
  if (draft.random.chance(0.9)) return draft.floating(min_rank);
  return draft.value([&](const Tensor& t) { return t.rank() >= min_rank; });
}
int64_t rank_of(Draft& draft, ValueId id) { return draft.tensor(id).rank(); }
bool pick_with_dim(Draft& draft, Step& step) {
  step.in = {any(draft, 1)};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(rank_of(draft, step.in[0]))};
  return true;
}

// The same number of elements in other sizes: factors are joined and split at random.
bool pick_reshape(Draft& draft, Step& step) {
  step.in = {any(draft)};
  if (step.in[0] == kNone) return false;
  const Dims coded = draft.coded(draft.tensor(step.in[0]).sizes());
  std::vector<int64_t> sizes(coded.begin(), coded.end());
  for (int64_t change = draft.random.between(1, 3); change > 0; --change) {
    const int64_t rank = static_cast<int64_t>(sizes.size());
    if (rank >= 2 && draft.random.chance(0.5)) {
      const size_t at = static_cast<size_t>(draft.random.below(rank - 1));
      if (sizes[at] < 0 && sizes[at + 1] < 0) continue;
      sizes[at] *= sizes[at + 1];
      sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    } else if (rank >= 1 && rank < 5) {
      const size_t at = static_cast<size_t>(draft.random.below(rank));
      const int64_t size = sizes[at], factor = draft.random.pick<int64_t>({1, 2, 3, 2});
      if (size == 0 || size % factor != 0) continue;
      sizes[at] = size / factor;
      sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(at) + draft.random.below(2), factor);
    } else if (rank == 0) {
      sizes = {1};
    }
  }
  step.sizes = Dims(std::span<const int64_t>(sizes));
  return true;
}

bool pick_permute(Draft& draft, Step& step) {
  step.in = {any(draft, 2)};
  if (step.in[0] == kNone) return false;
  for (int64_t d = 0; d < rank_of(draft, step.in[0]); ++d)
    step.ints.insert(step.ints.begin() + draft.random.below(d + 1), d);
  return true;
}
bool pick_transpose(Draft& draft, Step& step) {
  step.in = {any(draft, 2)};
  if (step.in[0] == kNone) return false;
  const int64_t rank = rank_of(draft, step.in[0]);
  step.ints = {draft.random.below(rank), draft.random.below(rank)};
  return true;
}
bool pick_expand(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) {
    bool one = t.rank() < 2;
    for (int64_t s : t.sizes()) one = one || s == 1;
    return one && t.numel() < 100;
  })};
  if (step.in[0] == kNone) return false;
  Dims sizes = draft.coded(draft.tensor(step.in[0]).sizes());
  for (int64_t& s : sizes)
    if (s == 1 && draft.random.chance(0.7)) s = draft.random.pick<int64_t>({2, 3, 4, -1, 0});
  if (sizes.rank() < 4 && draft.random.chance(0.5)) sizes.insert(0, draft.random.between(1, 3));
  step.sizes = sizes;
  return true;
}
bool pick_slice(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  const int64_t size = draft.tensor(step.in[0]).sizes()[static_cast<int>(step.ints[0])];
  if (size == 0) return false;
  const int64_t begin = draft.random.below(size), end = draft.random.between(begin, size);
  if (end == begin && !draft.random.chance(0.1)) return false;
  step.ints.insert(step.ints.end(), {begin, end, draft.random.pick<int64_t>({1, 1, 1, 2, 3})});
  return true;
}
bool pick_select(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  const int64_t size = draft.tensor(step.in[0]).sizes()[static_cast<int>(step.ints[0])];
  if (size == 0) return false;
  step.ints.push_back(draft.random.below(size));
  return true;
}
bool pick_unsqueeze(Draft& draft, Step& step) {
  step.in = {any(draft)};
  if (step.in[0] == kNone || rank_of(draft, step.in[0]) > 4) return false;
  step.ints = {draft.random.below(rank_of(draft, step.in[0]) + 1)};
  return true;
}
bool pick_split(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  const int64_t size = draft.tensor(step.in[0]).sizes()[static_cast<int>(step.ints[0])];
  if (size < 2) return false;
  step.ints.push_back(draft.random.between(1, size - 1));
  return true;
}

// Two or three values that differ in one dimension at most.
bool pick_cat(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  const Tensor first = draft.tensor(step.in[0]);
  const auto fits = [&](const Tensor& t) {
    if (t.dtype() != first.dtype() || t.rank() != first.rank()) return false;
    for (int d = 0; d < t.rank(); ++d)
      if (d != step.ints[0] && t.sizes()[d] != first.sizes()[d]) return false;
    return true;
  };
  for (int64_t n = draft.random.between(1, 2); n > 0; --n) step.in.push_back(draft.value(fits));
  return true;
}
bool pick_stack(Draft& draft, Step& step) {
  if (!pick_unsqueeze(draft, step)) return false;
  const Tensor first = draft.tensor(step.in[0]);
  step.in.push_back(
      draft.value([&](const Tensor& t) { return t.dtype() == first.dtype() && t.sizes() == first.sizes(); }));
  return true;
}

// An index for gather and scatter along step.ints[0]: smaller than x in the other dimensions, or as large.
ValueId pick_index(Draft& draft, const Step& step) {
  const Dims& sizes = draft.tensor(step.in[0]).sizes();
  Dims chosen = draft.coded(sizes);
  const int dim = static_cast<int>(step.ints[0]);
  if (sizes.numel() == 0 || chosen[dim] < 0) return kNone;  // indices do not follow the batch size
  chosen[dim] = draft.random.between(1, 4);
  return draft.indices(chosen, sizes[dim]);
}
bool pick_gather(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  step.in.push_back(pick_index(draft, step));
  return step.in[1] != kNone;
}
bool pick_scatter(Draft& draft, Step& step) {
  if (!pick_gather(draft, step)) return false;
  const Tensor x = draft.tensor(step.in[0]), index = draft.tensor(step.in[1]);
  step.in.push_back(draft.leaf(x.dtype(), draft.coded(index.sizes()), false));
  return is_floating(x.dtype());
}
bool pick_index_select(Draft& draft, Step& step) {
  if (!pick_with_dim(draft, step)) return false;
  const Dims& sizes = draft.tensor(step.in[0]).sizes();
  const int dim = static_cast<int>(step.ints[0]);
  if (sizes[dim] == 0 || draft.coded(sizes)[dim] < 0) return false;
  step.in.push_back(draft.indices({draft.random.between(1, 5)}, sizes[dim]));
  return true;
}
bool pick_sort(Draft& draft, Step& step) {
  step.in = {draft.floating(1)};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(rank_of(draft, step.in[0])), draft.random.below(2)};
  return draft.tensor(step.in[0]).numel() > 0;
}
bool pick_matrix(Draft& draft, Step& step) {
  step.in = {draft.floating(2)};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.between(-1, 1)};
  return true;
}
bool pick_with_dim_floating(Draft& draft, Step& step) {
  return pick_with_dim(draft, step) && is_floating(draft.tensor(step.in[0]).dtype());
}

Dims order_of(const Step& step) { return Dims(std::span<const int64_t>(step.ints)); }

const StepKind kKinds[] = {
    {"reshape", 8, &pick_reshape, [](Scene& s) { return Tensors{s.in[0].reshape(s.sizes())}; }, kSizes},
    {"view", 3, &pick_reshape, [](Scene& s) { return Tensors{s.in[0].view(s.sizes())}; }, kSizes},
    {"permute", 4, &pick_permute, [](Scene& s) { return Tensors{s.in[0].permute(order_of(s.step))}; }},
    {"transpose", 6, &pick_transpose, [](Scene& s) { return Tensors{s.in[0].transpose(s.n(0), s.n(1))}; }},
    {"expand", 4, &pick_expand, [](Scene& s) { return Tensors{s.in[0].expand(s.sizes())}; }, kSizes},
    {"slice", 7, &pick_slice,
     [](Scene& s) {
       return Tensors{s.in[0].slice(s.n(0), {s.n(1), s.n(2), s.n(3)})};
     }},
    {"select", 4, &pick_select,
     [](Scene& s) {
       const int64_t size = s.in[0].size(s.n(0));
       return Tensors{s.in[0].select(s.n(0), size == 0 ? 0 : s.n(1) % size)};
     }},
    {"unsqueeze", 3, &pick_unsqueeze, [](Scene& s) { return Tensors{s.in[0].unsqueeze(s.n(0))}; }},
    {"flatten", 2, &pick_unsqueeze, [](Scene& s) { return Tensors{s.in[0].flatten()}; }},
    {"split", 5, &pick_split,
     [](Scene& s) {
       const Tensors pieces = ops::split(s.in[0], s.n(1), s.n(0));
       return Tensors{pieces.front(), pieces.back()};
     }},
    {"shifted_slices", 3, &pick_with_dim,
     [](Scene& s) {
       const int64_t size = s.in[0].size(s.n(0)), part = size - size / 2;
       return Tensors{s.in[0].slice(s.n(0), {0, part}), s.in[0].slice(s.n(0), {size - part, size})};
     }},
    {"cat", 5, &pick_cat, [](Scene& s) { return Tensors{ops::cat(s.in, s.n(0))}; }},
    {"stack", 2, &pick_stack, [](Scene& s) { return Tensors{ops::stack(s.in, s.n(0))}; }},
    {"tril", 1, &pick_matrix, [](Scene& s) { return Tensors{ops::tril(s.in[0], s.n(0))}; }},
    {"triu", 1, &pick_matrix, [](Scene& s) { return Tensors{ops::triu(s.in[0], s.n(0))}; }},
    {"gather", 2, &pick_gather, [](Scene& s) { return Tensors{ops::gather(s.in[0], s.n(0), s.in[1])}; }},
    {"scatter", 1, &pick_scatter, [](Scene& s) { return Tensors{ops::scatter(s.in[0], s.n(0), s.in[1], s.in[2])}; }},
    {"scatter_add", 1, &pick_scatter,
     [](Scene& s) { return Tensors{ops::scatter_add(s.in[0], s.n(0), s.in[1], s.in[2])}; }},
    {"index_select", 2, &pick_index_select,
     [](Scene& s) { return Tensors{ops::index_select(s.in[0], s.n(0), s.in[1])}; }},
    {"cumsum", 2, &pick_with_dim_floating, [](Scene& s) { return Tensors{ops::cumsum(s.in[0], s.n(0))}; }},
    {"sort", 1, &pick_sort,
     [](Scene& s) {
       const ops::ValuesAndIndices r = ops::sort(s.in[0], s.n(0), s.n(1) != 0);
       return Tensors{r.values, r.indices};
     }},
    {"topk", 1, &pick_sort,
     [](Scene& s) {
       const ops::ValuesAndIndices r = ops::topk(s.in[0], std::min<int64_t>(2, s.in[0].size(s.n(0))), s.n(0),
                                                 s.n(1) != 0);
       return Tensors{r.values, r.indices};
     }},
    {"argmax", 1, &pick_sort, [](Scene& s) { return Tensors{ops::argmax(s.in[0], s.n(0), s.n(1) != 0)}; }},
};

}  // namespace

std::span<const StepKind> shape_steps() { return kKinds; }

}  // namespace rondo::fuzz

// Views: new sizes and strides over the same storage; and cat, the copy that undoes split.
#include <array>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

Dims dims_of(const Attrs& attrs) { return Dims(std::span<const int64_t>(attrs.ints.data(), attrs.ints.size())); }
Attrs attrs_of(const Dims& dims) {
  Attrs attrs;
  attrs.ints.assign(dims.begin(), dims.end());
  return attrs;
}

// Finds strides with which a tensor of `sizes` and `strides` can be viewed as `to`. Returns false if there are none.
bool view_strides(const Dims& sizes, const Dims& strides, const Dims& to, Dims& result) {
  result = contiguous_strides(to);
  if (sizes.numel() == 0) return true;
  // Walk both shapes from the back, one dense run of the source at a time.
  int t = to.rank() - 1;
  for (int s = sizes.rank() - 1; s >= 0;) {
    int64_t run = sizes[s], stride = strides[s];
    while (s > 0 && (sizes[s - 1] == 1 || strides[s - 1] == run * stride)) run *= sizes[--s];
    // Sizes of 1 may carry any stride.
    if (run == 1) {
      --s;
      continue;
    }
    int64_t taken = 1;
    while (t >= 0 && taken < run) {
      if (to[t] != 1) result[t] = taken * stride;
      taken *= to[t--];
    }
    if (taken != run) return false;
    --s;
  }
  return true;
}

Dims resolve_sizes(const char* op, TensorArg x, Dims sizes) {
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < sizes.rank(); ++i) {
    if (sizes[i] == -1 && unknown < 0) unknown = i;
    else if (__builtin_mul_overflow(known, sizes[i], &known)) known = 0;
  }
  const int64_t numel = x.tensor.numel();
  if (unknown >= 0 && known > 0 && numel % known == 0) sizes[unknown] = numel / known;
  bool valid = true;
  for (int64_t d : sizes) valid = valid && d >= 0;
  if (!valid || checked_numel(sizes) != numel)
    throw_op_error(op, absl::StrCat("cannot show ", to_string(x.tensor.sizes()), " as ", to_string(sizes)), x.where);
  return sizes;
}

}  // namespace

// ints: the new sizes
constexpr OpDef kView = {
    .name = "view",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          Dims strides;
          const Dims to = dims_of(c.attrs());
          if (!view_strides(c.sizes(0), c.strides(0), to, strides)) c.fail("the strides do not allow it; use reshape");
          c.view(to, strides, c.offset(0));
        },
    .grad = [](const GradContext& g) { g.set(0, reshape(g.grad_out(), g.input_sizes(0))); },
};

// ints: for each dimension of the result, the dimension of the input that it shows
constexpr OpDef kPermute = {
    .name = "permute",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          const int rank = c.sizes(0).rank();
          Dims sizes, strides;
          uint32_t taken = 0;  // a bit for each dimension of the input that was named already
          for (int64_t d : c.attrs().ints) {
            if (d < 0 || d >= rank || (taken >> d & 1u) != 0) break;
            taken |= 1u << d;
            sizes.push_back(c.sizes(0)[static_cast<int>(d)]);
            strides.push_back(c.strides(0)[static_cast<int>(d)]);
          }
          if (sizes.rank() != rank || std::ssize(c.attrs().ints) != rank) [[unlikely]]
            c.fail("needs every dimension of the input once");
          c.view(sizes, strides, c.offset(0));
        },
    .grad =
        [](const GradContext& g) {
          Dims inverse = Dims::filled(static_cast<int>(g.attrs().ints.size()), 0);
          for (int i = 0; i < inverse.rank(); ++i) inverse[static_cast<int>(g.integer(i))] = i;
          g.set(0, permute(g.grad_out(), inverse));
        },
};

// ints: the new sizes
constexpr OpDef kExpand = {
    .name = "expand",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          const Dims to = dims_of(c.attrs());
          Dims sizes;
          if (!broadcast_shapes(c.sizes(0), to, sizes) || !(sizes == to) || checked_numel(to) < 0)
            c.fail("cannot be expanded to " + to_string(to));
          c.view(to, broadcast_strides(c.sizes(0), c.strides(0), to), c.offset(0));
        },
    .grad = [](const GradContext& g) { g.set_reduced(0, g.grad_out()); },
};

namespace {

// The number of ints that slice_grad has for each operand: {dim, begin, step}.
constexpr int kPlaceInts = 3;

void slice_grad_infer(InferContext& c) {
  c.require_floating(0);
  const auto& ints = c.attrs().ints;
  const auto n = static_cast<size_t>(c.n_inputs());
  const size_t rank = ints.size() - std::min(ints.size(), n * kPlaceInts);
  if (rank < 1 || rank > kMaxRank) c.fail("needs the sizes of the result, and {dim, begin, step} of each operand");
  const Dims sizes(std::span<const int64_t>(ints.data(), rank));
  if (checked_numel(sizes) < 0) c.fail("the sizes are not those of a tensor");
  for (int i = 0; i < c.n_inputs(); ++i) {
    const int at = static_cast<int>(rank) + kPlaceInts * i, dim = dim_in(c, at, sizes.rank());
    const int64_t begin = c.integer(at + 1), step = c.integer(at + 2);
    Dims part = c.sizes(i), rest = sizes;
    c.require_same_dtype(0, i);
    const bool is_select = part.rank() == sizes.rank() - 1;
    const int64_t n = is_select ? 1 : part.rank() == sizes.rank() ? part[dim] : -1;
    rest.erase(dim);
    if (part.rank() == sizes.rank()) part.erase(dim);
    const bool fits = begin >= 0 && step > 0 &&
                      (n == 0 || (n > 0 && begin < sizes[dim] && n - 1 <= (sizes[dim] - 1 - begin) / step));
    if (!fits || !(part == rest)) c.fail(absl::StrCat("operand ", i, " is no slice of ", to_string(sizes)));
  }
  c.output(0, c.dtype(0), sizes);
}

// Adds the gradients of slices of input 0 to the gradient that input 0 has received so far. `ints`: {dim, begin, step}
// of each slice.
void add_slices(const GradContext& g, std::span<const Tensor> grads, std::span<const int64_t> ints) {
  Tensor total = g.take_total(0);
  const bool joins = total.defined() && total.dtype() == grads[0].dtype();
  Attrs attrs;
  attrs.ints.assign(g.input_sizes(0).begin(), g.input_sizes(0).end());
  std::vector<TensorArg> operands;
  operands.reserve(grads.size() + 1);
  if (joins) {
    attrs.ints.append({0, 0, 1});
    operands.emplace_back(total);
  }
  attrs.ints.append(ints);
  for (const Tensor& grad : grads) operands.emplace_back(grad);
  if (joins && autograd::may_add_slices_in_place(total)) {
    call_in_place(kSliceGrad, operands, attrs);
    return g.set(0, std::move(total));
  }
  Tensor sum = call(kSliceGrad, operands, attrs);
  g.set(0, total.defined() && !joins ? total + sum : std::move(sum));
}

}  // namespace

// Writes operand 0 at its position into zeros, then adds the other operands, in order, at their positions. So one call
// is the gradient of any number of slices of one tensor. If operand 0 covers everything, the call adds slices to it. An
// operand is a slice, or (with a dimension less) a select. ints: {sizes..., {dim, begin, step} of each operand}
constexpr OpDef kSliceGrad = {
    .name = "slice_grad",
    .kind = OpKind::kOpaque,
    .infer = &slice_grad_infer,
    .host = {&cpu::slice_grad_kernel},
    .grad =
        [](const GradContext& g) {
          const Dims& sizes = g.grad_out().sizes();
          for (int i = 0; i < g.n_inputs(); ++i) {
            if (!g.needs(i)) continue;
            const int at = sizes.rank() + kPlaceInts * i, dim = static_cast<int>(g.integer(at));
            const int64_t begin = g.integer(at + 1), step = g.integer(at + 2);
            const Dims& part = g.input_sizes(i);
            if (part == sizes) g.set(i, g.grad_out());
            else if (part.rank() < sizes.rank()) g.set(i, select(g.grad_out(), dim, begin));
            else
              g.set(i, slice(g.grad_out(), dim,
                             {begin, part[dim] == 0 ? begin : begin + (part[dim] - 1) * step + 1, step}));
          }
        },
    .chains = kPlaceInts,
    .reuses = 0,
};

// ints: {dim, begin, end, step}, already clamped
constexpr OpDef kSlice = {
    .name = "slice",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          const int dim = static_cast<int>(c.integer(0));
          const int64_t begin = c.integer(1), end = c.integer(2), step = c.integer(3);
          Dims sizes = c.sizes(0), strides = c.strides(0);
          sizes[dim] = end > begin ? (end - begin - 1) / step + 1 : 0;  // a step may be as large as an int64_t
          const int64_t offset = c.offset(0) + begin * strides[dim];
          strides[dim] *= step;
          c.view(sizes, strides, offset);
        },
    .grad =
        [](const GradContext& g) {
          add_slices(g, {&g.grad_out(), 1}, std::array{g.integer(0), g.integer(1), g.integer(3)});
        },
    .channels_last = &call_as_usual,
    .grad_adds = true,
};

// ints: {dim, index}
constexpr OpDef kSelect = {
    .name = "select",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          const int dim = static_cast<int>(c.integer(0));
          Dims sizes = c.sizes(0), strides = c.strides(0);
          const int64_t offset = c.offset(0) + c.integer(1) * strides[dim];
          sizes.erase(dim);
          strides.erase(dim);
          c.view(sizes, strides, offset);
        },
    .grad =
        [](const GradContext& g) {
          add_slices(g, {&g.grad_out(), 1}, std::array{g.integer(0), g.integer(1), int64_t{1}});
        },
    .grad_adds = true,
};

namespace {

void split_infer(InferContext& c) {
  const int dim = dim_in(c, 0, c.sizes(0).rank());
  const int64_t total = c.sizes(0)[dim], size = c.integer(1), step = std::max<int64_t>(size, 1);
  if (size < 0) c.fail("the size of a part is negative");
  int i = 0;
  for (int64_t begin = 0; begin < total; ++i) {
    const int64_t n = std::min(step, total - begin);
    Dims sizes = c.sizes(0), strides = c.strides(0);
    const int64_t offset = c.offset(0) + begin * strides[dim];
    sizes[dim] = n;
    if (size == 0) {
      sizes.erase(dim);
      strides.erase(dim);
    }
    c.view(sizes, strides, offset, i);
    begin += n;
  }
}

void split_grad(const GradContext& g) {
  const int64_t dim = g.integer(0), step = std::max<int64_t>(g.integer(1), 1);
  std::vector<Tensor> grads;
  std::vector<int64_t> ints;
  for (int i = 0; i < g.n_outputs(); ++i) {
    if (!g.grad_out(i).defined()) continue;
    grads.push_back(g.grad_out(i));
    ints.insert(ints.end(), {dim, i * step, 1});
  }
  // If all parts have gradients, and there is nothing to add them to, the result is a mere copy. A compiler can even
  // avoid the copy, because the producers of the parts can write into the result.
  Tensor total = g.take_total(0);
  const bool copies = g.integer(1) > 0 && !total.defined() && std::ssize(grads) == g.n_outputs();
  if (copies) return g.set(0, cat(grads, dim));
  g.set(0, std::move(total));
  add_slices(g, grads, ints);
}

void cat_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                       std::span<Tensor> outputs) {
  std::vector<Tensor> parts;  // `operands` refers to these tensors
  for (const TensorArg& part : inputs) parts.push_back(channels_to_back(part));
  std::vector<TensorArg> operands;
  for (size_t i = 0; i < parts.size(); ++i) operands.emplace_back(parts[i], inputs[i].where);
  const Tensor joined = call(op, operands, {.ints = {dim_at_back(static_cast<int>(attrs.ints[0]))}});
  outputs[0] = result_to_front(joined, inputs[0].where);
}

}  // namespace

// ints: {dim, size of a part}. A size of 0 means unbind: each index is a part, without the dimension. One op makes all
// parts.
constexpr OpDef kSplit = {
    .name = "split",
    .kind = OpKind::kView,
    .n_outputs = -1,
    .infer = &split_infer,
    .grad = &split_grad,
    .grad_adds = true,
};

// ints: {dim}
constexpr OpDef kCat = {
    .name = "cat",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          Dims sizes = c.sizes(0);
          const int dim = dim_in(c, 0, sizes.rank());
          for (int i = 1; i < c.n_inputs(); ++i) {
            Dims other = c.sizes(i);
            if (other.rank() != sizes.rank()) c.fail("operands must have the same number of dimensions");
            const int64_t here = other[dim];
            other[dim] = sizes[dim];
            if (!(other == sizes)) c.fail("sizes may differ only along the dimension of cat");
            c.require_same_dtype(0, i);
            sizes[dim] += here;
          }
          c.output(0, c.dtype(0), sizes);
        },
    .host = {&cpu::cat_kernel},
    .grad =
        [](const GradContext& g) {
          const int dim = static_cast<int>(g.integer(0));
          int64_t begin = 0;
          for (int i = 0; i < g.n_inputs(); ++i) {
            const int64_t n = g.input_sizes(i)[dim];
            if (g.needs(i)) g.set(i, slice(g.grad_out(), dim, {begin, begin + n}));
            begin += n;
          }
        },
    .trait = trait::SideBySide{},
    .strided_outputs = true,
    .channels_last = &cat_channels_last,
    .chains = 0,
};

Tensor view(TensorArg x, const Dims& sizes) {
  require_defined("view", x);
  return call(kView, {x}, attrs_of(resolve_sizes("view", x, sizes)));
}

Tensor reshape(TensorArg x, const Dims& to) {
  require_defined("reshape", x);
  const Dims sizes = resolve_sizes("reshape", x, to);
  if (sizes == x.tensor.sizes()) return x.tensor;
  Dims strides;
  if (view_strides(x.tensor.sizes(), x.tensor.strides(), sizes, strides)) return call(kView, {x}, attrs_of(sizes));
  return view({x.tensor.clone(x.where), x.where}, sizes);
}

Tensor permute(TensorArg x, const Dims& order) {
  require_defined("permute", x);
  const int rank = x.tensor.rank();
  Dims normal;
  uint32_t seen = 0;
  for (int64_t d : order) {
    normal.push_back(normalize_dim("permute", d, rank, x.where));
    seen |= 1u << normal.back();
  }
  if (order.rank() != rank || seen != (1u << rank) - 1)
    throw_op_error("permute", to_string(order) + " is not an order of " + std::to_string(rank) + " dimensions",
                   x.where);
  return call(kPermute, {x}, attrs_of(normal));
}

Tensor transpose(TensorArg x, int64_t a, int64_t b) {
  require_defined("transpose", x);
  const int rank = x.tensor.rank();
  Dims order;
  for (int i = 0; i < rank; ++i) order.push_back(i);
  std::swap(order[normalize_dim("transpose", a, rank, x.where)], order[normalize_dim("transpose", b, rank, x.where)]);
  return call(kPermute, {x}, attrs_of(order));
}

Tensor expand(TensorArg x, const Dims& to) {
  require_defined("expand", x);
  Dims sizes = to;
  const int lead = to.rank() - x.tensor.rank();
  for (int i = 0; i < to.rank(); ++i)
    if (sizes[i] == -1 && i >= lead) sizes[i] = x.tensor.sizes()[i - lead];
  return call(kExpand, {x}, attrs_of(sizes));
}

Tensor select(TensorArg x, int64_t dim, int64_t index) {
  require_defined("select", x);
  if (x.tensor.rank() == 0) throw_op_error("select", "a scalar has no dimension to select from", x.where);
  const int d = normalize_dim("select", dim, x.tensor.rank(), x.where);
  const int64_t size = x.tensor.sizes()[d];
  if (index < -size || index >= size)
    throw_op_error("select", absl::StrCat("index ", index, " is out of range for size ", size), x.where);
  return call(kSelect, {x}, {.ints = {d, index < 0 ? index + size : index}});
}

Tensor slice(TensorArg x, int64_t dim, Slice range) {
  require_defined("slice", x);
  if (x.tensor.rank() == 0) throw_op_error("slice", "a scalar has no dimension to slice", x.where);
  const int d = normalize_dim("slice", dim, x.tensor.rank(), x.where);
  if (range.step <= 0) throw_op_error("slice", absl::StrCat("the step must be positive, not ", range.step), x.where);
  const int64_t size = x.tensor.sizes()[d];
  const auto clamp = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t begin = clamp(range.begin), end = std::max(begin, clamp(range.end));
  return call(kSlice, {x}, {.ints = {d, begin, end, range.step}});
}

Tensor squeeze(TensorArg x, int64_t dim) {
  require_defined("squeeze", x);
  const int d = normalize_dim("squeeze", dim, x.tensor.rank(), x.where);
  Dims sizes = x.tensor.sizes();
  if (sizes.empty() || sizes[d] != 1) return x.tensor;
  sizes.erase(d);
  return view(x, sizes);
}

Tensor unsqueeze(TensorArg x, int64_t dim) {
  require_defined("unsqueeze", x);
  Dims sizes = x.tensor.sizes();
  sizes.insert(normalize_dim("unsqueeze", dim, sizes.rank() + 1, x.where), 1);
  return view(x, sizes);
}

Tensor flatten(TensorArg x, int64_t first, int64_t last) {
  require_defined("flatten", x);
  const int rank = x.tensor.rank();
  if (rank == 0) return view(x, {1});
  const int a = normalize_dim("flatten", first, rank, x.where), b = normalize_dim("flatten", last, rank, x.where);
  if (a > b)
    throw_op_error("flatten", absl::StrCat("from dimension ", first, " to ", last, ", which comes before it"), x.where);
  Dims sizes;
  for (int i = 0; i < rank; ++i) {
    if (i > a && i <= b) sizes[sizes.rank() - 1] *= x.tensor.sizes()[i];
    else sizes.push_back(x.tensor.sizes()[i]);
  }
  return reshape(x, sizes);
}

namespace {

// Splits along a dimension that is in range, into parts of `size` (0: unbind).
std::vector<Tensor> split_into(TensorArg x, int64_t size, int d) {
  const int64_t total = x.tensor.sizes()[d], step = std::max<int64_t>(size, 1);
  std::vector<Tensor> parts(static_cast<size_t>(total / step + (total % step != 0)));
  if (!parts.empty()) call(kSplit, {x}, {.ints = {d, size}}, parts);
  else if (size > 0) parts.push_back(slice(x, d, {0, 0}));
  return parts;
}

int dim_to_split(const char* op, TensorArg x, int64_t dim) {
  require_defined(op, x);
  if (x.tensor.rank() == 0) throw_op_error(op, "a scalar has no dimension to split", x.where);
  return normalize_dim(op, dim, x.tensor.rank(), x.where);
}

}  // namespace

std::vector<Tensor> split(TensorArg x, int64_t size, int64_t dim) try {
  const int d = dim_to_split("split", x, dim);
  if (size <= 0) throw_op_error("split", absl::StrCat("the size of a part must be positive, not ", size), x.where);
  return split_into(x, size, d);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("split");
}

std::vector<Tensor> chunk(TensorArg x, int64_t n, int64_t dim) try {
  const int d = dim_to_split("chunk", x, dim);
  if (n <= 0) throw_op_error("chunk", absl::StrCat("the number of parts must be positive, not ", n), x.where);
  const int64_t total = x.tensor.sizes()[d];
  return split_into(x, std::max<int64_t>(1, total / n + (total % n != 0)), d);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("chunk");
}

std::vector<Tensor> unbind(TensorArg x, int64_t dim) try {
  return split_into(x, 0, dim_to_split("unbind", x, dim));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("unbind");
}

Tensor cat(std::span<const Tensor> parts, int64_t dim, std::source_location where) try {
  if (parts.empty()) throw_op_error("cat", "needs at least one tensor", where);
  for (const Tensor& part : parts) require_defined("cat", {part, where});
  if (parts[0].rank() == 0) throw_op_error("cat", "a scalar has no dimension to join along; use stack", where);
  const int d = normalize_dim("cat", dim, parts[0].rank(), where);
  std::vector<const Tensor*> all;
  for (const Tensor& part : parts) all.push_back(&part);
  const DType dtype = result_dtype(all);
  const bool last = std::all_of(parts.begin(), parts.end(), &lies_channels_last);
  std::vector<Tensor> converted;  // `operands` refers to these tensors
  for (const Tensor& part : parts) converted.push_back(part.to(dtype, where));
  std::vector<TensorArg> operands;
  for (const Tensor& part : converted) operands.emplace_back(part, where);
  const Attrs attrs{.ints = {d}};
  if (!last) return call(kCat, operands, attrs);
  Tensor joined;
  kCat.channels_last(kCat, operands, attrs, {&joined, 1});
  return joined;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("cat");
}

Tensor cat(std::initializer_list<Tensor> parts, int64_t dim, std::source_location where) {
  return cat(std::span(parts.begin(), parts.size()), dim, where);
}

Tensor stack(std::span<const Tensor> parts, int64_t dim, std::source_location where) try {
  if (parts.empty()) throw_op_error("stack", "needs at least one tensor", where);
  for (const Tensor& part : parts) require_defined("stack", {part, where});
  const int d = normalize_dim("stack", dim, parts[0].rank() + 1, where);
  std::vector<Tensor> raised;
  for (const Tensor& part : parts) {
    if (!(part.sizes() == parts[0].sizes()))
      throw_op_error("stack",
                     absl::StrCat("needs tensors of one shape, got ", to_string(parts[0].sizes()), " and ",
                                  to_string(part.sizes())),
                     where);
    raised.push_back(unsqueeze({part, where}, d));
  }
  return cat(raised, d, where);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("stack");
}

Tensor stack(std::initializer_list<Tensor> parts, int64_t dim, std::source_location where) {
  return stack(std::span(parts.begin(), parts.size()), dim, where);
}

constexpr OpList kViewOps = {&kView, &kPermute, &kExpand, &kSlice, &kSliceGrad, &kSelect, &kSplit, &kCat};

}  // namespace rondo::ops

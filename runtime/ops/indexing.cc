// Ops that read or write elements by index (gather, scatter), that order elements (sort, topk, argmax), and running
// sums. In the attributes, `dim` is ints[0] unless a comment says otherwise.
#include <bit>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/called_as.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/ops/table.h"

namespace rondo {

LoopValue LoopBuilder::pick(int, int) { throw_internal("this builder makes no kernel that picks elements"); }
void LoopBuilder::check_index(int, int64_t) { throw_internal("this builder makes no kernel that checks indices"); }
LoopValue LoopBuilder::index(int) { throw_internal("this builder makes no kernel that knows the place of an element"); }
LoopValue LoopBuilder::scan(LoopValue) { throw_internal("this builder makes no kernel of running sums"); }

}  // namespace rondo

namespace rondo::ops {
namespace {

int dim_of(const char* op, const Tensor& x, int64_t dim, std::source_location where) {
  require_defined(op, {x, where});
  return normalize_dim(op, dim, x.sizes(), where);
}

// Fails unless `index` (input i) can pick from a tensor of `sizes` along `dim`: it must be i64 with the same rank, and
// no larger in any other dimension.
void require_index(InferContext& c, int i, const Dims& sizes, int dim) {
  if (c.dtype(i) != kI64) c.fail("index must be i64");
  const Dims& index = c.sizes(i);
  if (index.rank() != sizes.rank()) c.fail("index must have as many dimensions as the tensor");
  for (int d = 0; d < index.rank(); ++d)
    if (d != dim && index[d] > sizes[d]) c.fail(absl::StrCat("index is larger than the tensor in dimension ", d));
}

Attrs scatter_sum_attrs(int64_t dim, const Dims& sizes) {
  Attrs attrs{.ints = {dim}};
  for (int64_t d : sizes) attrs.ints.push_back(d);
  return attrs;
}

}  // namespace

Tensor index_operand(const char* op, TensorArg index) {
  require_defined(op, index);
  const DType dtype = index.tensor.dtype();
  if (!is_index(dtype))
    throw_op_error(op,
                   absl::StrCat("indices, such as token ids and targets, must be i64 or i32, got ",
                                std::string(name_of(dtype)), to_string(index.tensor.sizes()),
                                dtype == kBool ? "; a mask chooses with where(mask, a, b) or masked_fill(x, mask, "
                                                 "value), or as a factor: x * mask"
                                               : ""),
                   index.where);
  return index.tensor.to(kI64, index.where);
}

// ---- Gather and scatter

// Checks the indices of a lookup. A `decompose` makes this check an op of its own (Note [Checks are effects]). index
// (any shape, i64) must lie in [0, size). Output: a bool that nothing reads. ints: {size, Lookup}
constexpr OpDef kCheckIndices = {
    .name = "check_indices",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          if (c.dtype(0) != kI64) c.fail("indices must be i64");
          if (c.integer(0) < 0) c.fail("a size is negative");
          lookup_in(c.integer(1));
          c.output(0, kBool, {});
        },
    .host = {&cpu::check_indices_kernel},
    .lower = [](LoopBuilder& b) { b.check_index(0, b.integer(0)); },
    .checks = true,
};
LookupName lookup_in(int64_t lookup) {
  switch (static_cast<Lookup>(lookup)) {
    case Lookup::kEmbedding: return {"embedding", true};
    case Lookup::kIndexSelect: return {"index_select", true};
    case Lookup::kGather: return {"gather", false};
    case Lookup::kScatterAdd: return {"scatter_add", false};
    case Lookup::kEmbeddingGrad: return {"embedding_grad", true};
  }
  throw Error("check_indices: there is no such lookup");
}
LookupName lookup_of(const Attrs& checks) { return lookup_in(checks.ints[1]); }
void check_indices(const Tensor& index, int64_t size, Lookup lookup) {
  call(kCheckIndices, {index}, {.ints = {size, static_cast<int64_t>(lookup)}});
}

// Inputs values, index (both of one shape), and perhaps x. Adds each values[i] at index[i] to x, or to zeros if there
// is no x. ints: {dim, sizes of the result...}.
constexpr OpDef kScatterSum = {
    .name = "scatter_add",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          Dims sizes;
          for (size_t i = 1; i < c.attrs().ints.size(); ++i) sizes.push_back(c.attrs().ints[i]);
          require_index(c, 1, sizes, dim_in(c, 0, sizes.rank()));
          if (!(c.sizes(0) == c.sizes(1))) c.fail("values and index must have the same shape");
          if (c.has(2)) {
            c.require_same_dtype(0, 2);
            if (!(c.sizes(2) == sizes)) c.fail("the tensor to add to must have the sizes of the result");
          }
          c.output(0, c.dtype(0), sizes);
        },
    .host = {&cpu::scatter_sum_kernel},
    .grad =
        [](const GradContext& g) {
          if (g.needs(0)) g.set(0, gather(g.grad_out(), g.integer(0), g.input(1)));
          if (g.needs(2)) g.set(2, g.grad_out());
        },
    .trait = trait::SumByIndex{},
    .reuses = 2,
    .checks = true,
};

namespace {

void gather_infer(InferContext& c) {
  require_index(c, 1, c.sizes(0), dim_in(c, 0, c.sizes(0).rank()));
  c.output(0, c.dtype(0), c.sizes(1));
}
void gather_grad(const GradContext& g) {
  g.set(0, call(kScatterSum, {g.grad_out(), g.input(1)}, scatter_sum_attrs(g.integer(0), g.input_sizes(0))));
}

}  // namespace

// Inputs x, index. As kGather, but the indices are already checked. Decompositions call it, because it fuses with its
// neighbours.
constexpr OpDef kPick = {
    .name = "pick",
    .kind = OpKind::kElementwise,
    .saved = {.inputs = kSecond},
    .infer = &gather_infer,
    .host = {&cpu::gather_kernel},
    .grad = &gather_grad,
    .lower = [](LoopBuilder& b) { b.output(0, b.pick(0, 1)); },
    .trait = trait::Pick{},
};

// Inputs x, index.
constexpr OpDef kGather = {
    .name = "gather",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer = &gather_infer,
    .host = {&cpu::gather_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Dims& sizes = in[0].sizes();
          check_indices(in[1], sizes.empty() ? 1 : sizes[static_cast<int>(attrs.ints[0])], Lookup::kGather);
          out[0] = call(kPick, {in[0], in[1]}, attrs);
        },
    .grad = &gather_grad,
    .checks = true,
};

// Inputs x, index, source (index's shape, or a scalar): x with source[i] written at index[i], the last one winning.
constexpr OpDef kScatter = {
    .name = "scatter",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          require_index(c, 1, c.sizes(0), dim_in(c, 0, c.sizes(0).rank()));
          c.require_same_dtype(0, 2);
          if (!c.sizes(2).empty() && !(c.sizes(2) == c.sizes(1)))
            c.fail("source must have index's shape, or be a scalar");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::scatter_kernel},
    .grad =
        [](const GradContext& g) {
          const int64_t dim = g.integer(0);
          const Tensor& index = g.input(1);
          if (g.needs(0)) g.set(0, scatter(g.grad_out(), dim, index, 0.0));
          if (!g.needs(2)) return;
          // If indices are equal, only the value that was written last is in the result.
          const TensorOptions numbers{kI64, index.device()};
          const Tensor number = reshape(Tensor::arange(index.numel(), numbers), index.sizes());
          const Tensor winner = gather(scatter(Tensor::zeros(g.input_sizes(0), numbers), dim, index, number), dim,
                                       index);
          g.set_reduced(2, where(equal(winner, number), gather(g.grad_out(), dim, index), 0.0));
        },
    .checks = true,
};

// Inputs x (B, H, S, D), source (B, H, T, D), at (B, T): x with source[b, h, t] as row at[b, t] of x[b, h]. An index
// outside of [0, S) is no error: the row is not written, which serves padding. So the op has no checks. With checks, a
// call could not overwrite x if another call with checks follows (plan/memory.cc), as in a model of several layers.
constexpr OpDef kWriteRows = {
    .name = "write_rows",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          const Dims &x = c.sizes(0), &source = c.sizes(1), &at = c.sizes(2);
          if (x.rank() != 4 || source.rank() != 4 || x[0] != source[0] || x[1] != source[1] || x[3] != source[3])
            c.fail("needs x (B, H, S, D) and a source (B, H, T, D)");
          c.require_same_dtype(0, 1);
          if (c.dtype(2) != kI64 || !(at == Dims{source[0], source[2]})) c.fail("places must be i64 (B, T)");
          c.output(0, c.dtype(0), x);
        },
    .host = {&cpu::write_rows_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
          const int64_t B = in[0].sizes()[0], S = in[0].sizes()[2], T = in[1].sizes()[2];
          out[0] = in[0].clone();
          for (int64_t t = 0; t < T; ++t) {
            const Tensor here = equal(Tensor::arange(S, {kI64, in[0].device()}),
                                      slice(in[2], 1, {t, t + 1}));  // (B, S)
            out[0] = where(reshape(here, {B, 1, S, 1}), slice(in[1], 2, {t, t + 1}), out[0]);
          }
        },
    .reuses = 0,
    .fuse_parts = false,
};

// The sum of integers or bools is computed in i64, that of floats in f64 and rounded to their dtype. ints: {dim,
// reverse}
constexpr OpDef kCumsum = {
    .name = "cumsum",
    .kind = OpKind::kOpaque,
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          dim_in(c, 0, c.sizes(0).rank());
          c.output(0, is_floating(c.dtype(0)) ? c.dtype(0) : kI64, c.sizes(0));
        },
    .host = {&cpu::cumsum_kernel},
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kCumsum, {g.grad_out()}, {.ints = {g.integer(0), !g.integer(1)}}));
        },
    .lower =
        [](LoopBuilder& b) {
          const LoopValue x = b.input(0);
          b.output(0, b.scan(b.emit(LoopOp::kCast, is_floating(x.type) ? kF64 : kI64, x)));
        },
    .trait = trait::Scan{},
};

Tensor gather(TensorArg x, int64_t dim, TensorArg index) {
  const int d = dim_of("gather", x.tensor, dim, x.where);
  const Tensor at = index_operand("gather", index);
  return call(kGather, {x, {at, index.where, index.tensor.dtype()}}, {.ints = {d}});
}
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, TensorArg source) {
  const int d = dim_of("scatter", x.tensor, dim, x.where);
  require_defined("scatter", source);
  const DType dtype = result_dtype(x.tensor, source.tensor);
  const Tensor target = x.tensor.to(dtype, x.where), values = source.tensor.to(dtype, source.where);
  const Tensor at = index_operand("scatter", index);
  return call(kScatter,
              {{target, x.where, x.tensor.dtype()},
               {at, index.where, index.tensor.dtype()},
               {values, source.where, source.tensor.dtype()}},
              {.ints = {d}});
}
Tensor scatter(TensorArg x, int64_t dim, TensorArg index, Scalar value) {
  const int d = dim_of("scatter", x.tensor, dim, x.where);
  require_in_range("scatter", value, x.tensor.dtype(), x.where);
  const Tensor source = number_tensor(value, {}, {x.tensor.dtype(), x.tensor.device()});
  const Tensor at = index_operand("scatter", index);
  return call(kScatter, {x, {at, index.where, index.tensor.dtype()}, {source, x.where}}, {.ints = {d}});
}
Tensor scatter_add(TensorArg x, int64_t dim, TensorArg index, TensorArg source) {
  const int d = dim_of("scatter_add", x.tensor, dim, x.where);
  require_defined("scatter_add", source);
  const Tensor values = source.tensor.to(result_dtype(x.tensor, source.tensor), source.where);
  const Tensor at = index_operand("scatter_add", index);
  return call(kScatterSum,
              {{values, source.where, source.tensor.dtype()},
               {at, index.where, index.tensor.dtype()},
               {x.tensor.to(values.dtype(), x.where), x.where, x.tensor.dtype()}},
              scatter_sum_attrs(d, x.tensor.sizes()));
}
Tensor index_add(TensorArg x, int64_t dim, TensorArg index, TensorArg source) {
  const int d = dim_of("index_add", x.tensor, dim, x.where);
  require_defined("index_add", source);
  const Tensor at = index_operand("index_add", index);
  const Dims& sizes = source.tensor.sizes();
  Dims wanted = x.tensor.sizes();
  if (at.rank() != 1)
    throw_op_error("index_add", "index must have shape (N), got " + to_string(at.sizes()), index.where);
  if (wanted.empty()) throw_op_error("index_add", "a scalar has no dimension to add along", x.where);
  wanted[d] = at.sizes()[0];
  if (!(sizes == wanted))
    throw_op_error("index_add", absl::StrCat("source must have sizes ", to_string(wanted), ", got ", to_string(sizes)),
                   source.where);
  Dims list = Dims::filled(wanted.rank(), 1);
  list[d] = at.sizes()[0];
  return scatter_add(x, d, {expand(reshape(at, list), wanted), index.where}, source);
}
Tensor index_select(TensorArg x, int64_t dim, TensorArg index) {
  return select_slices(x, dim_of("index_select", x.tensor, dim, x.where), index).contiguous(x.where);
}
Tensor select_slices(const TensorArg& x, int d, const TensorArg& index) {
  const Tensor at = index_operand("index_select", index);
  if (at.rank() != 1)
    throw_op_error("index_select", "index must have shape (N), got " + to_string(at.sizes()), index.where);
  if (x.tensor.rank() == 0) throw_op_error("index_select", "a scalar has no dimension to select from", x.where);
  // Makes x a table with a row for each index along dim.
  const Tensor front = transpose(x, 0, d);
  Dims sizes = front.sizes();
  const int64_t rows = sizes[0];
  sizes[0] = 1;
  const int64_t cols = sizes.numel();
  sizes[0] = at.sizes()[0];
  const Tensor picked = call(kIndexSelect, {{reshape({front, x.where}, {rows, cols}), x.where}, {at, index.where}});
  return transpose(reshape(picked, sizes), 0, d);
}
void write_rows_(TensorArg x, TensorArg source, TensorArg at) {
  const Tensor places = index_operand("write_rows", at);
  call_in_place(kWriteRows, {x, source, {places, at.where, at.tensor.dtype()}});
}
Tensor cumsum(TensorArg x, int64_t dim) {
  return call(kCumsum, {x}, {.ints = {dim_of("cumsum", x.tensor, dim, x.where), 0}});
}

// ---- Sorting and selection: argmax, argmin, argsort, sort, topk. The ops return only indices. sort() and topk() read
// the values with gather(), which is differentiable.

namespace {

void require_comparable(InferContext& c) {
  if (c.dtype(0) == kBool) c.fail("bool has no order; cast to a number first");
}

}  // namespace

namespace {

// Finds the first column that holds the best value. NaN is the best value; a separate test finds it, because it equals
// nothing.
void lower_argmax(LoopBuilder& b) {
  const LoopValue x = b.input(0);
  const LoopValue best = b.reduce(b.integer(2) != 0 ? LoopOp::kReduceMin : LoopOp::kReduceMax, x);
  LoopValue hit = scalar::eq(x, best);
  if (is_floating(x.type)) hit = scalar::logical_or(hit, scalar::ne(x, x));
  const LoopValue at = b.index(reduced_dim(b.integer(0)));
  b.output(0, b.reduce(LoopOp::kReduceMin, scalar::select(hit, at, scalar::constant(at, 0x1p63))));
}

}  // namespace

// The index of the largest (smallest) element along one dimension. ints: {mask of the dimension, keepdim, smallest}
constexpr OpDef kArgmax = {
    .name = "argmax",
    .kind = OpKind::kReduction,
    .infer =
        [](InferContext& c) {
          require_comparable(c);
          const Dims& sizes = c.sizes(0);
          if (!sizes.empty() && !std::has_single_bit(static_cast<uint64_t>(c.integer(0))))
            c.fail("one dimension at a time");
          if (reduced_dim(c.integer(0)) >= std::max(sizes.rank(), 1)) c.fail("there is no such dimension");
          const int64_t n = reduced_numel(sizes, c.integer(0));
          if (n == 0)
            c.fail(absl::StrCat("nothing to choose from: dimension ", reduced_dim(c.integer(0)), " has size 0"));
          reduction_infer(c);
          c.output(0, kI64, Dims(c.outputs()[0].sizes));
        },
    .host = {&cpu::argmax_kernel},
    .lower = &lower_argmax,
};

// ints: {dim, descending}
constexpr OpDef kArgsort = {
    .name = "argsort",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          require_comparable(c);
          dim_in(c, 0, c.sizes(0).rank());
          c.output(0, kI64, c.sizes(0));
        },
    .host = {&cpu::argsort_kernel},
};

// The indices of the k largest (smallest), best first. ints: {k, dim, largest}
constexpr OpDef kTopk = {
    .name = "topk",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          require_comparable(c);
          Dims sizes = c.sizes(0);
          const int dim = dim_in(c, 1, sizes.rank());
          const int64_t k = c.integer(0), size = sizes.empty() ? 1 : sizes[dim];
          if (k < 0 || k > size) c.fail(absl::StrCat("k must lie in [0, ", size, "], not ", k));
          if (sizes.empty() && k == 0) c.fail("a scalar has one element: k must be 1");
          if (!sizes.empty()) sizes[dim] = k;
          c.output(0, kI64, sizes);
        },
    .host = {&cpu::topk_kernel},
};

namespace {

Tensor arg_reduce(const char* name, TensorArg x, std::optional<int64_t> dim, bool keepdim, bool smallest) {
  require_defined(name, x);
  const Tensor flat = dim ? x.tensor : flatten(x);
  const int d = dim_of(name, flat, dim.value_or(0), x.where);
  const int64_t mask = flat.rank() == 0 ? 0 : int64_t{1} << d;
  const CalledAs as(name, kArgmax.name);
  const Tensor at = call(kArgmax, {{flat, x.where}}, {.ints = {mask, keepdim && dim, smallest}});
  return dim ? at : reshape(at, keepdim ? Dims::filled(x.tensor.rank(), 1) : Dims{});
}

}  // namespace

Tensor argmax(TensorArg x, std::optional<int64_t> dim, bool keepdim) {
  return arg_reduce("argmax", x, dim, keepdim, false);
}
Tensor argmin(TensorArg x, std::optional<int64_t> dim, bool keepdim) {
  return arg_reduce("argmin", x, dim, keepdim, true);
}

Tensor argsort(TensorArg x, int64_t dim, bool descending) {
  return call(kArgsort, {x}, {.ints = {dim_of("argsort", x.tensor, dim, x.where), descending}});
}
ValuesAndIndices sort(TensorArg x, int64_t dim, bool descending) {
  const int d = dim_of("sort", x.tensor, dim, x.where);
  const CalledAs name("sort", kArgsort.name);
  const Tensor indices = call(kArgsort, {x}, {.ints = {d, descending}});
  return {gather(x, d, indices), indices};
}
ValuesAndIndices topk(TensorArg x, int64_t k, int64_t dim, bool largest) {
  const int d = dim_of("topk", x.tensor, dim, x.where);
  const Tensor indices = call(kTopk, {x}, {.ints = {k, d, largest}});
  return {gather(x, d, indices), indices};
}

constexpr OpList kIndexingOps = {&kGather,    &kPick,   &kCheckIndices, &kScatter, &kScatterSum,
                                 &kWriteRows, &kCumsum, &kArgmax,       &kArgsort, &kTopk};

}  // namespace rondo::ops

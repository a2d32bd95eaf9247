#include "rondo/runtime/ops/matmul_call.h"

#include <algorithm>
#include <atomic>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

std::atomic<MatmulPrecision> precision_of_f32{MatmulPrecision::kHighest};

MatrixStrides normal(int64_t batch, int64_t rows, int64_t columns, MatrixStrides s) {
  if (columns == 1 && s.row != 1) s.column = 1;
  if (rows == 1 && s.column == 1) s.row = columns;
  if (rows == 1 && s.column != 1) s.row = 1;
  if (columns == 1 && s.row == 1) s.column = rows;
  if (batch == 1) s.batch = 0;
  invariant(s.row == 1 || s.column == 1, "a matrix without a dense dimension");
  return s;
}

// True if a library can read the matrices in the last two dimensions without a copy.
bool readable(const Tensor& t) {
  const int rank = t.rank();
  const int64_t rows = t.sizes()[rank - 2], cols = t.sizes()[rank - 1];
  const int64_t rs = t.strides()[rank - 2], cs = t.strides()[rank - 1];
  return ((cs == 1 || cols == 1) && (rs >= cols || rows == 1)) || ((rs == 1 || rows == 1) && (cs >= rows || cols == 1));
}

MatrixStrides matrix_strides(const Tensor& t, int64_t batch = 0) {
  return {t.strides()[t.rank() - 2], t.strides()[t.rank() - 1], batch};
}

// True if the dimensions can be ordered such that each stride steps over all of the next dimension: oneDNN supports
// only these layouts.
bool nests(int64_t batch, int64_t rows, int64_t cols, const MatrixStrides& s) {
  std::array<std::pair<int64_t, int64_t>, 3> dims = {{{s.batch, batch}, {s.row, rows}, {s.column, cols}}};
  std::sort(dims.begin(), dims.end());
  int64_t extent = 0;
  for (auto [stride, size] : dims) {
    if (stride == 0 || size == 1) continue;
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

// Widening is not a post-op, because `call.wide` already requests it.
bool is_post_op(const EpilogueCall& epilogue) { return epilogue.kind != Epilogue::kWiden; }

void add_epilogues(const KernelContext& context, MatmulCall& call) {
  invariant(context.epilogues.size() <= kMaxEpilogues, "a product has too many epilogues");
  size_t i = 0;
  for (const EpilogueCall& epilogue : context.epilogues) {
    if (!is_post_op(epilogue)) continue;
    call.epilogues[i] = epilogue.kind;
    call.in_place[i++] = epilogue.operand != nullptr && epilogue.operand->storage() == context.outputs[0].storage() &&
                         epilogue.operand->storage_offset() == context.outputs[0].storage_offset();
  }
}

absl::InlinedVector<MatmulPlan::Piece, 1> one_piece() { return {{0, 0, 0}}; }
MatmulPlan copies(bool a, bool b) { return {.call = std::nullopt, .pieces = {}, .copy_a = a, .copy_b = b}; }

// Computes the result of a call whose inner dimension is 0.
void fill_empty_product(const KernelContext& context) {
  Tensor& out = context.out();
  if (context.has(2)) {
    out.copy_(context.in(2));
  } else {
    const Device device = out.device();
    backend_of(device).fill(device.index, out.impl()->data(), 0,
                            static_cast<size_t>(out.numel()) * size_of(out.dtype()));
  }
  for (const EpilogueCall& epilogue : context.epilogues) switch (epilogue.kind) {
      case Epilogue::kNone:
      case Epilogue::kWiden: break;  // the result has its dtype already
      case Epilogue::kAdd: out.copy_(out + *epilogue.operand); break;
      case Epilogue::kGelu: out.copy_(ops::gelu(out, ops::GeluKind::kErf)); break;
      case Epilogue::kGeluTanh: out.copy_(ops::gelu(out, ops::GeluKind::kTanh)); break;
    }
}

}  // namespace

void set_float32_matmul_precision(MatmulPrecision precision) {
  precision_of_f32.store(precision, std::memory_order_relaxed);
}
MatmulPrecision float32_matmul_precision() { return precision_of_f32.load(std::memory_order_relaxed); }

MatmulCall::MatmulCall(DType dtype, int64_t m, int64_t n, int64_t k, MatrixStrides a, MatrixStrides b, MatrixStrides c,
                       int64_t batch)
    : dtype(dtype),
      batch(batch),
      m(m),
      n(n),
      k(k),
      a(normal(batch, m, k, a)),
      b(normal(batch, k, n, b)),
      c(m == 1 ? n : c.row, 1, batch == 1 ? 0 : c.batch) {
  invariant(c.column == 1 && (m == 1 || c.row >= n), "rows of a product are dense and do not overlap");
  invariant(batch == 1 || c.batch > 0, "products of a batch are written to one place");
}

MatmulCall MatmulCall::with_dense_operands(DType dtype) const {
  return {dtype, m, n, k, {k, 1, a.batch == 0 ? 0 : m * k}, {n, 1, b.batch == 0 ? 0 : k * n}, {n, 1, m * n}, batch};
}

MatmulPlan plan_matmul(const KernelContext& context) {
  const Tensor &a = context.in(0), &b = context.in(1), &c = context.out();
  if (!readable(a) || !readable(b)) return copies(!readable(a), !readable(b));
  const int rank = c.rank();
  const int64_t m = c.sizes()[rank - 2], n = c.sizes()[rank - 1], k = a.sizes().back();
  const auto planned = [&](MatmulCall call, auto pieces) {
    call.wide = c.dtype() != a.dtype();
    add_epilogues(context, call);
    return MatmulPlan{.call = call, .pieces = std::move(pieces)};
  };
  Dims batch = c.sizes();
  batch.erase(rank - 1);
  batch.erase(rank - 2);
  // A dense left operand against one shared matrix is a single tall product.
  if (b.rank() == 2 && a.is_contiguous())
    return planned({a.dtype(), m * batch.numel(), n, k, {k, 1}, matrix_strides(b), {n, 1}}, one_piece());
  auto batch_strides = [&](const Tensor& t) {
    Dims sizes = t.sizes(), strides = t.strides();
    for (int i = 0; i < 2; ++i) {
      sizes.erase(sizes.rank() - 1);
      strides.erase(strides.rank() - 1);
    }
    return broadcast_strides(sizes, strides, batch);
  };
  const Dims a_batch = batch_strides(a), b_batch = batch_strides(b);
  // The innermost batch dimensions that merge into one stride go to the library as a batch; the rest are pieces.
  int split = batch.rank();
  int64_t inner = 1, a_stride = 0, b_stride = 0;
  while (split > 0) {
    const int d = split - 1;
    if (batch[d] != 1) {
      if (inner == 1) {
        if (a_batch[d] == 0 && b_batch[d] == 0) break;  // the library has no batch of equal products
        a_stride = a_batch[d];
        b_stride = b_batch[d];
      } else if (a_batch[d] != a_stride * inner || b_batch[d] != b_stride * inner) {
        break;
      }
      inner *= batch[d];
    }
    --split;
  }
  const MatmulCall call(a.dtype(), m, n, k, matrix_strides(a, a_stride), matrix_strides(b, b_stride), {n, 1, m * n},
                        inner);
  // Rare layouts (every second row of each matrix) are copied.
  const bool a_nests = nests(inner, m, k, call.a), b_nests = nests(inner, k, n, call.b);
  if (!a_nests || !b_nests) return copies(!a_nests, !b_nests);
  decltype(MatmulPlan::pieces) pieces;
  int64_t outer = 1;
  for (int d = 0; d < split; ++d) outer *= batch[d];
  for (int64_t o = 0; o < outer; ++o) {
    MatmulPlan::Piece piece{0, 0, o * inner * m * n};
    int64_t rest = o;
    for (int d = split - 1; d >= 0; --d) {
      piece.a += rest % batch[d] * a_batch[d];
      piece.b += rest % batch[d] * b_batch[d];
      rest /= batch[d];
    }
    pieces.push_back(piece);
  }
  return planned(call, std::move(pieces));
}

MatmulPlan plan_linear(const KernelContext& context) {
  const Tensor &x = context.in(0), &w = context.in(1), &y = context.out();
  if (!readable(w) || !x.is_contiguous()) return copies(!x.is_contiguous(), !readable(w));
  const int64_t in = w.sizes()[1], out = w.sizes()[0];
  MatmulCall call(x.dtype(), y.numel() / out, out, in, {in, 1}, {w.strides()[1], w.strides()[0]}, {out, 1});
  call.wide = y.dtype() != x.dtype();
  call.bias = context.has(2);
  add_epilogues(context, call);
  return {.call = call, .pieces = one_piece()};
}

MatmulOperands MatmulPlan::at(const MatmulOperands& base, const Piece& piece) const {
  const auto move = [](const void* data, int64_t elements, DType dtype) {
    return data == nullptr ? nullptr
                           : static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(size_of(dtype));
  };
  MatmulOperands moved = base;
  const DType result = call->result_dtype();
  moved.a = move(base.a, piece.a, call->dtype);
  moved.b = move(base.b, piece.b, call->dtype);
  for (size_t i = 0; i < moved.added.size(); ++i) moved.added[i] = move(base.added[i], piece.c, result);
  moved.c = static_cast<std::byte*>(base.c) + piece.c * static_cast<int64_t>(size_of(result));
  return moved;
}

void run_products(const KernelContext& context, MakeMatmulPlan make_plan,
                  absl::FunctionRef<void(const MatmulCall&, const MatmulOperands&)> run) {
  NoGrad off;
  RecorderScope eager(nullptr);
  if (context.out().numel() == 0) return;
  if (context.in(0).sizes().back() == 0) return fill_empty_product(context);
  const MatmulPlan plan = make_plan(context);
  Tensor bias = context.has(2) ? context.in(2) : Tensor();
  if (!plan.readable() || (bias.defined() && !bias.is_contiguous())) {
    const Tensor a = plan.copy_a ? context.in(0).clone() : context.in(0),
                 b = plan.copy_b ? context.in(1).clone() : context.in(1);
    bias = bias.defined() ? bias.contiguous() : bias;
    const Tensor* operands[] = {&a, &b, &bias};
    return run_products({context.op,
                         {operands, context.inputs.size()},
                         context.outputs,
                         context.attrs,
                         context.where,
                         context.epilogues},
                        make_plan, run);
  }
  MatmulOperands operands{.a = context.in(0).impl()->data(),
                          .b = context.in(1).impl()->data(),
                          .bias = bias.defined() ? bias.impl()->data() : nullptr,
                          .c = context.out().impl()->data()};
  size_t post_op = 0;
  for (const EpilogueCall& epilogue : context.epilogues) {
    if (!is_post_op(epilogue)) continue;
    if (epilogue.operand != nullptr) operands.added[post_op] = epilogue.operand->impl()->data();
    ++post_op;
  }
  for (const MatmulPlan::Piece& piece : plan.pieces) run(*plan.call, plan.at(operands, piece));
}

bool is_preparable(const KernelContext& context) {
  if (context.out().numel() == 0 || context.in(0).numel() == 0) return false;
  return !context.has(2) || context.in(2).is_contiguous();
}

}  // namespace rondo

#include "rondo/runtime/matmul_call.h"

#include <algorithm>
#include <atomic>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/matmul_precision.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/recorder.h"

namespace rondo {
namespace {

std::atomic<MatmulPrecision> precision_of_f32{MatmulPrecision::kHighest};

// True if a library can read the last two dimensions as they are.
bool readable(const Tensor& t) {
  const int rank = t.rank();
  const int64_t rows = t.sizes()[rank - 2], cols = t.sizes()[rank - 1];
  const int64_t rs = t.strides()[rank - 2], cs = t.strides()[rank - 1];
  return ((cs == 1 || cols == 1) && (rs >= cols || rows == 1)) || ((rs == 1 || rows == 1) && (cs >= rows || cols == 1));
}

void matrix_strides(const Tensor& t, int64_t (&out)[3]) {
  const int row = t.rank() - 2, col = t.rank() - 1;
  set_matrix_strides(t.sizes()[row], t.sizes()[col], t.strides()[row], t.strides()[col], out);
}

// True if the dimensions can be ordered such that each steps over all of the next: the layouts that oneDNN knows.
bool nests(int64_t batch, int64_t rows, int64_t cols, const int64_t (&strides)[3]) {
  std::array<std::pair<int64_t, int64_t>, 3> dims = {{{strides[0], batch}, {strides[1], rows}, {strides[2], cols}}};
  std::sort(dims.begin(), dims.end());
  int64_t extent = 0;
  for (auto [stride, size] : dims) {
    if (stride == 0 || size == 1) continue;
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

// Widening is what `call.wide` says already.
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

MatmulPlan copies(bool a, bool b) { return {.call = {}, .pieces = {}, .copy_a = a, .copy_b = b}; }

// A result without an inner dimension.
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

// So that products which differ in them only are one.
void set_matrix_strides(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t (&out)[3]) {
  if (columns == 1 && row_stride != 1) column_stride = 1;
  if (rows == 1 && column_stride == 1) row_stride = columns;
  if (rows == 1 && column_stride != 1) row_stride = 1;
  if (columns == 1 && row_stride == 1) column_stride = rows;
  out[1] = row_stride;
  out[2] = column_stride;
}

MatmulPlan plan_matmul(const KernelContext& context) {
  const Tensor &a = context.in(0), &b = context.in(1), &c = context.out();
  if (!readable(a) || !readable(b)) return copies(!readable(a), !readable(b));
  const int rank = c.rank();
  MatmulPlan plan;
  MatmulCall& call = plan.call;
  call = {.dtype = a.dtype(),
          .wide = c.dtype() != a.dtype(),
          .m = c.sizes()[rank - 2],
          .n = c.sizes()[rank - 1],
          .k = a.sizes().back()};
  matrix_strides(a, call.a_strides);
  matrix_strides(b, call.b_strides);
  call.c_strides[1] = call.n;
  call.c_strides[2] = 1;
  add_epilogues(context, call);
  Dims batch = c.sizes();
  batch.erase(rank - 1);
  batch.erase(rank - 2);
  // A dense left operand against one shared matrix is a single tall product.
  if (b.rank() == 2 && a.is_contiguous()) {
    call.m *= batch.numel();
    call.a_strides[1] = call.k;
    call.a_strides[2] = call.k == 1 ? call.m : 1;  // a column's own stride spans it
    plan.pieces.push_back({0, 0, 0});
    return plan;
  }
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
        if (a_batch[d] == 0 && b_batch[d] == 0) break;  // a batch of equal products: the library knows no such thing
        a_stride = a_batch[d];
        b_stride = b_batch[d];
      } else if (a_batch[d] != a_stride * inner || b_batch[d] != b_stride * inner) {
        break;
      }
      inner *= batch[d];
    }
    --split;
  }
  call.batch = inner;
  call.a_strides[0] = a_stride;
  call.b_strides[0] = b_stride;
  call.c_strides[0] = call.m * call.n;
  // Rare layouts (every second row of each matrix) are copied.
  const bool a_nests = nests(call.batch, call.m, call.k, call.a_strides),
             b_nests = nests(call.batch, call.k, call.n, call.b_strides);
  if (!a_nests || !b_nests) return copies(!a_nests, !b_nests);
  int64_t outer = 1;
  for (int d = 0; d < split; ++d) outer *= batch[d];
  for (int64_t o = 0; o < outer; ++o) {
    MatmulPlan::Piece piece{0, 0, o * inner * call.m * call.n};
    int64_t rest = o;
    for (int d = split - 1; d >= 0; --d) {
      piece.a += rest % batch[d] * a_batch[d];
      piece.b += rest % batch[d] * b_batch[d];
      rest /= batch[d];
    }
    plan.pieces.push_back(piece);
  }
  return plan;
}

MatmulPlan plan_linear(const KernelContext& context) {
  const Tensor &x = context.in(0), &w = context.in(1), &y = context.out();
  if (!readable(w) || !x.is_contiguous()) return copies(!x.is_contiguous(), !readable(w));
  const int64_t in = w.sizes()[1], out = w.sizes()[0];
  MatmulPlan plan;
  plan.call = {.dtype = x.dtype(),
               .wide = y.dtype() != x.dtype(),
               .m = y.numel() / out,
               .n = out,
               .k = in,
               .bias = context.has(2)};
  set_matrix_strides(plan.call.m, in, in, 1, plan.call.a_strides);
  set_matrix_strides(in, out, w.strides()[1], w.strides()[0], plan.call.b_strides);
  plan.call.c_strides[1] = out;
  plan.call.c_strides[2] = 1;
  add_epilogues(context, plan.call);
  plan.pieces.push_back({0, 0, 0});
  return plan;
}

MatmulOperands MatmulPlan::at(const MatmulOperands& base, const Piece& piece) const {
  const auto move = [](const void* data, int64_t elements, DType dtype) {
    return data == nullptr ? nullptr
                           : static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(size_of(dtype));
  };
  MatmulOperands moved = base;
  moved.a = move(base.a, piece.a, call.dtype);
  moved.b = move(base.b, piece.b, call.dtype);
  for (size_t i = 0; i < moved.added.size(); ++i) moved.added[i] = move(base.added[i], piece.c, call.result_dtype());
  moved.c = static_cast<std::byte*>(base.c) + piece.c * static_cast<int64_t>(size_of(call.result_dtype()));
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
  for (const MatmulPlan::Piece& piece : plan.pieces) run(plan.call, plan.at(operands, piece));
}

bool is_preparable(const KernelContext& context) {
  if (context.out().numel() == 0 || context.in(0).numel() == 0) return false;
  return !context.has(2) || context.in(2).is_contiguous();
}

}  // namespace rondo

#include "rondo/runtime/cpu/matmul.h"

// Our own threads are enough: Eigen's would wait for each other by spinning.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {

namespace {

using Strided = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using MatrixF64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Pieces of some rows each, which do not depend on the number of threads: the library blocks its sums by the size of a
// product.
void matmul_f64(const MatmulCall& call, const double* a, const double* b, const double* bias, double* c) {
  constexpr int64_t kRows = 64, kFlops = 1 << 17;
  const int64_t pieces = (call.m + kRows - 1) / kRows;
  const int64_t grain = std::max<int64_t>(1, kFlops / (2 * std::min(call.m, kRows) * call.n * call.k));
  parallel_for(call.batch * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = piece / pieces, first = piece % pieces * kRows, rows = std::min(kRows, call.m - first);
      Eigen::Map<const MatrixF64, 0, Strided> left(a + i * call.a_strides[0] + first * call.a_strides[1], rows, call.k,
                                                   Strided(call.a_strides[1], call.a_strides[2]));
      Eigen::Map<const MatrixF64, 0, Strided> right(b + i * call.b_strides[0], call.k, call.n,
                                                    Strided(call.b_strides[1], call.b_strides[2]));
      Eigen::Map<MatrixF64, 0, Strided> result(c + i * call.c_strides[0] + first * call.c_strides[1], rows, call.n,
                                               Strided(call.c_strides[1], 1));
      result.noalias() = left * right;
      if (call.bias) result.rowwise() += Eigen::Map<const Eigen::RowVectorXd>(bias, call.n);
    }
  });
}

// oneDNN 2.6 has no f16 product: convert, multiply in f32, round once.
void matmul_f16(const MatmulCall& call, const Float16* a, const Float16* b, const Float16* bias, Float16* c) {
  auto widen = [](const Float16* data, int64_t batch, int64_t rows, int64_t cols, const int64_t(&s)[3]) {
    std::vector<float> dense(static_cast<size_t>(batch * rows * cols));
    for (int64_t i = 0; i < batch; ++i)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < cols; ++k)
          dense[(i * rows + r) * cols + k] = static_cast<float>(data[i * s[0] + r * s[1] + k * s[2]]);
    return dense;
  };
  const int64_t a_batch = call.a_strides[0] == 0 ? 1 : call.batch, b_batch = call.b_strides[0] == 0 ? 1 : call.batch;
  const std::vector<float> left = widen(a, a_batch, call.m, call.k, call.a_strides);
  const std::vector<float> right = widen(b, b_batch, call.k, call.n, call.b_strides);
  std::vector<float> result(static_cast<size_t>(call.batch * call.m * call.n));
  std::vector<float> row(static_cast<size_t>(call.bias ? call.n : 0));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(bias[i]);
  MatmulCall wide = call;
  wide.dtype = kF32;
  const auto dense = [](int64_t(&s)[3], int64_t batch_stride, int64_t cols) {
    s[0] = batch_stride, s[1] = cols, s[2] = 1;
  };
  dense(wide.a_strides, a_batch == 1 ? 0 : call.m * call.k, call.k);
  dense(wide.b_strides, b_batch == 1 ? 0 : call.k * call.n, call.n);
  dense(wide.c_strides, call.m * call.n, call.n);
  matmul(wide, {.a = left.data(), .b = right.data(), .bias = row.data(), .c = result.data()});
  for (int64_t i = 0; i < call.batch; ++i)
    for (int64_t r = 0; r < call.m; ++r)
      for (int64_t k = 0; k < call.n; ++k)
        c[i * call.c_strides[0] + r * call.c_strides[1] + k] = Float16(result[(i * call.m + r) * call.n + k]);
}

// True if oneDNN and Eigen can read the last two dimensions as they are.
bool readable(const Tensor& t) {
  const int rank = t.rank();
  const int64_t rows = t.sizes()[rank - 2], cols = t.sizes()[rank - 1];
  const int64_t rs = t.strides()[rank - 2], cs = t.strides()[rank - 1];
  return ((cs == 1 || cols == 1) && (rs >= cols || rows == 1)) || ((rs == 1 || rows == 1) && (cs >= rows || cols == 1));
}

}  // namespace

void matmul(const MatmulCall& call, const MatmulOperands& o) {
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  invariant(call.k > 0, "matmul needs an inner dimension");
  invariant(!call.wide || call.dtype == kBF16, "only bf16 products have f32 results");
  invariant(call.epilogues[0] == Epilogue::kNone || call.dtype == kF32 || call.dtype == kBF16,
            "epilogues are f32 or bf16");
  switch (call.dtype) {
    case kF64:
      return matmul_f64(call, static_cast<const double*>(o.a), static_cast<const double*>(o.b),
                        static_cast<const double*>(o.bias), static_cast<double*>(o.c));
    case kF16:
      return matmul_f16(call, static_cast<const Float16*>(o.a), static_cast<const Float16*>(o.b),
                        static_cast<const Float16*>(o.bias), static_cast<Float16*>(o.c));
    default: return Product::get(call)->run(o);
  }
}

namespace {

// Strides of one matrix operand; dimensions of size 1 get canonical ones, so that the primitive cache is not split.
void matrix_strides(int64_t rows, int64_t cols, int64_t rs, int64_t cs, int64_t (&out)[3]) {
  if (cols == 1 && rs != 1) cs = 1;
  if (rows == 1 && cs == 1) rs = cols;
  if (rows == 1 && cs != 1) rs = 1;
  if (cols == 1 && rs == 1) cs = rows;
  out[1] = rs;
  out[2] = cs;
}
void matrix_strides(const Tensor& t, int64_t (&out)[3]) {
  const int row = t.rank() - 2, col = t.rank() - 1;
  matrix_strides(t.sizes()[row], t.sizes()[col], t.strides()[row], t.strides()[col], out);
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

// A call of an op as products: one for all pieces, at offsets in elements.
struct Plan {
  MatmulCall call;
  struct Piece {
    int64_t a, b, c;
  };
  absl::InlinedVector<Piece, 1> pieces;
  bool dense = true;  // false: an operand must be copied first: `copy_a`, `copy_b`
  bool copy_a = false, copy_b = false;
  static Plan copies(bool a, bool b) { return {.call = {}, .pieces = {}, .dense = false, .copy_a = a, .copy_b = b}; }
};

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

Plan plan_matmul(const KernelContext& context) {
  const Tensor &a = context.in(0), &b = context.in(1), &c = context.out();
  if (!readable(a) || !readable(b)) return Plan::copies(!readable(a), !readable(b));
  const int rank = c.rank();
  Plan plan;
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
  if (!a_nests || !b_nests) return Plan::copies(!a_nests, !b_nests);
  int64_t outer = 1;
  for (int d = 0; d < split; ++d) outer *= batch[d];
  for (int64_t o = 0; o < outer; ++o) {
    Plan::Piece piece{0, 0, o * inner * call.m * call.n};
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

Plan plan_linear(const KernelContext& context) {
  const Tensor &x = context.in(0), &w = context.in(1), &y = context.out();
  if (!readable(w) || !x.is_contiguous()) return Plan::copies(!x.is_contiguous(), !readable(w));
  const int64_t in = w.sizes()[1], out = w.sizes()[0];
  Plan plan;
  plan.call = {.dtype = x.dtype(),
               .wide = y.dtype() != x.dtype(),
               .m = y.numel() / out,
               .n = out,
               .k = in,
               .bias = context.has(2)};
  matrix_strides(plan.call.m, in, in, 1, plan.call.a_strides);
  matrix_strides(in, out, w.strides()[1], w.strides()[0], plan.call.b_strides);
  plan.call.c_strides[1] = out;
  plan.call.c_strides[2] = 1;
  add_epilogues(context, plan.call);
  plan.pieces.push_back({0, 0, 0});
  return plan;
}

MatmulOperands at(const MatmulOperands& base, const Plan::Piece& piece, const MatmulCall& call) {
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

// The kernel of an op with this plan.
template <class MakePlan> void run_product(const KernelContext& context, MakePlan make_plan) {
  NoGrad off;
  RecorderScope run(nullptr);
  const Tensor& c = context.out();
  if (c.numel() == 0) return;
  const Plan plan = make_plan(context);
  Tensor bias = context.has(2) ? context.in(2) : Tensor();
  if (!plan.dense || (bias.defined() && !bias.is_contiguous())) {
    const Tensor a = plan.copy_a ? context.in(0).clone() : context.in(0),
                 b = plan.copy_b ? context.in(1).clone() : context.in(1);
    bias = bias.defined() ? bias.contiguous() : bias;
    const Tensor* operands[] = {&a, &b, &bias};
    return run_product({context.op,
                        {operands, context.inputs.size()},
                        context.outputs,
                        context.attrs,
                        context.where,
                        context.epilogues},
                       make_plan);
  }
  MatmulOperands operands{.a = context.in(0).impl()->data(),
                          .b = context.in(1).impl()->data(),
                          .bias = bias.defined() ? bias.impl()->data() : nullptr,
                          .c = c.impl()->data()};
  size_t post_op = 0;
  for (const EpilogueCall& epilogue : context.epilogues) {
    if (!is_post_op(epilogue)) continue;
    if (epilogue.operand != nullptr) operands.added[post_op] = epilogue.operand->impl()->data();
    ++post_op;
  }
  for (const Plan::Piece& piece : plan.pieces) matmul(plan.call, at(operands, piece, plan.call));
}

class PreparedProduct final : public PreparedKernel {
 public:
  PreparedProduct(Plan plan, std::shared_ptr<const Product> product, size_t inputs)
      : plan_(std::move(plan)), product_(std::move(product)), inputs_(inputs) {}
  void run(std::span<std::byte* const> addresses) const override {
    MatmulOperands operands{.a = addresses[0], .b = addresses[1], .bias = inputs_ > 2 ? addresses[2] : nullptr};
    size_t next = inputs_;
    for (size_t i = 0; i < operands.added.size(); ++i)
      if (plan_.call.epilogues[i] == Epilogue::kAdd) operands.added[i] = addresses[next++];
    operands.c = addresses[next];
    for (const Plan::Piece& piece : plan_.pieces) product_->run(at(operands, piece, plan_.call));
  }

 private:
  Plan plan_;
  std::shared_ptr<const Product> product_;
  size_t inputs_;
};

template <class MakePlan>
std::unique_ptr<const PreparedKernel> prepare_product(const KernelContext& context, int variant, MakePlan make_plan) {
  const DType dtype = context.in(0).dtype();
  // What has no elements, or no inner dimension, is not a product; f64 and f16 do not run in the library.
  if ((dtype != kF32 && dtype != kBF16) || context.out().numel() == 0 || context.in(0).numel() == 0) return nullptr;
  if (context.has(2) && !context.in(2).is_contiguous()) return nullptr;
  Plan plan = make_plan(context);
  if (!plan.dense) return nullptr;
  std::shared_ptr<const Product> product = Product::get(plan.call, variant);
  if (product == nullptr) return nullptr;
  return std::make_unique<PreparedProduct>(std::move(plan), std::move(product), context.inputs.size());
}

}  // namespace

void matmul_kernel(const KernelContext& context) {
  Tensor& c = context.out();
  if (context.in(0).sizes().back() != 0) return run_product(context, plan_matmul);
  NoGrad off;
  c.fill_(0);
}
std::unique_ptr<const PreparedKernel> prepare_matmul(const KernelContext& context, int variant) {
  return prepare_product(context, variant, plan_matmul);
}

void linear_kernel(const KernelContext& context) {
  Tensor& y = context.out();
  if (context.in(1).sizes()[1] != 0) return run_product(context, plan_linear);
  NoGrad off;
  if (context.has(2)) y.copy_(context.in(2));
  else y.fill_(0);
}
std::unique_ptr<const PreparedKernel> prepare_linear(const KernelContext& context, int variant) {
  return prepare_product(context, variant, plan_linear);
}

bool product_absorbs(std::span<const Epilogue> epilogues, DType dtype, bool exact) {
  if (epilogues.size() > kMaxEpilogues || (dtype != kF32 && dtype != kBF16)) return false;
  // `dtype` is that of the product itself; what is widened is added to as f32 is.
  for (size_t i = 0; i < epilogues.size(); ++i) {
    if (exact && (dtype != kF32 || epilogues[i] != Epilogue::kAdd)) return false;
    if (epilogues[i] == Epilogue::kWiden && (i != 0 || dtype != kBF16)) return false;
  }
  return true;
}

}  // namespace rondo::cpu

#include "rondo/runtime/cpu/matmul.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <list>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {

template <class H> H AbslHashValue(H h, const MatmulCall& c) {
  return H::combine(std::move(h), c.dtype, c.batch, c.m, c.n, c.k, c.a_strides[0], c.a_strides[1], c.a_strides[2],
                    c.b_strides[0], c.b_strides[1], c.b_strides[2], c.c_strides[0], c.c_strides[1], c.bias, c.accumulate);
}

namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream stream(engine());
  return stream;
}

// A primitive for a new shape takes 160 us to make, so they are kept: the most recent kCapacity, over all threads. Each call
// brings its scratchpad: the library's own belongs to the thread that made the primitive.
class PrimitiveCache {
 public:
  struct Entry {
    dnnl::matmul primitive;
    memory::desc a, b, bias, c, scratchpad;
  };
  std::shared_ptr<const Entry> get(const MatmulCall& call) {
    // Held while a primitive is made, too: two threads that meet a new shape want one.
    std::lock_guard lock(mutex_);
    if (auto found = entries_.find(call); found != entries_.end()) {
      order_.splice(order_.begin(), order_, found->second.position);
      return found->second.entry;
    }
    auto entry = std::make_shared<const Entry>(make(call));
    if (entries_.size() >= kCapacity) {
      entries_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(call);
    entries_[call] = {entry, order_.begin()};
    return entry;
  }

 private:
  static constexpr size_t kCapacity = 1024;
  struct Slot {
    std::shared_ptr<const Entry> entry;
    std::list<MatmulCall>::iterator position;
  };

  static Entry make(const MatmulCall& call) {
    const auto type = call.dtype == kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const bool batched = call.batch > 1;
    auto desc = [&](int64_t rows, int64_t cols, const int64_t (&s)[3]) {
      if (!batched) return memory::desc({rows, cols}, type, memory::dims{s[1], s[2]});
      // A stride of 0 is not a layout oneDNN knows; a shared operand is a batch of one, which it broadcasts.
      const int64_t batch = s[0] == 0 ? 1 : call.batch;
      return memory::desc({batch, rows, cols}, type, memory::dims{batch == 1 ? rows * cols : s[0], s[1], s[2]});
    };
    Entry entry;
    entry.a = desc(call.m, call.k, call.a_strides);
    entry.b = desc(call.k, call.n, call.b_strides);
    entry.c = desc(call.m, call.n, call.c_strides);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (call.accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    if (call.bias)
      entry.bias = batched ? memory::desc({1, 1, call.n}, type, memory::dims{call.n, call.n, 1})
                           : memory::desc({1, call.n}, type, memory::dims{call.n, 1});
    const dnnl::matmul::desc product = call.bias ? dnnl::matmul::desc(entry.a, entry.b, entry.bias, entry.c)
                                                 : dnnl::matmul::desc(entry.a, entry.b, entry.c);
    const dnnl::matmul::primitive_desc chosen(product, attributes, engine());
    entry.scratchpad = chosen.scratchpad_desc();
    entry.primitive = dnnl::matmul(chosen);
    return entry;
  }

  std::mutex mutex_;
  std::list<MatmulCall> order_;  // most recent first
  absl::flat_hash_map<MatmulCall, Slot> entries_;
};

PrimitiveCache& primitives() {
  static auto* cache = new PrimitiveCache;
  return *cache;
}

void matmul_onednn(const MatmulCall& call, const void* a, const void* b, const void* bias, void* c) {
  const auto entry = primitives().get(call);
  auto bind = [](const memory::desc& desc, const void* data) { return memory(desc, engine(), const_cast<void*>(data)); };
  std::unordered_map<int, memory> args{{DNNL_ARG_SRC, bind(entry->a, a)},
                                       {DNNL_ARG_WEIGHTS, bind(entry->b, b)},
                                       {DNNL_ARG_DST, bind(entry->c, c)}};
  if (call.bias) args.emplace(DNNL_ARG_BIAS, bind(entry->bias, bias));
  Storage scratchpad;
  if (const size_t bytes = entry->scratchpad.get_size(); bytes > 0) {
    scratchpad = Storage::allocate(bytes);
    args.emplace(DNNL_ARG_SCRATCHPAD, bind(entry->scratchpad, scratchpad.data()));
  }
  entry->primitive.execute(stream(), args);
}

using Strided = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using MatrixF64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void matmul_f64(const MatmulCall& call, const double* a, const double* b, const double* bias, double* c) {
  for (int64_t i = 0; i < call.batch; ++i) {
    Eigen::Map<const MatrixF64, 0, Strided> left(a + i * call.a_strides[0], call.m, call.k,
                                                 Strided(call.a_strides[1], call.a_strides[2]));
    Eigen::Map<const MatrixF64, 0, Strided> right(b + i * call.b_strides[0], call.k, call.n,
                                                  Strided(call.b_strides[1], call.b_strides[2]));
    Eigen::Map<MatrixF64, 0, Strided> result(c + i * call.c_strides[0], call.m, call.n, Strided(call.c_strides[1], 1));
    if (call.accumulate) result.noalias() += left * right;
    else result.noalias() = left * right;
    if (call.bias) result.rowwise() += Eigen::Map<const Eigen::RowVectorXd>(bias, call.n);
  }
}

// oneDNN 2.6 has no f16 product: convert, multiply in f32, round once.
void matmul_f16(const MatmulCall& call, const Float16* a, const Float16* b, const Float16* bias, Float16* c) {
  auto widen = [](const Float16* data, int64_t batch, int64_t rows, int64_t cols, const int64_t (&s)[3]) {
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
  std::vector<float> result = call.accumulate ? widen(c, call.batch, call.m, call.n, call.c_strides)
                                              : std::vector<float>(static_cast<size_t>(call.batch * call.m * call.n));
  std::vector<float> row(static_cast<size_t>(call.bias ? call.n : 0));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(bias[i]);
  MatmulCall wide = call;
  wide.dtype = kF32;
  const auto dense = [](int64_t (&s)[3], int64_t batch_stride, int64_t cols) { s[0] = batch_stride, s[1] = cols, s[2] = 1; };
  dense(wide.a_strides, a_batch == 1 ? 0 : call.m * call.k, call.k);
  dense(wide.b_strides, b_batch == 1 ? 0 : call.k * call.n, call.n);
  dense(wide.c_strides, call.m * call.n, call.n);
  matmul(wide, left.data(), right.data(), row.data(), result.data());
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

void matmul(const MatmulCall& call, const void* a, const void* b, const void* bias, void* c) {
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  invariant(call.k > 0, "matmul needs an inner dimension");
  switch (call.dtype) {
    case kF64:
      return matmul_f64(call, static_cast<const double*>(a), static_cast<const double*>(b),
                        static_cast<const double*>(bias), static_cast<double*>(c));
    case kF16:
      return matmul_f16(call, static_cast<const Float16*>(a), static_cast<const Float16*>(b),
                        static_cast<const Float16*>(bias), static_cast<Float16*>(c));
    default: return matmul_onednn(call, a, b, bias, c);
  }
}

namespace {

// Strides of one matrix operand; dimensions of size 1 get canonical ones, so that the primitive cache is not split.
void matrix_strides(const Tensor& t, int64_t (&out)[3]) {
  const int rank = t.rank();
  const int64_t rows = t.sizes()[rank - 2], cols = t.sizes()[rank - 1];
  int64_t rs = t.strides()[rank - 2], cs = t.strides()[rank - 1];
  if (cols == 1 && rs != 1) cs = 1;
  if (rows == 1 && cs == 1) rs = cols;
  if (rows == 1 && cs != 1) rs = 1;
  if (cols == 1 && rs == 1) cs = rows;
  out[1] = rs;
  out[2] = cs;
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

}  // namespace

void matmul_kernel(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  Tensor a = context.in(0), b = context.in(1);
  Tensor& c = context.out();
  if (c.numel() == 0) return;
  if (a.sizes().back() == 0) {
    c.fill_(0);
    return;
  }
  if (!readable(a)) a = a.clone();
  if (!readable(b)) b = b.clone();
  const int rank = c.rank();
  MatmulCall call{.dtype = c.dtype(), .m = c.sizes()[rank - 2], .n = c.sizes()[rank - 1], .k = a.sizes().back()};
  matrix_strides(a, call.a_strides);
  matrix_strides(b, call.b_strides);
  call.c_strides[1] = call.n;
  call.c_strides[2] = 1;
  Dims batch = c.sizes();
  batch.erase(rank - 1);
  batch.erase(rank - 2);
  // A dense left operand against one shared matrix is a single tall product.
  if (b.rank() == 2 && a.is_contiguous()) {
    call.m *= batch.numel();
    call.a_strides[1] = call.k;
    call.a_strides[2] = call.k == 1 ? call.m : 1;  // a column's own stride spans it
    matmul(call, a.impl()->data(), b.impl()->data(), nullptr, c.impl()->data());
    return;
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
  // The innermost batch dimensions that merge into one stride go to the library as a batch; the rest is a loop here.
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
  const bool a_nests = nests(call.batch, call.m, call.k, call.a_strides), b_nests = nests(call.batch, call.k, call.n, call.b_strides);
  if (!a_nests || !b_nests) {
    if (!a_nests) a = a.clone();
    if (!b_nests) b = b.clone();
    const Tensor* operands[] = {&a, &b};
    return matmul_kernel({context.op, operands, context.outputs, context.attrs, context.where});
  }
  int64_t outer = 1;
  for (int d = 0; d < split; ++d) outer *= batch[d];
  const int64_t size = static_cast<int64_t>(size_of(c.dtype()));
  for (int64_t o = 0; o < outer; ++o) {
    int64_t rest = o, a_offset = 0, b_offset = 0;
    for (int d = split - 1; d >= 0; --d) {
      a_offset += rest % batch[d] * a_batch[d];
      b_offset += rest % batch[d] * b_batch[d];
      rest /= batch[d];
    }
    matmul(call, a.impl()->data() + a_offset * size, b.impl()->data() + b_offset * size, nullptr,
           c.impl()->data() + o * inner * call.m * call.n * size);
  }
}

void linear_kernel(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  Tensor x = context.in(0), w = context.in(1);
  Tensor& y = context.out();
  if (y.numel() == 0) return;
  const int64_t in = w.sizes()[1], out = w.sizes()[0];
  if (!readable(w)) w = w.clone();
  const bool bias = context.has(2);
  const Tensor b = bias ? context.in(2).contiguous() : Tensor();
  if (in == 0) {
    if (bias) y.copy_(b);
    else y.fill_(0);
    return;
  }
  x = x.contiguous().view({-1, in});
  MatmulCall call{.dtype = y.dtype(), .m = x.sizes()[0], .n = out, .k = in, .bias = bias};
  matrix_strides(x, call.a_strides);
  matrix_strides(w.transpose(0, 1), call.b_strides);
  call.c_strides[1] = out;
  call.c_strides[2] = 1;
  matmul(call, x.impl()->data(), w.impl()->data(), bias ? b.impl()->data() : nullptr, y.impl()->data());
}

}  // namespace rondo::cpu

// Attention on CUDA in chunks of queries, against the CPU's: its products run on the fake cuBLASLt, its kernels on
// fibers.
#include "rondo/runtime/cuda/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/fused_attention.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using test::FakeCuda;

struct Shape {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
};

// Operands on the host; on a device they are views of one projection, as a model makes them.
struct Operands {
  Tensor q, k, v, mask, grad;
  Operands(const Shape& s, DType dtype) {
    const auto random = [&](int64_t heads, int64_t length) {
      return Tensor::randn({s.batch, heads, length, s.head_dim}, {kF64}).to(dtype);
    };
    q = random(s.heads, s.queries);
    k = random(s.kv_heads, s.keys);
    v = random(s.kv_heads, s.keys);
    grad = random(s.heads, s.queries);
  }
};
// (B, H, T, D) in memory as (B, T, H + 1, D), so that rows and batches have gaps.
Tensor packed(const Tensor& t, Device device) {
  const Dims& s = t.sizes();
  const Dims strides = {s[2] * (s[1] + 1) * s[3], s[3], (s[1] + 1) * s[3], 1};
  return test::with_strides(t.to(device), strides, 0, std::max<int64_t>(1, s[0] * s[2] * (s[1] + 1) * s[3]));
}

struct Results {
  Tensor out, grad_q, grad_k, grad_v;
};
Results run(Tensor q, Tensor k, Tensor v, const Tensor& mask, const Tensor& grad, bool causal, double dropout = 0) {
  for (Tensor* operand : {&q, &k, &v}) operand->requires_grad_();
  Generator generator(21);
  generator.set_state(21, uint64_t{3} << 33);
  const Tensor out = ops::scaled_dot_product_attention(q, k, v, mask,
                                                       {.causal = causal, .dropout = dropout, .generator = &generator});
  out.backward(grad);
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

void expect_close(const Tensor& cuda, const Tensor& cpu, double tolerance, const std::string& what) {
  EXPECT_TRUE(test::is_close(cuda.to(kCPU).to(kF64), cpu.to(kF64), test::relative_above_1(tolerance))) << what;
}
double tolerance(DType dtype) { return dtype == kF64 ? 1e-12 : dtype == kF32 ? 2e-5 : dtype == kBF16 ? 4e-2 : 5e-3; }

// On the device, against other results of the same operands.
void expect_results(const Operands& o, const Results& want, bool causal, Device device, const std::string& what,
                    double dropout = 0) {
  const Tensor mask = o.mask.defined() ? o.mask.to(device) : Tensor();
  const Results cuda = run(packed(o.q, device), packed(o.k, device), packed(o.v, device), mask, packed(o.grad, device),
                           causal, dropout);
  const double most = tolerance(o.q.dtype());
  expect_close(cuda.out, want.out, most, what + " out");
  expect_close(cuda.grad_q, want.grad_q, most, what + " grad q");
  expect_close(cuda.grad_k, want.grad_k, most, what + " grad k");
  expect_close(cuda.grad_v, want.grad_v, most, what + " grad v");
}
DType wide_dtype(DType dtype) { return dtype == kF64 ? kF64 : kF32; }
// The CPU's result from the same numbers in f32 (f64), from which 16-bit results are rounded.
void expect_attention(const Operands& o, bool causal, Device device, const std::string& what, double dropout = 0) {
  const DType wide = wide_dtype(o.q.dtype());
  const auto widened = [&](const Tensor& t) { return t.defined() && is_floating(t.dtype()) ? t.to(wide).clone() : t; };
  expect_results(o, run(widened(o.q), widened(o.k), widened(o.v), widened(o.mask), widened(o.grad), causal, dropout),
                 causal, device, what, dropout);
}

std::string name(const Shape& s, DType dtype) {
  return std::string(name_of(dtype)) + " " +
         to_string(Dims{s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.head_dim});
}

TEST(CudaAttention, ShapesAndDTypes) {
  FakeCuda cuda;
  manual_seed(1);
  const Shape shapes[] = {{1, 1, 1, 1, 1, 1},  {2, 3, 3, 5, 5, 4},    {1, 2, 2, 7, 3, 8},  {2, 4, 2, 3, 6, 4},
                          {1, 4, 1, 5, 5, 2},  {2, 2, 2, 33, 33, 16}, {1, 2, 2, 1, 40, 8}, {3, 1, 1, 4, 4, 1},
                          {1, 1, 1, 5, 7, 132}};  // the last in chunks: Note [Chunks of queries]
  for (const DType dtype : {kF32, kF64, kBF16, kF16})
    for (const Shape& shape : shapes)
      for (const bool causal : {false, true})
        expect_attention(Operands(shape, dtype), causal, cuda.device(), name(shape, dtype) + (causal ? " causal" : ""));
}

TEST(CudaAttention, Masks) {
  FakeCuda cuda;
  manual_seed(2);
  for (const int64_t head_dim : {4, 130})  // fused, and in chunks
    for (const auto& [dtype, causal] : {std::pair(kF32, false), {kF32, true}, {kBF16, false}, {kBF16, true}}) {
      const Shape shape{2, 2, 2, 6, 7, head_dim};
      Operands o(shape, dtype);
      const std::string what = name(shape, dtype) + (causal ? " causal" : "");
      o.mask = Tensor::randn({2, 2, 6, 7}) > 0.0;
      expect_attention(o, causal, cuda.device(), what + " bool");
      o.mask = Tensor::randn({2, 1, 1, 7}) > 0.3;  // some queries have no key at all
      expect_attention(o, causal, cuda.device(), what + " bool, broadcast");
      o.mask = Tensor::randint(-2, 8, {2, 1, 6, 1});
      expect_attention(o, causal, cuda.device(), what + " first keys");
      o.mask = Tensor::randn({1, 2, 6, 7}).to(dtype);
      expect_attention(o, causal, cuda.device(), what + " added");
    }
}

// A softmax in f64 of scores that are rounded to the compute dtype.
Results softmax_in_f64(const Operands& o, bool causal) {
  const auto wide = [&](const Tensor& t) { return t.to(wide_dtype(o.q.dtype())).clone(); };
  const Tensor q = wide(o.q).requires_grad_(), k = wide(o.k).requires_grad_(), v = wide(o.v).requires_grad_();
  const Dims &s = q.sizes(), &kv = k.sizes();
  const auto of_heads = [&](const Tensor& t) {
    return t.view({s[0], kv[1], 1, kv[2], s[3]})
        .expand({s[0], kv[1], s[1] / kv[1], kv[2], s[3]})
        .reshape({s[0], s[1], kv[2], s[3]});
  };
  const double scale = 1 / std::sqrt(static_cast<double>(s[3]));
  Tensor scores = (ops::matmul(q, of_heads(k).transpose(-1, -2)) * scale + wide(o.mask)).to(kF64);
  const Tensor later = Tensor::arange(kv[2]) > Tensor::arange(s[2]).view({s[2], 1});
  if (causal) scores = ops::where(later, -std::numeric_limits<double>::infinity(), scores);
  const Tensor out = ops::matmul(ops::softmax(scores), of_heads(v).to(kF64));
  out.backward(o.grad.to(kF64));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}
// Note [Large logsumexp]. Every third row is masked whole, by another row in each head of each batch, so that some
// tiles have no such row and others have some; of the other rows, some keys are masked. `none`: rows have no key.
Tensor mask_of_rows(const Shape& s, double number, bool none) {
  std::vector<double> mask;
  for (int64_t head = 0; head < s.batch * s.heads; ++head)
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t j = 0; j < s.keys; ++j) {
        const bool whole = (i + head) % 3 == 0 && (i < 64 || head == 3);
        if (none && i % 5 == 4) mask.push_back(-std::numeric_limits<double>::infinity());
        else mask.push_back(whole || (i + j) % 4 == 3 ? number : 0.0);
      }
  return Tensor::from(mask, {s.batch, s.heads, s.queries, s.keys});
}
TEST(CudaAttention, RowsMaskedWholeByAFiniteNumber) {
  FakeCuda cuda({.seed = 5});
  manual_seed(12);
  for (const int64_t head_dim : {16, 256})  // fused, and in chunks
    for (const auto& [dtype, lowest] :
         {std::pair(kF32, -3.4028234663852886e38), {kBF16, -3.3895313892515355e38}, {kF64, -1.7976931348623157e308}}) {
      const Shape shape{2, 2, 1, 68, 66, head_dim};
      Operands o(shape, dtype);
      // Scores without rounding: what is added to them is what rounds.
      for (Tensor* t : {&o.q, &o.k}) *t = (Tensor::randint(-2, 3, t->sizes()) * 0.5).to(dtype);
      for (const bool causal : {false, true}) {
        const std::string what = name(shape, dtype) + (causal ? " causal, " : ", ");
        for (const double number : {lowest, -1e9, -1e5}) {
          o.mask = mask_of_rows(shape, number, false).to(dtype);
          expect_results(o, softmax_in_f64(o, causal), causal, cuda.device(), what + std::to_string(number));
        }
        o.mask = mask_of_rows(shape, lowest, true).to(dtype);
        expect_attention(o, causal, cuda.device(), what + "some rows without a key");
        if (!causal) expect_attention(o, causal, cuda.device(), what + "dropout", 0.3);
      }
    }
}

// Note [Keys that are not read]: NaN there changes no bit of a result, and its own gradients are 0.
TEST(CudaAttention, KeysThatAreNotReadMayHoldAnything) {
  FakeCuda cuda;
  manual_seed(6);
  const auto expect_same = [&](const Operands& o, const Tensor& unread, const std::string& what) {  // unread: bool
    Operands poisoned = o;
    for (Tensor* t : {&poisoned.k, &poisoned.v}) *t = ops::where(unread, std::nan(""), *t).to(o.q.dtype());
    const auto results = [&](const Operands& from) {
      return run(packed(from.q, cuda.device()), packed(from.k, cuda.device()), packed(from.v, cuda.device()),
                 from.mask.to(cuda.device()), packed(from.grad, cuda.device()), false);
    };
    const Results want = results(o), got = results(poisoned);
    EXPECT_EQ(test::bytes_of(got.out), test::bytes_of(want.out)) << what;
    EXPECT_EQ(test::bytes_of(got.grad_q), test::bytes_of(want.grad_q)) << what;
    EXPECT_EQ(test::bytes_of(got.grad_k), test::bytes_of(want.grad_k)) << what;
    EXPECT_EQ(test::bytes_of(got.grad_v), test::bytes_of(want.grad_v)) << what;
    expect_attention(o, false, cuda.device(), what);
  };
  for (const auto& [dtype, head_dim] : {std::pair(kF32, 8), {kBF16, 16}, {kF32, 130}, {kBF16, 130}}) {
    const int64_t keys = 70;  // two tiles
    const Tensor slots = Tensor::arange(keys);
    for (const int64_t queries : {1, 5}) {
      Operands o({2, 4, 2, queries, keys, head_dim}, dtype);
      const std::string what = name({2, 4, 2, queries, keys, head_dim}, dtype);
      o.mask = Tensor::from(std::vector<int64_t>{3, 66}, {2, 1, 1, 1}) > slots;  // rows of a cache
      expect_same(o, (Tensor::from(std::vector<int64_t>{3, 66}, {2, 1, 1}) <= slots).view({2, 1, keys, 1}),
                  what + " bool");
      o.mask = Tensor::from(std::vector<int64_t>{-4, 66}, {2, 1, 1, 1}) + Tensor::arange(queries).view({queries, 1});
      expect_same(o, (Tensor::from(std::vector<int64_t>{0, 66}, {2, 1, 1}) > slots).view({2, 1, keys, 1}),
                  what + " first keys");
      // One number for all queries of a batch: its row has no stride.
      o.mask = Tensor::from(std::vector<int64_t>{66, 3}, {2, 1, 1, 1});
      expect_same(o, (Tensor::from(std::vector<int64_t>{66, 3}, {2, 1, 1}) > slots).view({2, 1, keys, 1}),
                  what + " first keys of batches");
      // One head of a group reads the key 40, the other does not.
      o.mask = Tensor::from(std::vector<int64_t>{40, 50, 60, 69}, {4, 1, 1}).expand({2, 4, queries, 1}).contiguous();
      expect_same(o, (Tensor::from(std::vector<int64_t>{40, 60}, {1, 2, 1}) > slots).view({1, 2, keys, 1}),
                  what + " first keys of heads");
      // Keys from and to: of a window, and of none.
      o.mask = Tensor::from(std::vector<int64_t>{1, 4, 66, 69}, {2, 1, 1, 2}).expand({2, 1, queries, 2}).contiguous();
      const Tensor begins = Tensor::from(std::vector<int64_t>{1, 66}, {2, 1, 1}),
                   ends = Tensor::from(std::vector<int64_t>{4, 69}, {2, 1, 1});
      expect_same(o, ops::bitwise_or(begins > slots, ends <= slots).view({2, 1, keys, 1}), what + " keys from and to");
    }
  }
  // Later queries of a tile begin earlier than its first ones.
  for (const auto& [dtype, head_dim] : {std::pair(kF32, 8), {kBF16, 16}, {kBF16, 130}}) {
    Operands o({1, 1, 1, 70, 70, head_dim}, dtype);
    const Tensor query = Tensor::arange(70);
    o.mask = ops::where(query < 40, 65.0, ops::where(query < 60, 20.0, 50.0)).to(kI64).view({1, 1, 70, 1});
    expect_same(o, (Tensor::arange(70) < 20).view({70, 1}), "later queries begin earlier");
  }
  // Without the line that leaves them out, there is a NaN.
  cuda->set_edit([](const std::string& source) {
    std::string text = source;
    for (const std::string line : {"&& wanted(row)", "mask.kind != 0 && !wanted(row)"})
      if (const size_t at = text.find(line); at != text.npos)
        text.replace(at, line.size(), line[0] == '&' ? "" : "false");
    return text;
  });
  for (const int64_t head_dim : {24, 131}) {
    Operands o({1, 1, 1, 1, 8, head_dim}, kF64);  // kernels that have not run yet
    const Tensor unread = Tensor::arange(8).view({8, 1}) < 3;
    for (Tensor* t : {&o.k, &o.v}) *t = ops::where(unread, std::nan(""), *t).to(kF64);
    const Tensor first = Tensor::full({1, 1, 1, 1}, 3, {kI64, kCPU}).to(cuda.device());
    const Tensor out = ops::scaled_dot_product_attention(o.q.to(cuda.device()), o.k.to(cuda.device()),
                                                         o.v.to(cuda.device()), first);
    EXPECT_TRUE(std::isnan(out.to(kCPU).to_vector<double>()[0])) << head_dim;
  }
}

// Several tiles, the last ones not full; heads that fill a tile and others.
TEST(CudaAttention, ManyTiles) {
  FakeCuda cuda({.seed = 2});
  manual_seed(3);
  for (const auto& [dtype, shape] : {std::pair(kBF16, Shape{1, 2, 2, 130, 130, 16}),
                                     {kBF16, {1, 2, 1, 70, 129, 64}},
                                     {kBF16, {1, 1, 1, 40, 33, 100}},
                                     {kF16, {1, 1, 1, 65, 65, 24}},
                                     {kF32, {1, 2, 2, 40, 70, 12}},
                                     {kF32, {1, 1, 1, 18, 20, 128}},
                                     {kF64, {1, 1, 1, 20, 35, 64}}})
    for (const bool causal : {false, true}) {
      Operands o(shape, dtype);
      const std::string what = name(shape, dtype) + (causal ? " causal" : "");
      expect_attention(o, causal, cuda.device(), what);
      o.mask = Tensor::randn({shape.batch, 1, shape.queries, shape.keys}) > 0.5;
      if (causal) expect_attention(o, causal, cuda.device(), what + " masked");
    }
}

// Whichever way, the masks are the CPU's: a weight that only one of them keeps is far beyond the tolerance.
TEST(CudaAttention, Dropout) {
  for (const uint64_t order : {0, 1, 2}) {
    FakeCuda cuda({.seed = order});
    manual_seed(6);
    for (const DType dtype : {kF32, kBF16, kF16, kF64}) {
      if (order > 0 && dtype != kF32 && dtype != kBF16) continue;
      for (const Shape& shape : {Shape{2, 4, 2, 18, 23, 8}, Shape{1, 2, 1, 70, 69, 16}, Shape{1, 1, 1, 1, 3, 4},
                                 Shape{1, 2, 2, 9, 11, 130}})  // the last in chunks
        for (const bool causal : {false, true}) {
          if (shape.queries == 70 && (order > 0 || (dtype != kBF16 && dtype != kF32))) continue;
          for (const double p : {0.1, 0.5, 1.0}) {
            if (p != 0.5 && (shape.queries == 70 || dtype == kF64)) continue;
            const std::string what = name(shape, dtype) + (causal ? " causal" : "") + ", p " + std::to_string(p);
            expect_attention(Operands(shape, dtype), causal, cuda.device(), what, p);
          }
        }
    }
  }
}

// A word that equals the threshold keeps its weight, as on the CPU. The probability is found by halving.
TEST(CudaAttention, DropoutKeepsWhatIsAtTheThreshold) {
  FakeCuda cuda;
  manual_seed(11);
  for (const int64_t head_dim : {4, 130}) {  // fused, and in chunks
    const Operands o({1, 1, 1, 1, 1, head_dim}, kF32);
    const auto is_kept = [&](Device device, uint64_t k) {
      Generator generator(77);
      const double p = std::ldexp(static_cast<double>(k), -32);
      const Tensor out = ops::scaled_dot_product_attention(o.q.to(device), o.k.to(device), o.v.to(device), {},
                                                           {.dropout = p, .generator = &generator});
      return out.to(kCPU).to_vector<float>()[0] != 0.0f;
    };
    uint64_t kept = 0, dropped = uint64_t{1} << 32;
    while (dropped - kept > 1) (is_kept(kCPU, (kept + dropped) / 2) ? kept : dropped) = (kept + dropped) / 2;
    EXPECT_TRUE(is_kept(cuda.device(), kept)) << head_dim;
    EXPECT_FALSE(is_kept(cuda.device(), dropped)) << head_dim;
  }
}

// Few calls: also with kernels that a sanitizer watches.
TEST(CudaAttention, DropoutBothWays) {
  FakeCuda cuda({.seed = 4});
  manual_seed(10);
  expect_attention(Operands({1, 2, 1, 18, 19, 8}, kBF16), true, cuda.device(), "fused", 0.4);
  expect_attention(Operands({1, 1, 1, 6, 7, 130}, kF32), true, cuda.device(), "in chunks", 0.4);
}

TEST(CudaAttention, DropoutAndMasks) {
  FakeCuda cuda({.seed = 3});
  manual_seed(7);
  for (const int64_t head_dim : {4, 130})
    for (const DType dtype : {kF32, kBF16}) {
      const Shape shape{2, 2, 2, 6, 7, head_dim};
      Operands o(shape, dtype);
      const std::string what = name(shape, dtype) + " dropout";
      o.mask = Tensor::randn({2, 1, 1, 7}) > 0.3;  // some queries have no key at all
      expect_attention(o, false, cuda.device(), what + " bool", 0.3);
      o.mask = Tensor::randint(-2, 8, {2, 1, 6, 1});
      expect_attention(o, true, cuda.device(), what + " first keys", 0.3);
      o.mask = Tensor::randn({1, 2, 6, 7}).to(dtype);
      expect_attention(o, false, cuda.device(), what + " added", 0.3);
    }
}

TEST(CudaAttention, NothingToAttendTo) {
  FakeCuda cuda;
  const Device device = cuda.device();
  const auto zeros = [&](const Dims& sizes) { return Tensor::zeros(sizes).to(device); };
  const Results none = run(test::dense_copy(zeros({2, 3, 4, 5})), zeros({2, 3, 0, 5}), zeros({2, 3, 0, 5}), {},
                           zeros({2, 3, 4, 5}), false);
  for (const float value : none.out.to(kCPU).to_vector<float>()) EXPECT_EQ(value, 0.0f);
  for (const float value : none.grad_q.to(kCPU).to_vector<float>()) EXPECT_EQ(value, 0.0f);
  EXPECT_EQ(none.grad_k.numel(), 0);
  const Results nobody = run(zeros({2, 3, 0, 5}), test::dense_copy(zeros({2, 3, 4, 5})), zeros({2, 3, 4, 5}), {},
                             zeros({2, 3, 0, 5}), true);
  EXPECT_EQ(nobody.out.numel(), 0);
  for (const float value : nobody.grad_k.to(kCPU).to_vector<float>()) EXPECT_EQ(value, 0.0f);
}

// ---- Chunks

cuda::HeadsStrides strides_of(const Tensor& t) { return {t.strides()[0], t.strides()[1], t.strides()[2]}; }

struct Chunked {
  Tensor out, logsumexp, grad_q, grad_k, grad_v;
};
Chunked in_chunks(const Operands& o, int64_t chunk, bool causal, Device device, double dropout = 0) {
  const Tensor q = o.q.to(device), k = o.k.to(device), v = o.v.to(device), grad = o.grad.to(device);
  const Dims s = q.sizes();
  const DType dtype = q.dtype();
  Chunked r{Tensor::empty(s, {dtype, device}), Tensor::empty({s[0], s[1], s[2]}, {dtype == kF64 ? kF64 : kF32, device}),
            Tensor::empty(s, {dtype, device}), Tensor::empty(k.sizes(), {dtype, device}),
            Tensor::empty(k.sizes(), {dtype, device})};
  const cuda::AttentionCall call{.device = device.index,
                                 .dtype = dtype,
                                 .batch = s[0],
                                 .heads = s[1],
                                 .kv_heads = k.sizes()[1],
                                 .queries = s[2],
                                 .keys = k.sizes()[2],
                                 .head_dim = s[3],
                                 .causal = causal,
                                 .scale = 0.5,
                                 .q = strides_of(q),
                                 .k = strides_of(k),
                                 .v = strides_of(v),
                                 .chunk = chunk,
                                 .dropout = dropout,
                                 .increment = 2};
  const auto at = [](const Tensor& t) { return t.impl()->data(); };
  const Tensor state = Tensor::from<int64_t>({9, 4}, {2}).to(device);
  const cuda::AttentionOperands operands{at(q), at(k), at(v), nullptr, at(state)};
  cuda::attention_forward(call, operands, at(r.out), strides_of(r.out), at(r.logsumexp));
  cuda::attention_backward(call, operands,
                           {.out = at(r.out),
                            .logsumexp = at(r.logsumexp),
                            .grad = at(grad),
                            .out_strides = strides_of(r.out),
                            .grad_strides = strides_of(grad),
                            .grad_q = at(r.grad_q),
                            .grad_k = at(r.grad_k),
                            .grad_v = at(r.grad_v),
                            .grad_q_strides = strides_of(r.grad_q),
                            .grad_k_strides = strides_of(r.grad_k),
                            .grad_v_strides = strides_of(r.grad_v)});
  return r;
}

TEST(CudaAttention, ChunksAreOneCall) {
  FakeCuda cuda;
  manual_seed(3);
  for (const DType dtype : {kF32, kF64, kBF16})
    for (const Shape& shape : {Shape{2, 2, 2, 21, 21, 4}, Shape{1, 4, 2, 9, 13, 4}, Shape{1, 2, 1, 13, 5, 4}})
      for (const bool causal : {false, true}) {
        const Operands o(shape, dtype);
        const double dropout = shape.batch == 1 ? 0.25 : 0;
        const Chunked whole = in_chunks(o, 1000, causal, cuda.device(), dropout);
        for (const int64_t chunk : {1, 4, 8}) {
          const Chunked parts = in_chunks(o, chunk, causal, cuda.device(), dropout);
          const std::string what = name(shape, dtype) + (causal ? " causal" : "") + " by " + std::to_string(chunk);
          const double most = dtype == kBF16 ? 1e-2 : tolerance(dtype) / 4;
          expect_close(parts.out, whole.out.to(kCPU), most, what + " out");
          expect_close(parts.logsumexp, whole.logsumexp.to(kCPU), most, what + " logsumexp");
          expect_close(parts.grad_q, whole.grad_q.to(kCPU), most, what + " grad q");
          expect_close(parts.grad_k, whole.grad_k.to(kCPU), most, what + " grad k");
          expect_close(parts.grad_v, whole.grad_v.to(kCPU), most, what + " grad v");
        }
      }
}

// A packed projection in chunks: a launch for all heads of all batches.
TEST(CudaAttention, AsManyLaunchesForAnyBatch) {
  FakeCuda cuda;
  for (const DType dtype : {kF32, kBF16})
    for (const int64_t kv_heads : {2, 1}) {
      std::vector<int64_t> launches;
      for (const int64_t batch : {2, 3, 7}) {
        const Operands o({batch, 2, kv_heads, 5, 6, 130}, dtype);
        const Tensor q = packed(o.q, cuda.device()), k = packed(o.k, cuda.device()), v = packed(o.v, cuda.device()),
                     grad = packed(o.grad, cuda.device());
        const auto count = [&] { return cuda->counts().launches + cuda->counts().products; };
        static_cast<void>(run(q, k, v, {}, grad, true));
        synchronize(cuda.device());
        const int64_t before = count();
        static_cast<void>(run(q, k, v, {}, grad, true));
        synchronize(cuda.device());
        launches.push_back(count() - before);
      }
      EXPECT_EQ(launches[1], launches[0]);
      EXPECT_EQ(launches[2], launches[0]);
    }
}

TEST(CudaAttention, MemoryIsThatOfAChunk) {
  for (const int64_t length : {1024, 8192, 65536, 1 << 20}) {
    const cuda::AttentionCall call{.batch = 1, .heads = 16, .kv_heads = 16, .queries = length, .keys = length};
    const int64_t bytes = cuda::chunk_of(call) * call.heads * length * 4;
    EXPECT_LE(bytes, std::max(int64_t{64} << 20, 16 * call.heads * length * 4)) << length;
    EXPECT_GE(cuda::chunk_of(call), 16);
  }
  // The memory that a call takes beside its results: not that of all scores.
  FakeCuda cuda;
  manual_seed(4);
  const Operands o({1, 2, 2, 64, 64, 8}, kF32);
  const auto peak = [&](int64_t chunk) {
    synchronize(cuda.device());
    const BackendTable& table = backend_of(cuda.device());
    static_cast<void>(in_chunks(o, chunk, false, cuda.device()));
    table.reset_peak(0);
    const int64_t before = table.stats(0).bytes_in_use;
    static_cast<void>(in_chunks(o, chunk, false, cuda.device()));
    return table.stats(0).peak_bytes - before;
  };
  EXPECT_GE(peak(64) - peak(4), 2 * (64 - 4) * 2 * 64 * 4);
}

std::string bits(const fake_cuda::Options& options) {
  FakeCuda cuda(options);
  manual_seed(5);
  std::string all;
  for (const DType dtype : {kF32, kBF16}) {
    const Operands o({2, 4, 2, 9, 9, 4}, dtype);
    const Results r = run(packed(o.q, cuda.device()), packed(o.k, cuda.device()), packed(o.v, cuda.device()), {},
                          packed(o.grad, cuda.device()), true, 0.2);
    for (const Tensor* t : {&r.out, &r.grad_q, &r.grad_k, &r.grad_v}) all += test::bytes_of(*t);
    const Chunked parts = in_chunks(o, 4, true, cuda.device());
    all += test::bytes_of(parts.grad_k) + test::bytes_of(parts.grad_v);
  }
  return all;
}

TEST(CudaAttention, EveryOrderGivesTheSameBits) {
  const std::string expected = bits({});
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(bits({.seed = seed}), expected) << seed;
  EXPECT_EQ(bits({.seed = 3, .early = 0}), expected);
}

// ---- A line of the fused kernels changed: each is noticed

// True if the results are the CPU's in this order of threads, with `part` of every kernel replaced.
bool is_right(const Operands& o, bool causal, uint64_t order, const std::string& part, const std::string& by,
              double dropout = 0) {
  FakeCuda cuda({.seed = order});
  bool found = false;
  cuda->set_edit([&](const std::string& source) {
    std::string text = source;
    for (size_t at = 0; !part.empty() && (at = text.find(part, at)) != text.npos; at += by.size())
      text.replace(at, part.size(), by), found = true;
    return text;
  });
  const Results got = run(packed(o.q, cuda.device()), packed(o.k, cuda.device()), packed(o.v, cuda.device()), {},
                          packed(o.grad, cuda.device()), causal, dropout);
  const auto wide = [](const Tensor& t) { return t.to(kF32).clone(); };
  const Results expected = run(wide(o.q), wide(o.k), wide(o.v), {}, wide(o.grad), causal, dropout);
  EXPECT_TRUE(found || part.empty()) << "no kernel has " << part;
  const auto close = [&](const Tensor& a, const Tensor& b) {
    const std::vector<double> x = a.to(kCPU).to_vector<double>(), y = b.to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i)
      if (!(std::abs(x[i] - y[i]) <= tolerance(o.q.dtype()) * (1 + std::abs(y[i])))) return false;
    return true;
  };
  return close(got.out, expected.out) && close(got.grad_q, expected.grad_q) && close(got.grad_k, expected.grad_k) &&
         close(got.grad_v, expected.grad_v);
}
TEST(CudaAttention, PlantedBugsAreNoticed) {
  manual_seed(8);
  Operands narrow({1, 2, 1, 70, 70, 16}, kBF16), wide({1, 1, 1, 70, 70, 4}, kF32);
  // The largest scores are those of the second tile of keys.
  wide.k = wide.k * ops::where(Tensor::arange(70).view({70, 1}) >= 64, 8.0, 1.0).to(kF32);
  const auto expect_noticed = [&](const Operands& o, const std::string& part, const std::string& by) {
    bool right = true;
    for (const uint64_t order : {0, 1, 3}) right = right && is_right(o, true, order, part, by);
    EXPECT_FALSE(right) << "nobody notices " << by << " in place of " << part;
  };
  for (const uint64_t order : {0, 1, 3})
    for (const Operands* o : {&narrow, &wide}) EXPECT_TRUE(is_right(*o, true, order, "", ""));
  expect_noticed(wide, "__syncthreads();  // the last tiles have been used", "");
  expect_noticed(wide, "__syncwarp();\n}", "}");                                           // behind a warp's weights
  expect_noticed(wide, "query + 1 < call.keys ? query + 1", "query < call.keys ? query");  // causal
  expect_noticed(wide, "least(call.keys, first + ROWS)", "least(call.keys, first)");
  expect_noticed(wide, "sums[n][e] = sums[n][e] * shrinks", "sums[n][e] = sums[n][e]");
  expect_noticed(wide, "fma_of(total[half], shrinks, ", "fma_of(total[half], 1.0f, ");
  expect_noticed(wide, "(grad - delta)", "grad");
  expect_noticed(wide, "group_of_lane() + e / 2 * 8", "group_of_lane() + e / 2 * 4");
  expect_noticed(wide, "in_tile(key - first_query)", "0");
  expect_noticed(narrow, "8 * t + 4 + i", "8 * t + i");
  expect_noticed(narrow, "pair(row + 8), pair(lower + 8)", "pair(lower + 8), pair(row + 8)");
  expect_noticed(narrow, "head < (kv_head + 1) * groups", "head < kv_head * groups + 1");
}

TEST(CudaAttention, PlantedBugsOfDropoutAreNoticed) {
  manual_seed(9);
  const Operands o({1, 2, 1, 21, 22, 8}, kF32);
  const auto is_noticed = [&](const std::string& part, const std::string& by) {
    return !is_right(o, true, 1, part, by, 0.4);
  };
  EXPECT_FALSE(is_noticed("", ""));
  const std::pair<const char*, const char*> bugs[] = {
      {"8 * odd, key", "0, key"},                                     // the row that a lane draws for
      {"4 * (place_in_group() / 2)", "0"},                            // and its keys
      {"(e / 2 == odd ? mine : theirs)", "mine"},                     // what the other lane drew
      {">> (2 * odd + e % 2)", ">> (e % 2)"},                         // which words
      {"column_of(n, own)", "column_of(n, 0)"},                       // the query that a lane draws for
      {"group_of_lane() / 4 * 4 + own / 2 * 8", "own / 2 * 8"},       // and its keys
      {"lane - 4 * own + 4 * e) >> own", "lane) >> own"},             // what the other lanes drew
      {"lane - 4 * own + 4 * e) >> own", "lane - 4 * own + 4 * e)"},  // which words
      {"if (!kept.at(n, e)) scores[n][e] = 0;", ""},
      {"if (!mine.at(n, e)) scores[n][e] = 0;", ""},
      {"if (!mine.at(n, e)) grads[n][e] = 0;", ""},
      {"s.drop(grads);", ""},
      {"grad = raised(dropout, grad);", ""},
      {"raised(dropout, value_sums[n][e])", "value_sums[n][e]"},
      {"raised(dropout, sums[n][e] / total[half])", "sums[n][e] / total[half]"},
      {"row * counters + first_key / 4", "row * (counters - 1) + first_key / 4"},
      {" + static_cast<unsigned long long>(increment)", " + 1"},
  };
  for (const auto& [part, by] : bugs) EXPECT_TRUE(is_noticed(part, by)) << "nobody notices " << by << " for " << part;
}

// A path that only a GPU runs: machine code of the same text, for what is compiled ahead.
TEST(CudaAttention, TheRealNvrtcCompilesIt) {
  const test::Setting on("RONDO_CUDA", nullptr), no_path("RONDO_CUDA_PATH", nullptr);
  cuda::forget_libraries();
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  for (const DType dtype : {kF32, kF64, kBF16, kF16})
    for (const int architecture : cuda::kArchitectures) {
      const std::string text = cuda::whole_text(cuda::attention_source(),
                                                {{"T", cuda::type_name(dtype)}, {"DROPOUT", "1"}});
      EXPECT_GT(cuda::compile_image(text, "attention", architecture).cubin.size(), 1000u);
    }
  for (const auto& [dtype, head_dim, architecture] :
       {std::tuple(kBF16, 64, 80), {kBF16, 128, 90}, {kF16, 64, 100}, {kF32, 64, 90}, {kF64, 16, 80}}) {
    const auto tile = cuda::attention_tile(dtype, head_dim);
    ASSERT_TRUE(tile);
    for (const cuda::Source* source : {&cuda::fused_attention_source(), &cuda::fused_attention_grad_source()}) {
      const std::string text = cuda::whole_text(*source, {{"T", cuda::type_name(dtype)},
                                                          {"HEAD_DIM", std::to_string(tile->head_dim)},
                                                          {"ROWS", std::to_string(tile->rows)},
                                                          {"THREADS", std::to_string(tile->threads())},
                                                          {"MASK", "0"},
                                                          {"DROPOUT", "1"}});
      EXPECT_GT(cuda::compile_image(text, source->name, architecture).cubin.size(), 1000u);
    }
  }
  cuda::forget_libraries();
}

}  // namespace
}  // namespace rondo

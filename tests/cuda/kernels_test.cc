// The kernels of runtime/cuda/ against the CPU's, bit for bit: their source runs on the fake driver, each thread a
// fiber, in three orders of threads and blocks. Samples: tests/op_samples.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/run_kernel.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::bytes_of;
using test::error_of;
using test::FakeCuda;
using test::kOrders;
using test::OpSample;
using test::OpSpec;
using test::run;
using test::same;
using test::Setting;

std::vector<DType> dtypes_of(const OpDef& op, const OpSpec& spec) {
  std::vector<DType> dtypes;
  for (DType t : {kF32, kF64, kBF16, kF16, kI64, kI32, kU8, kBool}) {
    // Floats of these run as generated kernels where compile/ is linked: one dtype shows that they run without it, too.
    if (is_floating(t) && t != kF32 && op.body != nullptr) continue;
    if (is_floating(t) || (t == kBool ? spec.takes_bool : spec.takes_integers)) dtypes.push_back(t);
  }
  return dtypes;
}

// Asks for the kernels of all dtypes on a device that is not here. The fake NVRTC hears of them, and the host's
// compiler then gets them in one file: several times as fast as one by one.
void announce(const OpDef& op, const OpSpec& spec) {
  const Setting path("RONDO_CUDA_PATH", tests::kFakeCudaDir);
  cuda::close();
  cuda::forget_libraries();
  const cuda::AbsentDevice gpu(90);
  for (const OpSample& sample : samples_of(spec))
    for (const DType dtype : dtypes_of(op, spec))
      run(op, sample.attrs, sample.n_outputs, sample.inputs_as(dtype), gpu.device());
}

// Every kernel by hand, in every dtype and layout.
class CudaKernels : public ::testing::TestWithParam<const OpDef*> {};
TEST_P(CudaKernels, AreTheCpus) {
  const OpDef& op = *GetParam();
  const OpSpec& spec = *test::find_spec(op.name);
  announce(op, spec);
  for (const uint64_t order : kOrders) {
    FakeCuda cuda({.seed = order});
    for (const OpSample& sample : samples_of(spec))
      for (const DType dtype : dtypes_of(op, spec)) {
        SCOPED_TRACE(absl::StrCat(sample.label, " ", std::string(name_of(dtype)), ", order ", order));
        const std::vector<Tensor> dense = sample.inputs_as(dtype);
        const auto compare = [&](std::span<const Tensor> inputs, int64_t shift) {
          const std::vector<Tensor> expected = run(op, sample.attrs, sample.n_outputs, inputs, kCPU),
                                    got = run(op, sample.attrs, sample.n_outputs, inputs, cuda.device(), shift);
          for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(op, got[i], expected[i])) << "output " << i;
        };
        compare(dense, 0);
        compare(dense, 1);
        if (op.name == std::string_view("window_copy")) continue;  // of dense tensors only
        for (size_t kind = 0; kind < 8; ++kind) {
          std::vector<Tensor> strided = dense;
          bool any = false;
          for (size_t i = 0; i < dense.size(); ++i) {
            if (!dense[i].defined() || sample.role(i) == test::Role::kCompute || op.overwrites == static_cast<int>(i))
              continue;
            const auto layouts = test::layouts_of(dense[i]);
            if (kind >= layouts.size()) continue;
            strided[i] = layouts[kind].tensor;
            any = true;
          }
          if (any) compare(strided, 0);
        }
      }
  }
}
// Not what is made of library calls, whose sums have an order of their own: product_test.cc, attention_test.cc,
// loss_test.cc, cudnn_test.cc.
std::vector<const OpDef*> ops_by_hand() {
  const OpDef* const of_calls[] = {
      &ops::kAttention, &ops::kAttentionGrad,   &ops::kLinearCrossEntropy, &ops::kLinearCrossEntropyGrad,
      &ops::kConv2d,    &ops::kConv2dGradInput, &ops::kConv2dGradWeight};
  std::vector<const OpDef*> ops;
  for (const OpDef* op : all_ops())
    if (cuda::own_kernels(*op).kernel != nullptr && op->kind != OpKind::kContraction &&
        std::ranges::find(of_calls, op) == std::end(of_calls))
      ops.push_back(op);
  return ops;
}
INSTANTIATE_TEST_SUITE_P(ByHand, CudaKernels, ::testing::ValuesIn(ops_by_hand()),
                         [](const auto& info) { return std::string(info.param->name); });

Tensor uniform_of(const Dims& sizes) { return test::uniform(sizes, -2, 2, 1).to(kF32); }

Tensor values(DType dtype) {
  std::vector<double> list;
  for (int i = 0; i < 301; ++i) list.push_back((i - 150) * 0.75);
  const double special[] = {0.0,  -0.0,   NAN,     INFINITY, -INFINITY, 1e300, -1e300, 3e9,
                            -3e9, 9.3e18, -9.3e18, 65504,    65520,     1e-7,  1e-40};
  list.insert(list.end(), std::begin(special), std::end(special));
  return Tensor::from(list, {static_cast<int64_t>(list.size())}).to(dtype);
}

TEST(CudaKernels, CastsBetweenAllDTypes) {
  FakeCuda cuda({.seed = 1});
  const DType all[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};
  for (DType from : all)
    for (DType to : all) {
      SCOPED_TRACE(absl::StrCat(std::string(name_of(from)), " to ", std::string(name_of(to))));
      const Tensor x = values(from), strided = test::with_strides(x, {2}, 1, 2 * x.numel() + 1);
      const Attrs attrs{.ints = {static_cast<int64_t>(to)}};
      for (const Tensor& input : {x, strided}) {
        const Tensor inputs[] = {input};
        EXPECT_TRUE(same(ops::kCast, run(ops::kCast, attrs, 1, inputs, cuda.device())[0],
                         run(ops::kCast, attrs, 1, inputs, kCPU)[0]));
      }
    }
}

TEST(CudaKernels, FactoriesGiveTheCpusValues) {
  for (const uint64_t order : kOrders) {
    FakeCuda cuda({.seed = order});
    for (DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
      SCOPED_TRACE(name_of(dtype));
      const auto both = [&](auto make) {
        const Tensor got = make(cuda.device()), expected = make(kCPU);
        EXPECT_EQ(bytes_of(got), bytes_of(expected));
      };
      both([&](Device d) { return Tensor::full({7, 3}, 1, {dtype, d}); });
      both([&](Device d) { return Tensor::full({0}, 1, {dtype, d}); });
      both([&](Device d) { return Tensor::arange(0, 100, 3, {dtype, d}); });
      if (is_floating(dtype)) {
        both([&](Device d) { return Tensor::arange(0.5, -100.0, -0.3, {dtype, d}); });
        both([&](Device d) { return manual_seed(3), Tensor::rand({1001}, {dtype, d}); });
        both([&](Device d) { return manual_seed(3), Tensor::randn({1001}, {dtype, d}); });
      } else if (dtype != kBool && dtype != kU8) {
        both([&](Device d) { return manual_seed(3), Tensor::randint(-5, 1000000007, {1001}, {dtype, d}); });
      }
    }
    Tensor x = Tensor::zeros({4, 6}, cuda.device());
    x.slice(1, {1, 6, 2}).fill_(2.5);
    EXPECT_EQ(x.to_vector<float>()[1], 2.5f);
    EXPECT_EQ(x.to_vector<float>()[2], 0.0f);
  }
}

// Results, and partial sums, that fill their block: an element too many lies behind it, which the fake refuses. A block
// of the driver for each, and threads to spare.
TEST(CudaKernels, NothingIsWrittenBehindABlock) {
  const Setting no_cache("RONDO_CUDA_CACHE", "0");
  FakeCuda cuda;
  for (DType dtype : {kF64, kF32, kBF16, kI64, kI32}) {
    const TensorOptions options{dtype, cuda.device()};
    const int64_t n = 768 / static_cast<int64_t>(size_of(dtype));
    std::vector<Tensor> made = {Tensor::full({n}, 1, options), Tensor::arange(0, n, 1, options)};
    if (is_floating(dtype)) made.insert(made.end(), {Tensor::rand({n}, options), Tensor::randn({n}, options)});
    else made.push_back(Tensor::randint(0, 9, {n}, options));
    EXPECT_NO_THROW(synchronize(cuda.device())) << name_of(dtype);
  }
  for (const int64_t rows : {70, 300, 700, 1500, 3100}) {
    const Tensor inputs[] = {Tensor::ones({rows, 64}, cuda.device())};
    EXPECT_EQ(run(ops::kMax, {.ints = {1, 0}}, 1, inputs, cuda.device())[0].to_vector<float>()[63], 1.0f);
  }
}

// A word that equals the threshold keeps its element, as on the CPU: in the kernel by hand, and in the generated one
// that a program with the compiler runs instead. The probability is found by halving.
TEST(CudaKernels, DropoutKeepsWhatIsAtTheThreshold) {
  FakeCuda cuda;
  const Tensor inputs[] = {Tensor::ones({4}), Tensor::from(std::vector<int64_t>{77, 0}, {2})};
  const auto by_hand = [&](Device device, uint64_t k) {
    const Attrs attrs = ops::dropout_attrs(std::ldexp(static_cast<double>(k), -32), 0);
    return run(ops::kDropout, attrs, 1, inputs, device)[0].to_vector<float>()[0];
  };
  const auto generated = [&](uint64_t k) {
    Generator generator(77);
    const Tensor x = inputs[0].to(cuda.device());
    return ops::dropout(x, std::ldexp(static_cast<double>(k), -32), &generator).to(kCPU).to_vector<float>()[0];
  };
  uint64_t kept = 0, dropped = uint64_t{1} << 32;
  while (dropped - kept > 1) (by_hand(kCPU, (kept + dropped) / 2) != 0 ? kept : dropped) = (kept + dropped) / 2;
  EXPECT_NE(by_hand(kCPU, kept), 0.0f);
  EXPECT_EQ(by_hand(cuda.device(), kept), by_hand(kCPU, kept));
  EXPECT_EQ(by_hand(cuda.device(), dropped), 0.0f);
  EXPECT_EQ(generated(kept), by_hand(kCPU, kept));
  EXPECT_EQ(generated(dropped), 0.0f);
}

// Enough elements for several blocks and chunks; merges: below.
TEST(CudaKernels, SortsLongLines) {
  std::vector<float> list;
  for (int i = 0; i < 3001; ++i) list.push_back(i % 97 == 0 ? NAN : static_cast<float>((i * 7919) % 501) - 250.0f);
  const Tensor lines = Tensor::from(list, {3001}),
               pair = Tensor::from(std::vector<float>(list.begin(), list.end() - 1), {2, 1500});
  for (const uint64_t order : kOrders) {
    FakeCuda cuda({.seed = order});
    for (const Tensor& x : {lines, pair}) {
      const Tensor inputs[] = {x};
      const int64_t dim = x.rank() - 1;
      for (int64_t flag : {0, 1}) {
        const auto both = [&](const OpDef& op, const Attrs& attrs) {
          EXPECT_TRUE(same(op, run(op, attrs, 1, inputs, cuda.device())[0], run(op, attrs, 1, inputs, kCPU)[0]))
              << op.name << " " << flag;
        };
        both(ops::kArgsort, {.ints = {dim, flag}});
        both(ops::kTopk, {.ints = {700, dim, flag}});
        both(ops::kArgmax, {.ints = {int64_t{1} << dim, 1, flag}});
      }
    }
  }
}

// A run has at most 8192 elements, and 256 where there are many: longer lines are merged from several, the last of them
// not whole.
TEST(CudaKernels, MergesSortedRuns) {
  for (const Dims& sizes : {Dims{9001}, Dims{17, 4001}}) {
    std::vector<float> list;
    for (int64_t i = 0; i < sizes.numel(); ++i) list.push_back(static_cast<float>(i * 7919 % 5003) - 2500.0f);
    const Tensor inputs[] = {Tensor::from(list, sizes)};
    const Attrs attrs{.ints = {sizes.rank() - 1, sizes.rank() - 1}};
    FakeCuda cuda({.seed = 3});
    EXPECT_TRUE(same(ops::kArgsort, run(ops::kArgsort, attrs, 1, inputs, cuda.device())[0],
                     run(ops::kArgsort, attrs, 1, inputs, kCPU)[0]))
        << to_string(sizes);
  }
}

// More indices than a block looks through: they are sorted. An index out of range is reported, and adds to no row.
TEST(CudaKernels, ManyGradientsAddUpInOrder) {
  constexpr int64_t kN = 8300, kRows = 9, kCols = 2;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < kN; ++i) rows.push_back(i * i % 7);
  manual_seed(6);
  const Tensor grad = Tensor::randn({kN, kCols}) * 100.0;
  FakeCuda cuda({.seed = 3});
  const Tensor good[] = {grad, Tensor::from(rows, {kN})};
  EXPECT_TRUE(same(ops::kEmbeddingGrad, run(ops::kEmbeddingGrad, {.ints = {kRows}}, 1, good, cuda.device())[0],
                   run(ops::kEmbeddingGrad, {.ints = {kRows}}, 1, good, kCPU)[0]));
  for (const int64_t bad : {kRows, int64_t{-1}}) {
    rows[5000] = bad;
    const test::Guarded table(kRows * kCols * sizeof(float), cuda.device());
    Tensor out = Tensor::from_storage(table.storage(), 0, {kRows, kCols}, {kCols, 1}, kF32);
    const Tensor g = grad.to(cuda.device()), index = Tensor::from(rows, {kN}).to(cuda.device());
    const std::string message = error_of([&] {
      const Tensor* inputs[] = {&g, &index};
      cuda::own_kernels(ops::kEmbeddingGrad)
          .kernel({ops::kEmbeddingGrad, inputs, {&out, 1}, {.ints = {kRows}}, std::source_location::current()});
      synchronize(cuda.device());
    });
    EXPECT_NE(message.find("is out of range for size 9"), std::string::npos) << message;
    EXPECT_TRUE(table.is_intact()) << bad;
  }
}

// Many gradients for few rows: the order of each sum is that of the indices.
TEST(CudaKernels, GradientsOfRowsAddUpInOrder) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 1500; ++i) rows.push_back(i * i % 7);
  const Tensor index = Tensor::from(rows, {1500});
  manual_seed(5);
  for (DType dtype : {kF32, kBF16}) {
    const Tensor grad = (Tensor::randn({1500, 5}) * 100.0).to(dtype), total = Tensor::randn({9, 5}).to(dtype);
    for (const uint64_t order : kOrders) {
      FakeCuda cuda({.seed = order});
      const Tensor two[] = {grad, index}, three[] = {total, grad, index};
      EXPECT_TRUE(same(ops::kEmbeddingGrad, run(ops::kEmbeddingGrad, {.ints = {9}}, 1, two, cuda.device())[0],
                       run(ops::kEmbeddingGrad, {.ints = {9}}, 1, two, kCPU)[0]));
      EXPECT_TRUE(same(ops::kEmbeddingGradOnto, run(ops::kEmbeddingGradOnto, {}, 1, three, cuda.device())[0],
                       run(ops::kEmbeddingGradOnto, {}, 1, three, kCPU)[0]));
    }
  }
}

// 64 parts of one layout in a launch, where no two of them meet; and no cleared memory where they cover everything.
TEST(CudaKernels, ManyPartsTakeFewLaunches) {
  FakeCuda cuda;
  const std::vector<Tensor> parts(200, Tensor::ones({2, 3}));
  Attrs joined{.ints = {1}}, placed{.ints = {2, 200, 3}}, over_each_other{.ints = {2, 202, 3}};
  for (int64_t i = 0; i < 200; ++i) {
    placed.ints.append({1, i, 1});
    over_each_other.ints.append({1, i / 2, 1});
  }
  const auto launches = [&](const OpDef& op, const Attrs& attrs) {
    const int64_t before = cuda->counts().launches;
    run(op, attrs, 1, parts, cuda.device());
    return cuda->counts().launches - before;
  };
  EXPECT_EQ(launches(ops::kCat, joined), 4);
  EXPECT_EQ(launches(ops::kSliceGrad, placed), 1 + 4);  // the first is copied
  EXPECT_EQ(launches(ops::kSliceGrad, over_each_other), 200);
}

// The message is the CPU's, from the next call that waits; and the device goes on.
TEST(CudaKernels, BadIndicesAreReported) {
  const Tensor table = Tensor::arange(12, kF32).reshape({4, 3}), logits = table, one = Tensor::ones({}),
               wrong = Tensor::from<int64_t>({1, 0, 4, -3}, {4}), lse = Tensor::zeros({4}),  // 4: the first beyond
      columns = Tensor::from<int64_t>({0, 2, 3, 1, 4, 7}, {2, 3});
  struct Case {
    const OpDef& op;
    std::vector<Tensor> inputs;
    Attrs attrs;
    int outputs = 1;
  };
  const Case cases[] = {
      {ops::kEmbedding, {table, wrong}, {}},
      {ops::kEmbeddingGrad, {Tensor::ones({4, 3}), wrong}, {.ints = {4}}},
      {ops::kIndexSelect, {table, wrong}, {}},
      {ops::kGather, {table, columns}, {.ints = {1}}},
      {ops::kScatter, {table, columns, Tensor::ones({2, 3})}, {.ints = {1}}},
      {ops::kScatterSum, {Tensor::ones({2, 3}), columns}, {.ints = {1, 4, 3}}},
      {ops::kCrossEntropy, {logits, wrong}, {.ints = {-100, 0}, .floats = {0.0}}, 2},
      {ops::kCrossEntropyGrad, {one, logits, wrong, lse}, {.ints = {-100, 0}, .floats = {0.0}}},
  };
  const auto message = [](const std::function<void()>& call) {
    const std::string text = error_of<Error>(call);
    return text.substr(0, text.find(" ("));
  };
  for (const uint64_t order : kOrders) {
    FakeCuda cuda({.seed = order});
    for (const Case& c : cases) {
      const std::string expected = message([&] { run(c.op, c.attrs, c.outputs, c.inputs, kCPU); });
      EXPECT_NE(expected.find("is out of range for size"), std::string::npos) << expected;
      EXPECT_EQ(message([&] { run(c.op, c.attrs, c.outputs, c.inputs, cuda.device()); }), expected);
      EXPECT_NO_THROW(synchronize(cuda.device())) << "the error is told once";
    }
  }
}

// linear_cross_entropy has no kernel of its own here: a part of it finds the bad index.
TEST(CudaKernels, AnOpInPartsNamesTheLineOfItsCall) {
  FakeCuda cuda;
  const Tensor x = Tensor::ones({2, 3}).to(cuda.device());
  const Tensor wrong = Tensor::from<int64_t>({0, 9}, {2}).to(cuda.device());
  const std::string message = error_of<Error>([&] {
    const Tensor loss = ops::linear_cross_entropy(x, x, Tensor(), wrong);
    synchronize(cuda.device());
  });
  EXPECT_NE(message.find("index 9 at position 1 is out of range for size 2"), std::string::npos) << message;
  EXPECT_NE(message.find("kernels_test.cc"), std::string::npos) << message;
}

// Through the public functions: dispatch calls these kernels on the host, and they enqueue.
TEST(CudaKernels, AProgramOfOps) {
  const auto program = [](Device device) {
    manual_seed(11);
    const Tensor ids = Tensor::randint(0, 10, {6, 4}, {kI64, device});
    const Tensor table = Tensor::rand({10, 8}, device);
    Tensor x = ops::embedding(table, ids);
    x = ops::dropout(x, 0.25) + 1.0;
    const Tensor parts[] = {x, x.transpose(0, 1).contiguous().reshape({6, 4, 8})};
    const Tensor y = ops::cat(parts, -1);
    const ops::ValuesAndIndices top = ops::topk(y, 3);
    const Tensor counts = ops::scatter_add(Tensor::zeros({10}, {kI64, device}), 0, ids.reshape({24}),
                                           Tensor::ones({24}, {kI64, device}));
    return bytes_of(top.values) + bytes_of(top.indices) + bytes_of(counts) + bytes_of(ops::cumsum(y, 1)) +
           bytes_of(ops::where(ids < 5, ids * 2, -ids)) + bytes_of(ids.sum({0})) + bytes_of(ids.max());
  };
  const std::string expected = program(kCPU);
  for (const uint64_t order : kOrders) {
    FakeCuda cuda({.seed = order});
    EXPECT_EQ(program(cuda.device()), expected) << order;
  }
}

// Kernels with more than 2^32 elements divide in 64 bits: the same places.
TEST(CudaKernels, WideIndices) {
  const Tensor x = test::with_strides(uniform_of({5, 7, 3}), {1, 5, 40}, 2, 200), y = uniform_of({7, 1});
  FakeCuda cuda;
  int changed = 0;
  cuda->set_edit([&](const std::string& source) {
    const std::string part = "layout.numel <= 0xFFFFFFFFll";
    std::string text = source;
    if (const size_t at = text.find(part); at != text.npos)
      text.replace(at, part.size(), "layout.numel < 0"), ++changed;
    return text;
  });
  const Tensor inputs[] = {x, y};
  EXPECT_TRUE(same(ops::kSub, run(ops::kSub, {}, 1, inputs, cuda.device())[0], run(ops::kSub, {}, 1, inputs, kCPU)[0]));
  EXPECT_EQ(changed, 1);
}

TEST(CudaKernels, SeveralThreads) {
  FakeCuda cuda({.seed = 3});
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results)
    threads.emplace_back([&] {
      const Tensor x = Tensor::arange(0, 200, {kI64, cuda.device()});
      result = bytes_of(ops::cumsum(x * 3 - 7, 0)) + bytes_of(x.to(kF16));
    });
  for (std::thread& thread : threads) thread.join();
  const Tensor x = Tensor::arange(200);
  const std::string expected = bytes_of(ops::cumsum(x * 3 - 7, 0)) + bytes_of(x.to(kF16));
  for (const std::string& result : results) EXPECT_EQ(result, expected);
}

TEST(CudaKernels, WhatNvrtcSays) {
  FakeCuda cuda;
  const std::string message = error_of<InternalError>(
      [] { cuda::compile_image("\n#error no such type\n", "cast", 90); });
  EXPECT_NE(message.find("refuses cast for sm_90"), std::string::npos) << message;
  EXPECT_NE(message.find("cast.cu(2): error: #error directive: no such type"), std::string::npos) << message;
}

}  // namespace
}  // namespace rondo

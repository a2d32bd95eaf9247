// Marked dimensions: code that reads a size from the first compilation on, ranges, buckets, and where marks go.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/region/region.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using compile::mark_dynamic;

class Marks : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    compile::forget_unused_kernels();
    allocator::set_poison_on_free(true);
  }
  void TearDown() override {
    allocator::set_poison_on_free(false);
    compile::set_stance(compile::Stance::kDefault);
  }
};

std::string error_of(absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Lengths in the order of a shuffled epoch.
std::vector<int64_t> draw_lengths(int n, int64_t low, int64_t high, int64_t multiple = 1) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < n; ++i)
    lengths.push_back((low + static_cast<int64_t>(philox(11, static_cast<uint64_t>(i), 0)[0] %
                                                  static_cast<uint32_t>(high - low + 1))) /
                      multiple * multiple);
  return lengths;
}

// A whole small GPT-2, so that a size passes embedding, reshape, products, attention and loss in one region.
const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 256, .n_layer = 1, .n_head = 2, .n_embd = 24};

Tensor random_tokens(int64_t batch, int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int64_t>(philox(5, i, static_cast<uint64_t>(length))[0] % 31);
  return Tensor::from<int64_t>(ids, {batch, length});
}

// Logits and gradients of a GPT for tokens whose length is marked, if asked for.
std::vector<Tensor> results_of(nn::GPT2& model, int64_t length, const DynamicRange* mark) {
  const Tensor tokens = random_tokens(2, length);
  if (mark != nullptr) mark_dynamic(tokens, -1, *mark);
  model.zero_grad();
  const Tensor logits = model(tokens);
  ops::sum(logits * logits).backward();
  std::vector<Tensor> results{logits.detach()};
  for (const Tensor& p : model.parameters()) results.push_back(p.grad().clone());
  return results;
}

void expect_as_eager(nn::GPT2& eager, nn::GPT2& compiled, int64_t length, const DynamicRange* mark) {
  SCOPED_TRACE(testing::Message() << "length " << length);
  const auto a = results_of(eager, length, nullptr), b = results_of(compiled, length, mark);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i], b[i])) << "result " << i;
}

TEST_F(Marks, AMarkedLengthOfAWholeModelCompilesOnce) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_module(compiled, {.exact = true});
  const DynamicRange any;
  for (int64_t length : draw_lengths(64, 5, 256)) expect_as_eager(eager, compiled, length, &any);
  const compile::RegionReport report = regions.report()[0];
  EXPECT_GE(report.entries, 50);
  EXPECT_EQ(report.compilations, 1);
}

TEST_F(Marks, OfBlocksByArgument) {
  nn::GPT2Config config = kConfig;
  config.n_layer = 2;
  nn::GPT2 eager(config, 3), compiled(config, 3);
  auto regions = compile::compile_regions(
      compiled, {.exact = true, .dynamic = {{.argument = 0, .dim = 1, .range = {.min = 5, .max = 256}}}});
  for (int64_t length : draw_lengths(64, 5, 256)) expect_as_eager(eager, compiled, length, nullptr);
  EXPECT_EQ(regions.report()[0].compilations, 1);
  const std::string error = error_of([&] { results_of(compiled, 4, nullptr); });
  EXPECT_NE(error.find("dim 1 of argument 0, [2, 4, 24], is 4, not 5..256"), error.npos) << error;
}

TEST_F(Marks, EightBucketsCompileAtMostEightTimes) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_module(compiled, {.exact = true});
  const DynamicRange eight{.min = 5, .max = 256, .buckets = 8};
  for (int64_t length : draw_lengths(64, 5, 256)) expect_as_eager(eager, compiled, length, &eight);
  EXPECT_LE(regions.report()[0].compilations, 8);
}

TEST_F(Marks, MultiplesStayExact) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_module(compiled, {.exact = true});
  const DynamicRange sixteens{.min = 16, .max = 256, .multiple_of = 16};
  for (int64_t length : draw_lengths(30, 16, 256, 16)) expect_as_eager(eager, compiled, length, &sixteens);
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

// Columns that vary: there, multiples and bounds change the code.
struct Wide : nn::Module<Wide> {
  Tensor forward(const Tensor& x) {
    const Tensor y = ops::softmax(ops::gelu(x) * 2.0) + (x - ops::mean(x, {-1}, true));
    const Tensor across = ops::transpose(ops::softmax(ops::transpose(x, 0, 1)), 0,
                                         1);  // read with a stride that varies
    return ops::sum(y * x, {0}) + ops::max(x, {-1}, true) * y + across;
  }
};

void expect_wide_as_eager(Wide& eager, Wide& compiled, int64_t n, const DynamicRange& range, DType dtype = kF32) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << n);
  manual_seed(static_cast<uint64_t>(n));
  const Tensor x = Tensor::randn({6, n}).to(dtype);
  Tensor results[2], grads[2];
  for (int i = 0; i < 2; ++i) {
    Tensor leaf = x.clone().requires_grad_();
    if (i == 1) mark_dynamic(leaf, 1, range);
    results[i] = i == 0 ? eager(leaf) : compiled(leaf);
    ops::sum(results[i] * results[i]).backward();
    grads[i] = leaf.grad();
  }
  EXPECT_TRUE(test::same_bits(results[0], results[1]));
  EXPECT_TRUE(test::same_bits(grads[0], grads[1]));
}

TEST_F(Marks, BucketsOfColumnsHaveCodeOfTheirOwn) {
  for (DType dtype : {kF32, kF64, kBF16}) {
    Wide eager, compiled;
    auto regions = compile::compile_module(compiled, {.exact = true});
    const DynamicRange range{.min = 3, .max = 256, .bucket_bounds = {16, 32, 48, 64, 80, 256}};
    for (int64_t n : {7, 16, 3, 17, 31, 24, 32, 33, 48, 64, 50, 70, 80, 200, 81, 256, 129})
      expect_wide_as_eager(eager, compiled, n, range, dtype);
    EXPECT_EQ(regions.report()[0].compilations, 5);  // the last two need the same code
  }
}

// The first size that is met says nothing of the largest one.
TEST_F(Marks, CodeServesTheWholeBucket) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  for (int64_t n : {33, 80, 64}) expect_wide_as_eager(eager, compiled, n, {.min = 33, .max = 80});
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

TEST_F(Marks, MultiplesOfColumnsNeedNoTail) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  for (int64_t n : {64, 32, 96, 160, 256}) expect_wide_as_eager(eager, compiled, n, {.multiple_of = 32});
  EXPECT_EQ(regions.report()[0].compilations, 1);
  // One that is no multiple is served by other code, whoever asks.
  expect_wide_as_eager(eager, compiled, 50, {});
  EXPECT_EQ(regions.report()[0].compilations, 2);
  bool assumed = false;
  for (const auto& entry : regions.regions()[0]->entries())
    for (const auto& kernel : entry->forward().plan().kernels) assumed |= kernel.kernel.cols == 50;
  EXPECT_TRUE(assumed);
}

TEST_F(Marks, StaticShapesOfOtherDimensions) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true, .shapes = compile::Shapes::kStatic});
  for (int64_t n : {20, 33, 64, 47, 90}) expect_wide_as_eager(eager, compiled, n, {});
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

TEST_F(Marks, RecordingsDecideNotMarks) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  const Tensor plain = Tensor::randn({6, 40}), marked = Tensor::randn({6, 40});
  mark_dynamic(marked, 1);
  compiled(plain);
  compiled(marked);  // an equal recording
  EXPECT_EQ(regions.report()[0].entries, 1);
  const Tensor longer = Tensor::randn({6, 41});
  mark_dynamic(longer, 1, {.max = 64});
  compiled(longer);
  EXPECT_EQ(regions.report()[0].entries, 2);
  EXPECT_NE(regions.report()[0].last_recompile.find("dim 1 of input #0"), std::string::npos)
      << regions.report()[0].last_recompile;
  EXPECT_NE(regions.report()[0].last_recompile.find("40 -> 41"), std::string::npos);
}

TEST_F(Marks, Errors) {
  const test::MeansToRun eagerly(test::Eagerly::kNothing, "every call is refused");
  const Tensor x = Tensor::zeros({8, 30});
  const auto error = [&](int64_t dim, DynamicRange range) { return error_of([&] { mark_dynamic(x, dim, range); }); };
  EXPECT_NE(error(1, {.min = 5, .max = 16}).find("dim 1 of [8, 30] is 30, not 5..16 ("), std::string::npos)
      << error(1, {.max = 16});
  EXPECT_NE(error(1, {.max = 16}).find("marks_test.cc:"), std::string::npos);
  EXPECT_NE(error(-1, {.multiple_of = 8}).find("is 30, not 0 or more, a multiple of 8"), std::string::npos)
      << error(-1, {.multiple_of = 8});
  EXPECT_NE(error(2, {}).find("dimension 2 is out of range for [8, 30]"), std::string::npos);
  EXPECT_NE(error(-3, {}).find("out of range"), std::string::npos);
  EXPECT_NE(error(1, {.min = 40, .max = 30}).find("no size is 40..30"), std::string::npos);
  EXPECT_NE(error(1, {.min = 17, .max = 31, .multiple_of = 16}).find("no size"), std::string::npos);
  EXPECT_NE(error(1, {.min = -1}).find("must not be negative"), std::string::npos);
  EXPECT_NE(error(1, {.multiple_of = 0}).find("must be positive"), std::string::npos);
  EXPECT_NE(error(1, {.buckets = 4}).find("buckets need max"), std::string::npos);
  EXPECT_NE(error(1, {.max = 64, .buckets = 0}).find("buckets must be from 1 to"), std::string::npos);
  EXPECT_NE(error(1, {.bucket_bounds = {40, 20}}).find("must ascend"), std::string::npos);
  EXPECT_NE(error(1, {.max = 64, .bucket_bounds = {40, 50}}).find("must lie in"), std::string::npos);
  EXPECT_NE(error(1, {.max = 64, .buckets = 2, .bucket_bounds = {40, 64}}).find("too much"), std::string::npos);
  EXPECT_NE(error_of([] { mark_dynamic(Tensor(), 0); }).find("undefined"), std::string::npos);
  EXPECT_EQ(x.impl()->marks, nullptr);  // of all these, none was set
  Wide wide;
  EXPECT_NE(error_of([&] { compile::compile_module(wide, {.dynamic = {{.argument = -1}}}); }).find("no argument -1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              compile::compile_module(wide, {.dynamic = {{.range = {.buckets = 2}}}});
            }).find("buckets need max"),
            std::string::npos);
  compile::compile_module(wide, {.dynamic = {{.argument = 1}}});
  EXPECT_NE(error_of([&] { wide(x); }).find("there is no argument 1"), std::string::npos);
  compile::compile_module(wide, {.dynamic = {{.dim = 2}}});
  EXPECT_NE(error_of([&] { wide(x); }).find("dimension 2 of argument 0 is out of range"), std::string::npos);
}

TEST_F(Marks, BucketsDivideTheRange) {
  for (const DynamicRange& range :
       {DynamicRange{.min = 5, .max = 256, .buckets = 8}, DynamicRange{.min = 1, .max = 3, .buckets = 8},
        DynamicRange{.min = 2, .max = 100, .bucket_bounds = {10, 50, 100}}, DynamicRange{.max = 7}}) {
    std::set<std::pair<int64_t, int64_t>> buckets;
    for (int64_t size = range.min; size <= range.max; ++size) {
      const auto bucket = compile::bucket_of(range, size);
      EXPECT_LE(bucket.first, size);
      EXPECT_GE(bucket.second, size);
      buckets.insert(bucket);
    }
    if (range.buckets == 8 && range.max == 256) {
      EXPECT_GE(buckets.size(), 6u);
    }
    EXPECT_LE(buckets.size(),
              range.bucket_bounds.empty() ? static_cast<size_t>(range.buckets) : range.bucket_bounds.size());
    int64_t next = range.min;  // without gaps
    for (const auto& [low, high] : buckets) {
      EXPECT_EQ(low, next);
      next = high + 1;
    }
    EXPECT_EQ(next, range.max + 1);
  }
  // Buckets end where steps of kernels end.
  EXPECT_EQ(compile::bucket_of({.min = 5, .max = 256, .buckets = 8}, 70), std::pair(int64_t{65}, int64_t{96}));
}

// Dimensions of one size are one variable: it keeps to the ranges of all of them.
TEST_F(Marks, DimensionsOfOneSizeKeepToAllRanges) {
  const Tensor x = Tensor::zeros({24, 24});
  const compile::Graph graph = compile::record([&] { return std::vector<Tensor>{x * 2.0}; });
  const std::vector<compile::MarkedDim> dims{{0, 0, {.min = 3, .max = 80, .multiple_of = 4}},
                                             {0, 1, {.min = 10, .max = 100, .multiple_of = 6}}};
  EXPECT_EQ(compile::OtherRecordings(graph, dims).ranges(), (std::vector<int64_t>{0, 0, 12, 72, 12, 0, 1, 12, 72, 12}));
}

std::vector<int> marked(const Tensor& t) {
  std::vector<int> dims;
  if (t.impl()->marks != nullptr)
    for (const auto& mark : t.impl()->marks->marks) dims.push_back(mark.dim);
  return dims;
}

TEST_F(Marks, FollowViewsAndNothingElse) {
  const Tensor x = Tensor::randn({4, 6, 8});
  mark_dynamic(x, 1, {.max = 64});
  mark_dynamic(x, 1, {.max = 32});  // replaces
  ASSERT_EQ(marked(x), std::vector<int>{1});
  EXPECT_EQ(x.impl()->marks->marks[0].range.max, 32);
  EXPECT_EQ(marked(x.transpose(1, 2)), std::vector<int>{2});
  EXPECT_EQ(marked(x.view({4, 6, 2, 4})), std::vector<int>{1});
  EXPECT_EQ(marked(x.select(0, 1)), std::vector<int>{0});
  EXPECT_EQ(marked(x.unsqueeze(0)), std::vector<int>{2});
  EXPECT_EQ(marked(x.slice(0, {1, 3})), std::vector<int>{1});
  EXPECT_EQ(marked(x.detach()), std::vector<int>{1});
  EXPECT_EQ(marked(no_grad([&] { return x.transpose(0, 1); })), std::vector<int>{0});
  EXPECT_TRUE(marked(x.slice(1, {0, 5})).empty());
  EXPECT_TRUE(marked(x.view({24, 8})).empty());
  EXPECT_TRUE(marked(x + x).empty());
  EXPECT_TRUE(marked(x.clone()).empty());
  const Tensor square = Tensor::randn({6, 6});
  mark_dynamic(square, 0);
  EXPECT_EQ(marked(square.t()), std::vector<int>{1});
}

struct Chain : nn::Module<Chain> {
  Tensor forward(const Tensor& x) {
    return ops::transpose(ops::gelu(x) * 2.0, 1, 2).reshape({x.size(0), x.size(2), 1, x.size(1)});
  }
};

// A region hands marks on to the results that have the dimension, recorded or replayed.
TEST_F(Marks, PassThroughRegions) {
  for (compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay}) {
    Chain chain;
    compile::compile_module(chain, {.capture = capture});
    for (int64_t length : {10, 17, 10, 17}) {
      const Tensor x = Tensor::randn({3, length, 5});
      EXPECT_TRUE(marked(chain(x)).empty());
      mark_dynamic(x, 1);
      EXPECT_EQ(marked(chain(x)), std::vector<int>{3}) << length;
    }
  }
}

// A result's dimension follows the one that has its size now and at another size.
TEST_F(Marks, AResultTakesTheMarkOfItsOwnDimension) {
  struct Twice : nn::Module<Twice> {
    Tensor forward(const Tensor& x) {
      const Tensor turned = ops::gelu(x).t().contiguous();
      return ops::cat({turned, turned}, 0);  // of 6 columns 12 rows, which are not the 12 rows of x
    }
  } twice;
  compile::compile_module(twice);
  const Tensor x = Tensor::randn({12, 6});
  mark_dynamic(x, 0, {.max = 44});
  mark_dynamic(x, 1, {.max = 99});
  const Tensor y = twice(x);
  ASSERT_EQ(marked(y), std::vector<int>{1});
  EXPECT_EQ(y.impl()->marks->marks[0].range.max, 44);
}

// Two marked dimensions, and a mask that has one of them without a mark.
struct Masked : nn::Module<Masked> {
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const Tensor scores = ops::matmul(x, ops::transpose(x, 1, 2)) + mask;
    return ops::matmul(ops::softmax(scores), x).reshape({x.size(0) * x.size(1), x.size(2)}) * 0.5;
  }
};

TEST_F(Marks, SeveralDimensionsAndAnUnmarkedMask) {
  Masked eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true, .shapes = compile::Shapes::kStatic});
  for (auto [batch, length] : {std::pair<int64_t, int64_t>{12, 20}, {7, 33}, {5, 12}, {12, 12}, {33, 9}, {9, 64}}) {
    Tensor grads[2], results[2];
    const Tensor x = Tensor::randn({batch, length, 24}), mask = Tensor::randn({length, length});
    for (int i = 0; i < 2; ++i) {
      const Tensor leaf = x.clone().requires_grad_();
      if (i == 1) {
        mark_dynamic(leaf, 0);
        mark_dynamic(leaf, 1);
      }
      results[i] = i == 0 ? eager(leaf, mask) : compiled(leaf, mask);
      ops::sum(results[i] * results[i]).backward();
      grads[i] = leaf.grad();
    }
    EXPECT_TRUE(test::same_bits(results[0], results[1])) << batch << " " << length;
    EXPECT_TRUE(test::same_bits(grads[0], grads[1])) << batch << " " << length;
  }
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

TEST_F(Marks, SmallSizesFirst) {
  for (int64_t first : {0, 1, 2, 3, 5}) {
    compile::forget_unused_kernels();
    nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
    auto regions = compile::compile_module(compiled, {.exact = true});
    const DynamicRange any;
    for (int64_t length : {first, int64_t{40}, int64_t{9}, int64_t{64}, int64_t{2}})
      if (length > 0) expect_as_eager(eager, compiled, length, &any);
    EXPECT_LE(regions.report()[0].compilations, first == 1 ? 2 : 1) << first;
  }
}

// Forgetting entries costs recordings, no code; the limit counts compilations, of which marks need one.
TEST_F(Marks, EntriesAndLimits) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "the limit is reached");
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_module(compiled, {.exact = true, .max_entries = 2, .recompile_limit = 1});
  const DynamicRange any;
  compile::set_stance(compile::Stance::kFailOnRecompile);  // the first is none
  for (int64_t length : {9, 10, 11, 9}) expect_as_eager(eager, compiled, length, &any);
  compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.compilations, 1);
  EXPECT_EQ(report.entries, 1);  // beyond the limit, what is new runs eagerly
  EXPECT_EQ(report.eager_runs, 2);
}

TEST_F(Marks, FailOnRecompileAllowsWhatNeedsNoCode) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  compile::set_stance(compile::Stance::kFailOnRecompile);
  const DynamicRange range{.min = 3, .max = 256, .bucket_bounds = {16, 256}};
  for (int64_t n : {40, 77, 256}) expect_wide_as_eager(eager, compiled, n, range);
  const std::string error = error_of([&] { expect_wide_as_eager(eager, compiled, 9, range); });  // another bucket
  EXPECT_NE(error.find("compiled anew"), error.npos) << error;
}

TEST_F(Marks, TwoThreads) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  std::vector<Tensor> inputs, expected;
  for (int64_t n : {20, 33, 64, 47, 90, 31}) {
    inputs.push_back(Tensor::randn({6, n}));
    mark_dynamic(inputs.back(), 1, {.max = 128, .buckets = 4});
    expected.push_back(eager(inputs.back()));
  }
  std::vector<Tensor> results[2];
  {
    std::jthread threads[2];
    for (int t = 0; t < 2; ++t)
      threads[t] = std::jthread([&, t] {
        for (size_t i = 0; i < inputs.size(); ++i)
          results[t].push_back(compiled(inputs[t == 0 ? i : inputs.size() - 1 - i]));
      });
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(test::same_bits(results[0][i], expected[i]));
    EXPECT_TRUE(test::same_bits(results[1][inputs.size() - 1 - i], expected[i]));
  }
  EXPECT_LE(regions.report()[0].compilations, 4);
}

}  // namespace
}  // namespace rondo

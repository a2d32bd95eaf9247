// A caller's mistake is a rondo::Error that names the op, what it was given, and the caller's line; never a crash.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

struct Mistake {
  const char* op;
  std::function<void()> make;
  std::vector<const char*> mentions;
};

Tensor f32(const Dims& sizes) { return Tensor::ones(sizes); }
Tensor i64(const Dims& sizes) { return Tensor::zeros(sizes, {kI64}); }
Tensor boolean(const Dims& sizes) { return Tensor::zeros(sizes, {kBool}); }

std::vector<Mistake> mistakes() {
  const Tensor none;
  return {
      {"add",
       [] {
         ops::add(f32({2, 3}), f32({4}));
       },
       {"[2, 3]", "[4]"}},
      {"add",
       [] {
         f32({2, 3}) + f32({2});
       },
       {"[2, 3]", "[2]"}},
      {"sub", [] { ops::sub(boolean({2}), boolean({2})); }, {"bool"}},
      {"scatter_add",
       [] {
         ops::scatter_add(f32({2}), 0, i64({3, 1}), f32({3, 1}));
       },
       {"as many dimensions"}},
      {"scatter_add", [] { ops::scatter_add(f32({2}), 0, Tensor::from<int64_t>({9}, {1}), f32({1})); }, {"9"}},
      {"mul", [=] { ops::mul(f32({2}), none); }, {"undefined"}},
      {"mul", [=] { none* f32({2}); }, {"undefined"}},
      {"mul_scalar", [=] { none * 2.0; }, {"undefined"}},
      {"gelu_tanh", [] { ops::gelu(i64({2})); }, {"i64", "[2]"}},
      {"exp", [=] { ops::exp(none); }, {"undefined"}},
      {"gelu_tanh", [] { ops::gelu(boolean({2})); }, {"bool"}},
      {"less",
       [] {
         ops::less(f32({2, 3}), f32({2}));
       },
       {"[2, 3]", "[2]"}},
      {"where", [] { ops::where(f32({2}), f32({2}), f32({2})); }, {"bool"}},
      {"where", [] { ops::where(boolean({3}), f32({2}), f32({2})); }, {"[3]", "[2]"}},
      {"where", [=] { ops::where(boolean({3}), none, f32({2})); }, {"undefined"}},
      {"where", [=] { ops::where(boolean({3}), none, 1.0); }, {"undefined"}},
      {"cast", [=] { ops::cast(none, kF32); }, {"undefined"}},
      {"copy", [] { f32({2}).copy_(f32({3})); }, {"[2]", "[3]"}},
      {"copy", [=] { f32({2}).copy_(none); }, {"undefined"}},
      {"add", [=] { f32({2}).add_(none); }, {"undefined"}},
      {"add",
       [] {
         f32({2}).add_(f32({3, 2}));
       },
       {"[2]", "[3, 2]"}},
      {"add_scalar", [] { f32({1}).expand({3}).add_(1.0); }, {"expanded"}},
      {"fill",
       [] {
         f32({2, 1}).expand({2, 3}).fill_(1.0);
       },
       {"expanded"}},
      {"view",
       [] {
         ops::view(f32({2, 3}), {5});
       },
       {"[2, 3]", "[5]"}},
      {"view",
       [] {
         ops::view(f32({2, 3}), {-1, 4});
       },
       {"[2, 3]"}},
      {"view",
       [] {
         ops::view(f32({2, 3}), {-1, -1});
       },
       {"[2, 3]"}},
      {"view",
       [] {
         ops::view(f32({2, 3}), {-2, -3});
       },
       {"[2, 3]"}},
      {"view",
       [] {
         ops::view(f32({0, 3}), {-1, 0});
       },
       {"[0, 3]"}},
      {"view",
       [] {
         ops::view(f32({2, 3}).t(), {6});
       },
       {"[3, 2]", "reshape"}},
      {"view",
       [] {
         ops::view(f32({8}), {int64_t{1} << 62, 4});
       },
       {"[8]"}},
      {"reshape",
       [] {
         ops::reshape(f32({2, 3}), {4, 2});
       },
       {"[2, 3]", "[4, 2]"}},
      {"reshape",
       [=] {
         ops::reshape(none, {4, 2});
       },
       {"undefined"}},
      {"permute",
       [] {
         ops::permute(f32({2, 3}), {0, 0});
       },
       {"[0, 0]"}},
      {"permute",
       [] {
         ops::permute(f32({2, 3}), {0});
       },
       {"[0]"}},
      {"permute",
       [] {
         ops::permute(f32({2, 3}), {0, 5});
       },
       {"5"}},
      {"permute", [=] { ops::permute(none, {0}); }, {"undefined"}},
      {"transpose",
       [] {
         ops::transpose(f32({2, 3}), 0, 2);
       },
       {"2"}},
      {"transpose", [=] { none.t(); }, {"undefined"}},
      {"expand",
       [] {
         ops::expand(f32({2, 3}), {2, 4});
       },
       {"[2, 3]", "[2, 4]"}},
      {"expand",
       [] {
         ops::expand(f32({2, 3}), {3});
       },
       {"[2, 3]"}},
      {"expand",
       [] {
         ops::expand(f32({3}), {-1, 3});
       },
       {"[3]"}},
      {"expand",
       [=] {
         ops::expand(none, {-1, 3});
       },
       {"undefined"}},
      {"select",
       [] {
         ops::select(f32({2, 3}), 0, 2);
       },
       {"2"}},
      {"select",
       [] {
         ops::select(f32({2, 3}), 2, 0);
       },
       {"2"}},
      {"select", [] { f32({})[0]; }, {"scalar"}},
      {"select", [=] { none[0]; }, {"undefined"}},
      {"slice",
       [] {
         ops::slice(f32({2, 3}), 3, {});
       },
       {"3"}},
      {"slice", [] { ops::slice(f32({4}), 0, {.step = 0}); }, {"step"}},
      {"slice", [=] { ops::slice(none, 0, {}); }, {"undefined"}},
      {"split", [] { ops::split(f32({4}), 0, 0); }, {"0"}},
      {"split", [] { ops::split(f32({4}), 2, 1); }, {"1"}},
      {"split", [] { ops::split(f32({}), 2, 0); }, {"scalar"}},
      {"split", [=] { ops::split(none, 2, 0); }, {"undefined"}},
      {"cat", [] { ops::cat({}, 0); }, {}},
      {"cat",
       [] {
         ops::cat(std::vector<Tensor>{f32({2, 3}), f32({2, 4})}, 0);
       },
       {"[2, 3]", "[2, 4]"}},
      {"cat",
       [] {
         ops::cat(std::vector<Tensor>{f32({2, 3}), f32({2})}, 0);
       },
       {"[2, 3]", "[2]"}},
      {"cat",
       [=] {
         ops::cat(std::vector<Tensor>{f32({2}), none}, 0);
       },
       {"undefined"}},
      {"cat",
       [=] {
         ops::cat(std::vector<Tensor>{none, f32({2})}, 0);
       },
       {"undefined"}},
      {"cat",
       [] {
         ops::cat(std::vector<Tensor>{f32({}), f32({})}, 0);
       },
       {"scalar"}},
      {"squeeze", [] { ops::squeeze(f32({2}), 3); }, {"3"}},
      {"unsqueeze", [=] { ops::unsqueeze(none, 0); }, {"undefined"}},
      {"flatten", [] { ops::flatten(f32({2}), 1); }, {"1"}},
      {"flatten",
       [] {
         ops::flatten(f32({2, 3}), 1, 0);
       },
       {"from dimension 1 to 0"}},
      {"sum",
       [] {
         ops::sum(f32({2, 3}), {2});
       },
       {"2", "[2, 3]"}},
      {"sum",
       [] {
         ops::sum(f32({2, 3}), {1, -1});
       },
       {"twice"}},
      {"sum", [=] { ops::sum(none); }, {"undefined"}},
      {"mean", [] { ops::mean(i64({2})); }, {"float"}},
      {"mean", [=] { ops::mean(none); }, {"undefined"}},
      {"max",
       [] {
         ops::max(f32({0, 3}));
       },
       {"[0, 3]"}},
      {"max", [=] { ops::max(none); }, {"undefined"}},
      {"matmul",
       [] {
         ops::matmul(f32({8, 512}), f32({768, 64}));
       },
       {"[8, 512]", "[768, 64]", "512"}},
      {"matmul",
       [] {
         ops::matmul(f32({8}), f32({8, 2}));
       },
       {"[8]"}},
      {"matmul",
       [] {
         ops::matmul(f32({2, 3, 4}), f32({3, 4, 5}));
       },
       {"[2, 3, 4]", "[3, 4, 5]"}},
      {"matmul",
       [] {
         ops::matmul(f32({2, 3}), f32({3, 2}).to(kF64));
       },
       {"f64"}},
      {"matmul",
       [] {
         ops::matmul(i64({2, 3}), i64({3, 2}));
       },
       {"i64"}},
      {"matmul",
       [=] {
         ops::matmul(f32({2, 3}), none);
       },
       {"undefined"}},
      {"linear",
       [] {
         ops::linear(f32({2, 3}), f32({4, 5}), f32({4}));
       },
       {"[2, 3]", "[4, 5]"}},
      {"linear",
       [] {
         ops::linear(f32({2, 3}), f32({4, 3}), f32({3}));
       },
       {"[3]"}},
      {"linear",
       [=] {
         ops::linear(f32({2, 3}), none, none);
       },
       {"undefined"}},
      {"layer_norm",
       [] {
         ops::layer_norm(f32({2, 3}), f32({2}), f32({2}));
       },
       {"[2, 3]", "[2]"}},
      {"layer_norm", [] { ops::layer_norm(f32({}), f32({1}), f32({1})); }, {}},
      {"layer_norm",
       [=] {
         ops::layer_norm(f32({2, 3}), none, f32({3}));
       },
       {"undefined"}},
      {"batch_norm",
       [=] {
         ops::batch_norm(f32({2, 3, 4}), f32({4}), none);
       },
       {"3 channels", "[2, 3, 4]", "[4]"}},
      {"batch_norm",
       [] {
         ops::batch_norm(f32({2, 3}), f32({3}), Tensor::ones({3}, kF64));
       },
       {"f32", "f64"}},
      {"batch_norm", [=] { ops::batch_norm(f32({3}), none, none); }, {"(B, C, ...)", "[3]"}},
      {"batch_norm_with",
       [=] {
         ops::batch_norm_with({f32({3}), f32({4})}, f32({2, 3}), none, none);
       },
       {"3 channels", "[4]"}},
      {"batch_norm_with",
       [=] {
         ops::batch_norm_with({f32({3}), f32({3})}, f32({3}), none, none);
       },
       {"(B, C, ...)", "[3]"}},
      {"group_norm",
       [=] {
         ops::group_norm(f32({2, 6, 4}), 4, none, none);
       },
       {"4 groups of 6 channels", "[2, 6, 4]"}},
      {"softmax", [] { ops::softmax(f32({}), 1); }, {}},
      {"softmax", [] { ops::softmax(i64({2})); }, {"i64"}},
      {"log_softmax", [=] { ops::log_softmax(none); }, {"undefined"}},
      {"attention",
       [] {
         ops::scaled_dot_product_attention(f32({2, 3}), f32({2, 3}), f32({2, 3}));
       },
       {"[2, 3]"}},
      {"attention",
       [] {
         ops::scaled_dot_product_attention(f32({1, 3, 4, 8}), f32({1, 2, 4, 8}), f32({1, 2, 4, 8}));
       },
       {"[1, 3, 4, 8]"}},
      {"attention",
       [=] {
         ops::scaled_dot_product_attention(f32({1, 2, 4, 8}), none, none);
       },
       {"undefined"}},
      {"attention", [=] { ops::scaled_dot_product_attention(none, none, none); }, {"undefined"}},
      {"attention", [=] { ops::scaled_dot_product_attention(none, none, none, {}, {.dropout = 0.5}); }, {"undefined"}},
      {"attention",
       [] {
         const Tensor q = f32({1, 2, 4, 8});
         ops::scaled_dot_product_attention(q, q, q, {}, {.dropout = 1.5});
       },
       {"1.5"}},
      {"plain_attention",
       [] {
         const Tensor q = f32({1, 2, 4, 8});
         ops::plain_attention(q, q, q, {}, {.dropout = -0.1});
       },
       {"-0.1"}},
      {"attention",
       [] {
         ops::scaled_dot_product_attention(f32({1, 2, 4, 8}), f32({1, 2, 4, 8}), f32({1, 2, 4, 8}), f32({3}));
       },
       {"[3]"}},
      {"embedding",
       [] {
         ops::embedding(f32({4, 3}), f32({2}));
       },
       {"i64"}},
      {"embedding", [] { ops::embedding(f32({4}), i64({2})); }, {"[4]"}},
      {"embedding",
       [] {
         ops::embedding(f32({4, 3}), Tensor::from<int64_t>({1, 4}, {2}));
       },
       {"4"}},
      {"embedding",
       [] {
         ops::embedding(f32({4, 3}), Tensor::from<int64_t>({-1}, {1}));
       },
       {"-1"}},
      {"embedding",
       [=] {
         ops::embedding(f32({4, 3}), none);
       },
       {"undefined"}},
      {"cross_entropy",
       [] {
         ops::cross_entropy(f32({2, 3}), Tensor::from<int64_t>({0, 3}, {2}));
       },
       {"3"}},
      {"cross_entropy",
       [] {
         ops::cross_entropy(f32({2, 3}), i64({3}));
       },
       {"[2, 3]", "[3]"}},
      {"cross_entropy",
       [] {
         ops::cross_entropy(f32({2, 3}), f32({2}));
       },
       {"f32"}},
      {"cross_entropy",
       [=] {
         ops::cross_entropy(f32({2, 3}), none);
       },
       {"undefined"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), none, Tensor::from<int64_t>({0, 3}, {2}),
                                   {.chunk_rows = 1});
       },
       {"3", "position 1"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 5}), none, i64({2}));
       },
       {"[2, 4]", "[3, 5]"}},
      {"linear_cross_entropy",
       [] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), f32({4}), i64({2}));
       },
       {"bias", "[4]"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}).to(kF64), none, i64({2}));
       },
       {"f32", "f64"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), none, i64({3}));
       },
       {"[2, 4]", "[3]"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), none, f32({2}));
       },
       {"i64"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), none, none, i64({2}));
       },
       {"undefined"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), none, i64({2}), {.label_smoothing = 1.5});
       },
       {"label_smoothing"}},
      {"linear_cross_entropy",
       [=] {
         ops::linear_cross_entropy(f32({2, 4}), f32({3, 4}), none, i64({2}), {.chunk_rows = -1});
       },
       {"chunk_rows"}},
      {"dropout", [] { ops::dropout(f32({2}), 1.5); }, {"1.5"}},
      {"dropout", [] { ops::dropout(f32({2}), -0.1); }, {"-0.1"}},
      {"dropout", [] { ops::dropout(f32({2}), std::numeric_limits<double>::quiet_NaN()); }, {"nan"}},
      {"dropout", [=] { ops::dropout(none, 0.5); }, {"undefined"}},
  };
}

TEST(OpErrors, NameTheOpTheOperandsAndThisFile) {
  for (const Mistake& mistake : mistakes()) {
    std::string text;
    try {
      mistake.make();
      synchronize(default_device());
      ADD_FAILURE() << mistake.op << ": no error";
      continue;
    } catch (const Error& e) {
      text = e.what();
    }
    SCOPED_TRACE(text);
    EXPECT_TRUE(text.starts_with(std::string(mistake.op) + ":")) << "is not from " << mistake.op;
    EXPECT_NE(text.find("op_errors_test.cc:"), std::string::npos) << "does not name the caller's line";
    for (const char* part : mistake.mentions)
      EXPECT_NE(text.find(part), std::string::npos) << "does not mention " << part;
  }
}

// Every op with each operand in turn undefined, of another dtype, or of another shape: a result or an Error.
TEST(OpErrors, NoOperandCrashesAnOp) {
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    // Gradient ops are called by gradients only; views get attributes that their public functions have checked.
    if (spec == nullptr || std::string_view(op->name).ends_with("_grad")) continue;
    const test::OpSample sample = test::samples_of(*spec)[0];
    const std::vector<Tensor> inputs = sample.inputs_as(kF32);
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<Tensor> replacements = {Tensor(), Tensor::zeros({}, {kBool}), Tensor::zeros({2, 2}, {kI64}),
                                          Tensor::zeros({2, 2}, {kU8})};
      if (inputs[i].defined()) replacements.push_back(inputs[i].to(inputs[i].dtype() == kF32 ? kF64 : kF32));
      if (op->kind != OpKind::kView && op->kind != OpKind::kReduction && op->name != std::string_view("cat"))
        for (const Dims& sizes : {Dims{}, Dims{0}, Dims{3}, Dims{2, 3, 4, 5, 6}})
          replacements.push_back(Tensor::zeros(sizes, {inputs[i].defined() ? inputs[i].dtype() : kF32}));
      for (const Tensor& replacement : replacements) {
        if (op->kind == OpKind::kView && replacement.defined() && !(replacement.sizes() == inputs[i].sizes())) continue;
        if (i == 0 && op->overwrites >= 0 && !replacement.defined()) continue;
        std::vector<Tensor> changed = inputs;
        changed[i] = replacement;
        try {
          test::apply_op(*op, changed, sample.attrs, sample.n_outputs);
          synchronize(default_device());
        } catch (const Error& e) {
          EXPECT_TRUE(std::string(e.what()).starts_with(op->name)) << e.what();
        }
      }
    }
  }
}

TEST(OpErrors, ShapesWhoseProductOverflows) {
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THROW(Tensor::zeros({huge, 8}), Error);
  EXPECT_THROW(Tensor::empty({huge, 4}), Error);
  EXPECT_THROW(Tensor::empty({int64_t{1} << 32, int64_t{1} << 31, 2}), Error);
  EXPECT_THROW(Tensor::empty({-1}), Error);
  EXPECT_EQ(Tensor::empty({huge, 0, 8}).numel(), 0);
}

TEST(OpErrors, DimensionsOfAScalar) {
  const Tensor s = Tensor::from<float>({3}, {});
  for (int64_t dim : {0, -1}) {
    EXPECT_EQ(ops::sum(s, {dim}).item(), 3);
    EXPECT_EQ(ops::mean(s, {dim}).item(), 3);
    EXPECT_EQ(ops::max(s, {dim}, true).item(), 3);
    EXPECT_THROW(ops::sum(s, {dim + (dim == 0 ? 1 : -1)}), Error);
  }
  EXPECT_EQ(to_string(ops::unsqueeze(s, -1).sizes()), "[1]");
  EXPECT_EQ(to_string(ops::flatten(s).sizes()), "[1]");
}

// A quotient is a float: it cannot be written into an integer tensor.
TEST(OpErrors, IntegersAreNotDividedInPlace) {
  Tensor a = Tensor::from<int64_t>({7, -7, 5}, {3});
  EXPECT_THROW(a.div_(Tensor::from<int64_t>({-1, 2, 0}, {3})), Error);
  EXPECT_EQ(a.to_vector<int64_t>(), (std::vector<int64_t>{7, -7, 5}));
}

TEST(OpErrors, NineDimensionsAreTooMany) {
  EXPECT_THROW(Tensor::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(ops::unsqueeze(Tensor::zeros({1, 1, 1, 1, 1, 1, 1, 1}), 0), Error);
}

TEST(Misuse, ChecksWhatTheTapeIsGiven) {
  const Tensor a = Tensor::ones({2}).requires_grad_(), b = Tensor::ones({2}).requires_grad_(), none;
  const auto grad = [](const Tensor& root, const Tensor& input, std::vector<Tensor> grads = {}) {
    return test::error_of([&] { autograd::grad(std::span(&root, 1), std::span(&input, 1), grads); });
  };
  const auto says = [](const std::string& message, const char* what) {
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("op_errors_test.cc:"), std::string::npos) << message;
  };
  says(grad((a * 2).sum(), b), "autograd::grad: input 0 was not used");
  says(grad((a * 2).sum(), none), "autograd::grad: input 0 is undefined");
  says(grad((a * 2).sum(), Tensor::ones({2})), "autograd::grad: input 0 does not require grad");
  says(grad(a * 2, a, {Tensor::ones({2}), Tensor::ones({2})}), "2 gradients are given for 1 tensors");
  says(test::error_of([&] { Tensor(a).register_hook({}); }), "register_hook: the hook is empty");
}

TEST(Misuse, CheckpointedFunctionMustReturnTheSameAgain) {
  const Tensor x = Tensor::ones({2}).requires_grad_();
  EXPECT_NE(test::error_of([&] { autograd::checkpoint({}, {&x, 1}); }), "");
  int runs = 0;
  const std::vector<Tensor> out = autograd::checkpoint(
      [&](std::span<const Tensor> in) { return std::vector<Tensor>(++runs == 1 ? 1 : 3, in[0] * 2); }, {&x, 1});
  EXPECT_NE(test::error_of([&] { out[0].sum().backward(); }).find("1 tensors in forward and 3 in backward"),
            std::string::npos);
}

TEST(Misuse, FactoriesRefuseWhatTheDtypeCannotHold) {
  EXPECT_NE(test::error_of([] { Tensor::randn({2}, kI64); }), "");
  EXPECT_NE(test::error_of([] { Tensor::rand({2}, kBool); }), "");
  EXPECT_NE(test::error_of([] { Tensor::full({2}, 300, kU8); }), "");
  EXPECT_NE(test::error_of([] { Tensor::full({2}, std::numeric_limits<double>::quiet_NaN(), kI64); }), "");
  EXPECT_EQ(Tensor::full({1}, -1, kU8).item(), 255);
  EXPECT_NE(test::error_of([] { Tensor::randint(0, 257, {2}, kU8); }), "");
  EXPECT_NE(
      test::error_of([] { Tensor::randint(0, 5, {2}, kF32); }).find("Tensor::randint: the dtype must be an integer"),
      std::string::npos);
  EXPECT_NE(test::error_of([] { Tensor::randint(-1, 5, {2}, kU8); }), "");
  EXPECT_NE(test::error_of([] { Tensor::randint(0, int64_t{1} << 40, {2}, kI32); }), "");
  EXPECT_EQ(Tensor::randint(255, 256, {1}, kU8).item(), 255);
}

TEST(Misuse, AGradientHasTheDtypeOfItsTensor) {
  Tensor leaf = Tensor::ones({2}).requires_grad_();
  const std::string message = test::error_of([&] { leaf.set_grad(Tensor::ones({2}, kF64)); });
  EXPECT_NE(message.find("set_grad: the gradient is f64, the tensor f32"), std::string::npos) << message;
  EXPECT_FALSE(leaf.grad().defined());
}

TEST(Views, LargestStepsAndDiagonals) {
  const Tensor x = Tensor::arange(5);
  EXPECT_EQ(x.slice(0, {0, INT64_MAX, INT64_MAX}).to_vector<int64_t>(), (std::vector<int64_t>{0}));
  EXPECT_EQ(x.slice(0, {3, INT64_MAX, INT64_MAX - 1}).to_vector<int64_t>(), (std::vector<int64_t>{3}));
  const Tensor m = Tensor::ones({2, 2}, kI64);
  EXPECT_EQ(ops::triu(m, INT64_MAX).to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(ops::tril(m, INT64_MIN).to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(ops::tril(m, INT64_MAX).to_vector<int64_t>(), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(ops::tril(m).dtype(), kI64);
  EXPECT_EQ(ops::tril(m.to(kBool)).dtype(), kBool);
}

}  // namespace
}  // namespace rondo

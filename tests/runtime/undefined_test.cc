// Every public function and member, with an undefined tensor in each place where a tensor is required: a rondo::Error
// that names the op and the caller's line, never a crash.
#include <gtest/gtest.h>

#include <functional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/pixel_loss.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

struct Use {
  const char* op;  // as the message names it
  int line;
  std::function<void()> call;
};

#define USE(op, ...)                                                \
  Use {                                                             \
    op, __LINE__, [=]() mutable { static_cast<void>(__VA_ARGS__); } \
  }

std::vector<Use> members() {
  Tensor none;
  const Tensor x = Tensor::ones({2, 2});
  const auto hook = [](const Tensor& g) { return g; };
  return {
      USE("sizes", none.sizes()),
      USE("strides", none.strides()),
      USE("size", none.size(0)),
      USE("sizes", none.rank()),
      USE("sizes", none.numel()),
      USE("dtype", none.dtype()),
      USE("device", none.device()),
      USE("is_contiguous", none.is_contiguous()),
      USE("sizes", none.nbytes()),
      USE("data", none.data<float>()),
      USE("data", none.mutable_data<float>()),
      USE("raw_data", none.raw_data()),
      USE("raw_mutable_data", none.raw_mutable_data()),
      USE("item", none.item()),
      USE("item", none.item<int64_t>()),
      USE("to_vector", none.to_vector<float>()),
      USE("requires_grad", none.requires_grad()),
      USE("requires_grad_", none.requires_grad_()),
      USE("is_leaf", none.is_leaf()),
      USE("grad", none.grad()),
      USE("set_grad", none.set_grad(x)),
      USE("zero_grad", none.zero_grad()),
      USE("retain_grad", none.retain_grad()),
      USE("register_hook", none.register_hook(hook)),
      USE("remove_hook", none.remove_hook(0)),
      USE("backward", none.backward()),
      USE("detach", none.detach()),
      USE("version", none.version()),
      USE("view", none.view({1})),
      USE("reshape", none.reshape({1})),
      USE("transpose", none.transpose(0, 1)),
      USE("permute", none.permute({0})),
      USE("transpose", none.t()),
      USE("expand", none.expand({1})),
      USE("select", none.select(0, 0)),
      USE("slice", none.slice(0, {})),
      USE("select", none[0]),
      USE("squeeze", none.squeeze(0)),
      USE("unsqueeze", none.unsqueeze(0)),
      USE("flatten", none.flatten()),
      USE("contiguous", none.contiguous()),
      USE("clone", none.clone()),
      USE("to", none.to(kF64)),
      USE("exp", none.exp()),
      USE("log", none.log()),
      USE("sqrt", none.sqrt()),
      USE("abs", none.abs()),
      USE("matmul", none.matmul(x)),
      USE("matmul", x.matmul(none)),
      USE("softmax", none.softmax()),
      USE("softmax", none.softmax(0)),
      USE("sum", none.sum()),
      USE("mean", none.mean()),
      USE("max", none.max()),
      USE("min", none.min()),
      USE("argmax", none.argmax()),
      USE("argmax", none.argmax(0)),
      USE("add", none.add_(x)),
      USE("sub", none.sub_(x)),
      USE("mul", none.mul_(x)),
      USE("div", none.div_(x)),
      USE("add", x.clone().add_(none)),
      USE("sub", x.clone().sub_(none)),
      USE("mul", x.clone().mul_(none)),
      USE("div", x.clone().div_(none)),
      USE("add_scalar", none.add_(1)),
      USE("sub", none.sub_(1)),
      USE("mul_scalar", none.mul_(1)),
      USE("mul_scalar", none.div_(1)),
      USE("copy", none.copy_(x)),
      USE("copy", x.clone().copy_(none)),
      USE("fill", none.fill_(1)),
      USE("fill", none.zero_()),
      USE("add", none += x),
      USE("add", x.clone() += none),
      USE("add_scalar", none += 1),
      USE("sub", none -= x),
      USE("mul", none *= x),
      USE("div", none /= x),
      USE("storage", none.storage()),
      USE("storage_offset", none.storage_offset()),
  };
}

std::vector<Use> elementwise() {
  const Tensor none, x = Tensor::ones({2, 2}), mask = Tensor::ones({2, 2}, kBool);
  std::vector<Use> uses = {
      USE("where", ops::where(none, x, x)),
      USE("where", ops::where(mask, none, x)),
      USE("where", ops::where(mask, x, none)),
      USE("where", ops::where(none, x, 1)),
      USE("where", ops::where(mask, none, 1)),
      USE("where", ops::where(none, 1, x)),
      USE("where", ops::where(mask, 1, none)),
      USE("where", ops::where(none, 1, 2)),
      USE("masked_fill", ops::masked_fill(none, mask, 1)),
      USE("masked_fill", ops::masked_fill(x, none, 1)),
      USE("cast", ops::cast(none, kF64)),
      USE("leaky_relu", ops::leaky_relu(none)),
      USE("pow", ops::pow(none, 2)),
      USE("clamp", ops::clamp(none, 0, 1)),
      USE("gelu_tanh", ops::gelu(none)),
      USE("neg", -none),
      USE("dropout", ops::dropout(none, 0.5)),
  };
  using Unary = Tensor (*)(TensorArg);
  const std::pair<const char*, Unary> unary[] = {
      {"neg", &ops::neg},     {"exp", &ops::exp},       {"log", &ops::log},           {"sqrt", &ops::sqrt},
      {"rsqrt", &ops::rsqrt}, {"tanh", &ops::tanh},     {"erf", &ops::erf},           {"sigmoid", &ops::sigmoid},
      {"relu", &ops::relu},   {"silu", &ops::silu},     {"softplus", &ops::softplus}, {"abs", &ops::abs},
      {"sign", &ops::sign},   {"square", &ops::square}, {"sin", &ops::sin},           {"cos", &ops::cos},
      {"log1p", &ops::log1p}, {"expm1", &ops::expm1},   {"isfinite", &ops::isfinite}, {"isinf", &ops::isinf},
      {"isnan", &ops::isnan}};
  for (const auto& [name, op] : unary) uses.push_back(USE(name, op({none})));
  using Binary = Tensor (*)(TensorArg, TensorArg);
  using WithScalar = Tensor (*)(TensorArg, Scalar);
  const std::tuple<const char*, const char*, Binary, WithScalar> binary[] = {
      {"add", "add_scalar", &ops::add, &ops::add},
      {"sub", "sub", &ops::sub, &ops::sub},
      {"mul", "mul_scalar", &ops::mul, &ops::mul},
      {"div", "mul_scalar", &ops::div, &ops::div},
      {"maximum", "maximum", &ops::maximum, &ops::maximum},
      {"minimum", "minimum", &ops::minimum, &ops::minimum},
      {"equal", "equal", &ops::equal, &ops::equal},
      {"not_equal", "not_equal", &ops::not_equal, &ops::not_equal},
      {"less", "less", &ops::less, &ops::less},
      {"less_equal", "less_equal", &ops::less_equal, &ops::less_equal},
      {"less", "greater", &ops::greater, &ops::greater},
      {"less_equal", "greater_equal", &ops::greater_equal, &ops::greater_equal}};
  for (const auto& [name, with_scalar_name, op, with_scalar] : binary) {
    const Binary both = op;
    const WithScalar one = with_scalar;
    uses.push_back(USE(name, both({none}, {x})));
    uses.push_back(USE(name, both({x}, {none})));
    uses.push_back(USE(with_scalar_name, one({none}, 1)));
  }
  uses.push_back(USE("sub", ops::rsub(none, 1)));
  uses.push_back(USE("rdiv_scalar", ops::rdiv(none, 1)));
  uses.push_back(USE("add", none + x));
  uses.push_back(USE("add", x + none));
  uses.push_back(USE("add_scalar", none + 1));
  uses.push_back(USE("sub", 1 - none));
  uses.push_back(USE("less", none < x));
  uses.push_back(USE("less", none < 1));
  uses.push_back(USE("greater", 1 < none));
  return uses;
}

std::vector<Use> shapes_and_indices() {
  const Tensor none, x = Tensor::ones({2, 2}), index = Tensor::zeros({2, 2}, kI64), row = Tensor::zeros({2}, kI64);
  Tensor target = Tensor::ones({2, 2});
  return {
      USE("split", ops::split(none, 1, 0)),
      USE("cat", ops::cat({none, x}, 0)),
      USE("cat", ops::cat({x, none}, 0)),
      USE("stack", ops::stack({none, x}, 0)),
      USE("stack", ops::stack({x, none}, 0)),
      USE("tril", ops::tril(none)),
      USE("triu", ops::triu(none)),
      USE("gather", ops::gather(none, 0, index)),
      USE("gather", ops::gather(x, 0, none)),
      USE("scatter", ops::scatter(none, 0, index, x)),
      USE("scatter", ops::scatter(x, 0, none, x)),
      USE("scatter", ops::scatter(x, 0, index, none)),
      USE("scatter", ops::scatter(none, 0, index, 1)),
      USE("scatter", ops::scatter(x, 0, none, 1)),
      USE("scatter_add", ops::scatter_add(none, 0, index, x)),
      USE("scatter_add", ops::scatter_add(x, 0, none, x)),
      USE("scatter_add", ops::scatter_add(x, 0, index, none)),
      USE("index_select", ops::index_select(none, 0, row)),
      USE("index_select", ops::index_select(x, 0, none)),
      USE("cumsum", ops::cumsum(none, 0)),
      USE("argmax", ops::argmax(none)),
      USE("argmin", ops::argmin(none)),
      USE("argmin", ops::argmin(none, 0)),
      USE("sort", ops::sort(none)),
      USE("argsort", ops::argsort(none)),
      USE("topk", ops::topk(none, 1)),
      USE("sum", ops::sum(none)),
      USE("mean", ops::mean(none)),
      USE("max", ops::max(none)),
      USE("min", ops::min(none)),
      USE("var", ops::var(none)),
      USE("std", ops::std(none)),
      USE("any", ops::any(none)),
      USE("all", ops::all(none)),
      USE("sum_to", ops::sum_to(none, {1})),
      USE("copy", ops::copy_(none, x)),
      USE("copy", ops::copy_(target, none)),
      USE("fill", ops::fill_(none, 1)),
  };
}

std::vector<Use> networks() {
  const Tensor none, x = Tensor::ones({2, 2}), v = Tensor::ones({2}), target = Tensor::zeros({2}, kI64);
  const Tensor q = Tensor::ones({1, 1, 2, 2}), image = Tensor::ones({1, 1, 2, 2});
  const ops::RotaryTables tables = ops::rotary_tables(2, 2), no_tables;
  return {
      USE("matmul", ops::matmul(none, x)),
      USE("matmul", ops::matmul(x, none)),
      USE("linear", ops::linear(none, x, v)),
      USE("linear", ops::linear(x, none, v)),
      USE("conv2d", ops::conv2d(none, image, v, {.stride = {2, 2}})),
      USE("conv2d", ops::conv2d(image, none, v, {.stride = {2, 2}})),
      USE("layer_norm", ops::layer_norm(none, v, v)),
      USE("layer_norm", ops::layer_norm(x, none, v)),
      USE("layer_norm", ops::layer_norm(x, v, none)),
      USE("rms_norm", ops::rms_norm(none, v)),
      USE("rms_norm", ops::rms_norm(x, none)),
      USE("softmax", ops::softmax(none)),
      USE("batch_norm", ops::batch_norm(none, v, v)),
      USE("batch_norm_with", ops::batch_norm_with({v, v}, none, v, v)),
      USE("batch_norm_with", ops::batch_norm_with({none, v}, x, v, v)),
      USE("batch_norm_with", ops::batch_norm_with({v, none}, x, v, v)),
      USE("group_norm", ops::group_norm(none, 1, v, v)),
      USE("softmax", ops::softmax(none, 0)),
      USE("log_softmax", ops::log_softmax(none, 0)),
      USE("attention", ops::scaled_dot_product_attention(none, q, q)),
      USE("attention", ops::scaled_dot_product_attention(q, none, q)),
      USE("attention", ops::scaled_dot_product_attention(q, q, none)),
      USE("plain_attention", ops::plain_attention(none, q, q)),
      USE("plain_attention", ops::plain_attention(q, none, q)),
      USE("plain_attention", ops::plain_attention(q, q, none)),
      USE("rotary", ops::rotary_embedding(none, tables)),
      USE("rotary", ops::rotary_embedding(x, no_tables)),
      USE("rotary", ops::rotary_embedding(none)),
      USE("embedding", ops::embedding(none, target)),
      USE("embedding", ops::embedding(x, none)),
      USE("cross_entropy", ops::cross_entropy(none, target)),
      USE("cross_entropy", ops::cross_entropy(x, none)),
      USE("pixel_cross_entropy", ops::pixel_cross_entropy(none, target)),
      USE("pixel_cross_entropy", ops::pixel_cross_entropy(x, none)),
      USE("linear_cross_entropy", ops::linear_cross_entropy(none, x, v, target)),
      USE("linear_cross_entropy", ops::linear_cross_entropy(x, none, v, target)),
      USE("linear_cross_entropy", ops::linear_cross_entropy(x, x, v, none)),
      USE("mse_loss", ops::mse_loss(none, x)),
      USE("mse_loss", ops::mse_loss(x, none)),
      USE("l1_loss", ops::l1_loss(none, x)),
      USE("l1_loss", ops::l1_loss(x, none)),
      USE("huber_loss", ops::huber_loss(none, x)),
      USE("huber_loss", ops::huber_loss(x, none)),
      USE("bce_with_logits", ops::bce_with_logits(none, x)),
      USE("bce_with_logits", ops::bce_with_logits(x, none)),
      USE("bce_with_logits", ops::bce_with_logits(none, x, {.pos_weight = x})),
      USE("bce_with_logits", ops::bce_with_logits(x, none, {.weight = x})),
  };
}

void expect_errors(const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    std::string message;
    try {
      use.call();
    } catch (const Error& e) {
      message = e.what();
    }
    const std::string place = "undefined_test.cc:" + std::to_string(use.line);
    EXPECT_TRUE(message.starts_with(std::string(use.op) + ": ")) << place << ": " << message;
    EXPECT_NE(message.find("undefined"), std::string::npos) << place << ": " << message;
    EXPECT_NE(message.find(place), std::string::npos) << place << ": " << message;
  }
}

TEST(Undefined, Members) { expect_errors(members()); }
TEST(Undefined, Elementwise) { expect_errors(elementwise()); }
TEST(Undefined, ShapesAndIndices) { expect_errors(shapes_and_indices()); }
TEST(Undefined, Networks) { expect_errors(networks()); }

TEST(Undefined, Gradients) {
  const Tensor none, x = Tensor::ones({}).requires_grad_();
  EXPECT_NE(test::error_of([&] { autograd::grad({&none, 1}, {&x, 1}); }).find("undefined"), std::string::npos);
  const Tensor y = x * 2.0;
  EXPECT_NE(test::error_of([&] { autograd::grad({&y, 1}, {&none, 1}); }).find("undefined"), std::string::npos);
}

// An operand that may be absent, such as a bias.
TEST(Undefined, InputOfACheckpoint) {
  const Tensor x = Tensor::ones({3}).requires_grad_(), inputs[] = {x, Tensor()};
  const auto add = [](std::span<const Tensor> in) {
    return std::vector<Tensor>{in[1].defined() ? in[0] + in[1] : in[0] * 2.0};
  };
  ops::sum(autograd::checkpoint(add, inputs)[0]).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

// Asking and printing are all that an undefined tensor answers.
TEST(Undefined, WhatItAnswers) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(none.is_same(Tensor()));
  EXPECT_EQ(none.to_string(), "tensor(undefined)");
}

}  // namespace
}  // namespace rondo

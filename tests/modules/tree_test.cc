// Changing a finished model: attach, detach, replace.
#include <gtest/gtest.h>

#include <utility>

#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

std::vector<std::string> names_of(const std::vector<NamedTensor>& list) {
  std::vector<std::string> names;
  for (const NamedTensor& t : list) names.push_back(t.name);
  return names;
}

struct Net : Module<Net> {
  Linear fc = child("fc", 2, 3);
  Linear out = child("out", 3, 2);
  Tensor forward(const Tensor& x) { return out(fc(x)); }
};
struct Scale : Module<Scale> {
  explicit Scale(double start) : start(start) {}
  double start;
  Tensor& gain = parameter("gain", Tensor::full({1}, start));
  Tensor forward(const Tensor& x) { return x * gain; }
};
// Multiplies the results of the module it is attached to, and notes that it ran.
struct Times final : Module<Times>, CallHook {
  Times(double start, std::string* log) : log(log), start(start) {}
  std::string* log;
  double start;
  Tensor& gain = parameter("gain", Tensor::full({1}, start));
  void around(const ModuleCall& call, absl::FunctionRef<void()> forward) override {
    *log += "(" + name();
    forward();
    *call.result = *call.result * gain;
    *log += ")";
  }
};

TEST(Attach, TheTreeHasTheChild) {
  Net net;
  net.eval();
  net.to(kF64);
  Scale& scale = net.fc.attach("scale", std::make_unique<Scale>(2.0));
  EXPECT_EQ(scale.path(), "fc.scale");
  EXPECT_EQ(scale.parent(), &net.fc);
  EXPECT_FALSE(scale.is_training());
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"fc.weight", "fc.bias", "fc.scale.gain", "out.weight", "out.bias"}));
  EXPECT_TRUE(net.state_dict().contains("fc.scale.gain"));
  EXPECT_EQ(net.tensor_slots().size(), 5u);
  net.train();
  net.to(kF32);
  EXPECT_TRUE(scale.is_training());
  EXPECT_EQ(scale.gain.dtype(), kF32);
  bool met = false;
  for (const NamedModule& m : net.named_modules()) met = met || (m.name == "fc.scale" && &m.module == &scale);
  EXPECT_TRUE(met);

  const std::unique_ptr<ModuleBase> taken = net.fc.detach("scale");
  EXPECT_EQ(taken.get(), &scale);
  EXPECT_EQ(taken->path(), "");
  EXPECT_EQ(taken->parent(), nullptr);
  EXPECT_EQ(net.parameters().size(), 4u);
  // A tree below the attached module has its paths, too.
  auto inner = std::make_unique<Net>();
  Net& attached = net.attach("inner", std::move(inner));
  EXPECT_EQ(attached.out.path(), "inner.out");
  EXPECT_EQ(net.parameters().size(), 8u);
}

TEST(Attach, SaysWhatIsWrong) {
  Net net;
  EXPECT_NE(error_of([&] { net.attach("fc", std::make_unique<Scale>(1.0)); }).find("'fc' is taken by a child"),
            std::string::npos);
  EXPECT_NE(error_of([&] { net.fc.attach("weight", std::make_unique<Scale>(1.0)); }).find("is taken by a parameter"),
            std::string::npos);
  EXPECT_NE(error_of([&] { net.attach("a.b", std::make_unique<Scale>(1.0)); }).find("contains a dot"),
            std::string::npos);
  EXPECT_NE(error_of([&] { net.attach("x", std::unique_ptr<Scale>()); }).find("the module is null"), std::string::npos);
  EXPECT_NE(error_of([&] { net.detach("fc"); }).find("fc was not attached"), std::string::npos);
  EXPECT_NE(error_of([&] { net.detach("gc"); }).find("there is no child 'gc'; there is fc, out"), std::string::npos);
  EXPECT_EQ(net.parameters().size(), 4u);
}

// call_hook is outermost, then attached hooks, the last attached first.
TEST(Attach, HooksWrapTheCallsInOrder) {
  struct Outer : CallHook {
    explicit Outer(std::string* log) : log(log) {}
    std::string* log;
    void around(const ModuleCall&, absl::FunctionRef<void()> forward) override {
      *log += "<";
      forward();
      *log += ">";
    }
  };
  Net net;
  const Tensor x = Tensor::ones({1, 2});
  const Tensor plain = net.fc(x);
  std::string log;
  net.fc.attach("first", std::make_unique<Times>(2.0, &log));
  net.fc.attach("second", std::make_unique<Times>(3.0, &log));
  net.fc.call_hook = std::make_shared<Outer>(&log);
  EXPECT_FALSE(net.fc.is_plain());
  EXPECT_TRUE(same_bits(net.fc(x).detach(), ((plain * 2.0) * 3.0).detach()));
  EXPECT_EQ(log, "<(second(first))>");
  net.fc.call_hook = nullptr;
  net.fc.detach("second");
  EXPECT_TRUE(same_bits(net.fc(x).detach(), (plain * 2.0).detach()));
  net.fc.detach("first");
  EXPECT_TRUE(net.fc.is_plain());
  EXPECT_TRUE(same_bits(net.fc(x).detach(), plain.detach()));
}

TEST(Replace, ReachesTheMemberThatTheCodeCalls) {
  Net net;
  net.eval();
  const Tensor x = Tensor::ones({4, 2});
  auto made = std::make_unique<Linear>(3, 5);
  const Tensor expected = (*made)(net.fc(x));
  Linear& out = net.replace("out", std::move(made));
  EXPECT_EQ(out.path(), "out");
  EXPECT_FALSE(out.is_training());
  EXPECT_TRUE(same_bits(net(x).detach(), expected.detach()));
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"fc.weight", "fc.bias", "out.weight", "out.bias"}));
  EXPECT_TRUE(net.out.weight.is_same(out.weight));  // what the code reads directly
  EXPECT_EQ(net.children()[1], &out);               // at the same position
  ops::sum(net(x)).backward();
  EXPECT_TRUE(out.weight.grad().defined());
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  optimizer.step();
  EXPECT_FALSE(same_bits(net(x).detach(), expected.detach()));
  // Once more.
  Linear& third = net.replace("out", std::make_unique<Linear>(3, 7));
  EXPECT_EQ(net(x).sizes(), (Dims{4, 7}));
  EXPECT_TRUE(net.out.weight.is_same(third.weight));
  EXPECT_EQ(net.parameters().size(), 4u);
}

TEST(Replace, AnotherClass) {
  Net net;
  const Tensor x = Tensor::ones({4, 2});
  net.replace("out", std::make_unique<Scale>(2.0));
  EXPECT_TRUE(same_bits(net(x).detach(), (net.fc(x) * 2.0).detach()));
  EXPECT_FALSE(net.out.weight.defined());
  EXPECT_EQ(names_of(net.named_parameters()), (std::vector<std::string>{"fc.weight", "fc.bias", "out.gain"}));
}

TEST(Replace, CallsThatTakeMoreThanTensors) {
  struct Odd : Module<Odd> {
    Tensor forward(const Tensor& x, double scale) { return x * scale; }
  };
  struct User : Module<User> {
    Odd odd = child("odd");
    Tensor forward(const Tensor& x) { return odd(x, 3.0); }
  } user;
  const Tensor x = Tensor::ones({2});
  user.replace("odd", std::make_unique<Odd>());
  EXPECT_EQ(user(x).to_vector<float>(), (std::vector<float>{3, 3}));
  user.replace("odd", std::make_unique<Scale>(2.0));
  EXPECT_NE(error_of([&] {
              user(x);
            }).find("odd: this Odd was replaced by a Scale, which can stand in only for calls that take tensors"),
            std::string::npos);
}

// A member of the old module whose name the new one has, too.
TEST(Replace, MembersOfTheMember) {
  struct Reacher : Module<Reacher> {
    Net net = child("net");
    Tensor forward(const Tensor& x) { return net.out(net.fc(x)); }
  } reacher;
  const Tensor x = Tensor::ones({4, 2});
  auto made = std::make_unique<Net>();
  Net& net = reacher.replace("net", std::move(made));
  EXPECT_TRUE(same_bits(reacher(x).detach(), net(x).detach()));
  EXPECT_TRUE(reacher.net.fc.weight.is_same(net.fc.weight));
}

TEST(Replace, AnItemOfAList) {
  GPT2 model({.vocab_size = 11, .block_size = 4, .n_layer = 2, .n_head = 1, .n_embd = 8}, 1);
  const Tensor idx = Tensor::zeros({1, 4}, {kI64});
  const Tensor before = model(idx);
  model.h.replace("1", std::make_unique<TransformerBlock>(8, 1));
  EXPECT_FALSE(same_bits(model(idx).detach(), before.detach()));
  model.loss(idx, idx).backward();
  for (const NamedTensor& p : model.named_parameters()) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
  EXPECT_NE(error_of([&] { model.h.replace("2", std::make_unique<Linear>(1, 1)); }).find("there is no child '2'"),
            std::string::npos);
}

// A loss that reads the output layer's weight in chunks calls the layer that has replaced it.
TEST(Replace, AnOutputLayer) {
  LlamaConfig config = {
      .vocab_size = 13, .block_size = 8, .n_layer = 1, .n_head = 2, .n_kv_head = 1, .n_embd = 8, .n_hidden = 16};
  config.whole_logits = 1;
  Llama model(config);
  const Tensor idx = Tensor::zeros({1, 4}, {kI64});
  struct Head : Module<Head> {
    Linear a = child("a", 8, 4);
    Linear b = child("b", 4, 13);
    Tensor forward(const Tensor& x) { return b(a(x)); }
  };
  Head& head = model.replace("lm_head", std::make_unique<Head>());
  model.loss(idx, idx).backward();
  EXPECT_TRUE(head.a.weight.grad().defined());
}

}  // namespace
}  // namespace rondo::nn

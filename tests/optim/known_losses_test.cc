// Twenty steps of three models have the losses that are recorded here, on every processor; regions in exact mode have
// those of eager execution, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/modules/vision/resnet.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo::optim {
namespace {

struct Case {
  std::string name;
  // A fresh model, and its loss on the same batch each time.
  struct Training {
    std::unique_ptr<nn::ModuleBase> model;
    std::function<Tensor()> loss;
  };
  std::function<Training()> make;
  std::vector<double> losses;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

template <class Model> Case::Training of_tokens(const auto& config) {
  auto model = std::make_unique<Model>(config);
  const Tensor tokens = Tensor::rand({4, 25}) * 31.0;
  const Tensor ids = tokens.slice(1, {0, 24}).to(kI64), next = tokens.slice(1, {1, 25}).to(kI64);
  Model& m = *model;
  return {std::move(model), [ids, next, &m] { return m.loss(ids, next); }};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"GPT2",
       [] {
         return of_tokens<nn::GPT2>(nn::GPT2Config{
             .vocab_size = 31, .block_size = 24, .n_layer = 2, .n_head = 2, .n_embd = 32, .dropout = 0.1});
       },
       {3.46355,  3.389685, 3.346475, 3.302006, 3.262282, 3.240052, 3.207683, 3.18176,  3.157097, 3.120514,
        3.098565, 3.078601, 3.057318, 3.039538, 3.007538, 2.987104, 2.960471, 2.948565, 2.918909, 2.904674}},
      {"Llama",
       [] {
         return of_tokens<nn::Llama>(nn::LlamaConfig{.vocab_size = 31,
                                                     .block_size = 24,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .n_kv_head = 2,
                                                     .n_embd = 32,
                                                     .n_hidden = 80});
       },
       {3.416949, 3.371435, 3.328423, 3.287863, 3.249631, 3.213101, 3.177761, 3.143534, 3.110312, 3.077698,
        3.045313, 3.013085, 2.981132, 2.949559, 2.91831,  2.887149, 2.856092, 2.825301, 2.79443,  2.763071}},
      {"ResNet",
       []() -> Case::Training {
         auto model = std::make_unique<nn::ResNet>(
             nn::ResNetConfig{.layers = {1, 2, 1, 1}, .num_classes = 5, .width = 8});
         const Tensor images = Tensor::randn({6, 3, 40, 40}), labels = (Tensor::rand({6}) * 5.0).to(kI64);
         nn::ResNet& m = *model;
         return {std::move(model), [images, labels, &m] { return m.loss(images, labels); }};
       },
       {1.791296,  1.168542,  0.8417104, 0.6466865,  0.5135238,  0.4210134, 0.3530749,
        0.3035717, 0.2630586, 0.2297412, 0.2019137,  0.1792217,  0.1601082, 0.1436756,
        0.1292226, 0.1166025, 0.1057253, 0.09623536, 0.08788661, 0.08052591}}};
  return all;
}

std::vector<double> train(const Case& c, std::optional<compile::CompileOptions> options) {
  manual_seed(3);
  const Case::Training training = c.make();
  compile::Regions regions({});
  if (options) regions = compile::compile_regions(*training.model, *options);
  AdamW optimizer(training.model->parameters(), {.lr = 1e-3});
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    const Tensor loss = training.loss();
    losses.push_back(loss.item());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

std::string text_of(const std::vector<double>& losses) {
  std::string text;
  for (const double loss : losses) absl::StrAppendFormat(&text, "%.7g, ", loss);
  return text;
}

class KnownLosses : public testing::TestWithParam<Case> {};

void expect_close(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size()) << text_of(got);
  // Sums in another order round otherwise, and 20 steps amplify it: 2e-6 between AVX2 and AVX-512, eager and compiled.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << i << " of " << text_of(got);
}

TEST_P(KnownLosses, Eager) { expect_close(train(GetParam(), std::nullopt), GetParam().losses); }

TEST_P(KnownLosses, InRegions) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  EXPECT_EQ(train(GetParam(), compile::CompileOptions{.exact = true}), train(GetParam(), std::nullopt));
  expect_close(train(GetParam(), compile::CompileOptions{}), GetParam().losses);
}

INSTANTIATE_TEST_SUITE_P(Models, KnownLosses, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rondo::optim

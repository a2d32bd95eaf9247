// Beam search beside every text that there is. What transformers finds with beams: vision_encoder_decoder_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

constexpr int64_t kVocabulary = 5;
constexpr GPT2Config kGPT2 = {.vocab_size = kVocabulary, .block_size = 12, .n_layer = 2, .n_head = 2, .n_embd = 16};
constexpr LlamaConfig kLlama = {.vocab_size = kVocabulary,
                                .block_size = 12,
                                .n_layer = 2,
                                .n_head = 4,
                                .n_kv_head = 2,
                                .n_embd = 16,
                                .n_hidden = 24};

template <class Model, class Config> std::unique_ptr<Model> uneven(const Config& config) {
  auto model = std::make_unique<Model>(config, 7);
  const NoGrad off;
  for (Tensor p : model->parameters())
    if (p.rank() >= 2) p.mul_(12);
  model->eval();
  return model;
}

// The best text by trying all: those that end with a stop token, and those of n tokens.
struct Best {
  std::vector<int64_t> tokens;
  double score = -std::numeric_limits<double>::infinity();
};
template <class Model>
void try_all(Model& model, std::vector<int64_t> text, size_t prompt, double sum, int64_t n, int64_t stop,
             double length_penalty, Best& best) {
  const auto T = std::ssize(text);
  const auto made = static_cast<int64_t>(text.size() - prompt);
  if (made > 0 && (made == n || text.back() == stop)) {
    const double score = sum / std::pow(static_cast<double>(made), length_penalty);
    if (score > best.score) best = {{text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end()}, score};
    return;
  }
  const std::vector<double> next = no_grad([&] {
    return ops::log_softmax(model(Tensor::from(text, {1, T})).select(1, T - 1).to(kF64)).template to_vector<double>();
  });
  for (int64_t token = 0; token < kVocabulary; ++token) {
    text.push_back(token);
    try_all(model, text, prompt, sum + next[static_cast<size_t>(token)], n, stop, length_penalty, best);
    text.pop_back();
  }
}

// So many beams that nothing is left out. Prompts of several lengths share a call.
template <class Model> void expect_best(Model& model) {
  const std::vector<std::vector<int64_t>> prompts = {{1}, {2, 3, 0, 1}, {4, 4}};
  std::set<std::vector<int64_t>> different;
  for (const int64_t stop : {-1, 2})
    for (const double length_penalty : {-2.0, 0.0, 1.0, 3.0}) {
      SCOPED_TRACE(testing::Message() << "stop " << stop << ", length penalty " << length_penalty);
      GenerationOptions options = {
          .max_new_tokens = 3, .temperature = 0, .num_beams = 125, .length_penalty = length_penalty};
      if (stop >= 0) options.stop_tokens = {stop};
      const std::vector<Generation> texts = generate(model, prompts, options);
      for (size_t i = 0; i < prompts.size(); ++i) {
        Best best;
        try_all(model, prompts[i], prompts[i].size(), 0, 3, stop, length_penalty, best);
        EXPECT_EQ(texts[i].tokens, best.tokens) << i;
        EXPECT_EQ(texts[i].reason, best.tokens.back() == stop ? FinishReason::kStopToken : FinishReason::kMaxTokens);
        different.insert(texts[i].tokens);
      }
    }
  EXPECT_GT(different.size(), 2u);  // the search depends on the options
}
TEST(BeamSearch, EnoughBeamsFindTheBestText) {
  expect_best(*uneven<GPT2>(kGPT2));
  expect_best(*uneven<Llama>(kLlama));
}

// Few beams: a prompt's text does not depend on the others in the call, and is at least as likely as the greedy one.
TEST(BeamSearch, FewBeams) {
  const auto model = uneven<GPT2>(kGPT2);
  const std::vector<std::vector<int64_t>> prompts = {{1, 2}, {3}, {0, 0, 4}};
  const auto log_probability = [&](const std::vector<int64_t>& prompt, const std::vector<int64_t>& tokens) {
    std::vector<int64_t> text = prompt;
    text.insert(text.end(), tokens.begin(), tokens.end());
    const auto T = std::ssize(text);
    const Tensor all = no_grad([&] { return ops::log_softmax((*model)(Tensor::from(text, {1, T})).to(kF64)); });
    double sum = 0;
    for (auto t = std::ssize(prompt); t < T; ++t) sum += all[0][t - 1][text[static_cast<size_t>(t)]].item();
    return sum;
  };
  const GenerationOptions beams = {.max_new_tokens = 8, .temperature = 0, .num_beams = 2};
  const std::vector<Generation> together = generate(*model, prompts, beams);
  bool better = false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(generate(*model, prompts[i], beams).tokens, together[i].tokens) << i;
    const Generation greedy = generate(*model, prompts[i], {.max_new_tokens = 8, .temperature = 0});
    const double by_beams = log_probability(prompts[i], together[i].tokens),
                 by_greed = log_probability(prompts[i], greedy.tokens);
    EXPECT_GE(by_beams, by_greed - 1e-4) << i;
    better |= by_beams > by_greed + 1e-3;
  }
  EXPECT_TRUE(better) << "the prompts show no difference";
}

TEST(BeamSearch, EndsWithTheModelAndWritesText) {
  const auto model = uneven<GPT2>(kGPT2);
  const std::vector<std::vector<int64_t>> prompts = {std::vector<int64_t>(10, 1), {2}};
  const auto decode = [](std::span<const int64_t> tokens) { return std::string(tokens.begin(), tokens.end()); };
  const std::vector<Generation> texts = generate(
      *model, prompts, {.max_new_tokens = 6, .temperature = 0, .num_beams = 3, .decode = decode});
  EXPECT_EQ(texts[0].tokens.size(), 3u);  // 12 positions, and a token after the last
  EXPECT_EQ(texts[0].reason, FinishReason::kModelFull);
  EXPECT_EQ(texts[1].tokens.size(), 6u);
  EXPECT_EQ(texts[1].reason, FinishReason::kMaxTokens);
  EXPECT_EQ(texts[1].text, decode(texts[1].tokens));
}

TEST(BeamSearch, Errors) {
  const auto model = uneven<GPT2>(kGPT2);
  const auto error = [&](const GenerationOptions& options) {
    return test::error_of([&] { generate(*model, {1}, options); });
  };
  EXPECT_NE(error({.num_beams = 2}).find("num_beams above 1 needs temperature 0"), std::string::npos);
  EXPECT_NE(error({.temperature = 0, .num_beams = 2, .on_token = [](int64_t, int64_t) { return true; }})
                .find("takes neither stop_strings nor on_token nor slide"),
            std::string::npos);
  EXPECT_NE(error({.temperature = 0, .num_beams = 0}).find("num_beams must be from 1 to 65536, got 0"),
            std::string::npos);
  EXPECT_NE(error({.temperature = 0, .num_beams = 2, .length_penalty = std::nan("")}).find("length_penalty"),
            std::string::npos);
  {
    const NoGrad off;
    Tensor(model->ln_f.weight).fill_(std::nan(""));
  }
  EXPECT_NE(error({.temperature = 0, .num_beams = 2}).find("the weights have diverged"), std::string::npos);
}

}  // namespace
}  // namespace rondo::nn

#include "rondo/modules/generation/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "rondo/modules/generation/sampler.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {
namespace {

constexpr GPT2Config kGPT2 = {.vocab_size = 29, .block_size = 24, .n_layer = 2, .n_head = 2, .n_embd = 32};
constexpr LlamaConfig kLlama = {
    .vocab_size = 29, .block_size = 24, .n_layer = 2, .n_head = 4, .n_kv_head = 2, .n_embd = 32, .n_hidden = 40};

// ---- Sampling against a plain implementation

// Probabilities of all tokens, as the documentation defines them, with sorts of everything.
std::vector<double> reference(std::vector<float> logits, const SamplingOptions& o, const std::vector<int64_t>& seen) {
  const size_t V = logits.size();
  for (size_t i = 0; i < V; ++i)
    if (std::find(seen.begin(), seen.end(), static_cast<int64_t>(i)) != seen.end())
      logits[i] = logits[i] > 0 ? logits[i] / static_cast<float>(o.repetition_penalty)
                                : logits[i] * static_cast<float>(o.repetition_penalty);
  std::vector<size_t> order(V);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(V, 0);
  if (o.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  for (size_t r = 0; r < V; ++r)
    if (o.top_k == 0 || static_cast<int64_t>(r) < o.top_k)
      p[order[r]] = std::exp((static_cast<double>(logits[order[r]]) - logits[order[0]]) / o.temperature);
  const auto normalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
  };
  normalise();
  double before = 0;
  for (size_t r = 0; r < V; ++r) {
    const double here = p[order[r]];
    if (r > 0 && before >= o.top_p && o.top_p < 1) p[order[r]] = 0;
    before += here;
  }
  normalise();
  const double most = *std::max_element(p.begin(), p.end());
  for (double& x : p)
    if (x < o.min_p * most) x = 0;
  normalise();
  return p;
}

TEST(Sampler, IsThePlainImplementation) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 3);
  for (const size_t V : {1, 2, 7, 300, 2000})
    for (const double temperature : {0.0, 0.3, 1.0, 2.5})
      for (const int64_t top_k : {0, 1, 5, 100, 5000})
        for (const double top_p : {0.0, 0.4, 0.95, 1.0})
          for (const double min_p : {0.0, 0.1, 1.0})
            for (const double penalty : {1.0, 1.3, 0.7}) {
              std::vector<float> logits(V);
              for (float& x : logits) x = std::round(normal(rng) * 8) / 8;  // some are equal
              if (V > 5) logits[3] = -INFINITY;
              const std::vector<int64_t> seen = {0, static_cast<int64_t>(V) - 1, static_cast<int64_t>(V) / 2, 0};
              const SamplingOptions options = {penalty, temperature, top_k, top_p, min_p};
              const std::vector<double> expected = reference(logits, options, seen);
              Sampler sampler(options);
              std::vector<float> work = logits;
              std::vector<double> got(V, 0);
              for (const TokenProbability& t : sampler.candidates(work, seen))
                got[static_cast<size_t>(t.token)] = t.probability;
              for (size_t i = 0; i < V; ++i)
                ASSERT_NEAR(got[i], expected[i], 1e-12)
                    << "V " << V << ", T " << temperature << ", top_k " << top_k << ", top_p " << top_p << ", min_p "
                    << min_p << ", token " << i;
              work = logits;
              const int64_t drawn = sampler.draw(work, seen, 0.37);
              ASSERT_GT(expected[static_cast<size_t>(drawn)], 0);
            }
}

TEST(Sampler, DrawsByProbability) {
  Sampler sampler({.temperature = 0.7, .top_p = 0.9});
  const std::vector<float> logits = {1, 2, 0.5, -1, 1.5, -INFINITY};
  const std::vector<double> expected = reference(logits, {.temperature = 0.7, .top_p = 0.9}, {});
  std::vector<int> counts(logits.size(), 0);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> work = logits;
    ++counts[static_cast<size_t>(sampler.draw(work, {}, (i + 0.5) / kDraws))];
  }
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(counts[i] / double{kDraws}, expected[i], 1e-4) << i;
}

TEST(Sampler, RefusesWhatIsNoDistribution) {
  Sampler sampler({}), greedy({.temperature = 0});
  const float inf = INFINITY, nan = std::numeric_limits<float>::quiet_NaN();
  for (Sampler* s : {&sampler, &greedy}) {
    std::vector<float> none = {-inf, -inf}, invalid = {0, nan}, overflow = {0, inf}, one = {-inf, -3};
    EXPECT_NE(test::error_of([&] { s->draw(none, {}, 0.5); }).find("all tokens are -inf"), std::string::npos);
    EXPECT_NE(test::error_of([&] { s->draw(invalid, {}, 0.5); }).find("token 1 is nan"), std::string::npos);
    EXPECT_NE(test::error_of([&] { s->draw(overflow, {}, 0.5); }).find("token 1 is inf"), std::string::npos);
    EXPECT_EQ(s->draw(one, {}, 0.999999), 1);
  }
  for (const SamplingOptions& bad :
       {SamplingOptions{.repetition_penalty = 0}, SamplingOptions{.repetition_penalty = -1},
        SamplingOptions{.temperature = -0.1}, SamplingOptions{.temperature = std::nan("")},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 1.1}, SamplingOptions{.top_p = -0.1},
        SamplingOptions{.min_p = 2}, SamplingOptions{.min_p = std::nan("")}})
    EXPECT_THROW(Sampler{bad}, Error);
}

// ---- Whole models

template <class Model> void make_uneven(Model& model) {
  const NoGrad off;
  for (Tensor p : model.parameters())
    if (p.rank() >= 2) p.mul_(10);
}

// The most likely tokens, each from a forward of everything before it.
template <class Model> std::vector<int64_t> plain_greedy(Model& model, std::vector<int64_t> tokens, int64_t n) {
  const NoGrad off;
  const bool training = model.is_training();
  model.eval();
  std::vector<int64_t> made;
  for (int64_t i = 0; i < n; ++i) {
    const auto T = static_cast<int64_t>(tokens.size());
    made.push_back(model(Tensor::from(tokens, {1, T})).select(1, T - 1).argmax().template item<int64_t>());
    tokens.push_back(made.back());
  }
  model.train(training);
  return made;
}

template <class Model, class Config> void expect_greedy(const Config& config) {
  Model model(config, 5);
  make_uneven(model);
  const std::vector<std::vector<int64_t>> prompts = {
      {1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11}, {3, 3}, {20, 1, 20, 1, 20}};
  const GenerationOptions options = {.max_new_tokens = 12, .temperature = 0};
  const std::vector<Generation> batch = generate(model, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(batch[i].tokens, plain_greedy(model, prompts[i], 12)) << i;
    EXPECT_EQ(generate(model, prompts[i], options).tokens, batch[i].tokens) << i;
    EXPECT_EQ(batch[i].reason, FinishReason::kMaxTokens);
  }
  std::set<int64_t> different;
  for (const Generation& g : batch) different.insert(g.tokens.begin(), g.tokens.end());
  EXPECT_GT(different.size(), 4u);  // the model is no constant
}
TEST(Generate, GreedyIsThatOfWholeForwards) {
  expect_greedy<GPT2>(kGPT2);
  expect_greedy<Llama>(kLlama);
}

// Each published family, with the parts that its recorded checkpoint has: biases, norms, windows, scaled positions.
TEST(Generate, PublishedModels) {
  for (const char* name : {"gpt2", "gpt2_gelu", "llama2", "llama3", "llama_bias", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    auto model = AutoModelForCausalLM::from_pretrained(tests::kReferenceDir + std::string("/pretrained/") + name,
                                                       {.dtype = kF64});
    CausalLM& lm = model.causal_lm();
    const int64_t room = lm.cache_options().max_length;
    ASSERT_GE(room, 12);
    const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4, 5, 6, 7, 8}};
    const std::vector<Generation> got = generate(lm, prompts, {.max_new_tokens = room - 5, .temperature = 0});
    const NoGrad off;
    for (size_t row = 0; row < 2; ++row) {
      std::vector<int64_t> text = prompts[row];
      for (const int64_t token : got[row].tokens) {
        const auto T = static_cast<int64_t>(text.size());
        ASSERT_EQ(model(Tensor::from(text, {1, T})).select(1, T - 1).argmax().item<int64_t>(), token) << T;
        text.push_back(token);
      }
      EXPECT_EQ(static_cast<int64_t>(got[row].tokens.size()), room - 5);
    }
  }
}

TEST(Generate, SamplingRepeatsAndFollowsTheGenerator) {
  Llama model(kLlama, 5);
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4}};
  const auto run = [&](uint64_t seed) {
    Generator generator(seed);
    std::vector<int64_t> all;
    for (const Generation& g :
         generate(model, prompts, {.max_new_tokens = 15, .top_k = 20, .top_p = 0.9, .generator = &generator}))
      all.insert(all.end(), g.tokens.begin(), g.tokens.end());
    return all;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  // Greedy takes no random numbers.
  Generator generator(3);
  generate(model, prompts[0], {.max_new_tokens = 3, .temperature = 0, .generator = &generator});
  EXPECT_EQ(generator.offset(), 0u);
}

TEST(Generate, RepetitionPenaltySeesPromptAndNewTokens) {
  GPT2 model(kGPT2, 5);
  make_uneven(model);
  const std::vector<int64_t> prompt = {1, 2, 3};
  const double penalty = 1.8;
  const Generation got = generate(model, prompt,
                                  {.max_new_tokens = 15, .repetition_penalty = penalty, .temperature = 0});
  EXPECT_NE(got.tokens, plain_greedy(model, prompt, 15));
  const NoGrad off;
  std::vector<int64_t> all = prompt;
  for (const int64_t token : got.tokens) {
    const auto T = static_cast<int64_t>(all.size());
    std::vector<double> logits = model(Tensor::from(all, {1, T})).select(1, T - 1).to_vector<double>();
    for (const int64_t seen : std::set<int64_t>(all.begin(), all.end())) {
      double& logit = logits[static_cast<size_t>(seen)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin()) << T;
    all.push_back(token);
  }
}

TEST(Generate, StopsAtTokens) {
  GPT2 model(kGPT2, 5);
  make_uneven(model);
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4}};
  const std::vector<int64_t> first = plain_greedy(model, prompts[0], 10), second = plain_greedy(model, prompts[1], 10);
  const int64_t stop = first[4];
  const auto upto = [&](const std::vector<int64_t>& tokens) {
    const auto at = std::find(tokens.begin(), tokens.end(), stop);
    return std::vector<int64_t>(tokens.begin(), at == tokens.end() ? at : at + 1);
  };
  const std::vector<Generation> g = generate(model, prompts,
                                             {.max_new_tokens = 10, .temperature = 0, .stop_tokens = {stop, 1000}});
  EXPECT_EQ(g[0].tokens, upto(first));
  EXPECT_EQ(g[0].reason, FinishReason::kStopToken);
  EXPECT_EQ(g[1].tokens, upto(second));  // goes on without the other row
}

std::string letters(std::span<const int64_t> tokens) {
  std::string text;
  for (const int64_t token : tokens)
    text += static_cast<char>('A' + token), text += static_cast<char>('a' + token % 26);
  return text;
}

TEST(Generate, StopsAtStringsAcrossTokens) {
  GPT2 model(kGPT2, 5);
  make_uneven(model);
  const std::vector<int64_t> prompt = {1, 2, 3}, tokens = plain_greedy(model, prompt, 10);
  const std::string text = letters(tokens);
  // The second letter of one token, a whole token, and the first letter of the next.
  const std::string stop = text.substr(5, 4);
  const size_t at = text.find(stop);
  const Generation g = generate(
      model, prompt,
      {.max_new_tokens = 10, .temperature = 0, .stop_strings = {"no such text", stop}, .decode = letters});
  EXPECT_EQ(g.reason, FinishReason::kStopString);
  EXPECT_EQ(g.text, text.substr(0, at));
  EXPECT_EQ(g.tokens.size(), (at + 4 + 1) / 2);  // the token that completes it is the last one
  // Text of the prompt does not count.
  const Generation whole = generate(
      model, prompt,
      {.max_new_tokens = 10, .temperature = 0, .stop_strings = {letters(prompt) + "?"}, .decode = letters});
  EXPECT_EQ(whole.text, text);
  EXPECT_EQ(whole.reason, FinishReason::kMaxTokens);
}

TEST(Generate, StreamsAndCancels) {
  GPT2 model(kGPT2, 5);
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4}};
  std::vector<std::vector<int64_t>> streamed(2);
  int calls = 0;
  const std::vector<Generation> g = generate(model, prompts,
                                             {.max_new_tokens = 10, .on_token = [&](int64_t row, int64_t token) {
                                                streamed[static_cast<size_t>(row)].push_back(token);
                                                return ++calls < 7;
                                              }});
  EXPECT_EQ(calls, 7);
  EXPECT_EQ(g[0].tokens, streamed[0]);
  EXPECT_EQ(g[1].tokens, streamed[1]);
  EXPECT_EQ(g[0].tokens.size(), 4u);
  EXPECT_EQ(g[1].tokens.size(), 3u);
  EXPECT_EQ(g[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(g[1].reason, FinishReason::kCancelled);
  EXPECT_TRUE(model.is_training());
}

TEST(Generate, AnExceptionLeavesTheModes) {
  Llama model(kLlama, 5);
  model.model.layers[1].eval();
  const auto modes = [&] {
    std::vector<bool> on;
    for (const NamedModule& m : model.named_modules()) on.push_back(m.module.is_training());
    return on;
  };
  const std::vector<bool> before = modes();
  struct Stop {};
  EXPECT_THROW(generate(model, {1, 2}, {.on_token = [&](int64_t, int64_t) -> bool {
                          EXPECT_FALSE(model.is_training());
                          throw Stop();
                        }}),
               Stop);
  EXPECT_EQ(modes(), before);
  EXPECT_TRUE(grad_enabled());
  EXPECT_THROW(generate(model, {1, 29}, {}), Error);  // no such token
  EXPECT_EQ(modes(), before);
}

TEST(Generate, EndsWithTheModel) {
  GPT2 model(kGPT2, 5);
  make_uneven(model);
  std::vector<int64_t> prompt(20);
  std::iota(prompt.begin(), prompt.end(), 1);
  const std::vector<std::vector<int64_t>> prompts = {prompt, {4}};
  const std::vector<Generation> g = generate(model, prompts, {.max_new_tokens = 10, .temperature = 0});
  EXPECT_EQ(g[0].tokens, plain_greedy(model, prompt, 5));  // the 24th position gives the last one
  EXPECT_EQ(g[0].reason, FinishReason::kModelFull);
  EXPECT_EQ(g[1].tokens, plain_greedy(model, {4}, 10));
  EXPECT_EQ(g[1].reason, FinishReason::kMaxTokens);
  EXPECT_EQ(generate(model, prompt, {.max_new_tokens = INT64_MAX, .temperature = 0}).tokens, g[0].tokens);
  std::vector<int64_t> whole(24, 3);
  EXPECT_EQ(generate(model, whole, {}).tokens.size(), 1u);
  whole.push_back(3);
  const std::string error = test::error_of([&] { generate(model, whole, {}); });
  EXPECT_NE(error.find("prompt 0 has 25 tokens, but the model has 24 positions"), std::string::npos) << error;
  // Sliding: each token is that of a forward of the last 24.
  const std::vector<Generation> slid = generate(model, prompts,
                                                {.max_new_tokens = 30, .temperature = 0, .slide = true});
  for (size_t row = 0; row < 2; ++row) {
    std::vector<int64_t> text = prompts[row];
    for (const int64_t token : slid[row].tokens) {
      const std::vector<int64_t> window(text.end() - static_cast<std::ptrdiff_t>(std::min<size_t>(24, text.size())),
                                        text.end());
      ASSERT_EQ(plain_greedy(model, window, 1)[0], token) << text.size();
      text.push_back(token);
    }
    EXPECT_EQ(slid[row].tokens.size(), 30u);
  }
}

TEST(Generate, EdgesAndErrors) {
  GPT2 model(kGPT2, 5);
  EXPECT_TRUE(generate(model, std::span<const std::vector<int64_t>>(), {}).empty());
  EXPECT_TRUE(generate(model, {1}, {.max_new_tokens = 0}).tokens.empty());
  EXPECT_NE(test::error_of([&] { generate(model, std::vector<int64_t>(), {}); }).find("prompt 0 is empty"),
            std::string::npos);
  EXPECT_THROW(generate(model, {1}, {.max_new_tokens = -1}), Error);
  EXPECT_THROW(generate(model, {1}, {.stop_strings = {"x"}}), Error);
  EXPECT_THROW(generate(model, {1}, {.stop_tokens = {3, -1}}), Error);
  EXPECT_THROW(generate(model, {1}, {.stop_strings = {""}, .decode = letters}), Error);
  EXPECT_THROW(generate(model, {1}, {.top_p = 2}), Error);
  // A vocabulary of one.
  GPT2 lonely({.vocab_size = 1, .block_size = 8, .n_layer = 1, .n_head = 1, .n_embd = 8});
  EXPECT_EQ(generate(lonely, {0}, {.max_new_tokens = 3}).tokens, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(generate(lonely, {0}, {.max_new_tokens = 3, .temperature = 0}).tokens, (std::vector<int64_t>{0, 0, 0}));
  // All other tokens forbidden: all logits -inf is an error, not a token.
  model.to(kF64);
  const Generation wide = generate(model, {1, 2}, {.max_new_tokens = 4, .temperature = 0});
  EXPECT_EQ(wide.tokens, plain_greedy(model, {1, 2}, 4));
  EXPECT_EQ(generate(model, {1, 2}, {.max_new_tokens = 4, .cache_dtype = kF32}).tokens.size(), 4u);
  {
    const NoGrad off;
    Tensor(model.ln_f.weight).fill_(std::nan(""));
  }
  EXPECT_THROW(generate(model, {1}, {}), Error);
}

// Between training steps: the weights of now, and gradients, modes and the step itself as without it.
// A model of the program's own that returns other shapes than it should.
TEST(Generate, ShapesOfAModelOfYourOwnAreChecked) {
  struct Own : Module<Own>, CausalLM {
    Embedding wte = child("wte", 7, 8);
    Linear lm_head = child("lm_head", 8, 7);
    SelfAttention attn = child("attn", 8, 2);
    int64_t rows = 2, tokens = 7;
    ModuleBase& module() override { return *this; }
    KVCacheOptions cache_options() const override {
      return {.layers = 1, .kv_heads = 2, .max_length = 20, .head_dim = 4};
    }
    Tensor features(const Tensor& idx, KVCache& cache, std::span<const int64_t> counts) override {
      KVCache::Pass pass(cache, idx.size(1), counts);
      const Tensor x = attn(wte(idx), pass.layer(0));
      pass.finish();
      return x.slice(0, {0, rows});
    }
    Tensor head(const Tensor& x) override { return lm_head(x).slice(-1, {0, tokens}); }
  };
  Own model;
  model.to(default_device());
  const std::vector<std::vector<int64_t>> prompts = {{1}, {3}};
  const auto error = [&](int64_t num_beams) {
    return test::error_of(
        [&] { generate(model, prompts, {.max_new_tokens = 3, .temperature = 0, .num_beams = num_beams}); });
  };
  for (const int64_t beams : {1, 3}) {
    model.rows = 2 * beams;
    model.tokens = 7;
    EXPECT_EQ(error(beams), "");
    model.tokens = 0;
    EXPECT_NE(error(beams).find("CausalLM::head must return (..., V) with V > 0"), std::string::npos) << error(beams);
    model.rows = 1;
    EXPECT_NE(error(beams).find("CausalLM::features must return (B, T, C)"), std::string::npos) << error(beams);
  }
}

TEST(Generate, BetweenTrainingSteps) {
  const Tensor idx = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const auto train = [&](bool generates) {
    GPT2Config config = kGPT2;
    config.dropout = 0.1;
    GPT2 model(config, 5);
    optim::AdamW adam(model.parameters(), {.lr = 1e-2});
    manual_seed(7);
    for (int step = 0; step < 3; ++step) {
      model.loss(idx, idx).backward();
      if (generates) {
        EXPECT_EQ(generate(model, {1, 2}, {.max_new_tokens = 6, .temperature = 0}).tokens,
                  plain_greedy(model, {1, 2}, 6));
      }
      adam.step();
      adam.zero_grad();
    }
    return model.wte.weight.to_vector<float>();
  };
  EXPECT_EQ(train(true), train(false));
}

// A hook on a Linear (an adapter) is called as in a plain forward.
struct AddsOne : CallHook {
  int calls = 0;
  void around(const ModuleCall& call, absl::FunctionRef<void()> forward) override {
    ++calls;
    forward();
    *call.result = *call.result + 1.0;
  }
};
TEST(Generate, WithHooksOnLayers) {
  Llama model(kLlama, 5);
  make_uneven(model);
  const std::vector<int64_t> without = generate(model, {1, 2}, {.max_new_tokens = 8, .temperature = 0}).tokens;
  const auto hook = std::make_shared<AddsOne>();
  model.model.layers[0].self_attn.q_proj.call_hook = hook;
  model.model.layers[1].mlp.down_proj.call_hook = hook;
  const std::vector<int64_t> with = generate(model, {1, 2}, {.max_new_tokens = 8, .temperature = 0}).tokens;
  EXPECT_EQ(hook->calls, 16);
  EXPECT_EQ(with, plain_greedy(model, {1, 2}, 8));
  EXPECT_NE(with, without);
}

TEST(Generate, TwoModelsInTwoThreads) {
  GPT2 a(kGPT2, 5);
  Llama b(kLlama, 6);
  make_uneven(a);
  make_uneven(b);
  const GenerationOptions options = {.max_new_tokens = 15, .temperature = 0};
  const std::vector<int64_t> of_a = generate(a, {1, 2}, options).tokens, of_b = generate(b, {3}, options).tokens;
  for (int round = 0; round < 5; ++round) {
    std::vector<int64_t> got_a, got_b;
    std::thread other([&] { got_a = generate(a, {1, 2}, options).tokens; });
    got_b = generate(b, {3}, options).tokens;
    other.join();
    EXPECT_EQ(got_a, of_a);
    EXPECT_EQ(got_b, of_b);
  }
}

}  // namespace
}  // namespace rondo::nn

// explain(): what it says of small models whose fusion can be counted by hand, and its two forms.
#include "rondo/compile/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/log.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::compile {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

class Explain : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

constexpr int kLineOfExp = __LINE__ + 6;
struct Chain : nn::Module<Chain> {
  bool read_a_value = false;
  Tensor forward(const Tensor& x) {
    Tensor y = x + 1.0;
    if (read_a_value) y.item();
    y = ops::exp(y);
    return y * 2.0;
  }
};

struct Repeated : nn::Module<Repeated> {
  Tensor& weight = parameter("weight", Tensor::ones({4, 4}));
  Tensor forward(const Tensor& x_) {
    Tensor x = x_;
    for (int i = 0; i < 3; ++i) x = ops::exp(ops::matmul(x, weight) * 0.1);
    return x;
  }
};

TEST_F(Explain, TheCodeOfAKernelIsPrintedOnce) {
  Repeated model;
  const NoGrad off;
  const Explanation e = explain(model, Tensor::ones({8, 4}));
  ASSERT_EQ(e.regions.size(), 1u);
  ASSERT_EQ(e.regions[0].entries[0].programs[0].kernels, 3);
  const std::string text = to_text(e);
  const auto count = [&](std::string_view part) {
    int n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("| kernel "), 1) << text;
  EXPECT_EQ(count("| the code of kernel 0 of recording 0, forward"), 2) << text;
}

TEST_F(Explain, AFusedChain) {
  Chain model;
  const Explanation e = explain(model, Tensor::ones({8, 16}));
  ASSERT_EQ(e.regions.size(), 1u);
  EXPECT_EQ(e.regions[0].report.name, "Chain");
  EXPECT_EQ(e.regions[0].report.calls, 1);
  ASSERT_EQ(e.regions[0].entries.size(), 1u);
  const EntryExplanation& entry = e.regions[0].entries[0];
  ASSERT_EQ(entry.programs.size(), 1u) << "nothing requires a gradient";
  const ProgramExplanation& program = entry.programs[0];
  EXPECT_EQ(program.name, "forward");
  EXPECT_EQ(program.inputs, std::vector<std::string>{"%0: f32[8, 16]"});
  EXPECT_EQ(program.kernels, 1);
  EXPECT_EQ(program.arena_bytes, 0);
  ASSERT_EQ(program.nodes.size(), 3u);
  EXPECT_EQ(program.nodes[1].op, "exp");
  EXPECT_EQ(program.nodes[1].text, "%2: f32[8, 16] = exp(%1)");
  EXPECT_TRUE(program.nodes[1].file.ends_with("explain_test.cc"));
  EXPECT_EQ(program.nodes[1].line, kLineOfExp);
  ASSERT_EQ(program.launches.size(), 1u);
  const LaunchExplanation& launch = program.launches[0];
  EXPECT_TRUE(launch.generated);
  EXPECT_EQ(launch.nodes, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(launch.sources.size(), 3u);
  EXPECT_TRUE(contains(launch.code, "load @0")) << launch.code;
  constexpr int64_t kBytes = 8 * 16 * 4;
  EXPECT_EQ(launch.bytes_read, kBytes);
  EXPECT_EQ(launch.bytes_written, kBytes);
  EXPECT_EQ(launch.bytes_saved, 4 * kBytes) << "two values are neither written nor read";
  ASSERT_EQ(entry.memory.size(), 1u);
  EXPECT_EQ(entry.memory[0].inputs, kBytes);
  EXPECT_EQ(entry.memory[0].outputs, kBytes);
  EXPECT_EQ(entry.memory[0].kept + entry.memory[0].transients, 0);
}

// What only a view reads stays in its kernel, and a broadcast operand is read once.
TEST_F(Explain, ViewsAndBroadcastOperands) {
  struct Viewed : nn::Module<Viewed> {
    Tensor forward(const Tensor& x) { return ops::exp((x + 1.0).view({1, 8, 16})); }
  } model;
  const Explanation e = explain(model, Tensor::ones({16}).expand({8, 16}));
  const ProgramExplanation& program = e.regions.at(0).entries.at(0).programs.at(0);
  ASSERT_EQ(program.launches.size(), 1u);
  EXPECT_EQ(program.launches[0].bytes_read, 16 * 4);
  EXPECT_EQ(program.launches[0].bytes_written, 8 * 16 * 4);
}

struct Norm : nn::Module<Norm> {
  nn::LayerNorm norm = child("norm", 16);
  Tensor forward(const Tensor& x) { return norm(x); }
};

// What eager execution runs as one op saves nothing by running as one kernel, however many parts it has here.
TEST_F(Explain, PartsOfOneOpAreNotSavings) {
  Norm model;
  const NoGrad off;
  const Explanation e = explain(model, Tensor::ones({8, 16}));
  const ProgramExplanation& program = e.regions.at(0).entries.at(0).programs.at(0);
  ASSERT_EQ(program.launches.size(), 1u);
  EXPECT_EQ(program.launches[0].sources.size(), 1u);
  EXPECT_EQ(program.launches[0].bytes_saved, 0);
  EXPECT_EQ(program.launches[0].bytes_read, (8 * 16 + 2 * 16) * 4);
}

Explanation explain_gpt2() {
  nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16}, 1);
  return explain(model, Tensor::zeros({2, 8}, {kI64}));
}

TEST_F(Explain, ATransformerBlock) {
  const Explanation e = explain_gpt2();
  ASSERT_EQ(e.regions.size(), 1u);
  EXPECT_EQ(e.regions[0].report.layers, 2);
  EXPECT_EQ(e.regions[0].report.entries, 1);
  const EntryExplanation& entry = e.regions[0].entries.at(0);
  ASSERT_EQ(entry.programs.size(), 2u);
  EXPECT_EQ(entry.programs[1].name, "backward");
  EXPECT_GT(entry.kept_bytes, 0);
  size_t launches = 0;
  for (const ProgramExplanation& program : entry.programs) {
    launches += program.launches.size();
    EXPECT_EQ(program.kernels, std::ranges::count(program.launches, true, &LaunchExplanation::generated));
    EXPECT_EQ(program.library_calls, std::ranges::count(program.launches, false, &LaunchExplanation::generated));
    int64_t saved = 0;
    for (size_t i = 0; i < program.launches.size(); ++i) {
      const LaunchExplanation& launch = program.launches[i];
      EXPECT_GT(launch.bytes_read, 0) << launch.name;
      EXPECT_GT(launch.bytes_written, 0) << launch.name;
      EXPECT_FALSE(launch.sources.empty());
      EXPECT_EQ(launch.code.empty(), !launch.generated);
      for (int n : launch.nodes) EXPECT_EQ(program.nodes[static_cast<size_t>(n)].launch, static_cast<int>(i));
      saved += launch.bytes_saved;
    }
    EXPECT_GT(saved, 0);
    for (const NodeExplanation& node : program.nodes) {
      EXPECT_GT(node.line, 0) << node.text;
      EXPECT_TRUE(node.file.ends_with("explain_test.cc")) << node.text << ": " << node.file;
      EXPECT_EQ(contains(node.origin, "gradient of ") || contains(node.origin, "recomputed "),
                program.name == "backward")
          << node.text << ": " << node.origin;
    }
  }
  ASSERT_EQ(entry.memory.size(), launches);
  EXPECT_EQ(entry.memory.front().launch.substr(0, 8), "forward:");
  EXPECT_EQ(entry.memory.back().launch.substr(0, 9), "backward:");
  EXPECT_EQ(entry.memory.front().kept, entry.kept_bytes);
  for (size_t i = 0; i < launches; ++i) {
    const ProgramExplanation& program = entry.programs[entry.memory[i].launch.starts_with("forward") ? 0 : 1];
    EXPECT_LE(entry.memory[i].transients, program.arena_bytes) << entry.memory[i].launch;
  }
}

TEST_F(Explain, TheModelIsLeftAsItWas) {
  Norm model;
  const Regions regions = compile_module(model);
  const std::shared_ptr<nn::CallHook> hook = model.call_hook;
  explain(model, Tensor::ones({8, 16}));
  EXPECT_EQ(model.call_hook, hook);
  EXPECT_EQ(regions.report()[0].calls, 0);
  EXPECT_THROW(explain(model, Tensor::ones({8, 15})), Error);
  EXPECT_EQ(model.call_hook, hook);
}

TEST_F(Explain, TextHasEveryPart) {
  Explanation e = explain_gpt2();
  for (LaunchExplanation& launch : e.regions[0].entries[0].programs[0].launches) {
    EXPECT_EQ(launch.algorithm, 0) << "nothing was tuned";
    if (!launch.generated) launch.algorithm = 3;
  }
  const std::string text = to_text(e);
  EXPECT_TRUE(contains(text, "region " + e.regions[0].report.name + ": 2 layers, 2 calls, 1 recording,")) << text;
  for (const ProgramExplanation& program : e.regions[0].entries[0].programs) {
    for (const LaunchExplanation& launch : program.launches) {
      EXPECT_TRUE(contains(text, "      " + launch.name + ": reads " + format_bytes(launch.bytes_read)));
      for (const std::string& source : launch.sources) EXPECT_TRUE(contains(text, "from " + source));
    }
    for (const NodeExplanation& node : program.nodes) EXPECT_TRUE(contains(text, node.text));
  }
  EXPECT_TRUE(contains(text, "memory: at most "));
  EXPECT_TRUE(contains(text, ", tuned to algorithm 3\n"));
}

// Elements open and close in order, and nothing is fetched from anywhere.
void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find("<html"); (at = html.find('<', at)) != html.npos; ++at) {
    const size_t end = html.find('>', at);
    ASSERT_NE(end, html.npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), tag.npos) << "an unescaped '<' near " << tag.substr(0, 80);
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    } else if (tag.back() != '/' && name != "meta") {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  for (const char* fetched : {"http", "//", "src=", "@import", "url(", "<script", "<link"})
    EXPECT_FALSE(contains(html, fetched)) << fetched;
}

TEST_F(Explain, HtmlIsOneWholePage) {
  Explanation e = explain_gpt2();
  // Names come from the user's program: templates, for one.
  e.regions[0].report.name = "Block<\"a\" & b>";
  const std::string html = to_html(e);
  expect_well_formed(html);
  EXPECT_TRUE(contains(html, "<h2>Block&lt;&quot;a&quot; &amp; b&gt;</h2>"));
  EXPECT_TRUE(contains(html, "<svg"));
  const EntryExplanation& entry = e.regions[0].entries[0];
  std::map<std::string, int> bars;
  for (const MemoryPoint& point : entry.memory) ++bars[point.launch];
  for (const auto& [launch, n] : bars) EXPECT_TRUE(contains(html, "<title>" + launch)) << launch;
  // Every link within the page leads somewhere.
  int links = 0;
  for (size_t at = 0; (at = html.find("href=\"#", at)) != html.npos; ++at, ++links) {
    const std::string target = html.substr(at + 7, html.find('"', at + 7) - at - 7);
    EXPECT_TRUE(contains(html, "id=\"" + target + "\"")) << target;
  }
  EXPECT_GT(links, 20);
}

TEST_F(Explain, BreaksAndUnfusedOpsAreHints) {
  struct Integers : nn::Module<Integers> {
    Tensor forward(const Tensor& x) { return ops::sum(x); }
  };
  Integers integers;
  const Explanation e = explain(integers, Tensor::zeros({8, 16}, {kI64}));
  ASSERT_EQ(e.regions[0].hints.size(), 1u);
  EXPECT_TRUE(contains(e.regions[0].hints[0], "sum is not fused")) << e.regions[0].hints[0];
  EXPECT_TRUE(contains(e.regions[0].hints[0], "explain_test.cc"));
  // Several of one op are one hint, and single numbers none.
  struct Several : nn::Module<Several> {
    Tensor forward(const Tensor& x) { return ops::sum(x) + ops::sum(x * 2) * 3; }
  };
  Several several;
  const Explanation joined = explain(several, Tensor::zeros({8, 16}, {kI64}));
  ASSERT_EQ(joined.regions[0].hints.size(), 1u);
  EXPECT_TRUE(contains(joined.regions[0].hints[0], "sum is not fused 2 times")) << joined.regions[0].hints[0];
  Chain chain;
  chain.read_a_value = true;
  const Explanation broken = explain(chain, Tensor::ones({1}));
  ASSERT_EQ(broken.regions[0].hints.size(), 1u);
  EXPECT_TRUE(contains(broken.regions[0].hints[0], "1 graph break cuts")) << broken.regions[0].hints[0];
}

TEST_F(Explain, ProductsOfF16AreAHint) {
  nn::Linear layer(8, 8);
  const auto hints_under = [&](DType dtype) {
    const amp::Autocast lower(dtype);
    return explain(layer, Tensor::randn({4, 8})).regions[0].hints;
  };
  EXPECT_TRUE(hints_under(kBF16).empty());
  ASSERT_EQ(hints_under(kF16).size(), 1u);
  EXPECT_TRUE(contains(hints_under(kF16)[0], "products of f16 run in f32")) << hints_under(kF16)[0];
}

TEST_F(Explain, RecompilesNameTheirReason) {
  std::vector<std::string> messages;
  log::configure("recompiles");
  const log::Sink previous = log::set_log_sink([&](std::string_view m) { messages.emplace_back(m); });
  Norm model;
  const Regions regions = compile_module(model);
  model(Tensor::ones({4, 16}));
  EXPECT_EQ(regions.report()[0].last_recompile, "");
  EXPECT_TRUE(messages.empty());
  model(Tensor::ones({6, 16}));
  const std::string first = regions.report()[0].last_recompile;
  EXPECT_TRUE(first.starts_with("dim 0 of input #0 (read by layer_norm (")) << first;
  EXPECT_TRUE(first.ends_with("): 4 -> 6")) << first;
  model(Tensor::ones({4, 16}));
  EXPECT_EQ(regions.report()[0].last_recompile, first) << "what is known is not compiled again";
  model.requires_grad_(false);
  model(Tensor::ones({4, 16}));
  EXPECT_EQ(regions.report()[0].last_recompile, "requires_grad of parameter \"norm.weight\": true -> false");
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE(messages[0].starts_with("[rondo recompiles] Norm: dim 0 of input #0")) << messages[0];
  EXPECT_TRUE(contains(regions.summary(), "recorded anew, the last time because requires_grad of parameter"));
  log::set_log_sink(previous);
  log::configure("");
}

// The line inside the region, not that of the region's call.
TEST_F(Explain, BreaksNameTheLineOfTheirCause) {
  struct Broken : nn::Module<Broken> {
    nn::Linear fc = child("fc", 2, 2);
    optim::SGD optimizer{parameters(), {.lr = 0.1}};
    int what = 0, line = 0;
    Tensor forward(const Tensor& x) {
      Tensor y = fc(x);
      if (what == 0) {
        line = __LINE__ + 1;
        y.register_hook([](const Tensor&) { return Tensor(); });
      } else if (what == 1) {
        line = __LINE__ + 1;
        y.retain_grad();
      } else {
        line = __LINE__ + 1;
        optimizer.step({.allow_no_gradients = true});
      }
      return y * 2.0;
    }
  };
  for (int what = 0; what < 3; ++what) {
    Broken model;
    model.what = what;
    const Regions regions = compile_module(model);
    model(Tensor::ones({1, 2}));
    const std::string last_break = regions.report()[0].last_break;
    EXPECT_TRUE(contains(last_break, "explain_test.cc:" + std::to_string(model.line))) << last_break;
  }
}

// After a graph break a call goes on with another recording: that is no recompilation.
TEST_F(Explain, PiecesOfACallAreNotRecompiles) {
  Chain chain;
  chain.read_a_value = true;
  const Regions regions = compile_module(chain);
  for (int i = 0; i < 2; ++i) chain(Tensor::ones({1}));
  EXPECT_EQ(regions.report()[0].entries, 2);
  EXPECT_EQ(regions.report()[0].last_recompile, "");
}

TEST_F(Explain, EveryTopicSpeaks) {
  std::vector<std::string> messages;
  log::configure("graph_breaks,+fusion,output_code,perf_hints");
  const log::Sink previous = log::set_log_sink([&](std::string_view m) { messages.emplace_back(m); });
  Chain chain;
  chain.read_a_value = true;
  const Regions regions = compile_module(chain);
  chain(Tensor::ones({1}));
  auto said = [&](std::string_view begin, std::string_view part) {
    return std::ranges::any_of(messages,
                               [&](const std::string& m) { return m.starts_with(begin) && contains(m, part); });
  };
  EXPECT_TRUE(said("[rondo graph_breaks] Chain: a value is read (", "explain_test.cc:"));
  EXPECT_TRUE(said("[rondo fusion] Chain forward, kernel 0: 2 ops, saves 8 B of 16 B\n  %1: f32[1] = exp(%0)  # exp (",
                   "mul_scalar"));
  EXPECT_TRUE(said("[rondo output_code] Chain forward, kernel 0\nkernel ", "store"));
  EXPECT_FALSE(said("[rondo output_code]", "define")) << "LLVM IR only on request";
  messages.clear();
  forget_unused_kernels();
  log::configure("+output_code");
  struct Unique : nn::Module<Unique> {
    Tensor forward(const Tensor& x) { return ops::exp(ops::exp(ops::exp(x * 3.0))); }
  } unique;
  compile_module(unique);
  unique(Tensor::ones({5, 7}));
  EXPECT_TRUE(said("[rondo output_code] LLVM IR", "define"));
  EXPECT_TRUE(said("[rondo output_code] assembly", ".globl"));
  log::set_log_sink(previous);
  log::configure("");
}

}  // namespace
}  // namespace rondo::compile

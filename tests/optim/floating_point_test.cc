// Note [The host's floating-point state] (runtime/base/floating_point_scope.h): programs in hosts of many settings
// compute what they compute in the default state, and leave settings and flags as they were. Ops one by one:
// tests/runtime/floating_point_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/host_floating_point.h"

namespace rondo {
namespace {

using test::all_host_settings;
using test::FloatingPointRegisters;
using test::HostFloatingPoint;
using test::HostSettings;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The bytes of results.
class Bytes {
 public:
  Bytes& operator<<(const Tensor& t) { return *this << test::bytes_of(t); }
  Bytes& operator<<(const std::string& text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Numbers of all sizes: subnormal ones, and those whose squares overflow. Made before any host has settings.
const std::vector<float> kAllSizes = [] {
  std::vector<float> values;
  for (int i = 0; i < 3 * 277; ++i) values.push_back(std::ldexp(i % 3 == 0 ? -1.3f : 1.7f, i % 277 - 149));
  return values;
}();
Tensor all_sizes(const Dims& sizes) {
  std::vector<float> values;
  for (int64_t i = 0; i < sizes.numel(); ++i) values.push_back(kAllSizes[static_cast<size_t>(i) % kAllSizes.size()]);
  return Tensor::from(values, sizes);
}

// Values that underflow and overflow go through it.
struct Block : nn::Module<Block> {
  nn::LayerNorm norm = child("norm", 32);
  nn::Linear up = child("up", 32, 64), down = child("down", 64, 32);
  Tensor forward(const Tensor& x) {
    const Tensor h = ops::gelu(up(norm(x)));
    return down(h / 3.0) * 0.1 + ops::exp(x * 1e30) * 1e-40 + ops::softmax(ops::where(ops::greater(x, 1e10), x, -kInf));
  }
};

void run_block(Bytes& out, std::optional<compile::CompileOptions> options) {
  manual_seed(3);
  Block block;
  if (options) compile::compile_module(block, *options);
  for (int step = 0; step < 2; ++step) {
    const Tensor x = all_sizes({16, 32}).requires_grad_();
    const Tensor y = block(x);
    ops::sum(ops::where(ops::less(y, kInf), y, 0.0)).backward();
    out << y << x.grad();
  }
  for (const Tensor& p : block.parameters()) out << p.grad();
}

void run_steps(Bytes& out, bool compiled) {
  manual_seed(5);
  Tensor w = Tensor::randn({300, 7}).requires_grad_(), b = Tensor::full({7}, 1e-40).requires_grad_();
  optim::AdamW optimizer(std::vector<Tensor>{w, b}, {.lr = 1e-3, .weight_decay = 0.1});
  if (compiled) optim::compile(optimizer);
  amp::GradScaler scaler({.init_scale = 65536});
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = ops::sum(ops::matmul(all_sizes({8, 300}) * 1e-10, w) + b) * (step == 1 ? 1e300 : 1e-3);
    scaler.scale(loss).backward();
    const optim::StepReport report = scaler.step(optimizer, {.max_norm = 1});
    scaler.update();
    out << std::string(report.skipped() ? "skipped" : "") << w << b;
    optimizer.zero_grad();
  }
  w.set_grad(all_sizes({300, 7}));
  out << optim::clip_grad_norm_(std::vector<Tensor>{w}, 1.0) << w.grad();
}

// What is said of them: a comparison with NaN is an invalid operation, too.
void options_that_are_nan(Bytes& out) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<Tensor> params = {Tensor::zeros({2, 2}).requires_grad_()};
  optim::AdamW adam(params, {});
  adam.track_average();
  params[0].set_grad(Tensor::ones({2, 2}));
  const std::vector<std::function<void()>> mistakes = {
      [&] { optim::AdamW(params, {.lr = nan}); },
      [&] {
        optim::AdamW(params, {.betas = {nan, 0.9}});
      },
      [&] { optim::AdamW(params, {.eps = nan}); },
      [&] { optim::SGD(params, {.momentum = nan}); },
      [&] { optim::Muon(params, {.lr = nan}); },
      [&] { adam.set_lr(nan); },
      [&] { adam.set_lr({[&](int64_t) { return nan; }}, 0); },
      [&] { adam.set_average_decay(nan); },
      [&] { adam.step({.grad_scale = nan}); },
      [&] { adam.step({.max_norm = nan}); },
      [&] { optim::clip_grad_norm_(params, nan); },
      [&] { amp::GradScaler({.init_scale = nan}); },
      [&] { nn::Dropout dropout(nan); },
      [&] { nn::DropPath drop_path(nan); },
      [&] { ops::dropout(params[0], nan); },
  };
  for (const std::function<void()>& mistake : mistakes) {
    std::string said = "nothing";
    try {
      mistake();
    } catch (const Error& error) {
      said = error.what();
    }
    out << said + "\n";
  }
}

struct Program {
  const char* name;
  std::function<void(Bytes&)> run;
};
std::vector<Program> programs() {
  constexpr int64_t n = 1 << 16;
  std::vector<Program> all = {
      {"elementwise",
       [](Bytes& out) {
         const Tensor x = all_sizes({n}), zero = Tensor::zeros({n});
         out << x * 0.5 << x * x << ops::log(x) << ops::exp(x) << ops::rdiv(zero, 1.0) << zero / zero << x.to(kBF16)
             << x.to(kF16);
       }},
      {"products",
       [](Bytes& out) {
         const Tensor x = all_sizes({256, 256});
         out << ops::matmul(x, x) << ops::matmul(x.to(kBF16), x.to(kBF16)) << ops::matmul(x.to(kF64), x.to(kF64));
       }},
      {"convolution",
       [](Bytes& out) {
         const Tensor x = all_sizes({4, 16, 24, 24}).requires_grad_(), w = Tensor::full({8, 16, 3, 3}, 1e-20);
         const Tensor y = ops::conv2d(x, w, Tensor());
         ops::sum(y).backward();
         out << y << x.grad();
       }},
      {"attention",
       [](Bytes& out) {
         manual_seed(1);
         const Tensor q = Tensor::randn({2, 2, 64, 16}).requires_grad_();
         Tensor mask = Tensor::ones({64, 64}).to(kBool);
         mask.slice(0, {0, 8}).fill_(0);  // queries without a key
         const Tensor y = ops::scaled_dot_product_attention(q, q, q, mask);
         ops::sum(y * y).backward();
         out << y << q.grad();
       }},
      {"softmax",
       [](Bytes& out) {
         const Tensor x = ops::where(ops::greater(all_sizes({256, 256}), 1e30), 1.0, -kInf);
         out << ops::softmax(x) << ops::log_softmax(x) << ops::softmax(all_sizes({256, 256}));
       }},
      {"a loss and its gradient",
       [](Bytes& out) {
         const Tensor x = all_sizes({64, 128}).requires_grad_();
         const Tensor y = ops::layer_norm(x, Tensor::ones({128}), Tensor::zeros({128}));
         const Tensor loss = ops::cross_entropy(y * 100.0, Tensor::zeros({64}, {kI64}));
         loss.backward();
         out << loss << x.grad();
       }},
      {"reductions",
       [](Bytes& out) {
         const Tensor x = all_sizes({300, 277});
         out << ops::sum(x) << ops::sum(x, {0}) << ops::mean(x, {1}) << ops::var(x, {1}) << ops::max(x, {1})
             << ops::mean(Tensor::zeros({0})) << ops::cumsum(x, 1);
       }},
      {"printing",
       [](Bytes& out) {
         const Tensor x = all_sizes({9, 9}).to(kCPU);  // its text names a device, which each thread has its own of
         out << x.to_string() << (x * kInf).to_string() << x.to(kBF16).to_string()
             << absl::StrCat(x[0][1].item() == 1.7 ? "" : "rounded");
       }},
      {"options that are NaN", options_that_are_nan},
      {"an optimizer", [](Bytes& out) { run_steps(out, false); }},
      {"a block", [](Bytes& out) { run_block(out, std::nullopt); }},
  };
  if (compile::jit_available()) {
    all.push_back({"a compiled block", [](Bytes& out) { run_block(out, compile::CompileOptions{}); }});
    all.push_back({"an exact block that is replayed", [](Bytes& out) {
                     run_block(out, compile::CompileOptions{.exact = true, .capture = compile::Capture::kReplay});
                   }});
    all.push_back({"a compiled optimizer", [](Bytes& out) { run_steps(out, true); }});
  }
  return all;
}

// The bytes that each program makes. A failure if one changes the state.
std::vector<std::string> results_in(const HostSettings& settings) {
  std::vector<std::string> results;
  for (const Program& program : programs()) {
    Bytes bytes;
    std::vector<FloatingPointRegisters> seen;
    {
      const HostFloatingPoint host(settings);
      seen.emplace_back();
      program.run(bytes);
      seen.emplace_back();
    }
    EXPECT_EQ(seen[1], seen[0]) << program.name << ", " << settings.name();
    results.push_back(bytes.text());
  }
  return results;
}
const std::vector<std::string>& expected() {
  static const std::vector<std::string> results = results_in({});
  return results;
}
void expect_same(const std::vector<std::string>& got, const HostSettings& settings) {
  const std::vector<Program> all = programs();
  ASSERT_EQ(got.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(got[i] == expected()[i]) << all[i].name << ", " << settings.name();
}

// Two threads of the host with settings of their own, after the pool has started with others.
TEST(HostStates, AfterThePoolHasStarted) {
  ASSERT_FALSE(expected().empty());
  const std::vector<HostSettings> all = all_host_settings();
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    std::vector<std::string> first, second;
    std::thread other([&] { second = results_in(all[i + 1]); });
    first = results_in(all[i]);
    other.join();
    expect_same(first, all[i]);
    expect_same(second, all[i + 1]);
  }
}

// FNV-1a.
std::string digest(const std::vector<std::string>& results) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::string& result : results)
    for (const char c : result) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return absl::StrCat("digest ", absl::Hex(hash), "\n");
}

// In a process of its own: the pool, and all that is compiled, are made in that state.
TEST(HostStates, InAProcess) {
  const char* const number = std::getenv("RONDO_TEST_HOST_SETTINGS");
  if (number == nullptr) GTEST_SKIP() << "asked for by HostStates.BeforeThePoolStarts";
  const HostSettings settings = all_host_settings().at(static_cast<size_t>(std::atoi(number)));
  std::printf("\n%s", digest(results_in(settings)).c_str());
}
TEST(HostStates, BeforeThePoolStarts) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const test::TempFolder empty;
  const size_t last = all_host_settings().size() - 1;
  for (size_t i = 0; i <= last; ++i) {
    // One of them, with traps, finds no code that was compiled before.
    const std::string command = absl::StrCat(i == last ? absl::StrCat("RONDO_CACHE_DIR=", empty.path(), " ") : "",
                                             "RONDO_TEST_HOST_SETTINGS=", i, " ", program,
                                             " --gtest_filter=HostStates.InAProcess 2>&1");
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
    EXPECT_EQ(::pclose(pipe), 0) << text;
    EXPECT_NE(text.find(digest(expected())), std::string::npos) << all_host_settings()[i].name() << "\n" << text;
  }
}

}  // namespace
}  // namespace rondo

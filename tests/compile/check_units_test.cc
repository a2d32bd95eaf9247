// RONDO_CHECK=units: a wrong rule of lowering is planted, and the op that it belongs to is named.
#include "rondo/compile/exec/check_units.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/exec/reproduce.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/generate.h"

namespace rondo {
namespace {

using compile::LoopKernel;

// sqrt(a) becomes |a|.
void enlarge_roots(LoopKernel& kernel) {
  for (compile::Stage& stage : kernel.stages)
    for (std::vector<int32_t>* list : {&stage.row, &stage.column})
      for (int32_t id : *list) {
        compile::Instr& instr = kernel.instrs[static_cast<size_t>(id)];
        if (instr.op == LoopOp::kSqrt) instr.op = LoopOp::kAbs;
      }
}
// Wrong only where a kernel takes both a root and a magnitude.
void confuse_pairs(LoopKernel& kernel) {
  bool roots = false, magnitudes = false;
  for (const compile::Instr& instr : kernel.instrs) {
    roots = roots || instr.op == LoopOp::kSqrt;
    magnitudes = magnitudes || instr.op == LoopOp::kAbs;
  }
  if (roots && magnitudes) enlarge_roots(kernel);
}

void make_nan(LoopKernel& kernel) {
  for (compile::Instr& instr : kernel.instrs)
    if (instr.op == LoopOp::kConst) instr.value = NAN;
}
void negate_magnitudes(LoopKernel& kernel) {
  for (compile::Instr& instr : kernel.instrs)
    if (instr.op == LoopOp::kAbs) instr.op = LoopOp::kNeg;
}

// A pass that makes sums of products: each kernel computes what the graph says.
void add_for_multiply(std::string_view pass, compile::Graph& graph) {
  if (pass != "segments") return;
  for (compile::GraphNode& node : graph.nodes)
    if (node.op == find_op("mul")) node.op = find_op("add");
}

class CheckUnits : public test::BlockTest {
 protected:
  void SetUp() override {
    BlockTest::SetUp();
    setenv("RONDO_REPRODUCERS", folder.path().c_str(), 1);
    compile::set_check_units(true);
  }
  void TearDown() override {
    compile::miscompile_for_tests = nullptr;
    compile::misrewrite_for_tests = nullptr;
    compile::set_check_units(false);
    unsetenv("RONDO_REPRODUCERS");
    BlockTest::TearDown();
  }
  // The message of a training step of this function.
  std::string error(const std::function<Tensor(const Tensor&)>& body, bool exact = true) {
    return test::error_of<InternalError>([&] {
      auto f = compile::compile(body, {.exact = exact});
      const Tensor x = ops::abs(Tensor::randn({4, 6})).detach().requires_grad_();
      ops::sum(f(x)).backward();
    });
  }
  // The output of the file that a message names when it runs again.
  static std::string replayed(const std::string& message) {
    const size_t at = message.find("rondo_replay ");
    EXPECT_NE(at, std::string::npos) << message;
    std::string path = message.substr(at + 13);
    path.resize(path.find(')'));
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return test::error_of<InternalError>([&] { replay(compile::parse_reproducer(text.str())); });
  }
  test::TempFolder folder;
};

TEST_F(CheckUnits, NamesTheOpAndItsLine) {
  compile::miscompile_for_tests = &enlarge_roots;
  int line = 0;
  const std::string message = error([&](const Tensor& x) {
    const Tensor warm = ops::tanh(x) * 0.5 + x;
    line = __LINE__ + 1;
    const Tensor root = ops::sqrt(warm);
    return ops::exp(root) + warm;
  });
  EXPECT_NE(message.find(absl::StrCat("The smallest part: sqrt (", __FILE__, ":", line)), std::string::npos) << message;
  EXPECT_NE(message.find("eager "), std::string::npos) << message;
  EXPECT_NE(message.find("it runs in one kernel with 5 other ops"), std::string::npos) << message;
  EXPECT_EQ(message.find(", exp"), std::string::npos) << message;
  // The file shows it without the program; and shows nothing once the rule is right.
  EXPECT_NE(replayed(message).find("compiled code computes other numbers"), std::string::npos) << message;
  compile::miscompile_for_tests = nullptr;
  EXPECT_EQ(replayed(message), "");
}

TEST_F(CheckUnits, NamesTwoOpsThatAreWrongTogether) {
  compile::miscompile_for_tests = &confuse_pairs;
  const std::string message = error([&](const Tensor& x) {
    const Tensor y = ops::sqrt(x) * 0.5 + x;
    return ops::exp(ops::abs(y)) * 3.0 + y;
  });
  EXPECT_NE(message.find("sqrt ("), std::string::npos) << message;
  EXPECT_NE(message.find("abs ("), std::string::npos) << message;
  EXPECT_EQ(message.find("exp ("), std::string::npos) << message;
}

TEST_F(CheckUnits, ANaNIsADifference) {
  compile::miscompile_for_tests = &make_nan;
  for (bool exact : {true, false}) {
    const std::string message = error([](const Tensor& x) { return ops::tanh(x); }, exact);
    EXPECT_NE(message.find("compiled nan"), std::string::npos) << message;
  }
}

TEST_F(CheckUnits, InExactModeZerosHaveSigns) {
  compile::miscompile_for_tests = &negate_magnitudes;
  const auto zero = [](const Tensor& x) { return ops::abs((x - x).detach()); };
  const NoGrad off;
  const auto said = [&](bool exact) {
    return test::error_of<InternalError>([&] { compile::compile(zero, {.exact = exact})(Tensor::ones({4, 6})); });
  };
  EXPECT_NE(said(true).find("eager 0.0, compiled -0.0"), std::string::npos) << said(true);
  EXPECT_EQ(said(false), "");
}

// A result that is also read in its own kernel is compared, though what is made of it there hides that it is wrong.
TEST_F(CheckUnits, WhatIsReadInsideAndOutsideIsCompared) {
  compile::miscompile_for_tests = &enlarge_roots;
  Tensor escaped;
  const std::string message = error([&](const Tensor& x) {
    escaped = ops::sqrt(x);
    return escaped * 0.0 + x;
  });
  EXPECT_NE(message.find("The smallest part: sqrt ("), std::string::npos) << message;
}

// In a backward, too, and in default mode.
TEST_F(CheckUnits, NamesAGradient) {
  compile::miscompile_for_tests = &enlarge_roots;
  for (bool exact : {true, false}) {
    const std::string message = test::error_of<InternalError>([&] {
      auto f = compile::compile([](const Tensor& x) { return ops::sqrt(x) * x; }, {.exact = exact});
      const Tensor x = ops::abs(Tensor::randn({4, 6})).detach().requires_grad_();
      compile::miscompile_for_tests = nullptr;
      const Tensor y = f(x);  // forward and backward are compiled
      compile::miscompile_for_tests = &enlarge_roots;
      ops::sum(y).backward();
      auto g = compile::compile([](const Tensor& x) { return ops::rsqrt(x) * x; }, {.exact = exact});
      ops::sum(g(x)).backward();
    });
    EXPECT_NE(message.find("sqrt"), std::string::npos) << message;
  }
}

// What the passes make of a graph is compared with what they were given, forward and backward.
TEST_F(CheckUnits, NamesTheWrongPass) {
  const auto said = [&](const std::function<Tensor(const Tensor&)>& body, bool exact) {
    compile::misrewrite_for_tests = &add_for_multiply;
    const std::string message = error(body, exact);
    EXPECT_NE(message.find("the pass \"segments\" makes another function of it (RONDO_DISABLE=segments)"),
              std::string::npos)
        << message;
    EXPECT_NE(replayed(message).find("compiled code computes other numbers"), std::string::npos) << message;
    compile::misrewrite_for_tests = nullptr;
    EXPECT_EQ(replayed(message), "");
    EXPECT_EQ(error(body, exact), "");
  };
  for (const bool exact : {true, false}) {
    said([](const Tensor& x) { return ops::tanh(x) * x; }, exact);
    said([](const Tensor& x) { return ops::exp(x); }, exact);  // the gradient alone has a product
  }
}

// Floats that change from call to call, in programs that are compiled once.
TEST_F(CheckUnits, OtherFloatsPass) {
  double scale = 1.5;
  auto f = compile::compile([&](const Tensor& x) { return (ops::tanh(x) + 0.5) * scale - x * (scale + 1.0); },
                            {.exact = true});
  for (const double s : {1.5, 2.5, -0.75}) {
    scale = s;
    const Tensor x = Tensor::randn({4, 6}).requires_grad_();
    EXPECT_EQ(test::error_of<InternalError>([&] { ops::sum(f(x)).backward(); }), "") << s;
  }
}

// A normalisation takes the mean away, so a bias before it has no gradient: what is left is the rounding of its terms.
TEST_F(CheckUnits, AGradientThatIsOnlyRoundingPasses) {
  struct Net : nn::Module<Net> {
    nn::Conv2d conv = child("conv", 3, 8, 3, nn::Conv2dOptions{.padding = 1});
    nn::BatchNorm2d norm = child("norm", 8);
    Tensor forward(const Tensor& x) { return ops::relu(norm(conv(x))); }
  };
  for (const int64_t size : {9, 16, 33})
    for (const DType dtype : {kF32, kF64}) {
      Net net;
      net.to(dtype);
      const compile::Regions regions = compile::compile_module(net);
      for (int step = 0; step < 3; ++step) {
        const Tensor x = Tensor::randn({4, 3, size, size}).to(dtype);
        EXPECT_EQ(test::error_of<InternalError>([&] { ops::sum(ops::square(net(x))).backward(); }), "")
            << size << ", " << name_of(dtype);
      }
    }
}

// Rounding excuses no more than it does: a wrong rule beside such a number is seen.
TEST_F(CheckUnits, AWrongRuleBesideACancellationIsSeen) {
  compile::miscompile_for_tests = &enlarge_roots;
  const std::string message = error(
      [](const Tensor& x) {
        const Tensor y = x * 3.0, nothing = ops::sum(y - ops::mean(y, {0}, true), {0});
        return nothing + ops::sqrt(x) * 1e-3;
      },
      /*exact=*/false);
  EXPECT_NE(message.find("sqrt"), std::string::npos) << message;
}

// The ops run eagerly when the modules that called them have returned.
TEST_F(CheckUnits, ABadIndexNamesTheUsersLine) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "a stance forbids to compile");
  struct LookUp : nn::Module<LookUp> {
    nn::Embedding table = child("table", 4, 6);
    uint32_t line = 0;
    Tensor forward(const Tensor& index) {
      line = std::source_location::current().line() + 1;
      const Tensor rows = table(index);
      return ops::tanh(rows) * 2.0;
    }
  } module;
  for (const bool checks : {true, false}) {
    compile::set_check_units(checks);
    auto f = compile::compile([&](const Tensor& index) { return module(index); });
    const std::string error = test::error_of([&] { f(Tensor::from<int64_t>({1, 9}, {2})); });
    EXPECT_NE(error.find(absl::StrCat("check_units_test.cc:", module.line)), error.npos) << error;
  }
  // Eagerly, too, where a stance forbids to compile.
  compile::set_check_units(false);
  compile::set_stance(compile::Stance::kEagerOnRecompile);
  auto f = compile::compile([&](const Tensor& index) { return module(index); });
  f(Tensor::from<int64_t>({1, 2}, {2}));
  const std::string error = test::error_of([&] { f(Tensor::from<int64_t>({1, 9, 1}, {3})); });
  compile::set_stance(compile::Stance::kDefault);
  EXPECT_NE(error.find(absl::StrCat("check_units_test.cc:", module.line)), error.npos) << error;
}

TEST_F(CheckUnits, UnknownChecksAreRefused) {
  EXPECT_TRUE(compile::parse_checks("units").units);
  EXPECT_FALSE(compile::parse_checks("").units);
  EXPECT_FALSE(compile::parse_checks(nullptr).units);
  EXPECT_FALSE(compile::parse_checks("floats").units);
  const compile::Checks both = compile::parse_checks("floats,units");
  EXPECT_TRUE(both.units && both.floats);
  EXPECT_EQ(test::error_of([] { compile::parse_checks("units,unit"); }),
            "RONDO_CHECK: no check \"unit\". Checks: units, floats");
}

// Right programs pass: nothing is reported where nothing is wrong.
TEST_F(CheckUnits, RandomProgramsPass) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  for (uint64_t seed = 7000; seed < 7060; ++seed) {
    const fuzz::Program program = fuzz::generate(seed, {.max_steps = 10, .large = 0.02});
    try {
      const std::string what = fuzz::difference(program, {.exact = true, .default_mode = false});
      EXPECT_EQ(what, "") << "seed " << seed << "\n" << to_string(program);
    } catch (const InternalError& e) {
      ADD_FAILURE() << "seed " << seed << ": " << e.what() << "\n" << to_string(program);
    }
  }
}

}  // namespace
}  // namespace rondo

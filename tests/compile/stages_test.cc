// RONDO_DISABLE: any stage of the compiler can be left out, and results keep their bits.
#include "rondo/compile/stages/stages.h"

#include "absl/strings/str_join.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/pipeline.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/generate.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using compile::CompilerStage;
using compile::disable_stages;

class Stages : public test::BlockTest {
 protected:
  void TearDown() override {
    disable_stages("");
    BlockTest::TearDown();
  }
  // The report of this block's step, equal to eager's in every bit, without a stage.
  compile::RegionReport report_without(const std::string& stages, const test::Block::Body& body) {
    disable_stages(stages);
    SCOPED_TRACE(stages);
    expect_as_eager(body, test::one_step);
    return report;
  }
};

TEST_F(Stages, AreChosenByName) {
  for (const std::string& name : compile::stage_names(compile::StageUse::kDisable)) {
    disable_stages(name);
    const std::optional<CompilerStage> stage = compile::find_stage(name, compile::StageUse::kDisable);
    ASSERT_TRUE(stage.has_value()) << name;
    EXPECT_EQ(compile::name_of(*stage), name);
    EXPECT_FALSE(compile::enabled(*stage));
    EXPECT_EQ(compile::disabled_stages(), compile::bit_of(*stage));
  }
  disable_stages("fuse, relax");
  EXPECT_FALSE(compile::enabled(CompilerStage::kFuse));
  EXPECT_FALSE(compile::enabled(CompilerStage::kRelax));
}

TEST_F(Stages, UnknownNamesAreListed) {
  disable_stages("cse");
  EXPECT_EQ(test::error_of([] { disable_stages("fuse,fusion"); }),
            "RONDO_DISABLE: no stage \"fusion\". Stages: layouts, recompute, decompose, segments, cse, dce, join, "
            "assemble, collectives, products, split, widen, fuse, epilogues, relax, reuse, cache");
  EXPECT_NE(test::error_of([] { disable_stages("partition"); }).find("no stage \"partition\""), std::string::npos);
  EXPECT_EQ(absl::StrJoin(compile::stage_names(compile::StageUse::kDump), " "),
            "differentiate layouts partition input decompose segments cse dce join assemble collectives products split "
            "widen fuse lower");
  EXPECT_EQ(absl::StrJoin(compile::stage_names(compile::StageUse::kPlant), " "),
            "record compile differentiate layouts partition verify decompose segments cse dce join assemble "
            "collectives products split widen fuse lower schedule plan emit place run");
  EXPECT_FALSE(compile::enabled(CompilerStage::kCse));  // as before
}

// Compiled equals eager without any one stage, without all of them, and the other way round.
TEST_F(Stages, RandomProgramsKeepTheirBits) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  std::vector<std::string> choices = compile::stage_names(compile::StageUse::kDisable);
  choices.push_back(absl::StrJoin(choices, ","));
  uint64_t seed = 5000;
  for (const std::string& choice : choices) {
    disable_stages(choice);
    for (int i = 0; i < 12; ++i, ++seed) {
      const fuzz::Program program = fuzz::generate(seed, {.max_steps = 10, .large = 0.02});
      const std::string what = fuzz::difference(program, {.exact = true, .default_mode = i % 3 == 0});
      EXPECT_EQ(what, "") << "without " << choice << ", seed " << seed << "\n" << to_string(program);
    }
  }
}

TEST_F(Stages, AreReallyLeftOut) {
  // A chain of elementwise ops is one kernel, or one each.
  const auto chain = [](test::Block&, const Tensor& x) -> test::Tensors { return {ops::exp(ops::tanh(x) * 0.5) + x}; };
  const int fused = report_without("", chain).kernels;
  EXPECT_GT(report_without("fuse", chain).kernels, fused + 3);
  // A product that is recorded twice.
  const auto twice = [](test::Block& b, const Tensor& x) -> test::Tensors {
    return {ops::matmul(x, b.weight) + ops::matmul(x, b.weight)};
  };
  const int calls = report_without("", twice).library_calls;
  EXPECT_GT(report_without("cse", twice).library_calls, calls);
  // What the backward reads: of exp(tanh(x)), tanh(x) is computed again.
  const auto deep = [](test::Block&, const Tensor& x) -> test::Tensors {
    return {ops::gelu(ops::tanh(ops::exp(ops::sigmoid(x))))};
  };
  const int64_t kept = report_without("", deep).kept_bytes;
  EXPECT_GT(report_without("recompute", deep).kept_bytes, kept);
  // The folder of kernels.
  disable_stages("cache");
  EXPECT_EQ(compile::disk_cache_options().folder, "");
}

// What inputs_needed() says of each op's backward, without most of the passes, is what all of them leave.
TEST_F(Stages, NeededInputsAreThoseThatThePassesLeave) {
  int graphs = 0;
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    if (spec == nullptr || op->overwrites >= 0 || op->grad == nullptr) continue;
    for (const test::OpSample& sample : test::samples_of(*spec)) {
      SCOPED_TRACE(std::string(op->name) + ": " + sample.label);
      std::vector<Tensor> inputs = sample.inputs_as(kF32);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined() && is_floating(inputs[i].dtype()) && !spec->is_constant(i)) inputs[i].requires_grad_();
      const compile::Graph forward = compile::record(
          [&] { return test::apply_op(*op, inputs, sample.attrs, sample.n_outputs); });
      compile::Arriving arriving;
      for (size_t i = 0; i < forward.outputs.size(); ++i) arriving.gradients.push_back(spec->is_differentiable(i));
      const compile::Graph backward = compile::derive_backward(forward, arriving).graph;
      // Without the pass that reads of a whole only the parts that are needed.
      for (const char* off : {"split", "split,dce", "split,decompose,segments"}) {
        disable_stages(off);
        EXPECT_EQ(compile::inputs_needed(backward), compile::inputs_read(compile::run_pipeline(backward, {}))) << off;
      }
      ++graphs;
    }
  }
  EXPECT_GT(graphs, 100);
}

// One region, two settings: what was compiled under one is not run under the other.
TEST_F(Stages, SettingsArePartOfTheKey) {
  NoGrad off;
  auto f = compile::compile([](const Tensor& x) { return ops::exp(ops::tanh(x)) + x; }, {.exact = true});
  const Tensor x = Tensor::randn({4, 6});
  const Tensor expected = f(x);
  EXPECT_EQ(f.regions().report()[0].kernels, 1);
  disable_stages("fuse");
  EXPECT_TRUE(test::same_bits(f(x), expected));
  EXPECT_EQ(f.regions().report()[0].kernels, 3);
  EXPECT_EQ(f.regions().report()[0].entries, 2);
  disable_stages("");
  f(x);
  EXPECT_EQ(f.regions().report()[0].entries, 2);
}

}  // namespace
}  // namespace rondo

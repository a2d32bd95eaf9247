// A stage that fails leaves a file; the file fails again, in this process and in the tool.
#include "rondo/compile/stages/reproducer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "rondo/compile/capture/trace.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/exec/reproduce.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/derivation.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/paths.h"

namespace rondo::compile {
namespace {

namespace fs = std::filesystem;

// Reproducers go to a folder of the test's own.
class Reproducers : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("rondo_reproducers_" + std::to_string(getpid()));
    setenv("RONDO_REPRODUCERS", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("RONDO_REPRODUCERS");
    fs::remove_all(folder_);
  }

  // The path in " (to reproduce: rondo_replay PATH)".
  static std::string path_in(const std::string& error) {
    const std::string mark = "rondo_replay ";
    const size_t begin = error.find(mark);
    return begin == error.npos ? "" : error.substr(begin + mark.size(), error.rfind(')') - begin - mark.size());
  }
  static std::string contents(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Exit code and stderr of the tool.
  std::pair<int, std::string> run_tool(const std::string& path) const {
    const std::string log = (folder_ / "stderr").string();
    const int status = std::system((std::string(tests::kReplay) + " " + path + " >/dev/null 2>" + log).c_str());
    return {WEXITSTATUS(status), contents(log)};
  }
  // The exception that `body` throws, as E.
  template <class E, class Body> static std::string thrown(Body body) {
    try {
      body();
    } catch (const E& e) {
      return e.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  fs::path folder_;
};

constexpr const char* kGoodGraph =
    "input %0: f32[4, 8]\n%1: f32[4, 8] = relu(%0)\n%2: f32[4, 8] = exp(%1)\nreturn %2\n";
// A result that is larger than its op makes it.
constexpr const char* kBadGraph = "input %0: f32[4, 8]\n%1: f32[4, 9] = relu(%0)\nreturn %1\n";

TEST_F(Reproducers, ABadGraphIsFoundAndReplayed) {
  const std::string error = thrown<InternalError>([] { run_pipeline(parse_graph(kBadGraph), {}); });
  EXPECT_NE(error.find("the dtype or the sizes of %1 are not what relu gives"), error.npos) << error;
  const std::string path = path_in(error);
  ASSERT_TRUE(fs::exists(path)) << error;
  EXPECT_EQ(fs::path(path).parent_path(), folder_);
  const Reproducer r = parse_reproducer(contents(path));
  EXPECT_EQ(r.stage, "verify");
  EXPECT_EQ(to_string(*r.graph), kBadGraph);
  EXPECT_THROW(replay(r), InternalError);
  const auto [code, message] = run_tool(path);
  EXPECT_EQ(code, 1);
  EXPECT_NE(message.find("stage verify fails: internal error: graph: the dtype or the sizes of %1"), message.npos)
      << message;
  // Equal failures share a file, and nothing else is left behind.
  EXPECT_EQ(path_in(thrown<InternalError>([] { run_pipeline(parse_graph(kBadGraph), {}); })), path);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "the reproducer and stderr";
}

// The tool has no code of a program's own ops, and says how to give it some.
TEST_F(Reproducers, AnOpOfTheProgramsOwn) {
  OpDef mine = *find_op("relu");
  mine.name = "my_relu";
  fs::create_directories(folder_);
  const std::string path = (folder_ / "mine.txt").string(),
                    text = "stage dce\ninput %0: f32[4, 8]\n%1: f32[4, 8] = my_relu(%0)\nreturn %1\n";
  std::ofstream(path) << text;
  const auto [code, message] = run_tool(path);
  EXPECT_EQ(code, 2);
  EXPECT_NE(message.find("line 3: no op \"my_relu\""), message.npos) << message;
  EXPECT_NE(message.find("list it in tests/replay/own_ops.cc"), message.npos) << message;
  const OpDef* const own[] = {&mine};
  const Reproducer r = parse_reproducer(text, own);
  EXPECT_EQ(r.graph->nodes[0].op, &mine);
  EXPECT_EQ("stage dce\n" + replay(r), text);
}

TEST_F(Reproducers, EachPassCanBeReplayed) {
  const Graph graph = parse_graph(kGoodGraph);
  for (const CompilerStage pass : passes_of({.exact = false})) {
    const std::string error = thrown<InternalError>([&] {
      reproducible({.stage = pass, .text = [&] { return to_string(graph); }},
                   []() -> Graph { throw InternalError("two\nlines"); });
    });
    EXPECT_TRUE(error.starts_with("two\nlines (to reproduce: ")) << error;
    const Reproducer r = parse_reproducer(contents(path_in(error)));
    EXPECT_EQ(r.stage, name_of(pass));
    EXPECT_EQ(replay(r), kGoodGraph) << "nothing to simplify";
    EXPECT_EQ(run_tool(path_in(error)), (std::pair<int, std::string>{0, "stage " + r.stage + " works\n"}));
  }
}

TEST_F(Reproducers, FusionAndLoweringCanBeReplayed) {
  const Graph graph = parse_graph(kGoodGraph);
  const std::vector<Unit> units = fuse(graph);
  ASSERT_EQ(units.size(), 1u);
  const std::vector<bool> needed{false, false, true};
  auto fail = []() -> int { throw Error("no"); };
  std::string error = thrown<Error>(
      [&] { reproducible({.stage = CompilerStage::kFuse, .text = [&] { return to_string(graph); }}, fail); });
  EXPECT_EQ(replay(parse_reproducer(contents(path_in(error)))), to_string(graph, units));
  error = thrown<Error>([&] {
    reproducible({.stage = CompilerStage::kLower, .text = [&] { return lower_input(graph, units[0], needed); }}, fail);
  });
  const Reproducer r = parse_reproducer(contents(path_in(error)));
  EXPECT_EQ(r.unit->nodes, units[0].nodes);
  EXPECT_EQ(r.unit->rows, units[0].rows);
  EXPECT_EQ(r.unit->cols, units[0].cols);
  EXPECT_TRUE(r.unit->fused);
  EXPECT_EQ(r.needed, needed);
  EXPECT_EQ(replay(r), to_string(lower(graph, units[0], needed).kernel));
}

constexpr const char* kRecording =
    "input %0: f32[4, 8] grad leaf\n%1: f32[4, 8] grad = exp(%0)\n%2: f32[4, 8] grad = tanh(%1)\nreturn %1 %2\n";

TEST_F(Reproducers, TheStagesOfADerivationCanBeReplayed) {
  const Graph recorded = parse_graph(kRecording);
  const Arriving arriving{.gradients = {false, true}};
  const Derivation how{.arriving = &arriving, .lays_out = true, .options = {.recompute = Recompute::kFull}};
  for (const CompilerStage stage :
       {CompilerStage::kDifferentiate, CompilerStage::kLayouts, CompilerStage::kPartition}) {
    const std::string name(name_of(stage));
    SCOPED_TRACE(name);
    plant_failure(name);
    const std::string error = thrown<InternalError>([&] { derive(recorded, how); });
    plant_failure("");
    EXPECT_NE(error.find("planted in stage \"" + name + "\""), error.npos) << error;
    const Reproducer r = parse_reproducer(contents(path_in(error)));
    EXPECT_EQ(r.stage, name);
    EXPECT_EQ(to_string(*r.graph), kRecording);
    EXPECT_EQ(r.arriving.gradients, arriving.gradients);
    EXPECT_FALSE(r.options.exact);
    EXPECT_EQ(r.recompute.recompute, Recompute::kFull);
    EXPECT_EQ(replay(r), to_string(derive(recorded, how, stage)));
    EXPECT_EQ(run_tool(path_in(error)), (std::pair<int, std::string>{0, "stage " + name + " works\n"}));
  }
}

TEST_F(Reproducers, ADerivationIsReplayedAsItRan) {
  const Reproducer r = parse_reproducer(std::string("stage partition\n") + kRecording +
                                        "recompute 3 4096\ngradients 1\ntotals\nowned 0\nin_other_layout 0 1\n"
                                        "in_parts 0\nsaved 2 1\n");
  EXPECT_TRUE(r.options.exact);
  EXPECT_EQ(r.recompute.recompute, Recompute::kBudget);
  EXPECT_EQ(r.recompute.recompute_budget, 4096);
  EXPECT_EQ(r.arriving.gradients, (std::vector<bool>{false, true}));
  EXPECT_EQ(r.arriving.totals, std::vector<bool>{false});
  EXPECT_EQ(r.arriving.owned, std::vector<bool>{true});
  EXPECT_EQ(r.arriving.in_other_layout, (std::vector<bool>{true, true}));
  EXPECT_EQ(r.arriving.in_parts, std::vector<bool>{true});
  EXPECT_EQ(r.saved, (std::vector<ValueId>{2, 1}));
  for (const char* bad : {"recompute 4 0\n", "gradients 2\n", "totals 1\n", "saved 3\n"})
    EXPECT_THROW(parse_reproducer(std::string("stage partition\n") + kRecording + bad), Error) << bad;
}

// A gradient rule's answer to the user is eager execution's, and leaves no file.
TEST_F(Reproducers, AnOpWithoutAGradientIsNoFailure) {
  OpDef mine = *find_op("relu");
  mine.name = "my_relu";
  mine.grad = nullptr;
  const OpDef* const own[] = {&mine};
  const Graph recorded = parse_graph("input %0: f32[2] grad leaf\n%1: f32[2] grad = my_relu(%0)\nreturn %1\n", own);
  const Arriving arriving;
  const std::string error = thrown<Error>([&] { derive(recorded, {.arriving = &arriving}); });
  EXPECT_NE(error.find("backward of my_relu: it has no gradient"), error.npos) << error;
  EXPECT_EQ(error.find("to reproduce"), error.npos) << error;
  EXPECT_FALSE(fs::exists(folder_));
}

// What a stage did besides the graph that it was given: the mode of a pass, what products do on their results.
TEST_F(Reproducers, StagesAreReplayedAsTheyRan) {
  const Graph graph = parse_graph(kGoodGraph);
  for (const PassOptions& options : {PassOptions{}, {.exact = false}, {.exact = false, .gathers_sums = true}}) {
    const Reproducer r = parse_reproducer("stage products\n" + to_string(options) + to_string(graph));
    EXPECT_EQ(r.options.exact, options.exact);
    EXPECT_EQ(r.options.gathers_sums, options.gathers_sums);
  }
  const std::string product =
      "input %0: f32[8, 8]\ninput %1: f32[8, 8]\n%2: f32[8, 8] = matmul(%0, %1)\n"
      "%3: f32[8, 8] = add(%2, %0)\nreturn %3\n";
  const EpilogueChains chains{{1}, {}};
  const Reproducer joined = parse_reproducer("stage fuse\n" + product + to_string(chains)),
                   apart = parse_reproducer("stage fuse\n" + product);
  EXPECT_EQ(joined.epilogues, chains);
  const Graph of_product = parse_graph(product);
  EXPECT_EQ(replay(joined), to_string(of_product, fuse(of_product, chains)));
  EXPECT_NE(replay(joined), replay(apart));
  for (const char* bad : {"epilogues\n", "epilogues 2\n", "epilogues 0 -1\n"})
    EXPECT_THROW(parse_reproducer("stage fuse\n" + product + bad), Error) << bad;
}

// A unit that adds up segments of rows: which value says where they begin is a part of its reproducer.
TEST_F(Reproducers, AUnitOfSegmentsIsLoweredAgain) {
  const Graph graph = parse_graph(
      "input %0: f32[6, 4]\ninput %1: i64[4]\n%2: f32[6, 4] = mul(%0, %0)\n"
      "%3: f32[3, 4] = sum_segments(%2, %1)\nreturn %3\n");
  const std::vector<Unit> units = fuse(graph);
  const std::vector<bool> needed = values_needed(graph, units);
  int segments = 0;
  for (const Unit& unit : units) {
    if (unit.starts == kNoValue) continue;
    ++segments;
    const std::string text = "stage lower\n" + lower_input(graph, unit, needed);
    EXPECT_EQ(replay(parse_reproducer(text)), to_string(lower(graph, unit, needed).kernel));
    std::string bad = text;
    const size_t at = bad.find("starts=");
    bad.replace(at, bad.find(' ', at) - at, "starts=9");
    EXPECT_NE(thrown<Error>([&] { parse_reproducer(bad); }).find("9 is out of range"), bad.npos);
  }
  EXPECT_EQ(segments, 1);
}

constexpr const char* kKernel =
    "kernel k rows=1 cols=100 split_columns\n  @0: f32 col*1\n  @1: f32 col*1 output\n  stage\n    col %0: f32 = load "
    "@0\n"
    "    col %1: f32 = sqrt %0\n    col %2: f32 = store %1 @1\n";

TEST_F(Reproducers, AKernelIsCompiledAndCompared) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  fs::create_directories(folder_);
  const std::string path = (folder_ / "kernel.txt").string();
  std::ofstream(path) << kKernel;
  EXPECT_EQ(run_tool(path), (std::pair<int, std::string>{0, "stage emit works\n"}));
  std::string broken = kKernel;
  broken.replace(broken.find("sqrt %0"), 7, "sqrt %2");
  std::ofstream(path) << broken;
  const auto [code, message] = run_tool(path);
  EXPECT_EQ(code, 1);
  EXPECT_NE(message.find("stage emit fails: "), message.npos) << message;
}

// As Program::compile does for each kernel when some are refused.
TEST_F(Reproducers, ABadKernelIsSaved) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  LoopKernel kernel = parse_loop_kernel(kKernel);
  kernel.instrs[2].index = 0;  // stores to an input
  const std::string error = thrown<InternalError>([&] {
    run_reproducible({.stage = CompilerStage::kEmit, .text = [&] { return to_string(kernel); }}, [&] {
      compile_kernels({&kernel, 1});
    });
  });
  EXPECT_NE(error.find("stores to an input"), error.npos) << error;
  const Reproducer r = parse_reproducer(contents(path_in(error)));
  EXPECT_EQ(to_string(*r.kernel), to_string(kernel));
  EXPECT_THROW(replay(r), InternalError);
}

TEST_F(Reproducers, AWholeGraphCompiles) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 1, .n_head = 2, .n_embd = 16}, 1);
  Trace trace;
  {
    RecorderScope scope(&trace);
    const Tensor loss = model(Tensor::zeros({2, 8}, {kI64}));
    trace.graph.outputs.push_back(trace.value_of(loss));
  }
  for (const Graph& graph : {trace.graph, derive_backward(trace.graph).graph}) {
    const std::string text = replay(parse_reproducer(to_string(graph)));
    const auto program = Program::compile(graph);
    std::string expected;
    for (const LoweredUnit& kernel : program->plan().kernels) expected += to_string(kernel.kernel);
    EXPECT_EQ(text, expected);
    EXPECT_GT(program->stats().kernels, 3);
  }
}

// Numbers of a call come from the text, too: an op checks them before it reads by them.
TEST_F(Reproducers, APermutationOfDimensionsThatAreNotThere) {
  for (const char* dims : {"99999, 0", "0, 2147483647", "-1, 0", "0, 0", "1", "1, 0, 2"})
    EXPECT_THROW(replay(parse_reproducer(absl::StrCat(
                     "input %0: f32[2, 3]\n%1: f32[3, 2] strides[1, 3] of %0 = permute(%0, ", dims, ")\nreturn %1\n"))),
                 std::exception)
        << dims;
}

// What assemble has made holds values that are part of later ones. The stages before it cannot take such a graph.
TEST_F(Reproducers, AGraphFromBehindAssembleIsRefusedByEarlierStages) {
  const std::string text = R"(input %0: f32[2, 3]
%1: f32[2, 3] strides[6, 1] of %3 = exp(%0)
%2: f32[2, 3] strides[6, 1] of %3 at 3 = tanh(%0)
%3: f32[2, 6] = cat(%1, %2, 1)
%4: f32[2, 6] = neg(%3)
return %3
)";
  for (const char* stage : {"", "stage decompose\n", "stage dce\n", "stage assemble\n", "stage differentiate\n"})
    EXPECT_EQ(test::error_of([&] { replay(parse_reproducer(stage + text)); }),
              "%1 is part of %3, a later value: the stage \"assemble\" made this graph, and only later stages can "
              "replay it")
        << stage;
  EXPECT_NO_THROW(replay(parse_reproducer("stage fuse\n" + text)));
}

TEST_F(Reproducers, FilesThatAreNone) {
  fs::create_directories(folder_);
  const std::string path = (folder_ / "file.txt").string();
  EXPECT_EQ(run_tool(path).first, 2);
  for (const auto& [text, message] :
       {std::pair{"", "line 1: nothing to replay"},
        {"stage fuse\n", "line 2: expected \"%\""},
        {"stage fuse\ninput %0: f32[2]\nreturn %0\nmore", "line 4: nothing more was expected"},
        {"stage lower\ninput %0: f32[2]\nreturn %0\nunit rows=1 cols=2 inner=1 nodes 7\n", "line 4: 7 is out of range"},
        {"stage lower\ninput %0: f32[2]\nreturn %0\nunit rows=1 cols=2 inner=1 nodes 0\n",
         "line 4: 0 is out of range"}}) {
    std::ofstream(path) << text;
    const auto [code, said] = run_tool(path);
    EXPECT_EQ(code, 2) << text;
    EXPECT_NE(said.find(message), said.npos) << said;
  }
  std::ofstream(path) << "stage polish\n" << kGoodGraph;
  EXPECT_EQ(run_tool(path), (std::pair<int, std::string>{1, "stage polish fails: no stage \"polish\"\n"}));
}

TEST_F(Reproducers, AFolderThatCannotBeWrittenIsNotAnotherFailure) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "not a folder";
  setenv("RONDO_REPRODUCERS", (folder_ / "file" / "below").c_str(), 1);
  const std::string error = thrown<InternalError>([] { run_pipeline(parse_graph(kBadGraph), {}); });
  EXPECT_NE(error.find("graph: the dtype or the sizes"), error.npos);
  EXPECT_NE(error.find(" (no reproducer: "), error.npos) << error;
  setenv("RONDO_REPRODUCERS", "off", 1);
  EXPECT_EQ(thrown<InternalError>([] { run_pipeline(parse_graph(kBadGraph), {}); }).find("reproduce"),
            std::string::npos);
}

// RONDO_DUMP is read once, so this looks from outside.
TEST_F(Reproducers, DumpsSayWhatEachStageMade) {
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  fs::create_directories(folder_);
  const std::string path = (folder_ / "graph.txt").string();
  std::ofstream(path) << "input %0: f32[4, 8]\n%1: f32[4, 8] = relu(%0)\n%2: f32[4, 8] = relu(%0)\n%3: f32[4, 8] = "
                         "mul(%1, %2)\nreturn %3\n";
  setenv("RONDO_DUMP", "all", 1);
  const std::string all = run_tool(path).second;
  EXPECT_NE(all.find("---- input\ninput %0: f32[4, 8]\n%1: f32[4, 8] = relu(%0)"), all.npos) << all;
  EXPECT_NE(all.find("---- decompose (unchanged)\n---- segments (unchanged)\n---- cse\n"), all.npos) << all;
  EXPECT_NE(all.find("= mul(%1, %1)"), all.npos) << all;
  EXPECT_NE(
      all.find("---- dce (unchanged)\n---- join (unchanged)\n---- assemble (unchanged)\n---- collectives (unchanged)\n"
               "---- products (unchanged)\n---- split (unchanged)\n---- widen (unchanged)\n"
               "---- fuse\nkernel of 4 x 8\n"),
      all.npos)
      << all;
  EXPECT_NE(all.find("---- lower\nkernel relu_mul rows=1 cols=32 split_columns\n"), all.npos) << all;
  setenv("RONDO_DUMP", "dce", 1);
  EXPECT_EQ(run_tool(path).second, "---- dce (unchanged)\nstage compile works\n");
  setenv("RONDO_DUMP", "dce,inline", 1);
  EXPECT_NE(run_tool(path).second.find(
                "RONDO_DUMP: no stage \"inline\". Stages: all, differentiate, layouts, partition, input, decompose, "
                "segments"),
            std::string::npos);
  unsetenv("RONDO_DUMP");
}

TEST_F(Reproducers, DumpsOfADerivation) {
  fs::create_directories(folder_);
  const std::string path = (folder_ / "recording.txt").string();
  std::ofstream(path) << "stage partition\n" << kRecording;
  setenv("RONDO_DUMP", "all", 1);
  const std::string all = run_tool(path).second;
  EXPECT_NE(all.find("---- differentiate\ninput %0: f32[4, 8] grad leaf\n"), all.npos) << all;
  EXPECT_NE(all.find("\nbackward\ninput %0: f32[4, 8]\n"), all.npos) << all;
  EXPECT_NE(all.find("\n---- layouts (unchanged)\n---- partition\ninput %0: f32[4, 8] grad leaf\n"), all.npos) << all;
  setenv("RONDO_DUMP", "layouts", 1);
  setenv("RONDO_DISABLE", "layouts", 1);
  EXPECT_EQ(run_tool(path).second, "---- layouts (disabled)\nstage partition works\n");
  unsetenv("RONDO_DISABLE");
  unsetenv("RONDO_DUMP");
}

TEST(DumpsDeathTest, StayOffUntilTheOuterScopeEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a program of its own, which reads RONDO_DUMP
  setenv("RONDO_DUMP", "dce", 1);
  const auto look = [] {
    bool inside = true;
    {
      const DumpsOff outer;
      { const DumpsOff inner; }
      inside = wants_dump(CompilerStage::kDce);
    }
    exit(wants_dump(CompilerStage::kDce) && !inside ? 0 : 1);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
  unsetenv("RONDO_DUMP");
}

}  // namespace
}  // namespace rondo::compile

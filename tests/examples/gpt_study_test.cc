// train_gpt --study: a run says of itself what it measures, and the study's rows are in one table, also after a kill.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/examples/gpt_study.h"
#include "rondo/examples/run_report.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/paths.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;
using absl::StrContains;

std::string bytes_of_file(const std::string& path) {
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

class GptStudy : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
    std::ofstream(folder_ / "text") << std::string(3000, 'a') << std::string(3000, 'b');
  }
  struct Finished {
    int status;
    std::string out;
  };
  Finished run(const std::string& options, const std::string& behind = "") {
    const int status = std::system(absl::StrCat("RONDO_NUM_THREADS=1 RONDO_CUDA=off RONDO_CACHE=off ", tests::kTrainGpt,
                                                " --n_layer=3 --n_head=2 --n_embd=32 --block_size=64 --batch_size=2 "
                                                "--untimed_steps=3 ",
                                                options, " >", folder_ / "log", " 2>&1 ", behind)
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, bytes_of_file(folder_ / "log")};
  }
  Finished study(const std::string& options, const std::string& behind = "") {
    return run(absl::StrCat("--study --study_steps=4 --dtype=float32 --out_dir=", folder_ / "study ", options), behind);
  }
  RunFacts facts_of(const std::string& path) const { return facts_from_json(bytes_of_file(path), path); }
  test::TempFolder folder_;
};

TEST_F(GptStudy, ARunMeasuresStepsOrTokens) {
  const auto measured = [&](const std::string& options) {
    const Finished done = run(absl::StrCat("--data=", folder_ / "text", " --out_dir=", folder_ / "out",
                                           " --report=", folder_ / "run.json", " --max_iters=10 ", options));
    EXPECT_EQ(done.status, 0) << done.out;
    return facts_of(folder_ / "run.json");
  };
  for (const char* measure : {"train", "infer", "generate"}) {
    const std::string option = absl::StrCat("--measure=", measure);
    const RunFacts eager = measured(option + " --compile=none"), regions = measured(option + " --compile=regions");
    EXPECT_TRUE(eager.steps_per_s > 0 && eager.first_s > 0 && eager.again_s > 0 && eager.memory_mib() > 0) << measure;
    EXPECT_TRUE(eager.compiled.empty());
    EXPECT_EQ(regions.compiled, (std::vector<std::pair<std::string, int64_t>>{{"TransformerBlock", 1}})) << measure;
    EXPECT_TRUE(regions.breaks.empty());
    if (option == "--measure=generate") EXPECT_TRUE(std::isnan(eager.loss));
    else EXPECT_NEAR(regions.loss, eager.loss, 1e-4) << measure;
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/metrics.jsonl"));
  EXPECT_TRUE(StrContains(run("--measure=infer --data=" + (folder_ / "text")).out, "--measure needs --report"));
  EXPECT_TRUE(StrContains(
      run(absl::StrCat("--measure=generate --max_iters=90 --data=", folder_ / "text", " --report=", folder_ / "x")).out,
      "more than --block_size=64"));
}

TEST_F(GptStudy, RowsAreInOneTable) {
  const std::string rows =
      "--study_rows=train_eager,train_regions,infer_eager,infer_whole,generate_eager,"
      "generate_regions,generate_max_autotune";
  const std::string first = folder_ / "study/runs/float32-train_eager-ours-1.json";
  const Finished killed = study(rows, absl::StrCat("& p=$!; while kill -0 $p 2>/dev/null && ! [ -f ", first,
                                                   " ]; do sleep 0.01; done; kill -9 $p; wait $p"));
  EXPECT_EQ(killed.status, 137);
  const std::string before = bytes_of_file(first);
  const Finished done = study(rows);
  EXPECT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(bytes_of_file(first), before);
  const std::string text = bytes_of_file(folder_ / "study/study.txt");
  for (const char* said : {"training: eager", "inference: the whole model", "generation: regions, max-autotune",
                           "the losses of all rows agree", "generation, regions: no slower than eager",
                           "holds       f32: a kind of block is compiled at most as often as its row allows"})
    EXPECT_TRUE(StrContains(text, said)) << said << "\n" << text;
  EXPECT_TRUE(StrContains(bytes_of_file(folder_ / "study/study.html"), "<h1>A GPT, compiled and eager</h1>"));
  EXPECT_EQ(facts_of(folder_ / "study/runs/float32-generate_regions-ours-1.json").most_compilations(), 1);
  EXPECT_TRUE(StrContains(study(rows + " --block_size=65").out, "holds a study with other options"));
  EXPECT_TRUE(StrContains(study("--study_rows=train_eger").out, "did you mean train_eager?"));
  EXPECT_TRUE(StrContains(study("--data=x").out, "leave out --data"));
}

TEST(GptStudyRows, NameTheRowsTheyStandBeside) {
  for (const StudyRow& row : gpt_study_rows()) {
    const auto named = [&](const std::string& name) {
      return std::ranges::count(gpt_study_rows(), name, &StudyRow::name);
    };
    EXPECT_EQ(named(row.name), 1) << row.name;
    EXPECT_EQ(row.beside.empty(), row.says.empty());
    EXPECT_TRUE(row.beside.empty() || named(row.beside) == 1) << row.name;
  }
}

}  // namespace
}  // namespace rondo::examples

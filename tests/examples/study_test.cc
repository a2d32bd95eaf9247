// image_captioning --study: what a run says of itself, the table, and the study as a program: resumed, with a peer,
// with rows that fail.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/examples/image_captioning/study_rows.h"
#include "rondo/examples/run_report.h"
#include "rondo/examples/study_table.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
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

RunFacts facts(double steps_per_s, double compile_s, double mib, double loss) {
  return {.steps_per_s = steps_per_s,
          .first_s = 2 + compile_s,
          .again_s = 2,
          .loss = loss,
          .base_mib = 10,
          .peak_mib = 10 + mib,
          .compiled = {{"Block", 2}},
          .recompilations = {"Block: \"8\" -> <9>"},
          .breaks = {}};
}

TEST(RunFacts, ComeBackFromTheirFile) {
  const RunFacts run = facts(2.5, 0.25, 100, 6.5), again = facts_from_json(to_json(run), "run.json");
  EXPECT_EQ(again.steps_per_s, 2.5);
  EXPECT_EQ(again.compile_s(), 0.25);
  EXPECT_EQ(again.memory_mib(), 100);
  EXPECT_TRUE(std::isnan(again.device_peak_mib));
  EXPECT_EQ(again.compiled, run.compiled);
  EXPECT_EQ(again.most_compilations(), 2);
  EXPECT_EQ(again.recompilations, run.recompilations);
  EXPECT_TRUE(again.breaks.empty());
  EXPECT_EQ(facts_from_json(R"({"more": [1], "device_peak_mib": 5, "first_s": null})", "run.json").memory_mib(), 5);
  EXPECT_TRUE(StrContains(test::error_of([] { facts_from_json("{\"loss\": \"low\"}", "run.json"); }), "run.json"));
}

const StudyRow* row(std::string_view name) {
  for (const StudyRow& one : study_rows())
    if (one.name == name) return &one;
  return nullptr;
}

TEST(StudyTable, SaysWhatHoldsAndWhatFallsShort) {
  std::vector<StudyResult> results;
  const auto add = [&](const char* name, RunFacts ours, RunFacts theirs) {
    results.push_back({.row = row(name), .dtype = "float32", .ours = {{ours}, ""}, .theirs = {{theirs}, ""}});
  };
  add("eager", facts(4, 0, 100, 6.5), facts(2, 0, 200, 6.5));
  add("compiled", facts(6, 0.1, 100, 6.5), facts(3, 10, 200, 6.5));
  add("compiled_optimizer", facts(6.3, 0.1, 100, 6.5), facts(3, 10, 200, 6.5));
  add("dynamic_padded", facts(6.2, 0.1, 100, 6.50001), facts(3, 10, 90, 6.5));
  add("first_cold", facts(8, 0.1, 100, 6.7), facts(4, 4, 200, 6.7));
  results.push_back({.row = row("ddp"), .dtype = "float32", .ours = {{}, "out of <luck>"}, .theirs = {}});
  const StudyTable table = table_of("Study", "made up", "A100", results);
  const auto check = [&](const std::string& what) {
    for (const StudyTable::Check& one : table.checks)
      if (StrContains(one.what, what)) return one;
    return StudyTable::Check{.what = "", .seen = "missing", .holds = false};
  };
  EXPECT_TRUE(check("each row at least as fast").holds);
  EXPECT_EQ(check("geometric mean").seen, "2.04 over 4 rows");
  EXPECT_FALSE(check("compiling takes 50 times less").holds);
  EXPECT_EQ(check("compiling takes 50 times less").seen, "40.0 times: 0.100 s, 4.000 s");
  EXPECT_FALSE(check("memory").holds);
  EXPECT_TRUE(StrContains(check("memory").seen, "0.90 times (dynamic_padded)"));
  EXPECT_FALSE(check("compiled at most").holds);  // those of one length were compiled twice
  EXPECT_EQ(check("within 5%").seen, "0.984 of its speed");
  EXPECT_TRUE(check("losses").holds);
  EXPECT_TRUE(check("no slower than without").holds);

  const std::string text = to_text(table), html = to_html(table);
  for (const StudyResult& result : results) {
    EXPECT_TRUE(StrContains(text, result.row->title));
    EXPECT_TRUE(StrContains(html, result.row->title));
  }
  EXPECT_TRUE(StrContains(text, "ddp: ours failed: out of <luck>"));
  EXPECT_TRUE(StrContains(text, "eager: ours, compiled again: Block: \"8\" -> <9>"));
  EXPECT_TRUE(StrContains(html, "ours failed: out of &lt;luck&gt;"));
  for (const char* loads : {"http", "src=", "<script", "<link", "url(", "@import"})
    EXPECT_FALSE(StrContains(html, loads)) << loads;
}

TEST(StudyTable, AsksNothingOfRowsThatWereNotMeasured) {
  std::vector<StudyResult> results;
  for (const char* name : {"eager", "compiled_optimizer", "foreach_map"})
    results.push_back(
        {.row = row(name), .dtype = "float32", .ours = {{facts(4, 0, 100, RunFacts::kUnknown)}, ""}, .theirs = {}});
  std::string optimizers, losses;
  for (const StudyTable::Check& one : table_of("Study", "made up", "A100", results).checks) {
    if (StrContains(one.what, "no slower")) optimizers = one.seen;
    if (StrContains(one.what, "losses")) losses = absl::StrCat(one.seen, one.holds ? " holds" : " falls short");
  }
  EXPECT_EQ(optimizers, "");  // "compiled", beside which it is asked, was not measured
  EXPECT_EQ(losses, "3 of 3 rows have no loss that is a number falls short");
}

TEST(StudyRows, HaveNamesOfTheirOwn) {
  for (const StudyRow& one : study_rows()) {
    EXPECT_EQ(row(one.name), &one);
    EXPECT_TRUE(one.same_as.empty() ? !one.options.empty() : row(one.same_as) != nullptr) << one.name;
  }
}

// ---- The program

class Study : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
  }
  struct Finished {
    int status;
    std::string out;
  };
  Finished run(const std::string& options, const std::string& behind = "") {
    const int status = std::system(absl::StrCat("RONDO_NUM_THREADS=1 RONDO_CUDA=off RONDO_CACHE=off ",
                                                tests::kImageCaptioning,
                                                " --n_layer=1 --n_embd=24 --image_size=32 --batch_size=4 ", options,
                                                " >", folder_ / "log", " 2>&1 ", behind)
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, bytes_of_file(folder_ / "log")};
  }
  Finished study(const std::string& options, const std::string& behind = "") {
    return run(absl::StrCat("--study --study_steps=2 --untimed_steps=2 --study_rounds=1 --output_dir=",
                            folder_ / "study ", options),
               behind);
  }
  RunFacts run_of(const std::string& name) const {
    const std::string path = folder_ / ("study/runs/" + name + ".json");
    return facts_from_json(bytes_of_file(path), path);
  }
  // A peer that knows all rows but one.
  std::string peer() const {
    const std::string path = folder_ / "peer.sh";
    std::ofstream(path)
        << "for word; do case $word in --report=*) report=${word#--report=};; --row=*) row=${word#--row=};;\n"
           "--initial=*) start=${word#--initial=};; esac; done\n"
           "test -f $start/model.safetensors -a -f $start/data.safetensors || exit 2\n"
           "if [ $row = longest ]; then echo no such row; exit 1; fi\n"
           "echo '{\"steps_per_s\": 1, \"first_s\": 9, \"again_s\": 2, \"base_mib\": 0, \"peak_mib\": 900, "
           "\"loss\": 6.9, \"compiled\": {}, \"recompilations\": [], \"breaks\": [\"print\"]}' >$report\n";
    return absl::StrCat(" --study_peer='sh ", path, "'");
  }
  test::TempFolder folder_;
};

TEST_F(Study, ARunReportsItself) {
  const auto report = [&](const std::string& options) {
    const Finished done = run(
        absl::StrCat("--train_pictures=24 --untimed_steps=2 --max_steps=8 --lr_scheduler_type=constant "
                     "--warmup_ratio=0 --report=",
                     folder_ / "run.json ", options));
    EXPECT_EQ(done.status, 0) << done.out;
    return facts_from_json(bytes_of_file(folder_ / "run.json"), "run.json");
  };
  const RunFacts eager = report("--compile=none");
  EXPECT_TRUE(eager.steps_per_s > 0 && eager.first_s > 0 && eager.again_s > 0 && eager.memory_mib() > 1);
  EXPECT_TRUE(eager.compiled.empty());
  const RunFacts marked = report("--compile=whole --dynamic=marked --padding=longest");
  EXPECT_EQ(marked.compiled, (std::vector<std::pair<std::string, int64_t>>{{"VisionEncoderDecoder", 1}}));
  EXPECT_TRUE(marked.recompilations.empty()) << marked.recompilations[0];
  EXPECT_NEAR(marked.loss, eager.loss, 1e-4);
  const RunFacts fixed = report("--compile=whole --dynamic=off --padding=buckets --compile_optimizer=false");
  EXPECT_EQ(fixed.recompilations.size() + 1, static_cast<size_t>(fixed.most_compilations()));
  EXPECT_NEAR(fixed.loss, eager.loss, 1e-4);
}

TEST_F(Study, AKilledStudyGoesOn) {
  const std::string options = "--dtype=float32 --study_rows=eager,foreach_map,marked,first_artifact";
  const std::string first = folder_ / "study/runs/float32-eager-ours-1.json";
  const Finished killed = study(options, absl::StrCat("& p=$!; while kill -0 $p 2>/dev/null && ! [ -f ", first,
                                                      " ]; do sleep 0.01; done; kill -9 $p; wait $p"));
  EXPECT_EQ(killed.status, 137);
  const std::string before = bytes_of_file(first);
  const Finished done = study(options);
  EXPECT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(bytes_of_file(first), before);
  const std::string text = bytes_of_file(folder_ / "study/study.txt");
  for (const char* name : {"eager", "compiled_optimizer", "foreach_map", "marked", "first_artifact"})
    EXPECT_TRUE(StrContains(text, row(name)->title)) << name << " " << text;
  EXPECT_TRUE(StrContains(text, "the losses of all rows agree"));
  EXPECT_TRUE(StrContains(bytes_of_file(folder_ / "study/study.html"), row("marked")->title));
  EXPECT_FALSE(fs::exists(folder_ / "study/runs/float32-foreach_map-ours-1.json"));
  EXPECT_EQ(run_of("float32-marked-ours-1").most_compilations(), 1);
  EXPECT_EQ(run_of("float32-first_artifact-ours-1").most_compilations(), 0);
  EXPECT_FALSE(fs::exists(folder_ / "study/cache"));

  const Finished other = study(options + " --batch_size=5");
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(StrContains(other.out, "holds a study with other options")) << other.out;
}

TEST_F(Study, ARowThatFailsIsNamedAndTheOthersGoOn) {
  const std::string options = "--dtype=float32 --study_rows=eager,longest,ddp" + peer();
  const Finished done = study(options);
  EXPECT_EQ(done.status, 1);
  EXPECT_TRUE(StrContains(done.out, "longest: the peer failed: no such row")) << done.out;
  EXPECT_TRUE(StrContains(done.out, "eager: the peer, graph break: print")) << done.out;
  EXPECT_TRUE(StrContains(done.out, "each row at least as fast as the peer's")) << done.out;
  EXPECT_TRUE(fs::exists(folder_ / "study/runs/float32-ddp-ours-1.json"));
  // Those that failed are tried again, and only those.
  std::ofstream(folder_ / "peer.sh") << "exit 3\n";
  EXPECT_TRUE(StrContains(
      study("--dtype=float32 --study_rows=eager,longest,ddp --study_peer='sh " + (folder_ / "peer.sh'")).out,
      "longest: the peer failed: it printed nothing"));
  const Finished late = study(absl::StrCat("--dtype=float32 --study_rows=automatic --study_timeout=0.01"));
  EXPECT_TRUE(StrContains(late.out, "automatic: ours failed: not done after 0 s (--study_timeout)")) << late.out;
  EXPECT_TRUE(StrContains(study("--study_rows=eger").out, "no row is called eger; did you mean eager?"));
  EXPECT_TRUE(StrContains(run("--study --data=drawn").out, "--study has random data"));
}

TEST_F(Study, AFolderOfSomebodyElseStays) {
  fs::create_directories(folder_ / "study/runs");
  std::ofstream(folder_ / "study/runs/thesis.txt") << "years";
  for (const char* more : {"", " --overwrite_output_dir"}) {
    const Finished done = study(absl::StrCat("--dtype=float32 --study_rows=eager", more));
    EXPECT_EQ(done.status, 1);
    EXPECT_TRUE(StrContains(done.out, "is not of a study")) << done.out;
  }
  EXPECT_EQ(bytes_of_file(folder_ / "study/runs/thesis.txt"), "years");
}

TEST_F(Study, WhatOneRunLeavesIsNotTakenForAnother) {
  const std::string options = "--dtype=float32 --study_rows=eager";
  const std::string script = folder_ / "peer.sh",
                    with = absl::StrCat(" --study_peer='LEVEL=1 sh ", script, "'");  // a setting in front
  const auto peer_says = [&](const std::string& text, const std::string& more = "") {
    std::ofstream(script) << text;
    return study(options + with + more).out;
  };
  const std::string report =
      "for word; do case $word in --report=*) echo \"$REPORT\" >${word#--report=};; esac; done\n";
  EXPECT_TRUE(StrContains(peer_says("REPORT=rubbish\n" + report), "the peer failed: its report: "));
  std::ofstream(folder_ / "study/runs/float32-eager-peer-1.new") << R"({"steps_per_s": 7})";  // of one that was killed
  EXPECT_TRUE(StrContains(peer_says("exit 0\n"), "the peer failed: it wrote no report"));
  EXPECT_TRUE(StrContains(peer_says("printf 'no\\033[2J luck\\n'; exit 1\n"), "the peer failed: no?[2J luck"));
  const std::string done = peer_says("[ \"$LEVEL\" = 1 ] || exit 3\nREPORT='{\"steps_per_s\": 2}'\n" + report);
  EXPECT_TRUE(StrContains(done, "the peer 2.00 steps/s")) << done;
  // A damaged file is measured again; another peer's, or one of other threads, is another study's.
  std::ofstream(folder_ / "study/runs/float32-eager-ours-1.json") << "{\"steps_per_s\": ";
  EXPECT_TRUE(StrContains(peer_says("exit 1\n"), "float32 eager:  ours "));
  EXPECT_TRUE(StrContains(study(options + " --study_peer=other").out, "holds a study with another --study_peer"));
  EXPECT_EQ(study(options + " --study_peer=false --overwrite_output_dir").status, 1);
  EXPECT_FALSE(fs::exists(folder_ / "study/runs/float32-eager-peer-1.json"));
}

TEST_F(Study, RefusesWhatItsRowsChoose) {
  EXPECT_TRUE(StrContains(study("--dropout=0.1").out, "--study: its rows choose --dropout themselves"));
  EXPECT_TRUE(StrContains(study("--compile=none").out, "--study: its rows choose --compile themselves"));
  EXPECT_TRUE(StrContains(study("--study_timeout=-1").out, "--study_timeout must be above 0, got -1"));
}

}  // namespace
}  // namespace rondo::examples

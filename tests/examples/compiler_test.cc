// The compiler's options in every training program (examples/compiler.h): what each of them does, and that losses are
// those of eager execution.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::Finished;
using test::has;

class Compiler : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "the " << i % 7 << " of them went into the water, and we looked about.\n";
  }
  // A run with a cache of its own. `launcher`: rondorun with arguments, or nothing.
  Finished run(const std::string& command, const std::string& launcher = "") const {
    const std::string line = absl::StrCat("env -u OMP_NUM_THREADS RONDO_CUDA=off RONDO_CACHE=off ", launcher, " ",
                                          command, " 2>&1");
    Finished run;
    std::FILE* pipe = ::popen(line.c_str(), "r");
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) run.out.append(buffer, n);
    const int status = ::pclose(pipe);
    run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
  }
  std::string train_gpt(const std::string& options) const {
    return absl::StrCat(tests::kTrainGpt, " --data=", folder_ / "text.txt", " --out_dir=", folder_ / "out",
                        " --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --batch_size=5 --max_iters=4 "
                        "--warmup_iters=1 --eval_interval=4 --eval_iters=400 --log_interval=1 --sample_tokens=4 ",
                        options);
  }
  // "loss" of each line of metrics.jsonl, and the last "eval_loss".
  std::vector<double> losses() const {
    std::vector<double> all;
    std::ifstream file(folder_ / "out/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      for (size_t at = 0; (at = line.find("loss\":", at)) != std::string::npos; at += 6)
        if (line.compare(at + 6, 4, "null") != 0) all.push_back(std::stod(line.substr(at + 6)));
    return all;
  }
  // Runs it, and its losses are these but for rounding.
  Finished expect_losses(const std::vector<double>& expected, const std::string& command,
                         const std::string& launcher = "") {
    std::filesystem::remove_all(folder_ / "out");
    const Finished done = run(command, launcher);
    EXPECT_EQ(done.code, 0) << command << "\n" << done.out;
    const std::vector<double> got = losses();
    EXPECT_EQ(got.size(), expected.size()) << command << "\n" << done.out;
    for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i)
      EXPECT_NEAR(got[i], expected[i], 2e-4 * std::abs(expected[i])) << command << ": number " << i;
    return done;
  }
  // What an eager run has.
  std::vector<double> eager_losses(const std::string& command) {
    const Finished done = run(command + " --compile=none");
    EXPECT_EQ(done.code, 0) << done.out;
    EXPECT_GE(losses().size(), 2u) << done.out;
    return losses();
  }
  std::string error_of(const std::string& command) const {
    const Finished done = run(command);
    EXPECT_EQ(done.code, 1) << command << "\n" << done.out;
    return done.out;
  }
  const test::TempFolder folder_;
};

void expect_has(const Finished& done, const std::string& part) {
  EXPECT_TRUE(has(done, part)) << part << "\n" << done.out;
}

TEST_F(Compiler, TrainGptInEveryWay) {
  const std::vector<double> eager = eager_losses(train_gpt(""));
  for (const std::string options :
       {"", "--compile=regions --mode=reduce-overhead --dynamic=off", "--compile=regions --dynamic=marked --buckets=2",
        "--compile=whole --mode=max-autotune --dynamic=marked --buckets=2,5",
        "--compile=whole --dynamic=all --fullgraph"})
    expect_has(expect_losses(eager, train_gpt(options)), "compiled");
  const Finished none = expect_losses(eager, train_gpt("--compile=none --explain"));
  expect_has(none, "compile=none: nothing is compiled");
}

// Options of their own for two parts, and a third one is left eager.
TEST_F(Compiler, PartsOfTrainGpt) {
  const std::vector<double> eager = eager_losses(train_gpt(""));
  const Finished done = expect_losses(
      eager,
      train_gpt("--compile=none --explain --parts=h.0:mode=max-autotune:dynamic=off,h.1:dynamic=all,h.1.mlp:eager"));
  expect_has(done, "region TransformerBlock: compiled once");
  expect_has(done, "TransformerBlock: graph break: MLP was disabled (");
  expect_has(done, "in h.1.mlp)");
  expect_has(done, "forgot ");
  EXPECT_NE(test::text_of(folder_ / "out/explain.html").find("<html"), std::string::npos);
  EXPECT_NE(test::text_of(folder_ / "out/explain.txt").find("recording 0"), std::string::npos);
}

TEST_F(Compiler, WarmUpCompilesBeforeTheFirstStep) {
  const std::vector<double> eager = eager_losses(train_gpt(""));
  const Finished done = expect_losses(eager, train_gpt("--warm_up --explain --dropout=0"));
  expect_has(done, "warm-up: 1 steps, ");
  expect_has(done, " 0 loaded by other processes");
  expect_has(done, "region TransformerBlock: compiled once");
}

// Two processes: the first compiles, the other loads.
TEST_F(Compiler, OneOfTwoProcessesCompiles) {
  const std::string options = "--compile=whole --warm_up --eval_iters=40 ";
  const Finished alone = run(train_gpt(options));
  const Finished two = run(train_gpt(options + "--check_ranks"), absl::StrCat(tests::kRondorun, " --nproc-per-node 2"));
  ASSERT_EQ(two.code, 0) << two.out;
  const auto number_before = [](const Finished& run, const std::string& words) {
    const size_t end = run.out.find(words), begin = run.out.rfind(' ', end - 1);
    return end == std::string::npos ? -1 : std::stoi(run.out.substr(begin + 1, end - begin - 1));
  };
  const int kernels = number_before(alone, " kernels compiled");
  EXPECT_GT(kernels, 0) << alone.out;
  EXPECT_EQ(number_before(two, " kernels compiled"), kernels) << two.out;
  EXPECT_GE(number_before(two, " loaded by other processes"), kernels) << two.out;
}

// Compiled code through commands, as object storage has them.
TEST_F(Compiler, CodeThroughACommand) {
  const std::string file = folder_ / "code.rondo";
  const std::string save = "--save_code='cat >" + file + "' ", load = "--load_code='cat " + file + "' ";
  const std::string options = "--compile=whole --mode=max-autotune ";
  const std::vector<double> eager = eager_losses(train_gpt(""));
  expect_has(run(train_gpt(options + "--load_code=true ")), "--load_code: nothing is there yet");
  expect_losses(eager, train_gpt(options + save));
  const Finished warm = expect_losses(eager, train_gpt(options + load));
  expect_has(warm, " kernels\n");
  expect_has(warm, "region GPT2: found compiled");
  expect_has(run(train_gpt(options + "--load_code=false")), "--load_code=false: the command failed");
  expect_has(run(train_gpt(options + "--save_code='exit 3'")), "--save_code=exit 3: the command failed");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  expect_has(run(train_gpt(options + load)), "artifacts: cut short");
}

TEST_F(Compiler, WhatDoesNotGoTogether) {
  const auto expect = [&](const std::string& options, const std::string& part) {
    const std::string error = error_of(train_gpt(options));
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect("--mode=max_autotune", "--mode=max_autotune: must be one of default, reduce-overhead, max-autotune");
  expect("--buckets=8,4", "--buckets=8,4: must be a number of buckets, or ascending sizes");
  expect("--buckets=4294967297", "--buckets=4294967297: must be at most 1024");
  expect("--buckets=,", "--buckets=,: there is no size");
  expect("--buckets=4", "--buckets: batches of this program are not padded, so buckets need --dynamic=marked");
  expect("--parts=h.0:mod=default", "--parts: h.0:mod=default: mod=default is none of eager, mode=");
  expect("--parts=h.2:eager", "--parts: the model has no part h.2; did you mean h.0?");
  expect("--parts=h.0:mode=max-autotun", "no mode is called max-autotun; did you mean max-autotune?");
  expect("--compile=whole --parts=h.0:mode=default", "--parts: h.0 has options of its own");
  expect("--compile=none --warm_up", "--warm_up: --compile=none compiles nothing");
  expect("--compile=whole --fullgraph --parts=h.0:eager",
         "graph break in GPT2 (CompileOptions::fullgraph forbids them): TransformerBlock was disabled");
}

TEST_F(Compiler, TrainGptFromARecipe) {
  const std::vector<double> eager = eager_losses(train_gpt("--learning_rate=5e-3 --n_embd=16"));
  std::ofstream(folder_ / "recipe.yaml") << "n_embd: 64   # the command line says otherwise\n"
                                            "learning_rate: 5.0e-3\n"
                                            "compile: whole\n"
                                            "mode: max-autotune\n"
                                            "dynamic: marked\n"
                                            "buckets: [2, 5]\n"
                                            "warm_up: true\n"
                                            "explain: yes\n";
  const std::string recipe = " --recipe=" + folder_ / "recipe.yaml";
  const Finished done = expect_losses(eager, train_gpt("--n_embd=16") + recipe);
  expect_has(done, "compile=whole");
  expect_has(done, "warm-up: ");
  expect_has(done, "explain.html");
  std::ofstream(folder_ / "recipe.yaml") << "n_embd: 16\nlearning_rat: 5.0e-3\n";
  EXPECT_NE(error_of(train_gpt("") + recipe)
                .find("recipe.yaml:2: unknown flag --learning_rat; did you mean --learning_rate?"),
            std::string::npos);
}

// ---- finetune, classify, segmentation

TEST_F(Compiler, Finetune) {
  nn::GPT2 model({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32}, 1);
  nn::save_pretrained(model, folder_ / "model");
  std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/gpt2.json"),
                             folder_ / "model/tokenizer.json");
  std::ofstream lines(folder_ / "lines.jsonl");
  for (int i = 0; i < 60; ++i) {
    std::string words = "the water";
    for (int k = 0; k < i % 12; ++k) words += " and we looked about";
    lines << R"({"text": ")" << words << "\"}\n";
  }
  lines.close();
  const auto command = [&](const std::string& options) {
    return absl::StrCat(tests::kFinetune, " --model_name_or_path=", folder_ / "model",
                        " --train_file=", folder_ / "lines.jsonl", " --output_dir=", folder_ / "out",
                        " --block_size=48 --learning_rate=5e-3 --logging_steps=1 --eval_steps=6 --save_steps=100 "
                        "--max_new_tokens=2 --max_steps=6 --lora_r=2 --buckets=16,32,48 ",
                        options);
  };
  const std::vector<double> eager = eager_losses(command(""));
  const Finished done = expect_losses(eager, command("--dynamic=off --warm_up --explain"));
  expect_has(done, "warm-up: 3 steps, ");
  expect_has(done, "region TransformerBlock: ");
  expect_has(done, "forgot ");
  for (const std::string options : {"--dynamic=marked", "--compile=whole --dynamic=marked --warm_up --fullgraph",
                                    "--compile=whole --dynamic=all --mode=reduce-overhead"})
    expect_losses(eager, command(options));
}

TEST_F(Compiler, Classify) {
  nn::BertModel model(
      {.vocab_size = 600, .block_size = 32, .n_layer = 2, .n_head = 2, .n_embd = 32, .n_hidden = 64, .dropout = 0});
  nn::save_pretrained(model, folder_ / "model");
  std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/bert_uncased.json"),
                             folder_ / "model/tokenizer.json");
  std::ofstream train(folder_ / "train.tsv");
  for (int i = 0; i < 60; ++i)
    train << (i % 2 == 0 ? "sport\ta runner ran" : "state\tthe national gradient")
          << (i % 3 == 0 ? " and so on and so on and so on" : "") << "\n";
  train.close();
  const auto command = [&](const std::string& options) {
    return absl::StrCat(tests::kClassify, " --model_name_or_path=", folder_ / "model",
                        " --train_file=", folder_ / "train.tsv", " --output_dir=", folder_ / "out",
                        " --max_seq_length=24 --num_train_epochs=1 --logging_steps=1 --per_device_train_batch_size=8 "
                        "--learning_rate=1e-3 --buckets=2 ",
                        options);
  };
  const std::vector<double> eager = eager_losses(command(""));
  expect_has(expect_losses(eager, command("--dynamic=marked --warm_up --explain")), "warm-up: 2 steps, ");
  expect_has(expect_losses(eager, command("--compile=whole --mode=reduce-overhead --explain --dynamic=marked")),
             "region ");
}

TEST_F(Compiler, Segmentation) {
  const auto command = [&](const std::string& options) {
    return absl::StrCat(tests::kSegmentation, " --output_dir=", folder_ / "out",
                        " --synthetic_pictures=16 --synthetic_validation=4 --crop_height=64 --crop_width=64 "
                        "--batch_size=4 --eval_batch_size=4 --max_steps=3 --eval_steps=3 --logging_steps=1 --seed=1 "
                        "--learning_rate=1e-4 ",
                        options);
  };
  const std::vector<double> eager = eager_losses(command(""));
  expect_has(expect_losses(eager, command("--compile=whole --dynamic=marked --warm_up --explain")),
             "warm-up: 1 steps, ");
  expect_has(
      expect_losses(eager, command("--dynamic=off --explain --parts=encoder:mode=reduce-overhead,pooling:eager")),
      "region ");
  EXPECT_NE(error_of(command("--dynamic=marked")).find("the blocks of this model have sizes of their own"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo

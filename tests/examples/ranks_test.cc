// finetune and classify in several processes: the steps of one process, the files of one process, and restarts.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::Finished;
using test::has;
using test::rondorun;

// The lines of a run's metrics.jsonl without what a clock says.
std::vector<std::string> metrics(const std::string& folder) {
  std::vector<std::string> lines;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(line.substr(0, line.find(",\"targets_per_s\"")));
  return lines;
}
// Every "loss" and "eval_loss" in them.
std::vector<double> losses(const std::string& folder) {
  std::vector<double> all;
  for (const std::string& line : metrics(folder))
    for (size_t at = 0; (at = line.find("loss\":", at)) != std::string::npos; at += 6)
      if (line.compare(at + 6, 4, "null") != 0) all.push_back(std::stod(line.substr(at + 6)));
  return all;
}
void expect_near(const std::vector<double>& some, const std::vector<double>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (size_t i = 0; i < some.size(); ++i)
    EXPECT_NEAR(some[i], others[i], 1e-5 * std::abs(others[i])) << "number " << i;
}

class FinetuneRanks : public testing::Test {
 protected:
  void SetUp() override {
    nn::GPT2 model({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32}, 1);
    nn::save_pretrained(model, folder_ / "model");
    std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/gpt2.json"),
                               folder_ / "model/tokenizer.json");
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "the " << i % 7 << " of them went into the water, and we looked about.\n";
  }
  std::string program(const std::string& out, const std::string& options) const {
    return absl::StrCat(tests::kFinetune, " --model_name_or_path=", folder_ / "model",
                        " --train_file=", folder_ / "text.txt", " --output_dir=", folder_ / out,
                        " --block_size=32 --learning_rate=5e-3 --logging_steps=1 --eval_steps=6 --save_steps=4 "
                        "--max_new_tokens=4 --lr_scheduler_type=constant --per_device_train_batch_size=2 ",
                        options);
  }
  Finished run(int ranks, const std::string& out, const std::string& options, const std::string& launcher = "") const {
    return rondorun(absl::StrCat("--nproc-per-node ", ranks, " ", launcher, " ", program(out, options)));
  }
  const test::TempFolder folder_;
};

TEST_F(FinetuneRanks, MakeTheStepsOfOneProcess) {
  const Finished one = run(1, "one", "--max_steps=12 --gradient_accumulation_steps=4");
  ASSERT_EQ(one.code, 0) << one.out;
  EXPECT_GE(losses(folder_ / "one").size(), 12u + 3u);
  for (const int ranks : {2, 4}) {
    const std::string out = absl::StrCat("of", ranks);
    const Finished done = run(ranks, out,
                              absl::StrCat("--max_steps=12 --check_ranks --gradient_accumulation_steps=", 4 / ranks));
    ASSERT_EQ(done.code, 0) << done.out;
    EXPECT_TRUE(has(done, absl::StrCat(ranks, " processes share the batches"))) << done.out;
    EXPECT_FALSE(has(done, "[rank 1]")) << done.out;
    expect_near(losses(folder_ / out), losses(folder_ / "one"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / (out + "/adapter_model.safetensors")));
  }
}

TEST_F(FinetuneRanks, GoOnInAnotherNumber) {
  ASSERT_EQ(run(1, "one", "--max_steps=12 --gradient_accumulation_steps=4 --lora_dropout=0").code, 0);
  ASSERT_EQ(run(2, "part", "--max_steps=6 --gradient_accumulation_steps=2").code, 0);
  for (const auto& [ranks, accumulate] : {std::pair(4, 1), std::pair(1, 4)}) {
    const std::string out = absl::StrCat("on", ranks);
    std::filesystem::copy(folder_ / "part", folder_ / out, std::filesystem::copy_options::recursive);
    const Finished done = run(
        ranks, out,
        absl::StrCat("--max_steps=12 --resume_from_checkpoint=true --gradient_accumulation_steps=", accumulate));
    ASSERT_EQ(done.code, 0) << done.out;
    EXPECT_TRUE(has(done, "going on after step 6")) << done.out;
    expect_near(losses(folder_ / out), losses(folder_ / "one"));
  }
}

// Steps of 4 rows: one batch, two of 2, or one of 2 in each of two processes.
TEST_F(FinetuneRanks, GoOnWithAnotherBatchSize) {
  const std::string fours = "--per_device_train_batch_size=4 ";
  ASSERT_EQ(run(1, "one", fours + "--max_steps=12").code, 0);
  ASSERT_EQ(run(1, "part", fours + "--max_steps=6").code, 0);
  for (const auto& [ranks, accumulate] : {std::pair(1, 2), std::pair(2, 1)}) {
    const std::string out = absl::StrCat("twos_of", ranks);
    std::filesystem::copy(folder_ / "part", folder_ / out, std::filesystem::copy_options::recursive);
    const Finished done = run(
        ranks, out,
        absl::StrCat("--max_steps=12 --resume_from_checkpoint=true --gradient_accumulation_steps=", accumulate));
    ASSERT_EQ(done.code, 0) << done.out;
    expect_near(losses(folder_ / out), losses(folder_ / "one"));
  }
  // The rows of a step do not fit: from the beginning of the data, if that is wanted.
  const std::string threes = "--per_device_train_batch_size=3 --max_steps=12 --resume_from_checkpoint=true ";
  const Finished refused = run(1, "part", threes);
  EXPECT_NE(refused.code, 0);
  EXPECT_TRUE(has(refused, "ignore_data_skip")) << refused.out;
  EXPECT_EQ(run(1, "part", threes + "--ignore_data_skip").code, 0);
}

// Only adapters travel, from device to device.
using FinetuneRanksOnCuda = FinetuneRanks;
TEST_F(FinetuneRanksOnCuda, MakeTheStepsOfOneProcess) {
  const auto on_fake = [&](int ranks, const std::string& out, const std::string& options) {
    return rondorun(absl::StrCat("--nproc-per-node ", ranks, " ",
                                 program(out, absl::StrCat("--device=cuda --max_steps=3 --eval_steps=3 ", options))),
                    absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=3:", ranks, ":256"));
  };
  const Finished one = on_fake(1, "one", "--gradient_accumulation_steps=2");
  ASSERT_EQ(one.code, 0) << one.out;
  const Finished two = on_fake(2, "two", "--check_ranks");
  ASSERT_EQ(two.code, 0) << two.out;
  EXPECT_GE(losses(folder_ / "one").size(), 3u);
  expect_near(losses(folder_ / "two"), losses(folder_ / "one"));
}

// Kills rank 1 in its first attempt, when the file is there.
std::string killed_when_there(const std::string& file) {
  return absl::StrCat("sh -c 'case $TORCHELASTIC_RESTART_COUNT.$RANK in 0.1) until [ -f ", file,
                      " ]; do sleep 0.005; done && kill -9 $$ & ;; esac; exec \"$@\"' sh");
}

TEST_F(FinetuneRanks, StartAgainFromTheirOwnCheckpoint) {
  const std::string options = "--max_steps=60 --lora_dropout=0.1";
  ASSERT_EQ(run(2, "calm", options).code, 0);
  // Checkpoints of an earlier run lie in the folder, and nothing may go on from them.
  ASSERT_EQ(run(2, "killed", options + " --seed=9").code, 0);
  std::filesystem::remove(folder_ / "killed/ckpt-00000004.safetensors");
  const Finished done = run(2, "killed", options + " --overwrite_output_dir",
                            "--max-restarts 2 " + killed_when_there(folder_ / "killed/ckpt-00000004.safetensors"));
  ASSERT_EQ(done.code, 0) << done.out;
  EXPECT_TRUE(has(done, "was killed by signal 9 (SIGKILL); all ranks start again")) << done.out;
  EXPECT_TRUE(has(done, "resuming from ")) << done.out;
  EXPECT_EQ(metrics(folder_ / "killed"), metrics(folder_ / "calm"));
}

class ClassifyRanks : public testing::Test {
 protected:
  void SetUp() override {
    manual_seed(1);
    nn::BertModel model(
        {.vocab_size = 600, .block_size = 32, .n_layer = 2, .n_head = 2, .n_embd = 32, .n_hidden = 64, .dropout = 0});
    nn::save_pretrained(model, folder_ / "model");
    std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/bert_uncased.json"),
                               folder_ / "model/tokenizer.json");
    const char* const kinds[] = {"a runner ran", "the national gradient", "unbelievable angstrom"};
    const char* const names[] = {"sport", "state", "unit"};
    std::ofstream train(folder_ / "train.tsv"), val(folder_ / "val.tsv");
    for (int i = 0; i < 240; ++i) train << names[i % 3] << "\t" << kinds[i % 3] << (i % 5 == 0 ? " and so on\n" : "\n");
    for (int i = 0; i < 15; ++i) val << names[i % 3] << "\t" << kinds[i % 3] << " of the\n";
  }
  Finished run(int ranks, const std::string& out, int accumulate = 1, const std::string& launcher = "") const {
    return rondorun(absl::StrCat(
        "--nproc-per-node ", ranks, " ", launcher, " ", tests::kClassify, " --model_name_or_path=", folder_ / "model",
        " --train_file=", folder_ / "train.tsv", " --validation_file=", folder_ / "val.tsv",
        " --output_dir=", folder_ / out, " --gradient_accumulation_steps=", accumulate,
        " --max_seq_length=32 --per_device_train_batch_size=8 --per_device_eval_batch_size=4 --check_ranks "
        "--learning_rate=1e-3 --num_train_epochs=2 --warmup_ratio=0.1 --logging_steps=1 --save_steps=4 "
        "--load_best_model_at_end"));
  }
  const test::TempFolder folder_;
};

TEST_F(ClassifyRanks, TrainMeasureAndStartAgain) {
  const Finished one = run(1, "one", /*accumulate=*/2), calm = run(2, "calm");
  ASSERT_EQ(one.code, 0) << one.out;
  ASSERT_EQ(calm.code, 0) << calm.out;
  expect_near(losses(folder_ / "calm"), losses(folder_ / "one"));
  const std::string best = one.out.substr(one.out.find("accuracy of the best epoch"), 33);
  EXPECT_TRUE(has(calm, best)) << calm.out << one.out;
  EXPECT_TRUE(has(calm, "step 30/30")) << calm.out;  // 15 steps an epoch, of 30 batches
  EXPECT_FALSE(has(calm, "[rank 1]")) << calm.out;
  EXPECT_NO_THROW(nn::AutoModelForSequenceClassification::from_pretrained(folder_ / "calm"));
  const Finished killed = run(2, "killed", 1,
                              "--max-restarts 2 " + killed_when_there(folder_ / "killed/ckpt-00000004.safetensors"));
  ASSERT_EQ(killed.code, 0) << killed.out;
  EXPECT_TRUE(has(killed, "all ranks start again")) << killed.out;
  EXPECT_EQ(metrics(folder_ / "killed"), metrics(folder_ / "calm"));
}

// ---- Devices

class RanksOnCuda : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(folder_ / "text") << std::string(4000, 'a') << std::string(4000, 'b'); }
  Finished run(int ranks, const std::string& device, const std::string& variables = "") const {
    return rondorun(absl::StrCat("--nproc-per-node ", ranks, " ", tests::kTrainGpt, " --data=", folder_ / "text",
                                 " --out_dir=", folder_ / "out", " --device=", device),
                    absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=1:2:64 ", variables));
  }
  const test::TempFolder folder_;
};

TEST_F(RanksOnCuda, OneGpuForTwoRanksIsRefused) {
  for (const auto& [device, variables] :
       {std::pair("cuda:1", ""), std::pair("cuda", "CUDA_VISIBLE_DEVICES=1")}) {  // by number; all that both see
    const Finished run = this->run(2, device, variables);
    EXPECT_EQ(run.code, 1) << run.out;
    for (const char* rank : {"[rank 0]", "[rank 1]"})
      EXPECT_TRUE(has(run, absl::StrCat(rank, " train_gpt: ranks 0 and 1 of one machine both use cuda:"))) << run.out;
  }
}

TEST_F(RanksOnCuda, MoreRanksThanGpusAreRefused) {
  const Finished run = this->run(3, "cuda");
  EXPECT_EQ(run.code, 1) << run.out;
  EXPECT_TRUE(has(run,
                  "[rank 2] train_gpt: --device=cuda: rank 2 is process 2 of 3 on this machine, and the last of the 2 "
                  "devices that it sees is cuda:1"))
      << run.out;
}

}  // namespace
}  // namespace rondo

// examples/finetune.cc on a small published model that the test makes: an adapter and a whole model come out, and what
// cannot work is said in a sentence.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "rondo/modules/gpt2.h"
#include "rondo/modules/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

struct Finished {
  int status;
  std::string out;
  // The number behind the n-th "validation loss ".
  double validation_loss(int n) const {
    size_t at = 0;
    for (int i = 0; i <= n; ++i) at = out.find("validation loss ", at) + 16;
    return std::stod(out.substr(at));
  }
};

class Finetune : public testing::Test {
 protected:
  void SetUp() override {
    nn::GPT2 model({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32}, 1);
    nn::save_pretrained(model, folder_ / "model");
    std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/gpt2.json"),
                               folder_ / "model/tokenizer.json");
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "the " << i % 7 << " of them went into the water, and we looked about.\n";
  }
  Finished run(const std::string& options) {
    const std::string log = folder_ / "log";
    const int status = std::system(absl::StrCat(tests::kFinetune, " --model_name_or_path=", folder_ / "model",
                                                " --train_file=", folder_ / "text.txt",
                                                " --output_dir=", folder_ / "out",
                                                " --block_size=32 --learning_rate=5e-3 ", options, " >", log, " 2>&1")
                                       .c_str());
    std::stringstream out;
    out << std::ifstream(log).rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out.str()};
  }
  test::TempFolder folder_;
};

TEST_F(Finetune, AnAdapterComesOut) {
  const Finished done = run("--max_steps=30 --lora_target_modules=c_attn,c_proj,c_fc --lora_r=4 --max_new_tokens=8");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_LT(done.validation_loss(1), done.validation_loss(0) - 0.2) << done.out;
  EXPECT_NE(done.out.find("---- before"), std::string::npos);
  nn::AutoModelForCausalLM model = nn::AutoModelForCausalLM::from_pretrained(folder_ / "model");
  const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 4}, {1, 4}), base = model(ids);
  const nn::LoraReport report = nn::load_adapter(*model, folder_ / "out");
  EXPECT_EQ(report.targets.size(), 8u);
  EXPECT_GT(ops::max(ops::abs(model(ids) - base)).item(), 1e-3);
}

TEST_F(Finetune, AWholeModelComesOut) {
  const Finished done = run("--max_steps=20 --full --max_new_tokens=0");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_LT(done.validation_loss(1), done.validation_loss(0) - 1) << done.out;
  EXPECT_NO_THROW(nn::AutoModelForCausalLM::from_pretrained(folder_ / "out"));
}

TEST_F(Finetune, TheSameSeedGivesTheSameRun) {
  const Finished a = run("--max_steps=5 --lora_dropout=0.1"), b = run("--max_steps=5 --lora_dropout=0.1");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_EQ(a.out, b.out);
}

TEST_F(Finetune, WhatCannotWorkIsSaid) {
  const auto says = [](const Finished& done, const std::string& part) {
    EXPECT_EQ(done.status, 1);
    EXPECT_NE(done.out.find("finetune: "), std::string::npos) << done.out;
    EXPECT_NE(done.out.find(part), std::string::npos) << done.out;
  };
  says(run("--lora_target_modules=q_proj"), "c_attn");  // the names that exist
  says(run("--block_size=65"), "block_size");
  says(run("--model_name_or_path=/nowhere"), "/nowhere");
  std::ofstream(folder_ / "text.txt") << "";
  says(run(""), "holds no tokens");
  std::ofstream(folder_ / "text.txt") << "short";
  says(run(""), "block_size");
  nn::GPT2 other({.vocab_size = 300, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 32}, 1);
  nn::save_pretrained(other, folder_ / "model");
  std::ofstream(folder_ / "text.txt") << "the water of the people";
  says(run(""), "is not this model's");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace rondo

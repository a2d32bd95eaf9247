// examples/finetune.cc on a small published model that the test makes: an adapter and a whole model come out, Ctrl-C
// and kill -9 lose nothing, and what cannot work is said in a sentence.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

std::string contents(const std::string& path) {
  std::stringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

struct Finished {
  int status;  // negative: the signal that ended it
  std::string out;
  // The number behind the n-th "validation loss "; the last one for -1.
  double validation_loss(int n) const {
    if (n < 0) return std::stod(out.substr(out.rfind("validation loss ") + 16));
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
  pid_t start(const std::string& options) {
    const pid_t child = fork();
    if (child != 0) return child;
    const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(log, 1);
    dup2(log, 2);
    if (largest_file_ > 0) {
      const rlimit limit{largest_file_, largest_file_};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    std::vector<std::string> args = {tests::kFinetune,
                                     "--model_name_or_path=" + folder_ / "model",
                                     "--train_file=" + folder_ / "text.txt",
                                     "--output_dir=" + folder_ / "out",
                                     "--block_size=32",
                                     "--learning_rate=5e-3"};
    for (const auto word : absl::StrSplit(options, ' ', absl::SkipEmpty())) args.emplace_back(word);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Finished wait(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), contents(folder_ / "log")};
  }
  Finished run(const std::string& options) { return wait(start(options)); }
  // The lines of metrics.jsonl without what a clock says.
  std::vector<std::string> metrics(const std::string& folder) {
    std::vector<std::string> lines;
    std::ifstream file(folder + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(line.substr(0, line.find(",\"targets_per_s\"")));
    return lines;
  }
  // Waits until the run has logged so many lines.
  void wait_for_lines(size_t count) {
    for (int i = 0; i < 30'000 && metrics(folder_ / "out").size() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  test::TempFolder folder_;
  rlim_t largest_file_ = 0;  // 0: any size
};

TEST_F(Finetune, AnAdapterComesOut) {
  const Finished done = run("--max_steps=30 --lora_target_modules=c_attn,c_proj,c_fc --lora_r=4 --max_new_tokens=8");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_LT(done.validation_loss(-1), done.validation_loss(0) - 0.2) << done.out;
  EXPECT_NE(done.out.find("---- before"), std::string::npos);
  nn::AutoModelForCausalLM model = nn::AutoModelForCausalLM::from_pretrained(folder_ / "model");
  const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 4}, {1, 4}), base = model(ids);
  const nn::LoraReport report = nn::load_adapter(*model, folder_ / "out");
  EXPECT_EQ(report.targets.size(), 8u);
  EXPECT_GT(ops::max(ops::abs(model(ids) - base)).item(), 1e-3);
  EXPECT_FALSE(std::filesystem::is_empty(folder_ / "out/runs"));
  // Its checkpoints hold the adapter alone.
  const auto checkpoint = io::load_latest_checkpoint(folder_ / "out").checkpoint;
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->model.size(), 16u);
}

TEST_F(Finetune, AWholeModelComesOut) {
  const Finished done = run("--max_steps=20 --full --max_new_tokens=0 --lr_scheduler_type=cosine --warmup_ratio=0.1");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_LT(done.validation_loss(-1), done.validation_loss(0) - 1) << done.out;
  EXPECT_NO_THROW(nn::AutoModelForCausalLM::from_pretrained(folder_ / "out"));
}

TEST_F(Finetune, TheSameSeedGivesTheSameRun) {
  const std::string options = "--max_steps=5 --lora_dropout=0.1 --logging_steps=1 --overwrite_output_dir";
  ASSERT_EQ(run(options).status, 0);
  const std::vector<std::string> lines = metrics(folder_ / "out");
  ASSERT_EQ(run(options).status, 0);
  EXPECT_EQ(lines, metrics(folder_ / "out"));
  EXPECT_EQ(lines.size(), 7u);
  ASSERT_EQ(run(options + " --seed=43").status, 0);
  EXPECT_NE(lines, metrics(folder_ / "out"));
}

// An adapter in f32: the CPU's losses, but for the order of sums. In f16, with a loss scale: the same bits in other
// orders of the device's work, near the losses in f32.
TEST_F(Finetune, OnACudaDevice) {
  const std::string options =
      "--max_steps=6 --logging_steps=1 --eval_steps=4 --lora_dropout=0.1 --max_new_tokens=5 --overwrite_output_dir";
  const auto run_at = [&](const char* fake, const std::string& more) {
    const test::Setting libraries("RONDO_CUDA_PATH", tests::kFakeCudaDir), orders("RONDO_FAKE_CUDA", fake);
    const Finished done = run(options + more);
    EXPECT_EQ(done.status, 0) << done.out;
    return metrics(folder_ / "out");
  };
  const auto compare = [](const std::vector<std::string>& got, const std::vector<std::string>& expected, double most) {
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_GE(got.size(), 8u);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto loss = [](const std::string& line) { return std::stod(line.substr(line.rfind("loss\":") + 6)); };
      EXPECT_NEAR(loss(got[i]), loss(expected[i]), most * loss(expected[i])) << got[i];
    }
  };
  const std::vector<std::string> expected = run_at("1", ""), on_cuda = run_at("1:2:512", " --device=cuda:1");
  compare(on_cuda, expected, 1e-5);
  const std::vector<std::string> f16 = run_at("2:1:512", " --device=cuda --fp16");
  compare(f16, expected, 1e-3);
  EXPECT_EQ(run_at("3:1:512", " --device=cuda --fp16"), f16);
  // The whole model in bf16, on packed rows; the best parameters are read back at the end.
  const std::string whole =
      " --full --packing --bf16 --load_best_model_at_end --save_steps=2 --eval_steps=2 --gradient_accumulation_steps=2";
  compare(run_at("1", whole + " --device=cuda"), run_at("1", whole), 3e-3);
}

TEST_F(Finetune, CtrlCAndKillLoseNothing) {
  const std::string options =
      "--max_steps=60 --gradient_accumulation_steps=2 --lora_dropout=0.1 --logging_steps=1 --eval_steps=7 "
      "--save_steps=4 "
      "--max_new_tokens=0 --per_device_train_batch_size=2";
  ASSERT_EQ(run(options + " --output_dir=" + folder_ / "whole").status, 0);
  const std::vector<std::string> undisturbed = metrics(folder_ / "whole");
  ASSERT_EQ(undisturbed.size(), 60u + 10u);  // evaluations of steps 0, 7, ..., 56, 60

  Finished cancelled{0, ""};
  for (int tries = 0; tries < 5 && cancelled.status == 0; ++tries) {  // a busy machine may let the run end first
    std::filesystem::remove_all(folder_ / "out");
    const pid_t child = start(options);
    wait_for_lines(6);
    kill(child, SIGINT);
    cancelled = wait(child);
  }
  ASSERT_EQ(cancelled.status, 130) << cancelled.out;
  EXPECT_NE(cancelled.out.find("--resume_from_checkpoint=true goes on"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/adapter_config.json"));
  const std::vector<std::string> at_cancel = metrics(folder_ / "out");

  std::mt19937 random(std::random_device{}());
  int kills = 0;
  for (Finished done{-1, ""}; done.status != 0;) {
    const size_t before = metrics(folder_ / "out").size();
    const pid_t child = start(options + " --resume_from_checkpoint=true");
    if (kills < 5) {
      wait_for_lines(std::min<size_t>(before + 1 + random() % 8, undisturbed.size()));
      kill(child, SIGKILL);
      ++kills;
    }
    done = wait(child);
    ASSERT_TRUE(done.status == 0 || done.status == -SIGKILL) << done.out;
  }
  EXPECT_EQ(metrics(folder_ / "out"), undisturbed);
  EXPECT_LE(at_cancel.size(), undisturbed.size());
  for (size_t i = 0; i < at_cancel.size(); ++i) EXPECT_EQ(at_cancel[i], undisturbed[i]) << i;
  EXPECT_EQ(contents(folder_ / "out/adapter_model.safetensors"), contents(folder_ / "whole/adapter_model.safetensors"));
  EXPECT_EQ(io::list_checkpoints(folder_ / "out").size(), 2u);
}

// The disk has no room for a checkpoint: training goes on, but the run ends with an error and leaves no part of one.
TEST_F(Finetune, AFullDiskIsSaid) {
  largest_file_ = 10'000;
  const Finished done = run("--max_steps=4 --save_steps=2 --max_new_tokens=0");
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.out.find("step 2: no checkpoint: "), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("finetune: "), std::string::npos);
  EXPECT_NE(done.out.find("ckpt-00000004"), std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out"))
    EXPECT_FALSE(entry.path().string().ends_with(".safetensors") ||
                 entry.path().string().find(".tmp-") != std::string::npos)
        << entry.path();
  largest_file_ = 0;
  EXPECT_EQ(run("--max_steps=4 --max_new_tokens=0").status, 0);
}

TEST_F(Finetune, StopsEarlyWithTheBestParameters) {
  const Finished done = run(
      "--num_train_epochs=50 --learning_rate=0.5 --lr_scheduler_type=constant --eval_steps=1 --max_new_tokens=0 "
      "--early_stopping_patience=2 --load_best_model_at_end --full --max_grad_norm=0");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_NE(done.out.find("stopped early: the validation loss was lowest after step "), std::string::npos) << done.out;
}

TEST_F(Finetune, LinesOfPromptsAndChats) {
  {
    std::ofstream prompts(folder_ / "prompts.jsonl"), chats(folder_ / "chats.jsonl"), texts(folder_ / "texts.jsonl");
    for (int i = 0; i < 60; ++i) {
      const std::string question = absl::StrCat("how many went into the water on day ", i % 5, "?");
      const std::string answer = absl::StrCat(" there were ", i % 5 + 2, " of them.");
      prompts << "{\"prompt\": \"" << question << "\", \"completion\": \"" << answer << "\"}\n";
      chats << "{\"messages\": [{\"role\": \"user\", \"content\": \"" << question
            << "\"}, {\"role\": \"assistant\", \"content\": \"" << answer << "\"}]}\n";
      texts << "{\"text\": \"" << question << answer << "\"}\n";
    }
  }
  for (const std::string file : {"prompts", "chats", "texts"}) {
    SCOPED_TRACE(file);
    const Finished done = run(absl::StrCat("--train_file=", folder_ / (file + ".jsonl"),
                                           " --block_size=64 --output_dir=", folder_ / file,
                                           " --max_steps=25 --gradient_accumulation_steps=2 --bf16 "
                                           "--max_new_tokens=4"));
    ASSERT_EQ(done.status, 0) << done.out;
    EXPECT_LT(done.validation_loss(-1), done.validation_loss(0) - 0.1) << done.out;
  }
  // The template of the model's folder counts; chatml is a choice, or what is left without one, and then it is said.
  const std::string chats = "--train_file=" + folder_ / "chats.jsonl" +
                            " --block_size=64 --max_steps=1 --max_new_tokens=0";
  const Finished without = run(chats + " --output_dir=" + folder_ / "without");
  EXPECT_NE(without.out.find("has no chat template: chats are written as chatml"), std::string::npos) << without.out;
  const Finished asked = run(chats + " --chat_template=chatml --output_dir=" + folder_ / "asked");
  EXPECT_EQ(asked.out.find("chat template"), std::string::npos) << asked.out;
  EXPECT_EQ(asked.validation_loss(0), without.validation_loss(0));
  const std::string own =
      "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}";
  std::ofstream(folder_ / "model/chat_template.jinja") << own;
  const Finished with = run(chats + " --output_dir=" + folder_ / "with");
  ASSERT_EQ(with.status, 0) << with.out;
  EXPECT_EQ(with.out.find("chat template"), std::string::npos) << with.out;
  EXPECT_NE(with.validation_loss(0), without.validation_loss(0));
  std::filesystem::rename(folder_ / "model/chat_template.jinja", folder_ / "own.jinja");
  const Finished given = run(chats + " --chat_template=" + folder_ / "own.jinja" +
                             " --output_dir=" + folder_ / "given");
  EXPECT_EQ(given.validation_loss(0), with.validation_loss(0));
  std::ofstream(folder_ / "own.jinja") << "\n{% include 'x' %}";
  const Finished lacking = run(chats + " --chat_template=" + folder_ / "own.jinja" +
                               " --output_dir=" + folder_ / "lacking");
  EXPECT_EQ(lacking.status, 1);
  EXPECT_NE(lacking.out.find("line 2: the statement \"include\" is not supported"), std::string::npos) << lacking.out;
  // Packed: the same examples, each alone in its row's positions, so the first validation is the same.
  const std::string prompts = "--train_file=" + folder_ / "prompts.jsonl" + " --block_size=64 --max_new_tokens=0";
  const Finished apart = run(prompts + " --max_steps=1 --output_dir=" + folder_ / "apart");
  const Finished packed = run(prompts + " --num_train_epochs=6 --packing --output_dir=" + folder_ / "packed");
  ASSERT_EQ(apart.status, 0) << apart.out;
  ASSERT_EQ(packed.status, 0) << packed.out;
  EXPECT_NEAR(packed.validation_loss(0), apart.validation_loss(0), 2e-4);
  EXPECT_LT(packed.validation_loss(-1), packed.validation_loss(0) - 0.1) << packed.out;
  std::ofstream(folder_ / "prompts.jsonl", std::ios::app) << "{\"prompt\": \"a\", \"completion\": 3}\n";
  const Finished bad = run("--train_file=" + folder_ / "prompts.jsonl");
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.out.find("line 61"), std::string::npos) << bad.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

// What --block_size costs is said: how many examples were cut, and how many lost all that they teach.
TEST_F(Finetune, WhatIsCutIsSaid) {
  {
    std::ofstream prompts(folder_ / "prompts.jsonl");
    const std::string words = absl::StrReplaceAll("xxxxxxxxxx", {{"x", " the water of the people"}});  // 50 tokens
    for (int i = 0; i < 25; ++i)
      prompts << "{\"prompt\": \"the water" << (i < 2 ? words : "") << "\", \"completion\": \" of the people"
              << (i >= 22 ? words : "") << "\"}\n";
  }
  const std::string options = "--train_file=" + folder_ / "prompts.jsonl" + " --max_steps=1 --max_new_tokens=0";
  const Finished cut = run(options);
  ASSERT_EQ(cut.status, 0) << cut.out;
  EXPECT_NE(cut.out.find("prompts.jsonl: 23 examples; "), std::string::npos) << cut.out;
  EXPECT_NE(cut.out.find("; 3 were cut to --block_size=32; 2 were left out"), std::string::npos) << cut.out;
  const Finished whole = run(options + " --block_size=64 --output_dir=" + folder_ / "whole");
  EXPECT_NE(whole.out.find("prompts.jsonl: 25 examples; "), std::string::npos) << whole.out;
  EXPECT_EQ(whole.out.find("were cut"), std::string::npos) << whole.out;
}

TEST_F(Finetune, TheMergedModelIsBaseAndAdapter) {
  const Finished done = run("--max_steps=20 --max_new_tokens=0 --merge");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_NE(done.out.find("/out/merged"), std::string::npos) << done.out;
  nn::AutoModelForCausalLM model = nn::AutoModelForCausalLM::from_pretrained(folder_ / "model"),
                           merged = nn::AutoModelForCausalLM::from_pretrained(folder_ / "out/merged");
  EXPECT_TRUE(nn::adapter_names(*merged).empty());
  const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 4}, {1, 4}), base = model(ids);
  nn::load_adapter(*model, folder_ / "out");
  const Tensor adapted = model(ids);
  EXPECT_GT(ops::max(ops::abs(adapted - base)).item(), 1e-3);
  EXPECT_LT(ops::max(ops::abs(adapted - merged(ids))).item(), 1e-5);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/merged/tokenizer.json"));
}

TEST_F(Finetune, WhatCannotWorkIsSaid) {
  const auto says = [](const Finished& done, const std::string& part) {
    EXPECT_EQ(done.status, 1);
    EXPECT_NE(done.out.find("finetune: "), std::string::npos) << done.out;
    EXPECT_NE(done.out.find(part), std::string::npos) << done.out;
  };
  says(run("--lora_target_modules=q_proj"), "c_attn");  // the names that exist
  says(run("--block_size=65"), "--block_size=65 is longer than what this model reads: 64 tokens");
  says(run("--model_name_or_path=/nowhere"), "/nowhere");
  says(run("--bf16 --fp16"), "exclude each other");
  says(run("--full --merge"), "--merge");
  says(run("--resume_from_checkpoint=/nowhere"), "there is no checkpoint in /nowhere");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));

  // Another base under the adapter of a checkpoint.
  ASSERT_EQ(run("--max_steps=2 --max_new_tokens=0").status, 0);
  says(run("--max_steps=3"), "overwrite_output_dir");
  nn::GPT2 base({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32}, 2);
  nn::save_pretrained(base, folder_ / "model");
  says(run("--max_steps=3 --resume_from_checkpoint=true"), "another base");
  std::filesystem::remove_all(folder_ / "out");

  std::ofstream(folder_ / "text.txt") << "";
  says(run(""), "text.txt");
  std::ofstream(folder_ / "text.txt") << "short";
  says(run(""), "too few to keep 10% for validation");
  nn::GPT2 other({.vocab_size = 300, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 32}, 1);
  nn::save_pretrained(other, folder_ / "model");
  std::ofstream(folder_ / "text.txt") << "the water of the people";
  says(run(""), "is the tokenizer the model's own?");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace rondo

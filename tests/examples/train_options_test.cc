// Options that make no sense are refused by name.
#include "rondo/examples/train_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rondo/tests/errors.h"

namespace rondo::examples {
namespace {

std::string error_of_option(std::string option) {
  std::string program = "train_gpt";
  char* argv[] = {program.data(), option.data()};
  return test::error_of([&] { OptionParser parser(2, argv); });
}

TEST(TrainOptions, NumbersOutOfRangeAreRefused) {
  for (const char* name : {"learning_rate", "min_lr", "beta1", "beta2", "weight_decay", "grad_clip", "dropout",
                           "temperature", "dist_timeout"}) {
    const std::string flag = std::string("--") + name + "=";
    for (const char* bad : {"nan", "inf", "-inf"})
      EXPECT_NE(error_of_option(flag + bad).find(flag + bad + ": must be a finite number"), std::string::npos) << name;
    EXPECT_NE(error_of_option(flag + "-1").find(flag + "-1: must be a"), std::string::npos) << name;
  }
  for (const char* name : {"beta1", "beta2", "dropout"})
    EXPECT_NE(error_of_option(std::string("--") + name + "=1").find("and below 1"), std::string::npos) << name;
  for (const char* name : {"n_layer", "n_head", "n_embd", "block_size", "batch_size", "gradient_accumulation_steps",
                           "max_iters", "eval_interval", "log_interval", "keep_checkpoints"})
    EXPECT_NE(error_of_option(std::string("--") + name + "=0").find("must be at least 1"), std::string::npos) << name;
  for (const char* name : {"warmup_iters", "lr_decay_iters", "seed", "threads", "eval_iters", "checkpoint_interval",
                           "sample_tokens", "top_k"})
    EXPECT_NE(error_of_option(std::string("--") + name + "=-1").find("must be at least 0"), std::string::npos) << name;
  EXPECT_EQ(error_of_option("--grad_clip=0"), "");
}

OptionParser parsed(std::vector<std::string> options) {
  options.insert(options.begin(), "train_gpt");
  std::vector<char*> argv;
  for (std::string& option : options) argv.push_back(option.data());
  return OptionParser(static_cast<int>(argv.size()), argv.data());
}

// Where the cosine ends in a run that is resumed with --max_iters=40, from what the first run was given.
int64_t decay_of_resumed(std::vector<std::string> first, std::vector<std::string> more = {}) {
  io::Checkpoint checkpoint;
  parsed(std::move(first)).store(checkpoint.state);
  more.push_back("--max_iters=40");
  OptionParser resumed = parsed(std::move(more));
  resumed.merge(checkpoint);
  return resumed.options().lr_decay_iters;
}

TEST(TrainOptions, AResumedRunKeepsTheDecayThatItWasGiven) {
  EXPECT_EQ(decay_of_resumed({"--max_iters=20"}), 40);
  EXPECT_EQ(decay_of_resumed({"--max_iters=20", "--lr_decay_iters=30"}), 30);
  EXPECT_EQ(decay_of_resumed({"--max_iters=20", "--lr_decay_iters=30"}, {"--lr_decay_iters=35"}), 35);
}

}  // namespace
}  // namespace rondo::examples

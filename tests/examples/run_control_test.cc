#include "rondo/examples/run_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/paths.h"

namespace rondo::examples {
namespace {

// What check() says of options with one change.
std::string error_of(const std::function<void(RunOptions&)>& change) {
  RunOptions options;
  change(options);
  try {
    check(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunOptions, ErrorsNameTheOption) {
  EXPECT_EQ(error_of([](RunOptions&) {}), "no error");
  EXPECT_EQ(error_of([](RunOptions& o) { o.gradient_accumulation_steps = 0; }),
            "--gradient_accumulation_steps must be at least 1, got 0");
  EXPECT_EQ(error_of([](RunOptions& o) { o.logging_steps = 0; }), "--logging_steps must be at least 1, got 0");
  EXPECT_EQ(error_of([](RunOptions& o) { o.save_steps = -1; }), "--save_steps must be at least 0, got -1");
  EXPECT_EQ(error_of([](RunOptions& o) { o.save_total_limit = 0; }),
            "--save_total_limit must be from 1 to 1000000, got 0");
  EXPECT_EQ(error_of([](RunOptions& o) { o.max_grad_norm = NAN; }), "--max_grad_norm must not be negative, got nan");
  EXPECT_EQ(error_of([](RunOptions& o) { o.ddp_timeout = 0; }), "--ddp_timeout must be above 0 and at most 1e6, got 0");
}

// The values of a program are its defaults, and a command line changes them.
TEST(RunOptions, AProgramsOwnDefaults) {
  RunOptions options;
  options.output_dir = "here";
  options.logging_steps = 7;
  Flags flags("program", "Trains.");
  add_options(flags, options, "where it goes", "of everything");
  EXPECT_NE(flags.usage().find("--output_dir=here"), std::string::npos);
  flags.parse({"--seed=5"});
  EXPECT_EQ(trainer_options_of(options).seed, 5u);
  EXPECT_EQ(trainer_options_of(options).logging_steps, 7);
  EXPECT_EQ(trainer_options_of(options).output_dir, "here");
}

// What a full disk does not take of a program's output is not lost in silence.
TEST(RunProgram, AFullDiskIsAnError) {
  for (const char* program :
       {tests::kTrainGpt, tests::kFinetune, tests::kClassify, tests::kSegmentation, tests::kImageCaptioning}) {
    EXPECT_EQ(std::system(absl::StrCat(program, " --help > /dev/null").c_str()), 0) << program;
    EXPECT_NE(std::system(absl::StrCat(program, " --help > /dev/full 2> /dev/null").c_str()), 0) << program;
  }
}

}  // namespace
}  // namespace rondo::examples

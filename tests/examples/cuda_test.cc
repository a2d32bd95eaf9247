// examples/train_gpt.cc (and others) with --device=cuda, on the fake driver (tests/fake_cuda/): a whole run, from the
// text to the sample. And what it says where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/device/device.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

struct Finished {
  int status;
  std::string out;
};

// The root of the mean square of the differences.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class TrainOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder_ / "text");
    for (int i = 0; i < 1500; ++i) text << "the " << i * i % 17 << " of " << i % 23 << " went on.\n";
  }
  // The program, in this environment ("A=b C=d").
  Finished run(const std::string& environment, const std::string& out_dir, const std::string& options,
               const std::string& launcher = "") {
    return run_program(
        absl::StrCat(environment, " ", launcher, " ", tests::kTrainGpt, " --data=", folder_ / "text",
                     " --out_dir=", folder_ / out_dir,
                     " --threads=1 --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2 --warmup_iters=5 "
                     "--eval_interval=1000 --eval_iters=2 --log_interval=1 ",
                     options));
  }
  static Finished run_program(const std::string& command_line) {
    const std::string command = absl::StrCat("env ", command_line, " 2>&1");
    std::FILE* pipe = ::popen(command.c_str(), "r");
    Finished finished;
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) finished.out.append(buffer, n);
    finished.status = ::pclose(pipe);
    return finished;
  }
  // On the first device of the fake, whose seed chooses among all orders of work that streams and events allow.
  Finished on_fake(int seed, const std::string& out_dir, const std::string& options) {
    return run(absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=", seed, ":2:512"), out_dir,
               "--device=cuda " + options);
  }
  // The lines of metrics.jsonl without what a clock says.
  std::vector<std::string> metrics(const std::string& out_dir) {
    std::vector<std::string> lines;
    std::ifstream file(folder_ / out_dir + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(line.substr(0, line.find(",\"targets_per_s\"")));
    return lines;
  }
  std::vector<double> losses(const std::string& out_dir) {
    std::vector<double> values;
    for (const std::string& line : metrics(out_dir))
      values.push_back(std::stod(line.substr(line.find("\"loss\":") + 7)));
    return values;
  }
  std::string last_checkpoint(const std::string& out_dir) {
    std::stringstream bytes;
    bytes << std::ifstream(io::list_checkpoints(folder_ / out_dir).front(), std::ios::binary).rdbuf();
    return bytes.str();
  }
  // What the model writes at the end.
  static std::string sample_of(const Finished& finished) {
    const size_t at = finished.out.find("\n\n");
    return at == std::string::npos ? finished.out : finished.out.substr(at, finished.out.rfind("\n\n") - at);
  }
  test::TempFolder folder_;
};

TEST_F(TrainOnCuda, LossesInF32AreTheCPUs) {
  for (const std::string compile : {"none", "regions"}) {
    if (compile == "regions" && !compile::jit_available()) GTEST_SKIP() << "regions: built without LLVM";
    const std::string options = "--max_iters=50 --sample_tokens=0 --compile=" + compile;
    const Finished here = run("", "cpu", options), there = on_fake(3, "cuda", options);
    ASSERT_EQ(here.status, 0) << here.out;
    ASSERT_EQ(there.status, 0) << there.out;
    EXPECT_NE(there.out.find("compile=" + compile + ", float32, cuda:0"), std::string::npos) << there.out;
    const std::vector<double> expected = losses("cpu"), got = losses("cuda");
    ASSERT_EQ(expected.size(), 50u);
    ASSERT_EQ(got.size(), 50u);
    for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(got[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
    EXPECT_LT(got[49], got[0] - 0.3) << "it learns";
  }
}

// 200 steps of two batches with dropout, in bf16 and compiled, in one piece and resumed in another order of the
// device's work.
TEST_F(TrainOnCuda, ALongRunResumes) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const std::string options =
      "--gradient_accumulation_steps=2 --dropout=0.1 --compile=regions --sample_tokens=20 --lr_decay_iters=200 "
      "--checkpoint_interval=60 --max_iters=";
  const Finished whole = on_fake(1, "whole", options + "200 --dtype=bfloat16");
  ASSERT_EQ(whole.status, 0) << whole.out;
  ASSERT_EQ(metrics("whole").size(), 200u);
  ASSERT_EQ(on_fake(2, "parts", options + "120 --dtype=bfloat16").status, 0);
  const Finished resumed = on_fake(4, "parts", options + "200 --init_from=resume");
  ASSERT_EQ(resumed.status, 0) << resumed.out;
  EXPECT_NE(resumed.out.find("Resuming from"), std::string::npos);
  std::vector<std::string> parts = metrics("parts"), expected = metrics("whole");
  ASSERT_EQ(parts.size(), 200u);
  parts[119] = parts[119].substr(0, parts[119].find(",\"eval_loss\""));  // the first part ended with an evaluation
  expected[119] = expected[119].substr(0, parts[119].size());
  EXPECT_EQ(parts, expected);
  EXPECT_EQ(last_checkpoint("parts"), last_checkpoint("whole"));
  EXPECT_EQ(sample_of(resumed), sample_of(whole));
}

// The two devices round at other places (attention's weights are bf16 on CUDA only), so their losses part, but less
// than bf16 parts from f32 on the CPU. Over batches of 32 tokens this is chance: there the two distances are about
// equal.
TEST_F(TrainOnCuda, LossesInBF16AreWithinTheCPUsOwnDifference) {
  for (const std::string compile : {"none", "regions"}) {
    if (compile == "regions" && !compile::jit_available()) GTEST_SKIP() << "regions: built without LLVM";
    const std::string options =
        "--n_embd=64 --n_head=4 --block_size=64 --batch_size=4 --max_iters=50 --sample_tokens=0 --compile=" + compile;
    ASSERT_EQ(run("", "f32", options).status, 0);
    ASSERT_EQ(run("", "bf16", options + " --dtype=bfloat16").status, 0);
    ASSERT_EQ(on_fake(1, "cuda", options + " --dtype=bfloat16").status, 0);
    const std::vector<double> f32 = losses("f32"), bf16 = losses("bf16"), there = losses("cuda");
    ASSERT_EQ(there.size(), 50u);
    EXPECT_GT(distance(bf16, f32), 0) << compile;
    EXPECT_LE(distance(there, bf16), distance(bf16, f32)) << compile;
    // Independent errors of the CPU's size would be sqrt(2) of that size apart.
    EXPECT_LE(distance(there, f32), std::sqrt(2.0) * distance(bf16, f32)) << compile;
  }
}

TEST_F(TrainOnCuda, EveryOrderOfWorkGivesTheSameBits) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const std::string options =
      "--gradient_accumulation_steps=2 --dropout=0.1 --dtype=bfloat16 --compile=regions --max_iters=15 "
      "--sample_tokens=5";
  Finished first = on_fake(1, "first", options);
  ASSERT_EQ(first.status, 0) << first.out;
  for (const int seed : {1, 2, 3, 4, 5}) {
    const Finished again = on_fake(seed, "again", options);
    ASSERT_EQ(again.status, 0) << again.out;
    EXPECT_EQ(metrics("again"), metrics("first")) << seed;
    EXPECT_EQ(last_checkpoint("again"), last_checkpoint("first")) << seed;
    EXPECT_EQ(sample_of(again), sample_of(first)) << seed;
  }
}

// A checkpoint belongs to a run, not to a device.
TEST_F(TrainOnCuda, ARunMovesBetweenDevices) {
  const std::string options = "--compile=none --sample_tokens=0 --lr_decay_iters=8 --max_iters=";
  ASSERT_EQ(run("", "cpu", options + "8").status, 0);
  ASSERT_EQ(run("", "moves", options + "3").status, 0);
  ASSERT_EQ(on_fake(1, "moves", "--init_from=resume --lr_decay_iters=8 --max_iters=6").status, 0);
  const Finished back = run("", "moves", "--init_from=resume --lr_decay_iters=8 --max_iters=8");
  ASSERT_EQ(back.status, 0) << back.out;
  EXPECT_EQ(back.out.find("cuda"), std::string::npos) << back.out;
  const std::vector<double> expected = losses("cpu"), got = losses("moves");
  ASSERT_EQ(got.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(got[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
}

TEST_F(TrainOnCuda, SaysWhyThereIsNoDevice) {
  const std::string options = "--max_iters=1 --sample_tokens=0 --compile=none ";
  const std::string fake = absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=");
  const auto refused = [&](const std::string& environment, const std::string& device) {
    const Finished done = run(environment, "refused", options + "--device=" + device);
    EXPECT_NE(done.status, 0) << done.out;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "refused")) << "nothing was begun";
    return done.out;
  };
  EXPECT_EQ(refused("RONDO_CUDA=off", "cuda"), "train_gpt: --device=cuda: no CUDA device: RONDO_CUDA=off\n");
  EXPECT_EQ(refused(fake + "1:0:64", "cuda"),
            "train_gpt: --device=cuda: no CUDA device: the driver is there and finds no GPU\n");
  EXPECT_EQ(refused(fake + "1:2:64", "cuda:2"),
            "train_gpt: --device=cuda:2: no device cuda:2: cuda has 2 devices, counted from 0\n");
  std::string why_not;
  if (device_count(Backend::kCUDA, &why_not) == 0) {
    EXPECT_EQ(refused("", "cuda"), "train_gpt: --device=cuda: " + why_not + "\n");
  }
  const Finished second = run(fake + "1:2:64", "second", options + "--device=cuda:1");
  EXPECT_EQ(second.status, 0) << second.out;
  EXPECT_NE(second.out.find("float32, cuda:1"), std::string::npos) << second.out;
}

// examples/plain_loop.cc. A step of its model takes a minute on the fake, so this only sees where the model goes.
TEST_F(TrainOnCuda, ThePlainLoopToo) {
  const auto loop = [&](const std::string& environment) {
    const std::string program = std::filesystem::path(tests::kTrainGpt).replace_filename("plain_loop");
    const Finished done = run_program(absl::StrCat(environment, " ", program, " ", folder_ / "text", " --device=cuda"));
    EXPECT_NE(done.status, 0) << done.out;
    return done.out;
  };
  EXPECT_EQ(loop("RONDO_CUDA=off"),
            "plain_loop: no device cuda:0: no CUDA device: RONDO_CUDA=off; leave the device out, or use the CPU\n");
  const std::string full = loop(absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=1:1:2"));
  EXPECT_TRUE(full.starts_with("plain_loop: ")) << full;
  EXPECT_NE(full.find("out of memory on cuda:0"), std::string::npos) << full;
}

// The toolkit has a stub of the driver's library: a machine with the libraries and without a driver.
TEST_F(TrainOnCuda, TheLibrariesWithoutADriver) {
  const std::string stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
  if (!std::filesystem::exists(stub)) GTEST_SKIP() << "no toolkit here";
  std::filesystem::create_symlink(stub, folder_ / "libcuda.so.1");
  const Finished done = run("RONDO_CUDA_PATH=" + folder_.path(), "refused", "--max_iters=1 --device=cuda");
  EXPECT_NE(done.status, 0);
  EXPECT_EQ(done.out,
            "train_gpt: --device=cuda: no CUDA device: libcuda.so.1 is the toolkit's stub, not a driver; install the "
            "NVIDIA driver\n");
}

}  // namespace
}  // namespace rondo

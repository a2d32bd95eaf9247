// Caches from process to process: each test runs this program again, as users' processes would find it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/cpu/host_key.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

namespace fs = std::filesystem;

bool maps_contain(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(name) != std::string::npos) return true;
  return false;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The work of a child: a step of a small model, compiled unless RONDO_TEST_EAGER is set, and a report on one line.
TEST(CacheChild, DISABLED_Run) {
  std::vector<std::string> warnings;
  compile::log::set_log_sink([&](std::string_view text) { warnings.emplace_back(text); });
  std::string error;
  if (const std::string path = variable("RONDO_TEST_LOAD"); !path.empty()) {
    try {
      compile::load_artifacts(path);
    } catch (const FileError& e) {
      error = e.what();
    }
  }
  manual_seed(5);
  test::Gate model(24);
  const bool eager = !variable("RONDO_TEST_EAGER").empty();
  std::optional<compile::Regions> regions;
  if (!eager) regions = compile::compile_module(model, {.exact = true});
  const Tensor x = Tensor::randn({6, 24}).requires_grad_();
  const Tensor y = model(x);
  ops::sum(y * y).backward();
  // Kernels of optimizers live in the same places as those of regions: one that reads sizes when it runs, too.
  optim::AdamW adamw({model.gate.weight, model.gate.bias}, {.lr = 0.1});
  optim::Adafactor adafactor({model.norm.weight, model.norm.bias}, {.lr = 0.1});
  optim::KernelReport optimizers;
  for (optim::Optimizer* optimizer :
       {static_cast<optim::Optimizer*>(&adamw), static_cast<optim::Optimizer*>(&adafactor)}) {
    if (!eager) optim::compile(*optimizer);
    optimizer->step({.max_norm = 1, .zero_grad = true});
    optimizers.kernels += optimizer->kernels().kernels;
    optimizers.compilations += optimizer->kernels().compilations;
  }
  const double value = ops::sum(x.grad()).item() + ops::sum(y).item() + ops::sum(model.gate.weight).item() +
                       ops::sum(model.norm.bias).item();
  if (const std::string path = variable("RONDO_TEST_SAVE"); !path.empty()) compile::save_artifacts(path);
  const compile::CacheReport report = compile::cache_report();
  std::printf(
      "CHILD|value=%a|optimizer_kernels=%d|optimizer_compilations=%d|compilations=%d|fresh=%d|misses=%d|disk=%d|"
      "artifacts=%d|"
      "warnings=%zu|llvm=%d|why=%s|error=%s\n",
      value, optimizers.kernels, optimizers.compilations, regions ? regions->report()[0].compilations : 0,
      regions ? regions->report()[0].fresh_programs : 0, static_cast<int>(report.misses),
      static_cast<int>(report.from_disk), static_cast<int>(report.from_artifacts), warnings.size(),
      maps_contain("libLLVM") || maps_contain("librondo_jit_llvm"),
      report.missed.empty() ? "" : report.missed[0].component.c_str(), error.c_str());
}

using Report = std::map<std::string, std::string>;

// A process with these variables set, and none of the cache's that this one may have been started with. It runs its
// test in whatever shard this one is.
Report child(const std::string& environment) {
  const std::string command =
      "env -u RONDO_CACHE -u RONDO_CACHE_DIR -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX "
      "RONDO_TEST_DISK=1 RONDO_CUDA=off OMP_NUM_THREADS=2 " +
      environment + " " + fs::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests --gtest_filter=CacheChild.DISABLED_Run 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = ::pclose(pipe);
  Report report;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(output, '\n'))) {
    if (!line.starts_with("CHILD|")) continue;
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(line.substr(6), '|'))) {
      const size_t equals = part.find('=');
      report[part.substr(0, equals)] = part.substr(equals + 1);
    }
  }
  EXPECT_EQ(status, 0) << output;
  EXPECT_FALSE(report.empty()) << output;
  return report;
}

class CacheProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    if (compile::describe_cpu(compile::kernel_cpu()).empty()) GTEST_SKIP() << "nothing is kept on disk here";
    expected_ = child("RONDO_TEST_EAGER=1")["value"];
  }
  std::string folder() const { return "RONDO_CACHE_DIR=" + (temp_ / "cache") + " "; }
  void expect_right(const Report& report) { EXPECT_EQ(report.at("value"), expected_); }

  test::TempFolder temp_;
  std::string expected_;
};

TEST_F(CacheProcess, AProcessThatNeverCompilesNeverLoadsLlvm) {
  const Report report = child(folder() + "RONDO_TEST_EAGER=1");
  EXPECT_EQ(report.at("llvm"), "0");
  EXPECT_FALSE(fs::exists(temp_ / "cache"));
}

TEST_F(CacheProcess, AWarmProcessCompilesNothing) {
  const Report cold = child(folder()), warm = child(folder());
  expect_right(cold);
  expect_right(warm);
  EXPECT_EQ(cold.at("llvm"), "1");
  EXPECT_EQ(cold.at("disk"), "0");
  EXPECT_GT(std::stoi(cold.at("misses")), 0);
  EXPECT_EQ(warm.at("llvm"), "0");
  EXPECT_EQ(warm.at("misses"), "0");
  EXPECT_EQ(warm.at("disk"), cold.at("misses"));
  EXPECT_EQ(cold.at("compilations"), "1");
  EXPECT_EQ(warm.at("compilations"), "0");
  for (const Report* report : {&cold, &warm}) EXPECT_EQ(report->at("fresh"), "1");  // what the recompile limit bounds
  EXPECT_GE(std::stoi(cold.at("optimizer_kernels")), 2);
  EXPECT_EQ(warm.at("optimizer_kernels"), cold.at("optimizer_kernels"));
  EXPECT_EQ(warm.at("optimizer_compilations"), "0");
}

TEST_F(CacheProcess, OffMeansOff) {
  for (int i = 0; i < 2; ++i) {
    const Report report = child(folder() + "RONDO_CACHE=off");
    expect_right(report);
    EXPECT_NE(report.at("misses"), "0");
    EXPECT_EQ(report.at("disk"), "0");
  }
  EXPECT_FALSE(fs::exists(temp_ / "cache"));
}

TEST_F(CacheProcess, TheFolderFollowsTheStandard) {
  const std::string none = "RONDO_CACHE_DIR= ";
  child(none + "XDG_CACHE_HOME=" + (temp_ / "xdg"));
  EXPECT_TRUE(fs::exists(temp_ / "xdg/rondo"));
  child(none + "XDG_CACHE_HOME=relative HOME=" + (temp_ / "home"));
  EXPECT_TRUE(fs::exists(temp_ / "home/.cache/rondo"));
  EXPECT_FALSE(fs::exists("relative"));
}

TEST_F(CacheProcess, EightProcessesAtOnce) {
  std::vector<Report> reports(8);
  std::vector<std::thread> threads;
  for (Report& report : reports) threads.emplace_back([&] { report = child(folder()); });
  for (std::thread& thread : threads) thread.join();
  for (const Report& report : reports) {
    expect_right(report);
    EXPECT_EQ(report.at("warnings"), "0");
  }
  const Report warm = child(folder());
  expect_right(warm);
  EXPECT_EQ(warm.at("misses"), "0");
  for (const auto& file : fs::recursive_directory_iterator(temp_ / "cache"))
    EXPECT_FALSE(file.path().filename().string().starts_with(".tmp")) << file.path();
}

TEST_F(CacheProcess, EveryEntryDamaged) {
  const Report cold = child(folder());
  int entries = 0;
  for (const auto& file : fs::recursive_directory_iterator(temp_ / "cache")) {
    if (file.path().extension() != ".rk") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(file.file_size()) / 2);
    bytes << "damage";
    ++entries;
  }
  EXPECT_EQ(std::to_string(entries), cold.at("misses"));
  const Report damaged = child(folder()), repaired = child(folder());
  expect_right(damaged);
  EXPECT_EQ(damaged.at("warnings"), "1");
  EXPECT_EQ(damaged.at("misses"), cold.at("misses"));
  expect_right(repaired);
  EXPECT_EQ(repaired.at("misses"), "0");
  EXPECT_EQ(repaired.at("warnings"), "0");
}

// Damage that a checksum does not see: bytes that were never code.
TEST_F(CacheProcess, EntriesThatAreNoCode) {
  child(folder());
  for (const auto& file : fs::recursive_directory_iterator(temp_ / "cache")) {
    if (file.path().extension() != ".rk") continue;
    std::ifstream in(file.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    auto contents = io::unpack(bytes);
    ASSERT_TRUE(contents.ok());
    contents->kernels[0].object = std::string(5000, 'x');
    std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << io::pack(*contents);
  }
  const Report spoiled = child(folder()), repaired = child(folder());
  expect_right(spoiled);
  EXPECT_EQ(spoiled.at("warnings"), "1");
  EXPECT_EQ(repaired.at("misses"), "0");
}

TEST_F(CacheProcess, AFolderThatCannotBe) {
  const Report report = child("RONDO_CACHE_DIR=/proc/nowhere/cache");
  expect_right(report);
  EXPECT_EQ(report.at("warnings"), "1");
}

TEST_F(CacheProcess, ArtifactsTravel) {
  const std::string off = "RONDO_CACHE=off ", file = temp_ / "kernels.rondo";
  const Report maker = child(off + "RONDO_TEST_SAVE=" + file);
  expect_right(maker);
  // To a machine without a code generator, too.
  const Report user = child(off + "RONDO_JIT_LIBRARY=/nowhere/none.so RONDO_TEST_LOAD=" + file);
  expect_right(user);
  EXPECT_EQ(user.at("artifacts"), maker.at("misses"));
  EXPECT_EQ(user.at("misses"), "0");
  EXPECT_EQ(user.at("llvm"), "0");
  EXPECT_EQ(user.at("optimizer_kernels"), maker.at("optimizer_kernels"));
  EXPECT_EQ(user.at("optimizer_compilations"), "0");
  // What a process loaded it can pass on.
  const std::string second = temp_ / "again.rondo";
  child(off + "RONDO_TEST_LOAD=" + file + " RONDO_TEST_SAVE=" + second);
  const auto read = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  EXPECT_EQ(read(file), read(second));
}

TEST_F(CacheProcess, ArtifactsAreRefusedWithAReason) {
  const std::string off = "RONDO_CACHE=off ", file = temp_ / "kernels.rondo", changed = temp_ / "changed.rondo";
  child(off + "RONDO_TEST_SAVE=" + file);
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto refused = [&](const std::string& contents, const std::string& reason, mode_t mode = 0600) {
    fs::remove(changed);
    std::ofstream(changed, std::ios::binary) << contents;
    fs::permissions(changed, static_cast<fs::perms>(mode));
    const Report report = child(off + "RONDO_TEST_LOAD=" + changed);
    EXPECT_NE(report.at("error").find(reason), std::string::npos) << report.at("error");
    EXPECT_NE(report.at("error").find(changed), std::string::npos) << report.at("error");
    EXPECT_EQ(report.at("artifacts"), "0");
    expect_right(report);
  };
  refused(bytes.substr(0, bytes.size() / 2), "cut short");
  refused("", "shorter than its header");
  refused("no such thing at all, whatever it is", "no artifact file");
  refused(bytes, "chmod", 0666);
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 1);
  refused(flipped, "checksum");
  io::KernelFile contents = io::unpack_artifact(bytes)->at(0);
  const std::string host = contents.host;
  contents.host = host;
  contents.host.insert(contents.host.find("cpu: ") + 5, "avx9000 ");
  refused(io::pack_artifact({contents}), "cpu: there avx9000, here nothing more");
  contents.host = host;
  contents.host.replace(contents.host.find("build: ") + 7, 4, "0000");
  refused(io::pack_artifact({contents}), "build: there 0000");
  contents.host = "target: cuda sm_90\nbuild: x\nnvrtc: 13.0\nflags: x\n";
  refused(io::pack_artifact({contents}), "made for cuda sm_90, and no CUDA device: ");
  contents.host = "target: abacus\n";
  refused(io::pack_artifact({contents}), "made for abacus, which this build does not know");
  contents.host = host;
  contents.kernels[0].object.resize(contents.kernels[0].object.size() / 2);
  refused(io::pack_artifact({contents}), "object code");
  const Report missing = child(off + "RONDO_TEST_LOAD=" + (temp_ / "missing"));
  EXPECT_NE(missing.at("error").find("no such file"), std::string::npos);
}

}  // namespace
}  // namespace rondo

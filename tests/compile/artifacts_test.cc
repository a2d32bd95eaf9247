// Artifacts as bytes and streams, and what is refused of them. Those of another process: cache_process_test.cc.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "rondo/compile/cache.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/tuner.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

using compile::ArtifactError;

class Artifacts : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available(kCPU)) GTEST_SKIP() << "built without LLVM";
    if (compile::cache_report().folder != "") GTEST_SKIP() << "the disk cache is on";
    compile::reset();
    manual_seed(1);
    x_ = Tensor::randn({6, 24}).to(kCPU);
    model_.to(kCPU);
  }
  // Compiles and runs; how many kernels no cache had.
  int64_t misses(compile::Mode mode = compile::Mode::kDefault) {
    compile::reset();
    return run(mode);
  }
  int64_t run(compile::Mode mode = compile::Mode::kDefault) {
    const int64_t before = compile::cache_report().misses;
    compile::compile_module(model_, {.exact = true, .mode = mode});
    const Tensor y = model_(x_);
    EXPECT_TRUE(!expected_.defined() || test::same_bits(y, expected_));
    expected_ = y.detach();
    return compile::cache_report().misses - before;
  }

  test::Gate model_{24};
  Tensor x_, expected_;
};

TEST_F(Artifacts, TravelAsBytesAndAsStreams) {
  const int64_t kernels = misses();
  EXPECT_GT(kernels, 0);
  const std::string bytes = compile::artifact_bytes();
  std::stringstream stream;
  compile::save_artifacts(stream);
  EXPECT_EQ(stream.str(), bytes);
  const test::TempFolder folder;
  compile::save_artifacts(folder / "kernels.rondo");
  std::ifstream file(folder / "kernels.rondo", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), bytes);
  EXPECT_EQ(misses(), kernels) << "forgotten";
  for (int way = 0; way < 3; ++way) {
    compile::reset();
    const int loaded = way == 0   ? compile::load_artifact_bytes(bytes)
                       : way == 1 ? compile::load_artifacts(stream)
                                  : compile::load_artifacts(folder / "kernels.rondo");
    EXPECT_EQ(loaded, kernels) << way;
    EXPECT_EQ(run(), 0) << way;
  }
}

// What was measured travels, too.
TEST_F(Artifacts, HaveTheChoicesOfMaxAutotune) {
  misses(compile::Mode::kMaxAutotune);
  const io::KernelFile section = io::unpack_artifact(compile::artifact_bytes())->at(0);
  int choices = 0;
  for (const io::KernelRecord& record : section.kernels) choices += compile::Tuner::is_choice(record);
  EXPECT_GT(choices, 0);
  EXPECT_EQ(compile::load_artifact_bytes(compile::artifact_bytes()),
            static_cast<int>(section.kernels.size()) - choices);
}

TEST_F(Artifacts, AKernelThatTheProcessHasIsCountedAsSuch) {
  const int64_t kernels = misses();
  const int64_t before = compile::cache_report().from_memory;
  test::Gate same(24);
  same.to(kCPU);
  const compile::Regions regions = compile::compile_module(same, {.exact = true});
  same(x_);
  EXPECT_EQ(compile::cache_report().from_memory - before, kernels);
}

TEST_F(Artifacts, AFailingStreamIsAnError) {
  misses();
  std::ofstream full("/dev/full");
  EXPECT_EQ(test::error_of([&] { compile::save_artifacts(full); }),
            "save_artifacts: the stream did not take the bytes");
  std::ifstream none("/nowhere/at/all");
  EXPECT_EQ(test::error_of([&] { compile::load_artifacts(none); }),
            "load_artifacts: the stream has failed already; did its file open?");
}

TEST_F(Artifacts, SayWhyTheyAreRefused) {
  misses();
  const std::string bytes = compile::artifact_bytes();
  const auto refused = [&](const std::string& changed, ArtifactError::Cause cause, const std::string& reason) {
    try {
      compile::load_artifact_bytes(changed);
      ADD_FAILURE() << "taken: " << reason;
    } catch (const ArtifactError& error) {
      EXPECT_EQ(error.cause(), cause) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
      EXPECT_EQ(error.path(), "artifacts");
    }
  };
  using Cause = ArtifactError::Cause;
  refused("", Cause::kDamaged, "shorter than its header");
  refused(bytes.substr(0, bytes.size() - 1), Cause::kDamaged, "cut short");
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 1);
  refused(flipped, Cause::kDamaged, "checksum");
  std::string newer = bytes;
  ++newer[8 + 8 + 8 + 8];  // behind the artifact's head and the section's length: the section's version
  refused(newer, Cause::kOtherVersion, "format version 2; this build reads 1");

  io::KernelFile section = io::unpack_artifact(bytes)->at(0);
  const std::string host = section.host;
  const auto with = [&](const std::string& key, const std::string& value) {
    io::KernelFile changed = section;
    changed.host.insert(host.find(key + ": ") + key.size() + 2, value);
    return io::pack_artifact({changed});
  };
  refused(with("cpu", "avx9000 "), Cause::kOtherMachine, "cpu: there avx9000");
  refused(with("build", "0000"), Cause::kOtherVersion, "build: there 0000");
  refused(with("llvm", "9"), Cause::kOtherVersion, "llvm: there");
  section.host = "target: abacus\n";
  refused(io::pack_artifact({section}), Cause::kOtherMachine, "made for abacus, which this build does not know");
  section.host = host;
  section.kernels = {{"tuning, 2 ways\nx", "2"}};
  refused(io::pack_artifact({section}), Cause::kDamaged, "a tuning result is damaged");
  section.kernels = {{"tuning, many ways\nx", "0"}};
  refused(io::pack_artifact({section}), Cause::kDamaged, "a tuning result is damaged");
}

// Bytes that mean harm give an error or are taken; nothing else happens. (That a wrong checksum is found is tested
// above: here it is right.)
TEST_F(Artifacts, HostileBytes) {
  misses();
  const std::string bytes = compile::artifact_bytes();
  std::mt19937_64 random(7);
  const io::KernelFile good = io::unpack_artifact(bytes)->at(0);
  for (int i = 0; i < 300; ++i) {
    std::string changed = bytes;
    if (i % 2 == 0) {
      for (int k = 0; k < 4; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    } else {
      io::KernelFile section = good;
      io::KernelRecord& record = section.kernels[random() % section.kernels.size()];
      record.object.resize(random() % (record.object.size() + 1));
      if (!record.object.empty()) record.object[random() % record.object.size()] = static_cast<char>(random());
      record.kernel += 'x';  // no region asks for it: it must not run
      changed = io::pack_artifact({section});
    }
    try {
      compile::load_artifact_bytes(changed);
    } catch (const ArtifactError&) {
    }
  }
  compile::reset();
  EXPECT_GT(run(), 0);
}

}  // namespace
}  // namespace rondo

// The code of a process: found in memory, in artifacts, on disk, or missed, and a miss says why.
#include "rondo/compile/jit/code_store.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/jit/cpu/host_key.h"
#include "rondo/compile/jit/cpu/target.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/kernel_fixture.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo::compile {
namespace {

// The host's code.
struct HostStore : CodeStore {
  explicit HostStore(DiskCacheOptions disk, HostKey key = host_key())
      : CodeStore(std::move(disk), std::move(key), cpu::kTarget) {}
};

class CodeStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!toolchain_exists()) GTEST_SKIP() << "built without LLVM";
    if (!can_place_objects()) GTEST_SKIP() << "nothing is kept on disk here";
  }
  // As compile_kernels does.
  static std::shared_ptr<const MachineCode> get(CodeStore& store, const LoopKernel& kernel) {
    const std::string text = code_text(kernel);
    std::shared_ptr<const MachineCode> code = store.find(text).code;
    return code != nullptr ? code : store.add(text, compile_object(kernel, {}));
  }
  DiskCacheOptions disk() const { return {.folder = temp_ / "cache"}; }

  test::TempFolder temp_;
};

TEST_F(CodeStoreTest, CountsWhereCodeComesFrom) {
  HostStore first(disk());
  const auto code = get(first, scale(2));
  EXPECT_EQ(get(first, scale(2)), code);
  const KernelFile artifact = first.contents();
  CacheReport report = first.report();
  EXPECT_EQ(report.misses, 1);
  EXPECT_EQ(report.from_memory, 1);
  EXPECT_EQ(report.from_disk + report.from_artifacts, 0);
  EXPECT_EQ(report.folder, temp_ / "cache");

  HostStore second(disk());
  get(second, scale(2));
  EXPECT_EQ(second.report().from_disk, 1);
  EXPECT_EQ(second.report().misses, 0);

  HostStore third({});
  EXPECT_FALSE(third.has_artifacts());
  EXPECT_EQ(artifact.kernels.size(), 1u);
  EXPECT_TRUE(third.take(artifact).ok());
  EXPECT_TRUE(third.has_artifacts());
  get(third, scale(2));
  get(third, scale(2));
  report = third.report();
  EXPECT_EQ(report.from_artifacts, 1);
  EXPECT_EQ(report.from_memory, 1);
  EXPECT_EQ(report.misses, 0);
  EXPECT_EQ(report.folder, "");
}

TEST_F(CodeStoreTest, AMissNamesTheNearestKernel) {
  HostStore store(disk());
  get(store, scale(2));
  CacheReport report = store.report();
  ASSERT_EQ(report.missed.size(), 1u);
  EXPECT_EQ(report.missed[0].component, "kernel");
  EXPECT_EQ(report.missed[0].why, "there is no other kernel to compare with");

  // One that is not as near.
  KernelBuilder b("row sums", 6, 20, 2);
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.load(b.dense(kBF16), kF32));
  b.stage(1).in_row().store(b.per_row(kF32, true), sum);
  get(store, b.kernel);

  // In another process, that sees the first kernels on disk only.
  HostStore other(disk());
  get(other, scale(2, 64));
  report = other.report();
  ASSERT_EQ(report.missed.size(), 1u);
  EXPECT_EQ(report.missed[0].kernel, code_text(scale(2, 64)));
  EXPECT_EQ(report.missed[0].component, "kernel");
  EXPECT_EQ(report.missed[0].why,
            "line 1: there \"kernel rows=1 cols=100 split_columns\", here \"kernel rows=1 "
            "cols=64 split_columns\"");
}

TEST_F(CodeStoreTest, TheLogTellsHitsFromMisses) {
  std::vector<std::string> lines;
  const log::Sink before = log::set_log_sink([&](std::string_view text) { lines.emplace_back(text); });
  log::configure("cache");
  HostStore first(disk()), second(disk());
  get(first, scale(2));
  get(first, scale(2));
  get(second, scale(2));
  log::configure("");
  get(second, scale(2));
  log::set_log_sink(before);
  const std::string kernel = "[rondo cache] kernel rows=1 cols=100 split_columns: ";
  EXPECT_EQ(lines, (std::vector<std::string>{kernel + "miss: there is no other kernel to compare with\n",
                                             kernel + "found in memory\n", kernel + "found on disk\n"}));
}

TEST_F(CodeStoreTest, AMissNamesTheComponentThatChanged) {
  for (const char* component : {"build", "llvm", "launch_abi", "cpu"}) {
    HostKey older = host_key();
    for (HostKey::Component& c : older.components)
      if (c.name == component) c.value = "old";
    HostStore before({.folder = temp_ / component}, older), now({.folder = temp_ / component});
    get(before, scale(2));
    get(now, scale(2));
    const CacheReport report = now.report();
    ASSERT_EQ(report.missed.size(), 1u);
    EXPECT_EQ(report.missed[0].component, component);
    EXPECT_TRUE(report.missed[0].why.starts_with(std::string(component) + ": there old, here "))
        << report.missed[0].why;
    // The same with an artifact file.
    const absl::Status status = now.take(before.contents());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(absl::StrCat(component, ": there old")), absl::string_view::npos) << status;
  }
}

TEST_F(CodeStoreTest, CodeOutlivesWhatIsForgotten) {
  HostStore store({});
  const auto code = get(store, scale(2));
  store.forget();
  EXPECT_EQ(store.find(code_text(scale(2))).code, nullptr);
  float x[16] = {1}, y[16] = {};
  void* operands[] = {x, y};
  const LoopKernel kernel = scale(2);
  code->entry()(operands, nullptr, extents(kernel).data(), 0, 16);
  EXPECT_EQ(y[0], 2);
}

TEST_F(CodeStoreTest, KeepsABoundedNumber) {
  HostStore store({});
  const std::string object = compile_object(scale(2), {});
  for (int i = 0; i < 9000; ++i) store.add("kernel " + std::to_string(i), object);
  EXPECT_NE(store.find("kernel 8999").code, nullptr);
  EXPECT_EQ(store.find("kernel 0").code, nullptr);
}

TEST_F(CodeStoreTest, ArtifactsThatCannotBeWritten) {
  HostStore store({});
  EXPECT_THROW(save_artifacts(temp_ / "no/such/folder/artifacts"), FileError);
  EXPECT_THROW(load_artifacts(temp_.path()), FileError);
}

TEST(HostKeyTest, IsTheSameEveryTime) {
  EXPECT_EQ(host_key().text(), HostKey::parse(host_key().text()).text());
  EXPECT_EQ(describe_cpu(kernel_cpu()), describe_cpu(kernel_cpu()));
  EXPECT_EQ(compare(host_key(), host_key()).components, "");
}

}  // namespace
}  // namespace rondo::compile

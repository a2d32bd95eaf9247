#include "rondo/optim/trainer/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

TEST(RunLock, TheSecondRunIsToldWhoHasTheFolder) {
  const std::string folder = ::testing::TempDir() + absl::StrCat("run_lock_", ::getpid());
  {
    const RunLock first(folder);
    EXPECT_NE(test::error_of([&] {
                RunLock second(folder);
              }).find(absl::StrCat("another run writes to ", folder, " (process ", ::getpid(), ")")),
              std::string::npos);
  }
  { const RunLock after(folder); }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rondo::optim

// The training loop in the README is examples/plain_loop.cc, to the letter.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "rondo/tests/paths.h"

namespace rondo {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Readme, TheTrainingLoopIsThatOfPlainLoop) {
  const std::string root = rondo::tests::kSourceDir, loop = contents(root + "/examples/plain_loop.cc");
  ASSERT_FALSE(loop.empty());
  EXPECT_EQ(std::count(loop.begin(), loop.end(), '\n'), 39);
  EXPECT_NE(contents(root + "/README.md").find("```cpp\n" + loop + "```\n"), std::string::npos);
}

}  // namespace
}  // namespace rondo

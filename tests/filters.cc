#include "rondo/tests/filters.h"

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace rondo::test {
namespace {

std::vector<std::string> names_of_tests() {
  std::vector<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j)
      names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
  }
  return names;
}

}  // namespace

bool every_filter_matches() {
  const std::vector<std::string> names = names_of_tests();
  std::string filter = testing::GTEST_FLAG(filter);
  // "positive:positive-negative:negative": the first dash divides them. No test's name has a dash.
  std::replace(filter.begin(), filter.end(), '-', ':');
  std::istringstream patterns(filter);
  bool good = true;
  for (std::string pattern; std::getline(patterns, pattern, ':');) {
    const auto matches = [&](const std::string& name) {
      return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
    };
    if (pattern.empty() || std::any_of(names.begin(), names.end(), matches)) continue;
    std::fprintf(stderr, "--gtest_filter: no test of this program matches '%s'\n", pattern.c_str());
    good = false;
  }
  return good;
}

}  // namespace rondo::test

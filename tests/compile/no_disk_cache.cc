// Tests of compile/ compile what they run: what an earlier run has left on disk would hide that from them. A process
// that tests the disk cache itself sets RONDO_TEST_DISK (cache_process_test.cc).
#include <gtest/gtest.h>

#include <cstdlib>

namespace rondo {
namespace {

class NoDiskCache : public testing::Environment {
  void SetUp() override {
    const char* const disk = std::getenv("RONDO_TEST_DISK");
    if (disk == nullptr || *disk == '\0') setenv("RONDO_CACHE", "off", 1);
  }
};
const testing::Environment* const no_disk_cache = testing::AddGlobalTestEnvironment(new NoDiskCache);

}  // namespace
}  // namespace rondo

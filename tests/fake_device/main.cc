// The main program of the tests. RONDO_TEST_DEVICE=fake:SEED runs them on the fake device, RONDO_TEST_DEVICE=cuda on a
// CUDA device: on a real one, or on tests/fake_cuda/ with RONDO_CUDA_PATH and RONDO_FAKE_CUDA. Factories then make
// their tensors there.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "rondo/runtime/base/error.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/filters.h"

namespace rondo::test {
namespace {

Device chosen;

// A lost device fails every later test of its process. With RONDO_TEST_CUDA=real the process ends after the first one
// with exit code 70, and tests/gpu/run.sh goes on in a new one.
class EndsWithTheDevice : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    lost_ |= result.failed() && std::strstr(result.message(), "the device's context is dead") != nullptr;
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!lost_) return;
    std::printf("[  FAILED  ] %s.%s (%lld ms)\nThe device is lost: this process ends.\n", test.test_suite_name(),
                test.name(), static_cast<long long>(test.result()->elapsed_time()));
    std::fflush(nullptr);
    std::_Exit(70);
  }

  bool lost_ = false;
};

}  // namespace
Device test_device() { return chosen; }

// With RONDO_TEST_SKIPPED=77 a process ends with 77 if it skipped every test that it ran: CTest calls that skipped.
int run_all_tests() {
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const char* code = std::getenv("RONDO_TEST_SKIPPED");
  const bool skipped = all.skipped_test_count() > 0 && all.successful_test_count() == 0;
  return result == 0 && skipped && code != nullptr ? std::atoi(code) : result;
}

// Defined by tests/compiled_runs.h, where the program links the compiler.
[[gnu::weak]] void watch_compiled_runs();
}  // namespace rondo::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!rondo::test::every_filter_matches()) return 2;
  if (const char* real = std::getenv("RONDO_TEST_CUDA"); real != nullptr && std::strcmp(real, "real") == 0)
    testing::UnitTest::GetInstance()->listeners().Append(new rondo::test::EndsWithTheDevice);  // Google Test deletes it
  if (rondo::test::watch_compiled_runs != nullptr) rondo::test::watch_compiled_runs();
  const char* name = std::getenv("RONDO_TEST_DEVICE");
  if (name == nullptr) return rondo::test::run_all_tests();
  std::optional<rondo::test::FakeDevice> fake;
  std::optional<rondo::DeviceScope> scope;
  try {
    if (std::strncmp(name, "fake:", 5) == 0)
      fake.emplace(rondo::test::FakeDeviceOptions{.seed = std::strtoull(name + 5, nullptr, 10)});
    rondo::test::chosen = fake ? fake->device() : rondo::parse_device(name);
    scope.emplace(rondo::test::chosen);
  } catch (const rondo::Error& error) {
    std::fprintf(stderr, "RONDO_TEST_DEVICE=%s: %s; or write fake:SEED\n", name, error.what());
    return 2;
  }
  return rondo::test::run_all_tests();
}

// The main program of the tests. RONDO_TEST_DEVICE=fake:SEED runs them on the fake device, where factories then make
// their tensors.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::test {
namespace {
Device chosen;
}
Device test_device() { return chosen; }
}  // namespace rondo::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* name = std::getenv("RONDO_TEST_DEVICE");
  if (name == nullptr) return RUN_ALL_TESTS();
  if (std::strncmp(name, "fake:", 5) != 0) {
    std::fprintf(stderr, "RONDO_TEST_DEVICE: fake:SEED, not %s\n", name);
    return 2;
  }
  rondo::test::FakeDevice fake({.seed = std::strtoull(name + 5, nullptr, 10)});
  rondo::test::chosen = fake.device();
  const rondo::DeviceScope scope(fake.device());
  return RUN_ALL_TESTS();
}

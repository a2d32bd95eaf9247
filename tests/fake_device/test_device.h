// The device that RONDO_TEST_DEVICE names.
#pragma once

#include "rondo/runtime/device/device.h"

namespace rondo::test {

// kCPU, the fake device or a CUDA device. It is also the default device of the main thread, unless a test changes that.
Device test_device();

}  // namespace rondo::test

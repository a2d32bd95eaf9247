// The allocator of a device when the host's memory runs short.
#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/memory/failing_memory.h"

namespace rondo {
namespace {

using test::FailingMemory;
using test::FakeCuda;

// The list of blocks in use must grow for it, and the block is cut.
TEST(MemoryOfDevices, AFreeBlockStaysFreeWhereThereIsNoMemoryToUseIt) {
  FakeCuda cuda;
  const BackendTable& table = backend_of(cuda.device());
  constexpr size_t kWhole = size_t{20} << 20, kPart = size_t{2} << 20, kSmall = 300;
  std::vector<void*> used;
  for (int i = 0; i < 7; ++i) used.push_back(table.allocate(0, kSmall));
  void* const first = table.allocate(0, kWhole);
  table.deallocate(0, first, kWhole);
  const AllocatorStats before = table.stats(0);
  int errors = 0;
  for (void* again = nullptr; again == nullptr;) {
    try {
      const FailingMemory memory(errors + 1, FailingMemory::Which::kOne);
      again = table.allocate(0, kPart);
    } catch (const std::bad_alloc&) {
      ++errors;
    }
    FailingMemory::end();
    const AllocatorStats now = table.stats(0);
    ASSERT_EQ(now.bytes_reserved, before.bytes_reserved) << "error " << errors;
    ASSERT_EQ(now.bytes_in_use, before.bytes_in_use + (again == nullptr ? 0 : static_cast<int64_t>(kPart)));
    if (again == nullptr) continue;
    EXPECT_EQ(again, first);
    table.deallocate(0, again, kPart);
  }
  EXPECT_GE(errors, 2);
  table.deallocate(0, table.allocate(0, kWhole), kWhole);
  EXPECT_EQ(table.stats(0).bytes_reserved, before.bytes_reserved) << "the parts are one block again";
  for (void* block : used) table.deallocate(0, block, kSmall);
}

}  // namespace
}  // namespace rondo

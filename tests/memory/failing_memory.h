// Memory that runs short: the n-th call of operator new fails, for one n after the other.
//
//   TEST(MemoryRunsShort, OfAnEncoding) {
//     expect_typed_errors([] {
//       auto tokenizer = std::make_shared<text::PreTrainedTokenizer>(...);          // lasts
//       return [tokenizer] { return digest(tokenizer->encode("some words")); };   // is tried again and again
//     });
//   }
//
// Each try ends well, or with OutOfMemoryError or FileError. Afterwards the same call gives the same result again.
// Threads of all kinds are hit. This folder is a program of its own, because it replaces operator new.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rondo::test {

// Tells what came of the work; the same in every call. Only calls of the library allocate in it, and digest.h.
using Work = std::function<std::string()>;

// Runs in child processes, so a crash is a failure of one n. `prepare` makes what lasts, with all the memory it wants.
// Samples some dozen n. RONDO_TEST_ALLOCATIONS=1000: a thousand n, in both ways of FailingMemory::Which (nightly).
void expect_typed_errors(const std::function<Work()>& prepare);

// For tests of single classes.
class FailingMemory {
 public:
  enum class Which : uint8_t {
    kOne,     // the n-th allocation
    kOnward,  // the n-th, and all that follow
  };
  // n = 0: none; allocations are counted.
  FailingMemory(int64_t n, Which which);
  ~FailingMemory() { end(); }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  // All memory is there again. Returns how many allocations there were.
  static int64_t end();

  // In this scope the thread has all the memory it wants: for what belongs to a test.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };
};

}  // namespace rondo::test

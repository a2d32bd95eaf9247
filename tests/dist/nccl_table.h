// A NCCL for one rank, in the test itself: collectives of one process are copies on the given stream. It does what the
// test tells it: stays in progress, reports an error, loses a collective. For two ranks and more: tests/fake_nccl/.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>

#include "rondo/dist/groups/nccl_library.h"
#include "rondo/runtime/cuda/driver.h"

namespace rondo::test {

using dist::NcclComm;
using dist::NcclConfig;
using dist::NcclId;
using dist::NcclOp;
using dist::NcclResult;
using dist::NcclType;

// What the next calls do, and what was called. One object at a time, as the functions have no state of their own.
struct OneRankNccl {
  OneRankNccl() {
    library = table();
    current() = this;
  }
  ~OneRankNccl() { current() = nullptr; }
  OneRankNccl(const OneRankNccl&) = delete;
  OneRankNccl& operator=(const OneRankNccl&) = delete;

  std::atomic<int> in_progress = 0;                        // answers of async_error() before the one that counts
  std::atomic<NcclResult> error = NcclResult::kSuccess;    // of async_error()
  std::atomic<NcclResult> refusal = NcclResult::kSuccess;  // of the next collectives
  std::atomic<bool> answers_in_progress = false;           // collectives do not say kSuccess at once
  std::atomic<int> collectives = 0, finalized = 0, destroyed = 0, aborted = 0;
  std::function<void()> on_abort;  // before abort() returns
  int blocking = -1;
  dist::NcclLibrary library;

 private:
  static OneRankNccl*& current() {
    static OneRankNccl* current = nullptr;
    return current;
  }
  static NcclComm comm() { return reinterpret_cast<NcclComm>(current()); }

  static size_t size_of(NcclType type) {
    switch (type) {
      case NcclType::kU8: return 1;
      case NcclType::kF16:
      case NcclType::kBF16: return 2;
      case NcclType::kI32:
      case NcclType::kF32: return 4;
      default: return 8;
    }
  }
  static NcclResult move(const void* from, void* to, size_t bytes, NcclComm of, void* stream) {
    OneRankNccl& me = *current();
    EXPECT_EQ(of, comm());
    EXPECT_EQ(me.aborted + me.destroyed, 0) << "a collective after the end";
    ++me.collectives;
    if (me.refusal.load() != NcclResult::kSuccess) return me.refusal;
    if (from != to) {
      const cuda::Driver& driver = *cuda::find_driver(nullptr);
      if (driver.copy_on_device(reinterpret_cast<cuda::DevicePtr>(to), reinterpret_cast<cuda::DevicePtr>(from), bytes,
                                static_cast<cuda::StreamPtr>(stream)) != cuda::Result::kSuccess)
        return NcclResult::kUnhandledCudaError;
    }
    return me.answers_in_progress ? NcclResult::kInProgress : NcclResult::kSuccess;
  }

  static dist::NcclLibrary table() {
    dist::NcclLibrary t;
    t.version = [](int* version) { return *version = 22800, NcclResult::kSuccess; };
    t.error_string = [](NcclResult result) {
      return result == NcclResult::kInProgress ? "still in progress" : "as the test says";
    };
    t.last_error = [](NcclComm) { return "its reason\nin two lines"; };
    t.unique_id = [](NcclId* id) { return id->bytes[5] = 'x', NcclResult::kSuccess; };
    t.init_rank = [](NcclComm* made, int ranks, NcclId id, int rank, NcclConfig* config) {
      EXPECT_EQ(ranks, 1);
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(id.bytes[5], 'x');
      current()->blocking = config->blocking;
      *made = comm();
      return NcclResult::kInProgress;
    };
    t.async_error = [](NcclComm, NcclResult* result) {
      OneRankNccl& me = *current();
      *result = me.in_progress > 0 ? NcclResult::kInProgress : me.error.load();
      if (me.in_progress > 0) --me.in_progress;
      return NcclResult::kSuccess;
    };
    t.finalize = [](NcclComm) { return ++current()->finalized, NcclResult::kInProgress; };
    t.destroy = [](NcclComm) { return ++current()->destroyed, NcclResult::kSuccess; };
    t.abort = [](NcclComm) {
      if (current()->on_abort) current()->on_abort();
      return ++current()->aborted, NcclResult::kSuccess;
    };
    t.all_reduce = [](const void* from, void* to, size_t n, NcclType type, NcclOp, NcclComm of, void* stream) {
      return move(from, to, n * size_of(type), of, stream);
    };
    t.broadcast = [](const void* from, void* to, size_t n, NcclType type, int, NcclComm of, void* stream) {
      return move(from, to, n * size_of(type), of, stream);
    };
    t.all_gather = [](const void* from, void* to, size_t n, NcclType type, NcclComm of, void* stream) {
      return move(from, to, n * size_of(type), of, stream);
    };
    t.reduce_scatter = [](const void* from, void* to, size_t n, NcclType type, NcclOp, NcclComm of, void* stream) {
      return move(from, to, n * size_of(type), of, stream);
    };
    return t;
  }
};

}  // namespace rondo::test

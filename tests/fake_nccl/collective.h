// What a collective computes, on bytes that lie in host memory.
//
// Sums go in the order of the ranks, 16-bit floats in f32 with one rounding at the end; integers wrap. The real library
// rounds 16-bit floats at every hop of its ring, and each part of a buffer has another order: a program must not rely
// on either. The average is the real library's (hostToDevRedOp): floats are multiplied by 1/ranks, rounded to their
// type, before they are added; integers are divided after it, towards zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rondo/tests/fake_nccl/types.h"

namespace rondo::fake_nccl {

enum class Kind : int32_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather };

size_t element_bytes(DataType dtype);
const char* name_of(Kind kind);  // of the call
const char* name_of(DataType dtype);
const char* name_of(Reduction reduction);

// As a rank calls it. `count`: as the call says it, which is of one rank's part where parts differ.
struct Collective {
  Kind kind{};
  DataType dtype{};
  Reduction reduction{};  // kSum where nothing is reduced
  int32_t root = -1;      // of a broadcast
  uint64_t count = 0;

  bool operator==(const Collective&) const = default;
  size_t send_bytes(int ranks) const;
  size_t receive_bytes(int ranks) const;
  bool reads(int rank) const { return kind != Kind::kBroadcast || rank == root; }  // the send buffer
  std::string text() const;
  // The bytes that a rank sends to others, with rings as the real library makes them.
  int64_t traffic(int ranks) const;
};

// What one rank has sent. Fewer bytes than its counterparts expect: the rest is read as 0xFF.
struct Sent {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};
// The rank's result, from what all have sent, as this rank understands the call.
void compute(const Collective& collective, int rank, const std::vector<Sent>& sent, std::byte* result);

}  // namespace rondo::fake_nccl

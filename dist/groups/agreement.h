// Describes a rank's next collective in 64 bytes. The ranks compare these bytes before a tensor moves. Without the
// comparison, different sizes would break the group's connections, and different collectives of equal size would give
// wrong numbers.
//
// No sockets and no threads in this file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rondo/dist/groups/collective.h"
#include "rondo/runtime/base/dtype.h"

namespace rondo::dist {

enum class CollectiveKind : uint8_t { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kBarrier };

// Sent as it is in memory: all ranks run the same build.
struct Call {
  uint64_t number = 0;  // the collective's number, from 1 on
  uint64_t name = 0;    // a hash of the collective's name
  int64_t numel = 0;    // elements of the tensor that a rank sends
  int32_t root = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = kU8;
  uint8_t unused = 0;

  size_t bytes() const { return static_cast<size_t>(numel) * size_of(dtype); }
  bool operator==(const Call&) const = default;
};

// A tensor of at most kInline bytes is sent with the call, so the smallest collectives (a loss, the end of a step)
// take one message.
constexpr size_t kInline = 32;
struct CallMessage {
  Call call;
  unsigned char data[kInline] = {};
};
static_assert(sizeof(CallMessage) == 64);

uint64_t hash_of_name(std::string_view name);
// Returns a text such as "all_reduce 2 (gradients; 8 f32, average)". Any bytes are allowed in `call`, which may come
// from a peer.
std::string describe(const Call& call, std::string_view name);
// True if this build knows the value of every field.
bool is_valid(const Call& call, int world_size);
// Returns the first rank whose call differs from rank 0's; 0 if all agree.
size_t first_that_differs(std::span<const CallMessage> calls, int world_size);

// The first rank whose text differs from rank 0's, and the first line that differs.
struct TextDifference {
  size_t rank, line;
  std::string there, first;  // line `line` of that rank and of rank 0: quoted, or "nothing more"
};
std::optional<TextDifference> first_difference(std::span<const std::string> texts);

// Tensors of up to this many bytes are exchanged whole, and every rank computes the result itself.
constexpr size_t kSmall = 768;
// Computes the result of a collective from the tensors of all ranks, in the order of the ranks. So every rank gets the
// same bits. `all`: world_size times call.bytes(); `to`: this rank's output. REQUIRES: call.bytes() <= kSmall.
void combine_small(const Call& call, int rank, int world_size, const unsigned char* all, void* to);

}  // namespace rondo::dist

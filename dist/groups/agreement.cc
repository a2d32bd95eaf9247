#include "rondo/dist/groups/agreement.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/kernels/reduction.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr const char* kKindNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"};
constexpr const DType kDTypes[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};

bool is_known(CollectiveKind kind) { return static_cast<size_t>(kind) < std::size(kKindNames); }
bool is_known(DType dtype) {
  for (const DType known : kDTypes)
    if (dtype == known) return true;
  return false;
}

}  // namespace

uint64_t hash_of_name(std::string_view name) {
  io::Checksum sum;
  sum.update(name);
  return sum.digest();
}

std::string describe(const Call& call, std::string_view name) {
  const std::string kind = is_known(call.kind) ? kKindNames[static_cast<size_t>(call.kind)]
                                               : absl::StrCat("unknown collective ", static_cast<int>(call.kind));
  std::string text = absl::StrCat(kind, " ", call.number, " (", std::string(name));
  if (call.kind == CollectiveKind::kBarrier) return text + ")";
  absl::StrAppend(&text, "; ", call.numel, " ",
                  is_known(call.dtype) ? std::string(name_of(call.dtype)) : std::string("of an unknown dtype"));
  if (call.op == ReduceOp::kAverage) text += ", average";
  if (call.kind == CollectiveKind::kBroadcast) absl::StrAppend(&text, " from rank ", call.root);
  return text + ")";
}

bool is_valid(const Call& call, int world_size) {
  return is_known(call.kind) && is_known(call.dtype) && (call.op == ReduceOp::kSum || call.op == ReduceOp::kAverage) &&
         call.numel >= 0 && call.root >= 0 && call.root < world_size &&
         (call.kind != CollectiveKind::kReduceScatter || call.numel % world_size == 0);
}

size_t first_that_differs(std::span<const CallMessage> calls, int world_size) {
  for (size_t r = 1; r < calls.size(); ++r)
    if (calls[r].call != calls[0].call || !is_valid(calls[r].call, world_size)) return r;
  return 0;
}

std::optional<TextDifference> first_difference(std::span<const std::string> texts) {
  size_t rank = 1;
  while (rank < texts.size() && texts[rank] == texts[0]) ++rank;
  if (rank >= texts.size()) return std::nullopt;
  const std::vector<std::string> there = absl::StrSplit(texts[rank], '\n'), first = absl::StrSplit(texts[0], '\n');
  size_t line = 0;
  while (line < there.size() && line < first.size() && there[line] == first[line]) ++line;
  const auto at = [line](const std::vector<std::string>& lines) {
    return line < lines.size() && !lines[line].empty() ? absl::StrCat("\"", lines[line], "\"")
                                                       : std::string("nothing more");
  };
  return TextDifference{rank, line, at(there), at(first)};
}

void combine_small(const Call& call, int rank, int world_size, const unsigned char* all, void* to) {
  const size_t bytes = call.bytes(), n = static_cast<size_t>(call.numel);
  if (bytes == 0) return;
  switch (call.kind) {
    case CollectiveKind::kBarrier: return;
    case CollectiveKind::kBroadcast:
      if (call.root != rank) std::memcpy(to, all + static_cast<size_t>(call.root) * bytes, bytes);
      return;
    case CollectiveKind::kAllGather: std::memcpy(to, all, static_cast<size_t>(world_size) * bytes); return;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: break;
  }
  const DType wire = wire_dtype(call.dtype);
  alignas(8) unsigned char sum[2 * kSmall] = {}, part[2 * kSmall];  // 16-bit floats are added in f32
  for (size_t r = 0; r < static_cast<size_t>(world_size); ++r) {
    unsigned char* into = r == 0 ? sum : part;
    if (wire == call.dtype) {
      std::memcpy(into, all + r * bytes, bytes);
    } else {
      alignas(8) unsigned char narrow_values[kSmall];
      std::memcpy(narrow_values, all + r * bytes, bytes);
      widen(narrow_values, call.dtype, reinterpret_cast<float*>(into), n);
    }
    if (r > 0) sum_of(wire)(sum, sum, part, n);
  }
  if (call.op == ReduceOp::kAverage) divide(sum, wire, n, world_size);
  size_t first = 0, count = n;  // the elements that this rank receives
  if (call.kind == CollectiveKind::kReduceScatter) {
    count = n / static_cast<size_t>(world_size);
    first = static_cast<size_t>(rank) * count;
  }
  if (wire == call.dtype) std::memcpy(to, sum + first * size_of(wire), count * size_of(wire));
  else narrow(reinterpret_cast<const float*>(sum) + first, to, call.dtype, count);
}

}  // namespace rondo::dist

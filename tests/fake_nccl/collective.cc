// Compiled without contraction of products and sums: a multiply-add would round once where the real library rounds
// twice.
#include "rondo/tests/fake_nccl/collective.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "rondo/runtime/base/dtype.h"

namespace rondo::fake_nccl {
namespace {

// How elements are added, and how they are stored.
template <class T> struct Arithmetic {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, T, std::make_unsigned_t<T>>;
};
template <> struct Arithmetic<Float16> { using Sum = float; };
template <> struct Arithmetic<BFloat16> { using Sum = float; };
template <> struct Arithmetic<float> { using Sum = float; };
template <> struct Arithmetic<double> { using Sum = double; };

template <class T> inline constexpr bool kIsInteger = std::is_integral_v<T>;

template <class T> T element(const Sent& sent, uint64_t i) {
  T value;
  if ((i + 1) * sizeof(T) <= sent.bytes) std::memcpy(static_cast<void*>(&value), sent.data + i * sizeof(T), sizeof(T));
  else std::memset(static_cast<void*>(&value), 0xFF, sizeof(T));
  return value;
}

template <class T>
typename Arithmetic<T>::Sum combined(Reduction reduction, typename Arithmetic<T>::Sum a,
                                     typename Arithmetic<T>::Sum b) {
  switch (reduction) {
    case Reduction::kProd: return a * b;
    // Signed integers are compared as such.
    case Reduction::kMax:
      if constexpr (kIsInteger<T>) return static_cast<T>(a) < static_cast<T>(b) ? b : a;
      else return a < b ? b : a;
    case Reduction::kMin:
      if constexpr (kIsInteger<T>) return static_cast<T>(b) < static_cast<T>(a) ? b : a;
      else return b < a ? b : a;
    default: return a + b;
  }
}

template <class T>
void reduce(Reduction reduction, uint64_t first, uint64_t count, const std::vector<Sent>& sent, std::byte* result) {
  using Sum = typename Arithmetic<T>::Sum;
  const auto ranks = static_cast<int>(sent.size());
  const bool scales = reduction == Reduction::kAvg && !kIsInteger<T>;
  Sum factor = 1;
  if constexpr (!kIsInteger<T>) {
    if constexpr (std::is_same_v<T, double>) factor = 1.0 / ranks;
    else factor = static_cast<float>(static_cast<T>(static_cast<float>(1.0 / ranks)));
  }
  for (uint64_t i = 0; i < count; ++i) {
    Sum total{};
    for (int rank = 0; rank < ranks; ++rank) {
      auto value = static_cast<Sum>(element<T>(sent[static_cast<size_t>(rank)], first + i));
      if (scales) value = value * factor;
      total = rank == 0 ? value : combined<T>(reduction, total, value);
    }
    T stored;
    if constexpr (kIsInteger<T>)
      stored = reduction == Reduction::kAvg ? static_cast<T>(static_cast<T>(total) / static_cast<T>(ranks))
                                            : static_cast<T>(total);
    else stored = static_cast<T>(total);
    std::memcpy(result + i * sizeof(T), static_cast<const void*>(&stored), sizeof(T));
  }
}

void reduce(const Collective& c, uint64_t first, const std::vector<Sent>& sent, std::byte* result) {
  switch (c.dtype) {
    case DataType::kInt8: return reduce<int8_t>(c.reduction, first, c.count, sent, result);
    case DataType::kUint8: return reduce<uint8_t>(c.reduction, first, c.count, sent, result);
    case DataType::kInt32: return reduce<int32_t>(c.reduction, first, c.count, sent, result);
    case DataType::kUint32: return reduce<uint32_t>(c.reduction, first, c.count, sent, result);
    case DataType::kInt64: return reduce<int64_t>(c.reduction, first, c.count, sent, result);
    case DataType::kUint64: return reduce<uint64_t>(c.reduction, first, c.count, sent, result);
    case DataType::kFloat16: return reduce<Float16>(c.reduction, first, c.count, sent, result);
    case DataType::kFloat32: return reduce<float>(c.reduction, first, c.count, sent, result);
    case DataType::kFloat64: return reduce<double>(c.reduction, first, c.count, sent, result);
    case DataType::kBfloat16: return reduce<BFloat16>(c.reduction, first, c.count, sent, result);
  }
}

// The part of what a rank has sent, 0xFF beyond its end.
void copy(const Sent& sent, size_t bytes, std::byte* result) {
  const size_t here = std::min(bytes, sent.bytes);
  std::memcpy(result, sent.data, here);
  std::memset(result + here, 0xFF, bytes - here);
}

}  // namespace

size_t element_bytes(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
    case DataType::kUint8: return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16: return 2;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64: return 8;
    default: return 4;
  }
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclBroadcast", "ncclReduceScatter", "ncclAllGather"};
  return kNames[static_cast<size_t>(kind)];
}
const char* name_of(DataType dtype) {
  constexpr const char* kNames[kDataTypes] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
  return kNames[static_cast<size_t>(dtype)];
}
const char* name_of(Reduction reduction) {
  constexpr const char* kNames[kReductions] = {"sum", "product", "max", "min", "average"};
  return kNames[static_cast<size_t>(reduction)];
}

size_t Collective::send_bytes(int ranks) const {
  return count * element_bytes(dtype) * (kind == Kind::kReduceScatter ? static_cast<size_t>(ranks) : 1);
}
size_t Collective::receive_bytes(int ranks) const {
  return count * element_bytes(dtype) * (kind == Kind::kAllGather ? static_cast<size_t>(ranks) : 1);
}

std::string Collective::text() const {
  std::string text = std::string(name_of(kind)) + " of " + std::to_string(count) + " " + name_of(dtype);
  if (kind == Kind::kBroadcast) text += ", root " + std::to_string(root);
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter) text += ", " + std::string(name_of(reduction));
  return text;
}

int64_t Collective::traffic(int ranks) const {
  const auto part = static_cast<int64_t>(count * element_bytes(dtype));
  if (ranks == 1) return 0;
  switch (kind) {
    case Kind::kAllReduce: return 2 * part * (ranks - 1) / ranks;
    case Kind::kBroadcast: return part;
    default: return part * (ranks - 1);
  }
}

void compute(const Collective& c, int rank, const std::vector<Sent>& sent, std::byte* result) {
  const size_t part = c.count * element_bytes(c.dtype);
  switch (c.kind) {
    case Kind::kAllReduce: return reduce(c, 0, sent, result);
    case Kind::kReduceScatter: return reduce(c, static_cast<uint64_t>(rank) * c.count, sent, result);
    case Kind::kBroadcast: return copy(sent[static_cast<size_t>(c.root)], part, result);
    case Kind::kAllGather:
      for (size_t other = 0; other < sent.size(); ++other) copy(sent[other], part, result + other * part);
  }
}

}  // namespace rondo::fake_nccl

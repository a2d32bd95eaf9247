// The descriptors of the fake's cuDNN: what was set, and what follows from it when they are finalized. The engines that
// its heuristic knows.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/tests/fake_cuda/dnn_compute.h"

namespace rondo::fake_cuda::dnn {

using cuda::DnnAttribute;
using cuda::DnnDescriptor;
using cuda::DnnKind;
using cuda::DnnNumericalNote;
using cuda::DnnStatus;
using cuda::DnnValue;

// Ends the process, or notes what is wrong and returns kBadParam; kNotSupported. The lock is held, here and below.
DnnStatus misuse(const std::string& what);
DnnStatus refuse(const std::string& why);
// What cudnnGetLastErrorString() tells this thread.
std::string& last_error();

struct Object;
using Part = std::shared_ptr<const Object>;
struct Value {
  DnnValue type{};
  int64_t count = 0;
  std::vector<std::byte> bytes;
  std::vector<Part> parts;
};
struct Object {
  DnnKind kind{};
  bool finalized = false;
  std::map<DnnAttribute, Value> values;
  // What follows.
  GraphTensor tensor;
  GraphNode node;
  Graph graph;
  nlohmann::json device;
  int64_t engine = -1, workspace = 0;
  std::string text;  // of a plan

  bool has(DnnAttribute a) const { return values.contains(a); }
  template <class T> std::vector<T> all(DnnAttribute a) const {
    const Value& value = values.at(a);
    std::vector<T> result(static_cast<size_t>(value.count));
    std::memcpy(result.data(), value.bytes.data(), value.bytes.size());
    return result;
  }
  template <class T> T one(DnnAttribute a) const { return all<T>(a).at(0); }
  const Object& part(DnnAttribute a) const { return *values.at(a).parts.at(0); }
};
struct Slot {
  std::shared_ptr<Object> object;
  bool alive = true;
};

// [header] The attributes of each kind, the type of their values and how many there may be.
struct Rule {
  DnnKind kind;
  DnnAttribute attribute;
  DnnValue type;
  int64_t least, most;
  bool required;
};
const std::vector<Rule>& rules();
size_t bytes_of(DnnValue type);
DnnStatus finalize(Object& object);

// The last one is the only one that serves everything.
struct FakeEngine {
  int64_t index;
  DnnNumericalNote note;
  int64_t workspace;
  bool builds;
};
inline constexpr DnnNumericalNote kNoNote = static_cast<DnnNumericalNote>(-1);
inline constexpr FakeEngine kEngines[] = {
    {7, DnnNumericalNote::kNondeterministic, 0, true},
    {8, DnnNumericalNote::kReducedPrecisionReduction, 0, true},
    {5, kNoNote, int64_t{1} << 40, true},
    {2, kNoNote, 0, false},
    {3, DnnNumericalNote::kDownConvertInputs, 512, true},
    {1, kNoNote, 4096, true},
};
// "10/0 13/100": kind and function of each node.
std::string words_of(const Graph& graph);

}  // namespace rondo::fake_cuda::dnn

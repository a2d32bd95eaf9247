// cuDNN's functions, those of the runtime's table: descriptors of the backend API, and plans that run on the host. The
// library is this one, found under another name (a link).
//
// Each refusal names what it follows: [header] the descriptions in cudnn_graph.h; [library] the real library's answer
// without a GPU (cuDNN 9.19). What the real library would let pass and compute wrongly, or leaves undefined, is misuse,
// and ends the process. The heuristic is as awkward as it may be: the engines that it lists first are those that the
// runtime must not take.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rondo/tests/fake_cuda/dnn_objects.h"
#include "rondo/tests/fake_cuda/machine.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace rondo::cuda {

struct OpaqueDnn {
  OpaqueContext* context = nullptr;
  OpaqueStream* stream = nullptr;
  bool alive = true;
};

}  // namespace rondo::cuda

namespace {

using namespace rondo::cuda;  // the names of the table
using namespace rondo::fake_cuda::dnn;
using rondo::fake_cuda::Access;
using rondo::fake_cuda::context_stack;
using rondo::fake_cuda::Graph;
using rondo::fake_cuda::GraphNode;
using rondo::fake_cuda::Machine;

Machine& fake() { return Machine::instance(); }
std::string number(long long n) { return std::to_string(n); }

class Call {
 public:
  explicit Call(const char* name) : lock_(fake().mutex), outer_(std::exchange(fake().call, name)) {}
  ~Call() { fake().call = outer_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  const rondo::fake_cuda::Inside inside_;
  std::lock_guard<rondo::fake_cuda::MachineMutex> lock_;
  const char* outer_;
};

// ---- Descriptors

// All that were ever made: a later use is seen. They outlive a reset, as memory of a library does.
std::map<DnnDescriptor, std::unique_ptr<Slot>>& slots() {
  static auto* const slots = new std::map<DnnDescriptor, std::unique_ptr<Slot>>;
  return *slots;
}
std::map<DnnHandle, std::unique_ptr<OpaqueDnn>>& handles() {
  static auto* const handles = new std::map<DnnHandle, std::unique_ptr<OpaqueDnn>>;
  return *handles;
}
Object* object_of(DnnDescriptor descriptor) {
  const auto found = slots().find(descriptor);
  if (found == slots().end() || !found->second->alive) {
    static_cast<void>(misuse("no such descriptor, or it was destroyed"));
    return nullptr;
  }
  return found->second->object.get();
}

// The first `most` of these numbers.
template <class T> DnnStatus give(const std::vector<T>& values, int64_t most, int64_t* count, void* into) {
  *count = std::ssize(values);
  if (const int64_t n = std::min(most, *count); n > 0)  // neither array may be null for std::memcpy
    std::memcpy(into, values.data(), sizeof(T) * static_cast<size_t>(n));
  return DnnStatus::kSuccess;
}

DnnStatus give_engines(const Object& o, int64_t most, int64_t* count, void* into) {
  const Graph& graph = o.part(DnnAttribute::kHeuristicGraph).graph;
  std::vector<FakeEngine> engines;
  const bool fallback = o.one<int>(DnnAttribute::kHeuristicMode) == static_cast<int>(DnnHeuristic::kFallback);
  if (!fake().dnn_oracle || !fake().dnn_oracle(words_of(graph))) {
    if (fallback) engines.push_back(kEngines[5]);
    else engines.assign(std::begin(kEngines), std::end(kEngines));
  }
  *count = std::ssize(engines);
  if (most <= 0) return DnnStatus::kSuccess;
  *count = std::min(most, *count);
  for (int64_t i = 0; i < *count; ++i) {
    Object* const config = object_of(static_cast<DnnDescriptor*>(into)[i]);
    if (config == nullptr || config->kind != DnnKind::kEngineConfig) return misuse("results go into configurations");
    config->graph = graph;
    config->engine = engines[static_cast<size_t>(i)].index;
    config->finalized = true;
  }
  return DnnStatus::kSuccess;
}

}  // namespace

// ---- The functions

FAKE_EXPORT size_t cudnnGetVersion() { return fake().options.dnn_version; }
FAKE_EXPORT const char* cudnnGetErrorString(DnnStatus status) {
  switch (category_of(status)) {
    case DnnStatus::kSuccess: return "CUDNN_STATUS_SUCCESS";
    case DnnStatus::kNotInitialized: return "CUDNN_STATUS_NOT_INITIALIZED";
    case DnnStatus::kSerializationMismatch: return "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH";
    case DnnStatus::kBadParam: return "CUDNN_STATUS_BAD_PARAM";
    case DnnStatus::kNotSupported: return "CUDNN_STATUS_NOT_SUPPORTED";
    case DnnStatus::kExecutionFailed: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}
FAKE_EXPORT void cudnnGetLastErrorString(char* message, size_t size) {
  if (size == 0) return;
  const size_t n = std::min(size - 1, last_error().size());
  std::memcpy(message, last_error().data(), n);
  message[n] = '\0';
}

FAKE_EXPORT DnnStatus cudnnCreate(DnnHandle* handle) {
  const Call call(__func__);
  if (fake().gone || !fake().initialized) return DnnStatus::kNotInitialized;  // [library] without a GPU
  if (context_stack().empty() || context_stack().back() == nullptr) return misuse("no context is current");
  if (fake().fails_now(rondo::fake_cuda::kDeviceMemory)) return DnnStatus::kInternalError;
  auto made = std::make_unique<OpaqueDnn>();
  made->context = context_stack().back();
  *handle = made.get();
  handles()[*handle] = std::move(made);
  ++fake().counted.dnn_handles;
  return DnnStatus::kSuccess;
}
FAKE_EXPORT DnnStatus cudnnDestroy(DnnHandle handle) {
  const Call call(__func__);
  if (!handles().contains(handle) || !handle->alive) return misuse("no such handle, or it was destroyed");
  handle->alive = false;
  --fake().counted.dnn_handles;
  return DnnStatus::kSuccess;
}
FAKE_EXPORT DnnStatus cudnnSetStream(DnnHandle handle, StreamPtr stream) {
  const Call call(__func__);
  if (!handles().contains(handle) || !handle->alive) return misuse("no such handle, or it was destroyed");
  if (stream == nullptr || !fake().handles.contains(stream) || !stream->alive) return misuse("no such stream");
  if (stream->context != handle->context) return misuse("the stream and the handle are of two contexts");
  handle->stream = stream;
  return DnnStatus::kSuccess;
}

FAKE_EXPORT DnnStatus cudnnBackendCreateDescriptor(DnnKind kind, DnnDescriptor* descriptor) {
  const Call call(__func__);
  auto slot = std::make_unique<Slot>();
  slot->object = std::make_shared<Object>();
  slot->object->kind = kind;
  *descriptor = slot.get();
  slots()[*descriptor] = std::move(slot);
  return DnnStatus::kSuccess;
}
FAKE_EXPORT DnnStatus cudnnBackendDestroyDescriptor(DnnDescriptor descriptor) {
  const Call call(__func__);
  if (object_of(descriptor) == nullptr) return DnnStatus::kBadParam;
  // Those of a plan that queued work runs hold on to the object.
  slots().at(descriptor)->alive = false;
  slots().at(descriptor)->object = nullptr;
  return DnnStatus::kSuccess;
}
FAKE_EXPORT DnnStatus cudnnBackendSetAttribute(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue type,
                                               int64_t count, const void* values) {
  const Call call(__func__);
  Object* const o = object_of(descriptor);
  if (o == nullptr) return DnnStatus::kBadParam;
  if (o->finalized) return misuse("an attribute of a finalized descriptor is set");
  const auto rule = std::find_if(rules().begin(), rules().end(),
                                 [&](const Rule& r) { return r.kind == o->kind && r.attribute == attribute; });
  if (rule == rules().end())
    return misuse("descriptors of kind " + number(static_cast<int>(o->kind)) + " have no attribute " +
                  number(static_cast<int>(attribute)));
  if (rule->type != type || count < rule->least || count > rule->most || values == nullptr)
    return misuse("attribute " + number(static_cast<int>(attribute)) + " is set with " + number(count) +
                  " values of type " + number(static_cast<int>(type)));
  Value& value = o->values[attribute];
  value = {.type = type, .count = count, .bytes = {}, .parts = {}};
  value.bytes.resize(static_cast<size_t>(count) * bytes_of(type));
  std::memcpy(value.bytes.data(), values, value.bytes.size());
  if (type == DnnValue::kDescriptor)
    for (int64_t i = 0; i < count; ++i) {
      const Object* const part = object_of(static_cast<const DnnDescriptor*>(values)[i]);
      if (part == nullptr) return DnnStatus::kBadParam;
      if (!part->finalized) return misuse("a descriptor is part of another one, and not finalized");
      value.parts.push_back(slots().at(static_cast<const DnnDescriptor*>(values)[i])->object);
    }
  return DnnStatus::kSuccess;
}
FAKE_EXPORT DnnStatus cudnnBackendFinalize(DnnDescriptor descriptor) {
  const Call call(__func__);
  Object* const o = object_of(descriptor);
  if (o == nullptr) return DnnStatus::kBadParam;
  if (o->finalized) return misuse("a descriptor is finalized twice");
  for (const Rule& rule : rules())
    if (rule.kind == o->kind && rule.required && !o->has(rule.attribute))
      return misuse("a descriptor of kind " + number(static_cast<int>(o->kind)) + " lacks attribute " +
                    number(static_cast<int>(rule.attribute)));
  const DnnStatus status = finalize(*o);
  o->finalized = status == DnnStatus::kSuccess;
  return status;
}
FAKE_EXPORT DnnStatus cudnnBackendGetAttribute(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue, int64_t most,
                                               int64_t* count, void* values) {
  const Call call(__func__);
  const Object* const o = object_of(descriptor);
  if (o == nullptr) return DnnStatus::kBadParam;
  const auto text = [&](const std::string& s) {
    return give(std::vector<char>(s.begin(), s.end()), most, count, values);
  };
  if (o->kind != DnnKind::kEngine && !o->finalized) return misuse("an attribute of an unfinished descriptor is read");
  switch (attribute) {
    case DnnAttribute::kHeuristicResults: return give_engines(*o, most, count, values);
    case DnnAttribute::kEngineOfConfig: {
      Object* const engine = object_of(*static_cast<DnnDescriptor*>(values));
      if (engine == nullptr || engine->kind != DnnKind::kEngine) return misuse("an engine goes into an engine");
      engine->engine = o->engine;
      *count = 1;
      return DnnStatus::kSuccess;
    }
    case DnnAttribute::kEngineIndex: return give(std::vector{o->engine}, most, count, values);
    case DnnAttribute::kEngineNumericalNotes: {
      std::vector<DnnNumericalNote> notes;
      for (const FakeEngine& engine : kEngines)
        if (engine.index == o->engine && engine.note != kNoNote) notes.push_back(engine.note);
      return give(notes, most, count, values);
    }
    case DnnAttribute::kEngineBehaviorNotes:
      return give(std::vector{DnnBehaviorNote::kSupportsGraphs}, most, count, values);
    case DnnAttribute::kPlanWorkspace: return give(std::vector{o->workspace}, most, count, values);
    case DnnAttribute::kPlanText: return text(o->text);
    case DnnAttribute::kDeviceText: return text(o->device.dump());
    default: return misuse("attribute " + number(static_cast<int>(attribute)) + " cannot be read");
  }
}

FAKE_EXPORT DnnStatus cudnnBackendExecute(DnnHandle handle, DnnDescriptor plan_descriptor, DnnDescriptor pack) {
  const Call call(__func__);
  if (!handles().contains(handle) || !handle->alive) return misuse("no such handle, or it was destroyed");
  if (handle->stream == nullptr || !handle->stream->alive) return misuse("the handle has no stream");
  if (context_stack().empty() || context_stack().back() != handle->context)
    return misuse("the handle's context is not current");
  if (handle->context->dead != Result::kSuccess) return DnnStatus::kExecutionFailed;
  const Object *const plan = object_of(plan_descriptor), *const given = object_of(pack);
  if (plan == nullptr || given == nullptr) return DnnStatus::kBadParam;
  if (plan->kind != DnnKind::kPlan || given->kind != DnnKind::kVariantPack || !plan->finalized || !given->finalized)
    return misuse("something else than a plan and a variant pack is executed");
  if (plan->device.at("deviceVer") != fake().options.capability * 10)
    return misuse("a plan for another device is executed");
  const std::vector<int64_t> ids = given->all<int64_t>(DnnAttribute::kPackIds);
  const auto pointers = given->all<const void*>(DnnAttribute::kPackPointers);
  std::map<int64_t, const void*> addresses;
  for (size_t i = 0; i < ids.size(); ++i)
    if (!addresses.emplace(ids[i], pointers[i]).second) return misuse("tensor " + number(ids[i]) + " is given twice");
  std::set<int64_t> written;
  double flops = 0;
  for (const GraphNode& node : plan->graph.nodes) written.insert(node.output);
  std::vector<Access> accesses;
  for (const auto& [id, t] : plan->graph.tensors) {
    if (t.is_virtual) continue;
    const auto found = addresses.find(id);
    if (found == addresses.end() || found->second == nullptr) return misuse("tensor " + number(id) + " has no address");
    if (reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(t.by_value ? 4 : t.alignment) != 0)
      return misuse("tensor " + number(id) + " is not aligned to " + number(t.alignment) + " bytes");
    if (!t.by_value)
      accesses.push_back(
          {found->second, static_cast<size_t>(t.extent()) * rondo::fake_cuda::dnn_bytes(t.type), written.contains(id)});
    flops += static_cast<double>(t.elements());
  }
  for (const auto& [id, address] : addresses)
    if (!plan->graph.tensors.contains(id) || plan->graph.tensors.at(id).is_virtual)
      return misuse("tensor " + number(id) + " has an address and is none of the plan's");
  for (const Access& a : accesses)
    for (const Access& b : accesses) {
      const auto *x = static_cast<const std::byte*>(a.address), *y = static_cast<const std::byte*>(b.address);
      if (&a != &b && (a.writes || b.writes) && x < y + b.bytes && y < x + a.bytes && !(plan->graph.nodes.size() > 1))
        return misuse("a result overlaps another tensor");
    }
  const void* const workspace = given->one<const void*>(DnnAttribute::kPackWorkspace);
  if (plan->workspace > 0) {
    if (workspace == nullptr) return misuse("a plan that needs a workspace gets none");
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) return misuse("the workspace is not aligned to 256 bytes");
    accesses.push_back({workspace, static_cast<size_t>(plan->workspace), true});
  }
  for (const Access& access : accesses)
    if (fake().require_device_range(*handle->context, reinterpret_cast<uintptr_t>(access.address), access.bytes,
                                    access.address == workspace ? "the workspace" : "an operand of a plan") !=
        Result::kSuccess)
      return DnnStatus::kBadParam;
  // Numbers are read by the call.
  auto numbers = std::make_shared<std::vector<std::pair<int64_t, std::vector<std::byte>>>>();
  for (const auto& [id, t] : plan->graph.tensors)
    if (t.by_value) {
      const auto* const from = static_cast<const std::byte*>(addresses.at(id));
      numbers->emplace_back(id, std::vector<std::byte>(from, from + rondo::fake_cuda::dnn_bytes(t.type)));
    }
  ++fake().counted.plans;
  const Result pushed = fake().push(
      *handle->stream, "cudnnBackendExecute", accesses,
      fake().noted({.kind = rondo::fake_cuda::Enqueued::Kind::kPlan, .name = words_of(plan->graph), .flops = flops},
                   [graph = plan->graph, addresses, numbers, workspace, bytes = plan->workspace]() mutable {
                     if (bytes > 0) std::memset(const_cast<void*>(workspace), 0xA5, static_cast<size_t>(bytes));
                     for (const auto& [id, value] : *numbers) addresses[id] = value.data();
                     rondo::fake_cuda::compute(graph, addresses);
                   }));
  return pushed == Result::kSuccess ? DnnStatus::kSuccess : DnnStatus::kExecutionFailed;
}

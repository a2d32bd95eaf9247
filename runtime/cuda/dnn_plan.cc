#include "rondo/runtime/cuda/dnn_plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/dispatch/op_compiler.h"

namespace rondo::cuda {
namespace {

// Thrown to end the making of a plan. Holds the library's reason.
struct Refusal {
  DnnStatus status;
  std::string text;
};

std::string words_of(const Cudnn& library, DnnStatus status) {
  std::array<char, 512> said{};
  library.last_error(said.data(), said.size());
  said.back() = '\0';
  return absl::StrCat(library.status_string(status), said[0] == '\0' ? "" : ": ", said.data());
}
void require(const Cudnn& library, DnnStatus status, const char* what) {
  if (status != DnnStatus::kSuccess) throw Refusal{status, absl::StrCat(what, ": ", words_of(library, status))};
}

// A descriptor, released with its scope. Failures throw Refusal.
class Descriptor {
 public:
  Descriptor(const Cudnn& library, DnnKind kind) : library_(&library) {
    require(library, library.make(kind, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (descriptor_ != nullptr) static_cast<void>(library_->release(descriptor_));
  }
  DnnDescriptor get() const { return descriptor_; }
  DnnDescriptor release() { return std::exchange(descriptor_, nullptr); }

  template <class T> Descriptor& set(DnnAttribute attribute, DnnValue type, std::span<const T> values) {
    require(*library_, library_->set(descriptor_, attribute, type, std::ssize(values), values.data()),
            "cudnnBackendSetAttribute");
    return *this;
  }
  template <class T> Descriptor& set(DnnAttribute attribute, DnnValue type, const T& value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  Descriptor& set(DnnAttribute attribute, const Descriptor& part) {
    return set(attribute, DnnValue::kDescriptor, part.descriptor_);
  }
  Descriptor& set(DnnAttribute attribute, std::string_view text) {
    return set(attribute, DnnValue::kChar, std::span<const char>(text.data(), text.size()));
  }
  Descriptor& set(DnnAttribute attribute, int64_t value) { return set(attribute, DnnValue::kInt64, value); }
  Descriptor& set(DnnAttribute attribute, const std::vector<int64_t>& values) {
    return set(attribute, DnnValue::kInt64, std::span<const int64_t>(values));
  }
  Descriptor& set(DnnAttribute attribute, const std::array<int64_t, 2>& values) {
    return set(attribute, DnnValue::kInt64, std::span<const int64_t>(values));
  }
  Descriptor& finalize() {
    require(*library_, library_->finalize(descriptor_), "cudnnBackendFinalize");
    return *this;
  }
  // Returns at most `most` values of an attribute.
  template <class T> std::vector<T> get(DnnAttribute attribute, DnnValue type, int64_t most) const {
    std::vector<T> values(static_cast<size_t>(most));
    int64_t n = 0;
    require(*library_, library_->get(descriptor_, attribute, type, most, &n, values.data()),
            "cudnnBackendGetAttribute");
    values.resize(static_cast<size_t>(std::clamp<int64_t>(n, 0, most)));
    return values;
  }
  std::string text(DnnAttribute attribute) const {
    int64_t n = 0;
    require(*library_, library_->get(descriptor_, attribute, DnnValue::kChar, 0, &n, nullptr),
            "cudnnBackendGetAttribute");
    std::string text(static_cast<size_t>(n), '\0');
    require(*library_, library_->get(descriptor_, attribute, DnnValue::kChar, n, &n, text.data()),
            "cudnnBackendGetAttribute");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

 private:
  const Cudnn* library_;
  DnnDescriptor descriptor_ = nullptr;
};

// ---- A graph as descriptors

constexpr int64_t kAlignment = 16;  // bytes, of the addresses of all operands
int64_t id_of(int tensor) { return tensor + 1; }

struct GraphDescriptors {
  std::vector<Descriptor> parts;  // the last one is the graph
  const Descriptor& graph() const { return parts.back(); }
};

Descriptor tensor_descriptor(const Cudnn& library, const DnnTensor& t, int64_t id) {
  using Place = DnnTensor::Place;
  Descriptor d(library, DnnKind::kTensor);
  d.set(DnnAttribute::kTensorId, id)
      .set(DnnAttribute::kTensorType, DnnValue::kData, t.type)
      .set(DnnAttribute::kTensorSizes, t.sizes)
      .set(DnnAttribute::kTensorStrides, t.strides)
      .set(DnnAttribute::kTensorAlignment, kAlignment);
  if (t.place == Place::kBetween) d.set(DnnAttribute::kTensorIsVirtual, DnnValue::kBool, true);
  if (t.place == Place::kNumber) d.set(DnnAttribute::kTensorIsByValue, DnnValue::kBool, true);
  d.finalize();
  return d;
}

// The attributes of one of the three convolutions.
struct ConvolutionAttributes {
  DnnKind kind;
  DnnAttribute alpha, beta, convolution, first, second, output;  // first, second: the inputs, in DnnNode's order
};
constexpr ConvolutionAttributes kConvolutions[] = {
    {DnnKind::kConvolutionForward, DnnAttribute::kForwardAlpha, DnnAttribute::kForwardBeta,
     DnnAttribute::kForwardConvolution, DnnAttribute::kForwardX, DnnAttribute::kForwardW, DnnAttribute::kForwardY},
    {DnnKind::kConvolutionBackwardData, DnnAttribute::kDataAlpha, DnnAttribute::kDataBeta,
     DnnAttribute::kDataConvolution, DnnAttribute::kDataDy, DnnAttribute::kDataW, DnnAttribute::kDataDx},
    {DnnKind::kConvolutionBackwardFilter, DnnAttribute::kFilterAlpha, DnnAttribute::kFilterBeta,
     DnnAttribute::kFilterConvolution, DnnAttribute::kFilterDy, DnnAttribute::kFilterX, DnnAttribute::kFilterDw},
};

GraphDescriptors descriptors_of(const Cudnn& library, const DnnGraph& graph) {
  using Does = DnnNode::Does;
  GraphDescriptors made;
  std::vector<Descriptor>& parts = made.parts;
  parts.reserve(graph.tensors.size() + 2 * graph.nodes.size() + 1);
  for (size_t i = 0; i < graph.tensors.size(); ++i)
    parts.push_back(tensor_descriptor(library, graph.tensors[i], id_of(static_cast<int>(i))));
  const auto tensor = [&](int i) -> const Descriptor& { return parts[static_cast<size_t>(i)]; };
  std::vector<DnnDescriptor> operations;
  for (const DnnNode& n : graph.nodes) {
    switch (n.does) {
      case Does::kConvolve:
      case Does::kConvolveGradInput:
      case Does::kConvolveGradWeight: {
        const ConvolutionAttributes& its = kConvolutions[static_cast<size_t>(n.does)];
        Descriptor& convolution = parts.emplace_back(library, DnnKind::kConvolution);
        convolution.set(DnnAttribute::kConvolutionType, DnnValue::kData, n.computes)
            .set(DnnAttribute::kConvolutionMode, DnnValue::kConvolutionMode, int{1})  // a cross-correlation
            .set(DnnAttribute::kConvolutionDimensions, int64_t{2})
            .set(DnnAttribute::kConvolutionDilations, n.dilation)
            .set(DnnAttribute::kConvolutionStrides, n.stride)
            .set(DnnAttribute::kConvolutionBefore, n.before)
            .set(DnnAttribute::kConvolutionAfter, n.after)
            .finalize();
        Descriptor operation(library, its.kind);
        operation.set(its.alpha, DnnValue::kFloat, 1.0f)
            .set(its.beta, DnnValue::kFloat, 0.0f)
            .set(its.convolution, convolution)
            .set(its.first, tensor(n.inputs[0]))
            .set(its.second, tensor(n.inputs[1]))
            .set(its.output, tensor(n.output))
            .finalize();
        parts.push_back(std::move(operation));
        break;
      }
      case Does::kPointwise: {
        Descriptor& function = parts.emplace_back(library, DnnKind::kPointwise);
        function.set(DnnAttribute::kPointwiseMode, DnnValue::kPointwiseMode, n.function)
            .set(DnnAttribute::kPointwiseType, DnnValue::kData, n.computes);
        if (n.axis >= 0) function.set(DnnAttribute::kPointwiseAxis, n.axis);
        function.finalize();
        Descriptor operation(library, DnnKind::kPointwiseOperation);
        operation.set(DnnAttribute::kPointwiseDescriptor, function)
            .set(DnnAttribute::kPointwiseX, tensor(n.inputs[0]))
            .set(DnnAttribute::kPointwiseY, tensor(n.output));
        if (n.inputs[1] >= 0) operation.set(DnnAttribute::kPointwiseB, tensor(n.inputs[1]));
        if (n.inputs[2] >= 0) operation.set(DnnAttribute::kPointwiseT, tensor(n.inputs[2]));
        operation.finalize();
        parts.push_back(std::move(operation));
        break;
      }
      case Does::kMatmul: {
        Descriptor& product = parts.emplace_back(library, DnnKind::kMatmul);
        product.set(DnnAttribute::kMatmulType, DnnValue::kData, n.computes).finalize();
        Descriptor operation(library, DnnKind::kMatmulOperation);
        operation.set(DnnAttribute::kMatmulDescriptor, product)
            .set(DnnAttribute::kMatmulA, tensor(n.inputs[0]))
            .set(DnnAttribute::kMatmulB, tensor(n.inputs[1]))
            .set(DnnAttribute::kMatmulC, tensor(n.output))
            .finalize();
        parts.push_back(std::move(operation));
        break;
      }
      case Does::kReduce: {
        Descriptor& reduction = parts.emplace_back(library, DnnKind::kReduction);
        reduction.set(DnnAttribute::kReductionOperator, DnnValue::kReductionOperator, n.function)
            .set(DnnAttribute::kReductionType, DnnValue::kData, n.computes)
            .finalize();
        Descriptor operation(library, DnnKind::kReductionOperation);
        operation.set(DnnAttribute::kReductionDescriptor, reduction)
            .set(DnnAttribute::kReductionX, tensor(n.inputs[0]))
            .set(DnnAttribute::kReductionY, tensor(n.output))
            .finalize();
        parts.push_back(std::move(operation));
        break;
      }
      case Does::kReshape: {
        Descriptor operation(library, DnnKind::kReshapeOperation);
        operation.set(DnnAttribute::kReshapeX, tensor(n.inputs[0]))
            .set(DnnAttribute::kReshapeY, tensor(n.output))
            .finalize();
        parts.push_back(std::move(operation));
        break;
      }
    }
    operations.push_back(parts.back().get());
  }
  Descriptor whole(library, DnnKind::kGraph);
  whole.set(DnnAttribute::kGraphOperations, DnnValue::kDescriptor, std::span<const DnnDescriptor>(operations))
      .finalize();
  parts.push_back(std::move(whole));
  return made;
}

// ---- The choice of an engine: Note [Engines]

bool has_note(const std::vector<DnnNumericalNote>& notes, DnnNumericalNote note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

// Returns why an engine with these notes may not serve the graph; empty: it may.
std::string_view objection(const DnnGraph& graph, const std::vector<DnnNumericalNote>& notes) {
  bool narrow = false, f32 = false;
  for (const DnnTensor& t : graph.tensors)
    if (t.place == DnnTensor::Place::kOperand) {
      narrow = narrow || t.type == DnnData::kF16 || t.type == DnnData::kBF16;
      f32 = f32 || t.type == DnnData::kF32;
    }
  if (has_note(notes, DnnNumericalNote::kNondeterministic)) return "its results differ from run to run";
  if (has_note(notes, DnnNumericalNote::kReducedPrecisionReduction)) return "its sums are not f32";
  if (has_note(notes, DnnNumericalNote::kDownConvertInputs) && !(graph.fast && f32 && !narrow))
    return "it rounds its operands";
  if (!narrow && f32 && !graph.fast && has_note(notes, DnnNumericalNote::kTensorCore)) return "it rounds f32 to TF32";
  if (narrow && (has_note(notes, DnnNumericalNote::kWinograd) || has_note(notes, DnnNumericalNote::kFft)))
    return "it rounds between its steps";
  return "";
}

std::string words_of(const std::vector<DnnNumericalNote>& numerical, const std::vector<DnnBehaviorNote>& behavior) {
  std::vector<std::string> words;
  const std::pair<DnnNumericalNote, const char*> kNumerical[] = {{DnnNumericalNote::kTensorCore, "tensor cores"},
                                                                 {DnnNumericalNote::kDownConvertInputs, "TF32"},
                                                                 {DnnNumericalNote::kFft, "FFT"},
                                                                 {DnnNumericalNote::kWinograd, "Winograd"}};
  for (const auto& [note, word] : kNumerical)
    if (has_note(numerical, note)) words.emplace_back(word);
  const std::pair<DnnBehaviorNote, const char*> kBehavior[] = {
      {DnnBehaviorNote::kRuntimeCompilation, "compiled when loaded"},
      {DnnBehaviorNote::kSupportsGraphs, "native CUDA graphs"},
      {DnnBehaviorNote::kUsesCublasLt, "cuBLASLt"}};
  for (const auto& [note, word] : kBehavior)
    if (std::find(behavior.begin(), behavior.end(), note) != behavior.end()) words.emplace_back(word);
  return absl::StrJoin(words, ", ");
}

// Returns the engine configurations that one mode of the heuristic gives, perhaps none.
std::vector<Descriptor> configurations(const Cudnn& library, const Descriptor& graph, const Descriptor& device,
                                       DnnHeuristic mode, std::string* why_not) {
  std::vector<Descriptor> configs;
  try {
    Descriptor heuristic(library, DnnKind::kHeuristic);
    heuristic.set(DnnAttribute::kHeuristicGraph, graph)
        .set(DnnAttribute::kHeuristicMode, DnnValue::kHeuristicMode, mode)
        .set(DnnAttribute::kHeuristicDevice, device)
        .finalize();
    int64_t n = 0;
    require(library,
            library.get(heuristic.get(), DnnAttribute::kHeuristicResults, DnnValue::kDescriptor, 0, &n, nullptr),
            "cudnnBackendGetAttribute");
    std::vector<DnnDescriptor> raw;
    for (int64_t i = 0; i < n; ++i) raw.push_back(configs.emplace_back(library, DnnKind::kEngineConfig).get());
    require(library,
            library.get(heuristic.get(), DnnAttribute::kHeuristicResults, DnnValue::kDescriptor, n, &n, raw.data()),
            "cudnnBackendGetAttribute");
    while (std::ssize(configs) > n) configs.pop_back();
  } catch (const Refusal& refusal) {
    configs.clear();
    *why_not = refusal.text;
  }
  return configs;
}

// Reads a plan from its text; throws Refusal.
Descriptor plan_from(const Cudnn& library, const std::string& text, const std::string& device_properties) {
  Descriptor device(library, DnnKind::kDevice), plan(library, DnnKind::kPlan);
  device.set(DnnAttribute::kDeviceText, device_properties).finalize();
  plan.set(DnnAttribute::kPlanDevice, device).set(DnnAttribute::kPlanText, std::string_view(text)).finalize();
  return plan;
}
int64_t workspace_of(const Descriptor& plan) {
  return plan.get<int64_t>(DnnAttribute::kPlanWorkspace, DnnValue::kInt64, 1).at(0);
}

// Makes the plan of an engine configuration; throws Refusal.
MadePlan plan_of(const Cudnn& library, const DnnGraph& graph, const Descriptor& config, const Descriptor& device) {
  Descriptor engine(library, DnnKind::kEngine);
  DnnDescriptor raw = engine.get();
  int64_t n = 0;
  require(library, library.get(config.get(), DnnAttribute::kEngineOfConfig, DnnValue::kDescriptor, 1, &n, &raw),
          "cudnnBackendGetAttribute");
  const auto numerical = engine.get<DnnNumericalNote>(DnnAttribute::kEngineNumericalNotes, DnnValue::kNumericalNote,
                                                      kDnnNumericalNotes);
  const auto behavior = engine.get<DnnBehaviorNote>(DnnAttribute::kEngineBehaviorNotes, DnnValue::kBehaviorNote,
                                                    kDnnBehaviorNotes);
  MadePlan made;
  made.engine = engine.get<int64_t>(DnnAttribute::kEngineIndex, DnnValue::kInt64, 1).at(0);
  made.notes = words_of(numerical, behavior);
  if (const std::string_view why = objection(graph, numerical); !why.empty())
    throw Refusal{DnnStatus::kNotSupported, absl::StrCat("engine ", made.engine, " is not taken: ", std::string(why))};
  Descriptor plan(library, DnnKind::kPlan);
  plan.set(DnnAttribute::kPlanConfig, config).set(DnnAttribute::kPlanDevice, device).finalize();
  made.workspace = workspace_of(plan);
  if (made.workspace > graph.most_workspace)
    throw Refusal{
        DnnStatus::kNotSupported,
        absl::StrCat("engine ", made.engine, " is not taken: it needs a workspace of ", made.workspace, " bytes")};
  made.text = plan.text(DnnAttribute::kPlanText);
  return made;
}

}  // namespace

MadePlan make_plan(const Cudnn& library, const DnnGraph& graph, const std::string& device_properties) {
  MadePlan none;
  try {
    Descriptor device(library, DnnKind::kDevice);
    device.set(DnnAttribute::kDeviceText, device_properties).finalize();
    const GraphDescriptors described = descriptors_of(library, graph);
    int tried = 0;
    for (const DnnHeuristic mode : {DnnHeuristic::kBest, DnnHeuristic::kFallback})
      for (const Descriptor& config : configurations(library, described.graph(), device, mode, &none.why_not)) {
        ++tried;
        try {
          return plan_of(library, graph, config, device);
        } catch (const Refusal& refusal) {
          none.why_not = refusal.text;
        }
      }
    none.why_not = tried > 0              ? absl::StrCat("none of ", tried, " engine configurations: ", none.why_not)
                   : none.why_not.empty() ? "the heuristic lists no engine for it"
                                          : absl::StrCat("the heuristic lists no engine for it: ", none.why_not);
  } catch (const Refusal& refusal) {
    none.why_not = refusal.text;
  }
  return none;
}

int64_t read_plan(const Cudnn& library, const std::string& text, const std::string& device_properties) {
  try {
    return workspace_of(plan_from(library, text, device_properties));
  } catch (const Refusal&) {
    return -1;
  }
}

std::string properties_of(int capability) {
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; data sheets of the three devices.
  struct Device {
    int capability;
    const char* name;
    int multiprocessors;
    int64_t memory;
    int shared, l2, sm_khz, memory_khz;
  };
  constexpr Device kDevices[] = {{80, "NVIDIA A100-SXM4-80GB", 108, 85094825984, 166912, 41943040, 1410000, 1593000},
                                 {90, "NVIDIA H100 80GB HBM3", 132, 85021163520, 232448, 52428800, 1980000, 2619000},
                                 {100, "NVIDIA B200", 148, 191503138816, 232448, 132644864, 1965000, 3996000}};
  const Device* d = &kDevices[0];
  for (const Device& device : kDevices)
    if (device.capability <= capability) d = &device;
  return absl::StrCat(
      R"({"deviceVer":)", capability * 10,
      R"(,"driverVer":13000,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)",
      R"("multiProcessorCount":)", d->multiprocessors, R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,)",
      R"("maxSharedMemoryPerBlockOptin":)", d->shared,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)",
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":)", d->sm_khz,
      R"(,"memClockRateKHz":)", d->memory_khz, R"(,"l2CacheSize":)", d->l2, R"(,"deviceName":")", d->name,
      R"(","totalGlobalMem":)", d->memory, R"(,"cudaDeviceId":0})");
}

// ---- Counts, also of graphs that run without a plan: Note [Without a plan]

namespace {

struct DnnCounts {
  std::mutex mutex;
  DnnReport report;  // without the runs, which are counted below
  std::atomic<int64_t> runs{0}, otherwise{0};
};
DnnCounts& dnn_counts() {
  static auto* const counts = new DnnCounts;
  return *counts;
}

void count_refusal(const std::string& what, const std::string& why, int device) {
  const std::string cause = memory::Cause::describe();
  const std::string text = absl::StrCat(cause, cause.empty() ? "" : ": ", "cuDNN has no plan for ", what,
                                        " on cuda:", device, ", so it runs without cuDNN: ", why);
  {
    DnnCounts& all = dnn_counts();
    const std::lock_guard lock(all.mutex);
    ++all.report.refused;
    constexpr size_t kMostWords = 64;
    if (all.report.last.size() == kMostWords) all.report.last.erase(all.report.last.begin());
    all.report.last.push_back(text);
  }
  if (OpCompiler* const compiler = op_compiler()) compiler->hint(text);
}

void count_plan(io::ObjectStore::From from) {
  using From = io::ObjectStore::From;
  DnnCounts& all = dnn_counts();
  const std::lock_guard lock(all.mutex);
  all.report.from_disk += from == From::kDisk;
  all.report.from_artifacts += from == From::kArtifact;
  all.report.made += from == From::kMade;
}

// Returns cuDNN's description (JSON) of a device of this machine.
std::string properties_of_device(const Cudnn& library, DeviceState& state) {
  const ContextScope scope(state);
  Descriptor device(library, DnnKind::kDevice);
  device.set(DnnAttribute::kDeviceIndex, DnnValue::kInt32, static_cast<int32_t>(state.ordinal())).finalize();
  return device.text(DnnAttribute::kDeviceText);
}

}  // namespace

DnnReport dnn_report() {
  const std::lock_guard lock(dnn_counts().mutex);
  DnnReport result = dnn_counts().report;
  result.runs = dnn_counts().runs.load();
  result.runs_otherwise = dnn_counts().otherwise.load();
  return result;
}
void count_run_without_plan() { ++dnn_counts().otherwise; }

// ---- Plans on a device

std::shared_ptr<const DnnPlan> DnnPlan::get(int device, const DnnGraph& graph, const std::string& what) {
  return std::shared_ptr<const DnnPlan>(new DnnPlan(device, graph, what));
}

DnnPlan::DnnPlan(int device, const DnnGraph& graph, std::string what) : device_(device), what_(std::move(what)) {
  DeviceState& state = device_state(device);
  std::string why_not;
  const Cudnn* const found = find_cudnn(&why_not);
  if (found == nullptr) {
    count_refusal(what_, why_not, device_);
    return;
  }
  library_ = *found;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const DnnTensor& t = graph.tensors[i];
    const int64_t id = id_of(static_cast<int>(i));
    if (t.place == DnnTensor::Place::kOperand) operands_.push_back(id);
    if (t.place != DnnTensor::Place::kNumber) continue;
    Number& number = numbers_.emplace_back();
    number.id = id;
    std::memset(number.value, 0, sizeof number.value);
    const auto value = static_cast<float>(t.number);
    if (t.type != DnnData::kF32) throw_internal("numbers of a graph of cuDNN are f32");
    std::memcpy(number.value, &value, sizeof value);
  }
  try {
    const auto make = [&] {
      return make_plan(library_, graph,
                       is_absent() ? properties_of(state.capability()) : properties_of_device(library_, state));
    };
    const std::string text = graph.text();
    StoredPlan stored = stored_plan(library_, state.capability(), text, !is_absent(), make);
    if (stored.plan.text.empty()) {
      count_refusal(what_, stored.plan.why_not, device_);
      return;
    }
    if (!load(state, stored.plan, &why_not) && stored.from != io::ObjectStore::From::kMade) {
      // The stored plan was made for another device of this capability, so a new one is made for this device.
      stored = {io::ObjectStore::From::kMade, make()};
      replace_plan(library_, state.capability(), text, stored.plan);
      why_not = stored.plan.why_not;
      if (!stored.plan.text.empty()) load(state, stored.plan, &why_not);
    }
    if (!usable()) {
      count_refusal(what_, why_not, device_);
      return;
    }
    count_plan(stored.from);
  } catch (const Refusal& refusal) {
    count_refusal(what_, refusal.text, device_);
    return;
  }
  constexpr int64_t kStep = 256;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const DnnTensor& t = graph.tensors[i];
    if (t.place != DnnTensor::Place::kScratch) continue;
    workspace_ = (workspace_ + kStep - 1) / kStep * kStep;
    scratch_.push_back({id_of(static_cast<int>(i)), workspace_});
    workspace_ += t.elements() * static_cast<int64_t>(element_bytes(t.type));
  }
}

bool DnnPlan::load(DeviceState& state, const MadePlan& made, std::string* why_not) {
  try {
    const ContextScope scope(state);
    Descriptor plan = plan_from(
        library_, made.text, is_absent() ? properties_of(state.capability()) : properties_of_device(library_, state));
    workspace_ = workspace_of(plan);
    plan_ = plan.release();
    return true;
  } catch (const Refusal& refusal) {
    *why_not = refusal.text;
    return false;
  }
}

DnnPlan::~DnnPlan() {
  if (plan_ != nullptr) static_cast<void>(library_.release(plan_));
}

void DnnPlan::enqueue(std::span<const void* const> operands) const {
  if (!usable() || operands.size() != operands_.size())
    throw_internal(absl::StrCat("a plan of cuDNN is run with ", operands.size(), " operands, not ", operands_.size()));
  DeviceState& state = device_state(device_);
  const ContextScope scope(state);
  Storage workspace;
  if (workspace_ > 0)
    workspace = Storage::allocate(static_cast<size_t>(workspace_), {Backend::kCUDA, static_cast<int8_t>(device_)});
  std::vector<int64_t> ids = operands_;
  std::vector<const void*> addresses(operands.begin(), operands.end());
  for (const Scratch& scratch : scratch_) {
    ids.push_back(scratch.id);
    addresses.push_back(workspace.data() + scratch.offset);
  }
  for (const Number& number : numbers_) {
    ids.push_back(number.id);
    addresses.push_back(number.value);
  }
  const void* const working = workspace ? workspace.data() : nullptr;
  const auto fail = [&](const std::string& why) {
    throw DeviceError(absl::StrCat("cuda:", device_, ": ", why, ", for ", what_));
  };
  try {
    Descriptor pack(library_, DnnKind::kVariantPack);
    pack.set(DnnAttribute::kPackIds, ids)
        .set(DnnAttribute::kPackPointers, DnnValue::kPointer, std::span<const void* const>(addresses))
        .set(DnnAttribute::kPackWorkspace, DnnValue::kPointer, working)
        .finalize();
    const DnnStatus status = state.execute_dnn(library_, plan_, pack.get());
    if (status != DnnStatus::kSuccess) fail(absl::StrCat("cudnnBackendExecute: ", words_of(library_, status)));
  } catch (const Refusal& refusal) {
    fail(refusal.text);
  }
  ++dnn_counts().runs;
  state.enqueued("a plan of cuDNN", state.compute());
}

}  // namespace rondo::cuda

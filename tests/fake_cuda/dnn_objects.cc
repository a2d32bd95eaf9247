#include "rondo/tests/fake_cuda/dnn_objects.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "rondo/tests/fake_cuda/machine.h"

namespace rondo::fake_cuda::dnn {
namespace {

using namespace rondo::cuda;  // the names of the table
using nlohmann::json;
using A = DnnAttribute;
using K = DnnKind;
using V = DnnValue;

Machine& fake() { return Machine::instance(); }
std::string number(long long n) { return std::to_string(n); }

constexpr int64_t kAny = 1 << 20;
}  // namespace

const std::vector<Rule>& rules() {
  static const auto* const rules = [] {
    auto* r = new std::vector<Rule>{
        {K::kTensor, A::kTensorId, V::kInt64, 1, 1, true},
        {K::kTensor, A::kTensorType, V::kData, 1, 1, true},
        {K::kTensor, A::kTensorSizes, V::kInt64, 1, 8, true},
        {K::kTensor, A::kTensorStrides, V::kInt64, 1, 8, true},
        {K::kTensor, A::kTensorAlignment, V::kInt64, 1, 1, true},
        {K::kTensor, A::kTensorIsVirtual, V::kBool, 1, 1, false},
        {K::kTensor, A::kTensorIsByValue, V::kBool, 1, 1, false},
        {K::kConvolution, A::kConvolutionType, V::kData, 1, 1, true},
        {K::kConvolution, A::kConvolutionMode, V::kConvolutionMode, 1, 1, true},
        {K::kConvolution, A::kConvolutionDimensions, V::kInt64, 1, 1, true},
        {K::kConvolution, A::kConvolutionDilations, V::kInt64, 2, 2, true},
        {K::kConvolution, A::kConvolutionStrides, V::kInt64, 2, 2, true},
        {K::kConvolution, A::kConvolutionBefore, V::kInt64, 2, 2, true},
        {K::kConvolution, A::kConvolutionAfter, V::kInt64, 2, 2, true},
        {K::kPointwise, A::kPointwiseMode, V::kPointwiseMode, 1, 1, true},
        {K::kPointwise, A::kPointwiseType, V::kData, 1, 1, true},
        {K::kPointwise, A::kPointwiseAxis, V::kInt64, 1, 1, false},
        {K::kPointwiseOperation, A::kPointwiseDescriptor, V::kDescriptor, 1, 1, true},
        {K::kPointwiseOperation, A::kPointwiseX, V::kDescriptor, 1, 1, true},
        {K::kPointwiseOperation, A::kPointwiseY, V::kDescriptor, 1, 1, true},
        {K::kPointwiseOperation, A::kPointwiseB, V::kDescriptor, 1, 1, false},
        {K::kPointwiseOperation, A::kPointwiseT, V::kDescriptor, 1, 1, false},
        {K::kMatmul, A::kMatmulType, V::kData, 1, 1, true},
        {K::kMatmulOperation, A::kMatmulDescriptor, V::kDescriptor, 1, 1, true},
        {K::kMatmulOperation, A::kMatmulA, V::kDescriptor, 1, 1, true},
        {K::kMatmulOperation, A::kMatmulB, V::kDescriptor, 1, 1, true},
        {K::kMatmulOperation, A::kMatmulC, V::kDescriptor, 1, 1, true},
        {K::kReduction, A::kReductionOperator, V::kReductionOperator, 1, 1, true},
        {K::kReduction, A::kReductionType, V::kData, 1, 1, true},
        {K::kReductionOperation, A::kReductionDescriptor, V::kDescriptor, 1, 1, true},
        {K::kReductionOperation, A::kReductionX, V::kDescriptor, 1, 1, true},
        {K::kReductionOperation, A::kReductionY, V::kDescriptor, 1, 1, true},
        {K::kReshapeOperation, A::kReshapeX, V::kDescriptor, 1, 1, true},
        {K::kReshapeOperation, A::kReshapeY, V::kDescriptor, 1, 1, true},
        {K::kGraph, A::kGraphOperations, V::kDescriptor, 1, kAny, true},
        {K::kDevice, A::kDeviceText, V::kChar, 1, kAny, false},
        {K::kDevice, A::kDeviceIndex, V::kInt32, 1, 1, false},
        {K::kHeuristic, A::kHeuristicGraph, V::kDescriptor, 1, 1, true},
        {K::kHeuristic, A::kHeuristicMode, V::kHeuristicMode, 1, 1, true},
        {K::kHeuristic, A::kHeuristicDevice, V::kDescriptor, 1, 1, true},
        {K::kPlan, A::kPlanDevice, V::kDescriptor, 1, 1, true},
        {K::kPlan, A::kPlanConfig, V::kDescriptor, 1, 1, false},
        {K::kPlan, A::kPlanText, V::kChar, 1, kAny, false},
        {K::kVariantPack, A::kPackIds, V::kInt64, 1, kAny, true},
        {K::kVariantPack, A::kPackPointers, V::kPointer, 1, kAny, true},
        {K::kVariantPack, A::kPackWorkspace, V::kPointer, 1, 1, true},
    };
    const auto convolution = [&](K kind, std::initializer_list<A> factors, std::initializer_list<A> parts) {
      for (const A a : factors) r->push_back({kind, a, V::kFloat, 1, 1, true});
      for (const A a : parts) r->push_back({kind, a, V::kDescriptor, 1, 1, true});
    };
    convolution(K::kConvolutionForward, {A::kForwardAlpha, A::kForwardBeta},
                {A::kForwardConvolution, A::kForwardX, A::kForwardW, A::kForwardY});
    convolution(K::kConvolutionBackwardData, {A::kDataAlpha, A::kDataBeta},
                {A::kDataConvolution, A::kDataDy, A::kDataW, A::kDataDx});
    convolution(K::kConvolutionBackwardFilter, {A::kFilterAlpha, A::kFilterBeta},
                {A::kFilterConvolution, A::kFilterDy, A::kFilterX, A::kFilterDw});
    return r;
  }();
  return *rules;
}
size_t bytes_of(DnnValue type) {
  switch (type) {
    case V::kBool:
    case V::kChar: return 1;
    case V::kInt64:
    case V::kPointer:
    case V::kDescriptor: return 8;
    default: return 4;
  }
}

// ---- Finalizing

namespace {

DnnStatus finalize_tensor(Object& o) {
  GraphTensor& t = o.tensor;
  t = {.id = o.one<int64_t>(A::kTensorId),
       .alignment = o.one<int64_t>(A::kTensorAlignment),
       .type = o.one<DnnData>(A::kTensorType),
       .sizes = o.all<int64_t>(A::kTensorSizes),
       .strides = o.all<int64_t>(A::kTensorStrides),
       .is_virtual = o.has(A::kTensorIsVirtual) && o.one<char>(A::kTensorIsVirtual) != 0,
       .by_value = o.has(A::kTensorIsByValue) && o.one<char>(A::kTensorIsByValue) != 0};
  if (t.sizes.size() != t.strides.size()) return misuse("a tensor has other numbers of sizes and strides");
  for (size_t d = 0; d < t.sizes.size(); ++d)
    if (t.sizes[d] < 1 || t.strides[d] < 1)
      return misuse("a tensor has size " + number(t.sizes[d]) + " and stride " + number(t.strides[d]));
  if (t.alignment < 1 || !std::has_single_bit(static_cast<uint64_t>(t.alignment)))
    return misuse("a tensor is aligned to " + number(t.alignment) + " bytes");
  if (rondo::fake_cuda::dnn_bytes(t.type) == 0) return misuse("a tensor has an unknown type");
  return DnnStatus::kSuccess;
}

DnnStatus finalize_convolution(Object& o, A convolution, A first, A second, A result, A factor, A addend) {
  const Object& c = o.part(convolution);
  const GraphTensor &a = o.part(first).tensor, &b = o.part(second).tensor, &y = o.part(result).tensor;
  o.node = {.kind = o.kind,
            .computes = c.one<DnnData>(A::kConvolutionType),
            .inputs = {a.id, b.id},
            .output = y.id,
            .stride = c.all<int64_t>(A::kConvolutionStrides),
            .dilation = c.all<int64_t>(A::kConvolutionDilations),
            .before = c.all<int64_t>(A::kConvolutionBefore),
            .after = c.all<int64_t>(A::kConvolutionAfter)};
  if (o.one<float>(factor) != 1 || o.one<float>(addend) != 0) return misuse("alpha or beta is another than 1 and 0");
  if (c.one<int>(A::kConvolutionMode) != 1) return misuse("the convolution mirrors its kernel");
  const GraphTensor& x = o.kind == K::kConvolutionForward ? a : o.kind == K::kConvolutionBackwardData ? y : b;
  const GraphTensor& w = o.kind == K::kConvolutionBackwardFilter ? y : b;
  const GraphTensor& out = o.kind == K::kConvolutionForward ? y : a;
  for (const GraphTensor* t : {&x, &w, &out})
    if (t->sizes.size() != 4) return misuse("a convolution of a tensor that has not 4 dimensions");
  if (x.sizes[1] % w.sizes[1] != 0 || w.sizes[0] % (x.sizes[1] / w.sizes[1]) != 0)
    return misuse("channels cannot be divided among groups");
  if (out.sizes[0] != x.sizes[0] || out.sizes[1] != w.sizes[0]) return misuse("the output has other sizes");
  for (size_t d = 0; d < 2; ++d) {
    if (o.node.stride[d] < 1 || o.node.dilation[d] < 1 || o.node.before[d] < 0 || o.node.after[d] < 0)
      return misuse("a convolution's numbers are out of range");
    const int64_t free = x.sizes[2 + d] + o.node.before[d] + o.node.after[d] -
                         ((w.sizes[2 + d] - 1) * o.node.dilation[d] + 1);
    if (free < 0 || free / o.node.stride[d] + 1 != out.sizes[2 + d])
      return misuse("the output of a convolution has size " + number(out.sizes[2 + d]) + " where " +
                    number(free / o.node.stride[d] + 1) + " follows");
  }
  return DnnStatus::kSuccess;
}

// `small` broadcasts into `large`, or has a group for each of its elements.
bool goes_into(const GraphTensor& small, const GraphTensor& large) {
  if (small.sizes.size() != large.sizes.size()) return false;
  for (size_t d = 0; d < small.sizes.size(); ++d)
    if (large.sizes[d] % small.sizes[d] != 0) return false;
  return true;
}

DnnStatus finalize_operation(Object& o) {
  const auto id = [&](A a) { return o.part(a).tensor.id; };
  switch (o.kind) {
    case K::kPointwiseOperation: {
      const Object& f = o.part(A::kPointwiseDescriptor);
      o.node = {.kind = o.kind,
                .function = f.one<int>(A::kPointwiseMode),
                .computes = f.one<DnnData>(A::kPointwiseType),
                .inputs = {id(A::kPointwiseX)},
                .output = id(A::kPointwiseY)};
      if (f.has(A::kPointwiseAxis)) o.node.axis = f.one<int64_t>(A::kPointwiseAxis);
      for (const A a : {A::kPointwiseB, A::kPointwiseT})
        if (o.has(a)) o.node.inputs.push_back(id(a));
      size_t wants = 2;
      switch (static_cast<DnnPointwise>(o.node.function)) {
        case DnnPointwise::kExp:
        case DnnPointwise::kLog:
        case DnnPointwise::kIdentity:
        case DnnPointwise::kRelu:
        case DnnPointwise::kIndex: wants = 1; break;
        case DnnPointwise::kSelect: wants = 3; break;
        default: break;
      }
      if (o.node.inputs.size() != wants) return misuse("a pointwise operation has " + number(wants) + " operands");
      for (const A a : {A::kPointwiseX, A::kPointwiseB, A::kPointwiseT})
        if (o.has(a) && !goes_into(o.part(a).tensor, o.part(A::kPointwiseY).tensor))
          return misuse("the operands of a pointwise operation do not broadcast");
      return DnnStatus::kSuccess;
    }
    case K::kMatmulOperation: {
      const GraphTensor &a = o.part(A::kMatmulA).tensor, &b = o.part(A::kMatmulB).tensor,
                        &c = o.part(A::kMatmulC).tensor;
      o.node = {.kind = o.kind,
                .computes = o.part(A::kMatmulDescriptor).one<DnnData>(A::kMatmulType),
                .inputs = {a.id, b.id},
                .output = c.id};
      if (a.sizes.size() != 4 || b.sizes.size() != 4 || c.sizes.size() != 4 || a.sizes[3] != b.sizes[2] ||
          a.sizes[2] != c.sizes[2] || b.sizes[3] != c.sizes[3] || c.sizes[0] % b.sizes[0] != 0 ||
          c.sizes[1] % a.sizes[1] != 0 || c.sizes[1] % b.sizes[1] != 0 || c.sizes[0] % a.sizes[0] != 0)
        return misuse("the sizes of a product do not fit");
      return DnnStatus::kSuccess;
    }
    case K::kReductionOperation: {
      const Object& f = o.part(A::kReductionDescriptor);
      o.node = {.kind = o.kind,
                .function = f.one<int>(A::kReductionOperator),
                .computes = f.one<DnnData>(A::kReductionType),
                .inputs = {id(A::kReductionX)},
                .output = id(A::kReductionY)};
      if (!goes_into(o.part(A::kReductionY).tensor, o.part(A::kReductionX).tensor))
        return misuse("the result of a reduction has other sizes");
      return DnnStatus::kSuccess;
    }
    default:
      o.node = {.kind = o.kind, .inputs = {id(A::kReshapeX)}, .output = id(A::kReshapeY)};
      if (o.part(A::kReshapeX).tensor.elements() != o.part(A::kReshapeY).tensor.elements())
        return misuse("a reshape changes the number of elements");
      return DnnStatus::kSuccess;
  }
}

DnnStatus finalize_graph(Object& o) {
  std::set<int64_t> written;
  for (const Part& operation : o.values.at(A::kGraphOperations).parts) {
    if (operation->node.output == 0) return misuse("a graph is made of something that is no operation");
    for (const auto& [a, value] : operation->values)
      for (const Part& part : value.parts) {
        if (part->kind != K::kTensor) continue;
        const GraphTensor& t = part->tensor;
        const auto [at, added] = o.graph.tensors.emplace(t.id, t);
        if (!added && (at->second.sizes != t.sizes || at->second.strides != t.strides || at->second.type != t.type))
          return misuse("two tensors of a graph have the id " + number(t.id));
      }
    for (const int64_t id : operation->node.inputs)
      if (o.graph.tensors.at(id).is_virtual && !written.contains(id))
        return misuse("a graph reads tensor " + number(id) + ", which nothing has written");
    if (o.graph.tensors.at(operation->node.output).by_value) return misuse("a graph writes a number");
    if (!written.insert(operation->node.output).second) return misuse("a graph writes a tensor twice");
    o.graph.nodes.push_back(operation->node);
  }
  return DnnStatus::kSuccess;
}

DnnStatus finalize_device(Object& o) {
  if (o.has(A::kDeviceIndex)) {
    const int index = o.one<int32_t>(A::kDeviceIndex);
    if (!fake().initialized || index < 0 || index >= fake().options.devices)
      return misuse("no device " + number(index));
    o.device = {{"deviceVer", fake().options.capability * 10},
                {"driverVer", fake().options.driver_version},
                {"multiProcessorCount", 132},
                {"deviceName", fake().options.name}};
    for (const char* key : {"maxGridSize", "maxBlockSize"}) o.device[key] = {1, 1, 1};
  } else {
    if (!o.has(A::kDeviceText)) return misuse("a device is described by nothing");
    const std::vector<char> text = o.all<char>(A::kDeviceText);
    o.device = json::parse(text.begin(), text.end(), nullptr, false);
    if (!o.device.is_object()) return misuse("the description of a device is no JSON");
  }
  // [library] It refuses a description that lacks one of these.
  for (const char* key : {"deviceVer",
                          "driverVer",
                          "maxGridSize",
                          "maxBlockSize",
                          "regsPerBlock",
                          "multiProcessorCount",
                          "warpSize",
                          "maxSharedMemoryPerBlock",
                          "maxSharedMemoryPerBlockOptin",
                          "reservedSharedMemoryPerBlock",
                          "maxRegistersPerSM",
                          "maxCtasPerSM",
                          "maxThreadsPerBlock",
                          "maxThreadsPerSM",
                          "pciDeviceId",
                          "isTccDriver",
                          "supportCoopLaunch",
                          "smClockRateKHz",
                          "memClockRateKHz",
                          "l2CacheSize",
                          "deviceName",
                          "totalGlobalMem",
                          "cudaDeviceId"}) {
    if (o.has(A::kDeviceIndex)) o.device.emplace(key, 1);
    if (!o.device.contains(key)) return misuse(std::string("the description of a device lacks ") + key);
  }
  return DnnStatus::kSuccess;
}

// ---- Engines

json to_json(const Graph& graph) {
  json tensors = json::array(), nodes = json::array();
  for (const auto& [id, t] : graph.tensors)
    tensors.push_back({id, t.alignment, static_cast<int>(t.type), t.sizes, t.strides, t.is_virtual, t.by_value});
  for (const GraphNode& n : graph.nodes)
    nodes.push_back({static_cast<int>(n.kind), n.function, static_cast<int>(n.computes), n.inputs, n.output, n.axis,
                     n.stride, n.dilation, n.before, n.after});
  return {{"tensors", tensors}, {"nodes", nodes}};
}
Graph graph_of(const json& text) {
  Graph graph;
  for (const json& t : text.at("tensors"))
    graph.tensors[t[0]] = {t[0], t[1], static_cast<DnnData>(t[2].get<int>()), t[3], t[4], t[5], t[6]};
  for (const json& n : text.at("nodes"))
    graph.nodes.push_back({static_cast<DnnKind>(n[0].get<int>()), n[1], static_cast<DnnData>(n[2].get<int>()), n[3],
                           n[4], n[5], n[6], n[7], n[8], n[9]});
  return graph;
}

DnnStatus finalize_plan(Object& o) {
  const Object& device = o.part(A::kPlanDevice);
  o.device = device.device;
  if (o.has(A::kPlanConfig) == o.has(A::kPlanText)) return misuse("a plan is made of a configuration, or of a text");
  if (o.has(A::kPlanConfig)) {
    const Object& config = o.part(A::kPlanConfig);
    o.graph = config.graph;
    o.engine = config.engine;
    for (const FakeEngine& engine : kEngines)
      if (engine.index == o.engine) {
        if (!engine.builds) return refuse("engine 2 does not build");
        o.workspace = engine.workspace;
      }
    o.text = json{{"cudnnVersion", fake().options.dnn_version},
                  {"graph", to_json(o.graph)},
                  {"engine", o.engine},
                  {"workspace", o.workspace},
                  {"device", o.device}}
                 .dump();
    return DnnStatus::kSuccess;
  }
  const std::vector<char> text = o.all<char>(A::kPlanText);
  const json read = json::parse(text.begin(), text.end(), nullptr, false);
  if (!read.is_object()) return refuse("a plan's text is no JSON");
  for (const char* key : {"cudnnVersion", "graph", "engine", "workspace", "device"})  // such as the real library's
    if (!read.contains(key)) return refuse(std::string("a plan's text has no ") + key);
  if (read.at("cudnnVersion") != fake().options.dnn_version) {
    last_error() = "a plan of another version";
    return DnnStatus::kSerializationMismatch;
  }
  for (const char* key : {"deviceVer", "multiProcessorCount"})
    if (read.at("device").at(key) != o.device.at(key)) return refuse(std::string("a plan for another ") + key);
  o.graph = graph_of(read.at("graph"));
  o.engine = read.at("engine");
  o.workspace = read.at("workspace");
  o.text.assign(text.begin(), text.end());
  return DnnStatus::kSuccess;
}

}  // namespace

std::string words_of(const Graph& graph) {
  std::string words;
  for (const GraphNode& n : graph.nodes) {
    words += (words.empty() ? "" : " ") + number(static_cast<int>(n.kind)) + "/" + number(n.function);
  }
  return words;
}

DnnStatus finalize(Object& o) {
  switch (o.kind) {
    case K::kTensor: return finalize_tensor(o);
    case K::kConvolution:
      return o.one<int64_t>(A::kConvolutionDimensions) == 2 ? DnnStatus::kSuccess : misuse("2 dimensions are known");
    case K::kConvolutionForward:
      return finalize_convolution(o, A::kForwardConvolution, A::kForwardX, A::kForwardW, A::kForwardY, A::kForwardAlpha,
                                  A::kForwardBeta);
    case K::kConvolutionBackwardData:
      return finalize_convolution(o, A::kDataConvolution, A::kDataDy, A::kDataW, A::kDataDx, A::kDataAlpha,
                                  A::kDataBeta);
    case K::kConvolutionBackwardFilter:
      return finalize_convolution(o, A::kFilterConvolution, A::kFilterDy, A::kFilterX, A::kFilterDw, A::kFilterAlpha,
                                  A::kFilterBeta);
    case K::kPointwiseOperation:
    case K::kMatmulOperation:
    case K::kReductionOperation:
    case K::kReshapeOperation: return finalize_operation(o);
    case K::kGraph: return finalize_graph(o);
    case K::kDevice: return finalize_device(o);
    case K::kPlan: return finalize_plan(o);
    case K::kVariantPack:
      return o.values.at(A::kPackIds).count == o.values.at(A::kPackPointers).count
                 ? DnnStatus::kSuccess
                 : misuse("a variant pack has other numbers of ids and pointers");
    default: return DnnStatus::kSuccess;
  }
}

std::string& last_error() {
  thread_local std::string last_error;
  return last_error;
}
DnnStatus misuse(const std::string& what) {
  static_cast<void>(fake().misuse(Result::kInvalidValue, what));
  last_error() = what;
  return DnnStatus::kBadParam;
}
DnnStatus refuse(const std::string& why) {
  last_error() = why;
  return DnnStatus::kNotSupported;
}

}  // namespace rondo::fake_cuda::dnn

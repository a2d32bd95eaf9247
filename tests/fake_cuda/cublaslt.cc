// cuBLASLt's functions, those of the runtime's table. The library is this one, found under a second name (a link).
//
// Each refusal names what it follows: [manual] the cuBLAS manual, "Using the cuBLASLt API", by function; [header]
// cublasLt.h; [library] the real library's answer without a GPU, which tests/cuda/cublaslt_test.cc compares. What the
// real library would let pass and compute wrongly, or leaves undefined, is misuse, and ends the process.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rondo/tests/fake_cuda/machine.h"
#include "rondo/tests/fake_cuda/product.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

// They are kept after they are destroyed, so that a later use is seen.
namespace rondo::cuda {

struct OpaqueLt {
  OpaqueContext* context = nullptr;
  bool alive = true;
};
struct OpaqueLtLayout {
  LtType type{};
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;
  int32_t order = 0, batch = 1;
  int64_t stride = 0;
  bool alive = true;
};
struct OpaqueLtDesc {
  LtCompute compute{};
  LtType scale{};
  int32_t transpose_a = 0, transpose_b = 0, bias_type = -1;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
  bool alive = true;
};
struct OpaqueLtPreference {
  uint64_t workspace = 0;                         // [header] the default: none is allowed
  uint32_t reduction_schemes = 7;                 // [header] the default: all
  uint32_t alignments[4] = {256, 256, 256, 256};  // [header] the defaults, of A, B, C, D
  bool alive = true;
};

}  // namespace rondo::cuda

namespace {

using namespace rondo::cuda;  // the names of the table
using rondo::fake_cuda::Access;
using rondo::fake_cuda::context_stack;
using rondo::fake_cuda::LtAnswer;
using rondo::fake_cuda::Machine;
using rondo::fake_cuda::MatrixRef;
using rondo::fake_cuda::ProductWork;

Machine& fake() { return Machine::instance(); }
std::string number(long long n) { return std::to_string(n); }

// All that was ever made; the lock of the machine guards them. They outlive a reset, as memory of a library does.
template <class T> class Registry {
 public:
  T* make() {
    ++fake().counted.lt_descriptors;
    all_.push_back(std::make_unique<T>());
    known_.insert(all_.back().get());
    return all_.back().get();
  }
  bool knows(const T* handle) const { return known_.contains(handle); }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::unordered_set<const T*> known_;
};
struct Library {
  Registry<OpaqueLt> handles;
  Registry<OpaqueLtLayout> layouts;
  Registry<OpaqueLtDesc> descs;
  Registry<OpaqueLtPreference> preferences;
};
Library& library() {
  static auto* library = new Library;
  return *library;
}

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

LtStatus misuse(LtStatus status, const std::string& what) {
  static_cast<void>(fake().misuse(Result::kInvalidValue, what));
  return status;
}

#define LT_CHECK(expression) \
  if (const LtStatus checked = expression; checked != LtStatus::kSuccess) return checked

template <class T> LtStatus require(const Registry<T>& registry, const T* handle, const char* what) {
  if (handle == nullptr || !registry.knows(handle))
    return misuse(LtStatus::kInvalidValue, std::string("there is no such ") + what);
  if (!handle->alive) return misuse(LtStatus::kInvalidValue, std::string("the ") + what + " was destroyed");
  return LtStatus::kSuccess;
}

template <class T> LtStatus destroy(Registry<T>& registry, T* handle, const char* what) {
  LT_CHECK(require(registry, handle, what));
  handle->alive = false;
  --fake().counted.lt_descriptors;
  return LtStatus::kSuccess;
}

// [library] A value of another size than the attribute's is refused.
template <class T> LtStatus take(T& into, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T))
    return misuse(LtStatus::kInvalidValue, "an attribute of " + number(sizeof(T)) + " bytes is set with " +
                                               number(static_cast<long long>(bytes)));
  std::memcpy(&into, value, sizeof(T));
  return LtStatus::kSuccess;
}

// A handle works on the device on which it was made. [manual] cublasLtCreate: one for each device.
LtStatus require_handle(LtHandle handle) {
  LT_CHECK(require(library().handles, handle, "handle"));
  if (context_stack().empty() || context_stack().back() == nullptr)
    return misuse(LtStatus::kNotInitialized, "no context is current");
  if (handle->context != context_stack().back())
    return misuse(LtStatus::kInvalidValue, "the handle is of " + fake().name_of(*handle->context) +
                                               ", and the current context of " +
                                               fake().name_of(*context_stack().back()));
  return LtStatus::kSuccess;
}

size_t element_bytes(LtType type) { return rondo::fake_cuda::element_bytes(type); }

// ---- A product, as descriptor and layouts describe it

struct Problem {
  const OpaqueLtDesc* desc;
  const OpaqueLtLayout *a, *b, *c, *d;
  int64_t m() const { return static_cast<int64_t>(d->rows); }
  int64_t n() const { return static_cast<int64_t>(d->columns); }
  int64_t k() const { return static_cast<int64_t>(desc->transpose_a != 0 ? a->rows : a->columns); }
  bool has_bias() const { return (desc->epilogue & 4) != 0; }
  bool has_gelu() const { return (desc->epilogue & 32) != 0; }
  LtType bias_type() const { return desc->bias_type < 0 ? d->type : static_cast<LtType>(desc->bias_type); }
  // A hash of all that an algorithm is chosen for.
  uint64_t hash() const {
    uint64_t h = 1469598103934665603u;
    const auto mix = [&](auto value) { h = (h ^ static_cast<uint64_t>(value)) * 1099511628211u; };
    mix(desc->compute), mix(desc->scale), mix(desc->transpose_a), mix(desc->transpose_b), mix(desc->epilogue);
    mix(bias_type());
    for (const OpaqueLtLayout* l : {a, b, c, d})
      mix(l->type), mix(l->rows), mix(l->columns), mix(l->ld), mix(l->batch), mix(l->stride);
    return h;
  }
};

std::string shape(uint64_t rows, uint64_t columns) {
  return number(static_cast<long long>(rows)) + " x " + number(static_cast<long long>(columns));
}

// Elements from a matrix' first to behind its last.
int64_t extent(const OpaqueLtLayout& l) {
  return l.ld * (static_cast<int64_t>(l.columns) - 1) + static_cast<int64_t>(l.rows);
}

// [manual] cublasLtMatmul(), the table of supported data types: compute, scale, A and B, C and D.
bool supports_types(const Problem& p) {
  const LtType in = p.a->type, out = p.d->type;
  if (p.b->type != in || p.c->type != out || p.bias_type() != out) return false;
  switch (p.desc->compute) {
    case LtCompute::kF64: return p.desc->scale == LtType::kF64 && in == LtType::kF64 && out == LtType::kF64;
    case LtCompute::kTF32: return p.desc->scale == LtType::kF32 && in == LtType::kF32 && out == LtType::kF32;
    case LtCompute::kF32:
    case LtCompute::kF32Pedantic:
      if (p.desc->scale != LtType::kF32) return false;
      if (in == LtType::kF32) return out == LtType::kF32;
      return (in == LtType::kBF16 || in == LtType::kF16) && (out == in || out == LtType::kF32);
    default: return false;
  }
}

// kNotSupported: the real library says so, too, and a program may go on without.
LtStatus validate(const Problem& p) {
  LT_CHECK(require(library().descs, p.desc, "product descriptor"));
  const std::pair<const OpaqueLtLayout*, const char*> layouts[] = {{p.a, "A"}, {p.b, "B"}, {p.c, "C"}, {p.d, "D"}};
  for (const auto& [l, name] : layouts) {
    LT_CHECK(require(library().layouts, l, (std::string("layout of ") + name).c_str()));
    if (l->order != 0) return LtStatus::kNotSupported;  // epilogues want columns; the runtime uses nothing else
    if (l->rows == 0 || l->columns == 0)
      return misuse(LtStatus::kInvalidValue, std::string(name) + " is empty: " + shape(l->rows, l->columns));
    // [header] CUBLASLT_MATRIX_LAYOUT_LD
    if (l->ld < static_cast<int64_t>(l->rows))
      return misuse(LtStatus::kInvalidValue, std::string("the leading dimension ") + number(l->ld) + " of " + name +
                                                 " is less than its " + number(static_cast<long long>(l->rows)) +
                                                 " rows");
    if (l->batch < 1) return misuse(LtStatus::kInvalidValue, std::string(name) + " is a batch of " + number(l->batch));
    // [manual] cublasLtMatmul(): the same batch count for all.
    if (l->batch != p.d->batch)
      return misuse(LtStatus::kInvalidValue,
                    std::string(name) + " is a batch of " + number(l->batch) + ", and D of " + number(p.d->batch));
  }
  for (const int32_t transpose : {p.desc->transpose_a, p.desc->transpose_b})
    if (transpose != 0 && transpose != 1) return misuse(LtStatus::kInvalidValue, "an unknown transposition");
  const auto op = [](const OpaqueLtLayout& l, int32_t transpose) {
    return transpose != 0 ? std::pair(l.columns, l.rows) : std::pair(l.rows, l.columns);
  };
  const auto [m, k] = op(*p.a, p.desc->transpose_a);
  const auto [k_of_b, n] = op(*p.b, p.desc->transpose_b);
  if (m != p.d->rows || n != p.d->columns || k != k_of_b)
    return misuse(LtStatus::kInvalidValue, "op(A) is " + shape(m, k) + ", op(B) " + shape(k_of_b, n) + " and D " +
                                               shape(p.d->rows, p.d->columns));
  if (p.c->rows != p.d->rows || p.c->columns != p.d->columns)  // [manual] cublasLtMatmul()
    return misuse(LtStatus::kInvalidValue, "C and D have other sizes");
  // What two matrices of the batch write is undefined. They may lie side by side, or between each other's columns.
  if (const int64_t rows = static_cast<int64_t>(p.d->rows);
      p.d->batch > 1 && p.d->stride < extent(*p.d) && !(p.d->stride >= rows && p.d->stride * p.d->batch <= p.d->ld))
    return misuse(LtStatus::kInvalidValue, "the matrices of D overlap: their stride is " + number(p.d->stride));
  switch (p.desc->epilogue) {
    case 1:
    case 4: break;
    case 32:
    case 36:
      if (p.desc->compute == LtCompute::kF64) return LtStatus::kNotSupported;
      break;
    default: return misuse(LtStatus::kInvalidValue, "an unknown epilogue: " + number(p.desc->epilogue));
  }
  return supports_types(p) ? LtStatus::kSuccess : LtStatus::kNotSupported;
}

// The answer that the test has set for a product.
LtAnswer answer_of(const Problem& p, uint32_t alignment_a, uint32_t alignment_b) {
  if (!fake().lt_oracle) return LtAnswer::kAlgorithms;
  return fake().lt_oracle({p.m(),
                           p.n(),
                           p.k(),
                           p.d->batch,
                           p.desc->transpose_a != 0,
                           p.desc->transpose_b != 0,
                           p.has_bias(),
                           p.has_gelu(),
                           {p.a->ld, p.b->ld, p.d->ld},
                           static_cast<int>(p.a->type),
                           static_cast<int>(p.d->type),
                           alignment_a,
                           alignment_b});
}

// The contents of LtAlgo::data.
struct Algorithm {
  uint64_t magic, problem;
  uint32_t alignments[4];
  uint64_t bias_alignment, parts, workspace;
  const void* handle;
};
static_assert(sizeof(Algorithm) == sizeof(LtAlgo));
constexpr uint64_t kMagic = 0x5eed0fa1905ull;

uint64_t alignment_of(const void* address) {
  const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) | 256;
  return uint64_t{1} << std::countr_zero(at);
}

// Parts of K that are summed apart and added up in order.
uint64_t parts_of(const Problem& p, int algorithm) {
  const bool long_and_thin = p.k() >= 512 && p.m() * p.n() <= 64 * 64;
  return static_cast<uint64_t>((long_and_thin ? 2 : 1) + algorithm);
}

}  // namespace

// ---- Handles and descriptors

FAKE_EXPORT size_t cublasLtGetVersion() {
  const Call call(__func__);
  return fake().options.lt_version;
}
FAKE_EXPORT const char* cublasLtGetStatusString(LtStatus status) {
  switch (status) {
    case LtStatus::kSuccess: return "success";
    case LtStatus::kNotInitialized: return "the library was not initialized";
    case LtStatus::kAllocFailed: return "the resource allocation failed";
    case LtStatus::kInvalidValue: return "an unsupported value or parameter was passed to the function";
    case LtStatus::kArchMismatch: return "the function requires an architectural feature absent from the device";
    case LtStatus::kExecutionFailed: return "the function failed to launch on the GPU";
    case LtStatus::kInternalError: return "an internal operation failed";
    case LtStatus::kNotSupported: return "the requested functionality is not supported";
  }
  return "unrecognized status";
}
FAKE_EXPORT LtStatus cublasLtCreate(LtHandle* handle) {
  const Call call(__func__);
  if (fake().gone || !fake().initialized) return LtStatus::kNotInitialized;  // [library] without a GPU
  if (context_stack().empty() || context_stack().back() == nullptr)
    return misuse(LtStatus::kNotInitialized, "no context is current");
  if (context_stack().back()->dead != Result::kSuccess) return LtStatus::kNotInitialized;
  // [manual] cublasLtCreate: it takes memory of the device.
  if (fake().fails_now(rondo::fake_cuda::kDeviceMemory)) return LtStatus::kAllocFailed;
  *handle = library().handles.make();
  (*handle)->context = context_stack().back();
  ++fake().counted.lt_handles;
  return LtStatus::kSuccess;
}
FAKE_EXPORT LtStatus cublasLtDestroy(LtHandle handle) {
  const Call call(__func__);
  LT_CHECK(require_handle(handle));
  --fake().counted.lt_handles;
  return destroy(library().handles, handle, "handle");
}
// [library] Creating and setting refuse no value, but one of another size, and unknown attributes.
FAKE_EXPORT LtStatus cublasLtMatmulDescCreate(LtDesc* desc, LtCompute compute, LtType scale) {
  const Call call(__func__);
  *desc = library().descs.make();
  (*desc)->compute = compute;
  (*desc)->scale = scale;
  return LtStatus::kSuccess;
}
FAKE_EXPORT LtStatus cublasLtMatmulDescDestroy(LtDesc desc) {
  const Call call(__func__);
  return destroy(library().descs, desc, "product descriptor");
}
FAKE_EXPORT LtStatus cublasLtMatmulDescSetAttribute(LtDesc desc, LtDescAttribute attribute, const void* value,
                                                    size_t bytes) {
  const Call call(__func__);
  LT_CHECK(require(library().descs, desc, "product descriptor"));
  switch (attribute) {
    case LtDescAttribute::kTransposeA: return take(desc->transpose_a, value, bytes);
    case LtDescAttribute::kTransposeB: return take(desc->transpose_b, value, bytes);
    case LtDescAttribute::kEpilogue: return take(desc->epilogue, value, bytes);
    case LtDescAttribute::kBiasPointer: return take(desc->bias, value, bytes);
    case LtDescAttribute::kBiasType: return take(desc->bias_type, value, bytes);
    default: return misuse(LtStatus::kInvalidValue, "unknown attribute " + number(static_cast<int>(attribute)));
  }
}
FAKE_EXPORT LtStatus cublasLtMatrixLayoutCreate(LtLayout* layout, LtType type, uint64_t rows, uint64_t columns,
                                                int64_t ld) {
  const Call call(__func__);
  *layout = library().layouts.make();
  (*layout)->type = type;
  (*layout)->rows = rows;
  (*layout)->columns = columns;
  (*layout)->ld = ld;
  return LtStatus::kSuccess;
}
FAKE_EXPORT LtStatus cublasLtMatrixLayoutDestroy(LtLayout layout) {
  const Call call(__func__);
  return destroy(library().layouts, layout, "layout");
}
FAKE_EXPORT LtStatus cublasLtMatrixLayoutSetAttribute(LtLayout layout, LtLayoutAttribute attribute, const void* value,
                                                      size_t bytes) {
  const Call call(__func__);
  LT_CHECK(require(library().layouts, layout, "layout"));
  switch (attribute) {
    case LtLayoutAttribute::kOrder: return take(layout->order, value, bytes);
    case LtLayoutAttribute::kBatchStride: return take(layout->stride, value, bytes);
    case LtLayoutAttribute::kBatchCount: return take(layout->batch, value, bytes);
    default: return misuse(LtStatus::kInvalidValue, "unknown attribute " + number(static_cast<int>(attribute)));
  }
}
FAKE_EXPORT LtStatus cublasLtMatmulPreferenceCreate(LtPreference* preference) {
  const Call call(__func__);
  *preference = library().preferences.make();
  return LtStatus::kSuccess;
}
FAKE_EXPORT LtStatus cublasLtMatmulPreferenceDestroy(LtPreference preference) {
  const Call call(__func__);
  return destroy(library().preferences, preference, "preference");
}
FAKE_EXPORT LtStatus cublasLtMatmulPreferenceSetAttribute(LtPreference preference, LtPreferenceAttribute attribute,
                                                          const void* value, size_t bytes) {
  const Call call(__func__);
  LT_CHECK(require(library().preferences, preference, "preference"));
  switch (attribute) {
    case LtPreferenceAttribute::kMaxWorkspace: return take(preference->workspace, value, bytes);
    case LtPreferenceAttribute::kReductionSchemes: return take(preference->reduction_schemes, value, bytes);
    case LtPreferenceAttribute::kMinAlignmentA:
    case LtPreferenceAttribute::kMinAlignmentB:
    case LtPreferenceAttribute::kMinAlignmentC:
    case LtPreferenceAttribute::kMinAlignmentD: {
      const int first = static_cast<int>(LtPreferenceAttribute::kMinAlignmentA);
      return take(preference->alignments[static_cast<int>(attribute) - first], value, bytes);
    }
    default: return misuse(LtStatus::kInvalidValue, "unknown attribute " + number(static_cast<int>(attribute)));
  }
}

// ---- Products

FAKE_EXPORT LtStatus cublasLtMatmulAlgoGetHeuristic(LtHandle handle, LtDesc desc, LtLayout a, LtLayout b, LtLayout c,
                                                    LtLayout d, LtPreference preference, int wanted,
                                                    LtHeuristic* results, int* count) {
  const Call call(__func__);
  LT_CHECK(require_handle(handle));
  LT_CHECK(require(library().preferences, preference, "preference"));
  const Problem problem{desc, a, b, c, d};
  *count = 0;
  LT_CHECK(validate(problem));
  for (const uint32_t alignment : preference->alignments)
    if (!std::has_single_bit(alignment))
      return misuse(LtStatus::kInvalidValue, "an alignment of " + number(alignment) + " bytes");
  if (problem.has_bias() && desc->bias == nullptr)
    return misuse(LtStatus::kInvalidValue, "the address of the bias, which tells its alignment, is not set");
  const LtAnswer answer = answer_of(problem, preference->alignments[0], preference->alignments[1]);
  if (answer == LtAnswer::kNotSupported) return LtStatus::kNotSupported;
  if (answer == LtAnswer::kNone) return LtStatus::kSuccess;
  constexpr int kAlgorithms = 3;
  for (int i = 0; i < kAlgorithms && *count < wanted; ++i) {
    uint64_t parts = parts_of(problem, i);
    const uint64_t partial = static_cast<uint64_t>(problem.m() * problem.n() * d->batch) *
                             (desc->compute == LtCompute::kF64 ? 8 : 4);
    const bool splits = preference->workspace >= parts * partial && (preference->reduction_schemes & 2) != 0 &&
                        static_cast<uint64_t>(problem.k()) >= parts;
    if (parts > 1 && !splits) {
      if (i > 0) continue;
      parts = 1;
    }
    Algorithm algorithm{kMagic, problem.hash(),
                        {},     problem.has_bias() ? alignment_of(desc->bias) : 1,
                        parts,  parts > 1 ? parts * partial : 0,
                        handle};
    std::copy(std::begin(preference->alignments), std::end(preference->alignments), algorithm.alignments);
    LtHeuristic& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspace = algorithm.workspace;
    result.state = answer == LtAnswer::kStates ? LtStatus::kNotSupported : LtStatus::kSuccess;
    result.waves = 1;
  }
  return *count > 0 ? LtStatus::kSuccess : LtStatus::kNotSupported;
}

namespace {

// The bytes of all matrices of a batch; each apart where they are few.
std::vector<Access> accesses_of(const OpaqueLtLayout& l, const void* data, bool writes) {
  constexpr int32_t kMost = 64;
  const auto* at = static_cast<const std::byte*>(data);
  const auto bytes = static_cast<int64_t>(element_bytes(l.type));
  std::vector<Access> accesses;
  const bool apart = l.batch <= kMost && l.stride >= extent(l);
  if (!apart || l.batch == 1)
    return {{at, static_cast<size_t>((extent(l) + l.stride * (l.batch - 1)) * bytes), writes}};
  for (int64_t i = 0; i < l.batch; ++i)
    accesses.push_back({at + i * l.stride * bytes, static_cast<size_t>(extent(l) * bytes), writes});
  return accesses;
}

bool overlap(const std::vector<Access>& some, const std::vector<Access>& others) {
  for (const Access& a : some)
    for (const Access& b : others) {
      const auto *x = static_cast<const std::byte*>(a.address), *y = static_cast<const std::byte*>(b.address);
      if (x < y + b.bytes && y < x + a.bytes) return true;
    }
  return false;
}

MatrixRef matrix(const OpaqueLtLayout& l, const void* data) {
  return {const_cast<void*>(data), l.type, l.ld, l.stride};
}

}  // namespace

FAKE_EXPORT LtStatus cublasLtMatmul(LtHandle handle, LtDesc desc, const void* alpha, const void* a, LtLayout a_layout,
                                    const void* b, LtLayout b_layout, const void* beta, const void* c,
                                    LtLayout c_layout, void* d, LtLayout d_layout, const LtAlgo* algo, void* workspace,
                                    size_t workspace_bytes, StreamPtr stream) {
  const Call call(__func__);
  LT_CHECK(require_handle(handle));
  if (handle->context->dead != Result::kSuccess) return LtStatus::kExecutionFailed;
  if (stream == nullptr || !fake().handles.contains(stream) || !stream->alive)
    return misuse(LtStatus::kInvalidValue, "no such stream");
  if (stream->context != handle->context)
    return misuse(LtStatus::kInvalidValue, "the stream is of " + fake().name_of(*stream->context) +
                                               ", and the handle of " + fake().name_of(*handle->context));
  const Problem problem{desc, a_layout, b_layout, c_layout, d_layout};
  LT_CHECK(validate(problem));
  if (alpha == nullptr || beta == nullptr) return misuse(LtStatus::kInvalidValue, "alpha or beta is missing");
  // [manual] cublasLtMatmul(): without one, the library chooses by default preferences. The runtime never does.
  if (algo == nullptr) return misuse(LtStatus::kInvalidValue, "no algorithm is given");
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.magic != kMagic) return misuse(LtStatus::kInvalidValue, "the algorithm is not one of the heuristic's");
  if (algorithm.problem != problem.hash())
    return misuse(LtStatus::kInvalidValue, "the algorithm was chosen for another product");
  if (algorithm.handle != handle)
    return misuse(LtStatus::kInvalidValue, "the algorithm was chosen for another device's handle");
  // [header] cublasLtMatmul: "if the current implementation on the selected device doesn't support the configured
  // operation".
  if (answer_of(problem, algorithm.alignments[0], algorithm.alignments[1]) == LtAnswer::kRefusedByMatmul)
    return LtStatus::kNotSupported;

  ProductWork work;
  work.f64 = desc->compute == LtCompute::kF64;
  const auto factor = [&](const void* value) {
    if (work.f64) return *static_cast<const double*>(value);
    return static_cast<double>(*static_cast<const float*>(value));
  };
  work.alpha = factor(alpha);
  work.beta = factor(beta);
  // [header] *_MIN_ALIGNMENT_*_BYTES: an algorithm relies on the alignment that it was asked for.
  const std::pair<const void*, const char*> addresses[] = {{a, "A"}, {b, "B"}, {c, "C"}, {d, "D"}};
  for (size_t i = 0; i < 4; ++i)
    if (alignment_of(addresses[i].first) < algorithm.alignments[i])
      return misuse(LtStatus::kInvalidValue, std::string("the algorithm wants ") + addresses[i].second +
                                                 " aligned to " + number(algorithm.alignments[i]) +
                                                 " bytes, and it is aligned to " +
                                                 number(static_cast<long long>(alignment_of(addresses[i].first))));
  const rondo::cuda::OpaqueContext& context = *handle->context;
  std::vector<Access> accesses = accesses_of(*a_layout, a, false);
  for (const Access& access : accesses_of(*b_layout, b, false)) accesses.push_back(access);
  const std::vector<Access> written = accesses_of(*d_layout, d, true);
  if (overlap(accesses, written)) return misuse(LtStatus::kInvalidValue, "D overlaps A or B");
  if (work.beta != 0) {
    const bool same = c_layout->ld == d_layout->ld && c_layout->stride == d_layout->stride;
    const std::vector<Access> read = accesses_of(*c_layout, c, false);
    // [manual] cublasLtMatmul(): in place only with C == D and equal layouts.
    if (c == d ? !same : overlap(read, written))
      return misuse(LtStatus::kInvalidValue, "C and D share memory without being the same matrix");
    if (c != d) accesses.insert(accesses.end(), read.begin(), read.end());
  }
  accesses.insert(accesses.end(), written.begin(), written.end());
  if (problem.has_bias()) {
    if (alignment_of(desc->bias) < algorithm.bias_alignment)
      return misuse(LtStatus::kInvalidValue,
                    "the bias is aligned worse than the one for which the algorithm was chosen");
    accesses.push_back({desc->bias, d_layout->rows * element_bytes(problem.bias_type()), false});
  }
  if (workspace_bytes < algorithm.workspace)  // [header] cublasLtMatmul
    return misuse(LtStatus::kInvalidValue, "the algorithm needs a workspace of " +
                                               number(static_cast<long long>(algorithm.workspace)) + " bytes, not " +
                                               number(static_cast<long long>(workspace_bytes)));
  if (algorithm.workspace > 0) {
    if (alignment_of(workspace) < 256)  // [manual] cublasLtMatmul(), workspace
      return misuse(LtStatus::kInvalidValue, "the workspace is not aligned to 256 bytes");
    accesses.push_back({workspace, algorithm.workspace, true});
  }
  for (const Access& access : accesses) {
    const char* what = access.address == workspace && algorithm.workspace > 0 ? "the workspace"
                       : access.writes                                        ? "D"
                                                                              : "an operand";
    if (fake().require_device_range(context, reinterpret_cast<uintptr_t>(access.address), access.bytes, what) !=
        Result::kSuccess)
      return LtStatus::kInvalidValue;
  }

  work.m = problem.m(), work.n = problem.n(), work.k = problem.k(), work.batch = d_layout->batch;
  work.transpose_a = desc->transpose_a != 0, work.transpose_b = desc->transpose_b != 0;
  work.a = matrix(*a_layout, a), work.b = matrix(*b_layout, b), work.c = matrix(*c_layout, c),
  work.d = matrix(*d_layout, d);
  work.bias = problem.has_bias() ? desc->bias : nullptr;
  work.gelu = problem.has_gelu();
  work.tf32 = desc->compute == LtCompute::kTF32;
  work.parts = static_cast<int64_t>(algorithm.parts);
  ++fake().counted.products;
  // By rows, as the program sees it: our m is the library's n.
  const std::string sizes = (work.batch == 1 ? "" : number(work.batch) + " x ") + "[" + number(work.n) + ", " +
                            number(work.k) + "] [" + number(work.k) + ", " + number(work.m) + "]" +
                            (work.beta != 0 ? " + C" : "") + (work.bias != nullptr ? " + bias" : "") +
                            (work.gelu ? ", gelu" : "");
  const int64_t promised = *std::min_element(std::begin(algorithm.alignments), std::end(algorithm.alignments));
  const Result pushed = fake().push(
      *stream, "cublasLtMatmul", accesses,
      fake().noted({.kind = rondo::fake_cuda::Enqueued::Kind::kProduct,
                    .name = sizes,
                    .bytes = promised,
                    .flops = 2.0 * static_cast<double>(work.m) * static_cast<double>(work.n) *
                             static_cast<double>(work.k) * static_cast<double>(work.batch)},
                   [work, workspace, bytes = algorithm.workspace] {
                     if (bytes > 0) std::memset(workspace, 0xA5, bytes);
                     rondo::fake_cuda::compute(work);
                   }));
  return pushed == Result::kSuccess ? LtStatus::kSuccess : LtStatus::kExecutionFailed;
}

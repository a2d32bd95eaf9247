#include "rondo/runtime/cuda/product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/cuda/nvtx.h"
#include "rondo/runtime/cuda/product_kernel.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/dispatch/op_compiler.h"
#include "rondo/runtime/ops/matmul_precision.h"

namespace rondo::cuda {
namespace {

LtType library_type(DType dtype) {
  switch (dtype) {
    case kF64: return LtType::kF64;
    case kBF16: return LtType::kBF16;
    case kF16: return LtType::kF16;
    default: return LtType::kF32;
  }
}

// Returns the workspace size that the manual advises for cublasSetWorkspace: one from Hopper on, another for older
// devices.
uint64_t most_workspace(DeviceState& state) {
  int major = 0;
  state.check(state.driver().device_attribute(&major, DeviceAttribute::kCapabilityMajor, state.ordinal()),
              "cuDeviceGetAttribute");
  return major >= 9 ? uint64_t{32} << 20 : uint64_t{4} << 20;
}

// Note [Alignment keys]. A key has three bits for each address: the largest power of two that divides the address, up
// to 16 bytes. Algorithms ask for no larger alignment. One more bit says that TF32 is allowed.
constexpr int kMostAlignment = 4, kAlignmentBits = 3;
constexpr uint32_t kFast = 1u << 5 * kAlignmentBits;
enum Address { kAddressOfA, kAddressOfB, kAddressOfC, kAddressOfD, kAddressOfBias };

uint32_t alignment_bits(const void* address, int which) {
  const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) | uint64_t{1} << kMostAlignment;
  return static_cast<uint32_t>(std::countr_zero(at)) << which * kAlignmentBits;
}
uint32_t alignment_of(uint32_t key, int which) { return 1u << (key >> which * kAlignmentBits & 7); }

// Returns an address that has exactly the key's alignment. The heuristic takes the alignment of a bias from its
// address, and does not read the bias (cublasLt.h, CUBLASLT_MATMUL_DESC_BIAS_POINTER).
const void* bias_like(uint32_t key) {
  return reinterpret_cast<const void*>(uintptr_t{1} << 20 | alignment_of(key, kAddressOfBias));
}

// Destroys a descriptor if an error leaves its scope.
template <class Handle> struct Scoped {
  Handle handle = nullptr;
  LtStatus (*destroy)(Handle);
  ~Scoped() {
    if (handle != nullptr) static_cast<void>(destroy(handle));
  }
};

template <class T> const void* bytes_of(const T& value) { return &value; }

}  // namespace

std::string Product::describe() const {
  const MatmulCall& c = call_;
  std::string epilogues;
  for (const Epilogue epilogue : c.epilogues)
    if (epilogue == Epilogue::kAdd) epilogues += " + C";
    else if (epilogue == Epilogue::kGeluTanh) epilogues += ", gelu";
  return absl::StrCat("a product of ", c.batch == 1 ? "" : absl::StrCat(c.batch, " times "), "[", c.m, ", ", c.k,
                      "] x [", c.k, ", ", c.n, "] in ", std::string(name_of(c.dtype)), c.bias ? " + bias" : "",
                      epilogues);
}

void Product::check(LtStatus status, const char* what) const {
  if (status == LtStatus::kSuccess) [[likely]]
    return;
  throw DeviceError(
      absl::StrCat("cuda:", device_, ": ", what, ": ", library_.status_string(status), ", for ", describe()));
}

LtLayout Product::layout(LtType type, int64_t rows, int64_t columns, int64_t ld, int64_t batch_stride) const {
  Scoped<LtLayout> made{nullptr, library_.layout_destroy};
  check(library_.layout_create(&made.handle, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), ld),
        "cublasLtMatrixLayoutCreate");
  if (call_.batch > 1) {
    const auto count = static_cast<int32_t>(call_.batch);
    check(library_.layout_set(made.handle, LtLayoutAttribute::kBatchCount, bytes_of(count), sizeof count),
          "cublasLtMatrixLayoutSetAttribute");
    check(
        library_.layout_set(made.handle, LtLayoutAttribute::kBatchStride, bytes_of(batch_stride), sizeof batch_stride),
        "cublasLtMatrixLayoutSetAttribute");
  }
  return std::exchange(made.handle, nullptr);
}

Product::Product(DeviceState& state, const MatmulCall& call, int variant)
    : library_(require_cublas_lt()),
      device_(state.index()),
      call_(call),
      variant_(variant),
      most_workspace_(most_workspace(state)) {
  constexpr int64_t kMost = INT32_MAX;  // cublasLt.h, CUBLASLT_MATRIX_LAYOUT_ROWS
  if (call.batch > kMost || call.m > kMost || call.n > kMost || call.k > kMost)
    throw Error(absl::StrCat(memory::Cause::describe(), ": cuBLASLt takes sizes below 2^31, not ", call.batch,
                             " times [", call.m, ", ", call.k, "] x [", call.k, ", ", call.n, "]; split the operands"));
  const LtType in = library_type(call.dtype), out = library_type(call.result_dtype());
  const bool f64 = call.dtype == kF64;
  uint32_t epilogue = call.bias ? static_cast<uint32_t>(LtEpilogue::kBias) : 0;
  for (const Epilogue e : call.epilogues)
    if (e == Epilogue::kGeluTanh) epilogue |= static_cast<uint32_t>(LtEpilogue::kGelu);
  if (epilogue == 0) epilogue = static_cast<uint32_t>(LtEpilogue::kDefault);
  // True if our operand is column-major, so that cuBLASLt has to transpose it: Note [Row-major].
  const bool b_transposed = call.b.column != 1, a_transposed = call.a.column != 1;
  const auto make_desc = [&](LtCompute compute) {
    Scoped<LtDesc> made{nullptr, library_.desc_destroy};
    const auto set = [&](LtDescAttribute attribute, auto value) {
      check(library_.desc_set(made.handle, attribute, bytes_of(value), sizeof value), "cublasLtMatmulDescSetAttribute");
    };
    check(library_.desc_create(&made.handle, compute, f64 ? LtType::kF64 : LtType::kF32), "cublasLtMatmulDescCreate");
    set(LtDescAttribute::kTransposeA, static_cast<int32_t>(b_transposed));
    set(LtDescAttribute::kTransposeB, static_cast<int32_t>(a_transposed));
    set(LtDescAttribute::kEpilogue, epilogue);
    if (call.bias) set(LtDescAttribute::kBiasType, static_cast<int32_t>(out));
    return std::exchange(made.handle, nullptr);
  };
  try {
    desc_ = make_desc(f64 ? LtCompute::kF64 : LtCompute::kF32);
    if (call.dtype == kF32) fast_desc_ = make_desc(LtCompute::kTF32);
    const auto operand = [&](int64_t rows, int64_t columns, const MatrixStrides& s, bool transposed) {
      return transposed ? layout(in, rows, columns, s.column, s.batch) : layout(in, columns, rows, s.row, s.batch);
    };
    a_ = operand(call.k, call.n, call.b, b_transposed);
    b_ = operand(call.m, call.k, call.a, a_transposed);
    d_ = layout(out, call.n, call.m, call.c.row, call.c.batch);
  } catch (...) {
    destroy();
    throw;
  }
}

Product::~Product() { destroy(); }

void Product::destroy() noexcept {
  for (const LtDesc desc : {desc_, fast_desc_})
    if (desc != nullptr) static_cast<void>(library_.desc_destroy(desc));
  for (const LtLayout layout : {a_, b_, d_})
    if (layout != nullptr) static_cast<void>(library_.layout_destroy(layout));
}

uint32_t Product::key_of(const MatmulOperands& o) const {
  const bool fast = call_.dtype == kF32 && float32_matmul_precision() == MatmulPrecision::kHigh;
  return (fast ? kFast : 0) | alignment_bits(o.b, kAddressOfA) | alignment_bits(o.a, kAddressOfB) |
         alignment_bits(has_added() ? o.added[0] : o.c, kAddressOfC) | alignment_bits(o.c, kAddressOfD) |
         alignment_bits(o.bias, kAddressOfBias);
}

LtDesc Product::desc_of(uint32_t key) const { return (key & kFast) != 0 ? fast_desc_ : desc_; }

void Product::set_bias(uint32_t key, const void* bias) const {
  if (call_.bias)
    check(library_.desc_set(desc_of(key), LtDescAttribute::kBiasPointer, bytes_of(bias), sizeof bias),
          "cublasLtMatmulDescSetAttribute");
}

const Product::Choice* Product::choose(DeviceState& state, uint32_t key) const {
  for (const Choice& choice : choices_)
    if (choice.key == key) return &choice;
  Scoped<LtPreference> preference{nullptr, library_.preference_destroy};
  check(library_.preference_create(&preference.handle), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](LtPreferenceAttribute attribute, auto value) {
    check(library_.preference_set(preference.handle, attribute, bytes_of(value), sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(LtPreferenceAttribute::kMaxWorkspace, most_workspace_);
  prefer(LtPreferenceAttribute::kReductionSchemes, kReduceInComputeType);
  prefer(LtPreferenceAttribute::kMinAlignmentA, alignment_of(key, kAddressOfA));
  prefer(LtPreferenceAttribute::kMinAlignmentB, alignment_of(key, kAddressOfB));
  prefer(LtPreferenceAttribute::kMinAlignmentC, alignment_of(key, kAddressOfC));
  prefer(LtPreferenceAttribute::kMinAlignmentD, alignment_of(key, kAddressOfD));
  set_bias(key, bias_like(key));
  std::array<LtHeuristic, 8> found{};
  const int wanted = variant_ + 1;
  int count = 0;
  if (wanted > static_cast<int>(found.size())) return nullptr;
  const LtStatus status = library_.heuristic(state.lt_handle(), desc_of(key), a_, b_, d_, d_, preference.handle, wanted,
                                             found.data(), &count);
  if (status != LtStatus::kNotSupported) check(status, "cublasLtMatmulAlgoGetHeuristic");
  const auto end = found.begin() + count;
  const auto usable = std::remove_if(found.begin(), end, [](const auto& f) { return f.state != LtStatus::kSuccess; });
  if (usable - found.begin() < wanted) return nullptr;
  const LtHeuristic& chosen = found[static_cast<size_t>(variant_)];
  choices_.push_back({.key = key, .algo = chosen.algo, .workspace = chosen.workspace});
  return &choices_.back();
}

// ---- Other ways to compute: Note [Products without an algorithm]

namespace {

struct Report {
  std::mutex mutex;
  ProductReport report;  // without the runs, which are counted below
  std::atomic<int64_t> runs{0};
};
Report& report() {
  static auto* report = new Report;
  return *report;
}

// Returns the call without its epilogues. The sums of this product are not rounded.
MatmulCall without_epilogues(const MatmulCall& call) {
  MatmulCall plain(call.dtype, call.m, call.n, call.k, call.a, call.b, {call.n, 1, call.m * call.n}, call.batch);
  plain.wide = is_low_precision(call.dtype);
  return plain;
}
// Like without_epilogues(), but with dense copies of the operands.
MatmulCall of_copies(const MatmulCall& call) {
  MatmulCall dense = call.with_dense_operands(call.dtype);
  dense.wide = is_low_precision(call.dtype);
  return dense;
}
// Returns the key with the alignments of A and B alone. All other addresses count as aligned like the allocator's
// blocks.
uint32_t key_of_operands(uint32_t key) {
  constexpr uint32_t kBits = (1u << kAlignmentBits) - 1;
  uint32_t result = key & (kFast | kBits << kAddressOfA * kAlignmentBits | kBits << kAddressOfB * kAlignmentBits);
  for (const int other : {kAddressOfC, kAddressOfD, kAddressOfBias}) result |= alignment_bits(nullptr, other);
  return result;
}

}  // namespace

ProductReport product_report() {
  const std::lock_guard lock(report().mutex);
  ProductReport result = report().report;
  result.runs = report().runs.load();
  return result;
}

std::shared_ptr<const Product> Product::by_library(DeviceState& state, const MatmulCall& call, uint32_t key) {
  const std::shared_ptr<const Product> product(new Product(state, call, 0));
  const std::lock_guard lock(product->mutex_);
  return product->choose(state, key_of_operands(key)) == nullptr ? nullptr : product;
}

const Product::Choice& Product::choose_otherwise(DeviceState& state, uint32_t key, const char* why) const {
  std::erase_if(choices_, [key](const Choice& choice) { return choice.key == key; });
  Choice choice{.key = key, .way = ProductWay::kKernel};
  const MatmulCall apart = without_epilogues(call_), copied = of_copies(call_);
  const uint32_t aligned = (key & kFast) | key_of(MatmulOperands{});
  if (apart != call_ && (choice.part = by_library(state, apart, key)) != nullptr) choice.way = ProductWay::kApart;
  else if ((copied != call_ || key_of_operands(key) != key_of_operands(aligned)) &&
           (choice.part = by_library(state, copied, aligned)) != nullptr)
    choice.way = ProductWay::kCopied;
  const std::string cause = memory::Cause::describe();
  const std::string text = absl::StrCat(
      cause, cause.empty() ? "" : ": ", "cuBLASLt ", why, " for ", describe(), " on cuda:", device_, ", so it runs ",
      choice.way == ProductWay::kApart    ? "as plain sums that a kernel of Rondo's own finishes"
      : choice.way == ProductWay::kCopied ? "on dense copies of its operands"
                                          : "by a kernel of Rondo's own, which is several times slower");
  {
    Report& all = report();
    const std::lock_guard lock(all.mutex);
    ++(choice.way == ProductWay::kApart    ? all.report.apart
       : choice.way == ProductWay::kCopied ? all.report.copied
                                           : all.report.by_kernel);
    constexpr size_t kMostWords = 64;
    if (all.report.last.size() == kMostWords) all.report.last.erase(all.report.last.begin());
    all.report.last.push_back(text);
  }
  if (OpCompiler* const compiler = op_compiler()) compiler->hint(text);
  return choices_.emplace_back(std::move(choice));
}

void Product::run_otherwise(const Choice& choice, const MatmulOperands& o, double alpha) const {
  ++report().runs;
  if (choice.way == ProductWay::kKernel) return product_by_kernel(device_, call_, o, alpha);
  const Device device{Backend::kCUDA, static_cast<int8_t>(device_)};
  const auto take = [&](int64_t elements, DType dtype) {
    return Storage::allocate(static_cast<size_t>(elements) * size_of(dtype), device);
  };
  const MatmulCall& c = call_;
  const Storage sums = take(c.batch * c.m * c.n, compute_dtype(c.dtype));
  MatmulOperands operands{.a = o.a, .b = o.b, .c = sums.data()};
  Storage a, b;
  if (choice.way == ProductWay::kCopied) {
    a = take((c.a.batch == 0 ? 1 : c.batch) * c.m * c.k, c.dtype);
    b = take((c.b.batch == 0 ? 1 : c.batch) * c.k * c.n, c.dtype);
    copy_matrices(device_, c.dtype, o.a, a.data(), c.batch, c.m, c.k, c.a);
    copy_matrices(device_, c.dtype, o.b, b.data(), c.batch, c.k, c.n, c.b);
    operands.a = a.data(), operands.b = b.data();
  }
  choice.part->run(operands, alpha);
  finish_product(device_, c, sums.data(), o);
}

// ---- Runs

void Product::run(const MatmulOperands& o, double alpha) const {
  DeviceState& state = device_state(device_);
  const ContextScope scope(state);
  const Range range("matmul");
  const uint32_t key = key_of(o);
  std::unique_lock lock(mutex_);
  const Choice* choice = choose(state, key);
  if (choice == nullptr) [[unlikely]] {
    if (variant_ > 0) {  // there are fewer algorithms for these alignments than for those that were tuned
      lock.unlock();
      return get(device_, call_)->run(o, alpha);
    }
    choice = &choose_otherwise(state, key, "has no algorithm");
  }
  if (choice->way == ProductWay::kLibrary) [[likely]] {
    if (run_by_library(state, *choice, o, alpha)) [[likely]]
      return;
    choice = &choose_otherwise(state, key, "refuses its own algorithm");
  }
  const Choice other = *choice;
  lock.unlock();  // the choice's `part` has a lock of its own
  run_otherwise(other, o, alpha);
}

bool Product::run_by_library(DeviceState& state, const Choice& choice, const MatmulOperands& o, double alpha) const {
  const uint32_t key = choice.key;
  set_bias(key, o.bias);
  // The workspace is freed at the end of this function, in stream order: Note [Product workspace].
  Storage workspace;
  if (choice.workspace > 0)
    workspace = Storage::allocate(choice.workspace, {Backend::kCUDA, static_cast<int8_t>(device_)});
  const double wide[] = {alpha, has_added() ? 1.0 : 0.0};
  const float narrow[] = {static_cast<float>(wide[0]), static_cast<float>(wide[1])};
  const bool f64 = call_.dtype == kF64;
  const auto factor = [&](int i) { return f64 ? bytes_of(wide[i]) : bytes_of(narrow[i]); };
  const LtStatus status = library_.matmul(state.lt_handle(), desc_of(key), factor(0), o.b, a_, o.a, b_, factor(1),
                                          has_added() ? o.added[0] : o.c, d_, o.c, d_, &choice.algo,
                                          workspace ? workspace.data() : nullptr, choice.workspace, state.compute());
  // With these errors, the device cannot run the algorithm (cublasLt.h, cublasLtMatmul).
  if (status == LtStatus::kNotSupported || status == LtStatus::kArchMismatch) [[unlikely]]
    return false;
  check(status, "cublasLtMatmul");
  state.enqueued("a matrix product", state.compute());
  return true;
}

// ---- The products that are kept

namespace {

struct Key {
  int device;
  MatmulCall call;
  int variant;
  friend bool operator==(const Key&, const Key&) = default;
  template <class H> friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.device, key.call, key.variant);
  }
};

RecentCache<Key, Product>& cache() {
  static auto* cache = new RecentCache<Key, Product>(1024);
  return *cache;
}

}  // namespace

std::shared_ptr<const Product> Product::get(int device, const MatmulCall& call, int variant) {
  DeviceState& state = device_state(device);
  const Key key{device, call, variant};
  if (std::shared_ptr<const Product> found = cache().find(key)) return found;
  std::shared_ptr<const Product> product(new Product(state, call, variant));
  if (variant > 0) {
    const ContextScope scope(state);
    const std::lock_guard lock(product->mutex_);
    // Chooses for addresses that are aligned like the allocator's blocks.
    const MatmulOperands aligned{};
    if (product->choose(state, product->key_of(aligned)) == nullptr) return nullptr;
  }
  return cache().add(key, std::move(product));
}

void Product::trim() { cache().clear(); }

}  // namespace rondo::cuda

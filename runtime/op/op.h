// OpDef: everything one op is, in one entry. A new op is an OpDef in its family file, a public
// function in ops/ops.h and samples for the tests (README.md). The sweep test, autograd, recording and fusion read the
// entry.
//
//   constexpr OpDef kCumsum = {.name = "cumsum", .kind = OpKind::kOpaque, .infer = ..., .host = {&cpu::cumsum_kernel},
//                              .grad = ...};
//
// OpDefs are constants: every thread may use them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/base/sym_float.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class LoopBuilder;
struct OpDef;
namespace ops {
struct ElementwiseBody;
}

// What a fusion pass may assume of an op.
enum class OpKind : uint8_t {
  kElementwise,  // output element i reads only element i of each input (after broadcasting)
  kReduction,    // reduces dimensions, in the order of ops/reduction_order.h
  kView,         // shares the storage of input 0
  kContraction,  // matrix products
  kOpaque,       // anything else: runs as one call
};

// The integer attributes of a call. A few are stored inline; those of an op with many operands are on the heap. Most
// calls have none, so making, moving and freeing an empty list costs next to nothing.
class IntList {
 public:
  IntList() = default;
  IntList(std::initializer_list<int64_t> values) { append(values); }
  IntList(const IntList& other) : size_(other.size_) {
    if (other.many_ != nullptr) many_ = std::make_unique<std::vector<int64_t>>(*other.many_);
    copy_few(other);
  }
  IntList(IntList&& other) noexcept : size_(std::exchange(other.size_, 0)), many_(std::move(other.many_)) {
    copy_few(other);
  }
  IntList& operator=(const IntList& other) {
    many_ = other.many_ == nullptr ? nullptr : std::make_unique<std::vector<int64_t>>(*other.many_);
    size_ = other.size_;
    copy_few(other);
    return *this;
  }
  IntList& operator=(IntList&& other) noexcept {
    many_ = std::move(other.many_);
    size_ = std::exchange(other.size_, 0);
    copy_few(other);
    return *this;
  }
  template <class It> void assign(It begin, It end) {
    size_ = 0;
    many_ = nullptr;
    for (; begin != end; ++begin) push_back(*begin);
  }
  void push_back(int64_t value) {
    if (size_ < kFew) few_[size_++] = value;
    else push_back_many(value);
  }
  void append(std::span<const int64_t> values) {
    for (int64_t value : values) push_back(value);
  }
  void append(std::initializer_list<int64_t> values) { append(std::span(values.begin(), values.size())); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return many_ == nullptr ? few_ : many_->data(); }
  int64_t* data() { return many_ == nullptr ? few_ : many_->data(); }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t operator[](size_t i) const { return data()[i]; }
  int64_t& operator[](size_t i) { return data()[i]; }
  friend bool operator==(const IntList& a, const IntList& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr size_t kFew = kMaxRank + 4;
  void push_back_many(int64_t value);
  // Copies the first size_ numbers, unless many_ holds them. REQUIRES: size_ and many_ are set. It is a loop, because a
  // call of memmove takes longer than copying these few numbers.
  void copy_few(const IntList& other) {
    if (many_ == nullptr)
      for (size_t i = 0; i < size_; ++i) few_[i] = other.few_[i];
  }
  size_t size_ = 0;
  std::unique_ptr<std::vector<int64_t>> many_;  // all attributes, if there are more than kFew; else null
  int64_t few_[kFew];                           // the first size_ attributes, if many_ is null
};

// The float attributes of a call: at most two. As in IntList, an empty list costs next to nothing.
class FloatList {
 public:
  FloatList() = default;
  FloatList(std::initializer_list<SymFloat> values) {
    for (SymFloat value : values) push_back(value);
  }
  FloatList(const FloatList& other) { *this = other; }
  FloatList& operator=(const FloatList& other) {
    size_ = other.size_;
    for (size_t i = 0; i < size_; ++i) values_[i] = other.values_[i];
    return *this;
  }
  void push_back(SymFloat value) {
    if (size_ == kMost) throw Error("too many attributes");
    values_[size_++] = value;
  }
  size_t size() const { return size_; }
  const SymFloat* begin() const { return values_; }
  const SymFloat* end() const { return values_ + size_; }
  SymFloat operator[](size_t i) const { return values_[i]; }
  SymFloat& operator[](size_t i) { return values_[i]; }
  friend bool operator==(const FloatList& a, const FloatList& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr size_t kMost = 2;
  size_t size_ = 0;
  SymFloat values_[kMost];  // the first size_ are used
};

// The arguments of a call that are not tensors. In a compiled region floats are run-time scalars (sym_float.h); ints
// are part of the cache key.
struct Attrs {
  IntList ints = {};
  FloatList floats = {};
  friend bool operator==(const Attrs&, const Attrs&) = default;
};

// The tensors saved for backward, as bit masks over inputs and outputs: exactly those that the gradient reads. An op
// that saves a tensor has fewer than 32 inputs and outputs.
struct SavedSpec {
  uint32_t inputs = 0;
  uint32_t outputs = 0;
  bool input(size_t i) const { return i < 32 && (inputs >> i & 1u) != 0; }
  bool output(size_t i) const { return i < 32 && (outputs >> i & 1u) != 0; }
  // True for a product: the gradient of input 0 reads input 1 and not input 0, that of input 1 reads input 0 and not
  // input 1. The tape then keeps no operand for a gradient that is not wanted, such as the input of a layer with a
  // frozen weight.
  bool product = false;
};

// Most ops have at most this many inputs and outputs. Some have more (split, cat), which costs an allocation.
inline constexpr int kUsualInputs = 8;
inline constexpr int kUsualOutputs = 8;

struct TensorMeta {
  DType dtype = kF32;
  Device device;
  Dims sizes;
  Dims strides;
  int64_t offset = 0;  // views only: in elements, from the start of the storage
};

// The facts that a gradient rule has about an input, even if the input was not saved.
struct InputMeta {
  DType dtype = kF32;
  Dims sizes;
  bool needs_grad = false;  // its gradient is wanted
};

// Gives OpDef::infer the operands of a call, from which it computes the shapes, strides and dtypes of the outputs. It
// must not read data.
//
// Note [Results keep the layout]. As in PyTorch, images keep their layout: a result of an elementwise op lies in memory
// as its first operand with as many elements does, if that is channels last (Note [Channels last] in
// tensor/memory_order.h). Kernels honour the strides of results. The op's gradient rule runs in the order of memory
// (Note [Rules in memory order] in autograd/op_node.cc). A recording holds the call on views in the order of memory, so
// a compiler needs no rule for the layout (capture/trace.h). Convolutions, pooling and interpolation state their own
// strides; batch_norm and cat call their ops on such views (ops/channels_last.h).
class InferContext {
 public:
  // `given`: the operands as the caller gave them, one for each input, if some were converted since.
  InferContext(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::source_location where,
               std::span<const TensorArg> given = {})
      : op_(op), inputs_(inputs), attrs_(attrs), where_(where), given_(given) {}
  int n_inputs() const { return static_cast<int>(inputs_.size()); }
  bool has(int i) const { return i < n_inputs() && inputs_[i]->defined(); }
  // These fail() if operand i is undefined. Test an optional operand with has() first.
  const Dims& sizes(int i) const { return operand(i).sizes(); }
  const Dims& strides(int i) const { return operand(i).strides(); }
  int64_t offset(int i) const { return operand(i).storage_offset(); }
  DType dtype(int i) const { return operand(i).dtype(); }
  int64_t integer(int i) const { return attrs_.ints[i]; }
  SymFloat scalar(int i) const { return attrs_.floats[i]; }
  const Attrs& attrs() const { return attrs_; }
  // Sets output i, a dense tensor: contiguous, except for Note [Results keep the layout].
  void output(int i, DType dtype, const Dims& sizes);
  // Sets output i, a dense tensor with the strides of another order of its dimensions.
  void strided_output(int i, DType dtype, const Dims& sizes, const Dims& strides);
  // Makes output i a view of input 0.
  void view(const Dims& sizes, const Dims& strides, int64_t offset, int i = 0);
  // Throws Error with the op's name, the dtypes and shapes of all inputs as the caller gave them, and the caller's
  // line.
  [[noreturn]] void fail(std::string_view what) const;
  // Calls fail() unless input i has one of the floating dtypes.
  void require_floating(int i) const;
  void require_same_dtype(int a, int b) const;

  std::span<const TensorMeta> outputs() const { return {outputs_.data(), n_outputs_}; }

  // For a call in place, call this before `infer`. The inferred result is then contiguous. A recorder records the
  // result as a new value with these strides. Eager execution does not use them: it writes into operand 0.
  void set_in_place() { in_place_ = true; }

 private:
  bool keeps_channels_last(const Dims& sizes) const;
  const Tensor& operand(int i) const {
    if (!has(i)) [[unlikely]]
      fail_undefined(i);
    return *inputs_[i];
  }
  [[noreturn, gnu::cold]] void fail_undefined(int i) const;
  TensorMeta& meta(int i) {
    const auto at = static_cast<size_t>(i);
    n_outputs_ = std::max(n_outputs_, at + 1);
    while (at >= outputs_.size()) outputs_.emplace_back();
    return outputs_[at];
  }
  const OpDef& op_;
  std::span<const Tensor* const> inputs_;
  const Attrs& attrs_;
  std::source_location where_;
  std::span<const TensorArg> given_;
  bool in_place_ = false;
  absl::InlinedVector<TensorMeta, 1> outputs_ = absl::InlinedVector<TensorMeta, 1>(
      1);  // nearly every call has one output
  size_t n_outputs_ = 0;
};

// Elementwise ops that a product can apply to its result before it stores it.
enum class Epilogue : uint8_t {
  kNone,
  kAdd,  // result + operand, of the result's shape and dtype; if the operand is the result's memory, adds in place
  kGelu,
  kGeluTanh,
  kWiden,  // a bf16 product's first epilogue: the result stays f32 and is not rounded to bf16
};
inline constexpr int kMaxEpilogues = 2;  // at most this many epilogues in one product
struct EpilogueCall {
  Epilogue kind = Epilogue::kNone;
  const Tensor* operand = nullptr;  // kAdd: the tensor that is added
};

// A kernel's arguments. Outputs are allocated as `infer` said; for an in-place call output 0 is input 0.
struct KernelContext {
  const OpDef& op;
  std::span<const Tensor* const> inputs;
  std::span<Tensor> outputs;
  const Attrs& attrs;
  std::source_location where;
  std::span<const EpilogueCall> epilogues = {};  // in order; only those that the op `absorbs`
  bool has(int i) const { return i < static_cast<int>(inputs.size()) && inputs[i]->defined(); }
  const Tensor& in(int i) const { return *inputs[i]; }
  Tensor& out(int i = 0) const { return outputs[i]; }
};

// One call as its gradient rule (vector-Jacobian product) sees it. Rules are written in public ops, so they can be
// recorded, fused and differentiated again.
class GradContext {
 public:
  GradContext(const Attrs& attrs, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
              std::span<const Tensor> grads_out, std::span<const InputMeta> input_metas, std::span<Tensor> grads_in)
      : attrs_(attrs),
        inputs_(inputs),
        outputs_(outputs),
        grads_out_(grads_out),
        input_metas_(input_metas),
        grads_in_(grads_in) {}
  const Tensor& input(int i) const { return inputs_[i]; }    // defined only if in SavedSpec and given
  const Tensor& output(int i) const { return outputs_[i]; }  // defined only if in SavedSpec
  const Tensor& grad_out(int i = 0) const { return grads_out_[i]; }
  bool needs(int i) const { return i < n_inputs() && input_metas_[i].needs_grad; }
  const Dims& input_sizes(int i) const { return input_metas_[i].sizes; }
  DType input_dtype(int i) const { return input_metas_[i].dtype; }
  int64_t integer(int i) const { return attrs_.ints[i]; }
  SymFloat scalar(int i) const { return attrs_.floats[i]; }
  const Attrs& attrs() const { return attrs_; }
  int n_inputs() const { return static_cast<int>(input_metas_.size()); }
  int n_outputs() const { return static_cast<int>(grads_out_.size()); }
  void set(int i, Tensor grad) const { grads_in_[i] = std::move(grad); }
  // Returns the gradient that has arrived at input 0 so far, undefined if there is none. Only for the rules of ops with
  // `grad_adds`, and only for i = 0. The rule then passes the sum of this gradient and its own to set().
  Tensor take_total(int i) const { return std::exchange(grads_in_[i], Tensor()); }
  // Sums over broadcast dimensions, casts to the input's dtype, and calls set().
  void set_reduced(int i, Tensor grad) const;

 private:
  const Attrs& attrs_;
  std::span<const Tensor> inputs_, outputs_, grads_out_;
  std::span<const InputMeta> input_metas_;
  std::span<Tensor> grads_in_;
};

// A kernel that has done everything that depends on shapes, and needs only addresses to run. Thread safe.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  // Runs the kernel. `addresses`: those of element 0 of the inputs, the operands of epilogues and the outputs, in this
  // order. The address of an undefined tensor is null.
  virtual void run(std::span<std::byte* const> addresses) const = 0;
};

using InferFn = void (*)(InferContext&);
using KernelFn = void (*)(const KernelContext&);
// Prepares the kernel for tensors with the context's shapes, dtypes and strides; reads no data. `variant` 0 gives the
// kernel's results bit for bit; the other variants compute the same product in another way, and a tuner chooses the
// fastest. Returns null if there is no such variant, or if only the kernel itself can run this call.
using PrepareFn = std::unique_ptr<const PreparedKernel> (*)(const KernelContext&, int variant);
// True if the op's kernel can apply these epilogues to a result of this dtype; `exact`: with the bits of the separate
// ops.
using AbsorbsFn = bool (*)(std::span<const Epilogue>, DType, bool exact);
// Computes the op by simpler ops, one result per output. It runs if there is no kernel, a compiler may fuse it, and
// tests compare the kernel with it.
using DecomposeFn = void (*)(std::span<const Tensor> inputs, const Attrs&, std::span<Tensor> outputs);
// Makes a call whose operands may be channels last. Results that are images are then channels last, too. The op is a
// parameter because one function serves several ops.
using ChannelsLastFn = void (*)(const OpDef& op, std::span<const TensorArg> inputs, const Attrs&,
                                std::span<Tensor> outputs);
using GradFn = void (*)(const GradContext&);
using LowerFn = void (*)(LoopBuilder&);

// The functions that one backend has for an op: the CPU's are OpDef::host, another device's stand in a table in its
// folder (cuda/kernels.cc). entry_of() finds them.
struct BackendEntry {
  KernelFn kernel = nullptr;  // null: the op runs as the ops of `decompose`
  PrepareFn prepare = nullptr;
  AbsorbsFn absorbs = nullptr;
};

// Note [Traits]. What a compiler needs to know about particular ops (sum, cat, cast). Passes ask for an op's
// trait, never for its name. An op has one trait or none. Numbers in a trait that end in `int` are indices into
// the call's attributes (Attrs::ints).
namespace trait {

// A reduction whose `lower` is one LoopBuilder::reduce() and output(), so the results over parts of the input can be
// reduced again.
struct Fold {
  bool additive = false;  // results over parts of the input add up to the result over all of it
};
// Each element of output 0 is the sum of input 0 along a dimension up to this element (LoopBuilder::scan). If the int
// `reverse_int` is 1, it is the sum from this element to the end, which no generated kernel computes.
struct Scan {
  size_t dim_int = 0, reverse_int = 1;
  int dim(const Attrs& attrs) const { return static_cast<int>(attrs.ints[dim_int]); }
  bool is_reverse(const Attrs& attrs) const { return attrs.ints[reverse_int] != 0; }
};
// Output 0 is the inputs side by side along a dimension, so the ops that compute the inputs may write them directly
// into output 0.
struct SideBySide {
  size_t dim_int = 0;
  int dim(const Attrs& attrs) const { return static_cast<int>(attrs.ints[dim_int]); }
};
// An elementwise op whose input 0 is a table. It reads the table at the index that input 1 (i64) holds along one
// dimension of the table, not at its own element (LoopBuilder::pick).
struct Pick {
  size_t dim_int = 0;
  int dim(const Attrs& attrs) const { return static_cast<int>(attrs.ints[dim_int]); }
};
// An op that draws random numbers. Input number `state` is a random state (Note [Random state] in random_state.h),
// which is not read element by element.
struct Draw {
  int32_t state;
};
// Output 0 is input 0 in another dtype.
struct Convert {};
// A matrix product. `sums_over`: the dimension of input 1 that is summed over, counted from the end (1 or 2). In input
// 0 the last dimension is summed over.
struct Product {
  int32_t sums_over;
};
// Adds the values of input 0, in order, to output 0 at the indices in input 1 (i64). Output 0 starts as input 2 if
// there is one, otherwise as 0. If input 1 has input 0's shape, it holds an index along a dimension for each element of
// input 0, otherwise one for each row (a vector along input 0's last dimension).
struct SumByIndex {
  size_t dim_int = 0;
  int dim(const Attrs& attrs) const { return static_cast<int>(attrs.ints[dim_int]); }
};
// Row k of output 0 (segments, ...) is the sum, in order, of rows input1[k] to input1[k + 1] of input 0; input 1 is
// i64 (segments + 1). `lower` is LoopBuilder::reduce() and output().
struct SumSegments {};
// Output 0 is the same number in every element.
struct Fill {
  size_t first_size_int;  // the sizes of output 0 are the ints from this index on
  bool zeros = false;     // the number is 0
};
// Input 0 is an image; if output 0 is not an image, then input 1 is one, too. The images may have either layout, and
// the bits of the results do not depend on it: an image that is not channels last is converted inside of the op.
// `layout_int`: the int that holds the layout of output 0 (ops::ResultLayout); -1: output 0 is not an image.
struct Images {
  int32_t layout_int = -1;
};
// Note [Collectives are effects]. The op exchanges numbers with other processes, every one of which makes the same
// calls in the same order. So a compiled program makes each call that was recorded, once, in the order of recording:
// no pass drops a call, joins two equal calls, changes their order, or repeats a call in backward. Neighbouring calls
// that do not depend on each other may be sent as one message (transform/merge_collectives.cc).
struct Exchange {};

}  // namespace trait
using Trait =
    std::variant<std::monostate, trait::Fold, trait::Scan, trait::SideBySide, trait::Pick, trait::Draw, trait::Convert,
                 trait::Product, trait::SumByIndex, trait::SumSegments, trait::Fill, trait::Images, trait::Exchange>;

struct OpDef {
  const char* name;  // also the IR mnemonic
  OpKind kind;
  int n_outputs = 1;  // -1: as many as the caller passes (split)
  SavedSpec saved = {};
  AmpPolicy amp = AmpPolicy::kNone;
  InferFn infer = nullptr;
  BackendEntry host = {};                      // host code: for the CPU, and for devices that run the CPU's kernels
  const ops::ElementwiseBody* body = nullptr;  // elementwise ops: the scalar body, compiled for the host
  DecomposeFn decompose = nullptr;
  GradFn grad = nullptr;    // null: differentiated through `decompose`; if that is null, too, backward throws
  LowerFn lower = nullptr;  // the op in a generated kernel; null: no generated kernel computes the op itself
  Trait trait = {};
  bool strided_outputs = false;  // the kernel honours any strides of its outputs whose last dimension is dense
  // For a compiler that chooses layouts: makes a call on images that are channels last. Null: elementwise ops and
  // reductions keep the layout (keep_channels_last() in ops/channels_last.h), other ops do not.
  ChannelsLastFn channels_last = nullptr;
  // At least 0: the op takes any number of operands, and its last ints hold this many for each operand. A compiler
  // then joins two calls if operand 0 of the second is the result of the first, and if the ints before those of
  // the operands are equal in both. The two calls equal, bit for bit, one call on the first's operands followed by
  // the second's other operands.
  int32_t chains = -1;
  // For memory planning.
  int32_t overwrites = -1;  // the input that output 0 is written into, for ops that exist only in place
  // The input whose memory output 0 may reuse if both are dense and of one dtype: the kernel reads all that it needs of
  // an element before it overwrites it.
  int32_t reuses = -1;
  bool grad_adds = false;  // `grad` adds to the gradient that has arrived at input 0 so far: GradContext::take_total()
  Epilogue epilogue =
      Epilogue::kNone;     // how a product applies this op to its own result, which is operand 0 (kAdd: either one)
  bool fuse_parts = true;  // false: a compiler must not use `decompose`; it is for tests and second derivatives
  // Note [Checks are effects]. The op looks at values of its operands and throws for bad ones, such as an index out of
  // range. That is an effect: where eager execution runs the call, a compiled program runs it, even if nothing reads
  // its results. So a recording without results runs if it has checks, and dead-code elimination keeps them. There is
  // one exception: the forward has already checked what a backward recomputes, so a recomputed call runs only if
  // something reads its results.
  bool checks = false;

  // Returns the op's trait if it is a T. Returns null if the op has another trait or none.
  template <class T> constexpr const T* as() const { return std::get_if<T>(&trait); }
  template <class T> constexpr bool is() const { return as<T>() != nullptr; }
  // True if the results depend on the order in which elements are numbered: random numbers, and indices into a table,
  // belong to the elements in the order of the dimensions.
  constexpr bool numbers_elements() const { return is<trait::Pick>() || random_state() >= 0; }
  constexpr bool is_additive() const { return is<trait::Fold>() && as<trait::Fold>()->additive; }
  constexpr bool fills_zeros() const { return is<trait::Fill>() && as<trait::Fill>()->zeros; }
  // Returns the number of the input that is a random state, or -1 if there is none.
  constexpr int32_t random_state() const { return is<trait::Draw>() ? as<trait::Draw>()->state : -1; }
  // True if a call does more than compute its results.
  constexpr bool has_effects() const { return checks || is<trait::Exchange>(); }
};

// Returns the functions with which `device` runs the op: OpDef::host, or those of the device's own kernels
// (BackendTable::own_kernels). All null: the device has none. Throws Error if this process has no such backend.
const BackendEntry& entry_of(const OpDef& op, Device device);

// Runs one call on the device of its outputs, whose memory the caller has allocated: no tape, no recording.
// If the device has no kernel, runs the ops of `decompose` and copies their results. Throws Error if the op
// has no `decompose` either.
void run_kernel(const KernelContext& context);

// Returns all ops, in a fixed order.
std::span<const OpDef* const> all_ops();
const OpDef* find_op(std::string_view name);  // null if there is none

// Throws Error "op: operand is an undefined tensor" unless the operand is defined. For public functions that read
// shapes before they call an op.
void require_defined(const char* op, const TensorArg& operand);

// The only way an op is called (dispatch.cc): infer -> (recording? append : run the kernel) -> (grad needed? tape).
Tensor call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs = {});
void call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs, std::span<Tensor> outputs);
// Does the same with `homes`. homes[i]: memory in which the caller wants output i, or undefined. If it does not fit, or
// if no single kernel computes the output, the output gets other memory.
void call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs, std::span<Tensor> outputs,
          std::span<const Tensor> homes);
// Writes output 0 into inputs[0]; both have the same dtype and shape. `op` must be elementwise or have `overwrites`.
void call_in_place(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs = {});
// For calls with operands in braces: call(kAdd, {a, b})
inline Tensor call(const OpDef& op, std::initializer_list<TensorArg> inputs, Attrs attrs = {}) {
  return call(op, std::span<const TensorArg>(inputs.begin(), inputs.size()), std::move(attrs));
}
inline void call(const OpDef& op, std::initializer_list<TensorArg> inputs, Attrs attrs, std::span<Tensor> outputs) {
  call(op, std::span<const TensorArg>(inputs.begin(), inputs.size()), std::move(attrs), outputs);
}
inline void call_in_place(const OpDef& op, std::initializer_list<TensorArg> inputs, Attrs attrs = {}) {
  call_in_place(op, std::span<const TensorArg>(inputs.begin(), inputs.size()), std::move(attrs));
}

}  // namespace rondo
#pragma GCC visibility pop

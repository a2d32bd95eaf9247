#include "rondo/runtime/tensor.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/anomaly.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/dynamic_range.h"
#include "rondo/runtime/floating_point_scope.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/per_thread.h"
#include "rondo/runtime/random.h"
#include "rondo/runtime/random_state.h"
#include "rondo/runtime/recorder.h"
#include "rondo/runtime/within_memory.h"

namespace rondo {

namespace {

// Freed handles of this thread, as a list through their own memory.
struct HandleCache {
  struct Free {
    Free* next;
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr int kMost = 0;  // so that the sanitizer sees every lifetime
#else
  static constexpr int kMost = 256;
#endif
  Free* first = nullptr;
  int count = 0;

  HandleCache() = default;
  ~HandleCache() {
    while (first != nullptr) ::operator delete(std::exchange(first, first->next));
  }
};

}  // namespace

void* TensorImpl::operator new(size_t bytes) {
  HandleCache* cache = PerThread<HandleCache>::get();
  if (cache == nullptr || cache->first == nullptr) return ::operator new(bytes);
  --cache->count;
  return std::exchange(cache->first, cache->first->next);
}
void TensorImpl::operator delete(void* memory) noexcept {
  HandleCache* cache = PerThread<HandleCache>::get();
  if (cache == nullptr || cache->count >= HandleCache::kMost) return ::operator delete(memory);
  cache->first = new (memory) HandleCache::Free{cache->first};
  ++cache->count;
}

TensorImpl::TensorImpl() = default;
TensorImpl::~TensorImpl() = default;

void intrusive_release(TensorImpl* impl) noexcept {
  // The last holder need not lock the bus to know that it is.
  if (impl->refs.load(std::memory_order_acquire) == 1 || impl->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete impl;
}

// ---- Making one

namespace {
// Errors name the factory.
void require_sizes(const char* factory, const Dims& sizes, DType dtype, std::source_location where) {
  for (int64_t d : sizes)
    if (d < 0) throw_op_error(factory, "negative size in " + rondo::to_string(sizes), where);
  constexpr int64_t kMaxBytes = int64_t{1} << 60;
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || numel > kMaxBytes / static_cast<int64_t>(size_of(dtype)))
    throw_op_error(factory, rondo::to_string(sizes) + " is more than memory can hold", where);
}
// Memory for a factory's result.
Tensor made(const char* factory, const Dims& sizes, TensorOptions options, std::source_location where) {
  require_sizes(factory, sizes, options.dtype, where);
  const size_t bytes = static_cast<size_t>(sizes.numel()) * size_of(options.dtype);
  const memory::Cause cause("", "empty", {});
  return Tensor::over(Storage::allocate(bytes, options.device), 0, sizes, contiguous_strides(sizes), options.dtype);
}
// `op` stands for it in recordings.
Tensor filled(const char* factory, const OpDef& op, const Dims& sizes, Scalar value, TensorOptions options,
              std::source_location where) {
  const FloatingPointScope floating_point;
  if (!is_floating(options.dtype)) ops::require_in_range(factory, value, options.dtype, where);
  require_sizes(factory, sizes, options.dtype, where);
  const Tensor recorded = active_recorder() == nullptr ? Tensor() : ops::record_filled(op, sizes, value, options);
  return recorded.defined() ? recorded : ops::filled(made(factory, sizes, options, where), value);
}
}  // namespace

Tensor Tensor::empty(const Dims& sizes, TensorOptions options, std::source_location where) {
  return made("Tensor::empty", sizes, options, where);
}
Tensor Tensor::zeros(const Dims& sizes, TensorOptions options, std::source_location where) {
  return filled("Tensor::zeros", ops::kZeros, sizes, 0.0, options, where);
}
Tensor Tensor::ones(const Dims& sizes, TensorOptions options, std::source_location where) {
  return filled("Tensor::ones", ops::kFilled, sizes, 1.0, options, where);
}
Tensor Tensor::full(const Dims& sizes, Scalar value, TensorOptions options, std::source_location where) {
  return filled("Tensor::full", ops::kFilled, sizes, value, options, where);
}

Tensor Tensor::copy_of(const void* values, size_t count, DType dtype, const Dims& sizes, TensorOptions options,
                       std::source_location where) {
  if (static_cast<int64_t>(count) != checked_numel(sizes))
    throw_op_error("Tensor::from", absl::StrCat(count, " values for shape ", rondo::to_string(sizes)), where);
  const Device first = dtype == options.dtype ? options.device : kCPU;
  Tensor result = made("Tensor::from", sizes, {dtype, first}, where);
  {
    const memory::Cause cause("", "from", {});
    copy_bytes(first, result.mutable_address(), kCPU, values, static_cast<size_t>(result.nbytes()));
  }
  if (dtype == options.dtype) return result;
  const NoGrad off;
  const RecorderScope run(nullptr);
  return result.to(options.dtype, where).to(options.device, where);
}
Tensor Tensor::from(std::initializer_list<double> literals, const Dims& sizes, Device device,
                    std::source_location where) {
  const FloatingPointScope floating_point;
  const std::vector<float> rounded(literals.begin(), literals.end());
  return copy_of(rounded.data(), rounded.size(), kF32, sizes, {kF32, device}, where);
}

Tensor Tensor::from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype,
                            std::source_location where) {
  if (!storage) throw_op_error("Tensor::from_storage", "the storage is empty", where);
  const auto fail = [&](std::string_view what) {
    throw_op_error(
        "Tensor::from_storage",
        absl::StrCat(std::string(what), ": sizes ", rondo::to_string(sizes), ", strides ", rondo::to_string(strides),
                     ", offset ", offset, ", ", storage.bytes(), " bytes of ", std::string(name_of(dtype))),
        where);
  };
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || strides.rank() != sizes.rank() || offset < 0) fail("these describe no tensor");
  int64_t last = offset, extent = 0;
  bool inside = true;
  for (int d = 0; d < sizes.rank(); ++d) {
    if (strides[d] < 0) fail("a stride is negative");
    inside = inside && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &extent) &&
             !__builtin_add_overflow(last, extent, &last);
  }
  if (numel > 0 && !(inside && last < static_cast<int64_t>(storage.bytes() / size_of(dtype))))
    fail("an element lies outside of the storage");
  return over(std::move(storage), offset, sizes, strides, dtype);
}

Tensor Tensor::over(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype) {
  auto* impl = within_memory("a tensor", [] { return new TensorImpl; });
  impl->dtype = dtype;
  impl->device = storage.device();
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->storage = std::move(storage);
  return Tensor(impl);
}

namespace {
// Element i of n is first + i * step.
Tensor counted(const char* factory, int64_t n, Scalar first, Scalar step, TensorOptions options,
               std::source_location where) {
  Attrs attrs = ops::arange_attrs(options.dtype, n, first, step);
  if (active_recorder() != nullptr && attrs.ints.size() == 3) {
    require_sizes(factory, {n}, options.dtype, where);
    const DeviceScope device(options.device);
    return call(ops::kArange, {}, std::move(attrs));
  }
  for (size_t i = 0; i < attrs.floats.size(); ++i)
    attrs.floats[i] = attrs.floats[i].value();  // a kernel knows no symbols
  Tensor result = made(factory, {n}, options, where);
  run_kernel({ops::kArange, {}, {&result, 1}, attrs, {}});
  return result;
}
}  // namespace

Tensor Tensor::arange(Scalar begin, Scalar end, Scalar step, ArangeOptions given, std::source_location where) {
  constexpr const char* kName = "Tensor::arange";
  const bool integers = begin.is_integer() && end.is_integer() && step.is_integer();
  const TensorOptions options{given.dtype.value_or(integers ? kI64 : kF32), given.device};
  if (integers) {
    const int64_t first = begin.integer(), last = end.integer(), by = step.integer();
    if (by == 0) throw_op_error(kName, "the step must not be 0", where);
    // Unsigned, because the span may exceed an int64_t.
    const uint64_t span = by > 0 ? static_cast<uint64_t>(last) - static_cast<uint64_t>(first)
                                 : static_cast<uint64_t>(first) - static_cast<uint64_t>(last);
    const uint64_t size = by > 0 ? static_cast<uint64_t>(by) : -static_cast<uint64_t>(by);
    if (first != last && (first < last) != (by > 0)) ops::throw_wrong_step(begin.real(), end.real(), by, where);
    const auto n = static_cast<int64_t>(first == last ? 0 : (span - 1) / size + 1);
    return counted(kName, n, begin, step, options, where);
  }
  const int64_t n = ops::arange_size(begin.real(), end.real(), step.real(), where);
  return counted(kName, n, begin.real(), step.real(), options, where);
}
Tensor Tensor::arange(Scalar begin, Scalar end, ArangeOptions options, std::source_location where) {
  return arange(begin, end, 1, options, where);
}
Tensor Tensor::arange(Scalar end, ArangeOptions options, std::source_location where) {
  return arange(0, end, 1, options, where);
}

namespace {
void require_kind(const char* op, DType dtype, bool floating, std::source_location where) {
  const char* const kind = floating ? "a floating one, see randint" : "an integer one";
  if (is_floating(dtype) != floating)
    throw_op_error(op, absl::StrCat("the dtype must be ", kind, "; it is ", std::string(name_of(dtype))), where);
}

// Unlike the other factories', a random tensor is the result of an op, so that regions record it.
RandomState random_state(const char* factory, const Dims& sizes, TensorOptions options, Generator* generator,
                         std::source_location where) {
  require_sizes(factory, sizes, options.dtype, where);
  return next_random_state(generator != nullptr ? *generator : default_generator(), options.device);
}
Tensor drawn(const char* factory, ops::Distribution distribution, const Dims& sizes, TensorOptions options,
             Generator* generator, std::source_location where) {
  require_kind(factory, options.dtype, true, where);
  const RandomState random = random_state(factory, sizes, options, generator, where);
  Attrs attrs{.ints = {static_cast<int64_t>(distribution), random.increment, static_cast<int64_t>(options.dtype)}};
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  return call(ops::kDraw, {{random.state, where}}, std::move(attrs));
}
}  // namespace

Tensor Tensor::randn(const Dims& sizes, TensorOptions options, Generator* generator, std::source_location where) {
  return drawn("Tensor::randn", ops::Distribution::kNormal, sizes, options, generator, where);
}
Tensor Tensor::rand(const Dims& sizes, TensorOptions options, Generator* generator, std::source_location where) {
  return drawn("Tensor::rand", ops::Distribution::kUniform, sizes, options, generator, where);
}
Tensor Tensor::randint(int64_t low, int64_t high, const Dims& sizes, TensorOptions options, Generator* generator,
                       std::source_location where) {
  constexpr const char* kName = "Tensor::randint";
  require_kind(kName, options.dtype, false, where);
  if (high <= low) throw_op_error(kName, absl::StrCat("empty range [", low, ", ", high, ")"), where);
  for (const int64_t bound : {low, high - 1}) {
    ops::require_in_range(kName, bound, options.dtype, where);
    if (bound < 0 && options.dtype == kU8)
      throw_op_error(kName, absl::StrCat("the value ", bound, " is out of range for u8"), where);
  }
  // Unsigned, because the span may exceed an int64_t.
  const auto span = static_cast<int64_t>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  const RandomState random = random_state(kName, sizes, options, generator, where);
  Attrs attrs{.ints = {random.increment, static_cast<int64_t>(options.dtype), low, span}};
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  return call(ops::kDrawIntegers, {{random.state, where}}, std::move(attrs));
}

// ---- Host access

namespace {
void settle(const TensorImpl* impl, std::source_location where = std::source_location::current()) {
  if (impl->recorder != nullptr) impl->recorder->flush(*impl, where);
  if (!impl->storage) [[unlikely]]
    throw_op_error("data", "the tensor has no value: an error in the compiled region that made it came first", where);
}
// The tensor's history must be its last one: what waits for its gradient stays there.
void settle_gradient(const Tensor& tensor, std::source_location where) {
  const TensorImpl* impl = tensor.impl();
  if (impl->recorder != nullptr) impl->recorder->flush_gradient(*impl, where);
  if (impl->autograd == nullptr || !impl->autograd->base.defined() || impl->autograd->no_grad_view) return;
  if (impl->storage) before_read(impl->storage, where);  // a pending write ends this history
  autograd::gradient_edge(tensor);
}
}  // namespace

int64_t Tensor::size(int64_t dim, std::source_location where) const {
  const Dims& sizes = checked("size", where)->sizes;
  if (sizes.empty()) throw_op_error("size", "a scalar has no dimensions", where);
  return sizes[normalize_dim("size", dim, sizes, where)];
}
const Storage& Tensor::storage(std::source_location where) const {
  settle(checked("storage", where), where);
  before_read(impl_->storage, where);
  return impl_->storage;
}
namespace {
// Host code is about to use the tensor's address.
void require_host_memory(Device device, std::source_location where) {
  if (!has_host_memory(device)) [[unlikely]]
    throw_op_error("data",
                   absl::StrCat("the tensor is on ", to_string(device),
                                ", which host code cannot read or write; "
                                "copy it with .to(kCPU)"),
                   where);
}
}  // namespace
const std::byte* Tensor::address(std::source_location where) const {
  settle(checked("address", where), where);
  before_read(impl_->storage, where);
  return impl_->data();
}
std::byte* Tensor::mutable_address(std::source_location where) {
  settle(checked("mutable_address", where), where);
  before_write(impl_->storage, where);
  impl_->storage.bump_version();
  return impl_->data();
}
const void* Tensor::raw_data(std::source_location where) const {
  settle(checked("raw_data", where), where);
  before_read(impl_->storage, where);
  require_host_memory(impl_->device, where);
  return impl_->data();
}
void* Tensor::raw_mutable_data(std::source_location where) {
  settle(checked("raw_mutable_data", where), where);
  require_host_memory(impl_->device, where);
  return mutable_address(where);
}
const void* Tensor::checked_data(DType expected, std::source_location where) const {
  if (checked("data", where)->dtype != expected)
    throw_op_error("data",
                   absl::StrCat("the tensor is ", std::string(name_of(impl_->dtype)), ", not ",
                                std::string(name_of(expected)), "; convert it with .to()"),
                   where);
  return raw_data(where);
}
void* Tensor::checked_mutable_data(DType expected, std::source_location where) {
  checked_data(expected, where);
  return raw_mutable_data(where);
}
Tensor Tensor::host_copy(const char* op, DType dtype, std::source_location where) const {
  settle(checked(op, where), where);
  before_read(impl_->storage, where);
  NoGrad off;
  RecorderScope run(nullptr);
  const memory::Cause cause("", op, where);
  const autograd::DetectAnomaly unchecked(false);  // a NaN may be looked at
  return contiguous(where).to(kCPU, where).to(dtype, where);
}
Tensor Tensor::one_element(DType dtype, std::source_location where) const {
  if (checked("item", where)->sizes.numel() != 1)
    throw_op_error("item", "needs one element, the shape is " + rondo::to_string(sizes()), where);
  return host_copy("item", dtype, where);
}
double Tensor::item(std::source_location where) const {
  if (checked("item", where)->dtype == kI64) {
    const int64_t exact = item<int64_t>(where);
    const auto rounded = static_cast<double>(exact);
    if (rounded >= 0x1p63 || static_cast<int64_t>(rounded) != exact)
      throw_op_error("item", absl::StrCat(exact, " is not exact as a double; use item<int64_t>()"), where);
    return rounded;
  }
  return item<double>(where);
}

// ---- Autograd

namespace {
AutogradMeta& meta_of(TensorImpl* impl) {
  if (!impl->autograd) impl->autograd.reset(within_memory("autograd", [] { return new AutogradMeta; }));
  return *impl->autograd;
}
GradSlot& slot_of(TensorImpl* impl) {
  AutogradMeta& meta = meta_of(impl);
  if (!meta.slot) meta.slot = std::make_shared<GradSlot>();
  return *meta.slot;
}
}  // namespace

Tensor& Tensor::requires_grad_(bool on, std::source_location where) {
  settle(checked("requires_grad_", where), where);
  if (on && !is_floating(dtype()))
    throw_op_error("requires_grad_", "only floating-point tensors have gradients", where);
  if (!is_leaf()) throw_op_error("requires_grad_", "this tensor is the result of an op; detach() it first", where);
  if (on != impl_->requires_grad) before_history_change(*this, where);
  impl_->requires_grad = on;
  if (on && impl_->storage && impl_->storage.purpose() == Purpose::kWorkspace)
    impl_->storage.set_purpose(Purpose::kParameters);
  return *this;
}
bool Tensor::base_requires_grad() const {
  const AutogradMeta& meta = *impl_->autograd;
  return meta.base.defined() && meta.view_version != version() && meta.base.requires_grad();
}
bool Tensor::is_leaf(std::source_location where) const {
  checked("is_leaf", where);
  if (impl_->recorder != nullptr && impl_->recorded_value >= 0) return !impl_->requires_grad;
  const AutogradMeta* meta = impl_->autograd.get();  // Note [Views]
  return meta == nullptr || (meta->grad_fn == nullptr && (meta->no_grad_view || !base_requires_grad()));
}
const Tensor& Tensor::grad(std::source_location where) const {
  static const Tensor kUndefined;
  const AutogradMeta* meta = checked("grad", where)->autograd.get();
  return meta != nullptr && meta->slot ? meta->slot->grad : kUndefined;
}
void Tensor::set_grad(Tensor grad, std::source_location where) {
  checked("set_grad", where);
  if (grad.defined() && !(grad.sizes() == sizes()))
    throw_op_error("set_grad",
                   absl::StrCat("the gradient has shape ", rondo::to_string(grad.sizes()), ", the tensor ",
                                rondo::to_string(sizes())),
                   where);
  if (grad.defined() && grad.dtype() != dtype())
    throw_op_error("set_grad",
                   absl::StrCat("the gradient is ", std::string(name_of(grad.dtype())), ", the tensor ",
                                std::string(name_of(dtype())), "; cast it with .to()"),
                   where);
  if (grad.defined() && !(grad.device() == device()))
    throw_op_error("set_grad",
                   absl::StrCat("the gradient is on ", rondo::to_string(grad.device()), ", the tensor on ",
                                rondo::to_string(device()), "; move it with .to(Device)"),
                   where);
  if (grad.defined() && grad.impl()->storage) grad.storage().set_purpose(Purpose::kGradients);
  slot_of(impl_).grad = std::move(grad);
}
void Tensor::zero_grad(bool set_to_none, std::source_location where) {
  if (checked("zero_grad", where)->autograd == nullptr || !impl_->autograd->slot) return;
  Tensor& grad = impl_->autograd->slot->grad;
  if (set_to_none || !grad.defined()) grad = Tensor();
  else if (autograd::overlaps_itself(grad)) grad = Tensor::zeros(grad.sizes(), {grad.dtype(), grad.device()});
  else no_grad([&] { (grad = grad.detach()).zero_(); });
}
void Tensor::retain_grad(std::source_location where) {
  checked("retain_grad", where);
  if (!requires_grad()) throw_op_error("retain_grad", "the tensor does not require grad", where);
  settle_gradient(*this, where);
  if (is_leaf()) return;
  slot_of(impl_);
  impl_->autograd->grad_fn->extras_of(impl_->autograd->output).retained = impl_->autograd->slot;
}
int64_t Tensor::register_hook(std::function<Tensor(const Tensor&)> hook, std::source_location where) {
  checked("register_hook", where);
  if (!requires_grad()) throw_op_error("register_hook", "the tensor does not require grad", where);
  if (!hook) throw_op_error("register_hook", "the hook is empty", where);
  settle_gradient(*this, where);
  static std::atomic<int64_t> next_id{0};
  AutogradMeta& meta = meta_of(impl_);
  auto& hooks = meta.grad_fn ? meta.grad_fn->extras_of(meta.output).hooks : slot_of(impl_).hooks;
  hooks.push_back({next_id.fetch_add(1), std::move(hook)});
  return hooks.back().id;
}
void Tensor::remove_hook(int64_t id, std::source_location where) {
  checked("remove_hook", where);
  AutogradMeta& meta = meta_of(impl_);
  auto& hooks = meta.grad_fn ? meta.grad_fn->extras_of(meta.output).hooks : slot_of(impl_).hooks;
  std::erase_if(hooks, [id](const Hook& hook) { return hook.id == id; });
}
void Tensor::backward(const Tensor& grad, bool retain_graph, bool create_graph, std::source_location where) const {
  checked("backward", where);
  autograd::backward({this, 1}, {&grad, grad.defined() ? 1u : 0u}, retain_graph, create_graph, where);
}
Tensor Tensor::detach(std::source_location where) const {
  checked("detach", where);
  if (impl_->recorder != nullptr && impl_->recorder == active_recorder()) {
    // The same data under no_grad, as the recording knows it.
    Dims order;
    for (int d = 0; d < rank(); ++d) order.push_back(d);
    Tensor same = no_grad([&] { return ops::permute({*this, where}, order); });
    same.impl()->autograd.reset();  // a write to it does not concern its base: Note [Views]
    return same;
  }
  settle(impl_, where);
  Tensor same = over(impl_->storage, impl_->offset, impl_->sizes, impl_->strides, impl_->dtype);
  follow_marks(*this, same);
  return same;
}
uint32_t Tensor::version(std::source_location where) const {
  const Storage& storage = checked("version", where)->storage;
  return storage ? storage.version() : 0;
}

// ---- The ops as members

Tensor Tensor::view(const Dims& to, std::source_location where) const { return ops::view({*this, where}, to); }
Tensor Tensor::reshape(const Dims& to, std::source_location where) const { return ops::reshape({*this, where}, to); }
Tensor Tensor::transpose(int64_t a, int64_t b, std::source_location where) const {
  return ops::transpose({*this, where}, a, b);
}
Tensor Tensor::t(std::source_location where) const {
  if (defined() && rank() != 2)
    throw_op_error("Tensor::t", "needs two dimensions, not " + rondo::to_string(sizes()) + "; see transpose()", where);
  return transpose(0, 1, where);
}
Tensor Tensor::permute(const Dims& order, std::source_location where) const {
  return ops::permute({*this, where}, order);
}
Tensor Tensor::expand(const Dims& to, std::source_location where) const { return ops::expand({*this, where}, to); }
Tensor Tensor::select(int64_t dim, int64_t index, std::source_location where) const {
  return ops::select({*this, where}, dim, index);
}
Tensor Tensor::slice(int64_t dim, Slice range, std::source_location where) const {
  return ops::slice({*this, where}, dim, range);
}
Tensor Tensor::squeeze(int64_t dim, std::source_location where) const { return ops::squeeze({*this, where}, dim); }
Tensor Tensor::unsqueeze(int64_t dim, std::source_location where) const { return ops::unsqueeze({*this, where}, dim); }
Tensor Tensor::flatten(int64_t first, int64_t last, std::source_location where) const {
  return ops::flatten({*this, where}, first, last);
}
Tensor Tensor::contiguous(std::source_location where) const {
  checked("contiguous", where);
  return is_contiguous() ? *this : clone(where);
}
Tensor Tensor::clone(std::source_location where) const {
  return ops::cast({*this, where}, checked("clone", where)->dtype);
}
Tensor Tensor::to(DType dtype, std::source_location where) const {
  return dtype == checked("to", where)->dtype ? *this : ops::converted({*this, where}, dtype);
}
Tensor Tensor::to(Device device, std::source_location where) const {
  return device == checked("to", where)->device ? *this : ops::to_device({*this, where}, device);
}

Tensor Tensor::exp(std::source_location where) const { return ops::exp({*this, where}); }
Tensor Tensor::log(std::source_location where) const { return ops::log({*this, where}); }
Tensor Tensor::sqrt(std::source_location where) const { return ops::sqrt({*this, where}); }
Tensor Tensor::abs(std::source_location where) const { return ops::abs({*this, where}); }
Tensor Tensor::matmul(const Tensor& other, std::source_location where) const {
  return ops::matmul({*this, where}, {other, where});
}
Tensor Tensor::softmax(int64_t dim, std::source_location where) const { return ops::softmax({*this, where}, dim); }
Tensor Tensor::sum(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::sum({*this, where}, dims, keepdim);
}
Tensor Tensor::mean(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::mean({*this, where}, dims, keepdim);
}
Tensor Tensor::max(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::max({*this, where}, dims, keepdim);
}
Tensor Tensor::min(const ReduceDims& dims, bool keepdim, std::source_location where) const {
  return ops::min({*this, where}, dims, keepdim);
}
Tensor Tensor::argmax(std::optional<int64_t> dim, bool keepdim, std::source_location where) const {
  return ops::argmax({*this, where}, dim, keepdim);
}

Tensor& Tensor::add_(const Tensor& other, std::source_location where) {
  return ops::add_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::sub_(const Tensor& other, std::source_location where) {
  return ops::sub_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::mul_(const Tensor& other, std::source_location where) {
  return ops::mul_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::div_(const Tensor& other, std::source_location where) {
  return ops::div_({*this, where}, {other, where}), *this;
}
Tensor& Tensor::add_(Scalar other, std::source_location where) { return ops::add_({*this, where}, other), *this; }
Tensor& Tensor::sub_(Scalar other, std::source_location where) { return ops::sub_({*this, where}, other), *this; }
Tensor& Tensor::mul_(Scalar other, std::source_location where) { return ops::mul_({*this, where}, other), *this; }
Tensor& Tensor::div_(Scalar other, std::source_location where) { return ops::div_({*this, where}, other), *this; }
Tensor& Tensor::copy_(const Tensor& source, std::source_location where) {
  return ops::copy_({*this, where}, {source, where}), *this;
}
Tensor& Tensor::fill_(Scalar value, std::source_location where) { return ops::fill_({*this, where}, value), *this; }
const Tensor& TensorArg::undefined() {
  static const Tensor kUndefined;
  return kUndefined;
}

Tensor& Tensor::operator+=(TensorArg other) { return add_(other.tensor, other.where); }
Tensor& Tensor::operator-=(TensorArg other) { return sub_(other.tensor, other.where); }
Tensor& Tensor::operator*=(TensorArg other) { return mul_(other.tensor, other.where); }
Tensor& Tensor::operator/=(TensorArg other) { return div_(other.tensor, other.where); }

Tensor operator+(TensorArg a, TensorArg b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, TensorArg b) { return ops::sub(a, b); }
Tensor operator*(TensorArg a, TensorArg b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, TensorArg b) { return ops::div(a, b); }
Tensor operator+(TensorArg a, Scalar b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, Scalar b) { return ops::sub(a, b); }
Tensor operator*(TensorArg a, Scalar b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, Scalar b) { return ops::div(a, b); }
Tensor operator+(Scalar a, TensorArg b) { return ops::add(b, a); }
Tensor operator-(Scalar a, TensorArg b) { return ops::rsub(b, a); }
Tensor operator*(Scalar a, TensorArg b) { return ops::mul(b, a); }
Tensor operator/(Scalar a, TensorArg b) { return ops::rdiv(b, a); }
Tensor operator-(TensorArg a) { return ops::neg(a); }

Tensor operator==(TensorArg a, TensorArg b) { return ops::equal(a, b); }
Tensor operator!=(TensorArg a, TensorArg b) { return ops::not_equal(a, b); }
Tensor operator<(TensorArg a, TensorArg b) { return ops::less(a, b); }
Tensor operator<=(TensorArg a, TensorArg b) { return ops::less_equal(a, b); }
Tensor operator>(TensorArg a, TensorArg b) { return ops::greater(a, b); }
Tensor operator>=(TensorArg a, TensorArg b) { return ops::greater_equal(a, b); }
Tensor operator==(TensorArg a, Scalar b) { return ops::equal(a, b); }
Tensor operator!=(TensorArg a, Scalar b) { return ops::not_equal(a, b); }
Tensor operator<(TensorArg a, Scalar b) { return ops::less(a, b); }
Tensor operator<=(TensorArg a, Scalar b) { return ops::less_equal(a, b); }
Tensor operator>(TensorArg a, Scalar b) { return ops::greater(a, b); }
Tensor operator>=(TensorArg a, Scalar b) { return ops::greater_equal(a, b); }
Tensor operator==(Scalar a, TensorArg b) { return ops::equal(b, a); }
Tensor operator!=(Scalar a, TensorArg b) { return ops::not_equal(b, a); }
Tensor operator<(Scalar a, TensorArg b) { return ops::greater(b, a); }
Tensor operator<=(Scalar a, TensorArg b) { return ops::greater_equal(b, a); }
Tensor operator>(Scalar a, TensorArg b) { return ops::less(b, a); }
Tensor operator>=(Scalar a, TensorArg b) { return ops::less_equal(b, a); }

}  // namespace rondo

#include "rondo/runtime/tensor.h"

#include <cmath>
#include <numbers>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/anomaly.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/dynamic_range.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/random.h"
#include "rondo/runtime/recorder.h"

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
  static inline thread_local bool alive = false;

  HandleCache() { alive = true; }
  ~HandleCache() {
    alive = false;
    while (first != nullptr) ::operator delete(std::exchange(first, first->next));
  }
};
HandleCache* handle_cache() {
  static thread_local HandleCache cache;
  return HandleCache::alive ? &cache : nullptr;  // null while the thread is being torn down
}

}  // namespace

void* TensorImpl::operator new(size_t bytes) {
  HandleCache* cache = handle_cache();
  if (cache == nullptr || cache->first == nullptr) return ::operator new(bytes);
  --cache->count;
  return std::exchange(cache->first, cache->first->next);
}
void TensorImpl::operator delete(void* memory) noexcept {
  HandleCache* cache = handle_cache();
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

Tensor Tensor::empty(const Dims& sizes, TensorOptions options) {
  for (int64_t d : sizes)
    if (d < 0) throw Error("Tensor::empty: negative size in " + rondo::to_string(sizes));
  constexpr int64_t kMaxBytes = int64_t{1} << 60;
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || numel > kMaxBytes / static_cast<int64_t>(size_of(options.dtype)))
    throw Error("Tensor::empty: " + rondo::to_string(sizes) + " is more than memory can hold");
  const size_t bytes = static_cast<size_t>(numel) * size_of(options.dtype);
  return from_storage(Storage::allocate(bytes, options.device), 0, sizes, contiguous_strides(sizes), options.dtype);
}

Tensor Tensor::from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype) {
  auto* impl = new TensorImpl;
  impl->dtype = dtype;
  impl->device = storage.device();
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->storage = std::move(storage);
  return Tensor(impl);
}

namespace {
// Fills without touching tape, recorder or version: the tensor is new.
template <class Value> Tensor filled(const Dims& sizes, TensorOptions options, Value value) {
  Tensor result = Tensor::empty(sizes, options);
  visit_dtype(options.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = reinterpret_cast<T*>(result.impl()->data());
    parallel_for(result.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>)
          out[i] = T(static_cast<float>(value(i)));
        else out[i] = static_cast<T>(value(i));
      }
    });
  });
  return result;
}
}  // namespace

Tensor Tensor::zeros(const Dims& sizes, TensorOptions options) { return full(sizes, 0.0, options); }
Tensor Tensor::ones(const Dims& sizes, TensorOptions options) { return full(sizes, 1.0, options); }
Tensor Tensor::full(const Dims& sizes, double value, TensorOptions options) {
  return filled(sizes, options, [=](int64_t) { return value; });
}
Tensor Tensor::arange(int64_t end, TensorOptions options) {
  return filled({std::max<int64_t>(end, 0)}, options, [](int64_t i) { return i; });
}

Tensor Tensor::randn(const Dims& sizes, TensorOptions options, Generator* generator) {
  Generator& source = generator ? *generator : default_generator();
  const uint64_t seed = source.seed(), offset = source.next_offset();
  // Box-Muller on two of the four words; element i has its own counter, so any split over threads agrees.
  return filled(sizes, options, [=](int64_t i) {
    const auto bits = philox(seed, static_cast<uint64_t>(i), offset);
    const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(uniform_from_bits(bits[0]))));
    return radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(uniform_from_bits(bits[1])));
  });
}
Tensor Tensor::rand(const Dims& sizes, TensorOptions options, Generator* generator) {
  Generator& source = generator ? *generator : default_generator();
  const uint64_t seed = source.seed(), offset = source.next_offset();
  return filled(sizes, options,
                [=](int64_t i) { return uniform_from_bits(philox(seed, static_cast<uint64_t>(i), offset)[0]); });
}
Tensor Tensor::randint(int64_t low, int64_t high, const Dims& sizes, TensorOptions options, Generator* generator) {
  if (high <= low) throw Error(absl::StrCat("Tensor::randint: empty range [", low, ", ", high, ")"));
  Generator& source = generator ? *generator : default_generator();
  const uint64_t seed = source.seed(), offset = source.next_offset(), span = static_cast<uint64_t>(high - low);
  return filled(sizes, options, [=](int64_t i) {
    const auto bits = philox(seed, static_cast<uint64_t>(i), offset);
    __extension__ typedef unsigned __int128 Wide;
    const uint64_t word = static_cast<uint64_t>(bits[0]) << 32 | bits[1];
    return low + static_cast<int64_t>((static_cast<Wide>(word) * span) >> 64);
  });
}

// ---- Host access

namespace {
void settle(const TensorImpl* impl, std::source_location where = std::source_location::current()) {
  if (impl->recorder != nullptr) impl->recorder->flush(*impl, where);
  if (!impl->storage) [[unlikely]]
    throw_op_error("data", "the tensor has no value: an error in the compiled region that made it came first", where);
}
void settle_gradient(const TensorImpl* impl) {
  if (impl->recorder != nullptr) impl->recorder->flush_gradient(*impl, std::source_location::current());
}
}  // namespace

int64_t Tensor::size(int64_t dim) const { return sizes()[normalize_dim(dim, rank())]; }
const Storage& Tensor::storage() const {
  settle(impl_);
  return impl_->storage;
}
const void* Tensor::raw_data(std::source_location where) const {
  settle(impl_, where);
  return impl_->data();
}
void* Tensor::raw_mutable_data(std::source_location where) {
  settle(impl_, where);
  before_write(impl_->storage, where);
  impl_->storage.bump_version();
  return impl_->data();
}
const void* Tensor::checked_data(DType expected, std::source_location where) const {
  if (impl_ == nullptr) throw_op_error("data", "the tensor is undefined", where);
  if (impl_->dtype != expected)
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
Tensor Tensor::host_copy(DType dtype, std::source_location where) const {
  if (impl_ == nullptr) throw_op_error("to_vector", "the tensor is undefined", where);
  settle(impl_, where);
  NoGrad off;
  RecorderScope run(nullptr);
  const autograd::DetectAnomaly unchecked(false);  // a NaN may be looked at
  return to(dtype).contiguous();
}

double Tensor::item(std::source_location where) const {
  if (impl_ == nullptr) throw_op_error("item", "the tensor is undefined", where);
  if (numel() != 1) throw_op_error("item", "needs one element, the shape is " + rondo::to_string(sizes()), where);
  return *static_cast<const double*>(host_copy(kF64, where).raw_data());
}

std::string Tensor::to_string(std::source_location where) const {
  if (!defined()) return "Tensor(undefined)";
  std::string text = absl::StrCat("Tensor(", std::string(name_of(dtype())), " ", rondo::to_string(sizes()), ": ");
  const std::vector<double> values = to_vector<double>(where);
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < values.size() && i < kShown; ++i) absl::StrAppend(&text, i ? ", " : "", values[i]);
  return text + (values.size() > kShown ? ", ...)" : ")");
}

// ---- Autograd

namespace {
AutogradMeta& meta_of(TensorImpl* impl) {
  if (impl->autograd == nullptr) impl->autograd = std::make_unique<AutogradMeta>();
  return *impl->autograd;
}
GradSlot& slot_of(TensorImpl* impl) {
  AutogradMeta& meta = meta_of(impl);
  if (!meta.slot) meta.slot = std::make_shared<GradSlot>();
  return *meta.slot;
}
}  // namespace

Tensor& Tensor::requires_grad_(bool on) {
  settle(impl_);
  if (on && !is_floating(dtype())) throw Error("requires_grad_: only floating-point tensors have gradients");
  if (!is_leaf()) throw Error("requires_grad_: this tensor is a result of an op; detach() it first");
  impl_->requires_grad = on;
  if (on && impl_->storage && impl_->storage.purpose() == Purpose::kWorkspace)
    impl_->storage.set_purpose(Purpose::kParameters);
  return *this;
}
bool Tensor::base_requires_grad() const {
  const AutogradMeta& meta = *impl_->autograd;
  return meta.base.defined() && meta.view_version != version() && meta.base.requires_grad();
}
bool Tensor::is_leaf() const {
  if (impl_->recorder != nullptr) return !impl_->requires_grad;
  return impl_->autograd == nullptr || impl_->autograd->grad_fn == nullptr;
}
const Tensor& Tensor::grad() const {
  static const Tensor kUndefined;
  const AutogradMeta* meta = impl_->autograd.get();
  return meta != nullptr && meta->slot ? meta->slot->grad : kUndefined;
}
void Tensor::set_grad(Tensor grad) {
  if (grad.defined() && !(grad.sizes() == sizes()))
    throw Error("set_grad: the gradient has shape " + rondo::to_string(grad.sizes()) + ", the tensor " +
                rondo::to_string(sizes()));
  if (grad.defined() && grad.impl()->storage) grad.storage().set_purpose(Purpose::kGradients);
  slot_of(impl_).grad = std::move(grad);
}
void Tensor::zero_grad(bool set_to_none) {
  if (impl_->autograd == nullptr || !impl_->autograd->slot) return;
  Tensor& grad = impl_->autograd->slot->grad;
  if (set_to_none || !grad.defined()) grad = Tensor();
  else if (autograd::overlaps_itself(grad)) grad = Tensor::zeros(grad.sizes(), {grad.dtype(), grad.device()});
  else no_grad([&] { (grad = grad.detach()).zero_(); });
}
void Tensor::retain_grad() {
  if (!requires_grad()) throw Error("retain_grad: the tensor does not require grad");
  settle_gradient(impl_);
  if (is_leaf()) return;
  slot_of(impl_);
  AutogradMeta& meta = *impl_->autograd;
  meta.grad_fn->extras_of(meta.output).retained = meta.slot;
}
int64_t Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  if (!requires_grad()) throw Error("register_hook: the tensor does not require grad");
  settle_gradient(impl_);
  static std::atomic<int64_t> next_id{0};
  const int64_t id = next_id.fetch_add(1);
  AutogradMeta& meta = meta_of(impl_);
  auto& hooks = meta.grad_fn ? meta.grad_fn->extras_of(meta.output).hooks : slot_of(impl_).hooks;
  hooks.push_back({id, std::move(hook)});
  return id;
}
void Tensor::remove_hook(int64_t id) {
  AutogradMeta& meta = meta_of(impl_);
  auto& hooks = meta.grad_fn ? meta.grad_fn->extras_of(meta.output).hooks : slot_of(impl_).hooks;
  std::erase_if(hooks, [id](const Hook& hook) { return hook.id == id; });
}
void Tensor::backward(const Tensor& grad, bool retain_graph, bool create_graph, std::source_location where) const {
  autograd::backward({this, 1}, {&grad, grad.defined() ? 1u : 0u}, retain_graph, create_graph, where);
}
Tensor Tensor::detach() const {
  if (impl_->recorder != nullptr && impl_->recorder == active_recorder()) {
    // The same data under no_grad, as the recording knows it.
    Dims order;
    for (int d = 0; d < rank(); ++d) order.push_back(d);
    Tensor same = no_grad([&] { return ops::permute(*this, order); });
    same.impl()->autograd.reset();  // a write to it does not concern its base: Note [Views]
    return same;
  }
  settle(impl_);
  Tensor same = from_storage(impl_->storage, impl_->offset, impl_->sizes, impl_->strides, impl_->dtype);
  follow_marks(*this, same);
  return same;
}
uint32_t Tensor::version() const { return impl_->storage ? impl_->storage.version() : 0; }

// ---- The ops as members

Tensor Tensor::view(const Dims& to, std::source_location where) const { return ops::view({*this, where}, to); }
Tensor Tensor::reshape(const Dims& to, std::source_location where) const { return ops::reshape({*this, where}, to); }
Tensor Tensor::transpose(int64_t a, int64_t b, std::source_location where) const {
  return ops::transpose({*this, where}, a, b);
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
Tensor Tensor::contiguous(std::source_location where) const { return is_contiguous() ? *this : clone(where); }
Tensor Tensor::clone(std::source_location where) const { return ops::cast({*this, where}, dtype()); }
Tensor Tensor::to(DType dtype, std::source_location where) const {
  return dtype == this->dtype() ? *this : ops::cast({*this, where}, dtype);
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
Tensor& Tensor::add_(double other, std::source_location where) { return ops::add_({*this, where}, other), *this; }
Tensor& Tensor::mul_(double other, std::source_location where) { return ops::mul_({*this, where}, other), *this; }
Tensor& Tensor::copy_(const Tensor& source, std::source_location where) {
  return ops::copy_({*this, where}, {source, where}), *this;
}
Tensor& Tensor::fill_(double value, std::source_location where) { return ops::fill_({*this, where}, value), *this; }

Tensor operator+(TensorArg a, TensorArg b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, TensorArg b) { return ops::sub(a, b); }
Tensor operator*(TensorArg a, TensorArg b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, TensorArg b) { return ops::div(a, b); }
Tensor operator+(TensorArg a, double b) { return ops::add(a, b); }
Tensor operator-(TensorArg a, double b) { return ops::add(a, -b); }
Tensor operator*(TensorArg a, double b) { return ops::mul(a, b); }
Tensor operator/(TensorArg a, double b) { return ops::div(a, b); }
Tensor operator+(double a, TensorArg b) { return ops::add(b, a); }
Tensor operator-(double a, TensorArg b) { return ops::rsub(b, a); }
Tensor operator*(double a, TensorArg b) { return ops::mul(b, a); }
Tensor operator/(double a, TensorArg b) { return ops::rdiv(b, a); }
Tensor operator-(TensorArg a) { return ops::neg(a); }

}  // namespace rondo

// Members of Tensor that know the tape: allocation of handles, access to values from the host, gradients. Access to
// values and to gradients may first run ops that are only recorded.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/per_thread.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/tensor/dynamic_range.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

// ---- Allocation and release of handles, in one file because every op makes and frees one

namespace {

// Keeps this thread's freed handles for the next allocations. They form a linked list: each one's memory holds the
// pointer to the next one.
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
  // The last holder sees without an atomic subtraction that it is the last one.
  if (impl->refs.load(std::memory_order_acquire) == 1 || impl->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete impl;
}

// ---- Host access

namespace {
void settle(const TensorImpl* impl, std::source_location where = std::source_location::current()) {
  if (impl->recorder != nullptr) impl->recorder->flush(*impl, where);
  if (!impl->storage) [[unlikely]]
    throw_op_error("data", "the tensor has no value: an error in the compiled region that made it came first", where);
}
// Brings the tensor's history up to date before a hook or a retained gradient is attached to it.
void settle_gradient(const Tensor& tensor, std::source_location where) {
  const TensorImpl* impl = tensor.impl();
  if (impl->recorder != nullptr) impl->recorder->flush_gradient(*impl, where);
  if (impl->autograd == nullptr || !impl->autograd->base.defined() || impl->autograd->no_grad_view) return;
  if (impl->storage) before_read(impl->storage, where);  // runs a pending write, which replaces the history
  autograd::gradient_edge(tensor);
}
}  // namespace

const Storage& Tensor::storage(std::source_location where) const {
  settle(checked("storage", where), where);
  before_read(impl_->storage, where);
  return impl_->storage;
}
namespace {
// Throws Error if host code cannot use addresses of this device.
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
  const autograd::DetectAnomaly unchecked(false);  // it is no error to read a NaN
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
  const AutogradMeta* meta = impl_->autograd.get();  // a view follows its base: Note [Views]
  return meta == nullptr || (meta->grad_fn == nullptr && (meta->no_grad_view || !base_requires_grad()));
}
const Tensor& Tensor::grad(std::source_location where) const {
  static const Tensor& kUndefined = *new Tensor;
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
  const int64_t id = next_id.fetch_add(1);
  AutogradMeta& meta = meta_of(impl_);
  GradSlot& slot = slot_of(impl_);
  if (meta.grad_fn != nullptr) slot.hook_places.push_back({id, meta.grad_fn, meta.output});
  auto& hooks = meta.grad_fn != nullptr ? meta.grad_fn->extras_of(meta.output).hooks : slot.hooks;
  hooks.push_back({id, std::move(hook)});
  return id;
}
void Tensor::remove_hook(int64_t id, std::source_location where) {
  checked("remove_hook", where);
  const auto has_id = [id](const auto& entry) { return entry.id == id; };
  GradSlot& slot = slot_of(impl_);
  std::erase_if(slot.hooks, has_id);
  for (const GradSlot::HookPlace& place : slot.hook_places)
    if (const std::shared_ptr<Node> node = place.node.lock(); node != nullptr && has_id(place))
      std::erase_if(node->extras_of(place.output).hooks, has_id);
  std::erase_if(slot.hook_places, has_id);
}
void Tensor::backward(const Tensor& grad, bool retain_graph, bool create_graph, std::source_location where) const {
  checked("backward", where);
  autograd::backward({this, 1}, {&grad, grad.defined() ? 1u : 0u}, retain_graph, create_graph, where);
}
Tensor Tensor::detach(std::source_location where) const {
  checked("detach", where);
  if (impl_->recorder != nullptr && impl_->recorder == active_recorder()) {
    // Records a view of all of the tensor, under no_grad.
    Dims order;
    for (int d = 0; d < rank(); ++d) order.push_back(d);
    Tensor same = no_grad([&] { return permute(order, where); });
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

}  // namespace rondo

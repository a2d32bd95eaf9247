#include "rondo/runtime/ops/lowered.h"

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::amp {
namespace {

LoweredCopy* attached_to(const Storage& storage) {
  return static_cast<LoweredCopy*>(storage.attachment().load(std::memory_order_acquire));
}
LoweredCopy& copy_of(const Storage& storage) {
  if (LoweredCopy* there = attached_to(storage)) return *there;
  auto made = std::make_unique<LoweredCopy>();
  Storage::Attachment* other = nullptr;
  return storage.attachment().compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)
             ? *made.release()
             : *static_cast<LoweredCopy*>(other);
}

// Returns memory for a copy of the parameter: that of the present copy if nothing else holds it.
Storage memory_for(const LoweredCopy& copy, const Tensor& parameter, DType dtype) {
  const auto bytes = static_cast<size_t>(parameter.numel()) * size_of(dtype);
  if (copy.data && copy.data.is_unique() && copy.data.bytes() == bytes) return copy.data;
  const Storage made = Storage::allocate(bytes, parameter.device());
  made.set_purpose(Purpose::kParameters);
  return made;
}

Tensor as_tensor(const Storage& data, const Tensor& parameter, DType dtype) {
  return Tensor::over(data, 0, parameter.sizes(), parameter.strides(), dtype);
}

}  // namespace

bool keeps_copy(const Tensor& tensor) {
  return tensor.dtype() == kF32 && tensor.requires_grad() && tensor.is_leaf() && tensor.is_contiguous() &&
         tensor.storage_offset() == 0 && tensor.storage() &&
         tensor.storage().bytes() == static_cast<size_t>(tensor.nbytes());
}

Tensor lowered(const Tensor& parameter, DType dtype) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  if (!keeps_copy(parameter)) return ops::cast(parameter.detach(), dtype);
  LoweredCopy& copy = copy_of(parameter.storage());
  std::lock_guard lock(copy.mutex);
  const uint32_t version = parameter.version();
  if (!copy.data || copy.dtype != dtype || copy.version != version) {
    // A tape may still hold the copy of an earlier version. Then memory_for() allocates new memory.
    Storage data = memory_for(copy, parameter, dtype);
    copy.data = Storage();  // if the next line throws, there is no copy
    as_tensor(data, parameter, dtype).copy_(parameter.detach());
    copy.data = std::move(data);
    copy.dtype = dtype;
    copy.version = version;
  }
  copy.used = true;
  return as_tensor(copy.data, parameter, dtype);
}

std::optional<DType> copy_in_use(const Tensor& parameter) {
  if (!keeps_copy(parameter)) return std::nullopt;
  LoweredCopy* copy = attached_to(parameter.storage());
  if (copy == nullptr) return std::nullopt;
  std::lock_guard lock(copy->mutex);
  return copy->used ? std::optional(copy->dtype) : std::nullopt;
}

Tensor copy_to_write(const Tensor& parameter, DType dtype) {
  LoweredCopy& copy = copy_of(parameter.storage());
  std::lock_guard lock(copy.mutex);
  return as_tensor(memory_for(copy, parameter, dtype), parameter, dtype);
}

void set_copy(const Tensor& parameter, const Tensor& written) {
  invariant(written.sizes() == parameter.sizes() && is_low_precision(written.dtype()),
            "a parameter's copy is of another kind");
  if (!keeps_copy(parameter)) return;
  LoweredCopy& copy = copy_of(parameter.storage());
  std::lock_guard lock(copy.mutex);
  copy.data = written.storage();
  copy.dtype = written.dtype();
  copy.version = parameter.version();
  copy.used = false;
}

}  // namespace rondo::amp

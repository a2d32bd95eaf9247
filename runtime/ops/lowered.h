// The 16-bit copy of a parameter that autocast computes with. It is converted once per version of the parameter, not
// once per use. The parameter's storage owns it. Thread safe while nobody writes to the parameter. Only a new version
// makes the copy stale: code that writes through a pointer must call mutable_data() again after each use of the
// parameter.
#pragma once

#include <mutex>
#include <optional>

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::amp {

// True if `tensor` keeps a 16-bit copy: it is a contiguous f32 leaf that requires grad and fills its storage.
bool keeps_copy(const Tensor& tensor);
// Returns `parameter` in `dtype` (bf16 or f16), without history. A tensor that keeps no copy is converted on each call.
// All callers get the same memory, so nobody may write to the result.
Tensor lowered(const Tensor& parameter, DType dtype);

// ---- For optimizers, which can write a parameter's copy in the pass that updates the parameter

// Returns the dtype of the parameter's copy if the copy was used after it was last written, otherwise nullopt.
std::optional<DType> copy_in_use(const Tensor& parameter);
// Returns memory for the parameter's next copy in this dtype: the present copy's memory if nobody else holds it.
Tensor copy_to_write(const Tensor& parameter, DType dtype);
// Makes `copy` the parameter's copy. REQUIRES: it holds the parameter's values, element by element.
void set_copy(const Tensor& parameter, const Tensor& copy);

// The attachment of a parameter's storage. Storages have no other attachments.
struct LoweredCopy : Storage::Attachment {
  std::mutex mutex;
  Storage data;
  DType dtype = kBF16;
  uint32_t version = 0;  // version of the parameter's storage at the conversion
  bool used = false;
};

}  // namespace rondo::amp

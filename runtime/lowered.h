// The 16-bit copy of a parameter that autocast multiplies with: converted once for each version of the parameter, not
// for each use of it. It hangs on the parameter's storage and lives as long. Thread safe, as far as nobody writes to
// the parameter. Versions are all it goes by: whoever writes by a pointer asks for that anew (mutable_data()) after
// each use of the parameter.
#pragma once

#include <mutex>
#include <optional>

#include "rondo/runtime/tensor.h"

namespace rondo::amp {

// True for what has such a copy: an f32 leaf that requires a gradient and is all of its storage, in order.
bool keeps_copy(const Tensor& tensor);
// `parameter` in `dtype` (bf16 or f16), without history. What does not keep a copy is converted anew. The memory is
// that of other callers, too, and not to be written to.
Tensor lowered(const Tensor& parameter, DType dtype);

// For whoever changes a whole parameter and can write its copy in the same pass.
// The dtype of a copy that somebody has used since it was last written; nothing, if there is none.
std::optional<DType> copy_in_use(const Tensor& parameter);
// Memory for the parameter's next copy in this dtype: the present one's, if nobody reads that any more.
Tensor copy_to_write(const Tensor& parameter, DType dtype);
// From now on `copy` is the parameter's. REQUIRES: it holds what the parameter holds, element by element.
void set_copy(const Tensor& parameter, const Tensor& copy);

// What hangs on a storage.
struct LoweredCopy {
  std::mutex mutex;
  Storage data;
  DType dtype = kBF16;
  uint32_t version = 0;  // of the parameter's storage, when it was converted
  bool used = false;
};

}  // namespace rondo::amp

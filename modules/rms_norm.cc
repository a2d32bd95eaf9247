#include "rondo/modules/rms_norm.h"

#include "absl/strings/str_cat.h"

namespace rondo::nn {

RMSNorm::RMSNorm(int64_t size, RMSNormOptions options)
    : weight(parameter("weight", Tensor::ones({size}))), eps(options.eps) {
  if (size <= 0) throw Error(absl::StrCat("RMSNorm: sizes must be positive, got ", size));
}

}  // namespace rondo::nn

#include "rondo/modules/layers/rms_norm.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/layers.h"

namespace rondo::nn {

RMSNorm::RMSNorm(int64_t size, RMSNormOptions options)
    : weight(parameter("weight", constant_parameter({size}, 1.0))), eps(options.eps) {
  if (size <= 0) throw Error(absl::StrCat("RMSNorm: sizes must be positive, got ", size));
}

}  // namespace rondo::nn

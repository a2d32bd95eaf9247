#include "rondo/runtime/ops/factory.h"

#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/promotion.h"

namespace rondo::ops {

constexpr OpDef kArange = {
    .name = "arange", .kind = OpKind::kOpaque, .on = {{&cpu::arange_kernel}, {&cuda::arange_kernel}}};

Attrs fill_attrs(Scalar value) {
  return is_exact_attribute(value) ? Attrs{.floats = {value.real()}} : Attrs{.ints = {value.integer()}};
}

}  // namespace rondo::ops

#include "rondo/runtime/cpu/convert.h"

#include "rondo/runtime/cpu/loops.h"

namespace rondo::cpu {
namespace {

template <class Out, class In> Out convert(In value) {
  if constexpr (std::is_same_v<Out, bool>) return value != In(0);
  else if constexpr (std::is_same_v<Out, BFloat16> || std::is_same_v<Out, Float16>)
    return Out(static_cast<float>(value));
  else if constexpr (std::is_floating_point_v<In> && std::is_integral_v<Out>) return to_integer<Out>(value);
  else return static_cast<Out>(value);
}

}  // namespace

void convert_kernel(const KernelContext& context) {
  visit_dtype(context.out().dtype(), [&](auto out) {
    visit_dtype(context.in(0).dtype(), [&](auto in) {
      using Out = typename decltype(out)::type;
      using In = typename decltype(in)::type;
      elementwise<Out, In>(context, [](ComputeType<In> v) { return convert<Out>(v); });
    });
  });
}

}  // namespace rondo::cpu

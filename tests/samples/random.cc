#include "rondo/tests/samples/make.h"

#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::test::samples {

Samples dropout_samples(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) {
    s.inputs.push_back(Tensor::from<int64_t>({42, 7}, {2}));
    s.attrs = ops::dropout_attrs(0.4, 3);
  }
  if (!large)
    samples.push_back({"p = 0", {real({5, 3}), Tensor::from<int64_t>({1, 0}, {2})}, ops::dropout_attrs(0.0, 0)});
  return samples;
}
// The dtype of the numbers is an integer, so the sweep's dtypes change nothing.
Samples draw_samples(bool large) {
  const Tensor state = Tensor::from<int64_t>({42, 7}, {2});
  Samples samples;
  for (const ops::Distribution distribution : {ops::Distribution::kUniform, ops::Distribution::kNormal})
    for (const DType dtype : {kF32, kBF16, kF64})
      for (const Dims& sizes :
           large ? std::vector<Dims>{{300, 1000}} : std::vector<Dims>{{3, 5}, {16}, {}, {0, 2}, {7, 1}}) {
        Attrs attrs{.ints = {static_cast<int64_t>(distribution), 3, static_cast<int64_t>(dtype)}};
        attrs.ints.append(std::span(sizes.begin(), sizes.end()));
        samples.push_back({to_string(sizes), {state}, attrs});
      }
  return samples;
}
Samples draw_integers_samples(bool large) {
  const Tensor state = Tensor::from<int64_t>({42, 7}, {2});
  Samples samples;
  for (const DType dtype : {kI64, kI32, kU8})
    samples.push_back({"integers", {state}, {.ints = {3, static_cast<int64_t>(dtype), 5, 100, 7, large ? 30000 : 9}}});
  return samples;
}

}  // namespace rondo::test::samples

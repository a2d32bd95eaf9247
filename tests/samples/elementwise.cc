#include "rondo/tests/samples/make.h"

namespace rondo::test::samples {

// A gradient op of one elementwise input: x and grad of one shape.
Samples unary_grad(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {real(sizes), real(sizes)}});
  return samples;
}
// a, b, and grad of their broadcast shape.
Samples div_grad_samples(bool large) {
  Samples samples = binary<plain, positive>(large);
  for (OpSample& s : samples) {
    Dims sizes;
    broadcast_shapes(s.inputs[0].sizes(), s.inputs[1].sizes(), sizes);
    s.inputs.push_back(real(sizes));
  }
  return samples;
}
Samples where_samples(bool large) {
  if (large) return {{"large", {coins({257, 401}), real({257, 401}), real({401})}}};
  return {{"same", {coins({7, 5}), real({7, 5}), real({7, 5})}},
          {"broadcast", {coins({5}), real({3, 1, 5}), real({4, 1})}},
          {"condition wider", {coins({2, 3, 4}), real({4}), real({})}},
          {"scalars", {coins({}), real({}), real({})}},
          {"empty", {coins({0, 3}), real({1, 3}), real({3})}}};
}
Samples number_where_samples(bool large) {
  if (large) return {{"large", {coins({257, 401}), real({257, 401})}, {.floats = {0.5}}}};
  return {{"same", {coins({7, 5}), real({7, 5})}, {.floats = {-0.75}}},
          {"broadcast", {coins({5}), real({3, 1, 5})}, {.floats = {3}}},
          {"condition wider", {coins({2, 3, 4}), real({4})}, {.floats = {0}}},
          {"scalars", {coins({}), real({})}, {.floats = {-2}}},
          {"empty", {coins({0, 3}), real({1, 3})}, {.floats = {1}}}};
}
Samples cast_samples(bool large) {
  Samples samples;
  for (DType to : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const Dims& sizes : large ? std::vector<Dims>{{257, 401}} : std::vector<Dims>{{7, 5}, {0, 3}, {}, {33}})
      samples.push_back({"to " + std::string(name_of(to)) + to_string(sizes),
                         {halves(sizes, 0, 5)},
                         ints({static_cast<int64_t>(to)})});
  return samples;
}
Samples copy_samples(bool large) {
  if (large) return {{"large", {real({257, 401}), real({401})}}};
  return {{"same", {real({7, 5}), real({7, 5})}},
          {"broadcast", {real({2, 3, 4}), real({3, 1})}},
          {"scalar", {real({}), real({})}},
          {"from a scalar", {real({6}), real({})}},
          {"empty", {real({0, 3}), real({3})}}};
}
Samples fill_samples(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) s.attrs.floats = {2.5};
  return samples;
}
Samples scale_samples(bool large) {
  if (large) return {{"large", {real({257, 401}), real({})}}};
  return {{"matrix", {real({7, 5}), real({})}},
          {"one", {real({7, 5}), Tensor::ones({}, kF64)}},
          {"scalar", {real({}), real({})}},
          {"empty", {real({0, 3}), real({})}}};
}
Samples two_scalars(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) s.attrs.floats = {-0.7, 1.1};
  return samples;
}
// x and grad for ops that are piecewise on a range of some units.
Tensor wide(const Dims& sizes) { return real(sizes, -7, 7); }
Samples wide_grad(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {wide(sizes), real(sizes)}});
  return samples;
}
Samples bits_of_one(bool large) {
  Samples samples = bits_of_two<true>(large);
  for (OpSample& s : samples) s.inputs.pop_back();
  return samples;
}
Samples arange_samples(bool large) {
  Samples samples;
  for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const bool whole : {false, true})
      for (const int64_t n : large ? std::vector<int64_t>{70'000} : std::vector<int64_t>{33, 0, 1, 300}) {
        Attrs attrs{.ints = {-static_cast<int64_t>(dtype), n, whole}, .floats = {whole ? -7.0 : 0.3, whole ? 3 : -0.7}};
        samples.push_back(
            {std::string(name_of(dtype)) + " " + std::to_string(n), {real({})}, attrs, 1, {Role::kFixed}});
      }
  return samples;
}

}  // namespace rondo::test::samples

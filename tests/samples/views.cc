#include "rondo/tests/samples/make.h"

#include <limits>

namespace rondo::test::samples {

Samples view_samples(bool large) {
  if (large) return {};
  return {{"split", {real({6, 4})}, ints({2, 3, 4})},      {"merge", {real({2, 3, 4})}, ints({6, 4})},
          {"ones", {real({2, 1, 3})}, ints({1, 2, 3, 1})}, {"scalar", {real({1, 1})}, ints({})},
          {"from scalar", {real({})}, ints({1, 1})},       {"empty", {real({0, 3})}, ints({3, 0, 5})}};
}
Samples permute_samples(bool large) {
  if (large) return {};
  return {{"matrix", {real({4, 3})}, ints({1, 0})},
          {"three", {real({2, 3, 4})}, ints({2, 0, 1})},
          {"scalar", {real({})}, ints({})},
          {"empty", {real({0, 3, 1})}, ints({1, 2, 0})}};
}
Samples expand_samples(bool large) {
  if (large) return {};
  return {{"row", {real({1, 5})}, ints({4, 5})},        {"lead", {real({5})}, ints({2, 3, 5})},
          {"scalar", {real({})}, ints({3, 2})},         {"middle", {real({2, 1, 3})}, ints({2, 4, 3})},
          {"to nothing", {real({1, 3})}, ints({0, 3})}, {"same", {real({2, 3})}, ints({2, 3})}};
}
Samples slice_samples(bool large) {
  if (large) return {};
  return {{"front", {real({6, 3})}, ints({0, 0, 4, 1})},     {"step", {real({4, 9})}, ints({1, 1, 9, 3})},
          {"all", {real({5})}, ints({0, 0, 5, 1})},          {"none", {real({5, 2})}, ints({0, 3, 3, 2})},
          {"middle", {real({2, 5, 3})}, ints({1, 2, 4, 1})}, {"step past the end", {real({5})}, ints({0, 1, 5, 7})}};
}
// {offset, sizes..., strides...}
Samples window_samples(bool large) {
  if (large) return {};
  return {{"row", {real({4, 5})}, ints({5, 5, 1})},
          {"column", {real({4, 5})}, ints({2, 4, 5})},
          {"permuted", {real({2, 6})}, ints({1, 2, 3, 2, 4})},
          {"scalar", {real({3})}, ints({2})},
          {"none", {real({3, 2})}, ints({6, 0, 2, 2, 1})}};
}
Samples window_copy_samples(bool large) {
  Samples samples;
  for (OpSample& view : window_samples(large)) {
    Attrs attrs;
    attrs.ints.append(std::span(view.attrs.ints.begin() + 1, view.attrs.ints.end()));
    attrs.floats = {static_cast<double>(view.attrs.ints[0])};
    samples.push_back({view.label, {view.inputs[0]}, attrs});
  }
  return samples;
}
Samples overwrite_samples(bool large) {
  const auto at = [](double offset, std::initializer_list<int64_t> window) {
    Attrs attrs = ints(window);
    attrs.floats = {offset};
    return attrs;
  };
  if (large) return {{"large", {real({300, 257}), real({128, 257})}, at(257 * 3, {128, 257, 257, 1})}};
  return {{"row", {real({4, 5}), real({5})}, at(5, {5, 1})},
          {"column", {real({4, 5}), real({4})}, at(2, {4, 5})},
          {"block", {real({2, 6}), real({2, 3})}, at(1, {2, 3, 6, 2})},
          {"broadcast", {real({3, 4}), real({2, 1})}, at(4, {2, 3, 4, 1})},
          {"a number",
           {real({3, 4}), Tensor()},
           [] {
             Attrs attrs = ints({2, 2, 4, 1});
             attrs.floats = {5.0, 1.5};
             return attrs;
           }()},
          {"one number", {real({3, 4}), real({})}, at(0, {3, 4, 4, 1})},
          {"none", {real({3, 2}), real({0, 2})}, at(6, {0, 2, 2, 1})}};
}
Samples revalue_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), real({300, 257})}}};
  return {{"matrix", {real({4, 5}), real({4, 5})}},
          {"scalar", {real({}), real({})}},
          {"none", {real({0, 2}), real({0, 2})}}};
}
Samples slice_grad_samples(bool large) {
  if (large)
    return {{"large", {real({100, 401})}, ints({257, 401, 0, 3, 2})},
            {"many", std::vector<Tensor>(100, real({3, 401})), [] {
               Attrs attrs = ints({3, 101, 401});
               for (int64_t i = 0; i < 100; ++i) attrs.ints.append({1, i + (i > 40), 1});
               return attrs;
             }()}};
  return {{"front", {real({4, 3})}, ints({6, 3, 0, 0, 1})},
          {"step", {real({4, 3})}, ints({4, 9, 1, 1, 3})},
          {"none", {real({0, 2})}, ints({5, 2, 0, 3, 2})},
          {"middle", {real({2, 2, 3})}, ints({2, 5, 3, 1, 2, 1})},
          {"select", {real({2, 3})}, ints({2, 5, 3, 1, 4, 1})},
          {"side by side", {real({2, 3}), real({1, 3}), real({3})}, ints({5, 3, 0, 3, 1, 0, 0, 1, 0, 2, 1})},
          {"over each other", {real({2, 4}), real({3, 4}), real({3, 2})}, ints({3, 4, 0, 1, 1, 0, 0, 1, 1, 0, 3})},
          {"onto a sum", {real({3, 4}), real({2, 4}), real({4})}, ints({3, 4, 0, 0, 1, 0, 0, 2, 0, 1, 1})},
          {"to nothing", {real({0, 4}), real({0, 1})}, ints({0, 4, 0, 0, 1, 1, 2, 1})}};
}
Samples select_samples(bool large) {
  if (large) return {};
  return {{"first", {real({4, 3})}, ints({0, 2})},
          {"last", {real({4, 3})}, ints({1, 0})},
          {"to a scalar", {real({5})}, ints({0, 4})},
          {"middle", {real({2, 3, 4})}, ints({1, 1})}};
}
Samples split_samples(bool large) {
  if (large) return {};
  return {{"even", {real({6, 4})}, ints({0, 2}), 3},      {"rest", {real({3, 7})}, ints({1, 3}), 3},
          {"one", {real({3})}, ints({0, 9}), 1},          {"middle", {real({2, 5, 2})}, ints({1, 1}), 5},
          {"many", {real({2, 19, 2})}, ints({1, 2}), 10}, {"each index", {real({2, 11})}, ints({1, 0}), 11},
          {"empty rows", {real({0, 4})}, ints({1, 2}), 2}};
}
Samples triangle_samples(bool large) {
  if (large) return {{"large", {real({3, 300, 257})}, ints({-2})}};
  return {{"square", {real({4, 4})}, ints({0})},
          {"wide", {real({3, 7})}, ints({2})},
          {"tall", {real({2, 7, 3})}, ints({-3})},
          {"all or nothing", {real({3, 4})}, ints({std::numeric_limits<int64_t>::max()})},
          {"nothing or all", {real({3, 4})}, ints({std::numeric_limits<int64_t>::min()})},
          {"many", {real({2, 1, 3, 1, 4})}, ints({1})},
          {"one", {real({1, 1})}, ints({-1})},
          {"no rows", {real({2, 0, 3})}, ints({0})},
          {"no columns", {real({2, 3, 0})}, ints({1})}};
}
Samples cat_samples(bool large) {
  if (large) return {{"large", {real({100, 401}), real({157, 401})}, ints({0})}};
  return {{"rows", {real({2, 3}), real({4, 3})}, ints({0})},
          {"columns", {real({3, 2}), real({3, 1}), real({3, 5})}, ints({1})},
          {"one", {real({3})}, ints({0})},
          {"many", std::vector<Tensor>(11, real({2, 3})), ints({1})},
          {"with an empty one", {real({2, 3}), real({0, 3}), real({1, 3})}, ints({0})},
          {"middle", {real({2, 1, 3}), real({2, 4, 3})}, ints({1})},
          {"all empty", {real({0, 3}), real({0, 3})}, ints({0})}};
}

}  // namespace rondo::test::samples

#include "rondo/tests/samples/make.h"

namespace rondo::test::samples {

Samples embedding_samples(bool large) {
  if (large) return {{"large", {real({300, 65}), indices({40, 50}, 300)}}};
  return {{"matrix", {real({10, 6}), indices({3, 4}, 10)}},
          {"scalar", {real({4, 3}), indices({}, 4)}},
          {"empty", {real({4, 3}), indices({0, 2}, 4)}},
          {"one row", {real({1, 1}), indices({5}, 1)}},
          {"no columns", {real({4, 0}), indices({3}, 4)}}};
}
Samples embedding_grad_samples(bool large) {
  if (large) return {{"large", {real({40, 50, 65}), indices({40, 50}, 300)}, ints({300})}};
  return {{"matrix", {real({3, 4, 6}), indices({3, 4}, 10)}, ints({10})},
          {"repeated", {real({9, 3}), indices({9}, 2)}, ints({4})},
          {"scalar", {real({3}), indices({}, 4)}, ints({4})},
          {"empty", {real({0, 3}), indices({0}, 4)}, ints({4})}};
}
Samples embedding_grad_onto_samples(bool large) {
  if (large) return {{"large", {real({300, 65}), real({40, 50, 65}), indices({40, 50}, 300)}}};
  return {{"matrix", {real({10, 6}), real({3, 4, 6}), indices({3, 4}, 10)}},
          {"repeated", {real({4, 3}), real({9, 3}), indices({9}, 2)}},
          {"scalar", {real({4, 3}), real({3}), indices({}, 4)}},
          {"empty", {real({4, 3}), real({0, 3}), indices({0}, 4)}}};
}
Samples gather_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), indices({300, 200}, 257)}, ints({1})}};
  return {{"last", {real({4, 5}), indices({3, 6}, 5)}, ints({1})},
          {"first", {real({4, 5}), indices({6, 3}, 4)}, ints({0})},
          {"middle", {real({2, 3, 4}), indices({2, 5, 4}, 3)}, ints({1})},
          {"vector", {real({7}), indices({9}, 7)}, ints({0})},
          {"scalar", {real({}), indices({}, 1)}, ints({0})},
          {"nothing", {real({4, 5}), indices({0, 6}, 5)}, ints({1})},
          {"no rows", {real({0, 5}), indices({0, 2}, 5)}, ints({1})}};
}
Samples write_rows_samples(bool large) {
  const auto places = [](const std::vector<int64_t>& at, const Dims& sizes) { return Tensor::from(at, sizes); };
  if (large) return {{"large", {real({3, 40, 60, 24}), real({3, 40, 30, 24}), indices({3, 30}, 60)}}};
  return {{"one each", {real({3, 2, 5, 4}), real({3, 2, 1, 4}), places({4, 0, 2}, {3, 1})}},
          {"some left out", {real({2, 2, 5, 3}), real({2, 2, 3, 3}), places({4, -1, 0, 5, 2, 2}, {2, 3})}},
          {"one row", {real({1, 1, 1, 1}), real({1, 1, 1, 1}), places({0}, {1, 1})}},
          {"no columns", {real({2, 1, 3, 0}), real({2, 1, 1, 0}), places({2, 0}, {2, 1})}},
          {"no batch", {real({0, 2, 3, 4}), real({0, 2, 1, 4}), places({}, {0, 1})}}};
}
Samples check_indices_samples(bool large) {
  if (large) return {{"large", {indices({300, 200}, 257)}, ints({257, 0})}};
  return {{"some", {indices({3, 6}, 5)}, ints({5, 0})}, {"none", {indices({0, 6}, 5)}, ints({0, 2})}};
}
Samples sort_segments_samples(bool large) {
  if (large) return {{"large", {indices({90'000}, 257)}, ints({257, 3}), 2}};
  return {{"some", {indices({40}, 5)}, ints({9, 3}), 2}, {"none", {indices({0}, 5)}, ints({3, 4}), 2}};
}
Samples sum_segments_samples(bool large) {
  const auto starts = [](const std::vector<int64_t>& at) {
    return Tensor::from(at, {static_cast<int64_t>(at.size())});
  };
  if (large) return {{"large", {real({3000, 40}), starts({0, 7, 7, 1000, 2999, 3000})}}};
  return {{"rows", {real({9, 5}), starts({0, 2, 2, 9})}}, {"cubes", {real({4, 2, 3}), starts({0, 1, 2, 3, 4})}},
          {"numbers", {real({6}), starts({0, 0, 6})}},    {"nothing", {real({0, 3}), starts({0, 0})}},
          {"no segments", {real({0, 3}), starts({0})}},   {"onto", {real({9, 5}), starts({0, 2, 2, 9}), real({3, 5})}}};
}
Samples scatter_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), indices({300, 200}, 257), real({300, 200})}, ints({1})}};
  return {{"last", {real({4, 5}), indices({3, 6}, 5), real({3, 6})}, ints({1})},
          {"first", {real({4, 5}), indices({6, 3}, 4), real({6, 3})}, ints({0})},
          {"from a scalar", {real({2, 3, 4}), indices({2, 2, 4}, 3), real({})}, ints({1})},
          {"vector", {real({7}), indices({9}, 7), real({9})}, ints({0})},
          {"scalar", {real({}), indices({}, 1), real({})}, ints({0})},
          {"nothing", {real({4, 5}), indices({0, 6}, 5), real({0, 6})}, ints({1})}};
}
Samples scatter_sum_samples(bool large) {
  if (large) return {{"large", {real({300, 200}), indices({300, 200}, 257)}, ints({1, 300, 257})}};
  return {{"last", {real({3, 6}), indices({3, 6}, 5)}, ints({1, 4, 5})},
          {"first", {real({6, 3}), indices({6, 3}, 4)}, ints({0, 4, 5})},
          {"vector", {real({9}), indices({9}, 7)}, ints({0, 7})},
          {"scalar", {real({}), indices({}, 1)}, ints({0})},
          {"nothing", {real({0, 6}), indices({0, 6}, 5)}, ints({1, 4, 5})},
          {"onto", {real({6, 3}), indices({6, 3}, 4), real({4, 3})}, ints({0, 4, 3})},
          {"onto a vector", {real({9}), indices({9}, 7), real({7})}, ints({0, 7})}};
}

}  // namespace rondo::test::samples

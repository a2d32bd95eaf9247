// What makes the samples of op_samples.cc: tensors, and lists of samples for ops of one kind. Those of single ops lie
// in the files of their families.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/op_samples.h"

namespace rondo::test::samples {

using Samples = std::vector<OpSample>;
using Make = Tensor (*)(const Dims&);
// A convolution by its numbers.
struct ConvSample {
  const char* label;
  Dims x, weight;
  ops::Convolution how = {};
  bool bias = true;
};
enum class ConvOp { kOutput, kInput, kWeight };

// From here on, the values are those that follow from this seed.
void start_from(uint64_t seed);
Tensor real(const Dims& sizes, double low = -2, double high = 2);
Tensor positive(const Dims& sizes);
// Multiples of a half: ties happen, and every dtype holds them.
Tensor halves(const Dims& sizes, double low = -3, double high = 3);
Tensor indices(const Dims& sizes, int64_t below);
Tensor coins(const Dims& sizes);
Attrs ints(std::initializer_list<int64_t> values);
Tensor plain(const Dims& sizes);
Tensor tied(const Dims& sizes);
// Mostly zeros, and hardly any.
Tensor sparse(const Dims& sizes);
Tensor dense(const Dims& sizes);
// Infinities and NaN among numbers.
Tensor special(const Dims& sizes);
std::vector<Dims> unary_shapes(bool large);
const std::vector<Dims>& row_shapes();
// Any bits, of each integer dtype and (`kBools`) of truths. `kNumbers`: how far the second operand goes to either side;
// 0: any bits, too.
Tensor any_bits(const Dims& sizes, DType dtype, double numbers = 0);

// ---- elementwise.cc
Samples unary_grad(bool large);
Samples div_grad_samples(bool large);
Samples where_samples(bool large);
Samples number_where_samples(bool large);
Samples cast_samples(bool large);
Samples copy_samples(bool large);
Samples fill_samples(bool large);
Samples scale_samples(bool large);
Samples two_scalars(bool large);
Tensor wide(const Dims& sizes);
Samples wide_grad(bool large);
Samples bits_of_one(bool large);
Samples arange_samples(bool large);

// ---- indices.cc
Samples embedding_samples(bool large);
Samples embedding_grad_samples(bool large);
Samples embedding_grad_onto_samples(bool large);
Samples write_rows_samples(bool large);
Samples gather_samples(bool large);
Samples check_indices_samples(bool large);
Samples sort_segments_samples(bool large);
Samples sum_segments_samples(bool large);
Samples scatter_samples(bool large);
Samples scatter_sum_samples(bool large);

// ---- products.cc
Samples matmul_samples(bool large);
Samples linear_samples(bool large);
std::vector<ConvSample> conv_samples(bool large);
Samples attention_samples(bool large);
Samples attention_grad_samples(bool large);
Samples attention_scores_grad_samples(bool large);
Samples cross_entropy_samples(bool large);
Samples cross_entropy_grad_samples(bool large);
Samples pixel_cross_entropy_samples(bool large);
Samples pixel_cross_entropy_grad_samples(bool large);
Samples linear_cross_entropy_samples(bool large);
Samples linear_cross_entropy_grad_samples(bool large);

// ---- random.cc, collective.cc
Samples all_reduce_samples(bool large);
Samples dropout_samples(bool large);
Samples draw_samples(bool large);
Samples draw_integers_samples(bool large);

// ---- rows.cc
Samples softmax_grad_samples(bool large);
Samples log_softmax_grad_samples(bool large);
Samples layer_norm_samples(bool large);
Samples layer_norm_grad_samples(bool large);
Samples batch_norm_samples(bool large);
Samples batch_norm_grad_samples(bool large);
Samples group_norm_samples(bool large);
Samples group_norm_grad_samples(bool large);
Samples scale_shift_samples(bool large);
Samples max_pool2d_samples(bool large);
Samples interpolate_samples(bool large);  // also of its gradient
Samples rms_norm_samples(bool large);
Samples rms_norm_grad_samples(bool large);
Samples rotary_samples(bool large);
Samples argmax_samples(bool large);
Samples topk_samples(bool large);

// ---- views.cc
Samples view_samples(bool large);
Samples permute_samples(bool large);
Samples expand_samples(bool large);
Samples slice_samples(bool large);
Samples window_samples(bool large);
Samples window_copy_samples(bool large);
Samples overwrite_samples(bool large);
Samples revalue_samples(bool large);
Samples slice_grad_samples(bool large);
Samples select_samples(bool large);
Samples split_samples(bool large);
Samples triangle_samples(bool large);
Samples cat_samples(bool large);

// ---- Of many ops
template <Make kFirst, Make kSecond> Samples binary(bool large) {
  using Pair = std::pair<Dims, Dims>;
  const std::vector<Pair> shapes = large ? std::vector<Pair>{{{257, 401}, {257, 401}},
                                                             {{257, 401}, {401}},
                                                             {{401, 1}, {257}}}
                                         : std::vector<Pair>{{{7, 5}, {7, 5}},
                                                             {{3, 1, 5}, {4, 1}},
                                                             {{0, 3}, {1, 3}},
                                                             {{}, {}},
                                                             {{1}, {1, 1}},
                                                             {{13}, {}},
                                                             {{2, 3, 4, 5}, {3, 1, 5}},
                                                             {{33}, {33}},
                                                             {{2, 1, 3, 1, 2}, {4, 1, 5, 1}}};
  Samples samples;
  for (const auto& [a, b] : shapes)
    samples.push_back({to_string(a) + " with " + to_string(b), {kFirst(a), kSecond(b)}});
  return samples;
}
template <Make kMake> Samples unary(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {kMake(sizes)}});
  return samples;
}
template <Make kMake> Samples with_scalar(bool large) {
  Samples samples = unary<kMake>(large);
  for (OpSample& s : samples) s.attrs.floats = {3};
  if (!large) samples.push_back({"-0.75", {kMake({5, 3})}, {.floats = {-0.75}}});
  return samples;
}
// Numbers beside elements: equal ones among them, in floats and in integers. Beside an integer an op gets no NaN and no
// infinity (promotion.cc); beside floats these are in numbers_test.cc.
template <Make kMake> Samples with_number(bool large) {
  Samples samples = unary<kMake>(large);
  for (OpSample& s : samples) s.attrs.floats = {0.5};
  if (large) return samples;
  for (const double number : {1.0, -0.75, 4.0}) samples.push_back({"a number", {kMake({5, 3})}, {.floats = {number}}});
  return samples;
}
template <Make kMake, bool kEmpty> Samples reduction(bool large) {
  Samples samples;
  auto add = [&](const Dims& sizes, int64_t mask) {
    for (int64_t keep : {0, 1})
      samples.push_back({to_string(sizes) + " mask " + std::to_string(mask) + (keep ? " kept" : ""),
                         {kMake(sizes)},
                         ints({mask, keep})});
  };
  if (large) {
    for (int64_t mask : {1, 2, 3}) add({300, 401}, mask);
    add({5000, 17}, 1);
    for (int64_t mask : {1, 2, 5, 6}) add({40, 90, 77}, mask);
    return samples;
  }
  for (int64_t mask : {0, 1, 2, 3}) add({7, 5}, mask);
  for (int64_t mask : {1, 2, 3, 4, 5, 6, 7}) add({3, 4, 5}, mask);
  add({2, 3, 4, 5}, 0b0101);
  // Several runs of reduced dimensions, and one in the middle.
  for (int64_t mask : {0b0010, 0b0110, 0b1010}) add({3, 37, 2, 18}, mask);
  add({2, 19, 2, 5}, 0b1101);
  add({2, 70}, 2);
  add({70, 2}, 1);
  add({150, 3}, 1);
  add({1, 1}, 3);
  add({9}, 1);
  add({1, 9}, 2);
  add({9, 1}, 2);
  add({}, 0);
  add({2, 0}, 1);
  if (kEmpty) {
    add({0, 3}, 1);
    add({0, 3}, 3);
  }
  return samples;
}
template <int kOutputs> Samples variance_samples(bool large) {
  Samples samples = reduction<plain, false>(large);
  for (OpSample& s : samples) {
    int64_t n = 1;
    for (int d = 0; d < s.inputs[0].rank(); ++d)
      if (s.attrs.ints[0] >> d & 1) n *= s.inputs[0].sizes()[d];
    s.attrs.floats = {n > 1 ? 1.0 : 0.0};
    s.n_outputs = kOutputs;
  }
  // One element varies from nothing, and has no standard deviation to divide by.
  std::erase_if(samples, [](const OpSample& s) { return s.attrs.floats[0] == 0; });
  if (!large) samples.push_back({"correction", {real({6, 5})}, {.ints = {2, 0}, .floats = {0.0}}, kOutputs});
  return samples;
}
// Input and target of a pointwise loss: of one shape.
template <int kScalars> Samples pairs(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) {
    Attrs attrs;
    if (kScalars == 1) attrs.floats = {0.75};
    samples.push_back({to_string(sizes), {real(sizes), real(sizes)}, attrs});
  }
  return samples;
}
template <int kOperands> Samples rows(bool large) {
  Samples samples;
  for (const Dims& sizes : large ? std::vector<Dims>{{300, 129}} : row_shapes()) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < kOperands; ++i) inputs.push_back(real(sizes));
    samples.push_back({to_string(sizes), inputs});
  }
  return samples;
}
// Also rows without elements.
template <int kOperands> Samples softmax_rows(bool large) {
  Samples samples = rows<kOperands>(large);
  const auto along = [&](const Dims& sizes, int64_t dim) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < kOperands; ++i) inputs.push_back(real(sizes));
    samples.push_back({to_string(sizes) + " along " + std::to_string(dim), inputs, ints({dim})});
  };
  if (large) return along({30, 21, 150}, 1), samples;
  samples.push_back({"no columns", std::vector<Tensor>(kOperands, real({3, 0}))});
  for (int64_t dim : {0, 1, 2}) along({3, 37, 18}, dim);
  along({70, 5}, 0);
  along({9, 1}, 0);
  along({2, 6, 1}, 1);
  along({2, 0, 3}, 1);
  return samples;
}
template <auto kSoftmax> Samples softmax_grads(bool large) {
  Samples samples = softmax_rows<2>(large);
  for (OpSample& s : samples) s.inputs[1] = kSoftmax(s.inputs[1], s.attrs.ints.empty() ? -1 : s.attrs.ints[0]);
  return samples;
}
template <ConvOp kOp> Samples convs(bool large) {
  Samples samples;
  for (const ConvSample& c : conv_samples(large)) {
    const Dims &x = c.x, &w = c.weight;
    const Dims y = {x[0], w[0], c.how.output_size(0, x[2], w[2]), c.how.output_size(1, x[3], w[3])};
    if (kOp == ConvOp::kOutput)
      samples.push_back({c.label, {real(x), real(w, -0.5, 0.5), c.bias ? real({w[0]}) : Tensor()}, c.how.attrs()});
    else if (kOp == ConvOp::kInput)
      samples.push_back({c.label, {real(y), real(w, -0.5, 0.5)}, c.how.attrs({x[2], x[3]})});
    else samples.push_back({c.label, {real(y), real(x)}, c.how.attrs({w[2], w[3]})});
    samples.back().terms = kOp == ConvOp::kOutput  ? w[1] * w[2] * w[3]
                           : kOp == ConvOp::kInput ? w[0] / c.how.groups * w[2] * w[3]
                                                   : y[0] * y[2] * y[3];
  }
  return samples;
}
template <Make kX, int kScalars> Samples unary_grad_with(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) {
    Attrs attrs{.floats = {kScalars == 1 ? 2.5 : -0.7}};
    if (kScalars == 2) attrs.floats.push_back(1.1);
    samples.push_back({to_string(sizes), {kX(sizes), real(sizes)}, attrs});
  }
  return samples;
}
// Ops along one dimension with one more integer.
template <Make kMake, bool kEmpty> Samples lines(bool large) {
  Samples samples;
  for (int64_t flag : {0, 1}) {
    if (large) {
      samples.push_back({"large", {kMake({300, 257})}, ints({1, flag})});
      continue;
    }
    for (int64_t dim : {0, 1, 2}) samples.push_back({"cube", {kMake({3, 4, 5})}, ints({dim, flag})});
    samples.push_back({"vector", {kMake({33})}, ints({0, flag})});
    samples.push_back({"scalar", {kMake({})}, ints({0, flag})});
    samples.push_back({"no lines", {kMake({0, 3})}, ints({1, flag})});
    if (kEmpty) samples.push_back({"no elements", {kMake({0, 3})}, ints({0, flag})});
  }
  return samples;
}
template <bool kBools, int kNumbers = 0> Samples bits_of_two(bool large) {
  Samples samples;
  for (const DType dtype : {kI64, kI32, kU8, kBool}) {
    if (dtype == kBool && !kBools) continue;
    const auto make = [&](const Dims& a, const Dims& b) {
      samples.push_back({std::string(name_of(dtype)) + to_string(a) + to_string(b),
                         {any_bits(a, dtype), any_bits(b, dtype, kNumbers)}});
    };
    if (large) make({257, 401}, {401});
    else make({7, 33}, {7, 33}), make({3, 1, 5}, {4, 1}), make({}, {}), make({0, 3}, {1, 3});
  }
  return samples;
}
template <bool kBools> Samples bits_and_number(bool large) {
  Samples samples = bits_of_two<kBools>(large);
  for (OpSample& s : samples) s.inputs.pop_back();
  const size_t n = samples.size();
  for (const double number : {0, 3, 31, 64, -1})
    for (size_t i = 0; i < n; ++i) {
      if (number < 0 && samples[i].inputs[0].dtype() == kU8) continue;
      samples.push_back(samples[i]);
      samples.back().attrs.floats = {number};
    }
  samples.erase(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(n));
  return samples;
}
template <bool kOfValue> Samples filled_samples(bool large) {
  Samples samples;
  for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const double value : kOfValue ? std::vector<double>{-3, 0.3} : std::vector<double>{0})
      for (const Dims& sizes :
           large ? std::vector<Dims>{{70, 1001}} : std::vector<Dims>{{33}, {0, 3}, {}, {4, 1, 21}}) {
        Attrs attrs{.ints = {-static_cast<int64_t>(dtype)}};
        if (kOfValue) attrs.floats = {value};
        for (int64_t size : sizes) attrs.ints.push_back(size);
        samples.push_back({std::string(name_of(dtype)) + to_string(sizes), {real({})}, attrs, 1, {Role::kFixed}});
      }
  return samples;
}

}  // namespace rondo::test::samples

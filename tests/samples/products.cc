#include "rondo/tests/samples/make.h"

namespace rondo::test::samples {

Samples matmul_samples(bool large) {
  if (large)
    return {{"large", {real({130, 140}), real({140, 150})}}, {"large batch", {real({6, 70, 64}), real({6, 64, 65})}}};
  Samples samples;
  auto add = [&](const Dims& a, const Dims& b) {
    samples.push_back({to_string(a) + " x " + to_string(b), {real(a), real(b)}});
  };
  add({5, 7}, {7, 3});
  add({2, 5, 7}, {7, 3});
  add({2, 3, 4, 5}, {3, 5, 2});
  add({2, 1, 4, 5}, {1, 3, 5, 2});
  add({4, 5}, {3, 5, 2});
  add({1, 1}, {1, 1});
  add({0, 3}, {3, 2});
  add({3, 0}, {0, 2});
  add({17, 33}, {33, 19});
  add({1, 40}, {40, 1});
  add({0, 2, 3}, {3, 2});
  add({2, 2, 0}, {2, 0, 3});
  return samples;
}
Samples linear_samples(bool large) {
  if (large) return {{"large", {real({2, 65, 140}), real({150, 140}), real({150})}}};
  return {{"bias", {real({2, 3, 7}), real({5, 7}), real({5})}},    {"no bias", {real({6, 7}), real({5, 7}), Tensor()}},
          {"vector", {real({7}), real({5, 7}), real({5})}},        {"empty", {real({0, 7}), real({5, 7}), real({5})}},
          {"nothing in", {real({3, 0}), real({5, 0}), real({5})}}, {"ones", {real({1, 1}), real({1, 1}), real({1})}},
          {"odd", {real({17, 33}), real({19, 33}), real({19})}}};
}
std::vector<ConvSample> conv_samples(bool large) {
  using ops::Convolution;
  const Convolution same3{.before = {1, 1}, .after = {1, 1}};
  if (large)
    return {
        {"large", {2, 24, 40, 33}, {32, 24, 3, 3}, {.stride = {2, 1}, .before = {1, 1}, .after = {1, 1}}},
        {"large, few channels", {3, 3, 60, 61}, {8, 3, 7, 7}, {.stride = {2, 2}, .before = {3, 3}, .after = {3, 3}}},
        {"large, depthwise", {2, 40, 31, 30}, {40, 1, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 40}},
        {"large, one by one", {4, 40, 33, 20}, {64, 40, 1, 1}},
        {"large batch", {40, 16, 9, 9}, {16, 16, 3, 3}, same3}};
  return {
      {"plain", {2, 3, 7, 6}, {4, 3, 3, 2}},
      {"same", {1, 5, 9, 8}, {7, 5, 3, 3}, same3, false},
      {"stride", {2, 4, 9, 11}, {6, 4, 3, 3}, {.stride = {2, 3}, .before = {1, 0}, .after = {1, 0}}},
      {"patches", {2, 3, 8, 8}, {5, 3, 4, 4}, {.stride = {4, 4}}},
      {"stride beyond the kernel", {1, 2, 9, 10}, {3, 2, 2, 1}, {.stride = {3, 4}}, false},
      {"one by one", {2, 6, 5, 3}, {4, 6, 1, 1}},
      {"one by one, stride", {2, 6, 5, 4}, {4, 6, 1, 1}, {.stride = {2, 2}}},
      {"dilated", {1, 3, 11, 9}, {4, 3, 3, 2}, {.dilation = {2, 3}, .before = {2, 1}, .after = {2, 1}}},
      {"even kernel, same", {1, 3, 6, 7}, {4, 3, 2, 4}, {.before = {0, 1}, .after = {1, 2}}},
      {"groups", {2, 6, 6, 5}, {9, 2, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 3}},
      {"depthwise", {2, 5, 7, 7}, {5, 1, 3, 3}, {.stride = {2, 1}, .before = {1, 1}, .after = {1, 1}, .groups = 5}},
      {"depthwise, two each", {1, 16, 6, 6}, {32, 1, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 16}, false},
      {"padding beyond the kernel", {1, 2, 3, 4}, {3, 2, 2, 2}, {.before = {3, 2}, .after = {3, 2}}},
      {"a row", {2, 3, 1, 13}, {4, 3, 1, 5}, {.stride = {1, 2}, .before = {0, 2}, .after = {0, 2}}},
      {"one pixel", {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"all of the image", {2, 3, 4, 5}, {6, 3, 4, 5}},
      {"empty batch", {0, 3, 5, 5}, {4, 3, 3, 3}, same3},
      {"only padding", {2, 3, 0, 5}, {4, 3, 2, 3}, {.before = {1, 1}, .after = {1, 1}}},
      {"two groups", {2, 4, 5, 6}, {6, 2, 3, 2}, {.stride = {2, 1}, .groups = 2}, false},
      {"many channels", {2, 1024, 3, 7}, {8, 1024, 1, 1}, {}, false},
      {"many outputs, bands", {1, 4, 40, 18}, {512, 4, 3, 3}, same3, false},
      {"several bands", {1, 32, 36, 33}, {32, 32, 3, 3}, same3, false},
      {"several bands, stride", {1, 24, 48, 31}, {40, 24, 3, 3}, {.stride = {2, 2}, .before = {1, 1}, .after = {1, 1}}},
  };
}
Samples attention_samples(bool large) {
  const double inf = std::numeric_limits<double>::infinity();
  auto attrs = [](bool causal, double scale) { return Attrs{.ints = {causal}, .floats = {scale}}; };
  const Tensor state = Tensor::from<int64_t>({17, 5}, {2});
  auto dropped = [](bool causal, double scale, double p) { return Attrs{.ints = {causal, 3}, .floats = {scale, p}}; };
  if (large)
    return {{"large",
             {real({2, 4, 130, 16}), real({2, 4, 130, 16}), real({2, 4, 130, 16}), Tensor()},
             attrs(true, 0.25),
             2}};
  Tensor bias = real({2, 1, 5, 6});
  bias.flatten()[3].fill_(-inf);
  Tensor allowed = coins({1, 1, 5, 6});
  for (int i = 0; i < 5; ++i) allowed.flatten()[i * 6 + i].fill_(true);
  return {{"plain", {real({2, 4, 5, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), Tensor()}, attrs(false, 0.35), 2},
          {"causal", {real({2, 2, 7, 3}), real({2, 2, 7, 3}), real({2, 2, 7, 3}), Tensor()}, attrs(true, 0.5), 2},
          {"grouped", {real({1, 6, 5, 4}), real({1, 2, 5, 4}), real({1, 2, 5, 4}), Tensor()}, attrs(true, 0.5), 2},
          {"bool mask", {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), allowed}, attrs(false, 0.5), 2},
          {"bias", {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), bias}, attrs(false, 0.5), 2},
          {"first keys",
           {real({2, 4, 7, 3}), real({2, 2, 7, 3}), real({2, 2, 7, 3}),
            Tensor::from(std::vector<int64_t>{0, 0, 2, 2, 2, 5, 5, -3, 0, -1, 0, 4, 4, 4}, {2, 1, 7, 1})},
           attrs(true, 0.5),
           2},
          {"first keys, not causal",
           {real({1, 2, 3, 4}), real({1, 2, 6, 4}), real({1, 2, 6, 4}),
            Tensor::from(std::vector<int64_t>{5, 0, 2}, {1, 1, 3, 1})},
           attrs(false, 0.5),
           2},
          {"keys from and to",
           {real({2, 4, 7, 3}), real({2, 2, 7, 3}), real({2, 2, 7, 3}),
            Tensor::from(std::vector<int64_t>{0, 4, 0, 9, 2, 5, 3, 3, 2, 4, -3, 1,  6, 2,
                                              0, 7, 1, 7, 5, 7, 0, 0, 4, 6, -1, -1, 3, 5},
                         {2, 1, 7, 2})},
           attrs(false, 0.5),
           2},
          {"keys from and to, causal",
           {real({1, 2, 70, 4}), real({1, 2, 70, 4}), real({1, 2, 70, 4}),
            Tensor::from(std::vector<int64_t>{1, 66}, {1, 1, 1, 2})},
           attrs(true, 0.5),
           2},
          {"keys from and to of one query",
           {real({2, 4, 1, 8}), real({2, 2, 300, 8}), real({2, 2, 300, 8}),
            Tensor::from(std::vector<int64_t>{3, 270, 0, 2}, {2, 1, 1, 2})},
           attrs(false, 0.35),
           2},
          {"keys from and to, wide heads",
           {real({1, 2, 3, 130}), real({1, 1, 5, 130}), real({1, 1, 5, 130}),
            Tensor::from(std::vector<int64_t>{0, 2, 1, 3, 2, 2}, {1, 1, 3, 2})},
           attrs(false, 0.1),
           2},
          {"one query", {real({1, 2, 1, 8}), real({1, 2, 9, 8}), real({1, 2, 9, 8}), Tensor()}, attrs(false, 0.35), 2},
          {"one of all", {real({1, 1, 1, 1}), real({1, 1, 1, 1}), real({1, 1, 1, 1}), Tensor()}, attrs(true, 1), 2},
          {"no batch", {real({0, 2, 3, 4}), real({0, 2, 3, 4}), real({0, 2, 3, 4}), Tensor()}, attrs(true, 0.5), 2},
          {"dropout",
           {real({2, 4, 5, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), Tensor(), state},
           dropped(false, 0.35, 0.1),
           2},
          {"dropout, causal, grouped",
           {real({2, 4, 21, 3}), real({2, 2, 21, 3}), real({2, 2, 21, 3}), Tensor(), state},
           dropped(true, 0.5, 0.5),
           2},
          {"dropout, bool mask",
           {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), allowed, state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, bias",
           {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), bias, state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, first keys",
           {real({1, 2, 3, 4}), real({1, 2, 6, 4}), real({1, 2, 6, 4}),
            Tensor::from(std::vector<int64_t>{5, 0, 2}, {1, 1, 3, 1}), state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, one query",
           {real({1, 2, 1, 8}), real({1, 2, 9, 8}), real({1, 2, 9, 8}), Tensor(), state},
           dropped(false, 0.35, 0.4),
           2},
          {"dropout of all",
           {real({1, 2, 3, 4}), real({1, 2, 3, 4}), real({1, 2, 3, 4}), Tensor(), state},
           dropped(true, 0.5, 1),
           2},
          {"dropout of none",
           {real({1, 2, 3, 4}), real({1, 2, 3, 4}), real({1, 2, 3, 4}), Tensor(), state},
           dropped(true, 0.5, 0),
           2},
          {"dropout, wide heads",
           {real({1, 1, 3, 130}), real({1, 1, 5, 130}), real({1, 1, 5, 130}), Tensor(), state},
           dropped(false, 0.1, 0.25),
           2}};
}
Samples attention_grad_samples(bool large) {
  Samples samples = attention_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    const std::vector<TensorArg> operands(s.inputs.begin(), s.inputs.end());
    call(*find_op("attention"), operands, s.attrs, outputs);
    s.inputs.insert(s.inputs.begin(), {real(outputs[0].sizes()), outputs[0], outputs[1]});
    s.roles = {Role::kReal,
               Role::kReal,
               Role::kCompute,
               Role::kReal,
               Role::kReal,
               Role::kReal,
               s.inputs[6].defined() && s.inputs[6].dtype() == kF64 ? Role::kReal : Role::kFixed,
               Role::kFixed};
    s.n_outputs = 3;
  }
  return samples;
}
Samples attention_scores_grad_samples(bool large) {
  Samples samples = attention_grad_samples(large);
  for (OpSample& s : samples) s.n_outputs = 4;
  return samples;
}
Samples cross_entropy_samples(bool large) {
  auto attrs = [](int64_t ignore, int64_t reduction, double smoothing) {
    return Attrs{.ints = {ignore, reduction}, .floats = {smoothing}};
  };
  if (large) return {{"large", {real({300, 211}), indices({300}, 211)}, attrs(-100, 0, 0.1), 2}};
  return {{"mean", {real({6, 7}), indices({6}, 7)}, attrs(-100, 0, 0), 2},
          {"sum, smooth", {real({6, 7}), indices({6}, 7)}, attrs(-100, 1, 0.2), 2},
          {"none, ignoring", {real({6, 3}), indices({6}, 3)}, attrs(1, 2, 0), 2},
          {"mean, ignoring, smooth", {real({9, 3}), indices({9}, 3)}, attrs(2, 0, 0.1), 2},
          {"one class", {real({3, 1}), indices({3}, 1)}, attrs(-100, 0, 0), 2},
          {"odd", {real({5, 70}), indices({5}, 70)}, attrs(-100, 0, 0), 2},
          {"no rows", {real({0, 4}), indices({0}, 4)}, attrs(-100, 1, 0), 2}};
}
Samples cross_entropy_grad_samples(bool large) {
  Samples samples = cross_entropy_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    call(*find_op("cross_entropy"), {s.inputs[0], s.inputs[1]}, s.attrs, outputs);
    s.inputs = {real(outputs[0].sizes()), s.inputs[0], s.inputs[1], outputs[1]};
    s.roles = {Role::kReal, Role::kReal, Role::kFixed, Role::kCompute};
    s.n_outputs = 1;
  }
  return samples;
}
Samples pixel_cross_entropy_samples(bool large) {
  const auto pixels = [](const char* label, const Dims& logits, const Dims& target, int64_t ignore = -100) {
    return OpSample{label,
                    {real(logits), indices(target, logits[1])},
                    {.ints = {ignore, static_cast<int64_t>(ops::Reduction::kMean)}, .floats = {0.0}},
                    2};
  };
  if (large) return {pixels("large", {2, 19, 9, 13}, {2, 72, 150}, 3)};
  return {
      pixels("larger", {2, 3, 2, 3}, {2, 5, 7}),        pixels("eight times, ignoring", {1, 3, 2, 2}, {1, 16, 16}, 1),
      pixels("the same size", {2, 4, 3, 2}, {2, 3, 2}), pixels("smaller", {1, 3, 6, 5}, {1, 2, 3}),
      pixels("one pixel", {1, 2, 1, 1}, {1, 3, 4}),     pixels("one class", {1, 1, 2, 2}, {1, 3, 3}),
      pixels("a row of 70", {1, 2, 2, 5}, {1, 3, 70}),  pixels("to one pixel", {2, 3, 3, 3}, {2, 1, 1})};
}
Samples pixel_cross_entropy_grad_samples(bool large) {
  Samples samples = pixel_cross_entropy_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    call(*find_op("pixel_cross_entropy"), {s.inputs[0], s.inputs[1]}, s.attrs, outputs);
    s.inputs = {real({}), s.inputs[0], s.inputs[1], outputs[1]};
    s.roles = {Role::kReal, Role::kReal, Role::kFixed, Role::kCompute};
    s.n_outputs = 1;
  }
  return samples;
}
Samples linear_cross_entropy_samples(bool large) {
  const auto head = [](const char* label, const Dims& sizes, bool bias, Dims options,
                       double smoothing = 0) {  // N, C, V
    return OpSample{label,
                    {real({sizes[0], sizes[1]}), real({sizes[2], sizes[1]}), bias ? real({sizes[2]}) : Tensor(),
                     indices({sizes[0]}, sizes[2])},
                    {.ints = {options[0], options[1], options[2], -1, options[3]}, .floats = {smoothing}},
                    4};
  };
  if (large) return {head("large", {300, 65, 211}, true, {-100, 0, 77, 7}, 0.1)};
  return {head("mean", {6, 4, 7}, true, {-100, 0, 0, 7}),
          head("chunks that do not divide N", {7, 4, 5}, false, {-100, 0, 3, 3}),
          head("rows alone, ignoring, smooth", {9, 3, 4}, true, {2, 0, 1, 7}, 0.1),
          head("sum", {5, 6, 70}, true, {-100, 1, 2, 7}, 0.2),
          head("none", {5, 3, 4}, true, {1, 2, 2, 0}),
          head("computed in the backward", {6, 4, 7}, true, {-100, 0, 4, 0}),
          head("one class", {3, 2, 1}, false, {-100, 0, 2, 3}),
          head("nothing in", {3, 0, 4}, true, {-100, 0, 2, 7}),
          head("no rows", {0, 3, 4}, true, {-100, 1, 0, 7})};
}
Samples linear_cross_entropy_grad_samples(bool large) {
  Samples samples = linear_cross_entropy_samples(large);
  for (OpSample& s : samples) {
    s.inputs.insert(s.inputs.begin(), real(s.attrs.ints[1] == 2 ? s.inputs[3].sizes() : Dims()));
    s.attrs.ints[4] = s.inputs[3].defined() ? 7 : 3;
    s.n_outputs = 3;
  }
  return samples;
}

}  // namespace rondo::test::samples

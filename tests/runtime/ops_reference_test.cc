// Ops against values recorded from PyTorch: results and gradients of every case in tests/reference/ops.safetensors.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

struct Case {
  DType dtype;
  std::map<std::string, Tensor> in;
  Tensor operator[](const std::string& name) const { return in.at(name); }
};
// The results of one case: the first is differentiated.
using Results = std::vector<Tensor>;
using RunCase = std::function<Results(const Case&)>;

Tensor ones(const Case& c, const char* like) { return Tensor::ones({c[like].size(-1)}, {c.dtype}); }
Results both(const ops::ValuesAndIndices& r) { return {r.values, r.indices}; }
RunCase attention(ops::AttentionOptions options = {}, bool mask = false) {
  return [=](const Case& c) {
    return Results{ops::scaled_dot_product_attention(c["q"], c["k"], c["v"], mask ? c["mask"] : Tensor(), options)};
  };
}
RunCase cross_entropy(ops::Reduction reduction, double smoothing) {
  return [=](const Case& c) {
    return Results{ops::cross_entropy(c["x"], c["targets"], {.label_smoothing = smoothing, .reduction = reduction})};
  };
}
RunCase softmax(bool log, int64_t dim) {
  return [=](const Case& c) { return Results{log ? ops::log_softmax(c["x"], dim) : ops::softmax(c["x"], dim)}; };
}

template <class Options, class Op> RunCase convolution(Op op, Options options) {
  return [=](const Case& c) {
    const auto bias = c.in.find("bias");
    return Results{op(c["x"], c["weight"], bias == c.in.end() ? Tensor() : bias->second, options)};
  };
}
void add_convolutions(std::map<std::string, RunCase>& cases) {
  using ops::kSamePadding;
  const auto one = [&](const char* name, ops::Conv1dOptions o) { cases[name] = convolution(&ops::conv1d, o); };
  const auto two = [&](const char* name, ops::Conv2dOptions o) { cases[name] = convolution(&ops::conv2d, o); };
  const auto up = [&](const char* name, ops::ConvTranspose2dOptions o) {
    cases[name] = convolution(&ops::conv_transpose2d, o);
  };
  one("conv1d", {.stride = 2, .padding = 1});
  one("conv1d_same", {.padding = kSamePadding, .dilation = 2, .groups = 2});
  two("conv2d", {});
  two("conv2d_stride", {.stride = {2, 3}, .padding = {1, 0}});
  two("conv2d_same", {.padding = kSamePadding, .dilation = {1, 2}});
  two("conv2d_groups", {.padding = 1, .dilation = {2, 1}, .groups = 3});
  two("conv2d_depthwise", {.stride = 2, .padding = 1, .groups = 5});
  up("conv_transpose2d", {});
  up("conv_transpose2d_stride", {.stride = 2, .padding = 1, .output_padding = 1});
  up("conv_transpose2d_groups",
     {.stride = {3, 2}, .padding = {0, 1}, .output_padding = {2, 0}, .groups = 2, .dilation = {1, 2}});
}

void add_images(std::map<std::string, RunCase>& cases) {
  using ops::InterpolateMode, ops::PadMode;
  const auto add = [&](const std::string& name, std::function<Tensor(const Tensor&)> run) {
    cases[name] = [=](const Case& c) { return Results{run(c["x"])}; };
  };
  add("max_pool2d", [](const Tensor& x) { return ops::max_pool2d(x, 3, {.stride = 2, .padding = 1}); });
  add("max_pool2d_ceil", [](const Tensor& x) {
    return ops::max_pool2d(x, {3, 2}, {.stride = {{2, 3}}, .padding = {1, 0}, .ceil_mode = true});
  });
  add("max_pool2d_dilated", [](const Tensor& x) { return ops::max_pool2d(x, 2, {.stride = 1, .dilation = {2, 3}}); });
  add("avg_pool2d", [](const Tensor& x) { return ops::avg_pool2d(x, 2); });
  add("avg_pool2d_ceil",
      [](const Tensor& x) { return ops::avg_pool2d(x, 3, {.stride = 2, .padding = 1, .ceil_mode = true}); });
  add("avg_pool2d_inside", [](const Tensor& x) {
    return ops::avg_pool2d(x, {3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
  });
  add("adaptive_avg_pool2d_one", [](const Tensor& x) { return ops::adaptive_avg_pool2d(x, 1); });
  add("adaptive_avg_pool2d_whole", [](const Tensor& x) { return ops::adaptive_avg_pool2d(x, {3, 7}); });
  add("adaptive_avg_pool2d_odd", [](const Tensor& x) { return ops::adaptive_avg_pool2d(x, {4, 3}); });
  add("adaptive_avg_pool2d_more", [](const Tensor& x) { return ops::adaptive_avg_pool2d(x, {8, 9}); });
  for (const auto& [tag, size] : {std::pair<std::string, ops::Spatial<2>>{"_up", {12, 17}}, {"_down", {4, 3}}}) {
    const ops::Spatial<2> to = size;
    add("interpolate_nearest" + tag, [=](const Tensor& x) { return ops::interpolate(x, to); });
    for (const auto& [mode, options] : std::map<std::string, ops::InterpolateOptions>{
             {"bilinear", {InterpolateMode::kBilinear}},
             {"corners", {InterpolateMode::kBilinear, true}},
             {"bilinear_antialias", {InterpolateMode::kBilinear, false, true}},
             {"bilinear_antialias_corners", {InterpolateMode::kBilinear, true, true}},
             {"bicubic", {InterpolateMode::kBicubic}},
             {"bicubic_corners", {InterpolateMode::kBicubic, true}},
             {"bicubic_antialias", {InterpolateMode::kBicubic, false, true}},
             {"bicubic_antialias_corners", {InterpolateMode::kBicubic, true, true}}}) {
      const ops::InterpolateOptions how = options;
      add("interpolate_" + mode + tag, [=](const Tensor& x) { return ops::interpolate(x, to, how); });
    }
  }
  add("pad_constant", [](const Tensor& x) { return ops::pad(x, {1, 2, -1, 3}, PadMode::kConstant, 0.5); });
  add("pad_reflect", [](const Tensor& x) { return ops::pad(x, {2, 1, 0, 5}, PadMode::kReflect); });
  add("pad_replicate", [](const Tensor& x) { return ops::pad(x, {2, 9, 1, 0}, PadMode::kReplicate); });
  add("pixel_shuffle", [](const Tensor& x) { return ops::pixel_shuffle(x, 2); });
  add("relu6", [](const Tensor& x) { return ops::relu6(x); });
  add("hardswish", [](const Tensor& x) { return ops::hardswish(x); });
}

std::map<std::string, RunCase> make_cases() {
  std::map<std::string, RunCase> cases = {
      {"gelu_erf", [](const Case& c) { return Results{ops::gelu(c["x"], ops::GeluKind::kErf)}; }},
      {"gelu_tanh", [](const Case& c) { return Results{ops::gelu(c["x"], ops::GeluKind::kTanh)}; }},
      {"silu", [](const Case& c) { return Results{ops::silu(c["x"])}; }},
      {"layer_norm", [](const Case& c) { return Results{ops::layer_norm(c["x"], c["weight"], c["bias"])}; }},
      {"layer_norm_far", [](const Case& c) { return Results{ops::layer_norm(c["x"], c["weight"], c["bias"])}; }},
      {"layer_norm_plain",
       [](const Case& c) { return Results{ops::layer_norm(c["x"], ones(c, "x"), ones(c, "x") * 0.0)}; }},
      {"layer_norm_2d",
       [](const Case& c) {
         const Tensor y = ops::layer_norm(c["x"].flatten(1), c["weight"].flatten(), c["bias"].flatten());
         return Results{y.view(c["x"].sizes())};
       }},
      {"rms_norm", [](const Case& c) { return Results{ops::rms_norm(c["x"], c["weight"], 1e-6)}; }},
      {"rms_norm_plain", [](const Case& c) { return Results{ops::rms_norm(c["x"], ones(c, "x"), 1e-6)}; }},
      {"sdpa", attention()},
      {"sdpa_causal", attention({.causal = true})},
      {"sdpa_causal_rect", attention({.causal = true})},
      {"sdpa_cross", attention()},
      {"sdpa_padding", attention({}, true)},
      {"sdpa_causal_padding", attention({.causal = true}, true)},
      {"sdpa_grouped", attention({.causal = true})},
      {"sdpa_scaled", attention({.scale = 0.3})},
      {"rotary", [](const Case& c) { return Results{ops::rotary_embedding(c["x"])}; }},
      {"rotary_start7", [](const Case& c) { return Results{ops::rotary_embedding(c["x"], 7)}; }},
      {"conv2d_patch",
       [](const Case& c) {
         return Results{ops::conv2d(c["x"], c["weight"], c["bias"], {.stride = {4, 4}})};
       }},
      {"topk_last", [](const Case& c) { return both(ops::topk(c["x"], 3)); }},
      {"topk_smallest", [](const Case& c) { return both(ops::topk(c["x"], 3, -1, false)); }},
      {"topk_first", [](const Case& c) { return both(ops::topk(c["x"], 2, 0)); }},
      {"sort", [](const Case& c) { return both(ops::sort(c["x"])); }},
      {"sort_descending_first", [](const Case& c) { return both(ops::sort(c["x"], 0, true)); }},
      {"sort_stable", [](const Case& c) { return both(ops::sort(c["x"])); }},
      {"sort_stable_descending", [](const Case& c) { return both(ops::sort(c["x"], -1, true)); }},
      {"gather_last", [](const Case& c) { return Results{ops::gather(c["x"], 1, c["index"])}; }},
      {"gather_first", [](const Case& c) { return Results{ops::gather(c["x"], 0, c["index"])}; }},
      {"scatter", [](const Case& c) { return Results{ops::scatter(c["x"], 1, c["index"], c["src"])}; }},
      {"scatter_add", [](const Case& c) { return Results{ops::scatter_add(c["x"], 1, c["index"], c["src"])}; }},
      {"index_select_first", [](const Case& c) { return Results{ops::index_select(c["x"], 0, c["index"])}; }},
      {"index_select_last", [](const Case& c) { return Results{ops::index_select(c["x"], 1, c["index"])}; }},
  };
  add_convolutions(cases);
  add_images(cases);
  const std::pair<const char*, int64_t> dims[] = {{"last", -1}, {"first", 0}, {"middle", 1}};
  for (const auto& [tag, dim] : dims) {
    cases[std::string("softmax_") + tag] = softmax(false, dim);
    cases[std::string("log_softmax_") + tag] = softmax(true, dim);
  }
  const std::pair<const char*, ops::Reduction> reductions[] = {
      {"mean", ops::Reduction::kMean}, {"sum", ops::Reduction::kSum}, {"none", ops::Reduction::kNone}};
  for (const auto& [tag, reduction] : reductions)
    for (const char* targets : {"all", "ignore"}) {
      cases[std::string("cross_entropy_") + tag + "_hard_" + targets] = cross_entropy(reduction, 0);
      cases[std::string("cross_entropy_") + tag + "_smooth_" + targets] = cross_entropy(reduction, 0.1);
    }
  return cases;
}

class OpsReference : public testing::TestWithParam<DType> {};

TEST_P(OpsReference, ResultsAndGradients) {
  const double tolerance = GetParam() == kF64 ? 1e-10 : 1e-4;
  io::TensorMap file;
  for (const char* name : {"/ops.safetensors", "/convolutions.safetensors", "/pixel_ops.safetensors"})
    file.merge(io::load_safetensors(std::string(tests::kReferenceDir) + name).tensors);
  const auto expect_close = [&](const Tensor& got, const Tensor& want, const std::string& what) {
    ASSERT_TRUE(got.defined()) << what;
    ASSERT_EQ(to_string(got.sizes()), to_string(want.sizes())) << what;
    const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
    double largest = 1;
    for (double v : b) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * largest) << what << " at " << i;
  };
  const std::map<std::string, RunCase> cases = make_cases();
  size_t met = 0;
  for (const auto& [name, unused] : file) {
    if (!name.ends_with(".out")) continue;
    const std::string label = name.substr(0, name.size() - 4);
    const auto found = cases.find(label);
    ASSERT_NE(found, cases.end()) << "the test does not know the case " << label;
    ++met;
    SCOPED_TRACE(label);
    Case c{GetParam(), {}};
    for (const auto& [key, tensor] : file) {
      if (!key.starts_with(label + ".in.")) continue;
      Tensor input = is_floating(tensor.dtype()) ? tensor.to(c.dtype).clone() : tensor;
      if (is_floating(input.dtype())) input.requires_grad_();
      c.in[key.substr(label.size() + 4)] = input;
    }
    const Results results = found->second(c);
    expect_close(results[0], file.at(label + ".out"), "result");
    for (size_t i = 1; i < results.size(); ++i)
      expect_close(results[i], file.at(label + ".out." + std::to_string(i)), "result " + std::to_string(i));
    results[0].backward(file.at(label + ".grad_out").to(c.dtype));
    // In f32 a value of 1000 leaves three digits for what normalisation keeps.
    if (label == "layer_norm_far" && c.dtype == kF32) continue;
    for (const auto& [input, tensor] : c.in)
      if (is_floating(tensor.dtype()))
        expect_close(tensor.grad(), file.at(label + ".grad." + input), "gradient of " + input);
  }
  EXPECT_EQ(met, cases.size());
}

INSTANTIATE_TEST_SUITE_P(DTypes, OpsReference, testing::Values(kF64, kF32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rondo

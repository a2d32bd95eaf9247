// Convolution over one and two dimensions, and its transpose.
//
// Three ops are closed under differentiation. For y = conv2d(x, w), conv2d_grad_input(g, w) is the gradient of x and
// conv2d_grad_weight(g, x) that of w. All three are linear in each operand, and the gradient of each is made of the
// other two. A transposed convolution is conv2d_grad_input.
//
// Results have the layout that PyTorch gives them: channels last if an operand (B, C, H, W) is channels last (Note
// [Channels last]). Their bits do not depend on the layout.
//
// On CUDA, cuDNN serves f32, bf16 and f16. Calls for which it has no plan, calls in f64, and all calls if there is no
// cuDNN run as the ops of `decompose`.
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/channels_last.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/called_as.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

Convolution Convolution::of(const Attrs& attrs) {
  const auto& i = attrs.ints;
  return {
      .stride = {i[0], i[1]}, .dilation = {i[2], i[3]}, .before = {i[4], i[5]}, .after = {i[6], i[7]}, .groups = i[8]};
}
Attrs Convolution::attrs() const {
  return {.ints = {stride[0], stride[1], dilation[0], dilation[1], before[0], before[1], after[0], after[1], groups,
                   static_cast<int64_t>(ResultLayout::kOfOperands)}};
}
Attrs Convolution::attrs(Extent size) const {
  Attrs all = attrs();
  for (int64_t n : size) all.ints.push_back(n);
  return all;
}

namespace {

// Formats an extent: "[3, 3]", or "3" for a convolution over one dimension.
std::string text(Extent e, int spatial) {
  return spatial == 1 ? absl::StrCat(e[1]) : absl::StrCat("[", e[0], ", ", e[1], "]");
}

}  // namespace

namespace {
// True if a number is below `least` or above kMost. Sums of a few products of numbers up to kMost do not overflow.
constexpr int64_t kMost = int64_t{1} << 30;
bool outside(Extent e, int64_t least) { return std::min(e[0], e[1]) < least || std::max(e[0], e[1]) > kMost; }
// Returns the message for numbers that are outside(). `too_small`: the text for numbers below the least value.
std::string outside_text(const char* what, const char* too_small, Extent e, int spatial) {
  const bool large = std::max(e[0], e[1]) > kMost;
  return absl::StrCat("the ", what, " ", large ? absl::StrCat("may be at most ", kMost) : too_small, ", it is ",
                      text(e, spatial));
}
}  // namespace

std::string Convolution::own_problem(int spatial) const {
  if (outside(stride, 1)) return outside_text("stride", "must be positive", stride, spatial);
  if (outside(dilation, 1)) return outside_text("dilation", "must be positive", dilation, spatial);
  if (outside(before, 0) || outside(after, 0))
    return outside_text("padding", "may not be negative", outside(before, 0) ? before : after, spatial);
  if (groups < 1) return absl::StrCat("the number of groups must be positive, it is ", groups);
  return "";
}

std::string Convolution::problem(const Dims& x, const Dims& weight, int spatial) const {
  if (std::string own = own_problem(spatial); !own.empty()) return own;
  const int64_t channels = x[1], outputs = weight[0], each = weight[1];
  const Extent kernel = {weight[2], weight[3]};
  if (outputs < 1 || each < 1 || outside(kernel, 1)) return "the weight has no elements";
  if (channels % groups != 0 || channels / groups != each)
    return absl::StrCat("the weight is for ", each, " channels in each of ", counted(groups, "group"),
                        ", and the input has ", channels, " channels");
  if (outputs % groups != 0)
    return absl::StrCat("the ", outputs, " output channels cannot be divided among ", groups, " groups");
  if (outside({x[2], x[3]}, 0)) return "the input is too large";
  const Extent padded = {x[2] + before[0] + after[0], x[3] + before[1] + after[1]},
               reaches = {reach(0, kernel[0]), reach(1, kernel[1])};
  for (int d = 0; d < 2; ++d)
    if (reaches[d] > padded[d])
      return absl::StrCat("the kernel ", text(kernel, spatial),
                          reaches == kernel ? "" : absl::StrCat(", dilated ", text(reaches, spatial), ","),
                          " is larger than the padded input ", text(padded, spatial));
  return "";
}

namespace {

// Fails unless inputs `a` and `b` have rank 4 and one floating dtype, and there are `n_ints` integers.
Convolution checked(InferContext& c, size_t n_ints) {
  if (c.attrs().ints.size() != n_ints) c.fail("has another number of integers");
  for (int i = 0; i < 2; ++i) {
    c.require_floating(i);
    if (c.sizes(i).rank() != 4) c.fail("needs tensors (B, C, H, W) and (O, C / groups, kh, kw)");
  }
  c.require_same_dtype(0, 1);
  return Convolution::of(c.attrs());
}
// Fails unless x can be convolved with weight and, if `grad` is given, the result has the sizes `grad`.
void check_shapes(InferContext& c, const Convolution& conv, const Dims& x, const Dims& weight, const Dims* grad) {
  if (const std::string problem = conv.problem(x, weight); !problem.empty()) c.fail(problem);
  const Dims y = {x[0], weight[0], conv.output_size(0, x[2], weight[2]), conv.output_size(1, x[3], weight[3])};
  if (grad != nullptr && !(*grad == y)) c.fail(absl::StrCat("the gradient must be ", to_string(y)));
}
void result(InferContext& c, const Dims& sizes) {
  const auto layout = static_cast<ResultLayout>(c.integer(Convolution::kLayoutInt));
  bool last = layout == ResultLayout::kChannelsLast;
  for (int i = 0; i < 2 && layout == ResultLayout::kOfOperands; ++i)
    last = last || is_channels_last(c.sizes(i), c.strides(i));
  if (last) c.strided_output(0, c.dtype(0), sizes, channels_last_strides(sizes));
  else c.output(0, c.dtype(0), sizes);
}

// ---- The decomposition: a product for each element of the kernel

Tensor widened(const Tensor& t) { return t.to(compute_dtype(t.dtype())); }

// Returns zeros, with `size` elements along `dim`, and `part` at the indices begin, begin + step, ...
Tensor among_zeros(const Tensor& part, int64_t dim, int64_t size, int64_t begin, int64_t step) {
  if (part.size(dim) == size) return part;
  Dims sizes = part.sizes();
  sizes[static_cast<int>(dim)] = size;
  Attrs attrs;
  attrs.ints.assign(sizes.begin(), sizes.end());
  for (int64_t n : {dim, begin, step}) attrs.ints.push_back(n);
  return call(kSliceGrad, {part}, attrs);
}

struct Parts {
  Convolution conv;
  int64_t B, C, O;
  Extent input, kernel, output, padded;
  Parts(const Convolution& conv, const Dims& x, const Dims& weight) : conv(conv), B(x[0]), C(x[1]), O(weight[0]) {
    for (int d = 0; d < 2; ++d) {
      input[d] = x[2 + d], kernel[d] = weight[2 + d];
      output[d] = conv.output_size(d, input[d], kernel[d]);
      padded[d] = input[d] + conv.before[d] + conv.after[d];
    }
  }
  int64_t pixels() const { return output[0] * output[1]; }
  Tensor pad(const Tensor& x) const {
    return among_zeros(among_zeros(x, 2, padded[0], conv.before[0], 1), 3, padded[1], conv.before[1], 1);
  }
  // Returns the pixels of padded x that element (i, j) of the kernel reads: (B, G, C / G, pixels).
  Tensor read(const Tensor& padded_x, int64_t i, int64_t j) const {
    Tensor part = padded_x;
    const Extent at = {i, j};
    for (int d = 0; d < 2; ++d) {
      const int64_t begin = at[d] * conv.dilation[d], end = begin + (output[d] - 1) * conv.stride[d] + 1;
      part = slice(part, 2 + d, {begin, end, conv.stride[d]});
    }
    return reshape(part, {B, conv.groups, C / conv.groups, pixels()});
  }
  // Computes the gradient of read(). The result has the size of padded x.
  Tensor read_grad(const Tensor& grad, int64_t i, int64_t j) const {
    Tensor part = reshape(grad, {B, C, output[0], output[1]});
    const Extent at = {i, j};
    for (int d = 1; d >= 0; --d) part = among_zeros(part, 2 + d, padded[d], at[d] * conv.dilation[d], conv.stride[d]);
    return part;
  }
  // Returns element (i, j) of the kernel: (G, O / G, C / G).
  Tensor weight_at(const Tensor& weight, int64_t i, int64_t j) const {
    return reshape(select(select(weight, 3, j), 2, i), {conv.groups, O / conv.groups, C / conv.groups});
  }
  Tensor by_group(const Tensor& grad) const { return reshape(grad, {B, conv.groups, O / conv.groups, pixels()}); }
  // Calls fn(i, j) for each element of the kernel.
  template <class F> void each(F fn) const {
    for (int64_t i = 0; i < kernel[0]; ++i)
      for (int64_t j = 0; j < kernel[1]; ++j) fn(i, j);
  }
};

void add_to(Tensor& sum, const Tensor& term) { sum = sum.defined() ? sum + term : term; }

}  // namespace

// Inputs x (B, C, H, W), weight (O, C / groups, kh, kw), bias (O) or undefined. ints: a Convolution.
constexpr OpDef kConv2d = {
    .name = "conv2d",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst | kSecond, .product = true},
    .amp = AmpPolicy::kLower,
    .infer =
        [](InferContext& c) {
          const Convolution conv = checked(c, Convolution::kInts);
          const Dims &x = c.sizes(0), &w = c.sizes(1);
          check_shapes(c, conv, x, w, nullptr);
          if (c.has(2)) {
            c.require_same_dtype(0, 2);
            if (!(c.sizes(2) == Dims{w[0]})) c.fail(absl::StrCat("bias must be [", w[0], "]"));
          }
          result(c, {x[0], w[0], conv.output_size(0, x[2], w[2]), conv.output_size(1, x[3], w[3])});
        },
    .host = {&cpu::conv2d_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Parts p(Convolution::of(attrs), in[0].sizes(), in[1].sizes());
          const Tensor x = p.pad(widened(in[0])), w = widened(in[1]);
          Tensor y;
          p.each([&](int64_t i, int64_t j) { add_to(y, matmul(p.weight_at(w, i, j), p.read(x, i, j))); });
          y = reshape(y, {p.B, p.O, p.output[0], p.output[1]});
          if (in.size() > 2 && in[2].defined()) y = y + reshape(widened(in[2]), {p.O, 1, 1});
          out[0] = y.to(in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          const Convolution conv = Convolution::of(g.attrs());
          const Dims &x = g.input_sizes(0), &w = g.input_sizes(1);
          if (g.needs(0)) g.set(0, call(kConv2dGradInput, {g.grad_out(), g.input(1)}, conv.attrs({x[2], x[3]})));
          if (g.needs(1)) {
            const Tensor grad = call(kConv2dGradWeight, {g.grad_out(), g.input(0)}, conv.attrs({w[2], w[3]}));
            // The gradient gets the weight's layout only if x's gradient is wanted, too. If it is not wanted, eager
            // execution has not saved the weight and does not know its layout. A region always has the weight, but must
            // give the same layout.
            const bool last = g.needs(0) && lies_channels_last(g.input(1));
            g.set(1, last ? with_strides(grad, channels_last_strides(w)) : grad);
          }
          if (g.needs(2)) g.set(2, sum(g.grad_out(), {0, 2, 3}));
        },
    .trait = trait::Images{.layout_int = Convolution::kLayoutInt},
    .fuse_parts = false,
};

// Inputs grad (B, O, oh, ow), weight; output (B, C, H, W). ints: a Convolution, H, W.
constexpr OpDef kConv2dGradInput = {
    .name = "conv2d_grad_input",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst | kSecond, .product = true},
    .amp = AmpPolicy::kLower,
    .infer =
        [](InferContext& c) {
          const Convolution conv = checked(c, Convolution::kInts + 2);
          const Extent size = Convolution::size_in(c.attrs());
          int64_t channels;
          if (__builtin_mul_overflow(c.sizes(1)[1], conv.groups, &channels)) channels = -1;
          const Dims x = {c.sizes(0)[0], channels, size[0], size[1]};
          check_shapes(c, conv, x, c.sizes(1), &c.sizes(0));
          result(c, x);
        },
    .host = {&cpu::conv2d_grad_input_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Convolution conv = Convolution::of(attrs);
          const Extent size = Convolution::size_in(attrs);
          const Parts p(conv, {in[0].size(0), in[1].size(1) * conv.groups, size[0], size[1]}, in[1].sizes());
          const Tensor grad = p.by_group(widened(in[0])), w = widened(in[1]);
          Tensor x;
          p.each([&](int64_t i, int64_t j) {
            add_to(x, p.read_grad(matmul(transpose(p.weight_at(w, i, j), 1, 2), grad), i, j));
          });
          for (int d = 0; d < 2; ++d) x = slice(x, 2 + d, {conv.before[d], conv.before[d] + size[d]});
          out[0] = x.to(in[0].dtype()).contiguous();
        },
    .grad =
        [](const GradContext& g) {
          const Convolution conv = Convolution::of(g.attrs());
          const Dims& w = g.input_sizes(1);
          if (g.needs(0)) g.set(0, call(kConv2d, {g.grad_out(), g.input(1)}, conv.attrs()));
          if (g.needs(1)) g.set(1, call(kConv2dGradWeight, {g.input(0), g.grad_out()}, conv.attrs({w[2], w[3]})));
        },
    .trait = trait::Images{.layout_int = Convolution::kLayoutInt},
    .fuse_parts = false,
};

// Inputs grad (B, O, oh, ow), x (B, C, H, W); output (O, C / groups, kh, kw). ints: a Convolution, kh, kw.
constexpr OpDef kConv2dGradWeight = {
    .name = "conv2d_grad_weight",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kFirst | kSecond, .product = true},
    .amp = AmpPolicy::kLower,
    .infer =
        [](InferContext& c) {
          const Convolution conv = checked(c, Convolution::kInts + 2);
          const Extent size = Convolution::size_in(c.attrs());
          const Dims w = {c.sizes(0)[1], c.sizes(1)[1] / std::max<int64_t>(conv.groups, 1), size[0], size[1]};
          check_shapes(c, conv, c.sizes(1), w, &c.sizes(0));
          c.output(0, c.dtype(0), w);
        },
    .host = {&cpu::conv2d_grad_weight_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const Convolution conv = Convolution::of(attrs);
          const Extent size = Convolution::size_in(attrs);
          const Dims sizes = {in[0].size(1), in[1].size(1) / conv.groups, size[0], size[1]};
          const Parts p(conv, in[1].sizes(), sizes);
          // Moves the batch next to the pixels, so that one product sums over both.
          const auto gather = [&](const Tensor& t) {  // (B, G, n, pixels) -> (G, n, B pixels)
            return reshape(permute(t, {1, 2, 0, 3}), {conv.groups, t.size(2), p.B * p.pixels()});
          };
          const Tensor grad = gather(p.by_group(widened(in[0]))), x = p.pad(widened(in[1]));
          std::vector<Tensor> parts;
          p.each([&](int64_t i, int64_t j) {
            const Tensor part = matmul(grad, transpose(gather(p.read(x, i, j)), 1, 2));
            parts.push_back(reshape(part, {sizes[0], sizes[1], 1}));
          });
          out[0] = reshape(cat(parts, 2), sizes).to(in[0].dtype());
        },
    .grad =
        [](const GradContext& g) {
          const Convolution conv = Convolution::of(g.attrs());
          const Dims& x = g.input_sizes(1);
          if (g.needs(0)) g.set(0, call(kConv2d, {g.input(1), g.grad_out()}, conv.attrs()));
          if (g.needs(1)) g.set(1, call(kConv2dGradInput, {g.input(0), g.grad_out()}, conv.attrs({x[2], x[3]})));
        },
    .trait = trait::Images{},
    .channels_last = &call_as_usual,
    .fuse_parts = false,
};

// ---- Public functions

namespace {

// Checks what all convolutions over `spatial` dimensions require of their operands, before shapes are read.
void check_operands(const char* op, const TensorArg& x, const TensorArg& weight, int spatial) {
  require_defined(op, x);
  require_defined(op, weight);
  const int rank = 2 + spatial;
  if (x.tensor.rank() != rank || weight.tensor.rank() != rank)
    throw_op_error(
        op,
        absl::StrCat("needs x ", spatial == 1 ? "(B, C, W)" : "(B, C, H, W)", " and a weight of ", rank,
                     " dimensions; got x ", to_string(x.tensor.sizes()), ", weight ", to_string(weight.tensor.sizes())),
        x.where);
}
[[noreturn]] void fail(const char* op, const TensorArg& x, const TensorArg& weight, std::string_view problem) {
  throw_op_error(op,
                 absl::StrCat(std::string(problem), "; got x ", to_string(x.tensor.sizes()), ", weight ",
                              to_string(weight.tensor.sizes())),
                 x.where);
}
// Sets conv.before and conv.after to the padding `p` for a kernel of this size.
template <int N>
void pad(Convolution& conv, const ConvPadding<N>& p, Extent kernel, const char* op, const TensorArg& x,
         const TensorArg& weight) {
  if (const std::string problem = conv.own_problem(N); !problem.empty()) fail(op, x, weight, problem);
  if (outside(kernel, 1)) fail(op, x, weight, "the kernel must have a positive size");
  for (int d = 0; d < N; ++d) {
    const int at = 2 - N + d;
    if (!p.same) {
      conv.before[at] = conv.after[at] = p.size[d];
      continue;
    }
    if (conv.stride[at] != 1)
      fail(op, x, weight, absl::StrCat("padding that keeps the size needs stride 1, it is ", conv.stride[at]));
    const int64_t all = conv.reach(at, kernel[at]) - 1;
    conv.before[at] = all / 2;
    conv.after[at] = all - all / 2;  // as in PyTorch, the odd zero is at the end
  }
}
// Views (B, C, W) as (B, C, 1, W).
Tensor with_height(const Tensor& t) { return unsqueeze(t, 2); }

}  // namespace

Tensor conv2d(TensorArg x, TensorArg weight, TensorArg bias, Conv2dOptions options) {
  check_operands("conv2d", x, weight, 2);
  Convolution conv{.stride = {options.stride[0], options.stride[1]},
                   .dilation = {options.dilation[0], options.dilation[1]},
                   .groups = options.groups};
  pad(conv, options.padding, {weight.tensor.size(2), weight.tensor.size(3)}, "conv2d", x, weight);
  return call(kConv2d, {x, weight, bias}, conv.attrs());
}

Tensor conv1d(TensorArg x, TensorArg weight, TensorArg bias, Conv1dOptions options) {
  check_operands("conv1d", x, weight, 1);
  const CalledAs name("conv1d", kConv2d.name);
  Convolution conv{.stride = {1, options.stride[0]}, .dilation = {1, options.dilation[0]}, .groups = options.groups};
  pad(conv, options.padding, {1, weight.tensor.size(2)}, "conv1d", x, weight);
  const Tensor image = with_height(x.tensor), kernel = with_height(weight.tensor);
  if (const std::string problem = conv.problem(image.sizes(), kernel.sizes(), 1); !problem.empty())
    fail("conv1d", x, weight, problem);
  return squeeze(call(kConv2d, {{image, x.where}, {kernel, weight.where}, bias}, conv.attrs()), 2);
}

Tensor conv_transpose2d(TensorArg x, TensorArg weight, TensorArg bias, ConvTranspose2dOptions options) {
  constexpr const char* kOp = "conv_transpose2d";
  check_operands(kOp, x, weight, 2);
  const Convolution conv{.stride = {options.stride[0], options.stride[1]},
                         .dilation = {options.dilation[0], options.dilation[1]},
                         .before = {options.padding[0], options.padding[1]},
                         .after = {options.padding[0], options.padding[1]},
                         .groups = options.groups};
  const Dims &in = x.tensor.sizes(), &w = weight.tensor.sizes();
  if (const std::string problem = conv.own_problem(); !problem.empty()) fail(kOp, x, weight, problem);
  if (outside({w[2], w[3]}, 1)) fail(kOp, x, weight, "the kernel must have a positive size");
  if (w[0] != in[1])
    fail(kOp, x, weight, absl::StrCat("the weight is for ", w[0], " channels, and the input has ", in[1]));
  Extent size;
  int64_t channels;
  for (int d = 0; d < 2; ++d) {
    const int64_t more = options.output_padding[d], most = std::max(conv.stride[d], conv.dilation[d]);
    if (more < 0 || more >= most)
      fail(kOp, x, weight,
           absl::StrCat("output_padding must be at least 0 and less than the stride or the dilation, ", most,
                        "; it is ", more));
    if (in[2 + d] < 1) fail(kOp, x, weight, "the input has no pixels");
    if (outside({in[2 + d], 1}, 1)) fail(kOp, x, weight, "the input is too large");
    size[d] = (in[2 + d] - 1) * conv.stride[d] + conv.reach(d, w[2 + d]) - 2 * conv.before[d] + more;
    if (size[d] < 1)
      fail(kOp, x, weight,
           absl::StrCat("the result would have size ", size[d], " along dimension ", 2 + d, "; the padding is ",
                        conv.before[d]));
  }
  if (__builtin_mul_overflow(w[1], conv.groups, &channels)) channels = -1;
  if (options.output_padding[0] >= conv.stride[0] || options.output_padding[1] >= conv.stride[1]) {
    // With a dilation above the stride, the result may be so large that a convolution of it gives more pixels than the
    // input has. Zeros at the input's end make up for the difference.
    const auto whole = [&](int d) { return options.output_padding[d] / conv.stride[d]; };
    const auto rest = [&](int d) { return options.output_padding[d] % conv.stride[d]; };
    const Tensor longer = pad(x, {0, whole(1), 0, whole(0)});
    options.output_padding = {rest(0), rest(1)};
    return conv_transpose2d({longer, x.where}, weight, bias, options);
  }
  // Checks the convolution whose gradient this call computes. That convolution maps the result to the input.
  if (const std::string problem = conv.problem({in[0], channels, size[0], size[1]}, w); !problem.empty())
    fail(kOp, x, weight, problem);
  const CalledAs name(kOp, kConv2dGradInput.name);
  const Tensor y = call(kConv2dGradInput, {x, weight}, conv.attrs(size));
  if (!bias.tensor.defined()) return y;
  if (!(bias.tensor.sizes() == Dims{channels}))
    fail(kOp, x, weight, absl::StrCat("bias must be [", channels, "], it is ", to_string(bias.tensor.sizes())));
  if (!is_channels_last(y.sizes(), y.strides())) return y + reshape(bias, {channels, 1, 1});
  return permute(permute(y, {0, 2, 3, 1}) + bias.tensor, {0, 3, 1, 2});
}

constexpr OpList kConvolutionOps = {&kConv2d, &kConv2dGradInput, &kConv2dGradWeight};

}  // namespace rondo::ops

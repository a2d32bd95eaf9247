#include "rondo/runtime/cpu/convolution_library.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/cpu/transpose_tiles.h"
#include "rondo/runtime/cpu/wrong_kernels.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/onednn/onednn.h"
#include "rondo/runtime/onednn/onednn_versions.h"

namespace rondo::cpu {

namespace {

using Computes = ConvolutionCall::Computes;

dnnl::memory::data_type library_float(DType dtype) {
  return dtype == kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Returns the layout of activations (images, channels, rows, columns). If `last`, it is channels last. If not, it is
// the usual layout (B, C, H, W), with the strides of the images of `whole`, or dense if `whole` is null.
Desc activations(const ConvolutionCall& part, bool input, bool last, const ConvolutionCall* whole) {
  const int64_t c = input ? part.channels : part.outputs;
  const auto& size = input ? part.input : part.output;
  const int64_t h = size[0], w = size[1];
  const int64_t all_rows = whole == nullptr ? h : (input ? whole->input : whole->output)[0],
                all_channels = whole == nullptr ? c
                               : input          ? whole->channels
                                                : whole->outputs;
  const dnnl::memory::dims strides = last ? dnnl::memory::dims{h * w * c, 1, w * c, c}
                                          : dnnl::memory::dims{all_channels * all_rows * w, all_rows * w, w, 1};
  return {{part.batch, c, h, w}, library_float(part.dtype), strides};
}

dnnl::memory::dims weight_dims(const ConvolutionCall& c) {
  const int64_t each = c.channels / c.groups;
  if (c.groups == 1) return {c.outputs, each, c.kernel[0], c.kernel[1]};
  return {c.groups, c.outputs / c.groups, each, c.kernel[0], c.kernel[1]};
}
// Returns the caller's layout of the weight.
Desc given_weight(const ConvolutionCall& c) {
  const int64_t each = c.channels / c.groups, h = c.kernel[0], w = c.kernel[1];
  dnnl::memory::dims strides = c.weight_last ? dnnl::memory::dims{h * w * each, 1, w * each, each}
                                             : dnnl::memory::dims{each * h * w, h * w, w, 1};
  if (c.groups > 1) strides.insert(strides.begin(), strides[0] * (c.outputs / c.groups));
  return {weight_dims(c), library_float(c.dtype), strides};
}

// Returns the arguments for pack_weight() and unpack_weights(), or nullopt if these do not support the layout `packed`.
std::optional<WeightBlocks> blocks_of(const ConvolutionCall& call, const Desc& packed) {
  const bool unpacks = call.computes == Computes::kWeight;  // then `packed` is f32, for sums
  if ((call.dtype != kF32 && !unpacks) || type_of(packed) != dnnl::memory::data_type::f32) return std::nullopt;
  const std::optional<BlockedLayout> layout = blocked_layout(packed);
  const dnnl::memory::dims two = {kWeightBlock, kWeightBlock};
  if (!layout || layout->block_sizes != two || layout->padded_sizes != layout->sizes) return std::nullopt;
  const dnnl::memory::dims& sizes = layout->sizes;
  const dnnl::memory::dims& strides = layout->strides;
  const size_t output = sizes.size() - 4, channel = output + 1;
  const auto outer = static_cast<size_t>(layout->block_dims[0]), last = static_cast<size_t>(layout->block_dims[1]);
  if (outer + last != output + channel || (last != output && last != channel)) return std::nullopt;
  WeightBlocks blocks{.groups = call.groups,
                      .outputs = sizes[output],
                      .channels = sizes[channel],
                      .taps = call.kernel[0] * call.kernel[1],
                      .channels_last = call.weight_last,
                      .outputs_inner = last == output,
                      .group_step = output > 0 ? strides[0] : 0,
                      .output_step = strides[output],
                      .channel_step = strides[channel],
                      .tap_step = strides[channel + 2]};
  const bool rows_follow = call.kernel[0] == 1 || strides[channel + 1] == call.kernel[1] * blocks.tap_step;
  const bool known = rows_follow && (blocks.outputs_inner || !unpacks);
  return known ? std::optional(blocks) : std::nullopt;
}

// For some convolutions an older kernel of the library is faster than its first choice, a newer kernel. Returns the
// prefix of the older kernel's name, or null to keep the first choice. Measured, the newer and then the older kernel:
// - 1x1 in f32, (256, 56, 56) to 128 channels, one thread of Zen 4, version 2.6: 82 and 115 GFLOP/s.
// - 1x1 in f32 on an Intel processor with AMX, versions 2.6 and 3.7: about the same time. The newer kernel takes 0.87
//   to 1.2 of the older one's time, but 0.56 for 2048 to 512 channels of 7 x 7.
// With few pixels, the time to pack the weight matters. Measured for 3x3, 512 to 512 channels:
// - Version 2.6, Zen 4, packing alone: 1.0 and 0.6 ms in f32, 2.5 and 0.4 ms in bf16.
// - Version 3.7, Intel, 7 x 7 pixels, packing and forward: 1.01 and 0.86 ms in bf16, 2.48 and 2.44 ms in f32.
// - The same for the gradient of the input, for which only version 3 has a newer kernel: in f32 4.0 and 2.4 ms (with
//   AVX2 3.1 and 2.6 ms); in bf16 1.12 and 1.02 ms, but 1.32 and 1.48 ms for two images. So in bf16 the newer kernel is
//   kept.
const char* older_kernel(std::string_view favourite, const ConvolutionCall& part, const ConvolutionCall& whole) {
  constexpr int64_t kFewPixels = 2048;
  const bool few = whole.batch * whole.output[0] * whole.output[1] <= kFewPixels;
  if (favourite.starts_with("brgconv_1x1")) return part.dtype == kF32 ? "jit_1x1" : nullptr;
  if (favourite.starts_with("brg_conv_bwd"))
    return few && part.dtype == kF32 && part.taps() > part.channels / part.groups ? "jit:" : nullptr;
  const bool forward = favourite.starts_with("brgconv:") || favourite.starts_with("brg_conv_fwd");
  return few && forward ? "jit" : nullptr;
}
// Chooses a kernel by older_kernel(). make() returns the kernels of an operation, positioned at the first.
template <class Make> auto preferred(const ConvolutionCall& part, const ConvolutionCall& whole, Make make) {
  auto kernels = make();
  const char* const older = older_kernel(kernels.name(), part, whole);
  if (older == nullptr) return kernels;
  auto others = make();
  while (others.next())
    if (others.name().starts_with(older)) return others;
  return kernels;
}

}  // namespace

// A primitive, and the size of the scratchpad that a run needs.
class LibraryConvolution::Step {
 public:
  struct Argument {
    int name;
    const Desc* desc;
    void* data;
  };
  Step() = default;
  template <class P>
  explicit Step(const Kernels<P>& kernels)
      : primitive_(kernels.make()),
        scratch_(kernels.scratchpad()),
        signals_wait_(moves_stack_pointer(kernels.name())) {}
  // Copies from one layout or type to another.
  Step(const Desc& from, const Desc& to) : from_(from), to_(to) {
    const dnnl::reorder::primitive_desc chosen(library_engine(), from, library_engine(), to, with_own_scratch());
    primitive_ = dnnl::reorder(chosen);
    scratch_ = chosen.scratchpad_desc();
  }
  // A scratchpad of the primitive itself would belong to the thread that made it, so each run allocates one.
  static dnnl::primitive_attr with_own_scratch() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attributes;
  }
  void copy(void* from, void* to) const { run({{DNNL_ARG_FROM, &from_, from}, {DNNL_ARG_TO, &to_, to}}); }
  void run(std::initializer_list<Argument> arguments) const {
    in_library([&] { execute(arguments); });
  }

 private:
  void execute(std::initializer_list<Argument> arguments) const {
    absl::InlinedVector<dnnl::memory, 5> bound;
    absl::InlinedVector<dnnl_exec_arg_t, 5> list;
    const auto add = [&](int name, const Desc& desc, void* data) {
      bound.emplace_back(desc, library_engine(), data);
      list.push_back({name, bound.back().get()});
    };
    for (const Argument& a : arguments)
      if (a.data != nullptr) add(a.name, *a.desc, a.data);
    Storage scratch;
    if (const size_t bytes = scratch_.get_size(); bytes > 0) {
      scratch = Storage::allocate(bytes);
      add(DNNL_ARG_SCRATCHPAD, scratch_, scratch.data());
    }
    const dnnl::stream stream(library_engine());
    const OneLibraryThread alone;
    const SignalsWait held(signals_wait_);
    dnnl::error::wrap_c_api(
        library().dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(list.size()), list.data()),
        "a convolution failed");
  }

  dnnl::primitive primitive_;
  Desc scratch_, from_, to_;
  bool signals_wait_ = false;  // Note [Signals wait] in onednn.h
};

// Converts the activations of a piece between the usual layout and channels last.
class LibraryConvolution::Conversion {
 public:
  // `usual`: the layout of the piece in the caller's images. `reads`: true converts from `usual` to `last`, false back.
  Conversion(const Desc& usual, const Desc& last, bool reads) : reads_(reads) {
    const BlockedLayout layout = *blocked_layout(usual);
    images_ = layout.sizes[0], channels_ = layout.sizes[1], pixels_ = layout.sizes[2] * layout.sizes[3];
    image_ = layout.strides[0], step_ = layout.strides[1];
    is_half_ = type_of(usual) == dnnl::memory::data_type::bf16;
    // The library converts 16-bit numbers line by line. This is faster than Rondo's tiles, unless lines are a multiple
    // of 2 KiB apart: such lines share few sets of the caches.
    if (is_half_ && channels_ * 2 % 2048 != 0) library_.emplace(reads ? usual : last, reads ? last : usual);
  }
  void run(std::byte* usual, std::byte* last) const {
    if (library_.has_value()) return library_->copy(reads_ ? usual : last, reads_ ? last : usual);
    if (is_half_) run_tiles<uint16_t>(usual, last);
    else run_tiles<float>(usual, last);
  }

 private:
  template <class Word> void run_tiles(std::byte* usual, std::byte* last) const {
    Word *const a = reinterpret_cast<Word*>(usual), *const b = reinterpret_cast<Word*>(last);
    if (reads_) transpose_tiles<false, Word>(a, b, images_, image_, channels_, step_, pixels_);
    else transpose_tiles<true, Word>(a, b, images_, image_, channels_, step_, pixels_);
  }
  int64_t images_, channels_, pixels_, step_, image_;
  bool reads_, is_half_;
  std::optional<Step> library_;
};

// A primitive for all pieces of one shape, and the conversions that they need.
class LibraryConvolution::Primitive {
 public:
  // `packed`: the layout of the weight that the other pieces use; null: the library chooses. REQUIRES: `part` has input
  // and output rows, and no negative padding.
  Primitive(const ConvolutionCall& part, const ConvolutionCall& whole, const Desc* packed);
  // False if the library has only its reference kernel.
  bool fast() const { return fast_; }
  bool is_for(const ConvolutionCall& part) const { return part == part_; }
  const Desc& weight() const { return weight_; }
  void run(std::byte* input, std::byte* weight, std::byte* bias, std::byte* output) const;

 private:
  // Chooses the first kernel that is not wrong (wrong_kernels.h).
  template <class P> void set(Kernels<P> kernels) {
    while (is_wrong(kernels.name(), part_))
      if (!kernels.next()) return;
    fast_ = !is_reference(kernels.name());
    weight_ = kernels.layout_of(part_.computes == Computes::kWeight ? dnnl::query::diff_weights_md
                                                                    : dnnl::query::weights_md);
    if (fast_) step_ = Step(kernels);
  }

  ConvolutionCall part_;
  Desc input_, weight_, bias_, output_;  // layouts of the primitive
  bool fast_ = false;
  Step step_;
  // Conversions between the caller's activations and the primitive's; null if the layouts are the same.
  std::unique_ptr<const Conversion> convert_input_, convert_output_;
  // The number of channels of the caller's channels-last output if the primitive reads only some of them; else 0.
  int64_t sliced_ = 0;
};

LibraryConvolution::Primitive::Primitive(const ConvolutionCall& part, const ConvolutionCall& whole, const Desc* packed)
    : part_(part), input_(activations(part, true, true, nullptr)), output_(activations(part, false, true, nullptr)) {
  using dnnl::memory;
  const OneLibraryThread alone;  // the library plans for the current number of threads
  const memory::dims stride = {part.stride[0], part.stride[1]}, dilation = {part.dilation[0] - 1, part.dilation[1] - 1},
                     padding_before = {part.padding_before[0], part.padding_before[1]};
  memory::dims padding_after;
  for (size_t d = 0; d < 2; ++d)  // at least 0, also if kernels do not reach the last rows or columns
    padding_after.push_back(std::max<int64_t>(
        0, (part.output[d] - 1) * part.stride[d] + part.reach(d) - part.input[d] - part.padding_before[d]));
  const auto direct = dnnl::algorithm::convolution_direct;
  // The gradient of the weight is f32: sums of several pieces are rounded only once, after they are added.
  const auto weight_type = part.computes == Computes::kWeight ? memory::data_type::f32 : library_float(part.dtype);
  const Desc any(weight_dims(part), weight_type, memory::format_tag::any);
  const Desc wanted = packed != nullptr ? *packed : any,
             hint_weight(weight_dims(part), library_float(part.dtype), memory::format_tag::any);
  if (part.bias) bias_ = Desc({part.outputs}, library_float(part.dtype), memory::format_tag::x);
  using Forward = Kernels<dnnl::convolution_forward>;
  const dnnl::primitive_attr attributes = Step::with_own_scratch();
  const auto forward = [&](const Desc& weight) {
    return preferred(part, whole, [&] {
      return Forward(attributes, dnnl::prop_kind::forward_training, direct, input_, weight, bias_, output_, stride,
                     dilation, padding_before, padding_after);
    });
  };
  switch (part.computes) {
    case Computes::kOutput: set(forward(wanted)); break;
    case Computes::kInput:
      set(preferred(part, whole, [&] {
        return Kernels<dnnl::convolution_backward_data>(forward(hint_weight), attributes, direct, input_, wanted,
                                                        output_, stride, dilation, padding_before, padding_after);
      }));
      break;
    case Computes::kWeight:
      set(Kernels<dnnl::convolution_backward_weights>(forward(hint_weight), attributes, direct, input_, wanted, output_,
                                                      stride, dilation, padding_before, padding_after));
      break;
  }
  if (!whole.input_last)
    convert_input_ = std::make_unique<const Conversion>(activations(part, true, false, &whole), input_,
                                                        part.computes != Computes::kInput);
  if (whole.output_last && part.outputs < whole.outputs) sliced_ = whole.outputs;
  if (!whole.output_last)
    convert_output_ = std::make_unique<const Conversion>(activations(part, false, false, &whole), output_,
                                                         part.computes != Computes::kOutput);
}

// Copies rows of `bytes` bytes, which are `step` bytes apart in `from`, to adjacent places in `to`.
static void copy_rows(std::byte* to, const std::byte* from, int64_t rows, size_t bytes, size_t step) {
  for (int64_t r = 0; r < rows; ++r, to += bytes, from += step) std::memcpy(to, from, bytes);
}

void LibraryConvolution::Primitive::run(std::byte* input, std::byte* weight, std::byte* bias, std::byte* output) const {
  Storage input_copy, output_copy;
  std::byte *in = input, *out = output;
  if (convert_input_ != nullptr) {
    input_copy = Storage::allocate(input_.get_size());
    in = input_copy.data();
    if (part_.computes != Computes::kInput) convert_input_->run(input, in);
  }
  if (convert_output_ != nullptr) {
    output_copy = Storage::allocate(output_.get_size());
    out = output_copy.data();
    if (part_.computes != Computes::kOutput) convert_output_->run(output, out);
  }
  if (sliced_ > 0) {
    output_copy = Storage::allocate(output_.get_size());
    out = output_copy.data();
    const size_t size = size_of(part_.dtype);
    copy_rows(out, output, part_.batch * part_.output[0] * part_.output[1], static_cast<size_t>(part_.outputs) * size,
              static_cast<size_t>(sliced_) * size);
  }
  switch (part_.computes) {
    case Computes::kOutput:
      step_.run({{DNNL_ARG_SRC, &input_, in},
                 {DNNL_ARG_WEIGHTS, &weight_, weight},
                 {DNNL_ARG_BIAS, &bias_, bias},
                 {DNNL_ARG_DST, &output_, out}});
      if (convert_output_ != nullptr) convert_output_->run(output, out);
      break;
    case Computes::kInput:
      step_.run(
          {{DNNL_ARG_DIFF_SRC, &input_, in}, {DNNL_ARG_WEIGHTS, &weight_, weight}, {DNNL_ARG_DIFF_DST, &output_, out}});
      if (convert_input_ != nullptr) convert_input_->run(input, in);
      break;
    case Computes::kWeight:
      step_.run(
          {{DNNL_ARG_SRC, &input_, in}, {DNNL_ARG_DIFF_WEIGHTS, &weight_, weight}, {DNNL_ARG_DIFF_DST, &output_, out}});
      break;
  }
}

// ---- Pieces

LibraryConvolution::Cut LibraryConvolution::cut_of(const ConvolutionCall& call, bool may_slice) {
  constexpr double kFlops = 6e6, kBytes = 1 << 20;
  constexpr int64_t kMost = 64, kEnough = 16, kRows = 8;
  const int64_t in = call.channels * call.input[0] * call.input[1],
                out = call.outputs * call.output[0] * call.output[1], rows = call.output[0];
  const double work = std::max(call.flops_of_image() / kFlops,
                               static_cast<double>(in + out) * static_cast<double>(size_of(call.dtype)) / kBytes);
  int64_t wanted = static_cast<int64_t>(
      std::clamp(work * static_cast<double>(call.batch), 1.0, static_cast<double>(kMost)));
  if (call.computes == Computes::kWeight) {
    // Each piece writes sums for the whole weight, which are read again to add them up. This is worthwhile if a piece
    // has at least kPixels pixels.
    constexpr int64_t kPixels = 256, kMostBytes = 64 << 20;
    const int64_t pixels = call.batch * call.output[0] * call.output[1], weights = call.outputs * call.taps();
    const int64_t most = std::min(std::max<int64_t>(1, pixels / kPixels),
                                  std::max<int64_t>(2, kMostBytes / (4 * weights)));
    if (may_slice && call.groups == 1 && most < std::min(wanted, kEnough)) {
      constexpr int64_t kOutputs = 64;  // with fewer output channels, the library's kernels are slower
      int64_t slices = std::min({wanted, kEnough, call.outputs / kOutputs});
      while (slices > 1 && call.outputs % (slices * kWeightBlock) != 0) --slices;
      if (slices > most) return {call.batch, 1, slices};
    }
    wanted = std::min({wanted, most, kEnough});
    wanted = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(wanted)));
  }
  const auto divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (call.batch >= std::min(wanted, kEnough)) return {divide(call.batch, std::min(call.batch, wanted)), 1};
  return {1, std::clamp<int64_t>(divide(std::min(wanted, kEnough), call.batch), 1, std::max<int64_t>(1, rows / kRows))};
}

const LibraryConvolution::Primitive* LibraryConvolution::primitive_of(const ConvolutionCall& part) {
  const auto at = std::find_if(primitives_.begin(), primitives_.end(), [&](const auto& p) { return p->is_for(part); });
  if (at != primitives_.end()) return at->get();
  const Desc* packed = primitives_.empty() ? nullptr : &primitives_[0]->weight();
  std::unique_ptr<const Primitive> made;
  try {
    made = std::make_unique<const Primitive>(part, call_, packed);
  } catch (const dnnl::error&) {
    throw_if_out_of_memory();
    return nullptr;
  }
  if (!made->fast() || (packed != nullptr && made->weight() != *packed)) return nullptr;
  return primitives_.emplace_back(std::move(made)).get();
}

// Adds `slices` pieces; each computes the gradient of the weight for an equal part of the output channels.
bool LibraryConvolution::add_slices(int64_t slices) {
  ConvolutionCall part = call_;
  part.outputs /= slices;
  const Primitive* const primitive = primitive_of(part);
  if (primitive == nullptr) return false;
  // If blocks of outputs are adjacent in memory, the slices together form one weight in blocks.
  blocks_ = blocks_of(part, primitive->weight());
  const int64_t row = part.taps();
  if (!blocks_ || blocks_->output_step != row * kWeightBlock) return false;
  blocks_->outputs = call_.outputs;
  packed_bytes_ = blocks_->numel() * 4;
  for (int64_t s = 0; s < slices; ++s) {
    const int64_t first = s * part.outputs;
    pieces_.push_back({primitive, 0, first * (call_.output_last ? 1 : call_.output[0] * call_.output[1]), first * row});
  }
  return true;
}

// Adds a piece: rows of one image, or several whole images.
bool LibraryConvolution::add_piece(ConvolutionCall part, int64_t input_row, int64_t output_row, int64_t image) {
  if (part.input[0] < 1 || part.output[0] < 1 || part.padding_before[0] < 0) return false;
  // The library computes the number of output rows from the input rows and the padding. So the unused rows at the end
  // of the input must be fewer than the stride.
  const int64_t end = (part.output[0] - 1) * part.stride[0] + part.reach(0) - part.padding_before[0];
  if (part.input[0] - end >= part.stride[0]) return false;
  const Primitive* const primitive = primitive_of(part);
  if (primitive == nullptr) return false;
  const auto offset = [&](bool is_input, int64_t row) {
    const int64_t c = is_input ? call_.channels : call_.outputs;
    const auto& size = is_input ? call_.input : call_.output;
    const bool last = is_input ? call_.input_last : call_.output_last;
    return image * c * size[0] * size[1] + row * size[1] * (last ? c : 1);
  };
  pieces_.push_back({primitive, offset(true, input_row), offset(false, output_row), 0});
  return true;
}

bool LibraryConvolution::prepare(const Cut& cut) {
  primitives_.clear();
  pieces_.clear();
  sums_ = 1;
  if (cut.slices > 1) return add_slices(cut.slices);
  const bool by_input = call_.computes == Computes::kInput;
  const int64_t rows = by_input ? call_.input[0] : call_.output[0], stride = call_.stride[0], reach = call_.reach(0),
                padding_before = call_.padding_before[0];
  for (int64_t image = 0; image < call_.batch; image += cut.images) {
    for (int64_t band = 0; band < cut.bands; ++band) {
      ConvolutionCall part = call_;
      part.batch = std::min(cut.images, call_.batch - image);
      int64_t in = 0, in_end = call_.input[0], out = 0, out_end = call_.output[0];
      const int64_t begin = rows * band / cut.bands, end = rows * (band + 1) / cut.bands;
      if (cut.bands > 1 && by_input) {
        // The output rows that read at least one of the band's input rows.
        in = begin, in_end = end;
        out = std::clamp<int64_t>((begin + padding_before - reach + stride) / stride, 0, call_.output[0]);
        out_end = std::clamp<int64_t>((end - 1 + padding_before) / stride + 1, 0, call_.output[0]);
      } else if (cut.bands > 1) {
        out = begin, out_end = end;
        in = std::clamp<int64_t>(begin * stride - padding_before, 0, call_.input[0]);
        in_end = std::clamp<int64_t>((end - 1) * stride - padding_before + reach, 0, call_.input[0]);
      }
      part.input[0] = in_end - in;
      part.output[0] = out_end - out;
      part.padding_before[0] = padding_before + in - out * stride;
      if (!add_piece(part, in, out, image)) return false;
    }
  }
  plan_packing();
  if (call_.computes == Computes::kWeight) {
    sums_ = static_cast<int64_t>(pieces_.size());
    for (int64_t i = 0; i < sums_; ++i) pieces_[static_cast<size_t>(i)].weight = i * packed_bytes_ / 4;
  }
  return true;
}

// ---- Packing the weight, in chunks for several threads

void LibraryConvolution::plan_packing() {
  const bool unpacks = call_.computes == Computes::kWeight;
  const Desc given = given_weight(call_), packed = primitives_[0]->weight();
  packed_bytes_ = static_cast<int64_t>(packed.get_size());
  packing_.clear();
  blocks_.reset();
  if (given == packed && !unpacks) return;
  blocks_ = blocks_of(call_, packed);
  if (blocks_) return;
  constexpr int64_t kBlock = 64, kElements = 1 << 16;  // kBlock: a multiple of the blocks in the library's layouts
  const dnnl::memory::dims all = sizes_of(given);
  int64_t each = 1;
  for (size_t d = 1; d < all.size(); ++d) each *= all[d];
  const int64_t rows = std::max<int64_t>(1, kElements / each / kBlock) * kBlock;
  const auto plan = [&](int64_t step) {
    packing_.clear();
    for (int64_t row = 0; row < all[0]; row += step) {
      dnnl::memory::dims sizes = all, offsets(all.size(), 0);
      sizes[0] = std::min(step, all[0] - row);
      offsets[0] = row;
      const Desc theirs = given.submemory_desc(sizes, offsets), ours = packed.submemory_desc(sizes, offsets);
      packing_.push_back(std::make_unique<const Step>(unpacks ? ours : theirs, unpacks ? theirs : ours));
    }
  };
  const OneLibraryThread alone;
  try {
    plan(rows);
  } catch (const dnnl::error&) {  // the layout cannot be cut between these rows
    throw_if_out_of_memory();
    packing_.clear();
    packing_.push_back(std::make_unique<const Step>(unpacks ? packed : given, unpacks ? given : packed));
  }
}

void LibraryConvolution::pack(std::byte* from, std::byte* to) const {
  if (blocks_) return pack_weight(*blocks_, reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to));
  parallel_for(static_cast<int64_t>(packing_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) packing_[static_cast<size_t>(i)]->copy(from, to);
  });
}

// Adds the sums of all parts to those of the first, in order.
void LibraryConvolution::add_parts(float* sums) const {
  const int64_t parts = sums_, n = packed_bytes_ / 4;
  if (parts == 1) return;
  constexpr int64_t kGrain = 1 << 12;
  parallel_for((n + kGrain - 1) / kGrain, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t from = chunk * kGrain, to = std::min(n, from + kGrain);
      for (int64_t part = 1; part < parts; ++part)
        for (int64_t i = from; i < to; ++i) sums[i] += sums[part * n + i];
    }
  });
}

void LibraryConvolution::run(const ConvolutionOperands& operands) const {
  const int64_t size = static_cast<int64_t>(size_of(call_.dtype));
  const bool sums = call_.computes == Computes::kWeight;
  Storage packed;
  std::byte* weight = operands.weight;
  if (packs()) {
    packed = Storage::allocate(static_cast<size_t>(packed_bytes_) * static_cast<size_t>(sums_));
    weight = packed.data();
    if (!sums) pack(operands.weight, weight);
  }
  parallel_for(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      piece.primitive->run(operands.input + piece.input * size, weight + piece.weight * 4, operands.bias,
                           operands.output + piece.output * size);
    }
  });
  if (!sums) return;
  if (blocks_) {
    const auto unpack = [&](auto* to) {
      unpack_weights(*blocks_, reinterpret_cast<const float*>(weight), sums_, packed_bytes_ / 4, to);
    };
    if (call_.dtype == kBF16) unpack(reinterpret_cast<BFloat16*>(operands.weight));
    else unpack(reinterpret_cast<float*>(operands.weight));
    return;
  }
  add_parts(reinterpret_cast<float*>(weight));
  pack(weight, operands.weight);
}

LibraryConvolution::LibraryConvolution(const ConvolutionCall& call) : call_(call) {}
LibraryConvolution::~LibraryConvolution() = default;

namespace {

// The cache also holds calls that the library refuses, as objects without pieces.
using ConvolutionCache = RecentCache<ConvolutionCall, LibraryConvolution>;
ConvolutionCache& convolution_cache() {
  static auto* cache = [] {
    memory::on_trim(&LibraryConvolution::trim);
    return new ConvolutionCache(256);
  }();
  return *cache;
}

}  // namespace

std::shared_ptr<const LibraryConvolution> LibraryConvolution::get(const ConvolutionCall& call) {
  std::shared_ptr<const LibraryConvolution> found = convolution_cache().get(call, [&] {
    std::shared_ptr<LibraryConvolution> made(new LibraryConvolution(call));
    const auto prepare = [&](const Cut& cut) { return in_library([&] { return made->prepare(cut); }); };
    Cut cut = cut_of(call, /*may_slice=*/true);
    bool done = prepare(cut);
    if (!done && cut.slices > 1) done = prepare(cut = cut_of(call, false));
    // The library may refuse bands, or the smaller piece of the last images. Instead of bands, whole images are tried
    // as pieces, and as a last resort all images in one piece.
    if (!done && cut.bands > 1) done = prepare({1, 1});
    if (!done) done = prepare({call.batch, 1});
    if (!done) {
      made->primitives_.clear();
      made->pieces_.clear();
    }
    return std::shared_ptr<const LibraryConvolution>(std::move(made));
  });
  return found->pieces_.empty() ? nullptr : found;
}

void LibraryConvolution::trim() { convolution_cache().clear(); }

}  // namespace rondo::cpu

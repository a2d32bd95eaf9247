// Kernels that make a tensor's first values.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/philox.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cuda {
namespace {

constexpr Source kFill = {"fill", R"cuda(
extern "C" __global__ void rondo_fill(WORD* out, unsigned long long bits, RondoLayout layout) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    write(out + at[0], static_cast<WORD>(bits));
  }
}
)cuda"};

constexpr Source kArange = {"arange", R"cuda(
extern "C" __global__ void rondo_arange(OUT* out, long long n, double first, double step) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(first + static_cast<double>(i) * step));
}
// Unsigned: i * step alone may leave the range that the sum is in.
extern "C" __global__ void rondo_arange_integers(OUT* out, long long n, unsigned long long first,
                                                 unsigned long long step) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(static_cast<long long>(first + static_cast<unsigned long long>(i) * step)));
}
)cuda"};

// Each element has a counter of its own: random.h. The normal distribution's log and cos are CUDA's in f64, which may
// differ from the host's by an ulp of f64; the other numbers are those of the host, bit for bit.
constexpr std::string_view kDraw = R"cuda(
RONDO_DEVICE float uniform_of(unsigned bits) {
  const float middle = (static_cast<float>(bits >> 8) + 0.5f) * 5.9604644775390625e-08f;  // 2^-24
  return middle < 1.0f ? middle : 0.999999940395355224609375f;
}
extern "C" __global__ void rondo_draw_uniform(OUT* out, long long n, unsigned long long seed,
                                              unsigned long long offset) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(uniform_of(philox(seed, i, offset).word[0])));
}
// Box-Muller on two of the four words.
extern "C" __global__ void rondo_draw_normal(OUT* out, long long n, unsigned long long seed,
                                             unsigned long long offset) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const RondoWords bits = philox(seed, i, offset);
    const double radius = sqrt_of(-2.0 * log(static_cast<double>(uniform_of(bits.word[0]))));
    const double angle = 2.0 * 3.14159265358979323846 * static_cast<double>(uniform_of(bits.word[1]));
    write(out + i, convert<OUT>(radius * cos(angle)));
  }
}
extern "C" __global__ void rondo_draw_integers(OUT* out, long long n, unsigned long long seed,
                                               unsigned long long offset, unsigned long long low,
                                               unsigned long long span) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const RondoWords bits = philox(seed, i, offset);
    const unsigned long long word = static_cast<unsigned long long>(bits.word[0]) << 32 | bits.word[1];
    write(out + i, convert<OUT>(static_cast<long long>(low + __umul64hi(word, span))));
  }
}
)cuda";

const Source& draw_source() {
  static const auto* const text = new std::string(absl::StrCat(kPhilox, std::string(kDraw)));
  static const Source source{"draw", *text};
  return source;
}

}  // namespace

void fill_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const Attrs& attrs = context.attrs;
  uint64_t bits = 0;
  visit_dtype(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = attrs.ints.size() == 0 ? ops::convert<T>(attrs.floats[0]) : ops::convert<T>(attrs.ints[0]);
    std::memcpy(&bits, &value, sizeof(T));
  });
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kFill, "rondo_fill", {{"WORD", word_name(out.dtype())}}), out.numel(),
                 address_of(out), bits, layout_of(out.sizes(), out));
}

void arange_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  const int64_t n = out.numel();
  if (n == 0) return;
  const Attrs& attrs = context.attrs;
  const bool integers = attrs.ints.size() > 0;
  const int device = out.device().index;
  const Kernel kernel = kernel_of(device, kArange, integers ? "rondo_arange_integers" : "rondo_arange",
                                  {{"OUT", type_name(out.dtype())}});
  if (integers) launch_threads(device, kernel, n, address_of(out), n, attrs.ints[0], attrs.ints[1]);
  else launch_threads(device, kernel, n, address_of(out), n, attrs.floats[0], attrs.floats[1]);
}

void draw_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  const int64_t n = out.numel();
  if (n == 0) return;
  const auto& ints = context.attrs.ints;
  const int device = out.device().index;
  const auto kernel = [&](const char* name) {
    return kernel_of(device, draw_source(), name, {{"OUT", type_name(out.dtype())}});
  };
  switch (static_cast<ops::Distribution>(ints[0])) {
    case ops::Distribution::kUniform:
      return launch_threads(device, kernel("rondo_draw_uniform"), n, address_of(out), n, ints[1], ints[2]);
    case ops::Distribution::kNormal:
      return launch_threads(device, kernel("rondo_draw_normal"), n, address_of(out), n, ints[1], ints[2]);
    case ops::Distribution::kInteger:
      return launch_threads(device, kernel("rondo_draw_integers"), n, address_of(out), n, ints[1], ints[2], ints[3],
                            ints[4]);
  }
}

}  // namespace rondo::cuda

// Tensors of random numbers. Each element has a counter of its own: random.h. All numbers are those of the host, bit
// for bit.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/random_draw.h"

namespace rondo::cuda {
namespace {

constexpr const char* kDraw = R"cuda(
// The stream (seed, base + increment), of state {seed, base}.
RONDO_DEVICE RondoWords words_of(const unsigned long long* state, unsigned long long increment, long long i) {
  return philox(read(state), static_cast<unsigned long long>(i), read(state + 1) + increment);
}
extern "C" __global__ void rondo_draw_uniform(OUT* out, long long n, const unsigned long long* state,
                                              unsigned long long increment) {
  for (long long i = first_index(); i < n; i += index_step())
    write(out + i, convert<OUT>(uniform_of(words_of(state, increment, i).word[0])));
}
// normal_of() of ops/random_draw.h.
extern "C" __global__ void rondo_draw_normal(OUT* out, long long n, const unsigned long long* state,
                                             unsigned long long increment) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const RondoWords bits = words_of(state, increment, i);
    const double radius = sqrt_of(-2.0 * rondo_log(static_cast<double>(uniform_of(bits.word[0]))));
    const double angle = 6.283185307179586477 * static_cast<double>(uniform_of(bits.word[1]));
    write(out + i, convert<OUT>(radius * rondo_cos(angle)));
  }
}
extern "C" __global__ void rondo_draw_integers(OUT* out, long long n, const unsigned long long* state,
                                               unsigned long long increment, unsigned long long low,
                                               unsigned long long span) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const RondoWords bits = words_of(state, increment, i);
    const unsigned long long word = static_cast<unsigned long long>(bits.word[0]) << 32 | bits.word[1];
    write(out + i, convert<OUT>(static_cast<long long>(low + __umul64hi(word, span))));
  }
}
)cuda";

const Source& draw_source() {
  static const auto* const text = new std::string(
      absl::StrCat(scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }),
                   scalar_function("rondo_cos", [](LoopValue x) { return scalar::cos(x); }), kDraw));
  static const Source source{"draw", *text};
  return source;
}
Kernel kernel_for(const Tensor& out, const char* name) {
  return kernel_of(out.device().index, draw_source(), name, {{"OUT", type_name(out.dtype())}});
}

}  // namespace

void draw_kernel(const KernelContext& context) {
  const Tensor &out = context.out(), state = dense(context.in(0));
  if (out.numel() == 0) return;
  const bool uniform = static_cast<ops::Distribution>(context.attrs.ints[0]) == ops::Distribution::kUniform;
  launch_threads(out.device().index, kernel_for(out, uniform ? "rondo_draw_uniform" : "rondo_draw_normal"), out.numel(),
                 address_of(out), out.numel(), address_of(state), context.attrs.ints[1]);
}

void draw_integers_kernel(const KernelContext& context) {
  const Tensor &out = context.out(), state = dense(context.in(0));
  if (out.numel() == 0) return;
  const auto& ints = context.attrs.ints;
  launch_threads(out.device().index, kernel_for(out, "rondo_draw_integers"), out.numel(), address_of(out), out.numel(),
                 address_of(state), ints[0], ints[2], ints[3]);
}

}  // namespace rondo::cuda

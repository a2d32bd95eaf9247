// Dropout: each element's random word is a function of (seed, offset, index). Note [Random state] in random_state.h.
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::cuda {
namespace {

constexpr Source kDropout = {"dropout", R"cuda(
// A counter gives four words, which go to four neighbours. drops_all: p is 1.
extern "C" __global__ void rondo_dropout(T* out, const T* x, const unsigned long long* state, long long n,
                                         unsigned long long increment, unsigned threshold, double factor,
                                         unsigned drops_all) {
  using C = typename RondoCompute<T>::Type;
  const unsigned long long seed = read(state), offset = read(state + 1) + increment;
  const C scale = static_cast<C>(factor);
  for (long long group = first_index(); 4 * group < n; group += index_step()) {
    const long long i = 4 * group;
    const int exist = n - i < 4 ? static_cast<int>(n - i) : 4;
    const RondoWords words = philox(seed, static_cast<unsigned long long>(group), offset);
    const Pack<T, 4> from = load<4>(x + i, exist);
    Pack<T, 4> to = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // A dropped NaN or infinity is 0, too.
      const C value = widen(from.at[e]) * scale;
      to.at[e] = convert<T>(drops_all == 0u && words.word[e] >= threshold ? value : static_cast<C>(0));
    }
    store(out + i, to, exist);
  }
}
)cuda"};

}  // namespace

void dropout_kernel(const KernelContext& context) {
  const Tensor &out = context.out(), x = dense(context.in(0)), state = dense(context.in(1));
  const int64_t n = out.numel();
  if (n == 0) return;
  const double p = context.attrs.floats[0];
  const DropoutRule rule(p);
  const int device = out.device().index;
  launch_threads(device, kernel_of(device, kDropout, "rondo_dropout", {{"T", type_name(out.dtype())}}), (n + 3) / 4,
                 address_of(out), address_of(x), address_of(state), n, context.attrs.ints[0], rule.threshold,
                 rule.factor, static_cast<uint32_t>(p == 1));
}

}  // namespace rondo::cuda

// The kernels of attention and its gradient: they convert the tensors of a call to the arguments of attention.h.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/attention.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

template <class T> HeadsView<T> heads_of(const Tensor& t) {
  return {reinterpret_cast<T*>(t.impl()->data()), t.strides()[0], t.strides()[1], t.strides()[2]};
}

// Returns t, or a copy of it, with a dense last dimension, which attention.h requires.
Tensor dense_rows(const Tensor& t) { return t.strides()[3] == 1 || t.sizes()[3] == 1 ? t : t.contiguous(); }

struct Operands {
  Tensor q, k, v, mask;
  AttentionShape shape;
  Operands(const KernelContext& context, int first)
      : q(dense_rows(context.in(first))), k(dense_rows(context.in(first + 1))), v(dense_rows(context.in(first + 2))) {
    if (context.has(first + 3)) mask = context.in(first + 3);
    shape = {.batch = q.sizes()[0],
             .heads = q.sizes()[1],
             .kv_heads = k.sizes()[1],
             .queries = q.sizes()[2],
             .keys = k.sizes()[2],
             .head_dim = q.sizes()[3],
             .causal = context.attrs.ints[0] != 0,
             .scale = context.attrs.floats[0]};
    if (!context.has(first + 4)) return;
    const Tensor state = context.in(first + 4).contiguous();
    const int64_t* const stream = reinterpret_cast<const int64_t*>(state.impl()->data());
    shape.dropout = {.p = context.attrs.floats[1],
                     .seed = static_cast<uint64_t>(stream[0]),
                     .offset = static_cast<uint64_t>(stream[1]) + static_cast<uint64_t>(context.attrs.ints[1])};
  }
  template <class T> AttentionMask<T> mask_view() const {
    AttentionMask<T> view;
    if (!mask.defined()) return view;
    if (mask.dtype() == kBool) view.allowed = reinterpret_cast<const bool*>(mask.impl()->data());
    else if (mask.dtype() == kI64) view.first_key = reinterpret_cast<const int64_t*>(mask.impl()->data());
    else view.bias = reinterpret_cast<const T*>(mask.impl()->data());
    Dims sizes = mask.sizes();
    if (view.first_key != nullptr && sizes.rank() > 0 && sizes.back() == 2) {
      view.end_key = view.first_key + mask.strides().back();
      sizes[sizes.rank() - 1] = 1;
    }
    const Dims strides = broadcast_strides(sizes, mask.strides(),
                                           {shape.batch, shape.heads, shape.queries, shape.keys});
    for (int i = 0; i < 4; ++i) view.strides[static_cast<size_t>(i)] = strides[i];
    return view;
  }
};

}  // namespace

void attention_kernel(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  const Operands o(context, 0);
  visit_floating(o.q.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention_forward<T>(o.shape, heads_of<const T>(o.q), heads_of<const T>(o.k), heads_of<const T>(o.v),
                         o.mask_view<T>(), heads_of<T>(context.out(0)),
                         reinterpret_cast<AttentionAccumulator<T>*>(context.out(1).impl()->data()));
  });
}

void attention_grad_kernel(const KernelContext& context) {
  NoGrad off;
  RecorderScope run(nullptr);
  const Tensor grad = dense_rows(context.in(0)), out = dense_rows(context.in(1));
  const Operands o(context, 3);
  visit_floating(o.q.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention_backward<T>(
        o.shape, heads_of<const T>(o.q), heads_of<const T>(o.k), heads_of<const T>(o.v), o.mask_view<T>(),
        heads_of<const T>(out), reinterpret_cast<const AttentionAccumulator<T>*>(context.in(2).impl()->data()),
        heads_of<const T>(grad), heads_of<T>(context.out(0)), heads_of<T>(context.out(1)), heads_of<T>(context.out(2)),
        context.outputs.size() > 3 ? reinterpret_cast<AttentionAccumulator<T>*>(context.out(3).impl()->data())
                                   : nullptr);
  });
}

}  // namespace rondo::cpu

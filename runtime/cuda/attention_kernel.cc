// Launches the kernels of attention and of its gradient: translates the tensors of a call into the arguments that
// attention.h expects.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/attention.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::cuda {
namespace {

// Returns `t`, or a copy that products can read: the last dimension is dense, and rows do not overlap.
Tensor readable(const Tensor& t) {
  const Dims &sizes = t.sizes(), &strides = t.strides();
  const bool columns = strides[3] == 1 || sizes[3] == 1, rows = strides[2] >= sizes[3] || sizes[2] == 1;
  return columns && rows ? t : t.contiguous();
}
HeadsStrides strides_of(const Tensor& t) { return {t.strides()[0], t.strides()[1], t.strides()[2]}; }

struct Operands {
  Tensor q, k, v, mask, state;
  AttentionCall call;
  AttentionOperands addresses;
  Operands(const KernelContext& context, int first)
      : q(readable(context.in(first))), k(readable(context.in(first + 1))), v(readable(context.in(first + 2))) {
    call = {.device = q.device().index,
            .dtype = q.dtype(),
            .batch = q.sizes()[0],
            .heads = q.sizes()[1],
            .kv_heads = k.sizes()[1],
            .queries = q.sizes()[2],
            .keys = k.sizes()[2],
            .head_dim = q.sizes()[3],
            .causal = context.attrs.ints[0] != 0,
            .scale = context.attrs.floats[0],
            .q = strides_of(q),
            .k = strides_of(k),
            .v = strides_of(v)};
    addresses = {address_of(q), address_of(k), address_of(v)};
    if (context.has(first + 4)) {
      state = dense(context.in(first + 4));
      addresses.state = address_of(state);
      call.increment = context.attrs.ints[1];
      call.dropout = context.attrs.floats[1];
    }
    if (!context.has(first + 3)) return;
    mask = context.in(first + 3);
    call.mask = mask.dtype() == kBool  ? AttentionMask::kAllowed
                : mask.dtype() == kI64 ? AttentionMask::kFirstKey
                                       : AttentionMask::kBias;
    Dims sizes = mask.sizes();
    if (call.mask == AttentionMask::kFirstKey && sizes.rank() > 0 && sizes.back() == 2) {
      call.mask = AttentionMask::kKeys;
      if (mask.strides().back() != 1) mask = mask.contiguous();
      sizes[sizes.rank() - 1] = 1;
    }
    const Dims strides = broadcast_strides(sizes, mask.strides(), {call.batch, call.heads, call.queries, call.keys});
    for (int i = 0; i < 4; ++i) call.mask_strides[i] = strides[i];
    addresses.mask = address_of(mask);
  }
};

}  // namespace

void attention_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Operands o(context, 0);
  attention_forward(o.call, o.addresses, address_of(context.out(0)), strides_of(context.out(0)),
                    address_of(context.out(1)));
}

void attention_grad_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  const Tensor grad = readable(context.in(0)), out = readable(context.in(1));
  const Operands o(context, 3);
  attention_backward(o.call, o.addresses,
                     {.out = address_of(out),
                      .logsumexp = address_of(context.in(2)),
                      .grad = address_of(grad),
                      .out_strides = strides_of(out),
                      .grad_strides = strides_of(grad),
                      .grad_q = address_of(context.out(0)),
                      .grad_k = address_of(context.out(1)),
                      .grad_v = address_of(context.out(2)),
                      .grad_q_strides = strides_of(context.out(0)),
                      .grad_k_strides = strides_of(context.out(1)),
                      .grad_v_strides = strides_of(context.out(2))});
}

}  // namespace rondo::cuda

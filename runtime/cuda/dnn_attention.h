// Attention as a graph of cuDNN: the products, masks and softmax that its fused engines know. The forms are those of
// cuDNN's documentation ("Attention", the graphs of its flash attention).
//
// Note [What cuDNN serves]. cuDNN runs calls in bf16 or f16, without dropout (cuDNN draws other random numbers), with
//   at least 16 queries. (With fewer queries, as when a model generates, every token has another number of keys and
//   would need another plan; a plan takes a second to make.) A mask of bool or of first keys becomes a bias in f32,
//   made by a kernel. In this bias, -1e30 stands for a key that is not allowed, because with -inf a row without a key
//   would be NaN. After the plan has run, a kernel recognises rows without a key by their logsumexp, and sets their
//   output to 0 and their logsumexp to -inf. Our own kernels take calls with masks that have ends of keys, and calls
//   with added masks: these may lower a whole row, and a plan has only the logsumexp (Note [Large logsumexp]).
// Note [The choice of cuDNN]. Our own kernels run unless a program asks for cuDNN's, because the two have not been
//   compared on a device yet. To ask: `use_cudnn_attention(true)`, or RONDO_CUDA_ATTENTION=cudnn.
#pragma once

#include <string>

#include "rondo/runtime/cuda/attention_call.h"
#include "rondo/runtime/cuda/dnn_graph.h"

namespace rondo::cuda {

// Sets whether attention uses cuDNN for the calls that cuDNN serves, from now on and on all devices. Throws DeviceError
// if `use` is true and there is no cuDNN.
void use_cudnn_attention(bool use);
// True if attention uses cuDNN for the calls that cuDNN serves. Throws Error if RONDO_CUDA_ATTENTION is set to anything
// but "own" or "cudnn".
bool uses_cudnn_attention();

// Return false if cuDNN is not asked for, or has no plan; nothing was enqueued then. Otherwise they do what
// attention_forward() and attention_backward() do.
bool attention_forward_by_cudnn(const AttentionCall& call, const AttentionOperands& operands, void* out,
                                const HeadsStrides& out_strides, void* logsumexp);
bool attention_backward_by_cudnn(const AttentionCall& call, const AttentionOperands& operands,
                                 const AttentionGradients& gradients);

// ---- The graphs

// Operands of the forward: q, k, v, the bias if there is one, out, logsumexp. For the backward: q, k, v, the bias, out,
// logsumexp, grad, then grad_q, grad_k, grad_v.
struct DnnAttention {
  AttentionCall call;  // call.mask is not read: the bias replaces it
  bool bias = false;
  int64_t bias_sizes[4] = {1, 1, 1, 1};  // of a dense array in f32; it broadcasts to [B, H, Tq, Tk]
  HeadsStrides out = {}, grad = {}, grad_q = {}, grad_k = {}, grad_v = {};
  std::string describe(bool backward) const;
};
DnnGraph attention_graph(const DnnAttention& attention);
DnnGraph attention_grad_graph(const DnnAttention& attention);

}  // namespace rondo::cuda

#include "rondo/runtime/cpu/wrong_kernels.h"

namespace rondo::cpu {
namespace {

using Computes = ConvolutionCall::Computes;

// f32 and bf16, jit_1x1 and jit_bf16_1x1, a stride, the gradient of the weight: the pixels that are read are copied
// into the scratchpad, channels last, C numbers a pixel, but a whole block of channels is counted for each pixel before
// (8 with AVX2, 16 with AVX-512). With fewer channels than a block, the copy ends behind the scratchpad. So in later
// versions, too (https://github.com/uxlfoundation/oneDNN/issues/6035). Forward and the gradient of the input place the
// copy right.
bool overruns_scratch(std::string_view kernel, const ConvolutionCall& call) {
  if (!kernel.starts_with("jit_1x1") && !kernel.starts_with("jit_bf16_1x1")) return false;
  const int64_t block = kernel.find("avx512") == kernel.npos ? 8 : 16;
  return (call.stride[0] > 1 || call.stride[1] > 1) && call.channels / call.groups < block;
}
// bf16, jit_bf16 (AVX-512) and jit:avx512_core_amx_bf16, the gradient of the weight:
// - images narrower than the stride: numbers of the scratchpad that nobody has written are multiplied by 0 (NaN * 0);
// - AMX, more than two blocks of 16 channels in a group, the last one not whole: it reads a block that is not there;
// - AVX-512, several groups whose channels are no whole blocks: it adds what lies behind a group.
bool sums_what_is_not_there(std::string_view kernel, const ConvolutionCall& call) {
  const bool amx = kernel.starts_with("jit:avx512_core_amx_bf16");
  if (!amx && !kernel.starts_with("jit_bf16:")) return false;
  const int64_t channels = call.channels / call.groups, outputs = call.outputs / call.groups;
  if (call.input[1] < call.stride[1]) return true;
  if (amx) return channels > 32 && channels % 16 != 0;
  return call.groups > 1 && (channels % 16 != 0 || outputs % 16 != 0);
}

}  // namespace

bool is_wrong(std::string_view kernel, const ConvolutionCall& call) {
  switch (call.computes) {
    case Computes::kOutput:  // an output that reads nothing but padding
      return kernel.starts_with("brgconv:avx512_core_amx") &&
             (call.before[0] >= call.reach(0) || call.before[1] >= call.reach(1));
    case Computes::kInput:  // bf16, whose products are of pairs of outputs
      return kernel.starts_with("jit_bf16_1x1") && call.outputs / call.groups % 2 != 0;
    case Computes::kWeight: return overruns_scratch(kernel, call) || sums_what_is_not_there(kernel, call);
  }
  return false;
}

// A product of bf16 on AMX with a depth of 31 modulo 32: it sets its tiles up for one depth and uses them
// for another, which gives wrong sums, writes behind the scratchpad, or an illegal instruction. Depths from 1 to 3000
// were tried. Its kernel for AVX-512 takes the place.
bool is_wrong(std::string_view kernel, const MatmulCall& call) {
  return call.dtype == kBF16 && call.k % 32 == 31 && kernel.find("amx") != kernel.npos;
}

}  // namespace rondo::cpu

#include "rondo/runtime/cpu/wrong_kernels.h"

#include "rondo/runtime/onednn/onednn_versions.h"
#include "rondo/runtime/onednn/product_library.h"

namespace rondo::cpu {
namespace {

using Computes = ConvolutionCall::Computes;

// library() opens only a library of the headers' major version, so DNNL_VERSION_MAJOR is the library's version, too.
constexpr bool kVersion2 = DNNL_VERSION_MAJOR == 2;

bool is_amx(std::string_view kernel) { return kernel.find("amx") != kernel.npos; }

// ---- Convolutions: forward

// first_is_empty(): true if the first outputs read only padding. last_is_empty(): true if the last outputs do, as in an
// image's last band.
bool first_is_empty(const ConvolutionCall& call) {
  return call.padding_before[0] >= call.reach(0) || call.padding_before[1] >= call.reach(1);
}
bool last_is_empty(const ConvolutionCall& call) {
  const auto last_reads_from = [&](size_t d) { return (call.output[d] - 1) * call.stride[d] - call.padding_before[d]; };
  return last_reads_from(0) >= call.input[0] || last_reads_from(1) >= call.input[1];
}

// For oneDNN 2. bf16 on AMX is wrong if an output reads only padding.
bool is_wrong_output_2(std::string_view kernel, const ConvolutionCall& call) {
  return kernel.starts_with("brgconv:avx512_core_amx") && first_is_empty(call);
}
// For oneDNN 3, f32 and bf16, AVX-512 and AMX. brg_conv_fwd (brgconv in the first releases of version 3) is wrong for:
// - an output that reads only padding: the kernel reads from an address that was never set (SIGSEGV, in f32, too);
// - bf16, a stride and one column of output: unused columns are multiplied by 0, which gives NaN for NaN (30 of 6000
//   random convolutions on AMX).
bool is_wrong_output_3(std::string_view kernel, const ConvolutionCall& call) {
  if (!kernel.starts_with("brg_conv_fwd") && !kernel.starts_with("brgconv:")) return false;
  if (first_is_empty(call) || last_is_empty(call)) return true;
  return call.dtype == kBF16 && call.output[1] == 1 && call.stride[1] > 1;
}

// ---- Convolutions: gradients, in versions 2 and 3

// jit_bf16_1x1 is wrong for an odd number of outputs in a group, because it multiplies pairs of outputs.
bool pairs_an_odd_output(std::string_view kernel, const ConvolutionCall& call) {
  return kernel.starts_with("jit_bf16_1x1") && call.outputs / call.groups % 2 != 0;
}

// For the gradient of the weight. jit_1x1 (f32) and jit_bf16_1x1 are wrong with a stride. The kernel copies the pixels
// that it reads into the scratchpad, channels last, C numbers per pixel. But it computes the position of a pixel with a
// whole block of channels (8 with AVX2, 16 with AVX-512). With fewer channels than a block, the copy ends after the end
// of the scratchpad. Versions after 3.7 have this error, too (https://github.com/uxlfoundation/oneDNN/issues/6035).
// Forward and the gradient of the input place the copy correctly.
bool overruns_scratch(std::string_view kernel, const ConvolutionCall& call) {
  if (!kernel.starts_with("jit_1x1") && !kernel.starts_with("jit_bf16_1x1")) return false;
  const int64_t block = kernel.find("avx512") == kernel.npos ? 8 : 16;
  return (call.stride[0] > 1 || call.stride[1] > 1) && call.channels / call.groups < block;
}

// For the gradient of the weight, in bf16. jit_bf16 (AVX-512) and the AMX kernel are wrong in the cases below. The AMX
// kernel is jit:avx512_core_amx_bf16 in version 2. In version 3 it is brgconv_bwd_w:avx10_1_512_amx or, if that is
// skipped, jit:avx10_1_512_amx.
// - images narrower than the stride: uninitialised scratchpad numbers are multiplied by 0, which gives NaN for NaN;
// - AMX, jit, more than two blocks of 16 channels in a group, the last one not whole: it reads a block that does not
//   exist;
// - AVX-512, several groups whose channels are not whole blocks: it also adds numbers after the end of a group.
bool sums_what_is_not_there(std::string_view kernel, const ConvolutionCall& call) {
  const bool amx = is_amx(kernel);
  if (!amx && !kernel.starts_with("jit_bf16:")) return false;
  const int64_t channels = call.channels / call.groups, outputs = call.outputs / call.groups;
  if (call.input[1] < call.stride[1]) return true;
  if (amx) return kernel.starts_with("jit:") && channels > 32 && channels % 16 != 0;
  return call.groups > 1 && (channels % 16 != 0 || outputs % 16 != 0);
}

// ---- Products

// For oneDNN 2. bf16 on AMX is wrong for a depth of 31 modulo 32: the kernel configures its tiles for one depth and
// uses them for another. This gives wrong sums, writes after the scratchpad, or an illegal instruction. Depths from 1
// to 3000 were tested. The kernel for AVX-512 is used instead.
bool is_wrong_product_2(std::string_view kernel, const MatmulCall& call) {
  return call.dtype == kBF16 && call.k % 32 == 31 && is_amx(kernel);
}
// For oneDNN 3, f32 and bf16. brg_matmul with AVX-512 and AMX (AVX2 has no such kernel) is wrong for:
// - one row of A whose numbers are not adjacent: it reads as if they were (21 of 4000 random products);
// - one column of C whose numbers are not adjacent: it writes as if they were (37 of 4000 products whose results have
//   gaps);
// - 3.12, a batch of products of depth 1: it reads the matrices as if they were adjacent in memory.
// The library's gemm is used instead.
bool is_wrong_product_3(std::string_view kernel, const MatmulCall& call) {
  if (!kernel.starts_with("brg")) return false;
  return (call.m == 1 && call.a.column != 1) || (call.n == 1 && call.m > 1 && call.c.row != 1) ||
         (call.batch > 1 && call.k == 1);
}

}  // namespace

bool is_wrong(std::string_view kernel, const ConvolutionCall& call) {
  switch (call.computes) {
    case Computes::kOutput: return kVersion2 ? is_wrong_output_2(kernel, call) : is_wrong_output_3(kernel, call);
    case Computes::kInput: return pairs_an_odd_output(kernel, call);
    case Computes::kWeight: return overruns_scratch(kernel, call) || sums_what_is_not_there(kernel, call);
  }
  return false;
}

bool is_wrong(std::string_view kernel, const MatmulCall& call) {
  return kVersion2 ? is_wrong_product_2(kernel, call) : is_wrong_product_3(kernel, call);
}

// For oneDNN 3. eltwise_gelu_erf with AVX-512 is wrong: it approximates erf by a polynomial, which gives NaN for
// infinity.
bool is_wrong(Epilogue epilogue) { return !kVersion2 && epilogue == Epilogue::kGelu && library_has_avx512(); }

}  // namespace rondo::cpu

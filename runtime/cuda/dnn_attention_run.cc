// Attention by plans of cuDNN: Note [What cuDNN serves] in dnn_attention.h. The plans of the most recent 256 calls are
// kept.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/dnn_attention.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::cuda {
namespace {

// clang-format off
RONDO_TEXT_AND_CODE(kBiasArgument,
struct BiasArgument {
  const void* mask;
  long long kind, strides[4], sizes[4];
};
struct RowsArgument {
  long long batch, head, row, heads, rows, head_dim;
};
)
// clang-format on

// BiasArgument::kind is an AttentionMask: kAllowed or kFirstKey.
constexpr const char* kBiasText = R"cuda(
constexpr float kNoKey = -1e30f;

extern "C" __global__ void rondo_attention_bias(float* out, BiasArgument mask, long long n) {
  for (long long i = first_index(); i < n; i += index_step()) {
    long long rest = i, at[4];
    for (int d = 3; d >= 0; --d) at[d] = rest % mask.sizes[d], rest /= mask.sizes[d];
    long long from = 0;
    for (int d = 0; d < 4; ++d) from += at[d] * mask.strides[d];
    float bias = 0;
    if (mask.kind == 1) bias = read(static_cast<const bool*>(mask.mask) + from) ? 0.0f : kNoKey;
    if (mask.kind == 2) bias = at[3] < read(static_cast<const long long*>(mask.mask) + from) ? kNoKey : 0.0f;
    write(out + i, bias);
  }
}

// A row without a key: its logsumexp is about kNoKey.
extern "C" __global__ void rondo_attention_rows(T* out, float* logsumexp, RowsArgument rows, long long n) {
  for (long long i = first_index(); i < n; i += index_step()) {
    if (!(read(logsumexp + i) < 0.1f * kNoKey)) continue;
    write(logsumexp + i, static_cast<float>(__longlong_as_double(static_cast<long long>(0xFFF0000000000000ull))));
    const long long row = i % rows.rows, head = i / rows.rows % rows.heads, batch = i / rows.rows / rows.heads;
    T* const line = out + batch * rows.batch + head * rows.head + row * rows.row;
    for (long long d = 0; d < rows.head_dim; ++d) write(line + d, convert<T>(0.0f));
  }
}

// With +inf for such a row, all its weights are 0.
extern "C" __global__ void rondo_attention_logsumexp(float* out, const float* logsumexp, long long n) {
  for (long long i = first_index(); i < n; i += index_step()) {
    const float value = read(logsumexp + i);
    write(out + i, value < kNoKey ? static_cast<float>(__longlong_as_double(0x7FF0000000000000ll)) : value);
  }
}
)cuda";

const Source& bias_source() {
  static const auto* const text = new std::string(absl::StrCat(kBiasArgument, kBiasText));
  static const Source source = {"attention_bias", *text};
  return source;
}

std::atomic<bool>& cudnn_asked_for() {
  static std::atomic<bool> asked = [] {
    const char* const value = std::getenv("RONDO_CUDA_ATTENTION");
    const std::string_view way = value == nullptr ? "own" : value;
    if (way != "own" && way != "cudnn")
      throw Error(absl::StrCat("RONDO_CUDA_ATTENTION: own or cudnn, not ", std::string(way)));
    return way == "cudnn";
  }();
  return asked;
}

std::shared_ptr<const DnnPlan> attention_plan(const DnnAttention& a, bool backward) {
  static auto* const cache = new RecentCache<std::string, DnnPlan>(256);
  const DnnGraph graph = backward ? attention_grad_graph(a) : attention_graph(a);
  const std::string key = absl::StrCat(device_state(a.call.device).serial(), " ", graph.text());
  if (std::shared_ptr<const DnnPlan> found = cache->find(key)) return found;
  return cache->add(key, DnnPlan::get(a.call.device, graph, a.describe(backward)));
}

bool is_asked(const AttentionCall& call) {
  return uses_cudnn_attention() && (call.dtype == kBF16 || call.dtype == kF16) && call.dropout == 0 &&
         call.mask != AttentionMask::kBias && call.mask != AttentionMask::kKeys && call.chunk == 0 &&
         call.queries >= 16 && call.keys > 0 && call.head_dim > 0;
}
// True if the plan can run with these addresses. If not, the call runs without cuDNN, and is counted for dnn_report().
bool serves(const std::shared_ptr<const DnnPlan>& plan, std::initializer_list<const void*> addresses) {
  bool aligned = true;
  for (const void* address : addresses) aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  if (aligned && plan->usable()) return true;
  count_run_without_plan();
  return false;
}

DnnAttention described(const AttentionCall& call) {
  DnnAttention a{.call = call, .bias = call.mask != AttentionMask::kNone};
  if (!a.bias) return a;
  const int64_t sizes[] = {call.batch, call.heads, call.queries, call.keys};
  for (int d = 0; d < 3; ++d) a.bias_sizes[d] = call.mask_strides[d] == 0 ? 1 : sizes[d];
  a.bias_sizes[3] = call.keys;
  return a;
}

Storage take_f32(int device, int64_t elements) {
  return Storage::allocate(static_cast<size_t>(elements) * sizeof(float),
                           {Backend::kCUDA, static_cast<int8_t>(device)});
}
Storage bias_of(const DnnAttention& a, const AttentionOperands& operands) {
  if (!a.bias) return {};
  BiasArgument mask{.mask = operands.mask, .kind = static_cast<long long>(a.call.mask), .strides = {}, .sizes = {}};
  long long n = 1;
  for (int d = 0; d < 4; ++d) {
    mask.sizes[d] = a.bias_sizes[d], mask.strides[d] = a.call.mask_strides[d];
    n *= mask.sizes[d];
  }
  Storage bias = take_f32(a.call.device, n);
  const Kernel kernel = kernel_of(a.call.device, bias_source(), "rondo_attention_bias",
                                  {{"T", type_name(a.call.dtype)}});
  launch_threads(a.call.device, kernel, n, reinterpret_cast<float*>(bias.data()), mask, n);
  return bias;
}

}  // namespace

void use_cudnn_attention(bool use) {
  if (use) static_cast<void>(require_cudnn());
  cudnn_asked_for() = use;
}
bool uses_cudnn_attention() { return cudnn_asked_for().load(std::memory_order_relaxed); }

bool attention_forward_by_cudnn(const AttentionCall& call, const AttentionOperands& operands, void* out,
                                const HeadsStrides& out_strides, void* logsumexp) {
  if (!is_asked(call)) return false;
  DnnAttention a = described(call);
  a.out = out_strides;
  const std::shared_ptr<const DnnPlan> plan = attention_plan(a, false);
  if (!serves(plan, {operands.q, operands.k, operands.v, out, logsumexp})) return false;
  const Storage bias = bias_of(a, operands);
  std::vector<const void*> addresses = {operands.q, operands.k, operands.v};
  if (a.bias) addresses.push_back(bias.data());
  addresses.insert(addresses.end(), {out, logsumexp});
  plan->enqueue(addresses);
  if (!a.bias) return true;
  const RowsArgument rows{out_strides.batch, out_strides.head, out_strides.row,
                          call.heads,        call.queries,     call.head_dim};
  const long long n = call.batch * call.heads * call.queries;
  const Kernel kernel = kernel_of(call.device, bias_source(), "rondo_attention_rows", {{"T", type_name(call.dtype)}});
  launch_threads(call.device, kernel, n, out, static_cast<float*>(logsumexp), rows, n);
  return true;
}

bool attention_backward_by_cudnn(const AttentionCall& call, const AttentionOperands& operands,
                                 const AttentionGradients& g) {
  if (!is_asked(call)) return false;
  DnnAttention a = described(call);
  a.out = g.out_strides, a.grad = g.grad_strides;
  a.grad_q = g.grad_q_strides, a.grad_k = g.grad_k_strides, a.grad_v = g.grad_v_strides;
  const std::shared_ptr<const DnnPlan> plan = attention_plan(a, true);
  if (!serves(plan, {operands.q, operands.k, operands.v, g.out, g.logsumexp, g.grad, g.grad_q, g.grad_k, g.grad_v}))
    return false;
  const Storage bias = bias_of(a, operands);
  std::vector<const void*> addresses = {operands.q, operands.k, operands.v};
  Storage finite;
  const void* logsumexp = g.logsumexp;
  if (a.bias) {
    addresses.push_back(bias.data());
    const long long n = call.batch * call.heads * call.queries;
    finite = take_f32(call.device, n);
    const Kernel kernel = kernel_of(call.device, bias_source(), "rondo_attention_logsumexp",
                                    {{"T", type_name(call.dtype)}});
    launch_threads(call.device, kernel, n, reinterpret_cast<float*>(finite.data()),
                   static_cast<const float*>(g.logsumexp), n);
    logsumexp = finite.data();
  }
  addresses.insert(addresses.end(), {g.out, logsumexp, g.grad, g.grad_q, g.grad_k, g.grad_v});
  plan->enqueue(addresses);
  return true;
}

}  // namespace rondo::cuda

// bench_device: what a CUDA device reaches with Rondo's kernels, beside what it can do. Times are those of the driver's
// events on the compute stream.
//
//   bench_device [--only=memory,products,attention,compile,step] [--batch=4] [--json=FILE] [--small]
//
// `memory`: bytes a second of ops that read and write each byte once, beside a copy on the device by the driver.
// `products`: Tflop/s of each product of a step of GPT-2 124M, in bf16, TF32 and f32. They are the calls that the step
// makes, repeated where it makes them: with its leading dimensions, epilogues and addresses.
// `attention`: causal, H 12, T 1024, D 64, by our kernels and by cuDNN; tests/bench/peers/sdpa.py has PyTorch's.
// `compile`: one small kernel through NVRTC, and how long the first compiled step of GPT-2 takes.
// `step`: launches of a compiled step of GPT-2 124M and the time of each kernel. Each launch stands between two events,
// so the sum is more than a step takes without them.
// --batch: sequences of 1024 tokens, of all but `memory`. --small: sizes for the fake driver, on which no figure says
// anything.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/dnn_attention.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"
#include "rondo/tests/cuda/step_launches.h"

namespace {

using namespace rondo;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr Device kGpu{Backend::kCUDA, 0};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Seconds of what `work` enqueues on the compute stream: the median of `runs`, after two that warm up.
template <class Work> double seconds_of(int runs, Work work) {
  cuda::DeviceState& device = cuda::device_state(0);
  for (int i = 0; i < 2; ++i) work();
  std::vector<std::pair<cuda::Event, cuda::Event>> marks;
  const auto record = [&](cuda::Event event) {
    const cuda::ContextScope scope(device);
    device.check(device.driver().event_record(event.event, device.compute()), "cuEventRecord");
  };
  for (int i = 0; i < runs; ++i) {
    const std::pair mark{device.take_event(true), device.take_event(true)};
    record(mark.first);
    work();
    record(mark.second);
    marks.push_back(mark);
  }
  synchronize(kGpu);
  std::vector<double> seconds;
  const cuda::ContextScope scope(device);
  for (const auto& [from, to] : marks) {
    float ms = 0;
    device.check(device.driver().event_elapsed(&ms, from.event, to.event), "cuEventElapsedTime");
    seconds.push_back(static_cast<double>(ms) / 1e3);
    device.give_event(from), device.give_event(to);
  }
  return median(seconds);
}

// ---- Bytes a second

struct Sizes {
  bool small;
  int64_t batch;
};

Json memory(const Sizes& sizes) {
  const bool small = sizes.small;
  const int runs = small ? 2 : 20;
  const int64_t rows = small ? 8 : 1 << 16, columns = small ? 64 : 1024;
  Json result = Json::array();
  double copied = 0;
  const auto row = [&](const std::string& name, int64_t bytes, double seconds) {
    const double rate = static_cast<double>(bytes) / seconds / 1e9;
    if (copied == 0) copied = rate;
    std::printf("%-34s %8.0f GB/s  %4.2f of the copy\n", name.c_str(), rate, rate / copied);
    result.push_back({{"name", name}, {"gb_per_s", rate}, {"of_copy", rate / copied}});
  };
  const NoGrad off;
  for (const DType dtype : {kF32, kBF16}) {
    const std::string suffix = dtype == kF32 ? " f32" : " bf16";
    const Tensor x = Tensor::randn({rows, columns}, {kF32, kGpu}).to(dtype), y = ops::mul(x, 0.5),
                 weight = Tensor::ones({columns}, {dtype, kGpu}), bias = Tensor::zeros({columns}, {dtype, kGpu});
    const int64_t bytes = x.numel() * (dtype == kF32 ? 4 : 2);
    if (dtype == kF32) {
      cuda::DeviceState& device = cuda::device_state(0);
      const auto address = [](const Tensor& t) { return reinterpret_cast<cuda::DevicePtr>(t.storage().data()); };
      row("copy by the driver", 2 * bytes, seconds_of(runs, [&] {
            const cuda::ContextScope scope(device);
            device.check(
                device.driver().copy_on_device(address(y), address(x), static_cast<size_t>(bytes), device.compute()),
                "cuMemcpyDtoDAsync");
          }));
    }
    row("gelu" + suffix, 2 * bytes, seconds_of(runs, [&] { ops::gelu(x); }));
    row("add" + suffix, 3 * bytes, seconds_of(runs, [&] { ops::add(x, y); }));
    row("layer_norm of rows" + suffix, 2 * bytes, seconds_of(runs, [&] { ops::layer_norm(x, weight, bias); }));
    row("softmax of rows" + suffix, 2 * bytes, seconds_of(runs, [&] { ops::softmax(x); }));
    row("sum of rows" + suffix, bytes, seconds_of(runs, [&] { ops::sum(x, {1}); }));
    row("sum of columns" + suffix, bytes, seconds_of(runs, [&] { ops::sum(x, {0}); }));
    row("transpose" + suffix, 2 * bytes, seconds_of(runs, [&] { x.transpose(0, 1).contiguous(); }));
  }
  return result;
}

// ---- Attention

Json attention(const Sizes& sizes) {
  const bool small = sizes.small;
  const int runs = small ? 1 : 10;
  const int64_t B = sizes.batch, H = small ? 2 : 12, T = small ? 16 : 1024, D = small ? 16 : 64;
  Json result = Json::array();
  const auto row = [&](const char* peer, DType dtype) {
    Tensor q, k, v;
    for (Tensor* made : {&q, &k, &v})
      *made = Tensor::randn({B, H, T, D}, {kF32, kGpu}).to(dtype).detach().requires_grad_();
    const Tensor grad = Tensor::ones({B, H, T, D}, {dtype, kGpu});
    const auto forward = [&] { return ops::scaled_dot_product_attention(q, k, v, {}, {.causal = true}); };
    const int64_t without = cuda::dnn_report().runs_otherwise;
    const double first = 1e3 * seconds_of(runs, [&] {
                           const NoGrad off;
                           forward();
                         });
    const double both = 1e3 * seconds_of(runs, [&] {
                          for (Tensor* input : {&q, &k, &v}) input->set_grad(Tensor());
                          forward().backward(grad);
                        });
    const bool refused = cuda::dnn_report().runs_otherwise > without;
    const std::string name(name_of(dtype));
    std::printf("attention %-5s %-8s forward %8.3f ms   with backward %8.3f ms%s\n", name.c_str(), peer, first, both,
                refused ? "   (cuDNN has no plan: these are our kernels)" : "");
    result.push_back({{"peer", peer}, {"dtype", name}, {"forward_ms", first}, {"both_ms", both}, {"refused", refused}});
  };
  row("rondo", kBF16);
  row("rondo", kF32);
  if (std::string why_not; cuda::find_cudnn(&why_not) == nullptr) {
    std::printf("attention by cuDNN: %s\n", why_not.c_str());
    return result;
  }
  cuda::use_cudnn_attention(true);
  row("cuDNN", kBF16);
  cuda::use_cudnn_attention(false);
  return result;
}

// ---- Compiling. Nothing may be found on disk: RONDO_CACHE=off.

test::StepOptions step_options(const Sizes& sizes, DType dtype = kBF16) {
  test::StepOptions options{.dtype = dtype, .batch = sizes.batch};
  if (sizes.small)  // chunks of logits, as at the real size
    options.model = {.vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32, .whole_logits = 0};
  return options;
}

Json compiling(const Sizes& sizes) {
  std::vector<double> small_kernel;
  const int architecture = cuda::architecture_of(cuda::device_state(0).capability());
  for (int i = 0; i < 5; ++i) {
    const std::string source = absl::StrCat(
        "extern \"C\" __global__ void scale(float* x, int n) { const int i = blockIdx.x * blockDim.x + threadIdx.x; if "
        "(i < n) x[i] *= ",
        i + 2, "; }");
    const auto start = Clock::now();
    cuda::compile_image(source, "scale.cu", architecture);
    small_kernel.push_back(1e3 * seconds_since(start));
  }
  const int64_t before = compile::cache_report().misses;
  std::vector<double> steps;
  auto start = Clock::now();
  test::train_steps(step_options(sizes), kGpu, 3, [&] {
    steps.push_back(seconds_since(start));  // of the model's construction, of the first step, of the second
    start = Clock::now();
  });
  const int64_t kernels = compile::cache_report().misses - before;
  std::printf("a small kernel through NVRTC: %.1f ms (the first %.1f ms)\n", median(small_kernel), small_kernel[0]);
  std::printf("first step of GPT-2, compiled in bf16: %.2f s, %d kernels (the second step: %.3f s)\n", steps[1],
              static_cast<int>(kernels), steps[2]);
  return {{"small_kernel_ms", median(small_kernel)},
          {"first_step_s", steps[1]},
          {"kernels", kernels},
          {"second_step_s", steps[2]}};
}

// ---- Each launch of a step

// The driver and cuBLASLt with an event before and after each piece of work on a device. One device, one thread.
struct Watch {
  struct Mark {
    std::string name;
    double tflop;  // of a product
    cuda::EventPtr from, to;
  };
  struct Matrix {
    cuda::LtType type;
    uint64_t rows, columns;
    int64_t line;  // the leading dimension
  };
  cuda::Driver driver, timed;
  cuda::CublasLt lt, timed_lt;
  std::map<cuda::FunctionPtr, std::string> names;
  std::map<cuda::LtLayout, Matrix> layouts;
  std::vector<Mark> marks;
  bool on = false;
  int times = 1;  // that each product runs between its events
};
Watch watch;

template <class Work>
auto marked(const std::string& name, cuda::StreamPtr stream, Work work, int times = 1, double tflop = 0) {
  if (!watch.on) return work();
  Watch::Mark mark{name, tflop, nullptr, nullptr};
  watch.driver.event_create(&mark.from, 0);
  watch.driver.event_create(&mark.to, 0);
  watch.driver.event_record(mark.from, stream);
  auto result = work();
  for (int i = 1; i < times; ++i) result = work();
  watch.driver.event_record(mark.to, stream);
  watch.marks.push_back(std::move(mark));
  return result;
}

void install_watch() {
  std::string why_not;
  const cuda::Driver* driver = cuda::find_driver(&why_not);
  if (driver == nullptr) throw Error(why_not);
  const cuda::CublasLt* lt = cuda::find_cublas_lt(&why_not);
  if (lt == nullptr) throw Error(why_not);
  watch.driver = watch.timed = *driver;
  watch.lt = watch.timed_lt = *lt;
  watch.timed.module_function = [](cuda::FunctionPtr* function, cuda::ModulePtr module, const char* name) {
    const cuda::Result result = watch.driver.module_function(function, module, name);
    if (result == cuda::Result::kSuccess) watch.names[*function] = name;
    return result;
  };
  watch.timed.launch = [](cuda::FunctionPtr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, cuda::StreamPtr stream, void** args, void** extra) {
    return marked(watch.names[function], stream,
                  [&] { return watch.driver.launch(function, gx, gy, gz, bx, by, bz, shared, stream, args, extra); });
  };
  watch.timed.fill_bytes = [](cuda::DevicePtr to, unsigned char value, size_t bytes, cuda::StreamPtr stream) {
    return marked("fill by the driver", stream, [&] { return watch.driver.fill_bytes(to, value, bytes, stream); });
  };
  watch.timed.copy_on_device = [](cuda::DevicePtr to, cuda::DevicePtr from, size_t bytes, cuda::StreamPtr stream) {
    return marked("copy by the driver", stream, [&] { return watch.driver.copy_on_device(to, from, bytes, stream); });
  };
  watch.timed_lt.layout_create = [](cuda::LtLayout* layout, cuda::LtType type, uint64_t rows, uint64_t columns,
                                    int64_t ld) {
    const cuda::LtStatus status = watch.lt.layout_create(layout, type, rows, columns, ld);
    if (status == cuda::LtStatus::kSuccess) watch.layouts[*layout] = {type, rows, columns, ld};
    return status;
  };
  watch.timed_lt.matmul = [](cuda::LtHandle handle, cuda::LtDesc desc, const void* alpha, const void* a,
                             cuda::LtLayout a_layout, const void* b, cuda::LtLayout b_layout, const void* beta,
                             const void* c, cuda::LtLayout c_layout, void* d, cuda::LtLayout d_layout,
                             const cuda::LtAlgo* algo, void* workspace, size_t bytes, cuda::StreamPtr stream) {
    // Columns of cuBLASLt are our rows, and its A is our B (product.h).
    const Watch::Matrix &left = watch.layouts[b_layout], &right = watch.layouts[a_layout],
                        &to = watch.layouts[d_layout];
    const uint64_t inner = right.rows == to.rows ? right.columns : right.rows;
    const std::string name = absl::StrFormat("product %dx%d, K %d, lines of %d, %d and %d%s", to.columns, to.rows,
                                             inner, left.line, right.line, to.line,
                                             to.type == left.type ? "" : " in f32");
    const auto run = [&] {
      return watch.lt.matmul(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
                             workspace, bytes, stream);
    };
    return marked(name, stream, run, watch.times, 2e-12 * static_cast<double>(to.columns * to.rows * inner));
  };
  cuda::close();
  cuda::use_libraries(&watch.timed, &watch.timed_lt);
}

// What the marks have seen, by name; forgets them.
struct Sum {
  int64_t launches = 0;
  double ms = 0, tflop = 0;
};
std::map<std::string, Sum> take_sums() {
  std::map<std::string, Sum> by_name;
  cuda::DeviceState& device = cuda::device_state(0);
  const cuda::ContextScope scope(device);
  for (const Watch::Mark& mark : watch.marks) {
    float ms = 0;
    device.check(watch.driver.event_elapsed(&ms, mark.from, mark.to), "cuEventElapsedTime");
    Sum& sum = by_name[mark.name];
    ++sum.launches, sum.ms += static_cast<double>(ms), sum.tflop += mark.tflop;
    watch.driver.event_destroy(mark.from);
    watch.driver.event_destroy(mark.to);
  }
  watch.marks.clear();
  return by_name;
}
void remove_watch() {
  cuda::close();
  cuda::use_libraries(nullptr, nullptr);
}

// A product that adds to its result does so several times: no value of this step is used.
Json products(const Sizes& sizes) {
  install_watch();
  Json result = Json::array();
  for (const char* kind : {"bf16", "TF32", "f32"}) {
    set_float32_matmul_precision(kind[0] == 'T' ? MatmulPrecision::kHigh : MatmulPrecision::kHighest);
    watch.times = sizes.small ? 1 : 5;
    int begun = 0;
    test::train_steps(step_options(sizes, kind[0] == 'b' ? kBF16 : kF32), kGpu, 3, [&] {
      synchronize(kGpu);
      watch.on = ++begun > 2;
    });
    synchronize(kGpu);
    watch.on = false;
    for (const auto& [name, sum] : take_sums()) {
      if (sum.tflop == 0) continue;
      const double ms = sum.ms / watch.times, rate = sum.tflop / (ms / 1e3);
      std::printf("%-4s %-60s %4d x %7.1f us  %6.1f Tflop/s\n", kind, name.c_str(), static_cast<int>(sum.launches),
                  1e3 * ms / static_cast<double>(sum.launches), rate);
      result.push_back({{"name", name}, {"kind", kind}, {"launches", sum.launches}, {"ms", ms}, {"tflops", rate}});
    }
  }
  watch.times = 1;
  set_float32_matmul_precision(MatmulPrecision::kHighest);
  remove_watch();
  return result;
}

Json step(const Sizes& sizes) {
  install_watch();
  constexpr int kSteps = 6;  // the first three compile, allocate and make states
  int begun = 0;
  std::vector<int64_t> launches;
  test::train_steps(step_options(sizes), kGpu, kSteps, [&] {
    synchronize(kGpu);
    launches.push_back(static_cast<int64_t>(watch.marks.size()));
    watch.on = ++begun > 3;
  });
  synchronize(kGpu);
  launches.push_back(static_cast<int64_t>(watch.marks.size()));
  watch.on = false;
  const int timed = kSteps - 3;
  const int64_t per_step = launches[kSteps] - launches[kSteps - 1];
  std::map<std::string, Sum> by_name = take_sums();
  double all = 0;
  for (auto& [name, sum] : by_name) all += sum.ms /= timed;
  std::vector<std::pair<std::string, Sum>> sorted(by_name.begin(), by_name.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::printf("launches a step: %d\n", static_cast<int>(per_step));
  std::printf("%8.3f ms in kernels, by name:\n", all);
  constexpr size_t kShown = 30;
  Json kernels = Json::array();
  for (size_t i = 0; i < sorted.size(); ++i) {
    const auto& [name, sum] = sorted[i];
    const double each = 1e3 * sum.ms * timed / static_cast<double>(sum.launches);
    if (i < kShown)
      std::printf("%8.3f ms %5.1f%% %4d x %8.1f us  %s\n", sum.ms, 100 * sum.ms / all,
                  static_cast<int>(sum.launches / timed), each, name.substr(0, 80).c_str());
    kernels.push_back({{"name", name}, {"launches", sum.launches / timed}, {"ms", sum.ms}});
  }
  if (sorted.size() > kShown) std::printf("and %d more names\n", static_cast<int>(sorted.size() - kShown));
  remove_watch();
  return {{"launches", per_step}, {"kernel_ms", all}, {"kernels", kernels}};
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::Options options(argc, argv);
  const bool small = options.integer("small", 0) != 0;
  const Sizes sizes{small, options.integer("batch", small ? 2 : 4)};
  const std::string only = options.text("only", "memory,products,attention,compile,step"),
                    file = options.text("json", "");
  std::string why_not;
  if (cuda::open_devices(&why_not) == 0) throw Error(why_not);
  const std::map<std::string, Json (*)(const Sizes&)> parts = {{"memory", &memory},
                                                               {"products", &products},
                                                               {"attention", &attention},
                                                               {"compile", &compiling},
                                                               {"step", &step}};
  Json result = Json::object();
  for (const absl::string_view name : absl::StrSplit(only, ',')) {
    const auto part = parts.find(std::string(name));
    if (part == parts.end()) throw Error(absl::StrCat("--only takes memory, products, ..., not ", name));
    result[part->first] = part->second(sizes);
    std::fflush(stdout);
    if (!file.empty()) std::ofstream(file) << result.dump() << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_device: %s\n", error.what());
  return 1;
}

// AdamW, f32, compiled and eager: milliseconds a step over three lists of tensors, beside the machine's own stream over
// as much memory, all timed in turn. GB/s counts 28 bytes a parameter: four arrays read, three written. The stream is
// the better of two loops that do nothing else: the same traffic (four read, three of them written), and one array in
// place. Also: what compiling costs for 10 and for 10,000 tensors, and a whole step (loss scale, finite check,
// clipping, moving average, bf16 copy, zeroed gradients) in joined passes and one by one.
//
//   bench_optimizer [--json] [--threads N] [--seconds S] [--list gpt2_124m|1000x1024|10000x64] [--state f32|bf16|8bit]
//   bench_optimizer --serve --list L     answers a line "N" with the times of N steps (tests/bench/peers/README.md)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"

namespace {

using nlohmann::json;
using rondo::Dims;
using rondo::Tensor;
namespace optim = rondo::optim;

std::vector<Dims> gpt2_124m() {
  std::vector<Dims> shapes = {{50257, 768}, {1024, 768}};
  for (int layer = 0; layer < 12; ++layer)
    for (const Dims& d : {Dims{768}, Dims{768}, Dims{2304, 768}, Dims{2304}, Dims{768, 768}, Dims{768}, Dims{768},
                          Dims{768}, Dims{3072, 768}, Dims{3072}, Dims{768, 3072}, Dims{768}})
      shapes.push_back(d);
  shapes.insert(shapes.end(), 2, Dims{768});
  return shapes;
}
std::vector<Dims> shapes_of(const std::string& list) {
  if (list == "gpt2_124m") return gpt2_124m();
  if (list == "1000x1024") return std::vector<Dims>(1000, Dims{1024});
  if (list == "10000x64") return std::vector<Dims>(10000, Dims{64});
  throw rondo::Error("no such list: " + list);
}

double seconds_of(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

struct Stream {
  int64_t n;
  std::vector<Tensor> arrays;
  explicit Stream(int64_t n) : n(n) {
    for (int k = 0; k < 4; ++k) arrays.push_back(Tensor::ones({n}));
  }
  void four_read_three_written() {
    float* p[4];
    for (size_t k = 0; k < 4; ++k) p[k] = arrays[k].mutable_data<float>();
    rondo::parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
      float* __restrict a = p[0], * __restrict b = p[1], * __restrict c = p[2];
      const float* __restrict d = p[3];
      for (int64_t i = begin; i < end; ++i) {
        a[i] += d[i];
        b[i] += d[i];
        c[i] += d[i];
      }
    });
  }
  void in_place() {  // 28 bytes for each of n elements: three and a half arrays
    float* p[4];
    for (size_t k = 0; k < 4; ++k) p[k] = arrays[k].mutable_data<float>();
    rondo::parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
      for (size_t k = 0; k < 4; ++k) {
        float* __restrict a = p[k];
        const int64_t last = k < 3 ? end : begin + (end - begin) / 2;
        for (int64_t i = begin; i < last; ++i) a[i] += 1.0f;
      }
    });
  }
};

optim::StateFormat state_format = optim::StateFormat::kFull;

// Parameters, their gradients, and an optimizer over them.
struct Trained {
  std::vector<Tensor> params;
  std::unique_ptr<optim::AdamW> optimizer;
  int64_t n = 0;
  Trained(const std::vector<Dims>& shapes, bool compiled) {
    for (const Dims& shape : shapes) {
      params.push_back(Tensor::full(shape, 0.1).requires_grad_());
      params.back().set_grad(Tensor::full(shape, 0.01));
      n += shape.numel();
    }
    optimizer = std::make_unique<optim::AdamW>(
        params, optim::AdamWOptions{.betas = {0.9, 0.95}, .weight_decay = 0.1, .state = state_format});
    if (compiled) optim::compile(*optimizer);
  }
};

double compile_ms(int n_tensors) {
  rondo::compile::forget_unused_kernels();
  Trained trained(std::vector<Dims>(static_cast<size_t>(n_tensors), Dims{64}), true);
  trained.optimizer->step();
  if (trained.optimizer->kernels().compilations != 1) throw rondo::Error("the kernel was there already");
  return trained.optimizer->kernels().compile_ms;
}

json run(const std::string& list, double seconds) {
  const std::vector<Dims> shapes = shapes_of(list);
  double stream_step = 1e30, compiled_step = 0;
  json result;
  std::vector<double> compiled, eager, seven, one;
  {
    Trained trained(shapes, true);
    Stream stream(trained.n);
    for (double total = -1; total < seconds || compiled.size() < 5;) {
      const double step = seconds_of([&] { trained.optimizer->step(); });
      const double a = seconds_of([&] { stream.four_read_three_written(); });
      const double b = seconds_of([&] { stream.in_place(); });
      if (total < 0) {  // the first of each warms up
        total = 0;
        continue;
      }
      compiled.push_back(step);
      seven.push_back(a);
      one.push_back(b);
      total += step + a + b;
    }
    compiled_step = median(compiled);
    stream_step = std::min(median(seven), median(one));
    const double gb = 28e-9 * static_cast<double>(trained.n);
    result = {{"list", list},
              {"threads", rondo::num_threads()},
              {"n_tensors", shapes.size()},
              {"n_parameters", trained.n},
              {"step_ms", compiled_step * 1e3},
              {"gb_per_s", gb / compiled_step},
              {"stream_gb_per_s", gb / stream_step},
              {"stream_gb_per_s_same_traffic", gb / median(seven)},
              {"stream_gb_per_s_in_place", gb / median(one)},
              {"ratio", stream_step / compiled_step},
              {"runs", compiled.size()}};
  }
  {
    Trained trained(shapes, false);
    trained.optimizer->step();
    for (double total = 0; total < seconds / 4 || eager.size() < 5; total += eager.back())
      eager.push_back(seconds_of([&] { trained.optimizer->step(); }));
    result["eager_ms"] = median(eager) * 1e3;
  }
  // Everything a step of mixed-precision training does to parameters and gradients.
  std::vector<double> joined, apart;
  {
    Trained trained(shapes, true);
    trained.optimizer->track_average();
    trained.optimizer->keep_copies(rondo::kBF16);
    for (double total = -1; total < seconds / 4 || joined.size() < 5;) {
      const double t = seconds_of(
          [&] { trained.optimizer->step({.grad_scale = 2, .max_norm = 1, .zero_grad = true}); });
      if (total < 0) total = 0;
      else total += joined.emplace_back(t);
    }
  }
  {
    Trained trained(shapes, true);
    std::vector<Tensor> averages, copies;
    for (const Tensor& p : trained.params) {
      averages.push_back(p.detach().clone());
      copies.push_back(p.detach().to(rondo::kBF16));
    }
    auto average = optim::compile_map([](auto& a, auto p, auto weight) { a = rondo::scalar::fma(weight, p - a, a); });
    auto unscale = optim::compile_map([](auto& g, auto factor) { g = g * factor; });
    auto cast = optim::compile_map([](auto& copy, auto p) { copy = p; });
    auto zero = optim::compile_map([](auto& g) { g = rondo::scalar::constant(g, 0.0); });
    for (double total = -1; total < seconds / 4 || apart.size() < 5;) {
      const double t = seconds_of([&] {
        std::vector<Tensor> grads;
        for (const Tensor& p : trained.params) grads.push_back(p.grad());
        unscale(grads, 0.5);
        optim::clip_grad_norm_(trained.params, 1);
        trained.optimizer->step();
        average(averages, trained.params, 0.001);
        cast(copies, trained.params);
        zero(grads);
      });
      if (total < 0) total = 0;
      else total += apart.emplace_back(t);
    }
  }
  result["joined_ms"] = median(joined) * 1e3;
  result["apart_ms"] = median(apart) * 1e3;
  return result;
}

void print(const json& r) {
  std::printf(
      "%-10s  %5d tensors  %9.3f ms  %6.1f GB/s, stream %6.1f: %.3f   eager %9.3f ms   all joined %9.3f ms, apart "
      "%9.3f ms\n",
      r["list"].get<std::string>().c_str(), r["n_tensors"].get<int>(), r["step_ms"].get<double>(),
      r["gb_per_s"].get<double>(), r["stream_gb_per_s"].get<double>(), r["ratio"].get<double>(),
      r["eager_ms"].get<double>(), r["joined_ms"].get<double>(), r["apart_ms"].get<double>());
  std::fflush(stdout);
}

void serve(const std::string& list) {
  std::unique_ptr<Trained> trained;
  for (std::string line; std::getline(std::cin, line);) {
    if (trained == nullptr) {
      trained = std::make_unique<Trained>(shapes_of(list), true);
      for (int warm = 0; warm < 2; ++warm) trained->optimizer->step();
    }
    std::vector<double> times;
    for (int i = std::atoi(line.c_str()); i > 0; --i)
      times.push_back(1e3 * seconds_of([&] { trained->optimizer->step(); }));
    const json answer = {{"peer", "rondo"},
                         {"list", list},
                         {"step_ms_all", times},
                         {"step_ms_median", times.empty() ? 0.0 : median(times)},
                         {"compile_ms", trained->optimizer->kernels().compile_ms}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 4;
  std::string only;
  bool as_json = false, serving = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--json") as_json = true;
    else if (option == "--serve") serving = true;
    else if (option == "--threads" && i + 1 < argc) rondo::set_num_threads(std::atoi(argv[++i]));
    else if (option == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (option == "--list" && i + 1 < argc) only = argv[++i];
    else if (option == "--state" && i + 1 < argc) {
      const std::string format = argv[++i];
      state_format = format == "bf16"   ? optim::StateFormat::kBF16
                     : format == "8bit" ? optim::StateFormat::k8Bit
                                        : optim::StateFormat::kFull;
    }
  }
  ::setenv("RONDO_CACHE", "off", 1);  // what is compiled is compiled here
  if (serving) return serve(only), 0;
  json all;
  const double first = compile_ms(10);  // loads LLVM
  std::vector<double> few, many;
  for (int i = 0; i < 5; ++i) few.push_back(compile_ms(10)), many.push_back(compile_ms(10000));
  all["compile_ms"] = {{"first_with_llvm", first}, {"10_tensors", median(few)}, {"10000_tensors", median(many)}};
  if (!as_json)
    std::printf("compile: %.1f ms with 10 tensors, %.1f ms with 10,000; %.1f ms with loading LLVM\n", median(few),
                median(many), first);
  for (const char* list : {"gpt2_124m", "1000x1024", "10000x64"}) {
    if (!only.empty() && only != list) continue;
    all["lists"].push_back(run(list, seconds));
    if (!as_json) print(all["lists"].back());
  }
  if (as_json) std::printf("%s\n", all.dump(1).c_str());
}

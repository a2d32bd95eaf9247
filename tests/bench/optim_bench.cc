// AdamW, f32, eager: milliseconds a step over three lists of tensors, beside a bare stream loop over the same memory
// (four arrays read, three written, one addition each), the two timed in turn. GB/s counts 28 bytes a parameter, as
// peers/adamw.py does. Prints one JSON object a line.
//
//   bench_optim [--threads N] [--seconds S] [--list gpt2_124m|1000x1024|10000x64]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/runtime/parallel.h"

namespace {

using rondo::Dims;
using rondo::Tensor;

std::vector<Dims> gpt2_124m() {
  std::vector<Dims> shapes = {{50257, 768}, {1024, 768}};
  for (int layer = 0; layer < 12; ++layer)
    for (const Dims& d : {Dims{768}, Dims{768}, Dims{2304, 768}, Dims{2304}, Dims{768, 768}, Dims{768}, Dims{768},
                          Dims{768}, Dims{3072, 768}, Dims{3072}, Dims{768, 3072}, Dims{768}})
      shapes.push_back(d);
  shapes.insert(shapes.end(), 2, Dims{768});
  return shapes;
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

// The ceiling: the same traffic over four arrays of `n` floats.
struct Stream {
  int64_t n;
  Tensor a = Tensor::zeros({n}), b = Tensor::zeros({n}), c = Tensor::zeros({n}), d = Tensor::ones({n});
  void run() {
    float* pa = a.mutable_data<float>();
    float* pb = b.mutable_data<float>();
    float* pc = c.mutable_data<float>();
    const float* pd = d.data<float>();
    rondo::parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float g = pd[i];
        pa[i] += g;
        pb[i] += g;
        pc[i] += g;
      }
    });
  }
};

void run(const char* name, const std::vector<Dims>& shapes, double seconds) {
  std::vector<Tensor> params;
  int64_t n = 0;
  for (const Dims& shape : shapes) {
    params.push_back(Tensor::full(shape, 0.1).requires_grad_());
    params.back().set_grad(Tensor::full(shape, 0.01));
    n += shape.numel();
  }
  rondo::optim::AdamW optimizer(params, {.betas = {0.9, 0.95}, .weight_decay = 0.1});
  Stream stream{n};
  std::vector<double> step, floor, norm;
  for (int warm = 0; warm < 2; ++warm) optimizer.step(), stream.run();
  for (double total = 0; total < seconds || step.size() < 5;) {
    step.push_back(seconds_of([&] { optimizer.step(); }));
    floor.push_back(seconds_of([&] { stream.run(); }));
    norm.push_back(seconds_of([&] { rondo::optim::clip_grad_norm_(params, 1e9); }));
    total += step.back() + floor.back();
  }
  const auto least = [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); };
  const double gb = 28e-9 * static_cast<double>(n);
  std::printf(
      "{\"list\": \"%s\", \"threads\": %d, \"n_tensors\": %zu, \"n_parameters\": %lld, \"step_ms_median\": %.3f, "
      "\"step_ms_min\": %.3f, \"gb_per_s\": %.2f, \"gb_per_s_best\": %.2f, \"stream_gb_per_s\": %.2f, "
      "\"stream_gb_per_s_best\": %.2f, \"norm_ms_median\": %.3f, \"norm_gb_per_s\": %.2f, \"runs\": %zu}\n",
      name, rondo::num_threads(), shapes.size(), static_cast<long long>(n), median(step) * 1e3, least(step) * 1e3,
      gb / median(step), gb / least(step), gb / median(floor), gb / least(floor), median(norm) * 1e3,
      4e-9 * static_cast<double>(n) / median(norm), step.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 4;
  std::string list;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--threads")
      rondo::set_num_threads(std::atoi(argv[i + 1]));
    else if (option == "--seconds")
      seconds = std::atof(argv[i + 1]);
    else if (option == "--list")
      list = argv[i + 1];
  }
  const std::vector<std::pair<const char*, std::vector<Dims>>> lists = {
      {"gpt2_124m", gpt2_124m()},
      {"1000x1024", std::vector<Dims>(1000, Dims{1024})},
      {"10000x64", std::vector<Dims>(10000, Dims{64})},
  };
  for (const auto& [name, shapes] : lists)
    if (list.empty() || list == name) run(name, shapes, seconds);
}

// Trains with Rondo and with libtorch in one process: each alone, in turns, and at once in two threads. Prints Rondo's
// losses, which are those of neighbours.cc.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "rondo/tests/neighbours/training.h"

namespace {

using rondo::tests::kSteps;

// The same network, from other numbers.
class TorchTraining {
 public:
  double step() {
    const at::Tensor hidden = at::relu(at::conv2d(x_, kernel_, kernel_bias_, 1, 1)).reshape({16, 16 * 8 * 8});
    const at::Tensor loss = at::mse_loss(at::linear(hidden, weight_, bias_), wanted_);
    loss.backward();
    for (at::Tensor* parameter : {&kernel_, &kernel_bias_, &weight_, &bias_}) {
      parameter->data().sub_(parameter->grad(), 0.1);
      parameter->mutable_grad().reset();
    }
    return loss.item<double>();
  }

 private:
  static at::Tensor made(at::IntArrayRef sizes, double scale, bool trained) {
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    at::Tensor t = at::sin(at::arange(numel, at::kFloat) * 1.7).mul(scale).reshape(sizes);
    return t.set_requires_grad(trained);
  }
  const at::Tensor x_ = made({16, 3, 8, 8}, 1, false), wanted_ = made({16, 10}, 1, false);
  at::Tensor kernel_ = made({16, 3, 3, 3}, 0.2, true), kernel_bias_ = made({16}, 0.2, true),
             weight_ = made({10, 16 * 8 * 8}, 0.03, true), bias_ = made({10}, 0.03, true);
};

std::vector<double> torch_losses() {
  TorchTraining training;
  std::vector<double> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(training.step());
  return losses;
}

int failures = 0;
void expect_equal(const std::vector<double>& losses, const std::vector<double>& wanted, const char* what) {
  if (losses == wanted) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

}  // namespace

int main() try {
  at::set_num_threads(1);  // sums in one order
  const std::vector<double> rondo = rondo::tests::losses(), torch = torch_losses();
  for (const double loss : rondo) std::printf("%.17g\n", loss);
  if (!(torch.back() < torch.front() / 2)) expect_equal({}, torch, "libtorch does not learn");

  std::vector<double> ours, theirs;
  {
    rondo::tests::Training one;
    TorchTraining other;
    for (int i = 0; i < kSteps; ++i) {
      ours.push_back(one.step());
      theirs.push_back(other.step());
    }
  }
  expect_equal(ours, rondo, "in turns: Rondo's losses");
  expect_equal(theirs, torch, "in turns: libtorch's losses");

  for (int repeat = 0; repeat < 5; ++repeat) {
    std::exception_ptr error;
    std::thread other([&] {
      try {
        at::set_num_threads(1);
        theirs = torch_losses();
      } catch (...) {
        error = std::current_exception();
      }
    });
    ours = rondo::tests::losses();
    other.join();
    if (error) std::rethrow_exception(error);
    expect_equal(ours, rondo, "at once: Rondo's losses");
    expect_equal(theirs, torch, "at once: libtorch's losses");
  }
  return failures == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("FAILED: %s\n", e.what());
  return 1;
}

// Trains a small network for five steps as an outside program, eager and with its blocks compiled, as a job of one
// process.   tiny FOLDER_OF_THE_PLUG_IN|none
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "rondo/rondo.h"

using namespace rondo;

Tensor doubled(const Tensor& x);  // second.cc

struct Net : nn::Module<Net> {
  nn::Linear in = child("in", 4, 16);
  nn::ModuleList<nn::MLP> blocks = child("blocks", 2, 16, 32);
  nn::Linear out = child("out", 16, 1);
  Tensor forward(const Tensor& x) {
    Tensor h = in(x);
    for (nn::MLP& block : blocks) h = h + block(h);
    return out(h);
  }
};

// The losses of five steps.
std::vector<double> train(bool compiled) {
  manual_seed(1);
  Net net;
  if (compiled) compile::compile_regions(net, {.exact = true});
  dist::DistributedDataParallel ddp(net, dist::ProcessGroup::connect({}));
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
  const Tensor x = Tensor::randn({32, 4}), y = doubled(ops::sum(x, {1}, true));
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const Tensor error = net(x) - y, loss = ops::mean(error * error);
    loss.backward();
    ddp.finish();
    optimizer.step();
    losses.push_back(loss.item());
  }
  return losses;
}

// The folder of the code generator that is loaded into this process; "none".
std::string folder_of_plugin() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t name = line.find("/librondo_jit_llvm"); name != std::string::npos)
      return line.substr(line.find('/'), name - line.find('/'));
  return "none";
}

bool fail(const std::string& what) {
  std::printf("%s\n", what.c_str());
  return false;
}

// An error that the library throws is caught by its type here, and names this file and the module's path.
bool errors_cross() {
  Net net;
  try {
    net(Tensor::randn({2, 5}));
  } catch (const InternalError& e) {
    return fail(std::string("an internal error: ") + e.what());
  } catch (const Error& e) {
    const std::string what = e.what();
    return (what.find("tiny.cc") != std::string::npos && what.find("in in)") != std::string::npos) ||
           fail("no file or module path: " + what);
  }
  return fail("a wrong shape is no error");
}

// Bodies of kernels that this program instantiates itself.
bool maps_run() {
  std::vector<Tensor> values{Tensor::ones({3})};
  optim::foreach_map([](auto& v, auto s) { v = scalar::fma(v, s, v); }, values, 2.0);
  return ops::sum(values[0]).item() == 9 || fail("foreach_map is wrong");
}

// A device that this program makes of host memory (runtime/device/backend.h).
bool own_device_runs() {
  static BackendTable table = backend_of(kCPU);
  table.name = "slate";
  table.host_memory = false;
  table.enqueue = [](int, Stream, absl::AnyInvocable<void()> work) { work(); };
  install_backend(Backend::kFake, &table);
  const Device slate{Backend::kFake, 0};
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2}).to(slate).requires_grad_();
  ops::sum(x.slice(1, {0, 1}) * 3.0).backward();
  const bool right = to_string(x.device()) == "slate:0" && x.grad().device() == slate &&
                     x.grad().to_vector<float>() == std::vector<float>{3, 0, 3, 0};
  return right || fail("a device of this program computes something else: " + x.grad().to_string());
}

int main(int argc, char** argv) {
  const std::string expected = argc > 1 ? argv[1] : "";
  if (!errors_cross() || !maps_run() || !own_device_runs()) return 1;
  const std::vector<double> eager = train(false);
  std::printf("eager: %.6f -> %.6f\n", eager.front(), eager.back());
  if (!(eager.back() < eager.front())) return 1;
  if (folder_of_plugin() != "none") return !fail("eager execution loaded the code generator");
  std::vector<double> compiled;
  try {
    compiled = train(true);
  } catch (const Error& e) {
    if (expected == "none" && std::string(e.what()).find("Build Rondo with LLVM") != std::string::npos) {
      std::printf("as expected: %s\n", e.what());
      return 0;
    }
    return !fail(std::string("not compiled: ") + e.what());
  }
  std::printf("compiled: %.6f -> %.6f\n", compiled.front(), compiled.back());
  if (folder_of_plugin() != expected)
    return !fail("the code generator is from '" + folder_of_plugin() + "', not from '" + expected + "'");
  return compiled == eager ? 0 : !fail("compiled and eager differ");
}

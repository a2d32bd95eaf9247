// Trains a small network for five steps against an installed Rondo, eager and with its blocks compiled, as a job of one
// process.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "rondo/compile/compile.h"
#include "rondo/dist/ddp.h"
#include "rondo/modules/layers.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random.h"

using namespace rondo;

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
  const Tensor x = Tensor::randn({32, 4}), y = ops::sum(x, {1}, true);
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

// True if the code generator that is loaded into this process lies below `prefix`.
bool plugin_is_from(const std::string& prefix) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("librondo_jit_llvm") != std::string::npos) return line.find(prefix) != std::string::npos;
  return true;  // linked in
}

int main(int, char** argv) {
  const std::vector<double> eager = train(false);
  std::printf("eager: %.6f -> %.6f\n", eager.front(), eager.back());
  if (!(eager.back() < eager.front())) return 1;
  std::vector<double> compiled;
  try {
    compiled = train(true);
  } catch (const Error& e) {
    // A build without LLVM says so; anything else is a failure.
    std::printf("compiled: %s\n", e.what());
    return std::strstr(e.what(), "LLVM") != nullptr ? 77 : 1;
  }
  std::printf("compiled: %.6f -> %.6f\n", compiled.front(), compiled.back());
  if (!plugin_is_from(argv[1])) {
    std::printf("the code generator was not loaded from %s\n", argv[1]);
    return 1;
  }
  return compiled == eager ? 0 : 1;
}

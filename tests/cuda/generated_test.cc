// Generated kernels on a CUDA device: eager ops, regions, tables. The fake driver runs their source.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "rondo/compile/compile.h"
#include "rondo/compile/exec/eager_ops.h"
#include "rondo/compile/exec/table_launch.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/cuda/target.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/cuda_on_host/hand_built.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::same_bits;
using Tensors = std::vector<Tensor>;

// The largest difference, of the largest magnitude.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(kCPU).to_vector<double>(), y = b.to(kCPU).to_vector<double>();
  EXPECT_EQ(x.size(), y.size());
  double difference = 0, largest = 1e-30;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
    if (std::isnan(x[i]) || x[i] == y[i]) continue;
    difference = std::max(difference, std::abs(x[i] - y[i]));
    largest = std::max(largest, std::abs(y[i]));
  }
  return difference / largest;
}
Tensors to(const Tensors& tensors, Device device) {
  Tensors moved;
  for (const Tensor& t : tensors) moved.push_back(t.defined() ? t.to(device) : t);
  return moved;
}

// `run` in five orders of threads and of the streams' work: the same bits. Returns them, on the host.
Tensors in_all_orders(const std::function<Tensors(Device)>& run) {
  Tensors first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    const Tensors results = to(run(cuda.device()), kCPU);
    if (seed == 0) first = results;
    EXPECT_EQ(results.size(), first.size());
    for (size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(same_bits(results[i], first[i])) << "seed " << seed << ", result " << i;
  }
  return first;
}

// ---- Eager ops

TEST(CudaEager, OpsThatLowerRunGenerated) {
  const int64_t before = compile::eager_ops_report().calls;
  int compared = 0;
  for (const test::OpSpec& spec : test::op_specs()) {
    const OpDef& op = *find_op(spec.name);
    if (op.lower == nullptr) continue;
    FakeCuda cuda({.seed = 3});
    const std::vector<test::OpSample> samples = test::samples_of(spec);
    const test::OpSample& first = samples.front();
    for (const test::OpSample& sample : samples) {
      for (const DType dtype : {kF32, kBF16}) {
        if (dtype == kBF16 && &sample != &first) continue;
        const Tensors inputs = sample.inputs_as(dtype);
        if (inputs.empty()) continue;
        const Tensors expected = test::apply_op(op, inputs, sample.attrs, sample.n_outputs);
        if (std::any_of(expected.begin(), expected.end(), [](const Tensor& t) { return t.numel() == 0; })) continue;
        SCOPED_TRACE(std::string(spec.name) + " " + sample.label + " " + name_of(dtype).data());
        const auto [generated, plans, compiled, refused] = compile::eager_ops_report();
        Tensors results;
        try {
          results = test::apply_op(op, to(inputs, cuda.device()), sample.attrs, sample.n_outputs);
        } catch (const Error& e) {
          // Not all operands lower: single numbers and integers do not. Kernels by hand are tested elsewhere.
          EXPECT_GT(compile::eager_ops_report().refused, refused) << e.what();
          continue;
        }
        if (compile::eager_ops_report().calls == generated) continue;  // no lowering for these operands
        ++compared;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(results[i].sizes(), expected[i].sizes());
          if (op.kind == OpKind::kElementwise)
            EXPECT_TRUE(same_bits(results[i].to(kCPU), expected[i])) << "output " << i;
          else EXPECT_LE(distance(results[i], expected[i]), dtype == kF32 ? 2e-6 : 8e-3) << "output " << i;
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(compile::eager_ops_report().calls, before);
}

// One kernel serves all sizes; where a size has another schedule, code for that is made once.
TEST(CudaEager, SizesDecideTheSchedule) {
  manual_seed(1);
  Tensors inputs;
  for (const int64_t cols : {3, 33, 500, 1000, 1500, 5000, 33, 5000}) inputs.push_back(Tensor::randn({7, cols}));
  const auto run = [&](Device device) {
    Tensors results;
    for (const Tensor& x : inputs) {
      results.push_back(ops::softmax(x.to(device), -1));
      results.push_back(ops::sum(x.to(device), 0));
      results.push_back(ops::sum(x.to(device), -1));
      results.push_back(ops::gelu(x.to(device)));
    }
    return results;
  };
  const Tensors expected = run(kCPU), results = in_all_orders(run);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LE(distance(results[i], expected[i]), 2e-6) << i;
}

// ---- Regions

struct Mix : nn::Module<Mix> {
  explicit Mix(int64_t width) : width(width) {}
  int64_t width;
  nn::LayerNorm norm = child("norm", width);
  Tensor& scale = parameter("scale", Tensor::randn({width}));
  Tensor& shift = parameter("shift", Tensor::randn({width}));
  Tensor forward(const Tensor& x) {
    const Tensor h = ops::gelu(norm(x) * scale + shift);
    return ops::softmax(h, -1) * x + h;
  }
};

// Forward and backward: the result and all gradients.
Tensors step(Device device, bool compiled, bool exact, const Tensor& x, const Tensor& grad, int64_t width) {
  manual_seed(7);
  Mix model(width);
  model.to(device);
  std::optional<compile::Regions> regions;
  if (compiled) regions = compile::compile_module(model, {.exact = exact});
  const Tensor input = x.to(device).detach().requires_grad_();
  const Tensor y = model(input);
  y.backward(grad.to(device));
  if (compiled) {
    EXPECT_EQ(regions->report()[0].failed_compilations, 0) << regions->report()[0].last_failed_compilation;
    EXPECT_EQ(regions->report()[0].eager_runs, 0);
  }
  return {y.detach(),
          input.grad(),
          model.scale.grad(),
          model.shift.grad(),
          model.norm.weight.grad(),
          model.norm.bias.grad()};
}

TEST(CudaRegions, ForwardAndBackward) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{6, 24}, {40, 100}, {3, 1500}}) {
    manual_seed(3);
    const Tensor x = Tensor::randn({rows, width}), grad = Tensor::randn({rows, width});
    const Tensors expected = step(kCPU, compile::jit_available(kCPU), true, x, grad, width);
    const Tensors compiled = in_all_orders([&](Device d) { return step(d, true, true, x, grad, width); });
    const Tensors eager = in_all_orders([&](Device d) { return step(d, false, true, x, grad, width); });
    const Tensors relaxed = in_all_orders([&](Device d) { return step(d, true, false, x, grad, width); });
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(distance(compiled[i], expected[i]), 3e-6) << "result " << i << " at " << rows << " x " << width;
      EXPECT_LE(distance(relaxed[i], expected[i]), 3e-6) << "result " << i;
      EXPECT_TRUE(same_bits(compiled[i], eager[i])) << "exact mode, result " << i << " at " << rows << " x " << width;
    }
  }
}

// Sums over the rows of kernels of other widths are added up by one launch, as wide as the widest.
TEST(CudaRegions, SumsOfOtherWidths) {
  FakeCuda cuda;
  const auto sums = [](const Tensor& x) {
    return Tensors{ops::sum(x * 2.0, {0}), ops::sum(x.slice(1, {0, 20}).contiguous() * 3.0, {0})};
  };
  const Tensor x = Tensor::randint(-9, 9, {37, 100}).to(kF32);  // whole numbers: any order
  auto compiled = compile::compile(sums);
  const Tensors expected = sums(x), actual = compiled(x.to(cuda.device()));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i].to(kCPU), expected[i])) << i;
}

TEST(CudaRegions, DynamicSizes) {
  FakeCuda cuda({.seed = 4});
  manual_seed(7);
  Mix model(24), reference(24);
  reference.load_state_dict(model.state_dict());
  model.to(cuda.device());
  const compile::Regions regions = compile::compile_module(model, {.exact = true});
  int compilations = 0;
  for (const int64_t rows : {6, 9, 5, 300, 1, 64, 1025}) {
    const Tensor x = Tensor::randn({rows, 24}), grad = Tensor::randn({rows, 24});
    const Tensor here = (x * 1.0).detach().requires_grad_(), there = x.to(cuda.device()).detach().requires_grad_();
    const Tensor y = model(there), expected = reference(here);
    const Tensor arriving = grad.to(cuda.device());
    EXPECT_LE(distance(y.detach(), expected.detach()), 3e-6) << rows;
    EXPECT_LE(distance(autograd::grad({&y, 1}, {&there, 1}, {&arriving, 1})[0],
                       autograd::grad({&expected, 1}, {&here, 1}, {&grad, 1})[0]),
              3e-6)
        << rows;
    if (rows == 5) compilations = regions.report()[0].compilations;
  }
  EXPECT_LE(regions.report()[0].compilations, compilations + 1) << "rows of 1 differ from others";
}

// Without NVRTC a region runs eagerly, and says so once; eager kernels that were compiled before go on.
TEST(CudaRegions, WithoutNvrtc) {
  const test::MeansToRun eagerly(test::Eagerly::kFailing, "there is no compiler for the device");
  manual_seed(3);
  const Tensor x = Tensor::randn({6, 24}), grad = Tensor::randn({6, 24});
  std::vector<std::string> warnings;
  FakeCuda cuda;
  const Tensors expected = to(step(cuda.device(), false, true, x, grad, 24), kCPU);
  cuda::close();
  cuda::forget_libraries();
  // A file of NVRTC's name, which is another library.
  const test::TempFolder folder;
  Dl_info library{};
  dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(&std::cos)), &library);
  std::filesystem::create_symlink(library.dli_fname, folder / "libnvrtc.so.13");
  std::filesystem::create_symlink(std::string(std::getenv("RONDO_CUDA_PATH")) + "/libcuda.so.1",
                                  folder / "libcuda.so.1");
  const test::Setting path("RONDO_CUDA_PATH", folder.path().c_str());
  compile::log::set_log_sink([&](std::string_view text) { warnings.emplace_back(text); });
  manual_seed(7);
  Mix model(24);
  model.to(cuda.device());
  const compile::Regions regions = compile::compile_module(model, {.exact = false});
  for (int call = 0; call < 3; ++call)
    EXPECT_TRUE(same_bits(model(x.to(cuda.device())).detach().to(kCPU), expected[0]));
  compile::log::set_log_sink(nullptr);
  EXPECT_EQ(regions.report()[0].failed_compilations, 1);
  EXPECT_NE(regions.report()[0].last_failed_compilation.find("no kernels for CUDA: "), std::string::npos);
  EXPECT_EQ(std::count_if(warnings.begin(), warnings.end(),
                          [](const std::string& w) { return w.find("runs eagerly") != w.npos; }),
            1);
}

TEST(CudaCache, DamagedCodeIsNotUsed) {
  FakeCuda cuda;
  const test::TempFolder folder;
  compile::LoopKernel kernel = compile::cuda::softmax(kF32, 8, 40);
  compile::cuda::kSm90.schedule(kernel);
  const io::DiskCacheOptions disk{.folder = folder.path()};
  const std::string object = compile::cuda::kSm90.compile(kernel, {});
  {
    compile::CodeStore store(disk, compile::cuda::kSm90.key(), compile::cuda::kSm90);
    store.add("a kernel", object);
    store.forget();
    EXPECT_NE(store.find("a kernel").code, nullptr) << "on disk";
    EXPECT_EQ(store.report().from_disk, 1);
  }
  io::DiskCache(disk, compile::cuda::kSm90.key()).store("another", object.substr(0, object.size() / 2));
  compile::CodeStore store(disk, compile::cuda::kSm90.key(), compile::cuda::kSm90);
  EXPECT_EQ(store.find("another").code, nullptr);
  // Another architecture's code is no code for this one.
  compile::CodeStore other(disk, compile::cuda::kSm80.key(), compile::cuda::kSm80);
  EXPECT_EQ(other.find("a kernel").code, nullptr);
}

// ---- Tables

TEST(CudaTables, ALaunchForAllItems) {
  Tensors first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    compile::LoopKernel kernel = compile::cuda::momentum();
    kernel.per_item = true;
    const auto launch = std::make_shared<compile::TableLaunch>(kernel);
    launch->compile(cuda.device());
    manual_seed(9);
    compile::Table table;
    Tensors kept;
    const Tensor scalars = Tensor::from(std::vector<double>{0.9, 0.01}, {2}).to(cuda.device());
    for (const int64_t numel : {5, 1024, 3001}) {
      const Tensor g = Tensor::randn({numel}).to(kBF16).to(cuda.device()), m = Tensor::randn({numel}).to(cuda.device()),
                   p = Tensor::randn({numel}).to(cuda.device()),
                   copy = Tensor::randn({numel}).to(kBF16).to(cuda.device());
      const std::span<void*> operands = table.add(
          {.numel = numel, .scalars = reinterpret_cast<const double*>(scalars.storage().data())}, 6);
      const Tensor list[] = {g, m, p, m, p, copy};
      for (size_t i = 0; i < 6; ++i) operands[i] = list[i].storage().data();
      kept.insert(kept.end(), {m, p, copy, g});
    }
    launch->run(table);
    const Tensor flag = Tensor::from(std::vector<double>{1}, {1}).to(cuda.device());
    const Tensors once = to(kept, kCPU);
    launch->run(table, {reinterpret_cast<const double*>(flag.storage().data()), 0});  // the condition does not hold
    const Tensors same = to(kept, kCPU);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(same_bits(once[i], same[i]));
    if (first.empty()) first = once;
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(same_bits(once[i], first[i])) << seed;
    EXPECT_FALSE(same_bits(once[1].to(kBF16), once[3]));
    EXPECT_TRUE(same_bits(once[1].to(kBF16), once[2])) << "the copy of the parameter";
  }
}

// ---- A second process

TEST(CudaChild, DISABLED_Run) {
  FakeCuda cuda;
  const Tensor x = Tensor::ones({9, 70}).to(cuda.device());
  const double value = ops::sum(ops::softmax(x, -1) * x, -1).to(kCPU).to_vector<float>()[0];
  const compile::CacheReport report = compile::CodeStore::of(compile::cuda::kSm90).report();
  std::printf("CHILD value=%.9g disk=%lld missed=%zu\n", value, static_cast<long long>(report.from_disk),
              report.missed.size());
}

TEST(CudaCache, ServesASecondProcess) {
  const test::TempFolder folder;
  const auto child = [&] {
    const std::string command = "env -u RONDO_CACHE -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX RONDO_CACHE_DIR=" +
                                folder.path() + " " + std::filesystem::read_symlink("/proc/self/exe").string() +
                                " --gtest_also_run_disabled_tests --gtest_filter=CudaChild.DISABLED_Run 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
    EXPECT_EQ(::pclose(pipe), 0) << output;
    const size_t at = output.find("CHILD ");
    return at == std::string::npos ? output : output.substr(at, output.find('\n', at) - at);
  };
  const std::string cold = child(), warm = child();
  EXPECT_NE(cold.find("value=1"), std::string::npos) << cold;
  EXPECT_NE(cold.find("disk=0 missed=3"), std::string::npos) << cold;  // softmax, mul, sum
  EXPECT_NE(warm.find("disk=3 missed=0"), std::string::npos) << warm;
}

}  // namespace
}  // namespace rondo

// Code that is compiled for a GPU that is not here: compile_for(), its artifacts on the fake device, and kernels by
// hand on disk.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "rondo/compile/compile_for.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/io/disk_cache.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::FakeCuda;
using test::Setting;

// NVRTC is the fake's, and there is no driver: a machine for compiling only. With RONDO_TEST_CUDA=real it is the
// machine's own, and nothing uses the driver.
class NoDevice {
 public:
  NoDevice() : path_("RONDO_CUDA_PATH", std::getenv("RONDO_CUDA_PATH")) {
    cuda::close();
    if (!test::on_real_cuda()) {
      std::error_code ignored;
      fs::create_symlink(std::string(tests::kFakeCudaDir) + "/libnvrtc.so.13", folder_ / "libnvrtc.so.13", ignored);
      setenv("RONDO_CUDA_PATH", folder_.path().c_str(), 1);
    }
    cuda::forget_libraries();
  }
  ~NoDevice() { cuda::forget_libraries(); }

 private:
  Setting path_;
  test::TempFolder folder_;
};

nn::GPT2Config small_gpt2() { return {.vocab_size = 61, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32}; }

// There is no NVRTC: a file of its name is found first, which is another library. The others are found as before.
class NoCompiler {
 public:
  NoCompiler() : path_("RONDO_CUDA_PATH", std::getenv("RONDO_CUDA_PATH")) {
    const char* const before = std::getenv("RONDO_CUDA_PATH");
    Dl_info other{};
    dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(&std::cos)), &other);
    for (const char* name : {"libnvrtc.so.12", "libnvrtc.so.13"}) fs::create_symlink(other.dli_fname, folder_ / name);
    setenv("RONDO_CUDA_PATH", (folder_.path() + (before == nullptr ? "" : std::string(":") + before)).c_str(), 1);
    cuda::forget_libraries();
  }

 private:
  Setting path_;
  test::TempFolder folder_;
};

struct Step {
  std::string loss, parameters;  // bits
};
// Two steps of training on a device: loss, backward, clipping, AdamW.
Step train(nn::GPT2& model, Device device) {
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  optim::compile(adamw);
  std::vector<int64_t> next;
  for (int64_t i = 0; i < 32; ++i) next.push_back((i * 7 + 3) % 61);
  const Tensor tokens = Tensor::arange(0, 32, {kI64}).view({2, 16}), targets = Tensor::from(next, {2, 16});
  Step result;
  for (int i = 0; i < 2; ++i) {
    const Tensor loss = model.loss(tokens.to(device), targets.to(device));
    loss.backward();
    adamw.step({.max_norm = 1, .zero_grad = true});
    result.loss += test::bytes_of(loss.detach().to(kCPU));
  }
  for (const Tensor& p : model.parameters()) result.parameters += test::bytes_of(p.detach().to(kCPU));
  return result;
}

// The work of a child: a training run on the device, with artifacts if there are some.
TEST(AheadChild, DISABLED_Run) {
  FakeCuda cuda;
  std::string error;
  const bool artifacts = std::getenv("RONDO_TEST_LOAD") != nullptr;
  std::optional<NoCompiler> no_compiler;
  if (std::getenv("RONDO_TEST_COMPILER") == nullptr) no_compiler.emplace();
  if (artifacts) {
    try {
      compile::load_artifacts(std::getenv("RONDO_TEST_LOAD"));
    } catch (const FileError& e) {
      error = e.what();
    }
  }
  std::string loss;
  if (error.empty()) {
    manual_seed(5);
    nn::GPT2 model(small_gpt2());
    model.to(cuda.device());
    compile::compile_regions(model, {.exact = true});
    const Step step = train(model, cuda.device());
    loss = std::to_string(std::hash<std::string>()(step.loss + step.parameters));
  }
  const compile::CacheReport report = compile::cache_report();
  std::string missed;
  for (const auto& miss : report.missed) missed += miss.component + " " + miss.kernel.substr(0, 100) + "; ";
  std::printf("CHILD|bits=%s|misses=%lld|artifacts=%lld|disk=%lld|missed=%s|error=%s\n", loss.c_str(),
              static_cast<long long>(report.misses), static_cast<long long>(report.from_artifacts),
              static_cast<long long>(report.from_disk), missed.c_str(), error.c_str());
}

using Report = std::map<std::string, std::string>;
Report child(const std::string& environment) {
  const std::string command = "env -u RONDO_CACHE -u RONDO_CACHE_DIR -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " +
                              environment + " " + fs::read_symlink("/proc/self/exe").string() +
                              " --gtest_also_run_disabled_tests --gtest_filter=AheadChild.DISABLED_Run 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << output;
  Report report;
  size_t at = output.find("CHILD|");
  EXPECT_NE(at, std::string::npos) << output;
  if (at == std::string::npos) return report;
  for (at += 6; at < output.size();) {
    const size_t equals = output.find('=', at), end = output.find_first_of("|\n", equals);
    report[output.substr(at, equals - at)] = output.substr(equals + 1, end - equals - 1);
    if (output[end] == '\n') break;
    at = end + 1;
  }
  return report;
}

// The machine that compiles has no device, the one that runs has no compiler. Its first step compiles nothing, and has
// the bits of a run that compiles all by itself.
TEST(CompileFor, TheFirstStepCompilesNothing) {
  const test::TempFolder folder;
  int here = 0;
  {
    const FakeCuda cuda;  // skips if there is none
    here = cuda::architecture_of(cuda::device_state(0).capability());
  }
  const auto name = [](int architecture) { return "cuda sm_" + std::to_string(architecture); };
  const int elsewhere = here == 80 ? 90 : 80;
  {
    const NoDevice compiles;
    manual_seed(5);
    nn::GPT2 model(small_gpt2());
    std::string before;
    for (const Tensor& p : model.parameters()) before += test::bytes_of(p);
    const Generator numbers = default_generator();
    const compile::Artifacts made = compile::compile_for(model, [&](Device device) { train(model, device); },
                                                         name(here), {.exact = true});
    EXPECT_EQ(made.target(), name(here));
    EXPECT_GT(made.kernels(), 10);
    made.save(folder / "gpt2.rondo");
    EXPECT_EQ(fs::file_size(folder / "gpt2.rondo"), static_cast<size_t>(made.bytes()));
    // The model is as it was.
    std::string after;
    for (const Tensor& p : model.parameters()) {
      EXPECT_EQ(p.device(), kCPU);
      EXPECT_FALSE(p.grad().defined());
      after += test::bytes_of(p);
    }
    EXPECT_EQ(before, after);
    EXPECT_EQ(numbers.offset(), default_generator().offset());
    model.apply([](nn::ModuleBase& module) { EXPECT_EQ(module.call_hook, nullptr); });
    test::Gate gate(8);
    compile::compile_for(gate, {Tensor::randn({2, 8})}, name(elsewhere)).save(folder / "elsewhere.rondo");
  }
  const Report alone = child("RONDO_CACHE=off RONDO_TEST_COMPILER=1"),
               shipped = child("RONDO_CACHE=off RONDO_TEST_LOAD=" + (folder / "gpt2.rondo"));
  EXPECT_NE(alone.at("misses"), "0");
  EXPECT_EQ(shipped.at("misses"), "0") << shipped.at("missed");
  EXPECT_EQ(shipped.at("error"), "");
  EXPECT_NE(shipped.at("artifacts"), "0");
  EXPECT_EQ(shipped.at("bits"), alone.at("bits"));
  EXPECT_NE(alone.at("bits"), "");

  // Artifacts for another device are refused, with what to do.
  const Report other = child("RONDO_CACHE=off RONDO_TEST_LOAD=" + (folder / "elsewhere.rondo"));
  EXPECT_NE(other.at("error").find("made for " + name(elsewhere) + ", and cuda:0 takes " + name(here)),
            std::string::npos)
      << other.at("error");
  EXPECT_NE(other.at("error").find("make it for this device with compile_for()"), std::string::npos);
  // The second process finds what the first has left on disk: generated kernels and those by hand.
  const std::string cache = "RONDO_TEST_COMPILER=1 RONDO_CACHE_DIR=" + (folder / "cache");
  const Report cold = child(cache), warm = child(cache);
  EXPECT_EQ(cold.at("misses"), alone.at("misses"));
  EXPECT_EQ(warm.at("misses"), "0") << warm.at("missed");
  EXPECT_EQ(warm.at("disk"), cold.at("misses"));
  EXPECT_EQ(warm.at("bits"), alone.at("bits"));
}

// The code of the newest architecture serves newer devices, through PTX.
TEST(CompileFor, PtxServesNewerDevices) {
  const NoDevice compiles;
  const test::TempFolder folder;
  test::Gate model(24);
  const auto made = compile::compile_for(model, {Tensor::randn({6, 24}).requires_grad_()}, "cuda sm_100");
  made.save(folder / "gate.rondo");
  FakeCuda cuda({.capability = 120});
  EXPECT_EQ(compile::load_artifacts(folder / "gate.rondo"), made.kernels());
  model.to(cuda.device());
  const compile::Regions regions = compile::compile_module(model);
  const int64_t misses = compile::cache_report().misses;
  const Tensor x = Tensor::randn({6, 24}).to(cuda.device()).detach().requires_grad_();
  const Tensor y = model(x);
  y.backward(Tensor::ones({6, 24}, {kF32, cuda.device()}));
  EXPECT_EQ(compile::cache_report().misses, misses);
  EXPECT_EQ(regions.report()[0].compilations, 0);
  EXPECT_GT(ops::sum(x.grad() * x.grad()).item(), 0);
}

TEST(CompileFor, Errors) {
  const test::MeansToRun nothing(test::Eagerly::kNothing, "each call is refused");
  const NoDevice compiles;
  test::Gate model(8);
  const std::vector<Tensor> inputs = {Tensor::randn({2, 8})};
  // The names that the argument takes.
  const std::string may_be = "the target may be \"cuda sm_80\", \"cuda sm_90\", \"cuda sm_100\"";
  EXPECT_EQ(error_of([&] { compile::compile_for(model, inputs, "cuda sm_70"); }),
            "compile_for: no target \"cuda sm_70\"; " + may_be);
  EXPECT_EQ(error_of([&] { compile::compile_for(model, inputs, "cpu x86_64"); }),
            "compile_for: code for cpu x86_64 is made on the machine that runs it; save_artifacts() writes it for "
            "machines like it; " +
                may_be);
  EXPECT_NE(error_of([&] {
              compile::compile_for(model, {inputs[0], inputs[0]}, "cuda sm_80");
            }).find("forward does not take 2 tensors"),
            std::string::npos);
  // An error of the step leaves the model as it was.
  const Tensor grad = Tensor::ones({8, 8});
  model.gate.weight.set_grad(grad);
  EXPECT_NE(error_of([&] {
              compile::compile_for(
                  model, [](Device) { throw Error("a step's own"); }, "cuda sm_80");
            }).find("a step's own"),
            std::string::npos);
  EXPECT_EQ(model.gate.weight.device(), kCPU);
  EXPECT_EQ(test::bytes_of(model.gate.weight.grad()), test::bytes_of(grad));
  {
    const Setting nowhere("RONDO_CUDA", "off");
    cuda::forget_libraries();
    const std::string error = error_of([&] { compile::compile_for(model, inputs, "cuda sm_80"); });
    EXPECT_NE(error.find("no kernels for CUDA: RONDO_CUDA=off"), std::string::npos) << error;
  }
  FakeCuda cuda;
  const Tensor there = inputs[0].to(cuda.device());
  EXPECT_NE(
      error_of([&] { compile::compile_for(model, inputs, "cuda sm_80"); }).find("this process has used a CUDA device"),
      std::string::npos);
}

// One process compiles for several sizes, one after the other: each has the code of a process of its own.
TEST(CompileFor, ForSeveralSizes) {
  const NoDevice compiles;
  test::Gate model(24);
  compile::compile_for(model, {Tensor::randn({6, 24})}, "cuda sm_80");
  const auto both = compile::compile_for(model, {Tensor::randn({40, 24})}, "cuda sm_80");
  const test::TempFolder folder;
  both.save(folder / "both.rondo");
  compile::forget_code();
  FakeCuda cuda({.capability = 86});
  compile::load_artifacts(folder / "both.rondo");
  model.to(cuda.device());
  const int64_t misses = compile::cache_report().misses;
  const compile::Regions regions = compile::compile_module(model);
  model(Tensor::randn({40, 24}).to(cuda.device()));
  EXPECT_EQ(compile::cache_report().misses, misses);
}

// ---- jit_available() asks the device's target

TEST(JitAvailable, AsksForTheCompilerOfTheDevice) {
  {
    FakeCuda cuda({.capability = 75});
    EXPECT_FALSE(compile::jit_available(cuda.device())) << "no target";
  }
  {
    FakeCuda cuda;
    EXPECT_TRUE(compile::jit_available(cuda.device()));
  }
  // A driver, and no NVRTC.
  FakeCuda cuda;
  const NoCompiler missing;
  EXPECT_FALSE(compile::jit_available(cuda.device()));
}

// ---- Kernels by hand on disk

io::DiskCache by_hand_cache(const std::string& folder) {
  return {{.folder = folder}, cuda::key_of_code(90, cuda::kMaker)};
}
constexpr cuda::Source kNoted = {"noted", R"cuda(
extern "C" __global__ void rondo_noted(T* out, long long n) {
  for (long long i = first_index(); i < n; i += index_step()) out[i] = static_cast<T>(NUMBER);
}
)cuda"};

float noted(Device device) {
  const Tensor out = Tensor::zeros({5}, {kF32, device});
  auto* const data = reinterpret_cast<float*>(out.storage().data());
  const cuda::Kernel kernel = cuda::kernel_of(device.index, kNoted, "rondo_noted", {{"T", "float"}, {"NUMBER", "7"}});
  cuda::launch_threads(device.index, kernel, 5, data, int64_t{5});
  return out.to(kCPU).to_vector<float>()[4];
}

TEST(ByHandOnDisk, DamagedAndForeignEntriesAreNotRun) {
  const test::TempFolder folder;
  const Setting here("RONDO_CACHE_DIR", folder.path().c_str()), on("RONDO_CACHE", nullptr);
  const std::string text = cuda::whole_text(kNoted, {{"T", "float"}, {"NUMBER", "7"}});
  const auto run = [&](int64_t from_disk) {
    cuda::forget_kernels_by_hand();
    FakeCuda cuda;
    const int64_t before = cuda::source_report(90).from_disk;
    EXPECT_EQ(noted(cuda.device()), 7);
    EXPECT_EQ(cuda::source_report(90).from_disk - before, from_disk);
  };
  run(0);
  run(2);  // zeros() is a kernel by hand, too
  std::string good;
  {
    FakeCuda cuda;  // for the key
    io::DiskCache cache = by_hand_cache(folder.path());
    good = cache.find(text).value();
    cache.store(text, good.substr(0, good.size() / 2));
  }
  run(1);  // damaged: compiled again, and stored
  run(2);
  {
    FakeCuda cuda;
    // Another kernel's code under this one's name is whole, and is found out by its text.
    std::string entry;
    for (const auto& file : fs::recursive_directory_iterator(folder.path()))
      if (file.path().extension() == ".rk") {
        std::ifstream in(file.path(), std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(in)), {});
        if (bytes.find("rondo_noted") != bytes.npos) entry = file.path().string();
      }
    ASSERT_NE(entry, "");
    io::KernelFile other{cuda::key_of_code(90, cuda::kMaker).text(), {{"another text", good}}};
    std::ofstream(entry, std::ios::binary | std::ios::trunc) << io::pack(other);
  }
  run(1);
  run(2);
  // Another architecture's code is none for this one.
  FakeCuda older({.capability = 86});
  const int64_t before = cuda::source_report(80).from_disk;
  EXPECT_EQ(noted(older.device()), 7);
  EXPECT_EQ(cuda::source_report(80).from_disk, before);
}

// Several processes write at once; each has the right code, and what is left is whole.
TEST(ByHandOnDisk, ProcessesWriteAtOnce) {
  const test::TempFolder folder;
  const std::string environment = "RONDO_TEST_COMPILER=1 RONDO_CACHE_DIR=" + (folder / "cache");
  std::vector<std::thread> threads;
  std::vector<Report> reports(3);
  for (Report& report : reports) threads.emplace_back([&] { report = child(environment); });
  for (std::thread& thread : threads) thread.join();
  for (const Report& report : reports) EXPECT_EQ(report.at("bits"), reports[0].at("bits"));
  const Report last = child(environment);
  EXPECT_EQ(last.at("misses"), "0");
  EXPECT_EQ(last.at("bits"), reports[0].at("bits"));
}

}  // namespace
}  // namespace rondo

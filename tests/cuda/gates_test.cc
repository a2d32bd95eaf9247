// The gates of tests/gpu/STATIC.md, and that they see what breaks them.
#include "rondo/tests/gpu/gates.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/cuda/attention.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/fused_attention.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {
namespace {

// The real NVRTC, and nothing else of CUDA.
class Gates : public testing::Test {
 protected:
  void SetUp() override {
    // Code of the fake NVRTC, which other tests have left in this process, is no machine code.
    const testing::UnitTest& program = *testing::UnitTest::GetInstance();
    if (program.test_to_run_count() > 1) {
      const testing::TestInfo& test = *program.current_test_info();
      EXPECT_EQ(std::system(absl::StrCat("env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX ",
                                         std::filesystem::read_symlink("/proc/self/exe").string(),
                                         " --gtest_brief=1 --gtest_filter=", test.test_suite_name(), ".", test.name())
                                .c_str()),
                0);
      GTEST_SKIP() << "ran in a process of its own";
    }
    cuda::close();
    cuda::forget_libraries();
    std::string why_not;
    if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  }
  void TearDown() override { cuda::forget_libraries(); }
  const Setting path_{"RONDO_CUDA_PATH", nullptr};
};

void expect_whole(const std::vector<GatedKernel>& kernels, size_t at_least) {
  EXPECT_GE(kernels.size(), at_least);
  for (const GatedKernel& kernel : kernels) {
    EXPECT_EQ(absl::StrJoin(broken_gates(kernel), "\n"), "");
    EXPECT_GT(kernel.threads, 0) << kernel.code.name;
    // One block fits at least.
    const int resident = resident_threads(kernel.code, kernel.architecture, kernel.threads);
    EXPECT_TRUE(resident == 0 || resident >= kernel.threads) << kernel.code.name;  // 0: no cuda_occupancy.h
  }
}

class StepGates : public Gates, public testing::WithParamInterface<int> {};
// In mixed precision, where most kernels are; STATIC.md has f32, too.
TEST_P(StepGates, AStepOfGPT2) {
  const std::vector<GatedKernel> kernels = kernels_of_step({.dtype = kBF16}, GetParam());
  expect_whole(kernels, 20);
  int promises = 0;
  for (const GatedKernel& kernel : kernels) promises += kernel.promises_loads + kernel.promises_stores;
  EXPECT_GE(promises, 10);
}
INSTANTIATE_TEST_SUITE_P(Sm, StepGates, testing::ValuesIn(cuda::kArchitectures), testing::PrintToStringParamName());

TEST_F(Gates, KernelsByHand) { expect_whole(kernels_by_hand(90), 60); }

MachineCode compiled(const std::string& body, int architecture) {
  const std::string text =
      "extern \"C\" __global__ void __launch_bounds__(128) f(float4* x, const float4* y, int n, int m) {" + body + "}";
  return machine_code(cuda::compile_image(text, "f", architecture).cubin, architecture).at(0);
}

// A step of STATIC.md has no dropout. Its heads are GPT-2's and the widest; heads of 64 also with a mask of bool, and
// the backward with an added one.
TEST_F(Gates, AttentionWithDropoutSpillsNothing) {
  for (const int architecture : cuda::kArchitectures)
    for (const auto& [head_dim, mask] : {std::pair{64, "0"}, {64, "1"}, {64, "3"}, {128, "0"}}) {
      const cuda::AttentionTile tile = *cuda::attention_tile(kBF16, head_dim);
      const cuda::Source& other = mask[0] == '3' ? cuda::fused_attention_rescale_source()
                                                 : cuda::fused_attention_source();
      for (const cuda::Source* source : {&other, &cuda::fused_attention_grad_source()}) {
        const std::string text = cuda::whole_text(*source, {{"T", cuda::type_name(kBF16)},
                                                            {"HEAD_DIM", absl::StrCat(tile.head_dim)},
                                                            {"ROWS", absl::StrCat(tile.rows)},
                                                            {"THREADS", absl::StrCat(tile.threads())},
                                                            {"MASK", mask},
                                                            {"DROPOUT", "1"}});
        const std::vector<MachineCode> kernels = machine_code(
            cuda::compile_image(text, source->name, architecture).cubin, architecture);
        ASSERT_EQ(kernels.size(), 1u);
        const GatedKernel kernel{.code = kernels[0], .cubin = "", .architecture = architecture};
        EXPECT_EQ(absl::StrJoin(broken_gates(kernel), "\n"), "") << head_dim << ", mask " << mask;
      }
    }
}

// The figures are those that `ptxas -v` and nvdisasm give for these kernels (CUDA 13.0).
TEST_F(Gates, MachineCodeIsReadRight) {
  for (const int architecture : cuda::kArchitectures) {
    const MachineCode wide = compiled(
        "__shared__ float s[300]; s[threadIdx.x] = n; __syncthreads(); const int i = threadIdx.x + blockIdx.x * 128;"
        "if (i < n) { float4 v = y[i]; v.x += s[threadIdx.x ^ 1]; x[i] = v; }",
        architecture);
    EXPECT_EQ(wide.name, "f");
    EXPECT_EQ(wide.shared_bytes, 1200) << architecture;
    EXPECT_EQ(wide.stack_bytes, 0);
    EXPECT_EQ(wide.wide_loads, 1);
    EXPECT_EQ(wide.wide_stores, 1);
    EXPECT_EQ(wide.local, 0);
    EXPECT_EQ(wide.flight_bytes, 16);
    EXPECT_GT(wide.registers, 4);
    EXPECT_LT(wide.registers, 64);
    // An array that is no registers.
    const MachineCode spilled = compiled(
        "float a[64]; for (int i = 0; i < 64; ++i) a[i] = y[i * n].x; for (int i = 0; i < m; ++i) x[i].x = a[i * n & "
        "63];",
        architecture);
    EXPECT_EQ(spilled.stack_bytes, 256);
    EXPECT_GT(spilled.local, 0);
    EXPECT_EQ(spilled.wide_stores, 0);
    GatedKernel kernel{.code = spilled, .cubin = "", .architecture = architecture, .promises_stores = true};
    const std::string broken = absl::StrJoin(broken_gates(kernel), "\n");
    EXPECT_NE(broken.find("spills: 256 bytes of stack"), std::string::npos) << broken;
    EXPECT_NE(broken.find("no store of 16 bytes"), std::string::npos) << broken;
    const int resident = resident_threads(wide, architecture, 128);
    EXPECT_TRUE(resident == 0 || resident == 2048) << resident;
  }
}

TEST_F(Gates, DamagedCubins) {
  const std::string cubin = cuda::compile_image("extern \"C\" __global__ void f(int* x) { *x = 1; }", "f", 90).cubin;
  EXPECT_EQ(machine_code(cubin, 90).size(), 1u);
  EXPECT_NE(error_of([&] { machine_code("no cubin at all", 90); }).find("no cubin"), std::string::npos);
  EXPECT_NE(error_of([&] { machine_code(cubin.substr(0, cubin.size() / 2), 90); }).find("cut short"),
            std::string::npos);
}

// The counts of the source executor in a step of a small model.
TEST(TrafficGates, AStepMovesFewSectorsTooMany) {
  for (const DType dtype : {kBF16, kF32}) {
    const std::map<std::string, Sectors> sectors = sectors_of_step(
        {.dtype = dtype,
         .batch = 1,
         .model = {.vocab_size = 100, .block_size = 32, .n_layer = 1, .n_head = 2, .n_embd = 128}});
    EXPECT_GE(sectors.size(), 10u);
    double gated = 0;
    for (const auto& [name, counted] : sectors) {
      EXPECT_TRUE(counted.holds()) << name << ": " << counted.per_ideal << ", share " << counted.share;
      if (counted.share >= 0.01) gated += counted.share;
    }
    EXPECT_GE(gated, 0.9);
  }
}

}  // namespace
}  // namespace rondo::test

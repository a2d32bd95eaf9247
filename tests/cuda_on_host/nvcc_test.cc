// What is emitted is CUDA C++ to NVIDIA's compiler, too.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

TEST(Nvcc, AcceptsEmittedKernels) {
  const std::string nvcc = RONDO_NVCC;
  if (nvcc.empty()) GTEST_SKIP() << "no nvcc found when the build was configured";
  Batch batch;
  for (DType type : {kF32, kF64}) batch.add_both(every_op(type, 9, 100), {.scalars = {0.3, 1.0}});
  for (DType type : {kF32, kF64, kBF16, kF16})
    for (int64_t cols : {3, 100, 1500}) {
      batch.add_both(softmax(type, 70, cols));
      batch.add_both(norm_backward(type, 70, cols));
      batch.add_both(bias_backward(type, 70, cols));
    }
  const test::TempFolder folder;
  {
    std::ofstream file(folder / "kernels.cu");
    file << device_math();
    for (const auto& source : batch.sources()) file << source.text;
  }
  const std::string command = absl::StrCat("'", nvcc, "' ", absl::StrJoin(kExactFlags, " "), " -arch=sm_80 -ptx -o '",
                                           folder / "kernels.ptx", "' '", folder / "kernels.cu", "' >'", folder / "log",
                                           "' 2>&1");
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  std::stringstream words;
  words << log.rdbuf();
  ASSERT_EQ(status, 0) << words.str();
  EXPECT_EQ(words.str(), "");  // no warnings
  std::ifstream file(folder / "kernels.ptx");
  std::stringstream ptx;
  ptx << file.rdbuf();
  for (const auto& source : batch.sources())
    EXPECT_NE(ptx.str().find(absl::StrCat(".entry ", source.name, "(")), std::string::npos) << source.name;
  // Products and sums stay apart; neighbours are read together.
  EXPECT_NE(ptx.str().find("ld.global.v4.f32"), std::string::npos);
  EXPECT_EQ(ptx.str().find("ftz"), std::string::npos);
}

}  // namespace
}  // namespace rondo::compile::cuda

// What is emitted is CUDA C++ to NVIDIA's compiler, too: without warnings for every architecture, and without spills.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Kernels of each shape, as training has them, and one of all operations.
std::string representative(std::vector<std::string>& names) {
  std::string text = absl::StrCat(std::string(device_math()), std::string(kTableLayout), "\n");
  const auto add = [&](LoopKernel kernel, const std::string& name, bool wide = false) {
    kernel.name = name;
    Schedule s = schedule(kernel);
    s.wide = s.wide || wide;
    absl::StrAppend(&text, emit(kernel, s));
    names.push_back(name);
  };
  for (DType type : {kF32, kF64}) add(every_op(type, 64, 1024), absl::StrCat("every_op_", std::string(name_of(type))));
  const auto add_all = [&](DType type, int64_t cols) {
    const std::string ending = absl::StrCat("_", std::string(name_of(type)), "_", cols);
    add(softmax(type, 4096, cols), "softmax" + ending);
    add(norm_backward(type, 4096, cols), "norm_backward" + ending);
    add(bias_backward(type, 4096, cols), "bias_backward" + ending);
    add(transposed(type, 1024, cols), "transposed" + ending);
  };
  for (DType type : {kF32, kBF16})
    for (int64_t cols : {64, 768, 5000}) add_all(type, cols);
  for (DType type : {kF16, kF64}) add_all(type, 768);
  for (DType type : {kF32, kF64})
    for (int64_t cols : {64, 5000}) {
      LoopKernel dynamic = softmax(type, 4096, cols);
      for (int64_t extent : extents(dynamic)) dynamic.varying.push_back(may_vary(extent));
      add(dynamic, absl::StrCat("dynamic_softmax_", std::string(name_of(type)), "_", cols), /*wide=*/true);
    }
  absl::StrAppend(&text, emit_table(momentum(), schedule(momentum())));
  names.push_back("momentum");
  absl::StrAppend(&text, std::string(kSumsLayout), "\n", emit_combine("combine"));
  names.push_back("combine");
  return text;
}

// Runs nvcc on the file; what it printed.
std::string compile(const test::TempFolder& folder, const std::string& arguments) {
  const std::string log = folder / "log";
  const int status = std::system(absl::StrCat("'", RONDO_NVCC, "' ", absl::StrJoin(kExactFlags, " "), " ", arguments,
                                              " '", folder / "kernels.cu", "' >'", log, "' 2>&1")
                                     .c_str());
  EXPECT_EQ(status, 0) << contents(log);
  return contents(log);
}

// The number in front of `words` in a line, or -1.
int number_before(const std::string& line, const std::string& words) {
  const size_t at = line.find(words);
  if (at == std::string::npos) return -1;
  size_t begin = at;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
  return std::atoi(line.substr(begin, at - begin).c_str());
}

// PTX of one kernel: the accesses that it makes.
TEST(Nvcc, ReadsAndWrites16Bytes) {
  if (std::string(RONDO_NVCC).empty()) GTEST_SKIP() << "no nvcc found when the build was configured";
  for (DType type : {kF32, kF64, kBF16}) {
    KernelBuilder b("copy", 1, 1 << 20);
    b.kernel.split_columns = true;
    const int32_t x = b.dense(type), y = b.dense(type, true);
    for (Operand& operand : b.kernel.operands) operand.axes.clear();
    const DType compute = compute_dtype(type);
    b.store(y, b.emit(LoopOp::kNeg, compute, b.load(x, compute)));
    const test::TempFolder folder;
    std::ofstream(folder / "kernels.cu") << device_math() << emit(b.kernel, schedule(b.kernel));
    EXPECT_EQ(compile(folder, absl::StrCat("-arch=sm_80 -ptx -o '", folder / "kernels.ptx", "'")), "");
    const std::string ptx = contents(folder / "kernels.ptx");
    for (const char* access : {"ld", "st"}) {
      bool wide = false;
      for (const char* width : {"v4.f32", "v4.b32", "v4.u32", "v2.f64", "v2.b64", "v2.u64"})
        wide = wide || ptx.find(absl::StrCat(access, ".global.", width)) != std::string::npos;
      EXPECT_TRUE(wide) << access << "\n" << ptx;
    }
  }
}

TEST(Nvcc, AcceptsEmittedKernelsAndSpillsNothing) {
  if (std::string(RONDO_NVCC).empty()) GTEST_SKIP() << "no nvcc found when the build was configured";
  const test::TempFolder folder;
  std::vector<std::string> names;
  std::ofstream(folder / "kernels.cu") << representative(names);
  const std::string log = compile(folder, absl::StrCat("-gencode arch=compute_80,code=sm_80 -gencode "
                                                       "arch=compute_90,code=sm_90 -gencode "
                                                       "arch=compute_100,code=sm_100 -Xptxas -v"
                                                       " -fatbin -t 2 -keep -keep-dir '",
                                                       folder / "", "' -o '", folder / "kernels.fatbin", "'"));
  EXPECT_EQ(log.find("warning"), std::string::npos) << log;
  std::istringstream lines(log);
  std::string name, architecture;
  size_t kernels = 0;
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find("entry function '"); at != std::string::npos) {
      const size_t begin = at + 16, end = line.find('\'', begin);
      name = line.substr(begin, end - begin);
      const size_t arch = line.find("sm_");
      architecture = line.substr(arch, line.find('\'', arch) - arch);
    }
    if (const int stack = number_before(line, " bytes stack frame"); stack >= 0) {
      EXPECT_EQ(stack, 0) << name << " for " << architecture << ": " << line;
      EXPECT_EQ(number_before(line, " bytes spill stores"), 0) << name << " for " << architecture;
      EXPECT_EQ(number_before(line, " bytes spill loads"), 0) << name << " for " << architecture;
    }
    if (const size_t at = line.find("Used "); at != std::string::npos) {
      ++kernels;
      const int registers = number_before(line, " registers");
      std::printf("%s %s: %d registers\n", architecture.c_str(), name.c_str(), registers);
      EXPECT_LE(registers, 128) << name << " for " << architecture;
    }
  }
  EXPECT_EQ(kernels, 3 * names.size()) << log;
  const std::string ptx = contents(folder / "kernels.compute_80.ptx");
  for (const std::string& kernel : names)
    EXPECT_NE(ptx.find(absl::StrCat(".entry ", kernel, "(")), std::string::npos) << kernel;
  EXPECT_EQ(ptx.find("ftz"), std::string::npos) << "subnormals are kept";
  EXPECT_EQ(ptx.find(".local"), std::string::npos) << "an array that is no registers";
  EXPECT_EQ(ptx.find("atom."), std::string::npos) << "the order of atomics is nobody's";
}

}  // namespace
}  // namespace rondo::compile::cuda

// Writes tests/gpu/STATIC.md: what is known of the kernels' machine code without a GPU. tests/gpu/static.sh calls it.
// Fails if a gate is broken (gates.h).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/gpu/gates.h"

namespace rondo::test {
namespace {

// nvdisasm's count of 16-byte accesses, of local and of generic ones in a function.
struct Disassembled {
  int wide_loads = 0, wide_stores = 0, local = 0, generic = 0;
};
Disassembled disassemble(const std::string& nvdisasm, const GatedKernel& kernel) {
  const TempFolder folder;
  std::ofstream(folder / "kernel.cubin", std::ios::binary) << kernel.cubin;
  const std::string command = absl::StrCat("'", nvdisasm, "' -c '", folder / "kernel.cubin", "' 2>&1");
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  if (::pclose(pipe) != 0) throw Error(absl::StrCat(command, ": ", text));
  const size_t begin = text.find(absl::StrCat(".section\t.text.", kernel.code.name, ","));
  if (begin == text.npos) throw Error(absl::StrCat("nvdisasm shows no ", kernel.code.name));
  text = text.substr(begin, text.find(".section\t", begin + 1) - begin);
  const auto count = [&](const char* pattern) {
    const std::regex wanted(pattern);
    return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), wanted), {}));
  };
  return {count("\\bLDG?\\.[A-Z0-9.]*128"), count("\\bSTG?\\.[A-Z0-9.]*128"), count("\\b(LDL|STL)\\b"),
          count("\\b(LD|ST)\\.")};
}

class Report {
 public:
  Report(const std::string& path, std::string nvdisasm) : out_(path), nvdisasm_(std::move(nvdisasm)) {
    if (!out_) throw FileError(path, "cannot write");
  }
  void line(const std::string& text) { out_ << text << "\n"; }

  void table(const std::vector<GatedKernel>& kernels, const std::map<std::string, Sectors>& sectors) {
    line(
        "| kernel | launches | threads | registers | stack | shared | threads an SM | bytes in flight an SM | 16-byte "
        "loads "
        "| 16-byte stores | sectors |");
    line("|---|---|---|---|---|---|---|---|---|---|---|");
    for (const GatedKernel& kernel : kernels) {
      const MachineCode& c = kernel.code;
      for (std::string& what : broken_gates(kernel)) broken_.push_back(std::move(what));
      compare(kernel);
      const int resident = resident_threads(c, kernel.architecture, kernel.threads);
      const auto found = sectors.find(c.name);
      if (found != sectors.end() && !found->second.holds())
        wasteful_[c.name] = std::max(wasteful_[c.name], found->second.per_ideal);
      line(absl::StrFormat(
          "| %s%s | %d | %d | %d | %d | %d | %s | %s | %d of %d%s | %d of %d%s | %s |", c.name,
          kernel.by_hand ? " (by hand)" : "", kernel.launches, kernel.threads, c.registers, c.stack_bytes,
          c.shared_bytes + static_cast<int>(c.dynamic_shared), resident == 0 ? "-" : absl::StrCat(resident),
          resident == 0 ? "-" : absl::StrCat(int64_t{resident} * c.flight_bytes), c.wide_loads, c.loads,
          kernel.promises_loads ? " \u2713" : "", c.wide_stores, c.stores, kernel.promises_stores ? " \u2713" : "",
          found == sectors.end()
              ? "-"
              : absl::StrFormat("%.3f%s", found->second.per_ideal, found->second.share < 0.01 ? " (small)" : "")));
    }
    line("");
    kernels_ += static_cast<int>(kernels.size());
  }

  // Holds all kernels of a step but products to the bytes that they touch.
  void bytes(const char* step, double of_ideal) {
    if (!(of_ideal <= 1.1))
      broken_.push_back(absl::StrFormat("a step in %s moves %.3f times the bytes that it touches", step, of_ideal));
  }

  // True if all gates hold.
  bool end() {
    line("## Gates\n");
    line(absl::StrCat("- ", kernels_, " kernels. ",
                      nvdisasm_.empty() ? "No nvdisasm was there to compare the counts with."
                                        : absl::StrCat("nvdisasm counts the same accesses in each of them (", compared_,
                                                       " compared).")));
    for (const std::string& what : broken_) line(absl::StrCat("- BROKEN: ", what));
    for (const auto& [name, sectors] : wasteful_) {
      line(absl::StrFormat("- BROKEN: %s moves %.3f times the sectors that its bytes fill", name, sectors));
      broken_.push_back(name);
    }
    if (broken_.empty())
      line(
          R"(- All gates hold. No kernel spills registers. Promised 16-byte accesses are there. The compiler knows that each access
  is to global memory (none is generic). No kernel with 1% or more of a step's sectors accesses more than 1.1 times the
  sectors that its bytes fill. All kernels but products move at most 1.1 times the step's bytes.)");
    return broken_.empty();
  }

 private:
  void compare(const GatedKernel& kernel) {
    if (nvdisasm_.empty()) return;
    const Disassembled there = disassemble(nvdisasm_, kernel);
    const MachineCode& here = kernel.code;
    ++compared_;
    if (there.wide_loads != here.wide_loads || there.wide_stores != here.wide_stores || there.local != here.local ||
        there.generic != here.generic)
      broken_.push_back(
          absl::StrFormat("%s for sm_%d: nvdisasm counts %d, %d, %d and %d accesses, this program %d, %d, %d and %d",
                          here.name, kernel.architecture, there.wide_loads, there.wide_stores, there.local,
                          there.generic, here.wide_loads, here.wide_stores, here.local, here.generic));
  }

  std::ofstream out_;
  const std::string nvdisasm_;
  std::vector<std::string> broken_;
  std::map<std::string, double> wasteful_;
  int kernels_ = 0, compared_ = 0;
};

constexpr std::pair<DType, const char*> kSteps[] = {{kBF16, "bf16 (mixed precision)"}, {kF32, "f32"}};

// What runs on the fake device goes through a file: this process has one NVRTC, and the fake's is none that makes
// machine code.
std::string part_of(const std::string& folder, DType dtype, const char* what) {
  return absl::StrCat(folder, "/", std::string(name_of(dtype)), ".", what);
}
void write_parts(const std::string& folder) {
  for (const auto& [dtype, title] : kSteps) {
    std::ofstream(part_of(folder, dtype, "launches")) << to_markdown(step_launches({.dtype = dtype}));
    std::ofstream sectors(part_of(folder, dtype, "sectors"));
    for (const auto& [name, counted] :
         sectors_of_step({.dtype = dtype,
         .batch = 2,
         .model = {.vocab_size = 1000, .block_size = 64, .n_layer = 1, .n_head = 4, .n_embd = 256, .whole_logits = 0}}))
      sectors << name << " " << counted.per_ideal << " " << counted.share << "\n";
    const StepBytes bytes = step_bytes({.dtype = dtype});
    std::ofstream(part_of(folder, dtype, "bytes")) << bytes.moved << " " << bytes.ideal << "\n" << to_markdown(bytes);
  }
}

bool write_report(const std::string& path, const std::string& folder, const std::string& nvdisasm) {
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) throw Error(absl::StrCat("static_report: ", why_not));
  Report report(path, nvdisasm);
  report.line("# What is known of the kernels without a GPU\n");
  report.line(absl::StrCat(
      R"(Written by `tests/gpu/static.sh`. No line of this file is a measurement of a GPU. The machine code is NVRTC )",
      cuda::version_of(*nvrtc), R"('s, and
nothing has run it. The columns:

- threads: of a block, in the kernel's largest launch.
- registers, stack, shared: as the compiled kernel says; stack and shared memory in bytes. Spilled registers would need
  stack.
- threads an SM: how many threads of a multiprocessor run at once, by `cuda_occupancy.h`.
- bytes in flight an SM: these threads, times the bytes that one thread loads in its longest piece of code without a
  branch.
- 16-byte loads, 16-byte stores: how many of the kernel's load and store instructions for global memory access 16 bytes.
  ✓: the kernel's schedule guarantees 16-byte accesses.
- sectors: the memory sectors that the kernel accesses, divided by the fewest sectors that could hold its bytes. The
  source executor counts them in a step of a smaller model on the fake device. (small): less than 1% of the step's
  sectors. -: not counted. These are hand-written kernels ("by hand") that do not access memory through the kernels'
  functions for memory, and some kernels of the optimizer.
- In the tables of bytes, ideal is the bytes that the kernel would have to move at least; of it: the bytes that it moves,
  divided by the ideal; asked of the second cache: the bytes that multiprocessors request from the second-level cache.
)"));
  for (const auto& [dtype, title] : kSteps) {
    std::map<std::string, Sectors> sectors;
    std::ifstream counted(part_of(folder, dtype, "sectors"));
    Sectors of_kernel;
    for (std::string name; counted >> name >> of_kernel.per_ideal >> of_kernel.share;) sectors[name] = of_kernel;
    for (const int architecture : cuda::kArchitectures) {
      report.line(absl::StrCat("## A training step of GPT-2 124M in ", title, ", sm_", architecture, "\n"));
      report.table(kernels_of_step({.dtype = dtype}, architecture), sectors);
    }
    report.line(absl::StrCat("## Launches of the step in ", title, "\n"));
    std::ifstream launches(part_of(folder, dtype, "launches"));
    report.line(std::string((std::istreambuf_iterator<char>(launches)), {}));
    report.line(absl::StrCat("## Bytes of the step in ", title, "\n"));
    std::ifstream bytes(part_of(folder, dtype, "bytes"));
    double moved, ideal;
    std::string rest;
    bytes >> moved >> ideal;
    std::getline(bytes, rest);
    report.bytes(title, moved / ideal);
    report.line(std::string((std::istreambuf_iterator<char>(bytes)), {}));
  }
  for (const int architecture : cuda::kArchitectures) {
    report.line(absl::StrCat("## Kernels by hand, of all ops, sm_", architecture, "\n"));
    report.table(kernels_by_hand(architecture), {});
  }
  return report.end();
}

// Tests, because the program's main() is that of tests: it knows the devices that samples of ops are made on.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw Error(absl::StrCat(name, " is not set; start tests/gpu/static.sh"));
  return value;
}
TEST(Static, Parts) { write_parts(variable("RONDO_TEST_FOLDER")); }
TEST(Static, Report) {
  const std::string output = variable("RONDO_TEST_OUTPUT");
  EXPECT_TRUE(write_report(output, variable("RONDO_TEST_FOLDER"), variable("RONDO_TEST_NVDISASM")))
      << output << ": a gate is broken";
}

}  // namespace
}  // namespace rondo::test

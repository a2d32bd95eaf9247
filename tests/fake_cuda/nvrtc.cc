// A stand-in for NVRTC: it compiles nothing. Its "cubin" is the source behind a line that says what it was made for,
// and the fake driver runs that. It refuses options that we do not use, and sources with an #error.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <sstream>

#include "rondo/tests/fake_cuda/machine.h"
#include "rondo/tests/fake_cuda/source.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using rondo::cuda::NvrtcResult;
using rondo::cuda::ProgramPtr;

namespace rondo::cuda {
struct OpaqueProgram {
  std::string source, name, log, cubin, ptx;
};
}  // namespace rondo::cuda

namespace {

constexpr int kArchitectures[] = {80, 86, 89, 90, 100, 103, 120};

// nvcc's manual, "GPU Feature List": sm_90 and later have a form with the instructions of that one alone, sm_100 and
// later one with those of its family. The real library answers an unknown number otherwise than a form that it has not.
enum class Known { kNo, kNumberOnly, kYes };
Known is_known(const std::string& name) {
  Known known = Known::kNo;
  for (const int one : kArchitectures) {
    const std::string plain = "sm_" + std::to_string(one);
    if (name == plain || (one >= 90 && name == plain + "a") || (one >= 100 && name == plain + "f")) return Known::kYes;
    if (name == plain + "a" || name == plain + "f") known = Known::kNumberOnly;
  }
  return known;
}

// The real one opens its builtins by this name when it first compiles, wherever the loader finds it.
constexpr const char* kBuiltins = "libnvrtc-builtins.so.13.999";
bool has_builtins() {
  static std::atomic<void*> builtins = nullptr;
  if (builtins == nullptr) builtins = dlopen(kBuiltins, RTLD_NOW | RTLD_LOCAL);
  return builtins != nullptr;
}

NvrtcResult copy_out(const std::string& text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return NvrtcResult::kSuccess;
}
NvrtcResult refuse(ProgramPtr program, NvrtcResult result, const std::string& log) {
  program->log = log + "\n";
  return result;
}

}  // namespace

// A version that no NVRTC has: what it makes never meets a real driver in a cache.
FAKE_EXPORT NvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 999;
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT const char* nvrtcGetErrorString(NvrtcResult result) {
  switch (result) {
    case NvrtcResult::kSuccess: return "NVRTC_SUCCESS";
    case NvrtcResult::kInvalidOption: return "NVRTC_ERROR_INVALID_OPTION";
    case NvrtcResult::kCompilation: return "NVRTC_ERROR_COMPILATION";
    case NvrtcResult::kBuiltins: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
  }
  return "NVRTC_ERROR unknown";
}
FAKE_EXPORT NvrtcResult nvrtcGetNumSupportedArchs(int* n) {
  *n = static_cast<int>(std::size(kArchitectures));
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcGetSupportedArchs(int* list) {
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), list);
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcCreateProgram(ProgramPtr* program, const char* source, const char* name, int,
                                           const char* const*, const char* const*) {
  *program = new rondo::cuda::OpaqueProgram{
      .source = source, .name = name == nullptr ? "default_program" : name, .log = "", .cubin = "", .ptx = ""};
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcDestroyProgram(ProgramPtr* program) {
  delete *program;
  *program = nullptr;
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcCompileProgram(ProgramPtr program, int n, const char* const* options) {
  if (!has_builtins())  // nvrtc.h, BUILTIN_OPERATION_FAILURE; the words are the library's
    return refuse(program, NvrtcResult::kBuiltins,
                  std::string("nvrtc: error: failed to open ") + kBuiltins + ".\n  Make sure that " + kBuiltins +
                      " is installed correctly.");
  std::string architecture, flags;
  for (int i = 0; i < n; ++i) {
    const std::string option = options[i], before = option.substr(0, option.find('='));
    if (before == "--gpu-architecture") architecture = option.substr(option.find('=') + 1);
    else if (before == "-fmad" || before == "-ftz" || before == "-prec-div" || before == "-prec-sqrt" ||
             before == "--std")
      flags += " " + option;
    else return refuse(program, NvrtcResult::kInvalidOption, "nvrtc: error: invalid option: " + option);
  }
  const Known known = is_known(architecture);
  if (known == Known::kNo)
    return refuse(program, NvrtcResult::kInvalidOption,
                  "nvrtc: error: invalid value for --gpu-architecture (-arch): " + architecture);
  if (known == Known::kNumberOnly)
    return refuse(program, NvrtcResult::kCompilation,
                  "Command-line error: invalid or no value specified with --nv_arch flag: " + architecture);
  std::istringstream lines(program->source);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("#error"))
      return refuse(program, NvrtcResult::kCompilation,
                    program->name + "(" + std::to_string(number) + "): error: #error directive:" + line.substr(6));
  }
  program->cubin = std::string(rondo::fake_cuda::kMadeFor) + architecture + flags + "\n" + program->source;
  program->ptx = std::string(rondo::fake_cuda::kMadeFor) + "compute_" + architecture.substr(3) + flags + "\n" +
                 program->source + '\0';
  rondo::fake_cuda::announce_source(program->source);
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcGetCUBINSize(ProgramPtr program, size_t* size) {
  *size = program->cubin.size();
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcGetCUBIN(ProgramPtr program, char* to) { return copy_out(program->cubin, to); }
FAKE_EXPORT NvrtcResult nvrtcGetPTXSize(ProgramPtr program, size_t* size) {
  *size = program->ptx.size();
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcGetPTX(ProgramPtr program, char* to) { return copy_out(program->ptx, to); }
FAKE_EXPORT NvrtcResult nvrtcGetProgramLogSize(ProgramPtr program, size_t* size) {
  *size = program->log.size() + 1;
  return NvrtcResult::kSuccess;
}
FAKE_EXPORT NvrtcResult nvrtcGetProgramLog(ProgramPtr program, char* to) {
  std::memcpy(to, program->log.c_str(), program->log.size() + 1);
  return NvrtcResult::kSuccess;
}

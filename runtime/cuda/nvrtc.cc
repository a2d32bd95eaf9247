#include "rondo/runtime/cuda/nvrtc.h"

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_math.h"

namespace rondo::cuda {

std::string Architecture::name() const {
  std::string text = absl::StrCat("sm_", capability);
  if (suffix != '\0') text += suffix;
  return text;
}

int architecture_of(int capability) {
  int best = capability;
  for (const int architecture : kArchitectures)
    if (architecture <= capability) best = architecture;
  return best;
}

NvrtcOutput compile_source(const Nvrtc& nvrtc, const std::string& source, const std::string& name,
                           Architecture architecture, std::span<const char* const> flags) {
  NvrtcOutput output;
  ProgramPtr program = nullptr;
  output.result = nvrtc.create(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr);
  if (output.result != NvrtcResult::kSuccess) return output;
  const absl::Cleanup destroy = [&] { static_cast<void>(nvrtc.destroy(&program)); };
  const std::string for_architecture = absl::StrCat("--gpu-architecture=", architecture.name());
  std::vector<const char*> options{for_architecture.c_str(), "--std=c++17"};
  options.insert(options.end(), flags.begin(), flags.end());
  output.result = nvrtc.compile(program, static_cast<int>(options.size()), options.data());
  // There may be a log after a success, too.
  size_t size = 0;
  if (nvrtc.log_size(program, &size) == NvrtcResult::kSuccess && size > 1) {
    output.log.resize(size);
    if (nvrtc.log(program, output.log.data()) != NvrtcResult::kSuccess) output.log.clear();
    else output.log.resize(size - 1);  // it ends with a zero
  }
  const auto take = [&](auto get_size, auto get, std::string& text) {
    if (output.result == NvrtcResult::kSuccess) output.result = get_size(program, &size);
    if (output.result != NvrtcResult::kSuccess) return;
    text.resize(size);
    output.result = get(program, text.data());
  };
  take(nvrtc.cubin_size, nvrtc.cubin, output.cubin);
  take(nvrtc.ptx_size, nvrtc.ptx, output.ptx);
  return output;
}

Image compile_image(const std::string& source, const std::string& name, Architecture architecture) {
  std::string why_not;
  const Nvrtc* const nvrtc = find_nvrtc(&why_not);
  if (nvrtc == nullptr)
    throw DeviceError(
        absl::StrCat("no kernels for CUDA: ", why_not, "; they need CUDA's NVRTC (pip: nvidia-cuda-nvrtc)"));
  NvrtcOutput output = compile_source(*nvrtc, source, name + ".cu", architecture, kExactFlags);
  if (output.result != NvrtcResult::kSuccess)
    throw_internal(absl::StrCat("NVRTC (", nvrtc->path, ") refuses ", name, " for ", architecture.name(), ": ",
                                nvrtc->error_string(output.result), "\n", output.log));
  if (architecture != Architecture(kNewestArchitecture)) output.ptx.clear();
  return {std::move(output.cubin), std::move(output.ptx)};
}

std::string version_of(const Nvrtc& nvrtc) {
  int major = 0, minor = 0;
  return nvrtc.version(&major, &minor) == NvrtcResult::kSuccess ? absl::StrCat(major, ".", minor) : "";
}

io::HostKey key_of_code(Architecture architecture, const std::string& maker) {
  const Nvrtc* const nvrtc = find_nvrtc(nullptr);
  return {{{"target", absl::StrCat("cuda ", architecture.name())},
           {"build", maker},
           {"nvrtc", nvrtc == nullptr ? "" : version_of(*nvrtc)},
           {"flags", absl::StrJoin(kExactFlags, " ")}}};
}

}  // namespace rondo::cuda

#include "rondo/compile/jit/executable.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/compile/jit/plugin.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/error.h"

namespace rondo::compile {
namespace {

namespace fs = std::filesystem;

#ifdef RONDO_STATIC_JIT

bool plugin_exists() { return true; }
const JitPlugin& plugin() { return *rondo_jit_plugin(); }

#else

// Where the plug-in may be, in the order of trying.
std::vector<fs::path> candidates() {
  std::vector<fs::path> paths;
  // Set: nothing else is tried, so that a wrong path is noticed.
  if (const char* chosen = std::getenv("RONDO_JIT_LIBRARY"); chosen != nullptr && *chosen != '\0') return {chosen};
  std::error_code ignored;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", ignored); !program.empty()) {
    paths.push_back(program.parent_path() / kPluginFile);
    paths.push_back(program.parent_path().parent_path() / "lib" / kPluginFile);
  }
  // The program's run path, which find_package(rondo) sets.
  if (void* program = dlopen(nullptr, RTLD_LAZY)) {
    Dl_serinfo size{};
    if (dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0) {
      std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
      auto* info = new (memory.data()) Dl_serinfo{};
      if (dlinfo(program, RTLD_DI_SERINFOSIZE, info) == 0 && dlinfo(program, RTLD_DI_SERINFO, info) == 0)
        for (unsigned i = 0; i < info->dls_cnt; ++i) paths.push_back(fs::path(info->dls_serpath[i].dls_name) / kPluginFile);
    }
    dlclose(program);
  }
#ifdef RONDO_BUILD_LIBDIR
  paths.push_back(fs::path(RONDO_BUILD_LIBDIR) / kPluginFile);
#endif
#ifdef RONDO_INSTALL_LIBDIR
  paths.push_back(fs::path(RONDO_INSTALL_LIBDIR) / kPluginFile);
#endif
  return paths;
}

bool plugin_exists() {
  std::error_code ignored;
  for (const fs::path& path : candidates())
    if (fs::exists(path, ignored)) return true;
  return false;
}

struct Loaded {
  const JitPlugin* plugin = nullptr;
  std::string error;
};

Loaded load_plugin() {
  std::string tried;
  for (const fs::path& path : candidates()) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      absl::StrAppend(&tried, "\n  ", path.string(), ": no such file");
      continue;
    }
    void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      absl::StrAppend(&tried, "\n  ", std::string(dlerror()));
      continue;
    }
    auto* open = reinterpret_cast<decltype(&rondo_jit_plugin)>(dlsym(library, kPluginSymbol));
    if (open != nullptr && open()->abi == kPluginAbi) return {open(), ""};
    absl::StrAppend(&tried, "\n  ", path.string(), ": belongs to another version of Rondo");
    dlclose(library);
  }
  return {nullptr, absl::StrCat("compile: cannot load the code generator (", std::string(kPluginFile),
                                "); eager execution needs none. Build Rondo with LLVM 19, or set RONDO_JIT_LIBRARY to "
                                "its path. Tried:",
                                tried)};
}

// Loaded with the first kernel and never unloaded: compiled code and LLVM's own state live as long as the process.
const JitPlugin& plugin() {
  static const Loaded loaded = load_plugin();
  if (loaded.plugin == nullptr) throw Error(loaded.error);
  return *loaded.plugin;
}

#endif

class PluginExecutable : public Executable {
 public:
  PluginExecutable(const JitPlugin& plugin, JitResult result) : plugin_(plugin), result_(std::move(result)) {}
  ~PluginExecutable() override { plugin_.release(result_.code); }
  KernelEntry entry(int i) const override { return result_.entries[i]; }
  std::string_view object() const override { return result_.object; }

 private:
  const JitPlugin& plugin_;
  JitResult result_;
};

std::shared_ptr<Executable> finish(const JitPlugin& jit, JitResult result) {
  if (!result.error.empty()) throw_internal(absl::StrCat("code generation: ", result.error));
  return std::make_shared<PluginExecutable>(jit, std::move(result));
}

}  // namespace

std::shared_ptr<Executable> compile_kernels(std::span<const LoopKernel> kernels, const JitOptions& options) {
  for (const LoopKernel& kernel : kernels)
    if (std::string what = verify(kernel); !what.empty()) throw_internal(absl::StrCat(kernel.name, ": ", what));
  const JitPlugin& jit = plugin();
  JitResult result;
  JitOptions wanted = options;
  if (log::enabled(log::Topic::kOutputCode, log::Detail::kVerbose)) wanted.dump_ir = wanted.dump_asm = true;
  jit.compile(kernels, wanted, result);
  if (!result.ir.empty()) log::write(log::Topic::kOutputCode, absl::StrCat("LLVM IR\n", result.ir));
  if (!result.assembly.empty()) log::write(log::Topic::kOutputCode, absl::StrCat("assembly\n", result.assembly));
  return finish(jit, std::move(result));
}

std::shared_ptr<Executable> load_kernels(std::string object, std::span<const std::string> names) {
  const JitPlugin& jit = plugin();
  JitResult result;
  jit.load(std::move(object), names, result);
  return finish(jit, std::move(result));
}

std::string jit_toolchain() {
  std::string text;
  plugin().describe(text);
  return text;
}

bool jit_available() { return plugin_exists(); }

}  // namespace rondo::compile

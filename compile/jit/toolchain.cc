#include "rondo/compile/jit/toolchain.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/build_hash.h"
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
        for (unsigned i = 0; i < info->dls_cnt; ++i)
          paths.push_back(fs::path(info->dls_serpath[i].dls_name) / kPluginFile);
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
    if (open != nullptr && open()->abi == kPluginAbi && std::string_view(open()->build()) == build_hash())
      return {open(), ""};
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

// Owns what LLVM's linker placed.
class LinkedByLlvm final : public Code {
 public:
  LinkedByLlvm(const JitPlugin& plugin, LinkedCode linked) : Code(linked.entry), plugin_(plugin), code_(linked.code) {}
  ~LinkedByLlvm() override { plugin_.release(code_); }

 private:
  const JitPlugin& plugin_;
  void* code_;
};

void check(const std::string& error) {
  if (!error.empty()) throw_internal(absl::StrCat("code generation: ", error));
}

}  // namespace

std::string compile_object(const LoopKernel& kernel, const JitOptions& options) {
  JitResult result;
  plugin().compile(kernel, options, result);
  check(result.error);
  if (!result.ir.empty())
    log::write(log::Topic::kOutputCode, absl::StrCat("LLVM IR of ", kernel.name, "\n", result.ir));
  if (!result.assembly.empty())
    log::write(log::Topic::kOutputCode, absl::StrCat("assembly of ", kernel.name, "\n", result.assembly));
  return std::move(result.object);
}

std::shared_ptr<const Code> link_object(const std::string& object) {
  const JitPlugin& jit = plugin();
  LinkedCode linked;
  std::string error;
  jit.link(object, linked, error);
  check(error);
  return std::make_shared<LinkedByLlvm>(jit, linked);
}

void load_toolchain() { plugin(); }

bool toolchain_exists() { return plugin_exists(); }

std::string jit_toolchain() {
  std::string text;
  plugin().describe(text);
  return text;
}

}  // namespace rondo::compile

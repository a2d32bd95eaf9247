#include "rondo/compile/jit/cpu/toolchain.h"

#include <dlfcn.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/cpu/host_key.h"
#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/compile/log.h"
#include "rondo/compile/target/code_generator.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/io/trusted_file.h"

#ifndef RONDO_STATIC_JIT
// The folder of the plug-in, where "$ORIGIN" is the folder of the shared library that holds this code. Defined outside
// this library: by the shared library's build, by find_package(rondo) in programs that link archives, or not at all.
extern "C" {
extern const char rondo_plugin_folder[] __attribute__((weak));
}
#endif

namespace rondo::compile {
namespace {

namespace fs = std::filesystem;

// Throws if LLVM had no memory. `entered`: what a function of the plug-in returned.
void check_memory(bool entered) {
  static std::atomic<bool> told = false;
  if (entered) return;
  if (!told.exchange(true)) throw std::bad_alloc();
  throw NoCodeGenerator("compile: LLVM ran out of memory earlier, so this process does not enter it again");
}

// An object of this class exists while a kernel is compiled. When the process's memory grows (memory.h, on_growth) and
// nothing was compiled for a while, the plug-in gives back its memory (rest()). So the peak of a training process does
// not include LLVM.
class Compiling {
 public:
  // Call while `plugin` compiles nothing.
  static void watch(const JitPlugin& plugin) {
    plugin.rest();  // to relocate LLVM, the dynamic linker has read 20 MB that nobody reads again
    plugin_.store(&plugin);
    allocator::on_growth([] {
      if (ms_now() - last_ms_.load(std::memory_order_relaxed) >= kIdleMs) rest();
    });
    memory::on_trim(&rest);
  }
  Compiling() { ++compiling_; }
  ~Compiling() {
    last_ms_.store(ms_now(), std::memory_order_relaxed);
    awake_.store(true, std::memory_order_relaxed);
    --compiling_;
  }
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  // A first step compiles one block after the other. Calling rest() after each would make compiling DDRNet take 1.25
  // times as long (median of 7 pairs).
  static constexpr int64_t kIdleMs = 50;

  static void rest() {
    if (compiling_ == 0 && awake_.load(std::memory_order_relaxed) && awake_.exchange(false)) plugin_.load()->rest();
  }
  static int64_t ms_now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  static inline std::atomic<const JitPlugin*> plugin_{nullptr};
  static inline std::atomic<int> compiling_{0};
  static inline std::atomic<bool> awake_{false};  // the plug-in has compiled since the last rest()
  static inline std::atomic<int64_t> last_ms_{0};
};

#ifdef RONDO_STATIC_JIT

bool plugin_exists() { return true; }
fs::path plugin_path() { return {}; }
const JitPlugin& plugin() { return *rondo_jit_plugin(); }

#else

// Returns the only path from which the plug-in is loaded. It depends on no search path, run path or working directory.
fs::path plugin_path() {
  if (const char* chosen = std::getenv("RONDO_JIT_LIBRARY"); chosen != nullptr && *chosen != '\0') return chosen;
  const char* folder = RONDO_PLUGIN_INSTALL_FOLDER;
  if (rondo_plugin_folder != nullptr) folder = rondo_plugin_folder;
  std::string_view rest = folder;
  if (constexpr std::string_view kOrigin = "$ORIGIN/"; rest.starts_with(kOrigin)) {
    rest.remove_prefix(kOrigin.size());
    Dl_info library{};
    std::error_code ignored;
    if (dladdr(folder, &library) != 0)
      return fs::weakly_canonical(library.dli_fname, ignored).parent_path() / rest / kPluginFile;
  }
  return fs::path(rest) / kPluginFile;
}

bool plugin_exists() {
  std::error_code ignored;
  return fs::exists(plugin_path(), ignored);
}

struct Loaded {
  const JitPlugin* plugin = nullptr;
  std::string error = {};
  // Never closed: the dynamic linker knows the library by the name of this descriptor, which no other file may get.
  std::optional<io::TrustedFile> file = {};
};

// Checks the file at `path`, then loads it. The file that is checked is the file that is loaded: Note [Trusted paths]
// in trusted_file.h.
Loaded load_checked(const std::string& path) {
  const auto refuse = [](std::string reason) { return Loaded{.error = std::move(reason)}; };
  absl::StatusOr<io::TrustedFile> file = io::TrustedFile::open(path);
  if (!file.ok()) return refuse(std::string(file.status().message()));
  const absl::StatusOr<std::string> bytes = file->read();
  if (!bytes.ok()) return refuse(std::string(bytes.status().message()));
  if (bytes->find(build_mark()) == std::string::npos) return refuse("it belongs to another build of Rondo");
  // noexcept: if memory runs out while LLVM's static variables are made, the process ends here, because an exception
  // would leave the dynamic linker locked.
  const std::string loadable = file->loadable_path();
  void* library = [&]() noexcept { return dlopen(loadable.c_str(), RTLD_LAZY | RTLD_LOCAL); }();
  if (library == nullptr) return refuse(dlerror());
  auto* open = reinterpret_cast<decltype(&rondo_jit_plugin)>(dlsym(library, kPluginSymbol));
  if (open == nullptr || open()->abi != kPluginAbi) {
    dlclose(library);
    return refuse("it belongs to another build of Rondo");
  }
  Compiling::watch(*open());
  return {.plugin = open(), .file = *std::move(file)};
}

Loaded load_plugin() {
  const std::string path = plugin_path().string();
  Loaded loaded = load_checked(path);
  if (loaded.plugin == nullptr)
    loaded.error = absl::StrCat("compile: cannot load the code generator ", path, ": ", loaded.error,
                                ". Eager execution needs no code generator. Build Rondo with LLVM, or set "
                                "RONDO_JIT_LIBRARY to the path of ",
                                std::string(kPluginFile), ".");
  return loaded;
}

// The first call loads the plug-in. It is never unloaded: compiled code and LLVM's own state live as long as the
// process.
const JitPlugin& plugin() {
  static const Loaded& loaded = *new Loaded(load_plugin());
  if (loaded.plugin == nullptr) throw Error(loaded.error);
  return *loaded.plugin;
}

#endif

// Owns code that LLVM's linker has placed.
class LinkedByLlvm final : public MachineCode {
 public:
  LinkedByLlvm(const JitPlugin& plugin, LinkedCode linked)
      : MachineCode(reinterpret_cast<KernelHandle>(linked.entry)), plugin_(plugin), code_(linked.code) {}
  ~LinkedByLlvm() override { plugin_.release(code_); }

 private:
  const JitPlugin& plugin_;
  void* code_;
};

void check(const std::string& error) {
  if (!error.empty()) throw_internal(absl::StrCat("code generation: ", error));
}

}  // namespace

JitResult compile_for_cpu(const LoopKernel& kernel, const CodeCpu& cpu, const JitOptions& options) {
  JitResult result;
  const JitPlugin& jit = plugin();
  const Compiling now;
  // LLVM clears floating-point flags when it computes constants. FloatingPointScope does not restore those of x87.
  std::fenv_t host;
  std::feholdexcept(&host);
  const absl::Cleanup restore = [&host] { std::fesetenv(&host); };
  check_memory(jit.compile(kernel, cpu, options, result));
  check(result.error);
  return result;
}

std::string compile_object(const LoopKernel& kernel, const JitOptions& options) {
  JitResult result = compile_for_cpu(kernel, kernel_cpu(), options);
  if (!result.ir.empty())
    log::write(log::Topic::kOutputCode, absl::StrCat("LLVM IR of ", kernel.name, "\n", result.ir));
  if (!result.assembly.empty())
    log::write(log::Topic::kOutputCode, absl::StrCat("assembly of ", kernel.name, "\n", result.assembly));
  return std::move(result.object);
}

std::shared_ptr<const MachineCode> link_object(const std::string& object) {
  const JitPlugin& jit = plugin();
  LinkedCode linked;
  std::string error;
  check_memory(jit.link(object, linked, error));
  check(error);
  return std::make_shared<LinkedByLlvm>(jit, linked);
}

void load_toolchain() { plugin(); }

bool toolchain_exists() {
  const FloatingPointScope floating_point;  // std::filesystem::path computes with floats when it grows
  return plugin_exists();
}

std::string toolchain_path() {
  const FloatingPointScope floating_point;
  return plugin_path().string();
}

std::string jit_toolchain() {
  std::string text;
  check_memory(plugin().describe(kernel_cpu(), text));
  return text;
}

}  // namespace rondo::compile

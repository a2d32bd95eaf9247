// The LLVM back end of toolchain.h: a loop kernel -> IR -> object code. Built as a plug-in of its own
// (librondo_jit_llvm.so), so that a process that never compiles never maps LLVM.
//
// Each call works in a context of its own, so callers may compile kernels in parallel on any number of threads.
#include <link.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "rondo/compile/codegen/cpu/emit_llvm.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/cpu/plugin.h"

namespace rondo::compile {
namespace {

namespace orc = llvm::orc;

// Note [LLVM without memory]. LLVM is built without exceptions. If LLVM gets no memory, std::bad_alloc passes through
// it and leaves it in the middle of its work: it may hold locks and have half-written lists. So the objects that LLVM
// works on are not destroyed then (Work), and the process never enters LLVM again: kernels that are not compiled yet
// run eagerly. A thread that is inside LLVM at that moment may wait for ever, if it needs such a lock.
std::atomic<bool> exhausted = false;

// Calls `run`, which enters LLVM. Returns false if LLVM had no memory, now or earlier.
template <class F> bool enter(F run) {
  static const bool throws = [] {
    // LLVM also allocates with malloc(). If that fails, LLVM would end the process; this handler throws instead.
    llvm::install_bad_alloc_error_handler([](void*, const char*, bool) { throw std::bad_alloc(); });
    return true;
  }();
  if (!throws || exhausted) return false;
  try {
    run();
    return true;
  } catch (const std::bad_alloc&) {
    exhausted = true;
    return false;
  }
}

// Owns an object that LLVM works on. If an exception is thrown, the object is not destroyed.
template <class T> class Work {
 public:
  template <class... Args> explicit Work(Args&&... args) : object_(new T(std::forward<Args>(args)...)) {}
  ~Work() {
    if (std::uncaught_exceptions() == before_) delete object_;
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  const int before_ = std::uncaught_exceptions();
  T* const object_;
};

// A processor in LLVM's words.
struct Processor {
  std::string cpu;
  std::string features = {};
  std::string tune = {};  // the processor for whose speed instructions are ordered; empty: `cpu`
  bool prefers_512 = false;
};

// Measured over elementwise, normalisation and optimizer kernels: Default compiles in 2.2 ms a kernel, as Less does,
// and its code is as fast as Aggressive's. None compiles in 0.6 ms, but its kernels run up to six times slower.
constexpr llvm::CodeGenOptLevel kLevel = llvm::CodeGenOptLevel::Default;

// The type in which modules and target machines take a triple. Up to LLVM 20 it is a string.
#if LLVM_VERSION_MAJOR < 21
using Triple = std::string;
#else
using Triple = llvm::Triple;
#endif

// The architecture of this process. Never destroyed, like the sessions: code may still run during static destruction.
struct Architecture {
  std::string name = llvm::sys::getProcessTriple();
  Triple triple = Triple(name);
  const llvm::Target* target = nullptr;
  std::string error;
};

const Architecture& architecture() {
  static const Architecture* const instance = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    auto* made = new Architecture;
    made->target = llvm::TargetRegistry::lookupTarget(made->name, made->error);
    return made;
  }();
  return *instance;
}

Processor this_host() {
  Processor host{.cpu = llvm::sys::getHostCPUName().str()};
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> sorted;  // the map's order depends on hashing; cache keys must not
  for (const auto& feature : features) {
    sorted.emplace_back(feature.second ? "+" : "-");
    sorted.back() += feature.first();
  }
  std::sort(sorted.begin(), sorted.end());
  host.features = llvm::join(sorted, ",");
  host.prefers_512 = features.lookup("avx512f");
  return host;
}

// Returns the processor for a RONDO_CPU other than "native". On x86 and ARM, code for it may use the features of every
// x86-64 or aarch64, and those that the kernels of this build use. So one check at the first tensor covers both kinds
// of code (runtime/base/cpu_features.h). The name only decides how instructions are ordered: LLVM would enable features
// for it that the check does not know. On other architectures the features of this build's kernels are unknown, so the
// name decides which features code uses. If LLVM does not know the name, code uses the features that every processor of
// the architecture has.
Processor named(const CodeCpu& wanted) {
  const Architecture& here = architecture();
  const std::unique_ptr<const llvm::MCSubtargetInfo> known(here.target->createMCSubtargetInfo(here.name, "", ""));
  const bool name_is_known = known->isCPUStringValid(wanted.name);
  const llvm::Triple triple(here.name);
  if (!triple.isX86() && !triple.isAArch64()) return {.cpu = name_is_known ? wanted.name : "generic"};
  Processor processor{.cpu = triple.isX86() ? "x86-64" : "generic", .tune = name_is_known ? wanted.name : "generic"};
  llvm::SmallVector<llvm::StringRef, 32> features;
  llvm::StringRef(wanted.features).split(features, ' ', -1, /*KeepEmpty=*/false);
  for (const llvm::StringRef feature : features) {
    if (llvm::none_of(known->getAllProcessorFeatures(), [&](const auto& entry) { return feature == entry.Key; }))
      continue;  // LLVM would print a warning
    if (!processor.features.empty()) processor.features += ',';
    processor.features += ("+" + feature).str();
    processor.prefers_512 |= feature == "avx512f";
  }
  return processor;
}

// A compiler for one processor.
struct Session {
  Processor processor;
  std::mutex mutex;  // guards `machines`
  std::list<std::unique_ptr<llvm::TargetMachine>> machines;
};

// Returns this process's session for a processor. REQUIRES: the architecture has a target.
Session& session_of(const CodeCpu& cpu) {
  static auto* const sessions = new std::map<std::pair<std::string, std::string>, Session>;
  static auto* const mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  const auto [at, is_new] = sessions->try_emplace({cpu.name, cpu.features});
  if (is_new) at->second.processor = cpu.name == "native" ? this_host() : named(cpu);
  return at->second;
}

std::unique_ptr<llvm::TargetMachine> make_machine(const Processor& processor) {
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(
      architecture().target->createTargetMachine(architecture().triple, processor.cpu, processor.features, options,
                                                 llvm::Reloc::PIC_, llvm::CodeModel::Small, kLevel, /*JIT=*/true));
}

// Leases a target machine for one compilation. A machine may serve one thread at a time, and making one costs about as
// much as compiling a small kernel, so machines are kept.
class MachineLease {
 public:
  explicit MachineLease(Session& session) : session_(session) {
    {
      std::lock_guard lock(session.mutex);
      if (!session.machines.empty()) machine_.splice(machine_.end(), session.machines, session.machines.begin());
    }
    if (machine_.empty()) machine_.push_back(make_machine(session.processor));
  }
  ~MachineLease() {
    std::lock_guard lock(session_.mutex);
    session_.machines.splice(session_.machines.end(), machine_);
  }
  MachineLease(const MachineLease&) = delete;
  MachineLease& operator=(const MachineLease&) = delete;
  llvm::TargetMachine& operator*() const { return *machine_.front(); }
  llvm::TargetMachine* operator->() const { return machine_.front().get(); }

 private:
  Session& session_;
  std::list<std::unique_ptr<llvm::TargetMachine>> machine_;  // exactly one
};

void set_attributes(llvm::Function& function, const Processor& processor) {
  function.addFnAttr("target-cpu", processor.cpu);
  function.addFnAttr("target-features", processor.features);
  if (!processor.tune.empty()) function.addFnAttr("tune-cpu", processor.tune);
  function.addFnAttr(llvm::Attribute::NoUnwind);
  // On some CPUs, LLVM uses only half of a 512-bit register by default; our lanes are sized for whole ones.
  function.addFnAttr("min-legal-vector-width", processor.prefers_512 ? "512" : "256");
  function.addFnAttr("prefer-vector-width", processor.prefers_512 ? "512" : "256");
}

// Generates code without IR passes: they do not make the code of emit_llvm.cc faster (measured: EarlyCSE and LICM).
std::string emit_code(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type,
                      llvm::SmallVectorImpl<char>& out) {
  llvm::raw_svector_ostream stream(out);
  const Work<llvm::legacy::PassManager> passes;
  if (machine.addPassesToEmitFile(*passes, stream, nullptr, type, /*DisableVerify=*/true))
    return "this target cannot emit object code";
  passes->run(module);
  return "";
}

std::string compile_kernel(Session& session, const LoopKernel& source, const JitOptions& options, JitResult& result) {
  MachineLease machine(session);
  const Work<llvm::LLVMContext> context;
  const Work<llvm::Module> work("rondo", *context);
  llvm::Module& module = *work;
  module.setTargetTriple(architecture().triple);
  module.setDataLayout(machine->createDataLayout());
  llvm::Function* kernel = emit_llvm(source, module);
  set_attributes(*kernel, session.processor);
  if (options.dump_ir) {
    llvm::raw_string_ostream text(result.ir);
    module.print(text, nullptr);
  }
#ifndef NDEBUG
  std::string complaint;
  llvm::raw_string_ostream complaints(complaint);
  if (llvm::verifyModule(module, &complaints)) return "LLVM rejects the module: " + complaint;
#endif
  if (options.dump_asm) {
    // Code generation changes the module, so the text comes from a copy.
    llvm::SmallVector<char, 0> text;
    const std::unique_ptr<llvm::Module> copy = llvm::CloneModule(module);
    if (std::string error = emit_code(*copy, *machine, llvm::CodeGenFileType::AssemblyFile, text); !error.empty())
      return error;
    result.assembly.assign(text.begin(), text.end());
  }
  kernel->setName(kKernelSymbol);
  llvm::SmallVector<char, 0> object;
  if (std::string error = emit_code(module, *machine, llvm::CodeGenFileType::ObjectFile, object); !error.empty())
    return error;
  result.object.assign(object.begin(), object.end());
  return "";
}

bool compile(const LoopKernel& kernel, const CodeCpu& cpu, const JitOptions& options, JitResult& result) {
  return enter([&] {
    const std::string& error = architecture().error;
    result.error = error.empty() ? compile_kernel(session_of(cpu), kernel, options, result) : error;
  });
}

// ---- LLVM's linker, for objects that our own loader (object.h) cannot place

struct Linker {
  std::unique_ptr<orc::LLJIT> jit;
  std::string error;
  std::atomic<uint64_t> next_library{0};
};

Linker* make_linker() {
  auto* linker = new Linker;  // never destroyed, like the sessions
  auto jit = orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(llvm::Triple(architecture().name)))
                 // Kernels have no static constructors, thread locals or exceptions: no platform is needed.
                 .setPlatformSetUp(orc::setUpInactivePlatform)
                 .create();
  if (!jit) linker->error = llvm::toString(jit.takeError());
  else linker->jit = std::move(*jit);
  return linker;
}

Linker& linker() {
  static Linker* const instance = make_linker();
  return *instance;
}

// What LinkedCode::code points to: the code's library in the linker.
struct Library {
  orc::JITDylib* dylib;
};

void release(void* code) {
  const std::unique_ptr<Library> owned(static_cast<Library*>(code));
  enter([&] { llvm::consumeError(linker().jit->getExecutionSession().removeJITDylib(*owned->dylib)); });
}

std::string link_object(Linker& linker, const std::string& object, LinkedCode& linked) {
  auto library = linker.jit->createJITDylib("rondo." + std::to_string(linker.next_library++));
  if (!library) return llvm::toString(library.takeError());
  linked.code = new Library{&*library};
  if (llvm::Error error = linker.jit->addObjectFile(*library, llvm::MemoryBuffer::getMemBufferCopy(object)))
    return llvm::toString(std::move(error));
  auto address = linker.jit->lookup(*library, kKernelSymbol);
  if (!address) return llvm::toString(address.takeError());
  linked.entry = address->toPtr<KernelEntry>();
  return "";
}

bool link(const std::string& object, LinkedCode& linked, std::string& error) {
  return enter([&] {
    if (error = architecture().error; !error.empty()) return;
    Linker& l = linker();
    error = l.error.empty() ? link_object(l, object, linked) : l.error;
    if (error.empty() || linked.code == nullptr) return;
    release(linked.code);
    linked = {};
  });
}

bool describe(const CodeCpu& cpu, std::string& toolchain) {
  return enter([&] {
    const Architecture& here = architecture();
    const Processor processor = here.error.empty() ? session_of(cpu).processor : Processor();
    toolchain = llvm::join_items(" ", "LLVM", LLVM_VERSION_STRING, here.name, processor.cpu, processor.features);
  });
}

// ---- Giving back LLVM's own memory

#ifdef RONDO_STATIC_JIT
void rest() {}  // LLVM is linked into the program
#else
// Unmaps the pages of LLVM's code and constants, some 50 MB that nothing reads between two compilations. They are never
// written to, and stay in the system's file cache, from where the next compilation maps them again. (A debugger's
// breakpoints in LLVM are lost.)
void rest() {
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void*) {
        const auto within = [&](const ElfW(Phdr) & part, uintptr_t address) {
          return part.p_type == PT_LOAD && address - (library->dlpi_addr + part.p_vaddr) < part.p_memsz;
        };
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const ElfW(Phdr)* const parts = library->dlpi_phdr;
        const auto code = reinterpret_cast<uintptr_t>(&llvm::sys::getHostCPUName);
        if (std::none_of(parts, parts + library->dlpi_phnum, [&](const auto& part) { return within(part, code); }))
          return 0;
        for (const ElfW(Phdr)* part = parts; part != parts + library->dlpi_phnum; ++part) {
          if (part->p_type != PT_LOAD || (part->p_flags & PF_W) != 0) continue;
          const uintptr_t begin = (library->dlpi_addr + part->p_vaddr + page - 1) / page * page,
                          end = (library->dlpi_addr + part->p_vaddr + part->p_memsz) / page * page;
          if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
        }
        return 1;
      },
      nullptr);
}
#endif

constexpr JitPlugin kPlugin{kPluginAbi, build_hash, compile, link, release, describe, rest};

}  // namespace

extern "C" __attribute__((visibility("default"))) const JitPlugin* rondo_jit_plugin() { return &kPlugin; }

}  // namespace rondo::compile

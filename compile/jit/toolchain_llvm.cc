// The LLVM back end of executable.h: loop kernels -> IR -> object code -> memory. Built as a plug-in of its own
// (librondo_jit_llvm.so), so that a process that never compiles never maps LLVM.
//
// Each call works in a context of its own, so kernels compile in parallel on as many threads as callers bring; only the
// ORC session, which places finished code in memory, is shared.
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "rondo/compile/codegen/emit_llvm.h"
#include "rondo/compile/jit/plugin.h"

namespace rondo::compile {
namespace {

namespace orc = llvm::orc;

struct Host {
  std::string triple, cpu, features;
  const llvm::Target* target = nullptr;
  bool prefers_512 = false;
};

// Measured over elementwise, normalisation and optimizer kernels: 2.2 ms a kernel, as Less takes and as fast as
// Aggressive runs. None takes 0.6 ms, but its kernels run up to six times slower.
constexpr llvm::CodeGenOptLevel kLevel = llvm::CodeGenOptLevel::Default;

// The process-wide state. Never destroyed: code may still be running while static destructors do.
struct Session {
  Host host;
  std::unique_ptr<orc::LLJIT> jit;
  std::string error;
  std::atomic<uint64_t> next_library{0};
  std::mutex mutex;  // guards `machines`
  std::vector<std::unique_ptr<llvm::TargetMachine>> machines;
};

std::unique_ptr<llvm::TargetMachine> make_machine(const Host& host) {
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(host.target->createTargetMachine(
      host.triple, host.cpu, host.features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small, kLevel,
      /*JIT=*/true));
}

Session* make_session() {
  auto* session = new Session;
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  Host& host = session->host;
  host.triple = llvm::sys::getProcessTriple();
  host.cpu = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> sorted;  // the map's order depends on hashing; cache keys must not
  for (const auto& feature : features) {
    sorted.emplace_back(feature.second ? "+" : "-");
    sorted.back() += feature.first();
  }
  std::sort(sorted.begin(), sorted.end());
  host.features = llvm::join(sorted, ",");
  host.prefers_512 = features.lookup("avx512f");
  host.target = llvm::TargetRegistry::lookupTarget(host.triple, session->error);
  if (host.target == nullptr) return session;

  auto jit = orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(llvm::Triple(host.triple)))
                 // Kernels have no static constructors, thread locals or exceptions: no platform is needed.
                 .setPlatformSetUp(orc::setUpInactivePlatform)
                 .create();
  if (!jit) session->error = llvm::toString(jit.takeError());
  else session->jit = std::move(*jit);
  return session;
}

Session& session() {
  static Session* const instance = make_session();
  return *instance;
}

// A target machine may serve one thread at a time; making one costs about as much as compiling a small kernel.
class MachineLease {
 public:
  explicit MachineLease(Session& session) : session_(session) {
    {
      std::lock_guard lock(session.mutex);
      if (!session.machines.empty()) {
        machine_ = std::move(session.machines.back());
        session.machines.pop_back();
      }
    }
    if (machine_ == nullptr) machine_ = make_machine(session.host);
  }
  ~MachineLease() {
    std::lock_guard lock(session_.mutex);
    session_.machines.push_back(std::move(machine_));
  }
  MachineLease(const MachineLease&) = delete;
  MachineLease& operator=(const MachineLease&) = delete;
  llvm::TargetMachine& operator*() const { return *machine_; }
  llvm::TargetMachine* operator->() const { return machine_.get(); }

 private:
  Session& session_;
  std::unique_ptr<llvm::TargetMachine> machine_;
};

void set_host_attributes(llvm::Function& function, const Host& host) {
  function.addFnAttr("target-cpu", host.cpu);
  function.addFnAttr("target-features", host.features);
  function.addFnAttr(llvm::Attribute::NoUnwind);
  // LLVM halves vectors on some CPUs by default; our lanes are sized for whole 512-bit registers.
  function.addFnAttr("min-legal-vector-width", host.prefers_512 ? "512" : "256");
  function.addFnAttr("prefer-vector-width", host.prefers_512 ? "512" : "256");
}

// Code generation only: emit_llvm.cc leaves nothing for IR passes to gain (EarlyCSE and LICM were tried: no faster).
std::string emit_code(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type,
                      llvm::SmallVectorImpl<char>& out) {
  llvm::legacy::PassManager passes;
  llvm::raw_svector_ostream stream(out);
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true))
    return "this target cannot emit object code";
  passes.run(module);
  return "";
}

// Owned code of one Executable: its library in the session.
struct Code {
  orc::JITDylib* library;
};

void release(void* code) {
  std::unique_ptr<Code> owned(static_cast<Code*>(code));
  llvm::consumeError(session().jit->getExecutionSession().removeJITDylib(*owned->library));
}

// Makes result.object callable.
std::string place(Session& session, std::span<const std::string> names, JitResult& result) {
  auto library = session.jit->createJITDylib("rondo." + std::to_string(session.next_library++));
  if (!library) return llvm::toString(library.takeError());
  result.code = new Code{&*library};
  if (llvm::Error error = session.jit->addObjectFile(*library, llvm::MemoryBuffer::getMemBufferCopy(result.object)))
    return llvm::toString(std::move(error));
  for (const std::string& name : names) {
    auto address = session.jit->lookup(*library, name);
    if (!address) return llvm::toString(address.takeError());
    result.entries.push_back(address->toPtr<KernelEntry>());
  }
  return "";
}

std::string compile_module(Session& session, std::span<const LoopKernel> kernels, const JitOptions& options,
                           JitResult& result) {
  MachineLease machine(session);
  llvm::LLVMContext context;
  llvm::Module module("rondo", context);
  module.setTargetTriple(session.host.triple);
  module.setDataLayout(machine->createDataLayout());
  std::vector<std::string> names;
  for (const LoopKernel& kernel : kernels) {
    set_host_attributes(*emit_llvm(kernel, module), session.host);
    names.push_back(kernel.name);
  }
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
  llvm::SmallVector<char, 0> object;
  if (std::string error = emit_code(module, *machine, llvm::CodeGenFileType::ObjectFile, object); !error.empty())
    return error;
  result.object.assign(object.begin(), object.end());
  return place(session, names, result);
}

// Runs `work(session)`; on failure nothing but the error is left in `result`.
template <class Work> void run(JitResult& result, Work work) {
  Session& s = session();
  std::string error = s.error.empty() ? work(s) : s.error;
  if (error.empty()) return;
  if (result.code != nullptr) release(result.code);
  result = {nullptr, {}, "", std::move(error), "", ""};
}

void compile(std::span<const LoopKernel> kernels, const JitOptions& options, JitResult& result) {
  run(result, [&](Session& s) { return compile_module(s, kernels, options, result); });
}

void load(std::string object, std::span<const std::string> names, JitResult& result) {
  result.object = std::move(object);
  run(result, [&](Session& s) { return place(s, names, result); });
}

void describe(std::string& toolchain) {
  const Host& host = session().host;
  toolchain = llvm::join_items(" ", "LLVM", LLVM_VERSION_STRING, host.triple, host.cpu, host.features);
}

constexpr JitPlugin kPlugin{kPluginAbi, compile, load, release, describe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const JitPlugin* rondo_jit_plugin() { return &kPlugin; }

}  // namespace rondo::compile

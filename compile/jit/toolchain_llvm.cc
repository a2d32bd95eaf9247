// The LLVM back end of executable.h: loop kernels -> IR -> object code -> memory. Built as a plug-in of its own
// (librondo_jit_llvm.so), so that a process that never compiles never maps LLVM.
//
// Each call works in a context of its own, so kernels compile in parallel on as many threads as callers bring; only the
// ORC session, which places finished code in memory, is shared.
#include <llvm/ADT/StringMap.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Pass.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/Scalar.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
  llvm::CodeGenOptLevel level = llvm::CodeGenOptLevel::Default;
};

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
      host.triple, host.cpu, host.features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small, host.level,
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
  for (const auto& feature : features) {
    if (!host.features.empty()) host.features += ',';
    host.features += feature.second ? '+' : '-';
    host.features += feature.first();
  }
  host.prefers_512 = features.lookup("avx512f");
  host.target = llvm::TargetRegistry::lookupTarget(host.triple, session->error);
  if (host.target == nullptr) return session;
  if (const char* level = std::getenv("RONDO_JIT_LEVEL")) host.level = static_cast<llvm::CodeGenOptLevel>(std::atoi(level));

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

std::string emit_code(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type,
                      llvm::SmallVectorImpl<char>& out) {
  llvm::legacy::PassManager passes;
  if (std::getenv("RONDO_JIT_CSE")) passes.add(llvm::createEarlyCSEPass());
  if (std::getenv("RONDO_JIT_LICM")) passes.add(llvm::createLICMPass());
  llvm::raw_svector_ostream stream(out);
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true))
    return "this target cannot emit object code";
  passes.run(module);
  return "";
}

struct Timer {
  std::chrono::steady_clock::time_point t = std::chrono::steady_clock::now();
  void lap(const char* what) {
    static const bool on = std::getenv("RONDO_JIT_TIME") != nullptr;
    auto now = std::chrono::steady_clock::now();
    if (on) std::fprintf(stderr, "  %-10s %.3f ms\n", what, std::chrono::duration<double, std::milli>(now - t).count());
    t = std::chrono::steady_clock::now();
  }
};

// Owned code of one Executable: its library in the session.
struct Code {
  orc::JITDylib* library;
};

void release(void* code) {
  std::unique_ptr<Code> owned(static_cast<Code*>(code));
  llvm::consumeError(session().jit->getExecutionSession().removeJITDylib(*owned->library));
}

std::string place(Session& session, llvm::SmallVector<char, 0> object, std::span<const LoopKernel> kernels,
                  JitResult& result) {
  const std::string name = "rondo." + std::to_string(session.next_library++);
  auto library = session.jit->createJITDylib(name);
  if (!library) return llvm::toString(library.takeError());
  result.code = new Code{&*library};
  auto buffer = std::make_unique<llvm::SmallVectorMemoryBuffer>(std::move(object), /*RequiresNullTerminator=*/false);
  if (llvm::Error error = session.jit->addObjectFile(*library, std::move(buffer)))
    return llvm::toString(std::move(error));
  for (const LoopKernel& kernel : kernels) {
    auto address = session.jit->lookup(*library, kernel.name);
    if (!address) return llvm::toString(address.takeError());
    result.entries.push_back(address->toPtr<KernelEntry>());
  }
  return "";
}

std::string compile_module(Session& session, std::span<const LoopKernel> kernels, const JitOptions& options,
                           JitResult& result) {
  if (!session.error.empty()) return session.error;
  Timer timer;
  MachineLease machine(session);
  llvm::LLVMContext context;
  llvm::Module module("rondo", context);
  module.setTargetTriple(session.host.triple);
  module.setDataLayout(machine->createDataLayout());
  timer.lap("machine");
  for (const LoopKernel& kernel : kernels) set_host_attributes(*emit_llvm(kernel, module), session.host);
  timer.lap("emit");
  if (options.dump_ir) module.print(llvm::errs(), nullptr);
#ifndef NDEBUG
  std::string complaint;
  llvm::raw_string_ostream complaints(complaint);
  if (llvm::verifyModule(module, &complaints)) return "LLVM rejects the module: " + complaint;
#endif
  if (options.dump_asm) {
    llvm::SmallVector<char, 0> text;
    if (std::string error = emit_code(module, *machine, llvm::CodeGenFileType::AssemblyFile, text); !error.empty())
      return error;
    llvm::errs() << llvm::StringRef(text.data(), text.size());
  }
  llvm::SmallVector<char, 0> object;
  if (std::string error = emit_code(module, *machine, llvm::CodeGenFileType::ObjectFile, object); !error.empty())
    return error;
  timer.lap("codegen");
  std::string error = place(session, std::move(object), kernels, result);
  timer.lap("place");
  return error;
}

void compile(std::span<const LoopKernel> kernels, const JitOptions& options, JitResult& result) {
  result.error = compile_module(session(), kernels, options, result);
  if (result.error.empty() || result.code == nullptr) return;
  release(result.code);
  result = {nullptr, {}, std::move(result.error)};
}

constexpr JitPlugin kPlugin{kPluginAbi, compile, release};

}  // namespace

extern "C" __attribute__((visibility("default"))) const JitPlugin* rondo_jit_plugin() { return &kPlugin; }

}  // namespace rondo::compile

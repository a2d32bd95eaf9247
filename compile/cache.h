// Compiled code outlives the process.
//
// Every kernel is kept on disk, in RONDO_CACHE_DIR, else $XDG_CACHE_HOME/rondo, else ~/.cache/rondo (RONDO_CACHE=off:
// nowhere; RONDO_CACHE_MB: at most so much, 256 by default), so that the next process compiles nothing and never loads
// LLVM. Thread safe.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

// ---- Artifacts. An artifact is one file, stream or string. It holds every kernel that this process has compiled or
// loaded, for all its devices, and what Mode::kMaxAutotune has measured. The format is that of the disk cache, so a
// host without the compiler (LLVM, NVRTC) can use an artifact.
//
//   store.put("model.rondo", compile::artifact_bytes());                 // object storage: a client of your own
//   compile::load_artifact_bytes(store.get("model.rondo"));              // in the next process: compiles nothing
//
// The process will run the code in an artifact: load one only from a place that nobody but you can write to.

// Thrown when an artifact cannot be used here. path(): that of the file; "artifacts" for a stream or a string.
class ArtifactError : public FileError {
 public:
  enum class Cause : uint8_t {
    kDamaged,       // the bytes are changed, cut short, or no artifact
    kOtherVersion,  // made by another build of Rondo, or with another version of the compiler: make it again
    kOtherMachine,  // it has no code for the devices that are here: another processor or architecture
  };
  ArtifactError(std::string path, Cause cause, std::string_view reason)
      : FileError(std::move(path), reason), cause_(cause) {}
  Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

// Throws FileError.
void save_artifacts(const std::string& path);
// Throws Error if the stream fails.
void save_artifacts(std::ostream& out);
std::string artifact_bytes();
// Makes the kernels of artifacts this process's own, those for devices that are here; returns how many they are. Throws
// ArtifactError with the reason and what to do; FileError if the file cannot be read, or if others than its owner (us
// or root) could have written it.
int load_artifacts(const std::string& path);
// To the end of the stream. Who could have written it is the caller's to know.
int load_artifacts(std::istream& in);
int load_artifact_bytes(std::string_view bytes);

// Counts the sources of this process's code, for all its devices.
struct CacheReport {
  std::string folder;       // of the disk cache; "": none
  int64_t from_memory = 0;  // kernels asked for that were there already
  int64_t from_artifacts = 0;
  int64_t from_disk = 0;
  int64_t misses = 0;  // compiled
  struct Miss {
    std::string kernel;     // its text, or a name
    std::string component;  // what differs from the nearest entry: "build", "cpu", "llvm", "nvrtc", "kernel", ...; or
                            // "by hand": a kernel of the runtime's own sources
    std::string why;        // "cpu: there avx512f, here nothing more"; "line 1: there "cols=768 ...", here ..."
  };
  std::vector<Miss> missed;  // the latest 256
};
CacheReport cache_report();

}  // namespace rondo::compile
#pragma GCC visibility pop

// Keeps compiled code beyond the end of the process: in the disk cache, and in artifacts.
//
// Every kernel is kept on disk, so that the next process compiles nothing and never loads LLVM. The folder is
// RONDO_CACHE_DIR, else $XDG_CACHE_HOME/rondo, else ~/.cache/rondo. RONDO_CACHE=off keeps nothing; RONDO_CACHE_MB is
// the limit in MiB, 256 by default. Thread safe.
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

// ---- Artifacts. An artifact is one file, stream or string. It contains every kernel that this process has compiled or
// loaded, for all its devices, and what Mode::kMaxAutotune has measured. The format is that of the disk cache, so a
// host without the compiler (LLVM, NVRTC) can use an artifact.
//
//   store.put("model.rondo", compile::artifact_bytes());                 // `store`: a client of your object storage
//   compile::load_artifact_bytes(store.get("model.rondo"));              // in the next process: compiles nothing
//
// The process will run the code in an artifact: load one only from a place that nobody but you can write to.

// Thrown when this process cannot use an artifact. path() is the file's path, or "artifacts" for a stream or a string.
class ArtifactError : public FileError {
 public:
  enum class Cause : uint8_t {
    kDamaged,       // the bytes were changed or cut short, or are not an artifact
    kOtherVersion,  // made by another build of Rondo, or with another version of the compiler: make it again
    kOtherMachine,  // its code is for another processor or architecture than those of this machine's devices
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
// Adds the artifact's kernels for the devices of this process. Returns how many kernels were added. Throws
// ArtifactError with the reason and what to do; FileError if the file cannot be read, or if a user other than us or
// root owns the file or could have written it.
int load_artifacts(const std::string& path);
// Reads to the end of the stream. The caller must know who could have written it. Throws Error if the stream has failed
// already, and ArtifactError.
int load_artifacts(std::istream& in);
int load_artifact_bytes(std::string_view bytes);

// Where this process's code came from, for all its devices.
struct CacheReport {
  std::string folder;       // the disk cache's folder; "": there is no disk cache
  int64_t from_memory = 0;  // requested kernels that were in memory already
  int64_t from_artifacts = 0;
  int64_t from_disk = 0;
  int64_t misses = 0;  // kernels that had to be compiled
  struct Miss {
    std::string kernel;     // the text of a loop kernel, or the name of a kernel of the runtime's sources
    std::string component;  // what differs from the nearest entry: "build", "cpu", "llvm", "nvrtc", "kernel", ...; or
                            // "by hand": a kernel of the runtime's own sources
    std::string why;        // the difference ("there": in that entry): "cpu: there avx512f, here nothing more"; or
                            // "line 1: there "cols=768 ...", here ..."
  };
  std::vector<Miss> missed;  // the latest 256 misses
};
CacheReport cache_report();

}  // namespace rondo::compile
#pragma GCC visibility pop

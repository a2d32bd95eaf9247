// Compiled code outlives the process.
//
// Every kernel is kept on disk, in RONDO_CACHE_DIR, else $XDG_CACHE_HOME/rondo, else ~/.cache/rondo (RONDO_CACHE=off:
// nowhere; RONDO_CACHE_MB: at most so much, 256 by default), so that the next process compiles nothing and never loads
// LLVM. Thread safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::compile {

// Writes every kernel that this process has compiled or loaded, for all its devices, to one file, for shipping. Throws
// FileError.
void save_artifacts(const std::string& path);
// Makes the kernels of such a file this process's own, those for devices that are here; returns how many they are. A
// host without the compiler (LLVM, NVRTC) can use them. Throws FileError with the reason and what to do if the file is
// damaged, if none of it is for a device that is here (another processor or architecture, another build of Rondo,
// another version of the compiler), or if others than its owner (us or root) could have written it: it is code that
// will be run.
int load_artifacts(const std::string& path);

// Where the code of this process came from, for all its devices.
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

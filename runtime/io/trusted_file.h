// Files that may hold code for this process: the plug-in that generates code, and compiled kernels.
//
//   absl::StatusOr<TrustedFile> file = TrustedFile::open("/usr/lib/rondo/librondo_jit_llvm.so");
//   if (file.ok()) dlopen(file->loadable_path().c_str(), ...);     // the very file that was checked
//
// Note [Trusted paths]
// A path that is looked up twice may name two files: whoever may rename something on the way can swap them between the
// check and the use. So the path is walked once, from the root, one folder after the other, each opened from the one
// before it. Each must belong to this user or to root, and nobody else may write to it. A folder in which everybody may
// create files but only their owners may rename them (the sticky bit, as /tmp has) is allowed, as the next step on the
// way is checked like any other. A symbolic link is followed by this walk, not by the kernel. What is checked and what
// is used then are open files, which no rename changes.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace rondo::io {

class TrustedFile {
 public:
  // A regular file. `path` must be absolute. kNotFound; kPermissionDenied, which names the folder or file that is not
  // safe; kInvalidArgument: no regular file.
  static absl::StatusOr<TrustedFile> open(const std::string& path);
  TrustedFile(TrustedFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TrustedFile& operator=(TrustedFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~TrustedFile();

  // All of it. kInvalidArgument: too large for kernels.
  absl::StatusOr<std::string> read() const;
  // A path of the open file itself, also after its own path was changed. It is valid while this object lives.
  std::string loadable_path() const;

 private:
  explicit TrustedFile(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// May this process run code that lies in the open file or folder? It must belong to us or to root, and nobody else may
// write to it. "", or the reason why not.
std::string distrust(int fd);
// The same for a folder: may this process run code from its files?
std::string distrust_folder(const std::string& path);

// The bytes of a regular file that distrust() accepts, wherever it lies: enough for kernels, as the bytes that are
// checked are the bytes that are used, and say what they are. kNotFound; kPermissionDenied: distrusted or not readable;
// kInvalidArgument: no regular file, or too large for kernels.
absl::StatusOr<std::string> read_trusted_file(const std::string& path);

}  // namespace rondo::io

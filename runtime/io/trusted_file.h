// Files that may hold code for this process: the plug-in that generates code, and compiled kernels.
//
//   absl::StatusOr<TrustedFile> file = TrustedFile::open("/usr/lib/rondo/librondo_jit_llvm.so");
//   if (file.ok()) dlopen(file->loadable_path().c_str(), ...);     // loads exactly the file that was checked
//
// Note [Trusted paths]
// A path that is looked up twice may name two files: someone who can rename a file or folder on the path can swap it
// between the check and the use. So the path is walked once, from the root, and each folder is opened relative to the
// one before it. Each must belong to this user or to root, and nobody else may write to it. One exception: a folder
// with the sticky bit, such as /tmp, where everybody may create files but only their owners may rename them. This
// folder is allowed, because the next component of the path is checked like any other. The walk follows symbolic links
// itself; the kernel does not. Both the check and the use work on open files, which a rename does not change.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace rondo::io {

class TrustedFile {
 public:
  // Opens a regular file. `path` must be absolute. Errors: kNotFound; kPermissionDenied, which names the folder or file
  // that is not safe; kInvalidArgument if it is not a regular file.
  static absl::StatusOr<TrustedFile> open(const std::string& path);
  TrustedFile(TrustedFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TrustedFile& operator=(TrustedFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~TrustedFile();

  // Returns the contents. Error kInvalidArgument if the file is larger than kernels can be.
  absl::StatusOr<std::string> read() const;
  // Returns a path that leads to this open file, even if the original path was renamed. Valid while this object lives.
  std::string loadable_path() const;

 private:
  explicit TrustedFile(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Returns "" if this process may run code from the open file or folder, else the reason why not. The file or folder
// must belong to this user or to root, and nobody else may write to it.
std::string distrust(int fd);
// Like distrust(), for the folder at `path`, whose files hold code.
std::string distrust_folder(const std::string& path);

// Returns the bytes of a regular file that distrust() accepts; the folders of its path are not checked. This is enough
// for kernels: the same bytes are checked and used, and they say which kernel they are. So a file that somebody has
// exchanged for another is noticed. Errors: kNotFound; kPermissionDenied if it is distrusted or not readable;
// kInvalidArgument if it is not a regular file, or too large.
absl::StatusOr<std::string> read_trusted_file(const std::string& path);

}  // namespace rondo::io

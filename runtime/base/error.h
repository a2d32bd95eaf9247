// Errors. A caller's mistake throws rondo::Error: its message names the op, the operands and the caller's line. A bad
// file throws FileError. A bug in Rondo throws InternalError. Destructors never throw.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file cannot be read or written. The message names the file and the reason.
class FileError : public Error {
 public:
  FileError(std::string path, std::string_view reason);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A tensor that was saved for backward was overwritten between forward and backward.
class StaleTensorError : public Error {
 public:
  using Error::Error;
};

// A device refused a request, or does not work any more.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& what, bool lost = false) : Error(what), lost_(lost) {}
  // True if the device's state is lost: every further call to it in this process fails in the same way, and the
  // contents of its tensors are gone. Start the program again, from a checkpoint.
  bool lost() const { return lost_; }

 private:
  bool lost_;
};

// The processor lacks an instruction set that kernels were compiled for. The message names it.
class UnsupportedCpuError : public Error {
 public:
  using Error::Error;
};

// An invariant inside Rondo is broken. Please report it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal(std::string_view what, std::source_location where = std::source_location::current());

// Throws InternalError unless `holds`.
inline void invariant(bool holds, const char* what, std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    throw_internal(what, where);
}

// A running module call. Frames form a thread-local stack, so that an error can name the path of the module.
class ModuleFrame {
 public:
  ModuleFrame(const std::string* path, std::source_location where) : path_(path), where_(where), outer_(innermost_) {
    innermost_ = this;
  }
  ~ModuleFrame() { innermost_ = outer_; }
  ModuleFrame(const ModuleFrame&) = delete;
  ModuleFrame& operator=(const ModuleFrame&) = delete;

  static const ModuleFrame* innermost() { return innermost_; }
  const std::string& path() const { return *path_; }
  std::source_location where() const { return where_; }
  const ModuleFrame* outer() const { return outer_; }

 private:
  const std::string* path_;
  std::source_location where_;
  const ModuleFrame* outer_;
  static inline thread_local const ModuleFrame* innermost_ = nullptr;
};

// Returns " (train.cc:41, in h.3.mlp)": the innermost line outside Rondo's own code, and the module's path.
std::string describe_location(std::source_location where);

// Throws Error "op: what (file:line, in module.path)".
[[noreturn]] void throw_op_error(std::string_view op, std::string_view what, std::source_location where);

// Throws Error "op: the tensor is undefined (file:line, in module.path)".
[[noreturn, gnu::cold]] void throw_undefined(const char* op, std::source_location where);

}  // namespace rondo
#pragma GCC visibility pop

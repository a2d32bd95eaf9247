// Errors. A caller's mistake throws rondo::Error, which says what to do and where the caller stands; a bad file throws
// FileError; a bug of ours throws InternalError. Kernels and destructors never throw.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "rondo/runtime/source_location.h"

#pragma GCC visibility push(default)
namespace rondo {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file that cannot be read or written: names the file and the reason.
class FileError : public Error {
 public:
  FileError(std::string path, std::string_view reason);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A saved tensor was overwritten between forward and backward.
class StaleTensorError : public Error {
 public:
  using Error::Error;
};

// The processor lacks an instruction set that kernels were compiled for. Names it.
class UnsupportedCpuError : public Error {
 public:
  using Error::Error;
};

// Broken invariant inside Rondo. Please report it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal(std::string_view what, std::source_location where = std::source_location::current());

// Checks an invariant of ours.
inline void invariant(bool holds, const char* what, std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    throw_internal(what, where);
}

// One frame of the user's program: a module call, kept on a thread-local stack so that errors can name the path.
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

// " (train.cc:41, in h.3.mlp)": the innermost frame that is not Rondo's own code, and the module path.
std::string describe_location(std::source_location where);

// Throws Error "op: what (file:line, in module.path)".
[[noreturn]] void throw_op_error(std::string_view op, std::string_view what, std::source_location where);

}  // namespace rondo
#pragma GCC visibility pop

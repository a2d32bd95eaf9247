// A file that grows by whole records. Not installed.
#pragma once

#include <string>
#include <string_view>

namespace rondo::optim {

// The file must be a regular file: opening a FIFO or a device is an error. All functions throw FileError.
class AppendFile {
 public:
  enum Mode { kReplace, kContinue };
  AppendFile(std::string path, Mode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends all of `record`. If a write fails (the disk is full), removes the bytes that were written, and throws. If
  // the process is killed during the call, the file may end with a part of `record`.
  void append(std::string_view record);
  // Makes the appended records durable.
  void sync();

 private:
  [[noreturn]] void fail(int error) const;
  const std::string path_;
  int fd_ = -1;
};

}  // namespace rondo::optim

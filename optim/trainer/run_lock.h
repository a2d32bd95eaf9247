// RunLock: keeps two runs from writing to one folder.
#pragma once

#include <string>

#pragma GCC visibility push(default)
namespace rondo::optim {

// Holds a lock (flock) on <folder>/.lock for as long as the object lives. The system releases the lock when the process
// ends, even by a kill. The file stays and holds the id of the process that last had the lock.
class RunLock {
 public:
  // Creates the folder if it does not exist, and removes temporary files of killed writers from it. Throws Error, which
  // names the process, if another process has the lock; FileError if the file cannot be written, or is a symbolic link
  // or no regular file.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
